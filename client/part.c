/* SPDX-License-Identifier: Apache-2.0 */
/* A part: one OP_IO on one object, from its start to its answer.
 *
 *   start ─> (WINDOW) ─> route ─> LOCAL | LINK ─> SENT ─> answered ─> done
 *              route ^──────────── RETRY / READY <──────────┘ retry, not primary, lost connection
 *
 * A write keeps its request number through all retries, also to another primary: that number is
 * what makes the retry safe. It never gets a second one. */
#include "client/client_impl.h"

#include <string.h>

static void part_unlink(struct part *p)
{
	struct vobject *o = p->object;

	list_del(&p->link);
	list_del(&p->by_object);
	list_del(&p->order);
	p->id = 0;
	p->stream = NULL;
	slice_unref(&p->exec.payload);
	p->object = NULL;
	/* The oldest write may be gone: others may follow. */
	while (o && !list_empty(&o->window)) {
		struct part *next = list_first(&o->window, struct part, link);

		if (!list_empty(&o->writes) &&
		    o->next_request - list_first(&o->writes, struct part, order)->request.request >=
			    CLIENT_WINDOW)
			break;
		part_number(next);
		part_make_ready(next);
	}
}

static void part_end(struct part *p, int rc)
{
	struct vio *v = p->vio;

	part_unlink(p);
	if (rc < 0 && !v->error)
		v->error = rc;
	vio_part_done(v, p);
}

void part_fail(struct part *p, int rc)
{
	part_end(p, rc);
}

void part_make_ready(struct part *p)
{
	list_del(&p->link);
	p->stage = PART_READY;
	p->id = 0;
	list_push_back(&p->client->ready, &p->link);
	client_arm(p->client);
}

void part_number(struct part *p)
{
	struct vobject *o = p->object;

	p->request.request = o->next_request++;
	p->request.attachment = o->volume->attachment;
	p->request.attach_epoch = o->volume->attach_epoch;
	list_push_back(&o->writes, &p->order);
}

static bool part_wait_memory(struct client *c)
{
	if (!c->memory_waiting) {
		c->memory_waiting = true;
		buf_wait(c->cfg.pool, &c->memory);
	}
	return false;
}

/* The payload of the next `len` bytes: referenced where it lies in one slice, else gathered. */
static bool part_take_payload(struct vio *v, uint32_t len, struct slice *out)
{
	const struct volume_io *io = v->io;
	unsigned i = v->in_slice, at = v->in_offset;
	struct client *c = v->volume->client;

	while (i < io->slice_count && at == io->slices[i].len) {
		i++;
		at = 0;
	}
	if (i < io->slice_count && io->slices[i].len - at >= len) {
		*out = slice_ref((struct slice){io->slices[i].buf, io->slices[i].data + at, len});
		at += len;
	} else {
		struct buf *b = buf_get(c->cfg.pool, len);
		uint32_t done = 0;

		if (!b)
			return part_wait_memory(c);
		while (done < len) {
			uint32_t n;

			CHECK(i < io->slice_count); /* the slices of a write hold `length` bytes */
			n = MIN(len - done, io->slices[i].len - at);
			memcpy(b->data + done, io->slices[i].data + at, n);
			done += n;
			at += n;
			if (at == io->slices[i].len) {
				i++;
				at = 0;
			}
		}
		*out = (struct slice){b, b->data, len};
	}
	v->in_slice = i;
	v->in_offset = at;
	return true;
}

/* Where the next part lies and what it is. A trim is whole blocks; its edges are zeroed. */
static struct volume_place part_place(struct vio *v, const struct map_volume *mv, uint32_t *len,
				      uint8_t *kind)
{
	struct volume_place at;

	*len = (uint32_t)MIN(v->end - v->next, STRIPE_UNIT);
	at = volume_locate(mv, v->next, len);
	*kind = v->io->kind;
	if (*kind == IO_TRIM) {
		uint32_t head = at.offset % BLOCK_SIZE;

		if (head || *len < BLOCK_SIZE) {
			*kind = IO_ZEROES;
			*len = MIN(*len, BLOCK_SIZE - head);
		} else {
			*len -= *len % BLOCK_SIZE;
		}
	}
	return at;
}

