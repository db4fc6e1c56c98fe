/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

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

	rc = ctl_args(&diskgroup_verbs[0], argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
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

static int diskgroup_list(struct ctl *c, int argc, char **argv)
{
	static const char *const head[] = {"GROUP", "NODE", "STATE", "RAW",
					   "DATA",  "USED", "LOG",   "DEVICES"};
	const struct json *list;
	struct json *j;
	struct table t;
	int rc;

	rc = ctl_args(&diskgroup_verbs[1], argc, argv, NULL, 0, NULL, 0, 0);
	if (rc == CTL_OK)
		rc = ctl_call(c, "GET", "/v1/diskgroups", NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json) {
		print_json(j);
		json_free(j);
		return CTL_OK;
	}
	table_init(&t, ARRAY_LEN(head), 1u << 0 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6, head);
	list = json_get(j, "diskgroups");
	for (size_t i = 0; i < json_len(list); i++) {
		const struct json *g = json_at(list, i), *stats = json_get(g, "stats");
		char raw[24], data[24], used[24];

		table_add(&t, "%" PRIu64, json_u64(g, "group", 0));
		table_add(&t, "%s", str_or(g, "node", "?"));
		table_add(&t, "%s", state_text(g));
		table_add(&t, "%s", bytes_text(json_u64(g, "raw_bytes", 0), raw));
		table_add(&t, "%s",
			  stats ? bytes_text(json_u64(stats, "data_bytes", 0), data) : "-");
		table_add(&t, "%s", used_text(stats, used));
		if (stats)
			table_add(&t, "%.1f %%",
				  (double)json_u64(stats, "log_fill_permyriad", 0) / 100);
		else
			table_add(&t, "-");
		table_add(&t, "%zu", json_len(json_get(g, "devices")));
	}
	table_print(&t);
	print_source(j);
	json_free(j);
	return CTL_OK;
}

static void print_group(const struct json *g)
{
	const struct json *devices = json_get(g, "devices"), *stats = json_get(g, "stats");
	char a[24], b[24];

	printf("disk group  %" PRIu64 " on %s, %s (%s, incarnation %" PRIu64 ")\n",
	       json_u64(g, "group", 0), str_or(g, "node", "?"), state_text(g),
	       str_or(g, "uuid", "?"), json_u64(g, "incarnation", 0));
	if (json_str(g, "why"))
		printf("reason      %s\n", json_str(g, "why"));
	for (size_t i = 0; i < json_len(devices); i++)
		printf("%-11s %s\n", str_or(json_at(devices, i), "role", "?"),
		       str_or(json_at(devices, i), "path", "?"));
	if (!stats)
		return;
	printf("data        %s used of %s\n", bytes_text(json_u64(stats, "data_used_bytes", 0), a),
	       bytes_text(json_u64(stats, "data_bytes", 0), b));
	printf("write log   %s of %s, %.1f %% full\n",
	       bytes_text(json_u64(stats, "log_used_bytes", 0), a),
	       bytes_text(json_u64(stats, "log_bytes", 0), b),
	       (double)json_u64(stats, "log_fill_permyriad", 0) / 100);
	printf("replicas    of %" PRIu64 " objects, %s logical\n", json_u64(stats, "objects", 0),
	       bytes_text(json_u64(stats, "logical_bytes", 0), a));
	printf("errors      %" PRIu64 " corrupt blocks met, %" PRIu64 " I/O errors\n",
	       json_u64(stats, "corrupt_blocks", 0), json_u64(stats, "io_errors", 0));
}

static int diskgroup_show(struct ctl *c, int argc, char **argv)
{
	const char *number;
	struct json *j;
	uint64_t id;
	int rc;

	rc = ctl_args(&diskgroup_verbs[2], argc, argv, NULL, 0, &number, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (!ctl_number(number, UINT16_MAX, &id))
		return ctl_usage("diskgroup show: \"%s\" is not the number of a group", number);
	CLEANUP(free_ptr) char *path = xasprintf("/v1/diskgroups/%" PRIu64, id);

	rc = ctl_call(c, "GET", path, NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		print_group(j);
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
	{NULL},
};
