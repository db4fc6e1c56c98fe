/* SPDX-License-Identifier: Apache-2.0 */
/* Frozen bytes of everything that outlives a program or crosses the wire: commands, results,
 * deltas, snapshots, control messages. A difference here is a new format number, not a new golden
 * file. Hex with annotations where a reader would lose the way. */
#include "cluster/map_codec.h"
#include "cluster/control_msg.h"
#include "tests/state/state_kit.h"

static struct writer w;

static const struct writer *encoded(const struct command *c)
{
	static struct command back;
	struct reader r;
	struct writer again = writer_init_heap();
	void *arena;

	w.len = 0;
	w.grows = true;
	command_encode(c, &w);
	/* Both directions: what is read back encodes the same. */
	r = reader_init(w.data, w.len);
	EXPECT_OK(command_decode(&r, &back, &arena));
	EXPECT(reader_done(&r));
	command_encode(&back, &again);
	EXPECT_EQ(again.len, w.len);
	EXPECT_MEM(again.data, w.data, w.len);
	writer_free(&again);
	free(arena);
	return &w;
}

static struct command command(uint16_t kind)
{
	struct command c = {.kind = kind, .time_ms = 0x0102030405060708};

	strcpy(c.actor, "op");
	return c;
}

static struct map_node node(void)
{
	struct map_node n = {.id = 3,
			     .uuid = kit_uuid(0xbeef),
			     .name = "n3",
			     .fault_set = "r1",
			     .address = "a:1",
			     .admin = "b:2",
			     .incarnation = 7,
			     .shards = 2,
			     .roles = ROLE_STORAGE | ROLE_VOTER,
			     .state = NODE_ACTIVE,
			     .version_major = 0,
			     .version_minor = 1};

	return n;
}

#define GOLDEN(c, hex)            (encoded(c), EXPECT_GOLDEN_(w.data, w.len, hex))
#define EXPECT_GOLDEN_(p, n, hex) test_expect_golden(__FILE__, __LINE__, p, n, hex)

TEST(golden, commands_of_nodes)
{
	struct command c = command(CMD_CLUSTER_INIT);

	c.init.cluster = kit_uuid(1);
	c.init.node = node();
	strcpy(c.init.name, "cl");
	GOLDEN(&c, "01 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 11 00 00 00 00 00 00 00"
		   "00 00 00 00 00 00 00 01 03 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00"
		   "be ef 02 00 6e 33 02 00 72 31 03 00 61 3a 31 03 00 62 3a 32 07 00 00 00"
		   "02 00 03 02 00 01 02 00 63 6c 00 00 00 00 00 00");
	c = command(CMD_NODE_ADD);
	c.node_add.node = node();
	strcpy(c.node_add.token_sha256, "ab");
	GOLDEN(&c, "02 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 03 00 11 00 00 00 00 00"
		   "00 00 00 00 00 00 00 00 be ef 02 00 6e 33 02 00 72 31 03 00 61 3a 31 03"
		   "00 62 3a 32 07 00 00 00 02 00 03 02 00 01 02 00 61 62 00 00 00 00 00 00");
	c = command(CMD_NODE_START);
	c.node_start.node = 3;
	c.node_start.incarnation = 8;
	c.node_start.old_incarnation = 7;
	c.node_start.shards = 4;
	c.node_start.roles = 5;
	c.node_start.version_minor = 1;
	strcpy(c.node_start.address, "a:1");
	strcpy(c.node_start.admin, "b:2");
	GOLDEN(&c, "03 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 03 00 08 00 00 00 07 00"
		   "00 00 04 00 05 00 01 03 00 61 3a 31 03 00 62 3a 32 00 00 00 00 00 00 00");
	c = command(CMD_NODE_STATE);
	c.node_state.node = 3;
	c.node_state.state = NODE_DEAD;
	c.node_state.roles = ROLE_STORAGE;
	GOLDEN(&c, "04 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 03 00 04 01 00 00 00 00");
	c = command(CMD_TOKEN_ADD);
	strcpy(c.token.sha256, "ab");
	c.token.expires_ms = 9;
	GOLDEN(&c, "05 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 02 00 61 62 09 00 00 00"
		   "00 00 00 00 00 00 00 00");
	c.kind = CMD_TOKEN_USE;
	GOLDEN(&c, "06 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 02 00 61 62 09 00 00 00"
		   "00 00 00 00 00 00 00 00");
}

