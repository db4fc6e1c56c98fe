/* SPDX-License-Identifier: Apache-2.0 */
/* What catch-up compares: page versions, region folds and manifests, the log over the map.
 *
 * Answers are for the moment of the resume: everything appended before it is in them (replication Y2), so
 * the last step of each operation is synchronous, and map pages read earlier count only if nothing of the
 * object was destaged since. A fold that cannot be told exactly is made unequal to any other on purpose:
 * that costs a look at page versions, where a wrongly equal one would cost data. */
#include <stdlib.h>

#include "node/base/err.h"
#include "store/store_impl.h"

enum pages_kind { PAGES_VERSIONS, PAGES_FOLDS, PAGES_MANIFEST };
#define FOLD_BASES 64u

struct pages_op {
	struct wait wait;
	struct wait *owner;
	struct shard *shard;
	struct store_object *object;
	enum pages_kind kind;
	void *op;
	uint32_t next, first, count; /* pages */
	uint64_t destages;           /* of the object when this round began */
	bool must_exist, asked;
	struct tier_page get;
	/* versions */
	struct version versions[REGION_PAGES];
	uint64_t damaged[REGION_PAGES];
	uint64_t lost; /* rows that the region names and the map has not */
	/* folds: pages that the log changes (bit per page from `first`), and of those the tail does */
	uint64_t *touched, *tail;
	struct {
		uint32_t page;
		struct version base;
	} bases[FOLD_BASES];
	unsigned base_count;
};

static bool in_region(struct pages_op *p, uint32_t page)
{
	return tier_region_mask(p->shard->store->tier, p->shard->index, p->object->id,
				page / REGION_PAGES) >>
		       page % REGION_PAGES &
	       1;
}

static bool tail_touches(const struct record *r, uint32_t page)
{
	uint32_t first = r->block / PAGE_BLOCKS, last = (r->block + r->blocks - 1) / PAGE_BLOCKS;

	return page >= first && page <= last && !(r->skip_mask >> (page - first) & 1);
}

/* Newest version of a page in the tail above v. */
static struct version over_tail(const struct store_object *o, uint32_t page, struct version v)
{
	for (struct list *n = o->tail.prev; n != &o->tail; n = n->prev) {
		const struct record *r = &container_of(n, struct log_tail, link)->r;

		if (tail_touches(r, page))
			return version_max(v, r->version);
	}
	return v;
}

/* ---- One page of the map after the other ---- */

static bool wants(struct pages_op *p, uint32_t page)
{
	const struct page_node *n;

	if (p->kind == PAGES_MANIFEST)
		return true;
	if (p->kind == PAGES_VERSIONS)
		return in_region(p, page);
	if (!(p->touched[(page - p->first) / 64] >> (page - p->first) % 64 & 1) ||
	    !in_region(p, page))
		return false;
	n = page_find(p->shard, p->object, page);
	return !n || !n->base_known || n->unchecked;
}

static void got(struct pages_op *p, uint32_t page)
{
	struct page_node *n = page_find(p->shard, p->object, page);
	const struct map_page *map = &p->get.out;
	bool fresh = p->object->destages == p->destages;

	if (n && fresh && !n->destaging) {
		if (n->unchecked && !n->checking)
			n = page_check(p->shard, n, map);
		else if (!n->unchecked && !n->base_known) {
			n->base_known = true;
			n->base = map->version;
		}
	}
	if (p->kind == PAGES_VERSIONS) {
		unsigned i = page - p->first;

		p->versions[i] = map->version;
		p->damaged[i] = tier_damage(p->shard->store->tier, map);
		if (p->must_exist && !map->version.seq)
			p->lost |= 1ull << i;
	} else if (p->kind == PAGES_FOLDS && !n && p->base_count < FOLD_BASES) {
		p->bases[p->base_count].page = page;
		p->bases[p->base_count++].base = map->version;
	}
}

static void begin(struct pages_op *p);
static int finish(struct pages_op *p);
static void pages_resume(struct wait *w, int rc);

static int pages_run(struct pages_op *p, int rc)
{
	for (;;) {
		if (rc == PENDING)
			return rc;
		if (rc == -ERR_CORRUPT && p->asked) {
			memset(&p->get.out, 0, sizeof(p->get.out));
			p->must_exist = true;
			if (p->kind == PAGES_VERSIONS)
				p->lost |= 1ull << (p->next - p->first);
			p->next++; /* its fold stays unknown, its blocks damaged */
		} else if (rc < 0) {
			return rc;
		} else if (p->asked) {
			got(p, p->next++);
		}
		p->asked = false;
		while (p->next < p->first + p->count && !wants(p, p->next))
			p->next++;
		if (p->next == p->first + p->count) {
			rc = finish(p);
			if (rc != -EAGAIN)
				return rc;
			begin(p);
			rc = 0;
			continue;
		}
		p->get.object = p->object->id;
		p->get.page = p->next;
		p->must_exist = in_region(p, p->next);
		p->asked = true;
		rc = tier_page_get(p->shard->store->tier, p->shard->index, &p->get, &p->wait);
	}
}

