/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of the log half: golden bytes, both directions, and refusal of what is bad. */
#include "store/device.h"
#include "store/header.h"
#include "store/log_format.h"
#include "tests/lib/test.h"

static struct uuid uuid_of(uint8_t first)
{
	struct uuid u;

	for (unsigned i = 0; i < 16; i++)
		u.b[i] = (uint8_t)(first + i);
	return u;
}

TEST(format, superblock)
{
	struct superblock sb = { .role = DEVICE_CACHE, .cluster = uuid_of(0x10), .node = uuid_of(0x20),
				 .group = uuid_of(0x30), .device = uuid_of(0x40), .log = uuid_of(0x50),
				 .group_incarnation = 2, .log_incarnation = 3, .node_incarnation = 4,
				 .index = 7, .group_number = 0x105, .flags = 1, .devices = 3,
				 .size = 0x40000000, .log_start = 0x100000, .log_len = 0x2000000,
				 .data_start = 0, .data_len = 0, .segment_size = 0,
				 .log_segment_size = 0x200000, .sequence = 9,
				 .member[1] = { .device = uuid_of(0x60), .role = DEVICE_CAPACITY,
						.state = MEMBER_FAILED, .size = 0x50000000,
						.data_start = 0x100000, .data_len = 0x4000000 } }, back;
	uint8_t b[BLOCK_SIZE], b2[BLOCK_SIZE];

	superblock_encode(&sb, b);
	EXPECT_GOLDEN(b, 576,
		"4153484c41525342 02000000 01000000			# magic, format, role\n"
		"101112131415161718191a1b1c1d1e1f			# cluster\n"
		"202122232425262728292a2b2c2d2e2f			# node\n"
		"303132333435363738393a3b3c3d3e3f			# group\n"
		"404142434445464748494a4b4c4d4e4f			# device\n"
		"505152535455565758595a5b5c5d5e5f			# log\n"
		"02000000 03000000 04000000 0700 0501			# incarnations, index, number\n"
		"01000000 03000000 0000004000000000			# flags, devices, size\n"
		"0000100000000000 0000000200000000			# log\n"
		"0000000000000000 0000000000000000			# data\n"
		"0000000000000000 0000200000000000 0900000000000000	# segments, sequence\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000			# member 0: none\n"
		"606162636465666768696a6b6c6d6e6f 0200 0100 00000000	# member 1: device, role, state\n"
		"0000005000000000 0000100000000000 0000000400000000	# size, data\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000			# members 2–7: none\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000\n"
		"0000000000000000000000000000000000000000000000000000000000000000 "
		"00000000000000000000000000000000			# and the hash\n"
		"10cad4f454dd4ffa");
	EXPECT_OK(superblock_decode(b, &back));
	superblock_encode(&back, b2);
	EXPECT_MEM(b2, b, BLOCK_SIZE);
	b[100] ^= 1;
	EXPECT_RC(superblock_decode(b, &back), -ERR_CORRUPT);
	b[0] ^= 1;
	EXPECT_RC(superblock_decode(b, &back), -ENODATA);
	/* Regions that lie outside are refused though the hash holds. */
	sb.log_len = 0x80000000;
	superblock_encode(&sb, b);
	EXPECT_RC(superblock_decode(b, &back), -ERR_CORRUPT);
}

TEST(format, log_segment_header)
{
	struct log_segment_header h = { .lane = 1, .lanes = 2, .incarnation = 3, .log = uuid_of(0x50),
					.generation = 0x500000007, .session = 0x500000000, .first_batch = 11,
					.durable = 9, .oldest = 0x500000002, .kv_commit = 77 }, back;
	uint8_t b[BLOCK_SIZE], b2[BLOCK_SIZE];

	log_segment_encode(&h, b);
	EXPECT_GOLDEN(b, LOG_SEGMENT_HEADER_LEN,
		"41534c53 0100 0100 0200 0000 03000000 # magic, format, lane, lanes, incarnation\n"
		"505152535455565758595a5b5c5d5e5f			# log\n"
		"0700000005000000 0000000005000000			# generation, session\n"
		"0b00000000000000 0900000000000000			# first batch, durable\n"
		"0200000005000000 4d00000000000000			# oldest, kv commit\n"
		"fcf239493f957a68");
	EXPECT_OK(log_segment_decode(b, &back));
	log_segment_encode(&back, b2);
	EXPECT_MEM(b2, b, BLOCK_SIZE);
	h.released = true;
	log_segment_encode(&h, b2);
	EXPECT_EQ(get_le32(b2), LOG_RELEASED_MAGIC);
	EXPECT_OK(log_segment_decode(b2, &back));
	EXPECT(back.released);
	b[40] ^= 1;
	EXPECT_RC(log_segment_decode(b, &back), -ERR_CORRUPT);
}

