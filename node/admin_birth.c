/* SPDX-License-Identifier: Apache-2.0 */
/* Requests by which nodes and people come to belong to the cluster: init, invite, the three legs of
 * a join, and certificates. Keys are made where they are used; only signing requests travel, except
 * that the CA key goes, inside TLS that both sides have verified, to the first three voters.
 *
 * join: prepare (new node, root) → request (a node of the cluster, anonymous but with the token's
 * secret) → finish (new node, root). The command line carries the answers from one to the next.
 * Must never sign for anybody without a secret that the replicated state holds as valid. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/ca.h"
#include "node/admin_impl.h"

#define INVITE_TTL_S       1800u
#define INVITE_TTL_MAX_S   86400u
#define CLIENT_CERT_DAYS   (5u * 365)
#define VOTERS_WITH_CA_KEY 3u

enum birth_stage { BIRTH_FILES, BIRTH_COMMAND, BIRTH_TOKEN, BIRTH_CLAIM, BIRTH_REPLY };

/* All of these are: blocking work, then commands or the start of the cluster parts, then the
 * answer. */
struct birth_op {
	struct wait wait;
	struct work work;
	struct areq *q;
	enum birth_stage stage, next;
	void (*reply)(struct birth_op *op); /* frees the request, and the op with it */
	const char *failed;                 /* "cluster init", … */
	struct control_propose propose;
	struct command cmd;
	bool has_command, claims, drops_token;
	/* in and out of the blocking part; heap strings are freed by op_free_strings */
	struct identity id;
	char name[NAME_MAX_LEN + 1], fingerprint[65], secret_sha[65], cn[128];
	char *text, *text2, *text3; /* csr or certificate; CA; CA key */
	struct birth_token token;
	struct map_node node;
	struct birth_join join;
	struct birth_peer peers[NODES_MAX];
};

static void op_free_strings(struct birth_op *op)
{
	free(op->text);
	free(op->text2);
	if (op->text3)
		explicit_bzero(op->text3, strlen(op->text3));
	free(op->text3);
	op->text = op->text2 = op->text3 = NULL;
}

static void birth_fail(struct birth_op *op, int rc)
{
	const struct command_result *r = &op->propose.result;
	bool refused = op->stage == BIRTH_COMMAND || op->stage == BIRTH_TOKEN;

	if (op->claims)
		op->q->admin->birth_busy = false;
	op_free_strings(op);
	if (refused && r->code == rc && r->text[0])
		admin_fail(op->q, rc, "%s: %s", op->failed, r->text);
	else if (rc == -ERR_CLAIMED)
		admin_fail(op->q, rc,
			   "%s: this node belongs to a cluster already; its identity is in "
			   "%s/identity.json",
			   op->failed, op->q->admin->cfg.config->state_dir);
	else if (op->stage == BIRTH_CLAIM)
		admin_fail(op->q, rc,
			   "%s: the identity is written, but the node could not start its part: "
			   "%s; restart "
			   "ashlard (its log says why)",
			   op->failed, err_text(rc));
	else
		admin_fail(op->q, rc, "%s: %s (the log of ashlard says more)", op->failed,
			   err_text(rc));
}

static int birth_propose(struct birth_op *op, const struct command *cmd)
{
	struct admin *a = op->q->admin;

	return a->ops->propose(a->cluster, &op->propose, cmd, PROPOSE_TIMEOUT_MS, &op->wait);
}

static int drop_token(struct birth_op *op)
{
	struct command cmd;

	admin_command(op->q, CMD_TOKEN_USE, &cmd);
	snprintf(cmd.token.sha256, sizeof(cmd.token.sha256), "%s", op->secret_sha);
	return birth_propose(op, &cmd);
}

static void birth_run(struct birth_op *op, int rc)
{
	struct admin *a = op->q->admin;

	while (rc != PENDING) {
		if (rc == 0 && (op->stage == BIRTH_COMMAND || op->stage == BIRTH_TOKEN))
			rc = op->propose.result.code;
		if (rc < 0) {
			birth_fail(op, rc);
			return;
		}
		op->stage = op->next;
		switch (op->stage) {
		case BIRTH_FILES: /* keys, signatures, files: on a worker */
			op->next = BIRTH_COMMAND;
			rc = worker_submit(a->cfg.workers, a->cfg.loop, &op->work, &op->wait);
			break;
		case BIRTH_COMMAND:
			op->next = op->drops_token ? BIRTH_TOKEN : BIRTH_CLAIM;
			rc = 0;
			if (op->has_command)
				rc = birth_propose(op, &op->cmd);
			else
				op->propose.result.code = 0;
			break;
		case BIRTH_TOKEN: /* the command found the node joined before and left the token
				     alone */
			op->next = BIRTH_CLAIM;
			rc = drop_token(op);
			break;
		case BIRTH_CLAIM:
			op->next = BIRTH_REPLY;
			rc = op->claims ? a->cfg.node_ops->claim(a->cfg.node, &op->wait) : 0;
			break;
		case BIRTH_REPLY:
			if (op->claims)
				a->birth_busy = false;
			op->reply(op);
			return;
		}
	}
}

