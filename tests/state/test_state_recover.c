/* SPDX-License-Identifier: Apache-2.0 */
/* A state that goes on alone after its Raft majority was lost. Object 1:0 has copies on groups (nodes) P, S
 * and T; P is its primary. Every node has to come back before what it may have is passed over. */
#include "tests/state/state_kit.h"

static struct map_node *node(struct fix *f, uint16_t id)
{
	return map_node(kit_map(&f->k), id);
}

static struct object_change change(struct fix *f, uint8_t op, uint16_t who, uint16_t proposer)
{
	struct object_change ch = {.op = op,
				   .object = f->o->id,
				   .epoch = f->o->epoch,
				   .proposer = proposer,
				   .incarnation = node(f, proposer)->incarnation};

	if (op == OBJ_TAKEOVER || op == OBJ_FORCE) {
		ch.node = who;
		ch.incarnation = node(f, who)->incarnation;
	}
	if (fix_member(f, who) && op != OBJ_TAKEOVER)
		ch.replica = *fix_member(f, who);
	return ch;
}

static void back(struct fix *f, uint16_t id)
{
	EXPECT_OK(kit_start(&f->k, id, node(f, id)->incarnation, node(f, id)->incarnation + 1));
}

static void recover(struct fix *f)
{
	EXPECT_OK(state_recover(f->k.s, f->k.index += 1000, f->k.time_ms, f->s, "root"));
}

TEST(recover, raises_every_generation_and_awaits_every_node)
{
	struct state_event e;
	struct fix f;
	uint32_t volume, attachment;
	uint16_t dead = 1;

	fix_volume(&f, 3);
	EXPECT_OK(kit_attach(&f.k, 1, ATTACH_EXCLUSIVE, "h", false));
	while (fix_member(&f, dead))
		dead++;
	EXPECT_OK(kit_node_state(&f.k, dead, NODE_DEAD));
	volume = kit_map(&f.k)->next_volume;
	attachment = kit_map(&f.k)->next_attachment;
	recover(&f);
	for (uint32_t i = 0; i < map_volume(kit_map(&f.k), 1)->objects; i++) {
		const struct map_object *o = kit_object(&f.k, object_id(1, i));

		EXPECT(o->epoch == 0x01000001 && o->tenure == 1 && o->unsure);
	}
	EXPECT(node(&f, f.p)->awaited && node(&f, f.s)->awaited && !node(&f, dead)->awaited);
	EXPECT(kit_map(&f.k)->next_volume > volume + 1000);
	EXPECT(kit_map(&f.k)->next_attachment > attachment + 1000);
	EXPECT(map_volume(kit_map(&f.k), 1)->attach_epoch > 1000);
	EXPECT_EQ(state_recoveries(f.k.s), 1);
	EXPECT_EQ(kit_map(&f.k)->version, f.k.index);
	EXPECT_EQ(state_events(f.k.s, &e, 1), 1);
	EXPECT_STR(e.code, "CLUSTER_RECOVERED");
	EXPECT_STR(e.actor, "root");
	EXPECT_EQ(e.severity, 2);
	kit_fini(&f.k);
}

/* The old primary, and any other member, may have more than what knows of it. */
TEST(recover, nobody_takes_over_before_all_who_may_have_more_are_back)
{
	struct fix f;

	fix_volume(&f, 3);
	recover(&f);
	back(&f, f.s);
	back(&f, f.p);
	fix_refused(&f, change(&f, OBJ_TAKEOVER, f.s, f.s), OBJ_UNSURE);
	EXPECT(map_object_awaits(kit_map(&f.k), f.o));
	back(&f, f.t);
	EXPECT(!map_object_awaits(kit_map(&f.k), f.o));
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_TAKEOVER, f.s, f.s)), OBJ_DONE);
	EXPECT_EQ(map_in_count(f.o), 3); /* the old primary stays in I: it has not been seen */
	EXPECT(f.o->unsure && f.o->tenure == 0x01000002);
	kit_fini(&f.k);
}

/* One that is out was maybe promoted in the lost time. */
TEST(recover, an_out_member_that_was_filled_is_waited_for)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.t, f.p)), OBJ_DONE);
	recover(&f);
	back(&f, f.s);
	back(&f, f.p);
	fix_refused(&f, change(&f, OBJ_TAKEOVER, f.p, f.p), OBJ_UNSURE);
	back(&f, f.t);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_TAKEOVER, f.p, f.p)), OBJ_DONE);
	kit_fini(&f.k);
}

