/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes and attachments in the state machine. A placement is made by the leader's placement.c;
 * here it is only validated, so that nodes of different versions cannot disagree about it. */
#include "cluster/state_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include "node/base/text.h"

#define VOLUME_FLAGS_ALL (VOLUME_COMPRESSION | VOLUME_DEDUP)

static bool group_usable(const struct map *m, const struct map_group *g)
{
	struct map_node *n = g ? map_node(m, g->node) : NULL;

	return n && g->state == GROUP_ACTIVE && n->state == NODE_ACTIVE;
}

static unsigned usable_fault_sets(const struct state *s)
{
	size_t count;
	struct map_group **g = map_groups_sorted(&s->map, &count);
	unsigned sets = 0;

	for (size_t i = 0; i < count; i++) {
		bool known = !group_usable(&s->map, g[i]);

		for (size_t k = 0; k < i && !known; k++)
			known = group_usable(&s->map, g[k]) &&
				!strcmp(map_fault_set(map_node(&s->map, g[i]->node)),
					map_fault_set(map_node(&s->map, g[k]->node)));
		sets += !known;
	}
	free(g);
	return sets;
}

static int placement_check(struct state *s, const struct command *c, unsigned copies,
			   struct command_result *out)
{
	const struct map_member *p = c->volume.placement;
	const char *set[COPIES_MAX];
	unsigned sets = usable_fault_sets(s);

	if (sets < copies)
		return state_refuse(
			out, -ERR_TOO_FEW,
			"%u copies need %u fault sets (by default: nodes) with an "
			"active disk group, and there are %u: add nodes or disk groups, or ask for "
			"fewer copies",
			copies, copies, sets);
	for (unsigned i = 0; i < c->volume.placement_count; i++) {
		struct map_group *g = map_group(&s->map, p[i].group);
		unsigned copy = i % copies;

		if (!group_usable(&s->map, g) || g->incarnation != p[i].group_incarnation)
			return state_refuse(out, -ERR_CONFLICT,
					    "disk group %u of the placement is not active any "
					    "more: try again",
					    p[i].group);
		set[copy] = map_fault_set(map_node(&s->map, g->node));
		for (unsigned k = 0; k < copy; k++)
			if (!strcmp(set[k], set[copy]))
				return state_refuse(out, -ERR_INVALID,
						    "two copies of an object were placed in "
						    "fault set %s",
						    set[copy]);
	}
	return 0;
}

/* New objects: all members in, epoch = tenure = 1, the first member is primary (replication §1). */
static void objects_add(struct state *s, struct map_volume *v, uint32_t objects,
			const struct map_member *placement)
{
	uint32_t first = v->objects;

	map_volume_grow(v, objects);
	for (uint32_t i = first; i < objects; i++) {
		struct map_object *o = &v->object[i];
		const struct map_member *p = &placement[(size_t)(i - first) * v->copies];

		o->epoch = o->tenure = 1;
		o->member_count = v->copies;
		for (unsigned k = 0; k < v->copies; k++)
			o->member[k] =
				(struct map_member){.group = p[k].group,
						    .group_incarnation = p[k].group_incarnation,
						    .gen = 1,
						    .in = true,
						    .filled = true};
		o->primary = 0;
		o->primary_incarnation = map_member_node(&s->map, &o->member[0])->incarnation;
	}
	s->objects += objects - first;
	s->members += (objects - first) * v->copies;
	state_volume_changed(s, v);
	for (uint32_t i = first; i < objects; i++)
		state_object_changed(s, &v->object[i]);
}

static int limit_check(struct state *s, const char *name, uint64_t more, unsigned copies,
		       struct command_result *out)
{
	if (s->objects + more > OBJECTS_MAX || s->members + more * copies > MEMBERS_TOTAL_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "volume %s needs %llu more objects and the cluster has %u of "
				    "at most %u: delete volumes, or use fewer, larger ones",
				    name, (unsigned long long)more, s->objects, OBJECTS_MAX);
	return 0;
}

static int policy_check(const char *name, unsigned copies, unsigned min_in_sync, unsigned flags,
			struct command_result *out)
{
	if (copies < 1 || copies > COPIES_MAX)
		return state_refuse(out, -ERR_INVALID, "volume %s: copies must be 1 to %u, not %u",
				    name, COPIES_MAX, copies);
	if (min_in_sync < 1 || min_in_sync > copies)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: min in-sync must be 1 to %u (its copies), not "
				    "%u",
				    name, copies, min_in_sync);
	if (flags & ~VOLUME_FLAGS_ALL)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: unknown policy flags 0x%x: upgrade all nodes", name,
				    flags);
	return 0;
}

