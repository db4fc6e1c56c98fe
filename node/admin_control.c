/* SPDX-License-Identifier: Apache-2.0 */
/* What admin asks of the cluster, asked of a real one: control. */
#include "node/admin.h"

static const struct state *real_state(void *c)
{
	return control_state(c);
}

static void real_status(void *c, struct consensus_status *out)
{
	control_status(c, out);
}

static uint64_t real_applied_us(void *c)
{
	return control_applied_us(c);
}

static bool real_peer_connected(void *c, uint16_t node)
{
	return control_peer_connected(c, node);
}

static uint64_t real_peer_silent_us(void *c, uint16_t node)
{
	return control_peer_silent_us(c, node);
}

static int real_propose(void *c, struct control_propose *p, const struct command *cmd,
			uint64_t deadline_ms, struct wait *w)
{
	return control_propose(c, p, cmd, deadline_ms, w);
}

static int real_volume_create(void *c, struct control_propose *p, const struct map_volume *want,
			      const char *actor, struct wait *w)
{
	return control_volume_create(c, p, want, actor, w);
}

static int real_volume_resize(void *c, struct control_propose *p, uint32_t volume, uint64_t size,
			      const char *actor, struct wait *w)
{
	return control_volume_resize(c, p, volume, size, actor, w);
}

static int real_call(void *c, struct control_call *q, uint16_t node, const char *method,
		     const char *path, const char *json, uint64_t timeout_ms, struct wait *w)
{
	return control_call(c, q, node, method, path, json, timeout_ms, w);
}

static void real_call_answer(void *c, uint64_t ticket, int status, const char *json)
{
	control_call_answer(c, ticket, status, json);
}

static struct relocate_node *real_contacts(void *c)
{
	return control_contacts(c);
}

const struct admin_cluster_ops admin_control_ops = {
	.state = real_state,
	.status = real_status,
	.applied_us = real_applied_us,
	.peer_connected = real_peer_connected,
	.peer_silent_us = real_peer_silent_us,
	.propose = real_propose,
	.volume_create = real_volume_create,
	.volume_resize = real_volume_resize,
	.call = real_call,
	.call_answer = real_call_answer,
	.contacts = real_contacts,
};
