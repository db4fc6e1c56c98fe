/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual time, processes and their threads. A thread is a fiber: it runs until it waits for
 * something, then the next event's turn comes. Each wake-up takes a drawn moment, so that the
 * order of threads differs from seed to seed, and is the same for one. */
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "node/base/hmap.h"
#include "tests/simhost/impl.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES (1u << 20)
#define WAKE_MAX_US 4u

const char *const vio_names[VIO_KINDS] = {"open",    "read",      "write",   "flush",
					  "db-open", "db-format", "db-read", "db-commit"};
const char *const vfault_names[VFAULTS] = {"none",        "eio",         "enospc",     "lost",
					   "misdirected", "flip",        "cut-before", "cut-during",
					   "cut-after",   "kill-before", "kill-after"};

struct stack {
	struct stack *next;
	uint8_t bytes[];
};
struct event {
	uint64_t at, seq;
	struct vproc *proc;
	void (*fn)(void *arg);
	void (*drop)(void *arg);
	void *arg;
	struct fiber *fiber; /* instead of fn: continue it, if it is in this sleep */
	uint64_t sleep;
};

static struct {
	struct rng rng;
	uint64_t now, seq, trace;
	struct event *heap;
	size_t heap_len, heap_cap;
	struct list hosts, dead; /* dead: processes, kept because events name them */
	struct fiber *current;
	ucontext_t main;
	void *main_asan;
	const void *main_bottom;
	size_t main_size;
	struct stack *free_stacks;
	struct stack *last_stack; /* of a fiber that has just ended, */
	struct fiber *last_fiber; /* by its own hand */
	struct fiber *locals_of;  /* whose turn may have something in what is thread-local */
	void *locals;
	size_t locals_size;
	bool begun;
} S;

/* ---- Switching ----------------------------------------------------------------------------------
 */

static struct stack *stack_take(void)
{
	struct stack *s = S.free_stacks;

	if (s) {
		S.free_stacks = s->next;
	} else {
		s = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		CHECK(s != MAP_FAILED);
	}
#if defined(__SANITIZE_ADDRESS__)
	__asan_unpoison_memory_region(s, STACK_BYTES);
#endif
	return s;
}

static void stack_give(struct stack *s)
{
	if (!s)
		return;
	if (s == S.last_stack)
		S.last_stack = NULL;
#if defined(__SANITIZE_ADDRESS__)
	__asan_unpoison_memory_region(s, STACK_BYTES);
#endif
	s->next = S.free_stacks;
	S.free_stacks = s;
}

/* What product code keeps in thread-local variables within a turn of a loop (a decoded message, a frame that
 * is being built) would be every host's, as all fibers are one thread: it is put aside where another loop
 * runs in the midst of the turn. Other threads keep nothing there beyond a call that does not wait. */
static int find_locals(struct dl_phdr_info *info, size_t size, void *arg)
{
	for (unsigned i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS) {
			S.locals = info->dlpi_tls_data;
			S.locals_size = info->dlpi_phdr[i].p_memsz;
		}
	return 1; /* the first is the program itself */
}

static void locals_change(struct fiber *f)
{
	struct fiber *old = S.locals_of;

	if (old == f)
		return;
	if (old && old->in_turn && S.locals_size) {
		old->locals = old->locals ? old->locals : keep_alloc(S.locals_size);
		memcpy(old->locals, S.locals, S.locals_size);
	}
	if (f->in_turn && f->locals)
		memcpy(S.locals, f->locals, S.locals_size);
	S.locals_of = f;
}

static void fiber_free(struct fiber *f)
{
	if (!f)
		return;
	if (S.locals_of == f)
		S.locals_of = NULL;
	keep_free(f->locals);
	keep_free(f);
}

/* To the scheduler. for_good: this stack is never come back to. */
static void switch_out(struct fiber *f, bool for_good)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(for_good ? NULL : &f->asan, S.main_bottom, S.main_size);
#endif
	swapcontext(&f->context, &S.main);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(f->asan, &S.main_bottom, &S.main_size);
#endif
}