TEST(golden, commands_of_groups)
{
	struct command c = command(CMD_GROUP_ADD);

	c.group_add.uuid = kit_uuid(2);
	c.group_add.node = 3;
	c.group_add.incarnation = 1;
	c.group_add.raw_bytes = 1ull << 40;
	GOLDEN(&c, "07 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 11 00 00 00 00 00 00 00"
		   "00 00 00 00 00 00 00 02 03 00 01 00 00 00 00 00 00 00 00 01 00 00 00 00");
	c = command(CMD_GROUP_STATE);
	c.group_state.group = 5;
	c.group_state.state = GROUP_FAILED;
	c.group_state.free_steps = 19;
	c.group_state.incarnation = 2;
	GOLDEN(&c, "08 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 05 00 03 13 02 00 00 00");
	c = command(CMD_REGROUP);
	c.regroup.group = 5;
	c.regroup.node = 3;
	c.regroup.old_incarnation = 2;
	c.regroup.new_incarnation = 3;
	c.regroup.keeps_pages = true;
	GOLDEN(&c, "09 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 05 00 03 00 02 00 00 00"
		   "03 00 00 00 01 00 00 00");
}

TEST(golden, commands_of_volumes)
{
	struct map_member m[2] = {{5, 2}, {6, 1}};
	struct command c = command(CMD_VOLUME_CREATE);

	c.volume.volume = (struct map_volume){.id = 9,
					      .uuid = kit_uuid(3),
					      .name = "v",
					      .size = 4096,
					      .object_size = 64 << 20,
					      .stripe_count = 1,
					      .objects = 1,
					      .copies = 2,
					      .min_in_sync = 1,
					      .flags = VOLUME_DEDUP};
	c.volume.placement_count = 2;
	c.volume.placement = m;
	GOLDEN(&c, "0a 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 11 00 00 00"
		   "00 00 00 00 00 00 00 00 00 00 00 03 01 00 76 00 10 00 00 00 00 00 00 00"
		   "00 00 04 00 00 00 00 01 00 00 00 01 00 00 00 02 01 02 00 00 00 00 00 00"
		   "00 00 00 02 00 00 00 05 00 02 00 00 00 06 00 01 00 00 00 00 00 00 00 00");
	c.kind = CMD_VOLUME_RESIZE;
	c.volume.first_object = 1;
	GOLDEN(&c, "0b 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 11 00 00 00"
		   "00 00 00 00 00 00 00 00 00 00 00 03 01 00 76 00 10 00 00 00 00 00 00 00"
		   "00 00 04 00 00 00 00 01 00 00 00 01 00 00 00 02 01 02 00 00 00 00 00 01"
		   "00 00 00 02 00 00 00 05 00 02 00 00 00 06 00 01 00 00 00 00 00 00 00 00");
	c = command(CMD_VOLUME_DELETE);
	c.volume_delete.id = 9;
	GOLDEN(&c, "0c 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 00 00 00 00");
	c = command(CMD_VOLUME_SET);
	c.volume_set.id = 9;
	c.volume_set.set_mask = 3;
	c.volume_set.flags = 1;
	c.volume_set.min_in_sync = 2;
	GOLDEN(&c, "0d 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 03 01 02 00");
	c = command(CMD_ATTACH);
	c.attach.volume = 9;
	c.attach.mode = ATTACH_SHARED;
	c.attach.steal = true;
	strcpy(c.attach.holder, "h");
	GOLDEN(&c, "0e 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 02 01 01 00"
		   "68 00 00 00 00 00 00 00");
	c = command(CMD_DETACH);
	c.detach.attachment = 11;
	GOLDEN(&c, "0f 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 0b 00 00 00 00 00 00 00");
}

