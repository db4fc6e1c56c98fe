/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/net/net_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "net/ca.h"
#include "tests/lib/test.h"

/* ---- Loop in a thread ---- */

struct request {
	struct post post;
	struct timer timer;
	struct site *site;
	void (*fn)(void *);
	bool (*cond)(void *);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	bool done;
};

void site_start(struct site *s, size_t pool_limit)
{
	s->loop = loop_create("test", 64);
	CHECK(s->loop);
	s->pool = buf_pool_create(pool_limit);
	EXPECT_OK(loop_spawn(s->loop));
}

void site_stop(struct site *s)
{
	/* What was closed just now is freed at the end of its turn. */
	for (int turns = 0; turns < 3; turns++)
		site_call(s, NULL, NULL);
	loop_stop(s->loop);
	loop_join(s->loop);
	loop_destroy(s->loop);
	buf_pool_destroy(s->pool);
}

static void request_done(struct request *q)
{
	pthread_mutex_lock(&q->lock);
	q->done = true;
	pthread_cond_signal(&q->done_cond);
	pthread_mutex_unlock(&q->lock);
}

static void request_poll(struct timer *t)
{
	struct request *q = container_of(t, struct request, timer);

	if (!q->cond(q->arg)) {
		timer_set(&q->timer, 1000);
		return;
	}
	timer_fini(&q->timer);
	request_done(q);
}

static void request_run(struct post *p)
{
	struct request *q = container_of(p, struct request, post);

	if (q->cond) {
		timer_init(&q->timer, q->site->loop, request_poll);
		request_poll(&q->timer);
		return;
	}
	if (q->fn)
		q->fn(q->arg);
	request_done(q);
}

static bool request_wait(struct request *q)
{
	struct timespec end;
	int rc = 0;

	q->post.fn = request_run;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->done_cond, NULL);
	loop_post(q->site->loop, &q->post);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 20;
	pthread_mutex_lock(&q->lock);
	while (!q->done && !rc)
		rc = pthread_cond_timedwait(&q->done_cond, &q->lock, &end);
	pthread_mutex_unlock(&q->lock);
	return q->done;
}

void site_call(struct site *s, void (*fn)(void *), void *arg)
{
	struct request q = { .site = s, .fn = fn, .arg = arg };

	if (!request_wait(&q))
		test_failed(__FILE__, __LINE__, "the loop did not answer for 20 s");
}

void site_await(struct site *s, bool (*cond)(void *), void *arg, const char *what)
{
	struct request q = { .site = s, .cond = cond, .arg = arg };

	if (!request_wait(&q))
		test_failed(__FILE__, __LINE__, "did not happen within 20 s: %s", what);
}

/* ---- Certificates ---- */

const char *fixture_ca_path(const char *name)
{
	static char path[4][5000];
	static unsigned at;
	char *p = path[at++ % ARRAY_LEN(path)];

	snprintf(p, sizeof(path[0]), "%s/%s", test_dir(), name);
	return p;
}

static struct tls_ctx *tls_make(const char *ca, const char *cn)
{
	static unsigned count;
	char name[64], *csr, *cert;
	const char *cert_path, *key_path, *ca_cert, *ca_key;
	struct tls_ctx *t;
	FILE *f;

	snprintf(name, sizeof(name), "%s.crt", ca);
	ca_cert = fixture_ca_path(name);
	snprintf(name, sizeof(name), "%s.key", ca);
	ca_key = fixture_ca_path(name);
	if (access(ca_cert, F_OK))
		EXPECT_OK(ca_create(ca_cert, ca_key, "ashlar CA test"));
	snprintf(name, sizeof(name), "leaf%u.key", count);
	key_path = fixture_ca_path(name);
	snprintf(name, sizeof(name), "leaf%u.crt", count++);
	cert_path = fixture_ca_path(name);
	EXPECT_OK(ca_request(key_path, cn, &csr));
	EXPECT_OK(ca_sign(ca_cert, ca_key, csr, cn, NULL, 30, &cert));
	f = fopen(cert_path, "w");
	CHECK(f);
	fputs(cert, f);
	fclose(f);
	free(csr);
	free(cert);
	t = tls_ctx_create(ca_cert, cert_path, key_path);
	EXPECT(t != NULL);
	return t;
}

struct tls_ctx *fixture_tls(const char *cn)
{
	return tls_make("ca", cn);
}

struct tls_ctx *fixture_tls_foreign(const char *cn)
{
	return tls_make("foreign", cn);
}

/* ---- Sockets ---- */

void fixture_socketpair(int fds[2])
{
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
}

int fixture_dial(uint16_t port)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	CHECK(!connect(fd, (struct sockaddr *)&sa, sizeof(sa)));
	return fd;
}

void fixture_tcp_pair(int fds[2])
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(ls >= 0 && !bind(ls, (struct sockaddr *)&sa, len) && !listen(ls, 1));
	CHECK(!getsockname(ls, (struct sockaddr *)&sa, &len));
	fds[0] = fixture_dial(ntohs(sa.sin_port));
	fds[1] = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
	CHECK(fds[1] >= 0);
	for (int i = 0; i < 2; i++)
		CHECK(!fcntl(fds[i], F_SETFL, O_NONBLOCK));
	close(ls);
}

static void fd_wait(int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	if (poll(&p, 1, 20000) != 1)
		test_failed(__FILE__, __LINE__, "the socket was not ready for 20 s");
}

void fixture_send(int fd, const void *data, size_t n)
{
	const uint8_t *p = data;

	while (n) {
		ssize_t put;

		fd_wait(fd, POLLOUT);
		put = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (put < 0)
			CHECK(errno == EAGAIN);
		else {
			p += put;
			n -= (size_t)put;
		}
	}
}

size_t fixture_recv(int fd, void *data, size_t n)
{
	size_t got = 0;

	while (got < n) {
		ssize_t part;

		fd_wait(fd, POLLIN);
		part = recv(fd, (uint8_t *)data + got, n - got, MSG_DONTWAIT);
		if (part == 0 || (part < 0 && errno == ECONNRESET))
			break;
		if (part > 0)
			got += (size_t)part;
		else
			CHECK(errno == EAGAIN);
	}
	return got;
}
