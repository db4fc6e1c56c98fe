/* SPDX-License-Identifier: Apache-2.0 */
/* Rebuild, evacuation and rebalance in histories: the oracle plays the leader with the product's
 * own planner. Its changes are lost and late like everybody's. */
#include "cluster/relocate.h"
#include "tests/replica/sim.h"

#include <stdlib.h>

#define LOOK_US 150000u
#define AWAY_US 700000u /* virtual: histories are short */

static uint64_t down_since[SIM_NODES_MAX + 1];

static void contacts(struct relocate_node *nodes)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct sim_proc *p = &sim.proc[i];

		if (p->alive && p->paused_until <= sim.now_us)
			down_since[i] = 0;
		else if (!down_since[i])
			down_since[i] = sim.now_us;
		nodes[i].up = !down_since[i];
		nodes[i].away = down_since[i] && sim.now_us - down_since[i] >= AWAY_US;
	}
}

static void job(uint8_t op, uint8_t kind, uint32_t id, uint16_t node)
{
	struct command c = {.kind = CMD_JOB,
			    .job = {.op = op, .kind = kind, .id = id, .node = node}};

	sim_submit_command(&c);
}

void sim_evacuate(unsigned node)
{
	sim_trace("node %u is to be emptied", node);
	job(JOB_START, JOB_EVACUATE, 0, (uint16_t)node);
}

void sim_jobs_cancel(void)
{
	unsigned count;
	struct state_job all[STATE_JOBS];

	memcpy(all, state_jobs(sim.state, &count), sizeof(all));
	for (unsigned i = 0; i < count; i++)
		job(JOB_CANCEL, 0, all[i].id, 0);
}

/* Jobs come, go and wait; in the end there are none. */
static void disturb(void)
{
	unsigned count;
	const struct state_job *j = state_jobs(sim.state, &count);
	uint32_t id = count ? j[sim_rand(0, count - 1)].id : 0;

	if (sim_chance(0.05))
		sim_evacuate((unsigned)sim_rand(1, sim.plan.nodes));
	if (sim_chance(0.03))
		job(JOB_START, JOB_REBALANCE, 0, 0);
	if (sim_chance(0.06) && id)
		job((uint8_t)sim_rand(JOB_PAUSE, JOB_CANCEL), 0, id, 0);
	if (sim_chance(0.02))
		sim_jobs_cancel();
}

static void lead(void *arg)
{
	struct relocate_node nodes[SIM_NODES_MAX + 1] = {0};
	struct relocate_input in = {
		.map = state_map(sim.state), .nodes = nodes, .fills_max = RELOCATE_FILLS};
	struct relocate_plan *p = xcalloc(1, sizeof(*p));

	sim_at(LOOK_US, NULL, lead, NULL, NULL);
	contacts(nodes);
	if (!sim.faults_over && sim.plan.relocate > 1)
		disturb();
	in.jobs = state_jobs(sim.state, &in.job_count);
	relocate(&in, p);
	if (sim.leaderless_until <= sim.now_us) {
		for (unsigned i = 0; i < p->wanted_count; i++)
			job(JOB_START, JOB_REBUILD, 0, p->wanted[i].node);
		for (unsigned i = 0; i < p->count; i++) {
			sim_trace("the leader wants %s of object %llx (group %u)",
				  p->change[i].op == OBJ_PLACE    ? "place"
				  : p->change[i].op == OBJ_REMOVE ? "remove"
								  : "a planned takeover",
				  (unsigned long long)p->change[i].object,
				  p->change[i].replica.group);
			sim.relocated[p->change[i].op]++;
		}
		if (p->count && !sim_chance(0.05))
			sim_propose_changes(p->change, p->count);
	}
	free(p);
}

void sim_relocate_start(void)
{
	memset(down_since, 0, sizeof(down_since));
	if (sim.plan.relocate)
		sim_at(LOOK_US, NULL, lead, NULL, NULL);
}

/* Exactly the policy's copies, and no replica left behind on a disk. */
bool sim_tidy(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o =
			map_object(state_map(sim.state), object_id(sim.volume, i));

		if (o->member_count != sim.plan.copies)
			return false;
		for (unsigned n = 1; n <= sim.plan.nodes; n++) {
			bool member = false;

			for (unsigned k = 0; k < o->member_count; k++)
				member |= o->member[k].group == sim.proc[n].group;
			if (!member && sim_store_holds(sim.proc[n].disk, o->id))
				return false;
		}
	}
	return true;
}
