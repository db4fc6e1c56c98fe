/* SPDX-License-Identifier: Apache-2.0 */
/* The destager thread: the only one that changes the map. It takes batches of committed records from
 * the shards, verifies their payload, appends it to segments and commits, several batches at a time;
 * between batches it deletes objects and collects segments. It must never raise a page's version by a
 * part of its records (I2), nor store a block that does not match its fingerprint (I12). */
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/codec.h"
#include "store/tier_internal.h"

/* A payload block on its way from the log to a segment. */
struct payload {
	struct destage_block *block;
	struct work_page *w;
	uint32_t gen, slot; /* slot in the arena */
	bool compression, unread;
};

struct round {
	struct tier *t;
	struct destage_batch *batches, **last;
	struct work_page *work;
	struct payload *payload;
	unsigned work_count, payload_count;
};

void tier_destage(struct tier *t, struct destage_batch *b)
{
	bool refused;

	b->next = NULL;
	b->rc = 0;
	b->damaged = 0;
	pthread_mutex_lock(&t->lock);
	refused = t->stopping;
	if (!refused) {
		*t->batches_last = b;
		t->batches_last = &b->next;
		pthread_cond_signal(&t->more);
	}
	pthread_mutex_unlock(&t->lock);
	if (refused) {
		b->rc = -ERR_CLOSED;
		loop_post(b->loop, &b->done);
	}
}

static void batch_end(struct tier *t, struct destage_batch *b, int rc)
{
	b->rc = rc;
	b->kv_commit = atomic_load(&t->commit);
	loop_post(b->loop, &b->done); /* b may be gone from here on */
}

/* ---- Pages of a round -------------------------------------------------------------------------- */

static uint64_t page_hash(uint64_t object, uint32_t page)
{
	return hash_u64(object * 0x9e3779b97f4a7c15ull + page);
}

static bool round_has_page(struct tier *t, uint64_t object, uint32_t page)
{
	for (struct hnode *n = hmap_first(&t->round, page_hash(object, page)); n; n = hmap_next(n)) {
		struct work_page *w = container_of(n, struct work_page, node);

		if (w->o->id == object && w->index == page)
			return true;
	}
	return false;
}

static unsigned batch_payload_blocks(const struct destage_batch *b)
{
	unsigned n = 0;

	for (unsigned i = 0; i < b->block_count; i++)
		n += b->blocks[i].kind == MAP_RAW;
	return n;
}

static bool batch_is_sound(const struct destage_batch *b)
{
	for (unsigned i = 0; i < b->page_count; i++) {
		const struct destage_page *p = &b->pages[i];

		if (p->first > b->block_count || p->count > b->block_count - p->first ||
		    p->page >= OBJECT_BLOCKS_MAX / PAGE_BLOCKS)
			return false;
		for (unsigned k = 0; k < p->count; k++)
			if (b->blocks[p->first + k].index >= PAGE_BLOCKS ||
			    b->blocks[p->first + k].kind > MAP_DAMAGED)
				return false;
	}
	return true;
}

/* May this batch join the round? A page comes once per commit: the next round takes the rest. */
static bool round_takes(struct tier *t, const struct round *r, const struct destage_batch *b)
{
	if (r->payload_count + batch_payload_blocks(b) > ROUND_BLOCKS)
		return false;
	for (unsigned i = 0; i < b->page_count; i++)
		if (round_has_page(t, b->pages[i].object, b->pages[i].page))
			return false;
	return true;
}

/* -ERR_INVALID when a page comes twice in it. */
static int round_add(struct tier *t, struct round *r, struct destage_batch *b)
{
	for (unsigned i = 0; i < b->page_count; i++) {
		struct destage_page *p = &b->pages[i];
		struct tobj *o = tobj_find(t, p->object);
		struct work_page *w = &r->work[r->work_count];

		p->skipped = !o || o->gen != p->gen || o->state != OBJECT_LIVE;
		if (p->skipped) {
			log_warn("tier", "records of a replica that is not here are dropped (I7)",
				 "object=%llu generation=%u", (unsigned long long)p->object, p->gen);
			continue;
		}
		if (round_has_page(t, p->object, p->page))
			return -ERR_INVALID;
		*w = (struct work_page){ .o = o, .index = p->page, .page = &p->result };
		hmap_insert(&t->round, &w->node, page_hash(p->object, p->page));
		r->work_count++;
	}
	for (unsigned i = 0; i < b->header_count; i++) {
		struct destage_header *h = &b->headers[i];
		struct tobj *o = tobj_find(t, h->object);

		if (!o || o->gen != h->gen || o->state != OBJECT_LIVE)
			continue;
		o->volume = h->volume;
		tobj_set_header(t, o, h->header, h->len);
	}
	*r->last = b;
	r->last = &b->next;
	b->next = NULL;
	return 0;
}

