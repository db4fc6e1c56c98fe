/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing devices: format (pending superblocks), finalize, probe, reset. A device that carries anything
 * is refused unless the caller said wipe; what is half done is finished by running it again. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/failpoint.h"
#include "store/store_impl.h"

#define EDGE_BYTES       65536u /* where file systems, partition tables and RAID keep their signatures */
#define REGION_START     (1u << 20)
#define CACHE_INDEX      (GROUP_DEVICES_MAX - 1)
#define LOG_SEGMENT_MIN  (2u << 20) /* holds one largest batch with room to spare */
#define LOG_SEGMENT_MAX  (32u << 20)
#define LOG_MIN          (16ull * LOG_SEGMENT_MIN)
#define LOG_MAX          (64ull << 30)
#define DATA_SEGMENT_MIN (2u << 20)
#define DATA_SEGMENT_MAX (64u << 20)

static uint64_t pow2_below(uint64_t v)
{
	uint64_t p = 1;

	while (p <= v / 2)
		p *= 2;
	return p;
}

static uint64_t clamp(uint64_t v, uint64_t lo, uint64_t hi)
{
	return MIN(MAX(v, lo), hi);
}

static int check_empty(struct device *d)
{
	size_t edge = MIN((uint64_t)EDGE_BYTES, d->size);
	CLEANUP(free_ptr) uint8_t *b = xalloc_aligned(BLOCK_SIZE, edge);

	for (unsigned end = 0; end < 2; end++) {
		int rc = device_pread(d, b, edge, end ? d->size - edge : 0);

		if (rc)
			return rc;
		for (size_t i = 0; i < edge; i++)
			if (b[i])
				return -ERR_EXISTS;
	}
	return 0;
}

/* 0: may be formatted; 1: is already what this call would make of it. */
static int check_device(struct device *d, const struct store_format *f)
{
	int rc = device_read_superblock(d);

	if (!rc && uuid_equal(&d->sb.group, &f->group) && uuid_equal(&d->sb.cluster, &f->cluster) &&
	    uuid_equal(&d->sb.node, &f->node) && d->sb.flags & SUPERBLOCK_PENDING)
		return 1;
	if (f->wipe)
		return 0;
	rc = check_empty(d);
	if (rc == -ERR_EXISTS)
		log_error("store", "the device carries data; it is not touched without wipe",
			  "device=%s", d->path);
	return rc;
}

/* segment: of the data area; 0: as the device's size suggests. */
static int lay_out(struct device *d, bool with_log, bool with_data, uint64_t log_segment,
		   uint64_t segment)
{
	uint64_t end = d->size - BLOCK_SIZE, at = REGION_START;
	struct superblock *sb = &d->sb;

	sb->size = d->size;
	if (with_log) {
		uint64_t len =
			with_data ? clamp(d->size / 8, LOG_MIN, LOG_MAX) : MIN(end - at, LOG_MAX);

		sb->log_segment_size = log_segment;
		sb->log_start = at;
		sb->log_len = round_down(len, log_segment);
		at += sb->log_len;
	}
	if (with_data) {
		sb->segment_size = segment ? segment
					   : clamp(pow2_below(d->size / 256), DATA_SEGMENT_MIN,
						   DATA_SEGMENT_MAX);
		sb->data_start = at;
		sb->data_len = at < end ? round_down(end - at, sb->segment_size) : 0;
	}
	if ((with_log && sb->log_len < LOG_MIN) ||
	    (with_data && sb->data_len < 8 * sb->segment_size) || at > end) {
		log_error("store", "the device is too small", "device=%s bytes=%llu", d->path,
			  (unsigned long long)d->size);
		return -EINVAL;
	}
	return 0;
}

/* The edges of a wiped device, and the first block of each log segment, so that nothing of a former
 * life can be taken for ours. (The log uuid in each header says so too.) */
static int clear_device(struct device *d)
{
	CLEANUP(free_ptr) uint8_t *zero = xalloc_aligned(BLOCK_SIZE, EDGE_BYTES);
	int rc = device_pwrite(d, zero, MIN((uint64_t)EDGE_BYTES, d->size), 0);

	if (!rc)
		rc = device_pwrite(d, zero, EDGE_BYTES, d->size - EDGE_BYTES);
	for (uint64_t off = 0; !rc && off < d->sb.log_len; off += d->sb.log_segment_size)
		rc = device_pwrite(d, zero, BLOCK_SIZE, d->sb.log_start + off);
	return rc ? rc : device_flush(d);
}

