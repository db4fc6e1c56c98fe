/* SPDX-License-Identifier: Apache-2.0 */
/* The logical side of the capacity ledger, exact at a commit number:
 *   logical = zero + dedup saved + compression saved + stored + damaged
 * per volume and for the group. Shared blocks are stored by their owner's volume; where the owner
 * has no reference left, by none (the group has them all). A cell hands one set of numbers from the
 * destager to any thread; neither ever waits for the other. */
#pragma once

#include <stdatomic.h>

#include "store/space.h"

#define LEDGER_WORDS (sizeof(struct store_ledger) / sizeof(uint64_t))

struct ledger_cell {
	_Atomic uint64_t turn; /* readers take half turn & 1, the writer fills the other */
	_Atomic uint64_t half[2][LEDGER_WORDS];
};

void ledger_cell_write(struct ledger_cell *c, const struct store_ledger *l);
void ledger_cell_read(const struct ledger_cell *c, struct store_ledger *out);
