/* SPDX-License-Identifier: Apache-2.0 */
/* What only an operator may decide: that objects go on from replicas that may lack acknowledged writes, and
 * that what a force went past is given up. The answer to the question what there is, how old it is and what
 * may be lost is the same as that to the deed, which needs "accept_loss". The state machine decides; here
 * the best replica is picked, and a primary that still serves is stopped first (yield), so that nobody can
 * be served by two. Must never pick for somebody what serves by itself, nor discard what may be the only
 * copy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define LISTED_MAX	 256u /* objects in an answer */
#define YIELD_TIMEOUT_MS 3000u

struct force {
	struct replicas r; /* first: what replicas_ask calls back with */
	struct wait wait;
	struct areq *q;
	bool accept, discard;
	uint32_t volume, object; /* object: UINT32_MAX: all */
	uint16_t group;		 /* 0: any */
	struct object_change *change;
	unsigned changes, sent;
	struct json *answer, *listed, *refused;
	unsigned affected, done;
	uint32_t next; /* objects before it were looked at */
	struct control_propose propose;
	/* primaries that must stop first, node by node */
	uint16_t yield_node[NODES_MAX];
	unsigned yields, yielded;
	struct control_call call;
};

static void force_reply(struct force *f)
{
	struct areq *q = f->q;
	struct json *j = f->answer;

	json_put_u64(j, "affected", f->affected);
	json_put_u64(j, "done", f->done);
	json_put(j, "objects", f->listed);
	json_put(j, "refused", f->refused);
	json_put(j, "source", admin_source(q->admin));
	free(f->change);
	admin_reply(q, 200, j); /* frees f */
}

/* ---- What there is ------------------------------------------------------------------------------
 */

/* It serves, or will by itself: in-sync, in reach, and nothing keeps it from that. */
static bool serves(const struct force *f, const struct map_object *o, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(admin_map(f->q->admin), mb);
	const struct json *said = replicas_of(&f->r, o, mb);

	return mb->in && n && facts_node_up(f->q->admin, n->id) && said && !json_str(said, "broken");
}

static bool is_primary(const struct json *said)
{
	const char *role = said ? json_str(said, "role") : NULL;

	return role && !strcmp(role, "primary");
}

static bool available(const struct force *f, const struct map_object *o)
{
	const struct map_node *n = map_primary_node(admin_map(f->q->admin), o);
	const struct json *said = n ? replicas_said(&f->r, n->id, object_index(o->id)) : NULL;

	if (o->undecided || (is_primary(said) && json_str(said, "broken")))
		return false;
	if (o->unsure) /* since a recovery: in-sync says nothing yet */
		return said && facts_node_up(f->q->admin, n->id) && json_bool(said, "serving", false);
	for (unsigned i = 0; i < o->member_count; i++)
		if (serves(f, o, &o->member[i]))
			return true;
	return false;
}

static bool can_be_forced(const struct force *f, const struct map_object *o, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(admin_map(f->q->admin), mb);
	const struct json *said = replicas_of(&f->r, o, mb);

	return n && n->state == NODE_ACTIVE && !n->awaited && facts_node_up(f->q->admin, n->id) && said &&
	       json_bool(said, "present", false);
}

static struct version last_of(const struct json *said)
{
	return (struct version){(uint32_t)json_u64(said, "last_tenure", 0), json_u64(said, "last_seq", 0)};
}

/* Was in-sync once, before a copy that never was finished; not in quarantine, unless that is for what it has;
 * then the newest. */
static bool better(const struct force *f, const struct map_object *o, const struct map_member *a,
		   const struct map_member *b)
{
	if (a->filled != b->filled)
		return a->filled;
	if (a->kept != b->kept && !o->undecided)
		return b->kept;
	return version_cmp(last_of(replicas_of(&f->r, o, a)), last_of(replicas_of(&f->r, o, b))) > 0;
}

