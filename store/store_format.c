/* SPDX-License-Identifier: Apache-2.0 */
/* Preparing devices: format (pending superblocks), finalize, probe, reset. A device that carries anything
 * is refused unless the caller said wipe; what is half done is finished by running it again. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

#define EDGE_BYTES       65536u /* where file systems, partition tables and RAID keep their signatures */
#define REGION_START     (1u << 20)
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

static int lay_out(struct device *d, bool with_log, bool with_data, uint64_t log_segment)
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
		sb->segment_size =
			clamp(pow2_below(d->size / 256), DATA_SEGMENT_MIN, DATA_SEGMENT_MAX);
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

static int format_device(struct device *d, const struct store_format *f,
			 const struct superblock *common, bool cache, unsigned index,
			 uint64_t log_segment)
{
	int rc;

	d->sb = *common;
	uuid_make(&d->sb.device);
	d->sb.role = cache ? DEVICE_CACHE : DEVICE_CAPACITY;
	d->sb.index = (uint16_t)index;
	rc = lay_out(d, cache || !f->cache, !cache, log_segment);
	if (!rc)
		rc = clear_device(d);
	return rc ? rc : device_write_superblock(d);
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
			log_segment = MIN(log_segment,
					  clamp(pow2_below(devs[i].size / (f->cache ? 32 : 256)),
						LOG_SEGMENT_MIN, LOG_SEGMENT_MAX));
	uuid_make(&common.log);
	/* The map first: superblocks say that a group exists only when all of it does. */
	for (unsigned i = 0; i < n; i++) {
		devs[i].sb = common;
		rc = lay_out(&devs[i], !f->cache || i == f->capacity_count, i < f->capacity_count,
			     log_segment);
		if (rc)
			return rc;
	}
	rc = tier_format(&tier);
	for (unsigned i = 0; i < n && !rc; i++) {
		bool cache = i == f->capacity_count;

		rc = format_device(&devs[i], f, &common, cache, cache ? GROUP_DEVICES_MAX - 1 : i,
				   log_segment);
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
	if (!rc)
		*out = (struct store_probe){
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
	device_close(&d);
	return rc;
}

int store_reset(const struct store_config *cfg, uint32_t group_incarnation, bool keep_map)
{
	struct store *s;
	struct uuid log;
	int rc = group_open(cfg, false, &s);

	if (rc)
		return rc;
	uuid_make(&log);
	/* Superblocks first, marked: a crash between here and the end leaves a group that must be reset
	 * again, never an empty map under the old incarnation. */
	for (unsigned step = 0; step < 2 && !rc; step++) {
		for (unsigned i = 0; i < s->device_count && !rc; i++) {
			struct device *d = &s->devices[i];

			if (!step) {
				d->sb.log = log;
				d->sb.log_incarnation++;
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
