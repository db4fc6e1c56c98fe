/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and disk groups as people see them: what the cluster agreed on, beside what the node itself
 * last said and how long ago. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

static const char *node_state_name(uint8_t s)
{
	static const char *const names[] = {"?", "joining", "active", "removed", "dead"};

	return s < ARRAY_LEN(names) ? names[s] : "?";
}

static const char *group_state_name(uint8_t s)
{
	static const char *const names[] = {"?", "pending", "active", "failed", "removed"};

	return s < ARRAY_LEN(names) ? names[s] : "?";
}

static struct json *roles_to_json(uint8_t roles)
{
	struct json *list = json_array_new();

	if (roles & ROLE_STORAGE)
		json_add_str(list, "storage");
	if (roles & ROLE_VOTER)
		json_add_str(list, "voter");
	if (roles & ROLE_GATEWAY)
		json_add_str(list, "gateway");
	return list;
}

static bool is_voter(const struct admin *a, uint16_t id)
{
	struct consensus_status st = {0};

	a->ops->status(a->cluster, &st);
	for (unsigned i = 0; i < st.voters && i < ARRAY_LEN(st.voter); i++)
		if (st.voter[i] == id)
			return true;
	return false;
}

/* live: said just now; cached: its last words; none. */
static void put_facts_age(const struct admin *a, struct json *j, uint16_t node)
{
	int64_t age = facts_age_ms(a, node);

	json_put_str(j, "facts",
		     age < 0                                ? "none"
		     : facts_node_up(a, node) && age < 5000 ? "live"
							    : "cached");
	if (age >= 0)
		json_put_i64(j, "facts_age_ms", age);
	else
		json_put_str(j, "facts_age_ms", NULL);
}

static struct json *node_to_json(const struct admin *a, const struct map *m,
				 const struct map_node *n)
{
	struct json *j = json_object_new();
	const struct json *f = n->id <= NODE_IDS_MAX ? a->facts[n->id].json : NULL;
	char uuid[UUID_TEXT], version[16];
	unsigned groups = 0;

	uuid_format(&n->uuid, uuid);
	snprintf(version, sizeof(version), "%u.%u", n->version_major, n->version_minor);
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h))
		groups += container_of(h, struct map_group, by_id)->node == n->id;
	json_put_str(j, "name", n->name);
	json_put_u64(j, "number", n->id);
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "state", node_state_name(n->state));
	json_put_bool(j, "up", facts_node_up(a, n->id));
	json_put_str(j, "fault_set", n->fault_set);
	json_put_str(j, "address", n->address);
	json_put_str(j, "admin", n->admin[0] ? n->admin : NULL);
	json_put_u64(j, "incarnation", n->incarnation);
	json_put_u64(j, "shards", n->shards);
	json_put(j, "roles", roles_to_json(n->roles));
	json_put_bool(j, "voter", is_voter(a, n->id));
	json_put_bool(j, "witness", n->roles == ROLE_VOTER);
	json_put_u64(j, "diskgroups", groups);
	if (n->maintenance_until_ms) {
		struct json *k = json_object_new();

		json_put_bool(k, "over", !map_node_in_maintenance(m, n->id, wall_ms()));
		json_put_u64(k, "since_ms", n->maintenance_since_ms);
		json_put_u64(k, "until_ms", n->maintenance_until_ms);
		json_put_str(k, "reason", n->maintenance_reason);
		json_put(j, "maintenance", k);
	}
	json_put_str(j, "version", f && json_str(f, "version") ? json_str(f, "version") : version);
	put_facts_age(a, j, n->id);
	if (f) {
		json_put_u64(j, "up_s", json_u64(f, "up_s", 0));
		json_put_u64(j, "resident_bytes", json_u64(f, "resident_bytes", 0));
	}
	return j;
}

static void nodes_ready(struct areq *q)
{
	struct admin *a = q->admin;
	const struct map *m = admin_map(a);
	struct json *j = json_object_new(), *list = json_array_new();

	/* By number: hash order would make two answers hard to compare. */
	for (uint16_t id = 1; id != 0 && id < m->next_node; id++) {
		const struct map_node *n = map_node(m, id);

		if (n && n->state != NODE_REMOVED)
			json_add(list, node_to_json(a, m, n));
	}
	json_put(j, "nodes", list);
	json_put(j, "source", admin_source(a));
	admin_reply(q, 200, j);
}

void admin_get_nodes(struct areq *q)
{
	admin_after_facts(q, nodes_ready);
}

