/* SPDX-License-Identifier: Apache-2.0 */
/* Random work against a model, with clean ends, crashes and changing shard counts. A driver on each
 * shard keeps appends, commits, cuts and reads in flight on its objects; at a random moment the store is
 * closed, or devices and map are copied while all stands still and the copy is opened. Then must hold:
 *   - every record that was answered is there, in the history that the model knows;
 *   - each page is the history up to exactly its page version, before and after committing the rest;
 *   - folds and versions are what the model reckons.
 * SEED=n replays one run (as far as the disk's timing allows), ROUNDS=n makes it longer. */
#include "tests/store/log/fake_tier.h"
#include "tests/store/log/rig.h"

#define OBJECTS 6
#define BLOCKS  512u
#define PAGES   (BLOCKS / PAGE_BLOCKS)
#define APPENDS 24
#define READS   6
#define MIB     (1ull << 20)

struct event {
	struct version version;
	uint8_t kind;
	uint32_t block, blocks;
	uint64_t seed, request;
};

struct model {
	uint64_t id;
	uint32_t gen, tenure;
	struct event *history; /* by seq − 1 */
	uint64_t last, acked, committed, requests;
	struct object_header h;
	/* A cut that is not durable yet: what was before. */
	bool cutting;
	struct event *before;
	uint64_t before_last, before_acked;
	struct object_header before_h;
	unsigned reads; /* no commit while a read is under way: the range queue's part */
};

struct driver;
struct append_slot {
	struct wait wait;
	struct store_append op;
	struct driver *driver;
	struct model *m;
	uint64_t seq;
	bool busy, cut;
};
struct read_slot {
	struct wait wait;
	struct store_read op;
	struct store_versions versions;
	struct store_folds folds;
	uint64_t fold;
	struct driver *driver;
	struct model *m;
	uint8_t *dest;
	int kind;
	bool busy;
};

struct world;
struct driver {
	struct world *w;
	unsigned shard;
	struct post post;
	struct rng rng;
	struct append_slot appends[APPENDS];
	struct read_slot reads[READS];
	struct wait space;
	struct list link;
	bool waiting, stopping, idle;
	uint64_t steps;
	sem_t *stopped;
};

struct world {
	struct rig rig;
	struct model models[OBJECTS], snapshot[OBJECTS];
	struct driver drivers[4];
	struct rng rng;
	unsigned crashes;
};

/* ---- The model ---- */

static const struct event *covering(const struct model *m, uint64_t upto, uint32_t block)
{
	for (uint64_t s = upto; s > 0; s--) {
		const struct event *e = &m->history[s - 1];

		if (block >= e->block && block < e->block + e->blocks)
			return e;
	}
	return NULL;
}

static void want_block(const struct model *m, uint64_t upto, uint32_t block, uint8_t *out)
{
	const struct event *e = covering(m, upto, block);

	if (e && e->kind == RECORD_WRITE)
		block_fill(out, e->seed, block - e->block);
	else
		memset(out, 0, BLOCK_SIZE);
}

static struct version page_version_at(const struct model *m, uint64_t upto, uint32_t page)
{
	for (uint64_t s = upto; s > 0; s--) {
		const struct event *e = &m->history[s - 1];

		if (e->block / PAGE_BLOCKS <= page &&
		    (e->block + e->blocks - 1) / PAGE_BLOCKS >= page)
			return e->version;
	}
	return (struct version){0};
}

/* For people: which write the block holds instead. */
static uint64_t whose(const struct model *m, uint32_t block, const uint8_t *got)
{
	uint8_t b[BLOCK_SIZE];

	for (uint64_t s = m->last; s > 0; s--) {
		const struct event *e = &m->history[s - 1];

		if (block < e->block || block >= e->block + e->blocks)
			continue;
		block_fill(b, e->seed, block - e->block);
		if (!memcmp(b, got, BLOCK_SIZE))
			return s;
	}
	return 0;
}

