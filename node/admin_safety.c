/* SPDX-License-Identifier: Apache-2.0 */
/* Questions of safety (can-stop, can-lose), and maintenance, which asks the first of them before it
 * begins. Names come in the path, separated by commas, which no name contains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"
#include "node/safety.h"

#define COPY_BYTES_S_PER_NODE (100ull << 20) /* an estimate: nobody has measured a rebuild yet */
#define MOVE_LOOK_US          20000u
#define MOVE_IDLE_US          3000000u /* no primary has moved for so long: those left cannot */
#define MAINTENANCE_TTL_S     3600u

struct targets {
	uint16_t nodes[NODES_MAX], groups[NODES_MAX * GROUPS_PER_NODE_MAX];
	unsigned node_count, group_count;
};

static bool node_counts(const struct map_node *n)
{
	return n && n->state != NODE_REMOVED;
}

/* A node's name, a fault set, or the number of a disk group. */
static bool target_add(const struct map *m, const char *name, bool nodes_only, struct targets *t)
{
	const struct map_node *n = map_node_by_name(m, name);
	unsigned before = t->node_count + t->group_count;
	char *end;
	unsigned long id = strtoul(name, &end, 10);
	const struct map_group *g =
		!*end && id && id <= UINT16_MAX ? map_group(m, (uint16_t)id) : NULL;

	if (node_counts(n) && t->node_count < ARRAY_LEN(t->nodes))
		t->nodes[t->node_count++] = n->id;
	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h && !node_counts(n) && !nodes_only;
	     h = hmap_walk(&m->nodes, h)) {
		const struct map_node *k = container_of(h, struct map_node, by_id);

		if (node_counts(k) && !strcmp(map_fault_set(k), name) &&
		    t->node_count < ARRAY_LEN(t->nodes))
			t->nodes[t->node_count++] = k->id;
	}
	if (before == t->node_count + t->group_count && !nodes_only && g &&
	    g->state != GROUP_REMOVED && t->group_count < ARRAY_LEN(t->groups))
		t->groups[t->group_count++] = g->id;
	return before != t->node_count + t->group_count;
}

/* False: one is unknown, and the request was answered. */
static bool targets_parse(struct areq *q, const char *names, bool nodes_only, struct targets *t)
{
	CLEANUP(free_ptr) char *text = xstrdup(names);
	char *at = NULL;

	for (char *name = strtok_r(text, ",", &at); name; name = strtok_r(NULL, ",", &at)) {
		if (target_add(admin_map(q->admin), name, nodes_only, t))
			continue;
		admin_fail(q, -ERR_NOT_FOUND,
			   nodes_only
				   ? "no node is named \"%.63s\"; `ashlar node list` shows all"
				   : "no node, fault set or disk group is named \"%.63s\"; `ashlar "
				     "node list` and `ashlar diskgroup list` show all",
			   name);
		return false;
	}
	if (t->node_count + t->group_count)
		return true;
	admin_fail(q, -ERR_INVALID, "name at least one");
	return false;
}

static void evaluate(struct admin *a, const struct targets *t, bool for_good, uint64_t *rate,
		     struct safety_report *out)
{
	struct health_input *in = facts_input(a);
	struct safety_input si = {.health = in,
				  .nodes = t->nodes,
				  .node_count = t->node_count,
				  .groups = t->groups,
				  .group_count = t->group_count,
				  .for_good = for_good};
	unsigned up = 0;

	for (unsigned i = 0; i < in->node_count; i++)
		up += in->nodes[i].up;
	*rate = COPY_BYTES_S_PER_NODE * MAX(up > t->node_count ? up - t->node_count : 0, 1u);
	si.copy_bytes_s = *rate;
	safety_evaluate(&si, out);
	facts_input_free(in);
}

void admin_evaluate(struct admin *a, uint16_t node, struct safety_report *out)
{
	struct targets t = {.nodes = {node}, .node_count = 1};
	uint64_t rate;

	evaluate(a, &t, true, &rate, out);
}

void admin_evaluate_emptied(struct admin *a, uint16_t node, uint16_t group, struct safety_report *out)
{
	struct targets t = {.nodes = {node}, .node_count = node != 0,
			    .groups = {group}, .group_count = group != 0};
	const struct map *m = admin_map(a);
	unsigned count;
	const struct state_job *jobs = state_jobs(a->ops->state(a->cluster), &count);
	uint64_t rate;

	evaluate(a, &t, true, &rate, out);
	if (!out->objects)
		return; /* there is nothing to move, whatever others need */
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		bool emptied = false;

		for (unsigned i = 0; i < count; i++)
			emptied |= state_job_empties(&jobs[i], g);
		if (emptied && g->state != GROUP_REMOVED && t.group_count < ARRAY_LEN(t.groups))
			t.groups[t.group_count++] = g->id;
	}
	evaluate(a, &t, true, &rate, out);
}

