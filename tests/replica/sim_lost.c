/* SPDX-License-Identifier: Apache-2.0 */
/* Disks that lied about what is durable. A member comes back in the same tenure without writes that it had
 * acknowledged (T5): it is dropped and filled anew, before anybody relies on it. The only replica in sync
 * comes back without them: who was being filled may have more of a page, which nothing is copied over before
 * an operator gave it up. */
#include "tests/replica/sim.h"

static unsigned wanted;

static bool has_all(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++) {
		const struct map_node *n = map_primary_node(state_map(sim.state), sim_object(i));

		if (!n || n->id != wanted)
			return false;
	}
	return true;
}

static bool dropped(void)
{
	for (uint32_t i = 0; i < SIM_OBJECTS; i++)
		if (map_in_count(sim_object(i)) < sim_object(i)->member_count)
			return true;
	return false;
}

bool sim_case_lost(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 2, .ops_per_client = 20, .depth = 4};
	unsigned forgotten;

	sim_begin_settled(&plan);
	wanted = 1;
	for (unsigned i = 0; i < 50 && !has_all() && !sim.failure[0]; i++) { /* proposals get lost */
		sim_move(2, 1);
		sim_run_until(sim.now_us + 400000, has_all);
	}
	sim_writes(40, "the writes are done");
	sim.losing = true;
	sim_proc_crash(2);
	forgotten = sim_store_forget(sim.proc[2].disk);
	sim_proc_start(2);
	sim_run_until(sim.now_us + 900000, dropped); /* later it is dropped anyway: it does not acknowledge */
	if (forgotten && !dropped())
		sim_fail("a member that forgot %u writes is still in", forgotten);
	sim_run_until(sim.now_us + 3000000, NULL);
	sim_wait_for(sim_all_in, "what was lost is there again");
	sim_proc_crash(1);
	wanted = 2;
	sim_wait_for(has_all, "the other one takes over");
	sim_clients_final_reads();
	sim_wait_for(sim_clients_done, "all is read");
	sim_proc_start(1);
	return sim_finish();
}

#define PAGE_BLOCK 5000u /* of a page that clients leave alone otherwise */

static unsigned source, target;

static bool page_is_not_there(void)
{
	const struct object *o = object_find(sim.proc[target].r, object_id(sim.volume, 0));

	return !o || !o->in.copies;
}

static void step_while(bool (*so)(void))
{
	uint64_t limit = sim.now_us + 20000000;

	while (!sim.failure[0] && so())
		if (sim.now_us > limit || !sim_step())
			sim_fail("in vain waited for the next step:%s", sim_describe());
}

static struct version page_at_target(bool destaged)
{
	return sim_store_page(sim.proc[target].disk, object_id(sim.volume, 0), PAGE_BLOCK / PAGE_BLOCKS,
			      destaged);
}

static bool target_is_kept(void)
{
	return sim_member(0, target) && sim_member(0, target)->kept;
}

static bool target_is_out(void)
{
	return !sim_member(0, target);
}

static bool target_is_there(void)
{
	return !target_is_out();
}

/* Proposals get lost. */
static void change_target(uint8_t op, unsigned proposer, bool (*done)(void))
{
	for (unsigned i = 0; i < 50 && !done() && !sim.failure[0]; i++) {
		sim_change_one(0, op, target, proposer);
		sim_run_until(sim.now_us + 400000, done);
	}
}

/* What is in quarantine at the target goes; one that was never filled takes its place. */
static void give_target_up(void)
{
	change_target(OBJ_DISCARD, 0, target_is_out);
	change_target(OBJ_PLACE, 0, target_is_there);
}

/* Of the target's replica nothing stays; one that was never filled takes its place. */
static void place_anew(void)
{
	change_target(OBJ_QUARANTINE, source, target_is_kept);
	give_target_up();
}

static bool nobody_serves(void)
{
	struct replica_info f;

	return sim.newer_told && replicator_info(sim.proc[source].r, object_id(sim.volume, 0), &f) &&
	       !f.serving;
}

/* Before the source serves, or when the target comes back later. */
static bool loss_is_met(void)
{
	return nobody_serves() || target_is_kept();
}

/* The source serves, whose disk will forget what is written from now on. The target, which was away, has one
 * page of that time: the other page waits for a write, so the fill does not end. What is forgotten are zeroes
 * where nothing was: nobody misses them. */
