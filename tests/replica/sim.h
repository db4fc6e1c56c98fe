/* SPDX-License-Identifier: Apache-2.0 */
/* A deterministic simulator of a few nodes, each with the real replicator, in one process and one
 * thread.
 *
 * Loop, connections and stores are replaced here (the same headers, other code); Raft is an oracle:
 * the real state machine, whose deltas each node gets late and in order. Everything that happens is
 * an event of one queue, ordered by virtual time; all chance comes from one seed, so a seed replays
 * a history.
 *
 *   sim_core.c     events, processes, turns, clocks (node/loop/loop.h)
 *   sim_conn.c     connections (net/conn.h): delay, stall in one direction, reset, silence
 *   sim_store*.c   disks (store/store.h): what is durable, what a crash loses, what is destaged
 *   sim_cluster.c  nodes that start, crash, pause; the Raft oracle; faults
 *   sim_relocate.c the leader that moves replicas
 *   sim_client.c   clients that route, retry, repeat themselves late; their history
 *   sim_cases.c    directed histories; sim_force.c: what operators force; sim_stopped.c: clocks that stop;
 *                  sim_joins.c: joins and streams; sim_lost.c: disks that lied
 *   sim_check.c    linearizability per sector, replicas equal when quiet, one leased primary */
#pragma once

#include "cluster/replica.h"
#include "cluster/replica_impl.h"
#include "cluster/state.h"

#define SIM_NODES_MAX         4u
#define SIM_OBJECTS           2u
#define SIM_SECTOR            512u
#define SIM_SECTORS_PER_BLOCK (BLOCK_SIZE / SIM_SECTOR)

struct sim_proc {      /* a node: its host and its process */
	unsigned node; /* 1 … */
	bool alive, dying, powered, stopping;
	unsigned life; /* +1 at each start: events of an earlier life are void */
	uint64_t paused_until;
	int64_t drift_ppm;
	uint64_t clock_offset_us;
	uint64_t beacon; /* name of its newest */
	uint64_t stopped_us; /* for so long its clock stood, to the end of the pause it is in */
	struct loop *loop;
	struct buf_pool *pool;
	struct replicator *r;
	struct map map;
	uint32_t incarnation; /* durable */
	struct store *disk;   /* what survives, and the running store over it */
	uint16_t group;
	uint64_t raft_cut_until; /* no deltas until then */
	bool map_leaps; /* all news that there are come in one step */
	uint64_t delta_next_us;
	size_t delta_at;
	uint64_t old_until_us; /* until then it hears of the first old_deltas only */
	size_t old_deltas;
	uint64_t register_us;
	bool failed_group, group_fails; /* group_fails: a fault has it fail, and be opened again */
};

/* How a history is made; all drawn from the seed unless a test sets them. */
struct sim_plan {
	uint64_t seed;
	unsigned nodes, copies, clients, ops_per_client, depth;
	unsigned min_in_sync; /* 0: 1 */
	uint64_t fault_us; /* faults happen until then */
	double crash, power, pause, cut, reset, slow_disk, no_leader, log_lost, damage, pause_long,
		suspect, blackout, move, stop, fail;
	int relocate; /* the leader moves replicas: 1 what a case asks for, 2 jobs at random */
	bool duplicates, trims, partial, verbose, tiny_log, drift, fence;
	bool clock_stops, confirm_reads; /* clock_stops: while a node pauses */
};

struct sim {
	struct rng rng;
	struct sim_plan plan;
	uint64_t now_us, seq, events_run;
	struct sim_event *heap;
	size_t heap_len, heap_cap;
	struct sim_proc proc[SIM_NODES_MAX + 1];
	struct sim_proc *running;                           /* whose event runs */
	bool blocked[SIM_NODES_MAX + 1][SIM_NODES_MAX + 1]; /* from, to */
	/* the oracle */
	struct state *state;
	uint64_t index;
	struct sim_delta {
		uint8_t *bytes;
		size_t len;
	} * deltas;
	size_t delta_count, delta_cap;
	uint64_t leaderless_until;
	uint32_t volume, attachment[8], attach_epoch[8];
	bool faults_over, fenced;
	bool losing;        /* a case takes something from a replica, and may be told so */
	unsigned newer_told; /* that one replica knows of what another lacks, or contradicts */
	bool waits_told;     /* of these, by one that serves nothing before an operator decides */
	unsigned lost_told;
	bool damage_counts; /* also while members are out: then there may be no good copy */
	uint64_t medium_errors, no_space;
	/* verdict */
	char failure[4096];
	uint64_t ops_done, reads_done, promotions, takeovers, drops, faults, moves_begun, stops;
	uint64_t relocated[OBJ_REMOVE + 1]; /* changes that the leader wanted, by operation */
};
extern struct sim sim;

