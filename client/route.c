/* SPDX-License-Identifier: Apache-2.0 */
/* Where a part goes: the map names the primary's node, the object's number its shard there. One
 * data connection per node and shard, dialled at the first part that needs it, closed after a
 * minute without one. A part that is on its way to a node that is no longer the primary is sent
 * again to the new one; what the old one still answers meets an id that is no longer known. */
#include "client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 256u

static void stream_up(struct link *k, struct conn *conn, const struct wire_hello *peer);
static void stream_down(struct link *k, int reason, const struct wire_refusal *refusal);
static const struct link_ops stream_link_ops = {.up = stream_up, .down = stream_down};

/* ---- Sending ---- */

void route_stream_owes(struct stream *s)
{
	s->used_us = loop_turn_us(s->peer->client->cfg.loop);
	if (!s->owes_us)
		s->owes_us = s->used_us;
	client_tick_arm(s->peer->client);
}

/* It speaks. What it owes counts from here on. */
static void stream_heard(struct stream *s)
{
	if (s->stuck)
		log_info("client", "a node answers again", "node=%u stream=%u", s->peer->node, s->index);
	s->stuck = false;
	s->owes_us = list_empty(&s->sent) && list_empty(&s->waiting)
			     ? 0
			     : loop_turn_us(s->peer->client->cfg.loop);
}

static void stream_send_part(struct stream *s, struct part *p)
{
	struct client *c = p->client;
	struct io_request *q = &p->request;
	struct vobject *o = p->object;
	uint8_t body[64 + IO_MAX_BLOCKS * sizeof(struct fp128)];
	struct writer w = writer_init(body, sizeof(body));

	q->epoch = o->epoch;
	q->replica_gen = o->replica_gen;
	io_request_encode(q, &w);
	CHECK(!w.bad);
	p->id = ++c->part_count << 32 | (uint64_t)(p - c->parts);
	p->stage = PART_SENT;
	p->stream = s;
	list_push_back(&s->sent, &p->link);
	route_stream_owes(s);
	conn_send(s->conn, p->forward ? OP_IO_FORWARD : OP_IO, p->id, body, (uint32_t)w.len, &p->exec.payload,
		  p->exec.payload.len ? 1 : 0);
}

static void stream_flush(struct stream *s)
{
	struct list *l;

	while (s->conn && !conn_full(s->conn) && (l = list_pop_front(&s->waiting))) {
		struct part *p = list_entry(l, struct part, link);

		stream_send_part(s, p);
	}
}

static void stream_lost_parts(struct list *parts)
{
	struct list *l;

	while ((l = list_pop_front(parts)))
		part_retry(list_entry(l, struct part, link), 0);
}

/* ---- Frames ---- */

static void stream_frame(struct conn *conn, const struct frame *f)
{
	struct stream *s = conn_data(conn);
	struct client *c = s->peer->client;
	uint32_t index = (uint32_t)f->id;
	struct reader r = reader_init(f->body, f->body_len);
	struct part *p;
	int rc;

	if (f->opcode != OP_IO_REPLY) {
		conn_close(conn, -ERR_PROTOCOL);
		return;
	}
	stream_heard(s);
	if (index >= c->cfg.ops) {
		forward_answered(c, s, f);
		return;
	}
	p = &c->parts[index];
	if (p->id != f->id || p->stage != PART_SENT || p->stream != s)
		return; /* an answer that nobody waits for any more */
	rc = io_reply_decode(&r, p->request.kind, p->request.offset, p->request.length,
			     f->payload.len, &p->reply);
	if (rc < 0) {
		conn_close(conn, rc);
		return;
	}
	if (p->reply.status == IO_OK && p->request.kind == IO_READ) {
		if (!io_payload_check(f->payload.data, p->request.offset, p->request.length,
				      p->reply.fps)) {
			log_error("client", "a read arrived damaged; it is read again",
				  "node=%u object=%llx offset=%u", s->peer->node,
				  (unsigned long long)p->request.object, p->request.offset);
			part_retry(p, IO_RETRY);
			return;
		}
		p->exec.data = slice_ref(f->payload);
	}
	list_del(&p->link);
	p->id = 0;
	part_answered(p);
}

