/* SPDX-License-Identifier: Apache-2.0 */
/* Placement by weighted rendezvous hashing: every group gets the score -weight / ln(h) for the
 * object, the highest scores of distinct fault sets win. A group's share follows its weight, and
 * when one comes or goes only the objects that must move do. Pure: no I/O, no clock, no randomness;
 * runs on the leader only, its result travels in the command. */
#include "cluster/placement.h"
#include "cluster/map_codec.h"
#include "node/base/err.h"

#include <stdio.h>
#include <stdlib.h>

struct candidate {
	const struct map_group *group;
	const struct map_node *node;
	const char *fault_set;
	double weight, score;
	bool usable;
	char why[96];
};

/* ln x for 0 < x < 1, good to about 1e-8 and the same on every machine. */
static double ln(double x)
{
	double z, z2, sum = 0, power;
	int e = 0;

	while (x < 1) {
		x *= 2;
		e--;
	}
	z = (x - 1) / (x + 1); /* 1 <= x < 2, so z < 1/3 */
	z2 = z * z;
	power = z;
	for (int i = 1; i < 18; i += 2) {
		sum += power / i;
		power *= z2;
	}
	return 2 * sum + e * 0.69314718055994530942;
}

static double score(uint64_t object, uint16_t group, double weight)
{
	uint64_t h = hash_u64(hash_u64(object + 1) + group * 0x9e3779b97f4a7c15ull);

	return -weight / ln(((double)(h >> 12) + 0.5) / 4503599627370496.0);
}

static const char *fault_set_of(const struct map_node *n)
{
	return n->fault_set[0] ? n->fault_set : n->name;
}

static bool excluded(const struct placement_request *q, uint16_t group)
{
	for (unsigned i = 0; i < q->exclude_count; i++)
		if (q->exclude[i] == group)
			return true;
	return false;
}

static void candidate_init(struct candidate *c, const struct map *m, const struct map_group *g,
			   const struct placement_request *q)
{
	static const char *const state[] = {"unknown", "pending", "active", "failed", "removed"};

	*c = (struct candidate){.group = g, .node = map_node(m, g->node)};
	c->fault_set = c->node ? fault_set_of(c->node) : "";
	c->weight = (double)g->free_steps * ((double)g->raw_bytes / 20);
	if (!c->node || c->node->state != NODE_ACTIVE)
		snprintf(c->why, sizeof(c->why), "node %u is not active", g->node);
	else if (g->state != GROUP_ACTIVE)
		snprintf(c->why, sizeof(c->why), "the group is %s",
			 state[g->state < ARRAY_LEN(state) ? g->state : 0]);
	else if (excluded(q, g->id))
		snprintf(c->why, sizeof(c->why), "is being emptied, or kept empty: ashlar job list");
	else if (!(c->weight > 0))
		snprintf(c->why, sizeof(c->why), "full");
	else
		c->usable = true;
}

static int candidate_compare(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->usable != y->usable)
		return x->usable ? -1 : 1;
	if (x->score > y->score || x->score < y->score)
		return x->score > y->score ? -1 : 1;
	return x->group->id < y->group->id ? -1 : 1;
}

/* How many copies could be placed: one per fault set. */
static unsigned fault_sets(const struct candidate *c, size_t count)
{
	unsigned sets = 0;

	for (size_t i = 0; i < count; i++) {
		bool known = !c[i].usable;

		for (size_t k = 0; k < i && !known; k++)
			known = c[k].usable && !strcmp(c[k].fault_set, c[i].fault_set);
		sets += !known;
	}
	return sets;
}

/* Takes the best of each fault set, in order of score; fills in why the others were not taken. */
static void choose(struct candidate *c, size_t count, uint64_t object,
		   const struct placement_request *q, struct map_member *out)
{
	const struct candidate *taken[COPIES_MAX];
	unsigned n = 0;

	for (size_t i = 0; i < count; i++)
		c[i].score = c[i].usable ? score(object, c[i].group->id, c[i].weight) : 0;
	qsort(c, count, sizeof(*c), candidate_compare);
	for (size_t i = 0; i < count && c[i].usable; i++) {
		const struct candidate *same = NULL;

		for (unsigned k = 0; k < n; k++)
			if (!strcmp(taken[k]->fault_set, c[i].fault_set))
				same = taken[k];
		if (same) {
			snprintf(c[i].why, sizeof(c[i].why), "same fault set as group %u",
				 same->group->id);
		} else if (n == q->copies) {
			snprintf(c[i].why, sizeof(c[i].why),
				 "lower score: less free space, or the hash");
		} else {
			snprintf(c[i].why, sizeof(c[i].why), "chosen");
			out[n] = (struct map_member){.group = c[i].group->id,
						     .group_incarnation = c[i].group->incarnation};
			taken[n++] = &c[i];
		}
	}
	CHECK(n == q->copies);
	for (unsigned k = 1; k < n; k++) {
		if (taken[k]->node->id == q->prefer_node) {
			struct map_member first = out[0];

			out[0] = out[k];
			out[k] = first;
			break;
		}
	}
}

