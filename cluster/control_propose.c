/* SPDX-License-Identifier: Apache-2.0 */
/* Proposals: of this node (request), of peers that take us for the leader (relay), of clients, and
 * the shards' object changes.
 *
 *   WAITING --leader is here--> LOCAL  --applied--> DONE
 *      ^  \--leader is a peer--> REMOTE --answer--> ANSWERED --applied here--> DONE
 *      +---- not leader: nothing was done; or outcome unknown and the command may be repeated
 *
 * Who is told that something is done finds it in the state of this node.
 *
 * An attempt whose outcome is unknown (leadership or connection lost) is repeated only if applying
 * the command twice is the same as once: by its compare-and-swap, or because state.c recognises it.
 */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static bool repeatable(uint16_t kind)
{
	return kind != CMD_TOKEN_USE && kind != CMD_EVENT;
}

/* For people and for the age of invitations and leases; the state machine takes it as it comes. */
uint64_t control_wall_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* ---- Requests ---- */

static void request_done(struct request *q, int rc)
{
	struct control *c = q->c;

	q->state = REQUEST_DONE;
	q->rc = rc;
	list_del(&q->link);
	list_push_back(&c->done_requests, &q->link);
	control_arm(c);
}

static void request_free(struct request *q)
{
	writer_free(&q->cmd);
	writer_free(&q->placed);
	free(q);
}

static void request_wait(struct request *q, bool unknown)
{
	q->unknown |= unknown;
	if (unknown && !q->repeatable) {
		request_done(q, -ETIMEDOUT);
		return;
	}
	q->state = REQUEST_WAITING;
	q->retry_us = control_now_us(q->c) + CONTROL_TICK_US;
	control_arm(q->c); /* sets the tick */
}

static void request_local_end(struct request *q, int rc)
{
	if (!q->p ||
	    q->c->stopping) { /* its owner was told -ETIMEDOUT meanwhile, or is told -ECANCELED */
		q->unknown = true;
		request_done(q, -ECANCELED);
	} else if (rc == -ERR_NOT_LEADER || rc == -ERR_BUSY) {
		request_wait(q, false);
	} else if (rc == -ERR_RETRY) {
		request_wait(q, true);
	} else {
		if (!rc)
			q->p->result = q->local.result;
		request_done(q, rc);
	}
}

static void request_resume(struct wait *w, int rc)
{
	request_local_end(container_of(w, struct request, local_wait), rc);
}

static void request_local(struct request *q)
{
	const struct writer *cmd = &q->cmd;
	int rc;

	q->placed.len = 0;
	rc = control_place(q->c, q->cmd.data, q->cmd.len, &q->placed, &q->p->result);
	if (rc) {
		request_done(q, 0); /* a refusal is a result */
		return;
	}
	if (q->placed.len)
		cmd = &q->placed;
	command_stamp(cmd->data, cmd->len, control_wall_ms());
	q->state = REQUEST_LOCAL;
	rc = consensus_propose(q->c->consensus, &q->local, cmd->data, cmd->len, &q->local_wait);
	if (rc != PENDING)
		request_local_end(q, rc);
}

/* One try, if there is a leader to try. */
static void request_try(struct request *q)
{
	struct control *c = q->c;
	struct consensus_status st;

	if (consensus_is_leader(c->consensus)) {
		request_local(q);
		return;
	}
	consensus_status(c->consensus, &st);
	if (st.leader && st.leader != c->cfg.node &&
	    control_send(c, st.leader, OP_PROPOSE, q->id, &q->cmd)) {
		q->state = REQUEST_REMOTE;
		q->leader = st.leader;
	}
}

/* The owner's deadline; what lies in our own log cannot be taken back, so it stays until it ends.
 */
static void request_expire(struct request *q)
{
	struct control_propose *p = q->p;

	if (q->state == REQUEST_ANSWERED) {
		request_done(q, 0);
		return;
	}
	if (q->state != REQUEST_LOCAL) {
		request_done(q, q->unknown || q->state == REQUEST_REMOTE ? -ETIMEDOUT
									 : -ERR_NO_LEADER);
		return;
	}
	q->p = NULL;
	wait_resume(p->wait, -ETIMEDOUT);
}

