/* SPDX-License-Identifier: Apache-2.0 */
/* Which batches of the log count, found at open from segment and batch headers alone.
 *
 * A *chain* is one lane of one session. Its batches number from 1 without gaps through segments of rising
 * generation. D is the highest batch that anything valid in the chain names durable.
 *   - Segments below what the newest session names released are free, and so are those that say it of
 *     themselves; the latter still join what is before and behind them.
 *   - The chain ends at the first batch that does not verify. At or below D that is damage: acknowledged
 *     records are missing (replication L3). Above D it is the torn tail of a crash: nothing behind it was
 *     acknowledged. Payload is verified above D only; below, reads do it. A block that cannot be read
 *     is damage wherever it is; a device that does not answer at all ends the opening.
 *   - What counts is flushed and then sealed: a batch with another magic is written over the torn place,
 *     naming all before it durable. So the next recovery ends at the same place, and takes decay of what
 *     this one believed for the damage that it is.
 * Nothing is written to segments of earlier sessions but the seal; new records go to fresh segments. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"
#include "node/loop/failpoint.h"
#include "store/recovery.h"

/* Reads ahead for those who go on behind it. */
static const uint8_t *window(struct recovery *rc, uint32_t seg, uint32_t block, uint32_t blocks)
{
	struct store *s = rc->store;
	struct device *d = s->segs[seg].pool->device;
	uint64_t off = s->segs[seg].off + (uint64_t)block * BLOCK_SIZE;
	uint32_t n = rc->narrow ? blocks : MIN(RECOVERY_WINDOW, s->seg_blocks - block);

	rc->read_failed = false;
	if (block + blocks > s->seg_blocks)
		return NULL;
	if (rc->seg == seg && block >= rc->first && block + blocks <= rc->first + rc->count)
		return rc->window + (size_t)(block - rc->first) * BLOCK_SIZE;
	rc->seg = LOG_NONE;
	if (device_pread(d, rc->window, (size_t)n * BLOCK_SIZE, off)) {
		n = blocks; /* perhaps only what is not needed is unreadable */
		if (device_pread(d, rc->window, (size_t)n * BLOCK_SIZE, off)) {
			log_warn("store", "a log block cannot be read", "device=%s offset=%llu",
				 d->path, (unsigned long long)off);
			rc->read_failed = true;
			if (!device_answers(d))
				rc->failed = -ERR_DEVICE;
			return NULL;
		}
	}
	rc->seg = seg;
	rc->first = block;
	rc->count = n;
	return rc->window;
}

const uint8_t *recovery_batch(struct recovery *rc, uint32_t seg, uint32_t block, uint64_t seq,
			      struct log_batch_header *h)
{
	const struct scanned *sc = &rc->scanned[seg];
	const uint8_t *p = block < rc->store->seg_blocks ? window(rc, seg, block, 1) : NULL;

	if (!p || log_batch_peek(p, h) || h->generation != sc->h.generation ||
	    h->lane != sc->h.lane || (seq && h->seq != seq) ||
	    block + h->header_blocks + h->payload_blocks > rc->store->seg_blocks)
		return NULL;
	p = window(rc, seg, block, h->header_blocks);
	if (!p || log_batch_verify(p, h->header_blocks, rc->store->log_seed))
		return NULL;
	return p;
}

const uint8_t *recovery_payload(struct recovery *rc, uint32_t seg, uint32_t block,
				const struct log_batch_header *h)
{
	return window(rc, seg, block, h->header_blocks + h->payload_blocks);
}

static void take_names(struct scanned *sc, const struct log_batch_header *h)
{
	sc->durable = MAX(sc->durable, h->durable);
	sc->oldest = MAX(sc->oldest, h->oldest);
	sc->kv_commit = MAX(sc->kv_commit, h->kv_commit);
}

static bool scan_header(struct recovery *rc, uint32_t seg, struct log_segment_header *h)
{
	const uint8_t *p = NULL;
	bool good = false;

	rc->narrow = true;
	for (unsigned looks = 0; looks < 2 && !good; looks++) {
		rc->seg = LOG_NONE;
		p = window(rc, seg, 0, 1);
		good = p && !log_segment_decode(p, h);
	}
	rc->narrow = false;
	rc->unread_header |= !p;
	return good;
}

