/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's door for connections: mutual TLS 1.3 with certificates of the cluster's own CA.
 *
 * An identity is the certificate's common name: "node:<uuid>", "client:<name>", "operator:<name>".
 * A tls_ctx is made once, any thread, and shared. A tls_session belongs to one thread at a time and
 * does non-blocking I/O on an fd it does not own. Read-ahead is off and no session tickets are sent,
 * so the TLS layer can be left cleanly after WELCOME (HELLO_PLAIN). */
#pragma once

#include <sys/types.h>

#include "node/base/check.h"

struct tls_ctx;
struct tls_session;

/* Paths of PEM files. NULL and a log line on failure. */
struct tls_ctx *tls_ctx_create(const char *ca, const char *cert, const char *key);
/* For joining: no certificate of our own; the server's CA must have this SHA-256 (hex). */
struct tls_ctx *tls_ctx_create_pinned(const char *ca_sha256_hex);
void tls_ctx_destroy(struct tls_ctx *c);
/* The server side does not ask for a client certificate until allow_anonymous is false (default). */
void tls_ctx_allow_anonymous(struct tls_ctx *c, bool allow);

struct tls_session *tls_session_create(struct tls_ctx *c, int fd, bool server);
void tls_session_destroy(struct tls_session *s); /* close_notify if it can be sent now; fd stays open */

enum tls_want { TLS_WANT_READ = -1, TLS_WANT_WRITE = -2 };
/* 0 done; TLS_WANT_*; or a code ≤ -ERR_BASE or negative errno below -2 never used: use tls_is_want. */
int tls_handshake(struct tls_session *s, int *rc); /* returns 0 or TLS_WANT_*; *rc < 0 on failure */
/* Bytes moved, 0 at orderly end, TLS_WANT_*; *rc < 0 on failure (return value then 0). */
ssize_t tls_read(struct tls_session *s, void *p, size_t n, int *rc);
ssize_t tls_write(struct tls_session *s, const void *p, size_t n, int *rc);
/* The verified peer's common name, or "" for an anonymous one. */
const char *tls_peer_name(const struct tls_session *s);
