/* SPDX-License-Identifier: Apache-2.0 */
/* Catch-up, from the source's side and the target's (Y2–Y6). The primary compares region folds,
 * then page versions; what differs is copied, block by block as the target's manifest says, in the
 * same stream as new records. A page is current or it is not: to a page that is not, records go
 * without payload.
 *
 * A record that went to the target as skip makes its page one that must be copied, whatever a
 * comparison that was under way says: the comparison may have looked before the record.
 *
 * A target that had no space gets first what brings no data: where it is trimmed by now that makes room, and
 * a full group would stay out for ever if it had to take something before it may give something back. */
#include "cluster/replica_impl.h"

#include <stdlib.h>

#define SYNC_BYTES_MAX    (8u << 20)  /* copies stop earlier than client writes */
#define FILL_COPIES_MAX   4u
#define LOG_COPIES        5000u /* of 10000: from here on a target gets copies at the floor's rate only */

enum page_state { PAGE_UNKNOWN, PAGE_DIFFERS, PAGE_COPYING, PAGE_CURRENT };
enum fill_stage { FILL_FOLDS, FILL_VERSIONS, FILL_COPY };
enum copy_stage { COPY_FREE, COPY_ASKED, COPY_RANGE, COPY_MANIFEST, COPY_READ };

struct copy { /* one page on its way */
	struct fill *fill;
	enum copy_stage stage;
	uint32_t page;
	struct range_entry range;
	bool in_range, ready;
	struct msg_manifest theirs;
	struct wait wait;
	struct buf *buf;
	uint64_t data;
	union {
		struct store_manifest mine;
		struct store_read read;
	};
	struct version version; /* of the page, committed */
	uint64_t zero, hole, damaged;
};

struct fill {
	struct list link;      /* r->fills */
	struct member *member; /* NULL: ended */
	struct primary *primary;
	struct object *object;
	unsigned refs;
	enum fill_stage stage;
	uint32_t pages, regions, not_current, region, cursor;
	uint8_t *page;    /* enum page_state */
	uint8_t *differs; /* per region: its fold differs */
	uint64_t *theirs, *mine;
	bool asked, comparing, complete_sent, running, again;
	bool only_without_data; /* for now */
	uint32_t complete_at; /* copies_sent with which COMPLETE is acknowledged */
	struct store_folds folds;
	struct store_versions versions;
	struct msg_versions their_versions;
	struct wait wait;
	struct copy copies[FILL_COPIES_MAX];
};

void resync_send(struct session *s, uint16_t opcode, struct writer *w, const struct slice *payload)
{
	s->r->stats.resync_sent_bytes += WIRE_HEADER_SIZE + w->len + (payload ? payload->len : 0);
	session_send(s, opcode, w, payload);
}

static void fill_put(struct fill *f)
{
	if (--f->refs)
		return;
	free(f->page);
	free(f->differs);
	free(f->theirs);
	free(f->mine);
	free(f);
}

static void fill_hold(struct fill *f)
{
	f->refs++;
	f->primary->refs++;
	object_hold(f->object);
}

static void fill_release(struct fill *f)
{
	struct primary *p = f->primary;

	object_release(f->object);
	fill_put(f);
	primary_put(p);
}

static void set_current(struct fill *f, uint32_t page)
{
	if (f->page[page] != PAGE_CURRENT)
		f->not_current--;
	f->page[page] = PAGE_CURRENT;
}

uint32_t fill_left(const struct fill *f)
{
	return f->not_current;
}

bool fill_complete(const struct fill *f)
{
	return f->complete_sent && !f->not_current && f->member &&
	       f->member->copies_acked >= f->complete_at;
}

/* Pages of the record that go without payload. skip_all: the target has no credit for it, so its
 * pages stop being current (Y5). */
