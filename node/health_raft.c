/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about Raft: its majority, its voters, and the key of the cluster's CA, which the voters
 * keep. */
#include "node/health_impl.h"

/* Raft talks on control connections. */
static bool voter_up(const struct health_input *in, uint16_t id)
{
	const struct health_node *n = find_node(in, id);

	return n && n->up && !n->data_only;
}

void health_count_voters(struct ctx *c)
{
	for (unsigned i = 0; i < c->in->voter_count; i++)
		if (voter_up(c->in, c->in->voters[i]))
			c->voters_up++;
		else
			c->voters_down++;
}

/* Why voters cannot be reached: one of each kind. One that others hear runs, and connects if it has just come
 * back; one that was removed is not waited for. */
struct absent {
	const struct map_node *down, *cut, *back;
	unsigned removed, count;
};

static struct absent absent_voters(const struct ctx *c)
{
	struct absent a = {0};

	for (unsigned v = 0; v < c->in->voter_count; v++) {
		const struct map_node *n = map_node(c->in->map, c->in->voters[v]);

		if (voter_up(c->in, c->in->voters[v]))
			continue;
		a.count++;
		if (!n || n->state == NODE_REMOVED)
			a.removed++;
		else if (n->id <= NODE_IDS_MAX && c->lives[n->id] && find_node(c->in, n->id)->settling)
			a.back = n;
		else if (n->id <= NODE_IDS_MAX && c->lives[n->id])
			a.cut = a.cut ? a.cut : n;
		else
			a.down = a.down ? a.down : n;
	}
	return a;
}

static void say_cause(const struct ctx *c, const struct absent *a, struct health_item *i)
{
	if (a->down && listed(c, "NODE_DOWN"))
		SAY(i->caused_by, "NODE_DOWN");
	else if (a->cut && listed(c, "NET_PARTIAL_PARTITION"))
		SAY(i->caused_by, "NET_PARTIAL_PARTITION");
}

static void say_command(const struct ctx *c, const struct absent *a, struct health_item *i)
{
	if (a->down)
		SAY(i->command, "start ashlard on %s", a->down->name);
	else if (a->cut)
		SAY(i->command, "check the network between %s and %s, which runs: others hear it",
		    node_name(c->in, c->in->self), a->cut->name);
	else if (a->back)
		SAY(i->command, "wait: %s is back and connects", a->back->name);
	else
		SAY(i->command, "wait: the leader takes the votes of removed nodes away by itself");
}

/* A majority is there, and somebody is not. */
static void check_lost(struct ctx *c, unsigned majority)
{
	struct health_item *i = add_item(c, "RAFT_VOTER_LOST", HEALTH_WARNING);
	struct absent absent = absent_voters(c);
	bool surprise = false;

	for (unsigned v = 0; v < c->in->voter_count; v++) {
		const struct map_node *n = map_node(c->in->map, c->in->voters[v]);

		if (voter_up(c->in, c->in->voters[v]))
			continue;
		affect(i, "%s", n ? n->name : "?");
		surprise |= !n || !planned(c, n);
	}
	if (!surprise)
		i->severity = HEALTH_INFO;
	say_cause(c, &absent, i);
	if (!surprise)
		SAY(i->summary, "%u of %u voters away in maintenance; votes stay where they are",
		    i->count, c->in->voter_count);
	else if (absent.removed == absent.count)
		SAY(i->summary, "%u of %u voters %s removed and still counted", i->count, c->in->voter_count,
		    i->count == 1 ? "was" : "were");
	else if (c->in->voter_taker)
		SAY(i->summary,
		    "%u of %u voters cannot be reached; %s takes over a vote after %u s", i->count,
		    c->in->voter_count, node_name(c->in, c->in->voter_taker), c->in->voter_delay_s);
	else
		SAY(i->summary,
		    "%u of %u voters cannot be reached, and no other node could vote instead",
		    i->count, c->in->voter_count);
	if (c->voters_up == majority)
		SAY(i->risk,
		    "one more lost voter stops all configuration changes: failovers, attaches, "
		    "new volumes");
	else
		SAY(i->risk, "%u more may be lost before configuration changes stop",
		    c->voters_up - majority);
	say_command(c, &absent, i);
}

/* Nothing is known yet, of the voters not even their names. */
static void check_blank(struct ctx *c, unsigned majority)
{
	struct health_item *i = add_item(c, "RAFT_MINORITY", HEALTH_ERROR);

	i->count = 1;
	SAY(i->summary,
	    "this node has started and hears of no Raft leader: it does not know yet what there is; "
	    "%u of %u voters must run",
	    majority, c->in->voter_count);
	SAY(i->risk, "this node serves nothing until then");
	SAY(i->command, "start ashlard on the other voters   # if they are gone for good: "
			"ashlar cluster recover");
}