/* From the tick or the end of a turn only: it may resume owners. */
void control_requests_step(struct control *c, bool at_once)
{
	uint64_t now = control_now_us(c);
	struct request *q, *next;
	struct list all;

	/* Owners that are resumed may propose again: walk what is there now. */
	list_init(&all);
	list_splice_back(&all, &c->requests);
	list_for_each_safe(q, next, &all, link)
	{
		list_del(&q->link);
		list_push_back(&c->requests, &q->link);
		if (q->p && now >= q->deadline_us)
			request_expire(q);
		else if (q->state == REQUEST_WAITING && (at_once || now >= q->retry_us))
			request_try(q);
		else if (q->state == REQUEST_ANSWERED && now >= q->retry_us)
			request_done(q, 0);
	}
}

static bool applied_here(const struct control *c, uint64_t index)
{
	struct consensus_status st;

	consensus_status(c->consensus, &st);
	return st.applied >= index;
}

void control_requests_applied(struct control *c)
{
	struct request *q, *next;

	list_for_each_safe(q, next, &c->requests, link)
		if (q->state == REQUEST_ANSWERED && q->p && applied_here(c, q->p->result.index))
			request_done(q, 0);
}

void control_requests_peer_down(struct control *c, uint16_t node)
{
	struct request *q, *next;

	list_for_each_safe(q, next, &c->requests,
			   link) if (q->state == REQUEST_REMOTE && q->leader == node)
		request_wait(q, true);
}

void control_requests_finish(struct control *c)
{
	struct list all, *n;

	list_init(&all);
	list_splice_back(&all, &c->done_requests);
	while ((n = list_pop_front(&all))) {
		struct request *q = list_entry(n, struct request, link);
		struct control_propose *p = q->p;
		int rc = q->rc;

		request_free(q);
		if (p)
			wait_resume(p->wait, rc);
	}
}

/* Raft is gone. */
void control_requests_cancel(struct control *c)
{
	struct list *n;

	list_splice_back(&c->done_requests, &c->requests);
	while ((n = list_pop_front(&c->done_requests))) {
		struct request *q = list_entry(n, struct request, link);
		struct control_propose *p = q->p;
		int rc = q->state == REQUEST_DONE ? q->rc : -ECANCELED;

		request_free(q);
		if (p)
			wait_resume(p->wait, rc);
	}
}

bool control_requests_busy(const struct control *c)
{
	return !list_empty(&c->requests);
}

int control_propose(struct control *c, struct control_propose *p, const struct command *cmd,
		    uint64_t deadline_ms, struct wait *w)
{
	struct request *q;
	struct command copy = *cmd;

	if (c->stopping)
		return -ECANCELED;
	q = xcalloc(1, sizeof(*q));
	if (!copy.time_ms)
		copy.time_ms = control_wall_ms();
	memset(&p->result, 0, sizeof(p->result));
	p->wait = w;
	p->impl = q;
	q->c = c;
	q->p = p;
	q->id = c->next_id++;
	q->deadline_us = control_now_us(c) + deadline_ms * 1000;
	q->repeatable = repeatable(cmd->kind);
	q->local_wait.resume = request_resume;
	q->cmd = writer_init_heap();
	q->placed = writer_init_heap();
	command_encode(&copy, &q->cmd);
	list_push_back(&c->requests, &q->link);
	request_try(q);
	control_arm(c);
	return PENDING;
}

void control_on_proposed(struct control *c, struct peer *p, const struct frame *f)
{
	struct command_result *result = xmalloc(sizeof(*result));
	struct reader r = reader_init(f->body, f->body_len);
	struct request *q;

	if (command_result_decode(&r, result) || !reader_done(&r)) {
		free(result);
		conn_close(p->conn, -ERR_PROTOCOL);
		return;
	}
	list_for_each(q, &c->requests, link) if (q->id == f->id && q->state == REQUEST_REMOTE &&
						 q->leader == p->id) break;
	if (&q->link != &c->requests) {
		if (result->code == -ERR_NOT_LEADER || result->code == -ERR_BUSY) {
			request_wait(q, false);
		} else if (result->code == -ERR_RETRY) {
			request_wait(q, true);
		} else {
			q->p->result = *result;
			q->state = REQUEST_ANSWERED;
			q->retry_us = control_now_us(c) + CONTROL_CATCH_UP_US;
			if (applied_here(c, result->index))
				request_done(q, 0);
		}
	}
	free(result);
}

