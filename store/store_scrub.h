/* SPDX-License-Identifier: Apache-2.0 */
/* Damage of a disk group, and the scrub that looks for it (store/scrub.h says how). Public, like
 * store.h. Nothing is repaired in the store: that takes another replica. */
#pragma once

#include "store/store.h"

/* Blocks (bit per block of the page) that cannot be produced here and are marked so. */
struct store_damage {
	uint64_t object;
	uint32_t gen, page;
	uint64_t blocks;
};
/* fn runs on the shard's loop for what is found (by scrub, reads, destage, collection), and again
 * for what is still marked when a walk over the map meets it. From the shard's loop; NULL: nobody.
 */
void store_on_damage(struct store *s, unsigned shard,
		     void (*fn)(void *arg, const struct store_damage *d), void *arg);

enum store_scrub_phase { SCRUB_IDLE = 0, SCRUB_SEGMENTS = 1, SCRUB_MAP = 2, SCRUB_MOVE = 3 };
struct store_scrub {
	enum store_scrub_phase phase;
	bool stopped, asked; /* asked: by an operator, at the full rate */
	uint64_t started_s,
		finished_s; /* of this pass; of the last finished one. s since 1970; 0: never */
	uint64_t passes, found,
		found_ever; /* blocks; found: in this or the last pass; ever: since open */
	uint64_t checked_bytes, total_bytes, rate_bytes_per_s; /* total: an estimate */
	/* bad blocks met since open, by index of the capacity device; the last one is the cache
	 * device */
	uint64_t device_bad[GROUP_DEVICES_MAX];
	const char *device_path[GROUP_DEVICES_MAX]; /* valid while the store is open; NULL: none such */
	uint64_t found_last_s;
};
/* A pass begins every pass_s (0: never by itself) and is spread over that time, at most
 * max_bytes_per_s. now_s: the time of day, which the store has no clock for. Any thread, any time.
 */
void store_scrub_pace(struct store *s, uint32_t pass_s, uint64_t max_bytes_per_s, uint64_t now_s);
/* Start: everything in the log is destaged, hence checked, then a pass runs at max_bytes_per_s; one
 * that is under way goes on at that rate. Stop: until started again, also after a restart. Any
 * thread. */
void store_scrub_start(struct store *s);
void store_scrub_stop(struct store *s);
void store_scrub_status(struct store *s, struct store_scrub *out); /* any thread */
