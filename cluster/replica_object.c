/* SPDX-License-Identifier: Apache-2.0 */
/* One object of this node, from the moment that a map or a disk names it: its store object, made and purged
 * as the applied map says, and its tick, which decides *that* a tenure begins, that a takeover is proposed or
 * that the replica resigns. How is elsewhere. */
#include "cluster/replica_impl.h"
#include "store/store_device.h"

#include <stdlib.h>

struct object *object_find(struct replicator *r, uint64_t id)
{
	struct hnode *n = hmap_first(&r->by_id, hash_u64(id));

	while (n && container_of(n, struct object, by_id)->id != id)
		n = hmap_next(n);
	return n ? container_of(n, struct object, by_id) : NULL;
}

struct object *object_make(struct replicator *r, uint64_t id)
{
	struct object *o = object_find(r, id);

	if (o)
		return o;
	o = xcalloc(1, sizeof(*o));
	o->r = r;
	o->id = id;
	o->me = -1;
	list_init(&o->busy);
	list_init(&o->dirty_link);
	list_init(&o->holds);
	list_init(&o->in.ack_link);
	list_init(&o->in.waiting);
	list_push_back(&r->objects, &o->link);
	hmap_insert(&r->by_id, &o->by_id, hash_u64(id));
	r->stats.objects++;
	return o;
}

void object_free(struct object *o)
{
	holds_drop_all(o);
	list_del(&o->link);
	list_del(&o->busy);
	list_del(&o->dirty_link);
	list_del(&o->in.ack_link);
	hmap_remove(&o->r->by_id, &o->by_id);
	o->r->stats.objects--;
	free(o);
}

/* The tick looks at it until there is nothing to wait for. */
void object_busy(struct object *o)
{
	if (!o->in_busy)
		list_push_back(&o->r->busy, &o->busy);
	o->in_busy = true;
}

void object_hold(struct object *o)
{
	o->refs++;
}

void object_release(struct object *o)
{
	CHECK(o->refs);
	o->refs--;
}

uint32_t object_blocks(struct object *o)
{
	const struct map_volume *v = map_volume(o->r->map, object_volume(o->id));

	return v ? (uint32_t)(v->object_size >> BLOCK_SHIFT) : 0;
}

/* The replica of this node: a member whose group, in its present incarnation, is open here. */
int replica_here(struct replicator *r, const struct map_object *c, struct group **group)
{
	for (unsigned i = 0; i < c->member_count; i++) {
		struct group *g = replica_group(r, c->member[i].group);

		if (g && g->incarnation == c->member[i].group_incarnation) {
			*group = g;
			return (int)i;
		}
	}
	*group = NULL;
	return -1;
}

bool object_is_primary(const struct object *o)
{
	return o->listed && o->me >= 0 && o->config.primary == o->me &&
	       o->config.member[o->me].in &&
	       (o->config.primary_incarnation == o->r->incarnation || !rule(RULE_OWN_TENURE));
}

/* ---- The store's object ------------------------------------------------------------------------
 */

static void created(struct wait *w, int rc)
{
	struct object *o = container_of(w, struct object, create_wait);

	o->creating = false;
	object_release(o);
	if (rc < 0) {
		object_fail(o, rc);
		return;
	}
	o->store = o->create.object;
	o->seen = MAX(o->seen, store_header(o->store)->seen);
	o->dirty = true;
	object_busy(o);
}

void object_set_policy(struct object *o)
{
	const struct map_volume *v = map_volume(o->r->map, object_volume(o->id));

	if (!v || !o->store)
		return;
	store_object_set_policy(o->store, v->flags & VOLUME_COMPRESSION, v->flags & VOLUME_DEDUP);
	store_object_reduce(o->store, v->reduce);
}

static bool map_knows_us(const struct replicator *r)
{
	const struct map_node *me = map_node(r->map, r->node);

	return me && me->incarnation == r->incarnation;
}

/* The store's object, made if the map lists this replica and it is not there yet. */
static void ensure_store(struct object *o)
{
	uint32_t gen = o->config.member[o->me].gen;
	struct store_object *found;
	int rc;

	if (o->creating || o->group->failed)
		return;
	if (o->store && o->gen >= gen)
		return; /* a generation of the future: this map is older than our disk */
	found = store_object_find(o->group->store, o->r->shard, o->id, gen);
	/* What a map from before this process lists may be gone again; what we have instead is still to be
	 * purged. */
	if (!found && !map_knows_us(o->r))
		return;
	/* Removed and placed again, in one step of our map: what was joined is not this replica. Its primary
	 * may not know yet, and a write from it would make a page of an empty replica pass for its own. */
	if (o->gen != gen)
		inbound_end(o, NAK_NO_REPLICA);
	o->gen = gen;
	o->store = found;
	if (o->store) {
		o->seen = MAX(o->seen, store_header(o->store)->seen);
		object_set_policy(o);
		return;
	}
	o->creating = true;
	o->create_wait.resume = created;
	object_hold(o);
	rc = store_object_create(o->group->store, o->r->shard, &o->create, o->id, gen,
				 object_volume(o->id), &o->create_wait);
	if (rc != PENDING)
		created(&o->create_wait, rc);
	object_set_policy(o);
}

