/* SPDX-License-Identifier: Apache-2.0 */
/* Collecting segments: the blocks of a victim that the map still names are verified and appended
 * again, in steps of one commit each. It must never copy a block it has not verified (I12), nor
 * hand out a segment while a read begun before its freeing may still be in it (I10). */
#include <stdlib.h>

#include "node/base/rules.h"
#include "node/loop/failpoint.h"
#include "store/codec.h"
#include "store/tier_internal.h"

#define WORK_MAX      (GC_STEP_BLOCKS + UNIT_ENTRIES_MAX)
#define MAP_STEP_ROWS 4096u
#define PAY_STEPS     8u /* between two rounds */
#define PAY_LEAST     128u

/* ---- Waiting for readers -----------------------------------------------------------------------
 */

static bool readers_gone(struct tier *t, unsigned parity)
{
	for (unsigned i = 0; i < t->shard_count; i++)
		if (atomic_load(&t->shards[i].readers[parity]) && rule(RULE_READERS))
			return false;
	return true;
}

/* Freed segments become free in two steps: new reads are sent to the other counter, then the old
 * counter runs empty. */
void grace_poll(struct tier *t, bool wait)
{
	for (;;) {
		if (t->seg.draining_count) {
			unsigned old = !atomic_load(&t->parity);
			bool gone = readers_gone(t, old);

			if (!gone && wait) {
				/* Wake-ups meant for the queue are not lost: it is looked at before
				 * sleeping. */
				atomic_store(&t->grace_wanted, true);
				while (!(gone = readers_gone(t, old)) && !atomic_load(&t->stopping))
					sem_wait(&t->more_work);
				atomic_store(&t->grace_wanted, false);
			}
			if (!gone)
				return;
			segments_reclaim(&t->seg);
		}
		if (!t->seg.freed_count)
			return;
		memcpy(t->seg.draining, t->seg.freed, t->seg.freed_count * sizeof(uint32_t));
		t->seg.draining_count = t->seg.freed_count;
		t->seg.freed_count = 0;
		atomic_store(&t->parity, !atomic_load(&t->parity));
	}
}

/* ---- Choosing ----------------------------------------------------------------------------------
 */

static uint32_t segments_avail(const struct tier *t)
{
	return t->seg.free + t->seg.freed_count + t->seg.draining_count;
}

static uint32_t gc_begin(const struct tier *t)
{
	return MAX(t->seg.total / 10, t->seg.reserve + 3);
}

bool gc_wanted(const struct tier *t)
{
	return segments_avail(t) < gc_begin(t);
}

static bool victim_valid(struct tier *t)
{
	struct segment *seg = t->gc.active ? segment_by_id(&t->seg, t->gc.victim) : NULL;

	return seg && seg->state == SEGMENT_SEALED && seg->generation == t->gc.generation &&
	       !t->seg.dev[t->gc.victim >> SEGMENT_DEVICE_SHIFT].lost;
}

static void victim_begin(struct tier *t)
{
	t->gc.pos = SEGMENT_HEADER_SIZE;
	t->gc.window_len = 0;
	t->gc.walk_map = false;
	memset(t->gc.key, 0, sizeof(t->gc.key));
}

static bool victim_pick(struct tier *t)
{
	struct segments *s = &t->seg;
	double best = 0;

	t->gc.active = false;
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		if (!s->dev[d].dev || s->dev[d].lost || device_failed(s->dev[d].dev))
			continue;
		for (uint32_t n = 0; n < s->dev[d].count; n++) {
			struct segment *seg = &s->dev[d].seg[n];
			double u = (double)seg->live / (double)s->segment_size, score;

			if (seg->state != SEGMENT_SEALED || u >= 0.95)
				continue;
			score = (1 - u) * (double)(s->generation - seg->generation + 1) / (1 + u);
			if (score > best) {
				best = score;
				t->gc.active = true;
				t->gc.victim = d << SEGMENT_DEVICE_SHIFT | n;
				t->gc.generation = seg->generation;
			}
		}
	}
	victim_begin(t);
	return t->gc.active;
}

