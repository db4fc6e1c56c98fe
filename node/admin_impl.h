/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the admin interface: requests, answers, rights, and the facts gathered from all nodes. For
 * node/admin*.c only. */
#pragma once

#include "node/admin.h"
#include "node/base/err.h"
#include "node/base/json.h"
#include "node/base/log.h"
#include "node/health.h"
#include "node/http.h"

#define ADMIN_SCHEMA       1u
#define FACTS_FRESH_US     500000u /* younger facts are not asked for again */
#define CALL_TIMEOUT_MS    1500u   /* a status must be there within 2 s, whoever is dead */
#define PROPOSE_TIMEOUT_MS 10000u

/* Who asks, by what their connection proved. */
enum admin_who { WHO_NOBODY, WHO_CLIENT, WHO_NODE, WHO_OPERATOR, WHO_ROOT };

struct areq;
struct route {
	const char *method, *pattern; /* a last segment "*" matches one name */
	enum { RIGHT_ANY, RIGHT_READ, RIGHT_ADMIN, RIGHT_LOCAL } right;
	bool unclaimed; /* answered by an unclaimed node too */
	void (*handle)(struct areq *q);
};

/* One request, from its arrival to its answer. */
struct areq {
	struct list link;
	struct admin *admin;
	char *method, *path, *query;
	char *param;       /* what "*" matched */
	struct json *body; /* NULL if none */
	enum admin_who who;
	char actor[64];
	struct http_request *http; /* or: */
	void (*done)(void *arg, int status, const char *text); /* this process asks, or: */
	void *done_arg;
	uint64_t ticket;
	bool answered;
	uint16_t owner; /* the node that it will be passed to as soon as that is up; or 0 */
	uint64_t owner_timeout_ms, owner_until_us;
	void *op; /* the handler's own; freed with the request */
};

/* What a node last said about itself (GET /v1/local), kept with its age. */
struct fact {
	struct json *json;
	uint64_t at_us, wall_ms; /* mono, and the same moment by the wall clock */
	unsigned missed; /* gatherings in a row that it did not answer, though connected */
	uint64_t lost_us, back_us; /* mono: when nobody heard it, and when somebody did again */
};

struct facts_waiter {
	struct list link;
	struct wait *wait;
	bool next; /* what is gathered now was asked for before something that it must know of */
};

struct gather;
struct report;

/* When a job last moved, as seen from here. */
struct job_memory {
	uint32_t id;
	uint64_t mark, moved_us;
};

struct admin {
	struct admin_config cfg;
	const struct admin_cluster_ops *ops; /* NULL while unclaimed */
	void *cluster;
	struct http_server *http;
	struct list requests;
	bool stopping, birth_busy, crashed;
	uint64_t started_us;
	struct fact facts[NODE_IDS_MAX + 1]; /* by node number; 0 while unclaimed */
	uint64_t facts_us;                /* end of the last gathering */
	struct gather *gather;
	bool facts_stale; /* what it brings is to be asked for again */
	struct list facts_waiters;
	struct health_memory memory;
	struct job_memory jobs[STATE_JOBS];
	struct report *report; /* admin_report.c */
	struct ca_fetch *ca_fetch; /* admin_ca.c */
	struct timer tick;
	struct timer owners; /* looks for nodes that requests wait for (admin_forward.c) */
	uint32_t scrub_pass_s; /* as the shards were told */
	bool scrub_told;
};

