/* SPDX-License-Identifier: Apache-2.0 */
/* Directed histories. Planned moves, clean stops, a log that stalls: who takes over, and that nobody
 * is dropped who need not be. Repair: a block that its replica cannot produce is taken from one that can
 * (Q3), also where that one has only just come back or its session has only just ended; and never
 * from one that is still being filled. */
#include "tests/replica/sim.h"

#include <string.h>

#define STEP_US 30000000u

void sim_wait_for(bool (*done)(void), const char *what)
{
	if (!sim_run_until(sim.now_us + STEP_US, done))
		sim_fail("in vain waited until %s:%s", what, sim_describe());
}

const struct map_object *sim_object(uint32_t i)
{
	return map_object(state_map(sim.state), object_id(sim.volume, i));
}

struct sim_plan sim_plan_of(uint64_t seed, unsigned nodes)
{
	return (struct sim_plan){.seed = seed,
				 .nodes = nodes,
				 .copies = nodes,
				 .clients = 2,
				 .ops_per_client = 60,
				 .depth = 4};
}

void sim_begin_written(const struct sim_plan *plan)
{
	sim_begin(plan);
	sim_wait_for(sim_clients_done, "the first writes are done");
}

void sim_begin_in(const struct sim_plan *plan)
{
	sim_begin(plan);
	sim_wait_for(sim_all_in, "all are in");
}

void sim_begin_settled(const struct sim_plan *plan)
{
	sim_begin_written(plan);
	sim_wait_for(sim_all_in, "all are in");
}

void sim_writes(unsigned ops, const char *what)
{
	sim_clients_more(ops);
	sim_wait_for(sim_clients_done, what);
}

void sim_reads(const char *what)
{
	sim_clients_final_reads();
	sim_wait_for(sim_clients_done, what);
}

unsigned sim_primary_node(uint32_t object)
{
	const struct map_node *n = map_primary_node(state_map(sim.state), sim_object(object));

	return n ? n->id : 0;
}

bool sim_serves(unsigned node, uint32_t object)
{
	struct replica_info i;

	return sim.proc[node].alive && replicator_info(sim.proc[node].r, object_id(sim.volume, object), &i) &&
	       i.serving;
}

struct replicator_stats sim_stats(unsigned node)
{
	struct replicator_stats st = {0};

	if (sim.proc[node].r)
		replicator_stats(sim.proc[node].r, &st);
	return st;
}

void sim_drop(unsigned node, unsigned proposer)
{
	const struct map_object *o = sim_object(0);
	struct object_change c = {.op = OBJ_DROP,
				  .object = o->id,
				  .epoch = o->epoch,
				  .proposer = (uint16_t)proposer,
				  .incarnation = sim.proc[proposer].incarnation};
	struct command cmd = {.kind = CMD_OBJECT, .object = {1, &c}};
	unsigned in = map_in_count(o);

	for (unsigned k = 0; k < o->member_count; k++)
		if (o->member[k].group == sim.proc[node].group)
			c.replica = o->member[k];
	sim_submit_command(&cmd);
	if (!sim.failure[0] && map_in_count(sim_object(0)) != in - 1)
		sim_fail("node %u was not dropped", node);
}

bool sim_listed_in(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o = sim_object(i);

		if (map_in_count(o) != o->member_count)
			return false;
	}
	return true;
}

static bool dropped(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o = sim_object(i);

		if (map_in_count(o) == o->member_count)
			return false;
	}
	return true;
}

void sim_away(unsigned node)
{
	sim_proc_crash(node);
	sim_wait_for(dropped, "it is dropped");
	sim_writes(40, "the writes are done");
}

static void damage_all(unsigned node)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		for (uint32_t b = 0; b < (64u << 20) / BLOCK_SIZE; b++)
			sim_store_damage(sim.proc[node].disk, object_id(sim.volume, i), b);
}

static unsigned mended_at;

static bool quiet(void)
{
	return !sim_stats(mended_at).mending;
}

/* Every block is read at `node`, which lacks all of them; nobody may be told so. What was repaired
 * is rewritten, so that a second look needs nobody else. */
static void read_repaired(unsigned node, const char *when)
{
	uint64_t errors = sim.medium_errors, before = sim_stats(node).repairs;

	damage_all(node);

	sim_reads("the reads are answered");
	if (!sim.failure[0] && sim.medium_errors != errors)
		sim_fail("%s: %llu reads were answered MEDIUM_ERROR though the other replica has "
			 "all",
			 when, (unsigned long long)(sim.medium_errors - errors));
	if (!sim.failure[0] && sim_stats(node).repairs == before)
		sim_fail("%s: nothing was repaired", when);
	mended_at = node;
	sim_wait_for(quiet, "the repaired blocks are rewritten");
	before = sim_stats(node).repairs;
	sim_reads("the second reads are answered");
	if (!sim.failure[0] && sim_stats(node).repairs != before)
		sim_fail("%s: repaired blocks were not rewritten", when);
}