bool gc_choose(struct tier *t, uint32_t segment)
{
	struct segment *seg = segment_by_id(&t->seg, segment);

	if (!seg || seg->state != SEGMENT_SEALED ||
	    t->seg.dev[segment >> SEGMENT_DEVICE_SHIFT].dev->failed)
		return false;
	t->gc.active = true;
	t->gc.victim = segment;
	t->gc.generation = seg->generation;
	victim_begin(t);
	return true;
}

/* Written, and neither live nor counted as anything else. */
static uint32_t dead_bytes(const struct segment *seg)
{
	uint32_t rest = seg->live + seg->summaries + seg->padding;

	return seg->fill > rest ? seg->fill - rest : 0;
}

/* The one with most; an open one, of which there are few, is sealed for less. */
static bool victim_of_garbage(struct tier *t)
{
	struct segment *seg = NULL;
	uint32_t most = 0, victim = 0;

	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		if (!t->seg.dev[d].dev || t->seg.dev[d].lost || device_failed(t->seg.dev[d].dev))
			continue;
		for (uint32_t n = 0; n < t->seg.dev[d].count; n++) {
			struct segment *s = &t->seg.dev[d].seg[n];
			uint64_t part = s->state == SEGMENT_SEALED ? 16 : s->state == SEGMENT_OPEN ? 64 : 0;
			uint32_t dead = part ? dead_bytes(s) : 0;

			if (dead <= most || dead < t->seg.segment_size / part)
				continue;
			most = dead;
			victim = d << SEGMENT_DEVICE_SHIFT | n;
			seg = s;
		}
	}
	if (seg && seg->state == SEGMENT_OPEN) {
		pthread_mutex_lock(&t->commit_lock); /* tier_verify looks at it */
		segment_abandon(&t->seg, (enum segment_stream)seg->stream);
		pthread_mutex_unlock(&t->commit_lock);
	}
	return seg && gc_choose(t, victim);
}

/* ---- Moving a block ----------------------------------------------------------------------------
 */

static struct work_page *work_find(struct tier *t, uint64_t object, uint32_t page, bool create)
{
	uint64_t h = hash_u64(object * 0x9e3779b97f4a7c15ull + page);
	struct work_page *w;
	struct tobj *o;

	for (struct hnode *n = hmap_first(&t->round, h); n; n = hmap_next(n)) {
		w = container_of(n, struct work_page, node);
		if (w->o->id == object && w->index == page)
			return w;
	}
	o = create && t->gc.work_count < WORK_MAX ? tobj_find(t, object) : NULL;
	if (!o)
		return NULL;
	w = &t->gc.work[t->gc.work_count];
	*w = (struct work_page){.o = o, .index = page, .page = &t->gc.pages[t->gc.work_count]};
	t->gc.work_count++;
	hmap_insert(&t->round, &w->node, h);
	return w;
}

static bool stored_matches(unsigned kind, unsigned units, const void *stored, uint64_t fp64,
			   struct fp128 *fp)
{
	uint8_t plain[BLOCK_SIZE];

	if (kind == MAP_LZ4) {
		if (codec_decompress(stored, units, plain))
			return false;
		stored = plain;
	}
	*fp = hash_block(stored);
	return fp->lo == fp64 || !rule(RULE_MOVE_CHECK);
}

/* Bytes of the victim, through its window; 0, or what the device said. */
static int victim_read(struct tier *t, uint64_t off, uint32_t len, void *out)
{
	uint64_t from = round_down(off, BLOCK_SIZE), to = round_up(off + len, BLOCK_SIZE);
	int rc;

	t->gc.window_len = 0;
	rc = device_pread(t->seg.dev[t->gc.victim >> SEGMENT_DEVICE_SHIFT].dev, t->gc.window,
			  to - from, from);
	if (!rc)
		memcpy(out, t->gc.window + (off - from), len);
	return rc;
}

