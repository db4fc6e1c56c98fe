/* SPDX-License-Identifier: Apache-2.0 */
/* One plan reads the map twice: first what is where (places: disk groups with their load and the
 * copies under way), then object by object, most endangered first, what the next step is. One step
 * per object and plan, because each is compare-and-swap on the object's epoch.
 *
 * It must never count a copy that is not filled, and never propose to remove what the rest may
 * need: what decides is `in`, the state machine checks it again. */
#include "cluster/relocate.h"
#include "cluster/map_codec.h"
#include "cluster/placement.h"
#include "node/base/err.h"

#include <stdio.h>
#include <stdlib.h>

#define TOLERANCE_PERCENT 5u   /* of its share: less than that is even */
#define BLOCKED_LOOKS     64u  /* objects of a plan for which all groups are looked at in vain, */
#define LATER_LOOKS       256u /* or found busy: the others will not fare better now */

enum trouble {
	TROUBLE_NONE,
	TROUBLE_AWAY, /* its node: counts for `out` replicas, an `in` one works as long as it is in
		       */
	TROUBLE_GONE, /* its node is removed or dead, its group failed or removed */
	TROUBLE_EMPTIED,
};

struct place { /* a disk group */
	const struct map_group *group;
	const struct map_node *node;
	enum trouble trouble;
	bool up, held; /* held: its job waits, or nobody has started it */
	int job;       /* index of the job that replaces what is here, or -1 */
	/* Jobs that count what is here as not done yet, whichever of them moves it: bits, by index. */
	uint64_t emptied_for, rebuilt_for;
	unsigned fills, primaries;
	uint64_t fill_bytes; /* nominal */
	uint64_t bytes; /* nominal, of what is to stay */
};

struct task {
	const struct map_object *object;
	unsigned sources; /* `in` replicas in reach */
	int leaves; /* the member that goes when one is too much, or -1: decided once, as loads move
		     */
};

struct work {
	const struct relocate_input *in;
	struct relocate_plan *out;
	struct place *place; /* by group number */
	unsigned places;
	struct task *task;
	size_t task_count, task_cap;
	int rebalance; /* index of its live job, or -1 */
	uint64_t total_bytes, total_raw;
	unsigned looks, later, transit;
};

/* What one object has. */
struct view {
	const struct map_object *o;
	const struct map_volume *v;
	struct place *at[MEMBERS_MAX]; /* NULL: its group has another incarnation, or is unknown */
	bool good[MEMBERS_MAX];        /* it is, or may become, one of the copies that stay */
	unsigned in, in_good, good_count, sources;
	bool primary_up;
	bool hopeful; /* an `in` replica is, or will be, in reach: its node is not given up */
};

/* ---- Places -------------------------------------------------------------------------------------
 */

static bool job_is(const struct state_job *j, const struct map_group *g)
{
	return j->group ? j->group == g->id : j->node && j->node == g->node;
}

/* The newest job that speaks for this place, or -1. */
static int job_of(const struct work *w, const struct place *p)
{
	for (unsigned i = w->in->job_count; i-- > 0;) {
		const struct state_job *j = &w->in->jobs[i];

		if (p->trouble == TROUBLE_EMPTIED ? state_job_empties(j, p->group)
						  : j->kind == JOB_REBUILD && job_is(j, p->group))
			return (int)i;
	}
	return -1;
}

_Static_assert(STATE_JOBS <= 64, "a bit of a place for each job");

/* Jobs overlap: of a group and of its node, an evacuation and a removal, and what is to be emptied is rebuilt
 * when its node stays away. Each is over when nothing is left there. What is removed needs no emptying. */
