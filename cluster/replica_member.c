/* SPDX-License-Identifier: Apache-2.0 */
/* This replica as a member of somebody's tenure: it cuts what is not in that history, takes records
 * in order, and says what is durable. It never compares, never waits for others and never answers
 * clients. */
#include "cluster/replica_impl.h"
#include "store/store_device.h"

#include <stdlib.h>

/* One JOIN under way: header made durable, folds computed, then the answer. */
struct joining {
	struct wait wait;
	struct object *object;
	unsigned serial;
	bool folding, putting;
	struct msg_join m;
	struct object_header header;
	struct store_append put;
	struct store_folds folds;
	uint64_t fold[MSG_FOLDS_MAX];
};

uint32_t epoch_tenure(const struct epoch_entry *e, unsigned count, uint64_t seq)
{
	uint32_t tenure = 0;

	for (unsigned i = 0; i < count && e[i].first_seq <= seq; i++)
		tenure = e[i].tenure;
	return tenure;
}

static void nak(struct session *s, const struct msg_key *key, enum nak_reason reason)
{
	uint8_t body[64];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_joined j = {.key = *key, .status = 1, .reason = (uint8_t)reason};

	msg_joined_encode(&j, &w);
	session_send(s, OP_JOINED, &w, NULL);
}

static void arrival_free(struct arrival *a)
{
	free(a->retry);
	a->retry = NULL;
	slice_unref(&a->payload);
	list_push_front(&a->object->r->arrivals_free, &a->link);
}

/* The join ends: what was not logged yet is dropped, what comes late is known by its serial. */
void inbound_void(struct object *o)
{
	struct inbound *in = &o->in;
	struct list *n;

	in->serial++;
	in->state = IN_NONE;
	in->session = NULL;
	list_del(&in->ack_link);
	while ((n = list_pop_front(&in->waiting)))
		arrival_free(list_entry(n, struct arrival, link));
	object_busy(o);
}

/* Whatever ends a join on a session that lives is told, or the primary would believe in it for as long as
 * nothing is written: it replicates to those that it knows joined, and joins those that it knows are not. */
void inbound_end(struct object *o, enum nak_reason reason)
{
	const struct inbound *in = &o->in;
	struct msg_key key = {.object = o->id, .tenure = in->tenure, .join = in->join};

	if (in->state != IN_NONE && in->session)
		nak(in->session, &key, reason);
	inbound_void(o);
}

static void owe_ack(struct object *o)
{
	if (o->in.state != IN_JOINED || !o->in.session)
		return;
	list_del(&o->in.ack_link);
	list_push_back(&o->in.session->acks, &o->in.ack_link);
	replica_arm(o->r);
}

/* L1: only a number learnt since the JOIN in this tenure, and only for what is durable here. */
static void take_commit(struct object *o, struct version commit)
{
	struct inbound *in = &o->in;
	struct version v;

	in->commit = version_max(in->commit, commit);
	v = version_min(in->commit, store_durable(o->store));
	if (version_cmp(v, store_commit_version(o->store)) > 0)
		store_commit(o->store, v);
}

/* ---- JOIN ---------------------------------------------------------------------------------------
 */

/* T1: where this replica's tail leaves the history of the primary. Else why it cannot be told: the
 * table does not reach back, or the known commit is not in that history. */
static enum nak_reason find_cut(struct object *o, const struct msg_join *m, struct version *cut)
{
	const struct object_header *h = store_header(o->store);
	struct version last = store_last(o->store), commit = store_commit_version(o->store);
	struct version known = version_max(commit, store_known(o->store)); /* in a copy beyond what is here */
	uint64_t seq = MIN(last.seq, m->last.seq);
	uint32_t theirs;

	/* What is committed is in every replica of I, so its primary has lost it. */
	if (known.seq > m->last.seq)
		return NAK_AHEAD;
	if (known.seq) {
		theirs = epoch_tenure(m->epochs, m->epoch_count, known.seq);
		if (theirs && theirs != known.tenure)
			return NAK_DIVERGED;
	}
	*cut = commit;
	if (m->syncing) {
		if (!rule(RULE_CUT))
			*cut = last;
		return NAK_NONE;
	}
	for (; seq > commit.seq; seq--) {
		uint32_t mine = epoch_tenure(h->epochs, h->epoch_count, seq);

		theirs = epoch_tenure(m->epochs, m->epoch_count, seq);
		if (!theirs || !mine)
			return NAK_UNKNOWN_TAIL;
		if (mine == theirs) {
			*cut = (struct version){mine, seq};
			break;
		}
	}
	if (!rule(RULE_CUT))
		*cut = last;
	return NAK_NONE;
}

