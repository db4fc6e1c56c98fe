/* SPDX-License-Identifier: Apache-2.0 */
/* One guard at a time: the exact sequence of messages and writes that needs it, with the guard and
 * without. Those whose lack ends in a crash of libraft run in a child. test_consensus_need.c shows
 * the guards that whole histories need. */
#include <sys/wait.h>
#include <unistd.h>

#include "cluster/consensus_message.h"
#include "node/base/log.h"
#include "tests/consensus/bench.h"

static struct bench bench;

/* The test's body with the guard, then without. */
#define BOTH(mask)                                                                                 \
	for (int off = 0; off < 2; off++, consensus_guards_off = 0)                                \
		if ((consensus_guards_off = off ? (mask) : 0) || true)

/* True: fn ended in a signal or a sanitizer's report. */
static bool crashes(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		close(2);
		fn();
		_exit(0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid);
	return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* fn passes with the guard, and crashes without. */
static void needs(unsigned mask, void (*fn)(void))
{
	fn();
	consensus_guards_off = mask;
	EXPECT(crashes(fn));
	consensus_guards_off = 0;
}

/* Twelve entries of term 2 on the disk; snapshots come after four, and leave four. Not started. */
static void init_twelve(struct bench *b)
{
	bench_init(b, 2);
	b->env.snapshot_threshold = b->env.snapshot_trailing = 4;
	for (unsigned i = 2; i <= 12; i++)
		bench_entry(b, 2, RAFT_COMMAND);
}

TEST(guard, r1_new_leader_appends_a_barrier)
{
	struct bench *b = &bench;

	BOTH(GUARD_R1_BARRIER)
	{
		bench_init(b, 2);
		bench_entry(b, 2, RAFT_COMMAND);
		bench_boot(b);
		bench_elect(b);
		EXPECT_EQ(view_last(&b->c->view), off ? 2 : 3);
		if (!off)
			EXPECT(b->c->view.entry[2].type == RAFT_BARRIER &&
			       b->c->view.entry[2].term == 3);
		bench_fini(b);
	}
}

/* Figure 8 of the paper: entry 2 of term 2 is on a majority, but not committed; a node with an
 * entry of a later term could still be elected without it. */
TEST(guard, r1_replicas_of_old_terms_do_not_commit)
{
	struct bench *b = &bench;

	BOTH(GUARD_R1_HOLD)
	{
		bench_init(b, 3);
		bench_entry(b, 2, RAFT_COMMAND);
		bench_boot(b);
		bench_elect(b);
		bench_result(b, 2, 4, 2); /* the barrier is not on our disk yet */
		EXPECT_EQ(b->c->raft.commit_index, off ? 2 : 1);
		bench_written(b, 0);
		EXPECT_EQ(b->c->raft.commit_index, off ? 2 : 1);
		bench_result(b, 2, 4, 3);
		EXPECT_EQ(b->c->raft.commit_index, 3);
		EXPECT(b->c->barrier_done);
		bench_fini(b);
	}
}

TEST(guard, r1_higher_terms_are_not_held)
{
	struct bench *b = &bench;

	bench_init(b, 3);
	bench_boot(b);
	bench_elect(b);
	bench_result(b, 2, 9, 1);
	EXPECT_EQ(b->c->raft.state, RAFT_FOLLOWER);
	EXPECT_EQ(b->c->raft.current_term, 9);
	bench_fini(b);
}

/* A conflict below the commit index makes libraft give up. */
TEST(guard, r2_unavailable_ends_the_process)
{
	struct bench *b = &bench;

	BOTH(GUARD_R2)
	{
		bench_init(b, 3);
		bench_entry(b, 2, RAFT_COMMAND);
		bench_boot(b);
		bench_append(b, 2, 3, 2, 2, 2, 0, 0, 0);
		EXPECT_EQ(b->c->raft.commit_index, 2);
		bench_append(b, 2, 3, 2, 3, 2, 0, 0, 0); /* the same index, another term */
		EXPECT_EQ(b->c->raft.state, RAFT_UNAVAILABLE);
		EXPECT((b->fatal == NULL) == (bool)off); /* without: a zombie */
		bench_fini(b);
	}
}

/* A leader's failed write is truncated in its memory though a follower may have it: another entry
 * then gets the same index and term. */
TEST(guard, r3_failed_write_ends_the_process)
{
	struct bench *b = &bench;

	BOTH(GUARD_R3)
	{
		bench_init(b, 3);
		bench_boot(b);
		bench_elect(b); /* sends the barrier, entry 2 of term 4, at once */
		bench_written(b, -EIO);
		EXPECT((b->fatal == NULL) == (bool)off);
		if (off) /* the follower has 2 of term 4, and we are about to make another */
			EXPECT(b->c->raft.state == RAFT_LEADER &&
			       raft_last_index(&b->c->raft) == 1);
		bench_fini(b);
	}
}

/* Behind X5, which alone suffices today: so without X5 in both cases. */
TEST(guard, r5_asks_for_votes_with_a_durable_log)
{
	struct bench *b = &bench;

	BOTH(GUARD_R5)
	{
		consensus_guards_off |= GUARD_X5 | GUARD_X8B;
		bench_init(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 1, 2, 0);
		EXPECT(b->write != NULL);
		bench_advance(b, 501);
		EXPECT_EQ(b->c->raft.state, RAFT_CANDIDATE);
		EXPECT((bench_last(b, RAFT_IO_REQUEST_VOTE) == NULL) ==
		       !off); /* without: claims entry 2 */
		bench_written(b, 0);
		EXPECT(bench_last(b, RAFT_IO_REQUEST_VOTE) != NULL);
		bench_fini(b);
	}
}

TEST(guard, r5_late_votes_are_dropped)
{
	struct bench *b = &bench;

	consensus_guards_off = GUARD_X5 | GUARD_X8B;
	bench_init(b, 2);
	bench_boot(b);
	bench_append(b, 2, 2, 1, 1, 1, 1, 2, 0);
	bench_advance(b, 501);
	bench_append(b, 3, 7, 1, 1, 1, 0, 0, 0); /* a leader of a later term */
	bench_settle(b);
	EXPECT(bench_last(b, RAFT_IO_REQUEST_VOTE) == NULL);
	bench_fini(b);
	consensus_guards_off = 0;
}

TEST(guard, r6_nobody_makes_us_take_over)
{
	struct bench *b = &bench;

	BOTH(GUARD_R6)
	{
		bench_init(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 0, 0, 0);
		bench_receive(b, 2,
			      &(struct raft_message){.type = RAFT_IO_TIMEOUT_NOW,
						     .timeout_now = {2, 1, 1}});
		EXPECT_EQ(b->c->raft.state, off ? RAFT_CANDIDATE : RAFT_FOLLOWER);
		bench_fini(b);
	}
}

static void ignore(struct wait *w, int rc)
{
}

TEST(guard, r8_proposals_have_a_window)
{
	static struct proposal p[200];
	struct wait w = {.resume = ignore};
	struct bench *b = &bench;

	BOTH(GUARD_R8)
	{
		bench_init(b, 2);
		bench_boot(b);
		bench_elect(b);
		bench_settle(b);
		b->unconnected = true;
		bench_turn(b);
		for (unsigned i = 0; i < ARRAY_LEN(p); i++)
			EXPECT_EQ(consensus_propose(b->c, &p[i], "command!", 8, &w), PENDING);
		bench_turn(b);
		EXPECT_EQ(view_last(&b->c->view), 2 + (off ? 200 : 64));
		bench_fini(b);
	}
}

/* Enough entries to pass the threshold, all committed. */
static void commit_many(struct bench *b, uint64_t commit)
{
	bench_append(b, 2, 2, view_last(&b->c->view), 2, commit, 0, 0, 0);
	bench_settle(b);
}

/* The log begins behind its eighth entry. */
static void start_compacted(struct bench *b)
{
	init_twelve(b);
	bench_boot(b);
	commit_many(b, 12);
}

TEST(guard, r12_snapshot_fits_in_a_message)
{
	struct bench *b = &bench;

	log_set_level(LOG_ERROR + 1);
	BOTH(GUARD_R12)
	{
		init_twelve(b);
		bench_boot(b);
		b->snapshot_bytes = MESSAGE_SNAPSHOT_BYTES_MAX + 1;
		commit_many(b, 12);
		EXPECT_EQ(b->c->view.snapshot_index,
			  off ? 12 : 0); /* without: the log is cut, and no
					  * follower behind can be helped */
		b->snapshot_bytes = MESSAGE_SNAPSHOT_BYTES_MAX;
		if (!off) {
			EXPECT_EQ(b->snapshots, 1);
			bench_append(b, 2, 2, 12, 2, 13, 1, 2, 0);
			bench_settle(b);
			EXPECT_EQ(b->snapshots, 1); /* not at each entry */
			bench_append(b, 2, 2, 13, 2, 16, 3, 2, 0);
			bench_settle(b);
			EXPECT_EQ(b->c->view.snapshot_index, 16);
		}
		bench_fini(b);
	}
	log_set_level(LOG_INFO);
}

/* V1: we led term 3 and hold entries that the leader of term 4 does not have. */
TEST(guard, x1_echo_claims_no_more_than_the_message)
{
	struct bench *b = &bench;

	BOTH(GUARD_X1)
	{
		bench_init(b, 3);
		bench_entry(b, 3, RAFT_COMMAND);
		bench_entry(b, 3, RAFT_COMMAND);
		bench_boot(b);
		bench_append(b, 2, 4, 1, 1, 1, 0, 0, 0);
		EXPECT_EQ(bench_last(b, RAFT_IO_APPEND_ENTRIES_RESULT)
				  ->append_entries_result.rejected,
			  0);
		EXPECT_EQ(bench_last(b, RAFT_IO_APPEND_ENTRIES_RESULT)
				  ->append_entries_result.last_log_index,
			  off ? 3 : 1);
		bench_fini(b);
	}
}

/* V2: begun under node 2 in term 2, answered to node 3 in term 3. */
TEST(guard, x2_late_write_is_not_told_to_a_new_leader)
{
	struct bench *b = &bench;

	BOTH(GUARD_X2)
	{
		bench_init(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 1, 2, 0);
		bench_append(b, 3, 3, 1, 1, 1, 0, 0, 0);
		bench_written(b, 0);
		EXPECT_EQ(bench_last(b, RAFT_IO_APPEND_ENTRIES_RESULT)->append_entries_result.term,
			  3);
		EXPECT_EQ(bench_last(b, RAFT_IO_APPEND_ENTRIES_RESULT)
				  ->append_entries_result.last_log_index,
			  off ? 2 : 1);
		bench_fini(b);
	}
}

/* V3: a log compacted up to 8, and a message from long ago. */
static void late_message(void)
{
	struct bench *b = &bench;

	start_compacted(b);
	EXPECT_EQ(b->c->view.first, 9);
	bench_append(b, 2, 2, 0, 0, 3, 3, 2, 0);
	bench_settle(b);
	EXPECT_EQ(raft_last_index(&b->c->raft), 12);
	EXPECT_EQ(view_last(&b->c->view), 12);
	EXPECT(b->fatal == NULL);
	bench_fini(b);
}

TEST(guard, x3_late_message_before_a_compacted_log)
{
	needs(GUARD_X3, late_message);
}

/* A late message that overlaps: what is committed goes off it, the rest is appended. */
TEST(guard, x3_keeps_what_is_new)
{
	struct bench *b = &bench;

	start_compacted(b);
	bench_append(b, 2, 2, 1, 1, 12, 15, 2, 0); /* entries 2 to 16 */
	bench_settle(b);
	EXPECT_EQ(raft_last_index(&b->c->raft), 16);
	EXPECT_EQ(
		bench_last(b, RAFT_IO_APPEND_ENTRIES_RESULT)->append_entries_result.last_log_index,
		16);
	bench_fini(b);
}

/* Entry 2 is replaced and comes back while the first write of it is still under way: libraft then
 * counts it twice, believes that it has stored more than there is, and frees it twice. */
static void back_and_forth(void)
{
	struct bench *b = &bench;

	bench_init(b, 2);
	bench_boot(b);
	bench_append(b, 2, 2, 1, 1, 1, 1, 2, 0); /* 2 of term 2 */
	bench_append(b, 3, 3, 1, 1, 1, 1, 3, 0); /* 2 of term 3 */
	EXPECT_EQ(b->c->writes, guard_on(GUARD_X4) ? 1 : 3);
	bench_append(b, 2, 4, 1, 1, 1, 1, 2, 0); /* 2 of term 2 again, from the leader of term 4 */
	bench_settle(b);
	EXPECT_EQ(raft_last_index(&b->c->raft), 2);
	EXPECT_EQ(b->c->raft.last_stored, 2);
	bench_fini(b);
}

TEST(guard, x4_truncation_waits_for_the_writes)
{
	needs(GUARD_X4, back_and_forth);
}

/* The conflict lies behind entries that were compacted away here. */
TEST(guard, x4_sees_behind_the_compacted_log)
{
	struct bench *b = &bench;

	start_compacted(b);
	EXPECT_EQ(b->c->view.first, 9);
	bench_append(b, 2, 2, 12, 2, 12, 1, 2, 0);
	EXPECT_EQ(b->c->writes, 1);
	bench_append_mixed(b, 3, 3, 1, 1, 12, 11, 2, 1,
			   3); /* 2 to 12 as we have them, 13 of term 3 */
	EXPECT_EQ(b->c->inbox_count, 1);
	bench_settle(b);
	EXPECT_EQ(b->c->raft.last_stored, 13);
	EXPECT_EQ(view_term(&b->c->view, 13), 3);
	bench_fini(b);
}

TEST(guard, x4_later_messages_wait_behind)
{
	struct bench *b = &bench;

	bench_init(b, 2);
	bench_boot(b);
	bench_append(b, 2, 2, 1, 1, 1, 1, 2, 0);
	bench_install(b, 3, 3, 20, 2);
	bench_append(b, 3, 3, 20, 2, 20, 1, 3, 0);
	EXPECT_EQ(b->c->inbox_count, 2);
	EXPECT_EQ(b->c->raft.current_term, 2);
	bench_settle(b);
	EXPECT_EQ(b->c->inbox_count, 0);
	EXPECT_EQ(raft_last_index(&b->c->raft), 21);
	EXPECT_EQ(b->c->raft.last_applied, 20);
	bench_fini(b);
}

/* A configuration that is being written when the node stands for election is never put in force.
 * (X8b is the net below: it ends the process.) */
TEST(guard, x5_no_candidacy_while_writing)
{
	struct bench *b = &bench;

	BOTH(GUARD_X5)
	{
		consensus_guards_off |= off ? GUARD_X8B : 0u;
		bench_init(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 1, 2, 4); /* a CHANGE to four voters */
		bench_advance(b, 501);
		EXPECT_EQ(b->c->raft.state, off ? RAFT_CANDIDATE : RAFT_FOLLOWER);
		bench_settle(b);
		EXPECT_EQ(b->c->raft.configuration.n, off ? 3 : 4);
		if (!off) { /* it still wakes up */
			bench_advance(b, 10);
			EXPECT_EQ(b->c->raft.state, RAFT_CANDIDATE);
		}
		bench_fini(b);
	}
}

static unsigned results_sent(const struct bench *b)
{
	unsigned n = 0;

	for (unsigned i = 0; i < b->sent; i++)
		n += b->out[i].type == RAFT_IO_APPEND_ENTRIES_RESULT;
	return n;
}

/* The candidate's result of the installation goes to a leader that it reads out of other memory. */
TEST(guard, x6_nothing_happens_during_an_installation)
{
	struct bench *b = &bench;
	unsigned sent;

	BOTH(GUARD_X6)
	{
		consensus_guards_off |= GUARD_X5;
		bench_init(b, 2);
		bench_boot(b);
		bench_install(b, 2, 2, 20, 2);
		EXPECT_EQ(b->c->wipes, 1);
		bench_append(b, 2, 2, 20, 2, 20, 0, 0, 0);
		EXPECT_EQ(b->c->inbox_count, off ? 0 : 1);
		bench_advance(b, 501);
		EXPECT_EQ(b->c->raft.state, off ? RAFT_CANDIDATE : RAFT_FOLLOWER);
		sent = results_sent(b);
		bench_settle(b);
		EXPECT_EQ(results_sent(b) - sent, off ? 0 : 2);
		bench_fini(b);
	}
}

/* A change to four voters is in the log but not committed; the snapshot would make it so. */
TEST(guard, x7_no_snapshot_of_an_uncommitted_configuration)
{
	struct bench *b = &bench;

	BOTH(GUARD_X7A)
	{
		init_twelve(b);
		bench_boot(b);
		bench_append(b, 2, 2, 12, 2, 1, 1, 2, 4);
		bench_settle(b);
		EXPECT_EQ(b->c->raft.configuration_uncommitted_index, 13);
		commit_many(b, 12);
		EXPECT_EQ(b->c->view.snapshot_index, off ? 12 : 0);
		if (off)
			EXPECT_EQ(b->c->view.snapshot_conf.n, 4);
		bench_fini(b);
	}
}

/* The same after a restart: libraft takes the change for committed. */
TEST(guard, x7_no_snapshot_of_a_configuration_from_a_restart)
{
	struct bench *b = &bench;

	BOTH(GUARD_X7B)
	{
		init_twelve(b);
		bench_change(b, 2, 4);
		bench_boot(b);
		EXPECT_EQ(b->c->raft.configuration_uncommitted_index, 0);
		bench_append(b, 2, 2, 13, 2, 12, 0, 0, 0);
		bench_settle(b);
		EXPECT_EQ(b->c->view.snapshot_index, off ? 12 : 0);
		if (off)
			EXPECT_EQ(b->c->view.snapshot_conf.n, 4);
		bench_append(b, 2, 2, 13, 2, 13, 0, 0, 0); /* committed: now it may be */
		bench_settle(b);
		EXPECT(b->c->view.snapshot_index >= 12);
		bench_fini(b);
	}
}

/* V4: the change to four voters at 13 must be rolled back; the configuration before it was at 1,
 * and the log begins at 9. */
static void rollback(void)
{
	struct bench *b = &bench;

	start_compacted(b);
	bench_append(b, 2, 2, 12, 2, 12, 1, 2, 4);
	bench_settle(b);
	EXPECT_EQ(b->c->raft.configuration.n, 4);
	bench_append(b, 3, 3, 12, 2, 12, 1, 3, 0);
	bench_settle(b);
	/* The cure is a restart, then the leader says it again. Once for X8a; once more, because
	 * libraft then takes the change for committed and does not roll it back (X8b). */
	for (unsigned i = 0; i < 2; i++) {
		EXPECT(b->fatal != NULL);
		bench_reboot(b);
		bench_append(b, 3, 3, 12, 2, 12, 1, 3, 0);
		bench_settle(b);
	}
	EXPECT(b->fatal == NULL);
	EXPECT_EQ(raft_last_index(&b->c->raft), 13);
	EXPECT_EQ(b->c->raft.configuration.n, 3);
	bench_fini(b);
}

TEST(guard, x8_rollback_needs_the_old_configuration)
{
	needs(GUARD_X8A, rollback);
}

TEST(guard, x8_configuration_in_use_is_the_newest)
{
	struct bench *b = &bench;

	BOTH(GUARD_X8B)
	{
		consensus_guards_off |= GUARD_X5; /* the way to get there */
		bench_init(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 1, 2, 4);
		bench_advance(b, 501);
		bench_settle(b);
		EXPECT((b->fatal == NULL) == (bool)off);
		if (b->fatal) {
			bench_reboot(b);
			EXPECT_EQ(b->c->raft.configuration.n, 4); /* repaired */
		}
		bench_fini(b);
	}
}

/* V6: two messages that are still being sent refer to loaded entries, from 11 and from 12 on, when
 * a later leader cuts all that were loaded. Each message's end frees the batch that they share. */
static void shared_batch(void)
{
	struct bench *b = &bench;

	bench_init(b, 3);
	bench_snapshot(b, 8, 2);
	for (unsigned i = 9; i <= 13; i++)
		bench_entry(b, 2, RAFT_COMMAND);
	bench_boot(b);
	bench_elect(b);
	bench_written(b, 0);
	for (uint16_t from = 2; from <= 3; from++)
		bench_receive(b, from,
			      &(struct raft_message){
				      .type = RAFT_IO_APPEND_ENTRIES_RESULT,
				      .append_entries_result = {4, 13, from == 2 ? 10 : 11}});
	b->hold_turns = true;
	b->sent = 0;
	bench_advance(b, 60);
	EXPECT_EQ(b->out[0].append_entries.prev_log_index, 10);
	EXPECT_EQ(b->out[1].append_entries.prev_log_index, 11);
	bench_append(b, 3, 5, 8, 2, 8, 1, 5, 0);
	b->hold_turns = false;
	bench_settle(b);
	EXPECT_EQ(raft_last_index(&b->c->raft), 9);
	bench_fini(b);
}

TEST(guard, x9_loaded_entries_have_memory_of_their_own)
{
	needs(GUARD_X9, shared_batch);
}

/* V5: we are in term 9; a candidate of term 3 asks for pre-votes for term 4 with a shorter log. */
TEST(guard, x10_refused_pre_vote_tells_the_term)
{
	struct bench *b = &bench;

	BOTH(GUARD_X10)
	{
		bench_init(b, 9);
		bench_entry(b, 2, RAFT_COMMAND);
		bench_boot(b);
		bench_receive(b, 2,
			      &(struct raft_message){.type = RAFT_IO_REQUEST_VOTE,
						     .request_vote = {4, 2, 1, 1, false, true}});
		EXPECT(!bench_last(b, RAFT_IO_REQUEST_VOTE_RESULT)
				->request_vote_result.vote_granted);
		EXPECT_EQ(bench_last(b, RAFT_IO_REQUEST_VOTE_RESULT)->request_vote_result.term,
			  off ? 4 : 9);
		bench_fini(b);
	}
}

static bool votes(struct bench *b, uint64_t term, bool pre_vote)
{
	bench_receive(b, 2,
		      &(struct raft_message){.type = RAFT_IO_REQUEST_VOTE,
					     .request_vote = {term, 2, 2, 2, false, pre_vote}});
	return bench_last(b, RAFT_IO_REQUEST_VOTE_RESULT)->request_vote_result.vote_granted;
}

/* Node 2 has made us a voter in entry 2, which never came, and starts again. */
TEST(guard, x11_who_is_no_voter_yet_votes)
{
	struct bench *b = &bench;

	BOTH(GUARD_X11)
	{
		bench_standby(b, 2);
		bench_boot(b);
		bench_append(b, 2, 2, 1, 1, 1, 0, 0, 0); /* it leads */
		EXPECT(!votes(b, 3, true));
		bench_advance(b, 501);
		EXPECT_EQ(votes(b, 3, true), !off);
		EXPECT_EQ(b->c->raft.current_term, 2);
		EXPECT_EQ(votes(b, 3, false), !off);
		EXPECT_EQ(b->disk.image.vote, off ? 0 : 2);
		EXPECT(b->c->raft.configuration.servers[0].role == RAFT_STANDBY);
		/* One vote in a term, as ever. */
		if (!off)
			bench_receive(b, 3,
				      &(struct raft_message){.type = RAFT_IO_REQUEST_VOTE,
							     .request_vote = {3, 3, 9, 9}});
		EXPECT(!bench_last(b, RAFT_IO_REQUEST_VOTE_RESULT)
				->request_vote_result.vote_granted || off);
		EXPECT(!b->fatal);
		bench_advance(b, 2000); /* and it does not stand itself */
		EXPECT_EQ(b->c->raft.state, RAFT_FOLLOWER);
		bench_append(b, 2, 4, 1, 1, 1, 0, 0, 0);
		EXPECT_EQ(b->c->raft.follower_state.current_leader.id, 2);
		bench_fini(b);
	}
}

/* The last entry that was sent to the node. */
static uint64_t told(const struct bench *b, uint16_t to)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < b->sent; i++) {
		const struct raft_append_entries *a = &b->out[i].append_entries;

		if (b->to[i] == to && b->out[i].type == RAFT_IO_APPEND_ENTRIES && a->n_entries)
			last = MAX(last, a->prev_log_index + a->n_entries);
	}
	return last;
}

