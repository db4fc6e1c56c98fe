/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the data plane: golden bytes, round trips, and what decoders refuse. */
#include "cluster/replica_msg.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"

static const struct msg_key key = {.object = 0x0000000700000003ull, .tenure = 5, .join = 9};

#define BODY(call)                                                                                 \
	static uint8_t body[65536];                                                                \
	struct writer w = writer_init(body, sizeof(body));                                         \
	call;                                                                                      \
	EXPECT(!w.bad)

TEST(replica_msg, beacon_and_fence_have_their_bytes)
{
	struct msg_fence f = {.object = 0x0102030405060708ull, .seen = 0x11223344}, back;
	struct reader r;
	uint64_t t;

	BODY(msg_beacon_encode(0x1122334455667788ull, &w));
	EXPECT_GOLDEN(body, w.len, "88 77 66 55 44 33 22 11");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_beacon_decode(&r, &t));
	EXPECT(t == 0x1122334455667788ull);
	w.len = 0;
	msg_fence_encode(&f, &w);
	EXPECT_GOLDEN(body, w.len, "08 07 06 05 04 03 02 01  44 33 22 11");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_fence_decode(&r, &back));
	EXPECT(back.object == f.object && back.seen == f.seen);
	r = reader_init(body, w.len - 1);
	EXPECT_RC(msg_fence_decode(&r, &back), -ERR_PROTOCOL);
}

TEST(replica_msg, join_has_its_bytes)
{
	struct msg_join m = {.key = key,
			     .gen = 2,
			     .group_incarnation = 4,
			     .group = 6,
			     .syncing = true,
			     .last = {5, 100},
			     .commit = {3, 99},
			     .epoch_count = 2,
			     .epochs = {{3, 1}, {5, 100}}},
			back;
	struct reader r;

	BODY(msg_join_encode(&m, &w));
	EXPECT_GOLDEN(body, w.len,
		      "03 00 00 00 07 00 00 00  05 00 00 00  09 00 00 00 " /* key */
		      "02 00 00 00  01 02  06 00  04 00 00 00 "
		      "05 00 00 00 64 00 00 00 00 00 00 00 "
		      "03 00 00 00 63 00 00 00 00 00 00 00 "
		      "03 00 00 00 01 00 00 00 00 00 00 00  05 00 00 00 64 00 00 00 00 00 00 00");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_join_decode(&r, &back));
	EXPECT_EQ(body[20], 1);
	body[20] = 3;
	r = reader_init(body, w.len);
	EXPECT_OK(msg_join_decode(&r, &back));
	EXPECT(back.unsure);
	body[20] = 4; /* a flag of nobody's */
	r = reader_init(body, w.len);
	EXPECT_RC(msg_join_decode(&r, &back), -ERR_PROTOCOL);
	body[20] = 1;
	r = reader_init(body, w.len);
	EXPECT_OK(msg_join_decode(&r, &back));
	EXPECT(!back.unsure);
	EXPECT(back.gen == 2 && back.group == 6 && back.group_incarnation == 4 && back.syncing &&
	       back.epoch_count == 2 && back.epochs[1].first_seq == 100 &&
	       version_eq(back.last, m.last) && version_eq(back.commit, m.commit));
}

TEST(replica_msg, join_with_a_wrong_epoch_table_is_refused)
{
	struct msg_join m = {.key = key,
			     .gen = 1,
			     .last = {5, 100},
			     .commit = {5, 100},
			     .epoch_count = 2,
			     .epochs = {{3, 50}, {5, 50}}},
			back;
	struct reader r;

	{
		BODY(msg_join_encode(&m, &w)); /* first seqs do not rise */
		r = reader_init(body, w.len);
		EXPECT_RC(msg_join_decode(&r, &back), -ERR_PROTOCOL);
	}
	m.epochs[1].first_seq = 60;
	m.epochs[1].tenure = 4; /* does not end with the primary's tenure */
	{
		BODY(msg_join_encode(&m, &w));
		r = reader_init(body, w.len);
		EXPECT_RC(msg_join_decode(&r, &back), -ERR_PROTOCOL);
	}
	m.epochs[1].tenure = 5;
	m.commit.seq = 101; /* beyond its own log */
	{
		BODY(msg_join_encode(&m, &w));
		r = reader_init(body, w.len);
		EXPECT_RC(msg_join_decode(&r, &back), -ERR_PROTOCOL);
	}
}

