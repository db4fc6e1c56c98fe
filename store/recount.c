/* SPDX-License-Identifier: Apache-2.0 */
/* An object that lost a map page lost what its counters and folds were made from: they are made
 * anew from the pages it has. Lost ones are written as damaged, so that they are found as such.
 * Destager. */
#include <stdlib.h>

#include "store/tier_internal.h"

struct recount {
	struct tier *t;
	struct tobj *o;
	struct work_page work[REGION_PAGES];
	struct map_page pages[REGION_PAGES];
	struct object_counters counters;
	bool lost;
};

/* A region: its pages counted, its fold made. */
static int region(struct recount *r, uint32_t index)
{
	uint64_t mask = r->o->regions[index].now.mask, fold = 0;
	unsigned n = 0;
	int rc;

	for (uint64_t m = mask; m; m &= m - 1) {
		r->work[n] = (struct work_page){.o = r->o,
						.index = index * REGION_PAGES +
							 (unsigned)__builtin_ctzll(m),
						.page = &r->pages[n]};
		n++;
	}
	rc = txn_load(r->t, r->work, n);
	for (unsigned i = 0; i < n && !rc; i++) {
		struct work_page *w = &r->work[i];

		if (w->load_failed) {
			txn_page(r->t, w);
			r->lost = true;
		}
		for (uint64_t m = w->page->mask; m; m &= m - 1) {
			uint64_t word = w->page->entry[__builtin_ctzll(m)].word;

			count_entry(&r->counters, map_entry_kind(word), map_entry_units(word), 1);
		}
		fold ^= store_fold_term(w->index, w->page->version);
	}
	if (!rc && fold != r->o->regions[index].now.fold)
		txn_region(r->t, r->o, index)->next.fold = fold;
	return rc;
}

struct folds {
	struct post post;
	struct tier_shard *shard;
	uint64_t object;
	uint32_t count;
	struct map_region region[];
};

static void folds_run(struct post *p)
{
	struct folds *f = container_of(p, struct folds, post);

	/* In order with what batches bring: those of before this commit have been there. */
	if (shard_object_get(f->shard, f->object, false))
		for (uint32_t i = 0; i < f->count; i++)
			if (f->region[i].mask)
				*shard_region(f->shard, f->object, i, true) = f->region[i];
	free(f);
}

static void tell_folds(struct tier *t, const struct tobj *o)
{
	struct folds *f = xmalloc(sizeof(*f) + o->region_count * sizeof(f->region[0]));

	f->post.fn = folds_run;
	f->shard = &t->shards[o->id % t->shard_count];
	f->object = o->id;
	f->count = o->region_count;
	for (uint32_t i = 0; i < o->region_count; i++)
		f->region[i] = o->regions[i].now;
	loop_post(f->shard->loop, &f->post);
}

static int recount(struct tier *t, struct tobj *o)
{
	struct recount *r = xcalloc(1, sizeof(*r));
	int rc = 0;

	r->t = t;
	r->o = o;
	pthread_mutex_lock(&t->commit_lock);
	txn_begin(t);
	for (uint32_t i = 0; i < o->region_count && !rc; i++)
		rc = region(r, i);
	if (!rc) {
		log_warn("tier", "an object that lost a map page was counted again",
			 "object=%llx mapped=%llu damaged=%llu", (unsigned long long)o->id,
			 (unsigned long long)r->counters.mapped,
			 (unsigned long long)r->counters.damaged);
		txn_object(t, o);
		o->counters_next = r->counters;
		rc = txn_commit(t);
	}
	if (rc && !atomic_load(&t->failed))
		txn_abort(t);
	pthread_mutex_unlock(&t->commit_lock);
	if (!rc) {
		tell_folds(t, o);
		t->scrub.telling |= r->lost;
	}
	free(r);
	return rc;
}

bool recount_step(struct tier *t)
{
	bool any = false;

	if (!t->recount_wanted || atomic_load(&t->failed))
		return false;
	t->recount_wanted = false;
	for (struct hnode *n = hmap_walk(&t->objects, NULL); n; n = hmap_walk(&t->objects, n)) {
		struct tobj *o = container_of(n, struct tobj, node);

		if (!o->recount || o->state != OBJECT_LIVE)
			continue;
		any = true;
		/* Flags that its own loads set again come from pages it has just written. */
		if (!recount(t, o))
			o->recount = false;
		else
			t->recount_wanted = true;
		break;
	}
	t->recount_wanted |= any;
	return any;
}
