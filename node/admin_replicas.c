/* SPDX-License-Identifier: Apache-2.0 */
/* The replicas of some objects of a volume as the nodes that have them see them: all are asked at once, this
 * one too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

static void index_said(struct replicas *r, unsigned slot, const struct json *list)
{
	for (size_t i = 0; i < json_len(list); i++) {
		uint64_t object = json_u64(json_at(list, i), "object", UINT64_MAX);

		if (object >= r->from && object - r->from < r->count)
			r->said[(size_t)slot * r->count + (object - r->from)] = json_at(list, i);
	}
}

static void index_all(struct replicas *r)
{
	r->said = xcalloc((size_t)(r->ask->count + 1) * r->count + 1, sizeof(*r->said));
	memset(r->slot_of, 0xff, sizeof(r->slot_of));
	r->slot_of[MIN(r->q->admin->cfg.identity->number, NODE_IDS_MAX)] = 0;
	index_said(r, 0, r->local);
	for (unsigned i = 0; i < r->ask->count; i++) {
		r->slot_of[r->ask->one[i].node] = (uint16_t)(i + 1);
		index_said(r, i + 1, json_get(r->ask->one[i].json, "replicas"));
	}
}

static void part(struct replicas *r)
{
	struct ask_all *ask = r->ask;
	struct json *local = r->local;
	const struct json **said;

	if (--r->pending > 0)
		return;
	index_all(r);
	said = r->said;
	r->then(r); /* may have freed r */
	free(said);
	ask_all_free(ask);
	json_free(local);
}

static void on_asked(struct wait *w, int rc)
{
	part(container_of(w, struct replicas, asked));
}

static void on_found(struct wait *w, int rc)
{
	part(container_of(w, struct replicas, found));
}

void replicas_ask(struct replicas *r, struct areq *q, uint32_t volume, uint32_t from, uint32_t count,
		  void (*then)(struct replicas *r))
{
	char path[64];

	CHECK(count <= REPLICAS_PAGE);
	*r = (struct replicas){.asked.resume = on_asked,
			       .found.resume = on_found,
			       .q = q,
			       .then = then,
			       .volume = volume,
			       .from = from,
			       .count = count,
			       .pending = 3};
	snprintf(path, sizeof(path), "/v1/local/replicas/%u,%u,%u", volume, from, count);
	if (ask_all(q->admin, path, &r->ask, &r->asked) != PENDING)
		r->pending--;
	if (local_replicas(q->admin, volume, from, count, &r->local, &r->found) != PENDING)
		r->pending--;
	part(r);
}

const struct json *replicas_said(const struct replicas *r, uint16_t node, uint32_t index)
{
	if (node > NODE_IDS_MAX || r->slot_of[node] == UINT16_MAX || index < r->from ||
	    index - r->from >= r->count)
		return NULL;
	return r->said[(size_t)r->slot_of[node] * r->count + (index - r->from)];
}

const struct json *replicas_of(const struct replicas *r, const struct map_object *o,
			       const struct map_member *mb)
{
	const struct map_node *n = map_member_node(admin_map(r->q->admin), mb);

	return n ? replicas_said(r, n->id, object_index(o->id)) : NULL;
}

const char *replica_state(const struct replicas *r, const struct map_object *o, const struct map_member *mb)
{
	const struct json *said = replicas_of(r, o, mb);
	const char *role = said ? json_str(said, "role") : NULL;

	if (!map_member_node(admin_map(r->q->admin), mb))
		return "lost";
	if (mb->kept)
		return "quarantined";
	return mb->in ? "in-sync" : role && !strcmp(role, "syncing") ? "syncing" : "absent";
}
