/* SPDX-License-Identifier: Apache-2.0 */
/* One event loop = one thread: libevent for sockets and timers, io_uring for files.
 *
 * A turn: run what is ready (timers, posts, sockets, file completions), then what armed itself for
 * the end of the turn, in two phases (LOG: the write log forms its batches; SEND: connections form
 * their gathered sends), then one io_uring submit. Everything is batched per turn.
 *
 * All calls are for the loop's own thread unless they say "any thread". Nothing here calls back from
 * inside a call. The simulator links another implementation of this header: time, files and sockets
 * come from nowhere else. */
#pragma once

#include <sys/uio.h>

#include "node/base/list.h"
#include "node/base/op.h"
#include "node/base/rng.h"

struct loop;
struct event_base;

struct loop *loop_create(const char *name, unsigned ring_entries); /* NULL: log says why. Any thread */
void loop_destroy(struct loop *l);				   /* after loop_run returned */
void loop_run(struct loop *l);	/* until loop_stop; makes the calling thread the loop's */
void loop_stop(struct loop *l); /* any thread */
bool loop_is_current(const struct loop *l);
struct rng *loop_rng(struct loop *l);
struct event_base *loop_event_base(struct loop *l); /* for node/http, evhttp's door, only */

/* Starts a thread that runs the loop; loop_join waits for its end. Any thread. */
int loop_spawn(struct loop *l) MUST_USE;
void loop_join(struct loop *l);

/* Clocks, in microseconds, read now: never the turn's cached time, which leases may not use. */
uint64_t loop_mono_us(struct loop *l); /* CLOCK_MONOTONIC: timers, latencies */
uint64_t loop_boot_us(struct loop *l); /* CLOCK_BOOTTIME: leases, grants, up-times */
uint64_t loop_turn_us(struct loop *l); /* CLOCK_MONOTONIC at the start of this turn; cheap */

/* One-shot timers. */
struct timer {
	struct loop *loop;
	void (*fn)(struct timer *t);
	void *impl;
	bool armed;
};
void timer_init(struct timer *t, struct loop *l, void (*fn)(struct timer *t));
void timer_set(struct timer *t, uint64_t delay_us); /* re-arms if armed */
void timer_cancel(struct timer *t);
void timer_fini(struct timer *t);

/* Messages between threads: fn runs on the loop's thread, in order per sender. The memory is the
 * sender's until fn runs. Any thread. */
struct post {
	struct post *next;
	void (*fn)(struct post *p);
};
void loop_post(struct loop *l, struct post *p);

/* End of turn: fn runs once, after everything that was ready, in the phase's order. Arming twice is
 * once. A LOG hook may arm SEND hooks of the same turn. */
enum turn_phase { TURN_LOG, TURN_SEND, TURN_PHASES };
struct turn_end {
	struct list link;
	void (*fn)(struct turn_end *t);
};
void turn_end_init(struct turn_end *t, void (*fn)(struct turn_end *t));
void turn_end_arm(struct loop *l, struct turn_end *t, enum turn_phase phase);
void turn_end_disarm(struct turn_end *t);

/* File I/O on the ring. Resumes with 0 when all bytes moved, or a negative errno (a read that meets
 * the end of the file: -ENODATA). Short transfers are continued inside. The iovec array and memory
 * are the kernel's until the resume. Always PENDING. */
struct io {
	struct wait *wait;
	struct loop *loop;
	struct list link;
	const struct iovec *iov;
	struct iovec single; /* io_read/io_write use it as their array */
	uint64_t off, len, done;
	unsigned iov_count;
	int fd, op, flags;
};
enum io_flags { IO_DSYNC = 1 }; /* the write is durable at its completion */
int io_writev(struct loop *l, struct io *io, int fd, const struct iovec *iov, unsigned n, uint64_t off,
	      int flags, struct wait *w) MUST_USE;
int io_read(struct loop *l, struct io *io, int fd, void *data, size_t len, uint64_t off,
	    struct wait *w) MUST_USE;
int io_write(struct loop *l, struct io *io, int fd, const void *data, size_t len, uint64_t off,
	     int flags, struct wait *w) MUST_USE;
int io_fsync(struct loop *l, struct io *io, int fd, struct wait *w) MUST_USE; /* fdatasync */
unsigned loop_io_inflight(const struct loop *l);
/* Optional, any thread: after open and before close of a file that rings will work on. On a file system
 * in memory (tmpfs) nothing ever waits for a device, yet the kernel hands each request of a ring to a
 * thread of its own, which costs more than the copy: there the loop moves the bytes itself, at the end of
 * the turn. */
void io_file_opened(int fd);
void io_file_closed(int fd);

/* Socket readiness, level-triggered. Only net/, node/http and the NBD front end use it. */
enum fd_events { FD_READ = 1, FD_WRITE = 2 };
struct fdwatch {
	struct loop *loop;
	void (*fn)(struct fdwatch *w, unsigned events);
	int fd;
	unsigned wanted;
	void *impl_read, *impl_write;
};
void fdwatch_init(struct fdwatch *w, struct loop *l, int fd, void (*fn)(struct fdwatch *, unsigned));
void fdwatch_want(struct fdwatch *w, unsigned events); /* 0 stops */
void fdwatch_fini(struct fdwatch *w);		       /* does not close fd */
