/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded cache of equal items by a 128-bit key, S3-FIFO: a tenth for newcomers, the rest for what
 * was asked for again, and a memory of keys lately dropped. Memory is taken in slabs as it fills, never
 * above the limit. Under page_cache and block_cache. Single thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "node/base/list.h"

struct fifo_key {
	uint64_t a, b;
};

struct fifo_item {
	struct list link;
	struct fifo_item *next; /* in its hash slot */
	struct fifo_key key;
	uint8_t freq, main;
	_Alignas(16) uint8_t data[];
};

struct fifo_cache {
	size_t item_size, capacity, count, small_count, small_limit;
	uint32_t slot_mask;
	struct fifo_item **slots;
	uint32_t *ghosts; /* hash tags of keys lately dropped from the small queue */
	struct list small, main, spare, slabs;
	uint64_t hits, misses;
};

/* A limit below a few items means: caches nothing. */
void fifo_cache_init(struct fifo_cache *c, size_t data_size, size_t limit_bytes);
void fifo_cache_fini(struct fifo_cache *c);
void *fifo_cache_get(struct fifo_cache *c, struct fifo_key key);  /* counts; NULL: miss */
void *fifo_cache_peek(struct fifo_cache *c, struct fifo_key key); /* does not count */
/* The item's memory, to be filled now; an old one with this key is returned as it is. May drop
 * others. NULL: the cache has no room at all. */
void *fifo_cache_put(struct fifo_cache *c, struct fifo_key key);
void fifo_cache_drop(struct fifo_cache *c, struct fifo_key key);
