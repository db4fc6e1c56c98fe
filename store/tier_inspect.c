/* SPDX-License-Identifier: Apache-2.0 */
/* Offline decoders of map database and data segments, for `ashlard inspect`. Read-only and
 * tolerant: what does not decode is said and skipped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "store/tier_internal.h"

static const char *const kind_names[] = {"hole",   "zero",    "raw", "lz4",
					 "shared", "damaged", "?",   "?"};

/* Each prints one row; true: it decodes. */
static bool show_page(const void *key, size_t key_len, const void *value, size_t len, bool verbose)
{
	struct map_page p;
	uint64_t object;
	uint32_t page;

	if (!map_key_decode(key, key_len, &object, &page) || map_page_decode(value, len, key, &p))
		return false;
	if (!verbose)
		return true;
	printf("page object=%" PRIu64 " page=%u version=%u.%" PRIu64 " blocks=%d flags=%u\n",
	       object, page, p.version.tenure, p.version.seq, __builtin_popcountll(p.mask),
	       p.flags);
	for (uint64_t m = p.mask; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctzll(m);
		uint64_t w = p.entry[i].word;

		printf("  block=%u kind=%s device=%u offset=%" PRIu64 " units=%u fp64=%016" PRIx64
		       "\n",
		       page * PAGE_BLOCKS + i, kind_names[map_entry_kind(w)], map_entry_device(w),
		       map_entry_offset(w), map_entry_units(w), p.entry[i].fp64);
	}
	return true;
}

static bool show_region(const void *key, size_t key_len, const void *value, size_t len,
			bool verbose)
{
	struct map_region r;

	if (key_len != REGION_KEY_SIZE || region_decode(value, len, &r))
		return false;
	if (verbose)
		printf("region object=%" PRIu64 " region=%u pages=%016" PRIx64 " fold=%016" PRIx64
		       "\n",
		       get_be64(key), get_be32((const uint8_t *)key + 8), r.mask, r.fold);
	return true;
}

static bool show_object(const void *key, size_t key_len, const void *value, size_t len,
			bool verbose)
{
	struct object_row o;

	if (key_len != OBJECT_KEY_SIZE || object_row_decode(value, len, get_be64(key), &o))
		return false;
	printf("object id=%" PRIu64 " generation=%u volume=%u state=%s dedup=%s compression=%s"
	       " mapped_blocks=%" PRIu64 " zero_blocks=%" PRIu64 " shared_blocks=%" PRIu64
	       " damaged_blocks=%" PRIu64 " stored_bytes=%" PRIu64 " header_bytes=%zu\n",
	       get_be64(key), o.gen, o.volume, o.state == OBJECT_LIVE ? "live" : "deleting",
	       o.flags & OBJECT_DEDUP ? "on" : "off", o.flags & OBJECT_COMPRESSION ? "on" : "off",
	       o.counters.mapped, o.counters.zero, o.counters.shared, o.counters.damaged,
	       o.counters.stored, o.header_len);
	return true;
}

static bool show_share(const void *key, size_t key_len, const void *value, size_t len, bool verbose)
{
	struct share_row s;

	if (key_len != 8 || share_decode(value, len, &s))
		return false;
	if (verbose)
		printf("share id=%" PRIu64
		       " refs=%u owner_volume=%u owner_refs=%u kind=%s device=%u"
		       " offset=%" PRIu64 " units=%u\n",
		       get_be64(key), s.refs, s.owner_volume, s.owner_refs,
		       kind_names[map_entry_kind(s.word)], map_entry_device(s.word),
		       map_entry_offset(s.word), map_entry_units(s.word));
	return true;
}

static bool show_sloc(const void *key, size_t key_len, const void *value, size_t len, bool verbose)
{
	const uint8_t *k = key;

	if (key_len != 8 || len != 8)
		return false;
	if (verbose)
		printf("place device=%u segment=%u offset=%u share=%" PRIu64 "\n",
		       get_be32(k) >> SEGMENT_DEVICE_SHIFT,
		       get_be32(k) & ((1u << SEGMENT_DEVICE_SHIFT) - 1), get_be32(k + 4) * 64,
		       get_le64(value));
	return true;
}

