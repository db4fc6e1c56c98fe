/* SPDX-License-Identifier: Apache-2.0 */
/* Where Raft's log, term, vote and snapshot rest: `struct raft_disk`, and its RocksDB
 * implementation, a small database of its own (never the store's). Tests give an in-memory one that
 * loses unsynced writes.
 *
 * Files in DIR: `RAFT`, the marker that a log was made here (so that a vanished database is
 * noticed); `db/`, the database; `mark`, how far it had come. Keys: "m" u16 format, u16 node; "v"
 * u64 term, u64 vote, u64 number of durable batches so far; "s" u64 index, u64 term, u64
 * configuration index, u32 length and bytes of the configuration; "d" the snapshot's data; "e" +
 * u64 big-endian index: u64 term, u8 type, bytes. Everything else little-endian. Every durable
 * batch writes "v". Format 1 had no count in "v" and no mark; it is taken over.
 *
 * `mark`, two slots at 0 and 4096: "RAFTMARK", u16 format 1, u16 node, u32 0, u64 batches, u64
 * XXH3-64 (seed 0) of these 24 bytes, zeros. It is written after a batch was synced and before the
 * caller hears of it, so it never promises what the database lacks. A kill keeps each write of it.
 * It is synced at every 64th batch and when none came for 100 ms (to sync each would double a
 * commit's cost), and then the other slot's turn comes, so that one is always whole.
 *
 * A start refuses (-ERR_CORRUPT), however often it is tried: a database with fewer batches than the
 * mark (its write-ahead log zeroed, emptied, cut, or flipped so that it looks torn; its tables or
 * manifest gone back), damage before the end of the write-ahead log, a hole in the entries, a mark
 * whose slots are both bad or that is gone while the database counts.
 * It starts, with all that was acknowledged: after a kill at any moment, and after a power loss if
 * the file system does not grow a file before its bytes are there (ext4 ordered, XFS; elsewhere a
 * torn batch may look damaged, and is refused). A batch torn at the end is dropped; its number is
 * above the mark's.
 *
 * Not noticed: synced batches that a power loss takes together with their marks (a device that lies
 * about flushes), which are those since the mark's last sync: at most 64, and none older than a
 * pause of 100 ms; all of DIR set back to an earlier state; entries that were overwritten, and came
 * back because just the table with the newer ones was lost together with its place in the manifest.
 *
 * Calls block. load, bootstrap: the loop's thread, before any other; set_term, set_vote: the loop's
 * thread, during a write too; write, settle: one call at a time, on a worker. */
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
	/* May be NULL. After a pause of writes, on the worker: whatever was put off. */
	int (*settle)(struct raft_disk *d);
	void (*close)(struct raft_disk *d);
};

/* Makes the directory if it is absent. -ERR_CORRUPT (the log says which file, and the remedy),
 * -ERR_FOREIGN (another node's log), -ERR_BUSY (open in another process), -ERR_VERSION, errno. */
int raft_log_open(const char *dir, uint16_t node, struct raft_disk **out) MUST_USE;
