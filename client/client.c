/* SPDX-License-Identifier: Apache-2.0 */
/* The client's frame: pools, map changes, the end-of-turn work and the tick that drives retries and
 * deadlines. Nothing here blocks, and nothing is resumed from inside a call of the user: what a
 * call frees or finishes is looked at at the end of the turn. */
#include "client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void client_arm(struct client *c)
{
	turn_end_arm(c->cfg.loop, &c->turn, TURN_LOG);
}

void client_tick_arm(struct client *c)
{
	if (!c->tick.armed)
		timer_set(&c->tick, CLIENT_TICK_US);
}

struct part *part_get(struct client *c)
{
	struct list *l = list_pop_front(&c->parts_free);
	struct part *p;

	if (l) {
		p = list_entry(l, struct part, link);
	} else {
		/* Memory that was never needed is never touched. */
		if (c->parts_fresh == c->cfg.ops)
			return NULL;
		p = &c->parts[c->parts_fresh++];
		p->client = c;
	}
	c->parts_used++;
	return p;
}

void part_put(struct part *p)
{
	struct client *c = p->client;

	p->stage = PART_FREE;
	p->id = 0;
	c->parts_used--;
	list_push_front(&c->parts_free, &p->link);
	if (!list_empty(&c->starved))
		client_arm(c);
}

static void client_memory_ready(struct pool_waiter *w)
{
	struct client *c = container_of(w, struct client, memory);

	c->memory_waiting = false;
	client_arm(c);
}

/* Who waited for parts or memory goes on, in order; whoever is short again stops the round. */
static void client_feed_starved(struct client *c)
{
	struct list *l;

	while ((l = c->starved.next) != &c->starved) {
		struct vio *v = list_entry(l, struct vio, starved);

		list_del(l);
		vio_run(v);
		if (!list_empty(&c->starved))
			break;
	}
}

static void client_changes_apply(struct client *c)
{
	struct volume *v;
	struct list *l;

	if (c->kick_all) {
		c->kick_all = false;
		list_for_each(v, &c->volumes, link) for (uint32_t i = 0; i < v->object_count;
							 i++) if (v->objects[i])
			route_object_changed(v->objects[i]);
	}
	while ((l = list_pop_front(&c->changed)))
		route_object_changed(list_entry(l, struct vobject, changed));
}

static void client_resume_closers(struct client *c)
{
	struct list *l;

	while ((l = list_pop_front(&c->closers))) {
		struct closer *k = list_entry(l, struct closer, link);
		struct wait *w = k->wait;

		free(k);
		wait_resume(w, 0);
	}
}

static void client_turn(struct turn_end *t)
{
	struct client *c = container_of(t, struct client, turn);
	struct volume *v, *tmp;
	struct list *l;

	while ((l = list_pop_front(&c->ready)))
		route_part(list_entry(l, struct part, link));
	if (c->attention) {
		c->attention = false;
		list_for_each_safe(v, tmp, &c->volumes, link) volume_attend(v);
	}
	client_feed_starved(c);
	vio_admit(c);
	client_resume_closers(c);
}

/* ---- The tick: retries that are due, deadlines, attaches to try again ---- */

static bool list_expire(struct volume *only, struct list *ios, uint64_t now_ms)
{
	struct volume_io *io, *tmp;
	bool left = false;

	list_for_each_safe(io, tmp, ios, link)
	{
		if (!io->deadline_ms)
			continue;
		if (now_ms < io->deadline_ms) {
			left = true;
			continue;
		}
		list_del(&io->link);
		vio_resume_io(only ? only : io->impl, io, -ETIMEDOUT);
	}
	return left;
}

static bool client_expire(struct client *c)
{
	uint64_t now_ms = loop_mono_us(c->cfg.loop) / 1000;
	bool left = list_expire(NULL, &c->queue, now_ms);
	struct volume *v, *next;

	list_for_each_safe(v, next, &c->volumes, link)
	{
		struct vio *vio, *tmp;

		left |= list_expire(v, &v->attach_wait, now_ms);
		list_for_each_safe(vio, tmp, &v->vios, link)
		{
			if (!vio->io->deadline_ms)
				continue;
			if (now_ms >= vio->io->deadline_ms)
				vio_abort(vio, -ETIMEDOUT);
			else
				left = true;
		}
	}
	return left;
}