/* Walks one segment as far as its batches hold. */
static void scan_segment(struct recovery *rc, uint32_t seg)
{
	struct store *s = rc->store;
	struct scanned *sc = &rc->scanned[seg];
	struct log_batch_header h;

	if (!scan_header(rc, seg, &sc->h) || !uuid_equal(&sc->h.log, &store_superblock(s)->log) ||
	    sc->h.incarnation != store_superblock(s)->log_incarnation)
		return;
	sc->valid = true;
	sc->end = 1;
	sc->last = sc->h.first_batch - 1;
	sc->durable = sc->h.durable;
	sc->oldest = sc->h.oldest;
	sc->kv_commit = sc->h.kv_commit;
	if (sc->h.released) {
		sc->last = sc->h.durable; /* its batches may be somebody else's already */
		return;
	}
	while (!sc->sealed) {
		if (!recovery_batch(rc, seg, sc->end, sc->last + 1, &h)) {
			/* Here the log ends, or so it seems. What is cut off is gone: look twice. */
			sc->unread = rc->read_failed;
			if (rc->narrow || sc->end >= s->seg_blocks)
				break;
			rc->narrow = true;
			rc->seg = LOG_NONE;
			continue;
		}
		rc->narrow = false;
		take_names(sc, &h);
		if (h.seal) {
			sc->sealed = true;
			break;
		}
		sc->last++;
		sc->end += h.header_blocks + h.payload_blocks;
	}
	rc->narrow = false;
}

/* Behind a bad batch: does a later one of the same segment name more as durable? */
static void scan_ahead(struct recovery *rc, uint32_t seg)
{
	struct scanned *sc = &rc->scanned[seg];
	struct log_batch_header h;

	for (uint32_t b = sc->end + 1; b < rc->store->seg_blocks; b++)
		if (recovery_batch(rc, seg, b, 0, &h) && h.seq > sc->last + 1)
			take_names(sc, &h);
}

/* ---- Chains ---- */

static int by_chain(const void *a, const void *b, void *arg)
{
	const struct recovery *rc = arg;
	const struct log_segment_header *x = &rc->scanned[*(const uint32_t *)a].h;
	const struct log_segment_header *y = &rc->scanned[*(const uint32_t *)b].h;

	if (x->session != y->session)
		return x->session < y->session ? -1 : 1;
	if (x->lane != y->lane)
		return x->lane < y->lane ? -1 : 1;
	return x->generation < y->generation ? -1 : x->generation > y->generation;
}

static int by_generation(const void *a, const void *b, void *arg)
{
	const struct recovery *rc = arg;
	uint64_t x = rc->scanned[*(const uint32_t *)a].h.generation;
	uint64_t y = rc->scanned[*(const uint32_t *)b].h.generation;

	return x < y ? -1 : x > y;
}

static bool same_chain(const struct recovery *rc, uint32_t a, uint32_t b)
{
	return rc->scanned[a].h.session == rc->scanned[b].h.session &&
	       rc->scanned[a].h.lane == rc->scanned[b].h.lane;
}

static bool payload_verify(struct recovery *rc, uint32_t seg, uint32_t block,
			   const struct log_batch_header *h)
{
	const uint8_t *p = recovery_payload(rc, seg, block, h), *data;
	struct reader in;
	unsigned used = 0;

	if (!p)
		return false;
	data = p + (size_t)h->header_blocks * BLOCK_SIZE;
	in = reader_init(p + LOG_BATCH_HEADER_LEN,
			 (size_t)h->header_blocks * BLOCK_SIZE - LOG_BATCH_HEADER_LEN);
	for (unsigned i = 0; i < h->records; i++) {
		struct log_record r;
		const uint8_t *fps;

		if (log_record_decode(&in, &r, &fps) || used + r.fp_count > h->payload_blocks)
			return false;
		for (unsigned k = 0; k < r.fp_count; k++)
			if (!fp128_equal(hash_block(data + (size_t)(used + k) * BLOCK_SIZE),
					 log_fp(fps, k)))
				return false;
		used += r.fp_count;
	}
	return used == h->payload_blocks;
}

