/* SPDX-License-Identifier: Apache-2.0 */
/* Replication of the objects of one shard: primary-backup, leases, takeover, return (cluster/replication.md
 * states the rules, N1–N6 C1–C2 W1–W5 Q1–Q3 S1 T1–T5 Y1–Y6 A1–A3).
 *
 * A replicator is single-threaded: everything about an object — its store object, its streams, its
 * range queue, the leases it needs — lives on its shard's loop. A *session* is a pair of node
 * incarnations on one stream: beacons, grants and fences travel on the stream they speak for, so no
 * lease is shared between threads. It never talks to Raft: it proposes and acts on applied state. */
#pragma once

#include "cluster/command.h"
#include "net/conn.h"
#include "net/io_msg.h"
#include "store/store.h"

struct replicator;

struct replicator_hooks {
	/* To the leader, batched by the callee; no answer: applied state is the answer. */
	void (*propose)(void *ctx, const struct object_change *changes, unsigned count);
	/* A group of this node failed with code (device, log, map): it must be regrouped or reported. */
	void (*group_failed)(void *ctx, uint16_t group, int code);
	/* A peer's incarnation higher than the map's, or higher than ours for our own node: exit. */
	void (*superseded)(void *ctx);
	/* For the events of the cluster, and the log. NULL: only logged. */
	void (*event)(void *ctx, uint8_t severity, const char *code, const char *text);
	/* A Raft leader is in reach now (Y6: promotions are proposed only then). NULL: always. */
	bool (*leader_known)(void *ctx);
	/* Wall clock, for the end of maintenance leases and for the moments at which all nodes' copying
	 * pauses (governor.h); never for the protocol. NULL: no lease ends, the monotonic clock. */
	uint64_t (*wall_ms)(void *ctx);
};

/* Times of replication.md; the simulator and tests shrink nothing: these are the product's. */
struct replicator_times {
	uint32_t beacon_ms, beacon_idle_ms, lease_ms, grace_ms, commit_ms, session_gone_ms, ack_ms,
		silence_ms, slow_log_ms;
};
/* 150 1000 450 600 50 300 1000 2000 1000 */
extern const struct replicator_times replicator_default_times;

struct replicator_config {
	struct loop *loop;
	struct buf_pool *pool;
	const struct map *map; /* the shard's copy; replicator_map_changed tells about each change */
	unsigned shard, shards;
	uint16_t node;
	uint32_t incarnation;
	bool confirm_reads; /* N6: this node's clock may stop while the world goes on */
	size_t ops; /* client operations in flight at most; beyond it they queue */
	const struct replicator_times *times;
	const struct replicator_hooks *hooks;
	void *ctx;
};

struct replicator *replicator_create(const struct replicator_config *cfg);
void replicator_destroy(struct replicator *r); /* after all stores were stopped and streams are down */
/* A disk group of this node was opened and started; its objects are picked up by the map. */
void replicator_store_add(struct replicator *r, uint16_t group, struct store *s);
/* It serves nothing more, whoever noticed: its replicas stop and resign. Comes back as group_failed. */
void replicator_store_failed(struct replicator *r, uint16_t group, int code);
/* After store_stop, before store_close: nothing of the store is used any more at the return. It may be
 * added again, opened anew. */
void replicator_store_remove(struct replicator *r, uint16_t group);

/* After the shard's map took a delta: once per record, then one replicator_map_done. */
void replicator_map_changed(struct replicator *r, enum map_record kind, uint64_t id);
void replicator_map_done(struct replicator *r);

/* Streams: up when HELLO/WELCOME are through (the conn's callbacks belong to the caller, who passes
 * frames on); down with why: -ECONNREFUSED when a reconnect was refused, else the loss's reason. One
 * connection per stream at a time: one that was replaced reports nothing more, no frame and no end. */
void replicator_stream_up(struct replicator *r, uint16_t node, uint32_t incarnation, uint16_t stream,
			  struct conn *c);
