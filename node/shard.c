/* SPDX-License-Identifier: Apache-2.0 */
/* A shard: one loop thread with its copy of the map, its replicator and its client. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

#define RING_ENTRIES 512u
#define OPS_MAX 4096u

/* ---- What a shard tells the control loop ---- */

struct object_proposals {
	struct post post;
	struct node *node;
	unsigned count;
	struct object_change change[];
};

static void propose_on_control(struct post *p)
{
	struct object_proposals *m = container_of(p, struct object_proposals, post);

	control_propose_objects(m->node->control, m->change, m->count);
	free(m);
}

static void shard_propose(void *ctx, const struct object_change *changes, unsigned count)
{
	struct shard *s = ctx;
	struct object_proposals *m = xmalloc(sizeof(*m) + count * sizeof(*changes));

	m->post.fn = propose_on_control;
	m->node = s->node;
	m->count = count;
	memcpy(m->change, changes, count * sizeof(*changes));
	loop_post(s->node->loop, &m->post);
}

struct shard_notice {
	struct post post;
	struct node *node;
	uint16_t group;
	int code;
	uint8_t severity;
	char name[32], text[256];
};

static void group_failed_on_control(struct post *p)
{
	struct shard_notice *m = container_of(p, struct shard_notice, post);

	node_group_failed(m->node, m->group, m->code);
	free(m);
}

static void shard_group_failed(void *ctx, uint16_t group, int code)
{
	struct shard *s = ctx;
	struct shard_notice *m = xcalloc(1, sizeof(*m));

	*m = (struct shard_notice){ .post.fn = group_failed_on_control, .node = s->node, .group = group,
				    .code = code };
	loop_post(s->node->loop, &m->post);
}

static void shard_superseded(void *ctx)
{
	struct shard *s = ctx;

	node_exit(s->node, "a newer process of this node has registered; this one is fenced");
}

static void event_on_control(struct post *p)
{
	struct shard_notice *m = container_of(p, struct shard_notice, post);

	node_event(m->node, m->severity, m->name, m->text);
	free(m);
}

static void shard_event(void *ctx, uint8_t severity, const char *code, const char *text)
{
	struct shard *s = ctx;
	struct shard_notice *m = xcalloc(1, sizeof(*m));

	*m = (struct shard_notice){ .post.fn = event_on_control, .node = s->node, .severity = severity };
	snprintf(m->name, sizeof(m->name), "%s", code);
	snprintf(m->text, sizeof(m->text), "%s", text);
	log_at(severity >= 2 ? LOG_ERROR : LOG_WARN, "event", text, "code=%s", code);
	loop_post(s->node->loop, &m->post);
}

static bool shard_leader_known(void *ctx)
{
	struct shard *s = ctx;

	return atomic_load_explicit(&s->node->leader_known, memory_order_relaxed);
}

static uint64_t shard_wall_ms(void *ctx)
{
	return wall_ms();
}

static const struct replicator_hooks replicator_hooks = {
	.propose = shard_propose,
	.group_failed = shard_group_failed,
	.superseded = shard_superseded,
	.event = shard_event,
	.leader_known = shard_leader_known,
	.wall_ms = shard_wall_ms,
};

/* ---- The client's proposals: attach, renew and detach ---- */

struct client_proposal {
	struct post post;
	struct shard *shard;
	struct command cmd;
	uint32_t *renew; /* cmd's array */
	struct control_propose propose;
	struct wait control_wait;
	struct command_result *result; /* the client's */
	struct wait *wait;
	int rc;
};

static void proposal_back(struct post *p)
{
	struct client_proposal *m = container_of(p, struct client_proposal, post);
	struct wait *w = m->wait;
	int rc = m->rc;

	if (rc == 0)
		*m->result = m->propose.result;
	free(m->renew);
	free(m);
	wait_resume(w, rc);
}

static void proposal_done(struct wait *w, int rc)
{
	struct client_proposal *m = container_of(w, struct client_proposal, control_wait);

	m->rc = rc;
	m->post.fn = proposal_back;
	loop_post(m->shard->loop, &m->post);
}

static void proposal_on_control(struct post *p)
{
	struct client_proposal *m = container_of(p, struct client_proposal, post);
	int rc = control_propose(m->shard->node->control, &m->propose, &m->cmd, 10000, &m->control_wait);

	if (rc != PENDING)
		proposal_done(&m->control_wait, rc);
}

static int shard_client_propose(void *ctx, const struct command *cmd, struct command_result *result,
				struct wait *w)
{
	struct shard *s = ctx;
	struct client_proposal *m = xcalloc(1, sizeof(*m));

	CHECK(cmd->kind == CMD_ATTACH || cmd->kind == CMD_DETACH || cmd->kind == CMD_RENEW);
	*m = (struct client_proposal){ .post.fn = proposal_on_control, .shard = s, .cmd = *cmd,
				       .control_wait.resume = proposal_done, .result = result, .wait = w };
	if (cmd->kind == CMD_RENEW) {
		m->renew = xcalloc(cmd->renew.count, sizeof(*m->renew));
		memcpy(m->renew, cmd->renew.attachment, cmd->renew.count * sizeof(*m->renew));
		m->cmd.renew.attachment = m->renew;
	}
	loop_post(s->node->loop, &m->post);
	return PENDING;
}

static const struct client_hooks client_hooks = { shard_local_io, shard_client_propose };

/* ---- Life ---- */

int node_shard_create(struct shard *s, struct node *n, unsigned index)
{
	char name[16];

	*s = (struct shard){ .node = n, .index = index };
	list_init(&s->streams);
	snprintf(name, sizeof(name), "shard%u", index);
	s->loop = loop_create(name, RING_ENTRIES);
	if (!s->loop)
		return -ENOSYS;
	s->pool = buf_pool_create(n->config.buffers_bytes / n->shard_count);
	map_init(&s->map);
	shard_io_init(s);
	return 0;
}

void node_shard_start(struct shard *s)
{
	struct node *n = s->node;
	struct replicator_config rc = { .loop = s->loop, .pool = s->pool, .map = &s->map,
					.shard = s->index, .shards = n->shard_count,
					.node = n->identity.number,
					.incarnation = n->identity.incarnation,
					.confirm_reads = n->config.confirm_reads, .ops = OPS_MAX,
					.times = &replicator_default_times, .hooks = &replicator_hooks,
					.ctx = s };
	struct client_config cc = { .loop = s->loop, .pool = s->pool, .map = &s->map,
				    .node = n->identity.number, .tls = n->tls,
				    .cluster = n->identity.cluster, .self = n->identity.node,
				    .plain_data = n->config.data_security == SECURITY_AUTHENTICATED,
				    .ops = OPS_MAX, .hooks = &client_hooks, .ctx = s };
	char uuid[UUID_TEXT], holder[128];
	int err;

	uuid_format(&n->identity.node, uuid);
	snprintf(holder, sizeof(holder), "node:%s %s", uuid, n->identity.name);
	cc.holder = holder;
	s->replicator = replicator_create(&rc);
	s->client = client_create(&cc);
	err = loop_spawn(s->loop);
	CHECK(err == 0);
}
