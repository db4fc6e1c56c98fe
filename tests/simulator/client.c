/* SPDX-License-Identifier: Apache-2.0 */
/* What clients do and saw. A driver lives in the process of its client, a compute host's or a
 * node's, and works through the product's client; what it began and what it was told is the
 * simulator's to keep. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/remote.h"
#include "node/base/err.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/peek.h"
#include "tests/simulator/sim.h"

#define RUN_BLOCKS     8u /* of one operation, ballast apart */
#define SECTORS        (BLOCK_SIZE / SIM_SECTOR)
#define BALLAST_BLOCK  12032u
#define BALLAST_BLOCKS 128u
#define BALLAST_FEW    4u
#define BALLAST_MANY   34u /* up to the end of the object */
#define CLIENT_ADDRESS 16u /* + index */

/* Blocks in play, of each object: neighbours, others in the next page, in other regions. */
static const uint32_t few[] = {0, 1, 2, 3, 62, 63, 64, 65, 70, 4096, 4097, 9000};
#define TRIM_FROM 9000u /* trims only where a search decides: zeros do not say who wrote them */
#define WIDE      SIM_HOT_MAX /* so that what was written once stays for a while */

const uint32_t *sim_hot(unsigned *count)
{
	static uint32_t wide[WIDE];

	*count = ARRAY_LEN(few);
	if (!sim.plan.wide)
		return few;
	for (unsigned i = 0; i < WIDE; i++)
		wide[i] = i < 128   ? i	       /* two pages, */
			  : i < 256 ? i + 3904 /* the last of a region and the first of the next, */
				    : i - 256 + TRIM_FROM; /* and another */
	*count = WIDE;
	return wide;
}

/* ---- History: of the simulator, not of any process ---- */

struct event {
	struct linear_op op;
	uint32_t reg; /* sector in the volume */
};
static struct event *events;
static size_t event_count, event_cap;
static uint64_t values;

static size_t history_add(uint32_t reg, uint64_t value, uint64_t invoked, uint64_t returned,
			  bool write)
{
	if (event_count == event_cap) {
		event_cap = event_cap ? event_cap * 2 : 4096;
		simhost_keep_begin();
		events = xrealloc(events, event_cap * sizeof(*events));
		simhost_keep_end();
	}
	events[event_count] = (struct event){{value, invoked, returned, write}, reg};
	return event_count++;
}

void sim_history_clear(void)
{
	free(events);
	events = NULL;
	event_count = event_cap = 0;
	values = 0;
}

static int by_register(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	return x->reg < y->reg ? -1 : x->reg > y->reg;
}

static void history_tell(const struct linear_op *ops, size_t n)
{
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, "  %10.3f … %10.3f %s %llu\n", (double)ops[i].invoked / 1000,
			ops[i].returned == LINEAR_PENDING ? -1 : (double)ops[i].returned / 1000,
			ops[i].write ? "write" : "read", (unsigned long long)ops[i].value);
}

static int by_invoke(const void *a, const void *b)
{
	const struct linear_op *x = a, *y = b;

	return x->invoked < y->invoked ? -1 : x->invoked > y->invoked;
}

const char *sim_history_check(void)
{
	struct linear_op *ops = xcalloc(event_count + 1, sizeof(*ops));
	static char text[200];

	text[0] = 0;
	qsort(events, event_count, sizeof(*events), by_register);
	for (size_t i = 0, k; i < event_count && !text[0]; i = k) {
		for (k = i; k < event_count && events[k].reg == events[i].reg; k++)
			ops[k - i] = events[k].op;
		if (linear_check(ops, k - i))
			continue;
		snprintf(text, sizeof(text), "object %u, block %u, sector %u: not linearizable",
			 events[i].reg / ((uint32_t)OBJECT_SIZE_MIN / SIM_SECTOR),
			 events[i].reg % ((uint32_t)OBJECT_SIZE_MIN / SIM_SECTOR) / SECTORS,
			 events[i].reg % SECTORS);
		if (sim.verbose) {
			qsort(ops, k - i, sizeof(*ops), by_invoke);
			history_tell(ops, k - i);
		}
	}
	free(ops);
	return text[0] ? text : NULL;
}

