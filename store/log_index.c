/* SPDX-License-Identifier: Apache-2.0 */
/* See log_index.h. */
#include "store/log_index.h"

#include <string.h>

#include "node/base/rules.h"
#include "store/store_impl.h"

static uint64_t page_hash(const struct store_object *o, uint32_t page)
{
	return hash_u64((uintptr_t)o * 0x9e3779b97f4a7c15ull + page);
}

struct page_node *page_find(struct shard *sh, const struct store_object *o, uint32_t page)
{
	struct hnode *n = hmap_first(&sh->pages, page_hash(o, page));

	for (; n; n = hmap_next(n)) {
		struct page_node *p = container_of(n, struct page_node, node);

		if (p->object == o && p->page == page)
			return p;
	}
	return NULL;
}

/* ---- Which segment a page holds ---- */

static void page_hold(struct shard *sh, struct page_node *p, uint32_t seg)
{
	struct store *s = sh->store;

	if (p->seg != LOG_NONE && s->segs[p->seg].generation <= s->segs[seg].generation)
		return;
	if (p->seg != LOG_NONE)
		sh->segs[p->seg].live--;
	p->seg = seg;
	sh->segs[seg].live++;
	if (!p->destaging) {
		list_del(&p->seg_link);
		list_push_back(&sh->segs[seg].dirty, &p->seg_link);
	}
}

static void page_unhold(struct shard *sh, struct page_node *p)
{
	list_del(&p->seg_link);
	if (p->seg == LOG_NONE)
		return;
	CHECK(sh->segs[p->seg].live > 0);
	sh->segs[p->seg].live--;
	p->seg = LOG_NONE;
}

static void page_dirty(struct shard *sh, struct page_node *p)
{
	p->dirty_s = (uint32_t)(sh->loop ? loop_turn_us(sh->loop) / 1000000 : 0);
	p->flush = sh->flush_number;
}

static struct page_node *page_new(struct shard *sh, struct store_object *o, uint32_t page)
{
	struct page_node *p = arena_get(&sh->arena, sizeof(*p));

	*p = (struct page_node){
		.object = o, .page = page, .seg = LOG_NONE, .version_pos = LOG_NONE};
	list_init(&p->seg_link);
	list_push_back(&o->pages, &p->object_link);
	o->page_count++;
	sh->dirty_pages++;
	atomic_store_explicit(&sh->dirty_told, sh->dirty_pages, memory_order_relaxed);
	page_dirty(sh, p);
	hmap_insert(&sh->pages, &p->node, page_hash(o, page));
	return p;
}

static void count_blocks(struct shard *sh, int64_t n)
{
	counter_add(&sh->log_blocks, (uint64_t)n);
}

void page_drop(struct shard *sh, struct page_node *p)
{
	unsigned data = 0;

	for (unsigned i = 0; i < p->count; i++)
		data += p->entries[i].kind == MAP_RAW;
	count_blocks(sh, -(int64_t)data);
	page_unhold(sh, p);
	hmap_remove(&sh->pages, &p->node);
	list_del(&p->object_link);
	p->object->page_count--;
	sh->dirty_pages--;
	atomic_store_explicit(&sh->dirty_told, sh->dirty_pages, memory_order_relaxed);
	shard_page_clean(sh, p);
	if (p->bytes)
		arena_put(&sh->arena, p->entries, p->bytes);
	arena_put(&sh->arena, p, sizeof(*p));
}

/* ---- Entries ---- */

static void entry_remove(struct shard *sh, struct page_node *p, unsigned i)
{
	if (p->entries[i].kind == MAP_RAW)
		count_blocks(sh, -1);
	p->entries[i] = p->entries[--p->count];
}

static struct log_entry *entry_add(struct shard *sh, struct page_node *p)
{
	size_t need = (p->count + 1u) * sizeof(struct log_entry);

	/* Entries cover disjoint, non-empty sets of blocks: 64 at most. */
	CHECK(p->count < PAGE_BLOCKS);
	if (need > p->bytes) {
		size_t bytes = arena_round(need);
		struct log_entry *e = arena_get(&sh->arena, bytes);

		if (p->bytes) {
			memcpy(e, p->entries, p->count * sizeof(*e));
			arena_put(&sh->arena, p->entries, p->bytes);
		}
		p->entries = e;
		p->bytes = (uint16_t)bytes;
	}
	return &p->entries[p->count++];
}

static uint64_t entry_mask(const struct log_entry *e)
{
	return e->kind == MAP_RAW ? 1ull << e->index : e->fp;
}

/* Takes from older entries what `mask` covers; returns the part that no newer entry covers. */
static uint64_t cover(struct shard *sh, struct page_node *p, uint64_t mask, uint64_t seq,
		      bool force)
{
	for (unsigned i = 0; i < p->count && mask;) {
		struct log_entry *e = &p->entries[i];
		uint64_t both = entry_mask(e) & mask;

		if (both && e->seq > seq && !force) {
			mask &= ~both;
		} else if (both && (e->kind == MAP_RAW || both == e->fp)) {
			entry_remove(sh, p, i);
			continue;
		} else if (both) {
			e->fp &= ~both;
		}
		i++;
	}
	return mask;
}