TEST(format, batch_and_record)
{
	struct log_batch_header h = { .header_blocks = 1, .lane = 1, .records = 1, .payload_blocks = 2,
				      .generation = 7, .seq = 5, .durable = 3, .kv_commit = 9, .oldest = 6 };
	struct log_batch_header back;
	struct log_record lr = { .object = 0x1122, .gen = 3, .fp_count = 2,
				 .r = { .kind = RECORD_WRITE, .version = { 4, 100 }, .commit = { 4, 98 },
					.block = 62, .blocks = 4, .skip_mask = 1, .attachment = 8,
					.attach_epoch = 2, .request = 55, .low_water = 50 } }, got;
	struct fp128 fps[2] = { { 1, 2 }, { 3, 4 } };
	uint8_t b[BLOCK_SIZE] = { 0 }, b2[BLOCK_SIZE];
	uint64_t seed;
	struct uuid log = uuid_of(0x50);
	const uint8_t *at;
	struct reader r;

	seed = log_seed(&log, 3);
	EXPECT_EQ(log_record_payload(&lr.r), 2);
	log_record_encode(&lr, fps, b + LOG_BATCH_HEADER_LEN);
	log_batch_seal(&h, b, seed);
	EXPECT_GOLDEN(b, 64 + 80 + 32,
		"41534c42 0100 0100 0100 0100 02000000 # magic … payload blocks\n"
		"0700000000000000 0500000000000000 0300000000000000	# generation, seq, durable\n"
		"0900000000000000 26b39fb025fa51cb 0600000000000000	# kv commit, hash, oldest\n"
		"2211000000000000 03000000 04000000 6400000000000000	# object, generation, tenure, seq\n"
		"04000000 6200000000000000 3e000000 04000000		# commit, first block, blocks\n"
		"08000000 02000000 3700000000000000 3200000000000000 # attachment … low-water\n"
		"01 01 0000 0000000000000000				# kind, skip, flags, zero\n"
		"01000000000000000200000000000000 03000000000000000400000000000000");
	EXPECT_OK(log_batch_peek(b, &back));
	memcpy(b2, b, BLOCK_SIZE);
	memset(b2, 0, LOG_BATCH_HEADER_LEN);
	log_batch_seal(&back, b2, seed);
	EXPECT_MEM(b2, b, BLOCK_SIZE);
	EXPECT_OK(log_batch_verify(b, 1, seed));
	EXPECT_RC(log_batch_verify(b, 1, seed + 1), -ERR_CORRUPT);
	r = reader_init(b + 64, 80 + 32);
	EXPECT_OK(log_record_decode(&r, &got, &at));
	log_record_encode(&got, fps, b2);
	EXPECT_MEM(b2, b + 64, 80 + 32);
	EXPECT(fp128_equal(log_fp(at, 1), fps[1]));
	r = reader_init(b + 64, 80 + 31); /* a byte short */
	EXPECT_RC(log_record_decode(&r, &got, &at), -ERR_CORRUPT);
	b[4000] = 1;
	EXPECT_RC(log_batch_verify(b, 1, seed), -ERR_CORRUPT);
}

TEST(format, copy_record)
{
	struct log_record lr = { .object = 1, .gen = 2, .fp_count = 1,
				 .r = { .kind = RECORD_COPY, .version = { 4, 100 }, .block = 128,
					.blocks = 64, .copy_data = 1, .copy_zero = 2,
					.copy_hole = 4, .copy_damaged = 8 } }, got;
	struct fp128 fp = { 5, 6 };
	uint8_t b[96], b2[96];
	const uint8_t *at;
	struct reader r;

	log_record_encode(&lr, &fp, b);
	EXPECT_GOLDEN(b, 96,
		"0100000000000000 02000000 04000000 6400000000000000\n"
		"00000000 0000000000000000 80000000 40000000\n"
		"0100000000000000 0200000000000000 0400000000000000	# data, zero, hole\n"
		"04 00 0000 0800000000000000				# kind, skip, flags, damaged\n"
		"0500000000000000 0600000000000000");
	r = reader_init(b, sizeof(b));
	EXPECT_OK(log_record_decode(&r, &got, &at));
	log_record_encode(&got, &fp, b2);
	EXPECT_MEM(b2, b, sizeof(b));
	lr.r.copy_zero = 1; /* a block in two masks */
	EXPECT(!log_record_valid(&lr.r));
}

TEST(format, record_limits)
{
	struct record r = { .kind = RECORD_WRITE, .version = { 1, 1 }, .block = 0, .blocks = 256 };

	EXPECT(log_record_valid(&r));
	r.block = 1; /* five pages */
	r.skip_mask = 0x11;
	EXPECT(log_record_valid(&r));
	EXPECT_EQ(log_record_payload(&r), 256 - 63 - 1);
	r.skip_mask = 0x20; /* there is no sixth page */
	EXPECT(!log_record_valid(&r));
	r.skip_mask = 0;
	r.blocks = 257;
	EXPECT(!log_record_valid(&r));
	r.blocks = 2;
	r.block = OBJECT_BLOCKS_MAX - 1;
	EXPECT(!log_record_valid(&r));
	r.kind = RECORD_MARK;
	r.block = 0;
	EXPECT(!log_record_valid(&r));
}

