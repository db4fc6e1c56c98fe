/* SPDX-License-Identifier: Apache-2.0 */
/* The simulators' judge of histories, against a search over all orders of small ones, with zeros written or
 * not; and one that lasts for as long as many others take. */
#include <string.h>

#include "node/base/rng.h"
#include "tests/lib/linear.h"
#include "tests/lib/test.h"

#define OPS 6u

static bool brute(const struct linear_op *ops, unsigned n, unsigned done, uint64_t current)
{
	bool left = false;

	for (unsigned i = 0; i < n; i++)
		left |= !(done >> i & 1) && ops[i].returned != LINEAR_PENDING;
	if (!left)
		return true;
	for (unsigned i = 0; i < n; i++) {
		bool may_be_next = !(done >> i & 1);

		for (unsigned k = 0; k < n; k++)
			if (!(done >> k & 1) && ops[k].returned < ops[i].invoked)
				may_be_next = false;
		if (may_be_next && (ops[i].write || ops[i].value == current) &&
		    brute(ops, n, done | 1u << i, ops[i].write ? ops[i].value : current))
			return true;
	}
	return false;
}

TEST(linear, agrees_with_brute_force)
{
	unsigned verdicts[2][2] = {{0}};
	struct rng r;

	rng_seed(&r, 11);
	for (unsigned round = 0; round < 60000; round++) {
		struct linear_op ops[OPS], given[OPS];
		unsigned n = 1 + (unsigned)rng_below(&r, OPS), writes = 0;
		bool zeros = rng_below(&r, 2), want;

		for (unsigned i = 0; i < n; i++) {
			uint64_t from = 1 + 2 * rng_below(&r, 12);

			ops[i] = (struct linear_op){.invoked = from,
						    .returned = from + 1 + 2 * rng_below(&r, 6),
						    .write = rng_below(&r, 2)};
			if (!ops[i].write)
				continue;
			ops[i].value = zeros && rng_below(&r, 2) ? 0 : ++writes;
			if (!rng_below(&r, 5))
				ops[i].returned = LINEAR_PENDING;
		}
		for (unsigned i = 0; i < n; i++)
			if (!ops[i].write)
				ops[i].value = rng_below(&r, writes + 1);
		memcpy(given, ops, sizeof(ops));
		want = brute(ops, n, 0, 0);
		if (linear_check(given, n) != want)
			test_failed(__FILE__, __LINE__, "round %u: the search says %d", round, want);
		verdicts[zeros][want]++;
	}
	for (unsigned zeros = 0; zeros < 2; zeros++)
		EXPECT(verdicts[zeros][0] > 1000 && verdicts[zeros][1] > 1000);
}

/* A read that waits while `n` pairs come and go, and then returns `value`. */
static bool long_one(unsigned n, uint64_t value)
{
	struct linear_op ops[1 + 2 * 300];

	ops[0] = (struct linear_op){.value = value, .invoked = 1, .returned = 100000};
	for (unsigned i = 0; i < n; i++) {
		uint64_t written = i % 3 ? i + 1 : 0;

		ops[1 + 2 * i] = (struct linear_op){written, 10 + 20 * i, 14 + 20 * i, true};
		ops[2 + 2 * i] = (struct linear_op){written, 15 + 20 * i, 18 + 20 * i, false};
	}
	return linear_check(ops, 1 + 2 * n);
}

TEST(linear, one_outlasts_many)
{
	EXPECT(long_one(100, 99));
	EXPECT(long_one(100, 98));
	EXPECT(!long_one(100, 1000)); /* nobody wrote that */
	EXPECT(long_one(300, 299));   /* or no verdict */
}