static void begin_with_a_newer_page(const struct sim_plan *plan, bool never_filled)
{
	sim_begin_written(plan);
	if (plan->seed % 4 < 2) /* else its source never had anything there */
		sim_client_does(0, IO_WRITE, 0, PAGE_BLOCK + 1);
	sim_wait_for(sim_clients_done, "the first writes are done");
	sim_wait_for(sim_all_in, "all are in");
	source = map_primary_node(state_map(sim.state), sim_object(0))->id;
	target = source % 2 + 1;
	sim_proc_crash(target);
	sim_wait_for(dropped, "it is dropped");
	if (never_filled)
		place_anew();
	sim_run_until(sim.now_us + 500000, NULL);
	sim_store_keep(sim.proc[source].disk);
	sim_client_does(0, IO_ZEROES, 0, PAGE_BLOCK);
	sim_wait_for(sim_clients_done, "the zeroes are written");
	sim_store_slow(sim.proc[source].disk, 3000000);
	sim_client_does(1, IO_WRITE, 0, 0);
	sim_run_until(sim.now_us + 10000, NULL);
	sim_proc_start(target);
	step_while(page_is_not_there);
	sim_run_until(sim.now_us + 100000, NULL);
	for (unsigned i = 0; i < 40 && plan->seed % 2; i++)
		sim_store_destage(sim.proc[target].disk);
}

static void source_goes_back(void)
{
	sim.losing = true;
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		sim_proc_crash(i);
	sim_store_go_back(sim.proc[source].disk);
	sim_store_slow(sim.proc[source].disk, 0);
	sim_proc_start(source);
	sim_proc_start(target);
}

/* It stays so: no restart makes anybody serve, nor a leader who thinks that this replica is one too many. */
static void nobody_serves_for_long(void)
{
	for (unsigned i = 0; i < 5; i++) {
		sim_change_one(0, OBJ_REMOVE, target, 0);
		sim_run_until(sim.now_us + 400000, NULL);
	}
	sim_proc_crash(source);
	sim_proc_crash(target);
	sim_proc_start(source);
	sim_run_until(sim.now_us + 5000000, NULL);
	if (!nobody_serves())
		sim_fail("somebody serves what is not all of it:%s", sim_describe());
	sim_proc_start(target);
	sim_run_until(sim.now_us + 1000000, NULL);
}

/* Does the target's log still say which commit its page is of, nobody serves before an operator decided; else
 * the page is met by the next fill, while the source serves. */
bool sim_case_newer_page(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 2, .copies = 2, .clients = 2, .ops_per_client = 60, .depth = 4};
	bool known, never_filled = seed % 8 >= 4, give_up = never_filled && seed % 16 >= 8;
	struct version page;

	begin_with_a_newer_page(&plan, never_filled);
	page = page_at_target(false);
	known = !version_eq(page, page_at_target(true));
	source_goes_back();
	sim_wait_for(loss_is_met, "the loss is met");
	sim_wait_for(target_is_kept, "the target is in quarantine");
	if (sim.waits_told || sim_object(0)->undecided) {
		nobody_serves_for_long();
		if (give_up) {
			give_target_up();
			sim_wait_for(sim_all_in, "all are in again");
			return sim_finish();
		}
		sim_change_one(0, OBJ_FORCE, source, 0);
		sim_wait_for(target_is_kept, "the target is in quarantine");
	} else if (known) {
		sim_fail("the only copy was not asked before the source served:%s", sim_describe());
	}
	if (!sim.failure[0] && !sim.newer_told && (known || !sim.lost_told))
		sim_fail("acknowledged writes were lost, and nobody was told");
	sim_run_until(sim.now_us + 3000000, NULL);
	if (!target_is_kept() || !version_eq(page_at_target(false), page))
		sim_fail("the only copy of acknowledged writes was written over");
	sim_change_one(0, OBJ_DISCARD, target, 0);
	sim_change_one(0, OBJ_PLACE, target, 0);
	sim_wait_for(sim_all_in, "all are in again");
	return sim_finish();
}

/* The target's replica, as the source's primary knows it, or NULL. */
static const struct member *target_at_source(void)
{
	const struct object *o = object_find(sim.proc[source].r, object_id(sim.volume, 0));

	for (unsigned i = 0; o && o->primary && i < o->primary->member_count; i++)
		if (o->primary->member[i].node == target)
			return &o->primary->member[i];
	return NULL;
}

static bool target_has_answered(void)
{
	const struct member *m = target_at_source();

	return m && m->nak_us;
}

