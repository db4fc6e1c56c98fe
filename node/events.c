/* SPDX-License-Identifier: Apache-2.0 */
/* What this process tells the cluster for its records, and waiting until the map here is as new as
 * that. */
#include <stdio.h>
#include <stdlib.h>

#include "node/base/err.h"
#include "node/node_group.h"

#define PROPOSE_MS 10000u
#define APPLIED_US 10000000u /* from the leader's answer on */
#define LOOK_US    5000u

static void fill(const struct node *n, struct command *cmd, uint8_t severity, const char *code,
		 const char *text)
{
	*cmd = (struct command){.kind = CMD_EVENT};
	snprintf(cmd->actor, sizeof(cmd->actor), "node:%u", n->identity.number);
	snprintf(cmd->event.code, sizeof(cmd->event.code), "%s", code);
	snprintf(cmd->event.text, sizeof(cmd->event.text), "%s", text);
	cmd->event.severity = severity;
}

/* ---- Told, and that is all ---- */

struct told {
	struct control_propose propose;
	struct wait wait;
};

static void told_done(struct wait *w, int rc)
{
	free(container_of(w, struct told, wait));
}

void node_event(struct node *n, uint8_t severity, const char *code, const char *text)
{
	struct told *t = xcalloc(1, sizeof(*t));
	struct command cmd;
	int rc;

	fill(n, &cmd, severity, code, text);
	t->wait.resume = told_done;
	rc = control_propose(n->control, &t->propose, &cmd, PROPOSE_MS, &t->wait);
	if (rc != PENDING)
		told_done(&t->wait, rc);
}

/* ---- A barrier ---- */

static void barrier_end(struct node_barrier *b, int rc)
{
	timer_fini(&b->timer);
	wait_resume(b->owner, rc);
}

/* The leader's answer says at which index it applied the event: this node may be behind. */
static void barrier_look(struct node_barrier *b)
{
	struct consensus_status st;

	control_status(b->node->control, &st);
	if (st.applied >= b->propose.result.index)
		barrier_end(b, 0);
	else if (loop_mono_us(b->node->loop) >= b->until_us)
		barrier_end(b, -ETIMEDOUT);
	else
		timer_set(&b->timer, LOOK_US);
}

static void on_barrier_timer(struct timer *t)
{
	barrier_look(container_of(t, struct node_barrier, timer));
}

static void on_proposed(struct wait *w, int rc)
{
	struct node_barrier *b = container_of(w, struct node_barrier, proposed);

	if (rc == 0)
		rc = b->propose.result.code;
	if (rc < 0) {
		barrier_end(b, rc);
		return;
	}
	b->until_us = loop_mono_us(b->node->loop) + APPLIED_US;
	barrier_look(b);
}

int node_barrier(struct node *n, struct node_barrier *b, uint8_t severity, const char *actor,
		 const char *code, const char *text, struct wait *w)
{
	struct command cmd;
	int rc;

	*b = (struct node_barrier){.node = n, .proposed.resume = on_proposed, .owner = w};
	fill(n, &cmd, severity, code, text);
	if (actor)
		snprintf(cmd.actor, sizeof(cmd.actor), "%s", actor);
	timer_init(&b->timer, n->loop, on_barrier_timer);
	rc = control_propose(n->control, &b->propose, &cmd, PROPOSE_MS, &b->proposed);
	if (rc != PENDING)
		timer_fini(&b->timer);
	return rc;
}
