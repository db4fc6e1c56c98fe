/* SPDX-License-Identifier: Apache-2.0 */
/* The other members of a tenure, as its primary sees them: who they are (C1), how they join (T1), what is
 * sent to them and what they acknowledge (W2, W4), and when one is to be dropped or promoted (S1, Y6). A
 * configuration changes only by applied map changes, never because something was proposed. */
#include "cluster/replica_impl.h"

#define JOIN_AGAIN_US 50000u   /* a member that is not there yet */
#define JOIN_LATER_US 1000000u /* one that refused, lost data, or fell too far behind */
/* Under way at once: a node that is new or comes back has thousands to join, and each costs its log a record.
 * What else it is asked, beacons first of all, comes behind them on the stream. */
#define JOINS_MAX 256u /* on a stream, of members that count, and as many of those that do not */
#define FILLS_MAX 256u /* copies and returns on a stream: each remembers the pages of its object */

/* ---- Joins ----------------------------------------------------------------------------------- */

struct member *primary_member(struct primary *p, const struct session *s, uint32_t join)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].session == s &&
		    (p->member[i].join == join || !rule(RULE_JOIN_NUMBER)) &&
		    p->member[i].state != MEMBER_IDLE)
			return &p->member[i];
	return NULL;
}

static void member_set(struct member *m, enum member_state state)
{
	if (m->session && state == MEMBER_JOINING && m->state != MEMBER_JOINING)
		m->session->joining[m->as_syncing]++;
	else if (m->session && m->state == MEMBER_JOINING && state != MEMBER_JOINING)
		m->session->joining[m->as_syncing]--;
	m->state = state;
}

/* The tick tries again, those first that have waited: who is refused again and again does not stand in their
 * way. What a takeover has to know of members that are out is never put off (T1). */
static bool has_to_wait(const struct member *m, const struct session *s)
{
	struct primary *p = m->primary;
	bool waits = s->joining[!m->want] >= JOINS_MAX || (!m->want && s->fills >= FILLS_MAX);

	if (!m->want && p->state != PRIMARY_SERVE)
		return false;
	p->object->join_waits |= waits;
	return waits;
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
	member_set(m, MEMBER_IDLE);
	m->session = NULL;
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
	    p->state == PRIMARY_TAIL || p->state == PRIMARY_ENDED || has_to_wait(m, s))
		return;
	memcpy(j.epochs, p->header.epochs, sizeof(j.epochs));
	msg_join_encode(&j, &w);
	m->session = s;
	m->as_syncing = j.syncing;
	list_push_back(&s->members, &m->in_session);
	member_set(m, MEMBER_JOINING);
	m->join = p->joins;
	m->since_us = m->ack_us = now_us(o->r);
	m->asked_us = m->asked_us ? m->asked_us : m->since_us;
	session_send(s, OP_JOIN, &w, NULL);
}

void members_join(struct primary *p)
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

/* An unsure object: a member of I has more than this replica, so it is the one to go on from. */
static void propose_better(struct member *m)
{
	struct object *o = m->primary->object;
	struct object_change c = object_change_for(o, OBJ_TAKEOVER);
	const struct map_node *n = map_node(o->r->map, m->node);

	c.keep = 1;
	c.replica = (struct map_member){.group = m->id.group};
	c.node = m->node;
	c.incarnation = n ? n->incarnation : 0;
	replica_propose(o->r, &c);
}

static void propose_quarantine(struct member *m, bool undecided)
{
	struct object_change c = object_change_for(m->primary->object, OBJ_QUARANTINE);

	c.replica = m->id;
	c.keep = undecided;
	replica_propose(m->primary->r, &c);
}

/* A replica that is out has what is nowhere else. */
void member_quarantine(struct member *m)
{
	propose_quarantine(m, false);
}

/* All of I are here, and lack it too. */
static bool is_nowhere_in_sync(const struct primary *p)
{
	return p->state == PRIMARY_FENCE && !p->object->config.unsure;
}

/* What is in quarantine is neither removed nor purged, as a copy that was never finished may be at any time.
 * It is no member then; the map says that nobody serves, whoever is started again or takes over. */
static void keep(struct member *m)
{
	if (is_nowhere_in_sync(m->primary))
		propose_quarantine(m, true);
}

