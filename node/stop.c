/* SPDX-License-Identifier: Apache-2.0 */
/* The clean end of a process: its primaries move away, its replicas resign, so that no client waits
 * for it; then the front ends finish what is in flight; then the stores stop, which saves what the next
 * start is faster with (dedup_save.c); and the process exits, which closes the peer listener last: as long
 * as anybody could be granted anything here, nobody is told that we are gone.
 *
 * Crash-only behind that: nothing here does what a kill -9 would not leave right, each step has a
 * limit, and there is one way to come back, which is always tested. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

#define DRAIN_DEADLINE_US 5000000u /* without progress: nobody to go on with the objects; crash-only then */
#define DRAIN_MOST_US 10000000u /* thousands of objects; with the steps behind it less than TimeoutStopSec */
#define NO_LEADER_US      1000000u /* an election takes less */
#define FRONT_DEADLINE_US 5000000u
#define STORES_DEADLINE_US 3000000u
#define LOOK_US           5000u

static void stop_now(struct node *n)
{
	birth_stop_leave(n->config.state_dir);
	log_info("node", "stopped", "%s", "");
	_exit(0);
}

/* ---- Front ends ---- */

static void on_front_deadline(struct timer *t)
{
	stop_now(container_of(t, struct node, stop_timer));
}

static void on_stores_stopped(struct wait *w, int rc)
{
	stop_now(container_of(w, struct node, stop_wait));
}

static void stores_stop(struct post *p)
{
	struct node *n = container_of(p, struct node, stores_post);

	timer_set(&n->stop_timer, STORES_DEADLINE_US);
	n->stop_wait.resume = on_stores_stopped;
	if (node_groups_stop(n, &n->stop_wait) != PENDING)
		stop_now(n);
}

static void on_nbd_stopped(struct wait *w, int rc)
{
	struct node *n = container_of(w, struct node, stop_wait);

	n->stores_post.fn = stores_stop;
	loop_post(n->loop, &n->stores_post);
}

static void nbd_stop(struct post *p)
{
	struct node *n = container_of(p, struct node, stop_post);

	n->stop_wait.resume = on_nbd_stopped;
	if (n->shards[0].nbd)
		nbd_server_stop(n->shards[0].nbd, &n->stop_wait);
	else
		on_nbd_stopped(&n->stop_wait, 0);
}

static void fronts_stop(struct node *n)
{
	log_info("node", "stopping: front ends finish what is in flight", "%s", "");
	admin_stop(n->admin);
	if (!n->shards_running)
		stop_now(n);
	timer_fini(&n->stop_timer);
	timer_init(&n->stop_timer, n->loop, on_front_deadline);
	timer_set(&n->stop_timer, FRONT_DEADLINE_US);
	n->stop_post.fn = nbd_stop;
	loop_post(n->shards[0].loop, &n->stop_post);
}

/* ---- Drain ---- */

struct drain {
	struct admin_shard_job job;
	struct wait wait;
	struct node *node;
	uint64_t deadline_us, begun_us;
	bool begun;
	unsigned left[SHARDS_MAX], least;
};

static void drain_look(struct drain *d);

static void drain_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r,
			   struct client *c)
{
	struct drain *d = j->arg;

	if (!d->begun)
		replicator_drain(r);
	d->left[shard] = replicator_drain_left(r);
}

static void on_drain_timer(struct timer *t)
{
	drain_look(container_of(t, struct node, stop_timer)->drain);
}

static void on_looked(struct wait *w, int rc)
{
	struct drain *d = container_of(w, struct drain, wait);
	struct node *n = d->node;
	uint64_t now = loop_mono_us(n->loop);
	unsigned left = 0;

	d->begun = true;
	for (unsigned i = 0; i < n->shard_count; i++)
		left += d->left[i];
	if (left < d->least) {
		d->least = left;
		d->deadline_us = MIN(now + DRAIN_DEADLINE_US, d->begun_us + DRAIN_MOST_US);
	}
	if (!atomic_load_explicit(&n->leader_known, memory_order_relaxed) &&
	    now - d->begun_us >= NO_LEADER_US)
		d->deadline_us = now;
	if (left && now < d->deadline_us) {
		timer_set(&n->stop_timer, LOOK_US);
		return;
	}
	log_info("node", "drained", "objects_left=%u after_us=%llu", left,
		 (unsigned long long)(now - d->begun_us));
	fronts_stop(n);
}

static void drain_look(struct drain *d)
{
	if (node_on_shards(d->node, &d->job, &d->wait) != PENDING)
		on_looked(&d->wait, 0);
}

void node_stop(struct node *n)
{
	struct drain *d;
	char text[128];

	if (n->stopping)
		return;
	n->stopping = true;
	if (!n->shards_running) {
		fronts_stop(n);
		return;
	}
	log_info("node", "stopping: primaries move away, replicas resign", "%s", "");
	snprintf(text, sizeof(text), "node %s stops: its primaries move away, its replicas resign",
		 n->identity.name);
	node_event(n, 0, "NODE_STOPPING", text);
	d = xcalloc(1, sizeof(*d)); /* until the exit */
	d->node = n;
	d->least = UINT_MAX;
	d->job = (struct admin_shard_job){.run = drain_on_shard, .arg = d};
	d->wait.resume = on_looked;
	d->begun_us = loop_mono_us(n->loop);
	d->deadline_us = d->begun_us + DRAIN_DEADLINE_US;
	n->drain = d;
	timer_init(&n->stop_timer, n->loop, on_drain_timer);
	drain_look(d);
}