static void place_count_for(const struct work *w, struct place *p)
{
	bool removed = p->node->state == NODE_REMOVED || p->group->state == GROUP_REMOVED;

	for (unsigned i = 0; i < w->in->job_count; i++) {
		const struct state_job *j = &w->in->jobs[i];

		if (!removed && state_job_empties(j, p->group))
			p->emptied_for |= 1ull << i;
		if (p->trouble != TROUBLE_EMPTIED && j->kind == JOB_REBUILD && job_live(j) &&
		    job_is(j, p->group))
			p->rebuilt_for |= 1ull << i;
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

/* A rebuild that was cancelled stays so for the same absence; one that is done may be needed again.
 */
static bool job_works(const struct work *w, const struct place *p)
{
	const struct state_job *j = p->job < 0 ? NULL : &w->in->jobs[p->job];

	if (!j)
		return false;
	return j->state == JOB_RUNNING || (j->kind == JOB_EVACUATE && j->state == JOB_DONE);
}

static bool job_forbids(const struct work *w, const struct place *p)
{
	const struct state_job *j = p->job < 0 ? NULL : &w->in->jobs[p->job];

	return j && (j->state == JOB_PAUSED ||
		     (j->state == JOB_CANCELLED &&
		      j->incarnation == (j->group ? p->group->incarnation : p->node->incarnation)));
}

static void place_init(struct work *w, const struct map_group *g)
{
	struct place *p = &w->place[g->id];
	const struct relocate_node *n;

	p->group = g;
	p->node = map_node(w->in->map, g->node);
	p->job = -1;
	if (!p->node)
		return;
	n = &w->in->nodes[g->node];
	p->up = n->up && p->node->state == NODE_ACTIVE && g->state == GROUP_ACTIVE;
	if (p->node->state == NODE_REMOVED || p->node->state == NODE_DEAD ||
	    g->state == GROUP_FAILED || g->state == GROUP_REMOVED)
		p->trouble = TROUBLE_GONE;
	else if (n->away)
		p->trouble = TROUBLE_AWAY;
	for (unsigned i = 0; !p->trouble && i < w->in->job_count; i++)
		if (state_job_empties(&w->in->jobs[i], g))
			p->trouble = TROUBLE_EMPTIED;
	if (!p->trouble)
		return;
	p->job = job_of(w, p);
	p->held = !job_works(w, p);
	place_count_for(w, p);
}

static void places_init(struct work *w)
{
	const struct map *m = w->in->map;

	w->places = m->next_group;
	w->place = xcalloc(w->places + 1, sizeof(*w->place));
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);

		place_init(w, g);
		if (w->place[g->id].up && !w->place[g->id].trouble)
			w->total_raw += g->raw_bytes;
	}
}

/* As many copies are under way there as are good for one more of `size`. */
static bool is_busy(const struct work *w, const struct place *p, uint64_t size)
{
	if (p->fills < w->in->fills_max)
		return false;
	return p->fills >= w->in->small_fills_max ||
	       p->fill_bytes + size > (uint64_t)w->in->fills_max * OBJECT_SIZE_MAX;
}

static void fill_add(struct place *p, uint64_t size)
{
	p->fills++;
	p->fill_bytes += size;
}

static bool takes_more(const struct work *w, const struct place *p, uint64_t size)
{
	return p->up && !p->trouble && p->group->free_steps && !is_busy(w, p, size);
}

/* ---- Objects ------------------------------------------------------------------------------------
 */

static void view_init(struct view *v, const struct work *w, const struct map_object *o)
{
	*v = (struct view){.o = o, .v = map_volume(w->in->map, object_volume(o->id))};
	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *mb = &o->member[i];
		struct place *p = mb->group < w->places ? &w->place[mb->group] : NULL;

		v->in += mb->in;
		if (!p || !p->group || !p->node || p->group->incarnation != mb->group_incarnation)
			continue;
		v->at[i] = p;
		if (mb->kept)
			continue; /* in quarantine: it is no copy, and it stays */
		/* An unfilled copy on a group that has no space left would never be finished. */
		v->good[i] = p->trouble == TROUBLE_NONE
				     ? mb->in || mb->filled || p->group->free_steps
				     : p->trouble == TROUBLE_AWAY && mb->in;
		v->good_count += v->good[i];
		v->in_good += v->good[i] && mb->in && p->up;
		v->sources += mb->in && p->up;
		v->hopeful |= mb->in && p->trouble != TROUBLE_AWAY && p->trouble != TROUBLE_GONE;
		if (i == o->primary)
			v->primary_up = mb->in && p->up;
	}
}

static double load(const struct place *p)
{
	return (double)p->bytes / (double)(p->group->raw_bytes ? p->group->raw_bytes : 1);
}

static const char *fault_set(const struct place *p)
{
	return p->node->fault_set[0] ? p->node->fault_set : p->node->name;
}

static bool shares_fault_set(const struct view *v, unsigned i)
{
	for (unsigned k = 0; k < v->o->member_count; k++)
		if (k != i && v->o->member[k].in && v->at[k] && v->at[i] &&
		    !strcmp(fault_set(v->at[k]), fault_set(v->at[i])))
			return true;
	return false;
}

