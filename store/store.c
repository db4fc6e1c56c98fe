/* SPDX-License-Identifier: Apache-2.0 */
/* A disk group: open, start, stop, close; credits, statistics. Its devices are store_group.c's. */
#include "store/store.h"

#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/failpoint.h"
#include "store/store_impl.h"

#define READS_MAX   1024u
#define GRANT_SHARE 8u /* of what is free: one window gets no more, all others lack what stands in it */
#define GRANT_LEAST (2ull * RECORD_BLOCKS_MAX * STORE_BYTES_PER_BLOCK)

/* ---- Log space ---- */

static int make_segments(struct store *s, unsigned shards)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < s->device_count; i++) {
		const struct superblock *sb = &s->devices[i].sb;
		uint32_t blocks = (uint32_t)(sb->log_segment_size / BLOCK_SIZE), count;

		if (!sb->log_len || device_failed(&s->devices[i]))
			continue;
		count = (uint32_t)(sb->log_len / sb->log_segment_size);
		if ((s->seg_blocks && blocks != s->seg_blocks) ||
		    blocks < 2 * (LOG_BATCH_PAYLOAD_MAX - 1) ||
		    (n + (uint64_t)count) * blocks >= LOG_NONE)
			return -ERR_CORRUPT;
		s->seg_blocks = blocks;
		s->pools[s->pool_count++] = (struct log_pool){
			.device = &s->devices[i], .first = n, .count = count, .free = count};
		n += count;
	}
	if (!n)
		return -ERR_LOG_LOST;
	s->seg_count = n;
	s->segs = xcalloc(n, sizeof(*s->segs));
	s->legacy = xcalloc(n, sizeof(*s->legacy));
	for (unsigned i = 0; i < s->pool_count; i++) {
		struct log_pool *p = &s->pools[i];

		p->lanes = shards / s->pool_count + (i < shards % s->pool_count);
		if (p->count < 4 * p->lanes) {
			log_error("store", "the log is too small for so many shards",
				  "segments=%u shards=%u needed=%u", p->count, p->lanes,
				  4 * p->lanes);
			return -ERR_LIMIT;
		}
		for (uint32_t k = 0; k < p->count; k++)
			s->segs[p->first + k] = (struct log_seg){
				.pool = p,
				.state = SEG_FREE,
				.off = p->device->sb.log_start +
				       (uint64_t)k * p->device->sb.log_segment_size};
	}
	s->log_seed = log_seed(&store_superblock(s)->log, store_superblock(s)->log_incarnation);
	return 0;
}

/* ---- Shards ---- */

static void shard_init(struct store *s, unsigned index)
{
	struct shard *sh = &s->shards[index];

	sh->store = s;
	sh->index = index;
	hmap_init(&sh->objects);
	hmap_init(&sh->pages);
	sh->segs = xcalloc(s->seg_count, sizeof(*sh->segs));
	for (uint32_t i = 0; i < s->seg_count; i++) {
		list_init(&sh->segs[i].dirty);
		list_init(&sh->segs[i].notes);
	}
	list_init(&sh->tails);
	list_init(&sh->flushes);
	list_init(&sh->space_waiters);
	list_init(&sh->pending_headers);
	pool_init(&sh->reads, "reads", store_read_op_size(), READS_MAX);
	sh->queue = xcalloc(s->seg_count + 1, sizeof(*sh->queue));
	sh->headers.bytes = writer_init_heap();
	sh->checks = xcalloc(CHECKS_MAX, sizeof(*sh->checks));
	for (unsigned i = 0; i < CHECKS_MAX; i++)
		sh->checks[i].shard = sh;
	for (unsigned i = 0; i < DESTAGE_BATCHES; i++) {
		struct destage *d = &sh->destages[i];

		d->shard = sh;
		d->nodes = xcalloc(DESTAGE_PAGES, sizeof(*d->nodes));
		d->pages = xcalloc(DESTAGE_PAGES, sizeof(*d->pages));
		d->blocks = xcalloc(DESTAGE_BLOCKS, sizeof(*d->blocks));
	}
	lane_init(&sh->lane, sh);
}

