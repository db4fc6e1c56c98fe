/* SPDX-License-Identifier: Apache-2.0 */
/* The sending half of a connection: frames are queued during a turn and leave in one gathered
 * sendmsg at its end; what the socket does not take continues on FD_WRITE. Must never call back from
 * conn_send, and never allocate in steady state. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "net/conn_impl.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define RING_MIN 8192u
#define RING_KEEP (256u << 10) /* a larger ring is given back once it is empty */
#define SEGS_MIN 64u
#define IOVS 256u
#define TLS_CHUNK 16384u   /* one full record */
#define COPY_BELOW 257u	   /* a payload slice this short costs less copied than as an iovec */

/* ---- The queue ---- */

static void ring_write(struct tx *t, const void *data, size_t n)
{
	size_t at = t->ring_tail & (t->ring_size - 1);
	size_t first = MIN(n, t->ring_size - at);

	memcpy(t->ring + at, data, first);
	memcpy(t->ring, (const uint8_t *)data + first, n - first);
	t->ring_tail += n;
}

static void ring_reserve(struct tx *t, size_t n)
{
	uint64_t size = t->ring_size ? t->ring_size : RING_MIN;
	struct tx grown = *t;

	while (size - (t->ring_tail - t->ring_head) < n)
		size *= 2;
	if (size == t->ring_size)
		return;
	grown.ring = xmalloc(size);
	grown.ring_size = size;
	grown.ring_tail = t->ring_head;
	while (grown.ring_tail < t->ring_tail) {
		size_t at = grown.ring_tail & (t->ring_size - 1);

		ring_write(&grown, t->ring + at,
			   MIN(t->ring_tail - grown.ring_tail, t->ring_size - at));
	}
	free(t->ring);
	*t = grown;
}

static struct tx_seg *seg_at(struct tx *t, uint64_t position)
{
	return &t->segs[position & (t->seg_size - 1)];
}

static void seg_push(struct tx *t, struct buf *buf, const uint8_t *data, uint32_t len)
{
	if (t->seg_tail - t->seg_head == t->seg_size) {
		struct tx grown = *t;

		grown.seg_size = t->seg_size ? 2 * t->seg_size : SEGS_MIN;
		grown.segs = xcalloc(grown.seg_size, sizeof(*grown.segs));
		for (uint64_t i = t->seg_head; i < t->seg_tail; i++)
			*seg_at(&grown, i) = *seg_at(t, i);
		free(t->segs);
		*t = grown;
	}
	*seg_at(t, t->seg_tail++) = (struct tx_seg){ .buf = buf, .data = data, .len = len };
}

/* The last n bytes of the ring belong to the end of the queue. */
static void seg_ring(struct tx *t, uint32_t n)
{
	struct tx_seg *last = t->seg_tail > t->seg_head ? seg_at(t, t->seg_tail - 1) : NULL;

	if (last && !last->buf && last->len <= UINT32_MAX - n)
		last->len += n;
	else
		seg_push(t, NULL, NULL, n);
}

static void tx_consume(struct tx *t, size_t n)
{
	t->sent += n;
	t->queued -= n;
	while (n) {
		struct tx_seg *s = seg_at(t, t->seg_head);
		uint32_t part = (uint32_t)MIN(n, (size_t)s->len);

		if (s->buf)
			s->data += part;
		else
			t->ring_head += part;
		s->len -= part;
		n -= part;
		if (s->len)
			break;
		if (s->buf)
			buf_unref(s->buf);
		t->seg_head++;
	}
}

/* The front of the queue as iovecs; returns their number. */
static unsigned tx_gather(struct tx *t, struct iovec *iov, unsigned max, size_t *bytes)
{
	uint64_t ring = t->ring_head;
	unsigned n = 0;

	*bytes = 0;
	for (uint64_t i = t->seg_head; i < t->seg_tail && n + 2 <= max; i++) {
		struct tx_seg *s = seg_at(t, i);

		*bytes += s->len;
		if (s->buf) {
			iov[n++] = (struct iovec){ (void *)s->data, s->len };
			continue;
		}
		size_t at = ring & (t->ring_size - 1);
		size_t first = MIN((size_t)s->len, t->ring_size - at);

		iov[n++] = (struct iovec){ t->ring + at, first };
		if (first < s->len)
			iov[n++] = (struct iovec){ t->ring, s->len - first };
		ring += s->len;
	}
	return n;
}

void conn_tx_fini(struct conn *c)
{
	struct tx *t = &c->tx;

	for (; t->seg_head < t->seg_tail; t->seg_head++)
		if (seg_at(t, t->seg_head)->buf)
			buf_unref(seg_at(t, t->seg_head)->buf);
	free(t->segs);
	free(t->ring);
	*t = (struct tx){ .sent = t->sent };
}

