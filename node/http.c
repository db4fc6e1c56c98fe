/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that knows evhttp and libevent's TLS. A request that waits for its answer is ours:
 * when its connection goes away meanwhile, evhttp detaches the request from it, and the reply frees
 * it. Must never let a TLS client in under a name that its certificate does not prove. */
#include <event2/buffer.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <netinet/in.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/http.h"

#define HEADERS_MAX (16 << 10)

struct http_server {
	struct http_config cfg;
	struct evhttp *unix_http, *tls_http;
	struct evhttp_bound_socket *tls_bound;
	struct tls_ctx *tls;
	char *unix_path;
	unsigned requests, tls_connections;
	bool tls_paused, destroying;
	uint16_t tls_port;
};

struct pending {
	struct http_request r;
	struct http_server *server;
	struct evhttp_request *ev;
	char *path;
};

/* ---- Requests ----------------------------------------------------------------------------------
 */

static const char *method_name(enum evhttp_cmd_type m)
{
	switch (m) {
	case EVHTTP_REQ_GET:
		return "GET";
	case EVHTTP_REQ_POST:
		return "POST";
	case EVHTTP_REQ_PUT:
		return "PUT";
	case EVHTTP_REQ_PATCH:
		return "PATCH";
	case EVHTTP_REQ_DELETE:
		return "DELETE";
	default:
		return "";
	}
}

static void send_answer(struct evhttp_request *ev, int status, const char *type, const char *body,
			size_t len)
{
	struct evbuffer *out = evbuffer_new();

	CHECK(out);
	evbuffer_add(out, body, len);
	evhttp_add_header(evhttp_request_get_output_headers(ev), "Content-Type", type);
	evhttp_send_reply(ev, status, NULL, out);
	evbuffer_free(out);
}

/* The common name that the client certificate of this connection proved, or "". */
static void peer_identity(struct evhttp_request *ev, char *out, size_t cap)
{
	struct evhttp_connection *conn = evhttp_request_get_connection(ev);

	tls_native_peer_name(bufferevent_openssl_get_ssl(evhttp_connection_get_bufferevent(conn)),
			     out, cap);
}

static void on_request(struct http_server *s, struct evhttp_request *ev, bool local)
{
	static const char busy[] =
		"{\"schema\":1,\"error\":\"BUSY\",\"message\":\"too many requests in flight; "
		"try again\"}\n";
	const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
	struct evbuffer *in = evhttp_request_get_input_buffer(ev);
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL,
		   *query = uri ? evhttp_uri_get_query(uri) : NULL;
	struct pending *p;

	if (s->destroying || s->requests >= s->cfg.requests_max) {
		send_answer(ev, 503, "application/json", busy, sizeof(busy) - 1);
		return;
	}
	p = xcalloc(1, sizeof(*p));
	p->server = s;
	p->ev = ev;
	p->path = evhttp_uridecode(path && *path ? path : "/", 0, NULL);
	p->r.method = method_name(evhttp_request_get_command(ev));
	p->r.path = p->path ? p->path : "/";
	p->r.query = query ? query : "";
	p->r.local = local;
	evbuffer_add(in, "", 1); /* a NUL for the parser */
	p->r.body_len = evbuffer_get_length(in) - 1;
	p->r.body = (const char *)evbuffer_pullup(in, -1);
	if (!local)
		peer_identity(ev, p->r.identity, sizeof(p->r.identity));
	s->requests++;
	s->cfg.handle(s->cfg.ctx, &p->r);
}

static void on_unix_request(struct evhttp_request *ev, void *arg)
{
	on_request(arg, ev, true);
}

static void on_tls_request(struct evhttp_request *ev, void *arg)
{
	on_request(arg, ev, false);
}

void http_reply(struct http_request *r, int status, const char *type, const char *body, size_t len)
{
	struct pending *p = container_of(r, struct pending, r);

	CHECK(p->server->requests > 0);
	p->server->requests--;
	send_answer(p->ev, status, type, body, len);
	free(p->path);
	free(p);
}

/* ---- Listening ---------------------------------------------------------------------------------
 */

struct http_server *http_create(const struct http_config *cfg)
{
	struct http_server *s = xcalloc(1, sizeof(*s));

	s->cfg = *cfg;
	return s;
}

static struct evhttp *new_evhttp(struct http_server *s, void (*cb)(struct evhttp_request *, void *))
{
	struct evhttp *h = evhttp_new(loop_event_base(s->cfg.loop));

	CHECK(h);
	evhttp_set_max_headers_size(h, HEADERS_MAX);
	evhttp_set_max_body_size(h, (ev_ssize_t)s->cfg.body_max);
	evhttp_set_timeout(h, (int)s->cfg.idle_timeout_s);
	evhttp_set_allowed_methods(h, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_PUT |
					      EVHTTP_REQ_PATCH | EVHTTP_REQ_DELETE);
	evhttp_set_gencb(h, cb, s);
	return h;
}

