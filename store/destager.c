/* SPDX-License-Identifier: Apache-2.0 */
/* The destager thread, the only one that changes the map: its queue, its objects and its loop.
 * Between batches it deletes objects and collects segments. Shards hand over without a lock,
 * because this thread may be preempted for long anywhere (tier_pace.c): it must never hold anything
 * that a shard waits for. */
#include <stdlib.h>

#include "node/loop/failpoint.h"
#include "store/tier_internal.h"

enum request_kind { REQUEST_PUT, REQUEST_DELETE, REQUEST_REDUCE, REQUEST_SUSPECT, REQUEST_SETTLE };
struct tier_request {
	struct tier_request *next;
	struct post post;
	struct tier *t;
	enum request_kind kind;
	unsigned shard;
	uint64_t object;
	uint32_t gen, volume;
	uint32_t page;   /* suspect */
	uint64_t blocks; /* suspect */
	uint32_t number; /* of a request to reduce */
	uint16_t policy; /* that goes with it */
	uint64_t until_us; /* settle */
	uint8_t *header;
	size_t header_len;
	struct wait *wait; /* NULL: nobody waits */
	int rc;
};

#define SUSPECTS_MAX 256u /* requests at once */

static struct destage_batch batches_closed;
static struct tier_request requests_closed;

/* ---- Queue -------------------------------------------------------------------------------------
 */

void tier_destage(struct tier *t, struct destage_batch *b)
{
	struct destage_batch *top = atomic_load(&t->batches);

	b->rc = 0;
	b->damaged = 0;
	do {
		if (top == &batches_closed) {
			b->rc = -ERR_CLOSED;
			loop_post(b->loop, &b->done);
			return;
		}
		b->next = top;
	} while (!atomic_compare_exchange_weak(&t->batches, &top, b));
	sem_post(&t->more_work);
}

void destager_batch_end(struct tier *t, struct destage_batch *b, int rc)
{
	b->rc = rc;
	b->kv_commit = atomic_load(&t->commit);
	loop_post(b->loop, &b->done); /* b may be gone from here on */
}

static struct tier_request *requests_take(struct tier *t, struct tier_request *leave)
{
	struct tier_request *r = atomic_exchange(&t->requests, leave), *first = NULL;

	while (r) {
		struct tier_request *next = r->next;

		r->next = first;
		first = r;
		r = next;
	}
	return first;
}

/* Adds what the shards have queued, in its order, to the end of *batches. */
static void batches_take(struct tier *t, struct destage_batch **batches,
			 struct destage_batch *leave)
{
	struct destage_batch *b = atomic_exchange(&t->batches, leave), *first = NULL;

	while (b) {
		struct destage_batch *next = b->next;

		b->next = first;
		first = b;
		b = next;
	}
	while (*batches)
		batches = &(*batches)->next;
	*batches = first;
}

/* ---- Objects -----------------------------------------------------------------------------------
 */

static int object_remove_rows(struct tier *t, struct tobj *o)
{
	uint8_t key[OBJECT_KEY_SIZE];
	int rc;

	txn_begin(t);
	put_be64(key, o->id);
	kv_batch_delete(t->kv, t->batch, KV_OBJ, key, sizeof(key));
	for (uint32_t i = 0; i < o->region_count; i++) {
		uint8_t region[REGION_KEY_SIZE];

		region_key_encode(region, o->id, i);
		if (o->regions[i].now.mask)
			kv_batch_delete(t->kv, t->batch, KV_REGION, region, sizeof(region));
	}
	volume_count(t, o->volume, &o->counters, NULL);
	rc = txn_commit(t);
	if (!rc)
		tobj_free(t, o);
	return rc;
}

/* The next pages of the first object that is being deleted. */
static int delete_pages(struct tier *t, struct tobj *o, unsigned *count)
{
	struct work_page *w = xcalloc(DELETE_STEP_PAGES, sizeof(*w));
	struct map_page *pages = xmalloc(DELETE_STEP_PAGES * sizeof(*pages));
	uint32_t last = o->region_count * REGION_PAGES;
	int rc;

	*count = 0;
	for (; o->delete_page < last && *count < DELETE_STEP_PAGES; o->delete_page++) {
		uint64_t mask = o->regions[o->delete_page / REGION_PAGES].now.mask;

		if (!(mask >> o->delete_page % REGION_PAGES & 1))
			continue;
		w[*count].o = o;
		w[*count].index = o->delete_page;
		w[*count].page = &pages[*count];
		++*count;
	}
	txn_begin(t);
	rc = txn_load(t, w, *count);
	for (unsigned i = 0; i < *count && !rc; i++) {
		page_cache_drop(&t->cache, o->id, w[i].index);
		txn_page_delete(t, &w[i]);
	}
	if (!rc && *count)
		rc = txn_commit(t);
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	free(w);
	free(pages);
	return rc;
}

