/* SPDX-License-Identifier: Apache-2.0 */
/* One disk group of this node: what cluster/ may ask of it.
 *
 * A store is opened by a set-up thread (blocking), then started: from then on each object belongs to
 * the shard `object mod shards` and every call about it is made on that shard's loop thread. Calls
 * follow node/base/op.h (0, < 0, PENDING). Data is 4 KiB blocks; a page is 64 blocks, a region 64
 * pages (16 MiB). Errors: -ERR_CORRUPT/-ERR_DAMAGED (bytes that cannot be produced here),
 * -ERR_FULL, -ERR_DEVICE/-ERR_LOG_LOST/-ERR_MAP_LOST (the group failed; it serves nothing more),
 * -ERR_LIMIT (log full now: wait with store_wait_space). */
#pragma once

#include "node/base/buf.h"
#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "node/base/uuid.h"
#include "node/loop/loop.h"
#include "node/loop/worker.h"
#include "store/version.h"

#define PAGE_BLOCKS 64u
#define PAGE_SHIFT 6
#define REGION_PAGES 64u
#define REGION_BLOCKS (PAGE_BLOCKS * REGION_PAGES)
#define RECORD_BLOCKS_MAX 256u
#define RECORD_PAGES_MAX 5u
#define OBJECT_BLOCKS_MAX (1u << 20) /* 4 GiB */
#define GROUP_DEVICES_MAX 8u
#define EPOCHS_MAX 16u
#define RETRY_WINDOW 256u /* request numbers an attachment may have above its low-water, per object */
#define SHARDS_MAX 64u

struct store;
struct store_object;

/* ---- Devices and groups: blocking, set-up threads ---------------------------------------------- */

enum device_role { DEVICE_CACHE = 1, DEVICE_CAPACITY = 2 };

struct store_format {
	struct uuid cluster, node, group;
	uint32_t group_incarnation;
	const char *cache; /* path of the cache device or file, or NULL: single-tier */
	const char *const *capacity;
	unsigned capacity_count; /* 1–7 */
	const char *metadata_dir; /* directory for RocksDB; must exist and be empty */
	bool wipe; /* false: a device that carries any signature is refused, naming it (-ERR_EXISTS) */
};
/* Writes "pending" superblocks. A re-run with the same group uuid finishes a half done one. */
int store_format(const struct store_format *f) MUST_USE;
/* Pending → final, once Raft has given the group its number. */
int store_finalize(const char *const *devices, unsigned count, const struct uuid *group,
		   uint16_t group_number) MUST_USE;

struct store_config {
	const char *const *devices; /* all devices of the group, in any order */
	unsigned device_count;
	const char *metadata_dir;
	struct uuid cluster, node;
	unsigned shards;
	uint64_t page_cache_bytes, block_cache_bytes, log_index_bytes;
	uint64_t dedup_hint_bytes; /* limit; 0: 64 MiB */
	bool buffered; /* no O_DIRECT (file systems that refuse it) */
	bool check_map; /* the group failed at work: all of the map is read before it is believed */
	bool as_is;	/* the map is damaged and not given up: pages that cannot be read count as damaged */
};
/* Opens exclusively (-ERR_BUSY naming who holds it), verifies identity (-ERR_FOREIGN), recovers log and
 * map. When the log or the map is lost the error says so and the caller decides (store_reset). Capacity
 * devices that are missing, or fail later, cost their blocks only (store_device.h). */
int store_open(const struct store_config *cfg, struct store **out) MUST_USE;
/* Log or map lost, or Raft knows a newer incarnation: the group starts empty (map lost) or without log
 * under a new incarnation. Durable before return; then store_open again. */
int store_reset(const struct store_config *cfg, uint32_t group_incarnation, bool keep_map) MUST_USE;
/* Node incarnation into every superblock, durable before return (replication N1). */
int store_set_node_incarnation(struct store *s, uint32_t incarnation) MUST_USE;
int store_start(struct store *s, struct loop *const *loops, unsigned shards) MUST_USE;
/* Stops taking work; every pending wait ends. From a set-up thread, loops still running. */
void store_stop(struct store *s);
void store_close(struct store *s);

struct store_identity {
	struct uuid group;
	uint16_t group_number;
	uint32_t group_incarnation, node_incarnation;
};
void store_identity(const struct store *s, struct store_identity *out); /* any thread */

/* ---- Objects ---------------------------------------------------------------------------------- */

