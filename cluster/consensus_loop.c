/* SPDX-License-Identifier: Apache-2.0 */
/* The real surroundings: one loop for time and turns, one worker thread for the log's writes (an
 * ordered queue), and the end of the process where a restart is the cure. */
#include <stdlib.h>
#include <sysexits.h>
#include <unistd.h>

#include "cluster/consensus_impl.h"
#include "node/base/log.h"

#define QUIET_US 100000

struct loop_env {
	struct consensus_env env;
	struct loop *loop;
	struct worker_pool *worker;
	struct raft_disk *disk;
	struct timer timer;
	struct post turn;
	struct work work;
	struct wait written;
	const struct raft_write *w;
	unsigned n;
	struct timer quiet; /* since the last write */
	struct work settle;
	struct wait settled;
	bool settling, gone;
};

static struct loop_env *of(struct consensus_env *e)
{
	return container_of(e, struct loop_env, env);
}

static uint64_t env_now_us(struct consensus_env *e)
{
	return loop_mono_us(of(e)->loop);
}

static uint64_t env_random(struct consensus_env *e, uint64_t lo, uint64_t hi)
{
	return rng_between(loop_rng(of(e)->loop), lo, hi);
}

static void env_wake_in(struct consensus_env *e, uint64_t delay_ms)
{
	timer_set(&of(e)->timer, delay_ms * 1000);
}

static void on_timer(struct timer *t)
{
	consensus_on_wake(container_of(t, struct loop_env, timer)->env.c);
}

static void env_turn(struct consensus_env *e)
{
	loop_post(of(e)->loop, &of(e)->turn);
}

static void on_turn(struct post *p)
{
	consensus_on_turn(container_of(p, struct loop_env, turn)->env.c);
}

/* On the worker. */
static int run_write(struct work *work)
{
	struct loop_env *l = container_of(work, struct loop_env, work);

	return l->disk->ops->write(l->disk, l->w, l->n);
}

static void on_written(struct wait *w, int rc)
{
	consensus_on_written(container_of(w, struct loop_env, written)->env.c, rc);
}

static void env_write(struct consensus_env *e, const struct raft_write *w, unsigned n)
{
	struct loop_env *l = of(e);
	int rc;

	l->w = w;
	l->n = n;
	timer_set(&l->quiet, QUIET_US);
	rc = worker_submit(l->worker, l->loop, &l->work, &l->written);
	CHECK(rc == PENDING);
}

/* On the worker. */
static int run_settle(struct work *work)
{
	struct loop_env *l = container_of(work, struct loop_env, settle);

	return l->disk->ops->settle(l->disk);
}

static void on_settled(struct wait *w, int rc)
{
	struct loop_env *l = container_of(w, struct loop_env, settled);

	l->settling = false; /* an error was logged, and a write will meet it */
	if (l->gone)
		free(l);
}

static void on_quiet(struct timer *t)
{
	struct loop_env *l = container_of(t, struct loop_env, quiet);
	int rc;

	if (l->settling || !l->disk->ops->settle)
		return;
	l->settling = true;
	rc = worker_submit(l->worker, l->loop, &l->settle, &l->settled);
	CHECK(rc == PENDING);
}

/* libraft cannot be trusted from here on; its disk can. The service manager starts us again. */
static void env_fatal(struct consensus_env *e, const char *why)
{
	log_error("raft", "ends here and starts again from its disk", "reason=\"%s\"", why);
	_exit(EX_TEMPFAIL);
}

static void env_destroy(struct consensus_env *e)
{
	struct loop_env *l = of(e);

	worker_pool_destroy(l->worker);
	timer_fini(&l->timer);
	timer_fini(&l->quiet);
	l->gone = true;
	if (!l->settling) /* else its resume is still to come */
		free(l);
}

static const struct consensus_env_ops loop_env_ops = {
	.now_us = env_now_us,
	.random = env_random,
	.wake_in = env_wake_in,
	.turn = env_turn,
	.write = env_write,
	.fatal = env_fatal,
	.destroy = env_destroy,
};

struct consensus_env *consensus_env_create(struct loop *loop, struct raft_disk *disk)
{
	struct loop_env *l = xcalloc(1, sizeof(*l));

	l->env.ops = &loop_env_ops;
	l->loop = loop;
	l->disk = disk;
	l->worker = worker_pool_create("raft-log", 1, 0);
	l->turn.fn = on_turn;
	l->work.run = run_write;
	l->written.resume = on_written;
	l->settle.run = run_settle;
	l->settled.resume = on_settled;
	timer_init(&l->quiet, loop, on_quiet);
	timer_init(&l->timer, loop, on_timer);
	return &l->env;
}