bool sim_case_repair(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);

	plan.partial = true;
	sim_begin_written(&plan);
	sim_away(2);
	sim_proc_start(2);
	sim_wait_for(sim_listed_in, "node 2 is in again");
	read_repaired(1, "the peer was just promoted");
	sim_net_reset(1, 2);
	read_repaired(1, "the peer's session just ended");

	sim_store_mend(sim.proc[1].disk);
	sim_away(1);
	sim_proc_start(1);
	sim_wait_for(sim_all_in, "node 1 is in again");
	read_repaired(2, "the primary is a member that had returned");

	/* Node 1 misses writes again and is filled by a primary that lacks blocks: it may say that
	 * they are not there, nothing else. Writes go on, so that its log has the newest commit. */
	sim_away(1);
	sim.damage_counts = true;
	damage_all(2);
	sim_proc_start(1);
	sim_clients_more(60);
	sim_clients_final_reads();
	sim_run_until(sim.now_us + 1500000, NULL);
	sim.damage_counts = false;
	return sim_finish();
}

/* ---- Damage that a store tells of (L6) ---- */

static bool whole(void)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct replicator_stats st = sim_stats(i);

		if (st.damaged_blocks || st.mending || sim_store_has_marked(sim.proc[i].disk))
			return false;
	}
	return true;
}

/* Each is the primary of one object; members keep asking. */
static bool all_lost(void)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		if (!sim_stats(i).lost_blocks)
			return false;
	return true;
}

static void mark(unsigned node, uint32_t from, uint32_t step)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		for (uint32_t b = from; b < 4 * PAGE_BLOCKS; b += step)
			sim_store_mark(sim.proc[node].disk, object_id(sim.volume, i), b);
}

static bool reads_right(const char *when)
{
	uint64_t errors = sim.medium_errors;

	sim_reads(when);
	if (!sim.failure[0] && sim.medium_errors != errors)
		sim_fail("%s: MEDIUM_ERROR", when);
	return !sim.failure[0];
}

/* What a member, or the primary, is told that it lacks comes from the other one, without any read by a
 * client; a block that neither has stays as it is, is said to be lost, and is whole again once one of
 * them can read it. */
bool sim_case_damage(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	unsigned done = 0;

	plan.partial = true;
	sim_begin_settled(&plan);
	mark(2, 0, 1);
	sim_wait_for(whole, "a member's blocks are whole");
	mark(1, 0, 1);
	sim_wait_for(whole, "the primary's blocks are whole");
	if (!reads_right("after one and the other"))
		return false;
	/* Each lacks what the other has. */
	mark(1, 0, 2);
	mark(2, 1, 2);
	sim_wait_for(whole, "each has mended the other");
	for (unsigned i = 1; i <= 2; i++)
		done += sim_stats(i).repaired_blocks != 0;
	if (!sim.failure[0] && done != 2)
		sim_fail("nothing was counted as repaired");
	if (!reads_right("after both"))
		return false;
	/* Nobody has them: nothing is written, and they are not given up either. */
	sim.losing = true;
	mark(1, 0, 1);
	mark(2, 0, 1);
	sim_wait_for(all_lost, "what nobody has is said to be lost");
	sim_store_mend(sim.proc[2].disk);
	sim_wait_for(whole, "a replica that can read again mends the other");
	return reads_right("after all was lost") && sim_finish();
}

/* A2: who reads under an attachment that no map here has yet waits until one has. */
bool sim_case_attachment(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed, .nodes = 2, .copies = 2, .clients = 1, .depth = 4};
	uint32_t known;

	sim_begin_in(&plan);
	known = sim.attachment[0];
	sim.attachment[0] = state_map(sim.state)->next_attachment;
	sim_clients_final_reads();
	if (sim_run_until(sim.now_us + 2000000, sim_clients_done))
		sim_fail("reads were answered under an attachment that is not known yet");
	sim.attachment[0] = known;
	sim_wait_for(sim_clients_done, "the reads are answered");
	return sim_finish();
}

/* ---- Planned moves (T3), clean stop, hand-over (W5) ---- */

static unsigned moved_from;
static uint32_t moved_object;

