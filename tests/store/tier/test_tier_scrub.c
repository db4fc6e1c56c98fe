/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub: what each kind of damage looks like to it, what it marks, and what it leaves alone. */
#include "tests/store/tier/harness.h"

#define DAY 86400u

struct told {
	pthread_mutex_t lock;
	uint64_t blocks[H_OBJECTS][H_PAGES];
};
static struct told told = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_damage(void *arg, unsigned shard, const struct store_damage *d)
{
	pthread_mutex_lock(&told.lock);
	told.blocks[d->object - h_object_id(0)][d->page] |= d->blocks;
	pthread_mutex_unlock(&told.lock);
}

static unsigned told_count(void)
{
	unsigned n = 0;

	pthread_mutex_lock(&told.lock);
	for (unsigned o = 0; o < H_OBJECTS; o++)
		for (unsigned p = 0; p < H_PAGES; p++)
			n += (unsigned)__builtin_popcountll(told.blocks[o][p]);
	pthread_mutex_unlock(&told.lock);
	return n;
}

static void barrier_run(struct h_call *c)
{
	h_done(c, 0);
}

/* What was posted to the shards before has run. */
static void barrier(struct harness *h)
{
	struct h_call c;

	for (unsigned s = 0; s < h->shards; s++)
		h_run(h, s, &c, barrier_run);
}

static const struct store_scrub *status(struct harness *h, struct store_scrub *st)
{
	tier_scrub_status(h->tier, st);
	return st;
}

/* A whole pass at full rate; what it found. */
static uint64_t pass(struct harness *h)
{
	struct store_scrub st;
	uint64_t before;

	tier_scrub_status(h->tier, &st);
	before = st.passes;
	tier_scrub_start(h->tier);
	EXPECT_SOON(status(h, &st)->passes != before);
	barrier(h);
	return st.found;
}

static struct model *start(struct harness *h, const char *name, bool dedup)
{
	struct model *m = xcalloc(1, sizeof(*m));

	memset(told.blocks, 0, sizeof(told.blocks));
	h_init(h, name, 1, 32, 1);
	h->dedup = dedup;
	h->cfg.damaged = on_damage;
	EXPECT_OK(h_open(h));
	h_objects_put(h, m);
	return m;
}

/* Pages 0 … n−1 of an object, all blocks raw: a unit or two. */
static void fill(struct harness *h, struct model *m, unsigned object, unsigned pages)
{
	struct h_batch *b = h_batch_new(h, m, 0);

	for (unsigned p = 0; p < pages; p++) {
		h_batch_open_page(b, object, p);
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			h_batch_block(b, i, h_seed(h) | 1);
	}
	EXPECT_OK(h_batch_run(b));
}

static void finish(struct harness *h, struct model *m)
{
	h_close(h);
	h_fini(h);
	free(m);
}

static uint64_t place_of(struct harness *h, unsigned object, uint32_t page, unsigned block)
{
	struct map_page p;

	EXPECT_OK(h_page_get(h, object, page, &p));
	EXPECT_EQ(map_entry_kind(p.entry[block].word), MAP_RAW);
	return map_entry_offset(p.entry[block].word);
}

static void flip(struct harness *h, uint64_t off, unsigned byte)
{
	uint8_t b[BLOCK_SIZE];

	EXPECT_OK(device_pread(&h->cap[0], b, BLOCK_SIZE, off));
	b[byte] ^= 1;
	EXPECT_OK(device_pwrite(&h->cap[0], b, BLOCK_SIZE, off));
}

/* The summary of the unit that starts a segment: its first block after the header. */
static uint64_t summary_of(struct harness *h, uint64_t place)
{
	return h->cap[0].sb.data_start + (place - h->cap[0].sb.data_start) / UNIT_MAX * UNIT_MAX +
	       SEGMENT_HEADER_SIZE;
}

TEST(scrub, a_clean_group_is_found_clean)
{
	struct harness h;
	struct model *m = start(&h, "clean", true);

	h.pool = 40; /* many shares */
	fill(&h, m, 0, 6);
	fill(&h, m, 1, 6);
	EXPECT_EQ(pass(&h), 0);
	EXPECT_EQ(h.tier->scrub.row.suspect_count, 0);
	EXPECT_EQ(told_count(), 0);
	h_verify(&h, true);
	EXPECT_EQ(h_compare(&h, m, false), 0);
	finish(&h, m);
}

