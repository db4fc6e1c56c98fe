/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting, routing, retrying, attaching: the client over an executor that answers as it is told
 * to. The executor keeps the cluster's side of the retry rule and checks the client's side of it.
 */
#include <pthread.h>

#include "client/client.h"
#include "cluster/map_codec.h"
#include "node/base/log.h"
#include "tests/client/harness.h"
#include "tests/lib/test.h"

#define SIZE        (300ull << 20)
#define OBJECT_SIZE (64ull << 20)
#define STRIPES     2u
#define OBJECTS     6u
#define WINDOW_MAX  256u /* what replicas remember */

struct executor {
	uint8_t *data[OBJECTS];
	uint64_t low_water[OBJECTS], highest[OBJECTS];
	uint8_t applied[OBJECTS][65536]; /* by request number */
	struct list pending;             /* io_exec */
	unsigned pending_count;
	bool sync, hold;
	struct timer timer;
	struct rng rng;
	/* orders */
	uint8_t always;  /* status given to everything */
	unsigned refuse; /* so many requests get always */
	double refuse_chance;
	unsigned executed, trims, zeroes, reads_attached, seen_max;
	uint32_t attachment, attach_epoch, min_epoch;
	uint32_t last_attachment;
};

struct fixture {
	struct harness h;
	struct buf_pool *pool;
	struct map map;
	struct client *client;
	struct volume *volume;
	struct executor ex;
	size_t ops;
	unsigned attaches, detaches, renews;
	int propose_rc, attach_code; /* what propose answers */
	int renew_rc;		     /* once */
	uint32_t renewed[4];
	unsigned renewed_count;
	bool renew_gone, hold_renew;
	struct wait *held_renew;
	struct command_result *held_result;
	uint8_t mode; /* attaches must ask for it */
	struct wait *closed_wait;
	bool closed;
};

struct test_io {
	struct fixture *f;
	struct volume *v;
	struct volume_io io;
	struct wait wait;
	struct slice slices[64];
	struct io_extent extents[64];
	bool done;
	int rc;
};

/* ---- The executor ---- */

static void ex_apply(struct executor *ex, struct io_exec *io)
{
	struct io_request *q = io->request;
	uint8_t *at = ex->data[object_index(q->object)] + q->offset;

	switch (q->kind) {
	case IO_WRITE:
		memcpy(at, io->payload.data, q->length);
		break;
	case IO_TRIM:
		EXPECT_EQ(q->offset % BLOCK_SIZE, 0);
		EXPECT_EQ(q->length % BLOCK_SIZE, 0);
		ex->trims++;
		memset(at, 0, q->length);
		break;
	case IO_ZEROES:
		ex->zeroes++;
		memset(at, 0, q->length);
		break;
	}
}

static void ex_check_write(struct executor *ex, struct io_exec *io)
{
	struct io_request *q = io->request;
	uint32_t i = object_index(q->object);

	EXPECT(q->request >= 1 && q->request < sizeof(ex->applied[0]));
	EXPECT(q->low_water >= ex->low_water[i] || q->request <= ex->highest[i]);
	EXPECT(q->low_water <= q->request);
	EXPECT(q->request >= ex->low_water[i]); /* it promised not to send this one again */
	EXPECT(q->request - q->low_water < WINDOW_MAX);
	EXPECT_EQ(q->attachment, ex->attachment);
	EXPECT_EQ(q->attach_epoch, ex->attach_epoch);
	ex->low_water[i] = MAX(ex->low_water[i], q->low_water);
	ex->highest[i] = MAX(ex->highest[i], q->request);
	if (q->kind == IO_WRITE) {
		EXPECT_EQ(io->payload.len, q->length);
		EXPECT_EQ(q->fp_count, io_fp_count(q->offset, q->length));
		EXPECT(io_payload_check(io->payload.data, q->offset, q->length, q->fps));
	}
}

