/* SPDX-License-Identifier: Apache-2.0 */
/* Shared blocks: made, read, given back, moved, damaged; the ledger; what is stored raw under load.
 * After each step the verifier recounts all of it (I8, I9). */
#include "tests/store/tier/harness.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "store/codec.h"
#include "store/prepare.h"

static void start(struct harness *h, struct model *m, const char *name, unsigned size_mib)
{
	memset(m, 0, sizeof(*m));
	h_init(h, name, 1, size_mib, 1);
	h->dedup = true;
	EXPECT_OK(h_open(h));
	for (unsigned o = 0; o < H_OBJECTS; o++) {
		m->live[o] = true;
		m->gen[o] = 1;
		EXPECT_OK(h_object_put(h, o, 1));
	}
}

static void end(struct harness *h, struct model *m)
{
	h_verify(h, true);
	h_compare(h, m, false);
	h_close(h);
	EXPECT_OK(h_open(h));
	h_verify(h, true);
	h_compare(h, m, false);
	h_close(h);
	h_fini(h);
	free(m);
}

static void wait_hints(struct harness *h)
{
	while (!atomic_load(&h->tier->dedup.rebuilt))
		sched_yield();
}

/* One page with these seeds from block 0 on. */
static void write_page(struct harness *h, struct model *m, unsigned object, uint32_t page,
		       const uint64_t *seeds, unsigned n)
{
	struct h_batch *b = h_batch_new(h, m, 0);

	h_batch_open_page(b, object, page);
	for (unsigned i = 0; i < n; i++)
		h_batch_block(b, i, seeds[i]);
	EXPECT_OK(h_batch_run(b));
}

static void write_one(struct harness *h, struct model *m, unsigned object, uint32_t page,
		      uint64_t seed)
{
	write_page(h, m, object, page, &seed, 1);
}

static unsigned kind_at(struct harness *h, unsigned object, uint32_t page, unsigned block,
			uint64_t *word)
{
	struct map_page p;

	EXPECT_OK(h_page_get(h, object, page, &p));
	*word = p.entry[block].word;
	return p.mask >> block & 1 ? map_entry_kind(p.entry[block].word) : MAP_HOLE;
}

static bool row_get(struct harness *h, uint64_t id, struct share_row *row)
{
	uint8_t key[8], value[SHARE_VALUE_SIZE];
	size_t len;

	put_be64(key, id);
	return !kv_get(h->tier->kv, KV_SHARE, key, 8, value, sizeof(value), &len) &&
	       !share_decode(value, len, row);
}

