/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulator/audit.h"

#include "store/store_impl.h"
#include "store/tier_internal.h"
#include "tests/simhost/impl.h"

static void *audit_thread(void *arg)
{
	struct sim_audit *a = arg;
	struct tier_verify found = {0};

	a->rc = tier_verify(a->store->tier, true, &found);
	a->differences = found.differences;
	a->bad_blocks = found.bad_blocks;
	loop_post(a->loop, &a->done);
	return NULL;
}

void sim_audit_start(struct vproc *p, struct sim_audit *a)
{
	fiber_spawn(p, "audit", audit_thread, a);
}
