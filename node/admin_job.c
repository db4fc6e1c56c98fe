/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs as people see them: how far, how fast, until when, what blocks them. Progress is not stored
 * anywhere: it is the plan of relocate.c over the map, as the leader makes it, so every node can
 * tell. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"
#include "node/safety.h"

#define RATE_MIN (256u << 10)
#define STUCK_MS 600000u /* running, not blocked, and nothing has moved for so long */

/* ---- What is to be moved -----------------------------------------------------------------------
 */

struct relocate_plan *admin_plan(const struct admin *a)
{
	const struct state *s = a->ops->state(a->cluster);
	struct relocate_input in = {.map = state_map(s), .fills_max = RELOCATE_FILLS,
				    .small_fills_max = RELOCATE_SMALL_FILLS};
	struct relocate_plan *p = xcalloc(1, sizeof(*p));
	struct relocate_node *nodes = a->ops->contacts(a->cluster);

	/* What the leader sees of frozen nodes, this one sees by unanswered questions. */
	for (struct hnode *h = hmap_walk(&in.map->nodes, NULL); h;
	     h = hmap_walk(&in.map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		nodes[n->id].up &= facts_node_up(a, n->id);
	}
	in.nodes = nodes;
	in.jobs = state_jobs(s, &in.job_count);
	relocate(&in, p);
	free(nodes);
	return p;
}

static uint64_t replication_sum(const struct admin *a, const char *key)
{
	uint64_t sum = 0;

	for (unsigned n = 0; n <= NODE_IDS_MAX; n++)
		if (a->facts[n].json && facts_node_up(a, (uint16_t)n))
			sum += json_u64(json_get(a->facts[n].json, "replication"), key, 0);
	return sum;
}

uint64_t admin_copy_rate(const struct admin *a)
{
	return replication_sum(a, "copy_rate");
}

/* How much longer client operations take beside copies, where it is most. */
static uint64_t copy_cost_permille(const struct admin *a)
{
	uint64_t most = 0;

	for (unsigned n = 0; n <= NODE_IDS_MAX; n++)
		if (a->facts[n].json && facts_node_up(a, (uint16_t)n))
			most = MAX(most, json_u64(json_get(a->facts[n].json, "replication"),
						  "copy_cost_permille", 0));
	return most;
}

/* What a replica holds on average, in bytes that somebody wrote. */
static uint64_t replica_bytes(const struct admin *a)
{
	const struct map *m = admin_map(a);
	uint64_t bytes = 0, objects = 0;

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct json *f = facts_group(a, container_of(h, struct map_group, by_id));
		const struct json *stats = f ? json_get(f, "stats") : NULL;

		bytes += stats ? json_u64(stats, "logical_bytes", 0) : 0;
		objects += stats ? json_u64(stats, "objects", 0) : 0;
	}
	return objects ? bytes / objects : 0;
}

/* Replicas not begun, and what those under way lack, of which each job has its share. */
static uint64_t bytes_left(const struct admin *a, const struct relocate_plan *p, unsigned job)
{
	const struct relocate_job *r = &p->job[job];
	uint64_t size = replica_bytes(a), lack = replication_sum(a, "copy_left_bytes"), filling = 0;

	for (unsigned i = 0; i < STATE_JOBS; i++)
		filling += p->job[i].filling;
	lack = filling ? lack * r->filling / filling : 0;
	return (r->left - MIN(r->filling, r->left)) * size + MIN(lack, r->filling * size);
}

/* What is emptied for good is not emptied before the rest. */
static unsigned rank(uint8_t kind)
{
	return kind == JOB_REMOVE ? JOB_EVACUATE : kind;
}

/* Copies for missing ones come first; then what is to be emptied; then what is uneven. */
uint64_t admin_seconds_left(const struct admin *a, const struct relocate_plan *p, uint8_t kind)
{
	unsigned count;
	const struct state_job *j = state_jobs(a->ops->state(a->cluster), &count);
	uint64_t rate = admin_copy_rate(a), left = 0;

	for (unsigned i = 0; i < count; i++)
		if (j[i].state == JOB_RUNNING && rank(j[i].kind) <= rank(kind))
			left += bytes_left(a, p, i);
	/* Next to nothing is a job that begins or ends, not a rate. */
	return rate >= RATE_MIN && left ? left / rate + 1 : 0;
}

/* ---- As JSON -----------------------------------------------------------------------------------
 */

static void put_target(const struct map *m, const struct state_job *j, struct json *out)
{
	const struct map_group *g = j->group ? map_group(m, j->group) : NULL;

	json_put_str(out, "node", map_node_name(m, g ? g->node : j->node));
	if (j->group)
		json_put_u64(out, "group", j->group);
}

