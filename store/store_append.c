/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a record: tail → batch → its place → committed view. Header changes go the same way, so that
 * replay meets everything of an object in one order. An append is done when its batch and all before it are
 * durable; nothing here answers earlier. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"
#include "store/store_impl.h"

/* ---- The tail ---- */

struct log_tail *tail_new(struct store_object *o, const struct record *r, const struct fp128 *fps,
			  unsigned fp_count)
{
	struct shard *sh = o->shard;
	struct log_tail *t = arena_get(&sh->arena, sizeof(*t));

	*t = (struct log_tail){.object = o, .r = *r, .fp_count = fp_count, .pos = LOG_NONE};
	list_init(&t->link);
	list_init(&t->batch_link);
	if (fp_count) {
		t->fps = arena_get(&sh->arena, fp_count * sizeof(*fps));
		memcpy(t->fps, fps, fp_count * sizeof(*fps));
		counter_add(&sh->log_blocks, fp_count);
	}
	return t;
}

void tail_unhold(struct shard *sh, const struct log_tail *t)
{
	if (t->pos == LOG_NONE)
		return;
	CHECK(sh->segs[pos_seg(sh->store, t->pos)].live > 0);
	sh->segs[pos_seg(sh->store, t->pos)].live--;
}

void tail_free(struct shard *sh, struct log_tail *t)
{
	struct store_object *o = t->object;

	tail_unhold(sh, t);
	list_del(&t->link);
	list_del(&t->batch_link);
	if (list_empty(&o->tail))
		list_del(&o->tails_link);
	if (t->fp_count) {
		arena_put(&sh->arena, t->fps, t->fp_count * sizeof(*t->fps));
		counter_add(&sh->log_blocks, (uint64_t) - (int64_t)t->fp_count);
	}
	arena_put(&sh->arena, t, sizeof(*t));
}

/* By seq; replay may bring an older one after a newer one. */
void tail_insert(struct store_object *o, struct log_tail *t)
{
	struct list *at = o->tail.prev;

	while (at != &o->tail &&
	       container_of(at, struct log_tail, link)->r.version.seq > t->r.version.seq)
		at = at->prev;
	list_insert_between(&t->link, at, at->next);
	if (list_empty(&o->tails_link))
		list_push_back(&o->shard->tails, &o->tails_link);
}

/* Committed (I4): within the commit by both numbers, and of the tenure that the table gives for it. */
static bool is_committed(const struct store_object *o, struct version v)
{
	/* Below the table's first entry it cannot tell a cut record from the one that took its seq: replay
	 * must have met the cut first. */
	if (o->replaying && o->h.epoch_count && v.seq < o->h.epochs[0].first_seq)
		return false;
	return version_cmp(v, o->known) <= 0 && v.seq <= o->known.seq &&
	       (epochs_hold(&o->h, v) || !rule(RULE_EPOCHS_HOLD));
}

void object_advance(struct store_object *o)
{
	struct version commit = o->h.commit;

	if (is_committed(o, o->last))
		commit = o->last;
	else if (version_cmp(o->known, o->last) < 0)
		commit = o->known;
	while (!list_empty(&o->tail)) {
		struct log_tail *t = container_of(o->tail.next, struct log_tail, link);

		if (t->pos == LOG_NONE || (!is_committed(o, t->r.version) && rule(RULE_COMMITTED)))
			break;
		index_apply(o->shard, t);
		tail_free(o->shard, t);
	}
	if (version_cmp(o->h.commit, commit) < 0)
		o->h.commit = commit;
}

void object_settle(struct store_object *o)
{
	/* The only reason for a committed record to be in the tail is that it has no place yet. */
	if (!list_empty(&o->tail) &&
	    is_committed(o, container_of(o->tail.next, struct log_tail, link)->r.version))
		lane_close(&o->shard->lane);
	else if (o->copies_open)
		lane_close(&o->shard->lane);
}

void object_note(struct store_object *o, uint32_t seg)
{
	struct shard *sh = o->shard;
	struct log_note *n;

	if (o->note && o->noted_seg == seg) {
		o->note->upto = MAX(o->note->upto, o->last.seq);
		return;
	}
	n = arena_get(&sh->arena, sizeof(*n));
	n->object = o;
	n->upto = o->last.seq;
	o->note = n;
	o->noted_seg = seg;
	list_push_back(&sh->segs[seg].notes, &n->link);
	list_push_back(&o->notes, &n->object_link);
}

