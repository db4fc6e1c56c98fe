/* SPDX-License-Identifier: Apache-2.0 */
/* Destage: batches of committed records become one commit, several batches at a time: payload is
 * verified and appended to segments, pages change. It must never raise a page's version by a part
 * of its records (I2), nor store a block that does not match its fingerprint (I12). */
#include <stdlib.h>

#include "node/base/rules.h"
#include "node/loop/failpoint.h"
#include "store/codec.h"
#include "store/prepare.h"

#define BYPASS_BEGIN FILL_FULL
#define BYPASS_END   5000u /* permyriad of the log */

/* ---- Pages of a round --------------------------------------------------------------------------
 */

uint64_t page_hash(uint64_t object, uint32_t page)
{
	return hash_u64(object * 0x9e3779b97f4a7c15ull + page);
}

struct work_page *round_page(struct tier *t, uint64_t object, uint32_t page)
{
	for (struct hnode *n = hmap_first(&t->round, page_hash(object, page)); n;
	     n = hmap_next(n)) {
		struct work_page *w = container_of(n, struct work_page, node);

		if (w->o->id == object && w->index == page)
			return w;
	}
	return NULL;
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
		uint64_t seen = 0;

		for (unsigned k = 0; k < p->count; k++) {
			const struct destage_block *d = &b->blocks[p->first + k];

			if (d->index >= PAGE_BLOCKS || d->kind > MAP_DAMAGED ||
			    d->kind == MAP_SHARE || seen >> d->index & 1)
				return false;
			seen |= 1ull << d->index;
		}
	}
	return true;
}

/* May this batch join the round? A page comes once per commit: the next round takes the rest. */
static bool round_takes(struct tier *t, const struct round *r, const struct destage_batch *b)
{
	if (r->payload_count + batch_payload_blocks(b) > ROUND_BLOCKS)
		return false;
	for (unsigned i = 0; i < b->page_count; i++)
		if (round_page(t, b->pages[i].object, b->pages[i].page))
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

		p->skipped = !o || (o->gen != p->gen && rule(RULE_GENERATION)) || o->state != OBJECT_LIVE;
		if (p->skipped) {
			log_warn("tier", "records of a replica that is not here are dropped (I7)",
				 "object=%llu generation=%u", (unsigned long long)p->object,
				 p->gen);
			continue;
		}
		if (round_page(t, p->object, p->page))
			return -ERR_INVALID;
		*w = (struct work_page){.o = o, .index = p->page, .page = &p->result};
		hmap_insert(&t->round, &w->node, page_hash(p->object, p->page));
		r->work_count++;
	}
	for (unsigned i = 0; i < b->header_count; i++) {
		struct destage_header *h = &b->headers[i];
		struct tobj *o = tobj_find(t, h->object);

		if (!o || o->gen != h->gen || o->state != OBJECT_LIVE)
			continue;
		tobj_set_volume(t, o, h->volume);
		tobj_set_header(t, o, h->header, h->len);
	}
	*r->last = b;
	r->last = &b->next;
	b->next = NULL;
	return 0;
}

/* Only a whole copy of no newer version asks for it: it may repair (Y4). An older one comes from a
 * history that won over the one that the page is of; what replay finds is dropped before (log_index.c). */
static bool page_damaged(struct tier *t, const struct destage_page *p, const struct work_page *w)
{
	if (!p->whole || version_cmp(p->version, w->old) > 0)
		return false;
	if (tier_damage(t, w->page))
		return true;
	for (uint64_t m = w->page->mask; m; m &= m - 1) {
		uint64_t word = w->page->entry[__builtin_ctzll(m)].word;

		if (map_entry_kind(word) == MAP_SHARE && share_is_damaged(t, map_share_id(word)))
			return true;
	}
	return false;
}

/* Everything but payload: the old entry goes, zeroes and damage come at once, payload is noted. */
static void page_apply(struct tier *t, struct round *r, struct destage_batch *b,
		       struct destage_page *p, struct work_page *w)
{
	unsigned policy = (p->dedup ? OBJECT_DEDUP : 0) | (p->compression ? OBJECT_COMPRESSION : 0);
	bool damaged = page_damaged(t, p, w);
	int order = version_cmp(p->version, w->old);

	/* Replay (Y4): what the page has already is not applied again, but a whole copy may repair.
	 */
	p->skipped = order <= 0 && !damaged && rule(RULE_REPLAY);
	p->old = w->old;
	w->untold = p->skipped;
	if (p->skipped)
		return;
	tobj_set_flags(t, w->o, policy | (w->o->flags & OBJECT_REDUCE_LATER));
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
			r->payload[r->payload_count++] =
				(struct payload){.block = k,
						 .w = w,
						 .gen = p->gen,
						 .compression = p->compression,
						 .dedup = p->dedup};
			break;
		default:
			r->found_bad = true;
			w->page->entry[k->index].word = MAP_DAMAGED;
			w->page->entry[k->index].fp64 = k->fp64;
			txn_entry_set(t, w, k->index, MAP_DAMAGED, 1);
		}
	}
}

