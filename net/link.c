/* SPDX-License-Identifier: Apache-2.0 */
/* The dialling side: one machine per link.
 *
 *   WAITING ──timer──▶ DIALLING ──connected──▶ GREETING ──WELCOME──▶ UP
 *      ▲  dial_start()    │ on_dialled()          │ greet_on_frame()  │ link_conn_closed()
 *      └──── attempt_failed() ◀──────────────────────┘                │
 *      └──────────────────────────────────────────────────────────────┘
 *
 * The first dial after a loss comes at once, since "refused" is news that a takeover waits for;
 * then 10 ms doubling to 1 s, with jitter. In UP the connection belongs to the user; before, to us. */
#include "net/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/address.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define BACKOFF_MIN_US 10000u
#define BACKOFF_MAX_US 1000000u
#define ATTEMPT_US 3000000u	/* connect, TLS and WELCOME together */
#define STEADY_US 1000000u	/* a connection that lived shorter does not reset the back-off */
#define LOG_EVERY 60u		/* repeated failures of one kind: one line in so many */
#define GREETING_BODY_MAX 4096u

enum link_state { LINK_WAITING, LINK_DIALLING, LINK_GREETING, LINK_UP };

struct link {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;
	char *address, *tls_name;
	struct wire_hello hello;
	size_t send_limit;
	const struct link_ops *ops;
	void *data;

	enum link_state state;
	struct timer timer; /* back-off in WAITING, deadline in DIALLING and GREETING */
	struct fdwatch watch;
	int fd;		   /* DIALLING */
	struct conn *conn; /* GREETING */
	uint64_t backoff_us, up_since_us;
	bool lost; /* WAITING: `lost_reason` has to be reported first */
	int lost_reason, logged_reason;
	unsigned failures; /* in a row, with logged_reason */
};

static void backoff_grow(struct link *k)
{
	k->backoff_us = MIN(MAX(2 * k->backoff_us, BACKOFF_MIN_US), BACKOFF_MAX_US);
}

static void link_wait(struct link *k)
{
	uint64_t jitter = k->backoff_us / 4;

	k->state = LINK_WAITING;
	timer_set(&k->timer, k->backoff_us - jitter + rng_below(loop_rng(k->loop), 2 * jitter + 1));
}

/* down() may destroy the link: nothing is touched after it. */
static void attempt_failed(struct link *k, int reason, const struct wire_refusal *refusal)
{
	if (reason != k->logged_reason)
		k->failures = 0;
	k->logged_reason = reason;
	if (k->failures++ % LOG_EVERY == 0)
		log_info("net", refusal ? "peer refused the connection" : "dial failed",
			 "peer=%s error=%s reason=\"%s\"", k->address, err_name(reason),
			 refusal ? refusal->text : err_text(reason));
	backoff_grow(k);
	link_wait(k);
	k->ops->down(k, reason, refusal);
}

/* ---- GREETING ---- */

static void orphan_on_frame(struct conn *c, const struct frame *f)
{
}

static void orphan_on_closed(struct conn *c, int reason)
{
}

static const struct conn_ops orphan_ops = { .on_frame = orphan_on_frame,
					    .on_closed = orphan_on_closed };

static void greet_end(struct link *k, int reason, const struct wire_refusal *refusal)
{
	conn_set(k->conn, &orphan_ops, NULL);
	conn_close(k->conn, reason);
	k->conn = NULL;
	attempt_failed(k, reason, refusal);
}

/* The certificate is the one that we were told to expect. */
static bool peer_is_expected(const struct link *k)
{
	return !k->tls || !k->tls_name || !strcmp(conn_peer_name(k->conn), k->tls_name);
}

/* And that of the node that the WELCOME names. */
static bool peer_is_genuine(const struct link *k, const struct wire_hello *peer)
{
	char node[8 + UUID_TEXT] = "node:";

	uuid_format(&peer->self, node + 5);
	return !k->tls || (!strcmp(conn_peer_name(k->conn), node) && peer_is_expected(k));
}