static void node_ready(struct areq *q)
{
	struct admin *a = q->admin;
	const struct map *m = admin_map(a);
	const struct map_node *n = map_node_by_name(m, q->param);
	struct json *j;

	if (!n) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no node is named \"%.63s\"; `ashlar node list` shows all", q->param);
		return;
	}
	j = node_to_json(a, m, n);
	if (n->id <= NODE_IDS_MAX && a->facts[n->id].json) {
		json_put(j, "groups", json_dup(json_get(a->facts[n->id].json, "groups")));
		json_put(j, "replication", json_dup(json_get(a->facts[n->id].json, "replication")));
		json_put(j, "client", json_dup(json_get(a->facts[n->id].json, "client")));
	}
	json_put(j, "source", admin_source(a));
	admin_reply(q, 200, j);
}

void admin_get_node(struct areq *q)
{
	admin_after_facts(q, node_ready);
}

/* ---- Disk groups -------------------------------------------------------------------------------
 */

/* The figures most asked for, beside the full list under "stats"; 0 while unknown. */
static void put_space(struct json *j, const struct json *stats)
{
	static const char *const keys[] = { "raw_bytes", "data_bytes", "data_used_bytes",
					    "data_free_bytes", "log_bytes", "log_used_bytes" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		json_put_u64(j, keys[i], json_u64(stats, keys[i], 0));
}

static struct json *group_to_json(const struct admin *a, const struct map *m,
				  const struct map_group *g)
{
	struct json *j = json_object_new();
	const struct json *f = facts_group(a, g);
	char uuid[UUID_TEXT];

	uuid_format(&g->uuid, uuid);
	json_put_u64(j, "group", g->id);
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "node", map_node_name(m, g->node));
	json_put_str(j, "state", group_state_name(g->state));
	json_put_u64(j, "incarnation", g->incarnation);
	json_put_u64(j, "free_steps", g->free_steps);
	json_put_u64(j, "capacity_bytes", g->raw_bytes); /* of its capacity devices, as the map has it */
	json_put_bool(j, "reachable", facts_node_up(a, g->node));
	put_facts_age(a, j, g->node);
	put_space(j, json_get(f, "stats"));
	if (f) {
		json_put_bool(j, "open", json_bool(f, "open", false));
		json_put_str(j, "failed", json_str(f, "failed"));
		json_put_str(j, "why", json_str(f, "why"));
		json_put(j, "devices", json_dup(json_get(f, "devices")));
		if (json_get(f, "stats"))
			json_put(j, "stats", json_dup(json_get(f, "stats")));
		if (json_get(f, "scrub"))
			json_put(j, "scrub", json_dup(json_get(f, "scrub")));
	}
	return j;
}

static void groups_ready(struct areq *q)
{
	struct admin *a = q->admin;
	const struct map *m = admin_map(a);
	struct json *j = json_object_new(), *list = json_array_new();

	for (uint16_t id = 1; id != 0 && id < m->next_group; id++) {
		const struct map_group *g = map_group(m, id);

		if (g && g->state != GROUP_REMOVED)
			json_add(list, group_to_json(a, m, g));
	}
	json_put(j, "diskgroups", list);
	json_put(j, "source", admin_source(a));
	admin_reply(q, 200, j);
}

void admin_get_diskgroups(struct areq *q)
{
	admin_after_facts(q, groups_ready);
}

const struct map_group *admin_find_group(struct areq *q)
{
	char *end;
	unsigned long id = strtoul(q->param, &end, 10);
	const struct map_group *g = *end || id == 0 || id > UINT16_MAX
					    ? NULL
					    : map_group(admin_map(q->admin), (uint16_t)id);

	if (!g)
		admin_fail(q, -ERR_NOT_FOUND,
			   "no disk group has the number \"%.20s\"; `ashlar diskgroup list` "
			   "shows all",
			   q->param);
	return g;
}

/* The rows of the group's ledger, with names; without one: deleted, its space is coming back. */
static struct json *group_volumes(const struct map *m, const struct ledger_sums *rows)
{
	struct json *list = json_array_new();

	for (size_t i = 0; i < rows->count; i++) {
		struct json *row = ledger_volume_to_json(&rows->volume[i]);
		const struct map_volume *v = map_volume(m, rows->volume[i].volume);

		json_put_str(row, "name", v ? v->name : NULL);
		json_add(list, row);
	}
	return list;
}

static void group_ready(struct areq *q, const struct ledgers_ask *l)
{
	const struct map *m = admin_map(q->admin);
	const struct map_group *g = admin_find_group(q);
	struct json *j;

	if (!g)
		return;
	j = group_to_json(q->admin, m, g);
	if (l->groups)
		json_put(j, "volumes", group_volumes(m, &l->sums));
	json_put(j, "source", admin_source(q->admin));
	admin_reply(q, 200, j);
}

void admin_get_diskgroup(struct areq *q)
{
	const struct map_group *g = admin_find_group(q);

	if (g)
		admin_after_ledgers(q, g->id, group_ready);
}
