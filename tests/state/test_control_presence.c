/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that fall silent and are heard again are in the events, each time once, whoever leads. */
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

static void beat(void)
{
	for (unsigned i = 0; i < ends; i++)
		if (end[i].m && !end[i].closed)
			conn_send(end[i].conn, OP_RAFT, 0, "beat", 4, NULL, 0);
}

#define UNTIL_BEATING(cond) UNTIL((beat(), (cond)))

/* The leader has looked, and what it had to write is applied. */
static void looked(uint16_t leader)
{
	uint64_t next = machine[leader].control->presence_us;

	UNTIL_BEATING(machine[leader].control->presence_us > next);
}

TEST(presence, a_node_that_went_and_came_is_written_once)
{
	struct command c = {.kind = CMD_NODE_START};

	fake_start(4);
	cut_off(3);
	cut_off(4);
	UNTIL_BEATING(said("NODE_DOWN", 3) && said("NODE_DOWN", 4));
	fake_set_leader(2);
	looked(2);
	EXPECT_EQ(said("NODE_DOWN", 3), 1);
	EXPECT_EQ(said("NODE_UP", 3), 0);
	/* One was cut off, the other is another process, which registers. */
	connect_nodes(1, 3);
	connect_nodes(2, 3);
	connect_process(1, 4, 2);
	connect_process(2, 4, 2);
	UNTIL_BEATING(said("NODE_UP", 3));
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
