/* SPDX-License-Identifier: Apache-2.0 */
/* Listener and link together: greeting, refusal, identities, reconnecting, hand-over to another loop,
 * plain after hello, and the bounds on strangers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/link.h"
#include "net/listener.h"
#include "tests/lib/test.h"
#include "tests/net/net_fixture.h"

#define MIB (1u << 20)

static const struct uuid cluster = { { 1, 2, 3 } };
static const struct uuid node_a = { { 0xaa } }, node_b = { { 0xbb } };
static const char name_a[] = "node:aa000000-0000-0000-0000-000000000000";
static const char name_b[] = "node:bb000000-0000-0000-0000-000000000000";

/* The accepting node. */
struct server {
	struct site site;   /* the listener's loop */
	struct site *target; /* where connections go */
	struct tls_ctx *tls;
	struct listener *ls;
	char address[64];
	uint16_t port;
	bool refuse;
	uint8_t flags;
	struct uuid self;
	unsigned decided, accepted, frames, closed;
	struct conn *conn;
	char peer[128];
};

/* The dialling node. */
struct client {
	struct site *site;
	struct tls_ctx *tls;
	const char *tls_name;
	struct link *link;
	struct conn *conn;
	struct wire_hello hello;
	char address[64];
	unsigned ups, downs, frames;
	int reason;
	struct wire_refusal refusal;
};

static void server_on_frame(struct conn *c, const struct frame *f)
{
	struct server *s = conn_data(c);

	EXPECT(loop_is_current(s->target->loop));
	s->frames++;
	conn_send(c, OP_RESULT, f->id, f->body, f->body_len, &f->payload, f->payload.len ? 1 : 0);
}

static void server_on_closed(struct conn *c, int reason)
{
	struct server *s = conn_data(c);

	s->closed++;
	s->conn = NULL;
}

static const struct conn_ops server_ops = { .on_frame = server_on_frame,
					    .on_closed = server_on_closed };

static void server_accepted(void *data, struct conn *c, const struct wire_hello *peer)
{
	struct server *s = data;

	EXPECT(loop_is_current(s->target->loop));
	EXPECT_EQ(peer->incarnation, 12);
	snprintf(s->peer, sizeof(s->peer), "%s", conn_peer_name(c));
	conn_set(c, &server_ops, s);
	s->conn = c;
	s->accepted++;
}

static bool server_decide(void *data, const struct wire_hello *peer, const char *tls_name,
			  struct accept_decision *d, struct wire_refusal *f)
{
	struct server *s = data;

	EXPECT(loop_is_current(s->site.loop));
	s->decided++;
	if (s->refuse) {
		f->reason = REFUSE_INCARNATION;
		f->detail = 13;
		snprintf(f->text, sizeof(f->text), "a newer incarnation is known");
		return false;
	}
	*d = (struct accept_decision){
		.loop = s->target->loop,
		.pool = s->target->pool,
		.send_limit = 4 * MIB,
		.welcome = { .kind = peer->kind, .flags = s->flags, .cluster = cluster,
			     .self = s->self, .node = 1 },
		.accepted = server_accepted,
		.data = s,
	};
	return true;
}

static void server_listen(void *arg)
{
	struct server *s = arg;
	struct listener_config cfg = { .loop = s->site.loop, .pool = s->site.pool, .tls = s->tls,
				       .address = s->address, .cluster = cluster,
				       .decide = server_decide, .data = s };

	s->ls = listener_create(&cfg);
	EXPECT(s->ls != NULL);
	s->port = listener_port(s->ls);
	snprintf(s->address, sizeof(s->address), "127.0.0.1:%u", s->port);
}

static void server_deafen(void *arg)
{
	struct server *s = arg;

	listener_destroy(s->ls);
	s->ls = NULL;
}

static void server_hang_up(void *arg)
{
	struct server *s = arg;

	if (s->conn)
		conn_close(s->conn, -ECANCELED);
}