/* ---- Payload -----------------------------------------------------------------------------------
 */

/* The entry is about to get what becomes of the block. */
static void payload_begin(struct tier *t, struct payload *p)
{
	if (p->again)
		txn_entry_clear(t, p->w, p->block->index);
	p->w->page->entry[p->block->index].fp64 = p->block->fp64;
}

static void payload_bad(struct tier *t, struct round *r, struct payload *p, uint64_t *damaged)
{
	payload_begin(t, p);
	if (!rule(RULE_BAD_STAYS))
		return;
	p->w->page->entry[p->block->index].word = MAP_DAMAGED;
	txn_entry_set(t, p->w, p->block->index, MAP_DAMAGED, 1);
	log_error("tier", "a block to be stored does not match its fingerprint; it is damaged here",
		  "object=%llu block=%u device=%s offset=%llu read=%s",
		  (unsigned long long)p->w->o->id, p->w->index * PAGE_BLOCKS + p->block->index,
		  p->was_packed ? "(compressed)" : p->block->log_device->path,
		  (unsigned long long)(p->was_packed ? map_entry_offset(p->word) : p->block->log_off),
		  p->unread ? "failed" : "ok");
	scrub_count_bad(t, p->was_packed ? map_entry_device(p->word)
			   : p->block->log_device->sb.role == DEVICE_CACHE
				   ? SCRUB_DEVICE_CACHE
				   : p->block->log_device->sb.index);
	r->found_bad = true;
	++*damaged;
}

unsigned payload_pack(const struct payload *p, uint8_t *buf, const uint8_t **packed)
{
	*packed = p->compressed ? p->packed : buf;
	return p->compressed ? p->units : codec_compress(p->data, buf);
}

static int payload_append(struct tier *t, struct round *r, struct payload *p)
{
	struct map_entry *e = &p->w->page->entry[p->block->index];
	uint8_t buf[CODEC_UNITS_MAX * CODEC_UNIT];
	const uint8_t *packed;
	struct unit_entry u = {.object = p->w->o->id,
			       .gen = p->gen,
			       .version = p->w->page->version,
			       .block = p->w->index * PAGE_BLOCKS + p->block->index,
			       .fp = p->fp};
	bool pack = p->compression && !r->bypass && !p->was_packed;
	unsigned units = pack ? payload_pack(p, buf, &packed) : 0;

	if (p->again && !units)
		return 0; /* it stays where it is */
	payload_begin(t, p);
	p->units = (uint8_t)(units ? units : 64);
	p->stored = true;
	txn_entry_set(t, p->w, p->block->index, units ? MAP_LZ4 : MAP_RAW, p->units);
	return segment_append(&t->seg, r->stream, &u, units ? MAP_LZ4 : MAP_RAW,
			      units ? packed : p->data, p->units, e);
}

/* Not reduced as the policy says: for later. */
static void mark_reduce_later(struct tier *t, struct work_page *w)
{
	w->page->flags |= MAP_PAGE_REDUCE_LATER;
	tobj_set_flags(t, w->o, w->o->flags | OBJECT_REDUCE_LATER);
	w->o->reduce_again |= w->index < w->o->reduce_page;
	t->reduce_wanted = true;
}

/* Of a share: the entry stays as it is. Once in a round, however many refer to it. */
static int payload_of_share(struct tier *t, struct round *r, struct payload *p)
{
	if (!p->bad)
		return dedup_shrink(r, p, p->of);
	if (share_is_raw(p->of)) {
		share_set_damaged(t, p->of);
		round_share_moved(r, p->of->id);
	}
	return 0;
}

static int payload_store(struct tier *t, struct round *r, struct payload *p, uint64_t *damaged)
{
	int rc;

	if (p->of)
		return payload_of_share(t, r, p);
	if (p->bad) {
		payload_bad(t, r, p, damaged);
		return 0;
	}
	if (p->zero) {
		payload_begin(t, p);
		p->w->page->entry[p->block->index].word = MAP_ZERO;
		txn_entry_set(t, p->w, p->block->index, MAP_ZERO, 1);
		return 0;
	}
	if (r->bypass && (p->dedup || p->compression))
		atomic_fetch_add_explicit(&t->bypassed_blocks, 1, memory_order_relaxed);
	if ((p->dedup && !r->match) || (p->compression && r->bypass))
		mark_reduce_later(t, p->w);
	rc = p->dedup && r->match ? dedup_match(r, p) : 0;
	return rc ? MIN(rc, 0) : payload_append(t, r, p);
}

