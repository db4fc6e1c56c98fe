/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

#define OBJECTS_SHOWN 256u /* of larger volumes only those that something is wrong with */

static const struct verb *verb(const char *name)
{
	for (const struct verb *v = volume_verbs; v->noun; v++)
		if (!strcmp(v->verb, name))
			return v;
	return NULL;
}

static char *volume_path(const char *name, const char *more)
{
	CLEANUP(free_ptr) char *segment = ctl_escape(name);

	return xasprintf("/v1/volumes/%s%s", segment, more);
}

static int print_done(struct ctl *c, int rc, struct json *j)
{
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("volume %s %s\n", str_or(j, "name", "?"), str_or(j, "done", "done"));
	json_free(j);
	return CTL_OK;
}

/* "on" (or the name of the one method there is), "off", or nothing given. */
static int put_switch(struct json *body, const char *key, const char *method, const char *text)
{
	bool on = text && (!strcmp(text, "on") || (method && !strcmp(text, method)));

	if (!text)
		return CTL_OK;
	if (!on && strcmp(text, "off"))
		return ctl_usage("--%s takes on or off%s%s", key, method ? ", or " : "",
				 method ? method : "");
	json_put_bool(body, key, on);
	return CTL_OK;
}

static int put_number(struct json *body, const char *key, const char *option, const char *text)
{
	uint64_t v;

	if (!text)
		return CTL_OK;
	if (!ctl_number(text, 255, &v))
		return ctl_usage("%s takes a number", option);
	json_put_u64(body, key, v);
	return CTL_OK;
}

static int put_size(struct json *body, const char *text)
{
	uint64_t size;

	if (!ctl_size(text, &size) || size == 0)
		return ctl_usage(
			"\"%s\" is not a size; write e.g. 512M, 10G or 1.5T (powers of 1024)",
			text);
	if (size % 4096)
		return ctl_usage("%s is not a multiple of 4096 bytes", text);
	json_put_u64(body, "size_bytes", size);
	return CTL_OK;
}

