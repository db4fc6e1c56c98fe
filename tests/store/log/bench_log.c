/* SPDX-License-Identifier: Apache-2.0 */
/* Not a test: CPU per 4 KiB append and per read from the log, on the fake tier. */
#include <time.h>

#include "tests/store/log/fake_tier.h"
#include "tests/store/log/rig.h"

#define DEPTH_MAX 256

struct bench;
struct slot {
	struct wait wait;
	struct store_append op;
	struct store_read read;
	struct bench *b;
	uint8_t *dest;
};

struct bench {
	struct rig r;
	struct store_object *o;
	struct wait *owner;
	struct slot slots[DEPTH_MAX];
	uint64_t seq, done, total;
	unsigned depth;
	bool reading;
	struct wait space;
	struct list link;
	unsigned held;
	struct fp128 fp;
	uint8_t block[BLOCK_SIZE];
};

static double cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void go(struct slot *s);

static void on_done(struct wait *w, int rc)
{
	struct slot *s = container_of(w, struct slot, wait);
	struct bench *b = s->b;

	EXPECT_OK(rc);
	b->done++;
	if (!b->reading)
		store_commit(b->o, s->op.version);
	go(s);
}

static void on_space(struct wait *w, int rc)
{
	struct bench *b = container_of(w, struct bench, space);
	unsigned n = b->held;

	b->held = 0;
	for (unsigned i = 0; i < n; i++)
		go(&b->slots[i]);
}

static void go(struct slot *s)
{
	struct bench *b = s->b;
	struct record r;
	int rc;

again:
	if (b->seq == b->total) {
		if (b->done == b->total && b->owner) {
			struct wait *w = b->owner;

			b->owner = NULL;
			wait_resume(w, 0);
		}
		return;
	}
	if (b->reading) {
		b->seq++;
		s->read = (struct store_read){.block = (uint32_t)(hash_u64(b->seq) % 16384),
					      .blocks = 1,
					      .dest = s->dest};
		rc = store_read(b->o, &s->read, &s->wait);
	} else {
		r = rec_write(1, store_last(b->o).seq + 1, (uint32_t)(hash_u64(b->seq) % 16384), 1);
		rc = store_append(b->o, &s->op, &r, b->block, &b->fp, &s->wait);
		if (rc == -ERR_LIMIT) {
			if (!b->held++)
				EXPECT_RC(store_wait_space(b->r.store, 0, &b->link, &b->space),
					  PENDING);
			return;
		}
		b->seq++;
	}
	if (rc == 0) { /* from RAM */
		b->done++;
		goto again;
	}
	if (rc != PENDING)
		test_failed(__FILE__, __LINE__, "%s", err_name(rc));
}

static int run(void *arg, struct wait *w)
{
	struct bench *b = arg;

	b->owner = w;
	b->o = store_object_find(b->r.store, 0, 2, 1);
	b->space.resume = on_space;
	b->seq = b->done = 0;
	for (unsigned i = 0; i < b->depth; i++) {
		b->slots[i].b = b;
		b->slots[i].wait.resume = on_done;
		if (!b->slots[i].dest)
			b->slots[i].dest = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
		go(&b->slots[i]);
	}
	return PENDING;
}

static int now(void *arg, struct wait *w)
{
	*(double *)arg = cpu_us();
	return 0;
}

TEST(bench, log)
{
	static struct bench b;
	double t0, t1;

	rig_make(&b.r, "bench", 1, true, 1ull << 30);
	EXPECT_OK(rig_open(&b.r, 1));
	EXPECT_OK(rig_create(&b.r, 2, 1));
	block_fill(b.block, 1, 0);
	b.fp = hash_block(b.block);
	for (b.depth = 1; b.depth <= 64; b.depth *= 8) {
		for (b.reading = false;; b.reading = true) {
			struct store_stats st0, st1;

			b.total = b.depth == 1 ? 4000 : 40000;
			store_stats(b.r.store, &st0);
			rig_call(&b.r, 0, now, &t0);
			rig_call(&b.r, 0, run, &b);
			rig_call(&b.r, 0, now, &t1);
			store_stats(b.r.store, &st1);
			printf("%s depth %u: %.2f us CPU each (loop thread, kernel included); %llu "
			       "bytes written each\n",
			       b.reading ? "read" : "append", b.depth, (t1 - t0) / (double)b.total,
			       (unsigned long long)((st1.device_written_bytes -
						     st0.device_written_bytes) /
						    b.total));
			if (b.reading)
				break;
		}
	}
	rig_close(&b.r);
}
