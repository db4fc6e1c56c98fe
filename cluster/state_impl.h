/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the state machine, shared by state*.c only. */
#pragma once

#include "cluster/map_codec.h"
#include "cluster/state.h"
#include "node/base/err.h"

#define STATE_TOKENS 64u
#define STATE_SETTINGS 256u
#define STATE_GROUP_IDS 4096u
#define STATE_GONE 256u

struct state_token {
	char sha256[65];
	uint64_t expires_ms;
};

struct state_setting {
	char key[64], value[256];
};

struct state {
	struct map map;
	char name[NAME_MAX_LEN + 1];
	uint16_t recoveries; /* from a lost Raft majority */
	unsigned token_count, setting_count;
	struct state_token token[STATE_TOKENS];
	struct state_setting setting[STATE_SETTINGS]; /* sorted by key */
	struct state_event event[STATE_EVENTS];	      /* ring */
	uint64_t events;			      /* ever recorded */
	uint32_t next_job;
	unsigned job_count;
	struct state_job job[STATE_JOBS]; /* ascending by id */

	/* Derived, not in snapshots: limits, and what deltas need. */
	unsigned objects, members, live_attachments, revoked_attachments;
	uint64_t floor; /* deltas from below this version are full */
	unsigned gone_count;
	uint64_t gone[STATE_GONE], gone_index[STATE_GONE]; /* oldest first */

	/* Of the command being applied. */
	uint64_t index, time_ms;
	const char *actor;
	void (*changed)(void *arg, enum map_record kind, uint64_t id);
	void *arg;
};

/* A refusal: sets the sentence and returns `code`, so that handlers can return it. */
int state_refuse(struct command_result *out, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
void state_event_add(struct state *s, uint8_t severity, const char *code, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/* Marks a record as changed at this index, and tells. */
void state_node_changed(struct state *s, struct map_node *n);
void state_group_changed(struct state *s, struct map_group *g);
void state_volume_changed(struct state *s, struct map_volume *v);
void state_object_changed(struct state *s, struct map_object *o);
void state_attachment_changed(struct state *s, struct map_attachment *a);
void state_gone(struct state *s, enum map_record kind, uint32_t id);

bool state_name_ok(const char *name);
#define NAME_RULE "a name is 1 to 63 of A-Z a-z 0-9 . _ - , begins with a letter or digit and is not a uuid"

/* Handlers: 0 or the (refusal's) code. */
int state_cluster_init(struct state *s, const struct command *c, struct command_result *out);
int state_node_add(struct state *s, const struct command *c, struct command_result *out);
int state_node_start(struct state *s, const struct command *c, struct command_result *out);
int state_node_state(struct state *s, const struct command *c, struct command_result *out);
int state_node_remove(struct state *s, const struct command *c, struct command_result *out);
int state_maintenance(struct state *s, const struct command *c, struct command_result *out);
int state_group_add(struct state *s, const struct command *c, struct command_result *out);
int state_group_state(struct state *s, const struct command *c, struct command_result *out);
int state_regroup(struct state *s, const struct command *c, struct command_result *out);
int state_volume_create(struct state *s, const struct command *c, struct command_result *out);
int state_volume_resize(struct state *s, const struct command *c, struct command_result *out);
int state_volume_delete(struct state *s, const struct command *c, struct command_result *out);
int state_volume_set(struct state *s, const struct command *c, struct command_result *out);
int state_attach(struct state *s, const struct command *c, struct command_result *out);
int state_renew(struct state *s, const struct command *c, struct command_result *out);
int state_fence(struct state *s, const struct command *c, struct command_result *out);
/* Revokes the attachments that this node's gateway holds. */
void state_attachments_of_node_end(struct state *s, uint16_t node);
/* Its removal is done. */
void state_jobs_of_node_end(struct state *s, uint16_t node);
bool state_epoch_full(const struct map_object *o);
/* The part of the settings that shards need, into the map. True: it changed. */
bool state_limits_update(struct state *s);
void state_limits_changed(struct state *s);
/* 0, or -ERR_INVALID: not a number in the setting's range. */
int setting_parse(const struct setting_rule *r, const char *text, uint32_t *out);
int state_detach(struct state *s, const struct command *c, struct command_result *out);
int state_job_change(struct state *s, const struct command *c, struct command_result *out);
/* state_object.c: index, or -1 */
int state_member_find(const struct map_object *o, const struct map_member *r);
void state_member_remove(struct state *s, struct map_object *o, unsigned i);
bool state_node_current(const struct state *s, uint16_t node, uint32_t incarnation);
/* state_force.c. force: *epoch gets its generation. audit: after a command's changes, tells who asked. */
enum object_refusal state_force(struct state *s, struct map_object *o, const struct object_change *ch,
				uint32_t *epoch);
enum object_refusal state_quarantine(struct state *s, struct map_object *o, const struct object_change *ch);
enum object_refusal state_discard(struct state *s, struct map_object *o, const struct object_change *ch);
void state_force_audit(struct state *s, const struct command *c, const struct command_result *out);
/* state_recover.c: whether an unsure object takes this change; whether a member stays `in` at a takeover */
enum object_refusal state_unsure_check(const struct state *s, const struct map_object *o,
				       const struct object_change *ch);
bool state_unsure_stays(const struct state *s, const struct map_object *o, const struct map_member *mb);
enum object_refusal state_settle(struct map_object *o);
int state_object_changes(struct state *s, const struct command *c, struct command_result *out);
/* 0, or a refusal: the token is unknown or ran out. Takes it away. */
int state_token_take(struct state *s, const char *sha256, struct command_result *out);
