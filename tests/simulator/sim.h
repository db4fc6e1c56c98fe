/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster in one process, in virtual time, from one seed. See README.md.
 *
 *   plan.c      what a seed stands for: sizes, kinds of faults and their rates
 *   doors.c     what stands for files of identity, certificates, Raft's database, the admin interface
 *   host.c      a node's process: start, supervisor, what is looked at from outside
 *   operator.c  birth of the cluster, commands to it
 *   client.c    clients: the product's, on hosts of their own or inside a node; what they do and saw
 *   faults.c    what goes wrong, when, and what it may never exceed
 *   shapes.c    faults that come together, as one story
 *   anew.c      a group that begins anew while nobody else is there
 *   errands.c   what an operator does besides, at any moment
 *   check.c     what must hold at all times; replicas when quiet
 *   run.c       one history: birth, faults, healing, verdict
 *   main.c      batches, planted faults, the command line */
#pragma once

#include "client/client.h"
#include "cluster/replica.h"
#include "node/node.h"
#include "tests/lib/linear.h"
#include "tests/simhost/simhost.h"
#include "tests/simhost/vnet.h"
#include "tests/simulator/doors.h"
#include "tests/simulator/plan.h"

#define SIM_SECTOR  512u
#define SIM_PORT    7000u
#define SIM_CACHE   VPATH "cache"
#define SIM_DATA    VPATH "data"
#define SIM_DATA2   VPATH "data2" /* of a plan with two */
#define SIM_DB      VPATH "db"
#define SIM_US      1u
#define SIM_MS      1000u
#define SIM_S       1000000u
#define SIM_HOT_MAX 260u
/* Longer than any silence or pause: nothing of before is under way any more. */
#define SIM_UNDER_WAY_US (5 * SIM_S)

/* ---- Nodes ---- */

struct sim_node {
	unsigned number; /* 1 …; also its group's, and its host's address */
	struct vhost *host;
	struct vproc *proc; /* NULL: not running */
	struct node *node;  /* in the process's memory; NULL while there is none */
	struct uuid uuid, group;
	char name[16], listen[32];
	bool member; /* the cluster knows it */
	bool broken; /* for good */
	bool gone;   /* it was removed from the cluster, and knows it */
	bool down;   /* a fault keeps it down until its restart */
	bool map_lost; /* and its group has not begun anew yet */
	unsigned starts, exits, join_step;
	/* On its system disk. */
	uint32_t incarnation;
	struct birth_peer peers[NODES_MAX];
	unsigned peer_count;
	bool formatted;
	unsigned ends_in;        /* at so many more I/Os of this kind it ends, like this; 0: it does not */
	enum vio_kind ends_at;
	enum vfault ends_how;
	uint64_t io_fault_until; /* of this kind, to this file or database */
	unsigned io_fault_kind;
	const char *io_fault_path;
	uint64_t map_version; /* newest seen, of this process */
	uint64_t raft_term, raft_applied;
};

/* ---- Clients ---- */

struct sim_client {
	unsigned index; /* 0 … */
	unsigned node;  /* 0: a host of its own; else inside this node */
	struct vhost *host;
	struct vproc *proc; /* NULL: not running */
	char name[32];
	bool broken, done;
	unsigned left, open; /* operations still to begin; begun */
	unsigned life;
	void *driver; /* in the process's memory */
	struct vnet_tap tap;
	uint64_t next_start_us;
};

struct sim {
	struct sim_plan plan;
	struct sim_node node[SIM_NODES_MAX + 1];
	struct sim_client client[SIM_CLIENTS_MAX];
	struct uuid cluster;
	uint32_t volume; /* id; 0: not made yet */
	bool faults_over, verbose, last_due, last_again;
	uint64_t faults_from;
	uint64_t quiet_until; /* clients begin nothing */
	char failure[4096];
	struct sim_counts {
		uint64_t ops, reads, writes, faults, events, restarts, kills, cuts, pauses, blocks,
			resets, rot, eio, reformats, duplicates, takeovers, promotions, drops,
			fences, held, deep_pauses, resizes, joins, group_fails, map_damages, failures_met,
			operator_restarts, shapes, full, trims, device_fails, jobs, moved,
			removals, dead_removals;
	} counts;
};
extern struct sim sim;