/* We lead, and node 3 is to vote no more: node 2 hears of it, and node 3 when node 2 has it. */
TEST(guard, x12_who_loses_its_vote_hears_of_it_when_it_is_committed)
{
	struct bench *b = &bench;
	struct wait w = {.resume = ignore};
	const uint64_t change = 3;

	BOTH(GUARD_X12)
	{
		bench_init(b, 2);
		bench_boot(b);
		bench_elect(b);
		bench_settle(b);
		bench_result(b, 2, 3, 2);
		bench_result(b, 3, 3, 2);
		bench_settle(b);
		b->sent = 0;
		EXPECT_EQ(consensus_make_standby(b->c, 3, &w), PENDING);
		bench_settle(b);
		EXPECT_EQ(told(b, 2), change);
		EXPECT_EQ(told(b, 3), off ? change : 0);
		bench_advance(b, 60);
		bench_settle(b);
		EXPECT_EQ(told(b, 3), off ? change : 0);
		bench_result(b, 2, 3, change);
		bench_settle(b);
		EXPECT_EQ(b->c->raft.commit_index, change);
		bench_receive(b, 3, /* it misses what a heartbeat stood behind */
			      &(struct raft_message){.type = RAFT_IO_APPEND_ENTRIES_RESULT,
						     .append_entries_result = {3, change, change - 1}});
		bench_advance(b, 60);
		EXPECT(told(b, 3) >= change);
		bench_fini(b);
	}
}

