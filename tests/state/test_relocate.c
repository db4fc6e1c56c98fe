/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of rebuild, evacuation and rebalance, and that following them ends: a small world applies
 * them to a state machine, fills what is placed, and takes nodes away and brings them back. */
#include "cluster/relocate.h"
#include "node/base/rng.h"
#include "tests/state/state_kit.h"

#include <stdio.h>

struct world {
	struct kit k;
	struct relocate_node node[16];
	struct relocate_plan plan;
	unsigned fills_max, small_fills_max;
	uint64_t placed, removed, moved, promoted;
	unsigned most_fills; /* on one group, ever */
};

static const struct map *map_of(struct world *w)
{
	return kit_map(&w->k);
}

static void world_init(struct world *w, unsigned nodes)
{
	*w = (struct world){.fills_max = RELOCATE_FILLS};
	kit_init(&w->k, nodes);
	for (unsigned i = 1; i <= nodes; i++)
		w->node[i].up = true;
}

static void world_fini(struct world *w)
{
	kit_fini(&w->k);
}

static int job(struct world *w, uint8_t op, uint8_t kind, uint32_t id, uint16_t node,
	       uint16_t group)
{
	struct command c = {
		.kind = CMD_JOB,
		.job = {.op = op, .kind = kind, .id = id, .node = node, .group = group}};

	return kit_apply(&w->k, &c);
}

static void plan(struct world *w)
{
	struct relocate_input in = {.map = map_of(w), .nodes = w->node, .fills_max = w->fills_max,
				    .small_fills_max = w->small_fills_max};

	in.jobs = state_jobs(w->k.s, &in.job_count);
	relocate(&in, &w->plan);
}

static void add_node(struct world *w, uint16_t n)
{
	char name[8];

	snprintf(name, sizeof(name), "n%u", n);
	EXPECT_OK(kit_node(&w->k, name, "", 100u + n));
	EXPECT_OK(kit_start(&w->k, n, 0, 1));
	EXPECT_OK(kit_group(&w->k, n, 200u + n));
	EXPECT_OK(kit_group_state(&w->k, n, GROUP_ACTIVE, 20, 1));
	w->node[n].up = true;
}

/* ---- What replicators would do ---- */

static void each(struct world *w, void (*fn)(struct world *w, struct map_object *o, void *arg),
		 void *arg)
{
	const struct map *m = map_of(w);

	for (uint32_t v = 1; v < m->next_volume; v++) {
		struct map_volume *vol = map_volume(m, v);

		for (uint32_t i = 0; vol && i < vol->objects; i++)
			fn(w, &vol->object[i], arg);
	}
}

static bool up(struct world *w, const struct map_member *mb)
{
	struct map_node *n = map_member_node(map_of(w), mb);

	return n && w->node[n->id].up && map_group(map_of(w), mb->group)->state == GROUP_ACTIVE;
}

static struct object_change by_primary(struct world *w, struct map_object *o, uint8_t op,
				       unsigned i)
{
	struct map_node *p = map_primary_node(map_of(w), o);

	return (struct object_change){.op = op,
				      .object = o->id,
				      .epoch = o->epoch,
				      .replica = o->member[i],
				      .proposer = p ? p->id : 0,
				      .incarnation = p ? p->incarnation : 0};
}

/* Dead ones are dropped; a dead primary is taken over from. */
static void suspect(struct world *w, struct map_object *o, void *arg)
{
	struct object_change ch;

	if (!up(w, &o->member[o->primary])) {
		for (unsigned i = 0; i < o->member_count; i++) {
			struct map_node *n = map_member_node(map_of(w), &o->member[i]);

			if (!o->member[i].in || !up(w, &o->member[i]))
				continue;
			ch = (struct object_change){.op = OBJ_TAKEOVER,
						    .object = o->id,
						    .epoch = o->epoch,
						    .node = n->id,
						    .proposer = n->id,
						    .incarnation = n->incarnation};
			EXPECT_EQ(kit_change(&w->k, ch), OBJ_DONE);
			break;
		}
	}
	if (!up(w, &o->member[o->primary]))
		return;
	for (unsigned i = 0; i < o->member_count; i++)
		if (o->member[i].in && !up(w, &o->member[i]))
			EXPECT_EQ(kit_change(&w->k, by_primary(w, o, OBJ_DROP, i)), OBJ_DONE);
}

