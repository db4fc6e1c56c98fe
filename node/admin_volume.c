/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes as people see them: policy and placement from the map, the state of each replica from the
 * node that has it, and operations in flight from all nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

/* ---- What the map says -------------------------------------------------------------------------
 */

static bool member_reachable(const struct admin *a, const struct map *m,
			     const struct map_member *mb)
{
	const struct map_node *n = map_member_node(m, mb);
	const struct json *g = n ? facts_group(a, map_group(m, mb->group)) : NULL;

	return n && facts_node_up(a, n->id) && (!g || json_bool(g, "open", true));
}

/* Of all groups, by number: looked up once, not for each of 50,000 objects. */
struct group_view {
	bool in_reach, lacks; /* its replicas are served; it has damage that is not repaired yet */
};

/* Malloc'ed. */
static struct group_view *groups_view(const struct admin *a)
{
	const struct map *m = admin_map(a);
	struct group_view *view = xcalloc(m->next_group + 1u, sizeof(*view));

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		const struct map_member mb = {.group = g->id, .group_incarnation = g->incarnation};

		view[g->id].in_reach = member_reachable(a, m, &mb);
		view[g->id].lacks = facts_group_lacks(a, g);
	}
	return view;
}

static bool counts(const struct map *m, const struct map_member *mb, const struct group_view *view)
{
	return mb->in && mb->group < m->next_group && view[mb->group].in_reach && map_member_node(m, mb);
}

static void put_counts(const struct map *m, const struct map_volume *v, const struct group_view *view,
		       struct json *j)
{
	uint64_t full = 0, degraded = 0, single = 0, unavailable = 0, quarantined = 0, unrepaired = 0,
		 undecided = 0;
	struct json *c = json_object_new();

	for (uint32_t i = 0; i < v->objects; i++) {
		const struct map_object *o = &v->object[i];
		unsigned n = 0;
		bool lacks = false;

		for (unsigned k = 0; k < o->member_count; k++) {
			const struct map_member *mb = &o->member[k];

			quarantined += mb->kept;
			if (!counts(m, mb, view))
				continue;
			n++;
			lacks |= view[mb->group].lacks;
		}
		unrepaired += lacks;
		undecided += o->undecided;
		if (o->unsure || o->undecided)
			n = 0; /* nobody serves it */
		if (n >= v->copies)
			full++;
		else if (n == 0)
			unavailable++;
		else if (n == 1)
			single++;
		else
			degraded++;
	}
	json_put_u64(c, "total", v->objects);
	json_put_u64(c, "in_sync", full);
	json_put_u64(c, "degraded", degraded);
	json_put_u64(c, "single_copy", single);
	json_put_u64(c, "unavailable", unavailable);
	json_put_u64(c, "undecided", undecided);   /* of them: nothing is served before an operator decides */
	json_put_u64(c, "unrepaired", unrepaired); /* of them: a replica that counts may lack blocks */
	json_put_u64(c, "quarantined_replicas", quarantined);
	json_put(j, "object_counts", c);
	json_put_str(j, "health",
		     unavailable ? "unavailable"
		     : single    ? "single-copy"
		     : degraded  ? "degraded"
				 : "ok");
}

static struct json *attachments_to_json(const struct map *m, const struct map_volume *v)
{
	struct json *list = json_array_new();
	uint64_t now = wall_ms();

	for (struct hnode *h = hmap_walk(&m->attachments, NULL); h;
	     h = hmap_walk(&m->attachments, h)) {
		const struct map_attachment *t = container_of(h, struct map_attachment, by_id);
		struct json *j;

		if (t->volume != v->id || t->revoked)
			continue;
		j = json_object_new();
		json_put_u64(j, "id", t->id);
		json_put_str(j, "mode", t->mode == ATTACH_SHARED ? "shared" : "exclusive");
		json_put_str(j, "holder", t->holder);
		json_put_u64(j, "epoch", t->epoch);
		json_put_u64(j, "ttl_ms", t->ttl_ms);
		json_put_u64(j, "renewed_ms", t->renewed_ms);
		json_put_u64(j, "renewed_ago_ms", now > t->renewed_ms ? now - t->renewed_ms : 0);
		json_put_bool(j, "expired", !map_attachment_left_ms(t, now));
		json_add(list, j);
	}
	return list;
}

static struct json *volume_to_json(const struct map *m, const struct map_volume *v,
				   const struct group_view *view)
{
	struct json *j = json_object_new();
	char uuid[UUID_TEXT];

	uuid_format(&v->uuid, uuid);
	json_put_str(j, "name", v->name);
	json_put_u64(j, "id", v->id);
	json_put_str(j, "uuid", uuid);
	json_put_u64(j, "size_bytes", v->size);
	json_put_u64(j, "copies", v->copies);
	json_put_u64(j, "min_in_sync", v->min_in_sync);
	json_put_bool(j, "compression", v->flags & VOLUME_COMPRESSION);
	json_put_bool(j, "dedup", v->flags & VOLUME_DEDUP);
	json_put_u64(j, "object_size_bytes", v->object_size);
	json_put_u64(j, "stripe_count", v->stripe_count);
	json_put(j, "attachments", attachments_to_json(m, v));
	put_counts(m, v, view, j);
	return j;
}

