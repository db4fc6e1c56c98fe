/* SPDX-License-Identifier: Apache-2.0 */
/* A Raft store that goes on alone: what is in it is told in order, the rewriting is one step, and
 * what starts on it leads by itself with all of it. */
#include <unistd.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "cluster/consensus_recover.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "tests/lib/test.h"

#define NODE 3u

static char told[512]; /* what came out of the store: "restore@5:data one@6 …" */

static void tell(const char *what, uint64_t index, const void *data, size_t len)
{
	size_t at = strlen(told);

	snprintf(told + at, sizeof(told) - at, "%s%s@%llu:%.*s", at ? " " : "", what,
		 (unsigned long long)index, (int)len, (const char *)data);
}

static void on_apply(void *ctx, uint64_t index, const void *cmd, size_t len,
		     struct command_result *out)
{
	tell("apply", index, cmd, len);
	out->index = index;
}

static int on_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	tell("restore", index, data, len);
	return 0;
}

static bool on_send(void *ctx, uint16_t to, const void *msg, size_t len)
{
	test_failed(__FILE__, __LINE__, "a node that is alone sends to %u", to);
}

static void on_snapshot(void *ctx, struct writer *w)
{
	write_bytes(w, "later", 5);
}

static const struct consensus_hooks hooks = {
	.send = on_send, .apply = on_apply, .snapshot = on_snapshot, .restore = on_restore};

static struct raft_disk_entry change(uint64_t term, unsigned voters)
{
	struct raft_configuration c;
	struct raft_buffer buf;
	char address[8];

	raft_configuration_init(&c);
	for (unsigned i = 1; i <= voters; i++) {
		snprintf(address, sizeof(address), "%u", i);
		EXPECT(raft_configuration_add(&c, i, address, RAFT_VOTER) == 0);
	}
	EXPECT_OK(configuration_encode(&c, &buf));
	raft_configuration_close(&c);
	return (struct raft_disk_entry){
		.term = term, .type = RAFT_CHANGE, .data = buf.base, .len = buf.len};
}

static struct raft_disk_entry command(uint64_t term, const char *text)
{
	return (struct raft_disk_entry){
		.term = term, .type = RAFT_COMMAND, .data = (char *)text, .len = strlen(text)};
}

/* Three voters; the log ends with an entry that may never have been committed. */
static const char *store_made(const char *name, bool snapshot)
{
	static char dir[512];
	struct raft_disk_entry first = change(1, 3);
	struct raft_disk_entry e[4] = {command(1, "one"),
				       {.term = 2, .type = RAFT_BARRIER, .data = "", .len = 0},
				       command(2, "two"),
				       command(4, "last")};
	struct raft_write w[2] = {{.kind = RAFT_WRITE_APPEND, .first = 2, .last = 5, .entry = e},
				  {.kind = RAFT_WRITE_SNAPSHOT,
				   .first = 1,
				   .last = 2,
				   .snapshot = {.index = 3,
						.term = 2,
						.conf_index = 1,
						.conf = first.data,
						.conf_len = first.len,
						.data = "then",
						.len = 4}}};
	struct raft_disk *d;

	snprintf(dir, sizeof(dir), "%s/%s", test_dir(), name);
	EXPECT_OK(raft_log_open(dir, NODE, &d));
	EXPECT_OK(d->ops->bootstrap(d, &first));
	EXPECT_OK(d->ops->set_term(d, 7));
	EXPECT_OK(d->ops->set_vote(d, 2));
	EXPECT_OK(d->ops->write(d, w, snapshot ? 2 : 1));
	d->ops->close(d);
	raft_free(first.data);
	return dir;
}

TEST(recover, everything_in_the_log_is_told_in_order)
{
	struct consensus_offline *o, *second;
	struct consensus_survivor s;
	const char *dir = store_made("whole", false);

	told[0] = 0;
	EXPECT_OK(consensus_offline_open(dir, NODE, &hooks, NULL, &o, &s));
	EXPECT_STR(told, "apply@2:one apply@4:two apply@5:last");
	EXPECT(s.term == 7 && s.last_term == 4 && s.last_index == 5 && s.snapshot_index == 0);
	EXPECT(s.voters == 3 && s.voter[0] == 1 && s.voter[2] == 3);
	EXPECT_RC(consensus_offline_open(dir, NODE, NULL, NULL, &second, &s), -ERR_BUSY);
	consensus_offline_close(o);

	dir = store_made("cut", true);
	told[0] = 0;
	EXPECT_OK(consensus_offline_open(dir, NODE, &hooks, NULL, &o, &s));
	EXPECT_STR(told, "restore@3:then apply@4:two apply@5:last");
	EXPECT(s.last_term == 4 && s.last_index == 5 && s.snapshot_index == 3 && s.voters == 3);
	consensus_offline_close(o);
}

