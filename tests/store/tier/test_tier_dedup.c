/* SPDX-License-Identifier: Apache-2.0 */
/* Shared blocks: made, read, given back, moved, damaged; hints; the ledger. After each step the verifier
 * recounts all of it (I8, I9). */
#include "tests/store/tier/dedup_kit.h"

#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <unistd.h>

#include "store/codec.h"
#include "store/prepare.h"

/* ---- Hints -------------------------------------------------------------------------------------
 */

TEST(hints, newest_stays_within_the_budget)
{
	struct hints h;
	struct rng r;
	uint64_t got[8];
	unsigned found = 0;

	rng_seed(&r, 5);
	hints_init(&h, 1u << 20);
	EXPECT_EQ(hints_bytes(&h), 0);
	for (uint64_t i = 0; i < 400000; i++) {
		struct fp128 fp = {hash_u64(i + 1), hash_u64(i + 77777777)};

		hints_put(&h, fp, i + 1, false);
		EXPECT(hints_bytes(&h) <= 1u << 20);
	}
	EXPECT_EQ(hints_bytes(&h), 1u << 20);
	for (uint64_t i = 390000; i < 400000; i++) {
		struct fp128 fp = {hash_u64(i + 1), hash_u64(i + 77777777)};
		unsigned n = hints_get(&h, fp, got);

		for (unsigned k = 0; k < n; k++)
			found += got[k] == i + 1;
	}
	EXPECT_EQ(found, 10000);
	/* The same fingerprint again replaces; an older one never takes the place of a newer. */
	struct fp128 fp = {1, 2ull << 44};

	hints_put(&h, fp, 5, false);
	hints_put(&h, fp, HINT_SHARED | 6, false);
	hints_put(&h, fp, 7, true);
	EXPECT_EQ(hints_get(&h, fp, got), 1);
	EXPECT_EQ(got[0], HINT_SHARED | 6);
	hints_fini(&h);
}

static unsigned hints_found(const struct hints *h, uint64_t first, uint64_t end)
{
	unsigned found = 0;

	for (uint64_t i = first; i < end; i++) {
		struct fp128 fp = {hash_u64(i + 1), hash_u64(i + 77777777)};
		uint64_t got[8];

		for (unsigned k = 0, n = hints_get(h, fp, got); k < n; k++)
			found += got[k] == i + 1;
	}
	return found;
}

/* Far below its budget a table that doubled five times has what was put into it, the oldest too, and
 * little else is found in it. */
TEST(hints, growing_loses_none)
{
	struct hints h;
	uint64_t got[8];
	unsigned n = 1000000, wrong = 0;

	hints_init(&h, 256u << 20);
	for (uint64_t i = 0; i < n; i++) {
		struct fp128 fp = {hash_u64(i + 1), hash_u64(i + 77777777)};

		hints_put(&h, fp, i + 1, false);
	}
	EXPECT_EQ(hints_bytes(&h), 32u << 20);
	EXPECT(h.used + h.evicted <= n && h.used + h.evicted > n - 100); /* a few have the same tag */
	EXPECT(hints_found(&h, 0, n) > n - n / 500);
	EXPECT(hints_found(&h, 0, 10000) > 9900);
	for (uint64_t i = n; i < 2 * n; i++) {
		struct fp128 fp = {hash_u64(i + 1), hash_u64(i + 77777777)};

		wrong += hints_get(&h, fp, got);
	}
	EXPECT(wrong < n / 1000);
	hints_fini(&h);
	/* A budget that is smaller than a table begins with. */
	hints_init(&h, 100000);
	for (uint64_t i = 0; i < 10000; i++)
		hints_put(&h, (struct fp128){hash_u64(i), hash_u64(i + 5)}, i + 1, false);
	EXPECT_EQ(hints_bytes(&h), 65536);
	EXPECT(hints_size_ok(&h, 1024) && !hints_size_ok(&h, 512) && !hints_size_ok(&h, 2048));
	hints_fini(&h);
}

