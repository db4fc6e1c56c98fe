/* SPDX-License-Identifier: Apache-2.0 */
/* The primary compares its pages with those of its members, one after the other (L6): manifests at
 * equal page versions. A block that a member says is damaged is repaired; two that are both sound
 * and differ are reported, and neither is written: nobody can tell which of them is right. */
#include <stdlib.h>

#include "cluster/replica_impl.h"

#define LOOK_PAGES   64u /* in one go, of those that nobody has written */
#define ANSWER_US    5000000u
#define NOTHING_US   10000000u /* nothing is served here: until it looks again */
#define TRIES        3u
#define DIVERGED_MAX 64u

struct diverged {
	uint64_t object;
	uint32_t page;
};

struct audit {
	struct replicator *r;
	uint64_t pass_s;  /* 0: off */
	bool asked, busy; /* asked: by an operator, one pass without waiting */
	uint64_t due_us, sent_us, object;
	uint32_t page;
	unsigned member, tries;
	uint64_t pages, passes;
	uint64_t here, counted_us; /* pages of all that is served here, counted now and then */
	/* the question under way */
	struct object *o;
	bool waiting, seen; /* for an answer; page known to exist */
	uint32_t join;
	struct msg_manifest theirs;
	struct store_manifest mine;
	struct wait wait;
	struct diverged diverged[DIVERGED_MAX];
	unsigned diverged_count;
};

static bool serving(const struct object *o)
{
	return o->primary && o->primary->state == PRIMARY_SERVE && o->store;
}

/* The first object at or after this id that is served here. */
static struct object *object_from(struct replicator *r, uint64_t id)
{
	struct object *o = object_find(r, id), *best = NULL;

	if (o && serving(o)) /* the same as before, for thousands of pages: without a walk over all */
		return o;
	list_for_each(o, &r->objects,
		      link) if (serving(o) && o->id >= id && (!best || o->id < best->id)) best = o;
	return best;
}

/* For the pace: as of some seconds ago is good enough, and a walk over all objects costs. */
static uint64_t pages_here(struct audit *a, uint64_t now)
{
	struct object *o;

	if (a->here && now - a->counted_us < NOTHING_US)
		return a->here;
	a->counted_us = now;
	a->here = 0;
	list_for_each(o, &a->r->objects, link) if (serving(o)) a->here += object_blocks(o) / PAGE_BLOCKS;
	return a->here;
}

static void next_page(struct audit *a)
{
	a->page++;
	a->member = a->tries = 0;
	a->seen = false;
	a->pages++;
}

/* ---- Comparing ----------------------------------------------------------------------------------
 */

static void diverged(struct audit *a, uint16_t node, uint64_t blocks)
{
	struct replicator *r = a->r;

	for (unsigned i = 0; i < a->diverged_count; i++)
		if (a->diverged[i].object == a->o->id && a->diverged[i].page == a->page)
			return;
	if (a->diverged_count < DIVERGED_MAX)
		a->diverged[a->diverged_count++] = (struct diverged){a->o->id, a->page};
	r->stats.diverged_pages = a->diverged_count;
	replica_event(
		r, 2, "DATA_DIVERGED",
		"object %llx page %u (blocks %llx): node %u and node %u hold different data under "
		"the same version, both sound; neither was changed",
		(unsigned long long)a->o->id, a->page, (unsigned long long)blocks, r->node, node);
}

static void agreed(struct audit *a)
{
	for (unsigned i = 0; i < a->diverged_count; i++)
		if (a->diverged[i].object == a->o->id && a->diverged[i].page == a->page) {
			a->diverged[i] = a->diverged[--a->diverged_count];
			a->r->stats.diverged_pages = a->diverged_count;
			return;
		}
}

/* Blocks that differ; holes and zeroes are the same bytes. */
static uint64_t compare(const struct store_manifest *a, const struct msg_manifest *b)
{
	uint64_t zero = hash_zero_block().lo, out = 0;

	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		uint64_t bit = 1ull << i;

		if ((a->damaged | b->damaged) & bit)
			continue;
		if ((a->data & bit ? a->fp64[i] : zero) != (b->data & bit ? b->fp64[i] : zero))
			out |= bit;
	}
	return out;
}

static void audit_next(struct audit *a);

static void release(struct audit *a)
{
	a->busy = false;
	if (a->o)
		object_release(a->o);
	a->o = NULL;
}

static struct member *the_member(struct audit *a)
{
	struct primary *p = a->o && serving(a->o) ? a->o->primary : NULL;
	struct member *m = p && a->member < p->member_count ? &p->member[a->member] : NULL;

	return m && m->state == MEMBER_JOINED && !m->fill && m->want && m->join == a->join ? m
											   : NULL;
}

