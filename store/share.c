/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of shared blocks within a commit. It must never leave a share with references without its
 * key by place, or the other way round (I9), and never give a damaged block a new place. */
#include "node/base/rules.h"
#include "store/share.h"

#include <stdlib.h>

#include "store/codec.h"
#include "store/tier_internal.h"

#define NEXT_KEY          "next-share"
#define VOLUME_KEY_SIZE   5u
#define VOLUME_VALUE_SIZE 48u

void shares_init(struct tier *t, size_t cache_bytes)
{
	hmap_init(&t->shares.txn);
	hmap_init(&t->shares.volumes);
	fifo_cache_init(&t->shares.rows, sizeof(struct share_row), cache_bytes);
	t->shares.next_id = t->shares.next_id_saved = 1;
}

static void txn_forget(struct tier *t)
{
	for (struct hnode *n; (n = hmap_take(&t->shares.txn));)
		free(container_of(n, struct tshare, node));
	t->shares.rc = 0;
}

void shares_fini(struct tier *t)
{
	if (!t->shares.rows.slots)
		return;
	txn_forget(t);
	for (struct hnode *n; (n = hmap_take(&t->shares.volumes));)
		free(container_of(n, struct tvolume, node));
	hmap_fini(&t->shares.txn);
	hmap_fini(&t->shares.volumes);
	fifo_cache_fini(&t->shares.rows);
}

/* ---- Volumes -----------------------------------------------------------------------------------
 */

struct tvolume *volume_get(struct tier *t, uint32_t id)
{
	struct tvolume *v;

	for (struct hnode *n = hmap_first(&t->shares.volumes, hash_u64(id)); n; n = hmap_next(n)) {
		v = container_of(n, struct tvolume, node);
		if (v->id == id)
			return v;
	}
	v = xcalloc(1, sizeof(*v));
	v->id = id;
	hmap_insert(&t->shares.volumes, &v->node, hash_u64(id));
	v->all_next = atomic_load(&t->shares.all);
	atomic_store(&t->shares.all, v); /* one writer */
	return v;
}

static void counters_add(struct object_counters *c, const struct object_counters *d, uint64_t sign)
{
	c->mapped += sign * d->mapped;
	c->zero += sign * d->zero;
	c->stored += sign * d->stored;
	c->shared += sign * d->shared;
	c->damaged += sign * d->damaged;
}

void volume_count(struct tier *t, uint32_t id, const struct object_counters *from,
		  const struct object_counters *to)
{
	struct tvolume *v = volume_get(t, id);

	v->publish = true;
	if (from) {
		counters_add(&v->objects, from, -1ull);
		counters_add(&t->totals, from, -1ull);
	}
	if (to) {
		counters_add(&v->objects, to, 1);
		counters_add(&t->totals, to, 1);
	}
}

static void sums_add(struct share_sums *s, const struct share_row *r, uint64_t sign)
{
	uint64_t bytes = map_entry_has_place(r->word) ? map_entry_units(r->word) * 64 : 0;

	s->owned += sign;
	s->damaged += sign * !bytes;
	s->stored += sign * bytes;
	if (r->owner_refs == r->refs)
		s->exclusive += sign * bytes;
	s->refs += sign * r->owner_refs;
}

static void volume_share(struct tier *t, const struct share_row *r, uint64_t sign)
{
	struct tvolume *v = volume_get(t, r->owner_refs ? r->owner_volume : SHARES_UNOWNED);

	sums_add(&v->next, r, sign);
	v->dirty = v->publish = true;
}

