/* SPDX-License-Identifier: Apache-2.0 */
/* The address formula, geometry, and deltas of the map. */
#include "cluster/map_codec.h"
#include "tests/state/state_kit.h"

/* Every byte of a volume has exactly one place, as map.h says. */
TEST(map, locate_follows_the_formula)
{
	struct map_volume v = {.object_size = 64 << 20, .stripe_count = 4, .size = 1ull << 30};
	uint32_t len = 4096;
	struct volume_place p = volume_locate(&v, 0, &len);

	EXPECT_EQ(p.index, 0);
	EXPECT_EQ(p.offset, 0);
	EXPECT_EQ(len, 4096);
	len = 1 << 20;
	p = volume_locate(&v, (5ull << 20) + 512, &len); /* unit 5: object 1, its second unit */
	EXPECT_EQ(p.index, 1);
	EXPECT_EQ(p.offset, (1 << 20) + 512);
	EXPECT_EQ(len, (1 << 20) - 512); /* cut at the stripe unit */
	len = 4096;
	p = volume_locate(&v, (256ull << 20) + (3 << 20), &len); /* second group of four */
	EXPECT_EQ(p.index, 4 + 3);
	EXPECT_EQ(p.offset, 0);
}

TEST(map, locate_is_a_bijection_on_units)
{
	for (uint32_t c = 1; c <= 5; c++) {
		struct map_volume v = {
			.object_size = 64 << 20, .stripe_count = c, .size = 2ull * c * (64 << 20)};
		static uint8_t seen[10 * 64];

		memset(seen, 0, sizeof(seen));
		for (uint64_t off = 0; off < v.size; off += STRIPE_UNIT) {
			uint32_t len = STRIPE_UNIT;
			struct volume_place p = volume_locate(&v, off, &len);
			uint32_t unit = p.index * 64 + p.offset / STRIPE_UNIT;

			EXPECT(p.index < 2 * c && p.offset < v.object_size);
			EXPECT_EQ(len, STRIPE_UNIT);
			EXPECT(!seen[unit]++);
		}
	}
}

TEST(map, geometry_gives_32_objects_where_it_can)
{
	uint64_t os;
	uint32_t c, n;

	EXPECT_OK(volume_geometry(4096, 3, &os, &c, &n));
	EXPECT(os == OBJECT_SIZE_MIN && c == 3 && n == 3);
	EXPECT_OK(volume_geometry(2ull << 30, 8, &os, &c, &n));
	EXPECT(os == OBJECT_SIZE_MIN && c == 4 && n == 32);
	EXPECT_OK(volume_geometry(100ull << 30, 1, &os, &c, &n));
	EXPECT(os == 2ull << 30 && c == 1 && n == 50);
	EXPECT_OK(volume_geometry(VOLUME_SIZE_MAX, 4, &os, &c, &n));
	EXPECT(os == OBJECT_SIZE_MAX && n == 16384);
	EXPECT_RC(volume_geometry(0, 3, &os, &c, &n), -ERR_LIMIT);
	EXPECT_RC(volume_geometry(VOLUME_SIZE_MAX + 4096, 3, &os, &c, &n), -ERR_LIMIT);
}

/* Deltas. */

static struct writer delta(const struct kit *k, uint64_t from)
{
	struct writer w = writer_init_heap();

	state_delta(k->s, from, &w);
	return w;
}

struct told {
	unsigned count[MAP_REC_LIMITS + 1];
};

static void on_changed(void *arg, enum map_record kind, uint64_t id)
{
	struct told *t = arg;

	t->count[kind]++;
}

static int apply(struct map *m, const struct writer *w, struct told *t)
{
	struct reader r = reader_init(w->data, w->len);

	return map_delta_apply(m, &r, t ? on_changed : NULL, t);
}

