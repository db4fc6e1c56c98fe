/* SPDX-License-Identifier: Apache-2.0 */
/* node/loop/loop.h over virtual time: turns in the product's order (timers, posts, completions,
 * the end of the turn in its phases, one submission). A loop is run by a fiber. */
#include "node/loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simhost/impl.h"

struct loop {
	char name[16];
	struct rng rng;
	struct fiber *fiber; /* that runs it, or is to */
	struct vhost *host;
	uint64_t turn_us;
	bool stop, running;
	struct list turn_end[TURN_PHASES];
	struct list timers; /* struct loop_timer, by time */
	struct post *posts, **posts_last;
	struct list watches;         /* of sockets.c: something may be ready */
	struct list io_new, io_done; /* struct io: to be submitted; ended, rc in done */
	unsigned io_inflight;
	uint64_t busy_from, turns; /* since then */
};
struct loop_timer {
	struct list link;
	struct timer *timer;
	uint64_t at;
};

enum io_op { READ_OP, WRITE_OP, FSYNC_OP };

struct loop *loop_create(const char *name, unsigned ring_entries)
{
	struct loop *l = xcalloc(1, sizeof(*l));

	CHECK(fiber_current());
	strncpy(l->name, name, sizeof(l->name) - 1);
	rng_seed_system(&l->rng);
	l->host = vproc_current()->host;
	l->posts_last = &l->posts;
	for (int i = 0; i < TURN_PHASES; i++)
		list_init(&l->turn_end[i]);
	list_init(&l->timers);
	list_init(&l->watches);
	list_init(&l->io_new);
	list_init(&l->io_done);
	l->turn_us = loop_mono_us(l);
	return l;
}

static void posts_run(struct loop *l)
{
	struct post *p = l->posts, *next;

	l->posts = NULL;
	l->posts_last = &l->posts;
	for (; p; p = next) {
		next = p->next;
		p->fn(p);
	}
}

void loop_destroy(struct loop *l)
{
	posts_run(l);
	CHECK(l->io_inflight == 0);
	free(l);
}

uint64_t loop_mono_us(struct loop *l)
{
	fiber_clock();
	return vhost_clock_us(l->host);
}

uint64_t loop_boot_us(struct loop *l)
{
	fiber_clock();
	return vhost_clock_us(l->host);
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
	return NULL;
}

bool loop_is_current(const struct loop *l)
{
	return l->running && l->fiber == fiber_current();
}

/* ---- Turns --------------------------------------------------------------------------------------
 */

static void loop_wake(struct loop *l)
{
	if (l->fiber && l->running)
		fiber_wake(l->fiber);
}

void loop_watch_ready(struct loop *l, struct list *link)
{
	list_push_back(&l->watches, link);
	loop_wake(l);
}

void loop_post(struct loop *l, struct post *p)
{
	p->next = NULL;
	*l->posts_last = p;
	l->posts_last = &p->next;
	loop_wake(l);
	fiber_crossing();
}

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

static struct simhost_busy busiest;

void loops_begin(void)
{
	busiest = (struct simhost_busy){0};
}

const struct simhost_busy *simhost_busiest(void)
{
	return &busiest;
}

static void turn_count(struct loop *l)
{
	uint64_t now = simhost_now_us();

	if (now - l->busy_from >= SIMHOST_BUSY_US) {
		l->busy_from = now;
		l->turns = 0;
	}
	if (++l->turns <= busiest.turns)
		return;
	busiest.turns = l->turns;
	busiest.at_us = now;
	memcpy(busiest.host, l->host->name, sizeof(busiest.host));
	memcpy(busiest.loop, l->name, sizeof(busiest.loop));
}

