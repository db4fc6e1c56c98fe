/* SPDX-License-Identifier: Apache-2.0 */
/* RocksDB 7.8 behind kv.h, set up small: a daemon with an idle group stays under 150 MiB. It must
 * never use the block-cache-only read tier, max_successive_merges, DeleteRange, nor repair: each of
 * them loses or invents rows in this version. */
#include "store/kv.h"

#include <rocksdb/c.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/hash.h"
#include "node/base/log.h"
#include "store/map_format.h"

#define BLOCK_CACHE_BYTES   (32ull << 20)
#define WRITE_BUFFERS_BYTES (32ull << 20)
#define BLOCK_READS         rocksdb_block_read_count

const char *const kv_cf_names[KV_CFS] = {"map", "region", "obj", "share", "sloc", "seg", "meta"};

struct kv {
	rocksdb_t *db;
	rocksdb_env_t *env;
	rocksdb_cache_t *cache;
	rocksdb_options_t *options, *cf_options[KV_CFS], *default_options;
	rocksdb_column_family_handle_t *cf[KV_CFS], *default_cf;
	rocksdb_readoptions_t *read;
	rocksdb_writeoptions_t *write, *write_sync;
	_Atomic uint64_t cpu_ns, gets, table_reads;
	int mark; /* the mark file, or -1: opened for reading */
	uint64_t tables_version, newest_table;
	bool never_compacts;
};
struct kv_batch {
	rocksdb_writebatch_t *wb;
};
struct kv_iter {
	rocksdb_iterator_t *it;
	rocksdb_readoptions_t *options;
	uint8_t end[KV_END_MAX]; /* the options refer to it */
	bool started;
};

/* Takes the message: it is logged here, once, and freed. */
static int kv_error(char *msg, const char *what)
{
	int rc = -ERR_DEVICE;

	if (!msg)
		return 0;
	if (!strncmp(msg, "Corruption", 10) || strstr(msg, "No such file")) /* of its own files */
		rc = -ERR_CORRUPT;
	else if (strstr(msg, "While lock file") || strstr(msg, "lock hold by"))
		rc = -ERR_BUSY;
	else if (strstr(msg, "No space left"))
		rc = -ENOSPC;
	log_error("kv", "database error", "call=%s rc=%s text=\"%s\"", what, err_name(rc), msg);
	rocksdb_free(msg);
	return rc;
}

static uint64_t thread_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Per call of many rows: what it costs to ask for is lost in it. */
static void cpu_count(struct kv *kv, uint64_t since)
{
	atomic_fetch_add_explicit(&kv->cpu_ns, thread_ns() - since, memory_order_relaxed);
}

void kv_counts(const struct kv *kv, struct kv_counts *out)
{
	*out = (struct kv_counts){
		.cpu_us = atomic_load_explicit(&kv->cpu_ns, memory_order_relaxed) / 1000,
		.gets = atomic_load_explicit(&kv->gets, memory_order_relaxed),
		.table_reads = atomic_load_explicit(&kv->table_reads, memory_order_relaxed)};
}

/* ---- Merge operator ----------------------------------------------------------------------------
 */

static _Thread_local unsigned merge_operands;

static void *merge_alloc(size_t n)
{
	return xmalloc(n); /* never NULL: the wrapper copies whatever it gets */
}

static char *merge_full(void *state, const char *key, size_t key_len, const char *base,
			size_t base_len, const char *const *ops, const size_t *lens, int n,
			unsigned char *success, size_t *len)
{
	uint8_t *out = merge_alloc(MAP_PAGE_MAX);

	if ((unsigned)n > merge_operands)
		merge_operands = (unsigned)n;
	*len = map_merge_full(out, (const uint8_t *)key, key_len, base, base_len,
			      (const void *const *)ops, lens, (unsigned)n);
	*success = 1;
	return (char *)out;
}

static char *merge_partial(void *state, const char *key, size_t key_len, const char *const *ops,
			   const size_t *lens, int n, unsigned char *success, size_t *len)
{
	uint8_t *out = merge_alloc(MAP_OPERAND_MAX);

	*len = map_merge_partial(out, (const void *const *)ops, lens, (unsigned)n);
	*success = 1;
	return (char *)out;
}