TEST(golden, commands_of_leases)
{
	uint32_t ids[2] = {11, 12};
	struct command c = command(CMD_RENEW);

	c.renew.count = 2;
	c.renew.attachment = ids;
	GOLDEN(&c, "14 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 02 00 0b 00 00 00 0c 00"
		   "00 00 00 00 00 00 00 00");
	c = command(CMD_FENCE);
	c.fence.volume = 9;
	c.fence.newest = 12;
	c.fence.expired_only = true;
	strcpy(c.fence.holder, "h");
	GOLDEN(&c, "15 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 09 00 00 00 0c 00 00 00"
		   "01 01 00 68 00 00 00 00");
}

TEST(golden, commands_of_maintenance)
{
	struct command c = command(CMD_MAINTENANCE);

	c.maintenance.node = 3;
	c.maintenance.op = MAINTENANCE_EXTEND;
	c.maintenance.ttl_s = 7200;
	strcpy(c.maintenance.reason, "fan");
	GOLDEN(&c, "16 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 03 00 02 20 1c 00 00 03"
		   "00 66 61 6e 00 00 00 00");
}

TEST(golden, command_of_a_removal)
{
	struct command c = command(CMD_NODE_REMOVE);

	c.node_remove.node = 3;
	c.node_remove.incarnation = 7;
	c.node_remove.flags = NODE_REMOVE_DEAD | NODE_REMOVE_ACCEPT_LOSS;
	GOLDEN(&c, "17 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 03 00 07 00 00 00 03 00");
	c = command(CMD_JOB);
	c.job = (struct job_change){.op = JOB_START, .kind = JOB_REMOVE, .node = 3};
	GOLDEN(&c, "13 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 01 04 03 00 00 00 00 00"
		   "00 00 00 00 00 00 00 00");
}

TEST(golden, delta_of_a_node_in_maintenance)
{
	struct kit k;
	struct command c = {.kind = CMD_MAINTENANCE,
			    .maintenance = {.node = 1, .op = MAINTENANCE_START, .ttl_s = 2}};

	kit_init(&k, 1);
	strcpy(c.maintenance.reason, "fan");
	EXPECT_OK(kit_apply(&k, &c));
	w.len = 0;
	w.grows = true;
	state_delta(k.s, k.index - 1, &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "04 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00 00 11 00 00 00 00 00 00"
		       "00 00 00 00 00 00 00 03 84 01 00 00 00 01 00 00 00 02 00 02 00"
		       "01 49 00 00 00 01 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00 00 65 02"
		       "00 6e 31 00 00 0d 00 31 30 2e 30 2e 31 2e 31 3a 37 30 30 30 00 00 01 00"
		       "00 00 02 00 03 02 00 01"
		       "40 42 0f 00 00 00 00 00 10 4a 0f 00 00 00 00 00 03 00 66 61 6e 00");
	kit_fini(&k);
}

TEST(golden, other_commands)
{
	struct object_change ch = {.op = OBJ_TAKEOVER,
				   .keep = 1,
				   .object = object_id(9, 1),
				   .epoch = 4,
				   .replica = {5, 2, 3, true},
				   .node = 3,
				   .incarnation = 7,
				   .proposer = 2};
	struct command c = command(CMD_OBJECT);

	c.object.count = 1;
	c.object.change = &ch;
	GOLDEN(&c, "10 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 01 00 03 01 01 00 00 00"
		   "09 00 00 00 04 00 00 00 05 00 02 00 00 00 03 00 00 00 03 00 07 00 00 00"
		   "02 00 00 00 00 00 00 00");
	c = command(CMD_JOB);
	c.job = (struct job_change){.op = JOB_START,
				    .kind = JOB_EVACUATE,
				    .node = 3,
				    .group = 5,
				    .id = 7,
				    .total = 9,
				    .note = "hi"};
	GOLDEN(&c, "13 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 01 02 03 00 05 00 07 00"
		   "00 00 09 00 00 00 02 00 68 69 00 00 00 00 00 00");
	c = command(CMD_SETTING);
	strcpy(c.setting.key, "k");
	strcpy(c.setting.value, "v");
	GOLDEN(&c, "11 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 01 00 6b 01 00 76 00 00");
	c = command(CMD_EVENT);
	strcpy(c.event.code, "C");
	strcpy(c.event.text, "t");
	c.event.severity = 2;
	GOLDEN(&c, "12 00 01 00 08 07 06 05 04 03 02 01 02 00 6f 70 01 00 43 01 00 74 02 00");
}