const char *admin_room_missing(const struct safety_report *r)
{
	if (r->objects && !r->places_enough)
		return "too few fault sets would be left for the copies of its volumes: add a node first";
	if (r->objects && r->bytes_known && !r->space_enough)
		return "the others have not enough space for what is on it: add disks first";
	return NULL;
}

/* ---- The answer ---------------------------------------------------------------------------------
 */

static int exit_code(enum safety_verdict v)
{
	return v == SAFETY_OK ? 0 : v == SAFETY_DATA ? 5 : 6;
}

static struct json *objects_json(const struct safety_report *r)
{
	struct json *j = json_object_new();

	json_put_u64(j, "affected", r->objects);
	json_put_u64(j, "lost", r->lost);
	json_put_u64(j, "unavailable", r->unavailable);
	json_put_u64(j, "below_min_in_sync", r->below_min);
	json_put_u64(j, "single_copy", r->single);
	json_put_u64(j, "degraded", r->degraded);
	json_put_u64(j, "unavailable_now", r->unavailable_now);
	json_put_u64(j, "unrepaired", r->unrepaired);
	json_put_u64(j, "quarantined", r->quarantined);
	return j;
}

static struct json *report_json(const struct admin *a, const char *question,
				const struct targets *t, bool for_good, uint64_t rate,
				const struct safety_report *r)
{
	struct json *j = json_object_new(), *names = json_array_new(), *k,
		    *volumes = json_array_new();
	const struct map *m = admin_map(a);

	for (unsigned i = 0; i < t->node_count; i++)
		json_add_str(names, map_node_name(m, t->nodes[i]));
	for (unsigned i = 0; i < t->group_count; i++) {
		char text[24];

		snprintf(text, sizeof(text), "group %u", t->groups[i]);
		json_add_str(names, text);
	}
	for (unsigned i = 0; i < r->volumes_named; i++)
		json_add_str(volumes, r->volume[i]);
	json_put_str(j, "question", question);
	json_put(j, "targets", names);
	json_put_bool(j, "ok", r->verdict == SAFETY_OK);
	json_put_u64(j, "exit_code", (uint64_t)exit_code(r->verdict));
	json_put_str(j, "why", r->why);
	json_put(j, "objects", objects_json(r));
	json_put_u64(j, "volumes_at_risk", r->volumes);
	json_put(j, "volumes", volumes);
	k = json_object_new();
	json_put_u64(k, "voters", r->voters);
	json_put_u64(k, "left", r->voters_left);
	json_put_u64(k, "needed", r->voters_needed);
	json_put(j, "raft", k);
	if (for_good) {
		k = json_object_new();
		json_put_bool(k, "known", r->bytes_known);
		json_put_u64(k, "copy_bytes", r->copy_bytes);
		json_put_u64(k, "copy_s", r->copy_s);
		json_put_u64(k, "rate_bytes_per_s", rate);
		json_put_str(k, "rate", "estimated");
		json_put_u64(k, "free_after_bytes", r->free_after);
		json_put_bool(k, "space_enough", r->space_enough);
		json_put_bool(k, "fault_sets_enough", r->places_enough);
		json_put(j, "again", k);
	}
	json_put(j, "source", admin_source(a));
	return j;
}

static void answer(struct areq *q, bool for_good)
{
	struct targets t = {0};
	struct safety_report *r;
	uint64_t rate;

	if (!targets_parse(q, q->param, !for_good, &t))
		return;
	r = xcalloc(1, sizeof(*r));
	evaluate(q->admin, &t, for_good, &rate, r);
	admin_reply(
		q, 200,
		report_json(q->admin, for_good ? "can-lose" : "can-stop", &t, for_good, rate, r));
	free(r);
}

static void stop_ready(struct areq *q)
{
	answer(q, false);
}

static void lose_ready(struct areq *q)
{
	answer(q, true);
}

/* Damage may have been met a moment ago: facts from before this was asked are not good enough. */
void admin_can_stop(struct areq *q)
{
	facts_forget(q->admin);
	admin_after_facts(q, stop_ready);
}

void admin_can_lose(struct areq *q)
{
	facts_forget(q->admin);
	admin_after_facts(q, lose_ready);
}

/* ---- Maintenance --------------------------------------------------------------------------------
 */

struct maintenance {
	struct wait wait, gathered;
	struct facts_waiter facts;
	struct areq *q;
	struct control_propose propose;
	struct command cmd;
	struct timer look;
	struct safety_report report;
	bool timer_made;
	unsigned left; /* primaries on the node, by this node's map */
	uint64_t begun_us, moved_us;
};

static unsigned primaries_on(const struct map *m, uint16_t node)
{
	unsigned n = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++) {
			const struct map_node *p = map_primary_node(m, &v->object[i]);

			n += p && p->id == node;
		}
	}
	return n;
}

