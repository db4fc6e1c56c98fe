/* SPDX-License-Identifier: Apache-2.0 */
/* Connections over socket pairs: what is sent arrives once, in order and unchanged, in plain, under
 * TLS and across the switch; bounds hold; every way to end reports once with its reason. */
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/ca.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"
#include "tests/net/net_fixture.h"

#define MIB (1u << 20)

/* One end of a connection and what happened to it. */
struct end {
	struct site *site;
	struct conn *c;
	int fd;
	struct tls_ctx *tls;
	struct buf_pool *pool; /* NULL: the site's */
	bool server;
	size_t send_limit;
	unsigned frames, drained, closed;
	int reason;
	bool in_call; /* a callback now would come from inside a call */
	void (*on_frame)(struct end *e, const struct frame *f);
	char name[128];
};

static void end_on_frame(struct conn *c, const struct frame *f)
{
	struct end *e = conn_data(c);

	EXPECT(!e->in_call && !e->closed);
	e->frames++;
	if (e->on_frame)
		e->on_frame(e, f);
}

static void end_on_closed(struct conn *c, int reason)
{
	struct end *e = conn_data(c);

	EXPECT(!e->in_call);
	snprintf(e->name, sizeof(e->name), "%s", conn_peer_name(c));
	e->closed++;
	e->reason = reason;
	e->c = NULL;
}

static void end_on_drained(struct conn *c)
{
	struct end *e = conn_data(c);

	EXPECT(!e->in_call && !conn_full(c));
	e->drained++;
}

static const struct conn_ops end_ops = { .on_frame = end_on_frame,
					 .on_closed = end_on_closed,
					 .on_drained = end_on_drained };

static void end_open(void *arg)
{
	struct end *e = arg;
	struct tls_session *tls = e->tls ? tls_session_create(e->tls, e->fd, e->server) : NULL;

	e->c = conn_create(e->site->loop, e->pool ? e->pool : e->site->pool, e->fd, tls,
			   e->send_limit ? e->send_limit : 4 * MIB, &end_ops, e);
}

static void end_close(void *arg)
{
	struct end *e = arg;

	if (!e->c)
		return;
	e->in_call = true;
	conn_close(e->c, -ECANCELED);
	conn_close(e->c, -EIO); /* once is enough */
	e->in_call = false;
}

static bool end_closed(void *arg)
{
	return ((struct end *)arg)->closed;
}

static bool end_got_frame(void *arg)
{
	struct end *e = arg;

	return e->frames || e->closed;
}

static void end_send_one(void *arg)
{
	struct end *e = arg;

	if (e->closed) /* the other end was faster */
		return;
	e->in_call = true;
	conn_send(e->c, OP_CALL, 77, "hello", 5, NULL, 0);
	e->in_call = false;
}

static void ends_close(struct end *a, struct end *b)
{
	site_call(a->site, end_close, a);
	AWAIT(a->site, end_closed, a);
	AWAIT(b->site, end_closed, b);
	EXPECT_EQ(a->closed, 1);
	EXPECT_EQ(b->closed, 1);
}

/* ---- A seeded stream of frames of all shapes ---- */

#define HELD 24

struct stream {
	struct site *site;
	struct end a, b;
	struct rng tx, rx;
	unsigned count, sent;
	struct slice held[HELD]; /* payloads kept by the receiver, with the seed of their bytes */
	uint64_t held_seed[HELD];
	uint8_t *scratch;
};

struct shape {
	uint32_t body, payload;
	uint64_t seed;
};

static struct shape shape_next(struct rng *r)
{
	static const uint32_t payloads[] = { 0, 0, 1, 200, 4096, 4096, 4096, 8192, 65536, 131072, 262144 };
	struct shape s = { .seed = rng_next(r) };

	s.body = (uint32_t)rng_below(r, 300);
	s.payload = payloads[rng_below(r, ARRAY_LEN(payloads))];
	switch (rng_below(r, 30)) {
	case 0:
		s.body = (uint32_t)rng_below(r, 40000);
		break;
	case 1:
		s.body = (uint32_t)rng_between(r, 100000, 300000);
		break;
	case 2:
		s.payload = (uint32_t)rng_below(r, MIB);
		break;
	case 3:
		s.payload = MIB;
		break;
	}
	return s;
}

