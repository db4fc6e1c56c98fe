/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/nbd_io.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int send_all(int fd, const void *p, size_t n)
{
	const char *c = p;

	while (n) {
		ssize_t k = send(fd, c, n, MSG_NOSIGNAL);

		if (k <= 0)
			return -1;
		c += k;
		n -= (size_t)k;
	}
	return 0;
}

static int recv_all(int fd, void *p, size_t n)
{
	char *c = p;

	while (n) {
		ssize_t k = recv(fd, c, n, 0);

		if (k <= 0)
			return -1;
		c += k;
		n -= (size_t)k;
	}
	return 0;
}

struct packed_option {
	uint64_t magic;
	uint32_t option, length;
} __attribute__((packed));

struct packed_option_reply {
	uint64_t magic;
	uint32_t option, type, length;
} __attribute__((packed));

static int negotiate(struct nbd_io *n, const char *export)
{
	struct {
		uint64_t nbdmagic, ihaveopt;
		uint16_t flags;
	} __attribute__((packed)) hello;
	uint32_t client_flags = htobe32(3), name_len = (uint32_t)strlen(export);
	struct packed_option o = {htobe64(0x49484156454F5054ull), htobe32(7 /* GO */),
				  htobe32(4 + name_len + 2)};
	struct packed_option_reply r;
	uint32_t be_len = htobe32(name_len);
	uint16_t infos = 0;

	if (recv_all(n->fd, &hello, sizeof(hello)) ||
	    hello.nbdmagic != htobe64(0x4e42444d41474943ull) || send_all(n->fd, &client_flags, 4) ||
	    send_all(n->fd, &o, sizeof(o)) || send_all(n->fd, &be_len, 4) ||
	    send_all(n->fd, export, name_len) || send_all(n->fd, &infos, 2))
		return -EPROTO;
	for (;;) {
		char data[4096];
		uint32_t len;

		if (recv_all(n->fd, &r, sizeof(r)) || r.magic != htobe64(0x3e889045565a9ull))
			return -EPROTO;
		len = be32toh(r.length);
		if (len > sizeof(data) || recv_all(n->fd, data, len))
			return -EPROTO;
		if (be32toh(r.type) == 1)
			return 0;
		if (be32toh(r.type) & 0x80000000u)
			return -ENOENT;
		if (be32toh(r.type) == 3 && len >= 12 && data[0] == 0 && data[1] == 0) {
			memcpy(&n->size, data + 2, 8);
			n->size = be64toh(n->size);
		}
	}
}

int nbd_connect(struct nbd_io *n, const char *socket_path, const char *export)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int rc;

	*n = (struct nbd_io){.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	if (strlen(socket_path) >= sizeof(a.sun_path))
		return -ENAMETOOLONG;
	strcpy(a.sun_path, socket_path);
	rc = connect(n->fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : negotiate(n, export);
	if (rc < 0)
		nbd_disconnect(n);
	return rc;
}

void nbd_disconnect(struct nbd_io *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
}

int nbd_request(struct nbd_io *n, int kind, uint64_t off, uint32_t len, void *data)
{
	struct {
		uint32_t magic;
		uint16_t flags, type;
		uint64_t cookie, off;
		uint32_t len;
	} __attribute__((packed))
	q = {htobe32(0x25609513), 0,           htobe16((uint16_t)kind), ++n->cookie,
	     htobe64(off),        htobe32(len)};
	struct {
		uint32_t magic, error;
		uint64_t cookie;
	} __attribute__((packed)) a;

	if (send_all(n->fd, &q, sizeof(q)) || (kind == NBD_WRITE && send_all(n->fd, data, len)) ||
	    recv_all(n->fd, &a, sizeof(a)) || a.magic != htobe32(0x67446698) ||
	    a.cookie != n->cookie)
		goto broken;
	if (a.error)
		return (int)be32toh(a.error);
	if (kind == NBD_READ && recv_all(n->fd, data, len))
		goto broken;
	return 0;
broken:
	nbd_disconnect(n);
	return -1;
}
