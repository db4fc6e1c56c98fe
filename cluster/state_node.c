/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes and disk groups in the state machine: birth, start, states. */
#include "cluster/state_impl.h"

#define ROLES_ALL (ROLE_STORAGE | ROLE_VOTER | ROLE_GATEWAY)

/* What a record of a node must be, whoever brings it. */
static int node_check(struct state *s, const struct map_node *n, struct command_result *out)
{
	struct map_node *other;

	if (!state_name_ok(n->name))
		return state_refuse(out, -ERR_INVALID, "node name \"%s\": %s", n->name, NAME_RULE);
	if (n->fault_set[0] && !state_name_ok(n->fault_set))
		return state_refuse(out, -ERR_INVALID, "node %s: fault set \"%s\" is not valid: %s",
				    n->name, n->fault_set, NAME_RULE);
	if (uuid_is_nil(&n->uuid))
		return state_refuse(out, -ERR_INVALID, "node %s has no uuid", n->name);
	if (!n->address[0])
		return state_refuse(out, -ERR_INVALID,
				    "node %s has no peer address: set `address` in its "
				    "configuration",
				    n->name);
	if (!n->roles || n->roles & ~ROLES_ALL)
		return state_refuse(out, -ERR_INVALID,
				    "node %s: roles must be one or more of storage, voter, "
				    "gateway",
				    n->name);
	other = map_node_by_name(&s->map, n->name);
	if (other && other->state != NODE_REMOVED)
		return state_refuse(out, -ERR_EXISTS,
				    "a node named %s is in the cluster already (number %u): "
				    "choose another name in the configuration",
				    n->name, other->id);
	for (struct hnode *h = hmap_walk(&s->map.nodes, NULL); h; h = hmap_walk(&s->map.nodes, h)) {
		other = container_of(h, struct map_node, by_id);
		if (other->state != NODE_REMOVED && !strcmp(other->address, n->address))
			return state_refuse(out, -ERR_EXISTS,
					    "another node has the address %s already: each "
					    "node needs its own `address`",
					    n->address);
	}
	return 0;
}

static struct map_node *node_insert(struct state *s, const struct map_node *in,
				    enum node_state state)
{
	struct map_node *n = map_node_put(&s->map, s->map.next_node), copy = *in;

	copy.by_id = n->by_id;
	copy.id = n->id;
	copy.state = state;
	*n = copy;
	s->map.next_node++;
	state_node_changed(s, n);
	return n;
}

int state_cluster_init(struct state *s, const struct command *c, struct command_result *out)
{
	int rc;

	if (!uuid_is_nil(&s->map.cluster)) {
		out->id = 1;
		if (uuid_equal(&s->map.cluster, &c->init.cluster))
			return 0;
		return state_refuse(out, -ERR_CLAIMED,
				    "this node belongs to cluster \"%s\" already", s->name);
	}
	if (uuid_is_nil(&c->init.cluster))
		return state_refuse(out, -ERR_INVALID, "the cluster has no uuid");
	if (!state_name_ok(c->init.name))
		return state_refuse(out, -ERR_INVALID, "cluster name \"%s\": %s", c->init.name,
				    NAME_RULE);
	rc = node_check(s, &c->init.node, out);
	if (rc)
		return rc;
	s->map.cluster = c->init.cluster;
	memcpy(s->name, c->init.name, sizeof(s->name));
	out->id = node_insert(s, &c->init.node, NODE_ACTIVE)->id;
	state_event_add(s, 0, "CLUSTER_INIT", "cluster %s was made; first node %s", s->name,
			c->init.node.name);
	return 0;
}