/* sim_core.c */
struct sim_event {
	uint64_t at, seq;
	struct sim_proc *proc; /* NULL: the world */
	unsigned life;
	void (*fn)(void *arg);
	void (*drop)(void *arg); /* the process is gone */
	void *arg;
};
void sim_at(uint64_t delay_us, struct sim_proc *p, void (*fn)(void *), void (*drop)(void *),
	    void *arg);
bool sim_step(void); /* false: nothing left */
void sim_clear_events(void);
void sim_turn(struct sim_proc *p); /* end-of-turn hooks */
uint64_t sim_rand(uint64_t lo, uint64_t hi);
bool sim_chance(double p);
void sim_fail(const char *fmt, ...) PRINTF_LIKE(1, 2);
void sim_trace(const char *fmt, ...) PRINTF_LIKE(1, 2);
struct loop *sim_loop_create(struct sim_proc *p);
void sim_loop_destroy(struct loop *l);

/* sim_conn.c */
void sim_net_start(void);
void sim_net_process_gone(struct sim_proc *p, bool silent);
void sim_net_block(unsigned from, unsigned to, bool on);
void sim_net_cut(unsigned a, unsigned b, bool on); /* both ways */
void sim_net_reset(unsigned a, unsigned b);
void sim_net_spoil(unsigned from, unsigned to, unsigned copies); /* of the next write: 0, or more than 1 */
void sim_net_end(void);
bool sim_net_connected(unsigned a, unsigned b);
void sim_net_describe(char *text, size_t size);

/* sim_store*.c */
struct store *sim_store_create(uint16_t group, uint32_t group_incarnation);
void sim_store_free(struct store *s);
void sim_store_attach(struct store *s, struct sim_proc *p); /* a process opened it */
void sim_store_crash(struct store *s); /* all waits end; what was not durable is gone or not */
void sim_store_lose_log(struct store *s, uint32_t new_incarnation);
/* Of a process that is gone: the last records were never durable. How many they are. */
unsigned sim_store_forget(struct store *s);
void sim_store_lose_map(struct store *s, uint32_t new_incarnation);
void sim_store_keep(struct store *s);    /* its disk is copied */
void sim_store_go_back(struct store *s); /* of no process: its disk is what was copied */
void sim_store_fail(struct store *s, int code); /* from now on every call, and what is under way */
void sim_store_stop(struct store *s); /* every wait ends; the process lives on */
void sim_store_close(struct store *s); /* after that; handles of its objects are void */
void sim_store_slow(struct store *s, uint64_t us);
void sim_store_fill(struct store *s, bool full); /* of space that it could grant */
int64_t sim_store_unpaid(const struct store *s); /* bytes of payload that it took beyond its grants */
void sim_store_destage(struct store *s);
void sim_store_damage(struct store *s, uint64_t object, uint32_t block);
void sim_store_mark(struct store *s, uint64_t object, uint32_t block); /* and the store says so */
bool sim_store_alter(struct store *s, uint64_t object, uint32_t block); /* soundly; again: as it was */
bool sim_store_has_marked(struct store *s);
void sim_store_spoil(struct store *s); /* its log is damaged where it was durable (L3) */
void sim_store_mend(struct store *s); /* what it could not read, it can again */
bool sim_store_quiet(struct store *s);
struct version sim_store_page(struct store *s, uint64_t object, uint32_t page, bool destaged);
const char *sim_store_compare(struct store *a, struct store *b, uint64_t object, uint32_t *page);
bool sim_store_holds(struct store *s, uint64_t object);

/* sim_cluster.c */
void sim_cluster_start(void);
void sim_cluster_end(void);
bool sim_fenced_everywhere(void);
void sim_heal(void);
void sim_proc_crash(unsigned node);
void sim_proc_start(unsigned node);
void sim_proc_start_old(unsigned node, size_t deltas, uint64_t us); /* with an old map for so long */
void sim_proc_pause(unsigned node, uint64_t us); /* until then at least */
void sim_proc_stop(unsigned node); /* cleanly: drains, then ends */
void sim_group_reopen(unsigned node, uint64_t us); /* closed for so long, while the process goes on */
void sim_move(unsigned node, uint32_t object); /* its primary, which is there, moves to any other */
bool sim_all_in(void); /* every member in, joined, quiet */
void sim_submit_command(const struct command *c);
void sim_recover(const struct writer *snapshot); /* the state of then goes on */
const char *sim_describe(void);

void sim_propose_changes(const struct object_change *changes, unsigned count); /* some time soon */

/* sim_relocate.c */
void sim_relocate_start(void);
void sim_evacuate(unsigned node);
void sim_jobs_cancel(void);
bool sim_tidy(void); /* the policy's copies, and nothing left behind */

