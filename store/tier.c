/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, starting and stopping a capacity tier. It must never open a map that has lost synced
 * commits, nor one that belongs to another group: then it says -ERR_MAP_LOST and touches nothing.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "node/base/rules.h"
#include "store/prepare.h"
#include "store/tier_internal.h"

/* ---- Loading -----------------------------------------------------------------------------------
 */

/* rc: what reading said. Only what was read and is wrong, or is not there, counts as lost; a database
 * that cannot be read just now is not. */
static int map_lost(int rc, const char *why)
{
	if (rc && rc != -ERR_CORRUPT && rc != -ERR_NOT_FOUND && rc != -ERR_LIMIT) {
		log_error("tier", "the map database cannot be read", "why=\"%s\" error=%s", why,
			  err_name(rc));
		return rc;
	}
	log_error("tier", "the map database cannot be used; it counts as lost", "why=\"%s\"", why);
	return -ERR_MAP_LOST;
}

static int load_meta(struct tier *t)
{
	uint8_t value[META_VALUE_SIZE];
	struct meta_row m;
	size_t len;
	int rc = kv_get(t->kv, KV_META, META_KEY, strlen(META_KEY), value, sizeof(value), &len);

	if (!rc)
		rc = meta_decode(value, len, &m);
	if (rc == -ERR_VERSION)
		return rc;
	if (rc)
		return map_lost(rc, "the commit number is missing or damaged");
	if (!uuid_equal(&m.group, &t->group))
		return map_lost(0, "it belongs to another group");
	/* An older incarnation's map was kept (log lost) if nothing newer was ever written, see
	 * below. */
	if (m.group_incarnation > t->group_incarnation)
		return map_lost(0, "it belongs to a later incarnation of the group");
	t->map_incarnation = m.group_incarnation;
	atomic_store(&t->commit, m.commit);
	t->seg.kv_commit = m.commit;
	return 0;
}

static int load_segments(struct tier *t)
{
	struct kv_iter *it = kv_iter_range(t->kv, KV_SEG, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	int rc = 0, rc2;

	/* Checkpoints sort before deltas, deltas by commit. */
	t->delta_first = atomic_load(&t->commit) + 1;
	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		if (key_len == 9)
			t->delta_first = MIN(t->delta_first, get_be64((const uint8_t *)key + 1));
		rc = segment_rows_apply(&t->seg, value, len);
	}
	rc2 = kv_iter_close(it);
	if (rc || rc2)
		return map_lost(rc ? rc : rc2, "the segment table does not decode");
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++) {
		uint32_t chunks = t->seg.dev[d].count / SEGMENT_CHUNK + 1;

		t->chunk_dirty[d] = xmalloc(chunks);
		/* Which chunks the deltas touched is not known: the next checkpoint writes all. */
		memset(t->chunk_dirty[d], 1, chunks);
	}
	segments_scan(&t->seg);
	segments_settle(&t->seg);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		if (t->seg.dev[d].lost)
			t->loss.lost |= 1u << d;
	t->loss.walking = t->loss.lost != 0;
	t->loss.walk_wanted = t->loss.lost != 0;
	return 0;
}

static int check_commit(struct tier *t)
{
	uint64_t commit = atomic_load(&t->commit);
	uint64_t seen = MAX(t->log_kv_commit, t->seg.header_kv_commit);

	if (t->seg.header_incarnation > t->map_incarnation)
		return map_lost(0, "segments were written by a later incarnation of the group");
	if (commit >= seen || !rule(RULE_KV_COMMIT))
		return 0;
	log_error("tier", "the map database has lost commits that log or segments know of",
		  "commit=%llu log=%llu segments=%llu", (unsigned long long)commit,
		  (unsigned long long)t->log_kv_commit,
		  (unsigned long long)t->seg.header_kv_commit);
	return -ERR_MAP_LOST;
}

