/* SPDX-License-Identifier: Apache-2.0 */
/* How much CPU the destager and its threads get (store.md §7): with the log below 0.30 only what
 * nobody else wants, then rising with the fill, above 0.60 as much as anyone. Never less than nice
 * 10 while map pages are looked up in the database, which may wait for a lock that a starved
 * destager holds, and while a flush waits or records are old. Decided and applied by the shards and
 * by those who wait for a request, never by the destager itself: when it is starved it could not
 * raise itself. Without the right to come back from idle it stays at nice 10. */
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/tier_internal.h"

#define AGE_S    60u
#define NICE_LOW 10

static int level_set(pid_t tid, int level)
{
	struct sched_param none = {0};

	if (level == PACE_IDLE)
		return sched_setscheduler(tid, SCHED_IDLE, &none);
	if (sched_setscheduler(tid, SCHED_OTHER, &none))
		return -1;
	return setpriority(PRIO_PROCESS, (id_t)tid, level);
}

static void *probe_main(void *arg)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);

	*(bool *)arg = !level_set(tid, PACE_IDLE) && !level_set(tid, 19) && !level_set(tid, 0);
	return NULL;
}

/* A thread that dies right after tries out whether one can come back. */
static void try_out(struct tier *t)
{
	pthread_t probe;

	t->pace.tried = true;
	if (!pthread_create(&probe, NULL, probe_main, &t->pace.able))
		pthread_join(probe, NULL);
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
		try_out(t);
	CHECK(t->pace.count < PACED_MAX);
	t->pace.threads[t->pace.count++] = tid;
	(void)level_set(tid, t->pace.able ? atomic_load(&t->pace.level) : NICE_LOW);
	pthread_mutex_unlock(&t->pace.lock);
}

int pace_level(uint32_t fill_permyriad, bool aged, bool awaited, bool lookups)
{
	int level = PACE_IDLE;

	if (awaited || fill_permyriad >= FILL_FULL)
		return 0;
	if (fill_permyriad >= FILL_SHARE)
		level = (int)(19 * (FILL_FULL - fill_permyriad) / (FILL_FULL - FILL_SHARE));
	return lookups || aged ? MIN(level, NICE_LOW) : level;
}

static uint32_t fill_max(const struct tier *t)
{
	uint32_t fill = 0;

	for (unsigned i = 0; i < t->shard_count; i++)
		fill = MAX(fill, atomic_load_explicit(&t->shards[i].fill, memory_order_relaxed));
	return fill;
}

static uint32_t lookup_last(const struct tier *t)
{
	uint32_t last = 0;

	for (unsigned i = 0; i < t->shard_count; i++)
		last = MAX(last,
			   atomic_load_explicit(&t->shards[i].lookup_s, memory_order_relaxed));
	return last;
}

void pace_lookup(struct tier_shard *s)
{
	uint32_t now = (uint32_t)(loop_turn_us(s->loop) / 1000000);

	if (atomic_load_explicit(&s->lookup_s, memory_order_relaxed) == now)
		return;
	atomic_store_explicit(&s->lookup_s, now, memory_order_relaxed);
	pace_apply(s->t);
}

uint32_t pace_fill(const struct tier *t)
{
	return fill_max(t);
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
	uint32_t oldest = atomic_load(&t->oldest_s), lookup = lookup_last(t);
	uint32_t now = oldest || lookup ? (uint32_t)(loop_mono_us(t->shards[0].loop) / 1000000) : 0;
	bool aged = atomic_load(&t->hurry) || (oldest && now >= oldest + AGE_S);
	int level = pace_level(fill_max(t), aged, atomic_load(&t->requests_open) != 0,
			       lookup && now <= lookup + 1);

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

void tier_pace(struct tier *t, unsigned shard, uint32_t fill_permyriad, bool hurry)
{
	struct tier_shard *s = &t->shards[shard];
	uint32_t before = atomic_exchange_explicit(&s->fill, fill_permyriad, memory_order_relaxed);

	/* The fill first: who wakes up looks at it, and sleeps again if it is the old one. */
	if (((fill_permyriad < FILL_SHARE && before >= FILL_SHARE) ||
	     (fill_permyriad < FILL_FULL && before >= FILL_FULL)) &&
	    atomic_load(&t->reduce_wanted))
		sem_post(&t->more_work);
	if (hurry != s->hurry) {
		s->hurry = hurry;
		atomic_fetch_add(&t->hurry, hurry ? 1u : -1u);
	}
	pace_apply(t);
}
