/* SPDX-License-Identifier: Apache-2.0 */
/* Histories of the simulator: many short ones from consecutive seeds, and planted faults that it
 * must find.
 *
 *   test_replica_sim                 the quick set
 *   test_replica_sim --count N [--from S]
 *   test_replica_sim --stopped …     histories of hosts that stand still, and their clocks with them
 *   test_replica_sim --seed N        one history, told in full
 *   test_replica_sim --cases [--from S --count 1 --verbose]   the directed ones alone
 *   test_replica_sim --plant         leaves out one rule after the other; each must be noticed */
#include "tests/lib/test.h"
#include "tests/replica/credits.h"
#include "tests/replica/sim.h"

#include <time.h>

static bool tell_all; /* also of directed histories */

void sim_plan_from_seed(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 7919 + 1);
	*p = (struct sim_plan){.seed = seed};
	p->nodes = (unsigned)rng_between(&r, 2, 4);
	p->copies = (unsigned)rng_between(&r, 2, MIN(p->nodes, COPIES_MAX));
	p->clients = (unsigned)rng_between(&r, 1, 3);
	p->ops_per_client = (unsigned)rng_between(&r, 40, 160);
	p->depth = (unsigned)rng_between(&r, 1, 8);
	p->fault_us = rng_between(&r, 1000000, 6000000);
	/* Swarm: each kind of fault is on in about half of the histories, at its own rate. */
	p->crash = rng_chance(&r, 0.6) ? 0.02 : 0;
	p->power = rng_chance(&r, 0.3) ? 0.01 : 0;
	p->pause = rng_chance(&r, 0.5) ? 0.03 : 0;
	p->pause_long = rng_chance(&r, 0.5) ? 0.3 : 0;
	p->cut = rng_chance(&r, 0.5) ? 0.03 : 0;
	p->reset = rng_chance(&r, 0.5) ? 0.03 : 0;
	p->slow_disk = rng_chance(&r, 0.3) ? 0.02 : 0;
	p->no_leader = rng_chance(&r, 0.4) ? 0.03 : 0;
	p->log_lost = rng_chance(&r, 0.2) ? 0.3 : 0;
	p->suspect = rng_chance(&r, 0.5) ? 0.15 : 0;
	p->damage = rng_chance(&r, 0.2) ? 0.05 : 0;
	p->blackout = rng_chance(&r, 0.15) ? 0.02 : 0;
	p->fence = p->clients > 1 && rng_chance(&r, 0.3);
	p->duplicates = rng_chance(&r, 0.6);
	p->trims = rng_chance(&r, 0.5);
	p->partial = rng_chance(&r, 0.5);
	p->tiny_log = rng_chance(&r, 0.2);
	p->drift = rng_chance(&r, 0.5);
	p->move = rng_chance(&r, 0.6) ? 0.1 : 0;
	p->stop = rng_chance(&r, 0.4) ? 0.02 : 0;
	p->relocate = p->nodes > p->copies && rng_chance(&r, 0.6) ? 2 : 0;
	p->fail = rng_chance(&r, 0.4) ? 0.02 : 0;
	/* What nodes in pausable guests need; whoever needs it not may have it, too. */
	p->clock_stops = rng_chance(&r, 0.3);
	p->confirm_reads = p->clock_stops || rng_chance(&r, 0.1);
	p->min_in_sync = rng_chance(&r, 0.3) ? 2 : 1;
}

/* Rough weather: nearly everything at once, for planted faults. */
static void plan_rough(struct sim_plan *p, uint64_t seed)
{
	struct rng r;

	rng_seed(&r, seed * 104729 + 5);
	sim_plan_from_seed(p, seed);
	p->nodes = 2 + seed % 2;
	p->copies = p->nodes;
	p->relocate = 0;
	p->clients = 3;
	p->depth = 8;
	p->ops_per_client = 300;
	p->fault_us = 4000000;
	p->suspect = seed % 3 ? 0.4 : 0.05;
	p->crash = rng_chance(&r, 0.5) ? 0.03 : 0.005;
	p->pause = rng_chance(&r, 0.5) ? 0.08 : 0.01;
	p->pause_long = 0.3;
	p->cut = rng_chance(&r, 0.5) ? 0.06 : 0;
	p->reset = rng_chance(&r, 0.5) ? 0.15 : 0.01;
	p->damage = p->log_lost = p->slow_disk = p->fail = 0;
	p->tiny_log = false;
	p->duplicates = true;
	p->partial = p->trims = p->clock_stops = p->confirm_reads = false;
	p->move = seed % 4 ? 0 : 0.5;
	p->stop = 0;
	p->min_in_sync = 1;
}

