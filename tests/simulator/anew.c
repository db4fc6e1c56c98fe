/* SPDX-License-Identifier: Apache-2.0 */
/* A disk group loses its map when nobody else is there to serve (L5): both nodes that have the replicas of an
 * object go down at one moment, its primary's map is gone with it, and it is back long before the other one.
 * The third node is for Raft: what can be decided without the other replica will be. The data is all there,
 * on the one that is still away. */
#include "tests/simulator/sim.h"

#define LOOK_US (100 * SIM_MS)

static struct sim_node *node_of(const struct map_member *mb)
{
	const struct map_node *n = map_member_node(sim_newest_map(), mb);

	return n && n->id <= SIM_NODES_MAX ? &sim.node[n->id] : NULL;
}

static void ask(void *arg);

/* Nothing is under way that could have put one of them out. */
static void decided(void *arg, const struct command_result *r)
{
	const struct map *m = sim_newest_map();
	const struct map_object *o = m ? map_object(m, object_id(sim.volume, 0)) : NULL;
	struct sim_node *first, *second;

	if (sim.faults_over)
		return;
	first = o ? node_of(&o->member[o->primary]) : NULL;
	second = o && o->member_count == 2 ? node_of(&o->member[!o->primary]) : NULL;
	if (!first || !second || !sim_node_serves(first) || !sim_node_serves(second) ||
	    !sim_has_applied(r->index) || !sim_members_in()) {
		simhost_at(LOOK_US, NULL, ask, NULL, NULL);
		return;
	}
	sim_trace("nodes %u and %u go down, node %u without its map", first->number, second->number,
		  first->number);
	sim_node_kill(first, sim_chance(0.5));
	sim_node_kill(second, sim_chance(0.5));
	vdb_remove(first->host, SIM_DB);
	sim.counts.kills += 2;
	sim.counts.reformats++;
	sim_restart_in(first, sim_rand(1, 300) * SIM_MS);
	sim_restart_in(second, sim_rand(5000, 7000) * SIM_MS);
}

static void ask(void *arg)
{
	if (!sim.faults_over)
		sim_raft_asked(decided, NULL);
}

void sim_anew_begin(void)
{
	if (sim.plan.anew)
		simhost_at(sim_rand(1000, 2500) * SIM_MS, NULL, ask, NULL, NULL);
}