/* ---- The driver ---- */

enum driver_state { DRIVER_OPENING, DRIVER_OPEN, DRIVER_CLOSING };

struct driver {
	struct sim_client *c;
	unsigned life;
	struct loop *loop;
	struct client *client;
	struct volume *volume;
	enum driver_state state;
	struct timer timer; /* opening, reopening */
	struct timer next;  /* plan.gap_us: the next operation, whatever became of those before */
	struct wait closed;
	bool fenced;
	unsigned open, to_trim; /* to_trim: it was told that there is no space */
	uint64_t held_until;
};

struct op {
	struct volume_io io;
	struct wait wait;
	struct driver *d;
	struct timer pause; /* until the client goes on */
	struct slice slices[4];
	struct buf *buf;
	uint64_t value, invoked;
	size_t first; /* of its events, if it writes */
	unsigned registers;
	bool after_fence, last;
};

static void driver_next(struct driver *d);
static void op_done(struct wait *w, int rc);

/* What of a range counts as registers: every sector if some writes are of sectors, else each
 * block's first, the others being equal; of ballast, its ends. */
static unsigned registers_of(const struct op *op, uint32_t *out)
{
	uint32_t first = (uint32_t)(op->io.offset / SIM_SECTOR),
		 n = (uint32_t)(op->io.length / SIM_SECTOR);
	unsigned k = 0;

	if (op->io.length >= BALLAST_BLOCKS * BLOCK_SIZE) {
		out[k++] = first;
		out[k++] = first + n - SECTORS;
		return k;
	}
	for (uint32_t i = 0; i < n; i++)
		if (sim.plan.partial || (first + i) % SECTORS == 0)
			out[k++] = first + i;
	return k;
}

static void op_note_writes(struct op *op)
{
	uint32_t reg[RUN_BLOCKS * SECTORS];

	op->registers = registers_of(op, reg);
	op->first = event_count;
	for (unsigned i = 0; i < op->registers; i++)
		history_add(reg[i], op->value, op->invoked, LINEAR_PENDING, true);
}

static const uint8_t *op_byte(const struct op *op, uint64_t at)
{
	for (unsigned i = 0; i < op->io.slice_count; i++) {
		if (at < op->slices[i].len)
			return op->slices[i].data + at;
		at -= op->slices[i].len;
	}
	return NULL;
}

static void op_note_reads(struct op *op)
{
	uint32_t reg[RUN_BLOCKS * SECTORS];
	unsigned n = registers_of(op, reg);

	for (unsigned i = 0; i < n; i++) {
		uint64_t at = (uint64_t)reg[i] * SIM_SECTOR - op->io.offset;
		const uint8_t *p = op_byte(op, at);
		uint64_t value;

		if (!p) {
			sim_fail("%s: a read of %llu bytes gave less", op->d->c->name,
				 (unsigned long long)op->io.length);
			return;
		}
		value = get_le64(p);
		history_add(reg[i], value, op->invoked, simhost_now_us(), false);
		for (unsigned k = 1; k < SECTORS && !sim.plan.partial; k++)
			if (get_le64(op_byte(op, at + k * SIM_SECTOR)) != value)
				sim_fail("%s: half of a block at %llu is of another write",
					 op->d->c->name, (unsigned long long)(op->io.offset + at));
	}
}

static void op_free(struct op *op)
{
	for (unsigned i = 0; i < op->io.slice_count && op->io.kind == IO_READ; i++)
		slice_unref(&op->slices[i]);
	if (op->buf)
		buf_unref(op->buf);
	timer_fini(&op->pause);
	free(op);
}

