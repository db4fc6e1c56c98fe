/* SPDX-License-Identifier: Apache-2.0 */
/* Health rules, one function each, over a context that knows which nodes and groups can be reached.
 * A consequence names its root, so that the operator starts where it began. Must never guess: a
 * rule whose facts are unknown stays silent. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "node/base/err.h"
#include "node/health_impl.h"

#define CERT_WARNING_S        (30ll * 86400)
#define CERT_ERROR_S          (3ll * 86400)
#define CLOCK_SKEW_MS         2000
#define CRASH_RECENT_S        3600u
#define SPACE_WARNING_PERCENT 80u
#define SPACE_ERROR_PERCENT   95u
#define DAMAGE_SHOWN_S        (7ull * 86400) /* since the last bad block */
#define OVERCOMMIT_PERCENT    300u /* thin provisioning is meant to be more than there is */

const char *health_severity_name(enum health_severity s)
{
	static const char *const names[] = {"ok", "info", "warning", "error"};

	return names[s];
}

struct health_item *add_item(struct ctx *c, const char *code, enum health_severity severity)
{
	struct health_item *i = &c->out->item[c->out->count];

	CHECK(c->out->count < HEALTH_ITEMS_MAX);
	c->out->count++;
	memset(i, 0, sizeof(*i));
	snprintf(i->code, sizeof(i->code), "%s", code);
	i->severity = severity;
	return i;
}

/* ---- Nodes -----------------------------------------------------------------------------------
 */

static void check_nodes(struct ctx *c)
{
	struct health_item *i = add_item(c, "NODE_DOWN", HEALTH_WARNING);
	unsigned majority = c->in->voter_count / 2 + 1, surprises = 0;

	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state != NODE_ACTIVE || node_up(c->in, n->id))
			continue;
		affect(i, "%s%s", n->name, planned(c, n) ? " (planned)" : "");
		surprises += !planned(c, n);
	}
	if (!keep_item(c, i))
		return;
	if (surprises) {
		SAY(i->summary, "%u node%s down or not serving yet, seen from %s", i->count,
		    i->count == 1 ? " is" : "s are", node_name(c->in, c->in->self));
		SAY(i->command, "check power and network of %s, then: systemctl start ashlard",
		    i->affected[0]);
	} else {
		i->severity = HEALTH_INFO;
		SAY(i->summary, "%u node%s down as planned, in maintenance", i->count,
		    i->count == 1 ? " is" : "s are");
		SAY(i->command, "ashlar node list   # until when; then start ashlard there");
	}
	if (c->voters_down > 0 && c->voters_up == majority)
		SAY(i->risk, "one more lost voter stops all configuration changes: failovers, "
			     "attaches, new volumes");
	else
		SAY(i->risk, "objects with a copy there have one less; see DATA_DEGRADED");
}

static void check_maintenance(struct ctx *c)
{
	struct health_item *under = add_item(c, "NODE_MAINTENANCE", HEALTH_INFO), *over;
	const struct map_node *first = NULL;
	uint64_t now = c->in->now_ms, soonest = UINT64_MAX;

	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (!planned(c, n))
			continue;
		affect(under, "%s", n->name);
		if (n->maintenance_until_ms < soonest) {
			soonest = n->maintenance_until_ms;
			first = n;
		}
	}
	if (keep_item(c, under)) {
		SAY(under->summary, "%s is in maintenance for %llu s more: %s", first->name,
		    (unsigned long long)((soonest - now) / 1000),
		    first->maintenance_reason[0] ? first->maintenance_reason : "no reason given");
		SAY(under->risk, "copies there are not replaced meanwhile, and no primary stays there");
		SAY(under->command, "ashlar node maintenance end %s   # or extend", first->name);
	}
	over = add_item(c, "NODE_MAINT_EXPIRED", HEALTH_WARNING);
	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->maintenance_until_ms && !planned(c, n) && n->state == NODE_ACTIVE)
			affect(over, "%s", n->name);
	}
	if (keep_item(c, over)) {
		SAY(over->summary, "the maintenance of %u node%s ran out and was not ended",
		    over->count, over->count == 1 ? "" : "s");
		SAY(over->risk, "none while the node is up; if it is down its copies are replaced");
		SAY(over->command, "ashlar node maintenance end %s   # or extend %s --ttl 1h",
		    over->affected[0], over->affected[0]);
	}
}