/* Our page as of now, with theirs in hand. */
static void compared(struct audit *a)
{
	struct member *m = the_member(a);
	uint64_t blocks;

	if (!m || !version_eq(a->mine.version, a->theirs.version)) {
		if (!m || ++a->tries >= TRIES) { /* it is being written: another time */
			a->member++;
			a->tries = 0;
		}
		return;
	}
	damage_found(a->r, a->o, a->page, a->theirs.damaged & ~a->mine.damaged);
	blocks = compare(&a->mine, &a->theirs);
	if (blocks && !rule(RULE_SOUND))
		damage_found(a->r, a->o, a->page, blocks);
	if (blocks && ++a->tries < TRIES)
		return; /* a second look before it counts */
	if (blocks)
		diverged(a, m->node, blocks);
	else
		agreed(a);
	a->member++;
	a->tries = 0;
}

static void looked(struct audit *a, int rc)
{
	if (rc) {
		next_page(a);
	} else if (!a->seen) {
		a->seen = true;
		if (!a->mine.version.seq)
			next_page(a); /* nobody has written it */
	} else {
		compared(a);
	}
	release(a);
	a->due_us = 0;
}

static void audit_resume(struct wait *w, int rc)
{
	struct audit *a = container_of(w, struct audit, wait);

	looked(a, rc);
	if (a->asked && !a->r->stopping)
		audit_next(a);
}

static bool look(struct audit *a)
{
	int rc;

	a->busy = true;
	object_hold(a->o);
	a->mine = (struct store_manifest){.page = a->page};
	a->wait.resume = audit_resume;
	rc = store_manifest(a->o->store, &a->mine, &a->wait);
	if (rc == PENDING)
		return false;
	looked(a, rc);
	return true;
}

/* ---- Asking -------------------------------------------------------------------------------------
 */

void audit_manifest(struct member *m, const struct msg_manifest *x)
{
	struct audit *a = m->primary->r->audit;

	if (!a || !a->waiting || a->o != m->primary->object || x->page != a->page ||
	    the_member(a) != m)
		return;
	a->waiting = false;
	a->theirs = *x;
	object_release(a->o); /* look holds it anew */
	if (look(a))
		audit_next(a);
}

static void ask(struct audit *a, struct member *m)
{
	uint8_t body[32];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_manifest q = {.key = {a->o->id, a->o->primary->tenure, m->join},
				 .page = a->page};

	msg_manifest_encode(&q, &w);
	session_send(m->session, OP_MANIFEST, &w, NULL);
	a->join = m->join;
	a->waiting = true;
	a->sent_us = loop_mono_us(a->r->loop);
	object_hold(a->o);
}

static void pass_end(struct audit *a)
{
	a->object = 0;
	a->page = 0;
	a->asked = false;
	a->passes++;
	a->r->stats.audits++;
}

/* Goes on until it waits for something. */
static void audit_next(struct audit *a)
{
	for (unsigned i = 0; i < LOOK_PAGES && !a->busy && !a->waiting; i++) {
		struct object *o = object_from(a->r, a->object);
		struct primary *p;

		if (!o) {
			pass_end(a);
			break;
		}
		if (o->id != a->object) {
			a->object = o->id;
			a->page = 0;
			a->member = a->tries = 0;
			a->seen = false;
		}
		if (a->page * PAGE_BLOCKS >= object_blocks(o)) {
			a->object++;
			a->page = 0;
			a->seen = false;
			continue;
		}
		p = o->primary;
		a->o = o;
		if (!a->seen) {
			look(a);
			continue;
		}
		while (a->member < p->member_count &&
		       !(p->member[a->member].state == MEMBER_JOINED && p->member[a->member].want &&
			 !p->member[a->member].fill))
			a->member++;
		if (a->member == p->member_count) {
			next_page(a);
			a->o = NULL;
			if (!a->asked)
				break; /* a page is done: the pace decides */
			continue;
		}
		ask(a, &p->member[a->member]);
	}
}

void audit_tick(struct replicator *r)
{
	struct audit *a = r->audit;
	uint64_t now, n, before;

	if (!a || (!a->pass_s && !a->asked))
		return;
	now = loop_mono_us(r->loop);
	if (a->waiting && now - a->sent_us > ANSWER_US) {
		a->waiting = false;
		object_release(a->o);
		a->o = NULL;
		a->member++;
	}
	if (a->waiting || a->busy || now < a->due_us)
		return;
	before = a->pages;
	audit_next(a);
	if (a->asked)
		return;
	n = pages_here(a, now);
	if (a->pages != before)
		a->due_us = now + a->pass_s * 1000000 / MAX(n, 1) * (a->pages - before);
	else if (!n)
		a->due_us = now + NOTHING_US;
}

void replicator_audit_pace(struct replicator *r, uint32_t pass_s)
{
	r->audit->pass_s = pass_s;
}

void replicator_audit_start(struct replicator *r)
{
	struct audit *a = r->audit;

	a->asked = true;
	a->object = 0;
	a->page = 0;
	a->member = a->tries = 0;
	a->seen = false;
	a->due_us = 0;
}

void audit_create(struct replicator *r)
{
	r->audit = xcalloc(1, sizeof(*r->audit));
	r->audit->r = r;
}

void audit_destroy(struct replicator *r)
{
	free(r->audit);
	r->audit = NULL;
}
