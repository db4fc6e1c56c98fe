/* SPDX-License-Identifier: Apache-2.0 */
/* A node's process: what node/run.c does around the product's own wiring, its supervisor, and
 * windows through which the simulator looks at it between events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/sim.h"

#define CACHE_BYTES     (34ull << 20) /* the smallest log there is */
#define DATA_BYTES      (160ull << 20)
#define DATA_TINY_BYTES (42ull << 20)

struct sim_node *sim_node_of(struct vproc *p)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++)
		if (p && sim.node[i].host == p->host)
			return &sim.node[i];
	return NULL;
}

struct sim_node *sim_this_node(void)
{
	struct sim_node *s = sim_node_of(vproc_current());

	CHECK(s);
	return s;
}

void sim_node_create(struct sim_node *s, unsigned number)
{
	s->number = number;
	snprintf(s->name, sizeof(s->name), "n%u", number);
	snprintf(s->listen, sizeof(s->listen), "10.0.0.%u:%u", number, SIM_PORT);
	memset(s->uuid.b, 0x10 + (int)number, sizeof(s->uuid.b));
	memset(s->group.b, 0x40 + (int)number, sizeof(s->group.b));
	s->host = vhost_create(s->name);
	vhost_set_address(s->host, number);
	vhost_set_clock(s->host, sim_rand(1, 1000) * SIM_S,
			sim.plan.drift ? (int64_t)sim_rand(0, 2 * (uint64_t)sim.plan.drift_ppm) -
						 sim.plan.drift_ppm
				       : 0);
	s->incarnation = 1;
}

/* ---- Disks ---- */

static void format_main(void *arg)
{
	struct sim_node *s = arg;
	const char *data[] = {SIM_DATA, SIM_DATA2}, *all[] = {SIM_CACHE, SIM_DATA, SIM_DATA2};
	unsigned capacity = sim.plan.two_devices ? 2 : 1;
	struct store_format f = {.cluster = sim.cluster,
				 .node = s->uuid,
				 .group = s->group,
				 .group_incarnation = 1,
				 .cache = SIM_CACHE,
				 .capacity = data,
				 .capacity_count = capacity,
				 .metadata_dir = SIM_DB,
				 .wipe = true};
	int rc = store_format(&f);

	rc = rc < 0 ? rc : store_finalize(all, 1 + capacity, &s->group, (uint16_t)s->number);
	if (rc < 0)
		sim_fail("node %u: its disks could not be formatted: %s", s->number, err_name(rc));
}

void sim_node_format(struct sim_node *s)
{
	vfile_create(s->host, SIM_CACHE, CACHE_BYTES);
	vfile_create(s->host, SIM_DATA, sim.plan.tiny_data ? DATA_TINY_BYTES : DATA_BYTES);
	if (sim.plan.two_devices)
		vfile_create(s->host, SIM_DATA2, DATA_TINY_BYTES);
	vfile_mkdir(s->host, SIM_DB);
	if (!vproc_run(s->host, "format", format_main, s))
		sim_fail("node %u: formatting did not end", s->number);
	s->formatted = true;
}

/* ---- The process ---- */

static void config_fill(const struct sim_node *s, struct config *c)
{
	*c = (struct config){
		.state_dir = VPATH "state",
		.run_dir = VPATH "run",
		.listen = (char *)(uintptr_t)s->listen,
		.advertise = (char *)(uintptr_t)s->listen,
		.shards = sim.plan.shards,
		.name = (char *)(uintptr_t)s->name,
		.fault_set = (char *)(uintptr_t)s->name,
		.data_security = SECURITY_AUTHENTICATED,
		.page_cache_bytes = 4 << 20,
		.block_cache_bytes = 1 << 20,
		.log_index_bytes = 8 << 20,
		.buffers_bytes = 256 << 20,
		.roles = ROLE_STORAGE | ROLE_VOTER,
	};
}

static int node_make(struct node *n, struct sim_node *s)
{
	config_fill(s, &n->config);
	n->shard_count = n->config.shards;
	list_init(&n->groups);
	list_init(&n->peers);
	n->loop = loop_create("control", 64);
	n->nonce = rng_next(loop_rng(n->loop));
	n->pool = buf_pool_create(64u << 20);
	n->workers = worker_pool_create("worker", 2, 0);
	n->shards = xcalloc(n->shard_count, sizeof(*n->shards));
	for (unsigned i = 0; i < n->shard_count; i++) {
		int rc = node_shard_create(&n->shards[i], n, i);

		if (rc < 0)
			return rc;
	}
	return identity_load(n->config.state_dir, &n->identity);
}

static void node_main(void *arg)
{
	struct sim_node *s = arg;
	struct node *n = xcalloc(1, sizeof(*n));
	int rc = node_make(n, s);

	rc = rc < 0 ? rc : node_start_claimed(n);
	if (rc < 0) {
		sim_trace("does not start: %s", err_name(rc));
		return;
	}
	s->node = n;
	loop_run(n->loop);
}

/* And the clients in it. */
static void gone(struct sim_node *s)
{
	s->proc = NULL;
	s->node = NULL;
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++)
		if (sim.client[i].node == s->number)
			sim.client[i].driver = NULL;
}

static void supervise(void *arg);

void sim_node_start(struct sim_node *s)
{
	char tag[64], uuid[UUID_TEXT];

	CHECK(!s->proc && !s->broken && !s->gone);
	s->starts++;
	s->down = false;
	s->node = NULL;
	s->map_version = 0;
	s->proc = vproc_spawn(s->host, "ashlard", node_main, s);
	uuid_format(&s->uuid, uuid);
	snprintf(tag, sizeof(tag), "node:%s", uuid);
	vproc_set_tag(s->proc, tag);
	sim_trace("node %u starts", s->number);
	if (s->starts == 1)
		simhost_at(20 * SIM_MS, NULL, supervise, NULL, s);
}

/* Notices its end, as the service manager does, and starts it again. */
static void supervise(void *arg)
{
	struct sim_node *s = arg;

	if (s->proc && !vproc_alive(s->proc)) {
		s->exits++;
		gone(s);
	}
	if (!s->proc && !s->down && !s->broken && !s->gone)
		sim_node_start(s);
	simhost_at(sim_rand(20, 200) * SIM_MS, NULL, supervise, NULL, s);
}

void sim_node_kill(struct sim_node *s, bool power)
{
	sim_trace("node %u %s", s->number, power ? "loses power" : "is killed");
	s->down = true;
	if (power)
		vhost_power_cut(s->host);
	else if (s->proc && vproc_alive(s->proc))
		vproc_kill(s->proc);
	gone(s);
}

/* ---- Windows ---- */

bool sim_node_serves(const struct sim_node *s)
{
	return s->proc && vproc_alive(s->proc) && s->node && s->node->shards_running;
}

const struct map *sim_node_map(const struct sim_node *s)
{
	if (!s->proc || !vproc_alive(s->proc) || !s->node || !s->node->control)
		return NULL;
	return state_map(control_state(s->node->control));
}

const struct state *sim_newest_state(void)
{
	const struct state *best = NULL;

	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		const struct map *m = sim_node_map(&sim.node[i]);

		if (m && (!best || m->version > state_map(best)->version))
			best = control_state(sim.node[i].node->control);
	}
	return best;
}

const struct map *sim_newest_map(void)
{
	const struct state *s = sim_newest_state();

	return s ? state_map(s) : NULL;
}
