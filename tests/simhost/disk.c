/* SPDX-License-Identifier: Apache-2.0 */
/* Disks: files in memory that know which writes are not durable. A write is in flight, then settled
 * (reads see it), then durable: at once if it was to be, else by a flush that began after it ended.
 * A power cut takes settled and flying writes back and then lets sectors of them through by chance.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simhost/impl.h"

#define CHUNK 4096u

/* Shared between hosts and images until it is written. */
struct chunk {
	unsigned refs;
	uint8_t b[CHUNK];
};

/* ---- Bytes --------------------------------------------------------------------------------------
 */

static uint64_t chunk_count(const struct vfile *f)
{
	return (f->size + CHUNK - 1) / CHUNK;
}

static void bytes_read(const struct vfile *f, uint64_t off, void *out, size_t n)
{
	uint8_t *to = out;

	while (n) {
		size_t at = off % CHUNK, k = MIN(n, CHUNK - at);
		const struct chunk *c = f->chunks[off / CHUNK];

		if (c)
			memcpy(to, c->b + at, k);
		else
			memset(to, 0, k);
		to += k;
		off += k;
		n -= k;
	}
}

static void chunk_put(struct chunk *c)
{
	if (c && --c->refs == 0)
		keep_free(c);
}

static void bytes_write(struct vfile *f, uint64_t off, const void *p, size_t n)
{
	const uint8_t *from = p;

	while (n) {
		size_t at = off % CHUNK, k = MIN(n, CHUNK - at);
		struct chunk **c = &f->chunks[off / CHUNK], *old = *c;

		if (!old || old->refs > 1) {
			*c = old ? keep_dup(old, sizeof(*old)) : keep_alloc(sizeof(*old));
			(*c)->refs = 1;
			chunk_put(old);
		}
		memcpy((*c)->b + at, from, k);
		from += k;
		off += k;
		n -= k;
	}
}

/* ---- Files --------------------------------------------------------------------------------------
 */

struct vfile *vfile_find(struct vhost *h, const char *path)
{
	struct vfile *f;

	list_for_each(f, &h->files, link) if (!strcmp(f->path, path)) return f;
	return NULL;
}

static void op_free(struct disk_op *op)
{
	keep_free(op->data);
	keep_free(op->old);
	keep_free(op->durable);
	keep_free(op);
}

/* Its event still comes; it finds no file, and ends. */
static void op_abandon(struct disk_op *op)
{
	list_del(&op->link);
	op->file = NULL;
}

static void settled_clear(struct vfile *f)
{
	struct list *n;

	while ((n = list_pop_front(&f->settled)))
		op_free(list_entry(n, struct disk_op, link));
}

static void file_free(struct vfile *f)
{
	settled_clear(f);
	while (!list_empty(&f->flying))
		op_abandon(list_first(&f->flying, struct disk_op, link));
	for (uint64_t i = 0; i < chunk_count(f); i++)
		chunk_put(f->chunks[i]);
	keep_free(f->chunks);
	keep_free(f->path);
	list_del(&f->link);
	keep_free(f);
}

static struct vfile *file_make(struct vhost *h, const char *path, uint64_t size)
{
	struct vfile *f = vfile_find(h, path);

	if (f)
		file_free(f);
	CHECK(!strncmp(path, VPATH, strlen(VPATH)));
	f = keep_alloc(sizeof(*f));
	f->path = keep_str(path);
	f->size = size;
	f->chunks = keep_alloc((chunk_count(f) + 1) * sizeof(*f->chunks));
	list_init(&f->flying);
	list_init(&f->settled);
	list_push_back(&h->files, &f->link);
	return f;
}

void vfile_create(struct vhost *h, const char *path, uint64_t size)
{
	file_make(h, path, size);
}

void vfile_mkdir(struct vhost *h, const char *path)
{
	file_make(h, path, 0)->dir = true;
}

/* Not while it is open. */
void vfile_remove(struct vhost *h, const char *path)
{
	struct vfile *f = vfile_find(h, path);

	CHECK(f);
	file_free(f);
}