static bool moved(void)
{
	return sim_primary_node(moved_object) != moved_from;
}

static bool serves_elsewhere(void)
{
	unsigned n = sim_primary_node(moved_object);

	return n && n != moved_from && sim_serves(n, moved_object);
}

/* An object goes round, under load: each time another node serves it soon, all replicas stay in-sync,
 * and the old primary keeps its place. */
bool sim_case_move(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 2 + seed % 2,
				.copies = 2 + seed % 2,
				.clients = 2,
				.ops_per_client = 400,
				.depth = 4};
	unsigned tries = 0;

	sim_begin_in(&plan);
	for (unsigned i = 0; i < 12 && !sim.failure[0] && tries < 200; tries++) {
		uint64_t begun = sim.moves_begun, start = sim.now_us;
		uint32_t epoch;

		moved_object = i % SIM_OBJECTS;
		moved_from = sim_primary_node(moved_object);
		epoch = sim_object(moved_object)->epoch;
		sim_move(moved_from, moved_object);
		/* The oracle loses one proposal in twenty and delays one in ten. */
		sim_run_until(sim.now_us + 400000, moved);
		if (!moved()) {
			sim_run_until(sim.now_us + 1000000, NULL);
			continue;
		}
		i++;
		sim_wait_for(serves_elsewhere, "another node serves");
		if (sim.now_us - start > 1500000)
			sim_fail("a planned move took %.1f ms", (double)(sim.now_us - start) / 1000);
		if (sim.moves_begun == begun)
			sim_fail("the primary changed without a move");
		if (!sim_listed_in())
			sim_fail("a planned move dropped a replica");
		if (sim_object(moved_object)->epoch != epoch + 1)
			sim_fail("a planned move took more than one change");
	}
	if (tries >= 200)
		sim_fail("moves do not succeed:%s", sim_describe());
	sim_wait_for(sim_clients_done, "the clients are done");
	return sim_finish();
}

static bool stopped_cleanly(void)
{
	return !sim.proc[1].alive;
}

static bool all_at_home(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (sim_object(i)->primary != 0)
			return false;
	return true;
}

/* A node stops cleanly under load: it is no primary and counted nowhere when it ends, so that nobody
 * waits for it; it returns, and what was at home there comes back in its own time. */
bool sim_case_stop(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 3,
				.copies = 2 + seed % 2,
				.clients = 2,
				.ops_per_client = 300,
				.depth = 4};

	sim_begin_in(&plan);
	sim_proc_stop(1);
	sim_wait_for(stopped_cleanly, "node 1 ends");
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o = sim_object(i);

		for (unsigned k = 0; k < o->member_count; k++)
			if (o->member[k].group == sim.proc[1].group && o->member[k].in)
				sim_fail("node 1 ended and is still counted:%s", sim_describe());
	}
	sim_wait_for(sim_clients_done, "the clients are done");
	sim_proc_start(1);
	sim_wait_for(sim_all_in, "node 1 is in again");
	sim_wait_for(all_at_home, "the primaries are at home again");
	sim_clients_more(50);
	return sim_finish();
}

static bool none_is_left(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (sim_primary_node(i) == moved_from)
			return false;
	return true;
}

/* Maintenance begins while the other node does not answer for a moment, too short for it to be dropped. That
 * it answers again changes no map, and the primaries go to it all the same; nor does it that the maintenance
 * runs out, and they come home. */
bool sim_case_maintenance(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 2);
	struct command cmd = {.kind = CMD_MAINTENANCE,
			      .maintenance = {.op = MAINTENANCE_START, .ttl_s = 20}};

	sim_begin_settled(&plan);
	moved_from = sim_primary_node(0);
	sim_writes(4, "beacons come fast");
	sim_net_cut(1, 2, true);
	sim_run_until(sim.now_us + 500000, NULL);
	cmd.time_ms = sim.now_us / 1000;
	cmd.maintenance.node = (uint16_t)moved_from;
	sim_submit_command(&cmd);
	sim_run_until(sim.now_us + 300000, NULL);
	if (!sim_listed_in())
		sim_fail("a replica was dropped");
	sim_net_cut(1, 2, false);
	sim_wait_for(none_is_left, "the node in maintenance has no primary");
	sim_run_until((cmd.time_ms + 20000) * 1000, NULL);
	if (!none_is_left())
		sim_fail("a primary came home before the maintenance was over:%s", sim_describe());
	sim_wait_for(all_at_home, "the primaries are at home again");
	return sim_finish();
}

