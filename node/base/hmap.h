/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive hash map with caller-made 64-bit hashes: chains, doubling, no removal of memory until
 * hmap_fini. Single thread. Growth allocates, so the data path keeps its maps at their final size
 * (hmap_reserve). */
#pragma once

#include "node/base/check.h"

struct hnode {
	struct hnode *next;
	uint64_t hash;
};

struct hmap {
	struct hnode **slots;
	size_t count, size; /* size is a power of two, or 0 before the first insert */
	size_t low;         /* no slot before has a node (hmap_take) */
};

static inline uint64_t hash_u64(uint64_t v)
{
	v ^= v >> 32;
	v *= 0xd6e8feb86659fd93ull;
	v ^= v >> 32;
	v *= 0xd6e8feb86659fd93ull;
	return v ^ v >> 32;
}

void hmap_init(struct hmap *m);
void hmap_fini(struct hmap *m); /* the slots; the nodes are the caller's */
void hmap_reserve(struct hmap *m, size_t n);
void hmap_insert(struct hmap *m, struct hnode *n, uint64_t hash);
void hmap_remove(struct hmap *m, struct hnode *n);
struct hnode *hmap_first(const struct hmap *m, uint64_t hash); /* first with this hash, or NULL */
struct hnode *hmap_next(const struct hnode *n);		       /* next with the same hash, or NULL */

/* Walk all, in no order: for (n = hmap_walk(m, NULL); n; n = hmap_walk(m, n)). To remove while
 * walking take the next node first. */
struct hnode *hmap_walk(const struct hmap *m, const struct hnode *after);
/* Removes some node; NULL: there is none. To empty a map: a walk begun anew for each node would be
 * quadratic. */
struct hnode *hmap_take(struct hmap *m);
