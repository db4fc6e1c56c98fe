/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane of one node, on the control loop: Raft, the state machine, proposals from here and
 * from peers (relayed to the leader), map deltas to shards and subscribers, and the leader's duties
 * (placement, voters, noticing lost nodes). Owns the control connections' frames OP_RAFT … OP_RESULT. */
#pragma once

#include "cluster/consensus.h"
#include "cluster/control_msg.h"
#include "cluster/placement.h"
#include "cluster/relocate.h"
#include "cluster/state.h"
#include "net/conn.h"

struct control;

struct control_hooks {
	/* A delta for every shard: encoded bytes, malloc'ed, given away. Called after each batch of applied
	 * commands, in order. */
	void (*delta)(void *ctx, uint8_t *bytes, size_t len);
	/* An admin call that came from another node (OP_CALL). Answer with control_call_answer. */
	void (*call)(void *ctx, uint64_t ticket, const char *method, const char *path, const char *json);
	void (*role_changed)(void *ctx);
	/* What another node says of the nodes there are, by a newer map than ours. May be NULL. */
	void (*nodes)(void *ctx, const struct control_nodes *list);
};

struct control_config {
	struct loop *loop;
	struct buf_pool *pool;
	struct worker_pool *workers;
	uint16_t node;
	const char *raft_dir;
	bool bootstrap;
	const struct control_hooks *hooks;
	void *ctx;
};

int control_start(const struct control_config *cfg, struct control **out) MUST_USE; /* blocking */
void control_stop(struct control *c, void (*stopped)(void *ctx));

/* Control connections, one per peer node. */
void control_peer_up(struct control *c, uint16_t node, uint32_t incarnation, struct conn *conn);
void control_peer_down(struct control *c, uint16_t node, int reason);
void control_peer_refused(struct control *c, uint16_t node);
void control_frame(struct control *c, uint16_t node, const struct frame *f);
/* A client's control connection: may watch the map and propose attach, renew, detach, nothing else. */
void control_client_up(struct control *c, struct conn *conn, const char *identity);
void control_client_down(struct control *c, struct conn *conn);
void control_client_frame(struct control *c, struct conn *conn, const struct frame *f);

/* Proposes from this node: here if leader, else through the leader, with retry while there is none,
 * until deadline_ms from now. The command is copied. PENDING, or -ECANCELED after control_stop. rc: 0
 * (see result.code), -ERR_NO_LEADER (nothing done), -ETIMEDOUT (outcome unknown), -ECANCELED. Unknown
 * outcomes are tried again, except of CMD_EVENT and CMD_TOKEN_USE: applying the others twice is the
 * same as once. time_ms 0 is filled in. */
struct control_propose {
	struct wait *wait;
	struct list link;
	struct command_result result;
	void *impl;
};
int control_propose(struct control *c, struct control_propose *p, const struct command *cmd,
		    uint64_t deadline_ms, struct wait *w) MUST_USE;
/* Object changes from shards: batched into one command per turn, retried by their authors. */
void control_propose_objects(struct control *c, const struct object_change *changes, unsigned count);

/* Volume commands need a placement, which only the leader makes: these fill it in there. */
int control_volume_create(struct control *c, struct control_propose *p, const struct map_volume *want,
			  const char *actor, struct wait *w) MUST_USE;
int control_volume_resize(struct control *c, struct control_propose *p, uint32_t volume, uint64_t size,
			  const char *actor, struct wait *w) MUST_USE;

/* An admin call to another node, or this one: result JSON malloc'ed into ->json. PENDING. rc: 0
 * (see status), -ENOTCONN, -ERR_CLOSED (connection lost), -ETIMEDOUT, -ECANCELED. */
struct control_call {
	struct wait *wait;
	struct list link;
	int status;
	char *json;
	void *impl;
};
int control_call(struct control *c, struct control_call *q, uint16_t node, const char *method,
		 const char *path, const char *json, uint64_t timeout_ms, struct wait *w) MUST_USE;
void control_call_answer(struct control *c, uint64_t ticket, int status, const char *json);

const struct state *control_state(const struct control *c);
void control_status(const struct control *c, struct consensus_status *out);
/* Which nodes can be reached from here, and which stay away: by number, as relocate wants it. malloc'ed.
 * Only a leader notices nodes that are connected but silent. */
struct relocate_node *control_contacts(const struct control *c);
bool control_peer_connected(const struct control *c, uint16_t node);
/* µs since the last frame of a connected node; UINT64_MAX: not connected. Only a leader and its followers
 * have something to say all the time: a large number proves nothing. */
uint64_t control_peer_silent_us(const struct control *c, uint16_t node);
/* Mono time of the newest applied entry or leader contact. */
uint64_t control_applied_us(const struct control *c);