uint8_t fill_skip_mask(struct fill *f, const struct record *rec, bool skip_all)
{
	uint32_t first = rec->block >> PAGE_SHIFT, n = record_pages(rec);
	uint8_t mask = 0;

	for (uint32_t i = 0; i < n && first + i < f->pages; i++) {
		uint8_t *st = &f->page[first + i];

		if (skip_all && *st == PAGE_CURRENT && !rule(RULE_NO_CREDIT)) {
			mask |= (uint8_t)(1u << i);
			continue;
		}
		if (skip_all && *st == PAGE_CURRENT) {
			*st = PAGE_DIFFERS;
			f->not_current++;
			f->complete_sent = false;
			f->cursor = MIN(f->cursor, first + i);
		}
		if (*st == PAGE_CURRENT || !rule(RULE_SKIP))
			continue;
		mask |= (uint8_t)(1u << i);
		if (*st == PAGE_UNKNOWN && rule(RULE_TOUCHED)) {
			*st = PAGE_DIFFERS;
			f->cursor = MIN(f->cursor, first + i);
		}
	}
	return mask;
}

/* ---- Comparing ----------------------------------------------------------------------------------
 */

static void fill_resume(struct wait *w, int rc)
{
	struct fill *f = container_of(w, struct fill, wait);
	uint32_t first;

	f->comparing = false;
	if (!f->member) {
		fill_release(f);
		return;
	}
	if (rc < 0) {
		member_unjoin(f->member, now_us(f->primary->r) + 1000000);
		fill_release(f);
		return;
	}
	if (f->stage == FILL_FOLDS) {
		for (uint32_t i = 0; i < f->regions; i++) {
			f->differs[i] = f->mine[i] != f->theirs[i];
			for (uint32_t g = i * REGION_PAGES;
			     !f->differs[i] && g < MIN((i + 1) * REGION_PAGES, f->pages); g++)
				if (f->page[g] == PAGE_UNKNOWN)
					set_current(f, g);
		}
		f->stage = FILL_VERSIONS;
	} else {
		first = f->region * REGION_PAGES;
		for (uint32_t i = 0; i < REGION_PAGES && first + i < f->pages; i++) {
			uint8_t *st = &f->page[first + i];

			if (*st != PAGE_UNKNOWN)
				continue;
			int differs = version_cmp(f->versions.versions[i], f->their_versions.versions[i]);

			if ((rule(RULE_DIFFERS) ? !differs : differs <= 0) &&
			    !(f->their_versions.damaged >> i & 1))
				set_current(f, first + i);
			else
				*st = PAGE_DIFFERS;
		}
		f->region++;
		f->asked = false;
	}
	fill_run(f);
	fill_release(f);
}

void fill_start(struct member *m, const struct msg_joined *j)
{
	struct primary *p = m->primary;
	struct fill *f;
	uint32_t blocks = object_blocks(p->object);
	int rc;

	if (!blocks || j->fold_count != (blocks + REGION_BLOCKS - 1) / REGION_BLOCKS) {
		member_unjoin(m, now_us(p->r) + 1000000);
		return;
	}
	f = xcalloc(1, sizeof(*f));
	f->member = m;
	f->primary = p;
	f->object = p->object;
	f->refs = 1;
	f->pages = (blocks + PAGE_BLOCKS - 1) / PAGE_BLOCKS;
	f->regions = j->fold_count;
	f->not_current = f->pages;
	f->page = xcalloc(f->pages, 1);
	f->differs = xcalloc(f->regions, 1);
	f->theirs = xcalloc(f->regions, 8);
	f->mine = xcalloc(f->regions, 8);
	memcpy(f->theirs, j->folds, f->regions * 8);
	f->wait.resume = fill_resume;
	for (unsigned i = 0; i < FILL_COPIES_MAX; i++)
		f->copies[i].fill = f;
	f->only_without_data = m->full;
	m->full = false;
	m->fill = f;
	list_push_back(&p->r->fills, &f->link);
	p->r->stats.syncing++;
	m->session->fills++;
	/* The uncommitted tail counts: the target did not get it (Y2). */
	f->folds =
		(struct store_folds){.folds = f->mine,
				     .regions = f->regions,
				     .uncommitted = rule(RULE_UNCOMMITTED)};
	f->comparing = true;
	fill_hold(f);
	rc = store_folds(p->object->store, &f->folds, &f->wait);
	if (rc != PENDING)
		fill_resume(&f->wait, rc);
}

static void ask_versions(struct fill *f)
{
	uint8_t body[32];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_versions q = {.key = {f->object->id, f->primary->tenure, f->member->join},
				 .region = f->region};

	msg_versions_encode(&q, &w);
	resync_send(f->member->session, OP_VERSIONS, &w, NULL);
	f->asked = true;
}

