/* SPDX-License-Identifier: Apache-2.0 */
/* A client over RAM: implements the volume half of client/client.h for tests of front ends. Volumes are
 * byte arrays with a state per 4 KiB block. Linked instead of client.c, volume.c, vio.c, part.c, route.c. */
#pragma once

#include "client/client.h"
#include "node/loop/loop.h"

struct fake_volume {
	char name[NAME_MAX_LEN + 1];
	uint64_t size;
	uint8_t *data;
	uint8_t *state; /* per block: enum io_extent_flags, 3 = hole that reads zero, 0 = data */
	unsigned opens, shared_opens; /* shared_opens: ever */
	uint64_t reads, writes, trims, zeroes;
};

struct client *fake_client_create(struct loop *l, struct buf_pool *pool);
void fake_client_destroy(struct client *c);
struct fake_volume *fake_volume_add(struct client *c, const char *name, uint64_t size);
/* Requests end only when released; the next `count` requests are kept. */
extern const char *fake_client_removed; /* the identity that client_is_removed says yes to */
void fake_client_hold(struct client *c, bool hold);
unsigned fake_client_held(const struct client *c);
void fake_client_release(struct client *c); /* all held ones, newest first: out of order */
void fake_client_fail(struct client *c, int rc); /* every following request ends with rc; 0: no more */
