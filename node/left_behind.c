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