static void ex_answer(struct fixture *f, struct io_exec *io)
{
	struct executor *ex = &f->ex;
	struct io_request *q = io->request;
	uint32_t i = object_index(q->object);
	bool writes = q->kind != IO_READ && q->kind != IO_STATUS;
	bool refuse = ex->refuse || (ex->refuse_chance && rng_chance(&ex->rng, ex->refuse_chance));

	EXPECT(q->length > 0 && q->length <= IO_MAX_BYTES);
	EXPECT(q->offset / STRIPE_UNIT == (q->offset + q->length - 1) / STRIPE_UNIT);
	ex->executed++;
	ex->last_attachment = q->attachment;
	io->reply->status = IO_OK;
	io->reply->epoch = ex->min_epoch;
	io->reply->extent_count = 0;
	io->data = (struct slice){0};
	if (writes)
		ex_check_write(ex, io);
	if (q->epoch < ex->min_epoch) {
		io->reply->status = IO_STALE_EPOCH;
		return;
	}
	if (refuse) {
		static const uint8_t kinds[] = {IO_RETRY, IO_NOT_PRIMARY, IO_INCOMPLETE,
						IO_STALE_EPOCH};

		if (ex->refuse)
			ex->refuse--;
		io->reply->status = ex->always ? ex->always : kinds[rng_below(&ex->rng, 4)];
		/* A refusal does not say that nothing happened: sometimes it was applied. */
		if (!writes || io->reply->status == IO_FENCED || rng_chance(&ex->rng, 0.5))
			return;
	}
	if (writes) {
		if (!ex->applied[i][q->request])
			ex_apply(ex, io);
		ex->applied[i][q->request] = 1;
	} else if (q->kind == IO_READ) {
		struct buf *b = buf_heap(q->length);

		memcpy(b->data, ex->data[i] + q->offset, q->length);
		io->data = (struct slice){b, b->data, q->length};
	} else {
		uint32_t left = q->length;

		while (left) {
			uint32_t n = MIN(left, 65536u);

			io->reply->extents[io->reply->extent_count++] =
				(struct io_extent){n, (q->offset >> 20) & 1 ? 3 : 0};
			left -= n;
		}
	}
}

static void ex_timer(struct timer *t)
{
	struct executor *ex = container_of(t, struct executor, timer);
	struct fixture *f = container_of(ex, struct fixture, ex);
	unsigned n = ex->pending_count;

	if (ex->hold)
		return;
	while (n--) {
		struct io_exec *io;
		struct list *l = &ex->pending;

		for (uint64_t skip = rng_below(&ex->rng, ex->pending_count) + 1; skip; skip--)
			l = l->next;
		io = list_entry(l, struct io_exec, link);
		list_del(l);
		ex->pending_count--;
		ex_answer(f, io);
		wait_resume(io->wait, 0);
	}
	if (ex->pending_count)
		timer_set(t, 100);
}

static int hook_local(void *ctx, struct io_exec *io, struct wait *w)
{
	struct fixture *f = ctx;
	struct executor *ex = &f->ex;

	if (ex->sync) {
		ex_answer(f, io);
		return 0;
	}
	io->wait = w;
	list_push_back(&ex->pending, &io->link);
	ex->pending_count++;
	ex->seen_max = MAX(ex->seen_max, ex->pending_count);
	if (!ex->timer.armed)
		timer_set(&ex->timer, 100);
	return PENDING;
}

static int hook_renew(struct fixture *f, const struct command *cmd, struct command_result *result,
		      struct wait *w)
{
	int rc = f->renew_rc;

	f->renews++;
	f->renew_rc = 0;
	f->renewed_count = cmd->renew.count;
	for (unsigned i = 0; i < cmd->renew.count && i < ARRAY_LEN(f->renewed); i++)
		f->renewed[i] = cmd->renew.attachment[i];
	result->count = cmd->renew.count;
	memset(result->object, f->renew_gone, result->count);
	if (!f->hold_renew)
		return rc;
	f->held_renew = w;
	f->held_result = result;
	return PENDING;
}

static int hook_propose(void *ctx, const struct command *cmd, struct command_result *result,
			struct wait *w)
{
	struct fixture *f = ctx;

	if (cmd->kind == CMD_DETACH) {
		f->detaches++;
		EXPECT_EQ(cmd->detach.attachment, f->ex.attachment);
		return 0;
	}
	if (cmd->kind == CMD_RENEW)
		return hook_renew(f, cmd, result, w);
	EXPECT_EQ(cmd->kind, CMD_ATTACH);
	EXPECT_EQ(cmd->attach.volume, 7);
	EXPECT_EQ(cmd->attach.mode, f->mode ? f->mode : ATTACH_EXCLUSIVE);
	EXPECT_STR(cmd->attach.holder, "client:test");
	f->attaches++;
	if (f->propose_rc < 0) {
		int rc = f->propose_rc;

		f->propose_rc = 0;
		return rc;
	}
	result->code = f->attach_code;
	snprintf(result->text, sizeof(result->text), "held by node:other");
	if (!result->code) {
		f->ex.attachment++;
		f->ex.attach_epoch++;
		memset(f->ex.low_water, 0, sizeof(f->ex.low_water));
	}
	result->id = f->ex.attachment;
	result->number = f->ex.attach_epoch;
	return 0;
}

static const struct client_hooks hooks = {.local = hook_local, .propose = hook_propose};

/* ---- Fixture ---- */