/* What is called damaged stays so: a bad place is looked at once more. stored: the bytes of that entry
 * word, or NULL when they could not be read; buf: room for two blocks. NULL in *out: it is bad.
 * -ERR_DEVICE: nobody is there to ask, so nothing is damaged. */
static int look_twice(struct tier *t, uint64_t word, uint64_t fp64, const uint8_t *stored,
		      uint8_t *buf, const uint8_t **out, struct fp128 *fp)
{
	struct device *d = t->seg.dev[t->gc.victim >> SEGMENT_DEVICE_SHIFT].dev;
	unsigned kind = map_entry_kind(word), units = map_entry_units(word);
	uint64_t at = map_entry_offset(word), from = round_down(at, BLOCK_SIZE);

	*out = stored;
	if (stored && stored_matches(kind, units, stored, fp64, fp))
		return 0;
	*out = NULL;
	if (device_pread(d, buf, round_up(at + units * CODEC_UNIT, BLOCK_SIZE) - from, from))
		return device_answers(d) ? 0 : -ERR_DEVICE;
	if (stored_matches(kind, units, buf + (at - from), fp64, fp))
		*out = buf + (at - from);
	return 0;
}

/* stored: its bytes, or NULL when they could not be read. */
static int block_move(struct tier *t, struct work_page *w, unsigned index, const uint8_t *stored,
		      struct version version)
{
	struct map_entry old = w->page->entry[index], *e = &w->page->entry[index];
	unsigned kind = map_entry_kind(old.word), units = map_entry_units(old.word);
	struct unit_entry u = {.object = w->o->id,
			       .gen = w->o->gen,
			       .version = version,
			       .block = w->index * PAGE_BLOCKS + index};
	uint8_t again[2 * BLOCK_SIZE];
	int rc = look_twice(t, old.word, old.fp64, stored, again, &stored, &u.fp);

	if (rc)
		return rc;
	txn_entry_clear(t, w, index);
	e->fp64 = old.fp64;
	atomic_fetch_add_explicit(&t->gc_blocks, 1, memory_order_relaxed);
	if (stored) {
		txn_entry_set(t, w, index, kind, units);
		if (w->o->flags & OBJECT_DEDUP)
			t->gc.moved[t->gc.moved_count++] = (struct gc_moved){u.fp, e, old.word};
		return segment_append(&t->seg, STREAM_GC, &u, kind, stored, units, e);
	}
	log_error("tier",
		  "a stored block is bad; it is damaged here until another replica repairs it",
		  "object=%llu block=%u device=%u offset=%llu", (unsigned long long)w->o->id,
		  u.block, map_entry_device(old.word),
		  (unsigned long long)map_entry_offset(old.word));
	scrub_count_bad(t, map_entry_device(old.word));
	t->gc.found_bad = true;
	e->word = MAP_DAMAGED;
	txn_entry_set(t, w, index, MAP_DAMAGED, 1);
	return 0;
}

static bool entry_is(const struct work_page *w, unsigned index, uint64_t word)
{
	return w->page->mask >> index & 1 && w->page->entry[index].word == word &&
	       !(w->changed >> index & 1);
}

/* ---- Walking the units of the victim -----------------------------------------------------------
 */