static void pattern(uint8_t *p, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed + i * 31 + (i >> 8));
}

static void stream_send(struct stream *s)
{
	struct shape h = shape_next(&s->tx);
	struct slice parts[2] = { 0 };
	unsigned count = 0;

	pattern(s->scratch, h.body, h.seed);
	if (h.payload) {
		struct buf *b = buf_heap(h.payload);
		uint32_t first = h.payload > 5000 ? h.payload / 3 : h.payload;

		pattern(b->data, h.payload, h.seed + 1);
		parts[count++] = (struct slice){ b, b->data, first };
		if (first < h.payload)
			parts[count++] = (struct slice){ b, b->data + first, h.payload - first };
	}
	conn_send(s->a.c, OP_IO, s->sent++, s->scratch, h.body, parts, count);
	if (count)
		buf_unref(parts[0].buf);
}

static void held_check(struct stream *s, unsigned i)
{
	if (!s->held[i].buf)
		return;
	pattern(s->scratch, s->held[i].len, s->held_seed[i]);
	EXPECT_MEM(s->held[i].data, s->scratch, s->held[i].len);
	slice_unref(&s->held[i]);
}

static void stream_on_frame(struct end *e, const struct frame *f)
{
	struct stream *s = container_of(e, struct stream, b);
	struct shape h = shape_next(&s->rx);
	unsigned i = (e->frames - 1) % HELD;

	EXPECT_EQ(f->opcode, OP_IO);
	EXPECT_EQ(f->id, e->frames - 1);
	EXPECT_EQ(f->body_len, h.body);
	EXPECT_EQ(f->payload.len, h.payload);
	pattern(s->scratch, h.body, h.seed);
	EXPECT_MEM(f->body, s->scratch, h.body);
	pattern(s->scratch, h.payload, h.seed + 1);
	if (h.payload)
		EXPECT_MEM(f->payload.data, s->scratch, h.payload);
	/* Keep some: memory that is kept must not be received into again. */
	held_check(s, i);
	if (h.payload && h.seed % 3 == 0) {
		s->held[i] = slice_ref(f->payload);
		s->held_seed[i] = h.seed + 1;
	}
}

static bool stream_pump(void *arg)
{
	struct stream *s = arg;

	while (s->sent < s->count && s->a.c && !conn_full(s->a.c))
		stream_send(s);
	return s->b.frames == s->count || s->a.closed || s->b.closed;
}

static void stream_release(void *arg)
{
	struct stream *s = arg;

	for (unsigned i = 0; i < HELD; i++)
		held_check(s, i);
}

static bool pool_is_unused(void *arg)
{
	return buf_pool_used_bytes(((struct site *)arg)->pool) == 0;
}

static void stream_run(struct stream *s, unsigned count)
{
	s->scratch = malloc(MIB + 4096);
	s->count = count;
	rng_seed(&s->tx, 42);
	s->rx = s->tx;
	s->b.on_frame = stream_on_frame;
	AWAIT(s->site, stream_pump, s);
	EXPECT_EQ(s->b.frames, count);
	site_call(s->site, stream_release, s);
	/* Idle connections hold no staging memory, at the latest after a tick. */
	AWAIT(s->site, pool_is_unused, s->site);
	free(s->scratch);
}

static void stream_open(struct stream *s, struct site *site, const int fds[2])
{
	s->site = site;
	s->a.site = s->b.site = site;
	s->a.fd = fds[0];
	s->b.fd = fds[1];
	s->b.server = true;
	site_call(site, end_open, &s->a);
	site_call(site, end_open, &s->b);
}

TEST(conn, frames_arrive_whole_over_a_unix_socket)
{
	struct stream s = { 0 };
	struct site site;
	int fds[2];

	site_start(&site, 64 * MIB);
	fixture_socketpair(fds);
	stream_open(&s, &site, fds);
	stream_run(&s, 600);
	ends_close(&s.a, &s.b);
	EXPECT_EQ(s.a.reason, -ECANCELED);
	EXPECT_RC(s.b.reason, -ERR_CLOSED);
	site_stop(&site);
}

