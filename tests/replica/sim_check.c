/* SPDX-License-Identifier: Apache-2.0 */
/* The verdict on a history: each sector is a register, and linearizability is local (tests/lib/linear.h).
 * All operations have ended when this is called. */
#include "tests/lib/linear.h"
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

static int by_invoke(const void *a, const void *b)
{
	const struct sim_op_record *x = a, *y = b;

	return x->invoked_us < y->invoked_us ? -1 : x->invoked_us > y->invoked_us;
}

static bool linearizable(const struct sim_op_record *ops, size_t n)
{
	struct linear_op *l = xcalloc(n + 1, sizeof(*l));
	bool ok;

	for (size_t i = 0; i < n; i++)
		l[i] = (struct linear_op){.value = ops[i].value,
					  .invoked = ops[i].invoked_us,
					  .returned = ops[i].returned_us,
					  .write = ops[i].write};
	ok = linear_check(l, n);
	free(l);
	return ok;
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
		if (linearizable(history + i, k - i))
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
/* W1: with fewer in sync than the policy asks for, as its primary has applied it, an object takes no
 * writes. */
static void check_min_in_sync(const struct sim_proc *p, uint32_t index)
{
	static struct {
		uint64_t history, seq;
		uint32_t tenure;
		unsigned life;
	} below[SIM_NODES_MAX + 1][SIM_OBJECTS];
	const struct object *o = object_find(p->r, object_id(sim.volume, index));
	const struct primary *pr = o ? o->primary : NULL;

	if (!pr || pr->state != PRIMARY_SERVE || map_in_count(&o->config) >= sim.plan.min_in_sync) {
		below[p->node][index].history = 0;
		return;
	}
	if (below[p->node][index].history == sim.plan.seed + 1 && below[p->node][index].life == p->life &&
	    below[p->node][index].tenure == pr->tenure && below[p->node][index].seq < pr->last.seq)
		sim_fail("object %u: node %u takes a write with %u of %u copies in sync", index, p->node,
			 map_in_count(&o->config), sim.plan.min_in_sync);
	below[p->node][index].history = sim.plan.seed + 1;
	below[p->node][index].life = p->life;
	below[p->node][index].tenure = pr->tenure;
	below[p->node][index].seq = pr->last.seq;
}

void sim_check_single_primary(void)
{
	if (sim.plan.clock_stops) /* then a lease is no more than an opinion (N6) */
		return;
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		unsigned found = 0;

		for (unsigned n = 1; n <= sim.plan.nodes; n++) {
			struct sim_proc *p = &sim.proc[n];
			struct object *o = p->alive && p->r
						   ? object_find(p->r, object_id(sim.volume, i))
						   : NULL;
			bool leased = o && o->primary && o->primary->state == PRIMARY_SERVE;

			if (o)
				check_min_in_sync(p, i);
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
