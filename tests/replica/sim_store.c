/* SPDX-License-Identifier: Apache-2.0 */
/* store/store.h for the simulator: a lane of entries that become durable in order, pages that are
 * destaged from what is committed, and a crash that keeps what was durable and an arbitrary prefix
 * of the rest.
 *
 * A block's content is its first eight bytes per sector; the rest is zeros. Each page has two
 * images: the view (log over map, committed), and the base (destaged). After a crash the view is
 * made anew from the base and the lane, by the rules of replay (replication.md Y4, L2). */
#include "tests/replica/sim_store_impl.h"

#include <stdlib.h>

static uint32_t object_pages(void)
{
	return (64u << 20) / BLOCK_SIZE / PAGE_BLOCKS;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static struct page *page_get(struct store_object *o, uint32_t n)
{
	if (!o->page[n])
		o->page[n] = xcalloc(1, sizeof(struct page));
	return o->page[n];
}

static struct sblock block_from(const uint8_t *data, struct fp128 fp)
{
	struct sblock b = {.state = BLOCK_DATA, .fp = fp};

	for (unsigned i = 0; i < SIM_SECTORS_PER_BLOCK; i++)
		b.word[i] = get_le64(data + i * SIM_SECTOR);
	return b;
}

static void apply_to(struct image *im, const struct entry *e, uint32_t page)
{
	const struct record *r = &e->r;
	uint32_t first = r->block >> PAGE_SHIFT, at = 0;

	for (uint32_t i = 0; i < r->blocks; i++) {
		uint32_t b = r->block + i, pg = b >> PAGE_SHIFT;
		bool skipped = r->skip_mask >> (pg - first) & 1, data = false;

		if (r->kind == RECORD_COPY)
			data = r->copy_data >> i & 1;
		else if (r->kind == RECORD_WRITE)
			data = !skipped;
		if (pg == page && !skipped) {
			struct sblock *x = &im->b[b % PAGE_BLOCKS];

			if (data)
				*x = e->blocks[at];
			else if (r->kind == RECORD_TRIM ||
				 (r->kind == RECORD_COPY && r->copy_hole >> i & 1))
				*x = (struct sblock){.state = BLOCK_HOLE};
			else if (r->kind == RECORD_ZEROES ||
				 (r->kind == RECORD_COPY && r->copy_zero >> i & 1))
				*x = (struct sblock){.state = BLOCK_ZERO};
			else if (r->kind == RECORD_COPY && r->copy_damaged >> i & 1)
				*x = (struct sblock){.state = BLOCK_BAD};
		}
		at += data;
	}
	im->v = r->version;
}

/* The entry becomes part of the view: once. replay: only where it is newer than the page (Y4, L2).
 */
void apply_entry(struct entry *e, bool replay)
{
	uint32_t first = e->r.block >> PAGE_SHIFT, n = record_pages(&e->r);

	e->applied = true;
	for (uint32_t i = 0; i < n; i++) {
		struct page *pg = page_get(e->o, first + i);

		if (e->r.skip_mask >> i & 1)
			continue;
		if (replay && version_cmp(e->r.version, pg->view.v) <= 0 &&
		    !(e->r.kind == RECORD_COPY && page_damaged(&pg->view)))
			continue;
		if (sim.plan.verbose)
			sim_trace("g%u object %llx page %u: %s kind %u %u/%llu over %u/%llu block "
				  "%u+%u skip %x copy %llx",
				  e->o->s->group, (unsigned long long)e->o->id, first + i,
				  replay ? "replays" : "applies", e->r.kind, e->r.version.tenure,
				  (unsigned long long)e->r.version.seq, pg->view.v.tenure,
				  (unsigned long long)pg->view.v.seq, e->r.block, e->r.blocks,
				  e->r.skip_mask, (unsigned long long)e->r.copy_data);
		/* The product's log compares by number alone. */
		if (e->r.kind != RECORD_COPY && !replay && e->r.version.seq <= pg->view.v.seq)
			sim_fail("store: page %u is written at %u/%llu, and is of %u/%llu already", first + i,
				 e->r.version.tenure, (unsigned long long)e->r.version.seq,
				 pg->view.v.tenure, (unsigned long long)pg->view.v.seq);
		apply_to(&pg->view, e, first + i);
	}
}

static uint32_t tenure_at(const struct object_header *h, uint64_t seq)
{
	uint32_t t = 0;

	for (unsigned i = 0; i < h->epoch_count && h->epochs[i].first_seq <= seq; i++)
		t = h->epochs[i].tenure;
	return t;
}

static bool in_history(const struct object_header *h, struct version v)
{
	uint32_t t = tenure_at(h, v.seq);

	return t ? t == v.tenure : !h->epoch_count || v.tenure < h->epochs[0].tenure;
}

struct entry *lane_next(struct store *s, struct entry *e, const struct store_object *o,
			       bool records)
{
	struct list *n = e ? e->link.next : s->lane.next;

	for (; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		if (e->o == o && !e->is_void &&
		    (!records || (is_data_record(e->r.kind) && e->r.kind != RECORD_COPY)))
			return e;
	}
	return NULL;
}

/* Committed records become readable, in order; in a replay those up to the entry that it has come
 * to. */
void advance_to(struct store_object *o, bool replay, uint64_t no)
{
	struct version commit = version_cmp(o->known, o->last) < 0 ? o->known : o->last;
	struct entry *e = NULL;

	while ((e = lane_next(o->s, e, o, true))) {
		if (e->applied)
			continue;
		if (version_cmp(e->r.version, commit) > 0 || e->r.version.seq > commit.seq ||
		    e->no > no)
			break;
		apply_entry(e, replay);
	}
	if (version_cmp(o->h.commit, commit) < 0)
		o->h.commit = commit;
}

void advance(struct store_object *o, bool replay)
{
	advance_to(o, replay, UINT64_MAX);
}

enum retry_answer store_retry_lookup(const struct store_object *o, uint32_t attachment,
				     uint32_t attach_epoch, uint64_t request, struct version *v)
{
	return retry_lookup(&o->retry, attachment, attach_epoch, request, v);
}

void store_retry_encode(const struct store_object *o, struct writer *w)
{
	write_bytes(w, o->retry.e, o->retry.n * sizeof(*o->retry.e));
}

/* ---- The lane -------------------------------------------------------------------------------- */

void entry_free(struct entry *e)
{
	list_del(&e->link);
	e->o->s->entries--;
	free(e->blocks);
	free(e->retry);
	free(e);
}

struct batch {
	struct store *s;
	uint64_t upto;
};

static void batch_durable(void *arg)
{
	struct batch *b = arg;
	struct store *s = b->s;
	struct entry *e;
	struct list *n;
	struct wait *ready[4096];
	size_t count = 0;
	int rc = s->failed;

	for (n = s->lane.next; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		if (e->no > b->upto)
			break;
		if (e->durable)
			continue;
		e->durable = !s->failed;
		if (e->durable && !e->is_void && e->r.kind != RECORD_COPY && !e->o->deleted &&
		    e->no >= e->o->cut_no)
			e->o->durable = version_max(e->o->durable, e->r.version);
		if (e->op && count < ARRAY_LEN(ready)) {
			ready[count++] = e->wait;
			e->op = NULL;
		}
	}
	free(b);
	for (size_t i = 0; i < count; i++)
		wait_resume(ready[i], rc);
}

static void batch_drop(void *arg)
{
	free(arg);
}

void lane_batch(struct turn_end *t)
{
	struct store *s = container_of(t, struct store, turn);
	struct batch *b = xcalloc(1, sizeof(*b));
	uint64_t at = sim.now_us + sim_rand(30, 400) + s->slow_us;

	b->s = s;
	b->upto = s->no;
	s->durable_at = at = MAX(at, s->durable_at + 1);
	sim_at(at - sim.now_us, s->p, batch_durable, batch_drop, b);
}

static struct entry *lane_add(struct store_object *o, struct store_append *op, struct wait *w)
{
	struct store *s = o->s;
	struct entry *e = xcalloc(1, sizeof(*e));

	e->o = o;
	e->no = ++s->no;
	e->op = op;
	e->wait = w;
	op->wait = w;
	op->object = o;
	list_push_back(&s->lane, &e->link);
	s->entries++;
	turn_end_arm(s->p->loop, &s->turn, TURN_LOG);
	return e;
}

int store_append(struct store_object *o, struct store_append *op, const struct record *r,
		 const void *payload, const struct fp128 *fps, struct wait *w)
{
	struct entry *e;
	uint32_t n = record_payload_blocks(r);

	if (refusal(o->s))
		return refusal(o->s);
	if (n && o->s->entries >= o->s->limit)
		return -ERR_LIMIT;
	if (r->kind != RECORD_COPY) {
		if (r->version.seq <= o->last.seq || version_cmp(r->version, o->last) <= 0 ||
		    !in_history(&o->h, r->version)) {
			sim_fail("store: a record out of order: %u/%llu after %u/%llu",
				 r->version.tenure, (unsigned long long)r->version.seq,
				 o->last.tenure, (unsigned long long)o->last.seq);
			return -ERR_INVALID;
		}
	}
	e = lane_add(o, op, w);
	e->r = *r;
	e->blocks = xcalloc(n + 1, sizeof(*e->blocks));
	o->s->taken += (uint64_t)n * STORE_BYTES_PER_BLOCK;
	for (uint32_t i = 0; i < n; i++)
		e->blocks[i] = block_from((const uint8_t *)payload + i * BLOCK_SIZE, fps[i]);
	o->known = version_max(o->known, r->commit);
	if (r->kind == RECORD_COPY) {
		apply_entry(e, false);
	} else {
		o->last = r->version;
		retry_note(&o->retry, r, r->version);
		advance(o, false);
	}
	return PENDING;
}

static void object_cut(struct store_object *o, struct version after, uint64_t no)
{
	struct entry *e = NULL;

	while ((e = lane_next(o->s, e, o, true)))
		if (!e->applied && e->r.version.seq > after.seq && e->no < no) {
			e->is_void = true;
			e->cut_no = no;
		}
	o->cut_no = no;
	retry_cut(&o->retry, after);
	o->last = version_cmp(after, o->last) < 0 ? after : o->last;
	o->known = version_cmp(o->last, o->known) < 0 ? o->last : o->known;
	o->durable = version_cmp(o->last, o->durable) < 0 ? o->last : o->durable;
}

void take_header(struct store_object *o, const struct entry *e)
{
	struct version commit = o->h.commit;
	struct entry *t = NULL;

	o->h = e->h;
	o->h.commit = commit;
	if (e->r.kind == RECORD_CUT)
		object_cut(o, e->cut_after, e->no);
	if (e->r.kind == RECORD_COMPLETE) {
		o->last = version_max(o->last, version_max(e->h.commit, e->cut_after));
		o->known = version_max(o->known, e->h.commit);
		o->damaged = false;
		if (e->retry_len)
			retry_decode(&o->retry, e->retry, e->retry_len);
		while ((t = lane_next(o->s, t, o, true)))
			if (!t->applied && t->no < e->no)
				retry_note(&o->retry, &t->r, t->r.version);
	}
}

int store_put_header(struct store_object *o, struct store_append *op, enum record_kind kind,
		     const struct object_header *h, struct version cut_after, const void *retry,
		     size_t retry_len, struct wait *w)
{
	struct entry *e;

	if (refusal(o->s))
		return refusal(o->s);
	if (h->seen < o->h.seen) {
		sim_fail("store: seen goes back from %u to %u", o->h.seen, h->seen);
		return -ERR_STALE;
	}
	if (kind == RECORD_CUT && version_cmp(cut_after, o->h.commit) < 0) {
		sim_fail("store: a cut below the commit");
		return -ERR_DIVERGED;
	}
	e = lane_add(o, op, w);
	e->r.kind = (uint8_t)kind;
	e->h = *h;
	e->cut_after = cut_after;
	if (retry_len) {
		e->retry = xmalloc(retry_len);
		memcpy(e->retry, retry, retry_len);
		e->retry_len = retry_len;
	}
	take_header(o, e);
	e->r.version = o->last;
	e->r.commit = o->h.commit;
	advance(o, false);
	return PENDING;
}

void store_commit(struct store_object *o, struct version v)
{
	o->known = version_max(o->known, v);
	advance(o, false);
}

int store_wait_space(struct store *s, unsigned shard, struct list *link, struct wait *w)
{
	struct space_wait *sw = xcalloc(1, sizeof(*sw));

	if (refusal(s)) {
		free(sw);
		return refusal(s);
	}
	sw->wait = w;
	list_push_back(&s->space, &sw->link);
	return PENDING;
}

/* ---- Objects --------------------------------------------------------------------------------- */

struct store_object *store_object_find(struct store *s, unsigned shard, uint64_t object,
				       uint32_t gen)
{
	struct store_object *o;

	list_for_each(o, &s->objects,
		      link) if (o->id == object && o->gen == gen && !o->deleted) return o;
	return NULL;
}

void store_object_each(struct store *s, unsigned shard,
		       void (*fn)(void *arg, struct store_object *o), void *arg)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) if (!o->deleted) fn(arg, o);
}

