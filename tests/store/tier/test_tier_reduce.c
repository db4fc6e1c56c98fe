/* SPDX-License-Identifier: Apache-2.0 */
/* What is stored raw under load and reduced later, or reduced because somebody asks: in the end all is as if
 * there had been no load. After each step the verifier recounts all of it (I8, I9). */
#include "tests/store/tier/dedup_kit.h"

#include <unistd.h>

#include "store/codec.h"

static void pace_high(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 7000, false, false);
	h_done(c, 0);
}

static void pace_low(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 0, false, false);
	h_done(c, 0);
}

static void pace_writing(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 0, true, false);
	h_done(c, 0);
}

static bool any_marked(struct harness *h)
{
	bool marked = false;

	pthread_mutex_lock(&h->tier->commit_lock);
	for (unsigned o = 0; o < H_OBJECTS; o++)
		marked |= tobj_find(h->tier, h_object_id(o))->flags & OBJECT_REDUCE_LATER;
	pthread_mutex_unlock(&h->tier->commit_lock);
	return marked;
}

TEST(dedup, stored_raw_under_load_and_reduced_when_idle)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	struct map_page p;
	uint64_t before, word;

	d_start(&h, m, "later", 48);
	h.compression = true;
	h.pool = 100;
	h_run(&h, 0, &c, pace_high);
	for (uint32_t i = 0; i < 20; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	tier_stats(h.tier, &st);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
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
	/* Not while clients write: the destager comes by, and leaves it. */
	d_wait_hints(&h);
	atomic_store(&h.tier->hurry, 0);
	h_run(&h, 0, &c, pace_writing);
	for (unsigned i = 0; i < 40; i++)
		EXPECT_OK(h_object_put(&h, 0, 1));
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.reduce_redone_blocks, 0);
	h_run(&h, 0, &c, pace_low);
	EXPECT_SOON(!any_marked(&h));
	tier_stats(h.tier, &st);
	EXPECT(st.data_used_bytes <
	       before / 8); /* 100 different blocks, half of them compressible */
	EXPECT(st.data_used_bytes > 50 * BLOCK_SIZE);
	EXPECT(d_rows_in(&h, KV_SHARE) > 80);
	EXPECT_OK(h_page_get(&h, 0, 0, &p));
	EXPECT(!(p.flags & MAP_PAGE_REDUCE_LATER));
	EXPECT_EQ(d_kind_at(&h, 0, 0, (unsigned)__builtin_ctzll(p.mask), &word), MAP_SHARE);
	d_end(&h, m);
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
	d_write_page(h, m, object, page, seeds, n);
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

static int settled(void)
{
	EXPECT_SOON(atomic_load(&settling.rc) != 1);
	return atomic_load(&settling.rc);
}

static void settle_for(struct h_call *c, uint64_t limit_us)
{
	settling.wait.resume = on_settled;
	atomic_store(&settling.rc, 1);
	EXPECT_RC(tier_settle(c->h->tier, 0, limit_us, &settling.wait), PENDING);
	h_done(c, 0);
}

static void settle_begin(struct h_call *c)
{
	settle_for(c, H_SETTLE_US);
}

static void settle_shortly(struct h_call *c)
{
	settle_for(c, 50000);
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

	d_start(&h, m, "copyraw", 48);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i, others[i] = 5000 + i; /* both forms */
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	d_write_page(&h, m, 3, 1, seeds, PAGE_BLOCKS / 2);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS));
	write_raw(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	write_raw(&h, m, 2, 1, seeds, PAGE_BLOCKS);
	/* Collected before there is time to reduce. */
	EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &was), MAP_RAW);
	for (unsigned i = 0; i < 2; i++)
		write_raw(&h, m, 4, 1, others, PAGE_BLOCKS);
	h_run(&h, 0, &c, settle_begin);
	do {
		EXPECT_EQ(d_kind_at(&h, 1, 1, 0, &word), MAP_RAW);
	} while (word == was);
	h_run(&h, 0, &c, pace_low);
	EXPECT_OK(settled());
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS) + size_of(others, PAGE_BLOCKS));
	for (unsigned o = 0; o < 3; o++)
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			EXPECT_EQ(d_kind_at(&h, o, 1, i, &word), MAP_SHARE);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	d_end(&h, m);
}

