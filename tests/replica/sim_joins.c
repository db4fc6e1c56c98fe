/* SPDX-License-Identifier: Apache-2.0 */
/* Directed histories of joins and streams: a session that is up before anybody has joined on it (N4), an
 * answer to a join that is over (N2), what was under way when a session ended (W2), and a stream that is not
 * in order (W3). Chance hardly makes them: the moments are short. */
#include "tests/replica/sim.h"

static unsigned old_node, heir;

static bool heir_serves(void)
{
	return sim_primary_node(0) == heir && sim_serves(heir, 0);
}

/* A primary that hears no news was replaced; its successor ends, and is back together with the link between
 * them. Its new process knows of no join, so it owes no fence and grants at once, and takes over from itself
 * a little later. What waits at the old primary for a lease is not answered by that grant: nobody has
 * joined. */
bool sim_case_reborn(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_settled(&plan);
	old_node = sim_primary_node(0);
	heir = 3 - old_node;
	sim.proc[old_node].raft_cut_until = sim.now_us + 15000000;
	sim_net_cut(old_node, heir, true);
	sim_net_reset(old_node, heir);
	sim_wait_for(heir_serves, "the other node takes over");
	sim_writes(60, "the clients are done");
	sim_proc_crash(heir);
	sim_clients_final_reads(); /* some come to the old one, by its map */
	sim_run_until(sim.now_us + sim_rand(1000, 300000), NULL);
	sim_net_cut(old_node, heir, false);
	sim_proc_start(heir);
	sim_run_until(sim.now_us + 500000, NULL);
	return sim_finish();
}

/* ---- An answer to a join that is over ---- */

static unsigned target;

static const struct member *target_member(void)
{
	const struct object *o = object_find(sim.proc[old_node].r, object_id(sim.volume, 0));
	const struct primary *p = o ? o->primary : NULL;

	for (unsigned i = 0; p && i < p->member_count; i++)
		if (p->member[i].node == target)
			return &p->member[i];
	return NULL;
}

static bool target_is_out(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (map_in_count(sim_object(i)) != 2)
			return false;
	return true;
}

static uint32_t first_join;

static bool answer_is_under_way(void)
{
	const struct object *o = object_find(sim.proc[target].r, object_id(sim.volume, 0));
	const struct member *m = target_member();

	return o && o->in.state == IN_JOINED && m && m->state == MEMBER_JOINING && m->join == o->in.join;
}

static bool joined_anew(void)
{
	const struct member *m = target_member();

	return m && m->state == MEMBER_JOINING && m->join > first_join;
}

/* At the very event: what comes next must not pass. */
static void step_until(bool (*done)(void), const char *what)
{
	uint64_t limit = sim.now_us + 10000000;

	while (!sim.failure[0] && !done()) {
		if (sim.now_us > limit || !sim_step())
			sim_fail("in vain waited until %s:%s", what, sim_describe());
	}
}

/* A replica that is to be filled has answered its join. Before that is heard, the configuration changes and
 * it is joined anew, and it hears of that late: what is sent to it as if the first answer were one to the
 * second join comes while it cannot take it, and neither side ever speaks of it again. */
bool sim_case_old_join(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 3);

	sim_begin_settled(&plan);
	old_node = sim_primary_node(0);
	target = 1 + old_node % 3;
	sim_proc_crash(target);
	sim_wait_for(target_is_out, "it is out");
	sim_proc_start(target);
	step_until(answer_is_under_way, "it has answered its join");
	first_join = sim.failure[0] ? 0 : target_member()->join;
	sim_net_cut(old_node, target, true);
	sim_drop(6 - old_node - target, old_node);
	step_until(joined_anew, "it is being joined anew");
	sim_net_block(target, old_node, false);
	sim_clients_more(20);
	sim_run_until(sim.now_us + 500000, sim_clients_done);
	sim_net_block(old_node, target, false);
	return sim_finish();
}

/* ---- Streams ---- */

static void begin_stream(uint64_t seed, unsigned clients)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 2,
				.copies = 2,
				.clients = clients,
				.ops_per_client = 60,
				.depth = 8};

	sim_begin_settled(&plan);
	old_node = sim_primary_node(0);
	target = 3 - old_node;
}

