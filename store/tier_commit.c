/* SPDX-License-Identifier: Apache-2.0 */
/* Building and making one commit: page rows, regions, objects, the segment delta and the commit
 * number in one synced batch, after the data is flushed. RAM changes only when it is durable. It
 * must never leave out the giving back of what a changed entry held (I8). */
#include <stdlib.h>

#include "node/base/rules.h"
#include "node/loop/failpoint.h"
#include "store/tier_internal.h"

void tier_fail(struct tier *t, int rc, const char *what)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&t->failed, &none, rc))
		log_error("tier", "the group has failed and serves nothing more", "what=%s rc=%s",
			  what, err_name(rc));
}

/* ---- Objects -----------------------------------------------------------------------------------
 */

struct tobj *tobj_find(struct tier *t, uint64_t object)
{
	for (struct hnode *n = hmap_first(&t->objects, hash_u64(object)); n; n = hmap_next(n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		if (o->id == object)
			return o;
	}
	return NULL;
}

struct tobj *tobj_create(struct tier *t, uint64_t object, uint32_t gen, uint32_t volume)
{
	struct tobj *o = xcalloc(1, sizeof(*o));

	o->id = object;
	o->gen = gen;
	o->volume = volume;
	o->state = OBJECT_LIVE;
	list_init(&o->link);
	hmap_insert(&t->objects, &o->node, hash_u64(object));
	atomic_fetch_add(&t->objects_n, 1);
	return o;
}

void tobj_set_header(struct tier *t, struct tobj *o, const void *header, size_t len)
{
	txn_object(t, o);
	if (o->has_saved) {
		free(o->header);
	} else {
		o->header_saved = o->header;
		o->header_saved_len = o->header_len;
		o->has_saved = true;
	}
	o->header = xmalloc(len + 1);
	if (len)
		memcpy(o->header, header, len);
	o->header_len = len;
}

void tobj_set_volume(struct tier *t, struct tobj *o, uint32_t volume)
{
	if (o->volume == volume)
		return;
	if (o->counters.shared) {
		log_warn("tier",
			 "an object that shares blocks changes its volume; the old one keeps it",
			 "object=%llu from=%u to=%u", (unsigned long long)o->id, o->volume, volume);
		return;
	}
	volume_count(t, o->volume, &o->counters, NULL);
	volume_count(t, volume, NULL, &o->counters);
	volume_get(t, o->volume)->reduce_left -= o->reduce_left;
	volume_get(t, volume)->reduce_left += o->reduce_left;
	o->volume = volume;
}

void tobj_set_flags(struct tier *t, struct tobj *o, unsigned flags)
{
	o->flags = (uint16_t)flags;
	if (o->flags != o->flags_saved)
		txn_object(t, o);
}

struct tobj_region *tobj_region(struct tobj *o, uint32_t region)
{
	if (region >= o->region_count) {
		uint32_t n = MAX(region + 1, o->region_count * 2);

		o->regions = xrealloc(o->regions, n * sizeof(*o->regions));
		memset(o->regions + o->region_count, 0,
		       (n - o->region_count) * sizeof(*o->regions));
		o->region_count = n;
	}
	return &o->regions[region];
}

void tobj_free(struct tier *t, struct tobj *o)
{
	hmap_remove(&t->objects, &o->node);
	list_del(&o->link);
	if (o->state == OBJECT_DELETING)
		atomic_fetch_sub(&t->deleting_n, 1);
	atomic_fetch_sub(&t->objects_n, 1);
	free(o->header);
	free(o->header_saved);
	free(o->regions);
	free(o);
}

/* ---- Pages -------------------------------------------------------------------------------------
 */

void txn_begin(struct tier *t)
{
	kv_batch_clear(t->batch);
	if (t->shares.txn.count || t->shares.rc)
		shares_aborted(t);
	t->dirty_region_count = t->dirty_object_count = 0;
}

struct load {
	struct tier *t;
	bool fresh;
	struct work_page **missing;
	unsigned base;
	const uint8_t (*keys)[MAP_KEY_SIZE];
	int rc;
};

static void load_one(void *arg, unsigned i, int rc, const void *value, size_t len)
{
	struct load *l = arg;
	struct work_page *w = l->missing[l->base + i];

	if (!rc)
		rc = map_page_decode(value, len, l->keys[i], w->page);
	if (!rc)
		return;
	if (l->fresh && (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT)) {
		const struct page_cache_item *c = page_cache_get(&l->t->cache, w->o->id, w->index);

		if (c) {
			log_error("tier", "a map page is missing or damaged; it is still in memory",
				  "object=%llu page=%u rc=%s", (unsigned long long)w->o->id,
				  w->index, err_name(rc));
			*w->page = c->page;
			w->rewrite = true;
			return;
		}
	}
	if (rc == -ERR_NOT_FOUND && !rule(RULE_REGION))
		return;
	if (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT) {
		/* I11: the region says it exists. What was in it is lost, and said to be. */
		log_error("tier", "a map page is missing or damaged; its blocks count as damaged",
			  "object=%llu page=%u rc=%s", (unsigned long long)w->o->id, w->index,
			  err_name(rc));
		atomic_fetch_add(&l->t->corrupt_blocks, 1);
		map_page_set_damaged(w->page);
		w->load_failed = true;
		w->o->recount = l->t->recount_wanted = true;
	} else {
		l->rc = rc;
	}
}

static int work_page_cmp(const void *a, const void *b)
{
	const struct work_page *x = *(struct work_page *const *)a,
			       *y = *(struct work_page *const *)b;

	if (x->o->id != y->o->id)
		return x->o->id < y->o->id ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static int load_pages(struct tier *t, struct work_page *w, unsigned count, bool fresh)
{
	struct work_page **missing = xmalloc((count + 1) * sizeof(*missing));
	struct load l = {.t = t, .missing = missing, .fresh = fresh};
	unsigned n = 0;

	for (unsigned i = 0; i < count; i++) {
		uint32_t region = w[i].index / REGION_PAGES;
		const struct page_cache_item *c;

		w[i].load_failed = w[i].rewrite = false;
		w[i].changed = 0;
		w[i].operands = 0;
		memset(w[i].page, 0, sizeof(*w[i].page));
		if (region >= w[i].o->region_count ||
		    !(w[i].o->regions[region].now.mask >> w[i].index % REGION_PAGES & 1))
			continue;
		c = fresh ? NULL : page_cache_get(&t->cache, w[i].o->id, w[i].index);
		if (c) {
			*w[i].page = c->page;
			w[i].operands = c->operands;
		} else {
			missing[n++] = &w[i];
		}
	}
	qsort(missing, n, sizeof(*missing), work_page_cmp);
	for (l.base = 0; l.base < n && !l.rc; l.base += KV_MULTI_MAX) {
		uint8_t keys[KV_MULTI_MAX][MAP_KEY_SIZE];
		const void *key[KV_MULTI_MAX];
		size_t lens[KV_MULTI_MAX];
		unsigned m = MIN(n - l.base, KV_MULTI_MAX), operands;

		for (unsigned i = 0; i < m; i++) {
			map_key_encode(keys[i], missing[l.base + i]->o->id,
				       missing[l.base + i]->index);
			key[i] = keys[i];
			lens[i] = MAP_KEY_SIZE;
		}
		l.keys = (const uint8_t(*)[MAP_KEY_SIZE])keys;
		operands = kv_multi_get(t->kv, KV_MAP, key, lens, m, load_one, &l);
		for (unsigned i = 0; i < m; i++)
			missing[l.base + i]->operands = operands;
	}
	free(missing);
	for (unsigned i = 0; i < count; i++) {
		w[i].old = w[i].page->version;
		w[i].old_flags = w[i].page->flags;
	}
	return l.rc;
}

int txn_load(struct tier *t, struct work_page *w, unsigned count)
{
	return load_pages(t, w, count, false);
}

int txn_load_fresh(struct tier *t, struct work_page *w, unsigned count)
{
	return load_pages(t, w, count, true);
}

void count_entry(struct object_counters *c, unsigned kind, unsigned units, int sign)
{
	uint64_t s = (uint64_t)(int64_t)sign;

	if (kind == MAP_ZERO)
		c->zero += s;
	else
		c->mapped += s;
	if (kind == MAP_SHARE)
		c->shared += s;
	if (kind == MAP_DAMAGED)
		c->damaged += s;
	if (kind == MAP_RAW || kind == MAP_LZ4)
		c->stored += s * units * 64;
}

void txn_entry_clear(struct tier *t, struct work_page *w, unsigned index)
{
	uint64_t word = w->page->entry[index].word;

	txn_object(t, w->o);
	if (w->page->mask >> index & 1) {
		count_entry(&w->o->counters_next, map_entry_kind(word), map_entry_units(word), -1);
		/* What a damaged page held was lost with it; it was counted when it was whole. */
		w->o->counters_next.damaged += w->load_failed;
		if (rule(RULE_GIVE_BACK))
			segment_account(&t->seg, word, -1);
		if (map_entry_kind(word) == MAP_SHARE)
			share_release(t, map_share_id(word), w->o->volume);
	}
	w->page->mask &= ~(1ull << index);
	w->page->entry[index] = (struct map_entry){0};
	w->changed |= 1ull << index;
}

void txn_entry_set(struct tier *t, struct work_page *w, unsigned index, unsigned kind,
		   unsigned units)
{
	txn_object(t, w->o);
	w->page->mask |= 1ull << index;
	w->changed |= 1ull << index;
	count_entry(&w->o->counters_next, kind, units, 1);
}

void txn_entry_damage(struct tier *t, struct work_page *w, unsigned index)
{
	uint64_t fp64 = w->page->entry[index].fp64;

	txn_entry_clear(t, w, index);
	w->page->entry[index] = (struct map_entry){MAP_DAMAGED, fp64};
	txn_entry_set(t, w, index, MAP_DAMAGED, 1);
}

void txn_entry_share(struct tier *t, struct work_page *w, unsigned index, unsigned kind,
		     unsigned units, struct tshare *s)
{
	txn_object(t, w->o);
	count_entry(&w->o->counters_next, kind, units, -1);
	count_entry(&w->o->counters_next, MAP_SHARE, 1, 1);
	w->changed |= 1ull << index;
	share_ref(t, s, w->o->volume, 1);
}

struct tobj_region *txn_region(struct tier *t, struct tobj *o, uint32_t region)
{
	struct tobj_region *r = tobj_region(o, region);

	if (r->dirty)
		return r;
	r->dirty = true;
	r->next = r->now;
	if (t->dirty_region_count == t->dirty_region_cap) {
		t->dirty_region_cap = MAX(64, t->dirty_region_cap * 2);
		t->dirty_regions =
			xrealloc(t->dirty_regions, t->dirty_region_cap * sizeof(*t->dirty_regions));
	}
	t->dirty_regions[t->dirty_region_count++] = (struct region_ref){o, region};
	return r;
}

void txn_page(struct tier *t, struct work_page *w)
{
	uint8_t key[MAP_KEY_SIZE], value[MAP_PAGE_MAX];
	bool existed = w->load_failed || w->old.tenure || w->old.seq || w->old_flags;
	unsigned n = (unsigned)__builtin_popcountll(w->changed);
	struct map_page *p = w->page;

	if (p->flags & MAP_PAGE_DAMAGED && !w->load_failed) {
		p->flags &= (uint8_t)~MAP_PAGE_DAMAGED;
		if (map_page_has_damage(p))
			p->flags |= MAP_PAGE_DAMAGED;
	}
	map_key_encode(key, w->o->id, w->index);
	if (existed && !w->load_failed && !w->rewrite && n <= OPERAND_ENTRIES_MAX &&
	    w->operands < OPERANDS_MAX && p->flags == w->old_flags) {
		kv_batch_merge(t->kv, t->batch, KV_MAP, key, sizeof(key), value,
			       map_operand_encode(value, p, w->changed));
		w->operands++;
	} else {
		kv_batch_put(t->kv, t->batch, KV_MAP, key, sizeof(key), value,
			     map_page_encode(value, key, p));
		w->operands = 0;
	}
	if (!version_eq(w->old, p->version) || !existed) {
		struct tobj_region *r = txn_region(t, w->o, w->index / REGION_PAGES);
		uint64_t bit = 1ull << w->index % REGION_PAGES;

		if (r->next.mask & bit && rule(RULE_FOLD))
			r->next.fold ^= store_fold_term(w->index, w->old);
		r->next.mask |= bit;
		r->next.fold ^= store_fold_term(w->index, p->version);
	}
	txn_object(t, w->o);
}

void txn_page_delete(struct tier *t, struct work_page *w)
{
	struct tobj_region *r = txn_region(t, w->o, w->index / REGION_PAGES);
	uint8_t key[MAP_KEY_SIZE];

	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (w->page->mask >> i & 1)
			txn_entry_clear(t, w, i);
	map_key_encode(key, w->o->id, w->index);
	kv_batch_delete(t->kv, t->batch, KV_MAP, key, sizeof(key));
	r->next.mask &= ~(1ull << w->index % REGION_PAGES);
	r->next.fold ^= store_fold_term(w->index, w->old);
	txn_object(t, w->o);
}

void txn_object(struct tier *t, struct tobj *o)
{
	if (o->row_dirty)
		return;
	o->row_dirty = true;
	if (t->dirty_object_count == t->dirty_object_cap) {
		t->dirty_object_cap = MAX(64, t->dirty_object_cap * 2);
		t->dirty_objects =
			xrealloc(t->dirty_objects, t->dirty_object_cap * sizeof(*t->dirty_objects));
	}
	t->dirty_objects[t->dirty_object_count++] = o;
}

/* ---- Commit ------------------------------------------------------------------------------------
 */

static void put_regions_and_objects(struct tier *t)
{
	struct writer w = writer_init_heap();

	for (size_t i = 0; i < t->dirty_region_count; i++) {
		struct region_ref *ref = &t->dirty_regions[i];
		struct map_region *r = &ref->o->regions[ref->region].next;
		uint8_t key[REGION_KEY_SIZE], value[REGION_VALUE_SIZE];

		region_key_encode(key, ref->o->id, ref->region);
		region_encode(value, r);
		if (r->mask)
			kv_batch_put(t->kv, t->batch, KV_REGION, key, sizeof(key), value,
				     sizeof(value));
		else
			kv_batch_delete(t->kv, t->batch, KV_REGION, key, sizeof(key));
	}
	for (size_t i = 0; i < t->dirty_object_count; i++) {
		struct tobj *o = t->dirty_objects[i];
		struct object_row row = {.gen = o->gen,
					 .volume = o->volume,
					 .state = o->state,
					 .flags = o->flags,
					 .reduced = o->reduced,
					 .counters = o->counters_next,
					 .header = o->header,
					 .header_len = o->header_len};
		uint8_t key[OBJECT_KEY_SIZE];

		put_be64(key, o->id);
		w.len = 0;
		object_row_encode(&w, o->id, &row);
		kv_batch_put(t->kv, t->batch, KV_OBJ, key, sizeof(key), w.data, w.len);
	}
	writer_free(&w);
}

struct row_walk {
	struct segments *s;
	uint32_t i, base, end;
};

static bool delta_next(void *arg, uint32_t *id, struct segment *out)
{
	struct row_walk *k = arg;

	if (k->i >= k->s->dirty_count)
		return false;
	*id = k->s->dirty[k->i++];
	segment_next_row(k->s, *id, out);
	return true;
}

static bool chunk_next(void *arg, uint32_t *id, struct segment *out)
{
	struct row_walk *k = arg;

	if (k->i >= k->end)
		return false;
	*id = k->i++;
	segment_next_row(k->s, *id, out);
	return true;
}

/* All segments of the chunks that changed since the last time, and the deltas before go. */
static void put_checkpoint(struct tier *t, uint64_t commit, struct writer *w)
{
	uint8_t key[9];

	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		for (uint32_t base = 0; base < t->seg.dev[d].count; base += SEGMENT_CHUNK) {
			uint32_t id = d << SEGMENT_DEVICE_SHIFT | base;
			uint32_t n = MIN(SEGMENT_CHUNK, t->seg.dev[d].count - base);
			struct row_walk k = {.s = &t->seg, .i = id, .end = id + n};

			if (!t->chunk_dirty[d][base / SEGMENT_CHUNK])
				continue;
			w->len = 0;
			segment_rows_encode(w, commit, n, chunk_next, &k);
			key[0] = 1;
			put_be32(key + 1, id / SEGMENT_CHUNK);
			kv_batch_put(t->kv, t->batch, KV_SEG, key, 5, w->data, w->len);
		}
	}
	key[0] = 2;
	for (uint64_t c = t->delta_first; c < commit; c++) {
		put_be64(key + 1, c);
		kv_batch_delete(t->kv, t->batch, KV_SEG, key, 9);
	}
}

static bool put_segments(struct tier *t, uint64_t commit)
{
	struct writer w = writer_init_heap();
	struct row_walk k = {.s = &t->seg};
	bool fold = t->loss.fold_now || commit - t->delta_first >= SEG_FOLD_COMMITS;
	uint8_t key[9];

	for (uint32_t i = 0; i < t->seg.dirty_count; i++) {
		uint32_t id = t->seg.dirty[i], n = id & ((1u << SEGMENT_DEVICE_SHIFT) - 1);

		t->chunk_dirty[id >> SEGMENT_DEVICE_SHIFT][n / SEGMENT_CHUNK] = true;
	}
	if (fold) {
		put_checkpoint(t, commit, &w);
	} else if (t->seg.dirty_count) {
		segment_rows_encode(&w, commit, t->seg.dirty_count, delta_next, &k);
		key[0] = 2;
		put_be64(key + 1, commit);
		kv_batch_put(t->kv, t->batch, KV_SEG, key, 9, w.data, w.len);
	}
	writer_free(&w);
	return fold;
}

void txn_publish(struct tier *t)
{
	atomic_store(&t->live_bytes, t->seg.live);
	atomic_store(&t->written_bytes, t->seg.written_bytes[STREAM_HOT]);
	atomic_store(&t->moved_bytes, t->seg.written_bytes[STREAM_GC]);
	atomic_store(&t->loss.free_bytes, segments_lost_free(&t->seg) * t->seg.segment_size);
	atomic_store(&t->loss.live_bytes, t->seg.lost ? segments_lost_live(&t->seg) : 0);
	volumes_publish(t, atomic_load(&t->commit));
}

static void txn_apply(struct tier *t, uint64_t commit, bool folded)
{
	for (size_t i = 0; i < t->dirty_region_count; i++) {
		struct tobj_region *r = &t->dirty_regions[i].o->regions[t->dirty_regions[i].region];

		r->now = r->next;
		r->dirty = false;
	}
	for (size_t i = 0; i < t->dirty_object_count; i++) {
		struct tobj *o = t->dirty_objects[i];

		volume_count(t, o->volume, &o->counters, &o->counters_next);
		o->counters = o->counters_next;
		o->flags_saved = o->flags;
		o->row_dirty = o->has_saved = false;
		free(o->header_saved);
		o->header_saved = NULL;
	}
	if (folded) {
		t->loss.fold_now = false;
		t->delta_first = commit;
		for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
			if (t->chunk_dirty[d])
				memset(t->chunk_dirty[d], 0,
				       t->seg.dev[d].count / SEGMENT_CHUNK + 1);
	}
	segments_committed(&t->seg, commit);
	shares_committed(t);
	atomic_store(&t->commit, commit);
	txn_publish(t);
	if (commit % 64 == 0) {
		tier_count_kv(t);
		atomic_store(&t->loss.kv_check, true);
	}
}

void txn_abort(struct tier *t)
{
	for (size_t i = 0; i < t->dirty_region_count; i++)
		t->dirty_regions[i].o->regions[t->dirty_regions[i].region].dirty = false;
	for (size_t i = 0; i < t->dirty_object_count; i++) {
		struct tobj *o = t->dirty_objects[i];

		o->counters_next = o->counters;
		o->row_dirty = false;
		if (!o->has_saved)
			continue;
		free(o->header);
		o->header = o->header_saved;
		o->header_len = o->header_saved_len;
		o->header_saved = NULL;
		o->has_saved = false;
	}
	t->dirty_region_count = t->dirty_object_count = 0;
	shares_aborted(t);
	for (unsigned i = 0; i < STREAMS; i++)
		segment_abandon(&t->seg, (enum segment_stream)i);
	segments_aborted(&t->seg);
}

void tier_count_kv(struct tier *t)
{
	t->kv_counted = atomic_load(&t->commit);
	atomic_store(&t->kv_bytes, kv_used_bytes(t->kv));
}

int txn_commit(struct tier *t)
{
	struct meta_row m = {.group = t->group,
			     .group_incarnation = t->group_incarnation,
			     .commit = atomic_load(&t->commit) + 1};
	uint8_t meta[META_VALUE_SIZE];
	bool folded;
	int rc = 0;

	for (unsigned i = 0; i < STREAMS && !rc; i++)
		rc = segment_flush_unit(&t->seg, (enum segment_stream)i);
	if (!rc)
		rc = shares_finish(t);
	if (!rc)
		rc = FAILPOINT(units_written);
	if (!rc && rule(RULE_DATA_FIRST))
		rc = segments_flush_devices(&t->seg);
	if (!rc)
		rc = FAILPOINT(units_flushed);
	if (rc)
		return rc;
	put_regions_and_objects(t);
	folded = put_segments(t, m.commit);
	meta_encode(meta, &m);
	kv_batch_put(t->kv, t->batch, KV_META, META_KEY, strlen(META_KEY), meta, sizeof(meta));
	rc = kv_commit(t->kv, t->batch, true);
	if (rc) {
		/* A table that cannot be read in the background stops all writing. */
		tier_fail(t, rc == -ERR_CORRUPT ? -ERR_MAP_LOST : -ERR_DEVICE, "map commit");
		return rc;
	}
	(void)FAILPOINT(map_committed);
	txn_apply(t, m.commit, folded);
	return 0;
}
