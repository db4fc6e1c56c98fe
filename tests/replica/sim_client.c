/* SPDX-License-Identifier: Apache-2.0 */
/* Clients as client/ is one: routed by some node's map, patient, and repeating the same request
 * number until they are answered. Requests and replies get lost, and some requests arrive a second
 * time, late. */
#include "tests/replica/sim.h"

#include <stdio.h>
#include <stdlib.h>

#define BLOCKS 12u
/* Blocks in play: a few neighbours, others in the next page, in another region. */
static const uint32_t hot[BLOCKS] = {0, 1, 2, 3, 62, 63, 64, 65, 70, 4096, 4097, 9000};

struct client;

struct op {
	struct list link;
	struct client *c;
	bool after_fence; /* begun when everybody knew that the client is fenced */
	uint8_t kind;
	uint32_t object, offset, length;
	uint64_t value, number, invoked_us;
	unsigned tries;
	uint64_t next_try_us;
};

struct client {
	unsigned index;
	uint64_t next_number;
	unsigned left, open;
	struct list ops;
};

/* One copy of a request at one node. */
struct request {
	struct wait wait;
	struct io_exec io;
	struct io_request q;
	struct io_reply a;
	struct op *op; /* NULL: nobody listens (a late copy) */
	uint64_t op_number;
	struct client *c;
	struct sim_proc *p;
	unsigned life;
	uint64_t word[IO_MAX_BYTES / SIM_SECTOR / 8];
};

static struct client clients[8];
static uint64_t values, retries;
static struct list all_requests;
static struct request *kept; /* a copy that a case has arrive when it wants */
static bool keep_next;

static struct op *op_by_number(struct client *c, uint64_t number)
{
	struct op *op;

	list_for_each(op, &c->ops, link) if (op->number == number) return op;
	return NULL;
}

static void client_next(void *arg);
static void op_try(void *arg);

struct again {
	struct client *c;
	uint64_t number;
};

static void again_drop(void *arg)
{
	free(arg);
}

static void again_fire(void *arg)
{
	struct again *a = arg;
	struct op *op = op_by_number(a->c, a->number);

	free(a);
	if (op && sim.now_us >= op->next_try_us)
		op_try(op);
}

static void op_later(struct op *op, uint64_t us)
{
	struct again *a = xcalloc(1, sizeof(*a));

	a->c = op->c;
	a->number = op->number;
	op->next_try_us = sim.now_us + us;
	sim_at(us, NULL, again_fire, again_drop, a);
}

static uint64_t low_water(struct client *c)
{
	uint64_t low = c->next_number;
	struct op *op;

	list_for_each(op, &c->ops, link) low = MIN(low, op->number);
	return low;
}

static void op_finish(struct op *op, const uint64_t *words, uint64_t returned_us)
{
	struct client *c = op->c;
	uint32_t sectors = op->length / SIM_SECTOR, first = op->offset / SIM_SECTOR;
	bool write = op->kind != IO_READ;

	for (uint32_t i = 0; i < sectors; i++) {
		struct sim_op_record r = {.value = write ? op->value : words[i],
					  .invoked_us = op->invoked_us,
					  .returned_us = returned_us,
					  .object = op->object,
					  .sector = first + i,
					  .write = write};
		sim_history_add(&r);
	}
	sim.ops_done++;
	sim.reads_done += !write;
	list_del(&op->link);
	free(op);
	c->open--;
	sim_at(sim_chance(0.2) ? sim_rand(1000, 300000) : sim_rand(0, 3000), NULL, client_next,
	       NULL, c);
}

struct answer {
	struct client *c;
	uint64_t number;
	uint8_t status;
	uint64_t words[1];
};

static void answer_drop(void *arg)
{
	free(arg);
}

static void answer_arrives(void *arg)
{
	struct answer *a = arg;
	struct op *op = op_by_number(a->c, a->number);

	if (!op) { /* answered already, by another copy */
		free(a);
		return;
	}
	switch (a->status) {
	case IO_OK:
		if (op->after_fence && op->kind != IO_READ)
			sim_fail("a fenced client's write %llu was done",
				 (unsigned long long)op->number);
		op_finish(op, a->words, sim.now_us);
		break;
	case IO_RETRY:
	case IO_NOT_PRIMARY:
	case IO_STALE_EPOCH:
		op_later(op, sim_rand(10000, 50000));
		break;
	case IO_NO_SPACE:
		sim.no_space++;
		op_later(op, sim_rand(10000, 50000));
		break;
	case IO_MEDIUM_ERROR:
		sim.medium_errors++;
		op_later(op, sim_rand(50000, 100000));
		break;
	case IO_FENCED:
		if (sim.fenced && a->c->index == sim.plan.clients - 1 && op->kind != IO_READ) {
			/* done, not done, or done later: nobody can say */
			op_finish(op, NULL, UINT64_MAX);
			break;
		}
		/* fall through */
	default:
		sim_fail("client %u: request %llu, kind %u, offset %u, length %u, is answered %s",
			 a->c->index, (unsigned long long)a->number, op->kind, op->offset,
			 op->length, io_status_name(a->status));
	}
	free(a);
}