/* What a node that is empty waits for before it leaves. */
static const char *leave_waits_for(const struct admin *a, const struct state_job *j, char why[200])
{
	struct consensus_status st = {0};

	if (!state_node_may_leave(a->ops->state(a->cluster), j->node, wall_ms(), why))
		return why;
	a->ops->status(a->cluster, &st);
	for (unsigned i = 0; i < st.voters && i < ARRAY_LEN(st.voter); i++)
		if (st.voter[i] == j->node)
			return "its vote to go to another node";
	return NULL;
}

static const char *waits_for(const struct admin *a, const struct state_job *j, const struct relocate_job *r,
			     const struct relocate_plan *p, char why[200])
{
	if (j->state == JOB_RUNNING && !r->left && j->kind == JOB_REMOVE)
		return leave_waits_for(a, j, why); /* also what no plan moves: quarantine */
	if (j->state != JOB_RUNNING || !r->left)
		return NULL;
	if (r->blocked && r->blocked + r->filling >= r->left)
		return p->why;
	if (r->undecided && r->undecided + r->filling >= r->left)
		return "a decision about objects that nobody serves: see DATA_UNDECIDED in `ashlar health`";
	if (j->kind != JOB_REBUILD && p->lacking.total && !r->filling)
		return "copies that are missing come first";
	return NULL;
}

bool admin_job_is_emptying(const struct state_job *j, const struct relocate_job *r)
{
	return j->state == JOB_RUNNING && r->left && (j->kind == JOB_EVACUATE || j->kind == JOB_REMOVE);
}

/* Damage that was met after it began: replicas in a group with damage are no copies of those it takes away.
 * False: there is none. */
static bool job_danger(const struct admin *a, const struct state_job *j, const struct relocate_job *r,
		       char out[200])
{
	const struct map *m = admin_map(a);

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		bool target = j->group ? g->id == j->group : g->node == j->node;

		if (target || !admin_job_is_emptying(j, r) || !facts_group_lacks(a, g))
			continue;
		snprintf(out, 200,
			 "disk group %u has damage that is not repaired yet: what is whole here only is "
			 "lost; ashlar job pause %u until DATA_REPAIRING is gone",
			 g->id, j->id);
		return true;
	}
	return false;
}

/* In its target, of all volumes: they are nobody's copies, and no job moves them. */
static uint64_t job_quarantined(const struct admin *a, const struct state_job *j)
{
	const struct map *m = admin_map(a);
	uint64_t count = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			for (unsigned k = 0; k < v->object[i].member_count; k++) {
				const struct map_member *mb = &v->object[i].member[k];
				const struct map_group *g = map_group(m, mb->group);

				count += mb->kept && g && (j->group ? g->id == j->group : g->node == j->node);
			}
	}
	return count;
}

static struct json *job_to_json(const struct admin *a, unsigned index,
				const struct relocate_plan *p)
{
	unsigned count;
	const struct state_job *j = &state_jobs(a->ops->state(a->cluster), &count)[index];
	const struct relocate_job *r = &p->job[index];
	struct json *out = json_object_new();
	uint64_t size = replica_bytes(a), now = wall_ms();
	/* Of a node that is away another job counts what is left. */
	uint32_t there = j->kind == JOB_REMOVE && job_live(j)
				 ? state_node_objects(a->ops->state(a->cluster), j->node)
				 : 0;
	uint32_t stays = j->kind == JOB_EVACUATE ? r->left + r->stranded : r->left;
	uint32_t left = j->state == JOB_DONE && j->kind != JOB_EVACUATE ? 0 : MAX(stays, there),
		 total = MAX(j->total, left);
	bool holds = state_job_holds(a->ops->state(a->cluster), j);
	char why[200];
	uint64_t lack = left ? bytes_left(a, p, index) : 0, all = MAX(total * size, lack);

	json_put_u64(out, "id", j->id);
	json_put_str(out, "kind", job_kind_name(j->kind));
	json_put_str(out, "state", job_state_name(j->state));
	put_target(admin_map(a), j, out);
	json_put_str(out, "actor", j->actor);
	json_put_str(out, "note", j->note);
	json_put_u64(out, "started_ms", j->started_ms);
	json_put_u64(out, "changed_ms", j->changed_ms);
	json_put_u64(out, "age_s", now > j->started_ms ? (now - j->started_ms) / 1000 : 0);
	json_put_u64(out, "replicas_total", total);
	if (j->state != JOB_CANCELLED) { /* what is left of a cancelled one nobody counts */
		json_put_u64(out, "replicas_left", left);
		json_put_u64(out, "replicas_done", total - left);
		json_put_u64(out, "percent", !left ? 100 : all ? (all - lack) * 100 / all : 0);
	}
	json_put_u64(out, "replicas_filling", job_live(j) ? r->filling : 0);
	json_put_u64(out, "replicas_blocked", job_live(j) ? r->blocked : 0);
	json_put_u64(out, "replicas_without_source", job_live(j) ? r->stranded : 0);
	json_put_u64(out, "bytes_left_estimate", lack);
	json_put_u64(out, "bytes_total_estimate", all);
	if (j->state == JOB_RUNNING && left) {
		uint64_t seconds = admin_seconds_left(a, p, j->kind);

		json_put_u64(out, "bytes_per_s", admin_copy_rate(a));
		json_put_u64(out, "client_cost_permille", copy_cost_permille(a));
		if (seconds)
			json_put_u64(out, "seconds_left_estimate", seconds);
	}
	json_put_bool(out, "holds_empty", holds);
	json_put_u64(out, "quarantined_replicas", holds ? job_quarantined(a, j) : 0); /* there still */
	json_put_str(out, "waits_for", waits_for(a, j, r, p, why));
	json_put_str(out, "danger", job_danger(a, j, r, why) ? why : NULL);
	json_put_u64(out, "stuck_s", admin_job_stuck_s(a, j->id));
	return out;
}

