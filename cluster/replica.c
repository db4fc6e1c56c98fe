/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a replicator: what it proposes and tells, the map as it changes, the tick and the end-of-turn hook,
 * birth and end. */
#include "cluster/replica_impl.h"

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
	if (!o && c && replica_here(r, c, &g) >= 0)
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
			object_set_policy(o);
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

/* ---- The tick and the end of a turn -------------------------------------------------------------
 */

void governor_now(struct replicator *r)
{
	uint64_t now = loop_mono_us(r->loop);

	governor_tick(&r->governor, now, r->hooks->wall_ms ? r->hooks->wall_ms(r->ctx) * 1000 : now);
}

static void copy_next(struct timer *t)
{
	fills_run(container_of(t, struct replicator, copy_timer));
}

static void tick(struct timer *t)
{
	struct replicator *r = container_of(t, struct replicator, tick);
	uint64_t now = now_us(r);

	governor_now(r);
	session_tick(r, now);
	groups_tick(r);
	moves_tick(r, now);
	objects_tick(r, now);
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
