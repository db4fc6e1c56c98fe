/* SPDX-License-Identifier: Apache-2.0 */
/* A node that was removed from the cluster. It learns of it from its own applied state, from the
 * leader when it registers, or from any node that refuses its connection for that reason: their
 * certificates say that they are of the cluster, and a removal is never taken back. Then it notes
 * it durably and ends; from the next start on only its root socket answers, and says what to do.
 *
 * Nobody dials a node that was removed, and a node dials only those of higher numbers. So one that
 * hears no leader for a while knocks at the others too, to be told. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/channel.h"
#include "node/node.h"

#define SILENCE_US       3000000u
#define KNOCK_SEND_LIMIT (64u << 10)

#define REMEDY                                                                                     \
	"to use this host again: stop ashlard, empty the state directory, start it and let it "    \
	"join as a new "                                                                           \
	"node; its disk groups then have to be added anew with --wipe"

/* It signs certificates for the cluster, for whoever reads this disk. But one copy there must be. */
static void ca_key_end(const struct node *n, bool others_have_it)
{
	if (!birth_has_ca_key(n->config.state_dir))
		return;
	if (others_have_it && unlink(n->paths.ca_key) == 0)
		log_info("node", "the key of the cluster's CA was deleted here", "file=\"%s\"",
			 n->paths.ca_key);
	else
		log_warn("node",
			 "the key of the cluster's CA is still here: it is worth a certificate of the "
			 "cluster to whoever has it. Delete it, unless no voter has one (health there: "
			 "CA_KEY_LOST)",
			 "file=\"%s\"", n->paths.ca_key);
}

void node_removed(struct node *n, const char *who, bool ca_key_elsewhere)
{
	n->identity.removed = true;
	ca_key_end(n, ca_key_elsewhere);
	if (identity_save(n->config.state_dir, &n->identity) < 0)
		log_warn("node",
			 "that this node was removed could not be noted: it will be told again",
			 "dir=\"%s\"", n->config.state_dir);
	log_error("node", "this node was removed from the cluster and ends here",
		  "cluster=\"%s\" node=%u told_by=\"%s\" remedy=\"" REMEDY "\"",
		  n->identity.cluster_name, n->identity.number, who);
	_exit(1);
}

void node_removed_refuse(const struct node *n)
{
	log_error("node", "this node was removed from its cluster and takes no part in it",
		  "cluster=\"%s\" node=%u state_dir=\"%s\" remedy=\"" REMEDY "\"",
		  n->identity.cluster_name, n->identity.number, n->config.state_dir);
}

void node_removed_check(struct node *n)
{
	const struct map *m = state_map(control_state(n->control));
	const struct map_node *self = map_node(m, n->identity.number);

	if (self && uuid_equal(&self->uuid, &n->identity.node) &&
	    (self->state == NODE_REMOVED || self->state == NODE_DEAD))
		node_removed(n, "the cluster's state", true); /* in order: admin_remove.c has looked */
}

/* ---- Knocking ---- */

struct knock {
	struct list link;
	struct node *node;
	struct link *dial;
	uint16_t peer;
};

static void knock_frame(struct conn *c, const struct frame *f)
{
}

static void knock_closed(struct conn *c, int reason)
{
}

/* It does not happen: it is theirs to dial. */
static void knock_up(struct link *k, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = knock_frame, .on_closed = knock_closed};

	conn_set(c, &ops, NULL);
	conn_close(c, -ERR_RETRY);
	link_conn_closed(k, -ERR_RETRY);
}

static void knock_down(struct link *k, int reason, const struct wire_refusal *refusal)
{
	struct knock *x = link_data(k);
	char who[24];

	snprintf(who, sizeof(who), "node %u", x->peer);
	if (refusal && refusal->reason == REFUSE_REMOVED)
		node_removed(x->node, who, refusal->detail != 0);
	if (refusal && refusal->reason == REFUSE_RECOVERED)
		node_left_behind(x->node, refusal->detail, who);
}

static void knock_at(struct node *n, const struct channel *ch)
{
	static const struct link_ops ops = {.up = knock_up, .down = knock_down};
	struct knock *x = xcalloc(1, sizeof(*x));
	char text[UUID_TEXT], name[UUID_TEXT + 8];
	struct link_config cfg = {.loop = n->loop,
				  .pool = n->pool,
				  .tls = n->tls,
				  .address = ch->address,
				  .tls_name = name,
				  .send_limit = KNOCK_SEND_LIMIT,
				  .ops = &ops,
				  .data = x};
	struct uuid uuid;
	uint32_t incarnation;

	x->node = n;
	x->peer = ch->peer;
	if (peers_identity(n, ch->peer, &uuid, &incarnation) < 0) {
		free(x);
		return;
	}
	uuid_format(&uuid, text);
	snprintf(name, sizeof(name), "node:%s", text);
	node_hello(n, HELLO_CONTROL, 0, 1, &cfg.hello);
	list_push_back(&n->knocks, &x->link);
	x->dial = link_create(&cfg);
}

static void knocks_end(struct node *n)
{
	struct knock *x, *next;

	list_for_each_safe(x, next, &n->knocks, link)
	{
		list_del(&x->link);
		link_destroy(x->dial);
		free(x);
	}
}

bool node_nobody_leads(const struct node *n)
{
	struct consensus_status st;
	uint64_t now = loop_mono_us(n->loop);

	control_status(n->control, &st);
	return n->listening_us && now - n->listening_us >= SILENCE_US && st.role != CONSENSUS_LEADER &&
	       now - st.leader_contact_us >= SILENCE_US;
}

/* Each time anew, so that addresses are those of now. */
static void on_knock_timer(struct timer *t)
{
	struct node *n = container_of(t, struct node, knock_timer);
	struct channel *ch;

	knocks_end(n);
	timer_set(t, SILENCE_US);
	if (n->stopping || !node_nobody_leads(n))
		return;
	list_for_each(ch, &n->peers, link) if (!ch->conn && !ch->dial) knock_at(n, ch);
}

void node_knock_start(struct node *n)
{
	list_init(&n->knocks);
	n->listening_us = loop_mono_us(n->loop);
	timer_init(&n->knock_timer, n->loop, on_knock_timer);
	timer_set(&n->knock_timer, SILENCE_US);
}
