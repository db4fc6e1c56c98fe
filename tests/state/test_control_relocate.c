/* SPDX-License-Identifier: Apache-2.0 */
/* The leader moves replicas: what stays away is made anew, on purpose or not; jobs begin and end.
 * What replicators would do (drop, take over, promote) the test proposes in their names. */
#include "tests/state/fake_cluster.h"

#include <stdio.h>

static const struct map *map_of(void)
{
	return state_map(control_state(machine[1].control));
}

static void create(const char *name, unsigned copies)
{
	struct map_volume want = {.size = 1 << 30, .copies = (uint8_t)copies};
	static struct ask a;

	memset(&a, 0, sizeof(a));
	a.wait.resume = on_asked;
	snprintf(want.name, sizeof(want.name), "%s", name);
	EXPECT_EQ(control_volume_create(machine[1].control, &a.p, &want, "op", &a.wait), PENDING);
	UNTIL(a.done);
	EXPECT_OK(a.p.result.code);
}

/* What nodes of a real Raft do all the time: the leader asks, the others answer. */
static void beat(uint16_t silent)
{
	for (unsigned i = 0; i < ends; i++) {
		if (!end[i].m || end[i].closed)
			continue;
		if (end[i].m->id == fake.leader)
			fake_send(fake.leader, end[i].peer, "beat", 4);
		else if (end[i].m->id != silent)
			conn_send(end[i].conn, OP_RAFT, 0, "beat", 4, NULL, 0);
	}
}

#define UNTIL_BEATING(silent, cond)                                                                \
	do {                                                                                       \
		double end_ = seconds() + 10;                                                      \
		while (!(cond) && seconds() < end_) {                                              \
			beat(silent);                                                              \
			later();                                                                   \
		}                                                                                  \
		EXPECT(cond);                                                                      \
	} while (0)

static bool alive(const struct map_member *mb, uint16_t lost)
{
	const struct map_group *g = map_group(map_of(), mb->group);

	return g && g->node != lost;
}

/* As the objects' replicators would: drop and take over from what is on `lost`; promote the rest.
 */
static void replicate(uint16_t lost)
{
	const struct map_volume *v = map_volume(map_of(), 1);

	for (uint32_t i = 0; i < v->objects; i++) {
		const struct map_object *o = &v->object[i];
		const struct map_group *pg = map_group(map_of(), o->member[o->primary].group);
		struct object_change ch = {.object = o->id, .epoch = o->epoch, .incarnation = 1};

		for (unsigned k = 0; k < o->member_count; k++) {
			const struct map_member *mb = &o->member[k];

			ch.replica = *mb;
			ch.proposer = pg->node;
			if (pg->node == lost && mb->in && alive(mb, lost)) {
				ch.op = OBJ_TAKEOVER;
				ch.node = ch.proposer = map_group(map_of(), mb->group)->node;
			} else if (pg->node != lost && mb->in != alive(mb, lost)) {
				ch.op = mb->in ? OBJ_DROP : OBJ_PROMOTE;
			} else {
				continue;
			}
			control_propose_objects(machine[1].control, &ch, 1);
			break;
		}
	}
}

static unsigned members_on(uint16_t group)
{
	const struct map_volume *v = map_volume(map_of(), 1);
	unsigned n = 0;

	for (uint32_t i = 0; i < v->objects; i++)
		for (unsigned k = 0; k < v->object[i].member_count; k++)
			n += v->object[i].member[k].group == group;
	return n;
}

static const struct state_job *job(uint32_t id)
{
	return state_job(control_state(machine[1].control), id);
}

static bool whole(unsigned copies)
{
	const struct map_volume *v = map_volume(map_of(), 1);

	for (uint32_t i = 0; i < v->objects; i++)
		if (map_in_count(&v->object[i]) != copies || v->object[i].member_count != copies)
			return false;
	return true;
}

static void change_job(struct job_change ch)
{
	struct command c = {.kind = CMD_JOB, .job = ch};

	must(1, &c);
}

/* Of a node or a group, as job 1 of four nodes with volume 1. What stands in group 3, which is the one of
 * node 3. */
static unsigned begin_evacuation(uint16_t node, uint16_t group)
{
	unsigned before;

	fake_start(4);
	create("v", 2);
	before = members_on(3);
	change_job((struct job_change){
		.op = JOB_START, .kind = JOB_EVACUATE, .node = node, .group = group});
	return before;
}

