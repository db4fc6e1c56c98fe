/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator does on an ordinary day, at any moment: maintenance of nodes; evacuations, rebalances and
 * removals of nodes that are begun, paused, resumed and cancelled. Nobody looks at what is going on just
 * then: the product refuses what may not be. */
#include <stdio.h>

#include "tests/simulator/sim.h"

#define JOBS_MAX    16u
#define HELD_MAX 8u

static uint32_t jobs[JOBS_MAX];
static uint16_t leaving; /* the node that is to leave; one in a history */
static unsigned job_count;
static unsigned held[HELD_MAX]; /* when all began */

static void note_job(void *arg, const struct command_result *r)
{
	if (r->code < 0)
		return;
	for (unsigned i = 0; i < job_count; i++)
		if (jobs[i] == r->id)
			return;
	if (job_count < JOBS_MAX)
		jobs[job_count++] = r->id;
}

static void job_begin(void)
{
	struct command c = {.kind = CMD_JOB};

	c.job.op = JOB_START;
	c.job.kind = (uint8_t)sim_rand(JOB_EVACUATE, leaving ? JOB_REBALANCE : JOB_REMOVE);
	c.job.total = c.job.kind == JOB_REBALANCE;
	if (c.job.kind == JOB_REMOVE)
		c.job.node = leaving = (uint16_t)sim_rand(1, sim.plan.nodes);
	else if (c.job.kind == JOB_EVACUATE && sim_chance(0.5))
		c.job.node = (uint16_t)sim_rand(1, sim.plan.nodes);
	else if (c.job.kind == JOB_EVACUATE)
		c.job.group = (uint16_t)sim_rand(1, sim.plan.nodes);
	sim_trace("operator: job of kind %u, node %u, group %u", c.job.kind, c.job.node, c.job.group);
	sim_submit(&c, note_job, NULL);
	sim.counts.jobs++;
}

static void job_step(uint32_t id, uint8_t op)
{
	struct command c = {.kind = CMD_JOB};

	c.job.op = op;
	c.job.id = id;
	sim_trace("operator: step %u of job %u", op, id);
	sim_submit(&c, NULL, NULL);
}

static void maintenance(unsigned node, uint8_t op)
{
	struct command c = {.kind = CMD_MAINTENANCE};

	c.maintenance.node = (uint16_t)node;
	c.maintenance.op = op;
	c.maintenance.ttl_s = (uint32_t)sim_rand(1, 60);
	snprintf(c.maintenance.reason, sizeof(c.maintenance.reason), "new fans");
	sim_trace("operator: maintenance of node %u, step %u", node, op);
	sim_submit(&c, NULL, NULL);
}

static void errand(void *arg)
{
	static const uint8_t steps[] = {JOB_PAUSE, JOB_RESUME, JOB_RESUME, JOB_CANCEL};

	if (sim.faults_over)
		return;
	if (sim_chance(0.4) || !job_count)
		job_begin();
	else if (sim_chance(0.7))
		job_step(jobs[sim_rand(0, job_count - 1)], steps[sim_rand(0, 3)]);
	if (sim_chance(0.3))
		maintenance((unsigned)sim_rand(1, sim.plan.nodes),
			    (uint8_t)sim_rand(MAINTENANCE_START, MAINTENANCE_END));
	simhost_at(sim_rand(50, 1500) * SIM_MS, NULL, errand, NULL, NULL);
}

/* The groups that hold an object, as bits. */
static unsigned holders(uint32_t object)
{
	const struct map *m = sim_newest_map();
	const struct map_object *o = m ? map_object(m, object_id(sim.volume, object)) : NULL;
	unsigned bits = 0;

	for (unsigned k = 0; o && k < o->member_count; k++)
		bits |= 1u << o->member[k].group;
	return bits;
}

void sim_errands_begin(void)
{
	job_count = leaving = 0;
	if (!sim.plan.errands)
		return;
	for (uint32_t i = 0; i < MIN(sim.plan.objects, HELD_MAX); i++)
		held[i] = holders(i);
	simhost_at(sim_rand(0, 500) * SIM_MS, NULL, errand, NULL, NULL);
}

/* Some evacuations stay: their targets are kept empty. What is paused would stay half done. */
void sim_errands_end(void)
{
	bool all = sim_chance(0.5);

	for (unsigned i = 0; i < job_count; i++)
		job_step(jobs[i], all || sim_chance(0.3) ? JOB_CANCEL : JOB_RESUME);
	for (unsigned i = 1; i <= sim.plan.nodes && sim.plan.errands; i++)
		maintenance(i, MAINTENANCE_END);
}

static void dead_left(void *arg, const struct command_result *r)
{
	sim_trace("operator: that is answered with %d %s", r->code, r->text);
	sim.counts.dead_removals += r->code >= 0;
}

void sim_errand_dead(const struct sim_node *s)
{
	struct command c = {.kind = CMD_NODE_REMOVE};
	const struct map_node *n = map_node(sim_newest_map(), (uint16_t)s->number);

	if (!sim.plan.errands || !n || sim_chance(0.5))
		return;
	c.node_remove.node = n->id;
	c.node_remove.incarnation = n->incarnation;
	c.node_remove.flags = NODE_REMOVE_DEAD;
	sim_trace("operator: node %u is removed without it", n->id);
	sim_submit(&c, dead_left, NULL);
}

void sim_errands_count(void)
{
	for (uint32_t i = 0; i < MIN(sim.plan.objects, HELD_MAX) && sim.plan.errands; i++)
		sim.counts.moved += (unsigned)__builtin_popcount(holders(i) & ~held[i]);
}
