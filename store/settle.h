/* SPDX-License-Identifier: Apache-2.0 */
/* What people wait for when they want the numbers that do not depend on how busy the machine was: nothing
 * left to reduce or to delete, the garbage collected, the database's memory in its tables. Inside the
 * tier; destager thread. */
#pragma once

#include <stdbool.h>

struct tier;
struct tier_request;

struct settle {
	struct tier_request *waiting; /* each until a time of its own (destager.c) */
	int reduce_rc; /* of the newest step of reduce.c */
};

enum settle_state {
	SETTLE_IDLE,  /* nobody waits, or only the log's fill stands against going on */
	SETTLE_BUSY,  /* there is more to do */
	SETTLE_ENDED, /* with *rc: -ERR_FULL: no room to reduce in */
};
/* When there is no batch, delete or step of reduce.c to do. */
enum settle_state settle_step(struct tier *t, int *rc);
