/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/client/fake_client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "node/base/err.h"

#define FAKE_VOLUMES 8u

struct volume {
	struct client *client;
	struct fake_volume v;
};

struct close_wait {
	struct list link;
	struct wait *wait;
};

struct client {
	struct loop *loop;
	struct buf_pool *pool;
	struct volume volumes[FAKE_VOLUMES];
	unsigned count;
	struct list held, closing;
	unsigned held_count;
	bool hold;
	int fail;
	struct turn_end turn;
};

static void fake_turn(struct turn_end *t)
{
	struct client *c = container_of(t, struct client, turn);
	struct list *l;

	while ((l = list_pop_front(&c->closing))) {
		struct close_wait *k = list_entry(l, struct close_wait, link);
		struct wait *w = k->wait;

		free(k);
		wait_resume(w, 0);
	}
}

struct client *fake_client_create(struct loop *l, struct buf_pool *pool)
{
	struct client *c = xcalloc(1, sizeof(*c));

	c->loop = l;
	c->pool = pool;
	list_init(&c->held);
	list_init(&c->closing);
	turn_end_init(&c->turn, fake_turn);
	return c;
}

void fake_client_destroy(struct client *c)
{
	for (unsigned i = 0; i < c->count; i++) {
		CHECK(c->volumes[i].v.opens == 0);
		munmap(c->volumes[i].v.data, c->volumes[i].v.size);
		free(c->volumes[i].v.state);
	}
	turn_end_disarm(&c->turn);
	free(c);
}

struct fake_volume *fake_volume_add(struct client *c, const char *name, uint64_t size)
{
	struct volume *v = &c->volumes[c->count++];

	CHECK(c->count <= FAKE_VOLUMES);
	v->client = c;
	strncpy(v->v.name, name, NAME_MAX_LEN);
	v->v.size = size;
	v->v.data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(v->v.data != MAP_FAILED);
	v->v.state = xmalloc(size / BLOCK_SIZE + 1);
	memset(v->v.state, IO_EXTENT_HOLE | IO_EXTENT_ZERO, size / BLOCK_SIZE + 1);
	return &v->v;
}

void fake_client_hold(struct client *c, bool hold)
{
	c->hold = hold;
}

unsigned fake_client_held(const struct client *c)
{
	return c->held_count;
}

void fake_client_fail(struct client *c, int rc)
{
	c->fail = rc;
}

/* ---- client.h ---- */

int client_find(const struct client *c, const char *name, struct client_volume *out)
{
	for (unsigned i = 0; i < c->count; i++)
		if (!strcmp(c->volumes[i].v.name, name)) {
			memcpy(out->name, c->volumes[i].v.name, sizeof(out->name));
			out->size = c->volumes[i].v.size;
			return 0;
		}
	return -ERR_NOT_FOUND;
}

const char *fake_client_removed;

bool client_is_removed(const struct client *c, const char *identity)
{
	return fake_client_removed && !strcmp(identity, fake_client_removed);
}

void client_list(const struct client *c, void (*fn)(void *arg, const struct client_volume *v),
		 void *arg)
{
	for (unsigned i = 0; i < c->count; i++) {
		struct client_volume v;

		CHECK(client_find(c, c->volumes[i].v.name, &v) == 0);
		fn(arg, &v);
	}
}

int volume_open(struct client *c, const char *name, bool shared, struct volume **out)
{
	for (unsigned i = 0; i < c->count; i++)
		if (!strcmp(c->volumes[i].v.name, name)) {
			c->volumes[i].v.opens++;
			c->volumes[i].v.shared_opens += shared;
			*out = &c->volumes[i];
			return 0;
		}
	return -ERR_NOT_FOUND;
}

void volume_close(struct volume *v, struct wait *w)
{
	struct close_wait *k = xcalloc(1, sizeof(*k));

	k->wait = w;
	v->v.opens--;
	list_push_back(&v->client->closing, &k->link);
	turn_end_arm(v->client->loop, &v->client->turn, TURN_SEND);
}

uint64_t volume_size(const struct volume *v)
{
	return v->v.size;
}

