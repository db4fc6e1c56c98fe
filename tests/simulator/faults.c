/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong, and when. Crashes, power cuts, silences and pauses may come to all, in any
 * order; but what destroys bytes comes to one node only, the *hurt* one, and only what others hold
 * as well:
 *   - the map is lost only while no object lists the node's replica as in, or all are in, or, while the
 *     node works, while each object has a replica in elsewhere
 *   - bits rot, and a capacity device fails, only while every object has all members in
 * A client may be told of a bad block only if the hurt node's replica was the last one in since. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/replica_impl.h"
#include "node/base/err.h"
#include "node/node_group.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/sim.h"

static struct sim_node *hurt;
static bool rotten;

static struct sim_node *node_any(void)
{
	return &sim.node[sim_rand(1, sim.plan.nodes)];
}

static bool is_up(const struct sim_node *s)
{
	return s->proc && vproc_alive(s->proc);
}

static void restart(void *arg)
{
	struct sim_node *s = arg;

	if (!s->proc && !s->broken && !s->gone && s->down)
		sim_node_start(s);
}

void sim_restart_in(struct sim_node *s, uint64_t us)
{
	simhost_at(us, NULL, restart, NULL, s);
}

/* ---- Silences ---- */

struct silence {
	struct vhost *from, *to;
	unsigned classes;
};

static void silence_set(const struct silence *x, bool on)
{
	for (unsigned c = 0; c < VCLASSES; c++)
		if (x->classes >> c & 1)
			vnet_block(x->from, x->to, (enum vclass)c, on);
}

static void silence_over(void *arg)
{
	silence_set(arg, false);
	keep_free(arg);
}

void sim_silence(struct vhost *from, struct vhost *to, unsigned classes, uint64_t us)
{
	struct silence *x = keep_alloc(sizeof(*x));

	*x = (struct silence){from, to, classes};
	silence_set(x, true);
	simhost_at(us, NULL, silence_over, keep_free, x);
}

static struct vhost *host_any(void)
{
	unsigned i = (unsigned)sim_rand(1, sim.plan.nodes + MIN(sim.plan.clients, SIM_CLIENTS_MAX));
	struct vhost *h =
		i <= sim.plan.nodes ? sim.node[i].host : sim.client[i - sim.plan.nodes - 1].host;

	return h ? h : sim.node[1].host;
}

static void fault_silence(struct sim_node *s)
{
	static const unsigned classes[] = {3, 3, 1, 2};
	struct vhost *other = host_any();
	unsigned c = classes[sim_rand(0, 3)];
	uint64_t us = sim_rand(50, 3000) * SIM_MS;
	bool alone = sim_chance(0.3), both = sim_chance(0.6);

	sim_trace("silence: node %u and %s, classes %u, %s, %.1f ms", s->number,
		  alone ? "all" : other->name, c, both ? "both ways" : "one way",
		  (double)us / 1000);
	sim.counts.blocks++;
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct vhost *o = sim.node[i].host;

		if (o == s->host || (!alone && o != other))
			continue;
		sim_silence(s->host, o, c, us);
		if (both)
			sim_silence(o, s->host, c, us + sim_rand(0, 50) * SIM_MS);
	}
	if (!alone && other->address > SIM_NODES_MAX) {
		sim_silence(s->host, other, c, us);
		if (both)
			sim_silence(other, s->host, c, us);
	}
}

/* ---- False suspicion (S1): safety may not rest on its being right ---- */

static bool group_failed(const struct sim_node *s)
{
	const struct node_group *g;

	if (!sim_node_serves(s))
		return false;
	list_for_each(g, &s->node->groups, link) if (g->failed) return true;
	return false;
}

/* Else the only copy in sync might become one that is not there. */
bool sim_may_take_over(struct sim_node *s)
{
	if (group_failed(s))
		return false;
	if (sim_node_serves(s))
		s->map_lost = false;
	return !s->map_lost;
}