static void server_start(struct server *s)
{
	site_start(&s->site, 64 * MIB);
	if (!s->target)
		s->target = &s->site;
	if (uuid_is_nil(&s->self))
		s->self = node_a;
	snprintf(s->address, sizeof(s->address), "127.0.0.1:0");
	site_call(&s->site, server_listen, s);
}

static void server_stop(struct server *s)
{
	site_call(s->target, server_hang_up, s);
	if (s->ls)
		site_call(&s->site, server_deafen, s);
	site_stop(&s->site);
	tls_ctx_destroy(s->tls);
}

static void client_on_frame(struct conn *c, const struct frame *f)
{
	struct client *k = conn_data(c);

	EXPECT_EQ(f->opcode, OP_RESULT);
	EXPECT_EQ(f->payload.len, 4096);
	EXPECT_EQ(f->payload.data[4095], 0x5a);
	k->frames++;
}

static void client_on_closed(struct conn *c, int reason)
{
	struct client *k = conn_data(c);

	k->conn = NULL;
	if (k->link)
		link_conn_closed(k->link, reason);
}

static const struct conn_ops client_ops = { .on_frame = client_on_frame,
					    .on_closed = client_on_closed };

static void client_up(struct link *l, struct conn *c, const struct wire_hello *peer)
{
	struct client *k = link_data(l);

	EXPECT(!k->conn);
	EXPECT(uuid_equal(&peer->cluster, &cluster));
	conn_set(c, &client_ops, k);
	k->conn = c;
	k->ups++;
}

static void client_down(struct link *l, int reason, const struct wire_refusal *refusal)
{
	struct client *k = link_data(l);

	k->downs++;
	k->reason = reason;
	if (refusal)
		k->refusal = *refusal;
}

static const struct link_ops client_link_ops = { .up = client_up, .down = client_down };

static void client_dial(void *arg)
{
	struct client *k = arg;
	struct link_config cfg = { .loop = k->site->loop, .pool = k->site->pool, .tls = k->tls,
				   .address = k->address, .tls_name = k->tls_name,
				   .hello = k->hello, .send_limit = 4 * MIB,
				   .ops = &client_link_ops, .data = k };

	k->link = link_create(&cfg);
}

static void client_start(struct client *k, struct site *site, struct server *s)
{
	k->site = site;
	k->hello.kind = k->hello.kind ? k->hello.kind : HELLO_DATA;
	if (uuid_is_nil(&k->hello.cluster))
		k->hello.cluster = cluster;
	k->hello.self = node_b;
	k->hello.incarnation = 12;
	snprintf(k->address, sizeof(k->address), "%s", s->address);
	site_call(site, client_dial, k);
}

static void client_end(void *arg)
{
	struct client *k = arg;

	link_destroy(k->link);
	k->link = NULL;
	if (k->conn)
		conn_close(k->conn, -ECANCELED);
}

static void client_stop(struct client *k)
{
	site_call(k->site, client_end, k);
	tls_ctx_destroy(k->tls);
}

static void client_ask(void *arg)
{
	struct client *k = arg;
	struct buf *b = buf_heap(4096);
	struct slice one = slice_all(b);

	memset(b->data, 0x5a, 4096);
	for (unsigned i = 0; i < 100; i++)
		conn_send(k->conn, OP_CALL, i, "ask", 3, &one, 1);
	buf_unref(b);
}

static bool client_is_up(void *arg)
{
	return ((struct client *)arg)->conn;
}

static bool client_is_down(void *arg)
{
	return ((struct client *)arg)->downs;
}

static bool client_answered(void *arg)
{
	return ((struct client *)arg)->frames == 100;
}

static void client_talk(struct client *k)
{
	AWAIT(k->site, client_is_up, k);
	site_call(k->site, client_ask, k);
	AWAIT(k->site, client_answered, k);
	EXPECT_EQ(k->frames, 100);
	k->frames = 0;
}

/* ---- Greeting ---- */

