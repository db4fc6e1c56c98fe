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
#include "node/base/rules.h"
#include "node/node_group.h"

#define GROUP_TIMER_US 1000000u

static struct node_group *group_find(struct node *n, const struct uuid *uuid)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link) if (uuid_equal(&g->uuid, uuid)) return g;
	return NULL;
}

struct node_group *node_group_by_number(struct node *n, uint16_t number)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link) if (g->number == number) return g;
	return NULL;
}

static struct node_group *group_add(struct node *n, const struct diskgroup_set *set)
{
	struct node_group *g = xcalloc(1, sizeof(*g));

	diskgroup_set_copy(&g->set, set);
	g->number = set->number;
	g->uuid = set->uuid;
	list_push_back(&n->groups, &g->link);
	return g;
}

void node_store_config(const struct node *n, const struct diskgroup_set *set, struct store_config *out)
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

/* Whether the group can do without the devices that are missing: others have data, and there is a log. In a
 * single-tier group each device has a part of the log; then the group lost it, and store_open says so. */
static bool can_do_without(const struct diskgroup_set *s)
{
	bool data = false;

	for (unsigned i = 0; i < s->device_count; i++)
		data |= s->role[i] == DEVICE_CAPACITY;
	for (unsigned i = 0; i < s->missing_count; i++)
		if (s->missing[i].role == DEVICE_CACHE)
			return false;
	return data;
}

unsigned node_group_last_copies(const struct node *n, uint16_t group)
{
	const struct map *m = state_map(control_state(n->control));
	unsigned last = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++)
			for (unsigned k = 0; k < v->object[i].member_count; k++)
				last += v->object[i].member[k].group == group &&
					v->object[i].member[k].in && map_in_count(&v->object[i]) == 1;
	}
	return last;
}

/* Opens. A group that lost its log or map begins anew under a new incarnation, which Raft learns of before
 * anything relies on it (REGROUP); but never while it has the only in-sync copy of anything. Blocking. */
static int open_blocking(const struct node *n, struct node_group *g)
{
	struct store_config cfg;
	int rc;

	if (g->set.missing_count && !can_do_without(&g->set))
		return -ERR_NOT_FOUND;
	node_store_config(n, &g->set, &cfg);
	cfg.check_map = g->check_map && !g->as_is;
	cfg.as_is = g->as_is;
	rc = store_open(&cfg, &g->store);
	if (rc != -ERR_LOG_LOST && rc != -ERR_MAP_LOST)
		return rc;
	g->lost = rc;
	if (!g->may_reset)
		return rc;
	log_error("group",
		  "the group lost its log or map and begins anew; its replicas will be filled by their peers",
		  "group=%u lost=%s", g->number, err_name(rc));
	g->kept = rc == -ERR_LOG_LOST;
	cfg.as_is = false;
	rc = store_reset(&cfg, g->set.incarnation + rule(RULE_REGROUP), g->kept);
	if (rc)
		return rc;
	g->set.incarnation++;
	g->lost = 0;
	g->anew = true;
	return store_open(&cfg, &g->store);
}

