/* SPDX-License-Identifier: Apache-2.0 */
/* The codec: golden bytes, every field there and back, and nothing a peer sends gets past it. */
#include "cluster/consensus_guards.h"
#include "cluster/consensus_message.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"

static void add(struct raft_configuration *c, uint64_t id, const char *address, int role)
{
	EXPECT_EQ(raft_configuration_add(c, id, address, role), 0);
}

static struct writer encode(const struct raft_message *m)
{
	struct writer w = writer_init_heap();

	EXPECT_OK(message_encode(m, MESSAGE_APPEND_BYTES_MAX, &w));
	return w;
}

/* Encodes, compares with the golden bytes, decodes. */
static void there_and_back(const struct raft_message *m, const char *golden,
			   struct raft_message *out)
{
	struct writer w = encode(m);

	EXPECT_GOLDEN(w.data, w.len, golden);
	EXPECT_OK(message_decode(w.data, w.len, 7, out));
	EXPECT_EQ(out->type, m->type);
	/* Cut anywhere, or with a byte too many, it is refused. */
	for (size_t n = 0; n < w.len; n++) {
		struct raft_message cut;
		CLEANUP(free_ptr) uint8_t *exact = xmalloc(n ? n : 1);

		memcpy(exact, w.data, n);
		EXPECT_RC(message_decode(exact, n, 7, &cut), -ERR_PROTOCOL);
	}
	write_u8(&w, 0);
	EXPECT_RC(message_decode(w.data, w.len, 7, &(struct raft_message){0}), -ERR_PROTOCOL);
	w.data[0] = 2;
	EXPECT_RC(message_decode(w.data, w.len, 7, &(struct raft_message){0}), -ERR_VERSION);
	writer_free(&w);
}

TEST(message, append_entries)
{
	struct raft_configuration conf;
	struct raft_entry e[3] = {
		{.term = 2, .type = RAFT_COMMAND, .buf = {(char *)"abc", 3}},
		{.term = 3, .type = RAFT_BARRIER, .buf = {(char *)"\0\0\0\0\0\0\0\0", 8}},
		{.term = 3, .type = RAFT_CHANGE},
	};
	struct raft_message m = {.type = RAFT_IO_APPEND_ENTRIES,
				 .append_entries = {.term = 4,
						    .prev_log_index = 0x0102,
						    .prev_log_term = 2,
						    .leader_commit = 9,
						    .entries = e,
						    .n_entries = 3}};
	struct raft_message out;

	raft_configuration_init(&conf);
	add(&conf, 7, "7", RAFT_VOTER);
	EXPECT_OK(configuration_encode(&conf, &e[2].buf));
	there_and_back(&m,
		       "0100 0100 0400000000000000 0201000000000000 0200000000000000 "
		       "0900000000000000 03000000"
		       "0200000000000000 01 03000000 616263"
		       "0300000000000000 02 08000000 0000000000000000"
		       "0300000000000000 03 18000000 01 0100000000000000 0700000000000000 3700 01 "
		       "00000000",
		       &out);
	EXPECT_EQ(out.append_entries.term, 4);
	EXPECT_EQ(out.append_entries.prev_log_index, 0x0102);
	EXPECT_EQ(out.append_entries.prev_log_term, 2);
	EXPECT_EQ(out.append_entries.leader_commit, 9);
	EXPECT_EQ(out.append_entries.n_entries, 3);
	for (unsigned i = 0; i < 3; i++) {
		const struct raft_entry *x = &out.append_entries.entries[i];

		EXPECT_EQ(x->term, e[i].term);
		EXPECT_EQ(x->type, e[i].type);
		EXPECT_EQ(x->buf.len, e[i].buf.len);
		EXPECT_MEM(x->buf.base, e[i].buf.base, e[i].buf.len);
		EXPECT(x->batch == out.append_entries.entries[0].batch);
	}
	message_free(&out);
	raft_free(e[2].buf.base);
	raft_configuration_close(&conf);
}

TEST(message, heartbeat_has_no_array)
{
	struct raft_message m = {
		.type = RAFT_IO_APPEND_ENTRIES,
		.append_entries = {.term = 1, .prev_log_index = 5, .prev_log_term = 1}};
	struct raft_message out;

	there_and_back(&m,
		       "0100 0100 0100000000000000 0500000000000000 0100000000000000 "
		       "0000000000000000 00000000",
		       &out);
	EXPECT(out.append_entries.entries == NULL);
	EXPECT_EQ(out.append_entries.n_entries, 0);
}

