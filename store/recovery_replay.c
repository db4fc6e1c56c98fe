/* SPDX-License-Identifier: Apache-2.0 */
/* Replay: the batches that count, chain by chain in session order, back into tails and index. A record
 * counts if its object has this generation (I7) and the epoch table gives its tenure for its seq (I4).
 * Order does not matter for content, since entries go by seq; it does for headers and cuts, which are met in
 * the order they were written. Pages rebuilt here are `unchecked`: before they are used the map's page is
 * asked, and what it has already is dropped. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/base/rules.h"
#include "store/recovery.h"

static struct store_object *find(struct shard *sh, uint64_t id)
{
	for (struct hnode *n = hmap_first(&sh->objects, hash_u64(id)); n; n = hmap_next(n)) {
		struct store_object *o = container_of(n, struct store_object, node);

		if (o->id == id)
			return o;
	}
	return NULL;
}

void recovery_object(struct store *s, const struct tier_object *t)
{
	struct store_object *o;
	struct stored_header st;
	int rc;

	if (t->deleting)
		return;
	o = object_new(&s->shards[t->id % s->shard_count], t->id, t->gen, t->volume);
	rc = stored_header_decode(t->header, t->header_len, &st, &o->retry);
	if (rc) {
		log_error("store",
			  "an object's record in the map is bad; the replica counts as damaged",
			  "object=%llx error=%s", (unsigned long long)t->id, err_name(rc));
		retry_fini(&o->retry);
		o->damaged = o->used = true;
		return;
	}
	o->h = st.h;
	o->used = st.flags & STORED_USED;
	o->damaged = st.flags & STORED_DAMAGED;
	o->destaged = st.destaged;
	o->born = st.born;
	/* Known is what the log has said so far. The map's commit may be of after a cut that is still to come
	 * here, and would make committed what that cut takes back. */
	o->base = o->last = st.h.commit;
	o->replaying = true;
}

static void hold_at(struct shard *sh, struct log_tail *t, uint32_t pos)
{
	t->pos = pos;
	sh->segs[pos_seg(sh->store, pos)].live++;
}

static void replay_cut(struct store_object *o, struct version after)
{
	struct list *n = o->tail.next;

	while (n != &o->tail) {
		struct log_tail *t = container_of(n, struct log_tail, link);

		n = n->next;
		if (t->r.version.seq > after.seq || version_cmp(t->r.version, after) > 0)
			tail_free(o->shard, t);
	}
	/* The map's header may be newer than this record; it stands. */
	if (version_cmp(after, o->last) < 0)
		o->last = version_max(o->base, after);
	if (version_cmp(o->last, o->known) < 0)
		o->known = version_max(o->base, o->last);
	retry_cut(&o->retry, version_max(o->base, after));
}

static int replay_header(struct store_object *o, const struct log_record *lr, const uint8_t *fps,
			 const uint8_t *payload)
{
	struct stored_header st;
	struct retry_table table = {0};
	int rc = 0;

	for (unsigned i = 0; i < lr->fp_count && !rc; i++)
		if (!fp128_equal(hash_block(payload + (size_t)i * BLOCK_SIZE), log_fp(fps, i)))
			rc = -ERR_CORRUPT;
	if (!rc)
		rc = stored_header_decode(payload, (size_t)lr->fp_count * BLOCK_SIZE, &st, &table);
	if (rc)
		return rc;
	o->used = true;
	if (lr->r.kind == RECORD_CUT)
		replay_cut(o, lr->r.version);
	if (st.h.seen >= o->h.seen) {
		struct version commit = o->h.commit;
		struct reader in;
		struct writer w = writer_init_heap();

		o->h = st.h;
		o->h.commit = commit;
		/* Merged: the map's table may know more. */
		retry_encode(&table, (struct version){UINT32_MAX, UINT64_MAX}, &w);
		in = reader_init(w.data, w.len);
		rc = retry_decode(&in, &o->retry);
		writer_free(&w);
	}
	retry_fini(&table);
	if (lr->r.kind == RECORD_COMPLETE) {
		o->last = version_max(o->last, lr->r.version);
		o->damaged = false;
	}
	o->known = version_max(o->known, lr->r.commit);
	object_check_epochs(o);
	object_advance(o);
	return rc;
}

