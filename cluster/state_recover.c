/* SPDX-License-Identifier: Apache-2.0 */
/* After a Raft majority was lost for good and one survivor's state goes on alone (ashlard recover).
 *
 * What the lost majority had committed beyond this state is unknown: another primary, a smaller I, writes
 * acknowledged under it. No survivor has applied any of that, or its state would be the one that goes on; but
 * a replica may have followed a primary of the lost time. So nothing of this state is believed before it was
 * held against what the replicas have. Every epoch gets a higher recovery generation, and with it every
 * tenure to come: no (tenure, seq) is given out twice. Every object is *unsure*, and every node *awaited*
 * until it has registered again, which a process of before the recovery cannot. While an object is unsure
 * nobody takes over as long as a node that may hold more of it is awaited, and nobody leaves I but who is
 * gone for good or has shown the new primary that it has less. The primary settles it when it has seen all
 * of them (replica_primary.c); where one that is not in I has more, only a force does. */
#include "cluster/state_impl.h"

#include <stdlib.h>

/* Numbers that the lost time may have given out: clients may know its volumes by theirs, and retries are told
 * apart by those of attachments. */
#define UNKNOWN_VOLUMES	    65536u
#define UNKNOWN_ATTACHMENTS (1u << 20)

#define GENERATION_MAX 255u

static void object_recover(struct state *s, struct map_object *o)
{
	o->epoch += EPOCH_COUNTER_MAX + 1;
	o->unsure = true;
	state_object_changed(s, o);
}

static bool generations_left(const struct state *s)
{
	for (struct hnode *h = hmap_walk(&s->map.volumes, NULL); h; h = hmap_walk(&s->map.volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			if (epoch_generation(v->object[i].epoch) == GENERATION_MAX)
				return false;
	}
	return s->recoveries < UINT16_MAX && s->map.next_volume < UINT32_MAX - UNKNOWN_VOLUMES &&
	       s->map.next_attachment < UINT32_MAX - UNKNOWN_ATTACHMENTS;
}

int state_recover(struct state *s, uint64_t index, uint64_t time_ms, uint16_t node, const char *actor)
{
	const struct map_node *self = map_node(&s->map, node);

	if (!generations_left(s))
		return -ERR_LIMIT;
	s->index = index;
	s->time_ms = time_ms;
	s->actor = actor;
	for (struct hnode *h = hmap_walk(&s->map.nodes, NULL); h; h = hmap_walk(&s->map.nodes, h)) {
		struct map_node *n = container_of(h, struct map_node, by_id);

		n->awaited = n->state == NODE_ACTIVE;
		state_node_changed(s, n);
	}
	for (struct hnode *h = hmap_walk(&s->map.volumes, NULL); h; h = hmap_walk(&s->map.volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			object_recover(s, &v->object[i]);
		v->attach_epoch += MIN(UNKNOWN_ATTACHMENTS, UINT32_MAX - v->attach_epoch);
		state_volume_changed(s, v);
	}
	s->map.next_volume += UNKNOWN_VOLUMES;
	s->map.next_attachment += UNKNOWN_ATTACHMENTS;
	s->token_count = 0; /* one may have been used already */
	memset(s->token, 0, sizeof(s->token));
	s->recoveries++;
	state_event_add(s, 2, "CLUSTER_RECOVERED",
			"the Raft majority was lost; the cluster goes on with what node %s knew of it",
			self ? self->name : "?");
	s->actor = "";
	return 0;
}

/* ---- Unsure objects ---- */

/* Whatever it had, it does not come back. */
static bool gone(const struct state *s, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(&s->map, mb);

	return !n || n->state == NODE_REMOVED || n->state == NODE_DEAD ||
	       map_group(&s->map, mb->group)->state == GROUP_REMOVED;
}

enum object_refusal state_unsure_check(const struct state *s, const struct map_object *o,
				       const struct object_change *ch)
{
	int i = state_member_find(o, &ch->replica);

	if (!o->unsure || ch->op == OBJ_FORCE || ch->op == OBJ_DISCARD || ch->op == OBJ_SETTLE)
		return OBJ_DONE;
	if (ch->op == OBJ_TAKEOVER)
		return map_object_awaits(&s->map, o) ? OBJ_UNSURE : OBJ_DONE;
	if (ch->op == OBJ_DROP && i >= 0 &&
	    (gone(s, &o->member[i]) ||
	     (ch->keep && epoch_generation(o->tenure) == epoch_generation(o->epoch))))
		return OBJ_DONE;
	return OBJ_UNSURE;
}

bool state_unsure_stays(const struct state *s, const struct map_object *o, const struct map_member *mb)
{
	return o->unsure && !gone(s, mb);
}

enum object_refusal state_settle(struct map_object *o)
{
	if (!o->unsure)
		return OBJ_CONFLICT;
	if (epoch_generation(o->tenure) != epoch_generation(o->epoch))
		return OBJ_UNSURE;
	o->unsure = false;
	return OBJ_DONE;
}
