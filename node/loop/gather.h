/* SPDX-License-Identifier: Apache-2.0 */
/* Many reads at once for a thread that may block: what a device takes 100 µs for one at a time it
 * does side by side. Each gather belongs to one thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct gather;

struct gather_read {
	int fd;
	void *data;
	size_t len;
	uint64_t off;
	int rc; /* out: 0, or < 0; -ENODATA past the end */
};

/* Up to `depth` reads are under way at a time. Where the kernel gives no ring they go one by one.
 */
struct gather *gather_create(unsigned depth);
void gather_destroy(struct gather *g); /* NULL: nothing */
/* Blocking: all n are done at the return, in any order. Buffers are aligned as the files want it.
 */
void gather_run(struct gather *g, struct gather_read *reads, unsigned n);
