/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster map: which nodes, disk groups, volumes and object replicas there are. What the state
 * machine holds, what shards and clients route by. No I/O, no clock; a map belongs to one thread.
 * This file and map.c are a target of their own, so that clients carry neither RocksDB nor libraft.
 *
 * Object id = volume id << 32 | index. Volume ids are never reused, so neither are object ids. */
#pragma once

#include "node/base/bytes.h"
#include "node/base/hmap.h"
#include "node/base/uuid.h"
#include "store/version.h"

#define NODES_MAX 64u /* at a time */
#define NODE_IDS_MAX 1023u /* numbers ever given out: those of removed nodes stay theirs */
#define GROUPS_PER_NODE_MAX 5u
#define COPIES_MAX 3u
#define MEMBERS_MAX 6u /* copies, and members on their way in or out */
#define OBJECTS_MAX 50000u
#define MEMBERS_TOTAL_MAX 200000u /* with the limits below: a whole map fits one frame (net/wire.h) */
#define VOLUMES_MAX 2048u
#define ATTACHMENTS_MAX 1024u
#define ATTACHMENTS_REVOKED_MAX 256u /* revoked ones are kept up to this many, then forgotten */
#define STRIPE_COUNT_MAX 64u
#define OBJECT_SIZE_MIN (64ull << 20)
#define OBJECT_SIZE_MAX (4ull << 30)
#define NAME_MAX_LEN 63u
#define VOLUME_SIZE_MAX (64ull << 40)
#define STRIPE_UNIT (1u << 20)

enum node_role { ROLE_STORAGE = 1, ROLE_VOTER = 2, ROLE_GATEWAY = 4 };
enum node_state { NODE_JOINING = 1, NODE_ACTIVE = 2, NODE_REMOVED = 3, NODE_DEAD = 4 };

struct map_node {
	struct hnode by_id;
	uint16_t id; /* 1 …; also its Raft id */
	struct uuid uuid;
	char name[NAME_MAX_LEN + 1], fault_set[NAME_MAX_LEN + 1];
	char address[64];      /* numeric host:port of the peer port */
	char admin[64];	       /* numeric host:port of the admin TLS port, "" if none */
	uint32_t incarnation;  /* registered at start, compare-and-swap */
	uint16_t shards;       /* power of two */
	uint8_t roles, state, version_major, version_minor;
	/* A maintenance lease, in wall time of the leaders that stamped it; until 0: there is none. One
	 * that ran out stays until somebody ends it, so that it is seen. */
	uint64_t maintenance_since_ms, maintenance_until_ms;
	char maintenance_reason[64];
	/* Since the cluster was recovered from a lost Raft majority it has not come back to it: whatever it
	 * has may be newer than what the cluster knows. */
	bool awaited;
	uint64_t changed; /* state index of the last change of this record */
};

enum group_state { GROUP_PENDING = 1, GROUP_ACTIVE = 2, GROUP_FAILED = 3, GROUP_REMOVED = 4 };
struct map_group {
	struct hnode by_id;
	uint16_t id, node;
	struct uuid uuid;
	uint32_t incarnation;
	uint8_t state;
	uint8_t free_steps; /* free space in 5 % steps, 0–20 */
	uint64_t raw_bytes; /* data space */
	uint64_t changed;
};

enum volume_flags { VOLUME_COMPRESSION = 1, VOLUME_DEDUP = 2 };
enum volume_state { VOLUME_LIVE = 1, VOLUME_DELETED = 2 /* only in deltas */ };
struct map_volume {
	struct hnode by_id;
	uint32_t id;
	struct uuid uuid;
	char name[NAME_MAX_LEN + 1];
	uint64_t size, object_size; /* object_size: power of two, 64 MiB–4 GiB */
	uint32_t stripe_count, objects;
	uint8_t copies, min_in_sync, flags, state;
	uint32_t attach_epoch;	  /* the last one given out */
	uint32_t reduce; /* how often its existing data was asked to be reduced by the policy of then */
	uint64_t changed;
	uint64_t objects_changed; /* newest `changed` of its objects */
	struct map_object *object; /* array of `objects`; [index]; moves when the volume grows */
};

