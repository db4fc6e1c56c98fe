/* SPDX-License-Identifier: Apache-2.0 */
/* libashlar: volumes of an Ashlar cluster for programs that are not front ends of it.
 *
 * Threads: all functions may be called from any thread, at the same time. The library runs one thread
 * of its own per struct ashlar; completion callbacks run there and must not block: they may start
 * asynchronous requests, the blocking functions answer -EDEADLK there.
 * Errors: 0 or a negative errno. -EBUSY: another host has the volume attached (ashlar_volume_held_by
 * says who); -EPERM: the attachment was taken away, for good; -ENOSPC; -EIO; -ETIMEDOUT: the outcome
 * of a write is then unknown; -EAGAIN: more requests at once than options.requests_max.
 * Durability: a completed write is durable on every in-sync replica. Opening a volume attaches nothing;
 * the first write does, for this process alone unless ASHLAR_SHARED. */
#ifndef ASHLAR_H
#define ASHLAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASHLAR_IO_MAX (32u << 20) /* bytes of one read or write; trims and zeroes have no limit */

struct ashlar;
struct ashlar_volume;

/* Strings are copied. Zero means the default in brackets. */
struct ashlar_options {
	size_t struct_size;   /* sizeof(struct ashlar_options), so that it may grow */
	const char *connect;  /* "HOST:PORT,HOST:PORT…", numeric; any nodes of the cluster */
	const char *cert, *key, *ca; /* PEM files; all or none (none: a lab without TLS) */
	const char *cluster;  /* uuid; NULL: read from the CA */
	int plain_data;	      /* data connections authenticated but not encrypted */
	unsigned connect_timeout_ms; /* [10000] */
	unsigned io_timeout_ms;	     /* [30000] of each request; UINT_MAX: none */
	unsigned requests_max;	     /* [256] */
	size_t memory_bytes;	     /* [128 MiB] payload buffers */
};

/* Blocks until the cluster's map is there. *out is closed with ashlar_disconnect. */
int ashlar_connect(const struct ashlar_options *options, struct ashlar **out);
/* After all volumes were closed. Blocks. Not from a callback. */
void ashlar_disconnect(struct ashlar *a);
/* Calls each(arg, …) in the calling thread; a nonzero result ends the walk and is returned. */
int ashlar_list(struct ashlar *a, int (*each)(void *arg, const char *name, uint64_t size), void *arg);

enum ashlar_open_flags { ASHLAR_SHARED = 1 };
int ashlar_volume_open(struct ashlar *a, const char *name, int flags, struct ashlar_volume **out);
/* Waits for the volume's requests, detaches, frees v. Blocks. */
int ashlar_volume_close(struct ashlar_volume *v);
uint64_t ashlar_volume_size(struct ashlar_volume *v); /* now; follows a resize */
/* Who has it, when a write ended with -EBUSY. Blocks. */
int ashlar_volume_held_by(struct ashlar_volume *v, char *text, size_t text_size);

/* Asynchronous: 0 = taken, then done(arg, rc) comes exactly once; negative = refused, no callback.
 * `data` is borrowed until done. Any offset and length. */
typedef void (*ashlar_done_fn)(void *arg, int rc);
int ashlar_aio_read(struct ashlar_volume *v, uint64_t offset, void *data, size_t length, ashlar_done_fn done,
		    void *arg);
int ashlar_aio_write(struct ashlar_volume *v, uint64_t offset, const void *data, size_t length,
		     ashlar_done_fn done, void *arg);
int ashlar_aio_trim(struct ashlar_volume *v, uint64_t offset, uint64_t length, ashlar_done_fn done,
		    void *arg);
int ashlar_aio_zeroes(struct ashlar_volume *v, uint64_t offset, uint64_t length, ashlar_done_fn done,
		      void *arg);
/* Ends after all writes that were started before it on this volume and have completed: at once. */
int ashlar_aio_flush(struct ashlar_volume *v, ashlar_done_fn done, void *arg);

/* The same, blocking. */
int ashlar_read(struct ashlar_volume *v, uint64_t offset, void *data, size_t length);
int ashlar_write(struct ashlar_volume *v, uint64_t offset, const void *data, size_t length);
int ashlar_trim(struct ashlar_volume *v, uint64_t offset, uint64_t length);
int ashlar_zeroes(struct ashlar_volume *v, uint64_t offset, uint64_t length);
int ashlar_flush(struct ashlar_volume *v);

const char *ashlar_version(void);

#ifdef __cplusplus
}
#endif
#endif
