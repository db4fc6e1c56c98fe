/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/uuid.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "node/base/check.h"

void uuid_make(struct uuid *u)
{
	CHECK(getrandom(u->b, sizeof(u->b), 0) == (ssize_t)sizeof(u->b));
	u->b[6] = (uint8_t)((u->b[6] & 0x0f) | 0x40);
	u->b[8] = (uint8_t)((u->b[8] & 0x3f) | 0x80);
}

void uuid_format(const struct uuid *u, char out[UUID_TEXT])
{
	char *p = out;

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		p += sprintf(p, "%02x", u->b[i]);
	}
}

static int hex_value(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = tolower(c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int uuid_parse(const char *text, struct uuid *out)
{
	if (strlen(text) != UUID_TEXT - 1)
		return -EINVAL;
	for (int i = 0; i < 16; i++) {
		int hi, lo;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
			return -EINVAL;
		hi = hex_value((unsigned char)text[0]);
		lo = hi < 0 ? -1 : hex_value((unsigned char)text[1]);
		if (lo < 0)
			return -EINVAL;
		out->b[i] = (uint8_t)(hi << 4 | lo);
		text += 2;
	}
	return 0;
}

bool uuid_equal(const struct uuid *a, const struct uuid *b)
{
	return !memcmp(a->b, b->b, 16);
}

bool uuid_is_nil(const struct uuid *u)
{
	static const struct uuid nil;

	return uuid_equal(u, &nil);
}
