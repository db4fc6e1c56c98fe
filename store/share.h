/* SPDX-License-Identifier: Apache-2.0 */
/* Shared blocks: one stored form, a row with its place and its references, and the key that finds
 * the row by place (I9). And the sums per volume that the ledger is made of. Inside the tier;
 * destager thread, but for the ledger's cells (any thread).
 *
 * Within a commit a share changes in RAM (share_get, share_ref, …) as often as it likes;
 * shares_finish writes what became of it, so references may touch 0 in between. */
#pragma once

#include "node/base/hmap.h"
#include "store/fifo_cache.h"
#include "store/ledger.h"
#include "store/segment.h"

struct tier;

struct tshare {
	struct hnode node; /* in shares.txn */
	uint64_t id;
	bool exists;  /* `now` is in the database */
	bool placing; /* an append writes its place into `place` */
	bool counted; /* the live bytes of next.word are in the segment's count already */
	struct share_row now, next;
	struct map_entry place;
};

/* What the rows of shares add to a volume. Volume SHARES_UNOWNED: those whose owner has none left.
 */
struct share_sums {
	uint64_t owned, damaged, stored, exclusive; /* shares, shares, bytes, bytes */
	uint64_t refs;                              /* of the owner's volume */
};
#define SHARES_UNOWNED VOLUME_UNOWNED

struct tvolume {
	struct hnode node; /* in shares.volumes */
	uint32_t id;
	struct object_counters objects;       /* of its objects, as committed */
	uint64_t reduce_left;                 /* pages still to be looked at, as asked */
	struct share_sums now, next, recount; /* recount: tier_verify's */
	bool dirty;                           /* next differs: goes into this commit */
	bool publish;                         /* the cell is to be brought up to date */
	struct tvolume *all_next;
	struct ledger_cell cell;
};

struct shares {
	struct hmap txn, volumes;
	struct fifo_cache rows; /* share_row by id, as committed */
	uint64_t next_id, next_id_saved;
	int rc;                        /* an error that the commit must end with */
	_Atomic(struct tvolume *) all; /* every volume ever seen, for readers of the cells */
	struct share_sums sums;        /* of all */
};

void shares_init(struct tier *t, size_t cache_bytes);
void shares_fini(struct tier *t);
int shares_load(struct tier *t) MUST_USE; /* volumes and the next id, at open */

/* The share, in this commit; -ERR_NOT_FOUND when there is none, or it goes in this commit. */
int share_get(struct tier *t, uint64_t id, struct tshare **out) MUST_USE;
/* A new one with no references yet. word: its place, live bytes counted; 0: not known yet. */
struct tshare *share_create(struct tier *t, struct fp128 fp, uint64_t word, uint32_t owner_volume);
void share_ref(struct tier *t, struct tshare *s, uint32_t volume, int sign);
/* Gives back the reference that an entry of this volume has. A missing row is said and counted. */
void share_release(struct tier *t, uint64_t id, uint32_t volume);
/* Which share lives at this place, committed; 0: none. */
uint64_t share_of_place(struct tier *t, uint64_t word);
/* Moves the stored form, verified, to the GC stream; bad or unreadable (NULL): it becomes damaged.
 */
int share_move(struct tier *t, struct tshare *s, const void *stored,
	       const struct unit_entry *what) MUST_USE;
/* It is stored raw, and not being repacked in this commit. */
bool share_is_raw(const struct tshare *s);
/* Its content in another form takes the place of the one it has. what: who the summary says it is of. */
int share_repack(struct tier *t, struct tshare *s, enum segment_stream stream,
		 const struct unit_entry *what, const void *packed, unsigned units) MUST_USE;
/* What is stored does not match: all that refer to it are damaged. */
void share_set_damaged(struct tier *t, struct tshare *s);
bool share_is_damaged(struct tier *t, uint64_t id);

int shares_finish(
	struct tier *t) MUST_USE; /* rows into the batch, live bytes; after the units are written */
void shares_committed(struct tier *t);
void shares_aborted(struct tier *t);

struct tvolume *volume_get(struct tier *t, uint32_t id);
void volume_count(struct tier *t, uint32_t id, const struct object_counters *from,
		  const struct object_counters *to);
/* Puts the numbers as of this commit into the cells. */
void volumes_publish(struct tier *t, uint64_t commit);