const char *volume_name(const struct volume *v)
{
	return v->v.name;
}

const char *volume_held_by(const struct volume *v)
{
	return "held by client:other@elsewhere";
}

void volume_on_resize(struct volume *v, void (*fn)(void *arg, uint64_t size), void *arg)
{
}

void volume_abort(struct volume *v, int rc)
{
	struct client *c = v->client;
	struct volume_io *io, *tmp;

	list_for_each_safe(io, tmp, &c->held, link) if (io->impl == v)
	{
		list_del(&io->link);
		c->held_count--;
		wait_resume(io->wait, rc);
	}
}

static void mark(struct volume *v, uint64_t off, uint64_t len, uint8_t state, bool whole_only)
{
	uint64_t first = off / BLOCK_SIZE, end = (off + len + BLOCK_SIZE - 1) / BLOCK_SIZE;

	if (whole_only) {
		first = (off + BLOCK_SIZE - 1) / BLOCK_SIZE;
		end = (off + len) / BLOCK_SIZE;
	}
	if (end > first)
		memset(v->v.state + first, state, end - first);
}

static int fake_read(struct volume *v, struct volume_io *io)
{
	uint64_t off = io->offset, end = io->offset + io->length;
	unsigned n = 0;

	while (off < end) {
		uint32_t len = (uint32_t)MIN(end - off, STRIPE_UNIT - off % STRIPE_UNIT);
		struct buf *b = buf_get(v->client->pool, len);

		CHECK(b && n < io->slices_max);
		memcpy(b->data, v->v.data + off, len);
		io->slices[n++] = (struct slice){b, b->data, len};
		off += len;
	}
	io->slice_count = n;
	v->v.reads++;
	return 0;
}

static int fake_status(struct volume *v, struct volume_io *io)
{
	uint64_t off = io->offset, end = io->offset + io->length;

	io->extent_count = 0;
	while (off < end) {
		uint8_t state = v->v.state[off / BLOCK_SIZE];
		uint64_t at = off;

		while (at < end && v->v.state[at / BLOCK_SIZE] == state)
			at = MIN((at / BLOCK_SIZE + 1) * BLOCK_SIZE, end);
		if (io->extent_count == io->extents_max)
			break;
		io->extents[io->extent_count++] = (struct io_extent){(uint32_t)(at - off), state};
		off = at;
	}
	return 0;
}

static int fake_run(struct volume *v, struct volume_io *io)
{
	uint64_t off = io->offset;

	if (v->client->fail)
		return v->client->fail;
	switch (io->kind) {
	case IO_READ:
		return fake_read(v, io);
	case IO_WRITE:
		for (unsigned i = 0; i < io->slice_count; i++) {
			memcpy(v->v.data + off, io->slices[i].data, io->slices[i].len);
			off += io->slices[i].len;
		}
		CHECK(off == io->offset + io->length);
		mark(v, io->offset, io->length, 0, false);
		v->v.writes++;
		return 0;
	case IO_TRIM:
		memset(v->v.data + off, 0, io->length);
		mark(v, off, io->length, IO_EXTENT_HOLE | IO_EXTENT_ZERO, true);
		v->v.trims++;
		return 0;
	case IO_ZEROES:
		memset(v->v.data + off, 0, io->length);
		mark(v, off, io->length, IO_EXTENT_ZERO, true);
		v->v.zeroes++;
		return 0;
	default:
		return fake_status(v, io);
	}
}

int volume_io(struct volume *v, struct volume_io *io, struct wait *w)
{
	struct client *c = v->client;

	if (io->offset > v->v.size || io->length > v->v.size - io->offset)
		return -EINVAL;
	io->wait = w;
	io->impl = v;
	if (!io->length)
		return 0;
	if (!c->hold)
		return fake_run(v, io);
	list_push_back(&c->held, &io->link);
	c->held_count++;
	return PENDING;
}

void fake_client_release(struct client *c)
{
	while (!list_empty(&c->held)) {
		struct volume_io *io = list_last(&c->held, struct volume_io, link);

		list_del(&io->link);
		c->held_count--;
		wait_resume(io->wait, fake_run(io->impl, io));
	}
}