TEST(replica_msg, joined_and_stale_have_their_bytes)
{
	struct msg_joined m = {
		.key = key, .status = 1, .reason = NAK_GAP, .last = {5, 7}, .commit = {5, 6}};
	static struct msg_joined back;
	struct msg_stale s = {.key = key, .seen = 8}, sback;
	struct reader r;

	BODY(msg_joined_encode(&m, &w));
	EXPECT_GOLDEN(body, w.len,
		      "03 00 00 00 07 00 00 00  05 00 00 00  09 00 00 00  01 02 00 00 "
		      "05 00 00 00 07 00 00 00 00 00 00 00  05 00 00 00 06 00 00 00 00 00 00 00");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_joined_decode(&r, &back));
	EXPECT(back.status == 1 && back.reason == NAK_GAP && back.last.seq == 7);
	w.len = 0;
	m.fold_count = 2;
	m.folds[1] = 0x0123456789abcdefull;
	msg_joined_encode(&m, &w);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_joined_decode(&r, &back));
	EXPECT(back.fold_count == 2 && back.folds[1] == m.folds[1]);
	w.len = 0;
	msg_stale_encode(&s, &w);
	EXPECT_GOLDEN(body, w.len,
		      "03 00 00 00 07 00 00 00  05 00 00 00  09 00 00 00  08 00 00 00");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_stale_decode(&r, &sback));
	EXPECT_EQ(sback.seen, 8);
}

TEST(replica_msg, replicate_has_its_bytes)
{
	struct msg_replicate m = {.key = key,
				  .fp_count = 1,
				  .record = {.kind = RECORD_WRITE,
					     .version = {5, 101},
					     .commit = {5, 100},
					     .block = 63,
					     .blocks = 2,
					     .skip_mask = 2,
					     .attachment = 0x11,
					     .attach_epoch = 0x12,
					     .request = 0x13,
					     .low_water = 0x14}},
			     back;
	struct fp128 fp = {0xa1, 0xa2}, out;
	struct reader r;

	BODY(msg_replicate_encode(&m, &fp, &w));
	EXPECT_GOLDEN(body, w.len,
		      "03 00 00 00 07 00 00 00  05 00 00 00  09 00 00 00  01 02 01 00 "
		      "05 00 00 00 64 00 00 00 00 00 00 00  05 00 00 00 65 00 00 00 00 00 00 00 "
		      "3f 00 00 00  02 00 00 00  11 00 00 00  12 00 00 00 "
		      "13 00 00 00 00 00 00 00  14 00 00 00 00 00 00 00 "
		      "a1 00 00 00 00 00 00 00  a2 00 00 00 00 00 00 00");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_replicate_decode(&r, BLOCK_SIZE, &back));
	msg_fps(&back, &out);
	EXPECT(fp128_equal(out, fp) && back.record.request == 0x13 && back.record.skip_mask == 2);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_replicate_decode(&r, 2 * BLOCK_SIZE, &back), -ERR_PROTOCOL);
}