/* The primary's log stalls: another one takes over, in one change. */
bool sim_case_slow_log(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 2,
				.copies = 2,
				.clients = 2,
				.ops_per_client = 200,
				.depth = 4};

	sim_begin_in(&plan);
	moved_object = 0;
	moved_from = sim_primary_node(0);
	sim_store_slow(sim.proc[moved_from].disk, 20000000);
	sim_clients_more(100);
	sim_wait_for(moved, "the primary whose log stalls hands over");
	sim_wait_for(serves_elsewhere, "another node serves");
	sim_store_slow(sim.proc[moved_from].disk, 0);
	sim_wait_for(sim_clients_done, "the clients are done");
	return sim_finish();
}

/* ---- Space ---- */

static uint64_t replicated(void)
{
	uint64_t sum = 0;

	for (unsigned n = 1; n <= sim.plan.nodes; n++)
		sum += sim_stats(n).replicated;
	return sum;
}

/* What is in flight when a session ends is sent again on the next one, also to a member that has no space to
 * grant: that is not counted against what it grants later, at either end. */
bool sim_case_full_tail(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 4, .ops_per_client = 60, .depth = 8};
	uint64_t before;

	sim_begin_settled(&plan);
	sim_net_cut(1, 2, true);
	sim_clients_more(60);
	sim_run_until(sim.now_us + 100000, NULL);
	before = replicated();
	sim_store_fill(sim.proc[1].disk, true);
	sim_store_fill(sim.proc[2].disk, true);
	sim_net_cut(1, 2, false);
	sim_net_reset(1, 2);
	sim_run_until(sim.now_us + 500000, NULL);
	if (!sim.failure[0] && replicated() == before)
		sim_fail("nothing was sent again");
	sim_store_fill(sim.proc[1].disk, false);
	sim_store_fill(sim.proc[2].disk, false);
	sim_wait_for(sim_clients_done, "the clients are done");
	return sim_finish();
}

/* ---- Replicas that move ---- */

static unsigned empty_node;

static bool emptied(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		uint64_t id = object_id(sim.volume, i);
		const struct map_object *o = map_object(state_map(sim.state), id);

		if (o->member_count != sim.plan.copies || map_in_count(o) != sim.plan.copies)
			return false;
		for (unsigned k = 0; k < o->member_count; k++)
			if (o->member[k].group == sim.proc[empty_node].group)
				return false;
		if (sim.proc[empty_node].alive && sim_store_holds(sim.proc[empty_node].disk, id))
			return false;
	}
	return true;
}

/* A node is emptied under load, while another one that its replicas may go to dies and returns; then the
 * next one. Redundancy never falls but by the death. */
bool sim_case_evacuate(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 4,
				.copies = 2 + seed % 2,
				.clients = 2,
				.ops_per_client = 400,
				.depth = 4,
				.partial = true,
				.relocate = 1};

	sim_begin_in(&plan);
	for (unsigned round = 0; round < 3 && !sim.failure[0]; round++) {
		empty_node = 1 + (unsigned)(seed + round) % 4;
		sim_evacuate(empty_node);
		if (seed % 3 == round) {
			unsigned other = 1 + (empty_node + round) % 4;

			sim_run_until(sim.now_us + 200000 + seed % 7 * 100000, NULL);
			sim_proc_crash(other);
			sim_run_until(sim.now_us + seed % 5 * 400000, NULL);
			sim_proc_start(other);
		}
		sim_wait_for(emptied, "the node is empty");
		sim_jobs_cancel();
		sim_clients_more(60);
	}
	if (!sim.failure[0] && (!sim.relocated[OBJ_PLACE] || !sim.relocated[OBJ_REMOVE]))
		sim_fail("nothing was moved");
	return sim_finish();
}

/* A node stays away and is replaced; it returns, at times before its replacement is filled. */
bool sim_case_rebuild(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 3 + seed % 2,
				.copies = 2,
				.clients = 2,
				.ops_per_client = 300,
				.depth = 4,
				.relocate = 1};

	sim_begin_in(&plan);
	empty_node = 1 + (unsigned)seed % 3;
	sim_proc_crash(empty_node);
	if (seed % 4)
		sim_wait_for(emptied, "its replicas are made anew");
	else
		sim_run_until(sim.now_us + 700000 + seed % 11 * 50000, NULL);
	sim_clients_more(60);
	sim_proc_start(empty_node);
	sim_wait_for(sim_tidy, "there are no more copies than wanted");
	return sim_finish();
}

/* ---- Joins that only one side knows to have ended (N2) ---- */

uint64_t sim_drops(void)
{
	uint64_t sum = 0;

	for (unsigned n = 1; n <= sim.plan.nodes; n++)
		sum += sim_stats(n).drops;
	return sum;
}