/* Two nodes that are up and do not hear each other on one of their connections. */
static void check_links(struct ctx *c)
{
	struct health_item *i = add_item(c, "NET_PARTIAL_PARTITION", HEALTH_WARNING);
	bool data = false;

	for (unsigned k = 0; k < c->in->link_count; k++) {
		const struct health_link *l = &c->in->links[k];
		const struct map_node *from = map_node(c->in->map, l->from),
				      *to = map_node(c->in->map, l->to);
		bool lost_data;

		if (!from || !to || from->state != NODE_ACTIVE || to->state != NODE_ACTIVE ||
		    !node_up(c->in, l->from) || !node_up(c->in, l->to))
			continue;
		lost_data = !l->data && (from->roles & to->roles & ROLE_STORAGE);
		if (l->control && !lost_data)
			continue;
		data |= lost_data;
		affect(i, "%.25s->%.25s %s", from->name, to->name,
		       l->control   ? "data"
		       : lost_data ? "all"
				   : "control");
	}
	if (!keep_item(c, i))
		return;
	if (data)
		i->severity = HEALTH_ERROR;
	SAY(i->summary, "%u link%s between nodes that are up %s not work, each as the first of the two "
			"sees it",
	    i->count, i->count == 1 ? "" : "s", i->count == 1 ? "does" : "do");
	SAY(i->risk, data ? "objects with copies at both ends drop one of them"
			  : "data connections work; a node cut off from Raft gets no failover");
	SAY(i->command, "check the network between %s: switches, firewall, MTU", i->affected[0]);
}

static bool node_down_listed(const struct ctx *c)
{
	return listed(c, "NODE_DOWN");
}

/* ---- Clocks and crashes ---- */

static void check_clocks(struct ctx *c)
{
	struct health_item *i = add_item(c, "CLOCK_SKEW", HEALTH_WARNING);
	int64_t worst = 0;

	for (unsigned k = 0; k < c->in->node_count; k++) {
		const struct health_node *n = &c->in->nodes[k];
		int64_t skew = n->skew_ms < 0 ? -n->skew_ms : n->skew_ms;

		if (!n->up || skew < CLOCK_SKEW_MS)
			continue;
		affect(i, "%s", node_name(c->in, n->id));
		worst = MAX(worst, skew);
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "clocks differ by up to %lld s from that of %s", (long long)(worst / 1000),
	    node_name(c->in, c->in->self));
	SAY(i->risk, "no data is at risk; leases for people (attachments, maintenance) end early or "
		     "late, certificates may seem invalid");
	SAY(i->command, "timedatectl status   # on %s; run chrony on all nodes", i->affected[0]);
}

static void check_crashes(struct ctx *c)
{
	struct health_item *i = add_item(c, "CRASH_RECENT", HEALTH_INFO);

	for (unsigned k = 0; k < c->in->node_count; k++) {
		const struct health_node *n = &c->in->nodes[k];

		if (n->up && n->crashed && n->up_s < CRASH_RECENT_S)
			affect(i, "%s", node_name(c->in, n->id));
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "ashlard ended without a clean stop in the last hour on %u node%s", i->count,
	    i->count == 1 ? "" : "s");
	SAY(i->risk, "none by itself; it says nothing about why");
	SAY(i->command, "journalctl -u ashlard -b   # on %s: the lines before the start", i->affected[0]);
}