TEST(map, delta_names_only_what_changed)
{
	struct told t = {0};
	struct kit k;
	struct map m;
	struct writer w;
	uint64_t at;

	map_init(&m);
	kit_init(&k, 3);
	EXPECT_OK(kit_volume(&k, "a", 1ull << 30, 2));
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, &t));
	EXPECT_EQ(t.count[MAP_REC_NODE], 3);
	EXPECT_EQ(t.count[MAP_REC_GROUP], 3);
	EXPECT_EQ(t.count[MAP_REC_OBJECT], 18);
	writer_free(&w);

	at = m.version;
	EXPECT_OK(kit_group_state(&k, 2, GROUP_ACTIVE, 12, 1));
	EXPECT_OK(kit_volume(&k, "b", 1ull << 30, 1));
	EXPECT_OK(kit_delete(&k, 1));
	memset(&t, 0, sizeof(t));
	w = delta(&k, at);
	EXPECT_OK(apply(&m, &w, &t));
	EXPECT_EQ(t.count[MAP_REC_NODE], 0);
	EXPECT_EQ(t.count[MAP_REC_GROUP], 1);
	EXPECT_EQ(t.count[MAP_REC_VOLUME], 1);
	EXPECT_EQ(t.count[MAP_REC_OBJECT], 18);
	EXPECT_EQ(t.count[MAP_REC_VOLUME_GONE], 1);
	EXPECT(!map_volume(&m, 1) && map_volume_by_name(&m, "b"));

	/* Again: known already, changes nothing and tells nothing. */
	memset(&t, 0, sizeof(t));
	EXPECT_OK(apply(&m, &w, &t));
	for (unsigned i = 0; i < ARRAY_LEN(t.count); i++)
		EXPECT_EQ(t.count[i], 0);
	writer_free(&w);
	map_fini(&m);
	kit_fini(&k);
}

TEST(map, full_delta_removes_what_it_does_not_name)
{
	struct told t = {0};
	struct kit k;
	struct map m;
	struct writer w;

	map_init(&m);
	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "a", 1ull << 30, 2));
	EXPECT_OK(kit_attach(&k, 1, ATTACH_EXCLUSIVE, "h", false));
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, NULL));
	writer_free(&w);
	EXPECT_EQ(map_attachment(&m, 1)->ttl_ms, ATTACH_TTL_MS);
	k.time_ms += ATTACH_TTL_MS;
	EXPECT_OK(kit_delete(&k, 1));
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, &t));
	EXPECT_EQ(t.count[MAP_REC_VOLUME_GONE], 1);
	EXPECT(!map_volume(&m, 1));
	EXPECT(map_attachment(&m, 1)->revoked);
	writer_free(&w);
	map_fini(&m);
	kit_fini(&k);
}

TEST(map, a_gap_or_a_foreign_cluster_is_refused)
{
	struct kit k, other;
	struct map m;
	struct writer w;

	map_init(&m);
	kit_init(&k, 2);
	w = delta(&k, k.index);
	EXPECT_RC(apply(&m, &w, NULL), -ERR_STALE);
	writer_free(&w);
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, NULL));
	writer_free(&w);
	kit_empty(&other);
	EXPECT_OK(kit_cluster(&other, "other", 901));
	w = delta(&other, 0);
	EXPECT_RC(apply(&m, &w, NULL), -ERR_FOREIGN);
	writer_free(&w);
	map_fini(&m);
	kit_fini(&k);
	kit_fini(&other);
}

/* Cut anywhere or with any byte changed, it never crashes, and a refused one changes nothing. */
TEST(map, damaged_deltas_are_refused_whole)
{
	struct kit k;
	struct writer w;

	kit_init(&k, 2);
	EXPECT_OK(kit_volume(&k, "a", 128 << 20, 2));
	w = delta(&k, 0);
	for (size_t cut = 0; cut < w.len; cut++) {
		struct reader r = reader_init(w.data, cut);
		struct map m;

		map_init(&m);
		if (map_delta_apply(&m, &r, NULL, NULL))
			EXPECT(!m.version && !m.nodes.count);
		map_fini(&m);
	}
	for (size_t i = 0; i < w.len; i++) {
		struct reader r = reader_init(w.data, w.len);
		struct map m;

		map_init(&m);
		w.data[i] ^= 0xff;
		if (map_delta_apply(&m, &r, NULL, NULL))
			EXPECT(!m.version && !m.nodes.count);
		w.data[i] ^= 0xff;
		map_fini(&m);
	}
	writer_free(&w);
	kit_fini(&k);
}

