/* SPDX-License-Identifier: Apache-2.0 */
/* The recount: live bytes per segment, regions, folds, counters, references of shares and the
 * ledger from the map pages and share rows, compared with what is kept beside them (I8, I9). It
 * changes nothing. */
#include <stdlib.h>

#include "store/tier_internal.h"

struct recount {
	struct tier *t;
	struct tier_verify *out;
	uint32_t *live[GROUP_DEVICES_MAX];
	struct hmap objects, shares;
	bool data;
};

struct robj {
	struct hnode node;
	uint64_t id;
	struct object_counters counters;
	struct map_region regions[OBJECT_BLOCKS_MAX / REGION_BLOCKS];
};

/* References found in the map. Per volume only for the owner, which is known once the row is read.
 */
struct rshare {
	struct hnode node;
	uint64_t id, refs, fp64;
	struct rshare_volume {
		struct rshare_volume *next;
		uint32_t volume;
		uint64_t refs;
	} * volumes;
	bool row;
};

static void differs(struct recount *r, const char *what, uint64_t a, uint64_t b, uint64_t have,
		    uint64_t want)
{
	r->out->differences++;
	log_error("verify", "recount differs", "what=%s of=%llu/%llu kept=%llx recount=%llx", what,
		  (unsigned long long)a, (unsigned long long)b, (unsigned long long)have,
		  (unsigned long long)want);
}

static struct robj *robj_get(struct recount *r, uint64_t id)
{
	struct robj *o;

	for (struct hnode *n = hmap_first(&r->objects, hash_u64(id)); n; n = hmap_next(n)) {
		o = container_of(n, struct robj, node);
		if (o->id == id)
			return o;
	}
	o = xcalloc(1, sizeof(*o));
	o->id = id;
	hmap_insert(&r->objects, &o->node, hash_u64(id));
	return o;
}

static struct rshare *rshare_get(struct recount *r, uint64_t id)
{
	struct rshare *s;

	for (struct hnode *n = hmap_first(&r->shares, hash_u64(id)); n; n = hmap_next(n)) {
		s = container_of(n, struct rshare, node);
		if (s->id == id)
			return s;
	}
	s = xcalloc(1, sizeof(*s));
	s->id = id;
	hmap_insert(&r->shares, &s->node, hash_u64(id));
	return s;
}

static void recount_ref(struct recount *r, struct robj *o, const struct map_entry *e)
{
	struct rshare *s = rshare_get(r, map_share_id(e->word));
	struct tobj *t = tobj_find(r->t, o->id);
	struct rshare_volume *v = s->volumes;

	if (s->refs && s->fp64 != e->fp64)
		differs(r, "fingerprint of a share's entries", o->id, s->id, s->fp64, e->fp64);
	s->fp64 = e->fp64;
	s->refs++;
	while (v && t && v->volume != t->volume)
		v = v->next;
	if (!v) {
		v = xcalloc(1, sizeof(*v));
		v->volume = t ? t->volume : SHARES_UNOWNED;
		v->next = s->volumes;
		s->volumes = v;
	}
	v->refs++;
}

static void recount_place(struct recount *r, const struct map_entry *e, uint64_t object,
			  uint32_t page);

static void recount_entry(struct recount *r, struct robj *o, const struct map_entry *e,
			  uint32_t page)
{
	unsigned kind = map_entry_kind(e->word), units = map_entry_units(e->word);

	r->out->blocks++;
	if (kind == MAP_ZERO)
		o->counters.zero++;
	else
		o->counters.mapped++;
	o->counters.shared += kind == MAP_SHARE;
	o->counters.damaged += kind == MAP_DAMAGED;
	if (kind == MAP_SHARE)
		recount_ref(r, o, e);
	if (!map_entry_has_place(e->word)) {
		r->out->bad_blocks += kind == MAP_DAMAGED;
		return;
	}
	o->counters.stored += units * 64;
	recount_place(r, e, o->id, page);
}

