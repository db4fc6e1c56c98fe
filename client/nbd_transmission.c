/* SPDX-License-Identifier: Apache-2.0 */
/* The transmission phase: requests out of the receive buffer, into the client, replies into the
 * queue.
 *
 * A payload of up to NBD_INLINE_MAX bytes is used where it was received: its slice points into the
 * receive buffer. A larger one is received into buffers of its own, cut at stripe units, so that
 * the client never has to copy. A request that is refused still has its payload consumed. */
#include "client/nbd_impl.h"

#include <stdio.h>

static bool is_payload_type(uint16_t type)
{
	return type == NBD_CMD_WRITE || type == NBD_CMD_READ;
}

/* ---- Requests ---- */

static struct nbd_req *req_get(struct nbd_conn *c, const struct nbd_request *r)
{
	struct nbd_server *s = c->server;
	uint32_t bytes = is_payload_type(r->type) && r->length <= NBD_PAYLOAD_MAX ? r->length : 0;
	struct nbd_req *q;

	if (c->requests >= NBD_CONN_REQUESTS || (c->bytes && c->bytes + bytes > NBD_CONN_BYTES) ||
	    (s->bytes && s->bytes + bytes > NBD_SERVER_BYTES))
		return NULL;
	q = pool_get(&s->requests);
	if (!q)
		return NULL;
	q->conn = c;
	q->cookie = r->cookie;
	q->type = r->type;
	q->flags = r->flags;
	q->reserved = bytes;
	q->error = 0;
	q->text_len = q->head_len = 0;
	q->extents = NULL;
	q->io.slices = q->slices;
	q->io.slice_count = 0;
	q->io.slices_max = VOLUME_IO_SLICES_MAX;
	q->io.offset = r->offset;
	q->io.length = r->length;
	q->io.deadline_ms = 0;
	c->requests++;
	c->bytes += bytes;
	s->bytes += bytes;
	return q;
}

static void req_drop_slices(struct nbd_req *q)
{
	for (unsigned i = 0; i < q->io.slice_count; i++)
		slice_unref(&q->slices[i]);
	q->io.slice_count = 0;
}

static void req_release_bytes(struct nbd_req *q)
{
	q->conn->bytes -= q->reserved;
	q->conn->server->bytes -= q->reserved;
	q->reserved = 0;
}

void nbd_req_free(struct nbd_req *q)
{
	struct nbd_conn *c = q->conn;
	struct nbd_server *s = c->server;

	req_drop_slices(q);
	if (q->extents)
		buf_unref(q->extents);
	req_release_bytes(q);
	c->requests--;
	pool_put(&s->requests, q);
	if (!list_empty(&s->starved))
		nbd_server_arm(s);
}

/* ---- Replies ---- */

static void reply_status(struct nbd_req *q)
{
	struct io_extent *e = q->io.extents;
	uint32_t n = q->io.extent_count * (uint32_t)sizeof(*e);

	for (unsigned i = 0; i < q->io.extent_count;
	     i++) { /* our extents have the wire's layout and flags */
		uint32_t length = e[i].length, flags = e[i].flags;

		put_be32(&e[i].length, length);
		put_be32(&e[i].flags, flags);
	}
	nbd_chunk_encode(q->head, NBD_CHUNK_DONE, NBD_CHUNK_BLOCK_STATUS, q->cookie, 4 + n);
	put_be32(q->head + NBD_CHUNK_SIZE, NBD_CONTEXT_ALLOCATION);
	q->head_len = NBD_CHUNK_SIZE + 4;
	q->slices[0] = (struct slice){q->extents, q->extents->data, n};
	q->io.slice_count = 1;
	q->extents = NULL; /* the slice holds the reference now */
}

static void reply_error(struct nbd_req *q, bool structured)
{
	if (!structured) {
		nbd_simple_encode(q->head, q->error, q->cookie);
		q->head_len = NBD_SIMPLE_SIZE;
		return;
	}
	nbd_chunk_encode(q->head, NBD_CHUNK_DONE, NBD_CHUNK_ERROR, q->cookie, 6u + q->text_len);
	put_be32(q->head + NBD_CHUNK_SIZE, q->error);
	put_be16(q->head + NBD_CHUNK_SIZE + 4, q->text_len);
	q->head_len = NBD_CHUNK_SIZE + 6;
}

