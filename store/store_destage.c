/* SPDX-License-Identifier: Apache-2.0 */
/* From the log to the map, on each shard: gather pages that stand in the oldest segments, hand them to the
 * tier, and give segments back in order.
 *
 *   page:     dirty ──gather──▶ destaging ──done──▶ gone (or dirty again, if newer records came)
 *   segment:  open ─▶ closed ─▶ clear (no page, tail or reader stands in it) ─▶ headers saved
 *             ─▶ releasing (a durable batch must name it) ─▶ free
 *
 * A page goes with all it has (I2); only durable records go (the destager reads the device). Segments found
 * by recovery go first, by generation, each when every shard has cleared it; lanes of this session release
 * nothing before (I5). */
#include "store/store_impl.h"

#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"

#define FILL_START    1000u /* permyriad: below, only what is old is destaged */
#define FILL_MOVE     3000u /* stalled tails are moved from here on */
#define AGE_S         5u
#define DUE_S         60u /* older ones do not wait for idle CPU */
#define TICK_US       1000000u
#define WRITING_MIN   1000u /* blocks/s; fewer take about a hundredth of a core: destage need not yield */
#define FLUSH_TAIL_US 2000000u /* a flush waits so long for records to be committed */
#define FLUSH_LOOK_US 10000u
#define RETRY_FULL_US 1000000u

static void on_destaged(struct post *p);
static void on_saved(struct post *p);

uint32_t shard_fill(struct shard *sh)
{
	struct store *s = sh->store;
	const struct log_pool *p = &s->pools[sh->index % s->pool_count];
	uint64_t rest = sh->lane.seg == LOG_NONE ? 0 : s->seg_blocks - sh->lane.at;
	uint64_t used =
		(uint64_t)(p->count - atomic_load_explicit(&p->free, memory_order_relaxed)) *
		s->seg_blocks;
	uint64_t quota = p->count / p->lanes, mine = (uint64_t)sh->lane.held * s->seg_blocks;
	uint64_t pool = (used - MIN(rest, used)) * 10000 /
			((p->count - 2 * p->lanes) * (uint64_t)s->seg_blocks);
	uint64_t lane = (mine - MIN(rest, mine)) * 10000 / ((quota - 2) * s->seg_blocks);
	uint64_t index = sh->arena.used * 10000 / s->index_budget;
	uint64_t fill = MIN(10000u, MAX(MAX(pool, lane), index));

	atomic_store_explicit(&sh->fill, (unsigned)fill, memory_order_relaxed);
	counter_add(&sh->index_bytes, sh->arena.used - counter_get(&sh->index_bytes));
	return (uint32_t)fill;
}

/* ---- Gathering ---- */

static void on_checked(struct wait *w, int rc);

static void check_done(struct page_checking *c, int rc)
{
	struct shard *sh = c->shard;
	struct page_node *p = page_find(sh, c->object, c->get.page);

	if (rc)
		log_warn("store", "a map page could not be read before destage",
			 "object=%llx page=%u error=%s", (unsigned long long)c->object->id,
			 c->get.page, err_name(rc));
	if (p) {
		p->checking = false;
		if (!rc)
			page_check(sh, p, &c->get.out);
		else if (rc == -ERR_CORRUPT)
			p->unchecked =
				false; /* the tier will say damaged for all that is not in here */
	}
	c->busy = false;
	sh->checks_busy--;
	object_put_ref(c->object);
}

static void on_checked(struct wait *w, int rc)
{
	struct page_checking *c = container_of(w, struct page_checking, wait);
	struct shard *sh = c->shard;

	check_done(c, rc);
	if (!rc) /* else the next tick tries again */
		shard_destage_kick(sh);
	shard_quiesce(sh);
}

/* A page from recovery: what does the map have? False: the answer is not here yet. */
static bool check_page(struct shard *sh, struct page_node *p)
{
	struct page_checking *c = NULL;
	int rc;

	if (p->checking)
		return false;
	for (unsigned i = 0; i < CHECKS_MAX && !c; i++)
		if (!sh->checks[i].busy)
			c = &sh->checks[i];
	if (!c)
		return false;
	c->busy = true;
	c->object = p->object;
	c->object->refs++;
	c->wait.resume = on_checked;
	c->get.object = p->object->id;
	c->get.page = p->page;
	sh->checks_busy++;
	p->checking = true;
	rc = tier_page_get(sh->store->tier, sh->index, &c->get, &c->wait);
	if (rc == PENDING)
		return false;
	check_done(c, rc);
	return !rc;
}

