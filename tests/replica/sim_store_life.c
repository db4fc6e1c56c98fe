/* SPDX-License-Identifier: Apache-2.0 */
/* What time and faults do to the simulator's store: destage lets entries go, a crash keeps what was durable
 * and an arbitrary prefix of the rest, a start replays; logs and maps are lost, blocks damaged; and what the
 * checks of the end ask. */
#include "tests/replica/sim_store_impl.h"

#include <stdlib.h>

/* ---- Destage, crash, replay ------------------------------------------------------------------ */

static bool object_settled(struct store_object *o)
{
	struct entry *e = NULL;

	while ((e = lane_next(o->s, e, o, false)))
		if (!e->durable)
			return false;
	return true;
}

static bool entry_released(const struct entry *e)
{
	const struct store_object *o = e->o;
	uint32_t first, n;

	if (!e->durable)
		return false;
	if (e->is_void || o->deleted)
		return e->no <= o->base_no || o->deleted;
	if (e->no > o->base_no)
		return false;
	if (!is_data_record(e->r.kind))
		return true;
	if (!e->applied)
		return false;
	first = e->r.block >> PAGE_SHIFT;
	n = record_pages(&e->r);
	for (uint32_t i = 0; i < n; i++)
		if (!(e->r.skip_mask >> i & 1) &&
		    (!o->page[first + i] ||
		     version_cmp(o->page[first + i]->base.v, e->r.version) < 0))
			return false;
	return true;
}

/* As the product's does it: a sound page is kept against one that is older. */
static void page_destage(struct page *p)
{
	if (version_cmp(p->view.v, p->base.v) < 0 && !page_damaged(&p->base))
		p->view = p->base;
	else
		p->base = p->view;
}

/* Some pages of the objects that are settled, their headers, then what this lets go of the lane. */
void sim_store_destage(struct store *s)
{
	struct store_object *o;
	struct list waiting = LIST_INIT(waiting), *n;
	bool room;

	if (s->failed || s->closed || s->kept_no)
		return;
	list_for_each(o, &s->objects, link)
	{
		if (o->deleted || !object_settled(o))
			continue;
		for (uint32_t i = 0; i < o->pages; i++)
			if (o->page[i] && (s->entries > s->limit / 2 || sim_chance(0.7)))
				page_destage(o->page[i]);
		o->base_h = o->h;
		o->base_last = o->last;
		retry_copy(&o->base_retry, &o->retry);
		o->base_no = s->no;
	}
	for (n = s->lane.next; n != &s->lane;) {
		struct entry *e = list_entry(n, struct entry, link);

		n = n->next;
		if (!entry_released(e))
			break;
		entry_free(e);
	}
	room = s->entries < s->limit;
	if (room)
		list_splice_back(&waiting, &s->space);
	while ((n = list_pop_front(&waiting))) {
		struct space_wait *sw = list_entry(n, struct space_wait, link);
		struct wait *w = sw->wait;

		free(sw);
		wait_resume(w, 0); /* may wait anew */
	}
}

/* From base and lane, as a start after a crash does. */
static void object_replay(struct store_object *o)
{
	struct entry *e = NULL;
	struct version known;

	for (uint32_t i = 0; i < o->pages; i++)
		if (o->page[i])
			o->page[i]->view = o->page[i]->base;
	o->h = o->base_h;
	o->last = o->base_last;
	known = o->base_h.commit;
	retry_copy(&o->retry, &o->base_retry);
	while ((e = lane_next(o->s, e, o, false)))
		e->applied = false;
	/* What was saved with the last destage knows the uncommitted records still in the lane. */
	o->known = known;
	e = NULL;
	while ((e = lane_next(o->s, e, o, false))) {
		known = version_max(known, e->r.commit);
		if (e->r.kind == RECORD_COPY) {
			advance_to(o, true, e->no);
			apply_entry(e, true);
		} else if (is_data_record(e->r.kind)) {
			if (e->no > o->base_no) {
				o->last = e->r.version;
				retry_note(&o->retry, &e->r, e->r.version);
			}
		} else if (e->no > o->base_no) {
			take_header(o, e);
		}
		o->known = version_max(o->known, known);
	}
	advance(o, true);
	o->durable = o->last;
}

void sim_store_attach(struct store *s, struct sim_proc *p)
{
	struct store_object *o, *tmp;

	s->p = p;
	turn_end_init(&s->turn, lane_batch);
	s->durable_at = 0;
	s->granted = 0;
	s->failed = 0;
	s->closed = false;
	s->node_incarnation = p->incarnation;
	list_for_each_safe(o, tmp, &s->objects, link) if (!o->deleted) object_replay(o);
}

void sim_store_fail(struct store *s, int code)
{
	s->failed = code;
}

