/* SPDX-License-Identifier: Apache-2.0 */
/* Seedable random numbers (xoshiro256**). A parameter, never a global: a seed replays a run. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rng {
	uint64_t s[4];
};

void rng_seed(struct rng *r, uint64_t seed);
void rng_seed_system(struct rng *r); /* from getrandom(2) */
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n);	    /* 0 … n−1; n > 0 */
uint64_t rng_between(struct rng *r, uint64_t lo, uint64_t hi); /* inclusive */
int rng_chance(struct rng *r, double p);
void rng_fill(struct rng *r, void *out, size_t len);
