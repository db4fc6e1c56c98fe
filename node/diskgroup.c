/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices make a disk group, and its birth on this node. devices.json remembers paths as a
 * hint; a device that has moved is found again by scanning the host's block devices for our
 * superblocks. Must never format a device that carries anything unless the person said wipe, and
 * never one that somebody holds open. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/json.h"
#include "node/base/log.h"
#include "node/diskgroup.h"

#define FILE_MIN_BYTES (64u << 20) /* room for the smallest log or a few segments */

void diskgroup_set_free(struct diskgroup_set *s)
{
	for (unsigned i = 0; i < s->device_count; i++)
		free(s->devices[i]);
	for (unsigned i = 0; i < s->missing_count; i++)
		free(s->missing[i].path);
	free(s->metadata_dir);
	free(s->lost);
	memset(s, 0, sizeof(*s));
}

static char *copy_text(const char *s)
{
	return s ? xstrdup(s) : NULL;
}

void diskgroup_set_copy(struct diskgroup_set *to, const struct diskgroup_set *from)
{
	*to = *from;
	for (unsigned i = 0; i < from->device_count; i++)
		to->devices[i] = xstrdup(from->devices[i]);
	for (unsigned i = 0; i < from->missing_count; i++)
		to->missing[i].path = copy_text(from->missing[i].path);
	to->metadata_dir = copy_text(from->metadata_dir);
	to->lost = copy_text(from->lost);
}

bool diskgroup_absent(const struct diskgroup_set *s)
{
	bool absent = false;

	for (unsigned i = 0; i < s->missing_count; i++)
		absent |= !s->missing[i].failed;
	return absent;
}

void diskgroup_found_free(struct diskgroup_found *f)
{
	for (unsigned i = 0; i < f->count; i++)
		diskgroup_set_free(&f->set[i]);
	memset(f, 0, sizeof(*f));
}

/* ---- What the person asked for -----------------------------------------------------------------
 */

void diskgroup_spec_free(struct diskgroup_spec *s)
{
	free(s->cache);
	free(s->metadata_dir);
	for (unsigned i = 0; i < s->capacity_count; i++)
		free(s->capacity[i]);
	memset(s, 0, sizeof(*s));
}

static int take_path(const char *key, const char *path, char **out, char why[256])
{
	if (path[0] != '/' || strlen(path) > 200) {
		snprintf(why, 256,
			 "%s: \"%.120s\" is not an absolute path; use e.g. /dev/disk/by-id/…", key,
			 path);
		return -ERR_INVALID;
	}
	*out = xstrdup(path);
	return 0;
}

static int refuse_twice(const struct diskgroup_spec *s, char why[256])
{
	for (unsigned i = 0; i < s->capacity_count; i++) {
		bool twice = s->cache && !strcmp(s->cache, s->capacity[i]);

		for (unsigned k = 0; k < i; k++)
			twice |= !strcmp(s->capacity[k], s->capacity[i]);
		if (twice) {
			snprintf(why, 256, "%.160s is named twice", s->capacity[i]);
			return -ERR_INVALID;
		}
	}
	return 0;
}

int diskgroup_spec_parse(const struct json *j, struct diskgroup_spec *out, char why[256])
{
	const struct json *list = json_get(j, "capacity");
	const char *cache = json_str(j, "cache"), *dir = json_str(j, "metadata_dir");
	size_t n = json_len(list);
	int rc = 0;

	memset(out, 0, sizeof(*out));
	out->wipe = json_bool(j, "wipe", false);
	if (n < 1 || n > ARRAY_LEN(out->capacity)) {
		snprintf(why, 256, "a disk group has 1 to 7 capacity devices, not %zu", n);
		return -ERR_INVALID;
	}
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const char *path = json_as_str(json_at(list, i));

		rc = take_path("capacity", path ? path : "", &out->capacity[i], why);
		if (rc == 0)
			out->capacity_count++;
	}
	if (rc == 0 && cache)
		rc = take_path("cache", cache, &out->cache, why);
	if (rc == 0 && dir)
		rc = take_path("metadata_dir", dir, &out->metadata_dir, why);
	if (rc == 0)
		rc = refuse_twice(out, why);
	if (rc < 0)
		diskgroup_spec_free(out);
	return rc;
}