TEST(message, append_result)
{
	struct raft_message out,
		m = {.type = RAFT_IO_APPEND_ENTRIES_RESULT, .append_entries_result = {1, 2, 3}};

	there_and_back(&m, "0100 0200 0100000000000000 0200000000000000 0300000000000000", &out);
	EXPECT_EQ(out.append_entries_result.term, 1);
	EXPECT_EQ(out.append_entries_result.rejected, 2);
	EXPECT_EQ(out.append_entries_result.last_log_index, 3);
}

TEST(message, vote)
{
	struct raft_message out,
		m = {.type = RAFT_IO_REQUEST_VOTE, .request_vote = {5, 7, 9, 4, true, false}};

	there_and_back(&m,
		       "0100 0300 0500000000000000 0700000000000000 0900000000000000 "
		       "0400000000000000 01 00",
		       &out);
	EXPECT(out.request_vote.disrupt_leader && !out.request_vote.pre_vote);
	EXPECT_EQ(out.request_vote.last_log_index, 9);
	EXPECT_EQ(out.request_vote.last_log_term, 4);
}

TEST(message, vote_names_its_sender)
{
	struct raft_message out,
		m = {.type = RAFT_IO_REQUEST_VOTE, .request_vote = {5, 7, 9, 4, false, true}};
	struct writer w = encode(&m);

	EXPECT_RC(message_decode(w.data, w.len, 8, &out), -ERR_PROTOCOL);
	writer_free(&w);
}

TEST(message, vote_result_has_three_values)
{
	static const raft_tribool value[] = {raft_tribool_unknown, raft_tribool_true,
					     raft_tribool_false};
	static const char *const golden[] = {"0100 0400 0500000000000000 01 00",
					     "0100 0400 0500000000000000 01 01",
					     "0100 0400 0500000000000000 01 02"};

	for (unsigned i = 0; i < 3; i++) {
		struct raft_message out, m = {.type = RAFT_IO_REQUEST_VOTE_RESULT,
					      .request_vote_result = {5, true, value[i]}};

		there_and_back(&m, golden[i], &out);
		EXPECT_EQ(out.request_vote_result.pre_vote, value[i]);
		EXPECT(out.request_vote_result.vote_granted);
	}
}

TEST(message, snapshot)
{
	struct raft_message out, m = {.type = RAFT_IO_INSTALL_SNAPSHOT,
				      .install_snapshot = {.term = 3,
							   .last_index = 20,
							   .last_term = 2,
							   .conf_index = 1,
							   .data = {(char *)"state", 5}}};

	raft_configuration_init(&m.install_snapshot.conf);
	add(&m.install_snapshot.conf, 1, "1", RAFT_VOTER);
	add(&m.install_snapshot.conf, 2, "2", RAFT_STANDBY);
	there_and_back(&m,
		       "0100 0500 0300000000000000 1400000000000000 0200000000000000 "
		       "0100000000000000 20000000"
		       "01 0200000000000000 0100000000000000 3100 01 0200000000000000 3200 00 00"
		       "05000000 7374617465",

		       &out);
	EXPECT_EQ(out.install_snapshot.conf_index, 1);
	EXPECT_EQ(out.install_snapshot.conf.n, 2);
	EXPECT(configuration_equal(&out.install_snapshot.conf, &m.install_snapshot.conf));
	EXPECT_MEM(out.install_snapshot.data.base, "state", 5);
	message_free(&out);
	raft_configuration_close(&m.install_snapshot.conf);
}

TEST(message, timeout_now)
{
	struct raft_message out, m = {.type = RAFT_IO_TIMEOUT_NOW, .timeout_now = {1, 2, 3}};

	there_and_back(&m, "0100 0600 0100000000000000 0200000000000000 0300000000000000", &out);
	EXPECT_EQ(out.timeout_now.last_log_term, 3);
}

TEST(message, nonsense_is_refused)
{
	struct raft_entry e[2] = {{.term = 3, .type = RAFT_COMMAND, .buf = {(char *)"a", 1}},
				  {.term = 2, .type = RAFT_COMMAND, .buf = {(char *)"b", 1}}};
	struct raft_message out, m = {.type = RAFT_IO_APPEND_ENTRIES,
				      .append_entries = {.term = 3,
							 .prev_log_index = 1,
							 .prev_log_term = 1,
							 .entries = e,
							 .n_entries = 2}};
	struct writer w = encode(&m);

	EXPECT_RC(message_decode(w.data, w.len, 7, &out), -ERR_PROTOCOL); /* terms fall */
	e[1].term = 4;
	writer_free(&w);
	w = encode(&m);
	EXPECT_RC(message_decode(w.data, w.len, 7, &out), -ERR_PROTOCOL); /* above the leader's */
	e[1].term = 3;
	e[1].type = RAFT_CHANGE;
	writer_free(&w);
	w = encode(&m);
	EXPECT_RC(message_decode(w.data, w.len, 7, &out), -ERR_PROTOCOL); /* no configuration */
	e[1].type = RAFT_COMMAND;
	m.append_entries.prev_log_index = 0;
	writer_free(&w);
	w = encode(&m);
	EXPECT_RC(message_decode(w.data, w.len, 7, &out), -ERR_PROTOCOL); /* index 0 has no term */
	writer_free(&w);
}

