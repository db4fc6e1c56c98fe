/* SPDX-License-Identifier: Apache-2.0 */
/* Uncommitted tails in a due segment are appended again, oldest first, so that the segment can go (L2). A
 * record leaves its old place only when the new one is durable. Payload goes over unchanged with the
 * fingerprints it came with: what was bad stays recognisably bad (I12). Replay may then meet an older record
 * behind newer ones; it goes by seq (log_index.h). */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

struct log_move {
	struct wait read_done, append_done;
	struct shard *shard;
	uint32_t seg;
	struct store_object *object;
	struct version version;
	struct log_tail *copy; /* the record at its new place */
	struct store_append op;
	struct io io;
	uint8_t *buffer;
	struct fp128 fps[RECORD_BLOCKS_MAX]; /* forming a batch may free the record's own */
	bool busy;
};

static void move_next(struct log_move *m);

static struct log_tail *find_in_segment(struct shard *sh, uint32_t seg)
{
	for (struct list *n = sh->tails.next; n != &sh->tails; n = n->next) {
		struct store_object *o = container_of(n, struct store_object, tails_link);

		for (struct list *k = o->tail.next; k != &o->tail; k = k->next) {
			struct log_tail *t = container_of(k, struct log_tail, link);

			if (!o->deleted && t->pos != LOG_NONE && pos_seg(sh->store, t->pos) == seg)
				return t;
		}
	}
	return NULL;
}

static struct log_tail *find_again(const struct log_move *m)
{
	for (struct list *k = m->object->tail.next; k != &m->object->tail; k = k->next) {
		struct log_tail *t = container_of(k, struct log_tail, link);

		if (version_eq(t->r.version, m->version))
			return t->pos != LOG_NONE && pos_seg(m->shard->store, t->pos) == m->seg
				       ? t
				       : NULL;
	}
	return NULL;
}

static void move_end(struct log_move *m)
{
	m->busy = false;
	shard_destage_kick(m->shard);
	shard_quiesce(m->shard);
}

static void on_appended(struct wait *w, int rc)
{
	struct log_move *m = container_of(w, struct log_move, append_done);
	struct log_tail *t = rc ? NULL : find_again(m), *copy = m->copy;

	if (t) {
		uint32_t pos = t->pos;

		t->pos = copy->pos;
		t->batch = copy->batch;
		copy->pos = pos;
	}
	/* It was in no object's tail: only its hold and memory go. */
	tail_unhold(m->shard, copy);
	copy->pos = LOG_NONE;
	list_del(&copy->batch_link);
	if (copy->fp_count) {
		arena_put(&m->shard->arena, copy->fps, copy->fp_count * sizeof(*copy->fps));
		counter_add(&m->shard->log_blocks, (uint64_t) - (int64_t)copy->fp_count);
	}
	arena_put(&m->shard->arena, copy, sizeof(*copy));
	if (rc)
		move_end(m);
	else
		move_next(m);
}

/* The payload is in the buffer. */
static int move_append(struct log_move *m)
{
	struct log_tail *t = find_again(m);
	struct store_object *o = m->object;
	struct log_record lr = {.object = o->id, .gen = o->gen};
	struct batch *b;
	int rc;

	if (!t)
		return 0; /* cut or committed meanwhile */
	lr.r = t->r;
	lr.r.commit = o->h.commit;
	lr.fp_count = t->fp_count;
	if (t->fp_count)
		memcpy(m->fps, t->fps, t->fp_count * sizeof(*t->fps));
	rc = lane_append(&m->shard->lane, &lr, m->fps, m->buffer, LANE_RESERVE, &b);
	if (rc)
		return rc;
	m->copy = tail_new(o, &lr.r, m->fps, lr.fp_count);
	m->copy->moving = true;
	m->copy->batch = b->seq;
	m->copy->pos_in_batch = b->payload_blocks - lr.fp_count;
	list_push_back(&b->records, &m->copy->batch_link);
	m->append_done.resume = on_appended;
	m->op = (struct store_append){
		.wait = &m->append_done, .object = o, .batch = b->seq, .kind = APPEND_MOVE};
	list_push_back(&b->ops, &m->op.link);
	o->refs++;
	return PENDING;
}

static void on_read(struct wait *w, int rc)
{
	struct log_move *m = container_of(w, struct log_move, read_done);
	struct store_object *o = m->object;

	m->shard->segs[m->seg].readers--;
	if (!rc)
		rc = o->deleted ? 0 : move_append(m);
	if (rc < 0) {
		log_warn("store", "a stalled tail could not be moved", "object=%llx error=%s",
			 (unsigned long long)o->id, err_name(rc));
		move_end(m);
	} else if (rc == 0) {
		move_next(m);
	}
	object_put_ref(o);
}

static void move_next(struct log_move *m)
{
	struct shard *sh = m->shard;
	struct log_tail *t =
		sh->stopping || store_failed(sh->store) ? NULL : find_in_segment(sh, m->seg);
	const uint8_t *ram;
	int rc;

	if (!t) {
		move_end(m);
		return;
	}
	m->object = t->object;
	m->version = t->r.version;
	m->object->refs++;
	sh->segs[m->seg].readers++;
	m->read_done.resume = on_read;
	ram = t->fp_count ? lane_ram(&sh->lane, t->pos) : NULL;
	if (ram)
		memcpy(m->buffer, ram, (size_t)t->fp_count * BLOCK_SIZE);
	if (ram || !t->fp_count) {
		on_read(&m->read_done, 0);
		return;
	}
	rc = io_read(sh->loop, &m->io, pos_device(sh->store, t->pos)->fd, m->buffer,
		     (size_t)t->fp_count * BLOCK_SIZE, pos_off(sh->store, t->pos), &m->read_done);
	CHECK(rc == PENDING);
}

bool shard_move_tails(struct shard *sh, uint32_t seg)
{
	if (sh->move && sh->move->busy)
		return true;
	if (!find_in_segment(sh, seg))
		return false;
	if (!sh->move) {
		sh->move = xcalloc(1, sizeof(*sh->move));
		sh->move->shard = sh;
		sh->move->buffer = xalloc_aligned(BLOCK_SIZE, RECORD_BLOCKS_MAX * BLOCK_SIZE);
	}
	sh->move->seg = seg;
	sh->move->busy = true;
	move_next(sh->move);
	return true;
}

bool shard_moving(const struct shard *sh)
{
	return sh->move && sh->move->busy;
}

void shard_move_free(struct shard *sh)
{
	if (sh->move)
		free(sh->move->buffer);
	free(sh->move);
	sh->move = NULL;
}
