/* SPDX-License-Identifier: Apache-2.0 */
/* Admin calls between nodes. A call belongs to the connection it was sent on: if that ends, the
 * call fails, and a late answer finds nobody. A call to this node itself goes the same way without
 * a wire. */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "node/base/log.h"

/* ---- Calls that we make ---- */

static void outcall_done(struct control *c, struct outcall *o, int rc)
{
	o->rc = rc;
	list_del(&o->link);
	list_push_back(&c->done_calls, &o->link);
	control_arm(c);
}

static void outcall_end(struct outcall *o, int rc)
{
	struct control_call *q = o->q;

	writer_free(&o->local);
	free(o);
	wait_resume(q->wait, rc);
}

static char *text_copy(const char *p, size_t len)
{
	char *s = xmalloc(len + 1);

	memcpy(s, p, len);
	s[len] = 0;
	return s;
}

int control_call(struct control *c, struct control_call *q, uint16_t node, const char *method,
		 const char *path, const char *json, uint64_t timeout_ms, struct wait *w)
{
	struct peer *p = control_peer(c, node);
	struct writer body = writer_init_heap();
	struct outcall *o;

	if (c->stopping)
		return -ECANCELED;
	o = xcalloc(1, sizeof(*o));
	q->wait = w;
	q->status = 0;
	q->json = NULL;
	q->impl = o;
	o->q = q;
	o->node = node;
	o->id = c->next_id++;
	o->timeout_ms = (uint32_t)MIN(timeout_ms, (uint64_t)UINT32_MAX);
	o->deadline_us = control_now_us(c) + timeout_ms * 1000;
	o->local = writer_init_heap();
	list_push_back(&c->outcalls, &o->link);
	control_call_encode(o->timeout_ms, method, path, json ? json : "", &body);
	if (node == c->cfg.node) {
		o->local = body; /* delivered at the end of the turn */
		control_arm(c);
	} else if (p && control_send(c, node, OP_CALL, o->id, &body)) {
		o->session = p->session;
		writer_free(&body);
		control_arm(c);
	} else {
		writer_free(&body);
		outcall_done(c, o, -ENOTCONN);
	}
	return PENDING;
}

static struct outcall *outcall_find(struct control *c, uint64_t id, uint64_t session)
{
	struct outcall *o;

	list_for_each(o, &c->outcalls, link) if (o->id == id && o->session == session) return o;
	return NULL;
}

void control_on_result(struct control *c, struct peer *p, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);
	struct outcall *o;
	const char *json;
	uint32_t len;
	int status;

	if (control_result_decode(&r, &status, &json, &len)) {
		conn_close(p->conn, -ERR_PROTOCOL);
		return;
	}
	o = outcall_find(c, f->id, p->session);
	if (!o)
		return;
	o->q->status = status;
	o->q->json = text_copy(json, len);
	outcall_done(c, o, 0);
}

/* ---- Calls that are made to us ---- */

static void incall_start(struct control *c, uint16_t node, uint64_t session, uint64_t id,
			 const struct control_call_msg *m)
{
	struct incall *i = xcalloc(1, sizeof(*i));
	char *json = text_copy(m->json, m->json_len);
	uint64_t ticket = c->next_ticket++;

	i->ticket = ticket;
	i->node = node;
	i->session = session;
	i->id = id;
	i->deadline_us = control_now_us(c) + (uint64_t)m->timeout_ms * 1000;
	list_push_back(&c->incalls, &i->link);
	c->incall_count++;
	c->cfg.hooks->call(c->cfg.ctx, ticket, m->method, m->path, json);
	free(json);
}

void control_on_call(struct control *c, struct peer *p, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);
	struct control_call_msg m;
	struct writer w = writer_init_heap();

	if (control_call_decode(&r, &m)) {
		conn_close(p->conn, -ERR_PROTOCOL);
		return;
	}
	if (c->incall_count >= CONTROL_CALLS_MAX) {
		control_result_encode(-ERR_BUSY, "", &w);
		conn_send(p->conn, OP_RESULT, f->id, w.data, (uint32_t)w.len, NULL, 0);
		writer_free(&w);
		return;
	}
	incall_start(c, p->id, p->session, f->id, &m);
	control_arm(c);
}

