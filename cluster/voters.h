/* SPDX-License-Identifier: Apache-2.0 */
/* Who votes in Raft: the next single change of its configuration, as a pure function of who is there. No
 * I/O, no clock; the leader acts on it (control_duty.c), step by step, each after the one before is done.
 *
 * Wanted are three voters, five once seven nodes store data; with four that may vote three, because a
 * fourth would only raise the majority. Chosen are, in this order: who was not away for too long; who brings
 * another fault set; who votes already. So a voter that stays away gives its vote to a standby and is one
 * when it comes back, and a vote is never taken without a successor, unless its node leaves. */
#pragma once

#include "cluster/map.h"

#define VOTERS_WANTED	    3u
#define VOTERS_WANTED_LARGE 5u
#define VOTERS_LARGE_FROM   7u /* storage nodes */

enum voters_role { VOTERS_NONE, VOTERS_STANDBY, VOTERS_VOTER };
struct voters_node {
	uint16_t id;
	const char *fault_set;
	enum voters_role role; /* in Raft's configuration */
	bool removed;	/* from the cluster: it is to be in no configuration */
	bool may_vote;	/* has the role, and is not about to leave */
	bool stores;
	bool up;	/* in contact, and not known to fall behind: can be given a vote */
	bool away;	/* longer than voter_replace_delay_s, and not in maintenance */
	bool wanted;	/* out: should vote */
};

struct voters_input {
	struct voters_node *nodes; /* `wanted` is filled in */
	unsigned count;
	uint16_t self; /* the leader */
};

enum voters_op {
	VOTERS_KEEP,	    /* nothing to do */
	VOTERS_ADD_STANDBY, /* into the configuration, without a vote */
	VOTERS_PROMOTE,
	VOTERS_DEMOTE, /* to standby */
	VOTERS_DROP,   /* out of the configuration */
	VOTERS_RESIGN, /* the leader itself is to give up its vote: another must lead first */
};
struct voters_step {
	enum voters_op op;
	uint16_t node;
};

struct voters_step voters_plan(struct voters_input *in);
/* How many should vote of `may_vote` nodes, `storing` nodes storing data. */
unsigned voters_wanted(unsigned may_vote, unsigned storing);
