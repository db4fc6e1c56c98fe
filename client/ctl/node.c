/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes. A join is carried by this program between the new node's daemon, which keeps its key, and
 * the cluster, which signs: neither daemon needs an HTTP client. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "net/ca.h"

static const struct verb *verb(const char *name)
{
	for (const struct verb *v = node_verbs; v->noun; v++)
		if (!strcmp(v->verb, name))
			return v;
	return NULL;
}

static int node_invite(struct ctl *c, int argc, char **argv)
{
	const char *ttl = NULL;
	const struct option_spec o[] = {{"--ttl", &ttl, NULL}};
	struct json *body = NULL, *j;
	uint64_t seconds;
	int rc;

	rc = ctl_args(verb("invite"), argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc != CTL_OK)
		return rc;
	if (ttl && (!ctl_duration_s(ttl, &seconds) || seconds < 1))
		return ctl_usage("--ttl takes a time, e.g. 30m or 2h");
	body = json_object_new();
	if (ttl)
		json_put_u64(body, "ttl_s", seconds);
	rc = ctl_call(c, "POST", "/v1/node/invite", body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		puts(str_or(j, "token", "?"));
	json_free(j);
	return CTL_OK;
}

/* ---- join --------------------------------------------------------------------------------------
 */

/* The CA certificate of the cluster, in a file, known to be the one the token names. */
static int fetch_verified_ca(struct ctl *c, const char *address, const char *sha256, char path[64])
{
	CLEANUP(free_ptr) char *pem = NULL;
	char have[65] = "";
	int fd, rc;
	bool written;

	rc = ctl_fetch_ca(c, address, &pem);
	if (rc != CTL_OK)
		return rc;
	snprintf(path, 64, "/tmp/ashlar-ca.XXXXXX");
	fd = mkstemp(path);
	written = fd >= 0 && write(fd, pem, strlen(pem)) == (ssize_t)strlen(pem);
	if (fd >= 0)
		close(fd);
	if (written && ca_fingerprint(path, have) == 0 && !strcmp(have, sha256))
		return CTL_OK;
	if (fd >= 0)
		unlink(path);
	if (!written)
		return ctl_error(c, CTL_REFUSED, "EIO", "cannot write a temporary file in /tmp");
	return ctl_error(c, CTL_REFUSED, "AUTH",
			 "%s shows a CA that is not the one of the invitation: it is another "
			 "cluster, or somebody is in between; nothing was sent",
			 address);
}

static int join_over(struct ctl *c, const struct json *prepared, struct json **answer)
{
	const char *address = json_str(prepared, "admin"),
		   *sha256 = json_str(prepared, "ca_sha256");
	const struct json *request = json_get(prepared, "request");
	char ca[64];
	int rc;

	if (!address || !sha256 || !request)
		return ctl_error(c, CTL_REFUSED, "PROTOCOL",
				 "ashlard answered without a request: other version?");
	rc = fetch_verified_ca(c, address, sha256, ca);
	if (rc != CTL_OK)
		return rc;
	rc = ctl_call_joining(c, address, ca, "POST", "/v1/node/join-request", json_dup(request),
			      answer);
	unlink(ca);
	return rc;
}

static int read_token(const char *word, char *line, size_t cap)
{
	if (strcmp(word, "-")) {
		snprintf(line, cap, "%s", word);
		return strlen(word) < cap ? CTL_OK : ctl_usage("the token is too long");
	}
	if (!fgets(line, (int)cap, stdin))
		return ctl_usage("no token on standard input");
	line[strcspn(line, "\r\n")] = '\0';
	return CTL_OK;
}

static int node_join(struct ctl *c, int argc, char **argv)
{
	bool witness = false;
	const struct option_spec o[] = {{"--witness", NULL, &witness}};
	const char *word;
	struct json *body, *prepared, *answer, *j;
	char token[4096];
	int rc;

	rc = ctl_args(verb("join"), argc, argv, o, ARRAY_LEN(o), &word, 1, 1);
	if (rc == CTL_OK)
		rc = read_token(word, token, sizeof(token));
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	json_put_str(body, "token", token);
	if (witness)
		json_put_bool(body, "witness", true);
	rc = ctl_call(c, "POST", "/v1/node/join-prepare", body, &prepared);
	if (rc != CTL_OK)
		return rc;
	rc = join_over(c, prepared, &answer);
	json_free(prepared);
	if (rc != CTL_OK)
		return rc;
	rc = ctl_call(c, "POST", "/v1/node/join-finish", answer, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("joined cluster %s as node %" PRIu64 ", %s\n%s\n", str_or(j, "cluster", "?"),
		       json_u64(j, "number", 0), str_or(j, "node", "?"),
		       witness ? "it votes and holds no data" : "next: ashlar diskgroup add …");
	json_free(j);
	return CTL_OK;
}

/* ---- list, show --------------------------------------------------------------------------------
 */

static void roles_text(const struct json *n, char out[8])
{
	const struct json *roles = json_get(n, "roles");
	size_t k = 0;

	for (size_t i = 0; i < json_len(roles) && k < 6; i++)
		out[k++] = json_as_str(json_at(roles, i)) ? json_as_str(json_at(roles, i))[0] : '?';
	out[k] = '\0';
}

static const char *facts_text(const struct json *n, char out[32])
{
	char age[24];

	if (!strcmp(str_or(n, "facts", "none"), "live"))
		return "live";
	if (!json_has(n, "facts_age_ms") || !strcmp(str_or(n, "facts", "none"), "none"))
		return "none";
	snprintf(out, 32, "%s old", age_text(json_u64(n, "facts_age_ms", 0) / 1000, age));
	return out;
}

static void state_cell(struct table *t, const struct json *n)
{
	table_add(t, "%s%s%s", str_or(n, "state", "?"), json_bool(n, "witness", false) ? ", witness" : "",
		  json_has(n, "maintenance") ? ", maintenance" : "");
}

static void up_cell(struct table *t, const struct json *n)
{
	table_add(t, "%s", json_bool(n, "up", false) ? "yes" : "NO");
}

static void raft_cell(struct table *t, const struct json *n)
{
	table_add(t, "%s", json_bool(n, "voter", false) ? "voter" : "-");
}

static void roles_cell(struct table *t, const struct json *n)
{
	char roles[8];

	roles_text(n, roles);
	table_add(t, "%s", roles);
}

static void facts_cell(struct table *t, const struct json *n)
{
	char facts[32];

	table_add(t, "%s", facts_text(n, facts));
}

static int node_list(struct ctl *c, int argc, char **argv)
{
	static const struct column columns[] = {
		{"#", "number", true},
		{"NAME", "name"},
		{"STATE", NULL, false, state_cell},
		{"UP", NULL, false, up_cell},
		{"RAFT", NULL, false, raft_cell},
		{"ROLES", NULL, false, roles_cell},
		{"FAULT SET", "fault_set"},
		{"ADDRESS", "address"},
		{"GROUPS", "diskgroups", true},
		{"VERSION", "version"},
		{"FACTS", NULL, false, facts_cell},
	};
	const struct list_view view = {"/v1/nodes", "nodes", columns, ARRAY_LEN(columns), false};
	int rc = ctl_args(verb("list"), argc, argv, NULL, 0, NULL, 0, 0);

	return rc == CTL_OK ? ctl_list(c, &view) : rc;
}

static void print_maintenance(const struct json *m)
{
	uint64_t now_ms = (uint64_t)time(NULL) * 1000, until = json_u64(m, "until_ms", 0);
	char text[24];

	if (!json_bool(m, "over", false))
		printf("maintenance for %s more: %s\n",
		       age_text((MAX(until, now_ms) - now_ms) / 1000, text),
		       str_or(m, "reason", ""));
	else
		printf("maintenance RAN OUT %s ago and was not ended: %s\n",
		       age_text((MAX(until, now_ms) - until) / 1000, text), str_or(m, "reason", ""));
}

static void print_node(const struct json *n)
{
	char text[24], roles[8], facts[32];

	roles_text(n, roles);
	printf("node        %s (number %" PRIu64 ", %s)\n", str_or(n, "name", "?"),
	       json_u64(n, "number", 0), str_or(n, "uuid", "?"));
	printf("state       %s, %s%s\n", str_or(n, "state", "?"),
	       json_bool(n, "up", false) ? "up" : "NOT REACHABLE",
	       json_bool(n, "voter", false) ? json_bool(n, "witness", false) ? ", votes and holds no data"
									     : ", voter"
					    : "");
	printf("roles       %s   fault set %s   shards %" PRIu64 "   incarnation %" PRIu64 "\n",
	       roles, str_or(n, "fault_set", "-"), json_u64(n, "shards", 0),
	       json_u64(n, "incarnation", 0));
	printf("addresses   peers %s   admin %s\n", str_or(n, "address", "-"),
	       str_or(n, "admin", "none"));
	if (json_has(n, "maintenance"))
		print_maintenance(json_get(n, "maintenance"));
	printf("version     %s\n", str_or(n, "version", "?"));
	if (json_has(n, "up_s"))
		printf("process     up %s, resident ", age_text(json_u64(n, "up_s", 0), text));
	if (json_has(n, "up_s"))
		printf("%s\n", bytes_text(json_u64(n, "resident_bytes", 0), text));
	printf("disk groups %" PRIu64 "\n", json_u64(n, "diskgroups", 0));
	printf("facts       %s\n", facts_text(n, facts));
}

static int node_show(struct ctl *c, int argc, char **argv)
{
	const char *name;
	int rc;

	rc = ctl_args(verb("show"), argc, argv, NULL, 0, &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	CLEANUP(free_ptr) char *segment = ctl_escape(name);
	CLEANUP(free_ptr) char *path = xasprintf("/v1/nodes/%s", segment);

	return ctl_show(c, path, print_node);
}

static int node_evacuate(struct ctl *c, int argc, char **argv)
{
	const char *name;
	bool wait = false, yes = false;
	const struct option_spec o[] = {{"--wait", NULL, &wait}, {"--yes", NULL, &yes}};
	struct json *body;
	int rc;

	rc = ctl_args(verb("evacuate"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	body = json_object_new();
	json_put_str(body, "kind", "evacuate");
	json_put_str(body, "node", name);
	if (yes)
		json_put_bool(body, "yes", true);
	return ctl_start_job(c, body, wait);
}

/* ---- Removal -----------------------------------------------------------------------------------
 */

static int print_dry(struct ctl *c, struct json *j)
{
	bool ok = json_bool(j, "ok", false);
	const char *error = str_or(j, "error", "REFUSED");
	char a[24], b[24];

	if (c->json) {
		print_json(j);
	} else {
		printf("%s: %s\n  %" PRIu64 " object%s a replica there\n", ok ? "yes" : "NO",
		       str_or(j, "why", "?"), json_u64(j, "objects", 0),
		       json_u64(j, "objects", 0) == 1 ? " has" : "s have");
		if (json_u64(j, "objects_lost", 0))
			printf("  %" PRIu64 " of them %s no in-sync replica anywhere else\n",
			       json_u64(j, "objects_lost", 0),
			       json_u64(j, "objects_lost", 0) == 1 ? "has" : "have");
		if (json_bool(j, "bytes_known", false))
			printf("  %s to copy, %s free afterwards\n",
			       bytes_text(json_u64(j, "copy_bytes", 0), a),
			       bytes_text(json_u64(j, "free_after_bytes", 0), b));
	}
	return ok ? CTL_OK : ctl_exit_of(error, 0);
}

/* The daemon that we ask ends with its node: nobody would tell us how the job went. */
static int not_itself(struct ctl *c, const char *path)
{
	struct json *j;
	bool itself;
	int rc = ctl_call(c, "GET", path, NULL, &j);

	if (rc != CTL_OK)
		return rc;
	itself = json_u64(json_get(j, "source"), "node_number", 0) == json_u64(j, "number", 1);
	json_free(j);
	return itself ? ctl_usage("node remove: --wait cannot ask the node that is removed; run it "
				  "against another one, or without --wait")
		      : CTL_OK;
}

/* On a terminal the name is typed again; elsewhere --yes says that somebody thought about it. */
static int confirm_dead(const char *name, bool loss)
{
	char line[128];

	fprintf(stderr, "Node %s will never be let in again%s. Type its name to go on: ", name,
		loss ? ", and data that only it has is given up" : "");
	if (!fgets(line, sizeof(line), stdin))
		return ctl_usage("node remove: not confirmed; --yes confirms without asking");
	line[strcspn(line, "\r\n")] = '\0';
	return strcmp(line, name) ? ctl_usage("node remove: not confirmed") : CTL_OK;
}

static int print_removed(struct ctl *c, int rc, struct json *j)
{
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		printf("node %s was removed; %" PRIu64 " object%s given up with it\n",
		       str_or(j, "node", "?"), json_u64(j, "objects_lost", 0),
		       json_u64(j, "objects_lost", 0) == 1 ? " was" : "s were");
	json_free(j);
	return CTL_OK;
}

static int node_remove(struct ctl *c, int argc, char **argv)
{
	const char *name;
	bool wait = false, dry = false, dead = false, loss = false, yes = false;
	const struct option_spec o[] = {{"--wait", NULL, &wait},
					{"--dry-run", NULL, &dry},
					{"--dead", NULL, &dead},
					{"--accept-loss", NULL, &loss},
					{"--yes", NULL, &yes}};
	struct json *body, *j;
	int rc;

	rc = ctl_args(verb("remove"), argc, argv, o, ARRAY_LEN(o), &name, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (loss && !dead)
		return ctl_usage("node remove: --accept-loss goes with --dead");
	if (dead && !yes && !dry) {
		rc = confirm_dead(name, loss);
		if (rc != CTL_OK)
			return rc;
	}
	CLEANUP(free_ptr) char *segment = ctl_escape(name);
	CLEANUP(free_ptr) char *node = xasprintf("/v1/nodes/%s", segment);
	CLEANUP(free_ptr) char *path = xasprintf("%s/remove", node);

	if (wait && !dead) {
		rc = not_itself(c, node);
		if (rc != CTL_OK)
			return rc;
	}
	body = json_object_new();
	if (!dry && !dead)
		return ctl_job(c, path, body, wait);
	json_put_bool(body, "dry_run", dry);
	json_put_bool(body, "dead", dead);
	json_put_bool(body, "accept_loss", loss);
	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK || !dry)
		return print_removed(c, rc, j);
	rc = print_dry(c, j);
	json_free(j);
	return rc;
}

/* ---- Maintenance ------------------------------------------------------------------------------- */

static void print_maintained(const struct json *j, const char *op)
{
	uint64_t left = json_u64(j, "primaries_left", 0);
	uint64_t until_s = json_u64(j, "until_ms", 0) / 1000, now_s = (uint64_t)time(NULL);
	char text[24];

	if (!json_bool(j, "in_maintenance", false)) {
		printf("node %s is not in maintenance any more; primaries return by and by\n",
		       str_or(j, "node", "?"));
		return;
	}
	printf("node %s is in maintenance for %s", str_or(j, "node", "?"),
	       age_text(until_s > now_s ? until_s - now_s : 0, text));
	if (strcmp(op, "start")) {
		printf("\n");
		return;
	}
	if (left)
		printf("; %" PRIu64 " of its primaries have no other in-sync replica to move to\n", left);
	else
		printf("; its primaries are elsewhere (%" PRIu64 " ms)\n", json_u64(j, "took_ms", 0));
	if (json_str(j, "can_stop"))
		printf("to stop it: %s\n", json_str(j, "can_stop"));
}

static int node_maintenance(struct ctl *c, int argc, char **argv)
{
	const char *ttl = NULL, *reason = NULL, *words[2];
	bool yes = false;
	const struct option_spec o[] = {
		{"--ttl", &ttl, NULL}, {"--reason", &reason, NULL}, {"--yes", NULL, &yes}};
	struct json *body, *j;
	uint64_t seconds;
	int rc;

	rc = ctl_args(verb("maintenance"), argc, argv, o, ARRAY_LEN(o), words, 2, 2);
	if (rc != CTL_OK)
		return rc;
	if (strcmp(words[0], "start") && strcmp(words[0], "extend") && strcmp(words[0], "end"))
		return ctl_usage("node maintenance: start, extend or end, not \"%s\"", words[0]);
	if (ttl && (!ctl_duration_s(ttl, &seconds) || seconds < 1))
		return ctl_usage("--ttl takes a time, e.g. 30m or 2h");
	body = json_object_new();
	json_put_str(body, "op", words[0]);
	if (ttl)
		json_put_u64(body, "ttl_s", seconds);
	if (reason)
		json_put_str(body, "reason", reason);
	if (yes)
		json_put_bool(body, "yes", true);
	CLEANUP(free_ptr) char *segment = ctl_escape(words[1]);
	CLEANUP(free_ptr) char *path = xasprintf("/v1/nodes/%s/maintenance", segment);

	rc = ctl_call(c, "POST", path, body, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	else
		print_maintained(j, words[0]);
	json_free(j);
	return CTL_OK;
}

const struct verb node_verbs[] = {
	{"node", "list", "", "Lists the nodes of the cluster.\n\nExample: ashlar node list",
	 node_list},
	{"node", "show", "NAME", "Shows one node.\n\nExample: ashlar node show n2 -o json",
	 node_show},
	{"node", "invite", "[--ttl TIME]",
	 "Prints a one-time token with which a new node can join (default: good for 30 "
	 "minutes).\n\n"
	 "The token holds a secret: hand it on as you would a password, best through a pipe.\n\n"
	 "Example: ashlar node invite | ssh n2 ashlar node join -",
	 node_invite},
	{"node", "join", "TOKEN|- [--witness]",
	 "Makes this node a member of the cluster that made the token (-: read it from standard "
	 "input).\n\n"
	 "Run as root on the new node, whose ashlard is running and unclaimed. Its private key "
	 "never leaves it.\n"
	 "A join that was interrupted can be repeated with a new token.\n"
	 "--witness: it only votes, so that two storage nodes go on when either is lost; a small host\n"
	 "will do.\n\n"
	 "Example: ashlar node join eyJ2IjoxLC…",
	 node_join},
	{"node", "evacuate", "NAME [--wait] [--yes]",
	 "Moves all replicas off a node's disk groups, as a job; redundancy never falls meanwhile.\n\n"
	 "The node stays empty until it is removed or the job is cancelled.\n\n"
	 "Refused (exit code 5) where the others have no place for what is on it; --yes: it begins all\n"
	 "the same, and waits until there is one.\n\n"
	 "Example: ashlar node evacuate n3 --wait",
	 node_evacuate},
	{"node", "remove", "NAME [--wait] [--dry-run] [--dead [--accept-loss] [--yes]]",
	 "Takes a node out of the cluster for good, as a job that moves its data first.\n\n"
	 "Then its vote goes, then it leaves; redundancy never falls meanwhile. Until it has left the job\n"
	 "can be cancelled, and the node takes replicas again. It waits for volumes that are attached\n"
	 "through the node. Exits with 5 and does nothing if the others have no space or fault sets for\n"
	 "its data. The daemon of a removed node ends; to use the host again empty its state directory and\n"
	 "let it join as a new node.\n\n"
	 "--dead: at once and without it, when it cannot be reached and will not come back; refused with 5\n"
	 "if something on it has no other in-sync replica, unless --accept-loss says that it may be lost.\n"
	 "Should it come back, nobody lets it in.\n\n"
	 "Example: ashlar node remove n3 --wait",
	 node_remove},
	{"node", "maintenance", "start|extend|end NODE [--ttl TIME] [--reason TEXT] [--yes]",
	 "Takes a node out of service for a known time (default 1 h), and back.\n\n"
	 "start asks can-stop first and refuses with its exit code (--yes goes on regardless), then moves\n"
	 "all primaries to other nodes and returns. Until the time is over no copies are made elsewhere\n"
	 "for those on the node. When it runs out before end, health says so.\n\n"
	 "Example: ashlar node maintenance start n2 --ttl 2h --reason \"new fan\"",
	 node_maintenance},
	{NULL},
};
