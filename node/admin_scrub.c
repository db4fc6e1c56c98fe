/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub for people: start, stop, how far, what it found and where; and the settings, handed on to
 * stores and replicators every few seconds together with the time of day, which they have no clock
 * for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "node/admin_impl.h"
#include "store/store_scrub.h"

/* ---- What is known ---- */

static const char *phase_name(const struct store_scrub *s)
{
	static const char *const names[] = {"idle", "segments", "map", "moving"};

	return names[s->phase];
}

struct json *scrub_to_json(struct store *store)
{
	struct json *j = json_object_new(), *list = json_array_new();
	struct store_scrub s;
	uint64_t done = 0;

	store_scrub_status(store, &s);
	if (s.total_bytes)
		done = MIN(s.checked_bytes * 10000 / s.total_bytes, 9999);
	json_put_str(j, "phase", phase_name(&s));
	json_put_bool(j, "stopped", s.stopped);
	json_put_bool(j, "asked", s.asked);
	json_put_u64(j, "done_permyriad", s.phase == SCRUB_IDLE ? 0 : done);
	json_put_u64(j, "checked_bytes", s.checked_bytes);
	json_put_u64(j, "total_bytes", s.total_bytes);
	json_put_u64(j, "rate_bytes_per_s", s.rate_bytes_per_s);
	json_put_u64(j, "started_s", s.started_s);
	json_put_u64(j, "finished_s", s.finished_s);
	json_put_u64(j, "passes", s.passes);
	json_put_u64(j, "found_blocks", s.found);
	json_put_u64(j, "found_since_open_blocks", s.found_ever);
	json_put_u64(j, "found_last_s", s.found_last_s);
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		struct json *d;

		if (!s.device_bad[i] || !s.device_path[i])
			continue;
		d = json_object_new();
		json_put_str(d, "path", s.device_path[i]);
		json_put_u64(d, "bad_blocks", s.device_bad[i]);
		json_add(list, d);
	}
	json_put(j, "devices", list);
	return j;
}

static struct store *open_group(struct admin *a, uint16_t number)
{
	struct admin_group g[GROUPS_PER_NODE_MAX];
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));

	for (unsigned i = 0; i < n; i++)
		if (g[i].group == number && g[i].open && !g[i].failed)
			return g[i].store;
	return NULL;
}

/* ---- On the shards ---- */

struct audit_job {
	struct admin_shard_job job;
	struct wait wait;
	struct areq *q; /* NULL: only the pace */
	uint32_t pass_s;
	uint16_t group;
	bool start;
};

static void audit_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r,
			   struct client *c)
{
	const struct audit_job *o = j->arg;

	if (!r)
		return;
	replicator_audit_pace(r, o->pass_s);
	if (o->start)
		replicator_audit_start(r);
}

static void on_job(struct wait *w, int rc)
{
	struct audit_job *o = container_of(w, struct audit_job, wait);
	struct areq *q = o->q;
	struct json *j;

	if (!q) {
		free(o);
		return;
	}
	j = json_object_new();
	json_put_u64(j, "group", o->group);
	json_put_str(j, "node", q->admin->cfg.config->name);
	json_put_str(j, "scrub", o->start ? "started" : "stopped");
	facts_forget(q->admin);
	admin_reply(q, 200, j); /* frees the job with the request */
}

static uint32_t pass_seconds(struct admin *a)
{
	return state_setting_number(a->ops->state(a->cluster), SCRUB_INTERVAL_KEY) * 3600;
}

static void job_run(struct admin *a, struct areq *q, uint16_t group, bool start)
{
	struct audit_job *o = xcalloc(1, sizeof(*o));
	int rc;

	*o = (struct audit_job){.job = {.run = audit_on_shard, .arg = o},
				.wait.resume = on_job,
				.q = q,
				.pass_s = pass_seconds(a),
				.group = group,
				.start = start};
	if (q)
		q->op = o;
	rc = a->cfg.node_ops->on_shards(a->cfg.node, &o->job, &o->wait);
	if (rc != PENDING)
		on_job(&o->wait, rc);
}

/* From the admin's tick. */
void admin_scrub_tick(struct admin *a)
{
	struct admin_group g[GROUPS_PER_NODE_MAX];
	const struct state *st = a->ops->state(a->cluster);
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));
	uint32_t rate;

	if (!st || !n)
		return;
	rate = state_setting_number(st, SCRUB_RATE_KEY);
	for (unsigned i = 0; i < n; i++)
		if (g[i].open && !g[i].failed)
			store_scrub_pace(g[i].store, pass_seconds(a), (uint64_t)rate << 20,
					 (uint64_t)time(NULL));
	if (a->scrub_pass_s == pass_seconds(a) && a->scrub_told)
		return;
	a->scrub_pass_s = pass_seconds(a);
	a->scrub_told = true;
	job_run(a, NULL, 0, false);
}

/* ---- Requests ---- */

/* POST /v1/diskgroups/N/scrub {"action": "start" | "stop"} */
void admin_scrub_group(struct areq *q)
{
	struct admin *a = q->admin;
	const struct map_group *g = admin_find_group(q);
	const char *action = q->body ? json_str(q->body, "action") : NULL;
	struct store *s;
	bool start;

	if (!g)
		return;
	if (!action || (strcmp(action, "start") && strcmp(action, "stop"))) {
		admin_fail(q, -ERR_INVALID, "\"action\" is \"start\" or \"stop\"");
		return;
	}
	if (g->node != a->cfg.identity->number) {
		admin_forward(q, g->node, PROPOSE_TIMEOUT_MS);
		return;
	}
	s = open_group(a, g->id);
	if (!s) {
		admin_fail(q, -ERR_UNAVAILABLE,
			   "disk group %u is not open; `ashlar diskgroup show %u` says why", g->id,
			   g->id);
		return;
	}
	start = !strcmp(action, "start");
	admin_scrub_tick(a); /* the newest settings, and the time */
	if (start)
		store_scrub_start(s);
	else
		store_scrub_stop(s);
	job_run(a, q, g->id, start);
}