static void on_pause_end(struct timer *t)
{
	struct op *op = container_of(t, struct op, pause);
	struct driver *d = op->d;

	op_free(op);
	driver_next(d);
}

static void driver_reopen(struct driver *d);

/* Nothing was begun: as if it had not been asked for. */
static void op_took_back(struct op *op)
{
	for (unsigned i = 0; i < op->registers; i++) { /* a read of nothing, at no time, nowhere */
		events[op->first + i].op = (struct linear_op){.value = 0};
		events[op->first + i].reg = UINT32_MAX;
	}
}

static void op_ended_well(struct op *op)
{
	bool write = op->io.kind != IO_READ;

	sim.counts.ops++;
	if (write) {
		sim.counts.writes++;
		for (unsigned i = 0; i < op->registers; i++)
			events[op->first + i].op.returned = simhost_now_us();
		if (op->after_fence)
			sim_fail("%s: a write begun when everybody knew it was fenced was done",
				 op->d->c->name);
	} else {
		sim.counts.reads++;
		op_note_reads(op);
	}
}

static void op_failed(struct op *op, int rc)
{
	struct driver *d = op->d;

	switch (rc) {
	case -ERR_HELD:
		sim.counts.held++;
		op_took_back(op);
		d->held_until = simhost_now_us() + sim_rand(100, 1500) * SIM_MS;
		break;
	case -ERR_FENCED:
		d->fenced = true; /* done, or not, or later: nobody can say */
		sim.last_again |= op->last;
		break;
	case -ERR_DAMAGED:
		if (!sim.plan.rot && !sim.plan.eio && !sim.plan.device)
			sim_fail("%s: a block cannot be produced, and no disk was hurt",
				 d->c->name);
		d->c->left++;
		break;
	case -ERR_FULL:
		sim.counts.full++;
		if (!sim.plan.tiny_data || op->last || op->io.kind != IO_WRITE)
			sim_fail("%s: kind %u at %llu, %llu bytes, is told that there is no space",
				 d->c->name, op->io.kind, (unsigned long long)op->io.offset,
				 (unsigned long long)op->io.length);
		d->to_trim = (unsigned)sim_rand(1, 12);
		break;
	default:
		sim_fail("%s: kind %u at %llu, %llu bytes, is answered %s", d->c->name, op->io.kind,
			 (unsigned long long)op->io.offset, (unsigned long long)op->io.length,
			 err_name(rc));
	}
}

static void op_done(struct wait *w, int rc)
{
	struct op *op = container_of(w, struct op, wait);
	struct driver *d = op->d;

	d->open--;
	d->c->open--;
	if (rc)
		op_failed(op, rc);
	else
		op_ended_well(op);
	if (d->fenced && d->state == DRIVER_OPEN)
		driver_reopen(d);
	timer_set(&op->pause, sim_chance(0.2) ? sim_rand(1, 300) * SIM_MS : sim_rand(0, 3000));
}

/* A2: every node runs, and each of its shards knows that the attachment is revoked. */
static bool everybody_knows(const struct volume *v)
{
	uint32_t attachment = sim_peek_attachment(v);

	if (!attachment)
		return false;
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[i];

		if (!s->member)
			continue;
		if (!sim_node_serves(s))
			return false;
		for (unsigned k = 0; k < s->node->shard_count; k++) {
			const struct map *m = &s->node->shards[k].map;
			const struct map_attachment *a = map_attachment(m, attachment);

			if (a ? !a->revoked : m->next_attachment <= attachment)
				return false;
		}
	}
	return true;
}

