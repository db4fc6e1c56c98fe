/* SPDX-License-Identifier: Apache-2.0 */
/* One history: birth, faults while clients work, healing of all but a minority, and the verdict. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "node/base/log.h"
#include "tests/simulator/sim.h"

#define SETTLE_LIMIT (90 * SIM_S) /* a disk group that fails again rests for 30 s */
#define CHECK_EVERY  16u

struct sim sim;

uint64_t sim_rand(uint64_t lo, uint64_t hi)
{
	return rng_between(simhost_rng(), lo, hi);
}

bool sim_chance(double p)
{
	return p > 0 && rng_chance(simhost_rng(), p);
}

void sim_trace(const char *fmt, ...)
{
	struct vproc *p = vproc_current();
	struct sim_node *s = sim_node_of(p);
	va_list ap;

	if (!sim.verbose)
		return;
	fprintf(stderr, "%10.3f ms ", (double)simhost_now_us() / 1000);
	if (s)
		fprintf(stderr, "n%u ", s->number);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

void sim_fail(const char *fmt, ...)
{
	va_list ap;

	if (sim.failure[0])
		return;
	va_start(ap, fmt);
	vsnprintf(sim.failure, sizeof(sim.failure), fmt, ap);
	va_end(ap);
	sim_trace("FAILURE: %s", sim.failure);
}

/* False: a failure, or nothing more to come before the time. */
static bool run_until(bool (*done)(void), uint64_t until_us)
{
	while (!sim.failure[0]) {
		sim.counts.events++;
		if (simhost_now_us() >= until_us || !simhost_step())
			return false;
		if (sim.counts.events % CHECK_EVERY == 0) {
			sim_check_now();
			if (done && sim.counts.events % 64 == 0 && done())
				return true;
		}
	}
	return false;
}

static void must_end(bool (*done)(void), const char *what)
{
	char text[3500];

	if (sim.failure[0] || done())
		return;
	if (run_until(done, simhost_now_us() + SETTLE_LIMIT) || sim.failure[0])
		return;
	sim_describe(text, sizeof(text));
	sim_fail("%s, %llu s after all faults ended:%s", what,
		 (unsigned long long)(SETTLE_LIMIT / SIM_S), text);
}

/* All but the node that may stay broken; whether it may, is known only when nothing is under way. */
static void heal(void)
{
	bool one = sim_break_for_good();

	if (one)
		run_until(NULL, simhost_now_us() + sim_rand(0, 4 * SIM_S));
	sim_heal();
	if (one)
		run_until(NULL, simhost_now_us() + SIM_UNDER_WAY_US);
	if (!one || sim.failure[0] || !sim_broken_ask())
		return;
	must_end(sim_broken_known, "no command is applied");
	if (!sim.failure[0])
		sim_broken_decide();
}

static void clients_last(enum sim_last what, const char *unanswered)
{
	do {
		must_end(sim_client_ready, "no client has the volume open");
		if (sim.failure[0])
			return;
		sim.last_again = false;
		sim_clients_last(what);
		must_end(sim_clients_done, unanswered);
	} while (sim.last_again);
}

static void verdict(void)
{
	const char *bad;

	heal();
	must_end(sim_clients_done, "clients are not done");
	if (sim.plan.full) /* a full group takes no copies (store_grant_copy): there must be room */
		clients_last(LAST_TRIM, "the last trims are not answered");
	must_end(sim_all_quiet, "not all replicas are back");
	if (sim.plan.full)
		clients_last(LAST_WRITE, "the last writes are not answered");
	must_end(sim_all_quiet, "not all replicas are as they were");
	while (!sim.failure[0] && !sim_check_replicas()) {
		run_until(NULL, simhost_now_us() + SIM_UNDER_WAY_US); /* the failed group is noticed */
		must_end(sim_all_quiet, "not all replicas are back");
	}
	/* What was acknowledged must be there: everything in play is read once more. */
	clients_last(LAST_READ, "the last reads are not answered");
	if (!sim.failure[0]) {
		run_until(NULL, simhost_now_us() + SIM_UNDER_WAY_US);
		sim_check_credits();
	}
	sim_errands_count();
	bad = sim.failure[0] ? NULL : sim_history_check();
	if (bad)
		sim_fail("%s", bad);
}

static void end(void)
{
	simhost_end();
	sim_history_clear();
}

bool sim_run(const struct sim_plan *plan)
{
	sim = (struct sim){.plan = *plan, .verbose = plan->verbose};
	memset(sim.cluster.b, 0x77, sizeof(sim.cluster.b));
	simhost_begin(plan->seed);
	sim_raft_heap();
	sim_check_begin();
	if (sim_birth()) {
		sim_clients_create();
		sim_faults_begin();
		run_until(NULL, simhost_now_us() + plan->fault_us);
		verdict();
	}
	end();
	return !sim.failure[0];
}