static void expect_content(const struct model *m, uint64_t upto, const struct store_read *op)
{
	uint8_t want[BLOCK_SIZE];

	for (uint32_t i = 0; i < op->blocks; i++) {
		uint32_t b = op->block + i;
		const struct event *e = covering(m, upto, b);

		want_block(m, upto, b, want);
		if (memcmp(want, op->dest + (size_t)i * BLOCK_SIZE, BLOCK_SIZE))
			test_failed(
				__FILE__, __LINE__,
				"object %llu block %u is of seq %llu, not what %llu left (of %llu)",
				(unsigned long long)m->id, b,
				(unsigned long long)whose(m, b, op->dest + (size_t)i * BLOCK_SIZE),
				(unsigned long long)(e ? e->version.seq : 0),
				(unsigned long long)upto);
		EXPECT(fp128_equal(op->fps[i], hash_block(want)));
		EXPECT_EQ(op->hole[i / 64] >> i % 64 & 1, !e || e->kind == RECORD_TRIM);
		EXPECT_EQ(op->zero[i / 64] >> i % 64 & 1, e && e->kind == RECORD_ZEROES);
	}
}

static void model_reset(struct model *m, uint32_t gen)
{
	free(m->history);
	free(m->before);
	*m = (struct model){.id = m->id,
			    .gen = gen,
			    .tenure = 1,
			    .h = {.seen = 1, .epoch_count = 1, .epochs = {{1, 1}}}};
}

static struct event *history_copy(const struct event *h, uint64_t n)
{
	struct event *c = xmalloc((n + 1) * sizeof(*c));

	if (n)
		memcpy(c, h, n * sizeof(*c));
	return c;
}

/* ---- Drivers ---- */

static struct store_object *object_of(struct driver *a, const struct model *m)
{
	struct store_object *o = store_object_find(a->w->rig.store, a->shard, m->id, m->gen);

	EXPECT(o);
	return o;
}

static void on_append(struct wait *w, int rc)
{
	struct append_slot *s = container_of(w, struct append_slot, wait);
	struct model *m = s->m;

	s->busy = false;
	EXPECT_OK(rc);
	if (s->cut) {
		m->cutting = false;
		free(m->before);
		m->before = NULL;
	} else if (s->op.version.tenure == m->tenure && s->seq > m->acked) {
		m->acked = s->seq;
		EXPECT(version_cmp(store_durable(s->op.object), s->op.version) >= 0);
	}
}

static void on_space(struct wait *w, int rc)
{
	container_of(w, struct driver, space)->waiting = false;
}

static struct append_slot *free_append(struct driver *a)
{
	for (unsigned i = 0; i < APPENDS; i++)
		if (!a->appends[i].busy)
			return &a->appends[i];
	return NULL;
}

static void do_append(struct driver *a, struct model *m)
{
	static _Thread_local uint8_t payload[64 * BLOCK_SIZE];
	struct append_slot *s = free_append(a);
	struct fp128 fps[64];
	unsigned n = (unsigned)(rng_chance(&a->rng, 0.7) ? 1 + rng_below(&a->rng, 4)
							 : 1 + rng_below(&a->rng, 64));
	struct record r =
		rec_write(m->tenure, m->last + 1, (uint32_t)rng_below(&a->rng, BLOCKS - n), n);
	uint64_t seed = rng_next(&a->rng) | 1;
	int rc;

	if (!s || a->waiting)
		return;
	if (rng_chance(&a->rng, 0.15))
		r.kind = rng_chance(&a->rng, 0.5) ? RECORD_TRIM : RECORD_ZEROES;
	r.commit = (struct version){0};
	if (m->committed && rng_chance(&a->rng, 0.7))
		r.commit = m->history[m->committed - 1].version;
	r.attachment = 1;
	r.request = ++m->requests;
	for (unsigned i = 0; i < n && r.kind == RECORD_WRITE; i++) {
		block_fill(payload + (size_t)i * BLOCK_SIZE, seed, i);
		fps[i] = hash_block(payload + (size_t)i * BLOCK_SIZE);
	}
	rc = store_append(object_of(a, m), &s->op, &r, payload, fps, &s->wait);
	if (rc == -ERR_LIMIT) {
		a->waiting = true;
		EXPECT_RC(store_wait_space(a->w->rig.store, a->shard, &a->link, &a->space),
			  PENDING);
		return;
	}
	EXPECT_RC(rc, PENDING);
	s->busy = true;
	s->cut = false;
	s->driver = a;
	s->m = m;
	s->wait.resume = on_append;
	s->seq = r.version.seq;
	m->history = xrealloc(m->history, (m->last + 1) * sizeof(*m->history));
	m->history[m->last++] =
		(struct event){r.version, r.kind, r.block, r.blocks, seed, r.request};
}

