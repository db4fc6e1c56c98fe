/* SPDX-License-Identifier: Apache-2.0 */
/* Numeric socket addresses as text: "10.0.0.1:7000", "[fd00::1]:7000". Names are not looked up: that
 * blocks, and a cluster must not depend on DNS. Any thread. */
#pragma once

#include <sys/socket.h>

#include "node/base/check.h"

struct address {
	struct sockaddr_storage sa;
	socklen_t len;
};

#define ADDRESS_TEXT 64

int address_parse(const char *text, struct address *out) MUST_USE; /* -EINVAL */
void address_format(const struct sockaddr_storage *sa, char out[ADDRESS_TEXT]);
/* What a connection carries, marked in its packets (DSCP, RFC 2474), so that switches can put the control
 * plane before bulk data, and a test can cut one and not the other. */
enum traffic_class { TRAFFIC_CONTROL /* CS6 */, TRAFFIC_DATA /* CS4 */ };
void address_mark(int fd, enum traffic_class class); /* best effort */

/* Starts a non-blocking connect: an fd, or a negative errno. *connected tells whether it is done. */
int address_connect(const struct address *a, enum traffic_class class, bool *connected) MUST_USE;
/* The outcome of such a connect once the fd is writable: 0 or a negative errno. */
int address_connect_result(int fd) MUST_USE;
