/* SPDX-License-Identifier: Apache-2.0 */
/* Directed histories of what only operators may do: an object goes on from a replica that lacks acknowledged
 * writes, what that went past stays as it is, and they go back to it; a cluster goes on with an older state,
 * its Raft majority being lost. */
#include "tests/replica/sim.h"

const struct map_member *sim_member(uint32_t i, unsigned node)
{
	const struct map_object *o = sim_object(i);

	for (unsigned k = 0; k < o->member_count; k++)
		if (o->member[k].group == sim.proc[node].group)
			return &o->member[k];
	return NULL;
}

static bool second_is_out(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (sim_member(i, 2)->in || !sim_member(i, 1)->in)
			return false;
	return true;
}

static bool both_are_in(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (!sim_member(i, 1) || !sim_member(i, 2) || !sim_member(i, 1)->in || !sim_member(i, 2)->in)
			return false;
	return true;
}

static bool second_registered(void)
{
	const struct map_node *n = map_node(state_map(sim.state), 2);

	return n->incarnation == sim.proc[2].incarnation;
}

static bool serves(unsigned node)
{
	return sim_stats(node).serving == SIM_OBJECTS;
}

static bool first_serves(void)
{
	return serves(1);
}

static bool second_serves(void)
{
	return serves(2);
}

static struct version last_of(uint32_t i, unsigned node)
{
	struct replica_info f = {0};

	if (!replicator_info(sim.proc[node].r, object_id(sim.volume, i), &f))
		sim_fail("node %u has no replica of object %u", node, i);
	return f.last;
}

static void group_state(unsigned node, uint8_t state)
{
	struct command c = {.kind = CMD_GROUP_STATE};

	c.group_state.group = sim.proc[node].group;
	c.group_state.state = state;
	c.group_state.free_steps = 20;
	c.group_state.incarnation = 1;
	sim_submit_command(&c);
}

static struct object_change change(uint32_t i, uint8_t op, unsigned node, unsigned proposer)
{
	const struct map_group *g = map_group(state_map(sim.state), sim.proc[node].group);
	struct object_change ch = {
		.op = op,
		.object = object_id(sim.volume, i),
		.epoch = sim_object(i)->epoch,
		.node = (uint16_t)node,
		.incarnation = map_node(state_map(sim.state), (uint16_t)node)->incarnation,
		.proposer = (uint16_t)proposer,
		.replica = {.group = g->id, .group_incarnation = g->incarnation}};

	if (sim_member(i, node))
		ch.replica = *sim_member(i, node);
	if (op == OBJ_QUARANTINE) /* the primary's to propose */
		ch.incarnation = sim_object(i)->primary_incarnation;
	return ch;
}

void sim_change_one(uint32_t i, uint8_t op, unsigned node, unsigned proposer)
{
	struct object_change ch = change(i, op, node, proposer);
	struct command c = {.kind = CMD_OBJECT, .object = {1, &ch}};

	sim_submit_command(&c);
}

/* As the operator's command does it: all objects in one, on what the map says now. */
static void change_all(uint8_t op, unsigned node, unsigned proposer)
{
	struct object_change ch[SIM_OBJECTS];
	struct command c = {.kind = CMD_OBJECT, .object = {SIM_OBJECTS, ch}};

	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		ch[i] = change(i, op, node, proposer);
	sim_submit_command(&c);
}

/* Its group is failed, as its next process found. */
static void force_past_first(void)
{
	group_state(1, GROUP_FAILED);
	change_all(OBJ_FORCE, 2, 0);
	sim_wait_for(second_serves, "what was forced serves");
}

static void fill_again(unsigned node)
{
	change_all(OBJ_DISCARD, node, 0);
	change_all(OBJ_PLACE, node, 0);
	sim_wait_for(both_are_in, "what was discarded is filled again");
}

static void yield(void *arg)
{
	struct sim_proc *p = arg;

	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (replicator_yield(p->r, object_id(sim.volume, i), sim_object(i)->tenure))
			sim_fail("node %u does not yield object %u", p->node, i);
}

static bool kept_everywhere(unsigned node)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (!sim_member(i, node) || !sim_member(i, node)->kept)
			return false;
	return true;
}

/* Node 2 misses writes; odd seeds: it returns, and is being filled, with writes that skip its pages, when
 * node 1 dies. Its replicas are then forced. Node 1 returns: nothing of what it has is touched, and when the
 * operator goes back to it every acknowledged write is there. */
