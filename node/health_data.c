/* SPDX-License-Identifier: Apache-2.0 */
/* Health rules of data: copies that are missing and what is done about it, recovery, quarantine, damage and
 * scrub. */
#include "node/health_impl.h"

#define DAMAGE_SHOWN_S (7ull * 86400) /* since the last bad block */

/* ---- Copies ---- */

/* Nobody knows here which objects the damage is of: all that the group has may lack something. */
static bool may_lack(const struct ctx *c, const struct map_group *g)
{
	const struct health_group *f = c->lacking ? find_group(c->in, g->id) : NULL;

	return f && health_group_lacks(f);
}

/* In-sync replicas of o that can be reached now. *where: the node of the last one found. */
static unsigned reachable_copies(struct ctx *c, const struct map_object *o, uint16_t *where,
				 bool *by_node, bool *by_group, bool *by_cut)
{
	bool lacks = false;
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
			lacks |= may_lack(c, g);
		} else if (g->node <= NODE_IDS_MAX)
			*by_cut |= c->cut_off[g->node];
	}
	c->out->unrepaired += lacks;
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

		if (n->state != NODE_ACTIVE || !n->awaited || !(n->roles & ROLE_STORAGE))
			continue;
		affect(i, "%s", n->name);
		awaited++;
	}
	i->count = c->unsure;
	SAY(i->risk, "their reads and writes wait; what is forced without a replica that has more loses "
		     "what that has");
	if (awaited) {
		SAY(i->summary,
		    "%u object%s for %u node%s that did not follow the recovered cluster yet and may "
		    "have more",
		    c->unsure, c->unsure == 1 ? " waits" : "s wait", awaited, awaited == 1 ? "" : "s");
		SAY(i->command,
		    "on %.40s: ashlard recover --follow   # gone for good: ashlar node remove %.40s --dead "
		    "--accept-loss",
		    i->affected[0], i->affected[0]);
		return;
	}
	SAY(i->summary, "the replicas of %u object%s are compared since the cluster was recovered",
	    c->unsure, c->unsure == 1 ? "" : "s");
	SAY(i->command, "if it lasts: ashlar volume show NAME, and: ashlar volume force NAME");
}

