/* SPDX-License-Identifier: Apache-2.0 */
/* The choice is made anew each time and prefers who votes already, so it does not wander. What is
 * between the configuration and the choice is one step. */
#include "cluster/voters.h"

unsigned voters_wanted(unsigned may_vote, unsigned storing)
{
	unsigned n = storing >= VOTERS_LARGE_FROM ? VOTERS_WANTED_LARGE : VOTERS_WANTED;

	n = MIN(n, may_vote);
	return n > 2 && n % 2 == 0 ? n - 1 : n;
}

/* ---- The choice ---- */

static bool votes(const struct voters_node *n)
{
	return n->role == VOTERS_VOTER;
}

static bool candidate(const struct voters_node *n)
{
	return !n->removed && n->may_vote && !n->wanted && (votes(n) || (n->up && !n->away));
}

static bool new_fault_set(const struct voters_input *in, const struct voters_node *n)
{
	for (unsigned i = 0; i < in->count; i++)
		if (in->nodes[i].wanted && !strcmp(in->nodes[i].fault_set, n->fault_set))
			return false;
	return true;
}

/* Larger is better; the lower number decides between equals. */
static unsigned rank(const struct voters_input *in, const struct voters_node *n)
{
	return (n->id == in->self ? 16u : 0) | (n->away ? 0 : 8u) |
	       (new_fault_set(in, n) ? 4u : 0) | (votes(n) ? 2u : 0) | (n->up ? 1u : 0);
}

static void choose(struct voters_input *in)
{
	unsigned able = 0, storing = 0;

	for (unsigned i = 0; i < in->count; i++) {
		struct voters_node *n = &in->nodes[i];

		n->wanted = false;
		able += !n->removed && n->may_vote;
		storing += !n->removed && n->stores;
	}
	for (unsigned k = voters_wanted(able, storing); k > 0; k--) {
		struct voters_node *best = NULL;

		for (unsigned i = 0; i < in->count; i++) {
			struct voters_node *n = &in->nodes[i];

			if (candidate(n) && (!best || rank(in, n) > rank(in, best) ||
					     (rank(in, n) == rank(in, best) && n->id < best->id)))
				best = n;
		}
		if (!best)
			return;
		best->wanted = true;
	}
}

/* ---- The step ---- */

static struct voters_step step(enum voters_op op, const struct voters_node *n)
{
	return (struct voters_step){op, n->id};
}

struct tally {
	unsigned voters, up, wanted;
	bool successor; /* somebody else who should vote does, and is up */
};

static struct tally count(const struct voters_input *in)
{
	struct tally t = {0};

	for (unsigned i = 0; i < in->count; i++) {
		const struct voters_node *n = &in->nodes[i];

		t.voters += votes(n);
		t.up += votes(n) && n->up;
		t.wanted += n->wanted;
		t.successor |= n->wanted && votes(n) && n->up && n->id != in->self;
	}
	return t;
}

/* Not below two (libraft cannot), and what remains must have a majority that is up. */
static bool can_lose(const struct tally *t, const struct voters_node *n)
{
	return t->voters > 2 && t->up - n->up >= (t->voters - 1) / 2 + 1;
}

/* Of those that should not vote: first who is gone anyway. */
static const struct voters_node *superfluous(const struct voters_input *in, const struct tally *t)
{
	const struct voters_node *found = NULL;

	for (unsigned i = 0; i < in->count; i++) {
		const struct voters_node *n = &in->nodes[i];

		if (!votes(n) || n->wanted || n->id == in->self || !can_lose(t, n))
			continue;
		if (!found || (found->up && !n->up))
			found = n;
	}
	return found;
}

struct voters_step voters_plan(struct voters_input *in)
{
	const struct voters_node *out;
	struct tally t;

	choose(in);
	t = count(in);
	/* A successor first, then the vote is taken; so never more than one too many. */
	out = t.voters > t.wanted ? superfluous(in, &t) : NULL;
	if (out)
		return step(out->removed ? VOTERS_DROP : VOTERS_DEMOTE, out);
	for (unsigned i = 0; i < in->count; i++) {
		const struct voters_node *n = &in->nodes[i];

		if (n->wanted && !votes(n))
			return step(n->role == VOTERS_STANDBY ? VOTERS_PROMOTE : VOTERS_ADD_STANDBY,
				    n);
	}
	for (unsigned i = 0; i < in->count; i++) {
		const struct voters_node *n = &in->nodes[i];

		if (n->id == in->self && votes(n) && !n->wanted && t.successor)
			return step(VOTERS_RESIGN, n);
		if (!n->removed && n->up && n->role == VOTERS_NONE)
			return step(VOTERS_ADD_STANDBY, n);
		if (n->removed && n->role == VOTERS_STANDBY)
			return step(VOTERS_DROP, n);
	}
	return (struct voters_step){VOTERS_KEEP, 0};
}
