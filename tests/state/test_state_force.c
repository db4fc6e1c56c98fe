/* SPDX-License-Identifier: Apache-2.0 */
/* Force and quarantine in the state machine. Object 1:0 has copies on groups (nodes) P and S, P is its
 * primary; S was dropped, P is away. */
#include "cluster/map_codec.h"
#include "tests/state/state_kit.h"

static struct object_change change(struct fix *f, uint8_t op, uint16_t who, uint16_t proposer)
{
	struct map_node *n = map_node(kit_map(&f->k), op == OBJ_FORCE ? who : proposer);
	struct map_member *mb = fix_member(f, who);
	struct object_change ch = {.op = op,
				   .object = f->o->id,
				   .epoch = f->o->epoch,
				   .node = who,
				   .proposer = proposer,
				   .incarnation = n ? n->incarnation : 0};

	if (mb)
		ch.replica = *mb;
	return ch;
}

static struct object_change force(struct fix *f, uint16_t who)
{
	return change(f, OBJ_FORCE, who, 0);
}

/* Alone in I is P, as S was dropped. */
static void fix_init(struct fix *f)
{
	fix_volume(f, 2);
	EXPECT_EQ(kit_change(&f->k, change(f, OBJ_DROP, f->s, f->p)), OBJ_DONE);
}

/* A new process of P's node: the one that the tenure is bound to is gone. */
static void restart(struct fix *f, uint16_t node)
{
	uint32_t now = map_node(kit_map(&f->k), node)->incarnation;

	EXPECT_OK(kit_start(&f->k, node, now, now + 1));
}

static void expect_forced(struct fix *f, uint16_t to, uint32_t epoch)
{
	EXPECT_EQ(f->o->epoch, epoch);
	EXPECT_EQ(f->o->tenure, epoch);
	EXPECT_EQ(map_in_count(f->o), 1);
	EXPECT(fix_member(f, to)->in && fix_member(f, to)->filled && !fix_member(f, to)->kept);
	EXPECT_EQ(map_primary_node(kit_map(&f->k), f->o)->id, to);
	EXPECT_EQ(f->o->primary_incarnation, map_node(kit_map(&f->k), to)->incarnation);
}

TEST(force, raises_the_generation_and_quarantines_the_others)
{
	struct state_event e;
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	expect_forced(&f, f.s, 0x01000003); /* the counter goes on */
	EXPECT(!fix_member(&f, f.p)->in && fix_member(&f, f.p)->kept && fix_member(&f, f.p)->filled);
	EXPECT_EQ(state_events(f.k.s, &e, 1), 1);
	EXPECT_STR(e.code, "DATA_FORCED");
	EXPECT_STR(e.actor, "tester");
	EXPECT_EQ(e.severity, 2);
	EXPECT(strstr(e.text, "volume v: 1 object goes on"));
	kit_fini(&f.k);
}

/* A process that may be alive, unheard, may have its clients yet. */
TEST(force, is_refused_while_the_primary_may_serve)
{
	struct fix f;

	fix_init(&f);
	fix_refused(&f, force(&f, f.s), OBJ_SERVED);
	EXPECT_OK(kit_node_state(&f.k, f.p, NODE_DEAD)); /* somebody says so */
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	EXPECT(fix_member(&f, f.p)->kept);
	kit_fini(&f.k);

	fix_init(&f);
	EXPECT_OK(kit_group_state(&f.k, f.p, GROUP_FAILED, 0, 1)); /* it says so itself */
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	kit_fini(&f.k);

	fix_init(&f); /* the primary stopped, and asks for it */
	fix_refused(&f, change(&f, OBJ_FORCE, f.s, f.s), OBJ_SERVED);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_FORCE, f.s, f.p)), OBJ_DONE);
	kit_fini(&f.k);

	fix_init(&f); /* its last replica, which cannot serve, is to: nobody else is concerned */
	EXPECT_EQ(kit_change(&f.k, force(&f, f.p)), OBJ_DONE);
	expect_forced(&f, f.p, 0x01000003);
	EXPECT(fix_member(&f, f.s)->kept);
	kit_fini(&f.k);
}

