/* SPDX-License-Identifier: Apache-2.0 */
/* A shard's lane of the write log: forms one batch per turn, keeps up to LANE_INFLIGHT of them in flight,
 * and counts a batch as durable only when all before it are (I6). Shard thread.
 *
 *   open ──close──▶ ready ──submit──▶ in flight ──all earlier done──▶ durable
 *   lane_append     has its place      (io)                           shard_batch_durable
 *                   shard_batch_placed
 *
 * The position of a record is known once its batch is closed. Batches are closed at the end of the turn,
 * when full, and early when somebody needs a committed record's place (lane_close). */
#pragma once

#include "node/loop/loop.h"
#include "store/log_format.h"

#define LANE_INFLIGHT 8u
#define LANE_BATCHES (LANE_INFLIGHT + 1)

struct shard;

enum lane_class {
	LANE_ORDINARY, /* leaves two segments per lane */
	LANE_TRIM,     /* leaves one */
	LANE_RESERVE,  /* header records and re-appended tails: leaves one in all */
	LANE_NAME,     /* naming a release, which frees others: takes the last */
};

struct batch {
	uint64_t start_us; /* when it was given to the device */
	struct list link;
	struct list records; /* struct log_tail.batch_link, in order */
	struct list ops;     /* struct store_append.link, in order */
	struct wait wait;
	struct io io;
	struct iovec iov[2];
	struct lane *lane;
	uint8_t *head, *payload;
	size_t head_len, head_cap;
	unsigned payload_blocks, payload_cap, record_count;
	uint64_t seq, oldest; /* seq 0: a segment header, written in front of the segment's first batch */
	uint32_t pos, blocks; /* place, once closed */
	bool done, heap;
	int rc;
};

struct lane {
	struct shard *shard;
	struct batch batches[LANE_BATCHES];
	void *memory;
	struct batch *open;
	struct list free, ready, inflight;
	unsigned inflight_count;
	struct turn_end turn;
	uint32_t seg, at; /* current segment and next free block in it; LOG_NONE: none yet */
	unsigned held;	  /* segments of this session not given back */
	uint64_t batch_seq, durable_seq; /* newest formed (open counts), newest durable */
	uint64_t oldest;		 /* generation below which the lane's segments are released */
	unsigned releasing;		 /* segments released but not named yet */
	bool name_release;		 /* a released segment waits for a batch that says so */
};

void lane_init(struct lane *l, struct shard *sh);
void lane_fini(struct lane *l);
/* Puts a record into the open batch; the payload is copied. -ERR_LIMIT: no room
 * now; nothing was done. */
int lane_append(struct lane *l, const struct log_record *r, const struct fp128 *fps, const void *payload,
		enum lane_class class, struct batch **out) MUST_USE;
void lane_close(struct lane *l);
/* Where the payload at log position pos still stands in RAM, or NULL. */
const uint8_t *lane_ram(const struct lane *l, uint32_t pos);
/* A segment in state SEG_RELEASING with this lane's number waits until a durable batch says that all below
 * `oldest` are released; an empty one is written if need be. */
void lane_release(struct lane *l, uint64_t oldest);
bool lane_idle(const struct lane *l);
