/* SPDX-License-Identifier: Apache-2.0 */
/* A store on files with loops of its own; calls of the store made from the test's thread and waited for. */
#pragma once

#include <semaphore.h>

#include "store/store_impl.h"
#include "tests/lib/test.h"

#define RIG_DEVICES 3

struct rig {
	char paths[RIG_DEVICES][600];
	char meta[600];
	const char *names[RIG_DEVICES];
	unsigned count;
	bool cache; /* the last of them */
	struct uuid cluster, node, group;
	unsigned shards;
	uint64_t index_bytes;
	struct loop *loops[SHARDS_MAX];
	struct store *store;
};

/* One or more capacity files, and a cache file if so. Formats and finalizes. */
void rig_make(struct rig *r, const char *name, unsigned capacity, bool cache, uint64_t bytes);
int rig_open(struct rig *r, unsigned shards);	/* and start */
void rig_close(struct rig *r);			/* a clean end */
int rig_reopen(struct rig *r, unsigned shards);	/* both */
void rig_begin(struct rig *r, const char *name);	/* one file, open, one shard, object 2 in it */
/* `to` gets the devices and the map as they are at this instant, all shards standing still; fn, if any, runs
 * in that instant too. */
void rig_crash_copy(struct rig *r, struct rig *to, const char *name, void (*fn)(void *arg), void *arg);

/* Runs fn on the shard's loop and waits until it has ended; fn may return PENDING. */
int rig_call(struct rig *r, unsigned shard, int (*fn)(void *arg, struct wait *w), void *arg);

/* Ready-made calls. Objects belong to shard id mod shards. */
struct store_object *rig_object(struct rig *r, uint64_t id, uint32_t gen);
int rig_create(struct rig *r, uint64_t id, uint32_t gen);
int rig_append(struct rig *r, uint64_t id, const struct record *rec, uint64_t seed);
int rig_header(struct rig *r, uint64_t id, enum record_kind kind, const struct object_header *h,
	       struct version cut);
void rig_commit(struct rig *r, uint64_t id, uint32_t tenure, uint64_t seq);
int rig_read(struct rig *r, uint64_t id, uint32_t block, uint32_t blocks, uint8_t *dest,
	     struct store_read *op);
int rig_flush(struct rig *r);
struct version rig_last(struct rig *r, uint64_t id);
struct version rig_known(struct rig *r, uint64_t id);

/* Content of block b of the write with this seed. */
void block_fill(uint8_t *p, uint64_t seed, uint32_t b);
/* A write of n blocks. */
struct record rec_write(uint32_t tenure, uint64_t seq, uint32_t block, uint32_t blocks);
/* A copy of page 0, committed as far as its own version, with these of its blocks. */
struct record rec_copy(uint32_t tenure, uint64_t seq, uint64_t data);
/* Expects block to hold what seed wrote (0: zeros). */
void expect_block(struct rig *r, uint64_t id, uint32_t block, uint64_t seed);

/* Overwrites bytes of a device file behind the store's back (closed). */
void rig_poke(struct rig *r, unsigned device, uint64_t off, const void *p, size_t n);
void rig_peek(struct rig *r, unsigned device, uint64_t off, void *p, size_t n);
