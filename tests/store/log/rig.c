/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/log/rig.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/store/log/fake_tier.h"

static void name_files(struct rig *r, const char *name)
{
	for (unsigned i = 0; i < r->count; i++) {
		snprintf(r->paths[i], sizeof(r->paths[i]), "%s/%s.%u", test_dir(), name, i);
		r->names[i] = r->paths[i];
	}
	snprintf(r->meta, sizeof(r->meta), "%s/%s.meta", test_dir(), name);
}

static void make_file(const char *path, uint64_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	EXPECT(fd >= 0);
	EXPECT(ftruncate(fd, (off_t)bytes) == 0);
	close(fd);
}

void rig_make(struct rig *r, const char *name, unsigned capacity, bool cache, uint64_t bytes)
{
	struct store_format f;

	*r = (struct rig){.count = capacity + cache, .cache = cache, .index_bytes = 64u << 20};
	name_files(r, name);
	for (unsigned i = 0; i < r->count; i++)
		make_file(r->paths[i], bytes);
	EXPECT(mkdir(r->meta, 0700) == 0);
	uuid_make(&r->cluster);
	uuid_make(&r->node);
	uuid_make(&r->group);
	f = (struct store_format){.cluster = r->cluster,
				  .node = r->node,
				  .group = r->group,
				  .group_incarnation = 1,
				  .capacity = r->names,
				  .capacity_count = capacity,
				  .cache = cache ? r->names[capacity] : NULL,
				  .metadata_dir = r->meta};
	EXPECT_OK(store_format(&f));
	EXPECT_OK(store_finalize(r->names, r->count, &r->group, 7));
}

int rig_open(struct rig *r, unsigned shards)
{
	struct store_config cfg = {.devices = r->names,
				   .device_count = r->count,
				   .metadata_dir = r->meta,
				   .cluster = r->cluster,
				   .node = r->node,
				   .shards = shards,
				   .page_cache_bytes = 1 << 20,
				   .block_cache_bytes = 1 << 20,
				   .log_index_bytes = r->index_bytes};
	int rc = store_open(&cfg, &r->store);

	if (rc)
		return rc;
	r->shards = shards;
	for (unsigned i = 0; i < shards; i++) {
		r->loops[i] = loop_create("test", 256);
		EXPECT(r->loops[i]);
	}
	EXPECT_OK(store_start(r->store, r->loops, shards));
	for (unsigned i = 0; i < shards; i++)
		EXPECT_OK(loop_spawn(r->loops[i]));
	return 0;
}

void rig_close(struct rig *r)
{
	store_stop(r->store);
	for (unsigned i = 0; i < r->shards; i++) {
		loop_stop(r->loops[i]);
		loop_join(r->loops[i]);
	}
	store_close(r->store);
	for (unsigned i = 0; i < r->shards; i++)
		loop_destroy(r->loops[i]);
	r->store = NULL;
}

int rig_reopen(struct rig *r, unsigned shards)
{
	rig_close(r);
	return rig_open(r, shards);
}

void rig_begin(struct rig *r, const char *name)
{
	rig_make(r, name, 1, false, 192u << 20);
	EXPECT_OK(rig_open(r, 1));
	EXPECT_OK(rig_create(r, 2, 1));
}

/* ---- Calls ---- */

struct call {
	struct post post;
	struct wait wait;
	int (*fn)(void *arg, struct wait *w);
	void *arg;
	int rc;
	sem_t done;
};

static void call_end(struct wait *w, int rc)
{
	struct call *c = container_of(w, struct call, wait);

	c->rc = rc;
	sem_post(&c->done);
}

static void call_begin(struct post *p)
{
	struct call *c = container_of(p, struct call, post);
	int rc = c->fn(c->arg, &c->wait);

	if (rc != PENDING)
		call_end(&c->wait, rc);
}

int rig_call(struct rig *r, unsigned shard, int (*fn)(void *arg, struct wait *w), void *arg)
{
	struct call c = {.fn = fn, .arg = arg};

	c.post.fn = call_begin;
	c.wait.resume = call_end;
	sem_init(&c.done, 0, 0);
	loop_post(r->loops[shard], &c.post);
	while (sem_wait(&c.done))
		;
	sem_destroy(&c.done);
	return c.rc;
}

struct args {
	struct rig *r;
	uint64_t id;
	uint32_t gen, block, blocks;
	const struct record *rec;
	const struct object_header *h;
	enum record_kind kind;
	struct version version;
	uint64_t seed;
	uint8_t *dest;
	struct store_object *object;
	struct store_create create;
	struct store_append append;
	struct store_read *read;
	struct post scratch;
};

static unsigned shard_of(const struct rig *r, uint64_t id)
{
	return (unsigned)(id % r->shards);
}

