/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/client/harness.h"

#include <pthread.h>
#include <time.h>

#include "tests/lib/test.h"

struct errand {
	struct post post;
	void (*fn)(void *arg);
	bool (*holds)(void *arg);
	void *arg;
	bool done, result;
	pthread_mutex_t lock;
	pthread_cond_t cond;
};

static void errand_run(struct post *p)
{
	struct errand *e = container_of(p, struct errand, post);
	bool result = true;

	if (e->fn)
		e->fn(e->arg);
	else
		result = e->holds(e->arg);
	pthread_mutex_lock(&e->lock);
	e->result = result;
	e->done = true;
	pthread_cond_signal(&e->cond);
	pthread_mutex_unlock(&e->lock);
}

static bool errand_wait(struct harness *h, void (*fn)(void *arg), bool (*holds)(void *arg),
			void *arg)
{
	struct errand e = {.post.fn = errand_run,
			   .fn = fn,
			   .holds = holds,
			   .arg = arg,
			   .lock = PTHREAD_MUTEX_INITIALIZER,
			   .cond = PTHREAD_COND_INITIALIZER};

	loop_post(h->loop, &e.post);
	pthread_mutex_lock(&e.lock);
	while (!e.done)
		pthread_cond_wait(&e.cond, &e.lock);
	pthread_mutex_unlock(&e.lock);
	return e.result;
}

void harness_start(struct harness *h)
{
	h->loop = loop_create("test", 64);
	EXPECT(h->loop != NULL);
	EXPECT_OK(loop_spawn(h->loop));
}

void harness_stop(struct harness *h)
{
	loop_stop(h->loop);
	loop_join(h->loop);
	loop_destroy(h->loop);
}

void harness_do(struct harness *h, void (*fn)(void *arg), void *arg)
{
	errand_wait(h, fn, NULL, arg);
}

void harness_await(struct harness *h, bool (*holds)(void *arg), void *arg, const char *what)
{
	struct timespec nap = {.tv_nsec = 500000};

	for (unsigned i = 0; !errand_wait(h, NULL, holds, arg); i++) {
		if (i > 40000)
			test_failed(__FILE__, __LINE__, "waited too long until: %s", what);
		nanosleep(&nap, NULL);
	}
}
