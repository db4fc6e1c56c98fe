/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's duties, one step at a time: every node of the map follows the log (standby), and
 * those with the voter role become voters while there are fewer than three. Membership changes run
 * one at a time (raft rule 12), and only for nodes that are connected: a node that cannot catch up
 * would hold the change. */
#include "cluster/control_impl.h"

#include "cluster/map_codec.h"
#include "node/base/log.h"

#include <stdlib.h>

static bool is_voter(const struct consensus_status *st, uint16_t node)
{
	for (unsigned i = 0; i < MIN(st->voters, (unsigned)ARRAY_LEN(st->voter)); i++)
		if (st->voter[i] == node)
			return true;
	return false;
}

static void member_resume(struct wait *w, int rc)
{
	struct control *c = container_of(w, struct control, member_wait);
	struct peer *p = control_peer(c, c->member_node);

	c->member_busy = false;
	if (c->stopping)
		return;
	if (p && c->member_standby && !rc)
		p->standby_done = true;
	if (rc && rc != -ERR_BUSY)
		log_warn("control", "a membership change failed and is tried again",
			 "node=%u error=%s", c->member_node, err_name(rc));
	else if (!rc)
		c->duty_us = 0; /* the next step at once */
	control_arm(c);
}

/* False: nothing to do for this node, look at the next one. */
static bool member_step(struct control *c, const struct consensus_status *st,
			const struct map_node *n)
{
	struct peer *p = control_peer(c, n->id);
	int rc;

	if (n->id == c->cfg.node || !p || n->state == NODE_REMOVED || n->state == NODE_DEAD ||
	    is_voter(st, n->id))
		return false;
	if (p->standby_done && (!(n->roles & ROLE_VOTER) || st->voters >= CONTROL_VOTERS))
		return false;
	c->member_node = n->id;
	c->member_standby = !p->standby_done;
	c->member_wait.resume = member_resume;
	c->member_busy = true;
	rc = c->member_standby ? consensus_add_standby(c->consensus, n->id, &c->member_wait)
			       : consensus_make_voter(c->consensus, n->id, &c->member_wait);
	if (rc == PENDING)
		return true;
	c->member_busy = false;
	if (!rc && c->member_standby) {
		p->standby_done = true;
		return member_step(c, st, n);
	}
	return rc == -ERR_BUSY; /* one at a time: wait; else try another node */
}

void control_duty(struct control *c)
{
	uint64_t now = control_now_us(c);
	struct consensus_status st;
	struct map_node **node;
	struct peer *p;
	size_t count;
	bool leader;

	if (c->stopping || (now < c->duty_us && now < c->plan_us))
		return;
	leader = consensus_is_leader(c->consensus);
	if (leader && !c->was_leader)
		list_for_each(p, &c->peers, link) p->standby_done =
			false; /* another leader may have changed it meanwhile */
	if (leader && !c->was_leader)
		c->leader_since_us = now;
	c->was_leader = leader;
	if (!leader)
		return;
	control_relocate(c);
	if (c->member_busy || now < c->duty_us)
		return;
	c->duty_us = now + CONTROL_DUTY_US;
	consensus_status(c->consensus, &st);
	node = map_nodes_sorted(state_map(c->state), &count);
	for (size_t i = 0; i < count; i++)
		if (member_step(c, &st, node[i]))
			break;
	free(node);
}
