/* SPDX-License-Identifier: Apache-2.0 */
/* The one-screen status, health and recent events. Every number says what it is made of: the
 * capacity ledger goes provisioned → × copies → stored → free → raw and adds up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

const char *map_node_name(const struct map *m, uint16_t id)
{
	const struct map_node *n = id ? map_node(m, id) : NULL;

	return n ? n->name : NULL;
}

static const char *raft_role(enum consensus_role r)
{
	switch (r) {
	case CONSENSUS_LEADER:
		return "leader";
	case CONSENSUS_CANDIDATE:
		return "candidate";
	case CONSENSUS_STANDBY:
		return "standby";
	case CONSENSUS_FOLLOWER:
		break;
	}
	return "follower";
}

static struct json *raft_to_json(const struct admin *a, const struct map *m)
{
	struct json *j = json_object_new(), *voters = json_array_new();
	struct consensus_status st = {0};

	a->ops->status(a->cluster, &st);
	json_put_str(j, "role", raft_role(st.role));
	json_put_str(j, "leader", map_node_name(m, st.leader));
	json_put_u64(j, "leader_number", st.leader);
	json_put_u64(j, "term", st.term);
	json_put_u64(j, "applied", st.applied);
	json_put_u64(j, "committed", st.committed);
	json_put_u64(j, "last", st.last);
	json_put_u64(j, "log_entries", st.log_entries);
	json_put_u64(j, "snapshot_index", st.snapshot_index);
	json_put_u64(j, "members", st.members);
	for (unsigned i = 0; i < st.voters && i < ARRAY_LEN(st.voter); i++) {
		const char *name = map_node_name(m, st.voter[i]);
		char number[16];

		snprintf(number, sizeof(number), "number %u", st.voter[i]);
		json_add_str(voters, name ? name : number);
	}
	json_put(j, "voters", voters);
	return j;
}

static struct json *nodes_summary(const struct admin *a, const struct map *m)
{
	struct json *j = json_object_new();
	unsigned active = 0, up = 0, joining = 0, witnesses = 0;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		active += n->state == NODE_ACTIVE;
		joining += n->state == NODE_JOINING;
		witnesses += n->state == NODE_ACTIVE && n->roles == ROLE_VOTER;
		up += n->state == NODE_ACTIVE && facts_node_up(a, n->id);
	}
	json_put_u64(j, "active", active);
	json_put_u64(j, "up", up);
	json_put_u64(j, "joining", joining);
	json_put_u64(j, "witnesses", witnesses); /* of the active ones */
	return j;
}

static struct json *capacity_to_json(const struct admin *a, const struct map *m)
{
	/* logical = zero + dedup saved + compression saved + damaged + data used;
	 * raw = data used + padding + summaries + dead + free + reserve + log + layout. */
	static const char *const sums[] = {
		"raw_bytes",	   "data_bytes",	  "data_used_bytes",
		"data_free_bytes", "granted_bytes",	  "log_bytes",
		"log_used_bytes",  "logical_bytes",	  "metadata_used_bytes",
		"zero_bytes",	   "dedup_saved_bytes",	  "compression_saved_bytes",
		"damaged_bytes",   "padding_bytes",	  "summary_bytes",
		"dead_bytes",	   "free_bytes",	  "reserve_bytes",
		"layout_bytes",	   "log_unreduced_bytes"};
	struct json *j = json_object_new();
	uint64_t total[ARRAY_LEN(sums)] = {0}, provisioned = 0, with_copies = 0;
	unsigned groups = 0, known = 0;

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		const struct json *f = facts_group(a, g), *stats = f ? json_get(f, "stats") : NULL;

		if (g->state == GROUP_REMOVED)
			continue;
		groups++;
		known += stats != NULL;
		for (size_t i = 0; stats && i < ARRAY_LEN(sums); i++)
			total[i] += json_u64(stats, sums[i], 0);
	}
	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		provisioned += v->size;
		with_copies += v->size * v->copies;
	}
	json_put_u64(j, "provisioned_bytes", provisioned);
	json_put_u64(j, "provisioned_with_copies_bytes", with_copies);
	for (size_t i = 0; i < ARRAY_LEN(sums); i++)
		json_put_u64(j, sums[i], total[i]);
	json_put_u64(j, "groups", groups);
	json_put_u64(j, "groups_known", known);
	return j;
}

static struct json *objects_to_json(const struct health_report *r)
{
	struct json *j = json_object_new();

