/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/state/state_kit.h"

void kit_empty(struct kit *k)
{
	*k = (struct kit){.s = state_create(), .time_ms = 1000000};
}

void kit_init(struct kit *k, unsigned nodes)
{
	char name[8];

	kit_empty(k);
	EXPECT_OK(kit_cluster(k, "test", 900));
	for (unsigned i = 1; i <= nodes; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		if (i > 1)
			EXPECT_OK(kit_node(k, name, "", 100 + i));
		EXPECT_OK(kit_start(k, (uint16_t)i, 0, 1));
		EXPECT_OK(kit_group(k, (uint16_t)i, 200 + i));
		EXPECT_OK(kit_group_state(k, (uint16_t)i, GROUP_ACTIVE, 20, 1));
	}
}

void kit_fini(struct kit *k)
{
	state_destroy(k->s);
}

int kit_apply(struct kit *k, struct command *c)
{
	struct writer w = writer_init_heap();

	if (!c->time_ms)
		c->time_ms = k->time_ms;
	strcpy(c->actor, "tester");
	command_encode(c, &w);
	EXPECT_EQ(w.len % 8, 0);
	state_apply(k->s, ++k->index, w.data, w.len, &k->out, NULL, NULL);
	EXPECT_EQ(k->out.index, k->index);
	if (k->out.code)
		EXPECT(k->out.text[0]); /* a refusal has a sentence */
	writer_free(&w);
	return k->out.code;
}

struct uuid kit_uuid(uint64_t n)
{
	struct uuid u = {{0x11}};

	put_be64(u.b + 8, n);
	return u;
}

static struct map_node node_record(const char *name, const char *fault_set, uint64_t uuid)
{
	struct map_node n = {.uuid = kit_uuid(uuid), .roles = ROLE_STORAGE | ROLE_VOTER};

	snprintf(n.name, sizeof(n.name), "%s", name);
	snprintf(n.fault_set, sizeof(n.fault_set), "%s", fault_set);
	snprintf(n.address, sizeof(n.address), "10.0.0.%u:7000", (unsigned)(uuid % 256));
	return n;
}

int kit_cluster(struct kit *k, const char *name, uint64_t uuid)
{
	struct command c = {.kind = CMD_CLUSTER_INIT};

	c.init.cluster = kit_uuid(uuid);
	c.init.node = node_record("n1", "", 101);
	snprintf(c.init.name, sizeof(c.init.name), "%s", name);
	return kit_apply(k, &c);
}

int kit_node(struct kit *k, const char *name, const char *fault_set, uint64_t uuid)
{
	struct command c = {.kind = CMD_TOKEN_ADD};

	memset(c.token.sha256, 'a', 64);
	c.token.expires_ms = k->time_ms + 1000;
	EXPECT_OK(kit_apply(k, &c));
	c = (struct command){.kind = CMD_NODE_ADD};
	memset(c.node_add.token_sha256, 'a', 64);
	c.node_add.node = node_record(name, fault_set, uuid);
	return kit_apply(k, &c);
}

int kit_start(struct kit *k, uint16_t node, uint32_t old, uint32_t incarnation)
{
	struct command c = {.kind = CMD_NODE_START};

	c.node_start.node = node;
	c.node_start.old_incarnation = old;
	c.node_start.incarnation = incarnation;
	c.node_start.shards = 2;
	c.node_start.roles = ROLE_STORAGE | ROLE_VOTER;
	c.node_start.version_minor = 1;
	snprintf(c.node_start.address, sizeof(c.node_start.address), "10.0.1.%u:7000", node);
	return kit_apply(k, &c);
}

int kit_node_state(struct kit *k, uint16_t node, uint8_t state)
{
	struct command c = {.kind = CMD_NODE_STATE};

	c.node_state.node = node;
	c.node_state.state = state;
	c.node_state.roles = ROLE_STORAGE | ROLE_VOTER;
	return kit_apply(k, &c);
}

int kit_group(struct kit *k, uint16_t node, uint64_t uuid)
{
	struct command c = {.kind = CMD_GROUP_ADD};

	c.group_add.node = node;
	c.group_add.uuid = kit_uuid(uuid);
	c.group_add.incarnation = 1;
	c.group_add.raw_bytes = 1ull << 40;
	return kit_apply(k, &c);
}

int kit_group_state(struct kit *k, uint16_t group, uint8_t state, uint8_t steps,
		    uint32_t incarnation)
{
	struct command c = {.kind = CMD_GROUP_STATE};

	c.group_state.group = group;
	c.group_state.state = state;
	c.group_state.free_steps = steps;
	c.group_state.incarnation = incarnation;
	return kit_apply(k, &c);
}

int kit_regroup(struct kit *k, uint16_t group, uint16_t node, uint32_t old, uint32_t incarnation)
{
	struct command c = {.kind = CMD_REGROUP};

	c.regroup.group = group;
	c.regroup.node = node;
	c.regroup.old_incarnation = old;
	c.regroup.new_incarnation = incarnation;
	return kit_apply(k, &c);
}