/* Promotes out members that can be reached; *arg: one in so many of those that were never filled.
 */
static void fill(struct world *w, struct map_object *o, void *arg)
{
	unsigned *odds = arg;

	if (!up(w, &o->member[o->primary]))
		return;
	for (unsigned i = 0; i < o->member_count; i++) {
		if (o->member[i].in || o->member[i].kept || !up(w, &o->member[i]) ||
		    (!o->member[i].filled && odds && (o->id + w->promoted + i) % *odds))
			continue;
		EXPECT_EQ(kit_change(&w->k, by_primary(w, o, OBJ_PROMOTE, i)), OBJ_DONE);
		w->promoted++;
	}
}

static void count_fills(struct world *w, struct map_object *o, void *arg)
{
	unsigned *count = arg;

	for (unsigned i = 0; i < o->member_count; i++)
		if (!o->member[i].in && !o->member[i].filled && !o->member[i].kept &&
		    up(w, &o->member[i])) {
			count[o->member[i].group]++;
			count[o->member[o->primary].group]++;
		}
}

/* ---- Following plans ---- */

static unsigned in_up(struct world *w, const struct map_object *o)
{
	unsigned n = 0;

	for (unsigned i = 0; i < o->member_count; i++)
		n += o->member[i].in && up(w, &o->member[i]);
	return n;
}

static unsigned follow(struct world *w)
{
	const struct relocate_plan *p = &w->plan;

	plan(w);
	for (unsigned i = 0; i < p->wanted_count; i++)
		EXPECT_OK(job(w, JOB_START, JOB_REBUILD, 0, p->wanted[i].node, p->wanted[i].group));
	for (unsigned i = 0; i < p->count; i++) {
		struct map_object *o = kit_object(&w->k, p->change[i].object);
		unsigned before = in_up(w, o),
			 copies = map_volume(map_of(w), object_volume(o->id))->copies;

		/* Nothing that a plan says is refused, or takes a copy that the policy wants. */
		EXPECT_EQ(kit_change(&w->k, p->change[i]), OBJ_DONE);
		EXPECT(in_up(w, o) >= MIN(before, copies));
		w->placed += p->change[i].op == OBJ_PLACE;
		w->removed += p->change[i].op == OBJ_REMOVE;
		w->moved += p->change[i].op == OBJ_TAKEOVER;
	}
	return p->count + p->wanted_count;
}

static void finish_jobs(struct world *w)
{
	unsigned count;
	const struct state_job *j = state_jobs(w->k.s, &count);

	plan(w);
	for (unsigned i = 0; i < count; i++)
		if (j[i].state == JOB_RUNNING && !w->plan.job[i].left && j[i].kind != JOB_REMOVE)
			EXPECT_OK(job(w, JOB_FINISH, 0, j[i].id, 0, 0));
}

/* Until nothing happens any more. */
static void settle(struct world *w, unsigned odds)
{
	for (unsigned round = 0;; round++) {
		unsigned fills[32] = {0};
		uint64_t before;

		EXPECT(round < 3000);
		each(w, suspect, NULL);
		before = w->k.index;
		follow(w);
		each(w, count_fills, fills);
		for (unsigned g = 0; g < ARRAY_LEN(fills); g++)
			w->most_fills = MAX(w->most_fills, fills[g]);
		each(w, fill, odds ? &odds : NULL);
		if (w->k.index == before && !w->plan.count) {
			if (!odds)
				break;
			odds = 0; /* what was left for later, now */
		}
	}
	finish_jobs(w);
}

static void expect_whole(struct world *w, struct map_object *o, void *arg)
{
	const struct map_volume *v = map_volume(map_of(w), object_volume(o->id));

	EXPECT_EQ(map_in_count(o), v->copies);
	EXPECT_EQ(o->member_count, v->copies);
	for (unsigned i = 0; i < o->member_count; i++) {
		EXPECT(up(w, &o->member[i]));
		for (unsigned k = 0; k < i; k++)
			EXPECT(map_member_node(map_of(w), &o->member[i]) !=
			       map_member_node(map_of(w), &o->member[k]));
	}
}