bool delete_step(struct tier *t)
{
	struct tobj *o;
	unsigned count;
	int rc;

	if (list_empty(&t->deleting) || atomic_load(&t->failed))
		return false;
	o = list_first(&t->deleting, struct tobj, link);
	pthread_mutex_lock(&t->commit_lock);
	rc = delete_pages(t, o, &count);
	if (!rc && !count)
		rc = object_remove_rows(t, o);
	pthread_mutex_unlock(&t->commit_lock);
	(void)FAILPOINT(delete_step);
	if (rc && !loss_notice(t))
		tier_fail(t, rc, "object delete");
	return !rc;
}

/* One commit for an object row, with its new header if there is one. Under the commit lock. */
static int commit_object(struct tier *t, struct tobj *o, const struct tier_request *header)
{
	int rc;

	txn_begin(t);
	txn_object(t, o);
	if (header)
		tobj_set_header(t, o, header->header, header->header_len);
	rc = txn_commit(t);
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	return rc;
}

static int object_put(struct tier *t, struct tier_request *r)
{
	struct tobj *o = tobj_find(t, r->object);
	int rc;

	/* Keys carry no generation: the old replica's rows go first. */
	while (o && o->state == OBJECT_DELETING) {
		if (!delete_step(t) && !delete_step(t)) /* once more: a device may have failed */
			return atomic_load(&t->failed) ? atomic_load(&t->failed) : -ERR_DEVICE;
		o = tobj_find(t, r->object);
	}
	if (o && o->gen != r->gen)
		return -ERR_EXISTS;
	pthread_mutex_lock(&t->commit_lock);
	if (!o)
		o = tobj_create(t, r->object, r->gen, r->volume);
	tobj_set_volume(t, o, r->volume);
	rc = commit_object(t, o, r);
	pthread_mutex_unlock(&t->commit_lock);
	return rc;
}

static int object_delete(struct tier *t, struct tier_request *r)
{
	struct tobj *o = tobj_find(t, r->object);
	int rc;

	if (!o || o->gen != r->gen)
		return -ERR_NOT_FOUND;
	if (o->state == OBJECT_DELETING)
		return 0;
	pthread_mutex_lock(&t->commit_lock);
	o->state = OBJECT_DELETING;
	reduce_progress(t, o);
	o->delete_page = 0;
	list_push_back(&t->deleting, &o->link);
	atomic_fetch_add(&t->deleting_n, 1);
	rc = commit_object(t, o, NULL);
	pthread_mutex_unlock(&t->commit_lock);
	return rc;
}

static void request_done(struct post *p)
{
	struct tier_request *r = container_of(p, struct tier_request, post);
	struct wait *w = r->wait;
	int rc = r->rc;

	if (r->kind == REQUEST_DELETE && !rc)
		shard_object_drop(&r->t->shards[r->shard], r->object);
	pace_apply(r->t);
	free(r->header);
	free(r);
	if (w)
		wait_resume(w, rc);
}

static int object_reduce(struct tier *t, struct tier_request *r)
{
	struct tobj *o = tobj_find(t, r->object);

	if (!o || o->gen != r->gen || o->state != OBJECT_LIVE)
		return -ERR_NOT_FOUND;
	pthread_mutex_lock(&t->commit_lock);
	reduce_ask(t, o, r->number, r->policy);
	pthread_mutex_unlock(&t->commit_lock);
	return 0;
}

/* It waits with others until settle.c says that nothing is left; in a hurry, as a flush. */
static void settle_wait(struct tier *t, struct tier_request *r)
{
	r->next = t->settle.waiting;
	t->settle.waiting = r;
	t->settle.reduce_rc = 0;
	atomic_fetch_add(&t->hurry, 1);
	atomic_fetch_sub(&t->requests_open, 1);
}