static int volume_create(struct ctl *c, int argc, char **argv)
{
	const char *name, *size = NULL, *copies = NULL, *min = NULL, *compression = NULL,
			  *dedup = NULL;
	const struct option_spec o[] = {{"--size", &size, NULL},
					{"--copies", &copies, NULL},
					{"--min-in-sync", &min, NULL},
					{"--compression", &compression, NULL},
					{"--dedup", &dedup, NULL}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("create"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (!size)
		return ctl_usage("volume create: --size is needed, e.g. --size 10G");
	body = json_object_new();
	json_put_str(body, "name", name);
	rc = put_size(body, size);
	if (rc == CTL_OK)
		rc = put_number(body, "copies", "--copies", copies);
	if (rc == CTL_OK)
		rc = put_number(body, "min_in_sync", "--min-in-sync", min);
	if (rc == CTL_OK)
		rc = put_switch(body, "compression", "lz4", compression);
	if (rc == CTL_OK)
		rc = put_switch(body, "dedup", NULL, dedup);
	if (rc != CTL_OK) {
		json_free(body);
		return rc;
	}
	rc = ctl_call(c, "POST", "/v1/volumes", body, &j);
	return print_done(c, rc, j);
}

static int volume_set(struct ctl *c, int argc, char **argv)
{
	const char *name, *min = NULL, *compression = NULL, *dedup = NULL, *existing = NULL;
	const struct option_spec o[] = {{"--min-in-sync", &min, NULL},
					{"--compression", &compression, NULL},
					{"--dedup", &dedup, NULL},
					{"--existing", &existing, NULL}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("set"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (existing && strcmp(existing, "reduce") && strcmp(existing, "leave"))
		return ctl_usage("--existing takes reduce or leave");
	if (!min && !compression && !dedup && (!existing || strcmp(existing, "reduce")))
		return ctl_usage("volume set: nothing to change");
	body = json_object_new();
	rc = put_number(body, "min_in_sync", "--min-in-sync", min);
	if (rc == CTL_OK)
		rc = put_switch(body, "compression", "lz4", compression);
	if (rc == CTL_OK)
		rc = put_switch(body, "dedup", NULL, dedup);
	if (rc != CTL_OK) {
		json_free(body);
		return rc;
	}
	if (existing)
		json_put_str(body, "existing", existing);
	CLEANUP(free_ptr) char *path = volume_path(name, "");

	rc = ctl_call(c, "PATCH", path, body, &j);
	return print_done(c, rc, j);
}

static int volume_resize(struct ctl *c, int argc, char **argv)
{
	const char *words[2];
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("resize"), argc, argv, NULL, 0, words, 2, 2);
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	rc = put_size(body, words[1]);
	if (rc != CTL_OK) {
		json_free(body);
		return rc;
	}
	CLEANUP(free_ptr) char *path = volume_path(words[0], "/resize");

	rc = ctl_call(c, "POST", path, body, &j);
	return print_done(c, rc, j);
}

/* On a terminal the name is typed again; elsewhere --yes says that somebody thought about it. */
static int confirm(const char *name, bool yes)
{
	char line[128];

	if (yes)
		return CTL_OK;
	fprintf(stderr, "All data of volume %s will be lost. Type its name to go on: ", name);
	if (!fgets(line, sizeof(line), stdin))
		return ctl_usage("volume delete: not confirmed; --yes confirms without asking");
	line[strcspn(line, "\r\n")] = '\0';
	return strcmp(line, name) ? ctl_usage("volume delete: not confirmed") : CTL_OK;
}

static int volume_delete(struct ctl *c, int argc, char **argv)
{
	const char *name;
	bool yes = false;
	const struct option_spec o[] = {{"--yes", NULL, &yes}};
	struct json *j;
	int rc;

	rc = ctl_args(verb("delete"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	CLEANUP(free_ptr) char *path = volume_path(name, "");

	if (!yes) { /* nobody is asked about a volume that is not there */
		rc = ctl_call(c, "GET", path, NULL, &j);
		if (rc == CTL_OK)
			json_free(j);
	}
	if (rc == CTL_OK)
		rc = confirm(name, yes);
	if (rc != CTL_OK)
		return rc;
	rc = ctl_call(c, "DELETE", path, NULL, &j);
	return print_done(c, rc, j);
}

/* "-", the holder, or how many share it; a lease that ran out is said. */
static void attached_cell(struct table *t, const struct json *v)
{
	const struct json *a = json_get(v, "attachments");
	unsigned expired = 0;
	char more[48] = "";

	for (size_t i = 0; i < json_len(a); i++)
		expired += json_bool(json_at(a, i), "expired", false);
	if (json_len(a) > 1)
		snprintf(more, sizeof(more), " and %zu more", json_len(a) - 1);
	if (!json_len(a))
		table_add(t, "-");
	else
		table_add(t, "%s%s, %s%s", str_or(json_at(a, 0), "holder", "?"), more,
			  str_or(json_at(a, 0), "mode", "?"), expired ? ", NOT RENEWED" : "");
}

static void print_attachments(const struct json *a)
{
	if (!json_len(a))
		printf("attached    no\n");
	for (size_t i = 0; i < json_len(a); i++) {
		const struct json *x = json_at(a, i);
		char ago[24], ttl[24];

		printf("attached    %s by %s; renewed %s ago, for %s%s\n", str_or(x, "mode", "?"),
		       str_or(x, "holder", "?"), age_text(json_u64(x, "renewed_ago_ms", 0) / 1000, ago),
		       age_text(json_u64(x, "ttl_ms", 0) / 1000, ttl),
		       json_bool(x, "expired", false) ? ": RAN OUT, whoever writes takes it" : "");
	}
}

static int volume_detach(struct ctl *c, int argc, char **argv)
{
	const char *name, *holder = NULL;
	bool fence = false;
	const struct option_spec o[] = {{"--fence", NULL, &fence}, {"--holder", &holder, NULL}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("detach"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	json_put_bool(body, "fence", fence);
	if (holder)
		json_put_str(body, "holder", holder);
	CLEANUP(free_ptr) char *path = volume_path(name, "/detach");

	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (!c->json && json_str(j, "note"))
		fprintf(stderr, "%s\n", json_str(j, "note"));
	rc = json_bool(j, "complete", true) ? CTL_OK : CTL_TIMEOUT;
	(void)print_done(c, CTL_OK, j);
	return rc;
}

static void size_cell(struct table *t, const struct json *v)
{
	add_bytes(t, json_i64(v, "size_bytes", 0));
}

static void stored_cell(struct table *t, const struct json *v)
{
	add_bytes(t, json_i64(json_get(v, "space"), "stored_bytes", 0));
}

static void objects_cell(struct table *t, const struct json *v)
{
	table_add(t, "%" PRIu64, json_u64(json_get(v, "object_counts"), "total", 0));
}

static int volume_list(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"NAME", "name"},
		{"SIZE", NULL, true, size_cell},
		{"STORED", NULL, true, stored_cell},
		{"COPIES", "copies", true},
		{"OBJECTS", NULL, true, objects_cell},
		{"HEALTH", "health"},
		{"COMPRESSION", "compression"},
		{"DEDUP", "dedup"},
		{"ATTACHED BY", NULL, false, attached_cell},
	};
	const struct list_view view = {"/v1/volumes", "volumes", columns, ARRAY_LEN(columns), false};
	int rc = ctl_args(verb("list"), argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static void replicas_cell(struct table *t, const struct json *o)
{
	const struct json *r = json_get(o, "replicas");
	char text[512] = "";
	size_t n = 0;

	for (size_t k = 0; k < json_len(r) && n < sizeof(text) - 128; k++) {
		const struct json *x = json_at(r, k);
		uint64_t left = json_u64(x, "pages_to_copy", 0);

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%sgroup %" PRIu64 " on %s %s",
				      k ? ", " : "", json_u64(x, "group", 0), str_or(x, "node", "?"),
				      str_or(x, "state", "?"));
		if (left)
			n += (size_t)snprintf(text + n, sizeof(text) - n, " (%" PRIu64 " pages left)",
					      left);
		else if (strcmp(str_or(x, "state", "?"), "in-sync") && json_str(x, "detail"))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " (%.60s)",
					      json_str(x, "detail"));
		if (!json_bool(x, "reachable", false))
			n += (size_t)snprintf(text + n, sizeof(text) - n, " UNREACHABLE");
	}
	table_add(t, "%s", text);
}

static bool object_is_well(const struct json *o)
{
	const struct json *r = json_get(o, "replicas");
	bool well = !strcmp(str_or(o, "state", "?"), "serving");

	for (size_t k = 0; k < json_len(r); k++)
		well &= !strcmp(str_or(json_at(r, k), "state", "?"), "in-sync") &&
			json_bool(json_at(r, k), "reachable", false);
	return well;
}

/* Of a volume of thousands of objects people want to see those that something is wrong with. */
static void print_objects(const struct json *v, bool all)
{
	static const struct column columns[] = {
		{"OBJECT", "index", true}, {"EPOCH", "epoch", true},
		{"PRIMARY", "primary"},	   {"STATE", "state"},
		{"REPLICAS", NULL, false, replicas_cell},
	};
	const struct json *objects = json_get(v, "objects");
	struct json *rows = json_array_new();

	all |= json_len(objects) <= OBJECTS_SHOWN;
	for (size_t i = 0; i < json_len(objects); i++)
		if (all || !object_is_well(json_at(objects, i)))
			json_add(rows, json_dup(json_at(objects, i)));
	print_rows(rows, columns, ARRAY_LEN(columns), false);
	if (!all)
		printf("%zu of %zu objects are served with all replicas in sync and in reach, and not listed "
		       "(--all lists them)\n",
		       json_len(objects) - json_len(rows), json_len(objects));
	json_free(rows);
}

static void print_space(const struct json *v)
{
	const struct json *k = json_get(v, "space");
	char a[24];

	if (!k)
		return;
	print_reduction(k, json_u64(k, "stored_bytes", 0));
	if (json_u64(k, "to_reduce_bytes", 0))
		printf("reducing    at most %s of existing data still to be looked at\n",
		       bytes_text(json_u64(k, "to_reduce_bytes", 0), a));
	printf("frees       %s%s raw if deleted\n", json_bool(k, "frees_exact", true) ? "" : "at least ",
	       bytes_text(json_u64(k, "frees_if_deleted_bytes", 0), a));
	print_groups_known(k, "            ");
}

static void print_ledger_rows(const struct json *v)
{
	static const struct column columns[] = {
		{"GROUP", "group", true},	  {"NODE", "node"},
		{"LOGICAL", NULL, true, logical_cell},  {"ZEROES", NULL, true, zero_cell},
		{"DUPLICATES", NULL, true, dedup_cell}, {"COMPRESSED", NULL, true, compression_cell},
		{"STORED", NULL, true, row_stored_cell},
	};

	print_rows(json_get(json_get(v, "space"), "by_group"), columns, ARRAY_LEN(columns), false);
}

static void print_volume(const struct json *v)
{
	const struct json *a = json_get(v, "attachments"), *n = json_get(v, "object_counts");
	char text[24];

	printf("volume      %s (%s)\n", str_or(v, "name", "?"), str_or(v, "uuid", "?"));
	printf("size        %s (%" PRIu64 " bytes), thin\n",
	       bytes_text(json_u64(v, "size_bytes", 0), text), json_u64(v, "size_bytes", 0));
	printf("policy      %" PRIu64 " copies, at least %" PRIu64
	       " in-sync; compression %s, dedup %s\n",
	       json_u64(v, "copies", 0), json_u64(v, "min_in_sync", 1),
	       json_bool(v, "compression", false) ? "on" : "off",
	       json_bool(v, "dedup", false) ? "on" : "off");
	printf("health      %s: of %" PRIu64 " objects %" PRIu64 " in-sync, %" PRIu64
	       " degraded, %" PRIu64 " with a single copy, %" PRIu64 " unavailable\n",
	       str_or(v, "health", "?"), json_u64(n, "total", 0), json_u64(n, "in_sync", 0),
	       json_u64(n, "degraded", 0), json_u64(n, "single_copy", 0),
	       json_u64(n, "unavailable", 0));
	if (json_u64(n, "undecided", 0))
		printf("            %" PRIu64 " of them serve%s nothing until an operator decides: "
		       "ashlar volume force %s\n",
		       json_u64(n, "undecided", 0), json_u64(n, "undecided", 0) == 1 ? "s" : "",
		       str_or(v, "name", "?"));
	print_unrepaired(n);
	if (json_str(v, "rebuild"))
		printf("            %s\n", json_str(v, "rebuild"));
	printf("layout      objects of %s, stripe over %" PRIu64 "\n",
	       bytes_text(json_u64(v, "object_size_bytes", 0), text),
	       json_u64(v, "stripe_count", 1));
	print_space(v);
	print_attachments(a);
}

/* The objects come in pages. They end up in *j as if it were one answer. */
static int more_objects(struct ctl *c, const char *path, struct json *j)
{
	struct json *all = json_array_new(), *page;
	uint64_t next = json_u64(j, "objects_next", 0);
	int rc = CTL_OK;

	for (size_t i = 0; i < json_len(json_get(j, "objects")); i++)
		json_add(all, json_dup(json_at(json_get(j, "objects"), i)));
	while (next && rc == CTL_OK) {
		CLEANUP(free_ptr) char *more = xasprintf("%s?from=%" PRIu64, path, next);

		rc = ctl_call(c, "GET", more, NULL, &page);
		if (rc != CTL_OK)
			break;
		for (size_t i = 0; i < json_len(json_get(page, "objects")); i++)
			json_add(all, json_dup(json_at(json_get(page, "objects"), i)));
		next = json_u64(page, "objects_next", 0);
		json_free(page);
	}
	json_put(j, "objects", all);
	json_drop(j, "objects_next");
	return rc;
}

static int volume_show(struct ctl *c, int argc, char **argv)
{
	const char *name;
	bool brief = false, all = false;
	const struct option_spec o[] = {{"--brief", NULL, &brief}, {"--all", NULL, &all}};
	struct json *j;
	int rc;

	rc = ctl_args(verb("show"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	CLEANUP(free_ptr) char *path = volume_path(name, brief ? "?count=0" : "");

	rc = ctl_call(c, "GET", path, NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (json_has(j, "objects_next"))
		rc = more_objects(c, path, j);
	if (rc != CTL_OK) {
		json_free(j);
		return rc;
	}
	if (c->json) {
		print_json(j);
	} else {
		print_volume(j);
		if (!brief) {
			print_ledger_rows(j);
			print_objects(j, all);
		}
		print_source(j);
	}
	json_free(j);
	return CTL_OK;
}

const struct verb volume_verbs[] = {
	{"volume", "create",
	 "NAME --size SIZE [--copies N] [--min-in-sync N] [--compression lz4|off] [--dedup on|off]",
	 "Makes a thin-provisioned volume (default: 2 copies, 1 in a cluster of one node; no data "
	 "reduction).\n\n"
	 "Copies go to different fault sets. Sizes are powers of 1024. Writes stop while fewer "
	 "than --min-in-sync\n"
	 "copies can be written (default 1).\n\n"
	 "Example: ashlar volume create vm1 --size 100G --copies 2 --compression lz4",
	 volume_create},
	{"volume", "list", "", "Lists the volumes.\n\nExample: ashlar volume list", volume_list},
	{"volume", "show", "NAME [--brief] [--all]",
	 "Shows a volume: policy, health, attachment, and where each object's replicas are.\n\n"
	 "Of a volume of more than 256 objects those are listed that something is wrong with; --all "
	 "lists\nall of them, --brief none.\n\n"
	 "Example: ashlar volume show vm1",
	 volume_show},
	{"volume", "resize", "NAME SIZE",
	 "Gives a volume a new size; a mounted guest sees it through NBD.\n\nExample: ashlar "
	 "volume resize vm1 200G",
	 volume_resize},
	{"volume", "set",
	 "NAME [--min-in-sync N] [--compression lz4|off] [--dedup on|off] [--existing reduce|leave]",
	 "Changes a volume's policy; it holds for what is written from then on.\n\n"
	 "With --existing reduce the data that is there is compressed and deduplicated too, in the "
	 "background;\n"
	 "`ashlar volume show` says how much is left. What is stored in reduced form stays so when the "
	 "policy is\n"
	 "switched off.\n\n"
	 "Example: ashlar volume set vm1 --compression lz4 --dedup on --existing reduce",
	 volume_set},
	{"volume", "detach", "NAME [--fence] [--holder HOLDER]",
	 "Takes a volume's attachments away from their gateways.\n\n"
	 "Without --fence only those that their gateway did not renew in time: it is gone, and the volume is "
	 "free for\n"
	 "others. With --fence at once and whatever the gateway does: its later writes are refused, and "
	 "what runs there sees\n"
	 "I/O errors. Returns when every primary has applied it; exit 8 names one that has not yet. --holder "
	 "takes only that\n"
	 "one's, as `ashlar volume show` prints it.\n\n"
	 "Example: ashlar volume detach vm1 --fence",
	 volume_detach},
	{"volume", "delete", "NAME [--yes]",
	 "Deletes a volume and its data. An attached volume is refused.\n\nExample: ashlar volume "
	 "delete vm1 --yes",
	 volume_delete},
	{NULL},
};
