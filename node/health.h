/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong, why, since when, what one more failure would do, and what to type: a pure function of
 * facts that somebody else gathered. No I/O, no clock. Codes are stable: scripts match on them. */
#pragma once

#include "cluster/map.h"

enum health_severity { HEALTH_OK, HEALTH_INFO, HEALTH_WARNING, HEALTH_ERROR };
const char *health_severity_name(enum health_severity s); /* "ok", "info", "warning", "error" */

#define HEALTH_ITEMS_MAX 40u
#define HEALTH_AFFECTED_MAX 8u

struct health_node {
	uint16_t id;
	bool up;		 /* this node, or a peer that somebody hears */
	bool data_only;		 /* not on a control connection from here: it is no voter in reach */
	bool answers;		 /* just now, when it was asked: it is not frozen */
	bool settling;		 /* it is back or new, and may not have all its connections yet */
	bool cert_known;
	bool ca_key_known, ca_key; /* it has the CA's private key */
	int64_t cert_expires_s;	 /* negative: ended */
	int64_t skew_ms;	 /* its wall clock less ours; 0 while unknown */
	bool crashed;		 /* its last end was no clean stop */
	uint64_t up_s;
	unsigned missing_devices;
	char missing_device[160]; /* the first */
	/* blocks that no replica in reach can produce, that wait for repair, that were repaired; pages whose
	 * copies differ though both are sound */
	uint64_t lost_blocks, damaged_blocks, repaired_blocks, diverged_pages;
	uint64_t undecided; /* objects that wait for an operator (replica.h) */
};

struct health_group {
	uint16_t id;
	bool known; /* facts of its node are there; else only the map speaks */
	bool open;
	int failed;
	bool log_lost;	     /* closed: its write log is lost */
	/* It failed at work: it is opened again by itself; that was tried in vain; no more. */
	bool reopening, reopen_failed, gave_up;
	bool map_damaged; /* it serves all the same, for what is in sync nowhere else */
	uint64_t lost_bytes; /* what stood on devices that are lost */
	uint64_t damaged_bytes; /* what cannot be produced until it is repaired; without lost_bytes */
	uint64_t bad_blocks, bad_last_s; /* met since it was opened; when last, s since 1970 */
	char bad_device[160];		 /* the one with the most */
	bool scrub_stopped;
	uint64_t scrub_finished_s, scrub_started_s; /* 0: never */
	uint64_t data_bytes, used_bytes; /* data: what may be used before writes get ENOSPC */
	uint64_t hint_bytes, hint_budget_bytes, hint_evictions; /* dedup */
	uint64_t bypassed_blocks;                               /* stored unreduced under load */
	bool reduce_pending;                                    /* and not looked at again yet */
};

/* What deleting a volume gives back; of those that give most. */
struct health_reclaim {
	const char *name;
	uint64_t bytes;
	bool exact;
};

/* A job that takes all replicas off a disk group, or a node (group 0), and still has some to move. */
struct health_emptying {
	uint32_t job;
	uint16_t node, group;
};
#define HEALTH_EMPTYING_MAX 8u

/* What is done about missing copies, and jobs; counts are objects. NULL in the input: unknown. */
struct health_rebuild {
	uint32_t filling, waiting, queued, held, blocked;
	bool no_leader;		/* none is known here: nothing is placed, and nothing gets in-sync */
	uint64_t seconds_left;	/* 0: cannot be told */
	uint32_t delay_s;	/* before a node that is away is given up */
	char why[256];		/* of what is blocked */
	unsigned stuck_count;	/* jobs that do not move */
	uint32_t stuck_job;	/* the first */
	char stuck[64];		/* what it is */
	uint64_t stuck_s;
	struct health_emptying emptying[HEALTH_EMPTYING_MAX];
	unsigned emptying_count;
};

/* What a node says of its own connections to another, both of them up. */
struct health_link {
	uint16_t from, to;
	bool control, data; /* they are up, and data is heard on all of them */
	bool heard;	    /* something came in the last second: whatever does not work, `to` lives */
};
#define HEALTH_LINKS_MAX 4096u
#define HEALTH_DEVICE_OPS 3u /* read, write, flush */
struct health_device { /* of a disk group whose node answers */
	uint16_t group;
	bool cache;
	enum { HEALTH_DEVICE_OK, HEALTH_DEVICE_FAILED, HEALTH_DEVICE_MISSING } state;
	char path[160]; /* or its uuid */
	/* In the last minute: operations, and how long they took. */
	uint64_t count[HEALTH_DEVICE_OPS], mean_us[HEALTH_DEVICE_OPS], p99_us[HEALTH_DEVICE_OPS];
};

struct health_input {
	const struct map *map;
	uint16_t self;
	uint64_t now_ms;
	bool leader_known;
	unsigned voter_count;
	uint16_t voters[16];
	unsigned voters_wanted; /* of the nodes that are up */
	uint16_t voter_taker;	/* who would take a lost voter's vote; 0: nobody */
	uint32_t voter_delay_s;
	const struct health_node *nodes;
	unsigned node_count;
	const struct health_group *groups;
	unsigned group_count;
	const struct health_rebuild *rebuild;
	uint64_t scrub_interval_s; /* 0: only when asked for */
	struct health_reclaim reclaim[3]; /* largest first; name NULL: no more */
	const struct health_link *links;
	unsigned link_count;
	const struct health_device *devices;
	unsigned device_count;
};

struct health_item {
	char code[32];
	enum health_severity severity;
	unsigned count; /* of things affected */
	char summary[200];
	char affected[HEALTH_AFFECTED_MAX][NAME_MAX_LEN + 1]; /* the first few, by name */
	unsigned affected_count;
	char caused_by[32]; /* "" for a root cause, else the code of another item */
	char risk[240];	    /* what one more failure would do */
	char command[200];  /* what to type */
	uint64_t since_ms;  /* filled by health_remember */
};

struct health_report {
	enum health_severity overall;
	unsigned count;
	struct health_item item[HEALTH_ITEMS_MAX]; /* worst root first, then its consequences */
	/* objects by how many in-sync replicas can be reached now */
	uint64_t objects, full, degraded, single, unavailable;
	/* of all of these: with such a replica in a disk group that lacks something, which it may be of */
	uint64_t unrepaired;
	uint64_t undecided; /* of all of these: that serve nothing before an operator decides */
};

void health_evaluate(const struct health_input *in, struct health_report *out);
/* What g lacks until it was fetched again, in bytes: any of its in-sync replicas may lack it. 0: nothing, or
 * unknown. */
uint64_t health_group_lacks(const struct health_group *g);
/* Until when copies are missing, or why nothing is done about it. False: nothing is missing. */
bool health_rebuild_text(const struct health_rebuild *r, char out[128]);

/* Since when each code has been active, from one report to the next, by the wall clock as it goes now: when
 * somebody sets it, what is remembered moves along. */
struct health_memory {
	uint64_t now_ms, mono_ms; /* of the last report */
	unsigned count;
	struct {
		char code[32];
		uint64_t since_ms;
	} seen[HEALTH_ITEMS_MAX];
};
void health_remember(struct health_memory *m, struct health_report *r, uint64_t now_ms, uint64_t mono_ms);

/* Free space of a disk group in steps of 5 %, as the cluster is told it; `now`: as it was told last. */
uint8_t health_free_steps(uint64_t used_bytes, uint64_t free_bytes, uint8_t now);
