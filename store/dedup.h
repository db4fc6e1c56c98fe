/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a block that is stored already. Hints in RAM, under a budget, say where one with this
 * fingerprint may be; the candidate is read and compared byte for byte before anyone trusts it (the
 * fingerprint is not collision resistant). Destager thread.
 *
 * Hint, 8 bytes: tag 20 bits (of fp.hi, which the map does not hold) · shared 1 · place (device 3,
 * offset/64 40) or share id 43. Buckets of 8, newest first: the oldest falls out. The table begins
 * with 16,384 buckets, chosen by fp.lo, and doubles up to its budget when a quarter is in use: a
 * bucket is parted by the next bit of its tags, so nothing is lost or doubled by growing. */
#pragma once

#include "store/segment.h"
#include "store/share.h"

#define DEDUP_BUDGET_BYTES (64ull << 20)
#define DEDUP_SUMMARIES    32u
#define DEDUP_LISTS        256u
#define DEDUP_WINDOW       (128u << 10)

struct tier;
struct work_page;
struct round;

struct hints {
	uint64_t *slots; /* 8 to a bucket; NULL until the first one */
	size_t buckets, budget_bytes;
	uint64_t used;    /* slots */
	uint64_t evicted; /* gave way to newer ones */
};
void hints_init(struct hints *h, size_t budget_bytes);
void hints_fini(struct hints *h);
#define HINT_SHARED (1ull << 43)
#define HINT_VALUE  ((1ull << 44) - 1)
/* value: word >> 9 of a place, or HINT_SHARED | share id. Takes the place of one with the same tag. old:
 * behind those of the same tag, of which there may then be HINTS_TRIED, and only where none must go. */
#define HINTS_TRIED 3u
void hints_put(struct hints *h, struct fp128 fp, uint64_t value, bool old);
/* The block has moved: who pointed to its old place points to the new one; if none did, as `old`. */
void hints_move(struct hints *h, struct fp128 fp, uint64_t from, uint64_t to);
unsigned hints_get(const struct hints *h, struct fp128 fp, uint64_t out[8]); /* newest first */
size_t hints_bytes(const struct hints *h);
bool hints_size_ok(const struct hints *h, uint64_t buckets); /* a table that this budget may have */

/* Where units begin in a segment, as far as walked. */
struct unit_list {
	uint32_t segment, count, cap, end;
	uint64_t generation;
	uint32_t *start;
};
struct summary_slot {
	uint32_t segment, pos, guess;
	uint64_t generation;
	struct unit_header header;
	uint8_t *bytes; /* UNIT_SUMMARY_MAX */
};

struct dedup {
	struct hints hints;
	struct summary_slot summaries[DEDUP_SUMMARIES];
	struct unit_list lists[DEDUP_LISTS];
	uint8_t *window; /* bytes of a device read lately; forgotten at each round */
	struct device *window_dev;
	uint64_t window_off, window_next;
	uint32_t window_len;
	/* Filling the hints after open: segments by generation, newest first. */
	uint32_t *rebuild;
	uint32_t rebuild_count, rebuild_at;
	bool loaded; /* from the file of a clean stop */
	_Atomic bool rebuilt;
	_Atomic uint64_t matched_blocks, hint_bytes, false_hints, evicted_hints;
};

void dedup_init(struct tier *t, size_t budget_bytes);
void dedup_fini(struct tier *t);
void dedup_round(struct tier *t); /* what was read may be old from here on */
/* The plain bytes behind a place, verified against nothing: compare them. False: cannot be read. */
bool dedup_read(struct tier *t, uint64_t word, uint8_t out[BLOCK_SIZE]);
/* The summary entry of the unit that wrote this place. */
bool dedup_place_entry(struct tier *t, uint64_t place, struct unit_entry *out);
void dedup_rebuild_start(struct tier *t);
void dedup_forget_device(struct tier *t, unsigned index); /* another takes its place */
bool dedup_rebuild_step(struct tier *t); /* false: nothing is left */
/* dedup_save.c: at a clean stop, the destager has ended; and at start: true, the table is the one
 * that was saved and no summary need be read. */
void dedup_save(struct tier *t);
bool dedup_load(struct tier *t);
