/* SPDX-License-Identifier: Apache-2.0 */
/* Health is a pure function: each test is a small cluster and the codes it must show. */
#include "cluster/command.h"
#include "node/health.h"
#include "tests/lib/test.h"

struct world {
	struct map map;
	struct map_node node[5];
	struct map_group group[5];
	struct map_volume volume;
	struct map_object object[8];
	struct health_node hn[5];
	struct health_group hg[5];
	struct health_input in;
	struct health_report r;
};

/* n nodes with a group each, and a volume of 8 objects with `copies` copies placed round robin. */
static void world_init(struct world *w, unsigned n, unsigned copies)
{
	memset(w, 0, sizeof(*w));
	map_init(&w->map);
	for (unsigned i = 0; i < n; i++) {
		struct map_node *node = &w->node[i];
		struct map_group *g = &w->group[i];

		*node = (struct map_node){ .id = (uint16_t)(i + 1), .incarnation = 1, .shards = 1,
					   .roles = ROLE_STORAGE | ROLE_VOTER | ROLE_GATEWAY,
					   .state = NODE_ACTIVE, .version_minor = 1 };
		snprintf(node->name, sizeof(node->name), "n%u", i + 1);
		hmap_insert(&w->map.nodes, &node->by_id, hash_u64(node->id));
		*g = (struct map_group){ .id = (uint16_t)(i + 1), .node = node->id, .incarnation = 1,
					 .state = GROUP_ACTIVE };
		hmap_insert(&w->map.groups, &g->by_id, hash_u64(g->id));
		w->hn[i] = (struct health_node){ .id = node->id, .up = true, .answers = true,
						 .cert_known = true, .cert_expires_s = 86400 * 300 };
		w->hg[i] = (struct health_group){ .id = g->id, .known = true, .open = true,
						  .data_bytes = 1 << 30, .used_bytes = 1 << 20 };
		w->in.voters[i] = node->id;
	}
	w->volume = (struct map_volume){ .id = 1, .size = 8ull << 26, .object_size = 1 << 26, .objects = 8,
					 .copies = (uint8_t)copies, .min_in_sync = 1, .object = w->object };
	for (unsigned i = 0; i < 8; i++) {
		struct map_object *o = &w->object[i];

		o->id = object_id(1, i);
		o->member_count = (uint8_t)copies;
		for (unsigned k = 0; k < copies; k++)
			o->member[k] = (struct map_member){ .group = (uint16_t)((i + k) % n + 1),
							    .group_incarnation = 1, .gen = 1, .in = true };
	}
	hmap_insert(&w->map.volumes, &w->volume.by_id, hash_u64(1));
	w->in.map = &w->map;
	w->in.self = 1;
	w->in.leader_known = true;
	w->in.voter_count = n;
	w->in.nodes = w->hn;
	w->in.node_count = n;
	w->in.groups = w->hg;
	w->in.group_count = n;
}

static void world_fini(struct world *w)
{
	hmap_fini(&w->map.nodes);
	hmap_fini(&w->map.groups);
	hmap_fini(&w->map.volumes);
	hmap_fini(&w->map.attachments);
}

static const struct health_item *find(const struct world *w, const char *code)
{
	for (unsigned i = 0; i < w->r.count; i++)
		if (!strcmp(w->r.item[i].code, code))
			return &w->r.item[i];
	return NULL;
}

static const struct health_item *must(const struct world *w, const char *code)
{
	const struct health_item *i = find(w, code);

	if (!i)
		test_failed(__FILE__, __LINE__, "%s is not shown", code);
	EXPECT(i->summary[0] && i->risk[0] && i->command[0]);
	EXPECT(i->count > 0);
	return i;
}

TEST(health, a_healthy_cluster_shows_nothing)
{
	struct world w;

	world_init(&w, 3, 2);
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	EXPECT_EQ(w.r.overall, HEALTH_OK);
	EXPECT_EQ(w.r.objects, 8);
	EXPECT_EQ(w.r.full, 8);
	world_fini(&w);
}

/* One dead node is the root; what it costs is told as its consequence, with the node that must not fail. */
TEST(health, a_dead_node_is_the_root_of_single_copies)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "NODE_DOWN");
	EXPECT_STR(i->affected[0], "n2");
	EXPECT_STR(i->caused_by, "");
	EXPECT(strstr(i->risk, "one more lost voter"));
	i = must(&w, "DATA_SINGLE_COPY");
	EXPECT_STR(i->caused_by, "NODE_DOWN");
	EXPECT(strstr(i->risk, "losing n"));
	EXPECT_EQ(w.r.single + w.r.full, 8);
	EXPECT_EQ(w.r.single, 6); /* of 8 objects over 3 nodes, those that had a copy on n2 */
	EXPECT(!find(&w, "RAFT_MINORITY"));
	EXPECT_EQ(w.r.overall, HEALTH_ERROR);
	world_fini(&w);
}

TEST(health, two_dead_of_three_is_a_minority)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hn[1].up = w.hn[2].up = false;
	w.in.leader_known = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "RAFT_MINORITY")->caused_by, "NODE_DOWN");
	EXPECT(!find(&w, "RAFT_NO_LEADER")); /* the minority explains it */
	EXPECT_STR(must(&w, "DATA_UNAVAILABLE")->caused_by, "NODE_DOWN");
	EXPECT_STR(w.r.item[0].code, "NODE_DOWN"); /* a warning, but the root of errors */
	EXPECT_STR(w.r.item[0].caused_by, "");
	for (unsigned i = 1; i < w.r.count; i++)
		EXPECT_STR(w.r.item[i].caused_by, "NODE_DOWN");
	world_fini(&w);
}