static void ledger_make(struct store_ledger *l, const struct object_counters *o,
			const struct share_sums *s, uint64_t reduce_left, uint64_t commit)
{
	uint64_t unshared = o->mapped - o->shared - o->damaged;

	*l = (struct store_ledger){.commit = commit};
	l->logical_bytes = (o->mapped + o->zero) * BLOCK_SIZE;
	l->zero_bytes = o->zero * BLOCK_SIZE;
	l->damaged_bytes = (o->damaged + s->damaged) * BLOCK_SIZE;
	l->stored_bytes = o->stored + s->stored;
	l->dedup_saved_bytes = (o->shared - s->owned) * BLOCK_SIZE;
	l->compression_saved_bytes =
		(unshared + s->owned - s->damaged) * BLOCK_SIZE - l->stored_bytes;
	l->frees_if_deleted_bytes = o->stored + s->exclusive;
	l->exact = o->shared == s->refs;
	l->to_reduce_bytes = reduce_left * PAGE_BLOCKS * BLOCK_SIZE;
}

static void space_make(struct store_ledger *l, const struct segments *s)
{
	uint64_t used = s->space.segments * s->segment_size;
	uint64_t free_segments = s->total - s->space.segments - segments_lost_free(s);
	uint64_t reserve = MIN(free_segments, s->reserve);

	l->summary_bytes = s->space.summaries;
	l->padding_bytes = s->space.padding;
	l->dead_bytes = used - s->live - s->space.summaries - s->space.padding - s->space.tail;
	l->free_bytes = (free_segments - reserve) * s->segment_size + s->space.tail;
	l->reserve_bytes = reserve * s->segment_size;
}

void volumes_publish(struct tier *t, uint64_t commit)
{
	struct store_ledger l;

	for (struct tvolume *v = atomic_load(&t->shares.all); v; v = v->all_next) {
		if (!v->publish)
			continue;
		ledger_make(&l, &v->objects, &v->now, v->reduce_left, commit);
		ledger_cell_write(&v->cell, &l);
		v->publish = false;
	}
	ledger_make(&l, &t->totals, &t->shares.sums, t->reduce_left, commit);
	space_make(&l, &t->seg);
	ledger_cell_write(&t->ledger, &l);
}

bool tier_volume_ledger(struct tier *t, uint32_t volume, struct store_ledger *out)
{
	*out = (struct store_ledger){.exact = 1}; /* where nothing is, nothing is freed */
	for (struct tvolume *v = atomic_load(&t->shares.all); v; v = v->all_next) {
		if (v->id != volume || volume == SHARES_UNOWNED)
			continue;
		ledger_cell_read(&v->cell, out);
		return true;
	}
	return false;
}

void tier_volume_ledgers(struct tier *t, store_ledger_fn *fn, void *arg)
{
	for (struct tvolume *v = atomic_load(&t->shares.all); v; v = v->all_next) {
		struct store_ledger l;

		ledger_cell_read(&v->cell, &l);
		if (l.logical_bytes || l.stored_bytes || l.damaged_bytes)
			fn(arg, v->id, &l);
	}
}

void tier_ledger(struct tier *t, struct store_ledger *out)
{
	ledger_cell_read(&t->ledger, out);
}

static void volume_key(uint8_t key[VOLUME_KEY_SIZE], uint32_t id)
{
	key[0] = 'v';
	put_be32(key + 1, id);
}

static void put_volumes(struct tier *t)
{
	for (struct tvolume *v = atomic_load(&t->shares.all); v; v = v->all_next) {
		uint8_t key[VOLUME_KEY_SIZE], value[VOLUME_VALUE_SIZE];

		if (!v->dirty)
			continue;
		volume_key(key, v->id);
		put_le64(value, v->next.owned);
		put_le64(value + 8, v->next.damaged);
		put_le64(value + 16, v->next.stored);
		put_le64(value + 24, v->next.exclusive);
		put_le64(value + 32, v->next.refs);
		put_le64(value + 40, hash_xxh3(value, 40, v->id));
		if (v->next.owned)
			kv_batch_put(t->kv, t->batch, KV_META, key, sizeof(key), value,
				     sizeof(value));
		else
			kv_batch_delete(t->kv, t->batch, KV_META, key, sizeof(key));
	}
}

