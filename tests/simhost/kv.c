/* SPDX-License-Identifier: Apache-2.0 */
/* store/kv.h as an ordered map per directory, with the product's merge. A commit is visible when it
 * is done, durable when it, or a later one, was synced: a power cut takes back what was not, from
 * some batch on. Merge operands pile up and are folded now and then, as compaction does. */
#include "store/kv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "store/map_format.h"
#include "tests/simhost/impl.h"

const char *const kv_cf_names[KV_CFS] = {"map", "region", "obj", "share", "sloc", "seg", "meta"};

struct bytes {
	uint8_t *p;
	size_t len;
};
struct row {
	struct bytes key, base; /* base.p NULL: none */
	struct bytes *ops;      /* merge operands, oldest first */
	unsigned op_count;
};
struct table {
	struct row *rows;
	size_t count, cap;
};
/* How a row was before a batch changed it. */
struct undo {
	struct list link;
	uint64_t batch;
	enum kv_cf cf;
	bool existed;
	struct row row;
};

struct vdb {
	struct list link;
	char *dir;
	struct table tables[KV_CFS];
	struct list undo; /* of unsynced batches, oldest first */
	uint64_t batches;
	struct kv *open;         /* for writing */
	struct kv_batch *flying; /* the commit that is under way */
	bool flying_sync, failed;
	bool damaged; /* a table is, where only writing and kv_check come by */
};

struct kv {
	struct vdb *db;
	struct vproc *proc;
	bool read_only, as_is;
};
struct change {
	enum kv_cf cf;
	enum { PUT, MERGE, DELETE } kind;
	struct bytes key, value;
};
struct kv_batch {
	struct change *changes;
	size_t count, cap, bytes;
};
struct kv_iter {
	struct bytes *rows; /* key, value, key, … */
	size_t count, at;
	int rc;
};

/* ---- Rows ---------------------------------------------------------------------------------------
 */

static struct bytes bytes_keep(const void *p, size_t n)
{
	return (struct bytes){keep_dup(p, n), n};
}

static void row_clear(struct row *r)
{
	keep_free(r->key.p);
	keep_free(r->base.p);
	for (unsigned i = 0; i < r->op_count; i++)
		keep_free(r->ops[i].p);
	keep_free(r->ops);
	*r = (struct row){0};
}

static struct row row_copy(const struct row *r)
{
	struct row c = {.key = bytes_keep(r->key.p, r->key.len), .op_count = r->op_count};

	if (r->base.p)
		c.base = bytes_keep(r->base.p, r->base.len);
	c.ops = keep_alloc((r->op_count + 1) * sizeof(*c.ops));
	for (unsigned i = 0; i < r->op_count; i++)
		c.ops[i] = bytes_keep(r->ops[i].p, r->ops[i].len);
	return c;
}

static int key_compare(const struct bytes *a, const void *key, size_t len)
{
	size_t n = MIN(a->len, len);
	int c = n ? memcmp(a->p, key, n) : 0;

	return c ? c : (a->len > len) - (a->len < len);
}