static void count_group(struct world *w, struct map_object *o, void *arg)
{
	unsigned *count = arg;

	for (unsigned i = 0; i < o->member_count; i++)
		count[o->member[i].group]++;
}

static unsigned count_on(struct world *w, uint16_t group)
{
	unsigned count[32] = {0};

	each(w, count_group, count);
	return count[group];
}

/* For so long that it is replaced. */
static void stays_away(struct world *w, uint16_t node)
{
	w->node[node] = (struct relocate_node){.away = true};
	each(w, suspect, NULL);
}

static void settle_whole(struct world *w, unsigned odds)
{
	settle(w, odds);
	each(w, expect_whole, NULL);
}

/* ---- Rebuild ---- */

TEST(rebuild, a_node_that_stays_away_is_replaced_and_forgotten)
{
	struct world w;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 3ull << 30, 2));
	EXPECT_OK(kit_volume(&w.k, "b", 1ull << 30, 3));
	w.node[2].up = false;
	settle(&w, 0);
	EXPECT(w.plan.lacking.waiting > 0 && w.plan.lacking.waiting == w.plan.lacking.total);
	EXPECT_EQ(w.placed, 0); /* not yet */
	w.node[2].away = true;
	plan(&w);
	EXPECT_EQ(w.plan.wanted_count, 1);
	EXPECT(w.plan.wanted[0].node == 2 && !w.plan.wanted[0].group);
	EXPECT_EQ(w.plan.count, 0); /* not without a job: somebody may have cancelled it */
	settle(&w, 3);
	EXPECT_EQ(w.plan.lacking.total, 0);
	each(&w, expect_whole, NULL);
	EXPECT_EQ(count_on(&w, 2), 0);
	EXPECT_EQ(state_job(w.k.s, 1)->state, JOB_DONE);
	EXPECT(w.most_fills <= RELOCATE_FILLS);
	w.node[2] = (struct relocate_node){.up = true}; /* back, as an empty one */
	settle_whole(&w, 0);
	world_fini(&w);
}

TEST(rebuild, a_failed_group_is_replaced_at_once)
{
	struct world w;

	world_init(&w, 3);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
	EXPECT_OK(kit_group_state(&w.k, 3, GROUP_FAILED, 20, 1));
	each(&w, suspect, NULL);
	plan(&w);
	EXPECT_EQ(w.plan.wanted_count, 1);
	EXPECT(w.plan.wanted[0].group == 3 && !w.plan.wanted[0].node);
	settle_whole(&w, 2);
	world_fini(&w);
}

TEST(rebuild, the_most_endangered_come_first)
{
	struct world w;
	const struct map_object *first, *later;

	world_init(&w, 5);
	w.fills_max = 1000;
	EXPECT_OK(kit_volume(&w.k, "three", 1ull << 30, 3));
	EXPECT_OK(kit_volume(&w.k, "two", 1ull << 30, 2));
	stays_away(&w, 2);
	EXPECT_OK(job(&w, JOB_START, JOB_REBUILD, 0, 2, 0));
	plan(&w);
	EXPECT(w.plan.count > 2);
	first = kit_object(&w.k, w.plan.change[0].object);
	EXPECT_EQ(map_in_count(first), 1);
	for (unsigned i = 1; i < w.plan.count; i++) {
		later = kit_object(&w.k, w.plan.change[i].object);
		EXPECT(map_in_count(later) >= map_in_count(first));
		first = later;
	}
	EXPECT_EQ(map_in_count(first), 2);
	world_fini(&w);
}

/* Of small objects more are copied at once, as long as they are no more than two of the largest. */
TEST(rebuild, small_objects_are_copied_many_at_once)
{
	for (unsigned large = 0; large < 2; large++) {
		struct world w;

		world_init(&w, 4);
		w.small_fills_max = RELOCATE_SMALL_FILLS;
		EXPECT_OK(kit_volume(&w.k, "a", large ? 256 * OBJECT_SIZE_MAX : 256 * OBJECT_SIZE_MIN, 2));
		w.node[2] = (struct relocate_node){.away = true};
		EXPECT_OK(job(&w, JOB_START, JOB_REBUILD, 0, 2, 0));
		settle_whole(&w, 3);
		if (large)
			EXPECT_EQ(w.most_fills, RELOCATE_FILLS);
		else
			EXPECT(w.most_fills > 2 * RELOCATE_FILLS && w.most_fills <= RELOCATE_SMALL_FILLS);
		world_fini(&w);
	}
}