	json_put_u64(j, "total", r->objects);
	json_put_u64(j, "in_sync", r->full); /* with all copies in-sync and reachable */
	json_put_u64(j, "degraded", r->degraded);
	json_put_u64(j, "single_copy", r->single);
	json_put_u64(j, "unavailable", r->unavailable);
	json_put_u64(j, "unrepaired", r->unrepaired); /* of them: a replica that counts may lack blocks */
	json_put_u64(j, "undecided", r->undecided);   /* of them: serve nothing before an operator decides */
	return j;
}

/* Sums of what the nodes counted since they started. */
static struct json *io_to_json(const struct admin *a)
{
	static const char *const keys[] = {
		"reads",     "writes", "read_bytes", "write_bytes",  "repairs", "corrupt",
		"takeovers", "moves", "drops",  "promotions", "resync_bytes", "syncing"};
	struct json *j = json_object_new();

	for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
		uint64_t sum = 0;

		for (unsigned n = 0; n <= NODE_IDS_MAX; n++)
			if (a->facts[n].json)
				sum += json_u64(json_get(a->facts[n].json, "replication"), keys[k],
						0);
		json_put_u64(j, keys[k], sum);
	}
	return j;
}

static struct json *health_brief(const struct health_report *r)
{
	struct json *j = json_object_new(), *codes = json_array_new();

	json_put_str(j, "overall", health_severity_name(r->overall));
	for (unsigned i = 0; i < r->count; i++)
		json_add_str(codes, r->item[i].code);
	json_put(j, "codes", codes);
	return j;
}

bool admin_is_registered(const struct admin *a)
{
	const struct map *m = admin_map(a);
	const struct map_node *self = m ? map_node(m, a->cfg.identity->number) : NULL;

	return self && self->state == NODE_ACTIVE && self->incarnation == a->cfg.identity->incarnation;
}

static const char *admin_state(const struct admin *a)
{
	if (!admin_map(a))
		return a->cfg.identity->removed  ? "removed"
		       : a->cfg.identity->number ? "starting"
						 : "unclaimed";
	return admin_is_registered(a) ? "serving" : "starting";
}

static void put_unclaimed(struct admin *a, struct json *j)
{
	json_put_str(j, "state", admin_state(a));
	json_put_str(j, "version", ASHLAR_VERSION);
	if (a->cfg.identity->removed) {
		CLEANUP(free_ptr)
		char *text = xasprintf("stop ashlard, empty %s, start it and let it join as a new node",
				       a->cfg.config->state_dir);

		json_put_str(j, "cluster", a->cfg.identity->cluster_name);
		json_put_str(j, "remedy", text);
	} else if (!a->cfg.identity->number)
		json_put_str(
			j, "remedy",
			"ashlar cluster init makes a cluster of this node; ashlar node join TOKEN "
			"makes it a member of one");
}

static void status_ready(struct areq *q)
{
	struct admin *a = q->admin;
	struct json *j = json_object_new(), *cluster;
	struct health_report *r = xcalloc(1, sizeof(*r));
	const struct map *m = admin_map(a);
	char uuid[UUID_TEXT];

	json_put(j, "source", admin_source(a));
	if (!m) {
		put_unclaimed(a, j);
	} else if (!m->nodes.count) { /* hears of no leader yet */
		json_put_str(j, "state", admin_state(a));
		json_put_str(j, "version", ASHLAR_VERSION);
		json_put(j, "raft", raft_to_json(a, m));
		json_put_str(j, "remedy", "ashlar health says what is missing");
	} else {
		facts_health(a, r);
		cluster = json_object_new();
		uuid_format(&m->cluster, uuid);
		json_put_str(cluster, "name", state_cluster_name(a->ops->state(a->cluster)));
		json_put_str(cluster, "uuid", uuid);
		json_put_str(j, "state", admin_state(a));
		json_put_str(j, "version", ASHLAR_VERSION);
		json_put(j, "cluster", cluster);
		json_put(j, "health", health_brief(r));
		json_put(j, "raft", raft_to_json(a, m));
		json_put(j, "nodes", nodes_summary(a, m));
		json_put_u64(j, "volumes", m->volumes.count);
		json_put(j, "objects", objects_to_json(r));
		json_put(j, "capacity", capacity_to_json(a, m));
		json_put(j, "io", io_to_json(a));
	}
	free(r);
	admin_reply(q, 200, j);
}

void admin_get_status(struct areq *q)
{
	admin_after_facts(q, status_ready);
}

/* ---- Health ------------------------------------------------------------------------------------
 */

