/* SPDX-License-Identifier: Apache-2.0 */
/* RocksDB's door for the Raft log. A voter that forgets what it acknowledged breaks Raft for
 * everyone, so nothing here ever starts over: whatever is unreadable or has a hole is -ERR_CORRUPT,
 * and the node must come back as a new one. */
#include "cluster/raft_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cluster/raft_log_mark.h"
#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define FORMAT          2 /* 1: without the count and the mark */
#define FLUSH_BYTES     (8u << 20)
#define KEY_META        "m"
#define KEY_VOTE        "v"
#define KEY_SNAPSHOT    "s"
#define KEY_DATA        "d"
#define ENTRY_KEY_BYTES 9

struct raft_log {
	struct raft_disk disk;
	char *dir;
	rocksdb_t *db;
	rocksdb_options_t *options;
	rocksdb_writeoptions_t *sync, *lazy;
	rocksdb_flushoptions_t *flush;
	rocksdb_readoptions_t *read;
	struct raft_mark mark;
	pthread_mutex_t lock; /* batches are numbered in the order in which they reach the disk */
	uint64_t term, vote, batches;
	size_t unflushed;
	bool marked; /* the mark was compared; it may be moved */
};

/* Logs and frees RocksDB's message. */
static int failed(const struct raft_log *l, const char *what, char *err)
{
	int rc = strstr(err, "No space")       ? -ENOSPC
		 : strncmp(err, "IO error", 8) ? -ERR_CORRUPT
					       : -EIO;

	log_error("raft", what, "dir=%s error=\"%s\"", l->dir, err);
	rocksdb_free(err);
	return rc;
}

static int corrupt(const struct raft_log *l, const char *what)
{
	log_error("raft",
		  "the Raft log is damaged. This node must not vote with what is left: remove it "
		  "from the "
		  "cluster, empty the directory and join again as a new node",
		  "dir=%s reason=\"%s\"", l->dir, what);
	return -ERR_CORRUPT;
}

static void entry_key(uint8_t key[ENTRY_KEY_BYTES], uint64_t index)
{
	key[0] = 'e';
	put_be64(key + 1, index);
}

/* ---- Reading ---- */

/* The value (rocksdb_free), or NULL: absent, or an error in *rc. */
static char *get(struct raft_log *l, const char *key, size_t *len, int *rc)
{
	char *err = NULL, *value = rocksdb_get(l->db, l->read, key, strlen(key), len, &err);

	*rc = 0;
	if (err) {
		rocksdb_free(err);
		*rc = corrupt(l, "a record cannot be read");
	}
	return value;
}

static void *copy(const void *p, size_t n)
{
	return memcpy(xmalloc(n ? n : 1), p ? p : "", n);
}

static int load_vote(struct raft_log *l)
{
	size_t len;
	int rc;
	CLEANUP(free_ptr) char *value = get(l, KEY_VOTE, &len, &rc);
	struct reader r = reader_init(value, value ? len : 0);

	if (rc < 0 || !value)
		return rc;
	l->term = read_u64(&r);
	l->vote = read_u64(&r);
	if (reader_left(&r)) /* none in format 1 */
		l->batches = read_u64(&r);
	return reader_done(&r) ? 0 : corrupt(l, "the term's record has a wrong length");
}

static int load_snapshot(struct raft_log *l, struct raft_disk_image *out)
{
	struct raft_disk_snapshot *s = &out->snapshot;
	size_t len, data_len;
	int rc;
	CLEANUP(free_ptr) char *value = get(l, KEY_SNAPSHOT, &len, &rc);
	CLEANUP(free_ptr) char *data = NULL;
	struct reader r = reader_init(value, value ? len : 0);
	const void *conf;

	if (rc < 0 || !value)
		return rc;
	s->index = read_u64(&r);
	s->term = read_u64(&r);
	s->conf_index = read_u64(&r);
	s->conf_len = read_u32(&r);
	conf = read_bytes(&r, s->conf_len);
	if (!reader_done(&r) || s->index == 0 || s->term == 0)
		return corrupt(l, "the snapshot's record is not valid");
	data = get(l, KEY_DATA, &data_len, &rc);
	if (rc < 0)
		return rc;
	if (!data)
		return corrupt(l, "the snapshot's data is missing");
	s->conf = copy(conf, s->conf_len);
	s->data = copy(data, data_len);
	s->len = data_len;
	out->has_snapshot = true;
	return 0;
}