int shares_load(struct tier *t)
{
	struct kv_iter *it = kv_iter_range(t->kv, KV_META, "v", 1, "w", 1);
	const void *key, *value;
	size_t key_len, len;
	uint8_t next[16];
	int rc = 0, rc2;

	while (!rc && kv_iter_next(it, &key, &key_len, &value, &len)) {
		const uint8_t *d = value;
		uint32_t id = key_len == VOLUME_KEY_SIZE ? get_be32((const uint8_t *)key + 1) : 0;
		struct tvolume *v;

		if (key_len != VOLUME_KEY_SIZE || len != VOLUME_VALUE_SIZE ||
		    get_le64(d + 40) != hash_xxh3(d, 40, id)) {
			rc = -ERR_CORRUPT;
			break;
		}
		v = volume_get(t, id);
		v->now = v->next = (struct share_sums){get_le64(d), get_le64(d + 8),
						       get_le64(d + 16), get_le64(d + 24),
						       get_le64(d + 32)};
		t->shares.sums.owned += v->now.owned;
		t->shares.sums.damaged += v->now.damaged;
		t->shares.sums.stored += v->now.stored;
		t->shares.sums.exclusive += v->now.exclusive;
		t->shares.sums.refs += v->now.refs;
		v->publish = true;
	}
	rc2 = kv_iter_close(it);
	if (rc || rc2)
		return rc ? rc : rc2;
	rc = kv_get(t->kv, KV_META, NEXT_KEY, strlen(NEXT_KEY), next, sizeof(next), &len);
	if (rc == -ERR_NOT_FOUND)
		return 0;
	if (!rc && (len != 16 || get_le64(next + 8) != hash_xxh3(next, 8, 0)))
		rc = -ERR_CORRUPT;
	if (!rc)
		t->shares.next_id = t->shares.next_id_saved = get_le64(next);
	return rc;
}

/* ---- One share ---------------------------------------------------------------------------------
 */

static struct fifo_key row_key(uint64_t id)
{
	return (struct fifo_key){.a = id, .b = 0};
}

static int row_read(struct tier *t, uint64_t id, struct share_row *out)
{
	const struct share_row *c = fifo_cache_get(&t->shares.rows, row_key(id));
	uint8_t key[8], value[SHARE_VALUE_SIZE];
	struct share_row *keep;
	size_t len;
	int rc;

	if (c) {
		*out = *c;
		return 0;
	}
	put_be64(key, id);
	rc = kv_get(t->kv, KV_SHARE, key, sizeof(key), value, sizeof(value), &len);
	if (!rc)
		rc = share_decode(value, len, out);
	if (rc)
		return rc == -ERR_LIMIT ? -ERR_CORRUPT : rc;
	keep = fifo_cache_put(&t->shares.rows, row_key(id));
	if (keep)
		*keep = *out;
	return 0;
}

static struct tshare *txn_add(struct tier *t, uint64_t id)
{
	struct tshare *s = xcalloc(1, sizeof(*s));

	s->id = id;
	hmap_insert(&t->shares.txn, &s->node, hash_u64(id));
	return s;
}

static int share_load(struct tier *t, uint64_t id, struct tshare **out)
{
	struct share_row row;
	struct tshare *s;
	int rc;

	for (struct hnode *n = hmap_first(&t->shares.txn, hash_u64(id)); n; n = hmap_next(n)) {
		s = container_of(n, struct tshare, node);
		if (s->id == id) {
			*out = s;
			return 0;
		}
	}
	rc = row_read(t, id, &row);
	if (rc)
		return rc;
	s = txn_add(t, id);
	s->exists = true;
	s->now = s->next = row;
	*out = s;
	return 0;
}

int share_get(struct tier *t, uint64_t id, struct tshare **out)
{
	int rc = share_load(t, id, out);

	return rc ? rc : (*out)->next.refs ? 0 : -ERR_NOT_FOUND;
}

struct tshare *share_create(struct tier *t, struct fp128 fp, uint64_t word, uint32_t owner_volume)
{
	struct tshare *s = txn_add(t, t->shares.next_id++);

	s->next = (struct share_row){.word = word, .fp = fp, .owner_volume = owner_volume};
	s->counted = true;
	return s;
}

