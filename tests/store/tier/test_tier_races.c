/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of events that load alone rarely brings, made on purpose: they look inside the tier. */
#include "tests/store/tier/harness.h"

#include <sched.h>
#include <sys/resource.h>

static void start(struct harness *h, struct model *m, const char *name, unsigned size_mib)
{
	h_init(h, name, 1, size_mib, 1);
	h->cfg.page_cache_bytes = h->cfg.block_cache_bytes = 0;
	EXPECT_OK(h_open(h));
	m->live[0] = true;
	m->gen[0] = 1;
	EXPECT_OK(h_object_put(h, 0, 1));
}

static struct h_batch *overwrite(struct harness *h, struct model *m, unsigned pages)
{
	struct h_batch *b = h_batch_new(h, m, 0);

	for (unsigned p = 0; p < pages; p++) {
		h_batch_open_page(b, 0, p);
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			h_batch_block(b, i, 3 + 2 * (rng_next(&h->rng) >> 2));
	}
	return b;
}

/* ---- A lookup that a commit overtakes ----------------------------------------------------------
 */

struct overtaken {
	struct h_call call;
	struct wait wait;
	struct post second;
	struct tier_page get;
	struct h_batch *newer;
};

static void overtaken_resume(struct wait *w, int rc)
{
	h_done(&container_of(w, struct overtaken, wait)->call, rc);
}

/* The lookup has its old page and only waits for this turn to end; now the newer page arrives. */
static void overtaken_second(struct post *p)
{
	struct overtaken *x = container_of(p, struct overtaken, second);
	struct tier *t = x->call.h->tier;
	struct tier_shard *s = &t->shards[0];
	uint64_t commit;

	EXPECT(s->batches[0].busy);
	while (!__atomic_load_n(&s->batches[0].items[0]->out.version.seq, __ATOMIC_ACQUIRE))
		sched_yield();
	commit = tier_kv_commit(t);
	h_batch_submit(x->newer);
	while (tier_kv_commit(t) == commit)
		sched_yield();
	tier_destaged(t, &x->newer->b);
}

static void overtaken_first(struct h_call *c)
{
	struct overtaken *x = container_of(c, struct overtaken, call);

	x->wait.resume = overtaken_resume;
	x->get = (struct tier_page){.object = h_object_id(0), .page = 2};
	EXPECT_EQ(tier_page_get(c->h->tier, 0, &x->get, &x->wait), PENDING);
	list_first(&c->h->tier->shards[0].pending, struct fetch, link)->out.version.seq = 0;
	x->second.fn = overtaken_second;
	loop_post(c->h->loops[0], &x->second);
}

TEST(races, a_lookup_overtaken_by_a_commit_gives_the_newer_page)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct overtaken x = {0};
	struct version v;

	start(&h, m, "overtaken", 32);
	EXPECT_OK(h_batch_run(overwrite(&h, m, 4)));
	x.newer = overwrite(&h, m, 4);
	v = x.newer->pages[2].version;
	h_run(&h, 0, &x.call, overtaken_first);
	EXPECT_OK(x.call.rc);
	EXPECT(version_eq(x.get.out.version, v));
	EXPECT_OK(h_batch_wait(x.newer));
	h_compare(&h, m, false);
	h_end(&h, m);
}

/* ---- A segment freed under a reader ------------------------------------------------------------
 */

TEST(races, a_freed_segment_waits_for_its_readers)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct map_page old;
	struct h_batch *b = NULL;
	uint8_t data[BLOCK_SIZE];
	_Atomic uint32_t *readers;
	bool held = false;

	start(&h, m, "held", 24);
	EXPECT_OK(h_batch_run(overwrite(&h, m, 16)));
	EXPECT_OK(h_page_get(&h, 0, 3, &old));
	readers = &h.tier->shards[0].readers[atomic_load(&h.tier->parity)];
	atomic_fetch_add(readers, 1); /* a read has begun */
	for (unsigned i = 0; i < 20 && !held; i++) {
		b = overwrite(&h, m, 16);
		h_batch_submit(b);
		for (;;) {
			bool done;

			pthread_mutex_lock(&b->call.lock);
			done = b->call.done;
			pthread_mutex_unlock(&b->call.lock);
			held = atomic_load(&h.tier->grace_wanted);
			if (done || held)
				break;
			sched_yield();
		}
		if (!held)
			EXPECT_OK(h_batch_wait(b));
	}
	/* Room is wanted and there is none but what the reader may be in: its bytes are untouched.
	 */
	EXPECT(held);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		EXPECT_OK(device_pread(&h.cap[0], data, BLOCK_SIZE,
				       map_entry_offset(old.entry[i].word)));
		EXPECT(hash_block(data).lo == old.entry[i].fp64);
	}
	atomic_fetch_sub(readers, 1);
	sem_post(&h.tier->more_work);
	EXPECT_OK(h_batch_wait(b));
	h_compare(&h, m, false);
	h_verify(&h, true);
	h_end(&h, m);
}

/* ---- Stopping with everything under way --------------------------------------------------------
 */

struct many {
	struct h_call call;
	struct many_op {
		struct many *all;
		struct wait wait;
		struct tier_page get;
	} op[2 * FETCHES_MAX];
	struct post first;
	unsigned left;
	bool started;
};

