/* SPDX-License-Identifier: Apache-2.0 */
/* The object header on disk: in the payload of EPOCH, CUT and COMPLETE records (padded to whole blocks)
 * and as the value of the object's record in the map.
 *   off size
 *     0   4  magic "ASOH"            4   2  format 1           6   2  flags (1 used, 2 damaged)
 *     8   4  length of all          12   4  seen
 *    16   4  commit tenure          20   8  commit seq
 *    28   4  destaged tenure        32   8  destaged seq
 *    40   8  born: log generation counter when the replica was created
 *    48   2  epochs n               50 12·n  (tenure 4, first seq 8), ascending
 *   then the retry table (retry.h), then 8: xxh3-64, seed 0, of all before.
 * Frozen by tests/store/log. Pure; any thread. */
#pragma once

#include "store/retry.h"

#define OBJECT_HEADER_MAGIC 0x484f5341u /* "ASOH" */
#define OBJECT_HEADER_FORMAT 1u
#define OBJECT_HEADER_MAX (50u + EPOCHS_MAX * 12u + RETRY_ENCODED_MAX + 8u)

enum stored_header_flags { STORED_USED = 1, STORED_DAMAGED = 2 };

struct stored_header {
	uint16_t flags;
	struct object_header h;
	struct version destaged;
	uint64_t born;
};

/* Appends to w. Retry numbers above `upto` stay out. */
void stored_header_encode(const struct stored_header *s, const struct retry_table *retry,
			  struct version upto, struct writer *w);
/* len may be longer than the header (padding). The retry table is merged into `retry` (NULL: only
 * validated). -ENODATA: no header; -ERR_CORRUPT, -ERR_VERSION. */
int stored_header_decode(const void *data, size_t len, struct stored_header *out,
			 struct retry_table *retry) MUST_USE;

/* The tenure that the table gives for seq holds `v` (store/README.md, I4). Versions below the first entry
 * belong to entries that were dropped; they are valid if their tenure is older. An empty table says
 * nothing. */
bool epochs_hold(const struct object_header *h, struct version v);
bool epochs_valid(const struct object_header *h);
