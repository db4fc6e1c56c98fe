/* SPDX-License-Identifier: Apache-2.0 */
/* The log as the guards see it. An array of a few thousand entries at most: compaction moves it. */
#include "cluster/consensus_view.h"

#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_message.h"
#include "node/base/check.h"

void view_init(struct log_view *v, uint64_t first)
{
	memset(v, 0, sizeof(*v));
	v->first = first;
	v->durable = first - 1;
	raft_configuration_init(&v->snapshot_conf);
}

void view_fini(struct log_view *v)
{
	for (unsigned i = 0; i < v->conf_count; i++)
		raft_configuration_close(&v->conf[i].conf);
	raft_configuration_close(&v->snapshot_conf);
	free(v->conf);
	free(v->entry);
	memset(v, 0, sizeof(*v));
}

uint64_t view_term(const struct log_view *v, uint64_t index)
{
	if (index >= v->first && index < v->first + v->count)
		return v->entry[index - v->first].term;
	return index && index == v->snapshot_index ? v->snapshot_term : 0;
}

bool view_has_change(const struct log_view *v, uint64_t index)
{
	return index >= v->first && index < v->first + v->count &&
	       v->entry[index - v->first].type == RAFT_CHANGE;
}

static int conf_push(struct log_view *v, uint64_t index, const struct raft_buffer *buf)
{
	int rc;

	if (v->conf_count == v->conf_cap) {
		v->conf_cap = v->conf_cap ? 2 * v->conf_cap : 4;
		v->conf = xrealloc(v->conf, v->conf_cap * sizeof(*v->conf));
	}
	rc = configuration_decode(buf->base, buf->len, &v->conf[v->conf_count].conf);
	if (rc < 0)
		return rc;
	v->conf[v->conf_count++].index = index;
	return 0;
}

int view_append(struct log_view *v, const struct raft_entry *e)
{
	if (e->type == RAFT_CHANGE) {
		int rc = conf_push(v, v->first + v->count, &e->buf);

		if (rc < 0)
			return rc;
	}
	if (v->count == v->cap) {
		v->cap = v->cap ? 2 * v->cap : 1024;
		v->entry = xrealloc(v->entry, v->cap * sizeof(*v->entry));
	}
	v->entry[v->count++] = (struct view_entry){.term = e->term, .type = e->type};
	return 0;
}

void view_truncate(struct log_view *v, uint64_t index)
{
	if (index < v->first)
		index = v->first;
	if (index > view_last(v))
		return;
	v->count = index - v->first;
	while (v->conf_count && v->conf[v->conf_count - 1].index >= index)
		raft_configuration_close(&v->conf[--v->conf_count].conf);
	if (v->durable >= index)
		v->durable = index - 1;
}

static void conf_drop_before(struct log_view *v, uint64_t first)
{
	unsigned gone = 0;

	while (gone < v->conf_count && v->conf[gone].index < first)
		raft_configuration_close(&v->conf[gone++].conf);
	v->conf_count -= gone;
	if (v->conf_count)
		memmove(v->conf, v->conf + gone, v->conf_count * sizeof(*v->conf));
}

void view_compact(struct log_view *v, uint64_t index, unsigned trailing)
{
	uint64_t first;

	if (index <= trailing)
		return;
	first = index - trailing + 1;
	if (first <= v->first)
		return;
	CHECK(first <= v->first + v->count);
	v->count -= first - v->first;
	memmove(v->entry, v->entry + (first - v->first), v->count * sizeof(*v->entry));
	v->first = first;
	conf_drop_before(v, first);
}

void view_wipe(struct log_view *v, uint64_t index)
{
	view_truncate(v, v->first);
	v->first = index + 1;
	v->durable = index;
}

void view_set_snapshot(struct log_view *v, uint64_t index, uint64_t term,
		       struct raft_configuration *conf)
{
	v->snapshot_index = index;
	v->snapshot_term = term;
	raft_configuration_close(&v->snapshot_conf);
	v->snapshot_conf = *conf;
	raft_configuration_init(conf);
}

const struct raft_configuration *view_configuration(const struct log_view *v)
{
	return v->conf_count ? &v->conf[v->conf_count - 1].conf : &v->snapshot_conf;
}