TEST(conn, frames_arrive_whole_over_tcp)
{
	struct stream s = { 0 };
	struct site site;
	int fds[2];

	site_start(&site, 64 * MIB);
	fixture_tcp_pair(fds);
	stream_open(&s, &site, fds);
	stream_run(&s, 600);
	ends_close(&s.b, &s.a);
	EXPECT_RC(s.a.reason, -ERR_CLOSED);
	site_stop(&site);
}

static void end_tls_stays(void *arg)
{
	conn_tls_stays(((struct end *)arg)->c);
}

TEST(conn, frames_arrive_whole_under_tls)
{
	struct tls_ctx *one = fixture_tls("client:one"), *two = fixture_tls("node:two");

	for (int ahead = 0; ahead < 2; ahead++) {
		struct stream s = { .a.tls = one, .b.tls = two };
		struct site site;
		int fds[2];

		site_start(&site, 64 * MIB);
		fixture_tcp_pair(fds);
		stream_open(&s, &site, fds);
		if (ahead) {
			site_call(&site, end_tls_stays, &s.a);
			site_call(&site, end_tls_stays, &s.b);
		}
		stream_run(&s, 300);
		ends_close(&s.a, &s.b);
		EXPECT_RC(s.b.reason, -ERR_CLOSED);
		EXPECT_STR(s.a.name, "node:two");
		EXPECT_STR(s.b.name, "client:one");
		site_stop(&site);
	}
	tls_ctx_destroy(one);
	tls_ctx_destroy(two);
}


/* ---- Back-pressure ---- */

struct hoard {
	struct stream s;
	struct slice kept[64];
	unsigned kept_count;
};

static void hoard_on_frame(struct end *e, const struct frame *f)
{
	struct hoard *h = container_of(e, struct hoard, s.b);

	EXPECT_EQ(f->id, e->frames - 1);
	EXPECT(h->kept_count < ARRAY_LEN(h->kept));
	h->kept[h->kept_count++] = slice_ref(f->payload);
}

static void hoard_release(void *arg)
{
	struct hoard *h = arg;

	for (unsigned i = 0; i < h->kept_count; i++) {
		pattern(h->s.scratch, h->kept[i].len, h->s.b.frames - h->kept_count + i);
		EXPECT_MEM(h->kept[i].data, h->s.scratch, h->kept[i].len);
	}
	while (h->kept_count)
		slice_unref(&h->kept[--h->kept_count]);
}

static void hoard_send(void *arg)
{
	struct hoard *h = arg;

	for (unsigned i = 0; i < h->s.count; i++) {
		struct buf *b = buf_heap(200000);
		struct slice one = { b, b->data, 200000 };

		pattern(b->data, one.len, i);
		conn_send(h->s.a.c, OP_IO, i, "body", 4, &one, 1);
		buf_unref(b);
	}
}

/* All frames are there, or the pool cannot give another staging buffer. */
static bool hoard_is_stuck(void *arg)
{
	struct hoard *h = arg;
	struct buf *b;

	if (h->s.b.frames == h->s.count)
		return true;
	b = buf_get(h->s.b.pool, 262144);
	if (b)
		buf_unref(b);
	return !b;
}

/* The receiver keeps payloads until its memory is full: reading stops, and goes on without a loss when
 * memory comes back. */
TEST(conn, an_empty_pool_is_back_pressure)
{
	struct tls_ctx *tls = fixture_tls("client:one");

	for (int with_tls = 0; with_tls < 2; with_tls++) {
		struct hoard h = { .s.count = 60 };
		struct site site;
		unsigned stuck = 0;
		int fds[2];

		site_start(&site, 64 * MIB);
		h.s.scratch = malloc(MIB);
		h.s.b.pool = buf_pool_create(2 * MIB);
		h.s.b.on_frame = hoard_on_frame;
		h.s.a.send_limit = 64 * MIB;
		if (with_tls)
			h.s.a.tls = h.s.b.tls = tls;
		fixture_socketpair(fds);
		stream_open(&h.s, &site, fds);
		site_call(&site, hoard_send, &h);
		while (h.s.b.frames < h.s.count) {
			AWAIT(&site, hoard_is_stuck, &h);
			stuck++;
			site_call(&site, hoard_release, &h);
		}
		site_call(&site, hoard_release, &h);
		EXPECT(stuck >= 5);
		ends_close(&h.s.a, &h.s.b);
		site_stop(&site);
		buf_pool_destroy(h.s.b.pool);
		free(h.s.scratch);
	}
	tls_ctx_destroy(tls);
}

