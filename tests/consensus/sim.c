/* SPDX-License-Identifier: Apache-2.0 */
/* The machines, the network between them, the clients and the chaos. One heap of events; one seed.
 */
#include "tests/consensus/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/hash.h"

#define MS 1000u

/* ---- The heap of events ---- */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
	return a->at_us != b->at_us ? a->at_us < b->at_us : a->seq < b->seq;
}

static void push(struct sim *s, struct sim_event e)
{
	size_t i = s->heap_count++;

	if (s->heap_count > s->heap_cap) {
		s->heap_cap = s->heap_cap ? 2 * s->heap_cap : 256;
		s->heap = xrealloc(s->heap, s->heap_cap * sizeof(*s->heap));
	}
	e.seq = ++s->seq;
	while (i && before(&e, &s->heap[(i - 1) / 2])) {
		s->heap[i] = s->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->heap[i] = e;
}

static struct sim_event pop(struct sim *s)
{
	struct sim_event top = s->heap[0], e = s->heap[--s->heap_count];
	size_t i = 0;

	for (;;) {
		size_t k = 2 * i + 1;

		if (k >= s->heap_count)
			break;
		if (k + 1 < s->heap_count && before(&s->heap[k + 1], &s->heap[k]))
			k++;
		if (!before(&s->heap[k], &e))
			break;
		s->heap[i] = s->heap[k];
		i = k;
	}
	if (s->heap_count)
		s->heap[i] = e;
	return top;
}

static void event_for(struct sim_node *n, enum sim_event_kind kind, uint64_t delay_us)
{
	push(n->sim, (struct sim_event){.at_us = n->sim->now_us + delay_us,
					.kind = kind,
					.node = (uint16_t)(n - n->sim->node),
					.incarnation = n->incarnation});
}

/* ---- The environment of a node ---- */

static struct sim_node *node_of(struct consensus_env *e)
{
	return container_of(e, struct sim_node, env);
}

static uint64_t env_now_us(struct consensus_env *e)
{
	return node_of(e)->sim->now_us;
}

static uint64_t env_random(struct consensus_env *e, uint64_t lo, uint64_t hi)
{
	return rng_between(&node_of(e)->sim->rng, lo, hi);
}

static void env_wake_in(struct consensus_env *e, uint64_t delay_ms)
{
	struct sim_node *n = node_of(e);

	event_for(n, EV_WAKE, delay_ms * MS + rng_below(&n->sim->rng, 300));
	n->wake_seq = n->sim->seq;
}

static void env_turn(struct consensus_env *e)
{
	event_for(node_of(e), EV_TURN, rng_below(&node_of(e)->sim->rng, 60));
}

static void env_write(struct consensus_env *e, const struct raft_write *w, unsigned count)
{
	struct sim_node *n = node_of(e);
	struct sim *s = n->sim;
	uint64_t delay = 50 + rng_below(&s->rng, s->p.disk_us);

	if (s->now_us < n->slow_until_us)
		delay += rng_below(&s->rng, 600 * MS);
	n->write = w;
	n->write_count = count;
	event_for(n, EV_WRITTEN, delay);
}

static void env_fatal(struct consensus_env *e, const char *why)
{
	node_of(e)->fatal = why;
}

static void env_destroy(struct consensus_env *e)
{
}

static const struct consensus_env_ops env_ops = {
	.now_us = env_now_us,
	.random = env_random,
	.wake_in = env_wake_in,
	.turn = env_turn,
	.write = env_write,
	.fatal = env_fatal,
	.destroy = env_destroy,
};

/* ---- Hooks: the network, the state machine ---- */

static void transmit(struct sim *s, unsigned from, unsigned to, const void *msg, size_t len,
		     uint64_t delay)
{
	push(s, (struct sim_event){.at_us = s->now_us + delay,
				   .kind = EV_MESSAGE,
				   .node = (uint16_t)to,
				   .from = (uint16_t)from,
				   .data = memcpy(xmalloc(len), msg, len),
				   .len = len,
				   .session = s->link[from][to].session});
}

static bool hook_send(void *ctx, uint16_t to_id, const void *msg, size_t len)
{
	struct sim_node *n = ctx;
	struct sim *s = n->sim;
	unsigned from = (unsigned)(n - s->node), to = to_id - 1u;
	struct sim_link *l;
	uint64_t delay;

	if (to >= s->count)
		return false;
	l = &s->link[from][to];
	if (l->refused || (!s->node[to].up && rng_chance(&s->rng, 0.7)))
		return false;
	if (l->blocked || !s->node[to].up || (!s->calm && rng_chance(&s->rng, s->p.loss)))
		return true;
	/* In order within a session. */
	delay = 30 + rng_below(&s->rng, s->p.delay_us);
	if (s->now_us + delay <= l->last_us)
		delay = l->last_us - s->now_us + 1;
	l->last_us = s->now_us + delay;
	transmit(s, from, to, msg, len, delay);
	/* The same bytes once more, through another connection: much later, too. */
	if (!s->calm && rng_chance(&s->rng, s->p.late))
		transmit(
			s, from, to, msg, len,
			delay + rng_below(&s->rng, rng_chance(&s->rng, 0.5) ? 30 * MS : 3000 * MS));
	return true;
}

uint64_t sim_command_of(const void *data, size_t len)
{
	uint64_t v = 0;

	memcpy(&v, data, MIN(len, sizeof(v)));
	return v;
}

static void hook_apply(void *ctx, uint64_t index, const void *cmd, size_t len,
		       struct command_result *out)
{
	struct sim_node *n = ctx;

	if (index <= n->fsm_applied)
		sim_fail(n->sim, "node %u applies %llu after %llu", n->id,
			 (unsigned long long)index, (unsigned long long)n->fsm_applied);
	n->fsm_applied = index;
	n->fsm_hash = hash_xxh3(cmd, len, n->fsm_hash ^ index);
	out->id = sim_command_of(cmd, len);
	check_applied(n->sim, n, index);
}

static void hook_snapshot(void *ctx, struct writer *w)
{
	struct sim_node *n = ctx;

	write_u64(w, n->fsm_applied);
	write_u64(w, n->fsm_hash);
}

static int hook_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	struct sim_node *n = ctx;
	struct reader r = reader_init(data, len);

	n->fsm_applied = read_u64(&r);
	n->fsm_hash = read_u64(&r);
	n->sim->stats.installs++;
	if (n->fsm_applied > index)
		sim_fail(n->sim, "node %u restores the state of %llu as that of %llu", n->id,
			 (unsigned long long)n->fsm_applied, (unsigned long long)index);
	if (n->fsm_applied)
		check_applied(n->sim, n, n->fsm_applied);
	return reader_done(&r) ? 0 : -ERR_PROTOCOL;
}