/* A third one is in sync and has everything, and only is later than the copy: no operator is asked. */
bool sim_case_newer_page_elsewhere(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = seed, .nodes = 3, .copies = 3, .clients = 2, .ops_per_client = 60, .depth = 4};

	begin_with_a_newer_page(&plan, seed % 8 >= 4);
	source_goes_back();
	sim_run_until(sim.now_us + 700000, target_has_answered); /* later it would be dropped */
	for (unsigned i = 1; i <= 3; i++)
		if (i != source && i != target)
			sim_proc_start(i);
	sim_wait_for(sim_all_in, "all are in again");
	if (!sim.failure[0] && target_is_kept())
		sim_fail("a replica is in quarantine though another one has all that it has");
	return sim_finish();
}

static bool target_says_more(void)
{
	const struct member *m = target_at_source();

	return m && m->ahead;
}

static bool is_undecided(void)
{
	return sim_object(0)->undecided;
}

/* After a force at this one of three nodes. */
static bool all_come_back_to(unsigned forced)
{
	for (unsigned n = 1; n <= 3; n++) {
		if (n == forced)
			continue;
		target = n;
		sim_wait_for(target_is_kept, "what a force went past is in quarantine");
		give_target_up();
	}
	sim_wait_for(sim_all_in, "all are in again");
	return sim_finish();
}

/* The target says what it has while another one of I is waited for, and dies; then that one is dropped. What
 * the target said outlives the process that it was said to. */
bool sim_case_newer_page_told(uint64_t seed)
{
	struct sim_plan plan = {
		.seed = 2 * seed, .nodes = 3, .copies = 3, .clients = 2, .ops_per_client = 60, .depth = 4};
	unsigned told, third;

	begin_with_a_newer_page(&plan, seed % 4 >= 2);
	told = target;
	third = 6 - source - target;
	source_goes_back();
	sim_run_until(sim.now_us + 700000, target_says_more); /* later the third one is dropped */
	if (!target_says_more() || map_in_count(sim_object(0)) == 1) {
		sim_proc_start(third);
		return sim_finish();
	}
	sim_proc_crash(target);
	sim_wait_for(is_undecided, "the map says that an operator must decide");
	sim_proc_crash(source);
	sim_proc_start(source);
	sim_run_until(sim.now_us + 5000000, NULL);
	if (!nobody_serves())
		sim_fail("somebody serves what is not all of it:%s", sim_describe());
	sim_proc_start(third);
	sim_proc_start(told);
	sim_change_one(0, OBJ_FORCE, source, 0);
	return all_come_back_to(source);
}

static bool has_stopped(void)
{
	return !sim.proc[source].alive;
}

static bool is_decided(void)
{
	return !sim_object(0)->undecided;
}

/* The target is dropped, and said in the same step to have what the others lack. */
static void become_undecided(void)
{
	const struct map_object *o = sim_object(0);
	struct object_change ch[2] = {{.op = OBJ_DROP,
				       .object = o->id,
				       .epoch = o->epoch,
				       .replica = *sim_member(0, target),
				       .proposer = (uint16_t)source,
				       .incarnation = o->primary_incarnation}};
	struct command c = {.kind = CMD_OBJECT, .object = {2, ch}};

	ch[1] = ch[0];
	ch[1].op = OBJ_QUARANTINE;
	ch[1].epoch++;
	ch[1].keep = 1;
	sim_submit_command(&c);
	sim_wait_for(is_undecided, "an operator must decide");
}

/* Nobody moves what is served nowhere: a clean stop does not wait for that. */
bool sim_case_undecided_stop(uint64_t seed)
{
	struct sim_plan plan = sim_plan_of(seed, 3);
	uint64_t begun;

	sim_begin_settled(&plan);
	source = sim_primary_node(0);
	target = source % 3 + 1;
	become_undecided();
	sim_run_until(sim.now_us + 2000000, NULL);
	if (sim_serves(source, 0))
		sim_fail("somebody serves what an operator must decide about:%s", sim_describe());
	begun = sim.now_us;
	sim_proc_stop(source);
	sim_wait_for(has_stopped, "its node ends");
	if (sim.now_us - begun > 2500000)
		sim_fail("a clean stop waited %llu us for what nobody serves",
			 (unsigned long long)(sim.now_us - begun));
	sim_proc_start(source);
	sim_run_until(sim.now_us + 5000000, NULL);
	target = sim_primary_node(0);
	change_target(OBJ_FORCE, 0, is_decided);
	return all_come_back_to(target);
}
