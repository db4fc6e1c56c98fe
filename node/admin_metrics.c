/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus text: this node's own counters, and what it sees of the cluster's health. Names are
 * ashlar_<part>_<fact with its unit>. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

struct text {
	char *data;
	size_t len, cap;
};

static void say(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void say(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (t->cap - t->len < 512) {
		t->cap = t->cap * 2 + 4096;
		t->data = xrealloc(t->data, t->cap);
	}
	va_start(ap, fmt);
	n = vsnprintf(t->data + t->len, t->cap - t->len, fmt, ap);
	va_end(ap);
	t->len += MIN((size_t)n, t->cap - t->len - 1);
}

static const uint64_t none = UINT64_MAX;

/* All numbers of one object, as ashlar_<part>_<key>. Types are left to the reader of the names. */
static void say_object(struct text *t, const struct json *obj, const char *part, const char *labels)
{
	for (void *it = json_members(obj); it; it = json_members_next(obj, it)) {
		uint64_t v = json_as_u64(json_member_value(it), none);

		if (v != none)
			say(t, "ashlar_%s_%s{%s} %" PRIu64 "\n", part, json_member_key(it), labels,
			    v);
	}
}

/* What each volume has in the ledger of a group. Names may hold nothing that a label may not. */
static void say_volumes(struct text *t, const struct map *m, const struct ledger_sums *rows,
			const char *group)
{
	for (size_t i = 0; i < rows->count; i++) {
		const struct map_volume *v = m ? map_volume(m, rows->volume[i].volume) : NULL;
		char labels[320];

		if (!v)
			continue;
		snprintf(labels, sizeof(labels), "%s,volume=\"%s\"", group, v->name);
		for (unsigned k = 0; k < LEDGER_KEYS; k++)
			say(t, "ashlar_volume_%s{%s} %" PRIi64 "\n", ledger_keys[k], labels,
			    rows->volume[i].sum.bytes[k]);
	}
}

static void say_group_volumes(struct text *t, const struct admin *a, uint64_t group, const char *labels)
{
	struct admin_group *g = xcalloc(GROUPS_PER_NODE_MAX, sizeof(*g));
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, GROUPS_PER_NODE_MAX);

	for (unsigned i = 0; i < n; i++) {
		struct ledger_sums rows = {0};

		if (g[i].group != group || !g[i].open)
			continue;
		ledger_sums_add(&rows, g[i].store);
		say_volumes(t, admin_map(a), &rows, labels);
		free(rows.volume);
	}
	free(g);
}

static void say_groups(struct text *t, const struct admin *a, const struct json *list, const char *node)
{
	for (size_t i = 0; i < json_len(list); i++) {
		const struct json *g = json_at(list, i);
		char labels[160];

		snprintf(labels, sizeof(labels), "node=\"%s\",group=\"%" PRIu64 "\"", node,
			 json_u64(g, "group", 0));
		say(t, "ashlar_group_open{%s} %d\n", labels, json_bool(g, "open", false));
		if (json_get(g, "stats"))
			say_object(t, json_get(g, "stats"), "group", labels);
		say_group_volumes(t, a, json_u64(g, "group", 0), labels);
	}
}

static void say_health(struct text *t, struct admin *a)
{
	struct health_report *r = xcalloc(1, sizeof(*r));

	facts_health(a, r);
	say(t, "# TYPE ashlar_health_objects gauge\n");
	say(t, "ashlar_health_objects{state=\"in_sync\"} %" PRIu64 "\n", r->full);
	say(t, "ashlar_health_objects{state=\"degraded\"} %" PRIu64 "\n", r->degraded);
	say(t, "ashlar_health_objects{state=\"single_copy\"} %" PRIu64 "\n", r->single);
	say(t, "ashlar_health_objects{state=\"unavailable\"} %" PRIu64 "\n", r->unavailable);
	say(t, "# TYPE ashlar_health_objects_unrepaired gauge\n");
	say(t, "ashlar_health_objects_unrepaired %" PRIu64 "\n", r->unrepaired);
	say(t, "# TYPE ashlar_health_objects_undecided gauge\n");
	say(t, "ashlar_health_objects_undecided %" PRIu64 "\n", r->undecided);
	say(t, "# TYPE ashlar_health_severity gauge\nashlar_health_severity %d\n", (int)r->overall);
	say(t, "# TYPE ashlar_health_code gauge\n");
	for (unsigned i = 0; i < r->count; i++)
		say(t, "ashlar_health_code{code=\"%s\",severity=\"%s\"} %u\n", r->item[i].code,
		    health_severity_name(r->item[i].severity), r->item[i].count);
	free(r);
}

static void say_raft(struct text *t, struct admin *a)
{
	struct consensus_status st = {0};

	a->ops->status(a->cluster, &st);
	say(t, "ashlar_raft_leader %d\n", st.role == CONSENSUS_LEADER);
	say(t, "ashlar_raft_leader_known %d\n", st.leader != 0);
	say(t, "ashlar_raft_term %" PRIu64 "\n", st.term);
	say(t, "ashlar_raft_applied_index %" PRIu64 "\n", st.applied);
	say(t, "ashlar_raft_voters %u\n", st.voters);
}

static void metrics_ready(struct areq *q)
{
	struct admin *a = q->admin;
	const struct json *f = a->facts[MIN(a->cfg.identity->number, NODE_IDS_MAX)].json;
	const char *name = a->cfg.config->name;
	struct text t = {0};
	char labels[96];

	snprintf(labels, sizeof(labels), "node=\"%s\"", name);
	say(&t, "ashlar_node_info{%s,version=\"%s\"} 1\n", labels, ASHLAR_VERSION);
	say(&t, "ashlar_node_claimed{%s} %d\n", labels, a->ops != NULL);
	if (f) {
		say(&t, "ashlar_node_up_seconds{%s} %" PRIu64 "\n", labels, json_u64(f, "up_s", 0));
		say(&t, "ashlar_node_resident_bytes{%s} %" PRIu64 "\n", labels,
		    json_u64(f, "resident_bytes", 0));
		say_object(&t, json_get(f, "replication"), "replication", labels);
		say_object(&t, json_get(f, "client"), "client", labels);
		say_groups(&t, a, json_get(f, "groups"), name);
	}
	if (a->ops) {
		say_raft(&t, a);
		say_health(&t, a);
	}
	admin_reply_text(q, 200, "text/plain; version=0.0.4", t.data);
	free(t.data);
}

void admin_get_metrics(struct areq *q)
{
	admin_after_facts(q, metrics_ready);
}
