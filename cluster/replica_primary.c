/* SPDX-License-Identifier: Apache-2.0 */
/* A tenure: from the epoch record over the joins to serving, and its end. Commits are computed over
 * want = the members that are `in`, and those whose promotion was proposed and is unresolved (C1).
 * A configuration changes only by applied map changes, never because something was proposed. */
#include "cluster/replica_impl.h"

#include <stdlib.h>

#define JOIN_AGAIN_US 50000u

/* ---- Proposals ----------------------------------------------------------------------------------
 */

static struct object_change change_for(struct object *o, enum object_op op)
{
	return (struct object_change){.op = op,
				      .object = o->id,
				      .epoch = o->config.epoch,
				      .node = o->r->node,
				      .incarnation = o->r->incarnation,
				      .proposer = o->r->node};
}

void propose_drop(struct object *o, const struct map_member *who, bool has_less)
{
	struct object_change c = change_for(o, OBJ_DROP);

	c.replica = *who;
	c.keep = has_less;
	o->r->stats.drops++;
	replica_propose(o->r, &c);
}

void propose_takeover(struct object *o)
{
	struct object_change c = change_for(o, OBJ_TAKEOVER);

	replica_propose(o->r, &c);
}

/* An unsure object: a member of I has more than this replica, so it is the one to go on from. */
static void propose_better(struct member *m)
{
	struct object *o = m->primary->object;
	struct object_change c = change_for(o, OBJ_TAKEOVER);
	const struct map_node *n = map_node(o->r->map, m->node);

	c.keep = 1;
	c.replica = (struct map_member){.group = m->id.group};
	c.node = m->node;
	c.incarnation = n ? n->incarnation : 0;
	replica_propose(o->r, &c);
}

static void propose_promote(struct member *m)
{
	struct object *o = m->primary->object;
	struct object_change c = change_for(o, OBJ_PROMOTE);

	c.replica = m->id;
	if (rule(RULE_WANT)) {
		m->want = true; /* from this instant on (C1) */
		m->promote_epoch = o->config.epoch;
	}
	o->r->stats.promotions++;
	replica_propose(o->r, &c);
}

/* ---- Members ------------------------------------------------------------------------------------
 */

struct member *primary_member(struct primary *p, const struct session *s, uint32_t join)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].session == s && p->member[i].join == join &&
		    p->member[i].state != MEMBER_IDLE)
			return &p->member[i];
	return NULL;
}

/* The join is void: nothing that was sent in it counts, and nothing is remembered of a catch-up
 * (Y5). */
void member_unjoin(struct member *m, uint64_t retry_us)
{
	if (m->fill)
		fill_end(m);
	if (m->session) {
		m->session->unacked_bytes -=
			MIN(m->bytes_sent - m->bytes_acked, m->session->unacked_bytes);
		list_del(&m->in_session);
	}
	m->session = NULL;
	m->state = MEMBER_IDLE;
	m->bytes_sent = m->bytes_acked = 0;
	m->retry_us = retry_us;
	m->copies_sent = m->copies_acked = 0;
	object_busy(m->primary->object);
}

void primary_member_down(struct member *m)
{
	member_unjoin(m, 0);
}

static void join(struct member *m)
{
	struct primary *p = m->primary;
	struct object *o = p->object;
	struct session *s = session_for(o->r, o, m->node);
	uint8_t body[64 + 12 * EPOCHS_MAX];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_join j = {.key = {.object = o->id, .tenure = p->tenure, .join = ++p->joins},
			     .gen = m->id.gen,
			     .group = m->id.group,
			     .group_incarnation = m->id.group_incarnation,
			     .syncing = !m->want,
			     .unsure = o->config.unsure,
			     .last = p->last,
			     .commit = p->commit,
			     .epoch_count = p->header.epoch_count};

	if (!s || m->state != MEMBER_IDLE || p->state == PRIMARY_EPOCH ||
	    p->state == PRIMARY_TAIL || p->state == PRIMARY_ENDED)
		return;
	memcpy(j.epochs, p->header.epochs, sizeof(j.epochs));
	msg_join_encode(&j, &w);
	m->session = s;
	list_push_back(&s->members, &m->in_session);
	m->state = MEMBER_JOINING;
	m->join = p->joins;
	m->as_syncing = j.syncing;
	m->since_us = m->ack_us = now_us(o->r);
	session_send(s, OP_JOIN, &w, NULL);
}

static void join_all(struct primary *p)
{
	uint64_t now = now_us(p->r);

	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].state == MEMBER_IDLE && now >= p->member[i].retry_us)
			join(&p->member[i]);
}