/* Replica of `object` with this generation on the calling shard, or NULL. */
struct store_object *store_object_find(struct store *s, unsigned shard, uint64_t object, uint32_t gen);
void store_object_each(struct store *s, unsigned shard,
		       void (*fn)(void *arg, struct store_object *o), void *arg);
uint64_t store_object_id(const struct store_object *o);
uint32_t store_object_gen(const struct store_object *o);

struct store_create {
	struct wait *wait;
	struct store_object *object; /* out */
	uint64_t id;
	uint32_t gen, volume;
	void *impl;
};
/* The object record is durable before it resumes. A replica of another generation is deleted first. */
int store_object_create(struct store *s, unsigned shard, struct store_create *op, uint64_t id,
			uint32_t gen, uint32_t volume, struct wait *w) MUST_USE;
/* Gone for the caller at once; space comes back in the background; a restart repeats nothing. */
int store_object_delete(struct store_object *o, struct wait *w) MUST_USE;
void store_object_set_policy(struct store_object *o, bool compression, bool dedup);
/* Existing data is to be reduced by the policy of now, in the background. request: grows with each; one that
 * was done, or is under way, is not done again. 0: none. */
void store_object_reduce(struct store_object *o, uint32_t request);

/* ---- The object header: what is durable at a replica besides pages ----------------------------- */

struct epoch_entry {
	uint32_t tenure;
	uint64_t first_seq;
};

struct object_header {
	uint32_t seen;		 /* highest tenure accepted */
	struct version commit;	 /* known commit */
	unsigned epoch_count;
	struct epoch_entry epochs[EPOCHS_MAX]; /* ascending */
};
/* As appended, maybe not yet durable. */
const struct object_header *store_header(const struct store_object *o);
struct version store_last(const struct store_object *o); /* newest appended record of the tail, or commit */
struct version store_durable(const struct store_object *o);   /* newest with all before it durable */
struct version store_commit_version(const struct store_object *o);
struct version store_known(const struct store_object *o); /* heard to be committed; in a fill beyond last */
bool store_is_new(const struct store_object *o); /* no record was ever appended */
/* Recovery found damage in the lane (replication L3): records from `store_last` on may be missing. */
bool store_is_damaged(const struct store_object *o);

/* Retry table: numbers applied per (attachment, attach epoch). 1: below low-water; 2: known, *v is its
 * version; 0: new. Kept by store_append from the records, cut with them. */
enum retry_answer { RETRY_NEW = 0, RETRY_BELOW = 1, RETRY_KNOWN = 2 };
enum retry_answer store_retry_lookup(const struct store_object *o, uint32_t attachment,
				     uint32_t attach_epoch, uint64_t request, struct version *v);
/* Whole table as bytes for COMPLETE; 0 or -ERR_PROTOCOL for bad bytes. */
void store_retry_encode(const struct store_object *o, struct writer *w);

/* ---- Log --------------------------------------------------------------------------------------- */

enum record_kind {
	RECORD_WRITE = 1,
	RECORD_TRIM = 2,   /* reads as zeros, unmapped */
	RECORD_ZEROES = 3, /* reads as zeros, stays allocated */
	RECORD_COPY = 4,   /* catch-up: blocks of one page, carries that page's version */
	RECORD_EPOCH = 5,  /* header change: seen, epoch table */
	RECORD_CUT = 6,	   /* header change, and all records after `version` are void */
	RECORD_COMPLETE = 7, /* header change at the end of catch-up, with the retry table */
	RECORD_MARK = 8,   /* reserved: snapshots */
};

struct record {
	uint8_t kind;
	uint8_t skip_mask; /* bit i: the i-th page the range touches travels without payload and is not
			    * applied here; its version is not raised */
	struct version version, commit;
	uint32_t block, blocks; /* ≤ RECORD_BLOCKS_MAX; a copy: the page's first block, 64 */
	uint32_t attachment, attach_epoch;
	uint64_t request, low_water;
	/* RECORD_COPY only: blocks (bit = index in page) in the payload, zeroes, holes, damaged. Blocks in
	 * none of them are left as they are. */
	uint64_t copy_data, copy_zero, copy_hole, copy_damaged;
};

