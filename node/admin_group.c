/* SPDX-License-Identifier: Apache-2.0 */
/* diskgroup add, on the node that owns the devices: pending superblocks → a number from Raft →
 * final superblocks → open and start → active. Every step can be done again, so a re-run of the
 * same command finishes what a crash left half done. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define ADD_TIMEOUT_MS 120000u

enum add_stage { ADD_FORMAT, ADD_NUMBER, ADD_FINAL, ADD_OPEN, ADD_ACTIVE, ADD_REPLY };

struct add_op {
	struct wait wait;
	struct work work;
	struct areq *q;
	enum add_stage stage, next;
	struct diskgroup_spec spec;
	struct diskgroup_set set;
	struct control_propose propose;
	uint64_t raw_bytes;
	bool open_already;
	char why[256];
};

static void add_free(struct add_op *op)
{
	diskgroup_spec_free(&op->spec);
	diskgroup_set_free(&op->set);
}

/* On a worker: superblocks, and how much space the capacity devices have. */
static int format_blocking(struct work *w)
{
	struct add_op *op = container_of(w, struct add_op, work);
	const struct admin_config *cfg = &op->q->admin->cfg;
	int rc = 0;

	if (!op->open_already)
		rc = diskgroup_format(cfg->config, cfg->identity, &op->spec, &op->set, op->why);
	for (unsigned i = 0; rc == 0 && i < op->set.device_count; i++) {
		struct store_probe p;

		rc = store_probe(op->set.devices[i], &p);
		if (rc == 0 && p.role == DEVICE_CAPACITY)
			op->raw_bytes += p.size_bytes;
		if (rc < 0)
			snprintf(op->why, sizeof(op->why),
				 "%.160s: its superblock cannot be read back: %s",
				 op->set.devices[i], err_text(rc));
	}
	return rc;
}

static int finalize_blocking(struct work *w)
{
	struct add_op *op = container_of(w, struct add_op, work);
	uint16_t number = (uint16_t)op->propose.result.id;

	if (op->open_already || !op->set.pending) {
		op->set.number = number;
		return 0;
	}
	return diskgroup_finalize(op->q->admin->cfg.config->state_dir, &op->set, number, op->why);
}

static int propose_number(struct add_op *op)
{
	struct admin *a = op->q->admin;
	struct command cmd;

	admin_command(op->q, CMD_GROUP_ADD, &cmd);
	cmd.group_add.uuid = op->set.uuid;
	cmd.group_add.node = a->cfg.identity->number;
	cmd.group_add.incarnation = op->set.incarnation;
	cmd.group_add.raw_bytes = op->raw_bytes;
	return a->ops->propose(a->cluster, &op->propose, &cmd, PROPOSE_TIMEOUT_MS, &op->wait);
}

static int propose_active(struct add_op *op)
{
	struct admin *a = op->q->admin;
	const struct map_group *g = map_group(admin_map(a), op->set.number);
	struct command cmd;

	op->propose.result.code = 0;
	if (g && g->state != GROUP_PENDING)
		return 0;
	admin_command(op->q, CMD_GROUP_STATE, &cmd);
	cmd.group_state.group = op->set.number;
	cmd.group_state.state = GROUP_ACTIVE;
	cmd.group_state.free_steps = 20;
	cmd.group_state.incarnation = op->set.incarnation;
	return a->ops->propose(a->cluster, &op->propose, &cmd, PROPOSE_TIMEOUT_MS, &op->wait);
}

static void add_fail(struct add_op *op, int rc)
{
	struct areq *q = op->q;
	char why[256];

	snprintf(why, sizeof(why), "%s", op->why[0] ? op->why : err_text(rc));
	if ((op->stage == ADD_NUMBER || op->stage == ADD_ACTIVE) && op->propose.result.code == rc &&
	    op->propose.result.text[0])
		snprintf(why, sizeof(why), "%s", op->propose.result.text);
	add_free(op);
	admin_fail(q, rc, "%s", why);
}

