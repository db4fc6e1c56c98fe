/* SPDX-License-Identifier: Apache-2.0 */
/* S3-FIFO. It must never grow past its limit, whatever is asked of it. */
#include "store/fifo_cache.h"

#include <stdlib.h>
#include <string.h>

#include "node/base/hmap.h"

#define SLAB_ITEMS 64u

static uint64_t key_hash(struct fifo_key k)
{
	return hash_u64(k.a * 0x9e3779b97f4a7c15ull ^ hash_u64(k.b));
}

void fifo_cache_init(struct fifo_cache *c, size_t data_size, size_t limit_bytes)
{
	size_t slots = 1;

	memset(c, 0, sizeof(*c));
	c->item_size = (sizeof(struct fifo_item) + data_size + 15) / 16 * 16;
	/* 20 bytes an item for its slot and ghost. */
	c->capacity = limit_bytes / (c->item_size + 20);
	if (c->capacity < SLAB_ITEMS)
		c->capacity = 0;
	c->small_limit = c->capacity / 10 + 1;
	while (slots < c->capacity)
		slots *= 2;
	c->slot_mask = (uint32_t)(slots - 1);
	/* calloc of this size is untouched memory: it costs nothing until used. */
	c->slots = xcalloc(slots, sizeof(*c->slots));
	c->ghosts = xcalloc(slots, sizeof(*c->ghosts));
	list_init(&c->small);
	list_init(&c->main);
	list_init(&c->spare);
	list_init(&c->slabs);
}

void fifo_cache_fini(struct fifo_cache *c)
{
	struct list *l;

	while (c->slots && (l = list_pop_front(&c->slabs)))
		free(l);
	free(c->slots);
	free(c->ghosts);
	memset(c, 0, sizeof(*c));
}

static struct fifo_item **slot_find(struct fifo_cache *c, struct fifo_key key, uint64_t h)
{
	struct fifo_item **p = &c->slots[h & c->slot_mask];

	while (*p && ((*p)->key.a != key.a || (*p)->key.b != key.b))
		p = &(*p)->next;
	return p;
}

static void item_release(struct fifo_cache *c, struct fifo_item *it)
{
	struct fifo_item **p = slot_find(c, it->key, key_hash(it->key));

	*p = it->next;
	if (!it->main)
		c->small_count--;
	c->count--;
	list_del(&it->link);
	list_push_back(&c->spare, &it->link);
}

static void evict_one(struct fifo_cache *c)
{
	for (;;) {
		struct fifo_item *it;

		if (c->small_count > c->small_limit || list_empty(&c->main)) {
			it = list_first(&c->small, struct fifo_item, link);
			if (it->freq) {
				it->freq = 0;
				it->main = 1;
				c->small_count--;
				list_del(&it->link);
				list_push_back(&c->main, &it->link);
				continue;
			}
			uint64_t h = key_hash(it->key);

			c->ghosts[h & c->slot_mask] = (uint32_t)(h >> 32);
		} else {
			it = list_first(&c->main, struct fifo_item, link);
			if (it->freq) {
				it->freq--;
				list_del(&it->link);
				list_push_back(&c->main, &it->link);
				continue;
			}
		}
		item_release(c, it);
		return;
	}
}

static struct fifo_item *item_new(struct fifo_cache *c)
{
	struct list *l;

	if (c->count >= c->capacity)
		evict_one(c);
	l = list_pop_front(&c->spare);
	if (!l) {
		uint8_t *slab = xmalloc(sizeof(struct list) * 2 + SLAB_ITEMS * c->item_size);

		list_push_back(&c->slabs, (struct list *)slab);
		for (unsigned i = 0; i < SLAB_ITEMS; i++) {
			struct fifo_item *it = (void *)(slab + sizeof(struct list) * 2 + i * c->item_size);

			list_push_back(&c->spare, &it->link);
		}
		l = list_pop_front(&c->spare);
	}
	return list_entry(l, struct fifo_item, link);
}

void *fifo_cache_get(struct fifo_cache *c, struct fifo_key key)
{
	struct fifo_item *it = *slot_find(c, key, key_hash(key));

	if (!it) {
		c->misses++;
		return NULL;
	}
	c->hits++;
	if (it->freq < 3)
		it->freq++;
	return it->data;
}

void *fifo_cache_peek(struct fifo_cache *c, struct fifo_key key)
{
	struct fifo_item *it = *slot_find(c, key, key_hash(key));

	return it ? it->data : NULL;
}

void *fifo_cache_put(struct fifo_cache *c, struct fifo_key key)
{
	uint64_t h = key_hash(key);
	struct fifo_item *it = *slot_find(c, key, h);

	if (it)
		return it->data;
	if (!c->capacity)
		return NULL;
	it = item_new(c);
	it->key = key;
	it->freq = 0;
	it->main = c->ghosts[h & c->slot_mask] == (uint32_t)(h >> 32);
	list_push_back(it->main ? &c->main : &c->small, &it->link);
	c->small_count += !it->main;
	c->count++;
	it->next = c->slots[h & c->slot_mask];
	c->slots[h & c->slot_mask] = it;
	return it->data;
}

void fifo_cache_drop(struct fifo_cache *c, struct fifo_key key)
{
	struct fifo_item *it = *slot_find(c, key, key_hash(key));

	if (it)
		item_release(c, it);
}
