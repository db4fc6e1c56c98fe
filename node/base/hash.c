/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/hash.h"

#include <pthread.h>

/* The library chooses AVX2 or AVX-512 at run time where the processor has it. */
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

struct fp128 hash_fp128(const void *data, size_t len)
{
	XXH128_hash_t h = XXH3_128bits(data, len);

	return (struct fp128){h.low64, h.high64};
}

uint64_t hash_xxh3(const void *data, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, len, seed);
}

static struct fp128 zero_fp;
static pthread_once_t zero_once = PTHREAD_ONCE_INIT;

static void zero_compute(void)
{
	static const uint8_t zeros[BLOCK_SIZE];

	zero_fp = hash_block(zeros);
}

struct fp128 hash_zero_block(void)
{
	pthread_once(&zero_once, zero_compute);
	return zero_fp;
}