static void send_until_full(void *arg)
{
	struct end *e = arg;
	static const uint8_t body[1000];

	e->in_call = true;
	while (!conn_full(e->c))
		conn_send(e->c, OP_CALL, 0, body, sizeof(body), NULL, 0);
	EXPECT(conn_queued_bytes(e->c) >= e->send_limit);
	e->in_call = false;
}

static bool stays_full(void *arg)
{
	struct end *e = arg;

	/* The kernel takes some at first; full again means that it takes no more. */
	send_until_full(e);
	e->drained = 0;
	return e->frames++ > 50; /* each look is at least one turn later */
}

static void send_far_too_much(void *arg)
{
	struct end *e = arg;
	static const uint8_t body[1000];

	e->in_call = true;
	for (unsigned i = 0; i < 1000; i++)
		conn_send(e->c, OP_CALL, 0, body, sizeof(body), NULL, 0);
	e->in_call = false;
}

static bool was_drained(void *arg)
{
	return ((struct end *)arg)->drained;
}

TEST(conn, a_slow_peer_fills_the_queue_and_ends_the_connection)
{
	struct end a = { .send_limit = 100000 };
	static uint8_t waste[MIB];
	struct site site;
	int fds[2];

	site_start(&site, MIB);
	a.site = &site;
	fixture_socketpair(fds);
	a.fd = fds[0];
	site_call(&site, end_open, &a);
	AWAIT(&site, stays_full, &a);
	EXPECT_EQ(fixture_recv(fds[1], waste, 300000), 300000);
	AWAIT(&site, was_drained, &a);
	EXPECT_EQ(a.closed, 0);
	site_call(&site, send_far_too_much, &a);
	AWAIT(&site, end_closed, &a);
	EXPECT_RC(a.reason, -ENOBUFS);
	close(fds[1]);
	site_stop(&site);
}

/* ---- Raw peers ---- */

static size_t raw_frame(uint8_t *out, const void *body, uint32_t body_len, const void *payload,
			uint32_t payload_len)
{
	struct wire_header h = { .opcode = OP_IO, .id = 5, .body_len = body_len,
				 .payload_len = payload_len };

	memcpy(out + WIRE_HEADER_SIZE, body, body_len);
	if (payload_len)
		memcpy(out + WIRE_HEADER_SIZE + body_len, payload, payload_len);
	wire_header_encode(&h, body, out);
	return WIRE_HEADER_SIZE + body_len + payload_len;
}

static void raw_open(struct end *e, struct site *site, int *fd)
{
	int fds[2];

	site_start(site, 4 * MIB);
	fixture_socketpair(fds);
	e->site = site;
	e->fd = fds[0];
	*fd = fds[1];
	site_call(site, end_open, e);
}

static void raw_expect_end(struct end *e, struct site *site, int fd, int reason)
{
	AWAIT(site, end_closed, e);
	EXPECT_RC(e->reason, reason);
	EXPECT_EQ(e->closed, 1);
	close(fd);
	site_stop(site);
}

static void three_on_frame(struct end *e, const struct frame *f)
{
	EXPECT_EQ(f->id, 5);
	EXPECT_EQ(f->body_len, 9);
	EXPECT_MEM(f->body, "some body", 9);
	EXPECT_EQ(f->payload.len, 700);
	for (unsigned i = 0; i < 700; i++)
		EXPECT_EQ(f->payload.data[i], (uint8_t)i);
}

static bool three_frames(void *arg)
{
	return ((struct end *)arg)->frames == 3;
}

TEST(conn, frames_may_arrive_byte_by_byte)
{
	struct end e = { .on_frame = three_on_frame };
	uint8_t payload[700], out[3 * 1000];
	struct site site;
	size_t n = 0;
	int fd;

	for (unsigned i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)i;
	raw_open(&e, &site, &fd);
	for (unsigned i = 0; i < 3; i++)
		n += raw_frame(out + n, "some body", 9, payload, sizeof(payload));
	for (size_t i = 0; i < n; i++) {
		fixture_send(fd, out + i, 1);
		site_call(&site, NULL, NULL); /* a turn in between */
	}
	AWAIT(&site, three_frames, &e);
	site_call(&site, end_close, &e);
	raw_expect_end(&e, &site, fd, -ECANCELED);
}