static int size_check(const char *name, uint64_t size, struct command_result *out)
{
	char text[24];

	if (!size || size % 4096)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: size %llu is not a multiple of 4096 bytes above "
				    "0",
				    name, (unsigned long long)size);
	if (size > VOLUME_SIZE_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "volume %s: size %s is beyond the limit of 64 TiB: make several", name,
				    bytes_text(size, text));
	return 0;
}

static int geometry_check(const struct map_volume *v, struct command_result *out)
{
	if (!is_pow2(v->object_size) || v->object_size < OBJECT_SIZE_MIN ||
	    v->object_size > OBJECT_SIZE_MAX)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: object size %llu must be a power of two from 64 "
				    "MiB to 4 GiB",
				    v->name, (unsigned long long)v->object_size);
	if (v->stripe_count < 1 || v->stripe_count > STRIPE_COUNT_MAX)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: stripe count must be 1 to %u, not %u", v->name,
				    STRIPE_COUNT_MAX, v->stripe_count);
	if (v->objects != volume_objects_for(v->size, v->object_size, v->stripe_count))
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: %u objects do not fit its size and geometry",
				    v->name, v->objects);
	return 0;
}

static struct map_volume *volume_by_uuid(const struct map *m, const struct uuid *u)
{
	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		if (uuid_equal(&v->uuid, u))
			return v;
	}
	return NULL;
}

int state_volume_create(struct state *s, const struct command *c, struct command_result *out)
{
	const struct map_volume *in = &c->volume.volume;
	struct map_volume *v = volume_by_uuid(&s->map, &in->uuid), copy = *in;
	int rc;

	if (v && !strcmp(v->name, in->name) && v->size == in->size) {
		out->id = v->id; /* the same create again */
		return 0;
	}
	if (!state_name_ok(in->name))
		return state_refuse(out, -ERR_INVALID, "volume name \"%s\": %s", in->name,
				    NAME_RULE);
	if (map_volume_by_name(&s->map, in->name))
		return state_refuse(out, -ERR_EXISTS, "a volume named %s exists already", in->name);
	if (v || uuid_is_nil(&in->uuid))
		return state_refuse(out, -ERR_INVALID, "volume %s: its uuid is missing or in use",
				    in->name);
	if ((rc = size_check(in->name, in->size, out)) ||
	    (rc = policy_check(in->name, in->copies, in->min_in_sync, in->flags, out)) ||
	    (rc = geometry_check(in, out)) ||
	    (rc = limit_check(s, in->name, in->objects, in->copies, out)))
		return rc;
	if (s->map.volumes.count >= VOLUMES_MAX || s->map.next_volume == UINT32_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "there are %zu volumes, the most a cluster can have: delete "
				    "one first",
				    s->map.volumes.count);
	rc = placement_check(s, c, in->copies, out);
	if (rc)
		return rc;
	if (c->volume.first_object || c->volume.placement_count != in->objects * in->copies)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: the placement does not cover its objects",
				    in->name);
	v = map_volume_put(&s->map, s->map.next_volume++);
	copy.by_id = v->by_id;
	copy.id = v->id;
	copy.objects = 0;
	copy.object = NULL;
	copy.state = VOLUME_LIVE;
	copy.attach_epoch = 0;
	*v = copy;
	objects_add(s, v, in->objects, c->volume.placement);
	out->id = v->id;
	state_event_add(s, 0, "VOLUME_CREATED", "volume %s, %llu bytes, %u copies", v->name,
			(unsigned long long)v->size, v->copies);
	return 0;
}

