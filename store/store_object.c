/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a shard: life, header access, retry look-ups. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

struct object_delete {
	struct wait wait;
	struct wait *owner;
	struct store_object *object;
	struct work work;
	bool started;
};

struct object_create {
	struct wait wait;
	struct store_create *op;
	struct shard *shard;
	struct work work;
	struct writer header;
	bool deleting;
};

static struct store_object *find_any(struct shard *sh, uint64_t id)
{
	struct hnode *n = hmap_first(&sh->objects, hash_u64(id));

	for (; n; n = hmap_next(n)) {
		struct store_object *o = container_of(n, struct store_object, node);

		if (o->id == id)
			return o;
	}
	return NULL;
}

struct store_object *store_object_find(struct store *s, unsigned shard, uint64_t object,
				       uint32_t gen)
{
	struct store_object *o = find_any(store_shard(s, shard), object);

	return o && o->gen == gen ? o : NULL;
}

void store_object_each(struct store *s, unsigned shard,
		       void (*fn)(void *arg, struct store_object *o), void *arg)
{
	struct hmap *m = &store_shard(s, shard)->objects;
	struct hnode *n = hmap_walk(m, NULL), *next;

	for (; n; n = next) {
		next = hmap_walk(m, n);
		fn(arg, container_of(n, struct store_object, node));
	}
}

struct store_object *object_new(struct shard *sh, uint64_t id, uint32_t gen, uint32_t volume)
{
	struct store_object *o = xcalloc(1, sizeof(*o));

	o->shard = sh;
	o->id = id;
	o->gen = gen;
	o->volume = volume;
	o->noted_seg = LOG_NONE;
	list_init(&o->tail);
	list_init(&o->tails_link);
	list_init(&o->pages);
	list_init(&o->notes);
	hmap_insert(&sh->objects, &o->node, hash_u64(id));
	counter_add(&sh->object_count, 1);
	return o;
}

void object_drop_log(struct store_object *o)
{
	struct shard *sh = o->shard;

	while (!list_empty(&o->tail))
		tail_free(sh, container_of(o->tail.next, struct log_tail, link));
	while (!list_empty(&o->pages))
		page_drop(sh, container_of(o->pages.next, struct page_node, object_link));
	while (!list_empty(&o->notes))
		note_free(sh, container_of(o->notes.next, struct log_note, object_link));
}

void object_put_ref(struct store_object *o)
{
	CHECK(o->refs > 0);
	o->refs--;
	if (o->deleted && !o->refs && !o->deleting) {
		retry_fini(&o->retry);
		free(o);
	}
}

uint64_t store_object_id(const struct store_object *o)
{
	return o->id;
}

uint32_t store_object_gen(const struct store_object *o)
{
	return o->gen;
}

void store_object_set_policy(struct store_object *o, bool compression, bool dedup)
{
	o->compression = compression;
	o->dedup = dedup;
}

void store_object_reduce(struct store_object *o, uint32_t request)
{
	if (request == o->reduce || o->deleted || !(o->compression || o->dedup))
		return;
	o->reduce = request;
	tier_object_reduce(o->shard->store->tier, o->shard->index, o->id, o->gen, request, o->compression,
			   o->dedup);
}

/* ---- Delete: the map first, durably; then what the log holds of it ---- */

static void on_deleted(struct wait *w, int rc)
{
	struct object_delete *d = container_of(w, struct object_delete, wait);
	struct store_object *o = d->object;
	struct shard *sh = o->shard;
	struct wait *owner = d->owner;

	if (rc)
		log_error("store", "deleting an object failed", "object=%llx error=%s",
			  (unsigned long long)o->id, err_name(rc));
	lane_close(&sh->lane); /* its copies in the open batch meet `deleted` there */
	object_drop_log(o);
	o->deleting = NULL;
	free(d);
	sh->ops--;
	object_put_ref(o);
	wait_resume(owner, rc);
	shard_destage_kick(sh);
	shard_quiesce(sh);
}

void object_try_delete(struct store_object *o)
{
	struct object_delete *d = o->deleting;
	int rc;

	/* What is on its way to the map must be there before, or it would come back after. */
	if (!d || d->started || o->destaging)
		return;
	d->started = true;
	d->wait.resume = on_deleted;
	rc = tier_object_delete(o->shard->store->tier, o->shard->index, o->id, o->gen, &d->work,
				&d->wait);
	if (rc != PENDING)
		on_deleted(&d->wait, rc);
}

