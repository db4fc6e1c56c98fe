/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that lied about what is durable: a member comes back in the same tenure without writes that it had
 * acknowledged (T5). It is dropped and filled anew, before anybody relies on it. */
#include "tests/replica/sim.h"

static unsigned wanted;

static bool has_all(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_node *n = map_primary_node(state_map(sim.state), sim_object(i));

		if (!n || n->id != wanted)
			return false;
	}
	return true;
}

static bool dropped(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (map_in_count(sim_object(i)) < sim_object(i)->member_count)
			return true;
	return false;
}

bool sim_case_lost(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 2, .ops_per_client = 20, .depth = 4};
	unsigned forgotten;

	sim_begin_written(&plan);
	sim_wait_for(sim_all_in, "all are in");
	wanted = 1;
	for (unsigned i = 0; i < 50 && !has_all() && !sim.failure[0]; i++) { /* proposals get lost */
		sim_move(2, 1);
		sim_run_until(sim.now_us + 400000, has_all);
	}
	sim_clients_more(40);
	sim_wait_for(sim_clients_done, "the writes are done");
	sim.losing = true;
	sim_proc_crash(2);
	forgotten = sim_store_forget(sim.proc[2].disk);
	sim_proc_start(2);
	sim_run_until(sim.now_us + 900000, dropped); /* later it is dropped anyway: it does not acknowledge */
	if (forgotten && !dropped())
		sim_fail("a member that forgot %u writes is still in", forgotten);
	sim_run_until(sim.now_us + 3000000, NULL);
	sim_wait_for(sim_all_in, "what was lost is there again");
	sim_proc_crash(1);
	wanted = 2;
	sim_wait_for(has_all, "the other one takes over");
	sim_clients_final_reads();
	sim_wait_for(sim_clients_done, "all is read");
	sim_proc_start(1);
	return sim_finish();
}
