/* SPDX-License-Identifier: Apache-2.0 */
/* Events, processes and turns: node/loop/loop.h over virtual time. */
#include "tests/replica/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct sim sim;

struct loop {
	struct sim_proc *proc;
	struct list turn_end[TURN_PHASES];
	struct rng rng;
	uint64_t turn_us;
};

uint64_t sim_rand(uint64_t lo, uint64_t hi)
{
	return rng_between(&sim.rng, lo, hi);
}
bool sim_chance(double p)
{
	return p > 0 && rng_chance(&sim.rng, p);
}

void sim_fail(const char *fmt, ...)
{
	va_list ap;

	if (sim.failure[0])
		return;
	va_start(ap, fmt);
	vsnprintf(sim.failure, sizeof(sim.failure), fmt, ap);
	va_end(ap);
	sim_trace("FAILURE: %s", sim.failure);
}

void sim_trace(const char *fmt, ...)
{
	va_list ap;

	if (!sim.plan.verbose)
		return;
	fprintf(stderr, "%9.3f ms %s ", (double)sim.now_us / 1000, sim.running ? "" : "--");
	if (sim.running)
		fprintf(stderr, "n%u ", sim.running->node);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---- Event queue --------------------------------------------------------------------------------
 */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(struct sim_event e)
{
	size_t i = sim.heap_len++;

	if (sim.heap_len > sim.heap_cap) {
		sim.heap_cap = sim.heap_cap ? sim.heap_cap * 2 : 1024;
		sim.heap = xrealloc(sim.heap, sim.heap_cap * sizeof(*sim.heap));
	}
	while (i && before(&e, &sim.heap[(i - 1) / 2])) {
		sim.heap[i] = sim.heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	sim.heap[i] = e;
}

static struct sim_event pop(void)
{
	struct sim_event top = sim.heap[0], last = sim.heap[--sim.heap_len];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < sim.heap_len) {
		if (c + 1 < sim.heap_len && before(&sim.heap[c + 1], &sim.heap[c]))
			c++;
		if (!before(&sim.heap[c], &last))
			break;
		sim.heap[i] = sim.heap[c];
		i = c;
	}
	sim.heap[i] = last;
	return top;
}

void sim_at(uint64_t delay_us, struct sim_proc *p, void (*fn)(void *), void (*drop)(void *),
	    void *arg)
{
	push((struct sim_event){.at = sim.now_us + delay_us,
				.seq = ++sim.seq,
				.proc = p,
				.life = p ? p->life : 0,
				.fn = fn,
				.drop = drop,
				.arg = arg});
}

bool sim_step(void)
{
	struct sim_event e;

	if (!sim.heap_len)
		return false;
	e = pop();
	sim.now_us = MAX(sim.now_us, e.at);
	if (e.proc && (!e.proc->alive || e.proc->life != e.life)) {
		if (e.drop)
			e.drop(e.arg);
		return true;
	}
	if (e.proc && e.proc->paused_until > sim.now_us) {
		e.at = e.proc->paused_until;
		push(e); /* same seq: order is kept */
		return true;
	}
	sim.events_run++;
	sim.running = e.proc;
	if (e.proc)
		e.proc->loop->turn_us = loop_mono_us(e.proc->loop);
	e.fn(e.arg);
	if (e.proc && e.proc->alive)
		sim_turn(e.proc);
	sim.running = NULL;
	return true;
}

void sim_clear_events(void)
{
	while (sim.heap_len) {
		struct sim_event e = sim.heap[--sim.heap_len];

		if (e.drop)
			e.drop(e.arg);
	}
	free(sim.heap);
	sim.heap = NULL;
	sim.heap_cap = 0;
}

/* ---- Loop ---------------------------------------------------------------------------------------
 */

struct loop *sim_loop_create(struct sim_proc *p)
{
	struct loop *l = xcalloc(1, sizeof(*l));

	l->proc = p;
	for (int i = 0; i < TURN_PHASES; i++)
		list_init(&l->turn_end[i]);
	rng_seed(&l->rng, rng_next(&sim.rng));
	return l;
}

void sim_loop_destroy(struct loop *l)
{
	free(l);
}

void sim_turn(struct sim_proc *p)
{
	struct list *n;

	for (int phase = 0; phase < TURN_PHASES; phase++)
		while ((n = list_pop_front(&p->loop->turn_end[phase]))) {
			struct turn_end *t = list_entry(n, struct turn_end, link);

			t->fn(t);
		}
}

static uint64_t clock_of(struct sim_proc *p)
{
	uint64_t at = sim.now_us;

	if (p->stopped_us)
		at = MAX(at, p->paused_until) - p->stopped_us;
	return p->clock_offset_us + at + (uint64_t)((int64_t)at * p->drift_ppm / 1000000);
}

uint64_t loop_mono_us(struct loop *l)
{
	return clock_of(l->proc);
}
uint64_t loop_boot_us(struct loop *l)
{
	return clock_of(l->proc);
}
uint64_t loop_turn_us(struct loop *l)
{
	return l->turn_us;
}
struct rng *loop_rng(struct loop *l)
{
	return &l->rng;
}
bool loop_is_current(const struct loop *l)
{
	return sim.running == l->proc;
}

struct ticket {
	struct timer *timer; /* NULL: cancelled */
	uint64_t stopped_us; /* of the process, as the delay counts */
};

static void timer_drop(void *arg)
{
	struct ticket *k = arg;

	free(k);
}

static void timer_fire(void *arg)
{
	struct ticket *k = arg;
	struct timer *t = k->timer;
	uint64_t stood = t ? t->loop->proc->stopped_us - k->stopped_us : 0;

	if (stood) { /* by its clock it is not yet time */
		k->stopped_us += stood;
		sim_at(stood, t->loop->proc, timer_fire, timer_drop, k);
		return;
	}
	free(k);
	if (!t)
		return;
	t->impl = NULL;
	t->armed = false;
	t->fn(t);
}

void timer_init(struct timer *t, struct loop *l, void (*fn)(struct timer *t))
{
	*t = (struct timer){.loop = l, .fn = fn};
}

void timer_set(struct timer *t, uint64_t delay_us)
{
	struct ticket *k = xcalloc(1, sizeof(*k));
	int64_t real = (int64_t)delay_us - (int64_t)delay_us * t->loop->proc->drift_ppm / 1000000;

	timer_cancel(t);
	k->timer = t;
	k->stopped_us = t->loop->proc->stopped_us;
	t->impl = k;
	t->armed = true;
	sim_at((uint64_t)real + sim_rand(0, 1000), t->loop->proc, timer_fire, timer_drop, k);
}

void timer_cancel(struct timer *t)
{
	if (t->impl)
		((struct ticket *)t->impl)->timer = NULL;
	t->impl = NULL;
	t->armed = false;
}

void timer_fini(struct timer *t)
{
	timer_cancel(t);
}

void turn_end_init(struct turn_end *t, void (*fn)(struct turn_end *t))
{
	list_init(&t->link);
	t->fn = fn;
}

void turn_end_arm(struct loop *l, struct turn_end *t, enum turn_phase phase)
{
	if (list_empty(&t->link))
		list_push_back(&l->turn_end[phase], &t->link);
}

void turn_end_disarm(struct turn_end *t)
{
	list_del(&t->link);
}