uint64_t store_object_id(const struct store_object *o)
{
	return o->id;
}
uint32_t store_object_gen(const struct store_object *o)
{
	return o->gen;
}
void store_object_reduce(struct store_object *o, uint32_t request)
{
}

void store_object_set_policy(struct store_object *o, bool compression, bool dedup)
{
}

int store_object_create(struct store *s, unsigned shard, struct store_create *op, uint64_t id,
			uint32_t gen, uint32_t volume, struct wait *w)
{
	struct store_object *o;

	if (refusal(s))
		return refusal(s);
	list_for_each(o, &s->objects, link) if (o->id == id) o->deleted = true;
	o = xcalloc(1, sizeof(*o));
	o->s = s;
	o->id = id;
	o->gen = gen;
	o->volume = volume;
	o->pages = object_pages();
	o->page = xcalloc(o->pages, sizeof(*o->page));
	list_push_back(&s->objects, &o->link);
	op->object = o;
	return job_start(o, op, sample_nothing, w);
}

int store_object_delete(struct store_object *o, struct wait *w)
{
	o->deleted = true;
	return 0;
}

const struct object_header *store_header(const struct store_object *o)
{
	return &o->h;
}
struct version store_last(const struct store_object *o)
{
	return o->last;
}
struct version store_durable(const struct store_object *o)
{
	return o->durable;
}
struct version store_commit_version(const struct store_object *o)
{
	return o->h.commit;
}
struct version store_known(const struct store_object *o)
{
	return o->known;
}
bool store_is_new(const struct store_object *o)
{
	return !o->last.seq;
}
uint64_t store_lost(const struct store_object *o)
{
	return 0;
}
void store_refilled(struct store_object *o, uint64_t lost)
{
}
bool store_loss_known(const struct store *s)
{
	return true;
}