void sim_store_crash(struct store *s)
{
	struct list *n, *prev;
	struct entry *e;
	struct job *j, *tmp;
	size_t lost = 0, keep = 0;

	/* Every wait ends, as store_stop promises. */
	for (n = s->lane.next; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		lost += !e->durable;
		if (e->op) {
			e->op = NULL;
			wait_resume(e->wait, -ERR_CLOSED);
		}
	}
	list_for_each_safe(j, tmp, &s->jobs, link)
	{
		struct wait *w = j->wait;

		list_del(&j->link); /* its event frees it */
		list_init(&j->link);
		j->ended = true;
		wait_resume(w, -ERR_CLOSED);
	}
	while ((n = list_pop_front(&s->space))) {
		struct space_wait *sw = list_entry(n, struct space_wait, link);

		wait_resume(sw->wait, -ERR_CLOSED);
		free(sw);
	}
	turn_end_disarm(&s->turn);
	/* Any prefix of what was under way may have reached the disk. */
	keep = lost ? sim_rand(0, lost) : 0;
	for (n = s->lane.next; n != &s->lane && keep; n = n->next) {
		e = list_entry(n, struct entry, link);
		if (!e->durable) {
			e->durable = true;
			keep--;
		}
	}
	for (n = s->lane.prev; n != &s->lane; n = prev) {
		e = list_entry(n, struct entry, link);
		prev = n->prev;
		if (!e->durable)
			entry_free(e);
	}
	/* A cut that is neither in the lane nor in what was saved with the last destage has cut nothing. */
	for (n = s->lane.next; n != &s->lane; n = n->next) {
		e = list_entry(n, struct entry, link);
		e->is_void = e->is_void && e->cut_no <= e->o->base_no;
	}
}

/* Its handle is void: whoever kept it finds nothing there. */
static void object_moves(struct store *s, struct store_object *o)
{
	struct store_object *to = xmalloc(sizeof(*to));

	*to = *o;
	list_push_back(&s->objects, &to->link);
	for (struct list *n = s->lane.next; n != &s->lane; n = n->next)
		if (list_entry(n, struct entry, link)->o == o)
			list_entry(n, struct entry, link)->o = to;
	list_del(&o->link);
	memset(o, 0, sizeof(*o));
	list_push_back(&s->graves, &o->link);
}

void sim_store_stop(struct store *s)
{
	s->closed = true;
	sim_store_crash(s);
}

void sim_store_close(struct store *s)
{
	struct list all = LIST_INIT(all);

	list_splice_back(&all, &s->objects);
	while (!list_empty(&all))
		object_moves(s, list_first(&all, struct store_object, link));
}

void sim_store_lose_log(struct store *s, uint32_t new_incarnation)
{
	struct store_object *o;

	while (!list_empty(&s->lane))
		entry_free(list_first(&s->lane, struct entry, link));
	s->incarnation = new_incarnation;
	list_for_each(o, &s->objects, link) o->base_no = s->no;
}

void sim_store_lose_map(struct store *s, uint32_t new_incarnation)
{
	struct store_object *o;

	sim_store_lose_log(s, new_incarnation);
	list_for_each(o, &s->objects, link) o->deleted = true;
}

/* What is destaged stays as it is until then, so what was there is what the lane begins with. */
void sim_store_keep(struct store *s)
{
	s->kept_no = s->no;
}

void sim_store_go_back(struct store *s)
{
	while (!list_empty(&s->lane) && list_last(&s->lane, struct entry, link)->no > s->kept_no)
		entry_free(list_last(&s->lane, struct entry, link));
	s->kept_no = 0;
}

unsigned sim_store_forget(struct store *s)
{
	unsigned n = 0;

	for (; n < 8 && !list_empty(&s->lane); n++) {
		struct entry *e = list_entry(s->lane.prev, struct entry, link);

		if (e->no <= e->o->base_no || !is_data_record(e->r.kind))
			break;
		entry_free(e);
	}
	return n;
}

void sim_store_slow(struct store *s, uint64_t us)
{
	s->slow_us = us;
}

/* ---- Damage ---------------------------------------------------------------------------------- */

void sim_store_spoil(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) o->damaged = true;
}

void sim_store_damage(struct store *s, uint64_t object, uint32_t block)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link)
	{
		struct page *pg =
			!o->deleted && o->id == object ? o->page[block >> PAGE_SHIFT] : NULL;

		if (!pg || pg->view.b[block % PAGE_BLOCKS].state != BLOCK_DATA)
			continue;
		pg->view.b[block % PAGE_BLOCKS].unreadable = true;
	}
}

void store_on_damage(struct store *s, unsigned shard,
		     void (*fn)(void *arg, const struct store_damage *d), void *arg)
{
	s->damage_fn = fn;
	s->damage_arg = arg;
}

static void alter(struct sblock *b)
{
	uint8_t bytes[BLOCK_SIZE] = {0};

	b->word[0] ^= 1ull << 40;
	for (unsigned k = 0; k < SIM_SECTORS_PER_BLOCK; k++)
		put_le64(bytes + k * SIM_SECTOR, b->word[k]);
	b->fp = hash_block(bytes);
}

bool sim_store_alter(struct store *s, uint64_t object, uint32_t block)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link)
	{
		struct page *pg = !o->deleted && o->id == object ? o->page[block >> PAGE_SHIFT] : NULL;
		unsigned i = block % PAGE_BLOCKS;

		if (!pg || pg->view.b[i].state != BLOCK_DATA)
			continue;
		alter(&pg->view.b[i]);
		if (pg->base.b[i].state == BLOCK_DATA)
			alter(&pg->base.b[i]);
		return true;
	}
	return false;
}

