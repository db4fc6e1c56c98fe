/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that start, crash and pause; the oracle that stands for Raft; and what goes wrong, and
 * when. No plan destroys the last good copy: a lost log only where another member is `in`. */
#include "tests/replica/sim.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- The oracle ---------------------------------------------------------------------------------
 */

static void delta_arrives(void *arg);

static void changed(void *arg, enum map_record kind, uint64_t id)
{
	struct sim_proc *p = arg;

	if (p->r)
		replicator_map_changed(p->r, kind, id);
}

static void deltas_go(struct sim_proc *p)
{
	uint64_t delay = sim_chance(0.1) ? sim_rand(50000, 400000) : sim_rand(500, 20000);

	if (p->raft_cut_until > sim.now_us)
		delay += p->raft_cut_until - sim.now_us;
	p->delta_next_us = MAX(p->delta_next_us, sim.now_us + delay);
	sim_at(p->delta_next_us - sim.now_us, p, delta_arrives, NULL, p);
}

/* The next delta of this node, in order; many may be due at once. */
static void delta_arrives(void *arg)
{
	struct sim_proc *p = arg;
	struct reader r;

	if (p->delta_at >= sim.delta_count)
		return;
	if (p->delta_at >= p->old_deltas && sim.now_us < p->old_until_us) {
		sim_at(p->old_until_us - sim.now_us, p, delta_arrives, NULL, p);
		return;
	}
	do {
		r = reader_init(sim.deltas[p->delta_at].bytes, sim.deltas[p->delta_at].len);
		p->delta_at++;
		if (map_delta_apply(&p->map, &r, changed, p))
			sim_fail("a map delta was not taken");
	} while (p->map_leaps && p->delta_at < sim.delta_count);
	replicator_map_done(p->r);
}

static void no_change(void *arg, enum map_record kind, uint64_t id)
{
}

static void apply_bytes(void *arg)
{
	struct writer *w = arg;
	static struct command_result result;
	struct writer d = writer_init_heap();
	uint64_t version = state_map(sim.state)->version;

	state_apply(sim.state, ++sim.index, w->data, w->len, &result, no_change, NULL);
	if (result.code && !strstr(result.text, "registered"))
		sim_trace("command refused: %s", result.text);
	state_delta(sim.state, version, &d);
	if (sim.delta_count == sim.delta_cap) {
		sim.delta_cap = sim.delta_cap ? sim.delta_cap * 2 : 64;
		sim.deltas = xrealloc(sim.deltas, sim.delta_cap * sizeof(*sim.deltas));
	}
	sim.deltas[sim.delta_count].bytes = d.data;
	sim.deltas[sim.delta_count++].len = d.len;
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		if (sim.proc[i].alive)
			deltas_go(&sim.proc[i]);
	writer_free(w);
	free(w);
}

static void drop_bytes(void *arg)
{
	writer_free(arg);
	free(arg);
}

static void propose_later(const struct command *c, uint64_t delay_us)
{
	struct writer *w = xmalloc(sizeof(*w));

	*w = writer_init_heap();
	command_encode(c, w);
	sim_at(delay_us, NULL, apply_bytes, drop_bytes, w);
}

void sim_submit_command(const struct command *c)
{
	static struct command_result result;
	struct writer *w = xmalloc(sizeof(*w));

	(void)result;
	*w = writer_init_heap();
	command_encode(c, w);
	apply_bytes(w);
}

static void hook_propose(void *ctx, const struct object_change *changes, unsigned count)
{
	struct sim_proc *p = ctx;
	struct command c = {.kind = CMD_OBJECT, .object = {count, (struct object_change *)changes}};

	for (unsigned i = 0; i < count; i++)
		sim_trace("proposes %s of object %llx on epoch %u (group %u)",
			  changes[i].op == OBJ_DROP      ? "drop"
			  : changes[i].op == OBJ_PROMOTE ? "promote"
							 : "takeover",
			  (unsigned long long)changes[i].object, changes[i].epoch,
			  changes[i].replica.group);
	if (p->dying || sim.leaderless_until > sim.now_us || p->raft_cut_until > sim.now_us)
		return;
	if (sim_chance(0.05))
		return; /* lost on the way */
	propose_later(&c, sim_chance(0.1) ? sim_rand(10000, 300000) : sim_rand(1000, 10000));
}

void sim_propose_changes(const struct object_change *changes, unsigned count)
{
	struct command c = {.kind = CMD_OBJECT, .object = {count, (struct object_change *)changes}};

	propose_later(&c, sim_chance(0.1) ? sim_rand(10000, 300000) : sim_rand(1000, 10000));
}

