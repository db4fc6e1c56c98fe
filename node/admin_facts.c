/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of all nodes: asked in parallel with a short deadline, kept with their age, so that an
 * answer about a cluster with dead nodes comes as fast as one about a healthy one. One gathering at
 * a time; whoever asks meanwhile waits for the same one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/voters.h"
#include "node/admin_impl.h"

#define LINK_AGE_MS 5000 /* older words about a connection say nothing about now */
#define SETTLE_US 3000000u /* a node that is back, or new, has its connections by then */
#define AWAY_NOTED_US 10000000u /* longer ago it may have been back for long */

/* ---- Asking all nodes --------------------------------------------------------------------------
 */

static void ask_settle(struct ask_all *k)
{
	if (k->pending == 0 && !k->starting)
		wait_resume(k->owner, 0);
}

static void take_answer(struct ask_one *o, int rc)
{
	char err[128];

	o->answered = rc == 0;
	if (rc == 0 && o->call.status == 200 && o->call.json)
		o->json = json_parse(o->call.json, strlen(o->call.json), err, sizeof(err));
	if (o->answered && !o->json && (o->call.status < 0 || o->call.status == 200))
		log_warn("admin", "what a node answered is of no use", "node=%u path=%s status=%d",
			 o->node, o->all->path, o->call.status);
	free(o->call.json);
	o->call.json = NULL;
	o->all->pending--;
}

static void on_answer(struct wait *w, int rc)
{
	struct ask_one *o = container_of(w, struct ask_one, wait);

	take_answer(o, rc);
	ask_settle(o->all);
}

/* only: one node, or 0. */
static int ask(struct admin *a, uint16_t only, const char *path, struct ask_all **out, struct wait *w)
{
	struct ask_all *k = xcalloc(1, sizeof(*k));
	const struct map *m = admin_map(a);

	k->admin = a;
	k->owner = w;
	k->starting = true;
	snprintf(k->path, sizeof(k->path), "%s", path);
	*out = k;
	for (struct hnode *h = m ? hmap_walk(&m->nodes, NULL) : NULL; h;
	     h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);
		struct ask_one *o = &k->one[k->count];
		int rc;

		if (n->id == a->cfg.identity->number || n->state == NODE_REMOVED || k->count >= NODES_MAX ||
		    (only && n->id != only) || !a->ops->peer_connected(a->cluster, n->id))
			continue;
		k->count++;
		k->pending++;
		o->node = n->id;
		o->all = k;
		o->wait.resume = on_answer;
		rc = a->ops->call(a->cluster, &o->call, n->id, "GET", path, "", CALL_TIMEOUT_MS,
				  &o->wait);
		if (rc != PENDING)
			take_answer(o, rc);
	}
	k->starting = false;
	return k->pending ? PENDING : 0;
}

int ask_all(struct admin *a, const char *path, struct ask_all **out, struct wait *w)
{
	return ask(a, 0, path, out, w);
}

int ask_node(struct admin *a, uint16_t node, const char *path, struct ask_all **out, struct wait *w)
{
	return ask(a, node, path, out, w);
}

void ask_all_free(struct ask_all *k)
{
	if (!k)
		return;
	for (unsigned i = 0; i < k->count; i++)
		json_free(k->one[i].json);
	free(k);
}

/* Not only connected, as a frozen process is, too: it did, when it was asked last. */
static bool facts_node_answers(const struct admin *a, uint16_t node)
{
	return facts_node_up(a, node) && !(node <= NODE_IDS_MAX && a->facts[node].missed);
}

static bool heard_by_any(const struct admin *a, uint16_t id);

/* ---- Gathering ---------------------------------------------------------------------------------
 */

struct gather {
	struct admin *admin;
	struct ask_all *ask;
	struct json *local;
	struct wait asked, found;
	unsigned pending;
};

/* A node that answers what is of no use is not silent: its last words stay. */
static void put_fact(struct admin *a, uint16_t node, struct json *json, bool answered)
{
	struct fact *f;

	if (node > NODE_IDS_MAX) {
		json_free(json);
		return;
	}
	f = &a->facts[node];
	f->missed = answered ? 0 : f->missed + 1;
	if (!json)
		return;
	json_free(f->json);
	f->json = json;
	f->at_us = loop_mono_us(a->cfg.loop);
	f->wall_ms = wall_ms();
}

