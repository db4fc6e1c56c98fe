/* SPDX-License-Identifier: Apache-2.0 */
/* What a scrub looks at (scrub.h): segments, the map's pages, single pages that a read suspects; and what
 * it marks. It must never mark a block whose entry is another one by now, nor a block that a second look
 * finds good, and never copy what it has not verified (I1, I12, I14): it runs between commits of the only
 * thread that makes any. */
#include <stdlib.h>

#include "store/codec.h"
#include "store/scrub_check.h"

#define WALK_OBJECTS 64u
#define MOVE_STEPS   4096u /* a segment that is not empty after so many is left alone */

/* ---- Marking -----------------------------------------------------------------------------------
 */

struct tell {
	struct post post;
	struct tier *t;
	unsigned shard;
	struct store_damage d;
};

static void tell_run(struct post *p)
{
	struct tell *m = container_of(p, struct tell, post);

	m->t->damaged(m->t->damaged_arg, m->shard, &m->d);
	free(m);
}

static void tell(struct tier *t, const struct tobj *o, uint32_t page, uint64_t blocks)
{
	struct tell *m;

	if (!blocks || !t->damaged || !t->started)
		return;
	m = xcalloc(1, sizeof(*m));
	m->post.fn = tell_run;
	m->t = t;
	m->shard = (unsigned)(o->id % t->shard_count);
	m->d = (struct store_damage){o->id, o->gen, page, blocks};
	loop_post(t->shards[m->shard].loop, &m->post);
}

static uint64_t damaged_of(const struct map_page *p, uint64_t among)
{
	uint64_t out = 0;

	for (uint64_t m = p->mask & among; m; m &= m - 1)
		if (map_entry_kind(p->entry[__builtin_ctzll(m)].word) == MAP_DAMAGED)
			out |= m & -m;
	return out;
}

void scrub_tell(struct tier *t, const struct work_page *w)
{
	tell(t, w->o, w->index, damaged_of(w->page, w->load_failed ? ~0ull : w->changed));
}

void scrub_count_bad(struct tier *t, unsigned device)
{
	atomic_fetch_add(&t->corrupt_blocks, 1);
	atomic_fetch_add(&t->scrub.found_ever, 1);
	if (t->started)
		atomic_store(&t->scrub.found_last_s, scrub_wall_s(t));
	if (device < GROUP_DEVICES_MAX)
		atomic_fetch_add(&t->scrub.device_bad[device], 1);
}

static struct work_page *work_get(struct tier *t, uint64_t object, uint32_t page, bool create)
{
	uint64_t h = hash_u64(object * 0x9e3779b97f4a7c15ull + page);
	struct scrub *s = &t->scrub;
	struct work_page *w;
	struct tobj *o;

	for (struct hnode *n = hmap_first(&t->round, h); n; n = hmap_next(n)) {
		w = container_of(n, struct work_page, node);
		if (w->o->id == object && w->index == page)
			return w;
	}
	o = create && s->work_count < UNIT_ENTRIES_MAX ? tobj_find(t, object) : NULL;
	if (!o)
		return NULL;
	w = &s->work[s->work_count];
	*w = (struct work_page){.o = o, .index = page, .page = &s->pages[s->work_count]};
	s->work_count++;
	hmap_insert(&t->round, &w->node, h);
	return w;
}

static void begin(struct tier *t)
{
	pthread_mutex_lock(&t->commit_lock);
	txn_begin(t);
	t->scrub.work_count = 0;
	t->scrub.share_bad = false;
}

/* Commits what was found, if anything, and tells the shards. */
static int end(struct tier *t, int rc)
{
	struct scrub *s = &t->scrub;
	struct moved_page *moved = NULL;
	unsigned n = 0;
	bool changes = s->share_bad;

	for (unsigned i = 0; i < s->work_count && !rc; i++) {
		struct work_page *w = &s->work[i];

		if (!w->changed && !w->load_failed && !w->rewrite)
			continue;
		txn_page(t, w);
		s->row.found += w->load_failed;
		changes = true;
	}
	if (!rc && changes)
		rc = txn_commit(t);
	if (!rc && changes) {
		moved = xmalloc((s->work_count + 1) * sizeof(*moved));
		for (unsigned i = 0; i < s->work_count; i++) {
			struct work_page *w = &s->work[i];

			if (!w->changed && !w->load_failed && !w->rewrite)
				continue;
			page_cache_put(&t->cache, w->o->id, w->index, w->page, w->operands);
			moved[n++] = (struct moved_page){w->o->id, w->index};
			scrub_tell(t, w);
		}
		tell_shards(t, moved, n, NULL, 0);
		free(moved);
	} else if (rc && !atomic_load(&t->failed)) {
		txn_abort(t);
	} else if (!rc) {
		shares_aborted(t); /* looked at, and as they were */
	}
	while (hmap_take(&t->round))
		;
	pthread_mutex_unlock(&t->commit_lock);
	return rc;
}

