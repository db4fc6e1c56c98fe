/* SPDX-License-Identifier: Apache-2.0 */
/* A Raft group in one process, from one seed: virtual clock, a network that delays, loses, and
 * delivers late across reconnects, disks that lose what was not synced, crashes, partitions,
 * membership changes. The real cluster/consensus code runs on it; sim_check.c watches what it does
 * after each event. */
#pragma once

#include "cluster/consensus_impl.h"
#include "node/base/rng.h"

#define SIM_NODES_MAX 8
#define SIM_INDEX_MAX 65536u

/* ---- The disk (sim_disk.c) ---- */

struct sim_disk {
	struct raft_disk disk;
	struct raft_disk_image image;
	size_t cap;
	struct raft_write lazy[64]; /* truncations that were not synced yet */
	unsigned lazy_count;
};

void sim_disk_init(struct sim_disk *d);
void sim_disk_fini(struct sim_disk *d);
/* The machine stops: what was not synced may be there, or not. */
void sim_disk_crash(struct sim_disk *d, struct rng *r);

/* ---- The network and the machines (sim.c) ---- */

struct sim_node {
	struct sim *sim;
	uint16_t id;
	bool up, joined;      /* joined: part of the group at first */
	uint64_t incarnation; /* of the process: events of an earlier one are void */
	struct consensus_env env;
	struct sim_disk disk;
	struct consensus *c;
	const struct raft_write *write; /* under way */
	unsigned write_count;
	uint64_t wake_seq; /* of the valid wake-up */
	const char *fatal;
	uint64_t fsm_applied, fsm_hash;
	uint64_t seen_commit, seen_term;
	bool seen_leader;
	uint64_t slow_until_us;
};

enum sim_event_kind {
	EV_WAKE,
	EV_TURN,
	EV_WRITTEN,
	EV_MESSAGE,
	EV_CLIENT,
	EV_CHAOS,
	EV_RESTART,
	EV_MEMBER,
	EV_GONE
};
struct sim_event {
	uint64_t at_us, seq;
	enum sim_event_kind kind;
	uint16_t node, from;
	uint64_t incarnation, session;
	uint8_t *data;
	size_t len;
};

struct sim_link {
	uint64_t session, last_us;
	bool blocked; /* silently: the sender believes in it */
	bool refused; /* the sender knows */
};

struct sim_params {
	unsigned nodes, spares;
	uint64_t chaos_us, calm_us;
	double loss, late, disk_error;
	uint64_t delay_us, disk_us, client_us, chaos_every_us, member_every_us;
	unsigned threshold, trailing;
	size_t append_max;
	bool no_gone;
};

struct sim_committed {
	uint64_t term, hash, leader_term, state;
	uint64_t command; /* 0: none */
	uint8_t type;
};

struct sim_stats {
	uint64_t commits, acks, elections, crashes, fatals, installs, changes, resigns, messages, events;
};

struct sim {
	struct rng rng;
	uint64_t seed, now_us, seq;
	struct sim_params p;
	struct sim_node node[SIM_NODES_MAX];
	unsigned count;
	struct sim_link link[SIM_NODES_MAX][SIM_NODES_MAX];
	struct sim_event *heap;
	size_t heap_count, heap_cap;
	bool calm;
	uint64_t next_command;

	/* sim_check.c */
	struct sim_committed *committed; /* by index */
	uint64_t committed_max;
	uint16_t leader_of[4096]; /* by term */
	uint8_t *refused;         /* by command: it said that nothing was done */
	struct sim_stats stats;
	char failure[256]; /* empty: none */
	bool verbose;
};

/* Runs one history. False: s->failure says what was broken. */
bool sim_history(struct sim *s, uint64_t seed);

/* For directed tests: the group without clients or chaos. */
void sim_start(struct sim *s, uint64_t seed, const struct sim_params *p);
void sim_run_until(struct sim *s, uint64_t at_us);
void sim_finish(struct sim *s);
void sim_crash(struct sim *s, struct sim_node *n);
void sim_boot(struct sim *s, struct sim_node *n);
struct sim_node *sim_leader(struct sim *s);
uint64_t sim_propose(struct sim *s, struct sim_node *n); /* the command's number; 0: refused */
void sim_params_default(struct sim_params *p);

void sim_fail(struct sim *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
uint64_t sim_command_of(const void *data, size_t len);

/* ---- The checks (sim_check.c) ---- */

void check_init(struct sim *s);
void check_fini(struct sim *s);
void check_node(struct sim *s, struct sim_node *n); /* after each event of the node */
void check_applied(struct sim *s, struct sim_node *n, uint64_t index);
void check_acked(struct sim *s, uint64_t index, uint64_t command);
void check_logs(struct sim *s); /* log matching, all pairs */
void check_end(struct sim *s);  /* everything healed: one leader, all the same */