/* The last words of a node that was removed are of no interest any more. */
static void forget_removed(struct admin *a)
{
	const struct map *m = admin_map(a);

	for (uint16_t id = 1; m && id <= NODE_IDS_MAX; id++) {
		const struct map_node *n = a->facts[id].json ? map_node(m, id) : NULL;

		if (!n || n->state != NODE_REMOVED)
			continue;
		json_free(a->facts[id].json);
		a->facts[id] = (struct fact){0};
	}
}

/* Who was neither here nor heard by others and is again, if somebody asked meanwhile: what was long ago says
 * nothing about now. */
static void note_returns(struct admin *a)
{
	const struct map *m = admin_map(a);
	uint64_t now = loop_mono_us(a->cfg.loop);

	for (struct hnode *h = m ? hmap_walk(&m->nodes, NULL) : NULL; h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);
		struct fact *f = n->id <= NODE_IDS_MAX ? &a->facts[n->id] : NULL;

		if (!f || n->state == NODE_REMOVED)
			continue;
		if (!facts_node_answers(a, n->id) && !heard_by_any(a, n->id))
			f->lost_us = now;
		else if (f->lost_us > f->back_us)
			f->back_us = now - f->lost_us < AWAY_NOTED_US ? now : f->lost_us;
	}
}

static void gather_begin(struct admin *a);

/* Those whom this gathering answers, and not the next one. */
static void waiters_take(struct admin *a, struct list *out)
{
	struct list next = LIST_INIT(next), *n;

	while ((n = list_pop_front(&a->facts_waiters))) {
		struct facts_waiter *w = list_entry(n, struct facts_waiter, link);

		list_push_back(w->next ? &next : out, n);
		w->next = false;
	}
	list_splice_back(&a->facts_waiters, &next);
}

static void gather_finish(struct gather *g)
{
	struct admin *a = g->admin;
	struct list waiters = LIST_INIT(waiters);

	put_fact(a, a->cfg.identity->number, g->local, true);
	for (unsigned i = 0; g->ask && i < g->ask->count; i++) {
		put_fact(a, g->ask->one[i].node, g->ask->one[i].json, g->ask->one[i].answered);
		g->ask->one[i].json = NULL;
	}
	ask_all_free(g->ask);
	free(g);
	forget_removed(a);
	note_returns(a);
	a->gather = NULL;
	waiters_take(a, &waiters);
	if (a->facts_stale)
		gather_begin(a);
	else
		a->facts_us = loop_mono_us(a->cfg.loop);
	while (!list_empty(&waiters)) {
		struct list *l = list_pop_front(&waiters);

		wait_resume(list_entry(l, struct facts_waiter, link)->wait, 0);
	}
}

static void gather_part(struct gather *g)
{
	if (--g->pending == 0)
		gather_finish(g);
}

static void on_asked(struct wait *w, int rc)
{
	gather_part(container_of(w, struct gather, asked));
}

static void on_found(struct wait *w, int rc)
{
	gather_part(container_of(w, struct gather, found));
}

static void gather_begin(struct admin *a)
{
	struct gather *g = xcalloc(1, sizeof(*g));

	a->facts_stale = false;
	g->admin = a;
	g->asked.resume = on_asked;
	g->found.resume = on_found;
	a->gather = g;
	g->pending = 3; /* the two parts, and this function */
	if (ask_all(a, "/v1/local", &g->ask, &g->asked) != PENDING)
		g->pending--;
	if (local_facts(a, &g->local, &g->found) != PENDING)
		g->pending--;
	gather_part(g);
}

void facts_forget(struct admin *a)
{
	a->facts_us = 0;
	a->facts_stale = a->gather != NULL; /* its answers may be of before */
}

int facts_refresh(struct admin *a, struct facts_waiter *w, struct wait *wait)
{
	uint64_t now = loop_mono_us(a->cfg.loop);

	if (!a->gather && a->facts_us && now - a->facts_us < FACTS_FRESH_US)
		return 0;
	if (!a->gather) {
		gather_begin(a);
		if (!a->gather)
			return 0;
	}
	w->wait = wait;
	w->next = a->facts_stale;
	list_push_back(&a->facts_waiters, &w->link);
	return PENDING;
}

struct after {
	struct wait wait;
	struct facts_waiter waiter;
	struct areq *q;
	void (*then)(struct areq *q);
};

static void on_facts(struct wait *w, int rc)
{
	struct after *f = container_of(w, struct after, wait);

	f->then(f->q);
}