static void answer(struct joining *j)
{
	static _Thread_local uint8_t body[64 + 8 * MSG_FOLDS_MAX];
	static _Thread_local struct msg_joined m;
	struct object *o = j->object;
	struct inbound *in = &o->in;
	struct writer w = writer_init(body, sizeof(body));

	in->state = IN_JOINED;
	m = (struct msg_joined){.key = j->m.key,
				.last = store_last(o->store),
				.commit = store_commit_version(o->store)};
	if (j->m.syncing) {
		m.fold_count = j->folds.regions;
		memcpy(m.folds, j->fold, 8 * m.fold_count);
		in->next_seq = 0;
		in->durable = (struct version){0};
	} else {
		in->next_seq = m.last.seq + 1;
		in->durable = m.last;
		take_commit(o, j->m.commit);
	}
	msg_joined_encode(&m, &w);
	if (j->m.syncing)
		resync_send(in->session, OP_JOINED, &w, NULL);
	else
		session_send(in->session, OP_JOINED, &w, NULL);
	if (o->group)
		session_credit_top_up(in->session, o->group);
	if (in->session->our_count)
		in->session->credits_changed = true;
	replica_arm(o->r);
}

static void joining_run(struct joining *j, int rc)
{
	struct object *o = j->object;
	uint32_t blocks;

	if (j->putting && rc != PENDING) {
		j->putting = false;
		o->in.puts--;
	}
	while (rc != PENDING) {
		if (rc < 0)
			object_fail(o, rc);
		if (rc < 0 || j->serial != o->in.serial)
			break;
		if (j->m.syncing && !j->folding) { /* header is durable, the tail is cut */
			blocks = object_blocks(o);
			if (!blocks) {
				inbound_end(o, NAK_NO_REPLICA);
				break;
			}
			j->folding = true;
			o->in.state = IN_FOLDS;
			j->folds = (struct store_folds){.folds = j->fold,
							.regions = (blocks + REGION_BLOCKS - 1) /
								   REGION_BLOCKS};
			rc = store_folds(o->store, &j->folds, &j->wait);
			continue;
		}
		answer(j);
		break;
	}
	if (rc == PENDING)
		return;
	object_release(o);
	free(j);
}

static void joining_resume(struct wait *w, int rc)
{
	joining_run(container_of(w, struct joining, wait), rc);
}

static bool same_table(const struct object_header *h, const struct msg_join *m)
{
	return h->seen == m->key.tenure && h->epoch_count == m->epoch_count &&
	       !memcmp(h->epochs, m->epochs, m->epoch_count * sizeof(h->epochs[0]));
}

/* JOINED says what is durable: the header is put again whenever something before it, an earlier header or a
 * record of an earlier join, may still be on its way to the disk. */
static bool needs_header(const struct object *o, const struct msg_join *m, struct version cut)
{
	struct version last = store_last(o->store);

	return version_cmp(last, cut) > 0 || (!same_table(store_header(o->store), m) && rule(RULE_SEEN)) ||
	       o->in.puts || version_cmp(store_durable(o->store), last) < 0;
}

/* What is after the cut goes, the header becomes durable; then the answer. */
static void joining_start(struct object *o, const struct msg_join *m, struct version cut)
{
	struct joining *j = xcalloc(1, sizeof(*j));
	bool cuts = version_cmp(store_last(o->store), cut) > 0;
	int rc = 0;

	j->object = o;
	j->serial = o->in.serial;
	j->m = *m;
	j->wait.resume = joining_resume;
	object_hold(o);
	if (needs_header(o, m, cut)) {
		o->in.puts++;
		j->putting = true;
		j->header = (struct object_header){.seen = m->key.tenure,
						   .commit = store_commit_version(o->store),
						   .epoch_count = m->epoch_count};
		memcpy(j->header.epochs, m->epochs, sizeof(j->header.epochs));
		rc = store_put_header(o->store, &j->put, cuts ? RECORD_CUT : RECORD_EPOCH, &j->header, cut,
				      NULL, 0, &j->wait);
	}
	joining_run(j, rc);
}