static void look_at_object(struct ctx *c, const struct map_volume *v, const struct map_object *o)
{
	bool by_node = false, by_group = false, by_cut = false;
	uint16_t where = 0;
	unsigned n = reachable_copies(c, o, &where, &by_node, &by_group, &by_cut);

	c->out->objects++;
	c->unsure += o->unsure && !is_given_up(c, o);
	if (o->unsure || o->undecided)
		n = 0; /* nobody serves it */
	if (n >= v->copies) {
		c->out->full++;
		return;
	}
	if (n == 0) {
		c->out->unavailable++;
		c->undecided += o->undecided;
		if (o->undecided)
			return;
		if (is_given_up(c, o)) {
			c->given_up++;
			return;
		}
		c->unavailable_by_node |= by_node;
		c->unavailable_by_group |= by_group;
		c->unavailable_by_cut |= by_cut;
		return;
	}
	c->lost_by_node |= by_node;
	c->lost_by_group |= by_group;
	c->lost_by_cut |= by_cut;
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

bool health_rebuild_text(const struct health_rebuild *r, char out[128])
{
	out[0] = 0;
	if (r->blocked)
		snprintf(out, 128, "%u cannot be rebuilt: see REBUILD_BLOCKED", r->blocked);
	else if (r->held)
		snprintf(out, 128, "the rebuild of %u is paused or was cancelled", r->held);
	else if (r->no_leader)
		snprintf(out, 128, "no copy is made before there is a Raft leader");
	else if ((r->filling || r->queued) && r->seconds_left)
		snprintf(out, 128, "being copied, about %llu s left",
			 (unsigned long long)r->seconds_left);
	else if (r->filling || r->queued)
		snprintf(out, 128, "being copied");
	else if (r->waiting)
		snprintf(out, 128, "a rebuild begins when the node was away for %u s", r->delay_s);
	return out[0];
}

static uint64_t undecided_objects(const struct health_input *in)
{
	uint64_t objects = 0;

	for (unsigned k = 0; k < in->node_count; k++)
		objects += in->nodes[k].up ? in->nodes[k].undecided : 0; /* else it is what it said once */
	return objects;
}

static void data_item(struct ctx *c, const char *code, enum health_severity severity,
		      uint64_t count, const char *what, bool by_node, bool by_group, bool by_cut)
{
	const char *or_force = strcmp(code, "DATA_UNAVAILABLE")
				       ? ""
				       : "   # if it is gone for good: ashlar volume force NAME";
	struct health_item *i;
	uint16_t worst = most_endangering_node(c);
	/* Nobody copies what nobody serves. What only its node calls undecided has a single replica in-sync,
	 * mostly; what the map calls so is unavailable. */
	bool all_undecided = !by_node && !strcmp(code, "DATA_SINGLE_COPY") &&
			     c->undecided + count <= undecided_objects(c->in);
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
	else if (all_undecided)
		SAY(i->caused_by, "DATA_UNDECIDED");
	else if (by_node && listed(c, "NODE_DOWN"))
		SAY(i->caused_by, "NODE_DOWN");
	else if (by_group)
		SAY(i->caused_by, "%s", group_cause(c));
	else if (by_cut)
		SAY(i->caused_by, "NET_PARTIAL_PARTITION");
	else if (c->full && strcmp(code, "DATA_UNAVAILABLE"))
		SAY(i->caused_by, "SPACE_FULL_HOLD"); /* what comes back finds no room */
	if (!strcmp(code, "DATA_SINGLE_COPY") && worst)
		SAY(i->risk, "losing %s loses %u object%s", node_name(c->in, worst),
		    c->single_by_node[worst], c->single_by_node[worst] == 1 ? "" : "s");
	else if (!strcmp(code, "DATA_UNAVAILABLE"))
		SAY(i->risk, "their reads and writes wait; nothing is lost as long as an in-sync "
			     "replica comes back");
	else
		SAY(i->risk, "one more lost copy leaves them with a single one");
	n = strlen(i->summary);
	if (c->in->rebuild && strcmp(code, "DATA_UNAVAILABLE") && !all_undecided &&
	    health_rebuild_text(c->in->rebuild, text))
		snprintf(i->summary + n, sizeof(i->summary) - n, "; %s", text);
	if (!i->caused_by[0] && c->in->rebuild && c->in->rebuild->blocked)
		SAY(i->command, "ashlar health   # REBUILD_BLOCKED says what is missing");
	else if (!i->caused_by[0])
		SAY(i->command, "ashlar volume show NAME   # replicas that are up are catching up");
	else if (!strcmp(i->caused_by, "RECOVERY_UNSETTLED"))
		SAY(i->command, "ashlar health   # RECOVERY_UNSETTLED says what is waited for");
	else if (!strcmp(i->caused_by, "DATA_UNDECIDED"))
		SAY(i->command, "ashlar health   # DATA_UNDECIDED says how to decide");
	else if (!strcmp(i->caused_by, "NODE_DOWN"))
		SAY(i->command, "bring the node back: ashlar node list%s", or_force);
	else if (!strcmp(i->caused_by, "NET_PARTIAL_PARTITION"))
		SAY(i->command, "ashlar health   # NET_PARTIAL_PARTITION says which link is cut");
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
		if (listed(c, "NODE_DOWN"))
			SAY(i->caused_by, "NODE_DOWN");
		SAY(i->risk, "their copies stay missing until a group can take them");
		SAY(i->command, "bring the node back, or: ashlar diskgroup add   # ashlar job list");
	}
	if (r->held) {
		i = add_item(c, "REBUILD_HELD", HEALTH_WARNING);
		i->count = r->held;
		SAY(i->summary, "the rebuild of %u object%s is paused or was cancelled", r->held,
		    r->held == 1 ? "" : "s");
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

static bool has_undecided(const struct map_volume *v)
{
	for (uint32_t i = 0; i < v->objects; i++)
		if (v->object[i].undecided)
			return true;
	return false;
}

/* What a force went past, or has more than its source: nobody else may decide that it is not wanted. */
static void check_quarantine(struct ctx *c)
{
	struct health_item *i = add_item(c, "DATA_QUARANTINED", HEALTH_WARNING);
	const char *undecided = NULL; /* a volume of which */
	unsigned replicas = 0;

	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);
		unsigned before = replicas;

		for (uint32_t k = 0; k < v->objects; k++)
			for (unsigned n = 0; n < v->object[k].member_count; n++)
				replicas += v->object[k].member[n].kept;
		if (replicas == before)
			continue;
		affect(i, "%s", v->name);
		undecided = has_undecided(v) ? v->name : undecided; /* nowhere but beside a quarantine */
	}
	if (!keep_item(c, i))
		return;
	SAY(i->summary,
	    "%u replica%s of %u volume%s kept in quarantine: a force went past %s, or %s what %s source lost",
	    replicas, replicas == 1 ? "" : "s", i->count, i->count == 1 ? " is" : "s are",
	    replicas == 1 ? "it" : "them", replicas == 1 ? "it has" : "they have",
	    replicas == 1 ? "its" : "their");
	SAY(i->risk, "they may have writes that the volume lacks, and take space; no new copy is made where "
		     "they are");
	if (undecided) {
		SAY(i->caused_by, "DATA_UNDECIDED");
		SAY(i->command, "decide first: ashlar volume force %.40s   # until then a discard is refused",
		    undecided);
		return;
	}
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
	    "%u object%s given up with a node that was removed: no replica is in-sync any more",
	    c->given_up, c->given_up == 1 ? " was" : "s were");
	SAY(i->risk, "their I/O waits until an older replica is taken or the volume is deleted");
	SAY(i->command,
	    "ashlar volume force NAME   # or ashlar volume delete NAME; ashlar events says which");
}

