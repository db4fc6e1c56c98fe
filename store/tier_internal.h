/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the tier: what its files share. Three kinds of thread: a shard's loop (struct tier_shard),
 * the destager (everything marked so), the blocking pool (runs lookups only). They meet in the
 * request queue (lock), in posts, and in the atomics. */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "node/base/err.h"
#include "node/base/hmap.h"
#include "node/base/log.h"
#include "store/block_cache.h"
#include "store/dedup.h"
#include "store/gc.h"
#include "store/kv.h"
#include "store/scrub.h"
#include "store/page_cache.h"
#include "store/segment.h"
#include "store/settle.h"
#include "store/share.h"
#include "store/tier_loss.h"
#include "store/tier_pace.h"

#define ROUND_BLOCKS        8192u /* payload blocks of one commit, unless one batch has more */
#define GATHER_DEPTH        64u   /* reads of one thread at a time */
#define DELETE_STEP_PAGES   256u
#define OPERAND_ENTRIES_MAX 8u
#define OPERANDS_MAX        8u
#define SEG_FOLD_COMMITS    256u
#define FETCH_BATCH         64u
#define FETCH_BATCHES       2u
#define FETCHES_MAX         512u
#define READS_MAX           128u

/* ---- The destager's side ---- */

struct tobj_region {
	struct map_region now, next; /* next: as of the commit being built, when dirty */
	bool dirty;
};

/* An object as the database has it. */
struct tobj {
	struct hnode node;
	struct list link; /* in t->deleting */
	uint64_t id;
	uint32_t gen, volume;
	enum object_state state;
	struct object_counters counters, counters_next;
	uint8_t *header, *header_saved; /* saved: the committed one, while a commit replaces it */
	size_t header_len, header_saved_len;
	struct tobj_region *regions;
	uint32_t region_count;
	uint32_t delete_page; /* where the next delete step begins */
	uint32_t reduce_page; /* where the next reduce step begins */
	uint32_t reduce_want, reduced; /* requests to look at all pages: newest, newest done */
	uint64_t reduce_left;          /* pages; reduce_policy: that came with it */
	uint16_t flags, flags_saved, reduce_policy; /* enum object_flags; saved: in the database */
	bool reduce_again;    /* pages before that were marked meanwhile */
	bool row_dirty, has_saved;
	bool recount; /* a page of it was lost: counters and folds are to be made again */
};

/* A page being changed by the commit that is being built. */
struct work_page {
	struct hnode node; /* in t->round */
	struct tobj *o;
	uint32_t index;
	struct map_page *page; /* old state after loading, then the new one */
	struct version old;
	uint8_t old_flags;
	bool load_failed;
	bool rewrite;      /* its row is bad, what is here is from the cache */
	bool untold;       /* no batch brings it to its shard */
	uint32_t operands; /* since the last whole write, at most */
	uint64_t changed;  /* blocks */
};

struct region_ref {
	struct tobj *o;
	uint32_t region;
};

struct tier_request; /* destager.c */

struct prepare;

struct tier {
	struct kv *kv;
	struct segments seg; /* destager */
	struct uuid group;
	uint32_t group_incarnation, map_incarnation; /* map_incarnation: what the database says at open */
	uint64_t log_kv_commit;
	void (*damaged)(void *arg, unsigned shard, const struct store_damage *d);
	void *damaged_arg;
	pthread_mutex_t commit_lock; /* held while a commit is built and made; tier_verify takes it */

	/* Queue to the destager, newest first. It takes all at once; a closed queue takes nothing
	 * more. */
	pthread_t thread;
	bool thread_running;
	_Atomic(struct destage_batch *) batches;
	_Atomic(struct tier_request *) requests;
	sem_t more_work;
	_Atomic bool stopping;
	pthread_mutex_t lock; /* for tier_stop only, with more: never the destager's */
	pthread_cond_t more;

	/* Pacing. */
	_Atomic unsigned requests_open, hurry, writing; /* hurry, writing: of so many shards */
	struct pace pace;