/* Node 3 was without a vote for a while. We start again, and know nothing for committed. */
TEST(guard, x12_who_votes_now_gets_all)
{
	struct bench *b = &bench;

	bench_init(b, 2);
	bench_change(b, 2, 2);
	bench_change(b, 2, 3);
	bench_boot(b);
	bench_elect(b);
	bench_settle(b);
	bench_receive(b, 3,
		      &(struct raft_message){.type = RAFT_IO_APPEND_ENTRIES_RESULT,
					     .append_entries_result = {3, 3, 1}});
	bench_advance(b, 60);
	EXPECT_EQ(b->c->raft.commit_index, 1);
	EXPECT_EQ(told(b, 3), 4);
	bench_fini(b);
}

/* Several appends are under way when the node is closed. */
static void close_while_writing(void)
{
	struct bench *b = &bench;

	bench_init(b, 2);
	bench_boot(b);
	bench_elect(b);
	bench_turn(b);
	for (unsigned i = 0; i < 3; i++) {
		static struct proposal p[3];
		static struct wait w = {.resume = ignore};

		EXPECT_EQ(consensus_propose(b->c, &p[i], "command!", 8, &w), PENDING);
		bench_turn(b);
	}
	EXPECT_EQ(b->c->writes, 4);
	bench_fini(b);
}