/* ---- devices.json ------------------------------------------------------------------------------
 */

static struct json *hints_read(const char *state_dir)
{
	struct birth_paths p;
	struct json *j = NULL;
	char *text, err[128];
	size_t len;

	birth_paths(state_dir, &p);
	if (birth_file_read(p.devices, &text, &len) == 0) {
		j = json_parse(text, len, err, sizeof(err));
		if (!j)
			log_warn("diskgroup", "device hints are damaged; scanning instead",
				 "path=\"%s\"", p.devices);
		free(text);
	}
	return j;
}

static void learn_uuids(struct diskgroup_set *s);

static struct json *set_to_json(const struct diskgroup_set *s)
{
	struct json *j = json_object_new(), *list = json_array_new(), *uuids = json_array_new();
	char uuid[UUID_TEXT];

	uuid_format(&s->uuid, uuid);
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "metadata_dir", s->metadata_dir);
	for (unsigned i = 0; i < s->device_count; i++) {
		uuid_format(&s->device[i], uuid);
		json_add_str(list, s->devices[i]);
		json_add_str(uuids, uuid);
	}
	for (unsigned i = 0; i < s->missing_count; i++) {
		if (!s->missing[i].path)
			continue;
		uuid_format(&s->missing[i].uuid, uuid);
		json_add_str(list, s->missing[i].path);
		json_add_str(uuids, uuid);
	}
	json_put(j, "devices", list);
	json_put(j, "uuids", uuids);
	return j;
}

/* Adds or replaces the entry of one group. */
static int hints_save(const char *state_dir, const struct diskgroup_set *s)
{
	struct json *old = hints_read(state_dir), *j = json_object_new(), *list = json_array_new();
	const struct json *groups = old ? json_get(old, "groups") : NULL;
	struct birth_paths p;
	char uuid[UUID_TEXT], *text;
	int rc;

	birth_paths(state_dir, &p);
	uuid_format(&s->uuid, uuid);
	for (size_t i = 0; i < json_len(groups); i++) {
		const char *have = json_str(json_at(groups, i), "uuid");

		if (have && strcmp(have, uuid))
			json_add(list, json_dup(json_at(groups, i)));
	}
	json_add(list, set_to_json(s));
	json_put(j, "groups", list);
	text = json_print(j, true);
	rc = birth_file_write(p.devices, text, strlen(text), 0600);
	free(text);
	json_free(j);
	json_free(old);
	return rc;
}

static void learn_uuids(struct diskgroup_set *s)
{
	struct store_probe p;

	for (unsigned i = 0; i < s->device_count; i++)
		if (store_probe(s->devices[i], &p) == 0)
			s->device[i] = p.device;
}

/* ---- Format ------------------------------------------------------------------------------------
 */

