/* SPDX-License-Identifier: Apache-2.0 */
/* How much CPU the destager gets (store.md §7): with the log below 0.30 only what nobody else
 * wants, then rising with the fill, above 0.60 as much as anyone. Decided and applied by the shards
 * and by those who wait for a request, never by the destager itself: when it is starved it could
 * not raise itself. Without the right to come back from idle it stays at nice 10. */
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/tier_internal.h"

#define AGE_S              60u
#define NICE_WITHOUT_RIGHT 10

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

/* On the destager. A thread that dies right after tries out whether one can come back. */
void pace_start(struct tier *t)
{
	pid_t tid = (pid_t)syscall(SYS_gettid);
	bool able = false;
	pthread_t probe;

	if (!pthread_create(&probe, NULL, probe_main, &able))
		pthread_join(probe, NULL);
	atomic_store(&t->pace_level, 0);
	if (able) {
		atomic_store(&t->pace_tid, tid);
		return;
	}
	log_warn("tier", "destage cannot be paced without CAP_SYS_NICE; it runs at a low priority",
		 "nice=%d", NICE_WITHOUT_RIGHT);
	(void)setpriority(PRIO_PROCESS, (id_t)tid, NICE_WITHOUT_RIGHT);
}

int pace_level(uint32_t fill_permyriad, bool aged, bool awaited)
{
	if (awaited || fill_permyriad >= FILL_FULL)
		return 0;
	if (fill_permyriad >= FILL_SHARE)
		return (int)(19 * (FILL_FULL - fill_permyriad) / (FILL_FULL - FILL_SHARE));
	return aged ? 19 : PACE_IDLE;
}

static uint32_t fill_max(const struct tier *t)
{
	uint32_t fill = 0;

	for (unsigned i = 0; i < t->shard_count; i++)
		fill = MAX(fill, atomic_load_explicit(&t->shards[i].fill, memory_order_relaxed));
	return fill;
}

uint32_t pace_fill(const struct tier *t)
{
	return fill_max(t);
}

/* Any thread but the destager. */
void pace_apply(struct tier *t)
{
	uint32_t oldest = atomic_load(&t->oldest_s);
	uint32_t now = oldest ? (uint32_t)(loop_mono_us(t->shards[0].loop) / 1000000) : 0;
	bool aged = atomic_load(&t->hurry) || (oldest && now >= oldest + AGE_S);
	pid_t tid = atomic_load_explicit(&t->pace_tid, memory_order_relaxed);
	int level = pace_level(fill_max(t), aged, atomic_load(&t->requests_open) != 0);

	if (!tid || atomic_load_explicit(&t->pace_level, memory_order_relaxed) == level)
		return;
	/* One at a time; who comes second leaves it to the next call. */
	if (atomic_flag_test_and_set(&t->pace_busy))
		return;
	if (level_set(tid, level))
		log_warn("tier", "destage cannot be paced", "level=%d errno=%d", level, errno);
	atomic_store(&t->pace_level, level);
	atomic_flag_clear(&t->pace_busy);
}

void tier_pace(struct tier *t, unsigned shard, uint32_t fill_permyriad, bool hurry)
{
	struct tier_shard *s = &t->shards[shard];

	if (fill_permyriad < FILL_SHARE &&
	    atomic_load_explicit(&s->fill, memory_order_relaxed) >= FILL_SHARE &&
	    atomic_load_explicit(&t->reduce_wanted, memory_order_relaxed))
		sem_post(&t->more_work);
	atomic_store_explicit(&s->fill, fill_permyriad, memory_order_relaxed);
	if (hurry != s->hurry) {
		s->hurry = hurry;
		atomic_fetch_add(&t->hurry, hurry ? 1u : -1u);
	}
	pace_apply(t);
}
