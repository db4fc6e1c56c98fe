/* SPDX-License-Identifier: Apache-2.0 */
/* One 4 KiB block to LZ4 and back. Must never trust the stored length. */
#include "store/codec.h"

#include <lz4.h>

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/hash.h"

unsigned codec_compress(const void *in, uint8_t out[CODEC_UNITS_MAX * CODEC_UNIT])
{
	int n = LZ4_compress_default(in, (char *)out + 2, BLOCK_SIZE, CODEC_UNITS_MAX * CODEC_UNIT - 2);
	unsigned units;

	if (n <= 0)
		return 0;
	units = ((unsigned)n + 2 + CODEC_UNIT - 1) / CODEC_UNIT;
	put_le16(out, (uint16_t)n);
	memset(out + 2 + n, 0, units * CODEC_UNIT - 2 - (unsigned)n);
	return units;
}

int codec_decompress(const void *in, unsigned units, void *out)
{
	unsigned n = get_le16(in);

	if (n + 2 > units * CODEC_UNIT)
		return -ERR_CORRUPT;
	if (LZ4_decompress_safe((const char *)in + 2, out, (int)n, BLOCK_SIZE) != (int)BLOCK_SIZE)
		return -ERR_CORRUPT;
	return 0;
}
