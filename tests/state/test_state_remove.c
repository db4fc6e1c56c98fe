/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes leave: empty ones, and dead ones with what is on them. */
#include "tests/state/state_kit.h"

static int take_out(struct kit *k, uint16_t node, uint8_t flags)
{
	const struct map_node *n = map_node(kit_map(k), node);
	struct command c = {.kind = CMD_NODE_REMOVE,
			    .node_remove = {node, n ? n->incarnation : 1, flags}};

	return kit_apply(k, &c);
}

static int job(struct kit *k, uint8_t op, uint32_t id, uint16_t node, uint16_t group)
{
	struct command c = {
		.kind = CMD_JOB,
		.job = {.op = op, .id = id, .kind = JOB_REMOVE, .node = node, .group = group}};

	return kit_apply(k, &c);
}

static struct object_change by(struct kit *k, uint64_t id, uint8_t op, unsigned member,
			       uint16_t proposer)
{
	struct map_object *o = kit_object(k, id);

	return (struct object_change){.op = op,
				      .object = id,
				      .epoch = o->epoch,
				      .replica = o->member[member],
				      .node = proposer,
				      .proposer = proposer,
				      .incarnation = 1};
}

static int on_node(struct kit *k, const struct map_object *o, uint16_t node)
{
	for (unsigned i = 0; i < o->member_count; i++)
		if (map_group(kit_map(k), o->member[i].group)->node == node)
			return (int)i;
	return -1;
}

static unsigned events(struct kit *k, const char *code)
{
	static struct state_event e[STATE_EVENTS];
	unsigned count = state_events(k->s, e, STATE_EVENTS), found = 0;

	for (unsigned i = 0; i < count; i++)
		found += !strcmp(e[i].code, code);
	return found;
}

/* As the replicators do when node 2 is gone: the others go on. */
static void fail_over(struct kit *k, uint32_t volume)
{
	const struct map_volume *v = map_volume(kit_map(k), volume);

	for (uint32_t i = 0; i < v->objects; i++) {
		uint64_t id = object_id(volume, i);
		struct map_object *o = kit_object(k, id);
		int dead = on_node(k, o, 2);
		unsigned alive = dead == 0;

		if (dead < 0 || o->member_count < 2)
			continue;
		if (o->primary == dead)
			EXPECT_EQ(
				kit_change(k,
					   by(k, id, OBJ_TAKEOVER, alive,
					      map_group(kit_map(k), o->member[alive].group)->node)),
				OBJ_DONE);
		else
			EXPECT_EQ(kit_change(k, by(k, id, OBJ_DROP, (unsigned)dead,
						   map_primary_node(kit_map(k), o)->id)),
				  OBJ_DONE);
	}
}

TEST(remove, an_empty_node_leaves_for_good)
{
	struct kit k;
	char why[200];

	kit_init(&k, 3);
	EXPECT_OK(job(&k, JOB_START, 0, 2, 0));
	EXPECT(state_job_empties(state_job(k.s, 1), map_group(kit_map(&k), 2)));
	EXPECT(!state_job_empties(state_job(k.s, 1), map_group(kit_map(&k), 1)));
	EXPECT_RC(job(&k, JOB_FINISH, 1, 0, 0), -ERR_REFUSED); /* it ends with the node */
	EXPECT(state_node_may_leave(k.s, 2, k.time_ms, why));
	EXPECT_OK(take_out(&k, 2, 0));
	EXPECT_OK(take_out(&k, 2, 0)); /* the same again */
	EXPECT_EQ(map_node(kit_map(&k), 2)->state, NODE_REMOVED);
	EXPECT_EQ(map_group(kit_map(&k), 2)->state, GROUP_REMOVED);
	EXPECT_EQ(state_job(k.s, 1)->state, JOB_DONE);
	EXPECT_EQ(events(&k, "NODE_REMOVED"), 1);
	EXPECT_RC(job(&k, JOB_CANCEL, 1, 0, 0), -ERR_REFUSED);
	EXPECT_RC(job(&k, JOB_START, 0, 2, 0), -ERR_NOT_FOUND);
	/* It may not come back, under no incarnation; others may have its name and address. */
	EXPECT_RC(kit_start(&k, 2, 1, 2), -ERR_FOREIGN);
	EXPECT(strstr(k.out.text, "removed"));
	EXPECT_RC(kit_node(&k, "n2", "", 102), -ERR_EXISTS);
	EXPECT_RC(kit_group(&k, 2, 777), -ERR_NOT_FOUND);
	EXPECT_OK(kit_node(&k, "n2", "", 555));
	EXPECT_EQ(k.out.id, 4); /* numbers are never given out again */
	EXPECT(map_node_by_name(kit_map(&k), "n2")->id == 4);
	kit_fini(&k);
}

