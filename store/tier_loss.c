/* SPDX-License-Identifier: Apache-2.0 */
/* A capacity device that failed, or is not there, and its replacement.
 *
 *   lost:      no I/O, no new segments; its entries stay in the map (it may come back whole at the
 * next opening) and count as damaged wherever one of them is met walk:      finds whose replicas
 * have such entries, and where, and tells their shards; changes nothing replaced:  the operator has
 * given the old one up: its entries become damaged in the map, step by step, and when nothing names
 * it any more the new one takes its place with all segments free
 *
 * It must never let the new device be written while an entry of the old one stands in the map: its
 * bytes would
 * be taken for the old ones' by everything but a fingerprint. */
#include <stdlib.h>

#include "store/tier_internal.h"

#define LOSS_STEP_ROWS  4096u
#define LOSS_STEP_PAGES 256u

/* ---- What is lost: any thread ---- */

static bool place_lost(unsigned lost, uint64_t word)
{
	return map_entry_has_place(word) && lost >> map_entry_device(word) & 1;
}

bool tier_place_lost(const struct tier *t, uint64_t word)
{
	return place_lost(atomic_load_explicit(&t->loss.lost, memory_order_acquire), word);
}

static bool share_lost(const struct tier *t, uint64_t id)
{
	const struct lost_shares *s = atomic_load_explicit(&t->loss.shares, memory_order_acquire);

	return s && id < s->ids &&
	       atomic_load_explicit(&s->bits[id / 64], memory_order_relaxed) >> id % 64 & 1;
}

static bool entry_lost(const struct tier *t, unsigned lost, uint64_t word)
{
	return place_lost(lost, word) ||
	       (map_entry_kind(word) == MAP_SHARE && share_lost(t, map_share_id(word)));
}

uint64_t tier_damage(const struct tier *t, const struct map_page *p)
{
	unsigned lost = atomic_load_explicit(&t->loss.lost, memory_order_acquire);
	uint64_t damage = 0;

	for (uint64_t m = p->mask; m; m &= m - 1) {
		uint64_t word = p->entry[__builtin_ctzll(m)].word;

		if (map_entry_kind(word) == MAP_DAMAGED || (lost && entry_lost(t, lost, word)))
			damage |= m & -m;
	}
	return damage;
}

/* A device that has failed but was not noticed yet counts as not known. */
bool tier_loss_known(const struct tier *t)
{
	unsigned lost = atomic_load_explicit(&t->loss.lost, memory_order_acquire);

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		if (!(lost >> i & 1) && t->seg.dev[i].dev && device_failed(t->seg.dev[i].dev))
			return false;
	return !atomic_load(&t->loss.walking);
}

uint64_t tier_losses(const struct tier *t)
{
	return atomic_load(&t->loss.told);
}

uint64_t tier_object_lost(struct tier *t, unsigned shard, uint64_t object)
{
	const struct shard_object *o = shard_object_get(&t->shards[shard], object, false);

	return o ? o->lost : 0;
}

bool tier_region_lost(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	const struct shard_object *o = shard_object_get(&t->shards[shard], object, false);

	return o && o->lost_regions[region / 64] >> region % 64 & 1;
}

void tier_object_refilled(struct tier *t, unsigned shard, uint64_t object, uint64_t lost)
{
	struct shard_object *o = shard_object_get(&t->shards[shard], object, false);

	if (!o || o->lost != lost)
		return;
	o->lost = 0;
	memset(o->lost_regions, 0, sizeof(o->lost_regions));
}

/* ---- The walk: destager ---- */

struct loss_notice {
	struct post post;
	struct tier *t;
	struct tier_shard *shard;
	uint64_t object, number;
	uint64_t regions[LOST_REGION_WORDS];
};

static void loss_notice_run(struct post *p)
{
	struct loss_notice *n = container_of(p, struct loss_notice, post);
	struct shard_object *o = shard_object_get(n->shard, n->object, false);

	if (o) { /* else it was deleted meanwhile */
		o->lost = n->number;
		for (unsigned i = 0; i < LOST_REGION_WORDS; i++)
			o->lost_regions[i] |= n->regions[i];
	}
	atomic_fetch_add(&n->t->loss.told, 1);
	free(n);
}

