/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the devices of a group were in the last minute: from counters that only grow, sampled every ten
 * seconds. The control loop. */
#pragma once

#include "store/store_device.h"

#define SLOW_SAMPLES   6u
#define SLOW_SAMPLE_US 10000000u

struct slow_sample {
	struct uuid uuid;
	uint64_t sum_us[DEVICE_OP_KINDS];
	uint32_t times[DEVICE_OP_KINDS][DEVICE_TIME_BITS];
};
struct slow_window {
	struct slow_sample sample[SLOW_SAMPLES][GROUP_DEVICES_MAX]; /* a ring: `next` is the oldest */
	unsigned next;
};
struct slow_times {
	uint64_t count, mean_us, p99_us; /* p99: the upper end of its bucket, a power of two */
};

void slow_add(struct slow_window *w, const struct store_device *d, unsigned count);
/* Since the oldest sample of this device, or since it was opened. */
void slow_times(const struct slow_window *w, const struct store_device *d,
		struct slow_times out[DEVICE_OP_KINDS]);