static void gather_page(struct destage *d, struct page_node *p)
{
	struct shard *sh = d->shard;
	struct store *s = sh->store;
	struct destage_batch *b = &d->batch;
	struct destage_page *dp = &d->pages[b->page_count];
	struct store_object *o = p->object;

	*dp = (struct destage_page){.object = o->id,
				    .gen = o->gen,
				    .page = p->page,
				    .version = p->version,
				    .whole = p->copied,
				    .compression = o->compression,
				    .dedup = o->dedup,
				    .first = b->block_count};
	for (unsigned i = rule(RULE_PAGE_WHOLE) ? 0 : p->count / 2; i < p->count; i++) {
		const struct log_entry *e = &p->entries[i];

		if (e->kind == MAP_RAW) {
			d->blocks[b->block_count++] =
				(struct destage_block){.index = e->index,
						       .kind = MAP_RAW,
						       .fp64 = e->fp,
						       .log_off = pos_off(s, e->pos),
						       .log_device = pos_device(s, e->pos)};
			continue;
		}
		for (uint64_t m = e->fp; m; m &= m - 1)
			d->blocks[b->block_count++] = (struct destage_block){
				.index = (uint8_t)__builtin_ctzll(m), .kind = e->kind};
	}
	dp->count = b->block_count - dp->first;
	d->nodes[b->page_count++] = p;
	p->destaging = true;
	p->copied = false;
	list_del(&p->seg_link);
	o->destaging++;
	o->refs++;
}

static bool gather_segment(struct destage *d, struct list *dirty)
{
	struct shard *sh = d->shard;
	struct list *n = dirty->next;

	while (n != dirty) {
		struct page_node *p = container_of(n, struct page_node, seg_link);

		n = n->next;
		if (p->object->deleted || p->batch > sh->lane.durable_seq)
			continue;
		if (p->unchecked) {
			struct list *prev = p->seg_link.prev;

			if (sh->checks_busy == CHECKS_MAX)
				return false;
			if (check_page(sh, p))
				n = prev->next; /* it may be gone, or elsewhere; look again */
			continue;
		}
		if (d->batch.page_count == DESTAGE_PAGES ||
		    d->batch.block_count + PAGE_BLOCKS > DESTAGE_BLOCKS)
			return false;
		gather_page(d, p);
	}
	return true;
}

static bool gather(struct destage *d)
{
	struct shard *sh = d->shard;
	struct store *s = sh->store;

	d->batch = (struct destage_batch){.pages = d->pages,
					  .blocks = d->blocks,
					  .shard = sh->index,
					  .loop = sh->loop,
					  .done.fn = on_destaged};
	for (unsigned i = 0; i < sh->queue_count; i++)
		if (!gather_segment(
			    d,
			    &sh->segs[sh->queue[(sh->queue_head + i) % (s->seg_count + 1)]].dirty))
			break;
	return d->batch.page_count > 0;
}

static void on_destaged(struct post *p)
{
	struct destage_batch *b = container_of(p, struct destage_batch, done);
	struct destage *d = container_of(b, struct destage, batch);
	struct shard *sh = d->shard;

	if (!b->rc)
		tier_destaged(sh->store->tier, b);
	else if (b->rc == -ERR_FULL)
		sh->full_until_us = loop_turn_us(sh->loop) + RETRY_FULL_US;
	else
		store_fail(sh->store, b->rc, "destage failed");
	atomic_store(&sh->store->destage_full, b->rc == -ERR_FULL);
	if (b->damaged)
		counter_add(&sh->corrupt, b->damaged);
	for (unsigned i = 0; i < b->page_count; i++) {
		struct page_node *node = d->nodes[i];
		struct store_object *o = node->object;

		o->destaging--;
		o->destages++;
		if (b->rc) {
			node->copied |= b->pages[i].whole;
			page_destage_failed(sh, node);
		} else {
			page_destaged(sh, node, b->pages[i].version);
		}
		object_try_delete(o);
		object_put_ref(o);
	}
	if (!b->rc)
		counter_add(&sh->destaged_blocks, b->block_count);
	d->busy = false;
	sh->destages_busy--;
	if (b->rc == -ERR_FULL && sh->flush)
		shard_flush_next(sh, b->rc);
	shard_wake(sh);
	shard_destage_kick(sh);
	shard_quiesce(sh);
}

