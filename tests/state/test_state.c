/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule and refusal of the state machine outside object configurations: the cluster's birth,
 * nodes, invitations, groups, volumes, attachments, settings, events, snapshots. */
#include "tests/state/state_kit.h"

TEST(state, nothing_works_before_init)
{
	struct kit k;

	kit_empty(&k);
	EXPECT_RC(kit_delete(&k, 1), -ERR_UNCLAIMED);
	EXPECT_RC(kit_cluster(&k, "bad name", 1), -ERR_INVALID);
	EXPECT_RC(kit_cluster(&k, "0f0e0d0c-0b0a-4908-8706-050403020100", 1), -ERR_INVALID);
	EXPECT_OK(kit_cluster(&k, "c", 1));
	EXPECT_STR(state_cluster_name(k.s), "c");
	EXPECT_OK(kit_cluster(&k, "c", 1)); /* again */
	EXPECT_RC(kit_cluster(&k, "d", 2), -ERR_CLAIMED);
	EXPECT(strstr(k.out.text, "\"c\""));
	kit_fini(&k);
}

TEST(state, bytes_that_are_no_command_are_refused)
{
	struct kit k;
	struct command c = {.kind = CMD_VOLUME_DELETE};
	struct writer w = writer_init_heap();
	uint64_t digest;

	kit_init(&k, 1);
	digest = state_digest(k.s);
	state_apply(k.s, ++k.index, "abc", 3, &k.out, NULL, NULL);
	EXPECT_RC(k.out.code, -ERR_PROTOCOL);
	command_encode(&c, &w);
	put_le16(w.data, 999);
	state_apply(k.s, ++k.index, w.data, w.len, &k.out, NULL, NULL);
	EXPECT_RC(k.out.code, -ERR_VERSION);
	EXPECT(strstr(k.out.text, "upgrade"));
	EXPECT(digest == state_digest(k.s));
	writer_free(&w);
	kit_fini(&k);
}

TEST(state, node_join_needs_a_fresh_invitation)
{
	struct kit k;
	struct command c = {.kind = CMD_NODE_ADD};
	struct command t = {.kind = CMD_TOKEN_ADD};

	kit_init(&k, 1);
	strcpy(c.node_add.node.name, "x");
	strcpy(c.node_add.node.address, "10.9.9.9:1");
	c.node_add.node.roles = ROLE_STORAGE;
	c.node_add.node.uuid = kit_uuid(55);
	memset(c.node_add.token_sha256, 'b', 64);
	EXPECT_RC(kit_apply(&k, &c), -ERR_AUTH);

	strcpy(t.token.sha256, "short");
	EXPECT_RC(kit_apply(&k, &t), -ERR_INVALID);
	memset(t.token.sha256, 'b', 64);
	t.token.expires_ms = k.time_ms + 10;
	EXPECT_OK(kit_apply(&k, &t));
	EXPECT(state_token_valid(k.s, t.token.sha256, k.time_ms));
	EXPECT(!state_token_valid(k.s, t.token.sha256, k.time_ms + 10));
	c.time_ms = k.time_ms + 10; /* ran out */
	EXPECT_RC(kit_apply(&k, &c), -ERR_AUTH);
	EXPECT(strstr(k.out.text, "ran out"));

	c.time_ms = 0;
	EXPECT_OK(kit_apply(&k, &t));
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_EQ(k.out.id, 2);
	EXPECT(!state_token_valid(k.s, t.token.sha256, k.time_ms)); /* one time */
	EXPECT_OK(kit_apply(&k, &c)); /* the same join again, its answer was lost */
	EXPECT_EQ(k.out.id, 2);
	EXPECT_EQ(map_node(kit_map(&k), 2)->state, NODE_JOINING);
	EXPECT_OK(kit_start(&k, 2, 0, 1));
	EXPECT_EQ(map_node(kit_map(&k), 2)->state, NODE_ACTIVE);

	t.kind = CMD_TOKEN_USE;
	EXPECT_RC(kit_apply(&k, &t), -ERR_AUTH);
	kit_fini(&k);
}

