/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs, settings that shards need, and replicas that go in one step or before they were filled. */
#include "tests/state/state_kit.h"

static int job(struct kit *k, uint8_t op, uint32_t id)
{
	struct command c = {.kind = CMD_JOB, .job = {.op = op, .id = id}};

	return kit_apply(k, &c);
}

static int start(struct kit *k, uint8_t kind, uint16_t node, uint16_t group)
{
	struct command c = {.kind = CMD_JOB,
			    .job = {.op = JOB_START, .kind = kind, .node = node, .group = group}};

	strcpy(c.job.note, "why");
	return kit_apply(k, &c);
}

static const struct state_job *at(const struct kit *k, uint32_t id)
{
	const struct state_job *j = state_job(k->s, id);

	EXPECT(j);
	return j;
}

TEST(job, a_job_counts_what_is_to_do_when_it_starts)
{
	struct kit k;
	unsigned count, there = 0;

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	for (uint32_t i = 0; i < map_volume(kit_map(&k), 1)->objects; i++) {
		struct map_object *o = kit_object(&k, object_id(1, i));

		there += o->member[0].group == 2 || o->member[1].group == 2;
	}
	EXPECT(there > 0);
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_EQ(k.out.id, 1);
	EXPECT_EQ(at(&k, 1)->total, there);
	EXPECT_EQ(at(&k, 1)->incarnation, 1);
	EXPECT_STR(at(&k, 1)->actor, "tester");
	EXPECT_STR(at(&k, 1)->note, "why");
	/* By its node: the same objects. */
	EXPECT_OK(start(&k, JOB_REBUILD, 2, 0));
	EXPECT_EQ(at(&k, 2)->total, there);
	EXPECT_EQ(state_jobs(k.s, &count)[1].id, 2);
	EXPECT_EQ(count, 2);
	kit_fini(&k);
}

TEST(job, the_same_wish_again_is_the_same_job)
{
	struct kit k;

	kit_init(&k, 3);
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_EQ(k.out.id, 1);
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 3));
	EXPECT_EQ(k.out.id, 2);
	EXPECT_OK(start(&k, JOB_EVACUATE, 2, 0)); /* the node, not the group */
	EXPECT_EQ(k.out.id, 3);
	EXPECT_OK(job(&k, JOB_PAUSE, 1));
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_EQ(k.out.id, 1); /* it stays paused: starting is not resuming */
	EXPECT_EQ(at(&k, 1)->state, JOB_PAUSED);
	EXPECT_OK(job(&k, JOB_CANCEL, 1));
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_EQ(k.out.id, 4);
	kit_fini(&k);
}

TEST(job, wrong_targets_and_steps_are_refused)
{
	struct kit k;
	uint64_t digest;

	kit_init(&k, 2);
	EXPECT_OK(start(&k, JOB_REBALANCE, 0, 0));
	digest = state_digest(k.s);
	EXPECT_RC(start(&k, JOB_REBALANCE, 1, 0), -ERR_INVALID);
	EXPECT_RC(start(&k, JOB_EVACUATE, 0, 0), -ERR_INVALID);
	EXPECT_RC(start(&k, JOB_EVACUATE, 1, 1), -ERR_INVALID);
	EXPECT_RC(start(&k, 9, 1, 0), -ERR_INVALID);
	EXPECT_RC(start(&k, JOB_EVACUATE, 0, 9), -ERR_NOT_FOUND);
	EXPECT_RC(start(&k, JOB_REBUILD, 9, 0), -ERR_NOT_FOUND);
	EXPECT_RC(job(&k, JOB_PAUSE, 7), -ERR_NOT_FOUND);
	EXPECT_RC(job(&k, 0, 1), -ERR_INVALID);
	EXPECT_RC(job(&k, 9, 1), -ERR_INVALID);
	EXPECT(state_digest(k.s) == digest);
	EXPECT_OK(job(&k, JOB_PAUSE, 1));
	EXPECT_OK(job(&k, JOB_PAUSE, 1)); /* the same again */
	EXPECT_RC(job(&k, JOB_FINISH, 1),
		  -ERR_REFUSED); /* a paused one waits, though nothing is left */
	EXPECT_OK(job(&k, JOB_RESUME, 1));
	EXPECT_OK(job(&k, JOB_FINISH, 1));
	EXPECT_RC(job(&k, JOB_PAUSE, 1), -ERR_REFUSED);
	EXPECT_RC(job(&k, JOB_RESUME, 1), -ERR_REFUSED);
	EXPECT_RC(job(&k, JOB_CANCEL, 1), -ERR_REFUSED);
	kit_fini(&k);
}