static void greet_welcome(struct link *k, const struct wire_hello *peer)
{
	struct conn *c = k->conn;

	if (!wire_version_common(&k->hello, peer)) {
		greet_end(k, -ERR_VERSION, NULL);
		return;
	}
	if (!uuid_equal(&peer->cluster, &k->hello.cluster)) {
		greet_end(k, -ERR_FOREIGN, NULL);
		return;
	}
	if (!peer_is_genuine(k, peer)) {
		log_warn("net", "another node answers at this address",
			 "peer=%s identity=\"%s\" expected=\"%s\"",
			 k->address, conn_peer_name(c), k->tls_name ? k->tls_name : "the node it names");
		greet_end(k, -ERR_AUTH, NULL);
		return;
	}
	if (wire_leaves_tls(&k->hello, peer))
		conn_plain_now(c);
	else
		conn_tls_stays(c);
	timer_cancel(&k->timer);
	conn_limit_frames(c, WIRE_BODY_MAX, WIRE_PAYLOAD_MAX);
	conn_set(c, &orphan_ops, NULL);
	k->conn = NULL;
	k->state = LINK_UP;
	k->up_since_us = loop_mono_us(k->loop);
	k->logged_reason = 0;
	k->ops->up(k, c, peer);
}

static void greet_on_frame(struct conn *c, const struct frame *f)
{
	struct link *k = conn_data(c);
	struct reader r = reader_init(f->body, f->body_len);
	struct wire_refusal refusal;
	struct wire_hello peer;

	if (f->opcode == OP_WELCOME && !wire_hello_decode(&r, &peer))
		greet_welcome(k, &peer);
	else if (f->opcode == OP_REFUSE && !peer_is_expected(k))
		greet_end(k, -ERR_AUTH, NULL); /* whoever it is, it has no say */
	else if (f->opcode == OP_REFUSE && !wire_refusal_decode(&r, &refusal))
		greet_end(k, -ERR_REFUSED, &refusal);
	else
		greet_end(k, -ERR_PROTOCOL, NULL);
}

static void greet_on_closed(struct conn *c, int reason)
{
	struct link *k = conn_data(c);

	k->conn = NULL;
	timer_cancel(&k->timer);
	attempt_failed(k, reason, NULL);
}

static const struct conn_ops greet_ops = { .on_frame = greet_on_frame,
					   .on_closed = greet_on_closed };

static void greet_start(struct link *k, int fd)
{
	struct tls_session *tls = k->tls ? tls_session_create(k->tls, fd, false) : NULL;
	uint8_t body[WIRE_HELLO_SIZE];
	struct writer w = writer_init(body, sizeof(body));

	k->state = LINK_GREETING;
	k->conn = conn_create(k->loop, k->pool, fd, tls, k->send_limit, &greet_ops, k);
	conn_limit_frames(k->conn, GREETING_BODY_MAX, 0);
	wire_hello_encode(&k->hello, &w);
	CHECK(!w.bad);
	conn_send(k->conn, OP_HELLO, 0, body, (uint32_t)w.len, NULL, 0);
}

/* ---- DIALLING ---- */

static void dial_end(struct link *k, int reason)
{
	fdwatch_fini(&k->watch);
	close(k->fd);
	k->fd = -1;
	timer_cancel(&k->timer);
	attempt_failed(k, reason, NULL);
}

static void on_dialled(struct fdwatch *w, unsigned events)
{
	struct link *k = container_of(w, struct link, watch);
	int fd = k->fd, rc = address_connect_result(fd);

	if (rc) {
		dial_end(k, rc);
		return;
	}
	fdwatch_fini(&k->watch);
	k->fd = -1;
	greet_start(k, fd);
}

static void dial_start(struct link *k)
{
	struct address a;
	bool connected;
	int fd, rc = address_parse(k->address, &a);

	fd = rc ? rc : address_connect(&a, wire_is_data(k->hello.kind) ? TRAFFIC_DATA : TRAFFIC_CONTROL,
				       &connected);
	if (fd < 0) {
		attempt_failed(k, fd, NULL);
		return;
	}
	timer_set(&k->timer, ATTEMPT_US);
	k->state = LINK_DIALLING;
	k->fd = fd;
	fdwatch_init(&k->watch, k->loop, fd, on_dialled);
	fdwatch_want(&k->watch, FD_WRITE); /* also when connected: on_dialled comes from the loop */
}

static void on_timer(struct timer *t)
{
	struct link *k = container_of(t, struct link, timer);

	switch (k->state) {
	case LINK_WAITING:
		if (k->lost) {
			k->lost = false;
			link_wait(k);
			k->ops->down(k, k->lost_reason, NULL);
			return;
		}
		dial_start(k);
		return;
	case LINK_DIALLING:
		dial_end(k, -ETIMEDOUT);
		return;
	case LINK_GREETING:
		greet_end(k, -ETIMEDOUT, NULL);
		return;
	case LINK_UP:
		return;
	}
}