static int make_dirs(const char *path)
{
	CLEANUP(free_ptr) char *copy = xstrdup(path);

	for (char *p = copy + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		if (mkdir(copy, 0700) < 0 && errno != EEXIST)
			return -errno;
		*p = '/';
	}
	return mkdir(copy, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* The process that has a lock on the file: "process 12 (ashlard)", or "another process". */
static void name_holder(const struct stat *st, char out[64])
{
	char line[256], path[48], name[32] = "";
	long pid = 0, p;
	unsigned major, minor;
	unsigned long ino;
	FILE *f = fopen("/proc/locks", "re");

	snprintf(out, 64, "another process");
	while (f && !pid && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*d: FLOCK %*s %*s %ld %x:%x:%lu", &p, &major, &minor, &ino) == 4 &&
		    ino == st->st_ino && major == major(st->st_dev) && minor == minor(st->st_dev))
			pid = p;
	if (f)
		fclose(f);
	if (pid <= 0)
		return;
	snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
	f = fopen(path, "re");
	if (f && !fgets(name, sizeof(name), f))
		name[0] = '\0';
	if (f)
		fclose(f);
	name[strcspn(name, "\n")] = '\0';
	if (pid == getpid())
		snprintf(out, 64, "a disk group of this node");
	else
		snprintf(out, 64, "process %ld (%.16s)", pid, name);
}

/* Nobody may hold it: mounted, LVM, md, swap or another process with O_EXCL all answer EBUSY; another
 * ashlard has it locked. */
static int check_unused(const char *path, const struct stat *st, char why[256])
{
	int fd = open(path, O_RDWR | O_CLOEXEC | (S_ISBLK(st->st_mode) ? O_EXCL : 0)), rc = 0;
	char holder[64];

	if (fd < 0)
		rc = errno == EBUSY ? -ERR_BUSY : -errno;
	if (rc == -ERR_BUSY) {
		snprintf(why, 256,
			 "%.140s is in use (mounted, swap, LVM, md or another process); "
			 "`lsblk` shows by what; release it first",
			 path);
	} else if (rc < 0) {
		snprintf(why, 256, "%.160s cannot be opened: %s", path, strerror(-rc));
	} else if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		rc = errno == EWOULDBLOCK ? -ERR_BUSY : -errno;
		name_holder(st, holder);
		snprintf(why, 256, "%.140s is in use by %s; choose another device", path, holder);
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

static int check_device(const char *path, char why[256])
{
	struct stat st;

	if (stat(path, &st) < 0) {
		int rc = -errno;

		snprintf(why, 256, "%.160s: %s", path, strerror(-rc));
		return rc;
	}
	if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode)) {
		snprintf(why, 256, "%.160s is neither a block device nor a file", path);
		return -ERR_INVALID;
	}
	if (S_ISREG(st.st_mode) && st.st_size < FILE_MIN_BYTES) {
		snprintf(why, 256, "%.140s has %lld bytes; a device of a disk group needs at least %u MiB",
			 path, (long long)st.st_size, FILE_MIN_BYTES >> 20);
		return -ERR_INVALID;
	}
	return check_unused(path, &st, why);
}

/* Two names of one device (links, /dev/disk/by-…) are the same device. */
static int check_distinct(const struct diskgroup_set *s, char why[256])
{
	struct stat a, b;

	for (unsigned i = 0; i < s->device_count; i++)
		for (unsigned k = 0; k < i; k++) {
			if (stat(s->devices[i], &a) < 0 || stat(s->devices[k], &b) < 0)
				continue; /* reported by check_device */
			if (S_ISBLK(a.st_mode) ? a.st_rdev != b.st_rdev || !S_ISBLK(b.st_mode) :
						 a.st_ino != b.st_ino || a.st_dev != b.st_dev)
				continue;
			snprintf(why, 256, "%.110s and %.110s are one device", s->devices[k],
				 s->devices[i]);
			return -ERR_INVALID;
		}
	return 0;
}

static int refuse_foreign(const char *path, char why[256])
{
	snprintf(
		why, 256,
		"%.140s belongs to another cluster, node or disk group; if its data is not needed, "
		"repeat with --wipe",
		path);
	return -ERR_FOREIGN;
}

/* Looks at the superblocks that are there already: *out learns the uuid of a group that was begun.
 */
static int probe_existing(const struct identity *id, const struct diskgroup_spec *s,
			  struct diskgroup_set *out, unsigned *finals, char why[256])
{
	const char *bare = NULL;

	*finals = 0;
	for (unsigned i = 0; i < out->device_count; i++) {
		struct store_probe p;
		int rc = store_probe(out->devices[i], &p);
		bool ours = rc == 0 && uuid_equal(&p.cluster, &id->cluster) &&
			    uuid_equal(&p.node, &id->node);

		if (rc == -ENODATA || (rc < 0 && s->wipe)) {
			bare = out->devices[i];
			continue;
		}
		if (rc < 0) {
			snprintf(why, 256,
				 "%.120s carries a superblock that cannot be read (%s); if its "
				 "data is not "
				 "needed, repeat with --wipe",
				 out->devices[i], err_name(rc));
			return rc;
		}
		if (!ours || (!uuid_is_nil(&out->uuid) && !uuid_equal(&out->uuid, &p.group))) {
			bare = out->devices[i];
			if (s->wipe)
				continue;
			return refuse_foreign(out->devices[i], why);
		}
		out->uuid = p.group;
		out->incarnation = p.group_incarnation;
		if (!p.pending) {
			out->number = p.group_number;
			(*finals)++;
		}
	}
	/* All superblocks of a group are written before the first becomes final: this is another set. */
	if (*finals && bare && !s->wipe) {
		snprintf(why, 256,
			 "%.120s is no part of disk group %u, others named here are; name exactly its "
			 "devices, or repeat with --wipe to make a new group of these",
			 bare, out->number);
		return -ERR_OCCUPIED;
	}
	if (*finals && bare) { /* wipe */
		*finals = 0;
		memset(&out->uuid, 0, sizeof(out->uuid));
	}
	return 0;
}

static void set_from_spec(const struct diskgroup_spec *s, struct diskgroup_set *out)
{
	memset(out, 0, sizeof(*out));
	if (s->cache) {
		out->role[0] = DEVICE_CACHE;
		out->devices[out->device_count++] = xstrdup(s->cache);
	}
	for (unsigned i = 0; i < s->capacity_count; i++) {
		out->role[out->device_count] = DEVICE_CAPACITY;
		out->devices[out->device_count++] = xstrdup(s->capacity[i]);
	}
}

/* The device whose edges are not empty: store_format has refused one. */
static const char *first_occupied(const struct diskgroup_set *set)
{
	enum { EDGE = 65536 };
	char *b = xmalloc(EDGE);
	const char *found = NULL;

	for (unsigned i = 0; i < set->device_count && !found; i++) {
		int fd = open(set->devices[i], O_RDONLY | O_CLOEXEC);
		off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
		off_t at[2] = {0, end > EDGE ? end - EDGE : 0};

		for (unsigned k = 0; fd >= 0 && k < 2; k++) {
			ssize_t n = pread(fd, b, EDGE, at[k]);

			for (ssize_t j = 0; j < n && !found; j++)
				found = b[j] ? set->devices[i] : NULL;
		}
		if (fd >= 0)
			close(fd);
	}
	free(b);
	return found ? found : "a device";
}

static int format_pending(const struct config *c, const struct identity *id,
			  const struct diskgroup_spec *s, struct diskgroup_set *set, char why[256])
{
	struct store_format f = {.cluster = id->cluster,
				 .node = id->node,
				 .group = set->uuid,
				 .group_incarnation = 1,
				 .cache = s->cache,
				 .capacity = (const char *const *)s->capacity,
				 .capacity_count = s->capacity_count,
				 .metadata_dir = set->metadata_dir,
				 .wipe = s->wipe};
	int rc;

	rc = make_dirs(set->metadata_dir);
	if (rc < 0) {
		snprintf(why, 256, "%.160s cannot be made: %s", set->metadata_dir, strerror(-rc));
		return rc;
	}
	rc = store_format(&f);
	if (rc == -ERR_EXISTS) {
		snprintf(why, 256,
			 "%.110s carries a file system, partition table or other data already; if it is "
			 "not needed, repeat with --wipe",
			 first_occupied(set));
		rc = -ERR_OCCUPIED;
	} else if (rc == -EINVAL) {
		snprintf(why, 256, "a device is too small (the log of ashlard names it)");
	} else if (rc < 0)
		snprintf(why, 256, "formatting failed: %s (the log of ashlard names the device)",
			 err_text(rc));
	set->pending = true;
	set->incarnation = 1;
	return rc;
}

int diskgroup_format(const struct config *c, const struct identity *id,
		     const struct diskgroup_spec *s, struct diskgroup_set *out, char why[256])
{
	unsigned finals = 0;
	char uuid[UUID_TEXT];
	int rc = 0;

	set_from_spec(s, out);
	for (unsigned i = 0; rc == 0 && i < out->device_count; i++)
		rc = check_device(out->devices[i], why);
	if (rc == 0)
		rc = check_distinct(out, why);
	if (rc == 0)
		rc = probe_existing(id, s, out, &finals, why);
	if (rc < 0) {
		diskgroup_set_free(out);
		return rc;
	}
	if (uuid_is_nil(&out->uuid))
		uuid_make(&out->uuid);
	uuid_format(&out->uuid, uuid);
	out->metadata_dir = s->metadata_dir ? xstrdup(s->metadata_dir)
					    : xasprintf("%s/groups/%s", c->state_dir, uuid);
	out->probed = true;
	/* A final superblock has the number: Raft knows the group, only the other superblocks may
	 * be behind. */
	if (finals == 0)
		rc = format_pending(c, id, s, out, why);
	out->pending = finals < out->device_count;
	learn_uuids(out);
	if (rc == 0)
		rc = hints_save(c->state_dir, out);
	if (rc < 0) {
		(void)rmdir(out->metadata_dir); /* only if nothing is in it */
		diskgroup_set_free(out);
	}
	return rc;
}

int diskgroup_finalize(const char *state_dir, struct diskgroup_set *set, uint16_t number,
		       char why[256])
{
	int rc = store_finalize((const char *const *)set->devices, set->device_count, &set->uuid,
				number);

	if (rc < 0) {
		snprintf(why, 256, "superblocks could not be made final: %s; repeat the command",
			 err_text(rc));
		return rc;
	}
	set->number = number;
	set->pending = false;
	learn_uuids(set);
	return hints_save(state_dir, set);
}

/* ---- Find --------------------------------------------------------------------------------------
 */

static int set_index(const struct diskgroup_set *set, const struct uuid *device)
{
	for (unsigned i = 0; i < set->device_count; i++)
		if (uuid_equal(&set->device[i], device))
			return (int)i;
	return -1;
}

static void set_take(struct diskgroup_set *set, const char *path, const struct store_probe *p)
{
	set->probed = true;
	set->pending |= p->pending;
	set->number = p->group_number ? p->group_number : set->number;
	set->incarnation = MAX(set->incarnation, p->group_incarnation);
	set->role[set->device_count] = p->role;
	set->device[set->device_count] = p->device;
	set->devices[set->device_count++] = xstrdup(path);
}

static bool is_ours(const struct store_probe *p, const struct identity *id, const struct diskgroup_set *set)
{
	return uuid_equal(&p->cluster, &id->cluster) && uuid_equal(&p->node, &id->node) &&
	       uuid_equal(&p->group, &set->uuid);
}

/* Block devices of this host whose superblocks belong to the group and are not in the set yet. */
static void scan_for(struct diskgroup_set *set, const struct identity *id, struct store_probe *best)
{
	DIR *d = opendir("/sys/class/block");
	struct dirent *e;

	while (d && (e = readdir(d)) && set->device_count < GROUP_DEVICES_MAX) {
		struct store_probe p;
		char path[300];

		if (e->d_name[0] == '.' || !strncmp(e->d_name, "loop", 4) ||
		    !strncmp(e->d_name, "ram", 3))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", e->d_name);
		if (store_probe(path, &p) < 0 || !is_ours(&p, id, set) || set_index(set, &p.device) >= 0)
			continue;
		log_info("diskgroup", "device found under another name", "group=%u path=\"%s\"",
			 p.group_number, path);
		set_take(set, path, &p);
		if (p.sequence > best->sequence)
			*best = p;
	}
	if (d)
		closedir(d);
}

static void why_lost(int rc, char out[96])
{
	const char *why = "its superblock is of another cluster, node or disk group";

	if (rc == -ENOENT)
		why = "there is no such device";
	else if (rc == -ENODATA)
		why = "it carries no superblock: wiped, or another disk under this name";
	else if (rc == -ERR_CORRUPT || rc == -EINVAL)
		why = "both its superblocks are damaged, or it was truncated";
	if (rc < 0 && rc != -ENOENT && rc != -ENODATA && rc != -ERR_CORRUPT && rc != -EINVAL)
		snprintf(out, 96, "it cannot be read: %.60s", err_text(rc));
	else
		snprintf(out, 96, "%s", why);
}

/* A member that the newest superblock names and that is not in the set: where it was, and why, in words that
 * lead to a remedy. */
static void note_missing(struct diskgroup_set *set, const struct json *hint, const struct store_member *m)
{
	const struct json *paths = json_get(hint, "devices"), *uuids = json_get(hint, "uuids");
	struct diskgroup_missing *x = &set->missing[set->missing_count++];
	const char *path = NULL;
	char text[UUID_TEXT], why[96] = "it failed earlier";
	struct store_probe p;

	*x = (struct diskgroup_missing){.uuid = m->device, .role = m->role, .failed = m->failed};
	uuid_format(&m->device, text);
	for (size_t i = 0; i < json_len(uuids) && i < json_len(paths) && !path; i++) {
		const char *uuid = json_as_str(json_at(uuids, i));

		if (uuid && !strcmp(uuid, text))
			path = json_as_str(json_at(paths, i));
	}
	x->path = copy_text(path);
	if (!m->failed)
		why_lost(path ? store_probe(path, &p) : -ENOENT, why);
	if (!set->lost || (!m->failed && set->missing_count > 1 && set->missing[0].failed)) {
		free(set->lost);
		set->lost = xstrdup(path ? path : text);
		snprintf(set->why_lost, sizeof(set->why_lost), "%s", why);
	}
	log_error("diskgroup", "a device of a disk group is missing or no longer ours",
		  "uuid=%s path=\"%s\" reason=\"%s\"", text, path ? path : "?", why);
}

/* A device that another has taken the place of still carries the group's name. */
static void drop_replaced(struct diskgroup_set *set, const struct store_probe *best)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->device_count; i++) {
		bool is = false;

		for (unsigned k = 0; k < GROUP_DEVICES_MAX; k++)
			is |= best->member[k].role && uuid_equal(&best->member[k].device, &set->device[i]);
		if (!is) {
			log_warn("diskgroup", "a device that was replaced is left alone", "path=\"%s\"",
				 set->devices[i]);
			free(set->devices[i]);
			continue;
		}
		set->devices[n] = set->devices[i];
		set->device[n] = set->device[i];
		set->role[n++] = set->role[i];
	}
	set->device_count = n;
}

