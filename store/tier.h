/* SPDX-License-Identifier: Apache-2.0 */
/* The capacity tier of a group: segments on the capacity devices and the map in RocksDB. Internal
 * to store/: the log side (store.c, lane.c, log_index.c) stands on it.
 *
 * Threads: tier_open/tier_close set-up; tier_page_get, tier_read, tier_object_* on a shard's loop
 * thread; tier_destage from a shard's loop, done by the group's destager thread, which is also the
 * only committer and runs GC. Only RocksDB callers are that thread and the blocking pool. */
#pragma once

#include "node/base/bytes.h"
#include "store/device.h"
#include "store/space.h"
#include "store/store_scrub.h"

struct tier;

struct tier_config {
	struct device *capacity; /* array, opened, in index order */
	unsigned capacity_count;
	const char *metadata_dir;
	struct uuid group;
	uint32_t group_incarnation;
	unsigned shards;
	uint64_t page_cache_bytes, block_cache_bytes;
	uint64_t dedup_hint_bytes; /* at most; 0: the default (dedup.h) */
	unsigned destage_threads;  /* per group, the destager among them; 0: by the cores (prepare.h) */
	/* Highest map commit number that any log batch or header names: a database below it has
	 * lost synced commits: -ERR_MAP_LOST. */
	uint64_t log_kv_commit;
	bool read_only; /* to be verified, never started */
	bool check_map; /* all of the database is read first (kv_check) */
	bool as_is;	/* kv_open_as_is */
	/* Blocks that were marked damaged, on the object's shard; may be NULL. */
	void (*damaged)(void *arg, unsigned shard, const struct store_damage *d);
	void *damaged_arg;
	/* From the destager, when capacity devices were found to have failed, or are missing. */
	void (*on_lost)(void *arg);
	void *on_lost_arg;
};
int tier_open(const struct tier_config *cfg, struct tier **out) MUST_USE;
int tier_start(struct tier *t, struct loop *const *loops, unsigned shards) MUST_USE;
void tier_stop(struct tier *t);
void tier_close(struct tier *t);
/* Empties database and segments; used by store_reset and store_format. */
int tier_format(const struct tier_config *cfg) MUST_USE;
uint64_t tier_kv_commit(const struct tier *t); /* newest durable commit number; any thread */

/* Objects known to the database at open; before tier_start. */
struct tier_object {
	uint64_t id;
	uint32_t gen, volume;
	bool deleting;
	const uint8_t *header; /* the encoded object header and retry table as last committed */
	size_t header_len;
};
void tier_objects(struct tier *t, void (*fn)(void *arg, const struct tier_object *o), void *arg);

/* A decoded map page. Blocks in no mask are holes. */
enum map_kind {
	MAP_HOLE = 0,
	MAP_ZERO = 1,
	MAP_RAW = 2,
	MAP_LZ4 = 3,
	MAP_SHARE = 4,
	MAP_DAMAGED = 5
};
struct map_entry {
	uint64_t word; /* kind 3 bits · units−1 6 · location 43 · spare 12, as stored */
	uint64_t fp64;
};
struct map_page {
	struct version version; /* {0,0}: no such page */
	uint64_t mask;          /* blocks that have an entry */
	uint8_t flags;
	struct map_entry entry[PAGE_BLOCKS]; /* by block index, not packed */
};

/* One page by key, from the cache or the database. The result is copied out: no pinning. */
struct tier_page {
	struct wait *wait;
	uint64_t object;
	uint32_t page;
	struct map_page out;
	struct list link; /* private */
	bool fresh;       /* private: past the cache */
};
int tier_page_get(struct tier *t, unsigned shard, struct tier_page *op, struct wait *w) MUST_USE;
/* Which pages of a region exist (RAM). A page in the mask that is not found is corruption (I11). */
uint64_t tier_region_mask(struct tier *t, unsigned shard, uint64_t object, uint32_t region);
uint64_t tier_region_fold(struct tier *t, unsigned shard, uint64_t object, uint32_t region);

/* Reads and verifies blocks first … first+count−1 (indices in the page) that are
 * RAW/LZ4/SHARED/ZERO/ hole into dest; holes and zeros are filled with zeros. bad: bit per block
 * index. fps: one per block. If a location moved meanwhile (GC), it looks the page up again (I1).
 */
struct tier_read {
	struct wait *wait;
	uint64_t object;
	uint32_t page;
	unsigned first, count;
	const struct map_page *map; /* what tier_page_get gave; stays valid until the resume */
	uint8_t *dest;
	struct fp128 *fps; /* array of count, or NULL */
	uint64_t bad; /* out; their bytes in dest are zeros. Bad blocks are no error of the call */
	struct list link; /* private */
};
int tier_read(struct tier *t, unsigned shard, struct tier_read *op, struct wait *w) MUST_USE;

/* Destage: for each page all its committed blocks up to its new version (L1, I2), merged by the log
 * index already, newest per block. The log side owns the batch until `done`, and must leave its log
 * space alone until then. A page comes once per batch (else -ERR_INVALID) and a batch is one
 * commit: all or nothing. One of more payload than the device has room to append at once ends in
 * -ERR_FULL: keep to 8,192 blocks. Pages of replicas the database does not know (I7), and versions
 * the page has already, change nothing and are no error. */
