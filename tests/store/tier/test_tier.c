/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/tier/harness.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct model *model_new(void)
{
	return xcalloc(1, sizeof(struct model));
}

/* Random pages of one shard's objects; `pages` distinct ones. */
static struct h_batch *random_batch(struct harness *h, struct model *m, unsigned shard,
				    unsigned pages, unsigned blocks, bool raw_only)
{
	struct h_batch *b = h_batch_new(h, m, shard);
	static bool used[H_OBJECTS][H_PAGES];

	memset(used, 0, sizeof(used));
	while (b->b.page_count < pages) {
		unsigned o = (unsigned)rng_below(&h->rng, H_OBJECTS);
		unsigned p = (unsigned)rng_below(&h->rng, H_PAGES);

		if (h_object_id(o) % h->shards != shard || used[o][p] || !m->live[o]) {
			if (!m->live[0] && !m->live[1] && !m->live[2])
				break;
			continue;
		}
		used[o][p] = true;
		h_batch_page(b, o, p, 1 + (unsigned)rng_below(&h->rng, blocks), raw_only);
	}
	return b;
}

static void reopen(struct harness *h)
{
	h_close(h);
	EXPECT_OK(h_open(h));
}

static void reopen_and_end(struct harness *h, struct model *m)
{
	h_verify(h, true);
	reopen(h);
	h_verify(h, true);
	h_compare(h, m, false);
	h_end(h, m);
}

static void count_object(void *arg, const struct tier_object *o)
{
	unsigned *n = arg;
	char want[32];

	snprintf(want, sizeof(want), "header %u.%u", (unsigned)(o->id - 1000), o->gen);
	EXPECT_EQ(o->header_len, strlen(want));
	EXPECT_MEM(o->header, want, o->header_len);
	EXPECT_EQ(o->volume, h_volume((unsigned)(o->id - 1000)));
	++*n;
}

static void model_run(unsigned caps, unsigned shards, bool compression, uint64_t pool,
		      const char *name)
{
	struct harness h;
	struct model *m = model_new();

	h_init(&h, name, caps, 64, shards);
	h.compression = compression;
	h.mixed = pool != 0;
	h.pool = pool;
	EXPECT_OK(h_open(&h));
	h_objects_put(&h, m);
	for (unsigned round = 0; round < 8; round++) {
		struct h_batch *b[4];

		for (unsigned i = 0; i < 4; i++) {
			b[i] = random_batch(&h, m, i % shards, 4, round % 3 ? 6 : 40, false);
			h_batch_submit(b[i]);
			/* A page may be in two batches; the model wants the later one to win. */
			if (i % 2)
				for (unsigned k = i - 1; k <= i; k++)
					EXPECT_OK(h_batch_wait(b[k]));
		}
		h_verify(&h, round % 4 == 0);
		if (round % 3 == 0)
			h_compare(&h, m, false);
		if (round % 4 == 3) {
			unsigned n = 0;

			h_close(&h);
			EXPECT_OK(tier_open(&h.cfg, &h.tier));
			tier_objects(h.tier, count_object, &n);
			EXPECT_EQ(n, H_OBJECTS);
			tier_close(h.tier);
			EXPECT_OK(h_open(&h));
			h_compare(&h, m, false);
		}
	}
	h_compare(&h, m, false);
	h_verify(&h, true);
	h_end(&h, m);
}

TEST(tier, keeps_what_was_destaged)
{
	model_run(1, 1, false, 0, "model-raw");
}

TEST(tier, keeps_what_was_destaged_compressed_on_two_devices_and_shards)
{
	model_run(2, 2, true, 0, "model-lz4");
}

TEST(tier, keeps_what_was_destaged_with_mixed_policies)
{
	model_run(2, 2, true, 300, "model-mixed");
}

TEST(tier, checkpoint_folds_deltas)
{
	struct harness h;
	struct model *m = model_new();

	h_begin(&h, m, "fold", 64);
	for (unsigned i = 0; i < SEG_FOLD_COMMITS + 60; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 1, 1, true)));
	EXPECT(h.tier->delta_first > SEG_FOLD_COMMITS);
	reopen_and_end(&h, m);
}

