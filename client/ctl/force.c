/* SPDX-License-Identifier: Apache-2.0 */
/* Force, and the quarantine of what it went past. Without --accept-loss nothing is done: what there is, how
 * old it is and what may be lost is shown, and the exit code says that something is to be decided. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl.h"

static char *volume_path(const char *name, const char *more)
{
	CLEANUP(free_ptr) char *segment = ctl_escape(name);

	return xasprintf("/v1/volumes/%s%s", segment, more);
}

static int put_number(struct json *body, const char *key, const char *text, uint64_t max)
{
	uint64_t v;

	if (!text)
		return CTL_OK;
	if (!ctl_number(text, max, &v))
		return ctl_usage("--%s takes a number", key);
	json_put_u64(body, key, v);
	return CTL_OK;
}

/* What of the volume is meant: NULL: all of it. *body is the caller's when it is CTL_OK. */
static int scope_body(const char *object, const char *group, struct json **body)
{
	int rc;

	*body = json_object_new();
	rc = put_number(*body, "object", object, UINT32_MAX);
	if (rc == CTL_OK)
		rc = put_number(*body, "group", group, UINT16_MAX);
	if (rc != CTL_OK)
		json_free(*body);
	return rc;
}

static void print_replica(const struct json *r)
{
	bool known = json_get(r, "last_seq") != NULL;

	printf("    group %" PRIu64 " on %-12s %-12s", json_u64(r, "group", 0), str_or(r, "node", "?"),
	       str_or(r, "state", "?"));
	if (known)
		printf(" ends at write %" PRIu64 " of tenure %" PRIu64 ", known committed %" PRIu64,
		       json_u64(r, "last_seq", 0), json_u64(r, "last_tenure", 0),
		       json_u64(r, "commit_seq", 0));
	else
		printf(" how old is not known now");
	printf("%s%s\n", json_str(r, "detail") ? "; " : "", str_or(r, "detail", ""));
}

static void print_object(const struct json *o)
{
	const struct json *r = json_get(o, "replicas");

	printf("object %" PRIu64 ": %s\n", json_u64(o, "index", 0),
	       json_bool(o, "available", false) ? "is served now" : str_or(o, "why", "?"));
	for (size_t i = 0; i < json_len(r); i++)
		print_replica(json_at(r, i));
	if (json_u64(o, "group", 0))
		printf("    can go on from group %" PRIu64 " on %s, and may lose: %s\n",
		       json_u64(o, "group", 0), str_or(o, "node", "?"), str_or(o, "may_lose", "?"));
	else
		printf("    no replica that it could go on from can be reached\n");
}

static void print_refused(const struct json *j)
{
	const struct json *list = json_get(j, "refused");

	for (size_t i = 0; i < json_len(list); i++)
		fprintf(stderr, "object %" PRIu64 " refused: %s\n", json_u64(json_at(list, i), "index", 0),
			str_or(json_at(list, i), "why", "?"));
}

static void print_force(const char *name, const struct json *j)
{
	const struct json *list = json_get(j, "objects");
	uint64_t affected = json_u64(j, "affected", 0);

	for (size_t i = 0; i < json_len(list); i++)
		print_object(json_at(list, i));
	if (affected > json_len(list))
		printf("… and %" PRIu64 " more\n", affected - json_len(list));
	if (!affected)
		printf("volume %s: every object is served, or will be by itself; there is nothing to force\n",
		       name);
	else if (!json_bool(j, "accept_loss", false))
		printf("nothing was done. To go on from these replicas, and lose what they lack:\n"
		       "    ashlar volume force %s … --accept-loss\n"
		       "the others are then kept in quarantine: ashlar quarantine list\n",
		       name);
	else
		printf("volume %s: %" PRIu64 " of %" PRIu64
		       " objects go on; the replicas they went past are in quarantine\n",
		       name, json_u64(j, "done", 0), affected);
}