TEST(relocate, a_node_that_stays_away_is_replaced)
{
	struct command c = setting(REBUILD_DELAY_KEY, "1");
	double lost_at;

	fake_start(4);
	must(1, &c);
	create("v", 2);
	EXPECT(members_on(4) > 0);
	cut_off(4);
	lost_at = seconds();
	replicate(4);
	UNTIL_BEATING(0, (replicate(4), job(1)));
	EXPECT(seconds() - lost_at > 0.9);
	EXPECT_EQ(job(1)->node, 4);
	EXPECT_STR(job(1)->actor, "cluster");
	UNTIL_BEATING(0, (replicate(4), job(1)->state == JOB_DONE));
	EXPECT_EQ(members_on(4), 0);
	EXPECT(whole(2));
	EXPECT(!job(2));
	fake_stop();
}

/* Its kernel keeps the connection; it answers nothing. */
TEST(relocate, a_frozen_node_stays_away_too)
{
	struct command c = setting(REBUILD_DELAY_KEY, "1");

	fake_start(4);
	must(1, &c);
	create("v", 2);
	UNTIL_BEATING(4, (replicate(4), job(1)));
	EXPECT_EQ(job(1)->node, 4);
	UNTIL_BEATING(4, (replicate(4), members_on(4) == 0));
	EXPECT(!job(2));
	fake_stop();
}

TEST(relocate, maintenance_suspends_the_rebuild)
{
	struct command c = setting(REBUILD_DELAY_KEY, "1");

	fake_start(5);
	must(1, &c);
	create("v", 3);
	c = (struct command){.kind = CMD_MAINTENANCE};
	c.maintenance.node = 4;
	c.maintenance.op = MAINTENANCE_START;
	c.maintenance.ttl_s = 600;
	must(1, &c);
	cut_off(4);
	cut_off(5);
	replicate(4);
	UNTIL_BEATING(0, (replicate(5), job(1)));
	EXPECT_EQ(job(1)->node, 5);
	EXPECT(!job(2));
	c.maintenance.op = MAINTENANCE_END;
	must(1, &c);
	UNTIL_BEATING(0, (replicate(4), job(2)));
	EXPECT_EQ(job(2)->node, 4);
	fake_stop();
}

/* Another leader finds the work where it stands. */
TEST(relocate, an_evacuation_goes_on_under_another_leader)
{
	struct command c;
	unsigned before = begin_evacuation(0, 3);

	EXPECT(before > RELOCATE_FILLS);
	EXPECT_EQ(job(1)->total, before);
	UNTIL_BEATING(0, (replicate(0), members_on(3) < before));
	fake_set_leader(2);
	UNTIL_BEATING(0, (replicate(0), job(1)->state == JOB_DONE));
	EXPECT_EQ(members_on(3), 0);
	EXPECT(whole(2));
	/* Nor does anything new come there. */
	create("w", 3);
	for (uint32_t i = 0; i < map_volume(map_of(), 2)->objects; i++)
		for (unsigned k = 0; k < 3; k++)
			EXPECT(map_volume(map_of(), 2)->object[i].member[k].group != 3);
	c = (struct command){.kind = CMD_GROUP_STATE};
	c.group_state.group = 3;
	c.group_state.state = GROUP_REMOVED;
	c.group_state.incarnation = 1;
	must(1, &c);
	fake_stop();
}

TEST(relocate, an_evacuation_is_not_done_while_another_moves_its_replicas)
{
	unsigned before = begin_evacuation(3, 0);

	change_job((struct job_change){.op = JOB_START, .kind = JOB_EVACUATE, .group = 3});
	UNTIL_BEATING(0, (replicate(0), members_on(3) < before));
	EXPECT_EQ(job(1)->state, JOB_RUNNING);
	EXPECT_EQ(job(2)->state, JOB_RUNNING);
	UNTIL_BEATING(0, (replicate(0), job(1)->state == JOB_DONE && job(2)->state == JOB_DONE));
	EXPECT_EQ(members_on(3), 0);
	EXPECT(state_job_holds(control_state(machine[1].control), job(1)));
	fake_stop();
}

TEST(relocate, a_paused_job_waits)
{
	unsigned before = begin_evacuation(0, 3);

	change_job((struct job_change){.op = JOB_PAUSE, .id = 1});
	/* Another job that ends shows that the leader has planned meanwhile. */
	change_job((struct job_change){.op = JOB_START, .kind = JOB_EVACUATE, .group = 4});
	UNTIL_BEATING(0, (replicate(0), members_on(4) == 0));
	/* What was begun was finished. */
	EXPECT(members_on(3) > 0 && members_on(3) + RELOCATE_SMALL_FILLS >= before);
	EXPECT_EQ(job(1)->state, JOB_PAUSED);
	change_job((struct job_change){.op = JOB_RESUME, .id = 1});
	change_job((struct job_change){.op = JOB_CANCEL, .id = 2});
	UNTIL_BEATING(0, (replicate(0), members_on(3) == 0));
	fake_stop();
}

