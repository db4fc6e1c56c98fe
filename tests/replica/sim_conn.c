/* SPDX-License-Identifier: Apache-2.0 */
/* net/conn.h for the simulator: pairs of ends with a delay per message, in order. A direction
 * between two nodes may stall (nothing is lost, nothing arrives, until it is lifted or the
 * connection is given up); a reset loses what is under way; a host without power says nothing at
 * all. */
#include "tests/replica/sim.h"

#include <stdio.h>
#include <stdlib.h>

#define STALL_LIMIT_US 5000000u

struct message {
	struct list link;
	uint16_t opcode;
	bool close;
	uint8_t *body;
	uint32_t body_len, payload_len;
	uint8_t *payload;
};

struct conn {
	struct list link;
	struct sim_proc *proc;
	unsigned life;
	struct conn *peer;
	unsigned node, peer_node;
	uint32_t peer_incarnation;
	bool closed, up, gone; /* gone: nobody will touch it any more on this side */
	struct list queue;     /* messages to this end, in order; each has an arrival event */
	unsigned held;         /* arrivals that a stall keeps back */
	uint64_t arrive_us, held_us;
	unsigned refs;
};

static struct list conns = LIST_INIT(conns);

/* The next write that goes from one node to another one as a record arrives so often: no network does that
 * within a connection, a mistake in a queue of ours would. */
static struct {
	unsigned from, to, copies;
} spoil;

static void message_free(struct message *m)
{
	free(m->body);
	free(m->payload);
	free(m);
}

static void conn_put(struct conn *c)
{
	struct list *n;

	if (--c->refs)
		return;
	while ((n = list_pop_front(&c->queue)))
		message_free(list_entry(n, struct message, link));
	list_del(&c->link);
	free(c);
}

static void conn_drop(void *arg)
{
	conn_put(arg);
}

/* As the owner of streams does: a connection that was replaced says nothing more. */
static bool is_current(const struct conn *c)
{
	struct session *s = c->proc->r->peers[c->peer_node].stream[0];

	return s && s->conn == c;
}

static void end_down(struct conn *c, int reason)
{
	if (c->gone)
		return;
	c->gone = true;
	c->closed = true;
	if (c->up && c->proc->alive && c->proc->life == c->life && !c->proc->dying && is_current(c))
		replicator_stream_down(c->proc->r, (uint16_t)c->peer_node, 0, reason);
}

static void deliver(struct conn *c, struct message *m)
{
	struct frame f = {.opcode = m->opcode, .body = m->body, .body_len = m->body_len};

	if (m->close) {
		end_down(c, -ERR_CLOSED);
		return;
	}
	if (c->closed || !c->up || !is_current(c))
		return;
	if (m->payload_len) {
		struct buf *b = buf_heap(m->payload_len);

		memcpy(b->data, m->payload, m->payload_len);
		f.payload = (struct slice){.buf = b, .data = b->data, .len = m->payload_len};
	}
	replicator_frame(c->proc->r, (uint16_t)c->peer_node, 0, &f);
	slice_unref(&f.payload);
}

static void arrive(void *arg)
{
	struct conn *c = arg;
	struct message *m;

	if (sim.blocked[c->peer_node][c->node] && !c->gone) {
		if (!c->held++)
			c->held_us = sim.now_us;
		return;
	}
	m = list_entry(list_pop_front(&c->queue), struct message, link);
	if (!c->gone)
		deliver(c, m);
	message_free(m);
	conn_put(c);
}

static void arrival(struct conn *to, uint64_t at)
{
	to->arrive_us = at = MAX(at, to->arrive_us);
	sim_at(at - sim.now_us, to->proc, arrive, conn_drop, to);
}

static void send(struct conn *to, struct message *m)
{
	uint64_t delay = sim_chance(0.02) ? sim_rand(1000, 20000) : sim_rand(50, 600);

	to->refs++;
	list_push_back(&to->queue, &m->link);
	arrival(to, sim.now_us + delay);
}

static unsigned copies_of(const struct conn *c, uint16_t opcode, const void *body, uint32_t body_len,
			  uint32_t payload_len)
{
	static struct msg_replicate m;
	struct reader r = reader_init(body, body_len);

	if (c->node != spoil.from || c->peer_node != spoil.to || opcode != OP_REPLICATE ||
	    msg_replicate_decode(&r, payload_len, &m) || m.record.kind != RECORD_WRITE)
		return 1;
	spoil.from = 0;
	sim_trace("the record %u/%llu arrives %u times at node %u", m.record.version.tenure,
		  (unsigned long long)m.record.version.seq, spoil.copies, spoil.to);
	return spoil.copies;
}