static void stream_closed(struct conn *conn, int reason)
{
	struct stream *s = conn_data(conn);

	s->conn = NULL;
	stream_lost_parts(&s->sent);
	forward_lost(s->peer->client, s);
	link_conn_closed(s->link, reason);
}

static void stream_drained(struct conn *conn)
{
	stream_flush(conn_data(conn));
}

static const struct conn_ops stream_ops = {
	.on_frame = stream_frame,
	.on_closed = stream_closed,
	.on_drained = stream_drained,
};

static void orphan_frame(struct conn *conn, const struct frame *f)
{
}

static void orphan_closed(struct conn *conn, int reason)
{
}

/* A connection we closed ourselves: nothing of it is of interest. */
static const struct conn_ops orphan_ops = {.on_frame = orphan_frame, .on_closed = orphan_closed};

static void stream_up(struct link *k, struct conn *conn, const struct wire_hello *peer)
{
	struct stream *s = link_data(k);

	s->conn = conn;
	s->used_us = loop_turn_us(s->peer->client->cfg.loop);
	stream_heard(s);
	conn_set(conn, &stream_ops, s);
	stream_flush(s);
}

static void stream_down(struct link *k, int reason, const struct wire_refusal *refusal)
{
	struct stream *s = link_data(k);

	stream_lost_parts(&s->waiting); /* what it owes stays owed: it is not reached */
}

/* ---- Streams and peers ---- */

static void stream_close(struct stream *s)
{
	struct conn *conn = s->conn;

	s->conn = NULL;
	stream_lost_parts(&s->sent);
	stream_lost_parts(&s->waiting);
	forward_lost(s->peer->client, s);
	if (conn) {
		conn_set(conn, &orphan_ops, NULL);
		conn_close(conn, -ERR_CLOSED);
	}
	if (s->link)
		link_destroy(s->link);
	s->link = NULL;
}

static void stream_open(struct stream *s)
{
	struct peer *peer = s->peer;
	struct client *c = peer->client;
	const struct map_node *n = map_node(c->cfg.map, peer->node);
	char uuid[UUID_TEXT], name[64];
	struct link_config cfg = {
		.loop = c->cfg.loop,
		.pool = c->cfg.pool,
		.tls = c->cfg.tls,
		.address = peer->address,
		.send_limit = STREAM_SEND_LIMIT,
		.ops = &stream_link_ops,
		.data = s,
		.hello = {.version_min = WIRE_PROTOCOL,
			  .version_max = WIRE_PROTOCOL,
			  .kind = HELLO_CLIENT_DATA,
			  .flags = c->cfg.plain_data ? HELLO_PLAIN : 0,
			  .cluster = c->cfg.cluster,
			  .self = c->cfg.self,
			  .node = c->cfg.node,
			  .stream = (uint16_t)s->index,
			  .shards = 1,
			  .streams = peer->shards,
			  .nonce = rng_next(loop_rng(c->cfg.loop))},
	};

	if (n && c->cfg.tls) {
		uuid_format(&n->uuid, uuid);
		snprintf(name, sizeof(name), "node:%s", uuid);
		cfg.tls_name = name;
	}
	s->link = link_create(&cfg);
}

static struct peer *peer_find(struct client *c, uint16_t node)
{
	struct peer *p;

	list_for_each(p, &c->peers, link) if (p->node == node) return p;
	return NULL;
}

static struct peer *peer_get(struct client *c, const struct map_node *n)
{
	struct peer *p = peer_find(c, n->id);

	if (p)
		return p;
	if (!is_pow2(n->shards) || n->shards > STREAMS_MAX || !n->address[0])
		return NULL;
	p = xcalloc(1, sizeof(*p));
	p->client = c;
	p->node = n->id;
	p->shards = n->shards;
	p->incarnation = n->incarnation;
	memcpy(p->address, n->address, sizeof(p->address));
	p->streams = xcalloc(p->shards, sizeof(p->streams[0]));
	for (unsigned i = 0; i < p->shards; i++) {
		p->streams[i].peer = p;
		p->streams[i].index = i;
		list_init(&p->streams[i].waiting);
		list_init(&p->streams[i].sent);
	}
	list_push_back(&c->peers, &p->link);
	return p;
}

