/* SPDX-License-Identifier: Apache-2.0 */
/* Map pages in RAM. What it holds is a copy of a committed page; a stale place in it is harmless
 * (reads verify, I1), a stale version is not: shards put only what tier_destaged or an unsuperseded
 * lookup gave them. */
#include "store/page_cache.h"

#include <string.h>

void page_cache_init(struct page_cache *c, size_t limit_bytes)
{
	fifo_cache_init(&c->fifo, sizeof(struct page_cache_item), limit_bytes);
}

void page_cache_fini(struct page_cache *c)
{
	fifo_cache_fini(&c->fifo);
}

static struct fifo_key key_of(uint64_t object, uint32_t page)
{
	return (struct fifo_key){ .a = object, .b = page };
}

const struct page_cache_item *page_cache_get(struct page_cache *c, uint64_t object, uint32_t page)
{
	return fifo_cache_get(&c->fifo, key_of(object, page));
}

void page_cache_put(struct page_cache *c, uint64_t object, uint32_t page, const struct map_page *p,
		    uint32_t operands)
{
	struct page_cache_item *it = fifo_cache_put(&c->fifo, key_of(object, page));

	if (it) {
		it->page = *p;
		it->operands = operands;
	}
}

void page_cache_drop(struct page_cache *c, uint64_t object, uint32_t page)
{
	fifo_cache_drop(&c->fifo, key_of(object, page));
}
