/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes, decodes and merges the rows of the map. The merge must never fail and never invent a
 * hole: what it cannot read becomes "damaged". */
#include "store/map_format.h"

#include "node/base/err.h"

#define PAGE_FORMAT   1
#define OBJECT_FORMAT 3
#define META_FORMAT   1

uint64_t store_fold_term(uint32_t page, struct version v)
{
	uint8_t b[16];

	put_le32(b, page);
	put_le32(b + 4, v.tenure);
	put_le64(b + 8, v.seq);
	return hash_xxh3(b, sizeof(b), 0);
}

void map_key_encode(uint8_t out[MAP_KEY_SIZE], uint64_t object, uint32_t page)
{
	put_be64(out, object);
	put_be32(out + 8, page);
	put_be32(out + 12, 0);
}

bool map_key_decode(const void *key, size_t len, uint64_t *object, uint32_t *page)
{
	if (len != MAP_KEY_SIZE)
		return false;
	*object = get_be64(key);
	*page = get_be32((const uint8_t *)key + 8);
	return get_be32((const uint8_t *)key + 12) == 0;
}

/* ---- Pages -------------------------------------------------------------------------------------
 */

static uint32_t page_crc(const uint8_t *data, size_t len, const uint8_t *key, size_t key_len)
{
	uint64_t seed = hash_xxh3(key, key_len, 0);
	uint64_t parts[2];

	parts[0] = hash_xxh3(data, 4, seed);
	parts[1] = hash_xxh3(data + 8, len - 8, seed);
	return (uint32_t)hash_xxh3(parts, sizeof(parts), seed);
}

static bool entry_valid(uint64_t word, bool hole_ok)
{
	unsigned kind = map_entry_kind(word);

	if (word >> 52 || kind > MAP_DAMAGED || (kind == MAP_HOLE && !hole_ok))
		return false;
	return kind != MAP_RAW || map_entry_units(word) == 64;
}

static size_t page_encode(uint8_t *out, const uint8_t *key, size_t key_len,
			  const struct map_page *p)
{
	uint8_t *d = out + MAP_PAGE_HEADER;

	memset(out, 0, MAP_PAGE_HEADER);
	out[0] = PAGE_FORMAT;
	out[1] = p->flags;
	put_le32(out + 8, p->version.tenure);
	put_le64(out + 16, p->version.seq);
	put_le64(out + 24, p->mask);
	put_le64(out + 32, p->mask);
	for (uint64_t m = p->mask; m; m &= m - 1) {
		const struct map_entry *e = &p->entry[__builtin_ctzll(m)];

		put_le64(d, e->word);
		put_le64(d + 8, e->fp64);
		d += 16;
	}
	put_le32(out + 4, page_crc(out, (size_t)(d - out), key, key_len));
	return (size_t)(d - out);
}

size_t map_page_encode(uint8_t out[MAP_PAGE_MAX], const uint8_t key[MAP_KEY_SIZE],
		       const struct map_page *p)
{
	return page_encode(out, key, MAP_KEY_SIZE, p);
}

static int page_decode(const uint8_t *d, size_t len, const uint8_t *key, size_t key_len,
		       struct map_page *out)
{
	memset(out, 0, sizeof(*out));
	if (len < MAP_PAGE_HEADER || d[0] != PAGE_FORMAT || get_le16(d + 2) || get_le32(d + 12))
		return -ERR_CORRUPT;
	out->mask = get_le64(d + 24);
	if (len != MAP_PAGE_HEADER + 16u * (unsigned)__builtin_popcountll(out->mask) ||
	    get_le32(d + 4) != page_crc(d, len, key, key_len))
		return -ERR_CORRUPT;
	out->flags = d[1];
	out->version.tenure = get_le32(d + 8);
	out->version.seq = get_le64(d + 16);
	d += MAP_PAGE_HEADER;
	for (uint64_t m = out->mask; m; m &= m - 1, d += 16) {
		struct map_entry *e = &out->entry[__builtin_ctzll(m)];

		e->word = get_le64(d);
		e->fp64 = get_le64(d + 8);
		if (!entry_valid(e->word, false))
			return -ERR_CORRUPT;
	}
	return 0;
}

int map_page_decode(const void *data, size_t len, const uint8_t key[MAP_KEY_SIZE],
		    struct map_page *out)
{
	return page_decode(data, len, key, MAP_KEY_SIZE, out);
}

void map_page_set_damaged(struct map_page *p)
{
	memset(p, 0, sizeof(*p));
	p->flags = MAP_PAGE_DAMAGED;
	p->mask = ~0ull;
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		p->entry[i].word = MAP_DAMAGED;
}