/* A later copy of a record that the tail has takes its place (re-appended tails). */
static bool replay_again(struct store_object *o, const struct record *r, uint32_t pos)
{
	for (struct list *n = o->tail.prev; n != &o->tail; n = n->prev) {
		struct log_tail *t = container_of(n, struct log_tail, link);

		if (t->r.version.seq < r->version.seq)
			return false;
		if (t->r.version.seq > r->version.seq)
			continue;
		if (version_cmp(t->r.version, r->version) < 0) {
			tail_free(o->shard, t);
			return false;
		}
		if (version_eq(t->r.version, r->version)) {
			tail_unhold(o->shard, t);
			hold_at(o->shard, t, pos);
		}
		return true;
	}
	return false;
}

/* A copy holds only what differed from the page as it was, with all that its commit covers: that comes first,
 * though nothing that was read so far may have said that it is committed. What was cut is gone by here: the
 * cut stands before the copy. */
static void replay_upto(struct store_object *o, struct version commit)
{
	while (!list_empty(&o->tail)) {
		struct log_tail *t = container_of(o->tail.next, struct log_tail, link);

		if (t->r.version.seq > commit.seq || version_cmp(t->r.version, commit) > 0 ||
		    !epochs_hold(&o->h, t->r.version))
			break;
		index_apply(o->shard, t);
		tail_free(o->shard, t);
	}
}

static void replay_data(struct store_object *o, const struct log_record *lr, const uint8_t *fps,
			uint32_t pos)
{
	struct shard *sh = o->shard;
	const struct record *r = &lr->r;
	struct fp128 list[RECORD_BLOCKS_MAX];
	struct log_tail *t;

	o->used = true;
	if (r->kind != RECORD_COPY) {
		if (!epochs_hold(&o->h, r->version) && rule(RULE_EPOCHS_HOLD))
			return;
		retry_note(&o->retry, r->attachment, r->attach_epoch, r->request, r->low_water,
			   r->version);
		o->last = version_max(o->last, r->version);
	}
	o->known = version_max(o->known, r->commit);
	if (r->kind == RECORD_COPY ||
	    (r->version.seq > o->destaged.seq && !replay_again(o, r, pos))) {
		for (unsigned i = 0; i < lr->fp_count; i++)
			list[i] = log_fp(fps, i);
		t = tail_new(o, r, list, lr->fp_count);
		t->recovered = true;
		hold_at(sh, t, pos);
		if (r->kind == RECORD_COPY) {
			replay_upto(o, r->commit);
			index_apply(sh, t);
			tail_free(sh, t);
		} else {
			tail_insert(o, t);
		}
	}
	object_advance(o);
}

static int replay_batch(struct recovery *rc, uint32_t seg, uint32_t at,
			const struct log_batch_header *h, const uint8_t *p)
{
	struct store *s = rc->store;
	uint32_t pos = seg * s->seg_blocks + at, used = 0;
	/* The window moves when a header's payload is read: the records get a copy. */
	uint8_t *head = rc->head;
	struct reader in;

	memcpy(head, p, (size_t)h->header_blocks * BLOCK_SIZE);
	in = reader_init(head + LOG_BATCH_HEADER_LEN,
			 (size_t)h->header_blocks * BLOCK_SIZE - LOG_BATCH_HEADER_LEN);
	for (unsigned i = 0; i < h->records; i++) {
		struct log_record lr;
		const uint8_t *fps, *data;
		struct store_object *o;
		int err;

		if (log_record_decode(&in, &lr, &fps) || used + lr.fp_count > h->payload_blocks)
			return -ERR_CORRUPT;
		o = find(&s->shards[lr.object % s->shard_count], lr.object);
		if (o && (o->gen == lr.gen || !rule(RULE_GENERATION))) {
			if (!record_is_header(lr.r.kind)) {
				replay_data(o, &lr, fps,
					    lr.fp_count ? pos + h->header_blocks + used : pos);
			} else {
				data = recovery_payload(rc, seg, at, h);
				err = data ? replay_header(
						     o, &lr, fps,
						     data + (size_t)(h->header_blocks + used) *
								     BLOCK_SIZE)
					   : -ERR_CORRUPT;
				if (err)
					return err;
			}
			object_note(o, seg);
		}
		used += lr.fp_count;
	}
	return 0;
}