/* ---- Relays: proposals of others in our log ---- */

static void relay_answer(struct relay *y, int rc)
{
	struct peer *p = y->node ? control_peer(y->c, y->node) : NULL;
	struct writer w = writer_init_heap();

	if (p && p->session == y->session && !y->c->stopping) {
		if (rc) {
			memset(&y->p.result, 0, sizeof(y->p.result));
			y->p.result.code = rc;
		}
		command_result_encode(&y->p.result, &w);
		conn_send(p->conn, OP_PROPOSED, y->id, w.data, (uint32_t)w.len, NULL, 0);
		writer_free(&w);
	}
	list_del(&y->link);
	writer_free(&y->cmd);
	free(y);
}

static void relay_resume(struct wait *w, int rc)
{
	relay_answer(container_of(w, struct relay, wait), rc);
}

/* Takes over `cmd`. */
static void relay_start(struct control *c, struct peer *p, uint64_t id, struct writer cmd)
{
	struct relay *y = xcalloc(1, sizeof(*y));
	int rc;

	y->c = c;
	y->id = id;
	y->cmd = cmd;
	y->wait.resume = relay_resume;
	if (p && id) {
		y->node = p->id;
		y->session = p->session;
	}
	list_push_back(&c->relays, &y->link);
	rc = consensus_propose(c->consensus, &y->p, cmd.data, cmd.len, &y->wait);
	if (rc != PENDING)
		relay_answer(y, rc);
}

