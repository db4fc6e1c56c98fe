/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/buf.h"

#include <stdlib.h>

#include "node/base/hash.h"

static const uint32_t class_sizes[] = {4096, 16384, 65536, 262144, 1048576};
#define CLASSES ARRAY_LEN(class_sizes)

struct buf_pool {
	struct list free[CLASSES];
	size_t limit, allocated, used;
	struct list waiters;
};

struct buf_pool *buf_pool_create(size_t limit_bytes)
{
	struct buf_pool *p = xcalloc(1, sizeof(*p));

	p->limit = limit_bytes;
	for (unsigned i = 0; i < CLASSES; i++)
		list_init(&p->free[i]);
	list_init(&p->waiters);
	return p;
}

static void buf_destroy(struct buf *b)
{
	free(b->data);
	free(b);
}

/* Gives cached buffers back to the system until `bytes` more may be allocated. */
static void pool_shrink(struct buf_pool *p, size_t bytes)
{
	for (int i = (int)CLASSES - 1; i >= 0; i--)
		while (p->allocated + bytes > p->limit && !list_empty(&p->free[i])) {
			struct list *l = list_pop_front(&p->free[i]);
			struct buf *b = list_entry(l, struct buf, link);

			p->allocated -= b->size;
			buf_destroy(b);
		}
}

void buf_pool_destroy(struct buf_pool *p)
{
	CHECK(p->used == 0);
	p->limit = 0;
	pool_shrink(p, 0);
	free(p);
}

size_t buf_pool_used_bytes(const struct buf_pool *p)
{
	return p->used;
}

static unsigned class_of(size_t size)
{
	unsigned i = 0;

	while (class_sizes[i] < size)
		i++;
	return i;
}

static struct buf *buf_new(size_t size)
{
	struct buf *b = xcalloc(1, sizeof(*b));

	CHECK(posix_memalign((void **)&b->data, BLOCK_SIZE, size) == 0);
	b->size = (uint32_t)size;
	b->refs = 1;
	list_init(&b->link);
	return b;
}

struct buf *buf_get(struct buf_pool *p, size_t size)
{
	unsigned c;
	struct list *l;
	struct buf *b;

	CHECK(size <= class_sizes[CLASSES - 1]);
	c = class_of(size);
	l = list_pop_front(&p->free[c]);
	if (l) {
		b = list_entry(l, struct buf, link);
		b->refs = 1;
	} else {
		pool_shrink(p, class_sizes[c]);
		if (p->allocated + class_sizes[c] > p->limit)
			return NULL;
		b = buf_new(class_sizes[c]);
		b->pool = p;
		p->allocated += b->size;
	}
	p->used += b->size;
	return b;
}

struct buf *buf_heap(size_t size)
{
	return buf_new(round_up(MAX(size, 1), BLOCK_SIZE));
}

void buf_wait(struct buf_pool *p, struct pool_waiter *w)
{
	list_push_back(&p->waiters, &w->link);
}

void buf_unref(struct buf *b)
{
	struct buf_pool *p = b->pool;

	CHECK(b->refs > 0);
	if (--b->refs)
		return;
	if (!p) {
		buf_destroy(b);
		return;
	}
	p->used -= b->size;
	list_push_front(&p->free[class_of(b->size)], &b->link);
	if (!list_empty(&p->waiters)) {
		struct list *l = list_pop_front(&p->waiters);
		struct pool_waiter *w = list_entry(l, struct pool_waiter, link);

		w->ready(w);
	}
}