/* ---- Jobs that do not move: remembered between looks, by this process
 * ---------------------------- */

void admin_jobs_look(struct admin *a, const struct relocate_plan *p)
{
	uint64_t now = loop_mono_us(a->cfg.loop), bytes = replication_sum(a, "resync_bytes");
	unsigned count;
	const struct state_job *j = state_jobs(a->ops->state(a->cluster), &count);
	struct job_memory next[STATE_JOBS] = {0};

	for (unsigned i = 0; i < count; i++) {
		uint64_t mark = ((uint64_t)p->job[i].left << 32) + j[i].state + (bytes >> 12);

		next[i] = (struct job_memory){.id = j[i].id, .mark = mark, .moved_us = now};
		for (unsigned k = 0; k < STATE_JOBS; k++)
			if (a->jobs[k].id == j[i].id && a->jobs[k].mark == mark)
				next[i].moved_us = a->jobs[k].moved_us;
		if (j[i].state != JOB_RUNNING || (!p->job[i].left && j[i].kind != JOB_REMOVE))
			next[i].moved_us = now;
	}
	memcpy(a->jobs, next, sizeof(next));
}

uint64_t admin_job_stuck_s(const struct admin *a, uint32_t id)
{
	uint64_t now = loop_mono_us(a->cfg.loop);

	for (unsigned k = 0; k < STATE_JOBS; k++)
		if (a->jobs[k].id == id && now - a->jobs[k].moved_us >= STUCK_MS * 1000ull)
			return (now - a->jobs[k].moved_us) / 1000000;
	return 0;
}

/* ---- Reading ------------------------------------------------------------------------------------
 */

static void jobs_ready(struct areq *q)
{
	struct admin *a = q->admin;
	unsigned count;
	struct relocate_plan *p = admin_plan(a);
	struct json *j = json_object_new(), *list = json_array_new();

	admin_jobs_look(a, p);
	state_jobs(a->ops->state(a->cluster), &count);
	for (unsigned i = 0; i < count; i++)
		json_add(list, job_to_json(a, i, p));
	json_put(j, "jobs", list);
	json_put(j, "source", admin_source(a));
	free(p);
	admin_reply(q, 200, j);
}

void admin_get_jobs(struct areq *q)
{
	admin_after_facts(q, jobs_ready);
}

/* The index of the job that the path names, or -1 after the answer. */
static int job_of_path(struct areq *q)
{
	unsigned count;
	const struct state_job *jobs = state_jobs(q->admin->ops->state(q->admin->cluster), &count);
	char *end;
	unsigned long id = strtoul(q->param, &end, 10);

	for (unsigned i = 0; !*end && i < count; i++)
		if (jobs[i].id == id)
			return (int)i;
	if (admin_ask_leader(q)) /* it may be that young */
		return -1;
	admin_fail(q, -ERR_NOT_FOUND, "there is no job %.20s; `ashlar job list` shows all",
		   q->param);
	return -1;
}

static void job_ready(struct areq *q)
{
	struct admin *a = q->admin;
	int i = job_of_path(q);
	struct relocate_plan *p;
	struct json *j;

	if (i < 0)
		return;
	p = admin_plan(a);
	admin_jobs_look(a, p);
	j = job_to_json(a, (unsigned)i, p);
	json_put(j, "source", admin_source(a));
	free(p);
	admin_reply(q, 200, j);
}

void admin_get_job(struct areq *q)
{
	admin_after_facts(q, job_ready);
}