/* ---- Life ---- */

struct link *link_create(const struct link_config *cfg)
{
	struct link *k = xcalloc(1, sizeof(*k));

	CHECK(cfg->ops && cfg->ops->up && cfg->ops->down && cfg->send_limit);
	k->loop = cfg->loop;
	k->pool = cfg->pool;
	k->tls = cfg->tls;
	k->address = xstrdup(cfg->address);
	k->tls_name = cfg->tls_name ? xstrdup(cfg->tls_name) : NULL;
	k->hello = cfg->hello;
	k->hello.version_min = WIRE_PROTOCOL;
	k->hello.version_max = WIRE_PROTOCOL;
	k->send_limit = cfg->send_limit;
	k->ops = cfg->ops;
	k->data = cfg->data;
	k->fd = -1;
	timer_init(&k->timer, k->loop, on_timer);
	k->state = LINK_WAITING;
	timer_set(&k->timer, 0);
	return k;
}

void link_destroy(struct link *k)
{
	if (!k)
		return;
	if (k->state == LINK_DIALLING) {
		fdwatch_fini(&k->watch);
		close(k->fd);
	}
	if (k->conn) {
		conn_set(k->conn, &orphan_ops, NULL);
		conn_close(k->conn, -ECANCELED);
	}
	timer_fini(&k->timer);
	free(k->address);
	free(k->tls_name);
	free(k);
}

void *link_data(const struct link *k)
{
	return k->data;
}

void link_set_address(struct link *k, const char *address)
{
	char *old = k->address;

	k->address = xstrdup(address); /* it may be our own text */
	free(old);
}

void link_kick(struct link *k)
{
	k->backoff_us = 0;
	if (k->state == LINK_WAITING)
		timer_set(&k->timer, 0);
}

void link_conn_closed(struct link *k, int reason)
{
	if (k->state != LINK_UP)
		return;
	log_info("net", "connection lost", "peer=%s error=%s", k->address, err_name(reason));
	if (loop_mono_us(k->loop) - k->up_since_us >= STEADY_US)
		k->backoff_us = 0;
	else
		backoff_grow(k);
	k->state = LINK_WAITING;
	k->lost = true;
	k->lost_reason = reason;
	timer_set(&k->timer, 0);
}

/* ---- Probe ---- */

struct probe {
	struct tcp_probe *owner;
	struct fdwatch watch;
	struct timer timer;
	int fd, rc;
};

static void probe_end(struct probe *p, int rc)
{
	struct wait *w = p->owner->wait;

	p->owner->impl = NULL;
	if (p->fd >= 0) {
		fdwatch_fini(&p->watch);
		close(p->fd);
	}
	timer_fini(&p->timer);
	free(p);
	wait_resume(w, rc);
}

static void probe_on_ready(struct fdwatch *w, unsigned events)
{
	struct probe *p = container_of(w, struct probe, watch);

	probe_end(p, address_connect_result(p->fd));
}

static void probe_on_timer(struct timer *t)
{
	struct probe *p = container_of(t, struct probe, timer);

	probe_end(p, p->rc);
}

int tcp_probe(struct loop *l, struct tcp_probe *owner, const char *address, unsigned timeout_ms,
	      struct wait *w)
{
	struct probe *p = xcalloc(1, sizeof(*p));
	struct address a;
	bool connected;
	int rc = address_parse(address, &a);

	CHECK(!owner->impl);
	owner->wait = w;
	owner->impl = p;
	p->owner = owner;
	p->fd = rc ? rc : address_connect(&a, TRAFFIC_CONTROL, &connected);
	timer_init(&p->timer, l, probe_on_timer);
	if (p->fd < 0) { /* failed at once; the resume still comes from the loop */
		p->rc = p->fd;
		timer_set(&p->timer, 0);
		return PENDING;
	}
	p->rc = -ETIMEDOUT;
	timer_set(&p->timer, (uint64_t)timeout_ms * 1000);
	fdwatch_init(&p->watch, l, p->fd, probe_on_ready);
	fdwatch_want(&p->watch, FD_WRITE);
	return PENDING;
}