static void recount_place(struct recount *r, const struct map_entry *e, uint64_t object,
			  uint32_t page)
{
	unsigned units = map_entry_units(e->word);
	struct segment *seg;
	uint32_t id;

	seg = segment_of_word(&r->t->seg, e->word, &id);
	if (!seg || seg->state == SEGMENT_FREE || seg->state == SEGMENT_FREED) {
		differs(r, "an entry names a free segment", object, page, e->word, 0);
		return;
	}
	r->live[id >> SEGMENT_DEVICE_SHIFT][id & ((1u << SEGMENT_DEVICE_SHIFT) - 1)] += units * 64;
	if (r->data && !scrub_entry_good(r->t, e))
		r->out->bad_blocks++;
}

static int recount_pages(struct recount *r)
{
	struct kv_iter *it = kv_iter_range(r->t->kv, KV_MAP, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;

	while (!atomic_load(&r->t->stopping) && kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct map_page p;
		struct robj *o;
		uint64_t object;
		uint32_t page;

		if (!map_key_decode(key, key_len, &object, &page) ||
		    map_page_decode(value, len, key, &p) ||
		    page >= OBJECT_BLOCKS_MAX / PAGE_BLOCKS) {
			differs(r, "a page does not decode", 0, 0, 0, 0);
			continue;
		}
		r->out->pages++;
		o = robj_get(r, object);
		o->regions[page / REGION_PAGES].mask |= 1ull << page % REGION_PAGES;
		o->regions[page / REGION_PAGES].fold ^= store_fold_term(page, p.version);
		for (uint64_t m = p.mask; m; m &= m - 1)
			recount_entry(r, o, &p.entry[__builtin_ctzll(m)], page);
	}
	return kv_iter_close(it);
}

/* ---- Shares ------------------------------------------------------------------------------------
 */

static void recount_share(struct recount *r, uint64_t id, const struct share_row *row)
{
	struct rshare *s = rshare_get(r, id);
	struct map_entry e = {row->word, row->fp.lo};
	struct rshare_volume *v = s->volumes;
	struct tvolume *owner =
		volume_get(r->t, row->owner_refs ? row->owner_volume : SHARES_UNOWNED);

	s->row = true;
	r->out->shares++;
	while (v && v->volume != row->owner_volume)
		v = v->next;
	if (s->refs != row->refs)
		differs(r, "references of a share", id, 0, row->refs, s->refs);
	if ((v ? v->refs : 0) != row->owner_refs)
		differs(r, "owner's references of a share", id, row->owner_volume, row->owner_refs,
			v ? v->refs : 0);
	if (s->refs && s->fp64 != row->fp.lo)
		differs(r, "fingerprint of a share", id, 0, row->fp.lo, s->fp64);
	owner->recount.owned++;
	owner->recount.refs += row->owner_refs;
	if (!map_entry_has_place(row->word)) {
		owner->recount.damaged++;
		r->out->bad_blocks += row->refs;
		return;
	}
	owner->recount.stored += map_entry_units(row->word) * 64;
	if (row->owner_refs == row->refs)
		owner->recount.exclusive += map_entry_units(row->word) * 64;
	if (share_of_place(r->t, row->word) != id)
		differs(r, "the key by place of a share", id, 0, share_of_place(r->t, row->word),
			id);
	recount_place(r, &e, id, 0);
	if (r->data && !scrub_entry_good(r->t, &e))
		r->out->bad_blocks += row->refs;
}

static int recount_shares(struct recount *r)
{
	struct kv_iter *it = kv_iter_range(r->t->kv, KV_SHARE, NULL, 0, NULL, 0);
	uint64_t placed = 0, keys = 0;
	const void *key, *value;
	size_t key_len, len;
	int rc;

	for (struct tvolume *v = atomic_load(&r->t->shares.all); v; v = v->all_next)
		memset(&v->recount, 0, sizeof(v->recount));
	while (kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct share_row row;

		if (key_len != 8 || share_decode(value, len, &row)) {
			differs(r, "a share does not decode", key_len == 8 ? get_be64(key) : 0, 0,
				0, 0);
			continue;
		}
		placed += map_entry_has_place(row.word);
		recount_share(r, get_be64(key), &row);
	}
	rc = kv_iter_close(it);
	if (rc)
		return rc;
	it = kv_iter_range(r->t->kv, KV_SLOC, NULL, 0, NULL, 0);
	while (kv_iter_next(it, &key, &key_len, &value, &len))
		keys++;
	/* Each placed share was found by its key: as many keys, so no other ones. */
	if (keys != placed)
		differs(r, "keys by place", 0, 0, keys, placed);
	for (struct hnode *n = hmap_walk(&r->shares, NULL); n; n = hmap_walk(&r->shares, n))
		if (!container_of(n, struct rshare, node)->row)
			differs(r, "entries name a share that is not there",
				container_of(n, struct rshare, node)->id, 0, 0, 0);
	return kv_iter_close(it);
}

/* Volumes' sums, and that each side of the ledger adds up. */
static void compare_ledger(struct recount *r)
{
	struct share_sums all = {0};
	struct store_stats st = {0};
	struct store_ledger l;
	uint64_t raw;

	for (struct tvolume *v = atomic_load(&r->t->shares.all); v; v = v->all_next) {
		if (memcmp(&v->recount, &v->now, sizeof(v->now)))
			differs(r, "a volume's shares", v->id, 0, v->now.owned, v->recount.owned);
		all.owned += v->recount.owned;
		all.damaged += v->recount.damaged;
		all.stored += v->recount.stored;
		all.exclusive += v->recount.exclusive;
		all.refs += v->recount.refs;
		if (!tier_volume_ledger(r->t, v->id, &l))
			continue;
		if (l.logical_bytes != l.zero_bytes + l.dedup_saved_bytes +
					       l.compression_saved_bytes + l.stored_bytes +
					       l.damaged_bytes)
			differs(r, "ledger of a volume", v->id, 0, l.logical_bytes, 0);
	}
	if (memcmp(&all, &r->t->shares.sums, sizeof(all)))
		differs(r, "shares in all", 0, 0, r->t->shares.sums.owned, all.owned);
	tier_ledger(r->t, &l);
	tier_stats(r->t, &st);
	if (l.commit != tier_kv_commit(r->t) || l.stored_bytes != r->t->seg.live ||
	    l.logical_bytes != l.zero_bytes + l.dedup_saved_bytes + l.compression_saved_bytes +
				       l.stored_bytes + l.damaged_bytes)
		differs(r, "ledger of the group", l.commit, 0, l.stored_bytes, r->t->seg.live);
	raw = st.data_used_bytes + st.padding_bytes + st.summary_bytes + st.dead_bytes +
	      st.free_bytes + st.reserve_bytes + st.lost_bytes;
	if (raw != st.data_bytes || st.dead_bytes > st.data_bytes)
		differs(r, "raw side of the ledger", 0, 0, st.data_bytes, raw);
}

static void compare_object(struct recount *r, const struct tobj *o, const struct robj *have)
{
	if (o->counters.mapped != have->counters.mapped)
		differs(r, "mapped", o->id, 0, o->counters.mapped, have->counters.mapped);
	if (o->counters.zero != have->counters.zero)
		differs(r, "zero", o->id, 0, o->counters.zero, have->counters.zero);
	if (o->counters.stored != have->counters.stored)
		differs(r, "stored", o->id, 0, o->counters.stored, have->counters.stored);
	if (o->counters.shared != have->counters.shared)
		differs(r, "shared", o->id, 0, o->counters.shared, have->counters.shared);
	if (o->counters.damaged != have->counters.damaged)
		differs(r, "damaged", o->id, 0, o->counters.damaged, have->counters.damaged);
	for (uint32_t i = 0; i < ARRAY_LEN(have->regions); i++) {
		struct map_region none = {0};
		const struct map_region *k = i < o->region_count ? &o->regions[i].now : &none;

		if (k->mask != have->regions[i].mask)
			differs(r, "region mask", o->id, i, k->mask, have->regions[i].mask);
		if (k->fold != have->regions[i].fold)
			differs(r, "region fold", o->id, i, k->fold, have->regions[i].fold);
	}
}

static void space_add(struct segment_space *s, const struct segment *seg)
{
	if (!seg->used)
		return;
	s->segments++;
	s->summaries += seg->used_summaries;
	s->padding += seg->used_padding;
	s->tail += seg->used_tail;
}

static void compare(struct recount *r)
{
	struct tier *t = r->t;
	uint64_t logical = 0, live = 0;
	struct segment_space space = {0};

	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		compare_object(r, o, robj_get(r, o->id));
		logical += o->counters.mapped + o->counters.zero;
	}
	for (struct hnode *n = hmap_walk(&r->objects, NULL); n; n = hmap_walk(&r->objects, n))
		if (!tobj_find(t, container_of(n, struct robj, node)->id))
			differs(r, "pages of no object", container_of(n, struct robj, node)->id, 0,
				0, 0);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		for (uint32_t i = 0; i < t->seg.dev[d].count; i++) {
			if (t->seg.dev[d].seg[i].live != r->live[d][i])
				differs(r, "live bytes", d, i, t->seg.dev[d].seg[i].live,
					r->live[d][i]);
			live += r->live[d][i];
			space_add(&space, &t->seg.dev[d].seg[i]);
		}
	}
	if (memcmp(&space, &t->seg.space, sizeof(space)))
		differs(r, "space beside live bytes", 0, 0, t->seg.space.padding, space.padding);
	if (live != t->seg.live)
		differs(r, "live bytes in all", 0, 0, t->seg.live, live);
	if (logical != t->totals.mapped + t->totals.zero)
		differs(r, "logical blocks", 0, 0, t->totals.mapped + t->totals.zero, logical);
	compare_ledger(r);
}