static unsigned rows_in(struct harness *h, enum kv_cf cf)
{
	struct kv_iter *it = kv_iter_range(h->tier->kv, cf, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	unsigned n = 0;

	while (kv_iter_next(it, &key, &key_len, &value, &len))
		n++;
	EXPECT_OK(kv_iter_close(it));
	return n;
}

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

	start(&h, m, "share", 32);
	empty = tier_free_bytes(h.tier);
	write_one(&h, m, 0, 1, 1001);
	one = tier_free_bytes(h.tier);
	EXPECT_EQ(kind_at(&h, 0, 1, 0, &a), MAP_RAW);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	write_one(&h, m, 1, 2, 1001);
	EXPECT_EQ(tier_free_bytes(h.tier), one);
	EXPECT_EQ(kind_at(&h, 1, 2, 0, &b), MAP_SHARE);
	id = map_share_id(b);
	EXPECT(row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 2);
	EXPECT_EQ(row.word, a); /* where it was */
	EXPECT_EQ(row.owner_volume, h_volume(0));
	EXPECT_EQ(row.owner_refs, 1);
	EXPECT_EQ(rows_in(&h, KV_SLOC), 1);
	h_verify(&h, true);
	/* The owner's cached page may still say raw; past the cache it is shared. */
	h_close(&h);
	EXPECT_OK(h_open(&h));
	wait_hints(&h);
	EXPECT_EQ(kind_at(&h, 0, 1, 0, &b), MAP_SHARE);
	EXPECT_EQ(map_share_id(b), id);
	/* A third and a fourth. */
	write_one(&h, m, 2, 3, 1001);
	write_one(&h, m, 2, 4, 1001);
	EXPECT(row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 4);
	EXPECT_EQ(row.owner_refs, 3);
	h_verify(&h, true);
	h_compare(&h, m, false);
	/* The owner's volume goes: overwritten by itself with the same, trimmed, deleted. */
	write_one(&h, m, 0, 1, 1001);
	EXPECT(row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 4);
	write_one(&h, m, 0, 1, 0);
	write_one(&h, m, 2, 3, 2001);
	EXPECT(row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 2);
	h_verify(&h, true);
	EXPECT_OK(h_object_delete(&h, 2, 1));
	m->gen[2] = 2;
	memset(m->page[2], 0, sizeof(m->page[2]));
	EXPECT_OK(h_object_put(&h, 2, 2));
	EXPECT(row_get(&h, id, &row));
	EXPECT_EQ(row.refs, 1);
	EXPECT_EQ(row.owner_refs, 0);
	h_verify(&h, true);
	h_compare(&h, m, false);
	/* The last one: both keys go, the space is back. */
	write_one(&h, m, 1, 2, 0);
	EXPECT(!row_get(&h, id, &row));
	EXPECT_EQ(rows_in(&h, KV_SLOC), 0);
	EXPECT_EQ(tier_free_bytes(h.tier), empty);
	/* An id is never used again, not even after a restart. */
	h_close(&h);
	EXPECT_OK(h_open(&h));
	write_one(&h, m, 0, 1, 3001);
	write_one(&h, m, 1, 2, 3001);
	EXPECT_EQ(kind_at(&h, 1, 2, 0, &b), MAP_SHARE);
	EXPECT(map_share_id(b) > id);
	end(&h, m);
}

TEST(dedup, equal_blocks_of_one_batch_are_stored_once)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row row;
	uint64_t seeds[PAGE_BLOCKS], before, word;

	start(&h, m, "batch", 32);
	before = tier_free_bytes(h.tier);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 5001 + 2 * (i % 4);
	write_page(&h, m, 0, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(before - tier_free_bytes(h.tier), 4 * BLOCK_SIZE);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 4);
	EXPECT_EQ(kind_at(&h, 0, 0, 0, &word), MAP_SHARE);
	EXPECT(row_get(&h, map_share_id(word), &row));
	EXPECT_EQ(row.refs, 16);
	h_verify(&h, true);
	/* In one batch: the last reference goes and comes back. */
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 5001 + 2 * ((i + 1) % 4);
	write_page(&h, m, 0, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(before - tier_free_bytes(h.tier), 4 * BLOCK_SIZE);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 4);
	end(&h, m);
}

/* More payload than the chunks of all threads hold at once, equal blocks far apart in it; with the
 * destager alone it comes to the same. */
static void many_chunks(const char *name, unsigned threads)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct h_batch *b;
	uint64_t before;

	start(&h, m, name, 32);
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
	end(&h, m);
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

	start(&h, m, "liar", 32);
	write_one(&h, m, 0, 1, 1001);
	EXPECT_EQ(kind_at(&h, 0, 1, 0, &a), MAP_RAW);
	/* A hint that names this block for other content, a share that is not there, a place
	 * nowhere. */
	h_block(7001, data);
	fp = hash_block(data);
	hints_put(&h.tier->dedup.hints, fp, a >> 9 & (HINT_SHARED - 1), false);
	write_one(&h, m, 1, 1, 7001);
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	h_block(7003, data);
	hints_put(&h.tier->dedup.hints, hash_block(data), HINT_SHARED | 4711, false);
	write_one(&h, m, 1, 2, 7003);
	EXPECT_EQ(kind_at(&h, 1, 2, 0, &word), MAP_RAW);
	h_block(7005, data);
	hints_put(&h.tier->dedup.hints, hash_block(data), 7ull << 40 | 12345, false);
	write_one(&h, m, 1, 3, 7005);
	EXPECT_EQ(kind_at(&h, 1, 3, 0, &word), MAP_RAW);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	/* The candidate's bytes are bad on the device: nobody refers to them. */
	h_block(1001, data);
	data[99] ^= 1;
	EXPECT_OK(device_pwrite(&h.cap[0], data, BLOCK_SIZE, map_entry_offset(a)));
	write_one(&h, m, 1, 4, 1001);
	EXPECT_EQ(kind_at(&h, 1, 4, 0, &word), MAP_RAW);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	h_block(1001, data);
	EXPECT_OK(device_pwrite(&h.cap[0], data, BLOCK_SIZE, map_entry_offset(a)));
	end(&h, m);
}