/* Why this replica joins nobody's tenure now; NAK_NONE: it can join. */
static enum nak_reason cannot_join(const struct object *o, const struct msg_join *m)
{
	if (!o || !o->store || o->gen != m->gen || !o->group || o->group->id != m->group ||
	    o->group->incarnation != m->group_incarnation || o->creating)
		return NAK_NO_REPLICA;
	if (o->group->failed)
		return NAK_FAILED;
	if (o->listed && o->me >= 0 && o->config.member[o->me].kept)
		return NAK_KEPT;
	if (m->syncing && o->r->draining) /* it resigned because it stops: do not fill it now */
		return NAK_FAILED;
	if (m->syncing && !store_loss_known(o->group->store))
		return NAK_NO_REPLICA; /* what to compare is not known yet */
	return NAK_NONE;
}

static bool knows_later_tenure(const struct object *o, uint32_t tenure)
{
	return (o->seen > tenure && rule(RULE_STALE)) || (o->primary && o->primary->tenure >= tenure);
}

static void send_stale(struct session *s, const struct object *o, const struct msg_key *key)
{
	uint8_t body[32];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_stale stale = {.key = *key, .seen = o->seen};

	msg_stale_encode(&stale, &w);
	session_send(s, OP_STALE, &w, NULL);
}

/* It is asked to join again and again; that is said once. */
static void is_diverged(struct object *o, const struct session *s)
{
	if (!o->diverged)
		replica_event(o->r, 2, "DATA_DIVERGED",
			      "object %llx: node %u's history does not have a write "
			      "that is committed here; nothing was cut",
			      (unsigned long long)o->id, s->node);
	o->diverged = true;
}

/* From here on this replica is a member of that tenure, and of none before it. */
static void inbound_begin(struct object *o, struct session *s, const struct msg_join *m)
{
	o->diverged = false; /* that was another primary's history */
	o->seen = m->key.tenure;
	hold_add(o, s, m->key.tenure);
	fence_older(o);
	o->in.session = s;
	o->in.state = IN_HEADER;
	o->in.tenure = m->key.tenure;
	o->in.join = m->key.join;
	o->in.group = o->group->id;
	o->in.syncing = m->syncing;
	o->in.current = !m->syncing;
	o->in.commit = (struct version){0};
	o->in.copies = 0;
	o->in.lost = store_lost(o->store);
	o->in.bytes = 0;
}

void inbound_join(struct session *s, const struct msg_join *m)
{
	struct object *o = object_find(s->r, m->key.object);
	enum nak_reason reason = cannot_join(o, m);
	struct version cut;

	if (reason) {
		nak(s, &m->key, reason);
		return;
	}
	if (knows_later_tenure(o, m->key.tenure)) {
		send_stale(s, o, &m->key);
		return;
	}
	if (m->unsure && version_cmp(store_last(o->store), m->last) > 0) {
		nak(s, &m->key, NAK_AHEAD);
		return;
	}
	primary_end(o, "another node's tenure is later");
	inbound_void(o);
	if (!rule(RULE_JOIN_COMMIT)) /* the planted fault believes the number before the cut */
		store_commit(o->store, version_min(m->commit, store_durable(o->store)));
	reason = find_cut(o, m, &cut);
	if (reason) {
		if (reason == NAK_DIVERGED)
			is_diverged(o, s);
		nak(s, &m->key, reason);
		return;
	}
	inbound_begin(o, s, m);
	joining_start(o, m, cut);
}

/* ---- Records ------------------------------------------------------------------------------------
 */

struct object *inbound_find(struct session *s, const struct msg_key *k)
{
	struct object *o = object_find(s->r, k->object);

	if (!o || o->in.state != IN_JOINED || o->in.session != s || o->in.tenure != k->tenure ||
	    o->in.join != k->join || o->seen != k->tenure)
		return NULL;
	return o;
}

static void arrival_resume(struct wait *w, int rc)
{
	struct arrival *a = container_of(w, struct arrival, wait);
	struct object *o = a->object;
	struct inbound *in = &o->in;

	if (rc < 0) {
		object_fail(o, rc);
	} else if (a->serial == in->serial && in->state == IN_JOINED) {
		if (a->record.kind == RECORD_COPY || a->record.kind == RECORD_COMPLETE)
			in->copies++;
		if (a->record.kind == RECORD_COMPLETE && a->skips == in->skips) {
			in->current = true;
			o->no_space = false;
			if (in->syncing && in->lost)
				store_refilled(o->store, in->lost);
		}
		if (a->record.kind != RECORD_COPY)
			in->durable = a->record.version.seq > in->durable.seq ? a->record.version
									      : in->durable;
		in->bytes += MSG_RECORD_BYTES + a->payload.len;
		take_commit(o, in->commit);
		owe_ack(o);
	}
	arrival_free(a);
	object_release(o);
}

