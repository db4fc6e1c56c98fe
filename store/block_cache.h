/* SPDX-License-Identifier: Apache-2.0 */
/* Verified blocks by the map entry that names them: place and fp64. A place is written once per
 * segment generation, and the fingerprint tells generations apart, so a write cannot leave it stale
 * and nothing is ever invalidated. Per shard, single thread. */
#pragma once

#include "store/fifo_cache.h"
#include "store/tier.h"

struct block_cache {
	struct fifo_cache fifo;
};

struct block_cache_item {
	struct fp128 fp;
	uint8_t data[BLOCK_SIZE];
};

void block_cache_init(struct block_cache *c, size_t limit_bytes);
void block_cache_fini(struct block_cache *c);
const struct block_cache_item *block_cache_get(struct block_cache *c, const struct map_entry *e);
void block_cache_put(struct block_cache *c, const struct map_entry *e, const void *data,
		     struct fp128 fp);
