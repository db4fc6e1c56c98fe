/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: one TCP connection of one stream between two node incarnations. Beacons and grants make
 * leases, fences end them early, silence makes suspicion. Nothing here decides about an object: a
 * lease is only good for objects joined on the session that granted it (N4). */
#include "cluster/replica_impl.h"

#include <stdlib.h>

#define HEARD_US 2500000u /* an idle peer sends a beacon a second */

unsigned stream_for(struct replicator *r, uint64_t object, uint16_t node)
{
	const struct map_node *n = map_node(r->map, node);
	unsigned theirs = n && n->shards ? n->shards : 1;

	return object_shard(object, MIN(MAX(theirs, r->shards), SHARDS_MAX));
}

struct session *session_for(struct replicator *r, const struct object *o, uint16_t node)
{
	if (!node || node > NODE_IDS_MAX)
		return NULL;
	return r->peers[node].stream[stream_for(r, o->id, node)];
}

void session_send(struct session *s, uint16_t opcode, struct writer *w, const struct slice *payload)
{
	if (s->conn && !w->bad)
		conn_send(s->conn, opcode, 0, w->data, (uint32_t)w->len, payload, payload ? 1 : 0);
}

/* The peer broke the protocol, or what it sent does not match its fingerprints: the connection
 * ends, and with it all joins on it. The end comes back through replicator_stream_down. */
void session_fail(struct session *s, int reason)
{
	log_warn("replica", "session ended", "node=%u stream=%u reason=%s", s->node, s->stream,
		 err_name(reason));
	if (s->conn)
		conn_close(s->conn, reason);
}

/* ---- Leases -------------------------------------------------------------------------------------
 */

bool session_lease_valid(const struct session *s, uint64_t now)
{
	return s->conn && now < s->lease_end_us;
}

/* The time is the beacon's name as well, so no two have the same, not even while the clock stands (N6). */
void session_beacon(struct session *s, uint64_t now)
{
	uint8_t body[8];
	struct writer w = writer_init(body, sizeof(body));

	s->asked = s->r->asked = MAX(now, s->r->asked + 1);
	msg_beacon_encode(s->asked, &w);
	s->beacon_us = now;
	if (!s->unanswered_us)
		s->unanswered_us = now;
	session_send(s, OP_BEACON, &w, NULL);
}

/* An operation found no valid lease: ask now, but not for each operation anew. */
void session_want_lease(struct session *s)
{
	uint64_t now = now_us(s->r);

	s->used_us = now;
	if (now - s->beacon_us >= 20000)
		session_beacon(s, now);
}

static int on_beacon(struct session *s, struct reader *r)
{
	uint64_t t;
	uint8_t body[8];
	struct writer w = writer_init(body, sizeof(body));

	if (msg_beacon_decode(r, &t))
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < s->our_count; i++) {
		struct group *g = replica_group(s->r, s->ours[i].group);

		if (g)
			session_credit_top_up(s, g);
	}
	/* N5: a peer that owes us FENCED may believe in a tenure that has ended. */
	if (s->fences_owed && rule(RULE_FENCE))
		return 0;
	if (!s->fences_owed)
		s->granted_us = now_us(s->r);
	s->r->stats.grants++;
	msg_beacon_encode(t, &w);
	session_send(s, OP_GRANT, &w, NULL);
	return 0;
}

static int on_grant(struct session *s, struct reader *r)
{
	uint64_t t;

	/* A grant for a beacon of the future would be a lease without end. */
	if (msg_beacon_decode(r, &t) || t > s->asked)
		return -ERR_PROTOCOL;
	s->unanswered_us = 0;
	s->confirmed = MAX(s->confirmed, t);
	s->lease_end_us =
		MAX(s->lease_end_us, t + ms(s->r->times->lease_ms) * (rule(RULE_LEASE_SHORT) ? 1 : 4));
	s->r->gate_open = true;
	replica_arm(s->r);
	return 0;
}

/* ---- Fences -------------------------------------------------------------------------------------
 */

static void hold_free(struct hold *h)
{
	if (h->owed)
		h->session->fences_owed--;
	list_del(&h->in_object);
	list_del(&h->in_session);
	free(h);
}

