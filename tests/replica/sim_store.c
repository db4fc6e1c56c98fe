/* SPDX-License-Identifier: Apache-2.0 */
/* store/store.h for the simulator: a lane of entries that become durable in order, pages that are
 * destaged from what is committed, and a crash that keeps what was durable and an arbitrary prefix
 * of the rest.
 *
 * A block's content is its first eight bytes per sector; the rest is zeros. Each page has two
 * images: the view (log over map, committed), and the base (destaged). After a crash the view is
 * made anew from the base and the lane, by the rules of replay (replication.md Y4, L2). */
#include "store/store_device.h"
#include "tests/replica/sim.h"
#include "tests/replica/sim_retry.h"

#include <stdlib.h>

enum block_state { BLOCK_HOLE, BLOCK_ZERO, BLOCK_DATA, BLOCK_BAD };
struct sblock {
	uint64_t word[SIM_SECTORS_PER_BLOCK];
	struct fp128 fp;
	uint8_t state;
	bool unreadable; /* here, while another in-sync replica has it */
	bool told;       /* and marked so in the map */
};
struct image {
	struct version v;
	struct sblock b[PAGE_BLOCKS];
};
struct page {
	struct image view, base;
};

/* One record or header change in the lane. */
struct entry {
	struct list link;
	struct store_object *o;
	uint64_t no;
	bool durable, applied, is_void;
	struct record r;
	struct sblock *blocks;  /* of the payload, in order */
	struct object_header h; /* header kinds */
	struct version cut_after;
	uint8_t *retry;
	size_t retry_len;
	struct store_append *op; /* NULL: nobody waits */
	struct wait *wait;
};

struct store_object {
	struct list link;
	struct store *s;
	uint64_t id;
	uint32_t gen, volume;
	bool deleted, damaged;
	struct object_header h; /* as appended */
	struct version last, durable, known;
	uint64_t cut_no; /* entries before the last cut say nothing about `durable` */
	struct page **page;
	uint32_t pages;
	struct retries retry, base_retry;
	/* saved with the last destage */
	struct object_header base_h;
	struct version base_last;
	uint64_t base_no; /* entries ≤ this are in the saved header */
};

struct store {
	struct sim_proc *p;
	uint16_t group;
	uint32_t incarnation, node_incarnation;
	struct list objects, lane, pending, space, graves;
	uint64_t no;
	size_t entries, limit;
	uint64_t slow_us, durable_at;
	uint64_t granted, free_bytes;
	bool full; /* gives no more credit */
	bool batch_armed;
	struct turn_end turn;
	struct list jobs;
	int failed;  /* what every call answers */
	bool closed; /* no process has it open */
	void (*damage_fn)(void *arg, const struct store_damage *d);
	void *damage_arg;
};

/* A question under way. */
struct job {
	struct list link;
	struct store *s;
	struct wait *wait;
	void (*fn)(struct job *j);
	struct store_object *o;
	void *op;
	int rc;
	bool sampled, ended; /* ended: told so; only its event is left */
};

struct space_wait {
	struct list link;
	struct wait *wait;
};

static int refusal(const struct store *s)
{
	return s->p->dying || s->closed ? -ERR_CLOSED : s->failed;
}

static uint32_t object_pages(void)
{
	return (64u << 20) / BLOCK_SIZE / PAGE_BLOCKS;
}

/* ---- Pages --------------------------------------------------------------------------------------
 */

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

static bool page_damaged(const struct image *im)
{
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (im->b[i].state == BLOCK_BAD)
			return true;
	return false;
}

static bool is_data_record(uint8_t kind)
{
	return kind == RECORD_WRITE || kind == RECORD_TRIM || kind == RECORD_ZEROES ||
	       kind == RECORD_COPY;
}

/* The entry becomes part of the view: once. replay: only where it is newer than the page (Y4, L2).
 */
static void apply_entry(struct entry *e, bool replay)
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

