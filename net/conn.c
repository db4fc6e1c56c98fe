/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's life: creation, TLS handshake, deadlines, the ways out. The two halves that move
 * bytes are conn_rx.c and conn_tx.c.
 *
 *   create → handshaking (TLS only) → open → closed → on_closed → freed
 *                                       └ shutting_down → lingering ┘
 *
 * Closing is two steps: conn_close ends I/O at once, and the end of the turn calls on_closed and frees.
 * So no call ever calls back, and memory that a caller further up the stack looks at stays.
 *
 * Deadlines count ticks instead of reading clocks: a tick that saw no progress on something
 * outstanding is one stall, ten in a row end the connection. The tick runs only while there is
 * something outstanding, and a process that was stopped for a minute has missed one tick, not 120. */
#include "net/conn_impl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/address.h"
#include "node/base/err.h"
#include "node/base/log.h"

_Static_assert(sizeof(((struct conn *)0)->peer_address) >= ADDRESS_TEXT, "an address fits");

static void socket_tune(int fd)
{
	int one = 1, idle_s = 5, interval_s = 1, probes = 5;
	unsigned timeout_ms = 5000;

	/* None of this exists on a unix socket, and none is worth a failure. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

void conn_watch_update(struct conn *c)
{
	fdwatch_want(&c->watch, (c->memory_waiting ? 0 : FD_READ) | (c->tx.blocked ? FD_WRITE : 0));
}

void conn_drop_tls(struct conn *c)
{
	/* Whatever the peer sent between HELLO and here would be read as TLS by one side only. */
	if (conn_rx_incomplete(c) || tls_pending(c->tls)) {
		log_warn("net", "bytes in the middle of leaving TLS: closing", "peer=%s identity=\"%s\"",
			 c->peer_address, c->peer_name);
		conn_close(c, -ERR_PROTOCOL);
		return;
	}
	tls_session_drop(c->tls);
	c->tls = NULL;
	c->tx.plain_pending = false;
}

static void name_take(struct conn *c)
{
	snprintf(c->peer_name, sizeof(c->peer_name), "%s", tls_peer_name(c->tls));
}

static void handshake_run(struct conn *c)
{
	int rc, want = tls_handshake(c->tls, &rc);

	if (rc) {
		conn_close(c, rc);
		return;
	}
	c->handshaking = want != 0;
	c->tx.blocked = want == TLS_WANT_WRITE;
	name_take(c);
	conn_watch_update(c);
}

static void on_ready(struct fdwatch *w, unsigned events)
{
	struct conn *c = container_of(w, struct conn, watch);

	if (c->handshaking) {
		handshake_run(c);
		if (c->closed || c->handshaking)
			return;
		conn_tx_flush(c);
	} else if ((events & FD_WRITE) || (c->tls && c->tx.queued)) {
		conn_tx_flush(c);
	}
	if (!c->closed && ((events & FD_READ) || c->tls))
		conn_rx_run(c);
}

static void conn_free(struct conn *c)
{
	c->magic = 0;
	conn_tx_fini(c);
	conn_rx_fini(c);
	free(c);
}

static void conn_finish(struct conn *c)
{
	if (!c->detached)
		c->ops->on_closed(c, c->reason);
	c->finished = true;
	if (!c->again_posted) /* else the post frees */
		conn_free(c);
}

static void on_turn_end(struct turn_end *t)
{
	struct conn *c = container_of(t, struct conn, end);

	if (c->closed) {
		conn_finish(c);
		return;
	}
	if (c->handshaking)
		handshake_run(c);
	if (!c->closed && !c->handshaking)
		conn_tx_flush(c);
	/* What came with the end of the handshake may be inside OpenSSL already: the fd stays silent. */
	if (!c->closed && !c->handshaking && c->tls && tls_pending(c->tls))
		conn_run_again(c);
}

static void on_again(struct post *p)
{
	struct conn *c = container_of(p, struct conn, again);

	c->again_posted = false;
	if (c->finished) {
		conn_free(c);
		return;
	}
	if (c->closed)
		return;
	conn_watch_update(c);
	conn_rx_run(c);
}

void conn_run_again(struct conn *c)
{
	if (c->again_posted)
		return;
	c->again_posted = true;
	loop_post(c->loop, &c->again);
}

static void on_memory(struct pool_waiter *w)
{
	struct conn *c = container_of(w, struct conn, memory);

	c->memory_waiting = false;
	conn_run_again(c);
}

void conn_memory_wait(struct conn *c)
{
	if (c->memory_waiting || c->closed)
		return;
	c->memory_waiting = true;
	buf_wait(c->pool, &c->memory);
	conn_watch_update(c);
}

/* ---- Deadlines ---- */

void conn_tick_arm(struct conn *c)
{
	if (!c->tick.armed && !c->closed)
		timer_set(&c->tick, CONN_TICK_US);
}

static bool stalled(bool outstanding, uint64_t now, uint64_t *seen, unsigned *stall)
{
	if (!outstanding || now != *seen)
		*stall = 0;
	else
		++*stall;
	*seen = now;
	return *stall >= CONN_STALL_TICKS;
}

