/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/pool.h"

#include <stdlib.h>

void pool_init(struct pool *p, const char *name, size_t item_size, size_t capacity)
{
	size_t size = round_up(MAX(item_size, sizeof(struct list)), 64);
	char *m;

	*p = (struct pool){.name = name, .item_size = size, .capacity = capacity};
	list_init(&p->free);
	list_init(&p->waiters);
	/* Not touched here: what is never handed out never becomes resident. */
	CHECK(posix_memalign((void **)&m, 64, size * capacity) == 0);
	p->memory = m;
}

void pool_fini(struct pool *p)
{
	free(p->memory);
	*p = (struct pool){0};
}

void *pool_get(struct pool *p)
{
	struct list *l = list_pop_front(&p->free);

	if (!l) {
		if (p->fresh == p->capacity)
			return NULL;
		l = (struct list *)((char *)p->memory + p->item_size * p->fresh++);
	}
	p->used++;
	return l;
}

void pool_put(struct pool *p, void *item)
{
	struct list *l = item;

	CHECK(p->used > 0);
	p->used--;
	list_push_front(&p->free, l);
	if (!list_empty(&p->waiters)) {
		struct list *w = list_pop_front(&p->waiters);
		struct pool_waiter *waiter = list_entry(w, struct pool_waiter, link);

		waiter->ready(waiter);
	}
}

void pool_wait(struct pool *p, struct pool_waiter *w)
{
	list_push_back(&p->waiters, &w->link);
}