static void add_reply(struct add_op *op)
{
	struct areq *q = op->q;
	struct json *j = json_object_new(), *list = json_array_new();
	char uuid[UUID_TEXT];

	uuid_format(&op->set.uuid, uuid);
	json_put_u64(j, "group", op->set.number);
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "node", q->admin->cfg.config->name);
	json_put_u64(j, "raw_bytes", op->raw_bytes);
	for (unsigned i = 0; i < op->set.device_count; i++)
		json_add_str(list, op->set.devices[i]);
	json_put(j, "devices", list);
	json_put_str(j, "metadata_dir", op->set.metadata_dir);
	add_free(op);
	admin_reply(q, 200, j);
}

static void add_run(struct add_op *op, int rc)
{
	struct admin *a = op->q->admin;

	while (rc != PENDING) {
		if (rc == 0 && (op->stage == ADD_NUMBER || op->stage == ADD_ACTIVE))
			rc = op->propose.result.code;
		if (rc < 0) {
			add_fail(op, rc);
			return;
		}
		op->stage = op->next;
		switch (op->stage) {
		case ADD_FORMAT:
			op->next = ADD_NUMBER;
			op->work.run = format_blocking;
			rc = worker_submit(a->cfg.workers, a->cfg.loop, &op->work, &op->wait);
			break;
		case ADD_NUMBER:
			op->next = ADD_FINAL;
			rc = propose_number(op);
			break;
		case ADD_FINAL:
			op->next = ADD_OPEN;
			op->work.run = finalize_blocking;
			rc = worker_submit(a->cfg.workers, a->cfg.loop, &op->work, &op->wait);
			break;
		case ADD_OPEN:
			op->next = ADD_ACTIVE;
			rc = a->cfg.node_ops->group_open(a->cfg.node, &op->set, &op->wait);
			break;
		case ADD_ACTIVE: /* from here on it takes replicas */
			op->next = ADD_REPLY;
			rc = propose_active(op);
			break;
		case ADD_REPLY:
			add_reply(op);
			return;
		}
	}
}

static void add_resume(struct wait *w, int rc)
{
	add_run(container_of(w, struct add_op, wait), rc);
}

static bool names_device(const struct diskgroup_spec *s, const char *path)
{
	bool is = s->cache && !strcmp(s->cache, path);

	for (unsigned i = 0; i < s->capacity_count; i++)
		is |= !strcmp(s->capacity[i], path);
	return is;
}

/* Exactly the devices of a group that is open here: then this is a re-run. */
static bool take_open_group(struct add_op *op)
{
	struct admin *a = op->q->admin;
	struct admin_group g[GROUPS_PER_NODE_MAX];
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));

	for (unsigned i = 0; i < n; i++) {
		const struct diskgroup_set *have = g[i].set;
		unsigned named = 0;

		for (unsigned k = 0; g[i].open && have && k < have->device_count; k++)
			named += names_device(&op->spec, have->devices[k]);
		if (!named || named != have->device_count ||
		    named != op->spec.capacity_count + (op->spec.cache ? 1 : 0))
			continue;
		diskgroup_set_copy(&op->set, have);
		return true;
	}
	return false;
}

void admin_add_diskgroup(struct areq *q)
{
	const char *where = q->body ? json_str(q->body, "node") : NULL;
	const struct map_node *n = where ? map_node_by_name(admin_map(q->admin), where) : NULL;
	struct add_op *op;
	char why[256];
	int rc;

	if (where && !n) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no node is named \"%.63s\"; `ashlar node list` shows all", where);
		return;
	}
	if (n && n->id != q->admin->cfg.identity->number) {
		admin_forward(q, n->id, ADD_TIMEOUT_MS);
		return;
	}
	op = xcalloc(1, sizeof(*op));
	op->wait.resume = add_resume;
	op->q = q;
	op->stage = op->next = ADD_FORMAT;
	q->op = op;
	rc = diskgroup_spec_parse(q->body, &op->spec, why);
	if (rc < 0) {
		admin_fail(q, rc, "%s", why);
		return;
	}
	op->open_already = take_open_group(op);
	if (op->open_already && op->spec.wipe) {
		snprintf(why, sizeof(why), "%.150s is in use by disk group %u of this node: not wiped",
			 op->spec.capacity[0], op->set.number);
		add_free(op);
		admin_fail(q, -ERR_BUSY, "%s", why);
		return;
	}
	add_run(op, 0);
}
