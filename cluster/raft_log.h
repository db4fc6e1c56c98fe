/* SPDX-License-Identifier: Apache-2.0 */
/* Where Raft's log, term, vote and snapshot rest: `struct raft_disk`, and its RocksDB
 * implementation, a small database of its own (never the store's). Tests give an in-memory one that
 * loses unsynced writes.
 *
 * Files in DIR: `RAFT`, the marker that a log was made here (so that a vanished database is
 * noticed), and `db/`, the database. Keys: "m" u16 format, u16 node; "v" u64 term, u64 vote; "s"
 * u64 index, u64 term, u64 configuration index, u32 length and bytes of the configuration; "d" the
 * snapshot's data; "e" + u64 big-endian index: u64 term, u8 type, bytes. Everything else
 * little-endian.
 *
 * Calls block. load, set_term, set_vote and bootstrap: the loop's thread; write: one call at a
 * time, on a worker. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/check.h"

struct raft_disk_entry {
	uint64_t term;
	void *data;
	size_t len;
	uint8_t type;
};

struct raft_disk_snapshot {
	uint64_t index, term, conf_index;
	void *conf, *data;
	size_t conf_len, len;
};

/* What was found at start. All memory is malloc'ed and the receiver's. */
struct raft_disk_image {
	uint64_t term, vote;
	bool has_snapshot;
	struct raft_disk_snapshot snapshot;
	uint64_t first; /* index of entry[0], or the next one if there are none */
	struct raft_disk_entry *entry;
	size_t count;
};
void raft_disk_image_free(struct raft_disk_image *image);

enum raft_write_kind { RAFT_WRITE_APPEND, RAFT_WRITE_TRUNCATE, RAFT_WRITE_SNAPSHOT };
struct raft_write {
	enum raft_write_kind kind;
	uint64_t first,
		last; /* append: these; truncate and snapshot: these go (none if last < first) */
	const struct raft_disk_entry *entry;
	struct raft_disk_snapshot snapshot;
};

struct raft_disk {
	const struct raft_disk_ops *ops;
};

struct raft_disk_ops {
	int (*load)(struct raft_disk *d, struct raft_disk_image *out);
	int (*set_term)(struct raft_disk *d, uint64_t term); /* and vote 0, in one; durable */
	int (*set_vote)(struct raft_disk *d, uint64_t vote); /* durable */
	/* Term 1 and the first entry. Only on an empty disk. Durable. */
	int (*bootstrap)(struct raft_disk *d, const struct raft_disk_entry *e);
	/* All of them in order, all or nothing. Durable when it returns, unless they are
	 * truncations only. */
	int (*write)(struct raft_disk *d, const struct raft_write *w, unsigned n);
	void (*close)(struct raft_disk *d);
};

/* Makes the directory if it is absent. -ERR_CORRUPT (the log says which file, and the remedy),
 * -ERR_FOREIGN (another node's log), -ERR_BUSY (open in another process), -ERR_VERSION, errno. */
int raft_log_open(const char *dir, uint16_t node, struct raft_disk **out) MUST_USE;
