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

static const char *const kind_name[] = {
	[CMD_CLUSTER_INIT] = "cluster-init",
	[CMD_NODE_ADD] = "node-add",
	[CMD_NODE_START] = "node-start",
	[CMD_NODE_STATE] = "node-state",
	[CMD_TOKEN_ADD] = "token-add",
	[CMD_TOKEN_USE] = "token-use",
	[CMD_GROUP_ADD] = "group-add",
	[CMD_GROUP_STATE] = "group-state",
	[CMD_REGROUP] = "regroup",
	[CMD_VOLUME_CREATE] = "volume-create",
	[CMD_VOLUME_RESIZE] = "volume-resize",
	[CMD_VOLUME_DELETE] = "volume-delete",
	[CMD_VOLUME_SET] = "volume-set",
	[CMD_ATTACH] = "attach",
	[CMD_DETACH] = "detach",
	[CMD_OBJECT] = "object",
	[CMD_SETTING] = "setting",
	[CMD_EVENT] = "event",
	[CMD_JOB] = "job",
	[CMD_RENEW] = "renew",
	[CMD_FENCE] = "fence",
	[CMD_MAINTENANCE] = "maintenance",
	[CMD_NODE_REMOVE] = "node-remove",
};

const char *command_kind_name(uint16_t kind)
{
	return kind < ARRAY_LEN(kind_name) && kind_name[kind] ? kind_name[kind] : "unknown";
}

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
#define CHANGE_SIZE 32u

static void write_renew(const struct command *c, struct writer *w)
{
	write_u16(w, (uint16_t)c->renew.count);
	for (unsigned i = 0; i < c->renew.count; i++)
		write_u32(w, c->renew.attachment[i]);
}

static void write_fence(const struct command *c, struct writer *w)
{
	write_u32(w, c->fence.volume);
	write_u32(w, c->fence.newest);
	write_u8(w, c->fence.expired_only);
	write_str(w, c->fence.holder);
}

static void write_job(const struct job_change *j, struct writer *w)
{
	write_u8(w, j->op);
	write_u8(w, j->kind);
	write_u16(w, j->node);
	write_u16(w, j->group);
	write_u32(w, j->id);
	write_u32(w, j->total);
	write_str(w, j->note);
}

static void read_job(struct reader *r, struct job_change *j)
{
	j->op = read_u8(r);
	j->kind = read_u8(r);
	j->node = read_u16(r);
	j->group = read_u16(r);
	j->id = read_u32(r);
	j->total = read_u32(r);
	read_str(r, j->note, sizeof(j->note));
}

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
#define PLACEMENT_SIZE 6u

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

static void write_group_fields(const struct command *c, struct writer *w)
{
	if (c->kind == CMD_GROUP_ADD) {
		map_uuid_write(w, &c->group_add.uuid);
		write_u16(w, c->group_add.node);
		write_u32(w, c->group_add.incarnation);
		write_u64(w, c->group_add.raw_bytes);
	} else if (c->kind == CMD_GROUP_STATE) {
		write_u16(w, c->group_state.group);
		write_u8(w, c->group_state.state);
		write_u8(w, c->group_state.free_steps);
		write_u32(w, c->group_state.incarnation);
	} else {
		write_u16(w, c->regroup.group);
		write_u16(w, c->regroup.node);
		write_u32(w, c->regroup.old_incarnation);
		write_u32(w, c->regroup.new_incarnation);
		write_u8(w, c->regroup.keeps_pages);
	}
}