/* A group that was called failed works when a replica on it takes over, whatever the reports say. */
TEST(force, a_takeover_on_a_failed_group_makes_it_serve)
{
	struct object_change ch;
	struct fix f;

	fix_init(&f);
	EXPECT_OK(kit_group_state(&f.k, f.p, GROUP_FAILED, 0, 1));
	restart(&f, f.p);
	ch = change(&f, OBJ_TAKEOVER, f.p, f.p);
	ch.replica = (struct map_member){0};
	EXPECT_EQ(kit_change(&f.k, ch), OBJ_DONE);
	fix_refused(&f, force(&f, f.s), OBJ_SERVED);
	EXPECT_EQ(map_group(kit_map(&f.k), f.p)->state, GROUP_ACTIVE);
	kit_fini(&f.k);
}

TEST(force, goes_to_a_member_on_a_current_group_and_node)
{
	struct object_change ch;
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	ch = force(&f, f.s);
	ch.epoch--;
	fix_refused(&f, ch, OBJ_CONFLICT);
	ch = force(&f, f.s);
	ch.replica.gen++;
	fix_refused(&f, ch, OBJ_NOT_MEMBER);
	ch = force(&f, f.s);
	ch.incarnation++;
	fix_refused(&f, ch, OBJ_INCARNATION);
	ch = force(&f, f.s);
	ch.node = f.p;
	fix_refused(&f, ch, OBJ_INCARNATION);
	EXPECT_OK(kit_node_state(&f.k, f.s, NODE_DEAD));
	fix_refused(&f, force(&f, f.s), OBJ_INCARNATION);
	f.o->epoch = 0xff000001;
	fix_refused(&f, force(&f, f.p), OBJ_EPOCH_LIMIT);
	kit_fini(&f.k);
}

/* What is in quarantine is nobody's to touch, and is never made in-sync but by a force. */
TEST(force, the_quarantine_holds)
{
	struct object_change ch;
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_PROMOTE, f.p, f.s), OBJ_KEPT);
	fix_refused(&f, change(&f, OBJ_REMOVE, f.p, 1), OBJ_KEPT);
	fix_refused(&f, change(&f, OBJ_TAKEOVER, f.p, f.p), OBJ_NOT_IN);
	ch = change(&f, OBJ_PLACE, 0, 1);
	ch.replica = (struct map_member){.group = f.p, .group_incarnation = 1};
	fix_refused(&f, ch, OBJ_IS_IN);
	fix_refused(&f, change(&f, OBJ_DISCARD, f.s, 0), OBJ_NOT_KEPT);
	kit_fini(&f.k);
}

/* A primary that finds more at a replica than it has itself does not copy over it. */
TEST(force, a_primary_puts_what_has_more_in_quarantine)
{
	struct state_event e;
	struct fix f;

	fix_volume(&f, 2);
	fix_refused(&f, change(&f, OBJ_QUARANTINE, f.s, f.p), OBJ_IS_IN);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DROP, f.s, f.p)), OBJ_DONE);
	fix_refused(&f, change(&f, OBJ_QUARANTINE, f.s, f.s), OBJ_NOT_MEMBER);
	fix_refused(&f, change(&f, OBJ_QUARANTINE, f.s, 0), OBJ_NOT_MEMBER); /* the operator's is force */
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_QUARANTINE, f.s, f.p)), OBJ_DONE);
	EXPECT(fix_member(&f, f.s)->kept && !fix_member(&f, f.s)->in && fix_member(&f, f.p)->in);
	state_events(f.k.s, &e, 1);
	EXPECT_STR(e.code, "DATA_QUARANTINED");
	fix_refused(&f, change(&f, OBJ_QUARANTINE, f.s, f.p), OBJ_KEPT);
	fix_refused(&f, change(&f, OBJ_PROMOTE, f.s, f.p), OBJ_KEPT);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DISCARD, f.s, 0)), OBJ_DONE);
	kit_fini(&f.k);
}

/* What all of I lack holds the object until somebody decided: by a force, or once nothing is in quarantine
 * any more, given up or gone with its group. */
static void fix_undecided(struct fix *f)
{
	struct object_change ch;

	fix_init(f);
	ch = change(f, OBJ_QUARANTINE, f->s, f->p);
	ch.keep = 1;
	EXPECT_EQ(kit_change(&f->k, ch), OBJ_DONE);
	EXPECT(f->o->undecided && fix_member(f, f->s)->kept);
}

