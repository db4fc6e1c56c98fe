/* SPDX-License-Identifier: Apache-2.0 */
/* One ashlard process: where the parts meet.
 *
 *   control loop (the main thread): Raft, state, admin HTTP, listener, control connections
 *   shard loops (a thread each):    a copy of the map, replicator, client; NBD on shard 0
 *   worker pool:                    what blocks (opening stores, keys, superblocks)
 *
 * The control loop tells shards of applied changes (struct delta, shared by reference count);
 * shards send proposals back by loop_post. Nothing else is shared but one flag, leader_known. */
#pragma once

#include <stdatomic.h>

#include "client/client.h"
#include "client/nbd.h"
#include "cluster/control.h"
#include "cluster/replica.h"
#include "net/link.h"
#include "net/listener.h"
#include "node/admin.h"
#include "node/birth.h"
#include "node/config.h"
#include "node/diskgroup.h"

struct node;

/* ---- A shard ---- */

struct shard {
	struct node *node;
	unsigned index;
	struct loop *loop;
	struct buf_pool *pool;
	struct map map;
	struct replicator *replicator;
	struct client *client;
	struct list streams; /* struct channel, streams.c */
	struct list clients; /* their connections, shard_io.c */
	struct pool io_ops; /* struct shard_io: client requests from connections and other shards */
	struct nbd_server *nbd; /* shard 0 only */
};

int node_shard_create(struct shard *s, struct node *n,
		      unsigned index) MUST_USE; /* control thread; loop not running */
void node_shard_start(struct shard *s); /* control thread: the loop begins with a replicator, a
					   client, an empty map */

/* streams.c: the data connections to other nodes that end in this shard. */
void streams_reconcile(struct shard *s); /* after each delta: links for the peers that should be */
void streams_accepted(void *shard, struct conn *c, const struct wire_hello *peer);

/* shard_io.c: client connections, and requests that hop between shards of this node. */
void shard_client_accepted(void *shard, struct conn *c, const struct wire_hello *peer);
/* The node was removed: what its front end has open here ends. */
void shard_clients_drop(struct shard *s, const struct uuid *node);
int shard_local_io(void *shard, struct io_exec *io, struct wait *w); /* client_hooks.local */
void shard_io_init(struct shard *s);

/* ---- The node ---- */

struct node {
	struct config config;
	struct identity identity;
	struct birth_paths paths;
	struct loop *loop;
	struct buf_pool *pool;
	struct worker_pool *workers;
	struct tls_ctx *tls, *admin_tls;
	struct listener *listener;
	struct control *control;
	struct admin *admin;
	struct shard *shards;
	unsigned shard_count;
	bool registered, shards_running, stopping;
	atomic_bool leader_known; /* a Raft leader is in reach: written by control, read by shards */
	struct list groups;                 /* struct node_group */
	struct timer group_timer;           /* groups that wait; samples of their devices' times */
	uint64_t group_sample_us;
	struct list peers;                  /* struct channel, peers.c */
	struct list knocks;                 /* removed.c */
	uint64_t listening_us;		    /* for a leader since then */
	struct timer knock_timer;
	struct birth_peer hints[NODES_MAX]; /* peers.json */
	unsigned hint_count;
	struct control_nodes told; /* by other nodes; good while its version is newer than our map's */
	uint64_t nonce;           /* of this process */
	struct node_start *start; /* the registration in progress, node_start.c */
	struct fdwatch signal_watch;
	struct drain *drain; /* stop.c */
	struct timer stop_timer;
	struct post nbd_post, stop_post, stores_post;
	struct wait stop_wait;
};

/* run.c */
void node_hello(const struct node *n, uint8_t kind, uint16_t stream, uint16_t streams,
		struct wire_hello *out);
_Noreturn void node_exit(struct node *n, const char *why); /* fail-stop, no clean-up */
void node_event(struct node *n, uint8_t severity, const char *code, const char *text); /* events.c */
void node_group_failed(struct node *n, uint16_t group, int code); /* node_reopen.c: what is done about it */
/* The delta of applied changes, to every shard (takes bytes), and what follows from it here. */
void node_delta(void *node, uint8_t *bytes, size_t len);
extern const struct admin_node_ops node_admin_ops;
extern const struct control_hooks node_control_hooks;

