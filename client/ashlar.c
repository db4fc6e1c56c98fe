/* SPDX-License-Identifier: Apache-2.0 */
/* libashlar: the client on a loop thread of its own. A call becomes a request from a fixed set,
 * posted to the loop; the user's bytes are copied on that thread, because a connection may still
 * hold references to what it sends when a deadline has already given the user its memory back. */
#include "client/ashlar.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/pem.h"
#include "client/remote.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop.h"

#define API       __attribute__((visibility("default")))
/* Set on each library thread: callbacks must not block. */
static __thread const struct ashlar *on_thread_of;

#define BYTES_MAX (32u << 20) /* copied payload at once; a single larger request passes */

/* A blocking call's rendezvous. */
struct meeting {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	int rc;
};

enum request_kind { REQ_IO, REQ_FLUSH };

struct call;

struct request {
	struct list link; /* ashlar.free (under lock), ashlar.queue (loop) */
	struct post post;
	struct wait wait;
	struct ashlar_volume *v;
	enum request_kind kind;
	struct volume_io io;
	struct slice slices[VOLUME_IO_SLICES_MAX];
	uint8_t *data;
	ashlar_done_fn done;
	void *arg;
};

struct ashlar {
	struct loop *loop;
	struct buf_pool *pool;
	struct tls_ctx *tls;
	struct remote *remote;
	struct remote_config config;
	char holder[128];
	unsigned io_timeout_ms;
	pthread_mutex_t lock;
	pthread_cond_t freed;
	struct list free;
	struct request *requests;
	/* of the loop */
	struct list queue;
	uint32_t bytes;
	struct pool_waiter memory;
	bool memory_waiting;
	struct turn_end turn;
	struct timer grace;
	struct meeting *starting;
};

struct ashlar_volume {
	struct ashlar *a;
	struct volume *volume;
	unsigned posted;      /* of the loop: requests that have not ended */
	struct call *closing; /* waits for them */
};

static int errno_of(int rc)
{
	int e = err_errno(rc);

	return e >= 0 ? 0 : e;
}

static void meeting_init(struct meeting *m)
{
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->cond, NULL);
	m->done = false;
	m->rc = 0;
}

static void meeting_end(void *arg, int rc)
{
	struct meeting *m = arg;

	pthread_mutex_lock(&m->lock);
	m->rc = rc;
	m->done = true;
	pthread_cond_signal(&m->cond);
	pthread_mutex_unlock(&m->lock);
}

static int meeting_wait(struct meeting *m)
{
	int rc;

	pthread_mutex_lock(&m->lock);
	while (!m->done)
		pthread_cond_wait(&m->cond, &m->lock);
	rc = m->rc;
	pthread_mutex_unlock(&m->lock);
	return rc;
}

/* Runs fn on the loop and waits until somebody ends the meeting. */
struct call {
	struct post post;
	struct meeting meeting;
	struct ashlar *a;
	struct ashlar_volume *v;
	struct wait wait;
	const char *name;
	int flags;
	void *out;
	size_t out_size;
};

static int call_run(struct call *c, struct ashlar *a, void (*fn)(struct post *p))
{
	if (on_thread_of == a)
		return -EDEADLK;
	c->a = a;
	c->post.fn = fn;
	meeting_init(&c->meeting);
	loop_post(a->loop, &c->post);
	return meeting_wait(&c->meeting);
}

/* ---- Requests, on the loop ---- */

static void volume_close_now(struct ashlar_volume *v);

static void request_end(struct request *q, int rc)
{
	struct ashlar_volume *v = q->v;
	struct ashlar *a = v->a;
	ashlar_done_fn done = q->done;
	void *arg = q->arg;

	pthread_mutex_lock(&a->lock);
	list_push_back(&a->free, &q->link);
	pthread_cond_signal(&a->freed);
	pthread_mutex_unlock(&a->lock);
	done(arg, errno_of(rc));
	if (!--v->posted && v->closing)
		volume_close_now(v);
}