TEST(dedup, a_volume_without_it_neither_gives_nor_takes)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	uint64_t word;

	start(&h, m, "policy", 32);
	h.dedup = false;
	write_one(&h, m, 0, 1, 1001);
	h.dedup = true;
	write_one(&h, m, 1, 1, 1001);
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	write_one(&h, m, 2, 1, 1001);
	EXPECT_EQ(kind_at(&h, 2, 1, 0, &word), MAP_SHARE);
	h.dedup = false;
	write_one(&h, m, 3, 1, 1001);
	EXPECT_EQ(kind_at(&h, 3, 1, 0, &word), MAP_RAW);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 1);
	/* Switched off later: its unshared blocks are not given any more, its shares stay. */
	h.dedup = true;
	write_one(&h, m, 4, 1, 2001);
	h.dedup = false;
	write_one(&h, m, 4, 2, 2003);
	h.dedup = true;
	write_one(&h, m, 5, 1, 2001);
	EXPECT_EQ(kind_at(&h, 5, 1, 0, &word), MAP_RAW);
	EXPECT_EQ(kind_at(&h, 2, 1, 0, &word), MAP_SHARE);
	end(&h, m);
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

	start(&h, m, name, 32);
	wait_hints(&h);
	snprintf(path, sizeof(path), "%s/HINTS", h.meta);
	snprintf(old, sizeof(old), "%s/HINTS.old", h.meta);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 9001 + 2 * i;
	for (unsigned i = 0; i < 4; i++)
		write_page(&h, m, 0, i, seeds, PAGE_BLOCKS / 2); /* shared */
	if (file == HINTS_OLDER) {
		h_close(&h);
		EXPECT_EQ(rename(path, old), 0);
		EXPECT_OK(h_open(&h));
		wait_hints(&h);
	}
	write_page(&h, m, 1, 0, seeds + PAGE_BLOCKS / 2, PAGE_BLOCKS / 2); /* not shared */
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
	wait_hints(&h);
	before = tier_free_bytes(h.tier);
	write_page(&h, m, 2, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(tier_free_bytes(h.tier), before);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		uint64_t word;

		shared += kind_at(&h, 2, 0, i, &word) == MAP_SHARE;
	}
	EXPECT_EQ(shared, PAGE_BLOCKS);
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	end(&h, m);
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

TEST(dedup, hints_come_back_after_a_restart)
{
	hints_back("kept", HINTS_KEPT);
	hints_back("gone", HINTS_GONE);
	hints_back("older", HINTS_OLDER);
	hints_back("flipped", HINTS_FLIPPED);
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

	start(&h, m, "moveshare", 32);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i; /* both forms */
	h.compression = true;
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	write_page(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	write_one(&h, m, 0, 1, 0); /* the summary's owner of this one is gone */
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	EXPECT_OK(h_page_get(&h, 1, 1, &old));
	EXPECT(row_get(&h, map_share_id(word), &before));
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps,
			 &bad)); /* fills the shard's cache */
	h.compression = false;
	churn(&h, m, 150);
	tier_stats(h.tier, &st);
	EXPECT(st.gc_blocks > 0);
	EXPECT(row_get(&h, map_share_id(word), &after));
	EXPECT(before.word != after.word);
	EXPECT_EQ(rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	h_verify(&h, true);
	memset(dest, 0xee, PAGE_BLOCKS * BLOCK_SIZE);
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		h_block(seeds[i], want);
		EXPECT_MEM(dest + i * BLOCK_SIZE, want, BLOCK_SIZE);
	}
	free(dest);
	end(&h, m);
}