static void request_free(struct request *rq)
{
	slice_unref(&rq->io.payload);
	slice_unref(&rq->io.data);
	free(rq);
}

static void request_done(struct wait *w, int rc)
{
	struct request *rq = container_of(w, struct request, wait);
	uint32_t sectors = rq->q.length / SIM_SECTOR;
	struct answer *a;

	if (!rq->p->dying && !sim_chance(0.01)) {
		a = xcalloc(1, sizeof(*a) + 8 * sectors);
		a->c = rq->c;
		a->number = rq->op_number;
		a->status = rq->a.status;
		for (uint32_t i = 0; i < sectors && rq->q.kind == IO_READ && a->status == IO_OK;
		     i++)
			a->words[i] = get_le64(rq->io.data.data + i * SIM_SECTOR);
		if (rq->q.kind == IO_READ && a->status == IO_OK &&
		    !io_payload_check(rq->io.data.data, rq->q.offset, rq->q.length, rq->a.fps))
			sim_fail("a read reply does not match its fingerprints");
		sim_at(sim_rand(50, 500), NULL, answer_arrives, answer_drop, a);
	}
	request_free(rq);
}

static void request_arrives(void *arg)
{
	struct request *rq = arg;
	struct sim_proc *p = rq->p;

	rq->wait.resume = request_done;
	if (rq->q.kind == IO_WRITE) {
		struct buf *b = buf_get(p->pool, rq->q.length);

		CHECK(b);
		memset(b->data, 0, rq->q.length);
		for (uint32_t i = 0; i < rq->q.length / SIM_SECTOR; i++)
			put_le64(b->data + i * SIM_SECTOR, rq->word[i]);
		rq->io.payload = (struct slice){.buf = b, .data = b->data, .len = rq->q.length};
		rq->q.fp_count = io_fp_count(rq->q.offset, rq->q.length);
		io_payload_fps(b->data, rq->q.offset, rq->q.length, rq->q.fps);
	}
	rq->io.request = &rq->q;
	rq->io.reply = &rq->a;
	if (replicator_submit(p->r, &rq->io, &rq->wait) != PENDING)
		request_done(&rq->wait, 0);
}

static void request_drop(void *arg)
{
	request_free(arg);
}

/* Routed by the map of some node, which may be old. */
static void op_try(void *arg)
{
	struct op *op = arg;
	struct sim_proc *view = &sim.proc[sim_rand(1, sim.plan.nodes)], *to = NULL;
	const struct map *m = view->alive && !sim_chance(0.5) ? &view->map : state_map(sim.state);
	const struct map_object *o = map_object(m, object_id(sim.volume, op->object));
	const struct map_node *n = o ? map_primary_node(m, o) : NULL;
	struct request *rq;
	unsigned copies = 1;

	op->tries++;
	retries += op->tries > 1;
	op_later(op, sim_rand(300000, 1200000)); /* no answer: once more */
	if (n)
		to = &sim.proc[n->id];
	if (!to || !to->alive || sim_chance(0.01)) {
		op_later(op, sim_rand(5000, 50000));
		return;
	}
	if (sim.plan.duplicates && sim_chance(0.03))
		copies = 2;
	for (unsigned i = 0; i < copies; i++) {
		rq = calloc(1, sizeof(*rq));
		rq->p = to;
		rq->c = op->c;
		rq->op_number = op->number;
		rq->q = (struct io_request){.kind = op->kind,
					    .epoch = o->epoch,
					    .attachment = sim.attachment[op->c->index],
					    .attach_epoch = sim.attach_epoch[op->c->index],
					    .object = object_id(sim.volume, op->object),
					    .offset = op->offset,
					    .length = op->length,
					    .request = op->number,
					    .low_water = low_water(op->c)};
		for (uint32_t k = 0; k < op->length / SIM_SECTOR; k++)
			rq->word[k] = op->value;
		if (keep_next) {
			kept = xmalloc(sizeof(*kept));
			*kept = *rq;
			keep_next = false;
		}
		sim_at(i ? sim_rand(1000, 3000000) : sim_rand(50, 500), to, request_arrives,
		       request_drop, rq);
	}
}