static void check_versions(struct ctx *c)
{
	struct health_item *i = NULL;
	const struct map_node *first = NULL;

	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state != NODE_ACTIVE || n->incarnation == 0)
			continue;
		if (!first) {
			first = n;
			continue;
		}
		if (n->version_major == first->version_major &&
		    n->version_minor == first->version_minor)
			continue;
		if (!i) {
			i = add_item(c, "VERSION_MIXED", HEALTH_INFO);
			affect(i, "%s %u.%u", first->name, first->version_major,
			       first->version_minor);
		}
		affect(i, "%s %u.%u", n->name, n->version_major, n->version_minor);
	}
	if (!i)
		return;
	SAY(i->summary, "nodes run different versions");
	SAY(i->risk, "none while an upgrade is under way; new features wait for the last node");
	SAY(i->command, "finish the upgrade: ansible-playbook ansible/deploy.yml");
}

static void check_certificates(struct ctx *c)
{
	int64_t soonest = INT64_MAX;
	struct health_item *i = add_item(c, "CERT_EXPIRING", HEALTH_WARNING);

	for (unsigned k = 0; k < c->in->node_count; k++) {
		const struct health_node *n = &c->in->nodes[k];

		if (!n->cert_known || n->cert_expires_s >= CERT_WARNING_S)
			continue;
		affect(i, "%s", node_name(c->in, n->id));
		soonest = MIN(soonest, n->cert_expires_s);
	}
	if (!keep_item(c, i))
		return;
	if (soonest < CERT_ERROR_S)
		i->severity = HEALTH_ERROR;
	if (soonest < 0)
		SAY(i->summary, "a node certificate has ended");
	else
		SAY(i->summary, "a node certificate ends in %lld days",
		    (long long)(soonest / 86400));
	SAY(i->risk, "from then on the node cannot connect to others after a restart");
	SAY(i->command, "replace %s: remove it and join it anew, one node at a time",
	    i->affected[0]);
}

/* ---- Disks and space ---------------------------------------------------------------------------
 */

static bool group_counts(const struct health_group *g)
{
	return g->known && g->open && !g->failed && g->data_bytes;
}

static void bytes_say(char *out, size_t len, uint64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double v = (double)bytes;
	unsigned u = 0;

	for (; v >= 1024 && u < ARRAY_LEN(units) - 1; u++)
		v /= 1024;
	snprintf(out, len, "%.1f %s", v, units[u]);
}

