/* SPDX-License-Identifier: Apache-2.0 */
/* Three nodes on the real loop, with real logs: grown from one, commands, a restart, a removal; and
 * what an idle group costs. Messages travel by posts. */
#include <sys/resource.h>
#include <unistd.h>

#include "cluster/consensus.h"
#include "node/base/bytes.h"
#include "node/base/log.h"
#include "tests/lib/test.h"

#define NODES 3u

struct node {
	struct consensus *c;
	uint16_t id;
	bool up;
	uint64_t applied, sum;
};

struct message {
	struct post post;
	uint16_t from, to;
	size_t len;
	uint8_t data[];
};

static struct loop *loop;
static struct node node[NODES + 1];

static void deliver(struct post *p)
{
	struct message *m = container_of(p, struct message, post);

	if (node[m->to].up)
		consensus_receive(node[m->to].c, m->from, m->data, m->len);
	free(m);
}

static bool hook_send(void *ctx, uint16_t to, const void *msg, size_t len)
{
	struct node *n = ctx;
	struct message *m;

	if (to > NODES || !node[to].up)
		return false;
	m = xmalloc(sizeof(*m) + len);
	m->post.fn = deliver;
	m->from = n->id;
	m->to = to;
	m->len = len;
	memcpy(m->data, msg, len);
	loop_post(loop, &m->post);
	return true;
}

static void hook_apply(void *ctx, uint64_t index, const void *cmd, size_t len,
		       struct command_result *out)
{
	struct node *n = ctx;

	EXPECT(index > n->applied && len == 8);
	n->applied = index;
	n->sum = n->sum * 31 + get_le64(cmd);
	out->id = get_le64(cmd);
}

static void hook_snapshot(void *ctx, struct writer *w)
{
	struct node *n = ctx;

	write_u64(w, n->applied);
	write_u64(w, n->sum);
}

static int hook_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	struct node *n = ctx;
	struct reader r = reader_init(data, len);

	n->applied = read_u64(&r);
	n->sum = read_u64(&r);
	return 0;
}

static const struct consensus_hooks hooks = {
	.send = hook_send,
	.apply = hook_apply,
	.snapshot = hook_snapshot,
	.restore = hook_restore,
};

static void start(uint16_t id)
{
	CLEANUP(free_ptr) char *dir = xasprintf("%s/node%u", test_dir(), id);
	struct consensus_config cfg = {.id = id,
				       .dir = dir,
				       .loop = loop,
				       .bootstrap = id == 1,
				       .hooks = &hooks,
				       .ctx = &node[id]};

	node[id] = (struct node){.id = id};
	EXPECT_OK(consensus_start(&cfg, &node[id].c));
	node[id].up = true;
}

/* ---- The story, one step after the other ---- */

static struct wait step_wait;
static struct proposal proposal[2000];
static struct wait proposed[2000];
static unsigned stage, stopped;
static uint64_t answered, wanted;
static struct timer timer;
static struct rusage usage;
static uint64_t idle_from_us;

static void story(int rc);

static void step_done(struct wait *w, int rc)
{
	story(rc);
}

static void on_timer(struct timer *t)
{
	story(0);
}

static struct consensus *leader(void)
{
	for (unsigned i = 1; i <= NODES; i++)
		if (node[i].up && consensus_is_leader(node[i].c))
			return node[i].c;
	return NULL;
}

static void on_proposed(struct wait *w, int rc)
{
	EXPECT_OK(rc);
	EXPECT_EQ(proposal[w - proposed].result.id, (uint64_t)(w - proposed));
	if (++answered == wanted)
		story(0);
}

static void propose(unsigned n)
{
	answered = 0;
	wanted = n;
	for (unsigned i = 0; i < n; i++) {
		uint8_t cmd[8];

		put_le64(cmd, i);
		proposed[i].resume = on_proposed;
		EXPECT_EQ(consensus_propose(leader(), &proposal[i], cmd, 8, &proposed[i]), PENDING);
	}
}

static void later(unsigned ms)
{
	timer_set(&timer, ms * 1000u);
}

static bool all_equal(void)
{
	for (unsigned i = 2; i <= NODES; i++)
		if (node[i].up &&
		    (node[i].sum != node[1].sum || node[i].applied != node[1].applied))
			return false;
	return true;
}

static void on_stopped(void *ctx)
{
	((struct node *)ctx)->up = false;
	stopped++;
	story(0);
}

