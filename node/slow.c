/* SPDX-License-Identifier: Apache-2.0 */
/* See slow.h. */
#include "node/slow.h"

#include <string.h>

void slow_add(struct slow_window *w, const struct store_device *d, unsigned count)
{
	struct slow_sample *s = w->sample[w->next];

	memset(s, 0, sizeof(w->sample[0]));
	for (unsigned i = 0; i < count; i++) {
		s[i].uuid = d[i].uuid;
		memcpy(s[i].sum_us, d[i].sum_us, sizeof(s[i].sum_us));
		memcpy(s[i].times, d[i].times, sizeof(s[i].times));
	}
	w->next = (w->next + 1) % SLOW_SAMPLES;
}

static const struct slow_sample *oldest(const struct slow_window *w, const struct uuid *u)
{
	for (unsigned i = 0; i < SLOW_SAMPLES; i++) {
		const struct slow_sample *s = w->sample[(w->next + i) % SLOW_SAMPLES];

		for (unsigned k = 0; k < GROUP_DEVICES_MAX; k++)
			if (!uuid_is_nil(u) && uuid_equal(&s[k].uuid, u))
				return &s[k];
	}
	return NULL;
}

void slow_times(const struct slow_window *w, const struct store_device *d,
		struct slow_times out[DEVICE_OP_KINDS])
{
	const struct slow_sample *s = oldest(w, &d->uuid);

	for (unsigned op = 0; op < DEVICE_OP_KINDS; op++) {
		uint32_t times[DEVICE_TIME_BITS];
		uint64_t sum = d->sum_us[op], n = 0, above = 0;
		/* Of a device that took another's place the counters began anew. */
		bool since = s && s->sum_us[op] <= sum;

		memset(&out[op], 0, sizeof(out[op]));
		for (unsigned i = 0; i < DEVICE_TIME_BITS; i++) {
			times[i] = d->times[op][i] - (since ? s->times[op][i] : 0);
			n += times[i];
		}
		if (!n)
			continue;
		out[op].count = n;
		out[op].mean_us = (sum - (since ? s->sum_us[op] : 0)) / n;
		for (unsigned i = DEVICE_TIME_BITS; i-- > 0;) {
			above += times[i];
			if (above * 100 >= n) {
				out[op].p99_us = 1ull << i;
				break;
			}
		}
	}
}
