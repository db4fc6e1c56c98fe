/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a replicator: stores, objects as the applied map lists them, the tick and the end-of-turn
 * hook, and what people see. Decides *that* a tenure begins or a replica is made or purged; how is
 * elsewhere. */
#include "cluster/replica_impl.h"
#include "store/store_device.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const struct replicator_times replicator_default_times = {
	.beacon_ms = 150,
	.beacon_idle_ms = 1000,
	.lease_ms = 450,
	.grace_ms = 600,
	.commit_ms = 50,
	.session_gone_ms = 300,
	.ack_ms = 1000,
	.silence_ms = 2000,
	.slow_log_ms = 1000,
};

void replica_event(struct replicator *r, uint8_t severity, const char *code, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (r->hooks->event)
		r->hooks->event(r->ctx, severity, code, text); /* and logs it */
	else
		log_warn("replica", code, "text=\"%s\"", text);
}

void replica_arm(struct replicator *r)
{
	turn_end_arm(r->loop, &r->turn, TURN_LOG);
}

/* False: this turn's command is full. Whoever paces its proposals asks before it notes the time, so that
 * what finds no place comes with the next tick, not a pause later: a lost node has thousands of objects. */
bool replica_may_propose(const struct replicator *r)
{
	return r->change_count < OBJECT_CHANGES_MAX;
}

void replica_propose(struct replicator *r, const struct object_change *c)
{
	if (!replica_may_propose(r))
		return; /* proposed again anyway */
	r->changes[r->change_count++] = *c;
	replica_arm(r);
}

/* ---- Objects ------------------------------------------------------------------------------------
 */

struct object *object_find(struct replicator *r, uint64_t id)
{
	struct hnode *n = hmap_first(&r->by_id, hash_u64(id));

	while (n && container_of(n, struct object, by_id)->id != id)
		n = hmap_next(n);
	return n ? container_of(n, struct object, by_id) : NULL;
}

static struct object *object_make(struct replicator *r, uint64_t id)
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

static void object_free(struct object *o)
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

struct group *replica_group(struct replicator *r, uint16_t id)
{
	struct group *g;

	list_for_each(g, &r->groups, link) if (g->id == id) return g;
	return NULL;
}

/* The replica of this node: a member whose group, in its present incarnation, is open here. */
static int find_me(struct replicator *r, const struct map_object *c, struct group **group)
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

static void set_policy(struct object *o)
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
	o->gen = gen;
	o->store = found;
	if (o->store) {
		o->seen = MAX(o->seen, store_header(o->store)->seen);
		set_policy(o);
		return;
	}
	o->creating = true;
	o->create_wait.resume = created;
	object_hold(o);
	rc = store_object_create(o->group->store, o->r->shard, &o->create, o->id, gen,
				 object_volume(o->id), &o->create_wait);
	if (rc != PENDING)
		created(&o->create_wait, rc);
	set_policy(o);
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

/* What the applied map says now about this object becomes what it does. */
static void object_apply(struct object *o)
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
	me = find_me(r, c, &group);
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
	}
	object_busy(o);
	if (o->me < 0) {
		inbound_end(o, NAK_NO_REPLICA);
		return;
	}
	ensure_store(o);
	if (p)
		primary_reconfigure(p);
	else if (object_is_primary(o) && o->store && o->gen == o->config.member[o->me].gen &&
		 ((o->config.tenure > o->seen && o->config.tenure > o->stopped) || !rule(RULE_OWN_TENURE)) &&
		 !o->group->failed &&
		 ((!store_is_damaged(o->store) && !o->diverged && !o->behind) || object_forced(o)))
		primary_start(o);
}

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
	if ((o->diverged || o->behind || store_is_damaged(o->store)) && !object_forced(o))
		return false;
	if (o->seen > c->epoch)
		return false; /* this map is older than what was joined here */
	if (now < o->yield_us || map_object_awaits(r->map, c))
		return false;
	if (c->primary ==
	    o->me) /* an earlier incarnation of this process, or a tenure that was stopped */
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
		if (now - o->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(o->r)) {
			o->proposed_us = now;
			propose_takeover(o);
		}
	}
	/* A replica that cannot do its part says so itself (resign). */
	if (o->listed && o->me >= 0 && o->config.member[o->me].in && map_in_count(&o->config) > 1 &&
	    (o->resigning || o->behind || (o->group && o->group->failed) ||
	     (o->store && (store_is_damaged(o->store) || (store_lost(o->store) && others_serve(o)))))) {
		busy = true;
		if (now - o->proposed_us >= PROPOSE_AGAIN_US && replica_may_propose(o->r)) {
			o->proposed_us = now;
			propose_resign(o);
		}
	}
	if (o->me < 0 || !o->listed) {
		purge(o);
		busy |= o->store != NULL; /* it goes as soon as nothing is under way and the map allows it */
	}
	busy |= o->store && o->listed && o->me >= 0 && o->config.member[o->me].in && store_lost(o->store);
	return busy || is_orphan(o) || o->creating || o->dirty || !list_empty(&o->in.waiting);
}

