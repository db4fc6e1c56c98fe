/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the replicator, and what they call of each other; the structures are in replica_impl.h,
 * which includes this. All on the shard's loop.
 *
 *   replica.c           life of a replicator: the map as it changes, tick, end of turn
 *   replica_object.c    an object here, as the map lists it: its store object, its tick (A3 T4 S1)
 *   replica_group.c     the disk groups under it: opened, closed, failed, full (L4)
 *   replica_info.c      what people see
 *   replica_session.c   streams, beacons, grants, fences (N1–N6), suspicion (S1)
 *   replica_credit.c    what a peer may send into a log here without asking (L4)
 *   replica_primary.c   a tenure: takeover, commit, leases, its end (C1 C2 T2 W2 W5)
 *   replica_joins.c     its members, as the primary sees them: joins, want, REPLICATE (C1 T1 T5 W4 S1)
 *   replica_move.c      planned moves, going home, leaving, resigning (T3 W5)
 *   replica_member.c    a member: JOIN, REPLICATE, ACK (T1 W3 Y1 Y4)
 *   replica_catchup.c   both sides of a catch-up (Y2–Y6)
 *   replica_io.c        client operations (W1 Q1 Q2 A1 A2)
 *   replica_confirm.c   reads where the clock may stop (N6)
 *   replica_repair.c    reads that this replica cannot answer alone, and mending (Q3)
 *   replica_damage.c    what is known to be damaged here, until it is not (L6)
 *   replica_audit.c     the copies of a page compared (L6)
 *   replica_space.c     who met a lack of space (W1 L4)
 *   replica_msg.c       the messages */
#pragma once

#include "cluster/replica_impl.h"

/* Clock for leases: read now (N6). */
static inline uint64_t now_us(struct replicator *r)
{
	return loop_boot_us(r->loop);
}
/* Bits first … first+n−1, n ≤ 64. */
static inline uint64_t blocks_mask(unsigned first, unsigned n)
{
	return (n >= 64 ? ~0ull : (1ull << n) - 1) << first;
}
static inline uint64_t ms(uint32_t n)
{
	return (uint64_t)n * 1000;
}
static inline struct version version_min(struct version a, struct version b)
{
	return version_cmp(a, b) < 0 ? a : b;
}

/* replica.c */
void replica_arm(struct replicator *r); /* the end-of-turn hook */
bool replica_may_propose(const struct replicator *r);
void replica_propose(struct replicator *r, const struct object_change *c);
void replica_event(struct replicator *r, uint8_t severity, const char *code, const char *fmt, ...)
	PRINTF_LIKE(4, 5);
void governor_now(struct replicator *r); /* it learns what time it is */

/* replica_object.c */
struct object *object_find(struct replicator *r, uint64_t id);
struct object *object_make(struct replicator *r, uint64_t id); /* or finds it */
void object_free(struct object *o);
void object_busy(struct object *o); /* the tick looks at it */
void object_hold(struct object *o);
void object_release(struct object *o);
uint32_t object_blocks(struct object *o);       /* 0: volume unknown */
bool object_is_primary(const struct object *o); /* by the map, in this incarnation */
/* Which of the members is this node's replica, and in which group; -1: none. */
int replica_here(struct replicator *r, const struct map_object *c, struct group **group);
void object_set_policy(struct object *o); /* the store learns what the volume says */
void object_apply(struct object *o);      /* the applied map says something else of it */
void objects_tick(struct replicator *r, uint64_t now);

/* replica_group.c */
struct group *replica_group(struct replicator *r, uint16_t id);
void group_fail(struct group *g, int code);
void object_fail(struct object *o, int rc);
void group_wait_space(struct group *g);
void groups_tick(struct replicator *r);

/* replica_session.c */
struct session *session_for(struct replicator *r, const struct object *o,
			    uint16_t node); /* live or NULL */
unsigned stream_for(struct replicator *r, uint64_t object, uint16_t node);
bool session_lease_valid(const struct session *s, uint64_t now);
void session_want_lease(struct session *s);
void session_beacon(struct session *s, uint64_t now);
void session_tick(struct replicator *r, uint64_t now);
void session_send(struct session *s, uint16_t opcode, struct writer *w,
		  const struct slice *payload);
void session_fail(struct session *s, int reason);
void hold_add(struct object *o, struct session *s, uint32_t tenure);
void fence_older(struct object *o); /* seen was raised: owe FENCE to every older join */
bool holds_clear(struct object *o, uint32_t tenure, uint64_t now);
void holds_drop_all(struct object *o);
void session_acks(struct replicator *r);
bool peer_suspect(struct replicator *r, const struct object *o, uint16_t node, uint64_t now);

/* replica_credit.c; credit_find is in replica_space.h */
void session_credit_top_up(struct session *s, struct group *g);
void session_credit_spend(struct session *s, struct group *g, uint64_t bytes);
/* group 0: not known which. Ends the session when it cannot be told. */
void session_credit_lost(struct session *s, uint16_t group, uint64_t bytes);
void session_credits_keep(struct replicator *r, struct group *g);

/* replica_primary.c */
bool object_forced(const struct object *o);
void primary_start(struct object *o);
void primary_end(struct object *o, const char *why);
void primary_stale(struct session *s, const struct msg_stale *m);
bool primary_tick(struct primary *p, uint64_t now); /* still busy? */
void primary_check(struct primary *p);
void primary_advance(struct primary *p);
void primary_put(struct primary *p); /* a reference less */
bool primary_leased(struct primary *p,
		    const char **waits_for); /* fresh clock; asks for what is missing */