TEST(tier, replayed_and_foreign_records_change_nothing)
{
	struct harness h;
	struct model *m = model_new();
	struct h_batch *b;
	struct version v;

	h_begin(&h, m, "replay", 32);
	b = h_batch_new(&h, m, 0);
	v = h_batch_open_page(b, 0, 3)->version;
	h_batch_block(b, 4, 4001);
	EXPECT_OK(h_batch_run(b));
	/* The same version with other bytes: a replay; what is there stays. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 3)->version = v;
	h_batch_block(b, 4, 4003);
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(m->page[0][3].seed[4], 4001);
	/* An older one. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 3)->version = (struct version){v.tenure, v.seq - 1};
	h_batch_block(b, 5, 4003);
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(m->page[0][3].seed[5], 0);
	/* Another replica generation. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 3)->gen = 9;
	h_batch_block(b, 4, 4005);
	EXPECT_OK(h_batch_run(b));
	/* One page twice in a batch is a mistake of the caller, and harms nobody. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 5);
	h_batch_block(b, 4, 4007);
	h_batch_open_page(b, 0, 5);
	h_batch_block(b, 4, 4009);
	EXPECT_RC(h_batch_run(b), -ERR_INVALID);
	h_compare(&h, m, false);
	h_verify(&h, true);
	h_end(&h, m);
}

TEST(tier, damaged_log_payload_is_damaged_not_stored)
{
	struct harness h;
	struct model *m = model_new();
	struct h_batch *b;
	uint8_t junk[BLOCK_SIZE] = {1};

	h_begin(&h, m, "logdamage", 32);
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 3);
	h_batch_block(b, 1, 11);
	h_batch_block(b, 2, 13);
	h_batch_block(b, 3, 15);
	b->after[0].seed[2] = H_DAMAGED;
	EXPECT_OK(device_pwrite(&h.log, junk, BLOCK_SIZE, b->blocks[1].log_off));
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(h.damaged, 1); /* said when it was stored, not by who reads it (I12) */
	EXPECT_EQ(h_compare(&h, m, false), 1);
	/* A whole copy of the same version repairs it. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 0, 3)->version = m->page[0][3].version;
	b->after[0].version = m->page[0][3].version;
	b->pages[0].whole = true;
	h_batch_block(b, 2, 13);
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(h_compare(&h, m, false), 0);
	h_verify(&h, true);
	h_end(&h, m);
}

TEST(tier, deleted_objects_give_their_space_back)
{
	struct harness h;
	struct model *m = model_new();
	uint64_t before;

	h_begin(&h, m, "delete", 64);
	before = tier_free_bytes(h.tier);
	for (unsigned i = 0; i < 10; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 20, 8, false)));
	EXPECT(tier_free_bytes(h.tier) < before);
	for (unsigned o = 0; o < H_OBJECTS; o++) {
		EXPECT_RC(h_object_delete(&h, o, 2), -ERR_NOT_FOUND);
		EXPECT_OK(h_object_delete(&h, o, 1));
		/* The next replica under the same id begins empty. */
		memset(&m->page[o], 0, sizeof(m->page[o]));
		m->live[o] = o % 2;
		m->gen[o] = 2;
		if (m->live[o])
			EXPECT_OK(h_object_put(&h, o, 2));
	}
	h_compare(&h, m, false);
	/* A put of the last deleted id ends only after its old rows are gone: then all is back. */
	EXPECT_OK(h_object_put(&h, 4, 3));
	EXPECT_EQ(tier_free_bytes(h.tier), before);
	reopen_and_end(&h, m);
}

/* Fills to the limit that tier_free_bytes states, overwrites far beyond the device's size, trims
 * all. */