/* 0 or PENDING: it is in the log's hands; -ERR_LIMIT: not yet. */
static int arrival_log(struct arrival *a)
{
	struct object *o = a->object;
	struct object_header h;
	int rc;

	object_hold(o);
	if (a->record.kind == RECORD_COMPLETE) {
		h = *store_header(o->store);
		h.commit = version_max(store_commit_version(o->store), a->record.commit);
		rc = store_put_header(o->store, &a->append, RECORD_COMPLETE, &h, a->record.version,
				      a->retry, a->retry_len, &a->wait);
	} else {
		rc = store_append(o->store, &a->append, &a->record, a->payload.data, a->fps,
				  &a->wait);
	}
	if (!rule(RULE_ACK_DURABLE) && rc == PENDING && a->record.kind != RECORD_COPY) {
		o->in.durable = a->record.version;
		owe_ack(o);
	}
	if (rc == -ERR_LIMIT)
		object_release(o);
	else if (rc != PENDING)
		arrival_resume(&a->wait, rc);
	return rc == -ERR_LIMIT ? rc : 0;
}

/* The log may have room again: what waits goes first, in order. */
void inbound_space(struct object *o)
{
	while (!list_empty(&o->in.waiting)) {
		struct arrival *a = list_first(&o->in.waiting, struct arrival, link);

		list_del(&a->link);
		if (arrival_log(a)) {
			list_push_front(&o->in.waiting, &a->link);
			group_wait_space(o->group);
			return;
		}
	}
}

/* A record that comes too late, or again: nothing of it is taken, but its credit is spent. */
static void drop(struct session *s, const struct msg_replicate *m)
{
	const struct object *o = object_find(s->r, m->key.object);
	uint64_t bytes = (uint64_t)m->fp_count * STORE_BYTES_PER_BLOCK;

	if (!bytes || m->record.kind == RECORD_COPY)
		return;
	if (o && o->in.tenure == m->key.tenure && o->in.join == m->key.join && o->in.group)
		session_credit_lost(s, o->in.group, bytes);
	else
		session_credit_lost(s, o && o->group ? o->group->id : 0, bytes);
}

/* Space for what a record may cost here at worst. False: a copy for which there is none. */
static bool account(struct object *o, struct session *s, const struct msg_replicate *m)
{
	uint64_t need = (uint64_t)m->fp_count * STORE_BYTES_PER_BLOCK;

	if (!need)
		return true;
	if (m->record.kind != RECORD_COPY) {
		session_credit_spend(s, o->group, need);
		return true;
	}
	if (!store_grant_copy(o->group->store, need))
		return false;
	store_grant_spend(o->group->store, need);
	return true;
}

static struct arrival *arrival_get(struct replicator *r)
{
	struct list *n = list_pop_front(&r->arrivals_free);
	struct arrival *a = n ? list_entry(n, struct arrival, link) : xcalloc(1, sizeof(*a));

	a->wait.resume = arrival_resume;
	return a;
}

/* The primary asks again and again: it is said once, until a copy got in whole. */
static void stay_out(struct object *o)
{
	if (!o->no_space)
		log_warn("replica",
			 "its disk group has no space for a copy: the replica stays out until it has",
			 "object=%llx group=%u", (unsigned long long)o->id, o->group->id);
	o->no_space = true;
	(void)store_is_full(o->group->store); /* destage hurries, if that gives space back */
}

