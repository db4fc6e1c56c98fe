/* SPDX-License-Identifier: Apache-2.0 */
/* Random command sequences: determinism with snapshots in between, deltas at random points, I never
 * empty, epochs never back, and mutated bytes never a crash. A failure names its seed. */
#include "cluster/map_codec.h"
#include "node/base/rng.h"
#include "tests/state/state_kit.h"

struct run {
	struct kit k;
	struct rng rng;
	struct writer cmd; /* the last command, encoded */
	uint64_t seed;
};

static uint64_t below(struct run *r, uint64_t n)
{
	return rng_below(&r->rng, n);
}

/* Mostly a command that makes sense, sometimes a wrong one. */
static uint64_t nearly(struct run *r, uint64_t v)
{
	return below(r, 10) ? v : v + below(r, 3) - 1;
}

static void random_change(struct run *r, struct object_change *ch)
{
	const struct map *m = kit_map(&r->k);
	struct map_volume *v = map_volume(m, (uint32_t)(1 + below(r, m->next_volume)));
	struct map_object *o;
	struct map_node *p;

	memset(ch, 0, sizeof(*ch));
	ch->op = (uint8_t)(1 + below(r, 10));
	ch->keep = (uint8_t)below(r, 2);
	ch->node = ch->proposer = (uint16_t)(1 + below(r, 5));
	ch->incarnation = 1;
	if (!v)
		return;
	o = &v->object[below(r, MIN(v->objects, 4u))]; /* few, so that each sees many changes */
	ch->object = o->id;
	ch->epoch = (uint32_t)nearly(r, o->epoch);
	ch->replica = o->member[below(r, o->member_count)];
	p = map_primary_node(m, o);
	if (ch->op == OBJ_PLACE) {
		ch->replica.group = (uint16_t)(1 + below(r, m->next_group));
		ch->replica.group_incarnation =
			map_group(m, ch->replica.group)
				? map_group(m, ch->replica.group)->incarnation
				: 1;
	} else if (ch->op == OBJ_TAKEOVER || ch->op == OBJ_FORCE) {
		struct map_node *n = map_member_node(m, &ch->replica);

		ch->node = n ? n->id : 1;
		ch->proposer = p && ch->op == OBJ_FORCE && below(r, 2) ? p->id : ch->node;
		if (ch->op == OBJ_TAKEOVER)
			ch->replica.group = 0;
	} else if (p) {
		ch->proposer = p->id;
	}
	p = map_node(m, ch->op == OBJ_TAKEOVER || ch->op == OBJ_FORCE ? ch->node : ch->proposer);
	if (p)
		ch->incarnation = (uint32_t)nearly(r, p->incarnation);
}

static void encode(struct run *r, struct command *c)
{
	r->cmd.len = 0;
	c->time_ms = r->k.time_ms + r->k.index;
	command_encode(c, &r->cmd);
}

static void random_volume(struct run *r, struct command *c)
{
	const struct map *m = kit_map(&r->k);
	struct map_volume *v = &c->volume.volume,
			  *old = map_volume(m, (uint32_t)below(r, m->next_volume));
	struct placement_request q = {.volume = m->next_volume};
	static struct map_member placement[200 * 3];
	char why[256];

	v->uuid = kit_uuid(5000 + r->k.index);
	snprintf(v->name, sizeof(v->name), "v%u", (unsigned)below(r, 12));
	v->size = (1 + below(r, 2000)) << 20;
	v->copies = (uint8_t)(1 + below(r, 3));
	v->min_in_sync = 1;
	(void)!volume_geometry(v->size, 3, &v->object_size, &v->stripe_count, &v->objects);
	q.objects = v->objects;
	if (c->kind == CMD_VOLUME_RESIZE && old) {
		v->id = old->id;
		v->size = old->size + ((uint64_t)below(r, 300) << 20);
		v->copies = old->copies;
		c->volume.first_object = q.first_object = old->objects;
		q.objects = volume_objects_for(v->size, old->object_size, old->stripe_count) -
			    old->objects;
		if (q.objects > 200)
			q.objects = 0;
	}
	q.copies = v->copies;
	c->volume.placement = placement;
	if (!placement_choose(m, &q, placement, NULL, NULL, 0, why))
		c->volume.placement_count = (unsigned)nearly(r, q.objects * q.copies);
	if (c->volume.placement_count > 600)
		c->volume.placement_count = 0;
	encode(r, c);
}

