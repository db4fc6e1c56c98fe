/* SPDX-License-Identifier: Apache-2.0 */
/* Data streams: stream s between nodes a and b joins shard s mod shards(a) with shard s mod
 * shards(b); there are max(shards) of them per pair. Everything here runs on the shard's loop. */
#include <stdio.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/channel.h"
#include "node/node.h"

#define STREAM_SEND_LIMIT (16u << 20)

static struct shard *stream_shard(struct channel *ch)
{
	return ch->owner;
}

static bool stream_check(struct channel *ch, const struct wire_hello *peer)
{
	const struct map_node *m = map_node(&stream_shard(ch)->map, ch->peer);

	/* A newer incarnation than the map's is a node whose registration we have not applied yet;
	 * an older one is a process that was replaced (replication N1). */
	return m && uuid_equal(&m->uuid, &peer->self) && peer->incarnation >= m->incarnation &&
	       peer->stream == ch->stream;
}

static void stream_up(struct channel *ch)
{
	struct shard *s = stream_shard(ch);

	log_info("stream", "up", "shard=%u node=%u stream=%u incarnation=%u", s->index, ch->peer,
		 ch->stream, ch->incarnation);
	replicator_stream_up(s->replicator, ch->peer, ch->incarnation, ch->stream, ch->conn);
}

static void stream_down(struct channel *ch, int reason)
{
	struct shard *s = stream_shard(ch);

	log_info("stream", "down", "shard=%u node=%u stream=%u reason=%s", s->index, ch->peer,
		 ch->stream, err_name(reason));
	replicator_stream_down(s->replicator, ch->peer, ch->stream, reason);
}

static void stream_refused(struct channel *ch)
{
	replicator_peer_refused(stream_shard(ch)->replicator, ch->peer);
}

static void stream_frame(struct channel *ch, const struct frame *f)
{
	replicator_frame(stream_shard(ch)->replicator, ch->peer, ch->stream, f);
}

static const struct channel_ops stream_ops = {.up = stream_up,
					      .down = stream_down,
					      .refused = stream_refused,
					      .frame = stream_frame,
					      .check = stream_check};

static struct channel *stream_find(struct shard *s, uint16_t node, uint16_t stream)
{
	struct channel *ch;

	list_for_each(ch, &s->streams,
		      link) if (ch->peer == node && ch->stream == stream) return ch;
	return NULL;
}

static bool stream_wanted(const struct shard *s, const struct map_node *m)
{
	/* Replicas on both sides: a witness has none, and clients have connections of their own. */
	return m && m->id != s->node->identity.number && m->state == NODE_ACTIVE &&
	       m->incarnation && (m->roles & s->node->config.roles & ROLE_STORAGE) && m->shards &&
	       m->address[0];
}

static unsigned stream_count(const struct shard *s, const struct map_node *m)
{
	return MAX(s->node->shard_count, (unsigned)m->shards);
}

static void stream_open(struct shard *s, const struct map_node *m, unsigned stream)
{
	struct node *n = s->node;
	struct channel_config cfg = {.loop = s->loop,
				     .pool = s->pool,
				     .tls = n->tls,
				     .self = n->identity.number,
				     .peer = m->id,
				     .stream = (uint16_t)stream,
				     .address = m->address,
				     .peer_uuid = m->uuid,
				     .send_limit = STREAM_SEND_LIMIT,
				     .ops = &stream_ops,
				     .owner = s};

	node_hello(n, HELLO_DATA, (uint16_t)stream, (uint16_t)stream_count(s, m), &cfg.hello);
	list_push_back(&s->streams, &channel_create(&cfg)->link);
}

void streams_reconcile(struct shard *s)
{
	struct channel *ch, *tmp;

	list_for_each_safe(ch, tmp, &s->streams, link)
	{
		const struct map_node *m = map_node(&s->map, ch->peer);

		if (!stream_wanted(s, m) || ch->stream >= stream_count(s, m))
			channel_destroy(ch);
		else if (strcmp(ch->address, m->address))
			channel_set_address(ch, m->address);
	}
	for (struct hnode *h = hmap_walk(&s->map.nodes, NULL); h; h = hmap_walk(&s->map.nodes, h)) {
		const struct map_node *m = container_of(h, struct map_node, by_id);

		if (!stream_wanted(s, m))
			continue;
		for (unsigned i = s->index; i < stream_count(s, m); i += s->node->shard_count)
			if (!stream_find(s, m->id, (uint16_t)i))
				stream_open(s, m, i);
	}
}

static void refused_frame(struct conn *c, const struct frame *f)
{
}

static void refused_closed(struct conn *c, int reason)
{
}

void streams_accepted(void *shard, struct conn *c, const struct wire_hello *peer)
{
	static const struct conn_ops ops = {.on_frame = refused_frame, .on_closed = refused_closed};
	struct shard *s = shard;
	struct channel *ch = stream_find(s, peer->node, peer->stream);

	if (ch && !ch->dial) {
		channel_accepted(ch, c, peer);
		return;
	}
	/* Our map does not have the peer yet; it dials again. */
	conn_set(c, &ops, NULL);
	conn_close(c, -ERR_RETRY);
}