void conn_send(struct conn *c, uint16_t opcode, uint64_t id, const void *body, uint32_t body_len,
	       const struct slice *payload, unsigned slices)
{
	struct wire_header h = { .opcode = opcode, .id = id, .body_len = body_len };
	struct tx *t = &c->tx;
	uint8_t header[WIRE_HEADER_SIZE];
	uint64_t payload_len = 0;

	CHECK(c->magic == CONN_MAGIC);
	if (c->closed || c->shutting_down)
		return;
	for (unsigned i = 0; i < slices; i++)
		payload_len += payload[i].len;
	CHECK(payload_len <= WIRE_PAYLOAD_MAX);
	h.payload_len = (uint32_t)payload_len;
	wire_header_encode(&h, body, header);
	ring_reserve(t, WIRE_HEADER_SIZE + body_len);
	ring_write(t, header, WIRE_HEADER_SIZE);
	if (body_len)
		ring_write(t, body, body_len);
	seg_ring(t, WIRE_HEADER_SIZE + body_len);
	for (unsigned i = 0; i < slices; i++) {
		const struct slice *s = &payload[i];

		if (s->buf && s->len >= COPY_BELOW) {
			seg_push(t, buf_ref(s->buf), s->data, s->len);
		} else if (s->len) { /* short, or memory without an owner to reference */
			ring_reserve(t, s->len);
			ring_write(t, s->data, s->len);
			seg_ring(t, s->len);
		}
	}
	t->queued += WIRE_HEADER_SIZE + body_len + payload_len;
	if (t->queued >= c->send_limit)
		t->was_full = true;
	if (t->queued > 4 * c->send_limit) {
		log_warn("net", "peer does not take what is sent to it: closing",
			 "peer=%s identity=\"%s\" queued_bytes=%zu", c->peer_address, c->peer_name,
			 t->queued);
		conn_close(c, -ENOBUFS);
		return;
	}
	if (!t->blocked && !c->handshaking)
		turn_end_arm(c->loop, &c->end, TURN_SEND);
	conn_tick_arm(c);
}

bool conn_full(const struct conn *c)
{
	return c->tx.queued >= c->send_limit;
}

size_t conn_queued_bytes(const struct conn *c)
{
	return c->tx.queued;
}

/* ---- To the socket ---- */

enum sent { SENT_SOME, SENT_BLOCKED, SENT_FAILED };

static enum sent tx_write_plain(struct conn *c)
{
	struct iovec iov[IOVS];
	struct msghdr m = { .msg_iov = iov };
	size_t bytes;
	ssize_t n;

	m.msg_iovlen = tx_gather(&c->tx, iov, IOVS, &bytes);
	n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (n < 0 && errno == EINTR)
		return SENT_SOME;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return SENT_BLOCKED;
	if (n < 0) {
		conn_close(c, errno == EPIPE ? -ERR_CLOSED : -errno);
		return SENT_FAILED;
	}
	tx_consume(&c->tx, (size_t)n);
	return (size_t)n < bytes ? SENT_BLOCKED : SENT_SOME;
}

/* One record. A long run goes to OpenSSL in place, short ones are put together first. The bytes are
 * the same at a repetition after TLS_WANT_*, since the queue only grows at its end. */
static enum sent tx_write_tls(struct conn *c)
{
	uint8_t chunk[TLS_CHUNK];
	const uint8_t *from = chunk;
	struct iovec iov[IOVS];
	size_t bytes, len = 0, limit = TLS_CHUNK;
	unsigned iovs = tx_gather(&c->tx, iov, IOVS, &bytes);
	ssize_t n;
	int rc;

	if (c->tx.plain_pending)
		limit = MIN(limit, c->tx.plain_at - c->tx.sent);
	if (iov[0].iov_len >= limit) {
		from = iov[0].iov_base;
		len = limit;
	}
	for (unsigned i = 0; from == chunk && i < iovs && len < limit; i++) {
		size_t part = MIN(iov[i].iov_len, limit - len);

		memcpy(chunk + len, iov[i].iov_base, part);
		len += part;
	}
	n = tls_write(c->tls, from, len, &rc);
	if (n == TLS_WANT_READ || n == TLS_WANT_WRITE)
		return SENT_BLOCKED;
	if (n <= 0) {
		conn_close(c, rc ? (rc == -EPIPE ? -ERR_CLOSED : rc) : -ERR_CLOSED);
		return SENT_FAILED;
	}
	tx_consume(&c->tx, (size_t)n);
	if (c->tx.plain_pending && c->tx.sent == c->tx.plain_at)
		conn_drop_tls(c);
	return c->closed ? SENT_FAILED : SENT_SOME;
}

static void tx_linger(struct conn *c)
{
	c->lingering = true;
	tls_session_destroy(c->tls);
	c->tls = NULL;
	shutdown(c->fd, SHUT_WR);
	conn_tick_arm(c);
}

void conn_tx_flush(struct conn *c)
{
	struct tx *t = &c->tx;
	enum sent s = SENT_SOME;

	while (t->queued && s == SENT_SOME)
		s = c->tls ? tx_write_tls(c) : tx_write_plain(c);
	if (s == SENT_FAILED)
		return;
	t->blocked = t->queued != 0;
	conn_watch_update(c);
	if (!t->queued && t->ring_size > RING_KEEP) {
		free(t->ring);
		t->ring = NULL;
		t->ring_size = 0;
	}
	if (!t->queued && c->shutting_down && !c->lingering) {
		tx_linger(c);
		return;
	}
	if (t->was_full && t->queued < c->send_limit) {
		t->was_full = false;
		if (c->ops->on_drained)
			c->ops->on_drained(c);
	}
}
