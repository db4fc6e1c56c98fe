/* SPDX-License-Identifier: Apache-2.0 */
/* libraft's door: starts it, feeds it, watches it.
 *
 * We use Debian's libraft 0.15.0 for the algorithm only. The binary was built without asserts and
 * has faults that break Raft's promises; the project does not change the binary, it never lets it
 * get to them. What may go wrong, in words (the functions are in consensus_guards.c, with the same
 * names):
 *
 *  R1  It commits entries of earlier terms by counting replicas. A new leader appends a barrier at
 *      once and counts no answer before an entry of its own term is the last one on its disk.
 *  R2  Broken invariants leave it in the state UNAVAILABLE: we end the process and start again.
 *  R3  (R4) It mishandles failed writes: a failed write ends the process, libraft never hears of it.
 *  R5  It asks for votes with a log that is not durable: such a request waits for the writes.
 *  R6  Leadership transfer may give two votes: never called, and not obeyed.
 *  R8  It tests for commit only at the last index stored: the window of proposals is bounded, so that
 *      the log comes to rest.
 *  R9  Races around terms and roles: X1, X2, X5, X6.
 *  R10 An apply that fails stops it: ours cannot fail, a refusal is a result.
 *  R11 (padding of commands) is about libraft's own files, which we do not use.
 *  R12 A snapshot is one message: its size is bounded (consensus_message.h).
 *
 *  X1  A follower's answer to a heartbeat claims entries the message did not speak of: clamped.
 *  X2  The answer for a write begun in an earlier term goes to the new leader: dropped.
 *  X3  A late message that starts before our compacted log is not checked: what is committed is
 *      taken off it; if then it cannot be checked, it is dropped.
 *  X4  A truncation or an installation overtakes appends: both wait until nothing is being written,
 *      and later messages wait behind them.
 *  X5  A candidacy overtakes appends: no tick to a non-leader while something is being written.
 *  X6  While a snapshot is being installed there are no ticks and no messages.
 *  X7  (R7) A snapshot may hold an uncommitted configuration: refused for the moment.
 *  X8  A membership rollback reads an entry that may be compacted away (a), and the configuration
 *      in use may not be the log's newest (b): the process ends and starts again, which repairs it.
 *  X9  Loaded entries that share memory are freed twice: each has its own.
 *  X10 A refused pre-vote hides the higher term, and then there may be no leader for ever: it is told.
 *  X11 Who is no voter by its own log refuses its vote, which the leader that made it one may need to
 *      be leader again: it votes.
 *  X12 Who loses its vote and is the only one to know never stands, and is in the way of those who do:
 *      it hears of it once that is committed.
 *
 * And by construction: at most one membership change at a time, after this term's barrier and with
 * one after it; never down to one voter, never of the leader itself; send never fails
 * synchronously; callbacks never from inside a call; no call into libraft from its request
 * callbacks.
 *
 * Turns. Everything that comes in (a message, a wake-up, a finished write, a turn) ends in
 * consensus_settle, which repeats until nothing moves: deliver what may be delivered, put a barrier
 * into a new term, propose, step the membership change; then tell the owner and set the wake-up
 * (consensus_clock.c). */
#include "cluster/consensus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define HEARTBEAT_MS       50
#define ELECTION_MS        500
#define INSTALL_MS         3000 /* a lost snapshot is sent again: one of 4 MiB takes a fraction of it */
#define SNAPSHOT_THRESHOLD 1024
#define SNAPSHOT_TRAILING  2048
#define INBOX_MAX          1024

/* ---- After each call into libraft ---- */

static void on_barrier(struct raft_barrier *req, int status)
{
	struct consensus *c = req->data;

	if (status == 0)
		c->barrier_done = true;
}

/* R1, the first half. Outside any raft call. */
static void lead(struct consensus *c)
{
	c->led_term = c->raft.current_term;
	c->barrier_done = !guard_on(GUARD_R1_BARRIER);
	if (c->barrier_done)
		return;
	c->barrier.data = c;
	consensus_enter(c);
	if (raft_barrier(&c->raft, &c->barrier, on_barrier) != 0)
		c->failed = "the barrier of a new term cannot be appended";
	consensus_leave(c);
}

