/* SPDX-License-Identifier: Apache-2.0 */
/* Who is silent, as a leader sees it; and that nodes which fall silent and are heard again are in the events,
 * each time once, whoever leads. */
#include "cluster/control_impl.h"
#include "tests/state/fake_cluster.h"

#include <stdio.h>
#include <stdlib.h>

/* How often that was written of that node. */
static unsigned said(const char *code, uint16_t node)
{
	const struct map_node *n = map_node(state_map(control_state(machine[1].control)), node);
	struct state_event *e = xmalloc(STATE_EVENTS * sizeof(*e));
	unsigned count = state_events(control_state(machine[1].control), e, STATE_EVENTS), found = 0;
	char begin[80];

	snprintf(begin, sizeof(begin), "node %s ", n->name);
	for (unsigned i = 0; i < count; i++)
		found += !strcmp(e[i].code, code) && !strncmp(e[i].text, begin, strlen(begin));
	free(e);
	return found;
}

/* The leader has looked, and what it had to write is applied. */
static void looked(uint16_t leader)
{
	uint64_t next = machine[leader].control->presence_us;

	UNTIL(machine[leader].control->presence_us > next);
}

TEST(presence, a_node_that_went_and_came_is_written_once)
{
	struct command c = {.kind = CMD_NODE_START};

	fake_start(4);
	cut_off(3);
	cut_off(4);
	UNTIL(said("NODE_DOWN", 3) && said("NODE_DOWN", 4));
	fake_set_leader(2);
	looked(2);
	EXPECT_EQ(said("NODE_DOWN", 3), 1);
	EXPECT_EQ(said("NODE_UP", 3), 0);
	/* One was cut off, the other is another process, which registers. */
	connect_nodes(1, 3);
	connect_nodes(2, 3);
	connect_process(1, 4, 2);
	connect_process(2, 4, 2);
	UNTIL(said("NODE_UP", 3));
	looked(2);
	c.node_start.node = 4;
	c.node_start.old_incarnation = 1;
	c.node_start.incarnation = 2;
	c.node_start.shards = 1;
	c.node_start.roles = ROLE_STORAGE | ROLE_VOTER;
	snprintf(c.node_start.address, sizeof(c.node_start.address), "a4");
	must(1, &c);
	looked(2);
	EXPECT_EQ(said("NODE_STARTED", 4), 2);
	EXPECT_EQ(said("NODE_UP", 4), 0);
	EXPECT_EQ(said("NODE_UP", 3), 1);
	EXPECT_EQ(said("NODE_DOWN", 3), 1);
	EXPECT_EQ(said("NODE_DOWN", 4), 1);
	EXPECT_EQ(said("NODE_DOWN", 1) + said("NODE_DOWN", 2), 0);
	fake_stop();
}

static bool is_up(uint16_t leader, uint16_t node)
{
	const struct control *c = machine[leader].control;

	return control_contact(c, map_node(state_map(c->state), node), 0).up;
}

/* Raft asks its members only. A node may be connected for long before it becomes one, as other changes go
 * first, and says nothing all that time. */
TEST(presence, silent_is_who_does_not_answer_and_not_who_is_not_asked)
{
	struct end *third;

	fake_start(2);
	fake.deaf[3] = true; /* the log would have it tell its map */
	node_start(3, false, "");
	third = connect_nodes(3, 1);
	UNTIL(control_peer_silent_us(machine[1].control, 3) > 2500000);
	node_join(3);
	UNTIL(fake.member[3] == CONSENSUS_VOTES); /* it is taken in */
	EXPECT(is_up(1, 3));
	EXPECT(fake_send(1, 3, "beat", 4));
	UNTIL(!is_up(1, 3)); /* frozen */
	conn_send(third->conn, OP_RAFT, 0, "beat", 4, NULL, 0);
	UNTIL(is_up(1, 3));
	/* What it was asked before does not count for a new leader. */
	EXPECT(fake_send(1, 3, "beat", 4));
	UNTIL(!is_up(1, 3));
	fake_set_leader(2);
	turn();
	fake_set_leader(1);
	UNTIL(is_up(1, 3));
	fake_stop();
}
