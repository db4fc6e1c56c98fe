/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/client/fake_node.h"

#include "cluster/command.h"
#include "cluster/control_msg.h"
#include "cluster/map_codec.h"
#include "net/ca.h"
#include "net/io_msg.h"
#include "tests/lib/test.h"

#define REQUESTS_MAX (1u << 20)

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	EXPECT(f != NULL);
	fputs(text, f);
	fclose(f);
}

static void make_cert(const struct fake_files *f, const char *key, const char *cert, const char *cn)
{
	char *csr, *pem;

	EXPECT_OK(ca_request(key, cn, &csr));
	EXPECT_OK(ca_sign(f->ca, f->ca_key, csr, cn, NULL, 10, &pem));
	write_file(cert, pem);
	free(csr);
	free(pem);
}

void fake_files_make(struct fake_files *f, const char *dir)
{
	char uuid[UUID_TEXT], text[96];

	uuid_make(&f->cluster);
	uuid_make(&f->node);
	snprintf(f->ca, sizeof(f->ca), "%s/ca.pem", dir);
	snprintf(f->ca_key, sizeof(f->ca_key), "%s/ca.key", dir);
	snprintf(f->node_cert, sizeof(f->node_cert), "%s/node.pem", dir);
	snprintf(f->node_key, sizeof(f->node_key), "%s/node.key", dir);
	snprintf(f->client_cert, sizeof(f->client_cert), "%s/client.pem", dir);
	snprintf(f->client_key, sizeof(f->client_key), "%s/client.key", dir);
	uuid_format(&f->cluster, uuid);
	snprintf(text, sizeof(text), "ashlar CA %s", uuid);
	EXPECT_OK(ca_create(f->ca, f->ca_key, text));
	uuid_format(&f->node, uuid);
	snprintf(text, sizeof(text), "node:%s", uuid);
	make_cert(f, f->node_key, f->node_cert, text);
	make_cert(f, f->client_key, f->client_cert, "client:tester");
}

/* ---- Control ---- */

static void node_send_map(struct fake_node *n, struct conn *c)
{
	struct writer w = writer_init_heap();

	map_delta_encode(&n->map, 0, NULL, 0, &w);
	conn_send(c, OP_MAP_DELTA, 0, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
}

static void node_propose(struct fake_node *n, struct conn *c, const struct frame *f)
{
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	struct command_result *r = xcalloc(1, sizeof(*r));
	struct reader in = reader_init(f->body, f->body_len);
	struct writer w = writer_init_heap();
	void *arena = NULL;

	EXPECT_OK(command_decode(&in, cmd, &arena));
	if (cmd->kind == CMD_ATTACH && n->held) {
		r->code = -ERR_HELD;
		strcpy(r->text, "attached by node:other");
	} else if (cmd->kind == CMD_ATTACH) {
		n->attaches++;
		strcpy(n->holder, cmd->attach.holder);
		r->id = r->number = n->attaches;
	} else if (cmd->kind == CMD_RENEW) {
		EXPECT_EQ(cmd->renew.count, 1);
		EXPECT_EQ(cmd->renew.attachment[0], n->attaches);
		n->renews++;
		r->count = 1;
		r->object[0] = n->renewal_gone;
	} else {
		EXPECT_EQ(cmd->kind, CMD_DETACH);
		EXPECT_EQ(cmd->detach.attachment, n->attaches);
		n->detaches++;
	}
	command_result_encode(r, &w);
	conn_send(c, OP_PROPOSED, f->id, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
	free(arena);
	free(cmd);
	free(r);
}

static void control_frame(struct conn *c, const struct frame *f)
{
	struct fake_node *n = conn_data(c);

	if (f->opcode == OP_MAP_WATCH)
		node_send_map(n, c);
	else if (f->opcode == OP_PROPOSE)
		node_propose(n, c, f);
	else
		test_failed(__FILE__, __LINE__, "opcode %u on a client control connection",
			    f->opcode);
}

static void control_closed(struct conn *c, int reason)
{
	struct fake_node *n = conn_data(c);

	n->controls--;
	if (n->control == c)
		n->control = NULL;
}

static void control_accepted(void *data, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = control_frame, .on_closed = control_closed};
	struct fake_node *n = data;

	n->control = c;
	n->controls++;
	conn_set(c, &ops, n);
}

/* ---- Data ---- */

static void io_apply(struct fake_node *n, const struct io_request *q, const struct frame *f)
{
	uint32_t i = object_index(q->object);
	uint8_t *at = n->data[i] + q->offset;

	EXPECT(q->attachment == n->attaches && q->attach_epoch == n->attaches);
	EXPECT(q->request > 0 && q->request < REQUESTS_MAX && q->low_water <= q->request);
	if (n->applied[i][q->request])
		return; /* known: joined to its commit */
	n->applied[i][q->request] = 1;
	if (q->kind == IO_WRITE) {
		EXPECT(io_payload_check(f->payload.data, q->offset, q->length, q->fps));
		memcpy(at, f->payload.data, q->length);
	} else {
		memset(at, 0, q->length);
	}
}

static void data_frame(struct conn *c, const struct frame *f)
{
	struct fake_node *n = conn_data(c);
	struct io_request *q = xcalloc(1, sizeof(*q));
	struct io_reply *a = xcalloc(1, sizeof(*a));
	struct reader in = reader_init(f->body, f->body_len);
	struct writer w = writer_init_heap();
	struct slice data = {0};

	EXPECT_EQ(f->opcode, OP_IO);
	EXPECT_OK(io_request_decode(&in, f->payload.len, q));
	n->ios++;
	a->epoch = q->epoch;
	if (q->kind == IO_READ) {
		struct buf *b = buf_get(n->pool, q->length);

		EXPECT(b != NULL);
		memcpy(b->data, n->data[object_index(q->object)] + q->offset, q->length);
		a->fp_count = io_fp_count(q->offset, q->length);
		io_payload_fps(b->data, q->offset, q->length, a->fps);
		if (n->corrupt_every && n->ios % n->corrupt_every == 0)
			b->data[q->length / 2] ^= 1;
		data = (struct slice){b, b->data, q->length};
	} else if (q->kind == IO_STATUS) {
		a->extents[a->extent_count++] = (struct io_extent){q->length, 0};
	} else {
		io_apply(n, q, f);
	}
	if (n->drop_every && n->ios % n->drop_every == 0) {
		conn_close(c, -ERR_CLOSED);
	} else {
		io_reply_encode(a, q->kind, &w);
		conn_send(c, OP_IO_REPLY, f->id, w.data, (uint32_t)w.len, &data, data.len ? 1 : 0);
	}
	slice_unref(&data);
	writer_free(&w);
	free(q);
	free(a);
}

static void data_closed(struct conn *c, int reason)
{
	struct fake_node *n = conn_data(c);

	n->data_conns--;
}

static void data_accepted(void *data, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = data_frame, .on_closed = data_closed};
	struct fake_node *n = data;

	n->data_conns++;
	conn_set(c, &ops, n);
}

