/* SPDX-License-Identifier: Apache-2.0 */
/* One disk group of this node. For node_groups.c and node_replace.c only; on the control loop, but
 * for what a worker does between group_job_start and its end, while `busy` is set. */
#pragma once

#include "node/node.h"
#include "node/slow.h"

#define MISSING_GRACE_US 5000000u /* a device that is not there at the start may be on its way */

struct node_group {
	struct list link;
	struct diskgroup_set set;
	struct store *store; /* NULL while not open */
	bool started, added;
	bool busy;      /* a worker has it: it is being opened, or a device is being replaced */
	bool kept;      /* its last reset kept the map */
	bool may_reset; /* every object that is in sync here is so elsewhere, by the map as applied
			 */
	int lost; /* -ERR_LOG_LOST, -ERR_MAP_LOST: what it must be reset for, once that may be */
	uint64_t waiting_us; /* mono: since when it waits for a device, 0: it does not */
	int failed;
	char why[224];
	struct slow_window slow;
	/* regrouping: the store has a newer incarnation than the map */
	struct control_propose propose;
	struct wait propose_wait;
	bool proposing;
};

struct node_group *node_group_by_number(struct node *n, uint16_t number);
void node_store_config(const struct node *n, const struct diskgroup_set *set,
		       struct store_config *out);
/* Objects whose only in-sync replica is in this group, by the map as applied here. */
unsigned node_group_last_copies(const struct node *n, uint16_t group);
/* On a worker. Opens what is not open, and starts it; resets a group that lost its log or map if it
 * may. */
int node_group_open_blocking(struct node *n, struct node_group *g, struct loop **loops) MUST_USE;
/* After that, on the control loop. */
void node_group_opened(struct node *n, struct node_group *g, int rc);
/* Every shard gives the group up; resumes when all have. */
int node_group_leave_shards(struct node *n, struct node_group *g, struct wait *w) MUST_USE;
struct loop **node_loops(const struct node *n); /* malloc'ed */
void node_groups_again(struct node *n);         /* something may be tried again now */
