/* SPDX-License-Identifier: Apache-2.0 */
/* What is going on: status, health, operations in flight, events. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/ctl.h"

static void print_capacity(const struct json *k)
{
	char a[24], b[24];

	printf("provisioned %s, with copies %s\n", bytes_text(json_u64(k, "provisioned_bytes", 0), a),
	       bytes_text(json_u64(k, "provisioned_with_copies_bytes", 0), b));
	print_reduction(k, json_u64(k, "data_used_bytes", 0));
	print_raw(k);
	if (json_u64(k, "log_unreduced_bytes", 0))
		printf("            beside it %s in the write logs, not yet reduced\n",
		       bytes_text(json_u64(k, "log_unreduced_bytes", 0), a));
	print_groups_known(k, "            ");
}

static void print_raft(const struct json *j)
{
	const struct json *r = json_get(j, "raft"), *v = json_get(r, "voters");

	printf("raft        leader %s, term %" PRIu64 ", applied %" PRIu64 ", voters",
	       str_or(r, "leader", "NONE"), json_u64(r, "term", 0), json_u64(r, "applied", 0));
	for (size_t i = 0; i < json_len(v); i++)
		printf(" %s", json_as_str(json_at(v, i)));
	printf("\n");
}

static void print_status(const struct ctl *c, const struct json *j)
{
	const struct json *h = json_get(j, "health"), *codes = json_get(h, "codes"),
			  *o = json_get(j, "objects");
	const struct json *n = json_get(j, "nodes"), *cl = json_get(j, "cluster");
	const char *overall = str_or(h, "overall", "?");

	printf("cluster     %s (%s)\n", str_or(cl, "name", "?"), str_or(cl, "uuid", "?"));
	printf("health      %s%s%s", severity_color(c, overall), overall, color_off(c));
	for (size_t i = 0; i < json_len(codes); i++)
		printf(" %s", json_as_str(json_at(codes, i)));
	printf("%s\n", json_len(codes) ? "   (ashlar health explains)" : "");
	print_raft(j);
	printf("nodes       %" PRIu64 " of %" PRIu64 " up", json_u64(n, "up", 0),
	       json_u64(n, "active", 0));
	if (json_u64(n, "witnesses", 0))
		printf(", %" PRIu64 " of them vote%s only", json_u64(n, "witnesses", 0),
		       json_u64(n, "witnesses", 0) == 1 ? "s" : "");
	if (json_u64(n, "joining", 0))
		printf(", %" PRIu64 " joining", json_u64(n, "joining", 0));
	printf("\nvolumes     %" PRIu64 "\n", json_u64(j, "volumes", 0));
	printf("objects     %" PRIu64 ": %" PRIu64 " in-sync, %" PRIu64 " degraded, %" PRIu64
	       " single copy, %" PRIu64 " unavailable\n",
	       json_u64(o, "total", 0), json_u64(o, "in_sync", 0), json_u64(o, "degraded", 0),
	       json_u64(o, "single_copy", 0), json_u64(o, "unavailable", 0));
	print_unrepaired(o);
	if (json_u64(o, "undecided", 0))
		printf("            %" PRIu64 " of them serve%s nothing until an operator decides: "
		       "DATA_UNDECIDED in ashlar health\n",
		       json_u64(o, "undecided", 0), json_u64(o, "undecided", 0) == 1 ? "s" : "");
	print_capacity(json_get(j, "capacity"));
	print_source(j);
}

static int status_run(struct ctl *c, int argc, char **argv)
{
	struct json *j;
	int rc;

	rc = ctl_args(&status_verbs[0], argc, argv, NULL, 0, NULL, 0, 0);
	if (rc == CTL_OK)
		rc = ctl_call(c, "GET", "/v1/status", NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else if (!strcmp(str_or(j, "state", ""), "removed"))
		printf("removed: this node was removed from cluster %s\nto use it again: %s\n",
		       str_or(j, "cluster", "?"), str_or(j, "remedy", ""));
	else if (!strcmp(str_or(j, "state", ""), "unclaimed"))
		printf("unclaimed: this node belongs to no cluster yet\n%s\n",
		       str_or(j, "remedy", ""));
	else if (json_str(j, "remedy"))
		printf("%s: this node hears of no Raft leader and does not know yet what there is\n%s\n",
		       str_or(j, "state", "?"), json_str(j, "remedy"));
	else
		print_status(c, j);
	json_free(j);
	return CTL_OK;
}

/* ---- Health ------------------------------------------------------------------------------------
 */

static void since_text(uint64_t since_ms, char out[24])
{
	uint64_t now_ms = (uint64_t)time(NULL) * 1000;

	age_text(now_ms > since_ms ? (now_ms - since_ms) / 1000 : 0, out);
}