TEST(health, no_leader_with_a_majority)
{
	struct world w;

	world_init(&w, 3, 2);
	w.in.leader_known = false;
	health_evaluate(&w.in, &w.r);
	must(&w, "RAFT_NO_LEADER");
	world_fini(&w);
}

/* Replicas that are out while everything is up are catching up: no root above it. */
TEST(health, catching_up_has_no_other_root)
{
	struct world w;

	world_init(&w, 3, 3);
	w.object[0].member[1].in = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "DATA_DEGRADED")->caused_by, "");
	EXPECT_EQ(w.r.degraded, 1);
	EXPECT_EQ(w.r.overall, HEALTH_WARNING);
	world_fini(&w);
}

TEST(health, a_failed_group_is_a_root)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.hg[2].failed = -ERR_DEVICE;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DISK_FAILED");
	EXPECT_STR(i->command, "ashlar diskgroup show 3");
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "DISK_FAILED");
	w.group[2].state = GROUP_PENDING; /* half made, its node says: nothing is there */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "DISK_FAILED"));
	world_fini(&w);
}

TEST(health, devices_by_state_and_by_their_peers)
{
	struct world w;
	struct health_device d[6];
	const struct health_item *i;

	world_init(&w, 3, 2);
	for (unsigned k = 0; k < 6; k++) {
		d[k] = (struct health_device){ .group = (uint16_t)(k / 2 + 1), .cache = k % 2,
					       .count = { 1000, 100, 1000 }, .mean_us = { 300, 2000, 900 },
					       .p99_us = { 1024, 4096, 2048 } };
		snprintf(d[k].path, sizeof(d[k].path), "/dev/d%u", k);
	}
	w.in.devices = d;
	w.in.device_count = 6;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	/* A slow cache device, against the other cache devices: the capacity ones are another kind. */
	d[3].mean_us[2] = 45600;
	d[3].p99_us[2] = 131072;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DISK_SLOW");
	EXPECT_EQ(i->count, 1);
	EXPECT_STR(i->affected[0], "n2:/dev/d3");
	EXPECT_STR(i->summary,
		   "/dev/d3 of n2: flushed writes take 45.6 ms (p99 131), those of its peers 0.9 ms");
	EXPECT_STR(i->command, "ashlar diskgroup replace 2 --old /dev/d3 --new DEVICE");
	d[3].count[2] = 20; /* too few to tell */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	d[3].count[2] = 1000;
	d[1].mean_us[2] = d[5].mean_us[2] = 30000; /* all are */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	d[1].mean_us[2] = d[5].mean_us[2] = 900;
	d[3].mean_us[2] = 4000; /* much slower, but nothing anybody would notice */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	/* A capacity device that failed or is missing leaves the group serving; its copies still count. */
	d[2].state = HEALTH_DEVICE_FAILED;
	d[4].state = HEALTH_DEVICE_MISSING;
	w.hg[1].lost_bytes = 64u << 20;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DISK_FAILED");
	EXPECT_EQ(i->severity, HEALTH_WARNING);
	EXPECT_STR(i->command, "ashlar diskgroup replace 2 --old /dev/d2 --new DEVICE");
	EXPECT(strstr(i->risk, "64 MiB"));
	EXPECT_STR(must(&w, "DATA_REPAIRING")->caused_by, "DISK_FAILED");
	EXPECT_STR(must(&w, "DISK_MISSING")->affected[0], "n3:/dev/d4");
	EXPECT_EQ(w.r.full, 8);
	/* Without its log the group serves nothing, and that is the root. */
	d[2].state = d[4].state = HEALTH_DEVICE_OK;
	d[3].state = HEALTH_DEVICE_FAILED;
	w.hg[1].failed = -ERR_LOG_LOST;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "CACHE_DEVICE_LOST");
	EXPECT_EQ(i->severity, HEALTH_ERROR);
	EXPECT_STR(i->command, "ashlar diskgroup replace 2 --old /dev/d3 --new DEVICE");
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "CACHE_DEVICE_LOST");
	world_fini(&w);
}

/* One that failed at work comes back by itself; only when that does not help is there something to do. */
TEST(health, a_group_that_is_opened_again_by_itself)
{
	struct world w;
	struct health_device d[] = {{.group = 2, .cache = true, .path = "/dev/d3"}};
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.in.devices = d;
	w.in.device_count = ARRAY_LEN(d);
	w.hg[1].failed = -ERR_MAP_LOST;
	w.hg[1].reopening = true;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "GROUP_REOPENING");
	EXPECT_EQ(i->severity, HEALTH_WARNING);
	EXPECT_STR(i->affected[0], "group 2 on n2");
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "GROUP_REOPENING");
	EXPECT(!find(&w, "DISK_FAILED"));
	/* Its log's device met an error: whether it is lost the opening will tell. */
	d[0].state = HEALTH_DEVICE_FAILED;
	health_evaluate(&w.in, &w.r);
	must(&w, "GROUP_REOPENING");
	EXPECT(!find(&w, "CACHE_DEVICE_LOST"));
	w.hg[1].reopen_failed = true;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "GROUP_REOPENING"));
	EXPECT_STR(must(&w, "CACHE_DEVICE_LOST")->command,
		   "ashlar diskgroup replace 2 --old /dev/d3 --new DEVICE");
	d[0].state = HEALTH_DEVICE_OK;
	w.hg[1].reopening = false;
	w.hg[1].gave_up = true;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "GROUP_STAYS_CLOSED");
	EXPECT_EQ(i->severity, HEALTH_ERROR);
	EXPECT(strstr(i->command, "restart ashlard on n2"));
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "GROUP_STAYS_CLOSED");
	EXPECT(!find(&w, "DISK_FAILED") && !find(&w, "GROUP_REOPENING"));
	w.hg[1].failed = 0;
	w.hg[1].gave_up = false;
	w.hg[1].map_damaged = true;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "MAP_DAMAGED")->severity, HEALTH_ERROR);
	EXPECT_EQ(w.r.count, 1);
	world_fini(&w);
}