/* Little else happens than that hosts stand still: what they believe afterwards must meet a moment in which
 * nobody told them better (N6). Without confirm_reads about one in 300 shows a stale read. */
static void plan_stopped(struct sim_plan *p, uint64_t seed)
{
	plan_rough(p, seed);
	p->crash = p->power = p->cut = p->reset = p->no_leader = p->suspect = p->blackout = p->move = 0;
	p->ops_per_client = 150;
	p->pause = 0.02;
	p->clock_stops = p->confirm_reads = true;
}

bool sim_run_until(uint64_t until_us, bool (*done)(void))
{
	while (!sim.failure[0] && sim.now_us < until_us) {
		if (!sim_step())
			break;
		if (sim.events_run % 16 == 0) {
			sim_check_single_primary();
			if (done && sim.events_run % 64 == 0 && done())
				return true;
		}
	}
	return false;
}

static void compare_replicas(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS && !sim.failure[0]; i++) {
		uint64_t id = object_id(sim.volume, i);
		const struct map_object *o = map_object(state_map(sim.state), id);

		for (unsigned k = 1; k < o->member_count; k++) {
			uint32_t page = 0;
			const char *bad =
				sim_store_compare(sim.proc[o->member[0].group].disk,
						  sim.proc[o->member[k].group].disk, id, &page);

			if (bad)
				sim_fail("object %u, groups %u and %u, page %u: %s", i,
					 o->member[0].group, o->member[k].group, page, bad);
		}
	}
}

static void compare_credits(void)
{
	for (unsigned a = 1; a <= sim.plan.nodes; a++)
		for (unsigned b = 1; b <= sim.plan.nodes; b++) {
			const char *bad = a == b || !sim.proc[a].alive || !sim.proc[b].alive
						  ? NULL
						  : credits_differ(sim.proc[a].r, (uint16_t)a,
								   sim.proc[b].r, (uint16_t)b);

			if (bad)
				sim_fail("%s", bad);
		}
}

void sim_begin(const struct sim_plan *plan)
{
	sim = (struct sim){.plan = *plan};
	sim.plan.verbose |= tell_all;
	rng_seed(&sim.rng, plan->seed);
	sim_cluster_start();
	sim_clients_start();
}

bool sim_finish(void)
{
	const char *bad;

	sim_heal();
	if (!sim_run_until(sim.now_us + 60000000, sim_clients_done))
		sim_fail("clients are not done 60 s after all faults ended:%s", sim_describe());
	if (!sim_run_until(sim.now_us + 60000000, sim_all_in))
		sim_fail("not all replicas came back in 60 s:%s", sim_describe());
	if (sim.plan.relocate && !sim_run_until(sim.now_us + 60000000, sim_tidy))
		sim_fail("after 60 s replicas are where they should not be:%s", sim_describe());
	if (sim.plan.relocate && !sim_run_until(sim.now_us + 60000000, sim_all_in))
		sim_fail("not all replicas that were moved are in:%s", sim_describe());
	compare_replicas();
	compare_credits();
	if (!sim.failure[0])
		sim_clients_final_reads();
	if (!sim_run_until(sim.now_us + 20000000, sim_clients_done))
		sim_fail("the last reads are not answered:%s", sim_describe());
	bad = sim.failure[0] ? NULL : sim_history_check();
	if (bad)
		sim_fail("%s", bad);
	sim_cluster_end();
	sim_clients_end();
	sim_history_clear();
	return !sim.failure[0];
}

bool sim_run(const struct sim_plan *plan)
{
	sim_begin(plan);
	sim_run_until(plan->fault_us, NULL);
	return sim_finish();
}

static int run_cases(uint64_t from, uint64_t count)
{
	for (uint64_t i = from; i < from + count; i++) {
		if (sim_case_repair(i) && sim_case_damage(i) &&
		    sim_case_attachment(i) && sim_case_move(i) &&
		    sim_case_stop(i) && sim_case_maintenance(i) && sim_case_slow_log(i) &&
		    sim_case_full_tail(i) && sim_case_full_member(i) &&
		    sim_case_evacuate(i) &&
		    sim_case_rebuild(i) && sim_case_reopen(i) && sim_case_old_map(i) &&
		    sim_case_dead_successor(i) && sim_case_lost(i) && sim_case_differ(i) &&
		    sim_case_force(i) && sim_case_force_unfinished(i) && sim_case_accept_damage(i) &&
		    sim_case_recover(i) && sim_case_recover_newer(i) &&
		    sim_case_gone_back(i) && sim_case_gone_astray(i) &&
		    sim_case_late_request(i) && sim_case_newer_page(i) &&
		    sim_case_newer_page_elsewhere(i) && sim_case_newer_page_told(i) &&
		    sim_case_undecided_stop(i) &&
		    sim_case_reborn(i) && sim_case_placed_anew(i) &&
		    sim_case_old_join(i) && sim_case_resend(i) &&
		    sim_case_in_order(i))
			continue;
		printf("directed, seed %llu: %s\n", (unsigned long long)i, sim.failure);
		return 1;
	}
	printf("%llu directed histories of each sort\n", (unsigned long long)count);
	return 0;
}