static void req_reply(struct nbd_req *q)
{
	struct nbd_conn *c = q->conn;
	bool structured = c->negotiation.structured;
	uint32_t len = (uint32_t)q->io.length;

	if (c->state != NBD_OPEN) {
		nbd_req_free(q);
		nbd_conn_check_end(c);
		return;
	}
	if (q->error) {
		reply_error(q, structured);
	} else if (q->type == NBD_CMD_READ && structured && len) {
		nbd_chunk_encode(q->head, NBD_CHUNK_DONE, NBD_CHUNK_OFFSET_DATA, q->cookie,
				 8 + len);
		put_be64(q->head + NBD_CHUNK_SIZE, q->io.offset);
		q->head_len = NBD_CHUNK_SIZE + 8;
	} else if (q->type == NBD_CMD_BLOCK_STATUS) {
		reply_status(q);
	} else if (q->type == NBD_CMD_READ && structured) {
		nbd_chunk_encode(q->head, NBD_CHUNK_DONE, NBD_CHUNK_NONE, q->cookie, 0);
		q->head_len = NBD_CHUNK_SIZE;
	} else {
		nbd_simple_encode(q->head, 0, q->cookie);
		q->head_len = NBD_SIMPLE_SIZE;
	}
	list_push_back(&c->replies, &q->link);
	turn_end_arm(c->server->cfg.loop, &c->turn, TURN_SEND);
}

static void req_done(struct nbd_req *q, int rc)
{
	if (q->type != NBD_CMD_READ || rc < 0) {
		req_drop_slices(q); /* the payload of a write; a failed read has none */
		if (q->type == NBD_CMD_WRITE)
			req_release_bytes(q);
	}
	if (rc < 0) {
		const char *text = rc == -ERR_HELD ? volume_held_by(q->conn->volume) : "";

		if (!text[0])
			text = err_text(rc);
		q->error = nbd_error_of(rc);
		q->text_len = (uint16_t)MIN(strlen(text), sizeof(q->text));
		memcpy(q->text, text, q->text_len);
	}
	req_reply(q);
}

static void req_resume(struct wait *w, int rc)
{
	req_done(container_of(w, struct nbd_req, wait), rc);
}

static void req_refuse(struct nbd_req *q, uint32_t error)
{
	q->error = error;
	req_drop_slices(q);
	req_release_bytes(q);
	req_reply(q);
}

/* A trim is a hint: it is rounded inwards to whole blocks. False: nothing is left. */
static bool trim_round(struct volume_io *io)
{
	uint64_t start = round_up(io->offset, BLOCK_SIZE);
	uint64_t end = round_down(io->offset + io->length, BLOCK_SIZE);

	if (end <= start)
		return false;
	io->offset = start;
	io->length = end - start;
	return true;
}

static void req_submit(struct nbd_req *q)
{
	struct volume_io *io = &q->io;
	int rc;

	switch (q->type) {
	case NBD_CMD_READ:
		io->kind = IO_READ;
		break;
	case NBD_CMD_WRITE:
		io->kind = IO_WRITE;
		break;
	case NBD_CMD_TRIM:
		io->kind = IO_TRIM;
		if (!trim_round(io)) {
			req_done(q, 0);
			return;
		}
		break;
	case NBD_CMD_WRITE_ZEROES: /* without NO_HOLE the space may go: a trim reads as zeros here
				    */
		io->kind = q->flags & NBD_CMD_NO_HOLE ? IO_ZEROES : IO_TRIM;
		break;
	case NBD_CMD_BLOCK_STATUS:
		io->kind = IO_STATUS;
		io->length = MIN(io->length, NBD_STATUS_MAX);
		io->extents = (struct io_extent *)q->extents->data;
		io->extents_max = q->flags & NBD_CMD_REQ_ONE
					  ? 1
					  : q->extents->size / sizeof(struct io_extent);
		break;
	default: /* FLUSH: every reply was durable already. CACHE: nothing to do. */
		req_done(q, 0);
		return;
	}
	q->wait.resume = req_resume;
	rc = volume_io(q->conn->volume, io, &q->wait);
	if (rc != PENDING)
		req_done(q, rc);
}

/* ---- Payload that does not fit the receive buffer ---- */

