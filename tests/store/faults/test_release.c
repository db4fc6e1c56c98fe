/* SPDX-License-Identifier: Apache-2.0 */
/* When a log segment is written over: after the reads in it have ended (I10), and after a durable batch has
 * named it released (L2). A read that takes long holds the oldest segment while the log fills up behind it;
 * what comes then comes at one moment. Segments of an earlier session that are held so must not cost those of
 * this one their release (I5). */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/store/faults/world.h"

#define LONG    (20 * SECOND) /* much longer than it takes to fill the log */
#define LOG     (36 * MIB)    /* segments of the smallest size: each takes one BIG write */
#define BIG     256u	      /* blocks */
#define WRITES  40u	      /* twice what the log holds */
#define WRITERS 3u
#define SLOW_WRITE_US 5000u

static struct world W;

static struct {
	bool stretch; /* the next read of the log takes LONG */
	uint64_t first; /* where the log was written to first */
	bool cut, hit; /* the power goes while that place is written the second time */
} watch;

static enum vfault on_log_io(void *arg, const struct vio *io)
{
	const struct rig *r = &W.rig;

	if (strcmp(io->path, r->paths[r->count - 1]))
		return VFAULT_NONE;
	if (io->kind == VIO_READ && watch.stretch) {
		vhost_set_latency(W.host, VIO_READ, 40, 160); /* those behind it */
		watch.stretch = false;
	}
	if (io->kind != VIO_WRITE)
		return VFAULT_NONE;
	if (!watch.first)
		watch.first = io->off;
	else if (io->off == watch.first && watch.cut && !watch.hit) {
		watch.hit = true;
		return VFAULT_CUT_DURING;
	}
	return VFAULT_NONE;
}

/* ---- Threads of the process under test ---- */

struct task {
	pthread_t thread;
	unsigned object;
	atomic_bool ended;
	int rc;
};

static void start(struct task *t, unsigned object, void *(*fn)(void *arg))
{
	t->object = object;
	t->rc = 0;
	atomic_store(&t->ended, false);
	EXPECT_EQ(pthread_create(&t->thread, NULL, fn, t), 0);
}

static bool ends_within(struct task *t, uint32_t us)
{
	return WITHIN(us, atomic_load(&t->ended));
}

static void ends(struct task *t)
{
	EXPECT(ends_within(t, LONG));
	EXPECT_OK(t->rc);
	EXPECT_EQ(pthread_join(t->thread, NULL), 0);
}

static void *read_main(void *arg)
{
	struct task *t = arg;
	const struct event *e = &W.models[t->object].now.event[0];
	uint8_t *got = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE), want[BLOCK_SIZE];
	struct store_read op;

	t->rc = rig_read(&W.rig, W.models[t->object].id, e->block, 1, got, &op);
	content(want, e->seed, e->block);
	if (!t->rc)
		EXPECT_MEM(got, want, BLOCK_SIZE);
	free(got);
	atomic_store(&t->ended, true);
	return NULL;
}

/* The object's first block, from the log; the read is under way at the return. */
static void read_long(struct task *t, unsigned object)
{
	EXPECT(!watch.stretch);
	watch.stretch = true;
	vhost_set_latency(W.host, VIO_READ, LONG, LONG);
	start(t, object, read_main);
	EXPECT(WITHIN(SECOND, !watch.stretch));
}

static void *write_main(void *arg)
{
	struct task *t = arg;

	for (unsigned i = 0; i < WRITES && !t->rc; i++) {
		t->rc = w_append(&W, t->object, RECORD_WRITE, i % 2 * (BLOCKS - BIG), BIG, 4 * i + 3);
		w_commit(&W, t->object);
	}
	atomic_store(&t->ended, true);
	return NULL;
}

static void one_write(unsigned object)
{
	EXPECT_OK(w_create(&W, object));
	EXPECT_OK(w_append(&W, object, RECORD_WRITE, 0, 1, 3));
	w_commit(&W, object);
}

static void begin(uint64_t seed)
{
	world_begin(&W, seed, 128 * MIB, LOG);
	memset(&watch, 0, sizeof(watch));
}

/* From here on all writes to the device are of the log's segments. */
static void open_and_watch(unsigned shards)
{
	EXPECT_OK(w_open(&W, shards));
	vhost_set_fault(W.host, on_log_io, NULL);
}

static void check_main(void *arg)
{
	EXPECT_OK(w_open(&W, W.shards));
	w_check(&W);
	w_close(&W);
}

/* The writer goes on when the reader has ended, and no sooner: the log is full of what waits for the reader.
 * Half of its time shows that, and is far more than the writer would need. */
static void end_one_after_the_other(struct task *reader, struct task *writer)
{
	bool waited = !ends_within(writer, LONG / 2);

	ends(reader);
	EXPECT(waited);
	ends(writer);
	w_check(&W);
	w_close(&W);
}

/* ---- I10 ---- */