TEST(remove, what_stands_in_the_way_is_named)
{
	struct kit k;
	struct uuid u = kit_uuid(102);
	char holder[80] = "node:", why[200];
	uint64_t digest;

	kit_init(&k, 3);
	EXPECT_RC(take_out(&k, 9, 0), -ERR_NOT_FOUND);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 3));
	digest = state_digest(k.s);
	EXPECT_EQ(state_node_objects(k.s, 2), map_volume(kit_map(&k), 1)->objects);
	EXPECT_RC(take_out(&k, 2, 0), -ERR_BUSY);
	EXPECT(strstr(k.out.text, "18 objects"));
	EXPECT_RC(take_out(&k, 2, 4), -ERR_INVALID);
	EXPECT(state_digest(k.s) == digest);
	EXPECT_OK(kit_delete(&k, 1));
	EXPECT_OK(kit_volume(&k, "w", 4096, 1)); /* with its only replica elsewhere */
	for (uint32_t v = 2; on_node(&k, kit_object(&k, object_id(v, 0)), 2) >= 0; v++) {
		EXPECT_OK(kit_delete(&k, v));
		EXPECT_OK(kit_volume(&k, "w", 4096, 1));
	}
	uuid_format(&u, holder + 5);
	strcat(holder, " n2");
	EXPECT_OK(kit_attach(&k, map_volume_by_name(kit_map(&k), "w")->id, ATTACH_SHARED, holder,
			     false));
	EXPECT_RC(take_out(&k, 2, 0), -ERR_BUSY);
	EXPECT(strstr(k.out.text, "volume w is attached"));
	EXPECT(!state_node_may_leave(k.s, 2, k.time_ms, why) && strstr(why, "volume w"));
	k.time_ms += ATTACH_TTL_MS; /* nobody renews it any more */
	EXPECT_OK(take_out(&k, 2, 0));
	EXPECT(map_attachment(kit_map(&k), 1)->revoked);
	EXPECT_RC(kit_attach(&k, map_volume_by_name(kit_map(&k), "w")->id, ATTACH_SHARED, holder,
			     false),
		  -ERR_FOREIGN);
	kit_fini(&k);

	kit_init(&k, 1);
	EXPECT_RC(take_out(&k, 1, 0), -ERR_BUSY);
	EXPECT_RC(take_out(&k, 1, NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS), -ERR_REFUSED);
	EXPECT(strstr(k.out.text, "only node"));
	kit_fini(&k);
}