TEST(hints, older_ones_stand_behind_and_moved_ones_stay_in_place)
{
	struct fp128 fp = {1, 2ull << 44};
	struct hints h;
	uint64_t got[8];

	hints_init(&h, 1u << 20);
	hints_put(&h, fp, 10, false);
	for (uint64_t i = 1; i < 9; i++)
		hints_put(&h, fp, 10 + i, true);
	EXPECT_EQ(hints_get(&h, fp, got), HINTS_TRIED);
	EXPECT_EQ(got[0], 10);
	EXPECT_EQ(got[1], 11);
	hints_move(&h, fp, 11, 21);
	hints_move(&h, fp, 4711, 22); /* no room for one more */
	EXPECT_EQ(hints_get(&h, fp, got), HINTS_TRIED);
	EXPECT_EQ(got[0], 10);
	EXPECT_EQ(got[1], 21);
	EXPECT_EQ(got[2], 12);
	fp.lo = 2;
	hints_move(&h, fp, 4711, 22);
	EXPECT_EQ(hints_get(&h, fp, got), 1);
	EXPECT_EQ(h.used, 4);
	hints_fini(&h);
}

/* ---- References --------------------------------------------------------------------------------
 */

TEST(dedup, an_equal_block_becomes_a_share_and_goes_with_its_last_reference)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row row;
	uint64_t empty, one, a, b, id;

	d_start(&h, m, "share", 32);
	empty = tier_free_bytes(h.tier);
	d_write_one(&h, m, 0, 1, 1001);
	one = tier_free_bytes(h.tier);
	EXPECT_EQ(d_kind_at(&h, 0, 1, 0, &a), MAP_RAW);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
	d_write_one(&h, m, 1, 2, 1001);
	EXPECT_EQ(tier_free_bytes(h.tier), one);
	EXPECT_EQ(d_kind_at(&h, 1, 2, 0, &b), MAP_SHARE);
	id = map_share_id(b);
	EXPECT(d_row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 2);
	EXPECT_EQ(row.word, a); /* where it was */
	EXPECT_EQ(row.owner_volume, h_volume(0));
	EXPECT_EQ(row.owner_refs, 1);
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), 1);
	h_verify(&h, true);
	/* The owner's cached page may still say raw; past the cache it is shared. */
	h_close(&h);
	EXPECT_OK(h_open(&h));
	d_wait_hints(&h);
	EXPECT_EQ(d_kind_at(&h, 0, 1, 0, &b), MAP_SHARE);
	EXPECT_EQ(map_share_id(b), id);
	/* A third and a fourth. */
	d_write_one(&h, m, 2, 3, 1001);
	d_write_one(&h, m, 2, 4, 1001);
	EXPECT(d_row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 4);
	EXPECT_EQ(row.owner_refs, 3);
	h_verify(&h, true);
	h_compare(&h, m, false);
	/* The owner's volume goes: overwritten by itself with the same, trimmed, deleted. */
	d_write_one(&h, m, 0, 1, 1001);
	EXPECT(d_row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 4);
	d_write_one(&h, m, 0, 1, 0);
	d_write_one(&h, m, 2, 3, 2001);
	EXPECT(d_row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 2);
	h_verify(&h, true);
	EXPECT_OK(h_object_delete(&h, 2, 1));
	m->gen[2] = 2;
	memset(m->page[2], 0, sizeof(m->page[2]));
	EXPECT_OK(h_object_put(&h, 2, 2));
	EXPECT(d_row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 1);
	EXPECT_EQ(row.owner_refs, 0);
	h_verify(&h, true);
	h_compare(&h, m, false);
	/* The last one: both keys go, the space is back. */
	d_write_one(&h, m, 1, 2, 0);
	EXPECT(!d_row_get(&h, id, &row));
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), 0);
	EXPECT_EQ(tier_free_bytes(h.tier), empty);
	/* An id is never used again, not even after a restart. */
	h_close(&h);
	EXPECT_OK(h_open(&h));
	d_write_one(&h, m, 0, 1, 3001);
	d_write_one(&h, m, 1, 2, 3001);
	EXPECT_EQ(d_kind_at(&h, 1, 2, 0, &b), MAP_SHARE);
	EXPECT(map_share_id(b) > id);
	d_end(&h, m);
}

/* A read whose lookups wait at gates: each holds the threads of the pool that looks things up, until it is
 * opened. What is asked for behind a gate is done when it opens, and before the next one. */
#define POOL_THREADS 2

struct gate {
	sem_t open;
	struct work work[POOL_THREADS];
	struct wait wait[POOL_THREADS];
};

struct gated_read {
	struct h_call call;
	struct gate gates[3], *gate;
	struct map_page map;
	struct tier_read read;
	struct wait wait;
	_Atomic int rc;
};

static struct gated_read gated;