void admin_after_facts(struct areq *q, void (*then)(struct areq *q))
{
	struct after *f = xcalloc(1, sizeof(*f));

	f->wait.resume = on_facts;
	f->q = q;
	f->then = then;
	q->op = f;
	if (facts_refresh(q->admin, &f->waiter, &f->wait) != PENDING)
		then(q);
}

void facts_free(struct admin *a)
{
	for (unsigned i = 0; i <= NODE_IDS_MAX; i++)
		json_free(a->facts[i].json);
	if (a->gather) {
		ask_all_free(a->gather->ask);
		json_free(a->gather->local);
		free(a->gather);
	}
}

/* ---- Using them --------------------------------------------------------------------------------
 */

/* The kernel of a frozen process keeps its connections alive: a node that is connected but left two
 * questions in a row unanswered is not up. One may be lost to a busy moment. */
bool facts_node_up(const struct admin *a, uint16_t node)
{
	return node == a->cfg.identity->number ||
	       (a->ops && a->ops->peer_connected(a->cluster, node) &&
		(node > NODE_IDS_MAX || a->facts[node].missed < 2));
}

int64_t facts_age_ms(const struct admin *a, uint16_t node)
{
	if (node > NODE_IDS_MAX || !a->facts[node].json)
		return -1;
	return (int64_t)((loop_mono_us(a->cfg.loop) - a->facts[node].at_us) / 1000);
}

const struct json *facts_group(const struct admin *a, const struct map_group *g)
{
	const struct json *list;

	if (g->node > NODE_IDS_MAX || !a->facts[g->node].json)
		return NULL;
	list = json_get(a->facts[g->node].json, "groups");
	for (size_t i = 0; i < json_len(list); i++)
		if (json_u64(json_at(list, i), "group", 0) == g->id)
			return json_at(list, i);
	return NULL;
}

bool facts_group_lacks(const struct admin *a, const struct map_group *g)
{
	const struct json *stats = facts_node_up(a, g->node) ? json_get(facts_group(a, g), "stats") : NULL;

	return json_u64(stats, "damaged_bytes", 0) || json_u64(stats, "lost_live_bytes", 0);
}

/* What a node that speaks now says of its connection to another: NULL if it does not say. */
static const struct json *link_facts(const struct admin *a, uint16_t from, uint16_t to)
{
	const struct json *list;
	int64_t age = facts_age_ms(a, from);

	if (age < 0 || age > LINK_AGE_MS || !facts_node_up(a, from))
		return NULL;
	list = json_get(a->facts[from].json, "links");
	for (size_t i = 0; i < json_len(list); i++)
		if (json_u64(json_at(list, i), "node", 0) == to)
			return json_at(list, i);
	return NULL;
}

/* Somebody hears it on the data connections, which the shards use all the time, or as Raft's leader. */
static bool heard_by_any(const struct admin *a, uint16_t id)
{
	for (uint16_t from = 1; from <= NODE_IDS_MAX; from++) {
		const struct json *l = from != id ? link_facts(a, from, id) : NULL;

		if (json_bool(l, "data", false) || json_bool(l, "heard", false))
			return true;
	}
	return false;
}

static bool controlled_by_any(const struct admin *a, uint16_t id)
{
	for (uint16_t from = 1; from <= NODE_IDS_MAX; from++)
		if (from != id && json_bool(link_facts(a, from, id), "control", false))
			return true;
	return false;
}

/* A frozen process keeps its control connections, and nobody its answers: those do not count alone. */
bool facts_node_heard(const struct admin *a, uint16_t id)
{
	bool connected = a->ops->peer_connected(a->cluster, id);

	return facts_node_up(a, id) || heard_by_any(a, id) || (!connected && controlled_by_any(a, id));
}

/* This node itself, too, until it was up for as long. */
static bool is_settling(const struct admin *a, uint16_t id)
{
	const struct fact *f = id <= NODE_IDS_MAX ? &a->facts[id] : NULL;
	uint64_t now = loop_mono_us(a->cfg.loop);

	if (now - a->started_us < SETTLE_US)
		return true;
	if (!f || !f->json)
		return false;
	return (f->back_us && now - f->back_us < SETTLE_US) ||
	       json_u64(f->json, "up_s", 0) * 1000000 + (now - f->at_us) < SETTLE_US;
}

