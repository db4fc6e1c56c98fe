/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a node's membership, for good: its disk groups, replicas, attachments and incarnation
 * go with it in one command. Its record stays, so that its number and uuid are never taken for
 * another's and whatever comes back under them is told so.
 *
 * In order: an empty node leaves (a drain went before). Dead: a node that is not coming back leaves
 * with what is on it, if everything has another in-sync replica; what has none is given up only
 * with accept loss, and then stays listed as lost, like that of a lost disk group (regroup): nobody
 * may take older or empty data for it. */
#include "cluster/state_impl.h"

#include <stdio.h>
#include <stdlib.h>

static bool is_on(const struct state *s, const struct map_member *mb, uint16_t node)
{
	const struct map_group *g = map_group(&s->map, mb->group);

	return g && g->node == node;
}

/* In-sync, on a node that is still one of us, in a disk group that works: no other takes anything over. */
static bool is_kept(const struct state *s, const struct map_member *mb, uint16_t node)
{
	const struct map_node *n = map_member_node(&s->map, mb);

	return mb->in && n && n->id != node && n->state == NODE_ACTIVE &&
	       map_group(&s->map, mb->group)->state == GROUP_ACTIVE;
}

/* What one object has there. */
enum stake {
	STAKE_NONE,
	STAKE_SPARE,   /* replicas that are not needed */
	STAKE_PENDING, /* another replica is in-sync, but this one was not dropped or taken over
			  from yet */
	STAKE_LOST,    /* no other replica is in-sync */
};

static enum stake stake_of(const struct state *s, const struct map_object *o, uint16_t node)
{
	bool here = false, in_here = false, kept = false;

	for (unsigned i = 0; i < o->member_count; i++) {
		if (!is_on(s, &o->member[i], node))
			continue;
		here = true;
		in_here |= o->member[i].in || i == o->primary;
	}
	for (unsigned i = 0; here && i < o->member_count; i++)
		kept |= is_kept(s, &o->member[i], node);
	/* Of an unsure object nobody takes over before this node is back, or gone. */
	return !here			? STAKE_NONE
	       : !kept			? STAKE_LOST
	       : in_here && !o->unsure	? STAKE_PENDING
					: STAKE_SPARE;
}

struct stakes {
	unsigned objects, pending, lost, full; /* full: all its epochs are used */
	unsigned kept;                         /* in quarantine there */
	unsigned unsure;                       /* it may have acknowledged writes of them that others lack */
	char volumes[128];                     /* names of those that lose something */
};

static void stakes_name(struct stakes *k, const struct map_volume *v)
{
	size_t n = strlen(k->volumes);

	if (n + strlen(v->name) + 3 < sizeof(k->volumes))
		snprintf(k->volumes + n, sizeof(k->volumes) - n, "%s%s", n ? ", " : "", v->name);
}

static bool keeps(const struct state *s, const struct map_object *o, uint16_t node)
{
	for (unsigned i = 0; i < o->member_count; i++)
		if (o->member[i].kept && is_on(s, &o->member[i], node))
			return true;
	return false;
}

/* Since a recovery this node was not heard: what was written there in the lost time is known to nobody. */
static bool may_have_more(const struct state *s, const struct map_object *o, uint16_t node)
{
	for (unsigned i = 0; o->unsure && i < o->member_count; i++)
		if (is_on(s, &o->member[i], node) && map_member_awaited(&s->map, &o->member[i]))
			return true;
	return false;
}

static struct stakes stakes_count(const struct state *s, uint16_t node)
{
	struct stakes k = {0};
	size_t count;
	struct map_volume **v = map_volumes_sorted(&s->map, &count);

	for (size_t i = 0; i < count; i++) {
		unsigned lost = k.lost;

		for (uint32_t x = 0; x < v[i]->objects; x++) {
			const struct map_object *o = &v[i]->object[x];
			enum stake stake = stake_of(s, o, node);

			k.objects += stake != STAKE_NONE;
			k.pending += stake == STAKE_PENDING;
			k.lost += stake == STAKE_LOST;
			k.full += stake == STAKE_SPARE && state_epoch_full(o);
			k.kept += keeps(s, o, node);
			k.unsure += stake == STAKE_SPARE && may_have_more(s, o, node);
		}
		if (k.lost != lost)
			stakes_name(&k, v[i]);
	}
	free(v);
	return k;
}

