/* SPDX-License-Identifier: Apache-2.0 */
/* Record codecs and deltas of the map (formats: map.h). A delta is read twice: once to validate all
 * of it, then to take it, so that a damaged one never leaves half a change behind. */
#include "cluster/map_codec.h"
#include "node/base/err.h"

#include <stdlib.h>

void map_uuid_write(struct writer *w, const struct uuid *u)
{
	write_bytes(w, u->b, sizeof(u->b));
}

void map_uuid_read(struct reader *r, struct uuid *u)
{
	read_copy(r, u->b, sizeof(u->b));
}

void map_node_write(struct writer *w, const struct map_node *n)
{
	write_u16(w, n->id);
	map_uuid_write(w, &n->uuid);
	write_str(w, n->name);
	write_str(w, n->fault_set);
	write_str(w, n->address);
	write_str(w, n->admin);
	write_u32(w, n->incarnation);
	write_u16(w, n->shards);
	write_u8(w, n->roles);
	write_u8(w, n->state);
	write_u8(w, n->version_major);
	write_u8(w, n->version_minor);
}

void map_node_read(struct reader *r, struct map_node *n)
{
	n->id = read_u16(r);
	map_uuid_read(r, &n->uuid);
	read_str(r, n->name, sizeof(n->name));
	read_str(r, n->fault_set, sizeof(n->fault_set));
	read_str(r, n->address, sizeof(n->address));
	read_str(r, n->admin, sizeof(n->admin));
	n->incarnation = read_u32(r);
	n->shards = read_u16(r);
	n->roles = read_u8(r);
	n->state = read_u8(r);
	n->version_major = read_u8(r);
	n->version_minor = read_u8(r);
	if (n->shards && !is_pow2(n->shards))
		r->bad = true;
}

void map_maintenance_write(struct writer *w, const struct map_node *n)
{
	write_u64(w, n->maintenance_since_ms);
	write_u64(w, n->maintenance_until_ms);
	write_str(w, n->maintenance_reason);
	write_u8(w, n->awaited);
}

void map_maintenance_read(struct reader *r, struct map_node *n)
{
	n->maintenance_since_ms = read_u64(r);
	n->maintenance_until_ms = read_u64(r);
	read_str(r, n->maintenance_reason, sizeof(n->maintenance_reason));
	n->awaited = read_u8(r) != 0;
}

void map_group_write(struct writer *w, const struct map_group *g)
{
	write_u16(w, g->id);
	write_u16(w, g->node);
	map_uuid_write(w, &g->uuid);
	write_u32(w, g->incarnation);
	write_u8(w, g->state);
	write_u8(w, g->free_steps);
	write_u64(w, g->raw_bytes);
}

void map_group_read(struct reader *r, struct map_group *g)
{
	g->id = read_u16(r);
	g->node = read_u16(r);
	map_uuid_read(r, &g->uuid);
	g->incarnation = read_u32(r);
	g->state = read_u8(r);
	g->free_steps = read_u8(r);
	g->raw_bytes = read_u64(r);
}

void map_volume_write(struct writer *w, const struct map_volume *v)
{
	write_u32(w, v->id);
	map_uuid_write(w, &v->uuid);
	write_str(w, v->name);
	write_u64(w, v->size);
	write_u64(w, v->object_size);
	write_u32(w, v->stripe_count);
	write_u32(w, v->objects);
	write_u8(w, v->copies);
	write_u8(w, v->min_in_sync);
	write_u8(w, v->flags);
	write_u8(w, v->state);
	write_u32(w, v->attach_epoch);
}