TEST(golden, result)
{
	static struct command_result out = {.code = -ERR_HELD,
					    .id = 9,
					    .index = 77,
					    .number = 3,
					    .text = "no",
					    .count = 2,
					    .object = {0, OBJ_CONFLICT}};
	static struct command_result back;
	struct reader r;

	w.len = 0;
	w.grows = true;
	command_result_encode(&out, &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "63 ec ff ff 09 00 00 00 00 00 00 00 4d 00 00 00 00 00 00 00 03 00 00 00"
		       "02 00 6e 6f 02 00 00 01");
	r = reader_init(w.data, w.len);
	EXPECT_OK(command_result_decode(&r, &back));
	EXPECT(reader_done(&r));
	EXPECT_EQ(back.code, -ERR_HELD);
	EXPECT_STR(back.text, "no");
	EXPECT_EQ(back.object[1], OBJ_CONFLICT);
}

TEST(golden, snapshot_and_delta_of_a_small_state)
{
	struct kit k;
	struct command c = {.kind = CMD_SETTING};

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 4096, 2));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h", false));
	strcpy(c.setting.key, "k");
	strcpy(c.setting.value, "v");
	EXPECT_OK(kit_apply(&k, &c));
	c = (struct command){.kind = CMD_JOB};
	c.job = (struct job_change){
		.op = JOB_START, .kind = JOB_EVACUATE, .group = 2, .note = "wish"};
	EXPECT_OK(kit_apply(&k, &c));
	w.len = 0;
	w.grows = true;
	state_snapshot(k.s, &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "41 53 48 53 05 00 00 00 0b 00 00 00 00 00 00 00 11 00 00 00 00 00 00 00"
		       "00 00 00 00 00 00 03 84 04 00 74 65 73 74 02 00 00 00 02 00 00 00 03 00"
		       "03 00 02 00 01 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00 00 65 02 00"
		       "6e 31 00 00 0d 00 31 30 2e 30 2e 31 2e 31 3a 37 30 30 30 00 00 01 00 00"
		       "00 02 00 03 02 00 01"
		       "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
		       /* no maintenance, not awaited */
		       "02 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
		       "66 02 00 6e 32 00 00 0d 00 31 30 2e 30 2e 31 2e 32 3a 37 30 30 30 00 00"
		       "01 00 00 00 02 00 03 02 00 01"
		       "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
		       /* no maintenance, not awaited */
		       "02 00 01 00 01 00 11 00 00 00 00 00 00 00"
		       "00 00 00 00 00 00 00 c9 01 00 00 00 02 14 00 00 00 00 00 01 00 00 02 00"
		       "02 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ca 01 00 00 00 02 14"
		       "00 00 00 00 00 01 00 00 01 00 00 00 01 00 00 00 11 00 00 00 00 00 00 00"
		       "00 00 00 00 00 00 03 f1 01 00 76 00 10 00 00 00 00 00 00 00 00 00 04 00"
		       "00 00 00 03 00 00 00 03 00 00 00 02 01 00 01 01 00 00 00"
		       "00 00 00 00" /* never asked to be reduced */
		       "01 00 00 00 01 00 00 00 01 00 00 00 02 03 02 00 01 00 00 00 01 00 00 00"
		       "01 00 01 00 00 00 01 00 00 00 03 00"
		       "01 00 00 00 01 00 00 00 01 00 00 00 02 03 01 00 01 00 00 00 01 00 00 00"
		       "02 00 01 00 00 00 01 00 00 00 03 00"
		       "01 00 00 00 01 00 00 00 01 00 00 00 02 03 01 00 01 00 00 00 01 00 00 00"
		       "02 00 01 00 00 00 01 00 00 00 03 00"
		       "01 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 01 00 01 00"
		       "68 30 75 00 00 40 42 0f 00 00 00 00 00 00 00 01 00 01 00 6b 01 00 76 0b"
		       "00 00 00 00 00 00 00 0b 00 01 00 00 00 00 00 00 00 40 42 0f 00 00 00 00"
		       "00 00 0c 00 43 4c 55 53 54 45 52 5f 49 4e 49 54 24 00 63 6c 75 73 74 65"
		       "72 20 74 65 73 74 20 77 61 73 20 6d 61 64 65 3b 20 66 69 72 73 74 20 6e"
		       "6f 64 65 20 6e 31 06 00 74 65 73 74 65 72"
		       "02 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0c 00 4e 4f 44 45 5f"
		       "53 54 41 52 54 45 44 2b 00 6e 6f 64 65 20 6e 31 20 73 74 61 72 74 65 64"
		       "2c 20 69 6e 63 61 72 6e 61 74 69 6f 6e 20 31 2c 20 76 65 72 73 69 6f 6e"
		       "20 30 2e 31 06 00 74 65 73 74 65 72"
		       "03 00 00 00 00 00 00 00 40 42"
		       "0f 00 00 00 00 00 00 0b 00 47 52 4f 55 50 5f 41 44 44 45 44 17 00 64 69"
		       "73 6b 20 67 72 6f 75 70 20 31 20 6f 6e 20 6e 6f 64 65 20 6e 31 06 00 74"
		       "65 73 74 65 72 04 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0b 00"
		       "47 52 4f 55 50 5f 53 54 41 54 45 1a 00 64 69 73 6b 20 67 72 6f 75 70 20"
		       "31 20 69 73 20 61 63 74 69 76 65 20 6e 6f 77 06 00 74 65 73 74 65 72 06"
		       "00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0a 00 4e 4f 44 45 5f 41"
		       "44 44 45 44 1a 00 6e 6f 64 65 20 6e 32 20 6a 6f 69 6e 65 64 20 61 73 20"
		       "6e 75 6d 62 65 72 20 32 06 00 74 65 73 74 65 72"
		       "07 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0c 00 4e 4f 44 45 5f"
		       "53 54 41 52 54 45 44 2b 00 6e 6f 64 65 20 6e 32 20 73 74 61 72 74 65 64"
		       "2c 20 69 6e 63 61 72 6e 61 74 69 6f 6e 20 31 2c 20 76 65 72 73 69 6f 6e"
		       "20 30 2e 31 06 00 74 65 73 74 65 72"
		       "08 00 00 00 00 00 00 00"
		       "40 42 0f 00 00 00 00 00 00 0b 00 47 52 4f 55 50 5f 41 44 44 45 44 17 00"
		       "64 69 73 6b 20 67 72 6f 75 70 20 32 20 6f 6e 20 6e 6f 64 65 20 6e 32 06"
		       "00 74 65 73 74 65 72 09 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00"
		       "0b 00 47 52 4f 55 50 5f 53 54 41 54 45 1a 00 64 69 73 6b 20 67 72 6f 75"
		       "70 20 32 20 69 73 20 61 63 74 69 76 65 20 6e 6f 77 06 00 74 65 73 74 65"
		       "72 0a 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0e 00 56 4f 4c 55"
		       "4d 45 5f 43 52 45 41 54 45 44 1e 00 76 6f 6c 75 6d 65 20 76 2c 20 34 30"
		       "39 36 20 62 79 74 65 73 2c 20 32 20 63 6f 70 69 65 73 06 00 74 65 73 74"
		       "65 72 0c 00 00 00 00 00 00 00 40 42 0f 00 00 00 00 00 00 07 00 53 45 54"
		       "54 49 4e 47 07 00 6b 20 3d 20 22 76 22 06 00 74 65 73 74 65 72 0d 00 00"
		       "00 00 00 00 00 40 42 0f 00 00 00 00 00 00 0b 00 4a 4f 42 5f 53 54 41 52"
		       "54 45 44 2a 00 6a 6f 62 20 31 3a 20 65 76 61 63 75 61 74 65 20 6f 66 20"
		       "64 69 73 6b 20 67 72 6f 75 70 20 32 2c 20 33 20 6f 62 6a 65 63 74 73 06"
		       "00 74 65 73 74 65 72 02 00 00 00 01 00 01 00 00 00 02 01 00 00 02 00 01"
		       "00 00 00 03 00 00 00 40 42 0f 00 00 00 00 00 40 42 0f 00 00 00 00 00 06"
		       "00 74 65 73 74 65 72 04 00 77 69 73 68");
	w.len = 0;
	state_delta(k.s, 10, &w); /* the attachment, and its volume's epoch */
	EXPECT_GOLDEN_(w.data, w.len,
		       "0a 00 00 00 00 00 00 00 0b 00 00 00 00 00 00 00 00 11 00 00 00 00 00 00"
		       "00 00 00 00 00 00 00 03 84 02 00 00 00 02 00 00 00 03 00 03 00"
		       "03 3b 00 00 00 01 00 00 00 11 00 00 00 00 00 00 00 00 00 00 00 00 00 03"
		       "f1 01 00 76 00 10 00 00 00 00 00 00 00 00 00 04 00 00 00 00 03 00 00 00"
		       "03 00 00 00 02 01 00 01 01 00 00 00"
		       "00 00 00 00" /* never asked to be reduced */
		       "05 15 00 00 00 01 00 00 00 01 00 00 00 01 00 00 00 01 00 01 00 68"
		       "30 75 00 00" /* the time to live */);
	w.len = 0;
	state_delta(k.s, 11, &w); /* without the nodes */
	EXPECT_GOLDEN_(w.data, w.len,
		       "0b 00 00 00 00 00 00 00 0b 00 00 00 00 00 00 00 00 11 00 00 00 00 00 00"
		       "00 00 00 00 00 00 00 03 84 02 00 00 00 02 00 00 00 03 00 03 00");
	kit_fini(&k);
}

