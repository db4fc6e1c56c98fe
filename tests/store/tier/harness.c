/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/tier/harness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* RocksDB is not built with the sanitizer: its own ordering is invisible to it. overtaken_second
 * looks into a lookup while it is under way, on purpose. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "race:librocksdb\nrace:std::__cxx11::basic_string\nrace:overtaken_second\n";
}

/* ---- Files -------------------------------------------------------------------------------------
 */

static void file_make(const char *path, uint64_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && !ftruncate(fd, (off_t)size));
	close(fd);
}

void h_attach(struct harness *h, const char *name, unsigned caps, unsigned size_mib,
	      unsigned shards)
{
	char path[1024];

	memset(h, 0, sizeof(*h));
	snprintf(h->dir, sizeof(h->dir), "%s", name);
	snprintf(h->meta, sizeof(h->meta), "%s/meta", h->dir);
	h->shards = shards;
	h->caps = caps;
	h->log_size = 64ull << 20;
	rng_seed(&h->rng, 42);
	for (unsigned i = 0; i < caps; i++) {
		snprintf(path, sizeof(path), "%s/cap%u", h->dir, i);
		EXPECT_OK(device_open(&h->cap[i], path, false, false));
		h->cap[i].sb = (struct superblock){.index = (uint16_t)(i + 1),
						   .data_start = 8192,
						   .data_len = h->cap[i].size - 16384,
						   .segment_size = UNIT_MAX,
						   .size = h->cap[i].size};
	}
	snprintf(path, sizeof(path), "%s/log", h->dir);
	EXPECT_OK(device_open(&h->log, path, true, false));
	memset(h->cfg.group.b, 7, sizeof(h->cfg.group.b));
	h->cfg.capacity = h->cap;
	h->cfg.capacity_count = caps;
	h->cfg.metadata_dir = h->meta;
	h->cfg.group_incarnation = 3;
	h->cfg.shards = shards;
	h->cfg.destage_threads = 3;
	h->cfg.page_cache_bytes = 256u << 10; /* small, so that lookups and evictions happen */
	h->cfg.block_cache_bytes = 1u << 20;
}

void h_init(struct harness *h, const char *name, unsigned caps, unsigned size_mib, unsigned shards)
{
	char path[1024], dir[512];

	snprintf(dir, sizeof(dir), "%s/%s", test_dir(), name);
	CHECK(!mkdir(dir, 0700));
	snprintf(path, sizeof(path), "%s/meta", dir);
	CHECK(!mkdir(path, 0700));
	for (unsigned i = 0; i < caps; i++) {
		snprintf(path, sizeof(path), "%s/cap%u", dir, i);
		file_make(path, ((uint64_t)size_mib << 20) + 16384);
	}
	snprintf(path, sizeof(path), "%s/log", dir);
	file_make(path, 64ull << 20);
	h_attach(h, dir, caps, size_mib, shards);
	EXPECT_OK(tier_format(&h->cfg));
}

int h_open(struct harness *h)
{
	int rc = tier_open(&h->cfg, &h->tier);

	if (rc)
		return rc;
	atomic_store(&h->tier->shards[0].fill, h->high);
	atomic_store(&h->tier->hurry, 1); /* a test waits for it, on a busy machine too */
	for (unsigned i = 0; i < h->shards; i++) {
		h->loops[i] = loop_create("test", 64);
		CHECK(h->loops[i]);
		EXPECT_OK(loop_spawn(h->loops[i]));
	}
	return tier_start(h->tier, h->loops, h->shards);
}

void h_close(struct harness *h)
{
	tier_stop(h->tier);
	for (unsigned i = 0; i < h->shards; i++) {
		loop_stop(h->loops[i]);
		loop_join(h->loops[i]);
	}
	tier_close(h->tier);
	for (unsigned i = 0; i < h->shards; i++)
		loop_destroy(h->loops[i]);
	h->tier = NULL;
}

void h_fini(struct harness *h)
{
	for (unsigned i = 0; i < h->caps; i++)
		device_close(&h->cap[i]);
	device_close(&h->log);
}

