/* SPDX-License-Identifier: Apache-2.0 */
/* The disk groups of this node, as the replicator of one shard sees them: opened and closed under it, failed,
 * full and with room again. */
#include "cluster/replica_impl.h"

#include <stdlib.h>

struct group *replica_group(struct replicator *r, uint16_t id)
{
	struct group *g;

	list_for_each(g, &r->groups, link) if (g->id == id) return g;
	return NULL;
}

struct adoption {
	struct replicator *r;
	struct group *g;
};

/* What is on disk is known by name even before the map speaks of it, so that it can be purged. */
static void adopt(void *arg, struct store_object *so)
{
	struct adoption *a = arg;
	struct object *o = object_make(a->r, store_object_id(so));

	if (o->store)
		return;
	o->store = so;
	o->gen = store_object_gen(so);
	o->group = a->g;
	o->seen = MAX(o->seen, store_header(so)->seen);
	object_set_policy(o); /* what the map says already; nothing may change in it for a long time */
	object_busy(o);
}

static void space(struct wait *w, int rc)
{
	struct group *g = container_of(w, struct group, space_wait);
	struct object *o;

	g->space_waiting = false;
	list_for_each(o, &g->r->objects, link) if (o->group == g && !list_empty(&o->in.waiting))
		inbound_space(o);
	g->r->gate_open = true;
	replica_arm(g->r);
}

void group_wait_space(struct group *g)
{
	int rc;

	if (g->space_waiting || g->failed)
		return;
	g->space_waiting = true;
	rc = store_wait_space(g->store, g->r->shard, &g->space_link, &g->space_wait);
	/* Room again already, or a store that stops: the tick tries again. */
	if (rc != PENDING)
		g->space_waiting = false;
}

void replicator_store_add(struct replicator *r, uint16_t group, struct store *s)
{
	struct group *g = xcalloc(1, sizeof(*g));
	struct store_identity id;
	struct adoption a = {r, g};

	store_identity(s, &id);
	g->r = r;
	g->id = group;
	g->incarnation = id.group_incarnation;
	g->store = s;
	g->space_wait.resume = space;
	list_init(&g->space_link);
	list_push_back(&r->groups, &g->link);
	store_object_each(s, r->shard, adopt, &a);
	session_credits_keep(r, g);
	store_on_damage(s, r->shard, damage_told, r);
	r->rescan = true;
	replicator_map_done(r);
}

/* A store call failed. A device, log or database that failed takes its group with it; anything else
 * (the store is being stopped, the object was deleted) ends only what this object does here. */
void object_fail(struct object *o, int rc)
{
	if (o->group &&
	    (rc == -ERR_DEVICE || rc == -ERR_LOG_LOST || rc == -ERR_MAP_LOST || rc == -EIO)) {
		group_fail(o->group, rc);
		return;
	}
	if (rc != -ERR_CLOSED)
		log_error("replica", "the store refused", "object=%llx reason=%s",
			  (unsigned long long)o->id, err_name(rc));
	primary_end(o, "the store refused");
	inbound_end(o, rc == -ERR_CLOSED ? NAK_NO_REPLICA : NAK_FAILED);
}

/* The group serves nothing more: its objects stop here, whatever else they were. */
void group_fail(struct group *g, int code)
{
	struct replicator *r = g->r;
	struct object *o;

	if (g->failed)
		return;
	g->failed = code;
	log_error("replica", "disk group failed", "group=%u reason=%s", g->id, err_name(code));
	list_for_each(o, &r->objects, link)
	{
		if (o->group != g)
			continue;
		primary_end(o, "its disk group failed");
		inbound_end(o, NAK_FAILED);
		object_busy(o);
	}
	r->hooks->group_failed(r->ctx, g->id, code);
}

void replicator_store_failed(struct replicator *r, uint16_t group, int code)
{
	struct group *g = replica_group(r, group);

	if (g)
		group_fail(g, code);
}

/* A replica that the map does not list any more waits there to be purged, and has no group. */
static bool stands_in(const struct object *o, const struct group *g)
{
	return o->group == g ||
	       (o->store && store_object_find(g->store, g->r->shard, o->id, o->gen) == o->store);
}

void replicator_store_remove(struct replicator *r, uint16_t group)
{
	struct group *g = replica_group(r, group);
	struct object *o;

	if (!g)
		return;
	list_for_each(o, &r->objects, link)
	{
		if (!stands_in(o, g))
			continue;
		primary_end(o, "its disk group is closed");
		inbound_end(o, NAK_NO_REPLICA);
		o->store = NULL;
		o->group = NULL;
		o->me = -1;
		o->gen = 0;
		/* Of what is on the disks: it is found again when they are opened, or they are not
		 * what they were. `seen` stays: what this process promised to peers holds while it
		 * lives. */
		o->diverged = o->behind = o->no_space = false;
	}
	store_on_damage(g->store, r->shard, NULL, NULL);
	list_del(&g->link);
	list_del(&g->space_link);
	if (g->window && !g->failed)
		store_grant_return(g->store, g->window);
	free(g);
}

/* Blocks of replicas here were found to be lost: each looks whether it should resign. */
static void group_look(struct group *g)
{
	struct object *o;

	list_for_each(o, &g->r->objects, link) if (o->group == g) object_busy(o);
}

void groups_tick(struct replicator *r)
{
	struct group *g;
	struct store_stats st;

	list_for_each(g, &r->groups, link)
	{
		store_stats(g->store, &st);
		g->fill = (uint16_t)MIN(st.log_fill_permyriad, 10000u);
		g->destage_rate = st.destage_blocks_per_s;
		if (st.failed && !g->failed)
			group_fail(g, st.failed);
		if (st.losses != g->losses)
			group_look(g);
		g->losses = st.losses;
	}
}