/* Caller-owned; stays valid until the resume. The payload is copied inside the call. */
struct store_append {
	struct wait *wait;
	struct store_object *object;
	struct list link;
	uint64_t batch;
	struct version version;
	uint8_t kind;
};
/* RECORD_WRITE/TRIM/ZEROES/COPY. payload: the blocks that are not skipped, in order; fps: one each,
 * already verified by the caller. Resumes when this batch and every earlier one of the lane are
 * durable. -ERR_LIMIT: the log has no room now (store_wait_space); nothing was done. */
int store_append(struct store_object *o, struct store_append *op, const struct record *r,
		 const void *payload, const struct fp128 *fps, struct wait *w) MUST_USE;
/* RECORD_EPOCH/CUT/COMPLETE: makes `h` the header. CUT: drops all tail records above `cut_after` at
 * once (never at or below the commit: -ERR_DIVERGED) . COMPLETE: `retry` from store_retry_encode of
 * the primary, or NULL. Uses the reserve, and waits for room: never -ERR_LIMIT. */
int store_put_header(struct store_object *o, struct store_append *op, enum record_kind kind,
		     const struct object_header *h, struct version cut_after, const void *retry,
		     size_t retry_len, struct wait *w) MUST_USE;
/* Records ≤ v are committed: readable, destageable. v beyond the tail is remembered. */
void store_commit(struct store_object *o, struct version v);
/* Resumes once, when the log may have room again. */
int store_wait_space(struct store *s, unsigned shard, struct list *link, struct wait *w) MUST_USE;

/* The tail: records above the commit (and, for JOIN, above `from`) with payload, oldest first. */
struct store_tail {
	struct wait *wait;
	struct record record;	/* out */
	struct slice payload;	/* out; caller unrefs */
	struct fp128 fps[RECORD_BLOCKS_MAX]; /* out */
	void *impl;
	struct io io;
};
/* The first record with version > after that is still in the log; -ENODATA when there is none;
 * -ERR_STALE when records above `after` were destaged already. */
int store_tail_next(struct store_object *o, struct store_tail *op, struct version after,
		    struct buf_pool *pool, struct wait *w) MUST_USE;

/* ---- Reads: the committed view ----------------------------------------------------------------- */

struct store_read {
	struct wait *wait;
	/* in */
	uint32_t block, blocks; /* ≤ RECORD_BLOCKS_MAX */
	uint8_t *dest;		/* 4 KiB aligned, blocks × 4096; NULL: status only */
	/* out */
	struct fp128 fps[RECORD_BLOCKS_MAX]; /* of what is in dest */
	uint64_t hole[RECORD_BLOCKS_MAX / 64], zero[RECORD_BLOCKS_MAX / 64]; /* bit per block */
	uint64_t bad[RECORD_BLOCKS_MAX / 64]; /* cannot be produced here; rc is -ERR_DAMAGED */
	void *impl;
};
/* Every block is verified by its fingerprint. Never-written blocks are holes and read as zeros. */
int store_read(struct store_object *o, struct store_read *op, struct wait *w) MUST_USE;

/* ---- Catch-up ---------------------------------------------------------------------------------- */

/* XOR over the region's existing pages of xxh3-64, seed 0, of (page le32, tenure le32, seq le64). */
struct store_folds {
	struct wait *wait;
	uint64_t *folds; /* in: array of `regions` */
	uint32_t first_region, regions;
	bool uncommitted; /* count the uncommitted tail (the source does; a target has cut its own) */
	void *impl;
};
int store_folds(struct store_object *o, struct store_folds *op, struct wait *w) MUST_USE;
uint64_t store_fold_term(uint32_t page, struct version v);

struct store_versions {
	struct wait *wait;
	uint32_t region;
	bool uncommitted;
	struct version versions[REGION_PAGES]; /* out; {0,0}: the page was never written */
	uint64_t damaged;		       /* out; bit per page */
	void *impl;
};
int store_page_versions(struct store_object *o, struct store_versions *op, struct wait *w) MUST_USE;

struct store_manifest {
	struct wait *wait;
	uint32_t page;
	struct version version;		  /* out: committed */
	uint64_t data, hole, zero, damaged; /* out; partition of the 64 blocks */
	uint64_t fp64[PAGE_BLOCKS];	  /* out; for `data` blocks, and damaged ones of which it is known */
	void *impl;
};
int store_manifest(struct store_object *o, struct store_manifest *op, struct wait *w) MUST_USE;

/* ---- Space ------------------------------------------------------------------------------------- */

#define STORE_BYTES_PER_BLOCK 4160u /* worst case raw cost of a logical block, for credits */

