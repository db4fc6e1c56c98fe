/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster map: lookups, the address formula and record keeping. Clients link this file, so it
 * may use node/base only: no I/O, no clock, no threads. */
#include "cluster/map_codec.h"
#include "node/base/err.h"

#include <stdio.h>
#include <stdlib.h>

void map_init(struct map *m)
{
	*m = (struct map){.next_volume = 1, .next_attachment = 1, .next_node = 1, .next_group = 1};
	hmap_init(&m->nodes);
	hmap_init(&m->groups);
	hmap_init(&m->volumes);
	hmap_init(&m->attachments);
}

/* Every record struct begins with its hnode, so the node's address is the allocation's. */
static void table_free(struct hmap *t)
{
	struct hnode *n = hmap_walk(t, NULL);

	while (n) {
		struct hnode *next = hmap_walk(t, n);

		hmap_remove(t, n);
		free(n);
		n = next;
	}
	hmap_fini(t);
}

_Static_assert(offsetof(struct map_node, by_id) == 0, "");
_Static_assert(offsetof(struct map_group, by_id) == 0, "");
_Static_assert(offsetof(struct map_volume, by_id) == 0, "");
_Static_assert(offsetof(struct map_attachment, by_id) == 0, "");

void map_fini(struct map *m)
{
	for (struct hnode *n = hmap_walk(&m->volumes, NULL); n; n = hmap_walk(&m->volumes, n))
		free(container_of(n, struct map_volume, by_id)->object);
	table_free(&m->nodes);
	table_free(&m->groups);
	table_free(&m->volumes);
	table_free(&m->attachments);
}

/* Lookup by number in one of the four tables. */
#define MAP_FIND(table, type, number)                                                              \
	do {                                                                                       \
		struct hnode *n_ = hmap_first(&(table), hash_u64(number));                         \
		while (n_ && container_of(n_, struct type, by_id)->id != (number))                 \
			n_ = hmap_next(n_);                                                        \
		return n_ ? container_of(n_, struct type, by_id) : NULL;                           \
	} while (0)

struct map_node *map_node(const struct map *m, uint16_t id)
{
	MAP_FIND(m->nodes, map_node, id);
}

struct map_group *map_group(const struct map *m, uint16_t id)
{
	MAP_FIND(m->groups, map_group, id);
}

struct map_volume *map_volume(const struct map *m, uint32_t id)
{
	MAP_FIND(m->volumes, map_volume, id);
}

bool map_node_in_maintenance(const struct map *m, uint16_t node, uint64_t now_ms)
{
	const struct map_node *n = map_node(m, node);

	return n && now_ms < n->maintenance_until_ms;
}

uint64_t map_attachment_left_ms(const struct map_attachment *a, uint64_t now_ms)
{
	uint64_t end = a->renewed_ms + a->ttl_ms;

	return now_ms < end ? end - now_ms : 0;
}

struct map_attachment *map_attachment(const struct map *m, uint32_t id)
{
	MAP_FIND(m->attachments, map_attachment, id);
}

struct map_object *map_object(const struct map *m, uint64_t id)
{
	struct map_volume *v = map_volume(m, object_volume(id));

	return v && object_index(id) < v->objects ? &v->object[object_index(id)] : NULL;
}

struct map_node *map_node_by_uuid(const struct map *m, const struct uuid *u)
{
	for (struct hnode *n = hmap_walk(&m->nodes, NULL); n; n = hmap_walk(&m->nodes, n)) {
		struct map_node *node = container_of(n, struct map_node, by_id);

		if (uuid_equal(&node->uuid, u))
			return node;
	}
	return NULL;
}

const char *map_fault_set(const struct map_node *n)
{
	return n->fault_set[0] ? n->fault_set : n->name;
}

struct map_node *map_holder_node(const struct map *m, const char *holder)
{
	char text[UUID_TEXT];
	struct uuid u;

	if (strncmp(holder, "node:", 5))
		return NULL;
	snprintf(text, sizeof(text), "%.*s", (int)MIN(strcspn(holder + 5, " "), sizeof(text) - 1),
		 holder + 5);
	return uuid_parse(text, &u) < 0 ? NULL : map_node_by_uuid(m, &u);
}

/* A removed node keeps its record, but its name is free again: live ones are found first. */
struct map_node *map_node_by_name(const struct map *m, const char *name)
{
	struct map_node *found = NULL;
	struct uuid u;

	if (!uuid_parse(name, &u))
		return map_node_by_uuid(m, &u);
	for (struct hnode *n = hmap_walk(&m->nodes, NULL); n; n = hmap_walk(&m->nodes, n)) {
		struct map_node *node = container_of(n, struct map_node, by_id);

		if (strcmp(node->name, name))
			continue;
		if (node->state != NODE_REMOVED)
			return node;
		if (!found || found->id < node->id)
			found = node;
	}
	return found;
}

struct map_volume *map_volume_by_name(const struct map *m, const char *name)
{
	struct uuid u;
	bool by_uuid = !uuid_parse(name, &u);

	for (struct hnode *n = hmap_walk(&m->volumes, NULL); n; n = hmap_walk(&m->volumes, n)) {
		struct map_volume *v = container_of(n, struct map_volume, by_id);

		if (by_uuid ? uuid_equal(&v->uuid, &u) : !strcmp(v->name, name))
			return v;
	}
	return NULL;
}

struct map_node *map_member_node(const struct map *m, const struct map_member *mb)
{
	struct map_group *g = map_group(m, mb->group);