void primary_session_up(struct primary *p, struct session *s)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].node == s->node)
			join(&p->member[i]);
	object_busy(p->object);
}

/* ---- Sending ------------------------------------------------------------------------------------
 */

/* The blocks of pages that are not skipped, gathered from the payload. Contiguous in all but rare
 * cases: a run of whole pages is cut out of the middle only when a page between two current ones is
 * stale. */
static bool payload_without(const struct outgoing *out, uint8_t skip, struct replicator *r,
			    struct slice *cut, struct fp128 *fps, unsigned *count)
{
	const struct record *c = &out->record;
	uint32_t first = c->block >> PAGE_SHIFT, n = 0;
	struct buf *b;

	for (uint32_t i = 0; i < c->blocks; i++)
		n += !(skip >> (((c->block + i) >> PAGE_SHIFT) - first) & 1);
	*count = n;
	*cut = (struct slice){0};
	if (!n)
		return true;
	b = buf_get(r->pool, n * BLOCK_SIZE);
	if (!b)
		return false;
	n = 0;
	for (uint32_t i = 0; i < c->blocks; i++) {
		if (skip >> (((c->block + i) >> PAGE_SHIFT) - first) & 1)
			continue;
		memcpy(b->data + n * BLOCK_SIZE, out->payload.data + i * BLOCK_SIZE, BLOCK_SIZE);
		fps[n++] = out->fps[i];
	}
	*cut = (struct slice){.buf = b, .data = b->data, .len = n * BLOCK_SIZE};
	return true;
}

void primary_send(struct primary *p, struct member *m, struct outgoing *out)
{
	static _Thread_local uint8_t body[MSG_REPLICATE_MAX];
	static _Thread_local struct fp128 fps[RECORD_BLOCKS_MAX];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_replicate msg = {.key = {p->object->id, p->tenure, m->join},
				    .record = out->record};
	struct slice cut = {0};
	uint64_t cost;
	bool skip_all = false;

	if (m->fill) {
		struct credit *c =
			credit_find(m->session->theirs, &m->session->their_count, m->id.group);

		/* Y5: out of credit, it goes as skip and its pages are not current any more. */
		cost = out->record.kind == RECORD_WRITE
			       ? (uint64_t)out->record.blocks * STORE_BYTES_PER_BLOCK
			       : 0;
		skip_all = !m->want && cost && (!c || c->granted - c->spent < cost);
		msg.record.skip_mask = fill_skip_mask(m->fill, &out->record, skip_all);
	}
	msg.record.commit = p->commit;
	if (out->record.kind == RECORD_WRITE && msg.record.skip_mask) {
		if (!payload_without(out, msg.record.skip_mask, p->r, &cut, fps, &msg.fp_count)) {
			msg.record.skip_mask = fill_skip_mask(m->fill, &out->record, true);
			msg.fp_count = 0;
		}
		msg_replicate_encode(&msg, fps, &w);
	} else {
		msg.fp_count = out->record.kind == RECORD_WRITE ? out->record.blocks : 0;
		if (msg.fp_count)
			cut = slice_ref(out->payload);
		msg_replicate_encode(&msg, out->fps, &w);
	}
	if (msg.fp_count) {
		struct credit *c =
			credit_find(m->session->theirs, &m->session->their_count, m->id.group);

		if (c)
			c->spent += (uint64_t)msg.fp_count * STORE_BYTES_PER_BLOCK;
	}
	session_send(m->session, OP_REPLICATE, &w, cut.len ? &cut : NULL);
	m->bytes_sent += MSG_RECORD_BYTES + cut.len;
	m->session->unacked_bytes += MSG_RECORD_BYTES + cut.len;
	slice_unref(&cut);
	if (m->acked.seq + 1 >= out->record.version.seq || !m->ack_us)
		m->ack_us = now_us(p->r);
	p->r->stats.replicated++;
	/* Y5: the stream never waits for a replica that is not counted. */
	if (!m->want && m->session->unacked_bytes > SESSION_BYTES_MAX)
		member_unjoin(m, now_us(p->r) + 1000000);
}

/* W2: kept until all of want have it. The caller has started the append here. */
void primary_append(struct primary *p, struct outgoing *out)
{
	p->last = out->record.version;
	list_push_back(&p->outgoing, &out->link);
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].state == MEMBER_JOINED)
			primary_send(p, &p->member[i], out);
	p->traffic_us = loop_turn_us(p->r->loop);
	object_busy(p->object);
}

