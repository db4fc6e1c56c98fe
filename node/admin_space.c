/* SPDX-License-Identifier: Apache-2.0 */
/* Capacity: the ledger's rows as JSON and their sums, and what people have disk groups do about
 * space: flush and verify. Each group's rows are of one moment; sums over groups are exact when
 * nothing is being destaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define FLUSH_TIMEOUT_MS 3600000u

/* ---- Rows --------------------------------------------------------------------------------------
 */

const char *const ledger_keys[LEDGER_KEYS] = {
	"logical_bytes", "zero_bytes",   "dedup_saved_bytes",      "compression_saved_bytes",
	"damaged_bytes", "stored_bytes", "frees_if_deleted_bytes", "to_reduce_bytes"};

/* Signed: the row of the blocks that no volume owns takes back what others count as saved. */
static void ledger_values(const struct store_ledger *l, int64_t out[LEDGER_KEYS])
{
	const int64_t values[LEDGER_KEYS] = {
		(int64_t)l->logical_bytes,          (int64_t)l->zero_bytes,
		(int64_t)l->dedup_saved_bytes,      (int64_t)l->compression_saved_bytes,
		(int64_t)l->damaged_bytes,          (int64_t)l->stored_bytes,
		(int64_t)l->frees_if_deleted_bytes, (int64_t)l->to_reduce_bytes};

	memcpy(out, values, sizeof(values));
}

struct json *ledger_to_json(const struct store_ledger *l)
{
	struct ledger_sum s = {.inexact = !l->exact};

	ledger_values(l, s.bytes);
	return ledger_sum_to_json(&s);
}

void ledger_sum_add(struct ledger_sum *s, const struct json *row)
{
	for (unsigned i = 0; i < LEDGER_KEYS; i++)
		s->bytes[i] += json_i64(row, ledger_keys[i], 0);
	s->inexact |= !json_bool(row, "frees_exact", true);
	s->rows++;
}

struct json *ledger_sum_to_json(const struct ledger_sum *s)
{
	struct json *j = json_object_new();

	for (unsigned i = 0; i < LEDGER_KEYS; i++)
		json_put_i64(j, ledger_keys[i], s->bytes[i]);
	json_put_bool(j, "frees_exact", !s->inexact);
	return j;
}

struct json *ledger_volume_to_json(const struct ledger_volume *v)
{
	struct json *row = ledger_sum_to_json(&v->sum);

	if (v->volume)
		json_put_u64(row, "volume", v->volume);
	return row;
}

/* ---- Rows of many volumes ---------------------------------------------------------------------
 */

struct ledger_volume *ledger_sums_more(struct ledger_sums *s)
{
	if (s->count == s->cap) {
		s->cap = s->cap * 2 + 64;
		s->volume = xrealloc(s->volume, s->cap * sizeof(*s->volume));
	}
	return memset(&s->volume[s->count++], 0, sizeof(*s->volume));
}

static void one_row(void *arg, uint32_t volume, const struct store_ledger *l)
{
	struct ledger_volume *v = ledger_sums_more(arg);

	v->volume = volume == VOLUME_UNOWNED ? 0 : volume;
	v->sum.inexact = !l->exact;
	v->sum.rows = 1;
	ledger_values(l, v->sum.bytes);
}

void ledger_sums_add(struct ledger_sums *s, struct store *store)
{
	store_volume_ledgers(store, one_row, s);
}

static int by_volume(const void *x, const void *y)
{
	const struct ledger_volume *a = x, *b = y;

	return a->volume < b->volume ? -1 : a->volume > b->volume;
}

void ledger_sums_settle(struct ledger_sums *s)
{
	size_t n = 0;

	if (s->count)
		qsort(s->volume, s->count, sizeof(*s->volume), by_volume);
	for (size_t i = 0; i < s->count; i++) {
		struct ledger_volume *last = n ? &s->volume[n - 1] : NULL;

		if (!last || last->volume != s->volume[i].volume) {
			s->volume[n++] = s->volume[i];
			continue;
		}
		for (unsigned k = 0; k < LEDGER_KEYS; k++)
			last->sum.bytes[k] += s->volume[i].sum.bytes[k];
		last->sum.inexact |= s->volume[i].sum.inexact;
		last->sum.rows += s->volume[i].sum.rows;
	}
	s->count = n;
}

struct ledger_sum ledger_sums_of(const struct ledger_sums *s, uint32_t volume)
{
	struct ledger_volume key = {.volume = volume}, *found;

	found = s->count ? bsearch(&key, s->volume, s->count, sizeof(key), by_volume) : NULL;
	return found ? found->sum : key.sum;
}

/* ---- What a deletion would give back ----------------------------------------------------------
 */

static int by_frees(const void *x, const void *y)
{
	const struct ledger_volume *a = x, *b = y;
	int64_t fa = a->sum.bytes[LEDGER_FREES], fb = b->sum.bytes[LEDGER_FREES];

	return fa != fb ? (fa < fb) - (fa > fb) : by_volume(x, y);
}

struct json *reclaim_to_json(struct store *store)
{
	struct json *list = json_array_new();
	struct ledger_sums s = {0};

