/* SPDX-License-Identifier: Apache-2.0 */
/* See retry.h. Memory grows by doubling up to the bounds; in steady state nothing is allocated. */
#include "store/retry.h"

#include <stdlib.h>

#include "node/base/err.h"

void retry_fini(struct retry_table *t)
{
	for (unsigned i = 0; i < t->count; i++)
		free(t->attachments[i].numbers);
	free(t->attachments);
	*t = (struct retry_table){0};
}

static struct retry_attachment *find(const struct retry_table *t, uint32_t attachment)
{
	for (unsigned i = 0; i < t->count; i++)
		if (t->attachments[i].attachment == attachment)
			return &t->attachments[i];
	return NULL;
}

/* First index whose request is not below `request`. */
static unsigned lower(const struct retry_attachment *a, uint64_t request)
{
	unsigned lo = 0, hi = a->count;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (a->numbers[mid].request < request)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

enum retry_answer retry_lookup(const struct retry_table *t, uint32_t attachment, uint32_t epoch,
			       uint64_t request, struct version *v)
{
	const struct retry_attachment *a = find(t, attachment);
	unsigned i;

	if (!a || a->epoch < epoch)
		return RETRY_NEW;
	if (a->epoch > epoch || request < a->low_water)
		return RETRY_BELOW;
	i = lower(a, request);
	if (i == a->count || a->numbers[i].request != request)
		return RETRY_NEW;
	*v = a->numbers[i].version;
	return RETRY_KNOWN;
}

static void raise_low_water(struct retry_attachment *a, uint64_t low_water)
{
	unsigned i;

	if (low_water <= a->low_water)
		return;
	a->low_water = low_water;
	i = lower(a, low_water);
	if (!i)
		return;
	memmove(a->numbers, a->numbers + i, (a->count - i) * sizeof(a->numbers[0]));
	a->count -= i;
}

static struct retry_attachment *get(struct retry_table *t, uint32_t attachment, uint32_t epoch)
{
	struct retry_attachment *a = find(t, attachment);

	if (!a && t->count == RETRY_ATTACHMENTS_MAX) {
		a = &t->attachments[0];
		for (unsigned i = 1; i < t->count; i++)
			if (t->attachments[i].used < a->used)
				a = &t->attachments[i];
		a->attachment = attachment;
		a->epoch = epoch;
		a->count = 0;
		a->low_water = 0;
	}
	if (!a) {
		if (t->count == t->cap) {
			t->cap = t->cap ? t->cap * 2 : 2;
			t->attachments = xrealloc(t->attachments, t->cap * sizeof(*a));
		}
		a = &t->attachments[t->count++];
		*a = (struct retry_attachment){.attachment = attachment, .epoch = epoch};
	}
	if (epoch < a->epoch)
		return NULL;
	if (epoch > a->epoch) {
		a->epoch = epoch;
		a->count = 0;
		a->low_water = 0;
	}
	a->used = ++t->clock;
	return a;
}

static void put_number(struct retry_attachment *a, uint64_t request, struct version v)
{
	unsigned i;

	if (request < a->low_water)
		return;
	i = lower(a, request);
	if (i < a->count && a->numbers[i].request == request) {
		a->numbers[i].version = v;
		return;
	}
	if (a->count == RETRY_WINDOW) {
		if (i == 0) { /* would be the first to go itself */
			raise_low_water(a, request + 1);
			return;
		}
		raise_low_water(a, a->numbers[0].request + 1);
		i--;
	}
	if (a->count == a->cap) {
		a->cap = a->cap ? a->cap * 2 : 4;
		a->numbers = xrealloc(a->numbers, a->cap * sizeof(a->numbers[0]));
	}
	memmove(a->numbers + i + 1, a->numbers + i, (a->count - i) * sizeof(a->numbers[0]));
	a->numbers[i] = (struct retry_number){.request = request, .version = v};
	a->count++;
}

void retry_note(struct retry_table *t, uint32_t attachment, uint32_t epoch, uint64_t request,
		uint64_t low_water, struct version v)
{
	struct retry_attachment *a;

	if (!attachment)
		return;
	a = get(t, attachment, epoch);
	if (!a)
		return;
	raise_low_water(a, low_water);
	put_number(a, request, v);
}

void retry_cut(struct retry_table *t, struct version v)
{
	for (unsigned i = 0; i < t->count; i++) {
		struct retry_attachment *a = &t->attachments[i];
		unsigned kept = 0;

		for (unsigned k = 0; k < a->count; k++)
			if (version_cmp(a->numbers[k].version, v) <= 0)
				a->numbers[kept++] = a->numbers[k];
		a->count = kept;
	}
}

void retry_encode(const struct retry_table *t, struct version upto, struct writer *w)
{
	write_u16(w, (uint16_t)t->count);
	for (unsigned i = 0; i < t->count; i++) {
		const struct retry_attachment *a = &t->attachments[i];
		unsigned n = 0;

		for (unsigned k = 0; k < a->count; k++)
			n += version_cmp(a->numbers[k].version, upto) <= 0;
		write_u32(w, a->attachment);
		write_u32(w, a->epoch);
		write_u64(w, a->low_water);
		write_u16(w, (uint16_t)n);
		for (unsigned k = 0; k < a->count; k++) {
			if (version_cmp(a->numbers[k].version, upto) > 0)
				continue;
			write_u64(w, a->numbers[k].request);
			write_u32(w, a->numbers[k].version.tenure);
			write_u64(w, a->numbers[k].version.seq);
		}
	}
}

int retry_decode(struct reader *r, struct retry_table *t)
{
	unsigned count = read_u16(r);

	if (r->bad || count > RETRY_ATTACHMENTS_MAX)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < count; i++) {
		uint32_t attachment = read_u32(r), epoch = read_u32(r);
		uint64_t low_water = read_u64(r);
		unsigned n = read_u16(r);
		struct retry_attachment *a = NULL;

		if (r->bad || !attachment || n > RETRY_WINDOW || reader_left(r) < n * 20u)
			return -ERR_PROTOCOL;
		if (t)
			a = get(t, attachment, epoch);
		if (a)
			raise_low_water(a, low_water);
		for (unsigned k = 0; k < n; k++) {
			uint64_t request = read_u64(r);
			uint32_t tenure = read_u32(r);
			struct version v = {tenure, read_u64(r)};

			if (a)
				put_number(a, request, v);
		}
	}
	return r->bad ? -ERR_PROTOCOL : 0;
}
