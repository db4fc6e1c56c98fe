/* SPDX-License-Identifier: Apache-2.0 */
/* See lane.h. A segment's header is written as an entry of the same ordered line as the batches, so that
 * no batch counts before the header of its segment is durable. */
#include "store/lane.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"
#include "node/loop/failpoint.h"
#include "store/store_impl.h"

#define HEAD_CAP    (LOG_BATCH_HEADER_BLOCKS_MAX * BLOCK_SIZE)
#define PAYLOAD_CAP (LOG_BATCH_PAYLOAD_MAX * BLOCK_SIZE)

static void on_turn(struct turn_end *t);
static void on_written(struct wait *w, int rc);

void lane_init(struct lane *l, struct shard *sh)
{
	size_t each = HEAD_CAP + PAYLOAD_CAP;

	*l = (struct lane){.shard = sh, .seg = LOG_NONE, .oldest = sh->store->session};
	list_init(&l->free);
	list_init(&l->ready);
	list_init(&l->inflight);
	turn_end_init(&l->turn, on_turn);
	/* Not touched before use: an idle shard keeps none of it resident. */
	l->memory = mmap(NULL, each * LANE_BATCHES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(l->memory != MAP_FAILED);
	for (unsigned i = 0; i < LANE_BATCHES; i++) {
		struct batch *b = &l->batches[i];

		b->lane = l;
		b->head = (uint8_t *)l->memory + i * each;
		b->head_cap = HEAD_CAP;
		b->payload = b->head + HEAD_CAP;
		b->payload_cap = LOG_BATCH_PAYLOAD_MAX;
		list_push_back(&l->free, &b->link);
	}
}

void lane_fini(struct lane *l)
{
	if (l->memory)
		munmap(l->memory, (HEAD_CAP + PAYLOAD_CAP) * LANE_BATCHES);
	l->memory = NULL;
}

bool lane_idle(const struct lane *l)
{
	return !l->open && list_empty(&l->ready) && list_empty(&l->inflight);
}

static struct batch *batch_heap(struct lane *l, size_t head, unsigned payload_blocks)
{
	struct batch *b = xcalloc(1, sizeof(*b));
	size_t head_cap = round_up(head, BLOCK_SIZE);

	b->lane = l;
	b->heap = true;
	b->head = xalloc_aligned(BLOCK_SIZE, head_cap + (size_t)payload_blocks * BLOCK_SIZE);
	b->head_cap = head_cap;
	b->payload = b->head + head_cap;
	b->payload_cap = payload_blocks;
	return b;
}

static void batch_start(struct batch *b)
{
	list_init(&b->records);
	list_init(&b->ops);
	list_init(&b->link);
	b->head_len = LOG_BATCH_HEADER_LEN;
	b->payload_blocks = b->record_count = 0;
	b->seq = b->oldest = 0;
	b->done = false;
	b->rc = 0;
}

static void batch_free(struct batch *b)
{
	if (b->heap) {
		free(b->head);
		free(b);
	} else {
		list_push_front(&b->lane->free, &b->link);
	}
}

static uint64_t oldest_now(const struct lane *l)
{
	struct store *s = l->shard->store;

	return atomic_load(&s->legacy_left) ? atomic_load(&s->legacy_floor) : l->oldest;
}

/* ---- Segments ---- */

/* Whether class may take a segment; the pool is locked. */
static bool may_take(const struct lane *l, const struct log_pool *p, enum lane_class class)
{
	unsigned quota = p->count / p->lanes,
		 keep = !rule(RULE_RESERVE) ? 0 : class == LANE_ORDINARY ? 2 : class == LANE_TRIM;

	if (class >= LANE_RESERVE)
		return p->free > (class == LANE_RESERVE);
	return l->held + keep < quota && p->free > keep * p->lanes;
}

/* A fresh segment; the current one is closed with it. */
static uint32_t take_segment(struct lane *l, enum lane_class class)
{
	struct store *s = l->shard->store;
	struct log_pool *p = &s->pools[l->shard->index % s->pool_count];
	uint32_t found = LOG_NONE;

	pthread_mutex_lock(&s->lock);
	if (may_take(l, p, class)) {
		/* Round the region, so that all of it wears alike. */
		unsigned from = l->seg == LOG_NONE ? 0 : l->seg - p->first;

		for (unsigned i = 1; i <= p->count && found == LOG_NONE; i++) {
			uint32_t seg = p->first + (from + i) % p->count;

			if (s->segs[seg].state == SEG_FREE)
				found = seg;
		}
		CHECK(found != LOG_NONE);
		p->free--;
		s->segs[found].state = SEG_OPEN;
		s->segs[found].generation = atomic_fetch_add(&s->generation, 1);
		s->segs[found].last_batch = UINT64_MAX;
		s->segs[found].lane = l->shard->index;
		if (l->seg != LOG_NONE) {
			s->segs[l->seg].state = SEG_CLOSED;
			s->segs[l->seg].last_batch = l->batch_seq;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return found;
}

static int next_segment(struct lane *l, enum lane_class class)
{
	struct shard *sh = l->shard;
	struct store *s = sh->store;
	uint32_t seg = take_segment(l, class);
	struct log_segment_header h;
	struct log_seg *g;
	struct batch *b;

	if (seg == LOG_NONE)
		return -ERR_LIMIT;
	(void)FAILPOINT(log_next_segment);
	g = &s->segs[seg];
	l->seg = seg;
	l->at = 1;
	l->held++;
	h = (struct log_segment_header){
		.lane = (uint16_t)sh->index,
		.lanes = (uint16_t)s->shard_count,
		.incarnation = store_superblock(s)->log_incarnation,
		.log = store_superblock(s)->log,
		.generation = g->generation,
		.session = s->session,
		.first_batch = l->batch_seq + 1,
		.durable = l->durable_seq,
		.oldest = oldest_now(l),
		.kv_commit = tier_kv_commit(s->tier),
	};
	b = batch_heap(l, BLOCK_SIZE, 0);
	batch_start(b);
	b->head_len = BLOCK_SIZE;
	b->pos = seg * s->seg_blocks;
	b->blocks = 1;
	log_segment_encode(&h, b->head);
	list_push_back(&l->ready, &b->link);
	sh->queue[(sh->queue_head + sh->queue_count++) % (s->seg_count + 1)] = seg;
	shard_segment_closed(sh);
	return 0;
}

/* The named releases are durable: their segments may be written again. */
static void free_released(struct lane *l, uint64_t oldest)
{
	struct store *s = l->shard->store;
	unsigned freed = 0;

	(void)FAILPOINT(log_released);
	pthread_mutex_lock(&s->lock);
	for (uint32_t i = 0; i < s->seg_count; i++) {
		struct log_seg *g = &s->segs[i];

		if (g->state != SEG_RELEASING || g->lane != l->shard->index ||
		    g->generation >= oldest || g->generation < s->session)
			continue;
		g->state = SEG_FREE;
		g->pool->free++;
		l->held--;
		l->releasing--;
		freed++;
	}
	pthread_mutex_unlock(&s->lock);
	if (freed)
		store_wake(s);
}

void lane_release(struct lane *l, uint64_t oldest)
{
	if (oldest > l->oldest)
		l->oldest = oldest;
	l->releasing++;
	if (!rule(RULE_NAMED))
		free_released(l, oldest);
	l->name_release = true;
	turn_end_arm(l->shard->loop, &l->turn, TURN_LOG);
}

const uint8_t *lane_ram(const struct lane *l, uint32_t pos)
{
	const struct list *lines[2] = {&l->inflight, &l->ready};

	for (unsigned i = 0; i < 2; i++) {
		for (const struct list *n = lines[i]->prev; n != lines[i]; n = n->prev) {
			const struct batch *b = container_of(n, const struct batch, link);
			uint32_t first = b->pos + b->blocks - b->payload_blocks;

			if (pos >= first && pos < first + b->payload_blocks)
				return b->payload + (size_t)(pos - first) * BLOCK_SIZE;
		}
	}
	return NULL;
}

/* ---- Forming batches ---- */

static unsigned blocks_of(size_t head_len)
{
	return (unsigned)((head_len + BLOCK_SIZE - 1) >> BLOCK_SHIFT);
}

/* The last block of a segment is kept for recovery's seal. */
static bool segment_has(const struct lane *l, unsigned blocks)
{
	return l->seg != LOG_NONE && l->at + blocks + 1 <= l->shard->store->seg_blocks;
}

static bool batch_fits(const struct lane *l, const struct batch *b, size_t len, unsigned blocks)
{
	return b->head_len + len <= b->head_cap && b->payload_blocks + blocks <= b->payload_cap &&
	       b->record_count < UINT16_MAX &&
	       segment_has(l, blocks_of(b->head_len + len) + b->payload_blocks + blocks);
}

static int open_batch(struct lane *l, size_t len, unsigned blocks, enum lane_class class)
{
	size_t head = LOG_BATCH_HEADER_LEN + len;
	struct batch *b;
	int rc;

	if (list_empty(&l->free) && class < LANE_RESERVE)
		return -ERR_LIMIT;
	if (!segment_has(l, blocks_of(head) + blocks)) {
		rc = next_segment(l, class);
		if (rc)
			return rc;
	}
	b = list_empty(&l->free) ? batch_heap(l, head, blocks)
				 : container_of(list_pop_front(&l->free), struct batch, link);
	batch_start(b);
	b->seq = ++l->batch_seq;
	l->open = b;
	return 0;
}

int lane_append(struct lane *l, const struct log_record *r, const struct fp128 *fps,
		const void *payload, enum lane_class class, struct batch **out)
{
	size_t len = log_record_len(r->fp_count);
	struct batch *b;

	if (l->open && !batch_fits(l, l->open, len, r->fp_count))
		lane_close(l);
	if (!l->open) {
		int rc = open_batch(l, len, r->fp_count, class);

		if (rc)
			return rc;
	}
	b = l->open;
	log_record_encode(r, fps, b->head + b->head_len);
	b->head_len += len;
	b->record_count++;
	if (r->fp_count)
		memcpy(b->payload + (size_t)b->payload_blocks * BLOCK_SIZE, payload,
		       (size_t)r->fp_count * BLOCK_SIZE);
	b->payload_blocks += r->fp_count;
	turn_end_arm(l->shard->loop, &l->turn, TURN_LOG);
	*out = b;
	return 0;
}

void lane_close(struct lane *l)
{
	struct store *s = l->shard->store;
	struct batch *b = l->open;
	struct log_batch_header h;
	unsigned head_blocks;

	if (!b)
		return;
	head_blocks = blocks_of(b->head_len);
	memset(b->head + b->head_len, 0, (size_t)head_blocks * BLOCK_SIZE - b->head_len);
	h = (struct log_batch_header){
		.header_blocks = (uint16_t)head_blocks,
		.lane = (uint16_t)l->shard->index,
		.records = (uint16_t)b->record_count,
		.payload_blocks = b->payload_blocks,
		.generation = s->segs[l->seg].generation,
		.seq = b->seq,
		.durable = l->durable_seq,
		.kv_commit = tier_kv_commit(s->tier),
		.oldest = oldest_now(l),
	};
	log_batch_seal(&h, b->head, s->log_seed);
	b->oldest = h.oldest;
	b->pos = l->seg * s->seg_blocks + l->at;
	b->blocks = head_blocks + b->payload_blocks;
	l->at += b->blocks;
	l->name_release = false;
	l->open = NULL;
	list_push_back(&l->ready, &b->link);
	turn_end_arm(l->shard->loop, &l->turn, TURN_LOG);
	shard_batch_placed(l->shard, b);
}

/* ---- Writing ---- */

static void write_ended(struct lane *l, struct batch *b, int rc)
{
	struct shard *sh = l->shard;

	b->done = true;
	b->rc = rc;
	device_done(pos_device(sh->store, b->pos), DEVICE_FLUSH,
		    loop_mono_us(sh->loop) - b->start_us, rc);
	if (rc < 0)
		store_fail(sh->store, -ERR_DEVICE, "a write to the log failed");
}

static void submit(struct lane *l)
{
	struct store *s = l->shard->store;

	while (l->inflight_count < LANE_INFLIGHT && !list_empty(&l->ready)) {
		struct batch *b = container_of(list_pop_front(&l->ready), struct batch, link);
		struct device *d = pos_device(s, b->pos);
		int rc;

		(void)FAILPOINT(log_write);
		b->iov[0] = (struct iovec){b->head, round_up(b->head_len, BLOCK_SIZE)};
		b->iov[1] = (struct iovec){b->payload, (size_t)b->payload_blocks * BLOCK_SIZE};
		b->wait.resume = on_written;
		list_push_back(&l->inflight, &b->link);
		l->inflight_count++;
		counter_add(&l->shard->device_written, (uint64_t)b->blocks * BLOCK_SIZE);
		b->start_us = loop_mono_us(l->shard->loop);
		rc = device_fault(d, DEVICE_FLUSH);
		if (rc) {
			write_ended(l, b, rc);
			continue;
		}
		rc = io_writev(l->shard->loop, &b->io, d->fd, b->iov, b->payload_blocks ? 2 : 1,
			       pos_off(s, b->pos), d->needs_flush ? IO_DSYNC : 0, &b->wait);
		CHECK(rc == PENDING);
	}
}

static void fail_waiting(struct lane *l)
{
	lane_close(l);
	while (!list_empty(&l->ready)) {
		struct batch *b = container_of(list_pop_front(&l->ready), struct batch, link);

		b->done = true;
		b->rc = store_failed(l->shard->store);
		list_push_back(&l->inflight, &b->link);
		l->inflight_count++;
	}
}

static void reap(struct lane *l)
{
	struct store *s = l->shard->store;

	while (!list_empty(&l->inflight)) {
		struct batch *b = container_of(l->inflight.next, struct batch, link);

		if (!b->done)
			break;
		if (!b->rc)
			b->rc = store_failed(s);
		list_del(&b->link);
		l->inflight_count--;
		if (!b->rc && b->seq) {
			CHECK(b->seq == l->durable_seq + 1);
			l->durable_seq = b->seq;
			if (l->releasing)
				free_released(l, b->oldest);
		}
		shard_batch_durable(l->shard, b);
		batch_free(b);
	}
}

static void on_turn(struct turn_end *t)
{
	struct lane *l = container_of(t, struct lane, turn);

	if (store_failed(l->shard->store)) {
		fail_waiting(l);
		reap(l);
		shard_quiesce(l->shard); /* perhaps nothing is under way whose end would */
		return;
	}
	if (l->name_release && !l->open && open_batch(l, 0, 0, LANE_NAME))
		log_debug("store", "a release waits for a free log segment", "shard=%u",
			  l->shard->index);
	/* With the line full the batch stays open and grows: group commit by itself. */
	if (l->open && l->inflight_count < LANE_INFLIGHT)
		lane_close(l);
	submit(l);
	if (store_failed(l->shard->store)) { /* at once */
		fail_waiting(l);
		reap(l);
	}
	turn_end_disarm(t); /* lane_close armed it again */
	if (store_failed(l->shard->store))
		shard_quiesce(l->shard);
}

static void on_written(struct wait *w, int rc)
{
	struct batch *b = container_of(w, struct batch, wait);
	struct lane *l = b->lane;
	struct shard *sh = l->shard;

	if (rc >= 0)
		rc = FAILPOINT(log_durable);
	write_ended(l, b, rc);
	if (rc >= 0 && !rule(RULE_LANE_ORDER))
		shard_batch_durable(sh, b);
	reap(l);
	if (l->open || !list_empty(&l->ready) || l->name_release)
		turn_end_arm(sh->loop, &l->turn, TURN_LOG);
	if (!list_empty(&sh->space_waiters) || !list_empty(&sh->pending_headers))
		shard_wake(sh);
	shard_destage_kick(sh);
	shard_quiesce(sh);
}
