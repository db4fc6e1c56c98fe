/* SPDX-License-Identifier: Apache-2.0 */
/* A recount of a store's map while its process runs (I8, I9), in a file of its own: store/ and
 * node/ have different things called a shard. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "node/loop/loop.h"

struct vproc;
struct store;

struct sim_audit {
	struct store *store;
	struct loop *loop; /* gets `done` */
	struct post done;
	int rc;
	uint64_t differences, bad_blocks;
};
/* In a thread of its own. The store stays open until `done`. */
void sim_audit_start(struct vproc *p, struct sim_audit *a);