/* "deleting vm1 frees 3.1 GiB, vm2 at least 1.0 GiB": what to look at first. */
static void say_reclaim(const struct ctx *c, struct health_item *i, const char *otherwise)
{
	size_t n = 0;

	i->command[0] = 0;
	for (unsigned k = 0; k < ARRAY_LEN(c->in->reclaim) && c->in->reclaim[k].name; k++) {
		const struct health_reclaim *r = &c->in->reclaim[k];
		char bytes[24];

		bytes_say(bytes, sizeof(bytes), r->bytes);
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

static void check_near_full(struct ctx *c, const struct fault_space *worst, const struct fault_space *all,
			    unsigned sets)
{
	struct health_item *i = add_item(c, "SPACE_NEAR_FULL", HEALTH_WARNING);
	unsigned after = sets > 1 ? percent(all->used, all->data - worst->data) : 0, groups;

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
	SAY(i->risk, "after one more failure the survivors must hold its copies too");
	say_reclaim(c, i, "ashlar diskgroup list   # then add a group, or delete volumes");
}

/* A copy lost with the fault set must find room on what is left. With one set left it cannot be rebuilt
 * anyway. */
static void check_rebuild_room(struct ctx *c, const struct fault_space *worst, const struct fault_space *all,
			       unsigned sets)
{
	uint64_t left = all->data - worst->data - (all->used - worst->used);
	struct health_item *i;
	char need[24], room[24];

	if (sets < 3 || worst->used <= left || c->full)
		return;
	i = add_item(c, "SPACE_REBUILD_RESERVE", HEALTH_WARNING);
	affect(i, "%s", worst->name);
	bytes_say(need, sizeof(need), worst->used);
	bytes_say(room, sizeof(room), left);
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
	bytes_say(a, sizeof(a), provisioned);
	bytes_say(b, sizeof(b), all->data);
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

static void check_space(struct ctx *c)
{
	struct fault_space worst, all;
	unsigned sets = worst_loss(c, &worst, &all);

	check_full(c);
	check_near_full(c, &worst, &all, sets);
	check_rebuild_room(c, &worst, &all, sets);
	check_overcommit(c, &all);
	check_reduction(c);
}

/* ---- Data --------------------------------------------------------------------------------------
 */

/* In-sync replicas of o that can be reached now. *where: the node of the last one found. */
static unsigned reachable_copies(struct ctx *c, const struct map_object *o, uint16_t *where,
				 bool *by_node, bool *by_group)
{
	unsigned n = 0;

	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *m = &o->member[i];
		const struct map_group *g = map_group(c->in->map, m->group);

		if (m->kept)
			continue;
		if (!g || g->incarnation != m->group_incarnation || group_failed(c->in, g) ||
		    group_closed(c->in, g))
			*by_group = true;
		else if (!node_up(c->in, g->node))
			*by_node = true;
		else if (m->in) {
			n++;
			*where = g->node;
		}
	}
	return n;
}

/* Its in-sync replicas were on nodes that were removed: nothing comes back by itself. */
static bool is_given_up(const struct ctx *c, const struct map_object *o)
{
	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_group *g = map_group(c->in->map, o->member[i].group);

		if (o->member[i].in && !(g && g->state == GROUP_REMOVED))
			return false;
	}
	return true;
}

/* Since a recovery from a lost Raft majority: nobody serves them before all that may have more was seen. */
static void check_recovery(struct ctx *c)
{
	struct health_item *i;
	unsigned awaited = 0;

	if (!c->unsure)
		return;
	i = add_item(c, "RECOVERY_UNSETTLED", HEALTH_ERROR);
	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state != NODE_ACTIVE || !n->awaited)
			continue;
		affect(i, "%s", n->name);
		awaited++;
	}
	i->count = c->unsure;
	SAY(i->risk, "their reads and writes wait; what is forced without a replica that has more loses "
		     "what that has");
	if (awaited) {
		SAY(i->summary,
		    "%u objects wait for %u node%s that did not follow the recovered cluster yet and may "
		    "have more of them",
		    c->unsure, awaited, awaited == 1 ? "" : "s");
		SAY(i->command,
		    "on %.40s: ashlard recover --follow   # gone for good: ashlar node remove %.40s --dead",
		    i->affected[0], i->affected[0]);
		return;
	}
	SAY(i->summary, "the replicas of %u objects are compared since the cluster was recovered",
	    c->unsure);
	SAY(i->command, "if it lasts: ashlar volume show NAME, and: ashlar volume force NAME");
}

static void look_at_object(struct ctx *c, const struct map_volume *v, const struct map_object *o)
{
	bool by_node = false, by_group = false;
	uint16_t where = 0;
	unsigned n = reachable_copies(c, o, &where, &by_node, &by_group);

	c->out->objects++;
	c->unsure += o->unsure;
	if (o->unsure)
		n = 0;
	if (n >= v->copies) {
		c->out->full++;
		return;
	}
	if (n == 0) {
		c->out->unavailable++;
		if (is_given_up(c, o)) {
			c->given_up++;
			return;
		}
		c->unavailable_by_node |= by_node;
		c->unavailable_by_group |= by_group;
		return;
	}
	c->lost_by_node |= by_node;
	c->lost_by_group |= by_group;
	if (n == 1) {
		c->out->single++;
		if (where <= NODE_IDS_MAX)
			c->single_by_node[where]++;
	} else {
		c->out->degraded++;
	}
}

static uint16_t most_endangering_node(const struct ctx *c)
{
	uint16_t worst = 0;

	for (uint16_t n = 1; n <= NODE_IDS_MAX; n++)
		if (c->single_by_node[n] > c->single_by_node[worst])
			worst = n;
	return worst;
}

static const char *group_cause(const struct ctx *c)
{
	static const char *const codes[] = {"DISK_FAILED", "CACHE_DEVICE_LOST", "GROUP_STAYS_CLOSED",
					    "GROUP_REOPENING", "DISK_MISSING"};

	for (unsigned i = 0; i < ARRAY_LEN(codes); i++)
		if (listed(c, codes[i]))
			return codes[i];
	return "";
}

