/* SPDX-License-Identifier: Apache-2.0 */
/* Lost devices, inside the tier: see tier_loss.c. */
#pragma once

#include <semaphore.h>
#include <stdatomic.h>

#include "store/map_format.h"

struct device;

#define LOST_REGION_WORDS (OBJECT_BLOCKS_MAX / REGION_BLOCKS / 64)
struct lost_shares {
	uint64_t ids;
	struct lost_shares *older; /* a reader may still be in it: freed at close */
	_Atomic uint64_t bits[];
};
enum loss_stage { LOSS_IDLE, LOSS_SHARES, LOSS_PAGES, PURGE_SHARES, PURGE_PAGES };
struct tier_replace { /* a device takes the place of a lost one: by tier_replace, for the destager
		       */
	unsigned index;
	struct device *device;
	int (*publish)(void *arg);
	void *arg;
	int rc;
	sem_t done;
};
struct loss {
	/* Any thread: bit per device index whose entries cannot be read; the shares whose place is
	 * there; whether the walk is still under way; how many notices of it the shards have had;
	 * blocks that it found. */
	_Atomic unsigned lost;
	_Atomic(struct lost_shares *) shares;
	_Atomic bool walking;
	_Atomic uint64_t told, lost_blocks;
	/* Destager. */
	enum loss_stage stage;
	bool walk_wanted, started; /* started: key is within this device's shares */
	unsigned next_device;
	uint64_t number; /* of this loss, from 1 */
	uint8_t key[MAP_KEY_SIZE];
	uint64_t object, objects, blocks, regions[LOST_REGION_WORDS];
	uint64_t purge_shares[256];
	unsigned purge_share_count;
	bool fold_now; /* the next commit writes the whole segment table */
	void (*on_lost)(void *arg);
	void *on_lost_arg;
	/* Any thread. */
	_Atomic(struct tier_replace *) replace;
	_Atomic uint64_t free_bytes,
		live_bytes;    /* on lost devices: free segments, what the map names */
	_Atomic bool kv_check; /* the destager asks the database how it is */
};

/* tier_loss.c. Destager, but for tier_place_lost: any thread. */
bool tier_place_lost(const struct tier *t, uint64_t word); /* on a device that is lost */
bool loss_notice(struct tier *t);
bool loss_step(struct tier *t); /* false: nothing to do */
void loss_end(struct tier *t);
void loss_fini(struct tier *t);