/* ---- Pace ---- */

static const struct page_node *oldest_page(const struct shard *sh)
{
	for (unsigned i = 0; i < sh->queue_count; i++) {
		uint32_t seg = sh->queue[(sh->queue_head + i) % (sh->store->seg_count + 1)];
		const struct list *dirty = &sh->segs[seg].dirty;

		if (!list_empty(dirty))
			return container_of(dirty->next, const struct page_node, seg_link);
	}
	return NULL;
}

static bool oldest_is_due(const struct shard *sh)
{
	const struct page_node *p = oldest_page(sh);

	return p && p->dirty_s + DUE_S <= loop_turn_us(sh->loop) / 1000000;
}

static bool starved(const struct shard *sh)
{
	return !list_empty(&sh->space_waiters) || !list_empty(&sh->pending_headers);
}

static unsigned destages_wanted(struct shard *sh, uint32_t fill)
{
	const struct page_node *p;
	uint64_t now = loop_turn_us(sh->loop);

	if (!sh->dirty_pages || now < sh->full_until_us)
		return 0;
	if (fill >= 6000 || starved(sh) || atomic_load(&sh->store->space_wanted))
		return DESTAGE_BATCHES;
	if (fill >= 3000 || sh->flush)
		return 2;
	if (fill >= FILL_START)
		return 1;
	p = oldest_page(sh);
	return p && p->dirty_s + AGE_S <= now / 1000000;
}

/* ---- Releasing segments ---- */

/* True: every object with records in the segment has a header in the map that makes them superfluous. One
 * saved earlier does only if it had all that the object ever wrote here as committed: what was not is not
 * in it (object_encode). One saved for this segment does: nothing uncommitted stands in it any more. */
static bool headers_saved(struct shard *sh, uint32_t seg)
{
	struct shard_seg *ss = &sh->segs[seg];
	struct log_seg *g = &sh->store->segs[seg];
	struct header_save *hs = &sh->headers;
	uint64_t need = g->generation < sh->store->session ? 1 : g->last_batch;
	struct list *n = ss->notes.next;
	size_t at[HEADERS_PER_BATCH + 1];
	unsigned count = 0;

	if (!rule(RULE_HEADERS_SAVED))
		return true;
	if (hs->busy)
		return false;
	hs->bytes.len = 0;
	at[0] = 0;
	while (n != &ss->notes && count < HEADERS_PER_BATCH) {
		struct log_note *note = container_of(n, struct log_note, link);
		struct store_object *o = note->object;

		n = n->next;
		if (o->saved_batch >= need && o->saved_seq >= note->upto) {
			note_free(sh, note);
			continue;
		}
		if (o->deleted)
			continue; /* its notes go with it */
		hs->headers[count] = (struct destage_header){
			.object = o->id, .gen = o->gen, .volume = o->volume};
		hs->notes[count] = note;
		object_encode(o, true, &hs->bytes);
		at[count + 1] = hs->bytes.len;
		hs->commit[count].tenure = get_le32(hs->bytes.data + at[count] + 16);
		hs->commit[count].seq = get_le64(hs->bytes.data + at[count] + 20);
		hs->destaged[count].tenure = get_le32(hs->bytes.data + at[count] + 28);
		hs->destaged[count].seq = get_le64(hs->bytes.data + at[count] + 32);
		o->destaging++; /* a delete waits for it */
		o->refs++;
		count++;
	}
	if (!count)
		return list_empty(&ss->notes);
	for (unsigned i = 0; i < count; i++) {
		hs->headers[i].header = hs->bytes.data + at[i];
		hs->headers[i].len = at[i + 1] - at[i];
	}
	hs->covers = MAX(1, sh->lane.batch_seq);
	hs->batch = (struct destage_batch){.headers = hs->headers,
					   .header_count = count,
					   .shard = sh->index,
					   .loop = sh->loop,
					   .done.fn = on_saved};
	hs->busy = true;
	tier_destage(sh->store->tier, &hs->batch);
	return false;
}