TEST(tier, full_then_overwritten_then_trimmed)
{
	struct harness h;
	struct model *m = model_new();
	unsigned full = 0;
	uint64_t empty;
	struct store_stats st = {0};

	h_begin(&h, m, "full", 48);
	empty = tier_free_bytes(h.tier);
	for (unsigned i = 0; i < 400 && tier_free_bytes(h.tier) > 2u << 20; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	EXPECT(tier_free_bytes(h.tier) <= 2u << 20);
	h_verify(&h, false);
	h_compare(&h, m, false);
	/* Overwrites in place: 3 devices' worth. Only pages that are full of data, so nothing
	 * grows. */
	for (unsigned i = 0; i < 80; i++) {
		struct h_batch *b = h_batch_new(&h, m, 0);

		for (unsigned k = 0; k < 8; k++) {
			unsigned o = i % H_OBJECTS, p = (unsigned)rng_below(&h.rng, 10) * 8 + k;
			uint64_t *seed = m->page[o][p].seed;

			h_batch_open_page(b, o, p);
			for (unsigned x = 0; x < PAGE_BLOCKS; x++)
				if (seed[x] && rng_below(&h.rng, 2))
					h_batch_block(b, x, 3 + 2 * (rng_next(&h.rng) >> 2));
		}
		EXPECT_OK(h_batch_run(b));
		if (i % 40 == 0)
			h_verify(&h, false);
	}
	tier_stats(h.tier, &st);
	EXPECT(st.gc_blocks > 0);
	h_verify(&h, true);
	h_compare(&h, m, false);
	reopen(&h);
	h_compare(&h, m, false);
	/* Beyond the limit: refused whole, nothing changed, and the tier lives. */
	for (unsigned i = 0; i < 200 && !full; i++) {
		int rc = h_batch_run(random_batch(&h, m, 0, 40, 64, true));

		EXPECT(rc == 0 || rc == -ERR_FULL);
		full += rc != 0;
	}
	EXPECT(full);
	h_verify(&h, true);
	h_compare(&h, m, false);
	for (unsigned o = 0; o < H_OBJECTS; o++) {
		for (unsigned p = 0; p < H_PAGES; p += 40) {
			struct h_batch *b = h_batch_new(&h, m, 0);

			for (unsigned k = 0; k < 40; k++) {
				h_batch_open_page(b, o, p + k);
				for (unsigned x = 0; x < PAGE_BLOCKS; x++)
					h_batch_block(b, x, 0);
			}
			EXPECT_OK(h_batch_run(b));
		}
	}
	EXPECT_EQ(tier_free_bytes(h.tier), empty);
	h_verify(&h, true);
	h_compare(&h, m, false);
	for (unsigned i = 0; i < 20; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	h_compare(&h, m, false);
	h_end(&h, m);
}

/* ---- Damage ------------------------------------------------------------------------------------
 */

TEST(tier, flipped_bytes_in_segments_are_reported_never_served)
{
	struct harness h;
	struct model *m = model_new();
	struct store_stats st = {0};
	uint8_t block[BLOCK_SIZE];
	uint64_t damaged;

	h_init(&h, "flip", 1, 48, 1);
	h.compression = true;
	EXPECT_OK(h_open(&h));
	h_objects_put(&h, m);
	for (unsigned i = 0; i < 20; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 10, 30, true)));
	h_compare(&h, m, false);
	h_close(&h);
	for (unsigned i = 0; i < 400; i++) {
		uint64_t off = 8192 + rng_below(&h.rng, 24u << 20) / BLOCK_SIZE * BLOCK_SIZE;

		EXPECT_OK(device_pread(&h.cap[0], block, BLOCK_SIZE, off));
		block[rng_below(&h.rng, BLOCK_SIZE)] ^= 0x40;
		EXPECT_OK(device_pwrite(&h.cap[0], block, BLOCK_SIZE, off));
	}
	EXPECT_OK(h_open(&h));
	damaged = h_compare(&h, m, true);
	EXPECT(damaged > 0);
	/* GC over it (summaries are hit too): the good blocks survive, bad ones are marked, not
	 * copied. */
	for (unsigned i = 0; i < 300; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 4, 30, true)));
	tier_stats(h.tier, &st);
	EXPECT(st.gc_blocks > 100);
	EXPECT(h_compare(&h, m, true) < damaged);
	h_verify(&h, false);
	h_end(&h, m);
}

