/* SPDX-License-Identifier: Apache-2.0 */
/* What a node does by the clock: when it wakes, when it stands for election sooner than libraft would, and
 * how a leader resigns.
 *
 * A follower needs no regular tick (libraft's does nothing before its election timer ends): it wakes when
 * that would be, so an idle node costs its heartbeats only. */
#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"

#define NO_VOTER_WAKE_MS 1000
#define GONE_STEP_MS     30
#define GONE_ROUNDS      6
#define RESIGN_MS        3000 /* several elections */

bool consensus_is_voter(const struct consensus *c)
{
	const struct raft_server *s = configuration_get(&c->raft.configuration, c->cfg.id);

	return s && s->role == RAFT_VOTER;
}

/* Both states keep it in the same place (libraft relies on it, too). */
static uint64_t timer_left_ms(struct consensus *c)
{
	uint64_t end =
		c->raft.election_timer_start + c->raft.follower_state.randomized_election_timeout;
	uint64_t now = consensus_now_ms(c);

	return end > now ? end - now : 0;
}

void consensus_wake(struct consensus *c)
{
	uint64_t delay, now = consensus_now_ms(c) - c->jump_ms;

	if (consensus_resigning(c) && c->raft.state != RAFT_LEADER)
		delay = c->resign_until_ms > now ? c->resign_until_ms - now : 1;
	else if (c->raft.state == RAFT_LEADER)
		delay = c->raft.configuration.n > 1 ? c->raft.heartbeat_timeout / 2
						    : c->raft.election_timeout / 2;
	else if (!consensus_is_voter(c))
		delay = NO_VOTER_WAKE_MS; /* its ticks do nothing */
	else if (guard_x5_no_tick(c) || guard_x6_waits(c))
		return; /* the write's end comes here again */
	else
		delay = MAX(timer_left_ms(c), 1u);
	/* One that comes early looks again: a follower's timer is put off by each heartbeat. */
	if (c->wake_at_ms && c->wake_at_ms <= now + delay)
		return;
	c->wake_at_ms = now + delay;
	c->env->ops->wake_in(c->env, delay);
}

void consensus_on_wake(struct consensus *c)
{
	c->wake_at_ms = 0;
	if (c->dead || c->stopping)
		return;
	if (!guard_x5_no_tick(c) && !guard_x6_waits(c) &&
	    (c->raft.state == RAFT_LEADER || !consensus_resigning(c))) {
		consensus_enter(c);
		c->tick(&c->io);
		consensus_leave(c);
		consensus_after_call(c);
	}
	consensus_settle(c);
}

/* Safety does not rest on time: libraft may be shown any clock that does not go backwards. */
static void jump_to_timer(struct consensus *c, uint64_t left_ms)
{
	uint64_t left = timer_left_ms(c);

	if (left > left_ms && rule(RULE_JUMP))
		c->jump_ms += left - left_ms;
	c->gone_mark = c->raft.election_timer_start;
}

void consensus_leader_gone(struct consensus *c, uint16_t leader)
{
	unsigned rank = 0;

	if (c->dead || c->stopping || c->raft.state != RAFT_FOLLOWER || !consensus_is_voter(c) ||
	    c->raft.follower_state.current_leader.id != leader || leader == c->cfg.id)
		return;
	for (unsigned i = 0; i < c->raft.configuration.n; i++) {
		const struct raft_server *s = &c->raft.configuration.servers[i];

		rank += s->role == RAFT_VOTER && s->id < c->cfg.id && s->id != leader;
	}
	c->gone_rounds = GONE_ROUNDS;
	jump_to_timer(c, rank * GONE_STEP_MS);
	consensus_wake(c);
}

/* A candidate that was refused (the others' timers had not ended yet, or its log is the shorter
 * one) stands again one round later, still staggered, instead of an election timeout later. */
void consensus_hurry(struct consensus *c)
{
	if (c->gone_rounds == 0 || c->raft.state != RAFT_CANDIDATE ||
	    c->gone_mark == c->raft.election_timer_start)
		return;
	c->gone_rounds--;
	jump_to_timer(c, configuration_voters(&c->raft.configuration) * GONE_STEP_MS);
}

/* ---- Resigning ----
 *
 * libraft's transfer of leadership is not to be used (R6). A leader that nobody hears is nothing new to
 * Raft: the others elect another one, whose messages depose it; the same without one, at its own next look
 * at its contacts. Meanwhile it does not stand for election itself, or it would win with the longest log.
 * So it must not have the longest: as long as something here is not committed, it may be needed to lead. */

bool consensus_resigning(struct consensus *c)
{
	return c->resign_until_ms != 0;
}

void consensus_resign(struct consensus *c)
{
	if (c->dead || c->stopping || c->raft.state != RAFT_LEADER || consensus_resigning(c) ||
	    c->raft.commit_index < raft_last_index(&c->raft))
		return;
	c->resign_until_ms = consensus_now_ms(c) - c->jump_ms + RESIGN_MS;
	consensus_fail_waiting(c, -ERR_NOT_LEADER);
	consensus_turn(c);
	log_info("raft", "the leader resigns", "node=%u term=%llu", c->cfg.id,
		 (unsigned long long)c->raft.current_term);
}

void consensus_resign_step(struct consensus *c)
{
	bool led = c->raft.state == RAFT_FOLLOWER && c->raft.follower_state.current_leader.id != 0 &&
		   c->raft.follower_state.current_leader.id != c->cfg.id;

	if (led || consensus_now_ms(c) - c->jump_ms >= c->resign_until_ms)
		c->resign_until_ms = 0;
}
