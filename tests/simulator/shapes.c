/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that come together. Single faults at random seldom meet at the moment that counts: the old
 * primary hears no news, a member lags, another one takes over, and all within a lease. Each shape is
 * such a story, with its details drawn: who, which links, how long, in what order. It knows what an
 * operator's map shows, nothing of what the product should do about it. */
#include <string.h>

#include "tests/simhost/impl.h"
#include "tests/simulator/sim.h"

#define CONTROL (1u << VCLASS_CONTROL)
#define DATA    (1u << VCLASS_DATA)
#define TRY_US  (10 * SIM_MS)

/* Who is who, by the newest map that anybody has. */
struct cast {
	uint64_t object;
	struct sim_node *primary, *heir, *third; /* third: another member, or NULL */
};

static uint64_t between_ms(uint64_t lo, uint64_t hi)
{
	return sim_rand(lo * SIM_MS, hi * SIM_MS);
}

/* ---- What is done later ---- */

struct act {
	void (*fn)(struct act *a);
	struct sim_node *from, *to;
	struct sim_client *client;
	uint64_t object, us;
	unsigned classes;
	bool power;
};

static void act_now(void *arg)
{
	struct act *a = arg;

	if (!sim.faults_over)
		a->fn(a);
	keep_free(a);
}

static void act_in(uint64_t us, struct act what)
{
	struct act *a = keep_alloc(sizeof(*a));

	*a = what;
	simhost_at(us, NULL, act_now, keep_free, a);
}

static void do_silence(struct act *a)
{
	sim_trace("shape: nothing gets from node %u to node %u, classes %u, %.1f ms", a->from->number,
		  a->to->number, a->classes, (double)a->us / 1000);
	sim.counts.blocks++;
	sim_silence(a->from->host, a->to->host, a->classes, a->us);
}

static void silence_in(uint64_t in, struct sim_node *from, struct sim_node *to, unsigned classes,
		       uint64_t us)
{
	act_in(in, (struct act){
			   .fn = do_silence, .from = from, .to = to, .classes = classes, .us = us});
}

static void do_reset(struct act *a)
{
	sim_trace("shape: connections of nodes %u and %u are reset", a->from->number, a->to->number);
	sim.counts.resets++;
	vnet_reset(a->from->host, a->to->host);
}

static void do_client_kill(struct act *a)
{
	sim_client_kill(a->client, sim_chance(0.5));
}

static void do_kill(struct act *a)
{
	if (!a->from->proc)
		return;
	if (a->power)
		sim.counts.cuts++;
	else
		sim.counts.kills++;
	sim_node_kill(a->from, a->power);
	sim_restart_in(a->from, a->us);
}

static void kill_in(uint64_t in, struct sim_node *s, bool power, uint64_t back_us)
{
	act_in(in, (struct act){.fn = do_kill, .from = s, .power = power, .us = back_us});
}

static void do_end_at_io(struct act *a)
{
	static const enum vfault how[] = {VFAULT_KILL_BEFORE, VFAULT_KILL_AFTER, VFAULT_CUT_BEFORE,
					  VFAULT_CUT_DURING, VFAULT_CUT_AFTER};

	sim.counts.kills++;
	sim_end_at_io(a->from, (enum vio_kind)a->classes, (unsigned)sim_rand(1, a->us),
		      how[sim_rand(0, ARRAY_LEN(how) - 1)]);
}

/* At one of its next `upto` I/Os of the kind. Its supervisor starts it again. */
static void end_at_io_in(uint64_t in, struct sim_node *s, enum vio_kind kind, unsigned upto)
{
	act_in(in, (struct act){.fn = do_end_at_io, .from = s, .classes = kind, .us = upto});
}

static const struct map_object *object_now(uint64_t id)
{
	const struct map *m = sim_newest_map();

	return m ? map_object(m, id) : NULL;
}

static struct sim_node *node_of_member(const struct map_member *mb)
{
	const struct map_node *n = map_member_node(sim_newest_map(), mb);

	return n && n->id <= SIM_NODES_MAX ? &sim.node[n->id] : NULL;
}

