/* SPDX-License-Identifier: Apache-2.0 */
/* What volumes take, from node to node. A cluster has thousands of volumes, and most questions are not about
 * them: the rows are not among the facts, but asked for where volumes are listed or a group is shown. A node
 * sums the rows of its groups, and a row is an array of numbers, so that an answer stays far below a frame:
 *
 *   GET /v1/local/ledgers/G   {"groups": how many, "rows": [[volume, ledger_keys…, exact], …]}
 *
 * G: a disk group, or 0 for all of the node. Volume 0: blocks that no volume owns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define ROWS_MAX 8192u /* of deleted volumes the rest is added to the row without one */

/* ---- Here ---------------------------------------------------------------------------------------
 */

/* Rows of this node's open groups, or of one of them; how many groups. */
static unsigned rows_here(struct admin *a, uint16_t group, struct ledger_sums *s)
{
	struct admin_group *g = xcalloc(GROUPS_PER_NODE_MAX, sizeof(*g));
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, GROUPS_PER_NODE_MAX), known = 0;

	for (unsigned i = 0; i < n; i++) {
		if (!g[i].open || (group && g[i].group != group))
			continue;
		ledger_sums_add(s, g[i].store);
		known++;
	}
	free(g);
	return known;
}

static struct json *row_to_json(const struct ledger_volume *v)
{
	struct json *row = json_array_new();

	json_add_u64(row, v->volume);
	for (unsigned k = 0; k < LEDGER_KEYS; k++)
		json_add_i64(row, v->sum.bytes[k]);
	json_add_u64(row, !v->sum.inexact);
	return row;
}

/* Those of volumes that there are keep their rows: they are at most VOLUMES_MAX. */
static void cut(const struct map *m, struct ledger_sums *s)
{
	size_t more = s->count > ROWS_MAX ? s->count - ROWS_MAX + 1 : 0;

	for (size_t i = 0; i < s->count && more; i++) {
		if (map_volume(m, s->volume[i].volume))
			continue;
		s->volume[i].volume = 0;
		more--;
	}
	ledger_sums_settle(s);
}

void admin_get_local_ledgers(struct areq *q)
{
	struct json *j = json_object_new(), *rows = json_array_new();
	struct ledger_sums s = {0};

	json_put_u64(j, "groups", rows_here(q->admin, (uint16_t)strtoul(q->param, NULL, 10), &s));
	ledger_sums_settle(&s);
	cut(admin_map(q->admin), &s);
	for (size_t i = 0; i < s.count; i++)
		json_add(rows, row_to_json(&s.volume[i]));
	json_put(j, "rows", rows);
	free(s.volume);
	admin_reply(q, 200, j);
}

/* ---- Of all nodes ------------------------------------------------------------------------------
 */

static void take_rows(struct ledgers_ask *l, const struct json *answer)
{
	const struct json *rows = json_get(answer, "rows");

	l->groups += (unsigned)json_u64(answer, "groups", 0);
	for (size_t i = 0; i < json_len(rows); i++) {
		const struct json *row = json_at(rows, i);
		struct ledger_volume *v = ledger_sums_more(&l->sums);

		v->volume = (uint32_t)json_as_u64(json_at(row, 0), 0);
		for (unsigned k = 0; k < LEDGER_KEYS; k++)
			v->sum.bytes[k] = json_as_i64(json_at(row, k + 1), 0);
		v->sum.inexact = !json_as_u64(json_at(row, LEDGER_KEYS + 1), 0);
		v->sum.rows = 1;
	}
}

static void settle(struct ledgers_ask *l)
{
	l->groups += rows_here(l->admin, l->group, &l->sums);
	for (unsigned i = 0; i < l->ask->count; i++)
		take_rows(l, l->ask->one[i].json);
	ask_all_free(l->ask);
	l->ask = NULL;
	ledger_sums_settle(&l->sums);
}

static void on_asked(struct wait *w, int rc)
{
	struct ledgers_ask *l = container_of(w, struct ledgers_ask, asked);

	settle(l);
	wait_resume(l->owner, 0);
}

/* 0, or PENDING. */
static int ledgers_ask(struct ledgers_ask *l, struct admin *a, uint16_t group, struct wait *w)
{
	const struct map_group *g = group ? map_group(admin_map(a), group) : NULL;
	char path[64];
	int rc;

	*l = (struct ledgers_ask){.asked.resume = on_asked, .owner = w, .admin = a, .group = group};
	snprintf(path, sizeof(path), "/v1/local/ledgers/%u", group);
	rc = g ? ask_node(a, g->node, path, &l->ask, &l->asked) : ask_all(a, path, &l->ask, &l->asked);
	if (rc == PENDING)
		return PENDING;
	settle(l);
	return 0;
}

/* ---- With the facts: both are asked for at once, so that it takes no longer --------------------
 */

struct with_facts {
	struct wait gathered, asked;
	struct facts_waiter waiter;
	struct ledgers_ask ledgers;
	struct areq *q;
	void (*then)(struct areq *q, const struct ledgers_ask *l);
	unsigned pending;
};

static void part(struct with_facts *f)
{
	struct ledgers_ask l;

	if (--f->pending > 0)
		return;
	l = f->ledgers;
	f->then(f->q, &l); /* frees f */
	free(l.sums.volume);
}

static void on_gathered(struct wait *w, int rc)
{
	part(container_of(w, struct with_facts, gathered));
}

static void on_ledgers(struct wait *w, int rc)
{
	part(container_of(w, struct with_facts, asked));
}

void admin_after_ledgers(struct areq *q, uint16_t group,
			 void (*then)(struct areq *q, const struct ledgers_ask *l))
{
	struct with_facts *f = xcalloc(1, sizeof(*f));

	f->gathered.resume = on_gathered;
	f->asked.resume = on_ledgers;
	f->q = q;
	f->then = then;
	f->pending = 3; /* the two, and this function */
	q->op = f;
	if (facts_refresh(q->admin, &f->waiter, &f->gathered) != PENDING)
		f->pending--;
	if (ledgers_ask(&f->ledgers, q->admin, group, &f->asked) != PENDING)
		f->pending--;
	part(f);
}