/* Takes the devices whose superblocks agree with the hint, and names those that should be there too. */
static void probe_hint(const struct json *hint, const struct identity *id, struct diskgroup_set *set)
{
	const struct json *list = json_get(hint, "devices");
	struct store_probe best = {0};
	unsigned members = 0;

	for (size_t i = 0; i < json_len(list) && set->device_count < GROUP_DEVICES_MAX; i++) {
		const char *path = json_as_str(json_at(list, i));
		struct store_probe p;

		if (!path || store_probe(path, &p) < 0 || !is_ours(&p, id, set) ||
		    set_index(set, &p.device) >= 0)
			continue;
		set_take(set, path, &p);
		if (p.sequence > best.sequence)
			best = p;
	}
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		members += best.member[i].role != 0;
	if (set->device_count < MAX(members, (unsigned)json_len(list)))
		scan_for(set, id, &best);
	drop_replaced(set, &best);
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		if (best.member[i].role &&
		    (best.member[i].failed || set_index(set, &best.member[i].device) < 0))
			note_missing(set, hint, &best.member[i]);
	if (!set->device_count) {
		set->lost = xstrdup(json_len(list) ? json_as_str(json_at(list, 0)) : "?");
		snprintf(set->why_lost, sizeof(set->why_lost), "none of its devices can be read");
	}
}