	/* Destager. */
	struct hmap objects; /* tobj by id */
	struct list deleting;
	struct page_cache cache;
	struct kv_batch *batch;
	struct hmap round; /* work_page */
	struct region_ref *dirty_regions;
	struct tobj **dirty_objects;
	size_t dirty_region_count, dirty_region_cap, dirty_object_count, dirty_object_cap;
	uint64_t delta_first; /* oldest commit with a segment delta in the database */
	bool *chunk_dirty[GROUP_DEVICES_MAX];
	struct prepare *prepare;
	uint32_t prepare_threads; /* as configured */
	struct gc_state gc;
	struct shares shares;
	struct dedup dedup;
	char *metadata_dir;
	struct scrub scrub;
	struct object_counters totals; /* of all objects, as committed */
	uint64_t reduce_left;
	uint64_t kv_counted; /* the commit that kv_bytes is of */
	bool bypass;
	bool recount_wanted; /* an object may have `recount` */
	_Atomic bool reduce_wanted; /* an object may have OBJECT_REDUCE_LATER */
	struct loss loss;
	struct settle settle;

	/* Shards. */
	struct tier_shard *shards;
	unsigned shard_count;
	uint64_t page_cache_bytes, block_cache_bytes;
	bool started;
	struct worker_pool *pool;
	_Atomic unsigned parity; /* which of the readers' counters new reads use */
	_Atomic bool grace_wanted;

	/* For any thread. */
	_Atomic uint64_t deleting_n, commit, live_bytes, kv_bytes, objects_n, destaged_blocks, gc_blocks;
	_Atomic uint64_t bypassed_blocks, reduced_blocks;
	struct ledger_cell ledger;
	_Atomic uint64_t written_bytes, moved_bytes, corrupt_blocks, io_errors;
	_Atomic int failed;
};

/* tier_commit.c: one commit. Destager. */
struct tobj *tobj_find(struct tier *t, uint64_t object);
struct tobj *tobj_create(struct tier *t, uint64_t object, uint32_t gen, uint32_t volume);
/* Within a commit: taken back if it fails (a header says what is destaged, I3). */
void tobj_set_header(struct tier *t, struct tobj *o, const void *header, size_t len);
struct tobj_region *tobj_region(struct tobj *o, uint32_t region); /* grows */
void tobj_free(struct tier *t, struct tobj *o);
/* In a commit, or before one. Objects that refer to shared blocks stay where they are. */
void tobj_set_volume(struct tier *t, struct tobj *o, uint32_t volume);
void tobj_set_flags(struct tier *t, struct tobj *o, unsigned flags);
void txn_begin(struct tier *t);
/* Reads the pages of all (from the cache or the database) into w->page. */
int txn_load(struct tier *t, struct work_page *w, unsigned count) MUST_USE;
/* The same past the cache, as scrub wants it; what the database has lost comes from the cache. */
int txn_load_fresh(struct tier *t, struct work_page *w, unsigned count) MUST_USE;
/* Takes out what the entry had; its fingerprint stays. */
void txn_entry_damage(struct tier *t, struct work_page *w, unsigned index);
/* Gives back what the entry holds and takes it out of the page. */
void txn_entry_clear(struct tier *t, struct work_page *w, unsigned index);
/* The entry (its word final, or about to be) is in the page: counters. kind and units of the new
 * one. */
void txn_entry_set(struct tier *t, struct work_page *w, unsigned index, unsigned kind,
		   unsigned units);
/* An entry that is counted becomes a reference to a share; the share's place stays as it is. */
void txn_entry_share(struct tier *t, struct work_page *w, unsigned index, unsigned kind,
		     unsigned units, struct tshare *s);
void txn_page(struct tier *t, struct work_page *w); /* its row and its region's, at the end */
void txn_page_delete(struct tier *t, struct work_page *w); /* the same for a page that goes */
void txn_object(struct tier *t, struct tobj *o);
/* Flush devices, one synced batch, then RAM follows. An error: nothing happened (or, from the
 * database, nobody knows: t->failed is set). */
int txn_commit(struct tier *t) MUST_USE;
void txn_abort(struct tier *t);
void txn_publish(struct tier *t); /* numbers as of this commit, for any thread */
uint64_t tier_mono_us(const struct tier *t);
void tier_count_kv(struct tier *t); /* the same of the database; every 64 commits, and before sleeping */
void tier_fail(struct tier *t, int rc, const char *what);
struct tobj_region *txn_region(struct tier *t, struct tobj *o, uint32_t region); /* `next` is to be set */
void count_entry(struct object_counters *c, unsigned kind, unsigned units, int sign);
/* recount.c: counters and folds of objects that lost a page, from their pages. False: none has. */
bool recount_step(struct tier *t);