/* All that waited until `now` at most, with rc. */
static void settle_end(struct tier *t, uint64_t now_us, int rc)
{
	struct tier_request *r, **at = &t->settle.waiting;

	while ((r = *at)) {
		if (r->until_us > now_us) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->rc = rc;
		atomic_fetch_sub(&t->hurry, 1);
		loop_post(t->shards[r->shard].loop, &r->post);
	}
}

/* Until somebody has waited long enough; UINT64_MAX: nobody waits. */
static uint64_t settle_wait_us(const struct tier *t)
{
	uint64_t now = tier_mono_us(t), first = UINT64_MAX;

	for (const struct tier_request *r = t->settle.waiting; r; r = r->next)
		first = MIN(first, r->until_us);
	return first == UINT64_MAX ? first : first - MIN(first, now);
}

static void request_run(struct tier *t, struct tier_request *r)
{
	if (r->kind == REQUEST_SETTLE) {
		settle_wait(t, r);
		return;
	}
	r->rc = atomic_load(&t->failed);
	if (!r->rc)
		r->rc = r->kind == REQUEST_PUT	    ? object_put(t, r)
			: r->kind == REQUEST_DELETE ? object_delete(t, r)
			: r->kind == REQUEST_REDUCE ? object_reduce(t, r)
						    : scrub_page(t, r->object, r->page, r->blocks);
	if (r->kind == REQUEST_SUSPECT)
		atomic_fetch_sub(&t->scrub.suspects_open, 1);
	(void)FAILPOINT(object_saved);
	atomic_fetch_sub(&t->requests_open, 1);
	loop_post(t->shards[r->shard].loop, &r->post);
}

/* False: the queue is closed, and the request is gone. */
static bool request_queue(struct tier *t, struct tier_request *r)
{
	struct tier_request *top = atomic_load(&t->requests);

	r->t = t;
	r->post.fn = request_done;
	atomic_fetch_add(&t->requests_open, 1);
	do {
		if (top == &requests_closed) {
			atomic_fetch_sub(&t->requests_open, 1);
			free(r->header);
			free(r);
			return false;
		}
		r->next = top;
	} while (!atomic_compare_exchange_weak(&t->requests, &top, r));
	pace_apply(t); /* somebody waits for it */
	sem_post(&t->more_work);
	return true;
}

static int request_submit(struct tier *t, enum request_kind kind, unsigned shard, uint64_t object,
			  uint32_t gen, uint32_t volume, const void *header, size_t len,
			  struct wait *w)
{
	struct tier_request *r = xcalloc(1, sizeof(*r));

	*r = (struct tier_request){.kind = kind,
				   .shard = shard,
				   .object = object,
				   .gen = gen,
				   .volume = volume,
				   .header_len = len,
				   .wait = w};
	r->header = xmalloc(len + 1);
	if (len)
		memcpy(r->header, header, len);
	return request_queue(t, r) ? PENDING : -ERR_CLOSED;
}

/* What finds no room is met again, by the next read or by scrub. */
void tier_suspect(struct tier *t, unsigned shard, uint64_t object, uint32_t page, uint64_t blocks)
{
	struct tier_request *r;

	if (atomic_load(&t->scrub.suspects_open) >= SUSPECTS_MAX)
		return;
	atomic_fetch_add(&t->scrub.suspects_open, 1);
	r = xcalloc(1, sizeof(*r));
	*r = (struct tier_request){.kind = REQUEST_SUSPECT,
				   .shard = shard,
				   .object = object,
				   .page = page,
				   .blocks = blocks};
	if (!request_queue(t, r))
		atomic_fetch_sub(&t->scrub.suspects_open, 1);
}

void tier_object_reduce(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t number,
			bool compression, bool dedup)
{
	struct tier_request *r = xcalloc(1, sizeof(*r));

	*r = (struct tier_request){.kind = REQUEST_REDUCE,
				   .shard = shard,
				   .object = object,
				   .gen = gen,
				   .number = number,
				   .policy = (uint16_t)((dedup ? OBJECT_DEDUP : 0) |
							(compression ? OBJECT_COMPRESSION : 0))};
	(void)request_queue(t, r); /* a tier that stops is told again after the next start */
}

int tier_object_put(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t volume,
		    const void *header, size_t len, struct work *scratch, struct wait *w)
{
	return request_submit(t, REQUEST_PUT, shard, object, gen, volume, header, len, w);
}

int tier_object_delete(struct tier *t, unsigned shard, uint64_t object, uint32_t gen,
		       struct work *scratch, struct wait *w)
{
	return request_submit(t, REQUEST_DELETE, shard, object, gen, 0, NULL, 0, w);
}