TEST(rebuild, many_to_many_within_bounds)
{
	struct world w;
	unsigned source[32] = {0}, target[32] = {0}, sources = 0, targets = 0;

	world_init(&w, 8);
	w.fills_max = 3;
	EXPECT_OK(kit_volume(&w.k, "a", 8ull << 30, 2));
	stays_away(&w, 2);
	EXPECT_OK(job(&w, JOB_START, JOB_REBUILD, 0, 2, 0));
	plan(&w);
	for (unsigned i = 0; i < w.plan.count; i++) {
		const struct map_object *o = kit_object(&w.k, w.plan.change[i].object);

		EXPECT_EQ(w.plan.change[i].op, OBJ_PLACE);
		source[o->member[o->primary].group]++;
		target[w.plan.change[i].replica.group]++;
	}
	for (unsigned g = 1; g <= 8; g++) {
		EXPECT(source[g] + target[g] <= 3);
		sources += source[g] > 0;
		targets += target[g] > 0;
	}
	EXPECT(sources >= 3 && targets >= 3);
	world_fini(&w);
}

/* The old replica lacks little: it is waited for, and the copies that were begun go. */
TEST(rebuild, who_comes_back_in_time_replaces_its_replacement)
{
	struct world w;
	uint64_t placed;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 2));
	stays_away(&w, 2);
	follow(&w); /* the job */
	follow(&w);
	placed = w.placed;
	EXPECT(placed > 0);
	w.node[2] = (struct relocate_node){.up = true};
	follow(&w);
	EXPECT_EQ(w.removed, placed); /* before anybody was filled, all of them */
	each(&w, fill, NULL);
	settle(&w, 0);
	EXPECT_EQ(w.placed, placed);
	each(&w, expect_whole, NULL);
	EXPECT_EQ(state_job(w.k.s, 1)->state, JOB_DONE);
	world_fini(&w);
}

TEST(rebuild, a_target_that_dies_is_given_up)
{
	struct world w;

	world_init(&w, 5);
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 2));
	for (uint16_t dead = 2; dead <= 3; dead++) {
		stays_away(&w, dead);
		follow(&w);
		follow(&w);
	}
	settle(&w, 4);
	EXPECT(w.plan.lacking.total == w.plan.lacking.stranded); /* both copies were there */
	world_fini(&w);
}

/* A source that is away for a moment does not end the job; one that is given up does. */
TEST(rebuild, it_waits_for_sources_that_may_return)
{
	struct world w;
	uint32_t left;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 2));
	stays_away(&w, 2);
	follow(&w);
	plan(&w);
	left = w.plan.job[0].left;
	w.node[3].up = false;
	each(&w, suspect, NULL);
	plan(&w);
	EXPECT(w.plan.lacking.stranded > 0);
	EXPECT_EQ(w.plan.job[0].left, left);
	EXPECT_EQ(w.plan.job[0].stranded, 0);
	w.node[3].away = true;
	plan(&w);
	EXPECT_EQ(w.plan.job[0].stranded, w.plan.lacking.stranded);
	EXPECT_EQ(w.plan.job[0].left + w.plan.job[0].stranded, left);
	world_fini(&w);
}

TEST(rebuild, paused_and_cancelled_ones_place_nothing)
{
	struct world w;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 2));
	stays_away(&w, 2);
	follow(&w);
	EXPECT_OK(job(&w, JOB_PAUSE, 0, 1, 0, 0));
	settle(&w, 0);
	EXPECT_EQ(w.placed, 0);
	EXPECT(w.plan.lacking.held > 0 && w.plan.job[0].left == w.plan.lacking.held);
	EXPECT_OK(job(&w, JOB_CANCEL, 0, 1, 0, 0));
	settle(&w, 0);
	EXPECT_EQ(w.placed, 0);
	EXPECT_EQ(w.plan.wanted_count, 0); /* nor is it started again */
	/* Another absence is another matter. */
	EXPECT_OK(kit_start(&w.k, 2, 1, 2));
	settle(&w, 0);
	EXPECT(w.placed > 0);
	each(&w, expect_whole, NULL);
	world_fini(&w);
}

