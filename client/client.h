/* SPDX-License-Identifier: Apache-2.0 */
/* The client inside a process: volumes by name, on one loop. Splits at stripe units, fingerprints,
 * routes to primaries by the map, retries with deadline, joins the parts. Front ends (NBD, and later
 * others) stand on this one interface; libashlar's public header client/ashlar.h wraps it in threads.
 *
 * Runs in ashlard (a local primary is a function call) and in ashlar-client (all remote). No RocksDB,
 * no libraft. One loop; zero allocation per I/O. */
#pragma once

#include "cluster/command.h"
#include "net/conn.h"
#include "net/io_msg.h"

struct client;
struct volume; /* an open volume; several front-end connections share it */

struct client_hooks {
	/* Execute on this node (map says the primary is here): NULL in ashlar-client. Same contract as
	 * replicator_submit; may hop to another shard and back. */
	int (*local)(void *ctx, struct io_exec *io, struct wait *w);
	/* A command for the cluster (attach, renew, detach); arrays in it are not kept. Resumes with 0 and
	 * *result filled. */
	int (*propose)(void *ctx, const struct command *cmd, struct command_result *result, struct wait *w);
};

struct client_config {
	struct loop *loop;
	struct buf_pool *pool;
	const struct map *map; /* kept current by the owner, who calls client_map_changed */
	uint16_t node;	       /* this node, 0: none */
	struct tls_ctx *tls;
	struct uuid cluster, self; /* self: node uuid or this client's */
	const char *holder;	   /* attachment holder: identity and host */
	bool plain_data;
	size_t ops;
	const struct client_hooks *hooks;
	void *ctx;
};
struct client *client_create(const struct client_config *cfg);
void client_destroy(struct client *c); /* after all volumes were closed */
void client_map_changed(struct client *c, enum map_record kind, uint64_t id);
void client_map_done(struct client *c); /* queued retries go out */

/* "node:UUID", as a certificate says it, of a node that is in the cluster no more. */
bool client_is_removed(const struct client *c, const char *identity);
/* Volumes that can be opened now, from the map: for front ends that list and describe exports. */
struct client_volume {
	char name[NAME_MAX_LEN + 1];
	uint64_t size;
};
/* -ERR_NOT_FOUND */
int client_find(const struct client *c, const char *name, struct client_volume *out) MUST_USE;
void client_list(const struct client *c, void (*fn)(void *arg, const struct client_volume *v), void *arg);

/* Opening does not attach: the first write does (exclusive, unless shared). An attachment is renewed
 * as long as its volume is open. Both modes may be open here, but only one of them attached.
 * 0, -ERR_NOT_FOUND. */
int volume_open(struct client *c, const char *name, bool shared, struct volume **out) MUST_USE;
void volume_close(struct volume *v, struct wait *w); /* drains, detaches when it was the last; resumes once */
uint64_t volume_size(const struct volume *v);	     /* follows a resize */
const char *volume_name(const struct volume *v);
/* Every I/O in flight ends with rc from the next turn on (an orderly stop that may not wait for a lost
 * primary). What was sent may still take effect. */
void volume_abort(struct volume *v, int rc);
/* Resize notices for front ends; fn = NULL takes back the notices with this arg. */
void volume_on_resize(struct volume *v, void (*fn)(void *arg, uint64_t size), void *arg);

/* A read of 32 MiB that starts within a stripe unit touches 33 of them. */
#define VOLUME_IO_MAX_BYTES (32u << 20)
#define VOLUME_IO_SLICES_MAX (VOLUME_IO_MAX_BYTES / STRIPE_UNIT + 1)

struct volume_io {
	struct wait *wait;
	uint8_t kind;	 /* enum io_kind */
	uint64_t offset, length; /* bytes; any alignment; length ≤ 32 MiB for data, else any */
	/* IO_WRITE in: payload of `length` bytes as slices, borrowed until the resume; no copy is made where
	 * no slice ends inside a stripe unit. IO_READ out: one slice per stripe unit touched, that tile
	 * [offset, offset + length), owned by the caller after success (0 or a resume with 0). */
	struct slice *slices;
	unsigned slice_count, slices_max;
	/* IO_STATUS out: extents tiling the range from offset on, at most extents_max, neighbours merged.
	 * A request of more than 4 GiB − 1 is -EINVAL; trims and zeroes have no limit. IO_TRIM reads as zeros
	 * afterwards at any alignment: edges that are not whole blocks are zeroed, not rounded. */
	struct io_extent *extents;
	unsigned extent_count, extents_max;
	uint64_t deadline_ms; /* 0: none */
	void *impl;
	struct list link;
};
/* 0 … resumes with 0, -EINVAL/-ENOSPC (beyond the end), -ERR_HELD (text: who; see volume_held_by),
 * -ERR_FENCED, -ERR_FULL, -ERR_DAMAGED, -ETIMEDOUT. Flush needs no message: a reply means durable on
 * every in-sync replica (replication A3). */
int volume_io(struct volume *v, struct volume_io *io, struct wait *w) MUST_USE;
const char *volume_held_by(const struct volume *v);

struct client_stats {
	uint64_t ios, retries, remote, local, bytes_read, bytes_written, in_flight;
	uint64_t oldest_us; /* age of the I/O that waits longest */
};
/* A request of another client for an object whose primary it cannot reach: one hop further, by this
 * client's map. io->request is stamped with the epoch known here. 0 or PENDING, answered like hooks.local. */
int client_forward(struct client *c, struct io_exec *io, struct wait *w) MUST_USE;
uint64_t client_map_version(const struct client *c); /* what it, and who shares its map, has applied */
void client_stats(const struct client *c, struct client_stats *out);
void client_ops(struct client *c,
		void (*fn)(void *arg, const char *volume, const char *kind, const char *waits_for,
			   uint64_t offset, uint64_t age_us),
		void *arg);
