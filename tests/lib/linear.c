/* SPDX-License-Identifier: Apache-2.0 */
/* With unique values the zones rule decides in O(n log n): a write and the reads that returned it
 * form a cluster with f = earliest end, s = latest start; forward zones (f < s) may not overlap,
 * and no backward zone may lie inside a forward one (Gibbons and Korach, "Testing Shared Memories",
 * 1997). A register into which zeros were written says of a zero not who wrote it; there a search
 * with memory decides. */
#include "tests/lib/linear.h"

#include <stdlib.h>
#include <string.h>

#include "node/base/check.h"
#include "node/base/hmap.h"

/* ---- Zones ---- */

struct zone {
	uint64_t value, f, s, written;
	bool has_write, seen;
};

static int by_value(const void *a, const void *b)
{
	const struct linear_op *x = a, *y = b;

	return x->value < y->value ? -1 : x->value > y->value;
}

static int by_low(const void *a, const void *b)
{
	const struct zone *x = a, *y = b;
	uint64_t lx = MIN(x->f, x->s), ly = MIN(y->f, y->s);

	return lx < ly ? -1 : lx > ly;
}

static size_t zones_make(struct linear_op *ops, size_t n, struct zone *z)
{
	size_t zones = 0;

	qsort(ops, n, sizeof(*ops), by_value);
	for (size_t i = 0; i < n; i++) {
		struct zone *k = zones ? &z[zones - 1] : NULL;

		if (!k || k->value != ops[i].value) {
			k = &z[zones++];
			*k = (struct zone){.value = ops[i].value, .f = UINT64_MAX};
			if (!k->value) { /* what was there before everything */
				k->has_write = true;
				k->f = k->s = 0;
			}
		}
		if (ops[i].write) {
			k->has_write = true;
			k->written = ops[i].invoked;
		}
		k->seen |= !ops[i].write || ops[i].returned != LINEAR_PENDING;
		k->f = MIN(k->f, ops[i].returned);
		k->s = MAX(k->s, ops[i].invoked);
	}
	return zones;
}

static bool reads_ok(const struct linear_op *ops, size_t n, const struct zone *z)
{
	for (size_t i = 0, k = 0; i < n; i++) {
		while (z[k].value != ops[i].value)
			k++;
		/* unknown value, or read before its write began */
		if (!z[k].has_write || (!ops[i].write && ops[i].returned < z[k].written))
			return false;
	}
	return true;
}

static bool zones_ok(struct linear_op *ops, size_t n)
{
	struct zone *z = xcalloc(n + 1, sizeof(*z));
	size_t zones = zones_make(ops, n, z);
	uint64_t end = 0;
	bool ok = reads_ok(ops, n, z), open = false;

	qsort(z, zones, sizeof(*z), by_low);
	for (size_t i = 0; i < zones && ok; i++) {
		if (z[i].f >= z[i].s)
			continue;
		ok = !open || z[i].f >= end;
		end = z[i].s;
		open = true;
	}
	for (size_t i = 0; i < zones && ok; i++) {
		if (z[i].f < z[i].s ||
		    !z[i].seen) /* never answered, never seen: it may not have happened */
			continue;
		for (size_t k = 0; k < zones && ok; k++)
			if (z[k].f < z[k].s)
				ok = !(z[k].f < z[i].s && z[i].f < z[k].s);
	}
	free(z);
	return ok;
}

/* ---- Search ---- */

#define WINDOW      256u /* one may last for as long as so many others take */
#define PENDING_MAX 64u
#define STEPS_MAX   2000000u

struct mask {
	uint64_t w[WINDOW / 64];
};
struct seen {
	struct mask mask;
	uint64_t value, pending;
	size_t base;
};

struct search {
	const struct linear_op *ops, *pending;
	size_t n, pending_n, used, size;
	struct seen *table;
	uint64_t steps;
};

static int by_invoke(const void *a, const void *b)
{
	const struct linear_op *x = a, *y = b;

	if ((x->returned == LINEAR_PENDING) != (y->returned == LINEAR_PENDING))
		return x->returned == LINEAR_PENDING ? 1 : -1;
	return x->invoked < y->invoked ? -1 : x->invoked > y->invoked;
}

