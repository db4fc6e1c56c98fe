/* SPDX-License-Identifier: Apache-2.0 */
/* The accepting side: one port, one loop. Accepts, does TLS and reads HELLO under a 3 s deadline (at
 * most 256 connections may be unfinished; older anonymous ones are dropped first), checks protocol
 * version, cluster and that the certificate names the hello's identity, and asks the user. */
#pragma once

#include "net/conn.h"

struct listener;

/* Where a connection goes. It is handed over to *loop (which may be the listener's own); there
 * accepted() is called with a conn on that loop, which has sent WELCOME (`welcome`, filled in by the
 * user) already. accepted() sets its ops with conn_set, or closes it. The loop and what `data` points
 * to must outlive the hand-over. The version range of `welcome` is filled in by the listener; TLS is
 * left after WELCOME when both hellos have HELLO_PLAIN and the connection is one for data. */
struct accept_decision {
	struct loop *loop;
	struct buf_pool *pool;
	size_t send_limit;
	struct wire_hello welcome;
	void (*accepted)(void *data, struct conn *c, const struct wire_hello *peer); /* on *loop */
	void *data;
};

struct listener_config {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls; /* NULL: no TLS and no identity check, for tests and benchmarks only */
	const char *address; /* numeric host:port; port 0 picks one */
	struct uuid cluster;
	/* true: accept, *d is filled. false: refuse with *f. On the listener's loop. */
	bool (*decide)(void *data, const struct wire_hello *peer, const char *tls_name,
		       struct accept_decision *d, struct wire_refusal *f);
	void *data;
};

/* NULL and a log line (naming address and remedy) if it cannot be bound. */
struct listener *listener_create(const struct listener_config *cfg);
/* Drops unfinished connections; their memory goes at the end of the loop's next turn. */
void listener_destroy(struct listener *ls);
uint16_t listener_port(const struct listener *ls);
