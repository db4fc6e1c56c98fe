/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of objects in the state machine: the table at the end of cluster/replication.md. Each
 * change is compare-and-swap on the epoch and raises it by one; whoever proposes is checked against the
 * incarnations that are current, so that a process from before a restart changes nothing. The set I of
 * `in` members never becomes empty. */
#include "cluster/state_impl.h"
#include "node/base/rules.h"

bool state_epoch_full(const struct map_object *o)
{
	return (o->epoch & EPOCH_COUNTER_MAX) == EPOCH_COUNTER_MAX;
}

int state_member_find(const struct map_object *o, const struct map_member *r)
{
	for (unsigned i = 0; i < o->member_count; i++)
		if (o->member[i].group == r->group &&
		    o->member[i].group_incarnation == r->group_incarnation &&
		    o->member[i].gen == r->gen)
			return (int)i;
	return -1;
}

/* The node that owns the member's group, whatever the group's incarnation is now. */
static uint16_t member_owner(const struct state *s, const struct map_member *mb)
{
	struct map_group *g = map_group(&s->map, mb->group);

	return g ? g->node : 0;
}

bool state_node_current(const struct state *s, uint16_t node, uint32_t incarnation)
{
	struct map_node *n = map_node(&s->map, node);

	return n && n->incarnation == incarnation && n->state != NODE_DEAD &&
	       n->state != NODE_REMOVED;
}

/* The proposer is the primary, in the incarnation its tenure is bound to, and still in I. */
static bool proposed_by_primary(const struct state *s, const struct map_object *o,
				const struct object_change *ch)
{
	struct map_node *p = map_primary_node(&s->map, o);

	return p && p->id == ch->proposer && o->primary_incarnation == ch->incarnation;
}

/* Once nothing is in quarantine any more, nothing is left to decide about. */
static void undecided_ends(struct map_object *o)
{
	bool kept = false;

	for (unsigned i = 0; i < o->member_count; i++)
		kept |= o->member[i].kept;
	o->undecided &= kept;
}

void state_member_remove(struct state *s, struct map_object *o, unsigned i)
{
	o->member_count--;
	s->members--;
	memmove(&o->member[i], &o->member[i + 1], (o->member_count - i) * sizeof(o->member[0]));
	memset(&o->member[o->member_count], 0, sizeof(o->member[0]));
	if (o->primary > i)
		o->primary--;
	undecided_ends(o);
}

static enum object_refusal drop(struct state *s, struct map_object *o,
				const struct object_change *ch)
{
	int i = state_member_find(o, &ch->replica);

	if (i < 0)
		return OBJ_NOT_MEMBER;
	if (!o->member[i].in)
		return OBJ_NOT_IN;
	if (!state_node_current(s, ch->proposer, ch->incarnation))
		return OBJ_INCARNATION;
	if (!proposed_by_primary(s, o, ch) && member_owner(s, &o->member[i]) != ch->proposer)
		return OBJ_NOT_MEMBER;
	if (map_in_count(o) == 1)
		return OBJ_WOULD_EMPTY;
	o->member[i].in = false;
	return OBJ_DONE;
}

static enum object_refusal promote(struct state *s, struct map_object *o,
				   const struct object_change *ch)
{
	int i = state_member_find(o, &ch->replica);

	if (i < 0)
		return OBJ_NOT_MEMBER;
	if (o->member[i].in)
		return OBJ_IS_IN;
	if (o->member[i].kept)
		return OBJ_KEPT;
	if (!state_node_current(s, ch->proposer, ch->incarnation) ||
	    !map_member_node(&s->map, &o->member[i]))
		return OBJ_INCARNATION;
	if (!proposed_by_primary(s, o, ch))
		return OBJ_NOT_MEMBER;
	o->member[i].in = o->member[i].filled = true;
	return OBJ_DONE;
}

/* Who takes over has its disks: the report that says so may be on its way. What is called failed serves
 * nothing, others rely on that (state_force.c). */
static void group_works(struct state *s, struct map_group *g)
{
	if (g->state != GROUP_FAILED)
		return;
	g->state = GROUP_ACTIVE;
	state_group_changed(s, g);
}