/* Object 0: all have been told of. */
static void tell(struct tier *t, unsigned shard, uint64_t object, const uint64_t *regions)
{
	struct loss_notice *n = xcalloc(1, sizeof(*n));

	n->post.fn = loss_notice_run;
	n->t = t;
	n->shard = &t->shards[shard];
	n->object = object;
	n->number = t->loss.number;
	if (regions)
		memcpy(n->regions, regions, sizeof(n->regions));
	loop_post(n->shard->loop, &n->post);
}

static void tell_object(struct tier *t)
{
	struct loss *l = &t->loss;
	bool any = false;

	for (unsigned i = 0; i < LOST_REGION_WORDS; i++)
		any |= l->regions[i] != 0;
	if (any) {
		tell(t, (unsigned)(l->object % t->shard_count), l->object, l->regions);
		l->objects++;
	}
	memset(l->regions, 0, sizeof(l->regions));
}

/* Newly failed devices: their segments go, and the walk begins anew. True: there were some. */
bool loss_notice(struct tier *t)
{
	struct loss *l = &t->loss;
	unsigned lost = 0;

	if (!segments_lose(&t->seg) && !l->walk_wanted)
		return false;
	l->walk_wanted = false;
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		if (t->seg.dev[i].lost)
			lost |= 1u << i;
	atomic_store(&l->walking, true);
	atomic_store_explicit(&l->lost, lost, memory_order_release);
	for (unsigned i = 0; i < STREAMS; i++)
		segment_abandon_lost(&t->seg, (enum segment_stream)i);
	l->number++;
	l->stage = LOSS_SHARES;
	l->started = false;
	l->next_device = 0;
	l->object = l->objects = l->blocks = 0;
	memset(l->key, 0, sizeof(l->key));
	memset(l->regions, 0, sizeof(l->regions));
	txn_publish(t);
	if (t->loss.on_lost)
		t->loss.on_lost(t->loss.on_lost_arg);
	return true;
}

/* The shares whose place is on device d, by their key, from l->key on; calls fn with each id. */
static int shares_walk(struct tier *t, unsigned d, unsigned max,
		       int (*fn)(struct tier *t, uint64_t id), bool *end)
{
	struct loss *l = &t->loss;
	const void *key, *value;
	size_t key_len, len;
	struct kv_iter *it;
	unsigned n = 0;
	int rc = 0, rc2;

	if (get_be32(l->key) >> SEGMENT_DEVICE_SHIFT != d || !l->started) {
		sloc_key_encode(l->key, d << SEGMENT_DEVICE_SHIFT, 0);
		l->started = true;
	}
	*end = true;
	it = kv_iter_range(t->kv, KV_SLOC, l->key, 8, NULL, 0);
	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		if (key_len != 8 || get_be32(key) >> SEGMENT_DEVICE_SHIFT != d)
			break;
		if (n++ == max) {
			memcpy(l->key, key, 8);
			*end = false;
			break;
		}
		if (len == 8)
			rc = fn(t, get_le64(value));
	}
	rc2 = kv_iter_close(it);
	if (*end)
		l->started = false;
	return rc ? rc : rc2;
}

/* A bit for each share there is; those made later are not on a lost device. */
static struct lost_shares *lost_shares_make(struct tier *t)
{
	struct lost_shares *old = atomic_load(&t->loss.shares), *s;
	uint64_t words = t->shares.next_id / 64 + 1;

	s = xcalloc(1, sizeof(*s) + words * sizeof(s->bits[0]));
	s->ids = t->shares.next_id;
	s->older = old;
	for (uint64_t i = 0; old && i < old->ids / 64 + 1; i++)
		atomic_store(&s->bits[i], atomic_load(&old->bits[i]));
	atomic_store_explicit(&t->loss.shares, s, memory_order_release);
	return s;
}