/* Somebody answers on the socket: it is not ours to replace. */
static bool socket_is_alive(const struct sockaddr_un *sa)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0;

	if (fd >= 0)
		close(fd);
	return alive;
}

static int bind_unix(const char *path)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	mode_t old;
	int fd, rc = 0;

	if (strlen(path) >= sizeof(sa.sun_path))
		return -ENAMETOOLONG;
	memcpy(sa.sun_path, path, strlen(path) + 1);
	if (socket_is_alive(&sa))
		return -EADDRINUSE;
	if (unlink(path) < 0 && errno != ENOENT)
		return -errno;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	old = umask(0177); /* never a moment at which others could connect */
	if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 128) < 0)
		rc = -errno;
	umask(old);
	if (rc < 0)
		close(fd);
	return rc < 0 ? rc : fd;
}

int http_listen_unix(struct http_server *s, const char *path)
{
	int fd = bind_unix(path);

	if (fd < 0) {
		log_error("http", "cannot listen", "path=\"%s\" error=\"%s\"", path, err_text(fd));
		return fd;
	}
	s->unix_http = new_evhttp(s, on_unix_request);
	if (evhttp_accept_socket(s->unix_http, fd) < 0) {
		close(fd);
		return -EIO;
	}
	s->unix_path = xstrdup(path);
	return 0;
}

/* A session is freed with its bufferevent: the sure sign that its connection has ended. */
static void on_session_freed(void *arg)
{
	struct http_server *s = arg;

	CHECK(s->tls_connections > 0);
	s->tls_connections--;
	if (s->tls_paused && !s->destroying) {
		s->tls_paused = false;
		evconnlistener_enable(evhttp_bound_socket_get_listener(s->tls_bound));
	}
}

static struct bufferevent *on_tls_accept(struct event_base *base, void *arg)
{
	struct http_server *s = arg;
	void *ssl = tls_native_session(s->tls, true);
	struct bufferevent *bev;

	tls_native_on_free(ssl, on_session_freed, s);
	if (++s->tls_connections >= s->cfg.tls_connections_max) {
		s->tls_paused = true;
		evconnlistener_disable(evhttp_bound_socket_get_listener(s->tls_bound));
	}
	bev = bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING,
					     BEV_OPT_CLOSE_ON_FREE);
	CHECK(bev);
	bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
	return bev;
}

static uint16_t port_of(evutil_socket_t fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	if (getsockname(fd, (struct sockaddr *)&ss, &len) < 0)
		return 0;
	if (ss.ss_family == AF_INET6)
		return ntohs(((struct sockaddr_in6 *)&ss)->sin6_port);
	return ntohs(((struct sockaddr_in *)&ss)->sin_port);
}

int http_listen_tls(struct http_server *s, struct tls_ctx *tls, const char *address)
{
	struct sockaddr_storage ss;
	int len = sizeof(ss);
	struct evconnlistener *listener;

	memset(&ss, 0, sizeof(ss));
	if (evutil_parse_sockaddr_port(address, (struct sockaddr *)&ss, &len) < 0)
		return -EINVAL;
	s->tls = tls;
	listener = evconnlistener_new_bind(loop_event_base(s->cfg.loop), NULL, NULL,
					   LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
						   LEV_OPT_REUSEABLE,
					   128, (struct sockaddr *)&ss, len);
	if (!listener) {
		int rc = -errno;

		log_error("http", "cannot listen; set admin_listen to a free address of this host",
			  "address=%s error=\"%s\"", address, err_text(rc));
		return rc < 0 ? rc : -EADDRINUSE;
	}
	s->tls_port = port_of(evconnlistener_get_fd(listener));
	s->tls_http = new_evhttp(s, on_tls_request);
	evhttp_set_bevcb(s->tls_http, on_tls_accept, s);
	s->tls_bound = evhttp_bind_listener(s->tls_http, listener);
	CHECK(s->tls_bound);
	return 0;
}

uint16_t http_tls_port(const struct http_server *s)
{
	return s->tls_port;
}

static void stop_accepting(struct evhttp_bound_socket *b, void *arg)
{
	evconnlistener_disable(evhttp_bound_socket_get_listener(b));
}

void http_unlisten(struct http_server *s)
{
	s->destroying = true; /* no listener is enabled again */
	if (s->tls_http)
		evhttp_foreach_bound_socket(s->tls_http, stop_accepting, NULL);
	if (s->unix_http)
		evhttp_foreach_bound_socket(s->unix_http, stop_accepting, NULL);
	if (s->unix_path)
		(void)unlink(s->unix_path);
	free(s->unix_path);
	s->unix_path = NULL;
}

void http_destroy(struct http_server *s)
{
	if (!s)
		return;
	CHECK(s->requests == 0);
	http_unlisten(s);
	if (s->tls_http)
		evhttp_free(s->tls_http);
	if (s->unix_http)
		evhttp_free(s->unix_http);
	free(s);
}