static void make_map(struct map *m)
{
	struct map_volume *v;

	map_init(m);
	for (uint16_t i = 1; i <= 2; i++) {
		struct map_node *n = map_node_put(m, i);
		struct map_group *g = map_group_put(m, i);

		uuid_make(&n->uuid);
		n->shards = 1;
		n->state = NODE_ACTIVE;
		n->incarnation = 1;
		snprintf(n->address, sizeof(n->address), "127.0.0.1:1"); /* refused */
		g->node = i;
		g->incarnation = 1;
		g->state = GROUP_ACTIVE;
	}
	v = map_volume_put(m, 7);
	snprintf(v->name, sizeof(v->name), "disk");
	v->size = SIZE;
	v->object_size = OBJECT_SIZE;
	v->stripe_count = STRIPES;
	v->state = VOLUME_LIVE;
	v->copies = 1;
	map_volume_grow(v, OBJECTS);
	for (uint32_t i = 0; i < OBJECTS; i++) {
		struct map_object *o = &v->object[i];

		o->epoch = 1;
		o->member_count = 2;
		o->member[0] = (struct map_member){
			.group = 1, .group_incarnation = 1, .gen = 1, .in = true};
		o->member[1] = (struct map_member){
			.group = 2, .group_incarnation = 1, .gen = 1, .in = true};
	}
}

static void start(void *arg)
{
	struct fixture *f = arg;
	struct client_config cfg = {.loop = f->h.loop,
				    .pool = f->pool,
				    .map = &f->map,
				    .node = 1,
				    .holder = "client:test",
				    .ops = f->ops,
				    .hooks = &hooks,
				    .ctx = f};

	f->client = client_create(&cfg);
	list_init(&f->ex.pending);
	timer_init(&f->ex.timer, f->h.loop, ex_timer);
	rng_seed(&f->ex.rng, 42);
	EXPECT_RC(volume_open(f->client, "nothing", false, &f->volume), -ERR_NOT_FOUND);
	EXPECT_OK(volume_open(f->client, "disk", false, &f->volume));
	EXPECT_EQ(volume_size(f->volume), SIZE);
}

static struct fixture *fixture_make(size_t ops)
{
	struct fixture *f = xcalloc(1, sizeof(*f));

	log_set_level(LOG_ERROR);
	harness_start(&f->h);
	f->ops = ops;
	f->pool = buf_pool_create(64u << 20);
	make_map(&f->map);
	for (unsigned i = 0; i < OBJECTS; i++)
		f->ex.data[i] = xcalloc(1, OBJECT_SIZE);
	harness_do(&f->h, start, f);
	return f;
}

static struct closing {
	struct wait wait;
	struct fixture *f;
} closing;

static void on_closed(struct wait *w, int rc)
{
	container_of(w, struct closing, wait)->f->closed = true;
}

static void close_volume(void *arg)
{
	struct fixture *f = arg;

	closing.wait.resume = on_closed;
	closing.f = f;
	f->closed = false;
	volume_close(f->volume, &closing.wait);
	EXPECT(!f->closed); /* never from inside the call */
}

static bool is_closed(void *arg)
{
	return ((struct fixture *)arg)->closed;
}

static void finish(void *arg)
{
	struct fixture *f = arg;

	client_destroy(f->client);
	timer_fini(&f->ex.timer);
}

static void fixture_close(struct fixture *f)
{
	harness_do(&f->h, close_volume, f);
	harness_await(&f->h, is_closed, f, "the volume is closed");
}

static void fixture_free(struct fixture *f)
{
	fixture_close(f);
	harness_do(&f->h, finish, f);
	harness_stop(&f->h);
	buf_pool_destroy(f->pool);
	map_fini(&f->map);
	for (unsigned i = 0; i < OBJECTS; i++)
		free(f->ex.data[i]);
	free(f);
}

/* ---- One I/O ---- */

static void io_resume(struct wait *w, int rc)
{
	struct test_io *t = container_of(w, struct test_io, wait);

	EXPECT(!t->done);
	t->done = true;
	t->rc = rc;
}

static void io_submit(void *arg)
{
	struct test_io *t = arg;
	int rc;

	t->wait.resume = io_resume;
	rc = volume_io(t->f->volume, &t->io, &t->wait);
	if (rc == PENDING) {
		EXPECT(!t->done);
		return;
	}
	t->done = true;
	t->rc = rc;
}

static void io_prepare(struct test_io *t, struct fixture *f, uint8_t kind, uint64_t off,
		       uint64_t len)
{
	memset(t, 0, sizeof(*t));
	t->f = f;
	t->io = (struct volume_io){.kind = kind,
				   .offset = off,
				   .length = len,
				   .slices = t->slices,
				   .slices_max = ARRAY_LEN(t->slices),
				   .extents = t->extents,
				   .extents_max = ARRAY_LEN(t->extents)};
}