static const struct map_member *choice(const struct force *f, const struct map_object *o)
{
	const struct map_member *best = NULL;

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *mb = &o->member[i];

		if ((!f->group || mb->group == f->group) && can_be_forced(f, o, mb) &&
		    (!best || better(f, o, mb, best)))
			best = mb;
	}
	return best;
}

static bool is_open(const struct force *f, const struct map_member *mb)
{
	const struct admin *a = f->q->admin;
	const struct json *g = facts_group(a, map_group(admin_map(a), mb->group));

	return g && json_bool(g, "open", false) && !json_str(g, "failed");
}

static const char *why_not(const struct force *f, const struct map_object *o, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(admin_map(f->q->admin), mb);
	const struct json *said = replicas_of(&f->r, o, mb);

	if (o->undecided)
		return "lacks acknowledged writes that one in quarantine has";
	if (!n)
		return "is lost with its disk group";
	if (n->state != NODE_ACTIVE)
		return "is on a node that is given up";
	if (n->awaited)
		return "is on a node that did not follow the recovered cluster yet: nothing is lost if "
		       "it does";
	if (!facts_node_up(f->q->admin, n->id))
		return "is on a node that does not answer: nothing is lost if it comes back";
	if (!said || !json_bool(said, "present", false))
		return is_open(f, mb) ? "is not there: its node is about to make or to find it"
				      : "is on a disk group that is not open: nothing is lost if it "
					"comes back";
	return o->unsure ? "may have less than another one, since the cluster was recovered" : "cannot serve";
}

static char *why_unavailable(const struct force *f, const struct map_object *o)
{
	const struct map *m = admin_map(f->q->admin);
	char *text = NULL;

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *mb = &o->member[i];
		const struct map_group *g = map_group(m, mb->group);
		const struct json *said = replicas_of(&f->r, o, mb);
		const char *broken =
			said && json_bool(said, "present", false) ? json_str(said, "broken") : NULL;
		char *longer;

		if (!mb->in)
			continue;
		longer = xasprintf("%s%sits in-sync replica on group %u of %s %s%s%s", text ? text : "",
				   text ? "; " : "", mb->group,
				   g && map_node_name(m, g->node) ? map_node_name(m, g->node) : "?",
				   why_not(f, o, mb), broken ? ": " : "", broken ? broken : "");
		free(text);
		text = longer;
	}
	return text;
}

/* What is known to be missing in mb: some replica in reach says that it has more. */
static char *may_lose(const struct force *f, const struct map_object *o, const struct map_member *mb)
{
	struct version has = last_of(replicas_of(&f->r, o, mb));
	const char *broken;
	uint64_t more = 0;

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct json *said = replicas_of(&f->r, o, &o->member[i]);

		if (said && last_of(said).seq > has.seq)
			more = MAX(more, last_of(said).seq - has.seq);
	}
	broken = json_str(replicas_of(&f->r, o, mb), "broken");
	if (mb->in)
		return xasprintf("%s; it ends at write %llu",
				 broken ? broken
					: o->unsure ? "not compared with all others since the recovery"
					: "its node has not said yet what it lacks",
				 (unsigned long long)has.seq);
	return xasprintf("%s: every write after number %llu%s%.0llu%s; %s",
			 mb->kept ? "it is in quarantine" : "it was not in sync",
			 (unsigned long long)has.seq, more ? " (at least " : "", (unsigned long long)more,
			 more ? " of them)" : "",
			 mb->filled ? "if a return was under way, its parts are of different ages"
				    : "it was never filled: parts of it may be empty");
}

