/* SPDX-License-Identifier: Apache-2.0 */
/* What a node computes and sends over all objects, at three sizes up to the largest cluster there may be: it
 * fits where it has to go, and nobody waits long for it. The figures are printed. */
#include <time.h>

#include "cluster/consensus_message.h"
#include "cluster/relocate.h"
#include "net/wire.h"
#include "node/safety.h"
#include "tests/state/state_kit.h"

#define NODES NODES_MAX
#define SLOW_US 1000000u /* an election takes less: who computes for so long on the control loop is silent */

static uint64_t now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

struct world {
	struct kit k;
	struct health_node hn[NODES];
	struct health_group hg[NODES];
	struct relocate_node rn[NODES + 1];
	struct health_input health;
};

/* Nearly so many objects, in volumes of 255. How many. */
static unsigned world_init(struct world *w, unsigned objects)
{
	unsigned made = 0;
	char name[16];

	memset(w, 0, sizeof(*w));
	kit_init(&w->k, NODES);
	for (unsigned i = 0; i < NODES; i++) {
		w->hn[i] = (struct health_node){.id = (uint16_t)(i + 1), .up = i != 1};
		w->hg[i] = (struct health_group){.id = (uint16_t)(i + 1), .known = true, .open = true};
		w->rn[i + 1].up = i != 1;
		w->rn[i + 1].away = i == 1;
	}
	for (unsigned n = 1; made + 255 <= objects; n++) {
		snprintf(name, sizeof(name), "v%u", n);
		EXPECT_OK(kit_volume(&w->k, name, 255 * OBJECT_SIZE_MAX, 3));
		made += map_volume(kit_map(&w->k), n)->objects;
	}
	w->health = (struct health_input){.map = kit_map(&w->k), .self = 1, .now_ms = 1, .leader_known = true,
					  .nodes = w->hn, .node_count = NODES, .groups = w->hg,
					  .group_count = NODES};
	return made;
}

static uint64_t told(const char *what, uint64_t since_us, uint64_t bytes)
{
	uint64_t took = now_us() - since_us;

	if (bytes)
		printf("    %-26s %8.1f ms %10llu bytes\n", what, (double)took / 1000,
		       (unsigned long long)bytes);
	else
		printf("    %-26s %8.1f ms\n", what, (double)took / 1000);
	EXPECT(took < SLOW_US);
	return took;
}

static void maps(struct world *w)
{
	struct writer full = writer_init_heap(), one = writer_init_heap();
	struct map_object *o = kit_object(&w->k, object_id(1, 0));
	struct map_member mb = o->member[1];
	struct reader r;
	struct map copy;
	uint64_t since = now_us();

	map_delta_encode(kit_map(&w->k), 0, NULL, 0, &full);
	told("whole map, written", since, full.len);
	EXPECT(full.len <= WIRE_BODY_MAX);
	map_init(&copy);
	r = reader_init(full.data, full.len);
	since = now_us();
	EXPECT_OK(map_delta_apply(&copy, &r, NULL, NULL));
	told("whole map, read", since, 0);
	EXPECT_EQ(kit_change(&w->k, (struct object_change){.op = OBJ_DROP, .object = o->id, .epoch = o->epoch,
							   .replica = mb, .node = mb.group, .incarnation = 1,
							   .proposer = mb.group}),
		  OBJ_DONE);
	since = now_us();
	map_delta_encode(kit_map(&w->k), copy.version, NULL, 0, &one);
	told("delta of one object", since, one.len);
	EXPECT(one.len < 256);
	map_fini(&copy);
	writer_free(&full);
	writer_free(&one);
}

static void snapshots(struct world *w)
{
	struct writer out = writer_init_heap();
	struct state *copy = state_create();
	uint64_t since = now_us();

	state_snapshot(w->k.s, &out);
	told("snapshot, written", since, out.len);
	EXPECT(out.len <= MESSAGE_SNAPSHOT_BYTES_MAX);
	since = now_us();
	EXPECT_OK(state_restore(copy, out.data, out.len));
	told("snapshot, read", since, 0);
	EXPECT(state_digest(copy) == state_digest(w->k.s));
	state_destroy(copy);
	writer_free(&out);
}

static void judgements(struct world *w)
{
	struct health_report *report = xcalloc(1, sizeof(*report));
	struct safety_report *safety = xcalloc(1, sizeof(*safety));
	struct relocate_plan *plan = xcalloc(1, sizeof(*plan));
	struct relocate_input in = {.map = kit_map(&w->k), .nodes = w->rn, .fills_max = RELOCATE_FILLS,
				    .small_fills_max = RELOCATE_SMALL_FILLS};
	uint16_t stop = 3;
	struct safety_input question = {.health = &w->health, .nodes = &stop, .node_count = 1};
	struct command c = {.kind = CMD_JOB, .job = {.op = JOB_START, .kind = JOB_EVACUATE, .node = 3}};
	uint64_t since = now_us();

	health_evaluate(&w->health, report);
	told("health, a node down", since, 0);
	EXPECT(report->objects && report->degraded);
	since = now_us();
	safety_evaluate(&question, safety);
	told("can-stop", since, 0);
	EXPECT(safety->objects);
	EXPECT_OK(kit_apply(&w->k, &c));
	in.jobs = state_jobs(w->k.s, &in.job_count);
	since = now_us();
	relocate(&in, plan);
	told("plan, of an evacuation", since, 0);
	EXPECT(plan->count && plan->job[0].left);
	free(report);
	free(safety);
	free(plan);
}

TEST(scale, all_objects_fit_and_are_looked_at_in_no_time)
{
	static const unsigned sizes[] = {1000, 20000, OBJECTS_MAX};

	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		struct world *w = xcalloc(1, sizeof(*w));
		uint64_t since = now_us();

		unsigned made = world_init(w, sizes[i]);

		printf("  %u objects, 3 copies on %u nodes, placed in %.1f ms\n", made, NODES,
		       (double)(now_us() - since) / 1000);
		maps(w);
		snapshots(w);
		judgements(w);
		kit_fini(&w->k);
		free(w);
	}
}
