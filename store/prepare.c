/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, verifying and compressing payload ahead of the destager. A chunk belongs to the thread
 * that took it, until it is done; then to the destager, until it asks for the next one. It must
 * never touch a page, a share or a segment, and never change hints. */
#include "store/prepare.h"

#include <stdlib.h>
#include <unistd.h>

#include "node/base/rules.h"
#include "node/loop/gather.h"
#include "store/codec.h"

#define CHUNKS_MAX (PREPARE_THREADS_MAX + 2)

enum chunk_state { CHUNK_IDLE, CHUNK_READY, CHUNK_TAKEN, CHUNK_DONE };

struct chunk {
	struct payload *p;
	unsigned n;
	enum chunk_state state;
	int rc;
	uint8_t *raw, *packed; /* PREPARE_BLOCKS blocks; their compressed forms, back to back */
};

struct reads {
	struct payload *sorted[PREPARE_BLOCKS];
	struct device_read read[PREPARE_BLOCKS];
	uint16_t first[PREPARE_BLOCKS + 1]; /* of each read, in sorted */
};

struct prepare_thread {
	pthread_t thread;
	struct prepare *owner;
};

struct prepare {
	struct tier *t;
	struct chunk chunk[CHUNKS_MAX];
	unsigned chunk_count;
	/* The round. */
	struct payload *p;
	unsigned n, at; /* at: payload given to chunks so far */
	bool compress;
	unsigned head, busy; /* chunks in use: from head on, in order */
	bool taken;          /* the destager has the head */

	pthread_mutex_t lock; /* states of chunks, stop */
	pthread_cond_t more, done;
	bool stop;
	unsigned thread_count;
	struct prepare_thread thread[PREPARE_THREADS_MAX];
	struct gather *gather; /* the destager's */
};

/* ---- One chunk ---------------------------------------------------------------------------------
 */

static int payload_cmp(const void *a, const void *b)
{
	const struct destage_block *x = (*(struct payload *const *)a)->block;
	const struct destage_block *y = (*(struct payload *const *)b)->block;

	if (x->log_device != y->log_device)
		return x->log_device < y->log_device ? -1 : 1;
	return x->log_off < y->log_off ? -1 : x->log_off > y->log_off;
}

static bool follows(const struct destage_block *b, const struct destage_block *first, unsigned run)
{
	return b->log_device == first->log_device &&
	       b->log_off == first->log_off + (uint64_t)run * BLOCK_SIZE;
}

/* Compressed blocks that are looked at again have places of any length; they sort first. */
static bool read_packed(struct tier *t, const struct payload *p)
{
	uint64_t off = map_entry_offset(p->word), from = round_down(off, BLOCK_SIZE);
	unsigned units = map_entry_units(p->word);
	CLEANUP(free_ptr) uint8_t *area = xalloc_aligned(BLOCK_SIZE, 2 * BLOCK_SIZE);

	return !device_pread(t->seg.dev[map_entry_device(p->word)].dev, area,
			     round_up(off + units * CODEC_UNIT, BLOCK_SIZE) - from, from) &&
	       !codec_decompress(area + (off - from), units, p->data);
}

/* As few reads as the places allow; how many. */
static unsigned plan_reads(struct chunk *c, struct reads *r)
{
	unsigned reads = 0, packed = 0;

	for (unsigned i = 0; i < c->n; i++)
		r->sorted[i] = &c->p[i];
	qsort(r->sorted, c->n, sizeof(*r->sorted), payload_cmp);
	for (; packed < c->n && r->sorted[packed]->was_packed; packed++)
		r->sorted[packed]->data = c->raw + (size_t)packed * BLOCK_SIZE;
	for (unsigned i = packed, run; i < c->n; i += run) {
		const struct destage_block *first = r->sorted[i]->block;

		for (run = 1; i + run < c->n && run < UNIT_MAX / BLOCK_SIZE; run++)
			if (!follows(r->sorted[i + run]->block, first, run))
				break;
		for (unsigned k = 0; k < run; k++)
			r->sorted[i + k]->data = c->raw + (size_t)(i + k) * BLOCK_SIZE;
		r->first[reads] = (uint16_t)i;
		r->read[reads++] = (struct device_read){.device = first->log_device,
							.data = c->raw + (size_t)i * BLOCK_SIZE,
							.len = (size_t)run * BLOCK_SIZE,
							.off = first->log_off};
	}
	r->first[reads] = (uint16_t)c->n;
	return reads;
}