/* Everything but payload: the old entry goes, zeroes and damage come at once, payload is noted. */
static void page_apply(struct tier *t, struct round *r, struct destage_batch *b, struct destage_page *p,
		       struct work_page *w)
{
	bool damaged = map_page_has_damage(w->page);
	int order = version_cmp(p->version, w->old);

	/* Replay (Y4): what the page has already is not applied again, but a whole copy may repair. */
	p->skipped = order < 0 || (order == 0 && !(p->whole && damaged));
	p->old = w->old;
	if (p->skipped)
		return;
	w->page->version = p->version;
	for (unsigned i = 0; i < p->count; i++) {
		struct destage_block *k = &b->blocks[p->first + i];

		txn_entry_clear(t, w, k->index);
		switch (k->kind) {
		case MAP_HOLE:
			break;
		case MAP_ZERO:
			w->page->entry[k->index].word = MAP_ZERO;
			w->page->entry[k->index].fp64 = hash_zero_block().lo;
			txn_entry_set(t, w, k->index, MAP_ZERO, 1);
			break;
		case MAP_RAW:
			r->payload[r->payload_count++] = (struct payload){ .block = k, .w = w, .gen = p->gen,
									   .compression = p->compression };
			break;
		default:
			w->page->entry[k->index].word = MAP_DAMAGED;
			w->page->entry[k->index].fp64 = k->fp64;
			txn_entry_set(t, w, k->index, MAP_DAMAGED, 1);
		}
	}
}

/* ---- Payload ----------------------------------------------------------------------------------- */

static int payload_cmp(const void *a, const void *b)
{
	const struct destage_block *x = (*(struct payload *const *)a)->block;
	const struct destage_block *y = (*(struct payload *const *)b)->block;

	if (x->log_device != y->log_device)
		return x->log_device < y->log_device ? -1 : 1;
	return x->log_off < y->log_off ? -1 : x->log_off > y->log_off;
}

/* n ≤ ARENA_BLOCKS of them into the arena, in as few reads as their places allow. */
static int payload_read(struct tier *t, struct payload *p, unsigned n)
{
	struct payload *sorted[ARENA_BLOCKS];

	for (unsigned i = 0; i < n; i++)
		sorted[i] = &p[i];
	qsort(sorted, n, sizeof(*sorted), payload_cmp);
	for (unsigned i = 0, run; i < n; i += run) {
		struct destage_block *first = sorted[i]->block;
		uint8_t *mem = t->arena + (size_t)i * BLOCK_SIZE;
		int rc;

		for (run = 1; i + run < n && run < UNIT_MAX / BLOCK_SIZE; run++) {
			struct destage_block *b = sorted[i + run]->block;

			if (b->log_device != first->log_device ||
			    b->log_off != first->log_off + (uint64_t)run * BLOCK_SIZE)
				break;
		}
		for (unsigned k = 0; k < run; k++)
			sorted[i + k]->slot = i + k;
		rc = device_pread(first->log_device, mem, (size_t)run * BLOCK_SIZE, first->log_off);
		if (!rc)
			continue;
		atomic_fetch_add(&t->io_errors, 1);
		for (unsigned k = 0; k < run; k++) {
			struct destage_block *b = sorted[i + k]->block;

			if (device_pread(b->log_device, mem + (size_t)k * BLOCK_SIZE, BLOCK_SIZE, b->log_off))
				sorted[i + k]->unread = true;
		}
		/* A block that cannot be read is damage; a log that cannot be read is not for us. */
		if (first->log_device->failed)
			return -ERR_LOG_LOST;
	}
	return 0;
}

static int payload_store(struct tier *t, struct payload *p, uint64_t *damaged)
{
	const uint8_t *data = t->arena + (size_t)p->slot * BLOCK_SIZE;
	struct map_entry *e = &p->w->page->entry[p->block->index];
	struct fp128 zero = hash_zero_block(), fp = hash_block(data);
	static const uint8_t zeros[BLOCK_SIZE];
	uint8_t packed[CODEC_UNITS_MAX * CODEC_UNIT];
	struct unit_entry u = { .object = p->w->o->id, .gen = p->gen, .version = p->w->page->version,
				.block = p->w->index * PAGE_BLOCKS + p->block->index, .fp = fp };
	unsigned units;

	e->fp64 = p->block->fp64;
	if (p->unread || fp.lo != p->block->fp64) {
		e->word = MAP_DAMAGED;
		txn_entry_set(t, p->w, p->block->index, MAP_DAMAGED, 1);
		log_error("tier", "a block in the log does not match its fingerprint; it is damaged here",
			  "object=%llu block=%u offset=%llu read=%s", (unsigned long long)u.object, u.block,
			  (unsigned long long)p->block->log_off, p->unread ? "failed" : "ok");
		atomic_fetch_add(&t->corrupt_blocks, 1);
		++*damaged;
		return 0;
	}
	if (fp.lo == zero.lo && !memcmp(data, zeros, BLOCK_SIZE)) {
		e->word = MAP_ZERO;
		txn_entry_set(t, p->w, p->block->index, MAP_ZERO, 1);
		return 0;
	}
	units = p->compression ? codec_compress(data, packed) : 0;
	txn_entry_set(t, p->w, p->block->index, units ? MAP_LZ4 : MAP_RAW, units ? units : 64);
	if (units)
		return segment_append(&t->seg, STREAM_HOT, &u, MAP_LZ4, packed, units, e);
	return segment_append(&t->seg, STREAM_HOT, &u, MAP_RAW, data, 64, e);
}