static void data_item(struct ctx *c, const char *code, enum health_severity severity,
		      uint64_t count, const char *what, bool by_node, bool by_group)
{
	const char *or_force = strcmp(code, "DATA_UNAVAILABLE")
				       ? ""
				       : "   # if it is gone for good: ashlar volume force NAME";
	struct health_item *i;
	uint16_t worst = most_endangering_node(c);
	char text[128];
	size_t n;

	if (count == 0)
		return;
	i = add_item(c, code, severity);
	i->count = (unsigned)count;
	SAY(i->summary, "%llu of %llu objects %s", (unsigned long long)count,
	    (unsigned long long)c->out->objects, what);
	if (listed(c, "RECOVERY_UNSETTLED") && !strcmp(code, "DATA_UNAVAILABLE"))
		SAY(i->caused_by, "RECOVERY_UNSETTLED");
	else if (by_node && node_down_listed(c))
		SAY(i->caused_by, "NODE_DOWN");
	else if (by_group)
		SAY(i->caused_by, "%s", group_cause(c));
	else if (c->full && strcmp(code, "DATA_UNAVAILABLE"))
		SAY(i->caused_by, "SPACE_FULL_HOLD"); /* what comes back finds no room */
	if (!strcmp(code, "DATA_SINGLE_COPY") && worst)
		SAY(i->risk, "losing %s loses %u objects", node_name(c->in, worst),
		    c->single_by_node[worst]);
	else if (!strcmp(code, "DATA_UNAVAILABLE"))
		SAY(i->risk, "their reads and writes wait; nothing is lost as long as an in-sync "
			     "replica comes back");
	else
		SAY(i->risk, "one more lost copy leaves them with a single one");
	n = strlen(i->summary);
	if (c->in->rebuild && strcmp(code, "DATA_UNAVAILABLE") &&
	    health_rebuild_text(c->in->rebuild, text))
		snprintf(i->summary + n, sizeof(i->summary) - n, "; %s", text);
	if (!i->caused_by[0])
		SAY(i->command, "ashlar volume show NAME   # replicas that are up are catching up");
	else if (!strcmp(i->caused_by, "RECOVERY_UNSETTLED"))
		SAY(i->command, "ashlar health   # RECOVERY_UNSETTLED says what is waited for");
	else if (!strcmp(i->caused_by, "NODE_DOWN"))
		SAY(i->command, "bring the node back: ashlar node list%s", or_force);
	else if (!strcmp(i->caused_by, "SPACE_FULL_HOLD"))
		SAY(i->command, "make space: ashlar health   # SPACE_FULL_HOLD says where");
	else
		SAY(i->command, "ashlar diskgroup list%s", or_force);
}

static void check_rebuild(struct ctx *c)
{
	const struct health_rebuild *r = c->in->rebuild;
	struct health_item *i;

	if (!r)
		return;
	if (r->blocked) {
		i = add_item(c, "REBUILD_BLOCKED", HEALTH_ERROR);
		i->count = r->blocked;
		SAY(i->summary, "%.199s", r->why);
		if (node_down_listed(c))
			SAY(i->caused_by, "NODE_DOWN");
		SAY(i->risk, "their copies stay missing until a group can take them");
		SAY(i->command, "bring the node back, or: ashlar diskgroup add   # ashlar job list");
	}
	if (r->held) {
		i = add_item(c, "REBUILD_HELD", HEALTH_WARNING);
		i->count = r->held;
		SAY(i->summary, "the rebuild of %u objects is paused or was cancelled", r->held);
		SAY(i->risk, "their copies stay missing until it goes on or the node comes back");
		SAY(i->command, "ashlar job list, then: ashlar job resume ID");
	}
	if (r->stuck_count) {
		i = add_item(c, "JOB_STUCK", HEALTH_WARNING);
		i->count = r->stuck_count;
		SAY(i->summary, "job %u (%s) has not moved for %llu s", r->stuck_job, r->stuck,
		    (unsigned long long)r->stuck_s);
		SAY(i->risk, "none by itself; what it was to do is not done");
		SAY(i->command, "ashlar job show %u   # what it waits for", r->stuck_job);
	}
}

