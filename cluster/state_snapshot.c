/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of the state machine. Little-endian, frozen by tests/state; str = u16 length and bytes:
 *
 *   u32 magic "ASHS", u16 format 5, u16 recoveries, u64 map version, uuid cluster, str cluster name,
 *   u32 next volume, u32 next attachment, u16 next node, u16 next group,
 *   u16 nodes × (NODE with its maintenance), u16 groups × GROUP,
 *   u32 volumes × (VOLUME, u32 reduce, objects × OBJECT without id),
 *   u32 attachments × (ATTACHMENT, u32 ttl ms, u64 renewed ms)  (fields: map.h), each ascending by id,
 *   u16 tokens × (str sha256, u64 expires ms), u16 settings × (str key, str value), by key,
 *   u64 events ever, u16 events × (u64 index, u64 time ms, u8 severity, str code, str text, str
 * actor), oldest first,
 *   u32 next job, u16 jobs × (u32 id, u8 kind, u8 state, u16 node, u16 group, u32 incarnation,
 *   u32 total, u64 started ms, u64 changed ms, str actor, str note), ascending by id.
 *
 * Formats 1 to 4 were never released: they are refused.
 *
 * What deltas need (record versions, what is gone) is not state: nodes that restored at different
 * points must have the same bytes. */
#include "cluster/state_impl.h"

#include <stdlib.h>

#define SNAPSHOT_MAGIC  0x53485341u
#define SNAPSHOT_FORMAT 5u

static void write_volumes(const struct map *m, struct writer *w)
{
	size_t count;
	struct map_volume **v = map_volumes_sorted(m, &count);

	write_u32(w, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		map_volume_write(w, v[i]);
		write_u32(w, v[i]->reduce);
		for (uint32_t k = 0; k < v[i]->objects; k++)
			map_object_write(w, &v[i]->object[k]);
	}
	free(v);
}

static void write_map(const struct map *m, struct writer *w)
{
	size_t count;
	struct map_node **n = map_nodes_sorted(m, &count);
	struct map_group **g;
	struct map_attachment **a;

	write_u16(w, (uint16_t)count);
	for (size_t i = 0; i < count; i++) {
		map_node_write(w, n[i]);
		map_maintenance_write(w, n[i]);
	}
	g = map_groups_sorted(m, &count);
	write_u16(w, (uint16_t)count);
	for (size_t i = 0; i < count; i++)
		map_group_write(w, g[i]);
	write_volumes(m, w);
	a = map_attachments_sorted(m, &count);
	write_u32(w, (uint32_t)count);
	for (size_t i = 0; i < count; i++) {
		map_attachment_write(w, a[i]);
		write_u32(w, a[i]->ttl_ms);
		write_u64(w, a[i]->renewed_ms);
	}
	free(n);
	free(g);
	free(a);
}

static void write_jobs(const struct state *s, struct writer *w)
{
	write_u32(w, s->next_job);
	write_u16(w, (uint16_t)s->job_count);
	for (unsigned i = 0; i < s->job_count; i++) {
		const struct state_job *j = &s->job[i];

		write_u32(w, j->id);
		write_u8(w, j->kind);
		write_u8(w, j->state);
		write_u16(w, j->node);
		write_u16(w, j->group);
		write_u32(w, j->incarnation);
		write_u32(w, j->total);
		write_u64(w, j->started_ms);
		write_u64(w, j->changed_ms);
		write_str(w, j->actor);
		write_str(w, j->note);
	}
}

