/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane over a Raft that never fails (fake_consensus.h). */
#include "tests/state/fake_cluster.h"

/* Returns with every node having the whole map. */
static void start(uint16_t n)
{
	fake_start(n);
	for (uint16_t i = 1; i <= n; i++)
		UNTIL(machine[i].map.version == machine[1].map.version);
}

TEST(control, shards_get_one_delta_per_turn)
{
	static struct ask a[10];
	struct command c = {.kind = CMD_GROUP_STATE};
	unsigned before;
	uint64_t at;

	start(3);
	expect_same_map(&machine[1].map, state_map(control_state(machine[1].control)));
	expect_same_map(&machine[3].map, state_map(control_state(machine[1].control)));
	before = machine[1].deltas;
	at = machine[1].map.version;
	c.group_state.group = 1;
	c.group_state.state = GROUP_ACTIVE;
	c.group_state.incarnation = 1;
	for (unsigned i = 0; i < 10; i++) {
		c.group_state.free_steps = (uint8_t)i;
		propose(1, &a[i], &c, 1000);
	}
	UNTIL(a[9].done && machine[1].map.version >= at + 10);
	EXPECT_EQ(machine[1].deltas, before + 1);
	EXPECT_EQ(map_group(&machine[1].map, 1)->free_steps, 9);
	fake_stop();
}

TEST(control, a_follower_proposes_through_the_leader)
{
	static struct ask a;
	struct command c;

	start(2);
	c = setting("x", "1");
	propose(2, &a, &c, 1000);
	UNTIL(a.done);
	EXPECT_OK(a.rc);
	EXPECT_OK(a.p.result.code);
	EXPECT(a.p.result.index == fake.log_count);
	EXPECT_STR(state_setting(control_state(machine[1].control), "x"), "1");
	/* Who is told finds it where it asked. */
	EXPECT_STR(state_setting(control_state(machine[2].control), "x"), "1");
	c = setting("not valid", "1");
	propose(2, &a, &c, 1000);
	UNTIL(a.done);
	EXPECT_OK(a.rc);
	EXPECT_RC(a.p.result.code, -ERR_INVALID); /* a refusal is a result, with its sentence */
	EXPECT(strstr(a.p.result.text, "not valid"));
	fake_stop();
}

TEST(control, without_a_leader_it_waits_until_the_deadline)
{
	static struct ask a, b;
	struct command c;

	start(2);
	fake_set_leader(0);
	c = setting("x", "1");
	propose(2, &a, &c, 50);
	propose(2, &b, &c, 5000);
	UNTIL(a.done);
	EXPECT_RC(a.rc, -ERR_NO_LEADER);
	EXPECT(!b.done);
	fake_set_leader(2);
	UNTIL(b.done);
	EXPECT_OK(b.rc);
	fake_stop();
}

static unsigned flying(void)
{
	unsigned count = 0;

	for (struct list *l = fake.flying.next; l != &fake.flying; l = l->next)
		count++;
	return count;
}

TEST(control, an_unknown_outcome_is_repeated_only_if_that_is_safe)
{
	static struct ask a, b, e;
	struct command c, event = {.kind = CMD_EVENT};
	unsigned at;

	start(2);
	at = fake.log_count;
	strcpy(event.event.code, "T");
	fake.hold = true;
	c = setting("x", "1");
	propose(1, &a, &c, 5000); /* in the leader's own log */
	propose(2, &b, &c, 5000); /* relayed */
	propose(2, &e, &event, 5000);
	UNTIL(flying() == 3);
	fake_lose(true); /* applied, but leadership is lost before anyone hears of it */
	UNTIL(e.done);
	EXPECT_RC(e.rc, -ETIMEDOUT);
	EXPECT(!a.done);
	EXPECT(!b.done);
	fake_unhold();
	UNTIL(a.done && b.done);
	EXPECT_OK(a.rc);
	EXPECT_OK(b.rc);
	EXPECT_EQ(fake.log_count, at + 3 + 2);
	fake_stop();
}

TEST(control, a_deadline_in_the_own_log_is_an_unknown_outcome)
{
	static struct ask a;
	struct command c;

	start(1);
	fake.hold = true;
	c = setting("x", "1");
	propose(1, &a, &c, 30);
	UNTIL(a.done);
	EXPECT_RC(a.rc, -ETIMEDOUT);
	fake_unhold(); /* its end finds nobody, harmlessly */
	UNTIL(list_empty(&fake.flying));
	fake_stop();
}

