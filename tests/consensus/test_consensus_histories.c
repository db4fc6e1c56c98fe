/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded histories: test_consensus_histories [--seeds A..B] [--off MASK] [-v]. A failing seed
 * replays alone.
 * --off switches guards off (consensus_guards.h) and stops at the first bad seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/base/log.h"
#include "tests/consensus/sim.h"

int main(int argc, char **argv)
{
	static struct sim s;
	struct sim_stats sum = {0};
	unsigned long first = 1, last = 200, bad = 0;
	clock_t start = clock();

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seeds") && i + 1 < argc) {
			if (sscanf(argv[++i], "%lu..%lu", &first, &last) < 2)
				last = first;
		} else if (!strcmp(argv[i], "--off") && i + 1 < argc) {
			consensus_guards_off = (uint32_t)strtoul(argv[++i], NULL, 0);
		} else if (!strcmp(argv[i], "-v")) {
			s.verbose = true;
		}
	}
	log_set_level(LOG_ERROR);
	for (unsigned long seed = first; seed <= last; seed++) {
		if (consensus_guards_off) {
			printf("\rseed %lu ", seed);
			fflush(stdout);
		}
		if (!sim_history(&s, seed)) {
			printf("seed %lu: %s\n", seed, s.failure);
			if (++bad == 10 || consensus_guards_off)
				break;
		}
		sum.commits += s.stats.commits;
		sum.acks += s.stats.acks;
		sum.elections += s.stats.elections;
		sum.crashes += s.stats.crashes;
		sum.fatals += s.stats.fatals;
		sum.installs += s.stats.installs;
		sum.changes += s.stats.changes;
		sum.resigns += s.stats.resigns;
		sum.messages += s.stats.messages;
		sum.events += s.stats.events;
	}
	printf("seeds %lu..%lu: %lu bad; %llu events, %llu messages, %llu elections, %llu commits, "
	       "%llu acks, "
	       "%llu crashes, %llu exits, %llu restores, %llu changes, %llu resigned; %.1f s\n",
	       first, last, bad, (unsigned long long)sum.events, (unsigned long long)sum.messages,
	       (unsigned long long)sum.elections, (unsigned long long)sum.commits,
	       (unsigned long long)sum.acks, (unsigned long long)sum.crashes,
	       (unsigned long long)sum.fatals, (unsigned long long)sum.installs,
	       (unsigned long long)sum.changes, (unsigned long long)sum.resigns,
	       (double)(clock() - start) / CLOCKS_PER_SEC);
	return bad ? 1 : 0;
}