static struct entry *lane_next(struct store *s, struct entry *e, const struct store_object *o,
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
static void advance_to(struct store_object *o, bool replay, uint64_t no)
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

static void advance(struct store_object *o, bool replay)
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

/* ---- The lane -----------------------------------------------------------------------------------
 */

static void entry_free(struct entry *e)
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

static void lane_batch(struct turn_end *t)
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
		if (!e->applied && e->r.version.seq > after.seq && e->no < no)
			e->is_void = true;
	o->cut_no = no;
	retry_cut(&o->retry, after);
	o->last = version_cmp(after, o->last) < 0 ? after : o->last;
	o->known = version_cmp(o->last, o->known) < 0 ? o->last : o->known;
	o->durable = version_cmp(o->last, o->durable) < 0 ? o->last : o->durable;
}

static void take_header(struct store_object *o, const struct entry *e)
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

/* ---- Questions: answered later, seen at some moment in between
 * ----------------------------------- */

static void job_free(struct job *j)
{
	list_del(&j->link);
	free(j);
}

static void job_sample(struct job *j)
{
	if (!j->sampled)
		j->fn(j);
	j->sampled = true;
}

static void job_done(void *arg)
{
	struct job *j = arg;
	struct wait *w = j->wait;
	int rc;

	if (j->ended) {
		job_free(j);
		return;
	}
	if (!j->s->failed)
		job_sample(j);
	rc = j->s->failed ? j->s->failed : j->rc;
	job_free(j);
	wait_resume(w, rc);
}

static void job_drop(void *arg)
{
	job_free(arg);
}

static void sample_folds(struct job *j);
static void sample_versions(struct job *j);

static int job_start(struct store_object *o, void *op, void (*fn)(struct job *), struct wait *w)
{
	struct store *s = o->s;
	struct job *j;
	uint64_t delay;

	if (refusal(s))
		return refusal(s);
	j = xcalloc(1, sizeof(*j));
	j->s = s;
	j->o = o;
	j->op = op;
	j->fn = fn;
	j->wait = w;
	list_push_back(&s->jobs, &j->link);
	if (sim_chance(0.5))
		job_sample(j);
	delay = sim_rand(10, 400) + (sim_chance(0.02) ? sim_rand(1000, 30000) : 0);
	if ((fn == sample_folds || fn == sample_versions) && sim_chance(0.3))
		delay += sim_rand(1000, 30000); /* walks are long */
	sim_at(delay, s->p, job_done, job_drop, j);
	return PENDING;
}

/* A fault that leaves no good copy is not in the plan: damage counts only while all members are in.
 */
static bool unreadable(const struct store_object *o, const struct sblock *x)
{
	const struct map_object *c = map_object(state_map(sim.state), o->id);

	return x->unreadable && !sim.faults_over &&
	       (sim.damage_counts || map_in_count(c) == c->member_count);
}

static void sample_read(struct job *j)
{
	struct store_read *op = j->op;

	memset(op->hole, 0, sizeof(op->hole));
	memset(op->zero, 0, sizeof(op->zero));
	memset(op->bad, 0, sizeof(op->bad));
	for (uint32_t i = 0; i < op->blocks; i++) {
		uint32_t b = op->block + i;
		const struct page *pg = j->o->page[b >> PAGE_SHIFT];
		const struct sblock *x = pg ? &pg->view.b[b % PAGE_BLOCKS] : NULL;
		uint64_t bit = 1ull << (i % 64);

		if (op->dest)
			memset(op->dest + i * BLOCK_SIZE, 0, BLOCK_SIZE);
		op->fps[i] = hash_zero_block();
		if (!x || x->state == BLOCK_HOLE)
			op->hole[i / 64] |= bit;
		else if (x->state == BLOCK_ZERO)
			op->zero[i / 64] |= bit;
		else if (x->state == BLOCK_BAD || unreadable(j->o, x)) {
			op->bad[i / 64] |= bit;
			j->rc = -ERR_DAMAGED;
		} else {
			for (unsigned k = 0; op->dest && k < SIM_SECTORS_PER_BLOCK; k++)
				put_le64(op->dest + i * BLOCK_SIZE + k * SIM_SECTOR, x->word[k]);
			op->fps[i] = x->fp;
		}
	}
}

int store_read(struct store_object *o, struct store_read *op, struct wait *w)
{
	return job_start(o, op, sample_read, w);
}

static struct version page_version(struct store_object *o, uint32_t page, bool uncommitted)
{
	struct version v = o->page[page] ? o->page[page]->view.v : (struct version){0};
	struct entry *e = NULL;

