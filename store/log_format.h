/* SPDX-License-Identifier: Apache-2.0 */
/* The write log on disk, byte by byte. Pure codecs: no I/O, no state; every decoder is bounds-checked.
 * Little-endian, no padding. All log devices of a group are one space of equally long segments.
 *
 * SEGMENT HEADER, block 0 of a segment; the fields lie within one 512-byte sector, so it is whole or old
 *   off size
 *     0   4  magic "ASLS"            4   2  format 1           6   2  lane
 *     8   2  lanes of this session  10   2  zero              12   4  log incarnation
 *    16  16  log uuid               32   8  generation        40   8  session
 *    48   8  first batch seq        56   8  durable seq       64   8  oldest
 *    72   8  kv commit              80   8  xxh3-64, seed 0, of bytes 0–79; the rest is zero
 *   generation  +1 for each segment opened anywhere in the log, never reused. Replay goes by it.
 *   session     the first generation of the opening of the store that wrote it: at least the superblock
 *               sequence << 32, which each opening raises first
 *   With magic "ASLR" the segment, of an earlier session, was released: its header stays with `durable` = its
 *   last batch, so that its chain has no gap, and the `oldest` that its lane named last, until the segment is
 *   opened again; its batches mean nothing.
 *   oldest      if ≤ session: segments of any lane with a lower generation are released; if above:
 *               also those of this lane with a generation below it
 *
 * BATCH, from block 1 on, each right behind the other: header blocks, then payload blocks
 *     0   4  magic "ASLB"            4   2  format 1           6   2  header blocks
 *     8   2  lane                   10   2  records           12   4  payload blocks
 *    16   8  generation             24   8  batch seq         32   8  durable seq
 *    40   8  kv commit              48   8  own hash          56   8  oldest (as above)
 *   Records follow; zeros to the end of the header blocks. The own hash is xxh3-64 over all header blocks
 *   with this field zero, seeded with log_seed(). Batch seq: +1 per batch of the lane in its session,
 *   from 1. durable seq: all batches up to it were durable when this one was formed.
 *   A batch with magic "ASLE" ends its lane's session: recovery wrote it over the torn tail. Each
 *   segment keeps its last block free for it.
 *
 * RECORD, 80 + 16·n
 *     0   8  object                  8   4  replica generation 12  4  tenure
 *    16   8  seq                    24   4  commit tenure     28   8  commit seq
 *    36   4  first block            40   4  blocks            44   4  attachment
 *    48   4  attach epoch           52   8  request           60   8  low-water
 *    68   1  kind                   69   1  skip mask         70   2  flags (0)
 *    72   8  zero                   80 16·n  fp128 of each payload block (lo, hi)
 *   n follows from the kind: write: the blocks in pages without skip bit; trim, zeroes: none; copy: the
 *   bits of data; epoch, cut, complete: `blocks`, the payload being the encoded object header (header.h)
 *   and (tenure, seq) the version it stands behind. A copy has instead of 44–67 and 72–79:
 *    44   8  data   52  8  zero   60  8  hole   72  8  damaged    (bit = block in page)
 *
 * A batch is valid if its own hash holds and lane, generation and batch seq are the expected ones; its
 * payload is valid if each block has its fingerprint. What a crash leaves: a torn batch fails its hash or
 * a fingerprint; with all behind it it never counted, since completion goes in order.
 * Frozen by tests/store/log. */
#pragma once

#include "node/base/bytes.h"
#include "store/store.h"

#define LOG_SEGMENT_MAGIC 0x534c5341u /* "ASLS" */
#define LOG_BATCH_MAGIC 0x424c5341u   /* "ASLB" */
#define LOG_RELEASED_MAGIC 0x524c5341u /* "ASLR" */
#define LOG_SEAL_MAGIC 0x454c5341u    /* "ASLE" */
#define LOG_FORMAT 1u
#define LOG_SEGMENT_HEADER_LEN 88u
#define LOG_BATCH_HEADER_LEN 64u
#define LOG_RECORD_LEN 80u
#define LOG_BATCH_HEADER_BLOCKS_MAX 8u
#define LOG_BATCH_PAYLOAD_MAX 256u /* blocks */

struct log_segment_header {
	uint16_t lane, lanes;
	uint32_t incarnation;
	struct uuid log;
	uint64_t generation, session, first_batch, durable, oldest, kv_commit;
	bool released;
};

struct log_batch_header {
	bool seal;
	uint16_t header_blocks, lane, records;
	uint32_t payload_blocks;
	uint64_t generation, seq, durable, kv_commit, oldest;
};

struct log_record {
	uint64_t object;
	uint32_t gen;
	struct record r;
	unsigned fp_count;
};

uint64_t log_seed(const struct uuid *log, uint32_t incarnation);

void log_segment_encode(const struct log_segment_header *h, uint8_t out[BLOCK_SIZE]);
/* 0; -ENODATA: no segment header; -ERR_CORRUPT; -ERR_VERSION. */
int log_segment_decode(const uint8_t in[BLOCK_SIZE], struct log_segment_header *out) MUST_USE;

/* Fills bytes 0–63 and the hash; the records are in place behind, the rest is zero already. */
void log_batch_seal(const struct log_batch_header *h, uint8_t *blocks, uint64_t seed);
/* The first 64 bytes only, to learn the length; nothing is to be believed before log_batch_verify. */
int log_batch_peek(const uint8_t *block, struct log_batch_header *out) MUST_USE;
int log_batch_verify(const uint8_t *blocks, unsigned header_blocks, uint64_t seed) MUST_USE;

/* Number of payload blocks of a record, from its kind, range and masks. */
unsigned log_record_payload(const struct record *r);
static inline size_t log_record_len(unsigned fps) { return LOG_RECORD_LEN + 16u * fps; }
void log_record_encode(const struct log_record *r, const struct fp128 *fps, uint8_t *out);
/* Next record; *fps points into the reader's bytes (use log_fp). -ERR_CORRUPT. */
int log_record_decode(struct reader *in, struct log_record *out, const uint8_t **fps) MUST_USE;
static inline struct fp128 log_fp(const uint8_t *fps, unsigned i)
{
	return (struct fp128){ .lo = get_le64(fps + 16 * i), .hi = get_le64(fps + 16 * i + 8) };
}
/* Kind, range and masks are ones that store_append may be given. */
bool log_record_valid(const struct record *r);

static inline bool record_is_header(uint8_t kind)
{
	return kind == RECORD_EPOCH || kind == RECORD_CUT || kind == RECORD_COMPLETE;
}