static int note_share(struct tier *t, uint64_t id)
{
	struct lost_shares *s = atomic_load(&t->loss.shares);

	if (!s || id >= s->ids)
		s = lost_shares_make(t);
	if (id < s->ids)
		atomic_fetch_or_explicit(&s->bits[id / 64], 1ull << id % 64, memory_order_relaxed);
	return 0;
}

void loss_fini(struct tier *t)
{
	struct lost_shares *s = atomic_load(&t->loss.shares);

	while (s) {
		struct lost_shares *older = s->older;

		free(s);
		s = older;
	}
}

static void walk_end(struct tier *t)
{
	struct loss *l = &t->loss;

	l->stage = LOSS_IDLE;
	atomic_store(&l->walking, false);
	atomic_store(&l->lost_blocks, l->blocks);
	log_warn("tier", "what stands on lost devices is known", "objects=%llu blocks=%llu",
		 (unsigned long long)l->objects, (unsigned long long)l->blocks);
	for (unsigned i = 0; i < t->shard_count; i++)
		tell(t, i, 0, NULL);
}

static int walk_shares(struct tier *t)
{
	struct loss *l = &t->loss;
	bool end;
	int rc;

	while (l->next_device < GROUP_DEVICES_MAX && !t->seg.dev[l->next_device].lost)
		l->next_device++;
	if (l->next_device == GROUP_DEVICES_MAX) {
		l->stage = LOSS_PAGES;
		memset(l->key, 0, sizeof(l->key));
		return 0;
	}
	rc = shares_walk(t, l->next_device, LOSS_STEP_ROWS, note_share, &end);
	if (!rc && end)
		l->next_device++;
	return rc;
}

static int walk_pages(struct tier *t)
{
	struct loss *l = &t->loss;
	unsigned lost = atomic_load(&l->lost), rows = 0;
	struct map_page *p = xmalloc(sizeof(*p));
	struct kv_iter *it = kv_iter_range(t->kv, KV_MAP, l->key, sizeof(l->key), NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	bool end = true;
	int rc;

	while (kv_iter_next(it, &key, &key_len, &value, &len)) {
		uint64_t object, n = 0;
		uint32_t page;

		if (rows++ == LOSS_STEP_ROWS) {
			memcpy(l->key, key, MAP_KEY_SIZE);
			end = false;
			break;
		}
		if (!map_key_decode(key, key_len, &object, &page) ||
		    map_page_decode(value, len, key, p))
			continue; /* damage of another kind */
		if (object != l->object) {
			tell_object(t);
			l->object = object;
		}
		for (uint64_t m = p->mask; m; m &= m - 1)
			n += entry_lost(t, lost, p->entry[__builtin_ctzll(m)].word);
		l->blocks += n;
		if (n && page / REGION_PAGES < LOST_REGION_WORDS * 64)
			l->regions[page / REGION_PAGES / 64] |= 1ull << page / REGION_PAGES % 64;
	}
	free(p);
	rc = kv_iter_close(it);
	if (!rc && end) {
		tell_object(t);
		walk_end(t);
	}
	return rc;
}

/* ---- Replacement: destager ---- */

static int lose_share(struct tier *t, uint64_t id)
{
	struct tshare *s;
	int rc = share_get(t, id, &s);

	if (rc)
		return rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT ? 0 : rc;
	s->next.word = MAP_DAMAGED;
	s->counted = false;
	t->loss.purge_shares[t->loss.purge_share_count++] = id;
	return 0;
}

static int purge_shares(struct tier *t, unsigned d, bool *end)
{
	struct loss *l = &t->loss;
	int rc;

	l->purge_share_count = 0;
	txn_begin(t);
	rc = shares_walk(t, d, LOSS_STEP_PAGES, lose_share, end);
	if (!rc && l->purge_share_count)
		rc = txn_commit(t);
	if (!rc)
		tell_shards(t, NULL, 0, l->purge_shares, l->purge_share_count);
	return rc;
}

static void purge_page(struct tier *t, struct work_page *w, unsigned d)
{
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		struct map_entry old = w->page->entry[i];

		if (!(w->page->mask >> i & 1) || !place_lost(1u << d, old.word))
			continue;
		txn_entry_clear(t, w, i);
		w->page->entry[i] = (struct map_entry){MAP_DAMAGED, old.fp64};
		txn_entry_set(t, w, i, MAP_DAMAGED, 1);
	}
	if (w->changed)
		txn_page(t, w);
}

