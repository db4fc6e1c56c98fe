/* SPDX-License-Identifier: Apache-2.0 */
/* The retry table of one object (replication.md A1): per attachment a low-water and the request numbers
 * applied above it, each with the version that applied it, so that a cut takes back exactly the numbers of
 * the records it drops. Bounded: RETRY_WINDOW numbers per attachment (beyond it the lowest are folded into
 * the low-water: refused, never applied twice) and RETRY_ATTACHMENTS_MAX attachments (least recently used
 * goes first; a revoked one is refused by its epoch before it comes here). Shard thread.
 *
 * Encoded: count 2, then per attachment: attachment 4, attach epoch 4, low-water 8, numbers 2, and per
 * number: request 8, tenure 4, seq 8. */
#pragma once

#include "node/base/bytes.h"
#include "store/store.h"

#define RETRY_ATTACHMENTS_MAX 32u
#define RETRY_ENCODED_MAX (2u + RETRY_ATTACHMENTS_MAX * (18u + RETRY_WINDOW * 20u))

struct retry_number {
	uint64_t request;
	struct version version;
};

struct retry_attachment {
	uint32_t attachment, epoch;
	uint64_t low_water;
	uint64_t used; /* clock of the last use */
	unsigned count, cap;
	struct retry_number *numbers; /* ascending by request */
};

struct retry_table {
	struct retry_attachment *attachments;
	unsigned count, cap;
	uint64_t clock;
};

void retry_fini(struct retry_table *t);
enum retry_answer retry_lookup(const struct retry_table *t, uint32_t attachment, uint32_t epoch,
			       uint64_t request, struct version *v);
/* Notes what a record says. Attachment 0 is nobody's. An older epoch of the attachment is ignored. */
void retry_note(struct retry_table *t, uint32_t attachment, uint32_t epoch, uint64_t request,
		uint64_t low_water, struct version v);
/* Forgets numbers applied by versions above v. */
void retry_cut(struct retry_table *t, struct version v);
/* Numbers with a version above `upto` stay out: their records may still be lost or cut. */
void retry_encode(const struct retry_table *t, struct version upto, struct writer *w);
/* Reads an encoded table; into t it is merged (t NULL: validated only). -ERR_PROTOCOL. */
int retry_decode(struct reader *r, struct retry_table *t) MUST_USE;