/* The first row whose key is not below. */
static size_t table_find(const struct table *t, const void *key, size_t len)
{
	size_t lo = 0, hi = t->count;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (key_compare(&t->rows[mid].key, key, len) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool table_has(const struct table *t, size_t i, const void *key, size_t len)
{
	return i < t->count && key_compare(&t->rows[i].key, key, len) == 0;
}

static void table_insert(struct table *t, size_t i, struct row r)
{
	if (t->count == t->cap) {
		size_t cap = t->cap ? t->cap * 2 : 64;
		struct row *rows = keep_alloc(cap * sizeof(*rows));

		if (t->count)
			memcpy(rows, t->rows, t->count * sizeof(*rows));
		keep_free(t->rows);
		t->rows = rows;
		t->cap = cap;
	}
	memmove(t->rows + i + 1, t->rows + i, (t->count - i) * sizeof(r));
	t->rows[i] = r;
	t->count++;
}

static void table_delete(struct table *t, size_t i)
{
	row_clear(&t->rows[i]);
	t->count--;
	memmove(t->rows + i, t->rows + i + 1, (t->count - i) * sizeof(struct row));
}

static struct bytes row_value(const struct row *r, uint8_t merged[MAP_PAGE_MAX])
{
	const void *ops[256];
	size_t lens[256];

	if (!r->op_count)
		return r->base;
	for (unsigned i = 0; i < r->op_count; i++) {
		ops[i] = r->ops[i].p;
		lens[i] = r->ops[i].len;
	}
	return (struct bytes){merged, map_merge_full(merged, r->key.p, r->key.len, r->base.p,
						     r->base.len, ops, lens, r->op_count)};
}

/* Operands become one, or a value. */
static void row_fold(struct row *r, bool bottom)
{
	uint8_t page[MAP_PAGE_MAX], operand[MAP_OPERAND_MAX];
	const void *ops[256];
	size_t lens[256];
	struct bytes v;

	if (r->base.p || bottom) {
		v = row_value(r, page);
	} else {
		for (unsigned i = 0; i < r->op_count; i++) {
			ops[i] = r->ops[i].p;
			lens[i] = r->ops[i].len;
		}
		v.p = operand;
		v.len = map_merge_partial(operand, ops, lens, r->op_count);
	}
	v = bytes_keep(v.p, v.len);
	for (unsigned i = 0; i < r->op_count; i++)
		keep_free(r->ops[i].p);
	if (r->base.p || bottom) {
		keep_free(r->base.p);
		r->base = v;
		r->op_count = 0;
	} else {
		r->ops[0] = v;
		r->op_count = 1;
	}
}

/* ---- Batches ------------------------------------------------------------------------------------
 */

static void change_apply(struct vdb *db, const struct change *c)
{
	struct table *t = &db->tables[c->cf];
	size_t i = table_find(t, c->key.p, c->key.len);
	bool has = table_has(t, i, c->key.p, c->key.len);
	struct undo *u = keep_alloc(sizeof(*u));
	struct bytes *ops;
	struct row *r;

	u->batch = db->batches;
	u->cf = c->cf;
	u->existed = has;
	u->row =
		has ? row_copy(&t->rows[i]) : (struct row){.key = bytes_keep(c->key.p, c->key.len)};
	list_push_back(&db->undo, &u->link);
	if (has && c->kind != MERGE) {
		table_delete(t, i);
		has = false;
	}
	if (c->kind == DELETE)
		return;
	if (!has)
		table_insert(t, i, (struct row){.key = bytes_keep(c->key.p, c->key.len)});
	r = &t->rows[i];
	if (c->kind == PUT) {
		r->base = bytes_keep(c->value.p, c->value.len);
		return;
	}
	CHECK(c->cf == KV_MAP && r->op_count < 200);
	ops = keep_alloc((r->op_count + 1) * sizeof(*ops));
	if (r->op_count)
		memcpy(ops, r->ops, r->op_count * sizeof(*ops));
	keep_free(r->ops);
	r->ops = ops;
	r->ops[r->op_count++] = bytes_keep(c->value.p, c->value.len);
	if (chance(0.05))
		row_fold(r, chance(0.5));
}

static void undo_free(struct undo *u)
{
	row_clear(&u->row);
	keep_free(u);
}

static void db_synced(struct vdb *db)
{
	struct list *n;

	while ((n = list_pop_front(&db->undo)))
		undo_free(list_entry(n, struct undo, link));
}

static void batch_apply(struct vdb *db, const struct kv_batch *b)
{
	db->batches++;
	for (size_t i = 0; i < b->count; i++)
		change_apply(db, &b->changes[i]);
}

/* Batches after this one have not happened. */
static void db_rollback(struct vdb *db, uint64_t last)
{
	while (!list_empty(&db->undo)) {
		struct undo *u = list_last(&db->undo, struct undo, link);
		struct table *t = &db->tables[u->cf];
		size_t i = table_find(t, u->row.key.p, u->row.key.len);

		if (u->batch <= last)
			break;
		if (table_has(t, i, u->row.key.p, u->row.key.len))
			table_delete(t, i);
		if (u->existed)
			table_insert(t, i, row_copy(&u->row));
		list_del(&u->link);
		undo_free(u);
	}
	db->batches = MIN(db->batches, last);
}

/* ---- Databases of a host ------------------------------------------------------------------------
 */

static struct vdb *db_find(struct vhost *h, const char *dir)
{
	struct vdb *db;

	list_for_each(db, &h->dbs, link) if (!strcmp(db->dir, dir)) return db;
	return NULL;
}

static struct vdb *db_make(struct vhost *h, const char *dir)
{
	struct vdb *db = keep_alloc(sizeof(*db));

	db->dir = keep_str(dir);
	list_init(&db->undo);
	list_push_back(&h->dbs, &db->link);
	return db;
}

static void db_free(struct vdb *db)
{
	db_synced(db);
	for (unsigned i = 0; i < KV_CFS; i++) {
		while (db->tables[i].count)
			table_delete(&db->tables[i], db->tables[i].count - 1);
		keep_free(db->tables[i].rows);
	}
	list_del(&db->link);
	keep_free(db->dir);
	keep_free(db);
}

void vdb_remove(struct vhost *h, const char *dir)
{
	struct vdb *db = db_find(h, dir);

	if (!db)
		return;
	CHECK(!db->open);
	db_free(db);
}

void vdb_damage(struct vhost *h, const char *dir, bool on)
{
	struct vdb *db = db_find(h, dir);

	if (db)
		db->damaged = on;
}

void db_drop(struct vhost *h)
{
	while (!list_empty(&h->dbs))
		db_free(list_first(&h->dbs, struct vdb, link));
}

void db_copy(struct vhost *to, const struct vhost *from)
{
	struct vdb *db;

	db_drop(to);
	list_for_each(db, &from->dbs, link)
	{
		struct vdb *c = db_make(to, db->dir);

		for (unsigned i = 0; i < KV_CFS; i++)
			for (size_t k = 0; k < db->tables[i].count; k++)
				table_insert(&c->tables[i], k, row_copy(&db->tables[i].rows[k]));
	}
}

static void flying_lands(struct vdb *db)
{
	if (db->flying && chance(0.5))
		batch_apply(db, db->flying);
	db->flying = NULL;
}

void db_power_cut(struct vhost *h)
{
	struct vdb *db;

	list_for_each(db, &h->dbs, link)
	{
		uint64_t first;

		flying_lands(db);
		if (!list_empty(&db->undo)) {
			first = list_first(&db->undo, struct undo, link)->batch;
			db_rollback(db, draw(first - 1, db->batches));
		}
		db_synced(db);
		db->open = NULL;
		db->failed = false;
	}
}

void db_process_died(struct vproc *p)
{
	struct vdb *db;

	list_for_each(db, &p->host->dbs, link)
	{
		if (!db->open || db->open->proc != p)
			continue;
		flying_lands(db);
		db->open = NULL;
		db->failed = false;
	}
}

/* ---- Faults -------------------------------------------------------------------------------------
 */

/* 0, or the error. What does not fit a read or an opening is a device error. */
static int db_io(enum vio_kind kind, const char *dir)
{
	struct vhost *h = vproc_current()->host;
	struct vio io = {.host = h, .proc = vproc_current(), .kind = kind, .path = dir};
	enum vfault f = vio_start(&io);

	fiber_sleep(draw(h->latency[kind].lo, h->latency[kind].hi));
	switch (f) {
	case VFAULT_NONE:
	case VFAULT_LOST:
		return 0;
	case VFAULT_CUT_DURING:
	case VFAULT_CUT_AFTER:
	case VFAULT_KILL_AFTER:
		vio_die(h, f);
	case VFAULT_FLIP:
	case VFAULT_MISDIRECTED:
		return -ERR_CORRUPT; /* it has checksums */
	default:
		return -ERR_DEVICE;
	}
}

/* ---- kv.h ---------------------------------------------------------------------------------------
 */

int kv_format(const char *dir)
{
	struct vhost *h = vproc_current()->host;
	struct vdb *db = db_find(h, dir);
	struct vfile *d = vfile_find(h, dir);

	if (!d || !d->dir)
		return -ENOENT;
	CHECK(!db || !db->open);
	if (db)
		db_free(db);
	if (db_io(VIO_DB_FORMAT, dir))
		return -ERR_DEVICE;
	db_make(h, dir);
	return 0;
}

int kv_open(const char *dir, bool read_only, struct kv **out)
{
	struct vdb *db;

	int rc = db_io(VIO_DB_OPEN, dir);

	*out = NULL;
	if (rc)
		return rc == -ERR_CORRUPT ? -ERR_MAP_LOST : rc;
	db = db_find(vproc_current()->host, dir);
	if (!db || (db->open && !read_only))
		return -ERR_MAP_LOST;
	*out = xcalloc(1, sizeof(**out));
	(*out)->db = db;
	(*out)->proc = vproc_current();
	(*out)->read_only = read_only;
	if (!read_only) {
		db->open = *out;
		db->failed = false;
		/* What it finds in its write-ahead log it writes into a table, synced, first. */
		db_synced(db);
	}
	return 0;
}

int kv_open_as_is(const char *dir, struct kv **out)
{
	int rc = kv_open(dir, false, out);

	if (!rc)
		(*out)->as_is = true;
	return rc;
}

int kv_check(const char *dir)
{
	struct vdb *db;

	for (unsigned looks = 0;; looks++) {
		int rc = db_io(VIO_DB_READ, dir);

		if (rc && (rc != -ERR_CORRUPT || looks))
			return rc == -ERR_CORRUPT ? -ERR_MAP_LOST : rc;
		if (!rc)
			break;
	}
	db = db_find(vproc_current()->host, dir);
	CHECK(!db || !db->open);
	return !db || db->damaged ? -ERR_MAP_LOST : 0;
}

void kv_close(struct kv *kv)
{
	if (kv && kv->db->open == kv)
		kv->db->open = NULL;
	free(kv);
}

static int row_get(struct kv *kv, enum kv_cf cf, const void *key, size_t key_len,
		   uint8_t merged[MAP_PAGE_MAX], struct bytes *out, unsigned *ops)
{
	struct table *t = &kv->db->tables[cf];
	size_t i = table_find(t, key, key_len);

	if (!table_has(t, i, key, key_len))
		return -ERR_NOT_FOUND;
	*out = row_value(&t->rows[i], merged);
	*ops = MAX(*ops, t->rows[i].op_count);
	return 0;
}

int kv_get(struct kv *kv, enum kv_cf cf, const void *key, size_t key_len, void *out, size_t cap,
	   size_t *len)
{
	uint8_t merged[MAP_PAGE_MAX];
	struct bytes v;
	unsigned ops = 0;
	int rc = db_io(VIO_DB_READ, kv->db->dir);

	if (!rc)
		rc = row_get(kv, cf, key, key_len, merged, &v, &ops);
	if (rc)
		return rc;
	*len = v.len;
	if (v.len > cap)
		return -ERR_LIMIT;
	memcpy(out, v.p, v.len);
	return 0;
}

unsigned kv_multi_get(struct kv *kv, enum kv_cf cf, const void *const *keys, const size_t *key_lens,
		      unsigned n,
		      void (*fn)(void *arg, unsigned i, int rc, const void *value, size_t len),
		      void *arg)
{
	int rc = db_io(VIO_DB_READ, kv->db->dir);
	unsigned ops = 0;

	CHECK(n <= KV_MULTI_MAX);
	for (unsigned i = 0; i < n; i++) {
		uint8_t merged[MAP_PAGE_MAX];
		struct bytes v = {0};
		int rc1 = rc ? rc : row_get(kv, cf, keys[i], key_lens[i], merged, &v, &ops);

		CHECK(i == 0 ||
		      key_compare(&(struct bytes){(void *)(uintptr_t)keys[i - 1], key_lens[i - 1]},
				  keys[i], key_lens[i]) < 0);
		fn(arg, i, rc1, rc1 ? NULL : v.p, rc1 ? 0 : v.len);
	}
	return ops;
}

/* A copy of the rows: what is committed later is not seen. */
struct kv_iter *kv_iter_range(struct kv *kv, enum kv_cf cf, const void *start, size_t start_len,
			      const void *last, size_t last_len)
{
	struct kv_iter *it = xcalloc(1, sizeof(*it));
	struct table *t = &kv->db->tables[cf];
	size_t i, end;

	it->rc = db_io(VIO_DB_READ, kv->db->dir);
	i = start ? table_find(t, start, start_len) : 0;
	end = last ? table_find(t, last, last_len) : t->count;
	end = MAX(i, end);
	if (it->rc)
		end = i + (end - i) / 2;
	it->rows = xcalloc((end - i) * 2 + 1, sizeof(*it->rows));
	for (; i < end; i++) {
		uint8_t merged[MAP_PAGE_MAX];
		struct bytes v = row_value(&t->rows[i], merged), k = t->rows[i].key;
		struct bytes *to = it->rows + 2 * it->count++;

		to[0] = (struct bytes){memcpy(xmalloc(k.len), k.p, k.len), k.len};
		to[1] = (struct bytes){memcpy(xmalloc(v.len), v.p, v.len), v.len};
	}
	return it;
}

bool kv_iter_next(struct kv_iter *it, const void **key, size_t *key_len, const void **value,
		  size_t *value_len)
{
	struct bytes *at = it->rows + 2 * it->at;

	if (it->at == it->count)
		return false;
	it->at++;
	*key = at[0].p;
	*key_len = at[0].len;
	*value = at[1].p;
	*value_len = at[1].len;
	return true;
}

int kv_iter_close(struct kv_iter *it)
{
	int rc = it->rc;

	for (size_t i = 0; i < 2 * it->count; i++)
		free(it->rows[i].p);
	free(it->rows);
	free(it);
	return rc;
}

struct kv_batch *kv_batch_create(void)
{
	return xcalloc(1, sizeof(struct kv_batch));
}

void kv_batch_clear(struct kv_batch *b)
{
	for (size_t i = 0; i < b->count; i++) {
		free(b->changes[i].key.p);
		free(b->changes[i].value.p);
	}
	b->count = b->bytes = 0;
}

void kv_batch_destroy(struct kv_batch *b)
{
	if (!b)
		return;
	kv_batch_clear(b);
	free(b->changes);
	free(b);
}

static void batch_add(struct kv_batch *b, enum kv_cf cf, int kind, const void *key, size_t key_len,
		      const void *value, size_t len)
{
	struct change *c;

	if (b->count == b->cap) {
		b->cap = b->cap ? b->cap * 2 : 64;
		b->changes = xrealloc(b->changes, b->cap * sizeof(*b->changes));
	}
	c = &b->changes[b->count++];
	*c = (struct change){.cf = cf, .kind = kind};
	c->key = (struct bytes){memcpy(xmalloc(key_len), key, key_len), key_len};
	c->value = (struct bytes){xmalloc(len), len};
	if (len)
		memcpy(c->value.p, value, len);
	b->bytes += key_len + len;
}

void kv_batch_put(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key, size_t key_len,
		  const void *value, size_t len)
{
	batch_add(b, cf, PUT, key, key_len, value, len);
}

void kv_batch_merge(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		    size_t key_len, const void *value, size_t len)
{
	batch_add(b, cf, MERGE, key, key_len, value, len);
}

void kv_batch_delete(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		     size_t key_len)
{
	batch_add(b, cf, DELETE, key, key_len, NULL, 0);
}

/* RocksDB lets readers see a batch only once it is as durable as it is to be. */
int kv_commit(struct kv *kv, struct kv_batch *b, bool sync)
{
	struct vdb *db = kv->db;
	struct vhost *h = kv->proc->host;
	struct vio io = {.host = h,
			 .proc = kv->proc,
			 .kind = VIO_DB_COMMIT,
			 .path = db->dir,
			 .len = b->bytes,
			 .sync = sync};
	enum vfault f;

	CHECK(db->open == kv && !db->flying);
	if (db->damaged && !kv->as_is) {
		db->failed = true;
		return -ERR_CORRUPT;
	}
	if (db->failed)
		return -ERR_DEVICE;
	f = vio_start(&io);
	db->flying = b;
	if (f == VFAULT_CUT_DURING)
		vio_die(h, f);
	fiber_sleep(draw(h->latency[VIO_DB_COMMIT].lo, h->latency[VIO_DB_COMMIT].hi));
	db->flying = NULL;
	if (f == VFAULT_EIO || f == VFAULT_ENOSPC || f == VFAULT_FLIP || f == VFAULT_MISDIRECTED) {
		if (f != VFAULT_ENOSPC && chance(0.5))
			batch_apply(db, b);
		db->failed = true;
		return f == VFAULT_ENOSPC ? -ENOSPC : -ERR_DEVICE;
	}
	batch_apply(db, b);
	if (sync && f != VFAULT_LOST)
		db_synced(db);
	if (f == VFAULT_CUT_AFTER || f == VFAULT_KILL_AFTER)
		vio_die(h, f);
	return 0;
}

void kv_counts(const struct kv *kv, struct kv_counts *out)
{
	*out = (struct kv_counts){0};
}

int kv_settle(struct kv *kv)
{
	return 0; /* there are no tables here */
}

uint64_t kv_used_bytes(struct kv *kv)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < KV_CFS; i++)
		for (size_t k = 0; k < kv->db->tables[i].count; k++) {
			const struct row *r = &kv->db->tables[i].rows[k];

			sum += r->key.len + r->base.len;
			for (unsigned o = 0; o < r->op_count; o++)
				sum += r->ops[o].len;
		}
	return sum;
}

bool kv_is_failing(struct kv *kv)
{
	return kv->db->failed;
}
