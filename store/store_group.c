/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a group: which belong to it, which are there, and what happens when one fails.
 * Every member's superblock names all members; the superblock written last is believed. It must
 * never take a device back that was given up: what the others did meanwhile is not on it. */
#include <stdio.h>
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

/* ---- Devices ---- */

static int order_devices(const void *a, const void *b)
{
	const struct device *x = a, *y = b;

	return (int)x->sb.index - (int)y->sb.index;
}

static int open_device(struct store *s, const struct store_config *cfg, const char *path)
{
	struct device *d = &s->devices[s->device_count];
	int rc = device_open(d, path, cfg->buffered, false);

	if (rc)
		return rc;
	rc = device_read_superblock(d);
	if (!rc &&
	    (!uuid_equal(&d->sb.cluster, &cfg->cluster) || !uuid_equal(&d->sb.node, &cfg->node)))
		rc = -ERR_FOREIGN;
	if (rc)
		device_close(d);
	else
		s->device_count++;
	return rc;
}

/* The superblock that knows best: the one that was written last. */
static const struct superblock *newest(const struct store *s)
{
	const struct superblock *best = &s->devices[0].sb;

	for (unsigned i = 1; i < s->device_count; i++)
		if (s->devices[i].sb.sequence > best->sequence)
			best = &s->devices[i].sb;
	return best;
}

/* Not, or no longer, a member: replaced, failed earlier, or of a life of the group that it missed
 * the end of. One that only was away for some openings, while the group's life went on, has all it
 * had. */
static const char *given_up(const struct superblock *best, const struct superblock *sb)
{
	const struct superblock_member *m = &best->member[sb->index];

	if (!m->role || !uuid_equal(&m->device, &sb->device))
		return "it was replaced by another device";
	if (m->state == MEMBER_FAILED)
		return "it failed earlier";
	if (sb->sequence + 1 < best->sequence &&
	    (sb->group_incarnation != best->group_incarnation || !uuid_equal(&sb->log, &best->log)))
		return "the group began anew without it";
	return NULL;
}

static void drop_given_up(struct store *s, struct superblock *best)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->device_count; i++) {
		const char *why = given_up(best, &s->devices[i].sb);

		if (!why) {
			s->devices[n++] = s->devices[i];
			continue;
		}
		log_error("store",
			  "a device is not used; `ashlar diskgroup replace` puts another in its "
			  "place",
			  "device=%s index=%u reason=\"%s\"", s->devices[i].path,
			  s->devices[i].sb.index, why);
		device_close(&s->devices[i]);
	}
	s->device_count = n;
}

/* Members of which there is no device stand in the list as failed ones. */
static int add_missing(struct store *s, const struct superblock *best)
{
	for (unsigned k = 0; k < GROUP_DEVICES_MAX; k++) {
		const struct superblock_member *m = &best->member[k];
		struct device *d = &s->devices[s->device_count];
		bool there = false;

		for (unsigned i = 0; i < s->device_count; i++)
			there |= s->devices[i].sb.index == k;
		if (there || !m->role)
			continue;
		if (s->device_count == GROUP_DEVICES_MAX)
			return -ERR_CORRUPT;
		*d = (struct device){.fd = -1,
				     .failed = m->state == MEMBER_FAILED ? -EIO : -ERR_NOT_FOUND};
		d->sb = *best;
		d->sb.device = m->device;
		d->sb.index = (uint16_t)k;
		d->sb.role = m->role;
		d->sb.size = m->size;
		d->sb.data_start = m->data_start;
		d->sb.data_len = m->data_len;
		d->sb.log_start = d->sb.log_len = 0;
		if (m->data_len && !d->sb.segment_size) /* best is the cache device's */
			for (unsigned i = 0; i < s->device_count; i++)
				d->sb.segment_size =
					MAX(d->sb.segment_size, s->devices[i].sb.segment_size);
		s->device_count++;
		log_error("store", "a device of the group is missing or failed",
			  "group=%u index=%u role=%s", best->group_number, k,
			  m->role == DEVICE_CACHE ? "cache" : "capacity");
	}
	return 0;
}

