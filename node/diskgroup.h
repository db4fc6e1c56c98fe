/* SPDX-License-Identifier: Apache-2.0 */
/* Disk groups of this node, at the edge: which devices belong together, and the birth of a group
 * (pending superblocks → Raft number → final superblocks; a re-run finishes a half one). Identity is
 * the superblock; state_dir/devices.json only says where to look. Blocking; worker threads. */
#pragma once

#include "node/birth.h"
#include "store/store_device.h"

struct diskgroup_missing { /* a member that is not there, or was given up */
	struct uuid uuid;
	enum device_role role;
	bool failed; /* given up earlier: it only waits to be replaced */
	char *path;  /* where it was last, or NULL */
};
struct diskgroup_set {
	struct uuid uuid; /* nil until probed or chosen */
	char *devices[GROUP_DEVICES_MAX];
	struct uuid device[GROUP_DEVICES_MAX]; /* their own */
	enum device_role role[GROUP_DEVICES_MAX];
	unsigned device_count;
	struct diskgroup_missing missing[GROUP_DEVICES_MAX];
	unsigned missing_count;
	char *metadata_dir;
	char *lost, why_lost[96]; /* first device that is not there or not ours any more, else NULL */
	/* From the superblocks (diskgroup_probe): */
	bool pending, probed;
	uint16_t number;
	uint32_t incarnation;
};

void diskgroup_set_free(struct diskgroup_set *s);
void diskgroup_set_copy(struct diskgroup_set *to, const struct diskgroup_set *from); /* to: not initialised */
/* A member is absent that was not given up: it may be on its way (a slow controller, a cable). */
bool diskgroup_absent(const struct diskgroup_set *s);
/* The set again, as its devices are now. Blocking. */
void diskgroup_look_again(const char *state_dir, const struct identity *id, struct diskgroup_set *s);

/* Which member `text` names, a path or a uuid: its uuid and role; *path where it is, or NULL. */
int diskgroup_member(const struct diskgroup_set *s, const char *text, struct uuid *uuid,
		     enum device_role *role, const char **path) MUST_USE;
/* The device may take a member's place: there, not in use, large enough to be one. */
int diskgroup_check_new(const char *path, char why[256]) MUST_USE;
/* `path` has taken the place of member `old`: the set and devices.json follow. */
int diskgroup_replaced(const char *state_dir, struct diskgroup_set *s, const struct uuid *old,
		       const char *path) MUST_USE;

/* What a person asked for: {"cache": PATH|null, "capacity": [PATH…], "metadata_dir": DIR|null,
 * "wipe": bool}. Paths must be absolute; refused with a sentence naming the device and the remedy. */
struct diskgroup_spec {
	char *cache, *capacity[7], *metadata_dir;
	unsigned capacity_count;
	bool wipe;
};
struct json;
int diskgroup_spec_parse(const struct json *j, struct diskgroup_spec *out, char why[256]) MUST_USE;
void diskgroup_spec_free(struct diskgroup_spec *s);

/* Step 1: pending superblocks. *uuid is new, or that of the half-made group found on these devices
 * (then *number says whether it is already final: the group exists, nothing to do but open it).
 * Refuses devices in use, mounted, foreign, or carrying signatures without wipe. */
int diskgroup_format(const struct config *c, const struct identity *id, const struct diskgroup_spec *s,
		     struct diskgroup_set *out, char why[256]) MUST_USE;
/* Step 3, after Raft gave the number. */
int diskgroup_finalize(const char *state_dir, struct diskgroup_set *set, uint16_t number,
		       char why[256]) MUST_USE;

/* All groups whose superblocks name this cluster and node, from the hints in devices.json. A group
 * that lacks a device says so in its `lost`. */
struct diskgroup_found {
	struct diskgroup_set set[GROUPS_PER_NODE_MAX];
	unsigned count;
};
int diskgroup_find(const char *state_dir, const struct identity *id, struct diskgroup_found *out) MUST_USE;
void diskgroup_found_free(struct diskgroup_found *f);
