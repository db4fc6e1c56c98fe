/* SPDX-License-Identifier: Apache-2.0 */
/* The governor against a model of clients whose latency grows with what is copied beside them. */
#include "cluster/governor.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"

#define PAGE 262144u

struct bench {
	struct governor g;
	struct rng rng;
	uint64_t now, copied;
	unsigned ops_per_s;
	double base_us, per_mib; /* latency: base + per_mib × what is copied now, in MiB/s */
	bool target_fills;
	double now_rate; /* MiB/s, over the last 50 ms */
};

static void begin(struct bench *b, unsigned ops_per_s, double base_us, double per_mib)
{
	*b = (struct bench){
		.now = 777, .ops_per_s = ops_per_s, .base_us = base_us, .per_mib = per_mib};
	rng_seed(&b->rng, 7);
	governor_init(&b->g, b->now);
}

static double uniform(struct bench *b)
{
	return (double)rng_below(&b->rng, 1000000) / 1000000.0;
}

/* Returns MiB/s copied. */
static double run(struct bench *b, unsigned seconds)
{
	uint64_t from = b->now, copied = b->copied;

	while (b->now < from + seconds * 1000000ull) {
		unsigned ops = b->ops_per_s / 1000;

		b->now += 1000;
		governor_tick(&b->g, b->now, b->now);
		b->now_rate *= 0.98;
		while (!governor_may_copy(&b->g, b->target_fills)) {
			governor_spent(&b->g, PAGE);
			b->copied += PAGE;
			b->now_rate += 0.25 * 0.02 * 1000;
		}
		if (uniform(b) < (b->ops_per_s % 1000) / 1000.0)
			ops++;
		for (; ops; ops--)
			governor_note(&b->g, (uint64_t)((b->base_us + b->per_mib * b->now_rate) *
							(0.7 + 0.6 * uniform(b))));
	}
	return (double)(b->copied - copied) / seconds / 1048576;
}

TEST(governor, without_clients_it_runs_at_full_speed)
{
	struct bench b;

	begin(&b, 0, 0, 0);
	run(&b, 10);
	EXPECT(run(&b, 5) > 1000);
	governor_limits(&b.g, 8 << 20, 100 << 20);
	EXPECT(run(&b, 5) < 110);
	EXPECT(run(&b, 5) > 80);
}

TEST(governor, clients_that_do_not_feel_it_do_not_slow_it)
{
	struct bench b;

	begin(&b, 5000, 300, 0);
	run(&b, 25);
	EXPECT(run(&b, 5) > 400);
}

/* At 20 MiB/s these clients would take 10 % longer. */
TEST(governor, it_settles_where_clients_just_feel_it)
{
	struct bench b;
	double rate;

	begin(&b, 5000, 300, 1.5);
	run(&b, 30);
	rate = run(&b, 30);
	printf("settled at %.1f MiB/s\n", rate);
	EXPECT(rate > 9 && rate < 32);
	/* Clients leave: it speeds up; they come back: it yields within seconds. */
	b.ops_per_s = 0;
	run(&b, 8);
	EXPECT(run(&b, 2) > 200);
	b.ops_per_s = 5000;
	run(&b, 12);
	EXPECT(run(&b, 10) < 45);
}

TEST(governor, never_below_the_floor)
{
	struct bench b;

	begin(&b, 5000, 300, 100);
	governor_limits(&b.g, 4 << 20, 0);
	run(&b, 20);
	EXPECT(run(&b, 20) > 3.6);
	EXPECT(run(&b, 20) < 6);
}

TEST(governor, a_target_whose_log_fills_gets_the_floor)
{
	struct bench b;

	begin(&b, 0, 0, 0);
	run(&b, 10);
	b.target_fills = true;
	run(&b, 2);
	EXPECT(run(&b, 5) > 3.4);
	EXPECT(run(&b, 5) < 4.6);
}

TEST(governor, it_pauses_to_look_only_when_somebody_is_there)
{
	struct bench b;

	begin(&b, 0, 0, 0);
	run(&b, 3);
	governor_tick(&b.g, b.now + 10000, b.now + 10000); /* 10 ms into a cycle */
	EXPECT(!b.g.quiet);
	begin(&b, 1000, 100, 0);
	run(&b, 3);
	governor_tick(&b.g, b.now + 10000, b.now + 10000); /* 10 ms into a cycle */
	EXPECT(b.g.quiet && governor_may_copy(&b.g, false));
	governor_tick(&b.g, b.now + GOVERNOR_QUIET_US, b.now + GOVERNOR_QUIET_US);
	EXPECT(!b.g.quiet);
}
