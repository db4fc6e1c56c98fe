/* SPDX-License-Identifier: Apache-2.0 */
/* A disk group of a living process is closed. Its store has users on every shard and on the workers:
 * what is under way ends first, then each shard forgets it, then those who verify it, and only then
 * is it freed. One of a process that ends is only stopped. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/node_group.h"

#define LOOK_US 10000u

enum close_stage { CLOSE_STOP, CLOSE_LEAVE, CLOSE_UNUSED, CLOSE_CLOSE, CLOSE_DONE };

struct group_close {
	struct work work;
	struct wait wait, *owner;
	struct timer timer;
	struct node *node;
	struct node_group *group;
	enum close_stage stage;
};

static int stop_blocking(struct work *w)
{
	store_stop(container_of(w, struct group_close, work)->group->store);
	return 0;
}

static int close_blocking(struct work *w)
{
	store_close(container_of(w, struct group_close, work)->group->store);
	return 0;
}

static int on_worker(struct group_close *c, int (*run)(struct work *w))
{
	c->work.run = run;
	return worker_submit(c->node->workers, c->node->loop, &c->work, &c->wait);
}

/* A verification ends soon after store_stop; who waits for its worker does so here. */
static int wait_unused(struct group_close *c)
{
	if (!c->group->users)
		return 0;
	timer_set(&c->timer, LOOK_US);
	return PENDING;
}

static void close_end(struct group_close *c)
{
	struct wait *owner = c->owner;

	c->group->store = NULL;
	c->group->failed_busy = 0; /* that was the store that is gone */
	timer_fini(&c->timer);
	free(c);
	wait_resume(owner, 0);
}

static void close_run(struct group_close *c)
{
	int rc = 0;

	while (rc != PENDING) {
		switch (c->stage) {
		case CLOSE_STOP:
			c->stage = CLOSE_LEAVE;
			rc = on_worker(c, stop_blocking);
			break;
		case CLOSE_LEAVE:
			c->stage = CLOSE_UNUSED;
			rc = node_group_leave_shards(c->node, c->group, &c->wait);
			break;
		case CLOSE_UNUSED:
			rc = wait_unused(c);
			if (rc != PENDING)
				c->stage = CLOSE_CLOSE;
			break;
		case CLOSE_CLOSE:
			c->stage = CLOSE_DONE;
			rc = on_worker(c, close_blocking);
			break;
		case CLOSE_DONE:
			close_end(c);
			return;
		}
	}
}

static void close_resume(struct wait *w, int rc)
{
	close_run(container_of(w, struct group_close, wait));
}

static void on_close_timer(struct timer *t)
{
	close_run(container_of(t, struct group_close, timer));
}

int node_group_close(struct node *n, struct node_group *g, struct wait *w)
{
	struct group_close *c;

	CHECK(g->busy);
	if (!g->store)
		return 0;
	g->was_count = store_devices(g->store, g->was);
	g->started = false; /* nobody on the control loop asks it for anything from here on */
	c = xcalloc(1, sizeof(*c));
	*c = (struct group_close){
		.wait.resume = close_resume, .owner = w, .node = n, .group = g, .stage = CLOSE_STOP};
	timer_init(&c->timer, n->loop, on_close_timer);
	close_run(c);
	return PENDING;
}

/* ---- The process ends ---- */

struct groups_stop {
	unsigned left;
	struct wait *owner;
};

struct group_stop {
	struct work work;
	struct wait wait;
	struct store *store;
	struct groups_stop *all;
};

static int end_blocking(struct work *w)
{
	store_stop(container_of(w, struct group_stop, work)->store);
	return 0;
}

static void on_ended(struct wait *w, int rc)
{
	struct group_stop *g = container_of(w, struct group_stop, wait);
	struct groups_stop *all = g->all;

	free(g);
	if (--all->left)
		return;
	wait_resume(all->owner, 0);
	free(all);
}

int node_groups_stop(struct node *n, struct wait *w)
{
	struct groups_stop *all = xcalloc(1, sizeof(*all));
	struct node_group *g;

	all->owner = w;
	list_for_each(g, &n->groups, link) all->left += g->started && !g->busy;
	if (!all->left) {
		free(all);
		return 0;
	}
	list_for_each(g, &n->groups, link)
	{
		struct group_stop *one;

		if (!g->started || g->busy)
			continue;
		one = xcalloc(1, sizeof(*one));
		*one = (struct group_stop){.work.run = end_blocking,
					   .wait.resume = on_ended,
					   .store = g->store,
					   .all = all};
		CHECK(worker_submit(n->workers, n->loop, &one->work, &one->wait) == PENDING);
	}
	return PENDING;
}
