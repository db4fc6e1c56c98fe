/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a history: each sector is a register, and linearizability is local.
 *
 * With unique values the zones rule decides in O(n log n): a write and the reads that returned it
 * form a cluster with f = earliest end, s = latest start; forward zones (f < s) may not overlap,
 * and no backward zone may lie inside a forward one. Sectors that were trimmed hold zeros that do
 * not say who wrote them; there a search with memory decides. All operations have ended when this
 * is called. */
#include "tests/replica/sim.h"

#include <stdio.h>
#include <stdlib.h>

static struct sim_op_record *history;
static size_t count, cap;

void sim_history_add(const struct sim_op_record *r)
{
	if (count == cap) {
		cap = cap ? cap * 2 : 4096;
		history = xrealloc(history, cap * sizeof(*history));
	}
	history[count++] = *r;
}

void sim_history_clear(void)
{
	free(history);
	history = NULL;
	count = cap = 0;
}

/* ---- Zones --------------------------------------------------------------------------------------
 */

struct zone {
	uint64_t value, f, s, written;
	bool has_write;
};

static int by_value(const void *a, const void *b)
{
	const struct sim_op_record *x = a, *y = b;

	return x->value < y->value ? -1 : x->value > y->value;
}

static int by_low(const void *a, const void *b)
{
	const struct zone *x = a, *y = b;
	uint64_t lx = MIN(x->f, x->s), ly = MIN(y->f, y->s);

	return lx < ly ? -1 : lx > ly;
}

static bool zones_ok(struct sim_op_record *ops, size_t n)
{
	struct zone *z = xcalloc(n + 1, sizeof(*z));
	size_t zones = 0;
	uint64_t end = 0;
	bool ok = true, open = false;

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
			k->written = ops[i].invoked_us;
		}
		k->f = MIN(k->f, ops[i].returned_us);
		k->s = MAX(k->s, ops[i].invoked_us);
	}
	for (size_t i = 0, k = 0; i < n && ok; i++) {
		while (z[k].value != ops[i].value)
			k++;
		/* unknown value, or read before its write began */
		ok = z[k].has_write && (ops[i].write || ops[i].returned_us >= z[k].written);
	}
	qsort(z, zones, sizeof(*z), by_low);
	for (size_t i = 0; i < zones && ok; i++) {
		bool forward = z[i].f < z[i].s;
		uint64_t lo = MIN(z[i].f, z[i].s), hi = MAX(z[i].f, z[i].s);

		if (forward) {
			ok = !open || lo >= end;
			end = hi;
			open = true;
		}
	}
	for (size_t i = 0; i < zones && ok; i++) {
		if (z[i].f < z[i].s)
			continue;
		for (size_t k = 0; k < zones && ok; k++)
			if (z[k].f < z[k].s)
				ok = !(z[k].f < z[i].s && z[i].f < z[k].s);
	}
	free(z);
	return ok;
}

/* ---- Search -------------------------------------------------------------------------------------
 */

#define SEARCH_WINDOW 64u

struct seen {
	uint64_t value, mask;
	size_t base;
};

struct search {
	struct sim_op_record *ops;
	size_t n, used, size;
	struct seen *table;
	uint64_t steps;
};

static int by_invoke(const void *a, const void *b)
{
	const struct sim_op_record *x = a, *y = b;

	return x->invoked_us < y->invoked_us ? -1 : x->invoked_us > y->invoked_us;
}

static bool remember(struct search *s, struct seen k)
{
	uint64_t h = hash_u64(k.value * 31 + k.mask * 17 + k.base);

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
		if (s->table[i].base == k.base && s->table[i].mask == k.mask &&
		    s->table[i].value == k.value)
			return false;
	}
}

/* base: all before it are placed; mask: which of the next 64 are. */
static bool place(struct search *s, size_t base, uint64_t mask, uint64_t value)
{
	uint64_t limit = UINT64_MAX;

	while (base < s->n && mask & 1) {
		base++;
		mask >>= 1;
	}
	if (base == s->n)
		return true;
	if (++s->steps > 2000000)
		return true; /* undecided: no verdict is better than a wrong one */
	if (!remember(s, (struct seen){value, mask, base + 1}))
		return false;
	/* Whoever goes next began before the first end among those that are left. */
	for (size_t i = base; i < s->n && i < base + SEARCH_WINDOW; i++)
		if (!(mask >> (i - base) & 1))
			limit = MIN(limit, s->ops[i].returned_us);
	for (size_t i = base; i < s->n && i < base + SEARCH_WINDOW && s->ops[i].invoked_us <= limit;
	     i++) {
		const struct sim_op_record *o = &s->ops[i];

		if (mask >> (i - base) & 1 || (!o->write && o->value != value))
			continue;
		if (place(s, base, mask | 1ull << (i - base), o->write ? o->value : value))
			return true;
	}
	return false;
}

static bool search_ok(struct sim_op_record *ops, size_t n)
{
	struct search s = {.ops = ops, .n = n};
	bool ok;

	qsort(ops, n, sizeof(*ops), by_invoke);
	ok = place(&s, 0, 0, 0);
	free(s.table);
	return ok;
}

bool sim_linearizable(struct sim_op_record *ops, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ops[i].write && !ops[i].value)
			return search_ok(ops, n);
	return zones_ok(ops, n);
}

static int by_place(const void *a, const void *b)
{
	const struct sim_op_record *x = a, *y = b;

	if (x->object != y->object)
		return x->object < y->object ? -1 : 1;
	return x->sector < y->sector ? -1 : x->sector > y->sector;
}

const char *sim_history_check(void)
{
	static char text[200];

	qsort(history, count, sizeof(*history), by_place);
	for (size_t i = 0, k; i < count; i = k) {
		for (k = i; k < count && !by_place(&history[i], &history[k]); k++)
			;
		if (sim_linearizable(history + i, k - i))
			continue;
		snprintf(text, sizeof(text), "object %u, sector %u: not linearizable",
			 history[i].object, history[i].sector);
		if (sim.plan.verbose) {
			qsort(history + i, k - i, sizeof(*history), by_invoke);
			for (; i < k; i++)
				fprintf(stderr, "  %10.3f … %10.3f %s %llu\n",
					(double)history[i].invoked_us / 1000,
					(double)history[i].returned_us / 1000,
					history[i].write ? "write" : "read",
					(unsigned long long)history[i].value);
		}
		return text;
	}
	return NULL;
}

/* At no instant do two processes serve one object with leases from all of their want. */
void sim_check_single_primary(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		unsigned found = 0;

		for (unsigned n = 1; n <= sim.plan.nodes; n++) {
			struct sim_proc *p = &sim.proc[n];
			struct object *o = p->alive && p->r
						   ? object_find(p->r, object_id(sim.volume, i))
						   : NULL;
			bool leased = o && o->primary && o->primary->state == PRIMARY_SERVE;

			for (unsigned k = 0; leased && k < o->primary->member_count; k++) {
				const struct member *m = &o->primary->member[k];

				if (m->want)
					leased = m->state == MEMBER_JOINED &&
						 session_lease_valid(m->session,
								     loop_boot_us(p->loop));
			}
			if (leased && found)
				sim_fail("object %u has two leased primaries, nodes %u and %u", i,
					 found, n);
			if (leased)
				found = n;
		}
	}
}