static struct vfile *file_of(struct vhost *h, const char *path, uint64_t off, size_t n)
{
	struct vfile *f = vfile_find(h, path);

	CHECK(f && off <= f->size && n <= f->size - off);
	return f;
}

void vfile_peek(struct vhost *h, const char *path, uint64_t off, void *out, size_t n)
{
	bytes_read(file_of(h, path, off, n), off, out, n);
}

void vfile_poke(struct vhost *h, const char *path, uint64_t off, const void *p, size_t n)
{
	bytes_write(file_of(h, path, off, n), off, p, n);
}

void disk_drop(struct vhost *h)
{
	while (!list_empty(&h->files))
		file_free(list_first(&h->files, struct vfile, link));
}

void disk_copy(struct vhost *to, const struct vhost *from)
{
	struct vfile *f;

	disk_drop(to);
	list_for_each(f, &from->files, link)
	{
		struct vfile *t = file_make(to, f->path, f->size);

		t->dir = f->dir;
		for (uint64_t i = 0; i < chunk_count(f); i++) {
			t->chunks[i] = f->chunks[i];
			if (t->chunks[i])
				t->chunks[i]->refs++;
		}
	}
}

/* ---- What is durable ----------------------------------------------------------------------------
 */

static size_t sectors_of(const struct disk_op *op)
{
	return (op->io.len + SECTOR - 1) / SECTOR;
}

static size_t sector_len(const struct disk_op *op, size_t i)
{
	return MIN((uint64_t)SECTOR, op->io.len - i * SECTOR);
}

/* What was settled in its place before does not count any more, whatever happens to it. */
static void make_durable(struct vfile *f, const struct disk_op *op)
{
	struct disk_op *s;
	uint64_t end = op->lands + op->io.len;

	list_for_each(s, &f->settled, link)
	{
		if (s->finished >= op->finished || s->lands >= end ||
		    s->lands + s->io.len <= op->lands)
			continue;
		if (!s->durable)
			s->durable = keep_alloc(sectors_of(s) * sizeof(bool));
		for (size_t i = 0; i < sectors_of(s); i++) {
			uint64_t at = s->lands + i * SECTOR;

			if (at < end && at + SECTOR > op->lands)
				s->durable[i] = true;
		}
	}
}

static void settle(struct disk_op *op)
{
	static uint64_t order;
	struct vfile *f = op->file;

	op->finished = ++order;
	op->old = keep_alloc(op->io.len);
	bytes_read(f, op->lands, op->old, op->io.len);
	bytes_write(f, op->lands, op->data, op->io.len);
	if (op->io.sync)
		make_durable(f, op);
	else
		list_push_back(&f->settled, &op->link);
}

static uint64_t settled_last(const struct vfile *f)
{
	return list_empty(&f->settled) ? 0 : list_last(&f->settled, struct disk_op, link)->finished;
}

static void flushed(struct vfile *f, uint64_t upto)
{
	struct disk_op *s, *next;

	list_for_each_safe(s, next, &f->settled, link)
	{
		if (s->finished > upto || s->orphan)
			continue;
		make_durable(f, s); /* over orphans that came before it */
		list_del(&s->link);
		op_free(s);
	}
}

/* A failed flush: the kernel has given these up; a later flush says nothing about them. */
static void orphaned(struct vfile *f, uint64_t upto)
{
	struct disk_op *s;

	list_for_each(s, &f->settled, link) s->orphan |= s->finished <= upto;
}

/* Sectors of the write get through with this chance; of those that do not, some are garbage. */
static void let_through(struct vfile *f, const struct disk_op *op, double keep, double garbage)
{
	for (size_t i = 0; i < sectors_of(op); i++) {
		uint64_t at = op->lands + i * SECTOR;
		uint8_t junk[SECTOR];

		if (op->durable && op->durable[i])
			continue;
		if (chance(keep)) {
			bytes_write(f, at, op->data + i * SECTOR, sector_len(op, i));
		} else if (chance(garbage)) {
			rng_fill(simhost_rng(), junk, sizeof(junk));
			bytes_write(f, at, junk, sector_len(op, i));
		}
	}
}