void map_volume_read(struct reader *r, struct map_volume *v, bool strict)
{
	v->id = read_u32(r);
	map_uuid_read(r, &v->uuid);
	read_str(r, v->name, sizeof(v->name));
	v->size = read_u64(r);
	v->object_size = read_u64(r);
	v->stripe_count = read_u32(r);
	v->objects = read_u32(r);
	v->copies = read_u8(r);
	v->min_in_sync = read_u8(r);
	v->flags = read_u8(r);
	v->state = read_u8(r);
	v->attach_epoch = read_u32(r);
	/* What the address formula and array sizes rely on. */
	if (strict && (!is_pow2(v->object_size) || v->object_size < OBJECT_SIZE_MIN ||
		       v->object_size > OBJECT_SIZE_MAX || !v->stripe_count ||
		       v->stripe_count > STRIPE_COUNT_MAX || v->size > VOLUME_SIZE_MAX ||
		       v->objects > OBJECTS_MAX ||
		       v->objects != volume_objects_for(v->size, v->object_size, v->stripe_count)))
		r->bad = true;
}

void map_object_write(struct writer *w, const struct map_object *o)
{
	uint8_t in = 0, filled = 0, kept = 0;

	for (unsigned i = 0; i < o->member_count; i++) {
		in |= (uint8_t)(o->member[i].in << i);
		filled |= (uint8_t)(o->member[i].filled << i);
		kept |= (uint8_t)(o->member[i].kept << i);
	}
	write_u32(w, o->epoch);
	write_u32(w, o->tenure);
	write_u32(w, o->primary_incarnation);
	write_u8(w, (uint8_t)(o->member_count | o->primary << 4));
	write_u8(w, in);
	for (unsigned i = 0; i < o->member_count; i++) {
		write_u16(w, o->member[i].group);
		write_u32(w, o->member[i].group_incarnation);
		write_u32(w, o->member[i].gen);
	}
	write_u8(w, filled);
	write_u8(w, (uint8_t)(kept | o->undecided << 6 | o->unsure << 7));
}

void map_object_read(struct reader *r, struct map_object *o)
{
	uint8_t counts, in, filled, kept;

	o->epoch = read_u32(r);
	o->tenure = read_u32(r);
	o->primary_incarnation = read_u32(r);
	counts = read_u8(r);
	in = read_u8(r);
	o->member_count = counts & 15;
	o->primary = counts >> 4;
	if (o->member_count > MEMBERS_MAX || o->primary >= o->member_count) {
		r->bad = true;
		o->member_count = o->primary = 0;
	}
	for (unsigned i = 0; i < o->member_count; i++) {
		o->member[i].group = read_u16(r);
		o->member[i].group_incarnation = read_u32(r);
		o->member[i].gen = read_u32(r);
		o->member[i].in = in >> i & 1;
	}
	filled = read_u8(r);
	kept = read_u8(r);
	for (unsigned i = 0; i < o->member_count; i++) {
		o->member[i].filled = filled >> i & 1;
		o->member[i].kept = kept >> i & 1;
	}
	o->undecided = kept >> 6 & 1;
	o->unsure = kept >> 7;
	kept &= (1u << MEMBERS_MAX) - 1;
	if (in & kept || (o->undecided && !kept))
		r->bad = true;
}

void map_attachment_write(struct writer *w, const struct map_attachment *a)
{
	write_u32(w, a->id);
	write_u32(w, a->volume);
	write_u32(w, a->epoch);
	write_u8(w, a->mode);
	write_u8(w, a->revoked);
	write_str(w, a->holder);
}

void map_attachment_read(struct reader *r, struct map_attachment *a)
{
	a->id = read_u32(r);
	a->volume = read_u32(r);
	a->epoch = read_u32(r);
	a->mode = read_u8(r);
	a->revoked = read_u8(r) != 0;
	read_str(r, a->holder, sizeof(a->holder));
}

/* Encoding. */

static size_t record_begin(struct writer *w, enum map_record kind)
{
	write_u8(w, kind);
	write_u32(w, 0);
	return w->len;
}

static void record_end(struct writer *w, size_t start)
{
	if (!w->bad)
		put_le32(w->data + start - 4, (uint32_t)(w->len - start));
}

