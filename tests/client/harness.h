/* SPDX-License-Identifier: Apache-2.0 */
/* A loop in a thread of its own, driven by a test: run a function there and wait for it, or wait until
 * a condition holds there. */
#pragma once

#include "node/loop/loop.h"

struct harness {
	struct loop *loop;
};

void harness_start(struct harness *h);
void harness_stop(struct harness *h);
void harness_do(struct harness *h, void (*fn)(void *arg), void *arg);
/* Fails the test when the condition does not hold within 20 s. */
void harness_await(struct harness *h, bool (*holds)(void *arg), void *arg, const char *what);
