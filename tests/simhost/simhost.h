/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated hosts: product code runs unchanged in virtual processes with threads, loops, disks and
 * databases of their own, all in one thread of this process, in virtual time, from one seed.
 *
 * A test links the object library `simhost` before the product's libraries. It stands in for
 * node/loop/loop.h and store/kv.h, and its linker flags send what product code asks of libc
 * (threads, semaphores, files, clocks, memory) here. Outside of virtual processes those calls stay
 * what they are. See README.md. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "node/base/check.h"
#include "node/base/rng.h"

struct vhost; /* a machine: disks, databases, a clock. They survive its processes. */
struct vproc; /* a process on it. Its memory is given back when it ends, however it ends. */

/* ---- Time ---------------------------------------------------------------------------------------- */

void simhost_begin(uint64_t seed); /* nothing exists, time is 0 */
void simhost_end(void);		   /* ends every process, forgets every host */
uint64_t simhost_now_us(void);
struct rng *simhost_rng(void);
/* The next event. False: there is none, everybody waits for ever. Not from inside a process. */
bool simhost_step(void);
/* Runs until done() says so (checked between events; may be NULL), until the time, or until nothing is
 * left. True: done. */
bool simhost_run(bool (*done)(void *arg), void *arg, uint64_t until_us);
/* A number over all that has happened: the same seed must give the same one. */
uint64_t simhost_trace(void);
void simhost_note(uint64_t x); /* adds to it */
/* The loop that took most turns within SIMHOST_BUSY_US of virtual time, so far in this run. What waits
 * without waiting (asks again at once, is woken for nothing) is idle by its results and shows here. */
#define SIMHOST_BUSY_US 100000u
struct simhost_busy {
	uint64_t turns, at_us; /* at_us: when */
	char host[16], loop[16];
};
const struct simhost_busy *simhost_busiest(void);
/* What each thread that waits is waiting for, to stderr; for failures. */
void simhost_dump(void);

/* fn(arg) at now + delay, outside of any process; with p: only if p lives then, else drop(arg) (may be
 * NULL). For networks and scripts; use loop_post to get onto a loop. */
void simhost_at(uint64_t delay_us, struct vproc *p, void (*fn)(void *arg), void (*drop)(void *arg),
		void *arg);
/* Memory that product code allocates between the two is nobody's: it outlives the process. */
void simhost_keep_begin(void);
void simhost_keep_end(void);

/* ---- Hosts and processes ------------------------------------------------------------------------- */

struct vhost *vhost_create(const char *name);
/* loop_mono_us and loop_boot_us are offset + time × (1 + drift/10^6). */
void vhost_set_clock(struct vhost *h, uint64_t offset_us, int64_t drift_ppm);
/* Every process dies; each sector that was not durable is as it was, as it was to be, or garbage;
 * unsynced database batches are lost from some point on. From anywhere. */
void vhost_power_cut(struct vhost *h);

/* Starts a process: main runs as its first thread, and when it returns the process ends. */
struct vproc *vproc_spawn(struct vhost *h, const char *name, void (*main)(void *arg), void *arg);
bool vproc_alive(const struct vproc *p);
bool vproc_ended(const struct vproc *p); /* its main returned */
/* kill -9: writes in flight still happen, or do not; everything else is kept. From anywhere. */
void vproc_kill(struct vproc *p);
void vproc_pause(struct vproc *p, uint64_t us); /* SIGSTOP, or a stalled virtual machine */
/* The same, but in the midst of what it does: when its threads look at a clock for the points-th time from
 * now, just before they do. */
void vproc_stall(struct vproc *p, unsigned points, uint64_t us);
bool vproc_in_midst(const struct vproc *p); /* it does so now: its data may be half changed */
struct vproc *vproc_current(void);
struct vhost *vproc_host(const struct vproc *p);
size_t vproc_leaked(const struct vproc *p); /* allocations that were left when main returned */
/* Runs a process to its end; false: it died otherwise, or waits for ever. */
bool vproc_run(struct vhost *h, const char *name, void (*main)(void *arg), void *arg);

/* ---- Disks: files whose path begins with VPATH, per host ----------------------------------------- */

#define VPATH  "/sim/"
#define SECTOR 512u

void vfile_create(struct vhost *h, const char *path, uint64_t size); /* zeros; or empties it */
void vfile_remove(struct vhost *h, const char *path);
void vfile_mkdir(struct vhost *h, const char *path);
/* As the disk has it, without I/O and behind everybody's back. */
void vfile_peek(struct vhost *h, const char *path, uint64_t off, void *out, size_t n);
void vfile_poke(struct vhost *h, const char *path, uint64_t off, const void *p, size_t n);
/* The database in this directory is gone, if there was one. */
void vdb_remove(struct vhost *h, const char *dir);
/* A table of it is damaged where a compaction comes by: commits fail, and kv_check meets it. */
void vdb_damage(struct vhost *h, const char *dir, bool on);
/* What a host's disks and databases hold, apart from any run: a base that many runs start from. All of
 * it counts as durable. No process may live on the host. */
struct vimage *vhost_save(const struct vhost *h);
void vhost_load(struct vhost *h, const struct vimage *image);
void vimage_free(struct vimage *image);

/* ---- Faults ---------------------------------------------------------------------------------------*/

enum vio_kind {
	VIO_OPEN,
	VIO_READ,
	VIO_WRITE,
	VIO_FLUSH,
	VIO_DB_OPEN,
	VIO_DB_FORMAT,
	VIO_DB_READ,
	VIO_DB_COMMIT,
	VIO_KINDS
};
extern const char *const vio_names[VIO_KINDS];

struct vio {
	struct vhost *host;
	struct vproc *proc;
	enum vio_kind kind;
	const char *path;
	uint64_t off, len;
	bool sync;	 /* a durable write or commit */
	uint64_t number; /* of this host, from 1; vhost_io_count */
};

/* What happens to an I/O instead of success. Those that make no sense for its kind are an EIO. */
enum vfault {
	VFAULT_NONE,
	VFAULT_EIO,	    /* fails; a write may have happened in part, a flush or commit or not */
	VFAULT_ENOSPC,	    /* fails, nothing happened */
	VFAULT_LOST,	    /* a write or flush says it happened, and did not */
	VFAULT_MISDIRECTED, /* a write lands elsewhere in the file; a read comes from elsewhere */
	VFAULT_FLIP,	    /* one bit of what is written, or read, is wrong */
	VFAULT_CUT_BEFORE,  /* the power goes: nothing of it happened, */
	VFAULT_CUT_DURING,  /* some of it, */
	VFAULT_CUT_AFTER,   /* all of it, and nobody was told */
	VFAULT_KILL_BEFORE, /* kill -9 */
	VFAULT_KILL_AFTER,
	VFAULTS
};
extern const char *const vfault_names[VFAULTS];

/* Asked at the start of each I/O of the host, in the process that does it. NULL: no faults. */
void vhost_set_fault(struct vhost *h, enum vfault (*fn)(void *arg, const struct vio *io), void *arg);
uint64_t vhost_io_count(const struct vhost *h);
/* Latency of each I/O is drawn from [lo, hi]; the default is that of a fast SSD. */
void vhost_set_latency(struct vhost *h, enum vio_kind kind, uint64_t lo_us, uint64_t hi_us);
