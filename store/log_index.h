/* SPDX-License-Identifier: Apache-2.0 */
/* What the write log holds, in RAM, for one shard: per page the committed blocks that are not in the map
 * yet, and per object the uncommitted tail (struct log_tail in store_impl.h).
 *
 * An entry remembers the seq that wrote it: committed records of an object are totally ordered by seq, so a
 * block's entry is replaced only by a higher seq, in whatever order records arrive (replay meets re-appended
 * tails out of order), and an entry at or below the version of the map's page is void. A page is destaged
 * with all its entries (I2); it holds its oldest segment until then. Shard thread. */
#pragma once

#include "node/base/hmap.h"
#include "store/arena.h"
#include "store/tier.h"

struct shard;
struct log_tail;

#define LOG_NONE UINT32_MAX /* no segment, no position */

struct log_entry {
	uint64_t seq;
	uint64_t fp; /* MAP_RAW: fp64; otherwise: mask of the blocks */
	uint32_t pos; /* log block; MAP_RAW: of the payload, otherwise in the record's segment */
	uint8_t index; /* MAP_RAW only */
	uint8_t kind;  /* MAP_RAW, MAP_ZERO, MAP_HOLE, MAP_DAMAGED */
};

struct page_node {
	struct hnode node;
	struct store_object *object;
	struct log_entry *entries;
	struct list seg_link;	 /* dirty list of its oldest segment; alone while it is destaged */
	struct list object_link; /* store_object.pages */
	struct version version;	 /* newest committed */
	struct version base;	 /* of the map's page, if base_known */
	uint64_t copy_seq;	 /* a copy at this seq holds all before it */
	uint64_t batch;		 /* newest batch of this session that it stands on; 0: none */
	uint32_t page, seg, version_pos;
	uint32_t dirty_s; /* second of the loop's clock when it became dirty */
	uint32_t flush;	  /* shard.flush_number at that time */
	uint16_t bytes;	  /* of entries */
	uint8_t count;
	bool base_known, unchecked; /* unchecked: from recovery, the map may be newer */
	bool destaging, checking, copied; /* copied: a copy arrived while it was destaged */
};

/* The page's blocks [first, first + count) as the log knows them; kind 0xff: not in the log. */
#define VIEW_NONE 0xff
struct page_view {
	struct version version; /* of the page in the log */
	uint64_t seq[PAGE_BLOCKS], fp[PAGE_BLOCKS];
	uint32_t pos[PAGE_BLOCKS];
	uint8_t kind[PAGE_BLOCKS];
};

struct page_node *page_find(struct shard *sh, const struct store_object *o, uint32_t page);
/* Puts a committed record into its pages. */
void index_apply(struct shard *sh, const struct log_tail *t);
/* Compares with the map's page: drops what the map has. NULL: nothing was left, the node is gone. */
struct page_node *page_check(struct shard *sh, struct page_node *p, const struct map_page *map);
/* The map now holds `version` of it. NULL: the node is gone. */
struct page_node *page_destaged(struct shard *sh, struct page_node *p, struct version version);
/* It was not destaged after all. */
void page_destage_failed(struct shard *sh, struct page_node *p);
void page_drop(struct shard *sh, struct page_node *p);
void page_view(const struct page_node *p, struct page_view *v); /* p may be NULL */
/* Voids what the map's page has already: nothing if that is of a history that was given up, all if the log's
 * is and the map's came after it; of a damaged page, what is of its very version may repair it. */
void page_view_prune(const struct store_object *o, struct page_view *v, const struct map_page *map,
		     bool damaged);