TEST(tier, blocks_that_moved_under_a_reader_are_found_again)
{
	struct harness h;
	struct model *m = model_new();
	struct map_page old;
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE), want[BLOCK_SIZE];
	struct fp128 fps[PAGE_BLOCKS];
	uint64_t bad;

	h_init(&h, "moved", 1, 32, 1);
	h.cfg.block_cache_bytes = 0;
	EXPECT_OK(h_open(&h));
	h_objects_put(&h, m);
	struct h_batch *b = h_batch_new(&h, m, 0);

	h_batch_open_page(b, 0, 70);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		h_batch_block(b, i, 1001 + 2 * i);
	EXPECT_OK(h_batch_run(b));
	EXPECT_OK(h_page_get(&h, 0, 70, &old));
	for (unsigned i = 0; i < 120; i++) {
		b = h_batch_new(&h, m, 0);
		for (unsigned k = 0; k < 8; k++)
			h_batch_page(b, 1, (uint32_t)rng_below(&h.rng, 8) + 8 * k, 30, true);
		EXPECT_OK(h_batch_run(b));
	}
	struct map_page now;

	EXPECT_OK(h_page_get(&h, 0, 70, &now));
	EXPECT(now.entry[0].word != old.entry[0].word); /* GC has moved it */
	EXPECT_OK(h_read(&h, 0, 70, &old, 0, PAGE_BLOCKS, dest, fps, &bad));
	EXPECT_EQ(bad, 0);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		h_block(1001 + 2 * i, want);
		EXPECT_MEM(dest + i * BLOCK_SIZE, want, BLOCK_SIZE);
	}
	h_compare(&h, m, false);
	free(dest);
	h_end(&h, m);
}

TEST(tier, a_lost_or_older_database_is_said_to_be_lost)
{
	struct harness h;
	struct model *m = model_new();
	char cmd[4096], path[1024];
	struct tier *t;
	uint64_t commit;

	h_begin(&h, m, "lost", 32);
	EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	h_close(&h);
	snprintf(cmd, sizeof(cmd), "cp -r %s %s.old", h.meta, h.meta);
	EXPECT_EQ(system(cmd), 0);
	EXPECT_OK(h_open(&h));
	for (unsigned i = 0; i < 6; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	commit = tier_kv_commit(h.tier);
	h_close(&h);
	/* The log names a commit that the map has not. */
	h.cfg.log_kv_commit = commit + 1;
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	h.cfg.log_kv_commit = commit;
	EXPECT_OK(tier_open(&h.cfg, &t));
	tier_close(t);
	/* An older copy put back: segment headers know better. */
	h.cfg.log_kv_commit = 0;
	snprintf(cmd, sizeof(cmd), "mv %s %s.new && mv %s.old %s", h.meta, h.meta, h.meta, h.meta);
	EXPECT_EQ(system(cmd), 0);
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	snprintf(cmd, sizeof(cmd), "rm -r %s && mv %s.new %s", h.meta, h.meta, h.meta);
	EXPECT_EQ(system(cmd), 0);
	EXPECT_OK(tier_open(&h.cfg, &t));
	tier_close(t);
	/* Another group, another incarnation. */
	h.cfg.group.b[0] ^= 1;
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	h.cfg.group.b[0] ^= 1;
	h.cfg.group_incarnation--;
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	h.cfg.group_incarnation++;
	/* The log was lost and the map kept: a new incarnation, everything still there. */
	snprintf(cmd, sizeof(cmd), "cp -r %s %s.before", h.meta, h.meta);
	EXPECT_EQ(system(cmd), 0);
	h.cfg.group_incarnation++;
	EXPECT_OK(h_open(&h));
	h_compare(&h, m, false);
	for (unsigned i = 0; i < 12; i++)
		EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	h_verify(&h, true);
	h_compare(&h, m, false);
	h_close(&h);
	/* The map from before that put back. */
	snprintf(cmd, sizeof(cmd), "mv %s %s.new && mv %s.before %s", h.meta, h.meta, h.meta,
		 h.meta);
	EXPECT_EQ(system(cmd), 0);
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	/* Broken, then gone. */
	snprintf(path, sizeof(path), "%s/CURRENT", h.meta);
	EXPECT_EQ(truncate(path, 3), 0);
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	EXPECT_EQ(unlink(path), 0);
	EXPECT_RC(tier_open(&h.cfg, &t), -ERR_MAP_LOST);
	/* Formatting makes it usable again, empty. */
	EXPECT_OK(tier_format(&h.cfg));
	EXPECT_OK(h_open(&h));
	memset(m, 0, sizeof(*m));
	h_objects_put(&h, m);
	h_compare(&h, m, false);
	EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, true)));
	h_compare(&h, m, false);
	h_verify(&h, true);
	h_end(&h, m);
}

