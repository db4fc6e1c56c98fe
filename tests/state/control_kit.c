/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/state/control_kit.h"

#include <pthread.h>
#include <time.h>

struct site site;
struct machine machine[MACHINES];
struct end end[64];
unsigned ends;

/* Holding the loop. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static bool held, released;

static void pause_fn(struct post *p)
{
	pthread_mutex_lock(&lock);
	held = true;
	pthread_cond_signal(&moved);
	while (!released)
		pthread_cond_wait(&moved, &lock);
	held = released = false;
	pthread_cond_signal(&moved);
	pthread_mutex_unlock(&lock);
}

void hold(void)
{
	static struct post post = {.fn = pause_fn};

	loop_post(site.loop, &post);
	pthread_mutex_lock(&lock);
	while (!held)
		pthread_cond_wait(&moved, &lock);
	pthread_mutex_unlock(&lock);
}

void let_go(void)
{
	pthread_mutex_lock(&lock);
	released = true;
	pthread_cond_signal(&moved);
	while (held)
		pthread_cond_wait(&moved, &lock);
	pthread_mutex_unlock(&lock);
}

void turn(void)
{
	let_go();
	hold();
}

/* The loops sleep until their next timer: a turn per look would only burn the processor. */
void later(void)
{
	struct timespec nap = {.tv_nsec = 1000000};

	let_go();
	nanosleep(&nap, NULL);
	hold();
}

double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Nodes. */

static void on_delta(void *ctx, uint8_t *bytes, size_t len)
{
	struct machine *m = ctx;
	struct reader r = reader_init(bytes, len);

	EXPECT_OK(map_delta_apply(&m->map, &r, NULL, NULL));
	m->deltas++;
	free(bytes);
}

static void on_call(void *ctx, uint64_t ticket, const char *method, const char *path,
		    const char *json)
{
	struct machine *m = ctx;

	m->calls++;
	m->ticket = ticket;
	snprintf(m->path, sizeof(m->path), "%s %s", method, path);
	snprintf(m->json, sizeof(m->json), "%s", json);
}

static void on_nodes(void *ctx, const struct control_nodes *list)
{
	struct machine *m = ctx;

	m->told = *list;
}

static const struct control_hooks hooks = {.delta = on_delta, .call = on_call, .nodes = on_nodes};

void node_start(uint16_t id, bool bootstrap, const char *dir)
{
	struct machine *m = &machine[id];
	struct control_config cfg = {.loop = site.loop,
				     .pool = site.pool,
				     .node = id,
				     .raft_dir = dir,
				     .bootstrap = bootstrap,
				     .hooks = &hooks,
				     .ctx = m};

	memset(m, 0, sizeof(*m));
	m->id = id;
	map_init(&m->map);
	EXPECT_OK(control_start(&cfg, &m->control));
}

void on_stopped(void *ctx)
{
	struct machine *m = ctx;

	m->stopped = true;
	m->control = NULL;
}

static void on_frame(struct conn *c, const struct frame *f)
{
	struct end *e = conn_data(c);

	if (!e->m->control)
		return;
	if (e->client)
		control_client_frame(e->m->control, c, f);
	else
		control_frame(e->m->control, e->peer, f);
}

static void on_closed(struct conn *c, int reason)
{
	struct end *e = conn_data(c);

	e->closed = true;
	if (!e->m->control)
		return;
	if (e->client)
		control_client_down(e->m->control, c);
	else
		control_peer_down(e->m->control, e->peer, reason);
}

const struct conn_ops node_ops = {.on_frame = on_frame, .on_closed = on_closed};

struct end *end_make(struct machine *m, int fd, const struct conn_ops *ops)
{
	struct end *e = &end[ends++];

	EXPECT(ends < ARRAY_LEN(end));
	*e = (struct end){.m = m};
	e->conn = conn_create(site.loop, site.pool, fd, NULL, 1 << 20, ops, e);
	return e;
}

/* Returns a's end. */
struct end *connect_nodes(uint16_t a, uint16_t b)
{
	return connect_process(a, b, 1);
}

struct end *connect_process(uint16_t a, uint16_t b, uint32_t incarnation)
{
	struct end *x, *y;
	int fd[2];

	fixture_socketpair(fd);
	x = end_make(&machine[a], fd[0], &node_ops);
	y = end_make(&machine[b], fd[1], &node_ops);
	x->peer = b;
	y->peer = a;
	control_peer_up(machine[a].control, b, incarnation, x->conn);
	control_peer_up(machine[b].control, a, 1, y->conn);
	return x;
}

void on_asked(struct wait *w, int rc)
{
	struct ask *a = container_of(w, struct ask, wait);

	EXPECT(!a->done);
	a->done = true;
	a->rc = rc;
}

void propose(uint16_t node, struct ask *a, struct command *cmd, uint64_t deadline_ms)
{
	memset(a, 0, sizeof(*a));
	a->wait.resume = on_asked;
	EXPECT_EQ(control_propose(machine[node].control, &a->p, cmd, deadline_ms, &a->wait),
		  PENDING);
	EXPECT(!a->done); /* never from inside the call */
}