static bool io_is_done(void *arg)
{
	return ((struct test_io *)arg)->done;
}

static int io_run(struct test_io *t)
{
	harness_do(&t->f->h, io_submit, t);
	harness_await(&t->f->h, io_is_done, t, "the I/O ends");
	return t->rc;
}

static int simple_io(struct fixture *f, uint8_t kind, uint64_t off, uint64_t len)
{
	struct test_io t;

	io_prepare(&t, f, kind, off, len);
	return io_run(&t);
}

/* A payload cut into slices at random places. */
static void give_payload(struct test_io *t, struct rng *r, const uint8_t *data, uint32_t len)
{
	uint32_t done = 0;

	while (done < len) {
		uint32_t n = (uint32_t)rng_between(r, 1, len - done);
		struct buf *b;

		if (t->io.slice_count == 8)
			n = len - done;
		b = buf_heap(n);
		memcpy(b->data, data + done, n);
		t->slices[t->io.slice_count++] = (struct slice){b, b->data, n};
		done += n;
	}
}

static void drop_slices(void *arg)
{
	struct test_io *t = arg;

	for (unsigned i = 0; i < t->io.slice_count; i++)
		slice_unref(&t->slices[i]);
	t->io.slice_count = 0;
}

static int write_bytes_at(struct fixture *f, uint64_t off, const void *data, uint32_t len)
{
	struct test_io t;
	struct rng r;
	int rc;

	rng_seed(&r, off + len);
	io_prepare(&t, f, IO_WRITE, off, len);
	give_payload(&t, &r, data, len);
	rc = io_run(&t);
	harness_do(&f->h, drop_slices, &t);
	return rc;
}

static int read_bytes_at(struct fixture *f, uint64_t off, void *data, uint32_t len)
{
	struct test_io t;
	uint32_t done = 0;
	int rc;

	io_prepare(&t, f, IO_READ, off, len);
	rc = io_run(&t);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < t.io.slice_count; i++) {
		EXPECT(done + t.slices[i].len <= len);
		memcpy((uint8_t *)data + done, t.slices[i].data, t.slices[i].len);
		done += t.slices[i].len;
	}
	EXPECT_EQ(done, len);
	harness_do(&f->h, drop_slices, &t);
	return 0;
}

/* ---- Tests ---- */

/* Random requests against a shadow copy, with an executor that reorders, refuses and applies twice.
 */
static void random_run(struct fixture *f, unsigned count, uint64_t seed)
{
	uint8_t *shadow = xcalloc(1, SIZE), *got = xmalloc(6u << 20);
	struct rng r;

	rng_seed(&r, seed);
	for (unsigned i = 0; i < count; i++) {
		uint32_t len = (uint32_t)rng_between(&r, 1, rng_chance(&r, 0.2) ? 6u << 20 : 20000);
		uint64_t off = rng_below(&r, SIZE - len);

		if (rng_chance(&r, 0.5)) {
			off = round_down(off, BLOCK_SIZE);
			len = MAX(len / BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE);
		}
		switch (rng_below(&r, 4)) {
		case 0:
			EXPECT_OK(read_bytes_at(f, off, got, len));
			EXPECT(!memcmp(got, shadow + off, len));
			break;
		case 1:
			EXPECT_OK(
				simple_io(f, rng_chance(&r, 0.5) ? IO_TRIM : IO_ZEROES, off, len));
			memset(shadow + off, 0, len);
			break;
		default:
			rng_fill(&r, shadow + off, len);
			EXPECT_OK(write_bytes_at(f, off, shadow + off, len));
		}
	}
	for (uint64_t off = 0; off < SIZE; off += 5u << 20) {
		EXPECT_OK(read_bytes_at(f, off, got, (uint32_t)MIN(5u << 20, SIZE - off)));
		EXPECT(!memcmp(got, shadow + off, MIN(5u << 20, SIZE - off)));
	}
	/* Every number given out was carried through: a retry never takes a new one. */
	for (unsigned i = 0; i < OBJECTS; i++)
		for (uint64_t n = 1; n <= f->ex.highest[i]; n++)
			EXPECT(f->ex.applied[i][n]);
	free(shadow);
	free(got);
}

TEST(volume, random_io_matches_a_shadow_when_answers_come_at_once)
{
	struct fixture *f = fixture_make(256);

	f->ex.sync = true;
	random_run(f, 120, 1);
	EXPECT(f->ex.trims > 0 && f->ex.zeroes > 0);
	fixture_free(f);
}

