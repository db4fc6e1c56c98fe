/* SPDX-License-Identifier: Apache-2.0 */
/* Attachments as leases: renewal, taking over what ran out, fencing, and every refusal on the way.
 * Whose write is admitted in the end is replica's side; here it is who holds what. */
#include "tests/state/state_kit.h"

static const struct map_attachment *at(const struct kit *k, uint32_t id)
{
	return map_attachment(kit_map(k), id);
}

static void begin(struct kit *k)
{
	kit_init(k, 1);
	EXPECT_OK(kit_volume(k, "v", 1 << 30, 1));
}

static struct state_event last_event(const struct kit *k)
{
	struct state_event e;

	EXPECT_EQ(state_events(k->s, &e, 1), 1);
	return e;
}

TEST(attach, a_lease_that_ran_out_is_taken_by_who_asks)
{
	struct kit k;

	begin(&k);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_EQ(at(&k, 1)->ttl_ms, ATTACH_TTL_MS);
	EXPECT_EQ(at(&k, 1)->renewed_ms, k.time_ms);
	k.time_ms += ATTACH_TTL_MS - 11500;
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "free in 12 s"));
	EXPECT_EQ(k.out.id, 1);
	EXPECT(!at(&k, 1)->revoked);
	k.time_ms += 11499;
	EXPECT_RC(kit_attach(&k, 1, ATTACH_SHARED, "h2", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "free in 1 s"));
	k.time_ms += 1;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false));
	EXPECT_EQ(k.out.number, 2); /* the epoch grows: the old one's writes are told apart */
	EXPECT(at(&k, 1)->revoked && !at(&k, 2)->revoked);
	EXPECT_STR(last_event(&k).code, "ATTACH_EXPIRED");
	EXPECT(strstr(last_event(&k).text, "h2 took it over from h1, not renewed for 30 s"));
	/* It comes back: it finds the new one's lease. */
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false), -ERR_HELD);
	kit_fini(&k);
}

TEST(attach, renewal_keeps_it_and_is_no_news_to_shards)
{
	struct kit k;
	uint64_t version, digest;
	uint32_t ids[] = {1, 2, 77, 0};

	begin(&k);
	EXPECT_OK(kit_volume(&k, "w", 1 << 30, 1));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_OK(kit_attach(&k, 2, ATTACH_SHARED, "h1", false));
	EXPECT_OK(kit_detach(&k, 2));
	version = kit_map(&k)->version;
	digest = state_digest(k.s);
	EXPECT_RC(kit_renew(&k, 0, ids), -ERR_INVALID);
	for (unsigned i = 0; i < 10; i++) {
		k.time_ms += 10000;
		EXPECT_OK(kit_renew(&k, 4, ids));
		EXPECT_EQ(k.out.count, 4);
		EXPECT_EQ(k.out.object[0], 0);
		EXPECT_EQ(k.out.object[1], 1); /* detached */
		EXPECT_EQ(k.out.object[2], 1); /* never given out */
		EXPECT_EQ(k.out.object[3], 1);
		EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false), -ERR_HELD);
		EXPECT(strstr(k.out.text, "free in 30 s"));
	}
	EXPECT_EQ(kit_map(&k)->version, version); /* no delta to anybody */
	EXPECT(state_digest(k.s) != digest);      /* but state, and in snapshots */
	kit_fini(&k);
}

TEST(attach, a_clock_that_ran_ahead_is_forgotten_at_the_next_renewal)
{
	struct kit k;
	uint32_t id = 1;
	uint64_t now;

	begin(&k);
	now = k.time_ms;
	k.time_ms += 3600000;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	k.time_ms = now;
	EXPECT_OK(kit_renew(&k, 1, &id));
	k.time_ms += ATTACH_TTL_MS;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false));
	kit_fini(&k);
}

TEST(attach, the_time_to_live_is_a_setting)
{
	struct kit k;
	uint32_t id = 1;
	uint64_t version;

	begin(&k);
	EXPECT_RC(kit_setting(&k, ATTACH_TTL_KEY, "999"), -ERR_INVALID);
	EXPECT(strstr(k.out.text, "1000 to 3600000"));
	EXPECT_RC(kit_setting(&k, ATTACH_TTL_KEY, "3600001"), -ERR_INVALID);
	EXPECT_RC(kit_setting(&k, ATTACH_TTL_KEY, "30s"), -ERR_INVALID);
	EXPECT_RC(kit_setting(&k, ATTACH_TTL_KEY, "99999999999"), -ERR_INVALID);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_OK(kit_setting(&k, ATTACH_TTL_KEY, "2000"));
	EXPECT_EQ(at(&k, 1)->ttl_ms, ATTACH_TTL_MS); /* the promise it was given holds … */
	version = kit_map(&k)->version;
	EXPECT_OK(kit_renew(&k, 1, &id));
	EXPECT_EQ(at(&k, 1)->ttl_ms, 2000); /* … until it is renewed, and its gateway is told */
	EXPECT(kit_map(&k)->version > version);
	k.time_ms += 2000;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false));
	EXPECT_EQ(at(&k, 2)->ttl_ms, 2000);
	EXPECT_OK(kit_setting(&k, ATTACH_TTL_KEY, "")); /* unset */
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false));
	EXPECT_EQ(at(&k, 3)->ttl_ms, ATTACH_TTL_MS);
	kit_fini(&k);
}

