/* SPDX-License-Identifier: Apache-2.0 */
/* Many histories, in processes of their own: one that crashes is a finding, too. */
#pragma once

#include "node/base/rules.h"
#include "tests/simulator/sim.h"

#define KNOWN_MAX 256u

struct batch {
	uint64_t from, count;
	uint64_t known[KNOWN_MAX]; /* seeds that come first */
	unsigned known_count;
	double seconds; /* 0: no limit */
	unsigned jobs;
	void (*plan)(struct sim_plan *p, uint64_t seed);
};

struct report {
	uint64_t seed;
	bool failed;
	struct sim_counts counts;
	char text[200];
};

/* Seeds of a file, one a line, '#' begins a comment. False: it was said what is wrong. */
bool sim_known_read(const char *path, struct batch *b);
/* Tells each failure and the sums. Exit code. */
int sim_batch(const struct batch *b);
/* The first seed of the batch that shows a failure, one process, with the rule left out. False:
 * none. */
bool sim_find(const struct batch *b, enum rule left_out, struct report *out);
/* Leaves out each rule in turn (or just one); all: also those that show only now and then. Exit
 * code. */
int sim_planted(enum rule only, bool all, unsigned jobs);
double sim_wall_s(void);
