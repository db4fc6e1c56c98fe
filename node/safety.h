/* SPDX-License-Identifier: Apache-2.0 */
/* What would happen if these nodes stopped for a while, or these nodes and disk groups were lost for
 * good: a pure function of the map and of the facts that health has. No I/O, no clock. The answer to
 * `ashlar can-stop` and `can-lose`, and the gate of maintenance and of rolling upgrades. */
#pragma once

#include "node/health.h"

#define SAFETY_VOLUMES_MAX 16u

enum safety_verdict {
	SAFETY_OK = 0,
	/* data would be unavailable, stop taking writes, be lost, or stay with fewer copies */
	SAFETY_DATA = 1,
	SAFETY_QUORUM = 2, /* Raft would have no majority: no failover, attach or new volume */
};

struct safety_input {
	const struct health_input *health; /* map, who is up, groups, voters, now */
	const uint16_t *nodes;		   /* what goes */
	unsigned node_count;
	const uint16_t *groups;
	unsigned group_count;
	bool for_good;		/* can-lose: it does not come back; can-stop: it does */
	uint64_t copy_bytes_s;	/* how fast lost copies are made anew, all nodes together */
};

struct safety_report {
	enum safety_verdict verdict;
	char why[320]; /* a sentence */
	/* Objects by what would be left, each counted in one line only; in-sync replicas in reach. */
	uint64_t objects;     /* with a replica on what goes */
	uint64_t lost;	      /* for good: no in-sync replica anywhere else */
	uint64_t unavailable; /* none in reach, though it has one now */
	uint64_t below_min;   /* fewer than their policy's min in-sync: writes stop */
	uint64_t single;      /* one */
	uint64_t degraded;    /* fewer than their copies */
	uint64_t unavailable_now; /* of all objects, whatever goes */
	/* For good, beside the above: with a replica in quarantine on what goes, and maybe nowhere else what
	 * it has. */
	uint64_t quarantined;
	/* Of lost, or unavailable: those with another in-sync replica, but in a disk group with damage that
	 * is not repaired yet. It does not count: what it lacks may be in what goes only. */
	uint64_t unrepaired;
	uint16_t unrepaired_group; /* one of these */
	char unrepaired_why[320]; /* a sentence, if there are any; `why` may be about others */
	char volume[SAFETY_VOLUMES_MAX][NAME_MAX_LEN + 1]; /* of lost, unavailable and below_min */
	unsigned volumes, volumes_named;
	unsigned voters, voters_left, voters_needed;
	/* For good: copies to be made anew. */
	uint64_t copy_bytes, copy_s;
	bool bytes_known; /* of all the groups that go, and of all that stay */
	uint64_t free_after; /* on the groups that stay, once the copies are there; 0: not enough */
	bool space_enough;
	bool places_enough; /* fault sets for the copies of every volume it touches */
};

void safety_evaluate(const struct safety_input *in, struct safety_report *out);