static void idle_report(void)
{
	struct rusage now;
	uint64_t us = loop_mono_us(loop) - idle_from_us, cpu;

	getrusage(RUSAGE_SELF, &now);
	cpu = (uint64_t)(now.ru_utime.tv_sec - usage.ru_utime.tv_sec + now.ru_stime.tv_sec -
			 usage.ru_stime.tv_sec) *
		      1000000u +
	      (uint64_t)(now.ru_utime.tv_usec - usage.ru_utime.tv_usec + now.ru_stime.tv_usec -
			 usage.ru_stime.tv_usec);
	printf("  idle: %.2f %% of a core for three nodes\n", 100.0 * (double)cpu / (double)us);
	EXPECT(cpu * 20 < us); /* below 5 %, sanitizers and a busy machine included */
}

static void story(int rc)
{
	struct consensus_status st;

	for (;;) {
		EXPECT(rc == 0 || rc == PENDING || rc == -ERR_BUSY);
		if (rc == PENDING)
			return;
		if (rc == -ERR_BUSY) { /* this term's barrier is not there yet */
			later(5);
			return;
		}
		switch (stage) {
		case 0: /* alone, and leader at once */
			if (!leader())
				return later(1);
			EXPECT_RC(consensus_remove(leader(), 1, &step_wait), -ERR_REFUSED);
			rc = consensus_add_standby(leader(), 2, &step_wait);
			stage += rc != -ERR_BUSY;
			break;
		case 1:
			rc = consensus_make_voter(leader(), 2, &step_wait);
			stage += rc != -ERR_BUSY;
			break;
		case 2:
			EXPECT_RC(consensus_remove(leader(), 2, &step_wait), -ERR_REFUSED);
			rc = consensus_add_standby(leader(), 3, &step_wait);
			EXPECT_RC(consensus_make_voter(leader(), 3, &step_wait),
				  rc == PENDING ? -ERR_NOT_FOUND : -ERR_BUSY);
			stage++;
			break;
		case 3:
			consensus_status(node[3].c, &st);
			if (st.members != 3 || st.leader != 1)
				return later(1);
			EXPECT_EQ(st.role, CONSENSUS_STANDBY);
			rc = consensus_make_voter(leader(), 3, &step_wait);
			stage++;
			break;
		case 4:
			propose(ARRAY_LEN(proposal)); /* enough for a snapshot */
			stage++;
			return;
		case 5: /* all of them, everywhere */
			consensus_status(node[1].c, &st);
			EXPECT_EQ(st.voters, 3);
			EXPECT_EQ(consensus_add_standby(leader(), 3, &step_wait), 0);
			if (!all_equal())
				return later(5);
			EXPECT(st.snapshot_index > 0);
			stage++;
			getrusage(RUSAGE_SELF, &usage);
			idle_from_us = loop_mono_us(loop);
			return later(1500);
		case 6:
			idle_report();
			stage++;
			consensus_stop(node[1].c, on_stopped); /* the leader */
			return;
		case 7:
			for (uint16_t i = 2; i <= NODES; i++)
				consensus_leader_gone(node[i].c, 1);
			idle_from_us = loop_mono_us(loop);
			stage++;
			return later(1);
		case 8:
			if (!leader())
				return later(1);
			printf("  a new leader after %llu ms\n",
			       (unsigned long long)(loop_mono_us(loop) - idle_from_us) / 1000);
			propose(100);
			stage++;
			return;
		case 9:
			start(1);
			stage++;
			return later(1);
		case 10: /* the old leader catches up from its log */
			if (!all_equal())
				return later(5);
			stage++;
			rc = consensus_make_standby(leader(), 1, &step_wait);
			break;
		case 11:
			rc = consensus_remove(leader(), 1, &step_wait);
			EXPECT(rc != 0);
			stage += rc == PENDING;
			break;
		case 12:
			consensus_status(leader(), &st);
			EXPECT(st.voters == 2 && st.members == 2);
			stopped = 0;
			stage++;
			for (unsigned i = 1; i <= NODES; i++)
				consensus_stop(node[i].c, on_stopped);
			return;
		default:
			if (stopped == NODES)
				loop_stop(loop);
			return;
		}
	}
}

TEST(group, grows_works_fails_over_and_shrinks)
{
	loop = loop_create("group", 8);
	EXPECT(loop != NULL);
	step_wait.resume = step_done;
	timer_init(&timer, loop, on_timer);
	for (uint16_t i = 1; i <= NODES; i++)
		start(i);
	later(1);
	loop_run(loop);
	timer_fini(&timer);
	loop_destroy(loop);
	EXPECT_EQ(stage, 13);
}
