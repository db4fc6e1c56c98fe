/* SPDX-License-Identifier: Apache-2.0 */
/* Control connections: one per pair of nodes, on the control loop; and those of clients. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/channel.h"
#include "node/node.h"

#define PEER_SEND_LIMIT (32u << 20)

static struct node *peer_owner(struct channel *ch)
{
	return ch->owner;
}

static const struct map *node_map(const struct node *n)
{
	return n->control ? state_map(control_state(n->control)) : NULL;
}

/* Before the map is there, peers.json says who is who: a hint that TLS identities back up. */
static const struct birth_peer *hint_find(const struct node *n, uint16_t id)
{
	for (unsigned i = 0; i < n->hint_count; i++)
		if (n->hints[i].number == id)
			return &n->hints[i];
	return NULL;
}

/* What others said, where it is newer than what we know. */
static const struct control_node *told_find(const struct node *n, uint16_t id)
{
	const struct map *m = node_map(n);

	for (unsigned i = 0; (!m || n->told.version > m->version) && i < n->told.count; i++)
		if (n->told.node[i].number == id)
			return &n->told.node[i];
	return NULL;
}

int peers_identity(const struct node *n, uint16_t id, struct uuid *uuid, uint32_t *incarnation)
{
	const struct map *m = node_map(n);
	const struct control_node *told = told_find(n, id);
	const struct map_node *known = m ? map_node(m, id) : NULL;
	const struct birth_peer *hint = hint_find(n, id);

	if (known) {
		if (known->state == NODE_REMOVED || known->state == NODE_DEAD)
			return -ERR_NOT_FOUND;
		*uuid = known->uuid;
		*incarnation = known->incarnation;
		return 0;
	}
	if (!hint && !told)
		return -ERR_NOT_FOUND;
	*uuid = told ? told->uuid : hint->uuid;
	*incarnation = 0;
	return 0;
}

bool peers_removed(const struct node *n, const char *tls_name)
{
	const struct map *m = node_map(n);
	const struct map_node *p = m ? map_holder_node(m, tls_name) : NULL;

	return p && (p->state == NODE_REMOVED || p->state == NODE_DEAD);
}

static bool peer_check(struct channel *ch, const struct wire_hello *peer)
{
	struct uuid uuid;
	uint32_t incarnation;

	return peers_identity(peer_owner(ch), ch->peer, &uuid, &incarnation) == 0 &&
	       uuid_equal(&uuid, &peer->self) && peer->incarnation >= incarnation;
}

static void peer_up(struct channel *ch)
{
	log_info("peer", "up", "node=%u incarnation=%u", ch->peer, ch->incarnation);
	control_peer_up(peer_owner(ch)->control, ch->peer, ch->incarnation, ch->conn);
}

static void peer_down(struct channel *ch, int reason)
{
	log_info("peer", "down", "node=%u reason=%s", ch->peer, err_name(reason));
	control_peer_down(peer_owner(ch)->control, ch->peer, reason);
}

static void peer_refused(struct channel *ch)
{
	control_peer_refused(peer_owner(ch)->control, ch->peer);
}

static void peer_frame(struct channel *ch, const struct frame *f)
{
	control_frame(peer_owner(ch)->control, ch->peer, f);
}

static void peer_turned_away(struct channel *ch, const struct wire_refusal *why)
{
	char who[96];

	snprintf(who, sizeof(who), "node %u at %s", ch->peer, ch->address);
	if (why->reason == REFUSE_REMOVED)
		node_removed(peer_owner(ch), who, why->detail != 0);
	if (why->reason == REFUSE_RECOVERED)
		node_left_behind(peer_owner(ch), why->detail, who);
}

static const struct channel_ops peer_ops = {.up = peer_up,
					    .down = peer_down,
					    .refused = peer_refused,
					    .frame = peer_frame,
					    .turned_away = peer_turned_away,
					    .check = peer_check};

static struct channel *peer_find(struct node *n, uint16_t id)
{
	struct channel *ch;

	list_for_each(ch, &n->peers, link) if (ch->peer == id) return ch;
	return NULL;
}

