/* SPDX-License-Identifier: Apache-2.0 */
/* One device of a group: a block device or a plain file, held open exclusively, and its superblocks.
 *
 * Superblock, 4 KiB, first and last block of the device, little-endian; the copy with the higher valid
 * sequence counts:
 *   off size
 *     0   8  magic "ASHLARSB"        8   4  format 2          12  4  role (enum device_role)
 *    16  16  cluster uuid           32  16  node uuid         48  16  group uuid
 *    64  16  device uuid            80  16  log uuid          96   4  group incarnation
 *   100   4  log incarnation       104   4  node incarnation 108   2  index 0–7
 *   110   2  group number          112   4  flags (1 pending, 2 resetting) 116  4  devices in the group
 *   120   8  device size bytes     128   8  log start byte   136  8  log length (0: no log here)
 *   144   8  data start byte       152   8  data length (0: no data here)
 *   160   8  segment size bytes    168   8  log segment size 176   8  sequence
 *   184 384  the members of the group, 8 × 48, by index: device uuid 16 · role 2 (0: no such member) ·
 * state 2
 *            (0 in use, 1 failed: given up until it is replaced) · zero 4 · size 8 · data start 8 ·
 * data length 8
 *   568   8  xxh3-64 (seed 0) of bytes 0–567; the rest is zero
 * So each member knows of the others: one that is not there can be named, and its place in the map is known.
 * Frozen by tests/store. */
#pragma once

#include <stdatomic.h>

#include "store/store.h"

#define SUPERBLOCK_MAGIC 0x425352414c485341ull /* "ASHLARSB" */
#define SUPERBLOCK_FORMAT 2u

struct superblock_member {
	struct uuid device;
	uint16_t role, state; /* enum device_role, or 0; enum member_state */
	uint64_t size, data_start, data_len;
};
enum member_state { MEMBER_IN_USE = 0, MEMBER_FAILED = 1 };

struct superblock {
	uint32_t role;
	struct uuid cluster, node, group, device, log;
	uint32_t group_incarnation, log_incarnation, node_incarnation;
	uint16_t index, group_number;
	uint32_t flags, devices;
	uint64_t size, log_start, log_len, data_start, data_len, segment_size, log_segment_size, sequence;
	struct superblock_member member[GROUP_DEVICES_MAX];
};
enum superblock_flags {
	SUPERBLOCK_PENDING = 1,   /* no group number yet */
	SUPERBLOCK_RESETTING = 2, /* store_reset did not end: the map is not to be believed */
};

/* What I/O a device did and how long it took: for people, and to tell a slow device from its peers. Added to
 * by every thread that uses the device. Bucket i of the histogram: below 2^i µs (the last: anything). */
enum device_op { DEVICE_READ, DEVICE_WRITE, DEVICE_FLUSH, DEVICE_OPS };
#define DEVICE_BUCKETS 24u
struct device_counters {
	_Atomic uint64_t sum_us[DEVICE_OPS], errors[DEVICE_OPS];
	_Atomic uint32_t bucket[DEVICE_OPS][DEVICE_BUCKETS];
};

struct device {
	char *path; /* NULL: a member that is not there */
	int fd; /* O_DIRECT unless buffered; flock'ed, and O_EXCL on block devices */
	uint64_t size;
	bool buffered, needs_flush; /* needs_flush: volatile cache, or a file */
	struct superblock sb;
	unsigned sb_first; /* the copy to be written first: 0 at the start, 1 at the end */
	int failed; /* first error that failed it; set from any thread, never cleared */
	uint32_t read_streak; /* reads that failed since the last that did not */
	char *faults; /* tests: a file that says what fails (device_fault) */
	struct device_counters counters;
	/* Called once, from any thread, when the device fails. */
	void (*on_failed)(void *arg, struct device *d);
	void *on_failed_arg;
};

static inline int device_failed(const struct device *d)
{
	return __atomic_load_n(&d->failed, __ATOMIC_RELAXED);
}

void superblock_encode(const struct superblock *sb, uint8_t out[BLOCK_SIZE]);
int superblock_decode(const uint8_t in[BLOCK_SIZE], struct superblock *out) MUST_USE;

/* Blocking; set-up threads. */
int device_open(struct device *d, const char *path, bool buffered, bool read_only) MUST_USE;
int device_read_superblock(struct device *d) MUST_USE; /* into d->sb; -ENODATA, -ERR_CORRUPT, -ERR_VERSION */
int device_write_superblock(struct device *d) MUST_USE; /* d->sb with sequence + 1, both copies, flushed */
void device_close(struct device *d);
/* LOCK_EX or LOCK_SH (flock(2)). The last writes of a process that was killed hold its lock a moment longer
 * (replication protocol, N1): those are waited for; a living holder is -ERR_BUSY at once. Blocking. */
int device_lock(struct device *d, int how) MUST_USE;
/* They change places, but for who listens: pointers to a now mean what b was. */
void device_swap(struct device *a, struct device *b);
/* Blocking reads and writes for recovery and the destager thread; whole blocks. */
int device_pread(struct device *d, void *p, size_t n, uint64_t off) MUST_USE;
int device_pwrite(struct device *d, const void *p, size_t n, uint64_t off) MUST_USE;
/* Many reads side by side; aligned memory, whole blocks. All are done at the return. */
struct device_read {
	struct device *device;
	void *data;
	size_t len;
	uint64_t off;
	int rc; /* out */
};
struct gather;
void device_read_many(struct gather *g, struct device_read *reads, unsigned n);
/* After a read that failed: is it a bad place, or is nobody there? false: the device has failed. */
bool device_answers(struct device *d) MUST_USE;
int device_flush(struct device *d) MUST_USE; /* the first failure fails the device for good */

/* For those who do the I/O themselves on a loop, any thread. device_fault: what a test wants to happen
 * to this
 * operation instead (0: nothing); asked before it. device_done: after it, with its result and its time.
 * A write or flush that failed fails the device, and so do DEVICE_READ_STREAK reads in a row, or
 * DEVICE_READ_ERRORS in all, once on_failed is set; a few bad reads are bad blocks. A write-through
 * write counts as DEVICE_FLUSH. */
#define DEVICE_READ_STREAK 8u
#define DEVICE_READ_ERRORS 256u
int device_fault_ask(struct device *d, enum device_op op);
static inline int device_fault(struct device *d, enum device_op op)
{
	return d->faults ? device_fault_ask(d, op) : 0;
}
void device_done(struct device *d, enum device_op op, uint64_t us, int rc);
void device_fail(struct device *d, int rc, const char *what, uint64_t off);
