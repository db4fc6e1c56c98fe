/* SPDX-License-Identifier: Apache-2.0 */
/* Between the two files of scrub: scrub.c (position, pass, pace) calls the steps of scrub_check.c. Destager
 * thread. */
#pragma once

#include "store/tier_internal.h"

#define WALK_PAGES 64u   /* in one step over the map */
#define PAGE_COST  1024u /* bytes that a map page counts for in the rate */

/* scrub.c */
uint64_t scrub_wall_s(struct tier *t);
void scrub_save(struct tier *t);
void scrub_memory(struct scrub *s); /* what the steps need; until scrub_free */

/* scrub_check.c. What was read is added to *bytes. */
/* One read of the segment under way, or the next one. False: no segment is left. */
bool scrub_segment_step(struct tier *t, uint64_t *bytes, int *rc);
/* The next WALK_PAGES pages. False: it is at the end. */
bool scrub_walk_step(struct tier *t, struct scrub_walk *walk, uint64_t *bytes, int *rc);
/* Empties the suspect segments, one after the other. False: done. */
bool scrub_move_step(struct tier *t, uint64_t *bytes);