static void do_commit(struct driver *a, struct model *m)
{
	/* A member that is being filled hears of commits before its own log is durable. */
	uint64_t upto = rng_chance(&a->rng, 0.2) ? m->last : m->acked;

	if (m->reads || upto <= m->committed || m->cutting)
		return;
	m->committed = rng_between(&a->rng, m->committed + 1, upto);
	store_commit(object_of(a, m), m->history[m->committed - 1].version);
	EXPECT_EQ(store_commit_version(object_of(a, m)).seq, m->committed);
}

static void do_cut(struct driver *a, struct model *m)
{
	struct append_slot *s = free_append(a);
	uint64_t to = rng_between(&a->rng, m->committed, m->last);
	struct version v = {0};

	if (!s || m->cutting)
		return;
	m->before = history_copy(m->history, m->last);
	m->before_last = m->last;
	m->before_acked = m->acked;
	m->before_h = m->h;
	m->tenure++;
	if (to)
		v = m->history[to - 1].version;
	if (m->h.epoch_count == EPOCHS_MAX) {
		m->h.epoch_count = 8;
		memmove(m->h.epochs, m->h.epochs + 8, 8 * sizeof(m->h.epochs[0]));
	}
	m->h.seen = m->tenure;
	m->h.epochs[m->h.epoch_count++] = (struct epoch_entry){m->tenure, to + 1};
	/* Entries whose tenure wrote nothing that is left lie at the same place or behind. */
	for (unsigned i = 0; i + 1 < m->h.epoch_count; i++)
		m->h.epochs[i].first_seq = MIN(m->h.epochs[i].first_seq, to + 1);
	m->last = to;
	m->acked = MIN(m->acked, to);
	s->wait.resume = on_append;
	EXPECT_RC(
		store_put_header(object_of(a, m), &s->op, RECORD_CUT, &m->h, v, NULL, 0, &s->wait),
		PENDING);
	EXPECT(version_eq(store_last(object_of(a, m)), v));
	m->cutting = true;
	s->busy = s->cut = true;
	s->driver = a;
	s->m = m;
}

static void check_versions(struct model *m, const struct store_versions *v)
{
	for (uint32_t p = 0; p < PAGES; p++) {
		struct version want =
			page_version_at(m, v->uncommitted ? m->last : m->committed, p);

		if (!version_eq(want, v->versions[p]))
			test_failed(__FILE__, __LINE__,
				    "object %llu page %u: version %u.%llu, expected %u.%llu",
				    (unsigned long long)m->id, p, v->versions[p].tenure,
				    (unsigned long long)v->versions[p].seq, want.tenure,
				    (unsigned long long)want.seq);
	}
	EXPECT_EQ(v->damaged, 0);
}

static uint64_t model_fold(const struct model *m, uint64_t upto)
{
	uint64_t fold = 0;

	for (uint32_t p = 0; p < PAGES; p++) {
		struct version v = page_version_at(m, upto, p);

		if (v.seq)
			fold ^= store_fold_term(p, v);
	}
	return fold;
}

static void on_read(struct wait *w, int rc)
{
	struct read_slot *s = container_of(w, struct read_slot, wait);

	s->busy = false;
	s->m->reads--;
	EXPECT_OK(rc);
	if (s->kind == 0)
		expect_content(s->m, s->m->committed, &s->op);
	else if (s->kind == 1)
		check_versions(s->m, &s->versions);
	/* A fold may be unknown and then unequal to all; it is checked when nothing moves. */
}