/* Reads are confirmed, and right; without it some history must show one that is not, or none would have. */
static int run_stopped(uint64_t from, uint64_t count)
{
	unsigned stale = 0;

	for (uint64_t i = from; i < from + count; i++) {
		if (!sim_case_stopped(i, true) || !sim_case_stopped_alone(i)) {
			printf("stopped clock, seed %llu: %s\n", (unsigned long long)i, sim.failure);
			return 1;
		}
		if (sim_case_stopped(i, false))
			continue;
		if (!strstr(sim.failure, "not linearizable")) {
			printf("stopped clock, not confirmed, seed %llu: %s\n", (unsigned long long)i,
			       sim.failure);
			return 1;
		}
		stale++;
	}
	printf("%llu histories of a clock that stops; %u would have stale reads\n",
	       (unsigned long long)count, stale);
	return count >= 20 && !stale;
}

static double cpu_s(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

static const struct weather {
	const char *option;
	void (*plan)(struct sim_plan *p, uint64_t seed);
} weathers[] = {{"", sim_plan_from_seed}, {"--rough", plan_rough}, {"--stopped", plan_stopped}};

static int run_many(uint64_t from, uint64_t count, double budget_s, const struct weather *w)
{
	double start = cpu_s();
	uint64_t i, ops = 0, events = 0, faults = 0;

	for (i = 0; i < count && (!budget_s || cpu_s() - start < budget_s); i++) {
		struct sim_plan p;

		w->plan(&p, from + i);
		if (!sim_run(&p)) {
			printf("seed %llu: %s\n  again: test_replica_sim %s --seed %llu\n",
			       (unsigned long long)p.seed, sim.failure, w->option,
			       (unsigned long long)p.seed);
			return 1;
		}
		ops += sim.ops_done;
		events += sim.events_run;
		faults += sim.faults;
	}
	printf("%llu histories, %llu operations, %llu faults, %llu events: all linearizable, all "
	       "replicas equal "
	       "(%.1f s)\n",
	       (unsigned long long)i, (unsigned long long)ops, (unsigned long long)faults,
	       (unsigned long long)events, cpu_s() - start);
	return 0;
}

static bool run_with_policy(uint64_t seed)
{
	struct sim_plan p;

	plan_rough(&p, seed);
	p.min_in_sync = 2;
	return sim_run(&p);
}

static bool run_stopped_confirmed(uint64_t seed)
{
	return sim_case_stopped(seed, true);
}

/* Each rule left out must be noticed within so many histories. */
static int plant(uint64_t tries, unsigned only)
{
	static const struct {
		enum rule rule;
		unsigned from; /* near a seed that showed it once; the search goes on from there */
		const char *name;
		bool (*run)(uint64_t seed); /* NULL: rough weather */
	} rules[] = {
		{RULE_ACK_ALL, 20, "acknowledged before all of want (W4)"},
		{RULE_READ_LEASE, 2037, "read without a lease check with the data in hand (Q2)"},
		{RULE_FENCE, 4720, "grants while a fence is owed (N5)"},
		{RULE_GRACE, 137, "serving before fences and grace (T2)"},
		{RULE_PROMOTE, 179, "promoted before caught up (Y6)"},
		{RULE_COPY_ORDER, 965, "copy before commit (Y3)"},
		{RULE_CUT, 13, "tail not cut (T1)"},
		{RULE_JOIN_COMMIT, 200, "commit number counted before the cut (L1)"},
		{RULE_WANT, 827, "want without proposed promotions (C1)"},
		{RULE_RETRY, 1, "late duplicates applied again (A1)"},
		{RULE_SKIP, 387, "new writes to stale pages (Y1)"},
		{RULE_TOUCHED, 1036, "page made current by an old comparison (Y2)"},
		{RULE_UPTIME, 2878, "serving before it was up for the grace time (T2)"},
		{RULE_REPAIR, 30, "repair from a replica that is still being filled (Q3)",
		 sim_case_repair},
		{RULE_DROP_APPLIED, 32, "dropped before the drop is applied (C1)"},
		{RULE_KEEP, 1, "a planned move that drops the old primary (T3)", sim_case_move},
		{RULE_CONFIRM, 1, "reads not confirmed where a clock may stop (N6)", run_stopped_confirmed},
		{RULE_CONFIRM_ALL, 1, "reads confirmed by one member only (N6)", sim_case_stopped_alone},
		{RULE_PURGE, 20, "purged by an old map (A3)", sim_case_old_map},
		{RULE_RANGE, 206, "reads and writes of a range do not wait (Q1)"},
		{RULE_SLOW_LOG, 1, "a primary that cannot log stays (W5)", sim_case_slow_log},
		{RULE_MIN_IN_SYNC, 909, "writes with fewer copies in sync than asked for (W1)",
		 run_with_policy},
		{RULE_CREDIT, 1, "logged without the credit of a member (W1, L4)", sim_case_full_member},
		{RULE_SOUND, 1, "one of two sound copies is written (L6)", sim_case_differ},
		{RULE_LOST, 1, "a member that lost what it acknowledged (T5)", sim_case_lost},
		{RULE_SEEN, 1, "JOINED before it is durable (T1)"},
		{RULE_LEASE_JOINED, 1, "a lease without a join (N4)", sim_case_reborn},
		{RULE_JOIN_NUMBER, 1, "an answer to an earlier join (N2)", sim_case_old_join},
		{RULE_REQUEST_TENURE, 1, "a request of before a force (W1)", sim_case_late_request},
		{RULE_RESEND, 1, "what was under way is not sent again (W2)", sim_case_resend},
		{RULE_IN_ORDER, 1, "a record that is not the next one (W3)", sim_case_in_order},
		{RULE_DIFFERS, 1, "a page that is newer than its source's (Y2)", sim_case_newer_page},
	};
	int missed = 0;

	for (size_t k = 0; k < ARRAY_LEN(rules); k++) {
		uint64_t i;

		if (only && rules[k].rule != only)
			continue;
		rule_left_out = rules[k].rule;
		for (i = rules[k].from; i < rules[k].from + tries; i++) {
			struct sim_plan p;

			plan_rough(&p, i);
			if (!(rules[k].run ? rules[k].run(i) : sim_run(&p)))
				break;
		}
		rule_left_out = RULE_NONE;
		if (i == rules[k].from + tries)
			printf("MISSED after %llu histories: %s\n", (unsigned long long)tries,
			       rules[k].name);
		else
			printf("found at seed %llu: %s: %.90s\n", (unsigned long long)i,
			       rules[k].name, sim.failure);
		fflush(stdout);
		missed += i == rules[k].from + tries;
	}
	return missed != 0;
}

int main(int argc, char **argv)
{
	uint64_t from = 1, count = 60, seed = 0;
	double budget = 0;
	bool planted = false, cases = false;
	const struct weather *w = weathers;
	unsigned only = 0;

	log_set_level(LOG_ERROR + 1); /* groups fail as planned */
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];
		const char *v = i + 1 < argc ? argv[i + 1] : "0";

		if (!strcmp(a, "--seed"))
			seed = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--count"))
			count = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--from"))
			from = strtoull(v, NULL, 10);
		else if (!strcmp(a, "--seconds"))
			budget = strtod(v, NULL);
		else if (!strcmp(a, "--rule"))
			only = (unsigned)strtoul(v, NULL, 10);
		else if (!strcmp(a, "--plant"))
			planted = true;
		else if (!strcmp(a, "--rough"))
			w = &weathers[1];
		else if (!strcmp(a, "--stopped"))
			w = &weathers[2];
		else if (!strcmp(a, "--cases"))
			cases = true;
		else if (!strcmp(a, "--verbose"))
			tell_all = true;
	}
	if (seed) {
		struct sim_plan p;

		(planted && w == weathers ? &weathers[1] : w)->plan(&p, seed);
		p.verbose = true;
		rule_left_out = planted ? (enum rule)only : RULE_NONE;
		log_set_level(LOG_INFO);
		printf("%s\n", sim_run(&p) ? "ok" : sim.failure);
		return sim.failure[0] != 0;
	}
	if (planted)
		return plant(count, only);
	if (cases)
		return run_cases(from, count) || run_stopped(from, count);
	return run_many(from, count, budget, w) ||
	       (w == weathers && (run_cases(from, MIN(count, 20)) || run_stopped(from, MIN(count, 20))));
}
