/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <string.h>

#include "client/ctl/ctl.h"

static int cluster_init(struct ctl *c, int argc, char **argv)
{
	const char *name = NULL;
	const struct option_spec o[] = {{"--name", &name, NULL}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(&cluster_verbs[0], argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	if (name)
		json_put_str(body, "name", name);
	rc = ctl_call(c, "POST", "/v1/cluster/init", body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("cluster %s (%s) made; this is node %" PRIu64 ", %s\n"
		       "next: ashlar diskgroup add …, and ashlar node invite for more nodes\n",
		       str_or(j, "cluster", "?"), str_or(j, "cluster_uuid", "?"),
		       json_u64(j, "number", 0), str_or(j, "node", "?"));
	json_free(j);
	return CTL_OK;
}

static int cluster_settings(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"SETTING", "key"},
		{"VALUE", "value"},
		{"DEFAULT", "default"},
		{"WHAT", "what"},
	};
	const struct list_view view = {"/v1/settings", "settings", columns, ARRAY_LEN(columns), false};
	int rc = ctl_args(&cluster_verbs[1], argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static int cluster_set(struct ctl *c, int argc, char **argv)
{
	const char *words[2];
	struct json *body, *j;
	int rc;

	rc = ctl_args(&cluster_verbs[2], argc, argv, NULL, 0, words, 2, 2);
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	json_put_str(body, "value", strcmp(words[1], "default") ? words[1] : NULL);
	CLEANUP(free_ptr) char *segment = ctl_escape(words[0]);
	CLEANUP(free_ptr) char *path = xasprintf("/v1/settings/%s", segment);

	rc = ctl_call(c, "PUT", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("%s = %s\n", str_or(j, "key", "?"), str_or(j, "value", "default"));
	json_free(j);
	return CTL_OK;
}

/* It is done offline, by ashlard; here is only how, and whether there is anything to do. */
static int cluster_recover(struct ctl *c, int argc, char **argv)
{
	const struct json *raft, *voters;
	struct json *j;
	int rc = ctl_args(&cluster_verbs[3], argc, argv, NULL, 0, NULL, 0, 0);

	if (rc == CTL_OK)
		rc = ctl_call(c, "GET", "/v1/status", NULL, &j);
	if (rc != CTL_OK)
		return rc;
	raft = json_get(j, "raft");
	voters = json_get(raft, "voters");
	rc = json_str(raft, "leader") ? CTL_OK : CTL_UNREACHABLE;
	if (c->json) {
		print_json(j);
	} else if (rc == CTL_OK) {
		printf("node %s leads the cluster: there is nothing to recover\n", json_str(raft, "leader"));
	} else {
		printf("no leader is known here; the voters are");
		for (size_t i = 0; i < json_len(voters); i++)
			printf("%s %s", i ? "," : "", json_as_str(json_at(voters, i)));
		printf("\nIf a majority of them can be started, do that: nothing is lost then.\n"
		       "If it is gone for good, on every surviving node, as root, with ashlard stopped:\n"
		       "    ashlard recover [--config FILE]    # changes nothing; says what the node knows, "
		       "and what to do next\n");
	}
	json_free(j);
	return rc;
}

const struct verb cluster_verbs[] = {
	{"cluster", "init", "[--name NAME]",
	 "Makes a cluster of this node.\n\n"
	 "Run once, as root, on the first node, whose ashlard is running and unclaimed. Makes the "
	 "cluster's\n"
	 "certificate authority (its key stays on the first voters), this node's certificate, and "
	 "a Raft of one.\n\n"
	 "Example: ashlar cluster init --name lab",
	 cluster_init},
	{"cluster", "settings", "",
	 "Lists the cluster's settings.\n\nExample: ashlar cluster settings", cluster_settings},
	{"cluster", "set", "SETTING VALUE|default",
	 "Changes a setting of the whole cluster.\n\n"
	 "Example: ashlar cluster set attach_ttl_ms 60000",
	 cluster_set},
	{"cluster", "recover", "",
	 "Says whether the cluster lost its Raft majority, and how to go on without it.\n\n"
	 "The recovery itself is made offline, by `ashlard recover`, on the surviving node that knows most. "
	 "Exits with 0\n"
	 "when there is a leader and nothing to recover, else with 6.\n\n"
	 "Example: ashlar cluster recover",
	 cluster_recover},
	{NULL},
};
