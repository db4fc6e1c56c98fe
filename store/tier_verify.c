/* SPDX-License-Identifier: Apache-2.0 */
/* The recount: live bytes per segment, regions, folds and counters from the map pages alone, compared
 * with what is kept beside them (I8). It changes nothing. */
#include <stdlib.h>

#include "store/codec.h"
#include "store/tier_internal.h"

struct recount {
	struct tier *t;
	struct tier_verify *out;
	uint32_t *live[GROUP_DEVICES_MAX];
	struct hmap objects;
	bool data;
	uint8_t *block;
};

struct robj {
	struct hnode node;
	uint64_t id;
	struct object_counters counters;
	struct map_region regions[OBJECT_BLOCKS_MAX / REGION_BLOCKS];
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

static bool data_good(struct recount *r, const struct map_entry *e)
{
	uint64_t off = map_entry_offset(e->word), from = round_down(off, BLOCK_SIZE);
	unsigned units = map_entry_units(e->word);
	uint64_t to = round_up(off + units * 64, BLOCK_SIZE);
	uint8_t plain[BLOCK_SIZE], *p = r->block + (off - from);

	if (device_pread(r->t->seg.dev[map_entry_device(e->word)].dev, r->block, to - from, from))
		return false;
	if (map_entry_kind(e->word) == MAP_LZ4) {
		if (codec_decompress(p, units, plain))
			return false;
		p = plain;
	}
	return hash_block(p).lo == e->fp64;
}

static void recount_entry(struct recount *r, struct robj *o, const struct map_entry *e, uint32_t page)
{
	unsigned kind = map_entry_kind(e->word), units = map_entry_units(e->word);
	struct segment *seg;
	uint32_t id;

	r->out->blocks++;
	if (kind == MAP_ZERO)
		o->counters.zero++;
	else
		o->counters.mapped++;
	if (!map_entry_has_place(e->word)) {
		r->out->bad_blocks += kind == MAP_DAMAGED;
		return;
	}
	o->counters.stored += units * 64;
	seg = segment_of_word(&r->t->seg, e->word, &id);
	if (!seg || seg->state == SEGMENT_FREE || seg->state == SEGMENT_FREED) {
		differs(r, "an entry names a free segment", o->id, page, e->word, 0);
		return;
	}
	r->live[id >> SEGMENT_DEVICE_SHIFT][id & ((1u << SEGMENT_DEVICE_SHIFT) - 1)] += units * 64;
	if (r->data && !data_good(r, e))
		r->out->bad_blocks++;
}

static int recount_pages(struct recount *r)
{
	struct kv_iter *it = kv_iter_open(r->t->kv, KV_MAP, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;

	while (kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct map_page p;
		struct robj *o;
		uint64_t object;
		uint32_t page;

		if (!map_key_decode(key, key_len, &object, &page) || map_page_decode(value, len, key, &p) ||
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

static void compare_object(struct recount *r, const struct tobj *o, const struct robj *have)
{
	if (o->counters.mapped != have->counters.mapped)
		differs(r, "mapped", o->id, 0, o->counters.mapped, have->counters.mapped);
	if (o->counters.zero != have->counters.zero)
		differs(r, "zero", o->id, 0, o->counters.zero, have->counters.zero);
	if (o->counters.stored != have->counters.stored)
		differs(r, "stored", o->id, 0, o->counters.stored, have->counters.stored);
	for (uint32_t i = 0; i < ARRAY_LEN(have->regions); i++) {
		struct map_region none = { 0 };
		const struct map_region *k = i < o->region_count ? &o->regions[i].now : &none;

		if (k->mask != have->regions[i].mask)
			differs(r, "region mask", o->id, i, k->mask, have->regions[i].mask);
		if (k->fold != have->regions[i].fold)
			differs(r, "region fold", o->id, i, k->fold, have->regions[i].fold);
	}
}

static void compare(struct recount *r)
{
	struct tier *t = r->t;
	uint64_t logical = 0, live = 0;

	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		compare_object(r, o, robj_get(r, o->id));
		logical += o->counters.mapped + o->counters.zero;
	}
	for (struct hnode *n = hmap_walk(&r->objects, NULL); n; n = hmap_walk(&r->objects, n))
		if (!tobj_find(t, container_of(n, struct robj, node)->id))
			differs(r, "pages of no object", container_of(n, struct robj, node)->id, 0, 0, 0);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		for (uint32_t i = 0; i < t->seg.dev[d].count; i++) {
			if (t->seg.dev[d].seg[i].live != r->live[d][i])
				differs(r, "live bytes", d, i, t->seg.dev[d].seg[i].live, r->live[d][i]);
			live += r->live[d][i];
		}
	}
	if (live != t->seg.live)
		differs(r, "live bytes in all", 0, 0, t->seg.live, live);
	if (logical != t->logical_blocks)
		differs(r, "logical blocks", 0, 0, t->logical_blocks, logical);
}

int tier_verify(struct tier *t, bool data, struct tier_verify *out)
{
	struct recount r = { .t = t, .out = out, .data = data };
	struct hnode *n;
	int rc;

	memset(out, 0, sizeof(*out));
	hmap_init(&r.objects);
	r.block = xalloc_aligned(BLOCK_SIZE, 2 * BLOCK_SIZE);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		r.live[d] = xcalloc(t->seg.dev[d].count + 1, sizeof(uint32_t));
	pthread_mutex_lock(&t->commit_lock);
	rc = recount_pages(&r);
	if (!rc)
		compare(&r);
	pthread_mutex_unlock(&t->commit_lock);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		free(r.live[d]);
	while ((n = hmap_walk(&r.objects, NULL))) {
		hmap_remove(&r.objects, n);
		free(container_of(n, struct robj, node));
	}
	hmap_fini(&r.objects);
	free(r.block);
	return rc ? rc : out->differences ? -ERR_CORRUPT : 0;
}