TEST(scrub, a_flipped_block_is_marked_and_told_and_nothing_else)
{
	struct harness h;
	struct model *m = start(&h, "flip", false);

	fill(&h, m, 0, 5);
	flip(&h, place_of(&h, 0, 3, 17), 99);
	EXPECT_EQ(pass(&h), 1);
	EXPECT(told.blocks[0][3] == 1ull << 17);
	EXPECT_EQ(told_count(), 1);
	m->page[0][3].seed[17] = H_DAMAGED;
	EXPECT_EQ(h_compare(&h, m, false), 1);
	h_verify(&h, true);
	/* It is not found anew, but told again: somebody may have missed it. */
	memset(told.blocks, 0, sizeof(told.blocks));
	EXPECT_EQ(pass(&h), 0);
	EXPECT_EQ(told_count(), 1);
	/* Overwritten, it is whole again. */
	fill(&h, m, 0, 5);
	memset(told.blocks, 0, sizeof(told.blocks));
	EXPECT_EQ(pass(&h), 0);
	EXPECT_EQ(told_count(), 0);
	EXPECT_EQ(h_compare(&h, m, false), 0);
	finish(&h, m);
}

TEST(scrub, a_flipped_summary_costs_no_block_and_its_segment_is_written_anew)
{
	struct harness h;
	struct model *m = start(&h, "summary", false);
	struct store_stats st = {0};
	uint64_t before, place;

	fill(&h, m, 0, 3);
	fill(&h, m, 1, 12); /* the segment of the first is sealed by now */
	place = place_of(&h, 0, 0, 0);
	flip(&h, summary_of(&h, place), 70);
	tier_stats(h.tier, &st);
	before = st.gc_blocks;
	EXPECT_EQ(pass(&h), 0);
	EXPECT_EQ(told_count(), 0);
	tier_stats(h.tier, &st);
	EXPECT(st.gc_blocks > before);
	EXPECT(place_of(&h, 0, 0, 0) != place);
	EXPECT_EQ(h_compare(&h, m, false), 0);
	h_verify(&h, true);
	before = st.gc_blocks;
	EXPECT_EQ(pass(&h), 0); /* nothing is left to complain of */
	tier_stats(h.tier, &st);
	EXPECT_EQ(st.gc_blocks, before);
	finish(&h, m);
}

/* I12: what is moved gets a new summary over it; bad bytes may not. */
TEST(scrub, a_flipped_block_is_marked_when_its_segment_is_collected)
{
	struct harness h;
	struct model *m = start(&h, "collected", false);
	struct map_page p;

	fill(&h, m, 0, 4);
	fill(&h, m, 1, 12); /* the segment of the first is sealed by now */
	flip(&h, place_of(&h, 0, 3, 17), 99);
	fill(&h, m, 0, 3); /* and most of it is garbage */
	EXPECT_OK(h_settle(&h));
	EXPECT_OK(h_page_get(&h, 0, 3, &p));
	EXPECT_EQ(map_entry_kind(p.entry[17].word), MAP_DAMAGED);
	m->page[0][3].seed[17] = H_DAMAGED;
	EXPECT_EQ(h_compare(&h, m, false), 1);
	h_verify(&h, true);
	finish(&h, m);
}

/* A device that drops a write, or does it elsewhere: what is there is sound, and not ours. */
static void swapped(const char *name, bool lost)
{
	struct harness h;
	struct model *m = start(&h, name, false);
	uint8_t *unit = xalloc_aligned(BLOCK_SIZE, UNIT_MAX);
	uint64_t a, b, found;

	fill(&h, m, 0, 12);
	fill(&h, m, 1, 12);
	fill(&h, m, 2, 12);
	a = summary_of(&h, place_of(&h, 0, 0, 0)) - SEGMENT_HEADER_SIZE;
	b = summary_of(&h, place_of(&h, 1, 0, 0)) - SEGMENT_HEADER_SIZE;
	EXPECT(a != b);
	memset(unit, 0, UNIT_MAX);
	if (!lost)
		EXPECT_OK(device_pread(&h.cap[0], unit, UNIT_MAX - BLOCK_SIZE, b + BLOCK_SIZE));
	EXPECT_OK(device_pwrite(&h.cap[0], unit, UNIT_MAX - BLOCK_SIZE, a + BLOCK_SIZE));
	found = pass(&h);
	EXPECT(found > 100);
	EXPECT_EQ(told_count(), found);
	for (unsigned o = 0; o < 3; o++)
		for (unsigned p = 0; p < 12; p++)
			for (unsigned i = 0; i < PAGE_BLOCKS; i++)
				if (told.blocks[o][p] >> i & 1)
					m->page[o][p].seed[i] = H_DAMAGED;
	EXPECT_EQ(h_compare(&h, m, false), found);
	h_verify(&h, true);
	free(unit);
	finish(&h, m);
}

TEST(scrub, a_lost_write_is_found)
{
	swapped("lost", true);
}