/* The watermark, when no record carries it (W4). */
void primary_announce(struct primary *p)
{
	uint8_t body[160];

	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];
		struct writer w = writer_init(body, sizeof(body));
		struct msg_replicate msg = {.key = {p->object->id, p->tenure, m->join},
					    .record = {.commit = p->commit}};

		if (m->state != MEMBER_JOINED)
			continue;
		msg_replicate_encode(&msg, NULL, &w);
		session_send(m->session, OP_REPLICATE, &w, NULL);
	}
	p->announced = p->commit;
}

/* ---- Commit -------------------------------------------------------------------------------------
 */

static uint64_t own_durable_seq(const struct object *o)
{
	return MAX(store_durable(o->store).seq, store_commit_version(o->store).seq);
}

/* What is durable here and at all of want, at most `last`. */
static uint64_t settled_seq(struct primary *p)
{
	uint64_t seq = MIN(own_durable_seq(p->object), p->last.seq);

	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];

		if (!m->want || (!rule(RULE_ACK_ALL) && p->state == PRIMARY_SERVE))
			continue;
		seq = MIN(seq, m->state == MEMBER_JOINED || p->state == PRIMARY_SERVE ? m->acked.seq
										      : 0);
	}
	return seq;
}

static void outgoing_done(struct outgoing *out)
{
	list_del(&out->link);
	if (out->op) {
		op_committed(out->op);
		return;
	}
	slice_unref(&out->payload);
	if (out->fp_buf)
		buf_unref(out->fp_buf);
	free(out);
}

void primary_advance(struct primary *p)
{
	uint64_t seq;

	if (p->state != PRIMARY_SERVE && p->state != PRIMARY_FENCE)
		return;
	seq = settled_seq(p);
	if (seq <= p->commit.seq)
		return;
	/* The store first: who leaves the range queue lets readers of this data in. */
	for (struct list *n = p->outgoing.next; n != &p->outgoing; n = n->next) {
		const struct outgoing *out = list_entry(n, struct outgoing, link);

		if (out->record.version.seq > seq)
			break;
		p->commit = out->record.version;
	}
	store_commit(p->object->store, p->commit);
	while (!list_empty(&p->outgoing)) {
		struct outgoing *out = list_first(&p->outgoing, struct outgoing, link);

		if (out->record.version.seq > p->commit.seq)
			break;
		outgoing_done(out);
	}
	p->traffic_us = loop_turn_us(p->r->loop);
	p->r->gate_open = true;
	object_busy(p->object);
	replica_arm(p->r);
}

void primary_ack(struct session *s, const struct msg_ack_entry *e, uint64_t now)
{
	struct object *o = object_find(s->r, e->key.object);
	struct primary *p = o ? o->primary : NULL;
	struct member *m;

	if (!p || p->tenure != e->key.tenure)
		return;
	m = primary_member(p, s, e->key.join);
	if (!m || m->state != MEMBER_JOINED)
		return;
	if (e->durable.seq > p->last.seq || e->copies > m->copies_sent ||
	    e->bytes > m->bytes_sent) {
		session_fail(s, -ERR_PROTOCOL);
		return;
	}
	if (e->durable.seq > m->acked.seq || e->copies != m->copies_acked || s->fill >= LOG_FULL)
		m->ack_us = now;
	if (e->durable.seq > m->acked.seq)
		m->acked = e->durable;
	m->copies_acked = MAX(m->copies_acked, e->copies);
	if (e->bytes > m->bytes_acked) {
		s->unacked_bytes -= MIN(e->bytes - m->bytes_acked, s->unacked_bytes);
		m->bytes_acked = e->bytes;
	}
	if (p->state == PRIMARY_JOIN)
		primary_check(p);
	primary_advance(p);
	if (m->fill)
		fill_run(m->fill);
}

/* ---- Takeover -----------------------------------------------------------------------------------
 */

static void serve(struct primary *p)
{
	p->state = PRIMARY_SERVE;
	/* A birth is no takeover, and a new volume has many. */
	log_at(p->tenure > 1 ? LOG_INFO : LOG_DEBUG, "replica", "serving",
	       "object=%llx tenure=%u after_us=%llu", (unsigned long long)p->object->id, p->tenure,
	       (unsigned long long)(now_us(p->r) - p->start_us));
	p->r->stats.takeovers += p->tenure > 1;
	p->r->gate_open = true;
	replica_arm(p->r);
}