/* destage.c: takes as many batches off the queue as make one commit, and commits. */
void round_batches(struct tier *t, struct destage_batch **queue);
/* destager.c */
void *destager_main(void *arg);
void destager_batch_end(struct tier *t, struct destage_batch *b, int rc);
/* destager.c. On a shard: a read met something bad; it is looked at again, and marked. */
void tier_suspect(struct tier *t, unsigned shard, uint64_t object, uint32_t page, uint64_t blocks);
/* After a commit: shards forget what they have of pages and shares whose places changed. */
struct moved_page {
	uint64_t object;
	uint32_t page;
};
void tell_shards(struct tier *t, const struct moved_page *pages, unsigned page_count,
		 const uint64_t *shares, unsigned share_count);
bool reduce_step(struct tier *t); /* reduce.c: false: nothing to do, or not now */
bool reduce_has_room(const struct tier *t);
void reduce_ask(struct tier *t, struct tobj *o, uint32_t number, uint16_t policy);
void reduce_progress(struct tier *t, struct tobj *o); /* what is left of the object is counted */
bool delete_step(struct tier *t); /* false: nothing to delete */

/* ---- A shard's side ---- */

struct shard_object {
	struct hnode node;
	uint64_t id;
	uint32_t region_count;
	struct map_region *regions;
	uint64_t lost; /* number of the last loss that hit it and was not made good; 0: none */
	uint64_t lost_regions[LOST_REGION_WORDS];
};

/* One lookup of a page in the database; those who asked wait in it. */
struct fetch {
	struct list link; /* in shard->pending */
	struct hnode node;
	uint64_t object;
	uint32_t page;
	int rc;
	bool stale, nocache, fresh;
	struct list waiters; /* struct tier_page */
	struct map_page out;
};

struct fetch_batch {
	struct work work;
	struct wait wait;
	struct tier_shard *shard;
	struct fetch *items[FETCH_BATCH];
	unsigned count;
	bool busy;
};

struct tier_shard {
	struct tier *t;
	unsigned index;
	struct loop *loop;
	struct hmap objects; /* shard_object */
	struct page_cache pages;
	struct block_cache blocks;
	struct fifo_cache shares; /* word and fp64 by id; may be old, reads verify */
	struct hmap fetches;
	struct list pending, fetch_waiters, read_waiters;
	struct fetch_batch batches[FETCH_BATCHES];
	struct pool fetch_pool, read_pool;
	struct buf_pool *bounce;
	struct turn_end pump;
	bool stopped, retrying;
	struct post stop;
	_Atomic bool drained;
	_Atomic uint32_t readers[2];
	_Atomic uint64_t hits, misses, reads, read_bytes;
	_Atomic uint32_t fill; /* of the log, permyriad */
	bool hurry, writing;
};

/* tier_page.c */
struct shard_object *shard_object_get(struct tier_shard *s, uint64_t object, bool create);
struct map_region *shard_region(struct tier_shard *s, uint64_t object, uint32_t region,
				bool create);
void shard_object_drop(struct tier_shard *s, uint64_t object);
void shard_init(struct tier *t, unsigned index, size_t page_cache_bytes, size_t block_cache_bytes);
void shard_fini(struct tier_shard *s);
void shard_start(struct tier_shard *s, struct loop *loop);
void shard_stop_post(struct post *p);
void shard_check_drained(struct tier_shard *s);
/* Places of this page have moved: forget what is cached. */
void shard_page_moved(struct tier_shard *s, uint64_t object, uint32_t page);
/* tier_read.c */
size_t tier_read_op_size(void);
void shard_fail_reads(struct tier_shard *s);

/* tier_verify.c: the recount of store/space.h. 0, or -ERR_CORRUPT with a log line each. */
struct tier_verify {
	uint64_t pages, blocks, bad_blocks, differences, shares;
};
int tier_verify(struct tier *t, bool data, struct tier_verify *out) MUST_USE;