/* What was emptied stays empty until it is removed, or somebody says otherwise. */
TEST(job, an_evacuation_that_is_done_goes_on_holding)
{
	struct kit k;
	struct map_group *g;

	kit_init(&k, 3);
	g = map_group(kit_map(&k), 2);
	EXPECT_OK(start(&k, JOB_EVACUATE, 2, 0));
	EXPECT_OK(job(&k, JOB_FINISH, 1));
	EXPECT(state_job_empties(at(&k, 1), g));
	EXPECT(!state_job_empties(at(&k, 1), map_group(kit_map(&k), 1)));
	EXPECT_OK(start(&k, JOB_EVACUATE, 2, 0)); /* once more: the same job, at work again */
	EXPECT_EQ(k.out.id, 1);
	EXPECT_EQ(at(&k, 1)->state, JOB_RUNNING);
	EXPECT_OK(job(&k, JOB_FINISH, 1));
	EXPECT_OK(job(&k, JOB_CANCEL, 1));
	EXPECT(!state_job_empties(at(&k, 1), g));
	kit_fini(&k);
}

TEST(job, finished_jobs_make_room_and_live_ones_do_not)
{
	struct kit k;
	unsigned count;

	kit_init(&k, 3);
	EXPECT_OK(start(&k, JOB_EVACUATE, 0, 2));
	EXPECT_OK(job(&k, JOB_FINISH, 1));
	for (uint32_t i = 2; i < 2 * STATE_JOBS; i++) {
		EXPECT_OK(start(&k, JOB_REBALANCE, 0, 0));
		EXPECT_EQ(k.out.id, i);
		EXPECT_OK(job(&k, JOB_FINISH, i));
	}
	state_jobs(k.s, &count);
	EXPECT_EQ(count, STATE_JOBS);
	EXPECT(state_job(k.s, 1) && !state_job(k.s, 2)); /* the first one holds its group empty */
	EXPECT_OK(kit_group_state(&k, 2, GROUP_REMOVED, 0, 1));
	EXPECT_OK(start(&k, JOB_REBALANCE, 0, 0));
	EXPECT(!state_job(k.s, 1));
	kit_fini(&k);
}

TEST(job, too_many_live_jobs_are_refused)
{
	struct kit k;
	unsigned started = 0;

	kit_init(&k, 40);
	for (uint16_t i = 1; i <= 40; i++)
		for (unsigned node = 0; node < 2; node++)
			started += !start(&k, JOB_EVACUATE, node ? i : 0, node ? 0 : i);
	EXPECT_EQ(started, STATE_JOBS);
	EXPECT_RC(start(&k, JOB_REBALANCE, 0, 0), -ERR_LIMIT);
	EXPECT(strstr(k.out.text, "cancel one"));
	kit_fini(&k);
}

TEST(job, snapshots_carry_jobs)
{
	struct kit k;
	struct state *copy = state_create();
	struct writer w = writer_init_heap();

	kit_init(&k, 3);
	k.time_ms = 0x1122334455;
	EXPECT_OK(start(&k, JOB_EVACUATE, 2, 0));
	EXPECT_OK(start(&k, JOB_REBUILD, 0, 3));
	EXPECT_OK(job(&k, JOB_PAUSE, 2));
	EXPECT_OK(kit_setting(&k, REBUILD_FLOOR_KEY, "21"));
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(copy, w.data, w.len));
	EXPECT(state_digest(copy) == state_digest(k.s));
	EXPECT_MEM(state_job(copy, 1), state_job(k.s, 1), sizeof(struct state_job));
	EXPECT_MEM(state_job(copy, 2), state_job(k.s, 2), sizeof(struct state_job));
	EXPECT_EQ(state_map(copy)->limits.floor_mib, 21);
	for (size_t n = 0; n < w.len; n++) /* cut anywhere: refused */
		EXPECT(state_restore(copy, w.data, n));
	writer_free(&w);
	state_destroy(copy);
	kit_fini(&k);
}