static const struct consensus_hooks hooks = {
	.send = hook_send,
	.apply = hook_apply,
	.snapshot = hook_snapshot,
	.restore = hook_restore,
};

/* ---- Machines ---- */

void sim_boot(struct sim *s, struct sim_node *n)
{
	struct consensus_config cfg = {.id = n->id, .hooks = &hooks, .ctx = n};
	int rc;

	CHECK(!n->up);
	n->incarnation++;
	n->fatal = NULL;
	n->fsm_applied = n->fsm_hash = 0;
	n->seen_commit = 0;
	n->seen_leader = false;
	n->write = NULL;
	n->env = (struct consensus_env){.ops = &env_ops,
					.snapshot_threshold = s->p.threshold,
					.snapshot_trailing = s->p.trailing,
					.append_max = s->p.append_max};
	n->up = true;
	rc = consensus_start_on(&cfg, &n->env, &n->disk.disk, &n->c);
	if (rc < 0) {
		n->up = false;
		sim_fail(s, "node %u does not start: %s", n->id, err_name(rc));
	}
}

void sim_crash(struct sim *s, struct sim_node *n)
{
	if (!n->up)
		return;
	if (n->write && rng_chance(&s->rng, 0.5))
		n->disk.disk.ops->write(&n->disk.disk, n->write, n->write_count);
	n->write = NULL;
	sim_disk_crash(&n->disk, &s->rng);
	n->up = false;
	n->incarnation++;
	consensus_abort(n->c);
	n->c = NULL;
}

struct sim_node *sim_leader(struct sim *s)
{
	struct sim_node *best = NULL;

	for (unsigned i = 0; i < s->count; i++) {
		struct sim_node *n = &s->node[i];

		if (n->up && consensus_is_leader(n->c) &&
		    (!best || n->c->raft.current_term > best->c->raft.current_term))
			best = n;
	}
	return best;
}

/* ---- Clients ---- */

struct sim_client {
	struct wait wait;
	struct proposal proposal;
	struct sim *sim;
	uint64_t command;
};

static void on_proposed(struct wait *w, int rc)
{
	struct sim_client *k = container_of(w, struct sim_client, wait);

	if (rc == 0) {
		if (k->proposal.result.id != k->command)
			sim_fail(k->sim, "a proposal got the result of another");
		check_acked(k->sim, k->proposal.result.index, k->command);
	} else if (rc == -ERR_NOT_LEADER) {
		k->sim->refused[k->command] = 1;
	}
	free(k);
}

