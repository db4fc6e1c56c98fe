/* SPDX-License-Identifier: Apache-2.0 */
/* How a history is made. All of it is drawn from the seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SIM_NODES_MAX   5u
#define SIM_CLIENTS_MAX 4u

/* Faults that come together, as one story (shapes.c). */
enum sim_shape {
	SHAPE_CUT_OFF, /* another one takes over while the primary hears no news */
	SHAPE_LAG,     /* a takeover while a member lacks the newest writes */
	SHAPE_REBORN,  /* a process ends and its successor takes over before anybody notices */
	SHAPE_RETURN,  /* who was away comes back, and becomes the primary */
	SHAPE_DARK,    /* slow disks, then no power */
	SHAPE_STALL,   /* a process stands still in the midst of a turn */
	SHAPE_STUMBLE, /* processes that end again as soon as they are up */
	SHAPE_AT_IO,   /* a process or a node that ends at some I/O */
	SHAPES
};
#define SHAPE(x)  (1u << SHAPE_##x)
#define SHAPE_ALL ((1u << SHAPES) - 1)

struct sim_plan {
	uint64_t seed;
	unsigned nodes, spare, copies, shards, clients, gateways, ops, depth, objects;
	uint64_t fault_us; /* faults happen for so long */
	/* Chance of each kind of fault, per node and step of about 50 ms. */
	double kill, power, pause, block, reset, slow_disk, rot, eio, reformat, blackout, suspect,
		leader_kill, client_kill, fence, stall, group, device;
	double late, duplicate; /* chance of a packet to be late; of a request to come twice */
	double pause_long, hidden;
	double ballast; /* tiny_log: share of operations that are large; 0: some */
	int64_t drift_ppm; /* clock rates differ by up to twice that */
	bool drift, trims, partial, compression, dedup, confirm, tiny_log, tiny_data, exclusive,
		resize, join;
	unsigned shapes; /* enum sim_shape, as bits */
	uint64_t net_us; /* a packet takes up to so long; 0: what is usual */
	uint64_t gap_us; /* clients begin so often, whatever is answered; 0: when something is */
	bool wide;       /* many blocks in play, few writes to each */
	bool errands;    /* an operator moves replicas and maintains nodes, at any moment */
	bool two_devices; /* each group has two capacity devices; p->device: one fails for good */
	bool anew;       /* both nodes of an object go down, one without its map (anew.c) */
	bool full;       /* clients write more than the disk groups hold, and trim when told so */
	bool minority; /* a minority stays broken for good at the end */
	bool verbose;
};

typedef void sim_plan_fn(struct sim_plan *p, uint64_t seed);
sim_plan_fn *sim_plan_named(const char *name); /* NULL: there is none */
sim_plan_fn sim_plan_from_seed;
/* Rough weather: few nodes, many faults of the kinds that tell rules apart. For planted faults. */
sim_plan_fn sim_plan_rough;
sim_plan_fn sim_plan_partial;
sim_plan_fn sim_plan_fence;
sim_plan_fn sim_plan_log;
sim_plan_fn sim_plan_power;
sim_plan_fn sim_plan_rot;
sim_plan_fn sim_plan_dedup;
sim_plan_fn sim_plan_full;
sim_plan_fn sim_plan_device;
sim_plan_fn sim_plan_errands;
sim_plan_fn sim_plan_reformat;
sim_plan_fn sim_plan_anew;
/* One shape and little else. */
sim_plan_fn sim_plan_cut_off;
sim_plan_fn sim_plan_lag;
sim_plan_fn sim_plan_full_log;
sim_plan_fn sim_plan_reborn;
sim_plan_fn sim_plan_return;
sim_plan_fn sim_plan_trims; /* the same, with many trims */
sim_plan_fn sim_plan_dark;
sim_plan_fn sim_plan_stall;
sim_plan_fn sim_plan_stumble;
sim_plan_fn sim_plan_at_io;
