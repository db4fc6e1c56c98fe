/* SPDX-License-Identifier: Apache-2.0 */
/* The log as index → (term, type), pending writes included, with the configurations in it.
 * libraft's own idea of its log cannot be asked what is durable, and its lookups run into missing
 * asserts; the guards decide on this view. The loop's thread only. */
#pragma once

#include <raft.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view_entry {
	uint64_t term;
	unsigned short type;
};

/* A configuration and the index of its entry, oldest first. */
struct view_conf {
	uint64_t index;
	struct raft_configuration conf;
};

struct log_view {
	uint64_t first; /* index of entry[0]; last = first + count - 1 */
	size_t count, cap;
	struct view_entry *entry;
	uint64_t snapshot_index, snapshot_term;
	struct raft_configuration snapshot_conf;
	struct view_conf *conf; /* one per CHANGE entry in the log */
	unsigned conf_count, conf_cap;
	uint64_t durable; /* the last index whose write has ended */
};

void view_init(struct log_view *v, uint64_t first);
void view_fini(struct log_view *v);

static inline uint64_t view_last(const struct log_view *v)
{
	return v->first + v->count - 1;
}
uint64_t view_term(const struct log_view *v, uint64_t index); /* 0: not known */
bool view_has_change(const struct log_view *v, uint64_t index);

/* 0, or -ERR_CORRUPT when a CHANGE entry cannot be decoded. */
int view_append(struct log_view *v, const struct raft_entry *e) __attribute__((warn_unused_result));
void view_truncate(struct log_view *v, uint64_t index); /* from `index` on */
/* Our own snapshot at `index`: keeps `trailing` entries before it. */
void view_compact(struct log_view *v, uint64_t index, unsigned trailing);
/* A snapshot replaces the log. */
void view_wipe(struct log_view *v, uint64_t index);
/* Takes the configuration over (it is moved). */
void view_set_snapshot(struct log_view *v, uint64_t index, uint64_t term,
		       struct raft_configuration *conf);
/* The newest configuration: of the log, else of the snapshot. Never NULL; may have no servers. */
const struct raft_configuration *view_configuration(const struct log_view *v);
