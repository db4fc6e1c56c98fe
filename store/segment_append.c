/* SPDX-License-Identifier: Apache-2.0 */
/* The append streams: units are built in memory and written whole, one device write each. A unit's
 * places are known only when it is written; until then entries hold no place. It must never write
 * over anything: only into segments it opened itself, upwards. */
#include <stdlib.h>

#include "node/base/err.h"
#include "store/segment.h"

struct pending {
	struct unit_entry e;
	struct map_entry *entry;
	uint32_t at; /* in the raw or the packed area */
};

struct stream {
	bool open;
	uint32_t id, fill, raw_bytes, packed_bytes, count;
	uint8_t *mem; /* UNIT_SUMMARY_MAX for the summary, then the raw area, packed moved behind it
		       */
	uint8_t *packed;
	struct unit_entry *entries;
	struct pending pending[UNIT_ENTRIES_MAX];
};

static struct stream *stream_get(struct segments *s, enum segment_stream which)
{
	if (!s->stream[which]) {
		struct stream *st = xcalloc(1, sizeof(*st));

		st->mem = xalloc_aligned(BLOCK_SIZE, UNIT_SUMMARY_MAX + UNIT_MAX);
		st->packed = xmalloc(UNIT_MAX);
		st->entries = xcalloc(UNIT_ENTRIES_MAX, sizeof(*st->entries));
		s->stream[which] = st;
	}
	return s->stream[which];
}

void segments_close(struct segments *s)
{
	for (unsigned i = 0; i < STREAMS; i++) {
		if (!s->stream[i])
			continue;
		free(s->stream[i]->mem);
		free(s->stream[i]->packed);
		free(s->stream[i]->entries);
		free(s->stream[i]);
	}
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		free(s->dev[i].seg);
	free(s->dirty);
	free(s->freed);
	free(s->draining);
	memset(s, 0, sizeof(*s));
}

static uint32_t summary_bytes(uint32_t entries)
{
	return (uint32_t)round_up(UNIT_HEADER_SIZE + UNIT_ENTRY_SIZE * entries, BLOCK_SIZE);
}

bool segments_have_room(const struct segments *s, enum segment_stream stream, uint64_t blocks)
{
	const struct stream *st = s->stream[stream];
	uint64_t reserve = stream == STREAM_HOT ? s->reserve : 0;
	uint64_t room =
		s->free > reserve ? (s->free - reserve) * (s->segment_size - UNIT_SUMMARY_MAX) : 0;

	if (st && st->open && s->segment_size - st->fill > UNIT_SUMMARY_MAX)
		room += s->segment_size - st->fill - UNIT_SUMMARY_MAX;
	return blocks * (BLOCK_SIZE + 2 * UNIT_ENTRY_SIZE) <= room;
}

static void stream_seal(struct segments *s, struct stream *st)
{
	segment_by_id(s, st->id)->state = SEGMENT_SEALED;
	segment_mark_dirty(s, st->id); /* it may be empty by now */
	st->open = false;
}

void segment_abandon(struct segments *s, enum segment_stream which)
{
	struct stream *st = s->stream[which];

	if (!st)
		return;
	st->count = st->raw_bytes = st->packed_bytes = 0;
	if (st->open)
		stream_seal(s, st);
}

void segment_abandon_lost(struct segments *s, enum segment_stream which)
{
	struct stream *st = s->stream[which];

	if (st && st->open && s->dev[st->id >> SEGMENT_DEVICE_SHIFT].lost)
		segment_abandon(s, which);
}

/* On the device with most room; devices that failed take nothing. */
static int stream_open(struct segments *s, struct stream *st, enum segment_stream which)
{
	uint32_t reserve = which == STREAM_HOT ? s->reserve : 0;
	struct segment_device *d = NULL;
	struct segment_header h = {.group = s->group, .group_incarnation = s->group_incarnation};
	struct segment *seg;
	int rc;

	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		if (s->dev[i].free && !device_failed(s->dev[i].dev) && (!d || s->dev[i].free > d->free))
			d = &s->dev[i];
	if (!d || s->free <= reserve)
		return -ERR_FULL;
	while (d->seg[d->cursor].state != SEGMENT_FREE)
		d->cursor = (d->cursor + 1) % d->count;
	st->id = (uint32_t)(d - s->dev) << SEGMENT_DEVICE_SHIFT | d->cursor;
	seg = &d->seg[d->cursor];
	h.id = st->id;
	h.stream = which;
	h.generation = ++s->generation;
	h.kv_commit = s->kv_commit;
	segment_header_encode(st->mem, &h);
	rc = device_pwrite(d->dev, st->mem, SEGMENT_HEADER_SIZE, segment_start(s, st->id));
	if (rc)
		return -ERR_DEVICE;
	s->unflushed |= 1u << (d - s->dev);
	d->free--;
	s->free--;
	*seg = (struct segment){.generation = h.generation,
				.state = SEGMENT_OPEN,
				.stream = (uint8_t)which,
				.fill = SEGMENT_HEADER_SIZE,
				.summaries = SEGMENT_HEADER_SIZE,
				.dirty = seg->dirty,
				.used = seg->used,
				.used_summaries = seg->used_summaries,
				.used_padding = seg->used_padding,
				.used_tail = seg->used_tail};
	segment_mark_dirty(s, st->id);
	st->open = true;
	st->fill = SEGMENT_HEADER_SIZE;
	return 0;
}