void governor_now(struct replicator *r)
{
	uint64_t now = loop_mono_us(r->loop);

	governor_tick(&r->governor, now, r->hooks->wall_ms ? r->hooks->wall_ms(r->ctx) * 1000 : now);
}

static void copy_next(struct timer *t)
{
	fills_run(container_of(t, struct replicator, copy_timer));
}

/* Blocks of replicas here were found to be lost: each looks whether it should resign. */
static void group_look(struct group *g)
{
	struct object *o;

	list_for_each(o, &g->r->objects, link) if (o->group == g) object_busy(o);
}

static void tick(struct timer *t)
{
	struct replicator *r = container_of(t, struct replicator, tick);
	uint64_t now = now_us(r);
	struct list work = LIST_INIT(work), waiting = LIST_INIT(waiting), *n;
	struct group *g;
	struct store_stats st;

	governor_now(r);
	session_tick(r, now);
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
	moves_tick(r, now);
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
	list_splice_back(&waiting, &r->busy);
	list_splice_back(&r->busy, &waiting);
	damage_tick(r);
	audit_tick(r);
	if (!list_empty(&r->gated)) {
		r->gate_open = true;
		replica_arm(r);
	}
	timer_set(&r->tick, TICK_US);
}

static void pace(struct timer *t)
{
	struct replicator *r = container_of(t, struct replicator, pace);

	r->gate_open = true;
	replica_arm(r);
}

static void turn_end(struct turn_end *t)
{
	struct replicator *r = container_of(t, struct replicator, turn);

	ops_run(r);
	sessions_ask(r);
	moves_run(r);
	session_acks(r);
	if (r->change_count) {
		r->hooks->propose(r->ctx, r->changes, r->change_count);
		r->change_count = 0;
	}
}

/* ---- The map ------------------------------------------------------------------------------------
 */

static void mark(struct replicator *r, uint64_t id)
{
	struct object *o = object_find(r, id);
	const struct map_object *c = map_object(r->map, id);
	struct group *g;

	if (object_shard(id, r->shards) != r->shard)
		return;
	/* Only objects with a replica here are kept. */
	if (!o && c && find_me(r, c, &g) >= 0)
		o = object_make(r, id);
	if (!o)
		return;
	list_del(&o->dirty_link);
	list_push_back(&r->dirty, &o->dirty_link);
}

static void mark_volume(struct replicator *r, uint32_t volume)
{
	const struct map_volume *v = map_volume(r->map, volume);

	if (v && v->object)
		for (uint32_t i = 0; i < v->objects; i++)
			mark(r, object_id(volume, i));
}

/* By number, not by looking through all objects: a map that is read at a start has as many volumes. */
static void volume_changed(struct replicator *r, uint32_t volume)
{
	const struct map_volume *v = map_volume(r->map, volume);

	mark_volume(r, volume);
	for (uint32_t i = 0; v && i < v->objects; i++) {
		struct object *o = object_find(r, object_id(volume, i));

		if (o)
			set_policy(o);
	}
}

/* The settings are per node; shards share them evenly. */
static void limits_changed(struct replicator *r)
{
	const struct map_limits *l = &r->map->limits;

	governor_limits(&r->governor, ((uint64_t)l->floor_mib << 20) / r->shards,
			((uint64_t)l->limit_mib << 20) / r->shards);
}