bool map_page_has_damage(const struct map_page *p)
{
	if (p->flags & MAP_PAGE_DAMAGED)
		return true;
	for (uint64_t m = p->mask; m; m &= m - 1)
		if (map_entry_kind(p->entry[__builtin_ctzll(m)].word) == MAP_DAMAGED)
			return true;
	return false;
}

/* ---- Operands and merge ------------------------------------------------------------------------
 */

static size_t operand_encode(uint8_t *out, const struct map_page *p, uint64_t mask)
{
	uint8_t *d = out + MAP_OPERAND_HEADER;

	memset(out, 0, MAP_OPERAND_HEADER);
	out[0] = MAP_OPERAND_SET;
	out[1] = (uint8_t)__builtin_popcountll(mask);
	put_le32(out + 4, p->version.tenure);
	put_le64(out + 8, p->version.seq);
	put_le64(out + 16, mask);
	for (uint64_t m = mask; m; m &= m - 1, d += 16) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		put_le64(d, p->mask >> i & 1 ? p->entry[i].word : MAP_HOLE);
		put_le64(d + 8, p->mask >> i & 1 ? p->entry[i].fp64 : 0);
	}
	return (size_t)(d - out);
}

size_t map_operand_encode(uint8_t out[MAP_OPERAND_MAX], const struct map_page *p, uint64_t mask)
{
	return operand_encode(out, p, mask);
}

static bool operand_valid(const uint8_t *d, size_t len)
{
	unsigned n;

	if (len < MAP_OPERAND_HEADER || d[0] != MAP_OPERAND_SET || get_le16(d + 2))
		return false;
	n = (unsigned)__builtin_popcountll(get_le64(d + 16));
	if (d[1] != n || len != MAP_OPERAND_HEADER + 16u * n)
		return false;
	for (unsigned i = 0; i < n; i++)
		if (!entry_valid(get_le64(d + MAP_OPERAND_HEADER + 16u * i), true))
			return false;
	return true;
}

/* Lays an operand over a page: plain sets. *touched: every block it spoke of, holes included. */
static void operand_apply(struct map_page *p, uint64_t *touched, const void *data, size_t len)
{
	const uint8_t *d = data;
	uint64_t mask;

	if (!operand_valid(d, len)) {
		map_page_set_damaged(p);
		*touched = ~0ull;
		return;
	}
	p->version.tenure = get_le32(d + 4);
	p->version.seq = get_le64(d + 8);
	mask = get_le64(d + 16);
	*touched |= mask;
	d += MAP_OPERAND_HEADER;
	for (uint64_t m = mask; m; m &= m - 1, d += 16) {
		unsigned i = (unsigned)__builtin_ctzll(m);

		p->entry[i].word = get_le64(d);
		p->entry[i].fp64 = get_le64(d + 8);
		if (map_entry_kind(p->entry[i].word) == MAP_HOLE)
			p->mask &= ~(1ull << i);
		else
			p->mask |= 1ull << i;
	}
}

size_t map_merge_full(uint8_t out[MAP_PAGE_MAX], const uint8_t *key, size_t key_len,
		      const void *base, size_t base_len, const void *const *operands,
		      const size_t *lens, unsigned n)
{
	struct map_page p = {0};
	uint64_t touched = 0;

	if (base && page_decode(base, base_len, key, key_len, &p) < 0)
		map_page_set_damaged(&p);
	for (unsigned i = 0; i < n; i++)
		operand_apply(&p, &touched, operands[i], lens[i]);
	return page_encode(out, key, key_len, &p);
}

/* A bad operand inside a partial merge: an operand with a bad operation code, which the full merge
 * turns into a damaged page. Later good operands are lost with it; that only damages more. */
size_t map_merge_partial(uint8_t out[MAP_OPERAND_MAX], const void *const *operands,
			 const size_t *lens, unsigned n)
{
	struct map_page p = {0};
	uint64_t touched = 0;

	for (unsigned i = 0; i < n; i++) {
		if (!operand_valid(operands[i], lens[i])) {
			memset(out, 0, MAP_OPERAND_HEADER);
			return MAP_OPERAND_HEADER;
		}
		operand_apply(&p, &touched, operands[i], lens[i]);
	}
	return operand_encode(out, &p, touched);
}

/* ---- The other rows ----------------------------------------------------------------------------
 */

void region_key_encode(uint8_t out[REGION_KEY_SIZE], uint64_t object, uint32_t region)
{
	put_be64(out, object);
	put_be32(out + 8, region);
}