static int load_objects(struct tier *t)
{
	struct kv_iter *it = kv_iter_range(t->kv, KV_OBJ, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	int rc = 0, rc2;

	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct object_row row;
		struct tobj *o;

		rc = key_len == OBJECT_KEY_SIZE ? object_row_decode(value, len, get_be64(key), &row)
						: -ERR_CORRUPT;
		if (rc)
			break;
		o = tobj_create(t, get_be64(key), row.gen, row.volume);
		o->state = row.state;
		o->flags = o->flags_saved = row.flags;
		o->reduced = row.reduced;
		if (row.flags & OBJECT_REDUCE_LATER)
			t->reduce_wanted = true;
		o->counters = o->counters_next = row.counters;
		o->header = xmalloc(row.header_len + 1);
		memcpy(o->header, row.header, row.header_len);
		o->header_len = row.header_len;
		volume_count(t, o->volume, NULL, &row.counters);
		if (o->state == OBJECT_DELETING) {
			list_push_back(&t->deleting, &o->link);
			atomic_fetch_add(&t->deleting_n, 1);
		}
	}
	rc2 = kv_iter_close(it);
	return rc || rc2 ? map_lost(rc ? rc : rc2, "an object row does not decode") : 0;
}

static int load_regions(struct tier *t)
{
	struct kv_iter *it = kv_iter_range(t->kv, KV_REGION, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	int rc = 0, rc2;

	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		struct map_region r;
		uint32_t index = 0;
		struct tobj *o = NULL;

		rc = key_len == REGION_KEY_SIZE ? region_decode(value, len, &r) : -ERR_CORRUPT;
		if (!rc) {
			index = get_be32((const uint8_t *)key + 8);
			o = tobj_find(t, get_be64(key));
		}
		if (rc || !o || index >= OBJECT_BLOCKS_MAX / REGION_BLOCKS) {
			rc = -ERR_CORRUPT;
			break;
		}
		tobj_region(o, index)->now = r;
		if (o->state == OBJECT_LIVE)
			*shard_region(&t->shards[o->id % t->shard_count], o->id, index, true) = r;
	}
	rc2 = kv_iter_close(it);
	return rc || rc2 ? map_lost(rc ? rc : rc2, "a region row does not decode") : 0;
}

/* A kept map takes the new incarnation before any segment is written under it. */
static int adopt(struct tier *t)
{
	struct meta_row m = {.group = t->group,
			     .group_incarnation = t->group_incarnation,
			     .commit = atomic_load(&t->commit)};
	uint8_t value[META_VALUE_SIZE];

	if (t->map_incarnation == t->group_incarnation)
		return 0;
	log_info("tier", "the map is kept under a new incarnation", "from=%u to=%u",
		 t->map_incarnation, t->group_incarnation);
	meta_encode(value, &m);
	kv_batch_clear(t->batch);
	kv_batch_put(t->kv, t->batch, KV_META, META_KEY, strlen(META_KEY), value, sizeof(value));
	return kv_commit(t->kv, t->batch, true);
}

static void publish(struct tier *t)
{
	txn_publish(t);
	tier_count_kv(t);
}

/* ---- Open and close ----------------------------------------------------------------------------
 */

static int load_all(struct tier *t, const struct tier_config *cfg)
{
	int rc = segments_open(&t->seg, cfg->capacity, cfg->capacity_count, &cfg->group,
			       cfg->group_incarnation);

	if (!rc && cfg->check_map)
		rc = kv_check(cfg->metadata_dir);
	if (!rc)
		rc = cfg->as_is ? kv_open_as_is(cfg->metadata_dir, &t->kv)
				: kv_open(cfg->metadata_dir, cfg->read_only, &t->kv);
	if (!rc)
		rc = load_meta(t);
	if (!rc)
		rc = load_segments(t);
	if (!rc)
		rc = check_commit(t);
	if (!rc)
		rc = load_objects(t);
	if (!rc)
		rc = load_regions(t);
	if (!rc) {
		rc = shares_load(t);
		if (rc)
			rc = map_lost(rc, "the rows of the ledger do not decode");
	}
	if (!rc)
		rc = scrub_load(t);
	if (!rc && !cfg->read_only)
		rc = adopt(t);
	if (!rc)
		publish(t);
	return rc;
}