static struct store_object *find_any_gen(struct args *a)
{
	struct shard *sh = &a->r->store->shards[shard_of(a->r, a->id)];

	for (struct hnode *n = hmap_first(&sh->objects, hash_u64(a->id)); n; n = hmap_next(n)) {
		struct store_object *o = container_of(n, struct store_object, node);

		if (o->id == a->id)
			return o;
	}
	return NULL;
}

static int do_find(void *arg, struct wait *w)
{
	struct args *a = arg;

	a->object = store_object_find(a->r->store, shard_of(a->r, a->id), a->id, a->gen);
	return 0;
}

struct store_object *rig_object(struct rig *r, uint64_t id, uint32_t gen)
{
	struct args a = {.r = r, .id = id, .gen = gen};

	rig_call(r, shard_of(r, id), do_find, &a);
	return a.object;
}

static int do_create(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_object_create(a->r->store, shard_of(a->r, a->id), &a->create, a->id, a->gen, 1,
				   w);
}

int rig_create(struct rig *r, uint64_t id, uint32_t gen)
{
	struct args a = {.r = r, .id = id, .gen = gen};

	return rig_call(r, shard_of(r, id), do_create, &a);
}

static int do_append(void *arg, struct wait *w)
{
	struct args *a = arg;
	unsigned n = log_record_payload(a->rec);
	static _Thread_local uint8_t payload[RECORD_BLOCKS_MAX * BLOCK_SIZE];
	struct fp128 fps[RECORD_BLOCKS_MAX];

	for (unsigned i = 0; i < n; i++) {
		block_fill(payload + (size_t)i * BLOCK_SIZE, a->seed, i);
		fps[i] = hash_block(payload + (size_t)i * BLOCK_SIZE);
	}
	return store_append(find_any_gen(a), &a->append, a->rec, payload, fps, w);
}

int rig_append(struct rig *r, uint64_t id, const struct record *rec, uint64_t seed)
{
	struct args a = {.r = r, .id = id, .rec = rec, .seed = seed};

	return rig_call(r, shard_of(r, id), do_append, &a);
}

static int do_header(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_put_header(find_any_gen(a), &a->append, a->kind, a->h, a->version, NULL, 0, w);
}

int rig_header(struct rig *r, uint64_t id, enum record_kind kind, const struct object_header *h,
	       struct version cut)
{
	struct args a = {.r = r, .id = id, .kind = kind, .h = h, .version = cut};

	return rig_call(r, shard_of(r, id), do_header, &a);
}

static int do_commit(void *arg, struct wait *w)
{
	struct args *a = arg;

	store_commit(find_any_gen(a), a->version);
	return 0;
}

void rig_commit(struct rig *r, uint64_t id, uint32_t tenure, uint64_t seq)
{
	struct args a = {.r = r, .id = id, .version = {tenure, seq}};

	rig_call(r, shard_of(r, id), do_commit, &a);
}

static int do_read(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_read(find_any_gen(a), a->read, w);
}

int rig_read(struct rig *r, uint64_t id, uint32_t block, uint32_t blocks, uint8_t *dest,
	     struct store_read *op)
{
	struct args a = {.r = r, .id = id, .read = op};

	*op = (struct store_read){.block = block, .blocks = blocks, .dest = dest};
	return rig_call(r, shard_of(r, id), do_read, &a);
}

static int do_flush(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_flush(a->r->store, 0, &a->scratch, w);
}

int rig_flush(struct rig *r)
{
	struct args a = {.r = r};

	return rig_call(r, 0, do_flush, &a);
}

static int do_last(void *arg, struct wait *w)
{
	struct args *a = arg;

	a->version = store_last(find_any_gen(a));
	return 0;
}

struct version rig_last(struct rig *r, uint64_t id)
{
	struct args a = {.r = r, .id = id};

	rig_call(r, shard_of(r, id), do_last, &a);
	return a.version;
}

static int do_known(void *arg, struct wait *w)
{
	struct args *a = arg;

	a->version = store_commit_version(find_any_gen(a));
	return 0;
}

struct version rig_known(struct rig *r, uint64_t id)
{
	struct args a = {.r = r, .id = id};

	rig_call(r, shard_of(r, id), do_known, &a);
	return a.version;
}

/* ---- Content ---- */

void block_fill(uint8_t *p, uint64_t seed, uint32_t b)
{
	uint64_t v = seed * 0x9e3779b97f4a7c15ull + b;

	for (unsigned i = 0; i < BLOCK_SIZE / 8; i++)
		put_le64(p + 8 * i, v + i * 0xd6e8feb86659fd93ull);
}

struct record rec_write(uint32_t tenure, uint64_t seq, uint32_t block, uint32_t blocks)
{
	return (struct record){
		.kind = RECORD_WRITE, .version = {tenure, seq}, .block = block, .blocks = blocks};
}

