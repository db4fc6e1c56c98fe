/* SPDX-License-Identifier: Apache-2.0 */
#include "client/pem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"

#define PEM_MAX 65536u

enum der_tag { DER_UTF8 = 0x0c, DER_PRINTABLE = 0x13, DER_IA5 = 0x16 };

static int base64_value(char c)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *p = c ? strchr(digits, c) : NULL;

	return p ? (int)(p - digits) : -1;
}

static size_t base64_decode(const char *p, const char *end, unsigned char *out)
{
	unsigned acc = 0, bits = 0;
	size_t n = 0;

	for (; p < end; p++) {
		int v = base64_value(*p);

		if (v < 0) /* line ends and padding */
			continue;
		acc = (acc << 6 | (unsigned)v) & 0xffffff;
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			out[n++] = (unsigned char)(acc >> bits);
		}
	}
	return n;
}

static int der_find(const unsigned char *der, size_t n, const char *prefix, char *out, size_t cap)
{
	size_t want = strlen(prefix);

	for (size_t i = 2; i + want <= n; i++) {
		size_t len = der[i - 1]; /* names are short: one length byte */

		if (len >= 128 || len < want || i + len > n || len >= cap ||
		    memcmp(der + i, prefix, want) ||
		    (der[i - 2] != DER_UTF8 && der[i - 2] != DER_PRINTABLE &&
		     der[i - 2] != DER_IA5) ||
		    memchr(der + i, 0, len))
			continue;
		memcpy(out, der + i, len);
		out[len] = 0;
		return 0;
	}
	return -ERR_NOT_FOUND;
}

int pem_find_text(const char *path, const char *prefix, char *out, size_t cap)
{
	static const char begin[] = "-----BEGIN CERTIFICATE-----",
			  finish[] = "-----END CERTIFICATE-----";
	CLEANUP(free_ptr) char *text = xmalloc(PEM_MAX + 1);
	CLEANUP(free_ptr) unsigned char *der = xmalloc(PEM_MAX);
	const char *p, *end;
	FILE *f = fopen(path, "re");
	size_t n;

	if (!f)
		return -errno;
	n = fread(text, 1, PEM_MAX, f);
	fclose(f);
	text[n] = 0;
	p = strstr(text, begin);
	end = p ? strstr(p, finish) : NULL;
	if (!end)
		return -ERR_INVALID;
	p += sizeof(begin) - 1;
	return der_find(der, base64_decode(p, end, der), prefix, out, cap);
}
