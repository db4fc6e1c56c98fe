/* SPDX-License-Identifier: Apache-2.0 */
/* Hints, and what turns one into a candidate: the unit that wrote a place, and its bytes. It must
 * never answer from a summary or window of a segment's earlier generation. */
#include "store/dedup.h"

#include <stdlib.h>

#include "store/codec.h"
#include "store/tier_internal.h"

#define WAYS         8u
#define FIRST_BITS   14u
#define BUCKETS_FIRST (1u << FIRST_BITS) /* 1 MiB */
#define REBUILD_UNITS 64u

/* ---- Hints -------------------------------------------------------------------------------------
 */

void hints_init(struct hints *h, size_t budget_bytes)
{
	memset(h, 0, sizeof(*h));
	h->budget_bytes = budget_bytes;
}

void hints_fini(struct hints *h)
{
	free(h->slots);
	memset(h, 0, sizeof(*h));
}

size_t hints_bytes(const struct hints *h)
{
	return h->buckets * WAYS * sizeof(uint64_t);
}

static uint64_t tag_of(struct fp128 fp)
{
	return fp.hi >> 44 << 44;
}

/* The first bits are the fingerprint's own, those that came by growing are the tag's: a hint alone says
 * which half of its bucket it belongs to. */
static uint64_t *bucket_of(const struct hints *h, struct fp128 fp)
{
	uint64_t key = (fp.lo & (BUCKETS_FIRST - 1)) | fp.hi >> 44 << FIRST_BITS;

	return &h->slots[(key & (h->buckets - 1)) * WAYS];
}

static void bucket_part(const uint64_t *from, unsigned bit, uint64_t *zero, uint64_t *one)
{
	for (unsigned i = 0; i < WAYS && from[i]; i++)
		*(from[i] >> 44 >> bit & 1 ? one++ : zero++) = from[i];
}

static size_t buckets_most(const struct hints *h)
{
	return h->budget_bytes / (WAYS * sizeof(uint64_t));
}

/* As it begins. One whose budget is smaller than BUCKETS_FIRST never grows. */
static size_t buckets_first(const struct hints *h)
{
	size_t n = BUCKETS_FIRST;

	while (n > buckets_most(h))
		n /= 2;
	return n;
}

bool hints_size_ok(const struct hints *h, uint64_t buckets)
{
	return is_pow2(buckets) && buckets >= buckets_first(h) && buckets <= buckets_most(h);
}

static void hints_grow(struct hints *h)
{
	size_t n = h->buckets ? h->buckets * 2 : buckets_first(h);
	uint64_t *slots;
	unsigned bit;

	if (!n || n > buckets_most(h))
		return;
	slots = xalloc_aligned(64, n * WAYS * sizeof(uint64_t));
	memset(slots, 0, n * WAYS * sizeof(uint64_t));
	bit = h->buckets ? (unsigned)__builtin_ctzll(h->buckets) - FIRST_BITS : 0;
	for (size_t i = 0; i < h->buckets; i++)
		bucket_part(&h->slots[i * WAYS], bit, &slots[i * WAYS],
			    &slots[(h->buckets + i) * WAYS]);
	free(h->slots);
	h->slots = slots;
	h->buckets = n;
}

static void put_old(struct hints *h, uint64_t *b, uint64_t hint)
{
	unsigned i, same = 0;

	for (i = 0; i < WAYS && b[i]; i++)
		same += !((b[i] ^ hint) >> 44);
	if (i == WAYS || same == HINTS_TRIED)
		return;
	b[i] = hint;
	h->used++;
}

void hints_put(struct hints *h, struct fp128 fp, uint64_t value, bool old)
{
	uint64_t *b, hint = tag_of(fp) | (value & HINT_VALUE);
	unsigned i;

	if (!h->buckets || h->used > h->buckets * WAYS / 4)
		hints_grow(h);
	if (!h->buckets)
		return;
	b = bucket_of(h, fp);
	if (old) {
		put_old(h, b, hint);
		return;
	}
	for (i = 0; i < WAYS - 1 && b[i] && (b[i] ^ hint) >> 44; i++)
		;
	if (b[i] && (b[i] ^ hint) >> 44)
		h->evicted++;
	h->used += !b[i];
	memmove(b + 1, b, i * sizeof(*b));
	b[0] = hint;
}