TEST(dedup, a_damaged_share_is_damage_for_all_that_refer_to_it)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct share_row row;
	struct h_batch *b;
	uint8_t junk[BLOCK_SIZE] = {3};
	uint64_t word, share;

	start(&h, m, "badshare", 32);
	write_one(&h, m, 0, 1, 1001);
	write_one(&h, m, 1, 1, 1001);
	write_one(&h, m, 2, 1, 1001);
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	share = map_share_id(word);
	EXPECT(row_get(&h, share, &row));
	EXPECT_OK(device_pwrite(&h.cap[0], junk, BLOCK_SIZE, map_entry_offset(row.word)));
	h_close(&h);
	EXPECT_OK(h_open(&h));
	EXPECT_EQ(h_compare(&h, m, true), 3);
	/* Nobody takes it as a candidate either. */
	write_one(&h, m, 3, 1, 1001);
	EXPECT_EQ(kind_at(&h, 3, 1, 0, &word), MAP_RAW);
	/* The reads had it looked at again: the share is damaged, and so are those that met it. */
	churn(&h, m, 150);
	for (unsigned o = 0; o < 3; o++)
		EXPECT_EQ(kind_at(&h, o, 1, 0, &word), MAP_DAMAGED);
	EXPECT(!row_get(&h, share, &row));
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
	write_one(&h, m, 0, 1, 5);
	write_one(&h, m, 2, 1, 5);
	EXPECT(!row_get(&h, map_share_id(word), &row));
	end(&h, m);
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

	start(&h, m, "verifier", 32);
	write_one(&h, m, 0, 1, 1001);
	write_one(&h, m, 1, 1, 1001);
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_SHARE);
	EXPECT(row_get(&h, map_share_id(word), &row));
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
	end(&h, m);
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

	start(&h, m, "ratio", 48);
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
	EXPECT(!tier_volume_ledger(h.tier, 4711, &v[0]) &&
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
	end(&h, m);
}

/* ---- Stored raw under load ---------------------------------------------------------------------
 */

static void pace_high(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 7000, false);
	h_done(c, 0);
}

static void pace_low(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 0, false);
	h_done(c, 0);
}

TEST(dedup, stored_raw_under_load_and_reduced_when_idle)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	struct map_page p;
	uint64_t before, word;
	bool marked = true;

	start(&h, m, "later", 48);
	h.compression = true;
	h.pool = 100;
	h_run(&h, 0, &c, pace_high);
	for (uint32_t i = 0; i < 20; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	tier_stats(h.tier, &st);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	EXPECT_EQ(st.compression_saved_bytes, 0);
	EXPECT(st.reduce_bypassed_blocks > 500);
	before = st.data_used_bytes;
	EXPECT_OK(h_page_get(&h, 0, 0, &p));
	EXPECT(p.flags & MAP_PAGE_REDUCE_LATER);
	h_verify(&h, true);
	/* Still to be done after a restart; the fill as it falls is what begins it. */
	h_close(&h);
	h.high = 7000;
	EXPECT_OK(h_open(&h));
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending);
	h_run(&h, 0, &c, pace_low);
	while (marked) {
		marked = false;
		pthread_mutex_lock(&h.tier->commit_lock);
		for (unsigned o = 0; o < H_OBJECTS; o++)
			marked |= tobj_find(h.tier, h_object_id(o))->flags & OBJECT_REDUCE_LATER;
		pthread_mutex_unlock(&h.tier->commit_lock);
		sched_yield();
	}
	tier_stats(h.tier, &st);
	EXPECT(st.data_used_bytes <
	       before / 8); /* 100 different blocks, half of them compressible */
	EXPECT(st.data_used_bytes > 50 * BLOCK_SIZE);
	EXPECT(rows_in(&h, KV_SHARE) > 80);
	EXPECT_OK(h_page_get(&h, 0, 0, &p));
	EXPECT(!(p.flags & MAP_PAGE_REDUCE_LATER));
	EXPECT_EQ(kind_at(&h, 0, 0, (unsigned)__builtin_ctzll(p.mask), &word), MAP_SHARE);
	end(&h, m);
}

