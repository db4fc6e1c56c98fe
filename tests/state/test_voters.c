/* SPDX-License-Identifier: Apache-2.0 */
/* Who votes: a world of nodes in which each step is done at once. */
#include "cluster/voters.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"

#include <stdio.h>

#define MANY 12u

struct world {
	struct voters_node node[MANY];
	char fault_set[MANY][12];
	unsigned count;
	uint16_t leader;
	unsigned steps;
};

static void world_init(struct world *w, unsigned nodes)
{
	*w = (struct world){.count = nodes, .leader = 1};
	for (unsigned i = 0; i < nodes; i++) {
		snprintf(w->fault_set[i], sizeof(w->fault_set[i]), "f%u", i);
		w->node[i] = (struct voters_node){.id = (uint16_t)(i + 1),
						  .fault_set = w->fault_set[i],
						  .may_vote = true,
						  .stores = true,
						  .up = true};
	}
	w->node[0].role = VOTERS_VOTER;
}

static struct voters_node *at(struct world *w, unsigned id)
{
	return &w->node[id - 1];
}

static void rack(struct world *w, unsigned id, const char *name)
{
	snprintf(w->fault_set[id - 1], sizeof(w->fault_set[0]), "%s", name);
}

static unsigned voters(const struct world *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->count; i++)
		n += w->node[i].role == VOTERS_VOTER;
	return n;
}

static unsigned voters_up(const struct world *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->count; i++)
		n += w->node[i].role == VOTERS_VOTER && w->node[i].up;
	return n;
}

static bool majority(const struct world *w)
{
	return voters_up(w) >= voters(w) / 2 + 1;
}

static struct voters_step plan(struct world *w)
{
	struct voters_input in = {.nodes = w->node, .count = w->count, .self = w->leader};

	return voters_plan(&in);
}

/* What libraft permits, done; KEEP ends it. Whatever the step, a majority that was up stays up. */
static bool follow(struct world *w)
{
	struct voters_step s = plan(w);
	struct voters_node *n = s.op == VOTERS_KEEP ? NULL : at(w, s.node);
	unsigned before = voters(w);

	EXPECT(majority(w));
	switch (s.op) {
	case VOTERS_KEEP:
		return false;
	case VOTERS_ADD_STANDBY:
		EXPECT(n->role == VOTERS_NONE && n->up && !n->removed);
		n->role = VOTERS_STANDBY;
		break;
	case VOTERS_PROMOTE:
		EXPECT(n->role == VOTERS_STANDBY && n->up && n->may_vote);
		n->role = VOTERS_VOTER;
		break;
	case VOTERS_DEMOTE:
		EXPECT(n->role == VOTERS_VOTER && s.node != w->leader && before > 2);
		n->role = VOTERS_STANDBY;
		break;
	case VOTERS_DROP:
		EXPECT(n->removed && s.node != w->leader &&
		       (n->role == VOTERS_STANDBY || before > 2));
		n->role = VOTERS_NONE;
		break;
	case VOTERS_RESIGN:
		EXPECT_EQ(s.node, w->leader);
		w->leader = 0;
		for (unsigned i = 0; i < w->count && !w->leader; i++)
			if (w->node[i].role == VOTERS_VOTER && w->node[i].up && i + 1u != s.node)
				w->leader = w->node[i].id;
		EXPECT(w->leader);
		break;
	}
	EXPECT(majority(w));
	EXPECT(voters(w) <= VOTERS_WANTED_LARGE + 1 && voters(w) >= 1);
	EXPECT(++w->steps < 1000);
	return true;
}

static void settle(struct world *w)
{
	while (follow(w))
		;
}

TEST(voters, how_many)
{
	static const struct {
		unsigned able, storing, wanted;
	} t[] = {{1, 1, 1}, {2, 2, 2}, {3, 2, 3}, {3, 3, 3},   {4, 4, 3}, {6, 6, 3},
		 {7, 7, 5}, {4, 7, 3}, {5, 7, 5}, {64, 64, 5}, {7, 6, 3}, {0, 0, 0}};

	for (unsigned i = 0; i < ARRAY_LEN(t); i++)
		EXPECT_EQ(voters_wanted(t[i].able, t[i].storing), t[i].wanted);
}

TEST(voters, a_growing_cluster_has_three_then_five)
{
	struct world w;

	for (unsigned n = 1; n <= MANY; n++) {
		world_init(&w, n);
		settle(&w);
		EXPECT_EQ(voters(&w), voters_wanted(n, n));
		for (unsigned i = 1; i <= n; i++)
			EXPECT(at(&w, i)->role ==
			       (i <= voters(&w) ? VOTERS_VOTER : VOTERS_STANDBY));
	}
}

TEST(voters, a_voter_that_stays_away_gives_its_vote_to_a_standby)
{
	struct world w;

	world_init(&w, 4);
	settle(&w);
	at(&w, 2)->up = false;
	EXPECT_EQ(plan(&w).op, VOTERS_KEEP); /* not yet for long enough */
	at(&w, 2)->away = true;
	EXPECT_EQ(plan(&w).op, VOTERS_PROMOTE); /* a successor first */
	EXPECT_EQ(plan(&w).node, 4);
	follow(&w);
	EXPECT_EQ(plan(&w).op, VOTERS_DEMOTE);
	EXPECT_EQ(plan(&w).node, 2);
	settle(&w);
	EXPECT_EQ(voters(&w), 3);
	at(&w, 2)->up = true; /* back: a standby, and content with it */
	at(&w, 2)->away = false;
	EXPECT_EQ(plan(&w).op, VOTERS_KEEP);
	EXPECT(at(&w, 2)->role == VOTERS_STANDBY && at(&w, 4)->role == VOTERS_VOTER);
}

