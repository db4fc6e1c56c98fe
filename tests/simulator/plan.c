/* SPDX-License-Identifier: Apache-2.0 */
/* Swarm: each kind of fault is on in some of the histories, at a rate of its own, so that no kind
 * hides what another would show. */
#include "tests/simulator/plan.h"

#include <string.h>

#include "node/base/check.h"
#include "node/base/rng.h"

static double on(struct rng *r, double share, double low, double high)
{
	double x = (double)rng_between(r, 0, 1000) / 1000;

	return rng_chance(r, share) ? low + (high - low) * x * x : 0;
}

/* In the nodes themselves, where they notice a primary that does not know it is none. */
static void steady_clients(struct sim_plan *p, struct rng *r)
{
	p->clients = rng_chance(r, 0.5) ? 1 : 2;
	p->gateways = SIM_CLIENTS_MAX - p->clients;
	p->gap_us = rng_between(r, 4000, 24000);
	p->depth = 48;
	p->ops = (unsigned)(p->fault_us / p->gap_us);
	p->net_us = rng_chance(r, 0.4) ? rng_between(r, 300, 8000) : 0;
}

/* More than three groups of the smallest size hold, of what nothing makes smaller. */
static void fill(struct sim_plan *p, struct rng *r)
{
	p->full = p->tiny_log = p->tiny_data = true;
	p->nodes = 3;
	p->spare = 0;
	p->objects = 5 - p->copies;
	p->ballast = (double)rng_between(r, 25, 60) / 100;
	p->ops = (unsigned)rng_between(r, 80, 250);
	p->join = p->dedup = p->exclusive = false;
	p->compression = rng_chance(r, 0.2);
}

/* One of which fails, while logs are emptied onto them. */
static void two_devices(struct sim_plan *p, struct rng *r)
{
	p->two_devices = p->tiny_log = true;
	p->device = on(r, 1, 0.05, 0.4);
	p->kill /= 2; /* while a replica is out none may fail */
	p->power /= 2;
	p->block /= 2;
	p->ballast = (double)rng_between(r, 20, 50) / 100;
	p->ops = (unsigned)rng_between(r, 100, 250);
}

/* There must be somewhere to go. */
static void errands(struct sim_plan *p, struct rng *r)
{
	p->errands = true;
	p->nodes = p->copies == 3 ? 5 : (unsigned)rng_between(r, 4, 5);
	p->spare = 0;
	p->join = false;
}

