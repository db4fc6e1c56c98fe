/* SPDX-License-Identifier: Apache-2.0 */
/* Numeric addresses and the two halves of a non-blocking connect. */
#include "net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Splits "host:port" or "[host]:port" into host[] and a port; false when it is neither. */
static bool split(const char *text, char *host, size_t cap, uint16_t *port, bool *v6)
{
	const char *colon = strrchr(text, ':');
	const char *end = colon;
	unsigned long value = 0;

	if (!colon || !colon[1])
		return false;
	for (const char *p = colon + 1; *p; p++) {
		if (*p < '0' || *p > '9')
			return false;
		value = value * 10 + (unsigned long)(*p - '0');
		if (value > 65535)
			return false;
	}
	*v6 = text[0] == '[';
	if (*v6) {
		text++;
		if (end == text || *--end != ']')
			return false;
	}
	if (end < text || (size_t)(end - text) >= cap)
		return false;
	memcpy(host, text, (size_t)(end - text));
	host[end - text] = 0;
	*port = (uint16_t)value;
	return true;
}

int address_parse(const char *text, struct address *out)
{
	char host[ADDRESS_TEXT];
	uint16_t port;
	bool v6;

	*out = (struct address){ 0 };
	if (!text || !split(text, host, sizeof(host), &port, &v6))
		return -EINVAL;
	if (v6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&out->sa;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		out->len = sizeof(*in6);
		return inet_pton(AF_INET6, host, &in6->sin6_addr) == 1 ? 0 : -EINVAL;
	}
	struct sockaddr_in *in = (struct sockaddr_in *)&out->sa;

	in->sin_family = AF_INET;
	in->sin_port = htons(port);
	out->len = sizeof(*in);
	return inet_pton(AF_INET, host, &in->sin_addr) == 1 ? 0 : -EINVAL;
}

void address_format(const struct sockaddr_storage *sa, char out[ADDRESS_TEXT])
{
	char host[INET6_ADDRSTRLEN];

	if (sa->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(out, ADDRESS_TEXT, "%s:%u", host, ntohs(in->sin_port));
	} else if (sa->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		snprintf(out, ADDRESS_TEXT, "[%s]:%u", host, ntohs(in6->sin6_port));
	} else {
		snprintf(out, ADDRESS_TEXT, "local");
	}
}

void address_mark(int fd, enum traffic_class class)
{
	int tos = class == TRAFFIC_CONTROL ? IPTOS_CLASS_CS6 : IPTOS_CLASS_CS4;

	if (setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)))
		setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
}

int address_connect(const struct address *a, enum traffic_class class, bool *connected)
{
	int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int rc;

	*connected = false;
	if (fd < 0)
		return -errno;
	address_mark(fd, class);
	if (!connect(fd, (const struct sockaddr *)&a->sa, a->len)) {
		*connected = true;
		return fd;
	}
	if (errno == EINPROGRESS)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* A connect to a free port of the ephemeral range can meet itself (simultaneous open with its own
 * source port): nobody listens there. */
static bool met_itself(int fd)
{
	struct sockaddr_storage us = { 0 }, peer = { 0 };
	socklen_t us_len = sizeof(us), peer_len = sizeof(peer);

	return !getsockname(fd, (struct sockaddr *)&us, &us_len) &&
	       !getpeername(fd, (struct sockaddr *)&peer, &peer_len) && us_len == peer_len &&
	       !memcmp(&us, &peer, us_len);
}

int address_connect_result(int fd)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		return -errno;
	if (!error && met_itself(fd))
		return -ECONNREFUSED;
	return -error;
}
