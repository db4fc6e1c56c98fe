/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in and out of one NBD connection, plain or TLS. Many requests per receive, all replies of a
 * turn in one gathered send. A receive buffer is held only while it has bytes in it. */
#include "client/nbd_impl.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVE_ROUNDS                                                                             \
	8u /* per readiness event, so that one connection does not starve the others */
#define RECEIVE_TAIL 8192u
#define TLS_GATHER   16384u

/* > 0 bytes, 0 orderly end, -EAGAIN, or an error. */
static ssize_t sock_readv(struct nbd_conn *c, struct iovec *iov, int count)
{
	ssize_t n;
	int rc = 0;

	if (c->tls) {
		n = tls_read(c->tls, iov[0].iov_base, iov[0].iov_len, &rc);
		if (rc < 0)
			return rc;
		return n < 0 ? -EAGAIN : n;
	}
	do {
		n = readv(c->fd, iov, count);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? (errno == EAGAIN ? -EAGAIN : -errno) : n;
}

/* Short gathers are copied together: one TLS record for many small replies. */
static ssize_t tls_writev(struct nbd_conn *c, const struct iovec *iov, int count)
{
	uint8_t gather[TLS_GATHER];
	size_t len = 0;
	ssize_t n;
	int rc = 0;

	if (count > 0 && iov[0].iov_len >= TLS_GATHER) {
		n = tls_write(c->tls, iov[0].iov_base, TLS_GATHER, &rc);
	} else {
		for (int i = 0; i < count && len < TLS_GATHER; i++) {
			size_t part = MIN(iov[i].iov_len, TLS_GATHER - len);

			memcpy(gather + len, iov[i].iov_base, part);
			len += part;
		}
		n = tls_write(c->tls, gather, len, &rc);
	}
	if (rc < 0)
		return rc;
	return n < 0 ? -EAGAIN : n;
}

static ssize_t sock_writev(struct nbd_conn *c, struct iovec *iov, int count)
{
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
	ssize_t n;

	if (c->tls)
		return tls_writev(c, iov, count);
	do {
		n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? (errno == EAGAIN ? -EAGAIN : -errno) : n;
}

void nbd_conn_want(struct nbd_conn *c)
{
	bool reads = !c->paused && !c->last;

	if (c->state >= NBD_CLOSING || c->state == NBD_TLS_HANDSHAKE)
		return;
	/* What was answered must be read before more is asked for. */
	if (c->state == NBD_NEGOTIATING && c->out.len)
		reads = false;
	/* A connection that reads no more would not see its peer go; level-triggered readiness of
	 * an end of file cannot be told from data, so a lost peer shows at the next reply. */
	fdwatch_want(&c->watch, (reads ? FD_READ : 0) | (c->write_blocked ? FD_WRITE : 0));
}

/* ---- Sending ---- */

static unsigned reply_iov(const struct nbd_req *q, struct iovec *iov, uint32_t skip)
{
	unsigned n = 0;

#define PUT(p, l)                                                                                  \
	do {                                                                                       \
		uint32_t l_ = (l);                                                                 \
		if (skip >= l_) {                                                                  \
			skip -= l_;                                                                \
		} else {                                                                           \
			iov[n++] = (struct iovec){(char *)(p) + skip, l_ - skip};                  \
			skip = 0;                                                                  \
		}                                                                                  \
	} while (0)
	PUT(q->head, q->head_len);
	if (q->error && q->head_len != NBD_SIMPLE_SIZE)
		PUT(q->text, q->text_len);
	for (unsigned i = 0; i < q->io.slice_count; i++)
		PUT(q->slices[i].data, q->slices[i].len);
#undef PUT
	return n;
}

static uint32_t reply_len(const struct nbd_req *q)
{
	uint32_t len = q->head_len;

	if (q->error && q->head_len != NBD_SIMPLE_SIZE)
		len += q->text_len;
	for (unsigned i = 0; i < q->io.slice_count; i++)
		len += q->slices[i].len;
	return len;
}

static void replies_sent(struct nbd_conn *c, size_t n)
{
	while (n) {
		struct nbd_req *q = list_first(&c->replies, struct nbd_req, link);
		uint32_t left = reply_len(q) - c->head_sent;

		if (n < left) {
			c->head_sent += (uint32_t)n;
			return;
		}
		n -= left;
		c->head_sent = 0;
		list_del(&q->link);
		nbd_req_free(q);
	}
}

void nbd_conn_send(struct turn_end *t)
{
	struct nbd_conn *c = container_of(t, struct nbd_conn, turn);
	struct iovec iov[NBD_IOV_MAX + VOLUME_IO_SLICES_MAX + 2];

	while (c->state == NBD_OPEN && !list_empty(&c->replies) && !c->write_blocked) {
		uint32_t skip = c->head_sent;
		struct nbd_req *q;
		size_t total = 0;
		unsigned n = 0;
		ssize_t done;

		list_for_each(q, &c->replies, link)
		{
			n += reply_iov(q, iov + n, skip);
			skip = 0;
			if (n >= NBD_IOV_MAX)
				break;
		}
		for (unsigned i = 0; i < n; i++)
			total += iov[i].iov_len;
		done = sock_writev(c, iov, (int)n);
		if (done < 0 && done != -EAGAIN) {
			nbd_conn_fail(c,
				      done == -EPIPE || done == -ECONNRESET ? NULL : "cannot send");
			return;
		}
		if (done > 0) {
			c->progress_us = loop_turn_us(c->server->cfg.loop);
			replies_sent(c, (size_t)done);
		}
		if (done < 0 || ((size_t)done < total && !c->tls))
			c->write_blocked = true;
	}
	nbd_conn_want(c);
	nbd_conn_check_end(c);
}

/* Negotiation: sends what is left of `out`. */
void nbd_conn_flush_out(struct nbd_conn *c)
{
	while (c->out_sent < c->out.len) {
		struct iovec iov = {c->out.data + c->out_sent, c->out.len - c->out_sent};
		ssize_t n = sock_writev(c, &iov, 1);

		if (n == -EAGAIN) {
			c->write_blocked = true;
			return;
		}
		if (n < 0) {
			nbd_conn_fail(c, NULL);
			return;
		}
		c->out_sent += (size_t)n;
	}
	c->out.len = c->out_sent = 0;
}

/* ---- Receiving ---- */

/* What the request at the front of the buffer needs in one piece. */
static uint32_t in_need(const struct nbd_conn *c)
{
	uint32_t have = c->in_end - c->in_start;
	struct nbd_request r;

	if (c->state != NBD_OPEN)
		return NBD_OPTION_HEADER + NBD_OPTION_MAX;
	if (have < NBD_REQUEST_SIZE || nbd_request_parse(c->in->data + c->in_start, &r) < 0)
		return NBD_REQUEST_SIZE;
	return NBD_REQUEST_SIZE +
	       (r.type == NBD_CMD_WRITE && r.length <= NBD_INLINE_MAX ? r.length : 0);
}

/* Makes room behind what is in the buffer; the parsed part may still be in use by slices. */
static bool in_room(struct nbd_conn *c)
{
	uint32_t have = c->in_end - c->in_start;
	struct buf *b = c->in;

	if (b && !have && b->refs == 1)
		c->in_start = c->in_end = 0;
	if (b && b->size - c->in_end >= RECEIVE_TAIL && b->size - c->in_start >= in_need(c))
		return true;
	if (b && b->refs == 1) {
		memmove(b->data, b->data + c->in_start, have);
	} else {
		c->in = buf_get(c->server->cfg.pool, NBD_IN_SIZE);
		if (!c->in) {
			c->in = b;
			nbd_conn_memory_wait(c);
			return false;
		}
		if (b) {
			memcpy(c->in->data, b->data + c->in_start, have);
			buf_unref(b);
		}
	}
	c->in_start = 0;
	c->in_end = have;
	return true;
}

static void in_release(struct nbd_conn *c)
{
	if (!c->in || c->in_start != c->in_end)
		return;
	buf_unref(c->in);
	c->in = NULL;
	c->in_start = c->in_end = 0;
}

/* One receive; false: stop for now. */
static bool receive_once(struct nbd_conn *c)
{
	bool fill = c->filling && !c->skipping;
	struct iovec iov[2];
	uint32_t piece = 0;
	size_t asked;
	ssize_t n;
	int count = 0;

	if (fill) {
		uint8_t *at;

		if (!nbd_fill_space(c, &at, &piece))
			return false;
		iov[count++] = (struct iovec){at, piece};
	}
	if (!fill || (!c->tls && piece == c->fill_left)) {
		if (!in_room(c))
			return false;
		iov[count++] = (struct iovec){c->in->data + c->in_end, c->in->size - c->in_end};
	}
	asked = iov[0].iov_len + (count > 1 ? iov[1].iov_len : 0);
	n = sock_readv(c, iov, count);
	if (n == -EAGAIN)
		return false;
	if (n <= 0) {
		nbd_conn_fail(c, NULL);
		return false;
	}
	c->progress_us = loop_turn_us(c->server->cfg.loop);
	if (fill) {
		uint32_t taken = (uint32_t)MIN((size_t)n, piece);

		c->in_end += (uint32_t)n - taken;
		nbd_fill_took(c, taken);
	} else {
		c->in_end += (uint32_t)n;
	}
	nbd_conn_parse(c);
	return c->tls || (size_t)n == asked;
}

void nbd_conn_receive(struct nbd_conn *c)
{
	bool more = true;

	for (unsigned i = 0; more && i < RECEIVE_ROUNDS; i++)
		more = c->state == NBD_OPEN && !c->paused && !c->last && receive_once(c);
	if (c->state != NBD_OPEN)
		return;
	in_release(c);
	/* TLS may hold bytes that no readiness will announce: come back by ourselves. */
	if (c->tls && more)
		nbd_conn_again(c);
	nbd_conn_want(c);
}

/* Negotiation: one receive into the buffer. */
bool nbd_conn_receive_options(struct nbd_conn *c)
{
	struct iovec iov;
	ssize_t n;

	if (!in_room(c))
		return false;
	iov = (struct iovec){c->in->data + c->in_end, c->in->size - c->in_end};
	n = sock_readv(c, &iov, 1);
	if (n == -EAGAIN)
		return false;
	if (n <= 0) {
		nbd_conn_fail(c, NULL);
		return false;
	}
	c->in_end += (uint32_t)n;
	return true;
}