void sim_plan_from_seed(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 7919 + 1);
	*p = (struct sim_plan){.seed = seed};
	p->nodes = (unsigned)rng_between(&r, 3, 5);
	if (rng_chance(&r, 0.6))
		p->nodes = 3;
	p->copies = (unsigned)rng_between(&r, 2, 3);
	p->shards = rng_chance(&r, 0.3) ? 2 : 1;
	p->objects = (unsigned)rng_between(&r, 1, 3);
	p->clients = (unsigned)rng_between(&r, 1, 3);
	p->gateways = rng_chance(&r, 0.4) ? 1 : 0;
	p->ops = (unsigned)rng_between(&r, 30, 120);
	p->depth = (unsigned)rng_between(&r, 1, 8);
	p->fault_us = rng_between(&r, 1000000, 6000000);
	p->kill = on(&r, 0.6, 0.002, 0.03);
	p->power = on(&r, 0.4, 0.002, 0.02);
	p->pause = on(&r, 0.5, 0.002, 0.04);
	p->pause_long = rng_chance(&r, 0.5) ? 0.3 : 0;
	p->stall = on(&r, 0.3, 0.002, 0.03);
	p->block = on(&r, 0.5, 0.002, 0.04);
	p->reset = on(&r, 0.5, 0.002, 0.05);
	p->slow_disk = on(&r, 0.3, 0.002, 0.03);
	p->rot = on(&r, 0.3, 0.01, 0.1);
	p->eio = on(&r, 0.2, 0.005, 0.03);
	p->reformat = on(&r, 0.2, 0.05, 0.5);
	p->blackout = on(&r, 0.2, 0.002, 0.02);
	p->suspect = on(&r, 0.4, 0.01, 0.2);
	p->leader_kill = on(&r, 0.3, 0.002, 0.02);
	p->client_kill = on(&r, 0.3, 0.002, 0.02);
	p->fence = on(&r, 0.2, 0.002, 0.01);
	p->hidden = rng_chance(&r, 0.3) ? 0.4 : 0;
	p->late = on(&r, 0.5, 0.002, 0.05);
	p->duplicate = on(&r, 0.5, 0.005, 0.1);
	p->drift = rng_chance(&r, 0.5);
	p->drift_ppm = 40000;
	p->trims = rng_chance(&r, 0.4);
	p->partial = rng_chance(&r, 0.4);
	p->compression = rng_chance(&r, 0.4);
	p->dedup = rng_chance(&r, 0.3);
	p->tiny_log = rng_chance(&r, 0.4);
	p->tiny_data = rng_chance(&r, 0.3);
	p->exclusive = rng_chance(&r, 0.4);
	p->resize = rng_chance(&r, 0.2);
	p->join = rng_chance(&r, 0.15);
	p->minority = rng_chance(&r, 0.6);
	p->spare = p->join ? 1 : 0;
	if (p->nodes + p->spare > SIM_NODES_MAX)
		p->spare = 0;
	if (rng_chance(&r, 0.25)) {
		p->shapes = (unsigned)rng_between(&r, 1, SHAPE_ALL);
		p->wide = rng_chance(&r, 0.5);
		if (rng_chance(&r, 0.5))
			steady_clients(p, &r);
	}
	p->group = on(&r, 0.3, 0.003, 0.03);
	if (rng_chance(&r, 0.1))
		fill(p, &r);
	if (rng_chance(&r, 0.15))
		two_devices(p, &r);
	if (!p->full && rng_chance(&r, 0.15))
		errands(p, &r);
}

void sim_plan_rough(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 104729 + 5);
	sim_plan_from_seed(p, seed);
	p->nodes = 3;
	p->copies = 2 + seed % 2;
	p->objects = 1;
	p->clients = 2;
	p->gateways = 1;
	p->ops = 150;
	p->depth = 8;
	p->spare = 0;
	p->join = p->resize = p->exclusive = false;
	p->fault_us = 4000000;
	p->suspect = seed % 3 ? 0.3 : 0.05;
	p->hidden = 0.3;
	p->kill = rng_chance(&r, 0.5) ? 0.03 : 0.005;
	p->pause = rng_chance(&r, 0.5) ? 0.05 : 0.01;
	p->stall = rng_chance(&r, 0.5) ? 0.03 : 0;
	p->pause_long = 0.3;
	p->block = rng_chance(&r, 0.5) ? 0.05 : 0;
	p->reset = rng_chance(&r, 0.5) ? 0.1 : 0.01;
	p->rot = p->eio = p->reformat = p->group = p->slow_disk = p->client_kill = p->fence = 0;
	p->duplicate = 0.1;
	p->trims = p->partial = p->minority = p->wide = p->full = p->two_devices = p->errands = false;
	p->ballast = p->device = 0;
	p->shapes = 0;
	p->gap_us = 0;
}

/* For single rules: rough weather, and what they need besides. */

void sim_plan_partial(struct sim_plan *p, uint64_t seed)
{
	sim_plan_rough(p, seed);
	p->partial = true;
}

void sim_plan_fence(struct sim_plan *p, uint64_t seed)
{
	sim_plan_from_seed(p, seed);
	p->fence = 0.1;
	p->clients = 2;
	p->ops = 120;
	p->block = 0.1;
	p->pause = 0.01;
}

void sim_plan_log(struct sim_plan *p, uint64_t seed)
{
	sim_plan_rough(p, seed);
	p->tiny_log = true;
	p->ops = 250;
	p->power = 0.02;
	p->blackout = 0.02;
}

void sim_plan_power(struct sim_plan *p, uint64_t seed)
{
	sim_plan_rough(p, seed);
	p->power = 0.03;
	p->blackout = 0.03;
}

void sim_plan_rot(struct sim_plan *p, uint64_t seed)
{
	sim_plan_rough(p, seed);
	p->rot = 0.3;
	p->kill = p->pause = 0.005;
}

