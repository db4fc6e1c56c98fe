/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and replies of the transmission phase, and the error numbers. */
#include "client/nbd_proto.h"

#include "node/base/err.h"

int nbd_request_parse(const uint8_t in[NBD_REQUEST_SIZE], struct nbd_request *out)
{
	if (get_be32(in) != NBD_REQUEST_MAGIC)
		return -ERR_PROTOCOL;
	out->flags = get_be16(in + 4);
	out->type = get_be16(in + 6);
	memcpy(&out->cookie, in + 8, 8); /* opaque: echoed as it came */
	out->offset = get_be64(in + 16);
	out->length = get_be32(in + 24);
	return 0;
}

/* FUA is accepted on every command: it was advertised, and a reply always means durable. */
static uint16_t command_flags(uint16_t type, bool structured)
{
	switch (type) {
	case NBD_CMD_READ:
		return NBD_CMD_FUA | (structured ? NBD_CMD_DF : 0);
	case NBD_CMD_WRITE_ZEROES:
		return NBD_CMD_FUA | NBD_CMD_NO_HOLE | NBD_CMD_FAST_ZERO;
	case NBD_CMD_BLOCK_STATUS:
		return NBD_CMD_FUA | NBD_CMD_REQ_ONE;
	default:
		return NBD_CMD_FUA;
	}
}

uint32_t nbd_request_check(const struct nbd_request *q, const struct nbd_limits *l)
{
	bool beyond = q->offset > l->size || q->length > l->size - q->offset;

	if (q->flags & ~command_flags(q->type, l->structured))
		return NBD_EINVAL;
	switch (q->type) {
	case NBD_CMD_READ:
		return beyond || q->length > NBD_PAYLOAD_MAX ? NBD_EINVAL : 0;
	case NBD_CMD_WRITE:
		if (q->length > NBD_PAYLOAD_MAX)
			return NBD_EINVAL;
		return beyond ? NBD_ENOSPC : 0;
	case NBD_CMD_WRITE_ZEROES:
		return beyond ? NBD_ENOSPC : 0;
	case NBD_CMD_TRIM:
	case NBD_CMD_CACHE:
		return beyond ? NBD_EINVAL : 0;
	case NBD_CMD_BLOCK_STATUS:
		return beyond || !q->length || !l->meta_allocation ? NBD_EINVAL : 0;
	case NBD_CMD_FLUSH:
		return q->offset || q->length ? NBD_EINVAL : 0;
	case NBD_CMD_DISC:
		return 0;
	default:
		return NBD_EINVAL;
	}
}

void nbd_simple_encode(uint8_t out[NBD_SIMPLE_SIZE], uint32_t error, uint64_t cookie)
{
	put_be32(out, NBD_SIMPLE_MAGIC);
	put_be32(out + 4, error);
	memcpy(out + 8, &cookie, 8);
}

void nbd_chunk_encode(uint8_t out[NBD_CHUNK_SIZE], uint16_t flags, uint16_t type, uint64_t cookie,
		      uint32_t length)
{
	put_be32(out, NBD_CHUNK_MAGIC);
	put_be16(out + 4, flags);
	put_be16(out + 6, type);
	memcpy(out + 8, &cookie, 8);
	put_be32(out + 16, length);
}

uint32_t nbd_error_of(int rc)
{
	switch (-err_errno(rc)) {
	case 0:
		return 0;
	case EPERM:
	case EACCES:
	case EROFS:
	case EBUSY: /* held by another host */
		return NBD_EPERM;
	case ENOMEM:
		return NBD_ENOMEM;
	case EINVAL:
		return NBD_EINVAL;
	case ENOSPC:
	case EFBIG:
	case EDQUOT:
		return NBD_ENOSPC;
	case EOVERFLOW:
		return NBD_EOVERFLOW;
	case EOPNOTSUPP:
		return NBD_ENOTSUP;
	case ESHUTDOWN:
		return NBD_ESHUTDOWN;
	default:
		return NBD_EIO;
	}
}
