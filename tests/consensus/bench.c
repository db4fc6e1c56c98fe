/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/consensus/bench.h"

#include "cluster/consensus_message.h"

static struct bench *of(struct consensus_env *e)
{
	return container_of(e, struct bench, env);
}

static uint64_t env_now_us(struct consensus_env *e)
{
	return of(e)->now_us;
}

static uint64_t env_random(struct consensus_env *e, uint64_t lo, uint64_t hi)
{
	return lo;
}

static void env_wake_in(struct consensus_env *e, uint64_t delay_ms)
{
	of(e)->wake_us = of(e)->now_us + delay_ms * 1000;
}

static void env_turn(struct consensus_env *e)
{
	EXPECT(!of(e)->turn);
	of(e)->turn = true;
}

static void env_write(struct consensus_env *e, const struct raft_write *w, unsigned n)
{
	EXPECT(of(e)->write == NULL);
	of(e)->write = w;
	of(e)->write_count = n;
}

static void env_fatal(struct consensus_env *e, const char *why)
{
	of(e)->fatal = why;
}

static void env_destroy(struct consensus_env *e)
{
}

static const struct consensus_env_ops env_ops = {
	.now_us = env_now_us,
	.random = env_random,
	.wake_in = env_wake_in,
	.turn = env_turn,
	.write = env_write,
	.fatal = env_fatal,
	.destroy = env_destroy,
};

const struct consensus_env_ops *bench_env_ops(void)
{
	return &env_ops;
}

static bool hook_send(void *ctx, uint16_t to, const void *msg, size_t len)
{
	struct bench *b = ctx;

	EXPECT(b->sent < ARRAY_LEN(b->out));
	EXPECT_OK(message_decode(msg, len, (uint16_t)b->c->cfg.id, &b->out[b->sent]));
	b->to[b->sent++] = to;
	return !b->unconnected;
}

static void hook_apply(void *ctx, uint64_t index, const void *cmd, size_t len,
		       struct command_result *out)
{
}

static void hook_snapshot(void *ctx, struct writer *w)
{
	struct bench *b = ctx;

	b->snapshots++;
	(void)write_space(w, b->snapshot_bytes ? b->snapshot_bytes : 8);
}

static int hook_restore(void *ctx, const void *data, size_t len, uint64_t index)
{
	return 0;
}

static const struct consensus_hooks hooks = {
	.send = hook_send,
	.apply = hook_apply,
	.snapshot = hook_snapshot,
	.restore = hook_restore,
};

static struct raft_buffer configuration_of(unsigned members, int first_role)
{
	struct raft_configuration conf;
	struct raft_buffer buf;

	raft_configuration_init(&conf);
	for (unsigned i = 1; i <= members; i++) {
		char address[12];

		snprintf(address, sizeof(address), "%u", i);
		EXPECT_EQ(raft_configuration_add(&conf, i, address, i == 1 ? first_role : RAFT_VOTER),
			  0);
	}
	EXPECT_OK(configuration_encode(&conf, &buf));
	raft_configuration_close(&conf);
	return buf;
}

static struct raft_buffer configuration(unsigned members)
{
	return configuration_of(members, RAFT_VOTER);
}

static void disk_append(struct bench *b, const struct raft_disk_entry *e)
{
	uint64_t index = b->disk.image.first + b->disk.image.count;
	struct raft_write w = {
		.kind = RAFT_WRITE_APPEND, .first = index, .last = index, .entry = e};

	EXPECT_OK(b->disk.disk.ops->write(&b->disk.disk, &w, 1));
}

void bench_init(struct bench *b, uint64_t term)
{
	memset(b, 0, sizeof(*b));
	b->now_us = 1000000;
	sim_disk_init(&b->disk);
	bench_change(b, 1, 3);
	EXPECT_OK(b->disk.disk.ops->set_term(&b->disk.disk, term));
}

void bench_standby(struct bench *b, uint64_t term)
{
	struct raft_buffer buf = configuration_of(2, RAFT_STANDBY);

	memset(b, 0, sizeof(*b));
	b->now_us = 1000000;
	sim_disk_init(&b->disk);
	disk_append(b, &(struct raft_disk_entry){
			       .term = 1, .type = RAFT_CHANGE, .data = buf.base, .len = buf.len});
	raft_free(buf.base);
	EXPECT_OK(b->disk.disk.ops->set_term(&b->disk.disk, term));
}

void bench_entry(struct bench *b, uint64_t term, unsigned short type)
{
	disk_append(b, &(struct raft_disk_entry){.term = term,
						 .type = (uint8_t)type,
						 .data = (char *)"command!",
						 .len = 8});
}

void bench_change(struct bench *b, uint64_t term, unsigned members)
{
	struct raft_buffer buf = configuration(members);

	disk_append(b,
		    &(struct raft_disk_entry){
			    .term = term, .type = RAFT_CHANGE, .data = buf.base, .len = buf.len});
	raft_free(buf.base);
}

void bench_snapshot(struct bench *b, uint64_t index, uint64_t term)
{
	struct raft_buffer conf = configuration(3);
	struct raft_write w = {.kind = RAFT_WRITE_SNAPSHOT,
			       .first = 1,
			       .last = index,
			       .snapshot = {.index = index,
					    .term = term,
					    .conf_index = 1,
					    .conf = conf.base,
					    .conf_len = conf.len,
					    .data = (char *)"state",
					    .len = 5}};

	EXPECT_OK(b->disk.disk.ops->write(&b->disk.disk, &w, 1));
	raft_free(conf.base);
}

void bench_boot(struct bench *b)
{
	struct consensus_config cfg = {.id = 1, .hooks = &hooks, .ctx = b};

	b->env.ops = &env_ops;
	EXPECT_OK(consensus_start_on(&cfg, &b->env, &b->disk.disk, &b->c));
	bench_turn(b);
}