static struct superblock_member member_of(const struct superblock *sb)
{
	return (struct superblock_member){.device = sb->device,
					  .role = (uint16_t)sb->role,
					  .size = sb->size,
					  .data_start = sb->data_start,
					  .data_len = sb->data_len};
}

static uint64_t log_segment_for(uint64_t size, bool cache)
{
	return clamp(pow2_below(size / (cache ? 32 : 256)), LOG_SEGMENT_MIN, LOG_SEGMENT_MAX);
}

static int open_all(const struct store_format *f, struct device *devs, unsigned *opened)
{
	unsigned n = f->capacity_count + (f->cache ? 1 : 0);

	for (*opened = 0; *opened < n; (*opened)++) {
		const char *path = *opened < f->capacity_count ? f->capacity[*opened] : f->cache;
		int rc = device_open(&devs[*opened], path, false, false);

		if (rc) {
			log_error("store", "cannot open the device", "device=%s error=%s", path,
				  err_name(rc));
			return rc;
		}
	}
	return 0;
}

static int format_group(const struct store_format *f, struct device *devs, unsigned n)
{
	struct superblock common = {
		.cluster = f->cluster,
		.node = f->node,
		.group = f->group,
		.flags = SUPERBLOCK_PENDING,
		.group_incarnation = f->group_incarnation,
		.log_incarnation = 1,
		.devices = n,
	};
	struct tier_config tier = {.capacity = devs,
				   .capacity_count = f->capacity_count,
				   .metadata_dir = f->metadata_dir,
				   .group = f->group,
				   .group_incarnation = f->group_incarnation,
				   .shards = 1};
	uint64_t log_segment = LOG_SEGMENT_MAX;
	unsigned done = 0;
	int rc = 0;

	for (unsigned i = 0; i < n; i++) {
		rc = check_device(&devs[i], f);
		if (rc < 0)
			return rc;
		done += rc == 1 && devs[i].sb.devices == n;
	}
	if (done == n)
		return 0; /* a re-run of a finished one */
	for (unsigned i = 0; i < n; i++)
		if (!f->cache || i == f->capacity_count)
			log_segment = MIN(log_segment, log_segment_for(devs[i].size, f->cache));
	uuid_make(&common.log);
	/* The map first: superblocks say that a group exists only when all of it does. */
	for (unsigned i = 0; i < n; i++) {
		bool cache = i == f->capacity_count;
		struct superblock *sb = &devs[i].sb;

		*sb = common;
		uuid_make(&sb->device);
		sb->role = cache ? DEVICE_CACHE : DEVICE_CAPACITY;
		sb->index = (uint16_t)(cache ? CACHE_INDEX : i);
		rc = lay_out(&devs[i], !f->cache || cache, !cache, log_segment, 0);
		if (rc)
			return rc;
		common.member[sb->index] = member_of(sb);
	}
	rc = tier_format(&tier);
	for (unsigned i = 0; i < n && !rc; i++) {
		memcpy(devs[i].sb.member, common.member, sizeof(common.member));
		rc = clear_device(&devs[i]);
		if (!rc)
			rc = device_write_superblock(&devs[i]);
		if (!rc)
			rc = FAILPOINT(format_superblock);
	}
	return rc;
}

int store_format(const struct store_format *f)
{
	struct device devs[GROUP_DEVICES_MAX];
	unsigned opened = 0;
	int rc;

	if (!f->capacity_count || f->capacity_count > GROUP_DEVICES_MAX - 1 ||
	    !f->group_incarnation || !f->metadata_dir)
		return -EINVAL;
	rc = open_all(f, devs, &opened);
	if (!rc)
		rc = format_group(f, devs, opened);
	while (opened)
		device_close(&devs[--opened]);
	return rc;
}

int store_finalize(const char *const *devices, unsigned count, const struct uuid *group,
		   uint16_t group_number)
{
	for (unsigned i = 0; i < count; i++) {
		struct device d;
		int rc = device_open(&d, devices[i], false, false);

		if (rc)
			return rc;
		rc = device_read_superblock(&d);
		if (!rc && !uuid_equal(&d.sb.group, group))
			rc = -ERR_FOREIGN;
		if (!rc && !(d.sb.flags & SUPERBLOCK_PENDING) && d.sb.group_number != group_number)
			rc = -ERR_EXISTS;
		if (!rc && d.sb.flags & SUPERBLOCK_PENDING) {
			d.sb.flags &= ~(uint32_t)SUPERBLOCK_PENDING;
			d.sb.group_number = group_number;
			rc = device_write_superblock(&d);
		}
		device_close(&d);
		if (rc)
			return rc;
	}
	return 0;
}