static void birth_resume(struct wait *w, int rc)
{
	birth_run(container_of(w, struct birth_op, wait), rc);
}

static struct birth_op *birth_new(struct areq *q, const char *what, int (*blocking)(struct work *),
				  void (*reply)(struct birth_op *))
{
	struct birth_op *op = xcalloc(1, sizeof(*op));

	op->wait.resume = birth_resume;
	op->work.run = blocking;
	op->q = q;
	op->failed = what;
	op->reply = reply;
	op->stage = op->next = BIRTH_FILES;
	q->op = op;
	return op;
}

static void reply_json(struct birth_op *op, struct json *j)
{
	op_free_strings(op);
	admin_reply(op->q, 200, j);
}

/* Only an unclaimed node, and one birth at a time. */
static bool may_be_born(struct areq *q, const char *what)
{
	if (q->admin->cfg.identity->removed)
		admin_fail(q, -ERR_CLAIMED,
			   "%s: this node was removed from cluster %s; stop ashlard, empty %s and "
			   "start again",
			   what, q->admin->cfg.identity->cluster_name, q->admin->cfg.config->state_dir);
	else if (q->admin->ops || q->admin->cfg.identity->number)
		admin_fail(q, -ERR_CLAIMED,
			   "%s: this node is node %u of cluster %s already; to move it to another, "
			   "stop ashlard, empty %s and start again",
			   what, q->admin->cfg.identity->number, q->admin->cfg.identity->cluster_name,
			   q->admin->cfg.config->state_dir);
	else if (q->admin->birth_busy)
		admin_fail(q, -ERR_BUSY, "%s: another init or join is under way here", what);
	else
		return true;
	return false;
}

static bool name_ok(const char *s)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

	return s && *s && strlen(s) <= NAME_MAX_LEN && strspn(s, allowed) == strlen(s);
}

/* ---- cluster init ------------------------------------------------------------------------------
 */

static int init_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);

	return birth_init(op->q->admin->cfg.config, op->name, &op->id);
}

static void put_identity(struct json *j, const struct identity *id)
{
	char uuid[UUID_TEXT];

	uuid_format(&id->cluster, uuid);
	json_put_str(j, "cluster", id->cluster_name);
	json_put_str(j, "cluster_uuid", uuid);
	uuid_format(&id->node, uuid);
	json_put_str(j, "node", id->name);
	json_put_str(j, "node_uuid", uuid);
	json_put_u64(j, "number", id->number);
}

static void born_reply(struct birth_op *op)
{
	struct json *j = json_object_new();

	put_identity(j, &op->id);
	reply_json(op, j);
}

void admin_init(struct areq *q)
{
	const char *name = q->body ? json_str(q->body, "name") : NULL;
	struct birth_op *op;

	if (!may_be_born(q, "cluster init"))
		return;
	if (name && !name_ok(name)) {
		admin_fail(q, -ERR_INVALID,
			   "a cluster name has 1 to %u letters, digits, '.', '_' or '-'",
			   NAME_MAX_LEN);
		return;
	}
	op = birth_new(q, "cluster init", init_blocking, born_reply);
	snprintf(op->name, sizeof(op->name), "%s", name ? name : "ashlar");
	op->claims = true;
	q->admin->birth_busy = true;
	birth_run(op, 0);
}

/* ---- node invite -------------------------------------------------------------------------------
 */

static int fingerprint_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);
	struct birth_paths p;

	birth_paths(op->q->admin->cfg.config->state_dir, &p);
	return ca_fingerprint(p.ca, op->token.ca_sha256);
}

static void invite_reply(struct birth_op *op)
{
	struct json *j = json_object_new();
	char *token = birth_token_encode(&op->token);

	json_put_str(j, "token", token);
	json_put_str(j, "admin", op->token.admin);
	json_put_u64(j, "expires_ms", op->token.expires_ms);
	free(token);
	explicit_bzero(&op->token, sizeof(op->token));
	reply_json(op, j);
}

