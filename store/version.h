/* SPDX-License-Identifier: Apache-2.0 */
/* The totally ordered number of a write within its object: (tenure, seq). seq runs without gaps
 * across tenures; a version names one write for ever. {0,0} = never written. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct version {
	uint32_t tenure;
	uint64_t seq;
};

static inline int version_cmp(struct version a, struct version b)
{
	if (a.tenure != b.tenure)
		return a.tenure < b.tenure ? -1 : 1;
	return a.seq < b.seq ? -1 : a.seq > b.seq;
}
static inline bool version_eq(struct version a, struct version b)
{
	return a.tenure == b.tenure && a.seq == b.seq;
}
static inline struct version version_max(struct version a, struct version b)
{
	return version_cmp(a, b) < 0 ? b : a;
}
