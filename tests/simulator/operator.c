/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to the cluster, as an operator's tool gives them: to some node, again when nobody knows
 * what became of it. And the cluster's birth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/sim.h"

#define TRY_MS      3000u
#define BIRTH_LIMIT (60 * SIM_S)
#define TTL_MS      "2000"

enum order_state { ORDER_WAITS, ORDER_ASKED, ORDER_ANSWERED };

/* In nobody's process. */
struct order {
	struct command cmd;
	struct map_volume want; /* volume_create goes through the leader's placement */
	enum order_state state;
	struct sim_node *via;
	struct vproc *proc; /* asked */
	int rc;
	struct command_result result;
	void (*done)(void *arg, const struct command_result *r);
	void *arg;
};

/* In the node's process. */
struct ask {
	struct control_propose p;
	struct wait wait;
	struct order *order;
};
struct ask_post {
	struct post post;
	struct order *order;
};

static void order_step(void *arg);
static void join_answered(void *arg, const struct command_result *r);

static void ask_ended(struct ask *a, int rc)
{
	struct order *o = a->order;

	if (o->proc == vproc_current() && o->state == ORDER_ASKED) {
		o->state = ORDER_ANSWERED;
		o->rc = rc;
		o->result = a->p.result;
	}
	free(a);
}

static void ask_done(struct wait *w, int rc)
{
	ask_ended(container_of(w, struct ask, wait), rc);
}

static void ask_on_control(struct post *post)
{
	struct ask_post *p = container_of(post, struct ask_post, post);
	struct order *o = p->order;
	struct ask *a = xcalloc(1, sizeof(*a));
	struct control *c = sim_this_node()->node->control;
	int rc;

	free(p);
	a->wait.resume = ask_done;
	a->order = o;
	if (o->proc != vproc_current()) {
		free(a);
		return;
	}
	if (o->cmd.kind == CMD_VOLUME_CREATE)
		rc = control_volume_create(c, &a->p, &o->want, "operator", &a->wait);
	else if (o->cmd.kind == CMD_VOLUME_RESIZE)
		rc = control_volume_resize(c, &a->p, o->cmd.volume.volume.id,
					   o->cmd.volume.volume.size, "operator", &a->wait);
	else
		rc = control_propose(c, &a->p, &o->cmd, TRY_MS, &a->wait);
	if (rc != PENDING)
		ask_ended(a, rc);
}

static void order_ask(struct order *o)
{
	unsigned first = (unsigned)sim_rand(1, SIM_NODES_MAX);

	for (unsigned i = 0; i < SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[1 + (first + i) % SIM_NODES_MAX];
		struct ask_post *p;

		if (!s->proc || !vproc_alive(s->proc) || !s->node || !s->node->control)
			continue;
		p = xcalloc(1, sizeof(*p));
		p->post.fn = ask_on_control;
		p->order = o;
		o->state = ORDER_ASKED;
		o->proc = s->proc;
		loop_post(s->node->loop, &p->post);
		return;
	}
}

static void order_step(void *arg)
{
	struct order *o = arg;

	if (o->state == ORDER_ASKED && !vproc_alive(o->proc))
		o->state = ORDER_WAITS;
	if (o->state == ORDER_ANSWERED && o->rc < 0)
		o->state = ORDER_WAITS;
	if (o->state == ORDER_ANSWERED) {
		if (o->done)
			o->done(o->arg, &o->result);
		keep_free(o);
		return;
	}
	if (o->state == ORDER_WAITS)
		order_ask(o);
	simhost_at(sim_rand(1, 5) * SIM_MS, NULL, order_step, keep_free, o);
}

static void submit(const struct command *c, const struct map_volume *want,
		   void (*done)(void *arg, const struct command_result *r), void *arg)
{
	struct order *o = keep_alloc(sizeof(*o));

	o->cmd = *c;
	if (want)
		o->want = *want;
	snprintf(o->cmd.actor, sizeof(o->cmd.actor), "operator");
	o->done = done;
	o->arg = arg;
	simhost_at(0, NULL, order_step, keep_free, o);
}

void sim_submit(const struct command *c, void (*done)(void *arg, const struct command_result *r),
		void *arg)
{
	submit(c, NULL, done, arg);
}