TEST(state, token_table_is_bounded_and_forgets_expired_ones)
{
	struct kit k;
	struct command t = {.kind = CMD_TOKEN_ADD};

	kit_init(&k, 1);
	for (unsigned i = 0; i < 64; i++) {
		snprintf(t.token.sha256, sizeof(t.token.sha256), "%064x", i);
		t.token.expires_ms = k.time_ms + 10 + i;
		EXPECT_OK(kit_apply(&k, &t));
	}
	snprintf(t.token.sha256, sizeof(t.token.sha256), "%064x", 100);
	EXPECT_RC(kit_apply(&k, &t), -ERR_LIMIT);
	k.time_ms += 11;
	t.time_ms = 0;
	EXPECT_OK(kit_apply(&k, &t));
	kit_fini(&k);
}

TEST(state, node_names_addresses_and_uuids_are_unique)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_RC(kit_node(&k, "n2", "", 77), -ERR_EXISTS);
	EXPECT(strstr(k.out.text, "n2"));
	EXPECT_RC(kit_node(&k, "other", "", 102), -ERR_EXISTS); /* uuid of n2 */
	EXPECT_OK(kit_node(&k, "x", "", 30));
	EXPECT_RC(kit_node(&k, "y", "", 30 + 256), -ERR_EXISTS); /* the same address */
	EXPECT(strstr(k.out.text, "address"));
	EXPECT_RC(kit_node(&k, "-x", "", 31), -ERR_INVALID);
	EXPECT_RC(kit_node(&k, "x1", "rack 1", 31), -ERR_INVALID);
	EXPECT_OK(kit_node_state(&k, 3, NODE_REMOVED));
	EXPECT_OK(kit_node(&k, "x", "", 32)); /* its name is free again, its number is not */
	EXPECT_EQ(k.out.id, 4);
	EXPECT_EQ(map_node_by_name(kit_map(&k), "x")->id, 4);
	kit_fini(&k);
}

TEST(state, node_count_is_limited)
{
	struct kit k;
	char name[8];

	kit_init(&k, 1);
	for (unsigned i = 2; i <= NODES_MAX; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		EXPECT_OK(kit_node(&k, name, "", 1 + i));
	}
	EXPECT_RC(kit_node(&k, "more", "", 150), -ERR_LIMIT);
	kit_fini(&k);
}

TEST(state, node_start_is_compare_and_swap)
{
	struct kit k;

	kit_init(&k, 1);
	EXPECT_RC(kit_start(&k, 1, 0, 2), -ERR_STALE);
	EXPECT_EQ(k.out.number, 1); /* what is registered */
	EXPECT_OK(kit_start(&k, 1, 1, 2));
	EXPECT_OK(kit_start(&k, 1, 1, 2)); /* the same again */
	EXPECT_RC(kit_start(&k, 1, 2, 2), -ERR_STALE);
	EXPECT_RC(kit_start(&k, 1, 2, 1), -ERR_STALE);
	EXPECT_EQ(map_node(kit_map(&k), 1)->incarnation, 2);
	EXPECT_RC(kit_start(&k, 9, 0, 1), -ERR_NOT_FOUND);
	EXPECT_OK(kit_node_state(&k, 1, NODE_DEAD));
	EXPECT_RC(kit_start(&k, 1, 2, 3), -ERR_FOREIGN); /* banned */
	EXPECT(strstr(k.out.text, "declared dead"));
	kit_fini(&k);
}

TEST(state, node_states_go_forward)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_RC(kit_node_state(&k, 9, NODE_ACTIVE), -ERR_NOT_FOUND);
	EXPECT_RC(kit_node_state(&k, 1, 7), -ERR_INVALID);
	EXPECT_RC(kit_node_state(&k, 1, NODE_JOINING), -ERR_REFUSED);
	EXPECT_RC(kit_node_state(&k, 2, NODE_REMOVED), -ERR_BUSY); /* has a group */
	EXPECT_OK(kit_group_state(&k, 2, GROUP_REMOVED, 0, 1));
	EXPECT_OK(kit_node_state(&k, 2, NODE_REMOVED));
	EXPECT_RC(kit_node_state(&k, 2, NODE_ACTIVE), -ERR_REFUSED);
	EXPECT_OK(kit_node_state(&k, 1, NODE_DEAD));
	EXPECT_RC(kit_node_state(&k, 1, NODE_ACTIVE), -ERR_REFUSED);
	kit_fini(&k);
}

