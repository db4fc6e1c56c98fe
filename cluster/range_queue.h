/* SPDX-License-Identifier: Apache-2.0 */
/* The range queue of one object at its primary (rule Q1): first come, first served in 4 KiB blocks.
 *
 * Writes pipeline with writes, reads share with reads; a read, a merge (sub-block write) or a page
 * copy waits until the writes ahead of it have left, and what is behind it waits until it has left
 * or, for a merge, has turned into a write. An entry takes all its blocks at once; nobody overtakes
 * an entry that it conflicts with. Memory is the caller's. granted() is called from range_leave and
 * range_turn_write of another entry; it may not call into the queue (it schedules). */
#pragma once

#include "node/base/list.h"

enum range_kind { RANGE_READ, RANGE_WRITE, RANGE_MERGE };

struct range_entry {
	struct list link;
	uint32_t block, blocks;
	enum range_kind kind;
	unsigned blockers; /* conflicting entries ahead */
	void (*granted)(struct range_entry *e);
};

struct range_queue {
	struct list entries;
	unsigned count;
};

void range_queue_init(struct range_queue *q);
/* True: granted at once. False: granted() comes later. */
bool range_enter(struct range_queue *q, struct range_entry *e);
/* Also for an entry that was not granted yet. */
void range_leave(struct range_queue *q, struct range_entry *e);
/* A granted merge has its place in the log: from now on it is a write, and others may follow it. */
void range_turn_write(struct range_queue *q, struct range_entry *e);
static inline bool range_granted(const struct range_entry *e)
{
	return !e->blockers;
}
