/* SPDX-License-Identifier: Apache-2.0 */
/* One round of the destager: the pages and payload of one commit, between destage.c (batches),
 * reduce.c (data stored raw under load) and dedup_match.c. Destager thread. */
#pragma once

#include "store/tier_internal.h"

/* A block on its way to a segment: from the log, or again from where it is. */
struct payload {
	struct destage_block *block;
	struct work_page *w;
	uint32_t gen;
	bool compression, dedup;
	bool again;  /* it is stored already, in the entry: it moves only if it gets smaller */
	bool was_packed; /* again: it is stored compressed, at `word` */
	bool stored;     /* appended in this round */
	uint64_t word;
	/* By prepare.c. data and packed: while its chunk is in memory. */
	bool unread, bad, zero, compressed; /* compressed: it was tried; units 0: in vain */
	uint8_t units;                      /* of the stored form */
	uint8_t *data, *packed;
	struct fp128 fp;
	struct tshare *share;
	struct tshare *of; /* again: the entry refers to it, and it may get smaller */
};

/* A page that this commit changes only because a block of it is shared from now on. */
struct extra_page {
	struct extra_page *next;
	struct work_page w;
	struct map_page page;
};

struct round {
	struct tier *t;
	struct destage_batch *batches, **last;
	struct work_page *work;
	struct payload *payload;
	unsigned work_count, payload_count;
	enum segment_stream stream;
	bool bypass; /* the reducer is behind: everything is stored raw */
	bool match;  /* duplicates are looked for: neither that, nor are hints still to be filled */
	bool found_bad; /* some block became damaged */
	/* Dedup: payload by fingerprint (index + 1), and those that became shares. */
	uint32_t *local, local_mask;
	struct extra_page *extra;
	unsigned extra_count;
	uint64_t *shares; /* those whose stored form moved */
	unsigned share_count;
	uint8_t *scratch;
};

/* Stores all payload, as it is prepared; units are written at the end. */
int round_payload(struct tier *t, struct round *r, uint64_t *damaged) MUST_USE;
/* Units of its compressed form, in *packed (of the payload, or buf: CODEC_UNITS_MAX units); 0: none. */
unsigned payload_pack(const struct payload *p, uint8_t *buf, const uint8_t **packed);
void round_share_moved(struct round *r, uint64_t id);
/* Rows of all changed pages, the commit, caches and shards. */
int round_commit(struct tier *t, struct round *r) MUST_USE;
void round_free(struct round *r);
uint64_t page_hash(uint64_t object, uint32_t page);
struct work_page *round_page(struct tier *t, uint64_t object, uint32_t page);

/* dedup_match.c. 1: the entry refers to a share now; 0: it is the first; < 0: an error. */
int dedup_match(struct round *r, struct payload *p) MUST_USE;
/* The share that the payload is, or is equal to, is stored smaller if it is raw and can be. */
int dedup_shrink(struct round *r, struct payload *p, struct tshare *s) MUST_USE;
void dedup_resolve(struct round *r); /* units are written: places of new shares */
void dedup_hint(struct round *r);    /* the commit is durable */
