/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated store's retry table: every number that was applied, with its version. */
#include "tests/replica/sim_retry.h"

#include <stdlib.h>
#include <string.h>

void retry_note(struct retries *t, const struct record *r, struct version v)
{
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++) {
		struct retry_entry *x = &t->e[i];

		if (x->attachment == r->attachment && x->epoch == r->attach_epoch &&
		    x->request < r->low_water && x->request)
			continue; /* below low-water: forgotten */
		t->e[n++] = *x;
	}
	t->n = n;
	if (t->n + 2 > t->cap) {
		t->cap = t->cap ? t->cap * 2 : 16;
		t->e = xrealloc(t->e, t->cap * sizeof(*t->e));
	}
	t->e[t->n++] =
		(struct retry_entry){r->attachment, r->attach_epoch, r->request, r->low_water, v};
}

void retry_cut(struct retries *t, struct version after)
{
	size_t n = 0;

	for (size_t i = 0; i < t->n; i++)
		if (t->e[i].v.seq <= after.seq)
			t->e[n++] = t->e[i];
	t->n = n;
}

void retry_copy(struct retries *to, const struct retries *from)
{
	to->n = from->n;
	if (to->cap < from->n) {
		to->cap = from->n;
		to->e = xrealloc(to->e, to->cap * sizeof(*to->e));
	}
	if (from->n)
		memcpy(to->e, from->e, from->n * sizeof(*to->e));
}

enum retry_answer retry_lookup(const struct retries *t, uint32_t attachment, uint32_t attach_epoch,
			       uint64_t request, struct version *v)
{
	uint64_t low = 0;

	for (size_t i = 0; i < t->n; i++) {
		const struct retry_entry *x = &t->e[i];

		if (x->attachment != attachment || x->epoch != attach_epoch)
			continue;
		low = MAX(low, x->low_water);
		if (x->request == request) {
			*v = x->v;
			return RETRY_KNOWN;
		}
	}
	return request < low ? RETRY_BELOW : RETRY_NEW;
}

void retry_decode(struct retries *t, const uint8_t *data, size_t len)
{
	struct retries from = {.n = len / sizeof(struct retry_entry)};
	struct retry_entry *e = xmalloc(len + 1);

	memcpy(e, data, len);
	from.e = e;
	retry_copy(t, &from);
	free(e);
}
