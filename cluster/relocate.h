/* SPDX-License-Identifier: Apache-2.0 */
/* Where replicas should be instead: rebuild, evacuation and rebalance are one pure function of the map,
 * the jobs, and which nodes can be reached. Nothing of the work is remembered anywhere else, so a
 * restart or another leader goes on where it stands. No I/O, no clock.
 *
 *   place    a new `out` member, which the object's primary fills by the return path (Y1–Y6)
 *   remove   what is superfluous once I has all copies on groups that stay; an unfilled member that is
 *            not needed after all (its node died, or the old replica came back first)
 *   takeover the primary moves off a replica that is to go (keep: it stays in I)
 *
 * The leader runs it to act; every node runs it to tell people how far a job is and what blocks it. */
#pragma once

#include "cluster/command.h"
#include "cluster/state.h"

#define RELOCATE_CHANGES_MAX 64u
#define RELOCATE_WANTED_MAX  16u
#define RELOCATE_FILLS	     2u /* default of fills_max: few at once are whole sooner */
#define RELOCATE_SMALL_FILLS 16u /* and of small_fills_max: each takes a plan and two commits all the same */

struct relocate_node {
	bool up;   /* in contact */
	bool away; /* for longer than the rebuild delay, and not in maintenance */
};

struct relocate_input {
	const struct map *map;
	const struct state_job *jobs;
	unsigned job_count;
	const struct relocate_node *nodes; /* by number, map->next_node of them */
	unsigned fills_max;		   /* at once, per group, as source and as target */
	/* of small objects: as long as they are together no more than fills_max of the largest; 0: no more */
	unsigned small_fills_max;
};

/* How a job stands, by objects; for a rebalance by replicas. */
struct relocate_job {
	uint32_t left;	   /* not done yet, those below included */
	uint32_t filling;  /* copies under way */
	uint32_t blocked;  /* no group can take the copy */
	uint32_t undecided; /* nothing of them is moved before an operator decides: map.h */
	uint32_t stranded; /* all in-sync replicas are on nodes given up: nothing to copy from; not in left */
};

struct relocate_plan {
	unsigned count;
	struct object_change change[RELOCATE_CHANGES_MAX];
	struct relocate_job job[STATE_JOBS]; /* as in input->jobs */
	/* rebuilds that nobody has started yet: a node, or a group */
	unsigned wanted_count;
	struct relocate_wanted { uint16_t node, group; } wanted[RELOCATE_WANTED_MAX];
	/* objects with fewer in-sync replicas in reach than the policy wants, each counted once: */
	struct relocate_lacking {
		uint32_t total;
		uint32_t filling;  /* all that is missing is being copied */
		uint32_t waiting;  /* for a node that is away, not yet for long enough */
		uint32_t queued;   /* a copy is to be placed, when others are done */
		uint32_t held;	   /* its job is paused or was cancelled */
		uint32_t blocked;  /* no group can take the copy */
		uint32_t stranded; /* nothing in reach to copy from */
	} lacking;
	char why[256]; /* of the first that is blocked: a sentence and each group's reason */
	uint32_t imbalance; /* replicas on groups that have more than their share */
	bool uneven;	    /* a rebalance would move something */
};
void relocate(const struct relocate_input *in, struct relocate_plan *out);
