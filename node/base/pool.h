/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed-size objects, all allocated at start. An empty pool is back-pressure, not an error:
 * pool_get returns NULL and the caller waits its turn (pool_wait). Single thread. */
#pragma once

#include "node/base/list.h"
#include "node/base/op.h"

struct pool {
	const char *name;
	size_t item_size, capacity, used;
	size_t fresh; /* items below it were handed out once; the rest is untouched memory */
	void *memory;
	struct list free;
	struct list waiters; /* struct pool_waiter, first come first served */
};

struct pool_waiter {
	struct list link;
	void (*ready)(struct pool_waiter *w); /* an item is free now; called from pool_put */
};

void pool_init(struct pool *p, const char *name, size_t item_size, size_t capacity);
void pool_fini(struct pool *p);
void *pool_get(struct pool *p); /* contents undefined; NULL when empty */
void pool_put(struct pool *p, void *item);
void pool_wait(struct pool *p, struct pool_waiter *w); /* once; list_del(&w->link) to give up */
