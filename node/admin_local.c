/* SPDX-License-Identifier: Apache-2.0 */
/* What this node knows first hand: its stores, its shards' replicators and clients, its
 * certificate. Asked by people and by the other nodes' admin interfaces. Facts of shards are
 * collected on the shards' own threads, each into its own slot. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/ca.h"
#include "node/admin_impl.h"

#define OPS_MAX 256u /* per shard */
/* A node that lives said something in this time: beacons and heartbeats come each second at least. Less than
 * what makes a data connection one that is not heard, so that a node that froze just now passes for dead
 * before its links pass for cut. */
#define HEARD_LATELY_US 1250000u

struct field {
	const char *name;
	size_t offset;
};

#define F(type, member)                                                                            \
	{                                                                                          \
#member, offsetof(struct type, member)                                             \
	}

static const struct field replicator_fields[] = {
	F(replicator_stats, reads),       F(replicator_stats, writes),
	F(replicator_stats, trims),       F(replicator_stats, read_bytes),
	F(replicator_stats, write_bytes), F(replicator_stats, retries),
	F(replicator_stats, repairs),     F(replicator_stats, corrupt),
	F(replicator_stats, replicated),  F(replicator_stats, acks),
	F(replicator_stats, grants),      F(replicator_stats, leases_missed),
	F(replicator_stats, takeovers),   F(replicator_stats, drops),
	F(replicator_stats, promotions),  F(replicator_stats, resync_bytes),
	F(replicator_stats, moves),       F(replicator_stats, damaged_blocks),
	F(replicator_stats, lost_blocks), F(replicator_stats, repaired_blocks),
	F(replicator_stats, undecided),
	F(replicator_stats, diverged_pages), F(replicator_stats, audits),
	F(replicator_stats, objects),     F(replicator_stats, primaries),
	F(replicator_stats, serving),     F(replicator_stats, syncing),
	F(replicator_stats, confirms),
	F(replicator_stats, resync_sent_bytes), F(replicator_stats, copy_left_bytes),
	F(replicator_stats, copy_rate),   F(replicator_stats, copy_allowed),
};

static const struct field client_fields[] = {
	F(client_stats, ios),       F(client_stats, retries),    F(client_stats, remote),
	F(client_stats, local),     F(client_stats, bytes_read), F(client_stats, bytes_written),
	F(client_stats, in_flight),
};

static const struct field store_fields[] = {
	F(store_stats, raw_bytes),
	F(store_stats, data_bytes),
	F(store_stats, data_used_bytes),
	F(store_stats, data_free_bytes),
	F(store_stats, granted_bytes),
	F(store_stats, log_bytes),
	F(store_stats, log_used_bytes),
	F(store_stats, log_index_bytes),
	F(store_stats, metadata_used_bytes),
	F(store_stats, padding_bytes),
	F(store_stats, summary_bytes),
	F(store_stats, dead_bytes),
	F(store_stats, free_bytes),
	F(store_stats, reserve_bytes),
	F(store_stats, lost_bytes),
	F(store_stats, lost_live_bytes),
	F(store_stats, layout_bytes),
	F(store_stats, zero_bytes),
	F(store_stats, dedup_saved_bytes),
	F(store_stats, compression_saved_bytes),
	F(store_stats, damaged_bytes),
	F(store_stats, dedup_matched_blocks),
	F(store_stats, dedup_hint_bytes),
	F(store_stats, dedup_hint_budget_bytes),
	F(store_stats, dedup_hint_evictions),
	F(store_stats, dedup_false_hints),
	F(store_stats, page_cache_budget_bytes),
	F(store_stats, block_cache_budget_bytes),
	F(store_stats, log_unreduced_bytes),
	F(store_stats, reduce_bypassed_blocks),
	F(store_stats, reduce_redone_blocks),
	F(store_stats, logical_bytes),
	F(store_stats, objects),
	F(store_stats, appended_blocks),
	F(store_stats, destaged_blocks),
	F(store_stats, gc_blocks),
	F(store_stats, device_written_bytes),
	F(store_stats, data_written_bytes),
	F(store_stats, moved_bytes),
	F(store_stats, device_read_bytes),
	F(store_stats, page_cache_hits),
	F(store_stats, page_cache_misses),
	F(store_stats, corrupt_blocks),
	F(store_stats, io_errors),
};

