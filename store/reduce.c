/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that were stored raw because the reducer was behind, or before hints were filled, and all pages
 * of an object when somebody asked for it: deduplicated and compressed when there is time, by their
 * volume's policy of now. A block moves only if it gets smaller. It must never touch a page of an
 * object that has none marked and was not asked for, and never run while there is something to destage. */
#include <stdlib.h>

#include "store/destage.h"

#define STEP_PAGES 32u
#define STEP_LOOK  256u /* pages looked at per step */

static bool asked_for(const struct tobj *o)
{
	return o->reduce_want && o->reduce_want != o->reduced;
}

static bool page_exists(const struct tobj *o, uint32_t page)
{
	return page / REGION_PAGES < o->region_count &&
	       o->regions[page / REGION_PAGES].now.mask >> page % REGION_PAGES & 1;
}

/* Loads the next pages of the object; those that are marked stay in r->work. */
static int take_pages(struct round *r, struct tobj *o, struct map_page *pages)
{
	uint32_t end = o->region_count * REGION_PAGES;
	unsigned looked = 0;
	int rc;

	for (; o->reduce_page < end && r->work_count < STEP_PAGES && looked < STEP_LOOK;
	     o->reduce_page++) {
		struct work_page *w = &r->work[r->work_count];

		if (!page_exists(o, o->reduce_page))
			continue;
		looked++;
		*w = (struct work_page){.o = o,
					.index = o->reduce_page,
					.page = &pages[r->work_count],
					.untold = true};
		rc = txn_load(r->t, w, 1);
		if (rc)
			return rc;
		if ((!asked_for(o) && !(w->page->flags & MAP_PAGE_REDUCE_LATER)) || w->load_failed)
			continue;
		w->page->flags &= (uint8_t)~MAP_PAGE_REDUCE_LATER;
		hmap_insert(&r->t->round, &w->node, page_hash(o->id, w->index));
		r->work_count++;
	}
	return 0;
}

/* A share that is stored raw can get smaller only by compression; NULL in *out: not this one. */
static int share_to_shrink(struct tier *t, const struct tobj *o, uint64_t entry, struct tshare **out)
{
	int rc;

	*out = NULL;
	if (map_entry_kind(entry) != MAP_SHARE || !(o->flags & OBJECT_COMPRESSION))
		return 0;
	rc = share_get(t, map_share_id(entry), out);
	if (rc || !share_is_raw(*out))
		*out = NULL;
	return rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT ? 0 : rc;
}

static int take_block(struct round *r, struct work_page *w, unsigned k, struct destage_block *b)
{
	const struct map_entry *e = &w->page->entry[k];
	const struct tobj *o = w->o;
	struct tshare *of;
	int rc = share_to_shrink(r->t, o, e->word, &of);
	uint64_t word = of ? of->next.word : e->word;
	bool raw = map_entry_kind(word) == MAP_RAW;

	if (rc || !map_entry_has_place(word) || !r->t->seg.dev[map_entry_device(word)].dev ||
	    (!raw && !(o->flags & OBJECT_DEDUP)))
		return rc;
	*b = (struct destage_block){.index = (uint8_t)k, .kind = MAP_RAW, .fp64 = e->fp64};
	if (raw) {
		b->log_off = map_entry_offset(word);
		b->log_device = r->t->seg.dev[map_entry_device(word)].dev;
	}
	r->payload[r->payload_count++] = (struct payload){.block = b,
							  .w = w,
							  .gen = o->gen,
							  .again = true,
							  .was_packed = !raw,
							  .word = word,
							  .of = of,
							  .dedup = !of && o->flags & OBJECT_DEDUP,
							  .compression = o->flags & OBJECT_COMPRESSION};
	return 0;
}

static int take_blocks(struct round *r, struct destage_block *blocks)
{
	int rc = 0;

	for (unsigned i = 0; i < r->work_count; i++)
		for (uint64_t m = r->work[i].page->mask; m && !rc; m &= m - 1)
			rc = take_block(r, &r->work[i], (unsigned)__builtin_ctzll(m),
					&blocks[r->payload_count]);
	return rc;
}

/* The walk is through. False: another object may have marks. */
static int object_done(struct tier *t, struct tobj *o)
{
	int rc = 0;

	o->reduce_page = 0;
	if (!o->reduce_again) {
		uint32_t before = o->reduced;

		tobj_set_flags(t, o, o->flags & ~(unsigned)OBJECT_REDUCE_LATER);
		if (asked_for(o)) {
			o->reduced = o->reduce_want;
			txn_object(t, o);
		}
		reduce_progress(t, o);
		rc = txn_commit(t);
		if (rc)
			o->reduced = before;
	}
	o->reduce_again = false;
	return rc;
}

