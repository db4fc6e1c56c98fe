/* SPDX-License-Identifier: Apache-2.0 */
/* Codec of header.h. */
#include "store/header.h"

#include "node/base/err.h"

void stored_header_encode(const struct stored_header *s, const struct retry_table *retry,
			  struct version upto, struct writer *w)
{
	size_t start = w->len;

	write_u32(w, OBJECT_HEADER_MAGIC);
	write_u16(w, OBJECT_HEADER_FORMAT);
	write_u16(w, s->flags);
	write_u32(w, 0);
	write_u32(w, s->h.seen);
	write_u32(w, s->h.commit.tenure);
	write_u64(w, s->h.commit.seq);
	write_u32(w, s->destaged.tenure);
	write_u64(w, s->destaged.seq);
	write_u64(w, s->born);
	write_u16(w, (uint16_t)s->h.epoch_count);
	for (unsigned i = 0; i < s->h.epoch_count; i++) {
		write_u32(w, s->h.epochs[i].tenure);
		write_u64(w, s->h.epochs[i].first_seq);
	}
	retry_encode(retry, upto, w);
	if (w->bad)
		return;
	put_le32(w->data + start + 8, (uint32_t)(w->len - start + 8));
	write_u64(w, hash_xxh3(w->data + start, w->len - start, 0));
}

int stored_header_decode(const void *data, size_t len, struct stored_header *out,
			 struct retry_table *retry)
{
	struct reader r = reader_init(data, len), body;
	uint32_t total;

	memset(out, 0, sizeof(*out));
	if (read_u32(&r) != OBJECT_HEADER_MAGIC)
		return -ENODATA;
	if (read_u16(&r) != OBJECT_HEADER_FORMAT)
		return -ERR_VERSION;
	out->flags = read_u16(&r);
	total = read_u32(&r);
	if (r.bad || total > len || total < 60 || total > OBJECT_HEADER_MAX)
		return -ERR_CORRUPT;
	if (hash_xxh3(data, total - 8, 0) != get_le64((const uint8_t *)data + total - 8))
		return -ERR_CORRUPT;
	body = reader_init((const uint8_t *)data + 12, total - 20);
	out->h.seen = read_u32(&body);
	out->h.commit.tenure = read_u32(&body);
	out->h.commit.seq = read_u64(&body);
	out->destaged.tenure = read_u32(&body);
	out->destaged.seq = read_u64(&body);
	out->born = read_u64(&body);
	out->h.epoch_count = read_u16(&body);
	if (out->h.epoch_count > EPOCHS_MAX)
		return -ERR_CORRUPT;
	for (unsigned i = 0; i < out->h.epoch_count; i++) {
		out->h.epochs[i].tenure = read_u32(&body);
		out->h.epochs[i].first_seq = read_u64(&body);
	}
	if (body.bad || !epochs_valid(&out->h))
		return -ERR_CORRUPT;
	if (retry_decode(&body, retry) || !reader_done(&body))
		return -ERR_CORRUPT;
	return 0;
}

bool epochs_valid(const struct object_header *h)
{
	if (h->epoch_count > EPOCHS_MAX)
		return false;
	for (unsigned i = 1; i < h->epoch_count; i++)
		if (h->epochs[i].tenure <= h->epochs[i - 1].tenure ||
		    h->epochs[i].first_seq < h->epochs[i - 1].first_seq)
			return false;
	return true;
}

bool epochs_hold(const struct object_header *h, struct version v)
{
	if (!h->epoch_count)
		return true;
	for (unsigned i = h->epoch_count; i-- > 0;)
		if (h->epochs[i].first_seq <= v.seq)
			return h->epochs[i].tenure == v.tenure;
	return v.tenure < h->epochs[0].tenure;
}