static bool decide(void *data, const struct wire_hello *peer, const char *tls_name,
		   struct accept_decision *d, struct wire_refusal *f)
{
	struct fake_node *n = data;

	EXPECT_STR(tls_name, "client:tester");
	EXPECT_EQ(peer->node, 0);
	*d = (struct accept_decision){
		.loop = n->loop, .pool = n->pool, .send_limit = 16u << 20, .data = n};
	d->welcome = (struct wire_hello){.version_min = WIRE_PROTOCOL,
					 .version_max = WIRE_PROTOCOL,
					 .kind = peer->kind,
					 .flags = peer->flags,
					 .cluster = n->cluster,
					 .self = n->self,
					 .node = 1,
					 .stream = peer->stream,
					 .shards = 2};
	if (peer->kind == HELLO_CLIENT_CONTROL)
		d->accepted = control_accepted;
	else if (peer->kind == HELLO_CLIENT_DATA && peer->stream < 2)
		d->accepted = data_accepted;
	else
		test_failed(__FILE__, __LINE__, "unexpected hello kind %u stream %u", peer->kind,
			    peer->stream);
	return true;
}

/* ---- Life ---- */

static void make_map(struct fake_node *n)
{
	struct map_node *node;
	struct map_group *g;
	struct map_volume *v;

	map_init(&n->map);
	n->map.version = 5;
	n->map.cluster = n->cluster;
	node = map_node_put(&n->map, 1);
	node->uuid = n->self;
	node->shards = 2;
	node->state = NODE_ACTIVE;
	node->incarnation = 1;
	strcpy(node->name, "n1");
	strcpy(node->fault_set, "n1");
	snprintf(node->address, sizeof(node->address), "127.0.0.1:%u", listener_port(n->listener));
	g = map_group_put(&n->map, 1);
	g->node = 1;
	g->incarnation = 1;
	g->state = GROUP_ACTIVE;
	v = map_volume_put(&n->map, 1);
	strcpy(v->name, "disk");
	uuid_make(&v->uuid);
	v->object_size = FAKE_OBJECT_SIZE;
	v->size = FAKE_OBJECTS * FAKE_OBJECT_SIZE;
	v->stripe_count = 4;
	v->copies = 1;
	v->min_in_sync = 1;
	v->state = VOLUME_LIVE;
	map_volume_grow(v, FAKE_OBJECTS);
	for (unsigned i = 0; i < FAKE_OBJECTS; i++) {
		struct map_object *o = &v->object[i];

		o->epoch = o->tenure = 1;
		o->member_count = 1;
		o->primary_incarnation = 1;
		o->member[0] = (struct map_member){
			.group = 1, .group_incarnation = 1, .gen = 1, .in = true};
		n->data[i] = xcalloc(1, FAKE_OBJECT_SIZE);
		n->applied[i] = xcalloc(1, REQUESTS_MAX);
	}
}

void fake_node_start(struct fake_node *n, struct loop *l, const struct fake_files *files)
{
	struct listener_config cfg = {
		.loop = l, .address = "127.0.0.1:0", .decide = decide, .data = n};

	memset(n, 0, sizeof(*n));
	n->loop = l;
	n->cluster = cfg.cluster = files->cluster;
	n->self = files->node;
	n->pool = cfg.pool = buf_pool_create(64u << 20);
	n->tls = cfg.tls = tls_ctx_create(files->ca, files->node_cert, files->node_key);
	EXPECT(n->tls != NULL);
	n->listener = listener_create(&cfg);
	EXPECT(n->listener != NULL);
	make_map(n);
}

void fake_node_stop(struct fake_node *n)
{
	listener_destroy(n->listener);
	tls_ctx_destroy(n->tls);
	map_fini(&n->map);
	for (unsigned i = 0; i < FAKE_OBJECTS; i++) {
		free(n->data[i]);
		free(n->applied[i]);
	}
}