/* Without its log a group has lost what was not destaged: the caller decides. In a single-tier
 * group each device has a part of it; one that counts as failed in the superblocks was given up
 * with that part. */
static int check_missing(const struct store *s, bool strict)
{
	bool log = false, data = false, cache = false, part = false;

	for (unsigned i = 0; i < s->device_count; i++) {
		const struct device *d = &s->devices[i];

		cache |= d->sb.role == DEVICE_CACHE;
		log |= !d->failed && d->sb.log_len;
		data |= !d->failed && d->sb.data_len;
		part |= d->failed == -ERR_NOT_FOUND;
	}
	if (!data)
		return -ERR_DEVICE;
	return strict && (!log || (part && !cache)) ? -ERR_LOG_LOST : 0;
}

static int check_group(const struct store *s, bool strict)
{
	const struct superblock *a = newest(s);

	for (unsigned i = 0; i < s->device_count; i++) {
		const struct superblock *b = &s->devices[i].sb;

		if (!uuid_equal(&a->group, &b->group) || a->devices != b->devices ||
		    (i && b->index == s->devices[i - 1].sb.index))
			return -ERR_FOREIGN;
		if (!strict || s->devices[i].failed)
			continue;
		if (b->flags & SUPERBLOCK_PENDING)
			return -ERR_INVALID;
		if (b->flags & SUPERBLOCK_RESETTING)
			return -ERR_MAP_LOST;
		if (!uuid_equal(&a->log, &b->log) || a->log_incarnation != b->log_incarnation ||
		    a->group_incarnation != b->group_incarnation)
			return -ERR_LOG_LOST; /* a reset that keeps the map did not end */
	}
	return 0;
}

static int take_members(struct store *s, bool strict)
{
	struct superblock best;
	int rc;

	if (!s->device_count)
		return -ERR_DEVICE;
	best = *newest(s);
	for (unsigned i = 0; i < s->device_count; i++)
		if (!uuid_equal(&best.group, &s->devices[i].sb.group))
			return -ERR_FOREIGN;
	drop_given_up(s, &best);
	rc = s->device_count ? add_missing(s, &best) : -ERR_DEVICE;
	qsort(s->devices, s->device_count, sizeof(s->devices[0]), order_devices);
	while (s->capacity_count < s->device_count &&
	       s->devices[s->capacity_count].sb.role == DEVICE_CAPACITY)
		s->capacity_count++;
	for (unsigned i = 0; i < s->device_count; i++)
		memcpy(s->devices[i].sb.member, best.member, sizeof(best.member));
	if (!rc)
		rc = check_missing(s, strict);
	return rc ? rc : check_group(s, strict);
}