static void payload_fill(struct op *op)
{
	uint32_t len = (uint32_t)op->io.length;

	op->buf = buf_heap(len);
	memset(op->buf->data, 0, len);
	if (!sim.plan.compression || sim_chance(0.5)) { /* what LZ4 cannot make smaller */
		struct rng r;

		rng_seed(&r, op->value);
		for (uint32_t i = 0; i < len; i += BLOCK_SIZE)
			rng_fill(&r, op->buf->data + i, MIN(len - i, i ? 64 : BLOCK_SIZE));
		for (uint32_t i = 1; i < len / BLOCK_SIZE; i++) /* alike, for dedup to find */
			memcpy(op->buf->data + i * BLOCK_SIZE, op->buf->data, BLOCK_SIZE);
	}
	for (uint32_t i = 0; i + SIM_SECTOR <= len; i += SIM_SECTOR)
		put_le64(op->buf->data + i, op->value);
	op->slices[0] = (struct slice){.buf = op->buf, .data = op->buf->data, .len = len};
	op->io.slice_count = 1;
}

static void op_begin(struct driver *d, uint8_t kind, uint64_t offset, uint64_t length, bool last)
{
	struct op *op = xcalloc(1, sizeof(*op));
	int rc;

	op->d = d;
	op->last = last;
	op->wait.resume = op_done;
	timer_init(&op->pause, d->loop, on_pause_end);
	op->io.kind = kind;
	op->io.offset = offset;
	op->io.length = length;
	op->io.slices = op->slices;
	op->io.slices_max = ARRAY_LEN(op->slices);
	op->value = kind == IO_WRITE ? ++values : 0;
	op->invoked = simhost_now_us();
	op->after_fence = kind != IO_READ && everybody_knows(d->volume);
	if (kind == IO_WRITE)
		payload_fill(op);
	if (kind != IO_READ)
		op_note_writes(op);
	d->open++;
	d->c->open++;
	rc = volume_io(d->volume, &op->io, &op->wait);
	if (rc != PENDING)
		op_done(&op->wait, rc);
}

static unsigned ballast_places(void)
{
	return sim.plan.full ? BALLAST_MANY : sim.plan.tiny_log ? BALLAST_FEW : 0;
}

static void ballast_begin(struct driver *d, uint8_t kind, uint32_t object, unsigned place, bool last)
{
	uint64_t block = BALLAST_BLOCK + place * BALLAST_BLOCKS;

	op_begin(d, kind, object * OBJECT_SIZE_MIN + block * BLOCK_SIZE, BALLAST_BLOCKS * BLOCK_SIZE, last);
}

/* Fills logs; in a full plan disk groups too, and makes room again. */
static void ballast_draw(struct driver *d, uint8_t kind, uint32_t object)
{
	unsigned place = (unsigned)sim_rand(0, ballast_places() - 1);

	if (sim.plan.full && kind == IO_WRITE && d->to_trim) {
		d->to_trim--;
		kind = sim_chance(0.8) ? IO_TRIM : IO_ZEROES;
	}
	sim.counts.trims += kind == IO_TRIM;
	ballast_begin(d, kind, object, place, false);
}

static void op_draw(struct driver *d)
{
	unsigned count;
	const uint32_t *hot = sim_hot(&count);
	uint32_t object = (uint32_t)sim_rand(0, sim.plan.objects - 1),
		 at = (uint32_t)sim_rand(0, count - 1);
	uint64_t base = object * OBJECT_SIZE_MIN, offset = hot[at] * (uint64_t)BLOCK_SIZE, length;
	uint8_t kind = sim_chance(0.55) ? IO_WRITE : IO_READ;
	uint32_t n = 1;

	if (simhost_now_us() < d->held_until)
		kind = IO_READ;
	if (sim.plan.tiny_log && sim_chance(sim.plan.ballast ? sim.plan.ballast : 0.08)) {
		ballast_draw(d, kind, object);
		return;
	}
	while (n < RUN_BLOCKS && at + n < count && hot[at + n] == hot[at] + n && sim_chance(0.4))
		n++;
	length = (uint64_t)n * BLOCK_SIZE;
	if (sim.plan.trims && kind == IO_WRITE && hot[at] >= TRIM_FROM && sim_chance(0.4)) {
		kind = sim_chance(0.5) ? IO_TRIM : IO_ZEROES;
	} else if (sim.plan.partial && sim_chance(0.25)) {
		uint64_t first = sim_rand(0, 7) * SIM_SECTOR, less = sim_rand(0, 3) * SIM_SECTOR;

		offset += first;
		length -= first;
		length = length > less ? length - less : SIM_SECTOR;
	}
	op_begin(d, kind, base + offset, length, false);
}