static void do_read(struct driver *a, struct model *m)
{
	struct store_object *o = object_of(a, m);
	struct read_slot *s = NULL;
	int rc;

	for (unsigned i = 0; i < READS && !s; i++)
		if (!a->reads[i].busy)
			s = &a->reads[i];
	if (!s)
		return;
	if (!s->dest)
		s->dest = xalloc_aligned(BLOCK_SIZE, 200 * BLOCK_SIZE);
	s->busy = true;
	s->driver = a;
	s->m = m;
	s->wait.resume = on_read;
	s->kind = rng_chance(&a->rng, 0.8) ? 0 : (int)rng_between(&a->rng, 1, 2);
	m->reads++;
	if (s->kind == 0) {
		uint32_t n = 1 + (uint32_t)rng_below(&a->rng, rng_chance(&a->rng, 0.8) ? 16 : 200);

		s->op = (struct store_read){.block = (uint32_t)rng_below(&a->rng, BLOCKS - n),
					    .blocks = n,
					    .dest = s->dest};
		rc = store_read(o, &s->op, &s->wait);
	} else if (s->kind == 1) {
		s->versions = (struct store_versions){.uncommitted = rng_chance(&a->rng, 0.5)};
		rc = store_page_versions(o, &s->versions, &s->wait);
	} else {
		s->folds = (struct store_folds){
			.folds = &s->fold, .regions = 1, .uncommitted = rng_chance(&a->rng, 0.5)};
		rc = store_folds(o, &s->folds, &s->wait);
	}
	if (rc != PENDING)
		on_read(&s->wait, rc);
}

static bool driver_quiet(const struct driver *a)
{
	for (unsigned i = 0; i < APPENDS; i++)
		if (a->appends[i].busy)
			return false;
	for (unsigned i = 0; i < READS; i++)
		if (a->reads[i].busy)
			return false;
	return !a->waiting;
}

static void driver_step(struct post *p)
{
	struct driver *a = container_of(p, struct driver, post);
	struct world *w = a->w;

	if (a->stopping) {
		if (driver_quiet(a)) {
			sem_post(a->stopped);
			return;
		}
		loop_post(w->rig.loops[a->shard], &a->post);
		return;
	}
	for (unsigned i = (unsigned)rng_below(&a->rng, 4); i > 0; i--) {
		struct model *m = &w->models[rng_below(&a->rng, OBJECTS)];
		unsigned what = (unsigned)rng_below(&a->rng, 100);

		if (m->id % w->rig.shards != a->shard)
			continue;
		if (what < 50)
			do_append(a, m);
		else if (what < 70)
			do_commit(a, m);
		else if (what < 71)
			do_cut(a, m);
		else
			do_read(a, m);
	}
	__atomic_fetch_add(&a->steps, 1, __ATOMIC_RELAXED);
	loop_post(w->rig.loops[a->shard], &a->post);
}

static void drivers_start(struct world *w)
{
	for (unsigned i = 0; i < w->rig.shards; i++) {
		struct driver *a = &w->drivers[i];

		*a = (struct driver){.w = w, .shard = i};
		rng_seed(&a->rng, rng_next(&w->rng));
		a->post.fn = driver_step;
		a->space.resume = on_space;
		loop_post(w->rig.loops[i], &a->post);
	}
}

static int stop_driver(void *arg, struct wait *wait)
{
	((struct driver *)arg)->stopping = true;
	return 0;
}

static void drivers_stop(struct world *w)
{
	sem_t sem;

	sem_init(&sem, 0, 0);
	for (unsigned i = 0; i < w->rig.shards; i++) {
		w->drivers[i].stopped = &sem;
		rig_call(&w->rig, i, stop_driver, &w->drivers[i]);
	}
	for (unsigned i = 0; i < w->rig.shards; i++)
		while (sem_wait(&sem))
			;
	for (unsigned i = 0; i < w->rig.shards; i++)
		for (unsigned k = 0; k < READS; k++)
			free(w->drivers[i].reads[k].dest);
	sem_destroy(&sem);
}

/* ---- Checks after an opening ---- */

struct look {
	struct world *w;
	struct model *m;
	struct store_versions versions;
	struct store_folds folds;
	uint64_t fold;
	struct version last, commit;
	struct object_header h;
};

static int look_state(void *arg, struct wait *wait)
{
	struct look *l = arg;
	struct store_object *o = store_object_find(
		l->w->rig.store, (unsigned)(l->m->id % l->w->rig.shards), l->m->id, l->m->gen);

	EXPECT(o);
	EXPECT(!store_is_damaged(o));
	l->last = store_last(o);
	l->commit = store_commit_version(o);
	l->h = *store_header(o);
	EXPECT(version_eq(store_durable(o), l->last));
	return store_page_versions(o, &l->versions, wait);
}