static int load_entry(struct raft_log *l, struct raft_disk_image *out, rocksdb_iterator_t *it,
		      size_t *cap)
{
	size_t key_len, len;
	const char *key = rocksdb_iter_key(it, &key_len);
	const char *value = rocksdb_iter_value(it, &len);
	struct reader r = reader_init(value, len);
	struct raft_disk_entry *e;
	uint64_t index;

	if (key_len != ENTRY_KEY_BYTES)
		return corrupt(l, "an unknown record");
	index = get_be64(key + 1);
	if (out->count == 0)
		out->first = index;
	if (index != out->first + out->count)
		return corrupt(l, "the log has a hole");
	if (out->count == *cap) {
		*cap = *cap ? 2 * *cap : 1024;
		out->entry = xrealloc(out->entry, *cap * sizeof(*out->entry));
	}
	e = &out->entry[out->count];
	e->term = read_u64(&r);
	e->type = read_u8(&r);
	if (r.bad || e->term == 0)
		return corrupt(l, "a log entry is not valid");
	e->len = reader_left(&r);
	e->data = copy(r.p, e->len);
	out->count++;
	return 0;
}

static int load_entries(struct raft_log *l, struct raft_disk_image *out)
{
	rocksdb_iterator_t *it = rocksdb_create_iterator(l->db, l->read);
	size_t cap = 0, len;
	char *err = NULL;
	int rc = 0;

	rocksdb_iter_seek(it, "e", 1);
	while (rc == 0 && rocksdb_iter_valid(it) && rocksdb_iter_key(it, &len)[0] == 'e') {
		rc = load_entry(l, out, it, &cap);
		rocksdb_iter_next(it);
	}
	rocksdb_iter_get_error(it, &err);
	rocksdb_iter_destroy(it);
	if (err) {
		rocksdb_free(err);
		return corrupt(l, "a log entry cannot be read");
	}
	return rc;
}

/* The parts fit together: the log joins the snapshot, and there is a term for it. */
static int image_check(struct raft_log *l, const struct raft_disk_image *i)
{
	uint64_t snapshot = i->has_snapshot ? i->snapshot.index : 0;
	uint64_t term = i->has_snapshot ? i->snapshot.term : 0;

	if (i->count && i->first > snapshot + 1)
		return corrupt(l, "the log does not join the snapshot");
	if (i->count && i->first + i->count - 1 < snapshot)
		return corrupt(l, "the log ends before the snapshot");
	for (size_t k = 0; k < i->count; k++) {
		if (i->entry[k].term > i->term)
			return corrupt(l, "the log is of a later term than the node");
		if (k && i->entry[k].term < i->entry[k - 1].term)
			return corrupt(l, "the terms of the log fall");
	}
	return term > i->term ? corrupt(l, "the snapshot is of a later term than the node") : 0;
}

static int log_load(struct raft_disk *d, struct raft_disk_image *out)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	int rc;

	memset(out, 0, sizeof(*out));
	out->term = l->term;
	out->vote = l->vote;
	rc = load_snapshot(l, out);
	if (rc == 0)
		rc = load_entries(l, out);
	if (rc == 0)
		rc = image_check(l, out);
	if (rc < 0) {
		raft_disk_image_free(out);
		return rc;
	}
	if (out->count == 0)
		out->first = out->snapshot.index + 1;
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

/* ---- Writing ---- */

static void batch_put(rocksdb_writebatch_t *b, const void *key, size_t key_len,
		      const struct writer *w)
{
	rocksdb_writebatch_put(b, key, key_len, (const char *)w->data, w->len);
}

static size_t batch_bytes(rocksdb_writebatch_t *b)
{
	size_t len;

	(void)rocksdb_writebatch_data(b, &len);
	return len;
}

static int write_lazy(struct raft_log *l, rocksdb_writebatch_t *b)
{
	char *err = NULL;

	l->unflushed += batch_bytes(b);
	rocksdb_write(l->db, l->lazy, b, &err);
	rocksdb_writebatch_destroy(b);
	return err ? failed(l, "the Raft log cannot be written", err) : 0;
}

/* With term, vote and number, which thus can never be older than the entries. The caller holds the
 * lock. */
