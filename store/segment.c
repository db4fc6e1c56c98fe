/* SPDX-License-Identifier: Apache-2.0 */
/* The segment table: which segments exist, what is live in them, which are free. It must never hand
 * out a segment before the commit that freed it is durable and its readers have gone (I10). */
#include "store/segment.h"

#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"

#define HEADER_MAGIC 0x474553444c485341ull /* "ASHLDSEG" */
#define UNIT_MAGIC   0x4e555341u           /* "ASUN" */
#define FORMAT       1u
#define ROWS_FORMAT  2u

/* ---- Formats -----------------------------------------------------------------------------------
 */

void segment_header_encode(uint8_t out[SEGMENT_HEADER_SIZE], const struct segment_header *h)
{
	memset(out, 0, SEGMENT_HEADER_SIZE);
	put_le64(out, HEADER_MAGIC);
	put_le32(out + 8, FORMAT);
	put_le32(out + 12, h->stream);
	memcpy(out + 16, h->group.b, 16);
	put_le32(out + 32, h->group_incarnation);
	put_le32(out + 36, h->id);
	put_le64(out + 40, h->generation);
	put_le64(out + 48, h->kv_commit);
	put_le64(out + 56, hash_xxh3(out, 56, 0));
}

int segment_header_decode(const uint8_t in[SEGMENT_HEADER_SIZE], struct segment_header *out)
{
	if (get_le64(in) != HEADER_MAGIC)
		return -ENODATA;
	if (get_le64(in + 56) != hash_xxh3(in, 56, 0))
		return -ERR_CORRUPT;
	if (get_le32(in + 8) != FORMAT)
		return -ERR_VERSION;
	out->stream = get_le32(in + 12);
	memcpy(out->group.b, in + 16, 16);
	out->group_incarnation = get_le32(in + 32);
	out->id = get_le32(in + 36);
	out->generation = get_le64(in + 40);
	out->kv_commit = get_le64(in + 48);
	return 0;
}

static uint64_t summary_hash(const uint8_t *s, size_t len)
{
	return hash_xxh3(s + 64, len - 64, hash_xxh3(s, 56, 0));
}

void unit_summary_encode(uint8_t *out, const struct unit_header *h,
			 const struct unit_entry *entries)
{
	uint8_t *d = out + UNIT_HEADER_SIZE;

	memset(out, 0, h->summary_bytes);
	put_le32(out, UNIT_MAGIC);
	put_le16(out + 4, FORMAT);
	put_le16(out + 6, (uint16_t)h->entries);
	put_le32(out + 8, h->summary_bytes);
	put_le32(out + 12, h->bytes);
	put_le32(out + 16, h->segment);
	put_le32(out + 20, h->position);
	put_le64(out + 24, h->generation);
	put_le64(out + 32, h->kv_commit);
	put_le32(out + 40, h->group_incarnation);
	for (unsigned i = 0; i < h->entries; i++, d += UNIT_ENTRY_SIZE) {
		const struct unit_entry *e = &entries[i];

		put_le64(d, e->object);
		put_le32(d + 8, e->gen);
		put_le32(d + 12, e->block);
		put_le32(d + 16, e->version.tenure);
		put_le64(d + 20, e->version.seq);
		put_le64(d + 28, e->fp.lo);
		put_le64(d + 36, e->fp.hi);
		put_le16(d + 44, (uint16_t)(e->offset / 64));
		d[46] = e->units;
		d[47] = e->codec;
	}
	put_le64(out + 56, summary_hash(out, h->summary_bytes));
}

int unit_summary_peek(const uint8_t first[BLOCK_SIZE], uint32_t *summary_bytes)
{
	*summary_bytes = get_le32(first + 8);
	if (get_le32(first) != UNIT_MAGIC)
		return -ENODATA;
	if (!*summary_bytes || *summary_bytes % BLOCK_SIZE || *summary_bytes > UNIT_SUMMARY_MAX)
		return -ERR_CORRUPT;
	return 0;
}

