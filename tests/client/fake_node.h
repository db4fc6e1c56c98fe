/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster in one listener: one node, two shards, volumes in RAM, attach and detach. Speaks the
 * real wire protocol under mutual TLS, and misbehaves on demand. All fields are the loop's. */
#pragma once

#include "cluster/map.h"
#include "net/listener.h"
#include "node/loop/loop.h"

#define FAKE_OBJECTS 8u
#define FAKE_OBJECT_SIZE (64ull << 20)

struct fake_node {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;
	struct listener *listener;
	struct map map;
	struct uuid cluster, self;
	uint8_t *data[FAKE_OBJECTS];
	uint8_t *applied[FAKE_OBJECTS]; /* by request number */
	struct conn *control;
	unsigned attaches, detaches, renews, ios, controls, data_conns;
	unsigned drop_every;	 /* close the data connection instead of every n-th answer */
	unsigned corrupt_every;	 /* flip a byte of every n-th read */
	bool held;
	bool renewal_gone; /* an attachment is gone, says the answer to its renewal */
	char holder[128];
};

struct fake_files {
	char ca[256], ca_key[256], node_cert[256], node_key[256], client_cert[256], client_key[256];
	struct uuid cluster, node;
};
void fake_files_make(struct fake_files *f, const char *dir);

/* On the loop. port 0 picks one; fake_node_port tells. */
void fake_node_start(struct fake_node *n, struct loop *l, const struct fake_files *files);
void fake_node_stop(struct fake_node *n);
