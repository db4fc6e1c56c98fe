/* SPDX-License-Identifier: Apache-2.0 */
/* One framed connection on one loop: receives frames, sends them gathered, once per turn.
 *
 * Owned by its user, who calls conn_close; on_closed comes exactly once, from the loop, never inside a
 * call, also after conn_close; the memory is freed after it. Receive memory is reference counted: a
 * frame's payload may be kept with slice_ref. It lies in a staging buffer of up to 256 KiB shared with
 * its neighbours, so whoever keeps it for long copies it instead. TCP_NODELAY and keep-alive are set.
 * A connection that has bytes to send or an incomplete frame to receive and makes no progress for 5 s
 * is closed with -ETIMEDOUT. SIGPIPE never happens (MSG_NOSIGNAL; for TLS see tls.h). */
#pragma once

#include "net/tls.h"
#include "net/wire.h"
#include "node/base/buf.h"
#include "node/loop/loop.h"

struct conn;

struct frame {
	uint16_t opcode;
	uint64_t id;
	const uint8_t *body; /* valid during the callback */
	uint32_t body_len;
	struct slice payload; /* borrowed; slice_ref to keep */
};

struct conn_ops {
	void (*on_frame)(struct conn *c, const struct frame *f);
	void (*on_closed)(struct conn *c, int reason); /* -ERR_CLOSED, -ECONNREFUSED, -ERR_PROTOCOL … */
	void (*on_drained)(struct conn *c); /* may be NULL: the queue fell below the bound again */
};

/* Takes over fd (non-blocking, connected) and tls (NULL: plain; else c does the handshake, and what is
 * sent before its end waits for it). `pool` gives receive memory; while
 * it is empty the connection stops reading. send_limit: bytes queued before conn_full is true. */
struct conn *conn_create(struct loop *l, struct buf_pool *pool, int fd, struct tls_session *tls,
			 size_t send_limit, const struct conn_ops *ops, void *data);
void *conn_data(const struct conn *c);
void conn_set(struct conn *c, const struct conn_ops *ops, void *data);
void conn_close(struct conn *c, int reason); /* drops what is queued */
/* Sends what is queued, half-closes, and closes when the peer has closed too or after 1 s: closing at
 * once would let a reset overtake the last frame. Nothing is received any more. */
void conn_shutdown(struct conn *c);
/* Bounds on what is received, for the time before the peer is known (default: those of wire.h). */
void conn_limit_frames(struct conn *c, uint32_t body_max, uint32_t payload_max);

/* Queues a frame: the body is copied, payload slices are referenced until sent. Never blocks; above
 * the bound frames are still taken (conn_full tells producers to stop), at 4 × the bound the
 * connection is closed with -ENOBUFS. Ignored after close. */
void conn_send(struct conn *c, uint16_t opcode, uint64_t id, const void *body, uint32_t body_len,
	       const struct slice *payload, unsigned slices);
bool conn_full(const struct conn *c);
size_t conn_queued_bytes(const struct conn *c);

/* Leave TLS: conn_plain_after_send once what is queued now is sent (acceptor, after WELCOME);
 * conn_plain_now (dialler, on WELCOME). A peer that sent anything in between is a protocol error.
 * conn_tls_stays: WELCOME is through and TLS goes on; allows it to read ahead. All no-ops in plain. */
void conn_plain_after_send(struct conn *c);
void conn_plain_now(struct conn *c);
void conn_tls_stays(struct conn *c);

/* Detach for hand-over to another loop: stops I/O here, returns fd and session with no byte lost. The
 * acceptor calls it after HELLO, before it sends WELCOME; nothing may be queued. c is freed without
 * on_closed. If the peer sent more than HELLO, fd is -1 and c is closed as by conn_close. */
struct conn_parts {
	int fd;
	struct tls_session *tls;
};
struct conn_parts conn_detach(struct conn *c);
const char *conn_peer_name(const struct conn *c);    /* TLS identity, "" if none */
const char *conn_peer_address(const struct conn *c); /* "127.0.0.1:7000" for logs */