static void client_tick(struct timer *t)
{
	struct client *c = container_of(t, struct client, tick);
	uint64_t now = loop_mono_us(c->cfg.loop);
	struct part *p, *tmp;
	struct volume *v;
	bool again = false;

	list_for_each_safe(p, tmp, &c->retries, link)
	{
		if (p->due_us > now)
			break;
		part_make_ready(p);
	}
	list_for_each(v, &c->volumes, link) if (v->attach_state == ATTACH_WANTED)
	{
		c->attention = true;
		again = true;
	}
	if (c->deadlines)
		again |= client_expire(c);
	again |= route_tick(c, now);
	if (!list_empty(&c->retries)) {
		p = list_first(&c->retries, struct part, link);
		timer_set(&c->tick, MIN(p->due_us - now, CLIENT_TICK_US));
	} else if (again) {
		client_tick_arm(c);
	}
	client_arm(c);
}

static void client_sweep(struct timer *t)
{
	struct client *c = container_of(t, struct client, sweep);

	route_sweep(c, CLIENT_IDLE_US);
	timer_set(t, CLIENT_SWEEP_US);
}

/* ---- Map changes ---- */

void client_map_changed(struct client *c, enum map_record kind, uint64_t id)
{
	struct volume *v, *tmp;

	switch (kind) {
	case MAP_REC_NODE:
		route_node_changed(c, (uint16_t)id);
		c->route_gen++;
		c->kick_all = true;
		break;
	case MAP_REC_GROUP:
		c->route_gen++;
		c->kick_all = true;
		break;
	case MAP_REC_VOLUME:
	case MAP_REC_VOLUME_GONE:
		list_for_each_safe(v, tmp, &c->volumes, link) if (v->id == id)
			volume_map_changed(v);
		break;
	case MAP_REC_OBJECT:
		list_for_each(v, &c->volumes, link)
			if (v->id == object_volume(id) && object_index(id) < v->object_count &&
			    v->objects[object_index(id)]) {
				struct vobject *o = v->objects[object_index(id)];

				o->route_gen = 0;
				if (list_empty(&o->changed))
					list_push_back(&c->changed, &o->changed);
			}
		break;
	case MAP_REC_ATTACHMENT:
	case MAP_REC_ATTACHMENT_GONE:
		list_for_each(v, &c->volumes,
			      link) if (v->attach_state == ATTACH_OK && v->attachment == id)
		{
			const struct map_attachment *a = map_attachment(c->cfg.map, (uint32_t)id);

			if (kind == MAP_REC_ATTACHMENT_GONE || (a && a->revoked))
				volume_fence(v);
			else
				renew_schedule(c);
		}
		break;
	case MAP_REC_LIMITS:
		break;
	}
}

void client_map_done(struct client *c)
{
	client_changes_apply(c);
	client_arm(c);
}

int client_find(const struct client *c, const char *name, struct client_volume *out)
{
	const struct map_volume *mv = map_volume_by_name(c->cfg.map, name);

	if (!mv || mv->state != VOLUME_LIVE)
		return -ERR_NOT_FOUND;
	memcpy(out->name, mv->name, sizeof(out->name));
	out->size = mv->size;
	return 0;
}

void client_list(const struct client *c, void (*fn)(void *arg, const struct client_volume *v),
		 void *arg)
{
	const struct hmap *m = &c->cfg.map->volumes;

	for (struct hnode *n = hmap_walk(m, NULL); n; n = hmap_walk(m, n)) {
		const struct map_volume *mv = container_of(n, struct map_volume, by_id);
		struct client_volume v = {.size = mv->size};

		if (mv->state != VOLUME_LIVE)
			continue;
		memcpy(v.name, mv->name, sizeof(v.name));
		fn(arg, &v);
	}
}

/* ---- For people ---- */

bool client_is_removed(const struct client *c, const char *identity)
{
	const struct map_node *n = map_holder_node(c->cfg.map, identity);

	return n && (n->state == NODE_REMOVED || n->state == NODE_DEAD);
}

uint64_t client_map_version(const struct client *c)
{
	return c->cfg.map->version;
}

void client_stats(const struct client *c, struct client_stats *out)
{
	uint64_t now = loop_mono_us(c->cfg.loop);
	const struct volume *v;

	*out = c->stats;
	out->oldest_us = 0;
	list_for_each(v, &c->volumes, link) if (!list_empty(&v->vios)) out->oldest_us =
		MAX(out->oldest_us, now - list_first(&v->vios, struct vio, link)->started_us);
}