static void request_drop_slices(struct request *q)
{
	for (unsigned i = 0; i < q->io.slice_count; i++)
		slice_unref(&q->slices[i]);
	q->io.slice_count = 0;
}

static uint32_t request_bytes(const struct request *q)
{
	return q->io.kind == IO_READ || q->io.kind == IO_WRITE ? (uint32_t)q->io.length : 0;
}

static void request_finish(struct request *q, int rc)
{
	struct ashlar *a = q->v->a;
	uint8_t *at = q->data;

	if (q->io.kind == IO_READ && rc == 0)
		for (unsigned i = 0; i < q->io.slice_count; i++) {
			memcpy(at, q->slices[i].data, q->slices[i].len);
			at += q->slices[i].len;
		}
	if (q->io.kind != IO_READ || rc == 0)
		request_drop_slices(q);
	a->bytes -= request_bytes(q);
	if (!list_empty(&a->queue))
		turn_end_arm(a->loop, &a->turn, TURN_LOG);
	request_end(q, rc);
}

static void request_resume(struct wait *w, int rc)
{
	request_finish(container_of(w, struct request, wait), rc);
}

static void memory_ready(struct pool_waiter *w)
{
	struct ashlar *a = container_of(w, struct ashlar, memory);

	a->memory_waiting = false;
	turn_end_arm(a->loop, &a->turn, TURN_LOG);
}

/* The user's bytes into buffers cut at stripe units; false: no memory now. */
static bool request_copy_in(struct request *q)
{
	struct ashlar *a = q->v->a;
	uint64_t done = 0;

	while (done < q->io.length) {
		uint64_t pos = q->io.offset + done;
		uint32_t n = (uint32_t)MIN(STRIPE_UNIT - pos % STRIPE_UNIT, q->io.length - done);
		struct buf *b = buf_get(a->pool, n);

		if (!b) {
			request_drop_slices(q);
			if (!a->memory_waiting)
				buf_wait(a->pool, &a->memory);
			a->memory_waiting = true;
			return false;
		}
		memcpy(b->data, q->data + done, n);
		q->slices[q->io.slice_count++] = (struct slice){b, b->data, n};
		done += n;
	}
	return true;
}

/* False: not now. */
static bool request_start(struct request *q)
{
	struct ashlar *a = q->v->a;
	uint32_t bytes = request_bytes(q);
	int rc;

	if (a->bytes && a->bytes + bytes > BYTES_MAX)
		return false;
	if (q->io.kind == IO_WRITE && !request_copy_in(q))
		return false;
	a->bytes += bytes;
	q->wait.resume = request_resume;
	rc = volume_io(q->v->volume, &q->io, &q->wait);
	if (rc != PENDING)
		request_finish(q, rc);
	return true;
}

static void ashlar_turn(struct turn_end *t)
{
	struct ashlar *a = container_of(t, struct ashlar, turn);

	while (!list_empty(&a->queue)) {
		struct request *q = list_first(&a->queue, struct request, link);

		list_del(&q->link);
		if (!request_start(q)) {
			list_push_front(&a->queue, &q->link);
			return;
		}
	}
}

static void request_posted(struct post *p)
{
	struct request *q = container_of(p, struct request, post);
	struct ashlar *a = q->v->a;

	q->v->posted++;
	if (q->kind == REQ_FLUSH) { /* every reply was durable already */
		request_end(q, 0);
		return;
	}
	if (a->io_timeout_ms != UINT_MAX)
		q->io.deadline_ms = loop_mono_us(a->loop) / 1000 + a->io_timeout_ms;
	list_push_back(&a->queue, &q->link);
	turn_end_arm(a->loop, &a->turn, TURN_LOG);
}

/* ---- Requests, from the user ---- */