static void switch_to(struct fiber *f)
{
	S.current = f;
	locals_change(f);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(&S.main_asan, f->stack, STACK_BYTES);
#endif
	swapcontext(&S.main, &f->context);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(S.main_asan, NULL, NULL);
#endif
	S.current = NULL;
	if (S.last_stack)
		stack_give(S.last_stack);
	fiber_free(S.last_fiber);
	S.last_fiber = NULL;
}

static void process_end(struct vproc *p);

static void fiber_main(void)
{
	struct fiber *f = S.current;

#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(NULL, &S.main_bottom, &S.main_size);
#endif
	f->result = f->fn(f->arg);
	f->ended = true;
	/* Those who wait for its end look again. */
	for (struct list *n = f->proc->fibers.next; n != &f->proc->fibers; n = n->next) {
		struct fiber *other = list_entry(n, struct fiber, link);

		if (other->on == f)
			fiber_wake(other);
	}
	S.last_stack = f->stack;
	f->stack = NULL;
	switch_out(f, true);
	CHECK(false);
}

struct fiber *fiber_current(void)
{
	return S.current;
}

/* ---- Events -------------------------------------------------------------------------------------
 */

static bool before(const struct event *a, const struct event *b)
{
	return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void event_push(struct event e)
{
	size_t i = S.heap_len++;

	e.seq = ++S.seq;
	if (S.heap_len > S.heap_cap) {
		struct event *bigger;

		S.heap_cap = S.heap_cap ? S.heap_cap * 2 : 1024;
		bigger = keep_alloc(S.heap_cap * sizeof(*bigger));
		if (i)
			memcpy(bigger, S.heap, i * sizeof(*bigger));
		keep_free(S.heap);
		S.heap = bigger;
	}
	while (i && before(&e, &S.heap[(i - 1) / 2])) {
		S.heap[i] = S.heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	S.heap[i] = e;
}

static struct event event_pop(void)
{
	struct event top = S.heap[0], last = S.heap[--S.heap_len];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < S.heap_len) {
		if (c + 1 < S.heap_len && before(&S.heap[c + 1], &S.heap[c]))
			c++;
		if (!before(&S.heap[c], &last))
			break;
		S.heap[i] = S.heap[c];
		i = c;
	}
	S.heap[i] = last;
	return top;
}

void simhost_at(uint64_t delay_us, struct vproc *p, void (*fn)(void *arg), void (*drop)(void *arg),
		void *arg)
{
	event_push((struct event){
		.at = S.now + delay_us, .proc = p, .fn = fn, .drop = drop, .arg = arg});
}

void simhost_note(uint64_t x)
{
	S.trace = hash_u64(S.trace ^ x) + x;
}

bool simhost_step(void)
{
	struct event e;

	CHECK(!S.current);
	if (!S.heap_len)
		return false;
	e = event_pop();
	S.now = MAX(S.now, e.at);
	if (e.proc && !e.proc->alive) {
		if (e.drop)
			e.drop(e.arg);
		return true;
	}
	if (e.proc && e.proc->paused_until > S.now) {
		e.at = e.proc->paused_until;
		event_push(e);
		return true;
	}
	if (e.fiber) {
		if (e.fiber->ended || !e.fiber->blocked || e.fiber->sleep != e.sleep)
			return true;
		e.fiber->blocked = false;
		simhost_note(S.now << 8 | (uint8_t)e.fiber->name[0]);
		switch_to(e.fiber);
		if (e.proc->alive && e.proc->clean)
			process_end(e.proc);
	} else {
		e.fn(e.arg);
	}
	return true;
}

bool simhost_run(bool (*done)(void *arg), void *arg, uint64_t until_us)
{
	for (;;) {
		if (done && done(arg))
			return true;
		if (!S.heap_len || S.heap[0].at > until_us)
			return false;
		simhost_step();
	}
}

uint64_t simhost_now_us(void)
{
	return S.now;
}

struct rng *simhost_rng(void)
{
	return &S.rng;
}

uint64_t simhost_trace(void)
{
	return S.trace;
}

uint64_t draw(uint64_t lo, uint64_t hi)
{
	return rng_between(&S.rng, lo, hi);
}

bool chance(double p)
{
	return rng_chance(&S.rng, p);
}

/* ---- Fibers -------------------------------------------------------------------------------------
 */

struct fiber *fiber_spawn(struct vproc *p, const char *name, void *(*fn)(void *arg), void *arg)
{
	struct fiber *f = keep_alloc(sizeof(*f));

	f->proc = p;
	f->fn = fn;
	f->arg = arg;
	strncpy(f->name, name, sizeof(f->name) - 1);
	f->stack = stack_take();
	list_push_back(&p->fibers, &f->link);
	CHECK(getcontext(&f->context) == 0);
	f->context.uc_stack.ss_sp = f->stack;
	f->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&f->context, fiber_main, 0);
	f->blocked = true;
	f->why = "start";
	event_push((struct event){
		.at = S.now + draw(0, WAKE_MAX_US), .proc = p, .fiber = f, .sleep = f->sleep});
	return f;
}