/* A disk group is closed and opened again while its node's streams live and nothing is written. */
bool sim_case_reopen(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 1, .ops_per_client = 40, .depth = 4};
	uint64_t drops;

	sim_begin_settled(&plan);
	drops = sim_drops();
	sim_group_reopen(1 + (unsigned)seed % 2, seed % 7 * 50000);
	sim_run_until(sim.now_us + 1000, NULL);
	sim_wait_for(sim_all_in, "its replicas are joined again");
	if (!sim.failure[0] && sim_drops() != drops)
		sim_fail("a replica was dropped, though it was away for a moment only");
	return sim_finish();
}

static uint32_t placed_object;

static bool placed_joined(void)
{
	uint64_t id = object_id(sim.volume, placed_object);
	const struct map_object *o = map_object(state_map(sim.state), id);
	const struct sim_proc *p = &sim.proc[sim_primary_node(placed_object)];
	struct replica_info f;

	return map_in_count(o) == sim.plan.copies && p->alive && replicator_info(p->r, id, &f) &&
	       f.role == REPLICA_PRIMARY && f.members_joined + 1 == sim.plan.copies;
}

/* A replica that was placed lately, and is not its object's primary; 0: there is none. */
static unsigned placed_lately(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_object *o = sim_object(i);

		placed_object = i;
		for (unsigned k = 0; k < o->member_count; k++)
			if (o->member[k].gen > 1 && o->primary != k)
				return o->member[k].group;
	}
	return 0;
}

/* Its process starts again and hears only of the time before: what it is, its primary tells it. That of a
 * node which was emptied makes nothing anew. */
bool sim_case_old_map(uint64_t seed)
{
	struct sim_plan plan = {.seed = seed,
				.nodes = 3,
				.copies = 2,
				.clients = 2,
				.ops_per_client = 60,
				.depth = 4,
				.relocate = 1};
	unsigned placed;
	size_t old;

	sim_begin_in(&plan);
	old = sim.delta_count;
	empty_node = 1 + (unsigned)seed % 3;
	sim_evacuate(empty_node);
	sim_wait_for(emptied, "the node is empty");
	sim_jobs_cancel();
	sim_proc_crash(empty_node);
	sim_proc_start_old(empty_node, old, 8000000);
	placed = sim.failure[0] ? 0 : placed_lately();
	if (placed) {
		sim_proc_crash(placed);
		sim_proc_start_old(placed, old, 8000000);
		if (!sim_run_until(sim.now_us + 6000000, placed_joined))
			sim_fail("a replica placed lately is not joined while its map is old:%s",
				 sim_describe());
	}
	sim_run_until(sim.now_us + 1000000, NULL);
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (!sim.failure[0] && sim_store_holds(sim.proc[empty_node].disk, object_id(sim.volume, i)))
			sim_fail("object %u was made anew by an old map", i);
	return sim_finish();
}

/* ---- A primary that was never heard of ---- */

static unsigned third_node;

static bool third_serves(void)
{
	return sim_serves(third_node, 0);
}

/* A takeover is applied whose proposer is dead already, and nobody has a session with it or is refused: the
 * third one, which the old primary had joined, takes over by the clock. */
bool sim_case_dead_successor(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 3, .copies = 3, .clients = 1, .ops_per_client = 40, .depth = 4};
	struct object_change c = {.op = OBJ_TAKEOVER};
	struct command cmd = {.kind = CMD_OBJECT, .object = {1, &c}};
	unsigned old, dead;

	sim_begin_settled(&plan);
	old = sim_primary_node(0);
	dead = 1 + old % 3;
	third_node = 6 - old - dead;
	for (unsigned n = 1; n <= 3; n++) {
		if (n == dead)
			continue;
		sim_net_cut(dead, n, true);
		sim_net_reset(dead, n);
	}
	sim_run_until(sim.now_us + 1000, NULL);
	c.object = object_id(sim.volume, 0);
	c.epoch = map_object(state_map(sim.state), c.object)->epoch;
	c.node = c.proposer = (uint16_t)dead;
	c.incarnation = sim.proc[dead].incarnation;
	sim_proc_crash(dead);
	sim_submit_command(&cmd);
	if (!sim.failure[0] && sim_primary_node(0) != dead)
		sim_fail("the takeover was not applied");
	sim_wait_for(third_serves, "the third node takes over");
	for (unsigned n = 1; n <= 3; n++) {
		sim_net_cut(dead, n, false);
	}
	sim_proc_start(dead);
	return sim_finish();
}
