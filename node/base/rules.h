/* SPDX-License-Identifier: Apache-2.0 */
/* Planted faults: the simulators leave out one rule of the protocol at a time, to see that they notice.
 * Only objects built with ASHLAR_RULES, in tests, can; in a product rule() is the constant true. */
#pragma once

#include <stdbool.h>

enum rule {
	RULE_NONE,
	/* nodes, sessions, leases */
	RULE_RAISE,	    /* N1: a start raises the incarnation */
	RULE_LEASE_SHORT,   /* N3: a lease ends before the grantor stops counting it */
	RULE_LEASE_JOINED,  /* N4: a lease counts only where the member is joined */
	RULE_FENCE,	    /* N5: no grants while a fence is owed */
	RULE_FENCED,	    /* N5: FENCED says that the tenure has ended */
	RULE_CLOCK,	    /* N6: leases are checked by a clock read now */
	RULE_CONFIRM,	    /* N6: where a clock may stop, reads are confirmed */
	RULE_CONFIRM_ALL,   /* N6: by all of want */
	/* configuration */
	RULE_WANT,	    /* C1: proposed promotions count */
	RULE_DROP_APPLIED,  /* C1: a dropped member leaves when the drop is applied */
	RULE_OWN_TENURE,    /* C2: a restarted primary first takes over from itself */
	/* writes and reads */
	RULE_ACK_DURABLE,   /* W3: an ACK means durable */
	RULE_ACK_ALL,	    /* W4: commit needs all of want */
	RULE_MERGE_ALONE,   /* Q1: a sub-block write is alone in its range */
	RULE_READ_LEASE,    /* Q2: lease checked with the data in hand */
	RULE_REPAIR,	    /* Q3: only want, and only who has everything, answers */
	/* takeover */
	RULE_SUSPECT,	    /* S1: silence makes a member propose its takeover */
	RULE_CUT,	    /* T1: a member cuts its foreign tail */
	RULE_STALE,	    /* T1: who has seen a later tenure says so */
	RULE_TAKE_ALL,	    /* T2 a: all of want hold the whole log before it serves */
	RULE_GRACE,	    /* T2 b: wait for fences or the grace time */
	RULE_UPTIME,	    /* T2 c: up for the grace time before serving */
	RULE_KEEP,	    /* T3: a planned move drops nobody */
	RULE_ONLY_IN,	    /* T4: only `in` members take over */
	/* return */
	RULE_SKIP,	    /* Y1: no payload to pages that are not current */
	RULE_TOUCHED,	    /* Y2: a page written meanwhile is not made current by a comparison */
	RULE_DIFFERS,	    /* Y2: pages whose version differs are copied, not only lower ones */
	RULE_COPY_ORDER,    /* Y3: a copy waits for the writes ahead of it */
	RULE_PROMOTE,	    /* Y6: promotion only after all pages are current */
	/* clients */
	RULE_RETRY,	    /* A1: a known request is not applied again */
	RULE_LOW_WATER,	    /* A1: below the low-water nothing is applied */
	RULE_REVOKED,	    /* A2: a revoked attachment writes nothing */
	/* log, destage, devices */
	RULE_JOIN_COMMIT,   /* L1: a commit number counts only after JOIN in its tenure */
	RULE_COMMITTED,	    /* L1, I13: only committed records reach index and destage */
	RULE_HEADERS_SAVED, /* L2: headers are in the map before their segment goes */
	RULE_TORN_TAIL,	    /* L3: the payload of the last batches is verified */
	/* the store */
	RULE_VERIFY,	    /* I1: a block counts only if it has its fingerprint */
	RULE_PAGE_WHOLE,    /* I2: a page is destaged with all its records */
	RULE_EPOCHS_HOLD,   /* I4: a record counts only if the table gives its tenure */
	RULE_LANE_ORDER,    /* I6: a batch counts when all before it do */
	RULE_GIVE_BACK,	    /* I8: a changed entry's space is given back */
	RULE_SHARE_REFS,    /* I9: a reference that goes is counted */
	RULES
};

extern enum rule rule_left_out; /* tests/lib/rules.c */

#ifdef ASHLAR_RULES
static inline bool rule(enum rule r)
{
	return rule_left_out != r;
}
#else
static inline bool rule(enum rule r)
{
	return true;
}
#endif
