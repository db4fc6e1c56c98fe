/* SPDX-License-Identifier: Apache-2.0 */
/* cluster/raft_log.h in memory, per host and directory. All that the header calls durable is so
 * when the call returns; truncations alone are lost from some point on by a power cut. */
#include "cluster/raft_log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "tests/simhost/impl.h"

struct raft_db {
	struct vresource resource;
	char *dir;
	uint16_t node;
	struct raft_disk_image image; /* with `lazy` not yet applied; memory of the host */
	size_t cap;
	struct raft_write lazy[64]; /* truncations that are not durable */
	unsigned lazy_count;
	const struct raft_write *flying;
	unsigned flying_count;
	struct vproc *open;
	bool failed;
};
struct raft_handle {
	struct raft_disk disk;
	struct raft_db *db;
};

static struct raft_db *of(struct raft_disk *d)
{
	return container_of(d, struct raft_handle, disk)->db;
}

/* ---- The image ----------------------------------------------------------------------------------
 */

static uint64_t image_end(const struct raft_disk_image *i)
{
	return i->first + i->count;
}

/* At the front, at the end, or all. */
static void cut(struct raft_disk_image *i, uint64_t first, uint64_t last)
{
	size_t n = 0;

	if (last < first || !i->count)
		return;
	if (first > i->first) {
		while (i->count && image_end(i) > first)
			keep_free(i->entry[--i->count].data);
		return;
	}
	while (n < i->count && i->first + n <= last)
		keep_free(i->entry[n++].data);
	i->count -= n;
	i->first += n;
	memmove(i->entry, i->entry + n, i->count * sizeof(*i->entry));
}

static void push(struct raft_db *db, const struct raft_disk_entry *e)
{
	struct raft_disk_image *i = &db->image;

	if (i->count == db->cap) {
		struct raft_disk_entry *bigger;

		db->cap = db->cap ? 2 * db->cap : 64;
		bigger = keep_alloc(db->cap * sizeof(*bigger));
		if (i->count)
			memcpy(bigger, i->entry, i->count * sizeof(*bigger));
		keep_free(i->entry);
		i->entry = bigger;
	}
	i->entry[i->count] = *e;
	i->entry[i->count++].data = keep_dup(e->data, e->len);
}

static void apply(struct raft_db *db, const struct raft_write *w)
{
	struct raft_disk_image *i = &db->image;

	switch (w->kind) {
	case RAFT_WRITE_TRUNCATE:
		cut(i, w->first, w->last);
		break;
	case RAFT_WRITE_APPEND:
		if (!i->count)
			i->first = w->first;
		CHECK(w->first <= image_end(i)); /* no holes */
		if (w->first < image_end(i))
			cut(i, w->first, UINT64_MAX);
		if (!i->count)
			i->first = w->first;
		for (uint64_t k = w->first; k <= w->last; k++)
			push(db, &w->entry[k - w->first]);
		break;
	case RAFT_WRITE_SNAPSHOT:
		keep_free(i->snapshot.conf);
		keep_free(i->snapshot.data);
		i->has_snapshot = true;
		i->snapshot = w->snapshot;
		i->snapshot.conf = keep_dup(w->snapshot.conf, w->snapshot.conf_len);
		i->snapshot.data = keep_dup(w->snapshot.data, w->snapshot.len);
		cut(i, w->first, w->last);
		if (!i->count)
			i->first = w->snapshot.index + 1;
		break;
	}
}

/* Later writes are durable only with these before them. */
static void lazy_apply(struct raft_db *db, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		apply(db, &db->lazy[i]);
	db->lazy_count = 0;
}

static void flying_lands(struct raft_db *db)
{
	if (db->flying && chance(0.5)) {
		lazy_apply(db, db->lazy_count);
		for (unsigned i = 0; i < db->flying_count; i++)
			apply(db, &db->flying[i]);
	}
	db->flying = NULL;
}

/* ---- Deaths -------------------------------------------------------------------------------------
 */

static void on_power_cut(struct vresource *r)
{
	struct raft_db *db = container_of(r, struct raft_db, resource);

	flying_lands(db);
	lazy_apply(db, (unsigned)draw(0, db->lazy_count));
	db->open = NULL;
	db->failed = false;
}

static void on_process_died(struct vresource *r, struct vproc *p)
{
	struct raft_db *db = container_of(r, struct raft_db, resource);

	if (db->open != p)
		return;
	flying_lands(db);
	db->open = NULL;
	db->failed = false;
}

static void on_drop(struct vresource *r)
{
	struct raft_db *db = container_of(r, struct raft_db, resource);

	cut(&db->image, 0, UINT64_MAX);
	keep_free(db->image.entry);
	keep_free(db->image.snapshot.conf);
	keep_free(db->image.snapshot.data);
	keep_free(db->dir);
	keep_free(db);
}

/* ---- raft_log.h ---------------------------------------------------------------------------------
 */

/* One I/O. < 0: it failed, and nothing more is written until the log is opened again. */
static int log_io(struct raft_db *db, enum vio_kind kind, bool sync, enum vfault *fault)
{
	struct vproc *p = vproc_current();
	struct vhost *h = p->host;
	struct vio io = {.host = h, .proc = p, .kind = kind, .path = db->dir, .sync = sync};

	if (db->failed)
		return -EIO;
	*fault = vio_start(&io);
	if (*fault == VFAULT_CUT_DURING)
		vio_die(h, *fault);
	fiber_sleep(draw(h->latency[kind].lo, h->latency[kind].hi));
	if (*fault == VFAULT_NONE || *fault == VFAULT_LOST || *fault == VFAULT_CUT_AFTER ||
	    *fault == VFAULT_KILL_AFTER)
		return 0;
	db->failed = true;
	return *fault == VFAULT_ENOSPC ? -ENOSPC : -EIO;
}

