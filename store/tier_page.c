/* SPDX-License-Identifier: Apache-2.0 */
/* A shard's view of the map: region table, page cache and lookups through the blocking pool. It
 * must never answer with a page older than one that tier_destaged has brought: a lookup that such a
 * page overtakes is made again. */
#include <stdlib.h>

#include "node/base/rules.h"
#include "store/tier_internal.h"

static uint64_t page_hash(uint64_t object, uint32_t page)
{
	return hash_u64(object * 0x9e3779b97f4a7c15ull + page);
}

/* ---- Regions -----------------------------------------------------------------------------------
 */

struct shard_object *shard_object_get(struct tier_shard *s, uint64_t object, bool create)
{
	struct shard_object *o;

	for (struct hnode *n = hmap_first(&s->objects, hash_u64(object)); n; n = hmap_next(n)) {
		o = container_of(n, struct shard_object, node);
		if (o->id == object)
			return o;
	}
	if (!create)
		return NULL;
	o = xcalloc(1, sizeof(*o));
	o->id = object;
	hmap_insert(&s->objects, &o->node, hash_u64(object));
	return o;
}

/* NULL: nothing there, unless create. */
struct map_region *shard_region(struct tier_shard *s, uint64_t object, uint32_t region, bool create)
{
	struct shard_object *o = shard_object_get(s, object, create);

	if (o && region < o->region_count)
		return &o->regions[region];
	if (!create)
		return NULL;
	uint32_t n = MAX(region + 1, o->region_count * 2);

	o->regions = xrealloc(o->regions, n * sizeof(*o->regions));
	memset(o->regions + o->region_count, 0, (n - o->region_count) * sizeof(*o->regions));
	o->region_count = n;
	return &o->regions[region];
}

void shard_object_drop(struct tier_shard *s, uint64_t object)
{
	struct shard_object *o = shard_object_get(s, object, false);

	if (!o)
		return;
	hmap_remove(&s->objects, &o->node);
	free(o->regions);
	free(o);
}

uint64_t tier_region_mask(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	struct map_region *r = shard_region(&t->shards[shard], object, region, false);

	return r ? r->mask : 0;
}

uint64_t tier_region_fold(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	struct map_region *r = shard_region(&t->shards[shard], object, region, false);

	return r ? r->fold : 0;
}

static bool page_exists(struct tier_shard *s, uint64_t object, uint32_t page)
{
	struct map_region *r = shard_region(s, object, page / REGION_PAGES, false);

	return r && r->mask >> page % REGION_PAGES & 1;
}

/* ---- Lookups -----------------------------------------------------------------------------------
 */

static struct fetch *fetch_find(struct tier_shard *s, struct hnode *from, uint64_t object,
				uint32_t page)
{
	for (struct hnode *n = from; n; n = hmap_next(n)) {
		struct fetch *f = container_of(n, struct fetch, node);

		if (f->object == object && f->page == page)
			return f;
	}
	return NULL;
}

static void fetch_start(struct tier_shard *s, struct fetch *f)
{
	f->rc = 0;
	f->stale = f->nocache = false;
	list_push_back(&s->pending, &f->link);
	turn_end_arm(s->loop, &s->pump, TURN_LOG);
}

/* false: no room now. */
static bool fetch_join(struct tier_shard *s, struct tier_page *op)
{
	uint64_t h = page_hash(op->object, op->page);
	struct fetch *f =
		op->fresh ? NULL : fetch_find(s, hmap_first(&s->fetches, h), op->object, op->page);

	if (!f) {
		f = pool_get(&s->fetch_pool);
		if (!f)
			return false;
		f->object = op->object;
		f->page = op->page;
		f->fresh = op->fresh;
		list_init(&f->waiters);
		hmap_insert(&s->fetches, &f->node, h);
		fetch_start(s, f);
	}
	list_push_back(&f->waiters, &op->link);
	return true;
}

static void count(_Atomic uint64_t *c)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

int tier_page_get(struct tier *t, unsigned shard, struct tier_page *op, struct wait *w)
{
	struct tier_shard *s = &t->shards[shard];
	int failed = atomic_load(&t->failed);

	op->wait = w;
	if (failed)
		return failed;
	if (s->stopped)
		return -ERR_CLOSED;
	if (!page_exists(s, op->object, op->page)) {
		memset(&op->out, 0, sizeof(op->out));
		return 0;
	}
	if (!op->fresh) {
		const struct page_cache_item *c = page_cache_get(&s->pages, op->object, op->page);

		if (c) {
			count(&s->hits);
			op->out = c->page;
			return 0;
		}
		count(&s->misses);
	}
	if (!fetch_join(s, op))
		list_push_back(&s->fetch_waiters, &op->link);
	return PENDING;
}

/* On a thread of the blocking pool. */
struct fetch_job {
	struct fetch **items;
	const uint8_t (*keys)[MAP_KEY_SIZE];
	const unsigned *which;
};

static void fetch_one(void *arg, unsigned i, int rc, const void *value, size_t len)
{
	struct fetch_job *j = arg;
	struct fetch *f = j->items[j->which[i]];

	f->rc = rc ? rc : map_page_decode(value, len, j->keys[i], &f->out);
}

