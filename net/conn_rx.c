/* SPDX-License-Identifier: Apache-2.0 */
/* The receiving half of a connection: bytes land in a reference-counted staging buffer and frames are
 * parsed in place, so a payload that arrived whole is handed on without a copy.
 *
 * A frame that would run over the end of its stage has its beginning moved to a new one (a frame of at
 * most STAGED_MAX), or its payload received straight into a buffer of its own, or, for the rare body
 * longer than that, its body into heap memory. When the pool is empty reading stops, and TCP slows
 * the peer down. A connection with nothing buffered holds no stage. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "net/conn_impl.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define STAGE_SMALL (16u << 10)
#define STAGE_BIG (256u << 10)
#define STAGE_BUSY (8u << 10)  /* one receive of this much asks for a big stage next */
#define STAGED_MAX (128u << 10)
#define ROUNDS_PLAIN 4u	       /* receives per wake-up; others want their turn too */
#define ROUNDS_TLS 32u

/* ---- Staging memory ---- */

static void stage_drop(struct rx *r)
{
	if (!r->stage)
		return;
	r->big_next = r->peak >= STAGE_BUSY;
	buf_unref(r->stage);
	r->stage = NULL;
	r->head = r->tail = r->peak = 0;
}

/* Room for a run of `total` bytes from head on: within the stage, or moved to a fresh one. */
static bool stage_reserve(struct conn *c, uint32_t total)
{
	struct rx *r = &c->rx;
	uint32_t have = r->tail - r->head;
	struct buf *b;

	if (r->stage && r->stage->size - r->head >= total)
		return true;
	if (r->stage && r->stage->refs == 1 && r->stage->size >= total) {
		memmove(r->stage->data, r->stage->data + r->head, have);
	} else {
		bool big = total > STAGE_SMALL || r->big_next || r->peak >= STAGE_BUSY;

		b = buf_get(c->pool, big ? STAGE_BIG : STAGE_SMALL);
		if (!b)
			return false;
		if (have)
			memcpy(b->data, r->stage->data + r->head, have);
		stage_drop(r);
		r->stage = b;
	}
	r->head = 0;
	r->tail = have;
	return true;
}

/* Somewhere to receive to. */
static bool rx_space(struct conn *c)
{
	struct rx *r = &c->rx;

	if (r->body || r->pay)
		return true;
	if (r->stage && r->head == r->tail) {
		if (r->stage->refs == 1)
			r->head = r->tail = 0;
		else if (r->stage->size - r->tail < r->stage->size / 8)
			return stage_reserve(c, r->stage->size / 8);
	}
	return stage_reserve(c, r->tail - r->head + 1);
}

void conn_rx_release_idle(struct conn *c, bool even_shared)
{
	struct rx *r = &c->rx;

	if (r->stage && r->head == r->tail && !r->pay && (even_shared || r->stage->refs == 1))
		stage_drop(r);
}

bool conn_rx_incomplete(const struct conn *c)
{
	return c->rx.head != c->rx.tail || c->rx.body || c->rx.pay;
}

void conn_rx_fini(struct conn *c)
{
	struct rx *r = &c->rx;

	if (r->pay)
		buf_unref(r->pay);
	if (r->stage)
		buf_unref(r->stage);
	free(r->body);
	r->pay = r->stage = NULL;
	r->body = NULL;
}

/* ---- Frames ---- */

static void rx_deliver(struct conn *c, const uint8_t *base, const struct wire_header *h,
		       struct slice payload)
{
	struct frame f = { .opcode = h->opcode,
			   .id = h->id,
			   .body = base + WIRE_HEADER_SIZE,
			   .body_len = h->body_len,
			   .payload = payload };

	c->ops->on_frame(c, &f);
}

static bool rx_fail(struct conn *c, int rc)
{
	log_warn("net", "not a frame of ours: closing", "peer=%s identity=\"%s\" error=%s",
		 c->peer_address, c->peer_name, err_name(rc));
	conn_close(c, rc);
	return false;
}

