/* SPDX-License-Identifier: Apache-2.0 */
/* One plan reads the map twice: first what is where (places: disk groups with their load and the
 * copies under way), then object by object, most endangered first, what the next step is. One step
 * per object and plan, because each is compare-and-swap on the object's epoch.
 *
 * It must never count a copy that is not filled, and never propose to remove what the rest may
 * need: what decides is `in`, the state machine checks it again. */
#include "cluster/relocate_impl.h"
#include "cluster/map_codec.h"
#include "cluster/placement.h"
#include "node/base/err.h"

#include <stdio.h>
#include <stdlib.h>

#define BLOCKED_LOOKS     64u  /* objects of a plan for which all groups are looked at in vain, */
#define LATER_LOOKS       256u /* or found busy: the others will not fare better now */

/* ---- Objects ------------------------------------------------------------------------------------
 */

/* Counted where it is, and the copies under way at both ends. */
static void count_object(struct work *w, const struct view *v)
{
	const struct map_object *o = v->o;
	struct place *primary = v->at[o->primary];

	if (primary)
		primary->primaries++;
	for (unsigned i = 0; i < o->member_count; i++) {
		if (!v->good[i])
			continue;
		v->at[i]->bytes += v->v->object_size;
		/* A replica that returns lacks little and waits for nobody. */
		if (o->member[i].filled || !v->at[i]->up || !v->primary_up || o->undecided)
			continue;
		place_fill_add(v->at[i], v->v->object_size);
		place_fill_add(primary, v->v->object_size);
	}
}

static void task_add(struct work *w, const struct view *v)
{
	if (w->task_count == w->task_cap) {
		w->task_cap = w->task_cap * 2 + 256;
		w->task = xrealloc(w->task, w->task_cap * sizeof(*w->task));
	}
	w->task[w->task_count++] = (struct task){v->o, v->sources, -1};
}

static void survey(struct work *w, const struct map_object *o)
{
	struct view v;

	view_object(&v, w, o);
	count_object(w, &v);
	if (view_needs_a_look(&v))
		task_add(w, &v);
}

/* An object on its way counts where it will be. */
static void settle_transit(struct work *w)
{
	for (size_t i = 0; i < w->task_count; i++) {
		struct task *t = &w->task[i];
		struct view v;

		view_object(&v, w, t->object);
		if (!view_in_transit(&v))
			continue;
		w->transit++;
		t->leaves = view_victim(&v);
		if (t->leaves >= 0 && v.good[t->leaves])
			v.at[t->leaves]->bytes -= v.v->object_size;
	}
	for (unsigned i = 0; i < w->places; i++)
		if (w->place[i].up && !w->place[i].trouble)
			w->total_bytes += w->place[i].bytes;
}

static int task_compare(const void *a, const void *b)
{
	const struct task *x = a, *y = b;

	if (x->sources != y->sources)
		return x->sources < y->sources ? -1 : 1;
	return x->object->id < y->object->id ? -1 : x->object->id > y->object->id;
}

/* ---- Steps --------------------------------------------------------------------------------------
 */

struct object_change *relocate_change(struct work *w, const struct map_object *o, enum object_op op)
{
	struct object_change *c;

	if (w->out->count == RELOCATE_CHANGES_MAX)
		return NULL;
	c = &w->out->change[w->out->count++];
	*c = (struct object_change){.op = op, .object = o->id, .epoch = o->epoch};
	return c;
}

static void remove_member(struct work *w, const struct view *v, unsigned i)
{
	struct object_change *c = relocate_change(w, v->o, OBJ_REMOVE);

	if (c)
		c->replica = v->o->member[i];
}

/* The primary moves to the good replica whose node has the fewest. */
static void move_primary(struct work *w, const struct view *v)
{
	const struct map_object *o = v->o;
	struct object_change *c;
	int to = -1;

	for (unsigned i = 0; i < o->member_count; i++)
		if (i != o->primary && o->member[i].in && v->good[i] && v->at[i]->up &&
		    (to < 0 || v->at[i]->primaries < v->at[to]->primaries))
			to = (int)i;
	c = to < 0 ? NULL : relocate_change(w, o, OBJ_TAKEOVER);
	if (!c)
		return;
	c->keep = 1;
	c->replica = o->member[to];
	c->node = c->proposer = v->at[to]->node->id;
	c->incarnation = v->at[to]->node->incarnation;
	v->at[to]->primaries++;
}

/* A copy that a rebalance has under way: it goes on as long as it makes things more even. */
static bool rebalancing(const struct work *w, const struct view *v, unsigned i, int from)
{
	if (w->rebalance < 0 || !v->good[i] || !v->at[i]->up || from < 0 || !v->at[from])
		return false;
	return place_load(v->at[from]) +
		       (double)v->v->object_size / (double)v->at[from]->group->raw_bytes >=
	       place_load(v->at[i]) - (double)v->v->object_size / (double)v->at[i]->group->raw_bytes;
}