static void on_tick(struct timer *t)
{
	struct conn *c = container_of(t, struct conn, tick);
	bool sending = c->tx.queued || c->handshaking;
	bool receiving = conn_rx_incomplete(c) && !c->memory_waiting;
	bool rx_idle = c->rx.received == c->rx_seen;

	if (c->lingering && ++c->linger_ticks >= CONN_LINGER_TICKS) {
		conn_close(c, -ERR_CLOSED);
		return;
	}
	if (stalled(sending, c->tx.sent, &c->tx_seen, &c->tx_stall) ||
	    stalled(receiving, c->rx.received, &c->rx_seen, &c->rx_stall)) {
		log_warn("net", "no progress for 5 s: closing",
			 "peer=%s identity=\"%s\" queued_bytes=%zu receiving=%d handshaking=%d",
			 c->peer_address, c->peer_name, c->tx.queued, receiving, c->handshaking);
		conn_close(c, -ETIMEDOUT);
		return;
	}
	c->rx_seen = c->rx.received;
	if (rx_idle)
		conn_rx_release_idle(c, true);
	if (sending || receiving || c->lingering || c->rx.stage)
		conn_tick_arm(c);
}

/* ---- Life ---- */

struct conn *conn_create(struct loop *l, struct buf_pool *pool, int fd, struct tls_session *tls,
			 size_t send_limit, const struct conn_ops *ops, void *data)
{
	struct conn *c = xcalloc(1, sizeof(*c));
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);

	CHECK(send_limit && ops && ops->on_frame && ops->on_closed);
	c->magic = CONN_MAGIC;
	c->fd = fd;
	c->loop = l;
	c->pool = pool;
	c->tls = tls;
	c->ops = ops;
	c->data = data;
	c->send_limit = send_limit;
	c->rx.body_max = WIRE_BODY_MAX;
	c->rx.payload_max = WIRE_PAYLOAD_MAX;
	c->handshaking = tls != NULL;
	c->again.fn = on_again;
	c->memory.ready = on_memory;
	list_init(&c->memory.link);
	getpeername(fd, (struct sockaddr *)&sa, &len);
	address_format(&sa, c->peer_address);
	socket_tune(fd);
	fdwatch_init(&c->watch, l, fd, on_ready);
	timer_init(&c->tick, l, on_tick);
	turn_end_init(&c->end, on_turn_end);
	conn_watch_update(c);
	if (tls) { /* the dialler speaks first; a session handed over is through already */
		name_take(c);
		turn_end_arm(l, &c->end, TURN_SEND);
		conn_tick_arm(c);
	}
	return c;
}

void *conn_data(const struct conn *c)
{
	CHECK(c->magic == CONN_MAGIC);
	return c->data;
}

void conn_set(struct conn *c, const struct conn_ops *ops, void *data)
{
	CHECK(c->magic == CONN_MAGIC && ops->on_frame && ops->on_closed);
	c->ops = ops;
	c->data = data;
}

/* I/O ends here; what a caller up the stack may look at (rx memory, c itself) lives on. */
static void io_end(struct conn *c)
{
	c->closed = true;
	fdwatch_fini(&c->watch);
	timer_fini(&c->tick);
	list_del(&c->memory.link);
	turn_end_arm(c->loop, &c->end, TURN_SEND);
}

void conn_close(struct conn *c, int reason)
{
	CHECK(c->magic == CONN_MAGIC);
	if (c->closed)
		return;
	c->reason = reason;
	io_end(c);
	/* close_notify in the middle of a record would be noise; the queue is dropped anyway. */
	if (c->tx.queued || c->handshaking)
		tls_session_drop(c->tls);
	else
		tls_session_destroy(c->tls);
	c->tls = NULL;
	close(c->fd);
	c->fd = -1;
	conn_tx_fini(c);
}

void conn_shutdown(struct conn *c)
{
	CHECK(c->magic == CONN_MAGIC);
	if (c->closed || c->shutting_down)
		return;
	c->shutting_down = true;
	if (!c->tx.blocked && !c->handshaking)
		turn_end_arm(c->loop, &c->end, TURN_SEND);
	conn_tick_arm(c);
}

void conn_limit_frames(struct conn *c, uint32_t body_max, uint32_t payload_max)
{
	c->rx.body_max = MIN(body_max, WIRE_BODY_MAX);
	c->rx.payload_max = MIN(payload_max, WIRE_PAYLOAD_MAX);
}

void conn_plain_after_send(struct conn *c)
{
	if (c->closed || !c->tls)
		return;
	c->tx.plain_pending = true;
	c->tx.plain_at = c->tx.sent + c->tx.queued;
	if (!c->tx.queued)
		conn_drop_tls(c);
}

void conn_plain_now(struct conn *c)
{
	if (!c->closed && c->tls) {
		CHECK(!c->tx.queued);
		conn_drop_tls(c);
	}
}

void conn_tls_stays(struct conn *c)
{
	if (!c->closed && c->tls)
		tls_session_read_ahead(c->tls);
}

struct conn_parts conn_detach(struct conn *c)
{
	struct conn_parts parts = { .fd = c->fd, .tls = c->tls };

	CHECK(c->magic == CONN_MAGIC && !c->closed && !c->tx.queued && !c->handshaking);
	if (conn_rx_incomplete(c) || (c->tls && tls_pending(c->tls))) {
		conn_close(c, -ERR_PROTOCOL);
		return (struct conn_parts){ .fd = -1 };
	}
	c->detached = true;
	io_end(c);
	c->tls = NULL;
	c->fd = -1;
	return parts;
}

const char *conn_peer_name(const struct conn *c)
{
	return c->peer_name;
}

const char *conn_peer_address(const struct conn *c)
{
	return c->peer_address;
}