bool sim_case_force(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	struct version last[SIM_OBJECTS];

	plan.trims = true;
	plan.tiny_log = seed % 3 == 0;
	sim_begin_written(&plan);
	sim_away(2);
	if (seed % 2) {
		sim_proc_start(2);
		sim_wait_for(second_registered, "node 2 is registered");
		sim.leaderless_until = UINT64_MAX; /* so that nobody is promoted */
		sim_writes(40, "the writes beside the fill are done");
		sim_run_until(sim.now_us + 500000, NULL); /* what was proposed before is decided */
	}
	if (seed % 2 && !second_is_out()) { /* it was quicker */
		sim.leaderless_until = 0;
		return sim_finish();
	}
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		last[i] = last_of(i, 1);
	sim_proc_crash(1);
	sim.leaderless_until = 0;
	if (!(seed % 2))
		sim_proc_start(2);
	sim_run_until(sim.now_us + 3000000, NULL);
	if (second_serves())
		sim_fail("a replica that lacks writes serves, and nobody asked for it");
	change_all(OBJ_FORCE, 2, 0);
	if (kept_everywhere(1))
		sim_fail("forced, though the primary may be alive");

	force_past_first();
	sim_proc_start(1);
	sim_run_until(sim.now_us + 4000000, NULL);
	group_state(1, GROUP_ACTIVE);
	sim_run_until(sim.now_us + 2000000, NULL);
	if (!second_serves() || !kept_everywhere(1))
		sim_fail("the returning loser is not in quarantine:%s", sim_describe());
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (version_cmp(last_of(i, 1), last[i]))
			sim_fail("a replica in quarantine was changed");

	sim_at(0, &sim.proc[2], yield, NULL, &sim.proc[2]);
	sim_run_until(sim.now_us + 1000, NULL);
	change_all(OBJ_FORCE, 1, 2);
	sim_wait_for(first_serves, "the operator goes back");
	sim_reads("all is read");
	sim_clients_more(20);
	fill_again(2);
	return sim_finish();
}

static bool second_has_a_page(void)
{
	const struct object *o = object_find(sim.proc[2].r, object_id(sim.volume, 0));

	return o && o->in.copies;
}

/* Every, or every other, of a few blocks of one page. */
static void on_page(uint8_t kind, uint32_t step, const char *what)
{
	for (uint32_t i = 0; i < 10; i += step)
		sim_client_does(0, kind, 0, 5000 + i);
	sim_wait_for(sim_clients_done, what);
}

/* What is forced is a copy that was never finished: it has a page of writes that its log knows nothing of.
 * What is written to that page from then on has higher numbers all the same. */
bool sim_case_force_unfinished(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_settled(&plan);
	sim_run_until(sim.now_us + 1000000, NULL); /* what node 2 has and knows to be committed stays */
	sim_proc_crash(2);
	sim_wait_for(second_is_out, "node 2 is dropped");
	on_page(IO_WRITE, 1, "the writes are done");
	sim_store_slow(sim.proc[1].disk, 3000000);
	sim_client_does(1, IO_WRITE, 0, 0); /* that page waits, so the copy is not finished */
	sim_run_until(sim.now_us + 10000, NULL);
	sim_proc_start(2);
	sim_wait_for(second_has_a_page, "node 2 has a page");
	sim_proc_crash(1);
	sim_run_until(sim.now_us + 1000000, NULL); /* what was proposed is decided */
	force_past_first();
	on_page(IO_WRITE, 2, "the next writes are done");
	sim_proc_crash(2);
	sim_proc_start(2);
	sim_wait_for(second_serves, "it serves again");
	on_page(IO_READ, 1, "the page is read");

	sim_store_slow(sim.proc[1].disk, 0);
	sim_proc_start(1);
	group_state(1, GROUP_ACTIVE);
	fill_again(1);
	return sim_finish();
}

/* The last replica of I has a damaged log: it does not serve until somebody accepts what it lacks. */
bool sim_case_accept_damage(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_written(&plan);
	sim_away(2);
	sim_proc_crash(1);
	sim_store_spoil(sim.proc[1].disk);
	sim_proc_start(1);
	sim_run_until(sim.now_us + 3000000, NULL);
	if (first_serves())
		sim_fail("a damaged replica serves, and nobody accepted that");
	change_all(OBJ_FORCE, 1, 0);
	sim_wait_for(first_serves, "what was accepted serves");
	sim_proc_crash(1); /* and does so for good */
	sim_proc_start(1);
	sim_wait_for(first_serves, "it serves again");
	sim_clients_more(20);
	sim_proc_start(2);
	fill_again(2);
	return sim_finish();
}