	while (uncommitted && (e = lane_next(o->s, e, o, true))) {
		uint32_t first = e->r.block >> PAGE_SHIFT;

		if (!e->applied && page >= first && page < first + record_pages(&e->r) &&
		    !(e->r.skip_mask >> (page - first) & 1))
			v = version_max(v, e->r.version);
	}
	return v;
}

uint64_t store_fold_term(uint32_t page, struct version v)
{
	uint8_t b[16];

	put_le32(b, page);
	put_le32(b + 4, v.tenure);
	put_le64(b + 8, v.seq);
	return hash_xxh3(b, sizeof(b), 0);
}

static void sample_folds(struct job *j)
{
	struct store_folds *op = j->op;

	for (uint32_t i = 0; i < op->regions; i++) {
		op->folds[i] = 0;
		for (uint32_t k = 0; k < REGION_PAGES; k++) {
			uint32_t page = (op->first_region + i) * REGION_PAGES + k;
			struct version v = page < j->o->pages
						   ? page_version(j->o, page, op->uncommitted)
						   : (struct version){0};

			if (v.seq)
				op->folds[i] ^= store_fold_term(page, v);
		}
	}
}

int store_folds(struct store_object *o, struct store_folds *op, struct wait *w)
{
	return job_start(o, op, sample_folds, w);
}

static void sample_versions(struct job *j)
{
	struct store_versions *op = j->op;

	op->damaged = 0;
	for (uint32_t k = 0; k < REGION_PAGES; k++) {
		uint32_t page = op->region * REGION_PAGES + k;

		op->versions[k] = page < j->o->pages ? page_version(j->o, page, op->uncommitted)
						     : (struct version){0};
		if (page < j->o->pages && j->o->page[page] && page_damaged(&j->o->page[page]->view))
			op->damaged |= 1ull << k;
	}
}

int store_page_versions(struct store_object *o, struct store_versions *op, struct wait *w)
{
	return job_start(o, op, sample_versions, w);
}

static void sample_manifest(struct job *j)
{
	struct store_manifest *op = j->op;
	const struct page *pg = j->o->page[op->page];

	op->data = op->hole = op->zero = op->damaged = 0;
	op->version = page_version(j->o, op->page, false);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		const struct sblock *x = pg ? &pg->view.b[i] : NULL;
		uint64_t bit = 1ull << i;

		if (!x || x->state == BLOCK_HOLE)
			op->hole |= bit;
		else if (x->state == BLOCK_ZERO)
			op->zero |= bit;
		else if (x->state == BLOCK_BAD || (x->told && unreadable(j->o, x)))
			op->damaged |= bit;
		else
			op->data |= bit;
		op->fp64[i] = x && x->state == BLOCK_DATA ? x->fp.lo : 0;
	}
}

int store_manifest(struct store_object *o, struct store_manifest *op, struct wait *w)
{
	return job_start(o, op, sample_manifest, w);
}

static void sample_nothing(struct job *j)
{
}

int store_tail_next(struct store_object *o, struct store_tail *op, struct version after,
		    struct buf_pool *pool, struct wait *w)
{
	struct entry *e = NULL;
	uint32_t n;

	op->payload = (struct slice){0};
	if (version_cmp(after, o->h.commit) < 0)
		return -ERR_STALE;
	while ((e = lane_next(o->s, e, o, true)))
		if (version_cmp(e->r.version, after) > 0)
			break;
	if (!e)
		return -ENODATA;
	op->record = e->r;
	n = record_payload_blocks(&e->r);
	if (n) {
		struct buf *b = buf_get(pool, n * BLOCK_SIZE);

		if (!b)
			return -ENOMEM;
		memset(b->data, 0, n * BLOCK_SIZE);
		for (uint32_t i = 0; i < n; i++) {
			for (unsigned k = 0; k < SIM_SECTORS_PER_BLOCK; k++)
				put_le64(b->data + i * BLOCK_SIZE + k * SIM_SECTOR,
					 e->blocks[i].word[k]);
			op->fps[i] = e->blocks[i].fp;
		}
		op->payload = (struct slice){.buf = b, .data = b->data, .len = n * BLOCK_SIZE};
	}
	return sim_chance(0.5) ? 0 : job_start(o, op, sample_nothing, w);
}