static unsigned active_groups(const struct map *m)
{
	unsigned n = 0;

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h))
		n += container_of(h, struct map_group, by_id)->state == GROUP_ACTIVE;
	return n;
}

static int by_name(const void *x, const void *y)
{
	const struct map_volume *const *a = x, *const *b = y;

	return strcmp((*a)->name, (*b)->name);
}

static void volumes_ready(struct areq *q, const struct ledgers_ask *l)
{
	struct admin *a = q->admin;
	const struct map *m = admin_map(a);
	const struct map_volume **all = xcalloc(m->volumes.count + 1, sizeof(*all));
	struct json *j = json_object_new(), *list = json_array_new();
	struct group_view *view = groups_view(a);
	size_t n = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h))
		all[n++] = container_of(h, struct map_volume, by_id);
	qsort(all, n, sizeof(*all), by_name);
	for (size_t i = 0; i < n; i++) {
		struct json *v = volume_to_json(m, all[i], view);
		struct ledger_sum sum = ledger_sums_of(&l->sums, all[i]->id);

		json_put(v, "space", ledger_sum_to_json(&sum));
		json_add(list, v);
	}
	free(view);
	free(all);
	json_put(j, "volumes", list);
	json_put_u64(j, "groups", active_groups(m));
	json_put_u64(j, "groups_known", l->groups); /* those that "space" is the sum of */
	json_put(j, "source", admin_source(a));
	admin_reply(q, 200, j);
}

void admin_get_volumes(struct areq *q)
{
	admin_after_ledgers(q, 0, volumes_ready);
}

/* ---- One volume, with live replica states ------------------------------------------------------
 */

struct json *replica_to_json(const struct replicas *r, const struct map *m, const struct map_object *o,
			     const struct map_member *mb)
{
	const struct map_group *g = map_group(m, mb->group);
	const struct json *said = replicas_of(r, o, mb);
	struct json *j = json_object_new();

	json_put_u64(j, "group", mb->group);
	json_put_str(j, "node", g ? map_node_name(m, g->node) : NULL);
	json_put_str(j, "state", replica_state(r, o, mb));
	json_put_bool(j, "reachable", member_reachable(r->q->admin, m, mb));
	json_put_u64(j, "gen", mb->gen);
	if (said) {
		json_put_str(j, "role", json_str(said, "role"));
		json_put_str(j, "detail", json_str(said, "state"));
		json_put_u64(j, "last_tenure", json_u64(said, "last_tenure", 0));
		json_put_u64(j, "last_seq", json_u64(said, "last_seq", 0));
		json_put_u64(j, "commit_seq", json_u64(said, "commit_seq", 0));
		json_put_u64(j, "pages_to_copy", json_u64(said, "pages_to_copy", 0));
	}
	return j;
}

static struct json *object_to_json(const struct replicas *r, const struct map *m, const struct map_object *o)
{
	struct json *j = json_object_new(), *list = json_array_new();
	const struct map_node *primary = map_primary_node(m, o);
	const struct json *said =
		primary ? replicas_said(r, primary->id, object_index(o->id)) : NULL;

	json_put_u64(j, "index", object_index(o->id));
	json_put_u64(j, "epoch", o->epoch);
	json_put_u64(j, "tenure", o->tenure);
	json_put_str(j, "primary", primary ? primary->name : NULL);
	json_put_str(j, "state",
		     said ? json_str(said, "state")
		     : member_reachable(r->q->admin, m, &o->member[o->primary])
			     ? "starting: its primary has not opened it yet"
			     : "unknown: its primary does not answer");
	for (unsigned k = 0; k < o->member_count; k++)
		json_add(list, replica_to_json(r, m, o, &o->member[k]));
	json_put(j, "replicas", list);
	return j;
}

static void add_rows(struct json *list, struct ledger_sum *sum, const char *node, const struct json *rows)
{
	for (size_t i = 0; i < json_len(rows); i++) {
		struct json *row = json_dup(json_at(rows, i));

		ledger_sum_add(sum, row);
		json_put_str(row, "node", node);
		json_add(list, row);
	}
}

/* What it takes, over all its replicas, and per disk group. Groups of nodes that do not answer are not in
 * it, and counted. */