static bool rx_no_memory(struct conn *c)
{
	c->rx.retry = true;
	conn_memory_wait(c);
	return false;
}

/* The payload of the frame whose header and body are whole goes to a buffer of its own; what is
 * staged of it moves along. */
static bool rx_payload_start(struct conn *c, const struct wire_header *h)
{
	struct rx *r = &c->rx;
	uint32_t from = r->head + (r->body ? 0 : WIRE_HEADER_SIZE + h->body_len);
	uint32_t have = MIN(r->tail - from, h->payload_len);

	r->pay = buf_get(c->pool, h->payload_len);
	if (!r->pay)
		return rx_no_memory(c);
	r->pay_header = *h;
	r->pay_got = have;
	if (have)
		memcpy(r->pay->data, r->stage->data + from, have);
	if (r->body)
		r->head += have; /* only payload was staged, or what follows it */
	else
		r->tail = from; /* nothing can follow: the payload was not whole */
	return true;
}

/* A payload in its own buffer: deliver it once it is whole. */
static bool rx_step_payload(struct conn *c)
{
	struct rx *r = &c->rx;
	struct wire_header h = r->pay_header;
	struct buf *pay = r->pay;
	uint8_t *body = r->body;
	const uint8_t *base = body ? body : r->stage->data + r->head;

	if (r->pay_got < h.payload_len)
		return false;
	r->pay = NULL;
	r->body = NULL;
	if (!body)
		r->head += WIRE_HEADER_SIZE + h.body_len;
	rx_deliver(c, base, &h, (struct slice){ .buf = pay, .data = pay->data, .len = h.payload_len });
	buf_unref(pay);
	free(body);
	return true;
}

/* A body in heap memory. */
static bool rx_step_body(struct conn *c)
{
	struct rx *r = &c->rx;
	struct wire_header h;
	uint8_t *body = r->body;
	int rc;

	if (r->body_got < r->body_want)
		return false;
	rc = wire_frame_parse(body, r->body_want, &h);
	if (rc)
		return rx_fail(c, rc < 0 ? rc : -ERR_PROTOCOL);
	if (h.payload_len)
		return rx_payload_start(c, &h);
	r->body = NULL;
	rx_deliver(c, body, &h, (struct slice){ 0 });
	free(body);
	return true;
}

static bool rx_body_start(struct conn *c, const struct wire_header *h)
{
	struct rx *r = &c->rx;

	r->body_want = WIRE_HEADER_SIZE + h->body_len;
	r->body_got = r->tail - r->head;
	r->body = xmalloc(r->body_want);
	memcpy(r->body, r->stage->data + r->head, r->body_got);
	r->head = r->tail;
	return false;
}

/* The next frame of the stage. False: nothing more can be done with what is there. */
static bool rx_step_stage(struct conn *c)
{
	struct rx *r = &c->rx;
	uint32_t have = r->tail - r->head, head_len, total;
	const uint8_t *base;
	struct wire_header h;
	int rc;

	if (!have)
		return false;
	if (c->tx.plain_pending) /* TLS ends with our WELCOME: the peer has to wait for it */
		return rx_fail(c, -ERR_PROTOCOL);
	base = r->stage->data + r->head;
	rc = wire_frame_parse(base, have, &h);
	if (rc < 0)
		return rx_fail(c, rc);
	if (h.body_len > r->body_max || h.payload_len > r->payload_max)
		return rx_fail(c, -ERR_PROTOCOL);
	head_len = WIRE_HEADER_SIZE + h.body_len;
	total = head_len + h.payload_len;
	if (rc == 0 && have >= total) {
		r->head += total;
		rx_deliver(c, base, &h,
			   (struct slice){ .buf = h.payload_len ? r->stage : NULL,
					   .data = h.payload_len ? (uint8_t *)base + head_len : NULL,
					   .len = h.payload_len });
		return true;
	}
	if (total > STAGED_MAX && rc == 0)
		return rx_payload_start(c, &h);
	if (head_len > STAGED_MAX)
		return rx_body_start(c, &h);
	if (!stage_reserve(c, total > STAGED_MAX ? head_len : total))
		rx_no_memory(c);
	return false;
}