void state_snapshot(const struct state *s, struct writer *w)
{
	unsigned events = (unsigned)MIN(s->events, (uint64_t)STATE_EVENTS);

	write_u32(w, SNAPSHOT_MAGIC);
	write_u16(w, SNAPSHOT_FORMAT);
	write_u16(w, s->recoveries);
	write_u64(w, s->map.version);
	map_uuid_write(w, &s->map.cluster);
	write_str(w, s->name);
	write_u32(w, s->map.next_volume);
	write_u32(w, s->map.next_attachment);
	write_u16(w, s->map.next_node);
	write_u16(w, s->map.next_group);
	write_map(&s->map, w);
	write_u16(w, (uint16_t)s->token_count);
	for (unsigned i = 0; i < s->token_count; i++) {
		write_str(w, s->token[i].sha256);
		write_u64(w, s->token[i].expires_ms);
	}
	write_u16(w, (uint16_t)s->setting_count);
	for (unsigned i = 0; i < s->setting_count; i++) {
		write_str(w, s->setting[i].key);
		write_str(w, s->setting[i].value);
	}
	write_u64(w, s->events);
	write_u16(w, (uint16_t)events);
	for (uint64_t i = s->events - events; i < s->events; i++) {
		const struct state_event *e = &s->event[i % STATE_EVENTS];

		write_u64(w, e->index);
		write_u64(w, e->time_ms);
		write_u8(w, e->severity);
		write_str(w, e->code);
		write_str(w, e->text);
		write_str(w, e->actor);
	}
	write_jobs(s, w);
}

/* Restore. Ids must ascend, which also keeps a damaged snapshot from naming a record twice. */

static void read_nodes(struct reader *r, struct map *m)
{
	unsigned last = 0, count = read_u16(r);

	for (unsigned i = 0; i < count && !r->bad; i++) {
		struct map_node in = {0}, *n;

		map_node_read(r, &in);
		map_maintenance_read(r, &in);
		if (r->bad || in.id <= last || in.id >= m->next_node) {
			r->bad = true;
			return;
		}
		last = in.id;
		n = map_node_put(m, in.id);
		in.by_id = n->by_id;
		in.changed = m->version;
		*n = in;
	}
}

static void read_groups(struct reader *r, struct map *m)
{
	unsigned last = 0, count = read_u16(r);

	for (unsigned i = 0; i < count && !r->bad; i++) {
		struct map_group in = {0}, *g;

		map_group_read(r, &in);
		if (r->bad || in.id <= last || in.id >= m->next_group || !map_node(m, in.node)) {
			r->bad = true;
			return;
		}
		last = in.id;
		g = map_group_put(m, in.id);
		in.by_id = g->by_id;
		in.changed = m->version;
		*g = in;
	}
}

static void read_objects(struct reader *r, struct state *s, struct map_volume *v)
{
	for (uint32_t i = 0; i < v->objects && !r->bad; i++) {
		struct map_object *o = &v->object[i];

		map_object_read(r, o);
		o->changed = s->map.version;
		s->members += o->member_count;
		if (!map_in_count(o))
			r->bad = true;
	}
	v->objects_changed = s->map.version;
	s->objects += v->objects;
}

static void read_volumes(struct reader *r, struct state *s)
{
	uint32_t last = 0, count = read_u32(r);

	for (uint32_t i = 0; i < count && !r->bad; i++) {
		struct map_volume in = {0}, *v;
		uint32_t objects;

		map_volume_read(r, &in, true);
		in.reduce = read_u32(r);
		if (r->bad || in.id <= last || in.id >= s->map.next_volume || in.copies < 1 ||
		    in.copies > COPIES_MAX || s->objects + in.objects > OBJECTS_MAX) {
			r->bad = true;
			return;
		}
		last = in.id;
		objects = in.objects;
		v = map_volume_put(&s->map, in.id);
		in.by_id = v->by_id;
		in.objects = 0;
		in.changed = s->map.version;
		*v = in;
		map_volume_grow(v, objects);
		read_objects(r, s, v);
	}
}

static void read_attachments(struct reader *r, struct state *s)
{
	uint32_t last = 0, count = read_u32(r);

	for (uint32_t i = 0; i < count && !r->bad; i++) {
		struct map_attachment in = {0}, *a;

		map_attachment_read(r, &in);
		in.ttl_ms = read_u32(r);
		in.renewed_ms = read_u64(r);
		if (r->bad || in.id <= last || in.id >= s->map.next_attachment) {
			r->bad = true;
			return;
		}
		last = in.id;
		a = map_attachment_put(&s->map, in.id);
		in.by_id = a->by_id;
		in.changed = s->map.version;
		*a = in;
		*(a->revoked ? &s->revoked_attachments : &s->live_attachments) += 1;
	}
}

