/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/rng.h"
#include "store/codec.h"
#include "store/fifo_cache.h"
#include "store/map_format.h"
#include "store/segment.h"
#include "tests/lib/test.h"

static struct map_page sample_page(void)
{
	struct map_page p = {.version = {7, 0x1122334455667788}, .flags = MAP_PAGE_REDUCE_LATER};

	p.mask = 1ull << 0 | 1ull << 5 | 1ull << 63;
	p.entry[0] =
		(struct map_entry){map_entry_word(MAP_RAW, 64, 3, 0x123456000), 0xa1a2a3a4a5a6a7a8};
	p.entry[5] = (struct map_entry){map_entry_word(MAP_LZ4, 9, 7, 0x40), 1};
	p.entry[63] = (struct map_entry){MAP_ZERO, 2};
	return p;
}

TEST(format, map_page)
{
	uint8_t key[MAP_KEY_SIZE], out[MAP_PAGE_MAX];
	struct map_page p = sample_page(), q;
	size_t n;

	map_key_encode(key, 0x0102030405060708, 0x0a0b0c0d);
	EXPECT_GOLDEN(key, sizeof(key), "0102030405060708 0a0b0c0d 00000000");
	n = map_page_encode(out, key, &p);
	EXPECT_GOLDEN(out, n,
		      "01020000f1f1906a 0700000000000000 8877665544332211"
		      "2100000000000080 2100000000000080 fa012b1a09000600"
		      "a8a7a6a5a4a3a2a1 4302000000000e00 0100000000000000"
		      "0100000000000000 0200000000000000");
	EXPECT_OK(map_page_decode(out, n, key, &q));
	EXPECT_MEM(&p, &q, sizeof(p));
	/* No single bit may change unnoticed, nor the key. */
	for (size_t i = 0; i < n * 8; i++) {
		out[i / 8] ^= (uint8_t)(1u << i % 8);
		EXPECT(map_page_decode(out, n, key, &q) < 0);
		out[i / 8] ^= (uint8_t)(1u << i % 8);
	}
	for (size_t i = 0; i < n; i++)
		EXPECT(map_page_decode(out, i, key, &q) < 0);
	key[11] ^= 1;
	EXPECT(map_page_decode(out, n, key, &q) < 0);
}

TEST(format, map_operand)
{
	uint8_t out[MAP_OPERAND_MAX];
	struct map_page p = sample_page();
	size_t n = map_operand_encode(out, &p, 1ull << 5 | 1ull << 6);

	EXPECT_GOLDEN(out, n,
		      "81 02 0000 07000000 8877665544332211 6000000000000000"
		      "4302000000000e00 0100000000000000"
		      "0000000000000000 0000000000000000");
}

TEST(format, small_rows)
{
	uint8_t out[64], key[REGION_KEY_SIZE];
	struct map_region r = {0x8000000000000001, 0x1234}, r2;
	struct share_row s = {MAP_RAW | 63u << 3 | 5u << 9, {1, 2}, 7, 4, 5}, s2;
	struct meta_row m = {.group_incarnation = 9, .commit = 0x1000}, m2;

	region_key_encode(key, 0x10, 2);
	EXPECT_GOLDEN(key, sizeof(key), "0000000000000010 00000002");
	region_encode(out, &r);
	EXPECT_GOLDEN(out, REGION_VALUE_SIZE, "0100000000000080 3412000000000000");
	EXPECT_OK(region_decode(out, REGION_VALUE_SIZE, &r2));
	EXPECT_MEM(&r, &r2, sizeof(r));
	EXPECT(region_decode(out, REGION_VALUE_SIZE - 1, &r2) < 0);
	share_encode(out, &s);
	EXPECT_GOLDEN(
		out, SHARE_VALUE_SIZE,
		"fa0b000000000000 0100000000000000 0200000000000000 07000000 04000000 05000000");
	EXPECT_OK(share_decode(out, SHARE_VALUE_SIZE, &s2));
	EXPECT_EQ(s2.owner_refs, 5);
	out[24] = 4; /* fewer references than the owner has */
	EXPECT(share_decode(out, SHARE_VALUE_SIZE, &s2) < 0);
	out[24] = 7;
	out[0] ^= 3; /* zero blocks have no place */
	EXPECT(share_decode(out, SHARE_VALUE_SIZE, &s2) < 0);
	EXPECT_EQ(map_share_id(map_share_word(0x123456789a)), 0x123456789a);
	EXPECT_EQ(map_entry_kind(map_share_word(1)), MAP_SHARE);
	sloc_key_encode(out, 0x20000001, 3);
	EXPECT_GOLDEN(out, 8, "20000001 00000003");
	for (unsigned i = 0; i < 16; i++)
		m.group.b[i] = (uint8_t)i;
	meta_encode(out, &m);
	EXPECT_GOLDEN(out, META_VALUE_SIZE,
		      "0100000009000000 0001020304050607 08090a0b0c0d0e0f"
		      "0010000000000000 c10805184b2c9d37");
	EXPECT_OK(meta_decode(out, META_VALUE_SIZE, &m2));
	EXPECT_EQ(m2.commit, 0x1000);
	out[24] ^= 1;
	EXPECT(meta_decode(out, META_VALUE_SIZE, &m2) < 0);
}

