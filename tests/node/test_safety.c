/* SPDX-License-Identifier: Apache-2.0 */
/* can-stop and can-lose are a pure function: each test is a small cluster and a question. */
#include "cluster/command.h"
#include "node/safety.h"
#include "tests/lib/test.h"

#define NODES 5u

struct world {
	struct map map;
	struct map_node node[NODES];
	struct map_group group[NODES];
	struct map_volume volume;
	struct map_object object[NODES];
	struct health_node hn[NODES];
	struct health_group hg[NODES];
	struct health_input health;
	struct safety_report r;
};

/* n nodes with a group each, three voters, and a volume with one object per node, round robin. */
static void world_init(struct world *w, unsigned n, unsigned copies)
{
	memset(w, 0, sizeof(*w));
	map_init(&w->map);
	for (unsigned i = 0; i < n; i++) {
		w->node[i] = (struct map_node){.id = (uint16_t)(i + 1),
					       .incarnation = 1,
					       .shards = 1,
					       .roles = ROLE_STORAGE | ROLE_VOTER,
					       .state = NODE_ACTIVE};
		snprintf(w->node[i].name, sizeof(w->node[i].name), "n%u", i + 1);
		hmap_insert(&w->map.nodes, &w->node[i].by_id, hash_u64(i + 1));
		w->group[i] = (struct map_group){.id = (uint16_t)(i + 1),
						 .node = (uint16_t)(i + 1),
						 .incarnation = 1,
						 .state = GROUP_ACTIVE};
		hmap_insert(&w->map.groups, &w->group[i].by_id, hash_u64(i + 1));
		w->hn[i] = (struct health_node){.id = (uint16_t)(i + 1), .up = true};
		w->hg[i] = (struct health_group){.id = (uint16_t)(i + 1),
						 .known = true,
						 .open = true,
						 .data_bytes = 1000 << 20,
						 .used_bytes = 400 << 20};
		w->object[i] =
			(struct map_object){.id = object_id(1, i), .member_count = (uint8_t)copies};
		for (unsigned k = 0; k < copies; k++)
			w->object[i].member[k] =
				(struct map_member){.group = (uint16_t)((i + k) % n + 1),
						    .group_incarnation = 1,
						    .gen = 1,
						    .in = true};
	}
	w->volume = (struct map_volume){.id = 1,
					.size = 1 << 30,
					.object_size = 1 << 26,
					.objects = n,
					.copies = (uint8_t)copies,
					.min_in_sync = 1,
					.object = w->object};
	strcpy(w->volume.name, "v");
	hmap_insert(&w->map.volumes, &w->volume.by_id, hash_u64(1));
	w->health = (struct health_input){.map = &w->map,
					  .self = 1,
					  .now_ms = 1000,
					  .leader_known = true,
					  .voter_count = MIN(n, 3u),
					  .voters = {1, 2, 3},
					  .nodes = w->hn,
					  .node_count = n,
					  .groups = w->hg,
					  .group_count = n};
}

static void world_fini(struct world *w)
{
	hmap_fini(&w->map.nodes);
	hmap_fini(&w->map.groups);
	hmap_fini(&w->map.volumes);
	hmap_fini(&w->map.attachments);
}

static enum safety_verdict ask(struct world *w, bool for_good, unsigned count, uint16_t a,
			       uint16_t b)
{
	uint16_t nodes[2] = {a, b};
	struct safety_input in = {.health = &w->health,
				  .nodes = nodes,
				  .node_count = count,
				  .for_good = for_good,
				  .copy_bytes_s = 100 << 20};

	safety_evaluate(&in, &w->r);
	return w->r.verdict;
}

TEST(safety, one_of_three_may_stop)
{
	struct world w;

	world_init(&w, 3, 2);
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(w.r.objects, 2);
	EXPECT_EQ(w.r.single, 2);
	EXPECT(strstr(w.r.why, "single copy"));
	EXPECT(w.r.voters_left == 2 && w.r.voters_needed == 2);
	world_fini(&w);
}

TEST(safety, a_second_one_may_not)
{
	struct world w;

	world_init(&w, 3, 2);
	EXPECT_EQ(ask(&w, false, 2, 2, 3), SAFETY_DATA);
	EXPECT_EQ(w.r.unavailable, 1);
	EXPECT_EQ(w.r.volumes, 1);
	EXPECT_STR(w.r.volume[0], "v");
	w.hn[1].up = false; /* one is down already */
	EXPECT_EQ(ask(&w, false, 1, 3, 0), SAFETY_DATA);
	EXPECT_EQ(w.r.unavailable, 1);
	world_fini(&w);
}