static void file_power_cut(struct vfile *f)
{
	static const double keeps[] = {0, 0, 0.5, 0.9, 1}, garbages[] = {0, 0, 0.3};
	double keep = keeps[draw(0, 4)], garbage = garbages[draw(0, 2)];
	struct disk_op *op;

	for (struct list *n = f->settled.prev; n != &f->settled; n = n->prev) {
		op = list_entry(n, struct disk_op, link);
		for (size_t i = 0; i < sectors_of(op); i++)
			if (!op->durable || !op->durable[i])
				bytes_write(f, op->lands + i * SECTOR, op->old + i * SECTOR,
					    sector_len(op, i));
	}
	list_for_each(op, &f->settled, link) let_through(f, op, keep, garbage);
	keep = keeps[draw(0, 4)];
	while (!list_empty(&f->flying)) {
		op = list_first(&f->flying, struct disk_op, link);
		if (op->io.kind == VIO_WRITE && op->fault != VFAULT_LOST)
			let_through(f, op, keep, garbage);
		op_abandon(op);
	}
	settled_clear(f);
	f->locked_by = NULL;
}

void disk_power_cut(struct vhost *h)
{
	struct vfile *f;

	list_for_each(f, &h->files, link) file_power_cut(f);
}

/* ---- Operations ---------------------------------------------------------------------------------
 */

static void iov_gather(const struct disk_op *op, uint8_t *buf)
{
	for (unsigned i = 0; i < op->iov_count; i++) {
		memcpy(buf, op->iov[i].iov_base, op->iov[i].iov_len);
		buf += op->iov[i].iov_len;
	}
}

static uint64_t elsewhere(const struct vfile *f, uint64_t len)
{
	return f->size > len ? draw(0, (f->size - len) / CHUNK) * CHUNK : 0;
}

