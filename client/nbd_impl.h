/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the NBD front end, shared by nbd.c (server, life of a connection), nbd_io.c (bytes in and
 * out) and nbd_transmission.c (requests). One loop.
 *
 * Memory is bounded in three places: requests come from one pool, payload (received or to be sent) is
 * reserved by its length per connection and per server before a request is taken, and the buffers
 * come from the loop's pool. Whoever does not get what it needs stops reading its socket. */
#pragma once

#include "client/nbd.h"
#include "client/nbd_proto.h"
#include "net/tls.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop.h"

#define NBD_REQUESTS 1024u	       /* per server */
#define NBD_CONN_REQUESTS 256u	       /* per connection */
#define NBD_SERVER_BYTES (48u << 20)   /* payload of requests taken and not yet answered */
#define NBD_CONN_BYTES (16u << 20)     /* the same of one connection; a single larger request passes */
#define NBD_IN_SIZE 65536u	       /* receive buffer */
#define NBD_INLINE_MAX 32768u	       /* a payload up to here is used where it was received */
#define NBD_IOV_MAX 256u
#define NBD_NEGOTIATE_MS 10000u
#define NBD_STOP_MS 5000u
#define NBD_STALL_MS 10000u /* a connection that holds memory others wait for, without progress */
#define NBD_TICK_US 500000u
#define NBD_STATUS_MAX (256u << 20) /* one block status covers at most this much */

struct nbd_conn;

/* One request, from its header to the last byte of its reply. */
struct nbd_req {
	struct list link; /* conn.replies, or the pool */
	struct nbd_conn *conn;
	struct wait wait;
	struct volume_io io;
	uint64_t cookie;
	uint32_t reserved, error;
	uint16_t type, flags;
	uint16_t head_len, text_len;
	uint8_t head[40];

	struct buf *extents;
	union {
		struct slice slices[VOLUME_IO_SLICES_MAX];
		char text[256]; /* of an error chunk */
	};
};

enum nbd_state { NBD_NEGOTIATING, NBD_TLS_HANDSHAKE, NBD_OPEN, NBD_CLOSING, NBD_DEAD };

struct nbd_conn {
	struct list link;    /* server.conns or .dead */
	struct list starved; /* server.starved */
	struct nbd_server *server;
	enum nbd_state state;
	int fd;
	struct fdwatch watch;
	struct tls_session *tls;
	bool paused;   /* waits for requests, budget or memory: does not read */
	bool last;     /* reads no more (DISC, stop): ends with its last reply */
	bool memory_waiting, write_blocked;
	enum nbd_step after_out; /* negotiation: what comes when `out` is sent */
	uint64_t started_us, progress_us;
	struct nbd_negotiation negotiation;
	uint64_t unknown_us; /* when the name that it asks for was first not known; 0 */
	struct timer unknown;
	struct writer out;
	size_t out_sent;

	struct buf *in;
	uint32_t in_start, in_end;
	struct nbd_req *filling; /* a write whose payload is being received, or skipped */
	uint32_t fill_slice;	 /* the slice being filled */
	uint32_t fill_at, fill_left;
	bool skipping;

	struct volume *volume;
	struct wait closed;
	struct list replies;
	uint32_t head_sent; /* bytes of the first reply that are sent */
	unsigned requests;
	uint32_t bytes; /* reserved */
	struct turn_end turn;
	struct pool_waiter memory;
	char peer[64];
};

struct nbd_listener {
	struct nbd_server *server;
	int fd;
	struct fdwatch watch;
	bool is_tcp, tls_required;
};

struct nbd_server {
	struct nbd_config cfg;
	char *unix_path;
	struct nbd_listener listeners[2];
	unsigned listener_count, conn_count, negotiating;
	uint16_t port;
	struct pool requests;
	uint32_t bytes;
	struct list conns, dead, starved;
	struct turn_end turn;
	struct timer tick;
	struct wait *stop_wait;
	uint64_t stop_us, unknown_us; /* unknown: when an unknown export was last logged */
	bool stopping, aborted, accept_paused;
};

/* nbd.c */
void nbd_conn_fail(struct nbd_conn *c, const char *why); /* why: for the log, NULL when it is no news */
void nbd_conn_check_end(struct nbd_conn *c);
void nbd_conn_pause(struct nbd_conn *c);
void nbd_server_arm(struct nbd_server *s);
void nbd_conn_memory_wait(struct nbd_conn *c);
void nbd_conn_again(struct nbd_conn *c); /* receives again from the end of the turn */

/* nbd_io.c */
bool nbd_conn_receive_options(struct nbd_conn *c); /* false: nothing more now */
void nbd_conn_receive(struct nbd_conn *c); /* goes on reading, also after a pause */
void nbd_conn_send(struct turn_end *t);
void nbd_conn_want(struct nbd_conn *c);
void nbd_conn_flush_out(struct nbd_conn *c);

/* nbd_transmission.c */
/* Takes requests from the receive buffer until it holds none whole, or something is short. */
void nbd_conn_parse(struct nbd_conn *c);
/* Space for the payload being received; false: no memory, the connection is paused. */
bool nbd_fill_space(struct nbd_conn *c, uint8_t **at, uint32_t *len);
void nbd_fill_took(struct nbd_conn *c, uint32_t n);
void nbd_req_free(struct nbd_req *q);