void region_encode(uint8_t out[REGION_VALUE_SIZE], const struct map_region *r)
{
	put_le64(out, r->mask);
	put_le64(out + 8, r->fold);
}

int region_decode(const void *data, size_t len, struct map_region *out)
{
	struct reader r = reader_init(data, len);

	out->mask = read_u64(&r);
	out->fold = read_u64(&r);
	return reader_done(&r) ? 0 : -ERR_CORRUPT;
}

void object_row_encode(struct writer *w, uint64_t object, const struct object_row *o)
{
	size_t start = w->len;

	write_u8(w, OBJECT_FORMAT);
	write_u8(w, (uint8_t)o->state);
	write_u16(w, o->flags);
	write_u32(w, o->gen);
	write_u32(w, o->volume);
	write_u32(w, (uint32_t)o->header_len);
	write_u64(w, o->counters.mapped);
	write_u64(w, o->counters.zero);
	write_u64(w, o->counters.stored);
	write_u64(w, o->counters.shared);
	write_u64(w, o->counters.damaged);
	write_u32(w, o->reduced);
	write_u32(w, 0);
	write_bytes(w, o->header, o->header_len);
	if (!w->bad)
		write_u64(w, hash_xxh3(w->data + start, w->len - start, object));
}

int object_row_decode(const void *data, size_t len, uint64_t object, struct object_row *out)
{
	struct reader r = reader_init(data, len);
	uint8_t format = read_u8(&r);
	uint64_t hash;

	out->state = (enum object_state)read_u8(&r);
	out->flags = read_u16(&r);
	out->gen = read_u32(&r);
	out->volume = read_u32(&r);
	out->header_len = read_u32(&r);
	out->counters.mapped = read_u64(&r);
	out->counters.zero = read_u64(&r);
	out->counters.stored = read_u64(&r);
	out->counters.shared = read_u64(&r);
	out->counters.damaged = read_u64(&r);
	out->reduced = read_u32(&r);
	read_u32(&r);
	out->header = read_bytes(&r, out->header_len);
	hash = read_u64(&r);
	if (!reader_done(&r) || hash != hash_xxh3(data, len - 8, object))
		return -ERR_CORRUPT;
	if (format != OBJECT_FORMAT)
		return -ERR_VERSION;
	return out->state == OBJECT_LIVE || out->state == OBJECT_DELETING ? 0 : -ERR_CORRUPT;
}

void share_encode(uint8_t out[SHARE_VALUE_SIZE], const struct share_row *s)
{
	put_le64(out, s->word);
	put_le64(out + 8, s->fp.lo);
	put_le64(out + 16, s->fp.hi);
	put_le32(out + 24, s->refs);
	put_le32(out + 28, s->owner_volume);
	put_le32(out + 32, s->owner_refs);
}

int share_decode(const void *data, size_t len, struct share_row *out)
{
	struct reader r = reader_init(data, len);

	out->word = read_u64(&r);
	out->fp.lo = read_u64(&r);
	out->fp.hi = read_u64(&r);
	out->refs = read_u32(&r);
	out->owner_volume = read_u32(&r);
	out->owner_refs = read_u32(&r);
	if (!reader_done(&r) || !out->refs || out->owner_refs > out->refs || out->word >> 52 ||
	    (!map_entry_has_place(out->word) && out->word != MAP_DAMAGED))
		return -ERR_CORRUPT;
	return 0;
}

void sloc_key_encode(uint8_t out[8], uint32_t segment, uint32_t offset_units)
{
	put_be32(out, segment);
	put_be32(out + 4, offset_units);
}

void meta_encode(uint8_t out[META_VALUE_SIZE], const struct meta_row *m)
{
	put_le32(out, META_FORMAT);
	put_le32(out + 4, m->group_incarnation);
	memcpy(out + 8, m->group.b, 16);
	put_le64(out + 24, m->commit);
	put_le64(out + 32, hash_xxh3(out, 32, 0));
}

int meta_decode(const void *data, size_t len, struct meta_row *out)
{
	const uint8_t *d = data;

	if (len != META_VALUE_SIZE || get_le64(d + 32) != hash_xxh3(d, 32, 0))
		return -ERR_CORRUPT;
	if (get_le32(d) != META_FORMAT)
		return -ERR_VERSION;
	out->group_incarnation = get_le32(d + 4);
	memcpy(out->group.b, d + 8, 16);
	out->commit = get_le64(d + 24);
	return 0;
}