/* Plain only if both want it; the data goes through in every combination, to the loop that was asked for. */
TEST(link, up_and_handed_over)
{
	for (unsigned i = 0; i < 8; i++) {
		struct site site, target;
		struct server s = { .tls = fixture_tls(name_a), .flags = i & 1 };
		struct client k = { .tls = fixture_tls(name_b), .tls_name = name_a,
				    .hello.flags = (i >> 1) & 1 };

		site_start(&site, 16 * MIB);
		site_start(&target, 16 * MIB);
		s.target = i & 4 ? &target : NULL;
		server_start(&s);
		client_start(&k, &site, &s);
		client_talk(&k);
		EXPECT_EQ(k.ups, 1);
		EXPECT_EQ(k.downs, 0);
		EXPECT_EQ(s.accepted, 1);
		EXPECT_EQ(s.frames, 100);
		EXPECT_STR(s.peer, name_b);
		client_stop(&k);
		site_stop(&site);
		server_stop(&s);
		site_stop(&target);
	}
}

TEST(link, up_without_tls)
{
	struct site site;
	struct server s = { 0 };
	struct client k = { .hello.flags = HELLO_PLAIN };

	site_start(&site, 16 * MIB);
	server_start(&s);
	client_start(&k, &site, &s);
	client_talk(&k);
	client_stop(&k);
	site_stop(&site);
	server_stop(&s);
}

/* ---- Refusals ---- */

/* Dials once with the given pair and expects the link to report `reason`. */
static void expect_down(struct server *s, struct client *k, int reason)
{
	struct site site;

	site_start(&site, 16 * MIB);
	server_start(s);
	client_start(k, &site, s);
	AWAIT(&site, client_is_down, k);
	EXPECT_RC(k->reason, reason);
	EXPECT_EQ(k->ups, 0);
	EXPECT_EQ(s->accepted, 0);
	client_stop(k);
	site_stop(&site);
	server_stop(s);
}

TEST(link, the_user_refuses)
{
	struct server s = { .tls = fixture_tls(name_a), .refuse = true };
	struct client k = { .tls = fixture_tls(name_b) };

	expect_down(&s, &k, -ERR_REFUSED);
	EXPECT_EQ(k.refusal.reason, REFUSE_INCARNATION);
	EXPECT_EQ(k.refusal.detail, 13);
	EXPECT_STR(k.refusal.text, "a newer incarnation is known");
}

/* What a refusal says may end a node for good: only who was dialled may say it, whoever answers there. */
TEST(link, a_refusal_of_somebody_else_says_nothing)
{
	struct server s = { .tls = fixture_tls("client:x"), .refuse = true };
	struct client k = { .tls = fixture_tls(name_b), .tls_name = name_a };

	expect_down(&s, &k, -ERR_AUTH);
	EXPECT_EQ(k.refusal.reason, 0);
}

TEST(link, another_cluster_is_refused)
{
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls(name_b), .hello.cluster = { { 9 } } };

	expect_down(&s, &k, -ERR_REFUSED);
	EXPECT_EQ(k.refusal.reason, REFUSE_CLUSTER);
	EXPECT_EQ(s.decided, 0);
}

/* A node's certificate does not allow to speak as another node, nor a client's as any node. */
TEST(link, a_false_identity_is_refused)
{
	static const char *const names[] = { "node:cc000000-0000-0000-0000-000000000000", "client:x",
					     "operator:root", "node:" };

	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		struct server s = { .tls = fixture_tls(name_a) };
		struct client k = { .tls = fixture_tls(names[i]) };

		expect_down(&s, &k, -ERR_REFUSED);
		EXPECT_EQ(k.refusal.reason, REFUSE_IDENTITY);
		EXPECT_EQ(s.decided, 0);
	}
	/* As a client: clients and nodes, but no operators. */
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls("operator:root"), .hello.kind = HELLO_CLIENT_DATA };

	expect_down(&s, &k, -ERR_REFUSED);
	EXPECT_EQ(k.refusal.reason, REFUSE_IDENTITY);
}