static int request_submit(struct ashlar_volume *v, enum request_kind kind, uint8_t io_kind,
			  uint64_t offset, void *data, uint64_t length, ashlar_done_fn done,
			  void *arg, bool block)
{
	struct ashlar *a = v->a;
	struct request *q;
	struct list *l;

	if ((io_kind == IO_READ || io_kind == IO_WRITE) && length > ASHLAR_IO_MAX)
		return -EINVAL;
	pthread_mutex_lock(&a->lock);
	while (!(l = list_pop_front(&a->free)) && block)
		pthread_cond_wait(&a->freed, &a->lock);
	pthread_mutex_unlock(&a->lock);
	if (!l)
		return -EAGAIN;
	q = list_entry(l, struct request, link);
	q->v = v;
	q->kind = kind;
	q->io = (struct volume_io){.kind = io_kind,
				   .offset = offset,
				   .length = length,
				   .slices = q->slices,
				   .slices_max = VOLUME_IO_SLICES_MAX};
	q->data = data;
	q->done = done;
	q->arg = arg;
	q->post.fn = request_posted;
	loop_post(a->loop, &q->post);
	return 0;
}

static int request_blocking(struct ashlar_volume *v, enum request_kind kind, uint8_t io_kind,
			    uint64_t offset, void *data, uint64_t length)
{
	struct meeting m;
	int rc;

	if (on_thread_of == v->a)
		return -EDEADLK;
	meeting_init(&m);
	rc = request_submit(v, kind, io_kind, offset, data, length, meeting_end, &m, true);
	return rc < 0 ? rc : meeting_wait(&m);
}

API int ashlar_aio_read(struct ashlar_volume *v, uint64_t offset, void *data, size_t length,
			ashlar_done_fn done, void *arg)
{
	return request_submit(v, REQ_IO, IO_READ, offset, data, length, done, arg, false);
}

API int ashlar_aio_write(struct ashlar_volume *v, uint64_t offset, const void *data, size_t length,
			 ashlar_done_fn done, void *arg)
{
	return request_submit(v, REQ_IO, IO_WRITE, offset, (void *)data, length, done, arg, false);
}

API int ashlar_aio_trim(struct ashlar_volume *v, uint64_t offset, uint64_t length,
			ashlar_done_fn done, void *arg)
{
	return request_submit(v, REQ_IO, IO_TRIM, offset, NULL, length, done, arg, false);
}

API int ashlar_aio_zeroes(struct ashlar_volume *v, uint64_t offset, uint64_t length,
			  ashlar_done_fn done, void *arg)
{
	return request_submit(v, REQ_IO, IO_ZEROES, offset, NULL, length, done, arg, false);
}

API int ashlar_aio_flush(struct ashlar_volume *v, ashlar_done_fn done, void *arg)
{
	return request_submit(v, REQ_FLUSH, 0, 0, NULL, 0, done, arg, false);
}

API int ashlar_read(struct ashlar_volume *v, uint64_t offset, void *data, size_t length)
{
	return request_blocking(v, REQ_IO, IO_READ, offset, data, length);
}

API int ashlar_write(struct ashlar_volume *v, uint64_t offset, const void *data, size_t length)
{
	return request_blocking(v, REQ_IO, IO_WRITE, offset, (void *)data, length);
}

API int ashlar_trim(struct ashlar_volume *v, uint64_t offset, uint64_t length)
{
	return request_blocking(v, REQ_IO, IO_TRIM, offset, NULL, length);
}

API int ashlar_zeroes(struct ashlar_volume *v, uint64_t offset, uint64_t length)
{
	return request_blocking(v, REQ_IO, IO_ZEROES, offset, NULL, length);
}

API int ashlar_flush(struct ashlar_volume *v)
{
	return request_blocking(v, REQ_FLUSH, 0, 0, NULL, 0);
}

/* ---- Volumes ---- */

static void open_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);

	meeting_end(&c->meeting, volume_open(remote_client(c->a->remote), c->name,
					     c->flags & ASHLAR_SHARED, &c->v->volume));
}

API int ashlar_volume_open(struct ashlar *a, const char *name, int flags,
			   struct ashlar_volume **out)
{
	struct ashlar_volume *v;
	struct call c = {.name = name, .flags = flags};
	int rc;

