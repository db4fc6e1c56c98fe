/* SPDX-License-Identifier: Apache-2.0 */
/* Of space credit both ends of a connection count for themselves what is spent. Once nothing is under way
 * they must agree: what only the spender counted is gone for as long as the connection lives. */
#pragma once

#include "cluster/replica_impl.h"

/* NULL: they agree on all that `giver` at node g lets `taker` at node t send. */
static inline const char *credits_differ(const struct replicator *giver, uint16_t g,
					 const struct replicator *taker, uint16_t t)
{
	static char text[160];

	for (unsigned i = 0; i < SHARDS_MAX; i++) {
		struct session *ours = giver->peers[t].stream[i], *theirs = taker->peers[g].stream[i];

		for (unsigned k = 0; ours && theirs && k < ours->our_count; k++) {
			const struct credit *a = &ours->ours[k],
					    *b = credit_find(theirs->theirs, &theirs->their_count,
							     a->group);

			if (!b || (a->spent == b->spent && a->spent <= a->granted))
				continue;
			snprintf(text, sizeof(text),
				 "of %llu bytes of credit for group %u node %u has spent %llu, node %u "
				 "counts %llu",
				 (unsigned long long)a->granted, a->group, t,
				 (unsigned long long)b->spent, g, (unsigned long long)a->spent);
			return text;
		}
	}
	return NULL;
}
