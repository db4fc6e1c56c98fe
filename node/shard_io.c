/* SPDX-License-Identifier: Apache-2.0 */
/* Client requests on their way to the shard that owns the object: from client connections, and from
 * the client of another shard of this node. Payload memory never crosses shards: it is copied into
 * the pool of the shard that works on it, while its owner holds it (node/base/buf.h). */
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

#define SHARD_IO_MAX 4096u

/* A client connection lives until its last request has ended, so that replies know where to go. */
struct client_conn {
	struct list link;
	struct shard *shard;
	struct uuid node; /* whose front end it is; nil: a client's */
	struct conn *conn; /* NULL once closed */
	unsigned ios;
};

struct shard_io {
	struct post post;
	struct shard *home;         /* whose pool this struct is from */
	struct shard *owner;        /* of the object */
	struct client_conn *client; /* NULL: a hop for the home shard's own client */
	struct io_exec *outer;      /* the hop's */
	struct wait *outer_wait;
	uint64_t id;
	struct io_exec exec;
	struct wait wait, hop_wait;
	struct slice source; /* hop: the payload as the home shard holds it */
	struct io_request request;
	struct io_reply reply;
};

void shard_io_init(struct shard *s)
{
	list_init(&s->clients);
	pool_init(&s->io_ops, "shard_io", sizeof(struct shard_io), SHARD_IO_MAX);
}

/* A copy of a payload in the memory of `s`. The heap is the answer to an empty pool: the number of
 * requests is bounded already. */
static struct slice slice_copy(struct shard *s, struct slice from)
{
	struct buf *b;

	if (!from.len)
		return (struct slice){0};
	b = buf_get(s->pool, from.len);
	if (!b)
		b = buf_heap(from.len);
	memcpy(b->data, from.data, from.len);
	return (struct slice){.buf = b, .data = b->data, .len = from.len};
}

/* ---- Hops: home → owner → home → owner (to release) ---- */

static void hop_finished(struct post *p)
{
	struct shard_io *io = container_of(p, struct shard_io, post);

	pool_put(&io->home->io_ops, io);
}

static void hop_free_on_owner(struct post *p)
{
	struct shard_io *io = container_of(p, struct shard_io, post);

	slice_unref(&io->exec.data);
	io->post.fn = hop_finished;
	loop_post(io->home->loop, &io->post);
}

static void hop_home(struct post *p)
{
	struct shard_io *io = container_of(p, struct shard_io, post);
	struct io_exec *outer = io->outer;
	struct wait *w = io->outer_wait;

	outer->data = slice_copy(io->home, io->exec.data);
	if (io->exec.data.buf) {
		io->post.fn = hop_free_on_owner;
		loop_post(io->owner->loop, &io->post);
	} else {
		pool_put(&io->home->io_ops, io);
	}
	wait_resume(w, 0);
}

static void hop_done(struct wait *w, int rc)
{
	struct shard_io *io = container_of(w, struct shard_io, hop_wait);

	slice_unref(&io->exec.payload);
	io->post.fn = hop_home;
	loop_post(io->home->loop, &io->post);
}

static void hop_on_owner(struct post *p)
{
	struct shard_io *io = container_of(p, struct shard_io, post);
	int rc;

	io->exec.payload = slice_copy(io->owner, io->source);
	rc = replicator_submit(io->owner->replicator, &io->exec, &io->hop_wait);
	if (rc != PENDING)
		hop_done(&io->hop_wait, rc);
}

static int hop_start(struct shard *home, struct shard *owner, struct io_exec *io, struct wait *w)
{
	struct shard_io *hop = pool_get(&home->io_ops);

	if (!hop) {
		io->reply->status = IO_RETRY;
		io->reply->epoch = 0;
		return 0;
	}
	hop->home = home;
	hop->owner = owner;
	hop->client = NULL;
	hop->outer = io;
	hop->outer_wait = w;
	hop->source = io->payload;
	hop->exec = (struct io_exec){.request = io->request, .reply = io->reply};
	hop->hop_wait.resume = hop_done;
	hop->post.fn = hop_on_owner;
	loop_post(owner->loop, &hop->post);
	return PENDING;
}

