/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that were stored raw because the reducer was behind: deduplicated and compressed when there
 * is time, by their volume's policy of now. A block moves only if it gets smaller. It must never
 * touch a page of an object that has none marked, and never run while there is something to
 * destage. */
#include <stdlib.h>

#include "store/destage.h"

#define STEP_PAGES 32u
#define STEP_LOOK  256u /* pages looked at per step */

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
		if (!(w->page->flags & MAP_PAGE_REDUCE_LATER) || w->load_failed)
			continue;
		w->page->flags &= (uint8_t)~MAP_PAGE_REDUCE_LATER;
		hmap_insert(&r->t->round, &w->node, page_hash(o->id, w->index));
		r->work_count++;
	}
	return 0;
}

static void take_blocks(struct round *r, struct destage_block *blocks)
{
	struct tobj *o;

	for (unsigned i = 0; i < r->work_count; i++) {
		struct work_page *w = &r->work[i];

		o = w->o;
		for (uint64_t m = w->page->mask; m; m &= m - 1) {
			unsigned k = (unsigned)__builtin_ctzll(m);
			uint64_t word = w->page->entry[k].word;
			struct destage_block *b = &blocks[r->payload_count];

			if (map_entry_kind(word) != MAP_RAW ||
			    !r->t->seg.dev[map_entry_device(word)].dev)
				continue;
			*b = (struct destage_block){
				.index = (uint8_t)k,
				.kind = MAP_RAW,
				.fp64 = w->page->entry[k].fp64,
				.log_off = map_entry_offset(word),
				.log_device = r->t->seg.dev[map_entry_device(word)].dev};
			r->payload[r->payload_count++] =
				(struct payload){.block = b,
						 .w = w,
						 .gen = o->gen,
						 .again = true,
						 .dedup = o->flags & OBJECT_DEDUP,
						 .compression = o->flags & OBJECT_COMPRESSION};
		}
	}
}

/* The walk is through. False: another object may have marks. */
static int object_done(struct tier *t, struct tobj *o)
{
	int rc = 0;

	o->reduce_page = 0;
	if (!o->reduce_again) {
		tobj_set_flags(t, o, o->flags & ~(unsigned)OBJECT_REDUCE_LATER);
		rc = txn_commit(t);
	}
	o->reduce_again = false;
	return rc;
}

static int reduce_object(struct tier *t, struct tobj *o)
{
	struct map_page *pages = xmalloc(STEP_PAGES * sizeof(*pages));
	struct destage_block *blocks = xmalloc(STEP_PAGES * PAGE_BLOCKS * sizeof(*blocks));
	struct round r = {.t = t};
	uint64_t damaged = 0;
	uint32_t from = o->reduce_page;
	int rc;

	r.work = xmalloc(STEP_PAGES * sizeof(*r.work));
	r.payload = xmalloc(STEP_PAGES * PAGE_BLOCKS * sizeof(*r.payload));
	txn_begin(t);
	rc = take_pages(&r, o, pages);
	if (!rc && r.work_count) {
		take_blocks(&r, blocks);
		rc = round_payload(t, &r, STREAM_GC, &damaged);
		if (!rc)
			rc = round_commit(t, &r);
		if (!rc)
			atomic_fetch_add(&t->reduced_blocks, r.payload_count);
	} else if (!rc && o->reduce_page >= o->region_count * REGION_PAGES) {
		rc = object_done(t, o);
	}
	if (rc && !atomic_load(&t->failed)) {
		txn_abort(t);
		o->reduce_page = from;
	}
	round_free(&r);
	free(pages);
	free(blocks);
	return rc;
}

bool reduce_step(struct tier *t)
{
	int rc = 0;

	if (!t->reduce_wanted || pace_fill(t) >= FILL_SHARE || atomic_load(&t->failed) ||
	    !segments_have_room(&t->seg, STREAM_HOT, STEP_PAGES * PAGE_BLOCKS))
		return false;
	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		if (o->state != OBJECT_LIVE || !(o->flags & OBJECT_REDUCE_LATER))
			continue;
		pthread_mutex_lock(&t->commit_lock);
		rc = reduce_object(t, o);
		pthread_mutex_unlock(&t->commit_lock);
		if (rc)
			log_warn("tier",
				 "reducing what was stored raw under load failed; later again",
				 "object=%llu rc=%s", (unsigned long long)o->id, err_name(rc));
		return !rc;
	}
	t->reduce_wanted = false;
	return false;
}