/* Acknowledged records of this lane may be missing: each replica it carried says so (L3). */
static void mark_damaged(struct recovery *rc, const struct chain *c)
{
	struct store *s = rc->store;
	const struct log_segment_header *h = &rc->scanned[c->segs[0]].h;
	uint64_t newest = rc->scanned[c->segs[c->count - 1]].h.generation;
	unsigned n = 0, first = 0;

	while (rc->scanned[c->segs[first]].h.released)
		first++;

	for (unsigned i = 0; i < s->shard_count; i++) {
		struct hmap *m = &s->shards[i].objects;

		for (struct hnode *k = hmap_walk(m, NULL); k; k = hmap_walk(m, k)) {
			struct store_object *o = container_of(k, struct store_object, node);

			if (o->id % h->lanes != h->lane || o->born > newest)
				continue;
			o->damaged = true;
			object_note(
				o,
				c->segs[first]); /* the flag reaches the map before the evidence goes */
			n++;
		}
	}
	log_error("store", "replicas of a damaged lane must be filled again", "lane=%u replicas=%u",
		  h->lane, n);
}

static void replay_chain(struct recovery *rc, struct chain *c)
{
	for (unsigned i = 0; i < c->count; i++) {
		uint32_t seg = c->segs[i], at = 1;
		const struct scanned *sc = &rc->scanned[seg];
		struct log_batch_header h;

		if (sc->h.released)
			continue;
		if (sc->h.first_batch > c->last)
			break;
		for (uint64_t seq = sc->h.first_batch; seq <= MIN(sc->last, c->last); seq++) {
			const uint8_t *p = recovery_batch(rc, seg, at, seq, &h);

			if (!p || replay_batch(rc, seg, at, &h, p)) {
				log_error("store", "a log batch went bad", "segment=%u block=%u",
					  seg, at);
				c->damaged = true;
				goto out;
			}
			at += h.header_blocks + h.payload_blocks;
		}
	}
out:
	if (c->damaged)
		mark_damaged(rc, c);
}

static void finish_object(struct store_object *o)
{
	o->replaying = false;
	object_check_epochs(o);
	o->known = version_max(o->known, o->h.commit);
	object_advance(o);
	o->durable = o->last;
}

int recovery_replay(struct store *s)
{
	struct recovery *rc = s->recovery;
	unsigned objects = 0;

	rc->head = xmalloc(LOG_BATCH_HEADER_BLOCKS_MAX * BLOCK_SIZE);
	for (unsigned i = 0; i < rc->chain_count; i++)
		replay_chain(rc, &rc->chains[i]);
	free(rc->head);
	if (rc->failed)
		return rc->failed;
	for (unsigned i = 0; i < s->shard_count; i++) {
		struct shard *sh = &s->shards[i];

		for (struct hnode *k = hmap_walk(&sh->objects, NULL); k;
		     k = hmap_walk(&sh->objects, k)) {
			finish_object(container_of(k, struct store_object, node));
			objects++;
		}
		for (unsigned n = 0; n < rc->live_count; n++)
			sh->queue[sh->queue_count++] = rc->live[n];
	}
	log_info("store", "log recovered", "chains=%u segments=%u objects=%u", rc->chain_count,
		 rc->live_count, objects);
	return 0;
}