/* Proposed until it is so, or the time is over. */
static void do_takeover(struct act *a)
{
	const struct map_object *o = object_now(a->object);
	struct object_change c = {.op = OBJ_TAKEOVER, .object = a->object, .node = 0};

	for (unsigned k = 0; o && k < o->member_count; k++) {
		const struct map_node *n = map_member_node(sim_newest_map(), &o->member[k]);

		if (!n || n->id != a->from->number || !o->member[k].in)
			continue;
		if (k == o->primary && n->incarnation == o->primary_incarnation)
			return;
		c.epoch = o->epoch;
		c.node = c.proposer = n->id;
		c.incarnation = n->incarnation;
	}
	if (c.node && sim_may_take_over(a->from))
		sim_submit_changes(&c, 1);
	if (a->us <= TRY_US)
		return;
	a->us -= TRY_US;
	act_in(TRY_US, *a);
}

static void takeover_in(uint64_t in, const struct cast *x, struct sim_node *who, uint64_t tries_us)
{
	sim_trace("shape: node %u is to take over object %llx", who->number,
		  (unsigned long long)x->object);
	act_in(in, (struct act){
			   .fn = do_takeover, .from = who, .object = x->object, .us = tries_us});
}

/* What others decided comes late to it. */
static void deaf(struct sim_node *s, uint64_t us)
{
	bool mute = sim_chance(0.5);

	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct sim_node *n = &sim.node[i];

		if (n == s)
			continue;
		silence_in(0, n, s, CONTROL, us);
		if (mute)
			silence_in(0, s, n, CONTROL, us);
	}
}

/* ---- The stories ---- */

/* The link between two: whole, or silent some way for some time, or a new connection. */
static void link_trouble(struct sim_node *a, struct sim_node *b)
{
	uint64_t in = between_ms(0, 1200), us = between_ms(50, 1500);
	unsigned kind = (unsigned)sim_rand(0, 3);

	if (kind & 1)
		silence_in(in, a, b, DATA, us);
	if (kind & 2)
		silence_in(in, b, a, DATA, us);
	if (sim_chance(0.4))
		act_in(between_ms(0, 1200), (struct act){.fn = do_reset, .from = a, .to = b});
}

/* From now on, nothing of what others send gets there; at times nothing of what it sends, either. */
static void isolate(struct sim_node *s, uint64_t us)
{
	bool both = sim_chance(0.5);

	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct sim_node *n = &sim.node[i];

		if (n == s)
			continue;
		silence_in(0, n, s, DATA, us);
		if (both)
			silence_in(0, s, n, DATA, us);
	}
}

static void cut_off(const struct cast *x)
{
	deaf(x->primary, between_ms(300, 3000));
	if (sim_chance(0.5))
		sim_disks_slow(x->heir, between_ms(50, 1200), false, between_ms(200, 2000));
	takeover_in(between_ms(0, 400), x, x->heir, 2 * SIM_S);
	if (sim_chance(0.3)) {
		isolate(x->primary, between_ms(600, 3000));
		return;
	}
	link_trouble(x->primary, x->heir);
	if (x->third) {
		link_trouble(x->primary, x->third);
		if (sim_chance(0.3))
			link_trouble(x->heir, x->third);
	}
	if (sim_chance(0.3))
		kill_in(between_ms(300, 2000), x->heir, sim_chance(0.5), between_ms(1, 2000));
}

static void lag(const struct cast *x)
{
	struct sim_node *who = x->third ? x->third : x->heir;
	uint64_t us = between_ms(50, 900);
	bool all = sim_chance(0.5);

	for (unsigned i = 1; i <= sim.plan.nodes; i++) /* all: what it writes, only it has */
		if (&sim.node[i] == who || (all && &sim.node[i] != x->primary))
			silence_in(0, x->primary, &sim.node[i], DATA, us);
	if (sim_chance(all ? 0.2 : 0.7))
		sim_disks_slow(who, between_ms(20, 900), false, us + between_ms(100, 1500));
	takeover_in(between_ms(5, 300), x, x->heir, SIM_S);
	for (unsigned i = 0; i < SIM_CLIENTS_MAX; i++) /* nobody asks again for what it wrote */
		if (sim_chance(0.5))
			act_in(us, (struct act){.fn = do_client_kill, .client = &sim.client[i]});
	if (sim_chance(0.3)) /* with what only it has */
		kill_in(between_ms(5, 400), x->primary, sim_chance(0.5), between_ms(1, 1500));
	else if (sim_chance(0.7)) /* when it has given that up */
		end_at_io_in(us + between_ms(100, 1500), x->primary, VIO_DB_COMMIT, 20);
}