/* This node's admin address, else that of any node that can be reached. */
static const char *invite_address(const struct admin *a)
{
	const struct map *m = admin_map(a);

	if (a->cfg.config->admin_advertise)
		return a->cfg.config->admin_advertise;
	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state == NODE_ACTIVE && n->admin[0] && facts_node_up(a, n->id))
			return n->admin;
	}
	return NULL;
}

void admin_invite(struct areq *q)
{
	uint64_t ttl_s = q->body ? json_u64(q->body, "ttl_s", INVITE_TTL_S) : INVITE_TTL_S;
	const char *address = invite_address(q->admin);
	struct birth_op *op;

	if (!address) {
		admin_fail(q, -ERR_INVALID,
			   "no node has an admin TLS port to join through: set admin_listen in the "
			   "configuration of this node and restart it");
		return;
	}
	if (ttl_s < 1 || ttl_s > INVITE_TTL_MAX_S) {
		admin_fail(q, -ERR_INVALID, "ttl_s must be 1 to %u", INVITE_TTL_MAX_S);
		return;
	}
	op = birth_new(q, "node invite", fingerprint_blocking, invite_reply);
	snprintf(op->token.admin, sizeof(op->token.admin), "%s", address);
	op->token.cluster = q->admin->cfg.identity->cluster;
	op->token.expires_ms = wall_ms() + ttl_s * 1000;
	birth_secret_make(op->token.secret);
	admin_command(q, CMD_TOKEN_ADD, &op->cmd);
	ca_sha256_hex(op->token.secret, strlen(op->token.secret), op->cmd.token.sha256);
	op->cmd.token.expires_ms = op->token.expires_ms;
	op->has_command = true;
	birth_run(op, 0);
}

/* ---- node join: prepare (new node) -------------------------------------------------------------
 */

static int prepare_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);

	return birth_join_prepare(op->q->admin->cfg.config, op->id.witness, &op->id.node, &op->text);
}

static void prepare_reply(struct birth_op *op)
{
	const struct config *c = op->q->admin->cfg.config;
	struct json *answer = json_object_new(), *j = json_object_new();
	struct map_node n;
	char uuid[UUID_TEXT];

	/* Whom to ask, and the body to ask with. */
	json_put_str(answer, "admin", op->token.admin);
	json_put_str(answer, "ca_sha256", op->token.ca_sha256);
	birth_node_record(c, &op->id, &n);
	uuid_format(&n.uuid, uuid);
	json_put_str(j, "secret", op->token.secret);
	json_put_str(j, "csr", op->text);
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "name", n.name);
	json_put_str(j, "fault_set", n.fault_set);
	json_put_str(j, "address", n.address);
	json_put_str(j, "admin", n.admin);
	json_put_u64(j, "shards", n.shards);
	json_put_u64(j, "roles", n.roles);
	json_put_u64(j, "version_major", n.version_major);
	json_put_u64(j, "version_minor", n.version_minor);
	json_put(answer, "request", j);
	explicit_bzero(&op->token, sizeof(op->token));
	reply_json(op, answer);
}

void admin_join_prepare(struct areq *q)
{
	const char *text = q->body ? json_str(q->body, "token") : NULL;
	struct birth_token token;
	struct birth_op *op;
	int rc;

	if (!may_be_born(q, "node join"))
		return;
	rc = text ? birth_token_decode(text, wall_ms(), &token) : -EINVAL;
	if (rc == -ETIMEDOUT) {
		admin_fail(q, -ERR_AUTH,
			   "the invitation ran out (or this host's clock is wrong): make a new one "
			   "with "
			   "`ashlar node invite`");
		return;
	}
	if (rc < 0) {
		admin_fail(q, -ERR_INVALID,
			   "not an invitation token: copy the whole line that `ashlar node invite` "
			   "printed");
		return;
	}
	op = birth_new(q, "node join", prepare_blocking, prepare_reply);
	op->token = token;
	op->id.witness = json_bool(q->body, "witness", false);
	birth_run(op, 0);
}

/* ---- node join: request (a node of the cluster) ------------------------------------------------
 */

static int sign_node_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);
	const char *dir = op->q->admin->cfg.config->state_dir;
	const char *csr = json_str(op->q->body, "csr");
	struct birth_paths p;
	size_t len;
	int rc;

	birth_paths(dir, &p);
	rc = birth_sign_node(dir, csr, &op->node.uuid, op->node.address, &op->text);
	if (rc == 0)
		rc = birth_file_read(p.ca, &op->text2, &len);
	if (rc == 0 && op->join.ca_key)
		rc = birth_file_read(p.ca_key, &op->text3, &len);
	return rc;
}