static uint64_t field_get(const void *s, const struct field *f)
{
	uint64_t v;

	memcpy(&v, (const char *)s + f->offset, sizeof(v));
	return v;
}

static struct json *fields_to_json(const void *s, const struct field *f, size_t n)
{
	struct json *j = json_object_new();

	for (size_t i = 0; i < n; i++)
		json_put_u64(j, f[i].name, field_get(s, &f[i]));
	return j;
}

static void fields_add(void *sum, const void *s, const struct field *f, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t v = field_get(sum, &f[i]) + field_get(s, &f[i]);

		memcpy((char *)sum + f[i].offset, &v, sizeof(v));
	}
}

/* ---- One collection over the shards ------------------------------------------------------------
 */

struct slot {
	struct replicator_stats replicator;
	struct client_stats client;
	struct json *list; /* replicas or operations */
	unsigned count, shard;
	uint64_t map_version; /* what the shard has applied */
	bool ran;
	struct replicator *r;
	bool hears[NODE_IDS_MAX + 1], heard[NODE_IDS_MAX + 1];
};

struct collect {
	struct admin *admin;
	struct admin_shard_job job;
	struct wait wait;
	struct wait *owner;
	struct json **out;
	struct json *(*finish)(struct collect *c);
	uint32_t volume, from, count; /* objects whose replicas are asked for */
	struct slot slots[SHARDS_MAX];
};

static void on_collected(struct wait *w, int rc)
{
	struct collect *c = container_of(w, struct collect, wait);
	struct wait *owner = c->owner;

	*c->out = c->finish(c);
	free(c);
	wait_resume(owner, 0);
}

static struct collect *collect_new(struct admin *a,
				   void (*run)(struct admin_shard_job *, unsigned, struct replicator *,
					       struct client *),
				   struct json *(*finish)(struct collect *), struct json **out,
				   struct wait *w)
{
	struct collect *c = xcalloc(1, sizeof(*c));

	c->admin = a;
	c->job = (struct admin_shard_job){.run = run, .arg = c};
	c->wait.resume = on_collected;
	c->owner = w;
	c->out = out;
	c->finish = finish;
	return c;
}

static int collect_start(struct collect *c)
{
	const struct admin_config *cfg = &c->admin->cfg;

	if (cfg->node_ops->on_shards(cfg->node, &c->job, &c->wait) == PENDING)
		return PENDING;
	*c->out = c->finish(c);
	free(c);
	return 0;
}

/* ---- Facts of this node ------------------------------------------------------------------------
 */

static void facts_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r,
			   struct client *cl)
{
	struct collect *c = j->arg;

	CHECK(shard < SHARDS_MAX);
	if (r)
		replicator_stats(r, &c->slots[shard].replicator);
	for (uint16_t n = 1; r && n <= NODE_IDS_MAX; n++) {
		c->slots[shard].hears[n] = replicator_hears(r, n);
		c->slots[shard].heard[n] = replicator_silent_us(r, n) < HEARD_LATELY_US;
	}
	if (cl)
		client_stats(cl, &c->slots[shard].client);
	if (cl)
		c->slots[shard].map_version = client_map_version(cl);
	c->slots[shard].ran = true;
}

static struct json *times_to_json(const struct slow_times *t)
{
	struct json *j = json_object_new();

	json_put_u64(j, "count", t->count);
	json_put_u64(j, "mean_us", t->mean_us);
	json_put_u64(j, "p99_us", t->p99_us);
	return j;
}

static struct json *device_to_json(const struct uuid *u, enum device_role role, const char *path,
				   const char *state)
{
	struct json *j = json_object_new();
	char uuid[UUID_TEXT];

	uuid_format(u, uuid);
	json_put_str(j, "path", path && path[0] ? path : NULL);
	json_put_str(j, "role", role == DEVICE_CACHE ? "cache" : "capacity");
	json_put_str(j, "uuid", uuid);
	json_put_str(j, "state", state);
	return j;
}