/* ---- Objects ------------------------------------------------------------------------------------
 */

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

void sim_store_spoil(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) o->damaged = true;
}

/* ---- Space --------------------------------------------------------------------------------------
 */

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
	store_grant_return(s, bytes);
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

/* ---- Destage, crash, replay ---------------------------------------------------------------------
 */

static bool object_settled(struct store_object *o)
{
	struct entry *e = NULL;

	while ((e = lane_next(o->s, e, o, false)))
		if (!e->durable)
			return false;
	return true;
}

static bool entry_released(const struct entry *e)
{
	const struct store_object *o = e->o;
	uint32_t first, n;

	if (!e->durable)
		return false;
	if (e->is_void || o->deleted)
		return e->no <= o->base_no || o->deleted;
	if (e->no > o->base_no)
		return false;
	if (!is_data_record(e->r.kind))
		return true;
	if (!e->applied)
		return false;
	first = e->r.block >> PAGE_SHIFT;
	n = record_pages(&e->r);
	for (uint32_t i = 0; i < n; i++)
		if (!(e->r.skip_mask >> i & 1) &&
		    (!o->page[first + i] ||
		     version_cmp(o->page[first + i]->base.v, e->r.version) < 0))
			return false;
	return true;
}

/* Some pages of the objects that are settled, their headers, then what this lets go of the lane. */
void sim_store_destage(struct store *s)
{
	struct store_object *o;
	struct list waiting = LIST_INIT(waiting), *n;
	bool room;

	if (s->failed || s->closed)
		return;
	list_for_each(o, &s->objects, link)
	{
		if (o->deleted || !object_settled(o))
			continue;
		for (uint32_t i = 0; i < o->pages; i++)
			if (o->page[i] && (s->entries > s->limit / 2 || sim_chance(0.7)))
				o->page[i]->base = o->page[i]->view;
		o->base_h = o->h;
		o->base_last = o->last;
		retry_copy(&o->base_retry, &o->retry);
		o->base_no = s->no;
	}
	for (n = s->lane.next; n != &s->lane;) {
		struct entry *e = list_entry(n, struct entry, link);

		n = n->next;
		if (!entry_released(e))
			break;
		entry_free(e);
	}
	room = s->entries < s->limit;
	if (room)
		list_splice_back(&waiting, &s->space);
	while ((n = list_pop_front(&waiting))) {
		struct space_wait *sw = list_entry(n, struct space_wait, link);
		struct wait *w = sw->wait;

		free(sw);
		wait_resume(w, 0); /* may wait anew */
	}
}

/* From base and lane, as a start after a crash does. */
static void object_replay(struct store_object *o)
{
	struct entry *e = NULL;
	struct version known;

	for (uint32_t i = 0; i < o->pages; i++)
		if (o->page[i])
			o->page[i]->view = o->page[i]->base;
	o->h = o->base_h;
	o->last = o->base_last;
	known = o->base_h.commit;
	retry_copy(&o->retry, &o->base_retry);
	while ((e = lane_next(o->s, e, o, false)))
		e->applied = false;
	/* What was saved with the last destage knows the uncommitted records still in the lane. */
	o->known = known;
	e = NULL;
	while ((e = lane_next(o->s, e, o, false))) {
		known = version_max(known, e->r.commit);
		if (e->r.kind == RECORD_COPY) {
			advance_to(o, true, e->no);
			apply_entry(e, true);
		} else if (is_data_record(e->r.kind)) {
			if (e->no > o->base_no) {
				o->last = e->r.version;
				retry_note(&o->retry, &e->r, e->r.version);
			}
		} else if (e->no > o->base_no) {
			take_header(o, e);
		}
		o->known = version_max(o->known, known);
	}
	advance(o, true);
	o->durable = o->last;
}

void sim_store_attach(struct store *s, struct sim_proc *p)
{
	struct store_object *o, *tmp;

	s->p = p;
	turn_end_init(&s->turn, lane_batch);
	s->durable_at = 0;
	s->granted = 0;
	s->failed = 0;
	s->closed = false;
	s->node_incarnation = p->incarnation;
	list_for_each_safe(o, tmp, &s->objects, link) if (!o->deleted) object_replay(o);
}