static void print_item(const struct ctl *c, const struct json *i)
{
	const struct json *a = json_get(i, "affected");
	const char *severity = str_or(i, "severity", "?");
	char since[24];

	since_text(json_u64(i, "since_ms", 0), since);
	printf("\n%s%s %s%s  (%" PRIu64 ", since %s)\n  %s", severity_color(c, severity), severity,
	       str_or(i, "code", "?"), color_off(c), json_u64(i, "count", 0), since,
	       str_or(i, "summary", ""));
	for (size_t k = 0; k < json_len(a); k++)
		printf("%s%s", k ? ", " : ": ", json_as_str(json_at(a, k)));
	if (json_len(a) && json_u64(i, "count", 0) > json_len(a))
		printf(", …");
	printf("\n");
	if (json_str(i, "caused_by"))
		printf("  consequence of %s\n", json_str(i, "caused_by"));
	printf("  risk: %s\n  do:   %s\n", str_or(i, "risk", "-"), str_or(i, "command", "-"));
}

/* One line for monitoring: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. */
static int print_nagios(const struct json *j)
{
	const struct json *items = json_get(j, "items"), *o = json_get(j, "objects");
	const char *overall = str_or(j, "overall", "?");
	int rc = !strcmp(overall, "error") ? 2 : !strcmp(overall, "warning") ? 1 : 0;
	static const char *const word[] = {"OK", "WARNING", "CRITICAL"};

	if (!strcmp(str_or(j, "state", "unclaimed"), "unclaimed")) {
		printf("STORAGE UNKNOWN - the node belongs to no cluster\n");
		return 3;
	}
	printf("STORAGE %s -", word[rc]);
	if (!json_len(items))
		printf(" all well");
	for (size_t i = 0; i < json_len(items); i++)
		printf(" %s(%" PRIu64 ")", str_or(json_at(items, i), "code", "?"),
		       json_u64(json_at(items, i), "count", 0));
	printf(" | objects=%" PRIu64 " degraded=%" PRIu64 " single_copy=%" PRIu64
	       " unavailable=%" PRIu64 "\n",
	       json_u64(o, "total", 0), json_u64(o, "degraded", 0), json_u64(o, "single_copy", 0),
	       json_u64(o, "unavailable", 0));
	return rc;
}

static int health_run(struct ctl *c, int argc, char **argv)
{
	bool nagios = false;
	const struct option_spec o[] = {{"--nagios", NULL, &nagios}};
	const struct json *items;
	struct json *j;
	int rc;

	rc = ctl_args(&status_verbs[1], argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc != CTL_OK)
		return rc;
	rc = ctl_call(c, "GET", "/v1/health", NULL, &j);
	if (rc != CTL_OK && nagios) {
		printf("STORAGE UNKNOWN - ashlard cannot be asked\n");
		return 3;
	}
	if (rc != CTL_OK)
		return rc;
	if (nagios) {
		rc = print_nagios(j);
	} else if (c->json) {
		print_json(j);
	} else {
		const char *overall = str_or(j, "overall", "?");

		items = json_get(j, "items");
		printf("%s%s%s\n", severity_color(c, overall), overall, color_off(c));
		for (size_t i = 0; i < json_len(items); i++)
			print_item(c, json_at(items, i));
		print_source(j);
	}
	json_free(j);
	return rc;
}

/* ---- Operations in flight, events --------------------------------------------------------------
 */

static void age_cell(struct table *t, const struct json *o)
{
	table_add(t, "%.1f", (double)json_u64(o, "age_us", 0) / 1000);
}

static int ops_run(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"AGE ms", NULL, true, age_cell},
		{"NODE", "node"},
		{"SHARD", "shard"},
		{"LAYER", "layer"},
		{"KIND", "kind"},
		{"VOLUME", "volume_name"},
		{"OBJECT", "object", true},
		{"OFFSET", "offset_bytes", true},
		{"LENGTH", "length_bytes", true},
		{"STAGE", "stage"},
		{"WAITS FOR", "waits_for"},
	};
	const struct list_view view = {"/v1/ops", "ops", columns, ARRAY_LEN(columns), false};
	int rc = ctl_args(&status_verbs[2], argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static void time_cell(struct table *t, const struct json *e)
{
	time_t when = (time_t)(json_u64(e, "time_ms", 0) / 1000);
	struct tm tm;
	char text[32] = "?";

	if (gmtime_r(&when, &tm))
		strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	table_add(t, "%s", text);
}

/* Newest last, as in a log. */
static int events_run(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"TIME", NULL, false, time_cell},
		{"SEVERITY", "severity"},
		{"CODE", "code"},
		{"WHO", "actor"},
		{"WHAT", "text"},
	};
	const struct list_view view = {"/v1/events", "events", columns, ARRAY_LEN(columns), true};
	int rc = ctl_args(&status_verbs[3], argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

const struct verb status_verbs[] = {
	{"status", NULL, "",
	 "The cluster on one screen, from any node, with a leader or without.\n\nExample: ashlar "
	 "status -o json",
	 status_run},
	{"health", NULL, "[--nagios]",
	 "What is wrong, why, since when, what one more failure would do, and what to type.\n\n"
	 "Roots come before their consequences. Exits with 0 whatever the health is; with --nagios "
	 "it prints one\n"
	 "line and exits with 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.\n\n"
	 "Example: ashlar health",
	 health_run},
	{"ops", NULL, "", "Operations in flight, and what each waits for.\n\nExample: ashlar ops",
	 ops_run},
	{"events", NULL, "", "What happened lately, oldest first.\n\nExample: ashlar events",
	 events_run},
	{NULL},
};