static enum object_refusal takeover(struct state *s, struct map_object *o,
				    const struct object_change *ch, uint32_t epoch)
{
	unsigned old = o->primary;
	int found = -1;

	for (unsigned i = 0; i < o->member_count; i++) {
		struct map_node *n = map_member_node(&s->map, &o->member[i]);

		if (!n || n->id != ch->node ||
		    (ch->replica.group && ch->replica.group != o->member[i].group))
			continue;
		if (found < 0 || (o->member[i].in && !o->member[found].in))
			found = (int)i;
	}
	if (found < 0)
		return OBJ_NOT_MEMBER;
	if (!o->member[found].in && rule(RULE_ONLY_IN))
		return OBJ_NOT_IN;
	if (!state_node_current(s, ch->node, ch->incarnation) && rule(RULE_CURRENT))
		return OBJ_INCARNATION;
	if (ch->proposer != ch->node && member_owner(s, &o->member[old]) != ch->proposer)
		return OBJ_NOT_MEMBER;
	if (!ch->keep && member_owner(s, &o->member[old]) != ch->node &&
	    !state_unsure_stays(s, o, &o->member[old]))
		o->member[old].in = false;
	o->primary = (uint8_t)found;
	o->primary_incarnation = ch->incarnation;
	o->tenure = epoch;
	group_works(s, map_group(&s->map, o->member[found].group));
	return OBJ_DONE;
}

static enum object_refusal place(struct state *s, struct map_object *o,
				 const struct object_change *ch, uint32_t epoch)
{
	struct map_group *g = map_group(&s->map, ch->replica.group);

	if (!g || g->state != GROUP_ACTIVE || g->incarnation != ch->replica.group_incarnation)
		return OBJ_INCARNATION;
	for (unsigned i = 0; i < o->member_count; i++)
		if (o->member[i].group == g->id && o->member[i].group_incarnation == g->incarnation)
			return OBJ_IS_IN;
	if (o->member_count == MEMBERS_MAX || s->members >= MEMBERS_TOTAL_MAX)
		return OBJ_FULL;
	o->member[o->member_count++] = (struct map_member){
		.group = g->id, .group_incarnation = g->incarnation, .gen = epoch};
	s->members++;
	return OBJ_DONE;
}

/* An out replica may hold data that nobody in I has (design: they are kept until I is complete),
 * unless its group lost it, or it was placed and never filled. One of I may go in one step when I
 * keeps the policy's copies without it: each of them has every acknowledged write, and for the
 * primary it is a drop like any other (C1). The primary's entry must stay for as long as it is the
 * primary. */
static enum object_refusal remove_member(struct state *s, struct map_object *o,
					 const struct object_change *ch)
{
	unsigned copies = map_volume(&s->map, object_volume(o->id))->copies;
	int i = state_member_find(o, &ch->replica);
	struct map_group *g;
	bool holds_data;

	if (i < 0)
		return OBJ_NOT_MEMBER;
	if (o->member[i].in && map_in_count(o) <= copies)
		return OBJ_IS_IN;
	if (o->member[i].kept)
		return OBJ_KEPT;
	g = map_group(&s->map, o->member[i].group);
	holds_data = o->member[i].filled && g &&
		     g->incarnation == o->member[i].group_incarnation && g->state != GROUP_REMOVED;
	if ((unsigned)i == o->primary || (holds_data && map_in_count(o) < copies))
		return OBJ_NEEDED;
	state_member_remove(s, o, (unsigned)i);
	return OBJ_DONE;
}

static enum object_refusal change_apply(struct state *s, const struct object_change *ch)
{
	struct map_object *o = map_object(&s->map, ch->object);
	enum object_refusal rc;
	uint32_t epoch;

	if (!o)
		return OBJ_NO_OBJECT;
	if (o->epoch != ch->epoch && rule(RULE_EPOCH))
		return OBJ_CONFLICT;
	if (state_epoch_full(o))
		return OBJ_EPOCH_LIMIT;
	rc = state_unsure_check(s, o, ch);
	if (rc)
		return rc;
	epoch = o->epoch + 1;
	switch (ch->op) {
	case OBJ_DROP:
		rc = drop(s, o, ch);
		break;
	case OBJ_PROMOTE:
		rc = promote(s, o, ch);
		break;
	case OBJ_TAKEOVER:
		rc = takeover(s, o, ch, epoch);
		break;
	case OBJ_PLACE:
		rc = place(s, o, ch, epoch);
		break;
	case OBJ_REMOVE:
		rc = remove_member(s, o, ch);
		break;
	case OBJ_FORCE:
		rc = state_force(s, o, ch, &epoch);
		break;
	case OBJ_QUARANTINE:
		rc = proposed_by_primary(s, o, ch) ? state_quarantine(s, o, ch) : OBJ_NOT_MEMBER;
		break;
	case OBJ_DISCARD:
		rc = state_discard(s, o, ch);
		break;
	case OBJ_SETTLE:
		rc = proposed_by_primary(s, o, ch) ? state_settle(o) : OBJ_NOT_MEMBER;
		break;
	default:
		rc = OBJ_UNKNOWN;
	}
	if (rc)
		return rc;
	CHECK(map_in_count(o) > 0);
	o->epoch = epoch;
	state_object_changed(s, o);
	return OBJ_DONE;
}