void sim_store_fail(struct store *s, int code)
{
	s->failed = code;
}

void sim_store_crash(struct store *s)
{
	struct list *n, *prev;
	struct entry *e;
	struct job *j, *tmp;
	size_t lost = 0, keep = 0;

	/* Every wait ends, as store_stop promises. */
	for (n = s->lane.next; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		lost += !e->durable;
		if (e->op) {
			e->op = NULL;
			wait_resume(e->wait, -ERR_CLOSED);
		}
	}
	list_for_each_safe(j, tmp, &s->jobs, link)
	{
		struct wait *w = j->wait;

		list_del(&j->link); /* its event frees it */
		list_init(&j->link);
		j->ended = true;
		wait_resume(w, -ERR_CLOSED);
	}
	while ((n = list_pop_front(&s->space))) {
		struct space_wait *sw = list_entry(n, struct space_wait, link);

		wait_resume(sw->wait, -ERR_CLOSED);
		free(sw);
	}
	turn_end_disarm(&s->turn);
	/* Any prefix of what was under way may have reached the disk. */
	keep = lost ? sim_rand(0, lost) : 0;
	for (n = s->lane.next; n != &s->lane && keep; n = n->next) {
		e = list_entry(n, struct entry, link);
		if (!e->durable) {
			e->durable = true;
			keep--;
		}
	}
	for (n = s->lane.prev; n != &s->lane; n = prev) {
		e = list_entry(n, struct entry, link);
		prev = n->prev;
		if (!e->durable)
			entry_free(e);
	}
	/* A cut that was not durable has cut nothing. */
	for (n = s->lane.next; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		e->is_void = e->is_void && e->no <= e->o->base_no;
	}
}

/* Its handle is void: whoever kept it finds nothing there. */
static void object_moves(struct store *s, struct store_object *o)
{
	struct store_object *to = xmalloc(sizeof(*to));

	*to = *o;
	list_push_back(&s->objects, &to->link);
	for (struct list *n = s->lane.next; n != &s->lane; n = n->next)
		if (list_entry(n, struct entry, link)->o == o)
			list_entry(n, struct entry, link)->o = to;
	list_del(&o->link);
	memset(o, 0, sizeof(*o));
	list_push_back(&s->graves, &o->link);
}

void sim_store_stop(struct store *s)
{
	s->closed = true;
	sim_store_crash(s);
}

void sim_store_close(struct store *s)
{
	struct list all = LIST_INIT(all);

	list_splice_back(&all, &s->objects);
	while (!list_empty(&all))
		object_moves(s, list_first(&all, struct store_object, link));
}

void sim_store_lose_log(struct store *s, uint32_t new_incarnation)
{
	struct store_object *o;

	while (!list_empty(&s->lane))
		entry_free(list_first(&s->lane, struct entry, link));
	s->incarnation = new_incarnation;
	list_for_each(o, &s->objects, link) o->base_no = s->no;
}

void sim_store_lose_map(struct store *s, uint32_t new_incarnation)
{
	struct store_object *o;

	sim_store_lose_log(s, new_incarnation);
	list_for_each(o, &s->objects, link) o->deleted = true;
}

void sim_store_slow(struct store *s, uint64_t us)
{
	s->slow_us = us;
}

void sim_store_damage(struct store *s, uint64_t object, uint32_t block)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link)
	{
		struct page *pg =
			!o->deleted && o->id == object ? o->page[block >> PAGE_SHIFT] : NULL;

		if (!pg || pg->view.b[block % PAGE_BLOCKS].state != BLOCK_DATA)
			continue;
		pg->view.b[block % PAGE_BLOCKS].unreadable = true;
	}
}

void store_on_damage(struct store *s, unsigned shard,
		     void (*fn)(void *arg, const struct store_damage *d), void *arg)
{
	s->damage_fn = fn;
	s->damage_arg = arg;
}