int store_probe(const char *path, struct store_probe *out)
{
	struct device d;
	int rc = device_open(&d, path, false, true);

	if (rc)
		return rc;
	rc = device_read_superblock(&d);
	if (!rc) {
		*out = (struct store_probe){
			.sequence = d.sb.sequence,
			.cluster = d.sb.cluster,
			.node = d.sb.node,
			.group = d.sb.group,
			.device = d.sb.device,
			.role = d.sb.role,
			.index = d.sb.index,
			.group_number = d.sb.group_number,
			.group_incarnation = d.sb.group_incarnation,
			.node_incarnation = d.sb.node_incarnation,
			.pending = d.sb.flags & SUPERBLOCK_PENDING,
			.size_bytes = d.sb.size,
		};
		for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
			out->member[i] = (struct store_member){
				.device = d.sb.member[i].device,
				.role = (enum device_role)d.sb.member[i].role,
				.failed = d.sb.member[i].state == MEMBER_FAILED,
				.size_bytes = d.sb.member[i].size,
			};
	}
	device_close(&d);
	return rc;
}

/* Devices that are not there are given up by a reset: what they have is of the old life. */
static int give_up_missing(struct store *s)
{
	bool log = false;

	for (unsigned i = 0; i < s->device_count; i++)
		log |= !s->devices[i].failed && s->devices[i].sb.log_len;
	if (!log)
		return -ERR_LOG_LOST; /* first a new cache device */
	for (unsigned i = 0; i < s->device_count; i++)
		for (unsigned k = 0; k < s->device_count && s->devices[i].failed; k++)
			s->devices[k].sb.member[s->devices[i].sb.index].state = MEMBER_FAILED;
	return 0;
}

int store_reset(const struct store_config *cfg, uint32_t group_incarnation, bool keep_map)
{
	uint32_t log_incarnation = 0;
	struct store *s;
	struct uuid log;
	int rc = group_open(cfg, false, &s);

	if (rc)
		return rc;
	uuid_make(&log);
	/* One for all: where a reset was cut short some have the next number already. */
	for (unsigned i = 0; i < s->device_count; i++)
		log_incarnation = MAX(log_incarnation, s->devices[i].sb.log_incarnation + 1);
	rc = give_up_missing(s);
	/* Superblocks first, marked: a crash between here and the end leaves a group that must be reset
	 * again, never an empty map under the old incarnation. */
	for (unsigned step = 0; step < 2 && !rc; step++) {
		for (unsigned i = 0; i < s->device_count && !rc; i++) {
			struct device *d = &s->devices[i];

			if (d->failed)
				continue;
			if (!step) {
				d->sb.log = log;
				d->sb.log_incarnation = log_incarnation;
				d->sb.group_incarnation = group_incarnation;
			}
			if (!keep_map)
				d->sb.flags = step ? d->sb.flags & ~(uint32_t)SUPERBLOCK_RESETTING
						   : d->sb.flags | SUPERBLOCK_RESETTING;
			if (!step || !keep_map)
				rc = device_write_superblock(d);
		}
		if (!rc && !step && !keep_map) {
			struct tier_config tier;

			group_tier_config(s, cfg, &tier);
			rc = tier_format(&tier);
		}
	}
	group_close(s);
	return rc;
}

/* ---- Replacing a device ------------------------------------------------------------------------ */

/* Opens the device and lays it out as member `index` of the group. 1: it is that member already. */
static int prepare(struct device *d, const char *path, bool buffered, const struct superblock *group,
		   unsigned index, bool wipe)
{
	const struct superblock_member *m = &group->member[index];
	bool single = !group->member[CACHE_INDEX].role;
	int rc = device_open(d, path, buffered, false);

	if (rc)
		return rc;
	rc = device_read_superblock(d);
	if (!rc && uuid_equal(&d->sb.group, &group->group) && uuid_equal(&d->sb.device, &m->device) &&
	    m->state != MEMBER_FAILED)
		return 1;
	rc = wipe ? 0 : check_empty(d);
	if (rc)
		return rc;
	d->sb = *group;
	d->sb.log_start = d->sb.log_len = d->sb.data_start = d->sb.data_len = 0;
	d->sb.log_segment_size = d->sb.segment_size = 0;
	uuid_make(&d->sb.device);
	d->sb.role = m->role;
	d->sb.index = (uint16_t)index;
	rc = lay_out(d, m->role == DEVICE_CACHE || single, m->role == DEVICE_CAPACITY,
		     single ? group->log_segment_size : log_segment_for(d->size, true),
		     group->segment_size);
	if (!rc)
		rc = clear_device(d);
	if (!rc)
		d->sb.member[index] = member_of(&d->sb);
	return rc;
}

