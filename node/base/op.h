/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of everything asynchronous.
 *
 * Whatever takes a `struct wait *` returns 0 (done) or < 0 (failed), both without a callback, or
 * PENDING: then exactly one wait_resume() follows, on the same thread, never from inside the call.
 * One operation = one struct, one stage enum, one x_run() that reads downwards. A case starts its
 * stage and the stage stays current while it waits, so a stuck operation says what it waits for. */
#pragma once

#include "node/base/check.h"

#define PENDING 1

struct wait {
	void (*resume)(struct wait *w, int rc);
};

static inline void wait_resume(struct wait *w, int rc)
{
	w->resume(w, rc);
}

/* Fan-out: count what was started, resume when all ended; the first error wins.
 *   join_init(&j, &op->wait);  rc = x_start(..., join_arm(&j)) for each;  join_settle(&j, rc) when
 *   it did not return PENDING;  return join_done(&j) at the end of the starting function. */
struct join {
	struct wait wait;   /* give &join.wait to each part */
	struct wait *owner; /* resumed once all parts ended */
	unsigned pending;
	int error;
	bool starting;
};

void join_init(struct join *j, struct wait *owner);
struct wait *join_arm(struct join *j);		 /* before each part */
void join_settle(struct join *j, int rc);	 /* the part ended at once with rc (ignored if PENDING) */
int join_done(struct join *j) MUST_USE;		 /* after the last part: 0, error, or PENDING */