/* The unit at gc.pos, whole, in memory; NULL: none there (the end, or damage). */
static const uint8_t *unit_at_pos(struct tier *t, struct unit_header *h)
{
	struct gc_state *g = &t->gc;
	const uint8_t *unit;

	for (unsigned reads = 0; reads < 2; reads++) {
		uint32_t in = g->pos - g->window_pos;

		if (g->window_len && g->pos >= g->window_pos && in < g->window_len) {
			unit = g->window + in;
			if (!unit_summary_decode(unit, g->window_len - in, h) &&
			    h->bytes <= g->window_len - in)
				return h->segment == g->victim && h->generation == g->generation &&
						       h->position == g->pos / BLOCK_SIZE &&
						       h->group_incarnation <= t->group_incarnation
					       ? unit
					       : NULL;
			if (g->window_pos == g->pos)
				return NULL;
		}
		if (g->pos + 2 * BLOCK_SIZE > t->seg.segment_size)
			return NULL;
		g->window_pos = g->pos;
		g->window_len = (uint32_t)MIN(UNIT_MAX, t->seg.segment_size - g->pos);
		if (device_pread(t->seg.dev[g->victim >> SEGMENT_DEVICE_SHIFT].dev, g->window,
				 g->window_len, segment_start(&t->seg, g->victim) + g->pos)) {
			atomic_fetch_add(&t->io_errors, 1);
			g->window_len = 0;
			return NULL;
		}
	}
	return NULL;
}

/* Which summary entry wrote this place; none, when it is damaged. */
static void entry_at(const uint8_t *unit, const struct unit_header *h, uint32_t offset,
		     struct unit_entry *out)
{
	for (unsigned i = 0; i < h->entries; i++)
		if (!unit_entry_decode(unit, h, i, out) && out->offset == offset)
			return;
	memset(out, 0, sizeof(*out));
}

/* The shares that live in bytes [from, to) of the victim. Unit: in memory, or NULL: each is read.
 */
static int shares_move(struct tier *t, uint32_t from, uint32_t to, const uint8_t *unit,
		       const struct unit_header *h, unsigned *moved)
{
	uint64_t start = segment_start(&t->seg, t->gc.victim);
	uint8_t first[8], end[8];
	const void *key, *value;
	size_t key_len, len;
	struct kv_iter *it;
	int rc = 0, rc2;

	sloc_key_encode(first, t->gc.victim, from / 64);
	sloc_key_encode(end, t->gc.victim, to / 64);
	it = kv_iter_range(t->kv, KV_SLOC, first, sizeof(first), end, sizeof(end));
	while (!rc && t->gc.share_count < WORK_MAX &&
	       kv_iter_next(it, &key, &key_len, &value, &len)) {
		uint32_t at = key_len == 8 ? get_be32((const uint8_t *)key + 4) * 64 : to;
		uint64_t id = len == 8 ? get_le64(value) : 0;
		const uint8_t *stored = NULL;
		uint8_t plain[BLOCK_SIZE + CODEC_UNIT], again[2 * BLOCK_SIZE];
		struct unit_entry e = {0};
		struct fp128 fp;
		struct tshare *s;

		if (at >= to)
			break;
		rc = share_get(t, id, &s);
		if (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT ||
		    (!rc && map_entry_offset(s->next.word) != start + at)) {
			log_error("tier", "a place names a shared block that is not there",
				  "segment=%u offset=%u share=%llu", t->gc.victim, at,
				  (unsigned long long)id);
			rc = 0;
			continue;
		}
		if (rc)
			break;
		if (unit && at - from + map_entry_units(s->next.word) * 64 <= h->bytes) {
			stored = unit + (at - from);
			entry_at(unit, h, at - from, &e);
		} else if (!unit && !victim_read(t, start + at, map_entry_units(s->next.word) * 64u,
						 plain)) {
			stored = plain;
		}
		rc = look_twice(t, s->next.word, s->next.fp.lo, stored, again, &stored, &fp);
		if (rc)
			break;
		rc = share_move(t, s, stored, &e);
		t->gc.shares[t->gc.share_count++] = id;
		atomic_fetch_add_explicit(&t->gc_blocks, 1, memory_order_relaxed);
		++*moved;
	}
	rc2 = kv_iter_close(it);
	return rc ? rc : rc2;
}

