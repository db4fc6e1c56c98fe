/* SPDX-License-Identifier: Apache-2.0 */
/* The accepting side: one port, one loop. Accepts, does TLS and reads HELLO under a 3 s deadline (at
 * most 256 connections may be unfinished; older anonymous ones are dropped first), checks protocol
 * version, cluster and that the certificate names the hello's identity, and asks the user. */
#pragma once

#include "net/conn.h"

struct listener;

/* Decide about a hello. Return NULL to refuse (fill refusal), or where the connection goes. The
 * connection is handed over to *loop; there accepted() is called with a conn on that loop, which has
 * sent WELCOME (`welcome`, filled in by the user) already. Frames go to the ops set with conn_set. */
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
	struct tls_ctx *tls;
	const char *address; /* numeric host:port; port 0 picks one */
	struct uuid cluster;
	/* true: accept, *d is filled. false: refuse with *f. On the listener's loop. */
	bool (*decide)(void *data, const struct wire_hello *peer, const char *tls_name,
		       struct accept_decision *d, struct wire_refusal *f);
	void *data;
};

/* NULL and a log line (naming address and remedy) if it cannot be bound. */
struct listener *listener_create(const struct listener_config *cfg);
void listener_destroy(struct listener *ls);
uint16_t listener_port(const struct listener *ls);
