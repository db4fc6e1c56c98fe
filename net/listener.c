/* SPDX-License-Identifier: Apache-2.0 */
/* The accepting side. A connection that has not proved who it is is a `guest`: bounded in number, in
 * time and in what it may send. A guest ends by its hand-over to the loop that the user names, by a
 * refusal, or by being dropped.
 *
 * Must never: let a frame other than one HELLO reach anybody before identity, cluster and protocol
 * version were checked. */
#include "net/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/address.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define GUESTS_MAX 256u
#define HELLO_DEADLINE_US 3000000u
#define ACCEPTS_PER_TURN 32u
#define ACCEPT_PAUSE_US 100000u
#define HELLO_BODY_MAX 4096u
#define GUEST_SEND_LIMIT 65536u

struct guest {
	struct list link; /* oldest first */
	struct listener *ls;
	struct conn *conn;
	uint64_t since_us;
	bool answered; /* a refusal is on its way */
};

struct listener {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;
	struct uuid cluster;
	bool (*decide)(void *data, const struct wire_hello *peer, const char *tls_name,
		       struct accept_decision *d, struct wire_refusal *f);
	void *data;
	int fd;
	uint16_t port;
	struct fdwatch watch;
	struct timer deadline; /* of the oldest guest */
	struct timer pause;    /* accepting pauses while the process is out of descriptors */
	struct list guests;
	unsigned guest_count;
	unsigned crowded; /* guests dropped for want of room; limits the log */
};

/* ---- Hand-over ---- */

struct handover {
	struct post post;
	struct conn_parts parts;
	struct accept_decision decision;
	struct wire_hello peer;
};

static void nobody_on_frame(struct conn *c, const struct frame *f)
{
	conn_close(c, -ERR_PROTOCOL);
}

static void nobody_on_closed(struct conn *c, int reason)
{
}

static const struct conn_ops nobody_ops = { .on_frame = nobody_on_frame,
					    .on_closed = nobody_on_closed };

/* On the target loop. */
static void handover_arrive(struct post *p)
{
	struct handover *h = container_of(p, struct handover, post);
	struct accept_decision *d = &h->decision;
	uint8_t body[WIRE_HELLO_SIZE];
	struct writer w = writer_init(body, sizeof(body));
	struct conn *c = conn_create(d->loop, d->pool, h->parts.fd, h->parts.tls, d->send_limit,
				     &nobody_ops, NULL);

	wire_hello_encode(&d->welcome, &w);
	CHECK(!w.bad);
	conn_send(c, OP_WELCOME, 0, body, (uint32_t)w.len, NULL, 0);
	if (wire_leaves_tls(&h->peer, &d->welcome))
		conn_plain_after_send(c);
	else
		conn_tls_stays(c);
	d->accepted(d->data, c, &h->peer);
	free(h);
}

/* ---- Guests ---- */

static void guest_leave(struct guest *g)
{
	list_del(&g->link);
	g->ls->guest_count--;
	free(g);
}

static void guest_drop(struct guest *g, int reason)
{
	struct conn *c = g->conn;

	conn_set(c, &nobody_ops, NULL);
	guest_leave(g);
	conn_close(c, reason);
}

static void guest_refuse(struct guest *g, const struct wire_refusal *f)
{
	uint8_t body[256];
	struct writer w = writer_init(body, sizeof(body));

	log_info("net", "connection refused", "peer=%s identity=\"%s\" reason=%s text=\"%s\"",
		 conn_peer_address(g->conn), conn_peer_name(g->conn), wire_refuse_name(f->reason),
		 f->text);
	wire_refusal_encode(f, &w);
	CHECK(!w.bad);
	g->answered = true;
	conn_send(g->conn, OP_REFUSE, 0, body, (uint32_t)w.len, NULL, 0);
	conn_shutdown(g->conn);
}

/* The certificate must name who the hello says it is: a node speaks only as itself, a client is any
 * name the cluster's CA signed as a client's, and a node may act as a client too (its front ends). */
static bool identity_matches(const struct wire_hello *hello, const char *tls_name)
{
	char node[8 + UUID_TEXT] = "node:";

	if (hello->kind == HELLO_CONTROL || hello->kind == HELLO_DATA) {
		uuid_format(&hello->self, node + 5);
		return !strcmp(tls_name, node);
	}
	return !strncmp(tls_name, "client:", 7) || !strncmp(tls_name, "node:", 5);
}

