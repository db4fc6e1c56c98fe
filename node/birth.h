/* SPDX-License-Identifier: Apache-2.0 */
/* How a node gets its identity, and the files that hold it, all in state_dir, all written to a
 * temporary name, fsynced and renamed:
 *
 *   identity.json  cluster, uuid, number, name and incarnation of this node, and a checksum of them
 *   peers.json     addresses to dial before the map is known (a hint: the map is the truth)
 *   ca.pem         the cluster's certificate authority       node.pem, node.key  this node's certificate
 *   ca.key         0600, on voters only
 *   join.json      the uuid a join began with, and whether as a witness; gone once the node is claimed
 *
 * A daemon without identity.json is unclaimed. identity.json is written last: whatever stops a birth
 * half-way, it can be run again. Blocking; set-up or worker threads. */
#pragma once

#include "cluster/map.h"
#include "node/config.h"

struct json;

struct identity {
	struct uuid cluster, node;
	uint16_t number;
	uint32_t incarnation; /* raised durably at each start, before anything is sent or written */
	bool witness; /* it joined to vote only, whatever roles its configuration names */
	bool removed; /* the cluster has told it so: it never starts its part again */
	/* How often the cluster was recovered from a lost Raft majority, as this node's state has it; and, if
	 * that is more, as others have told it: then its part does not start (ashlard recover --follow). */
	uint16_t recovery, behind;
	uint32_t recovery_id; /* of the last one; two that were made beside each other must not meet */
	uint64_t recovery_term, recovery_index; /* where its log ended: 0: not known here */
	bool raft_begun; /* its Raft log was made: from then on it may never be empty */
	bool recovering; /* `ashlard recover` is under way: this node must not start */
	bool bootstrap; /* node 1: began as a Raft of one; proposes CMD_CLUSTER_INIT to an empty state */
	char cluster_name[NAME_MAX_LEN + 1], name[NAME_MAX_LEN + 1];
};

/* 0; -ERR_UNCLAIMED: no identity yet; -ERR_CORRUPT / -ERR_VERSION with a log line naming the file. */
int identity_load(const char *state_dir, struct identity *out) MUST_USE;
/* 0; -ERR_CORRUPT with a log line: the Raft log of a node that had one is not there. */
int birth_raft_there(const char *state_dir, const struct identity *id) MUST_USE;
int identity_save(const char *state_dir, const struct identity *id) MUST_USE;
/* incarnation = max(incarnation + 1, at_least), durable before it returns. */
int identity_raise(const char *state_dir, struct identity *id, uint32_t at_least) MUST_USE;

struct birth_paths {
	char ca[256], ca_key[256], cert[256], key[256], raft[256], devices[256];
};
void birth_paths(const char *state_dir, struct birth_paths *out);
/* A note of a clean stop, for the next start: left (best effort), and taken away; false: there was none. */
void birth_stop_leave(const char *state_dir);
bool birth_stop_taken(const char *state_dir);
bool birth_has_ca_key(const char *state_dir);
#define BIRTH_NODE_DNS "node.ashlar" /* a SAN of node certificates only: what TLS clients verify */

/* `cluster init`: CA, this node's key and certificate, identity number 1. -ERR_CLAIMED. */
int birth_init(const struct config *c, const char *cluster_name, struct identity *out) MUST_USE;

/* The node's record for CMD_CLUSTER_INIT and CMD_NODE_ADD (id and incarnation from the identity). */
void birth_node_record(const struct config *c, const struct identity *id, struct map_node *out);

/* Invitations: base64url of JSON. The secret travels only in the token; the cluster keeps its hash. */
struct birth_token {
	struct uuid cluster;
	char admin[64];		/* "host:port" of the inviting node's admin TLS port */
	char ca_sha256[65];	/* of the CA certificate */
	char secret[65];	/* 32 random bytes, hex */
	uint64_t expires_ms;	/* wall clock */
};
char *birth_token_encode(const struct birth_token *t); /* malloc'ed */
/* -EINVAL: not a token; -ETIMEDOUT: expired at now_ms (0: not checked). */
int birth_token_decode(const char *text, uint64_t now_ms, struct birth_token *out) MUST_USE;
void birth_secret_make(char out[65]);
bool birth_secret_valid(const char *secret); /* 64 lower-case hex digits */

/* `node join`, first half, on the new node: key and signing request. A re-run uses the same uuid.
 * csr is malloc'ed. -ERR_CLAIMED. */
int birth_join_prepare(const struct config *c, bool witness, struct uuid *node, char **csr) MUST_USE;
/* The roles it has: those of its configuration, or a witness's. */
static inline uint8_t birth_roles(const struct config *c, const struct identity *id)
{
	return id->witness ? ROLE_VOTER : c->roles;
}
/* Signing, on a node that has the CA key. cert is malloc'ed PEM. */
int birth_sign_node(const char *state_dir, const char *csr, const struct uuid *node,
		    const char *address, char **cert) MUST_USE;

struct birth_peer {
	uint16_t number;
	struct uuid uuid;
	char address[64], admin[64];
};
struct birth_join {
	struct uuid cluster;
	uint16_t number;
	const char *cluster_name, *certificate, *ca, *ca_key; /* PEM; ca_key NULL: not a CA holder */
	const struct birth_peer *peers;
	unsigned peer_count;
	uint16_t recovery; /* of the cluster */
	uint32_t recovery_id;
};
/* Second half: files, then identity.json. */
int birth_join_finish(const struct config *c, const struct birth_join *j, struct identity *out) MUST_USE;

/* peers.json. load: number of peers (0 when there is no file), at most max. */
int birth_peers_save(const char *state_dir, const struct birth_peer *peers, unsigned count) MUST_USE;
/* Those of a JSON list (of peers.json, of what a join is answered) that are whole; others are passed over. */
unsigned birth_peers_take(const struct json *list, struct birth_peer *out, unsigned max);
int birth_peers_load(const char *state_dir, struct birth_peer *out, unsigned max);

/* Small durable files: written to path.tmp, fsynced, renamed, directory fsynced. */
int birth_file_write(const char *path, const void *data, size_t len, unsigned mode) MUST_USE;
/* malloc'ed with a NUL; -ENOENT, -EFBIG beyond 1 MiB. */
int birth_file_read(const char *path, char **data, size_t *len) MUST_USE;
