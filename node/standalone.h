/* SPDX-License-Identifier: Apache-2.0 */
/* `ashlard run --standalone DIR`: a one-node cluster in one process on plain files, with a Raft of one.
 * The same code as everywhere; this only writes the configuration and goes through birth by itself. */
#pragma once

#include "node/config.h"

struct standalone {
	const char *dir;
	uint64_t size_bytes, cache_bytes;
};

/* Makes DIR and its files if they are not there. -EINVAL etc. with a sentence in err. */
int standalone_config(const struct standalone *a, struct config *out, char err[512]) MUST_USE;

struct node;
/* After the node runs: init the cluster and add the disk group, unless that was done in an earlier
 * run. Asynchronous; failure exits the process with the reason. */
void standalone_begin(struct node *n, const struct standalone *a);