bool store_is_damaged(const struct store_object *o)
{
	return o->damaged;
}

/* ---- Space ----------------------------------------------------------------------------------- */

uint64_t store_grant(struct store *s, uint64_t want)
{
	uint64_t got = s->full ? 0 : MIN(want, s->free_bytes - s->granted);

	s->granted += got;
	return got;
}

void sim_store_fill(struct store *s, bool full)
{
	s->full = full;
}

bool store_is_full(struct store *s)
{
	return true;
}

bool store_grant_copy(struct store *s, uint64_t bytes)
{
	return store_grant(s, bytes) == bytes;
}

void store_grant_return(struct store *s, uint64_t bytes)
{
	CHECK(s->granted >= bytes);
	s->granted -= bytes;
}

/* Space of what was written comes back at once here: it is not what is tested. */
void store_grant_spend(struct store *s, uint64_t bytes)
{
	s->paid += bytes;
	store_grant_return(s, bytes);
}

int64_t sim_store_unpaid(const struct store *s)
{
	return (int64_t)(s->taken - s->paid);
}

void store_stats(struct store *s, struct store_stats *out)
{
	*out = (struct store_stats){.log_fill_permyriad =
					    (uint32_t)MIN(10000, s->entries * 10000 / s->limit),
				    .destage_blocks_per_s = 10000,
				    .failed = s->failed};
}

void store_identity(const struct store *s, struct store_identity *out)
{
	*out = (struct store_identity){.group_number = s->group,
				       .group_incarnation = s->incarnation,
				       .node_incarnation = s->node_incarnation};
}
