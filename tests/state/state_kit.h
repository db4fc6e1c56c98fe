/* SPDX-License-Identifier: Apache-2.0 */
/* A state machine with helpers that say a command in one line. Each checks nothing but encoding: the
 * result's code is returned, the rest is in k->out. */
#pragma once

#include "cluster/placement.h"
#include "cluster/state.h"
#include "tests/lib/test.h"

struct kit {
	struct state *s;
	uint64_t index, time_ms;
	struct command_result out;
};

void kit_empty(struct kit *k);
/* Cluster "test", `nodes` started nodes n1 … (incarnation 1, 2 shards), each with one active group of
 * 1 TiB whose number is the node's. */
void kit_init(struct kit *k, unsigned nodes);
void kit_fini(struct kit *k);
int kit_apply(struct kit *k, struct command *c);
struct uuid kit_uuid(uint64_t n);

int kit_cluster(struct kit *k, const char *name, uint64_t uuid);
int kit_node(struct kit *k, const char *name, const char *fault_set, uint64_t uuid); /* with a token */
int kit_start(struct kit *k, uint16_t node, uint32_t old, uint32_t incarnation);
int kit_node_state(struct kit *k, uint16_t node, uint8_t state);
int kit_group(struct kit *k, uint16_t node, uint64_t uuid);
int kit_group_state(struct kit *k, uint16_t group, uint8_t state, uint8_t steps, uint32_t incarnation);
int kit_regroup(struct kit *k, uint16_t group, uint16_t node, uint32_t old, uint32_t incarnation);
/* Placed by placement_choose. */
int kit_volume(struct kit *k, const char *name, uint64_t size, unsigned copies);
int kit_resize(struct kit *k, uint32_t id, uint64_t size);
int kit_delete(struct kit *k, uint32_t id);
int kit_attach(struct kit *k, uint32_t volume, uint8_t mode, const char *holder, bool steal);
int kit_detach(struct kit *k, uint32_t attachment);
int kit_renew(struct kit *k, unsigned count, const uint32_t *attachment);
/* Of holder, or of all when NULL; those up to number newest. */
int kit_fence(struct kit *k, uint32_t volume, uint32_t newest, bool expired_only, const char *holder);
int kit_setting(struct kit *k, const char *key, const char *value);
int kit_change(struct kit *k, struct object_change ch); /* enum object_refusal */

const struct map *kit_map(const struct kit *k);
struct map_object *kit_object(const struct kit *k, uint64_t id);

/* Object 1:0 of volume "v" on four nodes, with copies on groups (nodes) P, S and T as far as it has so
 * many; P is its primary. */
struct fix {
	struct kit k;
	struct map_object *o;
	uint16_t p, s, t;
};
void fix_volume(struct fix *f, unsigned copies);
struct map_member *fix_member(struct fix *f, uint16_t group);		 /* NULL: none there */
void fix_refused(struct fix *f, struct object_change ch, int why); /* and everything is as it was */
/* Both the caller's: the state as its snapshot restores it, and a map as that state's delta from nothing
 * makes it. */
void kit_copies(const struct kit *k, struct state **copy, struct map *m);