/* ---- Looking -----------------------------------------------------------------------------------
 */

static bool stored_good(const uint8_t *stored, const struct map_entry *e)
{
	uint8_t plain[BLOCK_SIZE];

	if (map_entry_kind(e->word) == MAP_LZ4) {
		if (codec_decompress(stored, map_entry_units(e->word), plain))
			return false;
		stored = plain;
	}
	return hash_block(stored).lo == e->fp64;
}

bool scrub_entry_good(struct tier *t, const struct map_entry *e)
{
	uint64_t off = map_entry_offset(e->word), from = round_down(off, BLOCK_SIZE);
	uint64_t to = round_up(off + map_entry_units(e->word) * 64, BLOCK_SIZE);
	struct device *dev = t->seg.dev[map_entry_device(e->word)].dev;
	_Alignas(BLOCK_SIZE) uint8_t block[2 * BLOCK_SIZE];

	if (!dev || to - from > sizeof(block) || device_pread(dev, block, to - from, from))
		return false;
	return stored_good(block + (off - from), e);
}

static bool in_use(struct tier *t, uint64_t word, uint32_t *id)
{
	struct segment *seg = segment_of_word(&t->seg, word, id);

	return seg && (seg->state == SEGMENT_OPEN || seg->state == SEGMENT_SEALED);
}

static bool on_lost_device(struct tier *t, uint64_t word)
{
	return tier_place_lost(t, word) || device_failed(t->seg.dev[map_entry_device(word)].dev);
}

static void mark_bad(struct tier *t, struct work_page *w, unsigned b)
{
	uint64_t word = w->page->entry[b].word;

	if (on_lost_device(t, word))
		return; /* it counts as damaged; but it may come back, so the map keeps its place */
	log_error("scrub",
		  "a stored block is bad; it is damaged here until another replica repairs it",
		  "object=%llx block=%u device=%u offset=%llu", (unsigned long long)w->o->id,
		  w->index * PAGE_BLOCKS + b, map_entry_device(word),
		  (unsigned long long)map_entry_offset(word));
	scrub_count_bad(t, map_entry_device(word));
	t->scrub.row.found++;
	txn_entry_damage(t, w, b);
}

static void share_bad(struct tier *t, struct tshare *sh)
{
	share_set_damaged(t, sh);
	t->scrub.share_bad = true;
}

/* An entry that names a share: the share is looked at, and what it says goes for the entry. */
static int check_shared(struct tier *t, struct work_page *w, unsigned b, bool content)
{
	struct map_entry at;
	struct tshare *sh;
	int rc = share_get(t, map_share_id(w->page->entry[b].word), &sh);

	if (rc && rc != -ERR_NOT_FOUND && rc != -ERR_CORRUPT)
		return rc;
	if (!rc && map_entry_has_place(sh->next.word) && on_lost_device(t, sh->next.word))
		return 0;
	if (!rc && content && map_entry_has_place(sh->next.word)) {
		at = (struct map_entry){sh->next.word, sh->next.fp.lo};
		if (!scrub_entry_good(t, &at))
			share_bad(t, sh);
	}
	if (rc || !map_entry_has_place(sh->next.word)) {
		t->scrub.row.found++;
		txn_entry_damage(t, w, b);
	}
	return 0;
}

static bool suspect(const struct scrub *s, uint32_t segment)
{
	for (uint32_t i = 0; i < s->row.suspect_count; i++)
		if (s->row.suspects[i] == segment)
			return true;
	return s->row.suspect_all;
}

