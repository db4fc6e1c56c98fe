/* SPDX-License-Identifier: Apache-2.0 */
/* Not a test: what the store alone costs, by policy. Blocks are half compressible and a third of
 * them duplicates. CPU is this process's own, all threads; a rate per core is its inverse. The
 * content is made beforehand, the fingerprint is the cluster's business: neither is counted. */
#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "store/fifo_cache.h"
#include "store/page_cache.h"
#include "tests/store/log/rig.h"

#define DEPTH      64u
#define BLOCKS     65536u  /* of the object */
#define OVERWRITES 131072u /* random ones, after each block was written once */
#define READS      40000u
#define CONTENTS   4096u

struct bench;
struct slot {
	struct wait wait;
	struct list link; /* in held */
	struct store_append op;
	struct store_read read;
	struct bench *b;
	uint8_t *dest;
};

struct bench {
	struct rig r;
	struct store_object *o;
	struct wait *owner, space;
	struct slot slots[DEPTH];
	struct list held, space_link;
	uint64_t issued, done, total, salt;
	bool reading, random, waiting;
	uint8_t (*content)[BLOCK_SIZE];
	uint8_t scratch[BLOCK_SIZE];
};

static double clock_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void go(struct slot *s);

static void on_done(struct wait *w, int rc)
{
	struct slot *s = container_of(w, struct slot, wait);

	EXPECT_OK(rc);
	s->b->done++;
	if (!s->b->reading)
		store_commit(s->b->o, s->op.version);
	go(s);
}

static void on_space(struct wait *w, int rc)
{
	struct bench *b = container_of(w, struct bench, space);
	struct list now = LIST_INIT(now), *l;

	EXPECT_OK(rc);
	b->waiting = false;
	list_splice_back(&now, &b->held);
	while ((l = list_pop_front(&now)))
		go(list_entry(l, struct slot, link));
}

/* A third repeats one of CONTENTS blocks, the others are all different. */
static const uint8_t *content_of(struct bench *b, uint64_t n)
{
	uint64_t h = hash_u64(n * 2654435761u + b->salt);
	uint8_t *p = b->content[h % CONTENTS];

	if (h >> 32 & 1 && h >> 33 & 1) /* a quarter, and a few of the rest by chance */
		return p;
	if (!(h >> 34 & 7)) /* and a twelfth: a third in all */
		return p;
	memcpy(b->scratch, p, BLOCK_SIZE);
	put_le64(b->scratch, n ^ b->salt << 40 ^ 0x5a);
	return b->scratch;
}

static int issue(struct slot *s)
{
	struct bench *b = s->b;
	uint64_t n = b->issued;
	uint32_t block =
		(uint32_t)(b->random ? hash_u64(n + b->salt) % BLOCKS : (n * 40503) % BLOCKS);
	struct record r;
	const uint8_t *data;
	struct fp128 fp;

	if (b->reading) {
		s->read = (struct store_read){.block = block, .blocks = 1, .dest = s->dest};
		return store_read(b->o, &s->read, &s->wait);
	}
	data = content_of(b, n);
	fp = hash_block(data);
	r = rec_write(1, store_last(b->o).seq + 1, block, 1);
	return store_append(b->o, &s->op, &r, data, &fp, &s->wait);
}

static void go(struct slot *s)
{
	struct bench *b = s->b;
	int rc;

	while (b->issued < b->total) {
		rc = issue(s);
		if (rc == -ERR_LIMIT) {
			list_push_back(&b->held, &s->link);
			if (!b->waiting)
				EXPECT_RC(
					store_wait_space(b->r.store, 0, &b->space_link, &b->space),
					PENDING);
			b->waiting = true;
			return;
		}
		b->issued++;
		if (rc == PENDING)
			return;
		EXPECT_OK(rc);
		b->done++;
	}
	if (b->done == b->total && b->owner) {
		struct wait *w = b->owner;

		b->owner = NULL;
		wait_resume(w, 0);
	}
}

static int run(void *arg, struct wait *w)
{
	struct bench *b = arg;

	b->owner = w;
	b->o = store_object_find(b->r.store, 0, 2, 1);
	b->space.resume = on_space;
	b->issued = b->done = 0;
	b->salt++;
	for (unsigned i = 0; i < DEPTH; i++) {
		b->slots[i].b = b;
		b->slots[i].wait.resume = on_done;
		go(&b->slots[i]);
	}
	return PENDING;
}

