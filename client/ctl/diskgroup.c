/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

static const struct verb *verb(const char *name)
{
	for (const struct verb *v = diskgroup_verbs; v->noun; v++)
		if (!strcmp(v->verb, name))
			return v;
	return NULL;
}

static void put_list(struct json *body, const char *key, const char *text)
{
	CLEANUP(free_ptr) char *copy = xstrdup(text);
	struct json *list = json_array_new();
	char *save = NULL;

	for (char *p = strtok_r(copy, ",", &save); p; p = strtok_r(NULL, ",", &save))
		json_add_str(list, p);
	json_put(body, key, list);
}

static int diskgroup_add(struct ctl *c, int argc, char **argv)
{
	const char *cache = NULL, *capacity = NULL, *node = NULL, *metadata = NULL;
	bool wipe = false;
	const struct option_spec o[] = {{"--cache", &cache, NULL},
					{"--capacity", &capacity, NULL},
					{"--node", &node, NULL},
					{"--metadata-dir", &metadata, NULL},
					{"--wipe", NULL, &wipe}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("add"), argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc != CTL_OK)
		return rc;
	if (!capacity)
		return ctl_usage("diskgroup add: --capacity PATH[,PATH…] is needed");
	body = json_object_new();
	put_list(body, "capacity", capacity);
	if (cache)
		json_put_str(body, "cache", cache);
	if (node)
		json_put_str(body, "node", node);
	if (metadata)
		json_put_str(body, "metadata_dir", metadata);
	json_put_bool(body, "wipe", wipe);
	c->timeout_s = MAX(c->timeout_s, 180u);
	rc = ctl_call(c, "POST", "/v1/diskgroups", body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("disk group %" PRIu64 " on %s is active\n", json_u64(j, "group", 0),
		       str_or(j, "node", "?"));
	json_free(j);
	return CTL_OK;
}

static const char *used_text(const struct json *stats, char out[24])
{
	uint64_t total = json_u64(stats, "data_bytes", 0),
		 used = json_u64(stats, "data_used_bytes", 0);

	if (!stats || !total)
		return "-";
	snprintf(out, 24, "%.1f %%", 100.0 * (double)used / (double)total);
	return out;
}

static const char *state_text(const struct json *g)
{
	if (!json_bool(g, "reachable", false))
		return "unreachable";
	if (json_str(g, "failed"))
		return json_str(g, "failed");
	return str_or(g, "state", "?");
}

static void state_cell(struct table *t, const struct json *g)
{
	table_add(t, "%s", state_text(g));
}

static void raw_cell(struct table *t, const struct json *g)
{
	if (json_u64(g, "raw_bytes", 0))
		add_bytes(t, json_i64(g, "raw_bytes", 0));
	else
		table_add(t, "-");
}

static void data_cell(struct table *t, const struct json *g)
{
	if (json_get(g, "stats"))
		add_bytes(t, json_i64(json_get(g, "stats"), "data_bytes", 0));
	else
		table_add(t, "-");
}

static void used_cell(struct table *t, const struct json *g)
{
	char used[24];

	table_add(t, "%s", used_text(json_get(g, "stats"), used));
}

static void log_cell(struct table *t, const struct json *g)
{
	const struct json *stats = json_get(g, "stats");

	if (stats)
		table_add(t, "%.1f %%", (double)json_u64(stats, "log_fill_permyriad", 0) / 100);
	else
		table_add(t, "-");
}

static void devices_cell(struct table *t, const struct json *g)
{
	table_add(t, "%zu", json_len(json_get(g, "devices")));
}

static int diskgroup_list(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"GROUP", "group", true},           {"NODE", "node"},
		{"STATE", NULL, false, state_cell}, {"RAW", NULL, true, raw_cell},
		{"DATA", NULL, true, data_cell},    {"USED", NULL, true, used_cell},
		{"LOG", NULL, true, log_cell},      {"DEVICES", NULL, false, devices_cell},
	};
	const struct list_view view = {"/v1/diskgroups", "diskgroups", columns, ARRAY_LEN(columns),
				       false};
	int rc = ctl_args(verb("list"), argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static void name_cell(struct table *t, const struct json *row)
{
	if (json_str(row, "name"))
		table_add(t, "%s", json_str(row, "name"));
	else if (json_u64(row, "volume", 0))
		table_add(t, "(deleted, number %" PRIu64 ")", json_u64(row, "volume", 0));
	else
		table_add(t, "(shared, of no volume)");
}

static void print_caches(const struct json *s)
{
	char a[24], b[24];
	uint64_t hits = json_u64(s, "page_cache_hits", 0),
		 misses = json_u64(s, "page_cache_misses", 0);

	printf("dedup hints %s of at most %s; %" PRIu64 " blocks matched, %" PRIu64
	       " hints gave way to newer ones, %" PRIu64 " led nowhere\n",
	       bytes_text(json_u64(s, "dedup_hint_bytes", 0), a),
	       bytes_text(json_u64(s, "dedup_hint_budget_bytes", 0), b),
	       json_u64(s, "dedup_matched_blocks", 0), json_u64(s, "dedup_hint_evictions", 0),
	       json_u64(s, "dedup_false_hints", 0));
	printf("caches      map pages at most %s, %.1f %% of %" PRIu64
	       " look-ups found there; data blocks at most %s\n",
	       bytes_text(json_u64(s, "page_cache_budget_bytes", 0), a),
	       hits + misses ? 100.0 * (double)hits / (double)(hits + misses) : 0.0, hits + misses,
	       bytes_text(json_u64(s, "block_cache_budget_bytes", 0), b));
	if (json_u64(s, "reduce_bypassed_blocks", 0))
		printf("reduction   %" PRIu64 " blocks stored raw under load, %" PRIu64
		       " looked at again%s\n",
		       json_u64(s, "reduce_bypassed_blocks", 0),
		       json_u64(s, "reduce_redone_blocks", 0),
		       json_bool(s, "reduce_pending", false) ? "; not through yet" : "");
}

/* What the devices took for each byte that was written to this group's replicas since it started. */
static void print_written(const struct json *stats)
{
	double user = (double)json_u64(stats, "appended_blocks", 0) * 4096;
	double all = (double)json_u64(stats, "device_written_bytes", 0);
	double data = (double)json_u64(stats, "data_written_bytes", 0);
	double moved = (double)json_u64(stats, "moved_bytes", 0);

	if (user > 0)
		printf("written     %.2f bytes per byte: write log %.2f, destaged %.2f, moved %.2f\n",
		       all / user, (all - data - moved) / user, data / user, moved / user);
}

static void print_times(const struct json *d, const char *op)
{
	const struct json *t = json_get(json_get(d, "last_minute"), op);

	if (json_u64(t, "count", 0))
		printf(", %s %" PRIu64 " µs (p99 %" PRIu64 ")", op, json_u64(t, "mean_us", 0),
		       json_u64(t, "p99_us", 0));
}

static void print_device(const struct json *d)
{
	const struct json *e = json_get(d, "errors");
	uint64_t errors = json_u64(e, "read", 0) + json_u64(e, "write", 0) + json_u64(e, "flush", 0);
	char size[24];

	printf("%-11s %s, %s", str_or(d, "role", "?"), str_or(d, "path", "(not there)"),
	       str_or(d, "state", "?"));
	if (json_u64(d, "size_bytes", 0))
		printf(", %s", bytes_text(json_u64(d, "size_bytes", 0), size));
	if (errors)
		printf(", %" PRIu64 " errors", errors);
	print_times(d, "read");
	print_times(d, "write");
	print_times(d, "flush");
	printf("\n            uuid %s\n", str_or(d, "uuid", "?"));
}

static void print_group(const struct json *g)
{
	static const struct column rows[] = {
		{"VOLUME", NULL, false, name_cell},
		{"LOGICAL", NULL, true, logical_cell},
		{"ZEROES", NULL, true, zero_cell},
		{"DUPLICATES", NULL, true, dedup_cell},
		{"COMPRESSED", NULL, true, compression_cell},
		{"STORED", NULL, true, row_stored_cell},
		{"FREES", NULL, true, frees_cell},
	};
	const struct json *devices = json_get(g, "devices"), *stats = json_get(g, "stats");
	char a[24], b[24];

	printf("disk group  %" PRIu64 " on %s, %s (%s, incarnation %" PRIu64 ")\n",
	       json_u64(g, "group", 0), str_or(g, "node", "?"), state_text(g),
	       str_or(g, "uuid", "?"), json_u64(g, "incarnation", 0));
	if (json_str(g, "why"))
		printf("reason      %s\n", json_str(g, "why"));
	for (size_t i = 0; i < json_len(devices); i++)
		print_device(json_at(devices, i));
	if (!stats)
		return;
	print_reduction(stats, json_u64(stats, "data_used_bytes", 0));
	print_raw(stats);
	printf("room        %s for new data before it is full\n",
	       bytes_text(json_u64(stats, "data_free_bytes", 0), a));
	printf("write log   %s of %s, %.1f %% full; ",
	       bytes_text(json_u64(stats, "log_used_bytes", 0), a),
	       bytes_text(json_u64(stats, "log_bytes", 0), b),
	       (double)json_u64(stats, "log_fill_permyriad", 0) / 100);
	printf("%s not yet reduced\n", bytes_text(json_u64(stats, "log_unreduced_bytes", 0), a));
	printf("metadata    %s\n", bytes_text(json_u64(stats, "metadata_used_bytes", 0), a));
	print_written(stats);
	print_caches(stats);
	printf("replicas    of %" PRIu64 " object%s\n", json_u64(stats, "objects", 0),
	       json_u64(stats, "objects", 0) == 1 ? "" : "s");
	if (json_u64(stats, "lost_live_bytes", 0))
		printf("lost        %s stood on devices that are gone\n",
		       bytes_text(json_u64(stats, "lost_live_bytes", 0), a));
	printf("errors      %" PRIu64 " corrupt blocks met, %" PRIu64 " I/O errors\n",
	       json_u64(stats, "corrupt_blocks", 0), json_u64(stats, "io_errors", 0));
	if (json_get(g, "volumes"))
		print_rows(json_get(g, "volumes"), rows, ARRAY_LEN(rows), false);
	else
		printf("volumes     what they take there is not known now\n");
}

/* "3", or "node3/3" as older answers had it. */
static int group_path(const char *text, const char *more, char **path)
{
	const char *number = strrchr(text, '/') ? strrchr(text, '/') + 1 : text;
	uint64_t id;

	if (!ctl_number(number, UINT16_MAX, &id))
		return ctl_usage(
			"\"%s\" is not the number of a group; `ashlar diskgroup list` shows them",
			text);
	*path = xasprintf("/v1/diskgroups/%" PRIu64 "%s", id, more);
	return CTL_OK;
}

static int diskgroup_show(struct ctl *c, int argc, char **argv)
{
	CLEANUP(free_ptr) char *path = NULL;
	const char *number;
	int rc;

	rc = ctl_args(verb("show"), argc, argv, NULL, 0, &number, 1, 1);
	if (rc == CTL_OK)
		rc = group_path(number, "", &path);
	return rc == CTL_OK ? ctl_show(c, path, print_group) : rc;
}

/* ---- Flush and verify --------------------------------------------------------------------------
 */

static int print_flushed(const struct json *j)
{
	printf("disk group %" PRIu64
	       " on %s: all that was committed is on its capacity devices%s (%.1f s)\n",
	       json_u64(j, "group", 0), str_or(j, "node", "?"),
	       json_bool(j, "reduced", false) ? ", nothing is left to be reduced or collected" : "",
	       (double)json_u64(j, "took_ms", 0) / 1000);
	return CTL_OK;
}

static int print_verified(const struct json *j)
{
	uint64_t differences = json_u64(j, "differences", 0),
		 damaged = json_u64(j, "damaged_blocks", 0);

	printf("disk group %" PRIu64 " on %s: %" PRIu64 " objects, %" PRIu64 " pages, %" PRIu64
	       " blocks, %" PRIu64 " shared at commit %" PRIu64 "; %" PRIu64
	       " known to be damaged; ",
	       json_u64(j, "group", 0), str_or(j, "node", "?"), json_u64(j, "objects", 0),
	       json_u64(j, "pages", 0), json_u64(j, "blocks", 0), json_u64(j, "shares", 0),
	       json_u64(j, "commit", 0), damaged);
	if (!differences)
		printf("counters and references are right\n");
	else
		printf("%" PRIu64 " DIFFERENCES, each in the log of ashlard there\n", differences);
	return differences ? CTL_REFUSED : CTL_OK;
}

/* What is done with a group or all. */
struct group_call {
	const char *what; /* "/flush" */
	bool reduce;
	uint64_t limit_s, until_s; /* of reducing */
	int (*print)(const struct json *);
};

static struct json *reduce_body(void)
{
	struct json *body = json_object_new();

	json_put_bool(body, "reduce", true);
	return body;
}

/* The node waits some seconds for the end of reducing; it is asked again until it is there. */
static int call_reduce(struct ctl *c, const struct group_call *k, const char *path, struct json **j)
{
	uint64_t took_ms = 0;
	int rc;

	for (;;) {
		rc = ctl_call(c, "POST", path, reduce_body(), j);
		if (rc != CTL_OK)
			return rc;
		took_ms += json_u64(*j, "took_ms", 0);
		json_put_u64(*j, "took_ms", took_ms);
		if (json_bool(*j, "reduced", false))
			return CTL_OK;
		rc = ctl_now_s() >= k->until_s ? CTL_TIMEOUT : CTL_OK;
		if (rc != CTL_OK)
			ctl_error(c, rc, "ETIMEDOUT",
				  "disk group %" PRIu64 " on %s: not all is reduced after %" PRIu64
				  " s. It goes on when there is time for it; wait longer (--for), or when "
				  "clients write less",
				  json_u64(*j, "group", 0), str_or(*j, "node", "?"), k->limit_s);
		json_free(*j);
		if (rc != CTL_OK)
			return rc;
	}
}

#define REMOVED_LOOKS 3u

/* Whether a group that a call failed for is not in the cluster any more; the removal that made it fail may be
 * known a moment later. */
static bool was_removed(struct ctl *c, int rc, uint64_t group)
{
	if (rc != CTL_UNREACHABLE && rc != CTL_NOT_FOUND)
		return false;
	for (unsigned look = 0; look < REMOVED_LOOKS; look++) {
		struct json *j;
		bool there = false;

		if (look)
			sleep(1);
		if (ctl_call(c, "GET", "/v1/diskgroups", NULL, &j) != CTL_OK)
			return false;
		for (size_t i = 0; i < json_len(json_get(j, "diskgroups")); i++)
			there |= json_u64(json_at(json_get(j, "diskgroups"), i), "group", 0) == group;
		json_free(j);
		if (!there)
			return true;
	}
	return false;
}

/* One group, or all that can be reached, one after the other; with JSON a list of the answers. */
static int on_groups(struct ctl *c, const char *number, const struct group_call *k)
{
	struct json *all = json_array_new(), *groups = NULL, *j;
	const struct json *list;
	int rc = CTL_OK, worst = CTL_OK;

	if (!number) {
		rc = ctl_call(c, "GET", "/v1/diskgroups", NULL, &groups);
		if (rc != CTL_OK) {
			json_free(all);
			return rc;
		}
	}
	list = groups ? json_get(groups, "diskgroups") : NULL;
	for (size_t i = 0; i < (number ? 1 : json_len(list)); i++) {
		CLEANUP(free_ptr) char *path = NULL;
		CLEANUP(free_ptr)
		char *id = number ? xstrdup(number)
				  : xasprintf("%" PRIu64, json_u64(json_at(list, i), "group", 0));

		rc = group_path(id, k->what, &path);
		if (rc == CTL_OK)
			rc = k->reduce ? call_reduce(c, k, path, &j)
				       : ctl_call(c, "POST", path, NULL, &j);
		if (rc == CTL_OK) {
			rc = c->json ? (json_u64(j, "differences", 0) ? CTL_REFUSED : CTL_OK)
				     : k->print(j);
			json_add(all, j);
		}
		if (!number && was_removed(c, rc, json_u64(json_at(list, i), "group", 0))) {
			fprintf(stderr, "ashlar: disk group %s was removed meanwhile: it is left out\n", id);
			rc = CTL_OK;
		}
		worst = rc == CTL_OK ? worst : rc;
	}
	if (c->json)
		print_json(all);
	json_free(groups);
	json_free(all);
	return worst;
}

#define GROUP_CALL_S 3600u

static int groups_run(struct ctl *c, const char *name, int argc, char **argv, struct group_call *k)
{
	const char *number = NULL, *limit = NULL;
	bool all = false;
	const struct option_spec o[] = {
		{"--all", NULL, &all}, {"--reduce", NULL, &k->reduce}, {"--for", &limit, NULL}};
	int rc = ctl_args(verb(name), argc, argv, o, strcmp(name, "flush") ? 1 : ARRAY_LEN(o), &number, 0, 1);

	if (rc != CTL_OK)
		return rc;
	if (!number == !all)
		return ctl_usage("diskgroup %s: give the number of a group, or --all", name);
	if (limit && (!k->reduce || !ctl_duration_s(limit, &k->limit_s) || !k->limit_s))
		return ctl_usage("--for takes a time, e.g. 30m or 2h, and goes with --reduce");
	k->limit_s = limit ? k->limit_s : GROUP_CALL_S;
	k->until_s = ctl_now_s() + k->limit_s;
	c->timeout_s = MAX(c->timeout_s, GROUP_CALL_S);
	return on_groups(c, number, k);
}

static int diskgroup_flush(struct ctl *c, int argc, char **argv)
{
	return groups_run(c, "flush", argc, argv,
			  &(struct group_call){.what = "/flush", .print = print_flushed});
}

static int diskgroup_verify(struct ctl *c, int argc, char **argv)
{
	return groups_run(c, "verify", argc, argv,
			  &(struct group_call){.what = "/verify", .print = print_verified});
}

static int diskgroup_evacuate(struct ctl *c, int argc, char **argv)
{
	const char *number;
	bool wait = false, yes = false;
	const struct option_spec o[] = {{"--wait", NULL, &wait}, {"--yes", NULL, &yes}};
	struct json *body;
	uint64_t id;
	int rc;

	rc = ctl_args(verb("evacuate"), argc, argv, o, ARRAY_LEN(o), &number, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (!ctl_number(number, UINT16_MAX, &id) || !id)
		return ctl_usage("diskgroup evacuate: \"%s\" is not the number of a group", number);
	body = json_object_new();
	json_put_str(body, "kind", "evacuate");
	json_put_u64(body, "group", id);
	if (yes)
		json_put_bool(body, "yes", true);
	return ctl_start_job(c, body, wait);
}

static int diskgroup_replace(struct ctl *c, int argc, char **argv)
{
	const char *old = NULL, *new = NULL, *number;
	bool wipe = false, accept = false;
	const struct option_spec o[] = {{"--old", &old, NULL},
					{"--new", &new, NULL},
					{"--wipe", NULL, &wipe},
					{"--accept-loss", NULL, &accept}};
	struct json *body, *j;
	char size[24];
	uint64_t id;
	int rc;

	rc = ctl_args(verb("replace"), argc, argv, o, ARRAY_LEN(o), &number, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (!ctl_number(number, UINT16_MAX, &id))
		return ctl_usage("diskgroup replace: \"%s\" is not the number of a group", number);
	if (!old || !new)
		return ctl_usage("diskgroup replace: --old PATH|UUID and --new PATH are needed");
	CLEANUP(free_ptr) char *path = xasprintf("/v1/diskgroups/%" PRIu64 "/replace", id);

	body = json_object_new();
	json_put_str(body, "old", old);
	json_put_str(body, "new", new);
	json_put_bool(body, "wipe", wipe);
	json_put_bool(body, "accept_loss", accept);
	c->timeout_s = MAX(c->timeout_s, 600u);
	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("%s device of disk group %" PRIu64 " replaced; other replicas fill it again%s%s%s\n",
		       str_or(j, "role", "?"), id, json_u64(j, "lost_bytes", 0) ? " (" : "",
		       json_u64(j, "lost_bytes", 0) ? bytes_text(json_u64(j, "lost_bytes", 0), size) : "",
		       json_u64(j, "lost_bytes", 0) ? " stood on the old one)" : "");
	json_free(j);
	return CTL_OK;
}

const struct verb diskgroup_verbs[] = {
	{"diskgroup", "add",
	 "--capacity PATH[,PATH…] [--cache PATH] [--node NAME] [--metadata-dir DIR] [--wipe]",
	 "Makes a disk group of devices of a node (default: the node asked).\n\n"
	 "1 to 7 capacity devices, and a cache device for the write log; without one the log lives "
	 "on the capacity\n"
	 "devices. Block devices (best by /dev/disk/by-id/…) or plain files. Devices that are in "
	 "use are refused, and\n"
	 "those that carry anything, unless --wipe is given. DIR is an empty directory for the "
	 "group's metadata.\n"
	 "Repeating the command finishes one that was interrupted.\n\n"
	 "Example: ashlar diskgroup add --cache /dev/disk/by-id/nvme-A --capacity "
	 "/dev/disk/by-id/ata-B,/dev/disk/by-id/ata-C",
	 diskgroup_add},
	{"diskgroup", "list", "",
	 "Lists disk groups and how full they are.\n\nExample: ashlar diskgroup list",
	 diskgroup_list},
	{"diskgroup", "show", "NUMBER",
	 "Shows one disk group: devices, space, log, errors.\n\nExample: ashlar diskgroup show 3",
	 diskgroup_show},
	{"diskgroup", "flush", "NUMBER | --all [--reduce [--for TIME]]",
	 "Moves everything that is in a group's write log to its capacity devices, and returns "
	 "when it is there.\n\n"
	 "Not needed for safety: what is acknowledged is durable in the log. It makes the numbers "
	 "of the ledger "
	 "complete.\n"
	 "--reduce also waits until what was stored raw under load, or was asked for with\n"
	 "--existing reduce, is deduplicated and compressed, and collects what it and deletions\n"
	 "left behind. From then on the numbers are those of the data, however busy the machine\n"
	 "was. It may read and move much of what is stored, and while clients write faster than\n"
	 "that is done it has no end: after TIME (1h) it exits with 8, and goes on when there is\n"
	 "time for it.\n\n"
	 "Example: ashlar diskgroup flush --all --reduce",
	 diskgroup_flush},
	{"diskgroup", "verify", "NUMBER | --all",
	 "Recounts space, references and page versions of a group from its map, and compares.\n\n"
	 "Exits with 1 when something differs; the log of ashlard there says what. Writes go on, "
	 "but nothing is "
	 "moved out of\n"
	 "the write log while it runs. `ashlard inspect --verify --data` does it offline, and "
	 "reads every block "
	 "too.\n\n"
	 "Example: ashlar diskgroup verify 3",
	 diskgroup_verify},
	{"diskgroup", "evacuate", "NUMBER [--wait] [--yes]",
	 "Moves all replicas off a disk group, as a job; redundancy never falls meanwhile.\n\n"
	 "The group stays empty until it is removed or the job is cancelled.\n\n"
	 "Refused (exit code 5) where the others have no place for what is on it; --yes: it begins all\n"
	 "the same, and waits until there is one.\n\n"
	 "Example: ashlar diskgroup evacuate 3 --wait",
	 diskgroup_evacuate},
	{"diskgroup", "replace", "NUMBER --old PATH|UUID --new PATH [--wipe] [--accept-loss]",
	 "Puts another device in the place of one that failed, is missing, or is to go.\n\n"
	 "A capacity device is replaced while the group serves; what stood on the old one is fetched\n"
	 "from other replicas. For a cache device the group starts again with an empty write log; what\n"
	 "was not destaged yet is fetched. --old is a path or uuid of `ashlar diskgroup show`. A new\n"
	 "device that carries anything is refused unless --wipe is given; the command is refused while\n"
	 "anything has its only in-sync copy in the group, unless --accept-loss is. Repeating the\n"
	 "command finishes one that was interrupted.\n\n"
	 "Example: ashlar diskgroup replace 3 --old /dev/disk/by-id/ata-B --new /dev/disk/by-id/ata-D",
	 diskgroup_replace},
	{NULL},
};
