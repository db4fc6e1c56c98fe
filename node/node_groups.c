/* SPDX-License-Identifier: Apache-2.0 */
/* The disk groups of this node: found by their superblocks, opened before the node speaks to
 * anybody (replication N1), started once the shards run, given to the replicators once the map
 * agrees with them on the group's incarnation. Blocking work is on the worker pool, except at
 * process start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/node.h"

struct node_group {
	struct list link;
	struct diskgroup_set set;
	struct store *store; /* NULL while not open */
	bool started, added;
	int failed;
	char why[224];
	/* regrouping: the store has a newer incarnation than the map */
	struct control_propose propose;
	struct wait propose_wait;
	bool proposing;
};

static struct node_group *group_find(struct node *n, const struct uuid *uuid)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link) if (uuid_equal(&g->set.uuid, uuid)) return g;
	return NULL;
}

static struct node_group *group_by_number(struct node *n, uint16_t number)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link) if (g->set.number == number) return g;
	return NULL;
}

static void set_copy(struct diskgroup_set *to, const struct diskgroup_set *from)
{
	*to = *from;
	for (unsigned i = 0; i < from->device_count; i++)
		to->devices[i] = xstrdup(from->devices[i]);
	to->metadata_dir = xstrdup(from->metadata_dir);
	to->lost = from->lost ? xstrdup(from->lost) : NULL;
}

static struct node_group *group_add(struct node *n, const struct diskgroup_set *set)
{
	struct node_group *g = xcalloc(1, sizeof(*g));

	set_copy(&g->set, set);
	list_push_back(&n->groups, &g->link);
	return g;
}

static void store_config_of(const struct node *n, const struct diskgroup_set *set,
			    struct store_config *out)
{
	*out = (struct store_config){.devices = (const char *const *)set->devices,
				     .device_count = set->device_count,
				     .metadata_dir = set->metadata_dir,
				     .cluster = n->identity.cluster,
				     .node = n->identity.node,
				     .shards = n->shard_count,
				     .page_cache_bytes = n->config.page_cache_bytes,
				     .block_cache_bytes = n->config.block_cache_bytes,
				     .dedup_hint_bytes = n->config.dedup_hint_bytes,
				     .log_index_bytes = n->config.log_index_bytes,
				     .buffered = n->config.io == CONFIG_IO_BUFFERED};
}

/* Opens; a group whose log or map is lost begins again under a new incarnation, which Raft learns
 * of before anything relies on it (REGROUP). Blocking. */
static int group_open_blocking(const struct node *n, const struct diskgroup_set *set,
			       struct store **out)
{
	struct store_config cfg;
	int rc, lost;

	/* Without a device there is nothing to reset either: its log or map may come back with it.
	 */
	if (set->lost)
		return -ERR_NOT_FOUND;
	store_config_of(n, set, &cfg);
	rc = lost = store_open(&cfg, out);
	if (lost == -ERR_LOG_LOST || lost == -ERR_MAP_LOST) {
		log_error("group",
			  "the group lost its log or map and begins anew; its replicas will be "
			  "filled "
			  "by their peers",
			  "group=%u lost=%s", set->number, err_name(lost));
		rc = store_reset(&cfg, set->incarnation + 1, lost == -ERR_LOG_LOST);
		if (rc == 0)
			rc = store_open(&cfg, out);
	}
	return rc;
}

static void group_note_failure(struct node_group *g, int rc)
{
	g->failed = rc;
	if (g->set.lost) {
		snprintf(g->why, sizeof(g->why), "%.110s: %s", g->set.lost, g->set.why_lost);
		log_error(
			"group",
			"a disk group lacks a device; the node serves without the group. Bring the "
			"device back and restart ashlard, or make a new group of the devices with "
			"`ashlar diskgroup add --wipe`",
			"group=%u device=%s reason=\"%s\"", g->set.number, g->set.lost,
			g->set.why_lost);
		return;
	}
	snprintf(g->why, sizeof(g->why), "could not be opened: %s", err_text(rc));
	log_error("group",
		  "a disk group could not be opened; the node serves without it. `ashlard inspect "
		  "PATH` shows what its devices hold",
		  "group=%u device=%s metadata_dir=%s error=%s reason=\"%s\"", g->set.number,
		  g->set.device_count ? g->set.devices[0] : "none", g->set.metadata_dir,
		  err_name(rc), err_text(rc));
}