static void shard_fini(struct shard *sh)
{
	struct hnode *n;

	while ((n = hmap_take(&sh->objects))) {
		struct store_object *o = container_of(n, struct store_object, node);

		object_drop_log(o);
		retry_fini(&o->retry);
		free(o);
	}
	for (unsigned i = 0; i < DESTAGE_BATCHES; i++) {
		free(sh->destages[i].nodes);
		free(sh->destages[i].pages);
		free(sh->destages[i].blocks);
	}
	shard_move_free(sh);
	lane_fini(&sh->lane);
	writer_free(&sh->headers.bytes);
	pool_fini(&sh->reads);
	hmap_fini(&sh->objects);
	hmap_fini(&sh->pages);
	arena_fini(&sh->arena);
	free(sh->checks);
	free(sh->queue);
	free(sh->segs);
}

/* ---- Open and close ---- */

static void open_object(void *arg, const struct tier_object *t)
{
	recovery_object(arg, t);
}

static void on_damage(void *arg, unsigned shard, const struct store_damage *d)
{
	const struct shard *sh = &((struct store *)arg)->shards[shard];

	if (sh->damage_fn && sh->running && !sh->stopping)
		sh->damage_fn(sh->damage_arg, d);
}

static int open_parts(struct store *s, const struct store_config *cfg)
{
	struct tier_config tier;
	int rc = make_segments(s, cfg->shards);

	if (!rc)
		rc = group_raise_sequence(s);
	if (!rc)
		rc = FAILPOINT(open_raised);
	if (rc)
		return rc;
	s->shard_count = cfg->shards;
	s->index_budget = MAX(cfg->log_index_bytes / cfg->shards, (uint64_t)1 << 20);
	group_tier_config(s, cfg, &tier);
	tier.damaged = on_damage;
	tier.damaged_arg = s;
	rc = recovery_scan(s, &tier.log_kv_commit);
	if (!rc)
		rc = tier_open(&tier, &s->tier);
	if (rc)
		return rc;
	s->shards = xcalloc(cfg->shards, sizeof(*s->shards));
	for (unsigned i = 0; i < cfg->shards; i++)
		shard_init(s, i);
	tier_objects(s->tier, open_object, s);
	rc = recovery_replay(s);
	if (!rc)
		group_listen(s);
	return rc;
}