/* Everything that is below, reduced and collected; the fill of the log falls first. */
static void settle(struct harness *h, struct store_stats *st)
{
	struct h_call c;

	h_run(h, 0, &c, pace_low);
	EXPECT_OK(h_settle(h));
	tier_stats(h->tier, st);
	EXPECT(!st->reduce_pending);
}

static void write_raw(struct harness *h, struct model *m, unsigned object, uint32_t page,
		      const uint64_t *seeds, unsigned n)
{
	struct store_stats st = {0};
	struct h_call c;
	uint64_t before;

	tier_stats(h->tier, &st);
	before = st.reduce_bypassed_blocks;
	h_run(h, 0, &c, pace_high);
	write_page(h, m, object, page, seeds, n);
	tier_stats(h->tier, &st);
	EXPECT_EQ(st.reduce_bypassed_blocks - before, n);
}

/* What one page takes by itself, reduced. */
static uint64_t size_of(const uint64_t *seeds, unsigned n)
{
	uint8_t data[BLOCK_SIZE], packed[CODEC_UNITS_MAX * CODEC_UNIT];
	uint64_t sum = 0;

	for (unsigned i = 0; i < n; i++) {
		unsigned units;

		h_block(seeds[i], data);
		units = codec_compress(data, packed);
		sum += (units ? units : 64) * CODEC_UNIT;
	}
	return sum;
}

struct settling {
	struct wait wait;
	_Atomic int rc;
};

static struct settling settling;

static void on_settled(struct wait *w, int rc)
{
	atomic_store(&settling.rc, rc);
}

static void settle_begin(struct h_call *c)
{
	settling.wait.resume = on_settled;
	atomic_store(&settling.rc, 1);
	EXPECT_RC(tier_settle(c->h->tier, 0, &settling.wait), PENDING);
	h_done(c, 0);
}

/* The newest copy, stored raw, hides neither the one that was reduced before, nor itself when it is
 * collected meanwhile; and in the end all is as if there had been no load. */
TEST(reduce, a_copy_stored_raw_is_found_to_be_one)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS], others[PAGE_BLOCKS], word, was;
	struct h_call c;

	start(&h, m, "copyraw", 48);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i, others[i] = 5000 + i; /* both forms */
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	write_page(&h, m, 3, 1, seeds, PAGE_BLOCKS / 2);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS));
	write_raw(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	write_raw(&h, m, 2, 1, seeds, PAGE_BLOCKS);
	/* Collected before there is time to reduce. */
	EXPECT_EQ(kind_at(&h, 1, 1, 0, &was), MAP_RAW);
	for (unsigned i = 0; i < 2; i++)
		write_raw(&h, m, 4, 1, others, PAGE_BLOCKS);
	h_run(&h, 0, &c, settle_begin);
	do {
		EXPECT_EQ(kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	} while (word == was);
	h_run(&h, 0, &c, pace_low);
	while (atomic_load(&settling.rc) == 1)
		sched_yield();
	EXPECT_EQ(atomic_load(&settling.rc), 0);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS) + size_of(others, PAGE_BLOCKS));
	for (unsigned o = 0; o < 3; o++)
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			EXPECT_EQ(kind_at(&h, o, 1, i, &word), MAP_SHARE);
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	EXPECT_EQ(rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	end(&h, m);
}

/* Of blocks that were all stored raw, equal ones become one, and that one is compressed. */
TEST(reduce, equal_raw_blocks_become_one_small_one)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS];

	start(&h, m, "rawraw", 48);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i % 40; /* within a page, too */
	for (unsigned o = 0; o < 4; o++)
		write_raw(&h, m, o, 1, seeds, PAGE_BLOCKS);
	/* The owner of what the first would have met is gone by the time. */
	write_raw(&h, m, 3, 1, seeds + 1, 2);
	settle(&h, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, 40));
	EXPECT_EQ(rows_in(&h, KV_SHARE), 40);
	EXPECT_EQ(rows_in(&h, KV_SLOC), 40);
	h_verify(&h, true);
	end(&h, m);
}