static void read_rest(struct reader *r, struct state *s)
{
	unsigned events;

	s->token_count = read_u16(r);
	if (s->token_count > STATE_TOKENS)
		goto bad;
	for (unsigned i = 0; i < s->token_count; i++) {
		read_str(r, s->token[i].sha256, sizeof(s->token[i].sha256));
		s->token[i].expires_ms = read_u64(r);
	}
	s->setting_count = read_u16(r);
	if (s->setting_count > STATE_SETTINGS)
		goto bad;
	for (unsigned i = 0; i < s->setting_count; i++) {
		read_str(r, s->setting[i].key, sizeof(s->setting[i].key));
		read_str(r, s->setting[i].value, sizeof(s->setting[i].value));
	}
	s->events = read_u64(r);
	events = read_u16(r);
	if (events != MIN(s->events, (uint64_t)STATE_EVENTS))
		goto bad;
	for (uint64_t i = s->events - events; i < s->events; i++) {
		struct state_event *e = &s->event[i % STATE_EVENTS];

		e->index = read_u64(r);
		e->time_ms = read_u64(r);
		e->severity = read_u8(r);
		read_str(r, e->code, sizeof(e->code));
		read_str(r, e->text, sizeof(e->text));
		read_str(r, e->actor, sizeof(e->actor));
	}
	return;
bad:
	s->token_count = s->setting_count = 0;
	r->bad = true;
}

static void read_jobs(struct reader *r, struct state *s)
{
	uint32_t last = 0;
	unsigned count;

	s->next_job = read_u32(r);
	count = read_u16(r);
	if (count > STATE_JOBS)
		r->bad = true;
	for (unsigned i = 0; i < count && !r->bad; i++) {
		struct state_job *j = &s->job[i];

		j->id = read_u32(r);
		j->kind = read_u8(r);
		j->state = read_u8(r);
		j->node = read_u16(r);
		j->group = read_u16(r);
		j->incarnation = read_u32(r);
		j->total = read_u32(r);
		j->started_ms = read_u64(r);
		j->changed_ms = read_u64(r);
		read_str(r, j->actor, sizeof(j->actor));
		read_str(r, j->note, sizeof(j->note));
		if (j->id <= last || j->id >= s->next_job)
			r->bad = true;
		last = j->id;
		s->job_count = i + 1;
	}
}

int state_restore(struct state *s, const void *data, size_t len)
{
	struct reader r = reader_init(data, len);
	struct state *in;
	uint32_t magic = read_u32(&r);
	uint16_t format = read_u16(&r), recoveries = read_u16(&r);

	if (r.bad || magic != SNAPSHOT_MAGIC)
		return -ERR_PROTOCOL;
	if (format != SNAPSHOT_FORMAT)
		return -ERR_VERSION;
	in = state_create();
	in->recoveries = recoveries;
	in->map.version = read_u64(&r);
	map_uuid_read(&r, &in->map.cluster);
	read_str(&r, in->name, sizeof(in->name));
	in->map.next_volume = read_u32(&r);
	in->map.next_attachment = read_u32(&r);
	in->map.next_node = read_u16(&r);
	in->map.next_group = read_u16(&r);
	read_nodes(&r, &in->map);
	read_groups(&r, &in->map);
	read_volumes(&r, in);
	read_attachments(&r, in);
	read_rest(&r, in);
	read_jobs(&r, in);
	if (!reader_done(&r)) {
		state_destroy(in);
		return -ERR_PROTOCOL;
	}
	state_limits_update(in);
	in->map.limits.changed = in->map.version;
	in->floor = in->map.version; /* nothing is known of what went before it */
	map_fini(&s->map);
	*s = *in;
	free(in);
	return 0;
}
