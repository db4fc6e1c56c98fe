/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane's middle: it starts Raft, applies what is committed, and tells shards and
 * clients.
 *
 * All effects are put off to the end of the loop's turn (control_flush): one delta for all commands
 * that were applied in the turn, one command for all object changes that shards proposed, and
 * resumes of finished proposals and calls. So nothing here calls back from inside a call. The flush
 * runs in the LOG phase, so that what it sends leaves in the SEND phase of the same turn.
 *
 * It must never act on the outcome of a proposal for the map: nodes act on applied state only. */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "node/base/log.h"

uint64_t control_now_us(struct control *c)
{
	return loop_mono_us(c->cfg.loop);
}

void control_arm(struct control *c)
{
	if (!c->stopping)
		turn_end_arm(c->cfg.loop, &c->flush, TURN_LOG);
}

/* ---- Raft's hooks ---- */

static bool raft_send(void *ctx, uint16_t to, const void *msg, size_t len)
{
	struct control *c = ctx;
	struct peer *p =
		c->stopping ? NULL : control_peer(c, to); /* connections may be gone by then */

	if (!p || conn_full(p->conn) || len > WIRE_BODY_MAX)
		return false;
	conn_send(p->conn, OP_RAFT, 0, msg, (uint32_t)len, NULL, 0);
	if (!p->asked_us)
		p->asked_us = control_now_us(c);
	return true;
}

static void raft_apply_command(void *ctx, uint64_t index, const void *cmd, size_t len,
			       struct command_result *out)
{
	struct control *c = ctx;

	state_apply(c->state, index, cmd, len, out, NULL, NULL);
	c->applied_us = control_now_us(c);
	control_arm(c);
}

static void raft_snapshot(void *ctx, struct writer *w)
{
	struct control *c = ctx;

	state_snapshot(c->state, w);
}

static int raft_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	struct control *c = ctx;
	int rc = state_restore(c->state, data, len);

	if (rc)
		return rc;
	c->applied_us = control_now_us(c);
	control_arm(c);
	return 0;
}

static void raft_changed(void *ctx)
{
	struct control *c = ctx;

	if (!c->consensus || c->stopping)
		return;
	c->kicked = true;
	c->duty_us = 0;
	control_arm(c);
	if (c->cfg.hooks->role_changed)
		c->cfg.hooks->role_changed(c->cfg.ctx);
}

static const struct consensus_hooks raft_hooks = {
	.send = raft_send,
	.apply = raft_apply_command,
	.snapshot = raft_snapshot,
	.restore = raft_restore,
	.changed = raft_changed,
};

/* ---- Deltas ---- */

static bool is_removed(const struct control *c, const char *identity)
{
	const struct map_node *n = map_holder_node(state_map(c->state), identity);

	return n && n->state == NODE_REMOVED;
}

/* `bytes` is the delta from c->delta_version, for those who are there too; others get their own. */
static void subscriber_push(struct control *c, struct subscriber *s, const struct writer *bytes)
{
	uint64_t version = state_map(c->state)->version;
	struct writer own = writer_init_heap();

	if (is_removed(c, s->identity)) { /* the front end of a node that is no more one of us */
		conn_close(s->conn, -ERR_AUTH);
		return;
	}
	if (!s->watching || s->sent == version || conn_full(s->conn))
		return;
	if (!bytes || s->sent != c->delta_version) {
		state_delta(c->state, s->sent, &own);
		bytes = &own;
	}
	if (bytes->len <= WIRE_BODY_MAX)
		conn_send(s->conn, OP_MAP_DELTA, 0, bytes->data, (uint32_t)bytes->len, NULL, 0);
	else
		log_error("control", "the map is too large to send", "bytes=%zu client=%s",
			  bytes->len, s->identity);
	s->sent = version;
	writer_free(&own);
}

static void deltas_flush(struct control *c)
{
	uint64_t version = state_map(c->state)->version;
	struct writer w = writer_init_heap();
	bool news = version != c->delta_version;
	struct subscriber *s;

	if (news)
		state_delta(c->state, c->delta_version, &w);
	list_for_each(s, &c->subscribers, link) subscriber_push(c, s, news ? &w : NULL);
	if (!news)
		return;
	c->delta_version = version;
	control_nodes_news(c);
	c->cfg.hooks->delta(c->cfg.ctx, w.data, w.len); /* takes the memory over */
}