TEST(control, a_lost_connection_to_the_leader_is_survived)
{
	static struct ask a;
	struct command c;

	start(2);
	fake.hold = true;
	c = setting("x", "1");
	propose(2, &a, &c, 5000);
	UNTIL(!list_empty(&fake.flying));
	conn_close(end[0].conn, -ERR_CLOSED);
	UNTIL(end[0].closed && end[1].closed);
	EXPECT(!control_peer_connected(machine[2].control, 1));
	fake_unhold();
	connect_nodes(1, 2);
	UNTIL(a.done);
	EXPECT_OK(a.rc);
	fake_stop();
}

TEST(control, stop_cancels_what_is_open)
{
	static struct ask a, b;
	static struct control_call q;
	static struct ask call;
	struct command c;

	start(2);
	fake.hold = true;
	c = setting("x", "1");
	propose(1, &a, &c, 5000);
	fake_set_leader(0);
	propose(1, &b, &c, 5000);
	memset(&call, 0, sizeof(call));
	call.wait.resume = on_asked;
	EXPECT_EQ(control_call(machine[1].control, &q, 2, "GET", "/x", "", 5000, &call.wait),
		  PENDING);
	control_stop(machine[1].control, on_stopped);
	UNTIL(machine[1].stopped);
	EXPECT(a.done && b.done && call.done);
	EXPECT_RC(a.rc, -ECANCELED);
	EXPECT_RC(b.rc, -ECANCELED);
	EXPECT_RC(call.rc, -ECANCELED);
	fake.hold = false;
	fake_stop();
}

static void create(uint16_t node, struct ask *a, const char *name, uint64_t size, unsigned copies)
{
	struct map_volume want = {.size = size, .copies = (uint8_t)copies};

	snprintf(want.name, sizeof(want.name), "%s", name);
	memset(a, 0, sizeof(*a));
	a->wait.resume = on_asked;
	EXPECT_EQ(control_volume_create(machine[node].control, &a->p, &want, "op", &a->wait),
		  PENDING);
	UNTIL(a->done);
	EXPECT_OK(a->rc);
}

TEST(control, the_leader_places_volumes)
{
	static struct ask a;
	const struct map *m;

	start(3);
	m = state_map(control_state(machine[1].control));
	create(2, &a, "v", 1 << 30, 2); /* from a follower */
	EXPECT_OK(a.p.result.code);
	EXPECT_EQ(map_volume(m, 1)->objects, 18);
	EXPECT_EQ(map_in_count(map_object(m, object_id(1, 17))), 2);
	create(1, &a, "v", 1 << 30, 2);
	EXPECT_RC(a.p.result.code, -ERR_EXISTS);
	create(3, &a, "bad/name", 1 << 30, 2);
	EXPECT_RC(a.p.result.code, -ERR_INVALID);
	create(3, &a, "zero", 0, 2);
	EXPECT_RC(a.p.result.code, -ERR_INVALID);
	create(3, &a, "huge", VOLUME_SIZE_MAX + 4096, 2);
	EXPECT_RC(a.p.result.code, -ERR_LIMIT);
	create(3, &a, "four", 1 << 30, 4);
	EXPECT_RC(a.p.result.code, -ERR_INVALID);

	memset(&a, 0, sizeof(a));
	a.wait.resume = on_asked;
	EXPECT_EQ(control_volume_resize(machine[3].control, &a.p, 1, 3ull << 30, "op", &a.wait),
		  PENDING);
	UNTIL(a.done);
	EXPECT_OK(a.p.result.code);
	EXPECT_EQ(map_volume(m, 1)->objects, 48);
	EXPECT_EQ(map_in_count(map_object(m, object_id(1, 47))), 2);
	fake_stop();
}

TEST(control, a_refused_placement_names_each_group)
{
	static struct ask a;
	struct command c = {.kind = CMD_GROUP_STATE};

	start(2);
	c.group_state.group = 2;
	c.group_state.state = GROUP_ACTIVE;
	c.group_state.incarnation = 1;
	must(1, &c); /* full */
	create(2, &a, "v", 1 << 30, 2);
	EXPECT_RC(a.p.result.code, -ERR_TOO_FEW);
	EXPECT(strstr(a.p.result.text, "there are 1") && strstr(a.p.result.text, "group 2: full"));
	fake_stop();
}