static int unit_move(struct tier *t, const uint8_t *unit, const struct unit_header *h,
		     unsigned *moved)
{
	uint64_t place = segment_start(&t->seg, t->gc.victim) + t->gc.pos;
	unsigned device = t->gc.victim >> SEGMENT_DEVICE_SHIFT, first = t->gc.work_count;
	struct unit_entry e;
	int rc;

	for (unsigned i = 0; i < h->entries; i++)
		if (!unit_entry_decode(unit, h, i, &e))
			work_find(t, e.object, e.block / PAGE_BLOCKS, true);
	rc = txn_load(t, t->gc.work + first, t->gc.work_count - first);
	for (unsigned i = 0; i < h->entries && !rc; i++) {
		struct work_page *w;

		if (unit_entry_decode(unit, h, i, &e))
			continue;
		w = work_find(t, e.object, e.block / PAGE_BLOCKS, false);
		if (!w || w->o->gen != e.gen ||
		    !entry_is(w, e.block % PAGE_BLOCKS,
			      map_entry_word(e.codec, e.units, device, place + e.offset)))
			continue;
		rc = block_move(t, w, e.block % PAGE_BLOCKS, unit + e.offset, e.version);
		++*moved;
	}
	return rc ? rc : shares_move(t, t->gc.pos, t->gc.pos + h->bytes, unit, h, moved);
}

static int walk_units(struct tier *t, bool *end)
{
	unsigned moved = 0;
	int rc = 0;

	while (!rc && moved < GC_STEP_BLOCKS && t->gc.work_count < GC_STEP_BLOCKS) {
		struct unit_header h;
		const uint8_t *unit = unit_at_pos(t, &h);

		if (!unit) {
			*end = true;
			break;
		}
		rc = unit_move(t, unit, &h, &moved);
		t->gc.pos += h.bytes;
	}
	return rc;
}

/* ---- Walking the map, when the summaries do not account for all --------------------------------
 */

static int page_move(struct tier *t, struct work_page *w, unsigned *moved)
{
	int rc = 0;

	for (unsigned i = 0; i < PAGE_BLOCKS && !rc; i++) {
		uint64_t word = w->page->entry[i].word;
		uint8_t stored[BLOCK_SIZE];
		uint32_t id;

		if (!(w->page->mask >> i & 1) || !map_entry_has_place(word) ||
		    !segment_of_word(&t->seg, word, &id) || id != t->gc.victim)
			continue;
		rc = victim_read(t, map_entry_offset(word), map_entry_units(word) * 64u, stored);
		rc = block_move(t, w, i, rc ? NULL : stored, w->page->version);
		++*moved;
	}
	return rc;
}

static bool page_in_victim(struct tier *t, const struct map_page *p)
{
	uint32_t id;

	for (uint64_t m = p->mask; m; m &= m - 1) {
		uint64_t word = p->entry[__builtin_ctzll(m)].word;

		if (map_entry_has_place(word) && segment_of_word(&t->seg, word, &id) &&
		    id == t->gc.victim)
			return true;
	}
	return false;
}

static int walk_map(struct tier *t, bool *end)
{
	struct kv_iter *it;
	struct map_page *p;
	unsigned rows = 0, moved = 0;
	const void *key, *value;
	size_t key_len, len;
	int rc = shares_move(t, 0, (uint32_t)t->seg.segment_size, NULL, NULL, &moved), rc2;

	*end = false;
	if (rc || moved) /* the map is walked once no share is left */
		return rc;
	*end = true;
	it = kv_iter_range(t->kv, KV_MAP, t->gc.key, sizeof(t->gc.key), NULL, 0);
	p = xmalloc(sizeof(*p));
	while (kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct work_page *w;
		uint64_t object;
		uint32_t page;

		if (rows++ == MAP_STEP_ROWS || moved >= GC_STEP_BLOCKS ||
		    t->gc.work_count >= GC_STEP_BLOCKS) {
			memcpy(t->gc.key, key, MAP_KEY_SIZE);
			*end = false;
			break;
		}
		if (!map_key_decode(key, key_len, &object, &page) ||
		    map_page_decode(value, len, key, p) || !page_in_victim(t, p))
			continue;
		w = work_find(t, object, page, true);
		if (!w)
			continue;
		rc = txn_load(t, w, 1);
		if (!rc)
			rc = page_move(t, w, &moved);
		if (rc)
			break;
	}
	free(p);
	rc2 = kv_iter_close(it);
	return rc ? rc : rc2;
}