TEST(tier, a_lost_page_row_is_damage_not_zeros)
{
	struct harness h;
	struct model *m = model_new();
	struct kv_batch *kb = kv_batch_create();
	uint8_t key[MAP_KEY_SIZE];
	struct map_page p;
	struct h_batch *b;

	h_begin(&h, m, "lostrow", 32);
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 2, 7);
	h_batch_block(b, 0, 21);
	h_batch_block(b, 1, 23);
	EXPECT_OK(h_batch_run(b));
	h_close(&h);
	EXPECT_OK(tier_open(&h.cfg, &h.tier));
	map_key_encode(key, h_object_id(2), 7);
	kv_batch_delete(h.tier->kv, kb, KV_MAP, key, sizeof(key));
	EXPECT_OK(kv_commit(h.tier->kv, kb, true));
	kv_batch_destroy(kb);
	tier_close(h.tier);
	EXPECT_OK(h_open(&h));
	EXPECT_RC(h_page_get(&h, 2, 7, &p), -ERR_CORRUPT);
	/* A newer write lands; the rest of the page stays damaged. */
	b = h_batch_new(&h, m, 0);
	h_batch_open_page(b, 2, 7);
	h_batch_block(b, 1, 25);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (i != 1)
			b->after[0].seed[i] = H_DAMAGED;
	EXPECT_OK(h_batch_run(b));
	EXPECT_EQ(h_compare(&h, m, false), PAGE_BLOCKS - 1);
	h_end(&h, m);
}

/* A bad summary with a unit of a later commit behind it is damage. With none but of its own commit that is
 * what a power cut leaves, which takes writes to disk in any order until they are flushed. */
static void inspect_bad_summary(const char *name, bool later)
{
	static uint8_t summary[UNIT_SUMMARY_MAX] __attribute__((aligned(BLOCK_SIZE)));
	struct harness h;
	struct model *m = model_new();
	struct unit_header first, next;
	uint64_t at;

	h_begin(&h, m, name, 32);
	EXPECT_OK(h_batch_run(random_batch(&h, m, 0, 8, 40, false)));
	h_close(&h);
	EXPECT_EQ(tier_inspect_metadata(h.meta, true), 0);
	EXPECT_EQ(tier_inspect_segments(&h.cap[0], true), 0);
	at = h.cap[0].sb.data_start + SEGMENT_HEADER_SIZE;
	EXPECT_OK(device_pread(&h.cap[0], summary, sizeof(summary), at));
	EXPECT_OK(unit_summary_decode(summary, sizeof(summary), &first));
	summary[100] ^= 1;
	EXPECT_OK(device_pwrite(&h.cap[0], summary, first.summary_bytes, at));
	EXPECT_EQ(tier_inspect_segments(&h.cap[0], true), 0); /* nothing behind it: cut off */
	next = (struct unit_header){.summary_bytes = BLOCK_SIZE,
				    .bytes = BLOCK_SIZE,
				    .segment = first.segment,
				    .position = first.position + first.bytes / BLOCK_SIZE,
				    .group_incarnation = first.group_incarnation,
				    .generation = first.generation,
				    .kv_commit = first.kv_commit + later};
	unit_summary_encode(summary, &next, NULL);
	EXPECT_OK(device_pwrite(&h.cap[0], summary, BLOCK_SIZE, at + first.bytes));
	EXPECT_EQ(tier_inspect_segments(&h.cap[0], true), later);
	EXPECT_RC(tier_inspect_metadata(h.dir, true), -ERR_MAP_LOST);
	h_fini(&h);
	free(m);
}

TEST(tier, inspect_decodes_and_reports)
{
	int out = dup(1), null = open("/dev/null", O_WRONLY);

	fflush(stdout);
	dup2(null, 1);
	inspect_bad_summary("inspect1", false);
	inspect_bad_summary("inspect2", true);
	fflush(stdout);
	dup2(out, 1);
	close(out);
	close(null);
}
