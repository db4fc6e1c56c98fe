/* SPDX-License-Identifier: Apache-2.0 */
/* What the cluster must know of this node's disk groups: which failed, and how full they are, in
 * steps of 5 %. Told when it changes, one at a time; placement and rebuild go by it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

struct report {
	struct wait wait;
	struct control_propose propose;
	bool busy;
	struct bad {
		uint16_t group;
		uint64_t since_us; /* not open since then */
	} bad[GROUPS_PER_NODE_MAX];
};

static void reported(struct wait *w, int rc)
{
	struct report *r = container_of(w, struct report, wait);

	r->busy = false; /* refused or lost: the next look tells again */
}

/* A group that failed at work and stays closed is gone, at once. One that is opened again by itself, or could
 * not be opened and may yet be after somebody put a device back, is waited for like a node that is away. */
static bool has_failed(struct report *r, const struct admin_group *g, uint64_t now,
		       uint64_t delay_us)
{
	int code = g->failed ? g->failed : g->open ? g->stats.failed : 0;
	struct bad *slot = NULL;

	for (unsigned i = 0; i < GROUPS_PER_NODE_MAX; i++)
		if (r->bad[i].group == g->group || (!slot && !r->bad[i].group))
			slot = &r->bad[i];
	if (!code || !slot) {
		if (slot && slot->group == g->group)
			*slot = (struct bad){0};
		return false;
	}
	if (slot->group != g->group)
		*slot = (struct bad){g->group, now};
	return g->gave_up || (g->open && !g->reopening) || now - slot->since_us >= delay_us;
}

static void tell(struct admin *a, const struct map_group *known, uint8_t state, uint8_t steps)
{
	struct report *r = a->report;
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	int rc;

	cmd->kind = CMD_GROUP_STATE;
	snprintf(cmd->actor, sizeof(cmd->actor), "node:%u", a->cfg.identity->number);
	cmd->group_state.group = known->id;
	cmd->group_state.state = state;
	cmd->group_state.free_steps = steps;
	cmd->group_state.incarnation = known->incarnation;
	r->busy = true;
	r->wait.resume = reported;
	rc = a->ops->propose(a->cluster, &r->propose, cmd, PROPOSE_TIMEOUT_MS, &r->wait);
	free(cmd);
	if (rc != PENDING)
		r->busy = false;
}

/* A group that the cluster counts on and this node knows nothing of (devices.json was lost, or is another's)
 * is one that could not be opened. */
static void report_unknown(struct admin *a, const struct admin_group *g, unsigned n, uint64_t now,
			   uint64_t delay_us)
{
	const struct map *m = admin_map(a);

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h && !a->report->busy;
	     h = hmap_walk(&m->groups, h)) {
		const struct map_group *known = container_of(h, struct map_group, by_id);
		struct admin_group none = {.group = known->id, .failed = -ENOENT};
		unsigned i = 0;

		while (i < n && !uuid_equal(&known->uuid, &g[i].uuid))
			i++;
		if (i == n && known->node == a->cfg.identity->number && known->state == GROUP_ACTIVE &&
		    has_failed(a->report, &none, now, delay_us)) {
			log_error("group",
				  "the cluster counts on a disk group of which this node knows nothing: look "
				  "at devices.json in state_dir; its copies are made anew elsewhere",
				  "group=%u", known->id);
			tell(a, known, GROUP_FAILED, known->free_steps);
		}
	}
}

void admin_report(struct admin *a)
{
	struct admin_group g[GROUPS_PER_NODE_MAX];
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));
	uint64_t delay_us, now = loop_mono_us(a->cfg.loop);

	if (!a->report)
		a->report = xcalloc(1, sizeof(*a->report));
	delay_us = state_setting_number(a->ops->state(a->cluster), REBUILD_DELAY_KEY) * 1000000ull;
	for (unsigned i = 0; i < n && !a->report->busy; i++) {
		const struct map_group *known = map_group(admin_map(a), g[i].group);
		uint8_t state, steps;

		if (!known || known->node != a->cfg.identity->number ||
		    !uuid_equal(&known->uuid, &g[i].uuid) ||
		    (known->state != GROUP_ACTIVE && known->state != GROUP_FAILED))
			continue;
		state = has_failed(a->report, &g[i], now, delay_us)       ? GROUP_FAILED
			: g[i].open && !g[i].failed && !g[i].stats.failed ? GROUP_ACTIVE
									  : known->state;
		steps = g[i].open ? health_free_steps(g[i].stats.data_used_bytes,
						     g[i].stats.data_free_bytes, known->free_steps)
				  : known->free_steps;
		if (state != known->state || steps != known->free_steps)
			tell(a, known, state, steps);
	}
	report_unknown(a, g, n, now, delay_us);
}