static void op_make(struct client *c, uint8_t kind, uint32_t object, uint32_t offset,
		    uint32_t length)
{
	struct op *op = xcalloc(1, sizeof(*op));

	op->c = c;
	op->kind = kind;
	op->object = object;
	op->offset = offset;
	op->length = length;
	op->number = c->next_number++;
	op->value = kind == IO_WRITE ? ++values : 0;
	op->invoked_us = sim.now_us;
	op->after_fence =
		sim.plan.fence && c->index == sim.plan.clients - 1 && sim_fenced_everywhere();
	list_push_back(&c->ops, &op->link);
	c->open++;
	op_try(op);
}

static void client_next(void *arg)
{
	struct client *c = arg;
	uint32_t object, at, n = 1, offset, length;
	uint8_t kind;

	if (!c->left || c->open >= sim.plan.depth)
		return;
	c->left--;
	object = (uint32_t)sim_rand(0, SIM_OBJECTS - 1);
	at = (uint32_t)sim_rand(0, BLOCKS - 1);
	while (at + n < BLOCKS && hot[at + n] == hot[at] + n && sim_chance(0.4))
		n++;
	kind = sim_chance(0.55) ? IO_WRITE : IO_READ;
	offset = hot[at] * BLOCK_SIZE;
	length = n * BLOCK_SIZE;
	/* Trims only where a search, not zones, checks: zeros say not who wrote them. */
	if (sim.plan.trims && kind == IO_WRITE && hot[at] >= 9000 && sim_chance(0.4))
		kind = sim_chance(0.5) ? IO_TRIM : IO_ZEROES;
	else if (sim.plan.partial && sim_chance(0.25)) {
		uint32_t first = (uint32_t)sim_rand(0, 7),
			 less = (uint32_t)sim_rand(0, 3) * SIM_SECTOR;

		offset += first * SIM_SECTOR;
		length -= first * SIM_SECTOR;
		length = length > less ? length - less : SIM_SECTOR;
	}
	op_make(c, kind, object, offset, length);
	client_next(c);
}

void sim_clients_start(void)
{
	values = retries = 0;
	list_init(&all_requests);
	for (unsigned i = 0; i < sim.plan.clients; i++) {
		struct client *c = &clients[i];

		*c = (struct client){.index = i, .next_number = 1, .left = sim.plan.ops_per_client};
		list_init(&c->ops);
		sim_at(sim_rand(0, 500000), NULL, client_next, NULL, c);
	}
}

void sim_client_does(unsigned client, uint8_t kind, uint32_t object, uint32_t block)
{
	op_make(&clients[client], kind, object, block * BLOCK_SIZE, BLOCK_SIZE);
}

void sim_client_keeps(void)
{
	keep_next = true;
}

void sim_kept_arrives(unsigned node)
{
	if (!kept)
		return;
	kept->p = &sim.proc[node];
	sim_at(0, kept->p, request_arrives, request_drop, kept);
	kept = NULL;
}

void sim_clients_more(unsigned ops)
{
	for (unsigned i = 0; i < sim.plan.clients; i++) {
		clients[i].left += ops;
		client_next(&clients[i]);
	}
}

bool sim_clients_done(void)
{
	for (unsigned i = 0; i < sim.plan.clients; i++)
		if (clients[i].open || clients[i].left)
			return false;
	return true;
}

/* What is acknowledged must be there: every hot block is read once more at the end. */
void sim_clients_final_reads(void)
{
	for (uint32_t o = 0; o < SIM_OBJECTS; o++)
		for (unsigned i = 0; i < BLOCKS; i++)
			op_make(&clients[0], IO_READ, o, hot[i] * BLOCK_SIZE, BLOCK_SIZE);
}

void sim_clients_end(void)
{
	free(kept);
	kept = NULL;
	keep_next = false;
	for (unsigned i = 0; i < sim.plan.clients; i++) {
		struct list *n;

		while ((n = list_pop_front(&clients[i].ops)))
			free(list_entry(n, struct op, link));
	}
}

void sim_clients_describe(char *text, size_t size)
{
	size_t at = 0;

	for (unsigned i = 0; i < sim.plan.clients; i++) {
		struct op *op;

		at += (size_t)snprintf(text + at, size - at, "\n client %u: %u left, %u open", i,
				       clients[i].left, clients[i].open);
		list_for_each(op, &clients[i].ops, link) if (at + 100 < size) at +=
			(size_t)snprintf(text + at, size - at,
					 "\n   %u: kind %u offset %u tries %u",
					 (unsigned)op->number, op->kind, op->offset, op->tries);
	}
}