/* An AppendEntries that is cut short commits only what it carries. */
TEST(message, cut_lowers_the_commit)
{
	static char big[600];
	struct raft_entry e[4];
	struct raft_message out, m = {.type = RAFT_IO_APPEND_ENTRIES,
				      .append_entries = {.term = 3,
							 .prev_log_index = 10,
							 .prev_log_term = 1,
							 .leader_commit = 14,
							 .entries = e,
							 .n_entries = 4}};
	struct writer w = writer_init_heap();

	for (unsigned i = 0; i < 4; i++)
		e[i] = (struct raft_entry){
			.term = 3, .type = RAFT_COMMAND, .buf = {big, sizeof(big)}};
	EXPECT_OK(message_encode(&m, 1300, &w));
	EXPECT_OK(message_decode(w.data, w.len, 7, &out));
	EXPECT_EQ(out.append_entries.n_entries, 2);
	EXPECT_EQ(out.append_entries.leader_commit, 12);
	message_free(&out);
	/* Without: the receiver would commit up to 14, entries of its own that nobody vouched for.
	 */
	consensus_guards_off = GUARD_CUT;
	w.len = 0;
	EXPECT_OK(message_encode(&m, 1300, &w));
	EXPECT_OK(message_decode(w.data, w.len, 7, &out));
	EXPECT_EQ(out.append_entries.leader_commit, 14);
	consensus_guards_off = 0;
	message_free(&out);
	/* One entry always goes, whatever its size. */
	w.len = 0;
	EXPECT_OK(message_encode(&m, 1, &w));
	EXPECT_OK(message_decode(w.data, w.len, 7, &out));
	EXPECT_EQ(out.append_entries.n_entries, 1);
	message_free(&out);
	writer_free(&w);
}

TEST(configuration, decodes_what_libraft_encodes)
{
	struct raft_configuration a, b;
	struct raft_buffer buf;

	raft_configuration_init(&a);
	add(&a, 1, "one", RAFT_VOTER);
	add(&a, 65535, "", RAFT_SPARE);
	add(&a, 3, "a longer address", RAFT_STANDBY);
	EXPECT_OK(configuration_encode(&a, &buf));
	EXPECT_OK(configuration_decode(buf.base, buf.len, &b));
	EXPECT(configuration_equal(&a, &b));
	EXPECT_EQ(configuration_voters(&b), 1);
	EXPECT(configuration_get(&b, 3)->role == RAFT_STANDBY);
	raft_configuration_close(&b);
	for (size_t n = 0; n + 8 <= buf.len; n++)
		EXPECT_RC(configuration_decode(buf.base, n, &b), -ERR_CORRUPT);
	raft_free(buf.base);
	raft_configuration_close(&a);
}

/* Damaged in any way: refused, or decoded to something that can be freed. */
TEST(message, random_damage)
{
	struct raft_entry e[2] = {{.term = 3, .type = RAFT_COMMAND, .buf = {(char *)"abcdefgh", 8}},
				  {.term = 3, .type = RAFT_CHANGE}};
	struct raft_message m = {.type = RAFT_IO_APPEND_ENTRIES,
				 .append_entries = {.term = 3,
						    .prev_log_index = 1,
						    .prev_log_term = 1,
						    .entries = e,
						    .n_entries = 2}};
	struct raft_configuration conf;
	struct writer w;
	struct rng r;

	raft_configuration_init(&conf);
	add(&conf, 1, "1", RAFT_VOTER);
	add(&conf, 2, "2", RAFT_VOTER);
	EXPECT_OK(configuration_encode(&conf, &e[1].buf));
	w = encode(&m);
	rng_seed(&r, 1);
	for (int i = 0; i < 20000; i++) {
		size_t n = rng_below(&r, 4) ? w.len : rng_below(&r, w.len + 1);
		CLEANUP(free_ptr) uint8_t *copy = xmalloc(n ? n : 1);
		struct raft_message out;

		memcpy(copy, w.data, n);
		for (uint64_t k = rng_below(&r, 4); k && n; k--)
			copy[rng_below(&r, n)] = (uint8_t)rng_next(&r);
		if (message_decode(copy, n, 7, &out) == 0)
			message_free(&out);
	}
	writer_free(&w);
	raft_free(e[1].buf.base);
	raft_configuration_close(&conf);
}
