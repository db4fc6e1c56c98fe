/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier's two doors: of an open group, and of one that nobody has open. It must never write.
 */
#include <stdlib.h>
#include <sys/file.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

int store_verify(struct store *s, struct store_verify *out)
{
	return tier_verify_all(s->tier, false, out);
}

struct offline {
	struct device devices[GROUP_DEVICES_MAX]; /* capacity, by index */
	unsigned count;
};

static int by_index(const void *a, const void *b)
{
	return (int)((const struct device *)a)->sb.index -
	       (int)((const struct device *)b)->sb.index;
}

static int open_devices(const struct store_config *cfg, struct offline *f)
{
	for (unsigned i = 0; i < cfg->device_count; i++) {
		struct device *d = &f->devices[f->count];
		int rc;

		if (f->count == GROUP_DEVICES_MAX)
			return -ERR_LIMIT;
		rc = device_open(d, cfg->devices[i], cfg->buffered, true);
		if (rc)
			return rc;
		rc = device_read_superblock(d);
		if (!rc)
			rc = device_lock(d, LOCK_SH);
		if (rc) {
			device_close(d);
			return rc;
		}
		if (d->sb.role == DEVICE_CAPACITY)
			f->count++;
		else
			device_close(d);
	}
	qsort(f->devices, f->count, sizeof(f->devices[0]), by_index);
	return f->count ? 0 : -ENODATA;
}

int store_verify_offline(const struct store_config *cfg, bool data, struct store_verify *out)
{
	struct offline *f = xcalloc(1, sizeof(*f));
	struct tier_config tc = {.metadata_dir = cfg->metadata_dir,
				 .shards = 1,
				 .page_cache_bytes = 1 << 20,
				 .read_only = true};
	struct tier *t;
	int rc = open_devices(cfg, f);

	memset(out, 0, sizeof(*out));
	if (!rc) {
		tc.capacity = f->devices;
		tc.capacity_count = f->count;
		tc.group = f->devices[0].sb.group;
		tc.group_incarnation = f->devices[0].sb.group_incarnation;
		rc = tier_open(&tc, &t);
	}
	if (!rc) {
		rc = tier_verify_all(t, data, out);
		tier_close(t);
	}
	for (unsigned i = 0; i < f->count; i++)
		device_close(&f->devices[i]);
	free(f);
	return rc;
}