/* I is complete on groups that stay: what is not of it goes. True: a step was taken. */
static bool prune(struct work *w, const struct view *v, int from)
{
	const struct map_object *o = v->o;

	for (unsigned i = 0; i < o->member_count; i++) {
		if (o->member[i].in || o->member[i].kept || i == o->primary ||
		    rebalancing(w, v, i, from))
			continue;
		remove_member(w, v, i);
		return true;
	}
	if (v->in <= v->v->copies || from < 0)
		return false;
	if (from == o->primary)
		move_primary(w, v);
	else
		remove_member(w, v, (unsigned)from);
	return true;
}

/* Copies are missing: of those that were never filled, what cannot be finished goes, and what is
 * too much since an older replica is back: that one lacks less. The newest first. */
static bool prune_unfilled(struct work *w, const struct view *v)
{
	const struct map_object *o = v->o;
	int newest = -1;

	for (unsigned i = 0; i < o->member_count; i++) {
		if (o->member[i].in || o->member[i].filled || o->member[i].kept || i == o->primary)
			continue;
		if (!v->good[i]) {
			remove_member(w, v, i);
			return true;
		}
		if (newest < 0 || o->member[i].gen > o->member[newest].gen)
			newest = (int)i;
	}
	if (v->good_count <= v->v->copies || newest < 0)
		return false;
	remove_member(w, v, (unsigned)newest);
	return true;
}

struct refusal {
	struct work *w;
	const struct view *v;
	bool saturated; /* one could take it later */
};

static const char *refuse(void *arg, const struct map_group *g)
{
	struct refusal *r = arg;
	const struct place *p = &r->w->place[g->id];

	if (p->trouble == TROUBLE_EMPTIED)
		return "is being emptied, or kept empty: ashlar job list";
	if (p->trouble || !p->up)
		return "its node cannot be reached";
	for (unsigned i = 0; i < r->v->o->member_count; i++)
		if (r->v->at[i] == p)
			return r->v->o->member[i].kept ? "keeps a replica of it in quarantine"
						       : "has a replica of it already";
	if (!place_is_busy(r->w, p, r->v->v->object_size))
		return NULL;
	r->saturated = true;
	return "is being filled as much as it can take";
}

static void explain(struct work *w, const struct view *v, const struct placement_reason *r,
		    unsigned n)
{
	char *why = w->out->why;
	size_t at;

	if (why[0])
		return;
	snprintf(why, sizeof(w->out->why),
		 "volume %s: a copy needs a group in a fault set of its own", v->v->name);
	for (unsigned i = 0; i < n; i++) {
		at = strlen(why);
		snprintf(why + at, sizeof(w->out->why) - at, "; group %u: %s", r[i].group,
			 r[i].text);
	}
}

enum placed { PLACED, PLACE_LATER, PLACE_BLOCKED };

static enum placed place_copy(struct work *w, const struct view *v)
{
	const struct map_object *o = v->o;
	struct refusal r = {w, v, false};
	struct placement_reason reason[16];
	struct map_member where;
	struct object_change *c;
	uint16_t keep[MEMBERS_MAX];
	unsigned kept = 0, reasons;
	char why[256];

	if (w->out->count == RELOCATE_CHANGES_MAX || w->later >= LATER_LOOKS)
		return PLACE_LATER;
	if (w->looks >= BLOCKED_LOOKS)
		return PLACE_BLOCKED;
	if (place_is_busy(w, v->at[o->primary], v->v->object_size))
		return PLACE_LATER;
	for (unsigned i = 0; i < o->member_count; i++)
		if (v->good[i])
			keep[kept++] = o->member[i].group;
	if (placement_one(w->in->map, o->id, keep, kept, refuse, &r, &where, reason, &reasons,
			  ARRAY_LEN(reason), why)) {
		w->looks += !r.saturated;
		w->later += r.saturated;
		if (!r.saturated)
			explain(w, v, reason, reasons);
		return r.saturated ? PLACE_LATER : PLACE_BLOCKED;
	}
	if (o->member_count == MEMBERS_MAX)
		return PLACE_BLOCKED;
	c = relocate_change(w, o, OBJ_PLACE);
	if (!c)
		return PLACE_LATER;
	c->replica = where;
	place_fill_add(&w->place[where.group], v->v->object_size);
	w->place[where.group].bytes += v->v->object_size;
	place_fill_add(v->at[o->primary], v->v->object_size);
	return PLACED;
}

/* ---- One object ---------------------------------------------------------------------------------
 */

/* The jobs that it keeps from their end. A replica that stays until its node has been away for good is still
 * in the way of an evacuation. */
static uint64_t jobs_that_wait(const struct view *v)
{
	uint64_t jobs = 0;

	for (unsigned i = 0; i < v->o->member_count; i++)
		if (v->at[i] && !v->o->member[i].kept)
			jobs |= v->at[i]->emptied_for | (v->good[i] ? 0 : v->at[i]->rebuilt_for);
	return jobs;
}