TEST(job, limits_reach_the_map_and_its_deltas)
{
	struct kit k;
	struct map m;
	struct writer w = writer_init_heap();
	struct reader r;

	kit_init(&k, 1);
	EXPECT_EQ(kit_map(&k)->limits.floor_mib, 4);
	EXPECT_EQ(kit_map(&k)->limits.limit_mib, 0);
	map_init(&m);
	state_delta(k.s, 0, &w);
	r = reader_init(w.data, w.len);
	EXPECT_OK(map_delta_apply(&m, &r, NULL, NULL));
	EXPECT_EQ(m.limits.floor_mib, 4);
	EXPECT_RC(kit_setting(&k, REBUILD_FLOOR_KEY, "0"), -ERR_INVALID);
	EXPECT_RC(kit_setting(&k, REBUILD_FLOOR_KEY, "8x"), -ERR_INVALID);
	EXPECT_RC(kit_setting(&k, REBUILD_LIMIT_KEY, "-1"), -ERR_INVALID);
	EXPECT_OK(kit_setting(&k, REBUILD_LIMIT_KEY, "300"));
	w.len = 0;
	state_delta(k.s, m.version, &w);
	r = reader_init(w.data, w.len);
	EXPECT_OK(map_delta_apply(&m, &r, NULL, NULL));
	EXPECT_EQ(m.limits.limit_mib, 300);
	EXPECT_OK(kit_setting(&k, REBUILD_LIMIT_KEY, "")); /* the default again */
	EXPECT_EQ(kit_map(&k)->limits.limit_mib, 0);
	EXPECT_EQ(state_setting_number(k.s, REBUILD_DELAY_KEY), 60);
	map_fini(&m);
	writer_free(&w);
	kit_fini(&k);
}

/* ---- Replicas that go ---- */

static struct object_change change(const struct kit *k, const struct map_object *o, uint8_t op,
				   unsigned member)
{
	struct map_node *p = map_primary_node(kit_map(k), o);

	return (struct object_change){.op = op,
				      .object = o->id,
				      .epoch = o->epoch,
				      .replica = o->member[member],
				      .proposer = p->id,
				      .incarnation = p->incarnation};
}

static struct object_change place(const struct kit *k, const struct map_object *o, uint16_t group)
{
	struct object_change ch = change(k, o, OBJ_PLACE, 0);

	ch.replica = (struct map_member){.group = group, .group_incarnation = 1};
	return ch;
}

static uint16_t unused_group(const struct map_object *o)
{
	for (uint16_t g = 1;; g++) {
		bool used = false;

		for (unsigned i = 0; i < o->member_count; i++)
			used |= o->member[i].group == g;
		if (!used)
			return g;
	}
}

TEST(remove, one_of_i_goes_in_one_step_when_all_copies_stay)
{
	struct kit k;
	struct map_object *o;

	kit_init(&k, 4);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	o = kit_object(&k, object_id(1, 0));
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 1)), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&k, place(&k, o, unused_group(o))), OBJ_DONE);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 1)),
		  OBJ_IS_IN); /* the third is not in yet */
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_PROMOTE, 2)), OBJ_DONE);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 0)), OBJ_NEEDED); /* the primary */
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 1)), OBJ_DONE);
	EXPECT_EQ(map_in_count(o), 2);
	EXPECT_EQ(o->member_count, 2);
	kit_fini(&k);
}

TEST(remove, what_was_never_filled_may_go_while_copies_are_missing)
{
	struct kit k;
	struct map_object *o;

	kit_init(&k, 4);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	o = kit_object(&k, object_id(1, 0));
	EXPECT(o->member[0].filled && o->member[1].filled);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_DROP, 1)), OBJ_DONE);
	EXPECT(o->member[1].filled);
	EXPECT_EQ(kit_change(&k, place(&k, o, unused_group(o))), OBJ_DONE);
	EXPECT(!o->member[2].filled);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 1)), OBJ_NEEDED);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 2)), OBJ_DONE);
	/* Once it was in, it holds writes: then it is kept like any other. */
	EXPECT_EQ(kit_change(&k, place(&k, o, unused_group(o))), OBJ_DONE);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_PROMOTE, 2)), OBJ_DONE);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_DROP, 2)), OBJ_DONE);
	EXPECT_EQ(kit_change(&k, change(&k, o, OBJ_REMOVE, 2)), OBJ_NEEDED);
	kit_fini(&k);
}