void note_free(struct shard *sh, struct log_note *n)
{
	if (n->object->note == n)
		n->object->note = NULL;
	list_del(&n->link);
	list_del(&n->object_link);
	arena_put(&sh->arena, n, sizeof(*n));
}

/* The batch has its place: so have its records. */
void shard_batch_placed(struct shard *sh, struct batch *b)
{
	uint32_t seg = pos_seg(sh->store, b->pos), pos = b->pos + b->blocks - b->payload_blocks;
	struct list *n;

	/* Header changes hold no payload that is read again; they are saved with the object. */
	for (n = b->ops.next; n != &b->ops; n = n->next)
		object_note(container_of(n, struct store_append, link)->object, seg);
	for (n = b->records.next; n != &b->records; n = n->next)
		object_note(container_of(n, struct log_tail, batch_link)->object, seg);
	/* One after the other, as they came: what has no place yet is not applied. */
	while (!list_empty(&b->records)) {
		struct log_tail *t =
			container_of(list_pop_front(&b->records), struct log_tail, batch_link);
		struct store_object *o = t->object;

		t->pos = t->fp_count ? pos + t->pos_in_batch : b->pos;
		sh->segs[seg].live++;
		if (t->r.kind == RECORD_COPY) {
			/* First what its commit covers: behind the copy that could find its page in
			 * the map already, forgotten here, and lie over it. */
			object_advance(o);
			o->copies_open--;
			if (!o->deleted)
				index_apply(sh, t);
			tail_free(sh, t);
		} else if (!t->moving) {
			object_advance(o);
		}
	}
}

/* Not cut since. */
static bool in_history(const struct store_object *o, struct version v)
{
	return v.seq <= o->last.seq && version_cmp(v, o->last) <= 0 && epochs_hold(&o->h, v);
}

void shard_batch_durable(struct shard *sh, struct batch *b)
{
	struct list *n;

	/* Records first: whoever is resumed sees all of the batch. */
	for (n = b->ops.next; !b->rc && n != &b->ops; n = n->next) {
		struct store_append *op = container_of(n, struct store_append, link);
		struct store_object *o = op->object;

		if (op->kind == RECORD_COPY || op->kind == APPEND_MOVE ||
		    !in_history(o, op->version))
			continue;
		o->durable = version_max(o->durable, op->version);
	}
	while ((n = list_pop_front(&b->ops))) {
		struct store_append *op = container_of(n, struct store_append, link);
		struct store_object *o = op->object;
		struct wait *w = op->wait;

		wait_resume(w, b->rc);
		object_put_ref(o);
	}
}

/* ---- Append ---- */

static int check_append(const struct store_object *o, const struct record *r)
{
	struct store *s = o->shard->store;
	int failed = store_failed(s);

	if (failed)
		return failed;
	if (o->shard->stopping)
		return -ERR_CLOSED;
	if (o->deleted)
		return -ERR_NOT_FOUND;
	if (!list_empty(&o->shard->pending_headers))
		return -ERR_LIMIT;
	if (!log_record_valid(r) || record_is_header(r->kind))
		return -ERR_INVALID;
	if (r->kind == RECORD_COPY)
		return 0;
	if (r->version.seq <= o->last.seq || version_cmp(r->version, o->last) <= 0)
		return -ERR_INVALID;
	return epochs_hold(&o->h, r->version) ? 0 : -ERR_STALE;
}

