/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what a frame costs: two loops (threads) over loopback TCP, one asks, one answers, `depth`
 * requests in flight. Not a test; run by hand on a release build:
 *
 *   bench_net [read|write|both] [depth] [payload bytes] [tls: DIR with ca.crt node.crt node.key]
 *
 * read: the answer carries the payload; write: the request; both: each. Prints messages (one way each)
 * per second and process CPU µs per message, kernel included. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/conn.h"

#define BODY 72

struct side {
	struct loop *loop;
	struct buf_pool *pool;
	struct conn *conn;
	struct buf *payload;
	int fd;
	bool asks, carries;
	struct tls_ctx *tls;
	struct post start;
	struct timer end;
};

static unsigned depth = 64, payload_len = 4096;
static uint64_t messages;

static void say(struct side *s, uint64_t id)
{
	static const uint8_t body[BODY];
	struct slice one = { s->payload, s->payload->data, payload_len };

	conn_send(s->conn, OP_IO, id, body, BODY, &one, s->carries ? 1 : 0);
}

static void on_frame(struct conn *c, const struct frame *f)
{
	struct side *s = conn_data(c);

	if (s->asks)
		messages += 2;
	say(s, f->id);
}

static void on_closed(struct conn *c, int reason)
{
	struct side *s = conn_data(c);

	s->conn = NULL;
	loop_stop(s->loop);
}

static const struct conn_ops ops = { .on_frame = on_frame, .on_closed = on_closed };

static void on_end(struct timer *t)
{
	struct side *s = container_of(t, struct side, end);

	timer_fini(t);
	conn_close(s->conn, 0);
}

static void on_start(struct post *p)
{
	struct side *s = container_of(p, struct side, start);
	struct tls_session *tls = s->tls ? tls_session_create(s->tls, s->fd, !s->asks) : NULL;

	s->conn = conn_create(s->loop, s->pool, s->fd, tls, 64 << 20, &ops, s);
	conn_tls_stays(s->conn);
	if (!s->asks)
		return;
	timer_init(&s->end, s->loop, on_end);
	timer_set(&s->end, 3000000);
	for (unsigned i = 0; i < depth; i++)
		say(s, i);
}

static void tcp_pair(int fds[2])
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int ls = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(!bind(ls, (struct sockaddr *)&sa, len) && !listen(ls, 1));
	CHECK(!getsockname(ls, (struct sockaddr *)&sa, &len));
	fds[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!connect(fds[0], (struct sockaddr *)&sa, len));
	fds[1] = accept(ls, NULL, NULL);
	for (int i = 0; i < 2; i++)
		CHECK(!fcntl(fds[i], F_SETFL, O_NONBLOCK));
	close(ls);
}

static double cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static struct tls_ctx *tls_open(const char *dir)
{
	char *ca = xasprintf("%s/ca.crt", dir), *cert = xasprintf("%s/node.crt", dir);
	char *key = xasprintf("%s/node.key", dir);
	struct tls_ctx *t = tls_ctx_create(ca, cert, key);

	CHECK(t);
	free(ca);
	free(cert);
	free(key);
	return t;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "both";
	struct side sides[2] = { { .asks = true }, { 0 } };
	struct tls_ctx *tls = argc > 4 ? tls_open(argv[4]) : NULL;
	int fds[2];
	double before;

	depth = argc > 2 ? (unsigned)atoi(argv[2]) : depth;
	payload_len = argc > 3 ? (unsigned)atoi(argv[3]) : payload_len;
	sides[0].carries = mode[0] != 'r';
	sides[1].carries = mode[0] != 'w';
	tcp_pair(fds);
	before = cpu_us();
	for (int i = 0; i < 2; i++) {
		struct side *s = &sides[i];

		s->loop = loop_create("bench", 64);
		s->pool = buf_pool_create(256 << 20);
		s->payload = buf_heap(payload_len);
		s->fd = fds[i];
		s->tls = tls;
		s->start.fn = on_start;
		CHECK(s->loop && loop_spawn(s->loop) == 0);
	}
	loop_post(sides[1].loop, &sides[1].start);
	loop_post(sides[0].loop, &sides[0].start);
	for (int i = 0; i < 2; i++)
		loop_join(sides[i].loop);
	printf("%s depth %u payload %u%s: %.0f messages/s, %.2f CPU us per message\n", mode, depth,
	       payload_len, tls ? " tls" : "", (double)messages / 3, (cpu_us() - before) / (double)messages);
	for (int i = 0; i < 2; i++) {
		loop_destroy(sides[i].loop);
		buf_unref(sides[i].payload);
		buf_pool_destroy(sides[i].pool);
	}
	tls_ctx_destroy(tls);
	return 0;
}
