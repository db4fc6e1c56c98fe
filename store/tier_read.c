/* SPDX-License-Identifier: Apache-2.0 */
/* Reading blocks of a page from the capacity devices. It must never give out bytes that do not
 * match the fingerprint in the map: on a mismatch it looks the page up once more (the block may
 * have moved), reads once more, and then calls the block bad. A share that is gone says nothing as long
 * as the page names another one each time: it was overwritten between the two lookups. While it runs it
 * holds a reader's reference, so that what it looks up is not written over under it (I10). */
#include <stdlib.h>

#include "node/base/rules.h"
#include "store/codec.h"
#include "store/tier_internal.h"

#define STREAM_BLOCKS 8u /* from here on a read is a stream */

struct read_run {
	struct io io;
	struct wait wait;
	struct read_op *op;
	struct device *dev;
	int fd;
	uint64_t start_us;
	uint8_t *mem; /* where the device's bytes go: dest, or the bounce buffer */
	uint64_t off;
	uint32_t len;
	uint8_t first, count, device;
	bool direct; /* raw blocks, straight into dest */
	int rc;
};

struct read_op {
	struct tier_shard *s;
	struct tier_read *op;
	const struct map_page *map;
	struct tier_page lookup;
	struct wait lookup_wait, share_wait;
	struct work share_work;
	uint64_t unresolved;                 /* shared blocks whose place is being looked up */
	uint64_t gone[PAGE_BLOCKS];          /* the share that was not there any more, last time */
	struct map_entry entry[PAGE_BLOCKS]; /* of the blocks to do: where they are */
	struct buf *bounce;
	uint64_t todo; /* blocks not yet produced */
	unsigned parity, run_count, pending;
	bool again;
	struct read_run runs[PAGE_BLOCKS];
};

size_t tier_read_op_size(void)
{
	return sizeof(struct read_op);
}

static uint64_t range_mask(const struct tier_read *op)
{
	return (op->count >= 64 ? ~0ull : (1ull << op->count) - 1) << op->first;
}

static uint8_t *dest_of(const struct tier_read *op, unsigned block)
{
	return op->dest + (size_t)(block - op->first) * BLOCK_SIZE;
}

/* A stream's blocks are not asked for again soon: it passes the block cache by, which spares it the
 * copies and keeps what others use. */
static bool is_stream(const struct tier_read *op)
{
	return op->count >= STREAM_BLOCKS;
}

/* ---- Readers' references -----------------------------------------------------------------------
 */

static unsigned readers_enter(struct tier_shard *s)
{
	for (;;) {
		unsigned p = atomic_load(&s->t->parity);

		atomic_fetch_add(&s->readers[p], 1);
		if (atomic_load(&s->t->parity) == p)
			return p;
		atomic_fetch_sub(&s->readers[p], 1);
	}
}

static void readers_exit(struct tier_shard *s, unsigned parity)
{
	atomic_fetch_sub(&s->readers[parity], 1);
	if (atomic_load(&s->t->grace_wanted))
		sem_post(&s->t->more_work);
}

/* ---- Shared blocks -----------------------------------------------------------------------------
 */

static struct fifo_key share_key(uint64_t word)
{
	return (struct fifo_key){map_share_id(word), 0};
}

/* The place of a block: its entry's, or its share's, if that is in the cache. */
static bool entry_place(struct tier_shard *s, const struct map_entry *e, struct map_entry *out)
{
	const struct map_entry *c;

	*out = *e;
	if (map_entry_kind(e->word) != MAP_SHARE)
		return true;
	c = fifo_cache_get(&s->shares, share_key(e->word));
	if (c)
		*out = *c;
	return c != NULL;
}

/* On a thread of the blocking pool. */
struct share_job {
	struct read_op *r;
	const unsigned *which;
};

static void share_one(void *arg, unsigned i, int rc, const void *value, size_t len)
{
	struct share_job *j = arg;
	struct map_entry *e = &j->r->entry[j->which[i]];
	struct share_row row;

	/* What is not there any more is looked up again from the page on. */
	if (rc || share_decode(value, len, &row))
		*e = (struct map_entry){MAP_HOLE, 0};
	else
		*e = (struct map_entry){row.word, row.fp.lo};
}