/* While writers keep the log full it ends with its limit, and destage is in no hurry any more. */
TEST(reduce, waiting_for_the_end_of_it_ends)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS];
	unsigned hurry;
	struct h_call c;

	d_start(&h, m, "settlelimit", 48);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i;
	write_raw(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	hurry = atomic_load(&h.tier->hurry);
	h_run(&h, 0, &c, settle_shortly);
	EXPECT_RC(settled(), -ETIMEDOUT);
	EXPECT_EQ(atomic_load(&h.tier->hurry), hurry);
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending);
	settle(&h, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS));
	d_end(&h, m);
}

/* Of blocks that were all stored raw, equal ones become one, and that one is compressed. */
TEST(reduce, equal_raw_blocks_become_one_small_one)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS];

	d_start(&h, m, "rawraw", 48);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i % 40; /* within a page, too */
	for (unsigned o = 0; o < 4; o++)
		write_raw(&h, m, o, 1, seeds, PAGE_BLOCKS);
	/* The owner of what the first would have met is gone by the time. */
	write_raw(&h, m, 3, 1, seeds + 1, 2);
	settle(&h, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, 40));
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 40);
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), 40);
	h_verify(&h, true);
	d_end(&h, m);
}

static void pace_mid(struct h_call *c)
{
	tier_pace(c->h->tier, 0, 4000, false, false);
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

	d_start(&h, m, "third", 48);
	d_wait_hints(&h);
	h.compression = true;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i;
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	h_close(&h); /* the segment ends */
	EXPECT_OK(h_open(&h));
	write_raw(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	h.high = 7000;
	forget_hints(&h);
	d_wait_hints(&h);
	h_run(&h, 0, &c, pace_mid); /* neither raw, nor is there time to reduce */
	d_write_page(&h, m, 2, 1, seeds, PAGE_BLOCKS);
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	settle(&h, &st);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS));
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	d_end(&h, m);
}

static void expect_packed(struct harness *h, unsigned object, const uint64_t *seeds, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct share_row row;
		uint64_t word;

		EXPECT_EQ(d_kind_at(h, object, 1, i, &word), MAP_SHARE);
		EXPECT(d_row_get(h, map_share_id(word), &row));
		EXPECT_EQ(map_entry_kind(row.word), seeds[i] & 1 ? MAP_RAW : MAP_LZ4);
	}
}

