/* SPDX-License-Identifier: Apache-2.0 */
/* Planted faults: the simulators leave out one rule of the protocol at a time, to see that they notice.
 * Only objects built with ASHLAR_RULES, in tests, can; in a product rule() is the constant true. */
#pragma once

#include <stdbool.h>

enum rule {
	RULE_NONE,
	/* nodes, sessions, leases */
	RULE_RAISE,          /* N1: a start raises the incarnation */
	RULE_JOIN_NUMBER,    /* N2: what belongs to an earlier join does not count */
	RULE_LEASE_SHORT,    /* N3: a lease ends before the grantor stops counting it */
	RULE_LEASE_JOINED,   /* N4: a lease counts only where the member is joined */
	RULE_FENCE,          /* N5: no grants while a fence is owed */
	RULE_FENCED,         /* N5: FENCED says that the tenure has ended */
	RULE_CLOCK,          /* N6: leases are checked by a clock read now */
	RULE_CONFIRM,        /* N6: where a clock may stop, reads are confirmed */
	RULE_CONFIRM_ALL,    /* N6: by all of want */
	/* configuration */
	RULE_WANT,           /* C1: proposed promotions count */
	RULE_DROP_APPLIED,   /* C1: a dropped member leaves when the drop is applied */
	RULE_OWN_TENURE,     /* C2: a restarted primary first takes over from itself */
	RULE_EPOCH,          /* a change is made on the epoch that it was proposed on */
	RULE_CURRENT,        /* commands of incarnations that are not current are refused */
	/* writes and reads */
	RULE_MIN_IN_SYNC,    /* W1: writes need the policy's in-sync copies */
	RULE_REQUEST_TENURE, /* W1: a request of an earlier tenure is refused */
	RULE_WRITE_LEASE,    /* W1: nothing is logged without leases */
	RULE_CREDIT,         /* W1, L4: nothing is logged without credit of all of want */
	RULE_NO_GAP,         /* W2: the next version */
	RULE_RESEND,         /* W2: a member that joins gets what it lacks */
	RULE_IN_ORDER,       /* W3: a member takes the next record only */
	RULE_ACK_DURABLE,    /* W3: an ACK means durable */
	RULE_ACK_ALL,        /* W4: commit needs all of want */
	RULE_LOGGED,         /* W5: what was logged is not answered with an error */
	RULE_SLOW_LOG,       /* W5: a primary that cannot log gives up its place */
	RULE_RANGE,          /* Q1: reads and writes of a range wait for each other */
	RULE_MERGE_ALONE,    /* Q1: a sub-block write is alone in its range */
	RULE_READ_LEASE,     /* Q2: lease checked with the data in hand */
	RULE_REPAIR,         /* Q3: only want, and only who has everything, answers */
	/* takeover */
	RULE_SUSPECT,        /* S1: silence makes a member propose its takeover */
	RULE_JUMP,           /* S2: voters do not wait when the leader is known to be gone */
	RULE_CUT,            /* T1: a member cuts its foreign tail */
	RULE_STALE,          /* T1: who has seen a later tenure says so */
	RULE_SEEN,           /* T1: JOINED only once `seen` and the table are durable */
	RULE_TAKE_ALL,       /* T2 a: all of want hold the whole log before it serves */
	RULE_GRACE,          /* T2 b: wait for fences or the grace time */
	RULE_UPTIME,         /* T2 c: up for the grace time before serving */
	RULE_KEEP,           /* T3: a planned move drops nobody */
	RULE_ONLY_IN,        /* T4: only `in` members take over */
	RULE_LOST,           /* T5: a member that lost what it acknowledged is dropped */
	/* return */
	RULE_SKIP,           /* Y1: no payload to pages that are not current */
	RULE_TOUCHED,        /* Y2: a page written meanwhile is not made current by a comparison */
	RULE_DIFFERS,        /* Y2: pages whose version differs are copied, not only lower ones */
	RULE_UNCOMMITTED,    /* Y2: at the source uncommitted records count */
	RULE_COPY_ORDER,     /* Y3: a copy waits for the writes ahead of it */
	RULE_REPLAY,         /* Y4: replay applies what is newer than the page */
	RULE_SKIPPED,        /* Y4: the version of a skipped page stays */
	RULE_NO_CREDIT,      /* Y5: a page skipped for want of credit is not current */
	RULE_PROMOTE,        /* Y6: promotion only after all pages are current */
	/* clients */
	RULE_RETRY,          /* A1: a known request is not applied again */
	RULE_LOW_WATER,      /* A1: below the low-water nothing is applied */
	RULE_REVOKED,        /* A2: a revoked attachment writes nothing */
	RULE_PURGE,          /* A3: a map older than the replica purges nothing */
	/* log, destage, devices */
	RULE_JOIN_COMMIT,    /* L1: a commit number counts only after JOIN in its tenure */
	RULE_COMMITTED,      /* L1, I13: only committed records reach index and destage */
	RULE_HEADERS_SAVED,  /* L2: headers are in the map before their segment goes */
	RULE_NAMED,          /* L2: a segment is free when a durable batch names it released */
	RULE_TORN_TAIL,      /* L3: the payload of the last batches is verified */
	RULE_RESERVE,        /* L4: trims and headers have a reserve */
	RULE_REGROUP,        /* L5: a group that lost its map is another one */
	RULE_SOUND,          /* L6: two sound copies that differ are not written */
	/* the store */
	RULE_VERIFY,         /* I1: a block counts only if it has its fingerprint */
	RULE_PAGE_WHOLE,     /* I2: a page is destaged with all its records */
	RULE_DESTAGED,       /* I3: destaged is what the map has */
	RULE_EPOCHS_HOLD,    /* I4: a record counts only if the table gives its tenure */
	RULE_LANES_EMPTY,    /* I5: earlier lanes are emptied first */
	RULE_LANE_ORDER,     /* I6: a batch counts when all before it do */
	RULE_GENERATION,     /* I7: records of another replica generation are dropped */
	RULE_GIVE_BACK,      /* I8: a changed entry's space is given back */
	RULE_SHARE_REFS,     /* I9: a reference that goes is counted */
	RULE_READERS,        /* I10: a segment is reused after the reads begun before */
	RULE_LOG_READERS,    /* I10: and so is one of the log */
	RULE_REGION,         /* I11: a page that should be there is damage, not zeros */
	RULE_BAD_STAYS,      /* I11: a block that cannot be produced is damaged */
	RULE_MOVE_CHECK,     /* I12: what is moved is verified */
	RULE_DESTAGE_CHECK,  /* I12: what is destaged is verified */
	RULE_KV_COMMIT,      /* a map database that lost commits is lost */
	RULE_DATA_FIRST,     /* P15: blocks are durable before the map names them */
	RULE_FOLD,           /* I15: the fold is that of the page versions */
	RULE_HOLES,          /* I15: holes travel, too */
	RULE_MERGED_FP,      /* I16: a merged block gets a fingerprint of its own */
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