struct replacing {
	struct store *store;
	unsigned slot;
};

/* The new device's superblock first: it is then the newest, and says who belongs to the group. */
static int publish(void *arg)
{
	struct replacing *r = arg;
	struct store *s = r->store;
	struct device *d = &s->devices[r->slot];
	uint64_t highest = 0;
	int rc;

	pthread_mutex_lock(&s->superblocks);
	for (unsigned i = 0; i < s->device_count; i++) {
		highest = MAX(highest, s->devices[i].sb.sequence);
		s->devices[i].sb.member[d->sb.index] = member_of(&d->sb);
	}
	d->sb.sequence = highest;
	rc = device_write_superblock(d);
	if (!rc)
		rc = group_save_members(s);
	pthread_mutex_unlock(&s->superblocks);
	return rc;
}

int store_replace(struct store *s, const struct uuid *old, const char *path, bool wipe)
{
	struct replacing r = {.store = s};
	struct superblock group;
	struct device *fresh;
	int rc;

	while (r.slot < s->capacity_count && !uuid_equal(&s->devices[r.slot].sb.device, old))
		r.slot++;
	if (r.slot == s->capacity_count || s->retired_count == ARRAY_LEN(s->retired))
		return r.slot == s->capacity_count ? -ERR_NOT_FOUND : -ERR_LIMIT;
	pthread_mutex_lock(&s->superblocks);
	group = *store_superblock(s);
	pthread_mutex_unlock(&s->superblocks);
	group.log_segment_size = (uint64_t)s->seg_blocks * BLOCK_SIZE;
	group.segment_size = s->devices[r.slot].sb.segment_size;
	fresh = xcalloc(1, sizeof(*fresh));
	rc = prepare(fresh, path, s->buffered, &group, s->devices[r.slot].sb.index, wipe);
	if (!rc) {
		device_fail(&s->devices[r.slot], -ESHUTDOWN, "replaced", 0);
		rc = tier_replace(s->tier, s->devices[r.slot].sb.index, fresh, publish, &r);
	}
	if (rc) {
		device_close(fresh);
		free(fresh);
		return MIN(rc, 0);
	}
	s->retired[s->retired_count++] = fresh;
	log_info("store", "a device was replaced", "device=%s index=%u", path,
		 s->devices[r.slot].sb.index);
	return 0;
}

static int replace_log(struct store *s, struct device *d, uint32_t group_incarnation)
{
	uint64_t highest = 0;
	int rc;

	uuid_make(&d->sb.log);
	d->sb.log_incarnation++;
	d->sb.group_incarnation = group_incarnation;
	for (unsigned i = 0; i < s->device_count; i++)
		highest = MAX(highest, s->devices[i].sb.sequence);
	/* The new one first: newest, of another log than the others. Until they follow the group does
	 * not open,
	 * and a reset that keeps the map ends it. */
	d->sb.sequence = highest;
	rc = device_write_superblock(d);
	for (unsigned i = 0; i < s->device_count && !rc; i++) {
		struct device *o = &s->devices[i];

		if (o->failed || o->sb.role == DEVICE_CACHE)
			continue;
		o->sb.log = d->sb.log;
		o->sb.log_incarnation = d->sb.log_incarnation;
		o->sb.group_incarnation = group_incarnation;
		o->sb.sequence = highest;
		memcpy(o->sb.member, d->sb.member, sizeof(o->sb.member));
		rc = device_write_superblock(o);
	}
	return rc;
}

int store_replace_log(const struct store_config *cfg, uint32_t group_incarnation, const char *path,
		      bool wipe)
{
	struct superblock group;
	struct device fresh;
	struct store *s;
	int rc = group_open(cfg, false, &s);

	if (rc)
		return rc;
	group = s->devices[0].sb;
	for (unsigned i = 0; i < s->device_count; i++) {
		struct device *d = &s->devices[i];

		if (d->sb.role == DEVICE_CAPACITY && !d->failed)
			group = d->sb;
		if (d->sb.role == DEVICE_CACHE)
			device_close(d); /* it may be given again, wiped */
	}
	if (group.member[CACHE_INDEX].role != DEVICE_CACHE) {
		group_close(s);
		return -ERR_NOT_FOUND;
	}
	group.member[CACHE_INDEX].state = MEMBER_FAILED; /* even if it is the same device again */
	rc = prepare(&fresh, path, cfg->buffered, &group, CACHE_INDEX, wipe);
	if (!rc)
		rc = replace_log(s, &fresh, group_incarnation);
	device_close(&fresh);
	group_close(s);
	return rc;
}
