/* SPDX-License-Identifier: Apache-2.0 */
/* From an identity to a serving node (replication N1):
 *   TLS → disk groups opened exclusively → incarnation raised, durably, everywhere → Raft and the
 *   listener → registered in Raft by compare-and-swap → that applied here, too → shards and NBD.
 * The first half is a blocking step table; the second waits for a leader as long as it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"
#include "node/base/steps.h"
#include "node/node.h"

#define PROPOSE_DEADLINE_MS 5000u
#define RETRY_US            50000u

enum start_stage { START_INIT, START_REGISTER, START_APPLY, START_SHARDS, START_DONE };

struct node_start {
	struct node *node;
	struct wait wait, *owner;
	struct timer retry;
	enum start_stage stage;
	bool begun;
	uint32_t registered; /* the incarnation of us that Raft named when it refused: our map lags
			      */
	struct control_propose propose;
	uint64_t warned_us;
};

/* ---- The blocking half ---- */

static int start_tls(void *ctx)
{
	struct node *n = ctx;

	birth_paths(n->config.state_dir, &n->paths);
	n->config.roles = birth_roles(&n->config, &n->identity);
	n->tls = tls_ctx_create(n->paths.ca, n->paths.cert, n->paths.key);
	return n->tls ? 0 : -ERR_CORRUPT; /* the file was named */
}

static int start_groups(void *ctx)
{
	node_groups_find(ctx);
	return 0; /* a group that cannot be opened is reported; the node starts without it */
}

static int start_incarnation(void *ctx)
{
	struct node *n = ctx;
	int rc = rule(RULE_RAISE) ? identity_raise(n->config.state_dir, &n->identity,
						   node_groups_incarnation(n) + 1)
				  : 0;

	if (rc == 0)
		node_groups_set_incarnation(n);
	return rc;
}

static int start_control(void *ctx)
{
	struct node *n = ctx;
	struct control_config cfg = {.loop = n->loop,
				     .pool = n->pool,
				     .workers = n->workers,
				     .node = n->identity.number,
				     .raft_dir = n->paths.raft,
				     .bootstrap = n->identity.bootstrap,
				     .hooks = &node_control_hooks,
				     .ctx = n};
	int count = birth_peers_load(n->config.state_dir, n->hints, NODES_MAX), rc;

	n->hint_count = count > 0 ? (unsigned)count : 0;
	rc = birth_raft_there(n->config.state_dir, &n->identity);
	rc = rc ? rc : control_start(&cfg, &n->control);
	if (rc || n->identity.raft_begun)
		return rc;
	n->identity.raft_begun = true;
	return identity_save(n->config.state_dir, &n->identity);
}

static int start_listener(void *ctx)
{
	struct node *n = ctx;
	struct listener_config cfg = {.loop = n->loop,
				      .pool = n->pool,
				      .tls = n->tls,
				      .address = n->config.listen,
				      .cluster = n->identity.cluster,
				      .decide = node_accept,
				      .data = n};

	n->listener = listener_create(&cfg);
	return n->listener ? 0 : -EADDRINUSE;
}

static int start_admin(void *ctx)
{
	struct node *n = ctx;

	admin_set_cluster(n->admin, &admin_control_ops, n->control);
	if (!n->config.admin_listen || n->admin_tls)
		return 0;
	n->admin_tls = tls_ctx_create(n->paths.ca, n->paths.cert, n->paths.key);
	if (!n->admin_tls)
		return -ERR_AUTH;
	tls_ctx_allow_anonymous(n->admin_tls, true);
	return admin_listen_tls(n->admin, n->admin_tls);
}

static const struct step start_steps[] = {
	{"certificates", start_tls, NULL},        {"disk groups", start_groups, NULL},
	{"incarnation", start_incarnation, NULL}, {"raft", start_control, NULL},
	{"peer port", start_listener, NULL},      {"admin", start_admin, NULL},
};

/* ---- Registration ---- */

static void start_run(struct node_start *st, int rc);

static void start_resume(struct wait *w, int rc)
{
	start_run(container_of(w, struct node_start, wait), rc);
}

static void start_retry(struct timer *t)
{
	struct node_start *st = container_of(t, struct node_start, retry);

	start_run(st, 0);
}

static int propose_init(struct node_start *st)
{
	struct node *n = st->node;
	struct command cmd = {.kind = CMD_CLUSTER_INIT};

	cmd.init.cluster = n->identity.cluster;
	snprintf(cmd.actor, sizeof(cmd.actor), "node:%u", n->identity.number);
	snprintf(cmd.init.name, sizeof(cmd.init.name), "%s", n->identity.cluster_name);
	birth_node_record(&n->config, &n->identity, &cmd.init.node);
	cmd.init.node.incarnation = 0; /* registration follows, by compare-and-swap */
	return control_propose(n->control, &st->propose, &cmd, PROPOSE_DEADLINE_MS, &st->wait);
}

static int propose_register(struct node_start *st)
{
	struct node *n = st->node;
	const struct map_node *known =
		map_node(state_map(control_state(n->control)), n->identity.number);
	struct command cmd = {.kind = CMD_NODE_START};

	snprintf(cmd.actor, sizeof(cmd.actor), "node:%u", n->identity.number);
	cmd.node_start.node = n->identity.number;
	cmd.node_start.incarnation = n->identity.incarnation;
	cmd.node_start.old_incarnation = MAX(known ? known->incarnation : 0, st->registered);
	cmd.node_start.shards = (uint16_t)n->shard_count;
	cmd.node_start.roles = n->config.roles;
	cmd.node_start.version_major = 0;
	cmd.node_start.version_minor = 1;
	snprintf(cmd.node_start.address, sizeof(cmd.node_start.address), "%s", n->config.advertise);
	if (n->config.admin_advertise)
		snprintf(cmd.node_start.admin, sizeof(cmd.node_start.admin), "%s",
			 n->config.admin_advertise);
	return control_propose(n->control, &st->propose, &cmd, PROPOSE_DEADLINE_MS, &st->wait);
}