struct deletion {
	struct wait wait;
};

static void deleted(struct wait *w, int rc)
{
	free(container_of(w, struct deletion, wait));
}

/* A process that starts sees old maps first, and one that was made before this replica was says nothing of
 * it: before it was placed (at epoch `gen`), before a tenure that it has seen, or before the regroup of its
 * group, in which it kept its generation. */
static bool map_is_older(const struct object *o, const struct map_object *c)
{
	const struct replicator *r = o->r;
	const struct group *g;

	if (!rule(RULE_PURGE))
		return false;
	if (c->epoch < o->gen || c->epoch < o->seen)
		return true;
	list_for_each(g, &r->groups, link)
	{
		const struct map_group *known = map_group(r->map, g->id);

		if (store_object_find(g->store, r->shard, o->id, o->gen) == o->store)
			return !known || known->incarnation != g->incarnation;
	}
	return true;
}

/* A3, T4: a replica goes only when its volume is gone for good, or when it is not listed any more
 * and there are all copies without it. */
static void purge(struct object *o)
{
	const struct map *m = o->r->map;
	const struct map_volume *v = map_volume(m, object_volume(o->id));
	const struct map_object *c = v ? map_object(m, o->id) : NULL;
	struct deletion *d;
	bool gone = !v && m->next_volume > object_volume(o->id);

	if (c && o->me < 0)
		gone = map_in_count(c) >= v->copies && !map_is_older(o, c);
	if (!gone || !o->store || o->refs || o->primary || (c && o->me >= 0))
		return;
	d = xcalloc(1, sizeof(*d));
	d->wait.resume = deleted;
	log_info("replica", "purging a replica", "object=%llx gen=%u", (unsigned long long)o->id,
		 o->gen);
	inbound_end(o, NAK_NO_REPLICA);
	if (store_object_delete(o->store, &d->wait) != PENDING)
		free(d);
	o->store = NULL;
	o->gen = 0;
	o->seen = 0;
}

/* ---- The applied map ---------------------------------------------------------------------------
 */

/* Nothing is known to be missing or wrong in its store object, which is there. */
static bool is_sound(const struct object *o)
{
	return !o->diverged && !o->behind && !store_is_damaged(o->store);
}

/* C2: the map gives this replica a tenure that is new here, and it is in a state to serve. */
static bool begins_tenure(const struct object *o)
{
	if (!object_is_primary(o) || !o->store || o->gen != o->config.member[o->me].gen || o->group->failed)
		return false;
	if ((o->config.tenure <= o->seen || o->config.tenure <= o->stopped) && rule(RULE_OWN_TENURE))
		return false;
	return is_sound(o) || object_forced(o);
}

/* What the applied map says now about this object becomes what it does. */
void object_apply(struct object *o)
{
	struct replicator *r = o->r;
	const struct map_object *c = map_object(r->map, o->id);
	struct primary *p = o->primary;
	struct group *group;
	int me;

	o->dirty = false;
	o->listed = c != NULL;
	if (!c) {
		primary_end(o, "the object is gone");
		o->me = -1;
		object_busy(o);
		return;
	}
	if (c->epoch < o->config.epoch)
		return; /* an older map than the one acted on */
	me = replica_here(r, c, &group);
	if (me < 0 && o->store && map_is_older(o, c))
		return; /* what this replica is now, its primary tells it */
	if (c->epoch > o->config.epoch)
		o->resigning = false;
	o->config = *c;
	o->me = me;
	o->behind &= me >= 0 && c->member[me].in;
	o->group = group;
	if (p && (!object_is_primary(o) || o->config.tenure != p->tenure ||
		  o->config.member[o->me].gen != o->gen)) {
		o->moved |= r->draining && c->primary != o->me;
		primary_end(o, "the map has another primary or tenure");
		p = NULL;
	} else if (p && p->state == PRIMARY_SERVE && o->config.undecided) {
		primary_end(o, "an operator must decide which replica goes on");
		p = NULL;
	}
	object_busy(o);
	if (o->me < 0) {
		inbound_end(o, NAK_NO_REPLICA);
		return;
	}
	ensure_store(o);
	if (p)
		primary_reconfigure(p);
	else if (begins_tenure(o))
		primary_start(o);
}

/* ---- The tick ----------------------------------------------------------------------------------
 */

