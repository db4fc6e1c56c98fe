/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping is judged by what can still be reached, losing by what is still anywhere: a node that is
 * down today keeps its data. A node in maintenance counts as stopped, whether it is yet or not. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "node/base/err.h"
#include "node/safety.h"

struct what_if {
	const struct safety_input *in;
	struct safety_report *out;
};

static bool among(const uint16_t *list, unsigned count, uint16_t id)
{
	for (unsigned i = 0; i < count; i++)
		if (list[i] == id)
			return true;
	return false;
}

static bool node_up(const struct safety_input *in, uint16_t id)
{
	for (unsigned i = 0; i < in->health->node_count; i++)
		if (in->health->nodes[i].id == id)
			return in->health->nodes[i].up;
	return false;
}

static bool voter_up(const struct safety_input *in, uint16_t id)
{
	for (unsigned i = 0; i < in->health->node_count; i++)
		if (in->health->nodes[i].id == id)
			return in->health->nodes[i].up && !in->health->nodes[i].data_only;
	return false;
}

static const struct health_group *group_facts(const struct safety_input *in, uint16_t id)
{
	for (unsigned i = 0; i < in->health->group_count; i++)
		if (in->health->groups[i].id == id)
			return &in->health->groups[i];
	return NULL;
}

static bool group_works(const struct safety_input *in, const struct map_group *g)
{
	const struct health_group *f = group_facts(in, g->id);

	return g->state == GROUP_ACTIVE && !(f && f->known && (f->failed || !f->open));
}

static bool node_goes(const struct safety_input *in, uint16_t id)
{
	return among(in->nodes, in->node_count, id);
}

static bool group_goes(const struct safety_input *in, const struct map_group *g)
{
	return node_goes(in, g->node) || among(in->groups, in->group_count, g->id);
}

/* Where the data will be served from: up, and not about to be stopped by somebody else. */
static bool group_stays_up(const struct safety_input *in, const struct map_group *g)
{
	return group_works(in, g) && node_up(in, g->node) &&
	       !map_node_in_maintenance(in->health->map, g->node, in->health->now_ms);
}

/* Nobody knows here which objects it is of: all that it has may lack something. */
static bool group_damaged(const struct safety_input *in, const struct map_group *g)
{
	const struct health_group *f = group_facts(in, g->id);

	return f && health_group_lacks(f);
}

/* ---- Objects ------------------------------------------------------------------------------------
 */

static void name_volume(struct safety_report *r, const struct map_volume *v)
{
	if (r->volumes_named && !strcmp(r->volume[r->volumes_named - 1], v->name))
		return;
	r->volumes++;
	if (r->volumes_named < SAFETY_VOLUMES_MAX)
		snprintf(r->volume[r->volumes_named++], sizeof(r->volume[0]), "%s", v->name);
}

static void look_at_object(struct what_if *w, const struct map_volume *v,
			   const struct map_object *o)
{
	struct safety_report *r = w->out;
	unsigned now = 0, serving = 0, left = 0, anywhere = 0, gone = 0, kept = 0;
	uint16_t damaged = 0; /* a group that stays, and would do, were it not for its damage */

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *m = &o->member[i];
		const struct map_group *g = map_group(w->in->health->map, m->group);
		bool goes;

		if (!g || g->incarnation != m->group_incarnation || g->state == GROUP_REMOVED)
			continue;
		goes = group_goes(w->in, g);
		gone += goes;
		kept += goes && m->kept;
		if (!m->in)
			continue;
		now += group_works(w->in, g) && node_up(w->in, g->node);
		serving += !goes && group_stays_up(w->in, g);
		if (!goes && group_works(w->in, g) && group_damaged(w->in, g)) {
			damaged = g->id;
			continue;
		}
		anywhere += !goes && group_works(w->in, g);
		left += !goes && group_stays_up(w->in, g);
	}
	if (o->undecided)
		now = 0; /* nobody serves it */
	r->unavailable_now += !now;
	if (!gone)
		return;
	r->objects++;
	r->quarantined += w->in->for_good && kept;
	if (w->in->for_good && !anywhere)
		r->lost++;
	else if (!left && now)
		r->unavailable++;
	else if (serving < v->min_in_sync && now >= v->min_in_sync)
		r->below_min++;
	else if (left == 1 && v->copies > 1)
		r->single++;
	else if (left < v->copies)
		r->degraded++;
	if (damaged && ((w->in->for_good && !anywhere) || (!left && now))) {
		r->unrepaired++;
		r->unrepaired_group = damaged;
	}
	if ((w->in->for_good && (!anywhere || kept)) || (!left && now) ||
	    (serving < v->min_in_sync && now >= v->min_in_sync))
		name_volume(r, v);
}

static unsigned fault_sets_left(const struct safety_input *in)
{
	const struct map *m = in->health->map;
	const struct map_node *seen[256];
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		const struct map_node *n = map_node(m, g->node);
		unsigned i = 0;

		if (!n || n->state != NODE_ACTIVE || group_goes(in, g) || !group_works(in, g))
			continue;
		while (i < count && strcmp(map_fault_set(seen[i]), map_fault_set(n)))
			i++;
		if (i == count && count < ARRAY_LEN(seen))
			seen[count++] = n;
	}
	return count;
}