/* What a force went past: nobody else may decide that it is not wanted. */
static void check_quarantine(struct ctx *c)
{
	struct health_item *i = add_item(c, "DATA_QUARANTINED", HEALTH_WARNING);
	unsigned replicas = 0;

	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);
		unsigned before = replicas;

		for (uint32_t k = 0; k < v->objects; k++)
			for (unsigned n = 0; n < v->object[k].member_count; n++)
				replicas += v->object[k].member[n].kept;
		if (replicas != before)
			affect(i, "%s", v->name);
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%u replica%s of %u volume%s kept in quarantine since a force went past %s",
	    replicas, replicas == 1 ? "" : "s", i->count, i->count == 1 ? " is" : "s are",
	    replicas == 1 ? "it" : "them");
	SAY(i->risk, "they may have writes that the volume lacks, and take space; no new copy is made where "
		     "they are");
	SAY(i->command,
	    "check %.40s, then: ashlar quarantine discard %.40s   # or go back: ashlar volume force",
	    i->affected[0], i->affected[0]);
}

static void check_given_up(struct ctx *c)
{
	struct health_item *i;

	if (!c->given_up)
		return;
	i = add_item(c, "DATA_GIVEN_UP", HEALTH_ERROR);
	i->count = c->given_up;
	SAY(i->summary,
	    "%u objects were given up with a node that was removed: no replica is in-sync any more",
	    c->given_up);
	SAY(i->risk, "their I/O waits until an older replica is taken or the volume is deleted");
	SAY(i->command,
	    "ashlar volume force NAME   # or ashlar volume delete NAME; ashlar events says which");
}

static void check_data(struct ctx *c)
{
	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			look_at_object(c, v, &v->object[i]);
	}
	check_given_up(c);
	check_recovery(c);
	data_item(c, "DATA_UNAVAILABLE", HEALTH_ERROR, c->out->unavailable - c->given_up,
		  "have no in-sync replica that can be reached", c->unavailable_by_node,
		  c->unavailable_by_group);
	data_item(c, "DATA_SINGLE_COPY", HEALTH_ERROR, c->out->single,
		  "have a single in-sync replica that can be reached", c->lost_by_node,
		  c->lost_by_group);
	data_item(c, "DATA_DEGRADED", HEALTH_WARNING, c->out->degraded,
		  "have fewer copies than their policy", c->lost_by_node, c->lost_by_group);
	check_quarantine(c);
}

/* ---- Damage and scrub --------------------------------------------------------------------------
 */

static void check_damage(struct ctx *c)
{
	struct health_item *lost = add_item(c, "DATA_CORRUPT_UNREPAIRABLE", HEALTH_ERROR), *i;
	uint64_t blocks = 0, waiting = 0, bad = 0;
	unsigned first = 0;

	for (unsigned k = 0; k < c->in->node_count; k++) {
		const struct health_node *n = &c->in->nodes[k];

		waiting += n->damaged_blocks;
		blocks += n->lost_blocks;
		if (n->lost_blocks)
			affect(lost, "%s", node_name(c->in, n->id));
	}
	if (keep_item(c, lost)) {
		SAY(lost->summary, "%llu blocks cannot be read on any replica in reach; reads of them fail",
		    (unsigned long long)blocks);
		SAY(lost->risk, "the data of these blocks; all others are served");
		SAY(lost->command, "ashlar events   # which objects; bring absent replicas back, or write "
				   "the blocks anew");
	}
	i = add_item(c, "DATA_DIVERGED", HEALTH_ERROR);
	for (unsigned k = 0; k < c->in->node_count; k++)
		if (c->in->nodes[k].diverged_pages)
			affect(i, "%s", node_name(c->in, c->in->nodes[k].id));
	if (keep_item(c, i)) {
		SAY(i->summary, "copies of a page differ though both are sound; neither was changed");
		SAY(i->risk, "after a failover those blocks may read otherwise than before");
		SAY(i->command, "ashlar events   # which objects and nodes");
	}
	i = add_item(c, "DATA_CORRUPT_REPAIRED", HEALTH_WARNING);
	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		if (!g->bad_blocks || c->in->now_ms / 1000 > g->bad_last_s + DAMAGE_SHOWN_S)
			continue;
		bad += g->bad_blocks;
		first = first ? first : g->id;
		affect(i, "group %u: %.46s", g->id, g->bad_device);
	}
	if (!keep_item(c, i))
		return;
	if (waiting)
		SAY(i->summary, "%llu bad blocks were met, %llu wait for repair from another replica",
		    (unsigned long long)bad, (unsigned long long)waiting);
	else
		SAY(i->summary, "%llu bad blocks were met; all were repaired from another replica",
		    (unsigned long long)bad);
	SAY(i->risk, "a device that returns wrong data once often does so again");
	SAY(i->command, "ashlar diskgroup show %u   # which device; replace it if the number grows", first);
}