static void driver_next(struct driver *d)
{
	/* The holder of an exclusive volume lets others have it. */
	if (sim.plan.exclusive && d->state == DRIVER_OPEN && d->c->left && !d->open &&
	    sim_chance(0.1)) {
		driver_reopen(d);
		return;
	}
	if (sim.plan.gap_us && !sim.faults_over)
		return;
	if (simhost_now_us() < sim.quiet_until && !sim.faults_over) {
		timer_set(&d->next, sim.quiet_until - simhost_now_us());
		return;
	}
	while (d->state == DRIVER_OPEN && !d->fenced && d->c->left && d->open < sim.plan.depth) {
		d->c->left--;
		op_draw(d);
	}
}

static void on_next(struct timer *t)
{
	struct driver *d = container_of(t, struct driver, next);
	bool quiet = simhost_now_us() < sim.quiet_until;

	if (!quiet && d->state == DRIVER_OPEN && !d->fenced && d->c->left && d->open < sim.plan.depth) {
		d->c->left--;
		op_draw(d);
	}
	if (sim.faults_over || !sim.plan.gap_us)
		driver_next(d);
	else
		timer_set(&d->next, sim_rand(0, 2 * sim.plan.gap_us));
}

/* ---- Opening and closing ---- */

static void on_timer(struct timer *t)
{
	struct driver *d = container_of(t, struct driver, timer);

	if (d->state != DRIVER_OPENING)
		return;
	if (volume_open(d->client, "vol", !sim.plan.exclusive, &d->volume)) {
		timer_set(&d->timer, 20 * SIM_MS);
		return;
	}
	d->state = DRIVER_OPEN;
	d->fenced = false;
	driver_next(d);
}

static void on_closed(struct wait *w, int rc)
{
	struct driver *d = container_of(w, struct driver, closed);

	d->state = DRIVER_OPENING;
	timer_set(&d->timer, sim_rand(1, 500) * SIM_MS);
}

static void driver_reopen(struct driver *d)
{
	d->state = DRIVER_CLOSING;
	d->closed.resume = on_closed;
	volume_close(d->volume, &d->closed);
}

static void driver_start(struct sim_client *c, struct loop *loop, struct client *client)
{
	struct driver *d = xcalloc(1, sizeof(*d));

	d->c = c;
	d->loop = loop;
	d->client = client;
	c->driver = d;
	c->open = 0;
	timer_init(&d->timer, loop, on_timer);
	timer_init(&d->next, loop, on_next);
	timer_set(&d->timer, 0);
	if (sim.plan.gap_us)
		timer_set(&d->next, 0);
}

/* ---- Clients on hosts of their own ---- */

struct client_process {
	struct sim_client *c;
	struct loop *loop;
	struct remote *remote;
};

static void client_ready(void *arg)
{
	struct client_process *p = arg;

	driver_start(p->c, p->loop, remote_client(p->remote));
}

static void client_main(void *arg)
{
	struct client_process *p = xcalloc(1, sizeof(*p));
	struct sim_client *c = arg;
	struct remote_config cfg = {.cluster = sim.cluster,
				    .plain_data = true,
				    .ops = 64,
				    .ready = client_ready,
				    .ctx = p};
	char holder[96];

	p->c = c;
	p->loop = loop_create("client", 16);
	cfg.loop = p->loop;
	cfg.pool = buf_pool_create(128u << 20);
	cfg.tls = tls_ctx_create("", "", "");
	snprintf(holder, sizeof(holder), "client:%s host-%s", c->name, c->name);
	cfg.holder = xstrdup(holder);
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		snprintf(cfg.addresses[cfg.address_count++], sizeof(cfg.addresses[0]), "%s",
			 sim.node[i].listen);
	p->remote = remote_create(&cfg);
	loop_run(p->loop);
}

