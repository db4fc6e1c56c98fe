/* SPDX-License-Identifier: Apache-2.0 */
/* libevent's door: turns, timers, posts, socket readiness. The outer loop is ours, because
 * libevent 2.1 has no hook before it sleeps: run what is ready, run the end-of-turn hooks, submit,
 * sleep. */
#include "node/loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/loop_impl.h"

static uint64_t clock_us(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t loop_mono_us(struct loop *l)
{
	return clock_us(CLOCK_MONOTONIC);
}

uint64_t loop_boot_us(struct loop *l)
{
	return clock_us(CLOCK_BOOTTIME);
}

uint64_t loop_turn_us(struct loop *l)
{
	return l->turn_us;
}

struct rng *loop_rng(struct loop *l)
{
	return &l->rng;
}

struct event_base *loop_event_base(struct loop *l)
{
	return l->base;
}

bool loop_is_current(const struct loop *l)
{
	return l->running && pthread_equal(l->thread, pthread_self());
}

/* ---- Posts ---- */

static void posts_run(struct loop *l)
{
	struct post *p = atomic_exchange(&l->posts, NULL), *fifo = NULL;

	while (p) {
		struct post *next = p->next;

		p->next = fifo;
		fifo = p;
		p = next;
	}
	while (fifo) {
		struct post *next = fifo->next;

		fifo->fn(fifo);
		fifo = next;
	}
}

static void on_post(evutil_socket_t fd, short what, void *arg)
{
	/* Edge-triggered: the counter need not be read. posts_run happens once per turn anyway. */
}

void loop_post(struct loop *l, struct post *p)
{
	struct post *head = atomic_load_explicit(&l->posts, memory_order_relaxed);

	do {
		p->next = head;
	} while (!atomic_compare_exchange_weak(&l->posts, &head, p));
	/* Only the first of a batch wakes the loop: it takes all at once. */
	if (!head) {
		uint64_t one = 1;

		if (write(l->post_fd, &one, sizeof(one)) < 0)
			CHECK(errno == EAGAIN); /* the counter is full: it is awake */
	}
}

/* ---- Turns ---- */

void turn_end_init(struct turn_end *t, void (*fn)(struct turn_end *t))
{
	list_init(&t->link);
	t->fn = fn;
}

void turn_end_arm(struct loop *l, struct turn_end *t, enum turn_phase phase)
{
	if (list_empty(&t->link))
		list_push_back(&l->turn_end[phase], &t->link);
}

void turn_end_disarm(struct turn_end *t)
{
	list_del(&t->link);
}

static void turn_end_run(struct loop *l)
{
	for (int phase = 0; phase < TURN_PHASES; phase++) {
		struct list *n;

		while ((n = list_pop_front(&l->turn_end[phase]))) {
			struct turn_end *t = list_entry(n, struct turn_end, link);

			t->fn(t);
		}
	}
}

/* The turn's time is read by whichever comes first after the sleep. */
static void turn_begin(struct loop *l)
{
	if (l->turn_begun)
		return;
	l->turn_begun = true;
	l->turn_us = clock_us(CLOCK_MONOTONIC);
}

static bool turn_work_left(struct loop *l)
{
	for (int phase = 0; phase < TURN_PHASES; phase++)
		if (!list_empty(&l->turn_end[phase]))
			return true;
	return atomic_load(&l->posts) != NULL;
}

void loop_run(struct loop *l)
{
	bool again = true;

	l->thread = pthread_self();
	l->running = true;
	while (!atomic_load(&l->stop)) {
		int rc;

		l->turn_begun = false;
		rc = event_base_loop(l->base, EVLOOP_ONCE | (again ? EVLOOP_NONBLOCK : 0));
		CHECK(rc >= 0);
		turn_begin(l);
		posts_run(l);
		again = ring_reap(l);
		turn_end_run(l);
		ring_submit(l);
		/* What completed while it was submitted (page cache, tmpfs) is a turn of its own.
		 */
		again |= ring_reap(l);
		again |= turn_work_left(l);
	}
	l->running = false;
}

static void stop_fn(struct post *p)
{
	free(p);
}

void loop_stop(struct loop *l)
{
	struct post *p = xcalloc(1, sizeof(*p));

	atomic_store(&l->stop, true);
	p->fn = stop_fn;
	loop_post(l, p);
}

/* ---- Life ---- */

struct loop *loop_create(const char *name, unsigned ring_entries)
{
	struct loop *l = xcalloc(1, sizeof(*l));
	struct event_config *cfg = event_config_new();
	int rc;

	strncpy(l->name, name, sizeof(l->name) - 1);
	rng_seed_system(&l->rng);
	for (int i = 0; i < TURN_PHASES; i++)
		list_init(&l->turn_end[i]);
	CHECK(cfg);
	event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_NO_CACHE_TIME);
	event_config_require_features(cfg, EV_FEATURE_ET);
	l->base = event_base_new_with_config(cfg);
	event_config_free(cfg);
	CHECK(l->base);
	l->post_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(l->post_fd >= 0);
	l->post_event = event_new(l->base, l->post_fd, EV_READ | EV_PERSIST | EV_ET, on_post, l);
	CHECK(l->post_event && event_add(l->post_event, NULL) == 0);
	rc = ring_start(l, ring_entries);
	if (rc < 0) {
		log_error("loop",
			  "io_uring is not available: a kernel ≥ 5.10 with io_uring enabled is "
			  "needed "
			  "(sysctl kernel.io_uring_disabled=0, memlock limit)",
			  "loop=%s error=%s", name, err_name(rc));
		event_free(l->post_event);
		event_base_free(l->base);
		close(l->post_fd);
		free(l);
		return NULL;
	}
	l->turn_us = clock_us(CLOCK_MONOTONIC);
	return l;
}