static bool show_segments(const void *key, size_t key_len, const void *value, size_t len,
			  bool verbose)
{
	static const char *const states[] = {"free", "open", "sealed", "?"};
	struct reader r = reader_init(value, len);
	uint32_t count;

	read_u32(&r);
	count = read_u32(&r);
	if ((key_len != 5 && key_len != 9) || r.bad || len != segment_rows_size(count) ||
	    get_le64((const uint8_t *)value + len - 8) != hash_xxh3(value, len - 8, 0))
		return false;
	if (!verbose)
		return true;
	printf("segments %s commit=%" PRIu64 " rows=%u\n", key_len == 5 ? "checkpoint" : "delta",
	       read_u64(&r), count);
	while (count--) {
		uint32_t id = read_u32(&r), live = read_u32(&r);
		uint64_t generation = read_u64(&r);
		unsigned state = read_u8(&r), stream = read_u8(&r);

		read_u16(&r);
		uint32_t fill = read_u32(&r), summaries = read_u32(&r), padding = read_u32(&r);

		if (generation)
			printf("  segment device=%u number=%u live_bytes=%u generation=%" PRIu64
			       " state=%s stream=%s filled_bytes=%u summary_bytes=%u "
			       "padding_bytes=%u\n",
			       id >> SEGMENT_DEVICE_SHIFT, id & ((1u << SEGMENT_DEVICE_SHIFT) - 1),
			       live, generation, states[MIN(state, 3u)],
			       stream == STREAM_GC ? "gc" : "hot", fill, summaries, padding);
	}
	return true;
}

static bool show_meta(const void *key, size_t key_len, const void *value, size_t len, bool verbose)
{
	const uint8_t *k = key, *v = value;
	char text[UUID_TEXT];
	struct meta_row m;

	if (key_len == 5 && k[0] == 'v') {
		if (len != 48 || get_le64(v + 40) != hash_xxh3(v, 40, get_be32(k + 1)))
			return false;
		printf("volume id=%u owned_shares=%" PRIu64 " damaged=%" PRIu64
		       " stored_bytes=%" PRIu64 " exclusive_bytes=%" PRIu64 " refs=%" PRIu64 "\n",
		       get_be32(k + 1), get_le64(v), get_le64(v + 8), get_le64(v + 16),
		       get_le64(v + 24), get_le64(v + 32));
		return true;
	}
	if (key_len == 10 && !memcmp(k, "next-share", 10))
		return len == 16 && get_le64(v + 8) == hash_xxh3(v, 8, 0);
	if (meta_decode(value, len, &m))
		return false;
	uuid_format(&m.group, text);
	printf("map group=%s incarnation=%u commit=%" PRIu64 "\n", text, m.group_incarnation,
	       m.commit);
	return true;
}

int tier_inspect_metadata(const char *dir, bool verbose)
{
	static bool (*const show[KV_CFS])(const void *, size_t, const void *, size_t, bool) = {
		[KV_MAP] = show_page,    [KV_REGION] = show_region, [KV_OBJ] = show_object,
		[KV_SHARE] = show_share, [KV_SLOC] = show_sloc,     [KV_SEG] = show_segments,
		[KV_META] = show_meta,
	};
	static const enum kv_cf order[KV_CFS] = {KV_META,  KV_OBJ,  KV_SEG, KV_REGION,
						 KV_SHARE, KV_SLOC, KV_MAP};
	uint64_t damaged = 0;
	struct kv *kv;
	int rc = kv_open(dir, true, &kv);

	if (rc)
		return rc;
	for (unsigned i = 0; i < KV_CFS; i++) {
		struct kv_iter *it = kv_iter_range(kv, order[i], NULL, 0, NULL, 0);
		const void *key, *value;
		size_t key_len, len;
		uint64_t rows = 0, bad = 0;

		while (kv_iter_next(it, &key, &key_len, &value, &len)) {
			rows++;
			bad += !show[order[i]](key, key_len, value, len, verbose);
		}
		bad += kv_iter_close(it) != 0;
		printf("family=%s rows=%" PRIu64 " damaged=%" PRIu64 "\n", kv_cf_names[order[i]],
		       rows, bad);
		damaged += bad;
	}
	kv_close(kv);
	return damaged ? 1 : 0;
}

/* ---- Segments ----------------------------------------------------------------------------------
 */

struct inspect {
	struct device *d;
	uint8_t *mem; /* UNIT_MAX */
	bool verbose;
	uint64_t units, entries, damaged;
};

