/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the replicator share: sessions, objects, the primary and its members. Included
 * by cluster/replica*.c and tests only; replica_calls.h lists the files.
 *
 * Work that one event makes possible is not done inside the event: operations go to r->ready, and
 * the end-of-turn hook runs them, sends ACKs and proposals. So nothing here is re-entered. */
#pragma once

#include "cluster/governor.h"
#include "cluster/range_queue.h"
#include "cluster/replica.h"
#include "cluster/replica_msg.h"
#include "cluster/replica_space.h"
#include "node/base/rules.h"
#include "node/base/log.h"
#include "store/store_scrub.h"

#define PROPOSE_AGAIN_US  250000u
#define TICK_US           50000u
#define SESSION_BYTES_MAX (32u << 20) /* sent and not acknowledged, per session */
#define SESSION_CREDITS   MSG_ACK_CREDITS_MAX
#define LOG_PACED         6000u /* of 10000: from here on admission is paced (L4) */
#define LOG_FULL          9500u
#define OBJECT_OPS_MAX    256u
#define USED_US           3000000u /* a session counts as in use this long after an operation */

/* ---- Groups and sessions ----------------------------------------------------------------------- */

struct group { /* a disk group of this node */
	struct list link;
	struct replicator *r;
	uint16_t id;
	uint32_t incarnation;
	struct store *store;
	int failed;
	uint64_t window; /* granted to this shard's own primaries and not spent */
	uint16_t fill;
	uint32_t destage_rate;
	uint64_t losses;        /* store_stats.losses as acted upon */
	struct list space_link; /* store_wait_space */
	struct wait space_wait;
	bool space_waiting;
};

struct session {
	struct list link; /* r->sessions; r->ghosts once ended, for the grace time */
	struct replicator *r;
	struct conn *conn; /* NULL: ended */
	uint16_t node, stream;
	uint32_t incarnation;
	uint64_t heard_us, used_us, ended_us;
	/* this side asks for leases */
	uint64_t lease_end_us, beacon_us, unanswered_us;
	uint64_t asked, confirmed; /* names of beacons: the last one sent, the newest one granted */
	bool ask;		   /* reads of this turn want a grant (N6) */
	/* this side grants */
	uint64_t granted_us;
	unsigned fences_owed;
	struct list holds;
	struct list members; /* of primaries here, joined or joining on this session */
	unsigned joining[2], fills; /* of them: those that count, those that do not; being filled */
	struct list acks;    /* struct inbound that owe an ACK */
	bool credits_changed;
	uint64_t unacked_bytes;
	uint16_t fill, fill_told; /* the peer's log; ours, as the peer heard last */
	uint32_t destage_rate;
	struct credit theirs[SESSION_CREDITS]; /* windows the peer gave */
	struct credit ours[SESSION_CREDITS];   /* windows this node gave the peer */
	unsigned their_count, our_count;
};

struct peer {                 /* what is known of a node, over all streams of this shard */
	uint32_t incarnation; /* highest met in an authenticated hello */
	uint64_t down_us, refused_us;
	bool refused;
	uint16_t shards;
	struct session *stream[SHARDS_MAX];
	uint64_t heard_us[SHARDS_MAX]; /* boot clock; survives the session */
	uint64_t gone_us[SHARDS_MAX];  /* since when the stream is down; 0: up */
};

/* A peer joined this object here in `tenure` on `session`: until FENCED, or the grace time after
 * the last grant, it may believe that it holds a lease (N5, T2). */
struct hold {
	struct list in_object, in_session;
	struct object *object;
	struct session *session;
	uint32_t tenure;
	bool owed;
};

/* ---- Objects ----------------------------------------------------------------------------------- */

enum inbound_state { IN_NONE, IN_HEADER, IN_FOLDS, IN_JOINED };