TEST(format, object_row)
{
	struct object_row o = {.gen = 2,
			       .volume = 3,
			       .flags = OBJECT_DEDUP | OBJECT_REDUCE_LATER,
			       .state = OBJECT_LIVE,
			       .counters = {4, 5, 6, 7, 8},
			       .reduced = 9,
			       .header = (const uint8_t *)"head",
			       .header_len = 4},
			  o2;
	struct writer w = writer_init_heap();

	object_row_encode(&w, 99, &o);
	EXPECT_GOLDEN(w.data, w.len,
		      "0301050002000000 0300000004000000 0400000000000000"
		      "0500000000000000 0600000000000000 0700000000000000"
		      "0800000000000000 0900000000000000 68656164c30b4ca6 dbe919e4");
	EXPECT_OK(object_row_decode(w.data, w.len, 99, &o2));
	EXPECT_EQ(o2.counters.stored, 6);
	EXPECT_EQ(o2.reduced, 9);
	EXPECT_MEM(o2.header, "head", 4);
	EXPECT(object_row_decode(w.data, w.len, 98, &o2) < 0);
	for (size_t i = 0; i < w.len; i++) {
		w.data[i] ^= 0x10;
		EXPECT(object_row_decode(w.data, w.len, 99, &o2) < 0);
		w.data[i] ^= 0x10;
	}
	writer_free(&w);
}

TEST(format, segment_header)
{
	static uint8_t out[SEGMENT_HEADER_SIZE];
	struct segment_header h = {.group_incarnation = 1,
				   .id = 0x20000003,
				   .stream = STREAM_GC,
				   .generation = 77,
				   .kv_commit = 88},
			      h2;

	h.group.b[0] = 0xaa;
	segment_header_encode(out, &h);
	EXPECT_GOLDEN(out, 64,
		      "4153484c44534547 0100000001000000 aa00000000000000"
		      "0000000000000000 0100000003000020 4d00000000000000"
		      "5800000000000000 6eb886aec3012ccb");
	EXPECT_OK(segment_header_decode(out, &h2));
	EXPECT_EQ(h2.generation, 77);
	out[41] ^= 1;
	EXPECT(segment_header_decode(out, &h2) < 0);
	memset(out, 0, sizeof(out));
	EXPECT_RC(segment_header_decode(out, &h2), -ENODATA);
}

TEST(format, unit_summary)
{
	static uint8_t out[BLOCK_SIZE];
	struct unit_header h = {.entries = 2,
				.summary_bytes = 4096,
				.bytes = 12288,
				.segment = 0x20000003,
				.position = 5,
				.group_incarnation = 1,
				.generation = 77,
				.kv_commit = 88},
			   h2;
	struct unit_entry e[2] =
		{
			{1, 2, 3, {4, 5}, {6, 7}, 4096, 64, MAP_RAW},
			{8, 9, 10, {11, 12}, {13, 14}, 8192 + 128, 3, MAP_LZ4},
		},
			  e2;

	unit_summary_encode(out, &h, e);
	EXPECT_GOLDEN(out, 64 + 96,
		      "4153554e01000200 0010000000300000 0300002005000000"
		      "4d00000000000000 5800000000000000 0100000000000000"
		      "0000000000000000 8cd5fc68d773827d 0100000000000000"
		      "0200000003000000 0400000005000000 0000000006000000"
		      "0000000007000000 0000000040004002 0800000000000000"
		      "090000000a000000 0b0000000c000000 000000000d000000"
		      "000000000e000000 0000000082000303");
	EXPECT_OK(unit_summary_decode(out, sizeof(out), &h2));
	EXPECT_MEM(&h, &h2, sizeof(h));
	EXPECT_OK(unit_entry_decode(out, &h2, 1, &e2));
	EXPECT_EQ(e2.offset, 8192 + 128);
	EXPECT_EQ(e2.version.seq, 12);
	for (size_t i = 0; i < 64 + 96; i++) {
		out[i] ^= 4;
		EXPECT(unit_summary_decode(out, sizeof(out), &h2) < 0);
		out[i] ^= 4;
	}
}