uint64_t sim_propose(struct sim *s, struct sim_node *n)
{
	struct sim_client *k;
	uint8_t cmd[64];
	size_t len = 8 + rng_below(&s->rng, sizeof(cmd) - 8);
	uint64_t number = s->next_command + 1;

	if (!n->up || number >= SIM_INDEX_MAX * 4)
		return 0;
	k = xcalloc(1, sizeof(*k));
	memset(cmd, (int)number, sizeof(cmd));
	memcpy(cmd, &number, sizeof(number));
	k->wait.resume = on_proposed;
	k->sim = s;
	k->command = number;
	if (consensus_propose(n->c, &k->proposal, cmd, len, &k->wait) != PENDING) {
		free(k);
		return 0;
	}
	return s->next_command = number;
}

static void client(struct sim *s)
{
	struct sim_node *n = &s->node[rng_below(&s->rng, s->count)];
	unsigned burst = rng_chance(&s->rng, 0.02) ? 100 : (unsigned)rng_between(&s->rng, 1, 4);

	if (rng_chance(&s->rng, 0.8) && sim_leader(s))
		n = sim_leader(s);
	while (burst--)
		sim_propose(s, n);
	push(s, (struct sim_event){.at_us = s->now_us + 1 + rng_below(&s->rng, 2 * s->p.client_us),
				   .kind = EV_CLIENT});
}

/* ---- Membership ---- */

struct sim_change {
	struct wait wait;
	struct sim *sim;
};

static void on_changed(struct wait *w, int rc)
{
	struct sim_change *k = container_of(w, struct sim_change, wait);

	k->sim->stats.changes += rc == 0;
	free(k);
}

static void member(struct sim *s)
{
	struct sim_node *l = sim_leader(s);
	uint16_t id = (uint16_t)rng_between(&s->rng, 1, s->count);
	struct sim_change *k;
	int rc;

	push(s, (struct sim_event){.at_us = s->now_us + 1 +
					    rng_below(&s->rng, 2 * s->p.member_every_us),
				   .kind = EV_MEMBER});
	if (!l || s->calm)
		return;
	k = xcalloc(1, sizeof(*k));
	k->wait.resume = on_changed;
	k->sim = s;
	switch (rng_below(&s->rng, 5)) {
	case 0:
	case 1:
		rc = consensus_add_standby(l->c, id, &k->wait);
		break;
	case 2:
		rc = consensus_make_voter(l->c, id, &k->wait);
		break;
	case 3:
		rc = consensus_make_standby(l->c, id, &k->wait);
		break;
	default:
		rc = consensus_remove(l->c, id, &k->wait);
		break;
	}
	if (rc == -ERR_REFUSED && id == l->id) { /* as who wants it out does */
		consensus_resign(l->c);
		s->stats.resigns++;
	}
	if (rc != PENDING)
		free(k);
}

/* ---- Chaos ---- */

static void crash_and_return(struct sim *s, struct sim_node *n, uint64_t away_us)
{
	bool leader = n->up && consensus_is_leader(n->c);

	s->stats.crashes += n->up;
	sim_crash(s, n);
	event_for(n, EV_RESTART, away_us);
	if (!leader || s->p.no_gone || rng_chance(&s->rng, 0.3))
		return;
	for (unsigned i = 0; i < s->count; i++)
		event_for(&s->node[i], EV_GONE, rng_below(&s->rng, 5 * MS));
}

static void heal(struct sim *s)
{
	for (unsigned i = 0; i < s->count; i++)
		for (unsigned j = 0; j < s->count; j++)
			s->link[i][j].blocked = s->link[i][j].refused = false;
}

static void partition(struct sim *s)
{
	unsigned side = (unsigned)rng_below(&s->rng, 1u << s->count);
	bool one_way = rng_chance(&s->rng, 0.4), silent = rng_chance(&s->rng, 0.6);

	heal(s);
	for (unsigned i = 0; i < s->count; i++)
		for (unsigned j = 0; j < s->count; j++) {
			bool cut = ((side >> i) & 1) && !((side >> j) & 1);

			if (!one_way)
				cut |= ((side >> j) & 1) && !((side >> i) & 1);
			s->link[i][j].blocked = cut && silent;
			s->link[i][j].refused = cut && !silent;
		}
}