int state_object_changes(struct state *s, const struct command *c, struct command_result *out)
{
	out->count = c->object.count;
	for (unsigned i = 0; i < c->object.count; i++)
		out->object[i] = (int8_t)change_apply(s, &c->object.change[i]);
	state_force_audit(s, c, out);
	return 0;
}

/* Regroup. */

static bool member_is_stale(const struct state *s, const struct map_member *mb)
{
	return !mb->in && !map_member_node(&s->map, mb);
}

/* Room for one more member: a free entry, or that of an out replica which is lost anyway. */
static struct map_member *member_room(struct state *s, struct map_object *o)
{
	if (o->member_count < MEMBERS_MAX) {
		s->members++;
		return &o->member[o->member_count++];
	}
	for (unsigned i = 0; i < o->member_count; i++)
		if (member_is_stale(s, &o->member[i]) && i != o->primary)
			return &o->member[i];
	return NULL;
}

/* The group's replicas of the object are lost with its old incarnation: each becomes an out replica
 * of the new one. It keeps its replica generation if the group kept its pages (L5: they have their
 * versions, so it returns by comparison); the new incarnation makes it another replica all the same.
 * Only the last member of I stays as it is, listed under the old incarnation, so
 * that everyone sees that acknowledged writes may be missing. */
static void regroup_object(struct state *s, const struct map_group *g, struct map_object *o,
			   uint32_t old_incarnation, bool keeps_pages)
{
	struct map_member fresh = {
		.group = g->id, .group_incarnation = g->incarnation, .gen = o->epoch + 1};
	int placed = -1;
	bool lost = false;

	for (unsigned i = 0; i < o->member_count; i++) {
		struct map_member *mb = &o->member[i];

		if (mb->group != g->id || mb->group_incarnation == g->incarnation)
			continue;
		if (keeps_pages && mb->group_incarnation == old_incarnation)
			fresh.gen = mb->gen;
		if (mb->in && map_in_count(o) == 1) {
			lost = true;
		} else if (placed < 0) {
			placed = (int)i;
			fresh.filled = keeps_pages && mb->filled;
			fresh.kept = keeps_pages && mb->kept;
			*mb = fresh;
		} else {
			if (o->primary == i)
				o->primary = (uint8_t)placed;
			state_member_remove(s, o, i--);
		}
	}
	if (lost && placed < 0) {
		struct map_member *mb = member_room(s, o);

		if (mb) {
			fresh.filled = keeps_pages;
			*mb = fresh;
			placed = (int)(mb - o->member);
		}
	}
	undecided_ends(o);
	if (placed < 0)
		return;
	o->epoch++;
	state_object_changed(s, o);
}

static bool has_group(const struct map_object *o, const struct map_group *g)
{
	for (unsigned i = 0; i < o->member_count; i++)
		if (o->member[i].group == g->id)
			return true;
	return false;
}

int state_regroup(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_group *g = map_group(&s->map, c->regroup.group);
	struct hnode *h;

	if (!g || g->state == GROUP_REMOVED)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no disk group %u",
				    c->regroup.group);
	out->id = g->id;
	out->number = g->incarnation;
	if (g->node != c->regroup.node)
		return state_refuse(out, -ERR_FOREIGN, "disk group %u belongs to node %u, not %u",
				    g->id, g->node, c->regroup.node);
	if (g->incarnation == c->regroup.new_incarnation &&
	    c->regroup.old_incarnation < c->regroup.new_incarnation)
		return 0; /* the same again */
	if (g->incarnation != c->regroup.old_incarnation ||
	    c->regroup.new_incarnation <= c->regroup.old_incarnation)
		return state_refuse(out, -ERR_STALE,
				    "disk group %u has incarnation %u, not %u: its devices were "
				    "rolled back or copied; add them as a new group",
				    g->id, g->incarnation, c->regroup.old_incarnation);
	for (h = hmap_walk(&s->map.volumes, NULL); h; h = hmap_walk(&s->map.volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			if (has_group(&v->object[i], g) && state_epoch_full(&v->object[i]))
				return state_refuse(out, -ERR_LIMIT,
						    "an object of volume %s used all its epochs: "
						    "copy the volume to a new one",
						    v->name);
	}
	g->incarnation = c->regroup.new_incarnation;
	g->state = GROUP_ACTIVE;
	out->number = g->incarnation;
	state_group_changed(s, g);
	for (h = hmap_walk(&s->map.volumes, NULL); h; h = hmap_walk(&s->map.volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			if (has_group(&v->object[i], g))
				regroup_object(s, g, &v->object[i], c->regroup.old_incarnation,
					       c->regroup.keeps_pages);
	}
	state_event_add(s, 1, "REGROUP", "disk group %u of node %u starts %s as incarnation %u",
			g->id, g->node,
			c->regroup.keeps_pages ? "with its data, without its log," : "empty",
			g->incarnation);
	return 0;
}