/* Takes up to `want` bytes off the free space for a primary's window, little where little is left; 0 means
 * FULL. What appends do not use must be given back. Any thread. */
uint64_t store_grant(struct store *s, uint64_t want);
/* After store_grant gave too little: whether that is to stay so. False while destage or deletes may give
 * space back (destage then hurries): ask again a little later. Any thread. */
bool store_is_full(struct store *s);
/* For a copy of catch-up, which has no window: what is parked in windows counts as free, up to half of the
 * reserve. All of `bytes` (to be spent or returned), or false. Any thread. */
bool store_grant_copy(struct store *s, uint64_t bytes) MUST_USE;
void store_grant_return(struct store *s, uint64_t bytes);
void store_grant_spend(struct store *s, uint64_t bytes); /* an append under a grant: moves granted → in log */

struct store_stats {
	uint64_t raw_bytes, data_bytes, data_used_bytes, data_free_bytes, granted_bytes;
	uint64_t log_bytes, log_used_bytes, log_index_bytes, metadata_used_bytes;
	uint64_t logical_bytes, objects;
	uint64_t appended_blocks, destaged_blocks, gc_blocks, device_written_bytes, device_read_bytes;
	uint64_t page_cache_hits, page_cache_misses, corrupt_blocks, io_errors;
	/* raw_bytes = data_used + padding + summary + dead + free + reserve + lost + log + layout: the raw
	 * side of the ledger, as of the newest map commit. layout: superblocks and what no segment fits
	 * in. */
	uint64_t padding_bytes, summary_bytes, dead_bytes, free_bytes, reserve_bytes, layout_bytes;
	uint64_t zero_bytes, dedup_saved_bytes, compression_saved_bytes, damaged_bytes;
	/* Lost capacity devices: free segments (part of the raw sum), and what of data_used stands there. */
	uint64_t lost_bytes, lost_live_bytes;
	uint64_t losses; /* changes when more was found to be lost */
	/* Hints: matches found through them; their table, and what it may grow to; hints that gave way to
	 * newer ones, or led nowhere. */
	uint64_t dedup_matched_blocks, dedup_hint_bytes, dedup_hint_budget_bytes, dedup_hint_evictions,
		dedup_false_hints;
	uint64_t page_cache_budget_bytes, block_cache_budget_bytes;
	uint64_t log_unreduced_bytes; /* blocks in the log that are not in the ledger yet */
	uint64_t reduce_bypassed_blocks, reduce_redone_blocks; /* stored raw under load; looked at again */
	uint32_t reduce_pending; /* 1: some of it is still to be looked at, when there is time */
	uint32_t log_fill_permyriad; /* max(log used/limit, index used/budget), 0–10000 */
	uint32_t destage_blocks_per_s;
	/* device_written = log + data_written + moved. data_written: from the log to segments; moved: again,
	 * by collecting and later reduction. Summaries are in both. */
	uint64_t data_written_bytes, moved_bytes;
	/* Of this store's threads in the database, its own threads not counted; rows they asked for by key,
	 * and the reads of table blocks these took. data_reads: of capacity devices, for readers. */
	uint64_t map_cpu_us, map_gets, map_table_reads, data_reads;
	int failed; /* 0, or the code the group failed with */
};
void store_stats(struct store *s, struct store_stats *out); /* any thread */

/* Destages everything that is appended now, once it is committed; after 2 s, what is committed then. From
 * a shard's loop; resumes when done. -ERR_FULL: the capacity devices have no room for it. */
int store_flush(struct store *s, unsigned shard, struct post *scratch, struct wait *w) MUST_USE;
/* Until nothing that is destaged is left to be reduced (stored raw under load, or asked for), deletes are
 * through, and what all that left behind is collected: from then on the ledger is what it would be had the
 * machine never been busy. While writes keep the log above 0.60 it waits, with destage in a hurry. From a
 * shard's loop; resumes when done. -ERR_FULL: no room to reduce in. -ETIMEDOUT, after limit_us: ask again. */
int store_settle(struct store *s, unsigned shard, uint64_t limit_us, struct wait *w) MUST_USE;

/* Offline, read-only, tolerant decoder for `ashlard inspect PATH` (device, file or metadata directory).
 * Prints to stdout; 0, or 1 when something is damaged, or < 0 when nothing could be read. */
int store_inspect(const char *path, bool verbose);