/* Of an open device: what it is, how it is, and how fast it was in the last minute. */
static struct json *open_device_to_json(const struct store_device *d, const struct slow_times *t)
{
	static const char *const ops[DEVICE_OP_KINDS] = {"read", "write", "flush"};
	struct json *j = device_to_json(&d->uuid, d->role, d->path,
					!d->failed			? "ok"
					: d->failed == -ERR_NOT_FOUND	? "missing"
									: "failed");
	struct json *errors = json_object_new(), *times = json_object_new();

	json_put_u64(j, "index", d->index);
	json_put_u64(j, "size_bytes", d->size_bytes);
	json_put_str(j, "error", d->failed ? err_name(d->failed) : NULL);
	for (unsigned i = 0; i < DEVICE_OP_KINDS; i++) {
		json_put_u64(errors, ops[i], d->errors[i]);
		json_put(times, ops[i], times_to_json(&t[i]));
	}
	json_put(j, "errors", errors);
	json_put(j, "last_minute", times);
	return j;
}

static bool was_failing(const struct admin_group *g, const struct uuid *device)
{
	for (unsigned i = 0; i < g->was_count; i++)
		if (uuid_equal(&g->was[i].uuid, device))
			return g->was[i].failed != 0;
	return false;
}

/* Of an open group the devices as the store has them, with where missing ones were; else as they were
 * found, and as they were when it was closed. */
static struct json *devices_to_json(const struct admin_group *g)
{
	const struct diskgroup_set *set = g->set;
	struct json *list = json_array_new();

	for (unsigned i = 0; i < g->device_count; i++) {
		struct json *j = open_device_to_json(&g->device[i], g->times[i]);

		for (unsigned k = 0; set && k < set->missing_count; k++)
			if (uuid_equal(&set->missing[k].uuid, &g->device[i].uuid) && set->missing[k].path &&
			    !g->device[i].path[0])
				json_put_str(j, "path", set->missing[k].path);
		json_add(list, j);
	}
	for (unsigned i = 0; set && !g->device_count && i < set->device_count; i++)
		json_add(list, device_to_json(&set->device[i], set->role[i], set->devices[i],
					      was_failing(g, &set->device[i]) ? "failed" : "closed"));
	for (unsigned i = 0; set && !g->device_count && i < set->missing_count; i++)
		json_add(list, device_to_json(&set->missing[i].uuid, set->missing[i].role,
					      set->missing[i].path,
					      set->missing[i].failed ? "failed" : "missing"));
	return list;
}

/* Why it does not serve, and what becomes of it by itself. */
static void put_why(struct json *j, const struct admin_group *g, int failed)
{
	const char *why = g->why[0] ? g->why : failed ? err_text(failed) : NULL;
	char text[400];

	if (!why) {
		json_put_str(j, "why", NULL);
		return;
	}
	snprintf(text, sizeof(text), "%s", why);
	if (g->reopening && g->reopens_in_s)
		snprintf(text, sizeof(text), "%s; it is opened again in %u s", why, g->reopens_in_s);
	else if (g->reopening)
		snprintf(text, sizeof(text), "%s; it is being closed and opened again", why);
	else if (g->gave_up)
		snprintf(text, sizeof(text),
			 "%s; after too many tries it stays closed: see to it, then repeat its "
			 "`ashlar diskgroup add`, or restart ashlard",
			 why);
	json_put_str(j, "why", text);
}

static struct json *group_to_json(const struct admin_group *g)
{
	struct json *j = json_object_new(), *stats;
	char uuid[UUID_TEXT];
	int failed = g->failed ? g->failed : g->open ? g->stats.failed : 0;