static void merge_free(void *state, const char *value, size_t len)
{
	free((void *)(uintptr_t)value);
}

static void merge_none(void *state)
{
}

static const char *merge_name(void *state)
{
	return "ashlar.map.1";
}

/* ---- Options -----------------------------------------------------------------------------------
 */

/* Direct I/O keeps the page cache out of it, but not every file system has it. */
static bool dir_has_direct_io(const char *dir)
{
	char *path = xasprintf("%s/direct-probe", dir);
	int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);

	if (fd >= 0)
		close(fd);
	unlink(path);
	free(path);
	return fd >= 0;
}

static rocksdb_options_t *cf_options_make(struct kv *kv, enum kv_cf cf)
{
	rocksdb_options_t *o = rocksdb_options_create();
	rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();

	rocksdb_block_based_options_set_block_size(t, 4096);
	rocksdb_block_based_options_set_block_cache(t, kv->cache);
	rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 0);
	rocksdb_block_based_options_set_filter_policy(t,
						      rocksdb_filterpolicy_create_bloom_full(10));
	rocksdb_block_based_options_set_format_version(t, 5);
	rocksdb_options_set_block_based_table_factory(o, t);
	rocksdb_block_based_options_destroy(t);

	rocksdb_options_set_compression(o, rocksdb_no_compression);
	rocksdb_options_set_write_buffer_size(o, cf == KV_MAP ? 16u << 20 : 4u << 20);
	rocksdb_options_set_max_write_buffer_number(o, 3);
	rocksdb_options_set_target_file_size_base(o, 16u << 20);
	rocksdb_options_set_max_bytes_for_level_base(o, 64u << 20);
	rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
	rocksdb_options_set_max_successive_merges(o, 0);
	if (cf == KV_MAP)
		rocksdb_options_set_merge_operator(
			o, rocksdb_mergeoperator_create(NULL, merge_none, merge_full, merge_partial,
							merge_free, merge_name));
	return o;
}

static rocksdb_options_t *db_options_make(struct kv *kv, const char *dir, bool read_only)
{
	rocksdb_options_t *o = rocksdb_options_create();
	bool direct = !read_only && dir_has_direct_io(dir);

	rocksdb_options_set_env(o, kv->env);
	rocksdb_options_set_max_open_files(o, -1);
	rocksdb_options_set_paranoid_checks(o, 1);
	rocksdb_options_set_recycle_log_file_num(o, 0);
	rocksdb_options_set_wal_recovery_mode(o, rocksdb_point_in_time_recovery);
	rocksdb_options_set_stats_dump_period_sec(o, 0);
	rocksdb_options_set_stats_persist_period_sec(o, 0);
	rocksdb_options_set_db_write_buffer_size(o, WRITE_BUFFERS_BYTES);
	rocksdb_options_set_max_total_wal_size(o, 64u << 20);
	rocksdb_options_set_max_background_jobs(o, 2);
	rocksdb_options_set_keep_log_file_num(o, 4);
	rocksdb_options_set_max_log_file_size(o, 4u << 20);
	rocksdb_options_set_info_log_level(o, 2 /* warnings */);
	rocksdb_options_set_bytes_per_sync(o, 1u << 20);
	rocksdb_options_set_use_direct_reads(o, direct);
	rocksdb_options_set_use_direct_io_for_flush_and_compaction(o, direct);
	return o;
}

static struct kv *kv_alloc(const char *dir, bool read_only)
{
	struct kv *kv = xcalloc(1, sizeof(*kv));

	kv->mark = -1;
	kv->env = rocksdb_create_default_env();
	rocksdb_env_set_background_threads(kv->env, 1);
	rocksdb_env_set_high_priority_background_threads(kv->env, 1);
	rocksdb_env_lower_thread_pool_cpu_priority(kv->env);
	rocksdb_env_lower_high_priority_thread_pool_cpu_priority(kv->env);
	kv->cache = rocksdb_cache_create_lru(BLOCK_CACHE_BYTES);
	kv->options = db_options_make(kv, dir, read_only);
	for (unsigned i = 0; i < KV_CFS; i++)
		kv->cf_options[i] = cf_options_make(kv, (enum kv_cf)i);
	kv->default_options = cf_options_make(kv, KV_META);
	kv->read = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(kv->read, 1);
	kv->write = rocksdb_writeoptions_create();
	kv->write_sync = rocksdb_writeoptions_create();
	rocksdb_writeoptions_set_sync(kv->write_sync, 1);
	return kv;
}

