/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the map database, byte by byte, and the merge of map pages. Pure, any thread.
 *
 * Keys are big-endian, values little-endian. Column families:
 *   map     key object 8 · page 4 · ~snapshot 4 (live pages: ~snapshot = 0)
 *           value, a page: 0 format 1 (=1) · 1 flags 1 · 2 zero 2 · 4 crc 4 (low half of xxh3-64
 * over the value with crc zero, seed = xxh3-64 of the key) · 8 tenure 4 · 12 zero 4 · 16 seq 8 · 24
 * mask 8 · 32 own mask 8 · then an entry of 16 per mask bit, in block order operand: 0 op 1 (=0x81:
 * set) · 1 n 1 · 2 zero 2 · 4 tenure 4 · 8 seq 8 · 16 mask 8 · then n entries of 16 in block order;
 * n = bits in mask; kind hole removes an entry entry   word 8: kind bits 0–2 · units−1 bits 3–8 ·
 * place bits 9–51 (offset/64 in bits 9–48, device in bits 49–51; or a share id) · spare bits 52–63
 * zero;  fp64 8 region  key object 8 · region 4; value mask 8 · fold 8 obj     key object 8; value
 * 0 format 1 (=3) · 1 state 1 · 2 flags 2 · 4 generation 4 · 8 volume 4 · 12 header length 4 · 16
 * mapped blocks 8 · 24 zero blocks 8 · 32 stored bytes 8 · 40 shared blocks 8 · 48 damaged blocks 8
 * · 56 newest request to reduce that is done 4 · 60 zero 4 · 64 the header, opaque here · then
 * xxh3-64 8 of all before, seed = object. Mapped: all but holes
 * and zeroes; stored: unshared ones share   key share id 8; value word 8 (raw or lz4, or damaged:
 * no place) · fp lo 8 · fp hi 8 · refs 4 · owner volume 4 · owner refs 4 sloc    key segment 4 ·
 * offset in it/64 4; value share id 8 seg     see segment.h meta    key "commit"; value 0 format 4
 * (=1) · 4 group incarnation 4 · 8 group uuid 16 · 24 commit 8 · 32 xxh3-64 8 of bytes 0–31, seed
 * 0.  Key "v" · volume 4; value owned shares 8 · damaged of them 8 · their stored bytes 8 · of
 * these, with all references from this volume 8 · this volume's references 8 · xxh3-64 8, seed =
 * volume.  Key "next-share";
 * value share id 8 · xxh3-64 8, seed 0 Frozen by tests/store/tier. */
#pragma once

#include "node/base/bytes.h"
#include "store/tier.h"

#define MAP_KEY_SIZE        16u
#define MAP_PAGE_HEADER     40u
#define MAP_PAGE_MAX        (MAP_PAGE_HEADER + 16u * PAGE_BLOCKS)
#define MAP_OPERAND_HEADER  24u
#define MAP_OPERAND_MAX     (MAP_OPERAND_HEADER + 16u * PAGE_BLOCKS)
#define MAP_OPERAND_SET     0x81u
#define REGION_KEY_SIZE     12u
#define REGION_VALUE_SIZE   16u
#define OBJECT_KEY_SIZE     8u
#define OBJECT_VALUE_HEADER 64u
#define SHARE_VALUE_SIZE    36u
#define META_VALUE_SIZE     40u

enum map_page_flags {
	MAP_PAGE_DAMAGED = 1, /* bytes of this page were lost; what is unknown is MAP_DAMAGED */
	MAP_PAGE_REDUCE_LATER = 2, /* written raw under load */
};

/* ---- Entries -----------------------------------------------------------------------------------
 */

static inline unsigned map_entry_kind(uint64_t word)
{
	return word & 7;
}
static inline unsigned map_entry_units(uint64_t word)
{
	return (word >> 3 & 63) + 1;
}
static inline unsigned map_entry_device(uint64_t word)
{
	return word >> 49 & 7;
}
static inline uint64_t map_entry_offset(uint64_t word) /* bytes from the start of the device */
{
	return (word >> 9 & ((1ull << 40) - 1)) << 6;
}
static inline bool map_entry_has_place(uint64_t word)
{
	return map_entry_kind(word) == MAP_RAW || map_entry_kind(word) == MAP_LZ4;
}
static inline uint64_t map_entry_word(unsigned kind, unsigned units, unsigned device,
				      uint64_t offset)
{
	return (uint64_t)kind | (uint64_t)(units - 1) << 3 | (offset >> 6) << 9 |
	       (uint64_t)device << 49;
}