/* An unsure object is served once every replica that may hold data has shown that it has no more. */
static bool all_seen(const struct primary *p)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].filled && p->member[i].node && p->member[i].state != MEMBER_JOINED)
			return false;
	return true;
}

/* T2: looks whether the next step of the takeover can be taken. */
void primary_check(struct primary *p)
{
	uint64_t now = now_us(p->r);

	if (p->state == PRIMARY_JOIN) {
		if (settled_seq(p) < p->tail_end.seq && rule(RULE_TAKE_ALL))
			return;
		for (unsigned i = 0; i < p->member_count; i++)
			if (p->member[i].want && p->member[i].state != MEMBER_JOINED && rule(RULE_TAKE_ALL))
				return;
		if (p->object->config.unsure && !all_seen(p))
			return;
		p->state = PRIMARY_FENCE;
		primary_advance(p);
	}
	if (p->state == PRIMARY_FENCE) {
		/* In the object's first tenure there is nobody before us. */
		if (p->tenure > 1 && rule(RULE_UPTIME) &&
		    now < p->r->start_us + ms(p->r->times->grace_ms))
			return;
		if (!holds_clear(p->object, p->tenure, now))
			return;
		serve(p);
	}
}

static void tail_run(struct primary *p, int rc);

static void tail_resume(struct wait *w, int rc)
{
	struct primary *p = container_of(w, struct primary, tail_wait);

	p->refs--;
	object_release(p->object);
	tail_run(p, rc);
}

static void tail_keep(struct primary *p)
{
	struct outgoing *out = xcalloc(1, sizeof(*out));
	unsigned n;

	out->record = p->tail->record;
	out->record.skip_mask = 0;
	out->payload = p->tail->payload;
	p->tail->payload = (struct slice){0};
	n = record_payload_blocks(&out->record);
	if (n) {
		out->fp_buf = buf_heap(BLOCK_SIZE);
		memcpy(out->fp_buf->data, p->tail->fps, n * sizeof(struct fp128));
		out->fps = (const struct fp128 *)out->fp_buf->data;
	}
	out->appended_us = now_us(p->r);
	list_push_back(&p->outgoing, &out->link);
}

/* Without memory the tick tries again; a tail that cannot be read makes this replica resign. */
static void tail_failed(struct primary *p, int rc)
{
	struct object *o = p->object;

	slice_unref(&p->tail->payload);
	if (rc == -ENOMEM) {
		p->tail_waiting = true;
		return;
	}
	if (rc == -ERR_CORRUPT || rc == -ENODATA) {
		replica_event(p->r, 2, "TAIL_UNREADABLE",
			      "object %llx: its log tail cannot be read here (%s)",
			      (unsigned long long)o->id, err_name(rc));
		o->resigning = true;
		primary_end(o, "its log tail cannot be read");
	} else {
		object_fail(o, rc);
	}
	primary_put(p);
}

/* The uncommitted tail of earlier tenures, into memory: it is prepared again on all of want. */
static void tail_run(struct primary *p, int rc)
{
	struct version after;

	while (rc != PENDING) {
		if (p->state == PRIMARY_ENDED) {
			slice_unref(&p->tail->payload);
			primary_put(p);
			return;
		}
		after = list_empty(&p->outgoing)
				? p->commit
				: list_last(&p->outgoing, struct outgoing, link)->record.version;
		if (rc == 0 && p->tail->record.version.seq > after.seq) {
			tail_keep(p);
			after = p->tail->record.version;
		}
		if (rc < 0 || after.seq >= p->last.seq)
			break;
		p->refs++;
		object_hold(p->object);
		rc = store_tail_next(p->object->store, p->tail, after, p->r->pool, &p->tail_wait);
		if (rc != PENDING) {
			p->refs--;
			object_release(p->object);
		}
	}
	if (rc == PENDING)
		return;
	if (rc < 0) {
		tail_failed(p, rc);
		return;
	}
	p->state = PRIMARY_JOIN;
	join_all(p);
	primary_check(p);
	primary_put(p);
}

static void put_resume(struct wait *w, int rc)
{
	struct primary *p = container_of(w, struct primary, put_wait);
	struct object *o = p->object;

	object_release(o);
	if (p->state == PRIMARY_ENDED) {
		primary_put(p);
		return;
	}
	if (rc < 0) {
		object_fail(o, rc);
		primary_put(p);
		return;
	}
	if (p->forced) { /* its whole log is the truth, there is nobody to agree with */
		p->commit = p->tail_end;
		store_commit(o->store, p->commit);
		p->state = PRIMARY_JOIN;
		join_all(p);
		primary_check(p);
		primary_put(p);
		return;
	}
	p->state = PRIMARY_TAIL;
	p->tail = xcalloc(1, sizeof(*p->tail));
	tail_run(p, 0); /* the reference of the put goes on to the tail */
}