static void suspect(unsigned node)
{
	const struct map *m = sim_newest_map();
	const struct map_object *o =
		m ? map_object(m,
			       object_id(sim.volume, (uint32_t)sim_rand(0, sim.plan.objects - 1)))
		  : NULL;
	const struct map_member *mb;
	const struct map_node *n, *pn;
	struct object_change ch;
	unsigned pick;

	if (!o)
		return;
	pick = (unsigned)sim_rand(0, o->member_count - 1);
	mb = &o->member[pick];
	n = map_member_node(m, mb);
	pn = map_primary_node(m, o);
	if (!n || !pn || !mb->in || (node && (n->id != node || pick == o->primary)))
		return;
	ch = (struct object_change){.object = o->id, .epoch = o->epoch};
	if (node || sim_chance(0.7)) {
		if (!sim_may_take_over(&sim.node[n->id]))
			return;
		ch.op = OBJ_TAKEOVER;
		ch.node = ch.proposer = n->id;
		ch.incarnation = n->incarnation;
	} else {
		ch.op = OBJ_DROP;
		ch.replica = *mb;
		ch.proposer = pn->id;
		ch.incarnation = pn->incarnation;
	}
	sim_trace("false suspicion: %s of object %llx on epoch %u, node %u",
		  ch.op == OBJ_DROP ? "drop" : "takeover", (unsigned long long)o->id, o->epoch,
		  n->id);
	sim_submit_changes(&ch, 1);
	/* And the primary hears of it late. */
	if (sim_chance(0.5) && pn->id <= sim.plan.nodes)
		for (unsigned i = 1; i <= sim.plan.nodes; i++)
			if (i != pn->id)
				sim_silence(sim.node[i].host, sim.node[pn->id].host, 1,
					sim_rand(50, 1500) * SIM_MS);
}

static void suspect_as(void *arg)
{
	for (unsigned i = 0; i < 4 && !sim.faults_over; i++)
		suspect((unsigned)(uintptr_t)arg);
}

/* A process ends and starts again at once, nobody hears of it for a while, and it takes over: what
 * its predecessor granted is still good (T2 c). */
static void hidden_restart(struct sim_node *s)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++)
		if (i != s->number) {
			uint64_t us = sim_rand(200, 900) * SIM_MS;

			sim_silence(s->host, sim.node[i].host, 2, us);
			sim_silence(sim.node[i].host, s->host, 2, us);
		}
	sim_node_kill(s, false);
	sim_restart_in(s, sim_rand(500, 10000));
	simhost_at(sim_rand(60, 250) * SIM_MS, NULL, suspect_as, NULL,
		   (void *)(uintptr_t)s->number);
}

/* ---- Disks ---- */

static void fast_again(void *arg)
{
	struct sim_node *s = arg;

	vhost_set_latency(s->host, VIO_WRITE, 15, 120);
	vhost_set_latency(s->host, VIO_READ, 40, 160);
	vhost_set_latency(s->host, VIO_FLUSH, 20, 800);
}

void sim_disks_slow(struct sim_node *s, uint64_t max_us, bool reads, uint64_t us)
{
	sim_trace("node %u: slow disks, up to %.1f ms", s->number, (double)max_us / 1000);
	vhost_set_latency(s->host, VIO_WRITE, max_us / 20, max_us);
	vhost_set_latency(s->host, VIO_FLUSH, max_us / 20, max_us);
	if (reads)
		vhost_set_latency(s->host, VIO_READ, max_us / 20, max_us);
	simhost_at(us, NULL, fast_again, NULL, s);
}

static void fault_slow(struct sim_node *s)
{
	uint64_t hi = sim_rand(5, 1500) * SIM_MS;
	bool reads = sim_chance(0.5);

	sim_disks_slow(s, hi, reads, sim_rand(100, 1500) * SIM_MS);
}

/* Also those by which the volume grew, which no client uses. */
static uint32_t objects_of(const struct map *m)
{
	const struct map_volume *v = m ? map_volume(m, sim.volume) : NULL;

	return v ? v->objects : 0;
}

