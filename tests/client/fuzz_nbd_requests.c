/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of arbitrary bytes: whatever is accepted lies within the volume and its limits. */
#include "client/nbd_proto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct nbd_limits l = {0};
	struct nbd_request q;
	uint8_t fixed[NBD_REQUEST_SIZE];
	uint32_t error;

	if (size < NBD_REQUEST_SIZE + 9)
		return 0;
	l.size = get_be64(data + NBD_REQUEST_SIZE) >> (data[NBD_REQUEST_SIZE + 8] % 64);
	l.structured = data[NBD_REQUEST_SIZE + 8] & 0x40;
	l.meta_allocation = data[NBD_REQUEST_SIZE + 8] & 0x80;
	memcpy(fixed, data, sizeof(fixed));
	if (data[0] & 1) /* most inputs should get past the magic */
		put_be32(fixed, NBD_REQUEST_MAGIC);
	if (nbd_request_parse(fixed, &q) < 0) {
		CHECK(get_be32(fixed) != NBD_REQUEST_MAGIC);
		return 0;
	}
	error = nbd_request_check(&q, &l);
	CHECK(!memcmp(&q.cookie, fixed + 8, 8));
	if (error) {
		CHECK(error == NBD_EINVAL || error == NBD_ENOSPC);
		return 0;
	}
	CHECK(q.type <= NBD_CMD_BLOCK_STATUS);
	if (q.type != NBD_CMD_DISC && q.type != NBD_CMD_FLUSH)
		CHECK(q.offset <= l.size && q.length <= l.size - q.offset);
	if (q.type == NBD_CMD_READ || q.type == NBD_CMD_WRITE)
		CHECK(q.length <= NBD_PAYLOAD_MAX);
	if (q.type == NBD_CMD_BLOCK_STATUS)
		CHECK(l.meta_allocation && q.length);
	CHECK(!(q.flags & NBD_CMD_DF) || (q.type == NBD_CMD_READ && l.structured));
	return 0;
}