static int fetch_batch_run(struct work *work)
{
	struct fetch_batch *b = container_of(work, struct fetch_batch, work);
	uint8_t keys[FETCH_BATCH][MAP_KEY_SIZE];
	const void *key[FETCH_BATCH];
	size_t lens[FETCH_BATCH];
	unsigned which[FETCH_BATCH], n = 0;

	/* Items are sorted; one page may be there twice, the database must not be asked so. */
	for (unsigned i = 0; i < b->count; i++) {
		struct fetch *f = b->items[i];

		if (i && f->object == b->items[i - 1]->object && f->page == b->items[i - 1]->page)
			continue;
		map_key_encode(keys[n], f->object, f->page);
		key[n] = keys[n];
		lens[n] = MAP_KEY_SIZE;
		which[n++] = i;
	}
	struct fetch_job j = {b->items, (const uint8_t(*)[MAP_KEY_SIZE])keys, which};

	kv_multi_get(b->shard->t->kv, KV_MAP, key, lens, n, fetch_one, &j);
	for (unsigned i = 1; i < b->count; i++) {
		struct fetch *f = b->items[i], *before = b->items[i - 1];

		if (f->object == before->object && f->page == before->page) {
			f->rc = before->rc;
			f->out = before->out;
		}
	}
	return 0;
}

static int fetch_cmp(const void *a, const void *b)
{
	const struct fetch *x = *(struct fetch *const *)a, *y = *(struct fetch *const *)b;

	if (x->object != y->object)
		return x->object < y->object ? -1 : 1;
	return x->page < y->page ? -1 : x->page > y->page;
}

/* Lookups of a turn go together; while all batches are out they gather. */
static void pump_run(struct turn_end *te)
{
	struct tier_shard *s = container_of(te, struct tier_shard, pump);

	for (unsigned i = 0; i < FETCH_BATCHES && !list_empty(&s->pending); i++) {
		struct fetch_batch *b = &s->batches[i];
		struct list *l;

		if (b->busy)
			continue;
		b->count = 0;
		while (b->count < FETCH_BATCH && (l = list_pop_front(&s->pending)))
			b->items[b->count++] = list_entry(l, struct fetch, link);
		qsort(b->items, b->count, sizeof(b->items[0]), fetch_cmp);
		b->busy = true;
		b->work.run = fetch_batch_run;
		if (worker_submit(s->t->pool, s->loop, &b->work, &b->wait) != PENDING)
			CHECK(!"worker_submit answers later");
	}
}

/* Ends a lookup: everyone gets the page, then the slot serves the next. */
static void fetch_end(struct tier_shard *s, struct fetch *f, int rc)
{
	struct list waiters = LIST_INIT(waiters), *l;

	list_splice_back(&waiters, &f->waiters);
	for (l = waiters.next; l != &waiters; l = l->next)
		list_entry(l, struct tier_page, link)->out = f->out;
	hmap_remove(&s->fetches, &f->node);
	pool_put(&s->fetch_pool, f);
	while ((l = list_pop_front(&s->fetch_waiters))) {
		if (!fetch_join(s, list_entry(l, struct tier_page, link))) {
			list_push_front(&s->fetch_waiters, l);
			break;
		}
	}
	while ((l = list_pop_front(&waiters)))
		wait_resume(list_entry(l, struct tier_page, link)->wait, rc);
}

static void fetch_done(struct tier_shard *s, struct fetch *f)
{
	int rc = f->rc;

	if (!page_exists(s, f->object, f->page)) {
		memset(&f->out, 0, sizeof(f->out)); /* the replica was deleted meanwhile */
		rc = 0;
	} else if (s->stopped) {
		rc = -ERR_CLOSED;
	} else if (f->stale) {
		const struct page_cache_item *c = page_cache_get(&s->pages, f->object, f->page);

		if (!c) {
			fetch_start(s, f);
			return;
		}
		f->out = c->page;
		rc = 0;
	} else if (rc == -ERR_NOT_FOUND && !rule(RULE_REGION)) {
		memset(&f->out, 0, sizeof(f->out));
		rc = 0;
	} else if (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT) {
		log_error("tier", "a map page that exists cannot be read (I11)",
			  "object=%llu page=%u rc=%s", (unsigned long long)f->object, f->page,
			  err_name(rc));
		atomic_fetch_add(&s->t->corrupt_blocks, 1);
		tier_suspect(s->t, s->index, f->object, f->page, 0);
		rc = -ERR_CORRUPT;
	} else if (!rc && !f->nocache) {
		page_cache_put(&s->pages, f->object, f->page, &f->out, 0);
	}
	fetch_end(s, f, rc);
}

static void fetch_batch_done(struct wait *w, int rc)
{
	struct fetch_batch *b = container_of(w, struct fetch_batch, wait);
	struct tier_shard *s = b->shard;
	struct fetch *items[FETCH_BATCH];
	unsigned n = b->count;

	memcpy(items, b->items, n * sizeof(items[0]));
	b->busy = false;
	for (unsigned i = 0; i < n; i++)
		fetch_done(s, items[i]);
	if (!list_empty(&s->pending) && !s->stopped)
		turn_end_arm(s->loop, &s->pump, TURN_LOG);
	shard_check_drained(s);
}