static bool hook_leader(void *ctx)
{
	struct sim_proc *p = ctx;

	return sim.leaderless_until <= sim.now_us && p->raft_cut_until <= sim.now_us;
}

static void hook_failed(void *ctx, uint16_t group, int code)
{
	struct sim_proc *p = ctx;

	p->failed_group = true;
	if (!p->dying && !p->group_fails)
		sim_fail("node %u: group failed with %s", p->node, err_name(code));
}

static void hook_superseded(void *ctx)
{
	sim_fail("superseded");
}

static void hook_event(void *ctx, uint8_t severity, const char *code, const char *text)
{
	sim_trace("event %s: %s", code, text);
	sim.waits_told |= !strcmp(code, "DATA_NEWER");
	sim.newer_told += !strcmp(code, "DATA_NEWER") || !strcmp(code, "DATA_DIVERGED");
	sim.lost_told += !strcmp(code, "REPLICA_LOST_DATA");
	if (severity >= 2 && !(sim.losing && (!strcmp(code, "DATA_CORRUPT_UNREPAIRABLE") ||
					      !strcmp(code, "REPLICA_LOST_DATA") ||
					      !strcmp(code, "DATA_DIVERGED") ||
					      !strcmp(code, "DATA_NEWER"))))
		sim_fail("event %s: %s", code, text);
}

static uint64_t hook_wall(void *ctx)
{
	(void)ctx;
	return sim.now_us / 1000;
}

static const struct replicator_hooks hooks = {
	.propose = hook_propose,
	.group_failed = hook_failed,
	.superseded = hook_superseded,
	.event = hook_event,
	.leader_known = hook_leader,
	.wall_ms = hook_wall,
};

/* ---- Processes ----------------------------------------------------------------------------------
 */

static void register_again(void *arg)
{
	struct sim_proc *p = arg;
	struct map_node *n = map_node(&p->map, (uint16_t)p->node);
	struct command c = {.kind = CMD_NODE_START};

	if (n && n->incarnation == p->incarnation)
		return;
	c.node_start.node = (uint16_t)p->node;
	c.node_start.incarnation = p->incarnation;
	c.node_start.old_incarnation = n ? n->incarnation : 0;
	c.node_start.shards = 1;
	c.node_start.roles = ROLE_STORAGE;
	snprintf(c.node_start.address, sizeof(c.node_start.address), "10.0.0.%u:7000", p->node);
	if (sim.leaderless_until <= sim.now_us && p->raft_cut_until <= sim.now_us)
		propose_later(&c, sim_rand(1000, 10000));
	sim_at(sim_rand(100000, 200000), p, register_again, NULL, p);
}

static void destage_again(void *arg)
{
	struct sim_proc *p = arg;

	sim_store_destage(p->disk);
	sim_at(sim.plan.tiny_log ? sim_rand(2000, 30000) : sim_rand(5000, 300000), p, destage_again,
	       NULL, p);
}

static void start_done(void *arg)
{
	struct sim_proc *p = arg;

	/* A new process has no map until its first deltas come: all of them, from the beginning or
	 * as one. */
	replicator_store_add(p->r, p->group, p->disk);
	for (size_t i = p->delta_at; i < sim.delta_count; i++)
		deltas_go(p);
	register_again(p);
	destage_again(p);
}

static void proc_start(struct sim_proc *p)
{
	struct replicator_config cfg = {.shard = 0,
					.shards = 1,
					.node = (uint16_t)p->node,
					.confirm_reads = sim.plan.confirm_reads,
					.ops = 64,
					.hooks = &hooks,
					.ctx = p};

	CHECK(!p->alive);
	p->alive = p->powered = true;
	p->life++;
	p->paused_until = p->stopped_us = p->beacon = 0;
	p->incarnation++;
	p->clock_offset_us = sim_rand(1, 1000) * 1000000;
	p->drift_ppm = sim.plan.drift ? (int64_t)sim_rand(0, 80000) - 40000 : 0;
	p->loop = sim_loop_create(p);
	p->pool = buf_pool_create(512u << 20);
	p->delta_next_us = sim.now_us;
	p->delta_at = 0;
	p->failed_group = p->stopping = p->group_fails = false;
	map_init(&p->map);
	sim_store_attach(p->disk, p);
	cfg.loop = p->loop;
	cfg.pool = p->pool;
	cfg.map = &p->map;
	cfg.incarnation = p->incarnation;
	p->r = replicator_create(&cfg);
	sim_trace("node %u starts, incarnation %u", p->node, p->incarnation);
	sim_at(1000, p, start_done, NULL, p);
}

