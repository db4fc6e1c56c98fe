/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that change volumes. Each becomes one command; what the state machine refuses is
 * answered with its own sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"
#include "node/base/text.h"

#define DETACH_LOOK_US 50000u
#define DETACH_LOOKS   20u

struct change {
	struct wait wait;
	struct areq *q;
	struct control_propose propose;
	struct map_volume want;
	char name[NAME_MAX_LEN + 1];
	const char *done; /* what happened, for the answer */
	uint32_t volume;  /* to be deleted */
	struct timer timer;
	unsigned looks;
};

static void on_changed(struct wait *w, int rc)
{
	struct change *c = container_of(w, struct change, wait);
	struct areq *q = c->q;
	struct json *j;

	if (admin_failed(q, rc, &c->propose.result))
		return;
	j = json_object_new();
	json_put_str(j, "name", c->name);
	json_put_u64(j, "id", c->propose.result.id);
	json_put_str(j, "done", c->done);
	if (c->propose.result.text[0])
		json_put_str(j, "note", c->propose.result.text);
	json_put_u64(j, "index", c->propose.result.index);
	admin_reply(q, 200, j);
}

static struct change *change_new(struct areq *q, const char *name, const char *done)
{
	struct change *c = xcalloc(1, sizeof(*c));

	c->wait.resume = on_changed;
	c->q = q;
	c->done = done;
	snprintf(c->name, sizeof(c->name), "%s", name);
	q->op = c;
	return c;
}

static void change_settle(struct change *c, int rc)
{
	if (rc != PENDING)
		on_changed(&c->wait, rc);
}

/* A misspelt "copys" must not make a one-copy volume. */
bool admin_only_known(struct areq *q, const char *const *known, size_t n)
{
	for (void *it = q->body ? json_members(q->body) : NULL; it;
	     it = json_members_next(q->body, it)) {
		bool found = false;

		for (size_t i = 0; i < n; i++)
			found |= !strcmp(json_member_key(it), known[i]);
		if (!found) {
			admin_fail(q, -ERR_INVALID, "unknown member \"%.40s\"",
				   json_member_key(it));
			return false;
		}
	}
	return true;
}

/* Two, but for a cluster that is one node and stays so, as a standalone one. */
static uint64_t default_copies(const struct areq *q)
{
	const struct map *m = admin_map(q->admin);
	unsigned nodes = 0;

	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		nodes += n->state == NODE_ACTIVE || n->state == NODE_JOINING;
	}
	return nodes > 1 ? 2 : 1;
}

/* False: the request was answered. */
static bool size_ok(struct areq *q, uint64_t size)
{
	char text[24];

	if (size > VOLUME_SIZE_MAX)
		admin_fail(q, -ERR_INVALID,
			   "size_bytes is %s, and a volume has at most 64 TiB: make several",
			   bytes_text(size, text));
	else if (!size || size % 4096)
		admin_fail(q, -ERR_INVALID,
			   "size_bytes must be a multiple of 4096 from 4096 on, at most 64 TiB, not %llu",
			   (unsigned long long)size);
	return size && size % 4096 == 0 && size <= VOLUME_SIZE_MAX;
}

