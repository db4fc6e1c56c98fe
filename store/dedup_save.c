/* SPDX-License-Identifier: Apache-2.0 */
/* The hints of a clean stop, in a file beside the database, so that the next start need not read
 * all summaries. It must never be taken for what it is not: another group, an older commit or a
 * damaged file give no hints, and one that was loaded is gone.
 *
 * File HINTS, little-endian: 0 magic "ASHLHINT" 8 · 8 format 4 (=2) · 12 group incarnation 4 ·
 * 16 group 16 · 32 commit 8 · 40 buckets 8 · 48 slots in use 8 · 56 xxh3-64 8 of
 * the slots, seed 0 · 64 xxh3-64 8 of bytes 0–63, seed 0; zeros to 4096; then the slots, 64 bytes a
 * bucket. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/base/bytes.h"
#include "store/tier_internal.h"

#define HINTS_MAGIC  0x544e49484c485341ull /* "ASHLHINT" */
#define HINTS_FORMAT 2u
#define HEADER_SIZE  4096u

static char *path_of(const char *dir)
{
	return xasprintf("%s/HINTS", dir);
}

static void header_encode(const struct tier *t, uint8_t h[HEADER_SIZE])
{
	const struct hints *hints = &t->dedup.hints;

	memset(h, 0, HEADER_SIZE);
	put_le64(h, HINTS_MAGIC);
	put_le32(h + 8, HINTS_FORMAT);
	put_le32(h + 12, t->group_incarnation);
	memcpy(h + 16, t->group.b, 16);
	put_le64(h + 32, atomic_load(&t->commit));
	put_le64(h + 40, hints->buckets);
	put_le64(h + 48, hints->used);
	put_le64(h + 56, hash_xxh3(hints->slots, hints_bytes(hints), 0));
	put_le64(h + 64, hash_xxh3(h, 64, 0));
}

static bool write_all(int fd, const void *data, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = write(fd, (const uint8_t *)data + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

static bool read_all(int fd, void *data, size_t len)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = read(fd, (uint8_t *)data + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

void dedup_save(struct tier *t)
{
	CLEANUP(free_ptr) char *path = path_of(t->metadata_dir);
	uint8_t h[HEADER_SIZE];
	bool good;
	int fd;

	/* A table that is not filled yet would be taken for a whole one. */
	if (!t->dedup.hints.buckets || !atomic_load(&t->dedup.rebuilt) || atomic_load(&t->failed))
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	header_encode(t, h);
	good = write_all(fd, h, sizeof(h)) &&
	       write_all(fd, t->dedup.hints.slots, hints_bytes(&t->dedup.hints));
	close(fd);
	if (!good)
		unlink(path);
}

static bool load(struct tier *t, int fd)
{
	struct hints *hints = &t->dedup.hints;
	uint8_t h[HEADER_SIZE];
	uint64_t buckets;
	uint64_t *slots;

	if (!read_all(fd, h, sizeof(h)) || get_le64(h) != HINTS_MAGIC ||
	    get_le32(h + 8) != HINTS_FORMAT || get_le64(h + 64) != hash_xxh3(h, 64, 0) ||
	    get_le32(h + 12) != t->group_incarnation || memcmp(h + 16, t->group.b, 16) ||
	    get_le64(h + 32) != atomic_load(&t->commit))
		return false;
	buckets = get_le64(h + 40);
	if (!hints_size_ok(hints, buckets))
		return false;
	slots = xalloc_aligned(64, buckets * 64);
	if (!read_all(fd, slots, buckets * 64) ||
	    get_le64(h + 56) != hash_xxh3(slots, buckets * 64, 0)) {
		free(slots);
		return false;
	}
	free(hints->slots);
	hints->slots = slots;
	hints->buckets = buckets;
	hints->used = get_le64(h + 48);
	atomic_store(&t->dedup.hint_bytes, hints_bytes(hints));
	return true;
}

bool dedup_load(struct tier *t)
{
	CLEANUP(free_ptr) char *path = path_of(t->metadata_dir);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool good;

	if (fd < 0)
		return false;
	good = load(t, fd);
	close(fd);
	unlink(path);
	return good;
}