/* ---- A lost Raft majority ---- */

static bool first_is_out(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (sim_member(i, 1)->in || sim_primary_node(i) == 1)
			return false;
	return true;
}

static bool any_serves(void)
{
	for (unsigned n = 1; n <= sim.plan.nodes; n++)
		if (sim_stats(n).serving)
			return true;
	return false;
}

static bool all_settled(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (sim_object(i)->unsure)
			return false;
	return true;
}

static void remove_dead(uint16_t node)
{
	struct command c = {.kind = CMD_NODE_REMOVE};

	c.node_remove.node = node;
	c.node_remove.incarnation = map_node(state_map(sim.state), node)->incarnation;
	c.node_remove.flags = NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS;
	sim_submit_command(&c);
}

/* The state that goes on has node 1 in all I, and primary of one object. In the lost time it was dropped, or
 * taken over from, and all was written anew by nodes 2 and 3; then 3 is lost. Whoever comes back first, 2 has
 * every acknowledged write, and wins. */
bool sim_case_recover(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 3);
	struct writer then = writer_init_heap();

	plan.trims = true;
	plan.tiny_log = seed % 3 == 0;
	sim_begin_written(&plan);
	state_snapshot(sim.state, &then);
	sim_proc_crash(1);
	sim_wait_for(first_is_out, "the others go on without node 1");
	sim_writes(40, "the writes of the lost time are done");
	sim_proc_crash(2);
	sim_proc_crash(3);
	sim_run_until(sim.now_us + 1000000, NULL); /* what was proposed is decided */
	sim.plan.nodes = 2;
	sim_recover(&then);
	writer_free(&then);

	sim_proc_start(1 + seed % 2);
	sim_run_until(sim.now_us + 3000000, NULL);
	if (any_serves())
		sim_fail("one serves while others may have more:%s", sim_describe());
	if (seed % 4 < 2)
		remove_dead(3);
	sim_run_until(sim.now_us + 1000000, NULL);
	if (any_serves())
		sim_fail("one serves while another one may have more:%s", sim_describe());
	sim_proc_start(2 - seed % 2);
	if (seed % 4 == 1) { /* its disk group takes long to open */
		sim_run_until(sim.now_us + 2000, NULL);
		sim_group_reopen(2 - seed % 2, 8000000);
		sim_run_until(sim.now_us + 7000000, NULL);
		if (any_serves())
			sim_fail("one serves before the other's disks were seen:%s", sim_describe());
	}
	sim_run_until(sim.now_us + 500000, NULL);
	if (seed % 4 >= 2)
		remove_dead(3);
	sim_wait_for(all_settled, "every object is settled");
	sim_reads("all is read");
	sim_clients_more(20);
	return sim_finish();
}

/* What has all is not in I of the state that goes on: nobody serves before an operator decides. */
bool sim_case_recover_newer(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	struct writer then = writer_init_heap();

	sim_begin_written(&plan);
	sim_proc_crash(2);
	sim_wait_for(second_is_out, "node 2 is dropped");
	sim_writes(20, "the writes are done");
	state_snapshot(sim.state, &then);
	sim_proc_start(2);
	sim_wait_for(both_are_in, "node 2 is in again");
	sim_proc_crash(1);
	sim_wait_for(first_is_out, "node 1 is out");
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		sim_clients_more(20);
	sim_wait_for(sim_clients_done, "the writes of the lost time are done");
	sim_proc_crash(2);
	sim_run_until(sim.now_us + 1000000, NULL);
	sim_recover(&then);
	writer_free(&then);

	sim.losing = true;
	sim_proc_start(1 + seed % 2);
	sim_proc_start(2 - seed % 2);
	sim_run_until(sim.now_us + 6000000, NULL);
	if (any_serves() || !sim.newer_told)
		sim_fail("what is older serves, or nobody was told:%s", sim_describe());
	change_all(OBJ_FORCE, 2, 1);
	sim_wait_for(second_serves, "what the operator chose serves");
	sim_reads("all is read");
	fill_again(1);
	return sim_finish();
}

/* ---- A disk that has gone back ---- */

static bool object_stands(uint32_t i)
{
	for (unsigned n = 1; n <= 2; n++) {
		struct replica_info f;

		if (replicator_info(sim.proc[n].r, object_id(sim.volume, i), &f) && f.serving)
			return false;
	}
	return true;
}

