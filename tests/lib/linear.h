/* SPDX-License-Identifier: Apache-2.0 */
/* Linearizability of one register; a disk is a product of registers, and linearizability is local.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINEAR_PENDING                                                                             \
	UINT64_MAX /* returned: no answer came; a write may have happened, now or later */

struct linear_op {
	uint64_t value; /* 0: what was there at first; else unique to its write, but 0 may be
			   written too */
	uint64_t invoked, returned;
	bool write;
};

/* Sorts ops. A search that takes too long counts as linearizable. */
bool linear_check(struct linear_op *ops, size_t n);
