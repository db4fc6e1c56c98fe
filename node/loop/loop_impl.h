/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a loop, shared by loop.c, ring.c and gather.c. */
#pragma once

#include <event2/event.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

#include "node/loop/loop.h"

struct loop {
	char name[16];
	struct event_base *base;
	struct rng rng;
	uint64_t turn_us;
	atomic_bool stop;
	pthread_t thread;
	bool running, spawned, turn_begun;

	struct list turn_end[TURN_PHASES];

	_Atomic(struct post *) posts; /* stack of what came since the last turn, newest first */
	int post_fd;
	struct event *post_event;

	struct io_uring ring;
	int ring_fd; /* eventfd of completions */
	struct event *ring_event;
	unsigned io_inflight;
	struct list io_waiting; /* struct io: the submission queue was full */
	struct list io_memory;	/* struct io on files in memory, done by ring_reap */
};

int ring_start(struct loop *l, unsigned entries);
void ring_stop(struct loop *l);
void ring_submit(struct loop *l);
bool ring_reap(struct loop *l); /* true if it resumed anything */
bool io_in_memory(int fd); /* a read of it is a copy; any thread */