static void phase(struct bench *b, const char *name, uint64_t total, bool random, bool reading,
		  bool flush)
{
	double wall = clock_s(), cpu = cpu_s();

	b->total = total;
	b->random = random;
	b->reading = reading;
	if (total)
		EXPECT_OK(rig_call(&b->r, 0, run, b));
	else
		total = b->issued;
	if (flush)
		EXPECT_OK(rig_flush(&b->r));
	wall = clock_s() - wall;
	cpu = cpu_s() - cpu;
	printf("  %-34s %7.2f us CPU per block  %8.0f blocks/s per core  %8.0f blocks/s as "
	       "measured\n",
	       name, cpu * 1e6 / (double)total, (double)total / cpu, (double)total / wall);
}

struct policy {
	struct bench *b;
	bool compression, dedup;
};

static int set_policy(void *arg, struct wait *w)
{
	struct policy *p = arg;

	store_object_set_policy(store_object_find(p->b->r.store, 0, 2, 1), p->compression,
				p->dedup);
	return 0;
}

/* What was stored raw under load is reduced when the log has drained: the tick of the shard says
 * so. */
static void settle(struct bench *b)
{
	double cpu = cpu_s();
	struct store_stats s;

	do {
		struct timespec pause = {.tv_nsec = 20000000};

		nanosleep(&pause, NULL);
		store_stats(b->r.store, &s);
	} while (s.reduce_pending);
	if (s.reduce_redone_blocks)
		printf("  %-34s %7.2f us CPU per block looked at (%llu, %llu were stored raw)\n",
		       "reduced afterwards", (cpu_s() - cpu) * 1e6 / (double)s.reduce_redone_blocks,
		       (unsigned long long)s.reduce_redone_blocks,
		       (unsigned long long)s.reduce_bypassed_blocks);
}