static int shares_run(struct work *work)
{
	struct read_op *r = container_of(work, struct read_op, share_work);
	uint8_t keys[PAGE_BLOCKS][8];
	const void *key[PAGE_BLOCKS];
	size_t lens[PAGE_BLOCKS];
	unsigned which[PAGE_BLOCKS], n = 0;
	struct share_job j = {r, which};

	/* Ascending and distinct, as the database wants its keys. */
	for (uint64_t m = r->unresolved; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m), at = n;
		uint64_t id = map_share_id(r->map->entry[i].word);

		while (at && map_share_id(r->map->entry[which[at - 1]].word) > id)
			at--;
		if (at && map_share_id(r->map->entry[which[at - 1]].word) == id)
			continue;
		memmove(&which[at + 1], &which[at], (n - at) * sizeof(which[0]));
		which[at] = i;
		n++;
	}
	for (unsigned i = 0; i < n; i++) {
		put_be64(keys[i], map_share_id(r->map->entry[which[i]].word));
		key[i] = keys[i];
		lens[i] = sizeof(keys[i]);
	}
	kv_multi_get(r->s->t->kv, KV_SHARE, key, lens, n, share_one, &j);
	for (uint64_t m = r->unresolved; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		for (unsigned k = 0; k < n; k++)
			if (map_share_id(r->map->entry[which[k]].word) ==
			    map_share_id(r->map->entry[i].word))
				r->entry[i] = r->entry[which[k]];
	}
	return 0;
}

/* Places of all blocks to do; those that must be looked up are left in r->unresolved. */
static void read_resolve(struct read_op *r)
{
	r->unresolved = 0;
	for (uint64_t m = r->todo; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		/* The second time nothing from the cache counts. */
		if ((r->again && map_entry_kind(r->map->entry[i].word) == MAP_SHARE) ||
		    !entry_place(r->s, &r->map->entry[i], &r->entry[i]))
			r->unresolved |= 1ull << i;
	}
}

/* ---- What needs no device ----------------------------------------------------------------------
 */

/* Produces holes, zeroes, damage and cached blocks of `mask`; returns the blocks that must be read.
 */
static uint64_t read_fill(struct tier_shard *s, struct tier_read *op, const struct map_page *map,
			  uint64_t mask)
{
	uint64_t todo = 0;

	for (uint64_t m = mask; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);
		unsigned kind = map->mask >> i & 1 ? map_entry_kind(map->entry[i].word) : MAP_HOLE;
		const struct block_cache_item *c;
		struct fp128 fp = hash_zero_block();
		struct map_entry at;
		bool known;

		switch (kind) {
		case MAP_HOLE:
		case MAP_ZERO:
			memset(dest_of(op, i), 0, BLOCK_SIZE);
			break;
		case MAP_RAW:
		case MAP_LZ4:
		case MAP_SHARE:
			known = entry_place(s, &map->entry[i], &at);
			c = known && !is_stream(op) ? block_cache_get(&s->blocks, &at) : NULL;
			if (!c || c->fp.lo != map->entry[i].fp64) {
				if (known && tier_place_lost(s->t, at.word)) {
					memset(dest_of(op, i), 0, BLOCK_SIZE);
					op->bad |= 1ull << i;
				} else {
					todo |= 1ull << i;
				}
				continue;
			}
			memcpy(dest_of(op, i), c->data, BLOCK_SIZE);
			fp = c->fp;
			break;
		default:
			memset(dest_of(op, i), 0, BLOCK_SIZE);
			op->bad |= 1ull << i;
		}
		if (op->fps)
			op->fps[i - op->first] = fp;
	}
	return todo;
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

