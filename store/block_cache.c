/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks in RAM. It must hold only what was verified against its map entry. */
#include "store/block_cache.h"

#include <string.h>

void block_cache_init(struct block_cache *c, size_t limit_bytes)
{
	fifo_cache_init(&c->fifo, sizeof(struct block_cache_item), limit_bytes);
}

void block_cache_fini(struct block_cache *c)
{
	fifo_cache_fini(&c->fifo);
}

const struct block_cache_item *block_cache_get(struct block_cache *c, const struct map_entry *e)
{
	return fifo_cache_get(&c->fifo, (struct fifo_key){ e->word, e->fp64 });
}

void block_cache_put(struct block_cache *c, const struct map_entry *e, const void *data, struct fp128 fp)
{
	struct block_cache_item *it = fifo_cache_put(&c->fifo, (struct fifo_key){ e->word, e->fp64 });

	if (it) {
		it->fp = fp;
		memcpy(it->data, data, BLOCK_SIZE);
	}
}