	uuid_format(&g->uuid, uuid);
	json_put_u64(j, "group", g->group);
	json_put_str(j, "uuid", uuid);
	json_put_bool(j, "open", g->open);
	json_put_str(j, "failed", failed ? err_name(failed) : NULL);
	json_put_bool(j, "missing",
		      failed == -ENOENT || failed == -ENODATA || failed == -ENXIO ||
			      failed == -ERR_NOT_FOUND);
	put_why(j, g, failed);
	json_put_bool(j, "busy", g->busy);
	json_put_bool(j, "reopening", g->reopening);
	json_put_bool(j, "reopen_failed", g->reopen_failed);
	json_put_bool(j, "gave_up", g->gave_up);
	json_put_bool(j, "map_damaged", g->map_damaged);
	json_put_str(j, "lost", g->lost ? err_name(g->lost) : NULL);
	json_put(j, "devices", devices_to_json(g));
	json_put_str(j, "metadata_dir", g->set ? g->set->metadata_dir : NULL);
	if (!g->open)
		return j;
	stats = fields_to_json(&g->stats, store_fields, ARRAY_LEN(store_fields));
	json_put_u64(stats, "log_fill_permyriad", g->stats.log_fill_permyriad);
	json_put_u64(stats, "destage_blocks_per_s", g->stats.destage_blocks_per_s);
	json_put_bool(stats, "reduce_pending", g->stats.reduce_pending);
	json_put(j, "stats", stats);
	json_put(j, "reclaim", reclaim_to_json(g->store));
	json_put(j, "scrub", scrub_to_json(g->store));
	return j;
}

static void put_certificate(struct admin *a, struct json *j)
{
	struct birth_paths p;
	int64_t seconds;

	birth_paths(a->cfg.config->state_dir, &p);
	if (a->cfg.identity->number && ca_expires_in(p.cert, &seconds) == 0)
		json_put_i64(j, "certificate_expires_s", seconds);
}

static uint64_t resident_bytes(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f)
		return 0;
	if (fscanf(f, "%*u %llu", &pages) != 1)
		pages = 0;
	fclose(f);
	return pages * 4096;
}

/* The connections to other nodes as this node sees them: a cut may part one kind and not the other. */
static struct json *links_to_json(const struct admin *a, const struct collect *c)
{
	const struct map *m = admin_map(a);
	struct json *list = json_array_new();

	for (uint16_t id = 1; m && id <= NODE_IDS_MAX && id < m->next_node; id++) {
		const struct map_node *n = map_node(m, id);
		bool hears = c->slots[0].ran; /* all shards, or there are none yet */
		bool heard = a->ops->peer_silent_us(a->cluster, id) < HEARD_LATELY_US;
		struct json *j;

		if (!n || id == a->cfg.identity->number || n->state != NODE_ACTIVE)
			continue;
		j = json_object_new();
		json_put_u64(j, "node", id);
		json_put_bool(j, "control", a->ops->peer_connected(a->cluster, id));
		for (unsigned i = 0; i < SHARDS_MAX; i++) {
			hears &= !c->slots[i].ran || c->slots[i].hears[id];
			heard |= c->slots[i].heard[id];
		}
		json_put_bool(j, "data", hears);
		json_put_bool(j, "heard", heard); /* lately, on any of them */
		json_add(list, j);
	}
	return list;
}

static struct json *facts_finish(struct collect *c)
{
	struct admin *a = c->admin;
	struct json *j = json_object_new(), *groups = json_array_new(), *replication;
	uint64_t cost = 0; /* of the shard where it is most */
	struct replicator_stats r = {0};
	struct client_stats cl = {0};
	uint64_t map_version = UINT64_MAX;
	struct admin_group g[GROUPS_PER_NODE_MAX];
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));
	char uuid[UUID_TEXT];

	for (unsigned i = 0; i < SHARDS_MAX; i++) {
		fields_add(&r, &c->slots[i].replicator, replicator_fields,
			   ARRAY_LEN(replicator_fields));
		fields_add(&cl, &c->slots[i].client, client_fields, ARRAY_LEN(client_fields));
		cost = MAX(cost, c->slots[i].replicator.copy_cost_permille);
		if (c->slots[i].ran)
			map_version = MIN(map_version, c->slots[i].map_version);
	}
	uuid_format(&a->cfg.identity->node, uuid);
	json_put_str(j, "name", a->cfg.config->name);
	json_put_u64(j, "number", a->cfg.identity->number);
	json_put_str(j, "uuid", uuid);
	json_put_u64(j, "incarnation", a->cfg.identity->incarnation);
	json_put_str(j, "version", ASHLAR_VERSION);
	json_put_u64(j, "time_ms", wall_ms());
	json_put_u64(j, "up_s", (loop_mono_us(a->cfg.loop) - a->started_us) / 1000000);
	json_put_u64(j, "resident_bytes", resident_bytes());
	json_put_u64(j, "shards_map_version", map_version == UINT64_MAX ? 0 : map_version);
	put_certificate(a, j);
	json_put_bool(j, "ca_key", birth_has_ca_key(a->cfg.config->state_dir));
	for (unsigned i = 0; i < n; i++)
		json_add(groups, group_to_json(&g[i]));
	json_put(j, "groups", groups);
	json_put(j, "links", links_to_json(a, c));
	json_put_bool(j, "crashed", a->crashed);
	replication = fields_to_json(&r, replicator_fields, ARRAY_LEN(replicator_fields));
	json_put_u64(replication, "copy_cost_permille", cost);
	json_put(j, "replication", replication);
	json_put(j, "client", fields_to_json(&cl, client_fields, ARRAY_LEN(client_fields)));
	return j;
}

