/* SPDX-License-Identifier: Apache-2.0 */
/* Space for writes: what a peer may send without asking, and who met a lack of it (W1, L4). Part of
 * replica_impl.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct io_op;

struct credit { /* of a session, for one disk group; each end counts for itself */
	uint16_t group;
	bool full;
	uint64_t granted, spent, window, full_us; /* full_us: when it was last told to be full */
};
struct credit *credit_find(struct credit *c, unsigned *count, uint16_t group);
/* The sender's `spent` may be ahead of what it has heard of `granted`: a tail that is sent again after a
 * session was lost does not ask for credit. */
static inline uint64_t credit_left(const struct credit *c)
{
	return c->granted > c->spent ? c->granted - c->spent : 0;
}

/* Requests of clients that met a lack of space; the oldest is forgotten first. */
#define SHORTAGES_MAX 256u
struct shortages {
	struct shortage {
		uint64_t object, request, since_us; /* since_us 0: none */
		uint32_t attachment, attach_epoch;
	} at[SHORTAGES_MAX];
	unsigned next;
};

/* 0: there is credit for so many bytes, or it was answered, as its stage says; PENDING: it waits. */
int op_take_credit(struct io_op *op, uint64_t need);