/* sim_client.c */
void sim_clients_start(void);
bool sim_clients_done(void);
void sim_clients_more(unsigned ops); /* each */
void sim_client_does(unsigned client, uint8_t kind, uint32_t object, uint32_t block);
void sim_client_keeps(void);		 /* a copy of the next request that is sent */
void sim_kept_arrives(unsigned node); /* that copy, there, now */
void sim_clients_final_reads(void);
void sim_clients_end(void);
void sim_clients_describe(char *text, size_t size);

/* sim_check.c */
struct sim_op_record {
	uint64_t value, invoked_us, returned_us;
	uint32_t object, sector;
	bool write;
};
void sim_history_add(const struct sim_op_record *r);
const char *sim_history_check(void); /* NULL: linearizable */
void sim_history_clear(void);
void sim_check_single_primary(void);

/* One history; false: sim.failure says what is wrong. */
bool sim_run(const struct sim_plan *plan);
void sim_begin(const struct sim_plan *plan);
bool sim_run_until(uint64_t until_us, bool (*done)(void)); /* done, or NULL */
bool sim_finish(void); /* faults end; all must come to rest; the verdict */

/* sim_cases.c: of directed histories */
void sim_wait_for(bool (*done)(void), const char *what); /* sim_fail when it takes too long */
const struct map_object *sim_object(uint32_t i);	 /* as the state has it now */
const struct map_member *sim_member(uint32_t i, unsigned node); /* its replica there; NULL: none is listed */
/* As many copies as nodes; two clients with 60 requests each. */
struct sim_plan sim_plan_of(uint64_t seed, unsigned nodes);
void sim_begin_in(const struct sim_plan *plan);		 /* until all members are in, joined, quiet */
void sim_begin_written(const struct sim_plan *plan);	 /* until the clients' first writes are done */
void sim_begin_settled(const struct sim_plan *plan);	 /* until both */
void sim_writes(unsigned ops, const char *what); /* sim_clients_more, waited for: what it says when in vain */
void sim_away(unsigned node); /* it dies, is dropped, and misses writes, which are done */
void sim_reads(const char *what); /* of all that clients wrote, waited for */
uint64_t sim_drops(void);     /* proposed by all primaries so far */
void sim_drop(unsigned node, unsigned proposer); /* of the first object's members; done at the return */
bool sim_listed_in(void);			 /* every member, in the map */
unsigned sim_primary_node(uint32_t object);	 /* 0: there is none */
bool sim_serves(unsigned node, uint32_t object); /* as its primary */
struct replicator_stats sim_stats(unsigned node); /* zeroes if it has no process */
bool sim_case_repair(uint64_t seed);
bool sim_case_damage(uint64_t seed);
bool sim_case_attachment(uint64_t seed);
bool sim_case_move(uint64_t seed);
bool sim_case_stop(uint64_t seed);
bool sim_case_maintenance(uint64_t seed);
bool sim_case_slow_log(uint64_t seed);
bool sim_case_full_tail(uint64_t seed);
bool sim_case_evacuate(uint64_t seed);
bool sim_case_rebuild(uint64_t seed);
bool sim_case_reopen(uint64_t seed);
bool sim_case_old_map(uint64_t seed);
bool sim_case_dead_successor(uint64_t seed);
/* sim_full.c */
bool sim_case_full_member(uint64_t seed);
/* sim_differ.c */
bool sim_case_differ(uint64_t seed);
/* sim_lost.c */
bool sim_case_lost(uint64_t seed);
/* An operator's (proposer 0) or a node's change of object i, to its member on `node`, as the map says now. */
void sim_change_one(uint32_t i, uint8_t op, unsigned node, unsigned proposer);
bool sim_case_newer_page(uint64_t seed);
bool sim_case_newer_page_elsewhere(uint64_t seed);
bool sim_case_newer_page_told(uint64_t seed);
bool sim_case_undecided_stop(uint64_t seed);
/* sim_joins.c */
bool sim_case_reborn(uint64_t seed);
bool sim_case_placed_anew(uint64_t seed);
bool sim_case_old_join(uint64_t seed);
bool sim_case_resend(uint64_t seed);
bool sim_case_in_order(uint64_t seed);
/* sim_force.c */
bool sim_case_force(uint64_t seed);
bool sim_case_force_unfinished(uint64_t seed);
bool sim_case_accept_damage(uint64_t seed);
bool sim_case_recover(uint64_t seed);
bool sim_case_recover_newer(uint64_t seed);
bool sim_case_gone_back(uint64_t seed);
bool sim_case_gone_astray(uint64_t seed);
bool sim_case_late_request(uint64_t seed);
/* sim_stopped.c */
bool sim_case_stopped(uint64_t seed, bool confirm_reads);
bool sim_case_stopped_alone(uint64_t seed);
void sim_plan_from_seed(struct sim_plan *p, uint64_t seed);
