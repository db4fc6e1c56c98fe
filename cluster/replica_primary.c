/* SPDX-License-Identifier: Apache-2.0 */
/* A tenure: from the epoch record over the joins to serving, and its end. Commits are computed over
 * want = the members that are `in`, and those whose promotion was proposed and is unresolved (C1); how
 * they join and what passes between them and the primary is in replica_joins.c. */
#include "cluster/replica_impl.h"

#include <stdlib.h>

/* How long the answers of replicas that are out are waited for: a refusal is quick. */
#define ASK_US 100000u

/* ---- Proposals ------------------------------------------------------------------------------- */

struct object_change object_change_for(struct object *o, enum object_op op)
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
	struct object_change c = object_change_for(o, OBJ_DROP);

	c.replica = *who;
	c.keep = has_less;
	o->r->stats.drops++;
	replica_propose(o->r, &c);
}

void propose_takeover(struct object *o)
{
	struct object_change c = object_change_for(o, OBJ_TAKEOVER);

	replica_propose(o->r, &c);
}

/* ---- Commit ---------------------------------------------------------------------------------- */

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

/* ---- Takeover -------------------------------------------------------------------------------- */

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

/* T1: a replica, perhaps put out by this very takeover, knows something to be committed that is not here; or
 * it is in reach and has not said yet that it does not. */
static bool undecided(const struct primary *p, uint64_t now)
{
	if (p->object->config.undecided)
		return true;
	for (unsigned i = 0; i < p->member_count; i++) {
		const struct member *m = &p->member[i];

		if (m->ahead || m->diverged ||
		    (!m->want && m->state == MEMBER_JOINING && now < m->asked_us + ASK_US))
			return true;
	}
	return false;
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
		if (!holds_clear(p->object, p->tenure, now) || undecided(p, now))
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
	members_join(p);
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
		members_join(p);
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
	p->forced = object_forced(o);
	p->last = store_last(o->store);
	/* A copy that was never finished has pages of writes that its log knows nothing of: the next number
	 * is beyond those, too, for on a page numbers only rise. */
	if (p->forced)
		p->last = version_max(p->last, store_known(o->store));
	p->tail_end = p->last;
	p->commit = store_commit_version(o->store);
	p->header = *store_header(o->store);
	p->header.seen = p->tenure;
	p->header.commit = p->forced ? p->last : p->commit;
	table_begin_tenure(&p->header, p->tenure, p->last.seq + 1);
	o->primary = p;
	o->seen = p->tenure;
	o->diverged &= !p->forced;
	o->behind &= !p->forced;
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

void primary_stale(struct session *s, const struct msg_stale *m)
{
	struct object *o = object_find(s->r, m->key.object);

	if (!o || !o->primary || o->primary->tenure != m->key.tenure || m->seen <= m->key.tenure)
		return;
	o->stopped = MAX(o->stopped, m->key.tenure);
	primary_end(o, "a member has seen a later tenure");
}

/* ---- Leases over want ------------------------------------------------------------------------ */

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

/* ---- The tick -------------------------------------------------------------------------------- */

static bool own_log_slow(struct primary *p, uint64_t now)
{
	const struct outgoing *out;

	if (list_empty(&p->outgoing))
		return false;
	out = list_first(&p->outgoing, struct outgoing, link);
	return own_durable_seq(p->object) < out->record.version.seq &&
	       now - out->appended_us >= ms(p->r->times->slow_log_ms);
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
		if (now - o->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(p->r)) {
			struct object_change c = object_change_for(o, OBJ_SETTLE);

			o->proposed_us = now;
			replica_propose(p->r, &c);
		}
	}
	/* W5: a primary that cannot log gives up its place. */
	if (own_log_slow(p, now) && map_in_count(&o->config) > 1 && rule(RULE_SLOW_LOG) &&
	    now - o->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(p->r)) {
		o->proposed_us = now;
		propose_resign(o);
	}
	return busy;
}

const char *primary_conflict(const struct primary *p)
{
	bool ahead = p->object->config.undecided;

	for (unsigned i = 0; i < p->member_count; i++)
		ahead |= p->member[i].ahead && !p->member[i].in;
	if (p->state != PRIMARY_SERVE && ahead)
		return "a replica that is not in sync has acknowledged writes which are missing here; an "
		       "operator must decide";
	for (unsigned i = 0; p->state != PRIMARY_SERVE && i < p->member_count; i++)
		if (p->member[i].diverged)
			return "a replica has acknowledged writes that contradict what is here; an "
			       "operator must decide";
	return NULL;
}

/* What else keeps it from serving than members and leases. */
static const char *waits_text(const struct primary *p)
{
	const char *conflict = primary_conflict(p);

	if (!conflict && p->object->config.unsure)
		return "recovered: waits until every replica that may have newer writes is seen";
	return conflict;
}

const char *primary_state_text(struct primary *p)
{
	const char *waits = waits_text(p);

	switch (p->state) {
	case PRIMARY_EPOCH:
		return "taking over: epoch record is being logged";
	case PRIMARY_TAIL:
		return "taking over: reads its log tail";
	case PRIMARY_JOIN:
		return waits ? waits : "taking over: waits for members to join";
	case PRIMARY_FENCE:
		return waits ? waits : "taking over: waits for earlier leases to end";
	case PRIMARY_SERVE:
		return p->moving ? "moving to another node" : "serving";
	case PRIMARY_ENDED:
		return "ended";
	}
	return "?";
}
