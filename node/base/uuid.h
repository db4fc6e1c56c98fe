/* SPDX-License-Identifier: Apache-2.0 */
/* 16-byte identities. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct uuid {
	uint8_t b[16];
};

#define UUID_TEXT 37 /* with the NUL */

void uuid_make(struct uuid *u); /* random, version 4, from getrandom(2) */
void uuid_format(const struct uuid *u, char out[UUID_TEXT]);
int uuid_parse(const char *text, struct uuid *out); /* -EINVAL */
bool uuid_equal(const struct uuid *a, const struct uuid *b);
bool uuid_is_nil(const struct uuid *u);