TEST(replica_msg, copy_and_complete_travel)
{
	struct msg_replicate m = {.key = key,
				  .fp_count = 2,
				  .record = {.kind = RECORD_COPY,
					     .version = {5, 1},
					     .block = 128,
					     .blocks = 64,
					     .copy_data = 3,
					     .copy_zero = 4,
					     .copy_hole = 8,
					     .copy_damaged = 16}};
	struct msg_replicate back;
	struct fp128 fps[2] = {{1, 2}, {3, 4}};
	struct reader r;

	BODY(msg_replicate_encode(&m, fps, &w));
	EXPECT_EQ(w.len, 16 + 4 + 24 + 32 + 32 + 32);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_replicate_decode(&r, 2 * BLOCK_SIZE, &back));
	EXPECT(back.record.copy_hole == 8 && back.record.copy_damaged == 16);
	w.len = 0;
	m.record.copy_zero = 1; /* a block cannot be both */
	msg_replicate_encode(&m, fps, &w);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_replicate_decode(&r, 2 * BLOCK_SIZE, &back), -ERR_PROTOCOL);
	w.len = 0;
	m = (struct msg_replicate){.key = key,
				   .record = {.kind = RECORD_COMPLETE, .version = {5, 9}},
				   .retry = (const uint8_t *)"abc",
				   .retry_len = 3};
	msg_replicate_encode(&m, NULL, &w);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_replicate_decode(&r, 0, &back));
	EXPECT(back.retry_len == 3 && !memcmp(back.retry, "abc", 3));
}

TEST(replica_msg, ranges_are_checked)
{
	struct msg_replicate m = {.key = key,
				  .record = {.kind = RECORD_TRIM,
					     .version = {5, 1},
					     .block = OBJECT_BLOCKS_MAX - 1,
					     .blocks = 2}},
			     back;
	struct reader r;

	BODY(msg_replicate_encode(&m, NULL, &w));
	r = reader_init(body, w.len);
	EXPECT_RC(msg_replicate_decode(&r, 0, &back), -ERR_PROTOCOL);
	w.len = 0;
	m.record.blocks = 1;
	msg_replicate_encode(&m, NULL, &w);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_replicate_decode(&r, 0, &back));
	w.len = 0;
	m.record.skip_mask = 2; /* the range touches one page */
	msg_replicate_encode(&m, NULL, &w);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_replicate_decode(&r, 0, &back), -ERR_PROTOCOL);
	w.len = 0;
	m.record.skip_mask = 0;
	m.record.kind = RECORD_EPOCH; /* never travels */
	msg_replicate_encode(&m, NULL, &w);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_replicate_decode(&r, 0, &back), -ERR_PROTOCOL);
}

TEST(replica_msg, ack_has_its_bytes)
{
	static struct msg_ack m = {.fill = 0x1000,
				   .destage_rate = 7,
				   .credit_count = 1,
				   .entry_count = 1,
				   .credits = {{.group = 3, .full = true, .granted = 0x44}},
				   .entries = {{.durable = {5, 6}, .copies = 2, .bytes = 0x55}}},
			      back;
	struct reader r;

	m.entries[0].key = key;
	BODY(msg_ack_encode(&m, &w));
	EXPECT_GOLDEN(body, w.len,
		      "00 10 01 00 01 00 00 00 07 00 00 00  03 00 01 00 44 00 00 00 00 00 00 00 "
		      "03 00 00 00 07 00 00 00  05 00 00 00  09 00 00 00 "
		      "05 00 00 00 06 00 00 00 00 00 00 00  02 00 00 00  55 00 00 00 00 00 00 00");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_ack_decode(&r, &back));
	EXPECT(back.credits[0].full && back.entries[0].bytes == 0x55);
	put_le16(body + 4, MSG_ACK_ENTRIES_MAX + 1);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_ack_decode(&r, &back), -ERR_PROTOCOL);
}

