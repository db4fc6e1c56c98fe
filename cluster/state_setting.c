/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster settings that this version reads: keys, ranges, defaults. Keys that it does not know
 * are kept for versions that do. */
#include "cluster/state_impl.h"

#include <stdlib.h>

const struct setting_rule setting_rules[] = {
	{ATTACH_TTL_KEY,
	 "how long a gateway may be silent before others may take its attachments, in ms",
	 ATTACH_TTL_MIN_MS, ATTACH_TTL_MAX_MS, ATTACH_TTL_MS},
	{REBUILD_DELAY_KEY,
	 "how long a node may be away before its copies are made elsewhere, in seconds", 1, 604800,
	 60},
	{VOTER_DELAY_KEY,
	 "how long a voter may be away before another node takes its vote, in seconds", 1, 604800, 60},
	{REBUILD_FLOOR_KEY,
	 "what each node copies for rebuilds and returns however busy clients are, in MiB/s", 1,
	 100000, 4},
	{REBUILD_LIMIT_KEY, "the most that each node copies, in MiB/s; 0: no limit", 0, 100000, 0},
	{REBALANCE_AUTO_KEY,
	 "1: replicas move by themselves to nodes and disk groups that were added", 0, 1, 0},
	{SCRUB_INTERVAL_KEY,
	 "in how many hours everything that is stored is read and checked once; 0: only when asked", 0,
	 8760, 168},
	{SCRUB_RATE_KEY, "the most that checking reads of a disk group, in MiB/s", 1, 100000, 20},
	{NULL},
};

const struct setting_rule *setting_rule(const char *key)
{
	for (const struct setting_rule *r = setting_rules; r->key; r++)
		if (!strcmp(r->key, key))
			return r;
	return NULL;
}

int setting_parse(const struct setting_rule *r, const char *text, uint32_t *out)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || n < r->min || n > r->max)
		return -ERR_INVALID;
	*out = (uint32_t)n;
	return 0;
}

uint32_t state_setting_number(const struct state *s, const char *key)
{
	const struct setting_rule *r = setting_rule(key);
	const char *text = state_setting(s, key);
	uint32_t n;

	CHECK(r);
	return text && !setting_parse(r, text, &n) ? n : r->fallback;
}

bool state_limits_update(struct state *s)
{
	struct map_limits *l = &s->map.limits;
	uint32_t floor_mib = state_setting_number(s, REBUILD_FLOOR_KEY),
		 limit_mib = state_setting_number(s, REBUILD_LIMIT_KEY);
	bool changed = l->floor_mib != floor_mib || l->limit_mib != limit_mib;

	l->floor_mib = floor_mib;
	l->limit_mib = limit_mib;
	return changed;
}