struct record rec_copy(uint32_t tenure, uint64_t seq, uint64_t data)
{
	return (struct record){.kind = RECORD_COPY,
			       .version = {tenure, seq},
			       .commit = {tenure, seq},
			       .blocks = PAGE_BLOCKS,
			       .copy_data = data};
}

void expect_block(struct rig *r, uint64_t id, uint32_t block, uint64_t seed)
{
	CLEANUP(free_ptr) uint8_t *got = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	uint8_t want[BLOCK_SIZE] = {0};
	struct store_read op;

	memset(got, 0xee, BLOCK_SIZE);
	EXPECT_OK(rig_read(r, id, block, 1, got, &op));
	if (seed)
		block_fill(want, seed, 0);
	for (uint64_t s = 1; seed && memcmp(got, want, BLOCK_SIZE) && s < 3000; s++) {
		uint8_t other[BLOCK_SIZE];

		block_fill(other, s, 0);
		if (!memcmp(got, other, BLOCK_SIZE))
			fprintf(stderr, "object %llu block %u holds write %llu, expected %llu\n",
				(unsigned long long)id, block, (unsigned long long)s,
				(unsigned long long)seed);
	}
	EXPECT_MEM(got, want, BLOCK_SIZE);
	EXPECT(fp128_equal(op.fps[0], hash_block(want)));
}

/* ---- Devices behind the store's back ---- */

void rig_poke(struct rig *r, unsigned device, uint64_t off, const void *p, size_t n)
{
	int fd = open(r->paths[device], O_RDWR | O_CLOEXEC);

	EXPECT(fd >= 0);
	EXPECT(pwrite(fd, p, n, (off_t)off) == (ssize_t)n);
	close(fd);
}

void rig_peek(struct rig *r, unsigned device, uint64_t off, void *p, size_t n)
{
	int fd = open(r->paths[device], O_RDONLY | O_CLOEXEC);

	EXPECT(fd >= 0);
	EXPECT(pread(fd, p, n, (off_t)off) == (ssize_t)n);
	close(fd);
}

static void copy_range(int from, int to, uint64_t off, uint64_t n)
{
	enum { CHUNK = 1 << 20 };
	CLEANUP(free_ptr) uint8_t *b = xmalloc(CHUNK);

	for (uint64_t end = off + n; off < end;) {
		ssize_t k = pread(from, b, MIN((uint64_t)CHUNK, end - off), (off_t)off);
		uint64_t next = (uint64_t)lseek(from, (off_t)off, SEEK_DATA);

		EXPECT(k > 0);
		if (next >= off + (uint64_t)k) { /* a hole */
			off += (uint64_t)k;
			continue;
		}
		EXPECT(pwrite(to, b, (size_t)k, (off_t)off) == k);
		off += (uint64_t)k;
	}
}

/* The log and the superblocks; the fake tier keeps its data elsewhere. */
static void copy_device(const struct device *d, const char *path)
{
	int from = open(d->path, O_RDONLY | O_CLOEXEC);
	int to = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	EXPECT(from >= 0 && to >= 0);
	EXPECT(ftruncate(to, (off_t)d->size) == 0);
	copy_range(from, to, 0, BLOCK_SIZE);
	copy_range(from, to, d->size - BLOCK_SIZE, BLOCK_SIZE);
	if (d->sb.log_len)
		copy_range(from, to, d->sb.log_start, d->sb.log_len);
	close(from);
	close(to);
}

struct halt {
	struct post post;
	sem_t *halted, *go;
};

static void halt_fn(struct post *p)
{
	struct halt *h = container_of(p, struct halt, post);

	sem_post(h->halted);
	while (sem_wait(h->go))
		;
}

void rig_crash_copy(struct rig *r, struct rig *to, const char *name, void (*fn)(void *arg),
		    void *arg)
{
	struct halt halts[SHARDS_MAX];
	sem_t halted, go;

	*to = *r;
	to->store = NULL;
	name_files(to, name);
	sem_init(&halted, 0, 0);
	sem_init(&go, 0, 0);
	for (unsigned i = 0; i < r->shards; i++) {
		halts[i] = (struct halt){.post.fn = halt_fn, .halted = &halted, .go = &go};
		loop_post(r->loops[i], &halts[i].post);
	}
	for (unsigned i = 0; i < r->shards; i++)
		while (sem_wait(&halted))
			;
	if (fn)
		fn(arg);
	for (unsigned i = 0; i < r->count; i++)
		copy_device(&r->store->devices[i], to->paths[i]);
	fake_tier_copy(r->meta, to->meta);
	for (unsigned i = 0; i < r->shards; i++)
		sem_post(&go);
}
