/* SPDX-License-Identifier: Apache-2.0 */
/* The running store: append, commit, read, cut, headers, catch-up answers, destage, wrap-around. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/store/log/fake_tier.h"
#include "tests/store/log/rig.h"

#define MIB (1ull << 20)

/* Block i of the write that began at block 0 with this seed. */
static void expect_inner(struct rig *r, uint64_t id, uint32_t block, uint64_t seed, uint32_t index)
{
	CLEANUP(free_ptr) uint8_t *got = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	uint8_t want[BLOCK_SIZE];
	struct store_read op;

	EXPECT_OK(rig_read(r, id, block, 1, got, &op));
	block_fill(want, seed, index);
	EXPECT_MEM(got, want, BLOCK_SIZE);
}

TEST(store, append_commit_read)
{
	struct rig r;
	struct store_read op;
	struct record rec = rec_write(1, 1, 10, 4);

	rig_begin(&r, "basic");
	EXPECT_RC(rig_create(&r, 2, 1), -ERR_EXISTS);
	EXPECT(store_is_new(rig_object(&r, 2, 1)));
	EXPECT_OK(rig_append(&r, 2, &rec, 77));
	EXPECT(!store_is_new(rig_object(&r, 2, 1)));
	EXPECT_EQ(store_durable(rig_object(&r, 2, 1)).seq, 1);
	expect_block(&r, 2, 10, 0); /* not committed: not seen */
	rig_commit(&r, 2, 1, 1);
	expect_block(&r, 2, 10, 77);
	expect_block(&r, 2, 9, 0);
	EXPECT_OK(rig_read(&r, 2, 8, 8, NULL, &op));
	EXPECT_EQ(op.hole[0], 0xc3);
	rec = rec_write(1, 2, 11, 1);
	rec.kind = RECORD_TRIM;
	EXPECT_OK(rig_append(&r, 2, &rec, 0));
	rec = rec_write(1, 3, 12, 1);
	rec.kind = RECORD_ZEROES;
	EXPECT_OK(rig_append(&r, 2, &rec, 0));
	rig_commit(&r, 2, 1, 3);
	for (unsigned destaged = 0; destaged < 2; destaged++) {
		EXPECT_OK(rig_read(&r, 2, 8, 8, NULL, &op));
		EXPECT_EQ(op.hole[0], 0xcb);
		EXPECT_EQ(op.zero[0], 0x10);
		expect_block(&r, 2, 10, 77);
		expect_block(&r, 2, 11, 0);
		EXPECT_OK(rig_flush(&r));
		EXPECT_EQ(rig_object(&r, 2, 1)->page_count, 0);
	}
	/* A version is given once, and in order. */
	rec = rec_write(1, 3, 0, 1);
	EXPECT_RC(rig_append(&r, 2, &rec, 1), -ERR_INVALID);
	rig_close(&r);
}

TEST(store, reopen_keeps_all)
{
	struct rig r;
	struct object_header h = {.seen = 3, .epoch_count = 1, .epochs = {{3, 1}}};
	struct record rec = rec_write(3, 1, 0, 8);

	rig_make(&r, "reopen", 1, true, 192 * MIB);
	EXPECT_OK(rig_open(&r, 2));
	for (uint64_t id = 2; id < 4; id++) {
		EXPECT_OK(rig_create(&r, id, 5));
		EXPECT_OK(rig_header(&r, id, RECORD_EPOCH, &h, (struct version){0}));
		EXPECT_OK(rig_append(&r, id, &rec, id));
	}
	rec = rec_write(3, 2, 4, 1);
	rec.commit = (struct version){3, 1};
	rec.attachment = 9;
	rec.attach_epoch = 1;
	rec.request = 41;
	EXPECT_OK(rig_append(&r, 2, &rec, 1000));
	rec.version.tenure = 4; /* the table has no such tenure */
	rec.version.seq = 3;
	EXPECT_RC(rig_append(&r, 2, &rec, 1), -ERR_STALE);
	for (unsigned i = 0; i < 3; i++) {
		struct version v;

		EXPECT_OK(rig_reopen(&r, 2));
		EXPECT_EQ(rig_last(&r, 2).seq, 2);
		EXPECT_EQ(rig_known(&r, 2).seq, 1);
		EXPECT_EQ(store_header(rig_object(&r, 2, 5))->seen, 3);
		EXPECT(!rig_object(&r, 2, 6)); /* another generation */
		EXPECT_EQ(store_retry_lookup(rig_object(&r, 2, 5), 9, 1, 41, &v), RETRY_KNOWN);
		EXPECT_EQ(v.seq, 2);
		expect_inner(&r, 2, 4, 2, 4);
		if (i == 1)
			EXPECT_OK(rig_flush(&r));
	}
	rig_commit(&r, 2, 3, 2);
	expect_block(&r, 2, 4, 1000);
	rig_commit(&r, 3, 3, 1);
	expect_block(&r, 3, 0, 3);
	rig_close(&r);
}

