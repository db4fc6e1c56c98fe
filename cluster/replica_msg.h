/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the data plane (cluster/replication.md, rules N, W, T, Y). Bodies, little-endian; `version`
 * is u32 tenure, u64 seq. Frozen by tests/replica/test_replica_msg.c. Pure; any thread.
 *
 * All messages about an object, except FENCE and FENCED, begin with the key
 *    0 u64 object   8 u32 tenure of the primary   12 u32 join (the primary's number of this JOIN)
 *
 * BEACON, GRANT   u64 time in µs on the beacon sender's clock, later than in any beacon that its shard sent
 *                 before: it names the beacon (N6). The grant echoes it
 * FENCE, FENCED   u64 object, u32 seen
 * JOIN            key, u32 generation of the addressed replica, u8 flags (1 syncing, 2 unsure), u8 epochs,
 *                 u16 group, u32 group incarnation, version last, version commit,
 *                 epochs × (u32 tenure, u64 first seq)
 * JOINED          key, u8 status (0 joined, 1 NAK), u8 reason (enum nak_reason), u16 folds,
 *                 version last, version commit, folds × u64
 * STALE           key (of the JOIN refused), u32 seen
 * REPLICATE       key, u8 kind (0: commit announcement), u8 skip mask, u16 fingerprints,
 *                 version commit, version, u32 block, u32 blocks, u32 attachment,
 *                 u32 attach epoch, u64 request, u64 low-water;
 *                 kind copy: u64 data, zero, hole, damaged masks; fingerprints × fp128;
 *                 kind complete: u32 length and the retry table.
 *                 Payload: one block per fingerprint
 * ACK             u16 log fill (1/10000), u16 credits, u16 entries, u16 0, u32 destaged blocks/s,
 *                 credits × (u16 group, u8 full, u8 0, u64 bytes granted in this session),
 *                 entries × (key, version durable, u32 copies and completes, u64 bytes durable in
 *                 this join; a record counts its payload and 256)
 * VERSIONS        key, u32 region, u8 answer (0: a question, and the end);
 *                 u64 damaged, 64 × version
 * MANIFEST        key, u32 page, u8 answer; version, u64 data, zero, hole, damaged,
 *                 fp64 × data blocks
 * REPAIR_READ     key, u64 ticket, u32 block, u32 blocks (≤ 64), version commit
 * DAMAGED         key, u32 page, u64 blocks: a member in good standing lacks these (one bit each)
 * REPAIR_DATA     key, u64 ticket, u8 found, u8 0, u16 fingerprints, fp128 × fingerprints; payload
 */
#pragma once

#include "net/wire.h"
#include "node/base/err.h"
#include "store/store.h"

#define MSG_KEY_SIZE          16u
#define MSG_REPLICATE_MAX     (16u + 4 + 24 + 32 + 32 + 16 * RECORD_BLOCKS_MAX)
#define MSG_RETRY_MAX         (1u << 20)
#define MSG_FOLDS_MAX         (OBJECT_BLOCKS_MAX / REGION_BLOCKS)
#define MSG_RECORD_BYTES      256u
#define MSG_ACK_ENTRIES_MAX   256u
#define MSG_ACK_CREDITS_MAX   8u
#define MSG_REPAIR_BLOCKS_MAX PAGE_BLOCKS

struct msg_key {
	uint64_t object;
	uint32_t tenure, join;
};

struct msg_fence {
	uint64_t object;
	uint32_t seen;
};

struct msg_join {
	struct msg_key key;
	uint32_t gen, group_incarnation; /* with the group: which replica is meant */
	uint16_t group;
	bool syncing;
	bool unsure; /* the object is: who has more says so, and nothing is cut */
	struct version last, commit;
	unsigned epoch_count;
	struct epoch_entry epochs[EPOCHS_MAX];
};

enum nak_reason {
	NAK_NONE = 0,
	NAK_NO_REPLICA = 1,   /* not created yet, or of another generation: ask again later */
	NAK_GAP = 2,          /* a record did not follow the one before: join again */
	NAK_UNKNOWN_TAIL = 3, /* the epoch table does not reach back to my tail: drop me */
	NAK_DIVERGED = 4,     /* my commit is not in this history: nothing was cut */
	NAK_FULL = 5,         /* no space for a copy */
	NAK_FAILED = 6,       /* my group failed */
	NAK_KEPT = 7,	      /* I am in quarantine */
	NAK_AHEAD = 8,	      /* I know a later write to be committed; of an unsure object: I have one */
};

struct msg_joined {
	struct msg_key key;
	uint8_t status, reason;
	struct version last, commit;
	unsigned fold_count;
	uint64_t folds[MSG_FOLDS_MAX];
};

struct msg_stale {
	struct msg_key key;
	uint32_t seen;
};

struct msg_replicate {
	struct msg_key key;
	struct record record; /* kind 0: only commit counts */
	unsigned fp_count;
	const uint8_t *fps; /* decode: in place, unaligned; msg_fps copies them out */
	const uint8_t *retry;
	uint32_t retry_len;
};

struct msg_ack_entry {
	struct msg_key key;
	struct version durable;
	uint32_t copies;
	uint64_t bytes;
};
struct msg_credit {
	uint16_t group;
	bool full;
	uint64_t granted;
};
struct msg_ack {
	uint16_t fill;
	uint32_t destage_rate;
	unsigned credit_count, entry_count;
	struct msg_credit credits[MSG_ACK_CREDITS_MAX];
	struct msg_ack_entry entries[MSG_ACK_ENTRIES_MAX];
};

struct msg_versions {
	struct msg_key key;
	uint32_t region;
	bool answer;
	uint64_t damaged;
	struct version versions[REGION_PAGES];
};

struct msg_manifest {
	struct msg_key key;
	uint32_t page;
	bool answer;
	struct version version;
	uint64_t data, zero, hole, damaged;
	uint64_t fp64[PAGE_BLOCKS]; /* by block; zero where not data */
};

struct msg_repair_read {
	struct msg_key key;
	uint64_t ticket;
	uint32_t block, blocks;
	struct version commit;
};
struct msg_damaged {
	struct msg_key key;
	uint32_t page;
	uint64_t blocks;
};
struct msg_repair_data {
	struct msg_key key;
	uint64_t ticket;
	bool found;
	unsigned fp_count;
	struct fp128 fps[MSG_REPAIR_BLOCKS_MAX];
};

/* Decoders: 0 or -ERR_PROTOCOL; every field is in its range afterwards. */
void msg_beacon_encode(uint64_t time_us, struct writer *w);
int msg_beacon_decode(struct reader *r, uint64_t *time_us) MUST_USE;
void msg_fence_encode(const struct msg_fence *m, struct writer *w);
int msg_fence_decode(struct reader *r, struct msg_fence *out) MUST_USE;
void msg_join_encode(const struct msg_join *m, struct writer *w);
int msg_join_decode(struct reader *r, struct msg_join *out) MUST_USE;
void msg_joined_encode(const struct msg_joined *m, struct writer *w);
int msg_joined_decode(struct reader *r, struct msg_joined *out) MUST_USE;
void msg_stale_encode(const struct msg_stale *m, struct writer *w);
int msg_stale_decode(struct reader *r, struct msg_stale *out) MUST_USE;
/* fps: fp_count fingerprints in memory, beside the message. */
void msg_replicate_encode(const struct msg_replicate *m, const struct fp128 *fps, struct writer *w);
int msg_replicate_decode(struct reader *r, uint32_t payload_len,
			 struct msg_replicate *out) MUST_USE;
void msg_fps(const struct msg_replicate *m, struct fp128 *out); /* fp_count of them */
void msg_ack_encode(const struct msg_ack *m, struct writer *w);
int msg_ack_decode(struct reader *r, struct msg_ack *out) MUST_USE;
void msg_versions_encode(const struct msg_versions *m, struct writer *w);
int msg_versions_decode(struct reader *r, struct msg_versions *out) MUST_USE;
void msg_manifest_encode(const struct msg_manifest *m, struct writer *w);
int msg_manifest_decode(struct reader *r, struct msg_manifest *out) MUST_USE;
void msg_repair_read_encode(const struct msg_repair_read *m, struct writer *w);
int msg_repair_read_decode(struct reader *r, struct msg_repair_read *out) MUST_USE;
void msg_repair_data_encode(const struct msg_repair_data *m, struct writer *w);
int msg_repair_data_decode(struct reader *r, uint32_t payload_len,
			   struct msg_repair_data *out) MUST_USE;

void msg_damaged_encode(const struct msg_damaged *m, struct writer *w);
int msg_damaged_decode(struct reader *r, struct msg_damaged *out) MUST_USE;

/* Pages that a record's range touches, and which of its blocks travel: the blocks of pages that the
 * skip mask does not name. */
unsigned record_pages(const struct record *r);
uint32_t record_payload_blocks(const struct record *r);