static void group_note_failure(struct node *n, struct node_group *g, int rc)
{
	const char *cache = NULL;
	bool failed_earlier = true;

	g->failed = rc;
	for (unsigned i = 0; i < g->set.missing_count; i++)
		if (g->set.missing[i].role == DEVICE_CACHE)
			cache = g->set.missing[i].path ? g->set.missing[i].path : "its cache device";
	failed_earlier = g->set.missing_count && !diskgroup_absent(&g->set);
	if (rc == -ERR_NOT_FOUND && g->set.lost) {
		snprintf(g->why, sizeof(g->why), "%.110s: %s", g->set.lost, g->set.why_lost);
		log_error("group",
			  g->waiting_us
				  ? "a disk group lacks a device; it is waited for"
				  : "a disk group lacks a device; the node serves without it. Bring the "
				    "device back and restart ashlard, or put another in its place: `ashlar "
				    "diskgroup replace`",
			  "group=%u device=%s reason=\"%s\" cache=%s given_up=%d", g->number, g->set.lost,
			  g->set.why_lost, cache ? cache : "there", failed_earlier);
		return;
	}
	if (g->lost && rc == g->lost) {
		snprintf(g->why, sizeof(g->why),
			 "%s; it begins anew once nothing has its only in-sync copy here (or: ashlar "
			 "diskgroup replace, with --accept-loss)",
			 rc == -ERR_LOG_LOST ? "its write log is lost" : "its map is lost");
		log_error("group", g->why, "group=%u", g->number);
		return;
	}
	snprintf(g->why, sizeof(g->why), "could not be opened: %s", err_text(rc));
	log_error("group",
		  "a disk group could not be opened; the node serves without it. `ashlard inspect "
		  "PATH` shows what its devices hold",
		  "group=%u device=%s metadata_dir=%s error=%s reason=\"%s\"", g->number,
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
		if (diskgroup_absent(&g->set)) {
			g->waiting_us = loop_mono_us(n->loop);
			rc = -ERR_NOT_FOUND;
		} else {
			rc = open_blocking(n, g);
		}
		if (rc < 0)
			group_note_failure(n, g, rc);
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

/* A group that cannot take it is as one that did not open: it takes it when it does. */
void node_groups_set_incarnation(struct node *n)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link)
	{
		int rc = g->store ? store_set_node_incarnation(g->store, n->identity.incarnation)
				  : 0;

		if (rc == 0)
			continue;
		store_close(g->store);
		g->store = NULL;
		group_note_failure(n, g, rc);
	}
}

/* ---- Starting, and opening at run time ---- */

struct group_job {
	struct work work;
	struct wait wait, *owner;
	struct node *node;
	struct node_group *group;
	bool look_again, wait_for_devices;
	struct loop **loops;
};

int node_group_open_blocking(struct node *n, struct node_group *g, struct loop **loops)
{
	struct store_identity id;
	int rc;

	if (!g->store) {
		rc = open_blocking(n, g);
		if (rc == 0)
			rc = store_set_node_incarnation(g->store, n->identity.incarnation);
		if (rc < 0) {
			if (g->store)
				store_close(g->store);
			g->store = NULL;
			return rc;
		}
	}
	store_identity(g->store, &id);
	g->set.incarnation = MAX(g->set.incarnation, id.group_incarnation);
	return store_start(g->store, loops, n->shard_count);
}

/* On a worker: opens (unless it is) and starts the store; the loops run. */
static int group_job_run(struct work *w)
{
	struct group_job *j = container_of(w, struct group_job, work);

	if (!j->group->store && j->look_again)
		diskgroup_look_again(j->node->config.state_dir, &j->node->identity, &j->group->set);
	if (diskgroup_absent(&j->group->set) && j->wait_for_devices)
		return -ERR_NOT_FOUND;
	return node_group_open_blocking(j->node, j->group, j->loops);
}

void node_group_opened(struct node *n, struct node_group *g, int rc)
{
	g->busy = false;
	g->may_reset = false;
	if (rc < 0 && g->as_is) {
		g->tried_as_is = rc == g->lost;
		g->as_is = false;
	}
	if (g->set.number)
		g->number = g->set.number;
	if (rc < 0) {
		if (rc != g->lost)
			g->lost = 0;
		group_note_failure(n, g, rc);
		if (node_group_reopening(g))
			node_group_reopen_failed(n, g, rc);
		else if (!g->lost && !g->waiting_us && !g->reopen.gave_up)
			node_group_not_opened(n, g); /* what was to begin anew, too */
		node_groups_again(n);
		return;
	}
	g->failed = 0;
	g->why[0] = 0;
	g->waiting_us = 0;
	g->started = true;
	g->lost = 0;
	node_group_reopened(n, g);
	g->check_map = g->anew = false;
	g->was_count = 0;
	log_info("group", "open", "group=%u devices=%u missing=%u", g->number, g->set.device_count,
		 g->set.missing_count);
	node_groups_reconcile(n);
}

static void group_job_done(struct wait *w, int rc)
{
	struct group_job *j = container_of(w, struct group_job, wait);
	struct wait *owner = j->owner;

	node_group_opened(j->node, j->group, rc);
	free(j->loops);
	free(j);
	if (owner)
		wait_resume(owner, rc);
}

