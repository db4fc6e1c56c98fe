/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane over the real Raft, three nodes on one loop: birth, voters, loss of the leader,
 * return from the log and from a snapshot. */
#include "tests/state/control_kit.h"

static unsigned tests_run; /* each has directories of its own */

static const char *dir(uint16_t id)
{
	static char path[MACHINES][300];

	snprintf(path[id], sizeof(path[id]), "%s/raft%u.%u", test_dir(), tests_run, id);
	return path[id];
}

static unsigned voters(uint16_t id)
{
	struct consensus_status st;

	control_status(machine[id].control, &st);
	return st.voters;
}

static uint16_t leader_of(uint16_t id)
{
	struct consensus_status st;

	control_status(machine[id].control, &st);
	return st.leader;
}

static const char *value(uint16_t id, const char *key)
{
	const char *v = state_setting(control_state(machine[id].control), key);

	return v ? v : "";
}

static struct command free_steps(unsigned steps)
{
	struct command c = {.kind = CMD_GROUP_STATE};

	c.group_state.group = 1;
	c.group_state.state = GROUP_ACTIVE;
	c.group_state.free_steps = (uint8_t)steps;
	c.group_state.incarnation = 1;
	return c;
}

static uint16_t nodes;

/* The three that found the cluster vote before more come: votes go to whoever is heard first. */
static void start_nodes(uint16_t n)
{
	nodes = n;
	tests_run++;
	cluster_start(3, dir);
	for (uint16_t i = 1; i <= 3; i++)
		UNTIL(voters(i) == 3);
	for (uint16_t i = 4; i <= n; i++) {
		node_start(i, false, dir(i));
		for (uint16_t k = 1; k < i; k++)
			connect_nodes(k, i);
		node_join(i);
		UNTIL(voters(i) == 3);
	}
}

static void start(void)
{
	start_nodes(3);
}

static void crash(uint16_t id)
{
	cut_off(id);
	control_stop(machine[id].control, on_stopped);
	UNTIL(machine[id].stopped);
}

static void restart(uint16_t id)
{
	map_fini(&machine[id].map);
	node_start(id, false, dir(id));
	for (uint16_t i = 1; i <= nodes; i++)
		if (i != id && !machine[i].stopped)
			connect_nodes(i, id);
}

TEST(control_raft, three_nodes_survive_the_loss_of_any_leader)
{
	struct command c;
	char v[8];

	start();
	for (unsigned round = 0; round < 4; round++) {
		uint16_t lost = leader_of(1), other = (uint16_t)(lost % 3 + 1),
			 third = (uint16_t)(other % 3 + 1);

		snprintf(v, sizeof(v), "%u", round);
		c = setting("before", v);
		must(other, &c);
		crash(lost);
		control_peer_refused(machine[other].control, lost);
		control_peer_refused(machine[third].control, lost);
		c = setting("after", v);
		must(third, &c); /* waits for the election */
		EXPECT(leader_of(third) != lost);
		restart(lost);
		UNTIL(!strcmp(value(lost, "before"), v) && !strcmp(value(lost, "after"), v));
		UNTIL(machine[lost].map.version == machine[other].map.version);
		expect_same_map(&machine[lost].map, &machine[other].map);
		UNTIL(leader_of(1) == leader_of(2) && leader_of(2) == leader_of(3) && leader_of(1));
	}
	finish();
}

TEST(control_raft, a_node_that_missed_much_returns_by_snapshot)
{
	enum { BATCH = 200, BATCHES = 25 };
	static struct ask a[BATCH];
	struct consensus_status st;
	struct command c;
	uint64_t known;

	start();
	known = machine[3].map.version;
	crash(3);
	for (unsigned b = 0; b < BATCHES; b++) {
		for (unsigned i = 0; i < BATCH; i++) {
			c = free_steps(i % 2 + b % 2 + 1);
			propose(1, &a[i], &c, 10000);
		}
		for (unsigned i = 0; i < BATCH; i++)
			UNTIL(a[i].done);
		EXPECT_OK(a[BATCH - 1].rc);
	}
	restart(3);
	/* Events are no part of the map, and a slow machine may have the leader write one just now. */
	UNTIL(machine[3].map.version == machine[1].map.version &&
	      state_digest(control_state(machine[3].control)) ==
		      state_digest(control_state(machine[1].control)));
	expect_same_map(&machine[3].map, &machine[1].map);
	control_status(machine[3].control, &st);
	EXPECT(st.snapshot_index > known + BATCH); /* and not entry by entry */
	finish();
}

/* All at once, from their logs alone. */
TEST(control_raft, everything_comes_back_after_all_stopped)
{
	struct command c;
	uint64_t digest;

	start();
	c = setting("k", "v");
	must(2, &c);
	UNTIL(!strcmp(value(1, "k"), "v") && !strcmp(value(3, "k"), "v"));
	digest = state_digest(control_state(machine[1].control));
	for (uint16_t i = 1; i <= 3; i++)
		crash(i);
	for (uint16_t i = 1; i <= 3; i++) {
		map_fini(&machine[i].map);
		node_start(i, false, dir(i));
	}
	for (uint16_t i = 1; i <= 3; i++)
		for (uint16_t k = (uint16_t)(i + 1); k <= 3; k++)
			connect_nodes(i, k);
	for (uint16_t i = 1; i <= 3; i++)
		UNTIL(!strcmp(value(i, "k"), "v"));
	EXPECT(state_digest(control_state(machine[2].control)) == digest);
	c = setting("k", "w");
	must(3, &c);
	finish();
}

/* Voters. */

static bool votes(uint16_t at, uint16_t id)
{
	struct consensus_status st;

	control_status(machine[at].control, &st);
	for (unsigned i = 0; i < st.voters; i++)
		if (st.voter[i] == id)
			return true;
	return false;
}

TEST(control_raft, a_lost_voter_is_replaced_and_stands_by_when_it_is_back)
{
	struct command c = setting(VOTER_DELAY_KEY, "1");
	double lost_at;

	start_nodes(4);
	must(1, &c);
	EXPECT(!votes(1, 4));
	for (uint16_t lost = 3; lost >= 1; lost--) { /* the leader, too */
		uint16_t other = lost == 1 ? 2 : 1, taker = lost == 3 ? 4 : (uint16_t)(lost + 1);

		crash(lost);
		lost_at = seconds();
		for (uint16_t i = 1; i <= 4; i++)
			if (i != lost)
				control_peer_refused(machine[i].control, lost);
		UNTIL(votes(other, taker) && !votes(other, lost) && voters(other) == 3);
		EXPECT(seconds() - lost_at > 0.9);
		c = setting("after", "x");
		must(other, &c);
		restart(lost);
		UNTIL(machine[lost].map.version == machine[other].map.version &&
		      voters(lost) == 3 && !votes(lost, lost));
	}
	finish();
}

/* Short absences change nothing. */
TEST(control_raft, a_voter_that_is_soon_back_keeps_its_vote)
{
	struct command c = setting(VOTER_DELAY_KEY, "5");

	start_nodes(4);
	must(1, &c);
	crash(2);
	c = setting("meanwhile", "x");
	must(1, &c);
	restart(2);
	UNTIL(!strcmp(value(2, "meanwhile"), "x"));
	EXPECT(votes(1, 2) && !votes(1, 4));
	finish();
}
