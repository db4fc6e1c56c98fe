/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: a pure function that the leader evaluates; the command carries the result and apply only
 * validates it. Distinct fault sets, then free-space weight (in 5 % steps), then rendezvous hash
 * (weighted: highest -weight/ln(h)). The primary prefers `prefer_node`. It explains itself. */
#pragma once

#include "cluster/map.h"

struct placement_reason {
	uint16_t group;
	char text[96]; /* "chosen", "same fault set as group 3", "node 4 is not active", "full", … */
};
struct placement_request {
	uint32_t volume, first_object, objects;
	unsigned copies;
	uint16_t prefer_node; /* 0: none */
	const uint16_t *exclude; /* groups that are being emptied */
	unsigned exclude_count;
};
/* out: objects × copies members (group, group_incarnation; gen and in are set by apply), primary first.
 * -ERR_TOO_FEW with `why` saying how many fault sets there are and what to add; reasons (may be NULL)
 * for the last object placed. */
int placement_choose(const struct map *m, const struct placement_request *q, struct map_member *out,
		     struct placement_reason *reasons, unsigned *reason_count, unsigned reasons_max,
		     char why[256]) MUST_USE;

/* One more replica of `object`: the best group outside the fault sets of the groups in `keep`. refuse()
 * says why a group may not be used, or NULL. -ERR_TOO_FEW: none; `why` is a sentence, reasons as above. */
int placement_one(const struct map *m, uint64_t object, const uint16_t *keep, unsigned keep_count,
		  const char *(*refuse)(void *arg, const struct map_group *g), void *arg,
		  struct map_member *out, struct placement_reason *reasons, unsigned *reason_count,
		  unsigned reasons_max, char why[256]) MUST_USE;
