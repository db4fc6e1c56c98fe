/* SPDX-License-Identifier: Apache-2.0 */
/* The switches of planted faults: tests leave out one rule of the protocol to see that the
 * simulator notices. Included by cluster/replica*.c and tests/replica only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Rules that a test may leave out, to see that the simulator finds the hole. Always 0 in a product.
 */
enum replica_rule {
	RULE_ACK_ALL = 1 << 0,     /* W4: commit needs all of want */
	RULE_READ_LEASE = 1 << 1,  /* Q2: lease checked with the data in hand */
	RULE_FENCE = 1 << 2,       /* N5: no grants while a fence is owed */
	RULE_PROMOTE = 1 << 3,     /* Y6: promotion only after all pages are current */
	RULE_COPY_ORDER = 1 << 4,  /* Y3: a copy waits for the writes ahead of it */
	RULE_CUT = 1 << 5,         /* T1: a member cuts its foreign tail */
	RULE_JOIN_COMMIT = 1 << 6, /* L1: a commit number counts only after JOIN in its tenure */
	RULE_WANT = 1 << 7,        /* C1: proposed promotions count */
	RULE_GRACE = 1 << 8,       /* T2: wait for fences or the grace time */
	RULE_RETRY = 1 << 9,       /* A1: a known request is not applied again */
	RULE_SKIP = 1 << 10,       /* Y1: no payload to pages that are not current */
	RULE_TOUCHED =
		1 << 11, /* Y2: a page written meanwhile is not made current by a comparison */
	RULE_UPTIME = 1 << 12,       /* T2: up for the grace time before serving */
	RULE_DROP_APPLIED = 1 << 13, /* C1: a dropped member leaves when the drop is applied */
	RULE_REPAIR = 1 << 14,       /* Q3: only want, and only who has everything, answers */
	RULE_KEEP = 1 << 15,         /* T3: a planned move drops nobody */
	RULE_FENCED = 1 << 16,       /* N5: FENCED says that the tenure has ended */
};
extern uint32_t replica_rules_off;
static inline bool rule(enum replica_rule x)
{
	return !(replica_rules_off & (uint32_t)x);
}