static bool payload_holds(struct recovery *rc, uint32_t seg, uint32_t block,
			  const struct log_batch_header *h)
{
	if (payload_verify(rc, seg, block, h))
		return true;
	rc->seg = LOG_NONE;
	return payload_verify(rc, seg, block, h);
}

/* Above D each payload must hold; the first that does not is where the tail was torn. */
static void verify_tail(struct recovery *rc, struct chain *c)
{
	for (unsigned i = 0; i < c->count; i++) {
		uint32_t seg = c->segs[i], at = 1;
		struct scanned *sc = &rc->scanned[seg];
		struct log_batch_header h;

		if (sc->h.released || sc->last <= c->durable || sc->h.first_batch > c->last)
			continue;
		for (uint64_t seq = sc->h.first_batch; seq <= MIN(sc->last, c->last); seq++) {
			if (!recovery_batch(rc, seg, at, seq, &h))
				h = (struct log_batch_header){.seq = seq};
			if (seq > c->durable &&
			    (!h.header_blocks || !payload_holds(rc, seg, at, &h))) {
				c->damaged = rc->read_failed; /* not torn: it may well have counted */
				c->last = seq - 1;
				c->end_seg = seg;
				c->end = at;
				c->sealed = false;
				return;
			}
			at += h.header_blocks + h.payload_blocks;
		}
	}
}

static void walk_chain(struct recovery *rc, struct chain *c)
{
	uint32_t first = c->segs[0], seg = first;
	struct scanned *sc = &rc->scanned[first];
	uint64_t expected = sc->h.first_batch;
	bool start_missing;

	for (unsigned i = 0; i < c->count; i++)
		c->durable = MAX(c->durable, rc->scanned[c->segs[i]].durable);
	/* The oldest live segment: the one named, or the first of all. (An older session's start may lie
	 * below the floor: then nobody can say.) */
	start_missing =
		!rc->floor_above && (c->oldest > sc->h.session ? sc->h.generation != c->oldest
							       : sc->h.first_batch != 1);
	c->last = expected - 1;
	c->end_seg = seg;
	c->end = 1;
	for (unsigned i = 0; i < c->count && !c->sealed; i++) {
		if (rc->scanned[c->segs[i]].h.first_batch != expected)
			break;
		seg = c->segs[i];
		sc = &rc->scanned[seg];
		c->last = sc->last;
		c->end_seg = seg;
		c->end = sc->end;
		c->sealed = sc->sealed;
		expected = sc->last + 1;
	}
	if (!c->sealed && !sc->h.released) {
		scan_ahead(rc, seg);
		c->durable = MAX(c->durable, rc->scanned[seg].durable);
	}
	if (start_missing) {
		/* Its header was in flight with what we see, unless something behind `before` was durable. */
		c->damaged = c->durable > c->before;
		c->empty = !c->damaged;
		c->last = 0; /* nothing in order */
	} else {
		/* What cannot be read may have been acknowledged: that is damage, never a torn tail. */
		c->damaged = c->last < c->durable ||
			     (!c->sealed && (sc->unread || rc->unread_header));
		if (!c->damaged && rule(RULE_TORN_TAIL))
			verify_tail(rc, c);
	}
	if (c->damaged)
		log_error("store", "the log is damaged where it was durable, or may have been",
			  "lane=%u lanes=%u session=%llu good=%llu durable=%llu",
			  rc->scanned[first].h.lane, rc->scanned[first].h.lanes,
			  (unsigned long long)rc->scanned[first].h.session,
			  (unsigned long long)c->last, (unsigned long long)c->durable);
}