TEST(health, a_regrouped_group_has_lost_its_copies)
{
	struct world w;

	world_init(&w, 3, 2);
	w.group[0].incarnation = 2;
	health_evaluate(&w.in, &w.r);
	EXPECT(w.r.single > 0);
	world_fini(&w);
}

TEST(health, what_is_on_a_group_that_is_not_open_is_not_in_reach)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 1);
	w.hg[1].open = false; /* its node is up */
	w.hn[1].missing_devices = 1;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_UNAVAILABLE");
	EXPECT_EQ(i->count, 3);
	EXPECT(strstr(i->command, "ashlar volume force"));
	w.hg[1].known = false; /* it is not known to be closed */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "DATA_UNAVAILABLE"));
	world_fini(&w);
}

TEST(health, after_a_recovery_it_says_who_is_waited_for)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	for (unsigned k = 0; k < 8; k++)
		w.object[k].unsure = k < 3;
	w.node[2].awaited = true;
	w.hn[2].up = false;
	w.node[0].awaited = true; /* a witness has nothing of them */
	w.node[0].roles = ROLE_VOTER;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "RECOVERY_UNSETTLED");
	EXPECT_EQ(i->severity, HEALTH_ERROR);
	EXPECT_EQ(i->count, 3);
	EXPECT_STR(i->affected[0], "n3");
	EXPECT(strstr(i->command, "ashlard recover --follow") &&
	       strstr(i->command, "node remove n3 --dead --accept-loss"));
	i = must(&w, "DATA_UNAVAILABLE");
	EXPECT_EQ(i->count, 3);
	EXPECT_STR(i->caused_by, "RECOVERY_UNSETTLED");
	w.node[2].awaited = false; /* it is back */
	w.hn[2].up = true;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "RECOVERY_UNSETTLED");
	EXPECT(!i->affected_count && strstr(i->command, "volume force"));
	for (unsigned k = 0; k < 8; k++)
		w.object[k].unsure = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	world_fini(&w);
}

TEST(health, a_quarantine_is_shown_until_it_is_discarded)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.object[0].member[1].in = false; /* and its third copy was placed on group 3 */
	w.object[0].member[1].kept = true;
	w.object[0].member[2] = w.object[0].member[0];
	w.object[0].member[2].group = 3;
	w.object[0].member_count = 3;
	w.hn[1].up = false; /* where it is kept: nobody misses it */
	for (unsigned k = 1; k < 8; k++)
		for (unsigned n = 0; n < 2; n++)
			w.object[k].member[n].group = n ? 3 : 1;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_QUARANTINED");
	EXPECT_EQ(i->severity, HEALTH_WARNING);
	EXPECT(strstr(i->summary, "1 replica of 1 volume is kept"));
	EXPECT(!find(&w, "DATA_DEGRADED") && !find(&w, "DATA_SINGLE_COPY"));
	EXPECT(strstr(i->command, "quarantine discard"));
	w.object[0].undecided = true; /* a discard would be refused */
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_QUARANTINED");
	EXPECT(strstr(i->command, "volume force") && !strstr(i->command, "quarantine discard"));
	EXPECT_STR(i->caused_by, "DATA_UNDECIDED");
	world_fini(&w);
}

TEST(health, one_copy_volumes_are_full_with_one)
{
	struct world w;

	world_init(&w, 3, 1);
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.full, 8);
	w.hn[0].up = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.unavailable, 3);
	EXPECT_EQ(w.r.single, 0);
	world_fini(&w);
}

TEST(health, space_has_two_thresholds)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hg[0].used_bytes = (1ull << 30) * 85 / 100;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "SPACE_NEAR_FULL")->affected[0], "group 1");
	EXPECT(!find(&w, "SPACE_FULL_HOLD"));
	w.hg[0].used_bytes = (1ull << 30) * 97 / 100;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "SPACE_FULL_HOLD")->severity, HEALTH_ERROR);
	EXPECT(!find(&w, "SPACE_NEAR_FULL"));
	w.hg[0].known = false; /* a guess is worse than silence */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	world_fini(&w);
}

TEST(health, space_is_judged_by_what_one_more_failure_leaves)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	for (unsigned k = 0; k < 3; k++)
		w.hg[k].used_bytes = (1ull << 30) * 60 / 100;
	w.in.reclaim[0] = (struct health_reclaim){"big", 3ull << 29, true};
	w.in.reclaim[1] = (struct health_reclaim){"shared", 1ull << 20, false};
	health_evaluate(&w.in, &w.r);
	i = must(&w, "SPACE_NEAR_FULL"); /* 1.8 of 2 */
	EXPECT(strstr(i->summary, "89 %") || strstr(i->summary, "90 %"));
	EXPECT(strstr(i->command, "deleting big frees 1.5 GiB, shared frees at least 1.0 MiB"));
	EXPECT(!find(&w, "SPACE_REBUILD_RESERVE")); /* 0.6 fit into 0.8 */
	for (unsigned k = 0; k < 3; k++)
		w.hg[k].used_bytes = (1ull << 30) * 70 / 100;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "SPACE_REBUILD_RESERVE"); /* 0.7 do not fit into 0.6 */
	EXPECT_EQ(i->severity, HEALTH_WARNING);
	EXPECT(strstr(i->command, "deleting big"));
	w.hg[1].known = false; /* two are left: what is lost then cannot be made again anyway */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "SPACE_REBUILD_RESERVE") && !find(&w, "SPACE_NEAR_FULL"));
	world_fini(&w);
}

