/* SPDX-License-Identifier: Apache-2.0 */
/* Health rules of space: groups that are full, what one more failure would leave, promises, and data that is
 * stored unreduced. */
#include "node/health_impl.h"

#define SPACE_WARNING_PERCENT 80u
#define SPACE_ERROR_PERCENT   95u
#define OVERCOMMIT_PERCENT    300u /* thin provisioning is meant to be more than there is */

static bool group_counts(const struct health_group *g)
{
	return g->known && g->open && !g->failed && g->data_bytes;
}

/* "deleting vm1 frees 3.1 GiB, vm2 at least 1.0 GiB": what to look at first. */
static void say_reclaim(const struct ctx *c, struct health_item *i, const char *otherwise)
{
	size_t n = 0;

	i->command[0] = 0;
	for (unsigned k = 0; k < ARRAY_LEN(c->in->reclaim) && c->in->reclaim[k].name; k++) {
		const struct health_reclaim *r = &c->in->reclaim[k];
		char bytes[24];

		bytes_text(r->bytes, bytes);
		n += (size_t)snprintf(i->command + n, sizeof(i->command) - n, "%s%.40s frees %s%s",
				      k ? ", " : "ashlar volume list   # deleting ", r->name,
				      r->exact ? "" : "at least ", bytes);
	}
	if (!n)
		SAY(i->command, "%s", otherwise);
}

/* A fault set, and what would have to be put elsewhere if it failed. */
struct fault_space {
	const char *name;
	uint64_t used, data;
};

static const char *fault_set_of(const struct ctx *c, uint16_t group)
{
	const struct map_group *g = map_group(c->in->map, group);
	const struct map_node *n = g ? map_node(c->in->map, g->node) : NULL;

	return !n ? "?" : n->fault_set[0] ? n->fault_set : n->name;
}

/* The fault set whose loss leaves least room; how many there are. */
static unsigned worst_loss(const struct ctx *c, struct fault_space *worst, struct fault_space *all)
{
	static _Thread_local struct fault_space set[NODES_MAX];
	unsigned n = 0;

	*worst = *all = (struct fault_space){0};
	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];
		const char *name = fault_set_of(c, g->id);
		unsigned i = 0;

		if (!group_counts(g))
			continue;
		while (i < n && strcmp(set[i].name, name))
			i++;
		if (i == NODES_MAX)
			return 0;
		if (i == n)
			set[n++] = (struct fault_space){.name = name};
		set[i].used += g->used_bytes;
		set[i].data += g->data_bytes;
		all->used += g->used_bytes;
		all->data += g->data_bytes;
	}
	for (unsigned i = 0; i < n; i++)
		if (!worst->name || set[i].data > worst->data ||
		    (set[i].data == worst->data && set[i].used > worst->used))
			*worst = set[i];
	return n;
}

static unsigned percent(uint64_t used, uint64_t data)
{
	return data ? (unsigned)(used / (data / 100 + 1)) : 100;
}

static void check_full(struct ctx *c)
{
	struct health_item *i = add_item(c, "SPACE_FULL_HOLD", HEALTH_ERROR);

	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		if (group_counts(g) && percent(g->used_bytes, g->data_bytes) >= SPACE_ERROR_PERCENT)
			affect(i, "group %u", g->id);
	}
	if (!keep_item(c, i))
		return;
	c->full = true;
	SAY(i->summary, "%u disk group%s nearly out of space: writes that need it get ENOSPC", i->count,
	    i->count == 1 ? " is" : "s are");
	SAY(i->risk, "deletes and trims still work; new data does not, and a replica that comes back there "
		     "stays out");
	say_reclaim(c, i, "ashlar volume list   # delete or trim, or: ashlar diskgroup add");
}

/* Whether copies that are lost with a fault set would be made again: with a copy in each of the sets that are
 * left there is nowhere to make them, and no space is needed for it; what had one copy is gone. */
static bool is_made_again(const struct ctx *c, unsigned sets)
{
	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		if (v->copies > 1 && v->copies < sets)
			return true;
	}
	return false;
}