/* Nothing got smaller: the pages are as they were, and there is nothing to commit. */
static bool unchanged(const struct round *r)
{
	if (r->t->dirty_object_count || r->extra_count || r->share_count)
		return false;
	for (unsigned i = 0; i < r->work_count; i++)
		if (r->work[i].changed || r->work[i].page->flags != r->work[i].old_flags)
			return false;
	return true;
}

static int reduce_object(struct tier *t, struct tobj *o)
{
	struct map_page *pages = xmalloc(STEP_PAGES * sizeof(*pages));
	struct destage_block *blocks = xmalloc(STEP_PAGES * PAGE_BLOCKS * sizeof(*blocks));
	struct round r = {.t = t, .stream = STREAM_GC, .match = true};
	uint64_t damaged = 0;
	uint32_t from = o->reduce_page;
	int rc;

	r.work = xmalloc(STEP_PAGES * sizeof(*r.work));
	r.payload = xmalloc(STEP_PAGES * PAGE_BLOCKS * sizeof(*r.payload));
	txn_begin(t);
	if (asked_for(o))
		tobj_set_flags(t, o, (o->flags & OBJECT_REDUCE_LATER) | o->reduce_policy);
	rc = take_pages(&r, o, pages);
	if (!rc && r.work_count) {
		rc = take_blocks(&r, blocks);
		if (!rc)
			rc = round_payload(t, &r, &damaged);
		reduce_progress(t, o);
		if (!rc && unchanged(&r))
			dedup_hint(&r);
		else if (!rc)
			rc = round_commit(t, &r);
		if (!rc)
			atomic_fetch_add(&t->reduced_blocks, r.payload_count);
		txn_publish(t);
	} else if (!rc && o->reduce_page >= o->region_count * REGION_PAGES) {
		rc = object_done(t, o);
	}
	if (rc && !atomic_load(&t->failed)) {
		txn_abort(t);
		o->reduce_page = from;
		reduce_progress(t, o);
	}
	round_free(&r);
	free(pages);
	free(blocks);
	return rc;
}

bool reduce_has_room(const struct tier *t)
{
	return segments_have_room(&t->seg, STREAM_HOT, STEP_PAGES * PAGE_BLOCKS);
}

bool reduce_step(struct tier *t)
{
	uint32_t most = t->settle.waiting ? FILL_FULL : FILL_SHARE;
	int rc = 0;

	/* Before the hints are filled, equal blocks would not be found, and not be looked for again. */
	if (!t->reduce_wanted || !atomic_load(&t->dedup.rebuilt) || pace_fill(t) >= most ||
	    atomic_load(&t->failed) || !reduce_has_room(t))
		return false;
	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		if (o->state != OBJECT_LIVE || !(asked_for(o) || o->flags & OBJECT_REDUCE_LATER))
			continue;
		pthread_mutex_lock(&t->commit_lock);
		rc = reduce_object(t, o);
		pthread_mutex_unlock(&t->commit_lock);
		t->settle.reduce_rc = rc;
		if (rc)
			log_warn("tier",
				 "reducing existing data failed; later again",
				 "object=%llu rc=%s", (unsigned long long)o->id, err_name(rc));
		return !rc;
	}
	t->reduce_wanted = false;
	return false;
}

/* ---- As asked ----------------------------------------------------------------------------------
 */

void reduce_progress(struct tier *t, struct tobj *o)
{
	struct tvolume *v = volume_get(t, o->volume);
	uint64_t left = 0;

	for (uint32_t i = o->reduce_page / REGION_PAGES;
	     i < o->region_count && asked_for(o) && o->state == OBJECT_LIVE; i++) {
		uint64_t mask = o->regions[i].now.mask;

		if (i == o->reduce_page / REGION_PAGES)
			mask &= ~0ull << o->reduce_page % REGION_PAGES;
		left += (uint64_t)__builtin_popcountll(mask);
	}
	v->reduce_left += left - o->reduce_left;
	t->reduce_left += left - o->reduce_left;
	v->publish |= left != o->reduce_left;
	o->reduce_left = left;
}

void reduce_ask(struct tier *t, struct tobj *o, uint32_t number, uint16_t policy)
{
	if (o->reduce_want == number)
		return;
	o->reduce_want = number;
	o->reduce_policy = policy;
	o->reduce_page = 0;
	reduce_progress(t, o);
	txn_publish(t);
	if (asked_for(o))
		t->reduce_wanted = true;
}