TEST(store, cut_drops_the_tail)
{
	struct rig r;
	struct object_header h = {.seen = 1, .epoch_count = 1, .epochs = {{1, 1}}};
	struct record rec;
	struct version v;

	rig_begin(&r, "cut");
	EXPECT_OK(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}));
	for (uint64_t s = 1; s <= 5; s++) {
		rec = rec_write(1, s, 0, 1);
		rec.attachment = 1;
		rec.attach_epoch = 1;
		rec.request = s;
		EXPECT_OK(rig_append(&r, 2, &rec, s));
	}
	rig_commit(&r, 2, 1, 2);
	h.seen = 2;
	EXPECT_RC(rig_header(&r, 2, RECORD_CUT, &h, (struct version){1, 1}), -ERR_DIVERGED);
	h.epoch_count = 2;
	h.epochs[1] = (struct epoch_entry){2, 4};
	EXPECT_OK(rig_header(&r, 2, RECORD_CUT, &h, (struct version){1, 3}));
	EXPECT_EQ(rig_last(&r, 2).seq, 3);
	EXPECT_EQ(store_durable(rig_object(&r, 2, 1)).seq, 3);
	EXPECT_EQ(store_retry_lookup(rig_object(&r, 2, 1), 1, 1, 4, &v), RETRY_NEW);
	EXPECT_EQ(store_retry_lookup(rig_object(&r, 2, 1), 1, 1, 3, &v), RETRY_KNOWN);
	rec = rec_write(2, 4, 1, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 204));
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 4);
	EXPECT_EQ(rig_last(&r, 2).tenure, 2);
	EXPECT_EQ(store_retry_lookup(rig_object(&r, 2, 1), 1, 1, 4, &v), RETRY_NEW);
	rig_commit(&r, 2, 2, 4);
	expect_block(&r, 2, 0, 3);
	expect_block(&r, 2, 1, 204);
	h.seen = 1;
	EXPECT_RC(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}), -ERR_STALE);
	rig_close(&r);
}

/* ---- Tail ---- */

struct tail_args {
	struct rig *r;
	struct store_tail op;
	struct version after;
	struct buf_pool *pool;
};

static int do_tail(void *arg, struct wait *w)
{
	struct tail_args *a = arg;
	struct store_object *o = store_object_find(a->r->store, 0, 2, 1);

	return store_tail_next(o, &a->op, a->after, a->pool, w);
}

static int do_tail_done(void *arg, struct wait *w)
{
	struct tail_args *a = arg;

	slice_unref(&a->op.payload);
	return 0;
}

static int do_pool(void *arg, struct wait *w)
{
	struct tail_args *a = arg;

	if (a->pool) {
		buf_pool_destroy(a->pool);
		a->pool = NULL;
	} else {
		a->pool = buf_pool_create(8 << 20);
	}
	return 0;
}

TEST(store, tail_is_read_back)
{
	struct rig r;
	struct tail_args a = {.r = &r};
	struct record rec;

	rig_begin(&r, "tail");
	for (uint64_t s = 1; s <= 4; s++) {
		rec = rec_write(1, s, (uint32_t)s * 10, (uint32_t)s);
		rec.request = s;
		rec.attachment = 3;
		EXPECT_OK(rig_append(&r, 2, &rec, s));
	}
	rig_commit(&r, 2, 1, 1);
	rig_call(&r, 0, do_pool, &a);
	a.after = (struct version){0, 0};
	EXPECT_RC(rig_call(&r, 0, do_tail, &a), -ERR_STALE);
	a.after = (struct version){1, 1};
	for (uint64_t s = 2; s <= 4; s++) {
		uint8_t want[BLOCK_SIZE];

		EXPECT_OK(rig_call(&r, 0, do_tail, &a));
		EXPECT_EQ(a.op.record.version.seq, s);
		EXPECT_EQ(a.op.record.request, s);
		EXPECT_EQ(a.op.record.block, s * 10);
		EXPECT_EQ(a.op.payload.len, s * BLOCK_SIZE);
		for (uint32_t i = 0; i < s; i++) {
			block_fill(want, s, i);
			EXPECT_MEM(a.op.payload.data + i * BLOCK_SIZE, want, BLOCK_SIZE);
			EXPECT(fp128_equal(a.op.fps[i], hash_block(want)));
		}
		a.after = a.op.record.version;
		rig_call(&r, 0, do_tail_done, &a);
	}
	EXPECT_RC(rig_call(&r, 0, do_tail, &a), -ENODATA);
	rig_call(&r, 0, do_pool, &a);
	rig_close(&r);
}

/* ---- Catch-up ---- */

struct pages_args {
	struct rig *r;
	struct store_versions versions;
	struct store_folds folds;
	struct store_manifest manifest;
	uint64_t fold[2];
	bool uncommitted;
};

static int do_versions(void *arg, struct wait *w)
{
	struct pages_args *a = arg;

	a->versions.uncommitted = a->uncommitted;
	a->versions.region = 0;
	return store_page_versions(store_object_find(a->r->store, 0, 2, 1), &a->versions, w);
}

/* Of object 2, by what is committed. */
static struct version page_version(struct rig *r, unsigned page)
{
	struct pages_args a = {.r = r};

	EXPECT_OK(rig_call(r, 0, do_versions, &a));
	return a.versions.versions[page];
}

