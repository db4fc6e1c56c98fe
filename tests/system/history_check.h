/* SPDX-License-Identifier: Apache-2.0 */
/* Linearizability of one block as a register with unique written values: the zones algorithm of Gibbons
 * and Korach, "Testing Shared Memories", SIAM J. Comput. 26(4), 1997. A block device is a product of such
 * registers, and linearizability is local. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define OP_PENDING UINT64_MAX /* returned: the reply never came; it may or may not have happened */

struct history_op {
	uint64_t value; /* unique per write; 0 is the initial content */
	uint64_t invoked, returned;
	uint32_t block;
	uint8_t is_write;
};

/* Sorts ops (by block). 0: linearizable. Else -1 with a sentence in why. */
int history_check(struct history_op *ops, size_t count, char *why, size_t why_cap);