static void peer_want(struct node *n, uint16_t id, const struct uuid *uuid, const char *address)
{
	struct channel *ch = peer_find(n, id);
	struct channel_config cfg = {.loop = n->loop,
				     .pool = n->pool,
				     .tls = n->tls,
				     .self = n->identity.number,
				     .peer = id,
				     .address = address,
				     .peer_uuid = *uuid,
				     .send_limit = PEER_SEND_LIMIT,
				     .ops = &peer_ops,
				     .owner = n};

	if (id == n->identity.number || !address[0])
		return;
	if (ch) {
		if (strcmp(ch->address, address))
			channel_set_address(ch, address);
		return;
	}
	node_hello(n, HELLO_CONTROL, 0, 1, &cfg.hello);
	list_push_back(&n->peers, &channel_create(&cfg)->link);
}

/* What the map says now, for the next start. Best effort: the map is the truth. */
static void hints_save(struct node *n, const struct map *m)
{
	struct birth_peer hints[NODES_MAX];
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *p = container_of(h, struct map_node, by_id);
		struct birth_peer *b = &hints[count];

		if (p->id == n->identity.number || p->state == NODE_REMOVED || count == NODES_MAX)
			continue;
		*b = (struct birth_peer){.number = p->id, .uuid = p->uuid};
		memcpy(b->address, p->address, sizeof(b->address));
		memcpy(b->admin, p->admin, sizeof(b->admin));
		count++;
	}
	if (count == n->hint_count && !memcmp(hints, n->hints, count * sizeof(hints[0])))
		return;
	memcpy(n->hints, hints, count * sizeof(hints[0]));
	n->hint_count = count;
	if (birth_peers_save(n->config.state_dir, hints, count) < 0)
		log_warn("peer",
			 "peers.json could not be written: check space and rights of the state "
			 "directory",
			 "dir=%s", n->config.state_dir);
}

void peers_reconcile(struct node *n)
{
	const struct map *m = node_map(n);
	struct channel *ch, *tmp;

	list_for_each_safe(ch, tmp, &n->peers, link)
	{
		struct uuid uuid;
		uint32_t incarnation;

		if (peers_identity(n, ch->peer, &uuid, &incarnation) < 0)
			channel_destroy(ch);
	}
	for (unsigned i = 0; i < n->told.count; i++)
		if (told_find(n, n->told.node[i].number))
			peer_want(n, n->told.node[i].number, &n->told.node[i].uuid,
				  n->told.node[i].address);
	if (!m || !m->nodes.count) {
		for (unsigned i = 0; i < n->hint_count; i++)
			if (!told_find(n, n->hints[i].number))
				peer_want(n, n->hints[i].number, &n->hints[i].uuid,
					  n->hints[i].address);
		return;
	}
	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *p = container_of(h, struct map_node, by_id);

		if ((p->state == NODE_ACTIVE || p->state == NODE_JOINING) && !told_find(n, p->id))
			peer_want(n, p->id, &p->uuid, p->address);
	}
	hints_save(n, m);
}

void peers_told(struct node *n, const struct control_nodes *list)
{
	if (list->version <= n->told.version)
		return;
	n->told = *list;
	peers_reconcile(n);
}

static void unwanted_frame(struct conn *c, const struct frame *f)
{
}

static void unwanted_closed(struct conn *c, int reason)
{
}

void peers_accepted(void *node, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = unwanted_frame,
					    .on_closed = unwanted_closed};
	struct node *n = node;
	struct channel *ch = peer_find(n, peer->node);

	if (ch && !ch->dial) {
		channel_accepted(ch, c, peer);
		return;
	}
	conn_set(c, &ops, NULL);
	conn_close(c, -ERR_RETRY);
}

/* ---- Clients' control connections ---- */

static void client_frame(struct conn *c, const struct frame *f)
{
	struct node *n = conn_data(c);

	control_client_frame(n->control, c, f);
}

static void client_closed(struct conn *c, int reason)
{
	struct node *n = conn_data(c);

	control_client_down(n->control, c);
}

void peers_client_accepted(void *node, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = client_frame, .on_closed = client_closed};
	struct node *n = node;

	log_info("peer", "client connected", "identity=%s address=%s", conn_peer_name(c),
		 conn_peer_address(c));
	conn_set(c, &ops, n);
	control_client_up(n->control, c, conn_peer_name(c));
}
