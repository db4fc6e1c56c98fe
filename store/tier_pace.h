/* SPDX-License-Identifier: Apache-2.0 */
/* How much CPU destage gets, by the fill of the log and by who waits. Inside the tier. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct tier;
struct tier_shard;

#define PACED_MAX  9u    /* the destager and those who prepare for it */
#define PACE_IDLE  20    /* a level is a nice value, or this: only CPU that nobody else wants */
#define FILL_SHARE 3000u /* permyriad of the log: below, what can wait for idle CPU does */
#define FILL_FULL  6000u

struct pace {
	_Atomic int level;
	pthread_mutex_t lock; /* shards try it, they never wait for it */
	bool able, tried;     /* the right to come back from idle */
	pid_t threads[PACED_MAX];
	unsigned count;
};

void pace_join(struct tier *t); /* the calling thread is paced from here on, for its life */
void pace_stop(struct tier *t); /* those paced run at full speed, and are left alone */
/* Any thread but those paced; whenever something changed that the level depends on. */
void pace_apply(struct tier *t);
void pace_lookup(struct tier_shard *s); /* its map pages are being looked up */
int pace_level(uint32_t fill_permyriad, bool aged, bool awaited, bool lookups);
uint32_t pace_fill(const struct tier *t); /* of the fullest log, permyriad */
