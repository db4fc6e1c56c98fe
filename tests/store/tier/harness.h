/* SPDX-License-Identifier: Apache-2.0 */
/* A tier on plain files with its loops in threads, a log file to destage from, and a model of what
 * must be in it. Blocks are made from seeds: 0 hole, 1 zero, even compressible, odd not. */
#pragma once

#include "store/tier_internal.h"
#include "tests/lib/test.h"

#define H_OBJECTS 6u
#define H_PAGES   80u /* of each object: more than one region */
#define H_DAMAGED ~0ull

struct model_page {
	struct version version;
	uint64_t seed[PAGE_BLOCKS];
};
struct model {
	bool live[H_OBJECTS];
	uint32_t gen[H_OBJECTS];
	struct model_page page[H_OBJECTS][H_PAGES];
};

struct harness {
	uint64_t damaged; /* blocks of the batch that ended last */
	char dir[512], meta[600];
	unsigned shards;
	struct device cap[2], log;
	unsigned caps;
	struct loop *loops[2];
	struct tier *tier;
	struct tier_config cfg;
	uint64_t log_pos, log_size, seq;
	struct rng rng;
	bool compression, dedup;
	uint32_t high; /* the fill of the log as the tier starts */
	bool mixed;    /* by object: all, dedup, compression, nothing */
	uint64_t pool; /* random blocks come from so many different ones; 0: all differ */
};

/* size: of each capacity file, in MiB; segments of segment_mib. */
void h_init(struct harness *h, const char *name, unsigned caps, unsigned size_mib, unsigned shards);
void h_attach(struct harness *h, const char *name, unsigned caps, unsigned size_mib,
	      unsigned shards);
int h_open(struct harness *h); /* opens and starts */
void h_close(struct harness *h);
void h_fini(struct harness *h);
/* One capacity file, one shard, open, every object there. */
void h_begin(struct harness *h, struct model *m, const char *name, unsigned size_mib);
void h_end(struct harness *h, struct model *m); /* closed and gone, m too */

void h_block(uint64_t seed, uint8_t out[BLOCK_SIZE]);
uint64_t h_object_id(unsigned object);

/* Runs fn on the shard's loop and waits until it has called h_done. */
struct h_call {
	struct post post;
	void (*fn)(struct h_call *c);
	struct harness *h;
	unsigned shard;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	int rc;
};
void h_run(struct harness *h, unsigned shard, struct h_call *c, void (*fn)(struct h_call *c));
void h_done(struct h_call *c, int rc);

int h_object_put(struct harness *h, unsigned object, uint32_t gen);
void h_objects_put(struct harness *h, struct model *m); /* all of them, generation 1 */
int h_object_delete(struct harness *h, unsigned object, uint32_t gen);
#define H_SETTLE_US 3600000000u
int h_settle(struct harness *h); /* tier_settle, waited for */
int h_page_get(struct harness *h, unsigned object, uint32_t page, struct map_page *out);
int h_read(struct harness *h, unsigned object, uint32_t page, const struct map_page *map,
	   unsigned first, unsigned count, uint8_t *dest, struct fp128 *fps, uint64_t *bad);

/* A batch under construction: pages of one shard. */
struct h_batch {
	struct destage_batch b;
	struct h_call call;
	struct harness *h;
	struct model *m;
	unsigned objects[64];
	struct model_page before[64], after[64];
	struct destage_page pages[64];
	struct destage_block blocks[64 * PAGE_BLOCKS];
};
struct h_batch *h_batch_new(struct harness *h, struct model *m, unsigned shard);
/* Adds a page with `count` random blocks of random kinds; seeds_of: 0 any, else all RAW. */
void h_batch_page(struct h_batch *b, unsigned object, uint32_t page, unsigned count, bool raw_only);
void h_batch_block(struct h_batch *b, unsigned index, uint64_t seed); /* to the last page */
struct destage_page *h_batch_open_page(struct h_batch *b, unsigned object, uint32_t page);
void h_batch_submit(struct h_batch *b); /* the model is changed when it is durable */
int h_batch_wait(struct h_batch *b);    /* frees it */
int h_batch_run(struct h_batch *b);     /* submit and wait */

/* Reads everything back and compares; damaged blocks must be those of the model (or any, when
 * damage_ok: then their number is returned). */
uint64_t h_compare(struct harness *h, struct model *m, bool damage_ok);
void h_verify(struct harness *h, bool data);
uint32_t h_volume(unsigned object);
uint64_t h_seed(struct harness *h); /* of a random block */
