/* SPDX-License-Identifier: Apache-2.0 */
/* How long a group is without a leader after its leader's crash: with the voters told that it is
 * gone (the clock shown to libraft jumps, staggered by rank), and without (the election timeout);
 * and after its resignation. */
#include <stdio.h>

#include "node/base/log.h"
#include "tests/consensus/sim.h"
#include "tests/lib/test.h"

#define ROUNDS 60

static struct sim sim;

/* Milliseconds from the crash to a new leader that has committed its barrier. */
static unsigned outage_ms(struct sim *s, uint64_t seed, unsigned nodes, bool told, bool busy)
{
	struct sim_node *old;
	struct sim_params p;
	uint64_t at;
	unsigned ms;

	sim_params_default(&p);
	p.nodes = nodes;
	p.delay_us = 200;
	p.disk_us = 300;
	sim_start(s, seed, &p);
	s->calm = true;
	sim_run_until(s, s->now_us + 4000000);
	old = sim_leader(s);
	EXPECT(old != NULL && old->c->barrier_done);
	for (unsigned i = 0; busy && i < 20; i++)
		EXPECT(sim_propose(s, old) != 0);
	sim_run_until(s, s->now_us + rng_below(&s->rng, busy ? 700 : 60000));
	sim_crash(s, old);
	at = s->now_us;
	/* A reset and a refused reconnect take a millisecond or so. */
	sim_run_until(s, at + 1000);
	for (unsigned i = 0; told && i < s->count; i++)
		if (s->node[i].up)
			consensus_leader_gone(s->node[i].c, old->id);
	for (ms = 1; ms < 10000; ms++) {
		struct sim_node *l;

		sim_run_until(s, at + ms * 1000u);
		l = sim_leader(s);
		if (l && l->c->barrier_done)
			break;
	}
	EXPECT_STR(s->failure, "");
	sim_finish(s);
	return ms;
}

static int by_value(const void *a, const void *b)
{
	return (int)*(const unsigned *)a - (int)*(const unsigned *)b;
}

static void measure(const char *what, unsigned nodes, bool told, bool busy, unsigned p50,
		    unsigned p99)
{
	unsigned ms[ROUNDS];

	for (unsigned i = 0; i < ROUNDS; i++)
		ms[i] = outage_ms(&sim, i + 1, nodes, told, busy);
	qsort(ms, ROUNDS, sizeof(ms[0]), by_value);
	printf("  %s, %u voters: p50 %u ms, p99 %u ms, max %u ms\n", what, nodes, ms[ROUNDS / 2],
	       ms[ROUNDS * 99 / 100], ms[ROUNDS - 1]);
	EXPECT(ms[ROUNDS / 2] <= p50);
	EXPECT(ms[ROUNDS * 99 / 100] <= p99);
}

TEST(failover, told_that_the_leader_is_gone)
{
	measure("told, idle", 3, true, false, 60, 120);
	measure("told, idle", 5, true, false, 100, 150);
	measure("told, busy", 3, true, true, 60, 200);
	measure("told, busy", 5, true, true, 100, 250);
}

TEST(failover, by_the_election_timeout)
{
	measure("not told", 3, false, false, 1100, 2500);
	measure("not told", 5, false, false, 1100, 2500);
}

/* It gives way to another one, which then may take its vote; its log and its followers are whole. */
TEST(failover, a_leader_that_resigns)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct sim *s = &sim;
		struct sim_params p;
		struct sim_node *old, *now = NULL;
		uint64_t at;
		unsigned ms = 0;

		sim_params_default(&p);
		p.nodes = 3 + 2 * (seed % 2);
		sim_start(s, seed, &p);
		s->calm = true;
		sim_run_until(s, s->now_us + 4000000);
		old = sim_leader(s);
		EXPECT(old != NULL && old->c->barrier_done);
		for (unsigned i = 0; seed % 3 == 0 && i < 20; i++)
			EXPECT(sim_propose(s, old) != 0);
		at = s->now_us;
		consensus_resign(old->c);
		EXPECT(!consensus_is_leader(old->c));
		EXPECT_EQ(sim_propose(s, old), 0);
		while (ms < 5000 && !(now && now->c->barrier_done)) {
			sim_run_until(s, at + ++ms * 1000u);
			now = sim_leader(s);
		}
		EXPECT(now != NULL && now != old && ms < 3000);
		EXPECT(sim_propose(s, now) != 0);
		sim_run_until(s, s->now_us + 5000000); /* it may stand again, and does not win by that */
		EXPECT(sim_leader(s) == now);
		EXPECT(!consensus_resigning(old->c));
		EXPECT_STR(s->failure, "");
		sim_finish(s);
	}
}

/* Nobody else could be elected: it would have the longest log, and would not stand. */
TEST(failover, a_leader_that_alone_has_something_does_not_resign)
{
	struct sim *s = &sim;
	struct sim_params p;
	struct sim_node *old;

	sim_params_default(&p);
	p.nodes = 3;
	sim_start(s, 1, &p);
	s->calm = true;
	sim_run_until(s, s->now_us + 4000000);
	old = sim_leader(s);
	EXPECT(old != NULL && old->c->barrier_done);
	EXPECT(sim_propose(s, old) != 0);
	for (unsigned i = 0; i < 10000 && old->c->raft.commit_index == raft_last_index(&old->c->raft); i++)
		sim_run_until(s, s->now_us + 1);
	EXPECT(old->c->raft.commit_index < raft_last_index(&old->c->raft));
	consensus_resign(old->c);
	EXPECT(consensus_is_leader(old->c) && !consensus_resigning(old->c));
	sim_run_until(s, s->now_us + 1000000);
	consensus_resign(old->c);
	EXPECT(!consensus_is_leader(old->c));
	sim_finish(s);
}