int group_open(const struct store_config *cfg, bool strict, struct store **out)
{
	bool unread = false; /* one is there and cannot be read: its log may come back with it */
	struct store *s;
	int rc = 0;

	if (!cfg->device_count || cfg->device_count > GROUP_DEVICES_MAX)
		return -EINVAL;
	s = xcalloc(1, sizeof(*s));
	s->buffered = cfg->buffered;
	pthread_mutex_init(&s->lock, NULL);
	pthread_mutex_init(&s->superblocks, NULL);
	for (unsigned i = 0; i < cfg->device_count; i++) {
		rc = open_device(s, cfg, cfg->devices[i]);
		if (!rc)
			continue;
		log_error("store", "cannot open a device", "device=%s error=%s", cfg->devices[i],
			  err_name(rc));
		if (rc == -ERR_BUSY || rc == -ERR_FOREIGN || rc == -ERR_VERSION)
			break;
		unread |= rc != -ENODATA && rc != -ERR_CORRUPT && rc != -ENOENT;
		rc = 0;
	}
	if (!rc)
		rc = take_members(s, strict);
	if (rc == -ERR_LOG_LOST && unread)
		rc = -ERR_DEVICE;
	if (rc) {
		group_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void group_close(struct store *s)
{
	for (unsigned i = 0; i < s->device_count; i++)
		device_close(&s->devices[i]);
	for (unsigned i = 0; i < s->retired_count; i++) {
		device_close(s->retired[i]);
		free(s->retired[i]);
	}
	pthread_mutex_destroy(&s->superblocks);
	pthread_mutex_destroy(&s->lock);
	free(s->segs);
	free(s->legacy);
	free(s);
}

/* What the superblocks of all say of the group: those of a device that is there. */
const struct superblock *store_superblock(const struct store *s)
{
	for (unsigned i = 0; i < s->device_count; i++)
		if (s->devices[i].fd >= 0)
			return &s->devices[i].sb;
	return &s->devices[0].sb;
}

static unsigned capacity_left(const struct store *s)
{
	unsigned left = 0;

	for (unsigned i = 0; i < s->capacity_count; i++)
		left += !device_failed(&s->devices[i]);
	return left;
}

/* That the last capacity device is gone is known before the destager has said so (on_lost). */
int group_failing(const struct store *s)
{
	return store_failed(s) ? store_failed(s) : capacity_left(s) ? 0 : -ERR_DEVICE;
}

/* The table of members, into all superblocks; devices that failed are marked in it. The caller has
 * the mutex, or is alone. A device that fails here is marked in the next round. The last one is never
 * given up: with it goes the group, which may yet come back whole when the device does. */
int group_save_members(struct store *s)
{
	bool again = true;

	while (again) {
		unsigned good = 0;

		again = false;
		if (!capacity_left(s))
			return -ERR_DEVICE;
		for (unsigned i = 0; i < s->device_count; i++) {
			/* One that merely is not there may come back. One with a part of the log is
			 * given up with
			 * that part only, by a reset. */
			if (s->devices[i].fd < 0 || !device_failed(&s->devices[i]) ||
			    s->devices[i].sb.log_len)
				continue;
			for (unsigned k = 0; k < s->device_count; k++)
				s->devices[k].sb.member[s->devices[i].sb.index].state =
					MEMBER_FAILED;
		}
		for (unsigned i = 0; i < s->device_count && !again; i++) {
			struct device *d = &s->devices[i];

			if (device_failed(d))
				continue;
			again = device_write_superblock(d) != 0;
			good++;
		}
		if (!good)
			return -ERR_DEVICE;
	}
	return 0;
}

/* From the destager: capacity devices were found to have failed, or to be missing. */
static void on_lost(void *arg)
{
	struct store *s = arg;
	int rc;

	if (!capacity_left(s)) {
		store_fail(s, -ERR_DEVICE, "no capacity device is left");
		return;
	}
	pthread_mutex_lock(&s->superblocks);
	rc = group_save_members(s);
	pthread_mutex_unlock(&s->superblocks);
	if (rc)
		store_fail(s, -ERR_DEVICE, "no superblock could be written");
}

/* From any thread. */
static void on_failed(void *arg, struct device *d)
{
	struct store *s = arg;

	if (d->sb.log_len)
		store_fail(s, -ERR_LOG_LOST, "a device of the write log failed");
	else
		tier_device_failed(s->tier);
}

void group_tier_config(struct store *s, const struct store_config *cfg, struct tier_config *out)
{
	*out = (struct tier_config){
		.capacity = s->devices,
		.capacity_count = s->capacity_count,
		.metadata_dir = cfg->metadata_dir,
		.group = store_superblock(s)->group,
		.group_incarnation = store_superblock(s)->group_incarnation,
		.on_lost = on_lost,
		.on_lost_arg = s,
		.shards = cfg->shards,
		.page_cache_bytes = cfg->page_cache_bytes,
		.block_cache_bytes = cfg->block_cache_bytes,
		.dedup_hint_bytes = cfg->dedup_hint_bytes,
		.check_map = cfg->check_map,
		.as_is = cfg->as_is,
	};
}

/* Each opening has a sequence of its own: generations are made from it. Only the log's devices must
 * take it. */
int group_raise_sequence(struct store *s)
{
	uint64_t highest = 0;
	bool all = true;

	for (unsigned i = 0; i < s->device_count; i++)
		highest = MAX(highest, s->devices[i].sb.sequence);
	for (unsigned i = 0; i < s->device_count; i++) {
		struct device *d = &s->devices[i];
		int rc;

		d->sb.sequence = highest;
		rc = device_failed(d) ? 0 : device_write_superblock(d);
		if (rc && d->sb.log_len)
			return rc;
		all &= !rc;
	}
	return all ? 0 : group_save_members(s);
}

void group_listen(struct store *s)
{
	for (unsigned i = 0; i < s->device_count; i++) {
		s->devices[i].on_failed_arg = s;
		s->devices[i].on_failed = on_failed;
	}
}

int store_set_node_incarnation(struct store *s, uint32_t incarnation)
{
	int rc = 0;

	pthread_mutex_lock(&s->superblocks);
	for (unsigned i = 0; i < s->device_count; i++)
		s->devices[i].sb.node_incarnation = incarnation;
	for (unsigned i = 0; i < s->device_count && !rc; i++)
		if (!device_failed(&s->devices[i]) && device_write_superblock(&s->devices[i]) &&
		    s->devices[i].sb.log_len)
			rc = -ERR_LOG_LOST; /* a capacity device that fails is noticed as such */
	pthread_mutex_unlock(&s->superblocks);
	return rc;
}

void store_identity(const struct store *s, struct store_identity *out)
{
	const struct superblock *sb = store_superblock(s);

	*out = (struct store_identity){.group = sb->group,
				       .group_number = sb->group_number,
				       .group_incarnation = sb->group_incarnation};
	for (unsigned i = 0; i < s->device_count; i++)
		out->node_incarnation =
			MAX(out->node_incarnation, s->devices[i].sb.node_incarnation);
}

/* ---- For people ---- */

static void device_info(const struct device *d, struct store_device *out)
{
	*out = (struct store_device){.uuid = d->sb.device,
				     .role = (enum device_role)d->sb.role,
				     .index = d->sb.index,
				     .size_bytes = d->sb.size,
				     .failed = device_failed(d)};
	if (d->path)
		snprintf(out->path, sizeof(out->path), "%s", d->path);
	for (unsigned op = 0; op < DEVICE_OPS; op++) {
		out->errors[op] =
			atomic_load_explicit(&d->counters.errors[op], memory_order_relaxed);
		out->sum_us[op] =
			atomic_load_explicit(&d->counters.sum_us[op], memory_order_relaxed);
		for (unsigned i = 0; i < DEVICE_BUCKETS; i++)
			out->times[op][i] = atomic_load_explicit(&d->counters.bucket[op][i],
								 memory_order_relaxed);
	}
}

unsigned store_devices(struct store *s, struct store_device out[GROUP_DEVICES_MAX])
{
	_Static_assert(DEVICE_OP_KINDS == DEVICE_OPS && DEVICE_TIME_BITS == DEVICE_BUCKETS,
		       "store.h");

	for (unsigned i = 0; i < s->device_count; i++)
		device_info(&s->devices[i], &out[i]);
	return s->device_count;
}

void store_check(struct store *s)
{
	tier_check(s->tier);
}

uint64_t store_lost(const struct store_object *o)
{
	return tier_object_lost(o->shard->store->tier, o->shard->index, o->id);
}

void store_refilled(struct store_object *o, uint64_t lost)
{
	tier_object_refilled(o->shard->store->tier, o->shard->index, o->id, lost);
}

bool store_loss_known(const struct store *s)
{
	return tier_loss_known(s->tier);
}