void consensus_after_call(struct consensus *c)
{
	const char *why = c->failed;

	if (c->dead || c->closing)
		return;
	if (!why)
		why = guard_r2_unavailable(c);
	if (!why)
		why = guard_x8b_configuration(c);
	if (why) {
		consensus_fatal(c, why);
		return;
	}
	if (c->raft.state == RAFT_LEADER) {
		if (c->led_term != c->raft.current_term)
			lead(c);
	} else if (c->led_term) {
		c->led_term = 0;
		c->barrier_done = false;
		consensus_fail_waiting(c, -ERR_NOT_LEADER);
	}
	consensus_votes_release(c);
}

/* ---- Messages ---- */

static void incoming_free(struct incoming *in)
{
	message_free(&in->message);
	free(in);
}

static void deliver(struct consensus *c, struct incoming *in)
{
	struct raft_message *m = &in->message;
	const char *why = guard_x8a_rollback(c, m);
	uint64_t term = 0;

	if (why) {
		incoming_free(in);
		consensus_fatal(c, why);
		return;
	}
	if (guard_x3_strip_committed(c, m)) {
		incoming_free(in);
		return;
	}
	if (m->type == RAFT_IO_APPEND_ENTRIES) {
		term = m->append_entries.term;
		c->echo.on = true;
		c->echo.term = term;
		c->echo.end = m->append_entries.prev_log_index + m->append_entries.n_entries;
	} else if (m->type == RAFT_IO_INSTALL_SNAPSHOT) {
		term = m->install_snapshot.term;
	}
	if (term && term >= c->raft.current_term) {
		c->contact_us = c->env->ops->now_us(c->env);
		c->gone_rounds = 0;
	}
	consensus_enter(c);
	guard_x11_enter(c, m);
	c->recv(&c->io, m);
	guard_x11_leave(c);
	consensus_leave(c);
	c->echo.on = false;
	free(in); /* the parts are libraft's */
	consensus_after_call(c);
}

/* In order; the head may have to wait, and all behind it. True: something moved. */
static bool inbox_step(struct consensus *c)
{
	struct incoming *in;

	if (list_empty(&c->inbox))
		return false;
	in = list_first(&c->inbox, struct incoming, link);
	if (guard_x6_waits(c) || guard_x4_waits(c, &in->message))
		return false;
	list_del(&in->link);
	c->inbox_count--;
	if (in->message.type == RAFT_IO_APPEND_ENTRIES_RESULT && guard_r1_results_wait(c) &&
	    in->message.append_entries_result.term <= c->raft.current_term) {
		/* Losing one is harmless: the next heartbeat's answer says the same. */
		if (c->result_count == INBOX_MAX)
			incoming_free(in);
		else
			list_push_back(&c->results, &in->link), c->result_count++;
		return true;
	}
	deliver(c, in);
	return true;
}

static bool results_step(struct consensus *c)
{
	struct list *l;

	if (guard_x6_waits(c) || guard_r1_results_wait(c) || !(l = list_pop_front(&c->results)))
		return false;
	c->result_count--;
	deliver(c, list_entry(l, struct incoming, link));
	return true;
}

void consensus_receive(struct consensus *c, uint16_t from, const void *msg, size_t len)
{
	struct incoming *in;
	int rc;

	if (c->dead || c->stopping)
		return;
	if (c->inbox_count == INBOX_MAX) /* a disk that hangs: as if the network had lost it */
		return;
	in = xcalloc(1, sizeof(*in));
	rc = message_decode(msg, len, from, &in->message);
	if (rc < 0) {
		log_warn("raft", "a malformed message was dropped", "from=%u error=%s", from,
			 err_name(rc));
		free(in);
		return;
	}
	if (guard_r6_drops(&in->message)) {
		incoming_free(in);
		return;
	}
	snprintf(in->address, sizeof(in->address), "%u", from);
	in->message.server_id = from;
	in->message.server_address = in->address;
	list_push_back(&c->inbox, &in->link);
	c->inbox_count++;
	if (c->settling)
		consensus_turn(c);
	else
		consensus_settle(c);
}

/* ---- The turn ---- */