TEST(golden, delta_of_a_forced_object)
{
	struct object_change ch = {.op = OBJ_FORCE, .object = object_id(1, 0), .epoch = 1, .incarnation = 1};
	const struct map_object *o;
	struct kit k;

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 4096, 2));
	o = kit_object(&k, ch.object);
	ch.replica = o->member[1];
	ch.node = ch.replica.group;
	ch.proposer = o->member[0].group;
	EXPECT_EQ(kit_change(&k, ch), OBJ_DONE);
	w.len = 0;
	w.grows = true;
	state_delta(k.s, k.index - 1, &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "0a 00 00 00 00 00 00 00 0b 00 00 00 00 00 00 00 00 11 00 00 00 00 00 00"
		       "00 00 00 00 00 00 00 03 84 02 00 00 00 01 00 00 00 03 00 03 00"
		       "04 2c 00 00 00 00 00 00 00 01 00 00 00" /* the object: */
		       "02 00 00 01 02 00 00 01 01 00 00 00 12 02 02 00 01 00 00 00 01 00 00 00"
		       "01 00 01 00 00 00 01 00 00 00 03 01");
	kit_fini(&k);
}

TEST(golden, an_unsure_object)
{
	struct map_object o = {.epoch = 0x01000002,
			       .tenure = 2,
			       .primary_incarnation = 3,
			       .member_count = 1,
			       .member[0] = {4, 5, 6, .in = true, .filled = true},
			       .unsure = true},
			  back = {0};
	struct reader r;

	w.len = 0;
	w.grows = true;
	map_object_write(&w, &o);
	EXPECT_GOLDEN_(w.data, w.len,
		       "02 00 00 01 02 00 00 00 03 00 00 00 01 01 04 00 05 00 00 00 06 00 00 00 01 80");
	r = reader_init(w.data, w.len);
	map_object_read(&r, &back);
	EXPECT(reader_done(&r) && back.unsure && back.member[0].in && !back.member[0].kept);
}

