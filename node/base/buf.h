/* SPDX-License-Identifier: Apache-2.0 */
/* Payload memory: reference-counted buffers, 4 KiB aligned, from a bounded per-shard pool, and
 * slices of them. A payload is received into a slice, logged from it, sent from it and released by
 * the last holder. References are plain integers: a buffer belongs to one shard's thread. To hand a
 * payload to another shard, the owner keeps its reference until the other shard has answered. */
#pragma once

#include "node/base/pool.h"

struct buf_pool;

struct buf {
	uint8_t *data;
	uint32_t size, refs;
	struct buf_pool *pool; /* NULL: heap, for set-up and tests */
	struct list link;
};

struct slice {
	struct buf *buf;
	uint8_t *data;
	uint32_t len;
};

/* Size classes 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB; grown on demand up to limit_bytes in all, then
 * get returns NULL. */
struct buf_pool *buf_pool_create(size_t limit_bytes);
void buf_pool_destroy(struct buf_pool *p); /* CHECKs that every buffer came back */
size_t buf_pool_used_bytes(const struct buf_pool *p);
struct buf *buf_get(struct buf_pool *p, size_t size); /* refs = 1; size ≤ 1 MiB; NULL at the limit */
struct buf *buf_heap(size_t size);		      /* refs = 1, outside any pool */
/* Called once when memory is free again after a NULL. */
void buf_wait(struct buf_pool *p, struct pool_waiter *w);

static inline struct buf *buf_ref(struct buf *b)
{
	b->refs++;
	return b;
}
void buf_unref(struct buf *b);

static inline struct slice slice_all(struct buf *b)
{
	return (struct slice){ .buf = b, .data = b->data, .len = b->size };
}
static inline struct slice slice_ref(struct slice s)
{
	if (s.buf)
		s.buf->refs++;
	return s;
}
static inline void slice_unref(struct slice *s)
{
	if (s->buf)
		buf_unref(s->buf);
	*s = (struct slice){ 0 };
}