TEST(safety, a_copy_that_is_not_in_sync_does_not_count)
{
	struct world w;

	world_init(&w, 3, 2);
	w.object[0].member[1].in = false; /* node 2's; node 1 has the only one */
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(ask(&w, false, 1, 1, 0), SAFETY_DATA);
	EXPECT_EQ(w.r.unavailable, 1);
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	EXPECT_EQ(w.r.lost, 1);
	world_fini(&w);
}

/* It may have what nobody else has. To stop it for a while hurts nobody. */
TEST(safety, a_replica_in_quarantine_is_not_to_be_lost)
{
	struct world w;

	world_init(&w, 3, 2);
	w.object[0].member[1].in = false; /* node 2's */
	w.object[0].member[1].kept = true;
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(w.r.unavailable_now, 0);
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_DATA);
	EXPECT(w.r.quarantined == 1 && !w.r.lost && strstr(w.r.why, "quarantine"));
	EXPECT_STR(w.r.volume[0], "v");
	w.object[0].undecided = true; /* nobody serves it */
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(w.r.unavailable_now, 1);
	EXPECT_EQ(ask(&w, false, 1, 1, 0), SAFETY_OK); /* its only in-sync one is there: it stops nothing */
	EXPECT_EQ(w.r.unavailable, 0);
	world_fini(&w);
}

/* In-sync is said of replicas, damage is of blocks: what a damaged group lacks may be in one other place. */
TEST(safety, a_damaged_group_is_no_other_copy)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hg[1].damaged_bytes = 4096; /* objects 0 and 1 are on it */
	EXPECT_EQ(ask(&w, false, 1, 1, 0), SAFETY_DATA);
	EXPECT(w.r.unavailable == 1 && w.r.unrepaired == 1 && w.r.unrepaired_group == 2);
	EXPECT(strstr(w.r.why, "group 2") && strstr(w.r.why, "DATA_REPAIRING"));
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	EXPECT(w.r.lost == 1 && w.r.unrepaired == 1);
	EXPECT_STR(w.r.volume[0], "v");
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK); /* its own copies are not needed */
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_OK);
	/* Node 1 is dead, and was taken over from: it may have what group 2 lacks all the same. */
	w.hn[0].up = false;
	w.hg[0].known = false;
	w.object[0].member[0].in = false;
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	EXPECT(w.r.lost == 1 && w.r.unrepaired == 1);
	w.hg[1].damaged_bytes = 0;
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_OK);
	EXPECT_EQ(w.r.unrepaired, 0);
	w.hg[1].lost_bytes = 4096; /* a device that is not replaced yet */
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	w.hg[1].known = false; /* nobody can say */
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_OK);
	world_fini(&w);
}

/* What has the only copy of something may be emptied: that is moved, no reason to refuse. Damage is one. */
TEST(safety, damage_is_told_beside_what_else_would_be_lost)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hg[1].damaged_bytes = 4096;
	w.object[2].member[0].in = false; /* node 3's; node 1 has the only one */
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	EXPECT(w.r.lost == 2 && w.r.unrepaired == 1);
	EXPECT(strstr(w.r.why, "would be lost"));
	EXPECT(strstr(w.r.unrepaired_why, "1 object has") && strstr(w.r.unrepaired_why, "group 2"));
	EXPECT(strstr(w.r.unrepaired_why, "if it shows that")); /* it is not cut */
	w.hg[1].damaged_bytes = 0;
	EXPECT_EQ(ask(&w, true, 1, 1, 0), SAFETY_DATA);
	EXPECT_STR(w.r.unrepaired_why, "");
	world_fini(&w);
}

TEST(safety, two_damaged_groups_may_not_part)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hg[0].damaged_bytes = w.hg[1].damaged_bytes = 4096;
	EXPECT_EQ(ask(&w, false, 1, 1, 0), SAFETY_DATA);
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_DATA);
	world_fini(&w);
	world_init(&w, 3, 3); /* writes go to a damaged one too: they do not stop */
	w.volume.min_in_sync = 2;
	w.hg[1].damaged_bytes = 4096;
	EXPECT_EQ(ask(&w, false, 1, 1, 0), SAFETY_OK);
	EXPECT_EQ(w.r.single, 3);
	world_fini(&w);
}

