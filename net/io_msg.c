/* SPDX-License-Identifier: Apache-2.0 */
/* Client I/O messages: pure encoders and decoders of io_msg.h. Decoders check every length against
 * the frame's payload, so that what they return can be used without another look. */
#include "net/io_msg.h"

#include "node/base/err.h"

#define FP_SIZE 16u

static bool whole_blocks(uint32_t offset, uint32_t length)
{
	return !((offset | length) & (BLOCK_SIZE - 1));
}

unsigned io_fp_count(uint32_t offset, uint32_t length)
{
	return whole_blocks(offset, length) ? length >> BLOCK_SHIFT : 1;
}

void io_payload_fps(const void *payload, uint32_t offset, uint32_t length, struct fp128 *out)
{
	const uint8_t *p = payload;

	if (!whole_blocks(offset, length)) {
		*out = hash_fp128(p, length);
		return;
	}
	for (uint32_t i = 0; i < length >> BLOCK_SHIFT; i++)
		out[i] = hash_block(p + (size_t)i * BLOCK_SIZE);
}

bool io_payload_check(const void *payload, uint32_t offset, uint32_t length, const struct fp128 *fps)
{
	const uint8_t *p = payload;

	if (!whole_blocks(offset, length))
		return fp128_equal(hash_fp128(p, length), *fps);
	for (uint32_t i = 0; i < length >> BLOCK_SHIFT; i++)
		if (!fp128_equal(hash_block(p + (size_t)i * BLOCK_SIZE), fps[i]))
			return false;
	return true;
}

static void fps_encode(const struct fp128 *fps, unsigned count, struct writer *w)
{
	uint8_t *d = count ? write_space(w, (size_t)count * FP_SIZE) : NULL;

	for (unsigned i = 0; d && i < count; i++, d += FP_SIZE) {
		put_le64(d, fps[i].lo);
		put_le64(d + 8, fps[i].hi);
	}
}

static void fps_decode(struct reader *r, unsigned count, struct fp128 *fps)
{
	const uint8_t *p = read_bytes(r, (size_t)count * FP_SIZE);

	for (unsigned i = 0; p && i < count; i++, p += FP_SIZE)
		fps[i] = (struct fp128){ get_le64(p), get_le64(p + 8) };
}

void io_request_encode(const struct io_request *q, struct writer *w)
{
	write_u8(w, q->kind);
	write_u8(w, 0);
	write_u16(w, 0);
	write_u32(w, q->epoch);
	write_u64(w, q->object);
	write_u32(w, q->replica_gen);
	write_u32(w, q->attachment);
	write_u32(w, q->attach_epoch);
	write_u32(w, q->offset);
	write_u32(w, q->length);
	write_u32(w, 0);
	write_u64(w, q->request);
	write_u64(w, q->low_water);
	if (q->kind == IO_WRITE) {
		CHECK(q->fp_count == io_fp_count(q->offset, q->length));
		fps_encode(q->fps, q->fp_count, w);
	}
}

int io_request_decode(struct reader *r, uint32_t payload_len, struct io_request *out)
{
	unsigned zero;

	out->kind = read_u8(r);
	zero = read_u8(r);
	zero |= read_u16(r);
	out->epoch = read_u32(r);
	out->object = read_u64(r);
	out->replica_gen = read_u32(r);
	out->attachment = read_u32(r);
	out->attach_epoch = read_u32(r);
	out->offset = read_u32(r);
	out->length = read_u32(r);
	zero |= read_u32(r);
	out->request = read_u64(r);
	out->low_water = read_u64(r);
	out->fp_count = 0;
	if (r->bad || zero || out->kind < IO_READ || out->kind > IO_STATUS)
		return -ERR_PROTOCOL;
	if (!out->length || out->length > IO_MAX_BYTES ||
	    (uint64_t)out->offset + out->length > 1ull << 32)
		return -ERR_PROTOCOL;
	if (payload_len != (out->kind == IO_WRITE ? out->length : 0))
		return -ERR_PROTOCOL;
	if (out->kind == IO_WRITE) {
		out->fp_count = io_fp_count(out->offset, out->length);
		fps_decode(r, out->fp_count, out->fps);
	}
	return reader_done(r) ? 0 : -ERR_PROTOCOL;
}

void io_reply_encode(const struct io_reply *a, enum io_kind kind, struct writer *w)
{
	bool extents = a->status == IO_OK && kind == IO_STATUS;

	CHECK(a->fp_count <= IO_MAX_BLOCKS && a->extent_count <= IO_MAX_EXTENTS);
	write_u8(w, a->status);
	write_u8(w, 0);
	write_u16(w, extents ? (uint16_t)a->extent_count : 0);
	write_u32(w, a->epoch);
	if (a->status == IO_OK && kind == IO_READ)
		fps_encode(a->fps, a->fp_count, w);
	for (unsigned i = 0; extents && i < a->extent_count; i++) {
		write_u32(w, a->extents[i].length);
		write_u32(w, a->extents[i].flags);
	}
}

/* Extents must tile the asked range exactly: the caller walks them without bounds of its own. */
static int extents_decode(struct reader *r, uint32_t length, struct io_reply *out)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < out->extent_count; i++) {
		struct io_extent *e = &out->extents[i];

		e->length = read_u32(r);
		e->flags = read_u32(r);
		if (r->bad || !e->length || (e->flags & ~(uint32_t)(IO_EXTENT_HOLE | IO_EXTENT_ZERO)))
			return -ERR_PROTOCOL;
		sum += e->length;
	}
	return sum == length ? 0 : -ERR_PROTOCOL;
}

int io_reply_decode(struct reader *r, enum io_kind kind, uint32_t offset, uint32_t length,
		    uint32_t payload_len, struct io_reply *out)
{
	unsigned zero;
	bool read_data;

	out->status = read_u8(r);
	zero = read_u8(r);
	out->extent_count = read_u16(r);
	out->epoch = read_u32(r);
	out->fp_count = 0;
	if (r->bad || zero || out->status > IO_DUPLICATE || out->extent_count > IO_MAX_EXTENTS)
		return -ERR_PROTOCOL;
	if (length > IO_MAX_BYTES) /* our own request was not valid; fps would not have room */
		return -ERR_PROTOCOL;
	read_data = out->status == IO_OK && kind == IO_READ;
	if (payload_len != (read_data ? length : 0))
		return -ERR_PROTOCOL;
	if (read_data) {
		out->fp_count = io_fp_count(offset, length);
		fps_decode(r, out->fp_count, out->fps);
	}
	if (out->status == IO_OK && kind == IO_STATUS) {
		if (extents_decode(r, length, out))
			return -ERR_PROTOCOL;
	} else if (out->extent_count) {
		return -ERR_PROTOCOL;
	}
	return reader_done(r) ? 0 : -ERR_PROTOCOL;
}

const char *io_status_name(uint8_t status)
{
	static const char *const names[] = {
		[IO_OK] = "ok",
		[IO_RETRY] = "retry",
		[IO_NOT_PRIMARY] = "not-primary",
		[IO_STALE_EPOCH] = "stale-epoch",
		[IO_FENCED] = "fenced",
		[IO_NO_SPACE] = "no-space",
		[IO_MEDIUM_ERROR] = "medium-error",
		[IO_INVALID] = "invalid",
		[IO_INCOMPLETE] = "incomplete",
		[IO_DUPLICATE] = "duplicate",
	};

	return status < ARRAY_LEN(names) ? names[status] : "unknown";
}