static uint64_t kv_property(struct kv *kv, enum kv_cf cf, const char *name)
{
	char *text = rocksdb_property_value_cf(kv->db, kv->cf[cf], name);
	uint64_t v = text ? strtoull(text, NULL, 10) : 0;

	rocksdb_free(text);
	return v;
}

/* ---- The mark ----------------------------------------------------------------------------------
 * How far the database has come, beside it. A flipped bit in the length of one of its manifest's last
 * records looks to RocksDB like a torn tail: it opens as it was before, without a word, and its newer tables
 * are deleted. Its sequence number tells, unless the write-ahead log has something newer than those tables:
 * then the newest table does. Written at the opening and after each synced commit, and not synced itself, so
 * that a loss of power can only leave an older one: u64 magic, u64 sequence number, u64 number of the newest
 * table, u64 xxh3 of these, little-endian.
 */

#define MARK_FILE  "ashlar-mark"
#define MARK_MAGIC 0x324b524d4c485341ull /* "ASHLMRK2" */
#define MARK_SIZE  32u

struct mark {
	uint64_t sequence, table;
};
/* What was there before an opening, which deletes tables and makes one of what the write-ahead log has. */
struct before {
	struct mark mark;
	uint64_t newest_file; /* table in the directory */
	unsigned tables;      /* how many */
};

static uint64_t table_number(const char *name)
{
	char *end;
	uint64_t n = strtoull(name, &end, 10);

	return strcmp(end, ".sst") ? 0 : n;
}

/* In use, with a number of `upto` at most. */
static uint64_t newest_table(struct kv *kv, uint64_t upto)
{
	const rocksdb_livefiles_t *l = rocksdb_livefiles(kv->db);
	uint64_t newest = 0;

	for (int i = 0; i < rocksdb_livefiles_count(l); i++) {
		const char *name = rocksdb_livefiles_name(l, i);
		uint64_t n = table_number(name + (*name == '/'));

		if (n <= upto)
			newest = MAX(newest, n);
	}
	rocksdb_livefiles_destroy(l);
	return newest;
}

static struct mark mark_now(struct kv *kv)
{
	uint64_t versions = 1;

	for (unsigned i = 0; i < KV_CFS; i++)
		versions += kv_property(kv, (enum kv_cf)i, "rocksdb.current-super-version-number");
	if (versions != kv->tables_version) { /* grows with each change of them */
		kv->tables_version = versions;
		kv->newest_table = newest_table(kv, UINT64_MAX);
	}
	return (struct mark){rocksdb_get_latest_sequence_number(kv->db), kv->newest_table};
}

static void mark_put(const struct kv *kv, struct mark m)
{
	uint8_t b[MARK_SIZE];

	put_le64(b, MARK_MAGIC);
	put_le64(b + 8, m.sequence);
	put_le64(b + 16, m.table);
	put_le64(b + 24, hash_xxh3(b, 24, 0));
	errno = ENOSPC; /* of a short write */
	if (pwrite(kv->mark, b, sizeof(b), 0) != sizeof(b))
		log_warn("kv", "the mark of the database cannot be written", "error=%s", err_name(-errno));
}

static void mark_write(struct kv *kv)
{
	if (kv->mark >= 0)
		mark_put(kv, mark_now(kv));
}

/* One that is not there or damaged says nothing. */
static struct mark mark_read(const char *dir)
{
	CLEANUP(free_ptr) char *path = xasprintf("%s/" MARK_FILE, dir);
	struct mark m = {0};
	uint8_t b[MARK_SIZE];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return m;
	if (pread(fd, b, sizeof(b), 0) == sizeof(b) && get_le64(b) == MARK_MAGIC &&
	    get_le64(b + 24) == hash_xxh3(b, 24, 0))
		m = (struct mark){get_le64(b + 8), get_le64(b + 16)};
	close(fd);
	return m;
}