static int gate_run(struct work *w)
{
	struct gate *g = &gated.gates[0];

	while (w < g->work || w >= g->work + POOL_THREADS)
		g++;
	while (sem_wait(&g->open))
		;
	return 0;
}

static void gate_passed(struct wait *w, int rc)
{
}

static void gate_queue(struct h_call *c)
{
	for (unsigned i = 0; i < POOL_THREADS; i++) {
		gated.gate->work[i].run = gate_run;
		gated.gate->wait[i].resume = gate_passed;
		EXPECT_EQ(worker_submit(c->h->tier->pool, c->h->loops[0], &gated.gate->work[i],
					&gated.gate->wait[i]),
			  PENDING);
	}
	h_done(c, 0);
}

static void gate_close(struct harness *h, unsigned gate)
{
	gated.gate = &gated.gates[gate];
	sem_init(&gated.gate->open, 0, 0);
	h_run(h, 0, &gated.call, gate_queue);
}

static void gate_open(unsigned gate)
{
	for (unsigned i = 0; i < POOL_THREADS; i++)
		sem_post(&gated.gates[gate].open);
}

static void gated_done(struct wait *w, int rc)
{
	atomic_store(&gated.rc, rc);
}

static void gated_begin(struct h_call *c)
{
	gated.wait.resume = gated_done;
	atomic_store(&gated.rc, 1);
	EXPECT_EQ(tier_read(c->h->tier, 0, &gated.read, &gated.wait), PENDING);
	h_done(c, 0);
}

static void looks_a_page_up(struct h_call *c)
{
	h_done(c, c->h->tier->shards[0].batches[0].busy);
}

static bool page_lookup(struct harness *h)
{
	h_run(h, 0, &gated.call, looks_a_page_up);
	return gated.call.rc;
}

/* The first block of two pages, so that it is a share; the one that was there is gone. */
static void write_share(struct harness *h, struct model *m, uint64_t seed)
{
	d_write_one(h, m, 0, 1, seed);
	d_write_one(h, m, 0, 2, seed);
}

/* It is overwritten between any two lookups of a read: that is no damage. */
TEST(dedup, a_share_that_is_gone_whenever_it_is_looked_up)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE), want[BLOCK_SIZE];
	struct share_row row;

	d_start(&h, m, "overwritten", 32);
	write_share(&h, m, 3001);
	EXPECT_OK(h_page_get(&h, 0, 1, &gated.map));
	EXPECT_EQ(map_entry_kind(gated.map.entry[0].word), MAP_SHARE);
	gated.read = (struct tier_read){
		.object = h_object_id(0), .page = 1, .count = 1, .map = &gated.map, .dest = dest};
	gate_close(&h, 0);
	h_run(&h, 0, &gated.call, gated_begin); /* the share's lookup waits */
	write_share(&h, m, 3003);
	EXPECT(!d_row_get(&h, map_share_id(gated.map.entry[0].word), &row));
	gate_close(&h, 1);
	gate_open(0);
	EXPECT_SOON(page_lookup(&h)); /* and waits */
	gate_close(&h, 2);
	gate_open(1);
	EXPECT_SOON(!page_lookup(&h)); /* the lookup of the share that it found waits */
	EXPECT_EQ(atomic_load(&gated.rc), 1);
	write_share(&h, m, 3005);
	gate_open(2);
	EXPECT_SOON(atomic_load(&gated.rc) != 1);
	EXPECT_OK(atomic_load(&gated.rc));
	EXPECT_EQ(gated.read.bad, 0);
	h_block(3005, want);
	EXPECT_MEM(dest, want, BLOCK_SIZE);
	free(dest);
	d_end(&h, m);
}

TEST(dedup, equal_blocks_of_one_batch_are_stored_once)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row row;
	uint64_t seeds[PAGE_BLOCKS], before, word;

	d_start(&h, m, "batch", 32);
	before = tier_free_bytes(h.tier);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 5001 + 2 * (i % 4);
	d_write_page(&h, m, 0, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(before - tier_free_bytes(h.tier), 4 * BLOCK_SIZE);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 4);
	EXPECT_EQ(d_kind_at(&h, 0, 0, 0, &word), MAP_SHARE);
	EXPECT(d_row_get(&h, map_share_id(word), &row));
	EXPECT_EQ(row.refs, 16);
	h_verify(&h, true);
	/* In one batch: the last reference goes and comes back. */
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 5001 + 2 * ((i + 1) % 4);
	d_write_page(&h, m, 0, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(before - tier_free_bytes(h.tier), 4 * BLOCK_SIZE);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 4);
	d_end(&h, m);
}