/* With nobody to take it, a vote stays where it is: it counts again as soon as its node is back. */
TEST(voters, nobody_loses_a_vote_without_a_successor)
{
	struct world w;

	for (unsigned n = 2; n <= 4; n++) {
		world_init(&w, n);
		settle(&w);
		at(&w, 3)->up = false;
		at(&w, 3)->away = true;
		at(&w, 4)->up = false;
		if (n > 2)
			EXPECT_EQ(plan(&w).op, VOTERS_KEEP);
	}
}

TEST(voters, two_lost_at_once_are_replaced_one_by_one)
{
	struct world w;

	world_init(&w, 9);
	settle(&w);
	EXPECT_EQ(voters(&w), 5);
	for (unsigned id = 4; id <= 5; id++) {
		at(&w, id)->up = false;
		at(&w, id)->away = true;
	}
	settle(&w);
	EXPECT_EQ(voters(&w), 5);
	EXPECT_EQ(voters_up(&w), 5);
}

TEST(voters, votes_are_spread_over_fault_sets)
{
	struct world w;

	world_init(&w, 5);
	for (unsigned id = 1; id <= 4; id++)
		rack(&w, id, "a");
	rack(&w, 5, "b");
	at(&w, 5)->up = false;
	settle(&w);
	EXPECT(at(&w, 3)->role == VOTERS_VOTER);
	at(&w, 5)->up = true; /* now another rack is there: one vote goes over */
	settle(&w);
	EXPECT(at(&w, 5)->role == VOTERS_VOTER);
	EXPECT_EQ(voters(&w), 3);
	at(&w, 5)->up = false;
	EXPECT_EQ(plan(&w).op, VOTERS_KEEP);
}

TEST(voters, who_leaves_gives_up_its_vote_and_the_lead)
{
	struct world w;

	world_init(&w, 4);
	settle(&w);
	at(&w, 1)->may_vote = false; /* the leader */
	EXPECT_EQ(plan(&w).op, VOTERS_PROMOTE);
	follow(&w);
	EXPECT_EQ(plan(&w).op, VOTERS_RESIGN);
	settle(&w);
	EXPECT(w.leader != 1 && at(&w, 1)->role == VOTERS_STANDBY);
	EXPECT_EQ(voters(&w), 3);
	at(&w, 1)->removed = true;
	at(&w, 1)->up = false;
	settle(&w);
	EXPECT(at(&w, 1)->role == VOTERS_NONE);

	world_init(&w, 3); /* without a successor: two remain */
	settle(&w);
	at(&w, 3)->may_vote = false;
	settle(&w);
	EXPECT_EQ(voters(&w), 2);
	at(&w, 2)->may_vote = false; /* but never one */
	EXPECT_EQ(plan(&w).op, VOTERS_KEEP);

	world_init(&w, 3); /* nor is a vote given up that the majority needs */
	settle(&w);
	at(&w, 2)->up = false;
	at(&w, 3)->may_vote = false;
	EXPECT_EQ(plan(&w).op, VOTERS_KEEP);
}

TEST(voters, a_removed_voter_leaves_when_a_successor_votes)
{
	struct world w;

	world_init(&w, 4);
	settle(&w);
	at(&w, 2)->removed = true;
	at(&w, 2)->up = at(&w, 2)->may_vote = at(&w, 2)->stores = false;
	EXPECT_EQ(plan(&w).op, VOTERS_PROMOTE);
	settle(&w);
	EXPECT(at(&w, 2)->role == VOTERS_NONE && at(&w, 4)->role == VOTERS_VOTER);
	EXPECT_EQ(voters(&w), 3);
}

/* Nodes come, go, leave; as long as a majority is up, each step keeps one, and they end. */
TEST(voters, random_histories_keep_a_majority_and_come_to_rest)
{
	struct rng r;
	struct world w;

	rng_seed(&r, 7);
	for (unsigned history = 0; history < 300; history++) {
		world_init(&w, (unsigned)rng_between(&r, 2, MANY));
		for (unsigned i = 0; i < w.count; i++)
			if (rng_chance(&r, 0.5))
				rack(&w, i + 1, rng_chance(&r, 0.5) ? "a" : "b");
		for (unsigned k = 0; k < 60; k++) {
			struct voters_node *n = &w.node[rng_below(&r, w.count)], was = *n;

			if (!n->removed) {
				n->up = rng_chance(&r, 0.7);
				n->away = !n->up && rng_chance(&r, 0.5);
				n->may_vote = rng_chance(&r, 0.9);
				n->removed =
					!n->up && n->role != VOTERS_VOTER && rng_chance(&r, 0.05);
				n->may_vote &= !n->removed;
				n->stores = !n->removed;
			}
			if (n->id == w.leader) /* it is there, and knows it */
				n->up = true, n->away = n->removed = false;
			if (!majority(&w)) {
				*n = was;
				continue;
			}
			w.steps = 0;
			for (unsigned s = rng_below(&r, 2) ? 50 : 1; s > 0 && follow(&w); s--)
				;
		}
		for (unsigned i = 0; i < w.count; i++)
			if (!w.node[i].removed)
				w.node[i].up = w.node[i].may_vote = w.node[i].stores = true,
				w.node[i].away = false;
		w.steps = 0;
		settle(&w);
		EXPECT(w.steps < 4 * w.count);
	}
}