void hold_add(struct object *o, struct session *s, uint32_t tenure)
{
	struct hold *h;

	list_for_each(h, &o->holds, in_object)
	{
		if (h->session != s)
			continue;
		/* The peer itself has moved on, so it needs no fence for what was before. */
		if (h->owed) {
			h->owed = false;
			s->fences_owed--;
		}
		h->tenure = tenure;
		return;
	}
	h = xcalloc(1, sizeof(*h));
	h->object = o;
	h->session = s;
	h->tenure = tenure;
	list_push_back(&o->holds, &h->in_object);
	list_push_back(&s->holds, &h->in_session);
}

void fence_older(struct object *o)
{
	struct hold *h;
	uint8_t body[16];

	list_for_each(h, &o->holds, in_object)
	{
		struct msg_fence m = {.object = o->id, .seen = o->seen};
		struct writer w = writer_init(body, sizeof(body));

		if (h->tenure >= o->seen || !h->session->conn || h->owed)
			continue;
		h->owed = true;
		h->session->fences_owed++;
		msg_fence_encode(&m, &w);
		if (rule(RULE_FENCE))
			session_send(h->session, OP_FENCE, &w, NULL);
	}
}

static int on_fence(struct session *s, struct reader *r)
{
	struct msg_fence m;
	struct object *o;
	uint8_t body[16];
	struct writer w = writer_init(body, sizeof(body));

	if (msg_fence_decode(r, &m))
		return -ERR_PROTOCOL;
	o = object_find(s->r, m.object);
	if (o && m.seen) {
		o->stopped = MAX(o->stopped, m.seen - 1);
		if (o->primary && o->primary->tenure < m.seen && rule(RULE_FENCED))
			primary_end(o, "fenced by a member that has seen a later tenure");
	}
	msg_fence_encode(&m, &w);
	session_send(s, OP_FENCED, &w, NULL);
	return 0;
}

static int on_fenced(struct session *s, struct reader *r)
{
	struct msg_fence m;
	struct hold *h, *tmp;
	struct object *o;

	if (msg_fence_decode(r, &m))
		return -ERR_PROTOCOL;
	o = object_find(s->r, m.object);
	if (!o)
		return 0;
	/* Of the object, which has few; the session has one for each object that the peer has joined. */
	list_for_each_safe(h, tmp, &o->holds, in_object)
	{
		if (h->session != s || h->tenure >= m.seen)
			continue;
		hold_free(h);
		if (o->primary)
			primary_check(o->primary);
	}
	return 0;
}

/* T2 b: nobody who joined this object here in a lower tenure can believe in a lease any more. */
bool holds_clear(struct object *o, uint32_t tenure, uint64_t now)
{
	struct hold *h;

	if (!rule(RULE_GRACE))
		return true;
	list_for_each(h, &o->holds, in_object)
	{
		const struct session *s = h->session;

		if (h->tenure >= tenure || o->r->peers[s->node].incarnation > s->incarnation)
			continue;
		if (!s->granted_us || now >= s->granted_us + ms(o->r->times->grace_ms))
			continue;
		return false;
	}
	return true;
}

void holds_drop_all(struct object *o)
{
	struct hold *h, *tmp;

	list_for_each_safe(h, tmp, &o->holds, in_object) hold_free(h);
}

/* ---- Acknowledgements: one frame per session and turn
 * -------------------------------------------- */

static uint16_t log_fill(struct replicator *r, uint32_t *rate)
{
	struct group *g;
	uint16_t fill = 0;

	*rate = UINT32_MAX;
	list_for_each(g, &r->groups, link)
	{
		fill = MAX(fill, g->fill);
		*rate = MIN(*rate, g->destage_rate);
	}
	return fill;
}

