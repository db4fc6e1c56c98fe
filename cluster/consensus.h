/* SPDX-License-Identifier: Apache-2.0 */
/* libraft's door. Raft for the cluster's one group: libraft 0.15.0 for the algorithm, our own raft_io
 * (log, term, vote and snapshots in a small RocksDB of its own with synced writes; messages through
 * the caller). Guards R1–R12 and X1–X12 (consensus.c lists them) live here. One loop; callbacks from it.
 *
 * Where only a restart from the disk is the cure (a write of the log failed, libraft gave up, its
 * configuration is not the log's) the process logs why and ends with EX_TEMPFAIL (75): the service
 * manager must start it again. */
#pragma once

#include "cluster/command.h"
#include "node/loop/loop.h"
#include "node/loop/worker.h"

struct consensus;

struct consensus_hooks {
	/* To the peer's OP_RAFT; false when not connected (never buffered). */
	bool (*send)(void *ctx, uint16_t to, const void *msg, size_t len);
	/* A committed command. Fill *out (its result goes to the proposer, if it is here). */
	void (*apply)(void *ctx, uint64_t index, const void *cmd, size_t len, struct command_result *out);
	void (*snapshot)(void *ctx, struct writer *w);
	int (*restore)(void *ctx, const void *data, size_t len, uint64_t index);
	/* Role or leader changed (compared after every tick, message and disk event). */
	void (*changed)(void *ctx);
};

struct consensus_config {
	uint16_t id;
	const char *dir; /* the log's database; made if absent */
	struct loop *loop;
	bool bootstrap; /* first start of node 1: a configuration of one voter */
	unsigned heartbeat_ms, election_ms; /* 0: 50, 500 */
	const struct consensus_hooks *hooks;
	void *ctx;
};

enum consensus_role { CONSENSUS_FOLLOWER, CONSENSUS_CANDIDATE, CONSENSUS_LEADER, CONSENSUS_STANDBY };
struct consensus_status {
	enum consensus_role role;
	uint16_t leader; /* 0: none known */
	uint64_t term, applied, committed, last;
	unsigned voters, members;
	uint16_t voter[16];
	uint64_t log_entries, snapshot_index;
	uint64_t leader_contact_us; /* mono time of the last message of the leader */
};

/* Blocking start (reads its log), on the loop's thread or before the loop runs. restore and apply are
 * called from inside it (*out is not set yet), the other hooks only later. -ERR_CORRUPT: the log names
 * the file and the remedy; a node never starts with less than it acknowledged. */
int consensus_start(const struct consensus_config *cfg, struct consensus **out) MUST_USE;
void consensus_stop(struct consensus *c, void (*stopped)(void *ctx)); /* then freed */
void consensus_receive(struct consensus *c, uint16_t from, const void *msg, size_t len);
void consensus_status(const struct consensus *c, struct consensus_status *out);
bool consensus_is_leader(const struct consensus *c);
/* What node `id` is in the configuration in force, which may not be committed yet. */
enum consensus_member { CONSENSUS_NO_MEMBER, CONSENSUS_SPARE, CONSENSUS_FOLLOWS, CONSENSUS_VOTES };
enum consensus_member consensus_member(const struct consensus *c, uint16_t id);

/* On the leader: appends; the wait is resumed with 0 (out filled by apply), -ERR_NOT_LEADER (nothing
 * done) or -ERR_RETRY (outcome unknown: leadership lost). A bounded window, then it queues. */
struct proposal {
	struct wait *wait;
	struct list link;
	struct command_result result;
	void *impl;
};
int consensus_propose(struct consensus *c, struct proposal *p, const void *cmd, size_t len,
		      struct wait *w) MUST_USE;
/* Membership, one at a time, only after this term's barrier: a new node becomes standby, then voter.
 * 0 done; PENDING; -ERR_BUSY; -ERR_NOT_LEADER; -ERR_NOT_FOUND; -ERR_REFUSED: the leader itself, or down
 * to one voter. Resumed with 0, -ERR_RETRY (leadership lost: look and ask again) or -ETIMEDOUT (the node
 * did not catch up). */
int consensus_add_standby(struct consensus *c, uint16_t id, struct wait *w) MUST_USE;
int consensus_make_voter(struct consensus *c, uint16_t id, struct wait *w) MUST_USE;
int consensus_make_standby(struct consensus *c, uint16_t id, struct wait *w) MUST_USE;
int consensus_remove(struct consensus *c, uint16_t id, struct wait *w) MUST_USE;
/* The leader gives its leadership up, so that it can be taken out of the configuration: it falls silent, as
 * if it were cut off, until another one leads or RESIGN_MS are over. Nothing happens if it is not the leader,
 * or while something in its log is not committed: nobody else could be elected then. Ask again. */
void consensus_resign(struct consensus *c);
/* S2: the session to `leader` was reset and the reconnect refused. The clock shown to libraft jumps so
 * that its timer ends after rank × 30 ms, staggered by rank, at least one tick apart. */
void consensus_leader_gone(struct consensus *c, uint16_t leader);
