/* SPDX-License-Identifier: Apache-2.0 */
/* The control connection. Any node will do, since each follows the log; when it is lost, or when it
 * seems to know nothing new while I/O is being told to look elsewhere, the next one is tried. Data
 * connections do not depend on it: with the last map at hand, I/O goes on without any control node.
 */
#include "client/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/control_msg.h"
#include "net/address.h"
#include "net/link.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define REMOTE_TICK_US    250000u
#define REMOTE_QUIET_US   3000000u  /* retries without a map delta for so long: ask another node */
#define REMOTE_STUCK_US   1000000u  /* I/O unanswered and no delta for so long: likewise */
#define REMOTE_ANSWER_US  15000000u /* a proposal unanswered for so long: its outcome is unknown */
#define REMOTE_SEND_LIMIT (1u << 20)

struct proposal {
	struct list link;
	struct wait *wait;
	struct command_result *result;
	uint64_t id, sent_us;
};

struct remote {
	struct remote_config cfg;
	struct map map;
	struct client *client;
	struct link *link;
	struct conn *conn;
	struct uuid self;
	struct list proposals;
	struct timer tick;
	uint64_t next_id, delta_us, retries_seen, up_us;
	unsigned next_address;
	char address[64]; /* that is tried, or connected */
	bool is_ready;
};

int remote_parse_addresses(const char *text, struct remote_config *cfg)
{
	cfg->address_count = 0;
	while (*text) {
		size_t n = strcspn(text, ",");
		char *out = cfg->addresses[cfg->address_count];
		struct address a;

		if (cfg->address_count == REMOTE_ADDRESSES_MAX || n >= sizeof(cfg->addresses[0]))
			return -EINVAL;
		memcpy(out, text, n);
		out[n] = 0;
		if (address_parse(out, &a) < 0)
			return -EINVAL;
		cfg->address_count++;
		text += n + (text[n] == ',');
	}
	return cfg->address_count ? 0 : -EINVAL;
}

/* ---- Proposals ---- */

static void proposals_end(struct remote *r, uint64_t before_us, int rc)
{
	struct proposal *p, *tmp;

	list_for_each_safe(p, tmp, &r->proposals, link)
	{
		struct wait *w = p->wait;

		if (p->sent_us > before_us)
			continue;
		list_del(&p->link);
		free(p);
		wait_resume(w, rc);
	}
}

static int remote_propose(void *ctx, const struct command *cmd, struct command_result *result,
			  struct wait *w)
{
	struct remote *r = ctx;
	struct writer body = writer_init_heap();
	struct proposal *p;

	if (!r->conn)
		return -ERR_NO_LEADER;
	p = xcalloc(1, sizeof(*p));
	p->wait = w;
	p->result = result;
	p->id = ++r->next_id;
	p->sent_us = loop_mono_us(r->cfg.loop);
	list_push_back(&r->proposals, &p->link);
	command_encode(cmd, &body);
	conn_send(r->conn, OP_PROPOSE, p->id, body.data, (uint32_t)body.len, NULL, 0);
	writer_free(&body);
	return PENDING;
}

/* Codes of the way there, not of the command: nothing was decided, or nobody knows. */
static bool is_transport_code(int code)
{
	return code == -ERR_NOT_LEADER || code == -ERR_NO_LEADER || code == -ERR_BUSY ||
	       code == -ERR_RETRY || code == -ETIMEDOUT;
}

static int remote_on_proposed(struct remote *r, const struct frame *f)
{
	struct reader in = reader_init(f->body, f->body_len);
	struct proposal *p;

	list_for_each(p, &r->proposals, link) if (p->id == f->id)
	{
		struct wait *w = p->wait;
		int rc = command_result_decode(&in, p->result);

		if (rc < 0)
			return rc;
		rc = is_transport_code(p->result->code) ? p->result->code : 0;
		list_del(&p->link);
		free(p);
		wait_resume(w, rc);
		return 0;
	}
	return 0; /* given up meanwhile */
}

/* ---- The map ---- */

static void remote_watch(struct remote *r)
{
	uint8_t body[8];
	struct writer w = writer_init(body, sizeof(body));

	control_watch_encode(r->map.version, &w);
	conn_send(r->conn, OP_MAP_WATCH, 0, body, (uint32_t)w.len, NULL, 0);
}

static void remote_map_changed(void *arg, enum map_record kind, uint64_t id)
{
	client_map_changed(((struct remote *)arg)->client, kind, id);
}

static int remote_on_delta(struct remote *r, const struct frame *f)
{
	struct reader in = reader_init(f->body, f->body_len);
	int rc = map_delta_apply(&r->map, &in, remote_map_changed, r);

	if (rc == -ERR_STALE) { /* there is a gap between it and what we have */
		remote_watch(r);
		return 0;
	}
	if (rc < 0)
		return rc;
	r->delta_us = loop_mono_us(r->cfg.loop);
	client_map_done(r->client);
	if (!r->is_ready && r->map.version) {
		r->is_ready = true;
		r->cfg.ready(r->cfg.ctx);
	}
	return 0;
}

/* ---- The connection ---- */

static void remote_frame(struct conn *c, const struct frame *f)
{
	struct remote *r = conn_data(c);
	int rc;

	switch (f->opcode) {
	case OP_MAP_DELTA:
		rc = remote_on_delta(r, f);
		break;
	case OP_PROPOSED:
		rc = remote_on_proposed(r, f);
		break;
	default:
		rc = -ERR_PROTOCOL;
	}
	if (rc < 0) {
		log_error("client", "bad message from a control node", "node=%s opcode=%u error=%s",
			  conn_peer_address(c), f->opcode, err_name(rc));
		conn_close(c, rc);
	}
}