void hints_move(struct hints *h, struct fp128 fp, uint64_t from, uint64_t to)
{
	uint64_t *b = h->buckets ? bucket_of(h, fp) : NULL;

	for (unsigned i = 0; b && i < WAYS && b[i]; i++) {
		if (b[i] != (tag_of(fp) | (from & HINT_VALUE)))
			continue;
		b[i] = tag_of(fp) | (to & HINT_VALUE);
		return;
	}
	hints_put(h, fp, to, true);
}

unsigned hints_get(const struct hints *h, struct fp128 fp, uint64_t out[WAYS])
{
	const uint64_t *b;
	unsigned n = 0;

	if (!h->buckets)
		return 0;
	b = bucket_of(h, fp);
	for (unsigned i = 0; i < WAYS && b[i]; i++)
		if (!((b[i] ^ fp.hi) >> 44))
			out[n++] = b[i] & HINT_VALUE;
	return n;
}

/* ---- Units -------------------------------------------------------------------------------------
 */

/* The summary of the unit that begins at pos; NULL: none of this generation does. */
static struct summary_slot *summary_get(struct tier *t, uint32_t segment, uint64_t generation,
					uint32_t pos)
{
	struct summary_slot *s =
		&t->dedup.summaries[hash_u64((uint64_t)segment << 32 | pos) % DEDUP_SUMMARIES];
	struct device *dev = t->seg.dev[segment >> SEGMENT_DEVICE_SHIFT].dev;
	uint64_t off = segment_start(&t->seg, segment) + pos;
	uint32_t bytes;

	if (s->bytes && s->segment == segment && s->pos == pos && s->generation == generation)
		return s;
	if (!s->bytes)
		s->bytes = xalloc_aligned(BLOCK_SIZE, UNIT_SUMMARY_MAX);
	s->generation = 0; /* holds nothing from here on */
	if ((uint64_t)pos + 2 * BLOCK_SIZE > t->seg.segment_size ||
	    device_pread(dev, s->bytes, BLOCK_SIZE, off) || unit_summary_peek(s->bytes, &bytes) ||
	    (uint64_t)pos + bytes > t->seg.segment_size)
		return NULL;
	if (bytes > BLOCK_SIZE &&
	    device_pread(dev, s->bytes + BLOCK_SIZE, bytes - BLOCK_SIZE, off + BLOCK_SIZE))
		return NULL;
	if (unit_summary_decode(s->bytes, bytes, &s->header) || s->header.segment != segment ||
	    s->header.generation != generation || s->header.position != pos / BLOCK_SIZE ||
	    (uint64_t)pos + s->header.bytes > t->seg.segment_size)
		return NULL;
	s->segment = segment;
	s->pos = pos;
	s->generation = generation;
	s->guess = 0;
	return s;
}

static struct unit_list *list_get(struct tier *t, uint32_t segment, uint64_t generation)
{
	struct unit_list *l = &t->dedup.lists[hash_u64(segment) % DEDUP_LISTS];

	if (l->segment == segment && l->generation == generation)
		return l;
	l->segment = segment;
	l->generation = generation;
	l->count = 0;
	l->end = SEGMENT_HEADER_SIZE;
	return l;
}

/* The unit that covers this offset in the segment. */
static struct summary_slot *unit_covering(struct tier *t, uint32_t segment, uint64_t generation,
					  uint32_t at)
{
	struct unit_list *l = list_get(t, segment, generation);
	uint32_t lo = 0, hi;

	while (l->end <= at) {
		struct summary_slot *s = summary_get(t, segment, generation, l->end);

		if (!s)
			return NULL;
		if (l->count == l->cap) {
			l->cap = MAX(64u, l->cap * 2);
			l->start = xrealloc(l->start, l->cap * sizeof(*l->start));
		}
		l->start[l->count++] = l->end;
		l->end += s->header.bytes;
	}
	hi = l->count;
	if (!hi || at < l->start[0])
		return NULL;
	while (hi - lo > 1) {
		uint32_t mid = (lo + hi) / 2;

		if (l->start[mid] <= at)
			lo = mid;
		else
			hi = mid;
	}
	return summary_get(t, segment, generation, l->start[lo]);
}