void node_groups_find(struct node *n)
{
	struct diskgroup_found *found = xcalloc(1, sizeof(*found));
	int rc = diskgroup_find(n->config.state_dir, &n->identity, found);

	if (rc < 0)
		log_error("group",
			  "devices.json could not be read: disk groups are not searched for",
			  "error=%s", err_name(rc));
	for (unsigned i = 0; rc == 0 && i < found->count; i++) {
		struct node_group *g = group_add(n, &found->set[i]);

		if (g->set.pending) {
			snprintf(g->why, sizeof(g->why),
				 "half made: run `ashlar diskgroup add` again");
			g->failed = -ERR_UNCLAIMED;
			continue;
		}
		rc = group_open_blocking(n, &g->set, &g->store);
		if (rc < 0)
			group_note_failure(g, rc);
		rc = 0;
	}
	diskgroup_found_free(found);
	free(found);
}

uint32_t node_groups_incarnation(const struct node *n)
{
	const struct node_group *g;
	uint32_t highest = 0;

	list_for_each(g, &n->groups, link)
	{
		struct store_identity id;

		if (!g->store)
			continue;
		store_identity(g->store, &id);
		highest = MAX(highest, id.node_incarnation);
	}
	return highest;
}

int node_groups_set_incarnation(struct node *n)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link)
	{
		int rc = g->store ? store_set_node_incarnation(g->store, n->identity.incarnation)
				  : 0;

		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- Starting, and opening at run time ---- */

struct group_job {
	struct work work;
	struct wait wait, *owner;
	struct node *node;
	struct node_group *group;
	struct loop **loops;
};

/* On a worker: opens (unless it is) and starts the store; the loops run. */
static int group_job_run(struct work *w)
{
	struct group_job *j = container_of(w, struct group_job, work);
	struct node_group *g = j->group;
	int rc;

	if (!g->store) {
		rc = group_open_blocking(j->node, &g->set, &g->store);
		if (rc == 0)
			rc = store_set_node_incarnation(g->store, j->node->identity.incarnation);
		if (rc < 0)
			return rc;
	}
	return store_start(g->store, j->loops, j->node->shard_count);
}

static void group_job_done(struct wait *w, int rc)
{
	struct group_job *j = container_of(w, struct group_job, wait);
	struct wait *owner = j->owner;

	if (rc < 0) {
		group_note_failure(j->group, rc);
	} else {
		j->group->failed = 0;
		j->group->why[0] = 0;
		j->group->started = true;
		log_info("group", "open", "group=%u devices=%u", j->group->set.number,
			 j->group->set.device_count);
		node_groups_reconcile(j->node);
	}
	free(j->loops);
	free(j);
	if (owner)
		wait_resume(owner, rc);
}

static void group_job_start(struct node *n, struct node_group *g, struct wait *owner)
{
	struct group_job *j = xcalloc(1, sizeof(*j));
	int rc;

	*j = (struct group_job){.work.run = group_job_run,
				.wait.resume = group_job_done,
				.owner = owner,
				.node = n,
				.group = g,
				.loops = xcalloc(n->shard_count, sizeof(struct loop *))};
	for (unsigned i = 0; i < n->shard_count; i++)
		j->loops[i] = n->shards[i].loop;
	rc = worker_submit(n->workers, n->loop, &j->work, &j->wait);
	CHECK(rc == PENDING);
}

void node_groups_start(struct node *n)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link) if (g->store && !g->started) group_job_start(n, g, NULL);
}

int node_group_open(void *node, const struct diskgroup_set *set, struct wait *w)
{
	struct node *n = node;
	struct node_group *g = group_find(n, &set->uuid);

	if (!n->shards_running)
		return -ERR_RETRY;
	if (g && g->started)
		return 0;
	if (!g)
		g = group_add(n, set);
	g->set.number = set->number;
	g->set.incarnation = set->incarnation;
	g->set.pending = false;
	group_job_start(n, g, w);
	return PENDING;
}

/* ---- To the replicators ---- */

struct group_post {
	struct post post;
	struct shard *shard;
	struct store *store;
	uint16_t group;
	bool remove;
};

static void group_on_shard(struct post *p)
{
	struct group_post *m = container_of(p, struct group_post, post);

	if (m->remove)
		replicator_store_remove(m->shard->replicator, m->group);
	else
		replicator_store_add(m->shard->replicator, m->group, m->store);
	free(m);
}