static void remote_closed(struct conn *c, int reason)
{
	struct remote *r = conn_data(c);

	r->conn = NULL;
	link_conn_closed(r->link, reason);
	proposals_end(r, UINT64_MAX, -ERR_RETRY);
}

static const struct conn_ops remote_conn_ops = {.on_frame = remote_frame,
						.on_closed = remote_closed};

static void orphan_frame(struct conn *c, const struct frame *f)
{
}

static void orphan_closed(struct conn *c, int reason)
{
}

static const struct conn_ops remote_orphan_ops = {.on_frame = orphan_frame,
						  .on_closed = orphan_closed};

static void remote_up(struct link *k, struct conn *c, const struct wire_hello *peer)
{
	struct remote *r = link_data(k);

	r->conn = c;
	r->up_us = loop_mono_us(r->cfg.loop);
	conn_set(c, &remote_conn_ops, r);
	log_info("client", "control connection is up", "node=%s", conn_peer_address(c));
	remote_watch(r);
}

/* The configured addresses, then those of the map's nodes, round and round. */
static const char *remote_address(struct remote *r)
{
	unsigned n = r->cfg.address_count, i;
	struct hnode *it;

	for (it = hmap_walk(&r->map.nodes, NULL); it; it = hmap_walk(&r->map.nodes, it))
		n++;
	i = r->next_address++ % n;
	if (i < r->cfg.address_count)
		return r->cfg.addresses[i];
	i -= r->cfg.address_count;
	for (it = hmap_walk(&r->map.nodes, NULL); it && i; it = hmap_walk(&r->map.nodes, it))
		i--;
	if (it) {
		const struct map_node *node = container_of(it, struct map_node, by_id);

		if (node->state == NODE_ACTIVE && node->address[0])
			return node->address;
	}
	return r->cfg.addresses[0];
}

/* Not the one that was just given up, if there is another. */
static const char *remote_next_address(struct remote *r)
{
	const char *a = remote_address(r);

	for (unsigned tries = 0; tries < 3 && !strcmp(a, r->address); tries++)
		a = remote_address(r);
	snprintf(r->address, sizeof(r->address), "%s", a);
	return r->address;
}

static void remote_down(struct link *k, int reason, const struct wire_refusal *refusal)
{
	struct remote *r = link_data(k);

	link_set_address(k, remote_next_address(r));
}

static const struct link_ops remote_link_ops = {.up = remote_up, .down = remote_down};

/* A node that hangs, or is cut off from the others, still holds its connection to us. */
static void remote_tick(struct timer *t)
{
	struct remote *r = container_of(t, struct remote, tick);
	uint64_t now = loop_mono_us(r->cfg.loop), quiet_us;
	struct client_stats st;

	client_stats(r->client, &st);
	quiet_us = now - MAX(r->delta_us, r->up_us);
	if (r->conn && st.in_flight &&
	    ((st.retries != r->retries_seen && quiet_us > REMOTE_QUIET_US) ||
	     (st.oldest_us > REMOTE_STUCK_US && quiet_us > REMOTE_STUCK_US))) {
		log_info("client",
			 "I/O waits and no news of the map comes: asking another node",
			 "node=%s", conn_peer_address(r->conn));
		conn_close(r->conn, -ETIMEDOUT);
	}
	r->retries_seen = st.retries;
	if (now > REMOTE_ANSWER_US)
		proposals_end(r, now - REMOTE_ANSWER_US, -ETIMEDOUT);
	timer_set(t, REMOTE_TICK_US);
}

/* ---- Life ---- */

struct remote *remote_create(const struct remote_config *cfg)
{
	static const struct client_hooks hooks = {.propose = remote_propose};
	struct remote *r = xcalloc(1, sizeof(*r));
	struct client_config cc = {.loop = cfg->loop,
				   .pool = cfg->pool,
				   .map = &r->map,
				   .tls = cfg->tls,
				   .cluster = cfg->cluster,
				   .holder = cfg->holder,
				   .plain_data = cfg->plain_data,
				   .ops = cfg->ops,
				   .hooks = &hooks,
				   .ctx = r};
	struct link_config lc = {.loop = cfg->loop,
				 .pool = cfg->pool,
				 .tls = cfg->tls,
				 .send_limit = REMOTE_SEND_LIMIT,
				 .ops = &remote_link_ops,
				 .data = r};

	r->cfg = *cfg;
	map_init(&r->map);
	list_init(&r->proposals);
	uuid_make(&r->self);
	cc.self = r->self;
	r->client = client_create(&cc);
	timer_init(&r->tick, cfg->loop, remote_tick);
	timer_set(&r->tick, REMOTE_TICK_US);
	lc.address = remote_next_address(r);
	lc.hello = (struct wire_hello){.version_min = WIRE_PROTOCOL,
				       .version_max = WIRE_PROTOCOL,
				       .kind = HELLO_CLIENT_CONTROL,
				       .cluster = cfg->cluster,
				       .self = r->self,
				       .nonce = rng_next(loop_rng(cfg->loop))};
	r->link = link_create(&lc);
	return r;
}

void remote_destroy(struct remote *r)
{
	CHECK(list_empty(&r->proposals)); /* volumes wait for theirs before they are closed */
	if (r->conn) {
		conn_set(r->conn, &remote_orphan_ops, NULL);
		conn_close(r->conn, -ERR_CLOSED);
	}
	link_destroy(r->link);
	client_destroy(r->client);
	timer_fini(&r->tick);
	map_fini(&r->map);
	free(r);
}

struct client *remote_client(struct remote *r)
{
	return r->client;
}
