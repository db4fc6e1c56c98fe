/* SPDX-License-Identifier: Apache-2.0 */
/* ashlar scrub: start, stop and status of the passes over disk groups. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"
#include "node/base/err.h"

static const struct verb *verb(const char *name)
{
	for (const struct verb *v = scrub_verbs; v->noun; v++)
		if (!strcmp(v->verb, name))
			return v;
	return NULL;
}

static bool chosen(const struct json *g, const char *number)
{
	uint64_t id;

	return !number || (ctl_number(number, UINT16_MAX, &id) && id == json_u64(g, "group", 0));
}

static int arguments(struct ctl *c, const char *name, int argc, char **argv, const char **number,
		     struct json **groups)
{
	bool all = false;
	const struct option_spec o[] = {{"--all", NULL, &all}};
	uint64_t id;
	int rc = ctl_args(verb(name), argc, argv, o, ARRAY_LEN(o), number, 0, 1);

	if (rc != CTL_OK)
		return rc;
	if (*number && all)
		return ctl_usage("scrub %s: give the number of a group, or --all", name);
	if (*number && !ctl_number(*number, UINT16_MAX, &id))
		return ctl_usage(
			"\"%s\" is not the number of a group; `ashlar diskgroup list` shows them",
			*number);
	return ctl_call(c, "GET", "/v1/diskgroups", NULL, groups);
}

/* ---- Status ---- */

static uint64_t of(const struct json *row, const char *key)
{
	return json_u64(json_get(row, "scrub"), key, 0);
}

static bool running(const struct json *row)
{
	const char *phase = json_str(json_get(row, "scrub"), "phase");

	return phase && strcmp(phase, "idle") != 0;
}

static void state_cell(struct table *t, const struct json *row)
{
	const struct json *s = json_get(row, "scrub");

	if (!s)
		table_add(t, "unknown");
	else if (json_bool(s, "stopped", false))
		table_add(t, "stopped");
	else
		table_add(t, "%s", str_or(s, "phase", "?"));
}

static void done_cell(struct table *t, const struct json *row)
{
	if (running(row))
		table_add(t, "%.1f %%", (double)of(row, "done_permyriad") / 100);
	else
		table_add(t, "-");
}

static void rate_cell(struct table *t, const struct json *row)
{
	char text[24];

	if (running(row))
		table_add(t, "%s/s", bytes_text(of(row, "rate_bytes_per_s"), text));
	else
		table_add(t, "-");
}

static void left_cell(struct table *t, const struct json *row)
{
	uint64_t rate = of(row, "rate_bytes_per_s"), total = of(row, "total_bytes"),
		 checked = of(row, "checked_bytes");
	char text[24];

	if (running(row) && rate && total > checked)
		table_add(t, "%s", age_text((total - checked) / rate, text));
	else
		table_add(t, "-");
}

static void finished_cell(struct table *t, const struct json *row)
{
	uint64_t at = of(row, "finished_s"), now = (uint64_t)time(NULL);
	char text[24];

	if (at)
		table_add(t, "%s ago", age_text(now > at ? now - at : 0, text));
	else
		table_add(t, "never");
}

static void found_cell(struct table *t, const struct json *row)
{
	table_add(t, "%" PRIu64, of(row, "found_blocks"));
}

static void damaged_cell(struct table *t, const struct json *row)
{
	table_add(t, "%" PRIu64, json_u64(json_get(row, "stats"), "damaged_bytes", 0) / 4096);
}

static int scrub_status(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"GROUP", "group", false, NULL},           {"NODE", "node", false, NULL},
		{"STATE", NULL, false, state_cell},        {"DONE", NULL, true, done_cell},
		{"RATE", NULL, true, rate_cell},           {"LEFT", NULL, true, left_cell},
		{"FINISHED", NULL, true, finished_cell},   {"FOUND", NULL, true, found_cell},
		{"DAMAGED NOW", NULL, true, damaged_cell},
	};
	struct json *groups = NULL, *shown;
	const char *number = NULL;
	int rc = arguments(c, "status", argc, argv, &number, &groups);
	const struct json *list;

	if (rc != CTL_OK)
		return rc;
	list = json_get(groups, "diskgroups");
	shown = json_array_new();
	for (size_t i = 0; i < json_len(list); i++)
		if (chosen(json_at(list, i), number))
			json_add(shown, json_dup(json_at(list, i)));
	if (!json_len(shown) && number)
		rc = ctl_error(c, CTL_NOT_FOUND, "not found", "there is no disk group %s", number);
	else if (c->json)
		print_json(shown);
	else
		print_rows(shown, columns, ARRAY_LEN(columns), false);
	json_free(shown);
	json_free(groups);
	return rc;
}

/* ---- Start and stop ---- */

static int on_groups(struct ctl *c, const char *name, int argc, char **argv)
{
	struct json *groups = NULL, *all = json_array_new(), *j;
	const char *number = NULL;
	int rc = arguments(c, name, argc, argv, &number, &groups), worst = CTL_OK;
	const struct json *list = rc == CTL_OK ? json_get(groups, "diskgroups") : NULL;
	unsigned n = 0;

	for (size_t i = 0; i < json_len(list); i++) {
		CLEANUP(free_ptr) char *path = NULL;
		struct json *body;

		if (!chosen(json_at(list, i), number))
			continue;
		n++;
		path = xasprintf("/v1/diskgroups/%" PRIu64 "/scrub",
				 json_u64(json_at(list, i), "group", 0));
		body = json_object_new();
		json_put_str(body, "action", name);
		rc = ctl_call(c, "POST", path, body, &j);
		if (rc != CTL_OK) {
			worst = rc;
			continue;
		}
		if (!c->json)
			printf("disk group %" PRIu64 " on %s: scrub %s\n", json_u64(j, "group", 0),
			       str_or(j, "node", "?"), str_or(j, "scrub", "?"));
		json_add(all, j);
	}
	if (rc == CTL_OK && number && !n)
		worst = ctl_error(c, CTL_NOT_FOUND, "not found", "there is no disk group %s",
				  number);
	else if (groups && c->json)
		print_json(all);
	json_free(all);
	json_free(groups);
	return rc == CTL_OK ? worst : rc;
}

static int scrub_start(struct ctl *c, int argc, char **argv)
{
	return on_groups(c, "start", argc, argv);
}

static int scrub_stop(struct ctl *c, int argc, char **argv)
{
	return on_groups(c, "stop", argc, argv);
}

const struct verb scrub_verbs[] = {
	{"scrub", "start", "[NUMBER | --all]",
	 "Checks everything in a disk group now: the write log, every stored block, every map "
	 "page.\n\n"
	 "By itself a pass begins every scrub_interval_h and is spread over that time; this one "
	 "runs as "
	 "fast as\n"
	 "scrub_rate_mib_s lets it. Its node also compares the pages it serves with their other "
	 "copies. "
	 "What is bad is\n"
	 "repaired from another replica. Without a number: all groups.\n\n"
	 "Example: ashlar scrub start 3",
	 scrub_start},
	{"scrub", "status", "[NUMBER | --all]",
	 "Shows how far each pass is, when the last one ended, and what was found.\n\n"
	 "Example: ashlar scrub status",
	 scrub_status},
	{"scrub", "stop", "[NUMBER | --all]",
	 "Stops checking until `ashlar scrub start`, which goes on where it was; also over "
	 "restarts.\n\n"
	 "Example: ashlar scrub stop 3",
	 scrub_stop},
	{NULL},
};