bool sim_members_in(void)
{
	const struct map *m = sim_newest_map();

	for (uint32_t i = 0; i < objects_of(m); i++) {
		const struct map_object *o = map_object(m, object_id(sim.volume, i));

		if (!o || map_in_count(o) != o->member_count)
			return false;
	}
	return m != NULL;
}

static bool is_out(const struct sim_node *s)
{
	const struct map *m = sim_newest_map();

	for (uint32_t i = 0; i < objects_of(m); i++) {
		const struct map_object *o = map_object(m, object_id(sim.volume, i));

		for (unsigned k = 0; o && k < o->member_count; k++)
			if (o->member[k].group == s->number && o->member[k].in)
				return false;
	}
	return m != NULL;
}

/* A bit of what is stored on the capacity device. */
static void fault_rot(struct sim_node *s)
{
	uint8_t block[BLOCK_SIZE];

	if (!sim_members_in())
		return;
	for (unsigned tries = 0; tries < 200; tries++) {
		uint64_t off = (1u << 20) + sim_rand(0, 512) * BLOCK_SIZE;
		size_t used = 0, bit;

		vfile_peek(s->host, SIM_DATA, off, block, sizeof(block));
		while (used < sizeof(block) && !block[used])
			used++;
		if (used == sizeof(block))
			continue;
		bit = sim_rand(0, 8 * sizeof(block) - 1);
		block[bit / 8] ^= (uint8_t)(1u << bit % 8);
		vfile_poke(s->host, SIM_DATA, off, block, sizeof(block));
		sim_trace("node %u: a bit rots at %llu", s->number, (unsigned long long)off);
		sim.counts.rot++;
		rotten = true;
		return;
	}
}

/* Of two, which the product then does without. */
static bool loses_device(const struct vio *io)
{
	return sim.plan.two_devices && (!strcmp(io->path, SIM_DATA) || !strcmp(io->path, SIM_DATA2));
}

static enum vfault disk_fault(void *arg, const struct vio *io)
{
	struct sim_node *s = arg;

	if (s->ends_in && io->kind == s->ends_at && !--s->ends_in) {
		sim_trace("node %u ends: %s at a %s of %s", s->number, vfault_names[s->ends_how],
			  vio_names[io->kind], io->path);
		return s->ends_how;
	}
	if (simhost_now_us() > s->io_fault_until || strcmp(io->path, s->io_fault_path) ||
	    io->kind != s->io_fault_kind || !sim_chance(loses_device(io) ? 1 : 0.3))
		return VFAULT_NONE;
	if (loses_device(io)) {
		if (!sim_node_serves(s) || !sim_members_in())
			return VFAULT_NONE;
		sim.counts.device_fails += io->kind != VIO_READ;
	}
	sim.counts.eio++;
	return VFAULT_EIO;
}

static void io_fails(struct sim_node *s, enum vio_kind kind, const char *path, uint64_t us)
{
	sim_trace("node %u: %s of %s fails, for %.1f ms", s->number, vio_names[kind], path,
		  (double)us / 1000);
	s->io_fault_until = simhost_now_us() + us;
	s->io_fault_kind = kind;
	s->io_fault_path = path;
	vhost_set_fault(s->host, disk_fault, s);
}

static void fault_eio(struct sim_node *s)
{
	io_fails(s, VIO_READ, SIM_DATA, sim_rand(10, 800) * SIM_MS);
}

static void fault_device(struct sim_node *s)
{
	static const enum vio_kind kinds[] = {VIO_WRITE, VIO_WRITE, VIO_WRITE, VIO_FLUSH, VIO_READ};

	if (simhost_now_us() < s->io_fault_until)
		return;
	io_fails(s, kinds[sim_rand(0, 4)], sim_chance(0.5) ? SIM_DATA : SIM_DATA2,
		 sim_rand(500, 4000) * SIM_MS);
}

static bool others_in(const struct sim_node *s);

