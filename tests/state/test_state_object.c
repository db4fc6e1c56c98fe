/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of objects: the table of commands and refusals, rule by rule. Object 1:0 has
 * copies on groups (nodes) P, S and T; P is its primary. */
#include "tests/state/state_kit.h"

static struct object_change change(struct fix *f, uint8_t op, uint16_t who, uint16_t proposer)
{
	struct map_member *mb = fix_member(f, who);
	struct object_change ch = {
		.op = op, .object = f->o->id, .epoch = f->o->epoch, .proposer = proposer};

	if (mb)
		ch.replica = *mb;
	ch.incarnation = map_node(kit_map(&f->k), proposer)->incarnation;
	return ch;
}

static struct object_change place(struct fix *f, uint16_t group)
{
	struct object_change ch = change(f, OBJ_PLACE, 0, 1);

	ch.replica = (struct map_member){.group = group, .group_incarnation = 1};
	return ch;
}

/* That has none of two copies. */
static uint16_t fresh_group(const struct fix *f)
{
	uint16_t fresh = 1;

	while (fresh == f->p || fresh == f->s)
		fresh++;
	return fresh;
}

static struct object_change takeover(struct fix *f, uint16_t node, uint16_t proposer, bool keep)
{
	return (struct object_change){.op = OBJ_TAKEOVER,
				      .keep = keep,
				      .object = f->o->id,
				      .epoch = f->o->epoch,
				      .node = node,
				      .proposer = proposer,
				      .incarnation = map_node(kit_map(&f->k), node)->incarnation};
}

TEST(object, drop_raises_the_epoch_not_the_tenure)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	EXPECT_EQ(f.o->epoch, 2);
	EXPECT_EQ(f.o->tenure, 1);
	EXPECT_EQ(map_in_count(f.o), 2);
	EXPECT(!fix_member(&f, f.s)->in);
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.p), OBJ_NOT_IN);
	kit_fini(&f.k);
}

TEST(object, a_stale_epoch_is_a_conflict)
{
	struct fix f;
	struct object_change ch;

	fix_volume(&f, 3);
	ch = change(&f, OBJ_DROP, f.s, f.p);
	ch.epoch++;
	fix_refused(&f, ch, OBJ_CONFLICT);
	ch.epoch -= 2;
	fix_refused(&f, ch, OBJ_CONFLICT);
	ch.object = object_id(1, 999);
	fix_refused(&f, ch, OBJ_NO_OBJECT);
	ch.object = object_id(9, 0);
	fix_refused(&f, ch, OBJ_NO_OBJECT);
	ch = change(&f, 77, f.s, f.p);
	fix_refused(&f, ch, OBJ_UNKNOWN);
	kit_fini(&f.k);
}

TEST(object, drop_is_for_the_primary_or_the_replicas_own_node)
{
	struct fix f;
	struct object_change ch;

	fix_volume(&f, 3);
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.t), OBJ_NOT_MEMBER);
	ch = change(&f, OBJ_DROP, f.s, f.p);
	ch.replica.gen++; /* another replica on the same group */
	fix_refused(&f, ch, OBJ_NOT_MEMBER);
	ch = change(&f, OBJ_DROP, f.s, f.p);
	ch.incarnation = 0; /* a process from before a restart */
	fix_refused(&f, ch, OBJ_INCARNATION);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.s)), OBJ_DONE); /* resign */
	kit_fini(&f.k);
}

TEST(object, the_last_in_replica_is_never_dropped)
{
	struct fix f;

	fix_volume(&f, 2);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_DROP, f.p, f.p), OBJ_WOULD_EMPTY);
	kit_fini(&f.k);
}

/* C2: after a restart the primary must take over itself before it may change anything. */
TEST(object, a_restarted_primary_proposes_nothing_before_its_takeover)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_OK(kit_start(&f.k, f.p, 1, 2));
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.p), OBJ_NOT_MEMBER);
	EXPECT_EQ(kit_change(&f.k, takeover(&f, f.p, f.p, false)), OBJ_DONE);
	EXPECT_EQ(f.o->epoch, 2);
	EXPECT_EQ(f.o->tenure, 2);
	EXPECT_EQ(f.o->primary_incarnation, 2);
	EXPECT_EQ(map_in_count(f.o), 3); /* the same node: nobody goes out */
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	kit_fini(&f.k);
}

TEST(object, promote_needs_an_out_member_of_the_current_incarnation)
{
	struct fix f;
	struct object_change ch;

	fix_volume(&f, 3);
	fix_refused(&f, change(&f, OBJ_PROMOTE, f.s, f.p), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_PROMOTE, f.s, f.s), OBJ_NOT_MEMBER); /* not by itself */
	ch = change(&f, OBJ_PROMOTE, f.s, f.p);
	ch.incarnation++;
	fix_refused(&f, ch, OBJ_INCARNATION);
	ch = change(&f, OBJ_PROMOTE, f.s, f.p);
	ch.replica.group_incarnation++;
	fix_refused(&f, ch, OBJ_NOT_MEMBER);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_PROMOTE, f.s, f.p)), OBJ_DONE);
	EXPECT_EQ(map_in_count(f.o), 3);
	EXPECT_EQ(f.o->epoch, 3);
	EXPECT_EQ(f.o->tenure, 1);
	kit_fini(&f.k);
}

