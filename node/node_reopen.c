/* SPDX-License-Identifier: Apache-2.0 */
/* A disk group that failed while it served is closed and opened again, as a restart of the process
 * would, without one; other groups do not notice.
 *
 *   RESIGN ── its replicas leave I, so that others serve ──▶ CLOSE ──▶ PAUSE ──▶ OPEN ──▶ it serves
 *                                                                        ▲        │ fails
 *                                                                        └────────┘
 *
 * What opening finds decides, by the rules of a start (node_groups.c): all is there, or its log or map
 * is lost and it begins anew, once nothing has its only in-sync copy here. A map that was said to be
 * bad is read as a whole first, so that it is neither believed nor given up for what was said.
 *
 * A group that could not be opened at the start comes in at PAUSE. It must never try without end: a try
 * is any opening, whatever came of it, and after REOPEN_TRIES within the window the group stays closed. */
#include <stdio.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node_group.h"

#define WINDOW_US 3600000000u
#define LOOK_US   50000u
#define RESIGN_US 10000000u /* of time with a leader in reach; it takes a fraction of a second */
#define BUSY_US   1000000u

static const uint64_t pause_us[REOPEN_TRIES] = {0, 10000000, 30000000};

static void pause_begin(struct node *n, struct node_group *g);
static void on_reopen_timer(struct timer *t);

bool node_group_reopening(const struct node_group *g)
{
	return g->reopen.stage != REOPEN_NONE;
}

uint32_t node_group_reopens_in_s(const struct node *n, const struct node_group *g)
{
	uint64_t now = loop_mono_us(n->loop);

	return g->reopen.stage == REOPEN_PAUSE && g->reopen.due_us > now
		       ? (uint32_t)((g->reopen.due_us - now + 999999) / 1000000)
		       : 0;
}

/* ---- Closing ---- */

/* Objects that this group's replica could leave to others, and has not yet, by the map as applied here. */
static unsigned may_resign(const struct node *n, const struct node_group *g)
{
	const struct map *m = state_map(control_state(n->control));
	const struct map_group *known = map_group(m, g->number);
	unsigned left = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h && known;
	     h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			for (unsigned k = 0; k < v->object[i].member_count; k++) {
				const struct map_member *mb = &v->object[i].member[k];

				left += mb->in && mb->group == known->id &&
					mb->group_incarnation == known->incarnation &&
					map_in_count(&v->object[i]) > 1;
			}
	}
	return left;
}

static void closed(struct wait *w, int rc)
{
	struct reopen *r = container_of(w, struct reopen, wait);

	pause_begin(r->node, container_of(r, struct node_group, reopen));
}

static void resign_look(struct node *n, struct node_group *g)
{
	struct reopen *r = &g->reopen;
	unsigned left = g->added ? may_resign(n, g) : 0;

	if (n->stopping)
		return;
	r->led_us += atomic_load_explicit(&n->leader_known, memory_order_relaxed) ? LOOK_US : 0;
	if (left && r->led_us < RESIGN_US) {
		timer_set(&r->timer, LOOK_US);
		return;
	}
	log_info("group", "closing a group that failed", "group=%u not_resigned=%u", g->number, left);
	r->stage = REOPEN_CLOSE;
	r->wait.resume = closed;
	if (node_group_close(n, g, &r->wait) != PENDING)
		closed(&r->wait, 0);
}

/* ---- Opening ---- */

static unsigned tries_within(const struct reopen *r, uint64_t now)
{
	unsigned tries = 0;

	for (unsigned i = 0; i < REOPEN_TRIES; i++)
		tries += r->tried_us[i] && now - r->tried_us[i] < WINDOW_US;
	return tries;
}

static void give_up(struct node *n, struct node_group *g)
{
	char text[256];

	g->reopen.stage = REOPEN_NONE;
	g->reopen.gave_up = true;
	snprintf(text, sizeof(text),
		 "disk group %u failed, or could not be opened, %u times within an hour and stays closed: "
		 "%.120s",
		 g->number, REOPEN_TRIES, g->why);
	log_error("group", text, "group=%u", g->number);
	node_event(n, 2, "GROUP_STAYS_CLOSED", text);
}

/* It is closed. */
static void pause_begin(struct node *n, struct node_group *g)
{
	struct reopen *r = &g->reopen;
	uint64_t now = loop_mono_us(n->loop);
	unsigned tries = tries_within(r, now);

	g->busy = false;
	if (r->planned)
		tries = 0;
	if (tries == REOPEN_TRIES) {
		give_up(n, g);
		return;
	}
	r->stage = REOPEN_PAUSE;
	r->due_us = now + pause_us[tries];
	timer_set(&r->timer, pause_us[tries]);
}

static void open_begin(struct node *n, struct node_group *g)
{
	struct reopen *r = &g->reopen;
	unsigned oldest = 0;

	if (n->stopping)
		return;
	if (g->busy) { /* somebody replaces a device: what becomes of that comes first */
		timer_set(&r->timer, BUSY_US);
		return;
	}
	for (unsigned i = 1; i < REOPEN_TRIES; i++)
		if (r->tried_us[i] < r->tried_us[oldest])
			oldest = i;
	if (!r->planned)
		r->tried_us[oldest] = loop_mono_us(n->loop);
	r->planned = false;
	r->stage = REOPEN_OPEN;
	r->waited = false;
	log_info("group", "opening a group that failed", "group=%u check_map=%d", g->number,
		 g->check_map);
	node_group_open_again(n, g);
}

