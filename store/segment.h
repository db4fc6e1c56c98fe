/* SPDX-License-Identifier: Apache-2.0 */
/* Data segments: their bytes on the capacity devices, their table, and the two append streams.
 * Destager thread and set-up threads only, but for the encoders (pure).
 *
 * Segment id: device index << 29 | number on the device. A segment is segment_size bytes of the
 * data area: a header block, then append units back to back up to where it was sealed. header   0
 * magic "ASHLDSEG" 8 · 8 format 4 (=1) · 12 stream 4 · 16 group 16 · 32 group incarnation 4 · 36
 * segment id 4 · 40 generation 8 · 48 kv commit 8 · 56 xxh3-64 8 of bytes 0–55, seed 0; zeros to
 * 4096 unit     summary (whole blocks), raw blocks (4 KiB aligned), compressed blocks packed in
 * 64-byte units, zeros to a whole block; ≤ 1 MiB, ≤ 1024 entries summary  0 magic "ASUN" 4 · 4
 * format 2 (=1) · 6 entries 2 · 8 summary bytes 4 · 12 unit bytes 4 · 16 segment id 4 · 20 position
 * in the segment / 4096 4 · 24 generation 8 · 32 kv commit 8 · 40 group incarnation 4 · 44 zero 12
 * · 56 xxh3-64 8 of the summary but these 8 bytes (bytes 0–55, then 64 on, the second seeded with
 * the first); then per entry 48: 0 object 8 · 8 replica generation 4 · 12 block 4 · 16 tenure 4 ·
 * 20 seq 8 · 28 fp lo 8 · 36 fp hi 8 · 44 offset in the unit / 64 2 · 46 units 1 · 47 codec 1 (2
 * raw, 3 lz4) table    CF seg. Keys: checkpoint 0x01 · chunk be32 (4096 segments each); delta 0x02
 * · commit be64. Value: 0 format 2 (=2) · 2 zero 2 · 4 count 4 · 8 commit 8 · records of 32: id 4 ·
 * live bytes 4 · generation 8 · state 1 · stream 1 · zero 2 · filled bytes 4 · bytes of header and
 *            summaries 4 · padding bytes inside units 4; then xxh3-64 8 of all before, seed 0.
 *            Records are absolute; later ones win.
 * Frozen by tests/store/tier. */
#pragma once

#include "node/base/bytes.h"
#include "store/map_format.h"

#define SEGMENT_HEADER_SIZE  BLOCK_SIZE
#define SEGMENT_DEVICE_SHIFT 29
#define UNIT_MAX             (1u << 20)
#define UNIT_ENTRIES_MAX     1024u
#define UNIT_HEADER_SIZE     64u
#define UNIT_ENTRY_SIZE      48u
#define UNIT_SUMMARY_MAX     53248u /* 64 + 48 · 1024, whole blocks */
#define SEGMENT_RECORD_SIZE  32u
#define SEGMENT_CHUNK        4096u

enum segment_state {
	SEGMENT_FREE = 0,
	SEGMENT_OPEN = 1,
	SEGMENT_SEALED = 2,
	SEGMENT_FREED = 3, /* RAM only: free on disk, but reads begun before may still be in it */
};
enum segment_stream { STREAM_HOT = 0, STREAM_GC = 1, STREAMS = 2 };

struct segment_header {
	struct uuid group;
	uint32_t group_incarnation, id, stream;
	uint64_t generation, kv_commit;
};
void segment_header_encode(uint8_t out[SEGMENT_HEADER_SIZE], const struct segment_header *h);
/* -ENODATA: none there. */
int segment_header_decode(const uint8_t in[SEGMENT_HEADER_SIZE],
			  struct segment_header *out) MUST_USE;

struct unit_header {
	uint32_t entries, summary_bytes, bytes, segment, position, group_incarnation;
	uint64_t generation, kv_commit;
};
struct unit_entry {
	uint64_t object;
	uint32_t gen, block;
	struct version version;
	struct fp128 fp;
	uint32_t offset; /* bytes in the unit */
	uint8_t units, codec;
};
void unit_summary_encode(uint8_t *out, const struct unit_header *h,
			 const struct unit_entry *entries);
/* From the first block: how long the summary claims to be. -ENODATA: no unit begins here. */
int unit_summary_peek(const uint8_t first[BLOCK_SIZE], uint32_t *summary_bytes) MUST_USE;
int unit_summary_decode(const uint8_t *in, size_t len, struct unit_header *out) MUST_USE;
int unit_entry_decode(const uint8_t *summary, const struct unit_header *h, unsigned i,
		      struct unit_entry *out) MUST_USE;

/* ---- The table ---------------------------------------------------------------------------------
 */