static int round_payload(struct tier *t, struct round *r, uint64_t *damaged)
{
	int rc = 0;

	for (unsigned i = 0; i < r->payload_count && !rc; i += ARENA_BLOCKS) {
		unsigned n = MIN(r->payload_count - i, ARENA_BLOCKS);

		rc = payload_read(t, &r->payload[i], n);
		for (unsigned k = 0; k < n && !rc; k++)
			rc = payload_store(t, &r->payload[i + k], damaged);
	}
	return rc ? rc : segment_flush_unit(&t->seg, STREAM_HOT);
}

/* ---- A round ----------------------------------------------------------------------------------- */

static int round_run(struct tier *t, struct round *r)
{
	uint64_t damaged = 0;
	unsigned w = 0;
	int rc = txn_load(t, r->work, r->work_count);

	r->payload_count = 0;
	if (rc)
		return rc;
	for (struct destage_batch *b = r->batches; b; b = b->next)
		for (unsigned i = 0; i < b->page_count; i++)
			if (!b->pages[i].skipped)
				page_apply(t, r, b, &b->pages[i], &r->work[w++]);
	rc = round_payload(t, r, &damaged);
	if (rc)
		return rc;
	r->batches->damaged = damaged;
	for (unsigned i = 0; i < r->work_count; i++)
		if (!version_eq(r->work[i].old, r->work[i].page->version) || r->work[i].changed)
			txn_page(t, &r->work[i]);
	rc = txn_commit(t);
	if (rc)
		return rc;
	for (unsigned i = 0; i < r->work_count; i++)
		page_cache_put(&t->cache, r->work[i].o->id, r->work[i].index, r->work[i].page,
			       r->work[i].operands);
	atomic_fetch_add(&t->destaged_blocks, r->payload_count);
	return 0;
}

static void round_batches(struct tier *t, struct destage_batch **queue)
{
	struct round r = { .t = t };
	unsigned pages = 0, blocks = 0, most = 0;
	struct destage_batch *b;
	int rc = atomic_load(&t->failed);

	r.last = &r.batches;
	for (b = *queue; b; b = b->next) {
		pages += b->page_count;
		blocks += b->block_count;
		most++;
		if (blocks > ROUND_BLOCKS)
			break;
	}
	b = *queue;
	if (!rc && !batch_is_sound(b))
		rc = -ERR_INVALID;
	if (!rc && !gc_make_room(t, STREAM_HOT, batch_payload_blocks(b)))
		rc = atomic_load(&t->failed) ? atomic_load(&t->failed) : -ERR_FULL;
	if (rc) {
		*queue = b->next;
		batch_end(t, b, rc);
		return;
	}
	r.work = xmalloc((pages + 1) * sizeof(*r.work));
	r.payload = xmalloc((blocks + 1) * sizeof(*r.payload));
	pthread_mutex_lock(&t->commit_lock);
	txn_begin(t);
	while ((b = *queue) && !rc && most--) {
		unsigned n = batch_payload_blocks(b);

		if (r.batches && (!batch_is_sound(b) || !round_takes(t, &r, b) ||
				  !segments_have_room(&t->seg, STREAM_HOT, r.payload_count + n)))
			break;
		*queue = b->next;
		rc = round_add(t, &r, b);
		if (rc) {
			b->next = NULL;
			*r.last = b;
		}
		r.payload_count += n;
	}
	if (!rc)
		rc = round_run(t, &r);
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	for (struct hnode *n; (n = hmap_walk(&t->round, NULL));)
		hmap_remove(&t->round, n);
	pthread_mutex_unlock(&t->commit_lock);
	while ((b = r.batches)) {
		r.batches = b->next;
		batch_end(t, b, rc);
	}
	free(r.work);
	free(r.payload);
}

/* ---- Objects ----------------------------------------------------------------------------------- */

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
	t->logical_blocks -= o->counters.mapped + o->counters.zero;
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
	if (rc)
		tier_fail(t, rc, "object delete");
	return !rc;
}