TEST(volume, random_io_matches_a_shadow_with_reordering_and_retries)
{
	struct fixture *f = fixture_make(256);

	f->ex.refuse_chance = 0.1;
	random_run(f, 60, 2);
	fixture_free(f);
}

TEST(volume, a_few_parts_are_enough)
{
	struct fixture *f = fixture_make(3);

	random_run(f, 40, 3);
	EXPECT(f->ex.seen_max <= 3);
	fixture_free(f);
}

TEST(volume, attaches_at_the_first_write_and_detaches_at_the_last_close)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[8192] = {1};
	struct test_io a, b;
	struct rng r;

	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->attaches, 0);
	EXPECT_EQ(f->ex.last_attachment, 0);
	rng_seed(&r, 1);
	io_prepare(&a, f, IO_WRITE, 0, sizeof(data));
	give_payload(&a, &r, data, sizeof(data));
	io_prepare(&b, f, IO_WRITE, 1 << 20, sizeof(data));
	give_payload(&b, &r, data, sizeof(data));
	harness_do(&f->h, io_submit, &a);
	harness_do(&f->h, io_submit, &b);
	harness_await(&f->h, io_is_done, &a, "first write");
	harness_await(&f->h, io_is_done, &b, "second write");
	EXPECT_OK(a.rc);
	EXPECT_OK(b.rc);
	harness_do(&f->h, drop_slices, &a);
	harness_do(&f->h, drop_slices, &b);
	EXPECT_EQ(f->attaches, 1);
	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->ex.last_attachment, 1);
	EXPECT_EQ(f->detaches, 0);
	fixture_close(f);
	EXPECT_EQ(f->detaches, 1);
	harness_do(&f->h, finish, f);
	harness_do(&f->h, start, f); /* fixture_free closes again */
	fixture_free(f);
}

TEST(volume, a_held_volume_says_who_has_it_and_is_asked_again_later)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};

	f->attach_code = -ERR_HELD;
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_HELD);
	EXPECT_STR(volume_held_by(f->volume), "held by node:other");
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_HELD);
	EXPECT_EQ(f->attaches, 1); /* not once per write */
	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->detaches, 0);
	fixture_free(f);
}

TEST(volume, an_attach_without_a_leader_is_repeated)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};

	f->propose_rc = -ERR_NO_LEADER;
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->attaches, 2);
	fixture_free(f);
}

TEST(volume, fenced_by_a_reply_means_no_write_ever_again)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};
	unsigned executed;

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	f->ex.always = IO_FENCED;
	f->ex.refuse = 1;
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_FENCED);
	executed = f->ex.executed;
	EXPECT_RC(write_bytes_at(f, 4096, data, sizeof(data)), -ERR_FENCED);
	EXPECT_RC(simple_io(f, IO_TRIM, 0, 4096), -ERR_FENCED);
	EXPECT_EQ(f->ex.executed, executed); /* not even sent */
	EXPECT_EQ(f->attaches, 1);
	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->ex.last_attachment, 0);
	fixture_free(f);
}

static void revoke(void *arg)
{
	struct fixture *f = arg;
	struct map_attachment *a = map_attachment_put(&f->map, f->ex.attachment);

	a->revoked = true;
	client_map_changed(f->client, MAP_REC_ATTACHMENT, f->ex.attachment);
	client_map_done(f->client);
}

TEST(volume, fenced_by_the_map_means_no_write_ever_again)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	harness_do(&f->h, revoke, f);
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_FENCED);
	EXPECT_EQ(f->detaches, 0);
	fixture_free(f);
}

/* The delta of the attachment, with a time to live that a test can wait for. */
static void tell_lease(void *arg)
{
	struct fixture *f = arg;
	struct map_attachment *a = map_attachment_put(&f->map, f->ex.attachment);

	a->ttl_ms = 600;
	client_map_changed(f->client, MAP_REC_ATTACHMENT, f->ex.attachment);
	client_map_done(f->client);
}

static bool has_renewed(void *arg)
{
	return ((struct fixture *)arg)->renews > 0;
}

static bool has_renewed_thrice(void *arg)
{
	return ((struct fixture *)arg)->renews >= 3;
}

TEST(volume, an_attachment_is_renewed_as_long_as_it_is_held)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};
	uint64_t began = loop_mono_us(f->h.loop);
	unsigned renews;

	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->renews, 0);
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	harness_do(&f->h, tell_lease, f);
	harness_await(&f->h, has_renewed_thrice, f, "three renewals");
	EXPECT(loop_mono_us(f->h.loop) - began >= 590000); /* about three per time to live */
	EXPECT_EQ(f->renewed_count, 1);
	EXPECT_EQ(f->renewed[0], f->ex.attachment);
	fixture_close(f);
	EXPECT_EQ(f->detaches, 1);
	renews = f->renews;
	harness_do(&f->h, finish, f); /* the timer is gone with it */
	EXPECT_EQ(f->renews, renews);
	harness_do(&f->h, start, f);
	fixture_free(f);
}