static void send_acks(struct session *s)
{
	static _Thread_local struct msg_ack m;
	static _Thread_local uint8_t body[12 + 12 * SESSION_CREDITS + 40 * MSG_ACK_ENTRIES_MAX];
	struct writer w = writer_init(body, sizeof(body));
	struct list *n;

	m.entry_count = m.credit_count = 0;
	m.fill = s->fill_told = log_fill(s->r, &m.destage_rate);
	while (m.entry_count < MSG_ACK_ENTRIES_MAX && (n = list_pop_front(&s->acks))) {
		struct inbound *in = list_entry(n, struct inbound, ack_link);
		struct object *o = container_of(in, struct object, in);

		m.entries[m.entry_count++] = (struct msg_ack_entry){
			.key = {.object = o->id, .tenure = in->tenure, .join = in->join},
			.durable = in->durable,
			.copies = in->copies,
			.bytes = in->bytes,
		};
	}
	for (unsigned i = 0; i < s->our_count && s->credits_changed; i++)
		m.credits[m.credit_count++] = (struct msg_credit){.group = s->ours[i].group,
								  .full = s->ours[i].full,
								  .granted = s->ours[i].granted};
	s->credits_changed = false;
	msg_ack_encode(&m, &w);
	session_send(s, OP_ACK, &w, NULL);
}

void session_acks(struct replicator *r)
{
	struct session *s;

	list_for_each(s, &r->sessions, link) while (!list_empty(&s->acks) || s->credits_changed)
		send_acks(s);
}

static int on_ack(struct session *s, struct reader *r)
{
	static _Thread_local struct msg_ack m;
	uint64_t now = now_us(s->r);

	if (msg_ack_decode(r, &m))
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < m.credit_count; i++) {
		struct credit *c = credit_find(s->theirs, &s->their_count, m.credits[i].group);

		if (!c)
			continue;
		c->granted = MAX(c->granted, m.credits[i].granted);
		c->full = m.credits[i].full;
		c->full_us = c->full ? now : 0;
	}
	s->fill = m.fill;
	s->destage_rate = m.destage_rate;
	for (unsigned i = 0; i < m.entry_count; i++)
		primary_ack(s, &m.entries[i], now);
	s->r->stats.acks++;
	s->r->gate_open = true;
	replica_arm(s->r);
	return 0;
}

/* ---- Streams ------------------------------------------------------------------------------------
 */

void replicator_stream_up(struct replicator *r, uint16_t node, uint32_t incarnation,
			  uint16_t stream, struct conn *c)
{
	struct peer *p;
	struct session *s;
	struct object *o;

	if (!node || node > NODE_IDS_MAX || stream >= SHARDS_MAX || node == r->node)
		return;
	p = &r->peers[node];
	if (incarnation < p->incarnation) { /* N1: a process of the past */
		conn_close(c, -ERR_STALE);
		return;
	}
	if (p->stream[stream])
		replicator_stream_down(r, node, stream, -ERR_CLOSED);
	p->refused = false;
	p->incarnation = incarnation;
	s = xcalloc(1, sizeof(*s));
	s->r = r;
	s->conn = c;
	s->node = node;
	s->stream = stream;
	s->incarnation = incarnation;
	s->heard_us = p->heard_us[stream] = now_us(r);
	s->used_us = s->heard_us;
	p->gone_us[stream] = 0;
	list_init(&s->holds);
	list_init(&s->members);
	list_init(&s->acks);
	list_push_back(&r->sessions, &s->link);
	p->stream[stream] = s;
	session_beacon(s, s->heard_us);
	list_for_each(o, &r->objects, link)
	{
		if (o->primary && stream_for(r, o->id, node) == stream)
			primary_session_up(o->primary, s);
		else if (o->listed)
			object_busy(o); /* its primary may be a newer process now */
	}
}

static void session_free(struct session *s)
{
	struct hold *h, *tmp;

	list_for_each_safe(h, tmp, &s->holds, in_session) hold_free(h);
	list_del(&s->link);
	free(s);
}