int segment_flush_unit(struct segments *s, enum segment_stream which)
{
	struct stream *st = s->stream[which];
	struct segment_device *d;
	struct unit_header h = {0};
	struct segment *seg;
	uint32_t summary, bytes, packed;
	uint8_t *unit;
	int rc;

	if (!st || !st->count)
		return 0;
	d = &s->dev[st->id >> SEGMENT_DEVICE_SHIFT];
	summary = summary_bytes(st->count);
	packed = (uint32_t)round_up(st->packed_bytes, BLOCK_SIZE);
	bytes = summary + st->raw_bytes + packed;
	unit = st->mem + UNIT_SUMMARY_MAX - summary;
	memset(st->packed + st->packed_bytes, 0, packed - st->packed_bytes);
	memcpy(unit + summary + st->raw_bytes, st->packed, packed);
	h = (struct unit_header){.entries = st->count,
				 .summary_bytes = summary,
				 .bytes = bytes,
				 .segment = st->id,
				 .position = st->fill / BLOCK_SIZE,
				 .group_incarnation = s->group_incarnation,
				 .generation = segment_by_id(s, st->id)->generation,
				 .kv_commit = s->kv_commit};
	for (uint32_t i = 0; i < st->count; i++) {
		struct pending *p = &st->pending[i];

		p->e.offset = summary + p->at + (p->e.codec == MAP_RAW ? 0 : st->raw_bytes);
		st->entries[i] = p->e;
	}
	unit_summary_encode(unit, &h, st->entries);
	rc = device_pwrite(d->dev, unit, bytes, segment_start(s, st->id) + st->fill);
	if (rc) {
		segment_abandon(s, which);
		return -ERR_DEVICE;
	}
	s->unflushed |= 1u << (d - s->dev);
	s->written_bytes[which] += bytes;
	for (uint32_t i = 0; i < st->count; i++) {
		struct pending *p = &st->pending[i];

		p->entry->word = map_entry_word(p->e.codec, p->e.units, (unsigned)(d - s->dev),
						segment_start(s, st->id) + st->fill + p->e.offset);
		segment_account(s, p->entry->word, 1);
	}
	st->fill += bytes;
	seg = segment_by_id(s, st->id);
	seg->fill = st->fill;
	seg->summaries += summary;
	seg->padding += packed - st->packed_bytes;
	st->count = st->raw_bytes = st->packed_bytes = 0;
	/* What a one-block unit cannot use is not worth keeping open. */
	if (s->segment_size - st->fill < 2 * BLOCK_SIZE)
		stream_seal(s, st);
	return 0;
}

static bool unit_fits(const struct segments *s, const struct stream *st, unsigned kind,
		      unsigned units)
{
	uint64_t room = MIN(s->segment_size - st->fill, UNIT_MAX);
	uint64_t raw = st->raw_bytes + (kind == MAP_RAW ? BLOCK_SIZE : 0);
	uint64_t packed = st->packed_bytes + (kind == MAP_RAW ? 0 : units * 64);

	return st->count < UNIT_ENTRIES_MAX &&
	       summary_bytes(st->count + 1) + raw + round_up(packed, BLOCK_SIZE) <= room;
}

int segment_append(struct segments *s, enum segment_stream which, const struct unit_entry *what,
		   unsigned kind, const void *data, unsigned units, struct map_entry *e)
{
	struct stream *st = stream_get(s, which);
	struct pending *p;
	int rc;

	if (st->open && !unit_fits(s, st, kind, units)) {
		rc = segment_flush_unit(s, which);
		if (rc)
			return rc;
		if (st->open && !unit_fits(s, st, kind, units))
			stream_seal(s, st);
	}
	if (!st->open) {
		rc = stream_open(s, st, which);
		if (rc)
			return rc;
	}
	p = &st->pending[st->count++];
	p->e = *what;
	p->e.units = (uint8_t)units;
	p->e.codec = (uint8_t)kind;
	p->entry = e;
	if (kind == MAP_RAW) {
		p->at = st->raw_bytes;
		memcpy(st->mem + UNIT_SUMMARY_MAX + st->raw_bytes, data, BLOCK_SIZE);
		st->raw_bytes += BLOCK_SIZE;
	} else {
		p->at = st->packed_bytes;
		memcpy(st->packed + st->packed_bytes, data, units * 64);
		st->packed_bytes += units * 64;
	}
	return 0;
}

int segments_flush_devices(struct segments *s)
{
	int rc = 0;

	for (unsigned i = 0; i < GROUP_DEVICES_MAX && !rc; i++)
		if (s->unflushed >> i & 1 && s->dev[i].dev->needs_flush)
			rc = device_flush(s->dev[i].dev);
	/* After a failure the commit is given up: nothing names what was not flushed. */
	s->unflushed = 0;
	return rc ? -ERR_DEVICE : 0;
}