static void peer_destroy(struct peer *p)
{
	p->client->route_gen++;
	for (unsigned i = 0; i < p->shards; i++)
		stream_close(&p->streams[i]);
	list_del(&p->link);
	free(p->streams);
	free(p);
}

void route_node_changed(struct client *c, uint16_t node)
{
	struct peer *p = peer_find(c, node);
	const struct map_node *n = map_node(c->cfg.map, node);

	if (!p)
		return;
	if (!n || n->state == NODE_REMOVED || n->state == NODE_DEAD || n->shards != p->shards) {
		peer_destroy(p);
		return;
	}
	if (!strcmp(p->address, n->address) && p->incarnation == n->incarnation)
		return;
	p->incarnation = n->incarnation;
	memcpy(p->address, n->address, sizeof(p->address));
	for (unsigned i = 0; i < p->shards; i++)
		if (p->streams[i].link) {
			link_set_address(p->streams[i].link, p->address);
			link_kick(p->streams[i].link);
		}
}

void route_sweep(struct client *c, uint64_t idle_us)
{
	uint64_t now = loop_mono_us(c->cfg.loop);
	struct peer *p;

	list_for_each(p, &c->peers, link) for (unsigned i = 0; i < p->shards; i++)
	{
		struct stream *s = &p->streams[i];

		if (s->link && list_empty(&s->waiting) && list_empty(&s->sent) &&
		    now - s->used_us > idle_us)
			stream_close(s);
	}
}

void route_fini(struct client *c)
{
	while (!list_empty(&c->peers))
		peer_destroy(list_first(&c->peers, struct peer, link));
}

/* ---- Routing ---- */

static struct stream *stream_of(struct client *c, const struct map_node *n, uint64_t object)
{
	struct peer *peer = peer_get(c, n);

	return peer ? &peer->streams[object_shard(object, peer->shards)] : NULL;
}

struct stream *route_primary_stream(struct client *c, const struct map_object *mo, bool *local)
{
	const struct map_node *n = map_primary_node(c->cfg.map, mo);
	struct stream *s;

	*local = n && n->id == c->cfg.node && c->cfg.hooks->local;
	if (!n || *local)
		return NULL;
	s = stream_of(c, n, mo->id);
	if (s && !s->link)
		stream_open(s);
	return s;
}

/* Another member's node, to go round a primary that says nothing; NULL: there is none that speaks. */
static struct stream *detour(struct client *c, const struct vobject *o)
{
	const struct map_object *mo = map_object(c->cfg.map, o->id);

	for (unsigned i = 0; mo && i < mo->member_count; i++) {
		const struct map_node *n = map_member_node(c->cfg.map, &mo->member[i]);
		struct stream *s;

		if (i == mo->primary || !n || n->state != NODE_ACTIVE || n->id == c->cfg.node)
			continue;
		s = stream_of(c, n, o->id);
		if (s && s != o->stream && !s->stuck)
			return s;
	}
	return NULL;
}

/* Every part on it is sent again another way, if there is one. */
static void stream_detour(struct stream *s)
{
	struct client *c = s->peer->client;
	struct list parts = LIST_INIT(parts), *l;

	s->stuck = true;
	log_info("client", "a node does not answer: its requests go through another one", "node=%u stream=%u",
		 s->peer->node, s->index);
	list_splice_back(&parts, &s->sent);
	list_splice_back(&parts, &s->waiting);
	while ((l = list_pop_front(&parts))) {
		struct part *p = list_entry(l, struct part, link);

		c->stats.retries++;
		part_make_ready(p);
	}
	forward_lost(c, s);
}