void sim_raft_asked(void (*done)(void *arg, const struct command_result *r), void *arg)
{
	struct command c = {.kind = CMD_SETTING};

	snprintf(c.setting.key, sizeof(c.setting.key), "%s", ATTACH_TTL_KEY);
	snprintf(c.setting.value, sizeof(c.setting.value), "%s", TTL_MS); /* what it is already */
	sim_submit(&c, done, arg);
}

bool sim_has_applied(uint64_t index)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct consensus_status st;

		if (!sim_node_map(&sim.node[i]))
			continue;
		control_status(sim.node[i].node->control, &st);
		if (st.applied >= index)
			return true;
	}
	return false;
}

/* Object changes as a node's shards give them to its control: once, and nobody is told. */

struct changes_post {
	struct post post;
	unsigned count;
	struct object_change change[4];
};

static void changes_on_control(struct post *post)
{
	struct changes_post *p = container_of(post, struct changes_post, post);

	control_propose_objects(sim_this_node()->node->control, p->change, p->count);
	free(p);
}

void sim_submit_changes(const struct object_change *changes, unsigned count)
{
	unsigned first = (unsigned)sim_rand(1, SIM_NODES_MAX);

	for (unsigned i = 0; i < SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[1 + (first + i) % SIM_NODES_MAX];
		struct changes_post *p;

		if (!sim_node_serves(s))
			continue;
		p = xcalloc(1, sizeof(*p));
		p->post.fn = changes_on_control;
		p->count = MIN(count, ARRAY_LEN(p->change));
		memcpy(p->change, changes, p->count * sizeof(*changes));
		loop_post(s->node->loop, &p->post);
		return;
	}
}

/* ---- Birth ---- */

struct outcome {
	bool ended;
	struct command_result result;
};

static void outcome_note(void *arg, const struct command_result *r)
{
	struct outcome *o = arg;

	o->ended = true;
	o->result = *r;
}

static bool outcome_there(void *arg)
{
	return ((struct outcome *)arg)->ended || sim.failure[0];
}

static uint64_t limit(void)
{
	return simhost_now_us() + BIRTH_LIMIT;
}

/* Waits for the answer. False: it failed, and that was noted. */
static bool order_and_wait(const struct command *c, const struct map_volume *want)
{
	static struct outcome o;

	o = (struct outcome){0};
	submit(c, want, outcome_note, &o);
	if (!simhost_run(outcome_there, &o, limit()) || sim.failure[0]) {
		sim_fail("birth: no answer to a %s", command_kind_name(c->kind));
		return false;
	}
	if (o.result.code < 0 && o.result.code != -ERR_EXISTS) {
		sim_fail("birth: a %s was refused: %s %s", command_kind_name(c->kind),
			 err_name(o.result.code), o.result.text);
		return false;
	}
	return true;
}

static bool node_serves(void *arg)
{
	return sim_node_serves(arg) || sim.failure[0];
}

/* How a node joins, and how its disk group is made known. */

static void token_add(const struct sim_node *s, struct command *c)
{
	*c = (struct command){.kind = CMD_TOKEN_ADD};
	memset(c->token.sha256, '0' + (int)s->number, 64);
	c->token.expires_ms = UINT64_MAX / 2;
}

static void node_add(const struct sim_node *s, struct command *c)
{
	struct config cfg = {.shards = sim.plan.shards,
			     .roles = ROLE_STORAGE | ROLE_VOTER,
			     .advertise = (char *)(uintptr_t)s->listen};
	struct identity id = {.node = s->uuid, .incarnation = 1};

	*c = (struct command){.kind = CMD_NODE_ADD};
	snprintf(id.name, sizeof(id.name), "%s", s->name);
	birth_node_record(&cfg, &id, &c->node_add.node);
	memset(c->node_add.token_sha256, '0' + (int)s->number, 64);
}

static void group_add(const struct sim_node *s, struct command *c)
{
	*c = (struct command){.kind = CMD_GROUP_ADD};
	c->group_add.uuid = s->group;
	c->group_add.node = (uint16_t)s->number;
	c->group_add.incarnation = 1;
	c->group_add.raw_bytes = 1ull << 30;
}

static void group_activate(const struct sim_node *s, struct command *c)
{
	*c = (struct command){.kind = CMD_GROUP_STATE};
	c->group_state.group = (uint16_t)s->number;
	c->group_state.state = GROUP_ACTIVE;
	c->group_state.free_steps = 20;
	c->group_state.incarnation = 1;
}