/* Neighbours on the device become one read. Returns the bounce bytes the compressed ones need. */
static size_t runs_build(struct read_op *r)
{
	size_t bounce = 0;
	uint64_t next = 0; /* where the last run's bytes end, exactly */

	r->run_count = 0;
	for (uint64_t m = r->todo; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		if (!map_entry_has_place(r->entry[i].word))
			continue; /* the share is gone: not produced, hence looked up again */

		uint64_t word = r->entry[i].word, off = map_entry_offset(word);
		struct read_run *run = r->run_count ? &r->runs[r->run_count - 1] : NULL;
		bool raw = map_entry_kind(word) == MAP_RAW;
		uint64_t end = off + map_entry_units(word) * 64;

		if (run && run->first + run->count == i && run->direct == raw && off == next &&
		    run->device == map_entry_device(word)) {
			run->count++;
			run->len = (uint32_t)(round_up(end, BLOCK_SIZE) - run->off);
		} else {
			run = &r->runs[r->run_count++];
			run->first = (uint8_t)i;
			run->count = 1;
			run->direct = raw;
			run->device = (uint8_t)map_entry_device(word);
			run->off = round_down(off, BLOCK_SIZE);
			run->len = (uint32_t)(round_up(end, BLOCK_SIZE) - run->off);
		}
		next = end;
	}
	for (unsigned k = 0; k < r->run_count; k++)
		bounce += r->runs[k].direct ? 0 : r->runs[k].len;
	return bounce;
}

static void read_run_done(struct wait *w, int rc);
static void read_verify(struct read_op *r);
static int read_finish(struct read_op *r);

static void runs_start(struct read_op *r)
{
	struct segments *seg = &r->s->t->seg;
	size_t used = 0;

	r->pending = 1; /* ours, until all are started */
	for (unsigned k = 0; k < r->run_count; k++) {
		struct read_run *run = &r->runs[k];
		struct device *dev = seg->dev[run->device].dev;

		run->op = r;
		run->rc = 0;
		run->wait.resume = read_run_done;
		run->mem = run->direct ? dest_of(r->op, run->first) : r->bounce->data + used;
		used += run->direct ? 0 : run->len;
		run->dev = dev;
		if (!dev || dev->fd < 0) {
			run->rc = -ERR_DEVICE;
			continue;
		}
		run->fd = dev->fd;
		run->start_us = loop_mono_us(r->s->loop);
		run->rc = device_fault(dev, DEVICE_READ);
		if (run->rc) {
			device_done(dev, DEVICE_READ, 0, run->rc);
			continue;
		}
		r->pending++;
		atomic_fetch_add_explicit(&r->s->read_bytes, run->len, memory_order_relaxed);
		atomic_fetch_add_explicit(&r->s->reads, 1, memory_order_relaxed);
		run->rc = io_read(r->s->loop, &run->io, run->fd, run->mem, run->len, run->off,
				  &run->wait);
		if (run->rc != PENDING)
			r->pending--;
	}
	r->pending--;
}

/* Memory for the compressed runs; false: wait for other reads to end. */
static bool bounce_get(struct read_op *r, size_t bytes)
{
	if (!bytes)
		return true;
	r->bounce = buf_get(r->s->bounce, bytes);
	if (!r->bounce && r->s->read_pool.used == 1)
		r->bounce = buf_heap(bytes); /* nobody else will give any back */
	return r->bounce != NULL;
}

static void bounce_put(struct read_op *r)
{
	if (r->bounce)
		buf_unref(r->bounce);
	r->bounce = NULL;
}

/* ---- After the device --------------------------------------------------------------------------
 */

static void read_run_done(struct wait *w, int rc)
{
	struct read_run *run = container_of(w, struct read_run, wait);
	struct read_op *r = run->op;

	run->rc = rc;
	if (run->fd == run->dev->fd) /* not replaced meanwhile */
		device_done(run->dev, DEVICE_READ, loop_mono_us(r->s->loop) - run->start_us, rc);
	if (!--r->pending)
		read_verify(r);
}

