/* SPDX-License-Identifier: Apache-2.0 */
/* Invitation tokens: base64url of {"v":1,"cluster":…,"admin":…,"ca":…,"secret":…,"expires":…}. Text
 * from a person's clipboard: everything in it is checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node/base/err.h"
#include "node/base/json.h"
#include "node/base/rng.h"
#include "node/birth.h"

#define TOKEN_TEXT_MAX 2048u

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static char *base64url_encode(const uint8_t *in, size_t len)
{
	char *out = xmalloc(len * 4 / 3 + 4), *o = out;

	for (size_t i = 0; i < len; i += 3) {
		uint32_t v = (uint32_t)in[i] << 16;
		size_t left = len - i;

		if (left > 1)
			v |= (uint32_t)in[i + 1] << 8;
		if (left > 2)
			v |= in[i + 2];
		*o++ = alphabet[v >> 18];
		*o++ = alphabet[v >> 12 & 63];
		if (left > 1)
			*o++ = alphabet[v >> 6 & 63];
		if (left > 2)
			*o++ = alphabet[v & 63];
	}
	*o = '\0';
	return out;
}

/* Returns the length, or < 0; out has room for strlen(in). */
static ssize_t base64url_decode(const char *in, uint8_t *out)
{
	uint32_t v = 0;
	unsigned bits = 0;
	ssize_t n = 0;

	for (; *in; in++) {
		const char *at = strchr(alphabet, *in);

		if (!at)
			return -EINVAL;
		v = v << 6 | (uint32_t)(at - alphabet);
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			out[n++] = (uint8_t)(v >> bits);
			v &= (1u << bits) - 1;
		}
	}
	return bits >= 6 || v ? -EINVAL : n;
}

static bool is_hex64(const char *s)
{
	return s && strlen(s) == 64 && strspn(s, "0123456789abcdef") == 64;
}

void birth_secret_make(char out[65])
{
	struct rng rng;
	uint8_t bytes[32];

	rng_seed_system(&rng);
	rng_fill(&rng, bytes, sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

bool birth_secret_valid(const char *secret)
{
	return is_hex64(secret);
}

char *birth_token_encode(const struct birth_token *t)
{
	struct json *j = json_object_new();
	char cluster[UUID_TEXT];
	char *text, *out;

	uuid_format(&t->cluster, cluster);
	json_put_u64(j, "v", 1);
	json_put_str(j, "cluster", cluster);
	json_put_str(j, "admin", t->admin);
	json_put_str(j, "ca", t->ca_sha256);
	json_put_str(j, "secret", t->secret);
	json_put_u64(j, "expires", t->expires_ms);
	text = json_print(j, false);
	json_free(j);
	out = base64url_encode((const uint8_t *)text, strlen(text));
	free(text);
	return out;
}

static int token_fields(const struct json *j, struct birth_token *out)
{
	const char *cluster = json_str(j, "cluster"), *admin = json_str(j, "admin");
	const char *ca = json_str(j, "ca"), *secret = json_str(j, "secret");

	if (json_u64(j, "v", 0) != 1 || !cluster || uuid_parse(cluster, &out->cluster) < 0)
		return -EINVAL;
	if (!admin || !*admin || strlen(admin) >= sizeof(out->admin) || !is_hex64(ca) ||
	    !is_hex64(secret))
		return -EINVAL;
	if (strspn(admin, "0123456789abcdefABCDEF.:[]%") != strlen(admin))
		return -EINVAL;
	memcpy(out->admin, admin, strlen(admin) + 1);
	memcpy(out->ca_sha256, ca, sizeof(out->ca_sha256));
	memcpy(out->secret, secret, sizeof(out->secret));
	out->expires_ms = json_u64(j, "expires", 0);
	return out->expires_ms ? 0 : -EINVAL;
}

int birth_token_decode(const char *text, uint64_t now_ms, struct birth_token *out)
{
	uint8_t bytes[TOKEN_TEXT_MAX];
	struct json *j;
	char err[128];
	ssize_t n;
	int rc;

	memset(out, 0, sizeof(*out));
	if (strlen(text) > TOKEN_TEXT_MAX)
		return -EINVAL;
	n = base64url_decode(text, bytes);
	if (n <= 0)
		return -EINVAL;
	j = json_parse((const char *)bytes, (size_t)n, err, sizeof(err));
	if (!j)
		return -EINVAL;
	rc = token_fields(j, out);
	json_free(j);
	if (rc == 0 && now_ms && now_ms >= out->expires_ms)
		rc = -ETIMEDOUT;
	return rc;
}
