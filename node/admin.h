/* SPDX-License-Identifier: Apache-2.0 */
/* The operators' interface of one node: JSON over HTTP on a root-only socket and over TLS, and the
 * same requests from other nodes. Answers from local state, without a leader too, and says how old each
 * fact is. Lives on the control loop: every call and callback here is made there.
 *
 * node.c wires it:  admin_create → admin_listen_unix (always) → once the node has an identity and its
 * control runs: admin_set_cluster(a, &admin_control_ops, control) → admin_listen_tls if configured.
 * control_hooks.call → admin_call.  At the end admin_stop, then admin_destroy. */
#pragma once

#include "client/client.h"
#include "cluster/control.h"
#include "cluster/replica.h"
#include "net/tls.h"
#include "node/birth.h"
#include "node/diskgroup.h"
#include "node/slow.h"
#include "store/space.h"

struct admin;

/* What admin asks of the cluster. The real one works on a struct control; tests give their own. */
struct admin_cluster_ops {
	const struct state *(*state)(void *cluster);
	void (*status)(void *cluster, struct consensus_status *out);
	uint64_t (*applied_us)(void *cluster);
	bool (*peer_connected)(void *cluster, uint16_t node);
	uint64_t (*peer_silent_us)(void *cluster, uint16_t node); /* control_peer_silent_us */
	int (*propose)(void *cluster, struct control_propose *p, const struct command *cmd,
		       uint64_t deadline_ms, struct wait *w);
	int (*volume_create)(void *cluster, struct control_propose *p, const struct map_volume *want,
			     const char *actor, struct wait *w);
	int (*volume_resize)(void *cluster, struct control_propose *p, uint32_t volume, uint64_t size,
			     const char *actor, struct wait *w);
	int (*call)(void *cluster, struct control_call *q, uint16_t node, const char *method,
		    const char *path, const char *json, uint64_t timeout_ms, struct wait *w);
	void (*call_answer)(void *cluster, uint64_t ticket, int status, const char *json);
	struct relocate_node *(*contacts)(void *cluster); /* control_contacts */
};
extern const struct admin_cluster_ops admin_control_ops; /* cluster = struct control * */

/* One function run on every shard's thread: the way to facts that belong to shards. run() is called
 * concurrently, once per shard; it writes only to its own shard's slot of what `arg` points to. */
struct admin_shard_job {
	void (*run)(struct admin_shard_job *j, unsigned shard, struct replicator *r, struct client *c);
	void *arg;
	void *impl; /* node.c's */
};

/* One open (or failed, or missing) disk group of this node. */
struct admin_group {
	uint16_t group;
	struct uuid uuid;
	bool open;
	int failed;	/* 0, or the code it failed with or could not be opened with */
	char why[224];	/* a sentence when failed or not open */
	bool busy;	/* a device is being replaced, or it is being opened */
	int lost;	/* -ERR_LOG_LOST, -ERR_MAP_LOST: closed, because it may not begin anew yet */
	bool reopening; /* it failed at work and is opened again by itself, in reopens_in_s */
	bool reopen_failed; /* and has been tried in vain */
	bool map_damaged;   /* it serves all the same, for what is in sync nowhere else */
	bool gave_up;	/* that failed too often: it stays closed until somebody sees to it */
	uint32_t reopens_in_s;
	const struct store_device *was; /* closed: its devices when it was; valid for this turn */
	unsigned was_count;
	const struct diskgroup_set *set; /* devices; valid for this turn */
	struct store_stats stats;	 /* when open */
	struct store *store;		 /* when open; its numbers, in this turn */
	struct store_device device[GROUP_DEVICES_MAX]; /* when open */
	struct slow_times times[GROUP_DEVICES_MAX][DEVICE_OP_KINDS];
	unsigned device_count;
};

/* A device takes the place of another. The caller fills it in; it stays until the resume. */
struct admin_replace {
	uint16_t group;
	const char *old, *path; /* old: path or uuid of a member */
	bool wipe, accept_loss; /* accept_loss: though the group has the only in-sync copy of something */
	char actor[64];
	char why[256];          /* out: what was refused and what to do */
	enum device_role role;  /* out */
	uint64_t lost_bytes;    /* out: what stood on the old one and must be fetched again, if known */
	void *impl;
};

/* What admin asks of the process around it. */
struct admin_node_ops {
	/* Runs job->run on every shard; resumes after the last. 0 when there are no shards yet. */
	int (*on_shards)(void *node, struct admin_shard_job *job, struct wait *w);
	unsigned (*groups)(void *node, struct admin_group *out, unsigned max);
	/* identity.json is on disk: load it, start control (bootstrap as the identity says), register the
	 * node (CMD_CLUSTER_INIT if it is node 1 and the state is empty, then CMD_NODE_START), start the
	 * shards. Resumes when registered. Before that it calls admin_set_cluster. */
	int (*claim)(void *node, struct wait *w);
	/* The group's superblocks are final and CMD_GROUP_ADD is applied: open it, start it on the shards,
	 * give it to the replicators. `set` is copied. Opening an open group is 0. */
	int (*group_open)(void *node, const struct diskgroup_set *set, struct wait *w);
	/* store_flush (and then store_settle: -ETIMEDOUT after some seconds), and store_verify of an open
	 * group of this node; -ERR_UNAVAILABLE: it is not open. */
	int (*group_flush)(void *node, uint16_t group, bool reduce, struct wait *w);
	int (*group_verify)(void *node, uint16_t group, struct store_verify *out, struct wait *w);
	int (*group_replace)(void *node, struct admin_replace *r, struct wait *w);
};

struct admin_config {
	struct loop *loop;	   /* the control loop */
	struct worker_pool *workers; /* blocking work: keys, superblocks */
	const struct config *config;
	const struct identity *identity; /* node.c's; number 0 while unclaimed */
	const struct admin_node_ops *node_ops;
	void *node;
};

struct admin *admin_create(const struct admin_config *cfg);
void admin_set_cluster(struct admin *a, const struct admin_cluster_ops *ops, void *cluster);
/* The unix socket of config->admin_socket, mode 0600; a dead process's socket is replaced. */
int admin_listen_unix(struct admin *a) MUST_USE;
/* config->admin_listen. tls is made from ca.pem, node.pem, node.key and must allow anonymous clients
 * (they may only join); it outlives admin. */
int admin_listen_tls(struct admin *a, struct tls_ctx *tls) MUST_USE;
uint64_t wall_ms(void); /* any thread; for people and leases in the map, not for the protocol */
uint16_t admin_tls_port(const struct admin *a); /* 0 while not listening */
/* No new requests; those in flight are answered "stopping". The cluster may go away afterwards. */
void admin_stop(struct admin *a);
void admin_destroy(struct admin *a);

/* control_hooks.call: another node asks. Answered with ops->call_answer, now or later. */
void admin_call(struct admin *a, uint64_t ticket, const char *method, const char *path,
		const char *json);
/* This process asks itself, with root's rights: done() comes once, maybe from inside the call; text is
 * the JSON of the answer, valid during it. */
void admin_request(struct admin *a, const char *method, const char *path, const char *json,
		   void (*done)(void *arg, int status, const char *text), void *arg);