static bool subscribers_lag(const struct control *c)
{
	const struct subscriber *s;

	list_for_each(s, &c->subscribers,
		      link) if (s->watching && s->sent != state_map(c->state)->version) return true;
	return false;
}

/* ---- The end of a turn, and time ---- */

static void tick_set(struct control *c)
{
	bool waits = control_requests_busy(c) || control_calls_busy(c) || c->batch_count ||
		     subscribers_lag(c);

	if (waits)
		timer_set(&c->tick, CONTROL_TICK_US);
	else if (consensus_is_leader(c->consensus))
		timer_set(&c->tick, c->planned_idle ? CONTROL_DUTY_US : CONTROL_PLAN_US);
	else
		timer_cancel(&c->tick);
}

static void control_flush(struct turn_end *t)
{
	struct control *c = container_of(t, struct control, flush);

	deltas_flush(c);
	control_batch_flush(c);
	if (c->kicked) {
		c->kicked = false;
		control_requests_step(c, true);
	}
	control_duty(c);
	control_requests_applied(c);
	control_calls_finish(c);
	control_requests_finish(c);
	if (!c->stopping)
		tick_set(c);
}

static void control_tick(struct timer *t)
{
	struct control *c = container_of(t, struct control, tick);

	control_requests_step(c, false);
	control_calls_step(c);
	control_arm(c);
}

/* ---- Life ---- */

int control_start(const struct control_config *cfg, struct control **out)
{
	struct control *c = xcalloc(1, sizeof(*c));
	struct consensus_config raft = {.id = cfg->node,
					.dir = cfg->raft_dir,
					.loop = cfg->loop,
					.bootstrap = cfg->bootstrap,
					.hooks = &raft_hooks,
					.ctx = c};
	struct list *lists[] = {&c->peers,         &c->subscribers, &c->requests,
				&c->relays,        &c->outcalls,    &c->incalls,
				&c->done_requests, &c->done_calls,  &c->client_proposals};
	int rc;

	c->cfg = *cfg;
	c->next_id = c->next_session = c->next_ticket = 1;
	c->started_us = loop_mono_us(cfg->loop);
	c->state = state_create();
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_init(lists[i]);
	turn_end_init(&c->flush, control_flush);
	timer_init(&c->tick, cfg->loop, control_tick);
	rc = consensus_start(&raft, &c->consensus);
	if (rc < 0) {
		turn_end_disarm(&c->flush);
		timer_fini(&c->tick);
		state_destroy(c->state);
		free(c);
		return rc;
	}
	control_arm(c);
	*out = c;
	return 0;
}

/* Raft has ended: every proposal in its log was resumed. What is left is told -ECANCELED. */
static void raft_stopped(void *ctx)
{
	struct control *c = ctx;
	void (*stopped)(void *) = c->stopped;
	void *owner = c->cfg.ctx;
	struct list *n;

	control_requests_cancel(c);
	control_calls_cancel(c);
	CHECK(list_empty(&c->relays));
	while ((n = list_pop_front(&c->peers)))
		free(list_entry(n, struct peer, link));
	while ((n = list_pop_front(&c->subscribers)))
		free(list_entry(n, struct subscriber, link));
	turn_end_disarm(&c->flush);
	timer_fini(&c->tick);
	state_destroy(c->state);
	free(c->lost_us);
	free(c);
	stopped(owner);
}

void control_stop(struct control *c, void (*stopped)(void *ctx))
{
	c->stopping = true;
	c->stopped = stopped;
	turn_end_disarm(&c->flush);
	timer_cancel(&c->tick);
	consensus_stop(c->consensus, raft_stopped);
}

/* ---- Peers ---- */

struct peer *control_peer(const struct control *c, uint16_t id)
{
	struct peer *p;

	list_for_each(p, &c->peers, link) if (p->id == id) return p;
	return NULL;
}

bool control_send(struct control *c, uint16_t node, uint16_t opcode, uint64_t id,
		  const struct writer *w)
{
	struct peer *p = control_peer(c, node);

	if (!p || w->bad || w->len > WIRE_BODY_MAX || conn_full(p->conn))
		return false;
	conn_send(p->conn, opcode, id, w->data, (uint32_t)w->len, NULL, 0);
	return true;
}

