/* SPDX-License-Identifier: Apache-2.0 */
/* The NBD server: listening sockets, and the life of a connection.
 *
 *   accept ─> NEGOTIATING ─> OPEN ─> CLOSING (requests in flight end) ─> DEAD (volume closed) ─>
 * freed │  ^ └──┴ TLS_HANDSHAKE
 *
 * A connection is freed at the end of a turn only, so that whoever is on the stack may still look
 * at it. A client that sends nonsense costs itself its connection, never the server. */
#include "client/nbd_impl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/address.h"

#define ACCEPTS_PER_TURN 16u
#define SOCKET_BUFFER    (2 << 20)

void nbd_server_arm(struct nbd_server *s)
{
	turn_end_arm(s->cfg.loop, &s->turn, TURN_LOG);
}

static void server_tick_arm(struct nbd_server *s)
{
	if (!s->tick.armed)
		timer_set(&s->tick, NBD_TICK_US);
}

/* ---- A connection's end ---- */

static void conn_volume_closed(struct wait *w, int rc)
{
	struct nbd_conn *c = container_of(w, struct nbd_conn, closed);

	c->state = NBD_DEAD;
	list_del(&c->link);
	list_push_back(&c->server->dead, &c->link);
	nbd_server_arm(c->server);
}

void nbd_conn_check_end(struct nbd_conn *c)
{
	if (c->state == NBD_OPEN && c->last && !c->requests)
		nbd_conn_fail(c, NULL);
	if (c->state != NBD_CLOSING || c->requests)
		return;
	c->state = NBD_DEAD;
	if (c->volume) {
		c->closed.resume = conn_volume_closed;
		volume_close(c->volume, &c->closed);
		c->volume = NULL;
	} else {
		conn_volume_closed(&c->closed, 0);
	}
}

void nbd_conn_fail(struct nbd_conn *c, const char *why)
{
	struct nbd_server *s = c->server;
	struct list *l;

	if (c->state >= NBD_CLOSING)
		return;
	if (why)
		log_warn("nbd", "connection dropped", "volume=%s peer=%s reason=\"%s\"",
			 c->volume ? volume_name(c->volume) : "", c->peer, why);
	if (c->state != NBD_OPEN)
		s->negotiating--;
	c->state = NBD_CLOSING;
	fdwatch_fini(&c->watch);
	if (c->tls)
		tls_session_destroy(c->tls);
	c->tls = NULL;
	close(c->fd);
	c->fd = -1;
	turn_end_disarm(&c->turn);
	timer_fini(&c->unknown);
	list_del(&c->starved);
	if (c->memory_waiting)
		list_del(&c->memory.link);
	c->memory_waiting = false;
	writer_free(&c->out);
	while ((l = list_pop_front(&c->replies)))
		nbd_req_free(list_entry(l, struct nbd_req, link));
	if (c->filling)
		nbd_req_free(c->filling);
	c->filling = NULL;
	if (c->in)
		buf_unref(c->in);
	c->in = NULL;
	nbd_conn_check_end(c);
}

/* ---- Back-pressure ---- */

void nbd_conn_again(struct nbd_conn *c)
{
	if (list_empty(&c->starved))
		list_push_back(&c->server->starved, &c->starved);
	nbd_server_arm(c->server);
}

/* Until a request of this server ends. */
void nbd_conn_pause(struct nbd_conn *c)
{
	c->paused = true;
	if (list_empty(&c->starved))
		list_push_back(&c->server->starved, &c->starved);
	server_tick_arm(c->server);
}

static void conn_memory_ready(struct pool_waiter *w)
{
	struct nbd_conn *c = container_of(w, struct nbd_conn, memory);

	c->memory_waiting = false;
	nbd_conn_again(c);
}

void nbd_conn_memory_wait(struct nbd_conn *c)
{
	c->paused = true;
	server_tick_arm(c->server);
	if (c->memory_waiting)
		return;
	c->memory_waiting = true;
	c->memory.ready = conn_memory_ready;
	buf_wait(c->server->cfg.pool, &c->memory);
}

/* ---- Negotiation ---- */

#define UNKNOWN_EXPORT_US 10000000u
#define NEWS_US 1000000u /* a volume made a moment ago through another node may be news here */
#define NEWS_AGAIN_US 20000u
#define SHARED_SUFFIX ":shared" /* no volume's name has a colon */

/* "NAME" or "NAME:shared", in parts. false: no volume can have that name. */
static bool export_split(const char *export, char name[NAME_MAX_LEN + 1], bool *shared)
{
	size_t n = strcspn(export, ":");

	*shared = !strcmp(export + n, SHARED_SUFFIX);
	if (n > NAME_MAX_LEN || (export[n] && !*shared))
		return false;
	memcpy(name, export, n);
	name[n] = 0;
	return true;
}