void share_ref(struct tier *t, struct tshare *s, uint32_t volume, int sign)
{
	uint32_t owner = s->next.owner_volume == volume;

	if (sign > 0) {
		s->next.refs++;
		s->next.owner_refs += owner;
		return;
	}
	if (!s->next.refs || (owner && !s->next.owner_refs)) {
		log_error("tier", "a shared block has fewer references than entries", "share=%llu",
			  (unsigned long long)s->id);
		atomic_fetch_add(&t->corrupt_blocks, 1);
		return;
	}
	s->next.refs -= rule(RULE_SHARE_REFS);
	s->next.owner_refs -= owner;
}

void share_release(struct tier *t, uint64_t id, uint32_t volume)
{
	struct tshare *s;
	int rc = share_load(t, id, &s);

	if (!rc) {
		share_ref(t, s, volume, -1);
		return;
	}
	if (rc == -ERR_NOT_FOUND || rc == -ERR_CORRUPT) {
		log_error("tier", "the row of a shared block cannot be read; its space stays taken",
			  "share=%llu rc=%s", (unsigned long long)id, err_name(rc));
		atomic_fetch_add(&t->corrupt_blocks, 1);
	} else if (!t->shares.rc) {
		t->shares.rc = rc;
	}
}

static bool sloc_key_of(struct tier *t, uint64_t word, uint8_t key[8])
{
	uint32_t id;

	if (!map_entry_has_place(word) || !segment_of_word(&t->seg, word, &id))
		return false;
	sloc_key_encode(key, id,
			(uint32_t)((map_entry_offset(word) - segment_start(&t->seg, id)) / 64));
	return true;
}

uint64_t share_of_place(struct tier *t, uint64_t word)
{
	uint8_t key[8], value[8];
	size_t len;

	if (!sloc_key_of(t, word, key) ||
	    kv_get(t->kv, KV_SLOC, key, sizeof(key), value, sizeof(value), &len) || len != 8)
		return 0;
	return get_le64(value);
}

bool share_is_damaged(struct tier *t, uint64_t id)
{
	struct tshare *s;

	return share_load(t, id, &s) || !map_entry_has_place(s->next.word) ||
	       tier_place_lost(t, s->next.word);
}

void share_set_damaged(struct tier *t, struct tshare *s)
{
	log_error("tier", "a shared block is bad; all that refer to it are damaged here",
		  "share=%llu device=%u "
		  "offset=%llu references=%u",
		  (unsigned long long)s->id, map_entry_device(s->next.word),
		  (unsigned long long)map_entry_offset(s->next.word), s->next.refs);
	scrub_count_bad(t, map_entry_device(s->next.word));
	s->next.word = MAP_DAMAGED;
	s->counted = false;
	t->scrub.telling = true; /* the map knows who they are */
	t->scrub.tell = (struct scrub_walk){0};
}

int share_move(struct tier *t, struct tshare *s, const void *stored, const struct unit_entry *what)
{
	unsigned kind = map_entry_kind(s->next.word), units = map_entry_units(s->next.word);
	struct unit_entry u = *what;
	uint8_t plain[BLOCK_SIZE];
	const void *data = stored;

	if (stored && kind == MAP_LZ4)
		data = codec_decompress(stored, units, plain) ? NULL : plain;
	if (data && fp128_equal(hash_block(data), s->next.fp)) {
		u.fp = s->next.fp;
		s->place = (struct map_entry){0};
		s->placing = true;
		return segment_append(&t->seg, STREAM_GC, &u, kind, stored, units, &s->place);
	}
	share_set_damaged(t, s);
	return 0;
}

bool share_is_raw(const struct tshare *s)
{
	return !s->placing && map_entry_kind(s->next.word) == MAP_RAW;
}

int share_repack(struct tier *t, struct tshare *s, enum segment_stream stream,
		 const struct unit_entry *what, const void *packed, unsigned units)
{
	struct unit_entry u = *what;

	/* One that came in this commit has no row that its first place could be given back with. */
	if (!s->exists && s->counted)
		segment_account(&t->seg, s->next.word, -1);
	u.fp = s->next.fp;
	s->place = (struct map_entry){0};
	s->placing = true;
	return segment_append(&t->seg, stream, &u, MAP_LZ4, packed, units, &s->place);
}