TEST(scrub, a_misdirected_write_is_found)
{
	swapped("misdirected", false);
}

TEST(scrub, a_damaged_share_is_damage_for_all_that_refer_to_it)
{
	struct harness h;
	struct model *m = start(&h, "share", true);
	uint8_t value[SHARE_VALUE_SIZE], key[8];
	struct share_row row;
	struct map_page p;
	size_t len;

	for (unsigned o = 0; o < 3; o++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		h_batch_open_page(b, o, 1);
		h_batch_block(b, 5, 1001);
		EXPECT_OK(h_batch_run(b));
	}
	EXPECT_OK(h_page_get(&h, 1, 1, &p));
	EXPECT_EQ(map_entry_kind(p.entry[5].word), MAP_SHARE);
	put_be64(key, map_share_id(p.entry[5].word));
	EXPECT_OK(kv_get(h.tier->kv, KV_SHARE, key, 8, value, sizeof(value), &len));
	EXPECT_OK(share_decode(value, len, &row));
	flip(&h, map_entry_offset(row.word), 5);
	EXPECT_EQ(pass(&h), 3);
	for (unsigned o = 0; o < 3; o++) {
		EXPECT(told.blocks[o][1] == 1ull << 5);
		m->page[o][1].seed[5] = H_DAMAGED;
	}
	EXPECT_EQ(h_compare(&h, m, false), 3);
	h_verify(&h, true);
	finish(&h, m);
}

TEST(scrub, a_lost_map_row_is_damage_and_counted_anew)
{
	struct harness h;
	struct model *m = start(&h, "row", false);
	struct kv_batch *kb = kv_batch_create();
	uint8_t key[MAP_KEY_SIZE];

	fill(&h, m, 0, 4);
	h_close(&h);
	EXPECT_OK(tier_open(&h.cfg, &h.tier));
	map_key_encode(key, h_object_id(0), 2);
	kv_batch_delete(h.tier->kv, kb, KV_MAP, key, sizeof(key));
	EXPECT_OK(kv_commit(h.tier->kv, kb, true));
	kv_batch_destroy(kb);
	tier_close(h.tier);
	EXPECT_OK(h_open(&h));
	EXPECT_EQ(pass(&h), 1);
	EXPECT(told.blocks[0][2] == ~0ull);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		m->page[0][2].seed[i] = H_DAMAGED;
	EXPECT_EQ(pass(&h), 0); /* by now the counters and the space are right again */
	h_verify(&h, true);
	fill(&h, m, 0, 4);
	EXPECT_EQ(h_compare(&h, m, false), 0);
	h_verify(&h, true);
	finish(&h, m);
}

/* Y4: the primary's history won, though its page has the lower version. */
TEST(scrub, a_copy_of_an_older_version_repairs_a_damaged_page)
{
	struct harness h;
	struct model *m = start(&h, "older", false);
	struct map_page p;
	struct h_batch *b;
	struct version v;

	fill(&h, m, 0, 2);
	flip(&h, place_of(&h, 0, 1, 9), 1);
	EXPECT_EQ(pass(&h), 1);
	v = (struct version){m->page[0][1].version.tenure, m->page[0][1].version.seq - 1};
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 1)->version = v;
	b->after[0].version = v;
	b->pages[0].whole = true;
	h_batch_block(b, 9, 77);
	EXPECT_OK(h_batch_run(b));
	EXPECT_OK(h_page_get(&h, 0, 1, &p));
	EXPECT(version_eq(p.version, v));
	EXPECT_EQ(map_entry_kind(p.entry[9].word), MAP_RAW);
	h_verify(&h, true);
	/* Of a sound page it changes nothing. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 0)->version = v;
	b->after[0].version = v;
	b->pages[0].whole = true;
	h_batch_block(b, 9, 79);
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(h_compare(&h, m, false), 0); /* skipped, so the model has it as it was */
	EXPECT(m->page[0][0].seed[9] != 79);
	finish(&h, m);
}

TEST(scrub, a_read_that_meets_damage_has_it_marked)
{
	struct harness h;
	struct model *m = start(&h, "read", false);
	struct map_page p;

	fill(&h, m, 0, 2);
	flip(&h, place_of(&h, 0, 1, 9), 1);
	EXPECT_EQ(h_compare(&h, m, true), 1);
	EXPECT_SOON(!atomic_load(&h.tier->scrub.suspects_open));
	barrier(&h);
	EXPECT(told.blocks[0][1] == 1ull << 9);
	EXPECT_OK(h_page_get(&h, 0, 1, &p));
	EXPECT_EQ(map_entry_kind(p.entry[9].word), MAP_DAMAGED);
	finish(&h, m);
}