/* node_shards.c: one function on every shard's thread. */
int node_on_shards(void *node, struct admin_shard_job *job, struct wait *w);

void node_nbd_start(struct node *n);

/* stop.c: SIGTERM. Ends the process within about 10 s, mostly within one. */
void node_stop(struct node *n);

/* node_start.c: identity → groups → control → registration → shards. */
int node_claim(void *node, struct wait *w); /* admin_node_ops.claim */
int node_start_claimed(struct node *n);     /* at process start, when identity.json is there */
void node_start_delta(struct node *n);	    /* state was applied, before the shards run */

/* node_groups.c: opening disk groups, and what to do when one has lost its log or map. */
void node_groups_find(struct node *n); /* blocking, before control starts: exclusive open, scan */
uint32_t
node_groups_incarnation(const struct node *n); /* highest node incarnation a superblock names */
void node_groups_set_incarnation(struct node *n); /* into the superblocks of those that are open */
void node_groups_start(struct node *n); /* the shards run */
bool node_groups_opening(const struct node *n); /* some that were found at start do not serve yet */
int node_group_open(void *node, const struct diskgroup_set *set, struct wait *w);
unsigned node_groups(void *node, struct admin_group *out, unsigned max);
struct store *node_group_store(struct node *n, uint16_t group); /* NULL while not open */
void node_group_used(struct node *n, uint16_t group, int by); /* a worker has the store, +1, or not, −1 */
/* node_group_ops.c */
int node_group_flush(void *node, uint16_t group, bool reduce, struct wait *w);
/* node_group_close.c: the process ends. Stores stop, and leave for the next start what only a stop leaves;
 * 0 at once if there is none to stop. */
int node_groups_stop(struct node *n, struct wait *w);
int node_group_verify(void *node, uint16_t group, struct store_verify *out, struct wait *w);
int node_group_replace(void *node, struct admin_replace *r, struct wait *w); /* node_replace.c */
void node_groups_reconcile(struct node *n); /* after a delta: gives groups to the replicators */

/* peers.c: control connections. */
void peers_reconcile(struct node *n); /* from the map, and from peers.json before there is one */
void peers_told(struct node *n, const struct control_nodes *list);
void peers_accepted(void *node, struct conn *c, const struct wire_hello *peer);
void peers_client_accepted(void *node, struct conn *c, const struct wire_hello *peer);
/* What the map, or peers.json, says of a node: 0, or -ERR_NOT_FOUND. */
int peers_identity(const struct node *n, uint16_t id, struct uuid *uuid, uint32_t *incarnation);

/* The name in a certificate is that of a node that was removed. */
bool peers_removed(const struct node *n, const char *tls_name);

/* removed.c: this node was removed from the cluster. Notes it in identity.json and ends the process. The CA's
 * key, if it has one, is deleted if another node is known to have it. */
_Noreturn void node_removed(struct node *n, const char *who, bool ca_key_elsewhere);
void node_removed_refuse(const struct node *n); /* at start: says what to do */
void node_removed_check(struct node *n); /* after a delta: what the own state says */
void node_knock_start(struct node *n);

/* left_behind.c: the cluster was recovered from a lost Raft majority without this node. Ends the process, if
 * that is so and nobody leads it. */
#define LEFT_BEHIND_REMEDY                                                                         \
	"with ashlard stopped: ashlard recover --follow TOKEN, as it was printed by the recovery; "  \
	"its disk groups stay"
void node_left_behind(struct node *n, uint32_t recovery, const char *who);
void node_left_behind_refuse(const struct node *n); /* at start: says what to do */
bool node_nobody_leads(const struct node *n);	    /* for 3 s; removed.c */

/* accept.c: who may connect, and to which loop. */
bool node_accept(void *node, const struct wire_hello *peer, const char *tls_name,
		 struct accept_decision *d, struct wire_refusal *f);