/* More payload than the chunks of all threads hold at once, equal blocks far apart in it; with the
 * destager alone it comes to the same. */
static void many_chunks(const char *name, unsigned threads)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct h_batch *b;
	uint64_t before;

	d_start(&h, m, name, 32);
	h_close(&h);
	h.cfg.destage_threads = threads;
	EXPECT_OK(h_open(&h));
	EXPECT_EQ(prepare_threads(h.tier->prepare), threads - 1);
	before = tier_free_bytes(h.tier);
	h.compression = true;
	b = h_batch_new(&h, m, 0);
	for (unsigned k = 0; k < 44; k++) {
		h_batch_open_page(b, k % H_OBJECTS, k / H_OBJECTS);
		/* Odd seeds do not compress. */
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			h_batch_block(b, i, 9001 + 2 * ((k * PAGE_BLOCKS + i) % 1100));
	}
	EXPECT(b->b.block_count > PREPARE_BLOCKS * (threads + 1));
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(before - tier_free_bytes(h.tier), 1100 * BLOCK_SIZE);
	d_end(&h, m);
}

TEST(dedup, several_threads_prepare_what_one_destager_stores)
{
	many_chunks("chunks1", 1);
	many_chunks("chunks3", 3);
}

TEST(dedup, what_only_has_the_same_hint_or_fingerprint_half_is_not_shared)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	uint8_t data[BLOCK_SIZE];
	uint64_t word, a;
	struct fp128 fp;

	d_start(&h, m, "liar", 32);
	d_write_one(&h, m, 0, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 0, 1, 0, &a), MAP_RAW);
	/* A hint that names this block for other content, a share that is not there, a place
	 * nowhere. */
	h_block(7001, data);
	fp = hash_block(data);
	hints_put(&h.tier->dedup.hints, fp, a >> 9 & (HINT_SHARED - 1), false);
	d_write_one(&h, m, 1, 1, 7001);
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	h_block(7003, data);
	hints_put(&h.tier->dedup.hints, hash_block(data), HINT_SHARED | 4711, false);
	d_write_one(&h, m, 1, 2, 7003);
	EXPECT_EQ(d_kind_at(&h, 1, 2, 0, &word), MAP_RAW);
	h_block(7005, data);
	hints_put(&h.tier->dedup.hints, hash_block(data), 7ull << 40 | 12345, false);
	d_write_one(&h, m, 1, 3, 7005);
	EXPECT_EQ(d_kind_at(&h, 1, 3, 0, &word), MAP_RAW);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
	/* The candidate's bytes are bad on the device: nobody refers to them. */
	h_block(1001, data);
	data[99] ^= 1;
	EXPECT_OK(device_pwrite(&h.cap[0], data, BLOCK_SIZE, map_entry_offset(a)));
	d_write_one(&h, m, 1, 4, 1001);
	EXPECT_EQ(d_kind_at(&h, 1, 4, 0, &word), MAP_RAW);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
	h_block(1001, data);
	EXPECT_OK(device_pwrite(&h.cap[0], data, BLOCK_SIZE, map_entry_offset(a)));
	d_end(&h, m);
}

TEST(dedup, a_volume_without_it_neither_gives_nor_takes)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	uint64_t word;

	d_start(&h, m, "policy", 32);
	h.dedup = false;
	d_write_one(&h, m, 0, 1, 1001);
	h.dedup = true;
	d_write_one(&h, m, 1, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	d_write_one(&h, m, 2, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 2, 1, 0, &word), MAP_SHARE);
	h.dedup = false;
	d_write_one(&h, m, 3, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 3, 1, 0, &word), MAP_RAW);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 1);
	/* Switched off later: its unshared blocks are not given any more, its shares stay. */
	h.dedup = true;
	d_write_one(&h, m, 4, 1, 2001);
	h.dedup = false;
	d_write_one(&h, m, 4, 2, 2003);
	h.dedup = true;
	d_write_one(&h, m, 5, 1, 2001);
	EXPECT_EQ(d_kind_at(&h, 5, 1, 0, &word), MAP_RAW);
	EXPECT_EQ(d_kind_at(&h, 2, 1, 0, &word), MAP_SHARE);
	d_end(&h, m);
}

