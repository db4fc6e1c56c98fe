/* SPDX-License-Identifier: Apache-2.0 */
#include "cluster/consensus_recover.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"

struct consensus_offline {
	struct raft_disk *disk;
	struct raft_disk_image image;
	uint16_t node;
};

static int voters_of(const void *conf, size_t len, struct consensus_survivor *s)
{
	struct raft_configuration c;

	if (configuration_decode(conf, len, &c) < 0)
		return -ERR_CORRUPT;
	s->voters = 0;
	for (unsigned i = 0; i < c.n; i++) {
		if (c.servers[i].role != RAFT_VOTER)
			continue;
		if (s->voters < ARRAY_LEN(s->voter))
			s->voter[s->voters] = (uint16_t)c.servers[i].id;
		s->voters++;
	}
	raft_configuration_close(&c);
	return 0;
}

static int read_entry(const struct consensus_offline *o, size_t i,
		      const struct consensus_hooks *hooks, void *ctx, struct consensus_survivor *s)
{
	const struct raft_disk_entry *e = &o->image.entry[i];
	uint64_t index = o->image.first + i;
	static struct command_result result;

	s->last_index = index;
	s->last_term = e->term;
	if (e->type == RAFT_CHANGE)
		return voters_of(e->data, e->len, s);
	if (e->type == RAFT_COMMAND && hooks && index > s->snapshot_index)
		hooks->apply(ctx, index, e->data, e->len, &result);
	return 0;
}

static int read_all(const struct consensus_offline *o, const struct consensus_hooks *hooks,
		    void *ctx, struct consensus_survivor *s)
{
	const struct raft_disk_snapshot *snap = &o->image.snapshot;
	int rc = 0;

	s->term = o->image.term;
	if (o->image.has_snapshot) {
		s->snapshot_index = s->last_index = snap->index;
		s->last_term = snap->term;
		rc = voters_of(snap->conf, snap->conf_len, s);
		if (!rc && hooks)
			rc = hooks->restore(ctx, snap->data, snap->len, snap->index);
	}
	for (size_t i = 0; !rc && i < o->image.count; i++)
		rc = read_entry(o, i, hooks, ctx, s);
	if (!rc && !s->last_index)
		rc = -ERR_NOT_FOUND;
	if (rc == -ERR_CORRUPT)
		log_error("raft", "the Raft log is damaged: a configuration in it cannot be read",
			  "node=%u", o->node);
	return rc;
}

int consensus_offline_open(const char *dir, uint16_t node, const struct consensus_hooks *hooks,
			   void *ctx, struct consensus_offline **out, struct consensus_survivor *s)
{
	struct consensus_offline *o;
	int rc;

	memset(s, 0, sizeof(*s));
	if (access(dir, F_OK) < 0)
		return -ERR_NOT_FOUND; /* opening would make it */
	o = xcalloc(1, sizeof(*o));
	o->node = node;
	rc = raft_log_open(dir, node, &o->disk);
	if (rc < 0) {
		free(o);
		return rc;
	}
	rc = o->disk->ops->load(o->disk, &o->image);
	if (!rc)
		rc = read_all(o, hooks, ctx, s);
	if (rc < 0) {
		consensus_offline_close(o);
		return rc;
	}
	*out = o;
	return 0;
}

/* This node alone. */
static int configuration_alone(uint16_t node, struct raft_buffer *out)
{
	struct raft_configuration c;
	char address[8];
	int rc;

	snprintf(address, sizeof(address), "%u", node);
	raft_configuration_init(&c);
	CHECK(raft_configuration_add(&c, node, address, RAFT_VOTER) == 0);
	rc = configuration_encode(&c, out);
	raft_configuration_close(&c);
	return rc;
}

int consensus_offline_go_on(struct consensus_offline *o, uint64_t index, const void *data,
			    size_t len)
{
	const struct raft_disk_image *i = &o->image;
	uint64_t last = i->count ? i->first + i->count - 1 : i->snapshot.index;
	struct raft_write w = {.kind = RAFT_WRITE_SNAPSHOT, .first = i->first, .last = last};
	struct raft_buffer conf;
	int rc;

	if (index <= last)
		return -ERR_INVALID;
	if (len > MESSAGE_SNAPSHOT_BYTES_MAX)
		return -ERR_LIMIT;
	if (!i->count)
		w.last = w.first - 1; /* there are none that go */
	if (configuration_alone(o->node, &conf) < 0)
		return -ENOMEM;
	w.snapshot = (struct raft_disk_snapshot){.index = index,
						 .term = i->count ? i->entry[i->count - 1].term
								  : i->snapshot.term,
						 .conf_index = index,
						 .conf = conf.base,
						 .conf_len = conf.len,
						 .data = (void *)data,
						 .len = len};
	/* The term first: by itself it changes nothing. Then all in one batch. */
	rc = o->disk->ops->set_term(o->disk, i->term + 1);
	if (!rc)
		rc = o->disk->ops->write(o->disk, &w, 1);
	raft_free(conf.base);
	return rc;
}

void consensus_offline_close(struct consensus_offline *o)
{
	raft_disk_image_free(&o->image);
	o->disk->ops->close(o->disk);
	free(o);
}
