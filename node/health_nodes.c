/* SPDX-License-Identifier: Apache-2.0 */
/* Health rules of nodes: down or away as planned, links, clocks, crashes, versions, certificates, and the
 * attachments of those that do not renew them. */
#include "node/health_impl.h"

#define CERT_WARNING_S (30ll * 86400)
#define CERT_ERROR_S   (3ll * 86400)
#define CLOCK_SKEW_MS  2000
#define CRASH_RECENT_S 3600u

static void check_down(struct ctx *c)
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

/* Whoever answers lives, and whom somebody just heard: one that neither is may be frozen or gone, which is
 * another thing than a link that does not work. */
static void who_lives(struct ctx *c)
{
	for (unsigned k = 0; k < c->in->node_count; k++)
		if (c->in->nodes[k].id <= NODE_IDS_MAX)
			c->lives[c->in->nodes[k].id] = c->in->nodes[k].up && c->in->nodes[k].answers;
	for (unsigned k = 0; k < c->in->link_count; k++)
		if (c->in->links[k].to <= NODE_IDS_MAX)
			c->lives[c->in->links[k].to] |= c->in->links[k].heard;
}

/* Both ends are there, and had time to connect. */
static bool is_judged(const struct ctx *c, const struct health_link *l)
{
	const struct health_node *from = find_node(c->in, l->from), *to = find_node(c->in, l->to);

	return from && to && from->up && to->up && !from->settling && !to->settling &&
	       l->from <= NODE_IDS_MAX && l->to <= NODE_IDS_MAX && c->lives[l->to];
}

/* Two nodes that are up and do not hear each other on one of their connections. */
static void check_links(struct ctx *c)
{
	struct health_item *i = add_item(c, "NET_PARTIAL_PARTITION", HEALTH_WARNING);
	bool data = false;
	const struct map_node *a = NULL, *b = NULL; /* the ends of the first */

	for (unsigned k = 0; k < c->in->link_count; k++) {
		const struct health_link *l = &c->in->links[k];
		const struct map_node *from = map_node(c->in->map, l->from),
				      *to = map_node(c->in->map, l->to);
		bool lost_data;

		if (!from || !to || from->state != NODE_ACTIVE || to->state != NODE_ACTIVE)
			continue;
		lost_data = !l->data && (from->roles & to->roles & ROLE_STORAGE);
		if ((l->control && !lost_data) || !is_judged(c, l))
			continue;
		if (lost_data)
			c->cut_off[l->from] = c->cut_off[l->to] = data = true;
		if (!i->count) {
			a = from;
			b = to;
		}
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
	SAY(i->command, "check the network between %s and %s: switches, firewall, MTU", a->name, b->name);
}

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

void health_check_nodes(struct ctx *c)
{
	who_lives(c);
	check_down(c);
	check_maintenance(c);
	check_links(c);
	check_clocks(c);
	check_crashes(c);
	check_versions(c);
	check_certificates(c);
}

/* Without a leader nobody can renew, and it says nothing about the gateways. */
void health_check_attachments(struct ctx *c)
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
	if (all_down && listed(c, "NODE_DOWN"))
		SAY(i->caused_by, "NODE_DOWN");
	SAY(i->risk, "no data is at risk; the next gateway that writes takes the volume over, and "
		     "what still runs on the old one then gets I/O errors");
	SAY(i->command, "ashlar volume detach %.63s   # or start its gateway again",
	    map_volume(c->in->map, first->volume)->name);
}