struct loop **node_loops(const struct node *n)
{
	struct loop **loops = xcalloc(n->shard_count, sizeof(*loops));

	for (unsigned i = 0; i < n->shard_count; i++)
		loops[i] = n->shards[i].loop;
	return loops;
}

static void group_job_start(struct node *n, struct node_group *g, bool look_again, struct wait *owner)
{
	struct group_job *j = xcalloc(1, sizeof(*j));
	int rc;

	*j = (struct group_job){.work.run = group_job_run,
				.wait.resume = group_job_done,
				.owner = owner,
				.node = n,
				.group = g,
				.look_again = look_again,
				.wait_for_devices = g->waiting_us && loop_mono_us(n->loop) - g->waiting_us <
									     MISSING_GRACE_US,
				.loops = node_loops(n)};
	g->busy = true;
	if (!j->wait_for_devices)
		g->waiting_us = 0;
	rc = worker_submit(n->workers, n->loop, &j->work, &j->wait);
	CHECK(rc == PENDING);
}

void node_group_open_again(struct node *n, struct node_group *g)
{
	group_job_start(n, g, true, NULL);
}

static void anew_allowed(struct wait *w, int rc)
{
	struct node_group *g = container_of(w, struct node_group, anew_wait);
	struct node *n = g->anew_barrier.node;

	g->busy = false;
	if (rc < 0 || node_group_last_copies(n, g->number))
		return; /* the timer asks again */
	g->may_reset = true;
	group_job_start(n, g, false, NULL);
}

/* It has the only in-sync copy of something, and a database that can be opened. What can be read of it serves
 * others to be filled from; then it is closed once more, and begins anew. */
static void serve_as_is(struct node *n, struct node_group *g)
{
	if (g->lost != -ERR_MAP_LOST || !g->check_map || g->tried_as_is)
		return;
	g->as_is = true;
	group_job_start(n, g, false, NULL);
}

/* Its log or map is lost. A replica that is alone stays as it is: that is decided by a map that is not older
 * than the wish. */
static void begin_anew(struct node *n, struct node_group *g)
{
	char text[128];
	int rc;

	if (!n->registered)
		return;
	if (node_group_last_copies(n, g->number)) {
		serve_as_is(n, g);
		return;
	}
	snprintf(text, sizeof(text), "disk group %u lost its %s and begins anew; its peers fill it",
		 g->number, g->lost == -ERR_LOG_LOST ? "write log" : "map");
	g->busy = true;
	g->anew_wait.resume = anew_allowed;
	rc = node_barrier(n, &g->anew_barrier, 2, NULL, "GROUP_BEGINS_ANEW", text, &g->anew_wait);
	if (rc != PENDING)
		anew_allowed(&g->anew_wait, rc);
}

/* What waits: for a device, or for another replica to be in sync before it may begin anew. */
static void try_again(struct node *n, struct node_group *g)
{
	if (g->busy || g->store || g->set.pending)
		return;
	if (g->lost && !g->may_reset) {
		begin_anew(n, g);
	} else if (g->waiting_us) {
		group_job_start(n, g, true, NULL);
	}
}

static void sample(struct node *n, struct node_group *g)
{
	struct store_device d[GROUP_DEVICES_MAX];
	struct store_stats st;

	if (!g->started || g->busy)
		return;
	slow_add(&g->slow, d, store_devices(g->store, d));
	store_check(g->store);
	store_stats(g->store, &st);
	if (st.failed) /* mostly a shard has said so long ago; not of a group that no shard has yet */
		node_group_failed(n, g->number, st.failed);
}

static void on_group_timer(struct timer *t)
{
	struct node *n = container_of(t, struct node, group_timer);
	uint64_t now = loop_mono_us(n->loop);
	bool soon = false, sampling = now - n->group_sample_us >= SLOW_SAMPLE_US;
	struct node_group *g;

	if (sampling)
		n->group_sample_us = now;
	list_for_each(g, &n->groups, link)
	{
		try_again(n, g);
		if (sampling)
			sample(n, g);
		if (g->as_is && g->started && g->added && !g->busy && !node_group_last_copies(n, g->number))
			node_group_no_more_as_is(n, g);
		soon |= g->waiting_us || g->lost || g->as_is;
	}
	if (n->control)
		node_groups_reconcile(n); /* a proposal that no leader took */
	timer_set(t, soon ? GROUP_TIMER_US : SLOW_SAMPLE_US);
}