void replicator_stream_down(struct replicator *r, uint16_t node, uint16_t stream, int reason)
{
	struct peer *p;
	struct session *s;
	struct member *m;
	struct hold *h;
	struct inbound *in;
	struct object *o;

	if (!node || node > NODE_IDS_MAX || stream >= SHARDS_MAX)
		return;
	p = &r->peers[node];
	s = p->stream[stream];
	if (reason == -ECONNREFUSED)
		replicator_peer_refused(r, node);
	if (!s)
		return;
	p->stream[stream] = NULL;
	p->gone_us[stream] = now_us(r);
	s->conn = NULL;
	s->ended_us = p->gone_us[stream];
	s->fences_owed = 0;
	list_for_each(h, &s->holds, in_session) h->owed = false;
	while (list_pop_front(&s->acks))
		;
	while (!list_empty(&s->members)) {
		m = list_first(&s->members, struct member, in_session);
		primary_member_down(m);
	}
	list_for_each(o, &r->objects, link)
	{
		in = &o->in;
		if (in->session == s && in->state != IN_NONE)
			inbound_void(o);
		if (o->listed)
			object_busy(o);
	}
	/* Windows that the peer did not use come back. */
	for (unsigned i = 0; i < s->our_count; i++) {
		struct group *g = replica_group(r, s->ours[i].group);

		if (g)
			store_grant_return(g->store, credit_left(&s->ours[i]));
	}
	s->our_count = 0;
	list_del(&s->link);
	list_push_back(&r->ghosts, &s->link);
	r->gate_open = true;
	replica_arm(r);
}

void replicator_peer_refused(struct replicator *r, uint16_t node)
{
	struct object *o;

	if (!node || node > NODE_IDS_MAX)
		return;
	r->peers[node].refused = true;
	r->peers[node].refused_us = now_us(r);
	list_for_each(o, &r->objects, link) if (o->listed) object_busy(o);
}

/* The member of a primary here that answers under this key, over this session; NULL: of a join that ended. */
static struct member *answering(struct session *s, const struct msg_key *k)
{
	struct object *o = object_find(s->r, k->object);

	return o && o->primary && o->primary->tenure == k->tenure ? primary_member(o->primary, s, k->join)
								  : NULL;
}

static int on_versions(struct session *s, struct reader *r)
{
	static _Thread_local struct msg_versions v;
	struct member *m;

	if (msg_versions_decode(r, &v))
		return -ERR_PROTOCOL;
	if (!v.answer) {
		target_versions(s, &v);
		return 0;
	}
	m = answering(s, &v.key);
	if (m && m->fill)
		fill_versions(m, &v);
	return 0;
}

static int on_manifest(struct session *s, struct reader *r)
{
	static _Thread_local struct msg_manifest x;
	struct member *m;

	if (msg_manifest_decode(r, &x))
		return -ERR_PROTOCOL;
	if (!x.answer) {
		target_manifest(s, &x);
		return 0;
	}
	m = answering(s, &x.key);
	if (m && m->fill)
		fill_manifest(m, &x);
	else if (m)
		audit_manifest(m, &x);
	return 0;
}

/* To whom it is for. What is wrong with it, or 0; that it comes too late is not wrong. */
static int dispatch(struct session *s, const struct frame *f)
{
	static _Thread_local union {
		struct msg_join join;
		struct msg_joined joined;
		struct msg_stale stale;
		struct msg_replicate replicate;
		struct msg_repair_read repair_read;
		struct msg_damaged damaged;
		struct msg_repair_data repair_data;
	} m;
	struct reader in = reader_init(f->body, f->body_len);
	int rc;

	switch (f->opcode) {
	case OP_BEACON:
		return on_beacon(s, &in);
	case OP_GRANT:
		return on_grant(s, &in);
	case OP_FENCE:
		return on_fence(s, &in);
	case OP_FENCED:
		return on_fenced(s, &in);
	case OP_ACK:
		return on_ack(s, &in);
	case OP_VERSIONS:
		return on_versions(s, &in);
	case OP_MANIFEST:
		return on_manifest(s, &in);
	case OP_JOIN:
		if (!(rc = msg_join_decode(&in, &m.join)))
			inbound_join(s, &m.join);
		return rc;
	case OP_JOINED:
		if (!(rc = msg_joined_decode(&in, &m.joined)))
			primary_joined(s, &m.joined);
		return rc;
	case OP_STALE:
		if (!(rc = msg_stale_decode(&in, &m.stale)))
			primary_stale(s, &m.stale);
		return rc;
	case OP_REPLICATE:
		if (!(rc = msg_replicate_decode(&in, f->payload.len, &m.replicate)))
			inbound_replicate(s, &m.replicate, f->payload);
		return rc;
	case OP_REPAIR_READ:
		if (!(rc = msg_repair_read_decode(&in, &m.repair_read)))
			inbound_repair_read(s, &m.repair_read);
		return rc;
	case OP_REPAIR_DATA:
		if (!(rc = msg_repair_data_decode(&in, f->payload.len, &m.repair_data)))
			op_repair_data(s, &m.repair_data, f->payload);
		return rc;
	case OP_DAMAGED:
		if (!(rc = msg_damaged_decode(&in, &m.damaged)))
			damage_asked(s, &m.damaged);
		return rc;
	default:
		return -ERR_PROTOCOL;
	}
}