int store_append(struct store_object *o, struct store_append *op, const struct record *r,
		 const void *payload, const struct fp128 *fps, struct wait *w)
{
	struct shard *sh = o->shard;
	unsigned n = log_record_payload(r);
	struct log_record lr = {.object = o->id, .gen = o->gen, .r = *r, .fp_count = n};
	struct batch *b;
	struct log_tail *t;
	int rc = check_append(o, r);

	if (rc)
		return rc;
	/* Trims need no credit and little memory; they may go somewhat beyond. */
	if (sh->arena.used >= sh->store->index_budget + (n ? 0 : sh->store->index_budget / 4))
		return -ERR_LIMIT;
	rc = lane_append(&sh->lane, &lr, fps, payload, n ? LANE_ORDINARY : LANE_TRIM, &b);
	if (rc)
		return rc;
	t = tail_new(o, r, fps, n);
	t->batch = b->seq;
	t->pos_in_batch = b->payload_blocks - n;
	list_push_back(&b->records, &t->batch_link);
	*op = (struct store_append){
		.wait = w, .object = o, .batch = b->seq, .version = r->version, .kind = r->kind};
	list_push_back(&b->ops, &op->link);
	o->refs++;
	o->used = true;
	o->changes++;
	counter_add(&sh->appended_blocks, n);
	if (version_cmp(o->known, r->commit) < 0)
		o->known = r->commit;
	if (r->kind == RECORD_COPY) {
		o->copies_open++;
		return PENDING;
	}
	tail_insert(o, t);
	o->last = r->version;
	retry_note(&o->retry, r->attachment, r->attach_epoch, r->request, r->low_water, r->version);
	object_advance(o);
	return PENDING;
}

void store_commit(struct store_object *o, struct version v)
{
	if (version_cmp(o->known, v) >= 0)
		return;
	o->known = v;
	object_advance(o);
	o->changes++;
	shard_destage_kick(o->shard);
}

int store_wait_space(struct store *s, unsigned shard, struct list *link, struct wait *w)
{
	struct shard *sh = store_shard(s, shard);
	struct space_waiter *sw;

	if (store_failed(s))
		return store_failed(s);
	if (sh->stopping)
		return -ERR_CLOSED;
	sw = arena_get(&sh->arena, sizeof(*sw));
	*sw = (struct space_waiter){.wait = w, .caller = link};
	list_push_back(&sh->space_waiters, &sw->link);
	atomic_fetch_add(&sh->waiting, 1);
	shard_destage_kick(sh);
	return PENDING;
}

/* ---- The header ---- */

void object_encode(struct store_object *o, bool for_map, struct writer *w)
{
	struct stored_header st = {.h = o->h, .destaged = o->destaged, .born = o->born};
	struct version upto = o->last;

	if (o->used)
		st.flags |= STORED_USED;
	if (o->damaged)
		st.flags |= STORED_DAMAGED;
	if (for_map) {
		/* What is not durable in the log yet may be lost with it: the map must not claim it. */
		if (version_cmp(o->durable, st.h.commit) < 0)
			st.h.commit = o->durable;
		upto = st.h.commit;
		if ((!o->page_count || !rule(RULE_DESTAGED)) && version_cmp(o->destaged, st.h.commit) < 0)
			st.destaged = st.h.commit;
	}
	stored_header_encode(&st, &o->retry, upto, w);
}

void object_cut(struct store_object *o, struct version after)
{
	struct shard *sh = o->shard;

	while (!list_empty(&o->tail)) {
		struct log_tail *t = container_of(o->tail.prev, struct log_tail, link);

		if (t->r.version.seq <= after.seq && version_cmp(t->r.version, after) <= 0)
			break;
		tail_free(sh, t);
	}
	retry_cut(&o->retry, after);
	if (version_cmp(after, o->last) < 0)
		o->last = after;
	if (version_cmp(o->last, o->known) < 0)
		o->known = o->last;
	if (version_cmp(o->last, o->durable) < 0)
		o->durable = o->last;
}

void object_check_epochs(struct store_object *o)
{
	struct list *n = o->tail.next;
	bool dropped = false;

	while (n != &o->tail) {
		struct log_tail *t = container_of(n, struct log_tail, link);

		n = n->next;
		if (epochs_hold(&o->h, t->r.version))
			continue;
		tail_free(o->shard, t);
		dropped = true;
	}
	if (!dropped)
		return;
	o->last = list_empty(&o->tail)
			  ? o->h.commit
			  : container_of(o->tail.prev, struct log_tail, link)->r.version;
	if (version_cmp(o->last, o->durable) < 0)
		o->durable = o->last;
}

static void take_header(struct store_object *o, enum record_kind kind,
			const struct object_header *h, struct version cut_after,
			struct retry_table *retry)
{
	struct version commit = o->h.commit;