void control_peer_up(struct control *c, uint16_t node, uint32_t incarnation, struct conn *conn)
{
	struct peer *p;

	if (c->stopping)
		return;
	control_peer_down(c, node, -ERR_CLOSED); /* a newer connection replaces the old one */
	p = xcalloc(1, sizeof(*p));
	p->id = node;
	p->incarnation = incarnation;
	p->conn = conn;
	p->session = c->next_session++;
	p->heard_us = control_now_us(c);
	list_push_back(&c->peers, &p->link);
	control_nodes_tell(c, p);
	c->kicked = true;
	c->duty_us = 0;
	control_arm(c);
}

void control_peer_down(struct control *c, uint16_t node, int reason)
{
	struct peer *p = control_peer(c, node);

	if (!p || c->stopping)
		return;
	list_del(&p->link);
	control_contact_lost(c, node);
	control_requests_peer_down(c, node);
	control_calls_peer_down(c, p->session);
	free(p);
	control_arm(c);
}

void control_peer_refused(struct control *c, uint16_t node)
{
	struct consensus_status st;

	if (c->stopping)
		return;
	consensus_status(c->consensus, &st);
	if (st.leader == node)
		consensus_leader_gone(c->consensus, node);
}

void control_frame(struct control *c, uint16_t node, const struct frame *f)
{
	struct peer *p = control_peer(c, node);

	if (!p || c->stopping)
		return;
	p->heard_us = loop_turn_us(c->cfg.loop);
	p->asked_us = 0;
	switch (f->opcode) {
	case OP_RAFT:
		consensus_receive(c->consensus, node, f->body, f->body_len);
		break;
	case OP_PROPOSE:
		control_on_propose(c, p, f);
		break;
	case OP_PROPOSED:
		control_on_proposed(c, p, f);
		break;
	case OP_CALL:
		control_on_call(c, p, f);
		break;
	case OP_RESULT:
		control_on_result(c, p, f);
		break;
	case OP_NODES:
		control_on_nodes(c, p, f);
		break;
	default:
		log_warn("control", "a peer sent a frame that does not belong on its connection",
			 "node=%u opcode=%u", node, f->opcode);
		conn_close(p->conn, -ERR_PROTOCOL);
	}
}

/* ---- Clients ---- */

static struct subscriber *subscriber_find(const struct control *c, const struct conn *conn)
{
	struct subscriber *s;

	list_for_each(s, &c->subscribers, link) if (s->conn == conn) return s;
	return NULL;
}

void control_client_up(struct control *c, struct conn *conn, const char *identity)
{
	struct subscriber *s;

	if (c->stopping)
		return;
	s = xcalloc(1, sizeof(*s));
	s->conn = conn;
	s->serial = c->next_session++;
	snprintf(s->identity, sizeof(s->identity), "%s", identity);
	list_push_back(&c->subscribers, &s->link);
}

void control_client_down(struct control *c, struct conn *conn)
{
	struct subscriber *s;

	if (c->stopping)
		return;
	s = subscriber_find(c, conn);
	if (!s)
		return;
	list_del(&s->link);
	free(s);
}

void control_client_frame(struct control *c, struct conn *conn, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);
	struct subscriber *s;

	if (c->stopping)
		return;
	s = subscriber_find(c, conn);
	if (!s)
		return;
	if (f->opcode == OP_MAP_WATCH && !control_watch_decode(&r, &s->sent)) {
		s->watching = true;
		control_arm(c);
	} else if (f->opcode == OP_PROPOSE) {
		control_client_on_propose(c, s, f);
	} else {
		log_warn("control", "a client sent a frame that it may not send",
			 "client=%s opcode=%u", s->identity, f->opcode);
		conn_close(conn, -ERR_PROTOCOL);
	}
}

/* ---- Facts ---- */

const struct state *control_state(const struct control *c)
{
	return c->state;
}

void control_status(const struct control *c, struct consensus_status *out)
{
	consensus_status(c->consensus, out);
}

bool control_peer_connected(const struct control *c, uint16_t node)
{
	return node == c->cfg.node || control_peer(c, node);
}

uint64_t control_peer_silent_us(const struct control *c, uint16_t node)
{
	const struct peer *p = control_peer(c, node);

	return p ? loop_mono_us(c->cfg.loop) - p->heard_us : UINT64_MAX;
}

uint64_t control_applied_us(const struct control *c)
{
	struct consensus_status st;

	consensus_status(c->consensus, &st);
	if (st.role == CONSENSUS_LEADER)
		return loop_mono_us(c->cfg.loop);
	return MAX(c->applied_us, st.leader_contact_us);
}