static void check_majority(struct ctx *c)
{
	unsigned majority = c->in->voter_count / 2 + 1;
	struct absent absent = absent_voters(c);
	struct health_item *i;

	if (c->in->voter_count > 0 && !c->in->map->nodes.count) {
		check_blank(c, majority);
		return;
	}
	if (c->in->voter_count > 0 && c->voters_up < majority) {
		i = add_item(c, "RAFT_MINORITY", HEALTH_ERROR);
		for (unsigned v = 0; v < c->in->voter_count; v++)
			if (!voter_up(c->in, c->in->voters[v]))
				affect(i, "%s", node_name(c->in, c->in->voters[v]));
		SAY(i->summary, "%u of %u voters can be reached; %u are needed", c->voters_up,
		    c->in->voter_count, majority);
		say_cause(c, &absent, i);
		SAY(i->risk, "reads and writes go on where all in-sync replicas are up; any "
			     "further loss stops "
			     "the objects it touches until a majority is back");
		if ((absent.cut || absent.back) && !absent.down)
			say_command(c, &absent, i);
		else
			SAY(i->command,
			    "start ashlard on %s   # if they are gone for good: ashlar cluster recover",
			    absent.down ? absent.down->name : i->affected[0]);
		return;
	}
	if (c->voters_down)
		check_lost(c, majority);
	if (!c->in->leader_known) {
		i = add_item(c, "RAFT_NO_LEADER", HEALTH_ERROR);
		i->count = 1;
		SAY(i->summary,
		    "no Raft leader is known, although a majority of voters can be reached");
		SAY(i->risk,
		    "a further failure cannot be answered by a failover until a leader is elected");
		if (listed(c, "NET_PARTIAL_PARTITION"))
			SAY(i->caused_by, "NET_PARTIAL_PARTITION");
		SAY(i->command, "if it lasts longer than 5 s: ashlar status, and the log of "
				"ashlard on the voters");
	}
}

static void check_number(struct ctx *c)
{
	unsigned able = 0;
	struct health_item *i;

	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		able += n->state == NODE_ACTIVE && (n->roles & ROLE_VOTER) && node_up(c->in, n->id);
	}
	if (c->in->voter_count == 0 || c->in->voter_count >= c->in->voters_wanted ||
	    able < c->in->voters_wanted)
		return;
	i = add_item(c, "RAFT_FEW_VOTERS", HEALTH_WARNING);
	i->count = c->in->voter_count;
	SAY(i->summary, "%u voter%s although %u nodes could vote", c->in->voter_count,
	    c->in->voter_count == 1 ? "" : "s", able);
	if (c->in->voter_count < 3)
		SAY(i->risk, "losing one voter stops all configuration changes");
	else
		SAY(i->risk, "%u may be lost before configuration changes stop; of %u voters it would be %u",
		    (c->in->voter_count - 1) / 2, c->in->voters_wanted, (c->in->voters_wanted - 1) / 2);
	SAY(i->command, "wait: the leader adds voters by itself; if it lasts, its log says why not");
}

/* Two are a majority of two only: an even number of voters is for a moment, or for want of a third. */
static void check_pair(struct ctx *c)
{
	unsigned able = 0;
	struct health_item *i;

	for (struct hnode *h = hmap_walk(&c->in->map->nodes, NULL); h;
	     h = hmap_walk(&c->in->map->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		able += n->state == NODE_ACTIVE && (n->roles & ROLE_VOTER);
	}
	if (c->in->voter_count != 2 || able != 2)
		return;
	i = add_item(c, "RAFT_TWO_VOTERS", HEALTH_WARNING);
	for (unsigned v = 0; v < 2; v++)
		affect(i, "%s", node_name(c->in, c->in->voters[v]));
	SAY(i->summary, "only two nodes vote: losing either stops failovers, attaches and new volumes");
	SAY(i->risk, "with one of them lost the other goes on only where it is the primary by then");
	SAY(i->command,
	    "on a small third host: ashlar node join TOKEN --witness   # ashlar node invite here");
}

/* Each voter fetches the key when it has none: this is only when nobody has it any more. */
static void check_ca_key(struct ctx *c)
{
	struct health_item *i;

	for (unsigned k = 0; k < c->in->node_count; k++)
		if (!c->in->nodes[k].ca_key_known || c->in->nodes[k].ca_key)
			return;
	if (!c->in->node_count)
		return;
	i = add_item(c, "CA_KEY_LOST", HEALTH_ERROR);
	i->count = 1;
	SAY(i->summary, "no node has the private key of the cluster's CA");
	SAY(i->risk,
	    "no data is at risk; no node can join, and no certificate can be issued or renewed");
	SAY(i->command, "put ca.key from a backup, mode 0600, into the state directory of a voter");
}

void health_check_raft(struct ctx *c)
{
	check_majority(c);
	check_number(c);
	check_pair(c);
	check_ca_key(c);
}