void diskgroup_look_again(const char *state_dir, const struct identity *id, struct diskgroup_set *s)
{
	struct diskgroup_found *found = xcalloc(1, sizeof(*found));

	if (diskgroup_find(state_dir, id, found) == 0)
		for (unsigned i = 0; i < found->count; i++)
			if (uuid_equal(&found->set[i].uuid, &s->uuid)) {
				diskgroup_set_free(s);
				diskgroup_set_copy(s, &found->set[i]);
				break;
			}
	diskgroup_found_free(found);
	free(found);
}

int diskgroup_find(const char *state_dir, const struct identity *id, struct diskgroup_found *out)
{
	struct json *j = hints_read(state_dir);
	const struct json *groups = j ? json_get(j, "groups") : NULL;

	memset(out, 0, sizeof(*out));
	for (size_t i = 0; i < json_len(groups) && out->count < GROUPS_PER_NODE_MAX; i++) {
		const struct json *hint = json_at(groups, i);
		const char *uuid = json_str(hint, "uuid"), *dir = json_str(hint, "metadata_dir");
		struct diskgroup_set *set = &out->set[out->count];

		if (!uuid || uuid_parse(uuid, &set->uuid) < 0 || !dir)
			continue;
		set->metadata_dir = xstrdup(dir);
		probe_hint(hint, id, set);
		out->count++;
	}
	json_free(j);
	return 0;
}