TEST(guard, close_with_several_writes)
{
	needs(GUARD_CLOSE, close_while_writing);
}

/* ---- Start and stop ---- */

static int start_on(struct bench *b)
{
	struct consensus_env *e = &b->env;
	struct consensus_config cfg = {.id = 1, .ctx = b};

	*e = (struct consensus_env){.ops = bench_env_ops()};
	return consensus_start_on(&cfg, e, &b->disk.disk, &b->c);
}

TEST(start, damaged_log_is_refused)
{
	struct bench *b = &bench;

	log_set_level(LOG_ERROR + 1);
	bench_init(b, 2); /* its first entry is no configuration */
	b->disk.image.entry[0].type = RAFT_COMMAND;
	EXPECT_RC(start_on(b), -ERR_CORRUPT);
	sim_disk_fini(&b->disk);

	bench_init(b, 2); /* a configuration that does not decode */
	((uint8_t *)b->disk.image.entry[0].data)[0] = 9;
	EXPECT_RC(start_on(b), -ERR_CORRUPT);
	sim_disk_fini(&b->disk);
	log_set_level(LOG_INFO);
}

static unsigned resumed[8];
static struct wait waits[8];
static int codes[8];
static bool stopped;

static void on_resumed(struct wait *w, int rc)
{
	resumed[w - waits]++;
	codes[w - waits] = rc;
}

