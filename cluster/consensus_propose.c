/* SPDX-License-Identifier: Apache-2.0 */
/* What the leader is asked to do: commands, in a bounded window, and membership changes, one at a
 * time. libraft's callbacks only note the outcome; consensus_complete resumes the askers when
 * libraft is off the stack. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define WINDOW                                                                                     \
	64u /* R8: the log must come to rest for a commit; it does whenever the window is full */
#define WAITING_MAX 65536u

/* ---- Commands ---- */

int consensus_propose(struct consensus *c, struct proposal *p, const void *cmd, size_t len,
		      struct wait *w)
{
	struct pending *n;

	CHECK(len > 0);
	if (len > MESSAGE_ENTRY_BYTES_MAX)
		return -ERR_LIMIT;
	if (c->stopping || !consensus_is_leader(c))
		return -ERR_NOT_LEADER;
	if (c->waiting_count >= WAITING_MAX)
		return -ERR_BUSY;
	n = xcalloc(1, sizeof(*n));
	n->c = c;
	n->proposal = p;
	n->buf.len = len;
	n->buf.base = raft_malloc(len);
	CHECK(n->buf.base);
	memcpy(n->buf.base, cmd, len);
	p->wait = w;
	p->impl = n;
	list_push_back(&c->waiting, &n->link);
	c->waiting_count++;
	consensus_turn(c); /* what is proposed in one turn is written together */
	return PENDING;
}

static void on_applied(struct raft_apply *req, int status, void *result)
{
	struct pending *n = req->data;
	struct consensus *c = n->c;

	n->rc = status == 0 ? 0 : -ERR_RETRY; /* leadership lost: the outcome is not known */
	if (status == 0)
		n->proposal->result = *(struct command_result *)result;
	list_del(&n->link);
	c->flying_count--;
	list_push_back(&c->done, &n->link);
}

static void finish(struct consensus *c, struct pending *n, int rc)
{
	n->rc = rc;
	list_push_back(&c->done, &n->link);
}

void consensus_fail_waiting(struct consensus *c, int rc)
{
	struct list *l;

	while ((l = list_pop_front(&c->waiting)))
		finish(c, list_entry(l, struct pending, link), rc);
	c->waiting_count = 0;
}

void consensus_pump(struct consensus *c)
{
	unsigned window = guard_on(GUARD_R8) ? WINDOW : WAITING_MAX;
	struct list *l;

	while (!c->dead && c->led_term && c->flying_count < window &&
	       (l = list_pop_front(&c->waiting))) {
		struct pending *n = list_entry(l, struct pending, link);
		int rc;

		c->waiting_count--;
		c->flying_count++;
		list_push_back(&c->flying, &n->link);
		n->req.data = n;
		consensus_enter(c);
		rc = raft_apply(&c->raft, &n->req, &n->buf, 1, on_applied);
		consensus_leave(c);
		if (rc == 0) {
			n->buf.base = NULL; /* libraft's */
		} else {
			list_del(&n->link);
			c->flying_count--;
			finish(c, n, -ERR_NOT_LEADER);
		}
		consensus_after_call(c);
	}
}

void consensus_complete(struct consensus *c)
{
	struct list *l;

	while ((l = list_pop_front(&c->done))) {
		struct pending *n = list_entry(l, struct pending, link);
		struct wait *w = n->proposal->wait;
		int rc = n->rc;

		n->proposal->impl = NULL;
		raft_free(n->buf.base);
		free(n);
		wait_resume(w, rc);
	}
	if (c->member.stage == MEMBER_DONE) {
		c->member.stage = MEMBER_IDLE;
		wait_resume(c->member.wait, c->member.rc);
	}
}

/* ---- Membership ---- */

static int error_of(int raft_rc)
{
	switch (raft_rc) {
	case 0:
		return 0;
	case RAFT_NOTLEADER:
		return -ERR_NOT_LEADER;
	case RAFT_LEADERSHIPLOST:
		return -ERR_RETRY;
	case RAFT_CANTCHANGE:
		return -ERR_BUSY;
	case RAFT_NOCONNECTION: /* it did not catch up in time */
		return -ETIMEDOUT;
	case RAFT_NOTFOUND:
	case RAFT_BADID:
		return -ERR_NOT_FOUND;
	default:
		return -ERR_INVALID;
	}
}

static void on_change(struct raft_change *req, int status)
{
	struct member_op *op = req->data;

	op->waiting = false;
	op->rc = error_of(status);
}

static void on_member_barrier(struct raft_barrier *req, int status)
{
	struct member_op *op = req->data;

	op->waiting = false;
	op->rc = error_of(status);
}

/* What is still to do, from the configuration in force: RAFT_… role to assign, -1 add, -2 remove,
 * -3 nothing. */
