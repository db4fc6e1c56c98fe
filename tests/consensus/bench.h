/* SPDX-License-Identifier: Apache-2.0 */
/* One real node whose peers, clock, disk and turns are in the test's hands. */
#pragma once

#include "tests/consensus/sim.h"
#include "tests/lib/test.h"

struct bench {
	struct consensus_env env;
	struct sim_disk disk;
	struct consensus *c;
	uint64_t now_us, wake_us; /* 0: not armed */
	bool turn;
	const struct raft_write *write;
	unsigned write_count;
	const char *fatal;
	struct raft_message out[256];
	uint16_t to[256];
	unsigned sent;
	size_t snapshot_bytes;
	unsigned snapshots;
	bool unconnected, hold_turns;
};

/* Before the start: what is on its disk. Node 1 of three voters, whose configuration is entry 1. */
void bench_init(struct bench *b, uint64_t term);
void bench_standby(struct bench *b, uint64_t term); /* node 1 is standby, of voter 2 */
void bench_entry(struct bench *b, uint64_t term, unsigned short type);
void bench_change(struct bench *b, uint64_t term, unsigned members); /* voters 1 … members */
void bench_snapshot(struct bench *b, uint64_t index, uint64_t term); /* in place of all so far */
void bench_boot(struct bench *b);
void bench_fini(struct bench *b);
const struct consensus_env_ops *bench_env_ops(void);
/* As after a kill: what is under way is lost. */
void bench_reboot(struct bench *b);

void bench_turn(struct bench *b);                 /* until no turn is due */
void bench_written(struct bench *b, int rc);      /* ends the write under way */
void bench_settle(struct bench *b);               /* writes and turns until nothing is due */
void bench_advance(struct bench *b, unsigned ms); /* and wakes it up */
void bench_receive(struct bench *b, uint16_t from, const struct raft_message *m);
/* An AppendEntries with n entries of `entry_term`; all commands, or CHANGEs of `members` voters. */
void bench_append(struct bench *b, uint16_t from, uint64_t term, uint64_t prev, uint64_t prev_term,
		  uint64_t commit, unsigned n, uint64_t entry_term, unsigned members);
/* n entries of term t, then m of term u. Commands. */
void bench_append_mixed(struct bench *b, uint16_t from, uint64_t term, uint64_t prev,
			uint64_t prev_term, uint64_t commit, unsigned n, uint64_t t, unsigned m,
			uint64_t u);
void bench_result(struct bench *b, uint16_t from, uint64_t term, uint64_t last);
void bench_vote_result(struct bench *b, uint16_t from, uint64_t term, bool pre_vote);
void bench_install(struct bench *b, uint16_t from, uint64_t term, uint64_t index,
		   uint64_t index_term);
/* Through pre-vote and vote, with node 2's voice. */
void bench_elect(struct bench *b);
/* The newest message of the type, or NULL. */
const struct raft_message *bench_last(const struct bench *b, unsigned type);
