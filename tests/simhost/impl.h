/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of simhost: what its files share. */
#pragma once

#include <ucontext.h>

#include "node/base/list.h"
#include "node/loop/loop.h"
#include "tests/simhost/simhost.h"

/* ---- Fibers: a fiber is a thread of a process (sched.c) ---- */

struct fiber {
	struct list link; /* proc->fibers */
	struct vproc *proc;
	ucontext_t context;
	struct stack *stack;
	void *(*fn)(void *arg);
	void *arg, *result;
	char name[16];
	bool blocked, token, ended;
	uint64_t sleep; /* which sleep: wake-ups for an earlier one are void */
	/* What it waits for: a mutex, condition, semaphore or thread (threads.c). */
	const void *on;
	uint64_t on_since;
	const char *why;
	void *asan;
	bool in_turn; /* of a loop: what is thread-local must stay as it is, */
	void *locals; /* here while others run */
};

struct fiber *fiber_current(void); /* NULL: outside */
struct fiber *fiber_spawn(struct vproc *p, const char *name, void *(*fn)(void *arg), void *arg);
/* Until fiber_wake (once is kept if it comes first), or until the time. May return early. */
void fiber_block(const char *why, uint64_t until_us);
void fiber_wake(struct fiber *f);
void fiber_sleep(uint64_t us); /* at least */
/* Another thread may run here: now and then one does. */
void fiber_crossing(void);
void fiber_clock(void); /* a clock is about to be looked at */
#define FOREVER UINT64_MAX

struct vproc {
	struct list link; /* host->procs */
	struct vhost *host;
	char name[16];
	void (*main)(void *arg);
	void *arg;
	bool alive, clean;
	char tag[96]; /* sockets.c */
	const struct vnet_tap *tap;
	uint64_t paused_until;
	uint64_t stall_us; /* 0: no stall to come */
	unsigned stall_points;
	uint64_t midst_until; /* it stands still in the midst of something until then */
	struct list fibers;
	struct list files; /* struct vfd */
	size_t leaked;
};

struct latency {
	uint64_t lo, hi;
};
struct vhost {
	struct list link;
	char name[16];
	unsigned address; /* sockets.c */
	bool powered;
	long cores; /* what sysconf says */
	uint64_t clock_offset_us;
	int64_t drift_ppm;
	struct rng rng; /* what getrandom gives */
	struct list procs, files, dbs, resources;
	uint64_t ios;
	struct latency latency[VIO_KINDS];
	enum vfault (*fault)(void *arg, const struct vio *io);
	void *fault_arg;
};

struct vhost *vhost_by_address(unsigned address);
uint64_t vhost_clock_us(const struct vhost *h);
uint64_t draw(uint64_t lo, uint64_t hi); /* inclusive, from the run's seed */
bool chance(double p);

/* Counts the I/O and asks what happens to it. CUT_BEFORE and KILL_BEFORE do not return. */
enum vfault vio_start(struct vio *io);
/* Does not return: the calling thread's host or process ends now. */
_Noreturn void vio_die(struct vhost *h, enum vfault f);
static inline bool fault_is_cut(enum vfault f)
{
	return f == VFAULT_CUT_BEFORE || f == VFAULT_CUT_DURING || f == VFAULT_CUT_AFTER;
}

/* Anything else of a host that outlives its processes. */
struct vresource {
	struct list link; /* host->resources */
	void (*power_cut)(struct vresource *r);
	void (*process_died)(struct vresource *r, struct vproc *p);
	void (*drop)(struct vresource *r);
};

/* ---- Memory that is not a process's (heap.c) ---- */

void *keep_alloc(size_t n); /* zeros */
void *keep_dup(const void *p, size_t n);
char *keep_str(const char *s);
void keep_free(void *p);
size_t heap_count(const struct vproc *p);
void heap_drop(struct vproc *p); /* gives back all it has */

/* ---- Loops (loop.c) ---- */

void loops_begin(void); /* a run begins: no loop was busy */

/* ---- Files (disk.c, files.c) ---- */

struct vfile {
	struct list link;
	char *path;
	bool dir;
	uint64_t size;
	struct chunk **chunks; /* of what a read sees; NULL: zeros */
	struct list flying, settled; /* struct disk_op: in flight; done but not durable, oldest first */
	struct vproc *locked_by;
};
struct vfd { /* an open file */
	struct list link;
	struct vproc *proc;
	struct vfile *file;
	int fd;
	bool writable;
};

struct vfile *vfile_find(struct vhost *h, const char *path);
struct vfd *vfd_find(int fd); /* of the current process */

/* One read, write or flush. It belongs to the disk: it goes on when its process has died. */
struct disk_op {
	struct list link;
	struct vfile *file;
	struct vio io;
	enum vfault fault;
	uint64_t lands; /* where a write goes */
	uint8_t *data, *old; /* old: what a settled write replaced */
	bool *durable; /* settled writes, by sector: later durable ones count, not this */
	bool orphan; /* settled before a flush that failed: no later flush makes it durable */
	uint64_t finished; /* order of completion */
	uint64_t covers; /* a flush: writes that finished before it began */
	int rc;
	/* Not after the process's death: */
	const struct iovec *iov;
	unsigned iov_count;
	void (*done)(struct disk_op *op); /* frees nothing; op->rc is the result */
	void *owner;
};
/* Starts it; done comes later, from outside of any process. iov: read into, or written from now. */
void disk_start(struct vfd *f, enum vio_kind kind, const struct iovec *iov, unsigned n, uint64_t off,
		bool dsync, void (*done)(struct disk_op *op), void *owner);
/* The same, and waits: 0 or a negative errno. */
int disk_do(struct vfd *f, enum vio_kind kind, const struct iovec *iov, unsigned n, uint64_t off);
void disk_process_died(struct vhost *h, struct vproc *p); /* its writes in flight */
void disk_power_cut(struct vhost *h);
void disk_drop(struct vhost *h);
void disk_copy(struct vhost *to, const struct vhost *from);
void fds_close(struct vproc *p);

/* ---- Databases (kv.c) ---- */

void db_power_cut(struct vhost *h);
void db_process_died(struct vproc *p);
void db_drop(struct vhost *h);
void db_copy(struct vhost *to, const struct vhost *from);

/* ---- Sockets (sockets.c) ---- */

#define VNET_HOSTS 32u
struct vnet_tap;

void loop_watch_ready(struct loop *l, struct list *link); /* loop.c */
void watches_run(struct list *ready);
bool vsock_close(int fd); /* false: it is no socket */
void sockets_process_died(struct vproc *p);
void sockets_power_cut(struct vhost *h);
void sockets_forget(void);
