/* SPDX-License-Identifier: Apache-2.0 */
/* libraft's memory is that of the process that calls it. */
#include <raft.h>
#include <stdlib.h>

#include "tests/simulator/doors.h"

static void *heap_malloc(void *data, size_t n)
{
	return malloc(n);
}
static void heap_free(void *data, void *p)
{
	free(p);
}
static void *heap_calloc(void *data, size_t count, size_t n)
{
	return calloc(count, n);
}
static void *heap_realloc(void *data, void *p, size_t n)
{
	return realloc(p, n);
}
static void *heap_aligned(void *data, size_t align, size_t n)
{
	void *p;

	return posix_memalign(&p, align, n) ? NULL : p;
}
static void heap_aligned_free(void *data, size_t align, void *p)
{
	free(p);
}

void sim_raft_heap(void)
{
	static struct raft_heap heap = {
		.malloc = heap_malloc,
		.free = heap_free,
		.calloc = heap_calloc,
		.realloc = heap_realloc,
		.aligned_alloc = heap_aligned,
		.aligned_free = heap_aligned_free,
	};

	raft_heap_set(&heap);
}