/* A newest table that is gone is out of use: a compaction left nothing of it. */
static struct before look_before(const char *dir)
{
	struct before b = {.mark = mark_read(dir)};
	DIR *d = opendir(dir);
	bool there = false;

	for (struct dirent *e; d && (e = readdir(d));) {
		uint64_t n = table_number(e->d_name);

		b.newest_file = MAX(b.newest_file, n);
		b.tables += n != 0;
		there |= n && n == b.mark.table;
	}
	if (d)
		closedir(d);
	if (!there)
		b.mark.table = 0;
	return b;
}

/* 0, or -ERR_CORRUPT: the database has been further than it is: the table of the mark is there, and neither
 * it nor what a compaction made of it is in use. This opening deletes it, so the mark says from now on that
 * the database is lost. Else the mark is made anew at once, also for one that nothing is written to. */
static int mark_check(struct kv *kv, const char *dir, const struct before *b, bool read_only)
{
	CLEANUP(free_ptr) char *path = xasprintf("%s/" MARK_FILE, dir);
	struct mark now = {.sequence = rocksdb_get_latest_sequence_number(kv->db),
			   .table = newest_table(kv, b->newest_file)};

	if (!read_only)
		kv->mark = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (b->mark.sequence <= now.sequence && b->mark.table <= now.table) {
		mark_write(kv);
		return 0;
	}
	log_error("kv", "the map database is older than it was: its manifest or log is damaged",
		  "dir=%s sequence=%llu was=%llu table=%llu was=%llu", dir,
		  (unsigned long long)now.sequence, (unsigned long long)b->mark.sequence,
		  (unsigned long long)now.table, (unsigned long long)b->mark.table);
	if (kv->mark >= 0)
		mark_put(kv, (struct mark){.sequence = UINT64_MAX});
	return -ERR_CORRUPT;
}

/* ---- Open, close, format -----------------------------------------------------------------------
 */

static int compactions_on(struct kv *kv)
{
	static const char *const key[] = {"disable_auto_compactions"}, *const value[] = {"false"};
	int rc = 0;

	for (unsigned i = 0; i < KV_CFS && !rc; i++) {
		char *err = NULL;

		rocksdb_set_options_cf(kv->db, kv->cf[i], 1, key, value, &err);
		rc = kv_error(err, "open");
	}
	return rc;
}

static int kv_open_db(struct kv *kv, const char *dir, bool create, bool read_only)
{
	const char *names[KV_CFS + 1];
	const rocksdb_options_t *options[KV_CFS + 1];
	rocksdb_column_family_handle_t *handles[KV_CFS + 1];
	/* One that is made now has none yet: what is there is another one's. */
	struct before before = create ? (struct before){0} : look_before(dir);
	int rc;
	char *err = NULL;

	for (unsigned i = 0; i < KV_CFS; i++) {
		names[i] = kv_cf_names[i];
		options[i] = kv->cf_options[i];
	}
	names[KV_CFS] = "default";
	options[KV_CFS] = kv->default_options;
	/* None begins before the look at the tables (mark_check). */
	for (unsigned i = 0; i <= KV_CFS; i++)
		rocksdb_options_set_disable_auto_compactions((rocksdb_options_t *)options[i], 1);
	/* RocksDB starts all it may, for each column family, however few tables there are. */
	rocksdb_options_set_max_file_opening_threads(kv->options, (int)MIN(1 + before.tables / 4, 16u));
	rocksdb_options_set_create_if_missing(kv->options, create);
	rocksdb_options_set_create_missing_column_families(kv->options, create);
	if (read_only)
		kv->db = rocksdb_open_for_read_only_column_families(
			kv->options, dir, KV_CFS + 1, names, options, handles, 0, &err);
	else
		kv->db = rocksdb_open_column_families(kv->options, dir, KV_CFS + 1, names, options,
						      handles, &err);
	if (err)
		return kv_error(err, "open");
	memcpy(kv->cf, handles, sizeof(kv->cf));
	kv->default_cf = handles[KV_CFS];
	rc = mark_check(kv, dir, &before, read_only);
	return rc || read_only || kv->never_compacts ? rc : compactions_on(kv);
}

