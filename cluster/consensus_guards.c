/* SPDX-License-Identifier: Apache-2.0 */
/* Each guard as one function that decides and, at most, edits the message in hand. The acts
 * (waiting, dropping, exiting) are their callers'. consensus.c's head tells the whole story; here,
 * each fault. */
#include "cluster/consensus_guards.h"

#include <string.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/log.h"

uint32_t consensus_guards_off;

/* X1. A follower answers an *empty* heartbeat with its own last index. One that has just stepped
 * down from leadership may have a longer log of other entries; the new leader trims the number to
 * its own last index, believes that the follower has its entries, and commits one that only the
 * leader has. So: never more than what the message itself vouched for, and nothing if it was of an
 * older term. */
void guard_x1_clamp_echo(const struct consensus *c, struct raft_append_entries_result *result)
{
	if (!guard_on(GUARD_X1) || !c->echo.on || result->rejected != 0)
		return;
	if (c->echo.term < c->raft.current_term)
		result->last_log_index = 0;
	else
		result->last_log_index = MIN(result->last_log_index, c->echo.end);
}

/* X2. A write begun under the old leader may end after the term changed. libraft then answers with
 * the new term, to the new leader, for entries of the old one. */
bool guard_x2_result_is_late(const struct consensus *c, struct raft_append_entries_result *result)
{
	if (!guard_on(GUARD_X2) || !c->late.on)
		return false;
	if (c->late.term != c->raft.current_term)
		return true;
	result->last_log_index = MIN(result->last_log_index, c->late.last);
	return false;
}

/* X10. libraft answers a pre-vote with the candidate's own term, even when it refuses because its
 * term is higher. The node with the longest log may then never learn of the higher term and never
 * stand for it, while the others may not be elected without it: no leader for ever. */
void guard_x10_tell_term(const struct consensus *c, struct raft_request_vote_result *result)
{
	if (guard_on(GUARD_X10) && result->pre_vote == raft_tribool_true && !result->vote_granted &&
	    c->raft.current_term > result->term)
		result->term = c->raft.current_term;
}

/* R5. A RequestVote tells the last index of the log *in memory*. Entries that are still being
 * written may be gone after a crash, and the voter would have voted for a log that does not exist.
 */
bool guard_r5_vote_waits(const struct consensus *c)
{
	return guard_on(GUARD_R5) && c->writes > 0;
}

/* A vote that waited must not ask for a term that is over. A pre-vote names the next term. */
bool guard_r5_vote_is_stale(const struct consensus *c, const struct raft_request_vote *vote)
{
	return vote->term != c->raft.current_term + (vote->pre_vote ? 1 : 0) ||
	       c->raft.state != RAFT_CANDIDATE;
}

/* R1. libraft commits entries of earlier terms by counting replicas (the Raft paper's figure 8): an
 * entry on a majority may still be overwritten by a leader of a term in between. It looks only at
 * the entry last stored here. So no replica is counted before that is one of our own term, on disk.
 */
bool guard_r1_results_wait(const struct consensus *c)
{
	const struct raft *r = &c->raft;

	if (!guard_on(GUARD_R1_HOLD) || r->state != RAFT_LEADER)
		return false;
	return view_term(&c->view, c->view.durable) != r->current_term ||
	       view_term(&c->view, r->last_stored) != r->current_term;
}

/* R6. The target of a leadership transfer may get two votes of one voter in a term. We never
 * transfer; a peer that asks us to take over is not obeyed. */
bool guard_r6_drops(const struct raft_message *m)
{
	return guard_on(GUARD_R6) && m->type == RAFT_IO_TIMEOUT_NOW;
}

/* X3. libraft checks that a message joins our log by the entry before it; with prev = 0, or an
 * entry that was compacted away, it does not check, and indexes its log with what is no longer
 * there. What is committed we have: it is taken off the message, so that it joins at an entry that
 * we can check. */