/* Clients. */

struct client {
	struct end *end;
	struct map map;
	unsigned deltas;
	struct command_result result;
	uint64_t answered;
};
static struct client client;

static void client_frame(struct conn *c, const struct frame *f)
{
	struct reader r = reader_init(f->body, f->body_len);

	if (f->opcode == OP_MAP_DELTA) {
		EXPECT_OK(map_delta_apply(&client.map, &r, NULL, NULL));
		client.deltas++;
	} else {
		EXPECT_EQ(f->opcode, OP_PROPOSED);
		EXPECT_OK(command_result_decode(&r, &client.result));
		client.answered = f->id;
	}
}

static void client_closed(struct conn *c, int reason)
{
	((struct end *)conn_data(c))->closed = true;
}

static void client_connect(uint16_t node, const char *identity)
{
	static const struct conn_ops ops = {.on_frame = client_frame, .on_closed = client_closed};
	struct end *server;
	int fd[2];

	memset(&client, 0, sizeof(client));
	map_init(&client.map);
	fixture_socketpair(fd);
	client.end = end_make(NULL, fd[0], &ops);
	server = end_make(&machine[node], fd[1], &node_ops);
	server->client = true;
	control_client_up(machine[node].control, server->conn, identity);
}

static void client_propose(struct command *c, uint64_t id)
{
	struct writer w = writer_init_heap();

	command_encode(c, &w);
	conn_send(client.end->conn, OP_PROPOSE, id, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
	UNTIL(client.answered == id);
}

static void client_watch(uint64_t from)
{
	struct writer w = writer_init_heap();

	control_watch_encode(from, &w);
	conn_send(client.end->conn, OP_MAP_WATCH, 0, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
}

TEST(control, a_client_watches_the_map)
{
	static struct ask a;
	const struct map *m;

	start(3);
	m = state_map(control_state(machine[3].control));
	client_connect(3, "client:host");
	client_watch(0);
	UNTIL(client.map.version == m->version);
	EXPECT_EQ(client.deltas, 1);
	expect_same_map(&client.map, m);
	create(1, &a, "v", 1 << 30, 2);
	UNTIL(client.map.version == m->version && map_volume(&client.map, 1));
	expect_same_map(&client.map, m);
	map_fini(&client.map);
	fake_stop();
}

TEST(control, a_client_may_attach_renew_and_detach_as_itself_only)
{
	static struct ask a;
	struct command c = {.kind = CMD_ATTACH};
	uint32_t ids[2] = {1, 2};

	start(3);
	create(1, &a, "v", 1 << 30, 2);
	client_connect(3, "client:host"); /* at a follower: it carries the command to the leader */
	c.attach.volume = 1;
	c.attach.mode = ATTACH_EXCLUSIVE;
	strcpy(c.attach.holder, "client:host hv1");
	c.time_ms = UINT64_MAX - 5;
	client_propose(&c, 11);
	EXPECT_OK(client.result.code);
	EXPECT_EQ(client.result.id, 1);
	/* Its clock counts for nothing. */
	EXPECT(map_attachment(state_map(control_state(machine[1].control)), 1)->renewed_ms < UINT64_MAX / 2);
	c.time_ms = 0;
	strcpy(c.attach.holder, "client:hostage");
	client_propose(&c, 12);
	EXPECT_RC(client.result.code, -ERR_REFUSED);
	c = (struct command){.kind = CMD_VOLUME_DELETE};
	c.volume_delete.id = 1;
	client_propose(&c, 13);
	EXPECT_RC(client.result.code, -ERR_REFUSED);
	EXPECT(client.result.text[0]);
	c = (struct command){.kind = CMD_RENEW, .renew = {2, ids}};
	client_propose(&c, 16);
	EXPECT_OK(client.result.code);
	EXPECT_EQ(client.result.count, 2);
	EXPECT_EQ(client.result.object[0], 0);
	EXPECT_EQ(client.result.object[1], 1);
	c = (struct command){.kind = CMD_FENCE, .fence = {.volume = 1, .newest = 9}};
	client_propose(&c, 17);
	EXPECT_RC(client.result.code, -ERR_REFUSED);
	c = (struct command){.kind = CMD_DETACH};
	c.detach.attachment = 1;
	client_propose(&c, 14);
	EXPECT_OK(client.result.code);
	EXPECT(map_attachment(state_map(control_state(machine[1].control)), 1)->revoked);

	c = (struct command){.kind = CMD_ATTACH}; /* somebody else's attachment */
	c.attach.volume = 1;
	c.attach.mode = ATTACH_EXCLUSIVE;
	strcpy(c.attach.holder, "node:x");
	must(1, &c);
	UNTIL(map_attachment(state_map(control_state(machine[3].control)), 2));
	c = (struct command){.kind = CMD_DETACH};
	c.detach.attachment = 2;
	client_propose(&c, 15);
	EXPECT_RC(client.result.code, -ERR_REFUSED);
	c = (struct command){.kind = CMD_RENEW, .renew = {2, ids}};
	client_propose(&c, 18);
	EXPECT_RC(client.result.code, -ERR_REFUSED);

	conn_send(client.end->conn, OP_RAFT, 0, "x", 1, NULL, 0); /* no business of a client's */
	UNTIL(client.end->closed);
	map_fini(&client.map);
	fake_stop();
}

TEST(control, a_client_that_leaves_before_its_answer_is_forgotten)
{
	struct command c = {.kind = CMD_DETACH};
	struct writer w = writer_init_heap();

	start(1);
	client_connect(1, "client:host");
	fake.hold = true;
	c.detach.attachment = 1;
	command_encode(&c, &w);
	conn_send(client.end->conn, OP_PROPOSE, 1, w.data, (uint32_t)w.len, NULL, 0);
	writer_free(&w);
	UNTIL(!list_empty(&fake.flying));
	conn_close(client.end->conn, -ERR_CLOSED);
	UNTIL(client.end[1].closed);
	fake_unhold();
	UNTIL(list_empty(&fake.flying));
	map_fini(&client.map);
	fake_stop();
}

/* Calls. */

static void call(uint16_t from, struct control_call *q, struct ask *a, uint16_t to,
		 uint64_t timeout_ms)
{
	memset(a, 0, sizeof(*a));
	memset(q, 0, sizeof(*q));
	a->wait.resume = on_asked;
	EXPECT_EQ(control_call(machine[from].control, q, to, "POST", "/v1/x", "{\"a\":1}",
			       timeout_ms, &a->wait),
		  PENDING);
	EXPECT(!a->done);
}

TEST(control, calls_between_nodes)
{
	static struct control_call q;
	static struct ask a;

	start(2);
	for (uint16_t to = 1; to <= 2; to++) { /* to itself goes the same way */
		call(1, &q, &a, to, 5000);
		UNTIL(machine[to].calls == 1);
		EXPECT_STR(machine[to].path, "POST /v1/x");
		EXPECT_STR(machine[to].json, "{\"a\":1}");
		control_call_answer(machine[to].control, machine[to].ticket, 200, "{\"b\":2}");
		UNTIL(a.done);
		EXPECT_OK(a.rc);
		EXPECT_EQ(q.status, 200);
		EXPECT_STR(q.json, "{\"b\":2}");
		free(q.json);
		control_call_answer(machine[to].control, machine[to].ticket, 200,
				    "again"); /* ignored */
	}
	call(1, &q, &a, 4, 5000);
	UNTIL(a.done);
	EXPECT_RC(a.rc, -ENOTCONN);
	call(1, &q, &a, 2, 30);
	UNTIL(a.done);
	EXPECT_RC(a.rc, -ETIMEDOUT);
	control_call_answer(machine[2].control, machine[2].ticket, 200, "late");
	call(1, &q, &a, 2, 5000);
	UNTIL(machine[2].calls == 3);
	conn_close(end[0].conn, -ERR_CLOSED);
	UNTIL(a.done);
	EXPECT_RC(a.rc, -ERR_CLOSED);
	control_call_answer(machine[2].control, machine[2].ticket, 200, "to a gone connection");
	fake_stop();
}

/* Object changes. */

static unsigned object_commands(unsigned from, unsigned *changes)
{
	unsigned count = 0;

	*changes = 0;
	for (unsigned i = from; i < fake.log_count; i++) {
		struct reader r = reader_init(fake.log[i].data, fake.log[i].len);
		static struct command c;
		void *arena;

		EXPECT_OK(command_decode(&r, &c, &arena));
		if (c.kind == CMD_OBJECT) {
			count++;
			*changes += c.object.count;
		}
		free(arena);
	}
	return count;
}

TEST(control, object_changes_of_a_turn_are_one_command)
{
	struct object_change ch[3] = {{.op = OBJ_DROP, .object = 1, .epoch = 1},
				      {.op = OBJ_DROP, .object = 2, .epoch = 1},
				      {.op = OBJ_DROP, .object = 1, .epoch = 2}};
	unsigned at, changes;

	start(2);
	for (uint16_t node = 1; node <= 2; node++) {
		at = fake.log_count;
		control_propose_objects(machine[node].control, ch,
					3); /* the third replaces the first */
		control_propose_objects(machine[node].control, ch + 1, 1);
		UNTIL(fake.log_count > at);
		EXPECT_EQ(object_commands(at, &changes), 1);
		EXPECT_EQ(changes, 2);
	}
	fake_stop();
}

TEST(control, object_changes_outlive_an_election)
{
	struct object_change ch = {.op = OBJ_TAKEOVER, .object = 1, .epoch = 1};
	static struct object_change many[OBJECT_CHANGES_MAX + 10];
	unsigned at, changes;

	start(2);
	fake_set_leader(0);
	at = fake.log_count;
	control_propose_objects(machine[2].control, &ch, 1);
	turn();
	turn();
	EXPECT_EQ(object_commands(at, &changes), 0);
	fake_set_leader(1);
	UNTIL(object_commands(at, &changes) == 1);

	at = fake.log_count;
	for (unsigned i = 0; i < ARRAY_LEN(many); i++)
		many[i] = (struct object_change){.op = OBJ_DROP, .object = i, .epoch = 1};
	control_propose_objects(machine[1].control, many,
				ARRAY_LEN(many)); /* more than one command holds */
	UNTIL(object_commands(at, &changes) == 2);
	EXPECT_EQ(changes, ARRAY_LEN(many));
	fake_stop();
}

/* Duties. */

TEST(control, joined_nodes_become_standby_then_voters_up_to_three)
{
	start(4);
	UNTIL(fake_members(CONSENSUS_VOTES) == 3 && fake_members(CONSENSUS_FOLLOWS) == 1);
	for (unsigned i = 0; i < 10; i++)
		turn();
	EXPECT_EQ(fake.changes, 5); /* three joined, two of them vote */
	fake_stop();
}

TEST(control, a_refused_reconnect_to_the_leader_is_told_to_raft)
{
	start(2);
	control_peer_refused(machine[2].control, 4);
	EXPECT_EQ(fake.gone, 0);
	control_peer_refused(machine[2].control, 1);
	EXPECT_EQ(fake.gone, 1);
	EXPECT(fake_send(1, 2, "hello", 5));
	EXPECT(!fake_send(1, 5, "hello", 5)); /* not connected: never buffered */
	UNTIL(fake.received == 1);
	fake_stop();
}

/* A node that nobody leads hears all the same who there is, from whomever it reaches. */
TEST(control, who_connects_is_told_of_the_nodes)
{
	start(3);
	fake.deaf[4] = true;
	node_start(4, false, "");
	connect_nodes(2, 4);
	UNTIL(machine[4].told.count == 3);
	EXPECT_EQ(machine[4].told.node[2].number, 3);
	EXPECT_STR(machine[4].told.node[2].address, "a3");
	EXPECT(machine[4].told.version == machine[2].map.version);
	node_join(4); /* and of changes */
	UNTIL(machine[4].told.count == 4);
	fake_stop();
}

TEST(control, damaged_frames_close_the_connection)
{
	static const uint16_t op[] = {OP_PROPOSED, OP_CALL, OP_RESULT, OP_MAP_WATCH, OP_NODES};

	for (unsigned i = 0; i < ARRAY_LEN(op); i++) {
		start(2);
		conn_send(end[0].conn, op[i], 0, "xyz", 3, NULL, 0);
		UNTIL(end[0].closed && end[1].closed);
		fake_stop();
	}
}