static void reborn(const struct cast *x)
{
	uint64_t us = between_ms(200, 1200);

	deaf(x->primary, between_ms(400, 2500));
	silence_in(0, x->heir, x->primary, DATA, us);
	if (sim_chance(0.5))
		silence_in(0, x->primary, x->heir, DATA, us);
	kill_in(between_ms(1, 20), x->heir, sim_chance(0.3), between_ms(0, 5));
	takeover_in(between_ms(20, 60), x, x->heir, 2 * SIM_S);
}

/* Until it is out; then it comes back; once it is in, it takes over. */
static bool is_in(const struct act *a)
{
	const struct map_object *o = object_now(a->object);

	for (unsigned k = 0; o && k < o->member_count; k++)
		if (node_of_member(&o->member[k]) == a->from && o->member[k].in)
			return true;
	return false;
}

static void do_reward(struct act *a)
{
	const struct cast x = {.object = a->object};

	if (is_in(a))
		takeover_in(between_ms(0, 5), &x, a->from, 500 * SIM_MS);
	else
		act_in(SIM_MS, *a);
}

static void do_come_back(struct act *a)
{
	if (is_in(a)) {
		act_in(5 * SIM_MS, *a);
		return;
	}
	sim_trace("shape: node %u comes back", a->from->number);
	if (sim_chance(0.5))
		sim_disks_slow(a->to, between_ms(1, 50), false, between_ms(500, 2500));
	sim_restart_in(a->from, between_ms(0, 600));
	a->fn = do_reward;
	act_in(SIM_MS, *a);
}

static void come_back(const struct cast *x)
{
	struct act a = {
		.fn = do_come_back, .from = x->heir, .to = x->primary, .object = x->object};

	if (sim_chance(0.5)) {
		uint64_t us = between_ms(500, 2000);

		silence_in(0, x->heir, x->primary, DATA, us);
		silence_in(0, x->primary, x->heir, DATA, us);
	} else {
		sim_node_kill(x->heir, sim_chance(0.5));
		sim.counts.kills++;
	}
	act_in(10 * SIM_MS, a);
}

static void dark(const struct cast *x)
{
	uint64_t slow = sim_chance(0.5) ? sim_rand(200, 5000) : between_ms(5, 60),
		 at = slow + between_ms(5, 100);
	bool all = sim_chance(0.5);

	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		struct sim_node *s = &sim.node[i];

		if (!all && s != x->primary && sim_chance(0.5))
			continue;
		sim_disks_slow(s, slow, false, at);
		if (all || s == x->primary || sim_chance(0.5))
			kill_in(at + sim_rand(0, 1000), s, true, between_ms(1, 300));
	}
}

static void stall(const struct cast *x)
{
	uint64_t us = between_ms(460, 2500);

	sim_trace("shape: node %u stands still for %.1f ms", x->primary->number, (double)us / 1000);
	vproc_stall(x->primary->proc, (unsigned)sim_rand(1, 100), us);
	sim.counts.pauses++;
	if (sim_chance(0.6)) { /* and what happened meanwhile comes later still */
		deaf(x->primary, us + between_ms(1, 500));
		isolate(x->primary, us + between_ms(1, 500));
	}
	takeover_in(between_ms(0, 300), x, x->heir, SIM_S);
}

