/* SPDX-License-Identifier: Apache-2.0 */
/* Volume commands without placement are wishes; the leader fills the placement in, from the state
 * it has applied, before it appends them. If the state moves on meanwhile, apply refuses and the
 * author asks again. */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>

static unsigned active_groups(const struct map *m)
{
	unsigned count = 0;

	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h))
		count += container_of(h, struct map_group, by_id)->state == GROUP_ACTIVE;
	return count;
}

/* Behind the sentence of a refused placement: each group that could not be used, and why. */
static void reasons_append(char text[256], const struct placement_reason *r, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		size_t n = strlen(text);

		if (strcmp(r[i].text, "could be used"))
			snprintf(text + n, 256 - n, "; group %u: %s", r[i].group, r[i].text);
	}
}

/* What is to be placed, or false if there is nothing or apply will refuse the command anyway. */
static bool request_make(const struct map *m, struct command *cmd, struct placement_request *q)
{
	struct map_volume *v = &cmd->volume.volume;

	if (cmd->kind == CMD_VOLUME_CREATE) {
		if (map_volume_by_name(m, v->name))
			return false;
		q->volume = m->next_volume;
		q->objects = v->objects;
		q->copies = v->copies;
	} else {
		struct map_volume *old = map_volume(m, v->id);

		if (!old || v->size <= old->size || v->size > VOLUME_SIZE_MAX)
			return false;
		q->volume = old->id;
		q->first_object = old->objects;
		q->objects = volume_objects_for(v->size, old->object_size, old->stripe_count) -
			     old->objects;
		q->copies = old->copies;
		cmd->volume.first_object = old->objects;
	}
	return q->objects && q->objects <= OBJECTS_MAX && q->copies >= 1 && q->copies <= COPIES_MAX;
}

/* Groups that are to be empty take nothing new. malloc'ed. */
static uint16_t *emptied_groups(const struct control *c, unsigned *count)
{
	const struct map *m = state_map(c->state);
	unsigned jobs;
	const struct state_job *j = state_jobs(c->state, &jobs);
	uint16_t *out = xcalloc(m->groups.count + 1, sizeof(*out));

	*count = 0;
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *g = container_of(h, struct map_group, by_id);
		bool emptied = false;

		for (unsigned i = 0; i < jobs; i++)
			emptied |= state_job_empties(&j[i], g);
		if (emptied)
			out[(*count)++] = g->id;
	}
	return out;
}

static int place(struct control *c, struct command *cmd, struct writer *placed,
		 struct command_result *out)
{
	const struct map *m = state_map(c->state);
	struct placement_request q = {0};
	struct placement_reason reason[16];
	struct map_member *member = NULL;
	unsigned reasons = 0;
	int rc = 0;

	if (request_make(m, cmd, &q)) {
		uint16_t *exclude = emptied_groups(c, &q.exclude_count);

		q.exclude = exclude;
		member = xcalloc((size_t)q.objects * q.copies, sizeof(*member));
		rc = placement_choose(m, &q, member, reason, &reasons, ARRAY_LEN(reason),
				      out->text);
		free(exclude);
		cmd->volume.placement = member;
		cmd->volume.placement_count = rc ? 0 : q.objects * q.copies;
	}
	out->code = rc;
	if (rc)
		reasons_append(out->text, reason, reasons);
	else
		command_encode(cmd, placed);
	free(member);
	return rc;
}

int control_place(struct control *c, const void *data, size_t len, struct writer *placed,
		  struct command_result *out)
{
	struct reader r = reader_init(data, len);
	uint16_t kind = len >= 2 ? get_le16(data) : 0;
	struct command *cmd;
	void *arena = NULL;
	int rc = 0;

	if (kind == CMD_NODE_REMOVE)
		return control_remove_check(c, data, len, out);
	if (kind != CMD_VOLUME_CREATE && kind != CMD_VOLUME_RESIZE)
		return 0;
	cmd = xcalloc(1, sizeof(*cmd));
	if (!command_decode(&r, cmd, &arena) && !cmd->volume.placement_count)
		rc = place(c, cmd, placed, out);
	free(arena);
	free(cmd);
	return rc;
}

/* The identity of a new volume, from the loop's random numbers: a simulated run repeats it. */
static void uuid_draw(struct control *c, struct uuid *u)
{
	rng_fill(loop_rng(c->cfg.loop), u->b, sizeof(u->b));
	u->b[6] = (u->b[6] & 0x0f) | 0x40;
	u->b[8] = (u->b[8] & 0x3f) | 0x80;
}

int control_volume_create(struct control *c, struct control_propose *p,
			  const struct map_volume *want, const char *actor, struct wait *w)
{
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	struct map_volume *v = &cmd->volume.volume;
	uint64_t object_size;
	uint32_t stripe_count, objects;
	int rc;

	cmd->kind = CMD_VOLUME_CREATE;
	snprintf(cmd->actor, sizeof(cmd->actor), "%s", actor);
	*v = *want;
	if (uuid_is_nil(&v->uuid))
		uuid_draw(c, &v->uuid);
	if (!v->min_in_sync)
		v->min_in_sync = 1;
	/* What is not asked for is chosen here; what is wrong is left for apply to refuse in words.
	 */
	if (!volume_geometry(v->size, active_groups(state_map(c->state)), &object_size,
			     &stripe_count, &objects)) {
		if (!v->object_size)
			v->object_size = object_size;
		if (!v->stripe_count)
			v->stripe_count = stripe_count;
		if (is_pow2(v->object_size) && v->object_size <= OBJECT_SIZE_MAX &&
		    v->stripe_count <= STRIPE_COUNT_MAX)
			v->objects = volume_objects_for(v->size, v->object_size, v->stripe_count);
	}
	rc = control_propose(c, p, cmd, CONTROL_VOLUME_MS, w);
	free(cmd);
	return rc;
}

int control_volume_resize(struct control *c, struct control_propose *p, uint32_t volume,
			  uint64_t size, const char *actor, struct wait *w)
{
	struct map_volume *old = map_volume(state_map(c->state), volume);
	struct command *cmd = xcalloc(1, sizeof(*cmd));
	int rc;

	cmd->kind = CMD_VOLUME_RESIZE;
	snprintf(cmd->actor, sizeof(cmd->actor), "%s", actor);
	cmd->volume.volume.id = volume;
	cmd->volume.volume.size = size;
	cmd->volume.first_object = old ? old->objects : 0;
	rc = control_propose(c, p, cmd, CONTROL_VOLUME_MS, w);
	free(cmd);
	return rc;
}
