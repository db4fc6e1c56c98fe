/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that another node has to answer: the owner of a disk group, the leader, a holder of the
 * CA key. */
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

/* A node that serves again may be known to others some 100 ms before its connection to this one is
 * back: an operator who acts at once should not have to try again. */
#define OWNER_WAIT_US 2000000u
#define OWNER_LOOK_US 20000u

struct forward {
	struct wait wait;
	struct areq *q;
	struct control_call call;
	uint16_t voters[16]; /* still to be tried, when the CA key is looked for */
	unsigned voter_count, next;
	bool for_ca;
};

static void forward_next(struct forward *f);

static void on_forwarded(struct wait *w, int rc)
{
	struct forward *f = container_of(w, struct forward, wait);
	CLEANUP(free_ptr) char *json = f->call.json;
	struct areq *q = f->q;

	f->call.json = NULL;
	if (f->for_ca && (rc < 0 || f->call.status == 503) && f->next < f->voter_count) {
		forward_next(f);
		return;
	}
	if (strcmp(q->method, "GET"))
		facts_forget(q->admin); /* it may have changed what we know of the other one */
	if (rc < 0)
		admin_fail(q, rc, "the other node did not answer: %s", err_text(rc));
	else if (f->call.status < 0) /* no answer of HTTP: a code of the connection's */
		admin_fail(q, f->call.status, "the other node could not answer: %s",
			   err_text(f->call.status));
	else
		admin_reply_text(q, f->call.status, "application/json", json ? json : "{}");
}

static void forward_to(struct forward *f, uint16_t node, uint64_t timeout_ms)
{
	struct areq *q = f->q;
	CLEANUP(free_ptr) char *body = q->body ? json_print(q->body, false) : NULL;
	CLEANUP(free_ptr) char *path = xasprintf("%s%s%s", q->path, *q->query ? "?" : "", q->query);
	int rc;

	rc = q->admin->ops->call(q->admin->cluster, &f->call, node, q->method, path,
				 body ? body : "", timeout_ms, &f->wait);
	if (rc != PENDING)
		on_forwarded(&f->wait, rc);
}

static void forward_next(struct forward *f)
{
	forward_to(f, f->voters[f->next++], PROPOSE_TIMEOUT_MS + 5000);
}

static void forward(struct areq *q, uint16_t node, uint64_t timeout_ms)
{
	struct forward *f = xcalloc(1, sizeof(*f));

	f->wait.resume = on_forwarded;
	f->q = q;
	free(q->op);
	q->op = f;
	forward_to(f, node, timeout_ms);
}

/* ---- To the node that owns the thing ---- */

/* Answered or passed on now? */
static bool owner_settled(struct areq *q)
{
	uint16_t node = q->owner;
	const char *name;

	if (!facts_node_up(q->admin, node) && loop_mono_us(q->admin->cfg.loop) < q->owner_until_us)
		return false;
	q->owner = 0;
	if (facts_node_up(q->admin, node)) {
		forward(q, node, q->owner_timeout_ms);
		return true;
	}
	name = map_node_name(admin_map(q->admin), node);
	admin_fail(q, -ERR_UNAVAILABLE,
		   "node %s, which must do this, cannot be reached from here; `ashlar health` says "
		   "what is known of it",
		   name ? name : "?");
	return true;
}

void admin_owners_look(struct timer *t)
{
	struct admin *a = container_of(t, struct admin, owners);
	struct areq *q, *next;
	bool waiting = false;

	list_for_each_safe(q, next, &a->requests, link) if (q->owner) waiting |= !owner_settled(q);
	if (waiting)
		timer_set(t, OWNER_LOOK_US);
}

void admin_forward(struct areq *q, uint16_t node, uint64_t timeout_ms)
{
	q->owner = node;
	q->owner_timeout_ms = timeout_ms;
	q->owner_until_us = loop_mono_us(q->admin->cfg.loop) + OWNER_WAIT_US;
	if (!owner_settled(q))
		timer_set(&q->admin->owners, OWNER_LOOK_US);
}

static void fail_without_leader(struct areq *q)
{
	admin_fail(q, -ERR_NO_LEADER,
		   "this node is starting and hears of no Raft leader: it does not know yet what "
		   "there is; `ashlar health` says what is missing");
}

/* Between the start of a node and its first word of a leader nothing is known: that is not to be told as
 * if nothing were there. */
bool admin_refused_blank(struct areq *q)
{
	if (q->who == WHO_NODE || admin_map(q->admin)->nodes.count)
		return false;
	fail_without_leader(q);
	return true;
}

bool admin_ask_leader(struct areq *q)
{
	struct admin *a = q->admin;
	struct consensus_status st = {0};

	if (q->who == WHO_NODE)
		return false;
	a->ops->status(a->cluster, &st);
	if (st.leader == a->cfg.identity->number)
		return false;
	if (!st.leader || !a->ops->peer_connected(a->cluster, st.leader)) {
		if (admin_is_registered(a))
			return false;
		fail_without_leader(q);
		return true;
	}
	forward(q, st.leader, PROPOSE_TIMEOUT_MS + 5000);
	return true;
}

void admin_forward_to_ca(struct areq *q)
{
	struct admin *a = q->admin;
	struct consensus_status st;
	struct forward *f;

	if (q->who == WHO_NODE) { /* once only: no circles */
		admin_fail(q, -ERR_UNAVAILABLE, "this node does not hold the CA key");
		return;
	}
	f = xcalloc(1, sizeof(*f));
	f->wait.resume = on_forwarded;
	f->q = q;
	f->for_ca = true;
	a->ops->status(a->cluster, &st);
	for (unsigned i = 0; i < st.voters && i < ARRAY_LEN(f->voters); i++)
		if (st.voter[i] != a->cfg.identity->number &&
		    a->ops->peer_connected(a->cluster, st.voter[i]))
			f->voters[f->voter_count++] = st.voter[i];
	free(q->op);
	q->op = f;
	if (f->voter_count == 0)
		admin_fail(q, -ERR_UNAVAILABLE,
			   "no voter that could hold the CA key can be reached");
	else
		forward_next(f);
}
