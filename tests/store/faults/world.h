/* SPDX-License-Identifier: Apache-2.0 */
/* A store on a simulated host, and a model of what must be in it. Clients are threads that make one
 * call after another, each on its own object, and tell the model before and after each; whatever
 * moment ends them, the model knows what was asked for and what was answered. */
#pragma once

#include <unistd.h>

#include "tests/simhost/simhost.h"
#include "tests/store/log/rig.h"

#define OBJECTS 4u
#define BLOCKS	384u /* of an object that anything is ever written to */
#define PAGES	(BLOCKS / PAGE_BLOCKS)
#define HISTORY 1024u
#define MIB	(1ull << 20)
#define SECOND	1000000u /* of virtual time */

/* Whether it becomes true in so long a virtual time; asked a hundred times a second. */
#define WITHIN(us, condition)                                                                      \
	({                                                                                         \
		uint64_t end_ = simhost_now_us() + (us);                                           \
		bool holds_;                                                                       \
		while (!(holds_ = (condition)) && simhost_now_us() < end_)                         \
			usleep(SECOND / 100);                                                      \
		holds_;                                                                            \
	})

struct event {
	struct version version;
	uint8_t kind;
	uint32_t block, blocks;
	uint64_t seed;
};
/* A record's number is its place: history[seq − 1]. */
struct history {
	struct event event[HISTORY];
	uint64_t last, acked;
	struct object_header h;
};
enum object_is { OBJ_NOT, OBJ_BORN_MAYBE, OBJ_IS, OBJ_GONE_MAYBE };
struct model {
	uint64_t id;
	uint32_t gen, volume;
	enum object_is is;
	struct history now, before; /* before: what it is while `cutting`, if the cut is not to be */
	bool cutting;
	uint64_t committed; /* told the store */
	uint64_t requests;
	/* While a replica is being filled: its pages are as before or as in here. */
	bool filling;
	struct history filled;
};

struct plan { /* what goes wrong */
	enum vfault fault;
	bool for_ever;	      /* from then on, each I/O of that path */
	uint64_t k;	      /* at the k-th I/O that the fault makes sense for; 0: never */
	bool armed, hit, writes; /* writes: no other I/O counts */
	uint64_t seen;
	struct vio what; /* what was hit; its path is a copy */
	char path[64];
	uint64_t acked[OBJECTS]; /* by then */
	struct history then[OBJECTS]; /* without a cut that was under way */
};

struct world {
	struct vhost *host;
	struct rig rig;
	struct model models[OBJECTS];
	struct plan plan;
	struct rng rng; /* of what is asked for: the same in each run */
	unsigned shards;
	bool compression, dedup;
	int open_rc, op_rc; /* of the process under fault */
	/* Of the check: */
	bool lied_to; /* devices said what was not so: damage may be there, and must be noticed */
	uint64_t bad, damaged; /* blocks that cannot be produced, objects that say so */
	bool check_ended;
};

void world_begin(struct world *w, uint64_t seed, uint64_t capacity, uint64_t cache);
void world_arm(struct world *w);
void world_disarm(struct world *w);
bool fault_fits(enum vfault f, enum vio_kind kind);
/* fault at the k-th I/O after world_arm. */
void world_fault(struct world *w);

/* ---- Calls, from threads of a process on w->host ---- */

int w_format(struct world *w);
int w_open(struct world *w, unsigned shards);
void w_close(struct world *w);
int w_create(struct world *w, unsigned object);
int w_delete(struct world *w, unsigned object);
/* One record, waited for. RECORD_WRITE, TRIM or ZEROES. */
int w_append(struct world *w, unsigned object, uint8_t kind, uint32_t block, uint32_t blocks,
	     uint64_t seed);
void w_commit(struct world *w, unsigned object);   /* all that is acked */
int w_epoch(struct world *w, unsigned object);	   /* next tenure */
int w_cut(struct world *w, unsigned object);	   /* the uncommitted tail goes, next tenure */
int w_fill(struct world *w, unsigned from, unsigned to); /* `to` becomes a replica of `from` */
int w_flush(struct world *w);
void w_policy(struct world *w, unsigned object, bool compression, bool dedup);
/* A random write, trim or zeroes, with the commit of what is acked before. */
int w_random(struct world *w, unsigned object, uint32_t blocks_max);
/* fn(w, object) for each object in a thread of its own; the first error. */
int w_parallel(struct world *w, int (*fn)(struct world *w, unsigned object));

/* ---- Checks: inside a process, the store open, no faults ---- */

/* Everything the model says, then the rest of the history is committed and looked at again, then
 * destaged, recounted and inspected. The model is then what is there. */
void w_check(struct world *w);
/* Committed contents only, while it runs on after an error; reads may fail, never lie. */
void w_check_reads(struct world *w);
/* Content by seed: 0 mod 4 zeros, 1 compressible, 2 one of few, 3 random. */
void content(uint8_t out[BLOCK_SIZE], uint64_t seed, uint32_t block);