static int volume_command(struct kit *k, struct command *c, unsigned copies, uint32_t objects)
{
	char why[256];
	struct placement_request q = {.volume = c->volume.volume.id ? c->volume.volume.id
								    : kit_map(k)->next_volume,
				      .first_object = c->volume.first_object,
				      .objects = objects,
				      .copies = MIN(MAX(copies, 1u), 3u)};
	struct map_member *m = xcalloc((size_t)objects * 3 + 1, sizeof(*m));
	int rc;

	c->volume.placement = m;
	c->volume.placement_count = objects * copies;
	if (placement_choose(kit_map(k), &q, m, NULL, NULL, 0, why))
		c->volume.placement_count = 0;
	rc = kit_apply(k, c);
	free(m);
	return rc;
}

int kit_volume(struct kit *k, const char *name, uint64_t size, unsigned copies)
{
	struct command c = {.kind = CMD_VOLUME_CREATE};
	struct map_volume *v = &c.volume.volume;

	snprintf(v->name, sizeof(v->name), "%s", name);
	v->uuid = kit_uuid(1000 + k->index);
	v->size = size;
	v->copies = (uint8_t)copies;
	v->min_in_sync = 1;
	if (volume_geometry(size, 3, &v->object_size, &v->stripe_count, &v->objects))
		v->objects = 0;
	return volume_command(k, &c, copies, v->objects);
}

int kit_resize(struct kit *k, uint32_t id, uint64_t size)
{
	struct command c = {.kind = CMD_VOLUME_RESIZE};
	struct map_volume *v = map_volume(kit_map(k), id);
	uint32_t more = 0;

	c.volume.volume.id = id;
	c.volume.volume.size = size;
	if (v) {
		c.volume.first_object = v->objects;
		if (size > v->size && size <= VOLUME_SIZE_MAX)
			more = volume_objects_for(size, v->object_size, v->stripe_count) -
			       v->objects;
	}
	return volume_command(k, &c, v ? v->copies : 1, more);
}

int kit_delete(struct kit *k, uint32_t id)
{
	struct command c = {.kind = CMD_VOLUME_DELETE};

	c.volume_delete.id = id;
	return kit_apply(k, &c);
}

int kit_attach(struct kit *k, uint32_t volume, uint8_t mode, const char *holder, bool steal)
{
	struct command c = {.kind = CMD_ATTACH};

	c.attach.volume = volume;
	c.attach.mode = mode;
	c.attach.steal = steal;
	snprintf(c.attach.holder, sizeof(c.attach.holder), "%s", holder);
	return kit_apply(k, &c);
}

int kit_detach(struct kit *k, uint32_t attachment)
{
	struct command c = {.kind = CMD_DETACH};

	c.detach.attachment = attachment;
	return kit_apply(k, &c);
}

int kit_renew(struct kit *k, unsigned count, const uint32_t *attachment)
{
	struct command c = {.kind = CMD_RENEW};

	c.renew.count = count;
	c.renew.attachment = (uint32_t *)attachment;
	return kit_apply(k, &c);
}

int kit_fence(struct kit *k, uint32_t volume, uint32_t newest, bool expired_only, const char *holder)
{
	struct command c = {.kind = CMD_FENCE};

	c.fence.volume = volume;
	c.fence.newest = newest;
	c.fence.expired_only = expired_only;
	snprintf(c.fence.holder, sizeof(c.fence.holder), "%s", holder ? holder : "");
	return kit_apply(k, &c);
}

int kit_setting(struct kit *k, const char *key, const char *value)
{
	struct command c = {.kind = CMD_SETTING};

	snprintf(c.setting.key, sizeof(c.setting.key), "%s", key);
	snprintf(c.setting.value, sizeof(c.setting.value), "%s", value);
	return kit_apply(k, &c);
}

int kit_change(struct kit *k, struct object_change ch)
{
	struct command c = {.kind = CMD_OBJECT};

	c.object.count = 1;
	c.object.change = &ch;
	EXPECT_OK(kit_apply(k, &c));
	EXPECT_EQ(k->out.count, 1);
	return k->out.object[0];
}

const struct map *kit_map(const struct kit *k)
{
	return state_map(k->s);
}

struct map_object *kit_object(const struct kit *k, uint64_t id)
{
	return map_object(kit_map(k), id);
}

void fix_volume(struct fix *f, unsigned copies)
{
	kit_init(&f->k, 4);
	EXPECT_OK(kit_volume(&f->k, "v", 1 << 30, copies));
	f->o = kit_object(&f->k, object_id(1, 0));
	f->p = f->o->member[0].group;
	f->s = copies > 1 ? f->o->member[1].group : 0;
	f->t = copies > 2 ? f->o->member[2].group : 0;
}

struct map_member *fix_member(struct fix *f, uint16_t group)
{
	for (unsigned i = 0; i < f->o->member_count; i++)
		if (f->o->member[i].group == group)
			return &f->o->member[i];
	return NULL;
}

void fix_refused(struct fix *f, struct object_change ch, int why)
{
	uint64_t digest = state_digest(f->k.s);

	EXPECT_EQ(kit_change(&f->k, ch), why);
	EXPECT(digest == state_digest(f->k.s));
}

void kit_copies(const struct kit *k, struct state **copy, struct map *m)
{
	struct writer w = writer_init_heap();
	struct reader r;

	*copy = state_create();
	state_snapshot(k->s, &w);
	EXPECT_OK(state_restore(*copy, w.data, w.len));
	EXPECT(state_digest(*copy) == state_digest(k->s));
	map_init(m);
	w.len = 0;
	state_delta(*copy, 0, &w);
	r = reader_init(w.data, w.len);
	EXPECT_OK(map_delta_apply(m, &r, NULL, NULL));
	writer_free(&w);
}
