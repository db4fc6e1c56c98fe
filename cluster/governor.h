/* SPDX-License-Identifier: Apache-2.0 */
/* How fast one shard may copy for rebuilds and returns: as fast as clients do not feel it, never
 * below a floor, so that it ends.
 *
 * What clients feel is measured, not guessed: in each cycle copying pauses for a short *quiet*
 * window, and the latencies of client operations that end in it are compared with those that end
 * while copies run. So the comparison follows whatever the clients do now, and there is nothing to
 * tune. All nodes pause together (cycles follow the wall clock; if clocks differ the measurement is
 * blunter, no more). Pure: the caller gives the times. One thread. */
#pragma once

#include "node/base/bytes.h"

#define GOVERNOR_CYCLE_US  1000000u
#define GOVERNOR_QUIET_US  150000u /* at the start of a cycle */
#define GOVERNOR_SETTLE_US 50000u  /* at the start of both windows: counts for neither */
#define GOVERNOR_BUCKETS   192u    /* latencies, 8 to the octave */

struct governor_side { /* of the comparison; halved each cycle, so that it is about now */
	double count, sum_us;
	float bucket[GOVERNOR_BUCKETS];
};

struct governor {
	uint64_t floor, limit; /* bytes/s of this shard */
	uint64_t rate;
	int64_t tokens; /* bytes that may be copied now; below 0: debt */
	uint64_t refill_us, cycle;
	uint64_t noted;   /* client operations in this cycle */
	uint64_t refused; /* this cycle: a copy had to wait for tokens */
	bool quiet, settled, idle;
	struct governor_side with, without;
	uint64_t page_cost; /* bytes of a page's copy lately */
	/* for people */
	uint64_t copied, copied_at_cycle, copied_rate;
	unsigned cost_permille; /* how much longer client operations took while copies ran */
};

void governor_init(struct governor *g, uint64_t now_us);
/* Bytes/s for this shard; limit 0: none. */
void governor_limits(struct governor *g, uint64_t floor, uint64_t limit);
/* A client operation ended, after so long. */
void governor_note(struct governor *g, uint64_t latency_us);
/* The time goes on: at each tick (50 ms) and before governor_may_copy. */
void governor_tick(struct governor *g, uint64_t now_us, uint64_t wall_us);
/* 0: one page may be copied, and is charged what pages cost lately. Else µs until it is worth
 * asking. */
uint64_t governor_may_copy(struct governor *g, bool target_fills);
/* What a page that was allowed did cost. */
void governor_spent(struct governor *g, uint64_t bytes);
