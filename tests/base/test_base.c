/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/buf.h"
#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "node/base/hmap.h"
#include "node/base/json.h"
#include "node/base/op.h"
#include "node/base/pool.h"
#include "node/base/rng.h"
#include "node/base/steps.h"
#include "node/base/text.h"
#include "node/base/uuid.h"
#include "tests/lib/test.h"

TEST(err, own_codes_know_their_errno)
{
	EXPECT_STR(err_name(-ERR_CORRUPT), "CORRUPT");
	EXPECT_STR(err_name(-EIO), "EIO");
	EXPECT(err_is(-ERR_CORRUPT, -EIO));
	EXPECT(!err_is(-ERR_CORRUPT, -EPERM));
	EXPECT_EQ(err_errno(-ERR_FULL), -ENOSPC);
	EXPECT_EQ(err_errno(0), 0);
}

TEST(bytes, reader_stops_at_the_end)
{
	uint8_t b[5] = {1, 2, 3, 4, 5};
	struct reader r = reader_init(b, sizeof(b));

	EXPECT_EQ(read_u32(&r), 0x04030201);
	EXPECT_EQ(read_u16(&r), 0);
	EXPECT(r.bad);
	EXPECT(!reader_done(&r));
}

TEST(bytes, strings_with_nul_or_too_long_are_bad)
{
	struct writer w = writer_init_heap();
	struct reader r;
	char out[4];

	write_str(&w, "abcd");
	r = reader_init(w.data, w.len);
	read_str(&r, out, sizeof(out));
	EXPECT(r.bad);
	writer_free(&w);
	write_u16(&w, 2);
	write_bytes(&w, "a\0", 2);
	r = reader_init(w.data, w.len);
	read_str(&r, out, sizeof(out));
	EXPECT(r.bad);
	writer_free(&w);
}

TEST(bytes, fixed_writer_refuses_overflow)
{
	uint8_t b[4];
	struct writer w = writer_init(b, sizeof(b));

	write_u32(&w, 7);
	EXPECT(!w.bad);
	write_u8(&w, 1);
	EXPECT(w.bad);
	EXPECT_EQ(w.len, 4);
}

/* The fingerprint is on disk and on the wire: it may never change. */
TEST(hash, fingerprints_are_frozen)
{
	struct fp128 z = hash_zero_block();
	uint8_t block[BLOCK_SIZE];

	for (unsigned i = 0; i < BLOCK_SIZE; i++)
		block[i] = (uint8_t)(i * 7);
	EXPECT(!fp128_equal(z, hash_block(block)));
	EXPECT_EQ(hash_xxh3("ashlar", 6, 0), hash_xxh3("ashlar", 6, 0));
	EXPECT(hash_xxh3("", 0, 0) == 0x2d06800538d394c2ull);
	EXPECT(hash_fp128("", 0).hi == 0x99aa06d3014798d8ull);
	EXPECT(hash_fp128("", 0).lo == 0x6001c324468d497full);
}

struct thing {
	struct hnode node;
	uint64_t key;
};

TEST(hmap, finds_what_was_inserted_and_not_removed)
{
	static struct thing things[1000];
	struct hmap m;
	size_t walked = 0;

	hmap_init(&m);
	for (unsigned i = 0; i < 1000; i++) {
		things[i].key = i;
		hmap_insert(&m, &things[i].node, hash_u64(i % 500));
	}
	for (unsigned i = 0; i < 1000; i += 2)
		hmap_remove(&m, &things[i].node);
	EXPECT_EQ(m.count, 500);
	for (struct hnode *n = hmap_walk(&m, NULL); n; n = hmap_walk(&m, n)) {
		EXPECT(container_of(n, struct thing, node)->key % 2 == 1);
		walked++;
	}
	EXPECT_EQ(walked, 500);
	walked = 0;
	for (struct hnode *n = hmap_first(&m, hash_u64(7)); n; n = hmap_next(n))
		walked++;
	EXPECT_EQ(walked, 2);
	EXPECT(!hmap_first(&m, hash_u64(8)));
	hmap_fini(&m);
}

/* Minutes, if each began at the first slot. */
TEST(hmap, is_emptied_node_by_node)
{
	unsigned n = 500000, taken = 0, again = 0;
	struct thing *things = xcalloc(n, sizeof(*things));
	struct hmap m;

	hmap_init(&m);
	EXPECT(!hmap_take(&m));
	for (unsigned i = 0; i < n; i++)
		hmap_insert(&m, &things[i].node, hash_u64(i));
	for (struct hnode *h; (h = hmap_take(&m)); taken++) {
		container_of(h, struct thing, node)->key++;
		if (taken != n / 2)
			continue;
		for (unsigned i = 0; i < n; i += 3) { /* into what is empty by now */
			if (!things[i].key)
				continue;
			hmap_insert(&m, &things[i].node, hash_u64(i));
			again++;
		}
	}
	EXPECT_EQ(m.count, 0);
	EXPECT(again > n / 10);
	EXPECT_EQ(taken, n + again);
	for (unsigned i = 0; i < n; i++)
		EXPECT(things[i].key == 1 || (things[i].key == 2 && i % 3 == 0));
	EXPECT(!hmap_first(&m, hash_u64(8)));
	hmap_insert(&m, &things[8].node, hash_u64(8));
	EXPECT(hmap_first(&m, hash_u64(8)) && hmap_walk(&m, NULL) && hmap_take(&m) && !hmap_take(&m));
	hmap_fini(&m);
	free(things);
}

