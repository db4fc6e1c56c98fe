/* SPDX-License-Identifier: Apache-2.0 */
/* Birth of a node: init, join, and the identity file with the node's incarnation.
 *
 * Order of a birth: key, certificate, CA, peers, and identity.json last. A crash before the last
 * rename leaves an unclaimed node, on which init or join is simply run again; files of the earlier
 * attempt are replaced. Must never touch anything once identity.json exists. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/ca.h"
#include "node/base/err.h"
#include "node/base/hash.h"
#include "node/base/json.h"
#include "node/base/log.h"
#include "node/birth.h"

#define IDENTITY_FORMAT 1u
#define NODE_CERT_DAYS  (10u * 365)
#define FILE_READ_MAX   (1u << 20)

/* ---- Small durable files -----------------------------------------------------------------------
 */

static int sync_parent(const char *path)
{
	CLEANUP(free_ptr) char *dir = xstrdup(path);
	char *slash = strrchr(dir, '/');
	int fd, rc = 0;

	if (slash == dir)
		slash++;
	if (slash)
		*slash = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		rc = -errno;
	if (fd >= 0)
		close(fd);
	return rc;
}

int birth_file_write(const char *path, const void *data, size_t len, unsigned mode)
{
	CLEANUP(free_ptr) char *tmp = xasprintf("%s.tmp", path);
	const char *p = data;
	int fd, rc = 0;

	(void)unlink(tmp);
	fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
	if (fd < 0)
		rc = -errno;
	while (rc == 0 && len > 0) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno != EINTR)
			rc = -errno;
		if (n > 0) {
			p += n;
			len -= (size_t)n;
		}
	}
	if (rc == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0))
		rc = -errno;
	if (fd >= 0 && close(fd) < 0 && rc == 0)
		rc = -errno;
	if (rc == 0 && rename(tmp, path) < 0)
		rc = -errno;
	if (rc == 0)
		rc = sync_parent(path);
	if (rc < 0) {
		log_error("birth", "cannot write", "path=\"%s\" error=\"%s\"", path, err_text(rc));
		(void)unlink(tmp);
	}
	return rc;
}

int birth_file_read(const char *path, char **data, size_t *len)
{
	char *buf;
	size_t n;
	FILE *f = fopen(path, "re");

	*data = NULL;
	*len = 0;
	if (!f)
		return -errno;
	buf = xmalloc(FILE_READ_MAX + 1);
	n = fread(buf, 1, FILE_READ_MAX + 1, f);
	if (ferror(f) || n > FILE_READ_MAX) {
		int rc = ferror(f) ? -EIO : -EFBIG;

		fclose(f);
		free(buf);
		return rc;
	}
	fclose(f);
	buf[n] = '\0';
	*data = xrealloc(buf, n + 1);
	*len = n;
	return 0;
}

static int write_json(const char *path, struct json *j, unsigned mode)
{
	char *text = json_print(j, true);
	CLEANUP(free_ptr) char *line = xasprintf("%s\n", text);

	free(text);
	json_free(j);
	return birth_file_write(path, line, strlen(line), mode);
}

static struct json *read_json(const char *path, int *rc)
{
	CLEANUP(free_ptr) char *text = NULL;
	struct json *j;
	char err[160];
	size_t len;

	*rc = birth_file_read(path, &text, &len);
	if (*rc < 0)
		return NULL;
	j = json_parse(text, len, err, sizeof(err));
	if (!j) {
		log_error("birth", "file is damaged: restore it from a backup of this node",
			  "path=\"%s\" error=\"%s\"", path, err);
		*rc = -ERR_CORRUPT;
	}
	return j;
}

static char *in_dir(const char *dir, const char *file)
{
	return xasprintf("%s/%s", dir, file);
}

/* ---- Identity ----------------------------------------------------------------------------------
 */

void birth_paths(const char *state_dir, struct birth_paths *out)
{
	struct {
		char *to;
		const char *file;
	} const all[] = {{out->ca, "ca.pem"},     {out->ca_key, "ca.key"},
			 {out->cert, "node.pem"}, {out->key, "node.key"},
			 {out->raft, "raft"},     {out->devices, "devices.json"}};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		snprintf(all[i].to, sizeof(out->ca), "%.220s/%s", state_dir, all[i].file);
}