static void on_stopped(void *ctx)
{
	stopped = true;
}

/* Three commands are being written, one waits to be proposed: each asker hears once. */
TEST(stop, every_asker_hears)
{
	static struct proposal p[4];
	struct bench *b = &bench;

	bench_init(b, 2);
	bench_boot(b);
	bench_elect(b);
	for (unsigned i = 0; i < 4; i++) {
		waits[i].resume = on_resumed;
		EXPECT_EQ(consensus_propose(b->c, &p[i], "command!", 8, &waits[i]), PENDING);
		if (i < 3)
			bench_turn(b);
	}
	consensus_stop(b->c, on_stopped);
	bench_turn(b);
	EXPECT(!stopped); /* the log's writes end first */
	bench_settle(b);
	EXPECT(stopped);
	for (unsigned i = 0; i < 4; i++) {
		EXPECT_EQ(resumed[i], 1);
		EXPECT_RC(codes[i], i < 3 ? -ERR_RETRY : -ERR_NOT_LEADER);
	}
	/* All three are there after a start: their outcome was unknown, not "nothing done". */
	EXPECT_EQ(b->disk.image.count, 1 + 1 + 3);
	sim_disk_fini(&b->disk);
	for (unsigned i = 0; i < b->sent; i++)
		message_free(&b->out[i]);
}