static void count_objects(struct ctx *c)
{
	for (unsigned k = 0; k < c->in->group_count; k++)
		c->lacking |= health_group_lacks(&c->in->groups[k]) != 0;
	for (struct hnode *h = hmap_walk(&c->in->map->volumes, NULL); h;
	     h = hmap_walk(&c->in->map->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			look_at_object(c, v, &v->object[i]);
	}
}

static void check_copies(struct ctx *c)
{
	check_given_up(c);
	check_recovery(c);
	data_item(c, "DATA_UNAVAILABLE", HEALTH_ERROR, c->out->unavailable - c->given_up - c->undecided,
		  "have no in-sync replica that can be reached", c->unavailable_by_node,
		  c->unavailable_by_group, c->unavailable_by_cut);
	data_item(c, "DATA_SINGLE_COPY", HEALTH_ERROR, c->out->single,
		  "have a single in-sync replica that can be reached", c->lost_by_node,
		  c->lost_by_group, c->lost_by_cut);
	data_item(c, "DATA_DEGRADED", HEALTH_WARNING, c->out->degraded,
		  "have fewer copies than their policy", c->lost_by_node, c->lost_by_group,
		  c->lost_by_cut);
	check_quarantine(c);
}

/* Those of which the map knows. Returns one of them to decide about, or NULL. */
static const char *affect_undecided_volumes(struct ctx *c, struct health_item *i)
{
	const struct map *m = c->in->map;
	const char *name = NULL;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		if (!has_undecided(v))
			continue;
		affect(i, "volume %s", v->name);
		name = name ? name : v->name;
	}
	return name;
}

