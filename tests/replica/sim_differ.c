/* SPDX-License-Identifier: Apache-2.0 */
/* Two replicas hold different bytes under one version, and both are sound: nobody can tell which of them is
 * right. It is said, and neither is written (L6, P18). */
#include "tests/replica/sim.h"

static void compare(void *arg)
{
	struct sim_proc *p = arg;

	replicator_audit_start(p->r);
}

static uint64_t diverged(void)
{
	uint64_t sum = 0;

	for (unsigned n = 1; n <= sim.plan.nodes; n++)
		sum += sim_stats(n).diverged_pages;
	return sum;
}

static bool differs(void)
{
	return diverged() == 1;
}

static bool agrees(void)
{
	return diverged() == 0;
}

static void compare_everywhere(void)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		sim_at(0, &sim.proc[i], compare, NULL, &sim.proc[i]);
}

bool sim_case_differ(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	unsigned node = 1 + seed % 2;
	uint64_t object;
	uint32_t block = 0, page;

	sim_begin_written(&plan);
	object = object_id(sim.volume, 0);
	sim_wait_for(sim_all_in, "all are in");
	while (block < 256 && !sim_store_alter(sim.proc[node].disk, object, block))
		block++;
	if (block == 256)
		return sim_finish();
	sim.losing = true;
	compare_everywhere();
	sim_wait_for(differs, "it is said that they differ");
	sim_run_until(sim.now_us + 2000000, NULL);
	if (!sim_store_compare(sim.proc[1].disk, sim.proc[2].disk, object, &page))
		sim_fail("one of two sound copies was written over the other");
	sim_store_alter(sim.proc[node].disk, object, block); /* as it was */
	compare_everywhere();
	sim_wait_for(agrees, "they are found to be equal again");
	return sim_finish();
}
