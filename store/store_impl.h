/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the log half of the store. Everything of a shard belongs to its loop thread. What threads
 * share is in struct store: the segment table under `lock` (taken once per segment), atomics else. */
#pragma once

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "store/header.h"
#include "store/lane.h"
#include "store/log_index.h"
#include "store/store_device.h"
#include "store/tier.h"

#define APPEND_MOVE 0xff /* store_append.kind of a re-appended record */

/* A record above the commit, or a committed one whose batch is not formed yet. */
struct log_tail {
	struct list link;	/* store_object.tail, by version */
	struct list batch_link; /* batch.records until it has its place */
	struct store_object *object;
	struct record r;
	struct fp128 *fps;
	unsigned fp_count;
	uint32_t pos;	/* of its payload (without payload: of its batch); LOG_NONE while in an open batch */
	uint32_t pos_in_batch; /* of its payload, until then */
	uint64_t batch; /* 0: from recovery */
	bool recovered, moving;
};

/* An object that has records in a segment: its header goes into the map before the segment is freed. */
struct log_note {
	struct list link;
	struct store_object *object;
	struct list object_link;
	uint64_t upto; /* seq that the object had reached with its last record there */
};

struct space_waiter {
	struct list link;
	struct wait *wait;
	struct list *caller; /* unused by us: the caller's memory */
};

struct store_object {
	struct hnode node;
	struct shard *shard;
	uint64_t id;
	uint32_t gen, volume;
	bool compression, dedup, deleted, damaged, used, replaying;
	uint32_t reduce; /* the newest request the tier was told of */
	struct object_header h;	 /* commit: min(known, last) */
	struct version known;	 /* highest commit heard of */
	struct version last, durable, destaged;
	struct version base; /* replay: commit that the map's header had */
	uint64_t born;
	uint64_t saved_batch;	 /* the header in the map has the state as of this batch; 0: not saved yet */
	uint64_t saved_seq;	 /* and all that is committed up to here */
	struct retry_table retry;
	struct list tail, tails_link; /* link in shard.tails while the tail is not empty */
	struct list pages, notes;
	unsigned page_count, destaging, refs, copies_open; /* copies in the open batch */
	struct log_note *note; /* of the segment it wrote to last */
	uint32_t noted_seg;
	uint64_t changes;  /* counts what changes its page versions */
	uint64_t destages; /* counts finished ones: a map page read before may be old */
	struct object_delete *deleting;
};

/* What a shard has in a segment. The segment can go when live and readers are 0 and notes are saved. */
struct shard_seg {
	struct list dirty, notes;
	uint32_t live, readers;
};

#define DESTAGE_BATCHES 4u
#define DESTAGE_PAGES 128u
#define DESTAGE_BLOCKS 4096u
#define HEADERS_PER_BATCH 64u
#define CHECKS_MAX 16u

struct destage {
	struct shard *shard;
	struct destage_batch batch;
	struct page_node **nodes; /* of batch.pages */
	struct destage_page *pages;
	struct destage_block *blocks;
	bool busy;
};

struct header_save {
	struct destage_batch batch;
	struct destage_header headers[HEADERS_PER_BATCH];
	struct version destaged[HEADERS_PER_BATCH];
	struct log_note *notes[HEADERS_PER_BATCH];
	struct version commit[HEADERS_PER_BATCH];
	struct writer bytes;
	uint64_t covers; /* batch seq */
	bool busy;
};

struct page_checking {
	struct wait wait;
	struct shard *shard;
	struct store_object *object;
	struct tier_page get;
	bool busy;
};

struct shard {
	struct store *store;
	unsigned index;
	struct loop *loop;
	struct lane lane;
	struct hmap objects, pages;
	struct arena arena;
	struct shard_seg *segs;
	struct list tails;
	struct pool reads;

	/* Segments to clear, oldest first: those found by recovery, then the lane's own. */
	uint32_t *queue;
	unsigned queue_head, queue_count;

