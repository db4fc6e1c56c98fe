/* SPDX-License-Identifier: Apache-2.0 */
/* What a replica is told that it cannot produce (by scrub, reads, destage), until it can again.
 *
 * There is one way of repair: the primary mends (replica_repair.c). It reads the blocks, verified,
 * from itself or from a member of want, and writes them to all replicas as a write of its own, so
 * what a replica had under an older version, good or bad, is never copied over anything. A member
 * tells its primary (DAMAGED); one that is being filled waits, a copy brings what it lacks. A
 * replica is repaired when its own store says so.
 *
 * Slow on purpose: a few pages at a time, none while the log is filling. What finds no room in the
 * table is told again by the store's next pass. */
#include <stdlib.h>

#include "cluster/replica_impl.h"

#define DAMAGES_MAX   1024u
#define DAMAGES_BUSY  4u
#define AGAIN_US      1000000u
#define ASKED_US      2000000u  /* a primary that was asked has so long before it is asked again */
#define LOST_AGAIN_US 10000000u /* no replica has it: another one may return */

struct damage {
	struct list link; /* r->damages */
	struct replicator *r;
	struct object *held; /* while an asynchronous call is under way */
	uint64_t object, blocks, todo, due_us, found_us;
	uint32_t gen, page;
	bool theirs; /* of a member that asked: mended without a look at what is here */
	bool busy, single, lost, asked;
	struct wait wait;
	struct store_manifest manifest;
	uint32_t first, count; /* of the page: the run being mended */
};

static uint64_t mono(struct replicator *r)
{
	return loop_mono_us(r->loop);
}

static void drop(struct damage *d)
{
	struct replicator *r = d->r;

	list_del(&d->link);
	r->damage_count--;
	r->stats.damaged_blocks -= (unsigned)__builtin_popcountll(d->theirs ? 0 : d->blocks);
	if (d->lost)
		r->stats.lost_blocks -= (unsigned)__builtin_popcountll(d->blocks);
	free(d);
}

/* Not now. */
static void later(struct damage *d, uint64_t us)
{
	if (d->busy)
		d->r->damage_busy--;
	d->busy = false;
	d->due_us = mono(d->r) + us;
	if (d->held)
		object_release(d->held);
	d->held = NULL;
}

static void set_lost(struct damage *d, bool lost)
{
	if (d->lost == lost || d->theirs)
		return;
	d->lost = lost;
	if (lost) {
		d->r->stats.lost_blocks += (unsigned)__builtin_popcountll(d->blocks);
		replica_event(
			d->r, 2, "DATA_CORRUPT_UNREPAIRABLE",
			"object %llx, blocks %u to %u (mask %llx): no replica in reach can produce "
			"them; reads of them fail",
			(unsigned long long)d->object, d->page * PAGE_BLOCKS,
			d->page * PAGE_BLOCKS + PAGE_BLOCKS - 1, (unsigned long long)d->blocks);
	} else {
		d->r->stats.lost_blocks -= (unsigned)__builtin_popcountll(d->blocks);
	}
}

static void repaired(struct damage *d, uint64_t blocks)
{
	unsigned n = (unsigned)__builtin_popcountll(blocks);

	if (d->theirs || !n)
		return;
	set_lost(d, false);
	d->r->stats.repaired_blocks += n;
	d->r->stats.damaged_blocks -= n;
	d->blocks &= ~blocks;
	log_info("replica", "damaged blocks are whole again", "object=%llx page=%u blocks=%u",
		 (unsigned long long)d->object, d->page, n);
}

/* ---- At the primary ---- */

static void mend_next(struct damage *d);

static void mended(void *arg, uint8_t status)
{
	struct damage *d = arg;
	uint64_t run = blocks_mask(d->first, d->count);

	if (status == IO_OK) {
		d->todo &= ~run;
		repaired(d, run);
		mend_next(d);
	} else if (status == IO_MEDIUM_ERROR && d->count > 1) {
		d->single = true; /* some of them may be had */
		mend_next(d);
	} else if (status == IO_MEDIUM_ERROR) {
		d->todo &= ~run;
		mend_next(d);
	} else {
		later(d, AGAIN_US);
	}
}

static void mend_next(struct damage *d)
{
	unsigned first, n = 1;

	if (!d->todo) {
		later(d, LOST_AGAIN_US);
		if (!d->blocks || d->theirs)
			drop(d);
		else
			set_lost(d, true);
		return;
	}
	first = (unsigned)__builtin_ctzll(d->todo);
	while (!d->single && first + n < PAGE_BLOCKS && d->todo >> (first + n) & 1)
		n++;
	d->first = first;
	d->count = n;
	if (!mend_begin(d->r, d->object, d->page * PAGE_BLOCKS + first, n, true, mended, d))
		later(d, AGAIN_US);
}

/* ---- One page ---- */

