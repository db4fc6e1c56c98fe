/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: fault sets, weight, balance, explanation. */
#include "tests/state/state_kit.h"

static int choose(const struct kit *k, struct placement_request *q, struct map_member *out,
		  char why[256])
{
	return placement_choose(kit_map(k), q, out, NULL, NULL, 0, why);
}

TEST(placement, thousand_objects_are_balanced_over_three_groups)
{
	struct kit k;
	char why[256];
	static struct map_member m[2000];
	unsigned count[4] = {0}, primary[4] = {0}, lo = 10000, hi = 0, plo = 10000, phi = 0;
	struct placement_request q = {.volume = 1, .objects = 1000, .copies = 2};

	kit_init(&k, 3);
	EXPECT_OK(choose(&k, &q, m, why));
	for (unsigned i = 0; i < 2000; i++)
		count[m[i].group]++;
	for (unsigned i = 0; i < 1000; i++) {
		EXPECT(m[2 * i].group != m[2 * i + 1].group);
		primary[m[2 * i].group]++;
	}
	for (unsigned g = 1; g <= 3; g++) {
		lo = MIN(lo, count[g]);
		hi = MAX(hi, count[g]);
		plo = MIN(plo, primary[g]);
		phi = MAX(phi, primary[g]);
	}
	EXPECT(hi * 10 <= lo * 13);
	EXPECT(phi * 10 <= plo * 13);
	kit_fini(&k);
}

TEST(placement, share_follows_free_space)
{
	struct kit k;
	char why[256];
	static struct map_member m[3000];
	unsigned count[4] = {0};
	struct placement_request q = {.volume = 7, .objects = 3000, .copies = 1};

	kit_init(&k, 3);
	EXPECT_OK(kit_group_state(&k, 3, GROUP_ACTIVE, 5, 1)); /* a quarter of the others' */
	EXPECT_OK(choose(&k, &q, m, why));
	for (unsigned i = 0; i < 3000; i++)
		count[m[i].group]++;
	EXPECT(count[3] > 250 && count[3] < 420); /* 1/9 of 3000 = 333 */
	kit_fini(&k);
}

TEST(placement, two_nodes_of_a_rack_are_one_fault_set)
{
	struct kit k;
	char why[256];
	struct map_member m[2];
	struct placement_request q = {.volume = 1, .objects = 1, .copies = 2};

	kit_empty(&k);
	EXPECT_OK(kit_cluster(&k, "test", 900)); /* n1 is its own fault set */
	EXPECT_OK(kit_node(&k, "a", "rack1", 10));
	EXPECT_OK(kit_node(&k, "b", "rack1", 11));
	for (uint16_t i = 2; i <= 3; i++) {
		EXPECT_OK(kit_start(&k, i, 0, 1));
		EXPECT_OK(kit_group(&k, i, 20u + i));
		EXPECT_OK(kit_group_state(&k, (uint16_t)(i - 1), GROUP_ACTIVE, 20, 1));
	}
	EXPECT_RC(choose(&k, &q, m, why), -ERR_TOO_FEW);
	EXPECT(strstr(why, "2 copies need 2 fault sets") && strstr(why, "there are 1"));
	EXPECT_RC(kit_volume(&k, "v", 1 << 30, 2), -ERR_TOO_FEW);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 1));
	kit_fini(&k);
}

TEST(placement, primary_prefers_a_node_and_reasons_are_told)
{
	struct kit k;
	char why[256];
	struct map_member m[30];
	struct placement_reason reason[8];
	unsigned n, chosen = 0;
	uint16_t out = 4;
	struct placement_request q = {.volume = 3,
				      .objects = 10,
				      .copies = 3,
				      .prefer_node = 2,
				      .exclude = &out,
				      .exclude_count = 1};

	kit_init(&k, 6);
	EXPECT_OK(kit_group_state(&k, 5, GROUP_FAILED, 20, 1));
	EXPECT_OK(kit_group_state(&k, 6, GROUP_ACTIVE, 0, 1));
	EXPECT_OK(placement_choose(kit_map(&k), &q, m, reason, &n, 8, why));
	EXPECT_EQ(n, 6);
	for (unsigned i = 0; i < 10; i++)
		EXPECT_EQ(m[3 * i].group, 2);
	for (unsigned i = 0; i < n; i++) {
		chosen += !strcmp(reason[i].text, "chosen");
		if (reason[i].group == 4)
			EXPECT_STR(reason[i].text, "is being emptied, or kept empty: ashlar job list");
		if (reason[i].group == 5)
			EXPECT_STR(reason[i].text, "the group is failed");
		if (reason[i].group == 6)
			EXPECT_STR(reason[i].text, "full");
	}
	EXPECT_EQ(chosen, 3);
	kit_fini(&k);
}

/* Rendezvous: a new group takes objects over, and nothing moves between the old ones. */
TEST(placement, a_new_group_only_takes)
{
	struct kit k;
	char why[256];
	static struct map_member before[500], after[500];
	unsigned moved = 0;
	struct placement_request q = {.volume = 1, .objects = 500, .copies = 1};

	kit_init(&k, 3);
	EXPECT_OK(choose(&k, &q, before, why));
	EXPECT_OK(kit_node(&k, "n4", "", 104));
	EXPECT_OK(kit_start(&k, 4, 0, 1));
	EXPECT_OK(kit_group(&k, 4, 204));
	EXPECT_OK(kit_group_state(&k, 4, GROUP_ACTIVE, 20, 1));
	EXPECT_OK(choose(&k, &q, after, why));
	for (unsigned i = 0; i < 500; i++) {
		if (before[i].group == after[i].group)
			continue;
		EXPECT_EQ(after[i].group, 4);
		moved++;
	}
	EXPECT(moved > 80 && moved < 170);
	kit_fini(&k);
}