static void stop_path(const char *state_dir, char out[256])
{
	snprintf(out, 256, "%s/stopped-cleanly", state_dir);
}

void birth_stop_leave(const char *state_dir)
{
	char path[256];
	int fd;

	stop_path(state_dir, path);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		close(fd);
}

bool birth_stop_taken(const char *state_dir)
{
	char path[256];

	stop_path(state_dir, path);
	return unlink(path) == 0;
}

bool birth_has_ca_key(const char *state_dir)
{
	struct birth_paths p;

	birth_paths(state_dir, &p);
	return access(p.ca_key, R_OK) == 0;
}

#define LOST_REMEDY                                                                                \
	": restore the file from a backup, or empty the state directory and join again as a new "  \
	"node"

/* No identity: a node that was never born, or one that lost the file. Only the second has a Raft
 * log, which must not vote under a new name. */
static int no_identity(const char *state_dir, const char *path)
{
	struct birth_paths p;

	birth_paths(state_dir, &p);
	if (access(p.raft, F_OK) < 0)
		return -ERR_UNCLAIMED;
	log_error("birth", "the identity of this node is missing, its Raft log is not" LOST_REMEDY,
		  "path=\"%s\" raft=\"%s\"", path, p.raft);
	return -ERR_CORRUPT;
}

static struct json *identity_json(const struct identity *id)
{
	struct json *j = json_object_new();
	char text[UUID_TEXT];

	json_put_u64(j, "format", IDENTITY_FORMAT);
	uuid_format(&id->cluster, text);
	json_put_str(j, "cluster", text);
	json_put_str(j, "cluster_name", id->cluster_name);
	uuid_format(&id->node, text);
	json_put_str(j, "node", text);
	json_put_u64(j, "number", id->number);
	json_put_str(j, "name", id->name);
	json_put_u64(j, "incarnation", id->incarnation);
	json_put_bool(j, "bootstrap", id->bootstrap);
	json_put_bool(j, "removed", id->removed);
	json_put_bool(j, "witness", id->witness);
	json_put_u64(j, "recovery", id->recovery);
	json_put_u64(j, "recovery_id", id->recovery_id);
	json_put_u64(j, "recovery_term", id->recovery_term);
	json_put_u64(j, "recovery_index", id->recovery_index);
	json_put_bool(j, "recovering", id->recovering);
	json_put_u64(j, "behind", id->behind);
	if (id->raft_begun) /* files of before have no such key, and a checksum */
		json_put_bool(j, "raft_begun", true);
	return j;
}

/* Of what the file means, not of how it is written. */
static void identity_checksum(const struct json *j, char out[17])
{
	CLEANUP(free_ptr) char *text = json_print(j, false);

	snprintf(out, 17, "%016llx", (unsigned long long)hash_xxh3(text, strlen(text), 0));
}

/* One changed digit is another node, another cluster or an incarnation of the past, and still JSON. */
static bool checksum_good(const struct json *file, const struct identity *id)
{
	const char *said = json_str(file, "checksum");
	struct json *j = identity_json(id);
	char sum[17];

	identity_checksum(j, sum);
	json_free(j);
	return said && !strcmp(said, sum);
}