/* silent: power loss, nobody is told. */
static void proc_crash(struct sim_proc *p, bool silent)
{
	if (!p->alive)
		return;
	sim_trace("node %u %s", p->node, silent ? "loses power" : "crashes");
	sim.running = p;
	p->dying = true;
	p->powered = !silent;
	sim_net_process_gone(p, silent);
	sim_store_crash(p->disk);
	sim_turn(p);
	replicator_destroy(p->r);
	p->r = NULL;
	p->alive = false;
	p->dying = false;
	map_fini(&p->map);
	buf_pool_destroy(p->pool);
	sim_loop_destroy(p->loop);
	p->loop = NULL;
	sim.running = NULL;
}

/* The Raft majority is lost for good: a survivor goes on with what it knew, and with nothing of what came
 * after. All processes have ended. */
void sim_recover(const struct writer *snapshot)
{
	struct writer d = writer_init_heap();

	for (size_t i = 0; i < sim.delta_count; i++)
		free(sim.deltas[i].bytes);
	CHECK(!state_restore(sim.state, snapshot->data, snapshot->len));
	sim.index += 1u << 20;
	CHECK(!state_recover(sim.state, sim.index, 0, 1, "operator"));
	state_delta(sim.state, 0, &d);
	sim.deltas[0].bytes = d.data;
	sim.deltas[0].len = d.len;
	sim.delta_count = 1;
}

/* ---- Faults -------------------------------------------------------------------------------------
 */

void sim_proc_crash(unsigned node)
{
	proc_crash(&sim.proc[node], false);
}

void sim_proc_start(unsigned node)
{
	proc_start(&sim.proc[node]);
}

void sim_proc_start_old(unsigned node, size_t deltas, uint64_t us)
{
	sim.proc[node].old_deltas = deltas;
	sim.proc[node].old_until_us = sim.now_us + us;
	proc_start(&sim.proc[node]);
}

/* Never to an earlier end: what was put off to the later one would come too late. */
void sim_proc_pause(unsigned node, uint64_t us)
{
	struct sim_proc *p = &sim.proc[node];
	uint64_t from = MAX(sim.now_us, p->paused_until);

	p->paused_until = MAX(p->paused_until, sim.now_us + us);
	if (sim.plan.clock_stops)
		p->stopped_us += MAX(p->paused_until, from) - from;
	sim_trace("node %u pauses until %.3f ms", p->node, (double)p->paused_until / 1000);
}

static void group_open(void *arg)
{
	struct sim_proc *p = arg;

	sim_trace("node %u opens its group again", p->node);
	sim_store_attach(p->disk, p);
	p->group_fails = false;
	replicator_store_add(p->r, p->group, p->disk);
}

static void group_close(void *arg)
{
	struct sim_proc *p = arg;

	sim_store_stop(p->disk);
	replicator_store_remove(p->r, p->group);
	sim_store_close(p->disk);
}

void sim_group_reopen(unsigned node, uint64_t us)
{
	sim_at(0, &sim.proc[node], group_close, NULL, &sim.proc[node]);
	sim_at(us, &sim.proc[node], group_open, NULL, &sim.proc[node]);
}

static void restart(void *arg)
{
	struct sim_proc *p = arg;

	if (!p->alive)
		proc_start(p);
	else if (p->stopping) /* not yet: it starts when it has ended */
		sim_at(100000, NULL, restart, NULL, p);
}

static bool others_in(unsigned node)
{
	const struct map *m = state_map(sim.state);

	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o = map_object(m, object_id(sim.volume, i));
		bool me = false, other = false;

		for (unsigned k = 0; k < o->member_count; k++)
			if (o->member[k].in)
				*(o->member[k].group == sim.proc[node].group ? &me : &other) = true;
		if (me && !other)
			return false;
	}
	return true;
}

/* L5: the log is gone, or the map too, while the process is down or has the group closed; the group is
 * registered anew before it serves. */
static void lose(struct sim_proc *p, bool map)
{
	struct command c = {.kind = CMD_REGROUP};
	const struct map_group *g = map_group(state_map(sim.state), p->group);

	if (!others_in(p->node))
		return;
	sim_trace("node %u loses its %s", p->node, map ? "map" : "log");
	c.regroup.group = p->group;
	c.regroup.node = (uint16_t)p->node;
	c.regroup.old_incarnation = g->incarnation;
	c.regroup.new_incarnation = g->incarnation + 1;
	c.regroup.keeps_pages = !map;
	sim_submit_command(&c);
	(map ? sim_store_lose_map : sim_store_lose_log)(p->disk, g->incarnation);
	sim.faults++;
}

