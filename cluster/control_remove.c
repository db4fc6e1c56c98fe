/* SPDX-License-Identifier: Apache-2.0 */
/* The leader takes nodes out that are to be removed: the plan empties them (control_relocate.c),
 * then their vote goes (control_duty.c), then this proposes the end. What is left to do follows
 * from the state and from Raft's configuration, so that another leader goes on where the work
 * stands. Until that end is applied the job can be cancelled, and the node is a member like any
 * other again. */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define AGAIN_US 1000000u

bool control_node_leaves(const struct control *c, uint16_t node)
{
	unsigned count;
	const struct state_job *j = state_jobs(c->state, &count);
	char why[200];

	while (count-- > 0)
		if (j[count].kind == JOB_REMOVE && j[count].node == node &&
		    j[count].state == JOB_RUNNING)
			return state_node_empty(c->state, node) &&
			       state_node_may_leave(c->state, node, control_wall_ms(), why);
	return false;
}

static void propose_removal(struct control *c, const struct map_node *n, const char *actor)
{
	struct command *cmd = xcalloc(1, sizeof(*cmd));

	cmd->kind = CMD_NODE_REMOVE;
	cmd->node_remove.node = n->id;
	cmd->node_remove.incarnation = n->incarnation;
	snprintf(cmd->actor, sizeof(cmd->actor), "%s", actor);
	control_propose_unasked(c, cmd);
	free(cmd);
}

int control_remove_check(const struct control *c, const void *data, size_t len,
			 struct command_result *out)
{
	struct reader r = reader_init(data, len);
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	const struct map_node *n;
	void *arena = NULL;
	int rc = 0;

	if (!command_decode(&r, cmd, &arena) && cmd->node_remove.flags & NODE_REMOVE_DEAD) {
		n = map_node(state_map(c->state), cmd->node_remove.node);
		if (n && n->state != NODE_REMOVED && control_contact(c, n, 0).up)
			rc = out->code = -ERR_REFUSED;
		if (rc)
			snprintf(out->text, sizeof(out->text),
				 "node %s is up, the leader hears it: it is removed in order, or "
				 "stopped first",
				 n->name);
	}
	free(arena);
	free(cmd);
	return rc;
}

/* Called between membership changes: what the configuration says is committed. */
void control_remove(struct control *c)
{
	uint64_t now = control_now_us(c);
	unsigned count;
	const struct state_job *j = state_jobs(c->state, &count);

	if (now - c->removed_us < AGAIN_US)
		return;
	for (unsigned i = 0; i < count; i++) {
		const struct map_node *n = map_node(state_map(c->state), j[i].node);

		if (j[i].kind != JOB_REMOVE || !n || !control_node_leaves(c, n->id) ||
		    consensus_member(c->consensus, n->id) == CONSENSUS_VOTES)
			continue;
		c->removed_us = now;
		propose_removal(c, n, j[i].actor);
	}
}