	o->h = *h;
	o->h.commit = commit;
	o->used = true;
	if (kind == RECORD_CUT)
		object_cut(o, cut_after);
	if (kind == RECORD_COMPLETE) {
		/* The replica has all that is behind these, as pages if not as records. */
		struct version end = version_max(h->commit, cut_after);

		o->last = version_max(o->last, end);
		o->known = version_max(o->known, h->commit);
		o->damaged = false;
		if (retry) {
			struct list *n;

			retry_fini(&o->retry);
			o->retry = *retry;
			*retry = (struct retry_table){0};
			for (n = o->tail.next; n != &o->tail; n = n->next) {
				const struct record *r = &container_of(n, struct log_tail, link)->r;

				retry_note(&o->retry, r->attachment, r->attach_epoch, r->request,
					   r->low_water, r->version);
			}
		}
	}
	if (rule(RULE_CUT))
		object_check_epochs(o);
}

static int check_header(const struct store_object *o, enum record_kind kind,
			const struct object_header *h, struct version cut_after)
{
	int failed = store_failed(o->shard->store);

	if (failed)
		return failed;
	if (o->shard->stopping)
		return -ERR_CLOSED;
	if (o->deleted)
		return -ERR_NOT_FOUND;
	if (!record_is_header((uint8_t)kind) || !epochs_valid(h))
		return -ERR_INVALID;
	if (h->seen < o->h.seen)
		return -ERR_STALE;
	if (kind == RECORD_CUT && version_cmp(cut_after, o->h.commit) < 0)
		return -ERR_DIVERGED;
	return 0;
}

static void header_appended(struct store_append *op, struct batch *b)
{
	op->batch = b->seq;
	list_push_back(&b->ops, &op->link);
}

int store_put_header(struct store_object *o, struct store_append *op, enum record_kind kind,
		     const struct object_header *h, struct version cut_after, const void *retry,
		     size_t retry_len, struct wait *w)
{
	struct shard *sh = o->shard;
	struct retry_table table = {0};
	struct writer bytes = writer_init_heap();
	CLEANUP(free_ptr) struct fp128 *fps = NULL;
	struct log_record lr = {.object = o->id, .gen = o->gen};
	struct reader in = reader_init(retry, retry_len);
	struct batch *b;
	size_t pad;
	int rc = check_header(o, kind, h, cut_after);

	if (!rc && retry && (retry_decode(&in, &table) || !reader_done(&in)))
		rc = -ERR_PROTOCOL;
	if (rc) {
		retry_fini(&table);
		return rc;
	}
	take_header(o, kind, h, cut_after, retry ? &table : NULL);
	object_advance(o);
	object_encode(o, false, &bytes);
	lr.r = (struct record){.kind = (uint8_t)kind, .version = o->last, .commit = o->h.commit};
	lr.r.blocks = (uint32_t)((bytes.len + BLOCK_SIZE - 1) / BLOCK_SIZE);
	lr.fp_count = lr.r.blocks;
	pad = lr.r.blocks * BLOCK_SIZE - bytes.len;
	if (pad)
		memset(write_space(&bytes, pad), 0, pad);
	fps = xcalloc(lr.fp_count, sizeof(*fps));
	for (unsigned i = 0; i < lr.fp_count; i++)
		fps[i] = hash_block(bytes.data + (size_t)i * BLOCK_SIZE);
	*op = (struct store_append){
		.wait = w, .object = o, .version = o->last, .kind = (uint8_t)kind};
	o->refs++;
	o->changes++;
	if (list_empty(&sh->pending_headers))
		rc = lane_append(&sh->lane, &lr, fps, bytes.data, LANE_RESERVE, &b);
	else
		rc = -ERR_LIMIT;
	if (rc) {
		/* Not even the reserve has room: until a segment is released. What is answered to others
		 * waits for the resume, so the header in RAM may be ahead of the disk. */
		struct pending_header *p = xcalloc(1, sizeof(*p));

		*p = (struct pending_header){
			.op = op, .record = lr, .fps = fps, .bytes = bytes.data};
		list_push_back(&sh->pending_headers, &p->link);
		fps = NULL;
		shard_destage_kick(sh);
		return PENDING;
	}
	header_appended(op, b);
	writer_free(&bytes);
	return PENDING;
}