static void flip(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	EXPECT(fd >= 0);
	EXPECT_EQ(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	EXPECT_EQ(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

enum hints_file { HINTS_KEPT, HINTS_GONE, HINTS_OLDER, HINTS_FLIPPED };

/* What the stop before left of its file, by the time of the next start. */
static void hints_back(const char *name, enum hints_file file)
{
	struct harness h;
	char path[700], old[700];
	struct model *m = xcalloc(1, sizeof(*m));
	uint64_t seeds[PAGE_BLOCKS], before;
	unsigned shared = 0;

	d_start(&h, m, name, 32);
	d_wait_hints(&h);
	snprintf(path, sizeof(path), "%s/HINTS", h.meta);
	snprintf(old, sizeof(old), "%s/HINTS.old", h.meta);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 9001 + 2 * i;
	for (unsigned i = 0; i < 4; i++)
		d_write_page(&h, m, 0, i, seeds, PAGE_BLOCKS / 2); /* shared */
	if (file == HINTS_OLDER) {
		h_close(&h);
		EXPECT_EQ(rename(path, old), 0);
		EXPECT_OK(h_open(&h));
		d_wait_hints(&h);
	}
	d_write_page(&h, m, 1, 0, seeds + PAGE_BLOCKS / 2, PAGE_BLOCKS / 2); /* not shared */
	h_close(&h);
	EXPECT_EQ(access(path, F_OK), 0);
	if (file == HINTS_GONE)
		EXPECT_EQ(unlink(path), 0);
	if (file == HINTS_OLDER)
		EXPECT_EQ(rename(old, path), 0);
	if (file == HINTS_FLIPPED)
		flip(path, 4096 + 777);
	EXPECT_OK(h_open(&h));
	EXPECT_EQ(h.tier->dedup.loaded, file == HINTS_KEPT);
	EXPECT(access(path, F_OK) != 0); /* a second start, after a crash, must not find it */
	d_wait_hints(&h);
	before = tier_free_bytes(h.tier);
	d_write_page(&h, m, 2, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(tier_free_bytes(h.tier), before);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		uint64_t word;

		shared += d_kind_at(&h, 2, 0, i, &word) == MAP_SHARE;
	}
	EXPECT_EQ(shared, PAGE_BLOCKS);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	d_end(&h, m);
}

TEST(dedup, hints_come_back_after_a_restart)
{
	hints_back("kept", HINTS_KEPT);
	hints_back("gone", HINTS_GONE);
	hints_back("older", HINTS_OLDER);
	hints_back("flipped", HINTS_FLIPPED);
}

/* ---- Collecting and damage ---------------------------------------------------------------------
 */

/* Overwrites of other pages until the collector has moved what lives at this word. */
static void churn(struct harness *h, struct model *m, unsigned batches)
{
	for (unsigned i = 0; i < batches; i++) {
		struct h_batch *b = h_batch_new(h, m, 0);

		for (unsigned k = 0; k < 8; k++)
			h_batch_page(b, 5, (uint32_t)rng_below(&h->rng, 8) + 8 * k, 30, true);
		EXPECT_OK(h_batch_run(b));
	}
}

TEST(dedup, collecting_moves_a_share_by_its_row)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row before, after;
	struct map_page old;
	struct store_stats st = {0};
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE), want[BLOCK_SIZE];
	struct fp128 fps[PAGE_BLOCKS];
	uint64_t seeds[PAGE_BLOCKS], word, bad;

	d_start(&h, m, "moveshare", 32);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i; /* both forms */
	h.compression = true;
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	d_write_page(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	d_write_one(&h, m, 0, 1, 0); /* the summary's owner of this one is gone */
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	EXPECT_OK(h_page_get(&h, 1, 1, &old));
	EXPECT(d_row_get(&h, map_share_id(word), &before));
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps,
			 &bad)); /* fills the shard's cache */
	h.compression = false;
	churn(&h, m, 150);
	tier_stats(h.tier, &st);
	EXPECT(st.gc_blocks > 0);
	EXPECT(d_row_get(&h, map_share_id(word), &after));
	EXPECT(before.word != after.word);
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	h_verify(&h, true);
	memset(dest, 0xee, PAGE_BLOCKS * BLOCK_SIZE);
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		h_block(seeds[i], want);
		EXPECT_MEM(dest + i * BLOCK_SIZE, want, BLOCK_SIZE);
	}
	free(dest);
	d_end(&h, m);
}