TEST(link, clients_need_only_be_clients)
{
	static const char *const names[] = { "client:host7", name_b };

	for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
		struct site site;
		struct server s = { .tls = fixture_tls(name_a) };
		struct client k = { .tls = fixture_tls(names[i]), .hello.kind = HELLO_CLIENT_DATA };

		site_start(&site, 16 * MIB);
		server_start(&s);
		client_start(&k, &site, &s);
		AWAIT(&site, client_is_up, &k);
		EXPECT_STR(s.peer, names[i]);
		client_stop(&k);
		site_stop(&site);
		server_stop(&s);
	}
}

TEST(link, a_foreign_ca_is_refused)
{
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls_foreign(name_b) };

	expect_down(&s, &k, -ERR_AUTH);
	EXPECT_EQ(s.decided, 0);
}

/* Somebody else answers at the address we know: not the node we were told to reach, or a node whose
 * WELCOME is not covered by its certificate. */
TEST(link, the_wrong_node_is_not_accepted)
{
	for (unsigned i = 0; i < 2; i++) {
		struct site site;
		struct server s = { .tls = fixture_tls(name_a), .self = i ? node_b : node_a };
		struct client k = { .tls = fixture_tls(name_b), .tls_name = i ? NULL : name_b };

		site_start(&site, 16 * MIB);
		server_start(&s);
		client_start(&k, &site, &s);
		AWAIT(&site, client_is_down, &k);
		EXPECT_RC(k.reason, -ERR_AUTH);
		EXPECT_EQ(k.ups, 0);
		client_stop(&k);
		site_stop(&site);
		server_stop(&s);
	}
}

/* ---- Losses ---- */

static void client_forget(void *arg)
{
	struct client *k = arg;

	k->downs = 0;
	k->reason = 0;
}

static bool client_was_refused(void *arg)
{
	return ((struct client *)arg)->reason == -ECONNREFUSED;
}

TEST(link, comes_back_with_the_listener)
{
	struct site site;
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls(name_b) };

	site_start(&site, 16 * MIB);
	server_start(&s);
	client_start(&k, &site, &s);
	client_talk(&k);
	site_call(&s.site, server_deafen, &s);
	site_call(&s.site, server_hang_up, &s);
	/* The loss is reported first, and the reconnect finds nobody. */
	AWAIT(&site, client_is_down, &k);
	AWAIT(&site, client_was_refused, &k);
	EXPECT(k.downs >= 2);
	site_call(&site, client_forget, &k);
	site_call(&s.site, server_listen, &s); /* the same port */
	client_talk(&k);
	EXPECT_EQ(k.ups, 2);
	client_stop(&k);
	site_stop(&site);
	server_stop(&s);
}

static bool refused_often(void *arg)
{
	return ((struct client *)arg)->downs >= 4;
}

static void client_redirect(void *arg)
{
	struct client *k = arg;

	link_set_address(k->link, k->address);
	link_kick(k->link);
}

TEST(link, address_may_change)
{
	struct site site;
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls(name_b) };

	site_start(&site, 16 * MIB);
	server_start(&s);
	snprintf(k.address, sizeof(k.address), "nonsense");
	k.site = &site;
	k.hello = (struct wire_hello){ .kind = HELLO_DATA, .cluster = cluster, .self = node_b,
				       .incarnation = 12 };
	site_call(&site, client_dial, &k);
	AWAIT(&site, refused_often, &k);
	EXPECT_RC(k.reason, -EINVAL);
	snprintf(k.address, sizeof(k.address), "%s", s.address);
	site_call(&site, client_redirect, &k);
	client_talk(&k);
	client_stop(&k);
	site_stop(&site);
	server_stop(&s);
}

/* Destroyed at every stage of dialling: nothing is called afterwards and nothing leaks. */
TEST(link, may_be_destroyed_at_any_time)
{
	struct server s = { .tls = fixture_tls(name_a) };
	struct tls_ctx *t = fixture_tls(name_b);
	struct site site;

	site_start(&site, 16 * MIB);
	server_start(&s);
	for (unsigned turns = 0; turns < 12; turns++) {
		struct client k = { .tls = t };

		client_start(&k, &site, &s);
		for (unsigned i = 0; i < turns; i++)
			site_call(&site, NULL, NULL);
		site_call(&site, client_end, &k);
		site_call(&site, NULL, NULL);
		site_call(&site, NULL, NULL);
	}
	tls_ctx_destroy(t);
	site_stop(&site);
	server_stop(&s);
}

