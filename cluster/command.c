/* SPDX-License-Identifier: Apache-2.0 */
/* Codec of commands and their results: what is in the Raft log for ever. Layout per kind is the
 * order of the reads and writes below; tests/state holds golden bytes of each. Format 1.
 *
 * Decoding validates only what memory safety needs (lengths, counts, enum width); whether a command
 * makes sense is for state.c to say, as a refusal. Links with node/base only: clients use it. */
#include "cluster/command.h"
#include "cluster/map_codec.h"
#include "node/base/err.h"

#include <stdlib.h>

#define COMMAND_FORMAT 1u
#define PLACEMENT_MAX  (OBJECTS_MAX * COPIES_MAX)

/* ---- The fields of each kind: what is written, and the same read --------------------------------- */

static void write_init(const struct command *c, struct writer *w)
{
	map_uuid_write(w, &c->init.cluster);
	map_node_write(w, &c->init.node);
	write_str(w, c->init.name);
}

static void read_init(struct reader *r, struct command *c, void **arena)
{
	map_uuid_read(r, &c->init.cluster);
	map_node_read(r, &c->init.node);
	read_str(r, c->init.name, sizeof(c->init.name));
}

static void write_node_add(const struct command *c, struct writer *w)
{
	map_node_write(w, &c->node_add.node);
	write_str(w, c->node_add.token_sha256);
}

static void read_node_add(struct reader *r, struct command *c, void **arena)
{
	map_node_read(r, &c->node_add.node);
	read_str(r, c->node_add.token_sha256, sizeof(c->node_add.token_sha256));
}

static void write_node_start(const struct command *c, struct writer *w)
{
	write_u16(w, c->node_start.node);
	write_u32(w, c->node_start.incarnation);
	write_u32(w, c->node_start.old_incarnation);
	write_u16(w, c->node_start.shards);
	write_u8(w, c->node_start.roles);
	write_u8(w, c->node_start.version_major);
	write_u8(w, c->node_start.version_minor);
	write_str(w, c->node_start.address);
	write_str(w, c->node_start.admin);
}

static void read_node_start(struct reader *r, struct command *c, void **arena)
{
	c->node_start.node = read_u16(r);
	c->node_start.incarnation = read_u32(r);
	c->node_start.old_incarnation = read_u32(r);
	c->node_start.shards = read_u16(r);
	c->node_start.roles = read_u8(r);
	c->node_start.version_major = read_u8(r);
	c->node_start.version_minor = read_u8(r);
	read_str(r, c->node_start.address, sizeof(c->node_start.address));
	read_str(r, c->node_start.admin, sizeof(c->node_start.admin));
}

static void write_node_state(const struct command *c, struct writer *w)
{
	write_u16(w, c->node_state.node);
	write_u8(w, c->node_state.state);
	write_u8(w, c->node_state.roles);
}

static void read_node_state(struct reader *r, struct command *c, void **arena)
{
	c->node_state.node = read_u16(r);
	c->node_state.state = read_u8(r);
	c->node_state.roles = read_u8(r);
}

static void write_node_remove(const struct command *c, struct writer *w)
{
	write_u16(w, c->node_remove.node);
	write_u32(w, c->node_remove.incarnation);
	write_u8(w, c->node_remove.flags);
}

static void read_node_remove(struct reader *r, struct command *c, void **arena)
{
	c->node_remove.node = read_u16(r);
	c->node_remove.incarnation = read_u32(r);
	c->node_remove.flags = read_u8(r);
}

static void write_token(const struct command *c, struct writer *w)
{
	write_str(w, c->token.sha256);
	write_u64(w, c->token.expires_ms);
}

static void read_token(struct reader *r, struct command *c, void **arena)
{
	read_str(r, c->token.sha256, sizeof(c->token.sha256));
	c->token.expires_ms = read_u64(r);
}

static void write_group_add(const struct command *c, struct writer *w)
{
	map_uuid_write(w, &c->group_add.uuid);
	write_u16(w, c->group_add.node);
	write_u32(w, c->group_add.incarnation);
	write_u64(w, c->group_add.raw_bytes);
}

static void read_group_add(struct reader *r, struct command *c, void **arena)
{
	map_uuid_read(r, &c->group_add.uuid);
	c->group_add.node = read_u16(r);
	c->group_add.incarnation = read_u32(r);
	c->group_add.raw_bytes = read_u64(r);
}

static void write_group_state(const struct command *c, struct writer *w)
{
	write_u16(w, c->group_state.group);
	write_u8(w, c->group_state.state);
	write_u8(w, c->group_state.free_steps);
	write_u32(w, c->group_state.incarnation);
}

