/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the control plane, shared by control*.c only. Everything is on the control loop. */
#pragma once

#include "cluster/control.h"
#include "cluster/control_msg.h"
#include "net/wire.h"
#include "node/base/err.h"

#define CONTROL_TICK_US 20000u	      /* while something waits for a leader */
#define CONTROL_DUTY_US 500000u	      /* leader's duties, deadlines far away */
#define CONTROL_PLAN_US 100000u /* between plans, while there is something to move */
#define CONTROL_BATCH_KEEP_US 300000u /* object changes wait so long for a leader; authors retry at 250 ms */
#define CONTROL_VOLUME_MS 30000u
#define CONTROL_CATCH_UP_US 1000000u /* for what was applied at the leader to be applied here */
#define CONTROL_CLIENT_MS 10000u
#define CONTROL_CLIENT_PROPOSALS 64u
#define CONTROL_CALLS_MAX 1024u
#define CONTROL_AVOID_US 5000000u /* who could not be given a vote is passed over for so long */

struct peer {
	struct list link;
	uint16_t id;
	uint32_t incarnation;
	uint64_t session; /* answers go to the connection that asked, never to a later one */
	struct conn *conn;
	uint64_t heard_us; /* mono: the last frame */
	uint64_t asked_us; /* mono: the first Raft message that nothing came after; 0: none */
};

struct subscriber {
	struct list link;
	struct conn *conn;
	char identity[128];
	bool watching;
	uint64_t sent, serial;
	unsigned proposals;
};

/* A proposal of this node. WAITING: no leader, or a pause before the next try. LOCAL: in our log.
 * REMOTE: asked the leader. ANSWERED: it is applied there, not yet here. DONE: its owner is resumed at the
 * end of the turn. */
enum request_state { REQUEST_WAITING, REQUEST_LOCAL, REQUEST_REMOTE, REQUEST_ANSWERED, REQUEST_DONE };
struct request {
	struct list link;
	struct control *c;
	struct control_propose *p; /* NULL: its owner was told already */
	enum request_state state;
	uint64_t id, deadline_us;
	uint64_t retry_us; /* of an answered one: when it is not waited for any more */
	bool unknown; /* an attempt may have been applied */
	bool repeatable;
	uint16_t leader;
	int rc;
	struct proposal local;
	struct wait local_wait;
	struct writer cmd, placed;
};

/* A proposal of a peer, or of nobody (object changes), in our log. */
struct relay {
	struct list link;
	struct control *c;
	struct proposal p;
	struct wait wait;
	uint16_t node; /* 0: nobody is answered */
	uint64_t session, id;
	struct writer cmd;
};

/* A call to another node, and one from another. */
struct outcall {
	struct list link;
	struct control_call *q;
	uint64_t id, deadline_us, session;
	uint16_t node;
	int rc;
	struct writer local; /* a call to ourselves, not delivered yet */
	uint32_t timeout_ms;
};
struct incall {
	struct list link;
	uint64_t ticket, session, id, deadline_us;
	uint16_t node;
};

struct control {
	struct control_config cfg;
	struct consensus *consensus; /* NULL while it starts */
	struct state *state;
	void (*stopped)(void *ctx);
	bool stopping, kicked, was_leader;

	struct turn_end flush;
	struct timer tick;
	uint64_t next_id, next_session, next_ticket;

	struct list peers, subscribers;
	struct list requests, relays, outcalls, incalls;
	struct list done_requests, done_calls;
	unsigned incall_count;
	struct list client_proposals;

	uint64_t delta_version, applied_us;
	uint64_t nodes_told; /* the newest change of a node that peers were told of */

	unsigned batch_count;
	uint64_t batch_us;
	struct object_change batch[OBJECT_CHANGES_MAX];

	struct wait member_wait;
	bool member_busy;
	uint16_t member_node, avoid_node; /* avoid: did not catch up */
	uint64_t avoid_us, duty_us, removed_us; /* removed: when one was last proposed */
	uint64_t presence_us; /* of the next look at who is there */

	/* Where replicas should be (control_relocate.c). */
	uint64_t started_us, plan_us, planned_us;
	uint64_t *lost_us; /* by node number: when contact ended last */
	unsigned lost_count;
	bool planned_idle; /* the last plan had nothing to do, on this input: */
	uint64_t planned_applied, planned_facts;
};

uint64_t control_now_us(struct control *c);
void control_arm(struct control *c); /* control_flush at the end of this turn */
struct peer *control_peer(const struct control *c, uint16_t id);
/* Sends unless the frame would be too large or the peer is congested. */
bool control_send(struct control *c, uint16_t node, uint16_t opcode, uint64_t id, const struct writer *w);

/* control_propose.c */
void control_requests_step(struct control *c, bool now); /* now: a leader or a peer has come */
void control_requests_peer_down(struct control *c, uint16_t node);
void control_requests_applied(struct control *c); /* something was applied here */
void control_requests_finish(struct control *c); /* resumes owners of what is done */
void control_requests_cancel(struct control *c);
void control_batch_flush(struct control *c);
void control_on_propose(struct control *c, struct peer *p, const struct frame *f);
void control_on_proposed(struct control *c, struct peer *p, const struct frame *f);
void control_client_on_propose(struct control *c, struct subscriber *s, const struct frame *f);
bool control_requests_busy(const struct control *c);

/* control_place.c: what only the leader can judge or fill in. 0, or a refusal in *out. `placed` is filled
 * only if the command needed placing. */
int control_place(struct control *c, const void *cmd, size_t len, struct writer *placed,
		  struct command_result *out);

/* control_call.c */
void control_calls_step(struct control *c);
void control_calls_peer_down(struct control *c, uint64_t session);
void control_calls_finish(struct control *c);
void control_calls_cancel(struct control *c);
void control_on_call(struct control *c, struct peer *p, const struct frame *f);
void control_on_result(struct control *c, struct peer *p, const struct frame *f);
bool control_calls_busy(const struct control *c);

/* A command that nobody waits for; on the leader. */
void control_propose_unasked(struct control *c, const struct command *cmd);
uint64_t control_wall_ms(void);

/* control_duty.c */
void control_duty(struct control *c);

/* control_remove.c */
bool control_node_leaves(const struct control *c, uint16_t node); /* but for its vote it could go now */
void control_remove(struct control *c);
/* On the leader, before a command is appended: 0, or a refusal in *out. A node that we hear is not dead. */
int control_remove_check(const struct control *c, const void *cmd, size_t len, struct command_result *out);

/* control_presence.c: on the leader */
void control_presence(struct control *c);

/* control_nodes.c */
void control_nodes_tell(struct control *c, struct peer *p);
void control_nodes_news(struct control *c); /* tells all, if a node has changed */
void control_on_nodes(struct control *c, struct peer *p, const struct frame *f);

/* control_relocate.c */
void control_relocate(struct control *c);
void control_contact_lost(struct control *c, uint16_t node);
/* Whether a node is in contact, and away for longer than delay_us. */
struct relocate_node control_contact(const struct control *c, const struct map_node *n, uint64_t delay_us);