static void encode_volume(const struct map_volume *v, struct writer *w)
{
	size_t at = record_begin(w, MAP_REC_VOLUME);

	map_volume_write(w, v);
	write_u32(w, v->reduce);
	record_end(w, at);
}

static void encode_objects(const struct map_volume *v, uint64_t from, struct writer *w)
{
	for (uint32_t i = 0; i < v->objects; i++) {
		size_t at;

		if ((from && v->object[i].changed <= from) || !v->object[i].member_count)
			continue;
		at = record_begin(w, MAP_REC_OBJECT);
		write_u64(w, v->object[i].id);
		map_object_write(w, &v->object[i]);
		record_end(w, at);
	}
}

void map_delta_encode(const struct map *m, uint64_t from, const uint64_t *gone, unsigned gone_count,
		      struct writer *w)
{
	struct map_node **node;
	struct map_group **group;
	struct map_volume **volume;
	struct map_attachment **attachment;
	size_t nodes, groups, volumes, attachments, at;

	write_u64(w, from);
	write_u64(w, m->version);
	write_u8(w, from == 0);
	map_uuid_write(w, &m->cluster);
	write_u32(w, m->next_volume);
	write_u32(w, m->next_attachment);
	write_u16(w, m->next_node);
	write_u16(w, m->next_group);

	node = map_nodes_sorted(m, &nodes);
	for (size_t i = 0; i < nodes; i++) {
		if (from && node[i]->changed <= from)
			continue;
		at = record_begin(w, MAP_REC_NODE);
		map_node_write(w, node[i]);
		map_maintenance_write(w, node[i]);
		record_end(w, at);
	}
	group = map_groups_sorted(m, &groups);
	for (size_t i = 0; i < groups; i++) {
		if (from && group[i]->changed <= from)
			continue;
		at = record_begin(w, MAP_REC_GROUP);
		map_group_write(w, group[i]);
		record_end(w, at);
	}
	for (unsigned i = 0; from && i < gone_count; i++) {
		at = record_begin(w, (enum map_record)(gone[i] >> 32));
		write_u32(w, (uint32_t)gone[i]);
		record_end(w, at);
	}
	volume = map_volumes_sorted(m, &volumes);
	for (size_t i = 0; i < volumes; i++)
		if (!from || volume[i]->changed > from)
			encode_volume(volume[i], w);
	for (size_t i = 0; i < volumes; i++)
		if (!from || volume[i]->objects_changed > from)
			encode_objects(volume[i], from, w);
	attachment = map_attachments_sorted(m, &attachments);
	for (size_t i = 0; i < attachments; i++) {
		if (from && attachment[i]->changed <= from)
			continue;
		at = record_begin(w, MAP_REC_ATTACHMENT);
		map_attachment_write(w, attachment[i]);
		write_u32(w, attachment[i]->ttl_ms);
		record_end(w, at);
	}
	if (!from || m->limits.changed > from) {
		at = record_begin(w, MAP_REC_LIMITS);
		write_u32(w, m->limits.floor_mib);
		write_u32(w, m->limits.limit_mib);
		record_end(w, at);
	}
	free(node);
	free(group);
	free(volume);
	free(attachment);
}

/* Applying. */

struct record {
	uint8_t kind;
	uint32_t gone;
	uint64_t object;
	struct map_node node;
	struct map_group group;
	struct map_volume volume;
	struct map_object obj;
	struct map_attachment attachment;
	struct map_limits limits;
};