void conn_send(struct conn *c, uint16_t opcode, uint64_t id, const void *body, uint32_t body_len,
	       const struct slice *payload, unsigned slices)
{
	struct message *m;
	unsigned copies;

	if (c->closed || c->proc->dying || !c->peer)
		return;
	if (opcode == OP_BEACON) { /* each has a name of its own, also within a microsecond (N6) */
		uint64_t name = get_le64(body);

		if (name <= c->proc->beacon)
			sim_fail("node %u sent a beacon with the name of an earlier one", c->node);
		c->proc->beacon = name;
	}
	CHECK(slices <= 1);
	for (copies = copies_of(c, opcode, body, body_len, slices ? payload->len : 0); copies; copies--) {
		m = xcalloc(1, sizeof(*m));
		m->opcode = opcode;
		m->body = xmalloc(body_len ? body_len : 1);
		memcpy(m->body, body, body_len);
		m->body_len = body_len;
		if (slices) {
			m->payload_len = payload->len;
			m->payload = xmalloc(payload->len);
			memcpy(m->payload, payload->data, payload->len);
		}
		send(c->peer, m);
	}
}

static void closed_event(void *arg)
{
	struct conn *c = arg;

	end_down(c, -ERR_CLOSED);
	conn_put(c);
}

static void close_end(struct conn *c)
{
	if (c->closed)
		return;
	c->closed = true;
	c->refs++;
	sim_at(0, c->proc, closed_event, conn_drop, c);
}

void conn_close(struct conn *c, int reason)
{
	struct message *m;

	if (c->closed)
		return;
	close_end(c);
	m = xcalloc(1, sizeof(*m));
	m->close = true;
	send(c->peer, m);
}

bool conn_full(const struct conn *c)
{
	return false;
}
size_t conn_queued_bytes(const struct conn *c)
{
	return 0;
}

/* ---- Pairs --------------------------------------------------------------------------------------
 */

static void up_event(void *arg)
{
	struct conn *c = arg;

	if (!c->closed && !c->gone) {
		c->up = true;
		replicator_stream_up(c->proc->r, (uint16_t)c->peer_node, c->peer_incarnation, 0, c);
	}
	conn_put(c);
}

static struct conn *end_make(struct sim_proc *p, struct sim_proc *peer)
{
	struct conn *c = xcalloc(1, sizeof(*c));

	c->proc = p;
	c->life = p->life;
	c->node = p->node;
	c->peer_node = peer->node;
	c->peer_incarnation = peer->incarnation;
	c->refs = 2; /* its own, and the up event's */
	list_init(&c->queue);
	list_push_back(&conns, &c->link);
	return c;
}

static void pair_make(struct sim_proc *a, struct sim_proc *b)
{
	struct conn *x = end_make(a, b), *y = end_make(b, a);
	uint64_t t = sim_rand(200, 2000);

	x->peer = y;
	y->peer = x;
	/* each side may speak only once both know of each other: messages arrive after `up` */
	x->arrive_us = y->arrive_us = sim.now_us + t + 500;
	sim_at(t, a, up_event, conn_drop, x);
	sim_at(t + sim_rand(0, 400), b, up_event, conn_drop, y);
}

static bool has_pair(unsigned a, unsigned b)
{
	struct conn *c;

	list_for_each(c, &conns, link) if (!c->gone && !c->closed && c->node == a &&
					   c->peer_node == b && sim.proc[a].alive &&
					   c->life == sim.proc[a].life) return true;
	return false;
}

bool sim_net_connected(unsigned a, unsigned b)
{
	return has_pair(a, b) && has_pair(b, a);
}

/* Arrivals that a stall keeps back hold references. */
static void let_go(struct conn *c)
{
	for (; c->held; c->held--)
		c->refs--;
}

static void refused(void *arg)
{
	struct sim_proc *p = sim.running;

	replicator_peer_refused(p->r, (uint16_t)(uintptr_t)arg);
}

