/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the process: from a configuration to its exit code. */
#pragma once

#include "node/config.h"

struct standalone;

/* Serves until SIGTERM or SIGINT. Takes over *config. The exit code: 0 after a clean stop, 1 otherwise. */
int node_run(struct config *config, const struct standalone *alone);
