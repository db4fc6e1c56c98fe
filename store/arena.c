/* SPDX-License-Identifier: Apache-2.0 */
#include "store/arena.h"

#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"

static unsigned class_of(size_t size)
{
	unsigned shift = ARENA_MIN_SHIFT;

	while ((size_t)1 << shift < size)
		shift++;
	CHECK(shift <= ARENA_MAX_SHIFT);
	return shift - ARENA_MIN_SHIFT;
}

size_t arena_round(size_t size)
{
	return (size_t)1 << (class_of(size) + ARENA_MIN_SHIFT);
}

void *arena_get(struct arena *a, size_t size)
{
	unsigned c = class_of(size);
	size_t len = (size_t)1 << (c + ARENA_MIN_SHIFT);
	void *p = a->free[c];

	a->used += len;
	if (p) {
		memcpy(&a->free[c], p, sizeof(void *));
		return p;
	}
	if ((size_t)(a->end - a->at) < len) {
		/* What is left of the chunk is lost: at most one piece of the largest class in 32. */
		char *chunk = xmalloc(ARENA_CHUNK);

		memcpy(chunk, &a->chunks, sizeof(void *));
		a->chunks = chunk;
		a->at = chunk + 64;
		a->end = chunk + ARENA_CHUNK;
	}
	p = a->at;
	a->at += len;
	return p;
}

void arena_put(struct arena *a, void *p, size_t size)
{
	unsigned c = class_of(size);

	a->used -= (size_t)1 << (c + ARENA_MIN_SHIFT);
	memcpy(p, &a->free[c], sizeof(void *));
	a->free[c] = p;
}

void arena_fini(struct arena *a)
{
	while (a->chunks) {
		void *chunk = a->chunks;

		memcpy(&a->chunks, chunk, sizeof(void *));
		free(chunk);
	}
	*a = (struct arena){0};
}