/* Why an operator must decide before it serves; NULL: nothing of the sort. */
const char *primary_conflict(const struct primary *p);
const char *primary_state_text(struct primary *p);
/* Proposed by this node for this object in its epoch; the caller fills in the rest. */
struct object_change object_change_for(struct object *o, enum object_op op);
void propose_drop(struct object *o, const struct map_member *who, bool has_less);
void propose_takeover(struct object *o);

/* replica_joins.c */
struct member *primary_member(struct primary *p, const struct session *s, uint32_t join);
void members_from_config(struct primary *p); /* of a tenure that begins */
void members_join(struct primary *p);	     /* those whose time has come */
void member_quarantine(struct member *m); /* proposes it: an operator decides what becomes of the replica */
void member_unjoin(struct member *m, uint64_t retry_us);
bool member_tick(struct primary *p, struct member *m, uint64_t now); /* still busy? */
void primary_reconfigure(struct primary *p);
void primary_session_up(struct primary *p, struct session *s);
void primary_member_down(struct member *m);
void primary_joined(struct session *s, const struct msg_joined *m);
void primary_ack(struct session *s, const struct msg_ack_entry *e, uint64_t now);
void primary_append(struct primary *p, struct outgoing *out); /* version given: keep and send */
void primary_send(struct primary *p, struct member *m, struct outgoing *out);
void primary_announce(struct primary *p); /* the watermark, now */

/* replica_move.c */
void moves_run(struct replicator *r); /* at the end of a turn */
void moves_tick(struct replicator *r, uint64_t now);
void move_end(struct primary *p); /* it moves no longer: given up, or its tenure ended */
void propose_resign(struct object *o);

/* replica_member.c */
void inbound_join(struct session *s, const struct msg_join *m);
void inbound_replicate(struct session *s, const struct msg_replicate *m, struct slice payload);
void inbound_void(struct object *o); /* silently: the peer knows, by its session's end or by JOIN or FENCE */
void inbound_end(struct object *o, enum nak_reason reason); /* and the primary is told (N2) */
void inbound_space(struct object *o);
void inbound_repair_read(struct session *s, const struct msg_repair_read *m);
struct object *inbound_find(struct session *s,
			    const struct msg_key *k); /* joined by s under this key */
uint32_t epoch_tenure(const struct epoch_entry *e, unsigned count,
		      uint64_t seq); /* 0: before the table */

/* replica_catchup.c */
void fills_run(struct replicator *r); /* the governor's time has come: each may go on */
void resync_send(struct session *s, uint16_t opcode, struct writer *w, const struct slice *payload);
void fill_start(struct member *m, const struct msg_joined *j);
void fill_end(struct member *m);
void fill_run(struct fill *f);
void fill_versions(struct member *m, const struct msg_versions *v);
void fill_manifest(struct member *m, const struct msg_manifest *x);
uint8_t fill_skip_mask(struct fill *f, const struct record *rec, bool skip_all);
bool fill_complete(const struct fill *f);
uint32_t fill_left(const struct fill *f);
void target_versions(struct session *s, const struct msg_versions *q);
void target_manifest(struct session *s, const struct msg_manifest *q);

/* replica_io.c */
void ops_run(struct replicator *r);
void ops_destroy(struct replicator *r);
void ops_end(struct primary *p); /* the tenure's end: RETRY for all */
void op_committed(struct io_op *op);
const char *op_stage_name(enum op_stage s);
void op_start(struct replicator *r, struct io_exec *io, bool mend); /* takes a free operation */
void op_ready(struct io_op *op, int rc); /* it runs at the end of this turn */
int op_park(struct io_op *op, const char *what); /* PENDING: until what many wait for has changed */
int op_answer_with(struct io_op *op, uint8_t status); /* 0: its next stage is the reply */

/* replica_confirm.c */
bool primary_confirmed(struct primary *p, uint64_t asked, const char **waits_for);
void sessions_ask(struct replicator *r); /* at the end of a turn */

/* replica_repair.c */
int op_repair(struct io_op *op, int rc); /* the stage after the lookup */
bool repair_stalled(struct io_op *op);	 /* it waits for another replica, maybe too long */
void op_repair_data(struct session *s, const struct msg_repair_data *m, struct slice payload);
void mend_after_read(struct io_op *op); /* a read that needed another replica */
int mend_merge(struct io_op *op);	/* the stage after the lookup and the repair of a mend */
/* Rewrites these blocks everywhere with what they are: of a read that needed repair, or (always) of a
 * member that lacks them. done runs once, with the status of the whole. False: no room now. */
bool mend_begin(struct replicator *r, uint64_t object, uint32_t block, uint32_t blocks, bool always,
		void (*done)(void *arg, uint8_t status), void *arg);

/* replica_damage.c */
void damage_told(void *replicator, const struct store_damage *d); /* by the store */
void damage_asked(struct session *s, const struct msg_damaged *m);
void damage_found(struct replicator *r, const struct object *o, uint32_t page,
		  uint64_t blocks); /* at a member, by comparison */
void damage_tick(struct replicator *r);
void damage_destroy(struct replicator *r);

/* replica_audit.c */
void audit_create(struct replicator *r);
void audit_destroy(struct replicator *r);
void audit_tick(struct replicator *r);
void audit_manifest(struct member *m, const struct msg_manifest *x);