/* S1, C2: whether this node should become the object's primary. */
static bool wants_takeover(struct object *o, uint64_t now)
{
	struct replicator *r = o->r;
	const struct map_object *c = &o->config;
	const struct map_member *pm = &c->member[c->primary];
	const struct map_group *g;

	if (o->me < 0 || (!c->member[o->me].in && rule(RULE_ONLY_IN)) || o->primary || !o->store ||
	    o->gen != c->member[o->me].gen || o->resigning || o->group->failed)
		return false;
	if (!is_sound(o) && !object_forced(o))
		return false;
	if (o->seen > c->epoch)
		return false; /* this map is older than what was joined here */
	if (now < o->yield_us || map_object_awaits(r->map, c))
		return false;
	if (c->primary == o->me) /* an earlier incarnation of this process, or a tenure that was stopped */
		return c->primary_incarnation != r->incarnation || c->tenure <= o->seen ||
		       c->tenure <= o->stopped;
	g = map_group(r->map, pm->group);
	if (!pm->in || !g || g->incarnation != pm->group_incarnation)
		return true;
	if (g->node == r->node) /* another group of this node: only its own process can tell */
		return c->primary_incarnation != r->incarnation || !replica_group(r, pm->group) ||
		       replica_group(r, pm->group)->failed;
	return g->node <= NODE_IDS_MAX && peer_suspect(r, o, g->node, now);
}

/* Joined or being joined by the primary that the map names, or by a later one. What an earlier one joined
 * says nothing of it: its session may be gone, or there was none. */
static bool has_primary(const struct object *o)
{
	return o->in.state != IN_NONE && o->in.tenure >= o->config.tenure;
}

/* A member that its primary has not joined: nothing but time tells it that there is none (S1). Once joined,
 * the session watches over that. */
static bool is_orphan(const struct object *o)
{
	return o->listed && o->me >= 0 && o->config.member[o->me].in && !o->primary && !has_primary(o);
}

/* A replica that lost blocks leaves I only to others that are there: with what it has left it serves better
 * than one that cannot be reached. */
static bool others_serve(const struct object *o)
{
	const struct primary *p = o->primary;

	if (!p)
		return o->in.state == IN_JOINED && has_primary(o) && o->config.primary != o->me;
	for (unsigned i = 0; i < p->member_count; i++)
		if (p->member[i].in && p->member[i].want && p->member[i].state == MEMBER_JOINED)
			return p->state == PRIMARY_SERVE;
	return false;
}

/* A replica that cannot do its part says so itself, while there are others in I. */
static bool should_resign(const struct object *o)
{
	if (!o->listed || o->me < 0 || !o->config.member[o->me].in || map_in_count(&o->config) <= 1)
		return false;
	if (o->resigning || o->behind || (o->group && o->group->failed))
		return true;
	return o->store && (store_is_damaged(o->store) || (store_lost(o->store) && others_serve(o)));
}

/* What is proposed about one object is paced; a true answer is taken for a proposal made. */
static bool proposes_now(struct object *o, uint64_t now)
{
	if (now - o->proposed_us < PROPOSE_AGAIN_US || !replica_may_propose(o->r))
		return false;
	o->proposed_us = now;
	return true;
}

/* One look at a busy object; false when there is nothing left to wait for. */
static bool object_tick(struct object *o, uint64_t now)
{
	bool busy = false;

	if (o->dirty || (object_is_primary(o) && !o->primary))
		object_apply(o);
	if (o->primary)
		busy |= primary_tick(o->primary, now);
	if (!list_empty(&o->in.waiting) && o->group)
		inbound_space(o);
	if (o->listed && wants_takeover(o, now)) {
		busy = true;
		if (proposes_now(o, now))
			propose_takeover(o);
	}
	if (should_resign(o)) {
		busy = true;
		if (proposes_now(o, now))
			propose_resign(o);
	}
	if (o->me < 0 || !o->listed) {
		purge(o);
		busy |= o->store != NULL; /* it goes as soon as nothing is under way and the map allows it */
	}
	busy |= o->store && o->listed && o->me >= 0 && o->config.member[o->me].in && store_lost(o->store);
	return busy || is_orphan(o) || o->creating || o->dirty || !list_empty(&o->in.waiting);
}

void objects_tick(struct replicator *r, uint64_t now)
{
	struct list work = LIST_INIT(work), waiting = LIST_INIT(waiting), *n;

	list_splice_back(&work, &r->busy);
	while ((n = list_pop_front(&work))) {
		struct object *o = list_entry(n, struct object, busy);

		o->in_busy = o->join_waits = false;
		if (object_tick(o, now))
			object_busy(o);
		if (o->in_busy && o->join_waits) {
			list_del(&o->busy);
			list_push_back(&waiting, &o->busy);
		}
		if (!o->listed && !o->store && !o->refs && !o->primary && !o->in_busy &&
		    !r->stopping)
			object_free(o);
	}
	/* Those that wait for their turn to join are the first that the next tick looks at. */
	list_splice_back(&waiting, &r->busy);
	list_splice_back(&r->busy, &waiting);
}