bool dedup_place_entry(struct tier *t, uint64_t place, struct unit_entry *out)
{
	uint64_t word = MAP_RAW | place << 9; /* kind and units are what we look for */
	struct segment *seg;
	struct summary_slot *s;
	uint32_t id, at;

	seg = segment_of_word(&t->seg, word, &id);
	if (!seg || (seg->state != SEGMENT_OPEN && seg->state != SEGMENT_SEALED))
		return false;
	at = (uint32_t)(map_entry_offset(word) - segment_start(&t->seg, id));
	s = unit_covering(t, id, seg->generation, at);
	if (!s)
		return false;
	for (uint32_t k = 0; k < s->header.entries; k++) {
		uint32_t i = (s->guess + k) % s->header.entries;

		if (get_le16(s->bytes + UNIT_HEADER_SIZE + UNIT_ENTRY_SIZE * i + 44) * 64u !=
		    at - s->pos)
			continue;
		s->guess = i + 1;
		return !unit_entry_decode(s->bytes, &s->header, i, out);
	}
	return false;
}

/* ---- Bytes -------------------------------------------------------------------------------------
 */

void dedup_round(struct tier *t)
{
	t->dedup.window_len = 0;
}

/* What follows what was read last is read ahead: copies of images come in order. */
static const uint8_t *window_get(struct tier *t, struct device *dev, uint64_t off, uint64_t len)
{
	struct dedup *d = &t->dedup;
	uint64_t from = round_down(off, BLOCK_SIZE), to = round_up(off + len, BLOCK_SIZE);
	bool follows = dev == d->window_dev && off == d->window_next;

	d->window_next = off + len;
	if (d->window_len && dev == d->window_dev && from >= d->window_off &&
	    to <= d->window_off + d->window_len)
		return d->window + (off - d->window_off);
	if (!d->window)
		d->window = xalloc_aligned(BLOCK_SIZE, DEDUP_WINDOW);
	if (follows)
		to = MIN(from + DEDUP_WINDOW, dev->sb.data_start + dev->sb.data_len);
	d->window_dev = dev;
	d->window_off = from;
	d->window_len = 0;
	if (device_pread(dev, d->window, to - from, from)) {
		atomic_fetch_add(&t->io_errors, 1);
		return NULL;
	}
	d->window_len = (uint32_t)(to - from);
	return d->window + (off - from);
}

bool dedup_read(struct tier *t, uint64_t word, uint8_t out[BLOCK_SIZE])
{
	struct device *dev = t->seg.dev[map_entry_device(word)].dev;
	unsigned units = map_entry_units(word);
	const uint8_t *bytes;

	if (!map_entry_has_place(word) || !dev || dev->failed)
		return false;
	bytes = window_get(t, dev, map_entry_offset(word), units * 64u);
	if (!bytes)
		return false;
	if (map_entry_kind(word) == MAP_LZ4)
		return !codec_decompress(bytes, units, out);
	memcpy(out, bytes, BLOCK_SIZE);
	return true;
}

/* ---- Filling the hints after open --------------------------------------------------------------
 */

struct by_age {
	uint64_t generation;
	uint32_t id;
};

static int by_age_cmp(const void *a, const void *b)
{
	const struct by_age *x = a, *y = b;

	return x->generation > y->generation ? -1 : x->generation < y->generation;
}

