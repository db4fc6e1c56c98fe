/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs of log_format.h. */
#include "store/log_format.h"

#include "node/base/err.h"

uint64_t log_seed(const struct uuid *log, uint32_t incarnation)
{
	uint8_t b[20];

	memcpy(b, log->b, 16);
	put_le32(b + 16, incarnation);
	return hash_xxh3(b, sizeof(b), 0);
}

void log_segment_encode(const struct log_segment_header *h, uint8_t out[BLOCK_SIZE])
{
	struct writer w = writer_init(out, BLOCK_SIZE);

	memset(out, 0, BLOCK_SIZE);
	write_u32(&w, h->released ? LOG_RELEASED_MAGIC : LOG_SEGMENT_MAGIC);
	write_u16(&w, LOG_FORMAT);
	write_u16(&w, h->lane);
	write_u16(&w, h->lanes);
	write_u16(&w, 0);
	write_u32(&w, h->incarnation);
	write_bytes(&w, h->log.b, 16);
	write_u64(&w, h->generation);
	write_u64(&w, h->session);
	write_u64(&w, h->first_batch);
	write_u64(&w, h->durable);
	write_u64(&w, h->oldest);
	write_u64(&w, h->kv_commit);
	write_u64(&w, hash_xxh3(out, w.len, 0));
	CHECK(w.len == LOG_SEGMENT_HEADER_LEN);
}

int log_segment_decode(const uint8_t in[BLOCK_SIZE], struct log_segment_header *out)
{
	struct reader r = reader_init(in, LOG_SEGMENT_HEADER_LEN);
	uint32_t magic = read_u32(&r);
	uint16_t format;

	memset(out, 0, sizeof(*out));
	if (magic != LOG_SEGMENT_MAGIC && magic != LOG_RELEASED_MAGIC)
		return -ENODATA;
	out->released = magic == LOG_RELEASED_MAGIC;
	if (hash_xxh3(in, LOG_SEGMENT_HEADER_LEN - 8, 0) !=
	    get_le64(in + LOG_SEGMENT_HEADER_LEN - 8))
		return -ERR_CORRUPT;
	format = read_u16(&r);
	if (format != LOG_FORMAT)
		return -ERR_VERSION;
	out->lane = read_u16(&r);
	out->lanes = read_u16(&r);
	(void)read_u16(&r);
	out->incarnation = read_u32(&r);
	read_copy(&r, out->log.b, 16);
	out->generation = read_u64(&r);
	out->session = read_u64(&r);
	out->first_batch = read_u64(&r);
	out->durable = read_u64(&r);
	out->oldest = read_u64(&r);
	out->kv_commit = read_u64(&r);
	if (!out->lanes || out->lanes > SHARDS_MAX || out->lane >= out->lanes || !out->generation ||
	    out->session > out->generation || !out->first_batch)
		return -ERR_CORRUPT;
	return 0;
}

void log_batch_seal(const struct log_batch_header *h, uint8_t *blocks, uint64_t seed)
{
	struct writer w = writer_init(blocks, LOG_BATCH_HEADER_LEN);

	write_u32(&w, h->seal ? LOG_SEAL_MAGIC : LOG_BATCH_MAGIC);
	write_u16(&w, LOG_FORMAT);
	write_u16(&w, h->header_blocks);
	write_u16(&w, h->lane);
	write_u16(&w, h->records);
	write_u32(&w, h->payload_blocks);
	write_u64(&w, h->generation);
	write_u64(&w, h->seq);
	write_u64(&w, h->durable);
	write_u64(&w, h->kv_commit);
	write_u64(&w, 0);
	write_u64(&w, h->oldest);
	CHECK(!w.bad && w.len == LOG_BATCH_HEADER_LEN);
	put_le64(blocks + 48, hash_xxh3(blocks, (size_t)h->header_blocks * BLOCK_SIZE, seed));
}

int log_batch_peek(const uint8_t *block, struct log_batch_header *out)
{
	struct reader r = reader_init(block, LOG_BATCH_HEADER_LEN);
	uint32_t magic = read_u32(&r);

	memset(out, 0, sizeof(*out));
	if (magic != LOG_BATCH_MAGIC && magic != LOG_SEAL_MAGIC)
		return -ENODATA;
	out->seal = magic == LOG_SEAL_MAGIC;
	if (read_u16(&r) != LOG_FORMAT)
		return -ERR_VERSION;
	out->header_blocks = read_u16(&r);
	out->lane = read_u16(&r);
	out->records = read_u16(&r);
	out->payload_blocks = read_u32(&r);
	out->generation = read_u64(&r);
	out->seq = read_u64(&r);
	out->durable = read_u64(&r);
	out->kv_commit = read_u64(&r);
	(void)read_u64(&r);
	out->oldest = read_u64(&r);
	if (!out->header_blocks || out->header_blocks > LOG_BATCH_HEADER_BLOCKS_MAX ||
	    out->payload_blocks > LOG_BATCH_PAYLOAD_MAX)
		return -ERR_CORRUPT;
	return 0;
}

