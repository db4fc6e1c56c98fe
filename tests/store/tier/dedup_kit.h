/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of shared blocks and of data reduction have in common. */
#pragma once

#include "tests/store/tier/harness.h"

/* One capacity file, one shard, dedup on, every object there; m is zeroed. */
void d_start(struct harness *h, struct model *m, const char *name, unsigned size_mib);
/* All is as the model says and as the verifier counts it, now and after a restart. Frees m. */
void d_end(struct harness *h, struct model *m);
void d_wait_hints(struct harness *h); /* they are rebuilt */
/* One page with these seeds from block 0 on. */
void d_write_page(struct harness *h, struct model *m, unsigned object, uint32_t page,
		  const uint64_t *seeds, unsigned n);
void d_write_one(struct harness *h, struct model *m, unsigned object, uint32_t page, uint64_t seed);
/* The kind of a block's map entry, and the entry. */
unsigned d_kind_at(struct harness *h, unsigned object, uint32_t page, unsigned block, uint64_t *word);
bool d_row_get(struct harness *h, uint64_t id, struct share_row *row); /* false: no such share */
unsigned d_rows_in(struct harness *h, enum kv_cf cf);