/* A block that cannot be read is damage; a log that cannot be read is not for us: what it holds may
 * come back with it. */
static int read_again(struct tier *t, struct payload *const *p, unsigned n)
{
	atomic_fetch_add(&t->io_errors, 1);
	for (unsigned i = 0; i < n; i++) {
		struct destage_block *b = p[i]->block;

		if (device_pread(b->log_device, p[i]->data, BLOCK_SIZE, b->log_off))
			p[i]->unread = true;
	}
	return p[0]->block->log_device->failed || !device_answers(p[0]->block->log_device)
		       ? -ERR_DEVICE
		       : 0;
}

static int chunk_read(struct tier *t, struct chunk *c, struct gather *g)
{
	struct reads *r = xmalloc(sizeof(*r));
	unsigned n = plan_reads(c, r);
	int rc = 0;

	for (unsigned i = 0; i < c->n && r->sorted[i]->was_packed; i++)
		r->sorted[i]->unread = !read_packed(t, r->sorted[i]);
	device_read_many(g, r->read, n);
	for (unsigned i = 0; i < n && !rc; i++)
		if (r->read[i].rc)
			rc = read_again(t, &r->sorted[r->first[i]],
					(unsigned)(r->first[i + 1] - r->first[i]));
	free(r);
	return rc;
}

static bool is_zero(const struct payload *p)
{
	static const uint8_t zeros[BLOCK_SIZE];

	return p->fp.lo == hash_zero_block().lo && !memcmp(p->data, zeros, BLOCK_SIZE);
}

static void chunk_run(struct prepare *w, struct chunk *c, struct gather *g)
{
	const struct hints *hints = &w->t->dedup.hints;
	uint8_t *packed = c->packed;
	uint64_t hint[8];

	c->rc = chunk_read(w->t, c, g);
	for (unsigned i = 0; i < c->n && !c->rc; i++) {
		struct payload *p = &c->p[i];

		p->fp = p->unread ? (struct fp128){0} : hash_block(p->data);
		/* What is called damaged stays so: look twice. */
		if (!p->unread && p->fp.lo != p->block->fp64 &&
		    !device_pread(p->block->log_device, p->data, BLOCK_SIZE, p->block->log_off))
			p->fp = hash_block(p->data);
		p->bad = p->unread || (p->fp.lo != p->block->fp64 && rule(RULE_DESTAGE_CHECK));
		p->zero = !p->bad && is_zero(p);
		/* What is stored already most likely need not be compressed. */
		if (p->bad || p->zero || !p->compression || !w->compress || p->was_packed ||
		    (p->dedup && hints_get(hints, p->fp, hint)))
			continue;
		p->compressed = true;
		p->units = (uint8_t)codec_compress(p->data, packed);
		p->packed = packed;
		packed += p->units * CODEC_UNIT;
	}
}

/* ---- Threads -----------------------------------------------------------------------------------
 */

/* The oldest chunk that nobody has begun; the lock is held. */
static struct chunk *chunk_take(struct prepare *w)
{
	for (unsigned i = 0; i < w->busy; i++) {
		struct chunk *c = &w->chunk[(w->head + i) % w->chunk_count];

		if (c->state != CHUNK_READY)
			continue;
		c->state = CHUNK_TAKEN;
		return c;
	}
	return NULL;
}

static void *thread_main(void *arg)
{
	struct prepare_thread *me = arg;
	struct prepare *w = me->owner;
	struct gather *g = gather_create(GATHER_DEPTH);
	struct chunk *c;

	pthread_setname_np(pthread_self(), "destage-prep");
	pace_join(w->t);
	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		c = chunk_take(w);
		if (!c) {
			pthread_cond_wait(&w->more, &w->lock);
			continue;
		}
		pthread_mutex_unlock(&w->lock);
		chunk_run(w, c, g);
		pthread_mutex_lock(&w->lock);
		c->state = CHUNK_DONE;
		pthread_cond_signal(&w->done);
	}
	pthread_mutex_unlock(&w->lock);
	gather_destroy(g);
	return NULL;
}

/* ---- The destager ------------------------------------------------------------------------------
 */