TEST(volume, a_renewal_that_fails_is_tried_again_and_stops_no_write)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	log_set_level(LOG_ERROR);
	f->renew_rc = -ERR_NO_LEADER;
	harness_do(&f->h, tell_lease, f);
	harness_await(&f->h, has_renewed, f, "the failed renewal");
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	harness_await(&f->h, has_renewed_thrice, f, "renewals after it");
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	EXPECT_EQ(f->attaches, 1);
	fixture_free(f);
}

TEST(volume, fenced_by_the_answer_to_a_renewal)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};
	unsigned executed;

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	f->renew_gone = true;
	harness_do(&f->h, tell_lease, f);
	harness_await(&f->h, has_renewed, f, "a renewal");
	executed = f->ex.executed;
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_FENCED);
	EXPECT_EQ(f->ex.executed, executed);
	EXPECT_OK(read_bytes_at(f, 0, data, sizeof(data)));
	fixture_free(f);
	/* Closed and opened anew, it may be attached anew. */
	f = fixture_make(64);
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	fixture_free(f);
}

static void release_renew(void *arg)
{
	struct fixture *f = arg;
	struct wait *w = f->held_renew;

	f->hold_renew = false;
	f->held_renew = NULL;
	wait_resume(w, 0);
}

static bool has_detached(void *arg)
{
	return ((struct fixture *)arg)->detaches == 1;
}

TEST(volume, the_last_close_waits_for_a_renewal_under_way)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {0};

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	f->hold_renew = true;
	harness_do(&f->h, tell_lease, f);
	harness_await(&f->h, has_renewed, f, "a renewal");
	harness_do(&f->h, close_volume, f);
	harness_await(&f->h, has_detached, f, "the detach");
	EXPECT(!f->closed); /* else the client could be destroyed under the renewal */
	harness_do(&f->h, release_renew, f);
	harness_await(&f->h, is_closed, f, "the volume is closed");
	harness_do(&f->h, finish, f);
	harness_do(&f->h, start, f);
	fixture_free(f);
}

static struct volume *second;

static void swap_volumes(void *arg)
{
	struct fixture *f = arg;
	struct volume *v = f->volume;

	f->volume = second;
	second = v;
}

static void open_shared(void *arg)
{
	struct fixture *f = arg;

	EXPECT_OK(volume_open(f->client, "disk", true, &second));
	EXPECT(second != f->volume);
}

TEST(volume, both_modes_may_be_open_here_and_one_attached)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096] = {7}, got[4096];
	uint64_t began;
	int rc;

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	harness_do(&f->h, open_shared, f);
	harness_do(&f->h, swap_volumes, f);
	EXPECT_RC(write_bytes_at(f, 0, data, sizeof(data)), -ERR_HELD);
	EXPECT(strstr(volume_held_by(f->volume), "this gateway in exclusive mode"));
	EXPECT_OK(read_bytes_at(f, 0, got, sizeof(got)));
	EXPECT_MEM(got, data, sizeof(data));
	EXPECT_EQ(f->attaches, 1); /* the one that is attached was not put at risk */
	harness_do(&f->h, swap_volumes, f);
	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	fixture_close(f);
	harness_do(&f->h, swap_volumes, f);
	f->mode = ATTACH_SHARED;
	began = loop_mono_us(f->h.loop);
	do /* a refusal holds for a second */
		rc = write_bytes_at(f, 0, data, sizeof(data));
	while (rc == -ERR_HELD && loop_mono_us(f->h.loop) - began < 5000000);
	EXPECT_OK(rc);
	EXPECT_EQ(f->attaches, 2);
	fixture_free(f);
}

static void bump_epoch(void *arg)
{
	struct fixture *f = arg;
	struct map_object *o = map_object(&f->map, object_id(7, 0));

	o->epoch++;
	client_map_changed(f->client, MAP_REC_OBJECT, o->id);
	client_map_done(f->client);
}

static bool executed_once(void *arg)
{
	return ((struct fixture *)arg)->ex.executed == 1;
}