static struct json *peers_to_json(const struct admin *a, const struct map *m)
{
	struct json *list = json_array_new();

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);
		struct json *j;
		char uuid[UUID_TEXT];

		if (n->state != NODE_ACTIVE)
			continue;
		j = json_object_new();
		uuid_format(&n->uuid, uuid);
		json_put_u64(j, "number", n->id);
		json_put_str(j, "uuid", uuid);
		json_put_str(j, "address", n->address);
		json_put_str(j, "admin", n->admin);
		json_add(list, j);
	}
	return list;
}

static void request_reply(struct birth_op *op)
{
	struct admin *a = op->q->admin;
	const struct map *m = admin_map(a);
	struct json *j = json_object_new();
	char uuid[UUID_TEXT];

	uuid_format(&m->cluster, uuid);
	json_put_str(j, "cluster_uuid", uuid);
	json_put_str(j, "cluster", state_cluster_name(a->ops->state(a->cluster)));
	json_put_u64(j, "recovery", a->cfg.identity->recovery);
	json_put_u64(j, "recovery_id", a->cfg.identity->recovery_id);
	json_put_u64(j, "number", op->propose.result.id ? op->propose.result.id : op->node.id);
	json_put_str(j, "certificate", op->text);
	json_put_str(j, "ca", op->text2);
	if (op->text3)
		json_put_str(j, "ca_key", op->text3);
	json_put(j, "peers", peers_to_json(a, m));
	log_info("admin", "node invited in", "name=\"%s\" address=%s", op->node.name,
		 op->node.address);
	reply_json(op, j);
}

/* The joining node's record as it describes itself; checked again by the state machine. */
static bool take_node(const struct json *j, struct map_node *n)
{
	const char *uuid = json_str(j, "uuid");

	return uuid && uuid_parse(uuid, &n->uuid) == 0 && !uuid_is_nil(&n->uuid) &&
	       json_str(j, "csr") && json_take_str(j, "name", n->name, sizeof(n->name)) &&
	       name_ok(n->name) && json_take_str(j, "fault_set", n->fault_set, sizeof(n->fault_set)) &&
	       name_ok(n->fault_set) && json_take_str(j, "address", n->address, sizeof(n->address)) &&
	       n->address[0] &&
	       strspn(n->address, "0123456789abcdefABCDEF.:[]%") == strlen(n->address) &&
	       json_take_str(j, "admin", n->admin, sizeof(n->admin));
}

void admin_join_request(struct areq *q)
{
	struct admin *a = q->admin;
	const char *secret = q->body ? json_str(q->body, "secret") : NULL;
	const struct map_node *known;
	struct consensus_status st = {0};
	struct map_node n = {.state = NODE_JOINING};
	struct birth_op *op;
	char sha[65];

	if (!secret || !birth_secret_valid(secret) || !take_node(q->body, &n)) {
		admin_fail(
			q, -ERR_INVALID,
			"not a join request of this version: run `ashlar node join TOKEN` with the "
			"token unaltered");
		return;
	}
	ca_sha256_hex(secret, strlen(secret), sha);
	if (!state_token_valid(a->ops->state(a->cluster), sha, wall_ms())) {
		admin_fail(q, -ERR_AUTH,
			   "the invitation is unknown, was used or ran out: make a new one with "
			   "`ashlar "
			   "node invite`");
		return;
	}
	if (!birth_has_ca_key(a->cfg.config->state_dir)) {
		admin_forward_to_ca(q);
		return;
	}
	n.roles = (uint8_t)json_u64(q->body, "roles", 0);
	n.shards = (uint16_t)json_u64(q->body, "shards", 1);
	n.version_major = (uint8_t)json_u64(q->body, "version_major", 0);
	n.version_minor = (uint8_t)json_u64(q->body, "version_minor", 0);
	op = birth_new(q, "node join", sign_node_blocking, request_reply);
	op->node = n;
	memcpy(op->secret_sha, sha, sizeof(sha));
	a->ops->status(a->cluster, &st);
	op->join.ca_key = (n.roles & ROLE_VOTER) && st.voters < VOTERS_WITH_CA_KEY ? "" : NULL;
	known = map_node_by_uuid(admin_map(a), &n.uuid);
	op->drops_token = known != NULL;
	op->node.id = known ? known->id : 0;
	admin_command(q, CMD_NODE_ADD, &op->cmd);
	snprintf(op->cmd.actor, sizeof(op->cmd.actor), "an invitation");
	op->cmd.node_add.node = op->node;
	memcpy(op->cmd.node_add.token_sha256, sha, sizeof(sha));
	op->has_command = true;
	birth_run(op, 0);
}