TEST(rebuild, what_blocks_it_is_said_of_each_group)
{
	struct world w;

	world_init(&w, 3);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 3));
	w.node[2] = (struct relocate_node){.away = true};
	settle(&w, 0);
	settle(&w, 0);
	EXPECT(w.plan.lacking.blocked > 0 && w.plan.lacking.blocked == w.plan.lacking.total);
	EXPECT_EQ(w.plan.job[0].blocked, w.plan.job[0].left);
	EXPECT(strstr(w.plan.why, "volume a"));
	EXPECT(strstr(w.plan.why, "group 1: has a replica"));
	EXPECT(strstr(w.plan.why, "group 2: its node cannot be reached"));
	world_fini(&w);
}

/* Its second replica was dropped and then forced, as the first one's process was gone. */
static void force_second(struct world *w, struct map_object *o, void *arg)
{
	struct object_change ch = by_primary(w, o, OBJ_DROP, 1);
	uint16_t primary = ch.proposer, other = map_member_node(map_of(w), &o->member[1])->id;

	EXPECT_EQ(kit_change(&w->k, ch), OBJ_DONE);
	ch = (struct object_change){.op = OBJ_FORCE,
				    .object = o->id,
				    .epoch = o->epoch,
				    .replica = o->member[1],
				    .node = other,
				    .incarnation = map_node(map_of(w), other)->incarnation,
				    .proposer = primary};
	EXPECT_EQ(kit_change(&w->k, ch), OBJ_DONE);
	EXPECT(o->member[0].kept);
}

static void expect_quarantined(struct world *w, struct map_object *o, void *arg)
{
	unsigned *in = arg, kept = 0;

	EXPECT_EQ(map_in_count(o), *in);
	for (unsigned i = 0; i < o->member_count; i++)
		kept += o->member[i].kept;
	EXPECT_EQ(kept, 1);
	EXPECT_EQ(o->member_count, *in + 1);
}

TEST(rebuild, a_quarantined_replica_is_no_copy_and_stays)
{
	struct world w;
	unsigned copies = 2;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, copies));
	each(&w, force_second, NULL);
	settle(&w, 2);
	each(&w, expect_quarantined, &copies);
	EXPECT_EQ(w.plan.lacking.total, 0);
	EXPECT_EQ(w.plan.count, 0);
	/* Nor does it keep a job from its end: nobody waits for its node, and an evacuation leaves it. */
	w.node[1] = (struct relocate_node){.away = true};
	settle(&w, 2);
	EXPECT_EQ(w.plan.lacking.total, 0);
	for (unsigned i = 0; i < ARRAY_LEN(w.plan.job); i++)
		EXPECT_EQ(w.plan.job[i].left, 0);
	world_fini(&w);
}

static void leave_undecided(struct world *w, struct map_object *o, void *arg)
{
	uint16_t primary = map_primary_node(map_of(w), o)->id;
	struct object_change ch = {.op = OBJ_DROP, .object = o->id, .epoch = o->epoch, .proposer = primary};

	ch.replica = o->member[!o->primary];
	ch.incarnation = map_node(map_of(w), primary)->incarnation;
	EXPECT_EQ(kit_change(&w->k, ch), OBJ_DONE);
	ch.op = OBJ_QUARANTINE;
	ch.keep = 1;
	ch.epoch = o->epoch;
	EXPECT_EQ(kit_change(&w->k, ch), OBJ_DONE);
	EXPECT(o->undecided);
}

/* Nobody serves it, so nobody fills a copy: one would only keep places and turns from others. */
TEST(rebuild, what_is_undecided_gets_no_copy)
{
	struct world w;
	unsigned in = 1;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
	each(&w, leave_undecided, NULL);
	settle(&w, 2);
	each(&w, expect_quarantined, &in);
	EXPECT_EQ(w.plan.count, 0);
	EXPECT(w.plan.lacking.waiting);
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 2, 0));
	settle(&w, 2);
	EXPECT(w.plan.job[0].undecided && w.plan.job[0].undecided == w.plan.job[0].left);
	world_fini(&w);
}