void fill_versions(struct member *m, const struct msg_versions *v)
{
	struct fill *f = m->fill;
	int rc;

	if (f->stage != FILL_VERSIONS || !f->asked || f->comparing || v->region != f->region)
		return;
	f->their_versions = *v;
	f->versions = (struct store_versions){.region = f->region, .uncommitted = rule(RULE_UNCOMMITTED)};
	f->comparing = true;
	fill_hold(f);
	rc = store_page_versions(f->object->store, &f->versions, &f->wait);
	if (rc != PENDING)
		fill_resume(&f->wait, rc);
}

/* ---- Copying ------------------------------------------------------------------------------------
 */

static void copy_run(struct copy *c, int rc);

static void copy_resume(struct wait *w, int rc)
{
	struct copy *c = container_of(w, struct copy, wait);
	struct fill *f = c->fill;

	copy_run(c, rc);
	fill_release(f);
}

static void copy_end(struct copy *c)
{
	if (c->in_range && c->fill->primary->state != PRIMARY_ENDED)
		range_leave(&c->fill->primary->range, &c->range);
	c->in_range = false;
	if (c->buf)
		buf_unref(c->buf);
	c->buf = NULL;
	c->stage = COPY_FREE;
}

/* The page as of now is committed and holds still: writes ahead have left, those behind wait. */
static void copy_granted(struct range_entry *e)
{
	struct copy *c = container_of(e, struct copy, range);

	c->ready = true;
	c->fill->primary->r->gate_open = true;
	object_busy(c->fill->object);
	replica_arm(c->fill->primary->r);
}

/* Blocks of the page that the target has not, by its manifest. */
static void differ(struct copy *c)
{
	const struct store_manifest *a = &c->mine;
	const struct msg_manifest *b = &c->theirs;
	uint64_t data = 0;

	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (a->data >> i & 1 && !(b->data >> i & 1 && a->fp64[i] == b->fp64[i]))
			data |= 1ull << i;
	c->version = a->version;
	c->zero = a->zero & ~b->zero;
	c->hole = rule(RULE_HOLES) ? a->hole & ~b->hole : 0;
	/* What is lost here and is there, by its fingerprint, stays: it may be the last good copy. */
	c->damaged = 0;
	for (uint64_t m = a->damaged; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		if (!(b->data >> i & 1) || !a->fp64[i] || a->fp64[i] != b->fp64[i])
			c->damaged |= 1ull << i;
	}
	c->data = data;
}

static bool only_copy(const struct primary *p)
{
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].want)
			return false;
	return true;
}

/* Nothing that is committed is in a copy and not at its source (C1), unless the source lost it (T5): its disk
 * went back to what it once was, while a copy was under way. The target's may be the last one of it, so
 * nothing is copied over it: an operator decides, until then it is in quarantine. Where the page is damaged
 * here, and others may have it, it is mended first. */
static void source_is_older(struct copy *c)
{
	struct fill *f = c->fill;
	struct primary *p = f->primary;
	struct member *m = f->member;

	copy_end(c);
	if (!c->mine.damaged || only_copy(p)) {
		if (!p->lack_told)
			replica_event(p->r, 2, "REPLICA_LOST_DATA",
				      "object %llx: the replica on node %u, group %u lacks writes to page %u "
				      "that were acknowledged: an unfinished copy on node %u has them",
				      (unsigned long long)p->object->id, p->r->node, p->object->group->id,
				      c->page, m->node);
		p->lack_told = true;
		member_quarantine(m);
	}
	member_unjoin(m, now_us(p->r) + 1000000);
}