/* ---- node join: finish (new node) --------------------------------------------------------------
 */

static int finish_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);

	return birth_join_finish(op->q->admin->cfg.config, &op->join, &op->id);
}

void admin_join_finish(struct areq *q)
{
	const char *uuid = q->body ? json_str(q->body, "cluster_uuid") : NULL;
	struct birth_join j = {0};
	struct birth_op *op;
	uint64_t number = q->body ? json_u64(q->body, "number", 0) : 0;

	if (!may_be_born(q, "node join"))
		return;
	if (uuid && uuid_parse(uuid, &j.cluster) == 0) {
		j.cluster_name = json_str(q->body, "cluster");
		j.certificate = json_str(q->body, "certificate");
		j.ca = json_str(q->body, "ca");
		j.ca_key = json_str(q->body, "ca_key");
	}
	if (!j.cluster_name || !name_ok(j.cluster_name) || !j.certificate || !j.ca || number == 0 ||
	    number > UINT16_MAX) {
		admin_fail(q, -ERR_INVALID, "node join: the answer of the cluster is incomplete");
		return;
	}
	op = birth_new(q, "node join", finish_blocking, born_reply);
	op->join = j;
	op->join.number = (uint16_t)number;
	op->join.recovery = (uint16_t)json_u64(q->body, "recovery", 0);
	op->join.recovery_id = (uint32_t)json_u64(q->body, "recovery_id", 0);
	op->join.peer_count = birth_peers_take(json_get(q->body, "peers"), op->peers, NODES_MAX);
	op->join.peers = op->peers;
	op->claims = true;
	q->admin->birth_busy = true;
	birth_run(op, 0);
}

/* ---- Certificates ------------------------------------------------------------------------------
 */

void admin_get_ca(struct areq *q)
{
	struct birth_paths p;
	char *text;
	size_t len;
	int rc;

	/* A kilobyte that is always in the page cache: not worth a worker. */
	birth_paths(q->admin->cfg.config->state_dir, &p);
	rc = birth_file_read(p.ca, &text, &len);
	if (rc < 0) {
		admin_fail(q, rc, "the CA certificate cannot be read: %s", err_text(rc));
		return;
	}
	admin_reply_text(q, 200, "application/x-pem-file", text);
	free(text);
}

static int sign_blocking(struct work *w)
{
	struct birth_op *op = container_of(w, struct birth_op, work);
	struct birth_paths p;
	size_t len;
	int rc;

	birth_paths(op->q->admin->cfg.config->state_dir, &p);
	rc = ca_sign(p.ca, p.ca_key, json_str(op->q->body, "csr"), op->cn, NULL, CLIENT_CERT_DAYS,
		     &op->text);
	return rc ? rc : birth_file_read(p.ca, &op->text2, &len);
}

static void sign_reply(struct birth_op *op)
{
	struct json *j = json_object_new();

	json_put_str(j, "cn", op->cn);
	json_put_str(j, "certificate", op->text);
	json_put_str(j, "ca", op->text2);
	json_put_u64(j, "days", CLIENT_CERT_DAYS);
	log_info("admin", "certificate signed", "cn=\"%s\" for=\"%s\"", op->cn, op->q->actor);
	reply_json(op, j);
}

void admin_sign(struct areq *q)
{
	const char *cn = q->body ? json_str(q->body, "cn") : NULL,
		   *name = cn ? strchr(cn, ':') : NULL;
	struct birth_op *op;

	if (!name || !name_ok(name + 1) ||
	    (strncmp(cn, "client:", 7) && strncmp(cn, "operator:", 9)) ||
	    !json_str(q->body, "csr")) {
		admin_fail(q, -ERR_INVALID,
			   "cn must be client:NAME or operator:NAME, and csr a signing request for "
			   "it");
		return;
	}
	if (!birth_has_ca_key(q->admin->cfg.config->state_dir)) {
		admin_forward_to_ca(q);
		return;
	}
	op = birth_new(q, "certificate", sign_blocking, sign_reply);
	snprintf(op->cn, sizeof(op->cn), "%s", cn);
	birth_run(op, 0);
}