TEST(rebuild, a_quarantine_that_is_in_the_way_is_named)
{
	struct world w;
	unsigned one = 1;

	world_init(&w, 2);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
	each(&w, force_second, NULL);
	settle(&w, 0);
	each(&w, expect_quarantined, &one);
	EXPECT(w.plan.lacking.blocked > 0 && w.plan.lacking.blocked == w.plan.lacking.total);
	EXPECT(strstr(w.plan.why, "keeps a replica of it in quarantine"));
	world_fini(&w);
}

TEST(rebuild, full_groups_take_nothing)
{
	struct world w;
	unsigned before;

	world_init(&w, 5);
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 2));
	EXPECT_OK(kit_group_state(&w.k, 4, GROUP_ACTIVE, 0, 1));
	before = count_on(&w, 4);
	w.node[2] = (struct relocate_node){.away = true};
	settle_whole(&w, 0);
	EXPECT(count_on(&w, 4) <= before);
	world_fini(&w);
}

/* ---- Evacuation ---- */

TEST(evacuate, a_group_is_emptied_primaries_first_moved)
{
	struct world w;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 3ull << 30, 2));
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 0, 3));
	settle_whole(&w, 3);
	EXPECT_EQ(count_on(&w, 3), 0);
	EXPECT(w.moved > 0);
	EXPECT_EQ(state_job(w.k.s, 1)->state, JOB_DONE);
	/* It stays empty: a node that is lost is replaced elsewhere. */
	w.node[1] = (struct relocate_node){.away = true};
	settle(&w, 3);
	EXPECT_EQ(count_on(&w, 3), 0);
	EXPECT_OK(kit_group_state(&w.k, 3, GROUP_REMOVED, 0, 1));
	world_fini(&w);
}

TEST(evacuate, of_a_node_takes_all_its_groups)
{
	struct world w;

	world_init(&w, 4);
	EXPECT_OK(kit_group(&w.k, 2, 300));
	EXPECT_OK(kit_group_state(&w.k, 5, GROUP_ACTIVE, 20, 1));
	EXPECT_OK(kit_volume(&w.k, "a", 3ull << 30, 3));
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 2, 0));
	settle_whole(&w, 3);
	EXPECT_EQ(count_on(&w, 2) + count_on(&w, 5), 0);
	world_fini(&w);
}

/* A job of a group and one of its node, in either order, whichever moves the replicas: both count them. */
TEST(evacuate, jobs_that_overlap_end_when_their_own_places_are_empty)
{
	static const uint8_t kind[] = {JOB_EVACUATE, JOB_REMOVE};

	for (unsigned i = 0; i < 4; i++) {
		uint8_t of_node = kind[i / 2];
		bool node_first = i % 2;
		struct world w;

		world_init(&w, 4);
		EXPECT_OK(kit_volume(&w.k, "a", 3ull << 30, 2));
		EXPECT_OK(job(&w, JOB_START, node_first ? of_node : JOB_EVACUATE, 0, node_first ? 2 : 0,
			      node_first ? 0 : 2));
		EXPECT_OK(job(&w, JOB_START, node_first ? JOB_EVACUATE : of_node, 0, node_first ? 0 : 2,
			      node_first ? 2 : 0));
		plan(&w);
		EXPECT(w.plan.job[0].left > 0);
		EXPECT_EQ(w.plan.job[0].left, w.plan.job[1].left);
		EXPECT_EQ(w.plan.job[0].left, state_job(w.k.s, 1)->total);
		follow(&w);
		plan(&w);
		EXPECT(w.plan.job[0].filling > 0);
		EXPECT_EQ(w.plan.job[0].filling, w.plan.job[1].filling);
		/* Without the newer one the older goes on. */
		EXPECT_OK(job(&w, JOB_CANCEL, 0, 2, 0, 0));
		plan(&w);
		EXPECT_EQ(w.plan.job[0].left, state_job(w.k.s, 1)->total);
		EXPECT_EQ(w.plan.job[1].left, 0);
		settle(&w, 3);
		EXPECT_EQ(w.plan.job[0].left, 0);
		EXPECT_EQ(count_on(&w, 2), 0);
		each(&w, expect_whole, NULL);
		world_fini(&w);
	}
}

