/* SPDX-License-Identifier: Apache-2.0 */
/* Destage and writers, in virtual time: below 0.30 of the log it rests while they write, until they stop,
 * the log passes 0.30, somebody waits, or records are a minute old. */
#include "store/tier_internal.h"
#include "tests/store/faults/world.h"

#define OBJECT	1u
#define WRITE	12u /* blocks */
#define PLACES	64u /* that are written, in turn: the log holds many of each */
#define BUSY	10000u	/* us between writes: about 1,150 blocks/s */
#define TRICKLE 100000u

static struct world W;
static uint64_t seq;

static uint64_t destaged(uint32_t *fill)
{
	struct store_stats st;

	store_stats(W.rig.store, &st);
	if (fill)
		*fill = st.log_fill_permyriad;
	return st.destaged_blocks;
}

/* Blocks that were destaged meanwhile. */
static uint64_t write_for(double seconds, uint32_t between_us)
{
	uint64_t end = simhost_now_us() + (uint64_t)(seconds * SECOND), before = destaged(NULL);

	while (simhost_now_us() < end) {
		struct record rec =
			rec_write(1, seq + 1, (uint32_t)(seq % PLACES) * WRITE, WRITE);

		seq++;
		EXPECT_OK(rig_append(&W.rig, OBJECT, &rec, seq));
		rig_commit(&W.rig, OBJECT, 1, seq);
		usleep(between_us); /* the pace of the writer */
	}
	return destaged(NULL) - before;
}

/* The shard has nothing to do, now or later. */
static int no_timer(void *arg, struct wait *w)
{
	return W.rig.store->shards[0].tick.armed ? -EAGAIN : 0;
}

/* The newest of each place is there. */
static void look(void)
{
	for (uint64_t s = seq; s && s + PLACES > seq; s--)
		expect_block(&W.rig, OBJECT, (uint32_t)((s - 1) % PLACES) * WRITE, s);
}

static void start(void)
{
	struct object_header h = {.seen = 1, .epoch_count = 1, .epochs = {{1, 1}}};

	seq = 0;
	EXPECT_OK(w_format(&W));
	EXPECT_OK(w_open(&W, 1));
	EXPECT_OK(rig_create(&W.rig, OBJECT, 1));
	EXPECT_OK(rig_header(&W.rig, OBJECT, RECORD_EPOCH, &h, (struct version){0}));
}

static void run(void (*life)(void *arg), uint64_t cache)
{
	world_begin(&W, 7, 256 * MIB, cache);
	EXPECT(vproc_run(W.host, "life", life, NULL));
	simhost_end();
}

static void life_of_bursts(void *arg)
{
	uint64_t before, began;

	start();
	EXPECT_EQ(write_for(15, BUSY), 0);
	look(); /* from the log */
	before = destaged(NULL);
	/* 5 s old, and a tick or two */
	EXPECT(WITHIN(8 * SECOND, destaged(NULL) >= before + PLACES * WRITE));
	look();
	/* Who waits for it does not wait for the writers to stop. */
	EXPECT_EQ(write_for(10, BUSY), 0);
	began = simhost_now_us();
	EXPECT_OK(rig_flush(&W.rig));
	EXPECT(simhost_now_us() - began < SECOND);
	EXPECT_EQ(write_for(10, BUSY), 0);
	EXPECT_OK(rig_flush(&W.rig));
	/* A few writes are no reason to rest. */
	EXPECT(write_for(10, TRICKLE) > 0);
	/* A burst on top of them is, from its first moment on. */
	before = destaged(NULL);
	EXPECT_OK(rig_flush(&W.rig));
	EXPECT_EQ(write_for(3, TRICKLE), 0); /* too young, also when they are 4 s old */
	EXPECT(write_for(10, BUSY / 4) == 0);
	w_close(&W);
}

TEST(rest, while_clients_write)
{
	run(life_of_bursts, 1024 * MIB);
}

/* What comes after destage goes on, though nothing is left to tick for. */
static void life_of_a_pause(void *arg)
{
	start();
	EXPECT_OK(rig_flush(&W.rig));
	EXPECT(WITHIN(3 * SECOND, !rig_call(&W.rig, 0, no_timer, NULL)));
	EXPECT_EQ(write_for(1.9, BUSY), 0); /* the tick that comes next finds writers, and no records */
	EXPECT(pace_rests(W.rig.store->tier));
	EXPECT_OK(rig_flush(&W.rig));
	EXPECT(WITHIN(3 * SECOND, !rig_call(&W.rig, 0, no_timer, NULL)));
	EXPECT(!pace_rests(W.rig.store->tier));
	w_close(&W);
}

TEST(rest, ends_without_anything_to_destage)
{
	run(life_of_a_pause, 1024 * MIB);
}

static void life_of_a_filling_log(void *arg)
{
	uint32_t fill = 0;
	unsigned seconds = 0;

	start();
	while (fill < 2400) {
		EXPECT_EQ(write_for(1, BUSY), 0);
		destaged(&fill);
		EXPECT(++seconds < 20);
	}
	EXPECT(write_for(5, BUSY) > 0);
	/* It stays about there. */
	for (unsigned i = 0; i < 20; i++) {
		write_for(1, BUSY);
		destaged(&fill);
		EXPECT(fill < 4000);
	}
	look();
	w_close(&W);
}

TEST(rest, until_the_log_fills)
{
	run(life_of_a_filling_log, 128 * MIB);
}

static void life_of_a_minute(void *arg)
{
	uint32_t fill;

	start();
	EXPECT_EQ(write_for(58, BUSY), 0);
	destaged(&fill);
	EXPECT(fill < 2900);
	EXPECT(write_for(6, BUSY) > 0);
	look();
	w_close(&W);
}

TEST(rest, until_records_are_old)
{
	run(life_of_a_minute, 1400 * MIB);
}