static void flip(uint8_t *p, size_t n)
{
	uint64_t bit = draw(0, n * 8 - 1);

	p[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static void read_ends(struct disk_op *op)
{
	uint64_t at = op->fault == VFAULT_MISDIRECTED ? elsewhere(op->file, op->io.len) : op->io.off;

	for (unsigned i = 0; i < op->iov_count; i++) {
		bytes_read(op->file, at, op->iov[i].iov_base, op->iov[i].iov_len);
		at += op->iov[i].iov_len;
	}
	if (op->fault == VFAULT_FLIP)
		flip(op->iov[0].iov_base, op->iov[0].iov_len);
}

/* True: the operation is on the list of what is settled. */
static bool write_ends(struct disk_op *op)
{
	bool sync = op->io.sync;

	switch (op->fault) {
	case VFAULT_LOST:
	case VFAULT_ENOSPC:
		return false;
	case VFAULT_EIO:
		op->io.sync = sync = false; /* nobody knows */
		op->io.len = round_down(draw(0, op->io.len), SECTOR);
		if (!op->io.len)
			return false;
		break;
	case VFAULT_MISDIRECTED:
		op->lands = elsewhere(op->file, op->io.len);
		break;
	case VFAULT_FLIP:
		flip(op->data, op->io.len);
		break;
	default:
		break;
	}
	settle(op);
	return !sync;
}

static int error_of(enum vfault f)
{
	return f == VFAULT_EIO ? -EIO : f == VFAULT_ENOSPC ? -ENOSPC : 0;
}

static void op_ends(void *arg)
{
	struct disk_op *op = arg;
	struct vproc *p = op->io.proc;
	struct vhost *h = op->io.host;
	enum vfault fault = op->fault;
	bool settled = false;

	if (!op->file) { /* the power was cut, or its process killed */
		op_free(op);
		return;
	}
	if (!op->rc)
		op->rc = error_of(fault);
	list_del(&op->link);
	if (op->rc && op->io.kind == VIO_FLUSH)
		orphaned(op->file, op->covers);
	else if (op->io.kind == VIO_FLUSH && fault != VFAULT_LOST)
		flushed(op->file, op->covers);
	else if (op->io.kind == VIO_WRITE)
		settled = write_ends(op);
	else if (op->io.kind == VIO_READ && !op->rc)
		read_ends(op);
	if (fault != VFAULT_CUT_AFTER && fault != VFAULT_KILL_AFTER)
		op->done(op);
	if (!settled)
		op_free(op);
	if (fault == VFAULT_CUT_AFTER)
		vhost_power_cut(h);
	else if (fault == VFAULT_KILL_AFTER)
		vproc_kill(p);
}

static void cut_during(void *arg)
{
	struct disk_op *op = arg;
	struct vhost *h = op->io.host;

	if (op->file)
		vhost_power_cut(h);
	op_free(op);
}

void disk_start(struct vfd *fd, enum vio_kind kind, const struct iovec *iov, unsigned n,
		uint64_t off, bool dsync, void (*done)(struct disk_op *op), void *owner)
{
	struct disk_op *op = keep_alloc(sizeof(*op));
	struct vfile *f = fd->file;
	struct vhost *h = fd->proc->host;
	uint64_t latency = draw(h->latency[kind].lo, h->latency[kind].hi);

	op->file = f;
	op->io = (struct vio){.host = h,
			      .proc = fd->proc,
			      .kind = kind,
			      .path = f->path,
			      .off = off,
			      .sync = dsync};
	op->iov = iov;
	op->iov_count = n;
	for (unsigned i = 0; i < n; i++)
		op->io.len += iov[i].iov_len;
	op->done = done;
	op->owner = owner;
	op->lands = off;
	op->fault = vio_start(&op->io);
	op->covers = settled_last(f);
	if (kind == VIO_WRITE) {
		op->data = keep_alloc(op->io.len);
		iov_gather(op, op->data);
	}
	if (kind != VIO_FLUSH && (off > f->size || op->io.len > f->size - off)) {
		op->rc = kind == VIO_READ ? -ENODATA : -ENOSPC;
		op->fault = op->rc == -ENOSPC ? VFAULT_ENOSPC : VFAULT_NONE;
	}
	list_push_back(&f->flying, &op->link);
	if (op->fault == VFAULT_CUT_DURING)
		simhost_at(latency / 2, NULL, cut_during, (void (*)(void *))op_free, op);
	else
		simhost_at(latency, NULL, op_ends, (void (*)(void *))op_free, op);
}

struct blocking {
	struct fiber *fiber;
	bool ended;
	int rc;
};

static void blocking_ended(struct disk_op *op)
{
	struct blocking *b = op->owner;

	b->ended = true;
	b->rc = op->rc;
	fiber_wake(b->fiber);
}

int disk_do(struct vfd *f, enum vio_kind kind, const struct iovec *iov, unsigned n, uint64_t off)
{
	struct blocking b = {.fiber = fiber_current()};

	disk_start(f, kind, iov, n, off, false, blocking_ended, &b);
	while (!b.ended)
		fiber_block(vio_names[kind], FOREVER);
	return b.rc;
}

/* Before the process is gone its writes are, one way or the other: the kernel waits for them. */
void disk_process_died(struct vhost *h, struct vproc *p)
{
	struct vfile *f;
	struct disk_op *op, *next;

	list_for_each(f, &h->files, link) list_for_each_safe(op, next, &f->flying, link)
	{
		struct disk_op *half;

		if (op->io.proc != p)
			continue;
		op_abandon(op);
		if (op->io.kind != VIO_WRITE || op->fault == VFAULT_LOST ||
		    op->fault == VFAULT_ENOSPC || chance(0.3))
			continue;
		half = keep_alloc(sizeof(*half));
		half->file = f;
		half->io = op->io;
		half->lands = op->lands;
		half->data = keep_dup(op->data, op->io.len);
		if (chance(0.3))
			half->io.len = round_down(draw(0, op->io.len), CHUNK);
		if (!half->io.len) {
			op_free(half);
			continue;
		}
		half->io.sync = false;
		settle(half);
	}
}
