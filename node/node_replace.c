/* SPDX-License-Identifier: Apache-2.0 */
/* A device of a disk group is replaced. A capacity device while the group serves: the store does
 * it, and catch-up brings what stood on the old one. A cache device with the group closed: a new
 * log, a new incarnation, the map stays. A crash in the middle leaves the old member list or the
 * new one; the same command finishes it. It must never give up what nobody else has, unless the
 * person said so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node_group.h"

#define IDLE_US	     60000000u
#define IDLE_LOOK_US 20000u

enum replace_stage {
	REPLACE_WAIT,    /* for a group that failed, and is being closed or opened again just now */
	REPLACE_CHECK,   /* worker: the new device */
	REPLACE_BARRIER, /* an event through Raft: said, and the map is as new as that */
	REPLACE_GUARD,
	REPLACE_ONLINE, /* worker: the store has it taken over */
	REPLACE_CLOSE,
	REPLACE_LOG, /* worker: new log, open, start */
	REPLACE_DONE
};

struct replace {
	struct wait wait, *owner;
	struct work work;
	struct node *node;
	struct node_group *group;
	struct admin_replace *r;
	enum replace_stage stage, next;
	struct uuid old;
	bool done_already, opened; /* opened: it was tried */
	struct loop **loops;
	struct node_barrier barrier;
	struct timer timer;
	uint64_t until_us;
};

static bool is_member_already(struct replace *x)
{
	struct store_probe p;
	const struct diskgroup_set *s = &x->group->set;

	if (store_probe(x->r->path, &p) || !uuid_equal(&p.group, &s->uuid))
		return false;
	for (unsigned i = 0; i < s->device_count; i++)
		if (uuid_equal(&s->device[i], &p.device))
			return true;
	return false;
}

static int check_blocking(struct work *w)
{
	struct replace *x = container_of(w, struct replace, work);
	struct admin_replace *r = x->r;
	const char *path;
	int rc;

	if (!x->group->store)
		diskgroup_look_again(x->node->config.state_dir, &x->node->identity, &x->group->set);
	rc = diskgroup_member(&x->group->set, r->old, &x->old, &r->role, &path);
	if (rc && is_member_already(x)) {
		x->done_already = true; /* a re-run: what is half done is finished by opening it */
		return 0;
	}
	if (rc) {
		snprintf(r->why, sizeof(r->why),
			 "disk group %u has no device \"%.100s\"; `ashlar diskgroup show %u` names "
			 "them",
			 r->group, r->old, r->group);
		return rc;
	}
	/* The same device again, wiped, is still held by the store. */
	if (x->group->store && path && !strcmp(path, r->path))
		return 0;
	return diskgroup_check_new(r->path, r->why);
}

static int barrier(struct replace *x)
{
	char text[256];

	snprintf(text, sizeof(text), "disk group %u: %.60s takes the place of %.60s", x->r->group, x->r->path,
		 x->r->old);
	return node_barrier(x->node, &x->barrier, 0, x->r->actor, "DISK_REPLACE", text, &x->wait);
}

static int guard(struct replace *x)
{
	unsigned last = node_group_last_copies(x->node, x->r->group);

	if (!last || x->r->accept_loss)
		return 0;
	snprintf(x->r->why, sizeof(x->r->why),
		 "%u object%s the only in-sync copy in disk group %u: wait until others are in "
		 "sync (ashlar health), or "
		 "repeat with --accept-loss to lose what is on that device only",
		 last, last == 1 ? " has" : "s have", x->r->group);
	return -ERR_INCOMPLETE;
}

/* The code for the one who asked. */
static int refuse(struct replace *x, int rc)
{
	struct admin_replace *r = x->r;

	if (rc == -ERR_EXISTS)
		snprintf(r->why, sizeof(r->why),
			 "%.140s carries a file system, partition table or other data already; if "
			 "it is not needed, "
			 "repeat with --wipe",
			 r->path);
	else if (rc == -EINVAL)
		snprintf(r->why, sizeof(r->why),
			 "%.140s is too small to be a device of disk group %u", r->path, r->group);
	else if (rc == -ERR_BUSY)
		snprintf(r->why, sizeof(r->why),
			 "%.140s is in use, or another replacement is under way", r->path);
	else
		snprintf(r->why, sizeof(r->why),
			 "replacing failed: %s (the log of ashlard says more)", err_text(rc));
	return rc == -ERR_EXISTS ? -ERR_OCCUPIED : rc;
}

static int online_blocking(struct work *w)
{
	struct replace *x = container_of(w, struct replace, work);
	struct store_stats st;
	int rc;

	store_stats(x->group->store, &st);
	x->r->lost_bytes = st.lost_live_bytes;
	rc = store_replace(x->group->store, &x->old, x->r->path, x->r->wipe);
	if (rc)
		return refuse(x, rc);
	return diskgroup_replaced(x->node->config.state_dir, &x->group->set, &x->old, x->r->path);
}