void replicator_stream_down(struct replicator *r, uint16_t node, uint16_t stream, int reason);
/* The reconnect was refused: nobody listens at the node's address. */
void replicator_peer_refused(struct replicator *r, uint16_t node);
void replicator_frame(struct replicator *r, uint16_t node, uint16_t stream, const struct frame *f);

/* A client request for an object of this shard; always PENDING or 0. */
int replicator_submit(struct replicator *r, struct io_exec *io, struct wait *w) MUST_USE;

/* T3: the primary of this object, which is here, moves to `node` (0: to any that can). 0: it began, and
 * is given up by itself when it does not succeed; -ERR_NOT_FOUND: it is not here; -ERR_BUSY: it cannot
 * now (not serving, moving, no leader); -ERR_REFUSED: no in-sync member there has joined. */
int replicator_move(struct replicator *r, uint64_t object, uint16_t node) MUST_USE;
/* The tenure of this object ends here, and none begins for a few seconds: an operator forces the object to
 * another replica. 0; -ERR_NOT_FOUND: this process is not its primary in that tenure. */
int replicator_yield(struct replicator *r, uint64_t object, uint32_t tenure) MUST_USE;
/* The process will stop: primaries move away, then replicas resign, where the object goes on without
 * them. Ends when nothing is left, which may be never (no leader, nobody to go on): the caller sets
 * the limit. */
void replicator_drain(struct replicator *r);
unsigned replicator_drain_left(struct replicator *r); /* objects that still need this process */

/* For people: state of one object here, and operations in flight. */
enum replica_role { REPLICA_NONE, REPLICA_PRIMARY, REPLICA_SECONDARY, REPLICA_SYNCING, REPLICA_OUT };
struct replica_info {
	uint64_t object;
	uint32_t epoch, seen;
	enum replica_role role;
	const char *state;   /* "serving", "taking over: waits for node 2 to join", … */
	const char *broken;  /* why it cannot serve; NULL: nothing */
	bool present;	     /* its data is here: a force can make it serve */
	bool serving;
	struct version last, commit;
	unsigned members_joined, want, pages_to_copy;
};
/* All streams that this shard has to the node are up, and something came on each in the last 2.5 s. */
bool replicator_hears(struct replicator *r, uint16_t node);
/* µs since the last word of the node on any of these streams that is up; UINT64_MAX: none is. */
uint64_t replicator_silent_us(struct replicator *r, uint16_t node);
bool replicator_info(struct replicator *r, uint64_t object, struct replica_info *out);
struct replica_op_info {
	uint64_t object, age_us;
	const char *kind, *stage, *waits_for;
	uint32_t offset, length;
};
void replicator_ops(struct replicator *r, void (*fn)(void *arg, const struct replica_op_info *i), void *arg);

struct replicator_stats {
	uint64_t reads, writes, trims, read_bytes, write_bytes, retries, repairs, corrupt;
	uint64_t replicated, acks, grants, leases_missed, takeovers, drops, promotions, resync_bytes;
	uint64_t confirms; /* beacons that reads waited for (N6) */
	uint64_t moves;	   /* planned, that were applied */
	/* Blocks: marked damaged here now, of these such that no replica in reach can produce, and such
	 * that were and are whole again. Pages whose copies differ though both are sound (L6). */
	uint64_t damaged_blocks, lost_blocks, repaired_blocks, diverged_pages, audits;
	uint64_t undecided; /* objects whose primary is here and serves nothing before an operator decides */
	uint64_t objects, primaries, serving, syncing, mending;
	/* Copies for rebuilds and returns: all bytes sent for them, by sources and targets, headers and
	 * comparisons included; what is left at most; what is copied in a second now; what is allowed; how
	 * much longer client operations take beside them, in 1/1000 (of the shard where it is most). */
	uint64_t resync_sent_bytes, copy_left_bytes, copy_rate, copy_allowed, copy_cost_permille;
};
void replicator_stats(struct replicator *r, struct replicator_stats *out);

/* Comparing the copies of the pages that are served here: each in pass_s (0: not by itself), or all of
 * them now. */
void replicator_audit_pace(struct replicator *r, uint32_t pass_s);
void replicator_audit_start(struct replicator *r);