/* ---- The commit --------------------------------------------------------------------------------
 */

static bool row_equal(const struct share_row *a, const struct share_row *b)
{
	return a->word == b->word && a->refs == b->refs && a->owner_refs == b->owner_refs &&
	       a->owner_volume == b->owner_volume;
}

static void share_finish(struct tier *t, struct tshare *s)
{
	uint8_t key[8], value[SHARE_VALUE_SIZE], place[8], id[8];
	bool lives = s->next.refs != 0;

	if (s->placing) {
		s->next.word = s->place.word;
		s->counted = true;
		s->placing = false;
	}
	if (s->exists && lives && row_equal(&s->now, &s->next))
		return;
	put_be64(key, s->id);
	if (s->exists && (!lives || s->now.word != s->next.word)) {
		segment_account(&t->seg, s->now.word, -1);
		if (sloc_key_of(t, s->now.word, place))
			kv_batch_delete(t->kv, t->batch, KV_SLOC, place, sizeof(place));
	}
	if (lives && (!s->exists || s->now.word != s->next.word)) {
		if (!s->counted)
			segment_account(&t->seg, s->next.word, 1);
		put_le64(id, s->id);
		if (sloc_key_of(t, s->next.word, place))
			kv_batch_put(t->kv, t->batch, KV_SLOC, place, sizeof(place), id,
				     sizeof(id));
	} else if (!lives && s->counted) {
		segment_account(&t->seg, s->next.word, -1);
	}
	if (s->exists)
		volume_share(t, &s->now, -1ull);
	if (lives) {
		volume_share(t, &s->next, 1);
		share_encode(value, &s->next);
		kv_batch_put(t->kv, t->batch, KV_SHARE, key, sizeof(key), value, sizeof(value));
	} else if (s->exists) {
		kv_batch_delete(t->kv, t->batch, KV_SHARE, key, sizeof(key));
	}
}

int shares_finish(struct tier *t)
{
	uint8_t next[16];

	if (t->shares.rc)
		return t->shares.rc;
	if (!t->shares.txn.count)
		return 0;
	for (struct hnode *n = hmap_walk(&t->shares.txn, NULL); n; n = hmap_walk(&t->shares.txn, n))
		share_finish(t, container_of(n, struct tshare, node));
	put_volumes(t);
	if (t->shares.next_id != t->shares.next_id_saved) {
		put_le64(next, t->shares.next_id);
		put_le64(next + 8, hash_xxh3(next, 8, 0));
		kv_batch_put(t->kv, t->batch, KV_META, NEXT_KEY, strlen(NEXT_KEY), next,
			     sizeof(next));
	}
	return 0;
}

void shares_committed(struct tier *t)
{
	for (struct hnode *n = hmap_walk(&t->shares.txn, NULL); n;
	     n = hmap_walk(&t->shares.txn, n)) {
		struct tshare *s = container_of(n, struct tshare, node);
		struct share_row *keep;

		if (s->exists)
			sums_add(&t->shares.sums, &s->now, -1ull);
		if (s->next.refs) {
			sums_add(&t->shares.sums, &s->next, 1);
			keep = fifo_cache_put(&t->shares.rows, row_key(s->id));
			if (keep)
				*keep = s->next;
		} else {
			fifo_cache_drop(&t->shares.rows, row_key(s->id));
		}
	}
	for (struct tvolume *v = atomic_load(&t->shares.all); v && t->shares.txn.count;
	     v = v->all_next) {
		v->now = v->next;
		v->dirty = false;
	}
	t->shares.next_id_saved = t->shares.next_id;
	txn_forget(t);
}

void shares_aborted(struct tier *t)
{
	for (struct tvolume *v = atomic_load(&t->shares.all); v; v = v->all_next) {
		v->next = v->now;
		v->dirty = false;
	}
	txn_forget(t);
}