/* Is there a database at all? Only a directory that can be looked into and has none says no. */
static int kv_present(const char *dir)
{
	CLEANUP(free_ptr) char *current = xasprintf("%s/CURRENT", dir);

	if (!access(current, R_OK))
		return 0;
	if (errno == ENOENT && !access(dir, R_OK | X_OK)) {
		log_error("kv", "no map database in the metadata directory", "dir=%s", dir);
		return -ERR_MAP_LOST;
	}
	log_error("kv", "the metadata directory cannot be read; is its file system mounted?",
		  "dir=%s error=%s", dir, err_name(-errno));
	return -ERR_DEVICE;
}

static int lost_if_damaged(int rc, const char *dir)
{
	if (rc != -ERR_CORRUPT)
		return rc;
	log_error("kv", "the map database is damaged; it counts as lost", "dir=%s", dir);
	return -ERR_MAP_LOST;
}

/* Nothing makes few files of many then: writing must not wait for that. */
static void never_compact(struct kv *kv)
{
	kv->never_compacts = true;
	for (unsigned i = 0; i < KV_CFS; i++) {
		rocksdb_options_set_disable_auto_compactions(kv->cf_options[i], 1);
		rocksdb_options_set_level0_slowdown_writes_trigger(kv->cf_options[i], 1 << 20);
		rocksdb_options_set_level0_stop_writes_trigger(kv->cf_options[i], 1 << 20);
	}
}

static int open_twice(const char *dir, bool read_only, bool as_is, struct kv **out)
{
	struct kv *kv;
	int rc = kv_present(dir);

	*out = NULL;
	/* Damage is irrevocable for the caller: it is looked at twice. */
	for (unsigned looks = 0; !rc && looks < 2; looks++) {
		kv = kv_alloc(dir, read_only);
		if (as_is)
			never_compact(kv);
		rc = kv_open_db(kv, dir, false, read_only);
		if (!rc) {
			*out = kv;
			return 0;
		}
		kv_close(kv);
		if (rc == -ERR_CORRUPT && !looks)
			rc = 0;
	}
	return lost_if_damaged(rc, dir);
}

int kv_open(const char *dir, bool read_only, struct kv **out)
{
	return open_twice(dir, read_only, false, out);
}

int kv_open_as_is(const char *dir, struct kv **out)
{
	return open_twice(dir, false, true, out);
}

/* Every row of every table. */
static int read_all(struct kv *kv)
{
	const void *key, *value;
	size_t key_len, len;
	int rc = 0;

	for (unsigned i = 0; i < KV_CFS && !rc; i++) {
		struct kv_iter *it = kv_iter_range(kv, (enum kv_cf)i, NULL, 0, NULL, 0);

		while (kv_iter_next(it, &key, &key_len, &value, &len))
			;
		rc = kv_iter_close(it);
	}
	return rc;
}

int kv_check(const char *dir)
{
	int rc = kv_present(dir);

	for (unsigned looks = 0; !rc && looks < 2; looks++) {
		struct kv *kv = kv_alloc(dir, false); /* as for writing: past the page cache */

		/* Else the iterator leaps over old versions of a row, and a compaction would not. */
		for (unsigned i = 0; i < KV_CFS; i++)
			rocksdb_options_set_max_sequential_skip_in_iterations(kv->cf_options[i],
									      UINT64_MAX);
		rc = kv_open_db(kv, dir, false, true);
		if (!rc)
			rc = read_all(kv);
		kv_close(kv);
		if (!rc)
			return 0;
		if (rc == -ERR_CORRUPT && !looks)
			rc = 0;
	}
	return lost_if_damaged(rc, dir);
}

void kv_close(struct kv *kv)
{
	if (!kv)
		return;
	if (kv->db) {
		for (unsigned i = 0; i < KV_CFS; i++)
			rocksdb_column_family_handle_destroy(kv->cf[i]);
		rocksdb_column_family_handle_destroy(kv->default_cf);
		rocksdb_close(kv->db);
	}
	if (kv->mark >= 0)
		close(kv->mark);
	rocksdb_writeoptions_destroy(kv->write);
	rocksdb_writeoptions_destroy(kv->write_sync);
	rocksdb_readoptions_destroy(kv->read);
	for (unsigned i = 0; i < KV_CFS; i++)
		rocksdb_options_destroy(kv->cf_options[i]);
	rocksdb_options_destroy(kv->default_options);
	rocksdb_options_destroy(kv->options);
	rocksdb_cache_destroy(kv->cache);
	rocksdb_env_destroy(kv->env);
	free(kv);
}