void dedup_rebuild_start(struct tier *t)
{
	struct by_age *list = xcalloc(t->seg.total + 1, sizeof(*list));
	struct dedup *d = &t->dedup;
	bool wanted = false;

	d->loaded = dedup_load(t);
	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n))
		wanted |= container_of(n, struct tobj, node)->flags & OBJECT_DEDUP;
	for (unsigned i = 0; i < GROUP_DEVICES_MAX && wanted && !d->loaded; i++)
		for (uint32_t n = 0; n < t->seg.dev[i].count; n++)
			if (t->seg.dev[i].seg[n].state == SEGMENT_SEALED)
				list[d->rebuild_count++] =
					(struct by_age){t->seg.dev[i].seg[n].generation,
							i << SEGMENT_DEVICE_SHIFT | n};
	qsort(list, d->rebuild_count, sizeof(*list), by_age_cmp);
	atomic_store(&d->rebuilt, !d->rebuild_count);
	if (d->rebuild_count)
		d->rebuild = xmalloc(d->rebuild_count * sizeof(uint32_t));
	for (uint32_t i = 0; i < d->rebuild_count; i++)
		d->rebuild[i] = list[i].id;
	free(list);
	if (d->loaded)
		log_info("tier", "dedup hints are those that the last stop saved", "bytes=%zu",
			 hints_bytes(&d->hints));
	else if (d->rebuild_count)
		log_info("tier", "dedup hints are read again from segments; duplicates wait for them",
			 "segments=%u", d->rebuild_count);
}

static void rebuild_unit(struct tier *t, const struct summary_slot *s)
{
	for (uint32_t i = 0; i < s->header.entries; i++) {
		struct unit_entry e;
		struct tobj *o;

		if (unit_entry_decode(s->bytes, &s->header, i, &e))
			continue;
		o = tobj_find(t, e.object);
		if (o && o->gen == e.gen && o->state == OBJECT_LIVE && o->flags & OBJECT_DEDUP)
			hints_put(&t->dedup.hints, e.fp,
				  map_entry_word(MAP_RAW, 1, s->segment >> SEGMENT_DEVICE_SHIFT,
						 segment_start(&t->seg, s->segment) + s->pos +
							 e.offset) >>
					  9,
				  true);
	}
}

void dedup_forget_device(struct tier *t, unsigned index)
{
	struct dedup *d = &t->dedup;
	uint32_t n = 0;

	d->window_len = 0;
	for (uint32_t i = d->rebuild_at; i < d->rebuild_count; i++)
		if (d->rebuild[i] >> SEGMENT_DEVICE_SHIFT != index)
			d->rebuild[n++] = d->rebuild[i];
	d->rebuild_at = 0;
	d->rebuild_count = n;
}

bool dedup_rebuild_step(struct tier *t)
{
	struct dedup *d = &t->dedup;
	const struct segment *seg;
	struct unit_list *l;
	uint32_t id;

	if (d->rebuild_at == d->rebuild_count) {
		atomic_store(&d->rebuilt, true);
		return false;
	}
	id = d->rebuild[d->rebuild_at];
	seg = segment_by_id(&t->seg, id);
	l = list_get(t, id, seg->generation);
	for (unsigned i = 0; i < REBUILD_UNITS; i++) {
		struct summary_slot *s = seg->state == SEGMENT_SEALED
						 ? summary_get(t, id, seg->generation, l->end)
						 : NULL;

		if (!s) {
			d->rebuild_at++;
			break;
		}
		rebuild_unit(t, s);
		(void)unit_covering(t, id, seg->generation, l->end);
	}
	/* The budget is full of newer ones: what is older need not be read. */
	if (d->rebuild_at == d->rebuild_count ||
	    (hints_bytes(&d->hints) * 2 > d->hints.budget_bytes &&
	     d->hints.used > d->hints.buckets * WAYS / 8 * 7)) {
		free(d->rebuild);
		d->rebuild = NULL;
		d->rebuild_at = d->rebuild_count = 0;
	}
	atomic_store(&d->hint_bytes, hints_bytes(&d->hints));
	return true;
}

/* ---- Life --------------------------------------------------------------------------------------
 */

void dedup_init(struct tier *t, size_t budget_bytes)
{
	hints_init(&t->dedup.hints, budget_bytes ? budget_bytes : DEDUP_BUDGET_BYTES);
}

void dedup_fini(struct tier *t)
{
	struct dedup *d = &t->dedup;

	hints_fini(&d->hints);
	for (unsigned i = 0; i < DEDUP_SUMMARIES; i++)
		free(d->summaries[i].bytes);
	for (unsigned i = 0; i < DEDUP_LISTS; i++)
		free(d->lists[i].start);
	free(d->window);
	free(d->rebuild);
}