int tier_open(const struct tier_config *cfg, struct tier **out)
{
	struct tier *t = xcalloc(1, sizeof(*t));
	/* The destager has a cache of pages of its own: it reads what it changes. */
	size_t destager_cache = cfg->page_cache_bytes / 4;
	int rc;

	*out = NULL;
	CHECK(cfg->shards && cfg->shards <= SHARDS_MAX);
	t->group = cfg->group;
	t->group_incarnation = cfg->group_incarnation;
	t->log_kv_commit = cfg->log_kv_commit;
	t->damaged = cfg->damaged;
	t->damaged_arg = cfg->damaged_arg;
	t->loss.on_lost = cfg->on_lost;
	t->loss.on_lost_arg = cfg->on_lost_arg;
	t->shard_count = cfg->shards;
	t->page_cache_bytes = cfg->page_cache_bytes;
	t->block_cache_bytes = cfg->block_cache_bytes;
	t->metadata_dir = xstrdup(cfg->metadata_dir);
	t->prepare_threads = cfg->destage_threads ? cfg->destage_threads - 1 : PREPARE_BY_CORES;
	sem_init(&t->more_work, 0, 0);
	pthread_mutex_init(&t->lock, NULL);
	pthread_mutex_init(&t->pace.lock, NULL);
	pthread_mutex_init(&t->commit_lock, NULL);
	pthread_cond_init(&t->more, NULL);
	hmap_init(&t->objects);
	hmap_init(&t->round);
	list_init(&t->deleting);
	shares_init(t, cfg->page_cache_bytes / 16);
	page_cache_init(&t->cache, destager_cache);
	dedup_init(t, cfg->dedup_hint_bytes);
	t->batch = kv_batch_create();
	t->shards = xcalloc(cfg->shards, sizeof(*t->shards));
	for (unsigned i = 0; i < cfg->shards; i++)
		shard_init(t, i, (cfg->page_cache_bytes - destager_cache) / cfg->shards,
			   cfg->block_cache_bytes / cfg->shards);
	rc = load_all(t, cfg);
	if (rc) {
		tier_close(t);
		return rc;
	}
	log_info("tier", "capacity tier opened",
		 "commit=%llu segments=%u free=%u live_bytes=%llu objects=%llu",
		 (unsigned long long)atomic_load(&t->commit), t->seg.total, t->seg.free,
		 (unsigned long long)t->seg.live, (unsigned long long)atomic_load(&t->objects_n));
	*out = t;
	return 0;
}

void tier_close(struct tier *t)
{
	if (!t)
		return;
	CHECK(!t->thread_running);
	for (unsigned i = 0; i < t->shard_count; i++)
		shard_fini(&t->shards[i]);
	free(t->shards);
	for (struct hnode *n = hmap_walk(&t->objects, NULL), *next; n; n = next) {
		next = hmap_walk(&t->objects, n);
		tobj_free(t, container_of(n, struct tobj, node));
	}
	hmap_fini(&t->objects);
	hmap_fini(&t->round);
	page_cache_fini(&t->cache);
	shares_fini(t);
	dedup_fini(t);
	scrub_free(t);
	loss_fini(t);
	segments_close(&t->seg);
	for (unsigned d = 0; d < GROUP_DEVICES_MAX; d++)
		free(t->chunk_dirty[d]);
	free(t->metadata_dir);
	kv_batch_destroy(t->batch);
	kv_close(t->kv);
	free(t->dirty_regions);
	free(t->dirty_objects);
	free(t->gc.window);
	free(t->gc.pages);
	free(t->gc.work);
	free(t->gc.moved);
	free(t->gc.shares);
	sem_destroy(&t->more_work);
	pthread_mutex_destroy(&t->lock);
	pthread_mutex_destroy(&t->pace.lock);
	pthread_mutex_destroy(&t->commit_lock);
	pthread_cond_destroy(&t->more);
	free(t);
}

