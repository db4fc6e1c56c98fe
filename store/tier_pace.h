/* SPDX-License-Identifier: Apache-2.0 */
/* When destage rests, and how much CPU it gets, by the fill of the log and by who waits.
 * Inside the tier. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct tier;

#define PACED_MAX  9u    /* the destager and those who prepare for it */
#define FILL_SHARE 3000u /* permyriad of the log: below, what can wait leaves the CPU to writers */
#define FILL_FULL  6000u

struct pace {
	_Atomic int level;    /* nice */
	pthread_mutex_t lock; /* shards try it, they never wait for it */
	bool able, tried;     /* the right to come back from a high nice value */
	pid_t threads[PACED_MAX];
	unsigned count;
};

void pace_join(struct tier *t); /* the calling thread is paced from here on, for its life */
void pace_stop(struct tier *t); /* those paced run at full speed, and are left alone */
/* Any thread but those paced; whenever something changed that the level depends on. */
void pace_apply(struct tier *t);
/* Destage and what comes after it (collecting, reducing) are put off. Any thread. */
bool pace_rests(const struct tier *t);
bool pace_rest(uint32_t fill_permyriad, bool busy, bool hurry);
int pace_level(uint32_t fill_permyriad, bool awaited);
uint32_t pace_fill(const struct tier *t); /* of the fullest log, permyriad */