static void put_mask(struct shard *sh, struct page_node *p, uint64_t mask, uint8_t kind,
		     uint64_t seq, uint32_t pos, bool force)
{
	struct log_entry *e;

	mask = cover(sh, p, mask, seq, force);
	if (!mask)
		return;
	e = entry_add(sh, p);
	*e = (struct log_entry){.seq = seq, .fp = mask, .pos = pos, .kind = kind};
}

/* Blocks of `mask`, in order, have payload from pos on, with fingerprints from fps on. */
static void put_data(struct shard *sh, struct page_node *p, uint64_t mask, uint64_t seq,
		     uint32_t pos, const struct fp128 *fps, bool force)
{
	uint64_t taken = cover(sh, p, mask, seq, force);

	while (mask) {
		unsigned i = (unsigned)__builtin_ctzll(mask);

		if (taken >> i & 1) {
			*entry_add(sh, p) = (struct log_entry){.seq = seq,
							       .fp = fps->lo,
							       .pos = pos,
							       .index = (uint8_t)i,
							       .kind = MAP_RAW};
			count_blocks(sh, 1);
		}
		mask &= mask - 1;
		pos++;
		fps++;
	}
}

/* ---- Applying records ---- */

static struct page_node *page_for(struct shard *sh, const struct log_tail *t, uint32_t page,
				  bool *fresh)
{
	struct page_node *p = page_find(sh, t->object, page);

	*fresh = !p;
	if (p)
		return p;
	p = page_new(sh, t->object, page);
	p->unchecked = t->recovered;
	return p;
}

static void page_took(struct shard *sh, struct page_node *p, const struct log_tail *t)
{
	page_hold(sh, p, pos_seg(sh->store, t->pos));
	if (t->batch > p->batch)
		p->batch = t->batch;
	if (version_cmp(p->version, t->r.version) < 0 || t->r.kind == RECORD_COPY) {
		p->version = t->r.version;
		p->version_pos = t->pos;
	}
}

/* What is here is of a history that was given up (force), and may have higher numbers than what comes now,
 * from `seq` on: that lies over it. No lower, or what the map has from before would lie over it, too. */
static void page_outlived(struct page_node *p, uint64_t seq)
{
	for (unsigned i = 0; i < p->count; i++)
		p->entries[i].seq = MIN(p->entries[i].seq, seq);
	p->copy_seq = 0;
	p->copied |= p->destaging; /* its end says nothing of what comes now */
}

static void apply_copy(struct shard *sh, const struct log_tail *t)
{
	const struct record *r = &t->r;
	bool fresh;
	struct page_node *p = page_for(sh, t, r->block / PAGE_BLOCKS, &fresh);
	struct version was = p->version;
	/* Y3: live, in stream order, without comparing; in a replay, too, where the page is of a history that
	 * was given up: numbers of two histories do not compare. */
	bool force = !t->recovered || !epochs_hold(&t->object->h, was);

	if (force) {
		/* That history may have left higher numbers behind; from here on the page stands at the
		 * copy's version, and what follows must win over all that is in it. */
		for (unsigned i = 0; i < p->count; i++)
			p->entries[i].seq = MIN(p->entries[i].seq, r->version.seq);
		p->base_known = false;
	}
	put_data(sh, p, r->copy_data, r->version.seq, t->pos, t->fps, force);
	put_mask(sh, p, r->copy_zero, MAP_ZERO, r->version.seq, t->pos, force);
	put_mask(sh, p, r->copy_hole, MAP_HOLE, r->version.seq, t->pos, force);
	put_mask(sh, p, r->copy_damaged, MAP_DAMAGED, r->version.seq, t->pos, force);
	if (p->copy_seq < r->version.seq || force)
		p->copy_seq = r->version.seq;
	p->copied = true;
	page_took(sh, p, t);
	if (!force && version_cmp(was, p->version) > 0)
		p->version = was; /* Y4 */
}

