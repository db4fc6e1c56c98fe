/* SPDX-License-Identifier: Apache-2.0 */
/* The leader acts on relocate.c's plans: proposes their changes, starts the rebuild of what stays
 * away, finishes jobs that have nothing left. It remembers nothing that another leader would need.
 *
 * Absence is measured by this node's monotonic clock since it lost contact, on every node, so that
 * a change of leader does not start the delay anew. A node that is connected and does not answer
 * (frozen) counts as absent too, as a leader sees it: members of Raft answer its heartbeats. One that
 * is no member yet is asked nothing and has nothing to say, and must not count as silent: a leader
 * that therefore did not take it in would never hear it. */
#include "cluster/control_impl.h"
#include "cluster/relocate.h"

#include "node/base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define AGAIN_US  500000u /* what was proposed in vain is proposed again */
#define SILENT_US 2000000u

static uint64_t *lost_slot(struct control *c, uint16_t node)
{
	if (node >= c->lost_count) {
		c->lost_us = xrealloc(c->lost_us, (node + 1u) * sizeof(*c->lost_us));
		while (c->lost_count <= node)
			c->lost_us[c->lost_count++] = c->started_us;
	}
	return &c->lost_us[node];
}

void control_contact_lost(struct control *c, uint16_t node)
{
	*lost_slot(c, node) = control_now_us(c);
}

struct relocate_node control_contact(const struct control *c, const struct map_node *n, uint64_t delay_us)
{
	const struct peer *p = control_peer(c, n->id);
	uint64_t since = n->id < c->lost_count ? c->lost_us[n->id] : c->started_us, silent = 0,
		 now = loop_mono_us(c->cfg.loop);
	struct relocate_node out = {.up = true};

	if (n->id == c->cfg.node)
		return out;
	if (p && p->asked_us && c->was_leader)
		silent = now - p->asked_us;
	out.up = p && silent < SILENT_US;
	if (!p)
		silent = now - since;
	out.away = silent >= delay_us &&
		   !map_node_in_maintenance(state_map(c->state), n->id, control_wall_ms());
	return out;
}

struct relocate_node *control_contacts(const struct control *c)
{
	const struct map *m = state_map(c->state);
	struct relocate_node *out = xcalloc(m->next_node + 1u, sizeof(*out));
	uint64_t delay_us = state_setting_number(c->state, REBUILD_DELAY_KEY) * 1000000ull;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state == NODE_ACTIVE)
			out[n->id] = control_contact(c, n, delay_us);
	}
	return out;
}

static void propose_job(struct control *c, const struct job_change *ch)
{
	struct command *cmd = xcalloc(1, sizeof(*cmd));

	cmd->kind = CMD_JOB;
	cmd->job = *ch;
	snprintf(cmd->actor, sizeof(cmd->actor), "cluster");
	control_propose_unasked(c, cmd);
	free(cmd);
}

static void start_rebuilds(struct control *c, const struct relocate_plan *p)
{
	for (unsigned i = 0; i < p->wanted_count; i++) {
		struct job_change ch = {.op = JOB_START,
					.kind = JOB_REBUILD,
					.node = p->wanted[i].node,
					.group = p->wanted[i].group};
		const struct map_node *n = map_node(state_map(c->state), ch.node);

		snprintf(ch.note, sizeof(ch.note), "%s",
			 ch.group                       ? "the disk group failed"
			 : n && n->state != NODE_ACTIVE ? "the node will not come back"
							: "the node stays away");
		propose_job(c, &ch);
	}
}

/* True: a job that is over was proposed to be finished. */
static bool finish_job(struct control *c, const struct state_job *j, const struct relocate_job *r)
{
	struct job_change ch = {.op = JOB_FINISH, .id = j->id};

	if (j->state != JOB_RUNNING || r->left || j->kind == JOB_REMOVE)
		return false; /* a removal ends with its node */
	if (r->stranded && j->kind == JOB_EVACUATE)
		return false; /* its replicas are still there: their node may come back */
	if (r->stranded)
		snprintf(ch.note, sizeof(ch.note),
			 "done, but for %u object%s without a copy in reach", r->stranded,
			 r->stranded == 1 ? "" : "s");
	else
		snprintf(ch.note, sizeof(ch.note), "done");
	propose_job(c, &ch);
	return true;
}

static bool wants_rebalance(const struct control *c, const struct relocate_plan *p,
			    const struct state_job *jobs, unsigned count)
{
	if (!p->uneven || !p->imbalance || p->lacking.total ||
	    !state_setting_number(c->state, REBALANCE_AUTO_KEY))
		return false;
	while (count-- > 0) /* one that somebody cancelled is not started over his head */
		if (jobs[count].kind == JOB_REBALANCE)
			return jobs[count].state == JOB_DONE;
	return true;
}

/* A plan costs a walk over all objects: not made again while nothing it depends on has changed. */
static bool same_input(struct control *c, const struct relocate_node *nodes, uint64_t now)
{
	size_t size = state_map(c->state)->next_node * sizeof(*nodes);
	uint64_t facts = hash_xxh3(nodes, size, 0);
	struct consensus_status st;

	consensus_status(c->consensus, &st);
	if (c->planned_applied == st.applied && c->planned_facts == facts &&
	    (c->planned_idle || now - c->planned_us < AGAIN_US))
		return true;
	c->planned_us = now;
	c->planned_applied = st.applied;
	c->planned_facts = facts;
	return false;
}

void control_relocate(struct control *c)
{
	struct relocate_input in = {.map = state_map(c->state), .fills_max = RELOCATE_FILLS,
				    .small_fills_max = RELOCATE_SMALL_FILLS};
	struct relocate_node *nodes;
	struct relocate_plan *p;
	uint64_t now = control_now_us(c);
	bool acted = false;

	if (now < c->plan_us)
		return;
	c->plan_us = now + CONTROL_PLAN_US;
	in.nodes = nodes = control_contacts(c);
	if (same_input(c, nodes, now)) {
		free(nodes);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	in.jobs = state_jobs(c->state, &in.job_count);
	relocate(&in, p);
	start_rebuilds(c, p);
	for (unsigned i = 0; i < in.job_count; i++)
		acted |= finish_job(c, &in.jobs[i], &p->job[i]);
	if (wants_rebalance(c, p, in.jobs, in.job_count)) {
		struct job_change ch = {.op = JOB_START,
					.kind = JOB_REBALANCE,
					.total = p->imbalance,
					.note = "disk groups are filled unevenly"};

		propose_job(c, &ch);
		acted = true;
	}
	if (p->count)
		control_propose_objects(c, p->change, p->count);
	c->planned_idle = !acted && !p->count && !p->wanted_count;
	free(p);
	free(nodes);
}
