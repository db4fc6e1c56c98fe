/* SPDX-License-Identifier: Apache-2.0 */
/* A client outside of the nodes: one control connection to any node it can reach, a map kept by its
 * deltas, proposals through it, and a `struct client` on top. Used by ashlar-client and libashlar.
 * One loop; create and destroy on it. */
#pragma once

#include "client/client.h"
#include "net/tls.h"

struct remote;

#define REMOTE_ADDRESSES_MAX 16u

struct remote_config {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls; /* NULL: the nodes listen in the clear (labs) */
	char addresses[REMOTE_ADDRESSES_MAX][64]; /* numeric host:port; tried in turn, then the map's */
	unsigned address_count;
	struct uuid cluster;
	const char *holder; /* begins with this client's certificate name */
	bool plain_data;
	size_t ops;
	void (*ready)(void *ctx); /* the first map is there; once */
	void *ctx;
};

/* "HOST:PORT,HOST:PORT" into cfg. -EINVAL. */
int remote_parse_addresses(const char *text, struct remote_config *cfg) MUST_USE;
struct remote *remote_create(const struct remote_config *cfg);
void remote_destroy(struct remote *r); /* after all volumes were closed */
struct client *remote_client(struct remote *r);
