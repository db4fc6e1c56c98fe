/* SPDX-License-Identifier: Apache-2.0 */
/* One block of a round against what is stored: equal blocks of the round, shares, unshared blocks
 * of other pages. It must never refer to a block that it has not compared byte for byte, and never
 * to one whose owner's entry is not exactly that place in this very commit. */
#include <stdlib.h>

#include "store/codec.h"
#include "store/destage.h"

/* ---- Blocks of this round ----------------------------------------------------------------------
 */

static struct payload *local_find(struct round *r, struct fp128 fp, uint32_t **slot)
{
	uint32_t i;

	if (!r->local) {
		r->local_mask = 63;
		while (r->local_mask < r->payload_count * 2)
			r->local_mask = r->local_mask * 2 + 1;
		r->local = xcalloc((size_t)r->local_mask + 1, sizeof(*r->local));
		r->scratch = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	}
	for (i = fp.lo & r->local_mask; r->local[i]; i = (i + 1) & r->local_mask)
		if (fp128_equal(r->payload[r->local[i] - 1].fp, fp))
			return &r->payload[r->local[i] - 1];
	*slot = &r->local[i];
	return NULL;
}

static bool local_equal(struct round *r, const struct payload *q, const uint8_t *data)
{
	if (q->data)
		return !memcmp(q->data, data, BLOCK_SIZE);
	if (q->was_packed ? !dedup_read(r->t, q->word, r->scratch)
			  : device_pread(q->block->log_device, r->scratch, BLOCK_SIZE, q->block->log_off))
		return false;
	return !memcmp(r->scratch, data, BLOCK_SIZE);
}

/* ---- Referring ---------------------------------------------------------------------------------
 */

static int refer(struct round *r, struct payload *p, struct tshare *s)
{
	struct map_entry *e = &p->w->page->entry[p->block->index];

	if (p->again)
		txn_entry_clear(r->t, p->w, p->block->index);
	e->word = map_share_word(s->id);
	e->fp64 = p->block->fp64;
	txn_entry_set(r->t, p->w, p->block->index, MAP_SHARE, 1);
	share_ref(r->t, s, p->w->o->volume, 1);
	p->share = s;
	atomic_fetch_add_explicit(&r->t->dedup.matched_blocks, 1, memory_order_relaxed);
	return 1;
}

/* An equal block that was appended earlier in this round becomes a share; its place follows. */
static int refer_local(struct round *r, struct payload *p, struct payload *q)
{
	if (!q->share) {
		struct map_entry *e = &q->w->page->entry[q->block->index];

		if (q->stored) {
			q->share = share_create(r->t, q->fp, 0, q->w->o->volume);
			txn_entry_share(r->t, q->w, q->block->index,
					q->units == 64 ? MAP_RAW : MAP_LZ4, q->units, q->share);
		} else if (q->again && map_entry_has_place(e->word)) {
			q->share = share_create(r->t, q->fp, e->word, q->w->o->volume);
			txn_entry_share(r->t, q->w, q->block->index, map_entry_kind(e->word),
					map_entry_units(e->word), q->share);
			e->word = map_share_word(q->share->id);
		} else {
			return 0;
		}
	}
	return q->share->next.refs == UINT32_MAX ? 0 : refer(r, p, q->share);
}

void dedup_resolve(struct round *r)
{
	for (unsigned i = 0; i < r->payload_count && r->local; i++) {
		struct payload *p = &r->payload[i];
		struct map_entry *e = &p->w->page->entry[p->block->index];

		if (!p->share || !p->stored)
			continue;
		p->share->next.word = e->word;
		e->word = map_share_word(p->share->id);
	}
}

/* ---- Candidates --------------------------------------------------------------------------------
 */

static bool bytes_equal(struct tier *t, uint64_t word, const uint8_t *data)
{
	uint8_t stored[BLOCK_SIZE];

	return dedup_read(t, word, stored) && !memcmp(stored, data, BLOCK_SIZE);
}

/* What is stored raw, for load or by the policy of then, is stored smaller from now on. The payload's
 * bytes are those of the share, and verified. */
int dedup_shrink(struct round *r, struct payload *p, struct tshare *s)
{
	uint8_t buf[CODEC_UNITS_MAX * CODEC_UNIT];
	const uint8_t *packed;
	unsigned units = p->compression && share_is_raw(s) ? payload_pack(p, buf, &packed) : 0;
	struct unit_entry u = {.object = p->w->o->id,
			       .gen = p->gen,
			       .version = p->w->page->version,
			       .block = p->w->index * PAGE_BLOCKS + p->block->index};

	if (!units)
		return 0;
	round_share_moved(r, s->id);
	return share_repack(r->t, s, r->stream, &u, packed, units);
}

