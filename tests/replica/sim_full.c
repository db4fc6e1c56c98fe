/* SPDX-License-Identifier: Apache-2.0 */
/* A member that has no space to grant, on a session on which it has granted none yet: what needs its credit
 * is answered NO_SPACE and is logged nowhere (W1, L4). It stays in, and once it has space all goes on. */
#include "tests/replica/sim.h"

bool sim_case_full_member(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 2, .ops_per_client = 30, .depth = 4};
	struct store *disk;
	int64_t before;

	sim_begin_settled(&plan);
	disk = sim.proc[sim_primary_node(0) == 1 ? 2 : 1].disk; /* the other member of the first object */
	sim_store_fill(disk, true);
	sim_net_reset(1, 2); /* what it had granted is void */
	sim_run_until(sim.now_us + 1000, NULL);
	sim_wait_for(sim_all_in, "all are joined again");
	before = sim_store_unpaid(disk);
	sim_clients_more(40);
	sim_run_until(sim.now_us + 4000000, NULL);
	if (!sim.failure[0] && sim_store_unpaid(disk) != before)
		sim_fail("a member logged %lld bytes for which it had granted no space",
			 (long long)(sim_store_unpaid(disk) - before));
	if (!sim.failure[0] && !sim.no_space)
		sim_fail("nobody was told that a member is full:%s", sim_describe());
	if (!sim.failure[0] && !sim_listed_in())
		sim_fail("a member was dropped because it is full");
	sim_store_fill(disk, false);
	sim_wait_for(sim_clients_done, "what waited for space is done");
	return sim_finish();
}
