/* SPDX-License-Identifier: Apache-2.0 */
/* Taking attachments away. The command revokes at once; it is complete when every node that is primary
 * for one of the volume's objects has applied it on all its shards (replication.md A2), so the answer
 * waits for that, not for ever, and names the nodes it could not wait for. Must never say of a gateway
 * that it is fenced when a primary may still take its writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/admin_impl.h"

#define FENCE_WAIT_US  5000000u
#define FENCE_PAUSE_US 50000u

struct detach {
	struct wait wait, asked, found;
	struct areq *q;
	struct control_propose propose;
	char name[NAME_MAX_LEN + 1];
	uint32_t volume;
	struct ask_all *ask;
	struct json *local;
	unsigned pending;
	struct timer pause;
	uint64_t give_up_us;
};

static bool is_primary(const struct map *m, const struct map_volume *v, uint16_t node)
{
	for (uint32_t i = 0; i < v->objects; i++) {
		const struct map_node *n = map_primary_node(m, &v->object[i]);

		if (n && n->id == node)
			return true;
	}
	return false;
}

/* What the node's shards have all applied, by its last answer. */
static uint64_t applied_at(const struct detach *d, uint16_t node)
{
	const struct json *j = node == d->q->admin->cfg.identity->number ? d->local : NULL;

	for (unsigned i = 0; !j && i < d->ask->count; i++)
		if (d->ask->one[i].node == node)
			j = d->ask->one[i].json;
	return j ? json_u64(j, "shards_map_version", 0) : 0;
}

/* Primaries that have not confirmed; NULL when all have. *waitable: one of them can be asked again. */
static struct json *unconfirmed(const struct detach *d, bool *waitable)
{
	const struct map *m = admin_map(d->q->admin);
	const struct map_volume *v = m ? map_volume(m, d->volume) : NULL;
	struct json *list = NULL;

	*waitable = false;
	for (struct hnode *h = v ? hmap_walk(&m->nodes, NULL) : NULL; h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (!is_primary(m, v, n->id) || applied_at(d, n->id) >= d->propose.result.index)
			continue;
		list = list ? list : json_array_new();
		json_add_str(list, n->name);
		*waitable |= facts_node_up(d->q->admin, n->id);
	}
	return list;
}

static void detach_reply(struct detach *d, struct json *missing)
{
	struct json *j = json_object_new();
	char note[256] = "";

	json_put_str(j, "name", d->name);
	json_put_str(j, "done", d->propose.result.number ? "detached" : "was not attached");
	json_put_u64(j, "detached", d->propose.result.number);
	json_put_u64(j, "index", d->propose.result.index);
	json_put_bool(j, "complete", !missing);
	if (missing)
		snprintf(note, sizeof(note),
			 "not confirmed by %.63s%s yet: writes of the old gateway may be taken "
			 "there until it is reached, or its objects have another primary",
			 json_as_str(json_at(missing, 0)), json_len(missing) > 1 ? " and others" : "");
	else
		snprintf(note, sizeof(note), "%s", d->propose.result.text);
	if (note[0])
		json_put_str(j, "note", note);
	if (missing)
		json_put(j, "unconfirmed", missing);
	timer_fini(&d->pause);
	admin_reply(d->q, 200, j); /* frees d */
}

static void detach_ask(struct detach *d);

static void detach_part(struct detach *d)
{
	struct ask_all *ask = d->ask;
	struct json *local = d->local, *missing;
	bool waitable;

	if (--d->pending)
		return;
	missing = unconfirmed(d, &waitable);
	d->ask = NULL;
	d->local = NULL;
	if (missing && waitable && loop_mono_us(d->q->admin->cfg.loop) < d->give_up_us) {
		json_free(missing);
		timer_set(&d->pause, FENCE_PAUSE_US);
	} else {
		detach_reply(d, missing);
	}
	ask_all_free(ask);
	json_free(local);
}

static void on_asked(struct wait *w, int rc)
{
	detach_part(container_of(w, struct detach, asked));
}

static void on_found(struct wait *w, int rc)
{
	detach_part(container_of(w, struct detach, found));
}

static void detach_ask(struct detach *d)
{
	d->pending = 3; /* the two parts, and this function */
	if (ask_all(d->q->admin, "/v1/local", &d->ask, &d->asked) != PENDING)
		d->pending--;
	if (local_facts(d->q->admin, &d->local, &d->found) != PENDING)
		d->pending--;
	detach_part(d);
}

static void on_pause(struct timer *t)
{
	detach_ask(container_of(t, struct detach, pause));
}

static void on_revoked(struct wait *w, int rc)
{
	struct detach *d = container_of(w, struct detach, wait);

	if (admin_failed(d->q, rc, &d->propose.result))
		return; /* the timer was never set */
	if (!d->propose.result.number) {
		detach_reply(d, NULL);
		return;
	}
	d->give_up_us = loop_mono_us(d->q->admin->cfg.loop) + FENCE_WAIT_US;
	detach_ask(d);
}

void admin_detach_volume(struct areq *q)
{
	const struct map *m = admin_map(q->admin);
	const struct map_volume *v = map_volume_by_name(m, q->param);
	const char *holder = q->body ? json_str(q->body, "holder") : NULL;
	struct command cmd;
	struct detach *d;
	int rc;

	if (!v) {
		admin_fail(q, -ERR_NOT_FOUND,
			   "no volume is named \"%.63s\"; `ashlar volume list` shows all", q->param);
		return;
	}
	for (void *it = q->body ? json_members(q->body) : NULL; it; it = json_members_next(q->body, it))
		if (strcmp(json_member_key(it), "fence") && strcmp(json_member_key(it), "holder")) {
			admin_fail(q, -ERR_INVALID, "unknown member \"%.40s\"", json_member_key(it));
			return;
		}
	if (holder && strlen(holder) >= sizeof(cmd.fence.holder)) {
		admin_fail(q, -ERR_INVALID, "no holder has so long a name");
		return;
	}
	d = xcalloc(1, sizeof(*d));
	d->q = q;
	d->volume = v->id;
	snprintf(d->name, sizeof(d->name), "%s", v->name);
	d->wait.resume = on_revoked;
	d->asked.resume = on_asked;
	d->found.resume = on_found;
	timer_init(&d->pause, q->admin->cfg.loop, on_pause);
	q->op = d;
	admin_command(q, CMD_FENCE, &cmd);
	cmd.fence.volume = v->id;
	cmd.fence.newest = m->next_attachment - 1;
	cmd.fence.expired_only = !json_bool(q->body, "fence", false);
	snprintf(cmd.fence.holder, sizeof(cmd.fence.holder), "%s", holder ? holder : "");
	rc = q->admin->ops->propose(q->admin->cluster, &d->propose, &cmd, PROPOSE_TIMEOUT_MS, &d->wait);
	if (rc != PENDING)
		on_revoked(&d->wait, rc);
}
