/* SPDX-License-Identifier: Apache-2.0 */
/* Collecting segments. Inside the tier; destager thread. */
#pragma once

#include "store/segment.h"

#define GC_STEP_BLOCKS 1024u

struct tier;
struct work_page;

struct gc_state {
	bool active, walk_map;
	uint32_t victim, pos, window_pos, window_len;
	uint64_t generation;
	uint8_t *window; /* UNIT_MAX bytes of the victim */
	struct map_page *pages;
	struct work_page *work;
	uint32_t work_count;
	uint8_t key[MAP_KEY_SIZE]; /* map walk: next page */
	struct gc_moved {
		struct fp128 fp;
		const struct map_entry *entry;
		uint64_t from;
	} * moved;        /* blocks that may be hinted at: 2 * WORK_MAX */
	uint64_t *shares; /* that moved in this step: WORK_MAX */
	uint32_t moved_count, share_count;
	bool found_bad; /* in this step */
	uint64_t debt;  /* blocks that are to be moved */
};

bool gc_wanted(const struct tier *t);
bool gc_step(struct tier *t); /* false: nothing to gain, or failed */
bool gc_choose(struct tier *t, uint32_t segment); /* the next victim; false: not a sealed one */
/* After `blocks` were stored: moves as many as free space asks for, within a budget. */
void gc_pay(struct tier *t, unsigned blocks);
bool gc_make_room(struct tier *t, enum segment_stream stream, uint64_t blocks);
/* Whatever the free space: a step on a segment of which a 16th or more was written and is dead (an open
 * one: a 64th). False: there is none, or it failed. */
bool gc_dead_step(struct tier *t);
void grace_poll(struct tier *t, bool wait);
