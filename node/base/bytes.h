/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds-checked encoding and decoding of flat byte formats. On disk and wire everything is
 * little-endian; RocksDB keys are big-endian so that they sort. Single thread per cursor. */
#pragma once

#include <endian.h>
#include <string.h>

#include "node/base/check.h"

/* clang-format off */
static inline uint16_t get_le16(const void *p) { uint16_t v; memcpy(&v, p, 2); return le16toh(v); }
static inline uint32_t get_le32(const void *p) { uint32_t v; memcpy(&v, p, 4); return le32toh(v); }
static inline uint64_t get_le64(const void *p) { uint64_t v; memcpy(&v, p, 8); return le64toh(v); }
static inline uint32_t get_be32(const void *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static inline uint64_t get_be64(const void *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }
static inline void put_le16(void *p, uint16_t v) { v = htole16(v); memcpy(p, &v, 2); }
static inline void put_le32(void *p, uint32_t v) { v = htole32(v); memcpy(p, &v, 4); }
static inline void put_le64(void *p, uint64_t v) { v = htole64(v); memcpy(p, &v, 8); }
static inline void put_be32(void *p, uint32_t v) { v = htobe32(v); memcpy(p, &v, 4); }
static inline void put_be64(void *p, uint64_t v) { v = htobe64(v); memcpy(p, &v, 8); }
/* clang-format on */

/* Reader: past the end it sets `bad`, returns zeros and stays at the end; check `bad` once, at the end. */
struct reader {
	const uint8_t *p, *end;
	bool bad;
};

static inline struct reader reader_init(const void *data, size_t len)
{
	return (struct reader){ .p = data, .end = (const uint8_t *)data + len };
}

static inline size_t reader_left(const struct reader *r)
{
	return (size_t)(r->end - r->p);
}

/* The next n bytes in place, or NULL (and bad). */
static inline const void *read_bytes(struct reader *r, size_t n)
{
	const void *p = r->p;

	if (r->bad || n > reader_left(r)) {
		r->bad = true;
		r->p = r->end;
		return NULL;
	}
	r->p += n;
	return p;
}

/* clang-format off */
static inline uint8_t read_u8(struct reader *r) { const uint8_t *p = read_bytes(r, 1); return p ? *p : 0; }
static inline uint16_t read_u16(struct reader *r)
{
	const void *p = read_bytes(r, 2);

	return p ? get_le16(p) : 0;
}
static inline uint32_t read_u32(struct reader *r)
{
	const void *p = read_bytes(r, 4);

	return p ? get_le32(p) : 0;
}
static inline uint64_t read_u64(struct reader *r)
{
	const void *p = read_bytes(r, 8);

	return p ? get_le64(p) : 0;
}
/* clang-format on */
static inline bool read_copy(struct reader *r, void *out, size_t n)
{
	const void *p = read_bytes(r, n);

	if (p)
		memcpy(out, p, n);
	else
		memset(out, 0, n);
	return p != NULL;
}
/* u16 length and bytes; copied with a NUL into out[cap]. bad when too long or holding a NUL byte. */
void read_str(struct reader *r, char *out, size_t cap);
/* All consumed and nothing out of bounds. */
static inline bool reader_done(const struct reader *r) { return !r->bad && r->p == r->end; }

/* Writer: either over a fixed buffer (overflow sets `bad`) or growing (writer_init_heap). */
struct writer {
	uint8_t *data;
	size_t len, cap;
	bool grows, bad;
};

static inline struct writer writer_init(void *data, size_t cap)
{
	return (struct writer){ .data = data, .cap = cap };
}
static inline struct writer writer_init_heap(void)
{
	return (struct writer){ .grows = true };
}
void writer_free(struct writer *w); /* a heap writer's memory */
/* Room for n bytes, counted as written; NULL (and bad) on overflow of a fixed buffer. */
uint8_t *write_space(struct writer *w, size_t n);

static inline void write_bytes(struct writer *w, const void *p, size_t n)
{
	uint8_t *d = write_space(w, n);

	if (d && n)
		memcpy(d, p, n);
}
static inline void write_u8(struct writer *w, uint8_t v) { write_bytes(w, &v, 1); }
static inline void write_u16(struct writer *w, uint16_t v) { v = htole16(v); write_bytes(w, &v, 2); }
static inline void write_u32(struct writer *w, uint32_t v) { v = htole32(v); write_bytes(w, &v, 4); }
static inline void write_u64(struct writer *w, uint64_t v) { v = htole64(v); write_bytes(w, &v, 8); }
void write_str(struct writer *w, const char *s); /* u16 length and bytes */