int store_open(const struct store_config *cfg, struct store **out)
{
	struct store *s;
	int rc;

	if (!cfg->shards || cfg->shards > SHARDS_MAX || !is_pow2(cfg->shards))
		return -EINVAL;
	rc = group_open(cfg, true, &s);
	if (rc)
		return rc;
	rc = open_parts(s, cfg);
	recovery_free(s);
	if (rc) {
		log_error("store", "the group did not open", "error=%s", err_name(rc));
		store_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void store_close(struct store *s)
{
	for (unsigned i = 0; s->shards && i < s->shard_count; i++)
		shard_fini(&s->shards[i]);
	free(s->shards);
	if (s->tier)
		tier_close(s->tier);
	group_close(s);
}

/* ---- Start and stop ---- */

static void on_poke(struct post *p)
{
	struct shard *sh = container_of(p, struct shard, poke);
	int failed = store_failed(sh->store);

	atomic_store(&sh->poked, false);
	if (!sh->running)
		return;
	if (failed)
		shard_flush_next(sh, failed);
	if (atomic_exchange(&sh->room, false))
		shard_wake(sh);
	shard_destage_kick(sh);
}

static void on_setup(struct post *p)
{
	struct shard *sh = container_of(p, struct shard, setup);

	timer_init(&sh->tick, sh->loop, shard_tick);
	sh->running = true;
	shard_destage_kick(sh);
}

int store_start(struct store *s, struct loop *const *loops, unsigned shards)
{
	int rc;

	if (shards != s->shard_count)
		return -EINVAL;
	rc = tier_start(s->tier, loops, shards);
	if (rc)
		return rc;
	for (unsigned i = 0; i < shards; i++) {
		s->shards[i].loop = loops[i];
		s->shards[i].poke.fn = on_poke;
		s->shards[i].setup.fn = on_setup;
	}
	s->started = true;
	for (unsigned i = 0; i < shards; i++)
		loop_post(loops[i], &s->shards[i].setup);
	return 0;
}

void shard_quiesce(struct shard *sh)
{
	if (!sh->stopping || !sh->running || !lane_idle(&sh->lane) || sh->destages_busy ||
	    sh->headers.busy || sh->checks_busy || sh->ops || shard_moving(sh))
		return;
	sh->running = false;
	turn_end_disarm(&sh->lane.turn);
	timer_fini(&sh->tick);
	sem_post(sh->stopped);
}

static void on_stop(struct post *p)
{
	struct shard *sh = container_of(p, struct shard, stop);

	sh->stopping = true;
	shard_wake(sh);
	shard_flush_next(sh, -ERR_CLOSED);
	shard_quiesce(sh);
}

static void on_barrier(struct post *p)
{
	sem_post(container_of(p, struct shard, stop)->stopped);
}

static void on_all_shards(struct store *s, void (*fn)(struct post *p), sem_t *sem)
{
	for (unsigned i = 0; i < s->shard_count; i++) {
		s->shards[i].stopped = sem;
		s->shards[i].stop.fn = fn;
		loop_post(s->shards[i].loop, &s->shards[i].stop);
	}
	for (unsigned i = 0; i < s->shard_count; i++)
		while (sem_wait(sem))
			;
}

void store_stop(struct store *s)
{
	sem_t sem;

	if (!s->started)
		return;
	sem_init(&sem, 0, 0);
	/* First no new work and what is under way to its end; then one round more, so that no shard's
	 * message to another is still on its way. */
	on_all_shards(s, on_stop, &sem);
	on_all_shards(s, on_barrier, &sem);
	s->started = false;
	sem_destroy(&sem);
	tier_stop(s->tier);
}

void store_fail(struct store *s, int code, const char *why)
{
	int none = 0;

	if (code != -ERR_DEVICE && code != -ERR_LOG_LOST && code != -ERR_MAP_LOST)
		code = -ERR_DEVICE;
	if (!atomic_compare_exchange_strong(&s->failed, &none, code))
		return;
	log_error("store", "the group failed", "group=%u error=%s why=\"%s\"",
		  store_superblock(s)->group_number, err_name(code), why);
	store_wake(s);
}

/* ---- Scrub ---- */

void store_on_damage(struct store *s, unsigned shard,
		     void (*fn)(void *arg, const struct store_damage *d), void *arg)
{
	struct shard *sh = store_shard(s, shard);

	sh->damage_fn = fn;
	sh->damage_arg = arg;
}

void store_scrub_pace(struct store *s, uint32_t pass_s, uint64_t max_bytes_per_s, uint64_t now_s)
{
	tier_scrub_pace(s->tier, pass_s, max_bytes_per_s, now_s);
}

/* What stands in the log is checked on its way out of it. */
struct scrub_start {
	struct post post, scratch;
	struct wait wait;
	struct store *store;
};

static void scrub_flushed(struct wait *w, int rc)
{
	struct scrub_start *m = container_of(w, struct scrub_start, wait);

	tier_scrub_start(m->store->tier);
	free(m);
}

static void on_scrub_start(struct post *p)
{
	struct scrub_start *m = container_of(p, struct scrub_start, post);
	int rc = store_flush(m->store, 0, &m->scratch, &m->wait);

	if (rc != PENDING)
		scrub_flushed(&m->wait, rc);
}

void store_scrub_start(struct store *s)
{
	struct scrub_start *m;

	if (!s->started)
		return;
	m = xcalloc(1, sizeof(*m));
	m->store = s;
	m->post.fn = on_scrub_start;
	m->wait.resume = scrub_flushed;
	loop_post(s->shards[0].loop, &m->post);
}

void store_scrub_stop(struct store *s)
{
	tier_scrub_stop(s->tier);
}

void store_scrub_status(struct store *s, struct store_scrub *out)
{
	tier_scrub_status(s->tier, out);
	for (unsigned i = 0; i < s->device_count; i++)
		out->device_path[i < s->capacity_count ? i : GROUP_DEVICES_MAX - 1] = s->devices[i].path;
}

/* ---- Credits and statistics: any thread ---- */

static uint64_t log_blocks(const struct store *s)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < s->shard_count; i++)
		n += counter_get(&s->shards[i].log_blocks);
	return (int64_t)n < 0 ? 0 : n;
}