void fiber_block(const char *why, uint64_t until_us)
{
	struct fiber *f = S.current;

	CHECK(f);
	if (f->token) {
		f->token = false;
		return;
	}
	if (until_us <= S.now)
		return;
	f->blocked = true;
	f->why = why;
	f->sleep++;
	if (until_us != FOREVER)
		event_push((struct event){
			.at = until_us, .proc = f->proc, .fiber = f, .sleep = f->sleep});
	switch_out(f, false);
	f->token = false;
}

void fiber_wake(struct fiber *f)
{
	if (f->ended || f->token)
		return;
	f->token = true;
	if (f->blocked)
		event_push((struct event){.at = S.now + draw(0, WAKE_MAX_US),
					  .proc = f->proc,
					  .fiber = f,
					  .sleep = f->sleep});
}

void fiber_sleep(uint64_t us)
{
	uint64_t until = S.now + us;
	bool woken = false;

	while (S.now < until) {
		woken |= S.current->token;
		S.current->token = false;
		fiber_block("time", until);
	}
	S.current->token |= woken;
}

void fiber_crossing(void)
{
	if (S.current && chance(1.0 / 16))
		fiber_sleep(draw(1, WAKE_MAX_US * 2));
}

void fiber_clock(void)
{
	struct vproc *p = vproc_current();
	uint64_t us;

	if (!p || !p->stall_us || (p->stall_points && --p->stall_points))
		return;
	us = p->stall_us;
	p->stall_us = 0;
	p->midst_until = S.now + us;
	vproc_pause(p, us);
	fiber_sleep(us);
}

/* ---- Hosts and processes ------------------------------------------------------------------------
 */

void simhost_begin(uint64_t seed)
{
	CHECK(!S.begun);
	S.begun = true;
	S.now = S.seq = S.trace = 0;
	rng_seed(&S.rng, seed);
	list_init(&S.hosts);
	list_init(&S.dead);
	dl_iterate_phdr(find_locals, NULL);
	loops_begin();
}

static void free_list(struct list *procs)
{
	struct list *n;

	while ((n = list_pop_front(procs)))
		keep_free(list_entry(n, struct vproc, link));
}

void simhost_end(void)
{
	struct list *n;

	CHECK(S.begun && !S.current);
	while ((n = list_pop_front(&S.hosts))) {
		struct vhost *h = list_entry(n, struct vhost, link);

		while (!list_empty(&h->procs))
			vproc_kill(list_first(&h->procs, struct vproc, link));
		disk_drop(h);
		db_drop(h);
		while (!list_empty(&h->resources)) {
			struct vresource *r = list_first(&h->resources, struct vresource, link);

			list_del(&r->link);
			r->drop(r);
		}
		keep_free(h);
	}
	while (S.heap_len) {
		struct event e = S.heap[--S.heap_len];

		if (e.drop)
			e.drop(e.arg);
	}
	sockets_forget();
	free_list(&S.dead);
	keep_free(S.heap);
	S.heap = NULL;
	S.heap_cap = 0;
	S.begun = false;
}

