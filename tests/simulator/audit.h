/* SPDX-License-Identifier: Apache-2.0 */
/* A recount of a store's map while its process runs (I8, I9), in a file of its own: store/ and
 * node/ have different things called a shard. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct vproc;
struct store;

struct sim_audit {
	struct store *store;
	bool ended;
	int rc;
	uint64_t differences, bad_blocks;
};
/* From outside of any process; out->ended says when it is done. */
void sim_audit_start(struct vproc *p, struct store *s, struct sim_audit *out);