static struct json *item_to_json(const struct health_item *i)
{
	struct json *j = json_object_new(), *list = json_array_new();

	json_put_str(j, "code", i->code);
	json_put_str(j, "severity", health_severity_name(i->severity));
	json_put_u64(j, "count", i->count);
	json_put_str(j, "summary", i->summary);
	for (unsigned k = 0; k < i->affected_count; k++)
		json_add_str(list, i->affected[k]);
	json_put(j, "affected", list);
	json_put_u64(j, "since_ms", i->since_ms);
	json_put_bool(j, "root", !i->caused_by[0]);
	json_put_str(j, "caused_by", i->caused_by[0] ? i->caused_by : NULL);
	json_put_str(j, "risk", i->risk);
	json_put_str(j, "command", i->command);
	return j;
}

struct json *health_to_json(const struct health_report *r)
{
	struct json *j = json_object_new(), *items = json_array_new();

	json_put_str(j, "overall", health_severity_name(r->overall));
	for (unsigned i = 0; i < r->count; i++)
		json_add(items, item_to_json(&r->item[i]));
	json_put(j, "items", items);
	json_put(j, "objects", objects_to_json(r));
	return j;
}

/* Without a cluster there is nothing to be well or ill. */
static void put_no_cluster(const struct admin *a, struct health_report *r)
{
	bool unclaimed = !a->cfg.identity->number;
	struct health_item *i = &r->item[r->count++];

	/* Nobody looks at it between questions: it was so from the start. */
	i->since_ms = wall_ms() - (loop_mono_us(a->cfg.loop) - a->started_us) / 1000;
	if (a->cfg.identity->removed) {
		r->overall = i->severity = HEALTH_WARNING;
		i->count = 1;
		snprintf(i->code, sizeof(i->code), "%s", "NODE_REMOVED");
		snprintf(i->summary, sizeof(i->summary), "this node was removed from cluster %s",
			 a->cfg.identity->cluster_name);
		snprintf(i->risk, sizeof(i->risk), "%s", "none: it takes no part in the cluster any more");
		snprintf(i->command, sizeof(i->command),
			 "stop ashlard, empty %.120s, start it, then: ashlar node join TOKEN",
			 a->cfg.config->state_dir);
		return;
	}
	r->overall = i->severity = HEALTH_INFO;
	i->count = 1;
	snprintf(i->code, sizeof(i->code), "%s", unclaimed ? "NODE_UNCLAIMED" : "NODE_STARTING");
	snprintf(i->summary, sizeof(i->summary), "%s",
		 unclaimed ? "this node belongs to no cluster yet" : "this node has just been started");
	snprintf(i->risk, sizeof(i->risk), "%s", "none: it holds no data and serves none");
	snprintf(i->command, sizeof(i->command), "%s",
		 unclaimed ? "ashlar cluster init, or: ashlar node join TOKEN" : "ashlar status");
}

static void health_ready(struct areq *q)
{
	struct health_report *r = xcalloc(1, sizeof(*r));
	struct json *j;

	facts_health(q->admin, r);
	if (!admin_map(q->admin))
		put_no_cluster(q->admin, r);
	j = health_to_json(r);
	json_put(j, "source", admin_source(q->admin));
	json_put_str(j, "state", admin_state(q->admin));
	free(r);
	admin_reply(q, 200, j);
}

void admin_get_health(struct areq *q)
{
	admin_after_facts(q, health_ready);
}

/* ---- Events ------------------------------------------------------------------------------------
 */

void admin_get_events(struct areq *q)
{
	static const char *const severity[] = {"info", "warning", "error"};
	struct admin *a = q->admin;
	struct state_event *e = xcalloc(STATE_EVENTS, sizeof(*e));
	unsigned n = state_events(a->ops->state(a->cluster), e, STATE_EVENTS);
	struct json *j = json_object_new(), *list = json_array_new();

	for (unsigned i = 0; i < n; i++) {
		struct json *x = json_object_new();

		json_put_u64(x, "index", e[i].index);
		json_put_u64(x, "time_ms", e[i].time_ms);
		json_put_str(x, "severity", severity[MIN(e[i].severity, 2)]);
		json_put_str(x, "code", e[i].code);
		json_put_str(x, "text", e[i].text);
		json_put_str(x, "actor", e[i].actor);
		json_add(list, x);
	}
	free(e);
	json_put(j, "events", list);
	json_put(j, "source", admin_source(a));
	admin_reply(q, 200, j);
}