TEST(recover, what_is_not_there_is_not_made)
{
	struct consensus_offline *o;
	struct consensus_survivor s;
	struct raft_disk *d;
	char dir[512];

	snprintf(dir, sizeof(dir), "%s/none", test_dir());
	EXPECT_RC(consensus_offline_open(dir, NODE, NULL, NULL, &o, &s), -ERR_NOT_FOUND);
	EXPECT(access(dir, F_OK) < 0);
	EXPECT_OK(raft_log_open(dir, NODE, &d)); /* of a newcomer, empty */
	d->ops->close(d);
	EXPECT_RC(consensus_offline_open(dir, NODE, NULL, NULL, &o, &s), -ERR_NOT_FOUND);
	EXPECT_RC(consensus_offline_open(store_made("other", false), NODE + 1, NULL, NULL, &o, &s),
		  -ERR_FOREIGN);
}

static void expect_alone(const char *dir, const char *data)
{
	struct raft_configuration c;
	struct raft_disk_image i;
	struct raft_disk *d;

	EXPECT_OK(raft_log_open(dir, NODE, &d));
	EXPECT_OK(d->ops->load(d, &i));
	EXPECT(i.count == 0 && i.first == 1001 && i.has_snapshot && i.vote == 0 && i.term == 8);
	EXPECT(i.snapshot.index == 1000 && i.snapshot.term == 4 && i.snapshot.conf_index == 1000);
	EXPECT(i.snapshot.len == strlen(data) && !memcmp(i.snapshot.data, data, strlen(data)));
	EXPECT_OK(configuration_decode(i.snapshot.conf, i.snapshot.conf_len, &c));
	EXPECT(c.n == 1 && c.servers[0].id == NODE && c.servers[0].role == RAFT_VOTER);
	raft_configuration_close(&c);
	raft_disk_image_free(&i);
	d->ops->close(d);
}

/* ---- What starts on it ---- */

static struct {
	struct consensus *c;
	struct loop *loop;
	struct timer timer;
	struct proposal proposal;
	struct wait wait;
	bool proposed, done;
} life;

static void on_stopped(void *ctx)
{
	loop_stop(life.loop);
}

static void on_proposed(struct wait *w, int rc)
{
	EXPECT_OK(rc);
	EXPECT(life.proposal.result.index > 1000);
	life.done = true;
}

static void look(struct timer *t)
{
	if (life.done) {
		consensus_stop(life.c, on_stopped);
		return;
	}
	if (consensus_is_leader(life.c) && !life.proposed) {
		life.proposed = true;
		life.wait.resume = on_proposed;
		EXPECT_EQ(consensus_propose(life.c, &life.proposal, "next....", 8, &life.wait),
			  PENDING);
	}
	timer_set(t, 1000);
}

TEST(recover, goes_on_alone_with_all_of_it)
{
	struct consensus_config cfg = {.id = NODE, .hooks = &hooks};
	struct consensus_offline *o;
	struct consensus_survivor s;
	struct consensus_status st;

	cfg.dir = store_made("alone", true);
	EXPECT_OK(consensus_offline_open(cfg.dir, NODE, NULL, NULL, &o, &s));
	EXPECT_RC(consensus_offline_go_on(o, 5, "state", 5), -ERR_INVALID);
	EXPECT_RC(consensus_offline_go_on(o, 1000, "state", 64u << 20), -ERR_LIMIT);
	EXPECT_OK(consensus_offline_go_on(o, 1000, "state", 5));
	consensus_offline_close(o);
	expect_alone(cfg.dir, "state");

	told[0] = 0;
	cfg.loop = life.loop = loop_create("test", 8);
	EXPECT(life.loop != NULL);
	EXPECT_OK(consensus_start(&cfg, &life.c));
	EXPECT_STR(told, "restore@1000:state");
	timer_init(&life.timer, life.loop, look);
	timer_set(&life.timer, 1000);
	consensus_status(life.c, &st);
	EXPECT(st.voters == 1 && st.members == 1);
	loop_run(life.loop);
	EXPECT(strstr(told, ":next....") != NULL);
	timer_fini(&life.timer);
	loop_destroy(life.loop);
}