TEST(conn, what_is_not_a_frame_closes)
{
	for (unsigned kind = 0; kind < 4; kind++) {
		struct end e = { 0 };
		uint8_t out[64];
		size_t n = raw_frame(out, "body", 4, NULL, 0);
		struct site site;
		int fd;

		switch (kind) {
		case 0: /* no magic */
			out[0] ^= 1;
			break;
		case 1: /* checksum of the body */
			out[33] ^= 1;
			break;
		case 2: /* a length beyond the limit */
			put_le32(out + 16, WIRE_BODY_MAX + 1);
			break;
		case 3: /* another header version */
			out[4] = 9;
			break;
		}
		raw_open(&e, &site, &fd);
		fixture_send(fd, out, n);
		raw_expect_end(&e, &site, fd, kind == 3 ? -ERR_VERSION : -ERR_PROTOCOL);
		EXPECT_EQ(e.frames, 0);
	}
}

static void end_limit(void *arg)
{
	conn_limit_frames(((struct end *)arg)->c, 100, 0);
}

TEST(conn, limits_before_the_peer_is_known)
{
	struct end e = { 0 };
	uint8_t out[300], body[101] = { 0 };
	struct site site;
	int fd;

	raw_open(&e, &site, &fd);
	site_call(&site, end_limit, &e);
	fixture_send(fd, out, raw_frame(out, body, 100, NULL, 0));
	AWAIT(&site, end_got_frame, &e);
	EXPECT_EQ(e.frames, 1);
	fixture_send(fd, out, raw_frame(out, body, 101, NULL, 0));
	raw_expect_end(&e, &site, fd, -ERR_PROTOCOL);
}

static void end_send_and_shutdown(void *arg)
{
	struct end *e = arg;

	end_send_one(e);
	conn_shutdown(e->c);
	end_send_one(e); /* too late: ignored */
}

/* The last frame must reach a peer that is still talking: closing at once would reset it. */
TEST(conn, shutdown_delivers_what_is_queued)
{
	struct end e = { 0 };
	uint8_t out[64], in[200];
	struct site site;
	size_t n;
	int fd;

	raw_open(&e, &site, &fd);
	n = raw_frame(out, "unread", 6, NULL, 0);
	fixture_send(fd, out, n);
	AWAIT(&site, end_got_frame, &e);
	site_call(&site, end_send_and_shutdown, &e);
	fixture_send(fd, out, n);
	EXPECT_EQ(fixture_recv(fd, in, sizeof(in)), WIRE_HEADER_SIZE + 5);
	EXPECT_MEM(in + WIRE_HEADER_SIZE, "hello", 5);
	EXPECT_EQ(e.frames, 1);
	shutdown(fd, SHUT_WR);
	raw_expect_end(&e, &site, fd, -ERR_CLOSED);
}

static void end_close_in_frame(struct end *e, const struct frame *f)
{
	end_close(e);
	EXPECT_MEM(f->body, "some body", 9); /* still valid */
}

TEST(conn, close_from_a_callback)
{
	struct end e = { .on_frame = end_close_in_frame };
	uint8_t out[3 * 64];
	struct site site;
	size_t n = 0;
	int fd;

	raw_open(&e, &site, &fd);
	for (unsigned i = 0; i < 3; i++)
		n += raw_frame(out + n, "some body", 9, NULL, 0);
	fixture_send(fd, out, n);
	raw_expect_end(&e, &site, fd, -ECANCELED);
	EXPECT_EQ(e.frames, 1);
}

static bool both_closed(void *arg)
{
	struct end *e = arg;

	return e[0].closed && e[1].closed;
}