static bool two_rows(void *arg, uint32_t *id, struct segment *out)
{
	unsigned *n = arg;

	if (*n == 2)
		return false;
	*id = *n;
	*out = (struct segment){.live = 4096 + *n,
				.fill = 65536,
				.summaries = 8192,
				.padding = 960,
				.generation = 5 + *n,
				.state = SEGMENT_SEALED,
				.stream = STREAM_GC};
	++*n;
	return true;
}

TEST(format, segment_rows)
{
	struct writer w = writer_init_heap();
	unsigned n = 0;

	segment_rows_encode(&w, 9, 2, two_rows, &n);
	EXPECT_GOLDEN(w.data, w.len,
		      "0200000002000000 0900000000000000 0000000000100000"
		      "0500000000000000 02010000 00000100 00200000 c0030000"
		      "0100000001100000 0600000000000000 02010000 00000100"
		      "00200000 c0030000 dfbf6dee7f0c8c24");
	writer_free(&w);
}

TEST(codec, returns_what_it_got)
{
	uint8_t in[BLOCK_SIZE], packed[CODEC_UNITS_MAX * CODEC_UNIT], out[BLOCK_SIZE];
	struct rng r;

	rng_seed(&r, 1);
	for (unsigned len = 0; len <= BLOCK_SIZE; len += 128) {
		unsigned units;

		memset(in, 0, sizeof(in));
		rng_fill(&r, in, len);
		units = codec_compress(in, packed);
		EXPECT(units <= CODEC_UNITS_MAX);
		EXPECT(units || len > 3000);
		if (!units)
			continue;
		EXPECT_OK(codec_decompress(packed, units, out));
		EXPECT_MEM(in, out, BLOCK_SIZE);
		packed[1] = 0xff; /* a length past the end */
		EXPECT(codec_decompress(packed, units, out) < 0);
	}
}

/* ---- Merge -------------------------------------------------------------------------------------
 */

struct op {
	uint8_t bytes[MAP_OPERAND_MAX];
	size_t len;
};

static struct map_page random_page(struct rng *r, uint64_t seq)
{
	struct map_page p = {.version = {1, seq}};

	p.mask = rng_next(r);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (p.mask >> i & 1)
			p.entry[i] = (struct map_entry){
				map_entry_word(MAP_LZ4, 1 + (unsigned)rng_below(r, 56), 1,
					       rng_below(r, 1u << 30) * 64),
				rng_next(r)};
	return p;
}

/* Merges ops[from, to) into one operand, in random groups. */
static struct op merge_group(struct rng *r, const struct op *ops, unsigned n)
{
	const void *in[2];
	size_t lens[2];
	struct op a, b, out;
	unsigned cut;

	if (n == 1)
		return ops[0];
	cut = 1 + (unsigned)rng_below(r, n - 1);
	a = merge_group(r, ops, cut);
	b = merge_group(r, ops + cut, n - cut);
	in[0] = a.bytes;
	in[1] = b.bytes;
	lens[0] = a.len;
	lens[1] = b.len;
	out.len = map_merge_partial(out.bytes, in, lens, 2);
	return out;
}