static void rx_parse(struct conn *c)
{
	bool more = true;

	while (more && !c->closed && !c->lingering) {
		if (c->rx.pay)
			more = rx_step_payload(c);
		else if (c->rx.body)
			more = rx_step_body(c);
		else
			more = rx_step_stage(c);
	}
}

/* ---- From the socket ---- */

static unsigned rx_targets(struct rx *r, struct iovec iov[2])
{
	unsigned n = 0;

	if (r->body && r->body_got < r->body_want) {
		iov[0] = (struct iovec){ r->body + r->body_got, r->body_want - r->body_got };
		return 1;
	}
	if (r->pay)
		iov[n++] = (struct iovec){ r->pay->data + r->pay_got,
					   r->pay_header.payload_len - r->pay_got };
	if (r->stage && r->tail < r->stage->size)
		iov[n++] = (struct iovec){ r->stage->data + r->tail, r->stage->size - r->tail };
	return n;
}

static void rx_account(struct rx *r, size_t n)
{
	size_t part;

	r->received += n;
	if (r->body && r->body_got < r->body_want) {
		r->body_got += (uint32_t)n;
		return;
	}
	if (r->pay) {
		part = MIN(n, (size_t)(r->pay_header.payload_len - r->pay_got));
		r->pay_got += (uint32_t)part;
		n -= part;
	}
	r->tail += (uint32_t)n;
	r->peak = MAX(r->peak, (uint32_t)n);
}

/* Bytes received, 0 when there are none now (or the connection ended; it is closed then). *full: all
 * room was used, there may be more. */
static size_t rx_fill(struct conn *c, bool *full)
{
	struct iovec iov[2];
	unsigned iovs = rx_targets(&c->rx, iov);
	size_t room = iov[0].iov_len + (iovs > 1 && !c->tls ? iov[1].iov_len : 0);
	ssize_t n;
	int rc = 0;

	if (c->tls) {
		n = tls_read(c->tls, iov[0].iov_base, iov[0].iov_len, &rc);
		if (n == TLS_WANT_READ || n == TLS_WANT_WRITE)
			return 0;
	} else {
		n = iovs > 1 ? readv(c->fd, iov, 2) : recv(c->fd, iov[0].iov_base, room, 0);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
			return 0;
		rc = n < 0 ? -errno : 0;
	}
	if (n <= 0) {
		conn_close(c, rc ? rc : -ERR_CLOSED);
		return 0;
	}
	*full = (size_t)n == room || c->tls;
	rx_account(&c->rx, (size_t)n);
	return (size_t)n;
}

/* After conn_shutdown's queue went out, until the peer closes. */
static void rx_discard(struct conn *c)
{
	uint8_t waste[4096];
	ssize_t n = recv(c->fd, waste, sizeof(waste), 0);

	if (!n || (n < 0 && errno != EAGAIN && errno != EINTR))
		conn_close(c, -ERR_CLOSED);
}

void conn_rx_run(struct conn *c)
{
	unsigned rounds = 0;
	bool full = true;

	if (c->lingering) {
		rx_discard(c);
		return;
	}
	if (c->rx.retry) {
		c->rx.retry = false;
		rx_parse(c);
	}
	while (full && !c->closed && !c->lingering && !c->memory_waiting) {
		if (rounds++ == (c->tls ? ROUNDS_TLS : ROUNDS_PLAIN)) {
			/* The socket wakes us again; OpenSSL's own buffer would not. */
			if (c->tls && tls_pending(c->tls))
				conn_run_again(c);
			break;
		}
		full = false;
		if (!rx_space(c))
			rx_no_memory(c);
		else if (rx_fill(c, &full))
			rx_parse(c);
	}
	if (c->closed)
		return;
	conn_rx_release_idle(c, false);
	if (conn_rx_incomplete(c) || c->rx.stage)
		conn_tick_arm(c);
}