void h_block(uint64_t seed, uint8_t out[BLOCK_SIZE])
{
	struct rng r;

	memset(out, 0, BLOCK_SIZE);
	if (seed < 2)
		return;
	rng_seed(&r, seed);
	rng_fill(&r, out, seed & 1 ? BLOCK_SIZE : 256 + seed % 1500);
}

uint64_t h_seed(struct harness *h)
{
	return 2 + rng_next(&h->rng) % (h->pool ? h->pool : 1ull << 60);
}

uint32_t h_volume(unsigned object)
{
	return 77 + object % 2;
}

uint64_t h_object_id(unsigned object)
{
	return 1000 + object;
}

static unsigned shard_of(struct harness *h, unsigned object)
{
	return (unsigned)(h_object_id(object) % h->shards);
}

/* ---- Calls onto a loop -------------------------------------------------------------------------
 */

static void call_post(struct post *p)
{
	struct h_call *c = container_of(p, struct h_call, post);

	c->fn(c);
}

static void call_init(struct harness *h, unsigned shard, struct h_call *c,
		      void (*fn)(struct h_call *))
{
	c->h = h;
	c->shard = shard;
	c->fn = fn;
	c->done = false;
	c->post.fn = call_post;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->cond, NULL);
}

static void call_wait(struct h_call *c)
{
	pthread_mutex_lock(&c->lock);
	while (!c->done)
		pthread_cond_wait(&c->cond, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void h_run(struct harness *h, unsigned shard, struct h_call *c, void (*fn)(struct h_call *c))
{
	call_init(h, shard, c, fn);
	loop_post(h->loops[shard], &c->post);
	call_wait(c);
}

void h_done(struct h_call *c, int rc)
{
	pthread_mutex_lock(&c->lock);
	c->done = true;
	c->rc = rc;
	pthread_cond_signal(&c->cond);
	pthread_mutex_unlock(&c->lock);
}

struct op_call {
	struct h_call c;
	struct wait wait;
	unsigned object;
	uint32_t gen;
	struct work scratch;
	struct tier_page page;
	struct tier_read read;
};

static void op_resume(struct wait *w, int rc)
{
	h_done(&container_of(w, struct op_call, wait)->c, rc);
}

static void op_end(struct op_call *o, int rc)
{
	if (rc != PENDING)
		h_done(&o->c, rc);
}

static void run_put(struct h_call *c)
{
	struct op_call *o = container_of(c, struct op_call, c);
	char header[32];
	int n = snprintf(header, sizeof(header), "header %u.%u", o->object, o->gen);

	op_end(o, tier_object_put(c->h->tier, c->shard, h_object_id(o->object), o->gen,
				  h_volume(o->object), header, (size_t)n, &o->scratch, &o->wait));
}

static void run_delete(struct h_call *c)
{
	struct op_call *o = container_of(c, struct op_call, c);

	op_end(o, tier_object_delete(c->h->tier, c->shard, h_object_id(o->object), o->gen,
				     &o->scratch, &o->wait));
}

static void run_page(struct h_call *c)
{
	struct op_call *o = container_of(c, struct op_call, c);

	op_end(o, tier_page_get(c->h->tier, c->shard, &o->page, &o->wait));
}

static void run_read(struct h_call *c)
{
	struct op_call *o = container_of(c, struct op_call, c);

	op_end(o, tier_read(c->h->tier, c->shard, &o->read, &o->wait));
}

static int op_run(struct harness *h, struct op_call *o, void (*fn)(struct h_call *c))
{
	o->wait.resume = op_resume;
	h_run(h, shard_of(h, o->object), &o->c, fn);
	return o->c.rc;
}

int h_object_put(struct harness *h, unsigned object, uint32_t gen)
{
	struct op_call o = {.object = object, .gen = gen};

	return op_run(h, &o, run_put);
}

void h_objects_put(struct harness *h, struct model *m)
{
	for (unsigned o = 0; o < H_OBJECTS; o++) {
		m->live[o] = true;
		m->gen[o] = 1;
		EXPECT_OK(h_object_put(h, o, 1));
	}
}

void h_begin(struct harness *h, struct model *m, const char *name, unsigned size_mib)
{
	h_init(h, name, 1, size_mib, 1);
	EXPECT_OK(h_open(h));
	h_objects_put(h, m);
}

void h_end(struct harness *h, struct model *m)
{
	h_close(h);
	h_fini(h);
	free(m);
}

int h_object_delete(struct harness *h, unsigned object, uint32_t gen)
{
	struct op_call o = {.object = object, .gen = gen};

	return op_run(h, &o, run_delete);
}

static void run_settle(struct h_call *c)
{
	struct op_call *o = container_of(c, struct op_call, c);

	op_end(o, tier_settle(c->h->tier, c->shard, H_SETTLE_US, &o->wait));
}

int h_settle(struct harness *h)
{
	struct op_call o = {.object = 0};

	return op_run(h, &o, run_settle);
}

int h_page_get(struct harness *h, unsigned object, uint32_t page, struct map_page *out)
{
	struct op_call o = {.object = object,
			    .page = {.object = h_object_id(object), .page = page}};
	int rc = op_run(h, &o, run_page);

	*out = o.page.out;
	return rc;
}

int h_read(struct harness *h, unsigned object, uint32_t page, const struct map_page *map,
	   unsigned first, unsigned count, uint8_t *dest, struct fp128 *fps, uint64_t *bad)
{
	struct op_call o = {.object = object,
			    .read = {.object = h_object_id(object),
				     .page = page,
				     .first = first,
				     .count = count,
				     .map = map,
				     .dest = dest,
				     .fps = fps}};
	int rc = op_run(h, &o, run_read);

	*bad = o.read.bad;
	return rc;
}

/* ---- Batches -----------------------------------------------------------------------------------
 */

struct h_batch *h_batch_new(struct harness *h, struct model *m, unsigned shard)
{
	struct h_batch *b = xcalloc(1, sizeof(*b));

	b->h = h;
	b->m = m;
	b->b.pages = b->pages;
	b->b.blocks = b->blocks;
	b->b.shard = shard;
	b->b.loop = h->loops[shard];
	return b;
}

struct destage_page *h_batch_open_page(struct h_batch *b, unsigned object, uint32_t page)
{
	unsigned n = b->b.page_count++;
	struct destage_page *p = &b->pages[n];

	CHECK(n < 64 && shard_of(b->h, object) == b->b.shard);
	p->object = h_object_id(object);
	p->gen = b->m->gen[object];
	p->page = page;
	p->version = (struct version){.tenure = 5, .seq = ++b->h->seq};
	p->first = b->b.block_count;
	p->compression = b->h->mixed ? object % 4 == 0 || object % 4 == 2 : b->h->compression;
	p->dedup = b->h->mixed ? object % 4 < 2 : b->h->dedup;
	b->objects[n] = object;
	b->before[n] = b->after[n] = b->m->page[object][page];
	b->after[n].version = p->version;
	return p;
}

void h_batch_block(struct h_batch *b, unsigned index, uint64_t seed)
{
	struct destage_page *p = &b->pages[b->b.page_count - 1];
	struct destage_block *k = &b->blocks[b->b.block_count++];
	uint8_t data[BLOCK_SIZE];

	p->count++;
	k->index = (uint8_t)index;
	b->after[b->b.page_count - 1].seed[index] = seed;
	h_block(seed, data);
	k->fp64 = hash_block(data).lo;
	k->kind = seed == 0 ? MAP_HOLE : seed == H_DAMAGED ? MAP_DAMAGED : MAP_RAW;
	if (seed == 1 && b->h->seq & 1)
		k->kind = MAP_ZERO; /* the other times zeroes come as payload */
	if (k->kind != MAP_RAW)
		return;
	if (b->h->log_pos + BLOCK_SIZE > b->h->log_size)
		b->h->log_pos = 0;
	k->log_device = &b->h->log;
	k->log_off = b->h->log_pos;
	b->h->log_pos += BLOCK_SIZE;
	EXPECT_OK(device_pwrite(&b->h->log, data, BLOCK_SIZE, k->log_off));
}

void h_batch_page(struct h_batch *b, unsigned object, uint32_t page, unsigned count, bool raw_only)
{
	struct rng *r = &b->h->rng;
	uint64_t seen = 0;

	h_batch_open_page(b, object, page);
	while (count--) {
		unsigned i = (unsigned)rng_below(r, PAGE_BLOCKS);
		uint64_t kind = raw_only ? 9 : rng_below(r, 20);

		if (seen >> i & 1)
			continue;
		seen |= 1ull << i;
		h_batch_block(b, i,
			      kind == 0   ? 0
			      : kind == 1 ? 1
			      : kind == 2 ? H_DAMAGED
					  : h_seed(b->h));
	}
}

static void batch_done(struct post *p)
{
	struct h_batch *b = container_of(p, struct h_batch, b.done);

	tier_destaged(b->h->tier, &b->b);
	h_done(&b->call, b->b.rc);
}

void h_batch_submit(struct h_batch *b)
{
	call_init(b->h, b->b.shard, &b->call, NULL);
	b->b.done.fn = batch_done;
	tier_destage(b->h->tier, &b->b);
}

int h_batch_wait(struct h_batch *b)
{
	int rc;

	call_wait(&b->call);
	rc = b->call.rc;
	b->h->damaged = b->b.damaged;
	/* Only what it changed: another batch may have ended since it was made. */
	for (unsigned i = 0; i < b->b.page_count && !rc; i++) {
		struct model_page *m = &b->m->page[b->objects[i]][b->pages[i].page];

		if (b->pages[i].skipped)
			continue;
		m->version = b->after[i].version;
		for (unsigned k = 0; k < PAGE_BLOCKS; k++)
			if (b->after[i].seed[k] != b->before[i].seed[k])
				m->seed[k] = b->after[i].seed[k];
		for (unsigned k = b->pages[i].first; k < b->pages[i].first + b->pages[i].count; k++)
			m->seed[b->blocks[k].index] = b->after[i].seed[b->blocks[k].index];
	}
	free(b);
	return rc;
}

int h_batch_run(struct h_batch *b)
{
	h_batch_submit(b);
	return h_batch_wait(b);
}

/* ---- Comparing ---------------------------------------------------------------------------------
 */

static uint64_t compare_page(struct harness *h, struct model_page *want, unsigned object,
			     uint32_t page, uint8_t *dest, bool damage_ok)
{
	struct fp128 fps[PAGE_BLOCKS];
	uint8_t data[BLOCK_SIZE];
	struct map_page p;
	uint64_t bad, damaged = 0;

	EXPECT_OK(h_page_get(h, object, page, &p));
	EXPECT(version_eq(p.version, want->version));
	memset(dest, 0xee, PAGE_BLOCKS * BLOCK_SIZE);
	EXPECT_OK(h_read(h, object, page, &p, 0, PAGE_BLOCKS, dest, fps, &bad));
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		if (bad >> i & 1) {
			EXPECT(damage_ok || want->seed[i] == H_DAMAGED);
			damaged++;
			continue;
		}
		EXPECT(want->seed[i] != H_DAMAGED);
		EXPECT_EQ(p.mask >> i & 1, want->seed[i] != 0);
		h_block(want->seed[i], data);
		EXPECT_MEM(dest + i * BLOCK_SIZE, data, BLOCK_SIZE);
		EXPECT(fp128_equal(fps[i], hash_block(data)));
	}
	return damaged;
}

uint64_t h_compare(struct harness *h, struct model *m, bool damage_ok)
{
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	uint64_t damaged = 0;

	for (unsigned o = 0; o < H_OBJECTS; o++)
		for (uint32_t p = 0; p < H_PAGES && m->live[o]; p++)
			damaged += compare_page(h, &m->page[o][p], o, p, dest, damage_ok);
	free(dest);
	return damaged;
}

void h_verify(struct harness *h, bool data)
{
	struct tier_verify v;

	EXPECT_OK(tier_verify(h->tier, data, &v));
}