struct vhost *vhost_create(const char *name)
{
	static const struct latency ssd[VIO_KINDS] = {
		[VIO_OPEN] = {5, 20},        [VIO_READ] = {40, 160},
		[VIO_WRITE] = {15, 120},     [VIO_FLUSH] = {20, 800},
		[VIO_DB_OPEN] = {100, 1000}, [VIO_DB_FORMAT] = {100, 1000},
		[VIO_DB_READ] = {2, 120},    [VIO_DB_COMMIT] = {20, 900},
	};
	struct vhost *h = keep_alloc(sizeof(*h));

	CHECK(S.begun);
	strncpy(h->name, name, sizeof(h->name) - 1);
	h->clock_offset_us = 1000000;
	rng_seed(&h->rng, rng_next(&S.rng));
	h->cores = 2l << rng_between(&h->rng, 0, 2);
	list_init(&h->procs);
	list_init(&h->files);
	list_init(&h->dbs);
	list_init(&h->resources);
	memcpy(h->latency, ssd, sizeof(ssd));
	list_push_back(&S.hosts, &h->link);
	return h;
}

/* A host that nothing runs on, and that no run knows of. */
struct vimage {
	struct vhost host;
};

struct vimage *vhost_save(const struct vhost *h)
{
	struct vimage *i = keep_alloc(sizeof(*i));

	CHECK(list_empty(&h->procs));
	list_init(&i->host.files);
	list_init(&i->host.dbs);
	disk_copy(&i->host, h);
	db_copy(&i->host, h);
	return i;
}

void vhost_load(struct vhost *h, const struct vimage *i)
{
	CHECK(list_empty(&h->procs));
	disk_copy(h, &i->host);
	db_copy(h, &i->host);
}

void vimage_free(struct vimage *i)
{
	disk_drop(&i->host);
	db_drop(&i->host);
	keep_free(i);
}

void vhost_set_clock(struct vhost *h, uint64_t offset_us, int64_t drift_ppm)
{
	h->clock_offset_us = offset_us;
	h->drift_ppm = drift_ppm;
}

struct vhost *vhost_by_address(unsigned address)
{
	for (struct list *n = S.hosts.next; n != &S.hosts; n = n->next) {
		struct vhost *h = list_entry(n, struct vhost, link);

		if (h->address == address)
			return h;
	}
	return NULL;
}

uint64_t vhost_clock_us(const struct vhost *h)
{
	return h->clock_offset_us + S.now + (uint64_t)((int64_t)S.now * h->drift_ppm / 1000000);
}

static void *process_main(void *arg)
{
	struct vproc *p = arg;

	p->main(p->arg);
	p->clean = true;
	return NULL;
}

struct vproc *vproc_spawn(struct vhost *h, const char *name, void (*main)(void *arg), void *arg)
{
	struct vproc *p = keep_alloc(sizeof(*p));

	p->host = h;
	p->main = main;
	p->arg = arg;
	p->alive = h->powered = true;
	strncpy(p->name, name, sizeof(p->name) - 1);
	list_init(&p->fibers);
	list_init(&p->files);
	list_push_back(&h->procs, &p->link);
	fiber_spawn(p, "main", process_main, p);
	return p;
}

/* From here on nothing of it runs or is looked at. */
static void process_end(struct vproc *p)
{
	struct vresource *r;
	struct list *n;

	p->alive = false;
	if (p->clean)
		p->leaked = heap_count(p);
	while ((n = list_pop_front(&p->fibers))) {
		struct fiber *f = list_entry(n, struct fiber, link);

		f->ended = true;
		if (f == S.current)
			continue; /* it goes when it has switched */
		stack_give(f->stack);
		fiber_free(f);
	}
	disk_process_died(p->host, p);
	fds_close(p);
	sockets_process_died(p);
	db_process_died(p);
	list_for_each(r, &p->host->resources, link) r->process_died(r, p);
	heap_drop(p);
	list_del(&p->link);
	list_push_back(&S.dead, &p->link);
}

static _Noreturn void leave(void)
{
	struct fiber *f = S.current;

	S.last_stack = f->stack;
	f->stack = NULL;
	S.last_fiber = f;
	switch_out(f, true);
	abort();
}