static void yield_those_that_stand(void *arg)
{
	struct sim_proc *p = arg;

	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (object_stands(i) &&
		    replicator_yield(p->r, object_id(sim.volume, i), sim_object(i)->tenure))
			sim_fail("node %u does not yield object %u", p->node, i);
}

/* Both nodes lose power, and the disk of `bad` goes back to the copy that was kept. Where its takeover came
 * first and put the other one out nobody serves, and an operator goes back to that one. */
static bool goes_back(unsigned bad, uint64_t seed)
{
	unsigned good = 3 - bad;
	bool stood[SIM_OBJECTS];

	sim_proc_crash(1);
	sim_proc_crash(2);
	sim_store_go_back(sim.proc[bad].disk);
	sim.losing = true;
	sim_proc_start(1 + seed % 2);
	sim_proc_start(2 - seed % 2);
	sim_run_until(sim.now_us + 6000000, NULL);
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		stood[i] = object_stands(i);
	if ((stood[0] || stood[1]) && !sim.newer_told)
		sim_fail("nobody serves, and nobody was told:%s", sim_describe());
	sim_at(0, &sim.proc[bad], yield_those_that_stand, NULL, &sim.proc[bad]);
	sim_run_until(sim.now_us + 10000, NULL);
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (stood[i])
			sim_change_one(i, OBJ_FORCE, good, bad);
	sim_reads("all is read");
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (stood[i]) {
			sim_change_one(i, OBJ_DISCARD, bad, 0);
			sim_change_one(i, OBJ_PLACE, bad, 0);
		}
	sim_wait_for(both_are_in, "there are two copies again");
	if (sim.newer_told > 2 * SIM_OBJECTS) /* once by each that met it */
		sim_fail("told %u times:%s", sim.newer_told, sim_describe());
	return sim_finish();
}

/* Both nodes lose power, and one of them gets an older copy of its disk (a restored backup, a device that
 * lied). It never serves what lacks acknowledged writes, and nobody is dropped for knowing that: either it is
 * filled by the other one, or it waits for an operator. */
bool sim_case_gone_back(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_written(&plan);
	sim_store_keep(sim.proc[2].disk);
	sim_writes(100, "the writes are done");
	return goes_back(2, seed);
}

/* The copy was made when its tail was one that a takeover of the other node then cut, to write something else
 * in its place: it is not shorter, and contradicts what was acknowledged. */
bool sim_case_gone_astray(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	const struct map_object *o;
	unsigned bad;

	sim_begin_written(&plan);
	o = sim_object(0);
	bad = o->member[o->primary].group == sim.proc[1].group ? 1 : 2;
	sim.leaderless_until = UINT64_MAX; /* so that nobody is dropped */
	sim_net_cut(1, 2, true);
	sim_clients_more(plan.depth);
	sim_run_until(sim.now_us + 200000, NULL);
	sim_store_keep(sim.proc[bad].disk);
	sim_proc_crash(bad);
	sim_net_cut(1, 2, false);
	sim.leaderless_until = 0;
	sim_wait_for(sim_clients_done, "the other node has done all writes");
	sim_proc_start(bad);
	sim_wait_for(both_are_in, "there are two copies");
	return goes_back(bad, seed);
}

/* ---- A request of the lost time ---- */

/* What knew the number of a write is lost to a force (A1). A copy of its request that was on its way all the
 * time would be done once more, over what another client has written since: its epoch says that it is of the
 * time before (W1). */
bool sim_case_late_request(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_written(&plan);
	sim_proc_crash(2);
	sim_wait_for(second_is_out, "node 2 is dropped");
	sim_client_keeps();
	sim_client_does(0, IO_WRITE, 0, 0);
	sim_wait_for(sim_clients_done, "the write that will be lost is done");
	sim_proc_crash(1);
	sim_proc_start(2);
	sim_run_until(sim.now_us + 1000000, NULL); /* what was proposed is decided */
	force_past_first();
	sim_client_does(1, IO_WRITE, 0, 0); /* so that nobody misses the other one */
	sim_wait_for(sim_clients_done, "the next write is done");
	sim_kept_arrives(2);
	sim_run_until(sim.now_us + 1000000, NULL);
	sim_reads("all is read");

	sim_proc_start(1);
	group_state(1, GROUP_ACTIVE);
	fill_again(1);
	return sim_finish();
}