static void tell_changes(struct consensus *c)
{
	const char *address;
	raft_id leader;

	raft_leader(&c->raft, &leader, &address);
	if (c->seen.state == c->raft.state && c->seen.resigns == consensus_resigning(c) &&
	    c->seen.leader == leader &&
	    c->seen.term == c->raft.current_term && c->seen.members == c->raft.configuration.n &&
	    c->seen.voters == configuration_voters(&c->raft.configuration))
		return;
	c->seen.state = c->raft.state;
	c->seen.resigns = consensus_resigning(c);
	c->seen.leader = leader;
	c->seen.term = c->raft.current_term;
	c->seen.members = c->raft.configuration.n;
	c->seen.voters = configuration_voters(&c->raft.configuration);
	if (c->cfg.hooks->changed)
		c->cfg.hooks->changed(c->cfg.ctx);
}

static void on_closed(struct raft *r)
{
}

static void destroy(struct consensus *c)
{
	struct list *l;

	while ((l = list_pop_front(&c->inbox)))
		incoming_free(list_entry(l, struct incoming, link));
	while ((l = list_pop_front(&c->results)))
		incoming_free(list_entry(l, struct incoming, link));
	view_fini(&c->view);
	free(c->snapshot.conf);
	free(c->snapshot.data);
	free(c->batch);
	writer_free(&c->scratch);
	c->env->ops->destroy(c->env); /* ends the worker, which uses the disk */
	c->disk->ops->close(c->disk);
	free(c);
}

/* Everything written, nothing under way: then, and from a turn, libraft is closed. */
static void stop_step(struct consensus *c)
{
	void (*stopped)(void *ctx) = c->stopped;
	void *ctx = c->cfg.ctx;

	if (c->dead)
		return;
	c->closing = true;
	raft_close(&c->raft, on_closed);
	consensus_finish_close(c);
	consensus_fail_waiting(c, -ERR_NOT_LEADER);
	consensus_complete(c);
	destroy(c);
	stopped(ctx);
}

void consensus_settle(struct consensus *c)
{
	bool moved = true;

	if (c->settling || c->dead)
		return;
	c->settling = true;
	while (moved && !c->dead && !c->stopping) {
		moved = inbox_step(c);
		if (!c->dead)
			moved |= results_step(c);
	}
	if (!c->dead) {
		if (!c->stopping) {
			consensus_member_run(c);
			consensus_pump(c);
			consensus_hurry(c);
		}
		consensus_disk_kick(c);
		if (consensus_resigning(c))
			consensus_resign_step(c);
		if (!c->stopping)
			consensus_wake(c);
	}
	consensus_complete(c);
	if (!c->dead && !c->stopping)
		tell_changes(c);
	c->settling = false;
	if (c->stopping && c->writes == 0)
		consensus_turn(c);
}

void consensus_on_turn(struct consensus *c)
{
	c->turn_due = false;
	if (c->dead)
		return;
	CHECK(!c->settling);
	c->settling = true;
	consensus_after_call(c); /* of raft_start, the first time */
	if (!c->dead)
		consensus_fire_sent(c);
	c->settling = false;
	if (c->stopping && !c->turn_due && c->writes == 0)
		stop_step(c);
	else
		consensus_settle(c);
}

/* ---- Life ---- */

static int bootstrap(struct consensus *c)
{
	struct raft_configuration conf;
	struct raft_disk_image image;
	int rc = c->disk->ops->load(c->disk, &image);
	bool empty;

	if (rc < 0)
		return rc;
	/* A start that was cut short after this has happened is repeated. */
	empty = image.term == 0 && image.count == 0 && !image.has_snapshot;
	raft_disk_image_free(&image);
	if (!empty)
		return 0;
	raft_configuration_init(&conf);
	CHECK(raft_configuration_add(&conf, c->cfg.id, c->address, RAFT_VOTER) == 0);
	rc = raft_bootstrap(&c->raft, &conf) == 0 ? 0 : -EIO;
	raft_configuration_close(&conf);
	return rc;
}

static int start_raft(struct consensus *c)
{
	int rc;

	consensus_fsm_init(c);
	CHECK(raft_init(&c->raft, &c->io, &c->fsm, c->cfg.id, c->address) == 0);
	raft_set_heartbeat_timeout(&c->raft,
				   c->cfg.heartbeat_ms ? c->cfg.heartbeat_ms : HEARTBEAT_MS);
	raft_set_election_timeout(&c->raft, c->cfg.election_ms ? c->cfg.election_ms : ELECTION_MS);
	raft_set_install_snapshot_timeout(&c->raft, INSTALL_MS);
	raft_set_snapshot_threshold(&c->raft, c->env->snapshot_threshold
						      ? c->env->snapshot_threshold
						      : SNAPSHOT_THRESHOLD);
	raft_set_snapshot_trailing(&c->raft, c->env->snapshot_trailing ? c->env->snapshot_trailing
								       : SNAPSHOT_TRAILING);
	raft_set_pre_vote(&c->raft, true);
	rc = c->cfg.bootstrap ? bootstrap(c) : 0;
	if (rc == 0) {
		c->settling = true;
		rc = raft_start(&c->raft) == 0 ? 0 : -ERR_CORRUPT;
		c->settling = false;
	}
	return rc;
}

