/* SPDX-License-Identifier: Apache-2.0 */
/* Each rule left out in turn must be noticed: otherwise the simulator does not look at it. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/simulator/batch.h"

#define TRIES 150u
#define FEW   100u /* histories of one process: their memory goes with it */

static const struct planted {
	enum rule rule;
	const char *name, *plan;
	unsigned tries, from; /* from: near a seed that showed it once; the search goes on from there */
	bool rare; /* noticed, but not within seconds: not part of tests/run */
} list[] = {
#define P(name, plan)		FROM(name, plan, 1)
#define FROM(name, plan, from)	{RULE_##name, #name, plan, TRIES, from, false}
#define RARE(name, plan, tries) {RULE_##name, #name, plan, tries, 1, true}
#define NEAR(name, plan, from)	{RULE_##name, #name, plan, 500, from, true}
	P(RAISE, "from_seed"),
	P(ACK_DURABLE, "rough"),
	P(ACK_ALL, "rough"),
	P(MERGE_ALONE, "partial"),
	P(ONLY_IN, "rough"),
	P(PROMOTE, "rough"),
	P(RETRY, "rough"),
	P(LOW_WATER, "rough"),
	P(COMMITTED, "rough"),
	P(PAGE_WHOLE, "rough"),
	P(GIVE_BACK, "rough"),
	P(UPTIME, "reborn"),
	FROM(CUT, "cut_off", 3), /* seed 1 notices it only by never ending */
	P(COPY_ORDER, "return"),
	P(READ_LEASE, "cut_off"),
	P(WANT, "lag"),
	P(WRITE_LEASE, "rough"),
	FROM(SEEN, "reborn", 11),
	FROM(UNCOMMITTED, "lag", 9),
	FROM(SKIPPED, "return", 9),
	P(FOLD, "return"),
	P(DATA_FIRST, "log"),
	FROM(HOLES, "trims", 16),
	P(MERGED_FP, "partial"),
	FROM(LOGGED, "from_seed", 21),
	P(RESERVE, "full_log"),
	P(REGROUP, "anew"),
	RARE(LEASE_SHORT, "rough", TRIES),
	RARE(DROP_APPLIED, "rough", TRIES),
	RARE(OWN_TENURE, "rough", TRIES),
	RARE(SUSPECT, "from_seed", TRIES),
	NEAR(GRACE, "rough", 60),
	NEAR(REVOKED, "fence", 75),
	RARE(JOIN_COMMIT, "rough", TRIES),
	RARE(VERIFY, "rot", TRIES),
	RARE(SHARE_REFS, "dedup", TRIES),
	/* These need faults that meet at one moment: shapes.c. */
	NEAR(FENCE, "cut_off", 28),
	RARE(FENCED, "cut_off", 200),
	NEAR(STALE, "cut_off", 44),
	RARE(HEADERS_SAVED, "stumble", 200),
	RARE(SKIP, "return", 200),
	RARE(TORN_TAIL, "dark", 200),
	RARE(LANE_ORDER, "dark", 200),
	NEAR(TAKE_ALL, "lag", 125),
	NEAR(CLOCK, "stall", 170),
	NEAR(NO_CREDIT, "full_log", 40),
	RARE(NO_GAP, "rough", TRIES),
	RARE(DESTAGED, "log", TRIES),
#undef P
#undef FROM
#undef RARE
#undef NEAR
};

/* Whether the history passes with nothing left out: else it says nothing about the rule. */
static bool passes(const struct planted *p, uint64_t seed)
{
	struct batch b = {.from = seed, .count = 1, .plan = sim_plan_named(p->plan)};
	struct report r;

	if (!sim_find(&b, RULE_NONE, &r))
		return true;
	printf("FAILS with nothing left out: --plan %s --seed %llu: %.150s\n", p->plan,
	       (unsigned long long)seed, r.text);
	return false;
}

static bool look_for(const struct planted *p)
{
	struct batch b = {.from = p->from, .plan = sim_plan_named(p->plan)};
	double start = sim_wall_s();
	struct report r = {0};
	bool found = false;

	for (; !found && b.from < p->from + p->tries; b.from += FEW) {
		b.count = MIN(FEW, p->from + p->tries - b.from);
		found = sim_find(&b, p->rule, &r);
	}
	if (!found) {
		printf("MISSED in %u histories, %.1f s: %s (%u), --plan %s\n", p->tries,
		       sim_wall_s() - start, p->name, p->rule, p->plan);
		return false;
	}
	printf("found after %llu histories, %.1f s: %s (--plan %s --only %u --seed %llu): %.110s\n",
	       (unsigned long long)(r.seed - p->from + 1), sim_wall_s() - start, p->name, p->plan,
	       p->rule, (unsigned long long)r.seed, r.text);
	return passes(p, r.seed);
}

static bool wanted(const struct planted *p, enum rule only, bool all)
{
	return only == RULE_NONE ? all || !p->rare : p->rule == only;
}

int sim_planted(enum rule only, bool all, unsigned jobs)
{
	unsigned rows = 0, count = 0, missed = 0;
	int status;

	for (size_t i = 0; i < ARRAY_LEN(list); i++)
		rows += wanted(&list[i], only, all);
	if (!rows) {
		fprintf(stderr, "rule %d is not among those that must be noticed (planted.c); look for "
				"it with --plan NAME --only %d --batch N\n", (int)only, (int)only);
		return 2;
	}
	/* Each job takes every jobs-th. */
	for (unsigned j = 0; j < jobs; j++) {
		fflush(stdout);
		if (fork())
			continue;
		for (size_t i = j; i < ARRAY_LEN(list); i += jobs)
			if (wanted(&list[i], only, all)) {
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