/* A copy on each node: one that is lost finds no other place, and needs no space there. */
TEST(health, with_as_many_copies_as_nodes_no_space_is_kept_for_a_loss)
{
	struct world w;

	for (unsigned n = 2; n <= 3; n++) {
		world_init(&w, n, n);
		for (unsigned k = 0; k < n; k++)
			w.hg[k].used_bytes = (1ull << 30) * 70 / 100;
		health_evaluate(&w.in, &w.r);
		EXPECT(!find(&w, "SPACE_NEAR_FULL") && !find(&w, "SPACE_REBUILD_RESERVE"));
		w.hg[0].used_bytes = (1ull << 30) * 85 / 100; /* full it may get all the same */
		health_evaluate(&w.in, &w.r);
		EXPECT(strstr(must(&w, "SPACE_NEAR_FULL")->risk, "ENOSPC"));
		world_fini(&w);
	}
}

TEST(health, promised_space_and_reduction)
{
	struct world w;

	world_init(&w, 3, 2);
	/* With copies just below three times what there is. */
	w.volume.size = (3ull << 30) * 3 / 2 - (1 << 20);
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	w.volume.size += 1 << 26;
	health_evaluate(&w.in, &w.r);
	must(&w, "OVERCOMMIT");
	w.volume.size = 1 << 26;
	w.hg[1].hint_bytes = 1 << 20;
	w.hg[1].hint_budget_bytes = 3 << 19;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	w.hg[1].hint_evictions = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DEDUP_INDEX_FULL")->severity, HEALTH_INFO);
	w.hg[1].hint_budget_bytes = 2 << 20; /* it can still double */
	w.hg[2].bypassed_blocks = 5;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "DEDUP_INDEX_FULL") && !find(&w, "REDUCTION_BYPASSED"));
	w.hg[2].reduce_pending = true;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "REDUCTION_BYPASSED")->affected[0], "group 3");
	world_fini(&w);
}

TEST(health, what_cannot_come_back_for_lack_of_space_says_so)
{
	struct world w;

	world_init(&w, 3, 3);
	w.object[0].member[1].in = false;
	w.hg[1].used_bytes = w.hg[1].data_bytes;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "DATA_DEGRADED")->caused_by, "SPACE_FULL_HOLD");
	world_fini(&w);
}

TEST(health, certificates_versions_devices_voters)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hn[0].cert_expires_s = 86400 * 10;
	w.node[1].version_minor = 2;
	w.hn[2].missing_devices = 2;
	snprintf(w.hn[2].missing_device, sizeof(w.hn[2].missing_device), "/dev/sdx");
	w.in.voter_count = 1;
	w.in.voters_wanted = 3;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "CERT_EXPIRING")->severity, HEALTH_WARNING);
	EXPECT_EQ(must(&w, "VERSION_MIXED")->severity, HEALTH_INFO);
	EXPECT_EQ(must(&w, "DISK_MISSING")->count, 2);
	must(&w, "RAFT_FEW_VOTERS");
	w.hn[0].cert_expires_s = -5;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "CERT_EXPIRING")->severity, HEALTH_ERROR);
	world_fini(&w);
}

TEST(health, what_few_voters_risk)
{
	struct world w;

	world_init(&w, 5, 2);
	w.in.voters_wanted = 5;
	w.in.voter_count = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "RAFT_FEW_VOTERS")->risk, "losing one voter stops all"));
	w.in.voter_count = 3;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "RAFT_FEW_VOTERS")->risk, "1 may be lost"));
	EXPECT(strstr(must(&w, "RAFT_FEW_VOTERS")->risk, "of 5 voters it would be 2"));
	world_fini(&w);
}

TEST(health, a_lost_voter_says_who_takes_its_vote)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 4, 2);
	w.in.voter_count = 3;
	w.in.voter_delay_s = 60;
	w.in.now_ms = 10000;
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "RAFT_VOTER_LOST");
	EXPECT(i->severity == HEALTH_WARNING && strstr(i->summary, "no other node could vote"));
	EXPECT_STR(i->caused_by, "NODE_DOWN");
	EXPECT_STR(i->affected[0], "n2");
	EXPECT(strstr(i->risk, "one more lost voter"));
	w.in.voter_taker = 4;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "RAFT_VOTER_LOST")->summary, "n4 takes over a vote after 60 s"));
	w.node[1].maintenance_until_ms = 70000;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "RAFT_VOTER_LOST")->severity, HEALTH_INFO);
	w.hn[2].up = false; /* with the majority gone this is said instead */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "RAFT_VOTER_LOST") && find(&w, "RAFT_MINORITY"));
	w.hn[2].up = true;
	w.hn[1].up = true;
	w.hn[3].up = false; /* no voter */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "RAFT_VOTER_LOST"));
	/* A removed node is started by nobody, and who else is down is no reason for it. */
	w.node[1].maintenance_until_ms = 0;
	w.hn[1].up = false;
	w.node[1].state = NODE_REMOVED;
	w.in.voter_taker = 0;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "RAFT_VOTER_LOST");
	EXPECT_STR(i->summary, "1 of 3 voters was removed and still counted");
	EXPECT_STR(i->caused_by, "");
	EXPECT(strstr(i->command, "wait: the leader takes"));
	world_fini(&w);
}