/* One commit for an object row, with its new header if there is one. */
static int commit_object(struct tier *t, struct tobj *o, const struct tier_request *header)
{
	int rc;

	pthread_mutex_lock(&t->commit_lock);
	txn_begin(t);
	txn_object(t, o);
	if (header)
		tobj_set_header(t, o, header->header, header->header_len);
	rc = txn_commit(t);
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	pthread_mutex_unlock(&t->commit_lock);
	return rc;
}

static int object_put(struct tier *t, struct tier_request *r)
{
	struct tobj *o = tobj_find(t, r->object);

	/* Keys carry no generation: the old replica's rows go first. */
	while (o && o->state == OBJECT_DELETING) {
		if (!delete_step(t))
			return atomic_load(&t->failed) ? atomic_load(&t->failed) : -ERR_DEVICE;
		o = tobj_find(t, r->object);
	}
	if (o && o->gen != r->gen)
		return -ERR_EXISTS;
	if (!o)
		o = tobj_create(t, r->object, r->gen, r->volume);
	o->volume = r->volume;
	return commit_object(t, o, r);
}

static int object_delete(struct tier *t, struct tier_request *r)
{
	struct tobj *o = tobj_find(t, r->object);

	if (!o || o->gen != r->gen)
		return -ERR_NOT_FOUND;
	if (o->state == OBJECT_DELETING)
		return 0;
	o->state = OBJECT_DELETING;
	o->delete_page = 0;
	list_push_back(&t->deleting, &o->link);
	return commit_object(t, o, NULL);
}

static void request_done(struct post *p)
{
	struct tier_request *r = container_of(p, struct tier_request, post);
	struct wait *w = r->wait;
	int rc = r->rc;

	if (r->kind == REQUEST_DELETE && !rc)
		shard_object_drop(&r->t->shards[r->shard], r->object);
	free(r->header);
	free(r);
	wait_resume(w, rc);
}

static void request_run(struct tier *t, struct tier_request *r)
{
	r->rc = atomic_load(&t->failed);
	if (!r->rc)
		r->rc = r->kind == REQUEST_PUT ? object_put(t, r) : object_delete(t, r);
	loop_post(t->shards[r->shard].loop, &r->post);
}

static int request_submit(struct tier *t, enum request_kind kind, unsigned shard, uint64_t object,
			  uint32_t gen, uint32_t volume, const void *header, size_t len, struct wait *w)
{
	struct tier_request *r;
	bool refused;

	r = xcalloc(1, sizeof(*r));
	*r = (struct tier_request){ .t = t, .kind = kind, .shard = shard, .object = object, .gen = gen,
				    .volume = volume, .header_len = len, .wait = w,
				    .post.fn = request_done };
	r->header = xmalloc(len + 1);
	if (len)
		memcpy(r->header, header, len);
	pthread_mutex_lock(&t->lock);
	refused = t->stopping;
	if (!refused) {
		*t->requests_last = r;
		t->requests_last = &r->next;
		pthread_cond_signal(&t->more);
	}
	pthread_mutex_unlock(&t->lock);
	if (!refused)
		return PENDING;
	free(r->header);
	free(r);
	return -ERR_CLOSED;
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

/* ---- The thread -------------------------------------------------------------------------------- */

/* Moves the shards' queues to the caller. Objects before batches: a batch may need its object, and a
 * delete may overtake batches of the replica that goes. */
static bool take_work(struct tier *t, struct destage_batch **batches, struct tier_request **requests,
		      bool busy)
{
	bool stop;

	pthread_mutex_lock(&t->lock);
	while (!busy && !t->batches && !t->requests && !t->stopping && !*batches)
		pthread_cond_wait(&t->more, &t->lock);
	*requests = t->requests;
	t->requests = NULL;
	t->requests_last = &t->requests;
	if (t->batches) {
		struct destage_batch **end = batches;

		while (*end)
			end = &(*end)->next;
		*end = t->batches;
		t->batches = NULL;
		t->batches_last = &t->batches;
	}
	stop = t->stopping;
	pthread_mutex_unlock(&t->lock);
	return stop;
}

void *destager_main(void *arg)
{
	struct tier *t = arg;
	struct destage_batch *batches = NULL;
	struct tier_request *requests, *next;
	bool busy = false, stop = false;

	pthread_setname_np(pthread_self(), "destager");
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
	while (!stop) {
		stop = take_work(t, &batches, &requests, busy);
		for (; requests; requests = next) {
			next = requests->next;
			request_run(t, requests);
		}
		if (stop)
			break;
		busy = false;
		if (batches)
			round_batches(t, &batches);
		busy |= delete_step(t);
		grace_poll(t, false);
		if (gc_wanted(t, batches != NULL))
			busy |= gc_step(t);
	}
	while (batches) {
		struct destage_batch *b = batches;

		batches = b->next;
		batch_end(t, b, -ERR_CLOSED);
	}
	return NULL;
}