/* The table with this tenure at its end; tenures in which nothing was written leave no entry. */
static void table_begin_tenure(struct object_header *h, uint32_t tenure, uint64_t first_seq)
{
	while (h->epoch_count && h->epochs[h->epoch_count - 1].first_seq >= first_seq)
		h->epoch_count--;
	if (h->epoch_count == EPOCHS_MAX) {
		memmove(h->epochs, h->epochs + 1, (EPOCHS_MAX - 1) * sizeof(h->epochs[0]));
		h->epoch_count--;
	}
	h->epochs[h->epoch_count++] =
		(struct epoch_entry){.tenure = tenure, .first_seq = first_seq};
}

static void members_from_config(struct primary *p);

/* A force (state_force.c) made this replica the truth, and its tenure has not begun here yet: as the only one
 * of I, in a generation that nobody has seen. It starts with whatever it holds: a copy that was never
 * finished, a damaged log, a history that another one contradicts. */
bool object_forced(const struct object *o)
{
	return object_is_primary(o) && o->store && map_in_count(&o->config) == 1 && !o->config.unsure &&
	       epoch_generation(o->config.tenure) > epoch_generation(store_header(o->store)->seen);
}

void primary_start(struct object *o)
{
	struct replicator *r = o->r;
	struct primary *p = xcalloc(1, sizeof(*p));
	int rc;

	CHECK(!o->primary && o->store && o->config.tenure > o->seen);
	inbound_void(o);
	p->object = o;
	p->r = r;
	p->refs = 1;
	p->tenure = o->config.tenure;
	p->state = PRIMARY_EPOCH;
	p->start_us = p->traffic_us = now_us(r);
	list_init(&p->outgoing);
	list_init(&p->ops);
	list_init(&p->move_link);
	range_queue_init(&p->range);
	p->put_wait.resume = put_resume;
	p->tail_wait.resume = tail_resume;
	p->last = p->tail_end = store_last(o->store);
	p->commit = store_commit_version(o->store);
	p->forced = object_forced(o);
	p->header = *store_header(o->store);
	p->header.seen = p->tenure;
	p->header.commit = p->forced ? p->last : p->commit;
	table_begin_tenure(&p->header, p->tenure, p->last.seq + 1);
	o->primary = p;
	o->seen = p->tenure;
	o->diverged &= !p->forced;
	members_from_config(p);
	fence_older(o);
	object_busy(o);
	log_info("replica", p->forced ? "taking over by force" : "taking over",
		 "object=%llx tenure=%u last=%u/%llu commit=%u/%llu",
		 (unsigned long long)o->id, p->tenure, p->last.tenure,
		 (unsigned long long)p->last.seq, p->commit.tenure,
		 (unsigned long long)p->commit.seq);
	object_hold(o);
	p->refs++;
	rc = store_put_header(o->store, &p->put, p->forced ? RECORD_COMPLETE : RECORD_EPOCH, &p->header,
			      p->last, NULL, 0, &p->put_wait);
	if (rc != PENDING)
		put_resume(&p->put_wait, rc);
}

void primary_put(struct primary *p)
{
	if (--p->refs)
		return;
	CHECK(p->state == PRIMARY_ENDED && list_empty(&p->ops));
	free(p->tail);
	free(p);
}

/* The tenure ends here: no reply, no lease, no commit any more. Clients are told RETRY. */
void primary_end(struct object *o, const char *why)
{
	struct primary *p = o->primary;

	if (!p)
		return;
	log_info("replica", "no longer primary", "object=%llx tenure=%u why=\"%s\"",
		 (unsigned long long)o->id, p->tenure, why);
	p->r->stats.moves += p->moving && p->move_proposed_us;
	move_end(p);
	o->primary = NULL;
	o->stopped = MAX(o->stopped, p->tenure);
	p->state = PRIMARY_ENDED;
	for (unsigned i = 0; i < p->member_count; i++)
		member_unjoin(&p->member[i], 0);
	ops_end(p);
	while (!list_empty(&p->outgoing)) {
		struct outgoing *out = list_first(&p->outgoing, struct outgoing, link);

		CHECK(!out->op);
		outgoing_done(out);
	}
	object_busy(o);
	if (p->tail_waiting)
		primary_put(p); /* the tail's reference */
	primary_put(p);
}

