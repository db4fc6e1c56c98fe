/* SPDX-License-Identifier: Apache-2.0 */
/* node remove: a job that empties the node, moves its vote away and takes it out. Asked for here,
 * and refused here if it could not end well. */
#include <stdio.h>
#include <stdlib.h>

#include "node/admin_impl.h"
#include "node/safety.h"

struct removal {
	struct wait wait, gathered;
	struct facts_waiter facts;
	struct areq *q;
	struct control_propose propose;
	struct command cmd;
	bool dry_run;
	uint16_t node;
	char name[NAME_MAX_LEN + 1];
	struct safety_report report;
};

static void refuse(struct removal *r, int rc, const char *why)
{
	admin_fail(r->q, rc, "node %s: %s. Nothing was done", r->name, why);
}

static void answer_dry(struct removal *r, int rc, const char *why)
{
	const struct safety_report *s = &r->report;
	struct json *j = json_object_new();

	json_put_bool(j, "dry_run", true);
	json_put_str(j, "node", r->name);
	json_put_bool(j, "ok", rc == 0);
	json_put_str(j, "error", rc ? err_name(rc) : NULL);
	json_put_str(j, "why", why);
	json_put_u64(j, "objects", s->objects);
	json_put_bool(j, "bytes_known", s->bytes_known);
	json_put_u64(j, "copy_bytes", s->copy_bytes);
	json_put_u64(j, "free_after_bytes", s->free_after);
	admin_reply(r->q, 200, j);
}

/* ---- In order ---- */

static unsigned could_vote(const struct map *m, uint16_t but)
{
	unsigned n = 0;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *k = container_of(h, struct map_node, by_id);

		n += k->id != but && k->state == NODE_ACTIVE && (k->roles & ROLE_VOTER);
	}
	return n;
}

static bool key_elsewhere(const struct admin *a, uint16_t but)
{
	const struct map *m = admin_map(a);

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		uint16_t id = container_of(h, struct map_node, by_id)->id;

		if (id != but && facts_node_up(a, id) && id <= NODES_MAX &&
		    json_bool(a->facts[id].json, "ca_key", false))
			return true;
	}
	return false;
}

/* 0, or why a removal in order would not come to an end, or not to a good one. */
static int drain_check(const struct removal *r, const char **why)
{
	const struct admin *a = r->q->admin;
	const struct map *m = admin_map(a);
	const struct map_node *n = map_node(m, r->node);

	if (!facts_node_up(a, r->node)) {
		*why = "it cannot be reached: start it, or if it will not come back: ashlar node "
		       "remove --dead";
		return -ERR_UNAVAILABLE;
	}
	if ((n->roles & ROLE_VOTER) && could_vote(m, r->node) < 2) {
		*why = "a single voter would be left, and Raft cannot go back to one: let another "
		       "node join "
		       "first, a witness will do";
		return -ERR_INCOMPLETE;
	}
	if (r->report.objects && !r->report.places_enough) {
		*why = "too few fault sets would be left for the copies of its volumes: add a node "
		       "first";
		return -ERR_INCOMPLETE;
	}
	if (r->report.objects && r->report.bytes_known && !r->report.space_enough) {
		*why = "the others have not enough space for what is on it: add disks first";
		return -ERR_INCOMPLETE;
	}
	if (!key_elsewhere(a, r->node)) {
		*why = "no other node in reach holds the key of the cluster's CA yet: a voter "
		       "fetches it within "
		       "seconds";
		return -ERR_BUSY;
	}
	*why = "its data will be moved, then its vote, then it leaves";
	return 0;
}

static void on_job(struct wait *w, int rc)
{
	struct removal *r = container_of(w, struct removal, wait);
	struct areq *q = r->q;
	struct json *j;

	if (admin_failed(q, rc, &r->propose.result))
		return;
	j = json_object_new();
	json_put_u64(j, "id", r->propose.result.id);
	json_put_u64(j, "index", r->propose.result.index);
	admin_reply(q, 200, j);
}

static void drain_start(struct removal *r)
{
	struct admin *a = r->q->admin;
	int rc;

	admin_command(r->q, CMD_JOB, &r->cmd);
	r->cmd.job = (struct job_change){.op = JOB_START, .kind = JOB_REMOVE, .node = r->node};
	r->wait.resume = on_job;
	rc = a->ops->propose(a->cluster, &r->propose, &r->cmd, PROPOSE_TIMEOUT_MS, &r->wait);
	if (rc != PENDING)
		on_job(&r->wait, rc);
}

/* ---- The request ---- */

static void on_gathered(struct wait *w, int rc)
{
	struct removal *r = container_of(w, struct removal, gathered);
	struct admin *a = r->q->admin;
	const char *why;

	admin_evaluate(a, r->node, &r->report);
	rc = drain_check(r, &why);
	if (r->dry_run)
		answer_dry(r, rc, why);
	else if (rc)
		refuse(r, rc, why);
	else
		drain_start(r);
}

void admin_node_remove(struct areq *q)
{
	static const char *const known[] = {"dry_run"};
	const struct map_node *n = map_node_by_name(admin_map(q->admin), q->param);
	struct removal *r;

	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (!n || n->state == NODE_REMOVED) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no node is named \"%.63s\"; `ashlar node list` shows all", q->param);
		return;
	}
	r = xcalloc(1, sizeof(*r));
	q->op = r;
	r->q = q;
	r->gathered.resume = on_gathered;
	r->node = n->id;
	snprintf(r->name, sizeof(r->name), "%s", n->name);
	r->dry_run = json_bool(q->body, "dry_run", false);
	if (facts_refresh(q->admin, &r->facts, &r->gathered) != PENDING)
		on_gathered(&r->gathered, 0);
}