static void copy_send(struct copy *c)
{
	static _Thread_local uint8_t body[MSG_REPLICATE_MAX];
	struct fill *f = c->fill;
	struct primary *p = f->primary;
	struct member *m = f->member;
	struct writer w = writer_init(body, sizeof(body));
	struct msg_replicate msg = {.key = {f->object->id, p->tenure, m->join}};
	struct fp128 fps[PAGE_BLOCKS];
	struct slice payload = {0};
	uint32_t n = 0;

	for (unsigned i = 0; i < PAGE_BLOCKS && c->data; i++) {
		if (!(c->data >> i & 1))
			continue;
		if (c->read.bad[0] >> i & 1) { /* cannot be produced here: travels as damaged */
			c->damaged |= 1ull << i;
			c->data &= ~(1ull << i);
			continue;
		}
		if (n != i)
			memcpy(c->buf->data + n * BLOCK_SIZE, c->buf->data + i * BLOCK_SIZE,
			       BLOCK_SIZE);
		fps[n++] = c->read.fps[i];
	}
	msg.fp_count = n;
	msg.record = (struct record){.kind = RECORD_COPY,
				     .version = c->version,
				     .commit = p->commit,
				     .block = c->page * PAGE_BLOCKS,
				     .blocks = PAGE_BLOCKS,
				     .copy_data = c->data,
				     .copy_zero = c->zero,
				     .copy_hole = c->hole,
				     .copy_damaged = c->damaged};
	if (n)
		payload =
			(struct slice){.buf = c->buf, .data = c->buf->data, .len = n * BLOCK_SIZE};
	msg_replicate_encode(&msg, fps, &w);
	resync_send(m->session, OP_REPLICATE, &w, n ? &payload : NULL);
	m->bytes_sent += MSG_RECORD_BYTES + payload.len;
	m->session->unacked_bytes += MSG_RECORD_BYTES + payload.len;
	if (m->copies_sent == m->copies_acked)
		m->ack_us = now_us(p->r);
	m->copies_sent++;
	p->r->stats.resync_bytes += payload.len;
	governor_spent(&p->r->governor, MSG_RECORD_BYTES + payload.len);
	set_current(f, c->page); /* from here on it gets payload */
}

static void copy_run(struct copy *c, int rc)
{
	struct fill *f = c->fill;
	struct primary *p = f->primary;

	while (rc != PENDING) {
		if (!f->member) {
			copy_end(c);
			return;
		}
		if (rc < 0 &&
		    !(c->stage == COPY_READ && (rc == -ERR_DAMAGED || rc == -ERR_CORRUPT))) {
			struct member *m = f->member;

			copy_end(c);
			member_unjoin(m, now_us(p->r) + 1000000);
			return;
		}
		switch (c->stage) {
		case COPY_FREE:
		case COPY_ASKED:
			return;
		case COPY_RANGE: /* granted */
			c->stage = COPY_MANIFEST;
			fill_hold(f);
			rc = store_manifest(f->object->store, &c->mine, &c->wait);
			if (rc != PENDING)
				fill_release(f);
			break;
		case COPY_MANIFEST:
			if (version_cmp(c->mine.version, c->theirs.version) < 0) {
				source_is_older(c);
				return;
			}
			differ(c);
			if (c->data && f->only_without_data) {
				f->page[c->page] = PAGE_DIFFERS;
				copy_end(c);
				fill_run(f);
				return;
			}
			c->stage = COPY_READ;
			memset(&c->read, 0, sizeof(c->read));
			if (!c->data)
				break;
			c->buf = buf_get(p->r->pool, PAGE_BLOCKS * BLOCK_SIZE);
			if (!c->buf) { /* no memory now: the page is tried again */
				f->page[c->page] = PAGE_DIFFERS;
				f->cursor = MIN(f->cursor, c->page);
				copy_end(c);
				return;
			}
			c->read.block = c->page * PAGE_BLOCKS;
			c->read.blocks = MIN(PAGE_BLOCKS, object_blocks(f->object) - c->read.block);
			c->read.dest = c->buf->data;
			fill_hold(f);
			rc = store_read(f->object->store, &c->read, &c->wait);
			if (rc != PENDING)
				fill_release(f);
			break;
		case COPY_READ:
			copy_send(c);
			copy_end(c);
			fill_run(f);
			return;
		}
	}
}

static void ask_manifest(struct fill *f, struct copy *c, uint32_t page)
{
	uint8_t body[32];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_manifest q = {.key = {f->object->id, f->primary->tenure, f->member->join},
				 .page = page};

	f->page[page] = PAGE_COPYING;
	c->page = page;
	c->stage = COPY_ASKED;
	msg_manifest_encode(&q, &w);
	resync_send(f->member->session, OP_MANIFEST, &w, NULL);
}