static void ask_primary(struct damage *d)
{
	struct inbound *in = &d->held->in;
	uint8_t body[64];
	struct writer w = writer_init(body, sizeof(body));
	struct msg_damaged m = {
		.key = {d->object, in->tenure, in->join}, .page = d->page, .blocks = d->blocks};

	msg_damaged_encode(&m, &w);
	session_send(in->session, OP_DAMAGED, &w, NULL);
	d->asked = true;
	later(d, ASKED_US);
}

static void act(struct damage *d)
{
	struct object *o = d->held;

	if (o->primary && o->primary->state == PRIMARY_SERVE) {
		d->todo = d->blocks;
		d->single = false;
		mend_next(d);
	} else if (d->theirs) {
		later(d, 0); /* whoever is primary now is asked again */
		drop(d);
	} else if (o->in.state == IN_JOINED && o->in.current && o->in.session) {
		ask_primary(d);
	} else {
		later(d, ASKED_US); /* a takeover or a copy comes first */
	}
}

static void looked(struct wait *w, int rc)
{
	struct damage *d = container_of(w, struct damage, wait);

	if (rc) {
		later(d, AGAIN_US);
		return;
	}
	repaired(d, d->blocks & ~d->manifest.damaged);
	if (d->blocks) {
		act(d);
	} else {
		later(d, 0);
		drop(d);
	}
}

static void begin(struct damage *d)
{
	struct object *o = object_find(d->r, d->object);
	int rc;

	if (!o || !o->store || (d->gen && o->gen != d->gen) ||
	    d->page * PAGE_BLOCKS >= object_blocks(o)) {
		drop(d);
		return;
	}
	d->blocks &= blocks_mask(0, MIN(PAGE_BLOCKS, object_blocks(o) - d->page * PAGE_BLOCKS));
	if (!o->group || o->group->failed || o->group->fill >= LOG_PACED) {
		later(d, AGAIN_US);
		return;
	}
	d->busy = true;
	d->r->damage_busy++;
	d->held = o;
	object_hold(o);
	if (d->theirs) {
		act(d);
		return;
	}
	d->wait.resume = looked;
	d->manifest = (struct store_manifest){.page = d->page};
	rc = store_manifest(o->store, &d->manifest, &d->wait);
	if (rc != PENDING)
		looked(&d->wait, rc);
}

/* ---- The table ---- */

static void note(struct replicator *r, uint64_t object, uint32_t gen, uint32_t page,
		 uint64_t blocks, bool theirs)
{
	struct damage *d;

	if (!blocks || r->stopping)
		return;
	list_for_each(d, &r->damages, link)
	{
		if (d->object != object || d->page != page || d->theirs != theirs)
			continue;
		if (blocks & ~d->blocks) {
			set_lost(d, false);
			if (!theirs)
				r->stats.damaged_blocks +=
					(unsigned)__builtin_popcountll(blocks & ~d->blocks);
			d->blocks |= blocks;
			d->due_us = 0;
		}
		return;
	}
	if (r->damage_count == DAMAGES_MAX)
		return;
	d = xcalloc(1, sizeof(*d));
	d->r = r;
	d->object = object;
	d->gen = gen;
	d->page = page;
	d->blocks = blocks;
	d->theirs = theirs;
	d->found_us = mono(r);
	r->damage_count++;
	if (!theirs) {
		r->stats.damaged_blocks += (unsigned)__builtin_popcountll(blocks);
		log_warn("replica", "blocks are damaged here and wait for repair",
			 "object=%llx page=%u blocks=%llx", (unsigned long long)object, page,
			 (unsigned long long)blocks);
	}
	list_push_back(&r->damages, &d->link);
}

void damage_told(void *replicator, const struct store_damage *d)
{
	note(replicator, d->object, d->gen, d->page, d->blocks, false);
}

void damage_found(struct replicator *r, const struct object *o, uint32_t page, uint64_t blocks)
{
	note(r, o->id, o->gen, page, blocks, true);
}

void damage_asked(struct session *s, const struct msg_damaged *m)
{
	struct object *o = object_find(s->r, m->key.object);

	if (!o || !o->primary || o->primary->tenure != m->key.tenure ||
	    !primary_member(o->primary, s, m->key.join))
		return;
	note(s->r, m->key.object, 0, m->page, m->blocks, true);
}

void damage_tick(struct replicator *r)
{
	struct damage *d, *tmp;
	uint64_t now;

	if (list_empty(&r->damages))
		return;
	now = mono(r);
	list_for_each_safe(d, tmp, &r->damages, link)
	{
		if (r->damage_busy >= DAMAGES_BUSY)
			return;
		if (!d->busy && d->due_us <= now)
			begin(d);
	}
}

/* All operations and store calls have ended. */
void damage_destroy(struct replicator *r)
{
	struct list *n;

	while ((n = list_pop_front(&r->damages)))
		free(list_entry(n, struct damage, link));
}