static void tell_newer(struct member *m)
{
	struct primary *p = m->primary;

	if (!p->ahead_told)
		replica_event(p->r, 2, "DATA_NEWER",
			      "object %llx: the replica on node %u, group %u, which is not in sync, has "
			      "writes that are nowhere else; an operator must decide: ashlar volume force",
			      (unsigned long long)p->object->id, m->node, m->id.group);
	p->ahead_told = true;
}

/* Of an unsure object: one of I that has more goes on instead. Of any: another one has it by right or by
 * half, a copy may have been under way to it. Nobody but an operator can tell; until then nobody serves. */
static void is_ahead(struct member *m)
{
	struct primary *p = m->primary;

	m->ahead = true;
	if (m->in)
		propose_better(m);
	else
		keep(m);
	if (!m->in && (is_nowhere_in_sync(p) || p->object->config.unsure))
		tell_newer(m);
}

/* It said so when it was not known yet whether one of I has it, or no leader was there. It may be away now:
 * what is known of it must not end with this tenure. */
static void keep_later(struct member *m, uint64_t now)
{
	if (m->in || !(m->ahead || m->diverged) || !is_nowhere_in_sync(m->primary) ||
	    now - m->proposed_us < PROPOSE_AGAIN_US || !replica_may_propose(m->primary->r))
		return;
	m->proposed_us = now;
	if (m->ahead)
		tell_newer(m);
	keep(m);
}

/* T5 for the primary itself: what a member knows to be committed is missing here. It does not serve, and goes
 * out in favour of who has it. */
static void lacks_committed(struct member *m)
{
	struct object *o = m->primary->object;

	replica_event(o->r, 2, "REPLICA_LOST_DATA",
		      "object %llx: the replica on node %u, group %u ends at %llu, and node %u knows later "
		      "writes that were acknowledged",
		      (unsigned long long)o->id, o->r->node, o->group->id,
		      (unsigned long long)m->primary->last.seq, m->node);
	o->behind = true;
	primary_end(o, "it lacks what a member knows to be committed");
}

/* It is asked again every second; that is said once. */
static void contradicts(struct member *m)
{
	struct object *o = m->primary->object;

	if (!m->diverged)
		replica_event(o->r, 2, "DATA_DIVERGED",
			      "object %llx: node %u knows a commit that this history does not have; nothing "
			      "was cut",
			      (unsigned long long)o->id, m->node);
	m->diverged = true;
	if (m->primary->state == PRIMARY_SERVE && !m->in)
		member_quarantine(m);
	else if (!m->in)
		keep(m);
}

/* The member said that it does not join, and why. */
static void refused(struct member *m, enum nak_reason reason, uint64_t now)
{
	struct primary *p = m->primary;
	bool unsure = p->object->config.unsure;

	if (!m->nak_us)
		m->nak_us = now;
	if (reason == NAK_UNKNOWN_TAIL || reason == NAK_FAILED)
		m->lost = m->want;
	m->behind |= reason == NAK_UNKNOWN_TAIL;
	m->full |= reason == NAK_FULL;
	if (reason == NAK_AHEAD && m->in && !unsure) {
		lacks_committed(m);
		return;
	}
	if (reason == NAK_AHEAD && p->state != PRIMARY_SERVE)
		is_ahead(m);
	else if (reason == NAK_DIVERGED || reason == NAK_AHEAD)
		contradicts(m);
	if (reason == NAK_GAP) {
		member_unjoin(m, 0);
		join(m);
		return;
	}
	member_unjoin(m, now + (reason == NAK_NO_REPLICA && !unsure ? JOIN_AGAIN_US : JOIN_LATER_US));
}

/* T5: it once said that it had more, or it lacks what is known to be everywhere. */
static bool lost_data(const struct member *m, struct version last)
{
	const struct primary *p = m->primary;

	return (last.seq < m->acked.seq || last.seq < p->commit.seq || last.seq > p->last.seq) &&
	       rule(RULE_LOST);
}

