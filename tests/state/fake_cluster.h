/* SPDX-License-Identifier: Apache-2.0 */
/* Control planes (control_kit.h) over the Raft that never fails (fake_consensus.h). */
#pragma once

#include "tests/state/control_kit.h"
#include "tests/state/fake_consensus.h"

static inline const char *fake_dir(uint16_t node)
{
	return "";
}

static inline void fake_start(uint16_t n)
{
	fake_reset();
	cluster_start(n, fake_dir);
}

static inline void fake_stop(void)
{
	finish();
	fake_reset();
}
