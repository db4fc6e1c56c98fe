/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule left out in turn must be noticed: otherwise the simulator does not look at it. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/simulator/batch.h"

#define TRIES 150u

static const struct planted {
	enum rule rule;
	const char *name;
	void (*plan)(struct sim_plan *p, uint64_t seed);
	uint64_t from; /* near a seed that showed it once; the search goes on from there */
} list[] = {
#define P(rule, plan, from)                                                                        \
	{                                                                                          \
		rule, #rule, plan, from                                                            \
	}
	P(RULE_RAISE, sim_plan_from_seed, 1),    P(RULE_LEASE_SHORT, sim_plan_rough, 1),
	P(RULE_LEASE_JOINED, sim_plan_rough, 1), P(RULE_FENCE, sim_plan_rough, 1),
	P(RULE_FENCED, sim_plan_rough, 1),       P(RULE_CLOCK, sim_plan_rough, 1),
	P(RULE_WANT, sim_plan_rough, 1),         P(RULE_DROP_APPLIED, sim_plan_rough, 1),
	P(RULE_OWN_TENURE, sim_plan_rough, 1),   P(RULE_ACK_DURABLE, sim_plan_rough, 1),
	P(RULE_ACK_ALL, sim_plan_rough, 1),      P(RULE_MERGE_ALONE, sim_plan_partial, 1),
	P(RULE_READ_LEASE, sim_plan_rough, 1),   P(RULE_SUSPECT, sim_plan_from_seed, 1),
	P(RULE_CUT, sim_plan_rough, 1),          P(RULE_STALE, sim_plan_rough, 1),
	P(RULE_TAKE_ALL, sim_plan_rough, 1),     P(RULE_GRACE, sim_plan_rough, 1),
	P(RULE_UPTIME, sim_plan_rough, 1),       P(RULE_ONLY_IN, sim_plan_rough, 1),
	P(RULE_SKIP, sim_plan_rough, 1),         P(RULE_TOUCHED, sim_plan_rough, 1),
	P(RULE_DIFFERS, sim_plan_rough, 1),      P(RULE_COPY_ORDER, sim_plan_rough, 1),
	P(RULE_PROMOTE, sim_plan_rough, 1),      P(RULE_RETRY, sim_plan_rough, 1),
	P(RULE_LOW_WATER, sim_plan_rough, 1),    P(RULE_REVOKED, sim_plan_fence, 1),
	P(RULE_JOIN_COMMIT, sim_plan_rough, 1),  P(RULE_COMMITTED, sim_plan_rough, 1),
	P(RULE_HEADERS_SAVED, sim_plan_log, 1),  P(RULE_TORN_TAIL, sim_plan_power, 1),
	P(RULE_VERIFY, sim_plan_rot, 1),         P(RULE_PAGE_WHOLE, sim_plan_rough, 1),
	P(RULE_EPOCHS_HOLD, sim_plan_power, 1),  P(RULE_LANE_ORDER, sim_plan_power, 1),
	P(RULE_GIVE_BACK, sim_plan_rough, 1),    P(RULE_SHARE_REFS, sim_plan_dedup, 1),
#undef P
};

static bool look_for(const struct planted *p)
{
	struct batch b = {.from = p->from, .count = TRIES, .plan = p->plan};
	double start = sim_wall_s();
	struct report r = {0};

	if (sim_find(&b, p->rule, &r)) {
		printf("found at seed %llu, after %llu histories, %.1f s: %s (%u): %.110s\n",
		       (unsigned long long)r.seed, (unsigned long long)(r.seed - p->from + 1),
		       sim_wall_s() - start, p->name, p->rule, r.text);
		return true;
	}
	printf("MISSED in %u histories, %.1f s: %s (%u)\n", TRIES, sim_wall_s() - start, p->name,
	       p->rule);
	return false;
}

int sim_planted(enum rule only, unsigned jobs)
{
	unsigned count = 0, missed = 0;
	int status;

	/* Each job takes every jobs-th. */
	for (unsigned j = 0; j < jobs; j++) {
		fflush(stdout);
		if (fork())
			continue;
		for (size_t i = j; i < ARRAY_LEN(list); i += jobs)
			if (only == RULE_NONE || list[i].rule == only) {
				missed += !look_for(&list[i]);
				fflush(stdout);
			}
		_exit(missed ? 1 : 0);
	}
	while (wait(&status) > 0)
		count += !WIFEXITED(status) || WEXITSTATUS(status);
	if (!count && only == RULE_NONE)
		printf("all of %zu planted faults were noticed\n", ARRAY_LEN(list));
	return count != 0;
}