/* Fields after those known here are a later version's: not read. */
static bool record_read(struct reader *r, struct record *rec)
{
	struct reader f;
	uint32_t len;
	const void *p;

	rec->kind = read_u8(r);
	len = read_u32(r);
	p = read_bytes(r, len);
	if (!p)
		return false;
	f = reader_init(p, len);
	switch (rec->kind) {
	case MAP_REC_NODE:
		map_node_read(&f, &rec->node);
		if (reader_left(&f)) /* an older node does not say */
			map_maintenance_read(&f, &rec->node);
		break;
	case MAP_REC_GROUP:
		map_group_read(&f, &rec->group);
		break;
	case MAP_REC_VOLUME:
		map_volume_read(&f, &rec->volume, true);
		if (reader_left(&f) >= 4) /* an older node does not say */
			rec->volume.reduce = read_u32(&f);
		break;
	case MAP_REC_OBJECT:
		rec->object = read_u64(&f);
		map_object_read(&f, &rec->obj);
		break;
	case MAP_REC_ATTACHMENT:
		map_attachment_read(&f, &rec->attachment);
		if (reader_left(&f) >= 4) /* an older node does not say */
			rec->attachment.ttl_ms = read_u32(&f);
		break;
	case MAP_REC_VOLUME_GONE:
	case MAP_REC_ATTACHMENT_GONE:
		rec->gone = read_u32(&f);
		break;
	case MAP_REC_LIMITS:
		rec->limits.floor_mib = read_u32(&f);
		rec->limits.limit_mib = read_u32(&f);
		break;
	}
	return !f.bad;
}

struct taker {
	struct map *m;
	uint64_t to;
	void (*changed)(void *arg, enum map_record kind, uint64_t id);
	void *arg;
};

static void tell(const struct taker *t, enum map_record kind, uint64_t id)
{
	if (t->changed)
		t->changed(t->arg, kind, id);
}

static void take_volume(struct taker *t, const struct map_volume *in)
{
	struct map_volume *v = map_volume_put(t->m, in->id), copy = *in;

	/* Volumes only grow; a smaller count would be an older record, and objects are never cut.
	 */
	map_volume_grow(v, in->objects);
	copy.by_id = v->by_id;
	copy.objects = v->objects;
	copy.object = v->object;
	copy.objects_changed = v->objects_changed;
	copy.changed = t->to;
	*v = copy;
	tell(t, MAP_REC_VOLUME, in->id);
}

static void take_object(struct taker *t, uint64_t id, const struct map_object *in)
{
	struct map_object *o = map_object(t->m, id);

	if (!o || o->epoch > in->epoch)
		return; /* no such volume (yet): its volume record comes before it in any sound
			   delta */
	*o = *in;
	o->id = id;
	o->changed = t->to;
	map_volume(t->m, object_volume(id))->objects_changed = t->to;
	tell(t, MAP_REC_OBJECT, id);
}

static void volume_gone(struct taker *t, uint32_t id)
{
	struct map_volume *v = map_volume(t->m, id);

	if (!v)
		return;
	map_volume_drop(t->m, v);
	tell(t, MAP_REC_VOLUME_GONE, id);
}

static void attachment_gone(struct taker *t, uint32_t id)
{
	struct map_attachment *a = map_attachment(t->m, id);

	if (!a)
		return;
	map_attachment_drop(t->m, a);
	tell(t, MAP_REC_ATTACHMENT_GONE, id);
}

/* Copies a record over the map's one, keeping the table's link. */
#define TAKE(put, in)                                                                              \
	do {                                                                                       \
		__typeof__(put) to_ = (put);                                                       \
		struct hnode link_ = to_->by_id;                                                   \
		*to_ = (in);                                                                       \
		to_->by_id = link_;                                                                \
		to_->changed = t->to;                                                              \
	} while (0)

