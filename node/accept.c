/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect, and to which loop the connection goes. TLS has verified that the certificate is
 * the cluster's and names the hello's identity; here the hello must fit what the cluster knows. */
#include <stdio.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

#define CONTROL_SEND_LIMIT (32u << 20)
#define DATA_SEND_LIMIT    (16u << 20)

static bool refuse(struct wire_refusal *f, enum refuse_reason reason, uint32_t detail,
		   const char *text)
{
	*f = (struct wire_refusal){.reason = (uint16_t)reason, .detail = detail};
	snprintf(f->text, sizeof(f->text), "%s", text);
	return false;
}

static bool refuse_removed(const struct node *n, struct wire_refusal *f)
{
	return refuse(f, REFUSE_REMOVED, birth_has_ca_key(n->config.state_dir),
		      "your node was removed from the cluster");
}

/* Another node: its number, uuid and incarnation must be what we know, or newer. */
static bool accept_node(struct node *n, const struct wire_hello *peer, struct wire_refusal *f)
{
	struct uuid uuid;
	uint32_t incarnation;

	char name[UUID_TEXT + 8] = "node:";

	uuid_format(&peer->self, name + 5);
	if (peers_removed(n, name))
		return refuse_removed(n, f);
	if (peer->recovery != n->identity.recovery || peer->recovery_id != n->identity.recovery_id) {
		node_left_behind(n, peer->recovery, name);
		return refuse(f, REFUSE_RECOVERED, n->identity.recovery,
			      peer->recovery == n->identity.recovery
				      ? "your cluster and this one were recovered beside each other"
			      : peer->recovery > n->identity.recovery
				      ? "your cluster was recovered without this node, which is of before"
				      : "the cluster was recovered without your node: on it, ashlard "
					"recover --follow");
	}
	if (peer->node == n->identity.number)
		return refuse(f, REFUSE_IDENTITY, n->identity.incarnation,
			      "this is your own node number");
	if (peers_identity(n, peer->node, &uuid, &incarnation) < 0)
		return refuse(f, REFUSE_NOT_READY, 0, "this node does not know you yet");
	if (!uuid_equal(&uuid, &peer->self))
		return refuse(f, REFUSE_IDENTITY, 0, "your node number belongs to another uuid");
	if (peer->incarnation < incarnation)
		return refuse(f, REFUSE_INCARNATION, incarnation,
			      "a newer process of your node has registered: this one is fenced");
	if (peer->node > n->identity.number)
		return refuse(f, REFUSE_IDENTITY, 0, "the lower node number dials");
	return true;
}

bool node_accept(void *node, const struct wire_hello *peer, const char *tls_name,
		 struct accept_decision *d, struct wire_refusal *f)
{
	struct node *n = node;
	bool is_data = peer->kind == HELLO_DATA || peer->kind == HELLO_CLIENT_DATA;
	struct shard *s = NULL;

	if (n->stopping)
		return refuse(f, REFUSE_NOT_READY, 0, "this node is stopping");
	if ((peer->kind == HELLO_CONTROL || peer->kind == HELLO_DATA) && !accept_node(n, peer, f))
		return false;
	if (tls_name && peers_removed(n, tls_name)) /* its front ends would come as clients */
		return refuse_removed(n, f);
	if (peer->kind == HELLO_CLIENT_CONTROL && !state_map(control_state(n->control))->nodes.count)
		return refuse(f, REFUSE_NOT_READY, 0, "this node is starting: it has no map yet");
	if (is_data) {
		if (!n->shards_running)
			return refuse(f, REFUSE_NOT_READY, 0, "this node is starting");
		s = &n->shards[peer->stream % n->shard_count];
	}
	*d = (struct accept_decision){.loop = s ? s->loop : n->loop,
				      .pool = s ? s->pool : n->pool,
				      .send_limit = is_data ? DATA_SEND_LIMIT : CONTROL_SEND_LIMIT,
				      .data = s ? (void *)s : (void *)n};
	node_hello(n, peer->kind, peer->stream, peer->streams, &d->welcome);
	switch (peer->kind) {
	case HELLO_CONTROL:
		d->accepted = peers_accepted;
		break;
	case HELLO_DATA:
		d->accepted = streams_accepted;
		break;
	case HELLO_CLIENT_CONTROL:
		d->accepted = peers_client_accepted;
		break;
	case HELLO_CLIENT_DATA:
		d->accepted = shard_client_accepted;
		break;
	default:
		return refuse(f, REFUSE_VERSION, 0, "unknown kind of connection");
	}
	return true;
}
