/* SPDX-License-Identifier: Apache-2.0 */
/* Evens out what groups hold, when no copy is missing anywhere: one replica per object and plan, from a group
 * that has more than its share to one that makes things more even. */
#include "cluster/relocate_impl.h"

#include <string.h>

#define TOLERANCE_PERCENT 5u   /* of its share: less than that is even */

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
		    (k != leaves && v->at[k] && !strcmp(place_fault_set(v->at[k]), place_fault_set(to))))
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
		if (place_takes_more(w, p, v->v->object_size) && (!best || place_load(p) < place_load(best)))
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
	view_object(&v, w, o);
	if (o->unsure || o->undecided || view_needs_a_look(&v) || !v.primary_up ||
	    place_is_busy(w, v.at[o->primary], v.v->object_size))
		return;
	for (unsigned i = 0; i < o->member_count; i++) {
		struct place *to;

		if (!overloaded(w, v.at[i]))
			continue;
		to = better_place(w, &v, i);
		if (!to || !act)
			continue;
		c = relocate_change(w, o, OBJ_PLACE);
		if (!c)
			return;
		c->replica = (struct map_member){.group = to->group->id,
						 .group_incarnation = to->group->incarnation};
		v.at[i]->bytes -= v.v->object_size;
		to->bytes += v.v->object_size;
		place_fill_add(to, v.v->object_size);
		place_fill_add(v.at[o->primary], v.v->object_size);
		return;
	}
}

void relocate_balance(struct work *w)
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
		relocate_each_object(w, rebalance_object);
	w->out->uneven |= w->transit > 0;
	if (w->rebalance >= 0) {
		struct relocate_job *j = &w->out->job[w->rebalance];

		j->filling = w->transit;
		j->left = w->transit + (w->out->uneven ? MAX(w->out->imbalance, 1u) : 0);
	}
}
