/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of relocate: where things are (relocate_view.c), what is missing and what is to go (relocate.c),
 * what is uneven (relocate_balance.c). All of it is of one call of relocate(), on its thread. */
#pragma once

#include "cluster/relocate.h"

enum trouble {
	TROUBLE_NONE,
	TROUBLE_AWAY, /* its node: counts for `out` replicas, an `in` one works as long as it is in
		       */
	TROUBLE_GONE, /* its node is removed or dead, its group failed or removed */
	TROUBLE_EMPTIED,
};

struct place { /* a disk group */
	const struct map_group *group;
	const struct map_node *node;
	enum trouble trouble;
	bool up, held; /* held: its job waits, or nobody has started it */
	int job;       /* index of the job that replaces what is here, or -1 */
	/* Jobs that count what is here as not done yet, whichever of them moves it: bits, by index. */
	uint64_t emptied_for, rebuilt_for;
	unsigned fills, primaries;
	uint64_t fill_bytes; /* nominal */
	uint64_t bytes; /* nominal, of what is to stay */
};

struct task {
	const struct map_object *object;
	unsigned sources; /* `in` replicas in reach */
	int leaves; /* the member that goes when one is too much, or -1: decided once, as loads move
		     */
};

struct work {
	const struct relocate_input *in;
	struct relocate_plan *out;
	struct place *place; /* by group number */
	unsigned places;
	struct task *task;
	size_t task_count, task_cap;
	int rebalance; /* index of its live job, or -1 */
	uint64_t total_bytes, total_raw;
	unsigned looks, later, transit;
};

/* What one object has. */
struct view {
	const struct map_object *o;
	const struct map_volume *v;
	struct place *at[MEMBERS_MAX]; /* NULL: its group has another incarnation, or is unknown */
	bool good[MEMBERS_MAX];        /* it is, or may become, one of the copies that stay */
	unsigned in, in_good, good_count, sources;
	bool primary_up;
	bool hopeful; /* an `in` replica is, or will be, in reach: its node is not given up */
};

/* ---- relocate_view.c ---- */

void places_init(struct work *w);
const char *place_fault_set(const struct place *p);
double place_load(const struct place *p);
/* As many copies are under way there as are good for one more of `size` bytes. */
bool place_is_busy(const struct work *w, const struct place *p, uint64_t size);
bool place_takes_more(const struct work *w, const struct place *p, uint64_t size);
void place_fill_add(struct place *p, uint64_t size);
/* Its job is paused, or was cancelled for this absence. */
bool place_job_forbids(const struct work *w, const struct place *p);

void view_object(struct view *v, const struct work *w, const struct map_object *o);
/* Index of the member that goes when there are more than enough, or -1. */
int view_victim(const struct view *v);
/* All copies are there, and one more: something else is to go for it. */
bool view_in_transit(const struct view *v);
bool view_needs_a_look(const struct view *v);

void relocate_each_object(struct work *w, void (*fn)(struct work *w, const struct map_object *o));

/* ---- relocate.c ---- */

/* A step to be filled in, or NULL: the plan is full. */
struct object_change *relocate_change(struct work *w, const struct map_object *o, enum object_op op);

/* ---- relocate_balance.c ---- */

void relocate_balance(struct work *w);