static void look_at_volumes(struct what_if *w)
{
	const struct map *m = w->in->health->map;
	unsigned sets = fault_sets_left(w->in);

	w->out->places_enough = true;
	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);
		uint64_t before = w->out->objects;

		for (uint32_t i = 0; i < v->objects; i++)
			look_at_object(w, v, &v->object[i]);
		if (w->out->objects != before && v->copies > sets)
			w->out->places_enough = false;
	}
}

/* ---- Voters, space ------------------------------------------------------------------------------
 */

static void look_at_voters(struct what_if *w)
{
	const struct health_input *h = w->in->health;
	struct safety_report *r = w->out;

	r->voters = h->voter_count;
	r->voters_needed = h->voter_count / 2 + 1;
	for (unsigned i = 0; i < h->voter_count; i++)
		r->voters_left += voter_up(w->in, h->voters[i]) &&
				  !node_goes(w->in, h->voters[i]) &&
				  !map_node_in_maintenance(h->map, h->voters[i], h->now_ms);
}

static void look_at_space(struct what_if *w)
{
	const struct map *m = w->in->health->map;
	struct safety_report *r = w->out;
	uint64_t free_bytes = 0;

	r->bytes_known = true;
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		const struct health_group *f = group_facts(w->in, g->id);

		if (g->state == GROUP_REMOVED)
			continue;
		if (!f || !f->known) {
			r->bytes_known = false;
			continue;
		}
		if (group_goes(w->in, g))
			r->copy_bytes += f->used_bytes;
		else if (group_works(w->in, g) && f->data_bytes > f->used_bytes)
			free_bytes += f->data_bytes - f->used_bytes;
	}
	r->space_enough = free_bytes >= r->copy_bytes;
	r->free_after = r->space_enough ? free_bytes - r->copy_bytes : 0;
	r->copy_s = w->in->copy_bytes_s ? r->copy_bytes / w->in->copy_bytes_s : 0;
}

/* ---- The verdict --------------------------------------------------------------------------------
 */

static void conclude(struct safety_report *r, enum safety_verdict v, const char *fmt, ...)
	PRINTF_LIKE(3, 4);
static void conclude(struct safety_report *r, enum safety_verdict v, const char *fmt, ...)
{
	va_list ap;

	r->verdict = v;
	va_start(ap, fmt);
	vsnprintf(r->why, sizeof(r->why), fmt, ap);
	va_end(ap);
}

static unsigned long long n_(uint64_t n)
{
	return (unsigned long long)n;
}

static void judge(struct what_if *w)
{
	struct safety_report *r = w->out;

	if (r->unrepaired)
		snprintf(r->unrepaired_why, sizeof(r->unrepaired_why),
			 "%llu object%s no other in-sync replica but in disk groups with damage that "
			 "is not repaired yet (group %u): some of that data may be whole here only; wait "
			 "while `ashlar health` shows DATA_REPAIRING, and see to "
			 "DATA_CORRUPT_UNREPAIRABLE if it shows that",
			 n_(r->unrepaired), r->unrepaired == 1 ? " has" : "s have", r->unrepaired_group);
	if (r->unrepaired && r->unrepaired == r->lost + r->unavailable)
		conclude(r, SAFETY_DATA, "%s", r->unrepaired_why);
	else if (r->lost)
		conclude(r, SAFETY_DATA,
			 "%llu object%s no other in-sync replica: that data would be lost", n_(r->lost),
			 r->lost == 1 ? " has" : "s have");
	else if (r->unavailable)
		conclude(
			r, SAFETY_DATA,
			"%llu object%s would have no in-sync replica in reach: that I/O would stop",
			n_(r->unavailable), r->unavailable == 1 ? "" : "s");
	else if (r->below_min)
		conclude(r, SAFETY_DATA,
			 "%llu object%s would have fewer in-sync replicas than the policy's minimum: "
			 "those writes would stop",
			 n_(r->below_min), r->below_min == 1 ? "" : "s");
	else if (r->quarantined)
		conclude(r, SAFETY_DATA,
			 "%llu object%s a replica in quarantine there, which may be the only one with "
			 "some acknowledged writes: decide first (ashlar quarantine list)",
			 n_(r->quarantined), r->quarantined == 1 ? " has" : "s have");
	else if (r->voters && r->voters_left < r->voters_needed)
		conclude(r, SAFETY_QUORUM,
			 "%u of %u voters would be left and %u are needed: no failover, attach or "
			 "new "
			 "volume until one is back",
			 r->voters_left, r->voters, r->voters_needed);
	else if (w->in->for_good && r->objects && !r->places_enough)
		conclude(r, SAFETY_DATA,
			 "nothing would be lost, but too few fault sets would be left to make the "
			 "copies anew: add a node first");
	else if (w->in->for_good && r->objects && r->bytes_known && !r->space_enough)
		conclude(r, SAFETY_DATA,
			 "nothing would be lost, but there is not enough space to make the copies "
			 "anew: add disks first");
	else if (!r->objects)
		conclude(r, SAFETY_OK, "no object has a replica there");
	else if (w->in->for_good)
		conclude(r, SAFETY_OK,
			 "all data has other in-sync replicas, and room for new copies%s",
			 r->bytes_known ? "" : " by fault sets; the space is not known now");
	else
		conclude(r, SAFETY_OK, "all objects go on%s",
			 r->single ? "; some with a single copy until it is back" : "");
}

void safety_evaluate(const struct safety_input *in, struct safety_report *out)
{
	struct what_if w = {.in = in, .out = out};

	memset(out, 0, sizeof(*out));
	look_at_volumes(&w);
	look_at_voters(&w);
	look_at_space(&w);
	judge(&w);
}