static void chunks_fill(struct prepare *w)
{
	while (w->busy < w->chunk_count && w->at < w->n) {
		struct chunk *c = &w->chunk[(w->head + w->busy) % w->chunk_count];

		*c = (struct chunk){.p = w->p + w->at,
				    .n = MIN(w->n - w->at, PREPARE_BLOCKS),
				    .state = CHUNK_READY,
				    .raw = c->raw,
				    .packed = c->packed};
		if (!c->raw) {
			c->raw = xalloc_aligned(BLOCK_SIZE, (size_t)PREPARE_BLOCKS * BLOCK_SIZE);
			c->packed = xmalloc((size_t)PREPARE_BLOCKS * CODEC_UNITS_MAX * CODEC_UNIT);
		}
		w->at += c->n;
		w->busy++;
		pthread_cond_signal(&w->more);
	}
}

/* Its blocks are in memory no more. */
static void chunk_give_up(struct prepare *w)
{
	struct chunk *c = &w->chunk[w->head];

	for (unsigned i = 0; i < c->n; i++)
		c->p[i].data = c->p[i].packed = NULL;
	c->state = CHUNK_IDLE;
	w->head = (w->head + 1) % w->chunk_count;
	w->busy--;
	w->taken = false;
}

void prepare_begin(struct prepare *w, struct payload *p, unsigned n, bool compress)
{
	pthread_mutex_lock(&w->lock);
	CHECK(!w->busy);
	w->p = p;
	w->n = n;
	w->at = 0;
	w->compress = compress;
	chunks_fill(w);
	pthread_mutex_unlock(&w->lock);
}

int prepare_next(struct prepare *w, struct payload **first)
{
	struct chunk *c;

	pthread_mutex_lock(&w->lock);
	if (w->taken)
		chunk_give_up(w);
	chunks_fill(w);
	if (!w->busy) {
		pthread_mutex_unlock(&w->lock);
		return 0;
	}
	c = &w->chunk[w->head];
	w->taken = true;
	if (c->state == CHUNK_READY) {
		c->state = CHUNK_TAKEN;
		pthread_mutex_unlock(&w->lock);
		chunk_run(w, c, w->gather);
		pthread_mutex_lock(&w->lock);
		c->state = CHUNK_DONE;
	}
	while (c->state != CHUNK_DONE)
		pthread_cond_wait(&w->done, &w->lock);
	pthread_mutex_unlock(&w->lock);
	*first = c->p;
	return c->rc ? c->rc : (int)c->n;
}

/* What nobody has begun is dropped, what is under way is waited for. */
void prepare_end(struct prepare *w)
{
	pthread_mutex_lock(&w->lock);
	w->at = w->n;
	while (w->busy) {
		struct chunk *c = &w->chunk[w->head];

		while (c->state == CHUNK_TAKEN)
			pthread_cond_wait(&w->done, &w->lock);
		chunk_give_up(w);
	}
	pthread_mutex_unlock(&w->lock);
}

/* ---- Life --------------------------------------------------------------------------------------
 */

struct prepare *prepare_create(struct tier *t, uint32_t threads)
{
	struct prepare *w = xcalloc(1, sizeof(*w));
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	if (threads == PREPARE_BY_CORES)
		threads = cores > 0 ? (uint32_t)cores / 4 : 0;
	w->t = t;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->more, NULL);
	pthread_cond_init(&w->done, NULL);
	w->gather = gather_create(GATHER_DEPTH);
	for (unsigned i = 0; i < MIN(threads, PREPARE_THREADS_MAX); i++) {
		w->thread[i].owner = w;
		/* The destager does what no thread is there for. */
		if (pthread_create(&w->thread[i].thread, NULL, thread_main, &w->thread[i]))
			break;
		w->thread_count++;
	}
	w->chunk_count = w->thread_count ? w->thread_count + 2 : 1;
	return w;
}

void prepare_destroy(struct prepare *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->more);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->thread_count; i++)
		pthread_join(w->thread[i].thread, NULL);
	for (unsigned i = 0; i < CHUNKS_MAX; i++) {
		free(w->chunk[i].raw);
		free(w->chunk[i].packed);
	}
	gather_destroy(w->gather);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->more);
	pthread_cond_destroy(&w->done);
	free(w);
}

unsigned prepare_threads(const struct prepare *w)
{
	return w->thread_count;
}