	struct destage destages[DESTAGE_BATCHES];
	struct header_save headers;
	struct page_checking *checks; /* CHECKS_MAX */
	struct log_move *move;
	struct timer tick;
	unsigned destages_busy, checks_busy, dirty_pages, ops;
	atomic_uint dirty_told; /* dirty_pages, for any thread */
	uint64_t full_until_us; /* the capacity tier said FULL: not before */
	uint32_t flush_number, flush_left;
	struct list flushes, space_waiters;
	struct list pending_headers; /* wait for log space, in order; appends wait behind them */
	struct flush *flush; /* the one under way; others queue in flushes */
	atomic_bool poked, room; /* room: the poke is for those who wait for space, too */
	atomic_uint waiting; /* space waiters */
	struct post poke, setup, stop;
	bool stopping, running, kicking;
	void (*damage_fn)(void *arg, const struct store_damage *d);
	void *damage_arg;
	sem_t *stopped;

	/* Read by any thread. */
	_Atomic uint64_t log_blocks, index_bytes, object_count, appended_blocks, destaged_blocks, corrupt,
		device_written, device_read;
	atomic_uint fill, destage_rate; /* permyriad; blocks/s */
	uint64_t rate_mark_us, rate_blocks, rate_appended; /* at the last tick */
	bool writing; /* clients write, as of the last tick */
};

enum log_seg_state { SEG_FREE, SEG_OPEN, SEG_CLOSED, SEG_LEGACY, SEG_RELEASING };

struct log_seg {
	struct log_pool *pool;
	uint64_t off; /* byte offset on the device */
	uint64_t generation, last_batch;
	enum log_seg_state state;
	unsigned lane;
	atomic_uint shards_left; /* legacy: shards that have not cleared it */
	uint32_t next;		 /* legacy: the next one by generation */
};

struct log_pool {
	struct device *device;
	unsigned first, count, lanes;
	atomic_uint free;
};

struct store {
	struct device devices[GROUP_DEVICES_MAX]; /* capacity in index order, then the cache device */
	unsigned device_count, capacity_count;
	struct device *retired[GROUP_DEVICES_MAX]; /* replaced ones: reads may still be in them */
	unsigned retired_count;
	bool buffered;
	pthread_mutex_t superblocks; /* held while they are written, once the store is open */
	struct uuid cluster, node;
	uint64_t index_budget; /* per shard */

	pthread_mutex_t lock; /* log_seg.state, log_pool.free */
	struct log_pool pools[GROUP_DEVICES_MAX];
	unsigned pool_count;
	struct log_seg *segs;
	struct log_segment_header *legacy; /* of segments found by recovery, as they are marked at release */
	uint32_t seg_count, seg_blocks;
	uint64_t log_seed;
	uint64_t session; /* first generation of this opening */
	_Atomic uint64_t generation; /* next */
	_Atomic uint64_t legacy_floor; /* all segments with a lower generation are released */
	atomic_uint legacy_left;

	struct recovery *recovery; /* between scan and replay */
	struct tier *tier;
	struct shard *shards;
	unsigned shard_count;
	bool started;
	atomic_int failed;
	_Atomic uint64_t granted;
	atomic_bool space_wanted;    /* somebody waits for what destage gives back */
	atomic_bool destage_full;    /* the capacity devices took no more */
};

/* store_group.c */
int group_open(const struct store_config *cfg, bool strict, struct store **out) MUST_USE;
void group_close(struct store *s);
void group_tier_config(struct store *s, const struct store_config *cfg, struct tier_config *out);
int group_raise_sequence(struct store *s) MUST_USE;
int group_save_members(struct store *s) MUST_USE; /* the table of members, into all superblocks */
int group_failing(const struct store *s); /* what the group failed with, or is about to; 0: it goes on */
void group_listen(struct store *s); /* from here on a failing device is acted upon */
const struct superblock *store_superblock(const struct store *s); /* what all say */