bool guard_x3_strip_committed(const struct consensus *c, struct raft_message *m)
{
	struct raft_append_entries *a = &m->append_entries;
	uint64_t commit = c->raft.commit_index;
	unsigned k;

	if (!guard_on(GUARD_X3) || m->type != RAFT_IO_APPEND_ENTRIES || a->prev_log_index >= commit)
		return false;
	k = (unsigned)MIN((uint64_t)a->n_entries, commit - a->prev_log_index);
	if (k > 0) {
		void *batch = a->entries[0].batch;

		a->prev_log_index += k;
		a->prev_log_term = a->entries[k - 1].term;
		a->n_entries -= k;
		if (a->n_entries == 0) {
			raft_free(batch);
			raft_free(a->entries);
			a->entries = NULL;
		} else {
			memmove(a->entries, a->entries + k, a->n_entries * sizeof(*a->entries));
		}
	}
	/* Unknown here: nothing can be checked. A higher term must still be heard of; libraft then
	 * refuses the message. */
	return view_term(&c->view, a->prev_log_index) == 0 && a->term <= c->raft.current_term;
}

/* The first index at which the message differs from our log; 0: nowhere. What was compacted away is
 * committed and X3 takes it off; the rest of such a message counts. */
static uint64_t conflict(const struct consensus *c, const struct raft_append_entries *a)
{
	for (unsigned i = 0; i < a->n_entries; i++) {
		uint64_t index = a->prev_log_index + 1 + i;

		if (index > view_last(&c->view))
			return 0;
		if (index >= c->view.first && view_term(&c->view, index) != a->entries[i].term)
			return index;
	}
	return 0;
}

/* X4. libraft's bookkeeping of what is stored (a counter that callbacks add to) goes wrong when a
 * truncation or an installation overtakes an append that is still being written. */
bool guard_x4_waits(const struct consensus *c, const struct raft_message *m)
{
	if (!guard_on(GUARD_X4) || c->writes == 0)
		return false;
	if (m->type == RAFT_IO_INSTALL_SNAPSHOT)
		return true;
	return m->type == RAFT_IO_APPEND_ENTRIES && conflict(c, &m->append_entries) != 0;
}

/* X5. A node that stands for election while entries are being written has them in memory but not on
 * disk; their callbacks then meet a candidate or leader and are not counted. */
bool guard_x5_no_tick(const struct consensus *c)
{
	return guard_on(GUARD_X5) && c->raft.state != RAFT_LEADER && c->writes > 0;
}

/* X6. While a snapshot is being installed the log is wiped in memory and last_stored is 0: a vote,
 * an election or another message would act on a log that is neither the old nor the new one. */
bool guard_x6_waits(const struct consensus *c)
{
	return guard_on(GUARD_X6) && c->wipes > 0;
}

/* X11. libraft refuses its vote while it is no voter by its own log. A leader that has made it one and did
 * not get that entry to it may need this vote to be leader again: then there is none for ever. In Raft
 * everybody votes; the candidate knows whom to count. Nor does one that is no voter ever forget a leader, and
 * who has a leader refuses too: it is forgotten after an election timeout of silence, as a voter would. */
void guard_x11_enter(struct consensus *c, const struct raft_message *m)
{
	struct raft *r = &c->raft;
	struct raft_server *me =
		(struct raft_server *)(uintptr_t)configuration_get(&r->configuration, r->id);

	if (!guard_on(GUARD_X11) || m->type != RAFT_IO_REQUEST_VOTE || !me || me->role == RAFT_VOTER ||
	    c->env->ops->now_us(c->env) - c->contact_us < (uint64_t)r->election_timeout * 1000)
		return;
	c->as_voter = me;
	c->own_role = me->role;
	me->role = RAFT_VOTER;
	if (r->state == RAFT_FOLLOWER)
		r->follower_state.current_leader.id = 0;
}

void guard_x11_leave(struct consensus *c)
{
	if (c->as_voter)
		c->as_voter->role = c->own_role;
	c->as_voter = NULL;
}