static void read_group_state(struct reader *r, struct command *c, void **arena)
{
	c->group_state.group = read_u16(r);
	c->group_state.state = read_u8(r);
	c->group_state.free_steps = read_u8(r);
	c->group_state.incarnation = read_u32(r);
}

static void write_regroup(const struct command *c, struct writer *w)
{
	write_u16(w, c->regroup.group);
	write_u16(w, c->regroup.node);
	write_u32(w, c->regroup.old_incarnation);
	write_u32(w, c->regroup.new_incarnation);
	write_u8(w, c->regroup.keeps_pages);
}

static void read_regroup(struct reader *r, struct command *c, void **arena)
{
	c->regroup.group = read_u16(r);
	c->regroup.node = read_u16(r);
	c->regroup.old_incarnation = read_u32(r);
	c->regroup.new_incarnation = read_u32(r);
	c->regroup.keeps_pages = read_u8(r) != 0;
}

#define PLACEMENT_SIZE 6u

static void write_volume(const struct command *c, struct writer *w)
{
	map_volume_write(w, &c->volume.volume);
	write_u32(w, c->volume.first_object);
	write_u32(w, c->volume.placement_count);
	for (unsigned i = 0; i < c->volume.placement_count; i++) {
		write_u16(w, c->volume.placement[i].group);
		write_u32(w, c->volume.placement[i].group_incarnation);
	}
}

static void read_volume(struct reader *r, struct command *c, void **arena)
{
	unsigned count;

	map_volume_read(r, &c->volume.volume, false);
	c->volume.first_object = read_u32(r);
	count = read_u32(r);
	if (count > PLACEMENT_MAX || reader_left(r) < (size_t)count * PLACEMENT_SIZE) {
		r->bad = true;
		return;
	}
	c->volume.placement_count = count;
	c->volume.placement = *arena = xcalloc(count + 1, sizeof(*c->volume.placement));
	for (unsigned i = 0; i < count; i++) {
		c->volume.placement[i].group = read_u16(r);
		c->volume.placement[i].group_incarnation = read_u32(r);
	}
}

static void write_volume_delete(const struct command *c, struct writer *w)
{
	write_u32(w, c->volume_delete.id);
}

static void read_volume_delete(struct reader *r, struct command *c, void **arena)
{
	c->volume_delete.id = read_u32(r);
}

static void write_volume_set(const struct command *c, struct writer *w)
{
	write_u32(w, c->volume_set.id);
	write_u8(w, c->volume_set.set_mask);
	write_u8(w, c->volume_set.flags);
	write_u8(w, c->volume_set.min_in_sync);
}

static void read_volume_set(struct reader *r, struct command *c, void **arena)
{
	c->volume_set.id = read_u32(r);
	c->volume_set.set_mask = read_u8(r);
	c->volume_set.flags = read_u8(r);
	c->volume_set.min_in_sync = read_u8(r);
}

static void write_attach(const struct command *c, struct writer *w)
{
	write_u32(w, c->attach.volume);
	write_u8(w, c->attach.mode);
	write_u8(w, c->attach.steal);
	write_str(w, c->attach.holder);
}

static void read_attach(struct reader *r, struct command *c, void **arena)
{
	c->attach.volume = read_u32(r);
	c->attach.mode = read_u8(r);
	c->attach.steal = read_u8(r) != 0;
	read_str(r, c->attach.holder, sizeof(c->attach.holder));
}

static void write_detach(const struct command *c, struct writer *w)
{
	write_u32(w, c->detach.attachment);
}

static void read_detach(struct reader *r, struct command *c, void **arena)
{
	c->detach.attachment = read_u32(r);
}

static void write_renew(const struct command *c, struct writer *w)
{
	write_u16(w, (uint16_t)c->renew.count);
	for (unsigned i = 0; i < c->renew.count; i++)
		write_u32(w, c->renew.attachment[i]);
}

static void read_renew(struct reader *r, struct command *c, void **arena)
{
	unsigned count = read_u16(r);

	if (count > RENEW_MAX || reader_left(r) < (size_t)count * 4) {
		r->bad = true;
		return;
	}
	c->renew.count = count;
	c->renew.attachment = *arena = xcalloc(count + 1, sizeof(*c->renew.attachment));
	for (unsigned i = 0; i < count; i++)
		c->renew.attachment[i] = read_u32(r);
}

static void write_fence(const struct command *c, struct writer *w)
{
	write_u32(w, c->fence.volume);
	write_u32(w, c->fence.newest);
	write_u8(w, c->fence.expired_only);
	write_str(w, c->fence.holder);
}