/* store.c */
void store_fail(struct store *s, int code, const char *why);
static inline int store_failed(const struct store *s)
{
	return atomic_load_explicit(&s->failed, memory_order_relaxed);
}
static inline struct shard *store_shard(struct store *s, unsigned shard)
{
	CHECK(shard < s->shard_count);
	return &s->shards[shard];
}
void shard_quiesce(struct shard *sh); /* something ended: stopping may be complete */

/* recovery.c: blocking, before any loop runs. */
int recovery_scan(struct store *s, uint64_t *kv_commit) MUST_USE; /* which batches count; seals torn tails */
int recovery_replay(struct store *s) MUST_USE; /* objects of the map are there already */
void recovery_free(struct store *s);
void recovery_object(struct store *s, const struct tier_object *t); /* one object of the map */

/* A header change that found no room in the log. */
struct pending_header {
	struct list link;
	struct store_append *op;
	struct log_record record;
	struct fp128 *fps;
	uint8_t *bytes;
};
void shard_retry_headers(struct shard *sh);

/* store_object.c */
struct store_object *object_new(struct shard *sh, uint64_t id, uint32_t gen, uint32_t volume);
void object_drop_log(struct store_object *o); /* tail, pages, notes */
void object_put_ref(struct store_object *o);
void object_encode(struct store_object *o, bool for_map, struct writer *w);
void object_try_delete(struct store_object *o);

/* store_append.c */
void object_advance(struct store_object *o); /* moves committed records into the index */
void object_settle(struct store_object *o);  /* also those in the open batch */
void object_note(struct store_object *o, uint32_t seg);
void note_free(struct shard *sh, struct log_note *n);
void object_cut(struct store_object *o, struct version after);
void object_check_epochs(struct store_object *o); /* drops tail records that the table does not hold */
struct log_tail *tail_new(struct store_object *o, const struct record *r, const struct fp128 *fps,
			  unsigned fp_count);
void tail_insert(struct store_object *o, struct log_tail *t);
void tail_free(struct shard *sh, struct log_tail *t);
void tail_unhold(struct shard *sh, const struct log_tail *t);
void shard_batch_placed(struct shard *sh, struct batch *b);
void shard_batch_durable(struct shard *sh, struct batch *b);

/* store_destage.c */
void shard_destage_kick(struct shard *sh);
void shard_tick(struct timer *t);
void shard_flush_next(struct shard *sh, int rc);
void shard_page_clean(struct shard *sh, const struct page_node *p); /* a dirty page was destaged or dropped */
void shard_segment_closed(struct shard *sh);
void store_wake(struct store *s); /* log space was freed: wake waiters of all shards */
void store_kick(struct store *s); /* destage is to look again, in all shards; nobody is woken */
void shard_wake(struct shard *sh);
uint32_t shard_fill(struct shard *sh);

/* store_read.c */
size_t store_read_op_size(void);

/* store_move.c: re-appends tails that stand in a due segment. */
bool shard_move_tails(struct shard *sh, uint32_t seg);
bool shard_moving(const struct shard *sh);
void shard_move_free(struct shard *sh);

/* Segments and positions. */
static inline uint32_t pos_seg(const struct store *s, uint32_t pos) { return pos / s->seg_blocks; }
static inline struct device *pos_device(const struct store *s, uint32_t pos)
{
	return s->segs[pos_seg(s, pos)].pool->device;
}
static inline uint64_t pos_off(const struct store *s, uint32_t pos)
{
	return s->segs[pos_seg(s, pos)].off + (uint64_t)(pos % s->seg_blocks) * BLOCK_SIZE;
}
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
	/* One writer each: a plain load and store is enough. */
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n, memory_order_relaxed);
}
static inline uint64_t counter_get(const _Atomic uint64_t *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}
