/* SPDX-License-Identifier: Apache-2.0 */
/* What stands in for files and libraries around a node: its identity files, certificates (everybody
 * is who it says), where disk groups are found, the operators' interface, and the end of the
 * process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/standalone.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/sim.h"

/* ---- Certificates: a connection says whose it is ----
 *
 * What stays of TLS is that a read ends where a record does, here a frame: what comes behind the last one
 * of a connection that goes on in plain is never taken for a part of it. */

struct tls_ctx {
	int unused;
};
struct tls_session {
	int fd;
	char name[96];
	uint8_t head[WIRE_HEADER_SIZE];
	unsigned head_have;
	size_t left; /* of the frame, behind its header */
};

struct tls_ctx *tls_ctx_create(const char *ca, const char *cert, const char *key)
{
	return xcalloc(1, sizeof(struct tls_ctx));
}
void tls_ctx_destroy(struct tls_ctx *c)
{
	free(c);
}
void tls_ctx_allow_anonymous(struct tls_ctx *c, bool allow)
{
}

struct tls_session *tls_session_create(struct tls_ctx *c, int fd, bool server)
{
	struct tls_session *s = xcalloc(1, sizeof(*s));

	s->fd = fd;
	return s;
}
void tls_session_destroy(struct tls_session *s)
{
	free(s);
}
void tls_session_drop(struct tls_session *s)
{
	free(s);
}

int tls_handshake(struct tls_session *s, int *rc)
{
	*rc = 0;
	snprintf(s->name, sizeof(s->name), "%s", vsock_peer_tag(s->fd));
	return 0;
}

ssize_t tls_read(struct tls_session *s, void *p, size_t n, int *rc)
{
	ssize_t k = recv(s->fd, p, MIN(n, s->left ? s->left : sizeof(s->head) - s->head_have), 0);

	*rc = 0;
	if (k > 0 && s->left) {
		s->left -= (size_t)k;
	} else if (k > 0) {
		memcpy(s->head + s->head_have, p, (size_t)k);
		s->head_have += (unsigned)k;
	}
	if (s->head_have == sizeof(s->head)) {
		s->left = (size_t)get_le32(s->head + 16) + get_le32(s->head + 20);
		s->head_have = 0;
	}
	if (k >= 0)
		return k;
	if (errno == EAGAIN)
		return TLS_WANT_READ;
	*rc = -errno;
	return 0;
}