static void inspect_unit(struct inspect *x, const struct unit_header *h)
{
	for (unsigned i = 0; i < h->entries; i++) {
		struct unit_entry e;

		if (unit_entry_decode(x->mem, h, i, &e)) {
			x->damaged++;
			continue;
		}
		x->entries++;
		if (x->verbose)
			printf("  unit=%u object=%" PRIu64
			       " generation=%u block=%u version=%u.%" PRIu64
			       " offset=%u units=%u kind=%s\n",
			       h->position, e.object, e.gen, e.block, e.version.tenure,
			       e.version.seq, e.offset, e.units, kind_names[e.codec & 7]);
	}
	x->units++;
}

/* The next unit of this generation behind a bad one, which was written after commit `commit`. 0: none behind
 * it is of a later commit. Then a crash cut off what would have been the next one, in any order, and the map
 * knows nothing of it; or that cannot be told from damage. */
static uint64_t unit_behind(struct inspect *x, const struct segment_header *sh, uint64_t start, uint64_t pos,
			    uint64_t commit)
{
	uint64_t size = x->d->sb.segment_size, first = 0;
	struct unit_header h;
	uint32_t bytes;

	for (pos += BLOCK_SIZE; pos + 2 * BLOCK_SIZE <= size; pos += BLOCK_SIZE)
		if (!device_pread(x->d, x->mem, BLOCK_SIZE, start + pos) &&
		    !unit_summary_peek(x->mem, &bytes) && pos + bytes <= size &&
		    !device_pread(x->d, x->mem, bytes, start + pos) &&
		    !unit_summary_decode(x->mem, bytes, &h) && h.generation == sh->generation &&
		    h.position == pos / BLOCK_SIZE) {
			first = first ? first : pos;
			if (h.kv_commit > commit)
				return first;
		}
	return 0;
}

/* Up to the first place where no unit of this generation begins: there the segment was sealed. */
static void inspect_units(struct inspect *x, const struct segment_header *sh, uint64_t start)
{
	uint64_t size = x->d->sb.segment_size, pos = SEGMENT_HEADER_SIZE;

	while (pos + 2 * BLOCK_SIZE <= size) {
		uint32_t bytes;
		struct unit_header h;

		if (device_pread(x->d, x->mem, BLOCK_SIZE, start + pos) ||
		    unit_summary_peek(x->mem, &bytes) || pos + bytes > size ||
		    device_pread(x->d, x->mem, bytes, start + pos))
			break;
		if (unit_summary_decode(x->mem, bytes, &h)) {
			uint64_t next = get_le64(x->mem + 24) == sh->generation
						? unit_behind(x, sh, start, pos, get_le64(x->mem + 32))
						: 0;

			if (!next)
				break;
			printf("  damaged summary position=%" PRIu64 "\n", pos / BLOCK_SIZE);
			x->damaged++;
			pos = next;
			continue;
		}
		if (h.generation != sh->generation || h.position != pos / BLOCK_SIZE)
			break;
		inspect_unit(x, &h);
		pos += h.bytes;
	}
}

int tier_inspect_segments(struct device *d, bool verbose)
{
	struct inspect x = {.d = d, .verbose = verbose};
	uint64_t count = d->sb.segment_size ? d->sb.data_len / d->sb.segment_size : 0, used = 0;

	if (d->sb.segment_size < UNIT_MAX || d->sb.data_start + d->sb.data_len > d->size)
		return -ERR_CORRUPT;
	x.mem = xalloc_aligned(BLOCK_SIZE, UNIT_MAX);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t start = d->sb.data_start + i * d->sb.segment_size;
		struct segment_header h;
		int rc = device_pread(d, x.mem, BLOCK_SIZE, start);

		if (!rc)
			rc = segment_header_decode(x.mem, &h);
		if (rc == -ENODATA)
			continue;
		if (rc) {
			printf("segment number=%" PRIu64 " header=%s\n", i, err_name(rc));
			x.damaged++;
			continue;
		}
		used++;
		if (verbose)
			printf("segment number=%" PRIu64 " generation=%" PRIu64 " stream=%s"
			       " kv_commit=%" PRIu64 "\n",
			       i, h.generation, h.stream == STREAM_GC ? "gc" : "hot", h.kv_commit);
		inspect_units(&x, &h, start);
	}
	printf("segments=%" PRIu64 " with_header=%" PRIu64 " units=%" PRIu64 " entries=%" PRIu64
	       " damaged=%" PRIu64 "\n",
	       count, used, x.units, x.entries, x.damaged);
	free(x.mem);
	return x.damaged ? 1 : 0;
}