/* Whatever a broken database left behind; only plain files of this directory, by RocksDB's names.
 */
static int remove_files(const char *dir)
{
	static const char *const prefixes[] = {"CURRENT", "IDENTITY",  "LOCK",
					       "LOG",     "MANIFEST-", "OPTIONS-",
					       MARK_FILE, "HINTS"}; /* dedup_save.c */
	DIR *d = opendir(dir);
	struct dirent *e;
	int rc = 0;

	if (!d)
		return -errno;
	while ((e = readdir(d)) && !rc) {
		size_t len = strlen(e->d_name);
		bool ours = (len > 4 && (!strcmp(e->d_name + len - 4, ".sst") ||
					 !strcmp(e->d_name + len - 4, ".log"))) ||
			    (len > 6 && !strcmp(e->d_name + len - 6, ".dbtmp"));

		for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++)
			ours |= !strncmp(e->d_name, prefixes[i], strlen(prefixes[i]));
		if (ours && unlinkat(dirfd(d), e->d_name, 0))
			rc = -errno;
	}
	closedir(d);
	return rc;
}

int kv_format(const char *dir)
{
	struct kv *kv;
	int rc = remove_files(dir);

	if (rc) {
		log_error("kv", "cannot empty the metadata directory", "dir=%s rc=%s", dir,
			  err_name(rc));
		return rc;
	}
	kv = kv_alloc(dir, false);
	rc = kv_open_db(kv, dir, true, false);
	kv_close(kv);
	return rc;
}

/* ---- Reads -------------------------------------------------------------------------------------
 */

int kv_get(struct kv *kv, enum kv_cf cf, const void *key, size_t key_len, void *out, size_t cap,
	   size_t *len)
{
	char *err = NULL;
	rocksdb_pinnableslice_t *v =
		rocksdb_get_pinned_cf(kv->db, kv->read, kv->cf[cf], key, key_len, &err);
	const char *data;
	int rc = 0;

	if (err)
		return kv_error(err, "get");
	if (!v)
		return -ERR_NOT_FOUND;
	data = rocksdb_pinnableslice_value(v, len);
	if (*len > cap)
		rc = -ERR_LIMIT;
	else
		memcpy(out, data, *len);
	rocksdb_pinnableslice_destroy(v);
	return rc;
}

unsigned kv_multi_get(struct kv *kv, enum kv_cf cf, const void *const *keys, const size_t *key_lens,
		      unsigned n,
		      void (*fn)(void *arg, unsigned i, int rc, const void *value, size_t len),
		      void *arg)
{
	rocksdb_pinnableslice_t *values[KV_MULTI_MAX];
	char *errs[KV_MULTI_MAX];
	rocksdb_perfcontext_t *perf = rocksdb_perfcontext_create();
	uint64_t since = thread_ns(), reads = rocksdb_perfcontext_metric(perf, BLOCK_READS);

	CHECK(n <= KV_MULTI_MAX);
	merge_operands = 0;
	rocksdb_batched_multi_get_cf(kv->db, kv->read, kv->cf[cf], n, (const char *const *)keys,
				     key_lens, values, errs, true);
	cpu_count(kv, since);
	atomic_fetch_add_explicit(&kv->gets, n, memory_order_relaxed);
	atomic_fetch_add_explicit(&kv->table_reads,
				  rocksdb_perfcontext_metric(perf, BLOCK_READS) - reads,
				  memory_order_relaxed);
	rocksdb_perfcontext_destroy(perf);
	for (unsigned i = 0; i < n; i++) {
		size_t len = 0;
		const char *data = values[i] ? rocksdb_pinnableslice_value(values[i], &len) : NULL;

		if (errs[i])
			fn(arg, i, kv_error(errs[i], "multi_get"), NULL, 0);
		else if (!data)
			fn(arg, i, -ERR_NOT_FOUND, NULL, 0);
		else
			fn(arg, i, 0, data, len);
		if (values[i])
			rocksdb_pinnableslice_destroy(values[i]);
	}
	return merge_operands;
}