static const char *kind_name(uint8_t kind)
{
	switch (kind) {
	case IO_READ:
		return "read";
	case IO_WRITE:
		return "write";
	case IO_TRIM:
		return "trim";
	case IO_ZEROES:
		return "zeroes";
	default:
		return "status";
	}
}

static void part_waits_for(const struct part *p, char *text, size_t cap)
{
	switch ((enum part_stage)p->stage) {
	case PART_WINDOW:
		snprintf(text, cap, "older writes of object %llx",
			 (unsigned long long)p->object->id);
		break;
	case PART_LINK:
		snprintf(text, cap, "connection to node %u", p->stream->peer->node);
		break;
	case PART_SENT:
		snprintf(text, cap, "answer of node %u", p->stream->peer->node);
		break;
	case PART_LOCAL:
		snprintf(text, cap, "primary on this node");
		break;
	case PART_RETRY:
	case PART_READY:
		snprintf(text, cap, "retry (%s)",
			 p->last_status ? io_status_name(p->last_status) : "no primary reachable");
		break;
	default:
		snprintf(text, cap, "other parts");
	}
}

void client_ops(struct client *c,
		void (*fn)(void *arg, const char *volume, const char *kind, const char *waits_for,
			   uint64_t offset, uint64_t age_us),
		void *arg)
{
	uint64_t now = loop_mono_us(c->cfg.loop);
	struct volume *v;
	struct volume_io *io;
	struct vio *vio;
	char text[96];

	list_for_each(v, &c->volumes, link)
	{
		list_for_each(io, &v->attach_wait, link)
			fn(arg, v->name, kind_name(io->kind), "attach", io->offset, 0);
		list_for_each(vio, &v->vios, link)
		{
			const char *why = "memory or parts";

			if (!list_empty(&vio->parts)) {
				part_waits_for(list_first(&vio->parts, struct part, by_vio), text,
					       sizeof(text));
				why = text;
			}
			fn(arg, v->name, kind_name(vio->io->kind), why, vio->io->offset,
			   now - vio->started_us);
		}
	}
	list_for_each(io, &c->queue, link) fn(arg, ((struct volume *)io->impl)->name,
					      kind_name(io->kind), "its turn", io->offset, 0);
}

/* ---- Life ---- */

struct client *client_create(const struct client_config *cfg)
{
	struct client *c = xcalloc(1, sizeof(*c));

	CHECK(cfg->ops > 0 && cfg->hooks && cfg->hooks->propose && cfg->map);
	c->cfg = *cfg;
	c->cfg.holder = xstrdup(cfg->holder ? cfg->holder : "");
	c->route_gen = 1;
	list_init(&c->parts_free);
	list_init(&c->vios_free);
	list_init(&c->volumes);
	list_init(&c->peers);
	list_init(&c->queue);
	list_init(&c->starved);
	list_init(&c->retries);
	list_init(&c->ready);
	list_init(&c->changed);
	list_init(&c->closers);
	c->parts = xcalloc(cfg->ops, sizeof(*c->parts));
	c->vios = xcalloc(cfg->ops, sizeof(*c->vios));
	for (size_t i = cfg->ops; i-- > 0;)
		list_push_front(&c->vios_free, &c->vios[i].link);
	turn_end_init(&c->turn, client_turn);
	timer_init(&c->tick, cfg->loop, client_tick);
	timer_init(&c->sweep, cfg->loop, client_sweep);
	timer_set(&c->sweep, CLIENT_SWEEP_US);
	renew_init(c);
	forward_init(c);
	c->memory.ready = client_memory_ready;
	list_init(&c->memory.link);
	return c;
}

void client_destroy(struct client *c)
{
	CHECK(list_empty(&c->volumes));
	client_resume_closers(c);
	/* Abandoned local parts are answered before their executor ends, which the owner ended
	 * first. */
	CHECK(c->parts_used == 0);
	if (c->memory_waiting)
		list_del(&c->memory.link);
	route_fini(c);
	forward_fini(c);
	turn_end_disarm(&c->turn);
	timer_fini(&c->tick);
	timer_fini(&c->sweep);
	renew_fini(c);
	free(c->parts);
	free(c->vios);
	free((char *)c->cfg.holder);
	free(c);
}
