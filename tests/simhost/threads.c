/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, mutexes, conditions, semaphores, clocks and random numbers of virtual processes: what
 * product code asks of libc comes here, by the linker's --wrap. Outside of a process it goes on
 * to libc. The state of an object lies in its own first bytes, all zero at first. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/simhost/impl.h"

#define REALTIME_START_US 1796083200000000ull /* what the clock on the wall says at time 0 */

#define WRAP(type, name, ...)                                                                      \
	type __real_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__);                                                           \
	type __wrap_##name(__VA_ARGS__)

/* ---- Threads ------------------------------------------------------------------------------------
 */

WRAP(int, pthread_create, pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *),
     void *arg)
{
	if (!fiber_current())
		return __real_pthread_create(out, attr, fn, arg);
	*out = (pthread_t)fiber_spawn(vproc_current(), "thread", fn, arg);
	fiber_crossing();
	return 0;
}

WRAP(int, pthread_join, pthread_t t, void **result)
{
	struct fiber *f = (struct fiber *)t, *me = fiber_current();

	if (!me)
		return __real_pthread_join(t, result);
	me->on = f;
	while (!f->ended)
		fiber_block("join", FOREVER);
	me->on = NULL;
	if (result)
		*result = f->result;
	return 0;
}

WRAP(pthread_t, pthread_self, void)
{
	return fiber_current() ? (pthread_t)fiber_current() : __real_pthread_self();
}

WRAP(int, pthread_setname_np, pthread_t t, const char *name)
{
	struct fiber *f = (struct fiber *)t;

	if (!fiber_current())
		return __real_pthread_setname_np(t, name);
	memset(f->name, 0, sizeof(f->name));
	strncpy(f->name, name, sizeof(f->name) - 1);
	return 0;
}

WRAP(int, setpriority, __priority_which_t which, id_t who, int value)
{
	return fiber_current() ? 0 : __real_setpriority(which, who, value);
}

WRAP(int, sched_yield, void)
{
	if (!fiber_current())
		return __real_sched_yield();
	fiber_sleep(draw(1, 10));
	return 0;
}

WRAP(int, usleep, useconds_t us)
{
	if (!fiber_current())
		return __real_usleep(us);
	fiber_sleep(us);
	return 0;
}

/* ---- Waiting for one another --------------------------------------------------------------------
 */

static void wait_on(const void *what, const char *why)
{
	static uint64_t order;
	struct fiber *f = fiber_current();

	f->on = what;
	f->on_since = ++order;
	while (f->on)
		fiber_block(why, FOREVER);
}

/* The one that waits longest, or all. */
static void let_go(const void *what, bool all)
{
	struct fiber *f, *best;
	struct vproc *p = vproc_current();

	do {
		best = NULL;
		list_for_each(f, &p->fibers,
			      link) if (f->on == what && (!best || f->on_since < best->on_since))
			best = f;
		if (best) {
			best->on = NULL;
			fiber_wake(best);
		}
	} while (all && best);
}

struct mutex {
	struct fiber *owner;
};
_Static_assert(sizeof(struct mutex) <= sizeof(pthread_mutex_t), "it lies in it");

WRAP(int, pthread_mutex_init, pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
	if (!fiber_current())
		return __real_pthread_mutex_init(m, attr);
	memset(m, 0, sizeof(*m));
	return 0;
}

WRAP(int, pthread_mutex_destroy, pthread_mutex_t *m)
{
	if (!fiber_current())
		return __real_pthread_mutex_destroy(m);
	CHECK(!((struct mutex *)m)->owner);
	return 0;
}

WRAP(int, pthread_mutex_lock, pthread_mutex_t *m)
{
	struct mutex *x = (struct mutex *)m;

	if (!fiber_current())
		return __real_pthread_mutex_lock(m);
	fiber_crossing();
	while (x->owner) {
		CHECK(x->owner != fiber_current());
		wait_on(m, "mutex");
	}
	x->owner = fiber_current();
	return 0;
}

WRAP(int, pthread_mutex_trylock, pthread_mutex_t *m)
{
	struct mutex *x = (struct mutex *)m;

	if (!fiber_current())
		return __real_pthread_mutex_trylock(m);
	fiber_crossing();
	if (x->owner)
		return EBUSY;
	x->owner = fiber_current();
	return 0;
}