int unit_summary_decode(const uint8_t *in, size_t len, struct unit_header *out)
{
	uint32_t bytes;

	if (len < BLOCK_SIZE || unit_summary_peek(in, &bytes) || bytes > len ||
	    get_le64(in + 56) != summary_hash(in, bytes))
		return -ERR_CORRUPT;
	if (get_le16(in + 4) != FORMAT)
		return -ERR_VERSION;
	out->entries = get_le16(in + 6);
	out->summary_bytes = bytes;
	out->bytes = get_le32(in + 12);
	out->segment = get_le32(in + 16);
	out->position = get_le32(in + 20);
	out->generation = get_le64(in + 24);
	out->kv_commit = get_le64(in + 32);
	out->group_incarnation = get_le32(in + 40);
	if (out->entries > UNIT_ENTRIES_MAX ||
	    UNIT_HEADER_SIZE + UNIT_ENTRY_SIZE * out->entries > bytes || out->bytes < bytes ||
	    out->bytes > UNIT_MAX || out->bytes % BLOCK_SIZE)
		return -ERR_CORRUPT;
	return 0;
}

int unit_entry_decode(const uint8_t *summary, const struct unit_header *h, unsigned i,
		      struct unit_entry *out)
{
	const uint8_t *d = summary + UNIT_HEADER_SIZE + UNIT_ENTRY_SIZE * i;

	CHECK(i < h->entries);
	out->object = get_le64(d);
	out->gen = get_le32(d + 8);
	out->block = get_le32(d + 12);
	out->version.tenure = get_le32(d + 16);
	out->version.seq = get_le64(d + 20);
	out->fp.lo = get_le64(d + 28);
	out->fp.hi = get_le64(d + 36);
	out->offset = get_le16(d + 44) * 64u;
	out->units = d[46];
	out->codec = d[47];
	if (!out->units || out->units > 64 || (out->codec != MAP_RAW && out->codec != MAP_LZ4) ||
	    out->offset < h->summary_bytes || out->offset + out->units * 64u > h->bytes ||
	    out->block >= OBJECT_BLOCKS_MAX)
		return -ERR_CORRUPT;
	return 0;
}

size_t segment_rows_size(uint32_t count)
{
	return 16 + (size_t)SEGMENT_RECORD_SIZE * count + 8;
}

void segment_rows_encode(struct writer *w, uint64_t commit, uint32_t count,
			 bool (*next)(void *arg, uint32_t *id, struct segment *out), void *arg)
{
	size_t start = w->len;
	struct segment s;
	uint32_t id;

	write_u16(w, ROWS_FORMAT);
	write_u16(w, 0);
	write_u32(w, count);
	write_u64(w, commit);
	while (next(arg, &id, &s)) {
		write_u32(w, id);
		write_u32(w, s.live);
		write_u64(w, s.generation);
		write_u8(w, s.state);
		write_u8(w, s.stream);
		write_u16(w, 0);
		write_u32(w, s.fill);
		write_u32(w, s.summaries);
		write_u32(w, s.padding);
	}
	CHECK(w->len - start == segment_rows_size(count) - 8);
	write_u64(w, hash_xxh3(w->data + start, w->len - start, 0));
}

int segment_rows_apply(struct segments *s, const void *data, size_t len)
{
	struct reader r = reader_init(data, len);
	uint16_t format = read_u16(&r);
	uint32_t count;

	read_u16(&r);
	count = read_u32(&r);
	read_u64(&r);
	if (r.bad || len != segment_rows_size(count) ||
	    get_le64((const uint8_t *)data + len - 8) != hash_xxh3(data, len - 8, 0))
		return -ERR_CORRUPT;
	if (format != ROWS_FORMAT)
		return -ERR_VERSION;
	for (uint32_t i = 0; i < count; i++) {
		struct segment *seg = segment_by_id(s, read_u32(&r));
		struct segment row = {0};

		row.live = read_u32(&r);
		row.generation = read_u64(&r);
		row.state = read_u8(&r);
		row.stream = read_u8(&r);
		read_u16(&r);
		row.fill = read_u32(&r);
		row.summaries = read_u32(&r);
		row.padding = read_u32(&r);
		if (!seg && row.state == SEGMENT_FREE && !row.live)
			continue; /* of a larger device that was replaced by a smaller one */
		if (!seg || row.state > SEGMENT_SEALED || row.stream >= STREAMS ||
		    row.live > s->segment_size || row.fill > s->segment_size ||
		    (uint64_t)row.live + row.summaries + row.padding > row.fill)
			return -ERR_CORRUPT;
		*seg = row;
	}
	return 0;
}