static void (*const joining[])(const struct sim_node *s, struct command *c) = {
	token_add, node_add, group_add, group_activate};

/* A node joins the cluster while it runs: each step once the one before is answered. */
static void join_step(void *arg)
{
	struct sim_node *s = arg;
	struct command c;

	if (s->join_step == 2) {
		s->member = true;
		if (!s->starts)
			sim_node_start(s);
	}
	if (s->join_step == ARRAY_LEN(joining))
		return;
	joining[s->join_step](s, &c);
	sim_submit(&c, join_answered, s);
}

static void join_answered(void *arg, const struct command_result *r)
{
	struct sim_node *s = arg;

	if (r->code < 0 && r->code != -ERR_EXISTS) {
		sim_trace("node %u cannot join: %s", s->number, r->text);
		return;
	}
	s->join_step++;
	sim.counts.joins++;
	join_step(s);
}

void sim_join_later(struct sim_node *s, uint64_t us)
{
	simhost_at(us, NULL, join_step, NULL, s);
}

static void peers_know(struct sim_node *s)
{
	for (unsigned i = 1; i <= sim.plan.nodes + sim.plan.spare; i++) {
		struct birth_peer *b = &s->peers[s->peer_count];

		if (i == s->number)
			continue;
		*b = (struct birth_peer){.number = (uint16_t)i, .uuid = sim.node[i].uuid};
		memcpy(b->address, sim.node[i].listen, sizeof(sim.node[i].listen));
		s->peer_count++;
	}
}

static bool volume_add(void)
{
	struct command c = {.kind = CMD_VOLUME_CREATE};
	struct map_volume v = {.copies = (uint8_t)sim.plan.copies, .min_in_sync = 1};

	memset(v.uuid.b, 0x55, sizeof(v.uuid.b));
	snprintf(v.name, sizeof(v.name), "vol");
	v.object_size = OBJECT_SIZE_MIN;
	v.stripe_count = 1;
	v.objects = sim.plan.objects;
	v.size = v.object_size * v.objects;
	v.flags = (uint8_t)((sim.plan.compression ? VOLUME_COMPRESSION : 0) |
			    (sim.plan.dedup ? VOLUME_DEDUP : 0));
	if (!order_and_wait(&c, &v))
		return false;
	sim.volume = 1;
	return true;
}

bool sim_birth(void)
{
	struct command c = {.kind = CMD_SETTING};

	for (unsigned i = 1; i <= sim.plan.nodes + sim.plan.spare; i++) {
		sim_node_create(&sim.node[i], i);
		sim_node_format(&sim.node[i]);
	}
	for (unsigned i = 1; i <= sim.plan.nodes + sim.plan.spare; i++)
		peers_know(&sim.node[i]);
	sim.node[1].member = true;
	sim_node_start(&sim.node[1]);
	if (!simhost_run(node_serves, &sim.node[1], limit())) {
		sim_fail("birth: node 1 does not serve");
		return false;
	}
	snprintf(c.setting.key, sizeof(c.setting.key), "%s", ATTACH_TTL_KEY);
	snprintf(c.setting.value, sizeof(c.setting.value), "%s", TTL_MS);
	if (!order_and_wait(&c, NULL))
		return false;
	/* Votes wander with the faults. */
	snprintf(c.setting.key, sizeof(c.setting.key), "%s", VOTER_DELAY_KEY);
	snprintf(c.setting.value, sizeof(c.setting.value), "1");
	if (!order_and_wait(&c, NULL))
		return false;
	for (unsigned i = 2; i <= sim.plan.nodes; i++) {
		for (unsigned k = 0; k < 2; k++) {
			joining[k](&sim.node[i], &c);
			if (!order_and_wait(&c, NULL))
				return false;
		}
		sim.node[i].member = true;
		sim_node_start(&sim.node[i]);
	}
	for (unsigned i = 1; i <= sim.plan.nodes; i++) {
		if (!simhost_run(node_serves, &sim.node[i], limit()))
			sim_fail("birth: node %u does not serve", i);
		for (unsigned k = 2; k < ARRAY_LEN(joining); k++) {
			joining[k](&sim.node[i], &c);
			if (sim.failure[0] || !order_and_wait(&c, NULL))
				return false;
		}
	}
	return volume_add() && !sim.failure[0];
}