void vproc_kill(struct vproc *p)
{
	bool own = S.current && S.current->proc == p;

	if (!p->alive)
		return;
	process_end(p);
	if (own)
		leave();
}

static void cut(struct vhost *h)
{
	struct list *n, *next;
	struct vresource *r;

	/* The disks and sockets first: they must not be told of kills. */
	sockets_power_cut(h);
	disk_power_cut(h);
	db_power_cut(h);
	list_for_each(r, &h->resources, link) r->power_cut(r);
	for (n = h->procs.next; n != &h->procs; n = next) {
		next = n->next;
		process_end(list_entry(n, struct vproc, link));
	}
}

void vhost_power_cut(struct vhost *h)
{
	bool own = S.current && S.current->proc->host == h;

	cut(h);
	if (own)
		leave();
}

bool vproc_ended(const struct vproc *p)
{
	return p->clean;
}

bool vproc_alive(const struct vproc *p)
{
	return p->alive;
}

void vproc_pause(struct vproc *p, uint64_t us)
{
	p->paused_until = MAX(p->paused_until, S.now + us);
}

void vproc_stall(struct vproc *p, unsigned points, uint64_t us)
{
	p->stall_points = points;
	p->stall_us = us;
}

bool vproc_in_midst(const struct vproc *p)
{
	return p->midst_until > S.now;
}

struct vproc *vproc_current(void)
{
	return S.current ? S.current->proc : NULL;
}

struct vhost *vproc_host(const struct vproc *p)
{
	return p->host;
}

size_t vproc_leaked(const struct vproc *p)
{
	return p->leaked;
}

static bool is_dead(void *arg)
{
	return !((struct vproc *)arg)->alive;
}

bool vproc_run(struct vhost *h, const char *name, void (*main)(void *arg), void *arg)
{
	struct vproc *p = vproc_spawn(h, name, main, arg);

	return simhost_run(is_dead, p, FOREVER) && p->clean;
}

/* ---- Faults -------------------------------------------------------------------------------------
 */

void vhost_set_fault(struct vhost *h, enum vfault (*fn)(void *arg, const struct vio *io), void *arg)
{
	h->fault = fn;
	h->fault_arg = arg;
}

uint64_t vhost_io_count(const struct vhost *h)
{
	return h->ios;
}

void vhost_set_latency(struct vhost *h, enum vio_kind kind, uint64_t lo_us, uint64_t hi_us)
{
	h->latency[kind] = (struct latency){lo_us, hi_us};
}

_Noreturn void vio_die(struct vhost *h, enum vfault f)
{
	struct vproc *p = vproc_current();

	CHECK(p);
	if (fault_is_cut(f))
		vhost_power_cut(h);
	else
		vproc_kill(p);
	abort();
}

enum vfault vio_start(struct vio *io)
{
	enum vfault f;

	io->number = ++io->host->ios;
	simhost_note(hash_u64((uint64_t)io->kind << 56 | io->off) ^ io->len);
	f = io->host->fault ? io->host->fault(io->host->fault_arg, io) : VFAULT_NONE;
	if (f == VFAULT_CUT_BEFORE || f == VFAULT_KILL_BEFORE)
		vio_die(io->host, f);
	return f;
}

void simhost_dump(void)
{
	for (struct list *h = S.hosts.next; h != &S.hosts; h = h->next) {
		struct vhost *host = list_entry(h, struct vhost, link);

		for (struct list *p = host->procs.next; p != &host->procs; p = p->next) {
			struct vproc *proc = list_entry(p, struct vproc, link);

			for (struct list *n = proc->fibers.next; n != &proc->fibers; n = n->next) {
				struct fiber *f = list_entry(n, struct fiber, link);

				fprintf(stderr, "%s %s %s: %s\n", host->name, proc->name, f->name,
					f->ended         ? "ended"
					: f == S.current ? "running"
					: f->blocked     ? f->why
							 : "?");
			}
		}
	}
	fprintf(stderr, "%zu events, now %llu us\n", S.heap_len, (unsigned long long)S.now);
}
