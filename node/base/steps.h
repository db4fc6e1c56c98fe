/* SPDX-License-Identifier: Apache-2.0 */
/* Start and stop as a table: each step has a name, an action and an undo. A failed action undoes the
 * steps before it, in reverse. Blocking; for set-up threads. */
#pragma once

#include "node/base/check.h"

struct step {
	const char *name;
	int (*action)(void *ctx); /* 0 or < 0 */
	void (*undo)(void *ctx);  /* may be NULL */
};

/* Runs all; on failure undoes what was done and returns the error. *done = steps that succeeded. */
int steps_run(const struct step *steps, size_t count, void *ctx, size_t *done) MUST_USE;
void steps_undo(const struct step *steps, size_t done, void *ctx);