/* What a force went past is kept for an operator to decide on: no plan moves it. */
TEST(remove, a_replica_in_quarantine_is_named)
{
	struct kit k;
	struct map_object *o;
	char why[200];

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 4096, 2));
	for (uint32_t i = 0; i < map_volume(kit_map(&k), 1)->objects; i++) {
		o = kit_object(&k, object_id(1, i));
		for (unsigned m = 0; m < o->member_count; m++)
			if (map_group(kit_map(&k), o->member[m].group)->node == 2) {
				o->member[m].in = false;
				o->member[m].kept = true;
				o->primary = (uint8_t)!m;
			}
	}
	EXPECT(!state_node_may_leave(k.s, 2, k.time_ms, why) && strstr(why, "quarantine"));
	EXPECT_RC(take_out(&k, 2, 0), -ERR_BUSY);
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_INCOMPLETE);
	EXPECT(strstr(k.out.text, "quarantine discard"));
	EXPECT_EQ(state_node_quarantined(k.s, 2), map_volume(kit_map(&k), 1)->objects);
	EXPECT_OK(take_out(&k, 2, NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS));
	EXPECT_EQ(events(&k, "QUARANTINE_DISCARDED"), 1);
	EXPECT_EQ(state_node_objects(k.s, 2), 0);
	kit_fini(&k);
}

/* It was started again between the question and the command. */
TEST(remove, another_incarnation_is_another_question)
{
	struct kit k;
	struct command c = {.kind = CMD_NODE_REMOVE, .node_remove = {2, 1, NODE_REMOVE_DEAD}};

	kit_init(&k, 3);
	EXPECT_OK(kit_start(&k, 2, 1, 2));
	EXPECT_RC(kit_apply(&k, &c), -ERR_STALE);
	EXPECT_OK(take_out(&k, 2, NODE_REMOVE_DEAD));
	kit_fini(&k);
}

TEST(remove, a_dead_node_leaves_when_everything_has_another_replica)
{
	struct kit k;
	struct uuid u = kit_uuid(102);
	char holder[80] = "node:";
	unsigned there = 0;
	uint32_t epoch[64];

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	uuid_format(&u, holder + 5);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, holder, false));
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_BUSY);
	EXPECT(strstr(k.out.text, "failed over"));
	fail_over(&k, 1);
	for (uint32_t i = 0; i < map_volume(kit_map(&k), 1)->objects; i++) {
		epoch[i] = kit_object(&k, object_id(1, i))->epoch;
		there += on_node(&k, kit_object(&k, object_id(1, i)), 2) >= 0;
	}
	EXPECT(there > 0);
	EXPECT_OK(job(&k, JOB_START, 0, 2, 0));
	EXPECT_OK(take_out(&k, 2, NODE_REMOVE_DEAD));
	EXPECT_EQ(k.out.number, 0);
	EXPECT_EQ(state_job(k.s, 1)->state, JOB_DONE);
	for (uint32_t i = 0; i < map_volume(kit_map(&k), 1)->objects; i++) {
		struct map_object *o = kit_object(&k, object_id(1, i));
		bool had = o->member_count == 1;

		there -= had;
		EXPECT(on_node(&k, o, 2) < 0 && map_in_count(o) == o->member_count);
		EXPECT_EQ(o->epoch, epoch[i] + had);
	}
	EXPECT_EQ(there, 0);
	EXPECT(map_attachment(kit_map(&k), 1)
		       ->revoked); /* whoever takes the volume need not wait */
	EXPECT_EQ(map_group(kit_map(&k), 2)->incarnation, 2);
	EXPECT_EQ(events(&k, "DATA_GIVEN_UP"), 0);
	kit_fini(&k);
}

/* It takes nothing over, so that is not waited for. If it comes back after all, it does. */
TEST(remove, a_replica_in_a_group_that_failed_is_no_other_one)
{
	struct kit k;
	struct map_object *o;
	unsigned here;
	uint16_t other;

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 4096, 2));
	o = kit_object(&k, object_id(1, 0));
	for (uint32_t i = 1; on_node(&k, o, 2) < 0; i++)
		o = kit_object(&k, object_id(1, i));
	here = (unsigned)on_node(&k, o, 2);
	other = o->member[!here].group;
	EXPECT_OK(kit_group_state(&k, 1, GROUP_FAILED, 0, 1));
	EXPECT_OK(kit_group_state(&k, 3, GROUP_FAILED, 0, 1));
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_INCOMPLETE);
	EXPECT_OK(take_out(&k, 2, NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS));
	EXPECT(k.out.number > 0 && o->member_count == 2 && o->member[!here].in);
	EXPECT_EQ(kit_change(&k, by(&k, o->id, OBJ_TAKEOVER, !here, map_group(kit_map(&k), other)->node)),
		  OBJ_DONE);
	EXPECT(o->primary == !here && map_in_count(o) == 1);
	kit_fini(&k);
}