/* The entries `among` of a loaded page. content: all is read; else what is in suspect segments. */
static int check_page(struct tier *t, struct work_page *w, uint64_t among, bool content,
		      uint64_t *bytes)
{
	for (uint64_t m = w->page->mask & among; m; m &= m - 1) {
		unsigned b = (unsigned)__builtin_ctzll(m), kind;
		const struct map_entry *e = &w->page->entry[b];
		uint32_t id = 0;
		int rc;

		kind = map_entry_kind(e->word);
		if (kind == MAP_SHARE) {
			rc = check_shared(t, w, b, content);
			if (rc)
				return rc;
		} else if (map_entry_has_place(e->word)) {
			if (!in_use(t, e->word, &id)) {
				mark_bad(t, w, b);
			} else if (content || suspect(&t->scrub, id)) {
				*bytes += BLOCK_SIZE;
				if (!scrub_entry_good(t, e))
					mark_bad(t, w, b);
			}
		}
	}
	return 0;
}

int scrub_page(struct tier *t, uint64_t object, uint32_t page, uint64_t blocks)
{
	uint64_t bytes = 0, damaged = 0;
	struct tobj *o = NULL;
	struct work_page *w;
	int rc = 0;

	scrub_memory(&t->scrub);
	begin(t);
	w = work_get(t, object, page, true);
	if (w && w->o->state == OBJECT_LIVE) {
		o = w->o;
		rc = txn_load_fresh(t, w, 1);
		if (!rc)
			rc = check_page(t, w, blocks, true, &bytes);
		damaged = damaged_of(w->page, blocks) & ~w->changed; /* known, and told again */
		if (w->load_failed)
			damaged = 0;
	}
	rc = end(t, rc);
	if (!rc && o)
		tell(t, o, page, damaged);
	return rc;
}

/* ---- Segments ----------------------------------------------------------------------------------
 */

static void add_suspect(struct tier *t, uint32_t segment, const char *why)
{
	struct scrub_row *r = &t->scrub.row;

	if (suspect(&t->scrub, segment))
		return;
	log_warn("scrub", "a segment is not what its table says; its blocks are checked one by one",
		 "segment=%u why=\"%s\"", segment, why);
	if (r->suspect_count == SCRUB_SUSPECTS_MAX)
		r->suspect_all = true;
	else
		r->suspects[r->suspect_count++] = segment;
}

/* The segment at or after row.segment that holds something; false: there is none. */
static bool next_segment(struct tier *t)
{
	struct scrub *s = &t->scrub;
	unsigned d = s->row.segment >> SEGMENT_DEVICE_SHIFT;
	uint32_t n = s->row.segment & ((1u << SEGMENT_DEVICE_SHIFT) - 1);

	for (; d < GROUP_DEVICES_MAX; d++, n = 0) {
		const struct segment_device *dev = &t->seg.dev[d];

		for (; dev->dev && !dev->dev->failed && n < dev->count; n++) {
			const struct segment *seg = &dev->seg[n];

			if ((seg->state != SEGMENT_OPEN && seg->state != SEGMENT_SEALED) ||
			    !seg->live)
				continue;
			s->row.segment = d << SEGMENT_DEVICE_SHIFT | n;
			s->in_segment = true;
			s->pos = SEGMENT_HEADER_SIZE;
			s->generation = seg->generation;
			s->found_live = 0;
			s->live_before = seg->live;
			return true;
		}
	}
	return false;
}

static int unit_shares(struct tier *t, const uint8_t *unit, uint32_t from, uint32_t to)
{
	struct scrub *s = &t->scrub;
	uint64_t start = segment_start(&t->seg, s->row.segment);
	uint8_t first[8], end[8];
	const void *key, *value;
	size_t key_len, len;
	struct kv_iter *it;
	int rc = 0, rc2;

	sloc_key_encode(first, s->row.segment, from / 64);
	sloc_key_encode(end, s->row.segment, to / 64);
	it = kv_iter_range(t->kv, KV_SLOC, first, sizeof(first), end, sizeof(end));
	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		uint32_t at = key_len == 8 ? get_be32((const uint8_t *)key + 4) * 64 : to;
		struct map_entry e;
		struct tshare *sh;

		if (at >= to)
			break;
		rc = share_get(t, len == 8 ? get_le64(value) : 0, &sh);
		if (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT) {
			rc = 0; /* those that refer to it say so */
			continue;
		}
		if (rc || map_entry_offset(sh->next.word) != start + at)
			continue;
		e = (struct map_entry){sh->next.word, sh->next.fp.lo};
		if (at - from + map_entry_units(e.word) * 64 > to - from ||
		    (!stored_good(unit + (at - from), &e) && !scrub_entry_good(t, &e))) {
			share_bad(t, sh);
			continue;
		}
		s->found_live += map_entry_units(e.word) * 64;
	}
	rc2 = kv_iter_close(it);
	return rc ? rc : rc2;
}

