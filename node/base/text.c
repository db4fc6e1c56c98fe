/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/text.h"

#include <inttypes.h>
#include <stdio.h>

#include "node/base/check.h"

const char *bytes_text(uint64_t bytes, char out[24])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double v = (double)bytes;
	unsigned u = 0;

	while (v >= 1024 && u < ARRAY_LEN(units) - 1) {
		v /= 1024;
		u++;
	}
	if (u == 0)
		snprintf(out, 24, "%" PRIu64 " B", bytes);
	else
		snprintf(out, 24, "%.1f %s", v, units[u]);
	return out;
}