/* The next pages with entries of device d; each becomes one of the commit. */
static unsigned purge_collect(struct tier *t, unsigned d, struct work_page *work,
			      struct map_page *pages, bool *end, int *rc)
{
	struct loss *l = &t->loss;
	struct kv_iter *it = kv_iter_range(t->kv, KV_MAP, l->key, sizeof(l->key), NULL, 0);
	unsigned n = 0, rows = 0;
	const void *key, *value;
	size_t key_len, len;

	*end = true;
	while (kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct map_page *p = &pages[n];
		uint64_t object;
		uint32_t page;
		bool has = false;
		struct tobj *o;

		if (n == LOSS_STEP_PAGES || rows++ == LOSS_STEP_ROWS) {
			memcpy(l->key, key, MAP_KEY_SIZE);
			*end = false;
			break;
		}
		if (!map_key_decode(key, key_len, &object, &page) ||
		    map_page_decode(value, len, key, p))
			continue;
		for (uint64_t m = p->mask; m && !has; m &= m - 1)
			has = place_lost(1u << d, p->entry[__builtin_ctzll(m)].word);
		o = has ? tobj_find(t, object) : NULL;
		if (o) {
			work[n] = (struct work_page){.o = o, .index = page, .page = p};
			n++;
		}
	}
	*rc = kv_iter_close(it);
	return n;
}

static int purge_pages(struct tier *t, unsigned d, bool *end)
{
	struct work_page *work = xcalloc(LOSS_STEP_PAGES, sizeof(*work));
	struct map_page *pages = xmalloc((LOSS_STEP_PAGES + 1) * sizeof(*pages));
	struct moved_page *moved = xmalloc(LOSS_STEP_PAGES * sizeof(*moved));
	int rc;
	unsigned n = purge_collect(t, d, work, pages, end, &rc);

	txn_begin(t);
	if (!rc)
		rc = txn_load(t, work, n);
	for (unsigned i = 0; i < n && !rc; i++)
		purge_page(t, &work[i], d);
	if (!rc && n)
		rc = txn_commit(t);
	for (unsigned i = 0; i < n && !rc; i++) {
		page_cache_put(&t->cache, work[i].o->id, work[i].index, work[i].page,
			       work[i].operands);
		moved[i] = (struct moved_page){work[i].o->id, work[i].index};
	}
	if (!rc && n)
		tell_shards(t, moved, n, NULL, 0);
	free(work);
	free(pages);
	free(moved);
	return rc;
}

/* Nothing names the old one: the new one's segments are free, durably, and it may be written. */
static int take_device(struct tier *t, struct tier_replace *r)
{
	struct segment_device *d = &t->seg.dev[r->index];
	uint32_t old = d->count;
	int rc;

	if (t->gc.active && t->gc.victim >> SEGMENT_DEVICE_SHIFT == r->index)
		t->gc.active = false;
	dedup_forget_device(t, r->index);
	t->scrub.in_segment = false;
	device_swap(d->dev, r->device);
	segments_renew(&t->seg, r->index);
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		uint32_t chunks = t->seg.dev[i].count / SEGMENT_CHUNK + 1;

		free(t->chunk_dirty[i]);
		t->chunk_dirty[i] = xmalloc(chunks);
		memset(t->chunk_dirty[i], 1, chunks);
	}
	txn_begin(t);
	t->loss.fold_now =
		true; /* rows of segments that are no more go with the deltas, and these: */
	for (uint32_t c = d->count / SEGMENT_CHUNK + 1; c <= old / SEGMENT_CHUNK; c++) {
		uint8_t key[5] = {1};

		put_be32(key + 1, (r->index << SEGMENT_DEVICE_SHIFT) / SEGMENT_CHUNK + c);
		kv_batch_delete(t->kv, t->batch, KV_SEG, key, sizeof(key));
	}
	rc = txn_commit(t);
	if (!rc)
		rc = r->publish(r->arg);
	if (rc) {
		device_fail(d->dev, -ERR_DEVICE, "replacement", 0);
		return rc;
	}
	atomic_fetch_and_explicit(&t->loss.lost, ~(1u << r->index), memory_order_release);
	atomic_store(&t->loss.lost_blocks, 0);
	txn_publish(t);
	return 0;
}

