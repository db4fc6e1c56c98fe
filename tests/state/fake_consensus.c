/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/state/fake_consensus.h"

#include "tests/lib/test.h"

struct fake_raft fake = {.flying = LIST_INIT(fake.flying)};

struct consensus {
	struct consensus_config cfg;
	uint64_t applied;
	struct turn_end turn;
	struct wait *member;
	void (*stopped)(void *ctx);
};

struct flight {
	struct list link;
	struct consensus *c;
	struct proposal *p;
	void *data;
	size_t len;
};

void fake_reset(void)
{
	for (unsigned i = 0; i < fake.log_count; i++)
		free(fake.log[i].data);
	memset(&fake, 0, sizeof(fake));
	list_init(&fake.flying);
}

unsigned fake_members(enum consensus_member what)
{
	unsigned n = 0;

	for (unsigned i = 0; i < FAKE_NODES; i++)
		n += fake.member[i] == what;
	return n;
}

static void arm_all(void)
{
	for (unsigned i = 0; i < FAKE_NODES; i++)
		if (fake.node[i])
			turn_end_arm(fake.node[i]->cfg.loop, &fake.node[i]->turn, TURN_LOG);
}

static void append(struct flight *f)
{
	EXPECT(fake.log_count < FAKE_LOG);
	fake.log[fake.log_count].data = f->data;
	fake.log[fake.log_count++].len = f->len;
}

static void catch_up(struct consensus *c, struct command_result *last)
{
	struct command_result *out = xmalloc(sizeof(*out));

	while (!fake.deaf[c->cfg.id] && c->applied < fake.log_count) {
		c->cfg.hooks->apply(c->cfg.ctx, c->applied + 1, fake.log[c->applied].data,
				    fake.log[c->applied].len, out);
		c->applied++;
		if (last)
			*last = *out;
	}
	free(out);
}

static void end(struct flight *f, int rc)
{
	struct wait *w = f->p->wait;

	free(f);
	wait_resume(w, rc);
}

static void resigned(struct consensus *c)
{
	fake.resigned = false;
	for (uint16_t i = 0; i < FAKE_NODES; i++)
		if (i != c->cfg.id && fake.node[i] && fake.member[i] == CONSENSUS_VOTES) {
			fake_set_leader(i);
			return;
		}
}

static void on_turn(struct turn_end *t)
{
	struct consensus *c = container_of(t, struct consensus, turn);
	struct flight *f, *next;

	if (fake.resigned && fake.leader == c->cfg.id)
		resigned(c);
	if (c->member) {
		struct wait *w = c->member;

		c->member = NULL;
		wait_resume(w, 0);
	}
	catch_up(c, NULL);
	if (!fake.hold) {
		list_for_each_safe(f, next, &fake.flying, link)
		{
			if (f->c != c)
				continue;
			list_del(&f->link);
			append(f);
			catch_up(c, &f->p->result);
			end(f, 0);
			arm_all();
		}
	}
	if (c->stopped) {
		list_for_each_safe(f, next, &fake.flying, link)
		{
			if (f->c != c)
				continue;
			list_del(&f->link);
			free(f->data);
			end(f, -ERR_RETRY);
		}
		fake.node[c->cfg.id] = NULL;
		turn_end_disarm(&c->turn);
		c->stopped(c->cfg.ctx);
		free(c);
	}
}

void fake_set_leader(uint16_t id)
{
	fake.leader = id;
	for (unsigned i = 0; i < FAKE_NODES; i++)
		if (fake.node[i])
			fake.node[i]->cfg.hooks->changed(fake.node[i]->cfg.ctx);
}

void fake_lose(bool applied)
{
	struct list *n;

	while ((n = list_pop_front(&fake.flying))) {
		struct flight *f = list_entry(n, struct flight, link);

		if (applied)
			append(f);
		else
			free(f->data);
		end(f, -ERR_RETRY);
	}
	arm_all();
}

void fake_unhold(void)
{
	fake.hold = false;
	arm_all();
}

bool fake_send(uint16_t from, uint16_t to, const void *msg, size_t len)
{
	struct consensus *c = fake.node[from];

	return c->cfg.hooks->send(c->cfg.ctx, to, msg, len);
}

