/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub: the whole group is read and checked, over and over, so that damage is found while another
 * replica still has the data (store/README.md). Inside the tier; destager thread but for the calls
 * marked so.
 *
 *   SEGMENTS  in order: unit summaries, the map entries that name exactly these places, their
 * content MAP       every map page that a region names; content of segments whose summaries did not
 *             account for all their live bytes, entry by entry
 *   MOVE      such segments are emptied, so that what is bad in them is written anew
 *
 * A block that is bad at the second look becomes MAP_DAMAGED in a commit, if the entry is still the
 * one that was checked, and its replica's shard is told. Nothing is repaired here: that takes a
 * peer. The position is kept in the database, key "scrub" of CF meta (not synced: a lost one means
 * a little more to read): 0 format 4 (=1) · 4 phase 4 · 8 segment 4 · 12 page 4 · 16 object 8 · 24
 * flags 4 (1 stopped, 2 every segment is suspect, 4 asked for) · 28 suspects 4 · 32 started 8 · 40
 * finished 8 (of the pass before; s since 1970) · 48 passes 8 · 56 found 8 (blocks) · 64 checked 8
 * (bytes) · suspects × segment 4 · xxh3-64 8 of all before, seed 0 */
#pragma once

#include <stdatomic.h>

#include "node/base/bytes.h"
#include "store/store_scrub.h"

#define SCRUB_KEY          "scrub"
#define SCRUB_SUSPECTS_MAX 64u
#define SCRUB_ROW_MAX      (80u + 4 * SCRUB_SUSPECTS_MAX)

struct tier;
struct tobj;
struct work_page;
struct map_entry;
struct map_page;

struct scrub_row {
	enum store_scrub_phase phase;
	bool stopped, suspect_all, asked;
	uint32_t segment, page, suspect_count;
	uint64_t object, started_s, finished_s, passes, found, checked;
	uint32_t suspects[SCRUB_SUSPECTS_MAX];
};
size_t scrub_row_encode(uint8_t out[SCRUB_ROW_MAX], const struct scrub_row *r);
int scrub_row_decode(const void *data, size_t len, struct scrub_row *out) MUST_USE;

/* A walk over the map's pages. */
struct scrub_walk {
	uint64_t object;
	uint32_t page;
};

struct scrub {
	struct scrub_row row;
	uint64_t due_us;
	/* the segment under way */
	bool in_segment;
	uint32_t pos, found_live, live_before, move_steps;
	uint64_t generation;
	uint8_t *window;
	struct work_page *work;
	struct map_page *pages;
	unsigned work_count;
	bool share_bad; /* in this commit */
	/* beside the pass: tells the shards of everything that is marked damaged already */
	struct scrub_walk tell;
	bool telling;

	/* Any thread. */
	_Atomic uint32_t pass_s, want; /* want: enum scrub_want */
	_Atomic uint64_t max_bytes_per_s;
	_Atomic int64_t wall_offset_s;
	_Atomic bool wall_known;
	_Atomic unsigned suspects_open;
	_Atomic uint32_t phase, stopped, asked, rate_bytes_per_s;
	_Atomic uint64_t found_last_s, started_s, finished_s, passes, found, found_ever, checked, total;
	_Atomic uint64_t device_bad[GROUP_DEVICES_MAX];
};

int scrub_load(struct tier *t) MUST_USE; /* at open */
void scrub_free(struct tier *t);
/* µs until scrub_step has something to do; UINT64_MAX: nothing to wait for. */
uint64_t scrub_wait_us(struct tier *t);
void scrub_step(struct tier *t);
/* scrub_check.c */
/* Checks these blocks of a page against the map, past all caches; marks and tells what is bad. */
int scrub_page(struct tier *t, uint64_t object, uint32_t page, uint64_t blocks) MUST_USE;
/* After a commit: tells the page's shard of the blocks among `changed` that are damaged now. */
void scrub_tell(struct tier *t, const struct work_page *w);
/* Does what the entry (raw or lz4) names hash to its fingerprint? Reads the device. Any thread. */
bool scrub_entry_good(struct tier *t, const struct map_entry *e);
/* A block on this device was bad; by index, or SCRUB_DEVICE_CACHE. Any thread. */
#define SCRUB_DEVICE_CACHE (GROUP_DEVICES_MAX - 1)
void scrub_count_bad(struct tier *t, unsigned device);