int state_node_add(struct state *s, const struct command *c, struct command_result *out)
{
	const struct map_node *in = &c->node_add.node;
	struct map_node *n = map_node_by_uuid(&s->map, &in->uuid);
	unsigned live = 0;
	int rc;

	if (n && n->state == NODE_JOINING && !strcmp(n->name, in->name)) {
		out->id = n->id; /* the same join again */
		return 0;
	}
	if (n)
		return state_refuse(out, -ERR_EXISTS,
				    "node %s (number %u) has this uuid already: give the "
				    "joining node an empty state directory",
				    n->name, n->id);
	rc = node_check(s, in, out);
	if (rc)
		return rc;
	for (struct hnode *h = hmap_walk(&s->map.nodes, NULL); h; h = hmap_walk(&s->map.nodes, h))
		live += container_of(h, struct map_node, by_id)->state != NODE_REMOVED;
	if (live >= NODES_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "the cluster has %u nodes, the most it can have: remove "
				    "one first",
				    live);
	if (s->map.next_node > NODE_IDS_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "all %u node numbers were used: they are never given out again",
				    NODE_IDS_MAX);
	rc = state_token_take(s, c->node_add.token_sha256, out);
	if (rc)
		return rc;
	n = node_insert(s, in, NODE_JOINING);
	out->id = n->id;
	state_event_add(s, 0, "NODE_ADDED", "node %s joined as number %u", n->name, n->id);
	return 0;
}

int state_node_start(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_node *n = map_node(&s->map, c->node_start.node);
	bool again;

	if (!n)
		return state_refuse(out, -ERR_NOT_FOUND, "node %u is not in the cluster",
				    c->node_start.node);
	out->id = n->id;
	out->number = n->incarnation;
	if (n->state == NODE_REMOVED || n->state == NODE_DEAD)
		return state_refuse(out, -ERR_FOREIGN,
				    "node %s was %s: it may not come back; join it as a new "
				    "node with an empty state directory",
				    n->name, n->state == NODE_DEAD ? "declared dead" : "removed");
	if (c->node_start.shards && !is_pow2(c->node_start.shards))
		return state_refuse(out, -ERR_INVALID,
				    "node %s: the number of shards must be a power of two",
				    n->name);
	if (!c->node_start.shards || !c->node_start.address[0] || !c->node_start.roles ||
	    c->node_start.roles & ~ROLES_ALL)
		return state_refuse(out, -ERR_INVALID,
				    "node %s: shards, address and roles must be given", n->name);
	/* The same registration again, after its answer was lost. */
	again = n->incarnation == c->node_start.incarnation &&
		c->node_start.old_incarnation < c->node_start.incarnation &&
		!strcmp(n->address, c->node_start.address) &&
		!strcmp(n->admin, c->node_start.admin) && n->shards == c->node_start.shards;
	if (again)
		return 0;
	if (n->incarnation != c->node_start.old_incarnation ||
	    c->node_start.incarnation <= c->node_start.old_incarnation)
		return state_refuse(out, -ERR_STALE,
				    "node %s is registered with incarnation %u, not %u: its "
				    "disks were rolled back or copied, or it runs twice",
				    n->name, n->incarnation, c->node_start.old_incarnation);
	n->incarnation = c->node_start.incarnation;
	n->shards = c->node_start.shards;
	n->roles = c->node_start.roles;
	n->version_major = c->node_start.version_major;
	n->version_minor = c->node_start.version_minor;
	memcpy(n->address, c->node_start.address, sizeof(n->address));
	memcpy(n->admin, c->node_start.admin, sizeof(n->admin));
	n->state = NODE_ACTIVE;
	n->awaited = false;
	out->number = n->incarnation;
	state_node_changed(s, n);
	state_event_add(s, 0, "NODE_STARTED", "node %s started, incarnation %u, version %u.%u", n->name,
			n->incarnation, n->version_major, n->version_minor);
	return 0;
}

/* Groups of a node that are not removed. */
static unsigned node_groups(const struct state *s, uint16_t node)
{
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&s->map.groups, NULL); h;
	     h = hmap_walk(&s->map.groups, h)) {
		struct map_group *g = container_of(h, struct map_group, by_id);

		count += g->node == node && g->state != GROUP_REMOVED;
	}
	return count;
}

