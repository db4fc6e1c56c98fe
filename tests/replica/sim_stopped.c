/* SPDX-License-Identifier: Apache-2.0 */
/* A primary's host stands still, and its clock with it (N6). Meanwhile another node takes over and writes;
 * when the old one goes on, it believes in leases that ended long ago, and has not yet heard of anything.
 * What is asked of it then must not be answered from the past. */
#include "tests/replica/sim.h"

#define STEP_US 30000000u

static unsigned old_node;

static bool served_elsewhere(void)
{
	unsigned n = sim_primary_node(0);

	return n && n != old_node && sim_serves(n, 0);
}

/* Until then the old one stands. */
static void stands_until(bool (*done)(void), const char *what)
{
	uint64_t limit = sim.now_us + STEP_US;

	while (!sim.failure[0] && !done()) {
		sim_proc_pause(old_node, 60000);
		sim_run_until(sim.now_us + 50000, done);
		if (sim.now_us > limit)
			sim_fail("in vain waited until %s:%s", what, sim_describe());
	}
}

static void cut_off(unsigned node, bool on)
{
	for (unsigned n = 1; n <= sim.plan.nodes; n++)
		if (n != node)
			sim_net_cut(node, n, on);
}

static void begin(const struct sim_plan *plan)
{
	sim_begin_settled(plan);
	old_node = sim_primary_node(0);
}

/* Another one serves and writes; then come the reads, and the old one goes on. */
static void goes_on_late(bool heard_of)
{
	stands_until(served_elsewhere, "another node serves");
	sim_clients_more(60);
	stands_until(sim_clients_done, "the clients are done");
	sim_clients_final_reads();
	sim_run_until(sim.proc[old_node].paused_until - sim_rand(1, 5000), NULL);
	if (heard_of)
		cut_off(old_node, false);
	sim_clients_final_reads();
	sim_run_until(sim.proc[old_node].paused_until + 400000, NULL);
}

/* Odd seeds: its links are dead until after the reads; even ones: what was sent to it, fences and all, comes
 * together with the reads. */
bool sim_case_stopped(uint64_t seed, bool confirm_reads)
{
	struct sim_plan plan = sim_plan_of(seed, 2 + seed / 2 % 2);

	plan.clock_stops = true;
	plan.confirm_reads = confirm_reads;
	begin(&plan);
	if (seed % 3 == 0) /* something is under way */
		sim_clients_more(10);
	sim_run_until(sim.now_us + sim_rand(1, 3000), NULL);
	sim.proc[old_node].raft_cut_until = sim.now_us + 15000000;
	cut_off(old_node, true);
	goes_on_late(seed % 2 == 0);
	cut_off(old_node, false);
	return sim_finish();
}

/* Of two members one has resigned, and only that one is in reach of the old primary: it follows no other, but
 * nobody will ask it to. Neither has news of that. */
bool sim_case_stopped_alone(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 3);
	unsigned resigned, heir;

	plan.clock_stops = true;
	plan.confirm_reads = true;
	begin(&plan);
	resigned = 1 + old_node % 3;
	heir = 6 - old_node - resigned;
	sim_run_until(sim.now_us + sim_rand(1, 3000), NULL);
	sim.proc[old_node].raft_cut_until = sim.proc[resigned].raft_cut_until = sim.now_us + 15000000;
	cut_off(heir, true);
	sim_drop(resigned, resigned);
	goes_on_late(false);
	cut_off(heir, false);
	return sim_finish();
}