static void replace_end(struct tier *t, struct tier_replace *r, int rc)
{
	if (t->loss.stage == PURGE_SHARES || t->loss.stage == PURGE_PAGES)
		t->loss.stage = LOSS_IDLE;
	atomic_store(&t->loss.replace, NULL);
	r->rc = rc;
	sem_post(&r->done);
}

static void replace_step(struct tier *t, struct tier_replace *r)
{
	struct loss *l = &t->loss;
	bool end = false;
	int rc = 0;

	if (!t->seg.dev[r->index].lost) {
		replace_end(t, r, -ERR_BUSY);
		return;
	}
	if (l->stage != PURGE_SHARES && l->stage != PURGE_PAGES) {
		l->stage = PURGE_SHARES;
		l->started = false;
		memset(l->key, 0, sizeof(l->key));
	}
	pthread_mutex_lock(&t->commit_lock);
	if (l->stage == PURGE_SHARES) {
		rc = purge_shares(t, r->index, &end);
		if (end) {
			l->stage = PURGE_PAGES;
			memset(l->key, 0, sizeof(l->key));
		}
		end = false;
	} else {
		rc = purge_pages(t, r->index, &end);
		if (!rc && end)
			rc = take_device(t, r);
	}
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	pthread_mutex_unlock(&t->commit_lock);
	if (rc || end)
		replace_end(t, r, rc);
}

int tier_replace(struct tier *t, unsigned index, struct device *device, int (*publish)(void *arg),
		 void *arg)
{
	struct tier_replace r = {.index = index, .device = device, .publish = publish, .arg = arg};
	struct tier_replace *none = NULL;

	if (!t->started)
		return -ERR_CLOSED;
	sem_init(&r.done, 0, 0);
	if (!atomic_compare_exchange_strong(&t->loss.replace, &none, &r)) {
		sem_destroy(&r.done);
		return -ERR_BUSY;
	}
	sem_post(&t->more_work);
	while (sem_wait(&r.done))
		;
	sem_destroy(&r.done);
	return r.rc;
}

/* ---- A step ---- */

bool loss_step(struct tier *t)
{
	struct tier_replace *r = atomic_load(&t->loss.replace);
	int rc = 0;

	if (atomic_load(&t->failed)) {
		if (r)
			replace_end(t, r, atomic_load(&t->failed));
		return false;
	}
	(void)loss_notice(t);
	/* Those who lost blocks hear of it before these become damaged in the map. */
	if (t->loss.stage == LOSS_SHARES)
		rc = walk_shares(t);
	else if (t->loss.stage == LOSS_PAGES)
		rc = walk_pages(t);
	else if (r)
		replace_step(t, r);
	else
		return false;
	if (rc)
		tier_fail(t, -ERR_MAP_LOST, "reading the map");
	return !rc;
}

void loss_end(struct tier *t)
{
	struct tier_replace *r = atomic_load(&t->loss.replace);

	if (r)
		replace_end(t, r, -ERR_CLOSED);
}

void tier_check(struct tier *t)
{
	atomic_store(&t->loss.kv_check, true);
	sem_post(&t->more_work);
}

void tier_device_failed(struct tier *t)
{
	sem_post(&t->more_work);
}