TEST(dedup, a_damaged_share_is_damage_for_all_that_refer_to_it)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row row;
	struct h_batch *b;
	uint8_t junk[BLOCK_SIZE] = {3};
	uint64_t word, share;

	d_start(&h, m, "badshare", 32);
	d_write_one(&h, m, 0, 1, 1001);
	d_write_one(&h, m, 1, 1, 1001);
	d_write_one(&h, m, 2, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	share = map_share_id(word);
	EXPECT(d_row_get(&h, share, &row));
	EXPECT_OK(device_pwrite(&h.cap[0], junk, BLOCK_SIZE, map_entry_offset(row.word)));
	h_close(&h);
	EXPECT_OK(h_open(&h));
	EXPECT_EQ(h_compare(&h, m, true), 3);
	/* Nobody takes it as a candidate either. */
	d_write_one(&h, m, 3, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 3, 1, 0, &word), MAP_RAW);
	/* The reads had it looked at again: the share is damaged, and so are those that met it. */
	churn(&h, m, 150);
	for (unsigned o = 0; o < 3; o++)
		EXPECT_EQ(d_kind_at(&h, o, 1, 0, &word), MAP_DAMAGED);
	EXPECT(!d_row_get(&h, share, &row));
	h_verify(&h, false);
	m->page[0][1].seed[0] = m->page[1][1].seed[0] = m->page[2][1].seed[0] = H_DAMAGED;
	EXPECT_EQ(h_compare(&h, m, false), 3);
	/* A whole copy of the same version repairs the one it is for. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 1, 1)->version = m->page[1][1].version;
	b->after[0].version = m->page[1][1].version;
	b->pages[0].whole = true;
	h_batch_block(b, 0, 1001);
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(h_compare(&h, m, false), 2);
	/* Overwritten, its row goes. */
	d_write_one(&h, m, 0, 1, 5);
	d_write_one(&h, m, 2, 1, 5);
	EXPECT(!d_row_get(&h, map_share_id(word), &row));
	d_end(&h, m);
}

/* The verifier must see each kind of difference, or its silence elsewhere says nothing. */
static void poke(struct harness *h, enum kv_cf cf, const void *key, size_t key_len,
		 const void *value, size_t len)
{
	struct kv_batch *b = kv_batch_create();

	if (value)
		kv_batch_put(h->tier->kv, b, cf, key, key_len, value, len);
	else
		kv_batch_delete(h->tier->kv, b, cf, key, key_len);
	EXPECT_OK(kv_commit(h->tier->kv, b, true));
	kv_batch_destroy(b);
}

TEST(dedup, the_verifier_sees_every_difference)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct tier_verify v;
	struct share_row row, wrong;
	uint8_t key[8], place[8], value[SHARE_VALUE_SIZE], id[8];
	uint64_t word, segment_word;
	uint32_t segment;

	d_start(&h, m, "verifier", 32);
	d_write_one(&h, m, 0, 1, 1001);
	d_write_one(&h, m, 1, 1, 1001);
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	EXPECT(d_row_get(&h, map_share_id(word), &row));
	EXPECT_OK(tier_verify(h.tier, true, &v));
	EXPECT_EQ(v.shares, 1);
	put_be64(key, map_share_id(word));
	segment_word = row.word;
	EXPECT(segment_of_word(&h.tier->seg, segment_word, &segment) != NULL);
	sloc_key_encode(
		place, segment,
		(uint32_t)((map_entry_offset(row.word) - segment_start(&h.tier->seg, segment)) /
			   64));
	for (unsigned i = 0; i < 5; i++) {
		wrong = row;
		wrong.refs += i == 0;
		wrong.owner_refs -= i == 1;
		wrong.fp.lo ^= i == 2;
		wrong.word += i == 3 ? 1u << 9 << 6 : 0;
		wrong.owner_volume += i == 4;
		share_encode(value, &wrong);
		poke(&h, KV_SHARE, key, 8, value, sizeof(value));
		EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	}
	poke(&h, KV_SHARE, key, 8, NULL, 0);
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	share_encode(value, &row);
	poke(&h, KV_SHARE, key, 8, value, sizeof(value));
	EXPECT_OK(tier_verify(h.tier, true, &v));
	poke(&h, KV_SLOC, place, 8, NULL, 0);
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	put_le64(id, map_share_id(word));
	poke(&h, KV_SLOC, place, 8, id, 8);
	place[7] ^= 1;
	poke(&h, KV_SLOC, place, 8, id, 8);
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	poke(&h, KV_SLOC, place, 8, NULL, 0);
	/* Kept beside the rows: segment counts, object counters, volume sums. */
	struct tobj *o = tobj_find(h.tier, h_object_id(0));
	struct tvolume *vol = volume_get(h.tier, h_volume(0));

	o->counters.shared++;
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	o->counters.shared--;
	vol->now.exclusive++;
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	vol->now.exclusive--;
	segment_by_id(&h.tier->seg, segment)->live += 64;
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	segment_by_id(&h.tier->seg, segment)->live -= 64;
	h.tier->seg.space.padding += 64;
	txn_publish(h.tier);
	EXPECT_RC(tier_verify(h.tier, false, &v), -ERR_CORRUPT);
	h.tier->seg.space.padding -= 64;
	txn_publish(h.tier);
	d_end(&h, m);
}

