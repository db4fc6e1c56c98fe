/* SPDX-License-Identifier: Apache-2.0 */
/* The rate goes up while operations that end beside copies are about as fast as those in the quiet
 * windows, at the mean and at the 99th percentile, and down when they are not. Too few operations
 * to compare are nobody who could be disturbed. */
#include "cluster/governor.h"

#define RATE_MAX    (8ull << 30)
#define PAGE_MIN    4096u
#define PAGE_GUESS  65536u
#define SAMPLES_MIN 24.0 /* on each side */
#define BURST_US    40000u

void governor_init(struct governor *g, uint64_t now_us)
{
	*g = (struct governor){.refill_us = now_us, .page_cost = PAGE_GUESS, .idle = true};
	governor_limits(g, 4u << 20, 0);
	g->rate = g->floor;
}

static void rate_set(struct governor *g, double rate)
{
	uint64_t most = MAX(g->limit ? MIN(g->limit, RATE_MAX) : RATE_MAX, PAGE_MIN);

	g->rate = (uint64_t)MIN(rate, (double)most);
	g->rate = MAX(g->rate, MIN(g->floor, most));
}

void governor_limits(struct governor *g, uint64_t floor, uint64_t limit)
{
	g->floor = MAX(floor, PAGE_MIN);
	g->limit = limit;
	rate_set(g, (double)g->rate);
}

static unsigned bucket_of(uint64_t us)
{
	unsigned octave;

	if (us < 8)
		return (unsigned)us;
	octave = 63u - (unsigned)__builtin_clzll(us);
	return MIN((octave - 2) * 8 + (unsigned)(us >> (octave - 3) & 7), GOVERNOR_BUCKETS - 1);
}

/* The middle of what a bucket holds, in µs. */
static double bucket_us(unsigned b)
{
	if (b < 8)
		return b;
	return (double)((8ull + b % 8) << (b / 8 - 1)) * 1.06;
}

void governor_note(struct governor *g, uint64_t latency_us)
{
	struct governor_side *s = g->quiet ? &g->without : &g->with;

	g->noted++;
	if (!g->settled)
		return;
	s->count++;
	s->sum_us += (double)latency_us;
	s->bucket[bucket_of(latency_us)]++;
}

static double percentile(const struct governor_side *s, double share)
{
	double left = s->count * (1 - share);

	for (unsigned b = GOVERNOR_BUCKETS; b-- > 0;) {
		left -= (double)s->bucket[b];
		if (left <= 0)
			return bucket_us(b);
	}
	return 0;
}

static void decay(struct governor_side *s)
{
	s->count *= 0.6;
	s->sum_us *= 0.6;
	for (unsigned b = 0; b < GOVERNOR_BUCKETS; b++)
		s->bucket[b] *= 0.6f;
}

/* Once a cycle, at its start. */
static void judge(struct governor *g)
{
	const struct governor_side *with = &g->with, *without = &g->without;
	double mean, tail, rate = (double)g->rate,
			   actual = (double)(g->copied - g->copied_at_cycle);

	g->idle = g->noted < 8;
	if (!g->idle && !g->refused) /* more is allowed than there is: judge what is copied */
		rate = MIN(rate, MAX(actual * 1.25, (double)g->floor));
	if (g->idle) {
		rate_set(g, rate * 2);
		g->cost_permille = 0;
	} else if (with->count < SAMPLES_MIN || without->count < SAMPLES_MIN) {
		rate_set(g, rate * 1.1);
	} else {
		mean = (with->sum_us / with->count) / MAX(without->sum_us / without->count, 1.0);
		tail = percentile(with, 0.99) / MAX(percentile(without, 0.99), 1.0);
		g->cost_permille = mean > 1 ? (unsigned)((mean - 1) * 1000) : 0;
		if (mean > 1.30 || tail > 2.0)
			rate_set(g, rate * 0.5);
		else if (mean > 1.12 || tail > 1.4)
			rate_set(g, rate * 0.8);
		else if (mean < 1.08 && tail < 1.3 &&
			 g->refused) /* only what is used can be judged */
			rate_set(g, rate * 1.25);
	}
	decay(&g->with);
	decay(&g->without);
	g->copied_rate = (g->copied_rate + (g->copied - g->copied_at_cycle)) / 2;
	g->copied_at_cycle = g->copied;
	g->noted = g->refused = 0;
}

void governor_tick(struct governor *g, uint64_t now_us, uint64_t wall_us)
{
	uint64_t cycle = wall_us / GOVERNOR_CYCLE_US, at = wall_us % GOVERNOR_CYCLE_US;
	int64_t burst = (int64_t)MAX(g->rate * BURST_US / 1000000, PAGE_MIN);
	/* The quiet window's share is copied in the rest of the cycle. */
	uint64_t rate =
		g->idle ? g->rate
			: g->rate * GOVERNOR_CYCLE_US / (GOVERNOR_CYCLE_US - GOVERNOR_QUIET_US);
	uint64_t passed = MIN(now_us - g->refill_us, 1000000u);

	if (cycle != g->cycle) {
		g->cycle = cycle;
		judge(g);
	}
	g->quiet = at < GOVERNOR_QUIET_US && !g->idle;
	g->settled = at >= (at < GOVERNOR_QUIET_US ? 0 : GOVERNOR_QUIET_US) + GOVERNOR_SETTLE_US;
	if (g->quiet) {
		g->refill_us = now_us;
	} else if (rate * passed >= 1000000) { /* less is not lost: it stays in refill_us */
		g->tokens = MIN(g->tokens + (int64_t)(rate * passed / 1000000), burst);
		g->refill_us = now_us;
	}
}

uint64_t governor_may_copy(struct governor *g, bool target_fills)
{
	uint64_t rate = g->rate;

	if (g->quiet)
		return GOVERNOR_QUIET_US / 3;
	g->refused++;
	if (g->tokens <= 0)
		return MAX((uint64_t)(-g->tokens) * 1000000 / rate, 1000u);
	/* A target whose log fills gets the floor: its own clients come first. */
	if (target_fills)
		g->tokens -= (int64_t)((double)g->page_cost *
				       ((double)rate / (double)MIN(g->floor, rate) - 1));
	g->tokens -= (int64_t)g->page_cost;
	g->refused--;
	return 0;
}

void governor_spent(struct governor *g, uint64_t bytes)
{
	bytes = MAX(bytes, PAGE_MIN);
	g->tokens += (int64_t)g->page_cost - (int64_t)bytes;
	g->page_cost = (g->page_cost * 7 + bytes) / 8;
	g->copied += bytes;
}