void replicator_map_changed(struct replicator *r, enum map_record kind, uint64_t id)
{
	struct object *o;

	switch (kind) {
	case MAP_REC_OBJECT:
		mark(r, id);
		break;
	case MAP_REC_VOLUME:
		volume_changed(r, (uint32_t)id);
		break;
	case MAP_REC_VOLUME_GONE:
		list_for_each(o, &r->objects, link) if (object_volume(o->id) == id) mark(r, o->id);
		break;
	case MAP_REC_NODE:
	case MAP_REC_GROUP:
		r->rescan = true;
		break;
	case MAP_REC_ATTACHMENT:
	case MAP_REC_ATTACHMENT_GONE:
		r->gate_open = true; /* what waits at the gate may be fenced now */
		replica_arm(r);
		break;
	case MAP_REC_LIMITS:
		limits_changed(r);
		break;
	}
}

void replicator_map_done(struct replicator *r)
{
	const struct map_node *n = map_node(r->map, r->node);
	struct list *at;
	struct object *o;

	if (n && n->incarnation > r->incarnation) {
		r->hooks->superseded(r->ctx);
		return;
	}
	if (r->rescan) {
		r->rescan = false;
		for (struct hnode *v = hmap_walk(&r->map->volumes, NULL); v;
		     v = hmap_walk(&r->map->volumes, v))
			mark_volume(r, container_of(v, struct map_volume, by_id)->id);
		list_for_each(o, &r->objects, link) mark(r, o->id);
	}
	r->homes_look = true;
	while ((at = list_pop_front(&r->dirty)))
		object_apply(list_entry(at, struct object, dirty_link));
}

/* ---- Stores -------------------------------------------------------------------------------------
 */

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
	set_policy(o); /* what the map says already; nothing may change in it for a long time */
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

/* ---- Life ---------------------------------------------------------------------------------------
 */

struct replicator *replicator_create(const struct replicator_config *cfg)
{
	struct replicator *r = xcalloc(1, sizeof(*r));

	r->loop = cfg->loop;
	r->pool = cfg->pool;
	r->map = cfg->map;
	r->shard = cfg->shard;
	r->shards = cfg->shards;
	r->node = cfg->node;
	r->incarnation = cfg->incarnation;
	r->confirm_reads = cfg->confirm_reads;
	r->times = cfg->times ? cfg->times : &replicator_default_times;
	r->hooks = cfg->hooks;
	r->ctx = cfg->ctx;
	r->start_us = now_us(r);
	r->peers = xcalloc(NODE_IDS_MAX + 1, sizeof(*r->peers));
	r->changes = xcalloc(OBJECT_CHANGES_MAX, sizeof(*r->changes));
	list_init(&r->groups);
	list_init(&r->sessions);
	list_init(&r->ghosts);
	list_init(&r->objects);
	list_init(&r->busy);
	list_init(&r->dirty);
	list_init(&r->op_waiting);
	list_init(&r->ready);
	list_init(&r->gated);
	list_init(&r->moves);
	list_init(&r->arrivals_free);
	list_init(&r->damages);
	audit_create(r);
	hmap_init(&r->by_id);
	pool_init(&r->ops, "replica operations", sizeof(struct io_op), cfg->ops ? cfg->ops : 1024);
	turn_end_init(&r->turn, turn_end);
	timer_init(&r->pace, r->loop, pace);
	timer_init(&r->copy_timer, r->loop, copy_next);
	list_init(&r->fills);
	governor_init(&r->governor, loop_mono_us(r->loop));
	timer_init(&r->tick, r->loop, tick);
	timer_set(&r->tick, TICK_US);
	r->rescan = true;
	return r;
}

void replicator_destroy(struct replicator *r)
{
	struct list *n;
	struct object *o;
	struct session *s, *tmp;

	r->stopping = true;
	list_for_each(o, &r->objects, link)
	{
		primary_end(o, "the process stops");
		inbound_void(o);
		holds_drop_all(o);
	}
	ops_destroy(r);
	for (unsigned node = 1; node <= NODE_IDS_MAX; node++)
		for (unsigned i = 0; i < SHARDS_MAX; i++)
			if (r->peers[node].stream[i])
				replicator_stream_down(r, (uint16_t)node, (uint16_t)i, -ERR_CLOSED);
	list_for_each_safe(s, tmp, &r->ghosts, link) free(s);
	timer_fini(&r->tick);
	timer_fini(&r->pace);
	timer_fini(&r->copy_timer);
	turn_end_disarm(&r->turn);
	damage_destroy(r);
	audit_destroy(r);
	while (!list_empty(&r->objects))
		object_free(list_first(&r->objects, struct object, link));
	while ((n = list_pop_front(&r->arrivals_free)))
		free(list_entry(n, struct arrival, link));
	while ((n = list_pop_front(&r->groups)))
		free(list_entry(n, struct group, link));
	hmap_fini(&r->by_id);
	pool_fini(&r->ops);
	free(r->peers);
	free(r->changes);
	free(r);
}

