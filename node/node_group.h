/* SPDX-License-Identifier: Apache-2.0 */
/* One disk group of this node. For node_groups.c and node_replace.c only; on the control loop, but
 * for what a worker does between group_job_start and its end, while `busy` is set. */
#pragma once

#include "node/node.h"
#include "node/slow.h"

#define MISSING_GRACE_US 5000000u /* a device that is not there at the start may be on its way */
#define REOPEN_TRIES     3u       /* within an hour */

/* events.c: an event through Raft, waited for until the map here is at least as new as it. */
struct node_barrier {
	struct node *node;
	struct control_propose propose;
	struct wait proposed, *owner;
	struct timer timer;
	uint64_t until_us;
};
/* actor NULL: this node. Resumes with 0, a refusal, -ERR_NO_LEADER or -ETIMEDOUT. */
int node_barrier(struct node *n, struct node_barrier *b, uint8_t severity, const char *actor,
		 const char *code, const char *text, struct wait *w) MUST_USE;

/* node_reopen.c */
enum reopen_stage { REOPEN_NONE, REOPEN_RESIGN, REOPEN_CLOSE, REOPEN_PAUSE, REOPEN_OPEN };
struct reopen {
	enum reopen_stage stage;
	bool planned;		 /* this one is no failure, and not counted */
	bool failed;		 /* an opening did, since the group failed */
	bool gave_up;		 /* it stays closed until somebody sees to it */
	bool waited;		 /* in this try, for a device that is not there */
	struct node *node;
	struct timer timer;
	struct wait wait;
	uint64_t led_us, due_us; /* of RESIGN; of PAUSE, mono */
	uint64_t tried_us[REOPEN_TRIES];
};

struct node_group {
	struct list link;
	uint16_t number; /* 0: none of its devices could be read yet, or it is half made */
	struct uuid uuid;
	struct diskgroup_set set; /* a worker's while busy */
	struct store *store; /* NULL while not open */
	bool started, added;
	bool busy;      /* it is being opened or closed, or a device is being replaced */
	bool kept;      /* its last reset kept the map */
	bool anew;      /* reset by this process, and not open since */
	bool check_map; /* it failed at work, and not for its log: all of the map is read at opening */
	bool as_is;     /* its map is damaged, and serves for what is in sync nowhere else */
	bool tried_as_is; /* in vain, since it failed */
	bool may_reset; /* every object that is in sync here is so elsewhere, by the map as applied
			 */
	int lost; /* -ERR_LOG_LOST, -ERR_MAP_LOST: what it must be reset for, once that may be */
	uint64_t waiting_us; /* mono: since when it waits for a device, 0: it does not */
	int failed;
	int failed_busy; /* it failed while it was busy: what with */
	unsigned users;  /* workers that have its store, as of the control loop */
	char why[224];
	struct slow_window slow;
	struct store_device was[GROUP_DEVICES_MAX]; /* closed: its devices when it was */
	unsigned was_count;
	struct reopen reopen;
	struct node_barrier anew_barrier;
	struct wait anew_wait;
	/* regrouping: the store has a newer incarnation than the map */
	struct control_propose propose;
	struct wait propose_wait;
	bool proposing;
};

struct node_group *node_group_by_number(struct node *n, uint16_t number);
void node_store_config(const struct node *n, const struct diskgroup_set *set,
		       struct store_config *out);
/* Objects whose only in-sync replica is in this group, by the map as applied here. */
unsigned node_group_last_copies(const struct node *n, uint16_t group);
/* On a worker. Opens what is not open, and starts it; resets a group that lost its log or map if it
 * may. */
int node_group_open_blocking(struct node *n, struct node_group *g, struct loop **loops) MUST_USE;
/* After that, on the control loop. */
void node_group_opened(struct node *n, struct node_group *g, int rc);
/* Every shard gives the group up; resumes when all have. */
int node_group_leave_shards(struct node *n, struct node_group *g, struct wait *w) MUST_USE;
void node_group_tell_failed(struct node *n, struct node_group *g, int code); /* to every shard */
/* After a failure: looks at its devices and opens it, as at the start; node_group_opened follows. */
void node_group_open_again(struct node *n, struct node_group *g);

/* node_group_close.c: `busy` is set; resumes with 0 when the store is gone, or is 0 at once. */
int node_group_close(struct node *n, struct node_group *g, struct wait *w) MUST_USE;

/* node_reopen.c */
bool node_group_reopening(const struct node_group *g);
uint32_t node_group_reopens_in_s(const struct node *n, const struct node_group *g); /* 0: now, or never */
void node_group_reopen_failed(struct node *n, struct node_group *g, int rc);        /* this try did */
void node_group_reopened(struct node *n, struct node_group *g);
void node_group_no_more_as_is(struct node *n, struct node_group *g); /* it begins anew */
void node_group_not_opened(struct node *n, struct node_group *g); /* at the start */
void node_group_reopen_forget(struct node_group *g); /* somebody saw to it: earlier tries do not count */

struct loop **node_loops(const struct node *n); /* malloc'ed */
void node_groups_again(struct node *n);         /* something may be tried again now */