static bool hello_check(struct listener *ls, const struct wire_hello *hello, const char *tls_name,
			struct wire_refusal *f)
{
	const struct wire_hello own = { .version_min = WIRE_PROTOCOL, .version_max = WIRE_PROTOCOL };
	char want[UUID_TEXT], got[UUID_TEXT];

	if (!wire_version_common(&own, hello)) {
		f->reason = REFUSE_VERSION;
		snprintf(f->text, sizeof(f->text), "protocol versions %u-%u, this node speaks %u",
			 hello->version_min, hello->version_max, WIRE_PROTOCOL);
		return false;
	}
	if (!uuid_equal(&hello->cluster, &ls->cluster)) {
		uuid_format(&ls->cluster, want);
		uuid_format(&hello->cluster, got);
		f->reason = REFUSE_CLUSTER;
		snprintf(f->text, sizeof(f->text), "this is cluster %s, not %s", want, got);
		return false;
	}
	if (ls->tls && !identity_matches(hello, tls_name)) {
		f->reason = REFUSE_IDENTITY;
		snprintf(f->text, sizeof(f->text), "the certificate names '%.100s', the hello does not",
			 tls_name);
		return false;
	}
	return true;
}

static void guest_admit(struct guest *g, struct accept_decision *d, const struct wire_hello *hello)
{
	struct conn *c = g->conn;
	struct conn_parts parts;

	CHECK(d->loop && d->pool && d->send_limit && d->accepted);
	conn_set(c, &nobody_ops, NULL);
	guest_leave(g);
	parts = conn_detach(c);
	if (parts.fd < 0)
		return; /* it sent more than HELLO; closed and logged */
	address_mark(parts.fd, wire_is_data(hello->kind) ? TRAFFIC_DATA : TRAFFIC_CONTROL);
	struct handover *h = xcalloc(1, sizeof(*h));

	h->parts = parts;
	h->decision = *d;
	h->decision.welcome.version_min = WIRE_PROTOCOL;
	h->decision.welcome.version_max = WIRE_PROTOCOL;
	h->peer = *hello;
	h->post.fn = handover_arrive;
	loop_post(d->loop, &h->post);
}

static void guest_on_frame(struct conn *c, const struct frame *f)
{
	struct guest *g = conn_data(c);
	struct listener *ls = g->ls;
	struct reader r = reader_init(f->body, f->body_len);
	struct accept_decision d = { 0 };
	struct wire_refusal refusal = { 0 };
	struct wire_hello hello;

	if (g->answered)
		return;
	if (f->opcode != OP_HELLO || wire_hello_decode(&r, &hello)) {
		log_warn("net", "the first frame is not a hello", "peer=%s identity=\"%s\" opcode=%u",
			 conn_peer_address(c), conn_peer_name(c), f->opcode);
		guest_drop(g, -ERR_PROTOCOL);
		return;
	}
	if (!hello_check(ls, &hello, conn_peer_name(c), &refusal) ||
	    !ls->decide(ls->data, &hello, conn_peer_name(c), &d, &refusal)) {
		refusal.text[sizeof(refusal.text) - 1] = 0;
		guest_refuse(g, &refusal);
		return;
	}
	guest_admit(g, &d, &hello);
}

static void guest_on_closed(struct conn *c, int reason)
{
	struct guest *g = conn_data(c);

	/* A bare connect and close is a probe (link.h) and not worth a line. */
	if (reason == -ERR_AUTH)
		log_warn("net", "TLS refused: no certificate of this cluster, or expired",
			 "peer=%s error=%s", conn_peer_address(c), err_name(reason));
	else
		log_debug("net", "connection ended before its hello", "peer=%s error=%s",
			  conn_peer_address(c), err_name(reason));
	guest_leave(g);
}

static const struct conn_ops guest_ops = { .on_frame = guest_on_frame,
					   .on_closed = guest_on_closed };

static void deadline_arm(struct listener *ls)
{
	struct guest *oldest;
	uint64_t now = loop_mono_us(ls->loop), end;

	if (list_empty(&ls->guests) || ls->deadline.armed)
		return;
	oldest = list_first(&ls->guests, struct guest, link);
	end = oldest->since_us + HELLO_DEADLINE_US;
	timer_set(&ls->deadline, end > now ? end - now : 0);
}

static void on_deadline(struct timer *t)
{
	struct listener *ls = container_of(t, struct listener, deadline);
	uint64_t now = loop_mono_us(ls->loop);
	struct guest *g, *tmp;
	char first[ADDRESS_TEXT];
	unsigned count = 0;

	list_for_each_safe(g, tmp, &ls->guests, link) {
		if (g->since_us + HELLO_DEADLINE_US > now)
			break;
		if (!count++)
			snprintf(first, sizeof(first), "%s", conn_peer_address(g->conn));
		guest_drop(g, -ETIMEDOUT);
	}
	if (count) /* one line, however many: strangers must not write our log */
		log_info("net", "no hello within 3 s: closed", "peer=%s connections=%u", first, count);
	deadline_arm(ls);
}

