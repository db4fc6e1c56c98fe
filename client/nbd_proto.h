/* SPDX-License-Identifier: Apache-2.0 */
/* The NBD protocol as pure functions: negotiation over bytes, requests, replies, error numbers. No
 * sockets, no client: fuzzers and tests call it directly. Everything is big-endian.
 * Source: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md. */
#pragma once

#include "node/base/bytes.h"

#define NBD_MAGIC 0x4e42444d41474943ull	       /* "NBDMAGIC" */
#define NBD_OPTION_MAGIC 0x49484156454f5054ull /* "IHAVEOPT" */
#define NBD_OPTION_REPLY_MAGIC 0x0003e889045565a9ull
#define NBD_REQUEST_MAGIC 0x25609513u
#define NBD_SIMPLE_MAGIC 0x67446698u
#define NBD_CHUNK_MAGIC 0x668e33efu

enum nbd_handshake_flags { NBD_FIXED_NEWSTYLE = 1, NBD_NO_ZEROES = 2 };

enum nbd_option {
	NBD_OPT_EXPORT_NAME = 1,
	NBD_OPT_ABORT = 2,
	NBD_OPT_LIST = 3,
	NBD_OPT_STARTTLS = 5,
	NBD_OPT_INFO = 6,
	NBD_OPT_GO = 7,
	NBD_OPT_STRUCTURED_REPLY = 8,
	NBD_OPT_LIST_META_CONTEXT = 9,
	NBD_OPT_SET_META_CONTEXT = 10,
};

enum nbd_option_reply {
	NBD_REP_ACK = 1,
	NBD_REP_SERVER = 2,
	NBD_REP_INFO = 3,
	NBD_REP_META_CONTEXT = 4,
};
#define NBD_REP_ERR_UNSUP 0x80000001u
#define NBD_REP_ERR_POLICY 0x80000002u
#define NBD_REP_ERR_INVALID 0x80000003u
#define NBD_REP_ERR_TLS_REQD 0x80000005u
#define NBD_REP_ERR_UNKNOWN 0x80000006u
#define NBD_REP_ERR_TOO_BIG 0x80000009u

enum nbd_info { NBD_INFO_EXPORT = 0, NBD_INFO_NAME = 1, NBD_INFO_BLOCK_SIZE = 3 };

enum nbd_export_flags {
	NBD_FLAG_HAS_FLAGS = 1 << 0,
	NBD_FLAG_READ_ONLY = 1 << 1,
	NBD_FLAG_SEND_FLUSH = 1 << 2,
	NBD_FLAG_SEND_FUA = 1 << 3,
	NBD_FLAG_SEND_TRIM = 1 << 5,
	NBD_FLAG_SEND_WRITE_ZEROES = 1 << 6,
	NBD_FLAG_SEND_DF = 1 << 7,
	NBD_FLAG_CAN_MULTI_CONN = 1 << 8,
	NBD_FLAG_SEND_CACHE = 1 << 10,
	NBD_FLAG_SEND_FAST_ZERO = 1 << 11,
};

enum nbd_command {
	NBD_CMD_READ = 0,
	NBD_CMD_WRITE = 1,
	NBD_CMD_DISC = 2,
	NBD_CMD_FLUSH = 3,
	NBD_CMD_TRIM = 4,
	NBD_CMD_CACHE = 5,
	NBD_CMD_WRITE_ZEROES = 6,
	NBD_CMD_BLOCK_STATUS = 7,
};

enum nbd_command_flags {
	NBD_CMD_FUA = 1 << 0,
	NBD_CMD_NO_HOLE = 1 << 1,
	NBD_CMD_DF = 1 << 2,
	NBD_CMD_REQ_ONE = 1 << 3,
	NBD_CMD_FAST_ZERO = 1 << 4,
};

enum nbd_chunk {
	NBD_CHUNK_NONE = 0,
	NBD_CHUNK_OFFSET_DATA = 1,
	NBD_CHUNK_BLOCK_STATUS = 5,
	NBD_CHUNK_ERROR = 1 << 15 | 1,
};
#define NBD_CHUNK_DONE 1u