	return g && g->incarnation == mb->group_incarnation ? map_node(m, g->node) : NULL;
}

struct map_node *map_primary_node(const struct map *m, const struct map_object *o)
{
	if (o->primary >= o->member_count || !o->member[o->primary].in)
		return NULL;
	return map_member_node(m, &o->member[o->primary]);
}

bool map_member_awaited(const struct map *m, const struct map_member *mb)
{
	const struct map_node *n = map_member_node(m, mb);

	return mb->filled && !mb->kept && n && n->state == NODE_ACTIVE && n->awaited;
}

bool map_object_awaits(const struct map *m, const struct map_object *o)
{
	for (unsigned i = 0; o->unsure && i < o->member_count; i++)
		if (map_member_awaited(m, &o->member[i]))
			return true;
	return false;
}

unsigned map_in_count(const struct map_object *o)
{
	unsigned n = 0;

	for (unsigned i = 0; i < o->member_count; i++)
		n += o->member[i].in;
	return n;
}

/* Address formula. */

struct volume_place volume_locate(const struct map_volume *v, uint64_t off, uint32_t *len)
{
	uint64_t stripe = v->stripe_count * v->object_size;
	uint64_t group = off / stripe, unit = off % stripe / STRIPE_UNIT;
	uint32_t in_unit = (uint32_t)(off % STRIPE_UNIT);

	*len = MIN(*len, STRIPE_UNIT - in_unit);
	return (struct volume_place){
		.index = (uint32_t)(group * v->stripe_count + unit % v->stripe_count),
		.offset = (uint32_t)(unit / v->stripe_count * STRIPE_UNIT) + in_unit,
	};
}

uint32_t volume_objects_for(uint64_t size, uint64_t object_size, uint32_t stripe_count)
{
	uint64_t stripe = object_size * stripe_count;

	return (uint32_t)((size + stripe - 1) / stripe * stripe_count);
}

int volume_geometry(uint64_t size, unsigned groups, uint64_t *object_size, uint32_t *stripe_count,
		    uint32_t *objects)
{
	uint64_t os = OBJECT_SIZE_MAX;

	if (!size || size > VOLUME_SIZE_MAX)
		return -ERR_LIMIT;
	while (os > OBJECT_SIZE_MIN && size / os < 32)
		os /= 2;
	*object_size = os;
	*stripe_count = MAX(1u, MIN(4u, groups));
	*objects = volume_objects_for(size, os, *stripe_count);
	return *objects > OBJECTS_MAX ? -ERR_LIMIT : 0;
}

/* Record keeping. */

#define MAP_PUT(table, type, find, number)                                                         \
	do {                                                                                       \
		struct type *r_ = find(m, number);                                                 \
		if (r_)                                                                            \
			return r_;                                                                 \
		r_ = xcalloc(1, sizeof(*r_));                                                      \
		r_->id = (number);                                                                 \
		hmap_insert(&(table), &r_->by_id, hash_u64(number));                               \
		return r_;                                                                         \
	} while (0)

struct map_node *map_node_put(struct map *m, uint16_t id)
{
	MAP_PUT(m->nodes, map_node, map_node, id);
}

struct map_group *map_group_put(struct map *m, uint16_t id)
{
	MAP_PUT(m->groups, map_group, map_group, id);
}

struct map_volume *map_volume_put(struct map *m, uint32_t id)
{
	MAP_PUT(m->volumes, map_volume, map_volume, id);
}

struct map_attachment *map_attachment_put(struct map *m, uint32_t id)
{
	MAP_PUT(m->attachments, map_attachment, map_attachment, id);
}

void map_volume_grow(struct map_volume *v, uint32_t objects)
{
	if (objects <= v->objects)
		return;
	v->object = xrealloc(v->object, objects * sizeof(*v->object));
	memset(v->object + v->objects, 0, (objects - v->objects) * sizeof(*v->object));
	for (uint32_t i = v->objects; i < objects; i++)
		v->object[i].id = object_id(v->id, i);
	v->objects = objects;
}

void map_volume_drop(struct map *m, struct map_volume *v)
{
	hmap_remove(&m->volumes, &v->by_id);
	free(v->object);
	free(v);
}

void map_attachment_drop(struct map *m, struct map_attachment *a)
{
	hmap_remove(&m->attachments, &a->by_id);
	free(a);
}

#define MAP_SORTED(table, type)                                                                    \
	static int compare_##type(const void *a, const void *b)                                    \
	{                                                                                          \
		const struct type *x = *(struct type *const *)a, *y = *(struct type *const *)b;    \
		return x->id < y->id ? -1 : x->id > y->id;                                         \
	}                                                                                          \
	struct type **type##s_sorted(const struct map *m, size_t *count)                           \
	{                                                                                          \
		struct type **out = xcalloc(m->table.count + 1, sizeof(*out));                     \
		size_t n = 0;                                                                      \
		for (struct hnode *h = hmap_walk(&m->table, NULL); h; h = hmap_walk(&m->table, h)) \
			out[n++] = container_of(h, struct type, by_id);                            \
		qsort(out, n, sizeof(*out), compare_##type);                                       \
		*count = n;                                                                        \
		return out;                                                                        \
	}

MAP_SORTED(nodes, map_node)
MAP_SORTED(groups, map_group)
MAP_SORTED(volumes, map_volume)
MAP_SORTED(attachments, map_attachment)
