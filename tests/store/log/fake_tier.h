/* SPDX-License-Identifier: Apache-2.0 */
/* store/tier.h in memory, for tests of the log half. One database per metadata directory name, alive as long
 * as the process: closing and opening a store keeps it. Destage reads the log device, verifies and commits;
 * answers come some turns later. */
#pragma once

#include "store/tier.h"

void fake_tier_copy(const char *from, const char *to); /* `to` becomes what `from` is now */
bool fake_tier_is_fake(void); /* false: the real one is linked, and cannot be copied while it runs */
void fake_tier_drop(const char *dir);
void fake_tier_set_full(bool full);    /* destage answers -ERR_FULL */
void fake_tier_set_broken(bool broken); /* objects cannot be deleted: -EIO */
void fake_tier_set_paused(bool paused); /* destage waits; let go by unpausing */
unsigned fake_tier_headers(void);      /* object headers committed so far */
uint64_t fake_tier_commits(void);