/* ---- What the destager brings ------------------------------------------------------------------
 */

void tier_destaged(struct tier *t, struct destage_batch *b)
{
	struct tier_shard *s = &t->shards[b->shard];

	if (b->rc)
		return;
	for (unsigned i = 0; i < b->page_count; i++) {
		struct destage_page *p = &b->pages[i];
		uint64_t bit = 1ull << p->page % REGION_PAGES;
		struct map_region *r;
		struct hnode *n;

		if (p->skipped)
			continue;
		r = shard_region(s, p->object, p->page / REGION_PAGES, true);
		if (!version_eq(p->old, p->result.version) || !(r->mask & bit)) {
			if (r->mask & bit)
				r->fold ^= store_fold_term(p->page, p->old);
			r->mask |= bit;
			r->fold ^= store_fold_term(p->page, p->result.version);
		}
		page_cache_put(&s->pages, p->object, p->page, &p->result, 0);
		for (n = hmap_first(&s->fetches, page_hash(p->object, p->page)); n;
		     n = hmap_next(n)) {
			struct fetch *f = fetch_find(s, n, p->object, p->page);

			if (!f)
				break;
			f->stale = true;
			n = &f->node;
		}
	}
}

void shard_page_moved(struct tier_shard *s, uint64_t object, uint32_t page)
{
	page_cache_drop(&s->pages, object, page);
	for (struct hnode *n = hmap_first(&s->fetches, page_hash(object, page)); n;
	     n = hmap_next(n)) {
		struct fetch *f = fetch_find(s, n, object, page);

		if (!f)
			break;
		f->nocache = true;
		n = &f->node;
	}
}

/* ---- Life --------------------------------------------------------------------------------------
 */

void shard_init(struct tier *t, unsigned index, size_t page_cache_bytes, size_t block_cache_bytes)
{
	struct tier_shard *s = &t->shards[index];

	s->t = t;
	s->index = index;
	hmap_init(&s->objects);
	hmap_init(&s->fetches);
	list_init(&s->pending);
	list_init(&s->fetch_waiters);
	list_init(&s->read_waiters);
	page_cache_init(&s->pages, page_cache_bytes);
	block_cache_init(&s->blocks, block_cache_bytes);
	fifo_cache_init(&s->shares, sizeof(struct map_entry), page_cache_bytes / 16);
	turn_end_init(&s->pump, pump_run);
}

void shard_start(struct tier_shard *s, struct loop *loop)
{
	s->loop = loop;
	pool_init(&s->fetch_pool, "map lookups", sizeof(struct fetch), FETCHES_MAX);
	pool_init(&s->read_pool, "tier reads", tier_read_op_size(), READS_MAX);
	s->bounce = buf_pool_create(4u << 20);
	hmap_reserve(&s->fetches, FETCHES_MAX);
	for (unsigned i = 0; i < FETCH_BATCHES; i++) {
		s->batches[i].shard = s;
		s->batches[i].wait.resume = fetch_batch_done;
	}
}

void shard_fini(struct tier_shard *s)
{
	for (struct hnode *n = hmap_walk(&s->objects, NULL), *next; n; n = next) {
		next = hmap_walk(&s->objects, n);
		shard_object_drop(s, container_of(n, struct shard_object, node)->id);
	}
	hmap_fini(&s->objects);
	hmap_fini(&s->fetches);
	page_cache_fini(&s->pages);
	block_cache_fini(&s->blocks);
	fifo_cache_fini(&s->shares);
	if (s->bounce) {
		pool_fini(&s->fetch_pool);
		pool_fini(&s->read_pool);
		buf_pool_destroy(s->bounce);
	}
}

void shard_check_drained(struct tier_shard *s)
{
	if (!s->stopped || s->read_pool.used || atomic_load(&s->drained))
		return;
	for (unsigned i = 0; i < FETCH_BATCHES; i++)
		if (s->batches[i].busy)
			return;
	pthread_mutex_lock(&s->t->lock);
	atomic_store(&s->drained, true);
	pthread_cond_broadcast(&s->t->more);
	pthread_mutex_unlock(&s->t->lock);
}

/* From tier_stop, on the shard: what has not begun ends now, what is under way ends by itself. */
void shard_stop_post(struct post *p)
{
	struct tier_shard *s = container_of(p, struct tier_shard, stop);
	struct list *l;

	s->stopped = true;
	while ((l = list_pop_front(&s->pending)))
		fetch_end(s, list_entry(l, struct fetch, link), -ERR_CLOSED);
	while ((l = list_pop_front(&s->fetch_waiters)))
		wait_resume(list_entry(l, struct tier_page, link)->wait, -ERR_CLOSED);
	turn_end_disarm(&s->pump);
	shard_fail_reads(s);
	shard_check_drained(s);
}
