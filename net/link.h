/* SPDX-License-Identifier: Apache-2.0 */
/* The dialling side of one connection that should always be up: dial, TLS, HELLO, WELCOME, and again
 * after a loss, with back-off 10 ms … 1 s. Reports what it learns of a dead peer: "refused" means the
 * host answered that nobody listens there, which may start a takeover proposal (cluster/replication.md, S1).
 * One loop; all callbacks come from it. */
#pragma once

#include "net/conn.h"

struct link;

struct link_ops {
	/* WELCOME came; c's frames go to the ops that up() sets with conn_set. */
	void (*up)(struct link *k, struct conn *c, const struct wire_hello *peer);
	/* Called from the link when its connection ended or a dial failed. reason: -ECONNREFUSED,
	 * -ECONNRESET / -ERR_CLOSED (peer closed), -ETIMEDOUT, -ERR_AUTH (certificates), -ERR_FOREIGN
	 * (another cluster), -ERR_REFUSED with refusal set, … The link may be destroyed in it. */
	void (*down)(struct link *k, int reason, const struct wire_refusal *refusal);
};

struct link_config {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;  /* NULL: no TLS, for tests and benchmarks only */
	const char *address;  /* "host:port", "[v6]:port"; numeric */
	const char *tls_name; /* the identity the peer must have, or NULL */
	struct wire_hello hello;
	size_t send_limit;
	const struct link_ops *ops;
	void *data;
};

struct link *link_create(const struct link_config *cfg); /* copies cfg; dials at once */
/* No callback after it. A connection that is up stays its user's: close it before or after. */
void link_destroy(struct link *k);
void *link_data(const struct link *k);
void link_set_address(struct link *k, const char *address);
void link_kick(struct link *k); /* dial now instead of at the end of the back-off */
/* The user's on_closed of the connection passes the end on; down() follows from the loop, and the link
 * dials again. */
void link_conn_closed(struct link *k, int reason);

/* A bare TCP probe: connects and closes. Resumes with 0 (someone listens), -ECONNREFUSED, or
 * -ETIMEDOUT after timeout_ms, or another errno. One at a time per struct (zeroed before the first).
 * Always PENDING. */
struct tcp_probe {
	struct wait *wait;
	void *impl;
};
int tcp_probe(struct loop *l, struct tcp_probe *p, const char *address, unsigned timeout_ms,
	      struct wait *w) MUST_USE;
