/* SPDX-License-Identifier: Apache-2.0 */
/* xxHash's door: block fingerprints and structure checksums. Pure, any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK_SIZE 4096u
#define BLOCK_SHIFT 12

/* 128-bit XXH3 of a 4 KiB block. Computed once, where the block enters the cluster, and checked at
 * each rest point. `lo` is also the 64-bit fingerprint of map entries and manifests. */
struct fp128 {
	uint64_t lo, hi;
};

struct fp128 hash_fp128(const void *data, size_t len);
uint64_t hash_xxh3(const void *data, size_t len, uint64_t seed);

static inline struct fp128 hash_block(const void *block)
{
	return hash_fp128(block, BLOCK_SIZE);
}
static inline int fp128_equal(struct fp128 a, struct fp128 b)
{
	return a.lo == b.lo && a.hi == b.hi;
}
struct fp128 hash_zero_block(void); /* the fingerprint of 4096 zero bytes, computed once */