static uint32_t request;

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
	EXPECT_SOON((tier_stats(h->tier, st), !atomic_load(&h->tier->requests_open) && !st->reduce_pending));
	tier_ledger(h->tier, &l);
	EXPECT_EQ(l.to_reduce_bytes, 0);
}

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

	d_start(&h, m, "rawshare", 48);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4000 + i;
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	d_write_page(&h, m, 1, 1, seeds, PAGE_BLOCKS);
	EXPECT_OK(h_page_get(&h, 1, 1, &old));
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad)); /* fills the shard's cache */
	h.compression = true;
	d_write_page(&h, m, 2, 1, seeds, PAGE_BLOCKS / 2);
	h_verify(&h, true);
	expect_packed(&h, 0, seeds, PAGE_BLOCKS / 2);
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.data_used_bytes,
		  size_of(seeds, PAGE_BLOCKS / 2) + PAGE_BLOCKS / 2 * BLOCK_SIZE);
	h_run(&h, 0, &c, count_cached_shares);
	EXPECT_EQ(c.rc, PAGE_BLOCKS / 4 * 3); /* those that did not move */
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	d_write_one(&h, m, 0, 2, 5001); /* the policy is known */
	d_write_one(&h, m, 1, 2, 5003);
	tier_stats(h.tier, &st);
	more = st.data_used_bytes - size_of(seeds, PAGE_BLOCKS / 2) - PAGE_BLOCKS / 2 * BLOCK_SIZE;
	request = 9;
	reduce_all(&h, &st);
	h_verify(&h, true);
	expect_packed(&h, 0, seeds, PAGE_BLOCKS);
	EXPECT_EQ(st.data_used_bytes, size_of(seeds, PAGE_BLOCKS) + more);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS);
	EXPECT_EQ(d_rows_in(&h, KV_SLOC), PAGE_BLOCKS);
	EXPECT_OK(h_read(&h, 1, 1, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	free(dest);
	d_end(&h, m);
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

	d_start(&h, m, "badraw", 32);
	d_write_page(&h, m, 0, 1, seeds, 2);
	d_write_page(&h, m, 1, 1, seeds, 2);
	EXPECT_EQ(d_kind_at(&h, 0, 1, 0, &word), MAP_SHARE);
	EXPECT(d_row_get(&h, map_share_id(word), &row));
	EXPECT_OK(device_pwrite(&h.cap[0], junk, BLOCK_SIZE, map_entry_offset(row.word)));
	EXPECT_EQ(map_entry_kind(row.word), MAP_RAW);
	request = 3;
	reduce_all(&h, &st);
	EXPECT_EQ(d_kind_at(&h, 0, 1, 1, &word), MAP_SHARE);
	EXPECT(d_row_get(&h, map_share_id(word), &row));
	EXPECT_EQ(map_entry_kind(row.word), MAP_LZ4);
	h_verify(&h, false);
	EXPECT_EQ(h_compare(&h, m, true), 2);
	h_end(&h, m);
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

	d_start(&h, m, "leadpast", 48);
	d_wait_hints(&h);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4001 + 2 * i;
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
	h_close(&h); /* the segment ends */
	EXPECT_OK(h_open(&h));
	for (unsigned o = 1; o < 2 + HINTS_TRIED; o++) {
		seeds[PAGE_BLOCKS - 1] = 78001 + 2 * o; /* its own: the segment stays */
		write_raw(&h, m, o, 1, seeds, PAGE_BLOCKS);
	}
	h_run(&h, 0, &c, pace_low);
	EXPECT_SOON((tier_stats(h.tier, &st), !st.reduce_pending));
	EXPECT(st.dead_bytes >= 3 * PAGE_BLOCKS * BLOCK_SIZE / 2);
	EXPECT(st.reduce_redone_blocks > 0);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), PAGE_BLOCKS - 1);
	for (unsigned o = 1; o < HINTS_TRIED; o++)
		d_write_one(&h, m, o, 1, other);
	forget_hints(&h);
	d_wait_hints(&h);
	before = tier_free_bytes(h.tier);
	d_write_page(&h, m, 5, 1, seeds, PAGE_BLOCKS - 1);
	EXPECT_EQ(tier_free_bytes(h.tier), before);
	d_end(&h, m);
}

/* What is written after a crash, before the summaries are read, is looked at again. */
TEST(reduce, what_comes_before_the_hints_is_reduced_in_the_end)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS], before;

	d_start(&h, m, "early", 64);
	d_wait_hints(&h);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		seeds[i] = 4001 + 2 * i;
	d_write_page(&h, m, 0, 1, seeds, PAGE_BLOCKS);
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
		d_write_page(&h, m, 1, 1 + turn, seeds, PAGE_BLOCKS); /* at once */
		d_write_page(&h, m, 2, 1 + turn, seeds, PAGE_BLOCKS);
		settle(&h, &st);
		EXPECT_EQ(st.data_used_bytes, before);
	}
	d_end(&h, m);
}