static int volume_force(struct ctl *c, int argc, char **argv)
{
	const char *name, *object = NULL, *group = NULL;
	bool accept = false;
	const struct option_spec o[] = {
		{"--object", &object, NULL}, {"--group", &group, NULL}, {"--accept-loss", NULL, &accept}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(&force_verbs[0], argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc == CTL_OK)
		rc = scope_body(object, group, &body);
	if (rc != CTL_OK)
		return rc;
	json_put_bool(body, "accept_loss", accept);
	CLEANUP(free_ptr) char *path = volume_path(name, "/force");

	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		print_force(name, j);
	if (!c->json)
		print_refused(j);
	if (!json_u64(j, "affected", 0))
		rc = CTL_OK;
	else if (!accept)
		rc = CTL_REDUNDANCY;
	else
		rc = json_len(json_get(j, "refused")) ? CTL_REFUSED : CTL_OK;
	json_free(j);
	return rc;
}

static void reach_cell(struct table *t, const struct json *row)
{
	table_add(t, "%s", json_bool(row, "reachable", false) ? "up" : "not in reach");
}

static int quarantine_list(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"VOLUME", "volume"},	{"GROUP", "group", true},	   {"NODE", "node"},
		{"NODE IS", NULL, false, reach_cell}, {"REPLICAS", "replicas", true},
	};
	const struct list_view view = {"/v1/quarantine", "quarantine", columns, ARRAY_LEN(columns), false};
	int rc = ctl_args(&force_verbs[1], argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static int confirm(const char *name, bool yes)
{
	char line[128];

	if (yes)
		return CTL_OK;
	fprintf(stderr, "What volume %s has in quarantine will be lost. Type its name to go on: ", name);
	if (!fgets(line, sizeof(line), stdin))
		return ctl_usage("quarantine discard: not confirmed; --yes confirms without asking");
	line[strcspn(line, "\r\n")] = '\0';
	return strcmp(line, name) ? ctl_usage("quarantine discard: not confirmed") : CTL_OK;
}

static int quarantine_discard(struct ctl *c, int argc, char **argv)
{
	const char *name, *object = NULL, *group = NULL;
	bool yes = false;
	const struct option_spec o[] = {
		{"--object", &object, NULL}, {"--group", &group, NULL}, {"--yes", NULL, &yes}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(&force_verbs[2], argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc == CTL_OK)
		rc = confirm(name, yes);
	if (rc == CTL_OK)
		rc = scope_body(object, group, &body);
	if (rc != CTL_OK)
		return rc;
	CLEANUP(free_ptr) char *path = volume_path(name, "/discard");

	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("volume %s: %" PRIu64 " of %" PRIu64 " replicas in quarantine were discarded\n", name,
		       json_u64(j, "done", 0), json_u64(j, "affected", 0));
	if (!c->json)
		print_refused(j);
	rc = json_len(json_get(j, "refused")) ? CTL_REFUSED : CTL_OK;
	json_free(j);
	return rc;
}

const struct verb force_verbs[] = {
	{"volume", "force", "NAME [--object N] [--group G] [--accept-loss]",
	 "Lets objects that no in-sync replica can serve go on from the best replica there is.\n\n"
	 "Without --accept-loss it only shows, for each such object, why, which replicas there are, how old "
	 "they are and\n"
	 "what may be lost, and exits with 5; with 0 when there is nothing to force. A replica that may come "
	 "back loses\n"
	 "nothing: bring its node or disks back if you can. With --accept-loss the object goes on from that "
	 "replica alone,\n"
	 "and acknowledged writes that it lacks are missing from then on. All its other replicas are kept as "
	 "they are, in\n"
	 "quarantine. --group names the disk group to go on from. That is also how to go back to what is in "
	 "quarantine\n"
	 "there, even while another replica serves.\n\n"
	 "Refused while the primary's process may still be serving unheard: start its node, or, when it is "
	 "gone for good,\n"
	 "`ashlar node remove NODE --dead --accept-loss`.\n\n"
	 "Example: ashlar volume force vm1; ashlar volume force vm1 --accept-loss",
	 volume_force},
	{"quarantine", "list", "",
	 "Lists replicas that nobody touches: a force went past them, or they have writes that their source "
	 "lost.\n\nExample: ashlar quarantine list",
	 quarantine_list},
	{"quarantine", "discard", "NAME [--object N] [--group G] [--yes]",
	 "Gives up what a volume has in quarantine, for good; its place is free for new copies.\n\n"
	 "Refused for an object that has no in-sync replica in reach. To go back to what is in quarantine "
	 "instead:\n"
	 "ashlar volume force NAME --group G --accept-loss\n\n"
	 "Example: ashlar quarantine discard vm1",
	 quarantine_discard},
	{NULL},
};
