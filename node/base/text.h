/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for people. Any thread. */
#pragma once

#include <stdint.h>

/* "17 B", "1.5 GiB": powers of 1024, rounded to one decimal. Returns out. */
const char *bytes_text(uint64_t bytes, char out[24]);