bool state_node_empty(const struct state *s, uint16_t node)
{
	for (struct hnode *h = hmap_walk(&s->map.volumes, NULL); h;
	     h = hmap_walk(&s->map.volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t x = 0; x < v->objects; x++)
			for (unsigned i = 0; i < v->object[x].member_count; i++)
				if (is_on(s, &v->object[x].member[i], node))
					return false;
	}
	return true;
}

uint32_t state_node_objects(const struct state *s, uint16_t node)
{
	return stakes_count(s, node).objects;
}

/* Through whose gateway somebody works, and it was heard of lately. */
static const struct map_attachment *attached(const struct state *s, uint16_t node, uint64_t now_ms)
{
	const struct map_attachment *found = NULL;

	for (struct hnode *h = hmap_walk(&s->map.attachments, NULL); h;
	     h = hmap_walk(&s->map.attachments, h)) {
		const struct map_attachment *a = container_of(h, struct map_attachment, by_id);
		const struct map_node *n = a->revoked ? NULL : map_holder_node(&s->map, a->holder);

		if (n && n->id == node && map_attachment_left_ms(a, now_ms) &&
		    (!found || a->id < found->id))
			found = a;
	}
	return found;
}

static unsigned others(const struct state *s, uint16_t node)
{
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&s->map.nodes, NULL); h; h = hmap_walk(&s->map.nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		count += n->id != node && n->state == NODE_ACTIVE;
	}
	return count;
}

unsigned state_node_quarantined(const struct state *s, uint16_t node)
{
	return stakes_count(s, node).kept;
}

unsigned state_node_unsure(const struct state *s, uint16_t node)
{
	return stakes_count(s, node).unsure;
}

bool state_node_may_leave(const struct state *s, uint16_t node, uint64_t now_ms, char why[200])
{
	const struct map_attachment *a = attached(s, node, now_ms);
	const struct map_volume *v = a ? map_volume(&s->map, a->volume) : NULL;
	struct stakes k = stakes_count(s, node);

	if (!others(s, node))
		snprintf(why, 200, "it is the only node of the cluster");
	else if (k.objects && k.objects == k.kept)
		snprintf(why, 200,
			 "%u object%s a replica in quarantine there: discard it first", k.kept,
			 k.kept == 1 ? " has" : "s have");
	else if (k.objects)
		snprintf(why, 200, "%u object%s a replica there", k.objects,
			 k.objects == 1 ? " has" : "s have");
	else if (v)
		snprintf(why, 200,
			 "volume %.63s is attached through it: detach it, or attach it elsewhere",
			 v->name);
	else
		return true;
	return false;
}

/* ---- The command ---- */

static int dead_check(const struct state *s, const struct map_node *n, bool accept_loss,
		      struct stakes *k, struct command_result *out)
{
	*k = stakes_count(s, n->id);
	if (!others(s, n->id))
		return state_refuse(out, -ERR_REFUSED, "node %s is the only node of the cluster",
				    n->name);
	if (k->full)
		return state_refuse(
			out, -ERR_LIMIT,
			"%u object%s used all epochs: copy what is in their volumes to new ones first",
			k->full, k->full == 1 ? " has" : "s have");
	if (k->pending)
		return state_refuse(
			out, -ERR_BUSY,
			"%u object%s not failed over from node %s yet: try again in a moment", k->pending,
			k->pending == 1 ? " has" : "s have", n->name);
	out->number = k->lost;
	if (k->lost && !accept_loss)
		return state_refuse(
			out, -ERR_INCOMPLETE,
			"%u object%s no other in-sync replica that works than on node %s, of %s: "
			"that data would be lost",
			k->lost, k->lost == 1 ? " has" : "s have", n->name, k->volumes);
	if (k->kept && !accept_loss)
		return state_refuse(out, -ERR_INCOMPLETE,
				    "%u object%s a replica in quarantine on node %s, which may be the "
				    "only one with some acknowledged writes: ashlar quarantine discard gives "
				    "them up",
				    k->kept, k->kept == 1 ? " has" : "s have", n->name);
	if (k->unsure && !accept_loss)
		return state_refuse(out, -ERR_INCOMPLETE,
				    "since the cluster was recovered node %s was not heard, and it may be "
				    "the only one with some acknowledged writes of %u object%s: they would "
				    "be lost",
				    n->name, k->unsure, k->unsure == 1 ? "" : "s");
	return 0;
}