struct map_member {
	uint16_t group;
	uint32_t group_incarnation;
	uint32_t gen; /* epoch at which it was placed */
	bool in;
	bool filled; /* was `in` once: may hold acknowledged writes that no member of I has */
	/* In quarantine: a force went past it, or it has what its source lost. It is `out`, nobody fills it
	 * or purges it, until an operator discards it or forces the object to it. */
	bool kept;
};

struct map_object {
	uint64_t id;
	uint32_t epoch, tenure;
	uint8_t member_count, primary; /* index into member */
	uint32_t primary_incarnation;  /* node incarnation the tenure is bound to */
	struct map_member member[MEMBERS_MAX];
	/* Its configuration is from before such a recovery and may have been superseded: until a primary has
	 * seen all members that may hold data, none is dropped, promoted, placed or removed. */
	bool unsure;
	/* One in quarantine has acknowledged writes that all of I lack, whose disks went back (T5): nobody
	 * serves until an operator forces the object, or nothing is in quarantine any more. */
	bool undecided;
	uint64_t changed;
};

enum attach_mode { ATTACH_EXCLUSIVE = 1, ATTACH_SHARED = 2 };
struct map_attachment {
	struct hnode by_id;
	uint32_t id; /* never reused */
	uint32_t volume, epoch; /* attach epoch: grows per volume at every attach */
	uint8_t mode;
	bool revoked; /* kept until nobody needs to be told */
	char holder[128]; /* "node:<uuid>" or "client:<name>" and the host name */
	uint32_t ttl_ms;  /* its gateway renews it about every third of that */
	/* By command time. The state only: a renewal is no news to shards and clients, so it is in no
	 * delta and moves no map version. */
	uint64_t renewed_ms;
	uint64_t changed;
};

/* What a node may copy for rebuilds and returns, in MiB/s: at least, however busy clients are, and at
 * most (0: no limit). From the cluster's settings. */
struct map_limits {
	uint32_t floor_mib, limit_mib;
	uint64_t changed;
};

struct map {
	uint64_t version; /* Raft index of the last change */
	struct uuid cluster;
	uint32_t next_volume, next_attachment;
	uint16_t next_node, next_group;
	struct map_limits limits;
	struct hmap nodes, groups, volumes, attachments;
};

void map_init(struct map *m);
void map_fini(struct map *m);
struct map_node *map_node(const struct map *m, uint16_t id);
struct map_node *map_node_by_uuid(const struct map *m, const struct uuid *u);
struct map_node *map_node_by_name(const struct map *m, const char *name); /* name or uuid text */
struct map_group *map_group(const struct map *m, uint16_t id);
struct map_volume *map_volume(const struct map *m, uint32_t id);
struct map_volume *map_volume_by_name(const struct map *m, const char *name); /* name or uuid text */
struct map_object *map_object(const struct map *m, uint64_t id);
/* The node is away, or about to be, on purpose and for a known time: until then its absence starts no
 * rebuild. Unknown nodes are not. */
bool map_node_in_maintenance(const struct map *m, uint16_t node, uint64_t now_ms);
/* How long an attachment has still to live at wall time `now_ms`: 0 when its time ran out. */
uint64_t map_attachment_left_ms(const struct map_attachment *a, uint64_t now_ms);
struct map_attachment *map_attachment(const struct map *m, uint32_t id);
const char *map_fault_set(const struct map_node *n); /* its name, if it has none */
/* The node at "node:UUID NAME"; NULL: a client, or nobody known. */
struct map_node *map_holder_node(const struct map *m, const char *holder);
/* Node of the member's group, if the group's incarnation is still the member's. */
struct map_node *map_member_node(const struct map *m, const struct map_member *mb);
/* NULL while there is none: the primary resigned, lost its group, or the object is not known yet. */
struct map_node *map_primary_node(const struct map *m, const struct map_object *o);
/* Filled and not in quarantine, as the map here has it, on a node that did not come back since a recovery. */
bool map_member_awaited(const struct map *m, const struct map_member *mb);
/* A node that may hold more of an unsure object has not come back yet: nobody may take it over. */
bool map_object_awaits(const struct map *m, const struct map_object *o);
unsigned map_in_count(const struct map_object *o);

