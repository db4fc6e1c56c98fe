/* SPDX-License-Identifier: Apache-2.0 */
/* Control planes of up to five nodes on one loop, connected over socket pairs. The test's thread holds
 * that loop still while it looks and acts (hold, let_go); UNTIL lets it run turn by turn until a
 * condition is true. Over which Raft is decided by linking. */
#pragma once

#include "cluster/control.h"
#include "cluster/control_msg.h"
#include "tests/lib/test.h"
#include "tests/net/net_fixture.h"

#define MACHINES 6u

struct machine {
	struct control *control;
	uint16_t id;
	struct map map; /* as a shard would have it */
	unsigned deltas, calls;
	uint64_t ticket;
	char path[64], json[64];
	bool stopped;
	struct control_nodes told;
};

struct end {
	struct machine *m; /* NULL: a client's own end */
	uint16_t peer;
	struct conn *conn;
	bool client, closed;
};

extern struct site site;
extern struct machine machine[MACHINES];
extern struct end end[64];
extern unsigned ends;
extern const struct conn_ops node_ops;

void hold(void);
void let_go(void);
void turn(void);
void later(void); /* lets it run for a moment */
double seconds(void);

#define UNTIL(cond)                                                                                \
	do {                                                                                       \
		double end_ = seconds() + 10;                                                      \
		while (!(cond) && seconds() < end_)                                                \
			later();                                                                   \
		EXPECT(cond);                                                                      \
	} while (0)

void node_start(uint16_t id, bool bootstrap, const char *dir);
struct end *end_make(struct machine *m, int fd, const struct conn_ops *ops);
struct end *connect_nodes(uint16_t a, uint16_t b); /* returns a's end; b's is the next */
struct end *connect_process(uint16_t a, uint16_t b, uint32_t incarnation); /* the same: of b */
void on_stopped(void *ctx);
void cut_off(uint16_t id); /* closes all its connections */

/* Proposals with their outcome. */
struct ask {
	struct control_propose p;
	struct wait wait;
	bool done;
	int rc;
};
void on_asked(struct wait *w, int rc);
void propose(uint16_t node, struct ask *a, struct command *cmd, uint64_t deadline_ms);
void must(uint16_t node, struct command *cmd);
struct command setting(const char *key, const char *value);
void cluster_init(void);
void node_join(uint16_t id); /* node and group `id` in the map, active */
/* Nodes 1 … n, connected in full and in the map; 1 founded the cluster. dir: where each keeps its Raft.
 * Returns with the loop held; finish ends it. */
void cluster_start(uint16_t n, const char *(*dir)(uint16_t node));
bool all_stopped(void);
void finish(void);
void expect_same_map(const struct map *a, const struct map *b);