static int look_folds(void *arg, struct wait *wait)
{
	struct look *l = arg;
	struct store_object *o = store_object_find(
		l->w->rig.store, (unsigned)(l->m->id % l->w->rig.shards), l->m->id, l->m->gen);

	l->folds = (struct store_folds){.folds = &l->fold, .regions = 1};
	return store_folds(o, &l->folds, wait);
}

/* Each page must be the history up to exactly its version. */
static void check_pages(struct world *w, struct model *m, const struct look *l)
{
	CLEANUP(free_ptr) uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);

	for (uint32_t p = 0; p < PAGES; p++) {
		struct version v = l->versions.versions[p];
		struct store_read op;

		EXPECT(v.seq <= m->last);
		if (v.seq)
			EXPECT(version_eq(m->history[v.seq - 1].version, v));
		EXPECT_OK(rig_read(&w->rig, m->id, p * PAGE_BLOCKS, PAGE_BLOCKS, dest, &op));
		expect_content(m, v.seq, &op);
	}
}

/* Numbers of records that are there are known (or folded), those of lost ones are new again. */
static void check_retries(struct world *w, struct model *m, uint64_t last)
{
	struct store_object *o = rig_object(&w->rig, m->id, m->gen);
	uint64_t from = m->last > 300 ? m->last - 300 : 0;

	for (uint64_t s = from + 1; s <= m->last; s++) {
		const struct event *e = &m->history[s - 1];
		struct version v;
		enum retry_answer is = store_retry_lookup(o, 1, 0, e->request, &v);

		if (s > last)
			EXPECT_EQ(is, RETRY_NEW);
		else if (is == RETRY_KNOWN)
			EXPECT(version_eq(v, e->version));
		else
			EXPECT_EQ(is, RETRY_BELOW);
	}
}

static void check_object(struct world *w, struct model *m)
{
	struct look l = {.w = w, .m = m};
	unsigned shard = (unsigned)(m->id % w->rig.shards);

	EXPECT_OK(rig_call(&w->rig, shard, look_state, &l));
	if (m->cutting && l.h.seen != m->h.seen) { /* it was not to be */
		free(m->history);
		m->history = m->before;
		m->last = m->before_last;
		m->acked = m->before_acked;
		m->h = m->before_h;
		m->tenure = m->h.seen;
	} else {
		free(m->before);
	}
	m->before = NULL;
	m->cutting = false;
	EXPECT_EQ(l.h.seen, m->h.seen);
	if (l.last.seq < m->acked || l.last.seq > m->last)
		test_failed(__FILE__, __LINE__,
			    "object %llu ends at %llu, answered %llu, appended %llu",
			    (unsigned long long)m->id, (unsigned long long)l.last.seq,
			    (unsigned long long)m->acked, (unsigned long long)m->last);
	if (l.last.seq)
		EXPECT(version_eq(m->history[l.last.seq - 1].version, l.last));
	EXPECT(l.commit.seq <= m->committed);
	check_retries(w, m, l.last.seq);
	m->last = m->acked = l.last.seq;
	m->committed = MIN(m->committed, m->last);
	check_pages(w, m, &l);
	/* A new primary brings the rest back; here at once, or some time later. */
	if (l.commit.seq < m->committed || rng_chance(&w->rng, 0.5)) {
		m->committed = rng_chance(&w->rng, 0.5) ? m->last : MAX(m->committed, l.commit.seq);
		if (m->committed)
			rig_commit(&w->rig, m->id, m->history[m->committed - 1].version.tenure,
				   m->committed);
	}
	EXPECT_OK(rig_call(&w->rig, shard, look_state, &l));
	check_versions(m, &l.versions);
	check_pages(w, m, &l);
	EXPECT_OK(rig_call(&w->rig, shard, look_folds, &l));
	EXPECT(l.fold == model_fold(m, m->committed));
}

static int delete_object(void *arg, struct wait *wait)
{
	struct look *l = arg;

	return store_object_delete(store_object_find(l->w->rig.store,
						     (unsigned)(l->m->id % l->w->rig.shards),
						     l->m->id, l->m->gen),
				   wait);
}

