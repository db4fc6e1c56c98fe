/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL's door for connections: mutual TLS 1.3 with certificates of the cluster's own CA.
 *
 * An identity is the certificate's common name: "node:<uuid>", "client:<name>", "operator:<name>".
 * A tls_ctx is made once, any thread, and shared. A tls_session belongs to one thread at a time and
 * does non-blocking I/O on an fd it does not own. Read-ahead is off and no session tickets are sent,
 * so the TLS layer can be left cleanly after WELCOME (HELLO_PLAIN).
 *
 * OpenSSL writes to sockets without MSG_NOSIGNAL: making a tls_ctx sets SIGPIPE to be ignored in the
 * whole process, so that a peer that closed is an error code and not the end of the program. */
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
/* A server takes clients without a certificate too (one that is shown must still verify). Default: no. */
void tls_ctx_allow_anonymous(struct tls_ctx *c, bool allow);

struct tls_session *tls_session_create(struct tls_ctx *c, int fd, bool server);
void tls_session_destroy(struct tls_session *s); /* close_notify if it can be sent now; fd stays open */
/* Frees the session and sends nothing: the connection goes on in plain. */
void tls_session_drop(struct tls_session *s);

/* All I/O: *rc is 0, or < 0 on failure: -ERR_AUTH (a certificate was not accepted, here or there),
 * -ERR_CLOSED, -ERR_PROTOCOL, or an errno. Then the session is good for destruction only. */
enum tls_want { TLS_WANT_READ = -1, TLS_WANT_WRITE = -2 };
int tls_handshake(struct tls_session *s, int *rc); /* 0 done (or failed, see *rc), or TLS_WANT_* */
/* Bytes moved, 0 at the peer's orderly end or on failure, or TLS_WANT_*. A write that wanted must be
 * repeated with the same first bytes, from anywhere in memory. */
ssize_t tls_read(struct tls_session *s, void *p, size_t n, int *rc);
ssize_t tls_write(struct tls_session *s, const void *p, size_t n, int *rc);
bool tls_pending(const struct tls_session *s); /* read bytes are buffered inside: fd may stay silent */
/* TLS stays for good: read many records per system call from now on. */
void tls_session_read_ahead(struct tls_session *s);
/* The verified peer's common name, or "" for an anonymous one. */
const char *tls_peer_name(const struct tls_session *s);

/* For the TLS bufferevents of node/http only, which include no OpenSSL header: a new session (SSL *, owned
 * by the bufferevent), and the common name that such a session's peer proved ("" if none). */
void *tls_native_session(struct tls_ctx *c, bool server);
void tls_native_peer_name(void *ssl, char *out, size_t cap);
/* fn(arg) when the session is freed, i.e. when its connection has ended. */
void tls_native_on_free(void *ssl, void (*fn)(void *arg), void *arg);