static void pages_free(struct pages_op *p)
{
	struct shard *sh = p->shard;

	object_put_ref(p->object);
	free(p->touched);
	free(p->tail);
	free(p);
	sh->ops--;
}

static void pages_resume(struct wait *w, int rc)
{
	struct pages_op *p = container_of(w, struct pages_op, wait);
	struct shard *sh = p->shard;
	struct wait *owner = p->owner;

	rc = pages_run(p, rc);
	if (rc == PENDING)
		return;
	pages_free(p);
	wait_resume(owner, rc);
	shard_quiesce(sh);
}

static int pages_start(struct store_object *o, enum pages_kind kind, void *op, uint32_t first,
		       uint32_t count, struct wait *w)
{
	struct shard *sh = o->shard;
	struct pages_op *p;
	int rc;

	if (store_failed(sh->store))
		return store_failed(sh->store);
	if (sh->stopping)
		return -ERR_CLOSED;
	if (!count || first >= OBJECT_BLOCKS_MAX / PAGE_BLOCKS ||
	    count > OBJECT_BLOCKS_MAX / PAGE_BLOCKS - first)
		return -ERR_INVALID;
	p = xcalloc(1, sizeof(*p)); /* catch-up, not the data path */
	p->wait.resume = pages_resume;
	p->owner = w;
	p->shard = sh;
	p->object = o;
	p->kind = kind;
	p->op = op;
	p->first = first;
	p->count = count;
	if (kind == PAGES_FOLDS) {
		p->touched = xcalloc((count + 63) / 64, 8);
		p->tail = xcalloc((count + 63) / 64, 8);
	}
	o->refs++;
	sh->ops++;
	begin(p);
	rc = pages_run(p, 0);
	if (rc != PENDING)
		pages_free(p);
	return rc;
}

/* ---- Folds ---- */

static void mark(struct pages_op *p, uint64_t *bits, uint32_t page)
{
	if (page >= p->first && page < p->first + p->count)
		bits[(page - p->first) / 64] |= 1ull << (page - p->first) % 64;
}

static void mark_touched(struct pages_op *p)
{
	const struct store_folds *op = p->op;
	struct store_object *o = p->object;
	size_t words = (p->count + 63) / 64;

	memset(p->touched, 0, words * 8);
	memset(p->tail, 0, words * 8);
	for (struct list *n = o->pages.next; n != &o->pages; n = n->next)
		mark(p, p->touched, container_of(n, struct page_node, object_link)->page);
	if (!op->uncommitted)
		return;
	for (struct list *n = o->tail.next; n != &o->tail; n = n->next) {
		const struct record *r = &container_of(n, struct log_tail, link)->r;
		uint32_t last = (r->block + r->blocks - 1) / PAGE_BLOCKS;

		for (uint32_t page = r->block / PAGE_BLOCKS; page <= last; page++)
			if (tail_touches(r, page))
				mark(p, p->tail, page);
	}
	for (size_t i = 0; i < words; i++)
		p->touched[i] |= p->tail[i];
}

static void begin(struct pages_op *p)
{
	object_settle(p->object);
	p->next = p->first;
	p->destages = p->object->destages;
	p->base_count = 0;
	p->lost = 0;
	if (p->kind == PAGES_VERSIONS) {
		memset(p->versions, 0, sizeof(p->versions));
		memset(p->damaged, 0, sizeof(p->damaged));
	}
	if (p->kind == PAGES_FOLDS)
		mark_touched(p);
}

/* The version that the tier's fold has for the page now; false: not known. */
static bool fold_base(struct pages_op *p, const struct page_node *n, uint32_t page,
		      struct version *base)
{
	*base = (struct version){0};
	if (!in_region(p, page))
		return true;
	if (n) {
		*base = n->base;
		return n->base_known && !n->unchecked;
	}
	for (unsigned i = 0; i < p->base_count && p->object->destages == p->destages; i++) {
		if (p->bases[i].page != page)
			continue;
		*base = p->bases[i].base;
		return true;
	}
	return false;
}