static void take(struct taker *t, struct record *rec)
{
	switch (rec->kind) {
	case MAP_REC_NODE:
		TAKE(map_node_put(t->m, rec->node.id), rec->node);
		tell(t, MAP_REC_NODE, rec->node.id);
		break;
	case MAP_REC_GROUP:
		TAKE(map_group_put(t->m, rec->group.id), rec->group);
		tell(t, MAP_REC_GROUP, rec->group.id);
		break;
	case MAP_REC_VOLUME:
		take_volume(t, &rec->volume);
		break;
	case MAP_REC_OBJECT:
		take_object(t, rec->object, &rec->obj);
		break;
	case MAP_REC_ATTACHMENT:
		TAKE(map_attachment_put(t->m, rec->attachment.id), rec->attachment);
		tell(t, MAP_REC_ATTACHMENT, rec->attachment.id);
		break;
	case MAP_REC_VOLUME_GONE:
		volume_gone(t, rec->gone);
		break;
	case MAP_REC_ATTACHMENT_GONE:
		attachment_gone(t, rec->gone);
		break;
	case MAP_REC_LIMITS:
		t->m->limits = rec->limits;
		t->m->limits.changed = t->to;
		tell(t, MAP_REC_LIMITS, 0);
		break;
	}
}

/* A full delta names everything there is: volumes and attachments that it does not name are gone.
 * (Nodes and groups keep their records for ever.) */
static void drop_unnamed(struct taker *t)
{
	size_t volumes, attachments;
	struct map_volume **v = map_volumes_sorted(t->m, &volumes);
	struct map_attachment **a = map_attachments_sorted(t->m, &attachments);

	for (size_t i = 0; i < volumes; i++)
		if (v[i]->changed != t->to)
			volume_gone(t, v[i]->id);
	for (size_t i = 0; i < attachments; i++)
		if (a[i]->changed != t->to)
			attachment_gone(t, a[i]->id);
	free(v);
	free(a);
}

static void unname_all(struct map *m)
{
	for (struct hnode *n = hmap_walk(&m->volumes, NULL); n; n = hmap_walk(&m->volumes, n))
		container_of(n, struct map_volume, by_id)->changed = UINT64_MAX;
	for (struct hnode *n = hmap_walk(&m->attachments, NULL); n;
	     n = hmap_walk(&m->attachments, n))
		container_of(n, struct map_attachment, by_id)->changed = UINT64_MAX;
}

int map_delta_apply(struct map *m, struct reader *r,
		    void (*changed)(void *arg, enum map_record kind, uint64_t id), void *arg)
{
	struct taker t = {.m = m, .changed = changed, .arg = arg};
	struct record *rec;
	struct reader check;
	struct map head;
	uint64_t from;
	bool full;

	from = read_u64(r);
	t.to = read_u64(r);
	full = read_u8(r) != 0;
	map_uuid_read(r, &head.cluster);
	head.next_volume = read_u32(r);
	head.next_attachment = read_u32(r);
	head.next_node = read_u16(r);
	head.next_group = read_u16(r);
	if (r->bad)
		return -ERR_PROTOCOL;
	if (!uuid_is_nil(&m->cluster) && !uuid_equal(&m->cluster, &head.cluster))
		return -ERR_FOREIGN;
	if (!full && from > m->version)
		return -ERR_STALE;
	rec = xcalloc(1, sizeof(*rec));
	check = *r;
	while (!check.bad && reader_left(&check))
		if (!record_read(&check, rec))
			check.bad = true;
	if (check.bad) {
		free(rec);
		return -ERR_PROTOCOL;
	}
	/* Not newer: known already. (A map of version 0 is empty and takes even an empty one.) */
	if (t.to < m->version || (t.to == m->version && t.to)) {
		free(rec);
		r->p = r->end;
		return 0;
	}
	m->cluster = head.cluster;
	m->next_volume = head.next_volume;
	m->next_attachment = head.next_attachment;
	m->next_node = head.next_node;
	m->next_group = head.next_group;
	m->version = t.to;
	if (full)
		unname_all(m);
	while (reader_left(r)) {
		memset(rec, 0, sizeof(*rec));
		CHECK(record_read(r, rec));
		take(&t, rec);
	}
	if (full)
		drop_unnamed(&t);
	free(rec);
	return 0;
}
