/* SPDX-License-Identifier: Apache-2.0 */
/* Where things are: disk groups with their load and the copies under way, and what an object has there. */
#include "cluster/relocate_impl.h"
#include "cluster/map_codec.h"
#include "node/base/err.h"

#include <stdlib.h>
#include <string.h>

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

/* A rebuild that was cancelled stays so for the same absence; one that is done may be needed again.
 */
static bool job_works(const struct work *w, const struct place *p)
{
	const struct state_job *j = p->job < 0 ? NULL : &w->in->jobs[p->job];

	if (!j)
		return false;
	return j->state == JOB_RUNNING || (j->kind == JOB_EVACUATE && j->state == JOB_DONE);
}

bool place_job_forbids(const struct work *w, const struct place *p)
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

void places_init(struct work *w)
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

bool place_is_busy(const struct work *w, const struct place *p, uint64_t size)
{
	if (p->fills < w->in->fills_max)
		return false;
	return p->fills >= w->in->small_fills_max ||
	       p->fill_bytes + size > (uint64_t)w->in->fills_max * OBJECT_SIZE_MAX;
}

void place_fill_add(struct place *p, uint64_t size)
{
	p->fills++;
	p->fill_bytes += size;
}

bool place_takes_more(const struct work *w, const struct place *p, uint64_t size)
{
	return p->up && !p->trouble && p->group->free_steps && !place_is_busy(w, p, size);
}

/* ---- Objects -----------------------------------------------------------------------------------
 */

void view_object(struct view *v, const struct work *w, const struct map_object *o)
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

double place_load(const struct place *p)
{
	return (double)p->bytes / (double)(p->group->raw_bytes ? p->group->raw_bytes : 1);
}

const char *place_fault_set(const struct place *p)
{
	return p->node->fault_set[0] ? p->node->fault_set : p->node->name;
}

static bool shares_fault_set(const struct view *v, unsigned i)
{
	for (unsigned k = 0; k < v->o->member_count; k++)
		if (k != i && v->o->member[k].in && v->at[k] && v->at[i] &&
		    !strcmp(place_fault_set(v->at[k]), place_fault_set(v->at[i])))
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
int view_victim(const struct view *v)
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
				    (!v->at[found] || place_load(v->at[i]) > place_load(v->at[found]))))
			found = (int)i;
	}
	return found;
}

/* All copies are there, and one more, filled or not: something else is to go for it. */
bool view_in_transit(const struct view *v)
{
	return v->in_good >= v->v->copies && (v->good_count > v->in_good || v->in > v->v->copies);
}

/* Something to do, now or later? */
bool view_needs_a_look(const struct view *v)
{
	return v->good_count != v->v->copies || v->o->member_count != v->v->copies ||
	       v->in_good != v->v->copies;
}

void relocate_each_object(struct work *w, void (*fn)(struct work *w, const struct map_object *o))
{
	size_t count;
	struct map_volume **v = map_volumes_sorted(w->in->map, &count);

	for (size_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < v[i]->objects; k++)
			if (v[i]->object[k].member_count)
				fn(w, &v[i]->object[k]);
	free(v);
}