struct destage_block {
	uint8_t index; /* in page */
	uint8_t kind;  /* MAP_RAW: payload in the log; MAP_ZERO; MAP_HOLE; MAP_DAMAGED */
	uint64_t fp64;
	uint64_t log_off; /* byte offset of the payload on log_device */
	struct device *log_device;
};
struct destage_page {
	uint64_t object;
	uint32_t gen, page;
	struct version version; /* the page version after this commit */
	bool whole; /* a copy of the whole page state: entries not named keep their value all the
		       same */
	bool compression, dedup;
	unsigned count, first;  /* range in destage_batch.blocks */
	struct map_page result; /* out: the page as committed */
	struct version old;     /* private */
	bool skipped;           /* private: nothing was new in it, or the replica is gone */
};
struct destage_header {
	uint64_t object;
	uint32_t gen, volume;
	const uint8_t *header; /* encoded, to be stored in the same commit (L2) */
	size_t len;
};
struct destage_batch {
	struct destage_page *pages;
	unsigned page_count;
	struct destage_block *blocks;
	unsigned block_count;
	struct destage_header *headers;
	unsigned header_count;
	unsigned shard;
	struct loop *loop;
	int rc;             /* out: 0 durable; -ERR_FULL; -ERR_DEVICE … */
	uint64_t kv_commit; /* out */
	uint64_t damaged; /* out: payload blocks that failed verification and became MAP_DAMAGED */
	struct post done; /* set done.fn; posted to loop when durable (or failed) */
	struct destage_batch *next; /* private */
};
void tier_destage(struct tier *t, struct destage_batch *b);
/* From a shard, whenever its log's fill has changed, and about once a second while anything is to
 * be destaged: what destage may take of the CPU follows (tier_pace.c). writing: clients do; it must be
 * told when they stop. hurry: somebody waits (a flush, space), or records are older than a minute.
 * True: destage rests, nothing is to be handed over now. Cheap when nothing changes. */
bool tier_pace(struct tier *t, unsigned shard, uint32_t fill_permyriad, bool writing, bool hurry);
/* On the shard, in `done` itself: puts results into the page cache and the region table. Before it
 * the log index still answers for these pages; after it tier_page_get never answers with an older
 * one. */
void tier_destaged(struct tier *t, struct destage_batch *b);

/* Object records, durable before the resume. delete marks it deleting and frees pages in steps. */
int tier_object_put(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t volume,
		    const void *header, size_t len, struct work *scratch, struct wait *w) MUST_USE;
/* All of its data is to be looked at again by this policy; number: which request that is. In the background;
 * a request that is done is remembered, one that is not is asked for anew after a restart. */
void tier_object_reduce(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t number,
			bool compression, bool dedup);
int tier_object_delete(struct tier *t, unsigned shard, uint64_t object, uint32_t gen,
		       struct work *scratch, struct wait *w) MUST_USE;

/* store_settle. */
int tier_settle(struct tier *t, unsigned shard, uint64_t limit_us, struct wait *w) MUST_USE;

/* store.h, Scrub. Any thread. */
void tier_scrub_pace(struct tier *t, uint32_t pass_s, uint64_t max_bytes_per_s, uint64_t now_s);
void tier_scrub_start(struct tier *t);
void tier_scrub_stop(struct tier *t);
void tier_scrub_status(struct tier *t, struct store_scrub *out);
/* ---- Lost devices ----
 * A capacity device that fails, or is missing at open (device.failed), costs its blocks only. What
 * stands there
 * counts as damaged from then on; a walk over the map finds which objects have any. */
void tier_device_failed(struct tier *t); /* any thread: look at the devices */
void tier_check(struct tier *t); /* any thread: ask the database, too, how it is */
/* Blocks of the page that cannot be produced: damaged, or on a lost device. */
uint64_t tier_damage(const struct tier *t, const struct map_page *p);
bool tier_loss_known(const struct tier *t); /* no walk is under way or due */
uint64_t tier_losses(const struct tier *t); /* changes with each finding; any thread */
/* On the object's shard: the number of the last loss that took blocks of it, 0 when there was none or all of
 * it was filled again since (refilled: with the number as of the beginning of that). */
uint64_t tier_object_lost(struct tier *t, unsigned shard, uint64_t object);
void tier_object_refilled(struct tier *t, unsigned shard, uint64_t object, uint64_t lost);
/* Pages of this region have lost blocks, though its fold does not say so. */
bool tier_region_lost(struct tier *t, unsigned shard, uint64_t object, uint32_t region);
/* Blocking, set-up threads: a new device takes the place of a lost one, which is given up: what the map still
 * names there becomes damaged. `device` is opened, its superblock laid out; at success it has changed places
 * with the old one's struct, and stays until tier_close, for reads that may still be in it. publish:
 * called by
 * the destager when nothing of the old one is left in the map, and before the first byte goes to the new one;
 * makes the superblocks say so durably. */
int tier_replace(struct tier *t, unsigned index, struct device *device, int (*publish)(void *arg),
		 void *arg) MUST_USE;

/* Bytes a destage of raw blocks may still use, reserve and fill limit off. Any thread. */
uint64_t tier_free_bytes(const struct tier *t);
/* Deletes are under way that will give space back. Any thread. */
bool tier_reclaims(const struct tier *t);
/* The ledger as of the newest commit; any thread. False: nothing of this volume is here. */
void tier_ledger(struct tier *t, struct store_ledger *out);
bool tier_volume_ledger(struct tier *t, uint32_t volume, struct store_ledger *out);
void tier_volume_ledgers(struct tier *t, store_ledger_fn *fn, void *arg);
void tier_stats(const struct tier *t, struct store_stats *out); /* fills the tier's fields */
int tier_verify_all(struct tier *t, bool data, struct store_verify *out) MUST_USE; /* blocking */
int tier_inspect_metadata(const char *dir, bool verbose);
int tier_inspect_segments(struct device *d, bool verbose);