bool part_start(struct vio *v)
{
	struct volume *volume = v->volume;
	struct client *c = volume->client;
	const struct map_volume *mv = map_volume(c->cfg.map, volume->id);
	struct slice payload = {0};
	struct volume_place at;
	struct vobject *o;
	struct part *p;
	uint32_t len;
	uint8_t kind;

	if (!mv || mv->state != VOLUME_LIVE) {
		v->error = -ERR_NOT_FOUND;
		return false;
	}
	at = part_place(v, mv, &len, &kind);
	o = volume_object(volume, at.index);
	if (!o) {
		log_error("client", "the map places an offset outside of the volume's objects",
			  "volume=%s offset=%llu", volume->name, (unsigned long long)v->next);
		v->error = -EIO;
		return false;
	}
	p = part_get(c);
	if (!p)
		return false;
	if (kind == IO_WRITE && !part_take_payload(v, len, &payload)) {
		part_put(p);
		return false;
	}
	p->vio = v;
	p->object = o;
	p->stream = NULL;
	p->last_status = 0;
	list_init(&p->link);
	list_init(&p->order);
	list_push_back(&v->parts, &p->by_vio);
	list_push_back(&o->parts, &p->by_object);
	p->exec = (struct io_exec){.request = &p->request, .payload = payload, .reply = &p->reply};
	p->request.kind = kind;
	p->request.object = o->id;
	p->request.offset = at.offset;
	p->request.length = len;
	p->request.attachment = p->request.attach_epoch = 0;
	p->request.request = p->request.low_water = 0;
	p->request.fp_count = 0;
	if (kind == IO_WRITE) {
		p->request.fp_count = io_fp_count(at.offset, len);
		io_payload_fps(payload.data, at.offset, len, p->request.fps);
	} else if (kind == IO_READ) {
		p->slice = v->slices++;
		v->io->slices[p->slice] = (struct slice){0};
	}
	v->next += len;
	v->in_flight++;
	if (!volume_io_writes(kind)) {
		route_part(p);
	} else if (!list_empty(&o->window) ||
		   (!list_empty(&o->writes) &&
		    o->next_request - list_first(&o->writes, struct part, order)->request.request >=
			    CLIENT_WINDOW)) {
		p->stage = PART_WINDOW;
		list_push_back(&o->window, &p->link);
	} else {
		part_number(p);
		route_part(p);
	}
	return true;
}

void part_retry(struct part *p, uint8_t status)
{
	struct client *c = p->client;
	const struct map_object *mo = map_object(c->cfg.map, p->object->id);

	c->stats.retries++;
	p->last_status = status;
	p->stream = NULL;
	slice_unref(&p->exec.data);
	/* The map may have moved while the request was under way. */
	if ((status == IO_NOT_PRIMARY || status == IO_STALE_EPOCH) && mo &&
	    mo->epoch != p->request.epoch) {
		p->object->route_gen = 0;
		part_make_ready(p);
		return;
	}
	list_del(&p->link);
	p->id = 0;
	p->stage = PART_RETRY;
	p->due_us = loop_mono_us(c->cfg.loop) + CLIENT_RETRY_US;
	list_push_back(&c->retries, &p->link);
	client_tick_arm(c);
}

static void part_ok(struct part *p)
{
	struct client *c = p->client;
	const struct io_request *q = &p->request;

	if (q->kind == IO_READ) {
		if (p->exec.data.len != q->length) {
			log_error("client", "a read brought another length than asked for",
				  "object=%llx length=%u got=%u", (unsigned long long)q->object,
				  q->length, p->exec.data.len);
			part_retry(p, IO_RETRY);
			return;
		}
		c->stats.bytes_read += q->length;
		p->vio->io->slices[p->slice] = p->exec.data;
		p->exec.data = (struct slice){0};
	} else if (q->kind == IO_WRITE) {
		c->stats.bytes_written += q->length;
	}
	part_end(p, 0);
}

void part_answered(struct part *p)
{
	uint8_t status = p->reply.status;

	if (!p->vio) { /* abandoned, and local */
		slice_unref(&p->exec.data);
		slice_unref(&p->exec.payload);
		part_put(p);
		return;
	}
	switch (status) {
	case IO_OK:
		part_ok(p);
		return;
	case IO_RETRY:
	case IO_NOT_PRIMARY:
	case IO_STALE_EPOCH:
	case IO_INCOMPLETE:
		part_retry(p, status);
		return;
	case IO_FENCED:
		/* A read may go on without the attachment: it is still the newest data. */
		if (p->request.attachment && p->request.attachment == p->object->volume->attachment)
			volume_fence(p->object->volume);
		if (!volume_io_writes(p->request.kind) && p->request.attachment)
			part_retry(p, status);
		else
			part_fail(p, -ERR_FENCED);
		return;
	case IO_NO_SPACE:
		part_fail(p, -ERR_FULL);
		return;
	case IO_MEDIUM_ERROR:
		part_fail(p, -ERR_DAMAGED);
		return;
	case IO_INVALID:
		part_fail(p, -EINVAL);
		return;
	default:
		log_error("client", "unexpected answer",
			  "object=%llx status=%s request=%llu low_water=%llu",
			  (unsigned long long)p->request.object, io_status_name(status),
			  (unsigned long long)p->request.request,
			  (unsigned long long)p->request.low_water);
		part_fail(p, -EIO);
	}
}

void part_abandon(struct part *p)
{
	struct slice payload = slice_ref(p->exec.payload);
	bool local = p->stage == PART_LOCAL;

	part_unlink(p);
	list_del(&p->by_vio);
	p->vio = NULL;
	if (local) {
		p->exec.payload = payload; /* the executor may still read it */
		return;
	}
	slice_unref(&payload);
	part_put(p);
}
