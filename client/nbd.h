/* SPDX-License-Identifier: Apache-2.0 */
/* The NBD front end: newstyle fixed negotiation (GO, INFO, LIST, EXPORT_NAME, STRUCTURED_REPLY,
 * LIST/SET_META_CONTEXT with base:allocation, ABORT; STARTTLS when a tls_ctx is given), then
 * READ, WRITE, FLUSH, TRIM, WRITE_ZEROES, BLOCK_STATUS, CACHE, DISC; FUA, multi-conn.
 * Source: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md. One loop. */
#pragma once

#include "client/client.h"

struct nbd_server;

struct nbd_config {
	struct client *client;
	struct loop *loop;
	struct buf_pool *pool;
	const char *unix_path;	 /* or NULL; a stale socket of a dead process is replaced */
	const char *tcp_address; /* or NULL; numeric host:port; not loopback needs tls unless allow_open */
	struct tls_ctx *tls;
	bool allow_open;
	unsigned connections_max, negotiating_max;
};
/* NULL and a log line naming address and remedy. */
struct nbd_server *nbd_server_create(const struct nbd_config *cfg);
/* Finishes or answers ESHUTDOWN what is in flight, then resumes. */
void nbd_server_stop(struct nbd_server *s, struct wait *w);
void nbd_server_destroy(struct nbd_server *s);
uint16_t nbd_server_port(const struct nbd_server *s);
