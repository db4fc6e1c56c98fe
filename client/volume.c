/* SPDX-License-Identifier: Apache-2.0 */
/* An open volume: its place in the map, who uses it, and the right to write it.
 *
 *   NONE ── first write ──> WANTED ── propose ──> ASKED ── granted ──> OK ── revoked ──> FENCED
 *     ^                        ^                   │ │                  │
 *     │                        └─ no leader ───────┘ └─ held: NONE      └─ last close ──> DETACHING
 * ─> gone └──────────── opened again while DETACHING ───────────────────────────────────────────┘
 *
 * FENCED never leads back: the holder's caches are worth nothing any more. Whoever wants to write
 * again closes the volume and opens it anew. */
#include "client/client_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool volume_io_writes(uint8_t kind)
{
	return kind == IO_WRITE || kind == IO_TRIM || kind == IO_ZEROES;
}

static struct volume *volume_find(struct client *c, uint32_t id, bool shared)
{
	struct volume *v;

	list_for_each(v, &c->volumes, link) if (v->id == id && v->shared == shared) return v;
	return NULL;
}

struct vobject *volume_object(struct volume *v, uint32_t index)
{
	struct vobject *o;

	if (index >= v->object_count)
		return NULL;
	o = v->objects[index];
	if (o)
		return o;
	o = xcalloc(1, sizeof(*o));
	o->volume = v;
	o->id = object_id(v->id, index);
	o->next_request = 1;
	list_init(&o->writes);
	list_init(&o->parts);
	list_init(&o->window);
	list_init(&o->changed);
	v->objects[index] = o;
	return o;
}

static void volume_attention(struct volume *v)
{
	v->client->attention = true;
	client_arm(v->client);
}

/* ---- The map ---- */

static void volume_take_geometry(struct volume *v, const struct map_volume *mv)
{
	if (mv->objects > v->object_count) {
		v->objects = xrealloc(v->objects, mv->objects * sizeof(v->objects[0]));
		memset(v->objects + v->object_count, 0,
		       (mv->objects - v->object_count) * sizeof(v->objects[0]));
		v->object_count = mv->objects;
	}
	v->size = mv->size;
}

void volume_map_changed(struct volume *v)
{
	const struct map_volume *mv = map_volume(v->client->cfg.map, v->id);
	uint64_t before = v->size;
	struct resize_notice *n, *tmp;

	if (!mv || mv->state != VOLUME_LIVE) {
		if (!v->gone)
			log_warn("client", "volume was deleted while open", "volume=%s", v->name);
		v->gone = true;
		v->aborted = -ERR_NOT_FOUND;
		volume_attention(v);
		return;
	}
	volume_take_geometry(v, mv);
	if (v->size != before)
		list_for_each_safe(n, tmp, &v->notices, link) n->fn(n->arg, v->size);
}

/* ---- Open, close ---- */

int volume_open(struct client *c, const char *name, bool shared, struct volume **out)
{
	const struct map_volume *mv = map_volume_by_name(c->cfg.map, name);
	struct volume *v;

	if (!mv || mv->state != VOLUME_LIVE)
		return -ERR_NOT_FOUND;
	v = volume_find(c, mv->id, shared);
	if (!v) {
		v = xcalloc(1, sizeof(*v));
		v->client = c;
		v->id = mv->id;
		memcpy(v->name, mv->name, sizeof(v->name));
		list_init(&v->vios);
		list_init(&v->attach_wait);
		list_init(&v->closers);
		list_init(&v->notices);
		v->shared = shared;
		volume_take_geometry(v, mv);
		list_push_back(&c->volumes, &v->link);
	}
	if (!v->refs && !v->ios && v->attach_state == ATTACH_FENCED)
		v->attach_state = ATTACH_NONE; /* a new opening of one that was about to go */
	v->refs++;
	*out = v;
	return 0;
}

static void volume_destroy(struct volume *v)
{
	struct client *c = v->client;
	struct list *l;

	list_splice_back(&c->closers, &v->closers);
	while ((l = list_pop_front(&v->notices)))
		free(list_entry(l, struct resize_notice, link));
	for (uint32_t i = 0; i < v->object_count; i++)
		if (v->objects[i]) {
			CHECK(list_empty(&v->objects[i]->parts));
			list_del(&v->objects[i]->changed);
			free(v->objects[i]);
		}
	free(v->objects);
	list_del(&v->link);
	free(v);
	client_arm(c);
}

void volume_close(struct volume *v, struct wait *w)
{
	struct closer *k = xcalloc(1, sizeof(*k));

	CHECK(v->refs > 0);
	k->wait = w;
	v->refs--;
	list_push_back(v->refs ? &v->client->closers : &v->closers, &k->link);
	volume_attention(v);
}

