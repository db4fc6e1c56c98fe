/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for blocking calls (RocksDB, fsync of directories, key generation). worker_submit takes a
 * job from a loop; run() executes on a worker; the wait is resumed on that loop. With one thread a
 * pool is an ordered queue. The queue is bounded by its callers' own limits. */
#pragma once

#include "node/base/op.h"
#include "node/loop/loop.h"

struct worker_pool;

struct work {
	struct post post;		/* private */
	struct work *next;		/* private */
	struct loop *loop;		/* private */
	struct wait *wait;		/* private */
	int (*run)(struct work *w);	/* on a worker thread; its result is the resume's rc */
	int rc;
};

struct worker_pool *worker_pool_create(const char *name, unsigned threads, int nice_level); /* any thread */
void worker_pool_destroy(struct worker_pool *p); /* runs what is queued, then ends the threads */
/* Always PENDING. From the loop's thread. w->run is set by the caller. */
int worker_submit(struct worker_pool *p, struct loop *l, struct work *w, struct wait *wait) MUST_USE;