TEST(map, later_kinds_and_fields_are_skipped)
{
	struct kit k;
	struct map m;
	struct writer w = writer_init_heap(), old;
	size_t head = 8 + 8 + 1 + 16 + 4 + 4 + 2 + 2;

	map_init(&m);
	kit_init(&k, 1);
	old = delta(&k, 0);
	write_bytes(&w, old.data, head);
	write_u8(&w, 99); /* a kind of a later version */
	write_u32(&w, 3);
	write_bytes(&w, "xyz", 3);
	write_u8(&w, old.data[head]); /* the first record, with a field more */
	write_u32(&w, get_le32(old.data + head + 1) + 2);
	write_bytes(&w, old.data + head + 5, get_le32(old.data + head + 1));
	write_u16(&w, 0xabcd);
	EXPECT_OK(apply(&m, &w, NULL));
	EXPECT_STR(map_node(&m, 1)->name, "n1");
	writer_free(&w);
	writer_free(&old);
	map_fini(&m);
	kit_fini(&k);
}

/* The largest map allowed fits one frame body (4 MiB, net/wire.h). */
TEST(map, the_largest_map_fits_a_frame)
{
	struct map m;
	struct writer w = writer_init_heap();
	char name[NAME_MAX_LEN + 1];

	map_init(&m);
	m.version = 1;
	memset(name, 'x', sizeof(name) - 1);
	name[NAME_MAX_LEN] = 0;
	for (uint16_t i = 1; i <= NODES_MAX; i++)
		strcpy(map_node_put(&m, i)->name, name);
	for (uint16_t i = 1; i <= NODES_MAX * GROUPS_PER_NODE_MAX; i++)
		map_group_put(&m, i);
	for (uint32_t i = 1; i <= VOLUMES_MAX; i++) {
		struct map_volume *v = map_volume_put(&m, i);

		map_volume_grow(v, i == 1 ? OBJECTS_MAX - VOLUMES_MAX + 1 : 1);
		strcpy(v->name, name);
		for (uint32_t k = 0; k < v->objects; k++)
			v->object[k].member_count = MEMBERS_TOTAL_MAX / OBJECTS_MAX;
	}
	for (uint32_t i = 1; i <= ATTACHMENTS_MAX + ATTACHMENTS_REVOKED_MAX; i++)
		memset(map_attachment_put(&m, i)->holder, 'h', 100);
	map_delta_encode(&m, 0, NULL, 0, &w);
	EXPECT(w.len < (4u << 20));
	writer_free(&w);
	map_fini(&m);
}

/* Only the latest deletions are remembered: who is older gets everything, and so loses the volume
 * too. */
TEST(map, a_subscriber_older_than_the_deletions_kept_gets_all)
{
	struct kit k;
	struct map m;
	struct writer w;

	map_init(&m);
	kit_init(&k, 1);
	EXPECT_OK(kit_volume(&k, "old", 4096, 1));
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, NULL));
	writer_free(&w);
	EXPECT_OK(kit_delete(&k, 1));
	for (uint32_t id = 2; id < 302; id++) {
		EXPECT_OK(kit_volume(&k, "v", 4096, 1));
		EXPECT_OK(kit_delete(&k, id));
	}
	w = delta(&k, m.version);
	EXPECT_OK(apply(&m, &w, NULL));
	EXPECT_EQ(m.volumes.count, 0);
	writer_free(&w);
	map_fini(&m);
	kit_fini(&k);
}

TEST(map, an_objects_epoch_never_goes_back)
{
	struct kit k;
	struct map m;
	struct writer w;

	map_init(&m);
	kit_init(&k, 1);
	EXPECT_OK(kit_volume(&k, "v", 4096, 1));
	w = delta(&k, 0);
	EXPECT_OK(apply(&m, &w, NULL));
	map_object(&m, object_id(1, 0))->epoch = 9;
	m.version--;
	EXPECT_OK(apply(&m, &w, NULL));
	EXPECT_EQ(map_object(&m, object_id(1, 0))->epoch, 9);
	writer_free(&w);
	map_fini(&m);
	kit_fini(&k);
}