/* ---- A group that fails while its process lives, and is opened again there ---- */

/* The replicas have resigned, or there was no leader to hear of it. */
static void group_fail_close(void *arg)
{
	struct sim_proc *p = arg;

	group_close(p);
	if (sim_chance(sim.plan.log_lost))
		lose(p, sim_chance(0.5));
	sim_at(sim_chance(0.5) ? sim_rand(1000, 50000) : sim_rand(50000, 3000000), p, group_open, NULL,
	       p);
}

static void group_fail_told(void *arg)
{
	struct sim_proc *p = arg;

	if (p->group_fails) /* not opened again yet */
		replicator_store_failed(p->r, p->group, -ERR_MAP_LOST);
}

static void group_fail_begin(struct sim_proc *p)
{
	p->group_fails = true;
	sim.faults++;
	if (sim_chance(0.7)) {
		sim_trace("node %u: its disk group fails", p->node);
		sim_store_fail(p->disk, -ERR_LOG_LOST);
	} else { /* another shard met it first */
		sim_trace("node %u: its disk group is said to have failed", p->node);
		sim_at(0, p, group_fail_told, NULL, p);
	}
	sim_at(sim_chance(0.5) ? sim_rand(100, 20000) : sim_rand(20000, 1000000), p, group_fail_close,
	       NULL, p);
}

static void unblock(void *arg)
{
	unsigned k = (unsigned)(uintptr_t)arg;

	sim_net_block(k / 16, k % 16, false);
}

static void fast_again(void *arg)
{
	struct sim_proc *p = arg;

	sim_store_slow(p->disk, 0);
}

static void block_for(unsigned a, unsigned b, uint64_t us)
{
	sim_net_block(a, b, true);
	sim_at(us, NULL, unblock, NULL, (void *)(uintptr_t)(a * 16 + b));
}

/* ---- Planned moves, clean stops ---- */

struct planned {
	struct sim_proc *p;
	uint32_t object;
	uint64_t until_us;
};

static void move_now(void *arg)
{
	struct planned *a = arg;
	int rc = replicator_move(a->p->r, object_id(sim.volume, a->object), 0);

	if (!rc) {
		sim_trace("node %u moves object %u away", a->p->node, a->object);
		sim.moves_begun++;
	}
	free(a);
}

void sim_move(unsigned node, uint32_t object)
{
	struct planned *a = xcalloc(1, sizeof(*a));

	a->p = &sim.proc[node];
	a->object = object;
	sim_at(1, a->p, move_now, free, a);
}

static void stop_at_end(void *arg)
{
	struct sim_proc *p = arg;

	if (p->alive && p->stopping)
		proc_crash(p, false);
}

static void stop_look(void *arg)
{
	struct planned *a = arg;
	struct sim_proc *p = a->p;

	if (replicator_drain_left(p->r) && sim.now_us < a->until_us) {
		sim_at(10000, p, stop_look, free, a);
		return;
	}
	sim_trace("node %u stops, %u objects were left", p->node, replicator_drain_left(p->r));
	sim_at(0, NULL, stop_at_end, NULL, p);
	free(a);
}

static void stop_begin(void *arg)
{
	struct planned *a = arg;

	sim_trace("node %u will stop", a->p->node);
	sim.stops++;
	replicator_drain(a->p->r);
	stop_look(a);
}

void sim_proc_stop(unsigned node)
{
	struct planned *a = xcalloc(1, sizeof(*a));

	a->p = &sim.proc[node];
	a->until_us = sim.now_us + 3000000;
	a->p->stopping = true;
	sim_at(1, a->p, stop_begin, free, a);
}

/* Suspicion only proposes (S1): safety may not rest on its being right. So anybody who may propose
 * does, now and then, for no reason at all. */