static int victim_rank(const struct view *v, unsigned i)
{
	if (!v->good[i])
		return 3;
	return v->at[i]->up ? shares_fault_set(v, i) : 2;
}

/* Which of the `in` replicas goes when there are more than enough: one that is to go anyway, else
 * one out of reach, else one whose fault set has another copy, else the one on the fullest group.
 * -1: none. */
static int victim(const struct view *v)
{
	int found = -1;

	for (unsigned i = 0; i < v->o->member_count; i++) {
		int rank, best;

		if (!v->o->member[i].in)
			continue;
		if (found < 0) {
			found = (int)i;
			continue;
		}
		rank = victim_rank(v, i);
		best = victim_rank(v, (unsigned)found);
		if (rank > best || (rank == best && v->at[i] &&
				    (!v->at[found] || load(v->at[i]) > load(v->at[found]))))
			found = (int)i;
	}
	return found;
}

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
		fill_add(v->at[i], v->v->object_size);
		fill_add(primary, v->v->object_size);
	}
}

/* All copies are there, and one more, filled or not: something else is to go for it. */
static bool in_transit(const struct view *v)
{
	return v->in_good >= v->v->copies && (v->good_count > v->in_good || v->in > v->v->copies);
}

/* Something to do, now or later? */
static bool needs_a_look(const struct view *v)
{
	return v->good_count != v->v->copies || v->o->member_count != v->v->copies ||
	       v->in_good != v->v->copies;
}

static void task_add(struct work *w, const struct view *v)
{
	if (w->task_count == w->task_cap) {
		w->task_cap = w->task_cap * 2 + 256;
		w->task = xrealloc(w->task, w->task_cap * sizeof(*w->task));
	}
	w->task[w->task_count++] = (struct task){v->o, v->sources, -1};
}

static void each_object(struct work *w, void (*fn)(struct work *w, const struct map_object *o))
{
	size_t count;
	struct map_volume **v = map_volumes_sorted(w->in->map, &count);

	for (size_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < v[i]->objects; k++)
			if (v[i]->object[k].member_count)
				fn(w, &v[i]->object[k]);
	free(v);
}

static void survey(struct work *w, const struct map_object *o)
{
	struct view v;

	view_init(&v, w, o);
	count_object(w, &v);
	if (needs_a_look(&v))
		task_add(w, &v);
}