/* ---- Strangers ---- */

static void nothing_more_comes(int fd)
{
	char c;

	EXPECT_EQ(fixture_recv(fd, &c, 1), 0);
	close(fd);
}

TEST(listener, a_first_frame_that_is_no_hello_closes)
{
	struct server s = { 0 };

	server_start(&s);
	for (unsigned i = 0; i < 4; i++) {
		struct wire_header h = { .opcode = i == 1 ? OP_HELLO : OP_IO, .body_len = 5 };
		uint8_t out[64] = { 0 };
		int fd = fixture_dial(s.port);

		if (i == 3) { /* too large for a stranger */
			h.opcode = OP_HELLO;
			h.body_len = 5000;
		}
		static uint8_t body[5000];

		wire_header_encode(&h, body, out);
		if (i == 2)
			memset(out, 'x', sizeof(out));
		fixture_send(fd, out, WIRE_HEADER_SIZE + 5);
		nothing_more_comes(fd);
	}
	EXPECT_EQ(s.decided, 0);
	server_stop(&s);
}

/* Bytes behind HELLO would be lost in the hand-over or read as TLS by nobody. */
TEST(listener, talking_on_before_welcome_closes)
{
	struct server s = { 0 };
	struct wire_hello hello = { .version_min = 1, .version_max = 1, .kind = HELLO_DATA,
				    .cluster = cluster, .self = node_b, .incarnation = 12 };
	struct wire_header h = { .opcode = OP_HELLO, .body_len = WIRE_HELLO_SIZE };
	uint8_t out[WIRE_HEADER_SIZE + WIRE_HELLO_SIZE + 1] = { 0 };
	struct writer w = writer_init(out + WIRE_HEADER_SIZE, WIRE_HELLO_SIZE);
	int fd;

	server_start(&s);
	wire_hello_encode(&hello, &w);
	wire_header_encode(&h, out + WIRE_HEADER_SIZE, out);
	fd = fixture_dial(s.port);
	fixture_send(fd, out, sizeof(out));
	nothing_more_comes(fd);
	EXPECT_EQ(s.accepted, 0);
	server_stop(&s);
}

TEST(listener, an_unknown_protocol_version_is_refused_in_words)
{
	struct server s = { 0 };
	struct wire_hello hello = { .version_min = 2, .version_max = 3, .kind = HELLO_DATA,
				    .cluster = cluster, .self = node_b };
	struct wire_header h = { .opcode = OP_HELLO, .body_len = WIRE_HELLO_SIZE };
	uint8_t out[WIRE_HEADER_SIZE + WIRE_HELLO_SIZE] = { 0 }, in[1024];
	struct writer w = writer_init(out + WIRE_HEADER_SIZE, WIRE_HELLO_SIZE);
	struct wire_refusal f;
	size_t n;
	int fd;

	server_start(&s);
	wire_hello_encode(&hello, &w);
	wire_header_encode(&h, out + WIRE_HEADER_SIZE, out);
	fd = fixture_dial(s.port);
	fixture_send(fd, out, sizeof(out));
	n = fixture_recv(fd, in, sizeof(in));
	EXPECT_OK(wire_frame_parse(in, n, &h));
	EXPECT_EQ(h.opcode, OP_REFUSE);
	struct reader r = reader_init(in + WIRE_HEADER_SIZE, h.body_len);

	EXPECT_OK(wire_refusal_decode(&r, &f));
	EXPECT_EQ(f.reason, REFUSE_VERSION);
	close(fd);
	server_stop(&s);
}

static unsigned ended(const int *fds, unsigned n)
{
	unsigned count = 0;

	for (unsigned i = 0; i < n; i++) {
		struct pollfd p = { .fd = fds[i], .events = POLLIN };

		count += poll(&p, 1, 0) == 1;
	}
	return count;
}