/* Room may be there now; or there will be none any more. */
void shard_retry_headers(struct shard *sh)
{
	int rc = sh->stopping ? -ERR_CLOSED : store_failed(sh->store);

	while (!list_empty(&sh->pending_headers)) {
		struct pending_header *p =
			container_of(sh->pending_headers.next, struct pending_header, link);
		struct store_append *op = p->op;
		struct store_object *o = op->object;
		struct batch *b;

		if (!rc && lane_append(&sh->lane, &p->record, p->fps, p->bytes, LANE_RESERVE, &b))
			return;
		list_del(&p->link);
		free(p->fps);
		free(p->bytes);
		free(p);
		if (!rc) {
			header_appended(op, b);
			continue;
		}
		wait_resume(op->wait, rc);
		object_put_ref(o);
	}
}

/* ---- Reading the tail ---- */

struct tail_read {
	struct wait wait;
	struct store_tail *op;
	struct store_object *object;
	struct device *device;
	uint64_t start_us;
	uint32_t seg;
};

static int tail_verify(struct store_tail *op, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (!fp128_equal(hash_block(op->payload.data + (size_t)i * BLOCK_SIZE), op->fps[i]))
			return -ERR_CORRUPT;
	return 0;
}

static void on_tail_read(struct wait *w, int rc)
{
	struct tail_read *tr = container_of(w, struct tail_read, wait);
	struct store_tail *op = tr->op;
	struct store_object *o = tr->object;
	struct shard *sh = o->shard;

	device_done(tr->device, DEVICE_READ, loop_mono_us(sh->loop) - tr->start_us, rc);
	if (!rc)
		rc = tail_verify(op, op->payload.len / BLOCK_SIZE);
	if (rc == -ERR_CORRUPT)
		counter_add(&sh->corrupt, 1);
	if (rc)
		slice_unref(&op->payload);
	sh->segs[tr->seg].readers--;
	sh->ops--;
	free(tr);
	wait_resume(op->wait, rc);
	object_put_ref(o);
	shard_quiesce(sh);
}

int store_tail_next(struct store_object *o, struct store_tail *op, struct version after,
		    struct buf_pool *pool, struct wait *w)
{
	struct shard *sh = o->shard;
	struct list *n = o->tail.next;
	struct tail_read *tr;
	struct log_tail *t;
	const uint8_t *ram;
	struct buf *buf;
	int rc;

	op->wait = w;
	op->payload = (struct slice){0};
	object_settle(o);
	if (version_cmp(after, o->h.commit) < 0)
		return -ERR_STALE;
	while (n != &o->tail &&
	       version_cmp(container_of(n, struct log_tail, link)->r.version, after) <= 0)
		n = n->next;
	if (n == &o->tail)
		return -ENODATA;
	t = container_of(n, struct log_tail, link);
	if (t->pos == LOG_NONE)
		lane_close(&sh->lane); /* uncommitted: it stays in the tail */
	op->record = t->r;
	if (!t->fp_count)
		return 0;
	buf = buf_get(pool, (size_t)t->fp_count * BLOCK_SIZE);
	if (!buf)
		return -ENOMEM;
	op->payload = slice_all(buf);
	op->payload.len = t->fp_count * BLOCK_SIZE;
	memcpy(op->fps, t->fps, t->fp_count * sizeof(*t->fps));
	ram = lane_ram(&sh->lane, t->pos);
	if (ram) {
		memcpy(buf->data, ram, op->payload.len);
		return 0;
	}
	tr = xmalloc(sizeof(*tr));
	*tr = (struct tail_read){
		.wait = {on_tail_read}, .op = op, .object = o, .seg = pos_seg(sh->store, t->pos)};
	sh->segs[tr->seg].readers++;
	sh->ops++;
	o->refs++;
	counter_add(&sh->device_read, op->payload.len);
	tr->device = pos_device(sh->store, t->pos);
	tr->start_us = loop_mono_us(sh->loop);
	rc = io_read(sh->loop, &op->io, tr->device->fd, buf->data, op->payload.len,
		     pos_off(sh->store, t->pos), &tr->wait);
	CHECK(rc == PENDING);
	return PENDING;
}
