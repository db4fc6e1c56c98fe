/* SPDX-License-Identifier: Apache-2.0 */
/* The leader's duties, one step at a time. Every node of the map follows the log as a standby, and
 * some of them vote (voters.h). Membership changes run one at a time (raft rule 12), and nobody is
 * given anything who is not connected: a node that cannot catch up would hold the change. */
#include "cluster/control_impl.h"

#include "cluster/map_codec.h"
#include "cluster/voters.h"
#include "node/base/log.h"

#include <stdlib.h>

static void member_resume(struct wait *w, int rc)
{
	struct control *c = container_of(w, struct control, member_wait);

	c->member_busy = false;
	if (c->stopping)
		return;
	if (rc && rc != -ERR_BUSY)
		log_warn("control", "a membership change failed and is tried again",
			 "node=%u error=%s", c->member_node, err_name(rc));
	if (rc == -ETIMEDOUT) { /* it did not catch up: others first */
		c->avoid_node = c->member_node;
		c->avoid_us = control_now_us(c);
	}
	if (!rc)
		c->duty_us = 0; /* the next step at once */
	control_arm(c);
}

static void voters_node_fill(const struct control *c, const struct map_node *n,
			     struct voters_node *out)
{
	static const enum voters_role role[] = {[CONSENSUS_NO_MEMBER] = VOTERS_NONE,
						[CONSENSUS_SPARE] = VOTERS_NONE,
						[CONSENSUS_FOLLOWS] = VOTERS_STANDBY,
						[CONSENSUS_VOTES] = VOTERS_VOTER};
	uint64_t delay_us = state_setting_number(c->state, VOTER_DELAY_KEY) * 1000000ull;
	struct relocate_node contact = control_contact(c, n, delay_us);

	*out = (struct voters_node){.id = n->id,
				    .fault_set = map_fault_set(n),
				    .role = role[consensus_member(c->consensus, n->id)],
				    .removed = n->state == NODE_REMOVED || n->state == NODE_DEAD,
				    .may_vote = (n->roles & ROLE_VOTER) &&
						!control_node_leaves(c, n->id),
				    .stores = n->roles & ROLE_STORAGE,
				    .up = contact.up,
				    .away = contact.away};
	if (out->removed)
		out->up = out->may_vote = out->stores = false;
	if (out->removed && consensus_member(c->consensus, n->id) == CONSENSUS_SPARE)
		out->role = VOTERS_STANDBY; /* a join that was cut short: it goes, too */
	if (n->id == c->avoid_node && loop_mono_us(c->cfg.loop) - c->avoid_us < CONTROL_AVOID_US)
		out->away = true;
}

static int member_change(struct control *c, struct voters_step s)
{
	switch (s.op) {
	case VOTERS_ADD_STANDBY:
		return consensus_add_standby(c->consensus, s.node, &c->member_wait);
	case VOTERS_PROMOTE:
		return consensus_make_voter(c->consensus, s.node, &c->member_wait);
	case VOTERS_DEMOTE:
		return consensus_make_standby(c->consensus, s.node, &c->member_wait);
	case VOTERS_DROP:
		return consensus_remove(c->consensus, s.node, &c->member_wait);
	case VOTERS_RESIGN:
		consensus_resign(c->consensus);
		break;
	case VOTERS_KEEP:
		break;
	}
	return 0;
}

static void voters_step(struct control *c)
{
	static const char *const what[] = {[VOTERS_ADD_STANDBY] = "follows the log now",
					   [VOTERS_PROMOTE] = "is to vote",
					   [VOTERS_DEMOTE] = "is to vote no more",
					   [VOTERS_DROP] = "leaves Raft",
					   [VOTERS_RESIGN] = "gives up the lead"};
	struct voters_input in = {.self = c->cfg.node};
	struct voters_step s;
	size_t count;
	struct map_node **node = map_nodes_sorted(state_map(c->state), &count);

	in.nodes = xcalloc(count + 1, sizeof(*in.nodes));
	for (; in.count < count; in.count++)
		voters_node_fill(c, node[in.count], &in.nodes[in.count]);
	s = voters_plan(&in);
	free(in.nodes);
	free(node);
	if (s.op == VOTERS_KEEP)
		return;
	c->member_node = s.node;
	c->member_wait.resume = member_resume;
	c->member_busy = true;
	if (member_change(c, s) == PENDING)
		log_info("control", "membership of Raft", "node=%u step=\"%s\"", s.node,
			 what[s.op]);
	else
		c->member_busy = false; /* refused or not possible now: the next look tries again */
}

void control_duty(struct control *c)
{
	uint64_t now = control_now_us(c);
	struct peer *p;
	bool leader;

	if (c->stopping || (now < c->duty_us && now < c->plan_us))
		return;
	leader = consensus_is_leader(c->consensus);
	if (leader && !c->was_leader) /* what somebody else's follower sent needs no answer */
		list_for_each(p, &c->peers, link) p->asked_us = 0;
	c->was_leader = leader;
	if (!leader)
		return;
	control_relocate(c);
	control_presence(c);
	if (c->member_busy || now < c->duty_us)
		return;
	c->duty_us = now + CONTROL_DUTY_US;
	voters_step(c);
	if (!c->member_busy)
		control_remove(c);
}