static void false_suspicion(unsigned node)
{
	const struct map *m = state_map(sim.state);
	const struct map_object *o =
		map_object(m, object_id(sim.volume, (uint32_t)sim_rand(0, SIM_OBJECTS - 1)));
	unsigned pick = (unsigned)sim_rand(0, o->member_count - 1);
	const struct map_member *mb = &o->member[pick];
	const struct map_node *n = map_member_node(m, mb), *pn = map_primary_node(m, o);
	struct object_change ch = {.object = o->id, .epoch = o->epoch};
	struct command c = {.kind = CMD_OBJECT, .object = {1, &ch}};

	if (!n || !pn || !mb->in || (node && (n->id != node || pick == o->primary)) ||
	    sim.leaderless_until > sim.now_us)
		return;
	if (node || sim_chance(0.7)) {
		ch.op = OBJ_TAKEOVER;
		ch.node = ch.proposer = n->id;
		ch.incarnation = n->incarnation;
	} else {
		ch.op = OBJ_DROP;
		ch.replica = *mb;
		ch.proposer = pn->id;
		ch.incarnation = pn->incarnation;
	}
	sim_trace("false suspicion: %s of object %llx on epoch %u, node %u",
		  ch.op == OBJ_DROP ? "drop" : "takeover", (unsigned long long)o->id, o->epoch,
		  n->id);
	propose_later(&c, sim_rand(500, 20000));
	if (sim_chance(0.5)) /* and the primary hears of it late */
		sim.proc[pn->id].raft_cut_until =
			MAX(sim.proc[pn->id].raft_cut_until, sim.now_us + sim_rand(50000, 1500000));
	sim.faults++;
}

static void suspect_as(void *arg)
{
	for (unsigned i = 0; i < 4; i++)
		false_suspicion((unsigned)(uintptr_t)arg);
}

/* A process ends and starts again at once, nobody hears of it for a while, and it takes over: what
 * its predecessor granted is still good (T2 c). */
static void hidden_restart(struct sim_proc *p)
{
	for (unsigned b = 1; b <= sim.plan.nodes; b++)
		if (b != p->node)
			block_for(p->node, b, sim_rand(200000, 900000));
	proc_crash(p, false);
	sim_at(sim_rand(500, 10000), NULL, restart, NULL, p);
	sim_at(sim_rand(30000, 150000), NULL, suspect_as, NULL, (void *)(uintptr_t)p->node);
}

/* A guest is stopped, its clock with it, and its links and its news come back a little later than it does:
 * what a primary may believe then is all of the past (N6). */
static void stand_still(struct sim_proc *p)
{
	uint64_t us = sim_rand(700000, 3000000);

	sim_proc_pause(p->node, us);
	for (unsigned b = 1; b <= sim.plan.nodes; b++) {
		if (b == p->node)
			continue;
		block_for(p->node, b, us + sim_rand(0, 20000));
		block_for(b, p->node, us + sim_rand(0, 300000));
		sim_at(sim_rand(1000, 100000), NULL, suspect_as, NULL, (void *)(uintptr_t)b);
	}
	p->raft_cut_until = p->paused_until + sim_rand(10000, 1000000);
}

