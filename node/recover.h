/* SPDX-License-Identifier: Apache-2.0 */
/* `ashlard recover`: what to do when a majority of the voters was lost for good. Offline, blocking, for
 * people: it prints. Exit codes as of `ashlar`: 0 done, 1 refused or failed, 5 it would lose what another
 * node knows. */
#pragma once

#include "node/config.h"

enum recover_what {
	RECOVER_LOOK,	/* what this node's Raft state has; nothing is changed */
	RECOVER_ALONE,	/* the cluster goes on with this node's state; confirm: the cluster's name */
	RECOVER_FOLLOW, /* this node joins a cluster that went on without it; token: of that recovery */
};
int recover_run(const struct config *c, enum recover_what what, const char *argument);