/* ---- Table -------------------------------------------------------------------------------------
 */

struct segment *segment_by_id(struct segments *s, uint32_t id)
{
	struct segment_device *d = &s->dev[id >> SEGMENT_DEVICE_SHIFT];
	uint32_t n = id & ((1u << SEGMENT_DEVICE_SHIFT) - 1);

	return d->dev && n < d->count ? &d->seg[n] : NULL;
}

uint64_t segment_start(const struct segments *s, uint32_t id)
{
	const struct segment_device *d = &s->dev[id >> SEGMENT_DEVICE_SHIFT];

	return d->dev->sb.data_start + (id & ((1u << SEGMENT_DEVICE_SHIFT) - 1)) * s->segment_size;
}

struct segment *segment_of_word(struct segments *s, uint64_t word, uint32_t *id)
{
	unsigned device = map_entry_device(word);
	uint64_t off = map_entry_offset(word), n;

	if (!s->dev[device].dev || off < s->dev[device].dev->sb.data_start)
		return NULL;
	n = (off - s->dev[device].dev->sb.data_start) / s->segment_size;
	if (n >= s->dev[device].count)
		return NULL;
	*id = device << SEGMENT_DEVICE_SHIFT | (uint32_t)n;
	return &s->dev[device].seg[n];
}

static uint32_t reserve_of(const struct segments *s)
{
	return MAX(6u, (s->total - s->lost) * 3 / 100);
}

int segments_open(struct segments *s, struct device *devices, unsigned count,
		  const struct uuid *group, uint32_t group_incarnation)
{
	memset(s, 0, sizeof(*s));
	s->group = *group;
	s->group_incarnation = group_incarnation;
	if (!count)
		return -ERR_INVALID;
	s->segment_size = devices[0].sb.segment_size;
	for (unsigned i = 0; i < count; i++) {
		struct superblock *sb = &devices[i].sb;
		struct segment_device *d;

		/* Sizes may differ by device, the segment size may not. */
		if (sb->index >= GROUP_DEVICES_MAX || s->dev[sb->index].dev ||
		    sb->segment_size != s->segment_size || s->segment_size < UNIT_MAX ||
		    s->segment_size % BLOCK_SIZE || s->segment_size > 1u << 30 ||
		    sb->data_start % BLOCK_SIZE ||
		    (sb->data_start + sb->data_len > devices[i].size && !device_failed(&devices[i])) ||
		    sb->data_len / s->segment_size >> SEGMENT_DEVICE_SHIFT) {
			log_error("segment", "the superblock's data area makes no sense",
				  "device=%s index=%u", devices[i].path, sb->index);
			return -ERR_INVALID;
		}
		d = &s->dev[sb->index];
		d->dev = &devices[i];
		d->count = (uint32_t)(sb->data_len / s->segment_size);
		d->seg = xcalloc(d->count ? d->count : 1, sizeof(*d->seg));
		s->total += d->count;
	}
	s->reserve = reserve_of(s);
	s->dirty = xcalloc(s->total + 1, sizeof(uint32_t));
	s->freed = xcalloc(s->total + 1, sizeof(uint32_t));
	s->draining = xcalloc(s->total + 1, sizeof(uint32_t));
	return 0;
}