struct kv_iter *kv_iter_range(struct kv *kv, enum kv_cf cf, const void *start, size_t start_len,
			      const void *end, size_t end_len)
{
	struct kv_iter *it = xcalloc(1, sizeof(*it));

	CHECK(end_len <= sizeof(it->end));
	it->options = rocksdb_readoptions_create();
	rocksdb_readoptions_set_verify_checksums(it->options, 1);
	rocksdb_readoptions_set_fill_cache(it->options, 0);
	if (end) {
		memcpy(it->end, end, end_len);
		rocksdb_readoptions_set_iterate_upper_bound(it->options, (const char *)it->end,
							    end_len);
	}
	it->it = rocksdb_create_iterator_cf(kv->db, it->options, kv->cf[cf]);
	if (start)
		rocksdb_iter_seek(it->it, start, start_len);
	else
		rocksdb_iter_seek_to_first(it->it);
	return it;
}

bool kv_iter_next(struct kv_iter *it, const void **key, size_t *key_len, const void **value,
		  size_t *value_len)
{
	if (it->started)
		rocksdb_iter_next(it->it);
	it->started = true;
	if (!rocksdb_iter_valid(it->it))
		return false;
	*key = rocksdb_iter_key(it->it, key_len);
	*value = rocksdb_iter_value(it->it, value_len);
	return true;
}

int kv_iter_close(struct kv_iter *it)
{
	char *err = NULL;
	int rc;

	rocksdb_iter_get_error(it->it, &err);
	rc = kv_error(err, "iterate");
	rocksdb_iter_destroy(it->it);
	rocksdb_readoptions_destroy(it->options);
	free(it);
	return rc;
}

/* ---- Writes ------------------------------------------------------------------------------------
 */

struct kv_batch *kv_batch_create(void)
{
	struct kv_batch *b = xcalloc(1, sizeof(*b));

	b->wb = rocksdb_writebatch_create();
	return b;
}

void kv_batch_destroy(struct kv_batch *b)
{
	if (!b)
		return;
	rocksdb_writebatch_destroy(b->wb);
	free(b);
}

void kv_batch_clear(struct kv_batch *b)
{
	rocksdb_writebatch_clear(b->wb);
}

void kv_batch_put(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key, size_t key_len,
		  const void *value, size_t len)
{
	rocksdb_writebatch_put_cf(b->wb, kv->cf[cf], key, key_len, value, len);
}

void kv_batch_merge(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		    size_t key_len, const void *value, size_t len)
{
	rocksdb_writebatch_merge_cf(b->wb, kv->cf[cf], key, key_len, value, len);
}

void kv_batch_delete(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		     size_t key_len)
{
	rocksdb_writebatch_delete_cf(b->wb, kv->cf[cf], key, key_len);
}

int kv_commit(struct kv *kv, struct kv_batch *b, bool sync)
{
	uint64_t since = thread_ns();
	char *err = NULL;

	rocksdb_write(kv->db, sync ? kv->write_sync : kv->write, b->wb, &err);
	cpu_count(kv, since);
	if (sync && !err)
		mark_write(kv);
	return kv_error(err, "commit");
}

uint64_t kv_used_bytes(struct kv *kv)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < KV_CFS; i++)
		sum += kv_property(kv, (enum kv_cf)i, "rocksdb.total-sst-files-size") +
		       kv_property(kv, (enum kv_cf)i, "rocksdb.cur-size-all-mem-tables");
	return sum;
}

int kv_settle(struct kv *kv)
{
	rocksdb_flushoptions_t *o = rocksdb_flushoptions_create(); /* waits */
	int rc = 0;

	for (unsigned i = 0; i < KV_CFS && !rc; i++) {
		char *err = NULL;

		rocksdb_flush_cf(kv->db, o, kv->cf[i], &err);
		rc = kv_error(err, "flush");
	}
	rocksdb_flushoptions_destroy(o);
	return rc;
}

bool kv_is_failing(struct kv *kv)
{
	return kv_property(kv, KV_MAP, "rocksdb.background-errors") ||
	       kv_property(kv, KV_MAP, "rocksdb.is-write-stopped");
}