int round_payload(struct tier *t, struct round *r, uint64_t *damaged)
{
	struct payload *p;
	int n, rc = 0;

	dedup_round(t);
	prepare_begin(t->prepare, r->payload, r->payload_count, !r->bypass);
	while (!rc && (n = prepare_next(t->prepare, &p))) {
		rc = MIN(n, 0);
		for (int k = 0; k < n && !rc; k++)
			rc = payload_store(t, r, &p[k], damaged);
	}
	prepare_end(t->prepare);
	if (!rc)
		rc = segment_flush_unit(&t->seg, r->stream);
	if (!rc)
		dedup_resolve(r);
	return rc;
}

/* ---- A round -----------------------------------------------------------------------------------
 */

static void page_finish(struct tier *t, struct work_page *w)
{
	if (!version_eq(w->old, w->page->version) || w->changed || w->page->flags != w->old_flags)
		txn_page(t, w);
}

static void page_done(struct tier *t, const struct round *r, const struct work_page *w,
		      struct moved_page *moved, unsigned *n)
{
	page_cache_put(&t->cache, w->o->id, w->index, w->page, w->operands);
	if (w->untold && w->changed)
		moved[(*n)++] = (struct moved_page){w->o->id, w->index};
	if (r->found_bad || w->load_failed)
		scrub_tell(t, w);
}

void round_share_moved(struct round *r, uint64_t id)
{
	if (!(r->share_count & (r->share_count + 1)))
		r->shares = xrealloc(r->shares, (2 * r->share_count + 1) * sizeof(*r->shares));
	r->shares[r->share_count++] = id;
}

int round_commit(struct tier *t, struct round *r)
{
	struct moved_page *moved;
	unsigned n = 0;
	int rc;

	for (unsigned i = 0; i < r->work_count; i++)
		page_finish(t, &r->work[i]);
	for (struct extra_page *x = r->extra; x; x = x->next)
		page_finish(t, &x->w);
	/* Hints name shares by what they are in the commit, which forgets them. */
	dedup_hint(r);
	rc = txn_commit(t);
	if (rc)
		return rc;
	moved = xmalloc((r->work_count + r->extra_count + 1) * sizeof(*moved));
	for (unsigned i = 0; i < r->work_count; i++)
		page_done(t, r, &r->work[i], moved, &n);
	for (struct extra_page *x = r->extra; x; x = x->next)
		page_done(t, r, &x->w, moved, &n);
	if (n || r->share_count)
		tell_shards(t, moved, n, r->shares, r->share_count);
	free(moved);
	return 0;
}

void round_free(struct round *r)
{
	while (hmap_take(&r->t->round))
		;
	for (struct extra_page *x; (x = r->extra);) {
		r->extra = x->next;
		free(x);
	}
	free(r->work);
	free(r->payload);
	free(r->local);
	free(r->shares);
	free(r->scratch);
}

static int round_run(struct tier *t, struct round *r)
{
	uint64_t damaged = 0;
	unsigned w = 0;
	int rc = txn_load(t, r->work, r->work_count);

	(void)FAILPOINT(destage_read);
	r->payload_count = 0;
	if (rc)
		return rc;
	for (struct destage_batch *b = r->batches; b; b = b->next)
		for (unsigned i = 0; i < b->page_count; i++)
			if (!b->pages[i].skipped)
				page_apply(t, r, b, &b->pages[i], &r->work[w++]);
	/* Behind from 0.60 on, and until the log has clearly less: reduction is for later. */
	t->bypass = pace_fill(t) >= (t->bypass ? BYPASS_END : BYPASS_BEGIN);
	r->bypass = t->bypass;
	r->match = !r->bypass && atomic_load(&t->dedup.rebuilt);
	rc = round_payload(t, r, &damaged);
	if (rc)
		return rc;
	r->batches->damaged = damaged;
	rc = round_commit(t, r);
	if (!rc)
		atomic_fetch_add(&t->destaged_blocks, r->payload_count);
	return rc;
}

void round_batches(struct tier *t, struct destage_batch **queue)
{
	struct round r = {.t = t};
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
		destager_batch_end(t, b, rc);
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
	/* A capacity device failed under it: the others take it. */
	if (rc && rc != -ERR_FULL && loss_notice(t) && !atomic_load(&t->failed)) {
		*r.last = *queue;
		*queue = r.batches;
		r.batches = NULL;
	}
	pthread_mutex_unlock(&t->commit_lock);
	(void)FAILPOINT(shards_told);
	while ((b = r.batches)) {
		r.batches = b->next;
		destager_batch_end(t, b, rc);
	}
	round_free(&r);
	if (!rc)
		gc_pay(t, r.payload_count);
}