/* Late copies of requests (A1). */

struct copy {
	struct vproc *proc;
	int sock;
	size_t n;
	uint8_t bytes[];
};

static size_t frame_length(const uint8_t *p, size_t n)
{
	return n < WIRE_HEADER_SIZE ? 0 : WIRE_HEADER_SIZE + get_le32(p + 16) + get_le32(p + 20);
}

static void copy_arrives(void *arg)
{
	struct copy *k = arg;

	if (vnet_inject(k->proc, k->sock, k->bytes, k->n)) {
		sim.counts.duplicates++;
		sim_trace("a request comes again, late");
	}
	keep_free(k);
}

static void on_frame(void *arg, int sock, const uint8_t *p, size_t n)
{
	struct copy *k;

	if (get_le16(p + 6) != OP_IO || sim.faults_over || !sim_chance(sim.plan.duplicate))
		return;
	k = keep_alloc(sizeof(*k) + n);
	k->proc = vproc_current();
	k->sock = sim_chance(0.5) ? sock : 0;
	k->n = n;
	memcpy(k->bytes, p, n);
	simhost_at(sim_chance(0.5) ? sim_rand(1, 3000) * SIM_MS : sim_rand(10, 5000), k->proc,
		   copy_arrives, keep_free, k);
}

static void supervise(void *arg)
{
	struct sim_client *c = arg;

	if (c->node ? !c->driver && sim_node_serves(&sim.node[c->node])
		    : !c->proc && !c->broken && simhost_now_us() >= c->next_start_us)
		sim_client_start(c);
	simhost_at(sim_rand(20, 100) * SIM_MS, NULL, supervise, NULL, c);
}

struct start_post {
	struct post post;
	struct sim_client *c;
};

static void start_on_shard(struct post *post)
{
	struct start_post *p = container_of(post, struct start_post, post);
	struct shard *s = &sim_this_node()->node->shards[0];
	struct sim_client *c = p->c;

	free(p);
	driver_start(c, s->loop, s->client);
}

void sim_client_start(struct sim_client *c)
{
	struct start_post *p;
	char tag[64];

	c->open = 0;
	if (c->node) {
		p = xcalloc(1, sizeof(*p));
		p->post.fn = start_on_shard;
		p->c = c;
		c->driver = p; /* something: it is on its way */
		loop_post(sim.node[c->node].node->shards[0].loop, &p->post);
		return;
	}
	c->driver = NULL;
	c->proc = vproc_spawn(c->host, "client", client_main, c);
	snprintf(tag, sizeof(tag), "client:%s", c->name);
	vproc_set_tag(c->proc, tag);
	c->tap = (struct vnet_tap){.parse = frame_length, .frame = on_frame, .arg = c};
	vproc_set_tap(c->proc, &c->tap);
	sim_trace("%s starts", c->name);
}

void sim_client_kill(struct sim_client *c, bool power)
{
	if (c->node || !c->proc)
		return;
	sim_trace("%s %s", c->name, power ? "loses power" : "is killed");
	if (power)
		vhost_power_cut(c->host);
	else
		vproc_kill(c->proc);
	c->proc = NULL;
	c->driver = NULL;
	c->open = 0;
	c->next_start_us = simhost_now_us() + sim_rand(1, 2000) * SIM_MS;
}

void sim_clients_create(void)
{
	unsigned total = MIN(sim.plan.clients + sim.plan.gateways, SIM_CLIENTS_MAX);

	for (unsigned i = 0; i < total; i++) {
		struct sim_client *c = &sim.client[i];

		c->index = i;
		c->left = sim.plan.ops;
		if (i >= sim.plan.clients)
			c->node = sim.plan.gateways > 1
					  ? 1 + (i - sim.plan.clients) % sim.plan.nodes
					  : (unsigned)sim_rand(1, sim.plan.nodes);
		snprintf(c->name, sizeof(c->name), "c%u%s", i, c->node ? "-in-node" : "");
		if (!c->node) {
			c->host = vhost_create(c->name);
			vhost_set_address(c->host, CLIENT_ADDRESS + i);
		}
		supervise(c);
	}
}