int tier_start(struct tier *t, struct loop *const *loops, unsigned shards)
{
	int rc;

	CHECK(shards == t->shard_count && !t->started);
	t->prepare = prepare_create(t, t->prepare_threads);
	t->pool = worker_pool_create("map", 2, 0);
	for (unsigned i = 0; i < shards; i++)
		shard_start(&t->shards[i], loops[i]);
	t->started = true;
	dedup_rebuild_start(t);
	rc = pthread_create(&t->thread, NULL, destager_main, t);
	if (rc)
		return -rc;
	t->thread_running = true;
	return 0;
}

/* Loops still run: each ends its lookups and reads, then the threads behind them may go. */
void tier_stop(struct tier *t)
{
	if (!t->started)
		return;
	pace_stop(t);
	atomic_store(&t->stopping, true);
	sem_post(&t->more_work);
	if (t->thread_running)
		pthread_join(t->thread, NULL);
	t->thread_running = false;
	prepare_destroy(t->prepare);
	dedup_save(t);
	t->prepare = NULL;
	for (unsigned i = 0; i < t->shard_count; i++) {
		t->shards[i].stop.fn = shard_stop_post;
		loop_post(t->shards[i].loop, &t->shards[i].stop);
	}
	pthread_mutex_lock(&t->lock);
	for (unsigned i = 0; i < t->shard_count; i++)
		while (!atomic_load(&t->shards[i].drained))
			pthread_cond_wait(&t->more, &t->lock);
	pthread_mutex_unlock(&t->lock);
	worker_pool_destroy(t->pool);
	t->pool = NULL;
	t->started = false;
}

uint64_t tier_mono_us(const struct tier *t)
{
	return loop_mono_us(t->shards[0].loop);
}

uint64_t tier_kv_commit(const struct tier *t)
{
	return atomic_load(&t->commit);
}

/* ---- Format ------------------------------------------------------------------------------------
 */

/* Old headers would claim commits that the new map has not made. */
static int wipe_headers(const struct tier_config *cfg)
{
	uint8_t *block = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	int rc = 0;

	for (unsigned d = 0; d < cfg->capacity_count && !rc; d++) {
		struct device *dev = &cfg->capacity[d];

		if (device_failed(dev))
			continue;
		uint64_t n = dev->sb.segment_size ? dev->sb.data_len / dev->sb.segment_size : 0;

		for (uint64_t i = 0; i < n && !rc; i++) {
			uint64_t off = dev->sb.data_start + i * dev->sb.segment_size;
			struct segment_header h;

			rc = device_pread(dev, block, BLOCK_SIZE, off);
			if (rc || segment_header_decode(block, &h) == -ENODATA)
				continue;
			memset(block, 0, BLOCK_SIZE);
			rc = device_pwrite(dev, block, BLOCK_SIZE, off);
		}
		if (!rc)
			rc = device_flush(dev);
	}
	free(block);
	return rc;
}

int tier_format(const struct tier_config *cfg)
{
	struct meta_row m = {
		.group = cfg->group, .group_incarnation = cfg->group_incarnation, .commit = 1};
	uint8_t value[META_VALUE_SIZE];
	struct kv_batch *b;
	struct kv *kv;
	int rc = wipe_headers(cfg);

	if (!rc)
		rc = kv_format(cfg->metadata_dir);
	if (!rc)
		rc = kv_open(cfg->metadata_dir, false, &kv);
	if (rc)
		return rc;
	b = kv_batch_create();
	meta_encode(value, &m);
	kv_batch_put(kv, b, KV_META, META_KEY, strlen(META_KEY), value, sizeof(value));
	rc = kv_commit(kv, b, true);
	kv_batch_destroy(b);
	kv_close(kv);
	return rc;
}

/* ---- Objects, space, numbers -------------------------------------------------------------------
 */