int log_batch_verify(const uint8_t *blocks, unsigned header_blocks, uint64_t seed)
{
	uint8_t copy[LOG_BATCH_HEADER_BLOCKS_MAX * BLOCK_SIZE];
	size_t len = (size_t)header_blocks * BLOCK_SIZE;

	if (!header_blocks || header_blocks > LOG_BATCH_HEADER_BLOCKS_MAX)
		return -ERR_CORRUPT;
	memcpy(copy, blocks, len);
	put_le64(copy + 48, 0);
	return hash_xxh3(copy, len, seed) == get_le64(blocks + 48) ? 0 : -ERR_CORRUPT;
}

unsigned log_record_payload(const struct record *r)
{
	unsigned n = 0;
	uint32_t b = r->block, end = r->block + r->blocks;

	if (r->kind == RECORD_COPY)
		return (unsigned)__builtin_popcountll(r->copy_data);
	if (record_is_header(r->kind))
		return r->blocks;
	if (r->kind != RECORD_WRITE)
		return 0;
	if (!r->skip_mask)
		return r->blocks;
	for (unsigned i = 0; b < end; i++) {
		uint32_t stop = MIN(end, (b | (PAGE_BLOCKS - 1)) + 1);

		if (!(r->skip_mask >> i & 1))
			n += stop - b;
		b = stop;
	}
	return n;
}

bool log_record_valid(const struct record *r)
{
	unsigned pages;

	if (!r->version.seq && !record_is_header(r->kind))
		return false;
	if (record_is_header(r->kind))
		return r->blocks && r->blocks <= RECORD_BLOCKS_MAX;
	if (r->kind < RECORD_WRITE || r->kind > RECORD_COPY)
		return false;
	if (!r->blocks || r->blocks > RECORD_BLOCKS_MAX || r->block >= OBJECT_BLOCKS_MAX ||
	    r->blocks > OBJECT_BLOCKS_MAX - r->block)
		return false;
	if (r->kind == RECORD_COPY) {
		uint64_t d = r->copy_data, z = r->copy_zero, h = r->copy_hole, x = r->copy_damaged;

		return r->block % PAGE_BLOCKS == 0 && r->blocks == PAGE_BLOCKS && !r->skip_mask &&
		       !((d & z) | (d & h) | (d & x) | (z & h) | (z & x) | (h & x));
	}
	pages = (r->block + r->blocks - 1) / PAGE_BLOCKS - r->block / PAGE_BLOCKS + 1;
	return pages <= RECORD_PAGES_MAX && r->skip_mask >> pages == 0;
}

void log_record_encode(const struct log_record *in, const struct fp128 *fps, uint8_t *out)
{
	const struct record *r = &in->r;

	put_le64(out, in->object);
	put_le32(out + 8, in->gen);
	put_le32(out + 12, r->version.tenure);
	put_le64(out + 16, r->version.seq);
	put_le32(out + 24, r->commit.tenure);
	put_le64(out + 28, r->commit.seq);
	put_le32(out + 36, r->block);
	put_le32(out + 40, r->blocks);
	if (r->kind == RECORD_COPY) {
		put_le64(out + 44, r->copy_data);
		put_le64(out + 52, r->copy_zero);
		put_le64(out + 60, r->copy_hole);
		put_le64(out + 72, r->copy_damaged);
	} else {
		put_le32(out + 44, r->attachment);
		put_le32(out + 48, r->attach_epoch);
		put_le64(out + 52, r->request);
		put_le64(out + 60, r->low_water);
		put_le64(out + 72, 0);
	}
	out[68] = r->kind;
	out[69] = r->skip_mask;
	put_le16(out + 70, 0);
	for (unsigned i = 0; i < in->fp_count; i++) {
		put_le64(out + LOG_RECORD_LEN + 16 * i, fps[i].lo);
		put_le64(out + LOG_RECORD_LEN + 16 * i + 8, fps[i].hi);
	}
}

int log_record_decode(struct reader *in, struct log_record *out, const uint8_t **fps)
{
	const uint8_t *p = read_bytes(in, LOG_RECORD_LEN);
	struct record *r = &out->r;

	memset(out, 0, sizeof(*out));
	if (!p)
		return -ERR_CORRUPT;
	out->object = get_le64(p);
	out->gen = get_le32(p + 8);
	r->version = (struct version){get_le32(p + 12), get_le64(p + 16)};
	r->commit = (struct version){get_le32(p + 24), get_le64(p + 28)};
	r->block = get_le32(p + 36);
	r->blocks = get_le32(p + 40);
	r->kind = p[68];
	r->skip_mask = p[69];
	if (r->kind == RECORD_COPY) {
		r->copy_data = get_le64(p + 44);
		r->copy_zero = get_le64(p + 52);
		r->copy_hole = get_le64(p + 60);
		r->copy_damaged = get_le64(p + 72);
	} else {
		r->attachment = get_le32(p + 44);
		r->attach_epoch = get_le32(p + 48);
		r->request = get_le64(p + 52);
		r->low_water = get_le64(p + 60);
	}
	if (get_le16(p + 70) || !log_record_valid(r))
		return -ERR_CORRUPT;
	out->fp_count = log_record_payload(r);
	*fps = read_bytes(in, 16u * out->fp_count);
	return *fps || !out->fp_count ? 0 : -ERR_CORRUPT;
}