/* Released: below the floor that the newest session names, or below what the lane itself names. */
static void find_released(struct recovery *rc, const uint32_t *order, unsigned n)
{
	uint64_t session = 0;

	rc->floor = 0;
	for (unsigned i = 0; i < n; i++)
		session = MAX(session, rc->scanned[order[i]].h.session);
	for (unsigned i = 0; i < n; i++) {
		const struct scanned *sc = &rc->scanned[order[i]];

		if (sc->h.session == session)
			rc->floor = MAX(rc->floor, MIN(sc->oldest, session));
	}
	for (unsigned i = 0; i < n;) {
		uint64_t oldest = 0;
		unsigned k = i;

		for (; k < n && same_chain(rc, order[i], order[k]); k++)
			oldest = MAX(oldest, rc->scanned[order[k]].oldest);
		for (; i < k; i++) {
			struct scanned *sc = &rc->scanned[order[i]];

			sc->lane_oldest = oldest;
			sc->live = sc->h.generation >= rc->floor &&
				   (oldest <= sc->h.session || sc->h.generation >= oldest);
		}
	}
}

static int seal_chain(struct recovery *rc, struct chain *c)
{
	struct store *s = rc->store;
	CLEANUP(free_ptr) uint8_t *b = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	const struct scanned *sc = &rc->scanned[c->end_seg];
	struct device *d = s->segs[c->end_seg].pool->device;
	struct log_batch_header h = {
		.seal = true,
		.header_blocks = 1,
		.lane = sc->h.lane,
		.generation = sc->h.generation,
		.seq = c->last + 1,
		.durable = c->last,
		.kv_commit = sc->kv_commit,
		.oldest = c->oldest,
	};

	if (c->damaged || c->sealed || sc->h.released || c->end >= s->seg_blocks)
		return 0;
	log_batch_seal(&h, b, s->log_seed);
	rc->seg = LOG_NONE;
	return device_pwrite(d, b, BLOCK_SIZE,
			     s->segs[c->end_seg].off + (uint64_t)c->end * BLOCK_SIZE);
}

static int flush_logs(struct store *s)
{
	int rc = 0;

	for (unsigned i = 0; i < s->pool_count && !rc; i++)
		rc = device_flush(s->pools[i].device);
	return rc;
}

/* What its header is to say once it is released, when its batches say nothing any more: also what they named.
 * Without `oldest`, segments of the chain that were released before it would come back to life. */
static struct log_segment_header legacy_header(const struct scanned *sc)
{
	struct log_segment_header h = sc->h;

	h.durable = sc->last;
	h.oldest = MAX(h.oldest, sc->lane_oldest);
	h.kv_commit = MAX(h.kv_commit, sc->kv_commit);
	return h;
}

/* All live segments, oldest first, into the table; they are cleared in this order. */
static void list_legacy(struct recovery *rc)
{
	struct store *s = rc->store;
	uint32_t last = LOG_NONE;

	qsort_r(rc->live, rc->live_count, sizeof(rc->live[0]), by_generation, rc);
	for (unsigned i = 0; i < rc->live_count; i++) {
		struct log_seg *g = &s->segs[rc->live[i]];

		g->generation = rc->scanned[rc->live[i]].h.generation;
		g->state = SEG_LEGACY;
		g->last_batch = 0;
		s->legacy[rc->live[i]] = legacy_header(&rc->scanned[rc->live[i]]);
		g->next = LOG_NONE;
		atomic_store(&g->shards_left, s->shard_count);
		g->pool->free--;
		if (last != LOG_NONE)
			s->segs[last].next = rc->live[i];
		last = rc->live[i];
	}
	atomic_store(&s->legacy_left, rc->live_count);
	atomic_store(&s->legacy_floor,
		     rc->live_count ? s->segs[rc->live[0]].generation : s->session);
}

/* Nothing in it ever counted and its start is not there: no later recovery should wonder about it. */
static int forget_chain(struct recovery *rc, const struct chain *c)
{
	struct store *s = rc->store;
	CLEANUP(free_ptr) uint8_t *zero = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	int err = 0;

	rc->seg = LOG_NONE;
	for (unsigned i = 0; i < c->count && !err; i++)
		err = device_pwrite(s->segs[c->segs[i]].pool->device, zero, BLOCK_SIZE,
				    s->segs[c->segs[i]].off);
	return err;
}