TEST(state, groups)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_OK(kit_group(&k, 1, 201)); /* the same again */
	EXPECT_EQ(k.out.id, 1);
	EXPECT_RC(kit_group(&k, 2, 201), -ERR_EXISTS);
	EXPECT_RC(kit_group(&k, 9, 300), -ERR_NOT_FOUND);
	for (unsigned i = 1; i < GROUPS_PER_NODE_MAX; i++)
		EXPECT_OK(kit_group(&k, 1, 300 + i));
	EXPECT_EQ(map_group(kit_map(&k), 3)->state, GROUP_PENDING);
	EXPECT_RC(kit_group(&k, 1, 310), -ERR_LIMIT);
	EXPECT_RC(kit_group_state(&k, 99, GROUP_ACTIVE, 1, 1), -ERR_NOT_FOUND);
	EXPECT_RC(kit_group_state(&k, 1, GROUP_ACTIVE, 21, 1), -ERR_INVALID);
	EXPECT_RC(kit_group_state(&k, 1, GROUP_ACTIVE, 20, 2), -ERR_STALE);
	EXPECT_RC(kit_group_state(&k, 1, GROUP_PENDING, 20, 1), -ERR_REFUSED);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	EXPECT_RC(kit_group_state(&k, 1, GROUP_REMOVED, 20, 1), -ERR_BUSY);
	EXPECT(strstr(k.out.text, "evacuate"));
	EXPECT_OK(kit_delete(&k, 1));
	EXPECT_OK(kit_group_state(&k, 1, GROUP_REMOVED, 20, 1));
	EXPECT_RC(kit_group_state(&k, 1, GROUP_ACTIVE, 20, 1), -ERR_REFUSED);
	kit_fini(&k);
}

TEST(state, volume_create_is_validated)
{
	struct kit k;
	struct command c = {.kind = CMD_VOLUME_CREATE};
	struct map_volume *v = &c.volume.volume;
	struct map_member m[6] = {{1, 1}, {2, 1}, {1, 1}, {2, 1}, {1, 1}, {2, 1}};
	struct map_volume good = {.uuid = kit_uuid(5),
				  .name = "v",
				  .size = 100 << 20,
				  .object_size = 64 << 20,
				  .stripe_count = 3,
				  .objects = 3,
				  .copies = 2,
				  .min_in_sync = 1};

	kit_init(&k, 2);
	c.volume.placement = m;
	c.volume.placement_count = 6;
#define REFUSED(change, code)                                                                      \
	do {                                                                                       \
		*v = good;                                                                         \
		change;                                                                            \
		EXPECT_RC(kit_apply(&k, &c), code);                                                \
	} while (0)
	REFUSED(strcpy(v->name, "a/b"), -ERR_INVALID);
	REFUSED(v->name[0] = 0, -ERR_INVALID);
	REFUSED(v->size = 0, -ERR_INVALID);
	REFUSED(v->size = 5000, -ERR_INVALID);
	REFUSED(v->size = VOLUME_SIZE_MAX + 4096, -ERR_LIMIT);
	REFUSED(v->copies = 0, -ERR_INVALID);
	REFUSED(v->copies = 4, -ERR_INVALID);
	REFUSED(v->copies = 3, -ERR_TOO_FEW);
	EXPECT(strstr(k.out.text, "3 copies need 3 fault sets") &&
	       strstr(k.out.text, "there are 2"));
	REFUSED(v->min_in_sync = 0, -ERR_INVALID);
	REFUSED(v->min_in_sync = 3, -ERR_INVALID);
	REFUSED(v->flags = 0x80, -ERR_INVALID);
	REFUSED(v->object_size = 65 << 20, -ERR_INVALID);
	REFUSED(v->object_size = 32 << 20, -ERR_INVALID);
	REFUSED(v->stripe_count = 0, -ERR_INVALID);
	REFUSED(v->objects = 4, -ERR_INVALID);
	REFUSED(memset(&v->uuid, 0, 16), -ERR_INVALID);
	c.volume.placement_count = 4;
	REFUSED(, -ERR_INVALID);
	c.volume.placement_count = 6;
	m[5].group = 1; /* both copies in one fault set */
	REFUSED(, -ERR_INVALID);
	m[5].group = 9;
	REFUSED(, -ERR_CONFLICT);
	m[5] = (struct map_member){.group = 2, .group_incarnation = 7};
	REFUSED(, -ERR_CONFLICT);
	m[5].group_incarnation = 1;
	EXPECT_EQ(kit_map(&k)->volumes.count, 0);
	REFUSED(, 0);
	EXPECT_EQ(k.out.id, 1);
	REFUSED(, 0); /* the same create again */
	EXPECT_EQ(k.out.id, 1);
	REFUSED(v->uuid = kit_uuid(6), -ERR_EXISTS);
	REFUSED(strcpy(v->name, "w"), -ERR_INVALID); /* uuid in use */
#undef REFUSED
	kit_fini(&k);
}