static void health_node_facts(const struct admin *a, struct health_node *n)
{
	const struct json *f = n->id <= NODE_IDS_MAX ? a->facts[n->id].json : NULL, *list;
	const struct map_node *known = map_node(admin_map(a), n->id);

	n->up = facts_node_up(a, n->id);
	if (!n->up && heard_by_any(a, n->id))
		n->up = n->data_only = true;
	n->answers = facts_node_answers(a, n->id);
	n->settling = is_settling(a, n->id);
	if (!f)
		return;
	/* Connected, but not registered yet with the incarnation it runs as: it serves nothing. */
	if (known && json_u64(f, "incarnation", 0) > known->incarnation)
		n->up = false;
	n->crashed = json_bool(f, "crashed", false);
	n->up_s = json_u64(f, "up_s", 0);
	if (a->facts[n->id].wall_ms && json_has(f, "time_ms"))
		n->skew_ms = (int64_t)json_u64(f, "time_ms", 0) - (int64_t)a->facts[n->id].wall_ms;
	if (json_has(f, "certificate_expires_s")) {
		n->cert_known = true;
		n->cert_expires_s = (int64_t)json_get_real(f, "certificate_expires_s", 0);
	}
	n->ca_key_known = json_has(f, "ca_key");
	n->ca_key = json_bool(f, "ca_key", false);
	list = json_get(f, "replication");
	n->lost_blocks = json_u64(list, "lost_blocks", 0);
	n->undecided = json_u64(list, "undecided", 0);
	n->damaged_blocks = json_u64(list, "damaged_blocks", 0);
	n->repaired_blocks = json_u64(list, "repaired_blocks", 0);
	n->diverged_pages = json_u64(list, "diverged_pages", 0);
	list = json_get(f, "groups");
	for (size_t i = 0; i < json_len(list); i++) {
		const struct json *g = json_at(list, i);
		const char *why = json_str(g, "why");

		if (!json_bool(g, "missing", false))
			continue;
		if (n->missing_devices++ == 0)
			snprintf(n->missing_device, sizeof(n->missing_device), "%s",
				 why ? why : "?");
	}
}

static void health_group_facts(const struct admin *a, const struct map_group *g,
			       struct health_group *out)
{
	const struct json *f = facts_group(a, g), *stats = f ? json_get(f, "stats") : NULL, *scrub,
			  *devices;
	uint64_t most = 0;

	out->id = g->id;
	if (!f || !facts_node_up(a, g->node))
		return;
	out->known = true;
	out->open = json_bool(f, "open", false);
	out->failed = json_str(f, "failed") && !json_bool(f, "missing", false) ? -ERR_DEVICE : 0;
	out->log_lost = json_str(f, "lost") && !strcmp(json_str(f, "lost"), "LOG_LOST");
	out->reopening = json_bool(f, "reopening", false);
	out->reopen_failed = json_bool(f, "reopen_failed", false);
	out->gave_up = json_bool(f, "gave_up", false);
	out->map_damaged = json_bool(f, "map_damaged", false);
	out->lost_bytes = json_u64(stats, "lost_live_bytes", 0);
	out->damaged_bytes = json_u64(stats, "damaged_bytes", 0);
	out->used_bytes = json_u64(stats, "data_used_bytes", 0) + json_u64(stats, "log_unreduced_bytes", 0) +
			  json_u64(stats, "granted_bytes", 0);
	/* Not all of the segments: writes get ENOSPC where the reserve begins. */
	out->data_bytes = out->used_bytes + json_u64(stats, "data_free_bytes", 0);
	scrub = json_get(f, "scrub");
	out->scrub_stopped = json_bool(scrub, "stopped", false);
	out->scrub_started_s = json_u64(scrub, "started_s", 0);
	out->scrub_finished_s = json_u64(scrub, "finished_s", 0);
	out->bad_last_s = json_u64(scrub, "found_last_s", 0);
	devices = json_get(scrub, "devices");
	for (size_t i = 0; i < json_len(devices); i++) {
		uint64_t bad = json_u64(json_at(devices, i), "bad_blocks", 0);

		if (bad > most)
			snprintf(out->bad_device, sizeof(out->bad_device), "%s",
				 json_str(json_at(devices, i), "path"));
		most = MAX(most, bad);
		out->bad_blocks += bad;
	}
	out->hint_bytes = json_u64(stats, "dedup_hint_bytes", 0);
	out->hint_budget_bytes = json_u64(stats, "dedup_hint_budget_bytes", 0);
	out->hint_evictions = json_u64(stats, "dedup_hint_evictions", 0);
	out->bypassed_blocks = json_u64(stats, "reduce_bypassed_blocks", 0);
	out->reduce_pending = json_bool(stats, "reduce_pending", false);
}