int placement_choose(const struct map *m, const struct placement_request *q, struct map_member *out,
		     struct placement_reason *reasons, unsigned *reason_count, unsigned reasons_max,
		     char why[256])
{
	size_t count;
	struct map_group **group = map_groups_sorted(m, &count);
	struct candidate *c = xcalloc(count + 1, sizeof(*c));
	unsigned sets, told = 0;
	int rc = 0;

	CHECK(q->copies >= 1 && q->copies <= COPIES_MAX);
	for (size_t i = 0; i < count; i++)
		candidate_init(&c[i], m, group[i], q);
	sets = fault_sets(c, count);
	why[0] = 0;
	if (sets < q->copies) {
		snprintf(why, 256,
			 "%u copies need %u fault sets (by default: nodes) with an active disk "
			 "group "
			 "that has space, and there are %u: add nodes or disk groups, or ask for "
			 "fewer copies",
			 q->copies, q->copies, sets);
		rc = -ERR_TOO_FEW;
	}
	for (uint32_t i = 0; !rc && i < q->objects; i++)
		choose(c, count, object_id(q->volume, q->first_object + i), q,
		       out + (size_t)i * q->copies);
	for (size_t i = 0; reasons && i < count && told < reasons_max; i++, told++) {
		reasons[told].group = c[i].group->id;
		snprintf(reasons[told].text, sizeof(reasons[told].text), "%s",
			 c[i].usable && rc ? "could be used" : c[i].why);
	}
	if (reason_count)
		*reason_count = told;
	free(group);
	free(c);
	return rc;
}

/* The group in `keep` that shares the candidate's fault set; 0: none. */
static uint16_t same_fault_set(const struct map *m, const struct candidate *c, const uint16_t *keep,
			       unsigned keep_count)
{
	for (unsigned i = 0; i < keep_count; i++) {
		const struct map_group *g = map_group(m, keep[i]);
		const struct map_node *n = g ? map_node(m, g->node) : NULL;

		if (n && !strcmp(fault_set_of(n), c->fault_set))
			return g->id;
	}
	return 0;
}

int placement_one(const struct map *m, uint64_t object, const uint16_t *keep, unsigned keep_count,
		  const char *(*refuse)(void *arg, const struct map_group *g), void *arg,
		  struct map_member *out, struct placement_reason *reasons, unsigned *reason_count,
		  unsigned reasons_max, char why[256])
{
	static const struct placement_request none;
	size_t count;
	struct map_group **group = map_groups_sorted(m, &count);
	const struct map_group *best = NULL;
	double highest = 0;
	unsigned told = 0;

	why[0] = 0;
	for (size_t i = 0; i < count; i++) {
		struct candidate c;
		const char *no = refuse ? refuse(arg, group[i]) : NULL;
		uint16_t same;

		candidate_init(&c, m, group[i], &none);
		same = same_fault_set(m, &c, keep, keep_count);
		if (c.usable && no)
			snprintf(c.why, sizeof(c.why), "%s", no);
		else if (c.usable && same)
			snprintf(c.why, sizeof(c.why), "same fault set as group %u", same);
		c.usable &= !no && !same;
		if (c.usable) {
			c.score = score(object, c.group->id, c.weight);
			if (!best || c.score > highest) {
				best = c.group;
				highest = c.score;
			}
		} else if (reasons && told < reasons_max && group[i]->state != GROUP_REMOVED) {
			reasons[told].group = group[i]->id;
			snprintf(reasons[told++].text, sizeof(reasons[0].text), "%s", c.why);
		}
	}
	free(group);
	if (reason_count)
		*reason_count = told;
	if (!best) {
		snprintf(why, 256, "no disk group can take one more copy");
		return -ERR_TOO_FEW;
	}
	*out = (struct map_member){.group = best->id, .group_incarnation = best->incarnation};
	return 0;
}