static void pace_mid(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 4000, false);
	h_done(c, 0);
}

static void forget_hints(struct harness *h)
{
	char path[700];

	h_close(h);
	snprintf(path, sizeof(path), "%s/HINTS", h->meta);
	EXPECT_EQ(unlink(path), 0);
	EXPECT_OK(h_open(h));
}

/* A copy that was stored raw and is known from its summary is not given to a third one before it was
 * compared with the first itself. */
TEST(reduce, a_third_copy_before_the_second_is_reduced)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	uint64_t seeds[PAGE_BLOCKS];

	start(&h, m, "third", 48);
	wait_hints(&h);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i;
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	h_close(&h); /* the segment ends */
	EXPECT_OK(h_open(&h));
	write_raw(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	h.high = 7000;
	forget_hints(&h);
	wait_hints(&h);
	h_run(&h, 0, &c, pace_mid); /* neither raw, nor is there time to reduce */
	write_page(&h, m, 2, 1, seeds, PAGE_BLOCKS);
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending);
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	settle(&h, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS));
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	end(&h, m);
}

static void expect_packed(struct harness *h, unsigned object, const uint64_t *seeds, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct share_row row;
		uint64_t word;

		EXPECT_EQ(kind_at(h, object, 1, i, &word), MAP_SHARE);
		EXPECT(row_get(h, map_share_id(word), &row));
		EXPECT_EQ(map_entry_kind(row.word), seeds[i] & 1 ? MAP_RAW : MAP_LZ4);
	}
}

static void ask_reduce(struct h_call *c);
static void reduce_all(struct harness *h, struct store_stats *st);
static uint32_t request;

static void count_cached_shares(struct h_call *c)
{
	int n = 0;

	for (uint64_t id = 1; id <= PAGE_BLOCKS; id++)
		n += fifo_cache_get(&c->h->tier->shards[0].shares, (struct fifo_key){id, 0}) != NULL;
	h_done(c, n);
}

/* Shared under a policy without compression: the first who wants it brings it for all, as does a
 * request for what is there. Readers that know the old place find the bytes. */
TEST(reduce, a_raw_share_is_compressed_for_all)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	struct fp128 fps[PAGE_BLOCKS];
	struct map_page old;
	struct h_call c;
	uint64_t seeds[PAGE_BLOCKS], bad, more;

	start(&h, m, "rawshare", 48);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i;
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	write_page(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	EXPECT_OK(h_page_get(&h, 1, 1, &old));
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad)); /* fills the shard's cache */
	h.compression = true;
	write_page(&h, m, 2, 1, seeds, PAGE_BLOCKS / 2);
	h_verify(&h, true);
	expect_packed(&h, 0, seeds, PAGE_BLOCKS / 2);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes,
		  size_of(seeds, PAGE_BLOCKS / 2) + PAGE_BLOCKS / 2 * BLOCK_SIZE);
	h_run(&h, 0, &c, count_cached_shares);
	EXPECT_EQ(c.rc, PAGE_BLOCKS / 4 * 3); /* those that did not move */
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	write_one(&h, m, 0, 2, 5001); /* the policy is known */
	write_one(&h, m, 1, 2, 5003);
	tier_stats(h.tier, &st);
	more = st.data_used_bytes - size_of(seeds, PAGE_BLOCKS / 2) - PAGE_BLOCKS / 2 * BLOCK_SIZE;
	request = 9;
	reduce_all(&h, &st);
	h_verify(&h, true);
	expect_packed(&h, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS) + more);
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	EXPECT_EQ(rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	free(dest);
	end(&h, m);
}

