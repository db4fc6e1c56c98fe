/* SPDX-License-Identifier: Apache-2.0 */
/* A cluster that was recovered from a lost Raft majority, and nodes that belong to the time before. The two
 * have different states and must not talk: whoever meets the other refuses it. A node of before that has
 * nobody to lead it has been left behind: it notes that and ends, and from the next start on only its root
 * socket answers, until its operator moves it over. One that has a leader goes on: then the recovery was the
 * mistake. */
#include <stdio.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

void node_left_behind(struct node *n, uint32_t recovery, const char *who)
{
	if (recovery <= n->identity.recovery || recovery > UINT16_MAX || !node_nobody_leads(n))
		return;
	n->identity.behind = (uint16_t)recovery;
	if (identity_save(n->config.state_dir, &n->identity) < 0)
		log_warn("node",
			 "that this node was left behind could not be noted: it will be told again",
			 "dir=\"%s\"", n->config.state_dir);
	log_error("node", "the cluster was recovered without this node, which ends here",
		  "cluster=\"%s\" node=%u recovery=%u told_by=\"%s\" remedy=\"" LEFT_BEHIND_REMEDY "\"",
		  n->identity.cluster_name, n->identity.number, recovery, who);
	_exit(1);
}

void node_left_behind_refuse(const struct node *n)
{
	log_error("node", "this node's cluster was recovered without it, and it takes no part",
		  "cluster=\"%s\" node=%u recovery=%u remedy=\"" LEFT_BEHIND_REMEDY "\"",
		  n->identity.cluster_name, n->identity.number, n->identity.behind);
}

/* Raft's store and identity.json are changed one after the other by `ashlard recover`. */
int node_recovery_check(struct node *n)
{
	const struct state *s = control_state(n->control);

	if (uuid_is_nil(&state_map(s)->cluster) || state_recoveries(s) == n->identity.recovery)
		return 0;
	if (state_recoveries(s) > n->identity.recovery) { /* identity.json is an older copy */
		n->identity.recovery = (uint16_t)state_recoveries(s);
		return identity_save(n->config.state_dir, &n->identity);
	}
	log_error("node", "a recovery was begun here and not finished: run the same `ashlard recover` again",
		  "identity=%u state=%u", n->identity.recovery, state_recoveries(s));
	return -ERR_INCOMPLETE;
}