/* A misspelt or deleted volume: said, but a client that goes on trying does not fill the log. */
static void unknown_export(struct nbd_server *s, const char *export)
{
	uint64_t now = loop_mono_us(s->cfg.loop);
	char text[NAME_MAX_LEN + 1];
	size_t n = 0;

	if (s->unknown_us && now - s->unknown_us < UNKNOWN_EXPORT_US)
		return;
	s->unknown_us = now;
	for (; export[n] && n < sizeof(text) - 1; n++)
		text[n] = (char)(export[n] > ' ' && export[n] < 0x7f && export[n] != '"' ? export[n] : '?');
	text[n] = '\0';
	log_warn("nbd", "a client asks for an export that is no volume here", "export=\"%s\"", text);
}

static enum nbd_found export_find(void *ctx, const char *export, struct nbd_export *out)
{
	struct nbd_conn *c = ctx;
	uint64_t now = loop_mono_us(c->server->cfg.loop);
	char name[NAME_MAX_LEN + 1];
	struct client_volume v;
	bool shared;

	_Static_assert(sizeof(out->name) == sizeof(name) + sizeof(SHARED_SUFFIX) - 1, "both fit");
	if (!export_split(export, name, &shared))
		return NBD_FOUND_NOT;
	if (client_find(c->server->cfg.client, name, &v) < 0) {
		if (!c->unknown_us)
			c->unknown_us = now;
		if (now - c->unknown_us < NEWS_US)
			return NBD_FOUND_LATER;
		unknown_export(c->server, export);
		return NBD_FOUND_NOT;
	}
	snprintf(out->name, sizeof(out->name), "%s%s", v.name, shared ? SHARED_SUFFIX : "");
	out->size = v.size;
	return NBD_FOUND;
}

struct export_list {
	void (*fn)(void *arg, const char *name);
	void *arg;
};

static void export_list_one(void *arg, const struct client_volume *v)
{
	struct export_list *l = arg;

	l->fn(l->arg, v->name);
}

static void export_list(void *ctx, void (*fn)(void *arg, const char *name), void *arg)
{
	struct nbd_conn *c = ctx;
	struct export_list l = {.fn = fn, .arg = arg};

	client_list(c->server->cfg.client, export_list_one, &l);
}

static const struct nbd_exports nbd_volume_exports = {.find = export_find, .list = export_list};

static void conn_enter(struct nbd_conn *c)
{
	struct nbd_server *s = c->server;
	char name[NAME_MAX_LEN + 1];
	bool shared;

	CHECK(export_split(c->negotiation.export.name, name, &shared)); /* it was found */
	if (volume_open(s->cfg.client, name, shared, &c->volume) < 0) {
		nbd_conn_fail(c, "the volume went away during negotiation");
		return;
	}
	s->negotiating--;
	c->state = NBD_OPEN;
	writer_free(&c->out);
	log_debug("nbd", "export opened", "volume=%s peer=%s structured=%d", volume_name(c->volume),
		  c->peer, c->negotiation.structured);
	nbd_conn_parse(c);
	nbd_conn_receive(c);
}

static void conn_start_tls(struct nbd_conn *c)
{
	/* Bytes sent before the handshake belong to nobody: they may be an attacker's. */
	if (c->in_start != c->in_end) {
		nbd_conn_fail(c, "bytes in the clear after STARTTLS");
		return;
	}
	c->tls = tls_session_create(c->server->cfg.tls, c->fd, true);
	if (!c->tls) {
		nbd_conn_fail(c, "TLS could not be started");
		return;
	}
	c->state = NBD_TLS_HANDSHAKE;
	fdwatch_want(&c->watch, FD_READ);
}

/* Steps for which the bytes are there, as long as their answers can be sent. */
static void conn_negotiate(struct nbd_conn *c)
{
	for (;;) {
		size_t used;

		if (c->state != NBD_NEGOTIATING)
			return;
		nbd_conn_flush_out(c);
		if (c->state != NBD_NEGOTIATING || c->out.len)
			return;
		switch (c->after_out) {
		case NBD_STEP_GO:
			conn_enter(c);
			return;
		case NBD_STEP_TLS:
			conn_start_tls(c);
			return;
		case NBD_STEP_CLOSE:
			nbd_conn_fail(c, NULL);
			return;
		default:
			break;
		}
		if (!c->in)
			return;
		c->after_out = nbd_negotiate(&c->negotiation, c->in->data + c->in_start,
					     c->in_end - c->in_start, &used, &c->out);
		c->in_start += (uint32_t)used;
		if (c->after_out == NBD_STEP_LATER && !c->unknown.armed)
			timer_set(&c->unknown, NEWS_AGAIN_US);
		if (c->after_out == NBD_STEP_MORE || c->after_out == NBD_STEP_LATER)
			return;
	}
}