bool nbd_fill_space(struct nbd_conn *c, uint8_t **at, uint32_t *len)
{
	struct nbd_req *q = c->filling;
	struct slice *sl = &q->slices[c->fill_slice];

	CHECK(!c->skipping && c->fill_left);
	if (c->fill_slice == q->io.slice_count) {
		uint64_t pos = q->io.offset + q->io.length - c->fill_left;
		uint32_t n = (uint32_t)MIN(STRIPE_UNIT - pos % STRIPE_UNIT, c->fill_left);
		struct buf *b = buf_get(c->server->cfg.pool, n);

		if (!b) {
			nbd_conn_memory_wait(c);
			return false;
		}
		*sl = (struct slice){b, b->data, n};
		q->io.slice_count++;
		c->fill_at = 0;
	}
	*at = sl->data + c->fill_at;
	*len = sl->len - c->fill_at;
	return true;
}

void nbd_fill_took(struct nbd_conn *c, uint32_t n)
{
	struct nbd_req *q = c->filling;

	c->fill_left -= n;
	if (!c->skipping) {
		c->fill_at += n;
		if (c->fill_at == q->slices[c->fill_slice].len)
			c->fill_slice++;
	}
	if (c->fill_left)
		return;
	c->filling = NULL;
	if (c->skipping)
		req_refuse(q, q->error);
	else
		req_submit(q);
	c->skipping = false;
}

static void fill_start(struct nbd_conn *c, struct nbd_req *q, uint32_t length, bool skip)
{
	c->filling = q;
	c->fill_slice = c->fill_at = 0;
	c->fill_left = length;
	c->skipping = skip;
}

/* Moves what was received already; false: nothing left, or no memory. */
static bool fill_from_buffer(struct nbd_conn *c)
{
	uint32_t have = c->in_end - c->in_start, n = have;
	uint8_t *at;

	if (!have)
		return false;
	if (c->skipping) {
		n = MIN(n, c->fill_left);
	} else {
		if (!nbd_fill_space(c, &at, &n))
			return false;
		n = MIN(n, have);
		memcpy(at, c->in->data + c->in_start, n);
	}
	c->in_start += n;
	nbd_fill_took(c, n);
	return true;
}

/* ---- Parsing ---- */

static bool take_write(struct nbd_conn *c, struct nbd_req *q, const struct nbd_request *r)
{
	uint32_t have = c->in_end - c->in_start;

	if (q->error || r->length > NBD_INLINE_MAX) {
		if (!r->length)
			req_refuse(q, q->error);
		else
			fill_start(c, q, r->length, q->error != 0);
		return true;
	}
	CHECK(have >= r->length);
	if (r->length) {
		q->slices[0] = (struct slice){buf_ref(c->in), c->in->data + c->in_start, r->length};
		q->io.slice_count = 1;
		c->in_start += r->length;
	}
	req_submit(q);
	return true;
}

/* Takes one request; false: it is not all there, or cannot be taken now. */
static bool take_request(struct nbd_conn *c)
{
	uint32_t have = c->in_end - c->in_start;
	struct nbd_limits limits = {.structured = c->negotiation.structured,
				    .meta_allocation = c->negotiation.meta_allocation};
	struct buf *extents = NULL;
	struct nbd_request r;
	struct nbd_req *q;
	uint32_t error;

	if (have < NBD_REQUEST_SIZE)
		return false;
	if (nbd_request_parse(c->in->data + c->in_start, &r) < 0) {
		nbd_conn_fail(c, "bad request magic");
		return false;
	}
	limits.size = volume_size(c->volume);
	error = nbd_request_check(&r, &limits);
	if (r.type == NBD_CMD_WRITE && !error && r.length <= NBD_INLINE_MAX &&
	    have - NBD_REQUEST_SIZE < r.length)
		return false;
	if (r.type == NBD_CMD_DISC) {
		c->last = true;
		nbd_conn_check_end(c);
		return false;
	}
	if (r.type == NBD_CMD_BLOCK_STATUS && !error) {
		extents = buf_get(c->server->cfg.pool, BLOCK_SIZE);
		if (!extents) {
			nbd_conn_memory_wait(c);
			return false;
		}
	}
	q = req_get(c, &r);
	if (!q) {
		if (extents)
			buf_unref(extents);
		nbd_conn_pause(c);
		return false;
	}
	q->extents = extents;
	q->error = error;
	c->in_start += NBD_REQUEST_SIZE;
	if (r.type == NBD_CMD_WRITE)
		return take_write(c, q, &r);
	if (error)
		req_refuse(q, error);
	else
		req_submit(q);
	return true;
}

void nbd_conn_parse(struct nbd_conn *c)
{
	while (c->state == NBD_OPEN && !c->last && !c->paused)
		if (!(c->filling ? fill_from_buffer(c) : take_request(c)))
			break;
}