static void read_fence(struct reader *r, struct command *c, void **arena)
{
	c->fence.volume = read_u32(r);
	c->fence.newest = read_u32(r);
	c->fence.expired_only = read_u8(r) != 0;
	read_str(r, c->fence.holder, sizeof(c->fence.holder));
}

#define CHANGE_SIZE 32u

static void write_changes(const struct command *c, struct writer *w)
{
	write_u16(w, (uint16_t)c->object.count);
	for (unsigned i = 0; i < c->object.count; i++) {
		const struct object_change *ch = &c->object.change[i];

		write_u8(w, ch->op);
		write_u8(w, ch->keep);
		write_u64(w, ch->object);
		write_u32(w, ch->epoch);
		write_u16(w, ch->replica.group);
		write_u32(w, ch->replica.group_incarnation);
		write_u32(w, ch->replica.gen);
		write_u16(w, ch->node);
		write_u32(w, ch->incarnation);
		write_u16(w, ch->proposer);
	}
}

static void read_changes(struct reader *r, struct command *c, void **arena)
{
	unsigned count = read_u16(r);

	if (count > OBJECT_CHANGES_MAX || reader_left(r) < (size_t)count * CHANGE_SIZE) {
		r->bad = true;
		return;
	}
	c->object.count = count;
	c->object.change = *arena = xcalloc(count + 1, sizeof(*c->object.change));
	for (unsigned i = 0; i < count; i++) {
		struct object_change *ch = &c->object.change[i];

		ch->op = read_u8(r);
		ch->keep = read_u8(r);
		ch->object = read_u64(r);
		ch->epoch = read_u32(r);
		ch->replica.group = read_u16(r);
		ch->replica.group_incarnation = read_u32(r);
		ch->replica.gen = read_u32(r);
		ch->node = read_u16(r);
		ch->incarnation = read_u32(r);
		ch->proposer = read_u16(r);
	}
}

static void write_setting(const struct command *c, struct writer *w)
{
	write_str(w, c->setting.key);
	write_str(w, c->setting.value);
}

static void read_setting(struct reader *r, struct command *c, void **arena)
{
	read_str(r, c->setting.key, sizeof(c->setting.key));
	read_str(r, c->setting.value, sizeof(c->setting.value));
}

static void write_event(const struct command *c, struct writer *w)
{
	write_str(w, c->event.code);
	write_str(w, c->event.text);
	write_u8(w, c->event.severity);
}

static void read_event(struct reader *r, struct command *c, void **arena)
{
	read_str(r, c->event.code, sizeof(c->event.code));
	read_str(r, c->event.text, sizeof(c->event.text));
	c->event.severity = read_u8(r);
}

static void write_job(const struct command *c, struct writer *w)
{
	write_u8(w, c->job.op);
	write_u8(w, c->job.kind);
	write_u16(w, c->job.node);
	write_u16(w, c->job.group);
	write_u32(w, c->job.id);
	write_u32(w, c->job.total);
	write_str(w, c->job.note);
}

static void read_job(struct reader *r, struct command *c, void **arena)
{
	c->job.op = read_u8(r);
	c->job.kind = read_u8(r);
	c->job.node = read_u16(r);
	c->job.group = read_u16(r);
	c->job.id = read_u32(r);
	c->job.total = read_u32(r);
	read_str(r, c->job.note, sizeof(c->job.note));
}

static void write_maintenance(const struct command *c, struct writer *w)
{
	write_u16(w, c->maintenance.node);
	write_u8(w, c->maintenance.op);
	write_u32(w, c->maintenance.ttl_s);
	write_str(w, c->maintenance.reason);
}

static void read_maintenance(struct reader *r, struct command *c, void **arena)
{
	c->maintenance.node = read_u16(r);
	c->maintenance.op = read_u8(r);
	c->maintenance.ttl_s = read_u32(r);
	read_str(r, c->maintenance.reason, sizeof(c->maintenance.reason));
}

/* ---- All kinds ---------------------------------------------------------------------------------- */

