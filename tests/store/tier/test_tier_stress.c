/* SPDX-License-Identifier: Apache-2.0 */
/* Readers at full depth while batches overwrite and GC moves everything under them: a read never
 * ends bad, and never shows a block older than what was durable when it began. */
#include "tests/store/tier/harness.h"

#define READERS 160u /* more than the tier reads at once */
#define PAGES   40u
#define HISTORY 400u
#define BATCHES 120u

struct history {
	uint64_t fp64[HISTORY];
	unsigned made, acked; /* acked: index of the newest durable one */
};

struct read_load {
	struct stress *s;
	struct wait wait;
	struct post again;
	struct tier_page page;
	struct tier_read read;
	unsigned acked[PAGE_BLOCKS], first, count;
	struct fp128 fps[PAGE_BLOCKS];
	uint8_t *dest;
	bool reading;
};

struct stress {
	struct harness h;
	struct h_call call;
	struct model *m;
	struct history (*hist)[PAGE_BLOCKS];
	struct read_load readers[READERS];
	struct h_batch *batch;
	struct destage_batch *db;
	unsigned batches, active;
	uint64_t reads;
};

static void reader_step(struct read_load *r, int rc);

static void reader_check(struct read_load *r)
{
	EXPECT_EQ(r->read.bad, 0);
	for (unsigned i = 0; i < r->count; i++) {
		struct history *hi = &r->s->hist[r->page.page][r->first + i];
		unsigned k = hi->made;

		EXPECT(fp128_equal(r->fps[i], hash_block(r->dest + i * BLOCK_SIZE)));
		if (hi->made == 0)
			continue;
		while (k > 0 && hi->fp64[k - 1] != r->fps[i].lo)
			k--;
		if (k == 0)
			EXPECT(r->fps[i].lo == hash_zero_block().lo && r->acked[i] == 0);
		EXPECT(k >= r->acked[i]);
	}
	r->s->reads++;
}

static void reader_begin(struct post *p)
{
	struct read_load *r = container_of(p, struct read_load, again);
	struct rng *rng = &r->s->h.rng;

	if (r->s->batches >= BATCHES) {
		if (!--r->s->active)
			h_done(&r->s->call, 0);
		return;
	}
	r->page = (struct tier_page){.object = h_object_id(0),
				     .page = (uint32_t)rng_below(rng, PAGES)};
	r->first = (unsigned)rng_below(rng, PAGE_BLOCKS);
	r->count = 1 + (unsigned)rng_below(rng, PAGE_BLOCKS - r->first);
	for (unsigned i = 0; i < r->count; i++)
		r->acked[i] = r->s->hist[r->page.page][r->first + i].acked;
	r->reading = false;
	reader_step(r, tier_page_get(r->s->h.tier, 0, &r->page, &r->wait));
}

static void reader_step(struct read_load *r, int rc)
{
	if (rc == PENDING)
		return;
	EXPECT_OK(rc);
	if (!r->reading) {
		r->reading = true;
		r->read = (struct tier_read){.object = r->page.object,
					     .page = r->page.page,
					     .first = r->first,
					     .count = r->count,
					     .map = &r->page.out,
					     .dest = r->dest,
					     .fps = r->fps};
		rc = tier_read(r->s->h.tier, 0, &r->read, &r->wait);
		if (rc == PENDING)
			return;
		EXPECT_OK(rc);
	}
	reader_check(r);
	r->again.fn = reader_begin;
	loop_post(r->s->h.loops[0], &r->again);
}

static void reader_resume(struct wait *w, int rc)
{
	reader_step(container_of(w, struct read_load, wait), rc);
}

static void batch_next(struct stress *s);

static void batch_done(struct post *p)
{
	struct h_batch *b = container_of(p, struct h_batch, b.done);
	struct stress *s = (struct stress *)container_of(b->h, struct stress, h);

	EXPECT_OK(b->b.rc);
	tier_destaged(s->h.tier, &b->b);
	for (unsigned i = 0; i < b->b.page_count; i++)
		for (unsigned k = 0; k < b->pages[i].count; k++) {
			struct destage_block *d = &b->blocks[b->pages[i].first + k];
			struct history *hi = &s->hist[b->pages[i].page][d->index];

			hi->acked = hi->made;
		}
	free(b);
	s->batches++;
	if (s->batches < BATCHES)
		batch_next(s);
	else if (!--s->active)
		h_done(&s->call, 0);
}

static void batch_next(struct stress *s)
{
	struct h_batch *b = h_batch_new(&s->h, s->m, 0);

	for (unsigned k = 0; k < 4; k++) {
		uint64_t seen = 0;
		uint32_t page = (uint32_t)rng_below(&s->h.rng, PAGES / 4) * 4 + k;

		h_batch_open_page(b, 0, page);
		for (unsigned n = 0; n < 24; n++) {
			unsigned i = (unsigned)rng_below(&s->h.rng, PAGE_BLOCKS);
			struct history *hi = &s->hist[page][i];

			if (seen >> i & 1 || hi->made == HISTORY)
				continue;
			seen |= 1ull << i;
			h_batch_block(b, i, h_seed(&s->h));
			hi->fp64[hi->made++] = b->blocks[b->b.block_count - 1].fp64;
		}
	}
	b->b.done.fn = batch_done;
	tier_destage(s->h.tier, &b->b);
}

static void begin(struct h_call *c)
{
	struct stress *s = container_of(c, struct stress, call);

	s->active = READERS + 1;
	for (unsigned i = 0; i < READERS; i++)
		reader_begin(&s->readers[i].again);
	batch_next(s);
}

static void run(const char *name, bool compression, uint64_t pool)
{
	struct stress *s = xcalloc(1, sizeof(*s));
	struct store_stats st = {0};

	h_init(&s->h, name, 1, 24, 1);
	s->h.compression = compression;
	s->h.dedup = pool != 0;
	s->h.pool = pool;
	s->h.cfg.block_cache_bytes = 0;
	s->h.cfg.page_cache_bytes = compression ? 100000 : 0; /* some tens of pages, or none */
	s->m = xcalloc(1, sizeof(*s->m));
	s->hist = xcalloc(PAGES, sizeof(*s->hist));
	EXPECT_OK(h_open(&s->h));
	s->m->gen[0] = 1;
	EXPECT_OK(h_object_put(&s->h, 0, 1));
	for (unsigned i = 0; i < READERS; i++) {
		s->readers[i].s = s;
		s->readers[i].wait.resume = reader_resume;
		s->readers[i].dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	}
	h_run(&s->h, 0, &s->call, begin);
	tier_stats(s->h.tier, &st);
	printf("  reads=%llu gc_blocks=%llu misses=%llu\n", (unsigned long long)s->reads,
	       (unsigned long long)st.gc_blocks, (unsigned long long)st.page_cache_misses);
	EXPECT(st.gc_blocks > 100 && st.corrupt_blocks == 0);
	h_verify(&s->h, true);
	h_close(&s->h);
	h_fini(&s->h);
	for (unsigned i = 0; i < READERS; i++)
		free(s->readers[i].dest);
	free(s->hist);
	free(s->m);
	free(s);
}

TEST(stress, readers_against_destage_and_gc)
{
	run("stress-raw", false, 0);
}

TEST(stress, readers_against_destage_and_gc_compressed)
{
	run("stress-lz4", true, 0);
}

TEST(stress, readers_against_destage_and_gc_of_shared_blocks)
{
	run("stress-dedup", false, 3000);
}