int identity_load(const char *state_dir, struct identity *out)
{
	CLEANUP(free_ptr) char *path = in_dir(state_dir, "identity.json");
	const char *cluster, *node;
	struct json *j;
	uint64_t number, incarnation;
	int rc;

	memset(out, 0, sizeof(*out));
	j = read_json(path, &rc);
	if (rc == -ENOENT)
		return no_identity(state_dir, path);
	if (!j) {
		log_error("birth", "the identity of this node cannot be read" LOST_REMEDY,
			  "path=\"%s\" error=\"%s\"", path, err_text(rc));
		return rc;
	}
	if (json_u64(j, "format", 0) != IDENTITY_FORMAT) {
		log_error("birth", "identity of an unknown format", "path=\"%s\" format=%llu", path,
			  (unsigned long long)json_u64(j, "format", 0));
		json_free(j);
		return -ERR_VERSION;
	}
	cluster = json_str(j, "cluster");
	node = json_str(j, "node");
	number = json_u64(j, "number", 0);
	incarnation = json_u64(j, "incarnation", UINT64_MAX);
	out->bootstrap = json_bool(j, "bootstrap", false);
	out->removed = json_bool(j, "removed", false);
	out->witness = json_bool(j, "witness", false);
	out->recovery = (uint16_t)MIN(json_u64(j, "recovery", 0), (uint64_t)UINT16_MAX);
	out->recovery_id = (uint32_t)json_u64(j, "recovery_id", 0);
	out->recovery_term = json_u64(j, "recovery_term", 0);
	out->recovery_index = json_u64(j, "recovery_index", 0);
	out->recovering = json_bool(j, "recovering", false);
	out->raft_begun = json_bool(j, "raft_begun", false);
	out->behind = (uint16_t)MIN(json_u64(j, "behind", 0), (uint64_t)UINT16_MAX);
	out->number = (uint16_t)number;
	out->incarnation = (uint32_t)incarnation;
	if (!cluster || uuid_parse(cluster, &out->cluster) < 0 || !node ||
	    uuid_parse(node, &out->node) < 0 || number == 0 || number > UINT16_MAX ||
	    incarnation > UINT32_MAX || !json_take_str(j, "name", out->name, sizeof(out->name)) ||
	    !json_take_str(j, "cluster_name", out->cluster_name, sizeof(out->cluster_name)) ||
	    !checksum_good(j, out))
		rc = -ERR_CORRUPT;
	json_free(j);
	if (rc < 0) {
		log_error("birth",
			  "the identity of this node has missing or changed fields" LOST_REMEDY,
			  "path=\"%s\"", path);
		memset(out, 0, sizeof(*out));
	}
	return rc;
}

int birth_raft_there(const char *state_dir, const struct identity *id)
{
	CLEANUP(free_ptr) char *marker = in_dir(state_dir, "raft/RAFT");

	if (!id->raft_begun || access(marker, F_OK) == 0)
		return 0;
	log_error("birth",
		  "the Raft log of this node is gone: is its file system mounted? What a voter has forgotten "
		  "may have counted, so it never begins again with an empty one. If it is lost: ashlar node "
		  "remove NAME --dead on another node, then empty the state directory and join anew",
		  "missing=\"%s\"", marker);
	return -ERR_CORRUPT;
}

int identity_save(const char *state_dir, const struct identity *id)
{
	CLEANUP(free_ptr) char *path = in_dir(state_dir, "identity.json");
	struct json *j = identity_json(id);
	char sum[17];

	identity_checksum(j, sum);
	json_put_str(j, "checksum", sum);
	return write_json(path, j, 0600);
}

int identity_raise(const char *state_dir, struct identity *id, uint32_t at_least)
{
	struct identity next = *id;
	int rc;

	if (id->incarnation == UINT32_MAX)
		return -ERR_LIMIT;
	next.incarnation = MAX(id->incarnation + 1, at_least);
	rc = identity_save(state_dir, &next);
	if (rc == 0)
		*id = next;
	return rc;
}

static int must_be_unclaimed(const char *state_dir)
{
	struct identity id;
	int rc = identity_load(state_dir, &id);

	if (rc == -ERR_UNCLAIMED)
		return 0;
	return rc == 0 ? -ERR_CLAIMED : rc;
}

/* ---- Init --------------------------------------------------------------------------------------
 */

static char *node_cn(const struct uuid *node)
{
	char text[UUID_TEXT];

	uuid_format(node, text);
	return xasprintf("node:%s", text);
}

int birth_sign_node(const char *state_dir, const char *csr, const struct uuid *node,
		    const char *address, char **cert)
{
	CLEANUP(free_ptr) char *cn = node_cn(node);
	CLEANUP(free_ptr) char *san = NULL;
	const char *colon = strrchr(address, ':');
	size_t host_len = colon ? (size_t)(colon - address) : 0;
	struct birth_paths p;

	birth_paths(state_dir, &p);
	if (host_len > 2 && address[0] == '[')
		san = xasprintf("DNS:%s,IP:%.*s", BIRTH_NODE_DNS, (int)host_len - 2, address + 1);
	else if (host_len > 0)
		san = xasprintf("DNS:%s,IP:%.*s", BIRTH_NODE_DNS, (int)host_len, address);
	else
		san = xasprintf("DNS:%s", BIRTH_NODE_DNS);
	return ca_sign(p.ca, p.ca_key, csr, cn, san, NODE_CERT_DAYS, cert);
}

