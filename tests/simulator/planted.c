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
	bool rare; /* noticed, but not within seconds: not part of tests/run */
} list[] = {
#define P(name, plan) {RULE_##name, #name, sim_plan_##plan, false}
#define RARE(name, plan) {RULE_##name, #name, sim_plan_##plan, true}
	P(RAISE, from_seed),
	P(ACK_DURABLE, rough),
	P(ACK_ALL, rough),
	P(MERGE_ALONE, partial),
	P(ONLY_IN, rough),
	P(PROMOTE, rough),
	P(RETRY, rough),
	P(LOW_WATER, rough),
	P(COMMITTED, rough),
	P(PAGE_WHOLE, rough),
	P(GIVE_BACK, rough),
	RARE(LEASE_SHORT, rough),
	RARE(WANT, rough),
	RARE(DROP_APPLIED, rough),
	RARE(OWN_TENURE, rough),
	RARE(SUSPECT, from_seed),
	RARE(GRACE, rough),
	RARE(REVOKED, fence),
	RARE(JOIN_COMMIT, rough),
	RARE(VERIFY, rot),
	RARE(SHARE_REFS, dedup),
#undef P
#undef RARE
};

static bool look_for(const struct planted *p)
{
	struct batch b = {.from = 1, .count = TRIES, .plan = p->plan};
	double start = sim_wall_s();
	struct report r = {0};

	if (sim_find(&b, p->rule, &r)) {
		printf("found at seed %llu, after %llu histories, %.1f s: %s (%u): %.110s\n",
		       (unsigned long long)r.seed, (unsigned long long)r.seed, sim_wall_s() - start,
		       p->name, p->rule, r.text);
		return true;
	}
	printf("MISSED in %u histories, %.1f s: %s (%u)\n", TRIES, sim_wall_s() - start, p->name,
	       p->rule);
	return false;
}

int sim_planted(enum rule only, bool all, unsigned jobs)
{
	unsigned count = 0, missed = 0;
	int status;

	/* Each job takes every jobs-th. */
	for (unsigned j = 0; j < jobs; j++) {
		fflush(stdout);
		if (fork())
			continue;
		for (size_t i = j; i < ARRAY_LEN(list); i += jobs)
			if (only == RULE_NONE ? all || !list[i].rare : list[i].rule == only) {
				missed += !look_for(&list[i]);
				fflush(stdout);
			}
		_exit(missed ? 1 : 0);
	}
	while (wait(&status) > 0)
		count += !WIFEXITED(status) || WEXITSTATUS(status);
	if (!count && only == RULE_NONE)
		printf("all planted faults were noticed\n");
	return count != 0;
}