bool sim_clients_done(void)
{
	if (sim.last_due)
		return false;
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++) {
		struct sim_client *c = &sim.client[i];
		const struct sim_node *in = &sim.node[c->node];

		if (!c->name[0] || c->broken || (c->node && (in->broken || in->gone)))
			continue;
		if (c->left || c->open)
			return false;
	}
	return true;
}

static bool driver_lives(const struct sim_client *c)
{
	return c->driver && (c->node ? sim_node_serves(&sim.node[c->node]) : c->proc != NULL);
}

struct last_post {
	struct post post;
	struct sim_client *c;
	enum sim_last what;
};

static void last_of_object(struct driver *d, uint32_t object, enum sim_last what)
{
	static const uint8_t kind[] = {[LAST_TRIM] = IO_TRIM, [LAST_WRITE] = IO_WRITE, [LAST_READ] = IO_READ};
	unsigned count, places = ballast_places();
	const uint32_t *hot = sim_hot(&count);
	uint64_t base = object * OBJECT_SIZE_MIN;

	for (unsigned i = 0; i < count && what == LAST_READ; i++)
		op_begin(d, IO_READ, base + hot[i] * (uint64_t)BLOCK_SIZE, BLOCK_SIZE, true);
	for (unsigned i = 0; i < (what == LAST_WRITE ? places / 6 : places); i++)
		ballast_begin(d, kind[what], object, i, true);
}

static void last_on_loop(struct post *post)
{
	struct last_post *p = container_of(post, struct last_post, post);
	struct driver *d = p->c->driver;

	sim.last_due = false;
	for (uint32_t o = 0; o < sim.plan.objects; o++)
		last_of_object(d, o, p->what);
	free(p);
}

static struct sim_client *client_open(void)
{
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++) {
		struct sim_client *c = &sim.client[i];

		if (driver_lives(c) && ((struct driver *)c->driver)->state == DRIVER_OPEN)
			return c;
	}
	return NULL;
}

bool sim_client_ready(void)
{
	return client_open() != NULL;
}

void sim_clients_last(enum sim_last what)
{
	struct last_post *p = xcalloc(1, sizeof(*p));

	p->post.fn = last_on_loop;
	p->c = client_open();
	p->what = what;
	sim.last_due = true;
	loop_post(((struct driver *)p->c->driver)->loop, &p->post);
}

struct told {
	char *text;
	size_t size, at;
};

static void tell_op(void *arg, const char *volume, const char *kind, const char *waits_for,
		    uint64_t offset, uint64_t age_us)
{
	struct told *t = arg;

	if (t->at + 160 < t->size)
		t->at += (size_t)snprintf(
			t->text + t->at, t->size - t->at, "\n   %s at %llu waits for %s, %.1f ms",
			kind, (unsigned long long)offset, waits_for, (double)age_us / 1000);
}

void sim_clients_describe(char *text, size_t size)
{
	size_t at = 0;

	text[0] = 0;
	for (unsigned i = 0; i < SIM_CLIENTS_MAX && at + 120 < size; i++) {
		struct sim_client *c = &sim.client[i];
		struct driver *d = driver_lives(c) ? c->driver : NULL;
		struct told t = {text, size, at};

		if (!c->name[0])
			continue;
		t.at += (size_t)snprintf(text + at, size - at,
					 "\n client %s: %u left, %u open, state %d", c->name,
					 c->left, c->open, d ? (int)d->state : -1);
		if (d)
			client_ops(d->client, tell_op, &t);
		at = t.at;
	}
}