/* Half a frame, and a queue that nobody reads, each for 5 s; an idle connection is left alone. */
TEST(conn, no_progress_ends_the_connection)
{
	struct end e[3] = { { 0 }, { .send_limit = 1 << 20 }, { 0 } };
	uint8_t out[64];
	struct site site;
	int pairs[3][2];

	site_start(&site, 4 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		fixture_socketpair(pairs[i]);
		e[i].site = &site;
		e[i].fd = pairs[i][0];
		site_call(&site, end_open, &e[i]);
	}
	raw_frame(out, "body", 4, NULL, 0);
	fixture_send(pairs[0][1], out, 20);
	fixture_send(pairs[2][1], out, 36);
	site_call(&site, send_until_full, &e[1]);
	AWAIT(&site, both_closed, e);
	EXPECT_RC(e[0].reason, -ETIMEDOUT);
	EXPECT_RC(e[1].reason, -ETIMEDOUT);
	EXPECT_EQ(e[2].closed, 0);
	EXPECT_EQ(e[2].frames, 1);
	site_call(&site, end_close, &e[2]);
	for (unsigned i = 0; i < 3; i++)
		close(pairs[i][1]);
	site_stop(&site);
}

/* ---- TLS ---- */

static void tls_pair_open(struct site *site, struct end *a, struct end *b, struct tls_ctx *ta,
			  struct tls_ctx *tb)
{
	int fds[2];

	site_start(site, 4 * MIB);
	fixture_socketpair(fds);
	*a = (struct end){ .site = site, .fd = fds[0], .tls = ta };
	*b = (struct end){ .site = site, .fd = fds[1], .tls = tb, .server = true };
	site_call(site, end_open, a);
	site_call(site, end_open, b);
}

TEST(tls, a_certificate_of_another_ca_is_refused)
{
	struct tls_ctx *ours = fixture_tls("node:a"), *foreign = fixture_tls_foreign("node:a");

	for (int server_is_foreign = 0; server_is_foreign < 2; server_is_foreign++) {
		struct site site;
		struct end a, b;

		tls_pair_open(&site, &a, &b, server_is_foreign ? ours : foreign,
			      server_is_foreign ? foreign : ours);
		site_call(&site, end_send_one, &a);
		AWAIT(&site, end_closed, &a);
		AWAIT(&site, end_closed, &b);
		EXPECT_RC(a.reason, -ERR_AUTH);
		EXPECT_RC(b.reason, -ERR_AUTH);
		EXPECT_EQ(b.frames, 0);
		site_stop(&site);
	}
	tls_ctx_destroy(ours);
	tls_ctx_destroy(foreign);
}

static bool got_frame_or_closed(void *arg)
{
	return end_got_frame(arg);
}

/* Joining: the client knows nothing but the CA's fingerprint; the server lets it in unnamed. */
TEST(tls, pinned_client_and_anonymous_server)
{
	char good[65], bad[65];
	struct tls_ctx *server = fixture_tls("node:a"), *strict = fixture_tls("node:b");
	struct tls_ctx *pinned, *wrong;
	struct site site;
	struct end a, b;

	EXPECT_OK(ca_fingerprint(fixture_ca_path("ca.crt"), good));
	memcpy(bad, good, sizeof(bad));
	bad[0] = bad[0] == '0' ? '1' : '0';
	EXPECT(!tls_ctx_create_pinned("12"));
	EXPECT(!tls_ctx_create_pinned("zz23456789012345678901234567890123456789012345678901234567890123"));
	pinned = tls_ctx_create_pinned(good);
	wrong = tls_ctx_create_pinned(bad);
	EXPECT(pinned && wrong);
	tls_ctx_allow_anonymous(server, true);

	tls_pair_open(&site, &a, &b, pinned, server);
	site_call(&site, end_send_one, &a);
	AWAIT(&site, got_frame_or_closed, &b);
	EXPECT_EQ(b.frames, 1);
	ends_close(&a, &b);
	EXPECT_STR(b.name, "");
	EXPECT_STR(a.name, "node:a");
	site_stop(&site);

	tls_pair_open(&site, &a, &b, wrong, server);
	AWAIT(&site, end_closed, &a);
	AWAIT(&site, end_closed, &b);
	EXPECT_RC(a.reason, -ERR_AUTH);
	site_stop(&site);

	tls_pair_open(&site, &a, &b, pinned, strict);
	AWAIT(&site, end_closed, &a);
	AWAIT(&site, end_closed, &b);
	EXPECT_RC(a.reason, -ERR_AUTH);
	EXPECT_RC(b.reason, -ERR_AUTH);
	site_stop(&site);
	tls_ctx_destroy(server);
	tls_ctx_destroy(strict);
	tls_ctx_destroy(pinned);
	tls_ctx_destroy(wrong);
}