int state_node_state(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_node *n = map_node(&s->map, c->node_state.node);
	static const char *const name[] = {"", "joining", "active", "removed", "dead"};
	uint8_t state = c->node_state.state;

	if (!n)
		return state_refuse(out, -ERR_NOT_FOUND, "node %u is not in the cluster",
				    c->node_state.node);
	out->id = n->id;
	if (state < NODE_JOINING || state > NODE_DEAD || !c->node_state.roles ||
	    c->node_state.roles & ~ROLES_ALL)
		return state_refuse(out, -ERR_INVALID, "node %s: unknown state or roles", n->name);
	if (n->state == state && n->roles == c->node_state.roles)
		return 0;
	/* Forward only: a removed or dead node's incarnations are banned for ever. */
	if (n->state == NODE_REMOVED ||
	    (n->state == NODE_DEAD && state != NODE_REMOVED && state != NODE_DEAD) ||
	    (state == NODE_JOINING && n->state != NODE_JOINING))
		return state_refuse(out, -ERR_REFUSED,
				    "node %s is %s and cannot become %s: join it as a new node",
				    n->name, name[n->state], name[state]);
	if (state == NODE_REMOVED && node_groups(s, n->id))
		return state_refuse(out, -ERR_BUSY,
				    "node %s has %u disk groups: evacuate and remove them first",
				    n->name, node_groups(s, n->id));
	if (n->state != state)
		state_event_add(s, state == NODE_DEAD ? 2 : 0, "NODE_STATE", "node %s is %s now",
				n->name, name[state]);
	n->state = state;
	n->roles = c->node_state.roles;
	state_node_changed(s, n);
	return 0;
}

/* A lease: it ends by itself, so that no forgotten flag keeps a rebuild from happening. The same again
 * only moves its end. */
int state_maintenance(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_node *n = map_node(&s->map, c->maintenance.node);
	uint32_t ttl = c->maintenance.ttl_s;
	bool start = c->maintenance.op == MAINTENANCE_START;

	if (!n || n->state == NODE_REMOVED || n->state == NODE_DEAD)
		return state_refuse(out, -ERR_NOT_FOUND, "node %u is not in the cluster",
				    c->maintenance.node);
	out->id = n->id;
	if (c->maintenance.op == MAINTENANCE_END) {
		if (!n->maintenance_until_ms)
			return 0;
		n->maintenance_since_ms = n->maintenance_until_ms = 0;
		memset(n->maintenance_reason, 0, sizeof(n->maintenance_reason));
		state_node_changed(s, n);
		state_event_add(s, 0, "MAINTENANCE_END", "maintenance of node %s ended", n->name);
		return 0;
	}
	if (!start && c->maintenance.op != MAINTENANCE_EXTEND)
		return state_refuse(out, -ERR_INVALID, "node %s: unknown step of a maintenance",
				    n->name);
	if (ttl < MAINTENANCE_TTL_MIN_S || ttl > MAINTENANCE_TTL_MAX_S)
		return state_refuse(out, -ERR_INVALID,
				    "node %s: a maintenance lasts from %u s to %u days", n->name,
				    MAINTENANCE_TTL_MIN_S, MAINTENANCE_TTL_MAX_S / 86400);
	if (!start && !n->maintenance_until_ms)
		return state_refuse(out, -ERR_NOT_FOUND,
				    "node %s is not in maintenance: start one with `ashlar node "
				    "maintenance start %s`",
				    n->name, n->name);
	if (start && s->time_ms >= n->maintenance_until_ms)
		n->maintenance_since_ms = s->time_ms;
	if (start)
		memcpy(n->maintenance_reason, c->maintenance.reason,
		       sizeof(n->maintenance_reason));
	n->maintenance_until_ms = s->time_ms + ttl * 1000ull;
	state_node_changed(s, n);
	state_event_add(s, 0, start ? "MAINTENANCE_START" : "MAINTENANCE_EXTEND",
			"node %s is in maintenance for %u s: %s", n->name, ttl,
			n->maintenance_reason[0] ? n->maintenance_reason : "no reason given");
	return 0;
}