static void conn_look_again(struct timer *t)
{
	struct nbd_conn *c = container_of(t, struct nbd_conn, unknown);

	conn_negotiate(c);
	if (c->state == NBD_NEGOTIATING)
		nbd_conn_want(c);
}

static void conn_handshake(struct nbd_conn *c)
{
	int rc = 0, want = tls_handshake(c->tls, &rc);

	if (rc < 0) {
		nbd_conn_fail(c, "TLS handshake failed");
		return;
	}
	if (want) {
		fdwatch_want(&c->watch, want == TLS_WANT_WRITE ? FD_WRITE : FD_READ);
		return;
	}
	if (client_is_removed(c->server->cfg.client, tls_peer_name(c->tls))) {
		nbd_conn_fail(c, "the certificate is that of a node that was removed");
		return;
	}
	nbd_negotiate_tls_started(&c->negotiation);
	c->after_out = NBD_STEP_NEXT;
	c->state = NBD_NEGOTIATING;
	nbd_conn_want(c);
}

static void conn_ready(struct fdwatch *w, unsigned events)
{
	struct nbd_conn *c = container_of(w, struct nbd_conn, watch);

	if (events & FD_WRITE)
		c->write_blocked = false;
	switch (c->state) {
	case NBD_NEGOTIATING:
		conn_negotiate(c);
		/* TLS may hold more than one record: read until it has nothing. */
		while (c->state == NBD_NEGOTIATING && !c->out.len && (events & FD_READ) &&
		       nbd_conn_receive_options(c))
			conn_negotiate(c);
		nbd_conn_want(c);
		break;
	case NBD_TLS_HANDSHAKE:
		conn_handshake(c);
		if (c->state == NBD_NEGOTIATING && nbd_conn_receive_options(c)) {
			conn_negotiate(c);
			nbd_conn_want(c);
		}
		break;
	case NBD_OPEN:
		if (events & FD_WRITE)
			nbd_conn_send(&c->turn);
		if (events & FD_READ)
			nbd_conn_receive(c);
		break;
	default:
		break;
	}
}

/* ---- Accepting ---- */

static void conn_accept(struct nbd_listener *ls, int fd)
{
	struct nbd_server *s = ls->server;
	struct nbd_conn *c = xcalloc(1, sizeof(*c));
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	int one = 1, size = SOCKET_BUFFER;

	c->server = s;
	c->fd = fd;
	c->state = NBD_NEGOTIATING;
	c->after_out = NBD_STEP_NEXT;
	c->started_us = c->progress_us = loop_mono_us(s->cfg.loop);
	list_init(&c->starved);
	list_init(&c->replies);
	list_init(&c->memory.link);
	turn_end_init(&c->turn, nbd_conn_send);
	snprintf(c->peer, sizeof(c->peer), "unix");
	if (ls->is_tcp) {
		(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
		if (getpeername(fd, (struct sockaddr *)&sa, &len) == 0)
			address_format(&sa, c->peer);
	} else if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0) {
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	}
	c->negotiation = (struct nbd_negotiation){.exports = &nbd_volume_exports,
						  .ctx = c,
						  .tls_offered = s->cfg.tls != NULL,
						  .tls_required = ls->tls_required};
	timer_init(&c->unknown, s->cfg.loop, conn_look_again);
	c->out = writer_init_heap();
	nbd_greeting(&c->out);
	fdwatch_init(&c->watch, s->cfg.loop, fd, conn_ready);
	list_push_back(&s->conns, &c->link);
	s->conn_count++;
	s->negotiating++;
	server_tick_arm(s);
	conn_negotiate(c);
	nbd_conn_want(c);
}

static void drop_oldest_negotiating(struct nbd_server *s)
{
	struct nbd_conn *c;

	list_for_each(c, &s->conns, link) if (c->state < NBD_OPEN)
	{
		nbd_conn_fail(c, "too many connections are negotiating");
		return;
	}
}