static void check_scrub(struct ctx *c)
{
	struct health_item *i;
	uint64_t now = c->in->now_ms / 1000, limit = 2 * c->in->scrub_interval_s;
	unsigned first = 0;
	bool stopped = false;

	if (!limit)
		return;
	i = add_item(c, "SCRUB_OVERDUE", HEALTH_WARNING);
	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];
		uint64_t since = g->scrub_finished_s ? g->scrub_finished_s : g->scrub_started_s;

		if (!g->open || !since || now < since + limit)
			continue;
		first = first ? first : g->id;
		stopped |= g->scrub_stopped;
		affect(i, "group %u", g->id);
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%u disk group%s not been checked for twice scrub_interval_h%s", i->count,
	    i->count == 1 ? " has" : "s have", stopped ? "; somebody stopped it" : "");
	SAY(i->risk, "damage that nobody has met yet is not repaired, and may meet a lost copy");
	SAY(i->command, "ashlar scrub start %u", first);
}

/* ---- Attachments --------------------------------------------------------------------------------
 */

/* Without a leader nobody can renew, and it says nothing about the gateways. */
static void check_attachments(struct ctx *c)
{
	const struct map_attachment *first = NULL;
	bool all_down = true;
	struct health_item *i;

	if (!c->in->leader_known || c->voters_up < c->in->voter_count / 2 + 1)
		return;
	i = add_item(c, "LEASE_ORPHANED", HEALTH_WARNING);
	for (struct hnode *h = hmap_walk(&c->in->map->attachments, NULL); h;
	     h = hmap_walk(&c->in->map->attachments, h)) {
		const struct map_attachment *a = container_of(h, struct map_attachment, by_id);
		const struct map_volume *v = map_volume(c->in->map, a->volume);
		const struct map_node *n = map_holder_node(c->in->map, a->holder);

		if (a->revoked || !v || map_attachment_left_ms(a, c->in->now_ms))
			continue;
		affect(i, "%s", v->name);
		all_down &= n && !node_up(c->in, n->id);
		if (!first || a->id < first->id)
			first = a;
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary, "%u attachment%s not renewed in time: volume %.63s, by %.63s", i->count,
	    i->count == 1 ? " was" : "s were",
	    map_volume(c->in->map, first->volume)->name, first->holder);
	if (all_down && node_down_listed(c))
		SAY(i->caused_by, "NODE_DOWN");
	SAY(i->risk, "no data is at risk; the next gateway that writes takes the volume over, and "
		     "what still runs on the old one then gets I/O errors");
	SAY(i->command, "ashlar volume detach %.63s   # or start its gateway again",
	    map_volume(c->in->map, first->volume)->name);
}

/* ---- The whole ---------------------------------------------------------------------------------
 */

/* The item at the root of i: i itself, or what caused it. */
static const char *root_code(const struct health_item *i)
{
	return i->caused_by[0] ? i->caused_by : i->code;
}