TEST(remove, what_is_nowhere_else_is_given_up_only_when_that_is_said)
{
	struct kit k;
	struct writer w = writer_init_heap();
	struct state *back = state_create();
	uint64_t digest, lost_id = 0;
	unsigned lost = 0;
	const struct map_volume *v;

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "safe", 1 << 30, 2));
	EXPECT_OK(kit_volume(&k, "alone", 1 << 30, 1));
	fail_over(&k, 1);
	v = map_volume(kit_map(&k), 2);
	for (uint32_t i = 0; i < v->objects; i++)
		if (on_node(&k, &v->object[i], 2) >= 0)
			lost++, lost_id = v->object[i].id;
	EXPECT(lost > 0);
	digest = state_digest(k.s);
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_INCOMPLETE);
	EXPECT_EQ(k.out.number, lost);
	EXPECT(strstr(k.out.text, "of alone") && !strstr(k.out.text, "safe"));
	EXPECT(state_digest(k.s) == digest);
	EXPECT_OK(take_out(&k, 2, NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS));
	EXPECT_EQ(k.out.number, lost);
	EXPECT_EQ(events(&k, "DATA_GIVEN_UP"), 1);
	/* Listed as lost: it has no primary, and nothing takes its place by itself. */
	EXPECT_EQ(map_in_count(kit_object(&k, lost_id)), 1);
	EXPECT(!map_primary_node(kit_map(&k), kit_object(&k, lost_id)));
	EXPECT_EQ(kit_change(&k, by(&k, lost_id, OBJ_REMOVE, 0, 1)), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&k, by(&k, lost_id, OBJ_TAKEOVER, 0, 2)), OBJ_NOT_MEMBER);
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(back, w.data, w.len));
	EXPECT(state_digest(back) == state_digest(k.s));
	EXPECT_OK(kit_delete(&k, 2)); /* the volume can be deleted */
	writer_free(&w);
	state_destroy(back);
	kit_fini(&k);
}

/* In-sync on another node that is removed, or not with us any more, counts for nothing. */
TEST(remove, only_replicas_on_members_count)
{
	struct kit k;
	struct map_object *o;

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 4096, 3));
	o = kit_object(&k, object_id(1, 0));
	EXPECT_OK(kit_node_state(&k, 1, NODE_DEAD));
	EXPECT_OK(kit_node_state(&k, 3, NODE_DEAD));
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_REFUSED); /* there would be nobody left */
	EXPECT_OK(kit_node(&k, "n4", "", 104));
	EXPECT_OK(kit_start(&k, 4, 0, 1));
	EXPECT_RC(take_out(&k, 2, NODE_REMOVE_DEAD), -ERR_INCOMPLETE);
	EXPECT_EQ(k.out.number, map_volume(kit_map(&k), 1)->objects);
	EXPECT_EQ(map_in_count(o), 3);
	kit_fini(&k);
}

TEST(remove, a_removal_needs_a_node)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_RC(job(&k, JOB_START, 0, 0, 2), -ERR_INVALID);
	EXPECT_RC(job(&k, JOB_START, 0, 0, 0), -ERR_INVALID);
	EXPECT_OK(job(&k, JOB_START, 0, 2, 0));
	EXPECT_OK(job(&k, JOB_PAUSE, 1, 0, 0));
	EXPECT(state_job_empties(state_job(k.s, 1), map_group(kit_map(&k), 2)));
	EXPECT_OK(job(&k, JOB_CANCEL, 1, 0, 0));
	EXPECT(!state_job_empties(state_job(k.s, 1), map_group(kit_map(&k), 2)));
	kit_fini(&k);
}
