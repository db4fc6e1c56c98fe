/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged table of the map that opening it does not notice: kv_check does, and only damage that stays. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "store/kv.h"
#include "tests/lib/test.h"

#define ROWS 2000u

enum last {
	OPENED,    /* the last thing that was done to it */
	FORGOTTEN, /* the same; its mark was lost before */
	WRITTEN,   /* something newer than its tables is in the write-ahead log */
};

static void make_as(const char *dir, enum last last)
{
	struct kv_batch *b = kv_batch_create();
	uint8_t key[8], value[200];
	struct kv *kv;

	EXPECT_EQ(mkdir(dir, 0700), 0);
	EXPECT_OK(kv_format(dir));
	EXPECT_OK(kv_open(dir, false, &kv));
	for (uint64_t i = 0; i < ROWS; i++) {
		put_be64(key, i);
		memset(value, (int)(i & 0xff), sizeof(value));
		kv_batch_put(kv, b, KV_MAP, key, sizeof(key), value, sizeof(value));
	}
	EXPECT_OK(kv_commit(kv, b, true));
	kv_close(kv);
	if (last == FORGOTTEN) {
		char *mark = xasprintf("%s/ashlar-mark", dir);

		EXPECT_EQ(unlink(mark), 0);
		free(mark);
	}
	EXPECT_OK(kv_open(dir, false, &kv)); /* makes a table of what was in the write-ahead log */
	if (last == WRITTEN) {
		put_be64(key, ROWS);
		kv_batch_clear(b);
		kv_batch_put(kv, b, KV_MAP, key, sizeof(key), value, sizeof(value));
		EXPECT_OK(kv_commit(kv, b, true));
	}
	kv_batch_destroy(b);
	kv_close(kv);
}

static void make(const char *dir)
{
	make_as(dir, OPENED);
}

/* The largest table. */
static char *table(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char *best = NULL;
	off_t size = 0;

	EXPECT(d != NULL);
	while ((e = readdir(d))) {
		char *path = xasprintf("%s/%s", dir, e->d_name);
		struct stat st;

		if (strstr(e->d_name, ".sst") && !stat(path, &st) && st.st_size > size) {
			size = st.st_size;
			free(best);
			best = path;
		} else {
			free(path);
		}
	}
	closedir(d);
	EXPECT(best != NULL && size > (off_t)(ROWS * 100));
	return best;
}

static void flip(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t c;

	EXPECT(fd >= 0 && pread(fd, &c, 1, 100000) == 1);
	c ^= 0x10;
	EXPECT(pwrite(fd, &c, 1, 100000) == 1);
	close(fd);
}

/* What is readable is, and rows are taken, for as many starts as would have made a compaction. */
static void serve_as_is(const char *dir)
{
	struct kv_batch *b = kv_batch_create();
	uint8_t key[8], value[200];
	unsigned bad = 0;
	size_t len;
	struct kv *kv;

	for (unsigned life = 0; life < 8; life++) {
		EXPECT_OK(kv_open_as_is(dir, &kv));
		put_be64(key, ROWS + life);
		kv_batch_clear(b);
		kv_batch_put(kv, b, KV_MAP, key, sizeof(key), value, sizeof(value));
		EXPECT_OK(kv_commit(kv, b, true));
		EXPECT_OK(kv_get(kv, KV_MAP, key, sizeof(key), value, sizeof(value), &len));
		EXPECT(!kv_is_failing(kv));
		bad = 0;
		for (uint64_t i = 0; i < ROWS; i++) {
			int rc;

			put_be64(key, i);
			rc = kv_get(kv, KV_MAP, key, sizeof(key), value, sizeof(value), &len);
			EXPECT(rc == -ERR_CORRUPT || (rc == 0 && len == 200 && value[0] == (i & 0xff)));
			bad += rc != 0;
		}
		EXPECT(bad && bad < 100);
		kv_close(kv);
	}
	kv_batch_destroy(b);
}

TEST(kv_check, damage_that_opening_does_not_meet)
{
	char *dir = xasprintf("%s/db", test_dir()), *path;
	struct kv *kv;

	make(dir);
	EXPECT_OK(kv_check(dir));
	path = table(dir);
	flip(path);
	EXPECT_OK(kv_open(dir, false, &kv)); /* which is why there is kv_check */
	kv_close(kv);
	EXPECT_EQ(kv_check(dir), -ERR_MAP_LOST);
	serve_as_is(dir);
	EXPECT_EQ(kv_check(dir), -ERR_MAP_LOST); /* it went by, and changed nothing */
	flip(path); /* it reads right again: nothing was lost, and nothing was changed */
	EXPECT_OK(kv_check(dir));
	EXPECT_EQ(unlink(path), 0);
	EXPECT_EQ(kv_check(dir), -ERR_MAP_LOST);
	free(path);
	free(dir);
}

TEST(kv_check, a_directory_without_a_database)
{
	char *dir = xasprintf("%s/empty", test_dir());

	EXPECT_EQ(mkdir(dir, 0700), 0);
	EXPECT_EQ(kv_check(dir), -ERR_MAP_LOST);
	EXPECT_EQ(rmdir(dir), 0);
	EXPECT_EQ(kv_check(dir), -ERR_DEVICE); /* its file system may not be mounted */
	free(dir);
}

/* The newest file whose name begins so. */
static char *newest(const char *dir, const char *prefix)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char *best = NULL;

	EXPECT(d != NULL);
	while ((e = readdir(d)))
		if (!strncmp(e->d_name, prefix, strlen(prefix))) {
			char *path = xasprintf("%s/%s", dir, e->d_name);

			if (best && strcmp(path, best) < 0) {
				free(path);
				continue;
			}
			free(best);
			best = path;
		}
	closedir(d);
	EXPECT(best != NULL);
	return best;
}

/* What RocksDB takes for a torn tail of its manifest, and opens as it was before. It may be lost, but never
 * older than it was. */
static void manifest_without_its_end(enum last last)
{
	unsigned lost = 0;
	off_t size = 1 << 20;

	for (off_t cut = 1; cut < size; cut += 97) {
		char *dir = xasprintf("%s/cut%d.%ld", test_dir(), last, (long)cut), *path;
		uint8_t key[8], value[200];
		struct kv *kv;
		struct stat st;
		size_t len;
		int rc;

		make_as(dir, last);
		path = newest(dir, "MANIFEST-");
		EXPECT_EQ(stat(path, &st), 0);
		size = st.st_size;
		EXPECT_EQ(truncate(path, size - cut), 0);
		rc = kv_open(dir, false, &kv);
		EXPECT(!rc || rc == -ERR_MAP_LOST);
		lost += rc != 0;
		for (uint64_t i = 0; !rc && i < ROWS; i++) {
			put_be64(key, i);
			EXPECT_OK(kv_get(kv, KV_MAP, key, sizeof(key), value, sizeof(value), &len));
		}
		if (!rc)
			kv_close(kv);
		free(path);
		free(dir);
	}
	EXPECT(lost > 0);
}

TEST(kv_check, a_manifest_without_its_end)
{
	manifest_without_its_end(OPENED);
}

TEST(kv_check, a_manifest_without_its_end_and_nothing_written_since_the_opening)
{
	manifest_without_its_end(FORGOTTEN);
}

TEST(kv_check, a_manifest_without_its_end_and_something_newer_in_the_log)
{
	manifest_without_its_end(WRITTEN);
}