static int make_own_certificate(const struct config *c, const struct birth_paths *p,
				const struct uuid *node)
{
	CLEANUP(free_ptr) char *cn = node_cn(node);
	CLEANUP(free_ptr) char *csr = NULL;
	CLEANUP(free_ptr) char *cert = NULL;
	int rc;

	rc = ca_request(p->key, cn, &csr);
	if (rc == 0)
		rc = birth_sign_node(c->state_dir, csr, node, c->advertise, &cert);
	if (rc == 0)
		rc = birth_file_write(p->cert, cert, strlen(cert), 0644);
	return rc;
}

int birth_init(const struct config *c, const char *cluster_name, struct identity *out)
{
	CLEANUP(free_ptr) char *subject = NULL;
	struct birth_paths p;
	char text[UUID_TEXT];
	int rc;

	rc = must_be_unclaimed(c->state_dir);
	if (rc < 0)
		return rc;
	/* Left-overs of a birth that stopped half-way belong to no cluster. */
	birth_paths(c->state_dir, &p);
	(void)unlink(p.ca);
	(void)unlink(p.ca_key);
	(void)unlink(p.key);
	(void)unlink(p.cert);

	*out = (struct identity){.number = 1, .bootstrap = true};
	uuid_make(&out->cluster);
	uuid_make(&out->node);
	snprintf(out->cluster_name, sizeof(out->cluster_name), "%s", cluster_name);
	snprintf(out->name, sizeof(out->name), "%s", c->name);
	uuid_format(&out->cluster, text);
	subject = xasprintf("ashlar CA %s", text);
	rc = ca_create(p.ca, p.ca_key, subject);
	if (rc == 0)
		rc = make_own_certificate(c, &p, &out->node);
	if (rc == 0)
		rc = identity_save(c->state_dir, out);
	if (rc == 0)
		log_info("birth", "cluster made", "cluster=%s name=\"%s\" node=\"%s\"", text,
			 cluster_name, c->name);
	return rc;
}

void birth_node_record(const struct config *c, const struct identity *id, struct map_node *out)
{
	unsigned major = 0, minor = 0;

	memset(out, 0, sizeof(*out));
	out->id = id->number;
	out->uuid = id->node;
	snprintf(out->name, sizeof(out->name), "%s", id->name[0] ? id->name : c->name);
	snprintf(out->fault_set, sizeof(out->fault_set), "%s", c->fault_set);
	snprintf(out->address, sizeof(out->address), "%s", c->advertise);
	snprintf(out->admin, sizeof(out->admin), "%s",
		 c->admin_advertise ? c->admin_advertise : "");
	out->incarnation = id->incarnation;
	out->shards = (uint16_t)c->shards;
	out->roles = birth_roles(c, id);
	out->state = NODE_JOINING;
	if (sscanf(ASHLAR_VERSION, "%u.%u", &major, &minor) == 2) {
		out->version_major = (uint8_t)major;
		out->version_minor = (uint8_t)minor;
	}
}

/* ---- Join --------------------------------------------------------------------------------------
 */

int birth_join_prepare(const struct config *c, bool witness, struct uuid *node, char **csr)
{
	CLEANUP(free_ptr) char *path = in_dir(c->state_dir, "join.json");
	CLEANUP(free_ptr) char *cn = NULL;
	struct birth_paths p;
	struct json *j;
	const char *text;
	char uuid[UUID_TEXT];
	int rc;

	rc = must_be_unclaimed(c->state_dir);
	if (rc < 0)
		return rc;
	birth_paths(c->state_dir, &p);
	j = read_json(path, &rc);
	text = j ? json_str(j, "node") : NULL;
	rc = text && uuid_parse(text, node) == 0 ? 0 : -ENOENT;
	json_free(j);
	if (rc < 0)
		uuid_make(node);
	uuid_format(node, uuid);
	j = json_object_new();
	json_put_str(j, "node", uuid);
	json_put_bool(j, "witness", witness);
	rc = write_json(path, j, 0600);
	if (rc < 0)
		return rc;
	/* The uuid is kept over a re-run, so that the cluster knows the node again; the key need
	 * not be. */
	(void)unlink(p.key);
	cn = node_cn(node);
	return ca_request(p.key, cn, csr);
}