static int do_folds(void *arg, struct wait *w)
{
	struct pages_args *a = arg;

	a->folds =
		(struct store_folds){.folds = a->fold, .regions = 2, .uncommitted = a->uncommitted};
	return store_folds(store_object_find(a->r->store, 0, 2, 1), &a->folds, w);
}

static int do_manifest(void *arg, struct wait *w)
{
	struct pages_args *a = arg;

	return store_manifest(store_object_find(a->r->store, 0, 2, 1), &a->manifest, w);
}

static uint64_t term(uint32_t page, uint32_t tenure, uint64_t seq)
{
	return store_fold_term(page, (struct version){tenure, seq});
}

TEST(store, versions_folds_manifest)
{
	struct rig r;
	struct pages_args a = {.r = &r};
	struct record rec;
	uint8_t want[BLOCK_SIZE];

	rig_begin(&r, "folds");
	rec = rec_write(1, 1, 0, 1); /* page 0 */
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rec = rec_write(1, 2, 64 * 64 + 5, 1); /* page 64, region 1 */
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	rig_commit(&r, 2, 1, 2);
	for (unsigned destaged = 0; destaged < 3; destaged++) {
		/* Not destaged, destaged, and destaged with more on top. */
		if (destaged == 1)
			EXPECT_OK(rig_flush(&r));
		if (destaged == 2) {
			rec = rec_write(1, 4, 1, 1);
			rec.kind = RECORD_ZEROES;
			EXPECT_OK(rig_append(&r, 2, &rec, 0));
			rig_commit(&r, 2, 1, 4);
		}
		a.uncommitted = false;
		EXPECT_OK(rig_call(&r, 0, do_folds, &a));
		EXPECT(a.fold[0] ==
		       (destaged == 2 ? term(0, 1, 4) ^ term(3, 1, 3) : term(0, 1, 1)));
		EXPECT(a.fold[1] == term(64, 1, 2));
		EXPECT_OK(rig_call(&r, 0, do_versions, &a));
		EXPECT_EQ(a.versions.versions[0].seq, destaged == 2 ? 4 : 1);
		EXPECT_EQ(a.versions.versions[1].seq, 0);
		if (destaged == 0) {
			rec = rec_write(1, 3, 3 * 64, 2); /* page 3, stays uncommitted for now */
			EXPECT_OK(rig_append(&r, 2, &rec, 3));
		}
		if (destaged < 2) {
			a.uncommitted = true;
			EXPECT_OK(rig_call(&r, 0, do_folds, &a));
			EXPECT(a.fold[0] == (term(0, 1, 1) ^ term(3, 1, 3)));
			EXPECT_OK(rig_call(&r, 0, do_versions, &a));
			EXPECT_EQ(a.versions.versions[3].seq, 3);
		}
	}
	a.manifest.page = 0;
	EXPECT_OK(rig_call(&r, 0, do_manifest, &a));
	EXPECT_EQ(a.manifest.version.seq, 4);
	EXPECT_EQ(a.manifest.data, 1);
	EXPECT_EQ(a.manifest.zero, 2);
	EXPECT(a.manifest.hole == ~3ull);
	block_fill(want, 1, 0);
	EXPECT(a.manifest.fp64[0] == hash_block(want).lo);
	rig_close(&r);
}

/* A syncing member: skipped pages stay as they are, a copy sets its page at once. */
TEST(store, skip_and_copy)
{
	struct rig r;
	struct pages_args a = {.r = &r};
	struct record rec = rec_write(1, 10, 60, 8); /* pages 0 and 1 */
	uint8_t want[BLOCK_SIZE];

	rig_begin(&r, "copy");
	rec.skip_mask = 1;
	rec.commit = (struct version){1, 9};
	EXPECT_OK(rig_append(&r, 2, &rec, 10));
	EXPECT_EQ(rig_known(&r, 2).seq, 9);
	rig_commit(&r, 2, 1, 10);
	expect_block(&r, 2, 60, 0);
	expect_inner(&r, 2, 64, 10, 0); /* payload begins behind the skipped page */
	EXPECT_EQ(page_version(&r, 0).seq, 0);
	EXPECT_EQ(page_version(&r, 1).seq, 10);
	rec = (struct record){.kind = RECORD_COPY,
			      .version = {1, 8},
			      .block = 0,
			      .blocks = 64,
			      .copy_data = 6,
			      .copy_zero = 8,
			      .copy_damaged = 16};
	EXPECT_OK(rig_append(&r, 2, &rec, 20));
	for (unsigned round = 0; round < 3; round++) {
		struct store_read op;
		CLEANUP(free_ptr) uint8_t *got = xalloc_aligned(BLOCK_SIZE, 5 * BLOCK_SIZE);

		EXPECT_OK(rig_call(&r, 0, do_versions, &a));
		EXPECT_EQ(a.versions.versions[0].seq, 8);
		EXPECT_EQ(a.versions.damaged, 1);
		EXPECT_RC(rig_read(&r, 2, 0, 5, got, &op), -ERR_DAMAGED);
		EXPECT_EQ(op.bad[0], 16);
		EXPECT_EQ(op.hole[0], 1);
		EXPECT_EQ(op.zero[0], 8);
		block_fill(want, 20, 1);
		EXPECT_MEM(got + 2 * BLOCK_SIZE, want, BLOCK_SIZE);
		if (round == 0)
			EXPECT_OK(rig_reopen(&r, 1));
		if (round == 1)
			EXPECT_OK(rig_flush(&r));
	}
	/* The repair comes as a copy of the same version. */
	rec.copy_damaged = 0;
	rec.copy_data = 16;
	rec.copy_zero = 0;
	EXPECT_OK(rig_append(&r, 2, &rec, 30));
	EXPECT_OK(rig_reopen(&r, 1));
	expect_block(&r, 2, 4, 30);
	EXPECT_OK(rig_flush(&r));
	expect_block(&r, 2, 4, 30);
	EXPECT_OK(rig_call(&r, 0, do_versions, &a));
	EXPECT_EQ(a.versions.damaged, 0);
	rig_close(&r);
}