ssize_t tls_write(struct tls_session *s, const void *p, size_t n, int *rc)
{
	struct iovec iov = {(void *)(uintptr_t)p, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t k = sendmsg(s->fd, &m, 0);

	*rc = 0;
	if (k >= 0)
		return k;
	if (errno == EAGAIN)
		return TLS_WANT_WRITE;
	*rc = -errno;
	return 0;
}

bool tls_pending(const struct tls_session *s)
{
	return false;
}
void tls_session_read_ahead(struct tls_session *s)
{
}
const char *tls_peer_name(const struct tls_session *s)
{
	return s->name;
}

/* ---- Identity: on the node's system disk, written at once ---- */

int identity_load(const char *state_dir, struct identity *out)
{
	const struct sim_node *s = sim_this_node();

	*out = (struct identity){.cluster = sim.cluster,
				 .raft_begun = true, /* the simulated log is never lost as a whole */
				 .node = s->uuid,
				 .number = (uint16_t)s->number,
				 .incarnation = s->incarnation,
				 .bootstrap = s->number == 1};
	snprintf(out->cluster_name, sizeof(out->cluster_name), "sim");
	snprintf(out->name, sizeof(out->name), "%s", s->name);
	return 0;
}

int identity_raise(const char *state_dir, struct identity *id, uint32_t at_least)
{
	struct sim_node *s = sim_this_node();

	fiber_sleep(draw(100, 3000));
	id->incarnation = MAX(id->incarnation + 1, at_least);
	s->incarnation = id->incarnation;
	return 0;
}

/* Only a node that was removed writes it so. */
int birth_raft_there(const char *state_dir, const struct identity *id)
{
	return 0;
}

int identity_save(const char *state_dir, const struct identity *id)
{
	struct sim_node *s = sim_this_node();

	if (!id->removed)
		return -EROFS;
	sim_trace("it was removed from the cluster");
	s->gone = true;
	s->member = false;
	sim.counts.removals++;
	return 0;
}

void birth_paths(const char *state_dir, struct birth_paths *out)
{
	*out = (struct birth_paths){.raft = VPATH "raft"};
}

void birth_node_record(const struct config *c, const struct identity *id, struct map_node *out)
{
	*out = (struct map_node){.id = id->number,
				 .uuid = id->node,
				 .incarnation = id->incarnation,
				 .shards = (uint16_t)c->shards,
				 .roles = c->roles};
	snprintf(out->name, sizeof(out->name), "%s", id->name);
	snprintf(out->fault_set, sizeof(out->fault_set), "%s", id->name);
	snprintf(out->address, sizeof(out->address), "%s", c->advertise);
}

bool birth_has_ca_key(const char *state_dir)
{
	return false; /* no certificates here */
}

void birth_stop_leave(const char *state_dir)
{
}

int birth_peers_save(const char *state_dir, const struct birth_peer *peers, unsigned count)
{
	struct sim_node *s = sim_this_node();

	memcpy(s->peers, peers, count * sizeof(*peers));
	s->peer_count = count;
	return 0;
}

int birth_peers_load(const char *state_dir, struct birth_peer *out, unsigned max)
{
	const struct sim_node *s = sim_this_node();

	memcpy(out, s->peers, s->peer_count * sizeof(*out));
	return (int)s->peer_count;
}

/* ---- Disk groups: one per node, always in the same place ---- */

int diskgroup_find(const char *state_dir, const struct identity *id, struct diskgroup_found *out)
{
	const struct sim_node *s = sim_this_node();
	struct diskgroup_set *set = &out->set[0];
	struct store_probe probe;
	int rc;

	*out = (struct diskgroup_found){0};
	if (!s->formatted)
		return 0;
	set->devices[0] = xstrdup(SIM_CACHE);
	set->devices[1] = xstrdup(SIM_DATA);
	set->role[0] = DEVICE_CACHE;
	set->role[1] = DEVICE_CAPACITY;
	set->device_count = 2;
	if (sim.plan.two_devices) {
		set->devices[2] = xstrdup(SIM_DATA2);
		set->role[2] = DEVICE_CAPACITY;
		set->device_count = 3;
	}
	set->metadata_dir = xstrdup(SIM_DB);
	set->uuid = s->group;
	out->count = 1;
	rc = store_probe(SIM_DATA, &probe);
	if (rc < 0)
		rc = store_probe(SIM_CACHE, &probe);
	if (rc < 0) {
		set->lost = xstrdup(SIM_DATA);
		snprintf(set->why_lost, sizeof(set->why_lost), "%s", err_text(rc));
		return 0;
	}
	set->probed = true;
	set->pending = probe.pending;
	set->number = probe.group_number;
	set->incarnation = probe.group_incarnation;
	return 0;
}

/* A simulated host keeps its devices: none is absent for a while, none is replaced. */
void diskgroup_set_copy(struct diskgroup_set *to, const struct diskgroup_set *from)
{
	*to = *from;
	for (unsigned i = 0; i < from->device_count; i++)
		to->devices[i] = xstrdup(from->devices[i]);
	to->metadata_dir = from->metadata_dir ? xstrdup(from->metadata_dir) : NULL;
	to->lost = from->lost ? xstrdup(from->lost) : NULL;
}
bool diskgroup_absent(const struct diskgroup_set *s)
{
	return false;
}
void diskgroup_look_again(const char *state_dir, const struct identity *id, struct diskgroup_set *s)
{
}
int diskgroup_member(const struct diskgroup_set *s, const char *text, struct uuid *uuid,
		     enum device_role *role, const char **path)
{
	return -ERR_NOT_FOUND;
}
int diskgroup_check_new(const char *path, char why[256])
{
	return -ERR_NOT_FOUND;
}
int diskgroup_replaced(const char *state_dir, struct diskgroup_set *s, const struct uuid *old,
		       const char *path)
{
	return -ERR_NOT_FOUND;
}

void diskgroup_found_free(struct diskgroup_found *f)
{
	for (unsigned i = 0; i < f->count; i++) {
		for (unsigned d = 0; d < f->set[i].device_count; d++)
			free(f->set[i].devices[d]);
		free(f->set[i].metadata_dir);
		free(f->set[i].lost);
	}
}

/* ---- The operators' interface and front ends: there are none ---- */

uint64_t wall_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

const struct admin_cluster_ops admin_control_ops;

struct admin *admin_create(const struct admin_config *cfg)
{
	return NULL;
}
void admin_set_cluster(struct admin *a, const struct admin_cluster_ops *ops, void *cluster)
{
}
int admin_listen_unix(struct admin *a)
{
	return 0;
}
int admin_listen_tls(struct admin *a, struct tls_ctx *tls)
{
	return 0;
}
void admin_stop(struct admin *a)
{
}
void admin_call(struct admin *a, uint64_t ticket, const char *method, const char *path,
		const char *json)
{
}
void standalone_begin(struct node *n, const struct standalone *alone)
{
}
struct nbd_server *nbd_server_create(const struct nbd_config *cfg)
{
	return NULL;
}
void nbd_server_stop(struct nbd_server *s, struct wait *w)
{
}

/* ---- The end of a process ---- */

_Noreturn void __real__exit(int code);
_Noreturn void __wrap__exit(int code);
_Noreturn void __real_check_failed(const char *expr, const char *file, int line, const char *func);
_Noreturn void __wrap_check_failed(const char *expr, const char *file, int line, const char *func);

/* Fail-stop: its supervisor starts it again. */
_Noreturn void __wrap__exit(int code)
{
	struct vproc *p = vproc_current();

	if (!p)
		__real__exit(code);
	sim_trace("the process ends itself with %d", code);
	vproc_kill(p);
	abort();
}

_Noreturn void __wrap_check_failed(const char *expr, const char *file, int line, const char *func)
{
	struct vproc *p = vproc_current();

	if (!p)
		__real_check_failed(expr, file, line, func);
	sim_fail("check failed: %s (%s:%d, %s)", expr, file, line, func);
	vproc_kill(p);
	abort();
}