TEST(force, what_is_undecided_stays_so_until_an_operator_decides)
{
	struct state *copy;
	struct map m;
	struct fix f;

	fix_undecided(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_TAKEOVER, f.p, f.p)), OBJ_DONE);
	EXPECT(f.o->undecided);
	kit_copies(&f.k, &copy, &m);
	EXPECT(map_object(state_map(copy), f.o->id)->undecided && map_object(&m, f.o->id)->undecided);
	map_fini(&m);
	state_destroy(copy);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.p)), OBJ_DONE);
	EXPECT(!f.o->undecided && fix_member(&f, f.s)->kept);
	kit_fini(&f.k);

	fix_undecided(&f);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DISCARD, f.s, 0)), OBJ_DONE);
	EXPECT(!f.o->undecided);
	kit_fini(&f.k);

	fix_undecided(&f);
	EXPECT_OK(kit_regroup(&f.k, f.s, f.s, 1, 2));
	EXPECT(!f.o->undecided && !fix_member(&f, f.s)->kept);
	kit_fini(&f.k);
}

/* Without one in quarantine there is nothing to decide about: no such record is ours. */
TEST(force, an_undecided_record_without_a_quarantine_is_refused)
{
	struct map_object o = {.epoch = 2, .tenure = 1, .member_count = 2, .undecided = true}, back;
	uint8_t bytes[128];
	struct writer w;
	struct reader r;

	o.member[0].in = true;
	for (int kept = 0; kept < 2; kept++) {
		o.member[1].kept = kept;
		w = writer_init(bytes, sizeof(bytes));
		map_object_write(&w, &o);
		r = reader_init(bytes, w.len);
		map_object_read(&r, &back);
		EXPECT(r.bad == !kept && back.undecided);
	}
}

/* The choice can be taken back. */
TEST(force, back_to_what_is_in_quarantine)
{
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	fix_refused(&f, force(&f, f.p), OBJ_SERVED);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_FORCE, f.p, f.s)), OBJ_DONE);
	expect_forced(&f, f.p, 0x02000004);
	EXPECT(fix_member(&f, f.s)->kept);
	kit_fini(&f.k);
}

TEST(force, discard_makes_room_for_another_replica)
{
	struct state_event e;
	struct object_change ch;
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	EXPECT_EQ(kit_change(&f.k, change(&f, OBJ_DISCARD, f.p, 0)), OBJ_DONE);
	EXPECT_EQ(f.o->member_count, 1);
	EXPECT(f.o->epoch == 0x01000004 && f.o->tenure == 0x01000003 && f.o->primary == 0);
	state_events(f.k.s, &e, 1);
	EXPECT_STR(e.code, "QUARANTINE_DISCARDED");
	EXPECT_STR(e.actor, "tester");
	ch = change(&f, OBJ_PLACE, 0, 1);
	ch.replica = (struct map_member){.group = f.p, .group_incarnation = 1};
	EXPECT_EQ(kit_change(&f.k, ch), OBJ_DONE);
	EXPECT(fix_member(&f, f.p)->gen == f.o->epoch && !fix_member(&f, f.p)->kept);
	kit_fini(&f.k);
}

/* A group that lost its replicas has none to be kept; one that lost its log only has. */
TEST(force, regroup_ends_a_quarantine_that_is_empty)
{
	struct command c = {.kind = CMD_REGROUP};
	struct fix f;

	fix_init(&f);
	EXPECT_OK(kit_regroup(&f.k, f.p, f.p, 1, 2)); /* P's replica is listed as lost */
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	EXPECT(!f.o->member[0].kept && f.o->member[0].group_incarnation == 1);
	EXPECT(f.o->member[2].kept); /* the one that it became */
	EXPECT_OK(kit_regroup(&f.k, f.p, f.p, 2, 3));
	EXPECT(!fix_member(&f, f.p)->kept);
	kit_fini(&f.k);

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	c.regroup.group = c.regroup.node = f.p;
	c.regroup.old_incarnation = 1;
	c.regroup.new_incarnation = 2;
	c.regroup.keeps_pages = true;
	EXPECT_OK(kit_apply(&f.k, &c));
	EXPECT(fix_member(&f, f.p)->kept && fix_member(&f, f.p)->group_incarnation == 2);
	kit_fini(&f.k);
}

TEST(force, is_in_snapshots_and_deltas)
{
	struct state *copy;
	struct map m;
	struct fix f;

	fix_init(&f);
	restart(&f, f.p);
	EXPECT_EQ(kit_change(&f.k, force(&f, f.s)), OBJ_DONE);
	kit_copies(&f.k, &copy, &m);
	EXPECT(map_object(state_map(copy), f.o->id)->member[0].kept);
	EXPECT(map_object(&m, f.o->id)->member[0].kept && !map_object(&m, f.o->id)->member[1].kept);
	map_fini(&m);
	state_destroy(copy);
	kit_fini(&f.k);
}