static void random_node_command(struct run *r, struct command *c)
{
	const struct map *m = kit_map(&r->k);
	struct map_node *n = map_node(m, (uint16_t)(1 + below(r, m->next_node)));
	struct map_group *g = map_group(m, (uint16_t)(1 + below(r, m->next_group)));

	if (c->kind == CMD_NODE_START) {
		c->node_start.node = n ? n->id : 77;
		c->node_start.old_incarnation = n ? (uint32_t)nearly(r, n->incarnation) : 0;
		c->node_start.incarnation = c->node_start.old_incarnation + (uint32_t)below(r, 3);
		c->node_start.shards = 2;
		c->node_start.roles = ROLE_STORAGE;
		snprintf(c->node_start.address, 64, "a%u", (unsigned)below(r, 99));
	} else if (c->kind == CMD_GROUP_STATE) {
		c->group_state.group = g ? g->id : 9;
		c->group_state.state = below(r, 12) ? GROUP_ACTIVE : (uint8_t)below(r, 5);
		c->group_state.free_steps = (uint8_t)below(r, 21);
		c->group_state.incarnation = g ? g->incarnation : 1;
	} else if (c->kind == CMD_GROUP_ADD) {
		c->group_add.uuid = kit_uuid(9000 + below(r, 12));
		c->group_add.node = n ? n->id : 0;
		c->group_add.incarnation = 1;
		c->group_add.raw_bytes = 1ull << 40;
	} else {
		c->regroup.group = g ? g->id : 9;
		c->regroup.node = g ? g->node : 9;
		c->regroup.old_incarnation = g ? (uint32_t)nearly(r, g->incarnation) : 1;
		c->regroup.new_incarnation = c->regroup.old_incarnation + 1;
	}
	encode(r, c);
}

static void random_command(struct run *r)
{
	struct command c = {0};
	struct object_change ch[8];

	switch (below(r, 17)) {
	case 0:
	case 1:
		c.kind = below(r, 3) ? CMD_VOLUME_CREATE : CMD_VOLUME_RESIZE;
		random_volume(r, &c);
		return;
	case 2:
		c.kind = CMD_VOLUME_DELETE;
		c.volume_delete.id = (uint32_t)below(r, kit_map(&r->k)->next_volume + 1);
		break;
	case 3:
	case 4:
		/* Leases run out now and then. */
		r->k.time_ms += below(r, 3) ? 0 : below(r, 20000);
		c.kind = (uint16_t[]){CMD_ATTACH, CMD_ATTACH, CMD_ATTACH, CMD_DETACH, CMD_RENEW,
				      CMD_FENCE, CMD_MAINTENANCE}[below(r, 7)];
		if (c.kind == CMD_MAINTENANCE) {
			c.maintenance.node = (uint16_t)below(r, kit_map(&r->k)->next_node + 1);
			c.maintenance.op = (uint8_t)below(r, 5);
			c.maintenance.ttl_s = (uint32_t)below(r, 100);
			break;
		}
		if (c.kind == CMD_RENEW) {
			uint32_t ids[8];

			c.renew.count = (unsigned)below(r, 9);
			c.renew.attachment = ids;
			for (unsigned i = 0; i < c.renew.count; i++)
				ids[i] = (uint32_t)below(r, kit_map(&r->k)->next_attachment + 1);
			encode(r, &c);
			return;
		}
		if (c.kind == CMD_FENCE) {
			c.fence.volume = (uint32_t)below(r, kit_map(&r->k)->next_volume + 1);
			c.fence.newest = (uint32_t)below(r, kit_map(&r->k)->next_attachment + 1);
			c.fence.expired_only = below(r, 2);
			break;
		}
		if (c.kind == CMD_DETACH) {
			c.detach.attachment =
				(uint32_t)below(r, kit_map(&r->k)->next_attachment + 1);
			break;
		}
		c.attach.volume = (uint32_t)below(r, kit_map(&r->k)->next_volume + 1);
		c.attach.mode = (uint8_t)(1 + below(r, 2));
		c.attach.steal = below(r, 4) == 0;
		snprintf(c.attach.holder, sizeof(c.attach.holder), "h%u", (unsigned)below(r, 4));
		break;
	case 5:
		if (below(r, 2)) {
			c.kind = CMD_JOB;
			c.job.op = (uint8_t)(1 + below(r, 6));
			c.job.kind = (uint8_t)(1 + below(r, 4));
			c.job.id = (uint32_t)below(r, 80);
			*(below(r, 2) ? &c.job.node : &c.job.group) = (uint16_t)below(r, 6);
			break;
		}
		c.kind = CMD_SETTING;
		snprintf(c.setting.key, sizeof(c.setting.key), "k%u", (unsigned)below(r, 9));
		snprintf(c.setting.value, sizeof(c.setting.value), "%s", below(r, 3) ? "x" : "");
		break;
	case 6:
	case 7:
		c.kind = (uint16_t[]){CMD_NODE_START, CMD_GROUP_STATE, CMD_REGROUP,
				      CMD_GROUP_ADD}[below(r, 4)];
		random_node_command(r, &c);
		return;
	case 8:
		if (below(r, 20)) { /* nodes that leave are few, others come */
			struct map_node *n;

			c.kind = CMD_NODE_ADD;
			n = &c.node_add.node;
			n->uuid = kit_uuid(20000 + below(r, 50));
			snprintf(n->name, sizeof(n->name), "m%u", (unsigned)below(r, 50));
			snprintf(n->address, sizeof(n->address), "b%u", (unsigned)below(r, 50));
			n->roles = ROLE_STORAGE;
			memset(c.node_add.token_sha256, 'a', 64);
			break;
		}
		c.kind = CMD_NODE_REMOVE;
		c.node_remove.node = (uint16_t)below(r, kit_map(&r->k)->next_node + 1);
		c.node_remove.flags = (uint8_t)below(r, 4);
		c.node_remove.incarnation =
			map_node(kit_map(&r->k), c.node_remove.node)
				? map_node(kit_map(&r->k), c.node_remove.node)->incarnation
				: 1;
		break;
	case 9:
		c.kind = CMD_TOKEN_ADD;
		memset(c.token.sha256, 'a', 64);
		c.token.expires_ms = UINT64_MAX;
		break;
	default:
		c.kind = CMD_OBJECT;
		c.object.count = (unsigned)(1 + below(r, 8));
		c.object.change = ch;
		for (unsigned i = 0; i < c.object.count; i++)
			random_change(r, &ch[i]);
	}
	encode(r, &c);
}

