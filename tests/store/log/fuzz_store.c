/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads bytes from disk: superblocks, log segments, batches and records, object
 * headers, map rows, segment headers and summaries. The first byte chooses the decoder. What a
 * decoder accepts must keep its own limits, and records must encode to the same bytes again. */
#include <stdlib.h>
#include <string.h>

#include "store/device.h"
#include "store/header.h"
#include "store/log_format.h"
#include "store/map_format.h"
#include "store/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void records(const uint8_t *data, size_t size)
{
	struct reader r = reader_init(data, size);
	struct log_record rec;
	const uint8_t *fps, *at = r.p;

	while (reader_left(&r) && log_record_decode(&r, &rec, &fps) == 0) {
		size_t len = log_record_len(rec.fp_count);
		struct fp128 *copy = calloc(rec.fp_count + 1, sizeof(*copy));
		uint8_t *again = calloc(1, len);

		CHECK(rec.r.blocks <= RECORD_BLOCKS_MAX && at + len == r.p);
		for (unsigned i = 0; i < rec.fp_count; i++)
			copy[i] = log_fp(fps, i);
		log_record_encode(&rec, copy, again);
		if (rec.r.kind != RECORD_COPY) /* spare bytes, which a reader ignores */
			memcpy(again + 72, at + 72, 8);
		CHECK(!memcmp(again, at, len));
		free(again);
		free(copy);
		at = r.p;
	}
}

static void blocks(const uint8_t block[BLOCK_SIZE])
{
	struct superblock sb;
	struct log_segment_header seg;
	struct log_batch_header batch;
	struct segment_header data_seg;
	uint32_t summary;

	if (superblock_decode(block, &sb) == 0)
		CHECK(sb.index < GROUP_DEVICES_MAX);
	if (log_segment_decode(block, &seg) == 0)
		CHECK(seg.lane < SHARDS_MAX);
	if (log_batch_peek(block, &batch) == 0)
		CHECK(batch.header_blocks <= LOG_BATCH_HEADER_BLOCKS_MAX);
	if (segment_header_decode(block, &data_seg) == 0)
		CHECK(data_seg.stream < STREAMS);
	if (unit_summary_peek(block, &summary) == 0)
		CHECK(summary % BLOCK_SIZE == 0 && summary > 0);
}

static void rows(const uint8_t *data, size_t size)
{
	uint8_t key[MAP_KEY_SIZE], out[MAP_PAGE_MAX];
	struct map_page page;
	struct map_region region;
	struct object_row object;
	struct share_row share;
	struct meta_row meta;
	const void *operand = data;

	map_key_encode(key, 7, 3);
	if (map_page_decode(data, size, key, &page) == 0)
		CHECK(map_page_encode(out, key, &page) <= MAP_PAGE_MAX);
	CHECK(map_merge_full(out, key, sizeof(key), data, size, &operand, &size, 1) <=
	      MAP_PAGE_MAX);
	CHECK(map_merge_full(out, key, sizeof(key), NULL, 0, &operand, &size, 1) <= MAP_PAGE_MAX);
	if (region_decode(data, size, &region) == 0)
		CHECK(size == REGION_VALUE_SIZE);
	if (object_row_decode(data, size, 7, &object) == 0)
		CHECK(object.header_len <= size);
	if (share_decode(data, size, &share) == 0)
		CHECK(size == SHARE_VALUE_SIZE);
	if (meta_decode(data, size, &meta) == 0)
		CHECK(size == META_VALUE_SIZE);
}

static void summaries(const uint8_t *data, size_t size)
{
	struct unit_header h;
	struct unit_entry e;

	if (unit_summary_decode(data, size, &h) != 0)
		return;
	CHECK(h.summary_bytes <= size);
	for (unsigned i = 0; i < h.entries; i++)
		if (unit_entry_decode(data, &h, i, &e) == 0)
			CHECK(e.offset <= h.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t block[BLOCK_SIZE] = {0};
	struct stored_header header;

	if (!size)
		return 0;
	switch (*data++ % 5) {
	case 0:
		memcpy(block, data, MIN(size - 1, BLOCK_SIZE));
		blocks(block);
		break;
	case 1:
		records(data, size - 1);
		break;
	case 2:
		rows(data, size - 1);
		break;
	case 3:
		summaries(data, size - 1);
		break;
	case 4:
		if (stored_header_decode(data, size - 1, &header, NULL) == 0)
			CHECK(header.h.epoch_count <= EPOCHS_MAX);
		break;
	}
	return 0;
}