static void renew_object(struct world *w, struct model *m)
{
	struct look l = {.w = w, .m = m};

	if (rng_chance(&w->rng, 0.5))
		EXPECT_OK(rig_call(&w->rig, (unsigned)(m->id % w->rig.shards), delete_object, &l));
	model_reset(m, m->gen + 1);
	EXPECT_OK(rig_create(&w->rig, m->id, m->gen));
	EXPECT_OK(rig_header(&w->rig, m->id, RECORD_EPOCH, &m->h, (struct version){0}));
}

static void take_snapshot(void *arg)
{
	struct world *w = arg;

	for (unsigned i = 0; i < OBJECTS; i++) {
		w->snapshot[i] = w->models[i];
		w->snapshot[i].history = history_copy(w->models[i].history, w->models[i].last);
		if (w->models[i].cutting)
			w->snapshot[i].before =
				history_copy(w->models[i].before, w->models[i].before_last);
		w->snapshot[i].reads = 0;
	}
}

static void restart(struct world *w)
{
	static const unsigned counts[] = {1, 2, 4};
	struct rig next;
	char name[32];

	snprintf(name, sizeof(name), "crash%u", w->crashes % 2); /* never onto itself */
	if (!fake_tier_is_fake() || rng_chance(&w->rng, 0.3)) {
		drivers_stop(w);
		rig_close(&w->rig);
	} else {
		w->crashes++;
		rig_crash_copy(&w->rig, &next, name, take_snapshot, w);
		fake_tier_set_paused(false);
		drivers_stop(w);
		rig_close(&w->rig);
		w->rig = next;
		for (unsigned i = 0; i < w->rig.count; i++)
			w->rig.names[i] = w->rig.paths[i];
		for (unsigned i = 0; i < OBJECTS; i++) {
			free(w->models[i].history);
			free(w->models[i].before);
			w->models[i] = w->snapshot[i];
		}
	}
	EXPECT_OK(rig_open(&w->rig, counts[rng_below(&w->rng, 3)]));
	for (unsigned i = 0; i < OBJECTS; i++)
		check_object(w, &w->models[i]);
}

static void run(uint64_t seed, unsigned rounds, bool cache)
{
	static struct world w;

	memset(&w, 0, sizeof(w));
	printf("  seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	rng_seed(&w.rng, seed);
	rig_make(&w.rig, cache ? "cached" : "single", cache ? 1 : 2, cache,
		 cache ? 48 * MIB : 160 * MIB);
	EXPECT_OK(rig_open(&w.rig, 2));
	for (unsigned i = 0; i < OBJECTS; i++) {
		w.models[i].id = 100 + i;
		model_reset(&w.models[i], 1);
		EXPECT_OK(rig_create(&w.rig, w.models[i].id, 1));
		EXPECT_OK(rig_header(&w.rig, w.models[i].id, RECORD_EPOCH, &w.models[i].h,
				     (struct version){0}));
	}
	for (unsigned round = 0; round < rounds; round++) {
		uint64_t steps = rng_between(&w.rng, 20, 1200);

		fake_tier_set_paused(rng_chance(&w.rng, 0.2));
		drivers_start(&w);
		while (__atomic_load_n(&w.drivers[0].steps, __ATOMIC_RELAXED) < steps)
			rig_known(&w.rig, w.models[0].id);
		if (rng_chance(&w.rng, 0.3)) {
			fake_tier_set_paused(false);
			EXPECT_OK(rig_flush(&w.rig));
		}
		fake_tier_set_paused(false);
		restart(&w);
		if (rng_chance(&w.rng, 0.3))
			renew_object(&w, &w.models[rng_below(&w.rng, OBJECTS)]);
	}
	rig_close(&w.rig);
	for (unsigned i = 0; i < OBJECTS; i++)
		free(w.models[i].history);
}

static uint64_t number(const char *name, uint64_t dflt)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : dflt;
}

TEST(model, with_cache_device)
{
	run(number("SEED", 1), (unsigned)number("ROUNDS", 8), true);
}

TEST(model, single_tier_two_devices)
{
	run(number("SEED", 2), (unsigned)number("ROUNDS", 5), false);
}
