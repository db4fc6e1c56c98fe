/* SPDX-License-Identifier: Apache-2.0 */
/* What the network tests share: a loop in a thread of its own that the test's thread drives, a CA with
 * certificates made on demand, and socket pairs. Test code touches connections only on their loop. */
#pragma once

#include "net/conn.h"
#include "node/loop/loop.h"

struct site {
	struct loop *loop;
	struct buf_pool *pool;
};

/* pool_limit in bytes. site_stop checks that every buffer came back. */
void site_start(struct site *s, size_t pool_limit);
void site_stop(struct site *s);
/* Runs fn on the loop's thread and waits for it. */
void site_call(struct site *s, void (*fn)(void *), void *arg);
/* Waits until cond holds, looked at on the loop's thread; fails the test after 20 s. */
void site_await(struct site *s, bool (*cond)(void *), void *arg, const char *what);
#define AWAIT(s, cond, arg) site_await(s, cond, arg, #cond)

/* Paths of the test's CA and a context with a certificate for cn, signed by it or by a foreign CA. */
const char *fixture_ca_path(const char *name);
struct tls_ctx *fixture_tls(const char *cn);
struct tls_ctx *fixture_tls_foreign(const char *cn);

/* Connected, non-blocking. */
void fixture_socketpair(int fds[2]);
void fixture_tcp_pair(int fds[2]);
/* A blocking TCP connection to a port of 127.0.0.1. */
int fixture_dial(uint16_t port);
/* Whole writes and reads on a blocking or non-blocking fd (polls). recv gives the bytes got before EOF. */
void fixture_send(int fd, const void *p, size_t n);
size_t fixture_recv(int fd, void *p, size_t n);