static void listener_ready(struct fdwatch *w, unsigned events)
{
	struct nbd_listener *ls = container_of(w, struct nbd_listener, watch);
	struct nbd_server *s = ls->server;

	for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
		int fd = accept4(ls->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
			    errno == ENOBUFS) {
				log_warn("nbd", "cannot accept now", "errno=%d", errno);
				s->accept_paused = true;
				fdwatch_want(&ls->watch, 0);
				server_tick_arm(s);
			}
			return;
		}
		if (s->conn_count >= s->cfg.connections_max) {
			log_warn("nbd", "connection limit reached; one more was closed", "limit=%u",
				 s->cfg.connections_max);
			close(fd);
			continue;
		}
		if (s->negotiating >= s->cfg.negotiating_max)
			drop_oldest_negotiating(s);
		conn_accept(ls, fd);
	}
}

/* ---- End of turn and tick ---- */

static void server_turn(struct turn_end *t)
{
	struct nbd_server *s = container_of(t, struct nbd_server, turn);
	struct list starved, *l;
	struct wait *stop_wait = s->stop_wait;

	list_init(&starved);
	list_splice_back(&starved, &s->starved);
	while ((l = list_pop_front(&starved))) {
		struct nbd_conn *c = list_entry(l, struct nbd_conn, starved);

		if (c->memory_waiting)
			continue;
		c->paused = false;
		if (c->state == NBD_OPEN) {
			nbd_conn_parse(c);
			nbd_conn_receive(c);
		} else if (c->state == NBD_NEGOTIATING) {
			nbd_conn_want(c);
		}
	}
	while ((l = list_pop_front(&s->dead))) {
		free(list_entry(l, struct nbd_conn, link));
		s->conn_count--;
	}
	if (stop_wait && !s->conn_count) {
		s->stop_wait = NULL;
		timer_cancel(&s->tick);
		wait_resume(stop_wait, 0);
	}
}

static void server_stop_tick(struct nbd_server *s, uint64_t now)
{
	struct nbd_conn *c, *tmp;

	if (now - s->stop_us < NBD_STOP_MS * 1000)
		return;
	list_for_each_safe(c, tmp, &s->conns, link)
	{
		if (s->aborted) /* its replies, too, had their time */
			nbd_conn_fail(c, "the client does not read its replies");
		else if (c->volume)
			volume_abort(c->volume, -ESHUTDOWN);
	}
	if (!s->aborted)
		s->stop_us = now - NBD_STOP_MS * 1000 + 1000000;
	s->aborted = true;
}

static void server_tick(struct timer *t)
{
	struct nbd_server *s = container_of(t, struct nbd_server, tick);
	uint64_t now = loop_mono_us(s->cfg.loop);
	struct nbd_conn *c, *tmp;
	bool short_of = !list_empty(&s->starved);

	list_for_each(c, &s->conns, link) short_of |= c->memory_waiting;
	list_for_each_safe(c, tmp, &s->conns, link)
	{
		if (c->state < NBD_OPEN && now - c->started_us > NBD_NEGOTIATE_MS * 1000)
			nbd_conn_fail(c, "negotiation took too long");
		else if (short_of && c->state == NBD_OPEN && (c->filling || c->write_blocked) &&
			 !c->paused && now - c->progress_us > NBD_STALL_MS * 1000)
			nbd_conn_fail(c, "made no progress while others wait for memory");
	}
	if (s->accept_paused) {
		s->accept_paused = false;
		for (unsigned i = 0; i < s->listener_count; i++)
			fdwatch_want(&s->listeners[i].watch, s->stopping ? 0 : FD_READ);
	}
	if (s->stop_wait)
		server_stop_tick(s, now);
	if (s->negotiating || short_of || s->stop_wait)
		server_tick_arm(s);
}

/* ---- Listening ---- */