/* The map's entries that name exactly these places, against what is there. */
static int check_unit(struct tier *t, const uint8_t *unit, const struct unit_header *h)
{
	struct scrub *s = &t->scrub;
	uint64_t place = segment_start(&t->seg, s->row.segment) + s->pos;
	unsigned device = s->row.segment >> SEGMENT_DEVICE_SHIFT;
	struct unit_entry u;
	int rc;

	begin(t);
	for (unsigned i = 0; i < h->entries; i++)
		if (!unit_entry_decode(unit, h, i, &u))
			work_get(t, u.object, u.block / PAGE_BLOCKS, true);
	rc = txn_load(t, s->work, s->work_count);
	for (unsigned i = 0; i < h->entries && !rc; i++) {
		const struct map_entry *e;
		struct work_page *w;
		unsigned b;

		if (unit_entry_decode(unit, h, i, &u))
			continue;
		w = work_get(t, u.object, u.block / PAGE_BLOCKS, false);
		b = u.block % PAGE_BLOCKS;
		if (!w || w->o->gen != u.gen || !(w->page->mask >> b & 1))
			continue;
		e = &w->page->entry[b];
		if (e->word != map_entry_word(u.codec, u.units, device, place + u.offset))
			continue;
		/* A second look before it counts (I1). */
		if (u.offset + u.units * 64 <= h->bytes &&
		    (stored_good(unit + u.offset, e) || scrub_entry_good(t, e)))
			s->found_live += u.units * 64;
		else
			mark_bad(t, w, b);
	}
	if (!rc)
		rc = unit_shares(t, unit, s->pos, s->pos + h->bytes);
	return end(t, rc);
}

static void segment_done(struct tier *t, const struct segment *seg, bool broken)
{
	struct scrub *s = &t->scrub;

	if (device_failed(t->seg.dev[s->row.segment >> SEGMENT_DEVICE_SHIFT].dev)) {
		s->in_segment = false; /* lost: there is nothing to check */
		s->row.segment++;
		return;
	}
	/* What was freed meanwhile is in neither count; of an open one the end is still being
	 * written. */
	if (seg->live > s->found_live && (broken || seg->state == SEGMENT_SEALED))
		add_suspect(t, s->row.segment,
			    broken ? "a summary is bad" : "live blocks are not in it");
	else if (seg->state == SEGMENT_SEALED && seg->live == s->live_before &&
		 seg->live != s->found_live)
		add_suspect(t, s->row.segment, "its count of live bytes is wrong");
	s->in_segment = false;
	s->row.segment++;
	scrub_save(t);
}

/* One read of the segment under way. False: no segment is left. */
bool scrub_segment_step(struct tier *t, uint64_t *bytes, int *rc)
{
	struct scrub *s = &t->scrub;
	uint32_t len, at = 0;
	struct segment *seg;

	if (!s->in_segment && !next_segment(t))
		return false;
	seg = segment_by_id(&t->seg, s->row.segment);
	if (seg->generation != s->generation ||
	    (seg->state != SEGMENT_OPEN && seg->state != SEGMENT_SEALED)) {
		s->in_segment = false; /* collected meanwhile */
		s->row.segment++;
		return true;
	}
	if (s->pos >= seg->fill || s->pos + 2 * BLOCK_SIZE > t->seg.segment_size) {
		segment_done(t, seg, false);
		return true;
	}
	len = (uint32_t)MIN(UNIT_MAX, t->seg.segment_size - s->pos);
	*bytes += len;
	if (device_pread(t->seg.dev[s->row.segment >> SEGMENT_DEVICE_SHIFT].dev, s->window, len,
			 segment_start(&t->seg, s->row.segment) + s->pos)) {
		atomic_fetch_add(&t->io_errors, 1);
		segment_done(t, seg, true);
		return true;
	}
	while (!*rc && at < len && s->pos < seg->fill) {
		struct unit_header h;

		if (unit_summary_decode(s->window + at, len - at, &h) || h.bytes > len - at ||
		    h.segment != s->row.segment || h.generation != s->generation ||
		    h.position != s->pos / BLOCK_SIZE)
			break;
		*rc = check_unit(t, s->window + at, &h);
		at += h.bytes;
		s->pos += h.bytes;
	}
	if (!at && !*rc)
		segment_done(t, seg, true);
	return true;
}