static bool block_verify(struct read_op *r, struct read_run *run, unsigned i)
{
	const struct map_entry *e = &r->entry[i];
	uint8_t *dest = dest_of(r->op, i);
	struct fp128 fp;

	if (run->rc)
		return false;
	if (!run->direct && codec_decompress(run->mem + (map_entry_offset(e->word) - run->off),
					     map_entry_units(e->word), dest))
		return false;
	fp = hash_block(dest);
	if (fp.lo != r->map->entry[i].fp64 && rule(RULE_VERIFY))
		return false;
	if (r->op->fps)
		r->op->fps[i - r->op->first] = fp;
	if (!is_stream(r->op))
		block_cache_put(&r->s->blocks, e, dest, fp);
	return true;
}

static void blocks_bad(struct read_op *r, uint64_t mask)
{
	for (uint64_t m = mask; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		memset(dest_of(r->op, i), 0, BLOCK_SIZE);
		log_error("tier", "a stored block does not match its fingerprint or cannot be read",
			  "object=%llu block=%llu device=%u offset=%llu",
			  (unsigned long long)r->op->object,
			  (unsigned long long)r->op->page * PAGE_BLOCKS + i,
			  map_entry_device(r->entry[i].word),
			  (unsigned long long)map_entry_offset(r->entry[i].word));
		atomic_fetch_add(&r->s->t->corrupt_blocks, 1);
	}
	tier_suspect(r->s->t, r->s->index, r->op->object, r->op->page, mask);
	r->op->bad |= mask;
	r->todo &= ~mask;
}

static void read_end(struct read_op *r)
{
	struct wait *w = r->op->wait;

	(void)read_finish(r);
	wait_resume(w, 0);
}

/* The places are known. */
static void read_go(struct read_op *r)
{
	/* Rare, and what has begun must not wait on the first tries of others. */
	if (!bounce_get(r, runs_build(r)))
		r->bounce = buf_heap(UNIT_MAX);
	runs_start(r);
	if (!r->pending)
		read_verify(r);
}

static void shares_done(struct wait *w, int rc)
{
	struct read_op *r = container_of(w, struct read_op, share_wait);
	struct tier_shard *s = r->s;
	uint64_t bad = 0;

	for (uint64_t m = r->unresolved; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);
		struct map_entry *e = &r->entry[i], *keep;

		if (map_entry_kind(e->word) == MAP_DAMAGED || tier_place_lost(s->t, e->word)) {
			bad |= 1ull << i;
		} else if (map_entry_has_place(e->word)) {
			keep = fifo_cache_put(&s->shares, share_key(r->map->entry[i].word));
			if (keep)
				*keep = *e;
		}
	}
	if (bad) { /* said when it was found */
		for (uint64_t m = bad; m; m &= m - 1)
			memset(dest_of(r->op, (unsigned)__builtin_ctzll(m)), 0, BLOCK_SIZE);
		r->op->bad |= bad;
		r->todo &= ~bad;
	}
	if (!r->todo)
		read_end(r);
	else
		read_go(r);
}

static void shares_lookup(struct read_op *r)
{
	r->share_work.run = shares_run;
	r->share_wait.resume = shares_done;
	if (worker_submit(r->s->t->pool, r->s->loop, &r->share_work, &r->share_wait) != PENDING)
		CHECK(!"worker_submit answers later");
}

static void read_lookup_done(struct wait *w, int rc)
{
	struct read_op *r = container_of(w, struct read_op, lookup_wait);

	if (rc) {
		blocks_bad(r, r->todo);
		read_end(r);
		return;
	}
	r->map = &r->lookup.out;
	r->todo = read_fill(r->s, r->op, r->map, r->todo);
	if (!r->todo) {
		read_end(r);
		return;
	}
	read_resolve(r);
	if (r->unresolved)
		shares_lookup(r);
	else
		read_go(r);
}

/* Blocks whose share was gone, and not the one that was gone the time before. */
static uint64_t overwritten_meanwhile(struct read_op *r)
{
	uint64_t found = 0;

	for (uint64_t m = r->todo; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);
		uint64_t word = r->map->entry[i].word;

		if (map_entry_has_place(r->entry[i].word) || word == r->gone[i])
			continue;
		r->gone[i] = word;
		found |= 1ull << i;
	}
	return found;
}