	ledger_sums_add(&s, store);
	if (s.count)
		qsort(s.volume, s.count, sizeof(*s.volume), by_frees);
	for (size_t i = 0; i < s.count && json_len(list) < RECLAIM_MAX; i++) {
		struct json *row;

		if (!s.volume[i].volume || s.volume[i].sum.bytes[LEDGER_FREES] <= 0)
			continue;
		row = json_array_new();
		json_add_u64(row, s.volume[i].volume);
		json_add_u64(row, (uint64_t)s.volume[i].sum.bytes[LEDGER_FREES]);
		json_add_u64(row, !s.volume[i].sum.inexact);
		json_add(list, row);
	}
	free(s.volume);
	return list;
}

/* The groups' rows together, and how many groups may have left something out. */
static void reclaim_gather(const struct admin *a, struct ledger_sums *s, unsigned *full_lists)
{
	const struct map *m = admin_map(a);

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct json *f = facts_group(a, container_of(h, struct map_group, by_id));
		const struct json *rows = f ? json_get(f, "reclaim") : NULL;

		*full_lists += json_len(rows) >= RECLAIM_MAX;
		for (size_t i = 0; i < json_len(rows); i++) {
			const struct json *row = json_at(rows, i);
			struct ledger_volume *v = ledger_sums_more(s);

			v->volume = (uint32_t)json_as_u64(json_at(row, 0), 0);
			v->sum.bytes[LEDGER_FREES] = (int64_t)json_as_u64(json_at(row, 1), 0);
			v->sum.inexact = !json_as_u64(json_at(row, 2), 0);
			v->sum.rows = json_len(rows) >= RECLAIM_MAX;
		}
	}
	ledger_sums_settle(s);
}

void reclaim_largest(const struct admin *a, struct health_input *in)
{
	struct ledger_sums s = {0};
	unsigned full_lists = 0, n = 0;

	reclaim_gather(a, &s, &full_lists);
	if (s.count)
		qsort(s.volume, s.count, sizeof(*s.volume), by_frees);
	for (size_t i = 0; i < s.count && n < ARRAY_LEN(in->reclaim); i++) {
		const struct map_volume *v = map_volume(admin_map(a), s.volume[i].volume);

		/* A group that names as many as it may has perhaps more of it: then it is a lower bound. */
		if (v)
			in->reclaim[n++] = (struct health_reclaim){
				.name = v->name,
				.bytes = (uint64_t)s.volume[i].sum.bytes[LEDGER_FREES],
				.exact = !s.volume[i].sum.inexact && s.volume[i].sum.rows == full_lists};
	}
	free(s.volume);
}

/* ---- Flush and verify --------------------------------------------------------------------------
 */

struct group_op {
	struct wait wait;
	struct areq *q;
	uint16_t group;
	bool verify, reduce;
	uint64_t begun_us;
	struct store_verify result;
};

static void on_group_op(struct wait *w, int rc)
{
	struct group_op *op = container_of(w, struct group_op, wait);
	struct areq *q = op->q;
	struct json *j;

	if (rc == -ERR_FULL) {
		admin_fail(
			q, rc,
			"the capacity devices of group %u have no room for all that is in its log%s",
			op->group, op->reduce ? ", or to reduce in" : "");
		return;
	}
	if (rc < 0 && !(op->verify && rc == -ERR_CORRUPT) && !(op->reduce && rc == -ETIMEDOUT)) {
		admin_fail(q, rc, "group %u: %s", op->group, err_text(rc));
		return;
	}
	j = json_object_new();
	json_put_u64(j, "group", op->group);
	json_put_str(j, "node", q->admin->cfg.config->name);
	json_put_bool(j, "reduced", op->reduce && !rc); /* else it is to be asked for again */
	json_put_u64(j, "took_ms", (loop_mono_us(q->admin->cfg.loop) - op->begun_us) / 1000);
	if (op->verify) {
		json_put_u64(j, "commit", op->result.commit);
		json_put_u64(j, "objects", op->result.objects);
		json_put_u64(j, "pages", op->result.pages);
		json_put_u64(j, "blocks", op->result.blocks);
		json_put_u64(j, "shares", op->result.shares);
		json_put_u64(j, "damaged_blocks", op->result.bad_blocks);
		json_put_u64(j, "differences", op->result.differences);
	}
	facts_forget(q->admin); /* what is asked for next is of after this */
	admin_reply(q, 200, j);
}

static void group_op(struct areq *q, bool verify)
{
	struct admin *a = q->admin;
	const struct map_group *g = admin_find_group(q);
	struct group_op *op;
	int rc;

	if (!g)
		return;
	if (g->node != a->cfg.identity->number) {
		admin_forward(q, g->node, FLUSH_TIMEOUT_MS);
		return;
	}
	op = xcalloc(1, sizeof(*op));
	op->wait.resume = on_group_op;
	op->q = q;
	op->group = g->id;
	op->verify = verify;
	op->reduce = q->body && json_bool(q->body, "reduce", false);
	op->begun_us = loop_mono_us(a->cfg.loop);
	q->op = op;
	rc = verify ? a->cfg.node_ops->group_verify(a->cfg.node, g->id, &op->result, &op->wait)
		    : a->cfg.node_ops->group_flush(a->cfg.node, g->id, op->reduce, &op->wait);
	if (rc != PENDING)
		on_group_op(&op->wait, rc);
}

void admin_flush_group(struct areq *q)
{
	group_op(q, false);
}

void admin_verify_group(struct areq *q)
{
	group_op(q, true);
}