TEST(health, two_voters_want_a_witness)
{
	struct world w;

	world_init(&w, 2, 2);
	health_evaluate(&w.in, &w.r);
	EXPECT(must(&w, "RAFT_TWO_VOTERS")->severity == HEALTH_WARNING);
	EXPECT(strstr(must(&w, "RAFT_TWO_VOTERS")->command, "--witness"));
	world_fini(&w);
	world_init(&w, 3, 2); /* the third is on its way */
	w.in.voter_count = 2;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "RAFT_TWO_VOTERS"));
	world_fini(&w);
	world_init(&w, 1, 1); /* one has nothing to fail over to */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "RAFT_TWO_VOTERS"));
	world_fini(&w);
}

TEST(health, what_a_removed_node_took_with_it_does_not_come_back)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 1);
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(must(&w, "DATA_UNAVAILABLE") && !find(&w, "DATA_GIVEN_UP"));
	w.node[1].state = NODE_REMOVED;
	w.group[1].state = GROUP_REMOVED;
	w.group[1].incarnation++;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_GIVEN_UP");
	EXPECT(i->severity == HEALTH_ERROR && i->count == w.r.unavailable && !i->caused_by[0]);
	EXPECT(!find(&w, "DATA_UNAVAILABLE") && !find(&w, "NODE_DOWN"));
	for (unsigned k = 0; k < 8; k++) /* nothing is left to compare those with */
		w.object[k].unsure = w.object[k].member[0].group == 2;
	health_evaluate(&w.in, &w.r);
	EXPECT(must(&w, "DATA_GIVEN_UP") && !find(&w, "RECOVERY_UNSETTLED"));
	world_fini(&w);
}

TEST(health, the_ca_key_is_lost_only_when_that_is_known_of_all)
{
	struct world w;

	world_init(&w, 3, 2);
	for (unsigned i = 0; i < 3; i++) {
		health_evaluate(&w.in, &w.r);
		EXPECT(!find(&w, "CA_KEY_LOST"));
		w.hn[i].ca_key_known = true;
	}
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "CA_KEY_LOST")->severity, HEALTH_ERROR);
	w.hn[2].ca_key = true;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "CA_KEY_LOST"));
	world_fini(&w);
}

/* An attachment of the volume, last renewed at 100,000 ms for 30 s. */
static void attach(struct world *w, struct map_attachment *a, uint32_t id, const char *holder)
{
	*a = (struct map_attachment){ .id = id, .volume = 1, .epoch = id, .mode = ATTACH_SHARED,
				      .ttl_ms = ATTACH_TTL_MS, .renewed_ms = 100000 };
	snprintf(a->holder, sizeof(a->holder), "%s", holder);
	hmap_insert(&w->map.attachments, &a->by_id, hash_u64(id));
}

TEST(health, a_lease_that_ran_out_names_volume_and_gateway)
{
	static struct world w;
	struct map_attachment a, b, gone;
	const struct health_item *i;

	world_init(&w, 3, 2);
	snprintf(w.volume.name, sizeof(w.volume.name), "vm1");
	attach(&w, &a, 1, "client:hv1 hv1.example");
	attach(&w, &b, 2, "client:hv2 hv2.example");
	attach(&w, &gone, 3, "client:hv3 hv3.example");
	gone.revoked = true;
	b.renewed_ms = 120000;
	w.in.now_ms = 129999;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	w.in.now_ms = 130000;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 1);
	i = must(&w, "LEASE_ORPHANED");
	EXPECT_EQ(i->severity, HEALTH_WARNING);
	EXPECT_EQ(i->count, 1);
	EXPECT_STR(i->affected[0], "vm1");
	EXPECT_STR(i->caused_by, "");
	EXPECT(strstr(i->summary, "client:hv1"));
	EXPECT(i->risk[0]);
	EXPECT(strstr(i->command, "ashlar volume detach vm1"));
	w.in.now_ms = 150000;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "LEASE_ORPHANED")->count, 2);
	/* Nobody can renew without a leader: no news of the gateways. */
	w.in.leader_known = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "LEASE_ORPHANED"));
	w.in.leader_known = true;
	w.hn[1].up = w.hn[2].up = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "LEASE_ORPHANED"));
	world_fini(&w);
}

TEST(health, a_lease_of_a_dead_node_is_its_consequence)
{
	static struct world w;
	struct map_attachment a, b;
	char holder[128], text[UUID_TEXT];

	world_init(&w, 3, 2);
	snprintf(w.volume.name, sizeof(w.volume.name), "vm1");
	uuid_make(&w.node[2].uuid);
	uuid_format(&w.node[2].uuid, text);
	snprintf(holder, sizeof(holder), "node:%s n3", text);
	attach(&w, &a, 1, holder);
	w.hn[2].up = false;
	w.in.now_ms = 130000;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "LEASE_ORPHANED")->caused_by, "NODE_DOWN");
	w.hn[2].up = true; /* it is back, and has not renewed: its own story */
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "LEASE_ORPHANED")->caused_by, "");
	w.hn[2].up = false;
	attach(&w, &b, 2, "client:hv1 hv1.example");
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "LEASE_ORPHANED")->caused_by, "");
	world_fini(&w);
}

