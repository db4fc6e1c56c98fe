/* SPDX-License-Identifier: Apache-2.0 */
/* A node's Raft store, offline: what is in it, and going on with it alone after the majority of the voters
 * was lost for good. Everything in the log counts, also entries of which nobody knows any more whether they
 * were committed: an acknowledged one must not be missing. Blocking; one thread; the store is locked as a
 * running node locks it (-ERR_BUSY). */
#pragma once

#include "cluster/consensus.h"

struct consensus_offline;

struct consensus_survivor {
	uint64_t term;			/* this node's own */
	uint64_t last_term, last_index; /* the log's end; the survivor with the greatest pair knows most */
	uint64_t snapshot_index;
	unsigned voters;
	uint16_t voter[16];
};

/* Gives what is there to hooks->restore and ->apply, in order (hooks NULL: to nobody). -ERR_NOT_FOUND: no
 * Raft store, or an empty one; else as raft_log_open. */
int consensus_offline_open(const char *dir, uint16_t node, const struct consensus_hooks *hooks, void *ctx,
			   struct consensus_offline **out, struct consensus_survivor *s) MUST_USE;
/* The log becomes a snapshot of `data` at `index`, beyond its end, in which this node is the only voter and
 * the only member. All or nothing, and durable. -ERR_LIMIT: too large to be sent to others. */
int consensus_offline_go_on(struct consensus_offline *o, uint64_t index, const void *data,
			    size_t len) MUST_USE;
void consensus_offline_close(struct consensus_offline *o);