static void chaos(struct sim *s)
{
	struct sim_node *n = &s->node[rng_below(&s->rng, s->count)];
	struct sim_node *l = sim_leader(s);

	if (s->calm)
		return;
	if (l && rng_chance(&s->rng, 0.4))
		n = l;
	switch (rng_below(&s->rng, 10)) {
	case 0:
	case 1:
		crash_and_return(
			s, n, rng_below(&s->rng, rng_chance(&s->rng, 0.5) ? 300 * MS : 3000 * MS));
		break;
	case 2:
	case 3:
		partition(s);
		break;
	case 4:
	case 5:
	case 6:
		heal(s);
		break;
	case 7:
		n->slow_until_us = s->now_us + rng_below(&s->rng, 2000 * MS);
		break;
	case 8: /* a clock that jumps, on any node */
		if (n->up)
			n->c->jump_ms += rng_below(&s->rng, 2000);
		break;
	default: /* all at once */
		for (unsigned i = 0; i < s->count; i++)
			if (rng_chance(&s->rng, 0.6))
				crash_and_return(s, &s->node[i], rng_below(&s->rng, 500 * MS));
		break;
	}
	push(s, (struct sim_event){.at_us = s->now_us + 1 +
					    rng_below(&s->rng, 2 * s->p.chaos_every_us),
				   .kind = EV_CHAOS});
}

/* ---- Events ---- */

static void node_event(struct sim *s, struct sim_node *n, const struct sim_event *e)
{
	int rc;

	switch (e->kind) {
	case EV_WAKE:
		if (e->seq == n->wake_seq)
			consensus_on_wake(n->c);
		break;
	case EV_TURN:
		consensus_on_turn(n->c);
		break;
	case EV_WRITTEN:
		rc = !s->calm && rng_chance(&s->rng, s->p.disk_error) ? -EIO : 0;
		/* One that fails may have happened. */
		if (rc == 0 || rng_chance(&s->rng, 0.5))
			n->disk.disk.ops->write(&n->disk.disk, n->write, n->write_count);
		n->write = NULL;
		consensus_on_written(n->c, rc);
		break;
	case EV_MESSAGE:
		s->stats.messages++;
		consensus_receive(n->c, (uint16_t)(e->from + 1u), e->data, e->len);
		break;
	case EV_GONE:
		consensus_leader_gone(n->c, (uint16_t)n->c->raft.follower_state.current_leader.id);
		break;
	default:
		break;
	}
}

static void node_after(struct sim *s, struct sim_node *n)
{
	if (!n->fatal && n->c->dead)
		n->fatal = "dead";
	if (!n->fatal) {
		check_node(s, n);
		if (s->stats.events % 64 == 0)
			check_logs(s);
		return;
	}
	if (s->verbose)
		printf("%8llu ms  node %u ends: %s\n", (unsigned long long)s->now_us / 1000, n->id,
		       n->fatal);
	s->stats.fatals++;
	sim_crash(s, n);
	event_for(n, EV_RESTART, 50 * MS);
}

static void step(struct sim *s)
{
	struct sim_event e = pop(s);
	struct sim_node *n = &s->node[e.node];

	s->now_us = MAX(s->now_us, e.at_us);
	s->stats.events++;
	switch (e.kind) {
	case EV_CLIENT:
		client(s);
		break;
	case EV_CHAOS:
		chaos(s);
		break;
	case EV_MEMBER:
		member(s);
		break;
	case EV_RESTART:
		if (!n->up)
			sim_boot(s, n);
		break;
	default:
		if (n->up && (e.kind == EV_MESSAGE || e.incarnation == n->incarnation)) {
			node_event(s, n, &e);
			node_after(s, n);
		}
		break;
	}
	free(e.data);
}

void sim_run_until(struct sim *s, uint64_t at_us)
{
	while (!s->failure[0] && s->heap_count && s->heap[0].at_us <= at_us)
		step(s);
	s->now_us = MAX(s->now_us, at_us);
}

void sim_params_default(struct sim_params *p)
{
	*p = (struct sim_params){.nodes = 3,
				 .delay_us = 1 * MS,
				 .disk_us = 1 * MS,
				 .client_us = 20 * MS,
				 .chaos_every_us = 400 * MS,
				 .member_every_us = 1500 * MS,
				 .threshold = 64,
				 .trailing = 32};
}