static void fault_node(struct sim_proc *p)
{
	const struct sim_plan *pl = &sim.plan;

	if (p->alive && sim_chance(pl->crash * pl->suspect)) {
		hidden_restart(p);
		sim.faults++;
	} else if (p->alive && sim_chance(pl->crash)) {
		proc_crash(p, false);
		sim.faults++;
		if (sim_chance(pl->log_lost))
			lose(p, false);
		sim_at(sim_chance(0.5) ? sim_rand(1000, 100000) : sim_rand(100000, 4000000), NULL,
		       restart, NULL, p);
	} else if (p->alive && !p->stopping && pl->stop > 0 && sim_chance(pl->stop)) {
		sim_proc_stop(p->node);
		sim.faults++;
		sim_at(sim_rand(1000000, 5000000), NULL, restart, NULL, p);
	} else if (p->alive && sim_chance(pl->power)) {
		proc_crash(p, true);
		sim.faults++;
		sim_at(sim_chance(0.5) ? sim_rand(5000, 400000) : sim_rand(100000, 5000000), NULL,
		       restart, NULL, p);
	} else if (p->alive && pl->clock_stops && sim_chance(pl->pause / 2)) {
		stand_still(p);
		sim.faults++;
	} else if (p->alive && sim_chance(pl->pause)) {
		sim_proc_pause(p->node, sim_chance(pl->pause_long) ? sim_rand(500000, 4000000)
								   : sim_rand(10000, 700000));
		if (sim_chance(0.4))
			p->raft_cut_until = p->paused_until + sim_rand(10000, 1000000);
		sim.faults++;
	} else if (p->alive && sim_chance(pl->slow_disk)) {
		sim_store_slow(p->disk, sim_rand(5000, 1500000));
		sim_at(sim_rand(100000, 1500000), NULL, fast_again, NULL, p);
		sim.faults++;
	}
	if (p->alive && !p->stopping && !p->group_fails && sim_chance(pl->fail))
		group_fail_begin(p);
	if (p->alive && pl->move > 0 && sim_chance(pl->move))
		sim_move(p->node, (uint32_t)sim_rand(0, SIM_OBJECTS - 1));
	if (sim_chance(pl->cut)) {
		unsigned b = (unsigned)sim_rand(1, pl->nodes);
		uint64_t us = sim_rand(50000, 3000000);

		if (b != p->node) {
			sim_trace("stall %u -> %u for %.1f ms", p->node, b, (double)us / 1000);
			block_for(p->node, b, us);
			if (sim_chance(0.6))
				block_for(b, p->node, us + sim_rand(0, 50000));
			if (sim_chance(0.3)) /* from Raft too */
				p->raft_cut_until = sim.now_us + us;
			sim.faults++;
		}
	}
	if (sim_chance(pl->reset)) {
		unsigned b = (unsigned)sim_rand(1, pl->nodes);

		if (b != p->node) {
			sim_trace("reset %u - %u", p->node, b);
			sim_net_reset(p->node, b);
			sim.faults++;
		}
	}
	if (sim_chance(pl->cut / 2)) {
		p->raft_cut_until = sim.now_us + sim_rand(100000, 3000000);
		sim_trace("node %u hears nothing of Raft until %.3f ms", p->node,
			  (double)p->raft_cut_until / 1000);
	}
	if (p->alive && sim_chance(pl->damage)) {
		uint64_t id = object_id(sim.volume, (uint32_t)sim_rand(0, SIM_OBJECTS - 1));
		const struct map_object *o = map_object(state_map(sim.state), id);

		/* at the primary only: the others have it */
		if (map_primary_node(state_map(sim.state), o) ==
			    map_node(state_map(sim.state), (uint16_t)p->node) &&
		    map_in_count(o) == o->member_count)
			sim_store_damage(p->disk, id, (uint32_t)sim_rand(0, 3));
	}
}

static void faults_again(void *arg)
{
	if (sim.faults_over)
		return;
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		fault_node(&sim.proc[i]);
	if (sim_chance(sim.plan.blackout)) {
		for (unsigned i = 1; i <= sim.plan.nodes; i++) {
			proc_crash(&sim.proc[i], true);
			sim_at(sim_rand(1000, 2000000), NULL, restart, NULL, &sim.proc[i]);
		}
		sim.faults++;
	}
	if (sim_chance(sim.plan.suspect))
		false_suspicion(0);
	if (sim_chance(sim.plan.no_leader)) {
		sim.leaderless_until = sim.now_us + sim_rand(100000, 3000000);
		sim_trace("no Raft leader until %.3f ms", (double)sim.leaderless_until / 1000);
	}
	sim_at(sim_rand(20000, 80000), NULL, faults_again, NULL, NULL);
}

void sim_heal(void)
{
	sim_trace("healing");
	sim.faults_over = true;
	sim.leaderless_until = 0;
	if (sim.plan.relocate)
		sim_jobs_cancel();
	for (unsigned a = 1; a <= sim.plan.nodes; a++) {
		struct sim_proc *p = &sim.proc[a];

		p->raft_cut_until = 0;
		if (p->disk)
			sim_store_slow(p->disk, 0);
		for (unsigned b = 1; b <= sim.plan.nodes; b++)
			if (sim.blocked[a][b])
				sim_net_block(a, b, false);
		if (!p->alive)
			proc_start(p);
	}
}

/* ---- Birth and end ------------------------------------------------------------------------------
 */

static void uuid_of(struct uuid *u, uint8_t n)
{
	memset(u, n, sizeof(*u));
}

