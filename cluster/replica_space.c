/* SPDX-License-Identifier: Apache-2.0 */
/* Space for a write, here and at all of want, before it is logged (W1, L4).
 *
 * FULL counts when it was said a while after the request met it: space that a delete or a trim gives back
 * may be on its way (store_is_full). Since when is remembered beyond the operation: a client that hears
 * nothing for so long comes again another way (CLIENT_STUCK_US), one that is told RETRY comes again too, and
 * a wait that began anew each time would end for none of the copies. */
#include "cluster/replica_impl.h"

#define FULL_HOLD_US 1000000u

static bool same_request(const struct shortage *s, const struct io_request *q)
{
	return s->since_us && s->object == q->object && s->request == q->request &&
	       s->attachment == q->attachment && s->attach_epoch == q->attach_epoch;
}

static uint64_t short_since(struct io_op *op, uint64_t now)
{
	struct shortages *s = &op->r->shortages;
	const struct io_request *q = op->io->request;

	if (op->mend) /* its request has no number */
		return now;
	for (unsigned i = 0; i < SHORTAGES_MAX; i++)
		if (same_request(&s->at[i], q))
			return s->at[i].since_us;
	s->at[s->next++ % SHORTAGES_MAX] = (struct shortage){.object = q->object,
							     .request = q->request,
							     .attachment = q->attachment,
							     .attach_epoch = q->attach_epoch,
							     .since_us = now};
	return now;
}

static bool held_long_enough(const struct io_op *op, uint64_t said_us)
{
	return op->no_space_us && said_us >= op->no_space_us + FULL_HOLD_US;
}

static bool member_credit(struct io_op *op, struct member *m, uint64_t need, bool *full)
{
	struct credit *c = credit_find(m->session->theirs, &m->session->their_count, m->id.group);

	if (c && (credit_left(c) >= need || !rule(RULE_CREDIT)))
		return true;
	if (c && c->full)
		*full |= held_long_enough(op, c->full_us);
	session_want_lease(m->session); /* the answer says what it can give now */
	return false;
}

int op_take_credit(struct io_op *op, uint64_t need)
{
	struct primary *p = op->primary;
	struct group *g = op->object->group;
	uint64_t now = now_us(op->r);
	bool full = false, empty = false;

	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];

		if (m->want && !member_credit(op, m, need, &full))
			empty = true;
	}
	if (!empty && g->window < need)
		g->window += store_grant(g->store, MAX(need - g->window, 4u << 20));
	if (!empty && g->window < need)
		full = store_is_full(g->store) && held_long_enough(op, now);
	if (!empty && g->window >= need)
		return 0;
	if (full)
		return op_answer_with(op, IO_NO_SPACE);
	if (!op->no_space_us)
		op->no_space_us = short_since(op, now);
	return op_park(op, empty ? "space credit of a member" : "space that is being freed");
}
