/* SPDX-License-Identifier: Apache-2.0 */
/* The one error space: 0 or a negative int, either an errno (-EIO) or a code of err.def
 * (-ERR_CORRUPT). Any thread. Wire formats do not use these numbers: they have frozen enums. */
#pragma once

#include <errno.h>
#include <stdbool.h>

#include "node/base/check.h"

enum err_code {
	ERR_BASE = 5000,
#define ERR(name, parent, text) ERR_##name,
#include "node/base/err.def"
#undef ERR
	ERR_END,
};

const char *err_name(int rc); /* "CORRUPT", "EIO", "OK" */
const char *err_text(int rc); /* the sentence */
int err_errno(int rc);	      /* the negative errno that rc is a case of; 0 stays 0 */
/* rc is `code`, or a case of the errno `code`. err_is(-ERR_CORRUPT, -EIO) is true. */
bool err_is(int rc, int code);
