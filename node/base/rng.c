/* SPDX-License-Identifier: Apache-2.0 */
/* xoshiro256** by Blackman and Vigna (https://prng.di.unimi.it/), seeded by splitmix64. */
#include "node/base/rng.h"

#include <string.h>
#include <sys/random.h>

#include "node/base/check.h"

static uint64_t splitmix64(uint64_t *x)
{
	uint64_t z = (*x += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t v, int k)
{
	return v << k | v >> (64 - k);
}

void rng_seed(struct rng *r, uint64_t seed)
{
	for (int i = 0; i < 4; i++)
		r->s[i] = splitmix64(&seed);
}

void rng_seed_system(struct rng *r)
{
	CHECK(getrandom(r->s, sizeof(r->s), 0) == (ssize_t)sizeof(r->s));
}

uint64_t rng_next(struct rng *r)
{
	uint64_t *s = r->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	return result;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
	CHECK(n > 0);
	return (uint64_t)((unsigned __int128)rng_next(r) * n >> 64);
}

uint64_t rng_between(struct rng *r, uint64_t lo, uint64_t hi)
{
	CHECK(lo <= hi);
	return hi - lo == UINT64_MAX ? rng_next(r) : lo + rng_below(r, hi - lo + 1);
}

int rng_chance(struct rng *r, double p)
{
	return (double)(rng_next(r) >> 11) * 0x1.0p-53 < p;
}

void rng_fill(struct rng *r, void *out, size_t len)
{
	uint8_t *p = out;

	while (len) {
		uint64_t v = rng_next(r);
		size_t n = len < 8 ? len : 8;

		memcpy(p, &v, n);
		p += n;
		len -= n;
	}
}