/* Something by which a disk group fails at work. Nothing that was acknowledged is lost by it; the map may be
 * damaged, of the hurt one only. */
static void fault_group(struct sim_node *s)
{
	static const struct {
		enum vio_kind kind;
		const char *path;
	} way[] = {{VIO_DB_COMMIT, SIM_DB}, {VIO_WRITE, SIM_CACHE}, {VIO_FLUSH, SIM_CACHE},
		   {VIO_WRITE, SIM_DATA}};
	unsigned i = (unsigned)sim_rand(0, ARRAY_LEN(way) - (sim.plan.two_devices ? 2 : 1));

	sim.counts.group_fails++;
	if (s == hurt && others_in(s) && sim_chance(0.5)) {
		sim_trace("node %u: a table of its map is damaged", s->number);
		vdb_damage(s->host, SIM_DB, true);
		sim.counts.map_damages++;
		return;
	}
	io_fails(s, way[i].kind, way[i].path,
		 sim_chance(0.7) ? sim_rand(1, 100) * SIM_MS : sim_rand(100, 15000) * SIM_MS);
}

void sim_end_at_io(struct sim_node *s, enum vio_kind kind, unsigned count, enum vfault how)
{
	s->ends_at = kind;
	s->ends_how = how;
	s->ends_in = count;
	vhost_set_fault(s->host, disk_fault, s);
}

/* Its map is lost while it is down, and out, or all others are in: its group starts empty (L5). What nodes in
 * reach have applied says little: they may just have started, and what decides may still be on its way. */
static void lose_map(void *arg);

static void lose_map_now(void *arg, const struct command_result *r)
{
	struct sim_node *s = arg;

	if (s->proc || sim.faults_over)
		return;
	if (sim_has_applied(r->index) && (is_out(s) || sim_members_in())) {
		sim_trace("node %u loses its map", s->number);
		s->map_lost = true;
		vdb_remove(s->host, SIM_DB);
		sim.counts.reformats++;
		restart(s);
		return;
	}
	simhost_at(100 * SIM_MS, NULL, lose_map, NULL, s);
}

static void lose_map(void *arg)
{
	const struct sim_node *s = arg;

	if (!s->proc && !sim.faults_over)
		sim_raft_asked(lose_map_now, arg);
}

/* ---- Each step ---- */

static void power_back(struct sim_node *s)
{
	sim_restart_in(s, sim_chance(0.5) ? sim_rand(5, 400) * SIM_MS : sim_rand(100, 5000) * SIM_MS);
}

static void fault_process(struct sim_node *s)
{
	const struct sim_plan *p = &sim.plan;

	if (sim_chance(p->kill)) {
		sim.counts.kills++;
		if (sim_chance(p->hidden)) {
			hidden_restart(s);
			return;
		}
		sim_node_kill(s, false);
		if (s == hurt && sim_chance(p->reformat)) {
			simhost_at(sim_rand(0, 1000) * SIM_MS, NULL, lose_map, NULL, s);
			sim_restart_in(s, sim_rand(2000, 5000) * SIM_MS);
			return;
		}
		sim_restart_in(s, sim_chance(0.5) ? sim_rand(1, 100) * SIM_MS
					      : sim_rand(100, 4000) * SIM_MS);
	} else if (sim_chance(p->power)) {
		sim.counts.cuts++;
		sim_node_kill(s, true);
		power_back(s);
	} else if (sim_chance(p->pause)) {
		uint64_t us = sim_chance(p->pause_long) ? sim_rand(500, 4000) * SIM_MS
							: sim_rand(10, 700) * SIM_MS;

		sim_trace("node %u pauses for %.1f ms", s->number, (double)us / 1000);
		vproc_pause(s->proc, us);
		sim.counts.pauses++;
	}
}