static void on_saved(struct post *p)
{
	struct destage_batch *b = container_of(p, struct destage_batch, done);
	struct header_save *hs = container_of(b, struct header_save, batch);
	struct shard *sh = container_of(hs, struct shard, headers);

	if (!b->rc)
		tier_destaged(sh->store->tier, b);
	else if (b->rc == -ERR_FULL)
		sh->full_until_us = loop_turn_us(sh->loop) + RETRY_FULL_US;
	else
		store_fail(sh->store, b->rc, "saving object headers failed");
	for (unsigned i = 0; i < b->header_count; i++) {
		struct store_object *o = hs->notes[i]->object;

		if (!b->rc) {
			o->saved_batch = hs->covers;
			o->saved_seq = hs->commit[i].seq;
			o->destaged = hs->destaged[i];
			note_free(sh, hs->notes[i]);
		}
		o->destaging--;
		object_try_delete(o);
		object_put_ref(o);
	}
	hs->busy = false;
	shard_destage_kick(sh);
	shard_quiesce(sh);
}

/* A segment of an earlier session says of itself that it is released. That needs no room in the log, of which
 * there may be none after many short lives. */
struct release_mark {
	struct wait wait;
	struct shard *shard;
	struct device *device;
	uint64_t start_us;
	uint32_t seg;
	struct io io;
	uint8_t *block;
};

static void on_marked(struct wait *w, int rc)
{
	struct release_mark *m = container_of(w, struct release_mark, wait);
	struct shard *sh = m->shard;
	struct store *s = sh->store;

	device_done(m->device, DEVICE_FLUSH, loop_mono_us(sh->loop) - m->start_us, rc);
	if (rc) {
		store_fail(s, -ERR_DEVICE, "a write to the log failed");
	} else {
		pthread_mutex_lock(&s->lock);
		s->segs[m->seg].state = SEG_FREE;
		s->segs[m->seg].pool->free++;
		pthread_mutex_unlock(&s->lock);
		store_wake(s);
	}
	free(m->block);
	free(m);
	sh->ops--;
	shard_quiesce(sh);
}

static void mark_released(struct shard *sh, uint32_t seg)
{
	struct store *s = sh->store;
	struct device *d = s->segs[seg].pool->device;
	struct release_mark *m = xcalloc(1, sizeof(*m));
	int rc;

	m->wait.resume = on_marked;
	m->shard = sh;
	m->device = d;
	m->start_us = loop_mono_us(sh->loop);
	m->seg = seg;
	m->block = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	s->legacy[seg].released = true;
	log_segment_encode(&s->legacy[seg], m->block);
	sh->ops++;
	rc = io_write(sh->loop, &m->io, d->fd, m->block, BLOCK_SIZE, s->segs[seg].off, IO_DSYNC,
		      &m->wait);
	CHECK(rc == PENDING);
}

static void release_segment(struct shard *sh, uint32_t seg)
{
	struct store *s = sh->store;
	struct log_seg *g = &s->segs[seg];
	uint64_t oldest = 0;

	sh->queue_head = (sh->queue_head + 1) % (s->seg_count + 1);
	sh->queue_count--;
	if (g->generation >= s->session) {
		oldest = s->segs[sh->queue[sh->queue_head]].generation;
	} else if (atomic_fetch_sub(&g->shards_left, 1) > 1) {
		return; /* other shards have records in it */
	}
	pthread_mutex_lock(&s->lock);
	g->state = SEG_RELEASING;
	g->lane = sh->index;
	pthread_mutex_unlock(&s->lock);
	if (!oldest) {
		mark_released(sh, seg);
		atomic_store(&s->legacy_floor,
			     g->next == LOG_NONE ? s->session : s->segs[g->next].generation);
		if (atomic_fetch_sub(&s->legacy_left, 1) == 1)
			store_wake(s); /* now the lanes of this session may release */
		return;
	}
	lane_release(&sh->lane, oldest);
}

static void release(struct shard *sh, uint32_t fill)
{
	struct store *s = sh->store;

	while (sh->queue_count) {
		uint32_t seg = sh->queue[sh->queue_head];
		struct log_seg *g = &s->segs[seg];
		struct shard_seg *ss = &sh->segs[seg];
		bool legacy = g->generation < s->session;

		if (seg == sh->lane.seg)
			return;
		if (!legacy &&
		    ((atomic_load(&s->legacy_left) && rule(RULE_LANES_EMPTY)) ||
		     g->last_batch > sh->lane.durable_seq))
			return;
		if (ss->live && list_empty(&ss->dirty) && !sh->destages_busy &&
		    (fill >= FILL_MOVE || starved(sh)))
			shard_move_tails(sh, seg);
		if (ss->live || (ss->readers && rule(RULE_LOG_READERS)) || !headers_saved(sh, seg))
			return;
		release_segment(sh, seg);
	}
}