void sim_store_mark(struct store *s, uint64_t object, uint32_t block)
{
	struct store_object *o;

	sim_store_damage(s, object, block);
	list_for_each(o, &s->objects, link)
	{
		struct page *pg =
			!o->deleted && o->id == object ? o->page[block >> PAGE_SHIFT] : NULL;
		struct store_damage d = {object, o->gen, block >> PAGE_SHIFT,
					 1ull << block % PAGE_BLOCKS};

		if (!pg || !pg->view.b[block % PAGE_BLOCKS].unreadable)
			continue;
		pg->view.b[block % PAGE_BLOCKS].told = true;
		if (s->damage_fn)
			s->damage_fn(s->damage_arg, &d);
	}
}

bool sim_store_has_marked(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) for (uint32_t i = 0; i < o->pages; i++)
		for (unsigned b = 0; o->page[i] && b < PAGE_BLOCKS; b++)
			if (o->page[i]->view.b[b].told && o->page[i]->view.b[b].unreadable)
				return true;
	return false;
}

void sim_store_mend(struct store *s)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) for (uint32_t i = 0; i < o->pages;
						 i++) for (unsigned b = 0;
							   o->page[i] && b < PAGE_BLOCKS; b++)
		o->page[i]
			->view.b[b]
			.unreadable = o->page[i]->base.b[b].unreadable = false;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

bool sim_store_quiet(struct store *s)
{
	struct list *n;

	for (n = s->lane.next; n != &s->lane; n = n->next)
		if (!list_entry(n, struct entry, link)->durable)
			return false;
	return list_empty(&s->jobs);
}

bool sim_store_holds(struct store *s, uint64_t object)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) if (!o->deleted && o->id == object) return true;
	return false;
}

static struct store_object *only(struct store *s, uint64_t object)
{
	struct store_object *o;

	list_for_each(o, &s->objects, link) if (!o->deleted && o->id == object) return o;
	return NULL;
}

/* Equal page by page: version and content (bad blocks aside, which are known as such). */
const char *sim_store_compare(struct store *sa, struct store *sb, uint64_t object, uint32_t *page)
{
	struct store_object *a = only(sa, object), *b = only(sb, object);
	static const struct image none;

	if (!a || !b)
		return "a replica is missing";
	for (*page = 0; *page < a->pages; ++*page) {
		const struct image *x = a->page[*page] ? &a->page[*page]->view : &none;
		const struct image *y = b->page[*page] ? &b->page[*page]->view : &none;

		if (!version_eq(x->v, y->v))
			return "page versions differ";
		for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
			if (x->b[i].state == BLOCK_BAD || y->b[i].state == BLOCK_BAD)
				continue;
			if (x->b[i].state != y->b[i].state ||
			    memcmp(x->b[i].word, y->b[i].word, sizeof(x->b[i].word))) {
				sim_trace("block %u: state %u/%u, first word %llu/%llu, version "
					  "%u/%llu",
					  i, x->b[i].state, y->b[i].state,
					  (unsigned long long)x->b[i].word[0],
					  (unsigned long long)y->b[i].word[0], x->v.tenure,
					  (unsigned long long)x->v.seq);
				return "contents differ at equal page versions";
			}
		}
	}
	return NULL;
}

struct version sim_store_page(struct store *s, uint64_t object, uint32_t page, bool destaged)
{
	struct store_object *o = only(s, object);

	if (!o || !o->page[page])
		return (struct version){0};
	return destaged ? o->page[page]->base.v : o->page[page]->view.v;
}

/* ---- Life ------------------------------------------------------------------------------------ */

struct store *sim_store_create(uint16_t group, uint32_t group_incarnation)
{
	struct store *s = xcalloc(1, sizeof(*s));

	s->group = group;
	s->incarnation = group_incarnation;
	s->limit = sim.plan.tiny_log ? 60 : 100000;
	s->free_bytes = 1ull << 30;
	list_init(&s->objects);
	list_init(&s->lane);
	list_init(&s->space);
	list_init(&s->jobs);
	list_init(&s->graves);
	return s;
}

void sim_store_free(struct store *s)
{
	struct list *n;

	while (!list_empty(&s->lane))
		entry_free(list_first(&s->lane, struct entry, link));
	while ((n = list_pop_front(&s->objects))) {
		struct store_object *o = list_entry(n, struct store_object, link);

		for (uint32_t i = 0; i < o->pages; i++)
			free(o->page[i]);
		free(o->page);
		free(o->retry.e);
		free(o->base_retry.e);
		free(o);
	}
	while ((n = list_pop_front(&s->space)))
		free(list_entry(n, struct space_wait, link));
	while ((n = list_pop_front(&s->graves)))
		free(list_entry(n, struct store_object, link));
	while (!list_empty(&s->jobs))
		job_free(list_first(&s->jobs, struct job, link));
	free(s);
}