/* Nothing but an operator lets them go on: the only replica that may serve lacks something, and says so. */
static void check_undecided(struct ctx *c)
{
	struct health_item *i = add_item(c, "DATA_UNDECIDED", HEALTH_ERROR);
	const char *volume = c->undecided ? affect_undecided_volumes(c, i) : NULL;

	/* The map knows the most of them, their nodes know all; neither alone does when a node is away. */
	c->out->undecided = MAX(c->undecided, undecided_objects(c->in));
	for (unsigned k = 0; k < c->in->node_count; k++)
		if (c->in->nodes[k].up && c->in->nodes[k].undecided)
			affect(i, "%s", node_name(c->in, c->in->nodes[k].id));
	i->count = (unsigned)c->out->undecided; /* also if no node that is up says so */
	if (!keep_item(c, i))
		return;
	SAY(i->summary,
	    "%llu object%s not served: %s in-sync replica lacks acknowledged writes, or contradicts another",
	    (unsigned long long)c->out->undecided, c->out->undecided == 1 ? " is" : "s are",
	    c->out->undecided == 1 ? "its" : "their");
	SAY(i->risk, "their reads and writes wait; going on from the wrong replica loses what another has");
	SAY(i->command, "ashlar volume force %.63s   # what each has; nothing changes without --accept-loss",
	    volume ? volume : "NAME");
}

/* ---- Damage and scrub ---- */

uint64_t health_group_lacks(const struct health_group *g)
{
	return g->known ? g->damaged_bytes + g->lost_bytes : 0;
}

/* A job that empties something else meanwhile, maybe of what g lacks. */
static const struct health_emptying *emptied_beside(const struct ctx *c, const struct health_group *g)
{
	const struct health_rebuild *r = c->in->rebuild;
	const struct map_group *known = map_group(c->in->map, g->id);

	for (unsigned k = 0; r && known && k < r->emptying_count; k++)
		if (r->emptying[k].group ? r->emptying[k].group != g->id : r->emptying[k].node != known->node)
			return &r->emptying[k];
	return NULL;
}

/* Its replicas may be in-sync all the same: what they lack is mended block by block. */
static void check_repairing(struct ctx *c)
{
	struct health_item *i = add_item(c, "DATA_REPAIRING", HEALTH_WARNING);
	const struct health_emptying *beside = NULL;
	uint64_t bytes = 0;
	unsigned first = 0;
	bool device = false;
	char text[24];

	for (unsigned k = 0; k < c->in->group_count; k++) {
		const struct health_group *g = &c->in->groups[k];

		if (!health_group_lacks(g))
			continue;
		bytes += health_group_lacks(g);
		device |= g->lost_bytes != 0;
		first = first ? first : g->id;
		beside = beside ? beside : emptied_beside(c, g);
		affect(i, "group %u on %.40s", g->id, group_node(c, g->id));
	}
	if (!keep_item(c, i))
		return;
	if (device && listed(c, "DISK_FAILED"))
		SAY(i->caused_by, "DISK_FAILED");
	else if (device && listed(c, "DISK_MISSING"))
		SAY(i->caused_by, "DISK_MISSING");
	else if (listed(c, "DATA_CORRUPT_UNREPAIRABLE")) /* to wait is not enough */
		SAY(i->caused_by, "DATA_CORRUPT_UNREPAIRABLE");
	SAY(i->summary, "%s of %u disk group%s are damaged and fetched again from other replicas",
	    bytes_text(bytes, text), i->count, i->count == 1 ? "" : "s");
	if (beside) {
		i->severity = HEALTH_ERROR;
		SAY(i->risk,
		    "job %u takes replicas away meanwhile: what is whole in those only is lost with them, "
		    "and copies made from these groups lack the same",
		    beside->job);
		SAY(i->command, "ashlar job pause %u   # and when this is gone: ashlar job resume %u",
		    beside->job, beside->job);
		return;
	}
	SAY(i->risk, "of these blocks there may be one good copy: losing another node that has them loses "
		     "data; can-stop, can-lose and node remove do not count these groups");
	SAY(i->command, "wait, and stop or remove no other node: ashlar scrub status %u   # DAMAGED NOW",
	    first);
}

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

void health_check_data(struct ctx *c)
{
	count_objects(c);
	check_undecided(c);
	check_copies(c);
	check_rebuild(c);
	check_damage(c);
	check_repairing(c);
	check_scrub(c);
}