void sim_store_mark(struct store *s, uint64_t object, uint32_t block)
{
	struct store_object *o;

	sim_store_damage(s, object, block);
	list_for_each(o, &s->objects, link)
	{
		struct page *pg =
			!o->deleted && o->id == object ? o->page[block >> PAGE_SHIFT] : NULL;
		struct store_damage d = {object, o->gen, block >> PAGE_SHIFT,
					 1ull << block % PAGE_BLOCKS};

		if (!pg || !pg->view.b[block % PAGE_BLOCKS].unreadable)
			continue;
		pg->view.b[block % PAGE_BLOCKS].told = true;
		if (s->damage_fn)
			s->damage_fn(s->damage_arg, &d);
	}
}

bool sim_store_has_marked(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) for (uint32_t i = 0; i < o->pages; i++)
		for (unsigned b = 0; o->page[i] && b < PAGE_BLOCKS; b++)
			if (o->page[i]->view.b[b].told && o->page[i]->view.b[b].unreadable)
				return true;
	return false;
}

void sim_store_mend(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) for (uint32_t i = 0; i < o->pages;
						 i++) for (unsigned b = 0;
							   o->page[i] && b < PAGE_BLOCKS; b++)
		o->page[i]
			->view.b[b]
			.unreadable = o->page[i]->base.b[b].unreadable = false;
}

bool sim_store_quiet(struct store *s)
{
	struct list *n;

	for (n = s->lane.next; n != &s->lane; n = n->next)
		if (!list_entry(n, struct entry, link)->durable)
			return false;
	return list_empty(&s->jobs);
}

bool sim_store_holds(struct store *s, uint64_t object)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) if (!o->deleted && o->id == object) return true;
	return false;
}

static struct store_object *only(struct store *s, uint64_t object)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) if (!o->deleted && o->id == object) return o;
	return NULL;
}

/* Equal page by page: version and content (bad blocks aside, which are known as such). */
const char *sim_store_compare(struct store *sa, struct store *sb, uint64_t object, uint32_t *page)
{
	struct store_object *a = only(sa, object), *b = only(sb, object);
	static const struct image none;

	if (!a || !b)
		return "a replica is missing";
	for (*page = 0; *page < a->pages; ++*page) {
		const struct image *x = a->page[*page] ? &a->page[*page]->view : &none;
		const struct image *y = b->page[*page] ? &b->page[*page]->view : &none;

		if (!version_eq(x->v, y->v))
			return "page versions differ";
		for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
			if (x->b[i].state == BLOCK_BAD || y->b[i].state == BLOCK_BAD)
				continue;
			if (x->b[i].state != y->b[i].state ||
			    memcmp(x->b[i].word, y->b[i].word, sizeof(x->b[i].word))) {
				sim_trace("block %u: state %u/%u, first word %llu/%llu, version "
					  "%u/%llu",
					  i, x->b[i].state, y->b[i].state,
					  (unsigned long long)x->b[i].word[0],
					  (unsigned long long)y->b[i].word[0], x->v.tenure,
					  (unsigned long long)x->v.seq);
				return "contents differ at equal page versions";
			}
		}
	}
	return NULL;
}

struct store *sim_store_create(uint16_t group, uint32_t group_incarnation)
{
	struct store *s = xcalloc(1, sizeof(*s));

	s->group = group;
	s->incarnation = group_incarnation;
	s->limit = sim.plan.tiny_log ? 60 : 100000;
	s->free_bytes = 1ull << 30;
	list_init(&s->objects);
	list_init(&s->lane);
	list_init(&s->space);
	list_init(&s->jobs);
	list_init(&s->graves);
	return s;
}

void sim_store_free(struct store *s)
{
	struct list *n;

	while (!list_empty(&s->lane))
		entry_free(list_first(&s->lane, struct entry, link));
	while ((n = list_pop_front(&s->objects))) {
		struct store_object *o = list_entry(n, struct store_object, link);

		for (uint32_t i = 0; i < o->pages; i++)
			free(o->page[i]);
		free(o->page);
		free(o->retry.e);
		free(o->base_retry.e);
		free(o);
	}
	while ((n = list_pop_front(&s->space)))
		free(list_entry(n, struct space_wait, link));
	while ((n = list_pop_front(&s->graves)))
		free(list_entry(n, struct store_object, link));
	while (!list_empty(&s->jobs))
		job_free(list_first(&s->jobs, struct job, link));
	free(s);
}