/* A root counts as much as the worst of its consequences. */
static enum health_severity group_severity(const struct health_report *r,
					   const struct health_item *i)
{
	enum health_severity worst = i->severity;

	for (unsigned k = 0; k < r->count; k++)
		if (!strcmp(root_code(&r->item[k]), root_code(i)))
			worst = MAX(worst, r->item[k].severity);
	return worst;
}

/* The worst root first, each followed by its consequences, worst first. */
static bool comes_before(const struct health_report *r, const struct health_item *a,
			 const struct health_item *b)
{
	enum health_severity ga = group_severity(r, a), gb = group_severity(r, b);
	int by_root = strcmp(root_code(a), root_code(b));

	if (ga != gb)
		return ga > gb;
	if (by_root)
		return by_root < 0;
	if (!a->caused_by[0] != !b->caused_by[0])
		return !a->caused_by[0];
	return a->severity > b->severity;
}

static void sort_items(struct health_report *r)
{
	struct health_item sorted[HEALTH_ITEMS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < r->count; i++) {
		unsigned k = n++;

		for (; k > 0 && comes_before(r, &r->item[i], &sorted[k - 1]); k--)
			sorted[k] = sorted[k - 1];
		sorted[k] = r->item[i];
	}
	memcpy(r->item, sorted, n * sizeof(sorted[0]));
}

void health_evaluate(const struct health_input *in, struct health_report *out)
{
	struct ctx c = {.in = in, .out = out};

	out->overall = HEALTH_OK;
	out->count = 0;
	out->objects = out->full = out->degraded = out->single = out->unavailable = 0;
	health_count_voters(&c);
	check_nodes(&c);
	check_maintenance(&c);
	check_links(&c);
	check_clocks(&c);
	check_crashes(&c);
	health_check_raft(&c);
	check_versions(&c);
	check_certificates(&c);
	health_check_disks(&c);
	check_space(&c);
	check_data(&c);
	check_rebuild(&c);
	check_damage(&c);
	check_scrub(&c);
	check_attachments(&c);
	sort_items(out);
	for (unsigned i = 0; i < out->count; i++)
		out->overall = MAX(out->overall, out->item[i].severity);
}

bool health_rebuild_text(const struct health_rebuild *r, char out[128])
{
	out[0] = 0;
	if (r->blocked)
		snprintf(out, 128, "%u cannot be rebuilt: see REBUILD_BLOCKED", r->blocked);
	else if (r->held)
		snprintf(out, 128, "the rebuild of %u is paused or was cancelled", r->held);
	else if ((r->filling || r->queued) && r->seconds_left)
		snprintf(out, 128, "being copied, about %llu s left",
			 (unsigned long long)r->seconds_left);
	else if (r->filling || r->queued)
		snprintf(out, 128, "being copied");
	else if (r->waiting)
		snprintf(out, 128, "a rebuild begins when the node was away for %u s", r->delay_s);
	return out[0];
}

void health_remember(struct health_memory *m, struct health_report *r, uint64_t now_ms)
{
	struct health_memory next = {.count = r->count};

	for (unsigned i = 0; i < r->count; i++) {
		struct health_item *it = &r->item[i];

		it->since_ms = now_ms;
		for (unsigned k = 0; k < m->count; k++)
			if (!strcmp(m->seen[k].code, it->code))
				it->since_ms = m->seen[k].since_ms;
		snprintf(next.seen[i].code, sizeof(next.seen[i].code), "%s", it->code);
		next.seen[i].since_ms = it->since_ms;
	}
	*m = next;
}

/* A step is 5 %. It moves when it is off by more than one, so that it does not flutter; full is
 * told at once, since then nothing more may be placed there. */
uint8_t health_free_steps(uint64_t used_bytes, uint64_t free_bytes, uint8_t now)
{
	double exact = used_bytes + free_bytes
			       ? 20.0 * (double)free_bytes / (double)(used_bytes + free_bytes)
			       : 0;
	uint8_t steps = (uint8_t)exact;

	return !steps == !now && exact < now + 1.5 && exact > now - 0.5 ? now : steps;
}