TEST(recover, an_unsure_object_changes_only_by_what_was_seen)
{
	struct object_change ch;
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.t, f.p)), OBJ_DONE);
	recover(&f);
	fix_refused(&f, change(&f, OBJ_SETTLE, 0, f.p), OBJ_UNSURE); /* in a tenure of before */
	back(&f, f.p);
	back(&f, f.s);
	back(&f, f.t);
	fix_refused(&f, change(&f, OBJ_SETTLE, 0, f.p), OBJ_NOT_MEMBER);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_TAKEOVER, f.p, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.p), OBJ_UNSURE);
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.s), OBJ_UNSURE);
	fix_refused(&f, change(&f, OBJ_PROMOTE, f.t, f.p), OBJ_UNSURE);
	fix_refused(&f, change(&f, OBJ_REMOVE, f.t, 1), OBJ_UNSURE);
	ch = change(&f, OBJ_PLACE, 0, 1);
	for (uint16_t g = 1; g <= 4; g++)
		if (!fix_member(&f, g))
			ch.replica = (struct map_member){.group = g, .group_incarnation = 1};
	fix_refused(&f, ch, OBJ_UNSURE);
	ch = change(&f, OBJ_DROP, f.s, f.p);
	ch.keep = 1; /* it answered, and has less */
	EXPECT_EQ(kit_change(&f.k, ch), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_SETTLE, 0, f.s), OBJ_NOT_MEMBER);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_SETTLE, 0, f.p)), OBJ_DONE);
	EXPECT(!f.o->unsure);
	fix_refused(&f, change(&f, OBJ_SETTLE, 0, f.p), OBJ_CONFLICT);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_PROMOTE, f.t, f.p)), OBJ_DONE);
	kit_fini(&f.k);
}

static int remove_dead(struct fix *f, uint16_t id, uint8_t flags)
{
	struct command c = {.kind = CMD_NODE_REMOVE};

	c.node_remove.node = id;
	c.node_remove.incarnation = node(f, id)->incarnation;
	c.node_remove.flags = NODE_REMOVE_DEAD | flags;
	return kit_apply(&f->k, &c);
}

/* What does not come back has no say, also as the primary. */
TEST(recover, nodes_that_are_gone_for_good_are_not_waited_for)
{
	struct state_event e;
	struct fix f;

	fix_volume(&f, 3);
	recover(&f);
	back(&f, f.s);
	EXPECT_OK(remove_dead(&f, f.p, NODE_REMOVE_ACCEPT_LOSS));
	EXPECT_EQ(state_events(f.k.s, &e, 1), 1);
	EXPECT_STR(e.code, "DATA_GIVEN_UP"); /* that it was accepted is not forgotten */
	EXPECT_OK(remove_dead(&f, f.t, NODE_REMOVE_ACCEPT_LOSS));
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_TAKEOVER, f.s, f.s)), OBJ_DONE);
	EXPECT_EQ(map_in_count(f.o), 1);
	EXPECT_EQ(map_primary_node(kit_map(&f.k), f.o)->id, f.s);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_SETTLE, 0, f.s)), OBJ_DONE);
	kit_fini(&f.k);
}

/* What a node that was not heard since may have alone is given up by who says so, not in passing. */
TEST(recover, a_node_that_may_have_more_is_given_up_only_with_accept_loss)
{
	struct fix f;

	fix_volume(&f, 3);
	recover(&f);
	back(&f, f.s);
	EXPECT(state_node_unsure(f.k.s, f.p) > 0);
	EXPECT_EQ(remove_dead(&f, f.p, 0), -ERR_INCOMPLETE);
	EXPECT(node(&f, f.p)->state == NODE_ACTIVE);
	back(&f, f.p); /* it is heard, and what it has compared: nothing is in doubt with it */
	EXPECT_EQ(state_node_unsure(f.k.s, f.p), 0);
	EXPECT_OK(remove_dead(&f, f.p, 0));
	kit_fini(&f.k);
}

/* A process of before the recovery may be serving where nobody hears it. */
TEST(recover, a_force_ends_the_doubt_but_not_past_an_unheard_primary)
{
	struct fix f;

	fix_volume(&f, 3);
	recover(&f);
	back(&f, f.s);
	fix_refused(&f, change(&f, OBJ_FORCE, f.s, f.s), OBJ_SERVED);
	fix_refused(&f, change(&f, OBJ_FORCE, f.t, f.t), OBJ_INCARNATION); /* not back */
	back(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_FORCE, f.s, f.s)), OBJ_DONE);
	EXPECT(!f.o->unsure && f.o->tenure == 0x02000002);
	EXPECT(fix_member(&f, f.p)->kept && fix_member(&f, f.t)->kept);
	kit_fini(&f.k);
}

TEST(recover, is_in_snapshots_and_deltas)
{
	struct state *copy;
	struct map m;
	struct fix f;

	fix_volume(&f, 3);
	recover(&f);
	back(&f, f.s);
	kit_copies(&f.k, &copy, &m);
	EXPECT_EQ(state_recoveries(copy), 1);
	EXPECT(map_object(&m, f.o->id)->unsure);
	EXPECT(map_node(&m, f.p)->awaited && !map_node(&m, f.s)->awaited);
	map_fini(&m);
	state_destroy(copy);
	kit_fini(&f.k);
}

TEST(recover, a_generation_that_is_the_last_one_is_refused)
{
	struct fix f;
	uint64_t digest;

	fix_volume(&f, 3);
	f.o->epoch = 0xff000001;
	digest = state_digest(f.k.s);
	EXPECT_RC(state_recover(f.k.s, 5000, 1, f.s, "root"), -ERR_LIMIT);
	EXPECT(digest == state_digest(f.k.s));
	kit_fini(&f.k);
}