/* ---- Replace ---------------------------------------------------------------------------------- */

int diskgroup_member(const struct diskgroup_set *s, const char *text, struct uuid *uuid,
		     enum device_role *role, const char **path)
{
	bool is_uuid = uuid_parse(text, uuid) == 0;
	struct stat a, b;

	*path = NULL;
	for (unsigned i = 0; i < s->missing_count; i++) {
		const struct diskgroup_missing *m = &s->missing[i];

		if (is_uuid ? !uuid_equal(&m->uuid, uuid) : !m->path || strcmp(m->path, text))
			continue;
		*uuid = m->uuid;
		*role = m->role;
		return 0;
	}
	for (unsigned i = 0; i < s->device_count; i++) {
		bool same = !strcmp(s->devices[i], text);

		if (!is_uuid && !same && stat(text, &a) == 0 && stat(s->devices[i], &b) == 0)
			same = S_ISBLK(a.st_mode) ? S_ISBLK(b.st_mode) && a.st_rdev == b.st_rdev
						  : a.st_ino == b.st_ino && a.st_dev == b.st_dev;
		if (is_uuid ? !uuid_equal(&s->device[i], uuid) : !same)
			continue;
		*uuid = s->device[i];
		*role = s->role[i];
		*path = s->devices[i];
		return 0;
	}
	return -ERR_NOT_FOUND;
}

int diskgroup_check_new(const char *path, char why[256])
{
	return check_device(path, why);
}

int diskgroup_replaced(const char *state_dir, struct diskgroup_set *s, const struct uuid *old,
		       const char *path)
{
	struct store_probe p;
	int rc = store_probe(path, &p);

	if (rc)
		return rc;
	for (unsigned i = 0; i < s->missing_count; i++) {
		if (!uuid_equal(&s->missing[i].uuid, old))
			continue;
		free(s->missing[i].path);
		s->missing[i] = s->missing[--s->missing_count];
		i--;
	}
	for (unsigned i = 0; i < s->device_count; i++) {
		if (!uuid_equal(&s->device[i], old) && strcmp(s->devices[i], path))
			continue;
		free(s->devices[i]);
		s->device_count--;
		s->devices[i] = s->devices[s->device_count];
		s->device[i] = s->device[s->device_count];
		s->role[i] = s->role[s->device_count];
		i--;
	}
	set_take(s, path, &p);
	if (!s->missing_count) {
		free(s->lost);
		s->lost = NULL;
	}
	return hints_save(state_dir, s);
}
