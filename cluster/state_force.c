/* SPDX-License-Identifier: Apache-2.0 */
/* What only an operator may ask for: that an object goes on from a replica that may lack acknowledged writes
 * (force), and that what is in quarantine is given up (discard).
 *
 * A force names the truth: one replica, which alone is in-sync from then on, in a new recovery generation, so
 * that nothing of the lost time can win against it. Every other member is put in quarantine, whatever it
 * holds: nobody fills it, promotes it or purges it, so that the choice can be taken back by forcing the
 * object to it. It is refused while the process that the tenure is bound to may still be serving: that no
 * state can know, an operator must have said it (node remove --dead), or the process is known to be gone.
 *
 * A primary puts a replica in quarantine by itself when it finds, while filling it, that this one has
 * acknowledged writes which it lacks: what it would copy over them may be their last place (T5). */
#include "cluster/state_impl.h"

#define GENERATION_MAX 255u

/* The process of the present tenure may be alive, and may not have heard of any change yet. */
static bool may_serve(const struct state *s, const struct map_object *o)
{
	const struct map_member *pm = &o->member[o->primary];
	const struct map_group *g = map_group(&s->map, pm->group);
	const struct map_node *n = map_member_node(&s->map, pm);

	return n && n->state != NODE_REMOVED && n->state != NODE_DEAD && g->state == GROUP_ACTIVE &&
	       n->incarnation == o->primary_incarnation;
}

enum object_refusal state_force(struct state *s, struct map_object *o, const struct object_change *ch,
				uint32_t *epoch)
{
	int found = state_member_find(o, &ch->replica);
	const struct map_node *n;

	if (found < 0)
		return OBJ_NOT_MEMBER;
	n = map_member_node(&s->map, &o->member[found]);
	if (!n || n->id != ch->node || n->awaited || !state_node_current(s, ch->node, ch->incarnation))
		return OBJ_INCARNATION;
	/* To the primary itself, or by it after it stopped, it hurts nobody. */
	if ((unsigned)found != o->primary && may_serve(s, o) &&
	    map_member_node(&s->map, &o->member[o->primary])->id != ch->proposer)
		return OBJ_SERVED;
	if (epoch_generation(o->epoch) == GENERATION_MAX)
		return OBJ_EPOCH_LIMIT;
	for (unsigned i = 0; i < o->member_count; i++) {
		struct map_member *mb = &o->member[i];

		mb->in = (int)i == found;
		/* One whose group lost it has nothing to be kept. */
		mb->kept = !mb->in && map_member_node(&s->map, mb);
	}
	o->member[found].filled = true;
	o->unsure = o->undecided = false;
	*epoch += EPOCH_COUNTER_MAX + 1;
	o->primary = (uint8_t)found;
	o->primary_incarnation = ch->incarnation;
	o->tenure = *epoch;
	return OBJ_DONE;
}

enum object_refusal state_quarantine(struct state *s, struct map_object *o, const struct object_change *ch)
{
	int found = state_member_find(o, &ch->replica);

	if (found < 0 || !map_member_node(&s->map, &o->member[found]))
		return OBJ_NOT_MEMBER;
	if (o->member[found].in)
		return OBJ_IS_IN;
	if (o->member[found].kept)
		return OBJ_KEPT;
	o->member[found].kept = true;
	o->undecided |= ch->keep;
	return OBJ_DONE;
}

enum object_refusal state_discard(struct state *s, struct map_object *o, const struct object_change *ch)
{
	int found = state_member_find(o, &ch->replica);

	if (found < 0)
		return OBJ_NOT_MEMBER;
	if (!o->member[found].kept)
		return OBJ_NOT_KEPT;
	state_member_remove(s, o, (unsigned)found);
	return OBJ_DONE;
}

struct told {
	uint32_t volume;
	unsigned forced, quarantined, discarded;
};

static void tell(struct state *s, const struct told *t)
{
	const struct map_volume *v = map_volume(&s->map, t->volume);

	if (t->forced)
		state_event_add(s, 2, "DATA_FORCED",
				"volume %s: %u object%s from replicas that may lack acknowledged writes; the "
				"other replicas are in quarantine",
				v->name, t->forced, t->forced == 1 ? " goes on" : "s go on");
	if (t->quarantined)
		state_event_add(s, 2, "DATA_QUARANTINED",
				"volume %s: %u replica%s acknowledged writes that the in-sync ones lack, and "
				"%s put in quarantine",
				v->name, t->quarantined, t->quarantined == 1 ? " has" : "s have",
				t->quarantined == 1 ? "was" : "were");
	if (t->discarded)
		state_event_add(s, 1, "QUARANTINE_DISCARDED",
				"volume %s: %u replica%s in quarantine given up", v->name, t->discarded,
				t->discarded == 1 ? " was" : "s were");
}

void state_force_audit(struct state *s, const struct command *c, const struct command_result *out)
{
	struct told t = {0};

	for (unsigned i = 0; i < c->object.count; i++) {
		const struct object_change *ch = &c->object.change[i];

		if (out->object[i] != OBJ_DONE ||
		    (ch->op != OBJ_FORCE && ch->op != OBJ_QUARANTINE && ch->op != OBJ_DISCARD))
			continue;
		if (object_volume(ch->object) != t.volume) {
			tell(s, &t);
			t = (struct told){.volume = object_volume(ch->object)};
		}
		t.forced += ch->op == OBJ_FORCE;
		t.quarantined += ch->op == OBJ_QUARANTINE;
		t.discarded += ch->op == OBJ_DISCARD;
	}
	tell(s, &t);
}