/* Whoever has shown no certificate yet goes first: a flood must not push out those who have. */
static void guest_make_room(struct listener *ls)
{
	struct guest *g, *victim = list_first(&ls->guests, struct guest, link);

	list_for_each(g, &ls->guests, link) {
		if (!conn_peer_name(g->conn)[0]) {
			victim = g;
			break;
		}
	}
	if (ls->crowded++ % GUESTS_MAX == 0)
		log_warn("net", "too many connections without a hello: dropping the oldest",
			 "peer=%s limit=%u", conn_peer_address(victim->conn), GUESTS_MAX);
	guest_drop(victim, -ERR_LIMIT);
}

static void guest_arrive(struct listener *ls, int fd)
{
	struct guest *g = xcalloc(1, sizeof(*g));
	struct tls_session *tls = ls->tls ? tls_session_create(ls->tls, fd, true) : NULL;

	if (ls->guest_count >= GUESTS_MAX)
		guest_make_room(ls);
	g->ls = ls;
	g->since_us = loop_mono_us(ls->loop);
	g->conn = conn_create(ls->loop, ls->pool, fd, tls, GUEST_SEND_LIMIT, &guest_ops, g);
	conn_limit_frames(g->conn, HELLO_BODY_MAX, 0);
	list_push_back(&ls->guests, &g->link);
	ls->guest_count++;
	deadline_arm(ls);
}

/* ---- The listening socket ---- */

static void on_ready(struct fdwatch *w, unsigned events)
{
	struct listener *ls = container_of(w, struct listener, watch);

	for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(ls->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd >= 0) {
			guest_arrive(ls, fd);
			continue;
		}
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
			log_error("net", "cannot accept: out of descriptors or memory (raise LimitNOFILE)",
				  "port=%u error=%s", ls->port, err_name(-errno));
			fdwatch_want(&ls->watch, 0);
			timer_set(&ls->pause, ACCEPT_PAUSE_US);
			return;
		}
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return;
		/* Anything else is the fate of that one connection (ECONNABORTED …). */
	}
}

static void on_pause_end(struct timer *t)
{
	struct listener *ls = container_of(t, struct listener, pause);

	fdwatch_want(&ls->watch, FD_READ);
}

static int socket_bind(const char *text, uint16_t *port)
{
	struct address a;
	struct sockaddr_storage sa = { 0 };
	socklen_t len = sizeof(sa);
	int fd, one = 1, rc = address_parse(text, &a);

	if (rc)
		return rc;
	fd = socket(a.sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (a.sa.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&a.sa, a.len) || listen(fd, 512) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
					       : ((struct sockaddr_in *)&sa)->sin_port);
	return fd;
}

struct listener *listener_create(const struct listener_config *cfg)
{
	struct listener *ls;
	uint16_t port = 0;
	int fd = socket_bind(cfg->address, &port);

	if (fd < 0) {
		log_error("net",
			  "cannot listen: the address must be numeric host:port of this host, and free",
			  "address=\"%s\" error=%s reason=\"%s\"", cfg->address, err_name(fd),
			  err_text(fd));
		return NULL;
	}
	ls = xcalloc(1, sizeof(*ls));
	ls->loop = cfg->loop;
	ls->pool = cfg->pool;
	ls->tls = cfg->tls;
	ls->cluster = cfg->cluster;
	ls->decide = cfg->decide;
	ls->data = cfg->data;
	ls->fd = fd;
	ls->port = port;
	list_init(&ls->guests);
	timer_init(&ls->deadline, ls->loop, on_deadline);
	timer_init(&ls->pause, ls->loop, on_pause_end);
	fdwatch_init(&ls->watch, ls->loop, fd, on_ready);
	fdwatch_want(&ls->watch, FD_READ);
	return ls;
}

void listener_destroy(struct listener *ls)
{
	if (!ls)
		return;
	while (!list_empty(&ls->guests))
		guest_drop(list_first(&ls->guests, struct guest, link), -ECANCELED);
	fdwatch_fini(&ls->watch);
	timer_fini(&ls->deadline);
	timer_fini(&ls->pause);
	close(ls->fd);
	free(ls);
}

uint16_t listener_port(const struct listener *ls)
{
	return ls->port;
}