TEST(object, takeover_puts_the_old_primary_out)
{
	struct fix f;
	struct object_change ch;

	fix_volume(&f, 3);
	ch = takeover(&f, f.s, f.s, false);
	ch.incarnation++;
	fix_refused(&f, ch, OBJ_INCARNATION);
	fix_refused(&f, takeover(&f, f.s, f.t, false),
		       OBJ_NOT_MEMBER); /* only N or the primary */
	for (uint16_t n = 1; n <= 4; n++)
		if (n != f.p && n != f.s && n != f.t)
			fix_refused(&f, takeover(&f, n, n, false), OBJ_NOT_MEMBER);
	EXPECT_EQ(kit_change(&f.k, takeover(&f, f.s, f.s, false)), OBJ_DONE);
	EXPECT_EQ(f.o->tenure, 2);
	EXPECT_EQ(map_primary_node(kit_map(&f.k), f.o)->id, f.s);
	EXPECT(!fix_member(&f, f.p)->in);
	EXPECT_EQ(map_in_count(f.o), 2);
	fix_refused(&f, takeover(&f, f.p, f.p, false),
		       OBJ_NOT_IN); /* out replicas never take over */
	kit_fini(&f.k);
}

TEST(object, planned_move_keeps_the_old_primary_in)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_EQ(kit_change(&f.k, takeover(&f, f.s, f.p, true)), OBJ_DONE);
	EXPECT_EQ(map_primary_node(kit_map(&f.k), f.o)->id, f.s);
	EXPECT_EQ(map_in_count(f.o), 3);
	EXPECT_EQ(f.o->tenure, 2);
	kit_fini(&f.k);
}

TEST(object, a_dead_nodes_incarnation_is_banned)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_OK(kit_node_state(&f.k, f.s, NODE_DEAD));
	fix_refused(&f, takeover(&f, f.s, f.s, false), OBJ_INCARNATION);
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.s), OBJ_INCARNATION);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	kit_fini(&f.k);
}

/* A primary that resigned is no primary any more: it may not drop others, and anyone in I takes
 * over. */
TEST(object, a_resigned_primary_has_no_say)
{
	struct fix f;

	fix_volume(&f, 3);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.p, f.p)), OBJ_DONE);
	EXPECT(!map_primary_node(kit_map(&f.k), f.o));
	fix_refused(&f, change(&f, OBJ_DROP, f.s, f.p), OBJ_NOT_MEMBER);
	fix_refused(&f, takeover(&f, f.p, f.p, false), OBJ_NOT_IN);
	fix_refused(&f, change(&f, OBJ_REMOVE, f.p, f.p), OBJ_NEEDED);
	EXPECT_EQ(kit_change(&f.k, takeover(&f, f.t, f.t, false)), OBJ_DONE);
	EXPECT_EQ(map_primary_node(kit_map(&f.k), f.o)->id, f.t);
	kit_fini(&f.k);
}

TEST(object, place_and_remove)
{
	struct fix f;
	struct object_change ch;
	uint16_t fresh;

	fix_volume(&f, 2);
	fresh = fresh_group(&f);
	ch = place(&f, fresh);
	ch.replica.group_incarnation = 2;
	fix_refused(&f, ch, OBJ_INCARNATION);
	fix_refused(&f, place(&f, f.s), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&f.k, place(&f, fresh)), OBJ_DONE);
	EXPECT_EQ(fix_member(&f, fresh)->gen, 2);
	EXPECT(!fix_member(&f, fresh)->in);

	fix_refused(&f, change(&f, OBJ_REMOVE, f.s, 1), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_REMOVE, f.s, 1), OBJ_NEEDED); /* one in, two wanted */
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_PROMOTE, fresh, f.p)), OBJ_DONE);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_REMOVE, f.s, 1)), OBJ_DONE);
	EXPECT_EQ(f.o->member_count, 2);
	ch = change(&f, OBJ_REMOVE, f.s, 1);
	ch.replica.group = f.s;
	fix_refused(&f, ch, OBJ_NOT_MEMBER);
	/* Placed again it is another replica. */
	EXPECT_EQ(kit_change(&f.k, place(&f, f.s)), OBJ_DONE);
	EXPECT_EQ(fix_member(&f, f.s)->gen, f.o->epoch);
	kit_fini(&f.k);
}

