/* SPDX-License-Identifier: Apache-2.0 */
/* diskgroup replace, on the node that owns the group: parsed here, done by the process around
 * (node_replace.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define REPLACE_TIMEOUT_MS                                                                         \
	600000u /* giving up what the map says of a full device takes a walk over the map */

struct replace_op {
	struct wait wait;
	struct areq *q;
	struct admin_replace r;
};

static void replace_done(struct wait *w, int rc)
{
	struct replace_op *op = container_of(w, struct replace_op, wait);
	struct admin_replace r = op->r;
	struct areq *q = op->q;
	struct json *j;

	if (rc) {
		admin_fail(q, rc, "%s", r.why[0] ? r.why : err_text(rc));
		return;
	}
	j = json_object_new();
	json_put_u64(j, "group", r.group);
	json_put_str(j, "node", q->admin->cfg.config->name);
	json_put_str(j, "role", r.role == DEVICE_CACHE ? "cache" : "capacity");
	json_put_str(j, "old", r.old);
	json_put_str(j, "new", r.path);
	json_put_u64(j, "lost_bytes", r.lost_bytes);
	admin_reply(q, 200, j);
}

void admin_replace_device(struct areq *q)
{
	struct admin *a = q->admin;
	char *end;
	unsigned long id = strtoul(q->param, &end, 10);
	const struct map_group *g =
		*end || !id || id > UINT16_MAX ? NULL : map_group(admin_map(a), (uint16_t)id);
	const char *old = q->body ? json_str(q->body, "old") : NULL;
	const char *path = q->body ? json_str(q->body, "new") : NULL;
	struct replace_op *op;
	int rc;

	if (!g || g->state == GROUP_REMOVED) {
		admin_fail(
			q, -ERR_NOT_FOUND,
			"no disk group has the number \"%.20s\"; `ashlar diskgroup list` shows all",
			q->param);
		return;
	}
	if (!old || !path || path[0] != '/' || strlen(path) > 190) {
		admin_fail(q, -ERR_INVALID,
			   "name the device to replace (\"old\": its path or uuid) and the new one "
			   "(\"new\": an "
			   "absolute path, e.g. /dev/disk/by-id/…)");
		return;
	}
	if (g->node != a->cfg.identity->number) {
		admin_forward(q, g->node, REPLACE_TIMEOUT_MS);
		return;
	}
	op = xcalloc(1, sizeof(*op));
	op->wait.resume = replace_done;
	op->q = q;
	q->op = op;
	op->r = (struct admin_replace){.group = g->id,
				       .old = old,
				       .path = path,
				       .wipe = json_bool(q->body, "wipe", false),
				       .accept_loss = json_bool(q->body, "accept_loss", false)};
	snprintf(op->r.actor, sizeof(op->r.actor), "%s", q->actor);
	rc = a->cfg.node_ops->group_replace(a->cfg.node, &op->r, &op->wait);
	if (rc != PENDING)
		replace_done(&op->wait, rc);
}