static void list_object(struct force *f, const struct map_object *o, const struct map_member *best)
{
	const struct map *m = admin_map(f->q->admin);
	struct json *j, *list;
	CLEANUP(free_ptr) char *why = why_unavailable(f, o);
	CLEANUP(free_ptr) char *loses = best ? may_lose(f, o, best) : NULL;

	if (json_len(f->listed) >= LISTED_MAX)
		return;
	j = json_object_new();
	list = json_array_new();
	json_put_u64(j, "index", object_index(o->id));
	json_put_bool(j, "available", available(f, o));
	json_put_str(j, "why", available(f, o) ? NULL : why);
	for (unsigned i = 0; i < o->member_count; i++)
		json_add(list, replica_to_json(&f->r, m, o, &o->member[i]));
	json_put(j, "replicas", list);
	json_put_u64(j, "group", best ? best->group : 0);
	json_put_str(j, "node", best ? map_member_node(m, best)->name : NULL);
	json_put_str(j, "may_lose", loses);
	json_add(f->listed, j);
}

/* ---- The deed -----------------------------------------------------------------------------------
 */

static void refuse_object(struct force *f, uint64_t object, const char *why)
{
	struct json *j;

	if (json_len(f->refused) >= LISTED_MAX)
		return;
	j = json_object_new();
	json_put_u64(j, "index", object_index(object));
	json_put_str(j, "why", why);
	json_add(f->refused, j);
}

static void add_change(struct force *f, enum object_op op, const struct map_object *o,
		       const struct map_member *mb)
{
	const struct map_node *n = map_member_node(admin_map(f->q->admin), mb);

	if (f->changes % OBJECT_CHANGES_MAX == 0)
		f->change = xrealloc(f->change, (f->changes + OBJECT_CHANGES_MAX) * sizeof(*f->change));
	f->change[f->changes++] = (struct object_change){.op = (uint8_t)op,
							 .object = o->id,
							 .epoch = o->epoch,
							 .replica = *mb,
							 .node = n ? n->id : 0,
							 .incarnation = n ? n->incarnation : 0};
}

static void refuse_served(struct force *f, uint64_t object)
{
	const struct map *m = admin_map(f->q->admin);
	const struct map_object *o = map_object(m, object);
	const struct map_node *n = o ? map_member_node(m, &o->member[o->primary]) : NULL;

	CLEANUP(free_ptr) char *text =
		xasprintf("its primary on node %s may still be serving it: start ashlard there, or, if it is "
			  "gone for good: ashlar node remove %s --dead --accept-loss",
			  n ? n->name : "?", n ? n->name : "?");

	refuse_object(f, object, text);
}

static void note_result(struct force *f, const struct object_change *ch, int result)
{
	switch (result) {
	case OBJ_DONE:
		f->done++;
		return;
	case OBJ_SERVED:
		refuse_served(f, ch->object);
		return;
	case OBJ_EPOCH_LIMIT:
		refuse_object(f, ch->object, "it was forced 255 times: copy the volume to a new one");
		return;
	default:
		refuse_object(f, ch->object, "its configuration changed meanwhile: look again");
	}
}

static void propose_next(struct force *f);

static void on_proposed(struct wait *w, int rc)
{
	struct force *f = container_of(w, struct force, wait);
	const struct command_result *r = &f->propose.result;
	unsigned n = MIN(f->changes - f->sent, OBJECT_CHANGES_MAX);

	if (rc || r->code) {
		json_free(f->answer);
		json_free(f->listed);
		json_free(f->refused);
		free(f->change);
		admin_failed(f->q, rc, r);
		return;
	}
	for (unsigned i = 0; i < n && i < r->count; i++)
		note_result(f, &f->change[f->sent + i], r->object[i]);
	f->sent += n;
	propose_next(f);
}

static void propose_next(struct force *f)
{
	struct areq *q = f->q;
	struct command cmd;
	int rc;

	if (f->sent == f->changes) {
		force_reply(f);
		return;
	}
	admin_command(q, CMD_OBJECT, &cmd);
	cmd.object.count = MIN(f->changes - f->sent, OBJECT_CHANGES_MAX);
	cmd.object.change = f->change + f->sent;
	f->wait.resume = on_proposed;
	rc = q->admin->ops->propose(q->admin->cluster, &f->propose, &cmd, PROPOSE_TIMEOUT_MS, &f->wait);
	if (rc != PENDING)
		on_proposed(&f->wait, rc);
}

