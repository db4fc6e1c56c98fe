/* SPDX-License-Identifier: Apache-2.0 */
/* Health of devices: lost, failed, missing, slow. A cache device takes its group with it, a capacity
 * device only
 * what stands on it; a slow one is told by its peers. */
#include "node/health_impl.h"

static void affect_device(struct ctx *c, struct health_item *i, const struct health_device *d)
{
	affect(i, "%.20s:%.42s", group_node(c, d->group), d->path);
}

static void say_replace(struct health_item *i, const struct health_device *d)
{
	SAY(i->command, "ashlar diskgroup replace %u --old %.110s --new DEVICE", d->group, d->path);
}

/* Of a group whose opening is still to come the device may be all right. */
static bool cache_lost(const struct ctx *c, const struct health_device *d)
{
	const struct health_group *g = find_group(c->in, d->group);

	return d->cache && d->state != HEALTH_DEVICE_OK &&
	       !(g && g->known && g->reopening && !g->reopen_failed);
}

static bool group_lost_cache(const struct ctx *c, uint16_t group)
{
	for (unsigned k = 0; k < c->in->device_count; k++)
		if (c->in->devices[k].group == group && cache_lost(c, &c->in->devices[k]))
			return true;
	return false;
}

/* A group without its write log serves nothing until it has a new one. */
static void check_caches(struct ctx *c)
{
	struct health_item *i = add_item(c, "CACHE_DEVICE_LOST", HEALTH_ERROR);
	const struct health_device *first = NULL;

	for (unsigned k = 0; k < c->in->device_count; k++) {
		const struct health_device *d = &c->in->devices[k];

		if (!cache_lost(c, d))
			continue;
		first = first ? first : d;
		affect_device(c, i, d);
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%u disk group%s lost %s cache device and with it the write log: %s does not serve",
	    i->count, i->count == 1 ? "" : "s", i->count == 1 ? "its" : "their",
	    i->count == 1 ? "it" : "each");
	SAY(i->risk, "objects with one copy left are in DATA_SINGLE_COPY; with a new cache device "
		     "only what was not on the capacity devices yet is fetched again");
	say_replace(i, first);
}

/* Groups that failed at work: opened again by themselves, or no more. */
static void check_reopening(struct ctx *c, bool gave_up)
{
	struct health_item *i = add_item(c, gave_up ? "GROUP_STAYS_CLOSED" : "GROUP_REOPENING",
					 gave_up ? HEALTH_ERROR : HEALTH_WARNING);
	unsigned group = 0;

	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		if (!g->known || !(gave_up ? g->gave_up : g->reopening) || group_lost_cache(c, g->id))
			continue;
		group = group ? group : g->id;
		affect(i, "group %u on %.40s", g->id, group_node(c, g->id));
	}
	if (!keep_item(c, i))
		return;
	if (!gave_up) {
		SAY(i->summary, "%u disk group%s failed and %s opened again by %s", i->count,
		    i->count == 1 ? "" : "s", i->count == 1 ? "is" : "are",
		    i->count == 1 ? "itself" : "themselves");
		SAY(i->risk, "its copies are missing until then, and are fetched from their peers if its log "
			     "or map is lost");
		SAY(i->command, "ashlar diskgroup show %u   # why, and when", group);
		return;
	}
	SAY(i->summary, "%u disk group%s failed again and again: %s closed", i->count,
	    i->count == 1 ? "" : "s", i->count == 1 ? "it stays" : "they stay");
	SAY(i->risk, "the copies there are rebuilt elsewhere; objects with one copy left are in "
		     "DATA_SINGLE_COPY");
	SAY(i->command, "ashlar diskgroup show %u   # why; see to it, then restart ashlard on %.40s", group,
	    group_node(c, (uint16_t)group));
}

/* Groups that would begin anew, were they not needed as they are. */
static void check_maps(struct ctx *c)
{
	struct health_item *i = add_item(c, "MAP_DAMAGED", HEALTH_ERROR);

	for (unsigned k = 0; k < c->in->group_count; k++)
		if (c->in->groups[k].known && c->in->groups[k].map_damaged)
			affect(i, "group %u on %.40s", c->in->groups[k].id,
			       group_node(c, c->in->groups[k].id));
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%u disk group%s a damaged map and the only in-sync copy of something: %s", i->count,
	    i->count == 1 ? " has" : "s have",
	    i->count == 1 ? "it serves what it can" : "they serve what they can");
	SAY(i->risk, "blocks that the damaged tables named read as errors; no other replica is in sync "
		     "to have them");
	SAY(i->command, "bring the other replicas back: ashlar node list   # it begins anew once they are in "
			"sync");
}