/* An object on its way counts where it will be. */
static void settle_transit(struct work *w)
{
	for (size_t i = 0; i < w->task_count; i++) {
		struct task *t = &w->task[i];
		struct view v;

		view_init(&v, w, t->object);
		if (!in_transit(&v))
			continue;
		w->transit++;
		t->leaves = victim(&v);
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

static struct object_change *change(struct work *w, const struct map_object *o, enum object_op op)
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
	struct object_change *c = change(w, v->o, OBJ_REMOVE);

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
	c = to < 0 ? NULL : change(w, o, OBJ_TAKEOVER);
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
	return load(v->at[from]) +
		       (double)v->v->object_size / (double)v->at[from]->group->raw_bytes >=
	       load(v->at[i]) - (double)v->v->object_size / (double)v->at[i]->group->raw_bytes;
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
	if (!is_busy(r->w, p, r->v->v->object_size))
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
	if (is_busy(w, v->at[o->primary], v->v->object_size))
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
	c = change(w, o, OBJ_PLACE);
	if (!c)
		return PLACE_LATER;
	c->replica = where;
	fill_add(&w->place[where.group], v->v->object_size);
	w->place[where.group].bytes += v->v->object_size;
	fill_add(v->at[o->primary], v->v->object_size);
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

	for (unsigned i = 0; i < w->in->job_count; i++) {
		struct relocate_job *j = &w->out->job[i];

		if (!(jobs & 1ull << i))
			continue;
		*(v->sources || v->hopeful ? &j->left : &j->stranded) += 1;
		j->filling += v->good_count > v->in_good;
	}
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
		if (p->trouble != TROUBLE_EMPTIED && p->held && !job_forbids(w, p) && v->sources)
			want_rebuild(w->out, p);
		*held |= p->held && job_forbids(w, p);
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

	view_init(&v, w, t->object);
	count_for_jobs(w, &v);
	may = allowed(w, &v, &held, &waits);
	lacks = v.sources < v.v->copies;
	l->total += lacks;
	w->out->undecided += t->object->undecided;
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

/* ---- Rebalance ----------------------------------------------------------------------------------
 */

static double surplus(const struct work *w, const struct place *p)
{
	double share = (double)w->total_bytes * (double)p->group->raw_bytes /
		       (double)(w->total_raw ? w->total_raw : 1);

	return (double)p->bytes - share;
}

static bool overloaded(const struct work *w, const struct place *p)
{
	return p->up && !p->trouble &&
	       surplus(w, p) * 100 > ((double)p->bytes - surplus(w, p)) * TOLERANCE_PERCENT;
}

/* After the move the source must not be emptier than the target: each move makes things more even,
 * so they end. */
static bool improves(const struct place *from, const struct place *to, uint64_t size)
{
	return from->bytes >= size &&
	       (double)(from->bytes - size) / (double)from->group->raw_bytes >=
		       (double)(to->bytes + size) / (double)to->group->raw_bytes;
}

static bool fits(const struct view *v, unsigned leaves, const struct place *to)
{
	for (unsigned k = 0; k < v->o->member_count; k++)
		if (v->at[k] == to ||
		    (k != leaves && v->at[k] && !strcmp(fault_set(v->at[k]), fault_set(to))))
			return false;
	return true;
}

/* The emptiest group that would make things more even. */
static struct place *better_place(struct work *w, const struct view *v, unsigned leaves)
{
	struct place *best = NULL;

	for (unsigned i = 0; i < w->places; i++) {
		struct place *p = &w->place[i];

		if (!p->group || !p->up || p->trouble || !p->group->free_steps ||
		    !improves(v->at[leaves], p, v->v->object_size) || !fits(v, leaves, p))
			continue;
		w->out->uneven = true;
		if (takes_more(w, p, v->v->object_size) && (!best || load(p) < load(best)))
			best = p;
	}
	return best;
}

static void rebalance_object(struct work *w, const struct map_object *o)
{
	bool act = w->rebalance >= 0 && w->in->jobs[w->rebalance].state == JOB_RUNNING;
	struct object_change *c;
	struct view v;

	if (w->out->uneven && (!act || w->out->count == RELOCATE_CHANGES_MAX))
		return;
	view_init(&v, w, o);
	if (o->unsure || o->undecided || needs_a_look(&v) || !v.primary_up ||
	    is_busy(w, v.at[o->primary], v.v->object_size))
		return;
	for (unsigned i = 0; i < o->member_count; i++) {
		struct place *to;

		if (!overloaded(w, v.at[i]))
			continue;
		to = better_place(w, &v, i);
		if (!to || !act)
			continue;
		c = change(w, o, OBJ_PLACE);
		if (!c)
			return;
		c->replica = (struct map_member){.group = to->group->id,
						 .group_incarnation = to->group->incarnation};
		v.at[i]->bytes -= v.v->object_size;
		to->bytes += v.v->object_size;
		fill_add(to, v.v->object_size);
		fill_add(v.at[o->primary], v.v->object_size);
		return;
	}
}

static void rebalance(struct work *w)
{
	uint64_t objects = 0;
	double mean;

	for (struct hnode *h = hmap_walk(&w->in->map->volumes, NULL); h;
	     h = hmap_walk(&w->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		objects += (uint64_t)v->objects * v->copies;
	}
	mean = objects ? (double)w->total_bytes / (double)objects : 0;
	for (unsigned i = 0; mean > 0 && i < w->places; i++)
		if (w->place[i].group && overloaded(w, &w->place[i]))
			w->out->imbalance += (uint32_t)(surplus(w, &w->place[i]) / mean + 0.5);
	/* The cheap look comes first: copies that are missing come before even ones. */
	if (w->out->imbalance && !w->out->lacking.total)
		each_object(w, rebalance_object);
	w->out->uneven |= w->transit > 0;
	if (w->rebalance >= 0) {
		struct relocate_job *j = &w->out->job[w->rebalance];

		j->filling = w->transit;
		j->left = w->transit + (w->out->uneven ? MAX(w->out->imbalance, 1u) : 0);
	}
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
	each_object(&w, survey);
	settle_transit(&w);
	if (w.task)
		qsort(w.task, w.task_count, sizeof(*w.task), task_compare);
	for (size_t i = 0; i < w.task_count; i++)
		task_run(&w, &w.task[i]);
	rebalance(&w);
	free(w.task);
	free(w.place);
}