static void fault_node(struct sim_node *s)
{
	const struct sim_plan *p = &sim.plan;

	if (!s->member)
		return;
	if (is_up(s))
		fault_process(s);
	if (sim_chance(p->slow_disk))
		fault_slow(s);
	if (sim_chance(p->block))
		fault_silence(s);
	if (sim_chance(p->reset)) {
		struct vhost *o = host_any();

		if (o != s->host) {
			sim_trace("connections of node %u and %s are reset", s->number, o->name);
			vnet_reset(s->host, o);
			sim.counts.resets++;
		}
	}
	if (s == hurt && sim_chance(p->rot))
		fault_rot(s);
	if (s == hurt && sim_chance(p->eio))
		fault_eio(s);
	if (s == hurt && is_up(s) && sim_chance(p->device))
		fault_device(s);
	if (is_up(s) && sim_chance(p->group))
		fault_group(s);
}

static void blackout(void)
{
	sim_trace("the power fails everywhere");
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[i];

		if (!s->host || !s->member)
			continue;
		sim_node_kill(s, true);
		sim_restart_in(s, sim_rand(1, 2000) * SIM_MS);
	}
	sim.counts.cuts++;
}

static void leader_kill(void)
{
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct consensus_status st;

		if (!sim_node_map(&sim.node[i]))
			continue;
		control_status(sim.node[i].node->control, &st);
		if (st.role != CONSENSUS_LEADER)
			continue;
		sim_node_kill(&sim.node[i], sim_chance(0.3));
		sim_restart_in(&sim.node[i], sim_rand(1, 3000) * SIM_MS);
		sim.counts.kills++;
		return;
	}
}

static void fence(void)
{
	struct command c = {.kind = CMD_FENCE};
	const struct map *m = sim_newest_map();

	if (!m)
		return;
	c.fence.volume = sim.volume;
	c.fence.newest = m->next_attachment - 1;
	sim_submit(&c, NULL, NULL);
	sim.counts.fences++;
	sim_trace("all attachments are revoked");
}

static void step(void *arg)
{
	const struct sim_plan *p = &sim.plan;

	if (sim.faults_over)
		return;
	for (unsigned i = 1; i <= p->nodes + p->spare; i++)
		fault_node(&sim.node[i]);
	if (sim_chance(p->blackout))
		blackout();
	if (sim_chance(p->leader_kill))
		leader_kill();
	if (sim_chance(p->suspect))
		suspect(0);
	if (sim_chance(p->fence))
		fence();
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++)
		if (sim_chance(p->client_kill))
			sim_client_kill(&sim.client[i], sim_chance(0.5));
	simhost_at(sim_rand(20, 80) * SIM_MS, NULL, step, NULL, NULL);
}

static void grow(void *arg)
{
	struct command c = {.kind = CMD_VOLUME_RESIZE};

	c.volume.volume.id = sim.volume;
	c.volume.volume.size = (sim.plan.objects + 1) * OBJECT_SIZE_MIN;
	sim_submit(&c, NULL, NULL);
	sim.counts.resizes++;
}

void sim_faults_begin(void)
{
	const struct sim_plan *p = &sim.plan;

	hurt = node_any();
	rotten = false;
	sim.faults_from = simhost_now_us();
	if (p->late > 0 || p->net_us)
		vnet_set_delay(20, p->net_us ? p->net_us : 300, p->late, 20 * SIM_MS);
	if (p->resize)
		simhost_at(sim_rand(0, p->fault_us), NULL, grow, NULL, NULL);
	if (p->join && p->spare)
		sim_join_later(&sim.node[p->nodes + 1], sim_rand(0, p->fault_us));
	simhost_at(sim_rand(0, 500) * SIM_MS, NULL, step, NULL, NULL);
	sim_shapes_begin();
	sim_anew_begin();
	sim_errands_begin();
}

/* ---- The end of them ---- */

/* Each object has a replica in elsewhere. */
static bool others_in(const struct sim_node *s)
{
	const struct map *m = sim_newest_map();

	for (uint32_t i = 0; i < objects_of(m); i++) {
		const struct map_object *o = map_object(m, object_id(sim.volume, i));
		bool other = false;

		for (unsigned k = 0; o && k < o->member_count; k++)
			other |= o->member[k].in && o->member[k].group != s->number;
		if (!other)
			return false;
	}
	return m != NULL;
}