uint64_t volume_size(const struct volume *v)
{
	return v->size;
}

const char *volume_name(const struct volume *v)
{
	return v->name;
}

const char *volume_held_by(const struct volume *v)
{
	return v->held_by;
}

void volume_on_resize(struct volume *v, void (*fn)(void *arg, uint64_t size), void *arg)
{
	struct resize_notice *n, *tmp;

	if (fn) {
		n = xcalloc(1, sizeof(*n));
		n->fn = fn;
		n->arg = arg;
		list_push_back(&v->notices, &n->link);
		return;
	}
	list_for_each_safe(n, tmp, &v->notices, link) if (n->arg == arg)
	{
		list_del(&n->link);
		free(n);
	}
}

void volume_abort(struct volume *v, int rc)
{
	CHECK(rc < 0);
	v->aborted = rc;
	volume_attention(v);
}

/* ---- The right to write ---- */

static void volume_fail_waiting(struct volume *v, int rc)
{
	struct list waiting;
	struct list *l;

	list_init(&waiting);
	list_splice_back(&waiting, &v->attach_wait);
	while ((l = list_pop_front(&waiting)))
		vio_resume_io(v, list_entry(l, struct volume_io, link), rc);
}

void volume_fence(struct volume *v)
{
	if (v->attach_state == ATTACH_FENCED)
		return;
	log_warn("client", "attachment was revoked; the volume may not be written any more here",
		 "volume=%s attachment=%u epoch=%u", v->name, v->attachment, v->attach_epoch);
	v->attach_state = ATTACH_FENCED;
	volume_attention(v);
}

static void volume_attach_result(struct volume *v, int rc)
{
	struct client *c = v->client;
	struct volume_io *io;

	if (rc < 0) { /* no leader, or nobody knows: asking again gives the same holder a new
			 attachment */
		v->attach_state = ATTACH_WANTED;
		v->attach_due_us = loop_mono_us(c->cfg.loop) + CLIENT_ATTACH_RETRY_US;
		client_tick_arm(c);
		return;
	}
	if (v->result.code) {
		rc = v->result.code < 0 ? v->result.code : -EIO;
		v->attach_state = ATTACH_NONE;
		snprintf(v->held_by, sizeof(v->held_by), "%s", v->result.text);
		log_warn("client", "volume cannot be attached for writing",
			 "volume=%s error=%s reason=\"%s\"", v->name, err_name(rc), v->result.text);
		if (rc == -ERR_HELD)
			v->held_until_us = loop_mono_us(c->cfg.loop) + CLIENT_HELD_US;
		volume_fail_waiting(v, rc);
		return;
	}
	v->attach_state = ATTACH_OK;
	v->attachment = (uint32_t)v->result.id;
	v->attach_epoch = v->result.number;
	v->held_by[0] = 0;
	log_info("client", "volume attached", "volume=%s attachment=%u epoch=%u", v->name,
		 v->attachment, v->attach_epoch);
	list_for_each(io, &v->attach_wait, link) io->impl = v;
	list_splice_back(&c->queue, &v->attach_wait);
	renew_schedule(c);
}

static void volume_attach_done(struct wait *w, int rc)
{
	struct volume *v = container_of(w, struct volume, attach_done);

	if (v->attach_state == ATTACH_ASKED) {
		volume_attach_result(v, rc);
	} else { /* DETACHING */
		if (rc < 0)
			log_warn("client",
				 "volume could not be detached; its attachment ends by its TTL",
				 "volume=%s attachment=%u error=%s", v->name, v->attachment,
				 err_name(rc));
		v->attach_state = ATTACH_NONE;
		v->attachment = v->attach_epoch = 0;
	}
	volume_attention(v);
}

static void volume_propose(struct volume *v, enum attach_state state)
{
	struct client *c = v->client;
	struct command *cmd = &v->command;
	int rc;

	*cmd = (struct command){.kind = state == ATTACH_ASKED ? CMD_ATTACH : CMD_DETACH};
	snprintf(cmd->actor, sizeof(cmd->actor), "%s", c->cfg.holder);
	if (state == ATTACH_ASKED) {
		cmd->attach.volume = v->id;
		cmd->attach.mode = v->shared ? ATTACH_SHARED : ATTACH_EXCLUSIVE;
		snprintf(cmd->attach.holder, sizeof(cmd->attach.holder), "%s", c->cfg.holder);
	} else {
		cmd->detach.attachment = v->attachment;
	}
	v->attach_state = state;
	v->attach_done.resume = volume_attach_done;
	v->result = (struct command_result){0};
	rc = c->cfg.hooks->propose(c->cfg.ctx, cmd, &v->result, &v->attach_done);
	if (rc != PENDING)
		volume_attach_done(&v->attach_done, rc);
}