/* Remembered epochs of the objects that are looked at, to see that none goes back. */
struct watch {
	uint64_t id;
	uint32_t epoch, tenure;
};

static void check_objects(struct run *r, struct watch *w, size_t count)
{
	const struct map *m = kit_map(&r->k);

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < MIN(v->objects, 4u); i++) {
			struct map_object *o = &v->object[i];
			struct watch *at = &w[hash_u64(o->id) % count];

			EXPECT(map_in_count(o) >= 1);
			EXPECT(o->primary < o->member_count);
			EXPECT(o->tenure <= o->epoch);
			for (unsigned k = 0; k < o->member_count; k++)
				EXPECT(!o->member[k].in || !o->member[k].kept);
			for (unsigned k = 0; k < o->member_count; k++)
				for (unsigned j = 0; j < k; j++)
					EXPECT(o->member[k].group != o->member[j].group ||
					       o->member[k].group_incarnation !=
						       o->member[j].group_incarnation);
			if (at->id == o->id)
				EXPECT(o->epoch >= at->epoch && o->tenure >= at->tenure);
			*at = (struct watch){o->id, o->epoch, o->tenure};
		}
	}
}

static void run_init(struct run *r, uint64_t seed)
{
	r->seed = seed;
	rng_seed(&r->rng, seed);
	kit_init(&r->k, 4);
	r->cmd = writer_init_heap();
}

static void run_fini(struct run *r)
{
	kit_fini(&r->k);
	writer_free(&r->cmd);
}