static void many_resume(struct wait *w, int rc)
{
	struct many *x = container_of(w, struct many_op, wait)->all;

	EXPECT(rc == 0 || rc == -ERR_CLOSED);
	if (!--x->left)
		h_done(&x->call, 0);
}

static void many_first(struct post *p)
{
	struct many *x = container_of(p, struct many, first);

	x->left = ARRAY_LEN(x->op);
	for (unsigned i = 0; i < ARRAY_LEN(x->op); i++) {
		x->op[i].all = x;
		x->op[i].wait.resume = many_resume;
		x->op[i].get =
			(struct tier_page){.object = h_object_id(0), .page = i % 16, .fresh = true};
		EXPECT_EQ(tier_page_get(x->call.h->tier, 0, &x->op[i].get, &x->op[i].wait),
			  PENDING);
	}
	__atomic_store_n(&x->started, true, __ATOMIC_RELEASE);
}

TEST(races, stop_ends_every_wait)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct many *x = xcalloc(1, sizeof(*x));
	struct h_batch *b;
	int rc;

	start(&h, m, "stop", 32);
	EXPECT_OK(h_batch_run(overwrite(&h, m, 16)));
	b = overwrite(&h, m, 16);
	h_batch_submit(b);
	x->call.h = &h;
	x->first.fn = many_first;
	pthread_mutex_init(&x->call.lock, NULL);
	pthread_cond_init(&x->call.cond, NULL);
	loop_post(h.loops[0], &x->first);
	while (!__atomic_load_n(&x->started, __ATOMIC_ACQUIRE))
		sched_yield();
	tier_stop(h.tier);
	pthread_mutex_lock(&x->call.lock);
	while (!x->call.done)
		pthread_cond_wait(&x->call.cond, &x->call.lock);
	pthread_mutex_unlock(&x->call.lock);
	EXPECT_EQ(x->left, 0);
	rc = h_batch_wait(b);
	EXPECT(rc == 0 || rc == -ERR_CLOSED);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	h_compare(&h, m, false);
	b = overwrite(&h, m, 16);
	h_batch_submit(b);
	tier_stop(h.tier);
	rc = h_batch_wait(b);
	EXPECT(rc == 0 || rc == -ERR_CLOSED);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	h_compare(&h, m, false);
	h_close(&h);
	h_fini(&h);
	free(x);
	free(m);
}

/* ---- Pacing ------------------------------------------------------------------------------------
 */

static int level_of(struct harness *h)
{
	int level;

	errno = 0;
	level = getpriority(PRIO_PROCESS, (id_t)h->tier->pace.threads[0]);
	EXPECT_EQ(errno, 0);
	return level;
}

struct pace_call {
	struct h_call c;
	uint32_t fill;
	bool writing, hurry, rests;
};

static void pace_run(struct h_call *c)
{
	struct pace_call *p = container_of(c, struct pace_call, c);

	p->rests = tier_pace(c->h->tier, 0, p->fill, p->writing, p->hurry);
	h_done(c, 0);
}

/* Whether destage rests. */
static bool pace(struct harness *h, uint32_t fill, bool writing, bool hurry)
{
	struct pace_call p = {.fill = fill, .writing = writing, .hurry = hurry};

	h_run(h, 0, &p.c, pace_run);
	return p.rests;
}

TEST(races, destage_gets_cpu_by_the_fill_of_the_log)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));

	EXPECT_EQ(pace_level(0, false), 10);
	EXPECT_EQ(pace_level(0, true), 0);
	EXPECT_EQ(pace_level(3000, false), 10);
	EXPECT_EQ(pace_level(4500, false), 5);
	EXPECT_EQ(pace_level(5999, false), 0);
	EXPECT_EQ(pace_level(10000, false), 0);
	start(&h, m, "pace", 32);
	if (!h.tier->pace.able) {
		printf("  no right to set priorities: not looked at\n");
	} else {
		pace(&h, 2999, false, false);
		EXPECT_EQ(level_of(&h), 10);
		pace(&h, 4500, false, false);
		EXPECT_EQ(level_of(&h), 5);
		pace(&h, 6000, false, false);
		EXPECT_EQ(level_of(&h), 0);
		pace(&h, 2999, false, false);
		/* An object is created: somebody waits, and afterwards it is low again. */
		EXPECT_OK(h_object_put(&h, 1, 1));
		EXPECT_EQ(level_of(&h), 10);
	}
	EXPECT_OK(h_batch_run(overwrite(&h, m, 4)));
	h_compare(&h, m, false);
	h_end(&h, m);
}

TEST(races, destage_rests_while_clients_write_into_an_emptier_log)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));

	start(&h, m, "rest", 32);
	atomic_store(&h.tier->hurry, 0);
	EXPECT(pace(&h, 2999, true, false));
	EXPECT(pace_rests(h.tier));
	EXPECT(!pace(&h, 3000, true, false)); /* it is to stay there */
	EXPECT(pace(&h, 0, true, false));
	EXPECT(!pace(&h, 0, true, true)); /* somebody waits */
	EXPECT(!pace(&h, 0, false, true));
	EXPECT(!pace(&h, 0, false, false)); /* nobody writes */
	EXPECT(pace(&h, 0, true, false));
	/* What it is asked for it does all the same. */
	EXPECT_OK(h_object_put(&h, 1, 1));
	EXPECT_OK(h_batch_run(overwrite(&h, m, 4)));
	h_compare(&h, m, false);
	h_end(&h, m);
}