/* Empties the suspect segments, one after the other. False: done. */
bool scrub_move_step(struct tier *t, uint64_t *bytes)
{
	struct scrub *s = &t->scrub;
	struct segment *seg;

	while (s->row.suspect_count) {
		uint32_t id = s->row.suspects[s->row.suspect_count - 1];

		seg = segment_by_id(&t->seg, id);
		if (!s->in_segment) {
			s->move_steps = 0;
			s->generation = seg ? seg->generation : 0;
			s->in_segment = seg && seg->live && gc_choose(t, id);
		}
		if (s->in_segment && seg->generation == s->generation &&
		    seg->state == SEGMENT_SEALED && seg->live && s->move_steps++ < MOVE_STEPS &&
		    (t->gc.active && t->gc.victim == id ? true : gc_choose(t, id)) && gc_step(t)) {
			*bytes += UNIT_MAX;
			return true;
		}
		s->in_segment = false;
		s->row.suspect_count--;
		scrub_save(t);
	}
	return false;
}

/* ---- The map -----------------------------------------------------------------------------------
 */

/* The first objects at or after this one, ascending: a walk over all of them, so not for each anew. */
static unsigned objects_from(struct tier *t, uint64_t id, struct tobj *out[WALK_OBJECTS])
{
	unsigned count = 0;

	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);
		unsigned at = count;

		if (o->id < id || o->state != OBJECT_LIVE ||
		    (count == WALK_OBJECTS && o->id > out[count - 1]->id))
			continue;
		if (count < WALK_OBJECTS)
			count++;
		else
			at--;
		for (; at > 0 && out[at - 1]->id > o->id; at--)
			out[at] = out[at - 1];
		out[at] = o;
	}
	return count;
}

/* The next pages that regions name, after the place of the walk; false: it is at the end. */
static bool walk_collect(struct tier *t, struct scrub_walk *w)
{
	struct tobj *next[WALK_OBJECTS];
	unsigned count = objects_from(t, w->object, next);

	for (unsigned i = 0; i < count && t->scrub.work_count < WALK_PAGES; i++) {
		const struct tobj *o = next[i];
		uint32_t page = o->id == w->object ? w->page : 0,
			 last = o->region_count * REGION_PAGES;

		for (; page < last && t->scrub.work_count < WALK_PAGES; page++)
			if (o->regions[page / REGION_PAGES].now.mask >> page % REGION_PAGES & 1)
				work_get(t, o->id, page, true);
		w->object = o->id;
		w->page = page;
		if (page < last)
			break;
		w->object = o->id + 1;
		w->page = 0;
	}
	return count > 0;
}

bool scrub_walk_step(struct tier *t, struct scrub_walk *walk, uint64_t *bytes, int *rc)
{
	struct scrub *s = &t->scrub;
	struct store_damage known[WALK_PAGES];
	struct tobj *of[WALK_PAGES];
	bool more;
	unsigned n;

	begin(t);
	more = walk_collect(t, walk);
	n = s->work_count;
	*rc = txn_load_fresh(t, s->work, n);
	for (unsigned i = 0; i < n && !*rc; i++) {
		struct work_page *w = &s->work[i];

		*bytes += PAGE_COST;
		*rc = check_page(t, w, ~0ull, false, bytes);
		of[i] = w->o;
		known[i] = (struct store_damage){
			.page = w->index,
			.blocks = w->load_failed ? 0 : damaged_of(w->page, ~w->changed)};
	}
	*rc = end(t, *rc);
	for (unsigned i = 0; i < n && !*rc; i++)
		tell(t, of[i], known[i].page, known[i].blocks);
	return more;
}