static void group_tell_shards(struct node *n, struct node_group *g, bool removed)
{
	for (unsigned i = 0; i < n->shard_count; i++) {
		struct group_post *m = xcalloc(1, sizeof(*m));

		*m = (struct group_post){.post.fn = group_on_shard,
					 .shard = &n->shards[i],
					 .store = g->store,
					 .group = g->set.number,
					 .remove = removed};
		loop_post(n->shards[i].loop, &m->post);
	}
}

static void regroup_done(struct wait *w, int rc)
{
	struct node_group *g = container_of(w, struct node_group, propose_wait);

	/* Applied state decides (node_groups_reconcile); a refusal is tried again with the next
	 * delta. */
	g->proposing = false;
	if (rc < 0 || g->propose.result.code < 0)
		log_warn("group", "regrouping was not accepted yet",
			 "group=%u error=%s text=\"%s\"", g->set.number,
			 err_name(rc < 0 ? rc : g->propose.result.code), g->propose.result.text);
}

static void regroup_propose(struct node *n, struct node_group *g, uint32_t from, uint32_t to)
{
	struct command cmd = {.kind = CMD_REGROUP};
	int rc;

	if (g->proposing)
		return;
	snprintf(cmd.actor, sizeof(cmd.actor), "node:%u", n->identity.number);
	cmd.regroup.group = g->set.number;
	cmd.regroup.node = n->identity.number;
	cmd.regroup.old_incarnation = from;
	cmd.regroup.new_incarnation = to;
	g->proposing = true;
	g->propose_wait.resume = regroup_done;
	rc = control_propose(n->control, &g->propose, &cmd, 60000, &g->propose_wait);
	if (rc != PENDING)
		regroup_done(&g->propose_wait, rc);
}

void node_groups_reconcile(struct node *n)
{
	const struct map *m = state_map(control_state(n->control));
	struct node_group *g;

	if (!n->shards_running)
		return;
	list_for_each(g, &n->groups, link)
	{
		const struct map_group *known = map_group(m, g->set.number);
		struct store_identity id;

		if (!g->started || g->added || g->failed || !known ||
		    !uuid_equal(&known->uuid, &g->set.uuid))
			continue;
		store_identity(g->store, &id);
		if (id.group_incarnation > known->incarnation) {
			regroup_propose(n, g, known->incarnation, id.group_incarnation);
		} else if (id.group_incarnation < known->incarnation) {
			g->failed = -ERR_STALE;
			snprintf(g->why, sizeof(g->why),
				 "these disks are older than the cluster remembers (rolled back or "
				 "cloned): "
				 "wipe them and add the group again");
			log_error("group", g->why,
				  "group=%u disk_incarnation=%u cluster_incarnation=%u",
				  g->set.number, id.group_incarnation, known->incarnation);
		} else {
			g->added = true;
			group_tell_shards(n, g, false);
		}
	}
}

void node_group_failed(struct node *n, uint16_t number, int code)
{
	struct node_group *g = group_by_number(n, number);

	if (!g || g->failed)
		return;
	g->failed = code;
	snprintf(g->why, sizeof(g->why), "failed while serving: %s", err_text(code));
	log_error("group", "a disk group failed; its replicas resign", "group=%u error=%s", number,
		  err_name(code));
}

struct store *node_group_store(struct node *n, uint16_t group)
{
	struct node_group *g = group_by_number(n, group);

	return g && g->started && !g->failed ? g->store : NULL;
}

unsigned node_groups(void *node, struct admin_group *out, unsigned max)
{
	struct node *n = node;
	struct node_group *g;
	unsigned count = 0;

	list_for_each(g, &n->groups, link)
	{
		struct admin_group *o = &out[count];

		if (count == max)
			break;
		*o = (struct admin_group){.group = g->set.number,
					  .uuid = g->set.uuid,
					  .open = g->started,
					  .failed = g->failed,
					  .set = &g->set};
		snprintf(o->why, sizeof(o->why), "%s", g->why);
		if (g->started) {
			store_stats(g->store, &o->stats);
			o->store = g->store;
		}
		if (g->started && o->stats.failed && !o->failed)
			o->failed = o->stats.failed;
		count++;
	}
	return count;
}