static void timers_run(struct loop *l)
{
	while (!list_empty(&l->timers)) {
		struct loop_timer *i = list_first(&l->timers, struct loop_timer, link);

		if (i->at > simhost_now_us())
			break;
		list_del(&i->link);
		i->timer->armed = false;
		i->timer->fn(i->timer);
	}
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

static bool turn_work_left(const struct loop *l)
{
	for (int phase = 0; phase < TURN_PHASES; phase++)
		if (!list_empty(&l->turn_end[phase]))
			return true;
	return l->posts || !list_empty(&l->watches) || !list_empty(&l->io_done) ||
	       !list_empty(&l->io_new);
}

static void io_reap(struct loop *l)
{
	struct list done = LIST_INIT(done), *n;

	list_splice_back(&done, &l->io_done);
	while ((n = list_pop_front(&done))) {
		struct io *io = list_entry(n, struct io, link);

		l->io_inflight--;
		wait_resume(io->wait, (int)(int64_t)io->done);
	}
}

static void io_submit(struct loop *l);

void loop_run(struct loop *l)
{
	l->fiber = fiber_current();
	l->running = true;
	while (!l->stop) {
		if (!turn_work_left(l)) {
			uint64_t next = FOREVER;

			if (!list_empty(&l->timers))
				next = list_first(&l->timers, struct loop_timer, link)->at;
			l->fiber->in_turn = false;
			fiber_block("events", next);
		}
		l->fiber->in_turn = true;
		l->turn_us = loop_mono_us(l);
		timers_run(l);
		posts_run(l);
		watches_run(&l->watches);
		io_reap(l);
		turn_end_run(l);
		io_submit(l);
		turn_count(l);
	}
	l->fiber->in_turn = false;
	l->running = false;
}

static void stop_fn(struct post *p)
{
	free(p);
}

void loop_stop(struct loop *l)
{
	struct post *p = xcalloc(1, sizeof(*p));

	l->stop = true;
	p->fn = stop_fn;
	loop_post(l, p);
}

static void *loop_thread(void *arg)
{
	loop_run(arg);
	return NULL;
}

int loop_spawn(struct loop *l)
{
	l->fiber = fiber_spawn(vproc_current(), l->name, loop_thread, l);
	return 0;
}

void loop_join(struct loop *l)
{
	struct fiber *me = fiber_current();

	if (!l->fiber)
		return;
	me->on = l->fiber;
	while (!l->fiber->ended)
		fiber_block("join loop", FOREVER);
	me->on = NULL;
}

/* ---- Timers -------------------------------------------------------------------------------------
 */

void timer_init(struct timer *t, struct loop *l, void (*fn)(struct timer *t))
{
	struct loop_timer *i = xcalloc(1, sizeof(*i));

	*t = (struct timer){.loop = l, .fn = fn, .impl = i};
	list_init(&i->link);
	i->timer = t;
}

/* Up to a millisecond late, as with epoll. */
void timer_set(struct timer *t, uint64_t delay_us)
{
	struct loop_timer *i = t->impl, *other;
	struct loop *l = t->loop;
	int64_t real = (int64_t)delay_us - (int64_t)delay_us * l->host->drift_ppm / 1000000;

	i->at = simhost_now_us() + (uint64_t)real + draw(0, 1000);
	list_del(&i->link);
	list_for_each(other, &l->timers, link) if (other->at > i->at) break;
	list_insert_between(&i->link, other->link.prev, &other->link);
	t->armed = true;
	if (!loop_is_current(l))
		loop_wake(l);
}

void timer_cancel(struct timer *t)
{
	if (t->armed)
		list_del(&((struct loop_timer *)t->impl)->link);
	t->armed = false;
}

void timer_fini(struct timer *t)
{
	if (!t->impl)
		return;
	timer_cancel(t);
	free(t->impl);
	t->impl = NULL;
}

/* ---- Files --------------------------------------------------------------------------------------
 */

unsigned loop_io_inflight(const struct loop *l)
{
	return l->io_inflight;
}

void io_file_opened(int fd)
{
}

void io_file_closed(int fd)
{
}

static void io_ended(struct disk_op *op)
{
	struct io *io = op->owner;

	io->done = (uint64_t)(int64_t)op->rc;
	list_push_back(&io->loop->io_done, &io->link);
	loop_wake(io->loop);
}

static void io_submit(struct loop *l)
{
	static const enum vio_kind kinds[] = {VIO_READ, VIO_WRITE, VIO_FLUSH};
	struct list *n;

	while ((n = list_pop_front(&l->io_new))) {
		struct io *io = list_entry(n, struct io, link);
		struct vfd *f = vfd_find(io->fd);

		if (!f) {
			io->done = (uint64_t)-EBADF;
			list_push_back(&l->io_done, &io->link);
			continue;
		}
		disk_start(f, kinds[io->op], io->iov, io->iov_count, io->off, io->flags & IO_DSYNC,
			   io_ended, io);
	}
}

static int io_start(struct loop *l, struct io *io, struct wait *w)
{
	CHECK(w);
	io->wait = w;
	io->loop = l;
	l->io_inflight++;
	list_push_back(&l->io_new, &io->link);
	return PENDING;
}

int io_writev(struct loop *l, struct io *io, int fd, const struct iovec *iov, unsigned n,
	      uint64_t off, int flags, struct wait *w)
{
	*io = (struct io){
		.iov = iov, .iov_count = n, .off = off, .fd = fd, .op = WRITE_OP, .flags = flags};
	return io_start(l, io, w);
}

int io_read(struct loop *l, struct io *io, int fd, void *data, size_t len, uint64_t off,
	    struct wait *w)
{
	*io = (struct io){
		.single = {data, len}, .iov_count = 1, .off = off, .fd = fd, .op = READ_OP};
	io->iov = &io->single;
	return io_start(l, io, w);
}

int io_write(struct loop *l, struct io *io, int fd, const void *data, size_t len, uint64_t off,
	     int flags, struct wait *w)
{
	*io = (struct io){.single = {(void *)(uintptr_t)data, len},
			  .iov_count = 1,
			  .off = off,
			  .fd = fd,
			  .op = WRITE_OP,
			  .flags = flags};
	io->iov = &io->single;
	return io_start(l, io, w);
}

int io_fsync(struct loop *l, struct io *io, int fd, struct wait *w)
{
	*io = (struct io){.fd = fd, .op = FSYNC_OP};
	return io_start(l, io, w);
}
