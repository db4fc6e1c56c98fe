/* SPDX-License-Identifier: Apache-2.0 */
#include "node/channel.h"

#include <stdio.h>
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"

/* A dying process closes its listener some time after its connections: probe for about a second. */
#define PROBES           30u
#define PROBE_GAP_US     30000u
#define PROBE_TIMEOUT_MS 200u

static void channel_up(struct channel *ch, struct conn *c, const struct wire_hello *peer);

/* ---- The connection ---- */

static void on_frame(struct conn *c, const struct frame *f)
{
	struct channel *ch = conn_data(c);

	ch->ops->frame(ch, f);
}

static void channel_probe_start(struct channel *ch)
{
	ch->probes_left = PROBES;
	if (!ch->probing && !ch->probe_timer.armed)
		timer_set(&ch->probe_timer, 0);
}

static void on_closed(struct conn *c, int reason)
{
	struct channel *ch = conn_data(c);

	ch->conn = NULL;
	ch->ops->down(ch, reason);
	if (ch->dial)
		link_conn_closed(ch->dial, reason);
	else
		channel_probe_start(ch);
}

static const struct conn_ops conn_ops = {.on_frame = on_frame, .on_closed = on_closed};

/* A connection that was replaced or is no longer wanted: it ends without telling anybody. */
static void orphan_frame(struct conn *c, const struct frame *f)
{
}

static void orphan_closed(struct conn *c, int reason)
{
}

static const struct conn_ops orphan_ops = {.on_frame = orphan_frame, .on_closed = orphan_closed};

static void conn_drop(struct conn *c, int reason)
{
	conn_set(c, &orphan_ops, NULL);
	conn_close(c, reason);
}

static void channel_down(struct channel *ch, int reason)
{
	struct conn *c = ch->conn;

	if (!c)
		return;
	ch->conn = NULL;
	conn_drop(c, reason);
	ch->ops->down(ch, reason);
}

static void channel_up(struct channel *ch, struct conn *c, const struct wire_hello *peer)
{
	/* A new session voids what the old one granted: end that first. */
	channel_down(ch, -ERR_CLOSED);
	timer_cancel(&ch->probe_timer);
	ch->probes_left = 0;
	ch->conn = c;
	ch->incarnation = peer->incarnation;
	conn_set(c, &conn_ops, ch);
	ch->ops->up(ch);
}

/* ---- Dialling side ---- */

static void on_link_up(struct link *k, struct conn *c, const struct wire_hello *peer)
{
	struct channel *ch = link_data(k);

	if (peer->node != ch->peer || !ch->ops->check(ch, peer)) {
		conn_drop(c, -ERR_AUTH);
		link_conn_closed(k, -ERR_AUTH);
		return;
	}
	channel_up(ch, c, peer);
}

static void on_link_down(struct link *k, int reason, const struct wire_refusal *refusal)
{
	struct channel *ch = link_data(k);

	if (reason == -ECONNREFUSED)
		ch->ops->refused(ch);
	else if (refusal && ch->ops->turned_away)
		ch->ops->turned_away(ch, refusal);
}

static const struct link_ops link_ops = {.up = on_link_up, .down = on_link_down};

/* ---- Accepting side: probing ---- */

static void channel_free(struct channel *ch)
{
	timer_fini(&ch->probe_timer);
	free(ch);
}

static void on_probe(struct wait *w, int rc)
{
	struct channel *ch = container_of(w, struct channel, probe_wait);

	ch->probing = false;
	if (ch->closed) {
		channel_free(ch);
		return;
	}
	if (ch->conn)
		return;
	if (rc == -ECONNREFUSED)
		ch->ops->refused(ch);
	else if (ch->probes_left)
		timer_set(&ch->probe_timer, PROBE_GAP_US);
}

static void on_probe_timer(struct timer *t)
{
	struct channel *ch = container_of(t, struct channel, probe_timer);
	int rc;

	if (ch->conn || !ch->probes_left)
		return;
	ch->probes_left--;
	ch->probing = true;
	rc = tcp_probe(ch->loop, &ch->probe, ch->address, PROBE_TIMEOUT_MS, &ch->probe_wait);
	CHECK(rc == PENDING);
}

void channel_accepted(struct channel *ch, struct conn *c, const struct wire_hello *peer)
{
	if (!ch->ops->check(ch, peer)) {
		conn_drop(c, -ERR_AUTH);
		return;
	}
	channel_up(ch, c, peer);
}

/* ---- Life ---- */

struct channel *channel_create(const struct channel_config *cfg)
{
	struct channel *ch = xcalloc(1, sizeof(*ch));
	char text[UUID_TEXT], name[UUID_TEXT + 8];

	*ch = (struct channel){.owner = cfg->owner,
			       .ops = cfg->ops,
			       .loop = cfg->loop,
			       .peer = cfg->peer,
			       .stream = cfg->stream,
			       .probe_wait.resume = on_probe};
	list_init(&ch->link);
	snprintf(ch->address, sizeof(ch->address), "%s", cfg->address);
	timer_init(&ch->probe_timer, cfg->loop, on_probe_timer);
	if (cfg->self < cfg->peer) {
		struct link_config lc = {.loop = cfg->loop,
					 .pool = cfg->pool,
					 .tls = cfg->tls,
					 .address = ch->address,
					 .tls_name = name,
					 .hello = cfg->hello,
					 .send_limit = cfg->send_limit,
					 .ops = &link_ops,
					 .data = ch};

		uuid_format(&cfg->peer_uuid, text);
		snprintf(name, sizeof(name), "node:%s", text);
		ch->dial = link_create(&lc);
	}
	return ch;
}

void channel_set_address(struct channel *ch, const char *address)
{
	snprintf(ch->address, sizeof(ch->address), "%s", address);
	if (ch->dial)
		link_set_address(ch->dial, address);
}

void channel_destroy(struct channel *ch)
{
	channel_down(ch, -ERR_CLOSED);
	list_del(&ch->link);
	if (ch->dial)
		link_destroy(ch->dial);
	ch->closed = true;
	timer_cancel(&ch->probe_timer);
	if (!ch->probing)
		channel_free(ch);
}