/* A socket file left by a dead process may be replaced, one that somebody listens on may not. */
static int unix_clear_stale(const struct sockaddr_un *sa)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0 || errno == EAGAIN)
		rc = -EADDRINUSE;
	else if (errno == ECONNREFUSED && unlink(sa->sun_path) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

static int unix_listen(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd, rc;

	if (strlen(path) >= sizeof(sa.sun_path))
		return -ENAMETOOLONG;
	memcpy(sa.sun_path, path, strlen(path) + 1);
	rc = unix_clear_stale(&sa);
	if (rc < 0)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || chmod(path, 0660) < 0 ||
	    listen(fd, 128) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int tcp_listen(const struct address *a, uint16_t *port)
{
	int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1,
	    rc;
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(fd, (const struct sockaddr *)&a->sa, a->len) < 0 || listen(fd, 128) < 0 ||
	    getsockname(fd, (struct sockaddr *)&sa, &len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
					       : ((struct sockaddr_in *)&sa)->sin_port);
	return fd;
}

static bool is_loopback(const struct address *a)
{
	if (a->sa.ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24 == 127;
	return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
}

static void server_add_listener(struct nbd_server *s, int fd, bool is_tcp, bool tls_required)
{
	struct nbd_listener *ls = &s->listeners[s->listener_count++];

	*ls = (struct nbd_listener){
		.server = s, .fd = fd, .is_tcp = is_tcp, .tls_required = tls_required};
	fdwatch_init(&ls->watch, s->cfg.loop, fd, listener_ready);
	fdwatch_want(&ls->watch, FD_READ);
}

static int server_listen_unix(struct nbd_server *s)
{
	int fd = unix_listen(s->cfg.unix_path);

	if (fd < 0) {
		log_error("nbd",
			  fd == -EADDRINUSE
				  ? "another process listens on this socket; stop it or choose "
				    "another path"
				  : "cannot listen; check that the directory exists and may be "
				    "written",
			  "path=%s error=%s", s->cfg.unix_path, err_name(fd));
		return fd;
	}
	s->unix_path = xstrdup(s->cfg.unix_path);
	server_add_listener(s, fd, false, false);
	return 0;
}

static int server_listen_tcp(struct nbd_server *s)
{
	struct address a;
	bool loopback;
	int fd;

	if (address_parse(s->cfg.tcp_address, &a) < 0) {
		log_error("nbd", "not a numeric host:port", "address=%s", s->cfg.tcp_address);
		return -EINVAL;
	}
	loopback = is_loopback(&a);
	if (!loopback && !s->cfg.tls && !s->cfg.allow_open) {
		log_error("nbd",
			  "refusing to serve volumes in the clear beyond this host: configure TLS, "
			  "bind to "
			  "loopback, or allow it explicitly",
			  "address=%s", s->cfg.tcp_address);
		return -EPERM;
	}
	fd = tcp_listen(&a, &s->port);
	if (fd < 0) {
		log_error(
			"nbd",
			"cannot listen; check that the address is this host's and the port is free",
			"address=%s error=%s", s->cfg.tcp_address, err_name(fd));
		return fd;
	}
	server_add_listener(s, fd, true, !loopback && s->cfg.tls && !s->cfg.allow_open);
	return 0;
}

/* ---- Life ---- */

struct nbd_server *nbd_server_create(const struct nbd_config *cfg)
{
	struct nbd_server *s = xcalloc(1, sizeof(*s));

	s->cfg = *cfg;
	if (!s->cfg.connections_max)
		s->cfg.connections_max = 1024;
	if (!s->cfg.negotiating_max)
		s->cfg.negotiating_max = 64;
	list_init(&s->conns);
	list_init(&s->dead);
	list_init(&s->starved);
	turn_end_init(&s->turn, server_turn);
	timer_init(&s->tick, cfg->loop, server_tick);
	pool_init(&s->requests, "nbd requests", sizeof(struct nbd_req), NBD_REQUESTS);
	if ((cfg->unix_path && server_listen_unix(s) < 0) ||
	    (cfg->tcp_address && server_listen_tcp(s) < 0)) {
		nbd_server_destroy(s);
		return NULL;
	}
	return s;
}

static void server_close_listeners(struct nbd_server *s)
{
	for (unsigned i = 0; i < s->listener_count; i++) {
		fdwatch_fini(&s->listeners[i].watch);
		close(s->listeners[i].fd);
	}
	s->listener_count = 0;
	if (s->unix_path)
		unlink(s->unix_path);
	free(s->unix_path);
	s->unix_path = NULL;
}

void nbd_server_stop(struct nbd_server *s, struct wait *w)
{
	struct nbd_conn *c, *tmp;

	s->stopping = true;
	s->stop_wait = w;
	s->stop_us = loop_mono_us(s->cfg.loop);
	server_close_listeners(s);
	list_for_each_safe(c, tmp, &s->conns, link)
	{
		if (c->state < NBD_OPEN) {
			nbd_conn_fail(c, NULL);
			continue;
		}
		c->last = true;
		if (c->filling) {
			nbd_req_free(c->filling);
			c->filling = NULL;
		}
		nbd_conn_want(c);
		nbd_conn_check_end(c);
	}
	server_tick_arm(s);
	nbd_server_arm(s);
}

void nbd_server_destroy(struct nbd_server *s)
{
	CHECK(!s->conn_count);
	server_close_listeners(s);
	turn_end_disarm(&s->turn);
	timer_fini(&s->tick);
	pool_fini(&s->requests);
	free(s);
}

uint16_t nbd_server_port(const struct nbd_server *s)
{
	return s->port;
}
