/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one shard's log index: power-of-two size classes on chunks that are never given back, so that
 * the data path takes and returns small pieces without malloc. One thread. */
#pragma once

#include <stddef.h>

#define ARENA_MIN_SHIFT 5  /* 32 bytes */
#define ARENA_MAX_SHIFT 13 /* 8 KiB */
#define ARENA_CHUNK (256u << 10)

struct arena {
	void *free[ARENA_MAX_SHIFT - ARENA_MIN_SHIFT + 1];
	void *chunks; /* chained through their first word */
	char *at, *end;
	size_t used; /* bytes handed out */
};

void *arena_get(struct arena *a, size_t size); /* contents undefined */
void arena_put(struct arena *a, void *p, size_t size);
void arena_fini(struct arena *a);
size_t arena_round(size_t size); /* what `size` really takes */