TEST(relocate, an_added_node_gets_its_share_by_itself_if_so_set)
{
	struct command c = setting(REBALANCE_AUTO_KEY, "1");

	fake_start(4);
	change_job((struct job_change){.op = JOB_START, .kind = JOB_EVACUATE, .group = 4});
	create("v", 2);
	EXPECT_EQ(members_on(4), 0);
	change_job((struct job_change){.op = JOB_CANCEL, .id = 1});
	must(1, &c);
	UNTIL_BEATING(0, (replicate(0), job(2) && job(2)->kind == JOB_REBALANCE));
	EXPECT(job(2)->total > 0);
	UNTIL_BEATING(0, (replicate(0), job(2)->state == JOB_DONE));
	EXPECT(members_on(4) * 5 > members_on(1) * 4);
	EXPECT(whole(2));
	fake_stop();
}

/* ---- Removal ---- */

static void keep_beating(unsigned turns)
{
	while (turns--) {
		replicate(0);
		beat(0);
		turn();
	}
}

/* A voter, then the leader itself. */
TEST(removal, a_node_is_emptied_gives_up_its_vote_and_leaves)
{
	fake_start(5);
	create("v", 2);
	UNTIL(fake_members(CONSENSUS_VOTES) == 3);
	for (uint32_t id = 1; id <= 2; id++) {
		uint16_t gone = id == 1 ? 3 : 1;

		EXPECT(members_on(gone) > 0);
		EXPECT_EQ(fake.member[gone], CONSENSUS_VOTES);
		change_job((struct job_change){.op = JOB_START, .kind = JOB_REMOVE, .node = gone});
		while (members_on(gone) > 0) {
			EXPECT(fake.member[gone] == CONSENSUS_VOTES); /* not before */
			keep_beating(1);
		}
		UNTIL_BEATING(0, (replicate(0), job(id)->state == JOB_DONE));
		EXPECT_EQ(map_node(map_of(), gone)->state, NODE_REMOVED);
		EXPECT_EQ(map_group(map_of(), gone)->state, GROUP_REMOVED);
		UNTIL_BEATING(0, fake.member[gone] == CONSENSUS_NO_MEMBER);
		EXPECT_EQ(fake_members(CONSENSUS_VOTES), 3);
		EXPECT(whole(2));
	}
	EXPECT(fake.leader != 1);
	fake_stop();
}

/* Until the last step it can be taken back, and it waits for a pause and for gateways. */
TEST(removal, it_waits_and_is_cancelled)
{
	struct command c = {.kind = CMD_ATTACH};
	char holder[80] = "node:";

	fake_start(4);
	create("v", 1);
	uuid_format(&map_node(map_of(), 4)->uuid, holder + 5);
	c.attach.volume = 1;
	c.attach.mode = ATTACH_SHARED;
	snprintf(c.attach.holder, sizeof(c.attach.holder), "%s", holder);
	must(1, &c);
	change_job((struct job_change){.op = JOB_START, .kind = JOB_REMOVE, .node = 4});
	UNTIL_BEATING(0, (replicate(0), members_on(4) == 0));
	keep_beating(50);
	EXPECT_EQ(map_node(map_of(), 4)->state, NODE_ACTIVE);
	EXPECT_EQ(fake.member[4], CONSENSUS_FOLLOWS);
	change_job((struct job_change){.op = JOB_PAUSE, .id = 1});
	c = (struct command){.kind = CMD_DETACH, .detach = {1}};
	must(1, &c);
	keep_beating(50);
	EXPECT_EQ(map_node(map_of(), 4)->state, NODE_ACTIVE);
	change_job((struct job_change){.op = JOB_CANCEL, .id = 1});
	keep_beating(50);
	EXPECT_EQ(map_node(map_of(), 4)->state, NODE_ACTIVE);
	change_job((struct job_change){.op = JOB_START, .kind = JOB_REMOVE, .node = 4});
	UNTIL_BEATING(0, (replicate(0), map_node(map_of(), 4)->state == NODE_REMOVED));
	fake_stop();
}
