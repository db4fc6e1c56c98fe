/* SPDX-License-Identifier: Apache-2.0 */
/* liburing's door: file I/O. Requests are prepared during the turn and submitted once, at its end;
 * what does not fit into the submission queue waits in order. A struct io is the kernel's from its
 * start to its resume. */
#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop_impl.h"

enum io_op { RING_READ, RING_WRITE, RING_FSYNC };

static void on_ring(evutil_socket_t fd, short what, void *arg)
{
	/* Edge-triggered wake-up only: the loop reaps once per turn. */
}

int ring_start(struct loop *l, unsigned entries)
{
	int rc;

	list_init(&l->io_waiting);
	list_init(&l->io_memory);
	rc = io_uring_queue_init(entries, &l->ring, IORING_SETUP_CLAMP);
	if (rc < 0)
		return rc;
	l->ring_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(l->ring_fd >= 0);
	rc = io_uring_register_eventfd(&l->ring, l->ring_fd);
	CHECK(rc == 0);
	l->ring_event = event_new(l->base, l->ring_fd, EV_READ | EV_PERSIST | EV_ET, on_ring, l);
	CHECK(l->ring_event && event_add(l->ring_event, NULL) == 0);
	return 0;
}

void ring_stop(struct loop *l)
{
	CHECK(l->io_inflight == 0);
	event_free(l->ring_event);
	io_uring_queue_exit(&l->ring);
	close(l->ring_fd);
}

unsigned loop_io_inflight(const struct loop *l)
{
	return l->io_inflight;
}

/* What is still to be moved: all of it at first; after a short transfer the rest of the vector's
 * element in which it ended, one element at a time. */
static struct iovec io_rest(const struct io *io)
{
	const struct iovec *v = io->iov;
	uint64_t skip = io->done;

	while (skip >= v->iov_len)
		skip -= (v++)->iov_len;
	return (struct iovec){(char *)v->iov_base + skip, v->iov_len - skip};
}

static bool io_prepare(struct loop *l, struct io *io)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&l->ring);
	bool vectored = io->iov_count > 1 && !io->done;
	struct iovec rest;

	if (!sqe)
		return false;
	if (io->op == RING_FSYNC) {
		io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
	} else if (vectored && io->op == RING_READ) {
		io_uring_prep_readv(sqe, io->fd, io->iov, io->iov_count, io->off);
	} else if (vectored) {
		io_uring_prep_writev(sqe, io->fd, io->iov, io->iov_count, io->off);
	} else {
		rest = io_rest(io);
		if (io->op == RING_READ)
			io_uring_prep_read(sqe, io->fd, rest.iov_base, (unsigned)rest.iov_len,
					   io->off + io->done);
		else
			io_uring_prep_write(sqe, io->fd, rest.iov_base, (unsigned)rest.iov_len,
					    io->off + io->done);
	}
	if (io->op == RING_WRITE && (io->flags & IO_DSYNC))
		sqe->rw_flags = RWF_DSYNC;
	io_uring_sqe_set_data(sqe, io);
	return true;
}

/* ---- Files in memory ---- */

#define FDS_MAX 4096
static atomic_bool fd_in_memory[FDS_MAX];

void io_file_opened(int fd)
{
	struct statfs fs;

	if (fd >= 0 && fd < FDS_MAX)
		atomic_store(&fd_in_memory[fd], fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC);
}

void io_file_closed(int fd)
{
	if (fd >= 0 && fd < FDS_MAX)
		atomic_store(&fd_in_memory[fd], false);
}

bool io_in_memory(int fd)
{
	return fd >= 0 && fd < FDS_MAX && atomic_load_explicit(&fd_in_memory[fd], memory_order_relaxed);
}

static int io_move(struct io *io)
{
	struct iovec rest;
	ssize_t n;

	if (io->op == RING_FSYNC)
		return 0; /* as durable as it gets */
	if (!io->done) {
		n = io->op == RING_READ
			    ? preadv(io->fd, io->iov, (int)io->iov_count, (off_t)io->off)
			    : pwritev(io->fd, io->iov, (int)io->iov_count, (off_t)io->off);
	} else {
		rest = io_rest(io);
		n = io->op == RING_READ ? pread(io->fd, rest.iov_base, rest.iov_len,
						(off_t)(io->off + io->done))
					: pwrite(io->fd, rest.iov_base, rest.iov_len,
						 (off_t)(io->off + io->done));
	}
	return n < 0 ? -errno : (int)n;
}