TEST(state, new_objects_are_born_in_sync)
{
	struct kit k;
	struct map_object *o;

	kit_init(&k, 3);
	EXPECT_OK(kit_start(&k, 2, 1, 5));
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 3));
	for (uint32_t i = 0; i < map_volume(kit_map(&k), 1)->objects; i++) {
		o = kit_object(&k, object_id(1, i));
		EXPECT_EQ(o->epoch, 1);
		EXPECT_EQ(o->tenure, 1);
		EXPECT_EQ(map_in_count(o), 3);
		EXPECT_EQ(o->primary_incarnation, map_primary_node(kit_map(&k), o)->incarnation);
		EXPECT_EQ(o->member[1].gen, 1);
	}
	kit_fini(&k);
}

TEST(state, limits_of_volumes_and_objects)
{
	struct kit k;
	char name[8];

	kit_init(&k, 1);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		EXPECT_OK(kit_volume(&k, name, VOLUME_SIZE_MAX, 1)); /* 3 × 16,386 */
	}
	EXPECT_RC(kit_volume(&k, "more", 8ull << 40, 1), -ERR_LIMIT);
	EXPECT(strstr(k.out.text, "50000"));
	EXPECT_OK(kit_delete(&k, 1));
	EXPECT_OK(kit_volume(&k, "more", 8ull << 40, 1));
	kit_fini(&k);
}

TEST(state, volumes_grow_and_never_shrink)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 100 << 20, 2));
	EXPECT_RC(kit_resize(&k, 9, 1 << 30), -ERR_NOT_FOUND);
	EXPECT_RC(kit_resize(&k, 1, 50 << 20), -ERR_INVALID);
	EXPECT(strstr(k.out.text, "iB and cannot shrink to "));
	EXPECT_RC(kit_resize(&k, 1, (100 << 20) + 1), -ERR_INVALID);
	EXPECT_RC(kit_resize(&k, 1, VOLUME_SIZE_MAX * 2), -ERR_LIMIT);
	EXPECT_OK(kit_resize(&k, 1, 150 << 20)); /* within its objects */
	EXPECT_EQ(map_volume(kit_map(&k), 1)->objects, 3);
	EXPECT_OK(kit_resize(&k, 1, 1 << 30));
	EXPECT_EQ(map_volume(kit_map(&k), 1)->objects, 18);
	EXPECT_EQ(map_in_count(kit_object(&k, object_id(1, 17))), 2);
	EXPECT_OK(kit_resize(&k, 1, 1 << 30));
	kit_fini(&k);
}

TEST(state, a_placement_for_another_size_is_refused)
{
	struct kit k;
	struct command c = {.kind = CMD_VOLUME_RESIZE};

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 100 << 20, 2));
	c.volume.volume.id = 1;
	c.volume.volume.size = 1 << 30;
	c.volume.first_object = 2;
	EXPECT_RC(kit_apply(&k, &c), -ERR_CONFLICT);
	kit_fini(&k);
}