/* An epoch is a recovery generation, raised by force, above a counter that is never reset. */
#define EPOCH_COUNTER_MAX 0xffffffu
static inline uint32_t epoch_generation(uint32_t epoch) { return epoch >> 24; }

static inline uint64_t object_id(uint32_t volume, uint32_t index)
{
	return (uint64_t)volume << 32 | index;
}
static inline uint32_t object_volume(uint64_t id) { return (uint32_t)(id >> 32); }
static inline uint32_t object_index(uint64_t id) { return (uint32_t)id; }
/* Objects belong to shard id mod shards; streams between two nodes: max of their shard counts, stream s
 * joins shard s mod shards(a) with shard s mod shards(b). */
static inline unsigned object_shard(uint64_t id, unsigned shards) { return (unsigned)(id & (shards - 1)); }

/* Address formula (design: striping). Splits at stripe units: *len is cut to what lies in the unit. */
struct volume_place {
	uint32_t index;	 /* object */
	uint32_t offset; /* bytes in the object */
};
struct volume_place volume_locate(const struct map_volume *v, uint64_t off, uint32_t *len);
/* Geometry a new volume gets: object size, objects. -ERR_LIMIT. */
int volume_geometry(uint64_t size, unsigned groups, uint64_t *object_size, uint32_t *stripe_count,
		    uint32_t *objects);
uint32_t volume_objects_for(uint64_t size, uint64_t object_size, uint32_t stripe_count);

/* Deltas: what changed after version `from`, or everything when from is 0 (the state also chooses 0 when
 * a subscriber is too old). Frozen by tests/state. Body, little-endian:
 *
 *   u64 from, u64 to, u8 full, uuid cluster, u32 next volume, u32 next attachment, u16 next node,
 *   u16 next group, then records: u8 kind, u32 length, fields. Later versions append fields or kinds;
 *   a reader ignores what it does not know. str = u16 length and bytes.
 *
 *   NODE        u16 id, uuid, str name, str fault set, str address, str admin, u32 incarnation,
 *               u16 shards, u8 roles, u8 state, u8 version major, u8 minor;
 *               then maintenance: u64 since ms, u64 until ms (0: none), str reason; u8 awaited
 *   GROUP       u16 id, u16 node, uuid, u32 incarnation, u8 state, u8 free steps, u64 raw bytes
 *   VOLUME      u32 id, uuid, str name, u64 size, u64 object size, u32 stripe count, u32 objects,
 *               u8 copies, u8 min in-sync, u8 flags, u8 state, u32 attach epoch; then u32 reduce
 *   OBJECT      u64 id, u32 epoch, u32 tenure, u32 primary incarnation, u8 members | primary << 4,
 *               u8 mask of `in` members, members × (u16 group, u32 group incarnation, u32 gen),
 *               u8 mask of `filled` members, u8 mask of those `kept` | undecided << 6 | unsure << 7
 *   ATTACHMENT  u32 id, u32 volume, u32 epoch, u8 mode, u8 revoked, str holder; then u32 ttl ms
 *   *_GONE      u32 id
 *   LIMITS      u32 floor MiB/s, u32 limit MiB/s
 *
 * Applying is idempotent: what is not newer than the map is ignored. A malformed delta changes nothing
 * (-ERR_PROTOCOL); one that starts after the map's version is -ERR_STALE and one of another cluster
 * -ERR_FOREIGN: subscribe again, from 0. changed() is called for each record taken, with the new state
 * in place; a full delta also tells what is gone. An object's epoch never goes back. */
enum map_record { MAP_REC_NODE = 1, MAP_REC_GROUP = 2, MAP_REC_VOLUME = 3, MAP_REC_OBJECT = 4,
		  MAP_REC_ATTACHMENT = 5, MAP_REC_VOLUME_GONE = 6, MAP_REC_ATTACHMENT_GONE = 7,
		  MAP_REC_LIMITS = 8 };
/* gone: (uint64_t)MAP_REC_VOLUME_GONE or _ATTACHMENT_GONE << 32 | id. */
void map_delta_encode(const struct map *m, uint64_t from, const uint64_t *gone, unsigned gone_count,
		      struct writer *w);
int map_delta_apply(struct map *m, struct reader *r,
		    void (*changed)(void *arg, enum map_record kind, uint64_t id), void *arg) MUST_USE;