static void life_of_a_reader(void *arg)
{
	static struct task reader, writer;

	EXPECT_OK(w_format(&W));
	open_and_watch(1);
	one_write(0);
	EXPECT_OK(w_create(&W, 1));
	read_long(&reader, 0);
	start(&writer, 1, write_main);
	end_one_after_the_other(&reader, &writer);
}

TEST(release, waits_for_the_reads_begun_before)
{
	begin(1);
	EXPECT(vproc_run(W.host, "life", life_of_a_reader, NULL));
	simhost_end();
}

/* ---- L2 ---- */

/* For the reader: nothing else keeps the log. */
static int all_wait(void *arg, struct wait *w)
{
	const struct shard *sh = &W.rig.store->shards[0];

	return atomic_load(&sh->waiting) == WRITERS && !sh->dirty_pages && !sh->destages_busy ? 0 : -EAGAIN;
}

/* With the read all segments but the newest are released, and three writers wait for them: as many as it
 * takes to come round to the oldest. What names them released is under way then, or durable. */
static void life_of_three_writers(void *arg)
{
	static struct task reader, writer[WRITERS];

	EXPECT_OK(w_format(&W));
	open_and_watch(1);
	one_write(0);
	for (unsigned i = 1; i <= WRITERS; i++)
		EXPECT_OK(w_create(&W, i));
	read_long(&reader, 0);
	for (unsigned i = 0; i < WRITERS; i++)
		start(&writer[i], 1 + i, write_main);
	EXPECT(WITHIN(LONG / 2, !rig_call(&W.rig, 0, all_wait, NULL)));
	vhost_set_latency(W.host, VIO_WRITE, SLOW_WRITE_US, SLOW_WRITE_US);
	watch.cut = true;
	for (unsigned i = 0; i < WRITERS; i++)
		ends_within(&writer[i], 2 * LONG);
}

TEST(release, is_durable_before_a_segment_is_written_over)
{
	for (uint64_t seed = 1; seed <= 8; seed++) {
		begin(seed);
		EXPECT(!vproc_run(W.host, "life", life_of_three_writers, NULL));
		EXPECT(watch.hit);
		vhost_set_fault(W.host, NULL, NULL);
		vhost_set_latency(W.host, VIO_WRITE, 15, 120);
		EXPECT(vproc_run(W.host, "check", check_main, NULL));
		simhost_end();
	}
}

/* ---- I5 ---- */

static void first_life(void *arg)
{
	EXPECT_OK(w_format(&W));
	EXPECT_OK(w_open(&W, 2));
	one_write(0);
	one_write(1);
	w_close(&W);
}

/* The other lane's writer waits for the reader, and no longer. */
static void life_after_a_start(void *arg)
{
	static struct task first, reader, writer;

	vhost_set_latency(W.host, VIO_DB_COMMIT, SECOND, SECOND); /* until the reader is there */
	open_and_watch(2);
	for (unsigned i = 0; i < 2; i++) /* no record has said so */
		rig_commit(&W.rig, W.models[i].id, 1, 1);
	start(&first, 1, read_main); /* from then on the map need not be asked */
	ends(&first);
	read_long(&reader, 1);
	vhost_set_latency(W.host, VIO_DB_COMMIT, 20, 900);
	start(&writer, 0, write_main);
	end_one_after_the_other(&reader, &writer);
}

TEST(release, of_this_session_comes_after_those_before)
{
	begin(1);
	EXPECT(vproc_run(W.host, "first", first_life, NULL));
	EXPECT(vproc_run(W.host, "life", life_after_a_start, NULL));
	simhost_end();
}

/* ---- Lanes that are idle ---- */

/* The first one has given back what earlier sessions left to it. */
static int lane_is_empty(void *arg, struct wait *w)
{
	return W.rig.store->shards[0].queue_count ? -EAGAIN : 0;
}

/* A tail that nobody commits, of the session before, in a lane to which nothing is written now. */
static void life_beside_a_tail(void *arg)
{
	static struct task writer;

	open_and_watch(2);
	rig_commit(&W.rig, W.models[0].id, 1, 1); /* no record has said so */
	EXPECT(WITHIN(LONG / 2, !rig_call(&W.rig, 0, lane_is_empty, NULL)));
	usleep(2 * SECOND); /* two ticks: that the other lane does no more by itself shows in nothing */
	start(&writer, 0, write_main);
	ends(&writer);
	w_check(&W);
	w_close(&W);
}

static void life_that_leaves_a_tail(void *arg)
{
	EXPECT_OK(w_format(&W));
	EXPECT_OK(w_open(&W, 2));
	one_write(0);
	one_write(1);
	EXPECT_OK(w_flush(&W));
	EXPECT_OK(w_append(&W, 1, RECORD_WRITE, 0, 1, 7));
	w_close(&W);
}

TEST(release, waits_for_no_tail_of_an_idle_lane)
{
	begin(1);
	EXPECT(vproc_run(W.host, "first", life_that_leaves_a_tail, NULL));
	EXPECT(vproc_run(W.host, "life", life_beside_a_tail, NULL));
	simhost_end();
}