TEST(attach, shared_only_beside_shared)
{
	struct kit k;

	begin(&k);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h1", false));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h2", false));
	EXPECT(!at(&k, 1)->revoked && !at(&k, 2)->revoked);
	EXPECT(at(&k, 1)->epoch != at(&k, 2)->epoch);
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h3", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "by h1 (shared)"));
	/* One who shares cannot make it his own while others are there, nor loses what he has. */
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "by h2 (shared)"));
	EXPECT(!at(&k, 1)->revoked);
	EXPECT_OK(kit_detach(&k, 2));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT(at(&k, 1)->revoked);
	EXPECT_RC(kit_attach(&k, 1, ATTACH_SHARED, "h2", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "(exclusive)"));
	kit_fini(&k);
}

TEST(attach, an_exclusive_one_waits_for_all_that_share)
{
	struct kit k;
	uint32_t id = 2;

	begin(&k);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h1", false));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h2", false));
	k.time_ms += 20000;
	EXPECT_OK(kit_renew(&k, 1, &id));
	k.time_ms += 10000; /* h1's ran out, h2's did not */
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h3", false), -ERR_HELD);
	EXPECT(strstr(k.out.text, "by h2 (shared): free in 20 s"));
	EXPECT(!at(&k, 1)->revoked); /* a refusal takes nothing away */
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h3", false));
	EXPECT(!at(&k, 1)->revoked); /* it stands in nobody's way */
	k.time_ms += ATTACH_TTL_MS;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h4", false));
	EXPECT(at(&k, 1)->revoked && at(&k, 2)->revoked && at(&k, 3)->revoked);
	kit_fini(&k);
}

TEST(attach, fencing_takes_away_at_once_and_says_so)
{
	struct kit k;

	begin(&k);
	EXPECT_RC(kit_fence(&k, 9, 100, false, NULL), -ERR_NOT_FOUND);
	EXPECT_OK(kit_fence(&k, 1, 100, false, NULL));
	EXPECT_EQ(k.out.number, 0);
	EXPECT_STR(k.out.text, "volume v was not attached");
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_OK(kit_fence(&k, 1, 1, false, NULL));
	EXPECT_EQ(k.out.number, 1);
	EXPECT(at(&k, 1)->revoked);
	EXPECT_STR(last_event(&k).code, "ATTACH_FENCED");
	EXPECT_STR(last_event(&k).actor, "tester");
	EXPECT(strstr(last_event(&k).text, "volume v: the exclusive attachment of h1"));
	/* The same again, its answer was lost: an attachment given out meanwhile is not hit. */
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false));
	EXPECT_OK(kit_fence(&k, 1, 1, false, NULL));
	EXPECT_EQ(k.out.number, 0);
	EXPECT(!at(&k, 2)->revoked);
	kit_fini(&k);
}

TEST(attach, fencing_of_one_holder_and_of_what_ran_out)
{
	struct kit k;
	uint32_t id = 2;

	begin(&k);
	for (unsigned i = 1; i <= 3; i++)
		EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, i == 1 ? "h1" : i == 2 ? "h2" : "h3", false));
	EXPECT_OK(kit_fence(&k, 1, 3, false, "h4"));
	EXPECT_STR(k.out.text, "volume v was not attached by h4");
	EXPECT_OK(kit_fence(&k, 1, 3, false, "h3"));
	EXPECT(at(&k, 3)->revoked && !at(&k, 1)->revoked && !at(&k, 2)->revoked);
	EXPECT_RC(kit_fence(&k, 1, 3, true, NULL), -ERR_HELD);
	EXPECT(strstr(k.out.text, "by h1") && strstr(k.out.text, "--fence"));
	k.time_ms += 20000;
	EXPECT_OK(kit_renew(&k, 1, &id));
	k.time_ms += 10000;
	EXPECT_OK(kit_fence(&k, 1, 3, true, NULL));
	EXPECT_EQ(k.out.number, 1);
	EXPECT(at(&k, 1)->revoked && !at(&k, 2)->revoked);
	kit_fini(&k);
}

TEST(attach, snapshots_carry_the_leases)
{
	struct kit k;
	struct state *copy = state_create();
	struct writer w = writer_init_heap();

	begin(&k);
	k.time_ms = 0x1122334455;
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "holder-name", false));
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(copy, w.data, w.len));
	EXPECT_EQ(map_attachment(state_map(copy), 1)->renewed_ms, 0x1122334455);
	EXPECT_EQ(map_attachment(state_map(copy), 1)->ttl_ms, ATTACH_TTL_MS);
	EXPECT(state_digest(copy) == state_digest(k.s));
	put_le16(w.data + 4, 2); /* a format that was never released */
	EXPECT_RC(state_restore(copy, w.data, w.len), -ERR_VERSION);
	writer_free(&w);
	state_destroy(copy);
	kit_fini(&k);
}

TEST(attach, only_commands_about_leases_are_stamped)
{
	struct command c = {.kind = CMD_ATTACH, .time_ms = 5}, back;
	struct writer w = writer_init_heap();
	struct reader r;
	void *arena;

	for (uint16_t kind = CMD_ATTACH; kind <= CMD_DETACH; kind++) {
		w.len = 0;
		c.kind = kind;
		command_encode(&c, &w);
		command_stamp(w.data, w.len, 77);
		r = reader_init(w.data, w.len);
		EXPECT_OK(command_decode(&r, &back, &arena));
		EXPECT_EQ(back.time_ms, kind == CMD_ATTACH ? 77 : 5);
		free(arena);
	}
	command_stamp(w.data, 5, 77); /* too short to be one */
	writer_free(&w);
}