enum { DO_ADD = -1, DO_REMOVE = -2, DO_NOTHING = -3 };
static int member_next(const struct consensus *c, enum member_kind kind, uint16_t id)
{
	const struct raft_server *s = configuration_get(&c->raft.configuration, id);

	switch (kind) {
	case MEMBER_ADD_STANDBY:
		return !s ? DO_ADD : s->role == RAFT_SPARE ? RAFT_STANDBY : DO_NOTHING;
	case MEMBER_VOTER:
		return s && s->role == RAFT_VOTER ? DO_NOTHING : RAFT_VOTER;
	case MEMBER_STANDBY:
		return s && s->role == RAFT_STANDBY ? DO_NOTHING : RAFT_STANDBY;
	case MEMBER_REMOVE:
		return s ? DO_REMOVE : DO_NOTHING;
	}
	return DO_NOTHING;
}

static int member_change(struct consensus *c, struct member_op *op, int what)
{
	int rc;

	op->waiting = true;
	op->change.data = op;
	consensus_enter(c);
	if (what == DO_ADD) {
		char address[8];

		snprintf(address, sizeof(address), "%u", op->id);
		rc = raft_add(&c->raft, &op->change, op->id, address, on_change);
	} else if (what == DO_REMOVE) {
		rc = raft_remove(&c->raft, &op->change, op->id, on_change);
	} else {
		rc = raft_assign(&c->raft, &op->change, op->id, what, on_change);
	}
	consensus_leave(c);
	consensus_after_call(c);
	if (rc != 0) {
		op->waiting = false;
		return error_of(rc);
	}
	return op->waiting ? PENDING : op->rc;
}

static int member_barrier(struct consensus *c, struct member_op *op)
{
	int rc;

	op->waiting = true;
	op->barrier.data = op;
	consensus_enter(c);
	rc = raft_barrier(&c->raft, &op->barrier, on_member_barrier);
	consensus_leave(c);
	consensus_after_call(c);
	if (rc != 0) {
		op->waiting = false;
		return -ERR_RETRY; /* the change itself is committed; ask again */
	}
	return op->waiting ? PENDING : op->rc;
}

/* CHANGE -> BARRIER -> (CHANGE again, while the goal is not reached) -> DONE. A case starts its
 * stage. */
void consensus_member_run(struct consensus *c)
{
	struct member_op *op = &c->member;
	int rc;

	while (!c->dead && !op->waiting && op->stage != MEMBER_IDLE && op->stage != MEMBER_DONE) {
		int what = member_next(c, op->kind, op->id);

		rc = op->rc;
		if (rc == 0 && !c->led_term)
			rc = -ERR_RETRY;
		if (rc == 0 && op->stage == MEMBER_CHANGE && what != DO_NOTHING) {
			rc = member_change(c, op, what);
			op->stage = MEMBER_BARRIER;
		} else if (rc == 0 && op->stage == MEMBER_BARRIER) {
			rc = member_barrier(c, op);
			op->stage = MEMBER_CHANGE;
		} else {
			op->stage = MEMBER_DONE;
		}
		if (rc != PENDING) {
			op->rc = rc;
			if (rc < 0)
				op->stage = MEMBER_DONE;
		}
	}
}

/* libraft breaks when it is led down to one voter, or its leader away (raft rule 12). */
static int member_allowed(const struct consensus *c, enum member_kind kind, uint16_t id)
{
	const struct raft_configuration *conf = &c->raft.configuration;
	const struct raft_server *s = configuration_get(conf, id);

	if (id == 0)
		return -ERR_INVALID;
	if (c->stopping || !consensus_is_leader(c))
		return -ERR_NOT_LEADER;
	if (member_next(c, kind, id) == DO_NOTHING &&
	    c->raft.configuration_uncommitted_index == 0 && c->member.stage == MEMBER_IDLE)
		return 0;
	if (!s && (kind == MEMBER_VOTER || kind == MEMBER_STANDBY))
		return -ERR_NOT_FOUND;
	if ((kind == MEMBER_STANDBY || kind == MEMBER_REMOVE) &&
	    (id == c->cfg.id || (s && s->role == RAFT_VOTER && configuration_voters(conf) <= 2)))
		return -ERR_REFUSED;
	if (!s && conf->n >= MESSAGE_MEMBERS_MAX)
		return -ERR_LIMIT;
	if (c->member.stage != MEMBER_IDLE || !c->barrier_done ||
	    c->raft.configuration_uncommitted_index != 0 || c->raft.leader_state.promotee_id != 0)
		return -ERR_BUSY;
	return PENDING;
}

static int member_start(struct consensus *c, enum member_kind kind, uint16_t id, struct wait *w)
{
	int rc = member_allowed(c, kind, id);

	if (rc != PENDING)
		return rc;
	c->member = (struct member_op){.kind = kind, .stage = MEMBER_CHANGE, .id = id, .wait = w};
	consensus_turn(c);
	return PENDING;
}

int consensus_add_standby(struct consensus *c, uint16_t id, struct wait *w)
{
	return member_start(c, MEMBER_ADD_STANDBY, id, w);
}

int consensus_make_voter(struct consensus *c, uint16_t id, struct wait *w)
{
	return member_start(c, MEMBER_VOTER, id, w);
}

int consensus_make_standby(struct consensus *c, uint16_t id, struct wait *w)
{
	return member_start(c, MEMBER_STANDBY, id, w);
}

int consensus_remove(struct consensus *c, uint16_t id, struct wait *w)
{
	return member_start(c, MEMBER_REMOVE, id, w);
}