/* CPU seconds of the database's own threads. */
static double database_threads_s(void)
{
	double sum = 0;
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char path[300], line[1024];
		unsigned long user = 0, system = 0;
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/stat", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!f)
			continue;
		if (fgets(line, sizeof(line), f) && strstr(line, "(rocksdb:") &&
		    sscanf(strchr(line, ')') + 2,
			   "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			   &system) == 2)
			sum += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
		fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}

struct mark {
	struct store_stats s;
	double cpu, database;
};

static struct mark mark(struct bench *b)
{
	struct mark m = {.cpu = cpu_s(), .database = database_threads_s()};

	store_stats(b->r.store, &m.s);
	return m;
}

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

/* Of the overwrites: what they cost beside themselves. */
static void shares(const struct mark *from, const struct mark *to)
{
	double user = (double)(to->s.appended_blocks - from->s.appended_blocks) * BLOCK_SIZE;
	double all = (double)(to->s.device_written_bytes - from->s.device_written_bytes) / user;
	double data = (double)(to->s.data_written_bytes - from->s.data_written_bytes) / user;
	double moved = (double)(to->s.moved_bytes - from->s.moved_bytes) / user;
	double calls = (double)(to->s.map_cpu_us - from->s.map_cpu_us) / 1e6;
	double own = to->database - from->database, cpu = to->cpu - from->cpu;

	printf("  write amplification %.2f = log %.2f + destaged %.2f + moved by collecting and "
	       "later "
	       "reduction %.2f\n",
	       all, all - data - moved, data, moved);
	printf("  RocksDB's share of the CPU %.1f %%: gets and commits %.1f, its own threads "
	       "%.1f\n",
	       100 * (calls + own) / cpu, 100 * calls / cpu, 100 * own / cpu);
}

static void ledger(const struct store_stats *s)
{
	printf("  logical %.1f MiB = zero %.1f + dedup saved %.1f + compression saved %.1f + "
	       "stored %.1f + damaged %.1f; ratio %.2f\n",
	       mib(s->logical_bytes), mib(s->zero_bytes), mib(s->dedup_saved_bytes),
	       mib(s->compression_saved_bytes), mib(s->data_used_bytes), mib(s->damaged_bytes),
	       (double)s->logical_bytes / (double)s->data_used_bytes);
	printf("  raw %.1f MiB = stored %.1f + padding %.1f + summaries %.1f + dead %.1f + free "
	       "%.1f + reserve %.1f + log %.1f + layout %.1f\n",
	       mib(s->raw_bytes), mib(s->data_used_bytes), mib(s->padding_bytes),
	       mib(s->summary_bytes), mib(s->dead_bytes), mib(s->free_bytes), mib(s->reserve_bytes),
	       mib(s->log_bytes), mib(s->layout_bytes));
	EXPECT_EQ(s->raw_bytes, s->data_used_bytes + s->padding_bytes + s->summary_bytes +
					s->dead_bytes + s->free_bytes + s->reserve_bytes +
					s->log_bytes + s->layout_bytes);
}

/* Bounded by their budgets; this is what the whole of a TiB would take. */
static void memory(const struct store_stats *s)
{
	double pages = (double)(1ull << 40) / (PAGE_BLOCKS * BLOCK_SIZE);
	size_t page = sizeof(struct fifo_item) + sizeof(struct page_cache_item) + 20;

	printf("  RAM per TiB: map wholly cached %.2f GiB (target 4.5), hints of the newest 512 "
	       "GiB "
	       "of different blocks %.2f GiB (target 1)\n",
	       pages * (double)page / (1 << 30),
	       (double)(512ull << 30) / BLOCK_SIZE * sizeof(uint64_t) / (1 << 30));
	printf("  here: hints %.1f MiB, database %.1f MiB for %.1f MiB logical\n",
	       mib(s->dedup_hint_bytes), mib(s->metadata_used_bytes), mib(s->logical_bytes));
}

static void numbers(struct bench *b, const struct mark *before)
{
	struct mark now = mark(b);

	shares(before, &now);
	ledger(&now.s);
	memory(&now.s);
}

static void cold_reads(struct bench *b)
{
	struct mark from = mark(b), to;

	phase(b, "cold random 4 KiB reads", READS, true, true, false);
	to = mark(b);
	printf("  per read: %.2f rows looked up (the others were cached), %.2f reads of tables, "
	       "%.2f "
	       "of data devices\n",
	       (double)(to.s.map_gets - from.s.map_gets) / READS,
	       (double)(to.s.map_table_reads - from.s.map_table_reads) / READS,
	       (double)(to.s.data_reads - from.s.data_reads) / READS);
}

static void bench(const char *name, bool compression, bool dedup)
{
	static struct bench b;
	struct mark before;
	struct rng rng;

	memset(&b, 0, sizeof(b));
	printf("%s\n", name);
	list_init(&b.held);
	rng_seed(&rng, 7);
	b.content = xcalloc(CONTENTS, sizeof(*b.content));
	for (unsigned i = 0; i < CONTENTS; i++)
		rng_fill(&rng, b.content[i], BLOCK_SIZE / 2);
	for (unsigned i = 0; i < DEPTH; i++)
		b.slots[i].dest = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	rig_make(&b.r, name, 1, true, 512ull << 20);
	EXPECT_OK(rig_open(&b.r, 1));
	EXPECT_OK(rig_create(&b.r, 2, 1));
	EXPECT_OK(rig_call(&b.r, 0, set_policy, &(struct policy){&b, compression, dedup}));
	phase(&b, "ingest, the log absorbs", BLOCKS / 2, false, false, false);
	phase(&b, "and its destage", 0, false, false, true);
	phase(&b, "rest of the object, with destage", BLOCKS, false, false, true);
	before = mark(&b);
	phase(&b, "random overwrites, with destage", OVERWRITES, true, false, true);
	settle(&b);
	numbers(&b, &before);
	rig_close(&b.r);
	EXPECT_OK(rig_open(&b.r, 1));
	cold_reads(&b);
	rig_close(&b.r);
	for (unsigned i = 0; i < DEPTH; i++)
		free(b.slots[i].dest);
	free(b.content);
}

TEST(bench, store)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	bench("no reduction", false, false);
	bench("lz4", true, false);
	bench("dedup", false, true);
	bench("lz4 and dedup", true, true);
}