void node_groups_again(struct node *n)
{
	if (n->group_timer.loop)
		timer_set(&n->group_timer, GROUP_TIMER_US);
}

void node_groups_start(struct node *n)
{
	struct node_group *g;

	list_for_each(g, &n->groups, link)
	{
		if (g->store && !g->started && !g->busy)
			group_job_start(n, g, false, NULL);
		else if (g->failed && !g->waiting_us && !g->lost)
			node_group_not_opened(n, g);
	}
	timer_init(&n->group_timer, n->loop, on_group_timer);
	timer_set(&n->group_timer, GROUP_TIMER_US);
}

bool node_groups_opening(const struct node *n)
{
	const struct node_group *g;

	list_for_each(g, &n->groups, link)
		if (g->store && !g->started && !g->failed)
			return true;
	return false;
}

int node_group_open(void *node, const struct diskgroup_set *set, struct wait *w)
{
	struct node *n = node;
	struct node_group *g = group_find(n, &set->uuid);

	if (!n->shards_running)
		return -ERR_RETRY;
	if (g && g->started)
		return 0;
	if (g && g->busy)
		return -ERR_BUSY;
	if (!g)
		g = group_add(n, set);
	g->number = g->set.number = set->number;
	g->set.incarnation = MAX(g->set.incarnation, set->incarnation);
	g->set.pending = false;
	node_group_reopen_forget(g);
	group_job_start(n, g, false, w);
	return PENDING;
}

/* ---- To the replicators ---- */

enum group_news { GROUP_GIVEN, GROUP_FAILS, GROUP_TAKEN };

struct group_post {
	struct post post, back;
	struct shard *shard;
	struct store *store;
	uint16_t group;
	enum group_news news;
	int code;		 /* fails */
	struct leaving *leaving; /* taken */
};

/* All shards give a group up. */
struct leaving {
	unsigned left;
	struct wait *wait;
};

static void group_left(struct post *p)
{
	struct group_post *m = container_of(p, struct group_post, back);
	struct leaving *l = m->leaving;

	free(m);
	if (--l->left)
		return;
	wait_resume(l->wait, 0);
	free(l);
}

static void group_on_shard(struct post *p)
{
	struct group_post *m = container_of(p, struct group_post, post);

	if (m->news == GROUP_TAKEN) {
		replicator_store_remove(m->shard->replicator, m->group);
		m->back.fn = group_left;
		loop_post(m->shard->node->loop, &m->back);
		return;
	}
	if (m->news == GROUP_GIVEN)
		replicator_store_add(m->shard->replicator, m->group, m->store);
	else
		replicator_store_failed(m->shard->replicator, m->group, m->code);
	free(m);
}

static void group_tell_shards(struct node *n, struct node_group *g, enum group_news news, int code,
			      struct leaving *leaving)
{
	for (unsigned i = 0; i < n->shard_count; i++) {
		struct group_post *m = xcalloc(1, sizeof(*m));

		*m = (struct group_post){.post.fn = group_on_shard,
					 .shard = &n->shards[i],
					 .store = g->store,
					 .group = g->number,
					 .news = news,
					 .code = code,
					 .leaving = leaving};
		loop_post(n->shards[i].loop, &m->post);
	}
}

void node_group_tell_failed(struct node *n, struct node_group *g, int code)
{
	if (g->added)
		group_tell_shards(n, g, GROUP_FAILS, code, NULL);
}

int node_group_leave_shards(struct node *n, struct node_group *g, struct wait *w)
{
	struct leaving *l;

	if (!g->added)
		return 0;
	g->added = false;
	l = xcalloc(1, sizeof(*l));
	*l = (struct leaving){.left = n->shard_count, .wait = w};
	group_tell_shards(n, g, GROUP_TAKEN, 0, l);
	return PENDING;
}