void node_group_reopen_failed(struct node *n, struct node_group *g, int rc)
{
	struct reopen *r = &g->reopen;

	if (r->stage == REOPEN_PAUSE) /* it was somebody else's try */
		return;
	if (g->lost && rc == g->lost) /* node_groups.c has it begin anew when that may be */
		return;
	if (rc == -ERR_NOT_FOUND && g->waiting_us)
		return;
	if (rc == -ERR_NOT_FOUND && !r->waited && diskgroup_absent(&g->set)) {
		r->waited = true; /* a device that is not there may be on its way, as at the start */
		g->waiting_us = loop_mono_us(n->loop);
		return;
	}
	r->failed = true;
	pause_begin(n, g);
}

void node_group_reopened(struct node *n, struct node_group *g)
{
	char text[160];

	if (!node_group_reopening(g) && !g->reopen.gave_up)
		return;
	timer_cancel(&g->reopen.timer);
	g->reopen.stage = REOPEN_NONE;
	g->reopen.gave_up = false;
	snprintf(text, sizeof(text), "disk group %u was opened again%s", g->number,
		 g->anew    ? " and begins anew"
		 : g->as_is ? ", with a damaged map, until what is in sync only here is so elsewhere"
			    : "");
	node_event(n, g->as_is ? 2 : 1, "GROUP_REOPENED", text);
}

void node_group_reopen_forget(struct node_group *g)
{
	for (unsigned i = 0; i < REOPEN_TRIES; i++)
		g->reopen.tried_us[i] = 0;
}

static void on_reopen_timer(struct timer *t)
{
	struct reopen *r = container_of(t, struct reopen, timer);
	struct node_group *g = container_of(r, struct node_group, reopen);

	if (r->stage == REOPEN_RESIGN)
		resign_look(r->node, g);
	else if (r->stage == REOPEN_PAUSE)
		open_begin(r->node, g);
}

/* ---- It failed ---- */

static void reopen_init(struct node *n, struct reopen *r)
{
	if (r->node)
		return;
	r->node = n;
	timer_init(&r->timer, n->loop, on_reopen_timer);
}

static void reopen_begin(struct node *n, struct node_group *g, int code)
{
	struct reopen *r = &g->reopen;

	g->failed = code;
	g->busy = true;
	g->check_map = code != -ERR_LOG_LOST;
	g->as_is = g->tried_as_is = false;
	node_group_tell_failed(n, g, code);
	reopen_init(n, r);
	r->stage = REOPEN_RESIGN;
	r->failed = r->gave_up = r->planned = false;
	r->led_us = 0;
	timer_set(&r->timer, LOOK_US);
}

void node_group_failed(struct node *n, uint16_t number, int code)
{
	struct node_group *g = node_group_by_number(n, number);
	struct store_stats st = {0};
	char text[256];

	if (!g || g->failed)
		return;
	if (g->busy) { /* node_replace.c looks when it is done */
		g->failed_busy = code;
		return;
	}
	if (g->started)
		store_stats(g->store, &st);
	code = st.failed ? st.failed : code; /* what it failed with, not what the shard met */
	snprintf(g->why, sizeof(g->why), "failed while serving: %s",
		 code == -ERR_LOG_LOST	 ? "a device of its write log failed"
		 : code == -ERR_MAP_LOST ? "its map database reports damage"
					 : err_text(code));
	snprintf(text, sizeof(text),
		 "disk group %u %.160s; its replicas resign, it is closed and opened again", number, g->why);
	log_error("group", text, "group=%u error=%s", number, err_name(code));
	node_event(n, 2, "GROUP_FAILED", text);
	reopen_begin(n, g, code);
}

void node_group_no_more_as_is(struct node *n, struct node_group *g)
{
	snprintf(g->why, sizeof(g->why),
		 "its map is damaged, and nothing has its only in-sync copy here any more");
	log_info("group", "nothing needs the damaged map any more", "group=%u", g->number);
	reopen_begin(n, g, -ERR_MAP_LOST);
	g->reopen.planned = true;
}

/* What another try may find to be otherwise: a device or file system that did not answer. */
static bool may_pass(int rc)
{
	static const int stays[] = {-ERR_FOREIGN, -ERR_VERSION,	 -ERR_LIMIT,  -ERR_STALE, -ERR_UNCLAIMED,
				    -ERR_INVALID, -ERR_NOT_FOUND, -ERR_EXISTS, -EINVAL};

	for (unsigned i = 0; i < ARRAY_LEN(stays); i++)
		if (rc == stays[i])
			return false;
	return true;
}

void node_group_not_opened(struct node *n, struct node_group *g)
{
	struct reopen *r = &g->reopen;

	if (!may_pass(g->failed))
		return;
	reopen_init(n, r);
	r->tried_us[0] = loop_mono_us(n->loop);
	r->failed = true;
	pause_begin(n, g);
}