/* ---- A step ------------------------------------------------------------------------------------
 */

struct notice {
	struct post post;
	struct tier_shard *shard;
	unsigned count, share_count;
	struct moved_page *pages;
	uint64_t *shares;
};

static void notice_run(struct post *p)
{
	struct notice *n = container_of(p, struct notice, post);

	for (unsigned i = 0; i < n->count; i++)
		shard_page_moved(n->shard, n->pages[i].object, n->pages[i].page);
	for (unsigned i = 0; i < n->share_count; i++)
		fifo_cache_drop(&n->shard->shares, (struct fifo_key){n->shares[i], 0});
	free(n);
}

void tell_shards(struct tier *t, const struct moved_page *pages, unsigned page_count,
		 const uint64_t *shares, unsigned share_count)
{
	for (unsigned s = 0; s < t->shard_count && t->started; s++) {
		struct notice *n = xmalloc(sizeof(*n) + page_count * sizeof(*pages) +
					   share_count * sizeof(*shares));

		n->post.fn = notice_run;
		n->shard = &t->shards[s];
		n->count = 0;
		n->share_count = share_count;
		n->pages = (struct moved_page *)(n + 1);
		n->shares = (uint64_t *)(n->pages + page_count);
		for (unsigned i = 0; i < page_count; i++)
			if (pages[i].object % t->shard_count == s)
				n->pages[n->count++] = pages[i];
		if (share_count)
			memcpy(n->shares, shares, share_count * sizeof(*shares));
		if (n->count || share_count)
			loop_post(t->shards[s].loop, &n->post);
		else
			free(n);
	}
}

static int step_commit(struct tier *t)
{
	struct moved_page *pages;
	unsigned n = 0;
	int rc = segment_flush_unit(&t->seg, STREAM_GC);

	if (!rc)
		rc = FAILPOINT(gc_moved);
	if (rc)
		return rc;
	for (unsigned i = 0; i < t->gc.work_count; i++)
		if (t->gc.work[i].changed)
			txn_page(t, &t->gc.work[i]);
	if (!t->dirty_object_count && !t->seg.dirty_count && !t->gc.share_count)
		return 0;
	for (unsigned i = 0; i < t->gc.moved_count; i++)
		hints_move(&t->dedup.hints, t->gc.moved[i].fp,
			   t->gc.moved[i].from >> 9 & (HINT_SHARED - 1),
			   t->gc.moved[i].entry->word >> 9 & (HINT_SHARED - 1));
	rc = txn_commit(t);
	if (rc)
		return rc;
	pages = xmalloc((t->gc.work_count + 1) * sizeof(*pages));
	for (unsigned i = 0; i < t->gc.work_count; i++) {
		struct work_page *w = &t->gc.work[i];

		if (!w->changed)
			continue;
		page_cache_put(&t->cache, w->o->id, w->index, w->page, w->operands);
		pages[n++] = (struct moved_page){w->o->id, w->index};
		if (t->gc.found_bad)
			scrub_tell(t, w);
	}
	tell_shards(t, pages, n, t->gc.shares, t->gc.share_count);
	free(pages);
	return 0;
}

/* The map was walked whole and names nothing in the victim any more: what is still counted is
 * drift. */
static int drop_drift(struct tier *t)
{
	struct segment *seg = segment_by_id(&t->seg, t->gc.victim);

	log_error("tier", "live bytes that no map entry accounts for are given back",
		  "segment=%u bytes=%u", t->gc.victim, seg->live);
	txn_begin(t);
	seg->delta = -(int32_t)seg->live;
	segment_mark_dirty(&t->seg, t->gc.victim);
	return txn_commit(t);
}

