/* SPDX-License-Identifier: Apache-2.0 */
/* One hop for a client that cannot reach an object's primary: the request goes on to the primary as
 * it is, with this node's view of the object's epoch, which is what its client would have routed
 * by. Attachment, attach epoch and request number stay, so that fencing and late duplicates (A1,
 * A2) are judged by the primary as if the client had come itself. Nothing is tried twice here:
 * whatever goes wrong is RETRY. */
#include "client/client_impl.h"

#include <stdlib.h>

/* Runs in the requests of others; its struct is from a pool, so that a crowd of them has a limit.
 */
struct forward {
	struct list link;
	struct client *client;
	struct io_exec *io;
	struct wait *wait;
	struct stream *stream;
	uint64_t id;
};

void forward_init(struct client *c)
{
	pool_init(&c->forwards, "forwarded requests", sizeof(struct forward), CLIENT_FORWARDS);
	list_init(&c->forwarded);
}

void forward_fini(struct client *c)
{
	CHECK(list_empty(&c->forwarded));
	pool_fini(&c->forwards);
}

static void forward_end(struct forward *f)
{
	struct wait *w = f->wait;

	list_del(&f->link);
	pool_put(&f->client->forwards, f);
	wait_resume(w, 0);
}

int client_forward(struct client *c, struct io_exec *io, struct wait *w)
{
	const struct map_object *mo = map_object(c->cfg.map, io->request->object);
	struct forward *f;
	uint8_t body[64 + IO_MAX_BLOCKS * sizeof(struct fp128)];
	struct writer wr = writer_init(body, sizeof(body));
	struct stream *s = NULL;
	bool local = false;

	if (mo) {
		io->request->epoch = mo->epoch;
		io->request->replica_gen = mo->member[mo->primary].gen;
		s = route_primary_stream(c, mo, &local);
	}
	if (local)
		return c->cfg.hooks->local(c->cfg.ctx, io, w);
	f = s && !s->stuck ? pool_get(&c->forwards) : NULL;
	/* One that is not up yet is being dialled: the client comes again. */
	if (!f || !s->conn || conn_full(s->conn)) {
		if (f)
			pool_put(&c->forwards, f);
		io->reply->status = mo ? IO_RETRY : IO_NOT_PRIMARY;
		io->reply->epoch = 0;
		io->reply->fp_count = io->reply->extent_count = 0;
		return 0;
	}
	*f = (struct forward){.client = c, .io = io, .wait = w, .stream = s};
	io_request_encode(io->request, &wr);
	CHECK(!wr.bad);
	f->id = ++c->part_count << 32 | UINT32_MAX;
	list_push_back(&c->forwarded, &f->link);
	route_stream_owes(s);
	conn_send(s->conn, OP_IO, f->id, body, (uint32_t)wr.len, &io->payload,
		  io->payload.len ? 1 : 0);
	return PENDING;
}

void forward_answered(struct client *c, struct stream *s, const struct frame *fr)
{
	struct reader r = reader_init(fr->body, fr->body_len);
	struct forward *f;

	list_for_each(f, &c->forwarded, link)
	{
		const struct io_request *q = f->io->request;

		if (f->id != fr->id || f->stream != s)
			continue;
		if (io_reply_decode(&r, q->kind, q->offset, q->length, fr->payload.len,
				    f->io->reply) < 0) {
			conn_close(s->conn, -ERR_PROTOCOL);
			return;
		}
		/* The client verifies what it is sent; so does nobody on the way. */
		if (f->io->reply->status == IO_OK && fr->payload.len)
			f->io->data = slice_ref(fr->payload);
		forward_end(f);
		return;
	}
}

void forward_lost(struct client *c, struct stream *s)
{
	struct forward *f, *tmp;

	list_for_each_safe(f, tmp, &c->forwarded, link)
	{
		if (f->stream != s)
			continue;
		f->io->reply->status = IO_RETRY;
		f->io->reply->epoch = 0;
		f->io->reply->fp_count = f->io->reply->extent_count = 0;
		forward_end(f);
	}
}