int state_volume_resize(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_volume *v = map_volume(&s->map, c->volume.volume.id);
	uint64_t size = c->volume.volume.size;
	char has[24], wants[24];
	uint32_t objects;
	int rc;

	if (!v)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no volume with number %u",
				    c->volume.volume.id);
	out->id = v->id;
	rc = size_check(v->name, size, out);
	if (rc)
		return rc;
	if (size < v->size)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s has %s and cannot shrink to %s (%llu and %llu bytes): create "
				    "a smaller volume and copy",
				    v->name, bytes_text(v->size, has), bytes_text(size, wants),
				    (unsigned long long)v->size, (unsigned long long)size);
	if (size == v->size)
		return 0;
	objects = volume_objects_for(size, v->object_size, v->stripe_count);
	rc = limit_check(s, v->name, objects - v->objects, v->copies, out);
	if (rc)
		return rc;
	if (objects > v->objects) {
		rc = placement_check(s, c, v->copies, out);
		if (rc)
			return rc;
	}
	if (c->volume.first_object != v->objects ||
	    c->volume.placement_count != (objects - v->objects) * v->copies)
		return state_refuse(out, -ERR_CONFLICT,
				    "volume %s was resized by another command meanwhile: try "
				    "again",
				    v->name);
	state_event_add(s, 0, "VOLUME_RESIZED", "volume %s: %llu to %llu bytes", v->name,
			(unsigned long long)v->size, (unsigned long long)size);
	v->size = size;
	objects_add(s, v, objects, c->volume.placement);
	return 0;
}

/* Attachments. */

static void revoked_prune(struct state *s)
{
	size_t count;
	struct map_attachment **a;

	if (s->revoked_attachments <= ATTACHMENTS_REVOKED_MAX)
		return;
	a = map_attachments_sorted(&s->map, &count);
	for (size_t i = 0; i < count && s->revoked_attachments > ATTACHMENTS_REVOKED_MAX; i++) {
		uint32_t id = a[i]->id;

		if (!a[i]->revoked)
			continue;
		map_attachment_drop(&s->map, a[i]);
		s->revoked_attachments--;
		state_gone(s, MAP_REC_ATTACHMENT_GONE, id);
	}
	free(a);
}

static void revoke(struct state *s, struct map_attachment *a)
{
	a->revoked = true;
	s->live_attachments--;
	s->revoked_attachments++;
	state_attachment_changed(s, a);
}

int state_volume_set(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_volume *v = map_volume(&s->map, c->volume_set.id);
	uint8_t mask = c->volume_set.set_mask, flags, min_in_sync;
	int rc;

	if (!v)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no volume with number %u",
				    c->volume_set.id);
	out->id = v->id;
	if (!mask || mask & ~(VOLUME_SET_FLAGS | VOLUME_SET_MIN_IN_SYNC | VOLUME_SET_REDUCE))
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: nothing, or something unknown, to set", v->name);
	flags = mask & VOLUME_SET_FLAGS ? c->volume_set.flags : v->flags;
	min_in_sync = mask & VOLUME_SET_MIN_IN_SYNC ? c->volume_set.min_in_sync : v->min_in_sync;
	rc = policy_check(v->name, v->copies, min_in_sync, flags, out);
	if (!rc && mask & VOLUME_SET_REDUCE && !flags)
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: with compression and dedup off there is nothing to "
				    "reduce existing data by",
				    v->name);
	if (rc || (flags == v->flags && min_in_sync == v->min_in_sync && !(mask & VOLUME_SET_REDUCE)))
		return rc;
	v->reduce += mask & VOLUME_SET_REDUCE ? 1 : 0;
	v->flags = flags;
	v->min_in_sync = min_in_sync;
	state_volume_changed(s, v);
	state_event_add(s, 0, "VOLUME_SET", "volume %s: compression %s, dedup %s, min in-sync %u%s", v->name,
			flags & VOLUME_COMPRESSION ? "on" : "off", flags & VOLUME_DEDUP ? "on" : "off",
			min_in_sync, mask & VOLUME_SET_REDUCE ? "; existing data is reduced" : "");
	return 0;
}

/* Leases. The time is the command's, which the leader stamps. */

static bool attach_expired(const struct state *s, const struct map_attachment *a)
{
	return !map_attachment_left_ms(a, s->time_ms);
}

static unsigned long long silent_s(const struct state *s, const struct map_attachment *a)
{
	return s->time_ms > a->renewed_ms ? (s->time_ms - a->renewed_ms) / 1000 : 0;
}

static int refuse_held(const struct state *s, const struct map_volume *v,
		       const struct map_attachment *a, struct command_result *out)
{
	out->id = a->id;
	return state_refuse(out, -ERR_HELD,
			    "volume %s is attached by %s (%s): free in %llu s if that is not renewed, "
			    "or `ashlar volume detach %s --fence`",
			    v->name, a->holder, a->mode == ATTACH_SHARED ? "shared" : "exclusive",
			    (unsigned long long)(map_attachment_left_ms(a, s->time_ms) + 999) / 1000,
			    v->name);
}

