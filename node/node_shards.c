/* SPDX-License-Identifier: Apache-2.0 */
/* From the control loop to the shards: deltas of applied changes, and jobs that look at shard
 * state. */
#include <stdatomic.h>
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

/* ---- Deltas ---- */

struct delta {
	atomic_uint refs;
	uint8_t *bytes;
	size_t len;
	struct delta_post {
		struct post post;
		struct delta *delta;
		struct shard *shard;
	} to[];
};

static void record_changed(void *arg, enum map_record kind, uint64_t id)
{
	struct shard *s = arg;
	const struct map_node *n = kind == MAP_REC_NODE ? map_node(&s->map, (uint16_t)id) : NULL;

	if (n && n->state == NODE_REMOVED)
		shard_clients_drop(s, &n->uuid);
	replicator_map_changed(s->replicator, kind, id);
	client_map_changed(s->client, kind, id);
}

static void delta_on_shard(struct post *p)
{
	struct delta_post *to = container_of(p, struct delta_post, post);
	struct delta *d = to->delta;
	struct shard *s = to->shard;
	struct reader r = reader_init(d->bytes, d->len);
	int rc = map_delta_apply(&s->map, &r, record_changed, s);

	CHECK(rc == 0); /* our own encoding */
	streams_reconcile(s);
	replicator_map_done(s->replicator);
	client_map_done(s->client);
	if (atomic_fetch_sub(&d->refs, 1) == 1) {
		free(d->bytes);
		free(d);
	}
}

void node_delta(void *node, uint8_t *bytes, size_t len)
{
	struct node *n = node;

	if (n->shards_running) {
		struct delta *d = xcalloc(1, sizeof(*d) + n->shard_count * sizeof(d->to[0]));

		d->bytes = bytes;
		d->len = len;
		atomic_init(&d->refs, n->shard_count);
		for (unsigned i = 0; i < n->shard_count; i++) {
			d->to[i] = (struct delta_post){
				.post.fn = delta_on_shard, .delta = d, .shard = &n->shards[i]};
			loop_post(n->shards[i].loop, &d->to[i].post);
		}
	} else {
		free(bytes);
		node_start_delta(n);
	}
	if (n->control) { /* not while control_start replays */
		node_removed_check(n);
		peers_reconcile(n);
		node_groups_reconcile(n);
	}
}

/* ---- Jobs ---- */

struct job_run {
	struct node *node;
	struct admin_shard_job *job;
	struct wait *wait;
	unsigned left;
	struct job_post {
		struct post post;
		struct job_run *run;
		unsigned shard;
	} to[];
};

static void job_back(struct post *p)
{
	struct job_post *to = container_of(p, struct job_post, post);
	struct job_run *r = to->run;
	struct wait *w = r->wait;

	if (--r->left)
		return;
	free(r);
	wait_resume(w, 0);
}

static void job_on_shard(struct post *p)
{
	struct job_post *to = container_of(p, struct job_post, post);
	struct job_run *r = to->run;
	struct shard *s = &r->node->shards[to->shard];

	r->job->run(r->job, to->shard, s->replicator, s->client);
	to->post.fn = job_back;
	loop_post(r->node->loop, &to->post);
}

int node_on_shards(void *node, struct admin_shard_job *job, struct wait *w)
{
	struct node *n = node;
	struct job_run *r;

	if (!n->shards_running)
		return 0;
	r = xcalloc(1, sizeof(*r) + n->shard_count * sizeof(r->to[0]));
	*r = (struct job_run){.node = n, .job = job, .wait = w, .left = n->shard_count};
	for (unsigned i = 0; i < n->shard_count; i++) {
		r->to[i] = (struct job_post){.post.fn = job_on_shard, .run = r, .shard = i};
		loop_post(n->shards[i].loop, &r->to[i].post);
	}
	return PENDING;
}
