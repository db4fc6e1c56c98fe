/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/history_check.h"

#include <stdio.h>
#include <stdlib.h>

/* All operations of one value on one block: its write, and the reads that returned it. */
struct cluster {
	uint64_t value, write_invoked, write_returned, min_end, max_start;
	int written, read;
};

struct zone {
	uint64_t lo, hi, value;
};

static int by_block_value(const void *a, const void *b)
{
	const struct history_op *x = a, *y = b;

	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	if (x->value != y->value)
		return x->value < y->value ? -1 : 1;
	return (int)y->is_write - (int)x->is_write;
}

static int by_lo(const void *a, const void *b)
{
	const struct zone *x = a, *y = b;

	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static int cluster_add(struct cluster *c, const struct history_op *op, char *why, size_t cap)
{
	if (op->is_write) {
		if (c->written) {
			snprintf(why, cap,
				 "block %u: value %llx was written twice (a fault of the test)",
				 op->block, (unsigned long long)op->value);
			return -1;
		}
		c->written = 1;
		c->write_invoked = op->invoked;
		c->write_returned = op->returned;
	} else {
		c->read = 1;
		if (!c->written) {
			snprintf(why, cap,
				 "block %u: a read returned value %llx, which nobody wrote there",
				 op->block, (unsigned long long)op->value);
			return -1;
		}
		if (op->returned < c->write_invoked) {
			snprintf(why, cap, "block %u: value %llx was read before it was written",
				 op->block, (unsigned long long)op->value);
			return -1;
		}
	}
	if (op->returned < c->min_end)
		c->min_end = op->returned;
	if (op->invoked > c->max_start)
		c->max_start = op->invoked;
	return 0;
}

/* Forward zones may not overlap; a backward zone may not lie strictly inside a forward one. */
static int zones_check(struct zone *fwd, size_t nf, struct zone *bwd, size_t nb, uint32_t block,
		       char *why, size_t cap)
{
	qsort(fwd, nf, sizeof(*fwd), by_lo);
	qsort(bwd, nb, sizeof(*bwd), by_lo);
	for (size_t i = 1; i < nf; i++)
		if (fwd[i].lo < fwd[i - 1].hi) {
			snprintf(why, cap,
				 "block %u: values %llx [%llu, %llu] and %llx [%llu, %llu] were "
				 "both current: a read "
				 "went back in time or an acknowledged write vanished",
				 block, (unsigned long long)fwd[i - 1].value,
				 (unsigned long long)fwd[i - 1].lo,
				 (unsigned long long)fwd[i - 1].hi,
				 (unsigned long long)fwd[i].value, (unsigned long long)fwd[i].lo,
				 (unsigned long long)fwd[i].hi);
			return -1;
		}
	for (size_t i = 0, k = 0; i < nb; i++) {
		while (k < nf && fwd[k].hi <= bwd[i].lo)
			k++;
		if (k < nf && fwd[k].lo < bwd[i].lo && bwd[i].hi < fwd[k].hi) {
			snprintf(why, cap,
				 "block %u: value %llx [%llu, %llu] was acknowledged while %llx "
				 "[%llu, %llu] stayed "
				 "current: an acknowledged write was lost",
				 block, (unsigned long long)bwd[i].value,
				 (unsigned long long)bwd[i].lo, (unsigned long long)bwd[i].hi,
				 (unsigned long long)fwd[k].value, (unsigned long long)fwd[k].lo,
				 (unsigned long long)fwd[k].hi);
			return -1;
		}
	}
	return 0;
}

static int block_check(const struct history_op *ops, size_t n, struct zone *fwd, struct zone *bwd,
		       char *why, size_t cap)
{
	size_t nf = 0, nb = 0, i = 0;

	while (i < n) {
		struct cluster c = {.value = ops[i].value, .min_end = OP_PENDING};

		if (c.value == 0) { /* the initial content: written before everything */
			c.written = 1;
			c.min_end = 0;
		}
		for (; i < n && ops[i].value == c.value; i++)
			if (cluster_add(&c, &ops[i], why, cap) < 0)
				return -1;
		if (c.write_returned == OP_PENDING && !c.read)
			continue; /* never answered, never seen: it may not have happened */
		if (c.min_end < c.max_start)
			fwd[nf++] = (struct zone){c.min_end, c.max_start, c.value};
		else
			bwd[nb++] = (struct zone){c.max_start, c.min_end, c.value};
	}
	return zones_check(fwd, nf, bwd, nb, ops[0].block, why, cap);
}

int history_check(struct history_op *ops, size_t count, char *why, size_t why_cap)
{
	struct zone *zones = calloc(2 * count + 2, sizeof(*zones));
	int rc = 0;

	qsort(ops, count, sizeof(*ops), by_block_value);
	for (size_t i = 0; i < count && rc == 0;) {
		size_t k = i;

		while (k < count && ops[k].block == ops[i].block)
			k++;
		rc = block_check(ops + i, k - i, zones, zones + count + 1, why, why_cap);
		i = k;
	}
	free(zones);
	return rc;
}