TEST(merge, any_grouping_gives_the_same_page)
{
	struct rng r;

	rng_seed(&r, 3);
	for (unsigned round = 0; round < 300; round++) {
		uint8_t key[MAP_KEY_SIZE], base[MAP_PAGE_MAX], whole[MAP_PAGE_MAX],
			other[MAP_PAGE_MAX];
		struct map_page model = {0}, got;
		struct op ops[12], joined[12];
		const void *in[12];
		size_t lens[12], base_len = 0, n_whole, n_other;
		unsigned n = 1 + (unsigned)rng_below(&r, 12), groups = 0;

		map_key_encode(key, rng_next(&r), 3);
		if (round % 3) {
			model = random_page(&r, 1);
			base_len = map_page_encode(base, key, &model);
		}
		for (unsigned i = 0; i < n; i++) {
			struct map_page p = random_page(&r, 2 + i);
			uint64_t mask = rng_next(&r) & rng_next(&r);

			ops[i].len = map_operand_encode(ops[i].bytes, &p, mask);
			in[i] = ops[i].bytes;
			lens[i] = ops[i].len;
			model.version = p.version;
			for (unsigned b = 0; b < PAGE_BLOCKS; b++)
				if (mask >> b & 1) {
					model.entry[b] = p.entry[b]; /* zeros when it has none */
					model.mask =
						(model.mask & ~(1ull << b)) | (p.mask & 1ull << b);
				}
		}
		n_whole = map_merge_full(whole, key, sizeof(key), base_len ? base : NULL, base_len,
					 in, lens, n);
		EXPECT_OK(map_page_decode(whole, n_whole, key, &got));
		EXPECT_MEM(&got, &model, sizeof(got));
		for (unsigned at = 0; at < n; groups++) {
			unsigned k = 1 + (unsigned)rng_below(&r, n - at);

			joined[groups] = merge_group(&r, ops + at, k);
			in[groups] = joined[groups].bytes;
			lens[groups] = joined[groups].len;
			at += k;
		}
		n_other = map_merge_full(other, key, sizeof(key), base_len ? base : NULL, base_len,
					 in, lens, groups);
		EXPECT_EQ(n_whole, n_other);
		EXPECT_MEM(whole, other, n_whole);
	}
}

TEST(merge, bad_input_becomes_damage_never_a_hole)
{
	uint8_t key[MAP_KEY_SIZE], base[MAP_PAGE_MAX], out[MAP_PAGE_MAX], part[MAP_OPERAND_MAX];
	struct map_page p = sample_page(), got;
	struct op op;
	const void *in[2] = {op.bytes, "junk"};
	size_t lens[2], n;

	map_key_encode(key, 1, 1);
	n = map_page_encode(base, key, &p);
	op.len = map_operand_encode(op.bytes, &p, 1);
	lens[0] = op.len;
	lens[1] = 4;
	base[50] ^= 1;
	n = map_merge_full(out, key, sizeof(key), base, n, in, lens, 1);
	EXPECT_OK(map_page_decode(out, n, key, &got));
	EXPECT(got.flags & MAP_PAGE_DAMAGED);
	EXPECT_EQ(map_entry_kind(got.entry[0].word), MAP_RAW); /* the operand's entry stands */
	for (unsigned i = 1; i < PAGE_BLOCKS; i++)
		EXPECT_EQ(map_entry_kind(got.entry[i].word), MAP_DAMAGED);
	n = map_merge_full(out, key, sizeof(key), NULL, 0, in, lens, 2);
	EXPECT_OK(map_page_decode(out, n, key, &got));
	EXPECT(got.flags & MAP_PAGE_DAMAGED && got.mask == ~0ull);
	/* The same through a partial merge. */
	lens[0] = map_merge_partial(part, in, lens, 2);
	in[0] = part;
	n = map_merge_full(out, key, sizeof(key), NULL, 0, in, lens, 1);
	EXPECT_OK(map_page_decode(out, n, key, &got));
	EXPECT(got.flags & MAP_PAGE_DAMAGED && got.mask == ~0ull);
}

TEST(fifo_cache, stays_in_its_limit_and_keeps_what_is_used)
{
	struct fifo_cache c;
	unsigned hot = 0;

	fifo_cache_init(&c, 100, 200 * 200);
	for (uint64_t i = 0; i < 20000; i++) {
		uint64_t *p;

		if (i % 4 == 0) { /* twenty keys come again and again among a scan */
			p = fifo_cache_get(&c, (struct fifo_key){1, i / 4 % 20});
			hot += p != NULL;
			if (p)
				EXPECT_EQ(*p, i / 4 % 20);
			else
				*(uint64_t *)fifo_cache_put(&c, (struct fifo_key){1, i / 4 % 20}) =
					i / 4 % 20;
		} else {
			fifo_cache_put(&c, (struct fifo_key){2, i});
		}
		EXPECT(c.count <= c.capacity);
	}
	EXPECT(hot > 4500);
	fifo_cache_drop(&c, (struct fifo_key){1, 3});
	EXPECT(!fifo_cache_peek(&c, (struct fifo_key){1, 3}));
	fifo_cache_fini(&c);
}