void admin_create_volume(struct areq *q)
{
	static const char *const known[] = {"name",        "size_bytes",  "copies",
					    "min_in_sync", "compression", "dedup"};
	const char *name = q->body ? json_str(q->body, "name") : NULL;
	struct map_volume *v;
	struct change *c;

	if (!admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (!name || !*name || strlen(name) > NAME_MAX_LEN) {
		admin_fail(q, -ERR_INVALID, "a volume needs a name of 1 to %u characters",
			   NAME_MAX_LEN);
		return;
	}
	/* Whether the name is taken the state machine says: the map here may be a moment old. */
	c = change_new(q, name, "created");
	v = &c->want;
	snprintf(v->name, sizeof(v->name), "%s", name);
	uuid_make(&v->uuid);
	v->size = json_u64(q->body, "size_bytes", 0);
	v->copies = (uint8_t)MIN(json_u64(q->body, "copies", default_copies(q)), 255);
	v->min_in_sync = (uint8_t)MIN(json_u64(q->body, "min_in_sync", 1), 255);
	v->flags = (json_bool(q->body, "compression", false) ? VOLUME_COMPRESSION : 0) |
		   (json_bool(q->body, "dedup", false) ? VOLUME_DEDUP : 0);
	v->state = VOLUME_LIVE;
	if (!size_ok(q, v->size))
		return;
	if (v->copies < 1 || v->copies > COPIES_MAX || v->min_in_sync < 1 ||
	    v->min_in_sync > v->copies) {
		admin_fail(q, -ERR_INVALID, "copies must be 1 to %u and min_in_sync 1 to copies",
			   COPIES_MAX);
		return;
	}
	change_settle(c, q->admin->ops->volume_create(q->admin->cluster, &c->propose, v, q->actor,
						      &c->wait));
}

static const struct map_volume *find_volume(struct areq *q)
{
	const struct map_volume *v = map_volume_by_name(admin_map(q->admin), q->param);

	if (!v && !admin_ask_leader(q))
		admin_fail(q, -ERR_NOT_FOUND,
			   "no volume is named \"%.63s\"; `ashlar volume list` shows all",
			   q->param);
	return v;
}

static void resize(struct areq *q, const struct map_volume *v)
{
	uint64_t size = json_u64(q->body, "size_bytes", 0);
	struct change *c;

	if (!size_ok(q, size))
		return;
	c = change_new(q, v->name, "resized");
	change_settle(c, q->admin->ops->volume_resize(q->admin->cluster, &c->propose, v->id, size,
						      q->actor, &c->wait));
}

void admin_resize_volume(struct areq *q)
{
	static const char *const known[] = {"size_bytes"};
	const struct map_volume *v = find_volume(q);

	if (v && admin_only_known(q, known, ARRAY_LEN(known)))
		resize(q, v);
}

/* One kind of change at a time: size, or policy. */
void admin_patch_volume(struct areq *q)
{
	static const char *const known[] = {"size_bytes", "min_in_sync", "compression", "dedup", "existing"};
	const char *existing = q->body ? json_str(q->body, "existing") : NULL;
	const struct map_volume *v = find_volume(q);
	struct command cmd;
	struct change *c;
	bool flags, reduce;

	if (!v || !admin_only_known(q, known, ARRAY_LEN(known)))
		return;
	if (existing && strcmp(existing, "reduce") && strcmp(existing, "leave")) {
		admin_fail(q, -ERR_INVALID, "existing is \"reduce\" or \"leave\"");
		return;
	}
	reduce = existing && !strcmp(existing, "reduce");
	flags = json_has(q->body, "compression") || json_has(q->body, "dedup");
	if (json_has(q->body, "size_bytes")) {
		if (flags || reduce || json_has(q->body, "min_in_sync"))
			admin_fail(q, -ERR_INVALID,
				   "change the size and the policy in two requests");
		else
			resize(q, v);
		return;
	}
	if (!flags && !reduce && !json_has(q->body, "min_in_sync")) {
		admin_fail(q, -ERR_INVALID,
			   "nothing to change: give size_bytes, min_in_sync, compression or dedup");
		return;
	}
	c = change_new(q, v->name, "changed");
	admin_command(q, CMD_VOLUME_SET, &cmd);
	cmd.volume_set.id = v->id;
	cmd.volume_set.set_mask = (flags ? VOLUME_SET_FLAGS : 0) | (reduce ? VOLUME_SET_REDUCE : 0) |
				  (json_has(q->body, "min_in_sync") ? VOLUME_SET_MIN_IN_SYNC : 0);
	cmd.volume_set.min_in_sync =
		(uint8_t)MIN(json_u64(q->body, "min_in_sync", v->min_in_sync), 255);
	if (json_bool(q->body, "compression", v->flags & VOLUME_COMPRESSION))
		cmd.volume_set.flags |= VOLUME_COMPRESSION;
	if (json_bool(q->body, "dedup", v->flags & VOLUME_DEDUP))
		cmd.volume_set.flags |= VOLUME_DEDUP;
	change_settle(c, q->admin->ops->propose(q->admin->cluster, &c->propose, &cmd,
						PROPOSE_TIMEOUT_MS, &c->wait));
}

static void delete_propose(struct change *c)
{
	struct areq *q = c->q;
	struct command cmd;

	admin_command(q, CMD_VOLUME_DELETE, &cmd);
	cmd.volume_delete.id = c->volume;
	change_settle(c, q->admin->ops->propose(q->admin->cluster, &c->propose, &cmd,
						PROPOSE_TIMEOUT_MS, &c->wait));
}

static bool attached(const struct map *m, uint32_t volume)
{
	for (struct hnode *h = hmap_walk(&m->attachments, NULL); h;
	     h = hmap_walk(&m->attachments, h)) {
		const struct map_attachment *a = container_of(h, struct map_attachment, by_id);

		if (a->volume == volume && !a->revoked)
			return true;
	}
	return false;
}

/* The last connection was closed a moment ago and its detach is on the way here. */
static void delete_look(struct timer *t)
{
	struct change *c = container_of(t, struct change, timer);
	struct admin *a = c->q->admin;

	if (!a->stopping && attached(admin_map(a), c->volume) && c->looks++ < DETACH_LOOKS) {
		timer_set(t, DETACH_LOOK_US);
		return;
	}
	timer_fini(t);
	delete_propose(c);
}

void admin_delete_volume(struct areq *q)
{
	const struct map_volume *v = find_volume(q);
	struct change *c;

	if (!v)
		return;
	c = change_new(q, v->name, "deleted");
	c->volume = v->id;
	timer_init(&c->timer, q->admin->cfg.loop, delete_look);
	delete_look(&c->timer);
}