static void read_verify(struct read_op *r)
{
	uint64_t later;
	int rc;

	for (unsigned k = 0; k < r->run_count; k++) {
		struct read_run *run = &r->runs[k];

		if (run->rc)
			atomic_fetch_add(&r->s->t->io_errors, 1);
		for (unsigned i = run->first; i < (unsigned)run->first + run->count; i++)
			if (block_verify(r, run, i))
				r->todo &= ~(1ull << i);
	}
	bounce_put(r);
	later = overwritten_meanwhile(r);
	if (r->again && r->todo & ~later)
		blocks_bad(r, r->todo & ~later);
	if (!r->todo) {
		read_end(r);
		return;
	}
	/* I1: the block may have moved since the caller looked the page up. */
	r->again = true;
	r->lookup = (struct tier_page){.object = r->op->object, .page = r->op->page, .fresh = true};
	r->lookup_wait.resume = read_lookup_done;
	rc = tier_page_get(r->s->t, r->s->index, &r->lookup, &r->lookup_wait);
	if (rc != PENDING)
		read_lookup_done(&r->lookup_wait, rc);
}

/* ---- Starting and ending -----------------------------------------------------------------------
 */

/* 0: done already; PENDING; -ENOBUFS: no room now. */
static int read_try(struct tier_shard *s, struct tier_read *op)
{
	struct read_op *r;
	uint64_t todo;

	op->bad = 0;
	todo = read_fill(s, op, op->map, range_mask(op));
	if (!todo)
		return 0;
	r = pool_get(&s->read_pool);
	if (!r)
		return -ENOBUFS;
	r->s = s;
	r->op = op;
	r->map = op->map;
	r->todo = todo;
	r->again = false;
	memset(r->gone, 0, sizeof(r->gone));
	r->bounce = NULL;
	read_resolve(r);
	if (r->unresolved) {
		r->parity = readers_enter(s);
		shares_lookup(r);
		return PENDING;
	}
	if (!bounce_get(r, runs_build(r))) {
		pool_put(&s->read_pool, r);
		return -ENOBUFS;
	}
	r->parity = readers_enter(s);
	runs_start(r);
	if (!r->pending) { /* no device took anything: all of it is bad, and that is an answer */
		blocks_bad(r, r->todo);
		return read_finish(r);
	}
	return PENDING;
}

static int read_finish(struct read_op *r)
{
	struct tier_shard *s = r->s;
	struct list *l;

	bounce_put(r);
	readers_exit(s, r->parity);
	pool_put(&s->read_pool, r);
	while (!s->retrying && (l = list_pop_front(&s->read_waiters))) {
		struct tier_read *op = list_entry(l, struct tier_read, link);
		int rc;

		s->retrying = true; /* those that end at once come back here: once is enough */
		rc = read_try(s, op);
		s->retrying = false;
		if (rc == -ENOBUFS) {
			list_push_front(&s->read_waiters, l);
			break;
		}
		if (rc != PENDING)
			wait_resume(op->wait, rc);
	}
	shard_check_drained(s);
	return 0;
}

int tier_read(struct tier *t, unsigned shard, struct tier_read *op, struct wait *w)
{
	struct tier_shard *s = &t->shards[shard];
	int rc;

	CHECK(op->count && op->first + op->count <= PAGE_BLOCKS);
	op->wait = w;
	if (s->stopped)
		return -ERR_CLOSED;
	if (!list_empty(&s->read_waiters)) {
		list_push_back(&s->read_waiters, &op->link);
		return PENDING;
	}
	rc = read_try(s, op);
	if (rc == -ENOBUFS) {
		list_push_back(&s->read_waiters, &op->link);
		return PENDING;
	}
	return rc;
}

void shard_fail_reads(struct tier_shard *s)
{
	struct list *l;

	while ((l = list_pop_front(&s->read_waiters)))
		wait_resume(list_entry(l, struct tier_read, link)->wait, -ERR_CLOSED);
}