static int write_locked(struct raft_log *l, rocksdb_writebatch_t *b)
{
	uint8_t value[24];
	struct writer w = writer_init(value, sizeof(value));
	char *err = NULL;
	int rc;

	write_u64(&w, l->term);
	write_u64(&w, l->vote);
	write_u64(&w, l->batches + 1);
	batch_put(b, KEY_VOTE, 1, &w);
	l->unflushed += batch_bytes(b);
	rocksdb_write(l->db, l->sync, b, &err);
	rocksdb_writebatch_destroy(b);
	if (err)
		return failed(l, "the Raft log cannot be written", err);
	l->batches++;
	if (!l->marked) /* the first batch of all comes before the mark */
		return 0;
	rc = raft_mark_set(&l->mark, l->batches);
	if (rc < 0)
		log_error("raft", "the Raft log's mark cannot be written", "dir=%s error=%s",
			  l->dir, err_name(rc));
	return rc;
}

/* To a table, with no batch let in meanwhile. So there are never two write-ahead logs with
 * something in them, of which the older one might lose its end unnoticed. */
static int flush_locked(struct raft_log *l)
{
	char *err = NULL;

	l->unflushed = 0;
	rocksdb_flush(l->db, l->flush, &err);
	return err ? failed(l, "the Raft log cannot be written", err) : 0;
}

static int write_batch(struct raft_log *l, rocksdb_writebatch_t *b, bool durable)
{
	int rc;

	pthread_mutex_lock(&l->lock);
	rc = durable ? write_locked(l, b) : write_lazy(l, b);
	if (rc == 0 && l->unflushed >= FLUSH_BYTES)
		rc = flush_locked(l);
	pthread_mutex_unlock(&l->lock);
	return rc;
}

static int write_vote(struct raft_log *l, uint64_t term, uint64_t vote)
{
	int rc;

	pthread_mutex_lock(&l->lock);
	l->term = term;
	l->vote = vote;
	rc = write_locked(l, rocksdb_writebatch_create());
	if (rc == 0)
		raft_mark_push(&l->mark); /* no write may follow for long */
	pthread_mutex_unlock(&l->lock);
	return rc;
}

static void batch_entry(rocksdb_writebatch_t *b, uint64_t index, const struct raft_disk_entry *e)
{
	uint8_t key[ENTRY_KEY_BYTES], head[9];
	const char *parts[2] = {(const char *)head, e->data};
	size_t sizes[2] = {sizeof(head), e->len};
	const char *keys[1] = {(const char *)key};
	size_t key_sizes[1] = {sizeof(key)};

	entry_key(key, index);
	put_le64(head, e->term);
	head[8] = e->type;
	rocksdb_writebatch_putv(b, 1, keys, key_sizes, e->len ? 2 : 1, parts, sizes);
}

static void batch_delete(rocksdb_writebatch_t *b, uint64_t first, uint64_t last)
{
	for (uint64_t i = first; i <= last; i++) {
		uint8_t key[ENTRY_KEY_BYTES];

		entry_key(key, i);
		rocksdb_writebatch_delete(b, (const char *)key, sizeof(key));
	}
}

static void batch_snapshot(rocksdb_writebatch_t *b, const struct raft_disk_snapshot *s)
{
	struct writer w = writer_init_heap();

	write_u64(&w, s->index);
	write_u64(&w, s->term);
	write_u64(&w, s->conf_index);
	write_u32(&w, (uint32_t)s->conf_len);
	write_bytes(&w, s->conf, s->conf_len);
	batch_put(b, KEY_SNAPSHOT, 1, &w);
	writer_free(&w);
	rocksdb_writebatch_put(b, KEY_DATA, 1, s->data, s->len);
}

static int log_write_all(struct raft_disk *d, const struct raft_write *w, unsigned n)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();
	bool durable = false;

	for (unsigned i = 0; i < n; i++) {
		durable |= w[i].kind != RAFT_WRITE_TRUNCATE;
		switch (w[i].kind) {
		case RAFT_WRITE_APPEND:
			for (uint64_t k = w[i].first; k <= w[i].last; k++)
				batch_entry(b, k, &w[i].entry[k - w[i].first]);
			break;
		case RAFT_WRITE_SNAPSHOT:
			batch_snapshot(b, &w[i].snapshot);
			batch_delete(b, w[i].first, w[i].last);
			break;
		case RAFT_WRITE_TRUNCATE:
			batch_delete(b, w[i].first, w[i].last);
			break;
		}
	}
	return write_batch(l, b, durable);
}

static int log_set_term(struct raft_disk *d, uint64_t term)
{
	return write_vote(container_of(d, struct raft_log, disk), term, 0);
}

static int log_set_vote(struct raft_disk *d, uint64_t vote)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);

	return write_vote(l, l->term, vote);
}

