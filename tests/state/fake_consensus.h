/* SPDX-License-Identifier: Apache-2.0 */
/* A Raft that never fails, for tests of what stands on it: one shared log, a leader by decree, commits in
 * the next turn (or held). All nodes of a test live on one loop. */
#pragma once

#include "cluster/consensus.h"

#define FAKE_NODES 6u
#define FAKE_LOG 4096u

struct fake_raft {
	struct consensus *node[FAKE_NODES]; /* by id */
	uint16_t leader;
	bool hold; /* proposals stay in the air */
	bool deaf[FAKE_NODES]; /* it hears of no commit */
	unsigned log_count;
	struct {
		void *data;
		size_t len;
	} log[FAKE_LOG];
	enum consensus_member member[FAKE_NODES]; /* the configuration, by id */
	unsigned changes;			  /* of it */
	bool resigned;				  /* the leader: another voter leads from its next turn on */
	uint16_t gone; /* consensus_leader_gone was told of */
	unsigned received;
	struct list flying;
};
extern struct fake_raft fake;

void fake_reset(void);
unsigned fake_members(enum consensus_member what);
void fake_set_leader(uint16_t id); /* 0: none */
/* What is held is lost or, nevertheless, applied; its proposers only hear -ERR_RETRY. */
void fake_lose(bool applied);
void fake_unhold(void);
bool fake_send(uint16_t from, uint16_t to, const void *msg, size_t len);