/* ---- Configuration ------------------------------------------------------------------------------
 */

static bool same_replica(const struct map_member *a, const struct map_member *b)
{
	return a->group == b->group && a->group_incarnation == b->group_incarnation &&
	       a->gen == b->gen;
}

static uint16_t node_of(struct replicator *r, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(r->map, mb);

	return n ? n->id : 0;
}

static void members_from_config(struct primary *p)
{
	struct object *o = p->object;

	for (unsigned i = 0; i < o->config.member_count; i++) {
		struct member *m = &p->member[p->member_count];

		if ((int)i == o->me || o->config.member[i].kept)
			continue;
		*m = (struct member){
			.primary = p, .id = o->config.member[i], .in = o->config.member[i].in};
		m->filled = o->config.member[i].filled;
		m->want = m->in;
		m->node = node_of(p->r, &m->id);
		list_init(&m->in_session);
		p->member_count++;
	}
}

/* An applied epoch in the same tenure: C1. A replica leaves want only here. */
void primary_reconfigure(struct primary *p)
{
	struct object *o = p->object;
	const struct map_object *c = &o->config;
	unsigned i, j;

	for (i = 0; i < p->member_count;) {
		struct member *m = &p->member[i];

		for (j = 0; j < c->member_count; j++)
			if (same_replica(&c->member[j], &m->id) && !c->member[j].kept)
				break;
		if (j < c->member_count) {
			i++;
			continue;
		}
		member_unjoin(m, 0);
		/* The array is compact; list links and fills point into it, so they are made anew.
		 */
		for (j = i; j < p->member_count; j++)
			member_unjoin(&p->member[j], 0);
		memmove(m, m + 1, (p->member_count - i - 1) * sizeof(*m));
		p->member_count--;
		for (j = i; j < p->member_count; j++)
			list_init(&p->member[j].in_session);
	}
	for (j = 0; j < c->member_count; j++) {
		struct member *m = NULL;

		if ((int)j == o->me || c->member[j].kept)
			continue;
		for (i = 0; i < p->member_count; i++)
			if (same_replica(&c->member[j], &p->member[i].id))
				m = &p->member[i];
		if (!m) {
			m = &p->member[p->member_count++];
			*m = (struct member){.primary = p, .id = c->member[j]};
			list_init(&m->in_session);
		}
		m->node = node_of(p->r, &m->id);
		m->in = c->member[j].in;
		m->filled = c->member[j].filled;
		if (m->in) {
			m->promote_epoch = 0;
			m->want = true;
			if (m->fill && fill_complete(m->fill))
				fill_end(m);
		} else if (!m->promote_epoch || c->epoch > m->promote_epoch) {
			m->promote_epoch = 0;
			m->want = false;
			/* It was joined as one whose log counts; what it is now starts at Y1. */
			if (!m->as_syncing || !m->fill)
				if (m->state != MEMBER_IDLE)
					member_unjoin(m, 0);
			m->lost = m->behind = false;
		}
		if (m->want && m->as_syncing && m->state == MEMBER_JOINING)
			member_unjoin(m, 0);
	}
	join_all(p);
	primary_check(p);
	primary_advance(p);
	p->r->gate_open = true;
	object_busy(o);
	replica_arm(p->r);
}

/* One of I that has more goes on instead. Another one has it by right or by half: a copy may have been under
 * way to it. Nobody but an operator can tell, and until then nobody serves. */
static void is_ahead(struct member *m)
{
	struct primary *p = m->primary;

	m->ahead = true;
	if (m->in)
		propose_better(m);
	else if (!p->ahead_told)
		replica_event(p->r, 2, "DATA_NEWER",
			      "object %llx: the replica on node %u, group %u, which is not in sync, has "
			      "writes that are nowhere else; an operator must decide: ashlar volume force",
			      (unsigned long long)p->object->id, m->node, m->id.group);
	p->ahead_told |= !m->in;
}

