/* SPDX-License-Identifier: Apache-2.0 */
/* The guards around libraft 0.15.0, one bit and one function each. Debian's binary has no asserts
 * and keeps defects that upstream fixed later or never; each guard keeps us clear of one of them.
 * What each prevents is said at its function (consensus_guards.c). The loop's thread only.
 *
 * A test may switch a guard off to show what happens without it. Nothing else may. */
#pragma once

#include <raft.h>
#include <stdbool.h>
#include <stdint.h>

struct consensus;

enum consensus_guard {
	GUARD_R1_BARRIER = 1u << 0, /* a new leader appends a barrier at once */
	GUARD_R1_HOLD = 1u << 1,    /* ... and counts no replica before it is durable */
	GUARD_R2 = 1u << 2,         /* RAFT_UNAVAILABLE: exit */
	GUARD_R3 = 1u << 3,         /* a write that fails is never reported: exit (also R4) */
	GUARD_R5 = 1u << 4,         /* asks for votes only with a durable log */
	GUARD_R6 = 1u << 5,         /* no leadership transfer, not even if a peer asks for it */
	GUARD_R8 = 1u << 6,         /* bounded window of proposals */
	GUARD_R12 = 1u << 7,        /* a snapshot fits in one message */
	GUARD_X1 = 1u << 8,         /* an echo is never above what the message said */
	GUARD_X2 = 1u << 9,         /* a late result never counts for a later term */
	GUARD_X3 = 1u << 10,        /* committed entries are stripped from a late message */
	GUARD_X4 = 1u << 11,        /* no truncation while writes are under way */
	GUARD_X5 = 1u << 12,        /* no candidacy while writes are under way */
	GUARD_X6 = 1u << 13,        /* nothing happens during a snapshot's installation */
	GUARD_X7A = 1u << 14,       /* no snapshot of an uncommitted configuration (R7) */
	GUARD_X7B = 1u << 15,       /* ... nor of one that only looks committed after a restart */
	GUARD_X8A = 1u << 16,       /* a rollback needs the old configuration in the log */
	GUARD_X8B = 1u << 17,       /* the configuration in use is the log's newest */
	GUARD_X9 = 1u << 18,        /* loaded entries have memory of their own */
	GUARD_X10 = 1u << 19,       /* a refused pre-vote tells the higher term */
	GUARD_CUT = 1u << 20,       /* a message that was cut short does not commit what it lost */
	GUARD_CLOSE = 1u << 21,     /* at close pending appends end with 0 */
	GUARD_X11 = 1u << 22,       /* who does not know yet that it is a voter votes */
	GUARD_X12 = 1u << 23,       /* who loses its vote hears of it when that is committed */
};

/* Tests only: a set bit switches that guard off. */
extern uint32_t consensus_guards_off;

static inline bool guard_on(enum consensus_guard g)
{
	return !(consensus_guards_off & (uint32_t)g);
}

/* What we send. */
void guard_x1_clamp_echo(const struct consensus *c, struct raft_append_entries_result *result);
/* True: do not send it. */
bool guard_x2_result_is_late(const struct consensus *c, struct raft_append_entries_result *result);
/* Takes entries off its end. */
void guard_x12_hold_back(const struct consensus *c, uint64_t to, struct raft_append_entries *a);
void guard_x10_tell_term(const struct consensus *c, struct raft_request_vote_result *result);
bool guard_r5_vote_waits(const struct consensus *c);
bool guard_r5_vote_is_stale(const struct consensus *c, const struct raft_request_vote *vote);

/* What we deliver. */
bool guard_r1_results_wait(const struct consensus *c);
bool guard_r6_drops(const struct raft_message *m);
/* True: drop the message. May strip entries of it. */
bool guard_x3_strip_committed(const struct consensus *c, struct raft_message *m);
bool guard_x4_waits(const struct consensus *c, const struct raft_message *m);
bool guard_x6_waits(const struct consensus *c);
bool guard_x5_no_tick(const struct consensus *c);
/* Around the delivery of a message. */
void guard_x11_enter(struct consensus *c, const struct raft_message *m);
void guard_x11_leave(struct consensus *c);

/* What the state machine answers. */
bool guard_x7_snapshot_busy(const struct consensus *c);
bool guard_r12_snapshot_fits(const struct consensus *c, size_t bytes);

/* Why this process must end and start again from its disk; NULL: it need not. */
const char *guard_r2_unavailable(const struct consensus *c);
const char *guard_x8a_rollback(const struct consensus *c, const struct raft_message *m);
const char *guard_x8b_configuration(const struct consensus *c);