TEST(volume, a_map_delta_sends_a_waiting_retry_at_once)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096];
	struct test_io t;
	uint64_t began;

	f->ex.min_epoch = 2; /* epoch 1 is stale */
	io_prepare(&t, f, IO_READ, 0, sizeof(data));
	harness_do(&f->h, io_submit, &t);
	harness_await(&f->h, executed_once, f, "first try");
	began = loop_mono_us(f->h.loop);
	harness_do(&f->h, bump_epoch, f);
	harness_await(&f->h, io_is_done, &t, "read");
	EXPECT_OK(t.rc);
	EXPECT_EQ(f->ex.executed, 2);
	EXPECT(loop_mono_us(f->h.loop) - began <
	       45000); /* sooner than the 50 ms of a blind retry */
	harness_do(&f->h, drop_slices, &t);
	fixture_free(f);
}

static void move_to(struct fixture *f, uint8_t member)
{
	struct map_object *o = map_object(&f->map, object_id(7, 0));

	o->primary = member;
	o->epoch++;
	client_map_changed(f->client, MAP_REC_OBJECT, o->id);
	client_map_done(f->client);
}

static void move_away(void *arg)
{
	move_to(arg, 1);
}

static void move_home(void *arg)
{
	move_to(arg, 0);
}

static bool has_retried(void *arg)
{
	struct client_stats st;

	client_stats(((struct fixture *)arg)->client, &st);
	return st.retries > 0;
}

TEST(volume, follows_the_primary_away_from_a_node_that_refuses)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096];
	struct test_io t;

	harness_do(&f->h, move_away, f); /* node 2: nobody listens there */
	io_prepare(&t, f, IO_READ, 0, sizeof(data));
	harness_do(&f->h, io_submit, &t);
	harness_await(&f->h, has_retried, f, "the dial was refused");
	EXPECT(!t.done);
	EXPECT_EQ(f->ex.executed, 0);
	harness_do(&f->h, move_home, f);
	harness_await(&f->h, io_is_done, &t, "read");
	EXPECT_OK(t.rc);
	harness_do(&f->h, drop_slices, &t);
	fixture_free(f);
}

static void hold(void *arg)
{
	((struct fixture *)arg)->ex.hold = true;
}

static void unhold(void *arg)
{
	struct fixture *f = arg;

	f->ex.hold = false;
	timer_set(&f->ex.timer, 0);
}

static bool nothing_pending(void *arg)
{
	return ((struct fixture *)arg)->ex.pending_count == 0;
}

TEST(volume, a_deadline_ends_an_io_whose_primary_does_not_answer)
{
	struct fixture *f = fixture_make(64);
	struct test_io t;
	uint8_t data[5000];
	struct rng r;

	EXPECT_OK(write_bytes_at(f, 0, data, 4096));
	harness_do(&f->h, hold, f);
	io_prepare(&t, f, IO_READ, 0, 3u << 20);
	t.io.deadline_ms = loop_mono_us(f->h.loop) / 1000 + 100;
	EXPECT_RC(io_run(&t), -ETIMEDOUT);
	EXPECT_EQ(t.io.slice_count, 0);
	memset(data, 7, sizeof(data));
	rng_seed(&r, 1);
	io_prepare(&t, f, IO_WRITE, 100, sizeof(data));
	give_payload(&t, &r, data, sizeof(data));
	t.io.deadline_ms = loop_mono_us(f->h.loop) / 1000 + 100;
	EXPECT_RC(io_run(&t), -ETIMEDOUT);
	harness_do(&f->h, drop_slices, &t); /* the late executor has its own reference */
	harness_do(&f->h, unhold, f);
	harness_await(&f->h, nothing_pending, f, "late answers");
	EXPECT_OK(write_bytes_at(f, 0, data, 4096));
	fixture_free(f);
}

TEST(volume, unanswered_writes_of_an_object_stay_within_the_window)
{
	enum { N = 400 };
	struct fixture *f = fixture_make(1024);
	struct test_io *t = xcalloc(N, sizeof(*t));
	uint8_t data[4096] = {3};
	struct rng r;

	EXPECT_OK(write_bytes_at(f, 0, data, sizeof(data)));
	harness_do(&f->h, hold, f);
	rng_seed(&r, 1);
	for (unsigned i = 0; i < N; i++) {
		io_prepare(&t[i], f, IO_WRITE, (i % 200) * 4096ull, sizeof(data));
		give_payload(&t[i], &r, data, sizeof(data));
		harness_do(&f->h, io_submit, &t[i]);
	}
	EXPECT(f->ex.pending_count < WINDOW_MAX);
	EXPECT(f->ex.pending_count > 64);
	harness_do(&f->h, unhold, f);
	for (unsigned i = 0; i < N; i++) {
		harness_await(&f->h, io_is_done, &t[i], "write");
		EXPECT_OK(t[i].rc);
		harness_do(&f->h, drop_slices, &t[i]);
	}
	free(t);
	fixture_free(f);
}