struct deferred {
	struct post post;
	struct store_object *object;
};

/* The call itself must not resume the caller: the delete starts in a turn of its own. */
static void delete_later(struct post *p)
{
	struct deferred *d = container_of(p, struct deferred, post);

	object_try_delete(d->object);
	free(d);
}

int store_object_delete(struct store_object *o, struct wait *w)
{
	struct shard *sh = o->shard;
	struct deferred *later;

	if (store_failed(sh->store))
		return store_failed(sh->store);
	if (sh->stopping)
		return -ERR_CLOSED;
	if (o->deleted)
		return -ERR_NOT_FOUND;
	o->deleted = true;
	hmap_remove(&sh->objects, &o->node);
	counter_add(&sh->object_count, (uint64_t)-1);
	o->refs++;
	o->deleting = xcalloc(1, sizeof(*o->deleting));
	o->deleting->owner = w;
	o->deleting->object = o;
	sh->ops++;
	later = xcalloc(1, sizeof(*later));
	later->post.fn = delete_later;
	later->object = o;
	loop_post(sh->loop, &later->post);
	return PENDING;
}

/* ---- Create ---- */

static int create_put(struct object_create *c);

static void create_finish(struct object_create *c, int rc)
{
	struct store_create *op = c->op;
	struct shard *sh = c->shard;

	if (!rc) {
		op->object = object_new(sh, op->id, op->gen, op->volume);
		op->object->born = get_le64(c->header.data + 40);
	}
	writer_free(&c->header);
	free(c);
	op->impl = NULL;
	sh->ops--;
}

static void on_create(struct wait *w, int rc)
{
	struct object_create *c = container_of(w, struct object_create, wait);
	struct store_create *op = c->op;
	struct shard *sh = c->shard;

	if (!rc && c->deleting) {
		c->deleting = false;
		rc = create_put(c);
		if (rc == PENDING)
			return;
	}
	create_finish(c, rc);
	wait_resume(op->wait, rc);
	shard_quiesce(sh);
}

static int create_put(struct object_create *c)
{
	struct store *s = c->shard->store;
	struct stored_header st = {.born = atomic_load(&s->generation)};
	struct retry_table none = {0};

	stored_header_encode(&st, &none, (struct version){0}, &c->header);
	return tier_object_put(s->tier, c->shard->index, c->op->id, c->op->gen, c->op->volume,
			       c->header.data, c->header.len, &c->work, &c->wait);
}

int store_object_create(struct store *s, unsigned shard, struct store_create *op, uint64_t id,
			uint32_t gen, uint32_t volume, struct wait *w)
{
	struct shard *sh = store_shard(s, shard);
	struct store_object *old = find_any(sh, id);
	struct object_create *c;
	int rc;

	*op = (struct store_create){.wait = w, .id = id, .gen = gen, .volume = volume};
	if (store_failed(s))
		return store_failed(s);
	if (sh->stopping)
		return -ERR_CLOSED;
	if (id % s->shard_count != shard)
		return -ERR_INVALID;
	if (old && old->gen == gen)
		return -ERR_EXISTS;
	c = xcalloc(1, sizeof(*c));
	c->wait.resume = on_create;
	c->header = writer_init_heap();
	c->op = op;
	c->shard = sh;
	c->deleting = old;
	op->impl = c;
	sh->ops++;
	rc = old ? store_object_delete(old, &c->wait) : create_put(c);
	if (rc != PENDING)
		create_finish(c, rc);
	return rc;
}

/* ---- Header ---- */

const struct object_header *store_header(const struct store_object *o)
{
	return &o->h;
}

struct version store_last(const struct store_object *o)
{
	return o->last;
}

struct version store_durable(const struct store_object *o)
{
	return o->durable;
}

struct version store_commit_version(const struct store_object *o)
{
	return o->h.commit;
}

struct version store_known(const struct store_object *o)
{
	return o->known;
}

bool store_is_new(const struct store_object *o)
{
	return !o->used;
}

bool store_is_damaged(const struct store_object *o)
{
	return o->damaged;
}

enum retry_answer store_retry_lookup(const struct store_object *o, uint32_t attachment,
				     uint32_t attach_epoch, uint64_t request, struct version *v)
{
	return retry_lookup(&o->retry, attachment, attach_epoch, request, v);
}

void store_retry_encode(const struct store_object *o, struct writer *w)
{
	retry_encode(&o->retry, o->last, w);
}
