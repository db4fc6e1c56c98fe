/* SPDX-License-Identifier: Apache-2.0 */
/* The checker against a brute-force search over all orders of small random histories: it must
 * agree, on both answers. */
#include "node/base/rng.h"
#include "tests/lib/test.h"
#include "tests/system/history_check.h"

#define OPS 6

static int brute(const struct history_op *ops, int n, unsigned done, uint64_t current)
{
	int required = 0;

	for (int i = 0; i < n; i++)
		if (!(done >> i & 1) && ops[i].returned != OP_PENDING)
			required = 1;
	if (!required)
		return 1;
	for (int i = 0; i < n; i++) {
		int minimal = 1;

		if (done >> i & 1)
			continue;
		for (int k = 0; k < n; k++)
			if (!(done >> k & 1) && k != i && ops[k].returned < ops[i].invoked)
				minimal = 0;
		if (!minimal)
			continue;
		if (ops[i].is_write
			    ? brute(ops, n, done | 1u << i, ops[i].value)
			    : ops[i].value == current && brute(ops, n, done | 1u << i, current))
			return 1;
	}
	return 0;
}

TEST(history_check, agrees_with_brute_force)
{
	struct rng r;
	int yes = 0, no = 0;

	rng_seed(&r, 7);
	for (int round = 0; round < 60000; round++) {
		struct history_op ops[OPS];
		int n = 1 + (int)rng_below(&r, OPS), writes = 0, want, got;
		char why[512];

		for (int i = 0; i < n; i++) {
			uint64_t t0 = 1 + 2 * rng_below(&r, 12), t1 = t0 + 1 + 2 * rng_below(&r, 6);

			ops[i] = (struct history_op){.invoked = t0, .returned = t1, .block = 3};
			ops[i].is_write = rng_below(&r, 2);
			if (ops[i].is_write) {
				ops[i].value = (uint64_t)++writes;
				if (rng_below(&r, 5) == 0)
					ops[i].returned = OP_PENDING;
			}
		}
		for (int i = 0; i < n; i++)
			if (!ops[i].is_write)
				ops[i].value = rng_below(&r, (uint64_t)writes + 1);
		want = brute(ops, n, 0, 0);
		got = history_check(ops, (size_t)n, why, sizeof(why)) == 0;
		if (want != got)
			test_failed(__FILE__, __LINE__,
				    "round %d: brute force says %d, the checker %d (%s)", round,
				    want, got, why);
		want ? yes++ : no++;
	}
	EXPECT(yes > 1000 && no > 1000);
}
