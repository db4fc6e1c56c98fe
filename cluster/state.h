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

struct state;

struct state *state_create(void);
void state_destroy(struct state *s);
const struct map *state_map(const struct state *s);

/* Applies one encoded command at Raft index `index`. changed() tells each map record that changed, for
 * shards and subscribers. */
void state_apply(struct state *s, uint64_t index, const void *cmd, size_t len, struct command_result *out,
		 void (*changed)(void *arg, enum map_record kind, uint64_t id), void *arg);
/* Versioned, compact; frozen by golden bytes. Restore replaces everything; -ERR_PROTOCOL, -ERR_VERSION. */
void state_snapshot(const struct state *s, struct writer *w);
int state_restore(struct state *s, const void *data, size_t len) MUST_USE;
/* Delta for a subscriber that has `from`. */
void state_delta(const struct state *s, uint64_t from, struct writer *w);
/* Two states are the same: their snapshots are byte-identical. */
uint64_t state_digest(const struct state *s);

const char *state_setting(const struct state *s, const char *key); /* NULL if unset */
bool state_token_valid(const struct state *s, const char *sha256_hex, uint64_t now_ms);
unsigned state_events(const struct state *s, struct state_event *out, unsigned max); /* newest first */
const char *state_cluster_name(const struct state *s);