void sim_fail(const char *fmt, ...) PRINTF_LIKE(1, 2);
void sim_trace(const char *fmt, ...) PRINTF_LIKE(1, 2);
uint64_t sim_rand(uint64_t lo, uint64_t hi);
bool sim_chance(double p);
/* The node that a process, or the calling one, is. */
struct sim_node *sim_node_of(struct vproc *p);
struct sim_node *sim_this_node(void);

/* host.c */
void sim_node_create(struct sim_node *s, unsigned number);
void sim_node_format(struct sim_node *s); /* new disks, empty, of its group */
void sim_node_start(struct sim_node *s);
void sim_node_kill(struct sim_node *s, bool power);
bool sim_node_serves(const struct sim_node *s);           /* registered, its shards run */
const struct map *sim_node_map(const struct sim_node *s); /* of its control loop; NULL */
/* The newest applied state that is anywhere in reach of the simulator. */
const struct map *sim_newest_map(void);
const struct state *sim_newest_state(void);

/* operator.c */
bool sim_birth(void);
/* Through any node, until it is accepted or refused. done may be NULL; outside of any process. */
void sim_submit(const struct command *c, void (*done)(void *arg, const struct command_result *r),
		void *arg);

/* As a node's shards would propose them: nobody is told the outcome. */
void sim_submit_changes(const struct object_change *changes, unsigned count);
/* done runs when all that was on its way to Raft before has been decided: sim_newest_map shows that, if
 * somebody alive has_applied r->index. */
void sim_raft_asked(void (*done)(void *arg, const struct command_result *r), void *arg);
bool sim_has_applied(uint64_t index);
void sim_join_later(struct sim_node *s, uint64_t us); /* a node becomes part of the cluster */

/* client.c */
void sim_clients_create(void);
void sim_client_start(struct sim_client *c);
void sim_client_kill(struct sim_client *c, bool power);
bool sim_clients_done(void);
bool sim_client_ready(void);        /* one has the volume open */
/* Through it. What is written last must find room: all else was trimmed before. */
enum sim_last { LAST_TRIM, LAST_WRITE, LAST_READ };
void sim_clients_last(enum sim_last what);
void sim_clients_describe(char *text, size_t size);
/* Blocks in play, of each object; ballast apart. */
const uint32_t *sim_hot(unsigned *count);
const char *sim_history_check(void);
void sim_history_clear(void);

/* faults.c */
void sim_faults_begin(void);
bool sim_members_in(void); /* all of each object, by the newest map */
bool sim_break_for_good(void); /* false: nobody is to be; else heal, and after SIM_UNDER_WAY_US: */
void sim_heal(void);
bool sim_broken_ask(void); /* false: Raft cannot do without it, and it has come back */
bool sim_broken_known(void); /* whether the broken one may be: Raft answered */
void sim_broken_decide(void);
bool sim_may_take_over(struct sim_node *s); /* its node might propose it: its group is not closed */
void sim_silence(struct vhost *from, struct vhost *to, unsigned classes, uint64_t us);
void sim_restart_in(struct sim_node *s, uint64_t us);
void sim_disks_slow(struct sim_node *s, uint64_t max_us, bool reads, uint64_t us);
/* It is killed, or its power goes, at its `count`-th I/O of the kind from now. */
void sim_end_at_io(struct sim_node *s, enum vio_kind kind, unsigned count, enum vfault how);

/* shapes.c */
void sim_shapes_begin(void);

/* errands.c */
void sim_errands_begin(void);
void sim_errands_end(void);
void sim_errand_dead(const struct sim_node *s); /* at times it is removed from the cluster */
void sim_errands_count(void); /* what came of it */

/* anew.c */
void sim_anew_begin(void);

/* check.c */
void sim_check_begin(void);
void sim_check_now(void); /* between events */
bool sim_all_quiet(void);
bool sim_check_replicas(void); /* false: a group failed over it; when all is quiet again, once more */
void sim_check_credits(void); /* when nothing is under way */
void sim_describe(char *text, size_t size);

/* run.c: true: nothing was found. */
bool sim_run(const struct sim_plan *plan);