int local_facts(struct admin *a, struct json **out, struct wait *w)
{
	return collect_start(collect_new(a, facts_on_shard, facts_finish, out, w));
}

/* ---- Replicas of a volume ----------------------------------------------------------------------
 */

static const char *role_name(enum replica_role r)
{
	switch (r) {
	case REPLICA_PRIMARY:
		return "primary";
	case REPLICA_SECONDARY:
		return "secondary";
	case REPLICA_SYNCING:
		return "syncing";
	case REPLICA_OUT:
		return "out";
	case REPLICA_NONE:
		break;
	}
	return "none";
}

static struct json *replica_info_to_json(const struct replica_info *i)
{
	struct json *j = json_object_new();

	json_put_u64(j, "object", object_index(i->object));
	json_put_str(j, "role", role_name(i->role));
	json_put_str(j, "state", i->state);
	json_put_str(j, "broken", i->broken);
	json_put_bool(j, "present", i->present);
	json_put_bool(j, "serving", i->serving);
	json_put_u64(j, "epoch", i->epoch);
	json_put_u64(j, "seen", i->seen);
	json_put_u64(j, "last_tenure", i->last.tenure);
	json_put_u64(j, "last_seq", i->last.seq);
	json_put_u64(j, "commit_tenure", i->commit.tenure);
	json_put_u64(j, "commit_seq", i->commit.seq);
	json_put_u64(j, "joined", i->members_joined);
	json_put_u64(j, "want", i->want);
	json_put_u64(j, "pages_to_copy", i->pages_to_copy);
	return j;
}

/* By number: what a shard has of other volumes and beyond the page is not looked at. */
static void replicas_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r,
			      struct client *cl)
{
	struct collect *c = j->arg;
	struct slot *s = &c->slots[shard];

	s->list = json_array_new();
	for (uint32_t i = 0; r && i < c->count; i++) {
		struct replica_info info;

		if (replicator_info(r, object_id(c->volume, c->from + i), &info))
			json_add(s->list, replica_info_to_json(&info));
	}
}

/* The shards' lists as one. */
static struct json *lists_finish(struct collect *c)
{
	struct json *all = json_array_new();

	for (unsigned i = 0; i < SHARDS_MAX; i++) {
		struct json *list = c->slots[i].list;

		json_append(all, list);
	}
	return all;
}

int local_replicas(struct admin *a, uint32_t volume, uint32_t from, uint32_t count, struct json **out,
		   struct wait *w)
{
	struct collect *c = collect_new(a, replicas_on_shard, lists_finish, out, w);

	c->volume = volume;
	c->from = from;
	c->count = MIN(count, REPLICAS_PAGE);
	return collect_start(c);
}

/* ---- Operations in flight ----------------------------------------------------------------------
 */

static void one_replica_op(void *arg, const struct replica_op_info *i)
{
	struct slot *s = arg;
	struct json *j;

	if (s->count++ >= OPS_MAX)
		return;
	j = json_object_new();
	json_put_str(j, "layer", "replica");
	json_put_str(j, "kind", i->kind);
	json_put_u64(j, "volume", object_volume(i->object));
	json_put_u64(j, "object", object_index(i->object));
	json_put_u64(j, "offset_bytes", i->offset);
	json_put_u64(j, "length_bytes", i->length);
	json_put_str(j, "stage", i->stage);
	json_put_str(j, "waits_for", i->waits_for);
	json_put_u64(j, "age_us", i->age_us);
	json_put_u64(j, "shard", s->shard);
	json_add(s->list, j);
}