bool route_tick(struct client *c, uint64_t now)
{
	bool owed = false;
	struct peer *p;

	list_for_each(p, &c->peers, link) for (unsigned i = 0; i < p->shards; i++)
	{
		struct stream *s = &p->streams[i];

		if (!s->owes_us)
			continue;
		if (list_empty(&s->sent) && list_empty(&s->waiting)) {
			if (s->conn && !s->stuck)
				s->owes_us = 0;
			continue;
		}
		owed = true;
		if (!s->stuck && now - s->owes_us >= CLIENT_STUCK_US)
			stream_detour(s);
	}
	return owed;
}

/* Fills in the object's route by the map; false when there is no primary to go to now. */
static bool route_resolve(struct client *c, struct vobject *o)
{
	const struct map_object *mo;
	const struct map_node *n;
	struct peer *peer;

	if (o->route_gen == c->route_gen)
		return true;
	mo = map_object(c->cfg.map, o->id);
	if (!mo || mo->primary >= mo->member_count)
		return false;
	n = map_primary_node(c->cfg.map, mo);
	if (!n)
		return false;
	if (n->id == c->cfg.node && c->cfg.hooks->local) {
		o->stream = NULL;
	} else {
		peer = peer_get(c, n);
		if (!peer)
			return false;
		o->stream = &peer->streams[object_shard(o->id, peer->shards)];
	}
	o->epoch = mo->epoch;
	o->replica_gen = mo->member[mo->primary].gen;
	o->route_gen = c->route_gen;
	return true;
}

static void part_local_resume(struct wait *w, int rc)
{
	struct part *p = container_of(w, struct part, wait);

	if (rc < 0)
		p->reply = (struct io_reply){.status = IO_RETRY};
	part_answered(p);
}

static void route_local(struct part *p)
{
	struct client *c = p->client;
	int rc;

	p->request.epoch = p->object->epoch;
	p->request.replica_gen = p->object->replica_gen;
	p->stage = PART_LOCAL;
	p->wait.resume = part_local_resume;
	c->stats.local++;
	rc = c->cfg.hooks->local(c->cfg.ctx, &p->exec, &p->wait);
	if (rc != PENDING)
		part_local_resume(&p->wait, rc);
}

void route_part(struct part *p)
{
	struct client *c = p->client;
	struct vobject *o = p->object;
	struct volume *v = o->volume;
	struct stream *s;

	if (p->vio->error) {
		part_fail(p, p->vio->error);
		return;
	}
	if (volume_io_writes(p->request.kind)) {
		if (v->attach_state == ATTACH_FENCED) {
			part_fail(p, -ERR_FENCED);
			return;
		}
		p->request.low_water = list_first(&o->writes, struct part, order)->request.request;
	} else {
		p->request.attachment = v->attach_state == ATTACH_OK ? v->attachment : 0;
		p->request.attach_epoch = p->request.attachment ? v->attach_epoch : 0;
	}
	if (!route_resolve(c, o)) {
		part_retry(p, 0);
		return;
	}
	s = o->stream;
	p->forward = false;
	if (!s) {
		route_local(p);
		return;
	}
	if (s->stuck) {
		struct stream *other = detour(c, o);

		p->forward = other != NULL;
		s = other ? other : s;
	}
	c->stats.remote++;
	if (!s->link) {
		stream_open(s);
		s->used_us = loop_turn_us(c->cfg.loop);
	}
	if (s->conn && !conn_full(s->conn) && list_empty(&s->waiting)) {
		stream_send_part(s, p);
		return;
	}
	p->stage = PART_LINK;
	p->stream = s;
	list_push_back(&s->waiting, &p->link);
	route_stream_owes(s);
}

void route_object_changed(struct vobject *o)
{
	struct client *c = o->volume->client;
	struct part *p, *tmp;

	if (list_empty(&o->parts))
		return;
	o->route_gen = 0;
	if (!route_resolve(c, o))
		return; /* what is under way may still be answered; what waits is tried again */
	list_for_each_safe(p, tmp, &o->parts, by_object) switch ((enum part_stage)p->stage)
	{
	case PART_RETRY:
		part_make_ready(p);
		break;
	case PART_LINK:
	case PART_SENT:
		if (p->stream != o->stream) {
			c->stats.retries++;
			part_make_ready(p);
		}
		break;
	default:
		break;
	}
}