void index_apply(struct shard *sh, const struct log_tail *t)
{
	const struct record *r = &t->r;
	uint32_t b = r->block, end = r->block + r->blocks, pos = t->pos;
	const struct fp128 *fps = t->fps;

	if (r->kind == RECORD_COPY) {
		apply_copy(sh, t);
		return;
	}
	for (unsigned i = 0; b < end; i++) {
		uint32_t stop = MIN(end, (b | (PAGE_BLOCKS - 1)) + 1);
		unsigned n = stop - b;
		uint64_t mask = (n == PAGE_BLOCKS ? ~0ull : (1ull << n) - 1) << b % PAGE_BLOCKS;
		bool fresh, skip = r->skip_mask >> i & 1;
		struct page_node *p;

		if (!skip) {
			p = page_for(sh, t, b / PAGE_BLOCKS, &fresh);
			if (r->version.seq <= p->version.seq && !epochs_hold(&t->object->h, p->version))
				page_outlived(p, r->version.seq);
			if (r->version.seq > p->copy_seq &&
			    !(p->base_known && version_cmp(r->version, p->base) <= 0)) {
				if (r->kind == RECORD_WRITE)
					put_data(sh, p, mask, r->version.seq, pos, fps, false);
				else
					put_mask(sh, p, mask,
						 r->kind == RECORD_ZEROES ? MAP_ZERO : MAP_HOLE,
						 r->version.seq, t->pos, false);
				page_took(sh, p, t);
			}
			if (r->kind == RECORD_WRITE) {
				pos += n;
				fps += n;
			}
		} else if (!rule(RULE_SKIPPED)) {
			page_took(sh, page_for(sh, t, b / PAGE_BLOCKS, &fresh), t);
		}
		b = stop;
	}
}

/* ---- Against the map ---- */

/* The oldest segment among what is left; the page goes back into its dirty list. */
static void rehold(struct shard *sh, struct page_node *p, bool version_too)
{
	uint32_t seg = version_too ? pos_seg(sh->store, p->version_pos) : LOG_NONE;

	for (unsigned i = 0; i < p->count; i++) {
		uint32_t s = pos_seg(sh->store, p->entries[i].pos);

		if (seg == LOG_NONE ||
		    sh->store->segs[s].generation < sh->store->segs[seg].generation)
			seg = s;
	}
	page_unhold(sh, p);
	page_hold(sh, p, seg);
}

/* Drops entries that a map page at `version` has. Equal ones stay if keep_equal. */
static struct page_node *drop_upto(struct shard *sh, struct page_node *p, struct version version,
				   bool keep_equal)
{
	bool newer;

	for (unsigned i = 0; i < p->count;) {
		uint64_t seq = p->entries[i].seq;

		if (seq < version.seq || (seq == version.seq && !keep_equal))
			entry_remove(sh, p, i);
		else
			i++;
	}
	newer = version_cmp(p->version, version) > 0 || (keep_equal && p->copied);
	if (!p->count && !newer) {
		page_drop(sh, p);
		return NULL;
	}
	if (version_cmp(p->version, version) < 0)
		p->version = version;
	rehold(sh, p, newer);
	return p;
}

/* The log's page is of a history that was given up, and the map's came after it. */
static bool outlived_by(const struct store_object *o, struct version version, const struct map_page *map)
{
	return !epochs_hold(&o->h, version) && version_cmp(version, map->version) < 0;
}

struct page_node *page_check(struct shard *sh, struct page_node *p, const struct map_page *map)
{
	if (!p->unchecked || p->destaging)
		return p;
	p->unchecked = false;
	p->base_known = true;
	p->base = map->version;
	if (!map->version.seq || !rule(RULE_REPLAY))
		return p;
	if (outlived_by(p->object, p->version, map))
		page_outlived(p, 0);
	else if (!epochs_hold(&p->object->h, map->version))
		return p;
	return drop_upto(sh, p, map->version, tier_damage(sh->store->tier, map) != 0);
}

struct page_node *page_destaged(struct shard *sh, struct page_node *p, struct version version)
{
	bool copied = p->copied;

	p->destaging = false;
	p->base_known = true;
	p->base = version;
	if (copied) { /* came in meanwhile: all of it once more */
		rehold(sh, p, true);
	} else {
		p = drop_upto(sh, p, version, false);
	}
	if (p) {
		shard_page_clean(sh, p);
		page_dirty(sh, p);
	}
	return p;
}

void page_destage_failed(struct shard *sh, struct page_node *p)
{
	p->destaging = false;
	list_push_back(&sh->segs[p->seg].dirty, &p->seg_link);
}

void page_view(const struct page_node *p, struct page_view *v)
{
	memset(v->kind, VIEW_NONE, sizeof(v->kind));
	v->version = p ? p->version : (struct version){0};
	for (unsigned i = 0; p && i < p->count; i++) {
		const struct log_entry *e = &p->entries[i];

		for (uint64_t m = entry_mask(e); m; m &= m - 1) {
			unsigned b = (unsigned)__builtin_ctzll(m);

			v->kind[b] = e->kind;
			v->seq[b] = e->seq;
			v->fp[b] = e->fp;
			v->pos[b] = e->pos;
		}
	}
}

void page_view_prune(const struct store_object *o, struct page_view *v, const struct map_page *map,
		     bool damaged)
{
	bool outlived = outlived_by(o, v->version, map);

	if (!outlived && !epochs_hold(&o->h, map->version))
		return;
	for (unsigned b = 0; b < PAGE_BLOCKS; b++)
		if (v->kind[b] != VIEW_NONE &&
		    (outlived || v->seq[b] < map->version.seq || (v->seq[b] == map->version.seq && !damaged)))
			v->kind[b] = VIEW_NONE;
}