/* A copy stands for all that was committed before it: the record that is in the log, and whose commit the
 * copy itself brings, does not come to lie over it once the page is in the map. */
TEST(store, copy_over_the_tail)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 0, 2);

	rig_begin(&r, "copy-tail");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rec = rec_copy(1, 2, 3);
	rec.copy_hole = ~3ull;
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	EXPECT_EQ(rig_known(&r, 2).seq, 1);
	EXPECT_OK(rig_flush(&r));
	rec = rec_write(1, 2, 0, 1);
	rec.skip_mask = 1;
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	rec = rec_write(1, 3, 64, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 3));
	rig_commit(&r, 2, 1, 3);
	for (unsigned flushed = 0; flushed < 2; flushed++) {
		expect_inner(&r, 2, 0, 2, 0);
		expect_inner(&r, 2, 1, 2, 1);
		EXPECT_EQ(page_version(&r, 0).seq, 2);
		EXPECT_EQ(page_version(&r, 1).seq, 3);
		EXPECT_OK(rig_flush(&r));
	}
	rig_close(&r);
}

/* Of a page that is copied only the blocks come that differ: the others are what the log had before, also
 * when it is read again, though only the copy says that it is committed. */
TEST(store, copy_of_a_difference)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 0, 2);

	rig_begin(&r, "copy-diff");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	rec = rec_copy(1, 2, 2);
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	for (unsigned lives = 0; lives < 2; lives++) {
		expect_inner(&r, 2, 0, 1, 0);
		expect_block(&r, 2, 1, 2);
		EXPECT_EQ(page_version(&r, 0).seq, 2);
		EXPECT_OK(rig_reopen(&r, 1));
	}
	rig_close(&r);
}

/* Of four lives the last finds everything in the map. */
static void next_life(struct rig *r, unsigned lives)
{
	if (lives == 2)
		EXPECT_OK(rig_flush(r));
	EXPECT_OK(rig_reopen(r, 1));
}

/* The source's disk went back: what it copies is of a later tenure, and has a lower number than what the page
 * is of. It counts all the same, and so does what comes behind it, whatever of the other is in the map or
 * the log. */
static void copy_of_another_history(const char *name, bool flushed)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 64, 1);
	struct object_header h = {
		.seen = 2, .commit = {1, 1}, .epochs = {{1, 1}, {2, 2}}, .epoch_count = 2};

	rig_begin(&r, name);
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	rec = rec_copy(1, 9, 15);
	EXPECT_OK(rig_append(&r, 2, &rec, 9));
	if (flushed)
		EXPECT_OK(rig_flush(&r));
	EXPECT_OK(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}));
	rec.version = rec.commit = (struct version){2, 4};
	rec.copy_data = 1;
	rec.copy_hole = 2;
	EXPECT_OK(rig_append(&r, 2, &rec, 4));
	EXPECT(version_eq(page_version(&r, 0), (struct version){2, 4}));
	rec = rec_write(2, 5, 2, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 5));
	for (unsigned lives = 0; lives < 4; lives++) {
		expect_inner(&r, 2, 0, 4, 0);
		expect_block(&r, 2, 1, 0);
		rig_commit(&r, 2, 2, 5);
		expect_block(&r, 2, 2, 5);
		expect_inner(&r, 2, 3, 9, 3);
		EXPECT(version_eq(page_version(&r, 0), (struct version){2, 5}));
		next_life(&r, lives);
	}
	rig_close(&r);
}

TEST(store, copy_over_a_history_in_the_map)
{
	copy_of_another_history("copy-map", true);
}

TEST(store, copy_over_a_history_in_the_log)
{
	copy_of_another_history("copy-log", false);
}

/* A copy that was never finished is forced: what it knows says from where on numbers are higher than those of
 * its pages, and what is written from there on lies over them. */