/* ---- Requests (admin.c) and answers (admin_answer.c), each of which frees the request. ---- */
void admin_reply(struct areq *q, int status, struct json *body); /* takes body over; adds schema */
void admin_reply_text(struct areq *q, int status, const char *type, const char *text);
void admin_fail(struct areq *q, int rc, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* A result of the state machine or of the way to it. True: it was a failure and has been answered. */
bool admin_failed(struct areq *q, int rc, const struct command_result *r);
void admin_say_stopping(struct areq *q); /* this one does not: its operation may still be resumed */
void admin_request_free(struct areq *q);
struct json *admin_source(const struct admin *a); /* who said it and how old it is: in all answers of facts */
const struct map *admin_map(const struct admin *a); /* NULL while unclaimed */
bool admin_is_registered(const struct admin *a);    /* the map is not from before this start */
/* A number in the request's query. False: it is not one, and the request was answered. */
bool admin_query_u32(struct areq *q, const char *key, uint32_t dflt, uint32_t *out);
/* Refuses bodies with members nobody reads; false: the request was answered. */
bool admin_only_known(struct areq *q, const char *const *known, size_t n);
void admin_command(const struct areq *q, uint16_t kind, struct command *out); /* time, actor filled in */
/* A request passed on to the node that has to do it, once it is up (within 2 s, or it fails), and its answer
 * back. timeout_ms counts from then. */
void admin_forward(struct areq *q, uint16_t node, uint64_t timeout_ms);
/* What the map here does not have may be a moment old: the leader is asked, once. While this node starts and
 * finds none its map may be of long ago, and the request fails. False: neither, this is it. */
bool admin_ask_leader(struct areq *q);
bool admin_refused_blank(struct areq *q); /* true: the map knows nothing yet; answered */
void admin_forward_to_ca(struct areq *q); /* to voters in turn, until one has the CA key */
void admin_owners_look(struct timer *t); /* the timer's */

/* ---- Facts (admin_facts.c) ---- */
/* 0: fresh enough; PENDING. w belongs to the caller until it is resumed. */
int facts_refresh(struct admin *a, struct facts_waiter *w, struct wait *wait) MUST_USE;
/* Something was done here or elsewhere: what is asked for from now on is of after it. */
void facts_forget(struct admin *a);
/* Refreshes the facts, then calls then(q), which answers. */
void admin_after_facts(struct areq *q, void (*then)(struct areq *q));
bool facts_node_up(const struct admin *a, uint16_t node);
bool facts_node_heard(const struct admin *a, uint16_t node); /* up, or another node hears it */
void facts_health(struct admin *a, struct health_report *out); /* evaluates what is known now */
void facts_rebuild(struct admin *a, struct health_rebuild *out);
/* What health and can-stop judge, as known now; free it. */
struct health_input *facts_input(struct admin *a);
void facts_input_free(struct health_input *in);
void facts_free(struct admin *a);
int64_t facts_age_ms(const struct admin *a, uint16_t node); /* −1: none */
const struct json *facts_group(const struct admin *a, const struct map_group *g); /* of its node's; or NULL */
bool facts_group_lacks(const struct admin *a, const struct map_group *g); /* damage not repaired yet */

/* ---- Capacity (admin_space.c) ---- */
#define LEDGER_KEYS 8u
#define LEDGER_FREES 6u /* index of frees_if_deleted_bytes */
#define RECLAIM_MAX 8u	/* volumes that a group names in its facts: those whose deletion gives most back */
extern const char *const ledger_keys[LEDGER_KEYS]; /* logical = zero + … + stored, and what a delete frees */
struct json *ledger_to_json(const struct store_ledger *l);
struct ledger_sum {
	int64_t bytes[LEDGER_KEYS];
	bool inexact;
	unsigned rows;
};
void ledger_sum_add(struct ledger_sum *s, const struct json *row);
struct json *ledger_sum_to_json(const struct ledger_sum *s);
/* A row for each volume, 0: blocks that none owns. The caller frees .volume. */
struct ledger_volume {
	uint32_t volume;
	struct ledger_sum sum;
};
struct ledger_sums {
	struct ledger_volume *volume; /* ascending once settled */
	size_t count, cap;
};
struct ledger_volume *ledger_sums_more(struct ledger_sums *s); /* an empty row at the end */
void ledger_sums_add(struct ledger_sums *s, struct store *store); /* rows of an open group here */
void ledger_sums_settle(struct ledger_sums *s); /* one row of each volume */
struct ledger_sum ledger_sums_of(const struct ledger_sums *s, uint32_t volume);
struct json *ledger_volume_to_json(const struct ledger_volume *v);
/* [[volume, bytes, exact], …], largest first, at most RECLAIM_MAX: in the facts of a group */
struct json *reclaim_to_json(struct store *s);
/* The three volumes of the cluster whose deletion gives most back, by those rows. */
void reclaim_largest(const struct admin *a, struct health_input *in);

/* Rows go between nodes as arrays of numbers, and only when somebody asks for volumes (admin_ledgers.c): of
 * all groups, or of one. */
struct ledgers_ask {
	struct wait asked;
	struct wait *owner;
	struct admin *admin;
	uint16_t group; /* 0: all of all nodes */
	struct ask_all *ask;
	struct ledger_sums sums; /* settled */
	unsigned groups;	 /* that rows are known of */
};
/* Refreshes the facts and asks for the rows, then calls then(q, …), which answers. *l is gone after it. */
void admin_after_ledgers(struct areq *q, uint16_t group,
			 void (*then)(struct areq *q, const struct ledgers_ask *l));
void admin_get_local_ledgers(struct areq *q);

/* ---- This node's groups, to the cluster (admin_report.c) ---- */
void admin_report(struct admin *a);

/* ---- Jobs (admin_job.c) ---- */
struct relocate_plan *admin_plan(const struct admin *a); /* to be moved, as seen from here; malloc'ed */
uint64_t admin_copy_rate(const struct admin *a); /* bytes/s of all nodes */
/* Estimated, for the jobs of this kind and those before it; 0: cannot be told. */
uint64_t admin_seconds_left(const struct admin *a, const struct relocate_plan *p, uint8_t kind);
void admin_jobs_look(struct admin *a, const struct relocate_plan *p); /* notes what has moved */
uint64_t admin_job_stuck_s(const struct admin *a, uint32_t id); /* 0: it moves, or need not */
bool admin_job_is_emptying(const struct state_job *j, const struct relocate_job *r); /* and not done yet */

struct json *health_to_json(const struct health_report *r);
const char *map_node_name(const struct map *m, uint16_t id); /* NULL if unknown */

/* ---- Handlers, by file ---- */
void admin_get_status(struct areq *q); /* admin_status.c */
void admin_get_health(struct areq *q);
void admin_get_events(struct areq *q);
void admin_get_metrics(struct areq *q); /* admin_metrics.c */
void admin_get_nodes(struct areq *q);   /* admin_nodes.c */
void admin_get_node(struct areq *q);
void admin_get_diskgroups(struct areq *q);
void admin_get_diskgroup(struct areq *q);
void admin_get_local(struct areq *q); /* admin_local.c: this node's own facts, for other nodes */
void admin_get_local_replicas(struct areq *q);
void admin_get_local_ops(struct areq *q);
void admin_get_ops(struct areq *q);
void admin_get_volumes(struct areq *q); /* admin_volume.c */
void admin_get_volume(struct areq *q);
void admin_create_volume(struct areq *q); /* admin_change.c */
void admin_patch_volume(struct areq *q);
void admin_resize_volume(struct areq *q);
void admin_delete_volume(struct areq *q);
void admin_detach_volume(struct areq *q); /* admin_attach.c */
void admin_force_volume(struct areq *q);  /* admin_force.c */
void admin_discard_volume(struct areq *q);
void admin_get_quarantine(struct areq *q);
void admin_local_yield(struct areq *q);
void admin_get_settings(struct areq *q);  /* admin_setting.c */
void admin_put_setting(struct areq *q);
void admin_get_jobs(struct areq *q);      /* admin_job.c */
void admin_get_job(struct areq *q);
void admin_start_job(struct areq *q);
void admin_pause_job(struct areq *q);
void admin_resume_job(struct areq *q);
void admin_cancel_job(struct areq *q);
void admin_can_stop(struct areq *q); /* admin_safety.c */
void admin_can_lose(struct areq *q);
void admin_node_maintenance(struct areq *q);
struct safety_report;
/* What the loss of a node would do. */
void admin_evaluate(struct admin *a, uint16_t node, struct safety_report *out);
/* That a node or a disk group (the other is 0) is emptied, beside all that is emptied or kept so already. */
void admin_evaluate_emptied(struct admin *a, uint16_t node, uint16_t group, struct safety_report *out);
const char *admin_room_missing(const struct safety_report *r); /* why what goes has no other place, or NULL */
void admin_node_remove(struct areq *q); /* admin_remove.c */
void admin_get_ca(struct areq *q); /* admin_birth.c */
void admin_get_ca_key(struct areq *q); /* admin_ca.c */
void admin_ca_tick(struct admin *a); /* a voter without the CA key fetches it */
void admin_init(struct areq *q);
void admin_invite(struct areq *q);
void admin_join_prepare(struct areq *q);
void admin_join_request(struct areq *q);
void admin_join_finish(struct areq *q);
void admin_sign(struct areq *q);
void admin_add_diskgroup(struct areq *q); /* admin_group.c */
void admin_flush_group(struct areq *q);   /* admin_space.c */
void admin_verify_group(struct areq *q);
void admin_scrub_group(struct areq *q); /* admin_scrub.c */
void admin_scrub_tick(struct admin *a);
struct json *scrub_to_json(struct store *s);
/* The group that the request names; NULL: answered. */
const struct map_group *admin_find_group(struct areq *q); /* admin_nodes.c */
void admin_replace_device(struct areq *q); /* admin_replace.c */

/* Local facts as JSON; resumes with 0 and *out set (owned by the caller). */
int local_facts(struct admin *a, struct json **out, struct wait *w) MUST_USE;
/* Replica states here of the volume's objects from … from + count - 1 (array); operations in flight here
 * (array). */
int local_replicas(struct admin *a, uint32_t volume, uint32_t from, uint32_t count, struct json **out,
		   struct wait *w) MUST_USE;
int local_ops(struct admin *a, struct json **out, struct wait *w) MUST_USE;
struct json *local_ledgers(struct admin *a, uint32_t volume); /* its row of each open group here */

/* ---- Replicas of a volume, as the nodes say that have them (admin_replicas.c) ---- */
/* Objects in one answer: whatever a volume has, it fits a frame (net/wire.h) many times over, and neither
 * who answers nor who asks is kept from other work for longer than some ms. */
#define REPLICAS_PAGE 1024u
struct replicas { /* part of a request's op; the answers live until then() returns */
	struct wait asked, found;
	struct areq *q;
	void (*then)(struct replicas *r);
	struct ask_all *ask;
	struct json *local;
	uint32_t volume, from, count; /* objects from … from + count - 1; 0: none, only the ledgers */
	unsigned pending;
	/* [node slot][object - from]: what that node says; slot 0 is this node, i + 1 is ask->one[i] */
	const struct json **said;
	uint16_t slot_of[NODE_IDS_MAX + 1];
};
void replicas_ask(struct replicas *r, struct areq *q, uint32_t volume, uint32_t from, uint32_t count,
		  void (*then)(struct replicas *r));
const struct json *replicas_said(const struct replicas *r, uint16_t node, uint32_t index); /* or NULL */
/* NULL too: its group lost it. */
const struct json *replicas_of(const struct replicas *r, const struct map_object *o,
			       const struct map_member *mb);
/* "in-sync", "syncing", "absent", "quarantined", "lost" */
const char *replica_state(const struct replicas *r, const struct map_object *o, const struct map_member *mb);
struct json *replica_to_json(const struct replicas *r, const struct map *m, const struct map_object *o,
			     const struct map_member *mb); /* admin_volume.c */

/* The same question to all other nodes that are connected. Resumes with 0, always; one[i].json is
 * what one[i].node answered, or NULL. The owner frees it. */
struct ask_one {
	struct wait wait;
	struct control_call call;
	struct ask_all *all;
	struct json *json;
	uint16_t node;
	bool answered; /* whatever it was */
};
struct ask_all {
	struct admin *admin;
	struct wait *owner;
	struct ask_one one[NODES_MAX];
	unsigned count, pending;
	bool starting;
	char path[64];
};
int ask_all(struct admin *a, const char *path, struct ask_all **out, struct wait *w) MUST_USE;
int ask_node(struct admin *a, uint16_t node, const char *path, struct ask_all **out, struct wait *w) MUST_USE;
void ask_all_free(struct ask_all *k);