/* Compare-and-swap met another incarnation. A lower one than ours is what our map has not heard of
 * yet. A higher one means that our disks were rolled back or cloned: nothing on them may count as
 * what was acknowledged. */
static void start_conflict(struct node_start *st, uint32_t registered)
{
	if (registered >= st->node->identity.incarnation)
		node_exit(st->node, "the cluster knows a newer incarnation of this node than its "
				    "disks do: they "
				    "were rolled back or cloned; remove this node, wipe it and let "
				    "it join again");
	st->registered = registered;
}

static void start_shards(struct node *n)
{
	struct writer w = writer_init_heap();

	for (unsigned i = 0; i < n->shard_count; i++)
		node_shard_start(&n->shards[i]);
	n->shards_running = true;
	state_delta(control_state(n->control), 0, &w);
	node_delta(n, w.data, w.len);
	node_groups_start(n);
	node_nbd_start(n);
}

static void start_warn(struct node_start *st, const char *what, const char *text)
{
	uint64_t now = loop_mono_us(st->node->loop);

	if (now - st->warned_us < 10000000 && st->warned_us)
		return;
	st->warned_us = now;
	log_warn("node", "still starting", "waiting_for=\"%s\" text=\"%s\"", what, text);
}

static bool start_settled(struct node_start *st, int rc)
{
	const struct command_result *r = &st->propose.result;

	if (!st->begun)
		return false;
	st->begun = false;
	if (rc < 0) {
		start_warn(st, "a Raft leader: a majority of voters must be up", err_text(rc));
		return false;
	}
	if (st->stage == START_INIT)
		return r->code == 0 || r->code == -ERR_EXISTS || r->code == -ERR_CLAIMED;
	if (r->code == 0)
		return true;
	if (r->code == -ERR_STALE)
		start_conflict(st, r->number);
	else if (r->code == -ERR_FOREIGN)
		node_removed(st->node, "the leader", false);
	else
		start_warn(st, "registration of this node", r->text);
	return false;
}

/* The leader answers before this node has applied what it answers, and until then the map here is of before
 * this process, maybe long before: it lists replicas that its predecessor gave up, and none of later. */
static bool is_applied(const struct node *n)
{
	const struct map_node *me = map_node(state_map(control_state(n->control)), n->identity.number);

	return me && me->incarnation >= n->identity.incarnation;
}

void node_start_delta(struct node *n)
{
	if (n->start && n->start->stage == START_APPLY)
		timer_set(&n->start->retry, 0);
}

static void start_run(struct node_start *st, int rc)
{
	struct node *n = st->node;

	if (start_settled(st, rc))
		st->stage++;
	else if (rc < 0 || st->retry.armed) {
		timer_set(&st->retry, RETRY_US);
		return;
	}
	for (;;) {
		switch (st->stage) {
		case START_INIT: /* node 1 of a new cluster fills the empty state */
			if (!uuid_is_nil(&state_map(control_state(n->control))->cluster) ||
			    !n->identity.bootstrap) {
				st->stage = START_REGISTER;
				continue;
			}
			rc = propose_init(st);
			break;
		case START_REGISTER:
			rc = propose_register(st);
			break;
		case START_APPLY:
			if (!is_applied(n)) {
				timer_set(&st->retry, RETRY_US);
				return;
			}
			st->stage++;
			continue;
		case START_SHARDS:
			n->registered = true;
			start_shards(n);
			log_info("node", "serving", "node=%u incarnation=%u shards=%u",
				 n->identity.number, n->identity.incarnation, n->shard_count);
			st->stage = START_DONE;
			continue;
		case START_DONE:
			n->start = NULL;
			timer_fini(&st->retry);
			if (st->owner)
				wait_resume(st->owner, 0);
			free(st);
			return;
		}
		st->begun = true;
		if (rc == PENDING)
			return;
		if (!start_settled(st, rc)) {
			timer_set(&st->retry, RETRY_US);
			return;
		}
		st->stage++;
	}
}

static int start_begin(struct node *n, struct wait *owner)
{
	struct node_start *st;
	size_t done;
	int rc = steps_run(start_steps, ARRAY_LEN(start_steps), n, &done);

	if (rc < 0)
		return rc;
	node_removed_check(n);
	peers_reconcile(n);
	node_knock_start(n);
	st = xcalloc(1, sizeof(*st));
	*st = (struct node_start){.node = n, .wait.resume = start_resume, .owner = owner};
	timer_init(&st->retry, n->loop, start_retry);
	n->start = st;
	timer_set(&st->retry, 0);
	return PENDING;
}

int node_start_claimed(struct node *n)
{
	int rc = start_begin(n, NULL);

	return rc == PENDING ? 0 : rc;
}

int node_claim(void *node, struct wait *w)
{
	struct node *n = node;
	int rc;

	if (n->start || n->registered)
		return -ERR_CLAIMED;
	rc = identity_load(n->config.state_dir, &n->identity);
	return rc < 0 ? rc : start_begin(n, w);
}