TEST(scrub, damage_of_an_earlier_life_is_told_at_the_start)
{
	struct harness h;
	struct model *m = start(&h, "again", false);

	fill(&h, m, 0, 2);
	flip(&h, place_of(&h, 0, 1, 9), 1);
	EXPECT_EQ(pass(&h), 1);
	h_close(&h);
	memset(told.blocks, 0, sizeof(told.blocks));
	EXPECT_OK(h_open(&h));
	EXPECT_SOON(told_count());
	EXPECT(told.blocks[0][1] == 1ull << 9);
	finish(&h, m);
}

TEST(scrub, goes_on_where_it_was_after_a_restart_and_keeps_its_rate)
{
	struct harness h;
	struct model *m = start(&h, "resume", false);
	struct store_scrub st;
	uint64_t checked, began;

	for (unsigned o = 0; o < 4; o++)
		fill(&h, m, o, 12);
	/* A pass begins by itself, spread over its time: of the first steps each has to wait. */
	tier_scrub_pace(h.tier, DAY, 1u << 20, 20 * DAY);
	EXPECT_SOON(status(&h, &st)->checked_bytes);
	EXPECT_EQ(st.phase, SCRUB_SEGMENTS);
	EXPECT(st.rate_bytes_per_s < 4096);
	EXPECT(scrub_wait_us(h.tier) > 1000000);
	/* Asked for, it runs at the full rate: 1 MiB/s here. */
	began = loop_mono_us(h.loops[0]);
	tier_scrub_start(h.tier);
	EXPECT_SOON(status(&h, &st)->checked_bytes >= 3u << 20);
	EXPECT(loop_mono_us(h.loops[0]) - began >= 1000000);
	EXPECT_EQ(st.rate_bytes_per_s, 1u << 20);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	tier_scrub_status(h.tier, &st);
	checked = st.checked_bytes;
	EXPECT(checked >= 1u << 20);
	EXPECT_EQ(st.phase, SCRUB_SEGMENTS);
	EXPECT(st.asked && st.passes == 0);
	EXPECT(h.tier->scrub.row.segment != 0);
	tier_scrub_pace(h.tier, DAY, 0, 20 * DAY);
	EXPECT_SOON(status(&h, &st)->passes);
	EXPECT_EQ(st.found, 0);
	EXPECT(st.checked_bytes < checked + (14u << 20)); /* it did not begin again */
	EXPECT(st.finished_s >= 20 * DAY);
	finish(&h, m);
}

TEST(scrub, stops_and_stays_stopped)
{
	struct harness h;
	struct model *m = start(&h, "stop", false);
	struct store_scrub st;

	fill(&h, m, 0, 12);
	tier_scrub_stop(h.tier);
	EXPECT_SOON(status(&h, &st)->stopped);
	tier_scrub_pace(h.tier, DAY, 0, 20 * DAY);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	tier_scrub_pace(h.tier, DAY, 0, 20 * DAY);
	EXPECT_OK(h_object_put(&h, 0, 1)); /* the destager has turned */
	tier_scrub_status(h.tier, &st);
	EXPECT(st.stopped && st.phase == SCRUB_IDLE && !st.passes);
	EXPECT_EQ(pass(&h), 0);
	finish(&h, m);
}

TEST(scrub, position_golden)
{
	struct scrub_row r = {.phase = SCRUB_MAP,
			      .stopped = true,
			      .asked = true,
			      .segment = 0x20000003,
			      .page = 9,
			      .object = 0x1122334455667788,
			      .suspect_count = 2,
			      .suspects = {1, 0x20000002},
			      .started_s = 100,
			      .finished_s = 90,
			      .passes = 3,
			      .found = 4,
			      .checked = 5};
	uint8_t b[SCRUB_ROW_MAX];
	size_t n = scrub_row_encode(b, &r);
	struct scrub_row back;

	EXPECT_EQ(n, 88);
	EXPECT_GOLDEN(b, n - 8,
		      "01000000 02000000 03000020 09000000 8877665544332211 05000000 02000000"
		      "6400000000000000 5a00000000000000 0300000000000000 0400000000000000"
		      "0500000000000000 01000000 02000020");
	EXPECT_OK(scrub_row_decode(b, n, &back));
	EXPECT(!memcmp(&back, &r, sizeof(r)));
	for (size_t i = 0; i < n; i++) {
		b[i] ^= 8;
		EXPECT_RC(scrub_row_decode(b, n, &back), -ERR_CORRUPT);
		b[i] ^= 8;
	}
	for (size_t i = 0; i < n; i++)
		EXPECT_RC(scrub_row_decode(b, i, &back), -ERR_CORRUPT);
}