TEST(golden, an_undecided_object)
{
	struct map_object o = {.epoch = 3,
			       .tenure = 2,
			       .primary_incarnation = 3,
			       .member_count = 2,
			       .member = {{4, 5, 6, .in = true, .filled = true}, {7, 8, 9, .kept = true}},
			       .undecided = true},
			  back = {0};
	struct reader r;

	w.len = 0;
	w.grows = true;
	map_object_write(&w, &o);
	EXPECT_GOLDEN_(w.data, w.len,
		       "03 00 00 00 02 00 00 00 03 00 00 00 02 01 04 00 05 00 00 00 06 00 00 00 07 00 08 00"
		       "00 00 09 00 00 00 01 42");
	r = reader_init(w.data, w.len);
	map_object_read(&r, &back);
	EXPECT(reader_done(&r) && back.undecided && !back.unsure);
	EXPECT(back.member[1].kept && !back.member[0].kept);
}

TEST(golden, control_messages)
{
	struct control_call_msg m;
	struct reader r;
	const char *json;
	uint32_t len;
	uint64_t from;
	int status;

	w.len = 0;
	w.grows = true;
	control_watch_encode(0x1122, &w);
	EXPECT_GOLDEN_(w.data, w.len, "22 11 00 00 00 00 00 00");
	r = reader_init(w.data, w.len);
	EXPECT_OK(control_watch_decode(&r, &from));
	EXPECT_EQ(from, 0x1122);
	w.len = 0;
	control_call_encode(2000, "GET", "/v1/x", "{}", &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "d0 07 00 00 03 00 47 45 54 05 00 2f 76 31 2f 78 02 00 00 00 7b 7d");
	r = reader_init(w.data, w.len);
	EXPECT_OK(control_call_decode(&r, &m));
	EXPECT(m.timeout_ms == 2000 && !strcmp(m.path, "/v1/x") && m.json_len == 2);
	w.len = 0;
	control_result_encode(404, "{}", &w);
	EXPECT_GOLDEN_(w.data, w.len, "94 01 00 00 02 00 00 00 7b 7d");
	r = reader_init(w.data, w.len);
	EXPECT_OK(control_result_decode(&r, &status, &json, &len));
	EXPECT(status == 404 && len == 2);
}