/* A greets, B answers and both leave TLS; from there the stream is plain frames. */

struct greeting {
	struct stream s;
	bool left;
};

static void greet_b_on_frame(struct end *e, const struct frame *f)
{
	end_send_one(e);
	conn_plain_after_send(e->c);
}

static void greet_a_on_frame(struct end *e, const struct frame *f)
{
	struct greeting *g = container_of(e, struct greeting, s.a);

	conn_plain_now(e->c);
	g->left = true;
}

static bool greeting_left(void *arg)
{
	struct greeting *g = arg;

	return g->left || g->s.a.closed || g->s.b.closed;
}

static void greeting_start(struct greeting *g, struct site *site, struct tls_ctx *t)
{
	int fds[2];

	site_start(site, 64 * MIB);
	fixture_tcp_pair(fds);
	g->s.a.tls = g->s.b.tls = t;
	g->s.a.on_frame = greet_a_on_frame;
	g->s.b.on_frame = greet_b_on_frame;
	stream_open(&g->s, site, fds);
	site_call(site, end_send_one, &g->s.a);
	AWAIT(site, greeting_left, g);
	EXPECT(g->left);
}

TEST(tls, the_stream_goes_on_in_plain)
{
	struct tls_ctx *t = fixture_tls("node:a");
	struct greeting g = { 0 };
	struct site site;

	greeting_start(&g, &site, t);
	g.s.b.frames = 0;
	stream_run(&g.s, 300);
	ends_close(&g.s.a, &g.s.b);
	EXPECT_RC(g.s.b.reason, -ERR_CLOSED);
	EXPECT_STR(g.s.b.name, "node:a"); /* who it is stays known */
	site_stop(&site);
	tls_ctx_destroy(t);
}

struct detached {
	struct end *e;
	struct conn_parts parts;
};

static void end_detach(void *arg)
{
	struct detached *d = arg;

	d->parts = conn_detach(d->e->c);
	d->e->c = NULL;
}

TEST(tls, after_the_switch_bytes_are_plain_frames)
{
	struct tls_ctx *t = fixture_tls("node:a");
	struct greeting g = { 0 };
	struct detached d = { .e = &g.s.b };
	uint8_t in[WIRE_HEADER_SIZE + 5];
	struct wire_header h;
	struct site site;

	greeting_start(&g, &site, t);
	site_call(&site, end_detach, &d);
	EXPECT(d.parts.fd >= 0 && !d.parts.tls);
	site_call(&site, end_send_one, &g.s.a);
	EXPECT_EQ(fixture_recv(d.parts.fd, in, sizeof(in)), sizeof(in));
	EXPECT_OK(wire_frame_parse(in, sizeof(in), &h));
	EXPECT_MEM(in + WIRE_HEADER_SIZE, "hello", 5);
	close(d.parts.fd);
	AWAIT(&site, end_closed, &g.s.a);
	EXPECT_EQ(g.s.b.closed, 0); /* a detached connection reports nothing */
	site_stop(&site);
	tls_ctx_destroy(t);
}

/* A dialler that talks on before WELCOME could be cut in two by the switch: refused. */
static void send_three(void *arg)
{
	for (int i = 0; i < 3; i++)
		end_send_one(arg);
}

TEST(tls, talking_through_the_switch_is_refused)
{
	struct tls_ctx *t = fixture_tls("node:a");
	struct greeting g = { 0 };
	struct site site;
	int fds[2];

	site_start(&site, MIB);
	fixture_socketpair(fds);
	g.s.a.tls = g.s.b.tls = t;
	g.s.b.on_frame = greet_b_on_frame;
	stream_open(&g.s, &site, fds);
	site_call(&site, send_three, &g.s.a);
	AWAIT(&site, end_closed, &g.s.b);
	EXPECT_RC(g.s.b.reason, -ERR_PROTOCOL);
	AWAIT(&site, end_closed, &g.s.a);
	site_stop(&site);
	tls_ctx_destroy(t);
}
