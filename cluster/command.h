/* SPDX-License-Identifier: Apache-2.0 */
/* Commands: the entries of the Raft log, and their results. Encoded as u16 kind, u16 format, fields;
 * padded to 8 bytes. Kinds are never reused; frozen by tests/golden. A command carries everything that
 * its application needs (ids proposed, placements chosen, wall-clock time of the proposer), so that
 * apply is deterministic. */
#pragma once

#include "cluster/map.h"

enum command_kind {
	CMD_CLUSTER_INIT = 1,
	CMD_NODE_ADD = 2,      /* a join was accepted: standby-to-be */
	CMD_NODE_START = 3,    /* register incarnation, address, shards: compare-and-swap */
	CMD_NODE_STATE = 4,    /* state and roles */
	CMD_TOKEN_ADD = 5,     /* hash of an invitation secret, TTL */
	CMD_TOKEN_USE = 6,
	CMD_GROUP_ADD = 7,
	CMD_GROUP_STATE = 8,   /* active, failed, removed; free steps */
	CMD_REGROUP = 9,       /* new incarnation of a group */
	CMD_VOLUME_CREATE = 10,
	CMD_VOLUME_RESIZE = 11,
	CMD_VOLUME_DELETE = 12,
	CMD_VOLUME_SET = 13,   /* policy flags, min in-sync */
	CMD_ATTACH = 14,
	CMD_DETACH = 15,
	CMD_OBJECT = 16,       /* many struct object_change; one result each */
	CMD_SETTING = 17,
	CMD_EVENT = 18,
	CMD_JOB = 19, /* long work of the cluster: started, paused, resumed, cancelled, finished */
	CMD_RENEW = 20, /* a gateway's attachments go on; one answer each */
	CMD_FENCE = 21, /* an operator takes a volume's attachments away */
	CMD_MAINTENANCE = 22, /* a node's maintenance lease: start, extend, end */
	CMD_NODE_REMOVE = 23, /* a node leaves for good, with its groups */
};

/* Configuration changes of objects (replication.md, at its end). Each is compare-and-swap on `epoch`. */
enum object_op { OBJ_DROP = 1, OBJ_PROMOTE = 2, OBJ_TAKEOVER = 3, OBJ_PLACE = 4, OBJ_REMOVE = 5,
		 /* An operator's, audited (state_force.c). */
		 OBJ_FORCE = 6, OBJ_DISCARD = 7,
		 /* The primary has seen all that may hold data of an unsure object. */
		 OBJ_SETTLE = 8,
		 /* The primary met writes at a replica it was filling that it lacks itself (T5). */
		 OBJ_QUARANTINE = 9 };
struct object_change {
	/* keep: at a takeover: the old primary stays in I; at a drop: it has shown less; at a quarantine: all
	 * of I lack what this one has (map.h, undecided) */
	uint8_t op, keep;
	uint64_t object;
	uint32_t epoch; /* the one it was proposed on */
	struct map_member replica; /* who; place: group and incarnation */
	uint16_t node;	      /* takeover, force: new primary's node */
	uint32_t incarnation; /* takeover, force: of that node; others: of the proposer's */
	uint16_t proposer;
};
#define OBJECT_CHANGES_MAX 512u

/* The lease of an attachment: renewed by its gateway, taken by whoever asks once it ran out. */
#define ATTACH_TTL_MS	  30000u
#define ATTACH_TTL_MIN_MS 1000u
#define ATTACH_TTL_MAX_MS 3600000u
#define ATTACH_TTL_KEY	  "attach_ttl_ms" /* the cluster setting that replaces ATTACH_TTL_MS */
/* Settings of rebuild, its governor and voters; their ranges are in state_setting.c. */
#define REBUILD_DELAY_KEY  "rebuild_delay_s"
#define VOTER_DELAY_KEY	   "voter_replace_delay_s"
#define REBUILD_FLOOR_KEY  "rebuild_floor_mib_s"
#define REBUILD_LIMIT_KEY  "rebuild_limit_mib_s"
#define REBALANCE_AUTO_KEY "rebalance_auto"
#define SCRUB_INTERVAL_KEY "scrub_interval_h"
#define SCRUB_RATE_KEY	   "scrub_rate_mib_s"
#define RENEW_MAX	  512u

/* Work that takes long. What is to be done follows from the map at any time; a job says that somebody
 * wants it, or wants it to wait. One live job per kind and target. */
enum job_kind {
	JOB_REBUILD = 1,   /* copies for those of a node that stays away, or of a group that failed */
	JOB_EVACUATE = 2,  /* nothing stays on a node or a group, and nothing new comes there */
	JOB_REBALANCE = 3, /* replicas follow capacity */
	JOB_REMOVE = 4,	   /* a node is emptied, gives up its vote, and leaves; done when it has left */
};
enum job_op { JOB_START = 1, JOB_PAUSE = 2, JOB_RESUME = 3, JOB_CANCEL = 4, JOB_FINISH = 5 };
struct job_change {
	uint8_t op, kind;     /* kind: start */
	uint16_t node, group; /* start: the target, one of them; none: the cluster */
	uint32_t id;	      /* of the job; start: 0 */
	uint32_t total;	      /* start: replicas to move, of a rebalance; others are counted by apply */
	char note[96];	      /* finish: how it ended, in words; start: why */
};
/* Maintenance leases. */
enum maintenance_op { MAINTENANCE_START = 1, MAINTENANCE_EXTEND = 2, MAINTENANCE_END = 3 };
#define MAINTENANCE_TTL_MIN_S 1u
#define MAINTENANCE_TTL_MAX_S (7u * 86400)