static void log_io_end(enum vfault fault)
{
	if (fault == VFAULT_CUT_AFTER || fault == VFAULT_KILL_AFTER)
		vio_die(vproc_current()->host, fault);
}

static void *dup_for_caller(const void *p, size_t n)
{
	void *q = xmalloc(n);

	if (n)
		memcpy(q, p, n);
	return q;
}

static int disk_load(struct raft_disk *d, struct raft_disk_image *out)
{
	struct raft_db *db = of(d);
	enum vfault f;
	int rc = log_io(db, VIO_DB_READ, false, &f);

	if (rc)
		return rc;
	log_io_end(f);
	lazy_apply(db, db->lazy_count);
	*out = db->image;
	out->entry = xcalloc(out->count + 1, sizeof(*out->entry));
	for (size_t i = 0; i < out->count; i++) {
		out->entry[i] = db->image.entry[i];
		out->entry[i].data = dup_for_caller(out->entry[i].data, out->entry[i].len);
	}
	if (out->has_snapshot) {
		out->snapshot.conf = dup_for_caller(out->snapshot.conf, out->snapshot.conf_len);
		out->snapshot.data = dup_for_caller(out->snapshot.data, out->snapshot.len);
	}
	return 0;
}

static int disk_set(struct raft_disk *d, uint64_t term, uint64_t vote, bool set_term)
{
	struct raft_db *db = of(d);
	enum vfault f;
	int rc = log_io(db, VIO_DB_COMMIT, true, &f);

	if (rc)
		return rc;
	if (set_term)
		db->image.term = term;
	db->image.vote = vote;
	log_io_end(f);
	return 0;
}

static int disk_set_term(struct raft_disk *d, uint64_t term)
{
	return disk_set(d, term, 0, true);
}

static int disk_set_vote(struct raft_disk *d, uint64_t vote)
{
	return disk_set(d, 0, vote, false);
}

static int disk_write(struct raft_disk *d, const struct raft_write *w, unsigned n)
{
	struct raft_db *db = of(d);
	bool sync = false;
	enum vfault f;
	int rc;

	for (unsigned i = 0; i < n; i++)
		sync |= w[i].kind != RAFT_WRITE_TRUNCATE;
	CHECK(!db->flying);
	db->flying = w;
	db->flying_count = n;
	rc = log_io(db, VIO_DB_COMMIT, sync, &f);
	if (rc) {
		flying_lands(db);
		return rc;
	}
	db->flying = NULL;
	if (!sync && db->lazy_count + n <= ARRAY_LEN(db->lazy)) {
		memcpy(db->lazy + db->lazy_count, w, n * sizeof(*w));
		db->lazy_count += n;
	} else {
		lazy_apply(db, db->lazy_count);
		for (unsigned i = 0; i < n; i++)
			apply(db, &w[i]);
	}
	log_io_end(f);
	return 0;
}

static int disk_bootstrap(struct raft_disk *d, const struct raft_disk_entry *e)
{
	struct raft_write w = {.kind = RAFT_WRITE_APPEND, .first = 1, .last = 1, .entry = e};
	int rc = disk_set(d, 1, 0, true);

	return rc ? rc : disk_write(d, &w, 1);
}

static void disk_close(struct raft_disk *d)
{
	of(d)->open = NULL;
	free(container_of(d, struct raft_handle, disk));
}

static const struct raft_disk_ops ops = {
	.load = disk_load,
	.set_term = disk_set_term,
	.set_vote = disk_set_vote,
	.bootstrap = disk_bootstrap,
	.write = disk_write,
	.close = disk_close,
};

static struct raft_db *db_find(struct vhost *h, const char *dir)
{
	struct vresource *r;

	list_for_each(r, &h->resources, link)
	{
		struct raft_db *db = container_of(r, struct raft_db, resource);

		if (r->drop == on_drop && !strcmp(db->dir, dir))
			return db;
	}
	return NULL;
}

int raft_log_open(const char *dir, uint16_t node, struct raft_disk **out)
{
	struct vhost *h = vproc_current()->host;
	struct raft_db *db = db_find(h, dir);
	struct raft_handle *handle;
	enum vfault f;
	int rc;

	if (!db) {
		db = keep_alloc(sizeof(*db));
		db->dir = keep_str(dir);
		db->node = node;
		db->image.first = 1;
		db->resource = (struct vresource){.power_cut = on_power_cut,
						  .process_died = on_process_died,
						  .drop = on_drop};
		list_push_back(&h->resources, &db->resource.link);
	}
	if (db->node != node)
		return -ERR_FOREIGN;
	if (db->open)
		return -ERR_BUSY;
	rc = log_io(db, VIO_DB_OPEN, false, &f);
	if (rc)
		return rc;
	log_io_end(f);
	handle = xcalloc(1, sizeof(*handle));
	handle->disk.ops = &ops;
	handle->db = db;
	db->open = vproc_current();
	db->failed = false;
	*out = &handle->disk;
	return 0;
}

void raft_disk_image_free(struct raft_disk_image *image)
{
	for (size_t i = 0; i < image->count; i++)
		free(image->entry[i].data);
	free(image->entry);
	free(image->snapshot.conf);
	free(image->snapshot.data);
	memset(image, 0, sizeof(*image));
}