void inbound_replicate(struct session *s, const struct msg_replicate *m, struct slice payload)
{
	struct object *o = inbound_find(s, &m->key);
	struct inbound *in;
	const struct record *rec = &m->record;
	struct arrival *a;
	bool has_seq =
		rec->kind == RECORD_WRITE || rec->kind == RECORD_TRIM || rec->kind == RECORD_ZEROES;

	if (!o) { /* of a join that has ended */
		drop(s, m);
		return;
	}
	in = &o->in;
	if (!rec->kind) {
		take_commit(o, rec->commit);
		return;
	}
	if (has_seq && in->next_seq && rec->version.seq != in->next_seq && rule(RULE_IN_ORDER)) {
		drop(s, m);
		if (rec->version.seq > in->next_seq)
			inbound_end(o, NAK_GAP);
		return;
	}
	if (rec->skip_mask && !in->syncing) {
		session_fail(s, -ERR_PROTOCOL);
		return;
	}
	if (rec->skip_mask) {
		in->skips++;
		in->current = false;
	}
	a = arrival_get(s->r);
	a->object = o;
	a->serial = in->serial;
	a->skips = in->skips;
	a->record = *rec;
	a->payload = slice_ref(payload);
	a->retry_len = m->retry_len;
	msg_fps(m, a->fps);
	for (unsigned i = 0; i < m->fp_count; i++) {
		if (fp128_equal(hash_block(payload.data + i * BLOCK_SIZE), a->fps[i]))
			continue;
		arrival_free(a);
		session_fail(s, -ERR_CORRUPT);
		return;
	}
	if (!account(o, s, m)) {
		arrival_free(a);
		inbound_end(o, NAK_FULL);
		stay_out(o);
		return;
	}
	if (m->retry_len) {
		a->retry = xmalloc(m->retry_len);
		memcpy(a->retry, m->retry, m->retry_len);
	}
	if (has_seq)
		in->next_seq = rec->version.seq + 1;
	in->commit = version_max(in->commit, rec->commit);
	list_push_back(&in->waiting, &a->link);
	inbound_space(o);
	if (in->state == IN_JOINED)
		take_commit(o, rec->commit);
}

/* ---- Repair reads (Q3): beside the queue, from committed data
 * ------------------------------------ */

struct repair {
	struct wait wait;
	struct object *object;
	struct msg_repair_read m;
	uint16_t node, stream;
	struct store_read read;
	struct buf *buf;
};

static void repair_answer(struct replicator *r, uint16_t node, uint16_t stream,
			  const struct msg_repair_read *q, struct repair *p)
{
	uint8_t body[64 + 16 * MSG_REPAIR_BLOCKS_MAX];
	struct writer w = writer_init(body, sizeof(body));
	struct session *s = r->peers[node].stream[stream];
	struct msg_repair_data d = {.key = q->key, .ticket = q->ticket};
	struct slice data;

	if (!s)
		return;
	if (p) {
		d.found = true;
		d.fp_count = q->blocks;
		memcpy(d.fps, p->read.fps, q->blocks * sizeof(struct fp128));
		data = (struct slice){
			.buf = p->buf, .data = p->buf->data, .len = q->blocks * BLOCK_SIZE};
	}
	msg_repair_data_encode(&d, &w);
	session_send(s, OP_REPAIR_DATA, &w, p ? &data : NULL);
}

static void repair_resume(struct wait *wait, int rc)
{
	struct repair *p = container_of(wait, struct repair, wait);
	struct object *o = p->object;

	/* A later tenure may have cut and rewritten meanwhile: then what was read proves nothing.
	 */
	if (o->in.state != IN_JOINED || o->in.tenure != p->m.key.tenure ||
	    o->in.join != p->m.key.join || (!o->in.current && rule(RULE_REPAIR)))
		rc = -ERR_STALE;
	repair_answer(o->r, p->node, p->stream, &p->m, rc ? NULL : p);
	buf_unref(p->buf);
	object_release(o);
	free(p);
}

/* The primary holds the range, so nothing newer than its commit exists there; as a member in good
 * standing we have everything up to that commit. Good standing is what the stream says (joined with
 * our log, or COMPLETE is durable and nothing was skipped since), not the map, which may be late.
 */
void inbound_repair_read(struct session *s, const struct msg_repair_read *m)
{
	struct object *o = inbound_find(s, &m->key);
	struct repair *p;
	struct buf *b = NULL;
	int rc;

	if (o && !o->in.current && rule(RULE_REPAIR))
		o = NULL;
	if (o && m->commit.seq <= store_durable(o->store).seq)
		take_commit(o, m->commit);
	if (!o || store_commit_version(o->store).seq < m->commit.seq ||
	    !(b = buf_get(s->r->pool, m->blocks * BLOCK_SIZE))) {
		repair_answer(s->r, s->node, s->stream, m, NULL);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	p->wait.resume = repair_resume;
	p->object = o;
	p->m = *m;
	p->node = s->node;
	p->stream = s->stream;
	p->buf = b;
	p->read.block = m->block;
	p->read.blocks = m->blocks;
	p->read.dest = b->data;
	object_hold(o);
	rc = store_read(o->store, &p->read, &p->wait);
	if (rc != PENDING)
		repair_resume(&p->wait, rc);
}