TEST(store, write_over_an_unfinished_copy)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 64, 1);
	struct object_header h = {
		.seen = 2, .commit = {1, 9}, .epochs = {{1, 1}, {2, 10}}, .epoch_count = 2};

	rig_begin(&r, "forced");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rec = rec_copy(1, 9, 3);
	EXPECT_OK(rig_append(&r, 2, &rec, 9));
	for (unsigned lives = 0; lives < 2; lives++) {
		EXPECT_EQ(rig_last(&r, 2).seq, 1);
		EXPECT_EQ(store_known(rig_object(&r, 2, 1)).seq, 9);
		EXPECT_OK(rig_reopen(&r, 1));
	}
	EXPECT_OK(rig_header(&r, 2, RECORD_COMPLETE, &h, (struct version){1, 9}));
	rec = rec_write(2, 10, 0, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 10));
	for (unsigned lives = 0; lives < 4; lives++) {
		rig_commit(&r, 2, 2, 10);
		expect_block(&r, 2, 0, 10);
		expect_inner(&r, 2, 1, 9, 1);
		next_life(&r, lives);
	}
	rig_close(&r);
}

/* Filled from a replica that was forced, and had forgotten what its own unfinished copy knew: its numbers
 * begin below those of its pages. What is written behind the copy of such a page lies over it, whatever of
 * both is in the map. */
static void write_over_an_outlived_page(const char *name, bool flushed)
{
	struct rig r;
	struct record rec = {.kind = RECORD_COPY,
			     .version = {1, 9},
			     .commit = {2, 1},
			     .blocks = 64,
			     .copy_data = 7};
	struct object_header h = {.seen = 2, .epochs = {{2, 1}}, .epoch_count = 1};

	rig_begin(&r, name);
	EXPECT_OK(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}));
	EXPECT_OK(rig_append(&r, 2, &rec, 9));
	if (flushed)
		EXPECT_OK(rig_flush(&r));
	for (uint64_t seq = 2; seq <= 3; seq++) {
		rec = rec_write(2, seq, (uint32_t)seq - 2, 1);
		EXPECT_OK(rig_append(&r, 2, &rec, seq));
	}
	for (unsigned lives = 0; lives < 4; lives++) {
		rig_commit(&r, 2, 2, 3);
		expect_block(&r, 2, 0, 2);
		expect_block(&r, 2, 1, 3);
		expect_inner(&r, 2, 2, 9, 2);
		EXPECT(version_eq(page_version(&r, 0), (struct version){2, 3}));
		next_life(&r, lives);
	}
	rig_close(&r);
}

/* The same, with the state of before in the map, if it has one. What the copy brought is looked at first:
 * no other read has compared the page with the map before. */
TEST(store, outlived_page_over_an_older_one)
{
	struct record rec = rec_write(1, 1, 0, 8);
	struct object_header h = {.seen = 2, .commit = {1, 1}, .epochs = {{1, 1}, {2, 2}}, .epoch_count = 2};

	for (unsigned older = 0; older < 2; older++) {
		struct rig r;
		struct pages_args a = {.r = &r};

		rig_make(&r, older ? "outlived-older" : "outlived-none", 1, false, 192 * MIB);
		EXPECT_OK(rig_open(&r, 1));
		EXPECT_OK(rig_create(&r, 2, 1));
		rec = rec_write(1, 1, older ? 0 : 64, 8);
		EXPECT_OK(rig_append(&r, 2, &rec, 1));
		rig_commit(&r, 2, 1, 1);
		EXPECT_OK(rig_flush(&r));
		EXPECT_OK(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}));
		rec = rec_copy(1, 9, 7);
		rec.commit = (struct version){1, 1};
		EXPECT_OK(rig_append(&r, 2, &rec, 9));
		rec = rec_write(2, 2, 0, 1);
		EXPECT_OK(rig_append(&r, 2, &rec, 2));
		for (unsigned lives = 0; lives < 4; lives++) {
			rig_commit(&r, 2, 2, 2);
			if (lives % 2) {
				EXPECT_OK(rig_call(&r, 0, do_manifest, &a));
				EXPECT_EQ(a.manifest.data, older ? 0xff : 7);
			}
			expect_inner(&r, 2, 1, 9, 1);
			expect_inner(&r, 2, 2, 9, 2);
			expect_block(&r, 2, 0, 2);
			if (older)
				expect_inner(&r, 2, 3, 1, 3);
			if (lives == 2)
				EXPECT_OK(rig_flush(&r));
			rig_close(&r);
			EXPECT_OK(rig_open(&r, 1));
		}
		rig_close(&r);
	}
}

TEST(store, write_over_an_outlived_page_in_the_map)
{
	write_over_an_outlived_page("outlived-map", true);
}

TEST(store, write_over_an_outlived_page_in_the_log)
{
	write_over_an_outlived_page("outlived-log", false);
}

/* What comes behind a copy lies over it, also when all go into the log at once and the commit is known. */
struct burst_args {
	struct rig *r;
	struct store_append append[3];
	struct wait early[2];
};

static void burst_resume(struct wait *w, int rc)
{
	EXPECT_OK(rc);
}

static int do_burst(void *arg, struct wait *w)
{
	struct burst_args *a = arg;
	struct store_object *o = store_object_find(a->r->store, 0, 2, 1);
	struct record rec[3] = {rec_write(1, 3, 64, 1),
				{.kind = RECORD_COPY,
				 .version = {1, 2},
				 .commit = {1, 2},
				 .blocks = 64,
				 .copy_data = 1},
				rec_write(1, 4, 0, 1)};
	uint8_t payload[BLOCK_SIZE];
	int rc = 0;

	for (unsigned i = 0; i < 3; i++) {
		struct fp128 fp;

		block_fill(payload, 10 + i, 0);
		fp = hash_block(payload);
		if (i < 2)
			a->early[i].resume = burst_resume;
		rc = store_append(o, &a->append[i], &rec[i], payload, &fp, i < 2 ? &a->early[i] : w);
		if (rc != PENDING)
			return rc;
	}
	store_commit(o, (struct version){1, 4});
	return rc;
}