static void maintenance_answer(struct maintenance *d)
{
	struct areq *q = d->q;
	const struct map_node *n = map_node(admin_map(q->admin), d->cmd.maintenance.node);
	struct json *j = json_object_new();

	if (d->timer_made)
		timer_fini(&d->look);
	json_put_str(j, "node", n ? n->name : "?");
	json_put_bool(j, "in_maintenance", n && n->maintenance_until_ms);
	json_put_u64(j, "until_ms", n ? n->maintenance_until_ms : 0);
	json_put_str(j, "reason", n ? n->maintenance_reason : "");
	json_put_u64(j, "primaries_left", d->left);
	json_put_u64(j, "took_ms", (loop_mono_us(q->admin->cfg.loop) - d->begun_us) / 1000);
	if (d->report.why[0])
		json_put_str(j, "can_stop", d->report.why);
	admin_reply(q, 200, j);
}

static void maintenance_look(struct timer *t)
{
	struct maintenance *d = container_of(t, struct maintenance, look);
	struct admin *a = d->q->admin;
	uint64_t now = loop_mono_us(a->cfg.loop);
	unsigned left = primaries_on(admin_map(a), d->cmd.maintenance.node);

	if (d->q->answered) { /* the process stops */
		timer_fini(&d->look);
		return;
	}
	if (left < d->left || !d->moved_us)
		d->moved_us = now;
	d->left = left;
	if (!left || now - d->moved_us >= MOVE_IDLE_US ||
	    !facts_node_up(a, d->cmd.maintenance.node))
		maintenance_answer(d);
	else
		timer_set(&d->look, MOVE_LOOK_US);
}

static void on_proposed(struct wait *w, int rc)
{
	struct maintenance *d = container_of(w, struct maintenance, wait);
	struct areq *q = d->q;

	if (admin_failed(q, rc, &d->propose.result))
		return;
	d->left = primaries_on(admin_map(q->admin), d->cmd.maintenance.node);
	if (d->cmd.maintenance.op != MAINTENANCE_START) {
		maintenance_answer(d);
		return;
	}
	timer_init(&d->look, q->admin->cfg.loop, maintenance_look);
	d->timer_made = true;
	timer_set(&d->look, 0);
}

static void maintenance_propose(struct maintenance *d)
{
	struct admin *a = d->q->admin;
	int rc = a->ops->propose(a->cluster, &d->propose, &d->cmd, PROPOSE_TIMEOUT_MS, &d->wait);

	if (rc != PENDING)
		on_proposed(&d->wait, rc);
}

/* A start asks first. Whoever knows better says yes. */
static void on_gathered(struct wait *w, int rc)
{
	struct maintenance *d = container_of(w, struct maintenance, gathered);
	struct areq *q = d->q;
	struct targets t = {.nodes = {d->cmd.maintenance.node}, .node_count = 1};
	uint64_t rate;

	evaluate(q->admin, &t, false, &rate, &d->report);
	if (d->report.verdict != SAFETY_OK && !json_bool(q->body, "yes", false)) {
		admin_fail(q, d->report.verdict == SAFETY_DATA ? -ERR_INCOMPLETE : -ERR_NO_LEADER,
			   "%s. Nothing was done; --yes goes on regardless", d->report.why);
		return;
	}
	maintenance_propose(d);
}

void admin_node_maintenance(struct areq *q)
{
	static const char *const known[] = {"op", "ttl_s", "reason", "yes"};
	static const char *const op[] = {"", "start", "extend", "end"};
	const struct map_node *n = map_node_by_name(admin_map(q->admin), q->param);
	const char *what = q->body ? json_str(q->body, "op") : NULL;
	const char *reason = q->body ? json_str(q->body, "reason") : NULL;
	struct maintenance *d;
	struct command *c;

	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (!node_counts(n)) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no node is named \"%.63s\"; `ashlar node list` shows all", q->param);
		return;
	}
	d = xcalloc(1, sizeof(*d));
	c = &d->cmd;
	q->op = d;
	d->q = q;
	d->wait.resume = on_proposed;
	d->gathered.resume = on_gathered;
	d->begun_us = loop_mono_us(q->admin->cfg.loop);
	admin_command(q, CMD_MAINTENANCE, c);
	c->maintenance.node = n->id;
	for (unsigned i = 1; what && i < ARRAY_LEN(op); i++)
		if (!strcmp(what, op[i]))
			c->maintenance.op = (uint8_t)i;
	c->maintenance.ttl_s =
		(uint32_t)MIN(json_u64(q->body, "ttl_s", MAINTENANCE_TTL_S), (uint64_t)UINT32_MAX);
	if (!c->maintenance.op) {
		admin_fail(q, -ERR_INVALID, "op must be start, extend or end");
		return;
	}
	if (reason && strlen(reason) >= sizeof(c->maintenance.reason)) {
		admin_fail(q, -ERR_INVALID, "a reason has at most %zu characters",
			   sizeof(c->maintenance.reason) - 1);
		return;
	}
	snprintf(c->maintenance.reason, sizeof(c->maintenance.reason), "%s", reason ? reason : "");
	if (c->maintenance.op != MAINTENANCE_START) {
		maintenance_propose(d);
		return;
	}
	facts_forget(q->admin);
	if (facts_refresh(q->admin, &d->facts, &d->gathered) != PENDING)
		on_gathered(&d->gathered, 0);
}