/* Leadership lost: what was appended is of unknown outcome, what waited was not done. */
TEST(propose, lost_leadership)
{
	static struct proposal p[80];
	static struct wait w[80];
	struct bench *b = &bench;

	memset(resumed, 0, sizeof(resumed));
	bench_init(b, 2);
	bench_boot(b);
	EXPECT_RC(consensus_propose(b->c, &p[0], "command!", 8, &waits[0]), -ERR_NOT_LEADER);
	bench_elect(b);
	bench_settle(b);
	b->unconnected = true;
	for (unsigned i = 0; i < 80; i++)
		w[i].resume = ignore;
	waits[0].resume = waits[1].resume = on_resumed;
	for (unsigned i = 0; i < 80; i++)
		EXPECT_EQ(consensus_propose(b->c, &p[i], "command!", 8,
					    i == 0    ? &waits[0]
					    : i == 79 ? &waits[1]
						      : &w[i]),
			  PENDING);
	bench_turn(b);
	bench_append(b, 3, 9, 1, 1, 1, 0, 0, 0);
	EXPECT_EQ(b->c->raft.state, RAFT_FOLLOWER);
	EXPECT_EQ(resumed[0], 1);
	EXPECT_EQ(resumed[1], 1);
	EXPECT_RC(codes[0], -ERR_RETRY);
	EXPECT_RC(codes[1], -ERR_NOT_LEADER);
	bench_fini(b);
}