static bool any_live(const struct recovery *rc, const struct chain *c)
{
	for (unsigned i = 0; i < c->count; i++)
		if (!rc->scanned[c->segs[i]].h.released)
			return true;
	return false;
}

static int make_chains(struct recovery *rc, const uint32_t *order, unsigned n)
{
	rc->live = xcalloc(n + 1, sizeof(*rc->live));
	rc->chains = xcalloc(n + 1, sizeof(*rc->chains));
	rc->chain_segs = xcalloc(n + 1, sizeof(*rc->chain_segs));
	for (unsigned i = 0, segs = 0; i < n;) {
		struct chain *c = &rc->chains[rc->chain_count];
		unsigned k = i;
		int err;

		*c = (struct chain){.segs = rc->chain_segs + segs,
				    .oldest = rc->scanned[order[i]].lane_oldest};
		for (; k < n && same_chain(rc, order[i], order[k]); k++) {
			const struct scanned *sc = &rc->scanned[order[k]];

			if (sc->live)
				rc->chain_segs[segs + c->count++] = order[k];
			else
				c->before = MAX(c->before, sc->last);
		}
		rc->floor_above = rc->floor > rc->scanned[order[i]].h.session;
		i = k;
		if (!any_live(rc, c))
			continue;
		walk_chain(rc, c);
		if (c->empty) {
			err = forget_chain(rc, c);
			if (err)
				return err;
			continue;
		}
		for (unsigned m = 0; m < c->count; m++)
			if (!rc->scanned[c->segs[m]].h.released)
				rc->live[rc->live_count++] = c->segs[m];
		segs += c->count;
		rc->chain_count++;
	}
	return 0;
}

int recovery_scan(struct store *s, uint64_t *kv_commit)
{
	struct recovery *rc = xcalloc(1, sizeof(*rc));
	CLEANUP(free_ptr) uint32_t *order = xcalloc(s->seg_count, sizeof(*order));
	unsigned n = 0;
	int err;

	s->recovery = rc;
	rc->store = s;
	rc->seg = LOG_NONE;
	rc->window = xalloc_aligned(BLOCK_SIZE, (size_t)RECOVERY_WINDOW * BLOCK_SIZE);
	rc->scanned = xcalloc(s->seg_count, sizeof(*rc->scanned));
	*kv_commit = 0;
	/* Unique to this opening: the caller has just raised the superblocks' sequence durably. So nothing of
	 * an earlier one, headed or not, can be taken for ours. */
	s->session = store_superblock(s)->sequence << 32;
	for (uint32_t i = 0; i < s->seg_count; i++) {
		struct scanned *sc = &rc->scanned[i];

		scan_segment(rc, i);
		if (!sc->valid)
			continue;
		order[n++] = i;
		s->session = MAX(s->session, sc->h.generation + 1);
		*kv_commit = MAX(*kv_commit, sc->kv_commit);
	}
	atomic_store(&s->generation, s->session);
	qsort_r(order, n, sizeof(*order), by_chain, rc);
	find_released(rc, order, n);
	err = make_chains(rc, order, n);
	if (!err)
		err = rc->failed;
	/* A process that died left writes in the device's cache: what is believed must be durable. */
	if (!err)
		err = flush_logs(s);
	if (!err)
		err = FAILPOINT(open_scanned);
	for (unsigned i = 0; i < rc->chain_count && !err; i++)
		err = seal_chain(rc, &rc->chains[i]);
	if (!err)
		err = flush_logs(s);
	if (!err)
		err = FAILPOINT(open_sealed);
	list_legacy(rc);
	return err;
}

void recovery_free(struct store *s)
{
	struct recovery *rc = s->recovery;

	if (!rc)
		return;
	free(rc->window);
	free(rc->scanned);
	free(rc->live);
	free(rc->chains);
	free(rc->chain_segs);
	free(rc);
	s->recovery = NULL;
}