static bool has(const struct mask *m, size_t i)
{
	return m->w[i / 64] >> i % 64 & 1;
}

static struct mask with(struct mask m, size_t i)
{
	m.w[i / 64] |= 1ull << i % 64;
	return m;
}

static void shift(struct mask *m)
{
	for (unsigned i = 0; i < WINDOW / 64; i++)
		m->w[i] = m->w[i] >> 1 | (i + 1 < WINDOW / 64 ? m->w[i + 1] << 63 : 0);
}

static bool same(const struct seen *a, const struct seen *b)
{
	return a->base == b->base && !memcmp(&a->mask, &b->mask, sizeof(a->mask)) &&
	       a->pending == b->pending && a->value == b->value;
}

static bool remember(struct search *s, struct seen k)
{
	uint64_t h = hash_u64(k.value * 31 + k.base + k.pending * 7919);

	for (unsigned i = 0; i < WINDOW / 64; i++)
		h = hash_u64(h ^ k.mask.w[i]);
	if (s->used * 2 >= s->size) {
		struct seen *old = s->table;
		size_t size = s->size;

		s->size = size ? size * 2 : 1024;
		s->table = xcalloc(s->size, sizeof(*s->table));
		s->used = 0;
		for (size_t i = 0; i < size; i++)
			if (old[i].base)
				remember(s, old[i]);
		free(old);
	}
	for (size_t i = h & (s->size - 1);; i = (i + 1) & (s->size - 1)) {
		if (!s->table[i].base) {
			s->table[i] = k;
			s->used++;
			return true;
		}
		if (same(&s->table[i], &k))
			return false;
	}
}

/* base: all before it are placed; mask: which of those from it on are; pending: which unanswered writes. */
static bool place(struct search *s, size_t base, struct mask mask, uint64_t pending, uint64_t value)
{
	uint64_t limit = UINT64_MAX;
	size_t end;

	while (base < s->n && has(&mask, 0)) {
		base++;
		shift(&mask);
	}
	if (base == s->n)
		return true;
	if (++s->steps > STEPS_MAX)
		return true; /* undecided: no verdict is better than a wrong one */
	if (!remember(s, (struct seen){mask, value, pending, base + 1}))
		return false;
	end = MIN(s->n, base + WINDOW);
	/* Whoever goes next began before the first end among those that are left. */
	for (size_t i = base; i < end; i++)
		if (!has(&mask, i - base))
			limit = MIN(limit, s->ops[i].returned);
	if (end < s->n && s->ops[end].invoked <= limit)
		return true; /* it might be the next, and is not looked at: undecided */
	for (size_t i = base; i < end && s->ops[i].invoked <= limit; i++) {
		const struct linear_op *o = &s->ops[i];

		if (has(&mask, i - base) || (!o->write && o->value != value))
			continue;
		if (place(s, base, with(mask, i - base), pending, o->write ? o->value : value))
			return true;
	}
	for (size_t i = 0; i < s->pending_n && s->pending[i].invoked <= limit; i++)
		if (!(pending >> i & 1) && s->pending[i].value != value &&
		    place(s, base, mask, pending | 1ull << i, s->pending[i].value))
			return true;
	return false;
}

static bool search_ok(struct linear_op *ops, size_t n)
{
	struct search s = {.ops = ops};
	bool ok;

	qsort(ops, n, sizeof(*ops), by_invoke);
	while (s.n < n && ops[s.n].returned != LINEAR_PENDING)
		s.n++;
	s.pending = ops + s.n;
	s.pending_n = n - s.n;
	if (s.pending_n > PENDING_MAX)
		return true;
	ok = place(&s, 0, (struct mask){0}, 0, 0);
	free(s.table);
	return ok;
}

bool linear_check(struct linear_op *ops, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ops[i].write && !ops[i].value)
			return search_ok(ops, n);
	return zones_ok(ops, n);
}