static int log_settle(struct raft_disk *d)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	int rc;

	pthread_mutex_lock(&l->lock);
	rc = raft_mark_sync(&l->mark);
	pthread_mutex_unlock(&l->lock);
	if (rc < 0)
		log_error("raft", "the Raft log's mark cannot be synced", "dir=%s error=%s", l->dir,
			  err_name(rc));
	return rc;
}

static int log_bootstrap(struct raft_disk *d, const struct raft_disk_entry *e)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();

	l->term = 1;
	batch_entry(b, 1, e);
	return write_batch(l, b, true);
}

/* ---- Life ---- */

static void log_close(struct raft_disk *d)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);

	if (l->db)
		rocksdb_close(l->db);
	if (l->marked)
		(void)log_settle(d);
	raft_mark_close(&l->mark);
	pthread_mutex_destroy(&l->lock);
	rocksdb_options_destroy(l->options);
	rocksdb_writeoptions_destroy(l->sync);
	rocksdb_writeoptions_destroy(l->lazy);
	rocksdb_readoptions_destroy(l->read);
	rocksdb_flushoptions_destroy(l->flush);
	free(l->dir);
	free(l);
}

static const struct raft_disk_ops log_ops = {
	.load = log_load,
	.set_term = log_set_term,
	.set_vote = log_set_vote,
	.bootstrap = log_bootstrap,
	.write = log_write_all,
	.settle = log_settle,
	.close = log_close,
};

/* Small and quiet: a few thousand short entries, and no thread that wakes an idle node. */
static void set_options(struct raft_log *l)
{
	rocksdb_options_t *o = l->options = rocksdb_options_create();
	rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();

	rocksdb_options_set_paranoid_checks(o, 1);
	/* A torn end of the write-ahead log is a crash: it opens, and the mark says whether more
	 * is missing than that. Any other damage must not open; the default would, with what lies
	 * before the damage. */
	rocksdb_options_set_wal_recovery_mode(o, rocksdb_tolerate_corrupted_tail_records_recovery);
	rocksdb_options_set_write_buffer_size(o, 8 * FLUSH_BYTES); /* never by itself */
	rocksdb_options_set_max_write_buffer_number(o, 2);
	rocksdb_options_set_compression(o, rocksdb_no_compression);
	rocksdb_options_set_max_open_files(o, 32);
	rocksdb_options_set_max_file_opening_threads(o, 1);
	rocksdb_options_set_keep_log_file_num(o, 2);
	rocksdb_options_set_info_log_level(o, 2);
	rocksdb_options_set_stats_dump_period_sec(o, 0);
	rocksdb_options_set_stats_persist_period_sec(o, 0);
	rocksdb_block_based_options_set_no_block_cache(table, 1);
	rocksdb_options_set_block_based_table_factory(o, table);
	rocksdb_block_based_options_destroy(table);
	l->sync = rocksdb_writeoptions_create();
	rocksdb_writeoptions_set_sync(l->sync, 1);
	l->lazy = rocksdb_writeoptions_create();
	l->flush = rocksdb_flushoptions_create(); /* waits */
	l->read = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(l->read, 1);
}

static int sync_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = fsync(fd) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

/* Written after the database was made durable: from then on a database must be there. */
static int marker_write(const struct raft_log *l, const char *path, uint16_t node)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), rc = 0;

	if (fd < 0)
		return -errno;
	if (dprintf(fd, "ashlar raft log, format %d, node %u\n", FORMAT, node) < 0 || fsync(fd) < 0)
		rc = -errno;
	close(fd);
	return rc < 0 ? rc : sync_dir(l->dir);
}

static int meta_check(struct raft_log *l, uint16_t node, uint16_t *format)
{
	size_t len;
	int rc;
	CLEANUP(free_ptr) char *value = get(l, KEY_META, &len, &rc);
	struct reader r = reader_init(value, value ? len : 0);
	uint16_t id;

	*format = 0;
	if (rc < 0 || !value)
		return rc;
	*format = read_u16(&r);
	id = read_u16(&r);
	if (!reader_done(&r))
		return corrupt(l, "the head record has a wrong length");
	if (*format < 1 || *format > FORMAT) {
		log_error("raft", "the Raft log is of an unknown format", "dir=%s format=%u",
			  l->dir, *format);
		return -ERR_VERSION;
	}
	if (id != node) {
		log_error("raft", "the Raft log belongs to another node", "dir=%s node=%u", l->dir,
			  id);
		return -ERR_FOREIGN;
	}
	return 0;
}

