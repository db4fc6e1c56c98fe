/* SPDX-License-Identifier: Apache-2.0 */
/* The process: parts that exist in every state of its life (control loop, admin, signals). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"
#include "node/run.h"
#include "node/standalone.h"

#define CONTROL_BUFFERS_BYTES (64u << 20)
#define NBD_CONNECTIONS_MAX   256u
#define NBD_NEGOTIATING_MAX   64u

void node_hello(const struct node *n, uint8_t kind, uint16_t stream, uint16_t streams,
		struct wire_hello *out)
{
	bool data = kind == HELLO_DATA || kind == HELLO_CLIENT_DATA;

	*out = (struct wire_hello){
		.version_min = WIRE_PROTOCOL,
		.version_max = WIRE_PROTOCOL,
		.kind = kind,
		.flags =
			data && n->config.data_security == SECURITY_AUTHENTICATED ? HELLO_PLAIN : 0,
		.cluster = n->identity.cluster,
		.self = n->identity.node,
		.node = n->identity.number,
		.stream = stream,
		.shards = (uint16_t)n->shard_count,
		.streams = streams,
		.incarnation = n->identity.incarnation,
		.nonce = n->nonce,
		.recovery = n->identity.recovery,
		.recovery_id = n->identity.recovery_id};
}

void node_exit(struct node *n, const char *why)
{
	log_error("node", "stopping at once", "node=%u incarnation=%u reason=\"%s\"",
		  n->identity.number, n->identity.incarnation, why);
	_exit(1);
}

/* ---- Hooks ---- */

static void on_call(void *ctx, uint64_t ticket, const char *method, const char *path,
		    const char *json)
{
	struct node *n = ctx;

	admin_call(n->admin, ticket, method, path, json);
}

static void on_role_changed(void *ctx)
{
	struct node *n = ctx;
	struct consensus_status st;

	if (!n->control)
		return;
	control_status(n->control, &st);
	atomic_store_explicit(&n->leader_known, st.leader != 0, memory_order_relaxed);
	log_info("raft", "role", "role=%d leader=%u term=%llu", st.role, st.leader,
		 (unsigned long long)st.term);
}

static void on_nodes(void *ctx, const struct control_nodes *list)
{
	peers_told(ctx, list);
}

const struct control_hooks node_control_hooks = {.delta = node_delta,
						 .call = on_call,
						 .role_changed = on_role_changed,
						 .nodes = on_nodes};
const struct admin_node_ops node_admin_ops = {node_on_shards, node_groups, node_claim,
					      node_group_open,
					      node_group_flush,
					      node_group_verify,
					      node_group_replace};

/* ---- NBD, on shard 0 ---- */

static void nbd_start(struct post *p)
{
	struct node *n = container_of(p, struct node, nbd_post);
	struct shard *s = &n->shards[0];
	struct nbd_config cfg = {.client = s->client,
				 .loop = s->loop,
				 .pool = s->pool,
				 .unix_path = n->config.nbd_unix,
				 .tcp_address = n->config.nbd_tcp,
				 .tls = n->tls,
				 .allow_open = n->config.nbd_allow_open,
				 .connections_max = NBD_CONNECTIONS_MAX,
				 .negotiating_max = NBD_NEGOTIATING_MAX};

	s->nbd = nbd_server_create(&cfg);
	if (!s->nbd)
		node_exit(n, "the NBD front end could not listen (see above)");
}

void node_nbd_start(struct node *n)
{
	if (!(n->config.roles & ROLE_GATEWAY))
		return;
	n->nbd_post.fn = nbd_start;
	loop_post(n->shards[0].loop, &n->nbd_post);
}

/* ---- Signals ---- */

static void on_signal(struct fdwatch *w, unsigned events)
{
	struct node *n = container_of(w, struct node, signal_watch);
	struct signalfd_siginfo si;

	if (read(w->fd, &si, sizeof(si)) == (ssize_t)sizeof(si))
		node_stop(n);
}

/* ---- Start ---- */

static int node_signals(struct node *n)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL); /* before any thread is made */
	fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	CHECK(fd >= 0);
	fdwatch_init(&n->signal_watch, n->loop, fd, on_signal);
	fdwatch_want(&n->signal_watch, FD_READ);
	return 0;
}

static int make_dir(const char *path, mode_t mode)
{
	if (mkdir(path, mode) == 0 || errno == EEXIST)
		return 0;
	log_error("node", "a directory cannot be made: create it, or change the configuration",
		  "path=%s error=%s", path, err_name(-errno));
	return -errno;
}

static int node_create(struct node *n, struct config *config)
{
	int rc;

	*n = (struct node){.config = *config, .shard_count = config->shards};
	list_init(&n->groups);
	list_init(&n->peers);
	rc = make_dir(n->config.state_dir, 0700);
	rc = rc < 0 ? rc : make_dir(n->config.run_dir, 0755);
	if (rc < 0)
		return rc;
	n->loop = loop_create("control", 64);
	if (!n->loop)
		return -ENOSYS;
	node_signals(n);
	n->nonce = rng_next(loop_rng(n->loop));
	n->pool = buf_pool_create(CONTROL_BUFFERS_BYTES);
	n->workers = worker_pool_create("worker", 2, 0);
	n->shards = xcalloc(n->shard_count, sizeof(*n->shards));
	for (unsigned i = 0; i < n->shard_count; i++) {
		rc = node_shard_create(&n->shards[i], n, i);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int node_run(struct config *config, const struct standalone *alone)
{
	static struct node node;
	struct node *n = &node;
	struct admin_config ac = {.node_ops = &node_admin_ops, .node = n};
	int rc = node_create(n, config);

	if (rc < 0)
		return 1;
	ac.loop = n->loop;
	ac.workers = n->workers;
	ac.config = &n->config;
	ac.identity = &n->identity;
	n->admin = admin_create(&ac);
	rc = identity_load(n->config.state_dir, &n->identity);
	if (rc == 0 && n->identity.recovering) {
		log_error("node", "a recovery was begun here and not finished: run the same `ashlard "
				  "recover` again", "cluster=\"%s\"", n->identity.cluster_name);
		return 1;
	}
	if (rc == 0 && n->identity.removed) {
		node_removed_refuse(n);
	} else if (rc == 0 && n->identity.behind > n->identity.recovery) {
		node_left_behind_refuse(n);
	} else if (rc == 0) {
		rc = node_start_claimed(n);
		if (rc < 0)
			return 1;
	} else if (rc != -ERR_UNCLAIMED) {
		return 1; /* said why */
	} else if (!alone) {
		log_info("node",
			 "this node belongs to no cluster yet: `ashlar cluster init` or "
			 "`ashlar node join TOKEN`",
			 "socket=%s", n->config.admin_socket);
	}
	if (admin_listen_unix(n->admin) < 0)
		return 1;
	if (alone)
		standalone_begin(n, alone);
	loop_run(n->loop);
	return 0;
}