static int finish_folds(struct pages_op *p)
{
	struct store_folds *op = p->op;
	struct shard *sh = p->shard;

	mark_touched(p);
	for (uint32_t i = 0; i < op->regions; i++) {
		op->folds[i] = tier_region_fold(sh->store->tier, sh->index, p->object->id,
						op->first_region + i);
		/* Y2: pages that are damaged are copied, whatever their version. */
		if (!op->uncommitted && tier_region_lost(sh->store->tier, sh->index, p->object->id,
							 op->first_region + i))
			op->folds[i] ^= rng_next(loop_rng(sh->loop)) | 1;
	}
	for (uint32_t i = 0; i < p->count; i++) {
		uint64_t *fold = &op->folds[i / REGION_PAGES];
		struct version base, now;
		struct page_node *n;

		if (!(p->touched[i / 64] >> i % 64 & 1))
			continue;
		n = page_find(sh, p->object, p->first + i);
		if (!fold_base(p, n, p->first + i, &base)) {
			*fold ^= rng_next(loop_rng(sh->loop)) | 1;
			continue;
		}
		now = n ? n->version : base;
		if (p->tail[i / 64] >> i % 64 & 1)
			now = over_tail(p->object, p->first + i, now);
		if (base.seq)
			*fold ^= store_fold_term(p->first + i, base);
		if (now.seq)
			*fold ^= store_fold_term(p->first + i, now);
	}
	return 0;
}

int store_folds(struct store_object *o, struct store_folds *op, struct wait *w)
{
	op->wait = w;
	if (op->regions > OBJECT_BLOCKS_MAX / REGION_BLOCKS)
		return -ERR_INVALID;
	return pages_start(o, PAGES_FOLDS, op, op->first_region * REGION_PAGES,
			   op->regions * REGION_PAGES, w);
}

/* ---- Versions ---- */

static int finish_versions(struct pages_op *p)
{
	struct store_versions *op = p->op;
	struct store_object *o = p->object;

	op->damaged = p->lost;
	for (unsigned i = 0; i < REGION_PAGES; i++) {
		uint32_t page = p->first + i;
		const struct page_node *n = page_find(p->shard, o, page);
		struct version v = p->versions[i];
		uint64_t bad = p->damaged[i];

		if (n) {
			struct page_view view;

			page_view(n, &view);
			for (unsigned b = 0; b < PAGE_BLOCKS; b++) {
				if (view.kind[b] == MAP_DAMAGED)
					bad |= 1ull << b;
				else if (view.kind[b] != VIEW_NONE)
					bad &= ~(1ull << b);
			}
			v = n->unchecked ? version_max(v, n->version) : n->version;
		}
		if (bad)
			op->damaged |= 1ull << i;
		op->versions[i] = op->uncommitted ? over_tail(o, page, v) : v;
	}
	return 0;
}

int store_page_versions(struct store_object *o, struct store_versions *op, struct wait *w)
{
	op->wait = w;
	if (op->region >= OBJECT_BLOCKS_MAX / REGION_BLOCKS)
		return -ERR_INVALID;
	return pages_start(o, PAGES_VERSIONS, op, op->region * REGION_PAGES, REGION_PAGES, w);
}

/* ---- Manifest ---- */

static int finish_manifest(struct pages_op *p)
{
	struct store_manifest *op = p->op;
	const struct map_page *map = &p->get.out;
	const struct page_node *n = page_find(p->shard, p->object, p->first);
	uint64_t lost = tier_damage(p->shard->store->tier, map);
	struct page_view view;

	page_view(n, &view);
	if (n && n->unchecked)
		page_view_prune(p->object, &view, map, lost != 0);
	op->version = !n             ? map->version
		      : n->unchecked ? version_max(map->version, n->version)
				     : n->version;
	op->data = op->hole = op->zero = op->damaged = 0;
	for (unsigned b = 0; b < PAGE_BLOCKS; b++) {
		unsigned kind = view.kind[b];
		uint64_t bit = 1ull << b;

		op->fp64[b] = view.fp[b];
		if (kind == VIEW_NONE) {
			kind = map->mask & bit ? map->entry[b].word & 7 : MAP_HOLE;
			op->fp64[b] = map->entry[b].fp64;
			if ((p->must_exist && !map->version.seq) || lost & bit)
				kind = MAP_DAMAGED;
		}
		if (kind == MAP_HOLE)
			op->hole |= bit;
		else if (kind == MAP_ZERO)
			op->zero |= bit;
		else if (kind == MAP_DAMAGED)
			op->damaged |= bit;
		else
			op->data |= bit;
		/* Of a damaged block it is known what it should be, if its entry is there. */
		if (!((op->data | op->damaged) & bit))
			op->fp64[b] = 0;
	}
	return 0;
}

int store_manifest(struct store_object *o, struct store_manifest *op, struct wait *w)
{
	op->wait = w;
	return pages_start(o, PAGES_MANIFEST, op, op->page, 1, w);
}

static int finish(struct pages_op *p)
{
	object_settle(p->object);
	if (p->kind == PAGES_FOLDS)
		return finish_folds(p);
	if (p->object->destages != p->destages)
		return -EAGAIN; /* map pages may be older than what was dropped from the log */
	return p->kind == PAGES_VERSIONS ? finish_versions(p) : finish_manifest(p);
}