/* client_hooks.local, and the second half of a connection's request. */
int shard_local_io(void *shard, struct io_exec *io, struct wait *w)
{
	struct shard *s = shard;
	struct shard *owner =
		&s->node->shards[object_shard(io->request->object, s->node->shard_count)];

	if (owner == s)
		return replicator_submit(s->replicator, io, w);
	return hop_start(s, owner, io, w);
}

/* ---- Client connections ---- */

static void client_conn_put(struct client_conn *cc)
{
	if (!cc->conn && !cc->ios)
		free(cc);
}

static void reply_send(struct shard_io *io)
{
	uint8_t body[8 + IO_MAX_BLOCKS * 16];
	struct writer w = writer_init(body, sizeof(body));
	struct conn *c = io->client->conn;

	if (!c)
		return;
	io_reply_encode(&io->reply, (enum io_kind)io->request.kind, &w);
	CHECK(!w.bad);
	conn_send(c, OP_IO_REPLY, io->id, body, (uint32_t)w.len,
		  io->exec.data.buf ? &io->exec.data : NULL, io->exec.data.buf ? 1 : 0);
}

static void client_io_done(struct wait *w, int rc)
{
	struct shard_io *io = container_of(w, struct shard_io, wait);
	struct client_conn *cc = io->client;

	reply_send(io);
	slice_unref(&io->exec.data);
	slice_unref(&io->exec.payload);
	pool_put(&io->home->io_ops, io);
	cc->ios--;
	client_conn_put(cc);
}

static void client_busy(struct client_conn *cc, uint64_t id)
{
	struct io_reply reply;
	uint8_t body[8];
	struct writer w = writer_init(body, sizeof(body));

	reply.status = IO_RETRY;
	reply.epoch = 0;
	reply.fp_count = reply.extent_count = 0;
	io_reply_encode(&reply, IO_WRITE, &w);
	conn_send(cc->conn, OP_IO_REPLY, id, body, (uint32_t)w.len, NULL, 0);
}

static void on_frame(struct conn *c, const struct frame *f)
{
	struct client_conn *cc = conn_data(c);
	struct shard *s = cc->shard;
	struct reader r = reader_init(f->body, f->body_len);
	struct shard_io *io;
	int rc;

	if (f->opcode != OP_IO && f->opcode != OP_IO_FORWARD) {
		conn_close(c, -ERR_PROTOCOL);
		return;
	}
	io = pool_get(&s->io_ops);
	if (!io) {
		client_busy(cc, f->id);
		return;
	}
	rc = io_request_decode(&r, f->payload.len, &io->request);
	if (rc < 0) {
		log_warn("client", "malformed request; closing", "peer=%s", conn_peer_address(c));
		pool_put(&s->io_ops, io);
		conn_close(c, rc);
		return;
	}
	io->home = io->owner = s;
	io->client = cc;
	io->id = f->id;
	io->exec = (struct io_exec){.request = &io->request,
				    .reply = &io->reply,
				    .payload = f->payload.len ? slice_ref(f->payload)
							      : (struct slice){0}};
	io->reply.fp_count = io->reply.extent_count = 0;
	io->wait.resume = client_io_done;
	cc->ios++;
	/* A client that cannot reach the primary: one hop, never two. */
	rc = f->opcode == OP_IO_FORWARD ? client_forward(s->client, &io->exec, &io->wait)
					: shard_local_io(s, &io->exec, &io->wait);
	if (rc != PENDING)
		client_io_done(&io->wait, rc);
}

static void on_closed(struct conn *c, int reason)
{
	struct client_conn *cc = conn_data(c);

	list_del(&cc->link);
	cc->conn = NULL;
	client_conn_put(cc);
}

void shard_client_accepted(void *shard, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = on_frame, .on_closed = on_closed};
	struct client_conn *cc = xcalloc(1, sizeof(*cc));
	const char *name = conn_peer_name(c);
	struct shard *s = shard;

	*cc = (struct client_conn){.shard = s, .conn = c};
	if (strncmp(name, "node:", 5) || uuid_parse(name + 5, &cc->node) < 0)
		cc->node = (struct uuid){0};
	list_push_back(&s->clients, &cc->link);
	conn_set(c, &ops, cc);
}

void shard_clients_drop(struct shard *s, const struct uuid *node)
{
	struct client_conn *cc;

	list_for_each(cc, &s->clients, link) if (uuid_equal(&cc->node, node)) conn_close(cc->conn, -ERR_AUTH);
}