static void volume_abort_all(struct volume *v)
{
	struct client *c = v->client;
	struct volume_io *io, *next;
	struct vio *vio, *tmp;

	volume_fail_waiting(v, v->aborted);
	list_for_each_safe(io, next, &c->queue, link) if (io->impl == v)
	{
		list_del(&io->link);
		vio_resume_io(v, io, v->aborted);
	}
	list_for_each_safe(vio, tmp, &v->vios, link) vio_abort(vio, v->aborted);
}

/* A gateway holds one attachment per volume, and its own earlier one gives way: so the mode that is not
 * attached here has to wait, or the other one would be fenced by its neighbour. */
static void volume_want(struct volume *v)
{
	struct client *c = v->client;
	struct volume *other = volume_find(c, v->id, !v->shared);
	enum attach_state others = other ? other->attach_state : ATTACH_NONE;

	if (list_empty(&v->attach_wait)) {
		v->attach_state = ATTACH_NONE;
	} else if (others == ATTACH_ASKED || others == ATTACH_OK) {
		v->attach_state = ATTACH_NONE;
		snprintf(v->held_by, sizeof(v->held_by), "volume %s is attached by this gateway in %s mode",
			 v->name, other->shared ? "shared" : "exclusive");
		v->held_until_us = loop_mono_us(c->cfg.loop) + CLIENT_HELD_US;
		volume_fail_waiting(v, -ERR_HELD);
	} else if (others == ATTACH_DETACHING) {
		client_tick_arm(c);
	} else if (loop_mono_us(c->cfg.loop) >= v->attach_due_us) {
		volume_propose(v, ATTACH_ASKED); /* may come back at once; v lives, its ios hold it */
	}
}

void volume_attend(struct volume *v)
{
	if (v->aborted)
		volume_abort_all(v);
	if (v->attach_state == ATTACH_FENCED)
		volume_fail_waiting(v, -ERR_FENCED);
	if (v->attach_state == ATTACH_NONE && !list_empty(&v->attach_wait)) {
		v->attach_state = ATTACH_WANTED;
		v->attach_due_us = 0;
	}
	if (v->attach_state == ATTACH_WANTED)
		volume_want(v);
	if (v->refs && v->attach_state != ATTACH_DETACHING) /* opened again meanwhile */
		list_splice_back(&v->client->closers, &v->closers);
	if (v->refs || v->ios)
		return;
	switch (v->attach_state) {
	case ATTACH_OK:
		if (!v->gone) {
			volume_propose(v, ATTACH_DETACHING);
			return;
		}
		break;
	case ATTACH_ASKED:
	case ATTACH_DETACHING:
		return; /* its answer comes here again */
	default:
		break;
	}
	/* The client may end with its last volume: not before a renewal under way has. */
	if (v->client->renew_busy && v->client->volumes.next == v->client->volumes.prev)
		return;
	volume_destroy(v);
}

int volume_io(struct volume *v, struct volume_io *io, struct wait *w)
{
	struct client *c = v->client;
	bool writes = volume_io_writes(io->kind);

	io->wait = w;
	io->impl = v;
	if (v->aborted)
		return v->aborted;
	if (io->offset > v->size || io->length > v->size - io->offset)
		return io->kind == IO_WRITE || io->kind == IO_ZEROES ? -ENOSPC : -EINVAL;
	if (((io->kind == IO_READ || io->kind == IO_WRITE) && io->length > VOLUME_IO_MAX_BYTES) ||
	    (io->kind == IO_STATUS && (!io->extents_max || io->length > UINT32_MAX)))
		return -EINVAL;
	if (io->kind == IO_READ || io->kind == IO_STATUS)
		io->slice_count = io->extent_count = 0;
	if (!io->length)
		return 0;
	if (writes && v->attach_state == ATTACH_FENCED)
		return -ERR_FENCED;
	if (writes && v->attach_state == ATTACH_NONE &&
	    loop_mono_us(c->cfg.loop) < v->held_until_us)
		return -ERR_HELD;
	c->stats.ios++;
	if (io->deadline_ms) {
		c->deadlines++;
		client_tick_arm(c);
	}
	v->ios++;
	c->stats.in_flight++;
	if (writes && v->attach_state != ATTACH_OK) {
		list_push_back(&v->attach_wait, &io->link);
		volume_attention(v);
		return PENDING;
	}
	return vio_begin(v, io);
}
