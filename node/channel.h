/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to another node that should always be up: the lower node id dials, the other accepts.
 * Both ends learn of a dead peer: the dialler because its next dial is refused, the acceptor by probing
 * the peer's port. Used for control connections (peers.c) and data streams (streams.c). One loop. */
#pragma once

#include "net/link.h"

struct channel;

struct channel_ops {
	void (*up)(struct channel *ch);
	void (*down)(struct channel *ch, int reason); /* once per up */
	void (*refused)(struct channel *ch);	      /* nobody listens at the peer's address */
	void (*frame)(struct channel *ch, const struct frame *f);
	void (*turned_away)(struct channel *ch, const struct wire_refusal *why); /* may be NULL */
	/* Who may be at the other end, asked before up: false closes. */
	bool (*check)(struct channel *ch, const struct wire_hello *peer);
};

struct channel_config {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;
	uint16_t self, peer, stream;
	const char *address;
	struct uuid peer_uuid;
	struct wire_hello hello; /* ours */
	size_t send_limit;
	const struct channel_ops *ops;
	void *owner;
};

struct channel {
	struct list link; /* the owner's */
	void *owner;
	const struct channel_ops *ops;
	struct loop *loop;
	uint16_t peer, stream;
	char address[64];
	struct link *dial; /* NULL on the accepting side */
	struct conn *conn; /* NULL while down */
	uint32_t incarnation; /* of the peer, while up and after */
	struct tcp_probe probe;
	struct wait probe_wait;
	struct timer probe_timer;
	unsigned probes_left;
	bool probing, closed;
};

struct channel *channel_create(const struct channel_config *cfg);
/* An accepted connection of this peer and stream; a previous one is ended first. */
void channel_accepted(struct channel *ch, struct conn *c, const struct wire_hello *peer);
void channel_set_address(struct channel *ch, const char *address);
void channel_destroy(struct channel *ch); /* down() first if it was up */