static int meta_write(struct raft_log *l, uint16_t node)
{
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();
	uint8_t value[4];
	struct writer w = writer_init(value, sizeof(value));

	write_u16(&w, FORMAT);
	write_u16(&w, node);
	batch_put(b, KEY_META, 1, &w);
	return write_batch(l, b, true);
}

static int open_failed(struct raft_log *l, char *err)
{
	int rc;

	log_error("raft",
		  "the Raft log cannot be opened, and is never repaired: what a voter has forgotten may have "
		  "counted. Check the file system; if it is damaged, leave the directory alone and join this "
		  "node anew",
		  "dir=%s error=\"%s\"", l->dir, err);
	if (strstr(err, "lock"))
		rc = -ERR_BUSY;
	else if (strstr(err, "No space") || strstr(err, "Permission denied"))
		rc = strstr(err, "No space") ? -ENOSPC : -EACCES;
	else
		rc = corrupt(l, "its database does not open");
	rocksdb_free(err);
	return rc;
}

static int open_db(struct raft_log *l, bool must_exist)
{
	CLEANUP(free_ptr) char *path = xasprintf("%s/db", l->dir);
	char *err = NULL;

	rocksdb_options_set_create_if_missing(l->options, !must_exist);
	l->db = rocksdb_open(l->options, path, &err);
	return err ? open_failed(l, err) : 0;
}

/* Is all there that was acknowledged? Makes the mark of a new log. */
static int mark_check(struct raft_log *l, const char *path, bool known)
{
	struct raft_mark *m = &l->mark;
	bool unused = l->batches <= (known ? 0 : 1); /* by anyone whose start has ended */
	int rc;

	if (m->valid && l->batches < m->batches) {
		log_error("raft", "the Raft log has lost batches that were synced",
			  "dir=%s has=%lu mark=%lu", l->dir, l->batches, m->batches);
		return corrupt(l, "its database lost what was acknowledged");
	}
	if (!m->valid && !unused)
		return corrupt(l, m->fd < 0 ? "its mark is gone" : "its mark is damaged");
	if (!m->valid) {
		rc = raft_mark_create(m, path, l->batches);
		if (rc == 0)
			rc = sync_dir(l->dir);
	} else {
		rc = raft_mark_set(m, l->batches);
		if (rc == 0)
			rc = raft_mark_sync(m);
	}
	if (rc < 0)
		log_error("raft", "the Raft log's mark cannot be written", "dir=%s error=%s",
			  l->dir, err_name(rc));
	l->marked = rc == 0;
	return rc;
}

static int open_all(struct raft_log *l, uint16_t node)
{
	CLEANUP(free_ptr) char *marker = xasprintf("%s/RAFT", l->dir);
	CLEANUP(free_ptr) char *mark = xasprintf("%s/mark", l->dir);
	bool known = access(marker, F_OK) == 0;
	uint16_t format;
	int rc = raft_mark_open(&l->mark, mark, node);

	if (rc < 0) {
		log_error("raft", "the Raft log's mark cannot be opened", "dir=%s error=%s", l->dir,
			  err_name(rc));
		return rc;
	}
	rc = open_db(l, known);
	if (rc == 0)
		rc = meta_check(l, node, &format);
	if (rc == 0)
		rc = load_vote(l);
	if (rc == 0 && !format && known)
		rc = corrupt(l, "its head record is gone");
	if (rc == 0 && format)
		rc = mark_check(l, mark, known);
	if (rc == 0 && format != FORMAT)
		rc = meta_write(l, node);
	if (rc == 0 && !format)
		rc = mark_check(l, mark, known);
	if (rc == 0 && !known)
		rc = marker_write(l, marker, node);
	return rc;
}

int raft_log_open(const char *dir, uint16_t node, struct raft_disk **out)
{
	struct raft_log *l = xcalloc(1, sizeof(*l));
	int rc;

	l->disk.ops = &log_ops;
	l->dir = xstrdup(dir);
	l->mark.fd = -1;
	CHECK(pthread_mutex_init(&l->lock, NULL) == 0);
	set_options(l);
	if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
		rc = -errno;
		log_error("raft", "the Raft log's directory cannot be made", "dir=%s error=%s", dir,
			  err_name(rc));
	} else {
		rc = open_all(l, node);
	}
	if (rc < 0) {
		log_close(&l->disk);
		return rc;
	}
	*out = &l->disk;
	return 0;
}