static inline uint64_t map_share_word(uint64_t share)
{
	return MAP_SHARE | share << 9;
}
static inline uint64_t map_share_id(uint64_t word)
{
	return word >> 9 & ((1ull << 43) - 1);
}

/* ---- Pages -------------------------------------------------------------------------------------
 */

void map_key_encode(uint8_t out[MAP_KEY_SIZE], uint64_t object, uint32_t page);
bool map_key_decode(const void *key, size_t len, uint64_t *object, uint32_t *page);
/* Bytes written. The own mask is the mask: there are no snapshots yet. */
size_t map_page_encode(uint8_t out[MAP_PAGE_MAX], const uint8_t key[MAP_KEY_SIZE],
		       const struct map_page *p);
int map_page_decode(const void *data, size_t len, const uint8_t key[MAP_KEY_SIZE],
		    struct map_page *out) MUST_USE; /* 0 or -ERR_CORRUPT */
/* What stands for a page whose bytes are lost: every block damaged, version {0,0}. */
void map_page_set_damaged(struct map_page *p);
bool map_page_has_damage(const struct map_page *p);

/* The blocks of `mask` get the entries that `p` has for them; those p has none for become holes. */
size_t map_operand_encode(uint8_t out[MAP_OPERAND_MAX], const struct map_page *p, uint64_t mask);

/* The merge: never fails. Operands oldest first. A bad base counts as a damaged page, a bad operand
 * makes the result one. Full: a page (≤ MAP_PAGE_MAX). Partial: one operand (≤ MAP_OPERAND_MAX). */
size_t map_merge_full(uint8_t out[MAP_PAGE_MAX], const uint8_t *key, size_t key_len,
		      const void *base, size_t base_len, const void *const *operands,
		      const size_t *lens, unsigned n);
size_t map_merge_partial(uint8_t out[MAP_OPERAND_MAX], const void *const *operands,
			 const size_t *lens, unsigned n);

/* ---- The other rows ----------------------------------------------------------------------------
 */

struct map_region {
	uint64_t mask, fold;
};
void region_key_encode(uint8_t out[REGION_KEY_SIZE], uint64_t object, uint32_t region);
void region_encode(uint8_t out[REGION_VALUE_SIZE], const struct map_region *r);
int region_decode(const void *data, size_t len, struct map_region *out) MUST_USE;

enum object_state { OBJECT_LIVE = 1, OBJECT_DELETING = 2 };
struct object_counters {
	uint64_t mapped, zero, stored; /* blocks, blocks, bytes */
	uint64_t shared, damaged; /* blocks of the mapped ones that store nothing of their own */
};
enum object_flags {
	OBJECT_DEDUP = 1,
	OBJECT_COMPRESSION = 2,  /* the policy that was last heard of */
	OBJECT_REDUCE_LATER = 4, /* pages of it may have MAP_PAGE_REDUCE_LATER */
};
struct object_row {
	uint32_t gen, volume;
	uint16_t flags;
	enum object_state state;
	struct object_counters counters;
	uint32_t reduced; /* newest request to reduce existing data that is done */
	const uint8_t *header; /* decoded: into the input */
	size_t header_len;
};
void object_row_encode(struct writer *w, uint64_t object, const struct object_row *o);
int object_row_decode(const void *data, size_t len, uint64_t object,
		      struct object_row *out) MUST_USE;

struct share_row {
	uint64_t word;
	struct fp128 fp;
	uint32_t refs, owner_volume, owner_refs;
};
void share_encode(uint8_t out[SHARE_VALUE_SIZE], const struct share_row *s);
int share_decode(const void *data, size_t len, struct share_row *out) MUST_USE;
void sloc_key_encode(uint8_t out[8], uint32_t segment, uint32_t offset_units);

struct meta_row {
	struct uuid group;
	uint32_t group_incarnation;
	uint64_t commit;
};
#define META_KEY "commit"
void meta_encode(uint8_t out[META_VALUE_SIZE], const struct meta_row *m);
int meta_decode(const void *data, size_t len, struct meta_row *out) MUST_USE; /* -ERR_VERSION too */