TEST(health, since_is_kept_while_it_lasts)
{
	struct health_memory m = { 0 };
	struct world w;

	world_init(&w, 3, 2);
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	health_remember(&m, &w.r, 1000, 100);
	health_evaluate(&w.in, &w.r);
	health_remember(&m, &w.r, 5000, 4100);
	EXPECT_EQ(must(&w, "NODE_DOWN")->since_ms, 1000);
	w.hn[1].up = true;
	health_evaluate(&w.in, &w.r);
	health_remember(&m, &w.r, 6000, 5100);
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	health_remember(&m, &w.r, 7000, 6100);
	EXPECT_EQ(must(&w, "NODE_DOWN")->since_ms, 7000);
	/* The clock is set, forth and back: it is down for 2 s, then for 3 s. */
	health_remember(&m, &w.r, 9000000, 8100);
	EXPECT_EQ(must(&w, "NODE_DOWN")->since_ms, 9000000 - 2000);
	health_remember(&m, &w.r, 500000, 9100);
	EXPECT_EQ(must(&w, "NODE_DOWN")->since_ms, 500000 - 3000);
	world_fini(&w);
}

TEST(health, missing_copies_say_until_when_or_why_not)
{
	struct health_rebuild r = { .filling = 3, .queued = 2, .seconds_left = 77 };
	struct world w;

	world_init(&w, 3, 3);
	w.hn[1].up = false;
	w.in.rebuild = &r;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->summary, "about 77 s left"));
	r = (struct health_rebuild){ .waiting = 5, .delay_s = 60 };
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->summary, "away for 60 s"));
	r = (struct health_rebuild){ .held = 5 };
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->summary, "paused or was cancelled"));
	EXPECT_EQ(must(&w, "REBUILD_HELD")->count, 5);
	r = (struct health_rebuild){ .blocked = 5, .why = "group 3: full" };
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->summary, "REBUILD_BLOCKED"));
	EXPECT_STR(must(&w, "REBUILD_BLOCKED")->summary, "group 3: full");
	EXPECT_STR(must(&w, "REBUILD_BLOCKED")->caused_by, "NODE_DOWN");
	r = (struct health_rebuild){ .queued = 5, .waiting = 1, .no_leader = true };
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->summary, "before there is a Raft leader"));
	r = (struct health_rebuild){ .blocked = 5, .why = "group 3: has a replica of it already" };
	w.hn[1].up = true;
	w.object[0].member[0].in = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_DEGRADED")->command, "REBUILD_BLOCKED")); /* nobody catches up */
	w.object[0].member[0].in = true;
	w.hn[1].up = false;
	r = (struct health_rebuild){ .stuck_count = 1, .stuck_job = 4, .stuck = "rebuild", .stuck_s = 700 };
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "JOB_STUCK")->command, "ashlar job show 4"));
	world_fini(&w);
}

TEST(health, free_space_is_told_in_steps_that_do_not_flutter)
{
	EXPECT_EQ(health_free_steps(0, 1000, 20), 20);
	EXPECT_EQ(health_free_steps(20, 980, 20), 20); /* 19.6: near enough */
	EXPECT_EQ(health_free_steps(100, 900, 20), 18);
	EXPECT_EQ(health_free_steps(60, 940, 18), 18); /* 18.8 */
	EXPECT_EQ(health_free_steps(20, 980, 18), 19); /* 19.6 */
	EXPECT_EQ(health_free_steps(500, 500, 11), 10);
	EXPECT_EQ(health_free_steps(960, 40, 1), 0); /* full is told at once */
	EXPECT_EQ(health_free_steps(940, 60, 0), 1);
	EXPECT_EQ(health_free_steps(0, 0, 20), 0);
}

TEST(health, damage_names_the_device_and_whether_it_was_repaired)
{
	static struct world w;

	world_init(&w, 3, 2);
	w.in.now_ms = 1000ull * 86400 * 1000;
	w.hg[1].bad_blocks = 3;
	w.hg[1].bad_last_s = 999 * 86400;
	snprintf(w.hg[1].bad_device, sizeof(w.hg[1].bad_device), "/dev/b");
	w.hn[1].repaired_blocks = 3;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 1);
	EXPECT_EQ(w.r.overall, HEALTH_WARNING);
	EXPECT_STR(must(&w, "DATA_CORRUPT_REPAIRED")->affected[0], "group 2: /dev/b");
	EXPECT(strstr(must(&w, "DATA_CORRUPT_REPAIRED")->summary, "all were repaired"));
	w.hn[1].damaged_blocks = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_CORRUPT_REPAIRED")->summary, "1 wait"));
	w.hn[1].lost_blocks = 1;
	w.hn[2].diverged_pages = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_CORRUPT_UNREPAIRABLE")->severity, HEALTH_ERROR);
	EXPECT_STR(must(&w, "DATA_CORRUPT_UNREPAIRABLE")->affected[0], "n2");
	EXPECT_STR(must(&w, "DATA_DIVERGED")->affected[0], "n3");
	EXPECT(!find(&w, "DATA_UNDECIDED"));
	w.hn[2].undecided = 2;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_UNDECIDED")->count, 2);
	EXPECT_STR(must(&w, "DATA_UNDECIDED")->affected[0], "n3");
	EXPECT_EQ(w.r.undecided, 2);
	w.hn[2].up = false; /* what it said is of then */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.undecided, 0);
	w.hn[2].up = true;
	w.hn[2].undecided = 0;
	/* It is history after a while. */
	w.hn[1].lost_blocks = w.hn[1].damaged_blocks = w.hn[2].diverged_pages = 0;
	w.hg[1].bad_last_s = 900 * 86400;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	world_fini(&w);
}