static void add_node(unsigned i)
{
	struct map_node n = {.roles = ROLE_STORAGE, .shards = 1, .incarnation = 1};
	struct command c = {0};

	uuid_of(&n.uuid, (uint8_t)(0x10 + i));
	snprintf(n.name, sizeof(n.name), "n%u", i);
	snprintf(n.address, sizeof(n.address), "10.0.0.%u:7000", i);
	if (i == 1) {
		c.kind = CMD_CLUSTER_INIT;
		uuid_of(&c.init.cluster, 0x77);
		c.init.node = n;
		strcpy(c.init.name, "sim");
		sim_submit_command(&c);
	} else {
		c.kind = CMD_TOKEN_ADD;
		memset(c.token.sha256, '0' + (int)i, 64);
		c.token.expires_ms = 1000000;
		sim_submit_command(&c);
		memset(&c, 0, sizeof(c));
		c.kind = CMD_NODE_ADD;
		c.node_add.node = n;
		memset(c.node_add.token_sha256, '0' + (int)i, 64);
		sim_submit_command(&c);
	}
	memset(&c, 0, sizeof(c));
	c.kind = CMD_NODE_START;
	c.node_start.node = (uint16_t)i;
	c.node_start.old_incarnation =
		i == 1 ? 1 : map_node(state_map(sim.state), (uint16_t)i)->incarnation;
	c.node_start.incarnation = 2;
	c.node_start.shards = 1;
	c.node_start.roles = ROLE_STORAGE;
	strcpy(c.node_start.address, n.address);
	sim_submit_command(&c);
	memset(&c, 0, sizeof(c));
	c.kind = CMD_GROUP_ADD;
	uuid_of(&c.group_add.uuid, (uint8_t)(0x40 + i));
	c.group_add.node = (uint16_t)i;
	c.group_add.incarnation = 1;
	c.group_add.raw_bytes = 1ull << 40;
	sim_submit_command(&c);
	memset(&c, 0, sizeof(c));
	c.kind = CMD_GROUP_STATE;
	c.group_state.group = (uint16_t)i;
	c.group_state.state = GROUP_ACTIVE;
	c.group_state.free_steps = 20;
	c.group_state.incarnation = 1;
	sim_submit_command(&c);
}

static void add_volume(void)
{
	struct map_member placement[SIM_OBJECTS * COPIES_MAX];
	struct command c = {.kind = CMD_VOLUME_CREATE};
	struct map_volume *v = &c.volume.volume;
	unsigned n = 0;

	uuid_of(&v->uuid, 0x55);
	strcpy(v->name, "vol");
	v->object_size = 64u << 20;
	v->stripe_count = 1;
	v->size = v->object_size * SIM_OBJECTS;
	v->objects = SIM_OBJECTS;
	v->copies = (uint8_t)sim.plan.copies;
	v->min_in_sync = (uint8_t)MAX(1, sim.plan.min_in_sync);
	for (unsigned o = 0; o < SIM_OBJECTS; o++)
		for (unsigned k = 0; k < sim.plan.copies; k++)
			placement[n++] = (struct map_member){
				.group = (uint16_t)(1 + (o + k) % sim.plan.nodes),
				.group_incarnation = 1};
	c.volume.placement = placement;
	c.volume.placement_count = n;
	sim_submit_command(&c);
	sim.volume = 1;
	for (unsigned i = 0; i < sim.plan.clients; i++) {
		const struct map *m = state_map(sim.state);
		struct hnode *h;

		memset(&c, 0, sizeof(c));
		c.kind = CMD_ATTACH;
		c.attach.volume = sim.volume;
		c.attach.mode = ATTACH_SHARED;
		snprintf(c.attach.holder, sizeof(c.attach.holder), "client:%u", i);
		sim_submit_command(&c);
		for (h = hmap_walk(&m->attachments, NULL); h; h = hmap_walk(&m->attachments, h)) {
			const struct map_attachment *a =
				container_of(h, struct map_attachment, by_id);

			if (!strcmp(a->holder, c.attach.holder)) {
				sim.attachment[i] = a->id;
				sim.attach_epoch[i] = a->epoch;
			}
		}
	}
}

/* A2: the last client's attachment is revoked. */
static void fence(void *arg)
{
	struct command c = {.kind = CMD_DETACH, .detach = {sim.attachment[sim.plan.clients - 1]}};

	sim_submit_command(&c);
	sim.fenced = true;
	sim_trace("client %u is fenced", sim.plan.clients - 1);
}

/* All processes know: from now on nothing that the fenced client begins may be done. */
bool sim_fenced_everywhere(void)
{
	if (!sim.fenced)
		return false;
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		const struct map_attachment *a =
			map_attachment(&sim.proc[i].map, sim.attachment[sim.plan.clients - 1]);

		if (!sim.proc[i].alive ||
		    (a ? !a->revoked
		       : sim.proc[i].map.next_attachment <= sim.attachment[sim.plan.clients - 1]))
			return false;
	}
	return true;
}

