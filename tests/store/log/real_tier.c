/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for fake_tier.c where a test runs on the real capacity tier. */
#include "tests/store/log/fake_tier.h"
#include "tests/lib/test.h"

bool fake_tier_is_fake(void)
{
	return false;
}
void fake_tier_set_full(bool full)
{
}
void fake_tier_set_broken(bool broken)
{
}
void fake_tier_set_paused(bool paused)
{
}
unsigned fake_tier_headers(void)
{
	return 1;
}
void fake_tier_drop(const char *dir)
{
}

void fake_tier_copy(const char *from, const char *to)
{
	test_failed(__FILE__, __LINE__, "the real map is not copied while it runs");
}