TEST(golden, control_message_of_nodes)
{
	struct control_nodes l = {.version = 0x1122, .count = 2}, back;
	struct reader r;

	l.node[0] = (struct control_node){.number = 3, .uuid = {{9}}, .address = "a"};
	l.node[1] = (struct control_node){.number = 5, .uuid = {{8}}, .address = "bc"};
	w.len = 0;
	w.grows = true;
	control_nodes_encode(&l, &w);
	EXPECT_GOLDEN_(w.data, w.len,
		       "22 11 00 00 00 00 00 00 02 00 03 00 09 00 00 00 00 00 00 00 00 00 00 00 00 00 00"
		       "00 01 00 61 05 00 08 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 00 62 63");
	r = reader_init(w.data, w.len);
	EXPECT_OK(control_nodes_decode(&r, &back));
	EXPECT(back.count == 2 && back.node[1].number == 5 && !strcmp(back.node[1].address, "bc"));
	w.data[29] = 3; /* the same number twice */
	r = reader_init(w.data, w.len);
	EXPECT_RC(control_nodes_decode(&r, &back), -ERR_PROTOCOL);
	w.data[8] = 65;
	r = reader_init(w.data, w.len);
	EXPECT_RC(control_nodes_decode(&r, &back), -ERR_PROTOCOL);
}