TEST(format, object_header)
{
	struct stored_header s = { .flags = STORED_USED,
				   .h = { .seen = 9, .commit = { 8, 100 }, .epoch_count = 2,
					  .epochs = { { 4, 1 }, { 8, 90 } } },
				   .destaged = { 8, 95 }, .born = 33 }, back;
	struct retry_table t = { 0 }, t2 = { 0 };
	struct writer w = writer_init_heap(), w2 = writer_init_heap();
	struct version v;

	retry_note(&t, 5, 1, 20, 19, (struct version){ 8, 99 });
	retry_note(&t, 5, 1, 21, 19, (struct version){ 8, 101 }); /* above `upto`: stays out */
	stored_header_encode(&s, &t, (struct version){ 8, 100 }, &w);
	EXPECT_GOLDEN(w.data, w.len,
		"41534f48 0100 0100 7a000000 09000000 # magic, format, flags, length, seen\n"
		"08000000 6400000000000000 08000000 5f00000000000000	# commit, destaged\n"
		"2100000000000000 0200					# born, epochs\n"
		"04000000 0100000000000000 08000000 5a00000000000000\n"
		"0100 05000000 01000000 1300000000000000 0100		# one attachment, one number\n"
		"1400000000000000 08000000 6300000000000000\n"
		"2f53f6bff9ef89e5");
	EXPECT_OK(stored_header_decode(w.data, w.len, &back, &t2));
	stored_header_encode(&back, &t2, (struct version){ 8, 100 }, &w2);
	EXPECT_EQ(w2.len, w.len);
	EXPECT_MEM(w2.data, w.data, w.len);
	EXPECT_EQ(retry_lookup(&t2, 5, 1, 20, &v), RETRY_KNOWN);
	EXPECT_EQ(v.seq, 99);
	EXPECT_EQ(retry_lookup(&t2, 5, 1, 21, &v), RETRY_NEW);
	for (size_t i = 0; i < w.len; i++) { /* each byte counts */
		struct stored_header x;

		w.data[i] ^= 0x40;
		EXPECT(stored_header_decode(w.data, w.len, &x, NULL) < 0);
		w.data[i] ^= 0x40;
	}
	for (size_t n = 0; n < w.len; n++) {
		struct stored_header x;

		EXPECT(stored_header_decode(w.data, n, &x, NULL) < 0);
	}
	retry_fini(&t);
	retry_fini(&t2);
	writer_free(&w);
	writer_free(&w2);
}

TEST(format, epoch_table)
{
	struct object_header h = { .epoch_count = 3, .epochs = { { 2, 10 }, { 5, 20 }, { 9, 20 } } };

	EXPECT(epochs_valid(&h));
	EXPECT(epochs_hold(&h, (struct version){ 2, 10 }));
	EXPECT(epochs_hold(&h, (struct version){ 2, 19 }));
	EXPECT(!epochs_hold(&h, (struct version){ 2, 20 }));
	EXPECT(!epochs_hold(&h, (struct version){ 5, 20 })); /* that tenure wrote nothing */
	EXPECT(epochs_hold(&h, (struct version){ 9, 25 }));
	EXPECT(epochs_hold(&h, (struct version){ 1, 9 })); /* before the table */
	EXPECT(!epochs_hold(&h, (struct version){ 5, 9 }));
	h.epochs[2].tenure = 5;
	EXPECT(!epochs_valid(&h));
}

TEST(retry, window_and_low_water)
{
	struct retry_table t = { 0 };
	struct version v;

	for (uint64_t i = 1; i <= RETRY_WINDOW + 10; i++)
		retry_note(&t, 1, 1, i, 0, (struct version){ 1, i });
	EXPECT_EQ(retry_lookup(&t, 1, 1, 10, &v), RETRY_BELOW); /* folded, not forgotten */
	EXPECT_EQ(retry_lookup(&t, 1, 1, 11, &v), RETRY_KNOWN);
	EXPECT_EQ(retry_lookup(&t, 1, 1, RETRY_WINDOW + 11, &v), RETRY_NEW);
	retry_note(&t, 1, 1, 300, 260, (struct version){ 1, 300 });
	EXPECT_EQ(retry_lookup(&t, 1, 1, 259, &v), RETRY_BELOW);
	EXPECT_EQ(retry_lookup(&t, 1, 1, 260, &v), RETRY_KNOWN);
	retry_cut(&t, (struct version){ 1, 299 });
	EXPECT_EQ(retry_lookup(&t, 1, 1, 300, &v), RETRY_NEW);
	/* A newer attach epoch begins afresh, an older one is refused. */
	retry_note(&t, 1, 2, 1, 0, (struct version){ 1, 301 });
	EXPECT_EQ(retry_lookup(&t, 1, 2, 1, &v), RETRY_KNOWN);
	EXPECT_EQ(retry_lookup(&t, 1, 1, 270, &v), RETRY_BELOW);
	for (uint32_t a = 2; a < 2 + RETRY_ATTACHMENTS_MAX; a++)
		retry_note(&t, a, 1, 1, 0, (struct version){ 1, 400 });
	EXPECT_EQ(t.count, RETRY_ATTACHMENTS_MAX);
	EXPECT_EQ(retry_lookup(&t, 1 + RETRY_ATTACHMENTS_MAX, 1, 1, &v), RETRY_KNOWN);
	retry_fini(&t);
}