/* A raw share that is bad becomes damage, as wherever it is met. */
TEST(reduce, a_bad_raw_share_is_not_compressed)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct share_row row;
	uint8_t junk[BLOCK_SIZE] = {3};
	uint64_t word, seeds[2] = {4000, 4002};

	start(&h, m, "badraw", 32);
	write_page(&h, m, 0, 1, seeds, 2);
	write_page(&h, m, 1, 1, seeds, 2);
	EXPECT_EQ(kind_at(&h, 0, 1, 0, &word), MAP_SHARE);
	EXPECT(row_get(&h, map_share_id(word), &row));
	EXPECT_OK(device_pwrite(&h.cap[0], junk, BLOCK_SIZE, map_entry_offset(row.word)));
	EXPECT_EQ(map_entry_kind(row.word), MAP_RAW);
	request = 3;
	reduce_all(&h, &st);
	EXPECT_EQ(kind_at(&h, 0, 1, 1, &word), MAP_SHARE);
	EXPECT(row_get(&h, map_share_id(word), &row));
	EXPECT_EQ(map_entry_kind(row.word), MAP_LZ4);
	h_verify(&h, false);
	EXPECT_EQ(h_compare(&h, m, true), 2);
	h_close(&h);
	h_fini(&h);
	free(m);
}

/* After a crash the newest summary of a content may be that of a copy which was stored raw and is gone,
 * or overwritten; it hides nothing. */
TEST(reduce, hints_from_summaries_lead_past_copies_that_are_gone)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	uint64_t seeds[PAGE_BLOCKS], before, other = 77001;

	start(&h, m, "leadpast", 48);
	wait_hints(&h);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4001 + 2 * i;
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	h_close(&h); /* the segment ends */
	EXPECT_OK(h_open(&h));
	for (unsigned o = 1; o < 2 + HINTS_TRIED; o++) {
		seeds[PAGE_BLOCKS - 1] = 78001 + 2 * o; /* its own: the segment stays */
		write_raw(&h, m, o, 1, seeds, PAGE_BLOCKS);
	}
	h_run(&h, 0, &c, pace_low);
	do {
		tier_stats(h.tier, &st);
		sched_yield();
	} while (st.reduce_pending);
	EXPECT(st.dead_bytes >= 3 * PAGE_BLOCKS * BLOCK_SIZE / 2);
	EXPECT(st.reduce_redone_blocks > 0);
	EXPECT_EQ(rows_in(&h, KV_SHARE), PAGE_BLOCKS - 1);
	for (unsigned o = 1; o < HINTS_TRIED; o++)
		write_one(&h, m, o, 1, other);
	forget_hints(&h);
	wait_hints(&h);
	before = tier_free_bytes(h.tier);
	write_page(&h, m, 5, 1, seeds, PAGE_BLOCKS - 1);
	EXPECT_EQ(tier_free_bytes(h.tier), before);
	end(&h, m);
}