void sim_plan_dedup(struct sim_plan *p, uint64_t seed)
{
	sim_plan_rough(p, seed);
	p->dedup = true;
	p->compression = false;
}

void sim_plan_full(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 179424673 + 3);
	sim_plan_from_seed(p, seed);
	fill(p, &r);
}

void sim_plan_device(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 32452843 + 7);
	sim_plan_from_seed(p, seed);
	two_devices(p, &r);
}

void sim_plan_errands(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 49979687 + 13);
	sim_plan_from_seed(p, seed);
	p->full = p->two_devices = false;
	p->device = 0;
	errands(p, &r);
}

void sim_plan_reformat(struct sim_plan *p, uint64_t seed)
{
	sim_plan_from_seed(p, seed);
	p->reformat = 0.8;
	p->kill = 0.01;
	p->fault_us = 4000000 + seed % 4 * 1000000;
}

/* A shape, over and over, in weather that is fair otherwise. */
static void plan_shape(struct sim_plan *p, uint64_t seed, unsigned shapes)
{
	struct rng r;

	rng_seed(&r, seed * 15485863 + 11);
	sim_plan_from_seed(p, seed);
	p->nodes = 3;
	p->copies = 2 + seed % 2;
	p->objects = 1;
	p->spare = 0;
	p->join = p->resize = p->exclusive = false;
	p->shapes = shapes;
	p->wide = rng_chance(&r, 0.5);
	p->fault_us = rng_between(&r, 3000000, 7000000);
	steady_clients(p, &r);
	p->kill = p->power = p->pause = p->block = p->reset = p->slow_disk = p->blackout = 0;
	p->rot = p->eio = p->reformat = p->client_kill = p->fence = p->suspect = p->leader_kill = 0;
	p->minority = p->full = p->two_devices = p->errands = false;
	p->ballast = p->device = 0;
}

void sim_plan_cut_off(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(CUT_OFF));
}

void sim_plan_lag(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(LAG));
}

/* The same, while the log is filled and emptied all the time. */
void sim_plan_full_log(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(LAG));
	p->tiny_log = true;
	p->ballast = 0.05;
	p->gap_us = 3000 + seed % 3000;
	p->ops = (unsigned)(p->fault_us / p->gap_us);
}

void sim_plan_reborn(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(REBORN));
}

void sim_plan_return(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(RETURN));
}

void sim_plan_trims(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(RETURN));
	p->trims = true;
	p->wide = false;
}

void sim_plan_dark(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(DARK));
}

void sim_plan_stall(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(STALL));
}

void sim_plan_stumble(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(STUMBLE));
	p->tiny_log = seed % 3 != 0;
}

void sim_plan_at_io(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, SHAPE(AT_IO));
	p->tiny_log = seed % 3 != 0;
}

void sim_plan_anew(struct sim_plan *p, uint64_t seed)
{
	plan_shape(p, seed, 0);
	p->copies = 2; /* the third node is for Raft */
	p->anew = true;
	p->stall = p->group = p->hidden = 0;
	p->fault_us = 11000000;
	p->gap_us = 20000 + seed % 20000;
	p->ops = (unsigned)(p->fault_us / p->gap_us);
}

/* ---- By name ---- */

static const struct {
	const char *name;
	sim_plan_fn *plan;
} named[] = {
#define NAMED(name) {#name, sim_plan_##name}
	NAMED(from_seed), NAMED(rough),  NAMED(partial), NAMED(fence), NAMED(log),
	NAMED(power),     NAMED(rot),    NAMED(dedup),   NAMED(cut_off), NAMED(lag),
	NAMED(full),      NAMED(device), NAMED(errands), NAMED(reformat),
	NAMED(reborn),    NAMED(return), NAMED(dark),    NAMED(stall), NAMED(stumble),
	NAMED(at_io),    NAMED(full_log), NAMED(trims), NAMED(anew),
#undef NAMED
};

sim_plan_fn *sim_plan_named(const char *name)
{
	for (size_t i = 0; name && i < ARRAY_LEN(named); i++)
		if (!strcmp(named[i].name, name))
			return named[i].plan;
	return NULL;
}