struct segment {
	uint64_t generation;
	uint32_t live;               /* bytes that map entries name, as committed */
	int32_t delta;               /* what the commit being built changes it by */
	uint32_t fill;               /* bytes written */
	uint32_t summaries, padding; /* of these: header and summaries; rounding up inside units */
	uint8_t state, stream;
	bool dirty; /* its record goes into the next commit */
	bool used;  /* as committed: not free, and these are its share of segments.space */
	uint32_t used_summaries, used_padding, used_tail;
};

/* What the segments that are not free hold beside live bytes, as committed. What is left is dead.
 */
struct segment_space {
	uint64_t segments, summaries, padding, tail; /* tail: not yet written, of open ones */
};

struct segment_device {
	struct device *dev; /* NULL: no such index */
	struct segment *seg;
	uint32_t count, free, cursor;
	bool lost; /* its device has failed or is not there: it takes nothing, and gives nothing */
};

struct stream; /* an open segment and the unit being built */

struct segments {
	struct segment_device dev[GROUP_DEVICES_MAX];
	struct stream *stream[STREAMS];
	struct uuid group;
	uint32_t group_incarnation;
	uint64_t segment_size, generation, kv_commit; /* kv_commit: newest durable */
	uint32_t total, free, reserve; /* free: not counting those of lost devices */
	uint32_t lost; /* segments of lost devices, of the total */
	uint64_t live; /* committed */
	uint32_t *dirty, dirty_count;
	uint32_t *freed, freed_count;       /* FREED, readers not yet waited for */
	uint32_t *draining, draining_count; /* FREED, waiting for readers */
	unsigned unflushed;                 /* bit per device written since the last flush */
	uint64_t header_kv_commit;          /* highest found in headers at open */
	uint32_t header_incarnation;
	uint64_t written_bytes[STREAMS]; /* units */
	struct segment_space space;
};

int segments_open(struct segments *s, struct device *devices, unsigned count,
		  const struct uuid *group, uint32_t group_incarnation) MUST_USE;
/* Reads all headers (blocking): generations and kv commit. */
void segments_scan(struct segments *s);
void segments_close(struct segments *s);
struct segment *segment_by_id(struct segments *s, uint32_t id); /* NULL: no such segment */
uint64_t segment_start(const struct segments *s, uint32_t id);  /* device offset */
/* The segment a place lies in, or NULL. */
struct segment *segment_of_word(struct segments *s, uint64_t word, uint32_t *id);

/* Takes notice of devices that failed since: from then on their segments are lost. True: there were any. */
bool segments_lose(struct segments *s);
uint64_t segments_lost_free(const struct segments *s); /* free segments of lost devices */
uint64_t segments_lost_live(const struct segments *s); /* live bytes on lost devices */
/* The device of this index was replaced by another, and nothing in the map names its segments any more: all
 * of them are free, as many as the new one has. */
void segments_renew(struct segments *s, unsigned index);

/* Table rows. decode: later rows win; unknown ids that are not free are an error. */
size_t segment_rows_size(uint32_t count);
void segment_rows_encode(struct writer *w, uint64_t commit, uint32_t count,
			 bool (*next)(void *arg, uint32_t *id, struct segment *out), void *arg);
int segment_rows_apply(struct segments *s, const void *data, size_t len) MUST_USE;
/* After the rows are in: open ones are sealed, empty ones free, counts made. */
void segments_settle(struct segments *s);

/* A live-bytes change of the commit being built. */
void segment_account(struct segments *s, uint64_t word, int sign);
void segment_mark_dirty(struct segments *s, uint32_t id);
/* The row a dirty segment will have once the commit is durable. */
void segment_next_row(const struct segments *s, uint32_t id, struct segment *out);
void segments_committed(struct segments *s, uint64_t commit);
void segments_aborted(struct segments *s);
/* Draining segments become free: no reader can be in them. */
void segments_reclaim(struct segments *s);

/* Room for this many raw blocks in the stream; hot leaves the reserve alone. */
bool segments_have_room(const struct segments *s, enum segment_stream stream, uint64_t blocks);
uint64_t segments_limit_bytes(const struct segments *s); /* the fill limit, in live bytes */

/* Adds a block to the stream's unit; writes units out as they fill. e->word is set when the unit is
 * written (at the latest by segment_flush_unit): it must stay where it is until then. units 64 and
 * MAP_RAW, or a codec form and MAP_LZ4. -ERR_FULL, -ERR_DEVICE. */
int segment_append(struct segments *s, enum segment_stream stream, const struct unit_entry *what,
		   unsigned kind, const void *data, unsigned units, struct map_entry *e) MUST_USE;
int segment_flush_unit(struct segments *s, enum segment_stream stream) MUST_USE;
/* Forgets the unit being built and seals the stream's segment: after an error. */
void segment_abandon(struct segments *s, enum segment_stream stream);
void segment_abandon_lost(struct segments *s, enum segment_stream stream); /* if its device is lost */
int segments_flush_devices(struct segments *s) MUST_USE;