struct inbound { /* this replica as a member of somebody's tenure */
	enum inbound_state state;
	struct session *session;
	uint32_t tenure, join;
	uint16_t group;  /* whose credit the records of this join spend */
	unsigned serial; /* of the attempt, so that late completions are known as such */
	unsigned puts;   /* headers on their way to the disk */
	bool syncing;    /* the join is one of Y1: skip bits may come */
	bool current;    /* no page is known to be stale: in good standing, may answer Q3 */
	unsigned skips;  /* records with skip bits so far: a COMPLETE older than one says nothing */
	uint64_t next_seq; /* 0: any (the first record after a syncing JOIN) */
	struct version durable, commit;
	uint32_t copies;
	uint64_t bytes, lost; /* lost: syncing, store_lost as of the JOIN; its COMPLETE makes it good */
	struct list ack_link;
	struct list waiting; /* struct arrival: no log space yet */
};

struct object {
	struct hnode by_id;
	struct list link, busy;
	struct replicator *r;
	uint64_t id;
	bool listed, dirty, creating, diverged, resigning, in_busy;
	bool join_waits; /* a member of it waits for its turn to join */
	bool moved; /* once since the node began to stop: two that stop must not play ping-pong */
	bool behind;   /* of I, and lacks acknowledged writes: serves nothing until it is out, and filled */
	bool no_space; /* the last copy sent to it found none */
	struct map_object config; /* as applied last */
	int me;                   /* index of this node's replica in config.member, or -1 */
	struct group *group;
	struct store_object *store;
	uint32_t gen;
	uint32_t seen;    /* ≥ the header's; the header's is on its way */
	uint32_t stopped; /* tenures up to this one were stopped here (fence, or ended) */
	unsigned refs;    /* asynchronous calls under way */
	struct list holds;
	struct inbound in;
	struct primary *primary;
	uint64_t proposed_us, suspect_us, yield_us; /* yield: it does not take over before */
	struct store_create create;
	struct wait create_wait;
	struct list dirty_link;
};

/* A record of the primary's log that not all of want have yet. */
struct outgoing {
	struct list link;
	struct record record;
	struct slice payload;
	const struct fp128 *fps;
	uint64_t appended_us;
	struct io_op *op;   /* its client operation, or NULL: from the tail of an earlier tenure */
	struct buf *fp_buf; /* the tail's own fingerprints */
};

enum member_state { MEMBER_IDLE, MEMBER_JOINING, MEMBER_JOINED };

struct member { /* a replica of the object elsewhere, as its primary sees it */
	struct list in_session;
	struct primary *primary;
	struct map_member id;
	uint16_t node;
	bool in, want, lost, filled;
	bool ahead;  /* it has more than we: of an unsure object (state_recover.c), or because we lost it */
	bool behind; /* it has answered, and has less than it should */
	bool full;   /* it had no space for a copy in its last join */
	bool diverged; /* it has answered, and what it knows to be committed is not in this history */
	uint32_t promote_epoch; /* highest epoch its promotion was proposed on; 0: none pending */
	uint32_t drop_said;     /* the epoch in which the log was told why it is to be dropped */
	enum member_state state;
	struct session *session;
	uint32_t join;
	bool as_syncing;
	struct version acked;
	uint32_t copies_sent, copies_acked;
	uint64_t bytes_sent, bytes_acked; /* in this join */
	uint64_t asked_us; /* its first join of this tenure */
	uint64_t since_us, retry_us, ack_us, proposed_us, nak_us;
	struct fill *fill;
};

enum primary_state {
	PRIMARY_EPOCH, PRIMARY_TAIL, PRIMARY_JOIN, PRIMARY_FENCE, PRIMARY_SERVE, PRIMARY_ENDED
};

struct primary { /* one tenure of this node */
	struct object *object;
	struct replicator *r;
	enum primary_state state;
	bool forced, ahead_told, lack_told; /* forced: it began with whatever was here */
	uint32_t tenure, joins;
	unsigned refs;
	struct version last, commit, tail_end, announced;
	uint64_t traffic_us, start_us;
	struct member member[MEMBERS_MAX];
	unsigned member_count;
	struct list outgoing;
	struct list ops; /* every client operation that entered */
	unsigned op_count;
	struct range_queue range;
	struct object_header header;
	struct store_append put;
	struct wait put_wait;
	struct store_tail *tail;
	struct wait tail_wait;
	bool tail_waiting; /* for memory */
	/* T3: the node it moves to; 0: it stays. While it moves nothing is admitted. */
	uint16_t moving, move_group;
	struct list move_link;
	uint64_t move_us, move_proposed_us, move_again_us;
};