/* What is not here is refused as a later version's. */
static const struct kind {
	const char *name;
	void (*write)(const struct command *c, struct writer *w);
	/* An array of the command is allocated as *arena; each has one at most. */
	void (*read)(struct reader *r, struct command *c, void **arena);
} kinds[] = {
	[CMD_CLUSTER_INIT] = {"cluster-init", write_init, read_init},
	[CMD_NODE_ADD] = {"node-add", write_node_add, read_node_add},
	[CMD_NODE_START] = {"node-start", write_node_start, read_node_start},
	[CMD_NODE_STATE] = {"node-state", write_node_state, read_node_state},
	[CMD_TOKEN_ADD] = {"token-add", write_token, read_token},
	[CMD_TOKEN_USE] = {"token-use", write_token, read_token},
	[CMD_GROUP_ADD] = {"group-add", write_group_add, read_group_add},
	[CMD_GROUP_STATE] = {"group-state", write_group_state, read_group_state},
	[CMD_REGROUP] = {"regroup", write_regroup, read_regroup},
	[CMD_VOLUME_CREATE] = {"volume-create", write_volume, read_volume},
	[CMD_VOLUME_RESIZE] = {"volume-resize", write_volume, read_volume},
	[CMD_VOLUME_DELETE] = {"volume-delete", write_volume_delete, read_volume_delete},
	[CMD_VOLUME_SET] = {"volume-set", write_volume_set, read_volume_set},
	[CMD_ATTACH] = {"attach", write_attach, read_attach},
	[CMD_DETACH] = {"detach", write_detach, read_detach},
	[CMD_OBJECT] = {"object", write_changes, read_changes},
	[CMD_SETTING] = {"setting", write_setting, read_setting},
	[CMD_EVENT] = {"event", write_event, read_event},
	[CMD_JOB] = {"job", write_job, read_job},
	[CMD_RENEW] = {"renew", write_renew, read_renew},
	[CMD_FENCE] = {"fence", write_fence, read_fence},
	[CMD_MAINTENANCE] = {"maintenance", write_maintenance, read_maintenance},
	[CMD_NODE_REMOVE] = {"node-remove", write_node_remove, read_node_remove},
};

static const struct kind *kind_of(uint16_t kind)
{
	return kind < ARRAY_LEN(kinds) && kinds[kind].name ? &kinds[kind] : NULL;
}

const char *command_kind_name(uint16_t kind)
{
	const struct kind *k = kind_of(kind);

	return k ? k->name : "unknown";
}

void command_encode(const struct command *c, struct writer *w)
{
	const struct kind *k = kind_of(c->kind);
	size_t start = w->len;

	write_u16(w, c->kind);
	write_u16(w, COMMAND_FORMAT);
	write_u64(w, c->time_ms);
	write_str(w, c->actor);
	if (k)
		k->write(c, w);
	while ((w->len - start) % 8 && !w->bad)
		write_u8(w, 0);
}

/* Only zeroes up to the next multiple of 8, and nothing else. */
static bool padding_ok(struct reader *r, size_t used)
{
	if (reader_left(r) != (8 - used % 8) % 8)
		return false;
	while (reader_left(r))
		if (read_u8(r))
			return false;
	return true;
}

int command_decode(struct reader *r, struct command *out, void **arena)
{
	const uint8_t *start = r->p;
	const struct kind *k;
	uint16_t format;

	memset(out, 0, sizeof(*out));
	*arena = NULL;
	out->kind = read_u16(r);
	format = read_u16(r);
	out->time_ms = read_u64(r);
	read_str(r, out->actor, sizeof(out->actor));
	if (r->bad)
		return -ERR_PROTOCOL;
	k = kind_of(out->kind);
	if (format != COMMAND_FORMAT || !k)
		return -ERR_VERSION;
	k->read(r, out, arena);
	if (r->bad || !padding_ok(r, (size_t)(r->p - start))) {
		free(*arena);
		*arena = NULL;
		return -ERR_PROTOCOL;
	}
	return 0;
}

void command_stamp(void *cmd, size_t len, uint64_t time_ms)
{
	uint16_t kind = len >= 12 ? get_le16(cmd) : 0;

	if (kind == CMD_ATTACH || kind == CMD_RENEW || kind == CMD_FENCE ||
	    kind == CMD_VOLUME_DELETE || kind == CMD_MAINTENANCE || kind == CMD_NODE_REMOVE)
		put_le64((uint8_t *)cmd + 4, time_ms);
}

void command_result_encode(const struct command_result *r, struct writer *w)
{
	write_u32(w, (uint32_t)r->code);
	write_u64(w, r->id);
	write_u64(w, r->index);
	write_u32(w, r->number);
	write_str(w, r->text);
	write_u16(w, (uint16_t)r->count);
	write_bytes(w, r->object, r->count);
}

int command_result_decode(struct reader *r, struct command_result *out)
{
	memset(out, 0, sizeof(*out));
	out->code = (int)read_u32(r);
	out->id = read_u64(r);
	out->index = read_u64(r);
	out->number = read_u32(r);
	read_str(r, out->text, sizeof(out->text));
	out->count = read_u16(r);
	if (out->count > OBJECT_CHANGES_MAX) {
		out->count = 0;
		return -ERR_PROTOCOL;
	}
	read_copy(r, out->object, out->count);
	return r->bad || out->code > 0 ? -ERR_PROTOCOL : 0;
}