void primary_joined(struct session *s, const struct msg_joined *j)
{
	struct object *o = object_find(s->r, j->key.object);
	struct primary *p = o ? o->primary : NULL;
	struct member *m;
	uint64_t now = now_us(s->r);

	if (!p || p->tenure != j->key.tenure)
		return;
	m = primary_member(p, s, j->key.join);
	if (!m)
		return;
	if (j->status) {
		if (!m->nak_us)
			m->nak_us = now;
		if (j->reason == NAK_UNKNOWN_TAIL || j->reason == NAK_FAILED)
			m->lost = m->want;
		m->behind |= j->reason == NAK_UNKNOWN_TAIL;
		if (j->reason == NAK_AHEAD)
			is_ahead(m);
		if (j->reason == NAK_DIVERGED)
			replica_event(s->r, 2, "DATA_DIVERGED",
				      "object %llx: node %u knows a commit that this "
				      "history does not have; nothing was cut",
				      (unsigned long long)o->id, s->node);
		member_unjoin(
			m, j->reason == NAK_GAP
				   ? 0
				   : now + (j->reason == NAK_NO_REPLICA && !o->config.unsure
						    ? JOIN_AGAIN_US
						    : 1000000));
		if (j->reason == NAK_GAP)
			join(m);
		return;
	}
	if (m->state != MEMBER_JOINING)
		return;
	m->nak_us = 0;
	m->ahead = false;
	m->ack_us = now;
	m->state = MEMBER_JOINED;
	if (m->as_syncing) {
		m->acked = (struct version){0};
		fill_start(m, j);
		return;
	}
	/* T5: it once said that it had more, or it lacks what is known to be everywhere. */
	if (j->last.seq < m->acked.seq || j->last.seq < p->commit.seq ||
	    j->last.seq > p->last.seq) {
		if (!o->config.unsure) /* else it was not there, and no fault */
			replica_event(s->r, 2, "REPLICA_LOST_DATA",
			      "object %llx: the replica on node %u, group %u ends at "
			      "%llu and had acknowledged %llu",
			      (unsigned long long)o->id, s->node, m->id.group,
			      (unsigned long long)j->last.seq,
			      (unsigned long long)MAX(m->acked.seq, p->commit.seq));
		m->lost = m->behind = true;
		member_unjoin(m, now + 1000000);
		return;
	}
	m->acked = j->last;
	for (struct list *n = p->outgoing.next; n != &p->outgoing && m->state == MEMBER_JOINED;
	     n = n->next) {
		struct outgoing *out = list_entry(n, struct outgoing, link);

		if (out->record.version.seq > j->last.seq)
			primary_send(p, m, out);
	}
	primary_check(p);
	primary_advance(p);
	p->r->gate_open = true;
	replica_arm(p->r);
}

void primary_stale(struct session *s, const struct msg_stale *m)
{
	struct object *o = object_find(s->r, m->key.object);

	if (!o || !o->primary || o->primary->tenure != m->key.tenure || m->seen <= m->key.tenure)
		return;
	o->stopped = MAX(o->stopped, m->key.tenure);
	primary_end(o, "a member has seen a later tenure");
}

/* ---- Leases over want ---------------------------------------------------------------------------
 */

bool primary_leased(struct primary *p, const char **waits_for)
{
	uint64_t now = rule(RULE_CLOCK) ? now_us(p->r) : loop_turn_us(p->r->loop);
	bool ok = true;

	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];

		if (!m->want)
			continue;
		if (m->state != MEMBER_JOINED && (rule(RULE_LEASE_JOINED) || !m->session)) {
			*waits_for = "a member to join";
			return false;
		}
		m->session->used_us = now;
		if (!session_lease_valid(m->session, now)) {
			session_want_lease(m->session);
			p->r->stats.leases_missed++;
			*waits_for = "a lease";
			ok = false;
		}
	}
	return ok;
}

/* ---- The tick -----------------------------------------------------------------------------------
 */

/* S1: what is wrong with a member for so long that it should be dropped. NULL: nothing. */
static const char *member_trouble(struct primary *p, struct member *m, uint64_t now)
{
	const struct replicator_times *t = p->r->times;
	struct session *s = m->session;
	uint64_t gone;

	if (m->lost)
		return "it lost data";
	if (!m->node)
		return "its group is gone";
	gone = p->r->peers[m->node].gone_us[stream_for(p->r, p->object->id, m->node)];
	if (!session_for(p->r, p->object, m->node))
		return now - MAX(MAX(gone, p->start_us), p->r->start_us) >=
				       ms(gone ? t->session_gone_ms : t->ack_ms)
			       ? "its session is gone"
			       : NULL;
	if (m->state == MEMBER_JOINING)
		return now - m->since_us >= ms(t->ack_ms) ? "it does not join" : NULL;
	if (m->nak_us && now - m->nak_us >= ms(t->silence_ms))
		return "it refuses to join";
	if (m->state != MEMBER_JOINED)
		return NULL;
	if (s->unanswered_us && now - s->unanswered_us >= ms(t->ack_ms))
		return "it does not answer beacons";
	/* A full log is latency, not an error (L4), unless it stays full for ever. */
	if (m->acked.seq < p->last.seq &&
	    now - m->ack_us >= ms(t->ack_ms) * (s->fill >= LOG_FULL ? 10 : 1))
		return "it does not acknowledge";
	return NULL;
}