void command_encode(const struct command *c, struct writer *w)
{
	size_t start = w->len;

	write_u16(w, c->kind);
	write_u16(w, COMMAND_FORMAT);
	write_u64(w, c->time_ms);
	write_str(w, c->actor);
	switch ((enum command_kind)c->kind) {
	case CMD_CLUSTER_INIT:
		map_uuid_write(w, &c->init.cluster);
		map_node_write(w, &c->init.node);
		write_str(w, c->init.name);
		break;
	case CMD_NODE_ADD:
		map_node_write(w, &c->node_add.node);
		write_str(w, c->node_add.token_sha256);
		break;
	case CMD_NODE_START:
		write_node_start(c, w);
		break;
	case CMD_NODE_STATE:
		write_u16(w, c->node_state.node);
		write_u8(w, c->node_state.state);
		write_u8(w, c->node_state.roles);
		break;
	case CMD_TOKEN_ADD:
	case CMD_TOKEN_USE:
		write_str(w, c->token.sha256);
		write_u64(w, c->token.expires_ms);
		break;
	case CMD_GROUP_ADD:
	case CMD_GROUP_STATE:
	case CMD_REGROUP:
		write_group_fields(c, w);
		break;
	case CMD_VOLUME_CREATE:
	case CMD_VOLUME_RESIZE:
		write_volume(c, w);
		break;
	case CMD_VOLUME_DELETE:
		write_u32(w, c->volume_delete.id);
		break;
	case CMD_VOLUME_SET:
		write_u32(w, c->volume_set.id);
		write_u8(w, c->volume_set.set_mask);
		write_u8(w, c->volume_set.flags);
		write_u8(w, c->volume_set.min_in_sync);
		break;
	case CMD_ATTACH:
		write_u32(w, c->attach.volume);
		write_u8(w, c->attach.mode);
		write_u8(w, c->attach.steal);
		write_str(w, c->attach.holder);
		break;
	case CMD_DETACH:
		write_u32(w, c->detach.attachment);
		break;
	case CMD_OBJECT:
		write_changes(c, w);
		break;
	case CMD_SETTING:
		write_str(w, c->setting.key);
		write_str(w, c->setting.value);
		break;
	case CMD_EVENT:
		write_str(w, c->event.code);
		write_str(w, c->event.text);
		write_u8(w, c->event.severity);
		break;
	case CMD_RENEW:
		write_renew(c, w);
		break;
	case CMD_FENCE:
		write_fence(c, w);
		break;
	case CMD_MAINTENANCE:
		write_u16(w, c->maintenance.node);
		write_u8(w, c->maintenance.op);
		write_u32(w, c->maintenance.ttl_s);
		write_str(w, c->maintenance.reason);
		break;
	case CMD_JOB:
		write_job(&c->job, w);
		break;
	case CMD_NODE_REMOVE:
		write_u16(w, c->node_remove.node);
		write_u32(w, c->node_remove.incarnation);
		write_u8(w, c->node_remove.flags);
		break;
	}
	while ((w->len - start) % 8 && !w->bad)
		write_u8(w, 0);
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

static void read_fence(struct reader *r, struct command *c)
{
	c->fence.volume = read_u32(r);
	c->fence.newest = read_u32(r);
	c->fence.expired_only = read_u8(r) != 0;
	read_str(r, c->fence.holder, sizeof(c->fence.holder));
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

static void read_node_start(struct reader *r, struct command *c)
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

static void read_group_fields(struct reader *r, struct command *c)
{
	if (c->kind == CMD_GROUP_ADD) {
		map_uuid_read(r, &c->group_add.uuid);
		c->group_add.node = read_u16(r);
		c->group_add.incarnation = read_u32(r);
		c->group_add.raw_bytes = read_u64(r);
	} else if (c->kind == CMD_GROUP_STATE) {
		c->group_state.group = read_u16(r);
		c->group_state.state = read_u8(r);
		c->group_state.free_steps = read_u8(r);
		c->group_state.incarnation = read_u32(r);
	} else {
		c->regroup.group = read_u16(r);
		c->regroup.node = read_u16(r);
		c->regroup.old_incarnation = read_u32(r);
		c->regroup.new_incarnation = read_u32(r);
		c->regroup.keeps_pages = read_u8(r) != 0;
	}
}

/* The volume commands' and small ones' fields. */
static void read_fields(struct reader *r, struct command *c, void **arena)
{
	switch ((enum command_kind)c->kind) {
	case CMD_CLUSTER_INIT:
		map_uuid_read(r, &c->init.cluster);
		map_node_read(r, &c->init.node);
		read_str(r, c->init.name, sizeof(c->init.name));
		break;
	case CMD_NODE_ADD:
		map_node_read(r, &c->node_add.node);
		read_str(r, c->node_add.token_sha256, sizeof(c->node_add.token_sha256));
		break;
	case CMD_NODE_START:
		read_node_start(r, c);
		break;
	case CMD_NODE_STATE:
		c->node_state.node = read_u16(r);
		c->node_state.state = read_u8(r);
		c->node_state.roles = read_u8(r);
		break;
	case CMD_TOKEN_ADD:
	case CMD_TOKEN_USE:
		read_str(r, c->token.sha256, sizeof(c->token.sha256));
		c->token.expires_ms = read_u64(r);
		break;
	case CMD_GROUP_ADD:
	case CMD_GROUP_STATE:
	case CMD_REGROUP:
		read_group_fields(r, c);
		break;
	case CMD_VOLUME_CREATE:
	case CMD_VOLUME_RESIZE:
		read_volume(r, c, arena);
		break;
	case CMD_VOLUME_DELETE:
		c->volume_delete.id = read_u32(r);
		break;
	case CMD_VOLUME_SET:
		c->volume_set.id = read_u32(r);
		c->volume_set.set_mask = read_u8(r);
		c->volume_set.flags = read_u8(r);
		c->volume_set.min_in_sync = read_u8(r);
		break;
	case CMD_ATTACH:
		c->attach.volume = read_u32(r);
		c->attach.mode = read_u8(r);
		c->attach.steal = read_u8(r) != 0;
		read_str(r, c->attach.holder, sizeof(c->attach.holder));
		break;
	case CMD_DETACH:
		c->detach.attachment = read_u32(r);
		break;
	case CMD_OBJECT:
		read_changes(r, c, arena);
		break;
	case CMD_SETTING:
		read_str(r, c->setting.key, sizeof(c->setting.key));
		read_str(r, c->setting.value, sizeof(c->setting.value));
		break;
	case CMD_EVENT:
		read_str(r, c->event.code, sizeof(c->event.code));
		read_str(r, c->event.text, sizeof(c->event.text));
		c->event.severity = read_u8(r);
		break;
	case CMD_RENEW:
		read_renew(r, c, arena);
		break;
	case CMD_FENCE:
		read_fence(r, c);
		break;
	case CMD_MAINTENANCE:
		c->maintenance.node = read_u16(r);
		c->maintenance.op = read_u8(r);
		c->maintenance.ttl_s = read_u32(r);
		read_str(r, c->maintenance.reason, sizeof(c->maintenance.reason));
		break;
	case CMD_JOB:
		read_job(r, &c->job);
		break;
	case CMD_NODE_REMOVE:
		c->node_remove.node = read_u16(r);
		c->node_remove.incarnation = read_u32(r);
		c->node_remove.flags = read_u8(r);
		break;
	}
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
	uint16_t format;

	memset(out, 0, sizeof(*out));
	*arena = NULL;
	out->kind = read_u16(r);
	format = read_u16(r);
	out->time_ms = read_u64(r);
	read_str(r, out->actor, sizeof(out->actor));
	if (r->bad)
		return -ERR_PROTOCOL;
	if (format != COMMAND_FORMAT || !strcmp(command_kind_name(out->kind), "unknown"))
		return -ERR_VERSION;
	read_fields(r, out, arena);
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
