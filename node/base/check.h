/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and small language helpers. CHECK stays on in release builds: it is for what only a wrong
 * program can cause. Bytes from disk, wire, configuration or command line are validated, never CHECKed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void check_failed(const char *expr, const char *file, int line, const char *func);

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define CHECK(x)                                                                                   \
	do {                                                                                       \
		if (unlikely(!(x)))                                                                \
			check_failed(#x, __FILE__, __LINE__, __func__);                            \
	} while (0)

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

#define container_of(ptr, type, member)                                                            \
	((type *)((char *)(ptr) - offsetof(type, member)))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

static inline bool is_pow2(uint64_t v)
{
	return v && !(v & (v - 1));
}

static inline uint64_t round_up(uint64_t v, uint64_t unit)
{
	return (v + unit - 1) / unit * unit;
}

static inline uint64_t round_down(uint64_t v, uint64_t unit)
{
	return v / unit * unit;
}

/* Scoped release: `CLEANUP(free_ptr) char *s = ...`. */
#define CLEANUP(fn) __attribute__((cleanup(fn)))
void free_ptr(void *pp); /* frees *(void **)pp */

/* Allocation for set-up code. Out of memory there is fail-stop: a half-started node helps nobody.
 * The data path does not allocate; it draws from pools. */
void *xmalloc(size_t n) __attribute__((malloc));
void *xcalloc(size_t count, size_t size) __attribute__((malloc));
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s) __attribute__((malloc));
char *xasprintf(const char *fmt, ...) PRINTF_LIKE(1, 2);
void *xalloc_aligned(size_t align, size_t n); /* free() releases it; contents are zero */