static int io_start(struct loop *l, struct io *io, struct wait *w)
{
	CHECK(w);
	io->wait = w;
	io->loop = l;
	io->done = 0;
	l->io_inflight++;
	if (io_in_memory(io->fd))
		list_push_back(&l->io_memory, &io->link);
	else if (!list_empty(&l->io_waiting) || !io_prepare(l, io))
		list_push_back(&l->io_waiting, &io->link);
	return PENDING;
}

static void io_finish(struct loop *l, struct io *io, int rc)
{
	l->io_inflight--;
	wait_resume(io->wait, rc);
}

static void io_again(struct loop *l, struct io *io)
{
	list_push_back(io_in_memory(io->fd) ? &l->io_memory : &l->io_waiting, &io->link);
}

static void io_complete(struct loop *l, struct io *io, int res)
{
	if (res == -EINTR || res == -EAGAIN) {
		io_again(l, io);
		return;
	}
	if (res < 0 || io->op == RING_FSYNC) {
		io_finish(l, io, res < 0 ? res : 0);
		return;
	}
	if (res == 0) {
		io_finish(l, io, io->op == RING_READ ? -ENODATA : -ENOSPC);
		return;
	}
	io->done += (uint64_t)res;
	if (io->done >= io->len) {
		io_finish(l, io, 0);
		return;
	}
	io_again(l, io);
}

void ring_submit(struct loop *l)
{
	while (!list_empty(&l->io_waiting)) {
		struct io *io = list_first(&l->io_waiting, struct io, link);

		if (!io_prepare(l, io))
			break;
		list_del(&io->link);
	}
	if (io_uring_sq_ready(&l->ring)) {
		int rc = io_uring_submit(&l->ring);

		/* EBUSY/EAGAIN: completions must be reaped first; the entries stay queued. */
		CHECK(rc >= 0 || rc == -EBUSY || rc == -EAGAIN || rc == -EINTR);
	}
}

bool ring_reap(struct loop *l)
{
	struct io_uring_cqe *cqe;
	struct list memory = LIST_INIT(memory), *n;
	bool any = false;

	list_splice_back(&memory, &l->io_memory); /* what resumes start comes next time */
	while ((n = list_pop_front(&memory))) {
		struct io *io = list_entry(n, struct io, link);

		io_complete(l, io, io_move(io));
		any = true;
	}
	while (io_uring_peek_cqe(&l->ring, &cqe) == 0) {
		struct io *io = io_uring_cqe_get_data(cqe);
		int res = cqe->res;

		io_uring_cqe_seen(&l->ring, cqe);
		io_complete(l, io, res);
		any = true;
	}
	return any || !list_empty(&l->io_memory) ||
	       (!list_empty(&l->io_waiting) && io_uring_sq_space_left(&l->ring));
}

int io_writev(struct loop *l, struct io *io, int fd, const struct iovec *iov, unsigned n,
	      uint64_t off, int flags, struct wait *w)
{
	*io = (struct io){
		.iov = iov, .iov_count = n, .off = off, .fd = fd, .op = RING_WRITE, .flags = flags};
	for (unsigned i = 0; i < n; i++)
		io->len += iov[i].iov_len;
	CHECK(io->len > 0);
	return io_start(l, io, w);
}

int io_read(struct loop *l, struct io *io, int fd, void *data, size_t len, uint64_t off,
	    struct wait *w)
{
	CHECK(len > 0);
	*io = (struct io){.single = {data, len},
			  .len = len,
			  .iov_count = 1,
			  .off = off,
			  .fd = fd,
			  .op = RING_READ};
	io->iov = &io->single;
	return io_start(l, io, w);
}

int io_write(struct loop *l, struct io *io, int fd, const void *data, size_t len, uint64_t off,
	     int flags, struct wait *w)
{
	CHECK(len > 0);
	*io = (struct io){.single = {(void *)(uintptr_t)data, len},
			  .len = len,
			  .iov_count = 1,
			  .off = off,
			  .fd = fd,
			  .op = RING_WRITE,
			  .flags = flags};
	io->iov = &io->single;
	return io_start(l, io, w);
}

int io_fsync(struct loop *l, struct io *io, int fd, struct wait *w)
{
	*io = (struct io){.fd = fd, .op = RING_FSYNC};
	return io_start(l, io, w);
}