TEST(safety, maintenance_of_another_counts)
{
	struct world w;

	world_init(&w, 3, 2);
	w.node[1].maintenance_until_ms = 1001;
	EXPECT_EQ(ask(&w, false, 1, 3, 0), SAFETY_DATA);
	w.node[1].maintenance_until_ms = 1000; /* it ran out */
	EXPECT_EQ(ask(&w, false, 1, 3, 0), SAFETY_OK);
	w.node[1].maintenance_until_ms = 1001; /* its own does not */
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	world_fini(&w);
}

TEST(safety, min_in_sync)
{
	struct world w;

	world_init(&w, 3, 2);
	w.volume.min_in_sync = 2;
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_DATA);
	EXPECT_EQ(w.r.below_min, 2);
	EXPECT(strstr(w.r.why, "writes would stop"));
	world_fini(&w);
}

TEST(safety, quorum)
{
	struct world w;

	world_init(&w, 5, 2);
	EXPECT_EQ(ask(&w, false, 2, 1, 3), SAFETY_QUORUM); /* no object has both */
	EXPECT(w.r.voters_left == 1 && strstr(w.r.why, "1 of 3 voters"));
	EXPECT_EQ(ask(&w, false, 2, 3, 5), SAFETY_OK);
	EXPECT_EQ(ask(&w, false, 2, 1, 2), SAFETY_DATA); /* data comes first */
	w.hn[1].data_only = true; /* a voter that Raft cannot reach is none */
	EXPECT_EQ(ask(&w, false, 1, 3, 0), SAFETY_QUORUM);
	world_fini(&w);
}

TEST(safety, losing_needs_room_for_new_copies)
{
	struct world w;

	world_init(&w, 3, 2);
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(w.r.copy_bytes, 400 << 20);
	EXPECT_EQ(w.r.copy_s, 4);
	EXPECT(w.r.bytes_known && w.r.space_enough);
	EXPECT_EQ(w.r.free_after, 800 << 20);
	w.hg[0].used_bytes = w.hg[2].used_bytes = 900 << 20;
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_DATA);
	EXPECT(!w.r.space_enough && !w.r.free_after && strstr(w.r.why, "space"));
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK); /* it comes back: no copies */
	w.hg[2].known = false;
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_OK);
	EXPECT(!w.r.bytes_known && strstr(w.r.why, "not known"));
	world_fini(&w);
}

TEST(safety, losing_needs_fault_sets)
{
	struct world w;

	world_init(&w, 3, 3);
	EXPECT_EQ(ask(&w, false, 1, 2, 0), SAFETY_OK);
	EXPECT_EQ(w.r.degraded, 3);
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_DATA);
	EXPECT(!w.r.places_enough && strstr(w.r.why, "fault sets"));
	world_fini(&w);
	world_init(&w, 4, 3);
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_OK);
	strcpy(w.node[2].fault_set, "r"); /* two in one rack: two sets are left */
	strcpy(w.node[3].fault_set, "r");
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_DATA);
	world_fini(&w);
}

TEST(safety, what_is_down_is_not_lost)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hn[2].up = false; /* object 1 is on nodes 2 and 3 */
	EXPECT_EQ(ask(&w, true, 1, 2, 0), SAFETY_DATA);
	EXPECT(!w.r.lost && w.r.unavailable == 1);
	world_fini(&w);
}

TEST(safety, a_group)
{
	struct world w;
	uint16_t group = 2;
	struct safety_input in = {
		.health = &w.health, .groups = &group, .group_count = 1, .for_good = true};

	world_init(&w, 3, 2);
	safety_evaluate(&in, &w.r);
	EXPECT_EQ(w.r.verdict, SAFETY_OK);
	EXPECT_EQ(w.r.objects, 2);
	EXPECT_EQ(w.r.voters_left, 3); /* the node goes on */
	w.group[2].state = GROUP_FAILED;
	safety_evaluate(&in, &w.r);
	EXPECT_EQ(w.r.verdict, SAFETY_DATA);
	EXPECT_EQ(w.r.lost, 1);
	world_fini(&w);
}
