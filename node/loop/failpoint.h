/* SPDX-License-Identifier: Apache-2.0 */
/* Named places where a running daemon can be made to fail, for tests of whole processes. Always compiled
 * in; when nothing is asked for a place costs one load of a flag.
 *
 * ASHLAR_FAILPOINT=NAME[:N]=ACTION[,NAME…]
 *   kill       the process dies as by kill -9
 *   eio        the place reports -EIO (only where it can fail)
 *   delay=MS   the thread sleeps so long
 * N: only the N-th time it is passed; without it kill means the first, the others every time. */
#pragma once

#include <stddef.h>

#include "node/base/check.h"

enum failpoint {
#define FAILPOINT(name, can_fail, where) FAIL_##name,
#include "node/loop/failpoint.def"
#undef FAILPOINT
	FAILPOINTS
};

extern bool failpoints_armed; /* set before any thread starts */

/* Any thread. 0, or -EIO. */
int failpoint_hit(enum failpoint p);
#define FAILPOINT(name) (unlikely(failpoints_armed) ? failpoint_hit(FAIL_##name) : 0)

/* At start, before threads. text NULL: nothing. -EINVAL: why says what, and which names there are. */
int failpoints_parse(const char *text, char *why, size_t why_cap) MUST_USE;
