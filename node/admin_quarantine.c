/* SPDX-License-Identifier: Apache-2.0 */
/* Beside admin_force.c: what this node does for a force (its primaries stop), and what is in quarantine. */
#include <stdlib.h>

#include "cluster/map_codec.h"
#include "node/admin_impl.h"

/* ---- Here: primaries that are to stop, each on its shard --------------------------------------- */

struct yield {
	struct wait wait;
	struct admin_shard_job job;
	struct areq *q;
	size_t count;
	struct yield_object {
		uint64_t object;
		uint32_t tenure;
		bool yielded;
	} *object;
};

static void yield_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r, struct client *c)
{
	struct yield *y = j->arg;

	/* An object is found on its own shard only; each entry is written by that one. */
	for (size_t i = 0; r && i < y->count; i++)
		if (!replicator_yield(r, y->object[i].object, y->object[i].tenure))
			y->object[i].yielded = true;
}

static void yield_done(struct wait *w, int rc)
{
	struct yield *y = container_of(w, struct yield, wait);
	struct json *j = json_object_new(), *list = json_array_new();

	for (size_t i = 0; i < y->count; i++) {
		struct json *k;

		if (!y->object[i].yielded)
			continue;
		k = json_object_new();
		json_put_u64(k, "object", y->object[i].object);
		json_add(list, k);
	}
	json_put(j, "yielded", list);
	free(y->object);
	admin_reply(y->q, 200, j);
}

void admin_local_yield(struct areq *q)
{
	const struct json *list = json_get(q->body, "objects");
	struct yield *y = xcalloc(1, sizeof(*y));
	int rc;

	q->op = y;
	y->q = q;
	y->count = MIN(json_len(list), OBJECTS_MAX);
	y->object = xcalloc(y->count + 1, sizeof(*y->object));
	for (size_t i = 0; i < y->count; i++) {
		y->object[i].object = json_u64(json_at(list, i), "object", 0);
		y->object[i].tenure = (uint32_t)json_u64(json_at(list, i), "tenure", 0);
	}
	y->wait.resume = yield_done;
	y->job = (struct admin_shard_job){.run = yield_on_shard, .arg = y};
	rc = q->admin->cfg.node_ops->on_shards(q->admin->cfg.node, &y->job, &y->wait);
	if (rc != PENDING)
		yield_done(&y->wait, rc);
}

/* ---- What is in quarantine --------------------------------------------------------------------- */

static void quarantine_add(struct json *list, const struct admin *a, const struct map_volume *v,
			   const struct map_group *g, uint64_t replicas)
{
	struct json *j = json_object_new();

	json_put_str(j, "volume", v->name);
	json_put_u64(j, "group", g->id);
	json_put_str(j, "node", map_node_name(admin_map(a), g->node));
	json_put_bool(j, "reachable", facts_node_up(a, g->node));
	json_put_u64(j, "replicas", replicas);
	json_add(list, j);
}

static void quarantine_ready(struct areq *q)
{
	const struct map *m = admin_map(q->admin);
	struct json *j = json_object_new(), *list = json_array_new();
	size_t volumes;
	struct map_volume **volume = map_volumes_sorted(m, &volumes);

	for (size_t n = 0; n < volumes; n++) {
		const struct map_volume *v = volume[n];
		uint32_t *count = xcalloc(m->next_group + 1u, sizeof(*count));

		for (uint32_t i = 0; i < v->objects; i++)
			for (unsigned k = 0; k < v->object[i].member_count; k++)
				if (v->object[i].member[k].kept &&
				    v->object[i].member[k].group < m->next_group)
					count[v->object[i].member[k].group]++;
		for (uint16_t g = 1; g < m->next_group; g++)
			if (count[g] && map_group(m, g))
				quarantine_add(list, q->admin, v, map_group(m, g), count[g]);
		free(count);
	}
	free(volume);
	json_put(j, "quarantine", list);
	json_put(j, "source", admin_source(q->admin));
	admin_reply(q, 200, j);
}

void admin_get_quarantine(struct areq *q)
{
	admin_after_facts(q, quarantine_ready);
}