	if (!name || flags & ~ASHLAR_SHARED)
		return -EINVAL;
	v = xcalloc(1, sizeof(*v));
	v->a = a;
	c.v = v;
	rc = call_run(&c, a, open_on_loop);
	if (rc < 0)
		free(v);
	else
		*out = v;
	return errno_of(rc);
}

static void closed_on_loop(struct wait *w, int rc)
{
	struct call *c = container_of(w, struct call, wait);

	meeting_end(&c->meeting, rc);
}

static void volume_close_now(struct ashlar_volume *v)
{
	struct call *c = v->closing;

	v->closing = NULL;
	c->wait.resume = closed_on_loop;
	volume_close(v->volume, &c->wait);
}

static void close_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);

	c->v->closing = c;
	if (!c->v->posted)
		volume_close_now(c->v);
}

API int ashlar_volume_close(struct ashlar_volume *v)
{
	struct call c = {.v = v};
	int rc = call_run(&c, v->a, close_on_loop);

	if (rc != -EDEADLK)
		free(v);
	return errno_of(rc);
}

static void size_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);

	*(uint64_t *)c->out = volume_size(c->v->volume);
	meeting_end(&c->meeting, 0);
}

API uint64_t ashlar_volume_size(struct ashlar_volume *v)
{
	uint64_t size = 0;
	struct call c = {.v = v, .out = &size};

	if (on_thread_of == v->a)
		return volume_size(v->volume);
	call_run(&c, v->a, size_on_loop);
	return size;
}

static void held_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);

	snprintf(c->out, c->out_size, "%s", volume_held_by(c->v->volume));
	meeting_end(&c->meeting, 0);
}

API int ashlar_volume_held_by(struct ashlar_volume *v, char *text, size_t text_size)
{
	struct call c = {.v = v, .out = text, .out_size = text_size};

	return call_run(&c, v->a, held_on_loop);
}

struct listing {
	struct client_volume *v;
	size_t count, cap;
};

static void list_one(void *arg, const struct client_volume *v)
{
	struct listing *l = arg;

	if (l->count == l->cap) {
		l->cap = MAX(2 * l->cap, 64);
		l->v = xrealloc(l->v, l->cap * sizeof(*l->v));
	}
	l->v[l->count++] = *v;
}

static void list_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);

	client_list(remote_client(c->a->remote), list_one, c->out);
	meeting_end(&c->meeting, 0);
}

API int ashlar_list(struct ashlar *a, int (*each)(void *arg, const char *name, uint64_t size),
		    void *arg)
{
	struct listing l = {0};
	struct call c = {.out = &l};
	int rc = call_run(&c, a, list_on_loop);

	for (size_t i = 0; !rc && i < l.count; i++)
		rc = each(arg, l.v[i].name, l.v[i].size);
	free(l.v);
	return rc;
}

/* ---- Connecting ---- */

static void on_ready(void *ctx)
{
	struct ashlar *a = ctx;

	if (a->starting)
		meeting_end(a->starting, 0);
	a->starting = NULL;
	timer_cancel(&a->grace);
}

static void on_grace(struct timer *t)
{
	struct ashlar *a = container_of(t, struct ashlar, grace);

	if (a->starting) { /* no map in time */
		meeting_end(a->starting, -ETIMEDOUT);
		a->starting = NULL;
	} else { /* closed connections have ended */
		loop_stop(a->loop);
	}
}

static void connect_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);
	struct ashlar *a = c->a;

	on_thread_of = a;
	a->starting = &c->meeting;
	timer_init(&a->grace, a->loop, on_grace);
	timer_set(&a->grace, (uint64_t)c->flags * 1000);
	a->remote = remote_create(&a->config);
}

static void disconnect_on_loop(struct post *p)
{
	struct call *c = container_of(p, struct call, post);
	struct ashlar *a = c->a;

	remote_destroy(a->remote);
	timer_set(&a->grace, 0);
	meeting_end(&c->meeting, 0);
}

static void ashlar_free(struct ashlar *a)
{
	if (a->loop)
		loop_destroy(a->loop);
	if (a->pool)
		buf_pool_destroy(a->pool);
	if (a->tls)
		tls_ctx_destroy(a->tls);
	free(a->requests);
	free(a);
}