/* X12. In libraft one that is no voter by its own log never stands for leader; in Raft it does. If the leader
 * that took its vote dies while only such ones have the entry, they have the longest log: they refuse the
 * others, who may be too few without them, and do not stand themselves: no leader for ever. So who has no
 * vote in a configuration hears of it when it is committed: a majority of those who have one has it then.
 * Who votes in the newest one gets all: after a restart nothing counts as committed, however old, and without
 * its answer nothing would ever. */
void guard_x12_hold_back(const struct consensus *c, uint64_t to, struct raft_append_entries *a)
{
	const struct raft_server *s = configuration_get(&c->raft.configuration, to);

	if (!guard_on(GUARD_X12) || (s && s->role == RAFT_VOTER))
		return;
	for (unsigned i = 0; i < a->n_entries; i++) {
		const struct raft_entry *e = &a->entries[i];
		struct raft_configuration conf;
		bool votes;

		if (e->type != RAFT_CHANGE || a->prev_log_index + 1 + i <= c->raft.commit_index ||
		    configuration_decode(e->buf.base, e->buf.len, &conf) < 0)
			continue;
		s = configuration_get(&conf, to);
		votes = s && s->role == RAFT_VOTER;
		raft_configuration_close(&conf);
		if (!votes)
			a->n_entries = i;
	}
}

/* X7 (and R7). A snapshot carries the configuration in use and calls it committed. While a change
 * is uncommitted it may still be rolled back (first test; a stale index may stay after an
 * installation, so it is compared, not tested for 0). After a restart libraft takes the newest
 * configuration of the log for committed, which it may not be (second test). */
bool guard_x7_snapshot_busy(const struct consensus *c)
{
	const struct raft *r = &c->raft;

	return (guard_on(GUARD_X7A) && r->configuration_uncommitted_index > r->last_applied) ||
	       (guard_on(GUARD_X7B) && r->configuration_index > r->last_applied);
}

/* R12. InstallSnapshot is one message. One that does not fit could never be sent. */
bool guard_r12_snapshot_fits(const struct consensus *c, size_t bytes)
{
	return !guard_on(GUARD_R12) || bytes <= MESSAGE_SNAPSHOT_BYTES_MAX;
}

/* R2. With the asserts compiled out, a broken invariant or an error inside leaves libraft in this
 * state for ever: it looks alive and does nothing. A restart reads the truth from disk. */
const char *guard_r2_unavailable(const struct consensus *c)
{
	return guard_on(GUARD_R2) && c->raft.state == RAFT_UNAVAILABLE && !c->closing
		       ? "libraft gave up (RAFT_UNAVAILABLE)"
		       : NULL;
}

/* X8a. To roll back a membership change libraft reads the entry of the configuration before it,
 * without looking whether the log still has it. A restart takes it from the snapshot. */
const char *guard_x8a_rollback(const struct consensus *c, const struct raft_message *m)
{
	const struct raft *r = &c->raft;
	uint64_t at;

	if (!guard_on(GUARD_X8A) || m->type != RAFT_IO_APPEND_ENTRIES ||
	    m->append_entries.term < r->current_term || r->configuration_uncommitted_index == 0)
		return NULL;
	at = conflict(c, &m->append_entries);
	if (at == 0 || at > r->configuration_uncommitted_index ||
	    view_has_change(&c->view, r->configuration_index))
		return NULL;
	return "a membership change must be rolled back and the configuration before it is in the "
	       "snapshot only";
}

/* X8b. An append that ends while the node is no follower, or an installation, leaves libraft with a
 * configuration that is not the newest of its log: it would count the wrong majority. */
const char *guard_x8b_configuration(const struct consensus *c)
{
	const struct raft *r = &c->raft;

	if (!guard_on(GUARD_X8B) || c->writes > 0 || c->closing || r->state == RAFT_UNAVAILABLE)
		return NULL;
	if (!configuration_equal(&r->configuration, view_configuration(&c->view)))
		return "the configuration in use is not the newest of the log";
	if (r->configuration_uncommitted_index != 0 &&
	    r->configuration_uncommitted_index <= r->last_applied)
		return "an applied configuration counts as uncommitted";
	return NULL;
}