/* ---- Primaries that serve stop first ---- */

static struct json *yield_body(const struct force *f, uint16_t node)
{
	struct json *j = json_object_new(), *list = json_array_new();
	const struct map *m = admin_map(f->q->admin);

	for (unsigned i = 0; i < f->changes; i++) {
		const struct map_object *o = map_object(m, f->change[i].object);
		const struct map_node *n = o ? map_primary_node(m, o) : NULL;
		struct json *k;

		if (!n || n->id != node || f->change[i].op != OBJ_FORCE)
			continue;
		k = json_object_new();
		json_put_u64(k, "object", o->id);
		json_put_u64(k, "tenure", o->tenure);
		json_add(list, k);
	}
	json_put(j, "objects", list);
	return j;
}

static void yield_next(struct force *f);

static void on_yielded(struct wait *w, int rc)
{
	struct force *f = container_of(w, struct force, wait);
	uint16_t node = f->yield_node[f->yielded++];
	char err[128];
	struct json *j = rc == 0 && f->call.status == 200 && f->call.json
				 ? json_parse(f->call.json, strlen(f->call.json), err, sizeof(err))
				 : NULL;
	const struct json *list = json_get(j, "yielded");
	unsigned k = 0;

	free(f->call.json);
	f->call.json = NULL;
	/* Both are in the order of objects. */
	for (size_t i = 0; i < json_len(list); i++) {
		uint64_t object = json_u64(json_at(list, i), "object", 0);

		while (k < f->changes && f->change[k].object < object)
			k++;
		if (k < f->changes && f->change[k].object == object)
			f->change[k].proposer = node;
	}
	json_free(j);
	yield_next(f);
}

static void yield_next(struct force *f)
{
	struct areq *q = f->q;
	CLEANUP(free_ptr) char *text = NULL;
	struct json *body;
	int rc;

	if (f->yielded == f->yields) {
		propose_next(f);
		return;
	}
	body = yield_body(f, f->yield_node[f->yielded]);
	text = json_print(body, false);
	json_free(body);
	f->wait.resume = on_yielded;
	rc = q->admin->ops->call(q->admin->cluster, &f->call, f->yield_node[f->yielded], "POST",
				 "/v1/local/yield", text, YIELD_TIMEOUT_MS, &f->wait);
	if (rc != PENDING)
		on_yielded(&f->wait, rc);
}

static void want_yield(struct force *f, const struct map_object *o)
{
	const struct map_node *n = map_primary_node(admin_map(f->q->admin), o);

	if (!n || !facts_node_up(f->q->admin, n->id))
		return;
	for (unsigned i = 0; i < f->yields; i++)
		if (f->yield_node[i] == n->id)
			return;
	if (f->yields < NODES_MAX)
		f->yield_node[f->yields++] = n->id;
}

/* ---- The requests ------------------------------------------------------------------------------- */

static void look_at(struct force *f, const struct map_object *o)
{
	const struct map_member *best;

	/* What serves is left alone, unless somebody wants to go back to what a force went past. */
	best = choice(f, o);
	if (available(f, o) && (!f->group || !best || !best->kept))
		return;
	f->affected++;
	list_object(f, o, best);
	if (!f->accept)
		return;
	if (!best) {
		refuse_object(f, o->id, f->group ? "no replica of it on that group can be reached"
						 : "no replica of it can be reached");
		return;
	}
	add_change(f, OBJ_FORCE, o, best);
	if (best != &o->member[o->primary])
		want_yield(f, o);
}

