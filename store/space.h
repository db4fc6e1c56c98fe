/* SPDX-License-Identifier: Apache-2.0 */
/* What a group's space is used for, per volume and in all, and the recount that proves it. */
#pragma once

#include "store/store.h"

/* The logical side of the ledger, exact at a commit number; what is in the log only is not in it.
 *   logical = zero + dedup_saved + compression_saved + stored + damaged
 * A shared block is stored by the volume that owns it. frees_if_deleted is a lower bound. Any thread. */
struct store_ledger {
	uint64_t commit;
	uint64_t logical_bytes, zero_bytes, dedup_saved_bytes, compression_saved_bytes, stored_bytes;
	uint64_t damaged_bytes, frees_if_deleted_bytes;
	uint64_t exact; /* 1: frees_if_deleted is exact, the volume refers to no block that another owns */
	uint64_t to_reduce_bytes; /* at most: pages that were asked to be reduced and not looked at yet */
	/* Of a group, what its segments hold beside stored_bytes; 0 for volumes. */
	uint64_t padding_bytes, summary_bytes, dead_bytes, free_bytes, reserve_bytes;
};
void store_ledger(struct store *s, struct store_ledger *out);
bool store_volume_ledger(struct store *s, uint32_t volume, struct store_ledger *out); /* false: nothing is */
/* Each volume that has anything here, and VOLUME_UNOWNED: shared blocks whose owner has let go. These
 * are in dedup_saved of the volumes that refer to them and stored by none, so the unowned row takes them
 * out of dedup_saved again, as a negative number (two's complement). Every column of the rows then adds
 * up to the group's, at a moment without commits. Any thread. */
#define VOLUME_UNOWNED UINT32_MAX
typedef void store_ledger_fn(void *arg, uint32_t volume, const struct store_ledger *l);
void store_volume_ledgers(struct store *s, store_ledger_fn *fn, void *arg);

/* Recounts live bytes, page versions, counters, references and the ledger from the map (I8, I9) and
 * compares. Blocking. */
struct store_verify {
	uint64_t commit, objects, pages, blocks, shares;
	uint64_t bad_blocks;  /* known to be damaged; offline with data: also those that do not match */
	uint64_t differences; /* each with a line in the log */
};
/* Of an open group; a worker thread. Destage waits while it runs, and it takes about 100 bytes of memory
 * per shared block. 0; -ERR_CORRUPT: differences; -ERR_CLOSED: the group is stopping. */
int store_verify(struct store *s, struct store_verify *out) MUST_USE;
/* Of a group that no process has open; changes nothing. data: reads every stored block too. What is only
 * in the log is not looked at. */
int store_verify_offline(const struct store_config *cfg, bool data, struct store_verify *out) MUST_USE;