TEST(random, two_states_agree_with_snapshots_in_between)
{
	static struct watch w[512];
	unsigned done = 0, refused = 0;

	for (uint64_t seed = 1; seed <= 6; seed++) {
		struct run r;
		struct state *twin = state_create();
		struct command_result *out = xcalloc(1, sizeof(*out));
		struct writer snap = writer_init_heap();

		memset(w, 0, sizeof(w));
		run_init(&r, seed);
		state_snapshot(r.k.s, &snap);
		EXPECT_OK(state_restore(twin, snap.data, snap.len));
		for (unsigned i = 0; i < 2000; i++) {
			random_command(&r);
			state_apply(r.k.s, ++r.k.index, r.cmd.data, r.cmd.len, &r.k.out, NULL,
				    NULL);
			state_apply(twin, r.k.index, r.cmd.data, r.cmd.len, out, NULL, NULL);
			EXPECT_EQ(out->code, r.k.out.code);
			EXPECT_EQ(out->id, r.k.out.id);
			EXPECT_STR(out->text, r.k.out.text);
			EXPECT_EQ(out->count, r.k.out.count);
			EXPECT_MEM(out->object, r.k.out.object, out->count);
			for (unsigned k = 0; k < out->count; k++)
				*(out->object[k] ? &refused : &done) += 1;
			check_objects(&r, w, ARRAY_LEN(w));
			if (below(&r, 40))
				continue;
			if (state_digest(twin) != state_digest(r.k.s))
				test_failed(__FILE__, __LINE__, "seed %llu step %u: states differ",
					    (unsigned long long)seed, i);
			snap.len = 0;
			state_snapshot(r.k.s, &snap);
			EXPECT_OK(state_restore(twin, snap.data, snap.len));
		}
		EXPECT(state_digest(twin) == state_digest(r.k.s));
		writer_free(&snap);
		state_destroy(twin);
		free(out);
		run_fini(&r);
	}
	EXPECT(done > 1000 && refused > 1000); /* the sequences reach both sides */
}

/* Equality of two maps, by their full encodings. */
static void expect_same_map(const struct map *a, const struct map *b, uint64_t seed)
{
	struct writer wa = writer_init_heap(), wb = writer_init_heap();

	map_delta_encode(a, 0, NULL, 0, &wa);
	map_delta_encode(b, 0, NULL, 0, &wb);
	if (wa.len != wb.len || memcmp(wa.data, wb.data, wa.len))
		test_failed(__FILE__, __LINE__, "seed %llu: the subscriber's map differs",
			    (unsigned long long)seed);
	writer_free(&wa);
	writer_free(&wb);
}

TEST(random, a_subscriber_with_any_delta_points_has_the_same_map)
{
	for (uint64_t seed = 100; seed < 106; seed++) {
		struct run r;
		struct map m[3]; /* often, seldom, and one that resumes from old versions */
		struct writer w = writer_init_heap();

		run_init(&r, seed);
		for (unsigned i = 0; i < 3; i++)
			map_init(&m[i]);
		for (unsigned i = 0; i < 1500; i++) {
			random_command(&r);
			state_apply(r.k.s, ++r.k.index, r.cmd.data, r.cmd.len, &r.k.out, NULL,
				    NULL);
			if (below(&r, 300) == 0) { /* the state itself restarts from a snapshot */
				struct writer snap = writer_init_heap();

				state_snapshot(r.k.s, &snap);
				EXPECT_OK(state_restore(r.k.s, snap.data, snap.len));
				writer_free(&snap);
			}
			for (unsigned k = 0; k < 3; k++) {
				uint64_t from = m[k].version;
				struct reader rd;

				if (below(&r, k == 0 ? 2 : 60))
					continue;
				if (k == 2 && from > 50)
					from -= below(&r, 50);
				w.len = 0;
				state_delta(r.k.s, from, &w);
				rd = reader_init(w.data, w.len);
				EXPECT_OK(map_delta_apply(&m[k], &rd, NULL, NULL));
				EXPECT(reader_done(&rd));
				expect_same_map(&m[k], kit_map(&r.k), seed);
			}
		}
		for (unsigned i = 0; i < 3; i++)
			map_fini(&m[i]);
		writer_free(&w);
		run_fini(&r);
	}
}

TEST(random, mutated_commands_never_crash)
{
	struct run r;

	run_init(&r, 77);
	for (unsigned i = 0; i < 20000; i++) {
		size_t len;

		random_command(&r);
		len = r.cmd.len;
		for (uint64_t n = below(&r, 4); n; n--)
			r.cmd.data[below(&r, len)] ^= (uint8_t)(1u << below(&r, 8));
		if (!below(&r, 4))
			len = below(&r, len + 1);
		state_apply(r.k.s, ++r.k.index, r.cmd.data, len, &r.k.out, NULL, NULL);
	}
	EXPECT(state_digest(r.k.s) != 0);
	run_fini(&r);
}
