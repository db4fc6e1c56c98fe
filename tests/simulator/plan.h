/* SPDX-License-Identifier: Apache-2.0 */
/* How a history is made. All of it is drawn from the seed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SIM_NODES_MAX   5u
#define SIM_CLIENTS_MAX 4u

struct sim_plan {
	uint64_t seed;
	unsigned nodes, spare, copies, shards, clients, gateways, ops, depth, objects;
	uint64_t fault_us; /* faults happen for so long */
	/* Chance of each kind of fault, per node and step of about 50 ms. */
	double kill, power, pause, block, reset, slow_disk, rot, eio, reformat, blackout, suspect,
		leader_kill, client_kill, fence, stall;
	double late, duplicate; /* chance of a packet to be late; of a request to come twice */
	double pause_long, hidden;
	int64_t drift_ppm; /* clock rates differ by up to twice that */
	bool drift, trims, partial, compression, dedup, confirm, tiny_log, tiny_data, exclusive,
		resize, join;
	bool minority; /* a minority stays broken for good at the end */
	bool verbose;
};

void sim_plan_from_seed(struct sim_plan *p, uint64_t seed);
/* Rough weather: few nodes, many faults of the kinds that tell rules apart. For planted faults. */
void sim_plan_rough(struct sim_plan *p, uint64_t seed);
void sim_plan_partial(struct sim_plan *p, uint64_t seed);
void sim_plan_fence(struct sim_plan *p, uint64_t seed);
void sim_plan_log(struct sim_plan *p, uint64_t seed);
void sim_plan_power(struct sim_plan *p, uint64_t seed);
void sim_plan_rot(struct sim_plan *p, uint64_t seed);
void sim_plan_dedup(struct sim_plan *p, uint64_t seed);
