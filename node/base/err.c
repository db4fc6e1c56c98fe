/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/err.h"

#include <string.h>

static const struct {
	const char *name, *text;
	int parent;
} codes[] = {
#define ERR(name, parent, text) {#name, text, parent},
#include "node/base/err.def"
#undef ERR
};

static int code_index(int rc)
{
	int i = -rc - ERR_BASE - 1;

	return i >= 0 && (size_t)i < ARRAY_LEN(codes) ? i : -1;
}

const char *err_name(int rc)
{
	int i = code_index(rc);
	const char *name;

	if (rc >= 0)
		return rc == 0 ? "OK" : "POSITIVE";
	if (i >= 0)
		return codes[i].name;
	name = strerrorname_np(-rc);
	return name ? name : "UNKNOWN";
}

const char *err_text(int rc)
{
	int i = code_index(rc);
	const char *text;

	if (rc >= 0)
		return "done";
	if (i >= 0)
		return codes[i].text;
	text = strerrordesc_np(-rc);
	return text ? text : "unknown error";
}

int err_errno(int rc)
{
	int i = code_index(rc);

	return i >= 0 ? -codes[i].parent : rc;
}

bool err_is(int rc, int code)
{
	return rc == code || err_errno(rc) == code;
}