enum nbd_error {
	NBD_EPERM = 1,
	NBD_EIO = 5,
	NBD_ENOMEM = 12,
	NBD_EINVAL = 22,
	NBD_ENOSPC = 28,
	NBD_EOVERFLOW = 75,
	NBD_ENOTSUP = 95,
	NBD_ESHUTDOWN = 108,
};

#define NBD_BLOCK_MIN 1u
#define NBD_BLOCK_PREFERRED 4096u
#define NBD_PAYLOAD_MAX (32u << 20)
#define NBD_NAME_MAX 4096u
#define NBD_OPTION_HEADER 16u
#define NBD_OPTION_MAX 16384u	       /* data of one option; longer ones are skipped and refused */
#define NBD_OPTION_SKIP_MAX (1u << 20) /* longer than that: the connection is dropped */
#define NBD_CONTEXT_ALLOCATION 1u      /* id of base:allocation */

/* ---- Negotiation ---- */

#define NBD_EXPORT_MAX 70u /* a volume's name and ":shared" */
struct nbd_export {
	char name[NBD_EXPORT_MAX + 1]; /* canonical */
	uint64_t size;
};
enum nbd_found {
	NBD_FOUND_NOT,
	NBD_FOUND,
	NBD_FOUND_LATER, /* not known yet: the option will be run again */
};
struct nbd_exports {
	enum nbd_found (*find)(void *ctx, const char *name, struct nbd_export *out);
	void (*list)(void *ctx, void (*fn)(void *arg, const char *name), void *arg);
};

struct nbd_negotiation {
	const struct nbd_exports *exports;
	void *ctx;
	bool tls_offered, tls_required; /* set by the user */
	bool tls_on;			/* set by the user after the TLS handshake */
	bool greeted, no_zeroes, structured;
	bool meta_allocation; /* base:allocation was chosen, for meta_export */
	char meta_export[NBD_EXPORT_MAX + 1];
	uint32_t skip, skip_option; /* rest of an option that is too long */
	struct nbd_export export;   /* the outcome */
};

enum nbd_step {
	NBD_STEP_MORE,	/* nothing to do without more bytes */
	NBD_STEP_LATER, /* find said so: nothing was consumed or answered; call again with the same bytes */
	NBD_STEP_NEXT,	/* one option was answered; call again once *out is sent */
	NBD_STEP_GO,	/* transmission begins after *out is sent; n->export */
	NBD_STEP_TLS,	/* TLS begins after *out is sent; then call nbd_negotiate_tls_started */
	NBD_STEP_CLOSE, /* send *out, then close */
};
void nbd_greeting(struct writer *out);
/* Does at most one step with data[0 … len); *used = bytes consumed. A buffer of NBD_OPTION_HEADER +
 * NBD_OPTION_MAX always makes progress. */
enum nbd_step nbd_negotiate(struct nbd_negotiation *n, const uint8_t *data, size_t len, size_t *used,
			    struct writer *out);
/* Forgets everything negotiated in the clear. */
void nbd_negotiate_tls_started(struct nbd_negotiation *n);
uint16_t nbd_export_flags(bool structured);

/* ---- Transmission ---- */

#define NBD_REQUEST_SIZE 28u
struct nbd_request {
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t length;
};
/* -ERR_PROTOCOL when the magic is wrong: the stream cannot be trusted any further. */
int nbd_request_parse(const uint8_t in[NBD_REQUEST_SIZE], struct nbd_request *out) MUST_USE;
struct nbd_limits {
	uint64_t size;
	bool structured, meta_allocation;
};
/* 0, or the wire error that answers the request once its payload is consumed. */
uint32_t nbd_request_check(const struct nbd_request *q, const struct nbd_limits *l);

#define NBD_SIMPLE_SIZE 16u
#define NBD_CHUNK_SIZE 20u
void nbd_simple_encode(uint8_t out[NBD_SIMPLE_SIZE], uint32_t error, uint64_t cookie);
void nbd_chunk_encode(uint8_t out[NBD_CHUNK_SIZE], uint16_t flags, uint16_t type, uint64_t cookie,
		      uint32_t length);
uint32_t nbd_error_of(int rc); /* our code to one of the eight wire errors */

static inline uint16_t get_be16(const void *p) { uint16_t v; memcpy(&v, p, 2); return be16toh(v); }
static inline void put_be16(void *p, uint16_t v) { v = htobe16(v); memcpy(p, &v, 2); }