/* ---- The ledger --------------------------------------------------------------------------------
 */

/* Half of each block compresses away, a third of the blocks are duplicates of others. */
TEST(ledger, ratio_is_that_of_the_data)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_ledger all, v[2];
	struct store_stats st = {0};
	uint64_t unique = 0, blocks = 0;
	double want, got;

	d_start(&h, m, "ratio", 48);
	h.compression = true;
	for (uint32_t p = 0; p < 60; p++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_open_page(b, p % H_OBJECTS, p);
		for (unsigned i = 0; i < PAGE_BLOCKS; i++, blocks++) {
			/* h_block: even seeds have 256 + seed % 1500 random bytes, here always
			 * 2,048 − 292. */
			uint64_t n = unique < 3 || rng_below(&h.rng, 3) ? unique++
									: rng_below(&h.rng, unique);

			h_batch_block(b, i, 1499 + 1 + 1498 + n * 3000);
		}
		EXPECT_OK(h_batch_run(b));
	}
	uint8_t data[BLOCK_SIZE], packed[CODEC_UNITS_MAX * CODEC_UNIT];

	h_block(1499 + 1 + 1498, data);
	want = (double)(blocks * BLOCK_SIZE) / (double)(unique * (256 + 1498 + 64));
	EXPECT(codec_compress(data, packed) * 64 <= 256 + 1498 + 64);
	tier_ledger(h.tier, &all);
	for (unsigned i = 0; i < 2; i++)
		EXPECT(tier_volume_ledger(h.tier, h_volume(i), &v[i]));
	EXPECT(!tier_volume_ledger(h.tier, 4711, &v[0]) && v[0].exact && !v[0].frees_if_deleted_bytes &&
	       tier_volume_ledger(h.tier, h_volume(0), &v[0]));
	got = (double)all.logical_bytes / (double)all.stored_bytes;
	printf("  ratio of the data %.3f, of the ledger %.3f\n", want, got);
	EXPECT(got > want * 0.95 && got < want * 1.05);
	EXPECT_EQ(all.dedup_saved_bytes, (blocks - unique) * BLOCK_SIZE);
	for (unsigned i = 0; i < 2; i++)
		EXPECT(v[i].frees_if_deleted_bytes <= v[i].stored_bytes &&
		       v[i].frees_if_deleted_bytes);
	EXPECT_EQ(v[0].logical_bytes + v[1].logical_bytes, all.logical_bytes);
	EXPECT_EQ(v[0].stored_bytes + v[1].stored_bytes, all.stored_bytes);
	EXPECT_EQ(v[0].dedup_saved_bytes + v[1].dedup_saved_bytes, all.dedup_saved_bytes);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes, all.stored_bytes);
	EXPECT_EQ(st.data_used_bytes + st.padding_bytes + st.summary_bytes + st.dead_bytes +
			  st.free_bytes + st.reserve_bytes,
		  st.data_bytes);
	EXPECT(st.dead_bytes == 0);
	/* What a volume's deletion frees is no less than what was said. */
	uint64_t live = st.data_used_bytes;

	for (unsigned o = 0; o < H_OBJECTS; o += 2) {
		EXPECT_OK(h_object_delete(&h, o, 1));
		m->gen[o] = 2;
		memset(m->page[o], 0, sizeof(m->page[o]));
		EXPECT_OK(h_object_put(&h, o, 2));
	}
	tier_stats(h.tier, &st);
	EXPECT(live - st.data_used_bytes >= v[0].frees_if_deleted_bytes);
	EXPECT(st.dead_bytes > 0);
	d_end(&h, m);
}