TEST(state, volume_delete_frees_the_name_not_the_number)
{
	struct kit k;

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_RC(kit_delete(&k, 5), -ERR_NOT_FOUND);
	EXPECT_RC(kit_delete(&k, 1), -ERR_HELD); /* in use */
	EXPECT(strstr(k.out.text, "by h1"));
	k.time_ms += ATTACH_TTL_MS; /* its gateway is gone */
	EXPECT_OK(kit_delete(&k, 1));
	EXPECT(!map_volume(kit_map(&k), 1));
	EXPECT(map_attachment(kit_map(&k), 1)->revoked);
	EXPECT_OK(kit_delete(&k, 1)); /* again: gone already */
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	EXPECT_EQ(k.out.id, 2);
	kit_fini(&k);
}

TEST(state, volume_set)
{
	struct kit k;
	struct command c = {.kind = CMD_VOLUME_SET};

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	c.volume_set.id = 1;
	EXPECT_RC(kit_apply(&k, &c), -ERR_INVALID);
	c.volume_set.set_mask = VOLUME_SET_MIN_IN_SYNC;
	c.volume_set.min_in_sync = 3;
	EXPECT_RC(kit_apply(&k, &c), -ERR_INVALID);
	c.volume_set.min_in_sync = 2;
	c.volume_set.flags = VOLUME_DEDUP; /* not in the mask */
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_EQ(map_volume(kit_map(&k), 1)->min_in_sync, 2);
	EXPECT_EQ(map_volume(kit_map(&k), 1)->flags, 0);
	c.volume_set.set_mask = VOLUME_SET_FLAGS;
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_EQ(map_volume(kit_map(&k), 1)->flags, VOLUME_DEDUP);
	c.volume_set.set_mask = VOLUME_SET_REDUCE; /* each time anew, by the policy there is */
	c.volume_set.flags = 0;
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_EQ(map_volume(kit_map(&k), 1)->reduce, 2);
	EXPECT_EQ(map_volume(kit_map(&k), 1)->flags, VOLUME_DEDUP);
	c.volume_set.set_mask = VOLUME_SET_REDUCE | VOLUME_SET_FLAGS;
	EXPECT_RC(kit_apply(&k, &c), -ERR_INVALID);
	EXPECT_EQ(map_volume(kit_map(&k), 1)->flags, VOLUME_DEDUP);
	c.volume_set.id = 7;
	EXPECT_RC(kit_apply(&k, &c), -ERR_NOT_FOUND);
	kit_fini(&k);
}

TEST(state, attach_is_exclusive_unless_shared)
{
	struct kit k;
	const struct map *m;

	kit_init(&k, 2);
	m = kit_map(&k);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	EXPECT_RC(kit_attach(&k, 9, ATTACH_EXCLUSIVE, "h1", false), -ERR_NOT_FOUND);
	EXPECT_RC(kit_attach(&k, 1, 7, "h1", false), -ERR_INVALID);
	EXPECT_RC(kit_attach(&k, 1, ATTACH_SHARED, "", false), -ERR_INVALID);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1", false));
	EXPECT_EQ(k.out.id, 1);
	EXPECT_EQ(k.out.number, 1);
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h2", false), -ERR_HELD);
	EXPECT_EQ(k.out.id, 1);
	EXPECT(strstr(k.out.text, "by h1 (exclusive)") && strstr(k.out.text, "free in 30 s") &&
	       strstr(k.out.text, "`ashlar volume detach v --fence`"));
	EXPECT_RC(kit_attach(&k, 1, ATTACH_SHARED, "h2", false), -ERR_HELD);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h1",
			     false)); /* one's own is re-taken at once */
	EXPECT_EQ(k.out.number, 2);
	EXPECT(map_attachment(m, 1)->revoked && !map_attachment(m, 2)->revoked);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h2", true)); /* steal */
	EXPECT_EQ(k.out.number, 3);
	EXPECT(map_attachment(m, 2)->revoked);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h3", false)); /* shared beside shared */
	EXPECT(!map_attachment(m, 3)->revoked && !map_attachment(m, 4)->revoked);
	EXPECT_RC(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h4", false), -ERR_HELD);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h4", true));
	EXPECT(map_attachment(m, 3)->revoked && map_attachment(m, 4)->revoked);
	EXPECT_OK(kit_detach(&k, 5));
	EXPECT_OK(kit_detach(&k, 5)); /* again */
	EXPECT_RC(kit_detach(&k, 6), -ERR_NOT_FOUND);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h5", false));
	EXPECT_EQ(k.out.number, 6); /* epochs grow for ever */
	kit_fini(&k);
}