WRAP(int, pthread_mutex_unlock, pthread_mutex_t *m)
{
	struct mutex *x = (struct mutex *)m;

	if (!fiber_current())
		return __real_pthread_mutex_unlock(m);
	CHECK(x->owner == fiber_current());
	x->owner = NULL;
	let_go(m, false);
	fiber_crossing();
	return 0;
}

WRAP(int, pthread_cond_init, pthread_cond_t *c, const pthread_condattr_t *attr)
{
	return fiber_current() ? 0 : __real_pthread_cond_init(c, attr);
}

WRAP(int, pthread_cond_destroy, pthread_cond_t *c)
{
	return fiber_current() ? 0 : __real_pthread_cond_destroy(c);
}

WRAP(int, pthread_cond_wait, pthread_cond_t *c, pthread_mutex_t *m)
{
	struct mutex *x = (struct mutex *)m;

	if (!fiber_current())
		return __real_pthread_cond_wait(c, m);
	CHECK(x->owner == fiber_current());
	x->owner = NULL;
	let_go(m, false);
	wait_on(c, "condition");
	return __wrap_pthread_mutex_lock(m);
}

WRAP(int, pthread_cond_signal, pthread_cond_t *c)
{
	if (!fiber_current())
		return __real_pthread_cond_signal(c);
	let_go(c, false);
	fiber_crossing();
	return 0;
}

WRAP(int, pthread_cond_broadcast, pthread_cond_t *c)
{
	if (!fiber_current())
		return __real_pthread_cond_broadcast(c);
	let_go(c, true);
	fiber_crossing();
	return 0;
}

struct semaphore {
	unsigned value;
};
_Static_assert(sizeof(struct semaphore) <= sizeof(sem_t), "it lies in it");

WRAP(int, sem_init, sem_t *s, int shared, unsigned value)
{
	if (!fiber_current())
		return __real_sem_init(s, shared, value);
	((struct semaphore *)s)->value = value;
	return 0;
}

WRAP(int, sem_destroy, sem_t *s)
{
	return fiber_current() ? 0 : __real_sem_destroy(s);
}

WRAP(int, sem_wait, sem_t *s)
{
	struct semaphore *x = (struct semaphore *)s;

	if (!fiber_current())
		return __real_sem_wait(s);
	fiber_crossing();
	while (!x->value)
		wait_on(s, "semaphore");
	x->value--;
	return 0;
}

WRAP(int, sem_clockwait, sem_t *s, clockid_t id, const struct timespec *ts)
{
	struct semaphore *x = (struct semaphore *)s;
	uint64_t end = (uint64_t)ts->tv_sec * 1000000 + (uint64_t)ts->tv_nsec / 1000, now;
	struct fiber *f = fiber_current();

	if (!f)
		return __real_sem_clockwait(s, id, ts);
	fiber_crossing();
	while (!x->value) {
		now = vhost_clock_us(vproc_current()->host);
		if (now >= end) {
			errno = ETIMEDOUT;
			return -1;
		}
		f->on = s;
		fiber_block("semaphore", simhost_now_us() + end - now + 1);
		f->on = NULL;
	}
	x->value--;
	return 0;
}

WRAP(int, sem_post, sem_t *s)
{
	if (!fiber_current())
		return __real_sem_post(s);
	((struct semaphore *)s)->value++;
	let_go(s, false);
	fiber_crossing();
	return 0;
}

/* ---- Time and chance ----------------------------------------------------------------------------
 */

WRAP(int, clock_gettime, clockid_t id, struct timespec *ts)
{
	uint64_t us;

	if (!fiber_current())
		return __real_clock_gettime(id, ts);
	fiber_clock();
	us = vhost_clock_us(vproc_current()->host);
	if (id == CLOCK_REALTIME)
		us += REALTIME_START_US;
	*ts = (struct timespec){.tv_sec = (time_t)(us / 1000000),
				.tv_nsec = (long)(us % 1000000 * 1000)};
	return 0;
}

WRAP(ssize_t, getrandom, void *out, size_t n, unsigned flags)
{
	if (!fiber_current())
		return __real_getrandom(out, n, flags);
	rng_fill(&vproc_current()->host->rng, out, n);
	return (ssize_t)n;
}

/* A history is the same on every machine. */
WRAP(long, sysconf, int name)
{
	if (!fiber_current() || (name != _SC_NPROCESSORS_ONLN && name != _SC_NPROCESSORS_CONF))
		return __real_sysconf(name);
	return vproc_current()->host->cores;
}