static void regroup_done(struct wait *w, int rc)
{
	struct node_group *g = container_of(w, struct node_group, propose_wait);

	/* Applied state decides (node_groups_reconcile); a refusal is tried again with the next
	 * delta, or by the timer. */
	g->proposing = false;
	if (rc < 0 || g->propose.result.code < 0)
		log_warn("group", "regrouping was not accepted yet",
			 "group=%u error=%s text=\"%s\"", g->number,
			 err_name(rc < 0 ? rc : g->propose.result.code), g->propose.result.text);
}

/* A reset that kept the map left the objects in it; one before the last start of this process is told
 * by that. */
static bool keeps_pages(const struct node_group *g)
{
	struct store_stats st;

	store_stats(g->store, &st);
	return g->kept || st.objects;
}

static void regroup_propose(struct node *n, struct node_group *g, uint32_t from, uint32_t to)
{
	struct command cmd = {.kind = CMD_REGROUP};
	int rc;

	if (g->proposing)
		return;
	snprintf(cmd.actor, sizeof(cmd.actor), "node:%u", n->identity.number);
	cmd.regroup.group = g->number;
	cmd.regroup.node = n->identity.number;
	cmd.regroup.old_incarnation = from;
	cmd.regroup.new_incarnation = to;
	cmd.regroup.keeps_pages = keeps_pages(g);
	g->proposing = true;
	g->propose_wait.resume = regroup_done;
	rc = control_propose(n->control, &g->propose, &cmd, 60000, &g->propose_wait);
	if (rc != PENDING)
		regroup_done(&g->propose_wait, rc);
}

/* What its devices do not say, for none of them can be read: the cluster knows its number. */
static uint16_t number_in_map(const struct map *m, const struct node_group *g)
{
	for (struct hnode *h = hmap_walk(&m->groups, NULL); h; h = hmap_walk(&m->groups, h)) {
		const struct map_group *known = container_of(h, struct map_group, by_id);

		if (known->state != GROUP_REMOVED && uuid_equal(&known->uuid, &g->uuid))
			return known->id;
	}
	return 0;
}

void node_groups_reconcile(struct node *n)
{
	const struct map *m = state_map(control_state(n->control));
	struct node_group *g;

	if (!n->shards_running)
		return;
	list_for_each(g, &n->groups, link)
	{
		const struct map_group *known;
		struct store_identity id;

		if (!g->number)
			g->number = number_in_map(m, g);
		known = map_group(m, g->number);
		if (!g->started || g->added || g->busy || g->failed || !known ||
		    !uuid_equal(&known->uuid, &g->uuid))
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
				  g->number, id.group_incarnation, known->incarnation);
		} else {
			g->added = true;
			group_tell_shards(n, g, GROUP_GIVEN, 0, NULL);
		}
	}
}

struct store *node_group_store(struct node *n, uint16_t group)
{
	struct node_group *g = node_group_by_number(n, group);

	return g && g->started && !g->failed ? g->store : NULL;
}

void node_group_used(struct node *n, uint16_t group, int by)
{
	struct node_group *g = node_group_by_number(n, group);

	g->users = (unsigned)((int)g->users + by);
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
		*o = (struct admin_group){.group = g->number,
					  .uuid = g->uuid,
					  .open = g->started,
					  .busy = g->busy,
					  .lost = g->lost,
					  .failed = g->failed,
					  .reopening = node_group_reopening(g) && !g->lost,
					  .reopen_failed = g->reopen.failed,
					  .map_damaged = g->as_is && g->started,
					  .gave_up = g->reopen.gave_up,
					  .reopens_in_s = node_group_reopens_in_s(n, g),
					  .was = g->was,
					  .was_count = g->was_count,
					  .set = g->busy ? NULL : &g->set};
		snprintf(o->why, sizeof(o->why), "%s", g->why);
		if (g->started) {
			store_stats(g->store, &o->stats);
			o->store = g->store;
			o->device_count = store_devices(g->store, o->device);
		}
		for (unsigned i = 0; i < o->device_count; i++)
			slow_times(&g->slow, &o->device[i], o->times[i]);
		if (g->started && o->stats.failed && !o->failed)
			o->failed = o->stats.failed;
		count++;
	}
	return count;
}