void tier_objects(struct tier *t, void (*fn)(void *arg, const struct tier_object *o), void *arg)
{
	CHECK(!t->started);
	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);
		struct tier_object out = {.id = o->id,
					  .gen = o->gen,
					  .volume = o->volume,
					  .deleting = o->state == OBJECT_DELETING,
					  .header = o->header,
					  .header_len = o->header_len};

		fn(arg, &out);
	}
}

uint64_t tier_free_bytes(const struct tier *t)
{
	uint64_t limit = segments_limit_bytes(&t->seg);
	uint64_t live = atomic_load(&t->live_bytes) - atomic_load(&t->loss.live_bytes);

	return limit > live ? limit - live : 0;
}

bool tier_reclaims(const struct tier *t)
{
	return atomic_load(&t->deleting_n) || atomic_load(&t->requests_open);
}

void tier_stats(const struct tier *t, struct store_stats *out)
{
	struct store_ledger l;
	struct kv_counts kv;

	out->data_bytes = (uint64_t)t->seg.total * t->seg.segment_size;
	out->data_free_bytes = tier_free_bytes(t);
	out->metadata_used_bytes = atomic_load(&t->kv_bytes);
	ledger_cell_read(&t->ledger, &l);
	out->logical_bytes = l.logical_bytes;
	out->zero_bytes = l.zero_bytes;
	out->dedup_saved_bytes = l.dedup_saved_bytes;
	out->compression_saved_bytes = l.compression_saved_bytes;
	out->damaged_bytes = l.damaged_bytes;
	out->data_used_bytes = l.stored_bytes;
	out->padding_bytes = l.padding_bytes;
	out->summary_bytes = l.summary_bytes;
	out->dead_bytes = l.dead_bytes;
	out->free_bytes = l.free_bytes;
	out->reserve_bytes = l.reserve_bytes;
	out->lost_bytes = atomic_load(&t->loss.free_bytes);
	out->lost_live_bytes = atomic_load(&t->loss.live_bytes);
	out->losses = tier_losses(t);
	out->reduce_bypassed_blocks = atomic_load(&t->bypassed_blocks);
	out->reduce_pending = atomic_load(&t->reduce_wanted);
	out->reduce_redone_blocks = atomic_load(&t->reduced_blocks);
	out->dedup_matched_blocks = atomic_load(&t->dedup.matched_blocks);
	out->dedup_hint_bytes = atomic_load(&t->dedup.hint_bytes);
	out->dedup_hint_budget_bytes = t->dedup.hints.budget_bytes;
	out->dedup_hint_evictions = atomic_load(&t->dedup.evicted_hints);
	out->dedup_false_hints = atomic_load(&t->dedup.false_hints);
	out->page_cache_budget_bytes = t->page_cache_bytes;
	out->block_cache_budget_bytes = t->block_cache_bytes;
	out->objects = atomic_load(&t->objects_n);
	out->destaged_blocks = atomic_load(&t->destaged_blocks);
	out->gc_blocks = atomic_load(&t->gc_blocks);
	out->data_written_bytes = atomic_load(&t->written_bytes);
	out->moved_bytes = atomic_load(&t->moved_bytes);
	out->device_written_bytes = out->data_written_bytes + out->moved_bytes;
	kv_counts(t->kv, &kv);
	out->map_cpu_us = kv.cpu_us;
	out->map_gets = kv.gets;
	out->map_table_reads = kv.table_reads;
	out->corrupt_blocks = atomic_load(&t->corrupt_blocks);
	out->io_errors = atomic_load(&t->io_errors);
	out->data_reads = out->device_read_bytes = out->page_cache_hits = out->page_cache_misses =
		0;
	for (unsigned i = 0; i < t->shard_count; i++) {
		out->page_cache_hits += atomic_load(&t->shards[i].hits);
		out->page_cache_misses += atomic_load(&t->shards[i].misses);
		out->device_read_bytes += atomic_load(&t->shards[i].read_bytes);
		out->data_reads += atomic_load(&t->shards[i].reads);
	}
	if (atomic_load(&t->failed))
		out->failed = atomic_load(&t->failed);
}
