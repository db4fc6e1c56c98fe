/* SPDX-License-Identifier: Apache-2.0 */
#include "node/standalone.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/json.h"
#include "node/base/log.h"
#include "node/node.h"

#define STANDALONE_MIN (128u << 20)

static int make_file(const char *dir, const char *name, uint64_t size, char err[512])
{
	char path[PATH_MAX];
	struct stat st;
	int fd, rc = 0;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (stat(path, &st) == 0)
		return 0;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)size) < 0) {
		rc = -errno;
		snprintf(err, 512, "%.400s: cannot be made: %s", path, err_text(rc));
	}
	if (fd >= 0)
		close(fd);
	return rc;
}

int standalone_config(const struct standalone *a, struct config *out, char err[512])
{
	char dir[PATH_MAX];
	CLEANUP(free_ptr) char *text = NULL;
	int rc;

	if (a->size_bytes < STANDALONE_MIN || a->cache_bytes < STANDALONE_MIN) {
		snprintf(err, 512, "--size and --cache must be at least %u MiB", STANDALONE_MIN >> 20);
		return -EINVAL;
	}
	if ((mkdir(a->dir, 0700) < 0 && errno != EEXIST) || !realpath(a->dir, dir)) {
		rc = -errno;
		snprintf(err, 512, "%.400s: cannot be used as the directory: %s", a->dir,
			 err_text(rc));
		return rc;
	}
	rc = make_file(dir, "capacity", a->size_bytes, err);
	rc = rc < 0 ? rc : make_file(dir, "cache", a->cache_bytes, err);
	if (rc < 0)
		return rc;
	/* Nobody else is in this cluster: the peer port is only there because the code is the same.
	 */
	text = xasprintf(
		"state_dir: %s/state\nrun_dir: %s\nlisten: 127.0.0.1:%u\nname: standalone\n", dir,
		dir, 20000 + (unsigned)(hash_xxh3(dir, strlen(dir), 0) % 12000));
	return config_parse("standalone", text, strlen(text), out, err);
}

/* cluster init → diskgroup add; both can be repeated, and are, at each start. */
struct standalone_op {
	struct node *node;
	struct timer poll;
	char dir[PATH_MAX];
};

#define POLL_US 20000u

/* A node that stops answers so too: what is left to do then is the next start's. */
static bool refused(struct standalone_op *op, const char *what, int status, const char *text)
{
	if (status == 200 || status == 201)
		return false;
	if (!op->node->stopping) {
		log_error("standalone", what, "status=%d answer=%s", status, text);
		node_exit(op->node, "the standalone cluster could not be made (see above)");
	}
	return true;
}

static void group_added(void *arg, int status, const char *text)
{
	struct standalone_op *op = arg;

	if (refused(op, "disk group", status, text))
		return;
	log_info("standalone", "ready", "admin=unix:%s nbd=%s", op->node->config.admin_socket,
		 op->node->config.nbd_unix);
	timer_fini(&op->poll);
	free(op);
}

static void initialised(void *arg, int status, const char *text)
{
	struct standalone_op *op = arg;
	CLEANUP(free_ptr) char *path = xasprintf("%s/cache", op->dir);
	CLEANUP(free_ptr) char *data = xasprintf("%s/capacity", op->dir);
	CLEANUP(free_ptr) char *body = NULL;
	struct json *spec, *capacity;

	if (refused(op, "cluster init", status, text))
		return;
	spec = json_object_new();
	capacity = json_array_new();
	json_put_str(spec, "cache", path);
	json_add_str(capacity, data);
	json_put(spec, "capacity", capacity);
	body = json_print(spec, false);
	json_free(spec);
	admin_request(op->node->admin, "POST", "/v1/diskgroups", body, group_added, op);
}

/* An earlier run began: its half of the work may be missing, and can only be done once the node serves. */
static void on_poll(struct timer *t)
{
	struct standalone_op *op = container_of(t, struct standalone_op, poll);

	if (!op->node->shards_running || node_groups_opening(op->node))
		timer_set(t, POLL_US);
	else
		initialised(op, 200, "");
}

void standalone_begin(struct node *n, const struct standalone *a)
{
	struct standalone_op *op = xcalloc(1, sizeof(*op));

	op->node = n;
	CHECK(realpath(a->dir, op->dir)); /* standalone_config made it */
	timer_init(&op->poll, n->loop, on_poll);
	if (n->identity.number)
		timer_set(&op->poll, POLL_US);
	else
		admin_request(n->admin, "POST", "/v1/cluster/init", "{\"name\": \"standalone\"}",
			      initialised, op);
}