static void one_client_op(void *arg, const char *volume, const char *kind, const char *waits_for,
			  uint64_t offset, uint64_t age_us)
{
	struct slot *s = arg;
	struct json *j;

	if (s->count++ >= OPS_MAX)
		return;
	j = json_object_new();
	json_put_str(j, "layer", "client");
	json_put_str(j, "kind", kind);
	json_put_str(j, "volume_name", volume);
	json_put_u64(j, "offset_bytes", offset);
	json_put_str(j, "waits_for", waits_for);
	json_put_u64(j, "age_us", age_us);
	json_put_u64(j, "shard", s->shard);
	json_add(s->list, j);
}

static void ops_on_shard(struct admin_shard_job *j, unsigned shard, struct replicator *r,
			 struct client *cl)
{
	struct collect *c = j->arg;
	struct slot *s = &c->slots[shard];

	s->list = json_array_new();
	s->shard = shard;
	if (r)
		replicator_ops(r, one_replica_op, s);
	if (cl)
		client_ops(cl, one_client_op, s);
}

int local_ops(struct admin *a, struct json **out, struct wait *w)
{
	return collect_start(collect_new(a, ops_on_shard, lists_finish, out, w));
}

/* ---- The endpoints -----------------------------------------------------------------------------
 */

struct local_get {
	struct wait wait;
	struct areq *q;
	struct json *json;
	const char *key; /* NULL: json is the answer itself */
	uint32_t volume; /* not 0: with its ledgers */
};

/* With the replicas of a volume: what it has in the ledger of each open group here. */
struct json *local_ledgers(struct admin *a, uint32_t volume)
{
	struct admin_group g[GROUPS_PER_NODE_MAX];
	unsigned n = a->cfg.node_ops->groups(a->cfg.node, g, ARRAY_LEN(g));
	struct json *list = json_array_new();

	for (unsigned i = 0; i < n; i++) {
		struct store_ledger l;
		struct json *row;

		if (!g[i].open)
			continue;
		(void)store_volume_ledger(g[i].store, volume, &l); /* nothing is 0 */
		row = ledger_to_json(&l);
		json_put_u64(row, "group", g[i].group);
		json_add(list, row);
	}
	return list;
}

static void on_local(struct wait *w, int rc)
{
	struct local_get *g = container_of(w, struct local_get, wait);
	struct json *j = g->json;

	if (g->key) {
		j = json_object_new();
		json_put(j, g->key, g->json);
	}
	if (g->volume)
		json_put(j, "ledgers", local_ledgers(g->q->admin, g->volume));
	admin_reply(g->q, 200, j);
}

static struct local_get *local_get_new(struct areq *q, const char *key)
{
	struct local_get *g = xcalloc(1, sizeof(*g));

	g->wait.resume = on_local;
	g->q = q;
	g->key = key;
	q->op = g;
	return g;
}

void admin_get_local(struct areq *q)
{
	struct local_get *g = local_get_new(q, NULL);
	int rc = local_facts(q->admin, &g->json, &g->wait);

	if (rc != PENDING)
		on_local(&g->wait, rc);
}

void admin_get_local_replicas(struct areq *q)
{
	struct local_get *g = local_get_new(q, "replicas");
	uint32_t from = 0, count = REPLICAS_PAGE;
	int rc;

	if (sscanf(q->param, "%" SCNu32 ",%" SCNu32 ",%" SCNu32, &g->volume, &from, &count) < 1) {
		admin_fail(q, -ERR_INVALID, "/v1/local/replicas/VOLUME[,FROM,COUNT] takes numbers");
		return;
	}
	rc = local_replicas(q->admin, g->volume, from, count, &g->json, &g->wait);
	if (rc != PENDING)
		on_local(&g->wait, rc);
}

void admin_get_local_ops(struct areq *q)
{
	struct local_get *g = local_get_new(q, "ops");
	int rc = local_ops(q->admin, &g->json, &g->wait);

	if (rc != PENDING)
		on_local(&g->wait, rc);
}
