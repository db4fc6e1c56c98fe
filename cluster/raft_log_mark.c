/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/raft_log_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/hash.h"

#define FORMAT 1
#define SLOTS  2

static const char magic[8] = "RAFTMARK";

static void encode(uint8_t out[RAFT_MARK_BYTES], uint16_t node, uint64_t batches)
{
	memcpy(out, magic, sizeof(magic));
	put_le16(out + 8, FORMAT);
	put_le16(out + 10, node);
	memset(out + 12, 0, 4);
	put_le64(out + 16, batches);
	put_le64(out + 24, hash_xxh3(out, 24, 0));
}

static int put_slot(const struct raft_mark *m, uint64_t batches)
{
	uint8_t b[RAFT_MARK_BYTES];
	ssize_t n;

	encode(b, m->node, batches);
	n = pwrite(m->fd, b, sizeof(b), (off_t)m->slot * RAFT_MARK_SLOT_BYTES);
	return n == sizeof(b) ? 0 : n < 0 ? -errno : -EIO;
}

int raft_mark_sync(struct raft_mark *m)
{
	if (!m->unsynced)
		return 0;
	if (fdatasync(m->fd) < 0)
		return -errno;
	m->slot = !m->slot;
	m->unsynced = 0;
	return 0;
}

int raft_mark_set(struct raft_mark *m, uint64_t batches)
{
	int rc = put_slot(m, batches);

	if (rc < 0)
		return rc;
	m->batches = batches;
	if (++m->unsynced >= RAFT_MARK_SYNC_BATCHES)
		return raft_mark_sync(m);
	return 0;
}

void raft_mark_push(struct raft_mark *m)
{
	/* Where a file system cannot, the next sync does. */
	(void)sync_file_range(m->fd, (off_t)m->slot * RAFT_MARK_SLOT_BYTES, RAFT_MARK_SLOT_BYTES,
			      SYNC_FILE_RANGE_WRITE);
}

static int load_slot(struct raft_mark *m, unsigned slot)
{
	uint8_t b[RAFT_MARK_BYTES];
	ssize_t n = pread(m->fd, b, sizeof(b), (off_t)slot * RAFT_MARK_SLOT_BYTES);
	uint8_t want[RAFT_MARK_BYTES];

	/* What the device cannot read is as good as damaged. */
	if (n < 0)
		return errno == EIO ? 0 : -errno;
	if (n != sizeof(b))
		return 0;
	encode(want, m->node, get_le64(b + 16));
	if (memcmp(b, want, sizeof(b)) || (m->valid && m->batches >= get_le64(b + 16)))
		return 0;
	m->valid = true;
	m->batches = get_le64(b + 16);
	m->slot = !slot; /* the other one is written next */
	return 0;
}

int raft_mark_open(struct raft_mark *m, const char *path, uint16_t node)
{
	int rc = 0;

	*m = (struct raft_mark){.node = node};
	m->fd = open(path, O_RDWR | O_CLOEXEC);
	if (m->fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (flock(m->fd, LOCK_EX | LOCK_NB) < 0)
		rc = errno == EWOULDBLOCK ? -ERR_BUSY : -errno;
	for (unsigned i = 0; i < SLOTS && rc == 0; i++)
		rc = load_slot(m, i);
	/* What a killed process left in memory only must not be torn together with what follows. */
	if (rc == 0 && fdatasync(m->fd) < 0)
		rc = -errno;
	return rc;
}

int raft_mark_create(struct raft_mark *m, const char *path, uint64_t batches)
{
	static const uint8_t zeros[SLOTS * RAFT_MARK_SLOT_BYTES];
	int rc;

	if (m->fd < 0)
		m->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (m->fd < 0)
		return -errno;
	if (flock(m->fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -ERR_BUSY : -errno;
	/* All of it has its place from now on, so that writing it changes no metadata. */
	if (pwrite(m->fd, zeros, sizeof(zeros), 0) != sizeof(zeros))
		return errno ? -errno : -EIO;
	m->slot = 0;
	m->valid = true;
	m->batches = batches;
	rc = put_slot(m, batches);
	if (rc == 0 && fsync(m->fd) < 0)
		rc = -errno;
	m->slot = 1;
	return rc;
}

void raft_mark_close(struct raft_mark *m)
{
	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
}
