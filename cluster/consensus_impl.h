/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of consensus: its state, and the two seams that tests replace: `consensus_env` (time,
 * randomness, the turn, the worker, the end of the process) and `raft_disk` (raft_log.h).
 *
 * Every call into libraft is made between consensus_enter and consensus_leave, from
 * consensus_settle or one of the three entry points below; libraft's request callbacks only note
 * what happened. */
#pragma once

#include <raft.h>

#include "cluster/consensus.h"
#include "cluster/consensus_guards.h"
#include "cluster/consensus_view.h"
#include "cluster/raft_log.h"
#include "node/base/bytes.h"
#include "node/base/list.h"

struct consensus_env {
	const struct consensus_env_ops *ops;
	struct consensus *c;
	/* Tests: other limits, so that a short history meets them. 0: the normal ones. */
	unsigned snapshot_threshold, snapshot_trailing;
	size_t append_max;
};
struct consensus_env_ops {
	uint64_t (*now_us)(struct consensus_env *e);                           /* monotonic */
	uint64_t (*random)(struct consensus_env *e, uint64_t lo, uint64_t hi); /* inclusive */
	void (*wake_in)(struct consensus_env *e,
			uint64_t delay_ms); /* one consensus_on_wake; re-arms */
	void (*turn)(struct consensus_env
			     *e); /* one consensus_on_turn, soon; called only when none is due */
	/* disk->ops->write on an ordered worker, then consensus_on_written. One at a time. */
	void (*write)(struct consensus_env *e, const struct raft_write *w, unsigned n);
	void (*fatal)(struct consensus_env *e,
		      const char *why); /* ends the process; in tests the node */
	void (*destroy)(struct consensus_env *e);
};

void consensus_on_wake(struct consensus *c);
void consensus_on_turn(struct consensus *c);
void consensus_on_written(struct consensus *c, int rc);

/* Takes env and disk over, also when it fails. */
int consensus_start_on(const struct consensus_config *cfg, struct consensus_env *env,
		       struct raft_disk *disk, struct consensus **out) MUST_USE;
/* Tests: the process is gone. Frees the memory, tells nobody, writes nothing. */
void consensus_abort(struct consensus *c);
struct consensus_env *consensus_env_create(struct loop *l, struct raft_disk *disk);

struct disk_job {
	struct list link;
	struct raft_write w;
	struct raft_disk_entry *entry;
	struct raft_io_append *append;
	raft_io_append_cb append_cb;
	struct raft_io_snapshot_put *put;
	raft_io_snapshot_put_cb put_cb;
	struct raft_configuration conf; /* of our own snapshot, for the view */
	unsigned trailing;
	uint64_t term; /* ours at submit */
	bool wipe;
};

/* A send that has ended: its callback is due in the next turn. Also a vote that waits (R5). */
struct send_job {
	struct list link;
	struct raft_io_send *req;
	raft_io_send_cb cb;
	struct raft_message message;
	int status;
};

struct get_job {
	struct list link;
	struct raft_io_snapshot_get *req;
	raft_io_snapshot_get_cb cb;
	struct raft_snapshot *snapshot;
};

struct incoming {
	struct list link;
	struct raft_message message;
	char address[8];
};

struct pending {
	struct raft_apply req;
	struct consensus *c;
	struct proposal *proposal;
	struct raft_buffer buf;
	int rc;
	struct list link;
};

enum member_kind { MEMBER_ADD_STANDBY, MEMBER_VOTER, MEMBER_STANDBY, MEMBER_REMOVE };
enum member_stage { MEMBER_IDLE, MEMBER_CHANGE, MEMBER_BARRIER, MEMBER_DONE };
struct member_op {
	enum member_kind kind;
	enum member_stage stage;
	uint16_t id;
	bool waiting; /* for libraft's callback */
	int rc;
	struct wait *wait;
	struct raft_change change;
	struct raft_barrier barrier;
};

struct consensus {
	struct raft raft;
	struct raft_io io;
	struct raft_fsm fsm;
	struct consensus_config cfg;
	struct consensus_env *env;
	struct raft_disk *disk;
	raft_io_tick_cb tick;
	raft_io_recv_cb recv;
	raft_io_close_cb closed;
	char address[8];
	size_t append_max;

	struct log_view view;
	struct raft_disk_snapshot snapshot; /* the newest on disk; what snapshot_get gives */
	uint64_t snapshot_not_before; /* one that was too large is not made again at each entry */
	struct list jobs, flight;     /* struct disk_job: queued; being written */
	struct raft_write *batch;
	unsigned batch_cap, writes, wipes; /* not yet called back; of them installations */

	struct list inbox, results; /* struct incoming: in order; held back by R1 */
	unsigned inbox_count, result_count;
	struct list votes, sent; /* struct send_job */
	struct list gets;        /* struct get_job */
	struct writer scratch;

	struct {
		bool on;
		uint64_t term, end;
	} echo; /* the AppendEntries being delivered (X1) */
	struct {
		bool on;
		uint64_t term, last;
	} late; /* the write being called back (X2) */

	uint64_t led_term; /* the term we lead and have put a barrier into; 0: none */
	bool barrier_done;
	struct raft_barrier barrier;
	struct list waiting, flying, done; /* struct pending */
	unsigned waiting_count, flying_count;
	struct command_result result; /* of the command being applied */
	struct member_op member;

	uint64_t resign_until_ms; /* by the clock that does not jump; 0: it does not resign */
	uint64_t jump_ms;     /* how far the clock shown to libraft is ahead */
	unsigned gone_rounds; /* elections that may still be hurried */
	uint64_t gone_mark;
	uint64_t wake_at_ms; /* when the wake-up is due; 0: not armed */
	uint64_t contact_us;
	struct raft_server *as_voter; /* X11: during one delivery */
	int own_role;
	struct {
		int state;
		bool resigns;
		uint64_t leader, term;
		unsigned members, voters;
	} seen; /* by changed() */

	bool inside;   /* libraft is on the stack */
	bool settling; /* consensus_settle is on the stack */
	bool turn_due, dead, stopping, closing;
	const char *failed; /* why the process must end, noted in a callback */
	void (*stopped)(void *ctx);
};

/* consensus_io.c */
void consensus_io_init(struct consensus *c);
void consensus_enter(struct consensus *c);
void consensus_leave(struct consensus *c);
void consensus_turn(struct consensus *c); /* asks for a turn */
void consensus_fatal(struct consensus *c, const char *why);
void consensus_disk_kick(struct consensus *c);
void consensus_votes_release(struct consensus *c);
void consensus_fire_sent(struct consensus *c);
void consensus_finish_close(struct consensus *c);
uint64_t consensus_now_ms(struct consensus *c); /* as shown to libraft */

/* consensus_fsm.c */
void consensus_fsm_init(struct consensus *c);

/* consensus_clock.c */
bool consensus_is_voter(const struct consensus *c); /* by its own log */
bool consensus_resigning(struct consensus *c);
void consensus_resign_step(struct consensus *c); /* looks whether it has resigned long enough */
void consensus_wake(struct consensus *c);	  /* sets the wake-up */
void consensus_hurry(struct consensus *c);	  /* a candidate that was refused stands again soon */

/* consensus.c */
void consensus_settle(struct consensus *c);
void consensus_after_call(
	struct consensus *c); /* after each call into libraft: checks, role, barrier */

/* consensus_propose.c */
void consensus_pump(struct consensus *c);
void consensus_fail_waiting(struct consensus *c, int rc);
void consensus_complete(struct consensus *c); /* resumes what ended */
void consensus_member_run(struct consensus *c);