/* ---- Driving ---- */

static void flush_begin(struct shard *sh);

static void rates_begin(struct shard *sh)
{
	sh->rate_mark_us = loop_mono_us(sh->loop);
	sh->rate_blocks = counter_get(&sh->destaged_blocks);
	sh->rate_appended = counter_get(&sh->appended_blocks);
}

static void rates_take(struct shard *sh)
{
	uint64_t us = loop_mono_us(sh->loop) - sh->rate_mark_us;
	uint64_t destaged = counter_get(&sh->destaged_blocks) - sh->rate_blocks;
	uint64_t appended = counter_get(&sh->appended_blocks) - sh->rate_appended;

	if (!us)
		return;
	atomic_store_explicit(&sh->destage_rate, (unsigned)(destaged * 1000000 / us),
			      memory_order_relaxed);
	sh->writing = appended * 1000000 / us >= WRITING_MIN;
	rates_begin(sh);
}

static void tick_arm(struct shard *sh)
{
	if (sh->tick.armed)
		return;
	rates_begin(sh); /* an idle time before does not count */
	timer_set(&sh->tick, TICK_US);
}

void shard_tick(struct timer *t)
{
	struct shard *sh = container_of(t, struct shard, tick);

	rates_take(sh);
	if (sh->lane.name_release)
		turn_end_arm(sh->loop, &sh->lane.turn, TURN_LOG);
	shard_destage_kick(sh);
}

void shard_destage_kick(struct shard *sh)
{
	uint32_t fill;
	unsigned wanted;
	bool rests;

	if (!sh->running || sh->stopping || sh->kicking || store_failed(sh->store))
		return;
	sh->kicking = true; /* forming batches and checks may come back here */
	fill = shard_fill(sh);
	if (!sh->flush)
		flush_begin(sh);
	if (sh->tick.armed && counter_get(&sh->appended_blocks) - sh->rate_appended >= WRITING_MIN)
		sh->writing = true; /* a burst is noticed before its first second is over */
	rests = tier_pace(sh->store->tier, sh->index, fill, sh->writing,
			  sh->flush || oldest_is_due(sh) || starved(sh) ||
				  atomic_load(&sh->store->space_wanted));
	wanted = rests ? 0 : destages_wanted(sh, fill);
	for (unsigned i = 0; i < DESTAGE_BATCHES && sh->destages_busy < wanted; i++) {
		struct destage *d = &sh->destages[i];

		if (d->busy)
			continue;
		if (!gather(d))
			break;
		d->busy = true;
		sh->destages_busy++;
		tier_destage(sh->store->tier, &d->batch);
	}
	release(sh, fill);
	while (sh->flush && !sh->flush_left)
		shard_flush_next(sh, 0);
	/* Nothing dirty, nothing to give back but what is written to now, nobody to wake the destager for: no
	 * timer, no wake-ups. */
	if (sh->dirty_pages || sh->queue_count > (sh->lane.seg != LOG_NONE) || sh->lane.name_release ||
	    sh->writing)
		tick_arm(sh);
	sh->kicking = false;
}

void shard_segment_closed(struct shard *sh)
{
	/* The destager has more to do; not from inside the append. */
	if (sh->running)
		tick_arm(sh);
}

void shard_page_clean(struct shard *sh, const struct page_node *p)
{
	if (p->flush != sh->flush_number && sh->flush_left)
		sh->flush_left--;
}

/* ---- Waiters ---- */

void shard_wake(struct shard *sh)
{
	struct list now = LIST_INIT(now);
	struct list *n;
	int rc = sh->stopping ? -ERR_CLOSED : store_failed(sh->store);

	shard_retry_headers(sh);
	list_splice_back(&now, &sh->space_waiters);
	while ((n = list_pop_front(&now))) {
		struct space_waiter *w = container_of(n, struct space_waiter, link);
		struct wait *wait = w->wait;

		arena_put(&sh->arena, w, sizeof(*w));
		atomic_fetch_sub(&sh->waiting, 1);
		wait_resume(wait, rc);
	}
}

