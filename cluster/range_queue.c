/* SPDX-License-Identifier: Apache-2.0 */
/* Each entry counts the conflicting entries ahead of it; who leaves lowers the counts behind.
 * Linear in the queue's length, which the limit on operations in flight bounds. */
#include "cluster/range_queue.h"

#include "node/base/rules.h"

static bool conflicts(const struct range_entry *a, const struct range_entry *b)
{
	if (a->block >= b->block + b->blocks || b->block >= a->block + a->blocks)
		return false;
	return (a->kind != b->kind && rule(RULE_RANGE)) || (a->kind == RANGE_MERGE && rule(RULE_MERGE_ALONE));
}

void range_queue_init(struct range_queue *q)
{
	list_init(&q->entries);
	q->count = 0;
}

bool range_enter(struct range_queue *q, struct range_entry *e)
{
	struct range_entry *f;

	e->blockers = 0;
	list_for_each(f, &q->entries, link) e->blockers += conflicts(f, e);
	list_push_back(&q->entries, &e->link);
	q->count++;
	return !e->blockers;
}

/* Entries behind `e` that its old kind blocked and its new kind (or its absence) does not. */
static void release(struct range_queue *q, struct range_entry *e, bool gone)
{
	struct range_entry now = *e, was = *e, *f;
	struct list *at = e->link.next;

	if (gone) {
		list_del(&e->link);
		q->count--;
	} else {
		e->kind = now.kind = RANGE_WRITE;
	}
	for (; at != &q->entries; at = at->next) {
		f = list_entry(at, struct range_entry, link);
		if (!conflicts(&was, f) || (!gone && conflicts(&now, f)))
			continue;
		CHECK(f->blockers);
		if (!--f->blockers)
			f->granted(f);
	}
}

void range_leave(struct range_queue *q, struct range_entry *e)
{
	release(q, e, true);
}

void range_turn_write(struct range_queue *q, struct range_entry *e)
{
	CHECK(e->kind == RANGE_MERGE && !e->blockers);
	release(q, e, false);
}
