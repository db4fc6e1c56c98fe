/* SPDX-License-Identifier: Apache-2.0 */
/* Frame header, hello and refusal: pure encoders and decoders of wire.h. Everything that arrives is
 * a stranger's bytes: decoders bound each field and never CHECK. */
#include "net/wire.h"

#include "node/base/err.h"

#define CHECKED_BYTES 24u /* header bytes in front of the checksum */

/* The body is hashed first and seeds the hash of the header: one sum over both without copying
 * either, and the long part goes through the unseeded (fast) variant. */
static uint64_t frame_sum(const uint8_t *header, const void *body, uint32_t body_len)
{
	return hash_xxh3(header, CHECKED_BYTES, hash_xxh3(body_len ? body : "", body_len, 0));
}

void wire_header_encode(const struct wire_header *h, const void *body, uint8_t out[WIRE_HEADER_SIZE])
{
	CHECK(h->body_len <= WIRE_BODY_MAX && h->payload_len <= WIRE_PAYLOAD_MAX);
	put_le32(out, WIRE_MAGIC);
	out[4] = WIRE_HEADER_VERSION;
	out[5] = 0;
	put_le16(out + 6, h->opcode);
	put_le64(out + 8, h->id);
	put_le32(out + 16, h->body_len);
	put_le32(out + 20, h->payload_len);
	put_le64(out + 24, frame_sum(out, body, h->body_len));
}

int wire_header_decode(const uint8_t in[WIRE_HEADER_SIZE], struct wire_header *out)
{
	*out = (struct wire_header){ 0 };
	if (get_le32(in) != WIRE_MAGIC)
		return -ERR_PROTOCOL;
	if (in[4] != WIRE_HEADER_VERSION)
		return -ERR_VERSION;
	struct wire_header h = {
		.opcode = get_le16(in + 6),
		.id = get_le64(in + 8),
		.body_len = get_le32(in + 16),
		.payload_len = get_le32(in + 20),
	};
	if (in[5] || !h.opcode || h.body_len > WIRE_BODY_MAX || h.payload_len > WIRE_PAYLOAD_MAX)
		return -ERR_PROTOCOL;
	*out = h;
	return 0;
}

int wire_body_check(const uint8_t header[WIRE_HEADER_SIZE], const void *body)
{
	return frame_sum(header, body, get_le32(header + 16)) == get_le64(header + 24)
		       ? 0
		       : -ERR_PROTOCOL;
}

int wire_frame_parse(const uint8_t *p, size_t len, struct wire_header *out)
{
	int rc;

	*out = (struct wire_header){ 0 };
	if (len < WIRE_HEADER_SIZE)
		return PENDING;
	rc = wire_header_decode(p, out);
	if (rc)
		return rc;
	if (len - WIRE_HEADER_SIZE < out->body_len)
		return PENDING;
	return wire_body_check(p, p + WIRE_HEADER_SIZE);
}

void wire_hello_encode(const struct wire_hello *h, struct writer *w)
{
	write_u8(w, h->version_min);
	write_u8(w, h->version_max);
	write_u8(w, h->kind);
	write_u8(w, h->flags);
	write_bytes(w, h->cluster.b, sizeof(h->cluster.b));
	write_bytes(w, h->self.b, sizeof(h->self.b));
	write_u16(w, h->node);
	write_u16(w, h->stream);
	write_u16(w, h->shards);
	write_u16(w, h->streams);
	write_u32(w, h->incarnation);
	write_u64(w, h->nonce);
	write_u16(w, h->recovery);
	write_u32(w, h->recovery_id);
}

int wire_hello_decode(struct reader *r, struct wire_hello *out)
{
	out->version_min = read_u8(r);
	out->version_max = read_u8(r);
	out->kind = read_u8(r);
	out->flags = read_u8(r);
	read_copy(r, out->cluster.b, sizeof(out->cluster.b));
	read_copy(r, out->self.b, sizeof(out->self.b));
	out->node = read_u16(r);
	out->stream = read_u16(r);
	out->shards = read_u16(r);
	out->streams = read_u16(r);
	out->incarnation = read_u32(r);
	out->nonce = read_u64(r);
	out->recovery = read_u16(r);
	out->recovery_id = read_u32(r);
	if (r->bad || !out->version_min || out->version_min > out->version_max)
		return -ERR_PROTOCOL;
	/* A newer peer may have grown the hello; it must still be read far enough to be answered. */
	if (out->version_max > WIRE_PROTOCOL) {
		out->flags &= HELLO_PLAIN;
		return 0;
	}
	if (!reader_done(r) || out->kind < HELLO_CONTROL || out->kind > HELLO_CLIENT_DATA ||
	    (out->flags & ~HELLO_PLAIN))
		return -ERR_PROTOCOL;
	return 0;
}

void wire_refusal_encode(const struct wire_refusal *f, struct writer *w)
{
	write_u16(w, f->reason);
	write_u32(w, f->detail);
	write_str(w, f->text);
}

int wire_refusal_decode(struct reader *r, struct wire_refusal *out)
{
	out->reason = read_u16(r);
	out->detail = read_u32(r);
	read_str(r, out->text, sizeof(out->text));
	for (char *p = out->text; *p; p++) /* it goes into a log line, between quotes */
		if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '"' || *p == '\\')
			*p = '_';
	return reader_done(r) ? 0 : -ERR_PROTOCOL;
}

unsigned wire_version_common(const struct wire_hello *a, const struct wire_hello *b)
{
	unsigned low = MAX(a->version_min, b->version_min);
	unsigned high = MIN(a->version_max, b->version_max);

	return low <= high ? high : 0;
}

bool wire_is_data(uint8_t hello_kind)
{
	return hello_kind == HELLO_DATA || hello_kind == HELLO_CLIENT_DATA;
}

bool wire_leaves_tls(const struct wire_hello *hello, const struct wire_hello *welcome)
{
	return wire_is_data(hello->kind) && (hello->flags & welcome->flags & HELLO_PLAIN);
}

const char *wire_refuse_name(uint16_t reason)
{
	static const char *const names[] = {
		[REFUSE_VERSION] = "version",	  [REFUSE_CLUSTER] = "cluster",
		[REFUSE_IDENTITY] = "identity",	  [REFUSE_INCARNATION] = "incarnation",
		[REFUSE_STREAM] = "stream",	  [REFUSE_LIMIT] = "limit",
		[REFUSE_NOT_READY] = "not-ready", [REFUSE_REMOVED] = "removed",
		[REFUSE_RECOVERED] = "recovered",
	};

	return reason < ARRAY_LEN(names) && names[reason] ? names[reason] : "unknown";
}
