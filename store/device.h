/* SPDX-License-Identifier: Apache-2.0 */
/* One device of a group: a block device or a plain file, held open exclusively, and its superblocks.
 *
 * Superblock, 4 KiB, first and last block of the device, little-endian; the copy with the higher valid
 * sequence counts:
 *   off size
 *     0   8  magic "ASHLARSB"        8   4  format 1          12  4  role (enum device_role)
 *    16  16  cluster uuid           32  16  node uuid         48  16  group uuid
 *    64  16  device uuid            80  16  log uuid          96   4  group incarnation
 *   100   4  log incarnation       104   4  node incarnation 108   2  index 0–7
 *   110   2  group number          112   4  flags (1 pending, 2 resetting) 116  4  devices in the group
 *   120   8  device size bytes     128   8  log start byte   136  8  log length (0: no log here)
 *   144   8  data start byte       152   8  data length (0: no data here)
 *   160   8  segment size bytes    168   8  log segment size 176   8  sequence
 *   184   8  xxh3-64 (seed 0) of bytes 0–183; the rest is zero
 * Frozen by tests/golden. */
#pragma once

#include "store/store.h"

#define SUPERBLOCK_MAGIC 0x425352414c485341ull /* "ASHLARSB" */
#define SUPERBLOCK_FORMAT 1u

struct superblock {
	uint32_t role;
	struct uuid cluster, node, group, device, log;
	uint32_t group_incarnation, log_incarnation, node_incarnation;
	uint16_t index, group_number;
	uint32_t flags, devices;
	uint64_t size, log_start, log_len, data_start, data_len, segment_size, log_segment_size, sequence;
};
enum superblock_flags {
	SUPERBLOCK_PENDING = 1,   /* no group number yet */
	SUPERBLOCK_RESETTING = 2, /* store_reset did not end: the map is not to be believed */
};

struct device {
	char *path;
	int fd; /* O_DIRECT unless buffered; flock'ed, and O_EXCL on block devices */
	uint64_t size;
	bool buffered, needs_flush; /* needs_flush: volatile cache, or a file */
	struct superblock sb;
	int failed; /* first error that failed it; set from any thread, never cleared */
};

void superblock_encode(const struct superblock *sb, uint8_t out[BLOCK_SIZE]);
int superblock_decode(const uint8_t in[BLOCK_SIZE], struct superblock *out) MUST_USE;

/* Blocking; set-up threads. */
int device_open(struct device *d, const char *path, bool buffered, bool read_only) MUST_USE;
int device_read_superblock(struct device *d) MUST_USE; /* into d->sb; -ENODATA, -ERR_CORRUPT, -ERR_VERSION */
int device_write_superblock(struct device *d) MUST_USE; /* d->sb with sequence + 1, both copies, flushed */
void device_close(struct device *d);
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
int device_flush(struct device *d) MUST_USE; /* the first failure fails the device for good */