static bool attach_gives_way(const struct map_attachment *a, const struct command *c)
{
	return a->volume == c->attach.volume && !a->revoked &&
	       (!strcmp(a->holder, c->attach.holder) || c->attach.mode == ATTACH_EXCLUSIVE ||
		a->mode == ATTACH_EXCLUSIVE);
}

/* The first attachment of somebody else that stands in the way and goes on, in order of age. */
static const struct map_attachment *attach_conflict(const struct state *s, struct map_attachment **a,
						    size_t count, const struct command *c)
{
	for (size_t i = 0; i < count && !c->attach.steal; i++)
		if (attach_gives_way(a[i], c) && strcmp(a[i]->holder, c->attach.holder) &&
		    !attach_expired(s, a[i]))
			return a[i];
	return NULL;
}

/* One's own earlier attachment is re-taken at once; others that stand in the way ran out, or are
 * stolen. */
static void attach_clear_way(struct state *s, struct map_attachment **a, size_t count,
			     const struct map_volume *v, const struct command *c)
{
	for (size_t i = 0; i < count; i++) {
		if (!attach_gives_way(a[i], c))
			continue;
		if (strcmp(a[i]->holder, c->attach.holder))
			state_event_add(s, 1, attach_expired(s, a[i]) ? "ATTACH_EXPIRED" : "ATTACH_STOLEN",
					"volume %s: %s took it over from %s, not renewed for %llu s",
					v->name, c->attach.holder, a[i]->holder, silent_s(s, a[i]));
		revoke(s, a[i]);
	}
}

static void attach_grant(struct state *s, struct map_volume *v, const struct command *c,
			 struct command_result *out)
{
	struct map_attachment *mine = map_attachment_put(&s->map, s->map.next_attachment++);

	mine->volume = v->id;
	mine->epoch = ++v->attach_epoch;
	mine->mode = c->attach.mode;
	memcpy(mine->holder, c->attach.holder, sizeof(mine->holder));
	mine->ttl_ms = state_setting_number(s, ATTACH_TTL_KEY);
	mine->renewed_ms = s->time_ms;
	s->live_attachments++;
	state_attachment_changed(s, mine);
	state_volume_changed(s, v);
	out->id = mine->id;
	out->number = mine->epoch;
}

int state_attach(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_volume *v = map_volume(&s->map, c->attach.volume);
	const struct map_attachment *other;
	const struct map_node *n;
	struct map_attachment **a;
	unsigned giving_way = 0;
	size_t count;
	int rc = 0;

	if (!v)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no volume with number %u",
				    c->attach.volume);
	if ((c->attach.mode != ATTACH_EXCLUSIVE && c->attach.mode != ATTACH_SHARED) ||
	    !c->attach.holder[0])
		return state_refuse(out, -ERR_INVALID,
				    "volume %s: an attachment needs a holder and a mode", v->name);
	n = map_holder_node(&s->map, c->attach.holder);
	if (n && n->state == NODE_REMOVED)
		return state_refuse(out, -ERR_FOREIGN, "node %s was removed: it may attach nothing", n->name);
	if (s->map.next_attachment == UINT32_MAX || v->attach_epoch == UINT32_MAX)
		return state_refuse(out, -ERR_LIMIT, "volume %s: all attachment numbers were used",
				    v->name);
	a = map_attachments_sorted(&s->map, &count);
	other = attach_conflict(s, a, count, c);
	for (size_t i = 0; i < count; i++)
		giving_way += attach_gives_way(a[i], c);
	if (other) {
		rc = refuse_held(s, v, other, out);
	} else if (s->live_attachments - giving_way >= ATTACHMENTS_MAX) {
		rc = state_refuse(out, -ERR_LIMIT,
				  "there are %u attachments, the most a cluster can have: "
				  "detach volumes that are not used",
				  s->live_attachments);
	} else {
		attach_clear_way(s, a, count, v, c);
		attach_grant(s, v, c, out);
	}
	free(a);
	revoked_prune(s);
	return rc;
}