static bool own_log_slow(struct primary *p, uint64_t now)
{
	const struct outgoing *out;

	if (list_empty(&p->outgoing))
		return false;
	out = list_first(&p->outgoing, struct outgoing, link);
	return own_durable_seq(p->object) < out->record.version.seq &&
	       now - out->appended_us >= ms(p->r->times->slow_log_ms);
}

/* Y6. A pending promotion is proposed again until an applied epoch decides it, reachable or not. */
static bool promotable(struct primary *p, struct member *m)
{
	const struct replicator_hooks *h = p->r->hooks;

	if (m->state != MEMBER_JOINED || !m->fill ||
	    (h->leader_known && !h->leader_known(p->r->ctx)))
		return false;
	return !rule(RULE_PROMOTE) || (fill_complete(m->fill) && m->acked.seq >= p->commit.seq);
}

static bool member_tick(struct primary *p, struct member *m, uint64_t now)
{
	const char *why = member_trouble(p, m, now);

	if (why && m->in && (!p->object->config.unsure || m->behind || !m->node) &&
	    now - m->proposed_us >= PROPOSE_AGAIN_US) {
		m->proposed_us = now;
		log_info("replica", "proposing to drop a member", "object=%llx node=%u why=\"%s\"",
			 (unsigned long long)p->object->id, m->node, why);
		propose_drop(p->object, &m->id, m->behind);
		if (!rule(RULE_DROP_APPLIED)) {
			m->want = false;
			primary_advance(p);
		}
	}
	if (m->state == MEMBER_IDLE && now >= m->retry_us && !m->lost)
		join(m);
	if (m->fill)
		fill_run(m->fill);
	if (!m->in && p->state == PRIMARY_SERVE && !p->object->config.unsure &&
	    now - m->proposed_us >= PROPOSE_AGAIN_US &&
	    (m->promote_epoch || promotable(p, m))) {
		m->proposed_us = now;
		propose_promote(m);
	}
	return why || m->state != MEMBER_JOINED || !m->in || m->acked.seq < p->last.seq;
}

bool primary_tick(struct primary *p, uint64_t now)
{
	struct object *o = p->object;
	bool busy = p->state != PRIMARY_SERVE || p->op_count || p->moving;

	for (unsigned i = 0; i < p->member_count; i++)
		busy |= member_tick(p, &p->member[i], now);
	if (p->tail_waiting) {
		p->tail_waiting = false;
		tail_run(p, 0);
		return true;
	}
	primary_check(p);
	if (version_cmp(p->announced, p->commit) < 0) {
		busy = true;
		if (loop_turn_us(p->r->loop) - p->traffic_us >= ms(p->r->times->commit_ms) &&
		    (p->state == PRIMARY_SERVE || p->state == PRIMARY_FENCE))
			primary_announce(p);
	}
	if (o->config.unsure && p->state == PRIMARY_SERVE) {
		busy = true;
		if (now - o->proposed_us >= PROPOSE_AGAIN_US) {
			struct object_change c = change_for(o, OBJ_SETTLE);

			o->proposed_us = now;
			replica_propose(p->r, &c);
		}
	}
	/* W5: a primary that cannot log gives up its place. */
	if (own_log_slow(p, now) && map_in_count(&o->config) > 1 &&
	    now - o->proposed_us >= PROPOSE_AGAIN_US) {
		o->proposed_us = now;
		propose_resign(o);
	}
	return busy;
}

static const char *unsure_text(const struct primary *p)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].ahead && !p->member[i].in)
			return "recovered: a replica that is not in sync has newer writes; an operator must "
			       "decide";
	return "recovered: waits until every replica that may have newer writes is seen";
}

const char *primary_state_text(struct primary *p)
{
	switch (p->state) {
	case PRIMARY_EPOCH:
		return "taking over: epoch record is being logged";
	case PRIMARY_TAIL:
		return "taking over: reads its log tail";
	case PRIMARY_JOIN:
		return p->object->config.unsure ? unsure_text(p) : "taking over: waits for members to join";
	case PRIMARY_FENCE:
		return "taking over: waits for earlier leases to end";
	case PRIMARY_SERVE:
		return p->moving ? "moving to another node" : "serving";
	case PRIMARY_ENDED:
		return "ended";
	}
	return "?";
}