/* The rebuild moves what is on it then, or nobody, while it is not away for long enough. */
TEST(evacuate, of_a_node_that_stays_away_is_not_done_before_its_replicas_are_gone)
{
	struct world w;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
	EXPECT_OK(kit_volume(&w.k, "b", 1ull << 30, 1)); /* not to be copied from anywhere */
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 2, 0));
	stays_away(&w, 2);
	plan(&w);
	EXPECT(w.plan.job[0].left > 0 && w.plan.job[0].stranded > 0);
	EXPECT_EQ(w.plan.job[0].left + w.plan.job[0].stranded, state_job(w.k.s, 1)->total);
	world_fini(&w);
}

/* With no other node the copy may go to another group of the same one. */
TEST(evacuate, a_group_may_go_to_its_neighbour)
{
	struct world w;

	world_init(&w, 3);
	EXPECT_OK(kit_group(&w.k, 2, 300));
	EXPECT_OK(kit_group_state(&w.k, 4, GROUP_ACTIVE, 20, 1));
	EXPECT_OK(kit_volume(&w.k, "a", 2ull << 30, 3));
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 0, 2));
	settle_whole(&w, 0);
	EXPECT_EQ(count_on(&w, 2), 0);
	EXPECT(count_on(&w, 4) > 0);
	world_fini(&w);
}

TEST(evacuate, cancelled_takes_back_what_was_begun)
{
	struct world w;
	uint64_t placed;

	world_init(&w, 4);
	EXPECT_OK(kit_volume(&w.k, "a", 3ull << 30, 2));
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 0, 3));
	follow(&w);
	placed = w.placed;
	EXPECT(placed > 0);
	EXPECT_OK(job(&w, JOB_CANCEL, 0, 1, 0, 0));
	settle(&w, 1000);
	EXPECT_EQ(w.placed, placed);
	EXPECT_EQ(w.removed, placed);
	each(&w, expect_whole, NULL);
	world_fini(&w);
}

TEST(evacuate, without_another_fault_set_it_says_so_and_takes_nothing)
{
	struct world w;

	world_init(&w, 2);
	EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
	EXPECT_OK(job(&w, JOB_START, JOB_EVACUATE, 0, 2, 0));
	settle(&w, 0);
	EXPECT_EQ(w.placed + w.removed, 0);
	EXPECT_EQ(w.plan.job[0].blocked, w.plan.job[0].left);
	EXPECT(w.plan.job[0].left > 0);
	EXPECT_EQ(w.plan.lacking.total, 0);
	EXPECT(strstr(w.plan.why, "group 2: is being emptied"));
	EXPECT_EQ(state_job(w.k.s, 1)->state, JOB_RUNNING);
	world_fini(&w);
}

/* ---- Rebalance ---- */

TEST(rebalance, added_nodes_get_their_share_and_it_ends)
{
	struct world w;
	unsigned count[32] = {0}, lo = 100000, hi = 0;

	world_init(&w, 3);
	EXPECT_OK(kit_volume(&w.k, "a", 20ull << 30, 2));
	add_node(&w, 4);
	add_node(&w, 5);
	plan(&w);
	EXPECT(w.plan.uneven && w.plan.imbalance > 0);
	EXPECT_EQ(w.plan.count, 0); /* nobody asked for it */
	EXPECT_OK(job(&w, JOB_START, JOB_REBALANCE, 0, 0, 0));
	settle_whole(&w, 3);
	each(&w, count_group, count);
	for (unsigned g = 1; g <= 5; g++) {
		lo = MIN(lo, count[g]);
		hi = MAX(hi, count[g]);
	}
	EXPECT(hi * 100 <= lo * 112);
	EXPECT(!w.plan.uneven);
	EXPECT_EQ(state_job(w.k.s, 1)->state, JOB_DONE);
	EXPECT_EQ(w.placed, w.removed); /* each copy was used */
	world_fini(&w);
}