TEST(state, revoked_attachments_are_forgotten_in_the_end)
{
	struct kit k;

	kit_init(&k, 1);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 1));
	for (unsigned i = 0; i < 1000; i++)
		EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h", false));
	EXPECT_EQ(kit_map(&k)->attachments.count, 1 + ATTACHMENTS_REVOKED_MAX);
	EXPECT(!map_attachment(kit_map(&k), 1));
	EXPECT_OK(kit_detach(&k, 1)); /* long gone */
	kit_fini(&k);
}

TEST(state, attachments_are_limited)
{
	struct kit k;
	char h[16];

	kit_init(&k, 1);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 1));
	for (unsigned i = 0; i < ATTACHMENTS_MAX; i++) {
		snprintf(h, sizeof(h), "h%u", i);
		EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, h, false));
	}
	EXPECT_RC(kit_attach(&k, 1, ATTACH_SHARED, "more", false), -ERR_LIMIT);
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h3", false)); /* replaces its own */
	kit_fini(&k);
}

TEST(state, settings_and_events)
{
	struct kit k;
	struct command c = {.kind = CMD_EVENT};
	struct state_event e[STATE_EVENTS];
	char key[16];

	kit_init(&k, 1);
	EXPECT_RC(kit_setting(&k, "a b", "1"), -ERR_INVALID);
	EXPECT_OK(kit_setting(&k, "b", "2"));
	EXPECT_OK(kit_setting(&k, "a", "1"));
	EXPECT_OK(kit_setting(&k, "b", "3"));
	EXPECT_STR(state_setting(k.s, "a"), "1");
	EXPECT_STR(state_setting(k.s, "b"), "3");
	EXPECT_OK(kit_setting(&k, "a", ""));
	EXPECT(!state_setting(k.s, "a"));
	for (unsigned i = 0; i < 255; i++) {
		snprintf(key, sizeof(key), "k%u", i);
		EXPECT_OK(kit_setting(&k, key, "x"));
	}
	EXPECT_RC(kit_setting(&k, "one-more", "x"), -ERR_LIMIT);

	EXPECT_RC(kit_apply(&k, &c), -ERR_INVALID);
	strcpy(c.event.code, "TEST");
	strcpy(c.event.text, "hello");
	c.event.severity = 2;
	EXPECT_OK(kit_apply(&k, &c));
	EXPECT_EQ(state_events(k.s, e, STATE_EVENTS), STATE_EVENTS); /* a ring, newest first */
	EXPECT_STR(e[0].text, "hello");
	EXPECT_STR(e[0].actor, "tester");
	EXPECT_EQ(e[0].index, k.index);
	EXPECT_STR(e[1].code, "SETTING");
	kit_fini(&k);
}

TEST(state, snapshot_restores_everything)
{
	struct kit k;
	struct state *copy = state_create();
	struct writer w = writer_init_heap();

	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "v", 1 << 30, 2));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_SHARED, "h", false));
	EXPECT_OK(kit_setting(&k, "a", "1"));
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(copy, w.data, w.len));
	EXPECT(state_digest(copy) == state_digest(k.s));
	EXPECT_STR(state_cluster_name(copy), "test");
	EXPECT_STR(state_setting(copy, "a"), "1");

	/* Damaged anywhere: refused or another valid state, never a crash; a refused one changes
	 * nothing. */
	for (size_t cut = 0; cut < w.len; cut++)
		EXPECT(state_restore(copy, w.data, cut) < 0);
	EXPECT(state_digest(copy) == state_digest(k.s));
	for (size_t i = 0; i < w.len; i += 3) {
		w.data[i] ^= 0x5a;
		(void)!state_restore(copy, w.data, w.len);
		w.data[i] ^= 0x5a;
	}
	put_le16(w.data + 4, 6);
	EXPECT_RC(state_restore(copy, w.data, w.len), -ERR_VERSION);
	put_le16(w.data + 4, 0);
	EXPECT_RC(state_restore(copy, w.data, w.len), -ERR_VERSION);
	writer_free(&w);
	state_destroy(copy);
	kit_fini(&k);
}