int tier_verify(struct tier *t, bool data, struct tier_verify *out)
{
	struct recount r = {.t = t, .out = out, .data = data};
	struct hnode *n;
	int rc;

	memset(out, 0, sizeof(*out));
	hmap_init(&r.objects);
	hmap_init(&r.shares);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		r.live[d] = xcalloc(t->seg.dev[d].count + 1, sizeof(uint32_t));
	pthread_mutex_lock(&t->commit_lock);
	rc = recount_pages(&r);
	if (!rc)
		rc = recount_shares(&r);
	if (atomic_load(&t->stopping))
		rc = -ERR_CLOSED;
	if (!rc)
		compare(&r);
	pthread_mutex_unlock(&t->commit_lock);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		free(r.live[d]);
	while ((n = hmap_take(&r.objects)))
		free(container_of(n, struct robj, node));
	while ((n = hmap_take(&r.shares))) {
		struct rshare *s = container_of(n, struct rshare, node);

		for (struct rshare_volume *v; (v = s->volumes);) {
			s->volumes = v->next;
			free(v);
		}
		free(s);
	}
	hmap_fini(&r.objects);
	hmap_fini(&r.shares);
	return rc ? rc : out->differences ? -ERR_CORRUPT : 0;
}

int tier_verify_all(struct tier *t, bool data, struct store_verify *out)
{
	struct tier_verify v;
	int rc = tier_verify(t, data, &v);

	*out = (struct store_verify){.commit = tier_kv_commit(t),
				     .objects = atomic_load(&t->objects_n),
				     .pages = v.pages,
				     .blocks = v.blocks,
				     .shares = v.shares,
				     .bad_blocks = v.bad_blocks,
				     .differences = v.differences};
	return rc;
}