void facts_rebuild(struct admin *a, struct health_rebuild *out)
{
	const struct state *s = a->ops->state(a->cluster);
	struct relocate_plan *p = admin_plan(a);
	struct consensus_status st;
	unsigned count;
	const struct state_job *j = state_jobs(s, &count);

	a->ops->status(a->cluster, &st);
	*out = (struct health_rebuild){.no_leader = st.leader == 0,
				       .filling = p->lacking.filling,
				       .waiting = p->lacking.waiting,
				       .queued = p->lacking.queued,
				       .held = p->lacking.held,
				       .blocked = p->lacking.blocked,
				       .seconds_left = admin_seconds_left(a, p, JOB_REBUILD),
				       .delay_s = state_setting_number(s, REBUILD_DELAY_KEY)};
	memcpy(out->why, p->why, sizeof(out->why));
	admin_jobs_look(a, p);
	for (unsigned i = 0; i < count; i++) {
		uint64_t stuck_s = admin_job_stuck_s(a, j[i].id);

		if (admin_job_is_emptying(&j[i], &p->job[i]) && out->emptying_count < HEALTH_EMPTYING_MAX)
			out->emptying[out->emptying_count++] =
				(struct health_emptying){j[i].id, j[i].node, j[i].group};
		if (!stuck_s || out->stuck_count++)
			continue;
		out->stuck_job = j[i].id;
		out->stuck_s = stuck_s;
		snprintf(out->stuck, sizeof(out->stuck), "%s", job_kind_name(j[i].kind));
	}
	free(p);
}

static void health_link_facts(const struct admin *a, struct health_input *in, struct health_link *out)
{
	for (unsigned i = 0; i < in->node_count; i++)
		for (unsigned k = 0; k < in->node_count; k++) {
			uint16_t from = in->nodes[i].id, to = in->nodes[k].id;
			const struct json *l = from <= NODE_IDS_MAX ? link_facts(a, from, to) : NULL;

			if (!l || to > NODE_IDS_MAX || in->link_count == HEALTH_LINKS_MAX)
				continue;
			out[in->link_count++] = (struct health_link){
				.from = from,
				.to = to,
				/* Its kernel takes the questions for some seconds after a cut. */
				.control = json_bool(l, "control", true) &&
					   (from != in->self || facts_node_up(a, to)),
				.data = json_bool(l, "data", true),
				.heard = json_bool(l, "heard", false)};
		}
	in->links = out;
}

static void health_device_facts(const struct json *j, uint16_t group, struct health_device *out)
{
	static const char *const ops[HEALTH_DEVICE_OPS] = {"read", "write", "flush"};
	const char *state = json_str(j, "state"), *role = json_str(j, "role"), *path = json_str(j, "path");
	const struct json *times = json_get(j, "last_minute");

	if (!path)
		path = json_str(j, "uuid");
	*out = (struct health_device){.group = group, .cache = role && !strcmp(role, "cache")};
	out->state = state && !strcmp(state, "failed")	  ? HEALTH_DEVICE_FAILED
		     : state && !strcmp(state, "missing") ? HEALTH_DEVICE_MISSING
							  : HEALTH_DEVICE_OK;
	snprintf(out->path, sizeof(out->path), "%s", path ? path : "?");
	for (unsigned i = 0; i < HEALTH_DEVICE_OPS; i++) {
		const struct json *t = json_get(times, ops[i]);

		out->count[i] = json_u64(t, "count", 0);
		out->mean_us[i] = json_u64(t, "mean_us", 0);
		out->p99_us[i] = json_u64(t, "p99_us", 0);
	}
}

/* Devices of the groups whose nodes answer. Freed by the caller. */
static struct health_device *health_devices(const struct admin *a, const struct health_group *groups,
					    unsigned group_count, unsigned *count)
{
	struct health_device *list = xcalloc(group_count * GROUP_DEVICES_MAX + 1, sizeof(*list));

	*count = 0;
	for (unsigned i = 0; i < group_count; i++) {
		const struct map_group *g = map_group(admin_map(a), groups[i].id);
		const struct json *devices = json_get(facts_group(a, g), "devices");

		for (size_t k = 0; groups[i].known && k < json_len(devices) && k < GROUP_DEVICES_MAX; k++)
			health_device_facts(json_at(devices, k), groups[i].id, &list[(*count)++]);
	}
	return list;
}