TEST(replica_msg, versions_and_manifest_travel)
{
	static struct msg_versions v = {.region = 3, .answer = true, .damaged = 5}, vback;
	static struct msg_manifest x = {.page = 70,
					.answer = true,
					.version = {5, 6},
					.data = 6,
					.zero = 1,
					.hole = ~15ull,
					.damaged = 8},
				   xback;
	struct reader r;

	v.versions[63] = (struct version){1, 2};
	x.fp64[1] = 11;
	x.fp64[2] = 12;
	BODY(msg_versions_encode(&v, &w));
	EXPECT_EQ(w.len, 16 + 5 + 8 + 12 * 64);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_versions_decode(&r, &vback));
	EXPECT(vback.versions[63].seq == 2 && vback.damaged == 5 && vback.region == 3);
	w.len = 0;
	msg_manifest_encode(&x, &w);
	EXPECT_EQ(w.len, 16 + 5 + 12 + 32 + 16);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_manifest_decode(&r, &xback));
	EXPECT(xback.fp64[1] == 11 && xback.fp64[2] == 12);
	w.len = 0;
	x.hole |= 8; /* not a partition */
	msg_manifest_encode(&x, &w);
	r = reader_init(body, w.len);
	EXPECT_RC(msg_manifest_decode(&r, &xback), -ERR_PROTOCOL);
}

TEST(replica_msg, damaged_travels)
{
	struct msg_damaged m = {.key = key, .page = 7, .blocks = 0x8000000000000001}, back;
	struct reader r;

	BODY(msg_damaged_encode(&m, &w));
	EXPECT_GOLDEN(body + MSG_KEY_SIZE, w.len - MSG_KEY_SIZE, "07000000 0100000000000080");
	r = reader_init(body, w.len);
	EXPECT_OK(msg_damaged_decode(&r, &back));
	EXPECT(back.page == 7 && back.blocks == m.blocks);
}

TEST(replica_msg, repair_travels)
{
	struct msg_repair_read q = {.key = key,
				    .ticket = 77,
				    .block = 5,
				    .blocks = 2,
				    .commit = {5, 6}},
			       qback;
	static struct msg_repair_data d = {.ticket = 77,
					   .found = true,
					   .fp_count = 1,
					   .fps = {{1, 2}}},
				      dback;
	struct reader r;

	d.key = key;
	BODY(msg_repair_read_encode(&q, &w));
	r = reader_init(body, w.len);
	EXPECT_OK(msg_repair_read_decode(&r, &qback));
	EXPECT(qback.ticket == 77 && qback.blocks == 2);
	w.len = 0;
	msg_repair_data_encode(&d, &w);
	r = reader_init(body, w.len);
	EXPECT_OK(msg_repair_data_decode(&r, BLOCK_SIZE, &dback));
	r = reader_init(body, w.len);
	EXPECT_RC(msg_repair_data_decode(&r, 0, &dback), -ERR_PROTOCOL);
}

/* Whatever the bytes, decoders end within them; ASan watches. */
TEST(replica_msg, noise_is_refused_or_taken_but_never_overruns)
{
	struct rng rng;

	rng_seed(&rng, 3);
	for (unsigned i = 0; i < 50000; i++) {
		size_t len = rng_below(&rng, 400);
		uint8_t *b = xmalloc(len + 1);
		static union {
			struct msg_join join;
			struct msg_joined joined;
			struct msg_replicate replicate;
			struct msg_ack ack;
			struct msg_versions versions;
			struct msg_manifest manifest;
			struct msg_repair_data repair;
		} m;
		struct reader r = reader_init(b, len);
		int rc = 0;

		rng_fill(&rng, b, len);
		if (len > 24 && rng_chance(&rng, 0.7))
			b[16] %= 8;
		switch (i % 7) {
		case 0:
			rc = msg_join_decode(&r, &m.join);
			break;
		case 1:
			rc = msg_joined_decode(&r, &m.joined);
			break;
		case 2:
			rc = msg_replicate_decode(&r, 0, &m.replicate);
			break;
		case 3:
			rc = msg_ack_decode(&r, &m.ack);
			break;
		case 4:
			rc = msg_versions_decode(&r, &m.versions);
			break;
		case 5:
			rc = msg_manifest_decode(&r, &m.manifest);
			break;
		case 6:
			rc = msg_repair_data_decode(&r, 0, &m.repair);
			break;
		}
		EXPECT(rc == 0 || rc == -ERR_PROTOCOL);
		free(b);
	}
}
