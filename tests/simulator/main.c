/* SPDX-License-Identifier: Apache-2.0 */
/* The command line; see README.md. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "node/base/log.h"
#include "tests/simulator/batch.h"

/* One history, told in full. */
static int one(uint64_t seed, const struct batch *b)
{
	struct sim_plan p;
	bool ok;

	b->plan(&p, seed);
	p.verbose = true;
	ok = sim_run(&p);
	printf("seed %llu: %s\n", (unsigned long long)seed, ok ? "ok" : sim.failure);
	return !ok;
}

static int usage(void)
{
	fprintf(stderr, "usage: tests/sim --seed N | --batch N [--from S] | --seconds T [--from S] "
			"| --planted\n"
			"       [--known FILE] [--plan NAME] [--jobs N] [--log LEVEL]\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct batch b = {.from = 1,
			  .jobs = (unsigned)sysconf(_SC_NPROCESSORS_ONLN),
			  .plan = sim_plan_from_seed};
	enum rule only = RULE_NONE;
	bool planted = false, all = false;
	uint64_t seed = 0;

	log_set_level(LOG_ERROR + 1);
	mallopt(M_MMAP_THRESHOLD, 4 << 20); /* large and hardly touched: zeros for nothing */
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];
		bool has = i + 1 < argc;

		if (!strcmp(a, "--planted"))
			planted = true;
		else if (!strcmp(a, "--all"))
			planted = all = true;
		else if (!has)
			return usage();
		else if (!strcmp(a, "--plan") && sim_plan_named(argv[i + 1]))
			b.plan = sim_plan_named(argv[++i]);
		else if (!strcmp(a, "--seed"))
			seed = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(a, "--batch"))
			b.count = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(a, "--only"))
			only = (enum rule)strtoul(argv[++i], NULL, 10);
		else if (!strcmp(a, "--known")) {
			if (!sim_known_read(argv[++i], &b))
				return 2;
		} else if (!strcmp(a, "--from"))
			b.from = strtoull(argv[++i], NULL, 10);
		else if (!strcmp(a, "--seconds"))
			b.seconds = strtod(argv[++i], NULL);
		else if (!strcmp(a, "--fresh")) {
			b.seconds = strtod(argv[++i], NULL);
			b.from = (uint64_t)time(NULL) * 1000;
		} else if (!strcmp(a, "--jobs"))
			b.jobs = (unsigned)strtoul(argv[++i], NULL, 10);
		else if (!strcmp(a, "--log"))
			log_set_level((enum log_level)atoi(argv[++i]));
		else
			return usage();
	}
#ifndef ASHLAR_RULES
	if (planted || only != RULE_NONE) {
		fprintf(stderr, "rules can be left out in simulator_rules only\n");
		return 2;
	}
#endif
	if (planted && !seed)
		return sim_planted(only, all, b.jobs);
	rule_left_out = only;
	if (seed)
		return one(seed, &b);
	if (b.seconds > 0 && !b.count)
		b.count = UINT64_MAX / 2;
	return b.count && b.jobs ? sim_batch(&b) : usage();
}