/* ---- Changing -----------------------------------------------------------------------------------
 */

struct job_request {
	struct wait wait;
	struct areq *q;
	struct control_propose propose;
};

static void on_job(struct wait *w, int rc)
{
	struct job_request *op = container_of(w, struct job_request, wait);
	struct areq *q = op->q;
	struct json *j;

	if (admin_failed(q, rc, &op->propose.result))
		return;
	j = json_object_new();
	json_put_u64(j, "id", op->propose.result.id);
	json_put_u64(j, "index", op->propose.result.index);
	admin_reply(q, 200, j);
}

static void propose_job(struct areq *q, const struct job_change *ch)
{
	struct job_request *op = xcalloc(1, sizeof(*op));
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	int rc;

	op->q = q;
	op->wait.resume = on_job;
	free(q->op);
	q->op = op;
	admin_command(q, CMD_JOB, cmd);
	cmd->job = *ch;
	rc = q->admin->ops->propose(q->admin->cluster, &op->propose, cmd, PROPOSE_TIMEOUT_MS,
				    &op->wait);
	free(cmd);
	if (rc != PENDING)
		on_job(&op->wait, rc);
}

static bool kind_of(const char *text, uint8_t *kind)
{
	for (*kind = JOB_REBUILD; *kind <= JOB_REBALANCE; (*kind)++)
		if (text && !strcmp(text, job_kind_name(*kind)))
			return true;
	return false;
}

/* False: there is no place for what would have to move, or the copies to make it from are damaged (theirs
 * would lack the same, and what is whole there would be gone): it was answered so. */
static bool evacuation_may_begin(struct areq *q, const struct job_change *ch)
{
	CLEANUP(free_ptr) struct safety_report *r = xcalloc(1, sizeof(*r));
	const struct map *m = admin_map(q->admin);
	const char *why;
	char target[96];

	admin_evaluate_emptied(q->admin, ch->node, ch->group, r);
	if (r->unrepaired) {
		admin_fail(q, -ERR_INCOMPLETE, "%s. Nothing was done", r->unrepaired_why);
		return false;
	}
	why = admin_room_missing(r);
	if (!why || json_bool(q->body, "yes", false))
		return true;
	if (ch->group)
		snprintf(target, sizeof(target), "disk group %u", ch->group);
	else
		snprintf(target, sizeof(target), "node %s", map_node_name(m, ch->node));
	admin_fail(q, -ERR_INCOMPLETE, "%s: %s. Nothing was done; --yes starts it all the same, and it waits",
		   target, why);
	return false;
}

static void start_ready(struct areq *q)
{
	const struct map *m = admin_map(q->admin);
	const char *node = q->body ? json_str(q->body, "node") : NULL;
	const struct map_node *n = node ? map_node_by_name(m, node) : NULL;
	struct job_change ch = {.op = JOB_START};

	if (!kind_of(q->body ? json_str(q->body, "kind") : NULL, &ch.kind)) {
		admin_fail(q, -ERR_INVALID, "kind must be rebuild, evacuate or rebalance");
		return;
	}
	if (node && !n) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no node is named \"%.63s\"; `ashlar node list` shows all", node);
		return;
	}
	ch.node = n ? n->id : 0;
	ch.group = (uint16_t)MIN(json_u64(q->body, "group", 0), UINT16_MAX);
	snprintf(ch.note, sizeof(ch.note), "%.90s",
		 json_str(q->body, "note") ? json_str(q->body, "note") : "");
	if (ch.kind == JOB_EVACUATE && !evacuation_may_begin(q, &ch))
		return;
	if (ch.kind == JOB_REBALANCE) {
		struct relocate_plan *p = admin_plan(q->admin);

		ch.total = p->imbalance;
		free(p);
	}
	propose_job(q, &ch);
}

/* {"kind": "evacuate", "node": NAME} or {…, "group": N}; {"kind": "rebalance"}. "yes": an evacuation begins
 * though there is no place for all of it yet. */
void admin_start_job(struct areq *q)
{
	facts_forget(q->admin); /* damage may have been met a moment ago */
	admin_after_facts(q, start_ready);
}

static void step(struct areq *q, uint8_t op)
{
	unsigned count;
	int i = job_of_path(q);
	struct job_change ch = {.op = op};

	if (i < 0)
		return;
	ch.id = state_jobs(q->admin->ops->state(q->admin->cluster), &count)[i].id;
	propose_job(q, &ch);
}

void admin_pause_job(struct areq *q)
{
	step(q, JOB_PAUSE);
}

void admin_resume_job(struct areq *q)
{
	step(q, JOB_RESUME);
}

void admin_cancel_job(struct areq *q)
{
	step(q, JOB_CANCEL);
}