/* Ends again and again, as soon as it is up or before. */
static void stumble(const struct cast *x)
{
	bool all = sim_chance(0.3), power = sim_chance(0.6);
	uint64_t at = sim_chance(0.5) ? 0 : between_ms(20, 400);

	for (unsigned i = 1; i <= sim.plan.nodes; i++) /* what it writes, only it has */
		if (!all && at && x->primary != &sim.node[i])
			silence_in(0, x->primary, &sim.node[i], DATA, at);
	for (unsigned times = (unsigned)sim_rand(2, 5); times; times--) {
		uint64_t down = between_ms(1, 100);

		for (unsigned i = 1; i <= sim.plan.nodes; i++) {
			struct sim_node *s = &sim.node[i];

			if (all || s == x->primary)
				kill_in(at + (all ? between_ms(0, 30) : 0), s, power, down);
		}
		at += down + (sim_chance(0.5) ? between_ms(20, 200) : between_ms(200, 1200));
	}
	if (sim_chance(0.5))
		sim_disks_slow(x->primary, between_ms(1, 30), sim_chance(0.5), at);
	if (sim_chance(0.5))
		takeover_in(between_ms(1, 100), x, x->heir, SIM_S);
	if (sim_chance(0.5)) /* and nobody writes meanwhile */
		sim.quiet_until = simhost_now_us() + at + between_ms(0, 500);
}

/* Ends at some I/O, and when it is up again at some other. */
static void at_io(const struct cast *x)
{
	static const enum vio_kind kinds[] = {VIO_WRITE, VIO_FLUSH, VIO_DB_COMMIT};
	struct sim_node *s = sim_chance(0.5) ? x->primary : x->heir;
	uint64_t at = 0;

	for (unsigned times = (unsigned)sim_rand(1, 4); times; times--) {
		end_at_io_in(at, s, kinds[sim_rand(0, 2)], 60);
		at += between_ms(50, 1000);
	}
	if (sim_chance(0.3))
		takeover_in(between_ms(1, 1000), x, x->heir, SIM_S);
}

static void (*const shapes[SHAPES])(const struct cast *x) = {
	[SHAPE_CUT_OFF] = cut_off,  [SHAPE_LAG] = lag,   [SHAPE_REBORN] = reborn,
	[SHAPE_RETURN] = come_back, [SHAPE_DARK] = dark, [SHAPE_STALL] = stall,
	[SHAPE_STUMBLE] = stumble,  [SHAPE_AT_IO] = at_io,
};
static const char *const names[SHAPES] = {"cut off", "lag", "reborn", "return", "dark", "stall",
				      "stumble", "at an I/O"};

/* ---- When ---- */

static bool find_cast(struct cast *x)
{
	uint32_t index = (uint32_t)sim_rand(0, sim.plan.objects - 1);
	const struct map_object *o = object_now(object_id(sim.volume, index));
	unsigned first;

	if (!o)
		return false;
	*x = (struct cast){.object = o->id, .primary = node_of_member(&o->member[o->primary])};
	first = (unsigned)sim_rand(0, o->member_count - 1);
	for (unsigned i = 0; i < o->member_count; i++) {
		const struct map_member *mb = &o->member[(first + i) % o->member_count];
		struct sim_node *s = node_of_member(mb);

		if (s == x->primary || !s || !sim_node_serves(s))
			continue;
		if (!x->heir && mb->in)
			x->heir = s;
		else
			x->third = s;
	}
	return x->primary && sim_node_serves(x->primary) && x->heir;
}

static void next_shape(void *arg)
{
	struct cast x;
	unsigned which;

	if (sim.faults_over)
		return;
	do
		which = (unsigned)sim_rand(0, SHAPES - 1);
	while (!(sim.plan.shapes >> which & 1));
	if (!find_cast(&x)) {
		simhost_at(between_ms(10, 100), NULL, next_shape, NULL, NULL);
		return;
	}
	sim_trace("shape: %s, object %llx, primary %u, heir %u, third %u", names[which],
		  (unsigned long long)x.object, x.primary->number, x.heir->number,
		  x.third ? x.third->number : 0);
	sim.counts.shapes++;
	shapes[which](&x);
	simhost_at(between_ms(500, 3500), NULL, next_shape, NULL, NULL);
}

void sim_shapes_begin(void)
{
	if (sim.plan.shapes)
		simhost_at(between_ms(100, 1500), NULL, next_shape, NULL, NULL);
}