TEST(rebalance, shares_follow_capacity)
{
	struct world w;
	unsigned count[32] = {0};
	struct command c = {.kind = CMD_GROUP_ADD};

	world_init(&w, 3);
	EXPECT_OK(kit_volume(&w.k, "a", 20ull << 30, 1));
	EXPECT_OK(kit_node(&w.k, "n4", "", 104));
	EXPECT_OK(kit_start(&w.k, 4, 0, 1));
	c.group_add.node = 4;
	c.group_add.uuid = kit_uuid(204);
	c.group_add.incarnation = 1;
	c.group_add.raw_bytes = 3ull << 40; /* as much as all others together */
	EXPECT_OK(kit_apply(&w.k, &c));
	EXPECT_OK(kit_group_state(&w.k, 4, GROUP_ACTIVE, 20, 1));
	w.node[4].up = true;
	EXPECT_OK(job(&w, JOB_START, JOB_REBALANCE, 0, 0, 0));
	settle(&w, 3);
	each(&w, count_group, count);
	EXPECT(count[4] * 10 > 9 * (count[1] + count[2] + count[3]));
	EXPECT(count[4] * 10 < 12 * (count[1] + count[2] + count[3]));
	world_fini(&w);
}

TEST(rebalance, waits_for_missing_copies_and_cancelling_takes_back)
{
	struct world w;

	world_init(&w, 3);
	EXPECT_OK(kit_volume(&w.k, "a", 8ull << 30, 2));
	add_node(&w, 4);
	EXPECT_OK(job(&w, JOB_START, JOB_REBALANCE, 0, 0, 0));
	w.node[2].up = false;
	each(&w, suspect, NULL);
	follow(&w);
	EXPECT_EQ(w.placed, 0);
	w.node[2].up = true;
	each(&w, fill, NULL);
	follow(&w);
	EXPECT(w.placed > 0);
	EXPECT_OK(job(&w, JOB_CANCEL, 0, 1, 0, 0));
	settle(&w, 100000);
	EXPECT_EQ(w.removed, w.placed);
	each(&w, expect_whole, NULL);
	world_fini(&w);
}

/* ---- Anything, in any order ---- */

static void disturb(struct world *w, struct rng *r, unsigned nodes)
{
	uint16_t n = (uint16_t)(1 + rng_below(r, nodes)), up_count = 0;
	unsigned count;
	const struct state_job *j = state_jobs(w->k.s, &count);
	uint32_t id = count ? j[rng_below(r, count)].id : 0;

	for (unsigned i = 1; i <= nodes; i++)
		up_count += w->node[i].up;
	switch (rng_below(r, 8)) {
	case 0:
	case 1:
		if (w->node[n].up && up_count > 3)
			w->node[n] = (struct relocate_node){.away = rng_below(r, 2)};
		break;
	case 2:
	case 3:
		w->node[n] = (struct relocate_node){.up = true};
		break;
	case 4:
		(void)!job(w, JOB_START, JOB_EVACUATE, 0, rng_below(r, 2) ? n : 0, 0);
		break;
	case 5:
		(void)!job(w, JOB_START, JOB_REBALANCE, 0, 0, 0);
		break;
	case 6:
		(void)!job(w, (uint8_t)(JOB_PAUSE + rng_below(r, 3)), 0, id, 0, 0);
		break;
	case 7:
		finish_jobs(w);
		break;
	}
}

TEST(relocate, whatever_happens_nothing_is_lost_and_all_is_whole_in_the_end)
{
	uint64_t placed = 0, removed = 0, moved = 0;

	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world w;
		struct rng r;
		unsigned nodes = 5 + seed % 3, count, odds = 5;

		rng_seed(&r, seed);
		world_init(&w, nodes);
		EXPECT_OK(kit_volume(&w.k, "a", 1ull << 30, 2));
		EXPECT_OK(kit_volume(&w.k, "b", 1ull << 30, 3));
		EXPECT_OK(kit_volume(&w.k, "c", 256ull << 20, 1));
		for (unsigned i = 0; i < 150; i++) {
			disturb(&w, &r, nodes);
			each(&w, suspect, NULL);
			follow(&w);
			each(&w, fill, &odds);
		}
		for (unsigned i = 1; i <= nodes; i++)
			w.node[i] = (struct relocate_node){.up = true};
		state_jobs(w.k.s, &count);
		for (unsigned i = count; i-- > 0;)
			(void)!job(&w, JOB_CANCEL, 0, state_jobs(w.k.s, &count)[i].id, 0, 0);
		settle(&w, 2);
		EXPECT_EQ(w.plan.lacking.total, 0);
		each(&w, expect_whole, NULL);
		placed += w.placed;
		removed += w.removed;
		moved += w.moved;
		world_fini(&w);
	}
	EXPECT(placed > 500 && removed > 500 && moved > 100);
}
