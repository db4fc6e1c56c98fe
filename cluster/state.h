/* SPDX-License-Identifier: Apache-2.0 */
/* The replicated state machine: the map and what only operators see (tokens, settings, events). Pure
 * and deterministic: no I/O, no clock, no randomness. apply never fails: refusals are results, with a
 * sentence. One thread. */
#pragma once

#include "cluster/command.h"

struct state_event {
	uint64_t index, time_ms;
	uint8_t severity; /* 0 info, 1 warning, 2 error */
	char code[32], text[256], actor[64];
};
#define STATE_EVENTS 256u

enum job_state { JOB_RUNNING = 1, JOB_PAUSED = 2, JOB_DONE = 3, JOB_CANCELLED = 4 };
struct state_job {
	uint32_t id;
	uint8_t kind, state;
	uint16_t node, group;	/* the target */
	uint32_t incarnation;	/* of the target when it started */
	uint32_t total;		/* objects (rebalance: replicas) that were to be done then */
	uint64_t started_ms, changed_ms; /* command time; changed: the last change of state */
	char actor[64];		/* who started it */
	char note[96];		/* why it started, then how it ended */
};
#define STATE_JOBS 64u /* finished ones make room, oldest first */

struct state;

struct state *state_create(void);
void state_destroy(struct state *s);
const struct map *state_map(const struct state *s);

/* Applies one encoded command at Raft index `index`. changed() tells each map record that changed, for
 * shards and subscribers. */
void state_apply(struct state *s, uint64_t index, const void *cmd, size_t len, struct command_result *out,
		 void (*changed)(void *arg, enum map_record kind, uint64_t id), void *arg);
unsigned state_recoveries(const struct state *s);
/* A Raft majority was lost for good, and this state goes on alone, on this node (state_recover.c). Not a
 * command: of a state that nobody serves. -ERR_LIMIT: it was recovered too often. */
int state_recover(struct state *s, uint64_t index, uint64_t time_ms, uint16_t node,
		  const char *actor) MUST_USE;
/* Versioned, compact; frozen by golden bytes. Restore replaces everything; -ERR_PROTOCOL, -ERR_VERSION. */
void state_snapshot(const struct state *s, struct writer *w);
int state_restore(struct state *s, const void *data, size_t len) MUST_USE;
/* Delta for a subscriber that has `from`. */
void state_delta(const struct state *s, uint64_t from, struct writer *w);
/* Two states are the same: their snapshots are byte-identical. */
uint64_t state_digest(const struct state *s);

const char *state_setting(const struct state *s, const char *key); /* NULL if unset */
/* The settings that this version reads, all numbers; each has a default that is right for nearly
 * everybody. `set` refuses what is out of range. */
struct setting_rule {
	const char *key, *what;
	uint32_t min, max, fallback;
};
extern const struct setting_rule setting_rules[]; /* ends with a key of NULL */
const struct setting_rule *setting_rule(const char *key); /* NULL: none */
uint32_t state_setting_number(const struct state *s, const char *key); /* its value, or the fallback */
bool state_token_valid(const struct state *s, const char *sha256_hex, uint64_t now_ms);
unsigned state_events(const struct state *s, struct state_event *out, unsigned max); /* newest first */
/* All jobs, ascending by id; valid until the next apply. */
const struct state_job *state_jobs(const struct state *s, unsigned *count);
const struct state_job *state_job(const struct state *s, uint32_t id); /* NULL if unknown */
static inline bool job_live(const struct state_job *j)
{
	return j->state == JOB_RUNNING || j->state == JOB_PAUSED;
}
/* Objects with a replica on the node, whatever the state of its groups. */
bool state_node_empty(const struct state *s, uint16_t node); /* there is none: sooner told than how many */
uint32_t state_node_objects(const struct state *s, uint16_t node);
/* Objects with a replica in quarantine on the node. */
unsigned state_node_quarantined(const struct state *s, uint16_t node);
/* Objects of which the node, not heard since a recovery, may be the only one with acknowledged writes. */
unsigned state_node_unsure(const struct state *s, uint16_t node);
/* Nothing is on the node and nobody is attached through it; false: why, as the end of a sentence. */
bool state_node_may_leave(const struct state *s, uint16_t node, uint64_t now_ms, char why[200]);
/* The target is to be empty: a node's removal under way; an evacuation, which holds when it is done too,
 * until the target is removed or the job cancelled. */
bool state_job_empties(const struct state_job *j, const struct map_group *g);
/* It is an evacuation that is done and keeps its target empty: it is over when the target is removed. */
bool state_job_holds(const struct state *s, const struct state_job *j);
const char *job_kind_name(uint8_t kind);
const char *job_state_name(uint8_t state);
const char *state_cluster_name(const struct state *s);
