/* SPDX-License-Identifier: Apache-2.0 */
/* What the rules of health share: the context, what is known of nodes and groups, and making an item. For
 * node/health*.c only. */
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/text.h"
#include "node/health.h"

struct ctx {
	const struct health_input *in;
	struct health_report *out;
	unsigned single_by_node[NODE_IDS_MAX + 1]; /* objects whose only reachable copy is there */
	bool lost_by_node,
		lost_by_group; /* copies are missing because a node is down, a group failed */
	bool unavailable_by_node, unavailable_by_group;
	bool lives[NODE_IDS_MAX + 1];	/* it answers, or somebody heard it just now: it is not frozen */
	bool cut_off[NODE_IDS_MAX + 1]; /* a data link of the node is cut */
	bool lost_by_cut, unavailable_by_cut; /* copies are not in-sync where one is */
	unsigned voters_up, voters_down;
	unsigned unsure; /* objects */
	unsigned undecided; /* of the unavailable: that wait for an operator, as the map says */
	bool full; /* a disk group is */
	bool lacking; /* one has damage that is not repaired yet */
	unsigned given_up; /* of the unavailable objects: their in-sync replicas went with a removed node */
};

static inline const struct health_node *find_node(const struct health_input *in, uint16_t id)
{
	for (unsigned i = 0; i < in->node_count; i++)
		if (in->nodes[i].id == id)
			return &in->nodes[i];
	return NULL;
}

static inline const struct health_group *find_group(const struct health_input *in, uint16_t id)
{
	for (unsigned i = 0; i < in->group_count; i++)
		if (in->groups[i].id == id)
			return &in->groups[i];
	return NULL;
}

static inline bool node_up(const struct health_input *in, uint16_t id)
{
	const struct health_node *n = find_node(in, id);

	return n && n->up;
}

static inline bool group_failed(const struct health_input *in, const struct map_group *g)
{
	const struct health_group *f = find_group(in, g->id);

	return g->state == GROUP_FAILED || (f && f->known && f->failed);
}

/* Its node answers and says that it is not open: nothing on it is served. */
static inline bool group_closed(const struct health_input *in, const struct map_group *g)
{
	const struct health_group *f = find_group(in, g->id);

	return f && f->known && !f->open;
}

static inline const char *node_name(const struct health_input *in, uint16_t id)
{
	const struct map_node *n = map_node(in->map, id);

	return n ? n->name : "?";
}

static inline const char *group_node(const struct ctx *c, uint16_t group)
{
	const struct map_group *g = map_group(c->in->map, group);

	return g ? node_name(c->in, g->node) : "?";
}

struct health_item *add_item(struct ctx *c, const char *code, enum health_severity severity); /* health.c */

static inline void affect(struct health_item *i, const char *fmt, ...) PRINTF_LIKE(2, 3);
static inline void affect(struct health_item *i, const char *fmt, ...)
{
	va_list ap;

	i->count++;
	if (i->affected_count >= HEALTH_AFFECTED_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(i->affected[i->affected_count++], sizeof(i->affected[0]), fmt, ap);
	va_end(ap);
}

#define SAY(field, ...) snprintf(field, sizeof(field), __VA_ARGS__)

/* An item that turned out to affect nothing is taken back. */
static inline bool keep_item(struct ctx *c, struct health_item *i)
{
	if (i->count > 0)
		return true;
	c->out->count--;
	return false;
}

static inline bool listed(const struct ctx *c, const char *code)
{
	for (unsigned i = 0; i < c->out->count; i++)
		if (!strcmp(c->out->item[i].code, code))
			return true;
	return false;
}

/* Whether somebody said that it would be away: then its absence is no surprise, while it lasts. */
static inline bool planned(const struct ctx *c, const struct map_node *n)
{
	return map_node_in_maintenance(c->in->map, n->id, c->in->now_ms);
}

/* The rules, each file's. Later ones ask what earlier ones listed. */
void health_count_voters(struct ctx *c); /* health_raft.c; before all others */
void health_check_nodes(struct ctx *c);
void health_check_raft(struct ctx *c);
void health_check_disks(struct ctx *c);
void health_check_space(struct ctx *c); /* sets c->full */
void health_check_data(struct ctx *c);
void health_check_attachments(struct ctx *c); /* health_nodes.c */