void fill_manifest(struct member *m, const struct msg_manifest *x)
{
	struct fill *f = m->fill;

	for (unsigned i = 0; i < FILL_COPIES_MAX; i++) {
		struct copy *c = &f->copies[i];

		if (c->stage != COPY_ASKED || c->page != x->page)
			continue;
		c->theirs = *x;
		c->stage = COPY_RANGE;
		c->wait.resume = copy_resume;
		c->range = (struct range_entry){.block = c->page * PAGE_BLOCKS,
						.blocks = PAGE_BLOCKS,
						.kind = RANGE_READ,
						.granted = copy_granted};
		memset(&c->mine, 0, sizeof(c->mine));
		c->mine.page = c->page;
		if (!rule(RULE_COPY_ORDER)) {
			copy_run(c, 0);
			return;
		}
		c->in_range = true;
		c->ready = false;
		if (range_enter(&f->primary->range, &c->range))
			copy_run(c, 0);
		return;
	}
}

static void send_complete(struct fill *f)
{
	struct primary *p = f->primary;
	struct member *m = f->member;
	struct writer w = writer_init_heap(), retry = writer_init_heap();
	struct msg_replicate msg = {
		.key = {f->object->id, p->tenure, m->join},
		.record = {.kind = RECORD_COMPLETE, .version = p->last, .commit = p->commit}};

	store_retry_encode(f->object->store, &retry);
	msg.retry = retry.data;
	msg.retry_len = (uint32_t)retry.len;
	msg_replicate_encode(&msg, NULL, &w);
	resync_send(m->session, OP_REPLICATE, &w, NULL);
	writer_free(&w);
	writer_free(&retry);
	m->bytes_sent += MSG_RECORD_BYTES;
	m->session->unacked_bytes += MSG_RECORD_BYTES;
	m->ack_us = now_us(p->r);
	m->copies_sent++;
	f->complete_at = m->copies_sent;
	f->complete_sent = true;
}

static bool may_copy(struct fill *f)
{
	struct replicator *r = f->primary->r;
	uint64_t wait_us = governor_may_copy(&r->governor, f->member->session->fill > LOG_COPIES);

	if (wait_us && !r->copy_timer.armed)
		timer_set(&r->copy_timer, wait_us);
	return !wait_us;
}

static bool next_page(struct fill *f)
{
	while (f->cursor < f->pages && f->page[f->cursor] != PAGE_DIFFERS)
		f->cursor++;
	return f->cursor < f->pages;
}

/* All that could be copied without data is there: now the rest. */
static bool data_is_next(struct fill *f)
{
	if (!f->only_without_data || f->member->copies_sent != f->member->copies_acked)
		return false;
	for (unsigned i = 0; i < FILL_COPIES_MAX; i++)
		if (f->copies[i].stage != COPY_FREE)
			return false;
	f->only_without_data = false;
	f->cursor = 0;
	return true;
}

static void advance(struct fill *f)
{
	struct member *m = f->member;
	struct copy *c;

	for (unsigned i = 0; i < FILL_COPIES_MAX && f->member; i++) {
		c = &f->copies[i];
		if (c->stage == COPY_RANGE && c->ready) {
			c->ready = false;
			copy_run(c, 0);
		}
	}
	if (!f->member)
		return;
	if (f->stage == FILL_VERSIONS && !f->asked) {
		while (f->region < f->regions && !f->differs[f->region])
			f->region++;
		if (f->region < f->regions)
			ask_versions(f);
		else
			f->stage = FILL_COPY;
	}
	for (unsigned i = 0; i < FILL_COPIES_MAX && f->stage == FILL_COPY; i++) {
		c = &f->copies[i];
		if (c->stage != COPY_FREE)
			continue;
		if (m->copies_sent - m->copies_acked >= FILL_COPIES_MAX ||
		    m->session->unacked_bytes > SYNC_BYTES_MAX || m->session->fill > 8500)
			break;
		if (!(next_page(f) || (data_is_next(f) && next_page(f))) || !may_copy(f))
			break;
		ask_manifest(f, c, f->cursor++);
	}
	if (f->stage == FILL_COPY && !f->not_current && !f->complete_sent)
		send_complete(f);
}

/* Starts whatever can be started now; called after each answer, acknowledgement and tick. Catch-up
 * needs commits, and those begin with serving. */
void fill_run(struct fill *f)
{
	if (!f->member || f->primary->state != PRIMARY_SERVE || f->stage == FILL_FOLDS)
		return;
	governor_now(f->primary->r);
	fill_hold(f);
	advance(f);
	fill_release(f);
}