TEST(volume, block_status_joins_neighbours_across_parts)
{
	struct fixture *f = fixture_make(64);
	struct test_io t;

	/* Objects are striped over 2: units 0,1 are object MiB 0 of each, 2,3 their MiB 1 … */
	io_prepare(&t, f, IO_STATUS, 1 << 19, 7u << 20);
	EXPECT_OK(io_run(&t));
	EXPECT_EQ(t.io.extent_count, 4);
	EXPECT_EQ(t.extents[0].length, 3u << 19);
	EXPECT_EQ(t.extents[0].flags, 0);
	EXPECT_EQ(t.extents[1].length, 2u << 20);
	EXPECT_EQ(t.extents[1].flags, 3);
	EXPECT_EQ(t.extents[3].length, 3u << 19);
	io_prepare(&t, f, IO_STATUS, 0, 200u << 20);
	t.io.extents_max = 2;
	EXPECT_OK(io_run(&t));
	EXPECT_EQ(t.io.extent_count, 2);
	EXPECT_EQ(t.extents[1].length, 2u << 20);
	fixture_free(f);
}

TEST(volume, limits_are_errors_without_a_message)
{
	struct fixture *f = fixture_make(64);

	EXPECT_RC(simple_io(f, IO_READ, SIZE, 1), -EINVAL);
	EXPECT_RC(simple_io(f, IO_READ, UINT64_MAX, 4096), -EINVAL);
	EXPECT_RC(simple_io(f, IO_ZEROES, SIZE - 1, 2), -ENOSPC);
	EXPECT_RC(simple_io(f, IO_READ, 0, (32u << 20) + 1), -EINVAL);
	EXPECT_OK(simple_io(f, IO_TRIM, 5, 0));
	EXPECT_EQ(f->ex.executed, 0);
	EXPECT_EQ(f->attaches, 0);
	EXPECT_OK(simple_io(f, IO_TRIM, 0, SIZE)); /* any length */
	EXPECT_EQ(f->ex.executed, 300);
	fixture_free(f);
}

static void errors(struct fixture *f, uint8_t status, int rc)
{
	uint8_t data[4096] = {0};

	f->ex.always = status;
	f->ex.refuse = 1;
	EXPECT_RC(read_bytes_at(f, 0, data, sizeof(data)), rc);
}

TEST(volume, replies_map_to_error_codes)
{
	struct fixture *f = fixture_make(64);

	errors(f, IO_NO_SPACE, -ERR_FULL);
	errors(f, IO_MEDIUM_ERROR, -ERR_DAMAGED);
	errors(f, IO_INVALID, -EINVAL);
	errors(f, IO_DUPLICATE, -EIO);
	errors(f, IO_RETRY, 0);
	errors(f, IO_INCOMPLETE, 0);
	fixture_free(f);
}

static uint64_t noticed;

static void on_resize(void *arg, uint64_t size)
{
	noticed = size;
}

static void resize(void *arg)
{
	struct fixture *f = arg;
	struct map_volume *v = map_volume(&f->map, 7);

	volume_on_resize(f->volume, on_resize, f);
	v->size = SIZE + (20ull << 20);
	client_map_changed(f->client, MAP_REC_VOLUME, 7);
	client_map_done(f->client);
	volume_on_resize(f->volume, NULL, f);
}

static void delete_volume(void *arg)
{
	struct fixture *f = arg;

	map_volume_drop(&f->map, map_volume(&f->map, 7));
	client_map_changed(f->client, MAP_REC_VOLUME_GONE, 7);
	client_map_done(f->client);
}

TEST(volume, follows_a_resize_and_survives_a_delete)
{
	struct fixture *f = fixture_make(64);
	uint8_t data[4096];
	struct test_io t;

	EXPECT_RC(simple_io(f, IO_READ, SIZE, 4096), -EINVAL);
	harness_do(&f->h, resize, f);
	EXPECT_EQ(noticed, SIZE + (20ull << 20));
	EXPECT_OK(read_bytes_at(f, SIZE, data, sizeof(data)));
	harness_do(&f->h, hold, f);
	io_prepare(&t, f, IO_READ, 0, sizeof(data));
	harness_do(&f->h, io_submit, &t);
	harness_do(&f->h, delete_volume, f);
	harness_await(&f->h, io_is_done, &t, "ended by the delete");
	EXPECT_RC(t.rc, -ERR_NOT_FOUND);
	EXPECT_RC(simple_io(f, IO_READ, 0, 4096), -ERR_NOT_FOUND);
	harness_do(&f->h, unhold, f);
	harness_await(&f->h, nothing_pending, f, "late answers");
	fixture_free(f);
}
