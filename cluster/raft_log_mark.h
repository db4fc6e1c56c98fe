/* SPDX-License-Identifier: Apache-2.0 */
/* The mark beside the Raft log's database (raft_log.h has its format): the number of batches that
 * were made durable. It must never be ahead of the database. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "node/base/check.h"

#define RAFT_MARK_SLOT_BYTES   4096
#define RAFT_MARK_BYTES        32
#define RAFT_MARK_SYNC_BATCHES 64

struct raft_mark {
	int fd; /* -1: not there */
	uint16_t node;
	unsigned slot, unsynced;
	bool valid; /* one slot at least was good when it was opened */
	uint64_t batches;
};

/* Also holds off other processes: -ERR_BUSY. An absent or damaged file is not an error here. */
int raft_mark_open(struct raft_mark *m, const char *path, uint16_t node) MUST_USE;
/* Makes it anew, with what the database has. The directory is the caller's to sync. */
int raft_mark_create(struct raft_mark *m, const char *path, uint64_t batches) MUST_USE;
/* The database has so many. Survives a kill when it returns. */
int raft_mark_set(struct raft_mark *m, uint64_t batches) MUST_USE;
int raft_mark_sync(struct raft_mark *m) MUST_USE; /* if there is anything to sync */
void raft_mark_push(struct raft_mark *m);         /* starts the transfer, waits for nothing */
void raft_mark_close(struct raft_mark *m);