void segments_scan(struct segments *s)
{
	uint8_t *block = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		unsigned errors = 0;

		/* A device that answers nothing is lost; the others still serve. */
		for (uint32_t n = 0; n < s->dev[i].count && errors < 8 && !device_failed(s->dev[i].dev);
		     n++) {
			uint32_t id = i << SEGMENT_DEVICE_SHIFT | n;
			struct segment_header h;
			int rc = device_pread(s->dev[i].dev, block, BLOCK_SIZE,
					      segment_start(s, id));

			errors = rc ? errors + 1 : 0;
			if (rc)
				log_warn("segment", "a segment header cannot be read",
					 "device=%s segment=%u rc=%s", s->dev[i].dev->path, n,
					 err_name(rc));
			if (rc || segment_header_decode(block, &h) || h.id != id ||
			    !uuid_equal(&h.group, &s->group) ||
			    h.group_incarnation > s->group_incarnation)
				continue;
			/* Older incarnations count: a new one may have kept the map. */
			s->header_incarnation = MAX(s->header_incarnation, h.group_incarnation);
			s->generation = MAX(s->generation, h.generation);
			s->header_kv_commit = MAX(s->header_kv_commit, h.kv_commit);
		}
	}
	free(block);
}

/* The segment's part of the sums becomes that of its row. */
static void space_count(struct segments *s, struct segment *seg, const struct segment *row)
{
	bool open = row->state == SEGMENT_OPEN;
	uint32_t rest = (uint32_t)s->segment_size - row->fill;

	if (seg->used) {
		s->space.segments--;
		s->space.summaries -= seg->used_summaries;
		s->space.padding -= seg->used_padding;
		s->space.tail -= seg->used_tail;
	}
	seg->used = row->state == SEGMENT_OPEN || row->state == SEGMENT_SEALED;
	if (!seg->used)
		return;
	seg->used_summaries = row->summaries;
	seg->used_padding = row->padding + (open ? 0 : rest);
	seg->used_tail = open ? rest : 0;
	s->space.segments++;
	s->space.summaries += seg->used_summaries;
	s->space.padding += seg->used_padding;
	s->space.tail += seg->used_tail;
}

void segments_settle(struct segments *s)
{
	s->free = 0;
	s->live = 0;
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		s->dev[i].free = 0;
		for (uint32_t n = 0; n < s->dev[i].count; n++) {
			struct segment *seg = &s->dev[i].seg[n];

			if (seg->state != SEGMENT_FREE)
				seg->state = seg->live ? SEGMENT_SEALED : SEGMENT_FREE;
			s->dev[i].free += seg->state == SEGMENT_FREE;
			s->live += seg->live;
			s->generation = MAX(s->generation, seg->generation);
			space_count(s, seg, seg);
		}
		s->free += s->dev[i].free;
	}
	segments_lose(s);
}

bool segments_lose(struct segments *s)
{
	bool any = false;

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++) {
		struct segment_device *d = &s->dev[i];

		if (!d->dev || d->lost || !device_failed(d->dev))
			continue;
		d->lost = any = true;
		s->free -= d->free;
		s->lost += d->count;
		s->unflushed &= ~(1u << i);
	}
	if (any)
		s->reserve = reserve_of(s);
	return any;
}

uint64_t segments_lost_free(const struct segments *s)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		for (uint32_t k = 0; s->dev[i].lost && k < s->dev[i].count; k++)
			n += !s->dev[i].seg[k].used;
	return n;
}

uint64_t segments_lost_live(const struct segments *s)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		for (uint32_t k = 0; s->dev[i].lost && k < s->dev[i].count; k++)
			n += s->dev[i].seg[k].live;
	return n;
}

void segments_renew(struct segments *s, unsigned index)
{
	struct segment_device *d = &s->dev[index];
	uint32_t n = 0;

	/* What waits to become free, or for its row, of the old one. */
	for (uint32_t i = 0; i < s->dirty_count; i++)
		if (s->dirty[i] >> SEGMENT_DEVICE_SHIFT != index)
			s->dirty[n++] = s->dirty[i];
	s->dirty_count = n;
	n = 0;
	for (uint32_t i = 0; i < s->freed_count; i++)
		if (s->freed[i] >> SEGMENT_DEVICE_SHIFT != index)
			s->freed[n++] = s->freed[i];
	s->freed_count = n;
	n = 0;
	for (uint32_t i = 0; i < s->draining_count; i++)
		if (s->draining[i] >> SEGMENT_DEVICE_SHIFT != index)
			s->draining[n++] = s->draining[i];
	s->draining_count = n;
	for (uint32_t i = 0; i < d->count; i++) {
		struct segment none = {.state = SEGMENT_FREE};

		s->live -= d->seg[i].live;
		space_count(s, &d->seg[i], &none);
	}
	s->total -= d->count;
	s->lost -= d->lost ? d->count : 0;
	free(d->seg);
	d->count = d->free = (uint32_t)(d->dev->sb.data_len / s->segment_size);
	d->seg = xcalloc(d->count, sizeof(*d->seg));
	d->cursor = 0;
	d->lost = false;
	s->total += d->count;
	s->free += d->count;
	s->reserve = reserve_of(s);
	s->dirty = xrealloc(s->dirty, (s->total + 1) * sizeof(uint32_t));
	s->freed = xrealloc(s->freed, (s->total + 1) * sizeof(uint32_t));
	s->draining = xrealloc(s->draining, (s->total + 1) * sizeof(uint32_t));
}

