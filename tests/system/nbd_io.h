/* SPDX-License-Identifier: Apache-2.0 */
/* A small blocking NBD client for tests: one connection over a unix socket, one request at a time, simple
 * replies. Deliberately not the product's code. */
#pragma once

#include <stdint.h>

struct nbd_io {
	int fd; /* -1: not connected */
	uint64_t size, cookie;
};

enum { NBD_READ = 0, NBD_WRITE = 1, NBD_FLUSH = 3, NBD_TRIM = 4, NBD_ZEROES = 6 };

/* 0 or -errno. */
int nbd_connect(struct nbd_io *n, const char *socket_path, const char *export);
void nbd_disconnect(struct nbd_io *n);
/* 0; > 0: the error the server answered (errno); -1: the connection broke and is closed (outcome unknown). */
int nbd_request(struct nbd_io *n, int kind, uint64_t off, uint32_t len, void *data);
