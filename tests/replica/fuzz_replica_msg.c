/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: every decoder of the data plane. The first byte picks one. What is taken is encoded
 * again and must decode to the same bytes. */
#include "cluster/replica_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static union {
		struct msg_join join;
		struct msg_joined joined;
		struct msg_stale stale;
		struct msg_replicate replicate;
		struct msg_ack ack;
		struct msg_versions versions;
		struct msg_manifest manifest;
		struct msg_repair_read repair_read;
		struct msg_repair_data repair_data;
		struct msg_damaged damaged;
	} m;
	static struct fp128 fps[RECORD_BLOCKS_MAX];
	struct reader r;
	struct writer w = writer_init_heap();
	uint32_t payload;
	int rc = 0;

	if (size < 3)
		return 0;
	payload = get_le16(data + 1) * (uint32_t)BLOCK_SIZE;
	r = reader_init(data + 3, size - 3);
	switch (data[0] % 10) {
	case 0:
		if (!(rc = msg_join_decode(&r, &m.join)))
			msg_join_encode(&m.join, &w);
		break;
	case 1:
		if (!(rc = msg_joined_decode(&r, &m.joined)))
			msg_joined_encode(&m.joined, &w);
		break;
	case 2:
		if (!(rc = msg_stale_decode(&r, &m.stale)))
			msg_stale_encode(&m.stale, &w);
		break;
	case 3:
		if (!(rc = msg_replicate_decode(&r, payload, &m.replicate))) {
			msg_fps(&m.replicate, fps);
			msg_replicate_encode(&m.replicate, fps, &w);
		}
		break;
	case 4:
		rc = msg_ack_decode(&r, &m.ack);
		break;
	case 5:
		if (!(rc = msg_versions_decode(&r, &m.versions)))
			msg_versions_encode(&m.versions, &w);
		break;
	case 6:
		if (!(rc = msg_manifest_decode(&r, &m.manifest)))
			msg_manifest_encode(&m.manifest, &w);
		break;
	case 7:
		if (!(rc = msg_repair_read_decode(&r, &m.repair_read)))
			msg_repair_read_encode(&m.repair_read, &w);
		break;
	case 8:
		rc = msg_repair_data_decode(&r, payload, &m.repair_data);
		break;
	case 9:
		if (!(rc = msg_damaged_decode(&r, &m.damaged)))
			msg_damaged_encode(&m.damaged, &w);
		break;
	}
	if (!rc && w.len)
		CHECK(w.len == size - 3 && !memcmp(w.data, data + 3, w.len));
	writer_free(&w);
	return 0;
}