void must(uint16_t node, struct command *cmd)
{
	static struct ask a;

	propose(node, &a, cmd, 5000);
	UNTIL(a.done);
	EXPECT_OK(a.rc);
	EXPECT_OK(a.p.result.code);
}

static struct uuid uuid(uint64_t n)
{
	struct uuid u = {{1}};

	put_be64(u.b + 8, n);
	return u;
}

struct command setting(const char *key, const char *value)
{
	struct command c = {.kind = CMD_SETTING};

	strcpy(c.setting.key, key);
	strcpy(c.setting.value, value);
	return c;
}

void cluster_init(void)
{
	struct command c = {.kind = CMD_CLUSTER_INIT};

	c.init.cluster = uuid(1);
	strcpy(c.init.name, "test");
	c.init.node.uuid = uuid(2);
	strcpy(c.init.node.name, "n1");
	strcpy(c.init.node.address, "a1");
	c.init.node.roles = ROLE_STORAGE | ROLE_VOTER;
	must(1, &c);
}

/* Node and group `id` in the map, active. */
void node_join(uint16_t id)
{
	struct command c;

	if (id > 1) {
		c = (struct command){.kind = CMD_TOKEN_ADD};
		memset(c.token.sha256, 'a', 64);
		c.token.expires_ms = UINT64_MAX;
		must(1, &c);
		c = (struct command){.kind = CMD_NODE_ADD};
		c.node_add.node.uuid = uuid(10 + id);
		snprintf(c.node_add.node.name, sizeof(c.node_add.node.name), "n%u", id);
		snprintf(c.node_add.node.address, sizeof(c.node_add.node.address), "a%u", id);
		c.node_add.node.roles = ROLE_STORAGE | ROLE_VOTER;
		memset(c.node_add.token_sha256, 'a', 64);
		must(1, &c);
	}
	c = (struct command){.kind = CMD_NODE_START};
	c.node_start.node = id;
	c.node_start.incarnation = 1;
	c.node_start.shards = 1;
	c.node_start.roles = ROLE_STORAGE | ROLE_VOTER;
	snprintf(c.node_start.address, sizeof(c.node_start.address), "a%u", id);
	must(1, &c);
	c = (struct command){.kind = CMD_GROUP_ADD};
	c.group_add.uuid = uuid(100 + id);
	c.group_add.node = id;
	c.group_add.incarnation = 1;
	c.group_add.raw_bytes = 1ull << 40;
	must(1, &c);
	c = (struct command){.kind = CMD_GROUP_STATE};
	c.group_state.group = id;
	c.group_state.state = GROUP_ACTIVE;
	c.group_state.free_steps = 20;
	c.group_state.incarnation = 1;
	must(1, &c);
}

void cluster_start(uint16_t n, const char *(*dir)(uint16_t node))
{
	ends = 0;
	site_start(&site, 8 << 20);
	hold();
	for (uint16_t i = 1; i <= n; i++)
		node_start(i, i == 1, dir(i));
	for (uint16_t i = 1; i <= n; i++)
		for (uint16_t k = (uint16_t)(i + 1); k <= n; k++)
			connect_nodes(i, k);
	cluster_init();
	for (uint16_t i = 1; i <= n; i++)
		node_join(i);
}

void cut_off(uint16_t id)
{
	for (unsigned i = 0; i < ends; i++)
		if (end[i].m == &machine[id] && !end[i].closed)
			conn_close(end[i].conn, -ERR_CLOSED);
}

bool all_stopped(void)
{
	for (unsigned i = 1; i < MACHINES; i++)
		if (machine[i].control)
			return false;
	for (unsigned i = 0; i < ends; i++)
		if (!end[i].closed)
			return false;
	return true;
}

void finish(void)
{
	for (unsigned i = 1; i < MACHINES; i++)
		if (machine[i].control)
			control_stop(machine[i].control, on_stopped);
	for (unsigned i = 0; i < ends; i++)
		if (!end[i].closed)
			conn_close(end[i].conn, -ERR_CLOSED);
	UNTIL(all_stopped());
	let_go();
	site_stop(&site);
	for (unsigned i = 1; i < MACHINES; i++) {
		if (machine[i].id)
			map_fini(&machine[i].map);
		memset(&machine[i], 0, sizeof(machine[i]));
	}
}

void expect_same_map(const struct map *a, const struct map *b)
{
	struct writer wa = writer_init_heap(), wb = writer_init_heap();

	map_delta_encode(a, 0, NULL, 0, &wa);
	map_delta_encode(b, 0, NULL, 0, &wb);
	EXPECT_EQ(wa.len, wb.len);
	EXPECT_MEM(wa.data, wb.data, wa.len);
	writer_free(&wa);
	writer_free(&wb);
}