static void propose_refuse(struct peer *p, uint64_t id, const struct command_result *result)
{
	struct writer w = writer_init_heap();

	if (!id)
		return;
	command_result_encode(result, &w);
	conn_send(p->conn, OP_PROPOSED, id, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
}

void control_on_propose(struct control *c, struct peer *p, const struct frame *f)
{
	struct command_result *refusal = xcalloc(1, sizeof(*refusal));
	struct writer cmd = writer_init_heap();
	int rc = 0;

	if (!f->body_len || f->body_len % 8)
		refusal->code = -ERR_PROTOCOL;
	else if (!consensus_is_leader(c->consensus))
		refusal->code = -ERR_NOT_LEADER;
	else
		rc = control_place(c, f->body, f->body_len, &cmd, refusal);
	if (refusal->code || rc) {
		propose_refuse(p, f->id, refusal);
		writer_free(&cmd);
	} else {
		if (!cmd.len)
			write_bytes(&cmd, f->body, f->body_len);
		command_stamp(cmd.data, cmd.len, control_wall_ms());
		relay_start(c, p, f->id, cmd);
	}
	free(refusal);
}

void control_propose_unasked(struct control *c, const struct command *cmd)
{
	struct writer w = writer_init_heap();
	struct command copy = *cmd;

	copy.time_ms = control_wall_ms();
	command_encode(&copy, &w);
	relay_start(c, NULL, 0, w);
}

/* ---- Object changes of this node's shards ---- */

static bool change_same(const struct object_change *a, const struct object_change *b)
{
	return a->object == b->object && a->op == b->op && a->node == b->node &&
	       a->replica.group == b->replica.group &&
	       a->replica.group_incarnation == b->replica.group_incarnation &&
	       a->replica.gen == b->replica.gen;
}

void control_batch_flush(struct control *c)
{
	struct command cmd = {.kind = CMD_OBJECT, .object = {c->batch_count, c->batch}};
	struct writer w = writer_init_heap();
	struct consensus_status st;

	if (!c->batch_count)
		return;
	consensus_status(c->consensus, &st);
	cmd.time_ms = control_wall_ms();
	command_encode(&cmd, &w);
	if (consensus_is_leader(c->consensus)) {
		relay_start(c, NULL, 0, w);
		c->batch_count = 0;
		return;
	}
	/* While there is no leader they wait a little: the election is shorter than their author's
	 * pause. */
	if ((st.leader && control_send(c, st.leader, OP_PROPOSE, 0, &w)) ||
	    control_now_us(c) - c->batch_us > CONTROL_BATCH_KEEP_US)
		c->batch_count = 0;
	writer_free(&w);
}

void control_propose_objects(struct control *c, const struct object_change *changes, unsigned count)
{
	if (c->stopping)
		return;
	for (unsigned i = 0; i < count; i++) {
		unsigned k = 0;

		while (k < c->batch_count && !change_same(&c->batch[k], &changes[i]))
			k++;
		if (k == OBJECT_CHANGES_MAX) {
			control_batch_flush(c);
			if (c->batch_count == OBJECT_CHANGES_MAX)
				return; /* no leader: the author proposes again */
			k = 0;
		}
		if (!c->batch_count)
			c->batch_us = control_now_us(c);
		c->batch[k] = changes[i]; /* the newest of its kind holds */
		c->batch_count = MAX(c->batch_count, k + 1);
	}
	control_arm(c);
}

/* ---- Clients ---- */

struct client_proposal {
	struct list link;
	struct control *c;
	struct control_propose p;
	struct wait wait;
	uint64_t serial, id;
};

static void client_answer(struct control *c, uint64_t serial, uint64_t id,
			  const struct command_result *r)
{
	struct writer w = writer_init_heap();
	struct subscriber *s;

	command_result_encode(r, &w);
	list_for_each(s, &c->subscribers, link) if (s->serial == serial)
	{
		s->proposals--;
		conn_send(s->conn, OP_PROPOSED, id, w.data, (uint32_t)w.len, NULL, 0);
	}
	writer_free(&w);
}

static void client_proposed(struct wait *w, int rc)
{
	struct client_proposal *cp = container_of(w, struct client_proposal, wait);

	if (rc) {
		memset(&cp->p.result, 0, sizeof(cp->p.result));
		cp->p.result.code = rc;
	}
	if (!cp->c->stopping)
		client_answer(cp->c, cp->serial, cp->id, &cp->p.result);
	list_del(&cp->link);
	free(cp);
}

/* The holder is the client's identity, or that and a host name behind a space. */
static bool holder_is(const char *holder, const char *identity)
{
	size_t n = strlen(identity);

	return n && !strncmp(holder, identity, n) && (holder[n] == 0 || holder[n] == ' ');
}

static bool client_may(const struct control *c, const struct subscriber *s,
		       const struct command *cmd)
{
	if (cmd->kind == CMD_ATTACH)
		return holder_is(cmd->attach.holder, s->identity);
	if (cmd->kind == CMD_DETACH) {
		struct map_attachment *a =
			map_attachment(state_map(c->state), cmd->detach.attachment);

		return !a || holder_is(a->holder, s->identity);
	}
	if (cmd->kind == CMD_RENEW) {
		for (unsigned i = 0; i < cmd->renew.count; i++) {
			struct map_attachment *a =
				map_attachment(state_map(c->state), cmd->renew.attachment[i]);

			if (a && !holder_is(a->holder, s->identity))
				return false;
		}
		return true;
	}
	return false;
}

void control_client_on_propose(struct control *c, struct subscriber *s, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	struct client_proposal *cp;
	void *arena = NULL;
	int rc = command_decode(&r, cmd, &arena);

	if (!rc && !client_may(c, s, cmd))
		rc = -ERR_REFUSED;
	if (!rc && s->proposals >= CONTROL_CLIENT_PROPOSALS)
		rc = -ERR_BUSY;
	s->proposals++;
	if (rc) {
		struct command_result *refusal = xcalloc(1, sizeof(*refusal));

		refusal->code = rc;
		snprintf(refusal->text, sizeof(refusal->text), "%s",
			 rc == -ERR_REFUSED ? "a client may only attach, renew and detach, as itself"
					    : err_text(rc));
		client_answer(c, s->serial, f->id, refusal);
		free(refusal);
	} else {
		snprintf(cmd->actor, sizeof(cmd->actor), "%.63s", s->identity);
		cmd->time_ms = 0; /* a client's clock is nobody's */
		cp = xcalloc(1, sizeof(*cp));
		cp->c = c;
		cp->serial = s->serial;
		cp->id = f->id;
		cp->wait.resume = client_proposed;
		list_push_back(&c->client_proposals, &cp->link);
		rc = control_propose(c, &cp->p, cmd, CONTROL_CLIENT_MS, &cp->wait);
		CHECK(rc == PENDING);
	}
	free(arena);
	free(cmd);
}