/* ---- For people ---------------------------------------------------------------------------------
 */

static const char *broken(const struct object *o)
{
	return o->creating			? NULL
	       : !o->store || !o->group		? "it is not there"
	       : o->group->failed		? "its disk group failed"
	       : o->diverged			? "its data diverged"
	       : o->behind			? "it lacks writes that were acknowledged"
	       : store_is_damaged(o->store)	? "its log is damaged: acknowledged writes may be missing"
						: NULL;
}

static void info(struct object *o, struct replica_info *out)
{
	struct primary *p = o->primary;

	*out = (struct replica_info){.object = o->id, .epoch = o->config.epoch, .seen = o->seen};
	out->broken = p ? primary_conflict(p) : o->me < 0 ? NULL : broken(o);
	out->serving = p && p->state == PRIMARY_SERVE;
	out->present = o->store && o->group && !o->group->failed && !o->creating;
	if (o->store) {
		out->last = store_last(o->store);
		out->commit = store_commit_version(o->store);
	}
	if (p) {
		out->role = REPLICA_PRIMARY;
		out->state = primary_state_text(p);
		for (unsigned i = 0; i < p->member_count; i++) {
			out->want += p->member[i].want;
			out->members_joined += p->member[i].state == MEMBER_JOINED;
			if (p->member[i].fill)
				out->pages_to_copy += fill_left(p->member[i].fill);
		}
		out->want++;
		return;
	}
	out->state = !o->listed                     ? "not in the map"
		     : o->me >= 0 && o->config.member[o->me].kept ? "in quarantine: an operator must decide"
		     : map_object_awaits(o->r->map, &o->config)
			     ? "recovered: waits for a node to come back, or to be removed"
		     : o->creating                  ? "being created"
		     : out->broken		    ? out->broken
		     : o->no_space                  ? "its disk group is full: it waits for space"
		     : o->in.state == IN_JOINED     ? "joined"
		     : o->in.state != IN_NONE       ? "joining"
						    : "waits for its primary";
	if (o->me < 0)
		return;
	out->role = o->config.member[o->me].in ? REPLICA_SECONDARY
		    : o->in.state != IN_NONE   ? REPLICA_SYNCING
					       : REPLICA_OUT;
}

bool replicator_info(struct replicator *r, uint64_t object, struct replica_info *out)
{
	struct object *o = object_find(r, object);

	if (o)
		info(o, out);
	return o != NULL;
}

/* The last one of I, and nothing that comes back by itself makes it serve. */
static bool is_undecided(const struct object *o)
{
	if (o->primary)
		return primary_conflict(o->primary) != NULL;
	return object_is_primary(o) && map_in_count(&o->config) == 1 && o->store && o->group &&
	       !o->group->failed && (o->diverged || o->behind || store_is_damaged(o->store));
}

void replicator_stats(struct replicator *r, struct replicator_stats *out)
{
	struct object *o;

	*out = r->stats;
	out->primaries = out->serving = out->undecided = 0;
	out->copy_rate = r->governor.copied_rate;
	out->copy_allowed = r->governor.rate;
	out->copy_cost_permille = list_empty(&r->fills) ? 0 : r->governor.cost_permille;
	list_for_each(o, &r->objects, link)
	{
		out->primaries += o->primary != NULL;
		out->serving += o->primary && o->primary->state == PRIMARY_SERVE;
		out->undecided += is_undecided(o);
		for (unsigned i = 0; o->primary && i < o->primary->member_count; i++)
			if (o->primary->member[i].fill)
				out->copy_left_bytes += (uint64_t)fill_left(o->primary->member[i].fill) *
							PAGE_BLOCKS * BLOCK_SIZE;
	}
}
