/* SPDX-License-Identifier: Apache-2.0 */
/* When the destager works, and how much CPU it and its threads get. With the log below
 * 0.30 it rests while clients write, unless somebody waits or records are old: on busy cores a low
 * priority would not keep it from taking CPU from them, since priorities count within one service
 * only. When it works, then at nice 10 below 0.30, from there on rising with the fill, above 0.60 as
 * anyone; never lower, since a reader may wait for a lock of the database that a starved destager
 * holds. Decided and applied by the shards and by those who wait for a request, never by the destager
 * itself: when it is starved it could not raise itself. Without the right to come back from nice 10
 * it stays there. */
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/tier_internal.h"

#define NICE_LOW 10

static int level_set(pid_t tid, int level)
{
	return setpriority(PRIO_PROCESS, (id_t)tid, level);
}

/* On the first of them. */
static void try_out(struct tier *t, pid_t tid)
{
	t->pace.tried = true;
	t->pace.able = !level_set(tid, NICE_LOW) && !level_set(tid, 0);
	if (!t->pace.able)
		log_warn("tier",
			 "destage cannot be paced without CAP_SYS_NICE; it runs at a low priority",
			 "nice=%d", NICE_LOW);
}

void pace_join(struct tier *t)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);

	pthread_mutex_lock(&t->pace.lock);
	if (!t->pace.tried)
		try_out(t, tid);
	CHECK(t->pace.count < PACED_MAX);
	t->pace.threads[t->pace.count++] = tid;
	(void)level_set(tid, t->pace.able ? atomic_load(&t->pace.level) : NICE_LOW);
	pthread_mutex_unlock(&t->pace.lock);
}

bool pace_rest(uint32_t fill_permyriad, bool busy, bool hurry)
{
	return fill_permyriad < FILL_SHARE && busy && !hurry;
}

int pace_level(uint32_t fill_permyriad, bool awaited)
{
	if (awaited || fill_permyriad >= FILL_FULL)
		return 0;
	if (fill_permyriad < FILL_SHARE)
		return NICE_LOW;
	return (int)(NICE_LOW * (FILL_FULL - fill_permyriad) / (FILL_FULL - FILL_SHARE));
}

uint32_t pace_fill(const struct tier *t)
{
	uint32_t fill = 0;

	for (unsigned i = 0; i < t->shard_count; i++)
		fill = MAX(fill, atomic_load_explicit(&t->shards[i].fill, memory_order_relaxed));
	return fill;
}

bool pace_rests(const struct tier *t)
{
	return pace_rest(pace_fill(t), atomic_load(&t->writing) != 0, atomic_load(&t->hurry) != 0);
}

/* The lock is held. */
static void apply(struct tier *t, int level)
{
	int rc = 0;

	for (unsigned i = 0; i < t->pace.count && t->pace.able; i++)
		rc |= level_set(t->pace.threads[i], level);
	if (rc)
		log_warn("tier", "destage cannot be paced", "level=%d errno=%d", level, errno);
	atomic_store(&t->pace.level, level);
}

/* Any thread but those paced. */
void pace_apply(struct tier *t)
{
	int level = pace_level(pace_fill(t), atomic_load(&t->requests_open) != 0);

	if (atomic_load_explicit(&t->pace.level, memory_order_relaxed) == level)
		return;
	/* One at a time; who comes second leaves it to the next call. */
	if (pthread_mutex_trylock(&t->pace.lock))
		return;
	apply(t, level);
	pthread_mutex_unlock(&t->pace.lock);
}

void pace_stop(struct tier *t)
{
	/* Somebody waits from here on, for good: nobody lowers it again. */
	atomic_fetch_add(&t->requests_open, 1);
	pthread_mutex_lock(&t->pace.lock);
	apply(t, 0);
	t->pace.count = 0;
	pthread_mutex_unlock(&t->pace.lock);
}

static void count(_Atomic unsigned *shards, bool *mine, bool now)
{
	if (*mine != now)
		atomic_fetch_add(shards, now ? 1u : -1u);
	*mine = now;
}

bool tier_pace(struct tier *t, unsigned shard, uint32_t fill_permyriad, bool writing, bool hurry)
{
	struct tier_shard *s = &t->shards[shard];
	uint32_t before = atomic_exchange_explicit(&s->fill, fill_permyriad, memory_order_relaxed);
	bool stopped = s->writing && !writing, rests;

	/* These first: who wakes up looks at them, and sleeps again if they are the old ones. */
	count(&t->writing, &s->writing, writing);
	count(&t->hurry, &s->hurry, hurry);
	rests = pace_rests(t);
	if (stopped || (((fill_permyriad < FILL_SHARE && before >= FILL_SHARE) ||
			 (fill_permyriad < FILL_FULL && before >= FILL_FULL)) &&
			atomic_load(&t->reduce_wanted)))
		sem_post(&t->more_work);
	pace_apply(t);
	return rests;
}