TEST(object, regroup_puts_the_groups_replicas_out)
{
	struct fix f;
	struct object_change old;

	fix_volume(&f, 2);
	old = change(&f, OBJ_DROP, f.s, f.p);
	EXPECT_RC(kit_regroup(&f.k, 99, 1, 1, 2), -ERR_NOT_FOUND);
	EXPECT_RC(kit_regroup(&f.k, f.s, f.p, 1, 2), -ERR_FOREIGN);
	EXPECT_RC(kit_regroup(&f.k, f.s, f.s, 3, 4), -ERR_STALE);
	EXPECT_RC(kit_regroup(&f.k, f.s, f.s, 1, 1), -ERR_STALE);
	EXPECT_OK(kit_regroup(&f.k, f.s, f.s, 1, 2));
	EXPECT_OK(kit_regroup(&f.k, f.s, f.s, 1, 2)); /* the same again */
	EXPECT_EQ(f.o->member_count, 2);
	EXPECT(!fix_member(&f, f.s)->in);
	EXPECT_EQ(fix_member(&f, f.s)->group_incarnation, 2);
	EXPECT_EQ(fix_member(&f, f.s)->gen, 2);
	EXPECT_EQ(f.o->epoch, 2);
	old.epoch = f.o->epoch;
	fix_refused(&f, old, OBJ_NOT_MEMBER); /* the old replica is not a member any more */
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_PROMOTE, f.s, f.p)), OBJ_DONE);
	kit_fini(&f.k);
}

TEST(object, regroup_leaves_a_last_replica_listed_as_lost)
{
	struct fix f;

	fix_volume(&f, 2);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	EXPECT_OK(kit_regroup(&f.k, f.p, f.p, 1, 2));
	EXPECT_EQ(f.o->member_count, 3);
	EXPECT_EQ(map_in_count(f.o), 1);
	EXPECT(f.o->member[0].in);
	EXPECT_EQ(f.o->member[0].group_incarnation, 1); /* lost */
	EXPECT(!map_primary_node(kit_map(&f.k), f.o));
	EXPECT_EQ(f.o->member[2].group, f.p);
	EXPECT_EQ(f.o->member[2].group_incarnation, 2);
	EXPECT_EQ(f.o->member[2].gen, f.o->epoch);
	/* Nobody can take over: out replicas never do, and the lost one's incarnation is over. */
	fix_refused(&f, takeover(&f, f.s, f.s, false), OBJ_NOT_IN);
	fix_refused(&f, takeover(&f, f.p, f.p, false), OBJ_NOT_IN);
	EXPECT_OK(kit_regroup(&f.k, f.p, f.p, 2, 3)); /* once more: still one lost, one new */
	EXPECT_EQ(f.o->member_count, 3);
	EXPECT_EQ(f.o->member[2].group_incarnation, 3);
	EXPECT_EQ(map_in_count(f.o), 1);
	kit_fini(&f.k);
}

/* The counter's 24 bits are never wrapped. */
TEST(object, the_last_epoch_is_refused)
{
	struct fix f;

	fix_volume(&f, 3);
	f.o->epoch = 0x01ffffff; /* recovery generation 1 */
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_EPOCH_LIMIT);
	EXPECT_RC(kit_regroup(&f.k, f.s, f.s, 1, 2), -ERR_LIMIT);
	EXPECT_EQ(map_group(kit_map(&f.k), f.s)->incarnation, 1);
	kit_fini(&f.k);
}

TEST(object, many_changes_have_one_result_each)
{
	struct fix f;
	struct object_change ch[3];
	struct command c = {.kind = CMD_OBJECT};

	fix_volume(&f, 3);
	ch[0] = change(&f, OBJ_DROP, f.s, f.p);
	ch[1] = change(&f, OBJ_DROP, f.t, f.p); /* on the same epoch: too late */
	ch[2] = ch[1];
	ch[2].object = object_id(7, 7);
	c.object.count = 3;
	c.object.change = ch;
	EXPECT_OK(kit_apply(&f.k, &c));
	EXPECT_EQ(f.k.out.object[0], OBJ_DONE);
	EXPECT_EQ(f.k.out.object[1], OBJ_CONFLICT);
	EXPECT_EQ(f.k.out.object[2], OBJ_NO_OBJECT);
	kit_fini(&f.k);
}

TEST(object, place_is_bounded_by_the_member_limit)
{
	struct fix f;

	fix_volume(&f, 1);
	for (uint16_t g = 5; f.o->member_count < MEMBERS_MAX; g++) {
		EXPECT_OK(kit_group(&f.k, (uint16_t)(g % 4 + 1), 400u + g));
		EXPECT_OK(kit_group_state(&f.k, g, GROUP_ACTIVE, 20, 1));
		EXPECT_EQ(kit_change(&f.k, place(&f, g)), OBJ_DONE);
	}
	fix_refused(&f, place(&f, (uint16_t)(f.p % 4 + 1)), OBJ_FULL);
	kit_fini(&f.k);
}

/* Enough others are in sync, and still the primary's entry stays until somebody took over. */
TEST(object, the_primarys_entry_is_not_removed)
{
	struct fix f;
	uint16_t fresh;

	fix_volume(&f, 2);
	fresh = fresh_group(&f);
	EXPECT_EQ(kit_change(&f.k, place(&f, fresh)), OBJ_DONE);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_PROMOTE, fresh, f.p)), OBJ_DONE);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.p, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_REMOVE, f.p, 1), OBJ_NEEDED);
	EXPECT_EQ(kit_change(&f.k, takeover(&f, f.s, f.s, false)), OBJ_DONE);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_REMOVE, f.p, 1)), OBJ_DONE);
	EXPECT_EQ(map_primary_node(kit_map(&f.k), f.o)->id, f.s);
	kit_fini(&f.k);
}
