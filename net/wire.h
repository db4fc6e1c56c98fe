/* SPDX-License-Identifier: Apache-2.0 */
/* The frame: the one unit on every connection between nodes and between clients and nodes.
 *
 * All integers little-endian. A frame is
 *
 *   off size
 *    0   4  magic            "ASHF" = 0x46485341
 *    4   1  header version   1
 *    5   1  flags            0; a receiver refuses bits it does not know
 *    6   2  opcode           enum wire_op
 *    8   8  id               request id of the sender, echoed by the answer; 0 when there is none
 *   16   4  body length      bytes of message fields that follow the header, ≤ WIRE_BODY_MAX
 *   20   4  payload length   bytes of block data that follow the body, ≤ WIRE_PAYLOAD_MAX
 *   24   8  checksum         xxh3-64 of bytes 0–23, seeded with the xxh3-64 (seed 0) of the body
 *   32      body, payload
 *
 * The payload is covered by the fp128 of each of its 4 KiB blocks, which the body carries; a payload
 * that is not whole blocks carries one fp128 of all its bytes. A bad magic, version, length or
 * checksum closes the connection: -ERR_PROTOCOL. Frozen by tests/golden. */
#pragma once

#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "node/base/op.h"
#include "node/base/uuid.h"

#define WIRE_MAGIC 0x46485341u
#define WIRE_HEADER_SIZE 32u
#define WIRE_HEADER_VERSION 1u
#define WIRE_BODY_MAX (4u << 20)   /* a Raft snapshot or a whole map is the largest */
#define WIRE_PAYLOAD_MAX (1u << 20)

/* Opcodes are never reused; a retired one keeps its line as RETIRED_n. */
enum wire_op {
	OP_HELLO = 1,	   /* struct wire_hello, first frame of the dialler */
	OP_WELCOME = 2,	   /* struct wire_hello of the acceptor */
	OP_REFUSE = 3,	   /* struct wire_refusal, then close */

	/* control connections */
	OP_RAFT = 10,	   /* cluster/consensus: one libraft message */
	OP_PROPOSE = 11,   /* a command for the leader (cluster/command.h) */
	OP_PROPOSED = 12,  /* its result */
	OP_MAP_WATCH = 13, /* subscribe from a map version on */
	OP_MAP_DELTA = 14, /* cluster/map.h */
	OP_CALL = 15,	   /* an admin call to this node: method, path, JSON */
	OP_RESULT = 16,	   /* status, JSON */
	OP_NODES = 17,	   /* the nodes that the sender knows */

	/* client I/O (net/io_msg.h) */
	OP_IO = 20,
	OP_IO_REPLY = 21,

	/* replication (cluster/replica_msg.h) */
	OP_BEACON = 30,
	OP_GRANT = 31,
	OP_FENCE = 32,
	OP_FENCED = 33,
	OP_JOIN = 34,
	OP_JOINED = 35,
	OP_REPLICATE = 36,
	OP_ACK = 37,
	OP_VERSIONS = 38,
	OP_MANIFEST = 39,
	OP_REPAIR_READ = 40,
	OP_REPAIR_DATA = 41,
	OP_STALE = 42,
	OP_DAMAGED = 43,
	OP_IO_FORWARD = 45, /* OP_IO to a node that is not the primary: it goes on, one hop */
};

struct wire_header {
	uint16_t opcode;
	uint64_t id;
	uint32_t body_len, payload_len;
};

/* Writes header (with checksum) for a body that is laid out already. */
void wire_header_encode(const struct wire_header *h, const void *body, uint8_t out[WIRE_HEADER_SIZE]);
/* Lengths and fixed fields of a header, before the body is there: 0, -ERR_PROTOCOL, -ERR_VERSION. */
int wire_header_decode(const uint8_t in[WIRE_HEADER_SIZE], struct wire_header *out) MUST_USE;
int wire_body_check(const uint8_t header[WIRE_HEADER_SIZE], const void *body) MUST_USE;
/* The beginning of a byte stream. 0: header and body are whole and right, the payload may still be on
 * its way. PENDING: too short; once the header is whole *out tells how much is wanted, before that
 * *out is zero. Negative: this is no frame. Pure; the one parser of conn.c and of the fuzzer. */
int wire_frame_parse(const uint8_t *p, size_t len, struct wire_header *out) MUST_USE;

/* Who speaks. The connection's TLS certificate must name the same node or client. */
enum hello_kind {
	HELLO_CONTROL = 1, /* node to node: Raft, proposals, calls */
	HELLO_DATA = 2,	   /* node to node: replication of the objects of one stream */
	HELLO_CLIENT_CONTROL = 3,
	HELLO_CLIENT_DATA = 4,
};

/*  0 u8  protocol version lowest, 1 u8 highest, 2 u8 kind, 3 u8 flags (HELLO_PLAIN),
 *  4 16  cluster uuid, 20 16 node or client uuid, 36 u16 node number (0: client), 38 u16 stream,
 * 40 u16 shards of the sender, 42 u16 streams, 44 u32 node incarnation, 48 u64 process nonce,
 * 56 u16 how often the node's cluster was recovered from a lost Raft majority, 58 u32 which recovery was
 * the last (nodes only) */
#define WIRE_HELLO_SIZE 62u
#define WIRE_PROTOCOL 1u
enum hello_flags { HELLO_PLAIN = 1 /* after WELCOME the TLS layer is left: authenticated, unencrypted */ };

struct wire_hello {
	uint8_t version_min, version_max, kind, flags;
	struct uuid cluster, self;
	uint16_t node, stream, shards, streams;
	uint32_t incarnation;
	uint64_t nonce;
	uint16_t recovery;
	uint32_t recovery_id;
};

/* u16 reason (enum refuse_reason), u32 detail (the incarnation known), str text */
enum refuse_reason {
	REFUSE_VERSION = 1,
	REFUSE_CLUSTER = 2,
	REFUSE_IDENTITY = 3,
	REFUSE_INCARNATION = 4,
	REFUSE_STREAM = 5,
	REFUSE_LIMIT = 6,
	REFUSE_NOT_READY = 7,
	REFUSE_REMOVED = 8, /* from the cluster, for good; detail 1: I have the key of its CA */
	REFUSE_RECOVERED = 9, /* detail: the recovery that I am of, which is not yours */
};
struct wire_refusal {
	uint16_t reason;
	uint32_t detail;
	char text[200];
};

/* Decoders want the whole body (reader_done), except that a hello of a newer protocol may be longer. */
void wire_hello_encode(const struct wire_hello *h, struct writer *w);
int wire_hello_decode(struct reader *r, struct wire_hello *out) MUST_USE;
void wire_refusal_encode(const struct wire_refusal *f, struct writer *w);
int wire_refusal_decode(struct reader *r, struct wire_refusal *out) MUST_USE;
/* The protocol version two sides speak: the highest both know, 0 if there is none. */
unsigned wire_version_common(const struct wire_hello *a, const struct wire_hello *b);
/* Both sides ask for plain, on a data connection: control connections carry keys and commands and
 * always stay under TLS. */
bool wire_is_data(uint8_t hello_kind); /* DATA or CLIENT_DATA */
bool wire_leaves_tls(const struct wire_hello *hello, const struct wire_hello *welcome);
const char *wire_refuse_name(uint16_t reason);