static bool space_comes_back(struct store *s)
{
	bool dirty = false;

	for (unsigned i = 0; i < s->shard_count; i++)
		dirty |= atomic_load_explicit(&s->shards[i].dirty_told, memory_order_relaxed) != 0;
	return tier_reclaims(s->tier) || (dirty && !atomic_load(&s->destage_full));
}

bool store_is_full(struct store *s)
{
	if (!space_comes_back(s))
		return true;
	/* Nobody is woken: there is no room yet. Who waits for room in the log would ask this again, be woken
	 * again, and so on in each turn. */
	atomic_store(&s->space_wanted, true);
	store_kick(s);
	return false;
}

bool store_grant_copy(struct store *s, uint64_t bytes)
{
	uint64_t granted = atomic_load(&s->granted), room, parked;
	struct store_ledger l;

	tier_ledger(s->tier, &l);
	do {
		parked = MIN(granted, l.reserve_bytes / 2);
		room = tier_free_bytes(s->tier) + parked;
		if (granted + log_blocks(s) * STORE_BYTES_PER_BLOCK + bytes > room)
			return false;
	} while (!atomic_compare_exchange_weak(&s->granted, &granted, granted + bytes));
	return true;
}

uint64_t store_grant(struct store *s, uint64_t want)
{
	uint64_t free_bytes = tier_free_bytes(s->tier),
		 in_log = log_blocks(s) * STORE_BYTES_PER_BLOCK;
	uint64_t granted = atomic_load(&s->granted), take;

	do {
		uint64_t used = granted + in_log;

		take = used >= free_bytes ? 0 : free_bytes - used;
		take = MIN(MIN(want, take), MAX(take / GRANT_SHARE, GRANT_LEAST));
	} while (take && !atomic_compare_exchange_weak(&s->granted, &granted, granted + take));
	if (take)
		atomic_store(&s->space_wanted, false);
	return take;
}

void store_grant_return(struct store *s, uint64_t bytes)
{
	uint64_t granted = atomic_load(&s->granted);

	while (!atomic_compare_exchange_weak(&s->granted, &granted, granted - MIN(bytes, granted)))
		;
}

/* What the append put into the log is counted there, until it is destaged or overwritten. */
void store_grant_spend(struct store *s, uint64_t bytes)
{
	store_grant_return(s, bytes);
}

void store_stats(struct store *s, struct store_stats *out)
{
	uint64_t taken;

	memset(out, 0, sizeof(*out));
	tier_stats(s->tier, out);
	out->granted_bytes = atomic_load(&s->granted);
	if (!out->failed) /* the tier knows better what with */
		out->failed = store_failed(s);
	for (unsigned i = 0; i < s->device_count; i++) {
		out->raw_bytes += s->devices[i].sb.size;
		out->log_bytes += s->devices[i].sb.log_len;
	}
	for (unsigned i = 0; i < s->pool_count; i++)
		out->log_used_bytes +=
			(uint64_t)(s->pools[i].count - atomic_load(&s->pools[i].free)) *
			s->seg_blocks * BLOCK_SIZE;
	out->layout_bytes = out->raw_bytes - out->log_bytes - out->data_bytes;
	out->log_unreduced_bytes = log_blocks(s) * BLOCK_SIZE;
	/* What is in the log, and what was promised, will take it up. */
	taken = out->granted_bytes + log_blocks(s) * STORE_BYTES_PER_BLOCK;
	out->data_free_bytes -= MIN(taken, out->data_free_bytes);
	out->objects = out->destaged_blocks = 0; /* the shards count them */
	for (unsigned i = 0; i < s->shard_count; i++) {
		struct shard *sh = &s->shards[i];

		out->log_index_bytes += counter_get(&sh->index_bytes);
		out->objects += counter_get(&sh->object_count);
		out->appended_blocks += counter_get(&sh->appended_blocks);
		out->destaged_blocks += counter_get(&sh->destaged_blocks);
		out->device_written_bytes += counter_get(&sh->device_written);
		out->device_read_bytes += counter_get(&sh->device_read);
		out->corrupt_blocks += counter_get(&sh->corrupt);
		out->log_fill_permyriad = MAX(out->log_fill_permyriad, atomic_load(&sh->fill));
		out->destage_blocks_per_s += atomic_load(&sh->destage_rate);
	}
}
