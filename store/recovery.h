/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two halves of recovery: recovery.c finds what counts, recovery_replay.c puts it back into
 * the index. Blocking, one thread, before any loop runs. */
#pragma once

#include "store/store_impl.h"

#define RECOVERY_WINDOW 512u /* blocks read at once; holds the largest batch */

/* What a walk over one segment told. */
struct scanned {
	struct log_segment_header h;
	bool valid, live, sealed;
	bool unread; /* what would stand at `end` cannot be read */
	uint32_t end;  /* first block behind the last good batch */
	uint64_t last; /* last good batch */
	uint64_t durable, oldest, kv_commit; /* highest named in it */
	uint64_t lane_oldest;		     /* highest named in its chain */
};

struct chain {
	const uint32_t *segs; /* live ones, by generation */
	unsigned count;
	uint64_t oldest, durable;
	uint64_t last; /* last batch that counts */
	uint32_t end_seg, end; /* where the seal goes */
	uint64_t before; /* last batch of its released segments that are still there */
	bool sealed, damaged, empty;
};

struct recovery {
	struct store *store;
	uint8_t *window;
	bool narrow;	  /* read only what is asked for */
	bool read_failed; /* the last look was at blocks that cannot be read */
	bool unread_header; /* a segment's: nobody knows whose it is */
	int failed;	    /* a device does not answer */
	uint32_t seg, first, count; /* what the window holds */
	uint8_t *head; /* copy of a batch header during replay */
	struct scanned *scanned;
	uint64_t floor;
	bool floor_above; /* of the chain being walked: older sessions' floor, not its own start */
	uint32_t *live, *chain_segs;
	unsigned live_count;
	struct chain *chains; /* by session, lane */
	unsigned chain_count;
};

/* The batch at a place, verified, or NULL. seq 0: any. Valid until the next call. */
const uint8_t *recovery_batch(struct recovery *rc, uint32_t seg, uint32_t block, uint64_t seq,
			      struct log_batch_header *h);
/* Header blocks and payload in one piece, or NULL when they cannot be read. */
const uint8_t *recovery_payload(struct recovery *rc, uint32_t seg, uint32_t block,
				const struct log_batch_header *h);