/* Lets go of ends that are over, gives up stalled ones, dials what is not connected. */
static void dial(void *arg)
{
	struct conn *c, *tmp;

	list_for_each_safe(c, tmp, &conns, link)
	{
		bool own_life = c->proc->alive && c->life == c->proc->life;

		if (c->held && sim.now_us - c->held_us > STALL_LIMIT_US && !c->closed) {
			close_end(c);
			if (c->peer)
				close_end(c->peer);
		}
		/* A host that came back answers segments of a connection it does not know with a
		 * reset. */
		if (own_life && !c->closed && c->peer && c->peer->gone && c->peer->proc->powered &&
		    !sim.blocked[c->node][c->peer_node] && !sim.blocked[c->peer_node][c->node])
			close_end(c);
		if (!own_life)
			c->gone = c->closed = true;
	}
	list_for_each_safe(c, tmp, &conns, link)
	{
		struct conn *p = c->peer;

		if (!p || !c->gone || !p->gone)
			continue;
		c->peer = p->peer = NULL;
		let_go(c);
		let_go(p);
		if (tmp == p)
			tmp = list_entry(tmp->link.next, struct conn, link);
		conn_put(p);
		conn_put(c);
	}
	for (unsigned a = 1; a <= sim.plan.nodes; a++) {
		for (unsigned b = a + 1; b <= sim.plan.nodes; b++) {
			struct sim_proc *x = &sim.proc[a], *y = &sim.proc[b];

			if (sim.blocked[a][b] || sim.blocked[b][a])
				continue;
			if (x->alive && y->alive && !has_pair(a, b) && !has_pair(b, a) &&
			    x->paused_until <= sim.now_us && y->paused_until <= sim.now_us)
				pair_make(x, y);
			else if (x->alive && !y->alive && y->powered)
				sim_at(sim_rand(100, 3000), x, refused, NULL, (void *)(uintptr_t)b);
			else if (y->alive && !x->alive && x->powered)
				sim_at(sim_rand(100, 3000), y, refused, NULL, (void *)(uintptr_t)a);
		}
	}
	if (arg)
		return;
	sim_at(sim_rand(8000, 40000), NULL, dial, NULL, NULL);
}

void sim_net_start(void)
{
	list_init(&conns);
	spoil.from = 0;
	dial(NULL);
}

/* The kernel of a dead process closes its connections; a host without power does not. */
void sim_net_process_gone(struct sim_proc *p, bool silent)
{
	struct conn *c;

	list_for_each(c, &conns, link)
	{
		if (c->proc != p || c->life != p->life || c->gone)
			continue;
		c->gone = c->closed = true;
		if (silent || !c->peer || c->peer->closed)
			continue;
		if (sim_chance(0.5)) { /* a reset: what is under way is lost */
			close_end(c->peer);
		} else {
			struct message *m = xcalloc(1, sizeof(*m));

			m->close = true;
			send(c->peer, m);
		}
	}
}

void sim_net_block(unsigned from, unsigned to, bool on)
{
	struct conn *c;

	sim.blocked[from][to] = on;
	if (on)
		return;
	list_for_each(c, &conns, link)
	{
		if (c->node != to || c->peer_node != from)
			continue;
		for (; c->held; c->held--)
			arrival(c, sim.now_us + sim_rand(50, 300));
	}
}

void sim_net_cut(unsigned a, unsigned b, bool on)
{
	sim_net_block(a, b, on);
	sim_net_block(b, a, on);
}

void sim_net_spoil(unsigned from, unsigned to, unsigned copies)
{
	spoil.from = from;
	spoil.to = to;
	spoil.copies = copies;
}

void sim_net_reset(unsigned a, unsigned b)
{
	struct conn *c;

	list_for_each(c, &conns,
		      link) if ((c->node == a && c->peer_node == b) ||
				(c->node == b && c->peer_node == a)) if (!c->closed && !c->gone)
		close_end(c);
}

void sim_net_end(void)
{
	struct conn *c, *tmp;

	list_for_each(c, &conns, link) c->gone = c->closed = true;
	list_for_each(c, &conns, link)
	{
		let_go(c);
		c->peer = NULL;
	}
	list_for_each_safe(c, tmp, &conns, link) conn_put(c);
}

void sim_net_describe(char *text, size_t size)
{
	struct conn *c;
	size_t at = 0;

	text[0] = 0;
	list_for_each(c, &conns, link) if (at + 120 < size) at += (size_t)snprintf(
		text + at, size - at, "\n conn %u->%u life %u%s%s%s%s%s", c->node, c->peer_node,
		c->life, c->up ? " up" : "", c->closed ? " closed" : "", c->gone ? " gone" : "",
		c->held ? " held" : "", c->peer && c->peer->gone ? " peer-gone" : "");
}