void replicator_frame(struct replicator *r, uint16_t node, uint16_t stream, const struct frame *f)
{
	struct session *s =
		node <= NODE_IDS_MAX && stream < SHARDS_MAX ? r->peers[node].stream[stream] : NULL;
	int rc;

	if (!s || !s->conn)
		return;
	s->heard_us = r->peers[node].heard_us[stream] = now_us(r);
	rc = dispatch(s, f);
	if (rc)
		session_fail(s, rc);
}

/* ---- Suspicion ----------------------------------------------------------------------------------
 */

/* S1, seen from a member: the object's primary at `node` may be gone. Only ever leads to a
 * proposal. */
bool peer_suspect(struct replicator *r, const struct object *o, uint16_t node, uint64_t now)
{
	const struct peer *p = &r->peers[node];
	unsigned stream = stream_for(r, o->id, node);
	const struct map_node *n = map_node(r->map, node);
	uint64_t heard = MAX(p->heard_us[stream], r->start_us);

	if (p->incarnation > o->config.primary_incarnation ||
	    (n && n->incarnation > o->config.primary_incarnation))
		return true;
	if (p->refused && !p->stream[stream])
		return true;
	return now - heard >= ms(r->times->silence_ms) && rule(RULE_SUSPECT);
}

bool replicator_hears(struct replicator *r, uint16_t node)
{
	const struct map_node *n = map_node(r->map, node);
	bool member = n && n->state == NODE_ACTIVE;
	unsigned streams = member ? MIN(MAX((unsigned)n->shards, r->shards), SHARDS_MAX) : 0;
	uint64_t now = now_us(r);

	if (!streams || node > NODE_IDS_MAX)
		return false;
	for (unsigned i = r->shard; i < streams; i += r->shards) {
		const struct session *s = r->peers[node].stream[i];

		if (!s || now - s->heard_us >= HEARD_US)
			return false;
	}
	return true;
}

uint64_t replicator_silent_us(struct replicator *r, uint16_t node)
{
	uint64_t last = 0;

	for (unsigned i = 0; node <= NODE_IDS_MAX && i < SHARDS_MAX; i++)
		if (r->peers[node].stream[i])
			last = MAX(last, r->peers[node].stream[i]->heard_us);
	return last ? now_us(r) - last : UINT64_MAX;
}

void session_tick(struct replicator *r, uint64_t now)
{
	struct session *s, *tmp;
	struct member *m;
	uint32_t rate;
	uint16_t fill = log_fill(r, &rate);

	list_for_each(s, &r->sessions, link)
	{
		/* Peers that hold back because of our log hear that it has room again. */
		if (fill + 300 < s->fill_told || fill > s->fill_told + 300) {
			s->credits_changed = true;
			replica_arm(r);
		}
		uint32_t every =
			now - s->used_us < USED_US ? r->times->beacon_ms : r->times->beacon_idle_ms;

		/* half a tick early rather than half a tick late */
		if (now + TICK_US / 2 - s->beacon_us >= ms(every))
			session_beacon(s, now);
		if (s->unanswered_us && now - s->unanswered_us >= ms(r->times->ack_ms))
			list_for_each(m, &s->members, in_session) object_busy(m->primary->object);
		if (now - s->heard_us >= ms(r->times->silence_ms) &&
		    now - s->heard_us < ms(r->times->silence_ms) + 4 * TICK_US) {
			struct object *o;

			list_for_each(o, &r->objects, link) if (o->listed) object_busy(o);
		}
	}
	list_for_each_safe(s, tmp, &r->ghosts, link)
	{
		if (now >= s->ended_us + ms(r->times->grace_ms))
			session_free(s);
	}
}
