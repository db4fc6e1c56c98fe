/* SPDX-License-Identifier: Apache-2.0 */
/* Credits: how many bytes a peer may send into the log of a disk group here without asking (L4). Both ends
 * count from zero on each connection; what a window promises is reserved in the store until it is spent or
 * comes back. */
#include "cluster/replica_impl.h"

#define CREDIT_WINDOW_MIN (4u << 20)
#define CREDIT_WINDOW_MAX (64u << 20)
#define CREDIT_LOW        ((uint64_t)RECORD_BLOCKS_MAX * STORE_BYTES_PER_BLOCK * 2)

struct credit *credit_find(struct credit *c, unsigned *count, uint16_t group)
{
	for (unsigned i = 0; i < *count; i++)
		if (c[i].group == group)
			return &c[i];
	if (*count == SESSION_CREDITS)
		return NULL;
	c[*count] = (struct credit){.group = group, .window = CREDIT_WINDOW_MIN};
	return &c[(*count)++];
}

/* What the peer may send without asking. Kept at least two of the largest writes ahead of it. */
void session_credit_top_up(struct session *s, struct group *g)
{
	struct credit *c = credit_find(s->ours, &s->our_count, g->id);
	uint64_t left, want, got;

	if (!c || g->failed || !s->conn)
		return;
	left = credit_left(c);
	if (left >= MAX(c->window / 2, CREDIT_LOW))
		return;
	if (left < c->window / 4 && c->granted && c->window < CREDIT_WINDOW_MAX)
		c->window *= 2;
	want = MAX(c->window, CREDIT_LOW * 2) - left;
	got = store_grant(g->store, want);
	c->granted += got;
	s->credits_changed = true; /* "still full" is an answer too */
	c->full = !got && store_is_full(g->store);
	if (got < want) /* little is left: nobody gets more ahead of what it writes than it must */
		c->window = CREDIT_WINDOW_MIN;
	if (s->credits_changed)
		replica_arm(s->r);
}

/* The group was opened anew in this process: what peers hold of its windows still counts. */
void session_credits_keep(struct replicator *r, struct group *g)
{
	struct session *s;

	list_for_each(s, &r->sessions, link)
	{
		for (unsigned i = 0; i < s->our_count; i++) {
			uint64_t left = credit_left(&s->ours[i]), got = 1;

			for (; s->ours[i].group == g->id && left && got; left -= got)
				got = store_grant(g->store, left);
		}
	}
}

/* How much of it the store had granted. What is sent again after a session was lost is not asked for, and may
 * be more (the reserve is for that): it is no debt that later grants would have to pay. */
static uint64_t credit_take(struct credit *c, uint64_t bytes)
{
	uint64_t granted = MIN(bytes, credit_left(c));

	c->spent += bytes;
	c->granted = MAX(c->granted, c->spent);
	return granted;
}

void session_credit_spend(struct session *s, struct group *g, uint64_t bytes)
{
	struct credit *c = credit_find(s->ours, &s->our_count, g->id);

	if (!c)
		return;
	store_grant_spend(g->store, credit_take(c, bytes));
	session_credit_top_up(s, g);
}

/* The same, of what was not taken: the peer counted it when it sent it. */
void session_credit_lost(struct session *s, uint16_t group, uint64_t bytes)
{
	struct credit *c = NULL;
	struct group *g;

	for (unsigned i = 0; i < s->our_count; i++)
		if (s->ours[i].group == group || (!group && s->our_count == 1))
			c = &s->ours[i];
	if (!c) { /* both sides count from zero on a new connection */
		if (s->our_count)
			session_fail(s, -ERR_STALE);
		return;
	}
	bytes = credit_take(c, bytes);
	g = replica_group(s->r, c->group);
	if (!g)
		return;
	store_grant_return(g->store, bytes);
	session_credit_top_up(s, g);
}