static void nobody_was_dropped(uint64_t before, const char *when)
{
	sim_wait_for(sim_clients_done, "the clients are done");
	sim_wait_for(sim_all_in, "all is quiet");
	if (!sim.failure[0] && sim_drops() != before)
		sim_fail("a member was dropped, though %s", when);
}

/* A session ends with records under way: the member gets them on the next one, and nobody is dropped. */
bool sim_case_resend(uint64_t seed)
{
	uint64_t drops;

	begin_stream(seed, 4);
	drops = sim_drops();
	sim_net_cut(1, 2, true);
	sim_clients_more(60);
	sim_run_until(sim.now_us + 20000, NULL);
	sim_net_cut(1, 2, false);
	sim_net_reset(1, 2);
	nobody_was_dropped(drops, "its session was away for a moment only");
	return sim_finish();
}

/* A record does not arrive, or twice; others follow. The member takes none that is not the next one, and gets
 * what it lacks by joining again. */
bool sim_case_in_order(uint64_t seed)
{
	static const uint32_t blocks[] = {0, 4096, 70, 9000, 2};
	uint64_t drops;

	begin_stream(seed, 2);
	drops = sim_drops();
	sim_net_spoil(old_node, target, seed % 2 ? 0 : 2);
	for (unsigned i = 0; i < ARRAY_LEN(blocks); i++)
		sim_client_does(0, IO_WRITE, 0, blocks[i]);
	nobody_was_dropped(drops, "it could have what it lacks");
	sim_net_reset(1, 2); /* what of credit was lost with it is found again */
	sim_run_until(sim.now_us + 200000, NULL);
	return sim_finish();
}

/* ---- Another replica in the place of the one that had joined ---- */

#define ANEW_BLOCK 5000u /* of a page that clients leave alone otherwise */

static bool is_dropped(void)
{
	return !sim_member(0, target)->in;
}

static bool is_kept(void)
{
	return sim_member(0, target)->kept;
}

static bool is_gone(void)
{
	return !sim_member(0, target);
}

static bool is_placed(void)
{
	return sim_member(0, target) != NULL;
}

static bool has_swapped(void)
{
	const struct object *o = object_find(sim.proc[target].r, object_id(sim.volume, 0));

	return o->store && sim_member(0, target) && o->gen == sim_member(0, target)->gen;
}

/* Proposals get lost. */
static void change_to(uint8_t op, unsigned proposer, bool (*done)(void))
{
	for (unsigned i = 0; i < 50 && !done() && !sim.failure[0]; i++) {
		sim_change_one(0, op, target, proposer);
		sim_run_until(sim.now_us + 50000, done);
	}
}

/* A replica is removed and placed again while neither it nor its primary hears news; then it hears both at
 * once, and its primary goes on with the one that was. A write that the empty one took from it would make its
 * page pass for the primary's, by version, without what else is on it. */
bool sim_case_placed_anew(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	sim_begin_settled(&plan);
	old_node = sim_primary_node(0);
	target = 3 - old_node;
	sim_client_does(0, IO_WRITE, 0, ANEW_BLOCK);
	sim_wait_for(sim_clients_done, "the first write is done");
	sim_wait_for(sim_all_in, "all are in");
	sim.proc[target].map_leaps = true;
	sim.proc[target].raft_cut_until = sim.now_us + 4000000;
	sim.proc[old_node].raft_cut_until = sim.now_us + 6000000;
	change_to(OBJ_DROP, target, is_dropped);
	change_to(OBJ_QUARANTINE, old_node, is_kept);
	change_to(OBJ_DISCARD, 0, is_gone);
	change_to(OBJ_PLACE, 0, is_placed);
	sim_wait_for(has_swapped, "the new replica is made");
	sim_client_does(1, IO_WRITE, 0, ANEW_BLOCK + 1);
	sim_wait_for(sim_clients_done, "the second write is done");
	sim_wait_for(sim_all_in, "the new replica is in");
	return sim_finish();
}