static void gc_alloc(struct gc_state *g)
{
	if (g->window)
		return;
	g->window = xalloc_aligned(BLOCK_SIZE, UNIT_MAX);
	g->pages = xmalloc(WORK_MAX * sizeof(*g->pages));
	g->work = xmalloc(WORK_MAX * sizeof(*g->work));
	g->moved = xmalloc(2 * WORK_MAX * sizeof(*g->moved));
	g->shares = xmalloc(WORK_MAX * sizeof(*g->shares));
}

bool gc_step(struct tier *t)
{
	bool end = false;
	int rc;

	if (atomic_load(&t->failed) || (!victim_valid(t) && !victim_pick(t)))
		return false;
	gc_alloc(&t->gc);
	pthread_mutex_lock(&t->commit_lock);
	t->gc.work_count = t->gc.moved_count = t->gc.share_count = 0;
	t->gc.found_bad = false;
	txn_begin(t);
	rc = t->gc.walk_map ? walk_map(t, &end) : walk_units(t, &end);
	if (!rc)
		rc = step_commit(t);
	if (rc && !atomic_load(&t->failed)) {
		txn_abort(t);
		t->gc.active = false;
	}
	while (hmap_take(&t->round))
		;
	if (!rc && end && victim_valid(t)) {
		if (t->gc.walk_map)
			rc = drop_drift(t);
		else
			log_warn("tier",
				 "a segment's summaries do not account for all its live blocks",
				 "segment=%u live=%u", t->gc.victim,
				 segment_by_id(&t->seg, t->gc.victim)->live);
		t->gc.walk_map = true;
	}
	pthread_mutex_unlock(&t->commit_lock);
	if (rc)
		log_warn("tier", "a garbage collection step failed", "segment=%u rc=%s",
			 t->gc.victim, err_name(rc));
	return !rc;
}

bool gc_dead_step(struct tier *t)
{
	return (victim_valid(t) || victim_of_garbage(t)) && gc_step(t);
}

/* A segment of which u is live costs u / (1 - u) blocks moved for each block of room. The budget
 * rises from nothing at gc_begin to twice that at 5 % free, so where space is written as fast as it
 * can be it settles in between, and a round never has to wait for many steps at once. */
void gc_pay(struct tier *t, unsigned blocks)
{
	uint32_t begin = gc_begin(t), full = MAX(t->seg.total / 20, t->seg.reserve + 1);
	uint32_t avail = segments_avail(t);
	double pressure, u;

	if (avail >= begin || (!victim_valid(t) && !victim_pick(t))) {
		t->gc.debt = 0;
		return;
	}
	pressure = avail <= full ? 2 : 2.0 * (begin - avail) / (begin - full);
	u = (double)segment_by_id(&t->seg, t->gc.victim)->live / (double)t->seg.segment_size;
	t->gc.debt += (uint64_t)(pressure * blocks * (u / (1.05 - u))) + PAY_LEAST;
	for (unsigned i = 0; i < PAY_STEPS && t->gc.debt; i++) {
		uint64_t moved = atomic_load(&t->gc_blocks);

		if (!gc_step(t))
			return;
		moved = MAX(atomic_load(&t->gc_blocks) - moved, PAY_LEAST);
		t->gc.debt -= MIN(t->gc.debt, moved);
	}
}

/* Before a round: collects until there is room, or nothing can be gained. */
bool gc_make_room(struct tier *t, enum segment_stream stream, uint64_t blocks)
{
	grace_poll(t, false);
	while (!segments_have_room(&t->seg, stream, blocks)) {
		bool waiting = t->seg.freed_count || t->seg.draining_count;

		if (waiting) {
			grace_poll(t, true);
			if (t->seg.freed_count || t->seg.draining_count)
				return false; /* stopping */
			continue;
		}
		if (!gc_step(t))
			return segments_have_room(&t->seg, stream, blocks);
	}
	return true;
}