int birth_peers_save(const char *state_dir, const struct birth_peer *peers, unsigned count)
{
	CLEANUP(free_ptr) char *path = in_dir(state_dir, "peers.json");
	struct json *j = json_object_new(), *list = json_array_new();

	for (unsigned i = 0; i < count; i++) {
		struct json *peer = json_object_new();
		char uuid[UUID_TEXT];

		uuid_format(&peers[i].uuid, uuid);
		json_put_u64(peer, "number", peers[i].number);
		json_put_str(peer, "uuid", uuid);
		json_put_str(peer, "address", peers[i].address);
		json_put_str(peer, "admin", peers[i].admin);
		json_add(list, peer);
	}
	json_put(j, "peers", list);
	return write_json(path, j, 0600);
}

unsigned birth_peers_take(const struct json *list, struct birth_peer *out, unsigned max)
{
	unsigned n = 0;

	for (size_t i = 0; i < json_len(list) && n < max; i++) {
		const struct json *peer = json_at(list, i);
		const char *uuid = json_str(peer, "uuid");
		uint64_t number = json_u64(peer, "number", 0);
		struct birth_peer *p = &out[n];

		memset(p, 0, sizeof(*p));
		if (number == 0 || number > UINT16_MAX || !uuid || uuid_parse(uuid, &p->uuid) < 0 ||
		    !json_take_str(peer, "address", p->address, sizeof(p->address)))
			continue;
		p->number = (uint16_t)number;
		(void)json_take_str(peer, "admin", p->admin, sizeof(p->admin));
		n++;
	}
	return n;
}

int birth_peers_load(const char *state_dir, struct birth_peer *out, unsigned max)
{
	CLEANUP(free_ptr) char *path = in_dir(state_dir, "peers.json");
	struct json *j;
	unsigned n;
	int rc;

	j = read_json(path, &rc);
	if (!j)
		return rc == -ENOENT ? 0 : rc;
	n = birth_peers_take(json_get(j, "peers"), out, max);
	json_free(j);
	return (int)n;
}

static int join_files(const struct config *c, const struct birth_join *b,
		      const struct birth_paths *p)
{
	int rc;

	rc = birth_file_write(p->ca, b->ca, strlen(b->ca), 0644);
	if (rc == 0 && b->ca_key)
		rc = birth_file_write(p->ca_key, b->ca_key, strlen(b->ca_key), 0600);
	if (rc == 0)
		rc = birth_file_write(p->cert, b->certificate, strlen(b->certificate), 0644);
	if (rc == 0)
		rc = birth_peers_save(c->state_dir, b->peers, b->peer_count);
	return rc;
}

int birth_join_finish(const struct config *c, const struct birth_join *b, struct identity *out)
{
	CLEANUP(free_ptr) char *path = in_dir(c->state_dir, "join.json");
	struct birth_paths p;
	const char *node;
	struct json *j;
	int rc;

	rc = must_be_unclaimed(c->state_dir);
	if (rc < 0)
		return rc;
	birth_paths(c->state_dir, &p);
	*out = (struct identity){
		.cluster = b->cluster, .number = b->number, .recovery = b->recovery,
		.recovery_id = b->recovery_id};
	snprintf(out->cluster_name, sizeof(out->cluster_name), "%s", b->cluster_name);
	snprintf(out->name, sizeof(out->name), "%s", c->name);
	j = read_json(path, &rc);
	node = j ? json_str(j, "node") : NULL;
	if (!node || uuid_parse(node, &out->node) < 0 || access(p.key, R_OK) < 0) {
		log_error("birth", "no join was begun here; run `ashlar node join TOKEN` again",
			  "%s", "");
		rc = -ERR_INVALID;
	}
	out->witness = j && json_bool(j, "witness", false);
	json_free(j);
	if (rc == 0)
		rc = join_files(c, b, &p);
	if (rc == 0)
		rc = identity_save(c->state_dir, out);
	if (rc == 0) {
		(void)unlink(path);
		log_info("birth", "joined", "cluster=\"%s\" node=%u", b->cluster_name, b->number);
	}
	return rc;
}