void loop_destroy(struct loop *l)
{
	posts_run(l);
	ring_stop(l);
	event_free(l->post_event);
	close(l->post_fd);
	event_base_free(l->base);
	free(l);
}

static void *loop_thread(void *arg)
{
	struct loop *l = arg;

	pthread_setname_np(pthread_self(), l->name);
	loop_run(l);
	return NULL;
}

int loop_spawn(struct loop *l)
{
	int rc = pthread_create(&l->thread, NULL, loop_thread, l);

	l->spawned = rc == 0;
	return -rc;
}

void loop_join(struct loop *l)
{
	if (l->spawned)
		CHECK(pthread_join(l->thread, NULL) == 0);
	l->spawned = false;
}

/* ---- Timers ---- */

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct timer *t = arg;

	turn_begin(t->loop);

	t->armed = false;
	t->fn(t);
}

void timer_init(struct timer *t, struct loop *l, void (*fn)(struct timer *t))
{
	*t = (struct timer){.loop = l, .fn = fn};
	t->impl = evtimer_new(l->base, on_timer, t);
	CHECK(t->impl);
}

void timer_set(struct timer *t, uint64_t delay_us)
{
	struct timeval tv = {.tv_sec = (time_t)(delay_us / 1000000),
			     .tv_usec = (suseconds_t)(delay_us % 1000000)};

	CHECK(evtimer_add(t->impl, &tv) == 0);
	t->armed = true;
}

void timer_cancel(struct timer *t)
{
	if (t->armed)
		evtimer_del(t->impl);
	t->armed = false;
}

void timer_fini(struct timer *t)
{
	if (t->impl)
		event_free(t->impl);
	t->impl = NULL;
	t->armed = false;
}

/* ---- Socket readiness ---- */

static void on_fd(evutil_socket_t fd, short what, void *arg)
{
	struct fdwatch *w = arg;
	unsigned events = ((what & EV_READ) ? FD_READ : 0) | ((what & EV_WRITE) ? FD_WRITE : 0);

	turn_begin(w->loop);
	events &= w->wanted;
	if (events)
		w->fn(w, events);
}

void fdwatch_init(struct fdwatch *w, struct loop *l, int fd, void (*fn)(struct fdwatch *, unsigned))
{
	*w = (struct fdwatch){.loop = l, .fn = fn, .fd = fd};
	w->impl_read = event_new(l->base, fd, EV_READ | EV_PERSIST, on_fd, w);
	w->impl_write = event_new(l->base, fd, EV_WRITE | EV_PERSIST, on_fd, w);
	CHECK(w->impl_read && w->impl_write);
}

static void fdwatch_switch(struct event *e, bool was, bool is)
{
	if (is && !was)
		CHECK(event_add(e, NULL) == 0);
	else if (was && !is)
		event_del(e);
}

void fdwatch_want(struct fdwatch *w, unsigned events)
{
	fdwatch_switch(w->impl_read, w->wanted & FD_READ, events & FD_READ);
	fdwatch_switch(w->impl_write, w->wanted & FD_WRITE, events & FD_WRITE);
	w->wanted = events;
}

void fdwatch_fini(struct fdwatch *w)
{
	if (w->impl_read)
		event_free(w->impl_read);
	if (w->impl_write)
		event_free(w->impl_write);
	w->impl_read = w->impl_write = NULL;
	w->wanted = 0;
}
