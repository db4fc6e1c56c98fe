/* SPDX-License-Identifier: Apache-2.0 */
/* evhttp's door: an HTTP/1.1 server on a root-only unix socket and on TLS. One handler gets every
 * request and answers now or later, exactly once. Limits: header, body, requests in flight, TLS
 * connections, idle time. One loop; all callbacks come from it. */
#pragma once

#include "net/tls.h"
#include "node/loop/loop.h"

struct http_server;

struct http_request {
	const char *method, *path, *query; /* path decoded; query raw, "" if none */
	const char *body;		   /* NUL-terminated */
	size_t body_len;
	bool local;	      /* came over the unix socket */
	char identity[128];   /* TLS: the client certificate's common name, "" for anonymous */
};

struct http_config {
	struct loop *loop;
	void (*handle)(void *ctx, struct http_request *r);
	void *ctx;
	size_t body_max;
	unsigned requests_max, tls_connections_max, idle_timeout_s;
};

struct http_server *http_create(const struct http_config *cfg);
/* A stale socket of a dead process is replaced; -EADDRINUSE when somebody answers there. Mode 0600. */
int http_listen_unix(struct http_server *s, const char *path) MUST_USE;
/* Asks for a client certificate of the same CA and also lets clients without one in (identity ""). */
int http_listen_tls(struct http_server *s, struct tls_ctx *tls, const char *address) MUST_USE;
uint16_t http_tls_port(const struct http_server *s);
/* Frees r. `type` is a media type. The body is copied. */
void http_reply(struct http_request *r, int status, const char *type, const char *body, size_t len);
/* No new connections, and the unix socket's name is gone; answers still go out. */
void http_unlisten(struct http_server *s);
/* Closes everything; every request must have been answered. */
void http_destroy(struct http_server *s);