void sim_cluster_start(void)
{
	sim.state = state_create();
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		add_node(i);
	add_volume();
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct sim_proc *p = &sim.proc[i];

		p->node = i;
		p->group = (uint16_t)i;
		p->incarnation = 1; /* its first start makes it 2, as registered */
		p->disk = sim_store_create(p->group, 1);
		proc_start(p);
	}
	sim_net_start();
	if (sim.plan.fence)
		sim_at(sim_rand(200000, sim.plan.fault_us), NULL, fence, NULL, NULL);
	sim_at(sim_rand(0, 3000000), NULL, faults_again, NULL, NULL);
	sim_relocate_start();
}

void sim_cluster_end(void)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		proc_crash(&sim.proc[i], true);
	sim_clear_events();
	sim_net_end();
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) /* a history may go on with fewer nodes */
		if (sim.proc[i].disk)
			sim_store_free(sim.proc[i].disk);
	for (size_t i = 0; i < sim.delta_count; i++)
		free(sim.deltas[i].bytes);
	free(sim.deltas);
	state_destroy(sim.state);
}

/* Everything is as it should be for ever: all members in, joined, nothing under way. */
bool sim_all_in(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		uint64_t id = object_id(sim.volume, i);
		const struct map_object *o = map_object(state_map(sim.state), id);
		struct version commit = {0};
		unsigned serving = 0;

		if (map_in_count(o) != o->member_count)
			return false;
		for (unsigned n = 1; n <= sim.plan.nodes; n++) {
			struct replica_info info;
			bool member = false;

			for (unsigned k = 0; k < o->member_count; k++)
				member |= o->member[k].group == sim.proc[n].group;
			if (!member)
				continue;
			if (!sim.proc[n].alive || !replicator_info(sim.proc[n].r, id, &info) ||
			    info.epoch != o->epoch || !version_eq(info.last, info.commit) ||
			    !sim_store_quiet(sim.proc[n].disk))
				return false;
			if (commit.seq && !version_eq(commit, info.commit))
				return false;
			commit = info.commit;
			/* Both ends know of the join: the primary by its count, the member by its state. */
			if (info.role != REPLICA_PRIMARY && strcmp(info.state, "joined"))
				return false;
			if (info.role == REPLICA_PRIMARY && !strcmp(info.state, "serving") &&
			    info.members_joined + 1u == o->member_count &&
			    info.want == o->member_count)
				serving++;
		}
		if (serving != 1)
			return false;
	}
	return true;
}

struct told {
	char *text;
	size_t size, *at;
	unsigned node;
};

static void tell_op(void *arg, const struct replica_op_info *i)
{
	struct told *t = arg;

	if (*t->at + 200 < t->size)
		*t->at += (size_t)snprintf(
			t->text + *t->at, t->size - *t->at,
			"\n   n%u op: object %llx %s offset %u: %s, waits for %s, %.1f ms", t->node,
			(unsigned long long)i->object, i->kind, i->offset, i->stage, i->waits_for,
			(double)i->age_us / 1000);
}

const char *sim_describe(void)
{
	static char text[4096];
	size_t at = 0;

	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		uint64_t id = object_id(sim.volume, i);
		const struct map_object *o = map_object(state_map(sim.state), id);

		at += (size_t)snprintf(
			text + at, sizeof(text) - at,
			"\n object %u: epoch %u tenure %u primary group %u inc %u, in:", i,
			o->epoch, o->tenure, o->member[o->primary].group, o->primary_incarnation);
		for (unsigned k = 0; k < o->member_count; k++)
			at += (size_t)snprintf(text + at, sizeof(text) - at, " %u%s",
					       o->member[k].group, o->member[k].in ? "" : "(out)");
		for (unsigned n = 1; n <= sim.plan.nodes; n++) {
			struct replica_info f;

			if (!sim.proc[n].alive || !replicator_info(sim.proc[n].r, id, &f))
				continue;
			at += (size_t)snprintf(text + at, sizeof(text) - at,
					       "\n   n%u: epoch %u seen %u role %d \"%s\" last "
					       "%u/%llu commit %u/%llu joined %u want %u pages %u",
					       n, f.epoch, f.seen, f.role, f.state, f.last.tenure,
					       (unsigned long long)f.last.seq, f.commit.tenure,
					       (unsigned long long)f.commit.seq, f.members_joined,
					       f.want, f.pages_to_copy);
		}
	}
	for (unsigned n = 1; n <= sim.plan.nodes; n++) {
		struct told t = {text, sizeof(text), &at, n};

		if (sim.proc[n].alive)
			replicator_ops(sim.proc[n].r, tell_op, &t);
	}
	sim_clients_describe(text + at, sizeof(text) - at);
	at = strlen(text);
	sim_net_describe(text + at, sizeof(text) - at);
	return text;
}
