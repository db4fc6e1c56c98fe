/* SPDX-License-Identifier: Apache-2.0 */
/* Offline, read-only, tolerant: says what a device, file or metadata directory holds, and what of it is bad.
 * Takes no lock, trusts nothing, goes on after damage. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "node/base/err.h"
#include "store/log_format.h"
#include "store/tier.h"

static const char *kind_name(uint8_t kind)
{
	static const char *const names[] = {"?",     "write", "trim",     "zeroes", "copy",
					    "epoch", "cut",   "complete", "mark"};

	return kind < ARRAY_LEN(names) ? names[kind] : "?";
}

static void print_uuid(const char *name, const struct uuid *u)
{
	char text[UUID_TEXT];

	uuid_format(u, text);
	printf(" %s=%s", name, text);
}

static void print_superblock(const struct superblock *sb)
{
	printf("superblock role=%s index=%u group_number=%u flags=%s%s sequence=%llu devices=%u\n",
	       sb->role == DEVICE_CACHE ? "cache" : "capacity", sb->index, sb->group_number,
	       sb->flags & SUPERBLOCK_PENDING ? "pending " : "",
	       sb->flags & SUPERBLOCK_RESETTING ? "resetting" : "",
	       (unsigned long long)sb->sequence, sb->devices);
	print_uuid("cluster", &sb->cluster);
	print_uuid("node", &sb->node);
	print_uuid("group", &sb->group);
	printf("\n");
	print_uuid("device", &sb->device);
	print_uuid("log", &sb->log);
	printf(" incarnation group=%u log=%u node=%u\n", sb->group_incarnation, sb->log_incarnation,
	       sb->node_incarnation);
	printf(" size=%llu log=%llu+%llu (segments of %llu) data=%llu+%llu (segments of %llu)\n",
	       (unsigned long long)sb->size, (unsigned long long)sb->log_start,
	       (unsigned long long)sb->log_len, (unsigned long long)sb->log_segment_size,
	       (unsigned long long)sb->data_start, (unsigned long long)sb->data_len,
	       (unsigned long long)sb->segment_size);
}

static void print_record(const struct log_record *lr)
{
	const struct record *r = &lr->r;

	printf("    %s object=%llx gen=%u version=%u.%llu commit=%u.%llu block=%u+%u skip=%x "
	       "payload=%u",
	       kind_name(r->kind), (unsigned long long)lr->object, lr->gen, r->version.tenure,
	       (unsigned long long)r->version.seq, r->commit.tenure,
	       (unsigned long long)r->commit.seq, r->block, r->blocks, r->skip_mask, lr->fp_count);
	if (r->attachment)
		printf(" attachment=%u.%u request=%llu", r->attachment, r->attach_epoch,
		       (unsigned long long)r->request);
	printf("\n");
}

static bool print_batch(const uint8_t *p, const struct log_batch_header *h, const uint8_t *payload,
			bool verbose)
{
	struct reader in =
		reader_init(p + LOG_BATCH_HEADER_LEN,
			    (size_t)h->header_blocks * BLOCK_SIZE - LOG_BATCH_HEADER_LEN);
	unsigned used = 0, bad = 0;

	for (unsigned i = 0; i < h->records; i++) {
		struct log_record lr;
		const uint8_t *fps;

		if (log_record_decode(&in, &lr, &fps) || used + lr.fp_count > h->payload_blocks) {
			printf("    record %u is malformed\n", i);
			return false;
		}
		if (verbose)
			print_record(&lr);
		for (unsigned k = 0; k < lr.fp_count; k++)
			bad += !fp128_equal(hash_block(payload + (size_t)(used + k) * BLOCK_SIZE),
					    log_fp(fps, k));
		used += lr.fp_count;
	}
	if (bad)
		printf("    %u payload blocks do not match\n", bad);
	return !bad;
}

/* Whether all of the segment's batches were fine; where they end is told, not judged. */
static bool inspect_segment(struct device *d, uint64_t off, uint8_t *buf, bool verbose)
{
	const struct superblock *sb = &d->sb;
	uint64_t seed = log_seed(&sb->log, sb->log_incarnation);
	struct log_segment_header h;
	struct log_batch_header b;
	uint32_t blocks = (uint32_t)(sb->log_segment_size / BLOCK_SIZE), at = 1;
	uint64_t seq;
	unsigned bad = 0;
	int rc = device_pread(d, buf, sb->log_segment_size, off);

	if (!rc)
		rc = log_segment_decode(buf, &h);
	if (rc == -ENODATA ||
	    (!rc && (!uuid_equal(&h.log, &sb->log) || h.incarnation != sb->log_incarnation)))
		return true; /* never used, or of a former life */
	if (rc) {
		printf(" log segment at %llu: %s\n", (unsigned long long)off, err_name(rc));
		return false;
	}
	printf(" log segment at %llu lane=%u/%u generation=%llx session=%llx first=%llu "
	       "durable=%llu oldest=%llx "
	       "kv=%llu\n",
	       (unsigned long long)off, h.lane, h.lanes, (unsigned long long)h.generation,
	       (unsigned long long)h.session, (unsigned long long)h.first_batch,
	       (unsigned long long)h.durable, (unsigned long long)h.oldest,
	       (unsigned long long)h.kv_commit);
	if (h.released) {
		printf("  released\n");
		return true;
	}
	for (seq = h.first_batch; at < blocks; seq++) {
		const uint8_t *p = buf + (size_t)at * BLOCK_SIZE;

		if (log_batch_peek(p, &b) || b.generation != h.generation || b.seq != seq ||
		    at + b.header_blocks + b.payload_blocks > blocks ||
		    log_batch_verify(p, b.header_blocks, seed))
			break;
		if (verbose)
			printf("   batch %llu at block %u%s records=%u payload=%u durable=%llu\n",
			       (unsigned long long)b.seq, at, b.seal ? " (seal)" : "", b.records,
			       b.payload_blocks, (unsigned long long)b.durable);
		bad += !print_batch(p, &b, p + (size_t)b.header_blocks * BLOCK_SIZE, verbose);
		at += b.header_blocks + b.payload_blocks;
		if (b.seal)
			break;
	}
	printf("  %llu batches, %u blocks, %u bad\n", (unsigned long long)(seq - h.first_batch), at,
	       bad);
	return !bad;
}

static int inspect_device(const char *path, bool verbose)
{
	CLEANUP(free_ptr) uint8_t *buf = NULL;
	struct device d;
	bool fine = true;
	int rc = device_open(&d, path, true, true);

	if (rc)
		return rc;
	rc = device_read_superblock(&d);
	if (rc) {
		printf("%s: no valid superblock (%s)\n", path, err_name(rc));
		device_close(&d);
		return rc == -ERR_CORRUPT ? 1 : rc;
	}
	print_superblock(&d.sb);
	if (d.sb.log_len) {
		buf = xalloc_aligned(BLOCK_SIZE, d.sb.log_segment_size);
		for (uint64_t off = 0; off < d.sb.log_len; off += d.sb.log_segment_size)
			fine &= inspect_segment(&d, d.sb.log_start + off, buf, verbose);
	}
	if (d.sb.data_len) {
		rc = tier_inspect_segments(&d, verbose);
		fine &= rc == 0;
	}
	device_close(&d);
	return fine ? 0 : 1;
}

int store_inspect(const char *path, bool verbose)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) ? tier_inspect_metadata(path, verbose)
				   : inspect_device(path, verbose);
}
