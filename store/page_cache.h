/* SPDX-License-Identifier: Apache-2.0 */
/* Decoded map pages by (object, page). One per shard and one for the destager. Single thread. */
#pragma once

#include "store/fifo_cache.h"
#include "store/tier.h"

struct page_cache {
	struct fifo_cache fifo;
};

struct page_cache_item {
	struct map_page page;
	uint32_t operands; /* merged since its last whole write, at most; the destager's business */
};

void page_cache_init(struct page_cache *c, size_t limit_bytes);
void page_cache_fini(struct page_cache *c);
const struct page_cache_item *page_cache_get(struct page_cache *c, uint64_t object, uint32_t page);
void page_cache_put(struct page_cache *c, uint64_t object, uint32_t page, const struct map_page *p,
		    uint32_t operands);
void page_cache_drop(struct page_cache *c, uint64_t object, uint32_t page);
