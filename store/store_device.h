/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of a group: what is on them, what is lost with one, and putting another in its place. */
#pragma once

#include "store/store.h"

/* What a device's superblocks say. 0; -ENODATA: no superblock; -ERR_CORRUPT: both bad; -ERR_VERSION. */
struct store_member {
	struct uuid device;
	enum device_role role; /* 0: there is none */
	bool failed;           /* given up: waits to be replaced */
	uint64_t size_bytes;
};
struct store_probe {
	struct store_member member[GROUP_DEVICES_MAX]; /* of the group, by index */
	uint64_t sequence; /* of two members the one with the higher knows better */
	struct uuid cluster, node, group, device;
	enum device_role role;
	unsigned index;
	uint16_t group_number;
	uint32_t group_incarnation, node_incarnation;
	bool pending;
	uint64_t size_bytes;
};
int store_probe(const char *path, struct store_probe *out) MUST_USE;

/* ---- Lost devices ---- */

/* A capacity device that fails costs its blocks only: they read as bad, and so do those of a device that
 * was not there at store_open. Number of the loss that took blocks of this replica and was not made good
 * since; 0: none. Such a replica should leave the in-sync set and come back by catch-up; when that is
 * complete, say so with the number as of its beginning. On the object's shard. */
uint64_t store_lost(const struct store_object *o);
void store_refilled(struct store_object *o, uint64_t lost);
/* Which replicas lost blocks, and where, is known. Until it is, none may compare itself with its primary. */
bool store_loss_known(const struct store *s);

#define DEVICE_OP_KINDS  3u /* reads, writes, flushes (and write-through writes) */
#define DEVICE_TIME_BITS 24u
struct store_device {
	struct uuid uuid;
	enum device_role role;
	unsigned index;
	char path[200]; /* "": not there */
	uint64_t size_bytes;
	int failed; /* 0, or why; -ERR_NOT_FOUND: missing */
	/* Since store_open, by kind: errors, microseconds, and how many took less than 2^i µs. */
	uint64_t errors[DEVICE_OP_KINDS], sum_us[DEVICE_OP_KINDS];
	uint32_t times[DEVICE_OP_KINDS][DEVICE_TIME_BITS];
};
unsigned store_devices(struct store *s, struct store_device out[GROUP_DEVICES_MAX]); /* any thread */
void store_check(struct store *s); /* any thread, now and then: looks whether the map's database is well */

/* ---- Replacing ---- */

/* Another device in the place of one of a capacity tier, whose data is given up (replicas have it; the
 * caller has made sure). The store is started; what the new one must hold is brought by catch-up. 0 also
 * when `path` is that member already. -ERR_BUSY: in use, or another replacement is under way; -ERR_EXISTS:
 * carries data and not `wipe`; -EINVAL: too small. Set-up thread, blocking, long. */
int store_replace(struct store *s, const struct uuid *old, const char *path, bool wipe) MUST_USE;
/* A new cache device for a group that is closed: what was in the old one's log is lost, the map stays, the
 * group has a new incarnation. Errors as above. Run again after a crash it begins anew. */
int store_replace_log(const struct store_config *cfg, uint32_t group_incarnation, const char *path,
		      bool wipe) MUST_USE;
