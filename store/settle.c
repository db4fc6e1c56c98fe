/* SPDX-License-Identifier: Apache-2.0 */
/* The end of reducing, when somebody waits for it. It must never say that it is through while an object
 * may have marked pages. */
#include "store/tier_internal.h"

enum settle_state settle_step(struct tier *t, int *rc)
{
	*rc = atomic_load(&t->failed);
	if (!t->settle.waiting)
		return SETTLE_IDLE;
	if (*rc)
		return SETTLE_ENDED;
	if (gc_dead_step(t))
		return SETTLE_BUSY;
	if (t->reduce_wanted) {
		*rc = t->settle.reduce_rc ? t->settle.reduce_rc : reduce_has_room(t) ? 0 : -ERR_FULL;
		return *rc ? SETTLE_ENDED : pace_fill(t) >= FILL_FULL ? SETTLE_IDLE : SETTLE_BUSY;
	}
	*rc = kv_settle(t->kv);
	tier_count_kv(t);
	return SETTLE_ENDED;
}