/* Everyone who is there at first has the same first entry. */
static void format_disk(struct sim *s, struct sim_node *n)
{
	struct raft_configuration conf;
	struct raft_disk_entry e = {.term = 1, .type = RAFT_CHANGE};
	struct raft_buffer buf;

	raft_configuration_init(&conf);
	for (unsigned i = 0; i < s->p.nodes; i++) {
		char address[12];

		snprintf(address, sizeof(address), "%u", i + 1);
		CHECK(raft_configuration_add(&conf, i + 1, address, RAFT_VOTER) == 0);
	}
	CHECK(configuration_encode(&conf, &buf) == 0);
	e.data = buf.base;
	e.len = buf.len;
	n->disk.disk.ops->bootstrap(&n->disk.disk, &e);
	raft_free(buf.base);
	raft_configuration_close(&conf);
}

void sim_start(struct sim *s, uint64_t seed, const struct sim_params *p)
{
	bool verbose = s->verbose;

	memset(s, 0, sizeof(*s));
	s->verbose = verbose;
	s->seed = seed;
	s->p = *p;
	rng_seed(&s->rng, seed * 2654435761u + 17);
	s->count = p->nodes + p->spares;
	s->now_us = 1000 * MS;
	check_init(s);
	for (unsigned i = 0; i < s->count; i++) {
		struct sim_node *n = &s->node[i];

		n->sim = s;
		n->id = (uint16_t)(i + 1);
		n->joined = i < p->nodes;
		sim_disk_init(&n->disk);
		if (n->joined)
			format_disk(s, n);
		sim_boot(s, n);
	}
}

void sim_finish(struct sim *s)
{
	for (unsigned i = 0; i < s->count; i++) {
		if (s->node[i].up) {
			s->node[i].up = false;
			consensus_abort(s->node[i].c);
		}
		sim_disk_fini(&s->node[i].disk);
	}
	while (s->heap_count)
		free(pop(s).data);
	free(s->heap);
	s->heap = NULL;
	check_fini(s);
}

static void draw_params(struct sim *s, uint64_t seed, struct sim_params *p)
{
	static const unsigned small[] = {4, 8, 16, 64, 256};
	struct rng r;

	rng_seed(&r, seed);
	sim_params_default(p);
	p->nodes = seed % 3 == 0 ? 5 : 3;
	p->spares = (unsigned)rng_below(&r, 3);
	p->chaos_us = rng_between(&r, 2000, 10000) * MS;
	p->calm_us = 12000 * MS;
	p->loss = rng_chance(&r, 0.5) ? 0 : (double)rng_below(&r, 100) / 1000;
	p->late = rng_chance(&r, 0.3) ? 0 : (double)rng_below(&r, 100) / 1000;
	p->disk_error = rng_chance(&r, 0.8) ? 0 : 0.002;
	p->delay_us = rng_chance(&r, 0.6) ? 1 * MS : 40 * MS;
	p->disk_us = rng_chance(&r, 0.6) ? 2 * MS : 60 * MS;
	p->client_us = rng_between(&r, 5, 100) * MS;
	p->chaos_every_us = rng_between(&r, 50, 800) * MS;
	p->member_every_us = rng_between(&r, 200, 2000) * MS;
	p->threshold = small[rng_below(&r, 5)];
	p->trailing = small[rng_below(&r, 5)];
	p->append_max = rng_chance(&r, 0.5) ? 0 : 1200;
	p->no_gone = rng_chance(&r, 0.3);
}

/* Chaos, then calm: all is healed, and the group must work again. */
bool sim_history(struct sim *s, uint64_t seed)
{
	struct sim_params p;

	draw_params(s, seed, &p);
	sim_start(s, seed, &p);
	push(s, (struct sim_event){.at_us = s->now_us + 1, .kind = EV_CLIENT});
	push(s, (struct sim_event){.at_us = s->now_us + 600 * MS, .kind = EV_CHAOS});
	push(s, (struct sim_event){.at_us = s->now_us + 800 * MS, .kind = EV_MEMBER});
	sim_run_until(s, s->now_us + p.chaos_us);
	s->calm = true;
	heal(s);
	for (unsigned i = 0; i < s->count; i++) {
		s->node[i].slow_until_us = 0;
		if (!s->node[i].up && !s->failure[0])
			sim_boot(s, &s->node[i]);
	}
	s->p.client_us = 100 * MS;
	sim_run_until(s, s->now_us + p.calm_us);
	/* The clients stop; what they asked for arrives everywhere. */
	for (size_t i = 0; i < s->heap_count; i++)
		if (s->heap[i].kind == EV_CLIENT)
			s->heap[i].kind = EV_CHAOS;
	sim_run_until(s, s->now_us + 1500 * MS);
	if (!s->failure[0])
		check_end(s);
	sim_finish(s);
	return !s->failure[0];
}