static void check_failed_disks(struct ctx *c)
{
	struct health_item *failed = add_item(c, "DISK_FAILED", HEALTH_ERROR);
	const struct health_device *device = NULL;
	uint64_t lost = 0;
	unsigned group = 0;

	for (struct hnode *h = hmap_walk(&c->in->map->groups, NULL); h;
	     h = hmap_walk(&c->in->map->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		const struct health_group *f = find_group(c->in, g->id);

		if (g->state == GROUP_REMOVED || g->state == GROUP_PENDING || !group_failed(c->in, g))
			continue; /* pending: half made, without a copy */
		if (group_lost_cache(c, g->id) || (f && f->known && (f->reopening || f->gave_up)))
			continue;
		group = group ? group : g->id;
		affect(failed, "group %u on %.40s", g->id, node_name(c->in, g->node));
	}
	for (unsigned k = 0; k < c->in->device_count; k++) {
		const struct health_device *d = &c->in->devices[k];
		const struct health_group *g = find_group(c->in, d->group);

		if (d->cache || d->state != HEALTH_DEVICE_FAILED)
			continue;
		device = device ? device : d;
		lost += g ? g->lost_bytes : 0;
		affect_device(c, failed, d);
	}
	if (!keep_item(c, failed))
		return;
	if (group) {
		SAY(failed->summary, "%u disk group%s or device%s failed", failed->count,
		    failed->count == 1 ? "" : "s", failed->count == 1 ? "" : "s");
		SAY(failed->risk, "the copies there are gone; objects with one copy left are in "
				  "DATA_SINGLE_COPY");
		SAY(failed->command, "ashlar diskgroup show %u", group);
		return;
	}
	failed->severity = HEALTH_WARNING;
	SAY(failed->summary, "%u capacity device%s failed; the rest of the group serves on", failed->count,
	    failed->count == 1 ? "" : "s");
	if (lost)
		SAY(failed->risk,
		    "%llu MiB that stood there are fetched from other replicas; one more lost copy of it "
		    "may leave a single one",
		    (unsigned long long)(lost >> 20));
	else
		SAY(failed->risk, "what stood there was fetched again; the group has less room");
	say_replace(failed, device);
}

static void check_missing_disks(struct ctx *c)
{
	struct health_item *missing = add_item(c, "DISK_MISSING", HEALTH_WARNING);
	const struct health_device *first = NULL;

	for (unsigned k = 0; k < c->in->device_count; k++) {
		const struct health_device *d = &c->in->devices[k];

		if (d->cache || d->state != HEALTH_DEVICE_MISSING)
			continue;
		first = first ? first : d;
		affect_device(c, missing, d);
	}
	for (unsigned k = 0; k < c->in->node_count && !first; k++) {
		const struct health_node *n = &c->in->nodes[k];

		if (n->missing_devices == 0)
			continue;
		affect(missing, "%.20s:%.42s", node_name(c->in, n->id), n->missing_device);
		missing->count += n->missing_devices - 1;
	}
	if (!keep_item(c, missing))
		return;
	SAY(missing->summary, "%u device%s not found by superblock", missing->count,
	    missing->count == 1 ? " was" : "s were");
	SAY(missing->risk, "a group without its device stays closed or serves less");
	if (first)
		SAY(missing->command,
		    "put it back and restart ashlard there, or: ashlar diskgroup replace %u --old %.80s "
		    "--new DEVICE",
		    first->group, first->path);
	else
		SAY(missing->command,
		    "put the device back and restart ashlard there; ashlar diskgroup list");
}

#define SLOW_FACTOR    4u
#define SLOW_COUNT_MIN 50u /* operations in the minute, else it says nothing */
static const uint64_t slow_floor_us[HEALTH_DEVICE_OPS] = {5000, 10000, 10000};
#define SLOW_ALONE_US 200000u /* without peers to compare with */

/* Median of the mean times of the other devices of the role; 0: there are none with enough to do. */
static uint64_t peers_us(const struct ctx *c, const struct health_device *d, unsigned op)
{
	uint64_t sorted[64];
	unsigned n = 0;

	for (unsigned k = 0; k < c->in->device_count && n < ARRAY_LEN(sorted); k++) {
		const struct health_device *p = &c->in->devices[k];
		unsigned at = n;

		if (p == d || p->cache != d->cache || p->state != HEALTH_DEVICE_OK ||
		    p->count[op] < SLOW_COUNT_MIN)
			continue;
		for (; at && sorted[at - 1] > p->mean_us[op]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = p->mean_us[op];
		n++;
	}
	return n ? MAX(sorted[(n - 1) / 2], 1) : 0;
}

/* A device that still does everything, only much slower than others of its kind: it slows every write
 * that waits
 * for it, and no error says so. Cache devices too. */
static void check_slow_disks(struct ctx *c)
{
	static const char *const names[HEALTH_DEVICE_OPS] = {"reads", "writes", "flushed writes"};
	struct health_item *i = add_item(c, "DISK_SLOW", HEALTH_WARNING);
	const struct health_device *worst = NULL;
	uint64_t worst_peers = 0, worst_mean = 0;
	unsigned worst_op = 0;

	for (unsigned k = 0; k < c->in->device_count; k++) {
		const struct health_device *d = &c->in->devices[k];
		bool slow = false;

		for (unsigned op = 0; op < HEALTH_DEVICE_OPS && d->state == HEALTH_DEVICE_OK; op++) {
			uint64_t peers = peers_us(c, d, op), mean = d->mean_us[op];

			if (d->count[op] < SLOW_COUNT_MIN ||
			    (peers ? mean < slow_floor_us[op] || mean < SLOW_FACTOR * peers
				   : mean < SLOW_ALONE_US))
				continue;
			slow = true;
			if (mean <= worst_mean)
				continue;
			worst = d;
			worst_op = op;
			worst_mean = mean;
			worst_peers = peers;
		}
		if (slow)
			affect_device(c, i, d);
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%.60s of %.30s: %s take %llu.%llu ms (p99 %llu), those of its peers %llu.%llu ms",
	    worst->path, group_node(c, worst->group), names[worst_op], (unsigned long long)worst_mean / 1000,
	    (unsigned long long)worst_mean / 100 % 10, (unsigned long long)worst->p99_us[worst_op] / 1000,
	    (unsigned long long)worst_peers / 1000, (unsigned long long)worst_peers / 100 % 10);
	SAY(i->risk, "every write with a copy on %s waits for it; slow devices often fail next",
	    group_node(c, worst->group));
	say_replace(i, worst);
}

void health_check_disks(struct ctx *c)
{
	check_caches(c);
	check_reopening(c, false);
	check_reopening(c, true);
	check_maps(c);
	check_failed_disks(c);
	check_missing_disks(c);
	check_slow_disks(c);
}