static void discard_of(struct force *f, const struct map_object *o)
{
	uint32_t epoch = o->epoch;

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *mb = &o->member[i];

		if (!mb->kept || (f->group && mb->group != f->group))
			continue;
		f->affected++;
		if (o->undecided) {
			refuse_object(f, o->id, "nobody serves it before you decide which replica goes on: "
						"ashlar volume force");
			continue;
		}
		if (!available(f, o)) {
			refuse_object(f, o->id, "it has no in-sync replica in reach now: this may be the "
						"last one");
			continue;
		}
		add_change(f, OBJ_DISCARD, o, mb);
		f->change[f->changes - 1].epoch = epoch++; /* each raises it */
	}
}

static void look_at_next(struct force *f);

static void replicas_known(struct replicas *r)
{
	struct force *f = container_of(r, struct force, r);
	const struct map_volume *v = map_volume(admin_map(f->q->admin), f->volume);

	if (!v) {
		json_free(f->answer);
		json_free(f->listed);
		json_free(f->refused);
		free(f->change);
		admin_fail(f->q, -ERR_NOT_FOUND, "the volume was deleted meanwhile");
		return;
	}
	f->next = r->from + r->count;
	for (uint32_t i = r->from; i < f->next; i++) {
		if (f->discard)
			discard_of(f, &v->object[i]);
		else
			look_at(f, &v->object[i]);
	}
	if (f->object == UINT32_MAX && f->next < v->objects)
		look_at_next(f);
	else
		yield_next(f);
}

/* Objects are judged page by page; what is proposed in the end is compare-and-swap on what was judged. */
static void look_at_next(struct force *f)
{
	const struct map_volume *v = map_volume(admin_map(f->q->admin), f->volume);
	uint32_t left = f->object != UINT32_MAX ? 1 : v->objects - f->next;

	replicas_ask(&f->r, f->q, f->volume, f->next, MIN(left, REPLICAS_PAGE), replicas_known);
}

static void force_begin(struct areq *q, bool discard)
{
	static const char *const known[] = {"object", "group", "accept_loss"};
	const struct map_volume *v = map_volume_by_name(admin_map(q->admin), q->param);
	struct force *f;
	uint16_t group;

	if (!v && admin_ask_leader(q))
		return;
	if (!v) {
		admin_fail(q, -ERR_NOT_FOUND, "no volume is named \"%.63s\"; `ashlar volume list` shows all",
			   q->param);
		return;
	}
	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (json_has(q->body, "object") && json_u64(q->body, "object", v->objects) >= v->objects) {
		admin_fail(q, -ERR_NOT_FOUND, "volume %s has the objects 0 to %u", v->name, v->objects - 1);
		return;
	}
	group = (uint16_t)MIN(json_u64(q->body, "group", 0), (uint64_t)UINT16_MAX);
	if (json_has(q->body, "group") && !map_group(admin_map(q->admin), group)) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "there is no such disk group; `ashlar diskgroup list` shows all");
		return;
	}
	f = xcalloc(1, sizeof(*f));
	f->q = q;
	f->discard = discard;
	f->accept = json_bool(q->body, "accept_loss", false);
	f->volume = v->id;
	f->object = json_has(q->body, "object") ? (uint32_t)json_u64(q->body, "object", 0) : UINT32_MAX;
	f->group = group;
	f->next = f->object != UINT32_MAX ? f->object : 0;
	f->answer = json_object_new();
	f->listed = json_array_new();
	f->refused = json_array_new();
	json_put_str(f->answer, "name", v->name);
	json_put_bool(f->answer, "accept_loss", f->accept);
	free(q->op);
	q->op = f;
	look_at_next(f);
}

static void force_ready(struct areq *q)
{
	force_begin(q, false);
}

static void discard_ready(struct areq *q)
{
	force_begin(q, true);
}

/* Who is in reach is judged by facts: those of now. */
void admin_force_volume(struct areq *q)
{
	admin_after_facts(q, force_ready);
}

void admin_discard_volume(struct areq *q)
{
	admin_after_facts(q, discard_ready);
}