TEST(store, copy_in_its_place)
{
	struct rig r;
	struct burst_args a = {.r = &r};
	struct record rec = rec_write(1, 1, 0, 1);

	rig_begin(&r, "copy-place");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rec = rec_write(1, 2, 64, 1);
	rec.commit = (struct version){1, 1};
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	EXPECT_OK(rig_call(&r, 0, do_burst, &a));
	for (unsigned lives = 0; lives < 2; lives++) {
		expect_block(&r, 2, 0, 12);
		expect_block(&r, 2, 64, 10);
		EXPECT_OK(rig_reopen(&r, 1));
		rig_commit(&r, 2, 1, 4);
	}
	rig_close(&r);
}

/* COMPLETE brings version, commit and the primary's retry table. */
struct complete_args {
	struct rig *r;
	struct store_append append;
	struct object_header h;
	struct writer w;
};

static int do_complete(void *arg, struct wait *w)
{
	struct complete_args *a = arg;
	struct store_object *from = store_object_find(a->r->store, 0, 2, 1);
	struct store_object *to = store_object_find(a->r->store, 0, 4, 1);

	a->w = writer_init_heap();
	store_retry_encode(from, &a->w);
	return store_put_header(to, &a->append, RECORD_COMPLETE, &a->h, (struct version){1, 2},
				a->w.data, a->w.len, w);
}

TEST(store, complete)
{
	struct rig r;
	struct complete_args a = {.r = &r, .h = {.seen = 1, .commit = {1, 2}}};
	struct record rec = rec_write(1, 2, 0, 1);
	struct version v;

	rig_begin(&r, "complete");
	EXPECT_OK(rig_create(&r, 4, 1));
	rec.attachment = 6;
	rec.request = 12;
	rec.low_water = 11;
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	EXPECT_OK(rig_call(&r, 0, do_complete, &a));
	writer_free(&a.w);
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_EQ(rig_last(&r, 4).seq, 2);
		EXPECT_EQ(rig_known(&r, 4).seq, 2);
		EXPECT_EQ(store_retry_lookup(rig_object(&r, 4, 1), 6, 0, 12, &v), RETRY_KNOWN);
		EXPECT_EQ(store_retry_lookup(rig_object(&r, 4, 1), 6, 0, 10, &v), RETRY_BELOW);
		EXPECT_OK(rig_reopen(&r, 1));
	}
	rig_close(&r);
}

/* ---- Space ---- */

struct space_args {
	struct rig *r;
	struct list link;
};

static int do_wait_space(void *arg, struct wait *w)
{
	struct space_args *a = arg;

	return store_wait_space(a->r->store, 0, &a->link, w);
}

static int append_patiently(struct rig *r, uint64_t id, const struct record *rec, uint64_t seed)
{
	struct space_args sp = {.r = r};
	int rc;

	while ((rc = rig_append(r, id, rec, seed)) == -ERR_LIMIT)
		EXPECT_OK(rig_call(r, 0, do_wait_space, &sp));
	return rc;
}

/* Eight times the log's size goes through it, nothing is lost, and segments come round. */
TEST(store, log_wraps)
{
	struct rig r;
	struct store_stats st;
	uint64_t seq = 0;

	rig_make(&r, "wrap", 1, true, 48 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	while (seq < 8 * 46) {
		struct record rec;

		seq++;
		rec = rec_write(1, seq, (uint32_t)(seq % 16) * 256, 256);

		EXPECT_OK(append_patiently(&r, 2, &rec, seq));
		rig_commit(&r, 2, 1, seq);
	}
	store_stats(r.store, &st);
	EXPECT_EQ(st.appended_blocks, 8 * 46 * 256);
	EXPECT(st.device_written_bytes > 8 * 46 * MIB);
	EXPECT(fake_tier_headers() > 0);
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, seq);
	rig_commit(&r, 2, 1, seq); /* no record has said so */
	for (uint32_t i = 0; i < 16; i++)
		expect_block(&r, 2, (uint32_t)((seq - i) % 16) * 256, seq - i);
	rig_close(&r);
}

/* What object 2 has written by then. */
static uint64_t write_until_full(struct rig *r)
{
	for (uint64_t seq = 0;; seq++) {
		struct record rec = rec_write(1, seq + 1, (uint32_t)(seq % 64) * 256, 256);
		int rc = rig_append(r, 2, &rec, seq + 1);

		if (rc) {
			EXPECT_RC(rc, -ERR_LIMIT);
			return seq;
		}
		rig_commit(r, 2, 1, seq + 1);
	}
}