static void forget(struct bench *b)
{
	for (unsigned i = 0; i < b->sent; i++)
		message_free(&b->out[i]);
	b->sent = 0;
}

void bench_fini(struct bench *b)
{
	consensus_abort(b->c);
	forget(b);
	sim_disk_fini(&b->disk);
}

void bench_reboot(struct bench *b)
{
	consensus_abort(b->c);
	forget(b);
	b->write = NULL;
	b->turn = false;
	b->wake_us = 0;
	b->fatal = NULL;
	bench_boot(b);
}

void bench_turn(struct bench *b)
{
	while (b->turn && !b->fatal && !b->hold_turns) {
		b->turn = false;
		consensus_on_turn(b->c);
	}
}

void bench_written(struct bench *b, int rc)
{
	EXPECT(b->write != NULL);
	if (rc == 0)
		EXPECT_OK(b->disk.disk.ops->write(&b->disk.disk, b->write, b->write_count));
	b->write = NULL;
	consensus_on_written(b->c, rc);
	bench_turn(b);
}

void bench_settle(struct bench *b)
{
	bench_turn(b);
	while (b->write && !b->fatal)
		bench_written(b, 0);
}

void bench_advance(struct bench *b, unsigned ms)
{
	for (; ms && !b->fatal; ms--) {
		b->now_us += 1000;
		if (b->wake_us && b->now_us >= b->wake_us) {
			b->wake_us = 0;
			consensus_on_wake(b->c);
			bench_turn(b);
		}
	}
}

void bench_receive(struct bench *b, uint16_t from, const struct raft_message *m)
{
	struct writer w = writer_init_heap();

	EXPECT_OK(message_encode(m, MESSAGE_APPEND_BYTES_MAX, &w));
	consensus_receive(b->c, from, w.data, w.len);
	writer_free(&w);
	bench_turn(b);
}

void bench_append(struct bench *b, uint16_t from, uint64_t term, uint64_t prev, uint64_t prev_term,
		  uint64_t commit, unsigned n, uint64_t entry_term, unsigned members)
{
	struct raft_buffer conf = configuration(members ? members : 3);
	struct raft_entry e[16];
	struct raft_message m = {.type = RAFT_IO_APPEND_ENTRIES,
				 .append_entries = {.term = term,
						    .prev_log_index = prev,
						    .prev_log_term = prev_term,
						    .leader_commit = commit,
						    .entries = e,
						    .n_entries = n}};

	EXPECT(n <= ARRAY_LEN(e));
	for (unsigned i = 0; i < n; i++)
		e[i] = (struct raft_entry){
			.term = entry_term,
			.type = members ? RAFT_CHANGE : RAFT_COMMAND,
			.buf = members ? conf : (struct raft_buffer){(char *)"command!", 8}};
	bench_receive(b, from, &m);
	raft_free(conf.base);
}

void bench_append_mixed(struct bench *b, uint16_t from, uint64_t term, uint64_t prev,
			uint64_t prev_term, uint64_t commit, unsigned n, uint64_t t, unsigned m,
			uint64_t u)
{
	struct raft_entry e[16];
	struct raft_message msg = {
		.type = RAFT_IO_APPEND_ENTRIES,
		.append_entries = {term, prev, prev_term, commit, e, n + m},
	};

	EXPECT(n + m <= ARRAY_LEN(e));
	for (unsigned i = 0; i < n + m; i++)
		e[i] = (struct raft_entry){.term = i < n ? t : u,
					   .type = RAFT_COMMAND,
					   .buf = {(char *)"command!", 8}};
	bench_receive(b, from, &msg);
}

void bench_result(struct bench *b, uint16_t from, uint64_t term, uint64_t last)
{
	bench_receive(b, from,
		      &(struct raft_message){.type = RAFT_IO_APPEND_ENTRIES_RESULT,
					     .append_entries_result = {term, 0, last}});
}

void bench_vote_result(struct bench *b, uint16_t from, uint64_t term, bool pre_vote)
{
	bench_receive(b, from,
		      &(struct raft_message){
			      .type = RAFT_IO_REQUEST_VOTE_RESULT,
			      .request_vote_result = {term, true, TO_RAFT_TRIBOOL(pre_vote)}});
}

void bench_install(struct bench *b, uint16_t from, uint64_t term, uint64_t index,
		   uint64_t index_term)
{
	struct raft_buffer conf = configuration(3);
	struct raft_message m = {.type = RAFT_IO_INSTALL_SNAPSHOT,
				 .install_snapshot = {.term = term,
						      .last_index = index,
						      .last_term = index_term,
						      .conf_index = 1,
						      .data = {(char *)"state", 5}}};

	EXPECT_OK(configuration_decode(conf.base, conf.len, &m.install_snapshot.conf));
	bench_receive(b, from, &m);
	raft_configuration_close(&m.install_snapshot.conf);
	raft_free(conf.base);
}

void bench_elect(struct bench *b)
{
	uint64_t term = b->c->raft.current_term;

	bench_advance(b, 501);
	EXPECT_EQ(b->c->raft.state, RAFT_CANDIDATE);
	bench_vote_result(b, 2, term + 1, true);
	EXPECT_EQ(b->c->raft.current_term, term + 1);
	bench_vote_result(b, 2, term + 1, false);
	EXPECT_EQ(b->c->raft.state, RAFT_LEADER);
}

const struct raft_message *bench_last(const struct bench *b, unsigned type)
{
	for (unsigned i = b->sent; i-- > 0;)
		if (b->out[i].type == type)
			return &b->out[i];
	return NULL;
}