static int maintain(struct kit *k, uint16_t node, enum maintenance_op op, uint32_t ttl_s)
{
	struct command c = {.kind = CMD_MAINTENANCE,
			    .maintenance = {.node = node, .op = op, .ttl_s = ttl_s}};

	strcpy(c.maintenance.reason, "new fan");
	return kit_apply(k, &c);
}

TEST(state, maintenance_is_a_lease)
{
	struct kit k;
	const struct map_node *n;
	struct writer w = writer_init_heap();
	struct state *back = state_create();
	struct map copy;
	struct reader r;

	kit_init(&k, 2);
	n = map_node(state_map(k.s), 1);
	EXPECT_RC(maintain(&k, 9, MAINTENANCE_START, 60), -ERR_NOT_FOUND);
	EXPECT_RC(maintain(&k, 1, MAINTENANCE_EXTEND, 60), -ERR_NOT_FOUND);
	EXPECT(strstr(k.out.text, "maintenance start n1"));
	EXPECT_RC(maintain(&k, 1, MAINTENANCE_START, 0), -ERR_INVALID);
	EXPECT_RC(maintain(&k, 1, MAINTENANCE_START, MAINTENANCE_TTL_MAX_S + 1), -ERR_INVALID);
	EXPECT_RC(maintain(&k, 1, (enum maintenance_op)4, 60), -ERR_INVALID);
	EXPECT_OK(maintain(&k, 1, MAINTENANCE_END, 0)); /* there is none: nothing to do */
	EXPECT(!map_node_in_maintenance(state_map(k.s), 1, k.time_ms));

	EXPECT_OK(maintain(&k, 1, MAINTENANCE_START, 60));
	EXPECT_EQ(n->maintenance_since_ms, k.time_ms);
	EXPECT_EQ(n->maintenance_until_ms, k.time_ms + 60000);
	EXPECT_STR(n->maintenance_reason, "new fan");
	EXPECT(map_node_in_maintenance(state_map(k.s), 1, k.time_ms + 59999));
	EXPECT(!map_node_in_maintenance(state_map(k.s), 1, k.time_ms + 60000));
	EXPECT(!map_node_in_maintenance(state_map(k.s), 2, k.time_ms));
	EXPECT(!map_node_in_maintenance(state_map(k.s), 9, k.time_ms));

	k.time_ms += 1000; /* the same again keeps its beginning; so does longer */
	EXPECT_OK(maintain(&k, 1, MAINTENANCE_START, 60));
	EXPECT_OK(maintain(&k, 1, MAINTENANCE_EXTEND, 120));
	EXPECT_EQ(n->maintenance_since_ms, k.time_ms - 1000);
	EXPECT_EQ(n->maintenance_until_ms, k.time_ms + 120000);

	/* It is in snapshots, and in the maps of shards and clients. */
	state_snapshot(k.s, &w);
	EXPECT_OK(state_restore(back, w.data, w.len));
	EXPECT(map_node_in_maintenance(state_map(back), 1, k.time_ms));
	EXPECT(state_digest(back) == state_digest(k.s));
	w.len = 0;
	state_delta(k.s, 0, &w);
	map_init(&copy);
	r = reader_init(w.data, w.len);
	EXPECT_OK(map_delta_apply(&copy, &r, NULL, NULL));
	EXPECT(map_node_in_maintenance(&copy, 1, k.time_ms));
	EXPECT_STR(map_node(&copy, 1)->maintenance_reason, "new fan");
	map_fini(&copy);

	/* What ran out stays to be seen until it is ended. */
	k.time_ms += 120000;
	EXPECT(!map_node_in_maintenance(state_map(k.s), 1, k.time_ms));
	EXPECT(n->maintenance_until_ms != 0);
	EXPECT_OK(maintain(&k, 1, MAINTENANCE_START, 60)); /* a new one begins now */
	EXPECT_EQ(n->maintenance_since_ms, k.time_ms);
	EXPECT_OK(maintain(&k, 1, MAINTENANCE_END, 0));
	EXPECT(!n->maintenance_until_ms && !n->maintenance_since_ms && !n->maintenance_reason[0]);
	state_destroy(back);
	writer_free(&w);
	kit_fini(&k);
}