/* Silent connections: at most 256 at a time, the oldest go first, and none stays beyond 3 s. A proper
 * peer gets through meanwhile. */
TEST(listener, silent_strangers_are_bounded_and_timed_out)
{
	enum { N = 300 };
	struct server s = { .tls = fixture_tls(name_a) };
	struct client k = { .tls = fixture_tls(name_b) };
	struct site site;
	int fds[N];
	struct pollfd last;

	site_start(&site, 16 * MIB);
	server_start(&s);
	for (unsigned i = 0; i < N; i++)
		fds[i] = fixture_dial(s.port);
	client_start(&k, &site, &s);
	client_talk(&k);
	/* The dials before ours in the queue were all accepted when ours was. */
	EXPECT_EQ(ended(fds, N - 256), N - 256);
	EXPECT_EQ(ended(fds + N - 200, 200), 0);
	last = (struct pollfd){ .fd = fds[N - 1], .events = POLLIN };
	EXPECT_EQ(poll(&last, 1, 8000), 1);
	EXPECT_EQ(ended(fds, N), N);
	for (unsigned i = 0; i < N; i++)
		close(fds[i]);
	client_stop(&k);
	site_stop(&site);
	server_stop(&s);
}

static void bind_taken(void *arg)
{
	struct server *s = arg;
	struct listener_config cfg = { .loop = s->site.loop, .pool = s->site.pool,
				       .address = s->address, .decide = server_decide };

	EXPECT(!listener_create(&cfg));
	cfg.address = "localhost:1";
	EXPECT(!listener_create(&cfg));
	cfg.address = "127.0.0.1:99999";
	EXPECT(!listener_create(&cfg));
}

TEST(listener, an_address_that_cannot_be_bound)
{
	struct server s = { 0 };

	server_start(&s);
	site_call(&s.site, bind_taken, &s);
	server_stop(&s);
}

/* ---- Probe ---- */

struct probing {
	struct wait wait;
	struct tcp_probe probe;
	struct site *site;
	char address[64];
	unsigned resumes;
	int rc;
	bool in_call;
};

static void probe_resume(struct wait *w, int rc)
{
	struct probing *p = container_of(w, struct probing, wait);

	EXPECT(!p->in_call);
	p->resumes++;
	p->rc = rc;
}

static void probe_start(void *arg)
{
	struct probing *p = arg;

	p->in_call = true;
	EXPECT_EQ(tcp_probe(p->site->loop, &p->probe, p->address, 200, &p->wait), PENDING);
	p->in_call = false;
}

static bool probe_done(void *arg)
{
	return ((struct probing *)arg)->resumes;
}

static void probe_expect(struct site *site, const char *address, int rc)
{
	struct probing p = { .wait.resume = probe_resume, .site = site };

	snprintf(p.address, sizeof(p.address), "%s", address);
	site_call(site, probe_start, &p);
	AWAIT(site, probe_done, &p);
	EXPECT_EQ(p.resumes, 1);
	EXPECT_RC(p.rc, rc);
}

TEST(probe, tells_listening_refused_and_silent_apart)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fill[3];
	struct site site;
	char address[64];

	site_start(&site, MIB);
	CHECK(!bind(ls, (struct sockaddr *)&sa, len));
	CHECK(!getsockname(ls, (struct sockaddr *)&sa, &len));
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(sa.sin_port));
	probe_expect(&site, address, -ECONNREFUSED); /* bound, not listening */
	CHECK(!listen(ls, 1));
	probe_expect(&site, address, 0);
	/* A host that does not answer: the accept queue is full, connects are dropped. */
	for (unsigned i = 0; i < ARRAY_LEN(fill); i++) {
		fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		CHECK(connect(fill[i], (struct sockaddr *)&sa, len) <= 0);
	}
	probe_expect(&site, address, -ETIMEDOUT);
	probe_expect(&site, "no address", -EINVAL);
	for (unsigned i = 0; i < ARRAY_LEN(fill); i++)
		close(fill[i]);
	close(ls);
	site_stop(&site);
}
