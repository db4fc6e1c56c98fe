/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated store's retry table (cluster/replication.md, A1). By xrealloc; the owner frees `e`. */
#pragma once

#include "store/store.h"

struct retry_entry {
	uint32_t attachment, epoch;
	uint64_t request, low_water; /* an entry with request 0 only carries a low-water */
	struct version v;
};

struct retries {
	struct retry_entry *e;
	size_t n, cap;
};

void retry_note(struct retries *t, const struct record *r, struct version v);
void retry_cut(struct retries *t, struct version after); /* what is above `after` was never applied */
void retry_copy(struct retries *to, const struct retries *from);
enum retry_answer retry_lookup(const struct retries *t, uint32_t attachment, uint32_t attach_epoch,
			       uint64_t request, struct version *v);
void retry_decode(struct retries *t, const uint8_t *data, size_t len); /* own bytes: trusted */