static int log_blocking(struct work *w)
{
	struct replace *x = container_of(w, struct replace, work);
	struct node_group *g = x->group;
	struct store_config cfg;
	int rc = 0;

	node_store_config(x->node, &g->set, &cfg);
	if (!x->done_already && x->r->role == DEVICE_CACHE) {
		rc = store_replace_log(&cfg, g->set.incarnation + 1, x->r->path, x->r->wipe);
		if (rc)
			rc = refuse(x, rc);
		else
			rc = diskgroup_replaced(x->node->config.state_dir, &g->set, &x->old,
						x->r->path);
		g->kept = true;
		g->lost = 0;
	}
	if (rc && rc != -ERR_OCCUPIED && rc != -EINVAL && rc != -ERR_BUSY)
		return rc;
	/* Even if the new one was refused the group goes on as it was. */
	g->may_reset = true; /* the guard has looked, or the person has said so */
	return node_group_open_blocking(x->node, g, x->loops) ? -ERR_DEVICE : rc;
}

static void replace_run(struct replace *x, int rc);

static void replace_resume(struct wait *w, int rc)
{
	replace_run(container_of(w, struct replace, wait), rc);
}

static void replace_end(struct replace *x, int rc)
{
	struct node_group *g = x->group;
	struct wait *owner = x->owner;

	timer_fini(&x->timer);
	if (x->stage != REPLACE_WAIT)
		g->busy = false;
	if (x->opened)
		node_group_opened(x->node, g, g->store ? 0 : rc ? rc : -ERR_DEVICE);
	else if (g->started)
		node_groups_reconcile(x->node);
	if (rc == 0)
		node_group_reopen_forget(g);
	if (g->failed_busy && g->started) {
		int code = g->failed_busy;

		g->failed_busy = 0;
		node_group_failed(x->node, x->r->group, code);
	}
	if (rc && !x->r->why[0])
		rc = refuse(x, rc);
	log_info("group", rc ? "a device could not be replaced" : "a device was replaced",
		 "group=%u old=\"%s\" new=\"%s\" error=%s why=\"%s\"", x->r->group, x->r->old,
		 x->r->path, err_name(rc), x->r->why);
	free(x->loops);
	free(x);
	wait_resume(owner, rc);
}

/* A group that failed is closed and opened again by itself: not in the middle of that. */
static int wait_idle(struct replace *x)
{
	if (!x->group->busy) {
		x->group->busy = true;
		x->next = REPLACE_CHECK;
		return 0;
	}
	if (loop_mono_us(x->node->loop) >= x->until_us)
		return -ERR_BUSY;
	timer_set(&x->timer, IDLE_LOOK_US);
	return PENDING;
}

static void on_replace_timer(struct timer *t)
{
	replace_run(container_of(t, struct replace, timer), 0);
}

static int on_worker(struct replace *x, int (*run)(struct work *w))
{
	x->work.run = run;
	return worker_submit(x->node->workers, x->node->loop, &x->work, &x->wait);
}

static void replace_run(struct replace *x, int rc)
{
	struct node *n = x->node;
	struct node_group *g = x->group;

	while (rc != PENDING) {
		if (rc < 0) {
			replace_end(x, rc);
			return;
		}
		x->stage = x->next;
		switch (x->stage) {
		case REPLACE_WAIT:
			rc = wait_idle(x);
			break;
		case REPLACE_CHECK:
			x->next = REPLACE_BARRIER;
			rc = on_worker(x, check_blocking);
			break;
		case REPLACE_BARRIER:
			x->next = x->done_already ? g->store ? REPLACE_DONE : REPLACE_LOG
						  : REPLACE_GUARD;
			rc = barrier(x);
			break;
		case REPLACE_GUARD:
			/* A capacity device of a group that is not open: it is opened without it
			 * first. */
			x->next = x->r->role == DEVICE_CAPACITY && g->store && g->started
					  ? REPLACE_ONLINE
				  : g->store ? REPLACE_CLOSE
					     : REPLACE_LOG;
			rc = guard(x);
			break;
		case REPLACE_ONLINE:
			x->next = REPLACE_DONE;
			rc = on_worker(x, online_blocking);
			break;
		case REPLACE_CLOSE:
			x->next = REPLACE_LOG;
			rc = node_group_close(n, g, &x->wait);
			break;
		case REPLACE_LOG:
			x->next = x->r->role == DEVICE_CAPACITY && !x->done_already ? REPLACE_ONLINE
										    : REPLACE_DONE;
			x->opened = true;
			g->failed = 0;
			rc = on_worker(x, log_blocking);
			break;
		case REPLACE_DONE:
			replace_end(x, 0);
			return;
		}
	}
}

int node_group_replace(void *node, struct admin_replace *r, struct wait *w)
{
	struct node *n = node;
	struct node_group *g = node_group_by_number(n, r->group);
	struct replace *x;

	if (!g || !n->shards_running || (g->busy && !node_group_reopening(g))) {
		snprintf(r->why, sizeof(r->why), "disk group %u is %s", r->group,
			 g ? "busy: it is being opened, or a device is being replaced"
			   : "not on this node");
		return g ? -ERR_BUSY : -ERR_NOT_FOUND;
	}
	x = xcalloc(1, sizeof(*x));
	*x = (struct replace){.wait.resume = replace_resume,
			      .owner = w,
			      .node = n,
			      .group = g,
			      .r = r,
			      .loops = node_loops(n),
			      .until_us = loop_mono_us(n->loop) + IDLE_US};
	timer_init(&x->timer, n->loop, on_replace_timer);
	r->impl = x;
	x->stage = x->next = REPLACE_WAIT;
	replace_run(x, 0);
	return PENDING;
}
