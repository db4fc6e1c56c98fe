/* SPDX-License-Identifier: Apache-2.0 */
/* One volume_io being done: hands out parts in order of offset, a few at a time, joins what they
 * bring and resumes the user once, with the first error. It waits for all its parts before it ends,
 * except when a deadline or an abort ends it: then the parts are abandoned. */
#include "client/client_impl.h"

static uint64_t io_payload_bytes(const struct volume_io *io)
{
	return io->kind == IO_READ || io->kind == IO_WRITE ? io->length : 0;
}

static void io_account_end(struct volume *v, const struct volume_io *io)
{
	struct client *c = v->client;

	CHECK(v->ios > 0);
	v->ios--;
	c->stats.in_flight--;
	if (io->deadline_ms)
		c->deadlines--;
	if (!v->ios && !v->refs) {
		c->attention = true;
		client_arm(c);
	}
}

void vio_resume_io(struct volume *v, struct volume_io *io, int rc)
{
	io_account_end(v, io);
	wait_resume(io->wait, rc);
}

static void vio_drop_slices(struct vio *v)
{
	for (unsigned i = 0; v->io->kind == IO_READ && i < v->slices; i++)
		slice_unref(&v->io->slices[i]);
}

/* The vio ends; the io is the caller's to answer. */
static struct volume_io *vio_release(struct vio *v, int rc)
{
	struct client *c = v->volume->client;
	struct volume_io *io = v->io;

	CHECK(list_empty(&v->parts) && !v->in_flight);
	if (rc < 0)
		vio_drop_slices(v);
	else if (io->kind == IO_READ)
		io->slice_count = v->slices;
	c->bytes -= io_payload_bytes(io);
	list_del(&v->link);
	list_del(&v->starved);
	v->io = NULL;
	list_push_front(&c->vios_free, &v->link);
	if (!list_empty(&c->queue))
		client_arm(c);
	return io;
}

static void vio_finish(struct vio *v, int rc)
{
	struct volume *volume = v->volume;

	vio_resume_io(volume, vio_release(v, rc), rc);
}

/* Starts what may be started: PENDING, or the end. */
static int vio_step(struct vio *v)
{
	v->busy = true;
	while (!v->error && v->next < v->end && v->in_flight < VIO_PARTS_MAX)
		if (!part_start(v)) {
			if (!v->error)
				list_push_back(&v->volume->client->starved, &v->starved);
			break;
		}
	v->busy = false;
	if (!v->in_flight && (v->error || v->next >= v->end))
		return v->error;
	return PENDING;
}

void vio_run(struct vio *v)
{
	int rc = vio_step(v);

	if (rc != PENDING)
		vio_finish(v, rc);
}

static bool vio_may_start(struct client *c, const struct volume_io *io)
{
	uint64_t bytes = io_payload_bytes(io);

	if (list_empty(&c->vios_free))
		return false;
	return !bytes || !c->bytes || c->bytes + bytes <= CLIENT_BYTES_MAX;
}

static struct vio *vio_create(struct volume *volume, struct volume_io *io)
{
	struct client *c = volume->client;
	struct vio *v = list_entry(list_pop_front(&c->vios_free), struct vio, link);

	*v = (struct vio){
		.volume = volume, .io = io, .next = io->offset, .end = io->offset + io->length};
	v->started_us = loop_turn_us(c->cfg.loop);
	list_init(&v->starved);
	list_init(&v->parts);
	list_push_back(&volume->vios, &v->link);
	c->bytes += io_payload_bytes(io);
	return v;
}

int vio_begin(struct volume *volume, struct volume_io *io)
{
	struct client *c = volume->client;
	struct vio *v;
	int rc;

	if (!list_empty(&c->queue) || !vio_may_start(c, io)) {
		list_push_back(&c->queue, &io->link);
		return PENDING;
	}
	v = vio_create(volume, io);
	rc = vio_step(v);
	if (rc != PENDING) {
		vio_release(v, rc);
		io_account_end(volume, io);
	}
	return rc;
}

void vio_admit(struct client *c)
{
	while (!list_empty(&c->queue)) {
		struct volume_io *io = list_first(&c->queue, struct volume_io, link);

		if (!vio_may_start(c, io))
			return;
		list_del(&io->link);
		vio_run(vio_create(io->impl, io));
	}
}

void vio_abort(struct vio *v, int rc)
{
	struct part *p, *tmp;

	CHECK(!v->busy);
	list_for_each_safe(p, tmp, &v->parts, by_vio) part_abandon(p);
	v->in_flight = 0;
	vio_finish(v, rc);
}

/* ---- Block status: extents are joined in order ---- */

static void vio_add_extent(struct vio *v, uint32_t length, uint32_t flags)
{
	struct volume_io *io = v->io;
	struct io_extent *last = io->extent_count ? &io->extents[io->extent_count - 1] : NULL;

	if (!length || v->next == UINT64_MAX)
		return;
	if (last && last->flags == flags && last->length <= UINT32_MAX - length)
		last->length += length;
	else if (io->extent_count < io->extents_max)
		io->extents[io->extent_count++] =
			(struct io_extent){.length = length, .flags = flags};
	else
		v->next = v->end = UINT64_MAX; /* full: nothing more is wanted */
}

static void vio_take_extents(struct vio *v, const struct part *p)
{
	uint32_t left = p->request.length;

	for (unsigned i = 0; i < p->reply.extent_count; i++) {
		uint32_t n = MIN(p->reply.extents[i].length, left);

		vio_add_extent(v, n, p->reply.extents[i].flags);
		left -= n;
	}
	vio_add_extent(v, left, 0); /* nothing said is "has data" */
}

static void vio_end_part(struct vio *v, struct part *p)
{
	list_del(&p->by_vio);
	v->in_flight--;
	part_put(p);
}

void vio_part_done(struct vio *v, struct part *p)
{
	if (v->io->kind != IO_STATUS || v->error) {
		vio_end_part(v, p);
	} else {
		p->stage = PART_DONE;
		while (!list_empty(&v->parts)) {
			struct part *head = list_first(&v->parts, struct part, by_vio);

			if (head->stage != PART_DONE)
				break;
			vio_take_extents(v, head);
			vio_end_part(v, head);
		}
	}
	if (!v->busy && list_empty(&v->starved))
		vio_run(v);
	else if (!v->busy && v->error && !v->in_flight) {
		list_del(&v->starved);
		vio_run(v);
	}
}