/* Who had a turn goes to the end, so that none takes all of what is allowed. */
void fills_run(struct replicator *r)
{
	unsigned count = 0;
	struct list *n;

	for (n = r->fills.next; n != &r->fills; n = n->next)
		count++;
	while (count-- && (n = list_pop_front(&r->fills))) {
		list_push_back(&r->fills, n);
		fill_run(list_entry(n, struct fill, link));
	}
}

void fill_end(struct member *m)
{
	struct fill *f = m->fill;

	m->fill = NULL;
	f->member = NULL;
	list_del(&f->link);
	f->primary->r->stats.syncing--;
	m->session->fills--;
	for (unsigned i = 0; i < FILL_COPIES_MAX; i++) {
		struct copy *c = &f->copies[i];

		/* What the store still works on ends by itself. */
		if (c->stage == COPY_ASKED || c->stage == COPY_RANGE)
			copy_end(c);
		else if (c->stage != COPY_FREE && c->in_range &&
			 f->primary->state != PRIMARY_ENDED) {
			range_leave(&f->primary->range, &c->range);
			c->in_range = false;
		}
	}
	fill_put(f);
}

/* ---- The target's answers -----------------------------------------------------------------------
 */

struct question {
	struct wait wait;
	struct object *object;
	unsigned serial;
	bool manifest;
	struct msg_key key;
	union {
		struct store_versions versions;
		struct store_manifest page;
	};
};

static void question_resume(struct wait *w, int rc)
{
	static _Thread_local uint8_t body[64 + 12 * REGION_PAGES + 8 * PAGE_BLOCKS];
	struct question *q = container_of(w, struct question, wait);
	struct object *o = q->object;
	struct writer wr = writer_init(body, sizeof(body));

	if (rc < 0 || q->serial != o->in.serial || o->in.state != IN_JOINED) {
		if (rc < 0 && q->serial == o->in.serial && o->in.session)
			session_fail(o->in.session, rc);
	} else if (q->manifest) {
		struct msg_manifest m = {.key = q->key,
					 .page = q->page.page,
					 .answer = true,
					 .version = q->page.version,
					 .data = q->page.data,
					 .zero = q->page.zero,
					 .hole = q->page.hole,
					 .damaged = q->page.damaged};

		memcpy(m.fp64, q->page.fp64, sizeof(m.fp64));
		msg_manifest_encode(&m, &wr);
		resync_send(o->in.session, OP_MANIFEST, &wr, NULL);
	} else {
		struct msg_versions m = {.key = q->key,
					 .region = q->versions.region,
					 .answer = true,
					 .damaged = q->versions.damaged};

		memcpy(m.versions, q->versions.versions, sizeof(m.versions));
		msg_versions_encode(&m, &wr);
		resync_send(o->in.session, OP_VERSIONS, &wr, NULL);
	}
	object_release(o);
	free(q);
}

static struct question *ask(struct object *o, const struct msg_key *k, bool manifest)
{
	struct question *q = xcalloc(1, sizeof(*q));

	q->wait.resume = question_resume;
	q->object = o;
	q->serial = o->in.serial;
	q->manifest = manifest;
	q->key = *k;
	object_hold(o);
	return q;
}

void target_versions(struct session *s, const struct msg_versions *m)
{
	struct object *o = inbound_find(s, &m->key);
	struct question *q;
	int rc;

	if (!o || m->region >= (object_blocks(o) + REGION_BLOCKS - 1) / REGION_BLOCKS)
		return;
	q = ask(o, &m->key, false);
	q->versions.region = m->region;
	rc = store_page_versions(o->store, &q->versions, &q->wait);
	if (rc != PENDING)
		question_resume(&q->wait, rc);
}

void target_manifest(struct session *s, const struct msg_manifest *m)
{
	struct object *o = inbound_find(s, &m->key);
	struct question *q;
	int rc;

	if (!o || m->page >= (object_blocks(o) + PAGE_BLOCKS - 1) / PAGE_BLOCKS)
		return;
	q = ask(o, &m->key, true);
	q->page.page = m->page;
	rc = store_manifest(o->store, &q->page, &q->wait);
	if (rc != PENDING)
		question_resume(&q->wait, rc);
}