static void drop_replicas(struct state *s, struct map_object *o, uint16_t node)
{
	for (unsigned i = 0; i < o->member_count;)
		if (!is_on(s, &o->member[i], node))
			i++;
		else if (i == o->primary)
			o->member[i++].in = false; /* unsure; its entry stays until somebody took over */
		else
			state_member_remove(s, o, i);
	o->epoch++;
	state_object_changed(s, o);
}

/* Those that have no other in-sync replica keep their entry, under a group incarnation that is
 * gone. */
static void drop_all_replicas(struct state *s, uint16_t node)
{
	size_t count;
	struct map_volume **v = map_volumes_sorted(&s->map, &count);

	for (size_t i = 0; i < count; i++)
		for (uint32_t x = 0; x < v[i]->objects; x++)
			if (stake_of(s, &v[i]->object[x], node) == STAKE_SPARE)
				drop_replicas(s, &v[i]->object[x], node);
	free(v);
}

static void remove_groups(struct state *s, uint16_t node)
{
	size_t count;
	struct map_group **g = map_groups_sorted(&s->map, &count);

	for (size_t i = 0; i < count; i++) {
		if (g[i]->node != node || g[i]->state == GROUP_REMOVED)
			continue;
		g[i]->state = GROUP_REMOVED;
		g[i]->incarnation++;
		state_group_changed(s, g[i]);
	}
	free(g);
}

int state_node_remove(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_node *n = map_node(&s->map, c->node_remove.node);
	bool dead = c->node_remove.flags & NODE_REMOVE_DEAD;
	struct stakes k = {0};
	char why[200];
	int rc = 0;

	if (!n)
		return state_refuse(out, -ERR_NOT_FOUND, "node %u is not in the cluster",
				    c->node_remove.node);
	out->id = n->id;
	if (n->state == NODE_REMOVED)
		return 0; /* the same again */
	if (c->node_remove.flags & ~(NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS))
		return state_refuse(out, -ERR_INVALID, "node %s: unknown way to remove it",
				    n->name);
	if (n->incarnation != c->node_remove.incarnation)
		return state_refuse(out, -ERR_STALE, "node %s was started meanwhile", n->name);
	if (dead)
		rc = dead_check(s, n, c->node_remove.flags & NODE_REMOVE_ACCEPT_LOSS, &k, out);
	else if (!state_node_may_leave(s, n->id, s->time_ms, why))
		rc = state_refuse(out, -ERR_BUSY, "node %s cannot be removed: %s", n->name, why);
	if (rc)
		return rc;
	drop_all_replicas(s, n->id);
	remove_groups(s, n->id);
	state_attachments_of_node_end(s, n->id);
	n->state = NODE_REMOVED;
	n->maintenance_since_ms = n->maintenance_until_ms = 0;
	memset(n->maintenance_reason, 0, sizeof(n->maintenance_reason));
	/* Records of removed nodes stay: they are kept small. */
	memset(n->fault_set, 0, sizeof(n->fault_set));
	memset(n->address, 0, sizeof(n->address));
	memset(n->admin, 0, sizeof(n->admin));
	state_node_changed(s, n);
	state_jobs_of_node_end(s, n->id);
	state_event_add(s, dead ? 1 : 0, "NODE_REMOVED", "node %s (number %u) was removed%s",
			n->name, n->id, dead ? " without it" : "");
	if (k.kept)
		state_event_add(s, 1, "QUARANTINE_DISCARDED",
				"with node %s replicas in quarantine of %u object%s were given up", n->name,
				k.kept, k.kept == 1 ? "" : "s");
	if (k.unsure)
		state_event_add(s, 2, "DATA_GIVEN_UP",
				"node %s was not heard since the cluster was recovered: what it alone may "
				"have of %u object%s was given up",
				n->name, k.unsure, k.unsure == 1 ? "" : "s");
	if (k.lost)
		state_event_add(s, 2, "DATA_GIVEN_UP",
				"with node %s %u object%s given up that had no other in-sync replica, of %s",
				n->name, k.lost, k.lost == 1 ? " was" : "s were", k.volumes);
	return 0;
}
