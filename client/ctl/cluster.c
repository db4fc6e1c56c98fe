/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

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

const struct verb cluster_verbs[] = {
	{"cluster", "init", "[--name NAME]",
	 "Makes a cluster of this node.\n\n"
	 "Run once, as root, on the first node, whose ashlard is running and unclaimed. Makes the "
	 "cluster's\n"
	 "certificate authority (its key stays on the first voters), this node's certificate, and "
	 "a Raft of one.\n\n"
	 "Example: ashlar cluster init --name lab",
	 cluster_init},
	{NULL},
};