enum node_remove_flags {
	NODE_REMOVE_DEAD = 1,	     /* without it, and with what is on it */
	NODE_REMOVE_ACCEPT_LOSS = 2, /* though some of that is nowhere else */
};

enum volume_set_mask {
	VOLUME_SET_FLAGS = 1,
	VOLUME_SET_MIN_IN_SYNC = 2,
	VOLUME_SET_REDUCE = 4, /* existing data is reduced by the policy that then holds */
};

struct command {
	uint16_t kind;
	/* Wall clock of the proposer: for people, never for the protocol. In commands about leases
	 * (ATTACH, RENEW, FENCE, VOLUME_DELETE, MAINTENANCE, NODE_REMOVE) the leader's, so that one clock
	 * measures them; it permits revoking, no more. */
	uint64_t time_ms;
	char actor[64];	  /* who asked, for the audit trail */
	union {
		struct { struct uuid cluster; struct map_node node; char name[NAME_MAX_LEN + 1]; } init;
		struct { struct map_node node; char token_sha256[65]; } node_add;
		struct {
			uint16_t node;
			uint32_t incarnation, old_incarnation;
			uint16_t shards;
			uint8_t roles, version_major, version_minor;
			char address[64], admin[64];
		} node_start;
		struct { uint16_t node; uint8_t state, roles; } node_state;
		struct { char sha256[65]; uint64_t expires_ms; } token;
		struct {
			struct uuid uuid;
			uint16_t node;
			uint32_t incarnation;
			uint64_t raw_bytes;
		} group_add;
		struct { uint16_t group; uint8_t state, free_steps; uint32_t incarnation; } group_state;
		struct {
			uint16_t group, node;
			uint32_t old_incarnation, new_incarnation;
			bool keeps_pages;
		} regroup;
		/* create and resize: members for the new objects, copies per object, object-major */
		struct { struct map_volume volume; uint32_t first_object; unsigned placement_count;
			 struct map_member *placement; } volume;
		struct { uint32_t id; } volume_delete;
		struct { uint32_t id; uint8_t set_mask, flags, min_in_sync; } volume_set;
		struct { uint32_t volume; uint8_t mode; bool steal; char holder[128]; } attach;
		struct { uint32_t attachment; } detach;
		struct { unsigned count; uint32_t *attachment; } renew;
		/* Those up to number `newest` only: a repetition must not hit one given out meanwhile. */
		struct { uint32_t volume, newest; bool expired_only; char holder[128]; /* "": all */ } fence;
		/* ttl_s counts from the stamp */
		struct { uint16_t node; uint8_t op; uint32_t ttl_s; char reason[64]; } maintenance;
		struct { uint16_t node; uint32_t incarnation; uint8_t flags; } node_remove;
		struct { unsigned count; struct object_change *change; } object;
		struct job_change job;
		struct { char key[64], value[256]; } setting;
		struct { char code[32], text[256]; uint8_t severity; } event;
	};
};

void command_encode(const struct command *c, struct writer *w);
/* Arrays inside point into *arena (malloc'ed; caller frees). -ERR_PROTOCOL, -ERR_VERSION. */
int command_decode(struct reader *r, struct command *out, void **arena) MUST_USE;
/* The leader's stamp: overwrites time_ms in the encoded commands that are about leases. */
void command_stamp(void *cmd, size_t len, uint64_t time_ms);
const char *command_kind_name(uint16_t kind);

/* Results travel back to the proposer: i32 code (0 or a negative code), u64 id (volume, node, group,
 * attachment), u64 index, u32 number (attach epoch; attachments fenced; the incarnation known, of a
 * refused node start or regroup; objects that a removed node takes with it), str text (says what to do
 * about a refusal), u16 count, then for CMD_OBJECT one i8 per change (0 done, else enum
 * object_refusal), for CMD_RENEW one per attachment (0 goes on, 1 it is gone). */
enum object_refusal {
	OBJ_DONE = 0,
	OBJ_CONFLICT = 1, /* another epoch */
	OBJ_NO_OBJECT = 2,
	OBJ_WOULD_EMPTY = 3,
	OBJ_NOT_MEMBER = 4, /* the replica, or who proposes has no say */
	OBJ_INCARNATION = 5,
	OBJ_NOT_IN = 6,
	OBJ_IS_IN = 7, /* remove: and I has no more than the policy's copies */
	OBJ_EPOCH_LIMIT = 8,
	OBJ_NEEDED = 9, /* remove: may hold data that the policy still wants; or the primary's */
	OBJ_FULL = 10,	/* place: the object has MEMBERS_MAX members */
	OBJ_UNKNOWN = 11,
	OBJ_SERVED = 12, /* force: its primary may be serving */
	OBJ_KEPT = 13, /* the replica is in quarantine */
	OBJ_NOT_KEPT = 14,
	OBJ_UNSURE = 15, /* not while the object is unsure (state_recover.c) */
};
struct command_result {
	int code;
	uint64_t id, index; /* index: Raft index it was applied at */
	uint32_t number;
	char text[256];
	unsigned count;
	int8_t object[OBJECT_CHANGES_MAX];
};
void command_result_encode(const struct command_result *r, struct writer *w);
int command_result_decode(struct reader *r, struct command_result *out) MUST_USE;