/* Its primary's node is away; what the map says is not "comes back by itself". */
TEST(health, an_undecided_object_is_told_of_without_its_node)
{
	struct world w;

	world_init(&w, 3, 2);
	snprintf(w.volume.name, sizeof(w.volume.name), "v1");
	w.object[0].member[1].in = false;
	w.object[0].undecided = true;
	w.hn[0].up = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_UNDECIDED")->count, 1);
	EXPECT(strstr(must(&w, "DATA_UNDECIDED")->summary, "1 object is not served"));
	EXPECT(w.r.undecided == 1 && w.r.unavailable == 1);
	EXPECT(!find(&w, "DATA_UNAVAILABLE"));
	w.hn[0].up = true; /* it serves nothing for that */
	health_evaluate(&w.in, &w.r);
	EXPECT(w.r.undecided == 1 && w.r.unavailable == 1 && w.r.single == 0);
	EXPECT(!find(&w, "DATA_UNAVAILABLE") && !find(&w, "DATA_SINGLE_COPY"));
	EXPECT_STR(must(&w, "DATA_UNDECIDED")->affected[0], "volume v1");
	EXPECT(strstr(must(&w, "DATA_UNDECIDED")->command, "volume force v1 "));
	w.hn[0].undecided = 1;
	w.object[1].member[1].in = false; /* another one is filled */
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "");
	w.object[1].member[1].in = true;
	w.object[0].member[1].in = true; /* all of I lack it */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_UNDECIDED")->count, 1);
	world_fini(&w);
}

TEST(health, nobody_is_said_to_copy_what_nobody_serves)
{
	struct health_rebuild r = {.filling = 1};
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.object[0].member[1].in = false;
	w.in.rebuild = &r;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "DATA_SINGLE_COPY")->summary, "being copied"));
	w.hn[0].undecided = 1;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_SINGLE_COPY");
	EXPECT_STR(i->caused_by, "DATA_UNDECIDED");
	EXPECT(!strstr(i->summary, "being copied") && strstr(i->command, "DATA_UNDECIDED"));
	EXPECT(must(&w, "DATA_UNDECIDED")->count);
	world_fini(&w);
}

TEST(health, damage_that_waits_for_repair)
{
	static struct world w;
	struct health_rebuild r = {.emptying_count = 1};
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.hg[1].damaged_bytes = 200 << 20;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 1);
	EXPECT_EQ(w.r.overall, HEALTH_WARNING);
	i = must(&w, "DATA_REPAIRING");
	EXPECT_STR(i->affected[0], "group 2 on n2");
	EXPECT(strstr(i->summary, "200.0 MiB of 1 disk group are"));
	EXPECT(strstr(i->risk, "one good copy") && strstr(i->command, "scrub status 2"));
	/* What nobody can repair stays: to wait is not what helps. */
	w.hn[1].lost_blocks = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "DATA_REPAIRING")->caused_by, "DATA_CORRUPT_UNREPAIRABLE");
	w.hn[1].lost_blocks = 0;
	/* In-sync they are, and so they are counted; those with a replica there are counted beside. */
	EXPECT_EQ(w.r.full, 8);
	EXPECT_EQ(w.r.unrepaired, 6);
	w.hn[1].up = false; /* a replica that is not in reach is in no other count either */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.unrepaired, 0);
	w.hn[1].up = true;
	/* Emptying what may have the only good copy is worse; of what lacks something it is not. */
	w.in.rebuild = &r;
	r.emptying[0] = (struct health_emptying){.job = 7, .node = 2};
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_REPAIRING")->severity, HEALTH_WARNING);
	r.emptying[1] = (struct health_emptying){.job = 8, .node = 3, .group = 3};
	r.emptying_count = 2;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "DATA_REPAIRING");
	EXPECT_EQ(i->severity, HEALTH_ERROR);
	EXPECT(strstr(i->risk, "job 8 takes") && strstr(i->command, "ashlar job pause 8"));
	r.emptying[1].node = 0;
	r.emptying[1].group = 2;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(must(&w, "DATA_REPAIRING")->severity, HEALTH_WARNING);
	w.in.rebuild = NULL;
	w.hg[1].known = false; /* who does not answer says nothing */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "DATA_REPAIRING"));
	w.hg[1].known = true;
	w.hg[1].damaged_bytes = 0;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
	world_fini(&w);
}

TEST(health, a_group_that_nobody_checks_is_overdue)
{
	static struct world w;

	world_init(&w, 3, 2);
	w.in.now_ms = 1000ull * 86400 * 1000;
	w.in.scrub_interval_s = 7 * 86400;
	w.hg[0].scrub_finished_s = w.hg[2].scrub_finished_s = 990 * 86400;
	w.hg[1].scrub_started_s = 980 * 86400; /* and never finished */
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 1);
	EXPECT_STR(must(&w, "SCRUB_OVERDUE")->affected[0], "group 2");
	EXPECT_STR(must(&w, "SCRUB_OVERDUE")->command, "ashlar scrub start 2");
	w.in.scrub_interval_s = 0;
	health_evaluate(&w.in, &w.r);
	EXPECT_EQ(w.r.count, 0);
}