static unsigned pool_woken;

static void pool_ready(struct pool_waiter *w)
{
	pool_woken++;
}

TEST(pool, empty_is_back_pressure)
{
	struct pool p;
	struct pool_waiter w = {.ready = pool_ready};
	void *a, *b;

	pool_init(&p, "test", 10, 2);
	a = pool_get(&p);
	b = pool_get(&p);
	EXPECT(a && b && a != b);
	EXPECT(!pool_get(&p));
	pool_wait(&p, &w);
	pool_put(&p, a);
	EXPECT_EQ(pool_woken, 1);
	EXPECT(pool_get(&p) == a);
	pool_put(&p, a);
	pool_put(&p, b);
	pool_fini(&p);
}

TEST(buf, the_limit_holds_and_memory_is_reused)
{
	struct buf_pool *p = buf_pool_create(64 << 10);
	struct buf *a = buf_get(p, 30000), *b;

	EXPECT(a && a->size == 65536);
	EXPECT(!buf_get(p, 1));
	EXPECT_EQ((uintptr_t)a->data % BLOCK_SIZE, 0);
	buf_ref(a);
	buf_unref(a);
	EXPECT(!buf_get(p, 1));
	buf_unref(a);
	b = buf_get(p, 4096); /* another class: the cached one is given back */
	EXPECT(b && b->size == 4096);
	buf_unref(b);
	EXPECT_EQ(buf_pool_used_bytes(p), 0);
	buf_pool_destroy(p);
}

TEST(uuid, text_round_trip)
{
	struct uuid a, b;
	char text[UUID_TEXT];

	uuid_make(&a);
	uuid_format(&a, text);
	EXPECT_OK(uuid_parse(text, &b));
	EXPECT(uuid_equal(&a, &b));
	text[3] = 'x';
	EXPECT_RC(uuid_parse(text, &b), -EINVAL);
	EXPECT_RC(uuid_parse("", &b), -EINVAL);
}

TEST(rng, a_seed_replays)
{
	struct rng a, b;

	rng_seed(&a, 42);
	rng_seed(&b, 42);
	for (int i = 0; i < 100; i++) {
		EXPECT(rng_next(&a) == rng_next(&b));
		EXPECT(rng_below(&a, 10) < 10);
		rng_next(&b);
	}
}

static char steps_trace[64];
static int step_a(void *ctx)
{
	strcat(steps_trace, "a");
	return 0;
}
static void undo_a(void *ctx)
{
	strcat(steps_trace, "A");
}
static int step_b(void *ctx)
{
	strcat(steps_trace, "b");
	return *(int *)ctx;
}
static void undo_b(void *ctx)
{
	strcat(steps_trace, "B");
}

TEST(steps, a_failed_step_undoes_those_before_it)
{
	static const struct step table[] = {{"a", step_a, undo_a}, {"b", step_b, undo_b}};
	int rc = -EIO;
	size_t done;

	EXPECT_RC(steps_run(table, 2, &rc, &done), -EIO);
	EXPECT_STR(steps_trace, "abA");
	steps_trace[0] = 0;
	rc = 0;
	EXPECT_OK(steps_run(table, 2, &rc, &done));
	steps_undo(table, done, &rc);
	EXPECT_STR(steps_trace, "abBA");
}

static int join_rc = 1;
static void join_end(struct wait *w, int rc)
{
	join_rc = rc;
}

TEST(op, join_waits_for_all_and_keeps_the_first_error)
{
	struct wait owner = {join_end};
	struct join j;
	struct wait *part;

	join_init(&j, &owner);
	join_settle(&j, (join_arm(&j), 0));
	EXPECT_EQ(join_done(&j), 0);
	join_init(&j, &owner);
	part = join_arm(&j);
	join_settle(&j, PENDING);
	(void)join_arm(&j);
	join_settle(&j, -EIO);
	EXPECT_EQ(join_done(&j), PENDING);
	wait_resume(part, -ENOSPC);
	EXPECT_EQ(join_rc, -EIO);
}

TEST(json, values_survive_text)
{
	struct json *o = json_object_new(), *back;
	char err[128] = "";
	CLEANUP(free_ptr) char *text = NULL;

	json_put_u64(o, "size_bytes", 1ull << 40);
	json_put_str(o, "name", "disk \"one\"\n");
	json_put_str(o, "bad", "\xff\xfe");
	text = json_print(o, false);
	back = json_parse(text, strlen(text), err, sizeof(err));
	EXPECT(back);
	EXPECT_EQ(json_u64(back, "size_bytes", 0), 1ll << 40);
	EXPECT_STR(json_str(back, "name"), "disk \"one\"\n");
	EXPECT_EQ(json_u64(back, "none", 7), 7);
	json_free(o);
	json_free(back);
	EXPECT(!json_parse("{\"a\":", 5, err, sizeof(err)));
	EXPECT(strstr(err, "line 1"));
}

TEST(text, bytes_for_people)
{
	char out[24];

	EXPECT_STR(bytes_text(0, out), "0 B");
	EXPECT_STR(bytes_text(1023, out), "1023 B");
	EXPECT_STR(bytes_text(1536, out), "1.5 KiB");
	EXPECT_STR(bytes_text(64ull << 40, out), "64.0 TiB");
	EXPECT_STR(bytes_text(UINT64_MAX, out), "16384.0 PiB");
}