static int match_share(struct round *r, struct payload *p, const uint8_t *data, uint64_t id)
{
	struct tshare *s;
	int rc = share_get(r->t, id, &s);

	if (rc)
		return rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT ? 0 : rc;
	if (!fp128_equal(s->next.fp, p->fp) || !map_entry_has_place(s->next.word) ||
	    s->next.refs == UINT32_MAX || !bytes_equal(r->t, s->next.word, data))
		return 0;
	rc = dedup_shrink(r, p, s);
	return rc ? rc : refer(r, p, s);
}

/* The owner's page as this commit has it; NULL: the owner gives nothing. */
static int owner_page(struct round *r, const struct unit_entry *e, struct work_page **out)
{
	struct tobj *o = tobj_find(r->t, e->object);
	struct extra_page *x;
	int rc;

	*out = NULL;
	if (!o || o->gen != e->gen || o->state != OBJECT_LIVE || !(o->flags & OBJECT_DEDUP))
		return 0;
	*out = round_page(r->t, e->object, e->block / PAGE_BLOCKS);
	if (*out)
		return 0;
	x = xcalloc(1, sizeof(*x));
	x->w = (struct work_page){
		.o = o, .index = e->block / PAGE_BLOCKS, .page = &x->page, .untold = true};
	rc = txn_load(r->t, &x->w, 1);
	if (rc) {
		free(x);
		return rc;
	}
	x->next = r->extra;
	r->extra = x;
	r->extra_count++;
	hmap_insert(&r->t->round, &x->w.node, page_hash(e->object, x->w.index));
	*out = &x->w;
	return 0;
}

/* The share that the block of this place has become, there or elsewhere; 0: none. have: the owner's entry
 * now, or NULL. */
static uint64_t share_instead(struct tier *t, uint64_t word, const struct map_entry *have, uint64_t fp64)
{
	uint64_t id = share_of_place(t, word);

	return id ? id
	       : have && have->fp64 == fp64 && map_entry_kind(have->word) == MAP_SHARE
		       ? map_share_id(have->word)
		       : 0;
}

static int match_place(struct round *r, struct payload *p, const uint8_t *data, uint64_t place)
{
	struct tier *t = r->t;
	struct map_entry *have;
	struct work_page *w;
	struct unit_entry e;
	struct tshare *s;
	uint64_t word, id;
	unsigned i;
	int rc;

	if (!dedup_place_entry(t, place, &e) || !fp128_equal(e.fp, p->fp))
		return 0;
	word = map_entry_word(e.codec, e.units, 0, 0) | place << 9;
	i = e.block % PAGE_BLOCKS;
	rc = owner_page(r, &e, &w);
	if (rc)
		return rc;
	have = w && w->page->mask >> i & 1 && !(w->changed >> i & 1) ? &w->page->entry[i] : NULL;
	if (!have || have->word != word) {
		id = share_instead(t, word, have, p->fp.lo);
		return id ? match_share(r, p, data, id) : 0;
	}
	/* Not itself; nor one that was not compared with anything itself: what it may be equal to would
	 * never be found. */
	if ((w == p->w && i == p->block->index) || w->page->flags & MAP_PAGE_REDUCE_LATER ||
	    !bytes_equal(t, word, data))
		return 0;
	s = share_create(t, p->fp, word, w->o->volume);
	txn_entry_share(t, w, i, e.codec, e.units, s);
	have->word = map_share_word(s->id);
	rc = dedup_shrink(r, p, s);
	return rc ? rc : refer(r, p, s);
}

int dedup_match(struct round *r, struct payload *p)
{
	const uint8_t *data = p->data;
	uint32_t *slot = NULL;
	struct payload *q = local_find(r, p->fp, &slot);
	uint64_t hint[8];
	unsigned n;
	int rc = 0;

	if (q)
		return local_equal(r, q, data) ? refer_local(r, p, q) : 0;
	*slot = (uint32_t)(p - r->payload) + 1;
	n = hints_get(&r->t->dedup.hints, p->fp, hint);
	for (unsigned i = 0; i < MIN(n, HINTS_TRIED) && !rc; i++) {
		rc = hint[i] & HINT_SHARED ? match_share(r, p, data, hint[i] & ~HINT_SHARED)
					   : match_place(r, p, data, hint[i]);
		if (!rc)
			atomic_fetch_add_explicit(&r->t->dedup.false_hints, 1,
						  memory_order_relaxed);
	}
	return rc;
}

void dedup_hint(struct round *r)
{
	struct hints *h = &r->t->dedup.hints;

	/* What was not compared with anything must not hide what it may be equal to: reduce.c does both. */
	for (unsigned i = 0; i < r->payload_count && r->match; i++) {
		struct payload *p = &r->payload[i];
		uint64_t word = p->w->page->entry[p->block->index].word;

		if (p->share)
			hints_put(h, p->fp, HINT_SHARED | p->share->id, false);
		else if (p->dedup && (p->stored || p->again) && map_entry_has_place(word))
			hints_put(h, p->fp, word >> 9 & (HINT_SHARED - 1), false);
	}
	atomic_store(&r->t->dedup.hint_bytes, hints_bytes(h));
	atomic_store(&r->t->dedup.evicted_hints, h->evicted);
}