/* No news for shards and clients, unless the time to live was set anew meanwhile. */
int state_renew(struct state *s, const struct command *c, struct command_result *out)
{
	uint32_t ttl_ms = state_setting_number(s, ATTACH_TTL_KEY);

	_Static_assert(RENEW_MAX <= OBJECT_CHANGES_MAX, "one answer each");
	if (!c->renew.count)
		return state_refuse(out, -ERR_INVALID, "a renewal names at least one attachment");
	out->count = c->renew.count;
	for (unsigned i = 0; i < c->renew.count; i++) {
		struct map_attachment *a = map_attachment(&s->map, c->renew.attachment[i]);

		out->object[i] = !a || a->revoked;
		if (out->object[i])
			continue;
		/* Not the later of the two: a clock that ran ahead is forgotten at the next renewal. */
		a->renewed_ms = s->time_ms;
		if (a->ttl_ms == ttl_ms)
			continue;
		a->ttl_ms = ttl_ms;
		state_attachment_changed(s, a);
	}
	return 0;
}

int state_fence(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_volume *v = map_volume(&s->map, c->fence.volume);
	const struct map_attachment *held = NULL;
	struct map_attachment **a;
	size_t count;

	if (!v)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no volume with number %u",
				    c->fence.volume);
	a = map_attachments_sorted(&s->map, &count);
	for (size_t i = 0; i < count; i++) {
		if (a[i]->volume != v->id || a[i]->revoked || a[i]->id > c->fence.newest ||
		    (c->fence.holder[0] && strcmp(a[i]->holder, c->fence.holder)))
			continue;
		if (c->fence.expired_only && !attach_expired(s, a[i])) {
			held = held ? held : a[i];
			continue;
		}
		state_event_add(s, 1, "ATTACH_FENCED",
				"volume %s: the %s attachment of %s was taken away, not renewed for %llu s",
				v->name, a[i]->mode == ATTACH_SHARED ? "shared" : "exclusive", a[i]->holder,
				silent_s(s, a[i]));
		revoke(s, a[i]);
		out->number++;
	}
	free(a);
	revoked_prune(s);
	if (held && !out->number)
		return refuse_held(s, v, held, out);
	out->id = v->id;
	if (!out->number)
		snprintf(out->text, sizeof(out->text), "volume %s was not attached%s%.130s", v->name,
			 c->fence.holder[0] ? " by " : "", c->fence.holder);
	return 0;
}

void state_attachments_of_node_end(struct state *s, uint16_t node)
{
	size_t count;
	struct map_attachment **a = map_attachments_sorted(&s->map, &count);

	for (size_t i = 0; i < count; i++) {
		const struct map_node *n = a[i]->revoked ? NULL : map_holder_node(&s->map, a[i]->holder);

		if (n && n->id == node)
			revoke(s, a[i]);
	}
	free(a);
	revoked_prune(s);
}

int state_detach(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_attachment *a = map_attachment(&s->map, c->detach.attachment);

	out->id = c->detach.attachment;
	if (!a && (!c->detach.attachment || c->detach.attachment >= s->map.next_attachment))
		return state_refuse(out, -ERR_NOT_FOUND, "there is no attachment %u",
				    c->detach.attachment);
	if (!a || a->revoked)
		return 0; /* done already */
	revoke(s, a);
	revoked_prune(s);
	return 0;
}

/* Of a volume that nobody has attached, or whose gateways are gone. */
int state_volume_delete(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_volume *v = map_volume(&s->map, c->volume_delete.id);
	uint32_t id = c->volume_delete.id;
	struct map_attachment **a;
	size_t count;
	int rc;

	out->id = id;
	if (!v && id && id < s->map.next_volume)
		return 0; /* deleted already: numbers are never reused */
	if (!v)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no volume with number %u", id);
	a = map_attachments_sorted(&s->map, &count);
	for (size_t i = 0; i < count; i++)
		if (a[i]->volume == id && !a[i]->revoked && !attach_expired(s, a[i])) {
			rc = refuse_held(s, v, a[i], out);
			free(a);
			return rc;
		}
	for (size_t i = 0; i < count; i++)
		if (a[i]->volume == id && !a[i]->revoked)
			revoke(s, a[i]);
	free(a);
	state_event_add(s, 0, "VOLUME_DELETED", "volume %s, %llu bytes", v->name,
			(unsigned long long)v->size);
	s->objects -= v->objects;
	for (uint32_t i = 0; i < v->objects; i++)
		s->members -= v->object[i].member_count;
	map_volume_drop(&s->map, v);
	state_gone(s, MAP_REC_VOLUME_GONE, id);
	revoked_prune(s);
	return 0;
}
