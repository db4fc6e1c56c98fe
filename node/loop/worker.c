/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for blocking calls. A mutex and a condition variable: these calls take tens of
 * microseconds at least, so the queue is never what costs. */
#include "node/loop/worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct worker_pool {
	char name[16];
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct work *first, **last;
	bool stop;
	int nice_level;
	unsigned thread_count;
	pthread_t threads[];
};

static void work_done(struct post *p)
{
	struct work *w = container_of(p, struct work, post);

	wait_resume(w->wait, w->rc);
}

static void *worker_thread(void *arg)
{
	struct worker_pool *p = arg;

	pthread_setname_np(pthread_self(), p->name);
	if (p->nice_level)
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), p->nice_level);
	pthread_mutex_lock(&p->lock);
	for (;;) {
		struct work *w = p->first;

		if (!w) {
			if (p->stop)
				break;
			pthread_cond_wait(&p->more, &p->lock);
			continue;
		}
		p->first = w->next;
		if (!p->first)
			p->last = &p->first;
		pthread_mutex_unlock(&p->lock);
		w->rc = w->run(w);
		w->post.fn = work_done;
		loop_post(w->loop, &w->post);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

struct worker_pool *worker_pool_create(const char *name, unsigned threads, int nice_level)
{
	struct worker_pool *p = xcalloc(1, sizeof(*p) + threads * sizeof(pthread_t));

	CHECK(threads > 0);
	strncpy(p->name, name, sizeof(p->name) - 1);
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->more, NULL);
	p->last = &p->first;
	p->nice_level = nice_level;
	p->thread_count = threads;
	for (unsigned i = 0; i < threads; i++)
		CHECK(pthread_create(&p->threads[i], NULL, worker_thread, p) == 0);
	return p;
}

void worker_pool_destroy(struct worker_pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->more);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < p->thread_count; i++)
		CHECK(pthread_join(p->threads[i], NULL) == 0);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->more);
	free(p);
}

int worker_submit(struct worker_pool *p, struct loop *l, struct work *w, struct wait *wait)
{
	w->loop = l;
	w->wait = wait;
	w->next = NULL;
	pthread_mutex_lock(&p->lock);
	CHECK(!p->stop);
	*p->last = w;
	p->last = &w->next;
	pthread_cond_signal(&p->more);
	pthread_mutex_unlock(&p->lock);
	return PENDING;
}