/* ---- Operations -------------------------------------------------------------------------------- */

enum op_stage {
	OP_ADMIT, OP_RANGE, OP_LOOKUP, OP_REPAIR, OP_MERGE, OP_GATE, OP_COMMIT, OP_LEASE, OP_REPLY
};

struct io_op {
	struct list link;  /* primary->ops */
	struct list ready; /* r->ready, r->gated */
	struct replicator *r;
	struct object *object;
	struct primary *primary;
	struct io_exec *io;
	struct wait *owner;
	enum op_stage stage;
	int rc;         /* of what the stage waited for */
	bool in_flight; /* the store holds part of this struct */
	bool answered, in_range, merge, whole;
	uint8_t kind, status;
	const char *waits_for;
	uint32_t offset, length, block, blocks;
	uint64_t start_us, gate_us, no_space_us; /* no_space: since when it waits for space, or 0 */
	uint64_t asked; /* a read: the newest beacon when it was admitted (N6) */
	struct range_entry range;
	struct outgoing out;
	struct version wanted; /* COMMIT: reply when committed */
	struct slice data;     /* lookup buffer; a merged payload */
	struct buf *fp_buf;
	struct wait wait;
	uint64_t ticket; /* repair */
	uint32_t repair_block, repair_blocks;
	uint64_t repair_us, repair_refused; /* asked when; bit per node: said "not here" */
	uint16_t repair_node;
	bool repair_single; /* no replica has the whole run: block by block */
	bool repaired;	    /* blocks came from another replica */
	bool mend;	    /* our own: rewrites blocks that were repaired */
	bool trim;	    /* a mend of holes */
	union {
		struct store_append append;
		struct store_read read;
	};
};

/* A record on its way into this member's log. */
struct arrival {
	struct list link;
	struct store_append append;
	struct wait wait;
	struct object *object;
	unsigned serial, skips;
	struct record record;
	struct slice payload;
	struct fp128 fps[RECORD_BLOCKS_MAX];
	uint8_t *retry;
	uint32_t retry_len;
};

struct replicator {
	struct loop *loop;
	struct buf_pool *pool;
	const struct map *map;
	unsigned shard, shards;
	uint16_t node;
	uint32_t incarnation;
	const struct replicator_times *times;
	const struct replicator_hooks *hooks;
	void *ctx;
	bool confirm_reads, asking; /* asking: some session's `ask` is set */
	uint64_t asked;		    /* the newest beacon's name, over all sessions */
	uint64_t start_us;
	bool stopping, rescan, draining, homes_look; /* some primaries may not be at home */
	uint64_t look_us;                            /* not before */
	struct list moves;                           /* primaries that move */
	unsigned move_count, draining_left;
	struct list groups, sessions, ghosts, objects, busy, dirty;
	struct hmap by_id;
	struct peer *peers; /* NODE_IDS_MAX + 1; what is never used costs no memory */
	struct pool ops;
	struct list op_waiting; /* struct io_exec: no free operation */
	struct list ready, gated;
	struct list arrivals_free;
	struct timer pace; /* opens the gate for what pacing holds back */
	uint64_t pace_us;  /* monotonic: when the next write may be admitted */
	bool gate_open;    /* something changed that gated operations wait for */
	struct shortages shortages;
	struct timer tick;
	struct turn_end turn;
	struct object_change *changes;
	unsigned change_count;
	uint64_t tickets;
	struct governor governor;
	struct list fills; /* struct fill, in the order of their turns */
	struct timer copy_timer;
	struct list damages; /* struct damage */
	unsigned damage_count, damage_busy;
	struct audit *audit;
	struct replicator_stats stats;
};

#include "cluster/replica_calls.h"