static struct sim_node *pick_broken(void)
{
	struct sim_node *s = node_any();
	unsigned alive = 0;

	if (!s->member || !others_in(s))
		return NULL;
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++)
		alive += i != s->number && sim.node[i].member;
	return alive >= 2 ? s : NULL;
}

static void look_again(void *arg);

void sim_heal(void)
{
	sim_trace("healing");
	sim.faults_over = true;
	vnet_set_delay(20, 120, 0, 0);
	for (unsigned a = 1; a <= SIM_NODES_MAX; a++) {
		struct sim_node *s = &sim.node[a];

		if (!s->host)
			continue;
		fast_again(s);
		vhost_set_fault(s->host, NULL, NULL);
		s->ends_in = 0;
		if (!group_failed(s)) /* what nobody met by now shall not spoil the last look */
			vdb_damage(s->host, SIM_DB, false);
		if (s->member && !s->broken && !s->proc && (s->down || !s->starts))
			sim_node_start(s);
	}
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++)
		sim.client[i].next_start_us = 0;
	sim_errands_end();
	simhost_at(0, NULL, look_again, NULL, NULL);
}

/* As an operator would: where a group failed too often, and stays closed, its node is started again. */
static void see_to(struct sim_node *s)
{
	const struct node_group *g;
	bool gave_up = false;

	if (!sim_node_serves(s))
		return;
	list_for_each(g, &s->node->groups, link) gave_up |= g->reopen.gave_up;
	if (!gave_up)
		return;
	sim_trace("node %u is started again: its group stays closed", s->number);
	sim.counts.operator_restarts++;
	sim_node_kill(s, false);
	sim_node_start(s);
}

static void come_back(void);

static void look_again(void *arg)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		see_to(&sim.node[i]);
		/* A group that failed later may have left it the only one in. */
		if (sim.node[i].broken && sim_newest_map() && !others_in(&sim.node[i]))
			come_back();
	}
	simhost_at(2 * SIM_S, NULL, look_again, NULL, NULL);
}

/* ---- One node, and with it a minority of Raft, never comes back ---- */

static struct broken {
	struct sim_node *node; /* NULL: there is none */
	bool answered;
	uint64_t index;
} broken;

bool sim_break_for_good(void)
{
	broken = (struct broken){.node = sim.plan.minority ? pick_broken() : NULL};
	if (!broken.node)
		return false;
	sim_node_kill(broken.node, sim_chance(0.5));
	broken.node->broken = true;
	return true;
}

static void broken_answered(void *arg, const struct command_result *r)
{
	broken.answered = true;
	broken.index = r->index;
}

static void come_back(void)
{
	if (!broken.node->broken)
		return;
	sim_trace("node %u comes back after all", broken.node->number);
	broken.node->broken = false;
	sim_node_start(broken.node);
}

/* In every configuration that a living node knows, the others are a majority. */
static bool raft_without(const struct sim_node *s)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct consensus_status st;
		unsigned others = 0;

		if (!sim_node_map(&sim.node[i]))
			continue;
		control_status(sim.node[i].node->control, &st);
		for (unsigned k = 0; k < st.voters; k++)
			others += st.voter[k] != s->number;
		if (others * 2 <= st.voters)
			return false;
	}
	return true;
}

bool sim_broken_ask(void)
{
	if (!raft_without(broken.node)) {
		come_back();
		return false;
	}
	sim_raft_asked(broken_answered, NULL);
	return true;
}

bool sim_broken_known(void)
{
	return broken.answered && sim_has_applied(broken.index);
}

/* Only if somebody else has everything: what was on its way to Raft may have decided otherwise, then it comes
 * back after all. */
void sim_broken_decide(void)
{
	if (others_in(broken.node)) {
		sim_trace("node %u stays broken for good", broken.node->number);
		sim_errand_dead(broken.node);
		return;
	}
	come_back();
}