static struct json *space_to_json(const struct replicas *r, const struct map *m,
				  const struct map_volume *v)
{
	struct admin *a = r->q->admin;
	struct json *j, *list = json_array_new(), *here = local_ledgers(a, v->id);
	struct ledger_sum sum = {0};

	add_rows(list, &sum, a->cfg.config->name, here);
	json_free(here);
	for (unsigned i = 0; i < r->ask->count; i++)
		add_rows(list, &sum, map_node_name(m, r->ask->one[i].node),
			 json_get(r->ask->one[i].json, "ledgers"));
	j = ledger_sum_to_json(&sum);
	json_put_u64(j, "groups", active_groups(m));
	json_put_u64(j, "groups_known", sum.rows);
	json_put(j, "by_group", list);
	return j;
}

static void show_reply(struct replicas *r)
{
	struct areq *q = r->q;
	const struct map *m = admin_map(q->admin);
	const struct map_volume *v = m ? map_volume(m, r->volume) : NULL;
	struct json *j, *list;
	struct group_view *view;
	uint32_t end;

	if (!v) {
		admin_fail(q, -ERR_NOT_FOUND, "the volume was deleted meanwhile");
		return;
	}
	view = groups_view(q->admin);
	j = volume_to_json(m, v, view);
	free(view);
	if (strcmp(json_str(j, "health"), "ok")) {
		struct health_rebuild rebuild;
		char text[128];

		facts_rebuild(q->admin, &rebuild);
		json_put_str(j, "rebuild", health_rebuild_text(&rebuild, text) ? text : NULL);
	}
	list = json_array_new();
	end = r->from + r->count;
	for (uint32_t i = r->from; i < MIN(end, v->objects); i++)
		json_add(list, object_to_json(r, m, &v->object[i]));
	json_put(j, "objects", list);
	if (r->count && end < v->objects) /* there are more: ?from=objects_next */
		json_put_u64(j, "objects_next", end);
	json_put(j, "space", space_to_json(r, m, v));
	json_put(j, "source", admin_source(q->admin));
	admin_reply(q, 200, j); /* frees r */
}

static void volume_ready(struct areq *q)
{
	const struct map_volume *v = map_volume_by_name(admin_map(q->admin), q->param);
	struct replicas *r;
	uint32_t from, count;

	if (!v && admin_ask_leader(q))
		return;
	if (!v) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no volume is named \"%.63s\"; `ashlar volume list` shows all",
			   q->param);
		return;
	}
	if (!admin_query_u32(q, "from", 0, &from) || !admin_query_u32(q, "count", REPLICAS_PAGE, &count))
		return;
	from = MIN(from, v->objects);
	count = MIN(count, MIN(REPLICAS_PAGE, v->objects - from));
	free(q->op);
	q->op = r = xcalloc(1, sizeof(*r));
	replicas_ask(r, q, v->id, from, count, show_reply);
}

/* What is in reach is judged by facts: those of now. */
void admin_get_volume(struct areq *q)
{
	admin_after_facts(q, volume_ready);
}

/* ---- Operations in flight ----------------------------------------------------------------------
 */

struct ops {
	struct wait asked, found;
	struct areq *q;
	struct ask_all *ask;
	struct json *local;
	unsigned pending;
};

static void add_ops(const struct map *m, struct json *all, const char *node,
		    const struct json *list)
{
	for (size_t i = 0; i < json_len(list); i++) {
		struct json *op = json_dup(json_at(list, i));
		const struct map_volume *v = map_volume(m, (uint32_t)json_u64(op, "volume", 0));

		json_put_str(op, "node", node);
		if (v)
			json_put_str(op, "volume_name", v->name);
		json_add(all, op);
	}
}

static void ops_part(struct ops *o)
{
	struct areq *q = o->q;
	struct ask_all *ask = o->ask;
	struct json *local = o->local, *j, *all;
	const struct map *m = admin_map(q->admin);

	if (--o->pending > 0)
		return;
	j = json_object_new();
	all = json_array_new();
	if (m) {
		add_ops(m, all, q->admin->cfg.config->name, local);
		for (unsigned i = 0; i < ask->count; i++)
			add_ops(m, all, map_node_name(m, ask->one[i].node),
				json_get(ask->one[i].json, "ops"));
	}
	json_put(j, "ops", all);
	json_put(j, "source", admin_source(q->admin));
	admin_reply(q, 200, j); /* frees o */
	ask_all_free(ask);
	json_free(local);
}

static void on_ops_asked(struct wait *w, int rc)
{
	ops_part(container_of(w, struct ops, asked));
}

static void on_ops_found(struct wait *w, int rc)
{
	ops_part(container_of(w, struct ops, found));
}

void admin_get_ops(struct areq *q)
{
	struct ops *o = xcalloc(1, sizeof(*o));

	o->q = q;
	o->asked.resume = on_ops_asked;
	o->found.resume = on_ops_found;
	q->op = o;
	o->pending = 3;
	if (ask_all(q->admin, "/v1/local/ops", &o->ask, &o->asked) != PENDING)
		o->pending--;
	if (local_ops(q->admin, &o->local, &o->found) != PENDING)
		o->pending--;
	ops_part(o);
}