/* A replica that takes the place of another one, which cannot be deleted: an error, and nothing else. */
TEST(store, a_replica_in_place_of_one_that_cannot_be_deleted)
{
	struct rig r;

	rig_make(&r, "undeleted", 1, false, 192 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	fake_tier_set_broken(true);
	EXPECT_RC(rig_create(&r, 2, 2), -EIO);
	fake_tier_set_broken(false);
	EXPECT_OK(rig_create(&r, 2, 2));
	rig_close(&r);
}

/* Full capacity is latency, then space: nothing is lost while the tier says FULL. */
TEST(store, tier_full_then_not)
{
	struct rig r;
	uint64_t seq;
	struct record rec;

	rig_make(&r, "full", 1, true, 48 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	fake_tier_set_full(true);
	seq = write_until_full(&r);
	EXPECT_RC(rig_flush(&r), -ERR_FULL);
	/* Trims still go, into the reserve. */
	rec = rec_write(1, seq + 1, 0, 64);
	rec.kind = RECORD_TRIM;
	EXPECT_OK(rig_append(&r, 2, &rec, 0));
	rig_commit(&r, 2, 1, ++seq);
	fake_tier_set_full(false);
	rec = rec_write(1, ++seq, 64, 256);
	EXPECT_OK(append_patiently(&r, 2, &rec, seq));
	rig_commit(&r, 2, 1, seq);
	EXPECT_OK(rig_flush(&r));
	expect_block(&r, 2, 64, seq);
	expect_block(&r, 2, 0, 0);
	rig_close(&r);
}

struct hopeful {
	struct wait wait;
	struct list link;
	struct rig *r;
	unsigned resumed;
	sem_t done;
};

static void hope_resume(struct wait *w, int rc)
{
	struct hopeful *h = container_of(w, struct hopeful, wait);

	h->resumed++;
	sem_post(&h->done);
}

static int hope_begin(void *arg, struct wait *w)
{
	struct hopeful *h = arg;

	EXPECT_RC(store_wait_space(h->r->store, 0, &h->link, &h->wait), PENDING);
	return 0;
}

static int hope_ask(void *arg, struct wait *w)
{
	struct hopeful *h = arg;

	EXPECT(!store_is_full(h->r->store));
	if (h->resumed) /* as a primary does: it tries again, in vain, and waits again */
		return hope_begin(arg, w);
	return 0;
}

/* To ask for space makes none: who waits for some sleeps until there is, however often others ask. */
TEST(store, asking_wakes_nobody)
{
	struct rig r;
	struct hopeful h = {.r = &r, .wait.resume = hope_resume};

	sem_init(&h.done, 0, 0);
	rig_make(&r, "asking", 1, true, 48 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	fake_tier_set_paused(true);
	write_until_full(&r);
	EXPECT_OK(rig_call(&r, 0, hope_begin, &h));
	for (unsigned i = 0; i < 100; i++)
		EXPECT_OK(rig_call(&r, 0, hope_ask, &h));
	EXPECT_EQ(h.resumed, 0);
	fake_tier_set_paused(false);
	while (sem_wait(&h.done))
		;
	rig_close(&r);
	sem_destroy(&h.done);
}

static uint64_t tail_generation(struct rig *r)
{
	struct store_object *o = rig_object(r, 2, 1);
	struct log_tail *t = container_of(o->tail.next, struct log_tail, link);

	return r->store->segs[pos_seg(r->store, t->pos)].generation;
}

/* A tail that nobody commits must not hold up the others. */
TEST(store, stalled_tail_moves)
{
	struct rig r;
	uint64_t seq = 0, first;
	struct record rec;

	rig_make(&r, "stalled", 1, true, 48 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	EXPECT_OK(rig_create(&r, 4, 1));
	for (uint64_t s = 1; s <= 3; s++) {
		rec = rec_write(1, s, 7, 2);
		rec.kind = s == 3 ? RECORD_TRIM : RECORD_WRITE;
		EXPECT_OK(rig_append(&r, 2, &rec, 500 + s));
	}
	first = tail_generation(&r);
	while (seq < 100) {
		seq++;
		rec = rec_write(1, seq, (uint32_t)(seq % 8) * 256, 256);
		EXPECT_OK(append_patiently(&r, 4, &rec, seq));
		rig_commit(&r, 4, 1, seq);
	}
	EXPECT(tail_generation(&r) > first);
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 3);
	EXPECT_EQ(rig_known(&r, 2).seq, 0);
	rig_commit(&r, 2, 1, 2);
	expect_block(&r, 2, 7, 502);
	rig_commit(&r, 2, 1, 3);
	expect_block(&r, 2, 7, 0);
	rig_commit(&r, 4, 1, seq);
	expect_block(&r, 4, (uint32_t)(seq % 8) * 256, seq);
	rig_close(&r);
}

/* ---- Objects ---- */

static int do_delete(void *arg, struct wait *w)
{
	struct rig *r = arg;

	return store_object_delete(store_object_find(r->store, 0, 2, 1), w);
}

TEST(store, deleted_objects_stay_away)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 0, 4);

	rig_begin(&r, "delete");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	EXPECT_OK(rig_flush(&r));
	rec = rec_write(1, 2, 1, 4);
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	EXPECT_OK(rig_call(&r, 0, do_delete, &r));
	EXPECT(!rig_object(&r, 2, 1));
	/* Another generation of the same object begins empty, though the log has records of the old. */
	EXPECT_OK(rig_create(&r, 2, 9));
	expect_block(&r, 2, 0, 0);
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT(!rig_object(&r, 2, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 0);
	expect_block(&r, 2, 1, 0);
	/* And creating over an older one deletes it. */
	rec = rec_write(1, 1, 0, 4);
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	EXPECT_OK(rig_create(&r, 2, 10));
	expect_block(&r, 2, 0, 0);
	rig_close(&r);
}

/* ---- Devices ---- */

TEST(device, identity_and_locks)
{
	struct rig r, other;
	struct store_probe probe;
	struct store_format f;
	struct device d;
	uint8_t byte = 1;

	rig_make(&r, "identity", 2, true, 96 * MIB);
	EXPECT_OK(store_probe(r.names[2], &probe));
	EXPECT_EQ(probe.role, DEVICE_CACHE);
	EXPECT_EQ(probe.index, 7);
	EXPECT_EQ(probe.group_number, 7);
	EXPECT(!probe.pending);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_RC(device_open(&d, r.names[0], false, false), -ERR_BUSY);
	EXPECT_OK(store_set_node_incarnation(r.store, 12));
	rig_close(&r);
	EXPECT_OK(store_probe(r.names[0], &probe));
	EXPECT_EQ(probe.node_incarnation, 12);
	/* Either copy of a superblock will do. */
	rig_poke(&r, 0, 300, &byte, 0);
	rig_poke(&r, 0, 50, &byte, 1);
	EXPECT_OK(store_probe(r.names[0], &probe));
	EXPECT_OK(rig_open(&r, 1));
	rig_close(&r);
	/* Another node's devices are not opened. */
	other = r;
	uuid_make(&other.node);
	EXPECT_RC(rig_open(&other, 1), -ERR_FOREIGN);
	/* The cache device gone: the log is lost. All capacity devices gone: the group failed. */
	other = r;
	other.count = 2;
	EXPECT_RC(rig_open(&other, 1), -ERR_LOG_LOST);
	other.count = 1;
	other.names[0] = r.names[2];
	EXPECT_RC(rig_open(&other, 1), -ERR_DEVICE);
	/* What carries data is not formatted. */
	f = (struct store_format){.cluster = r.cluster,
				  .node = r.node,
				  .group = r.group,
				  .group_incarnation = 1,
				  .capacity = r.names,
				  .capacity_count = 2,
				  .metadata_dir = r.meta};
	uuid_make(&f.group);
	EXPECT_RC(store_format(&f), -ERR_EXISTS);
	f.wipe = true;
	EXPECT_OK(store_format(&f));
	EXPECT_OK(store_probe(r.names[0], &probe));
	EXPECT(probe.pending);
	EXPECT(uuid_equal(&probe.group, &f.group));
	f.wipe = false;
	EXPECT_OK(store_format(&f)); /* a re-run of the same */
}

TEST(device, reset)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 0, 4);
	struct store_config cfg;
	struct store_identity id;

	rig_make(&r, "reset", 1, true, 96 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	EXPECT_OK(rig_flush(&r));
	rec = rec_write(1, 2, 0, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	rig_close(&r);
	cfg = (struct store_config){.devices = r.names,
				    .device_count = r.count,
				    .metadata_dir = r.meta,
				    .cluster = r.cluster,
				    .node = r.node,
				    .shards = 1};
	/* The log is given up, the map is kept. */
	EXPECT_OK(store_reset(&cfg, 2, true));
	EXPECT_OK(rig_open(&r, 1));
	store_identity(r.store, &id);
	EXPECT_EQ(id.group_incarnation, 2);
	EXPECT_EQ(rig_object(&r, 2, 1)->last.seq, 0);
	expect_block(&r, 2, 0, 1);
	rig_close(&r);
	EXPECT_OK(store_reset(&cfg, 3, false));
	EXPECT_OK(rig_open(&r, 1));
	EXPECT(!rig_object(&r, 2, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	expect_block(&r, 2, 0, 0);
	rig_close(&r);
}

/* One device has the superblock of the new life, the others do not: the next reset brings them together. */
TEST(device, reset_after_one_that_was_cut_short)
{
	struct store_config cfg;
	struct device d;
	struct rig r;

	rig_make(&r, "reset2", 2, true, 96 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_create(&r, 2, 1));
	rig_close(&r);
	for (unsigned i = 0; i < r.count; i++) {
		EXPECT_OK(device_open(&d, r.names[i], true, false));
		EXPECT_OK(device_read_superblock(&d));
		d.sb.log_incarnation++;
		d.sb.group_incarnation++;
		uuid_make(&d.sb.log);
		EXPECT_OK(device_write_superblock(&d));
		device_close(&d);
		EXPECT_RC(rig_open(&r, 1), -ERR_LOG_LOST);
		cfg = (struct store_config){.devices = r.names,
					    .device_count = r.count,
					    .metadata_dir = r.meta,
					    .cluster = r.cluster,
					    .node = r.node,
					    .shards = 1};
		EXPECT_OK(store_reset(&cfg, 3 + i, i % 2));
		EXPECT_OK(rig_open(&r, 1));
		rig_close(&r);
	}
}
