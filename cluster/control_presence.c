/* SPDX-License-Identifier: Apache-2.0 */
/* The leader writes into the events which nodes fell silent and which are heard again; one that starts has
 * it written by its registration, one that stops says so itself. Must not write the same twice, nor need
 * another leader's memory: what was written last of a node is looked up in the events. */
#include "cluster/control_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOWN_US  5000000u /* longer than a restart takes */
#define AGAIN_US 2000000u /* for what was written to be applied */

static bool is_about(const struct state_event *e, const struct map_node *n)
{
	size_t len = strlen(n->name);

	return !strncmp(e->text, "node ", 5) && !strncmp(e->text + 5, n->name, len) &&
	       e->text[5 + len] == ' ';
}

/* Whether it came or went; NULL: not known any more. */
static const struct state_event *last_word(const struct state_event *e, unsigned count,
					   const struct map_node *n)
{
	static const char *const codes[] = {"NODE_DOWN", "NODE_UP", "NODE_STARTED", "NODE_STOPPING"};

	for (unsigned i = 0; i < count; i++)
		for (unsigned k = 0; k < ARRAY_LEN(codes); k++)
			if (!strcmp(e[i].code, codes[k]) && is_about(&e[i], n))
				return &e[i];
	return NULL;
}

static void write_event(struct control *c, uint8_t severity, const char *code, const char *node,
			const char *what, uint64_t seconds)
{
	const struct map_node *self = map_node(state_map(c->state), c->cfg.node);
	struct command *cmd = xcalloc(1, sizeof(*cmd));

	cmd->kind = CMD_EVENT;
	cmd->event.severity = severity;
	snprintf(cmd->actor, sizeof(cmd->actor), "node:%u", c->cfg.node);
	snprintf(cmd->event.code, sizeof(cmd->event.code), "%s", code);
	snprintf(cmd->event.text, sizeof(cmd->event.text), "node %s %s %llu s, by %s, the leader", node, what,
		 (unsigned long long)seconds, self ? self->name : "?");
	control_propose_unasked(c, cmd);
	free(cmd);
	c->presence_us = control_now_us(c) + AGAIN_US;
}

/* A newer process of it registers in a moment. */
static bool is_same_process(const struct control *c, const struct map_node *n)
{
	const struct peer *p = control_peer(c, n->id);

	return n->id == c->cfg.node || (p && p->incarnation == n->incarnation);
}

static void look_at(struct control *c, const struct map_node *n, const struct state_event *e, unsigned count)
{
	struct relocate_node contact = control_contact(c, n, DOWN_US);
	const struct state_event *last = last_word(e, count, n);
	bool down = last && !strcmp(last->code, "NODE_DOWN");
	uint64_t now = control_wall_ms();

	/* Not one in maintenance: that is no news. */
	if (!contact.up && contact.away && !down && !(last && !strcmp(last->code, "NODE_STOPPING")))
		write_event(c, 1, "NODE_DOWN", n->name, "has not been heard for", DOWN_US / 1000000);
	else if (contact.up && down && is_same_process(c, n))
		write_event(c, 0, "NODE_UP", n->name, "is heard again after",
			    (now > last->time_ms ? now - last->time_ms : 0) / 1000 + DOWN_US / 1000000);
}

void control_presence(struct control *c)
{
	const struct map *m = state_map(c->state);
	uint64_t now = control_now_us(c);
	struct state_event *e;
	unsigned count;

	if (now < c->presence_us)
		return;
	c->presence_us = now + CONTROL_DUTY_US;
	e = xmalloc(STATE_EVENTS * sizeof(*e));
	count = state_events(c->state, e, STATE_EVENTS);
	for (struct hnode *h = hmap_walk(&m->nodes, NULL); h; h = hmap_walk(&m->nodes, h)) {
		const struct map_node *n = container_of(h, struct map_node, by_id);

		if (n->state == NODE_ACTIVE)
			look_at(c, n, e, count);
	}
	free(e);
}