static bool among(const uint16_t *list, unsigned count, uint16_t id)
{
	for (unsigned i = 0; i < count; i++)
		if (list[i] == id)
			return true;
	return false;
}

/* What the leader would do about the voters that are not there, as control_duty.c asks it. */
static void health_voters(const struct admin *a, struct health_input *in)
{
	struct voters_input vi = {.nodes = xcalloc(in->node_count + 1, sizeof(*vi.nodes)),
				  .count = in->node_count};
	unsigned able = 0, storing = 0;
	struct voters_step s;

	for (unsigned i = 0; i < in->node_count; i++) {
		const struct map_node *n = map_node(in->map, in->nodes[i].id);
		bool votes = among(in->voters, in->voter_count, n->id),
		     up = in->nodes[i].up && !in->nodes[i].data_only;

		vi.nodes[i] = (struct voters_node){.id = n->id,
						   .fault_set = map_fault_set(n),
						   .role = votes ? VOTERS_VOTER : VOTERS_STANDBY,
						   .removed = n->state != NODE_ACTIVE,
						   .may_vote = n->roles & ROLE_VOTER,
						   .stores = n->roles & ROLE_STORAGE,
						   .up = up && n->state == NODE_ACTIVE,
						   .away = votes && !up};
		able += vi.nodes[i].up && vi.nodes[i].may_vote;
		storing += n->state == NODE_ACTIVE && vi.nodes[i].stores;
	}
	in->voters_wanted = voters_wanted(able, storing);
	s = voters_plan(&vi);
	in->voter_taker = s.op == VOTERS_PROMOTE ? s.node : 0;
	in->voter_delay_s = state_setting_number(a->ops->state(a->cluster), VOTER_DELAY_KEY);
	free(vi.nodes);
}

struct facts_input {
	struct health_input in;
	struct health_node *nodes;
	struct health_group *groups;
	struct health_rebuild rebuild;
	struct health_link *links;
	struct health_device *devices;
};

struct health_input *facts_input(struct admin *a)
{
	const struct map *m = admin_map(a);
	struct facts_input *fi = xcalloc(1, sizeof(*fi));
	struct health_input *in = &fi->in;
	struct consensus_status st = {0};

	in->map = m;
	in->self = a->cfg.identity->number;
	in->now_ms = wall_ms();
	in->nodes = fi->nodes = xcalloc(m->nodes.count + 1, sizeof(*fi->nodes));
	in->groups = fi->groups = xcalloc(m->groups.count + 1, sizeof(*fi->groups));
	fi->links = xcalloc(HEALTH_LINKS_MAX, sizeof(*fi->links));
	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state == NODE_REMOVED)
			continue;
		fi->nodes[in->node_count].id = n->id;
		health_node_facts(a, &fi->nodes[in->node_count++]);
	}
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);

		if (g->state != GROUP_REMOVED)
			health_group_facts(a, g, &fi->groups[in->group_count++]);
	}
	health_link_facts(a, in, fi->links);
	in->devices = fi->devices = health_devices(a, fi->groups, in->group_count, &in->device_count);
	a->ops->status(a->cluster, &st);
	in->leader_known = st.leader != 0;
	in->voter_count = MIN(st.voters, (unsigned)ARRAY_LEN(in->voters));
	memcpy(in->voters, st.voter, in->voter_count * sizeof(in->voters[0]));
	health_voters(a, in);
	in->scrub_interval_s =
		state_setting_number(a->ops->state(a->cluster), SCRUB_INTERVAL_KEY) * 3600ull;
	facts_rebuild(a, &fi->rebuild);
	in->rebuild = &fi->rebuild;
	reclaim_largest(a, in);
	return in;
}

void facts_input_free(struct health_input *in)
{
	struct facts_input *fi = container_of(in, struct facts_input, in);

	free(fi->nodes);
	free(fi->groups);
	free(fi->links);
	free(fi->devices);
	free(fi);
}

void facts_health(struct admin *a, struct health_report *out)
{
	struct health_input *in;

	memset(out, 0, sizeof(*out));
	if (!admin_map(a))
		return;
	in = facts_input(a);
	health_evaluate(in, out);
	health_remember(&a->memory, out, in->now_ms, loop_mono_us(a->cfg.loop) / 1000);
	facts_input_free(in);
}