static void has_lost_data(struct member *m, struct version last, uint64_t now)
{
	const struct object *o = m->primary->object;

	if (!o->config.unsure) /* else it was not there, and no fault */
		replica_event(o->r, 2, "REPLICA_LOST_DATA",
			      "object %llx: the replica on node %u, group %u ends at "
			      "%llu and had acknowledged %llu",
			      (unsigned long long)o->id, m->session->node, m->id.group,
			      (unsigned long long)last.seq,
			      (unsigned long long)MAX(m->acked.seq, m->primary->commit.seq));
	m->lost = m->behind = true;
	member_unjoin(m, now + JOIN_LATER_US);
}

/* What it does not have of the log, in order; a send may end the join (Y5). */
static void send_again(struct member *m)
{
	struct primary *p = m->primary;
	uint64_t after = m->acked.seq;

	for (struct list *n = p->outgoing.next; n != &p->outgoing && m->state == MEMBER_JOINED; n = n->next) {
		struct outgoing *out = list_entry(n, struct outgoing, link);

		if (out->record.version.seq > after && rule(RULE_RESEND))
			primary_send(p, m, out);
	}
}

void primary_joined(struct session *s, const struct msg_joined *j)
{
	struct object *o = object_find(s->r, j->key.object);
	struct primary *p = o ? o->primary : NULL;
	struct member *m = p && p->tenure == j->key.tenure ? primary_member(p, s, j->key.join) : NULL;
	uint64_t now = now_us(s->r);

	if (!m)
		return;
	if (j->status) {
		refused(m, j->reason, now);
		return;
	}
	if (m->state != MEMBER_JOINING)
		return;
	m->nak_us = 0;
	m->ahead = m->diverged = false;
	m->ack_us = now;
	member_set(m, MEMBER_JOINED);
	if (m->as_syncing) {
		m->acked = (struct version){0};
		fill_start(m, j);
		primary_check(p);
		return;
	}
	if (lost_data(m, j->last)) {
		has_lost_data(m, j->last, now);
		return;
	}
	m->acked = j->last;
	send_again(m);
	primary_check(p);
	primary_advance(p);
	p->r->gate_open = true;
	replica_arm(p->r);
}

/* ---- Sending --------------------------------------------------------------------------------- */

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
		skip_all = !m->want && cost && (!c || credit_left(c) < cost);
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
		member_unjoin(m, now_us(p->r) + JOIN_LATER_US);
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

/* ---- Configuration --------------------------------------------------------------------------- */

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

void members_from_config(struct primary *p)
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
	members_join(p);
	primary_check(p);
	primary_advance(p);
	p->r->gate_open = true;
	object_busy(o);
	replica_arm(p->r);
}

/* ---- The tick -------------------------------------------------------------------------------- */

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
	/* Asked last so long after the first refusal; not while it waits to be asked again. */
	if (m->nak_us && m->since_us >= m->nak_us + ms(t->silence_ms))
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

static void propose_promote(struct member *m)
{
	struct object *o = m->primary->object;
	struct object_change c = object_change_for(o, OBJ_PROMOTE);

	c.replica = m->id;
	if (rule(RULE_WANT)) {
		m->want = true; /* from this instant on (C1) */
		m->promote_epoch = o->config.epoch;
	}
	o->r->stats.promotions++;
	replica_propose(o->r, &c);
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

/* Once: without a Raft leader the same is proposed again and again. */
static void say_drop(const struct primary *p, struct member *m, const char *why)
{
	const struct object *o = p->object;

	if (m->drop_said == o->config.epoch)
		return;
	m->drop_said = o->config.epoch;
	log_info("replica", "proposing to drop a member", "object=%llx node=%u why=\"%s\"",
		 (unsigned long long)o->id, m->node, why);
}

bool member_tick(struct primary *p, struct member *m, uint64_t now)
{
	const char *why = member_trouble(p, m, now);

	if (why && m->in && !m->diverged && (!p->object->config.unsure || m->behind || !m->node) &&
	    now - m->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(p->r)) {
		m->proposed_us = now;
		say_drop(p, m, why);
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
	keep_later(m, now);
	if (!m->in && p->state == PRIMARY_SERVE && !p->object->config.unsure &&
	    now - m->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(p->r) &&
	    (m->promote_epoch || promotable(p, m))) {
		m->proposed_us = now;
		propose_promote(m);
	}
	return why || m->state != MEMBER_JOINED || !m->in || m->acked.seq < p->last.seq;
}
