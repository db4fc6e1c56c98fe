/* SPDX-License-Identifier: Apache-2.0 */
/* The part of destage that needs no map: payload is read, compared with its fingerprint, looked at
 * for zeroes and compressed. It is done in chunks by several threads of the group; the destager
 * takes the chunks in order and alone knows pages, shares and segments, so nothing of what they do
 * can race with a commit (I8, I14). With no threads the destager prepares each chunk itself. */
#pragma once

#include "store/destage.h"

#define PREPARE_BLOCKS      512u
#define PREPARE_THREADS_MAX 8u
#define PREPARE_BY_CORES    UINT32_MAX

struct prepare;

/* threads: as many, at most PREPARE_THREADS_MAX; PREPARE_BY_CORES: a quarter of the cores, and none
 * below four. They end with prepare_destroy. Set-up threads. */
struct prepare *prepare_create(struct tier *t, uint32_t threads);
void prepare_destroy(struct prepare *w);
unsigned prepare_threads(const struct prepare *w);

/* The destager, for one round: begin, next until it gives 0 or an error, end (always).
 * Between begin and end hints must not change: threads look for them. */
void prepare_begin(struct prepare *w, struct payload *p, unsigned n, bool compress);
/* Gives up the chunk before; waits for the next one, or prepares it if nobody has begun to. How
 * many payloads from *first on; 0: that was all; -ERR_DEVICE: a device of the log has failed. */
int prepare_next(struct prepare *w, struct payload **first) MUST_USE;
void prepare_end(struct prepare *w);