int tier_settle(struct tier *t, unsigned shard, uint64_t limit_us, struct wait *w)
{
	struct tier_request *r = xcalloc(1, sizeof(*r));

	*r = (struct tier_request){.kind = REQUEST_SETTLE,
				   .shard = shard,
				   .until_us = tier_mono_us(t) + limit_us,
				   .wait = w};
	return request_queue(t, r) ? PENDING : -ERR_CLOSED;
}

/* ---- The thread --------------------------------------------------------------------------------
 */

static void work_end(struct tier *t, struct destage_batch *batches)
{
	struct tier_request *r, *next;

	for (r = requests_take(t, &requests_closed); r; r = next) {
		next = r->next;
		r->rc = -ERR_CLOSED;
		if (r->kind == REQUEST_SUSPECT)
			atomic_fetch_sub(&t->scrub.suspects_open, 1);
		atomic_fetch_sub(&t->requests_open, 1);
		loop_post(t->shards[r->shard].loop, &r->post);
	}
	settle_end(t, UINT64_MAX, -ERR_CLOSED);
	batches_take(t, &batches, &batches_closed);
	while (batches) {
		struct destage_batch *b = batches;

		batches = b->next;
		destager_batch_end(t, b, -ERR_CLOSED);
	}
}

/* What can wait: deletes, scrub; collecting and reducing too if `later` is not set. False: nothing of it
 * is left, or is to be done now. */
static bool background_step(struct tier *t, bool later)
{
	bool busy = loss_step(t);

	if (atomic_exchange(&t->loss.kv_check, false) && kv_is_failing(t->kv))
		tier_fail(t, -ERR_MAP_LOST, "the map database reports errors");
	busy |= delete_step(t);
	grace_poll(t, false);
	if (!later) {
		if (gc_wanted(t))
			busy |= gc_step(t);
		busy |= dedup_rebuild_step(t);
		busy |= reduce_step(t);
	}
	busy |= recount_step(t);
	if (!later && !busy) {
		int rc;
		enum settle_state s = settle_step(t, &rc);

		if (s == SETTLE_ENDED)
			settle_end(t, UINT64_MAX, rc);
		busy = s == SETTLE_BUSY;
	}
	if (t->settle.waiting)
		settle_end(t, tier_mono_us(t), -ETIMEDOUT);
	/* A group that is always a little busy is scrubbed too. */
	if (!scrub_wait_us(t))
		scrub_step(t);
	return busy;
}

/* Until there is something to do, the next step of the scrub is due, or somebody has waited long enough. */
static void destager_sleep(struct tier *t)
{
	uint64_t us = MIN(scrub_wait_us(t), settle_wait_us(t)), at;
	struct timespec ts;

	if (us == UINT64_MAX) {
		sem_wait(&t->more_work);
		return;
	}
	if (!us)
		return;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	at = (uint64_t)ts.tv_nsec / 1000 + us;
	ts.tv_sec += (time_t)(at / 1000000);
	ts.tv_nsec = (long)(at % 1000000) * 1000;
	sem_clockwait(&t->more_work, CLOCK_MONOTONIC, &ts);
}

void *destager_main(void *arg)
{
	struct tier *t = arg;
	struct destage_batch *batches = NULL;
	struct tier_request *r, *next;
	bool busy = true; /* hints to fill, pages to reduce */

	pthread_setname_np(pthread_self(), "destager");
	pace_join(t);
	for (;;) {
		if (!busy && !batches && !atomic_load(&t->batches) && !atomic_load(&t->requests) &&
		    !atomic_load(&t->stopping) && !atomic_load(&t->loss.replace) && scrub_wait_us(t)) {
			if (t->kv_counted != atomic_load(&t->commit))
				tier_count_kv(t);
			destager_sleep(t);
			busy = true; /* whatever it is about: a device, the database */
			continue;
		}
		/* Batches first: the objects they need are then among the requests, which are run
		 * first. */
		batches_take(t, &batches, NULL);
		for (r = requests_take(t, NULL); r; r = next) {
			next = r->next;
			request_run(t, r);
		}
		if (atomic_load(&t->stopping))
			break;
		if (batches)
			round_batches(t, &batches);
		busy = background_step(t, batches != NULL || pace_rests(t));
	}
	work_end(t, batches);
	loss_end(t);
	return NULL;
}