static void poke(struct store *s, bool room)
{
	for (unsigned i = 0; i < s->shard_count; i++) {
		struct shard *sh = &s->shards[i];

		if (room)
			atomic_store(&sh->room, true);
		if (sh->loop && s->started && !atomic_exchange(&sh->poked, true))
			loop_post(sh->loop, &sh->poke);
	}
}

void store_wake(struct store *s)
{
	poke(s, true);
}

void store_kick(struct store *s)
{
	poke(s, false);
}

/* ---- Flush: one shard after the other, then back to the asker ---- */

struct flush {
	struct post post;
	struct list link;
	struct store *store;
	struct wait *wait;
	unsigned origin, next;
	uint64_t batch, until_us; /* on this shard: records up to this batch are asked for */
	int rc;
};

static void flush_hop(struct flush *f);

static void flush_on_origin(struct post *p)
{
	struct flush *f = container_of(p, struct flush, post);
	struct shard *sh = &f->store->shards[f->origin];
	struct wait *w = f->wait;
	int rc = f->rc;

	free(f);
	sh->ops--;
	wait_resume(w, rc);
	shard_quiesce(sh);
}

/* A replica hears last that a record is committed; what nobody may commit just now is not waited for. */
static bool flush_waits(struct shard *sh, struct flush *f)
{
	uint64_t now = loop_turn_us(sh->loop);
	struct store_object *o;

	if (!f->batch) {
		lane_close(&sh->lane); /* what is committed gets its place */
		f->batch = MAX(1, sh->lane.batch_seq);
		f->until_us = now + FLUSH_TAIL_US;
	}
	if (now >= f->until_us)
		return false;
	list_for_each(o, &sh->tails, tails_link)
	{
		if (list_first(&o->tail, struct log_tail, link)->batch > f->batch)
			continue;
		timer_set(&sh->tick, FLUSH_LOOK_US);
		return true;
	}
	return false;
}

static void flush_begin(struct shard *sh)
{
	struct flush *f;

	if (list_empty(&sh->flushes))
		return;
	f = list_first(&sh->flushes, struct flush, link);
	if (flush_waits(sh, f))
		return;
	list_del(&f->link);
	sh->flush = f;
	sh->flush_number++;
	sh->flush_left = sh->dirty_pages;
}

static void flush_on_shard(struct post *p)
{
	struct flush *f = container_of(p, struct flush, post);
	struct shard *sh = &f->store->shards[f->next];
	int failed = store_failed(f->store);

	if (failed || sh->stopping) {
		f->rc = failed ? failed : -ERR_CLOSED;
		flush_hop(f);
		return;
	}
	list_push_back(&sh->flushes, &f->link);
	if (!sh->flush)
		flush_begin(sh);
	shard_destage_kick(sh);
}

static void flush_hop(struct flush *f)
{
	struct store *s = f->store;

	f->next++;
	f->batch = 0;
	if (f->rc || f->next == s->shard_count) {
		f->post.fn = flush_on_origin;
		loop_post(s->shards[f->origin].loop, &f->post);
	} else {
		loop_post(s->shards[f->next].loop, &f->post);
	}
}

void shard_flush_next(struct shard *sh, int rc)
{
	struct flush *f = sh->flush;

	if (f) {
		f->rc = rc;
		sh->flush = NULL;
		sh->flush_left = 0;
		flush_hop(f);
	}
	if (!rc) {
		flush_begin(sh);
		return;
	}
	for (struct list *n; (n = list_pop_front(&sh->flushes));) {
		f = container_of(n, struct flush, link);
		f->rc = rc;
		flush_hop(f);
	}
}

int store_settle(struct store *s, unsigned shard, uint64_t limit_us, struct wait *w)
{
	return store_failed(s)			? store_failed(s)
	       : store_shard(s, shard)->stopping ? -ERR_CLOSED
						 : tier_settle(s->tier, shard, limit_us, w);
}

int store_flush(struct store *s, unsigned shard, struct post *scratch, struct wait *w)
{
	struct shard *sh = store_shard(s, shard);
	struct flush *f;

	if (store_failed(s))
		return store_failed(s);
	if (sh->stopping)
		return -ERR_CLOSED;
	f = xcalloc(1, sizeof(*f));
	f->store = s;
	f->wait = w;
	f->origin = shard;
	f->post.fn = flush_on_shard;
	sh->ops++;
	loop_post(s->shards[0].loop, &f->post);
	return PENDING;
}
