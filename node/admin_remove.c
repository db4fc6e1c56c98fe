/* SPDX-License-Identifier: Apache-2.0 */
/* node remove: a job that empties the node, moves its vote away and takes it out. Asked for here,
 * and refused here if it could not end well. */
#include <stdio.h>
#include <stdlib.h>

#include "node/admin_impl.h"
#include "node/safety.h"

#define FAILOVER_LOOK_US 250000u
#define FAILOVER_LOOKS   40u /* takeovers take a few seconds at most */

struct removal {
	struct wait wait, gathered;
	struct facts_waiter facts;
	struct areq *q;
	struct control_propose propose;
	struct command cmd;
	struct timer again;
	unsigned looks;
	bool dead, accept_loss, dry_run;
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
	json_put_u64(j, "objects_lost", r->dead ? s->lost : 0);
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

		if (id != but && facts_node_up(a, id) && id <= NODE_IDS_MAX &&
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
	*why = admin_room_missing(&r->report);
	if (*why)
		return -ERR_INCOMPLETE;
	if (r->report.unrepaired) {
		*why = r->report.unrepaired_why; /* copies made from those would lack what they lack */
		return -ERR_INCOMPLETE;
	}
	if (state_node_quarantined(a->ops->state(a->cluster), r->node)) {
		*why = "replicas in quarantine are on it, which nothing moves: `ashlar quarantine list` "
		       "names them, `quarantine discard` gives them up, `volume force` goes on from "
		       "them";
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

/* ---- Without it ---- */

static void dead_again(struct timer *t);

static void on_removed(struct wait *w, int rc)
{
	struct removal *r = container_of(w, struct removal, wait);
	struct areq *q = r->q;
	struct json *j;

	/* Its objects have not failed over yet: it has only just died. */
	if (rc == 0 && r->propose.result.code == -ERR_BUSY && ++r->looks < FAILOVER_LOOKS &&
	    !q->answered) {
		timer_set(&r->again, FAILOVER_LOOK_US);
		return;
	}
	timer_fini(&r->again);
	if (admin_failed(q, rc, &r->propose.result))
		return;
	j = json_object_new();
	json_put_str(j, "node", r->name);
	json_put_bool(j, "removed", true);
	json_put_u64(j, "objects_lost", r->propose.result.number);
	json_put_u64(j, "index", r->propose.result.index);
	admin_reply(q, 200, j);
}

static void dead_propose(struct removal *r)
{
	struct admin *a = r->q->admin;
	const struct map_node *n = map_node(admin_map(a), r->node);
	int rc;

	admin_command(r->q, CMD_NODE_REMOVE, &r->cmd);
	r->cmd.node_remove.node = r->node;
	r->cmd.node_remove.incarnation = n ? n->incarnation : 0;
	r->cmd.node_remove.flags =
		NODE_REMOVE_DEAD | (r->accept_loss ? NODE_REMOVE_ACCEPT_LOSS : 0);
	r->wait.resume = on_removed;
	rc = a->ops->propose(a->cluster, &r->propose, &r->cmd, PROPOSE_TIMEOUT_MS, &r->wait);
	if (rc != PENDING)
		on_removed(&r->wait, rc);
}

static void dead_again(struct timer *t)
{
	struct removal *r = container_of(t, struct removal, again);

	if (r->q->answered) /* the process stops */
		timer_fini(&r->again);
	else
		dead_propose(r);
}

static int dead_check(const struct removal *r, const char **why)
{
	const struct admin *a = r->q->admin;
	const struct state *s = a->ops->state(a->cluster);
	bool quarantined = state_node_quarantined(s, r->node), unsure = state_node_unsure(s, r->node);

	if (facts_node_heard(a, r->node)) {
		*why = "it is up: without --dead it is removed in order; or stop it first";
		return -ERR_REFUSED;
	}
	if (r->report.unrepaired && !r->accept_loss) {
		*why = r->report.unrepaired_why;
		return -ERR_INCOMPLETE;
	}
	if (r->report.lost && !r->accept_loss) {
		*why = "some objects have no in-sync replica anywhere else: their data would be "
		       "lost";
		return -ERR_INCOMPLETE;
	}
	if (quarantined && !r->accept_loss) {
		*why = "replicas in quarantine are on it, which may be the only ones with some "
		       "acknowledged writes; `ashlar quarantine list` names them, `quarantine discard` "
		       "gives them up";
		return -ERR_INCOMPLETE;
	}
	if (unsure && !r->accept_loss) {
		*why = "since the cluster was recovered it was not heard, and it may be the only one with "
		       "some acknowledged writes: they would be lost";
		return -ERR_INCOMPLETE;
	}
	*why = r->report.lost ? "what has no in-sync replica anywhere else is given up"
	       : quarantined  ? "everything has another in-sync replica; what is in quarantine there is "
				"given up"
	       : unsure	      ? "what it alone may have since the cluster was recovered is given up"
			      : "everything has another in-sync replica";
	return 0;
}

/* ---- The request ---- */

static void on_gathered(struct wait *w, int rc)
{
	struct removal *r = container_of(w, struct removal, gathered);
	struct admin *a = r->q->admin;
	const char *why;

	admin_evaluate(a, r->node, &r->report);
	rc = r->dead ? dead_check(r, &why) : drain_check(r, &why);
	if (r->dry_run) {
		answer_dry(r, rc, why);
	} else if (rc && (rc != -ERR_INCOMPLETE || r->report.unrepaired)) {
		refuse(r, rc, why);
	} else if (r->dead) { /* what else would be lost is for the state to say, by name */
		timer_init(&r->again, a->cfg.loop, dead_again);
		dead_propose(r);
	} else if (rc) {
		refuse(r, rc, why);
	} else {
		drain_start(r);
	}
}

void admin_node_remove(struct areq *q)
{
	static const char *const known[] = {"dry_run", "dead", "accept_loss"};
	const struct map_node *n = map_node_by_name(admin_map(q->admin), q->param);
	struct removal *r;

	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (!n && admin_ask_leader(q)) /* it may have joined a moment ago */
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
	r->dead = json_bool(q->body, "dead", false);
	r->accept_loss = json_bool(q->body, "accept_loss", false);
	if (r->accept_loss && !r->dead) {
		admin_fail(q, -ERR_INVALID, "accept_loss goes with dead only");
		return;
	}
	facts_forget(q->admin); /* damage may have been met a moment ago */
	if (facts_refresh(q->admin, &r->facts, &r->gathered) != PENDING)
		on_gathered(&r->gathered, 0);
}