static void count_for_jobs(struct work *w, const struct view *v)
{
	uint64_t jobs = jobs_that_wait(v);
	bool to_do = v->sources || v->hopeful;

	for (unsigned i = 0; i < w->in->job_count; i++) {
		struct relocate_job *j = &w->out->job[i];

		if (!(jobs & 1ull << i))
			continue;
		*(to_do ? &j->left : &j->stranded) += 1;
		if (v->o->undecided)
			j->undecided += to_do;
		else
			j->filling += v->good_count > v->in_good;
	}
}

static void want_rebuild(struct relocate_plan *out, const struct place *p)
{
	struct relocate_wanted w = {.node = p->group->node};

	if (p->trouble == TROUBLE_GONE && p->node && p->node->state == NODE_ACTIVE)
		w = (struct relocate_wanted){.group = p->group->id};
	for (unsigned i = 0; i < out->wanted_count; i++)
		if (out->wanted[i].node == w.node && out->wanted[i].group == w.group)
			return;
	if (out->wanted_count < RELOCATE_WANTED_MAX)
		out->wanted[out->wanted_count++] = w;
}

/* How many copies may be placed now. */
static unsigned allowed(struct work *w, const struct view *v, bool *held, bool *waits)
{
	const struct map_object *o = v->o;
	unsigned free_to = v->v->copies > o->member_count ? v->v->copies - o->member_count : 0;

	*held = *waits = false;
	for (unsigned i = 0; i < o->member_count; i++) {
		const struct place *p = v->at[i];

		if (!p) { /* lost with its group's incarnation: nobody's job, just to be made again
			   */
			free_to++;
			continue;
		}
		if (v->good[i]) {
			*waits |= !o->member[i].in && !p->up;
			continue;
		}
		if (o->member[i].kept) {
			free_to++;
			continue;
		}
		if (p->trouble != TROUBLE_AWAY && p->trouble != TROUBLE_GONE &&
		    p->trouble != TROUBLE_EMPTIED) {
			free_to++; /* an unfilled one without space */
			continue;
		}
		if (p->trouble != TROUBLE_EMPTIED && p->held && !place_job_forbids(w, p) && v->sources)
			want_rebuild(w->out, p);
		*held |= p->held && place_job_forbids(w, p);
		free_to += !p->held;
	}
	return free_to;
}

static void count_blocked(struct work *w, const struct view *v)
{
	uint64_t jobs = jobs_that_wait(v);

	for (unsigned i = 0; i < w->in->job_count; i++)
		w->out->job[i].blocked += jobs >> i & 1;
}

static void task_run(struct work *w, const struct task *t)
{
	struct relocate_lacking *l = &w->out->lacking;
	enum placed placed = PLACE_LATER;
	unsigned may, need;
	bool held, waits, lacks;
	struct view v;

	view_object(&v, w, t->object);
	count_for_jobs(w, &v);
	may = allowed(w, &v, &held, &waits);
	lacks = v.sources < v.v->copies;
	l->total += lacks;
	if (t->object->unsure || t->object->undecided) { /* for its replicas to be seen; for an operator */
		l->waiting += lacks;
		return;
	}
	if (!v.sources) {
		l->stranded++;
		return;
	}
	if (v.in_good >= v.v->copies) {
		prune(w, &v, t->leaves);
		return;
	}
	need = v.good_count < v.v->copies ? v.v->copies - v.good_count : 0;
	if (!need) {
		prune_unfilled(w, &v);
		if (lacks)
			*(waits ? &l->waiting : &l->filling) += 1;
		return;
	}
	if (prune_unfilled(w, &v)) {
		l->queued += lacks;
		return;
	}
	if (v.primary_up && may)
		placed = place_copy(w, &v);
	if (placed == PLACE_BLOCKED)
		count_blocked(w, &v);
	if (!lacks)
		return;
	if (placed == PLACE_BLOCKED)
		l->blocked++;
	else if (!may && held)
		l->held++;
	else if (placed == PLACED)
		l->filling++;
	else
		l->queued++;
}

void relocate(const struct relocate_input *in, struct relocate_plan *out)
{
	struct work w = {.in = in, .out = out, .rebalance = -1};

	memset(out, 0, sizeof(*out));
	CHECK(in->job_count <= STATE_JOBS);
	for (unsigned i = 0; i < in->job_count; i++)
		if (in->jobs[i].kind == JOB_REBALANCE && job_live(&in->jobs[i]))
			w.rebalance = (int)i;
	places_init(&w);
	relocate_each_object(&w, survey);
	settle_transit(&w);
	if (w.task)
		qsort(w.task, w.task_count, sizeof(*w.task), task_compare);
	for (size_t i = 0; i < w.task_count; i++)
		task_run(&w, &w.task[i]);
	relocate_balance(&w);
	free(w.task);
	free(w.place);
}