TEST(health, a_planned_absence_is_no_alarm)
{
	struct world w;
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.in.now_ms = 10000;
	w.node[1].maintenance_until_ms = 70000;
	strcpy(w.node[1].maintenance_reason, "new fan");
	health_evaluate(&w.in, &w.r);
	i = find(&w, "NODE_MAINTENANCE");
	EXPECT(i && i->severity == HEALTH_INFO && strstr(i->summary, "60 s more: new fan"));
	EXPECT(!find(&w, "NODE_DOWN"));
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	i = find(&w, "NODE_DOWN");
	EXPECT(i && i->severity == HEALTH_INFO && strstr(i->summary, "planned"));
	w.hn[2].up = false; /* this one is not planned */
	health_evaluate(&w.in, &w.r);
	i = find(&w, "NODE_DOWN");
	EXPECT(i && i->severity == HEALTH_WARNING && i->count == 2);
	w.hn[1].up = w.hn[2].up = true;
	w.in.now_ms = 70000; /* it ran out and nobody ended it */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "NODE_MAINTENANCE"));
	i = find(&w, "NODE_MAINT_EXPIRED");
	EXPECT(i && i->severity == HEALTH_WARNING && strstr(i->command, "maintenance end n2"));
	w.hn[1].up = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(must(&w, "NODE_DOWN")->severity == HEALTH_WARNING);
	world_fini(&w);
}

TEST(health, a_partial_partition_names_the_link)
{
	struct world w;
	struct health_link links[] = {{1, 2, true, true}, {2, 3, false, true}, {3, 2, true, false}};
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.in.links = links;
	w.in.link_count = 1;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "NET_PARTIAL_PARTITION"));
	w.in.link_count = 2;
	health_evaluate(&w.in, &w.r);
	i = find(&w, "NET_PARTIAL_PARTITION");
	EXPECT(i && i->severity == HEALTH_WARNING && !strcmp(i->affected[0], "n2->n3 control"));
	w.in.link_count = 3;
	health_evaluate(&w.in, &w.r);
	i = find(&w, "NET_PARTIAL_PARTITION");
	EXPECT(i && i->severity == HEALTH_ERROR && !strcmp(i->affected[1], "n3->n2 data"));
	w.hn[2].up = false; /* then it is no partial one */
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "NET_PARTIAL_PARTITION") && find(&w, "NODE_DOWN"));
	/* Data connections alone: the nodes are up, and no voters. */
	w.hn[2].up = true;
	w.hn[1].data_only = w.hn[2].data_only = true;
	w.in.leader_known = false;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "NODE_DOWN") && !find(&w, "DATA_DEGRADED"));
	i = find(&w, "RAFT_MINORITY");
	EXPECT(i && i->count == 2 && !strcmp(i->caused_by, "NET_PARTIAL_PARTITION"));
	EXPECT(strstr(i->command, "check the network between n1 and n2"));
	world_fini(&w);
}

/* As the node at its end sees it: the other one does not answer, yet somebody hears it. */
TEST(health, a_cut_link_is_named_by_the_node_at_its_end)
{
	struct world w;
	struct health_link links[] = {{1, 2, false, false, false}, {3, 2, true, true, false}};
	const struct health_item *i;

	world_init(&w, 3, 2);
	w.in.links = links;
	w.in.link_count = 2;
	w.hn[1].answers = false;
	health_evaluate(&w.in, &w.r); /* nobody knows that it lives: it may be frozen */
	EXPECT(!find(&w, "NET_PARTIAL_PARTITION"));
	links[1].heard = true;
	for (unsigned k = 0; k < 8; k++)
		if (w.object[k].member[0].group == 1 && w.object[k].member[1].group == 2)
			w.object[k].member[1].in = false;
	w.hn[1].data_only = true;
	health_evaluate(&w.in, &w.r);
	i = must(&w, "NET_PARTIAL_PARTITION");
	EXPECT(i->count == 1 && !strcmp(i->affected[0], "n1->n2 all"));
	EXPECT_STR(i->command, "check the network between n1 and n2: switches, firewall, MTU");
	EXPECT_STR(must(&w, "DATA_SINGLE_COPY")->caused_by, "NET_PARTIAL_PARTITION");
	i = must(&w, "RAFT_VOTER_LOST");
	EXPECT_STR(i->caused_by, "NET_PARTIAL_PARTITION");
	EXPECT(strstr(i->command, "network between n1 and n2"));
	links[0].data = links[0].heard = true; /* a cut of Raft's link alone: the node itself hears it */
	links[1].heard = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "NET_PARTIAL_PARTITION")->affected[0], "n1->n2 control");
	w.in.leader_known = false;
	health_evaluate(&w.in, &w.r);
	EXPECT_STR(must(&w, "RAFT_NO_LEADER")->caused_by, "NET_PARTIAL_PARTITION");
	/* Just back after it was away for all: it has not connected to everybody yet. */
	w.in.leader_known = w.hn[1].answers = w.hn[1].settling = true;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "NET_PARTIAL_PARTITION"));
	EXPECT_STR(must(&w, "RAFT_VOTER_LOST")->command, "wait: n2 is back and connects");
	EXPECT_STR(must(&w, "RAFT_VOTER_LOST")->caused_by, "");
	world_fini(&w);
}

TEST(health, clocks_and_crashes)
{
	struct world w;

	world_init(&w, 3, 2);
	w.hn[1].skew_ms = -1999;
	w.hn[2].crashed = true;
	w.hn[2].up_s = 3600;
	health_evaluate(&w.in, &w.r);
	EXPECT(!find(&w, "CLOCK_SKEW") && !find(&w, "CRASH_RECENT"));
	w.hn[1].skew_ms = -5000;
	w.hn[2].up_s = 10;
	health_evaluate(&w.in, &w.r);
	EXPECT(strstr(must(&w, "CLOCK_SKEW")->summary, "5 s"));
	EXPECT(must(&w, "CRASH_RECENT")->severity == HEALTH_INFO);
	world_fini(&w);
}