/* Waits while the log is too full, ends with the tier, and leaves no garbage behind. */
TEST(reduce, settling_waits_reduces_and_collects)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	uint64_t seeds[PAGE_BLOCKS], want = 0;
	struct h_call c;

	d_start(&h, m, "settle", 48);
	d_wait_hints(&h);
	EXPECT_OK(h_settle(&h)); /* nothing to do */
	h.compression = true;
	for (uint32_t p = 0; p < 60; p++) {
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			seeds[i] = 4000 + (p * PAGE_BLOCKS + i) % 1920; /* twice */
		write_raw(&h, m, p % H_OBJECTS, p, seeds, PAGE_BLOCKS);
	}
	h_run(&h, 0, &c, settle_begin);
	d_write_page(&h, m, 0, 70, seeds, PAGE_BLOCKS); /* the tier has seen it by the end of this */
	d_write_page(&h, m, 0, 71, seeds, PAGE_BLOCKS);
	EXPECT_EQ(atomic_load(&settling.rc), 1);
	h_close(&h);
	EXPECT_EQ(atomic_load(&settling.rc), -ERR_CLOSED);
	h.high = 7000;
	EXPECT_OK(h_open(&h));
	h_run(&h, 0, &c, settle_begin);
	tier_stats(h.tier, &st);
	EXPECT(st.reduce_pending && atomic_load(&settling.rc) == 1);
	h_run(&h, 0, &c, pace_low);
	EXPECT_OK(settled());
	tier_stats(h.tier, &st);
	EXPECT(!st.reduce_pending);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 1920);
	for (unsigned i = 0; i < 1920; i++)
		want += size_of(&(uint64_t){4000 + i}, 1);
	EXPECT_EQ(st.data_used_bytes, want);
	/* 60 pages of raw blocks became garbage; in each segment less than a 16th is left. */
	EXPECT(st.gc_blocks > 0);
	EXPECT(st.dead_bytes < (st.data_used_bytes + st.dead_bytes) / 16);
	d_end(&h, m);
}

/* Written with both off; asked for, all of it is looked at, once, whatever a restart cuts off. */
TEST(dedup, existing_data_is_reduced_when_asked_for)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};
	struct h_call c;
	uint64_t before, looked;

	d_start(&h, m, "asked", 48);
	h.dedup = false;
	h.pool = 100;
	for (uint32_t i = 0; i < 40; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	tier_stats(h.tier, &st);
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
	EXPECT_EQ(st.compression_saved_bytes, 0);
	before = st.data_used_bytes;
	request = 1;
	h_run(&h, 0, &c, ask_reduce);
	h_close(&h); /* in the midst of it, or not */
	EXPECT_OK(h_open(&h));
	reduce_all(&h, &st);
	h_verify(&h, true);
	EXPECT(st.data_used_bytes < before / 8);
	EXPECT(d_rows_in(&h, KV_SHARE) > 80);
	looked = st.reduce_redone_blocks;
	EXPECT(looked > 0);
	/* The same request again is none, after a restart too. */
	reduce_all(&h, &st);
	EXPECT_EQ(st.reduce_redone_blocks, looked);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	reduce_all(&h, &st);
	EXPECT_EQ(st.reduce_redone_blocks, 0);
	d_end(&h, m);
}

TEST(dedup, compressed_blocks_are_shared_when_asked_for)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st = {0};

	d_start(&h, m, "packed", 48);
	h.dedup = false;
	h.compression = true;
	h.pool = 100;
	for (uint32_t i = 0; i < 20; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_page(b, i % H_OBJECTS, i, 60, true);
		EXPECT_OK(h_batch_run(b));
	}
	EXPECT_EQ(d_rows_in(&h, KV_SHARE), 0);
	request = 5;
	reduce_all(&h, &st);
	EXPECT(d_rows_in(&h, KV_SHARE) > 80);
	d_end(&h, m);
}