int consensus_start_on(const struct consensus_config *cfg, struct consensus_env *env,
		       struct raft_disk *disk, struct consensus **out)
{
	struct consensus *c = xcalloc(1, sizeof(*c));
	int rc;

	c->cfg = *cfg;
	c->env = env;
	c->disk = disk;
	env->c = c;
	c->append_max = env->append_max ? env->append_max : MESSAGE_APPEND_BYTES_MAX;
	snprintf(c->address, sizeof(c->address), "%u", cfg->id);
	list_init(&c->waiting);
	list_init(&c->flying);
	list_init(&c->done);
	consensus_io_init(c);
	rc = start_raft(c);
	if (rc < 0) {
		c->closing = true;
		raft_close(&c->raft, on_closed);
		consensus_finish_close(c);
		destroy(c);
		return rc;
	}
	*out = c;
	consensus_turn(c); /* nothing but restore and apply is called from inside the start */
	return 0;
}

int consensus_start(const struct consensus_config *cfg, struct consensus **out)
{
	struct raft_disk *disk;
	int rc = raft_log_open(cfg->dir, cfg->id, &disk);

	if (rc < 0)
		return rc;
	return consensus_start_on(cfg, consensus_env_create(cfg->loop, disk), disk, out);
}

void consensus_stop(struct consensus *c, void (*stopped)(void *ctx))
{
	c->stopping = true;
	c->stopped = stopped;
	consensus_turn(c);
}

void consensus_abort(struct consensus *c)
{
	struct list *l;

	c->dead = c->closing = true;
	raft_close(&c->raft, on_closed);
	consensus_finish_close(c);
	list_splice_back(&c->done, &c->flying);
	list_splice_back(&c->done, &c->waiting);
	while ((l = list_pop_front(&c->done))) {
		struct pending *p = list_entry(l, struct pending, link);

		raft_free(p->buf.base);
		free(p);
	}
	destroy(c);
}

/* ---- Status ---- */

bool consensus_is_leader(const struct consensus *c)
{
	return !c->dead && c->raft.state == RAFT_LEADER && !c->resign_until_ms;
}

enum consensus_member consensus_member(const struct consensus *c, uint16_t id)
{
	const struct raft_server *s = configuration_get(&c->raft.configuration, id);

	return !s			? CONSENSUS_NO_MEMBER
	       : s->role == RAFT_VOTER	? CONSENSUS_VOTES
	       : s->role == RAFT_STANDBY ? CONSENSUS_FOLLOWS
					 : CONSENSUS_SPARE;
}

void consensus_status(const struct consensus *c, struct consensus_status *out)
{
	const struct raft *r = &c->raft;

	memset(out, 0, sizeof(*out));
	out->role = consensus_is_leader(c)       ? CONSENSUS_LEADER
		    : !consensus_is_voter(c)               ? CONSENSUS_STANDBY
		    : r->state == RAFT_CANDIDATE ? CONSENSUS_CANDIDATE
						 : CONSENSUS_FOLLOWER;
	out->leader = consensus_is_leader(c)      ? c->cfg.id
		      : r->state == RAFT_FOLLOWER ? (uint16_t)r->follower_state.current_leader.id
						  : 0;
	out->term = r->current_term;
	out->applied = r->last_applied;
	out->committed = r->commit_index;
	out->last = view_last(&c->view);
	out->log_entries = c->view.count;
	out->snapshot_index = c->view.snapshot_index;
	out->leader_contact_us = c->contact_us;
	out->members = r->configuration.n;
	for (unsigned i = 0; i < r->configuration.n; i++) {
		if (r->configuration.servers[i].role != RAFT_VOTER)
			continue;
		if (out->voters < ARRAY_LEN(out->voter))
			out->voter[out->voters] = (uint16_t)r->configuration.servers[i].id;
		out->voters++;
	}
}
