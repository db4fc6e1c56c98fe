/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulator's store share. For tests/replica/sim_store*.c only.
 *
 *   sim_store.c       records, headers, objects, space: what a replica does to its store
 *   sim_store_ask.c   what it asks, answered later and seen at some moment in between
 *   sim_store_life.c  what time and faults do to it: destage, crash, replay, loss, damage */
#pragma once

#include "store/store_device.h"
#include "tests/replica/sim.h"
#include "tests/replica/sim_retry.h"

enum block_state { BLOCK_HOLE, BLOCK_ZERO, BLOCK_DATA, BLOCK_BAD };
struct sblock {
	uint64_t word[SIM_SECTORS_PER_BLOCK];
	struct fp128 fp;
	uint8_t state;
	bool unreadable; /* here, while another in-sync replica has it */
	bool told;       /* and marked so in the map */
};
struct image {
	struct version v;
	struct sblock b[PAGE_BLOCKS];
};
struct page {
	struct image view, base;
};

/* One record or header change in the lane. */
struct entry {
	struct list link;
	struct store_object *o;
	uint64_t no;
	bool durable, applied, is_void; /* void: by the cut with number cut_no */
	uint64_t cut_no;
	struct record r;
	struct sblock *blocks;  /* of the payload, in order */
	struct object_header h; /* header kinds */
	struct version cut_after;
	uint8_t *retry;
	size_t retry_len;
	struct store_append *op; /* NULL: nobody waits */
	struct wait *wait;
};

struct store_object {
	struct list link;
	struct store *s;
	uint64_t id;
	uint32_t gen, volume;
	bool deleted, damaged;
	struct object_header h; /* as appended */
	struct version last, durable, known;
	uint64_t cut_no; /* entries before the last cut say nothing about `durable` */
	struct page **page;
	uint32_t pages;
	struct retries retry, base_retry;
	/* saved with the last destage */
	struct object_header base_h;
	struct version base_last;
	uint64_t base_no; /* entries ≤ this are in the saved header */
};

struct store {
	struct sim_proc *p;
	uint16_t group;
	uint32_t incarnation, node_incarnation;
	struct list objects, lane, pending, space, graves;
	uint64_t no;
	size_t entries, limit;
	uint64_t slow_us, durable_at;
	uint64_t granted, free_bytes;
	bool full; /* gives no more credit */
	uint64_t taken, paid; /* bytes of payload; of them, under grants */
	uint64_t kept_no; /* its disk was copied after this entry; 0: it was not */
	bool batch_armed;
	struct turn_end turn;
	struct list jobs;
	int failed;  /* what every call answers */
	bool closed; /* no process has it open */
	void (*damage_fn)(void *arg, const struct store_damage *d);
	void *damage_arg;
};

/* A question under way. */
struct job {
	struct list link;
	struct store *s;
	struct wait *wait;
	void (*fn)(struct job *j);
	struct store_object *o;
	void *op;
	int rc;
	bool sampled, ended; /* ended: told so; only its event is left */
};

struct space_wait {
	struct list link;
	struct wait *wait;
};

static inline int refusal(const struct store *s)
{
	return s->p->dying || s->closed ? -ERR_CLOSED : s->failed;
}

static inline bool page_damaged(const struct image *im)
{
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (im->b[i].state == BLOCK_BAD)
			return true;
	return false;
}

static inline bool is_data_record(uint8_t kind)
{
	return kind == RECORD_WRITE || kind == RECORD_TRIM || kind == RECORD_ZEROES ||
	       kind == RECORD_COPY;
}

/* sim_store.c */
/* The entry becomes part of the view: once. replay: only where it is newer than the page (Y4, L2). */
void apply_entry(struct entry *e, bool replay);
/* The object's next one after e (NULL: its first) that is not void; records: of the log proper only. */
struct entry *lane_next(struct store *s, struct entry *e, const struct store_object *o, bool records);
/* Committed records become readable, in order; in a replay those up to the entry that it has come to. */
void advance_to(struct store_object *o, bool replay, uint64_t no);
void advance(struct store_object *o, bool replay);
void take_header(struct store_object *o, const struct entry *e);
void entry_free(struct entry *e);
void lane_batch(struct turn_end *t);

/* sim_store_ask.c */
/* Some time later the wait ends; fn looks at the object at any moment until then. */
int job_start(struct store_object *o, void *op, void (*fn)(struct job *), struct wait *w);
void sample_nothing(struct job *j);
void job_free(struct job *j);
