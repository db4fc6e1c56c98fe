/* SPDX-License-Identifier: Apache-2.0 */
/* Client I/O on one object: OP_IO and OP_IO_REPLY. Frozen by tests/golden. OP_IO_FORWARD has the body of
 * OP_IO and is answered likewise: for a client that cannot reach the primary, by another member's node.
 *
 * OP_IO body, little-endian:
 *    0 u8  kind (enum io_kind)      1 u8 flags      2 u16 0
 *    4 u32 object epoch the client routed by
 *    8 u64 object                   16 u32 replica generation of the addressed primary, 0 = any
 *   20 u32 attachment               24 u32 attach epoch
 *   28 u32 offset bytes in object   32 u32 length bytes (≤ 1 MiB)
 *   36 u32 0                        40 u64 request number   48 u64 low-water
 *   56     fp128 (lo, hi) × n: one per 4 KiB block of the payload when offset and length are whole
 *          blocks, else one of the whole payload. Only IO_WRITE has a payload.
 *
 * OP_IO_REPLY body:
 *    0 u8 status (enum io_status)   1 u8 0   2 u16 extents   4 u32 object epoch known here
 *    8      IO_READ, ok: fp128 as above for the payload;
 *           IO_STATUS, ok: extents × (u32 length bytes, u32 flags: 1 hole, 2 reads as zero)
 *
 * Retry rule (cluster/replication.md, A1): (attachment, attach epoch, request) names one
 * write for ever; low-water promises that no number below it will be sent again. */
#pragma once

#include "net/wire.h"
#include "node/base/buf.h"
#include "node/base/op.h"

#define IO_MAX_BYTES (1u << 20)
#define IO_MAX_BLOCKS (IO_MAX_BYTES / BLOCK_SIZE)
#define IO_MAX_EXTENTS IO_MAX_BLOCKS

enum io_kind { IO_READ = 1, IO_WRITE = 2, IO_TRIM = 3, IO_ZEROES = 4, IO_STATUS = 5 };

enum io_status {
	IO_OK = 0,
	IO_RETRY = 1,	     /* wait for a map delta or 50 ms */
	IO_NOT_PRIMARY = 2,  /* route again by the map */
	IO_STALE_EPOCH = 3,  /* the request's epoch is older than the tenure */
	IO_FENCED = 4,	     /* attachment revoked */
	IO_NO_SPACE = 5,
	IO_MEDIUM_ERROR = 6, /* the block cannot be produced from any replica */
	IO_INVALID = 7,
	IO_INCOMPLETE = 8,   /* the object waits for a replica with acknowledged writes */
	IO_DUPLICATE = 9,    /* request number below low-water */
};

struct io_extent {
	uint32_t length, flags;
};
enum io_extent_flags { IO_EXTENT_HOLE = 1, IO_EXTENT_ZERO = 2 };

struct io_request {
	uint8_t kind;
	uint32_t epoch, replica_gen, attachment, attach_epoch;
	uint64_t object;
	uint32_t offset, length;
	uint64_t request, low_water;
	unsigned fp_count;
	struct fp128 fps[IO_MAX_BLOCKS];
};

struct io_reply {
	uint8_t status;
	uint32_t epoch;
	unsigned fp_count, extent_count;
	struct fp128 fps[IO_MAX_BLOCKS];
	struct io_extent extents[IO_MAX_EXTENTS];
};

/* Fingerprints a payload of this offset and length has: one per block when whole, else one. */
unsigned io_fp_count(uint32_t offset, uint32_t length);
void io_payload_fps(const void *payload, uint32_t offset, uint32_t length, struct fp128 *out);
bool io_payload_check(const void *payload, uint32_t offset, uint32_t length, const struct fp128 *fps);

void io_request_encode(const struct io_request *q, struct writer *w);
/* -ERR_PROTOCOL on bad fields; payload_len is the frame's and must fit. */
int io_request_decode(struct reader *r, uint32_t payload_len, struct io_request *out) MUST_USE;
void io_reply_encode(const struct io_reply *a, enum io_kind kind, struct writer *w);
int io_reply_decode(struct reader *r, enum io_kind kind, uint32_t offset, uint32_t length,
		    uint32_t payload_len, struct io_reply *out) MUST_USE;
const char *io_status_name(uint8_t status);

/* One request being executed, wherever its primary is: made by client/, executed by cluster/replica
 * (same loop) or carried there by a connection. Caller-owned until the resume. */
struct io_exec {
	struct wait *wait;
	struct list link;
	struct io_request *request; /* fingerprints filled in */
	struct slice payload;	    /* IO_WRITE; the executor takes its own references */
	struct io_reply *reply;	    /* out; valid at the resume, whose rc is 0 (see reply->status) */
	struct slice data;	    /* out, IO_READ: caller unrefs */
	void *impl;
};
