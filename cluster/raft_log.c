/* SPDX-License-Identifier: Apache-2.0 */
/* RocksDB's door for the Raft log. A voter that forgets what it acknowledged breaks Raft for
 * everyone, so nothing here ever starts over: whatever is unreadable or has a hole is -ERR_CORRUPT,
 * and the node must come back as a new one. */
#include "cluster/raft_log.h"

#include <errno.h>
#include <fcntl.h>
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/log.h"

#define FORMAT          1
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
	rocksdb_readoptions_t *read;
	uint64_t term;
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

static int load_vote(struct raft_log *l, struct raft_disk_image *out)
{
	size_t len;
	int rc;
	CLEANUP(free_ptr) char *value = get(l, KEY_VOTE, &len, &rc);
	struct reader r = reader_init(value, value ? len : 0);

	if (rc < 0 || !value)
		return rc;
	out->term = read_u64(&r);
	out->vote = read_u64(&r);
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
	rc = load_vote(l, out);
	if (rc == 0)
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
	l->term = out->term;
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

static int write_batch(struct raft_log *l, rocksdb_writebatch_t *b, bool durable)
{
	char *err = NULL;

	rocksdb_write(l->db, durable ? l->sync : l->lazy, b, &err);
	rocksdb_writebatch_destroy(b);
	return err ? failed(l, "the Raft log cannot be written", err) : 0;
}

static void batch_put(rocksdb_writebatch_t *b, const void *key, size_t key_len,
		      const struct writer *w)
{
	rocksdb_writebatch_put(b, key, key_len, (const char *)w->data, w->len);
}

static void batch_vote(rocksdb_writebatch_t *b, uint64_t term, uint64_t vote)
{
	uint8_t value[16];
	struct writer w = writer_init(value, sizeof(value));

	write_u64(&w, term);
	write_u64(&w, vote);
	batch_put(b, KEY_VOTE, 1, &w);
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
	struct raft_log *l = container_of(d, struct raft_log, disk);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();

	l->term = term;
	batch_vote(b, term, 0);
	return write_batch(l, b, true);
}

static int log_set_vote(struct raft_disk *d, uint64_t vote)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();

	batch_vote(b, l->term, vote);
	return write_batch(l, b, true);
}

static int log_bootstrap(struct raft_disk *d, const struct raft_disk_entry *e)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);
	rocksdb_writebatch_t *b = rocksdb_writebatch_create();

	l->term = 1;
	batch_vote(b, 1, 0);
	batch_entry(b, 1, e);
	return write_batch(l, b, true);
}

/* ---- Life ---- */

static void log_close(struct raft_disk *d)
{
	struct raft_log *l = container_of(d, struct raft_log, disk);

	if (l->db)
		rocksdb_close(l->db);
	rocksdb_options_destroy(l->options);
	rocksdb_writeoptions_destroy(l->sync);
	rocksdb_writeoptions_destroy(l->lazy);
	rocksdb_readoptions_destroy(l->read);
	free(l->dir);
	free(l);
}

static const struct raft_disk_ops log_ops = {
	.load = log_load,
	.set_term = log_set_term,
	.set_vote = log_set_vote,
	.bootstrap = log_bootstrap,
	.write = log_write_all,
	.close = log_close,
};

/* Small and quiet: a few thousand short entries, and no thread that wakes an idle node. */
static void set_options(struct raft_log *l)
{
	rocksdb_options_t *o = l->options = rocksdb_options_create();
	rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();

	rocksdb_options_set_paranoid_checks(o, 1);
	/* A torn last record is a crash and was never acknowledged; any other damage must not open.
	 * The default would open with what lies before the damage. */
	rocksdb_options_set_wal_recovery_mode(o, rocksdb_tolerate_corrupted_tail_records_recovery);
	rocksdb_options_set_write_buffer_size(o, 8u << 20);
	rocksdb_options_set_max_write_buffer_number(o, 2);
	rocksdb_options_set_compression(o, rocksdb_no_compression);
	rocksdb_options_set_max_open_files(o, 32);
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

static int meta_check(struct raft_log *l, uint16_t node, bool *fresh)
{
	size_t len;
	int rc;
	CLEANUP(free_ptr) char *value = get(l, KEY_META, &len, &rc);
	struct reader r = reader_init(value, value ? len : 0);
	uint16_t format = read_u16(&r), id = read_u16(&r);

	*fresh = !value;
	if (rc < 0 || !value)
		return rc;
	if (!reader_done(&r))
		return corrupt(l, "the head record has a wrong length");
	if (format != FORMAT) {
		log_error("raft", "the Raft log is of an unknown format", "dir=%s format=%u",
			  l->dir, format);
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

static int open_db(struct raft_log *l, bool must_exist)
{
	CLEANUP(free_ptr) char *path = xasprintf("%s/db", l->dir);
	char *err = NULL;
	int rc;

	rocksdb_options_set_create_if_missing(l->options, !must_exist);
	l->db = rocksdb_open(l->options, path, &err);
	if (!err)
		return 0;
	log_error("raft", "the Raft log cannot be opened", "dir=%s error=\"%s\"", l->dir, err);
	if (strstr(err, "lock"))
		rc = -ERR_BUSY;
	else if (strstr(err, "No space") || strstr(err, "Permission denied"))
		rc = strstr(err, "No space") ? -ENOSPC : -EACCES;
	else
		rc = corrupt(l, "its database does not open");
	rocksdb_free(err);
	return rc;
}

int raft_log_open(const char *dir, uint16_t node, struct raft_disk **out)
{
	struct raft_log *l = xcalloc(1, sizeof(*l));
	CLEANUP(free_ptr) char *marker = xasprintf("%s/RAFT", dir);
	bool known, fresh;
	int rc = 0;

	l->disk.ops = &log_ops;
	l->dir = xstrdup(dir);
	set_options(l);
	if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
		rc = -errno;
		log_error("raft", "the Raft log's directory cannot be made", "dir=%s error=%s", dir,
			  err_name(rc));
		goto out;
	}
	known = access(marker, F_OK) == 0;
	rc = open_db(l, known);
	if (rc == 0)
		rc = meta_check(l, node, &fresh);
	if (rc == 0 && fresh)
		rc = known ? corrupt(l, "its head record is gone") : meta_write(l, node);
	if (rc == 0 && !known)
		rc = marker_write(l, marker, node);
out:
	if (rc < 0) {
		log_close(&l->disk);
		return rc;
	}
	*out = &l->disk;
	return 0;
}