static void incall_free(struct control *c, struct incall *i)
{
	list_del(&i->link);
	c->incall_count--;
	free(i);
}

void control_call_answer(struct control *c, uint64_t ticket, int status, const char *json)
{
	struct writer w = writer_init_heap();
	struct outcall *o;
	struct incall *i;
	struct peer *p;

	list_for_each(i, &c->incalls, link) if (i->ticket == ticket) break;
	if (&i->link == &c->incalls)
		return; /* its caller gave up */
	json = json ? json : "";
	if (strlen(json) > CONTROL_JSON_MAX) { /* a mistake of ours: whoever answers cuts it into parts */
		log_error("control", "an answer is larger than a frame and was not sent",
			  "to=%u bytes=%zu", i->node, strlen(json));
		status = -ERR_LIMIT;
		json = "";
	}
	if (i->node == c->cfg.node) {
		o = outcall_find(c, i->id, 0);
		if (o) {
			o->q->status = status;
			o->q->json = text_copy(json, strlen(json));
			outcall_done(c, o, 0);
		}
	} else if ((p = control_peer(c, i->node)) && p->session == i->session && !c->stopping) {
		control_result_encode(status, json, &w);
		conn_send(p->conn, OP_RESULT, i->id, w.data, (uint32_t)w.len, NULL, 0);
		writer_free(&w);
	}
	incall_free(c, i);
}

/* ---- Time and ends ---- */

void control_calls_step(struct control *c)
{
	uint64_t now = control_now_us(c);
	struct outcall *o, *next_o;
	struct incall *i, *next_i;

	list_for_each_safe(o, next_o, &c->outcalls, link) if (now >= o->deadline_us)
		outcall_done(c, o, -ETIMEDOUT);
	list_for_each_safe(i, next_i, &c->incalls, link) if (now >= i->deadline_us)
		incall_free(c, i);
}

void control_calls_peer_down(struct control *c, uint64_t session)
{
	struct outcall *o, *next_o;
	struct incall *i, *next_i;

	list_for_each_safe(o, next_o, &c->outcalls, link) if (o->session == session)
		outcall_done(c, o, -ERR_CLOSED);
	list_for_each_safe(i, next_i, &c->incalls, link) if (i->session == session)
		incall_free(c, i);
}

/* Delivers calls to ourselves, then resumes the callers of what has ended. */
void control_calls_finish(struct control *c)
{
	struct list all, *n;
	struct outcall *o, *next;

	list_init(&all);
	list_for_each_safe(o, next, &c->outcalls, link) if (o->node == c->cfg.node && o->local.len)
	{
		list_del(&o->link);
		list_push_back(&all, &o->link);
	}
	while ((n = list_pop_front(&all))) {
		struct reader r;
		struct control_call_msg m;
		struct writer body;

		o = list_entry(n, struct outcall, link);
		body = o->local;
		o->local = writer_init_heap();
		list_push_back(&c->outcalls, &o->link);
		r = reader_init(body.data, body.len);
		if (control_call_decode(&r, &m))
			outcall_done(c, o, -ERR_INVALID);
		else
			incall_start(c, c->cfg.node, 0, o->id, &m);
		writer_free(&body);
	}
	list_splice_back(&all, &c->done_calls);
	while ((n = list_pop_front(&all))) {
		o = list_entry(n, struct outcall, link);
		outcall_end(o, o->rc);
	}
}

void control_calls_cancel(struct control *c)
{
	struct list *n;

	while ((n = list_pop_front(&c->done_calls))) {
		struct outcall *o = list_entry(n, struct outcall, link);

		outcall_end(o, o->rc);
	}
	while ((n = list_pop_front(&c->outcalls)))
		outcall_end(list_entry(n, struct outcall, link), -ECANCELED);
	while (!list_empty(&c->incalls))
		incall_free(c, list_first(&c->incalls, struct incall, link));
}

bool control_calls_busy(const struct control *c)
{
	return !list_empty(&c->outcalls) || !list_empty(&c->incalls);
}