static void check_near_full(struct ctx *c, const struct fault_space *worst, const struct fault_space *all,
			    unsigned sets)
{
	struct health_item *i = add_item(c, "SPACE_NEAR_FULL", HEALTH_WARNING);
	bool again = is_made_again(c, sets);
	unsigned after = again ? percent(all->used, all->data - worst->data) : 0, groups;

	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];
		unsigned p = group_counts(g) ? percent(g->used_bytes, g->data_bytes) : 0;

		if (p >= SPACE_WARNING_PERCENT && p < SPACE_ERROR_PERCENT)
			affect(i, "group %u", g->id);
	}
	groups = i->count;
	if (after >= SPACE_WARNING_PERCENT && !c->full)
		affect(i, "without %.50s", worst->name);
	if (!keep_item(c, i))
		return;
	if (groups)
		SAY(i->summary, "%u disk group%s above %u %%", groups, groups == 1 ? " is" : "s are",
		    SPACE_WARNING_PERCENT);
	else
		SAY(i->summary, "all data is %u %% of what is there when %.50s is lost", after, worst->name);
	SAY(i->risk, again ? "after one more failure the survivors must hold its copies too"
			   : "writes that need a full group get ENOSPC, and a replica that comes back there "
			     "stays out");
	say_reclaim(c, i, "ashlar diskgroup list   # then add a group, or delete volumes");
}

/* A copy lost with the fault set must find room on what is left. */
static void check_rebuild_room(struct ctx *c, const struct fault_space *worst, const struct fault_space *all,
			       unsigned sets)
{
	uint64_t left = all->data - worst->data - (all->used - worst->used);
	struct health_item *i;
	char need[24], room[24];

	if (!is_made_again(c, sets) || worst->used <= left || c->full)
		return;
	i = add_item(c, "SPACE_REBUILD_RESERVE", HEALTH_WARNING);
	affect(i, "%s", worst->name);
	bytes_text(worst->used, need);
	bytes_text(left, room);
	SAY(i->summary,
	    "%.50s has %s of copies, and the others have room for %s: they could not be made "
	    "again",
	    worst->name, need, room);
	SAY(i->risk, "if it is lost for good, some objects stay with a copy less");
	say_reclaim(c, i, "ashlar diskgroup add, or delete volumes");
}

static void check_overcommit(struct ctx *c, const struct fault_space *all)
{
	uint64_t provisioned = 0;
	struct health_item *i;
	char a[24], b[24];

	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		provisioned += v->size * v->copies;
	}
	for (unsigned k = 0; k < c->in->group_count; k++)
		if (!group_counts(&c->in->groups[k]))
			return; /* what is not known now would make it look worse than it is */
	if (!all->data || provisioned / OVERCOMMIT_PERCENT <= all->data / 100)
		return;
	i = add_item(c, "OVERCOMMIT", HEALTH_WARNING);
	i->count = 1;
	bytes_text(provisioned, a);
	bytes_text(all->data, b);
	SAY(i->summary, "volumes are promised %s with their copies, more than %u %% of the %s there is", a,
	    OVERCOMMIT_PERCENT, b);
	SAY(i->risk, "guests that fill their volumes meet ENOSPC long before");
	SAY(i->command, "ashlar diskgroup add, or fewer and smaller volumes");
}

static void check_reduction(struct ctx *c)
{
	struct health_item *full = add_item(c, "DEDUP_INDEX_FULL", HEALTH_INFO), *raw;

	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		/* It doubles: what cannot double once more is full. */
		if (group_counts(g) && g->hint_evictions && g->hint_bytes * 2 > g->hint_budget_bytes)
			affect(full, "group %u", g->id);
	}
	if (keep_item(c, full)) {
		SAY(full->summary, "the dedup hints of %u disk group%s fill their budget", full->count,
		    full->count == 1 ? "" : "s");
		SAY(full->risk, "none; duplicates of the oldest data are not found");
		SAY(full->command, "raise memory: dedup_hints in ashlard.yaml of its node");
	}
	raw = add_item(c, "REDUCTION_BYPASSED", HEALTH_WARNING);
	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		if (group_counts(g) && g->bypassed_blocks && g->reduce_pending)
			affect(raw, "group %u", g->id);
	}
	if (keep_item(c, raw)) {
		SAY(raw->summary, "%u disk group%s stored data unreduced because writes came faster",
		    raw->count, raw->count == 1 ? "" : "s");
		SAY(raw->risk, "it takes more space until it is looked at again, which is done when there is "
			       "time");
		SAY(raw->command, "ashlar diskgroup flush GROUP --reduce   # does it now");
	}
}

void health_check_space(struct ctx *c)
{
	struct fault_space worst, all;
	unsigned sets = worst_loss(c, &worst, &all);

	check_full(c);
	check_near_full(c, &worst, &all, sets);
	check_rebuild_room(c, &worst, &all, sets);
	check_overcommit(c, &all);
	check_reduction(c);
}