/* What is written after a crash, before the summaries are read, is looked at again. */
TEST(reduce, what_comes_before_the_hints_is_reduced_in_the_end)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS], before;

	start(&h, m, "early", 64);
	wait_hints(&h);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4001 + 2 * i;
	write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	for (unsigned i = 0; i < 40; i++) { /* newer, and read first */
		struct h_batch *b = h_batch_new(&h, m, 0);

		for (unsigned k = 0; k < 3; k++)
			h_batch_page(b, 5, 3 * (i % 20) + k, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	settle(&h, &st);
	before = st.data_used_bytes;
	for (unsigned turn = 0; turn < 5; turn++) {
		forget_hints(&h);
		write_page(&h, m, 1, 1 + turn, seeds, PAGE_BLOCKS); /* at once */
		write_page(&h, m, 2, 1 + turn, seeds, PAGE_BLOCKS);
		settle(&h, &st);
		EXPECT_EQ(st.data_used_bytes, before);
	}
	end(&h, m);
}

/* Waits while the log is too full, ends with the tier, and leaves no garbage behind. */
TEST(reduce, settling_waits_reduces_and_collects)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS], want = 0;
	struct h_call c;

	start(&h, m, "settle", 48);
	wait_hints(&h);
	EXPECT_OK(h_settle(&h)); /* nothing to do */
	h.compression = true;
	for (uint32_t p = 0; p < 60; p++) {
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			seeds[i] = 4000 + (p * PAGE_BLOCKS + i) % 1920; /* twice */
		write_raw(&h, m, p % H_OBJECTS, p, seeds, PAGE_BLOCKS);
	}
	h_run(&h, 0, &c, settle_begin);
	write_page(&h, m, 0, 70, seeds, PAGE_BLOCKS); /* the tier has seen it by the end of this */
	write_page(&h, m, 0, 71, seeds, PAGE_BLOCKS);
	EXPECT_EQ(atomic_load(&settling.rc), 1);
	h_close(&h);
	EXPECT_EQ(atomic_load(&settling.rc), -ERR_CLOSED);
	h.high = 7000;
	EXPECT_OK(h_open(&h));
	h_run(&h, 0, &c, settle_begin);
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending && atomic_load(&settling.rc) == 1);
	h_run(&h, 0, &c, pace_low);
	while (atomic_load(&settling.rc) == 1)
		sched_yield();
	EXPECT_EQ(atomic_load(&settling.rc), 0);
	tier_stats(h.tier, &st);
	EXPECT(!st.reduce_pending);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 1920);
	for (unsigned i = 0; i < 1920; i++)
		want += size_of(&(uint64_t){4000 + i}, 1);
	EXPECT_EQ(st.data_used_bytes, want);
	/* 60 pages of raw blocks became garbage; in each segment less than a 16th is left. */
	EXPECT(st.gc_blocks > 0);
	EXPECT(st.dead_bytes < (st.data_used_bytes + st.dead_bytes) / 16);
	end(&h, m);
}

static void ask_reduce(struct h_call *c)
{
	struct tier *t = c->h->tier;

	for (unsigned o = 0; o < H_OBJECTS; o++)
		tier_object_reduce(t, (unsigned)(h_object_id(o) % t->shard_count), h_object_id(o), 1,
				   request, true, true);
	h_done(c, 0);
}

/* Asks, and waits until it is done. */
static void reduce_all(struct harness *h, struct store_stats *st)
{
	struct store_ledger l;
	struct h_call c;

	h_run(h, 0, &c, ask_reduce);
	do {
		sched_yield();
		tier_stats(h->tier, st);
	} while (atomic_load(&h->tier->requests_open) || st->reduce_pending);
	tier_ledger(h->tier, &l);
	EXPECT_EQ(l.to_reduce_bytes, 0);
}

/* Written with both off; asked for, all of it is looked at, once, whatever a restart cuts off. */
TEST(dedup, existing_data_is_reduced_when_asked_for)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	uint64_t before, looked;

	start(&h, m, "asked", 48);
	h.dedup = false;
	h.pool = 100;
	for (uint32_t i = 0; i < 40; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	tier_stats(h.tier, &st);
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	EXPECT_EQ(st.compression_saved_bytes, 0);
	before = st.data_used_bytes;
	request = 1;
	h_run(&h, 0, &c, ask_reduce);
	h_close(&h); /* in the midst of it, or not */
	EXPECT_OK(h_open(&h));
	reduce_all(&h, &st);
	h_verify(&h, true);
	EXPECT(st.data_used_bytes < before / 8);
	EXPECT(rows_in(&h, KV_SHARE) > 80);
	looked = st.reduce_redone_blocks;
	EXPECT(looked > 0);
	/* The same request again is none, after a restart too. */
	reduce_all(&h, &st);
	EXPECT_EQ(st.reduce_redone_blocks, looked);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	reduce_all(&h, &st);
	EXPECT_EQ(st.reduce_redone_blocks, 0);
	end(&h, m);
}

TEST(dedup, compressed_blocks_are_shared_when_asked_for)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};

	start(&h, m, "packed", 48);
	h.dedup = false;
	h.compression = true;
	h.pool = 100;
	for (uint32_t i = 0; i < 20; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	EXPECT_EQ(rows_in(&h, KV_SHARE), 0);
	request = 5;
	reduce_all(&h, &st);
	EXPECT(rows_in(&h, KV_SHARE) > 80);
	end(&h, m);
}
