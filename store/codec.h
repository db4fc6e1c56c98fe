/* SPDX-License-Identifier: Apache-2.0 */
/* LZ4's door. Stored form of a compressed block: 0 length of the LZ4 bytes 2 (le) · the LZ4 block ·
 * zeros up to a whole number of 64-byte units; kept only if that is ≤ 56 units. Any thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "node/base/check.h"

#define CODEC_UNIT 64u
#define CODEC_UNITS_MAX 56u

/* Units used, or 0: does not pay. `in` is one 4 KiB block. */
unsigned codec_compress(const void *in, uint8_t out[CODEC_UNITS_MAX * CODEC_UNIT]);
/* 0 or -ERR_CORRUPT; out is one 4 KiB block. */
int codec_decompress(const void *in, unsigned units, void *out) MUST_USE;