int consensus_start(const struct consensus_config *cfg, struct consensus **out)
{
	struct consensus *c = xcalloc(1, sizeof(*c));

	EXPECT(cfg->id < FAKE_NODES && !fake.node[cfg->id]);
	c->cfg = *cfg;
	turn_end_init(&c->turn, on_turn);
	fake.node[cfg->id] = c;
	if (cfg->bootstrap) {
		fake.member[cfg->id] = CONSENSUS_VOTES;
		fake.leader = cfg->id;
	}
	turn_end_arm(cfg->loop, &c->turn, TURN_LOG);
	*out = c;
	return 0;
}

void consensus_stop(struct consensus *c, void (*stopped)(void *ctx))
{
	c->stopped = stopped;
	turn_end_arm(c->cfg.loop, &c->turn, TURN_LOG);
}

void consensus_receive(struct consensus *c, uint16_t from, const void *msg, size_t len)
{
	fake.received++;
}

void consensus_status(const struct consensus *c, struct consensus_status *out)
{
	*out = (struct consensus_status){.leader = fake.leader, .applied = c->applied};
	out->role = fake.leader == c->cfg.id ? CONSENSUS_LEADER : CONSENSUS_FOLLOWER;
	for (uint16_t i = 0; i < FAKE_NODES; i++) {
		out->members += fake.member[i] != CONSENSUS_NO_MEMBER;
		if (fake.member[i] == CONSENSUS_VOTES)
			out->voter[out->voters++] = i;
	}
}

enum consensus_member consensus_member(const struct consensus *c, uint16_t id)
{
	return id < FAKE_NODES ? fake.member[id] : CONSENSUS_NO_MEMBER;
}

bool consensus_is_leader(const struct consensus *c)
{
	return fake.leader == c->cfg.id;
}

int consensus_propose(struct consensus *c, struct proposal *p, const void *cmd, size_t len,
		      struct wait *w)
{
	struct flight *f;

	EXPECT_EQ(len % 8, 0);
	if (fake.leader != c->cfg.id || c->stopped)
		return -ERR_NOT_LEADER;
	f = xcalloc(1, sizeof(*f));
	f->c = c;
	f->p = p;
	f->data = xmalloc(len);
	f->len = len;
	memcpy(f->data, cmd, len);
	p->wait = w;
	list_push_back(&fake.flying, &f->link);
	turn_end_arm(c->cfg.loop, &c->turn, TURN_LOG);
	return PENDING;
}

static int member(struct consensus *c, uint16_t id, enum consensus_member what, struct wait *w)
{
	EXPECT(!c->member); /* one at a time */
	if (fake.leader != c->cfg.id)
		return -ERR_NOT_LEADER;
	if (fake.member[id] == what)
		return 0;
	if (what < CONSENSUS_VOTES && fake.member[id] == CONSENSUS_VOTES)
		EXPECT(id != fake.leader && fake_members(CONSENSUS_VOTES) > 2); /* the real one refuses */
	fake.member[id] = what;
	fake.changes++;
	c->member = w;
	turn_end_arm(c->cfg.loop, &c->turn, TURN_LOG);
	return PENDING;
}

int consensus_add_standby(struct consensus *c, uint16_t id, struct wait *w)
{
	EXPECT(fake.member[id] != CONSENSUS_VOTES);
	return member(c, id, CONSENSUS_FOLLOWS, w);
}

int consensus_make_voter(struct consensus *c, uint16_t id, struct wait *w)
{
	EXPECT_EQ(fake.member[id], CONSENSUS_FOLLOWS);
	return member(c, id, CONSENSUS_VOTES, w);
}

int consensus_make_standby(struct consensus *c, uint16_t id, struct wait *w)
{
	return member(c, id, CONSENSUS_FOLLOWS, w);
}

int consensus_remove(struct consensus *c, uint16_t id, struct wait *w)
{
	return member(c, id, CONSENSUS_NO_MEMBER, w);
}

void consensus_resign(struct consensus *c)
{
	fake.resigned = fake.leader == c->cfg.id;
	turn_end_arm(c->cfg.loop, &c->turn, TURN_LOG);
}

void consensus_leader_gone(struct consensus *c, uint16_t leader)
{
	fake.gone = leader;
}