API void ashlar_disconnect(struct ashlar *a)
{
	struct call c = {0};

	if (call_run(&c, a, disconnect_on_loop) == -EDEADLK)
		return;
	loop_join(a->loop);
	timer_fini(&a->grace);
	turn_end_disarm(&a->turn);
	ashlar_free(a);
}

static int read_identity(struct ashlar *a, const struct ashlar_options *o)
{
	char name[96] = "client:anonymous", text[96], host[32];
	const char *uuid = o->cluster;
	int rc;

	if (!o->cert != !o->key || !o->cert != !o->ca)
		return -EINVAL;
	if (o->cert) {
		rc = pem_find_text(o->cert, "client:", name, sizeof(name));
		if (rc < 0)
			return rc;
		a->tls = tls_ctx_create(o->ca, o->cert, o->key);
		if (!a->tls)
			return -EACCES;
	}
	if (!uuid && o->ca) {
		rc = pem_find_text(o->ca, "ashlar CA ", text, sizeof(text));
		if (rc < 0)
			return rc;
		uuid = text + strlen("ashlar CA ");
	}
	if (!uuid || uuid_parse(uuid, &a->config.cluster) < 0)
		return -EINVAL;
	if (gethostname(host, sizeof(host) - 1) < 0)
		host[0] = 0;
	host[sizeof(host) - 1] = 0;
	snprintf(a->holder, sizeof(a->holder), "%s %s", name, host);
	return 0;
}

static void make_requests(struct ashlar *a, unsigned count)
{
	a->requests = xcalloc(count, sizeof(*a->requests));
	for (unsigned i = 0; i < count; i++)
		list_push_back(&a->free, &a->requests[i].link);
}

API int ashlar_connect(const struct ashlar_options *options, struct ashlar **out)
{
	struct ashlar_options o = {0};
	const char *log = getenv("ASHLAR_LOG");
	enum log_level level = LOG_WARN; /* a guest in another program's stderr speaks rarely */
	struct call c = {0};
	struct ashlar *a;
	int rc;

	if (!options || !options->struct_size || !out)
		return -EINVAL;
	memcpy(&o, options, MIN(options->struct_size, sizeof(o)));
	if (!log || !log_level_parse(log, &level))
		log_set_level(level);
	a = xcalloc(1, sizeof(*a));
	rc = o.connect ? remote_parse_addresses(o.connect, &a->config) : -EINVAL;
	if (!rc)
		rc = read_identity(a, &o);
	a->loop = rc ? NULL : loop_create("ashlar", 16);
	if (rc || !a->loop) {
		ashlar_free(a);
		return rc ? errno_of(rc) : -ENOSYS;
	}
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->freed, NULL);
	list_init(&a->free);
	list_init(&a->queue);
	turn_end_init(&a->turn, ashlar_turn);
	a->memory.ready = memory_ready;
	make_requests(a, o.requests_max ? o.requests_max : 256);
	a->pool = buf_pool_create(o.memory_bytes ? o.memory_bytes : 128u << 20);
	a->io_timeout_ms = o.io_timeout_ms ? o.io_timeout_ms : 30000;
	a->config.loop = a->loop;
	a->config.pool = a->pool;
	a->config.tls = a->tls;
	a->config.holder = a->holder;
	a->config.plain_data = o.plain_data;
	a->config.ops = 1024;
	a->config.ready = on_ready;
	a->config.ctx = a;
	rc = loop_spawn(a->loop);
	if (rc < 0) {
		ashlar_free(a);
		return rc;
	}
	c.flags = (int)MIN(o.connect_timeout_ms ? o.connect_timeout_ms : 10000, (unsigned)INT_MAX);
	rc = call_run(&c, a, connect_on_loop);
	if (rc < 0) {
		ashlar_disconnect(a);
		return rc;
	}
	*out = a;
	return 0;
}

API const char *ashlar_version(void)
{
	return ASHLAR_VERSION;
}