int state_group_add(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_node *n = map_node(&s->map, c->group_add.node);
	struct map_group *g;

	for (struct hnode *h = hmap_walk(&s->map.groups, NULL); h;
	     h = hmap_walk(&s->map.groups, h)) {
		g = container_of(h, struct map_group, by_id);
		if (!uuid_equal(&g->uuid, &c->group_add.uuid))
			continue;
		out->id = g->id;
		out->number = g->incarnation;
		if (g->node == c->group_add.node && g->state != GROUP_REMOVED)
			return 0; /* the same group again: a re-run finishes a half one */
		return state_refuse(out, -ERR_EXISTS,
				    "disk group %u has this uuid already, on node %u: wipe the "
				    "devices before they are used again",
				    g->id, g->node);
	}
	if (!n || n->state == NODE_REMOVED || n->state == NODE_DEAD)
		return state_refuse(out, -ERR_NOT_FOUND, "node %u is not in the cluster",
				    c->group_add.node);
	if (uuid_is_nil(&c->group_add.uuid) || !c->group_add.incarnation || !c->group_add.raw_bytes)
		return state_refuse(out, -ERR_INVALID,
				    "node %s: a disk group needs a uuid, an incarnation and a "
				    "size",
				    n->name);
	if (!(n->roles & ROLE_STORAGE))
		return state_refuse(out, -ERR_REFUSED,
				    "node %s has no storage role: set it in its configuration "
				    "first",
				    n->name);
	if (node_groups(s, n->id) >= GROUPS_PER_NODE_MAX)
		return state_refuse(out, -ERR_LIMIT,
				    "node %s has %u disk groups, the most a node can have: add "
				    "the devices to one of them",
				    n->name, GROUPS_PER_NODE_MAX);
	if (s->map.next_group > STATE_GROUP_IDS)
		return state_refuse(out, -ERR_LIMIT, "all %u disk group numbers were used",
				    STATE_GROUP_IDS);
	g = map_group_put(&s->map, s->map.next_group++);
	g->node = n->id;
	g->uuid = c->group_add.uuid;
	g->incarnation = c->group_add.incarnation;
	g->raw_bytes = c->group_add.raw_bytes;
	g->state = GROUP_PENDING;
	g->free_steps = 20;
	out->id = g->id;
	out->number = g->incarnation;
	state_group_changed(s, g);
	state_event_add(s, 0, "GROUP_ADDED", "disk group %u on node %s", g->id, n->name);
	return 0;
}

/* Objects with a replica on this incarnation of the group. */
static unsigned group_objects(const struct state *s, const struct map_group *g)
{
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&s->map.volumes, NULL); h;
	     h = hmap_walk(&s->map.volumes, h)) {
		struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			for (unsigned k = 0; k < v->object[i].member_count; k++)
				count += v->object[i].member[k].group == g->id;
	}
	return count;
}

int state_group_state(struct state *s, const struct command *c, struct command_result *out)
{
	struct map_group *g = map_group(&s->map, c->group_state.group);
	static const char *const name[] = {"", "pending", "active", "failed", "removed"};
	uint8_t state = c->group_state.state;

	if (!g)
		return state_refuse(out, -ERR_NOT_FOUND, "there is no disk group %u",
				    c->group_state.group);
	out->id = g->id;
	out->number = g->incarnation;
	if (state < GROUP_PENDING || state > GROUP_REMOVED || c->group_state.free_steps > 20)
		return state_refuse(out, -ERR_INVALID, "disk group %u: unknown state or free space",
				    g->id);
	if (c->group_state.incarnation != g->incarnation)
		return state_refuse(out, -ERR_STALE,
				    "disk group %u has incarnation %u, the report speaks of %u",
				    g->id, g->incarnation, c->group_state.incarnation);
	if (g->state == state && g->free_steps == c->group_state.free_steps)
		return 0;
	if (g->state == GROUP_REMOVED || (state == GROUP_PENDING && g->state != GROUP_PENDING))
		return state_refuse(out, -ERR_REFUSED,
				    "disk group %u is %s and cannot become %s: add the devices "
				    "as a new group",
				    g->id, name[g->state], name[state]);
	if (state == GROUP_REMOVED && group_objects(s, g))
		return state_refuse(out, -ERR_BUSY,
				    "disk group %u holds replicas of %u object%s: evacuate it "
				    "first",
				    g->id, group_objects(s, g), group_objects(s, g) == 1 ? "" : "s");
	if (g->state != state)
		state_event_add(s, state == GROUP_FAILED ? 2 : 0, "GROUP_STATE",
				"disk group %u is %s now", g->id, name[state]);
	g->state = state;
	g->free_steps = c->group_state.free_steps;
	state_group_changed(s, g);
	return 0;
}