void segment_mark_dirty(struct segments *s, uint32_t id)
{
	struct segment *seg = segment_by_id(s, id);

	if (!seg->dirty) {
		seg->dirty = true;
		s->dirty[s->dirty_count++] = id;
	}
}

void segment_account(struct segments *s, uint64_t word, int sign)
{
	uint32_t id;
	struct segment *seg = map_entry_has_place(word) ? segment_of_word(s, word, &id) : NULL;

	if (!seg)
		return;
	seg->delta += sign * (int32_t)(map_entry_units(word) * 64);
	segment_mark_dirty(s, id);
}

void segment_next_row(const struct segments *s, uint32_t id, struct segment *out)
{
	int64_t live;

	*out = s->dev[id >> SEGMENT_DEVICE_SHIFT].seg[id & ((1u << SEGMENT_DEVICE_SHIFT) - 1)];
	live = (int64_t)out->live + out->delta;
	/* Damage that the map walked over may have been counted twice: never wrap. */
	out->live = live < 0 ? 0 : (uint32_t)live;
	if (out->state == SEGMENT_FREED || (out->state == SEGMENT_SEALED && !out->live))
		out->state = SEGMENT_FREE;
}

void segments_committed(struct segments *s, uint64_t commit)
{
	for (uint32_t i = 0; i < s->dirty_count; i++) {
		struct segment *seg = segment_by_id(s, s->dirty[i]), row;

		segment_next_row(s, s->dirty[i], &row);
		space_count(s, seg, &row);
		s->live += row.live;
		s->live -= seg->live;
		seg->live = row.live;
		seg->delta = 0;
		seg->dirty = false;
		if (row.state == SEGMENT_FREE && seg->state == SEGMENT_SEALED) {
			seg->state = SEGMENT_FREED;
			s->freed[s->freed_count++] = s->dirty[i];
		}
	}
	s->dirty_count = 0;
	s->kv_commit = commit;
}

/* Rows stay dirty: a segment that was opened must be in the next commit. */
void segments_aborted(struct segments *s)
{
	for (uint32_t i = 0; i < s->dirty_count; i++)
		segment_by_id(s, s->dirty[i])->delta = 0;
}

void segments_reclaim(struct segments *s)
{
	for (uint32_t i = 0; i < s->draining_count; i++) {
		struct segment_device *d = &s->dev[s->draining[i] >> SEGMENT_DEVICE_SHIFT];

		segment_by_id(s, s->draining[i])->state = SEGMENT_FREE;
		d->free++;
		s->free += !d->lost;
	}
	s->draining_count = 0;
}

uint64_t segments_limit_bytes(const struct segments *s)
{
	uint64_t payload = s->segment_size - SEGMENT_HEADER_SIZE;
	/* Two open segments and the reserve are never for live data. */
	uint32_t spare = s->reserve + STREAMS, there = s->total - s->lost;
	uint64_t by_reserve = there > spare ? (there - spare) * payload : 0;
	uint64_t by_fill = there * payload / 100 * 88;

	/* Summaries: 4,160 bytes of device per live 4,096. */
	return MIN(by_reserve, by_fill) / STORE_BYTES_PER_BLOCK * BLOCK_SIZE;
}
