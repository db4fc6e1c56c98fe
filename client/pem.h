/* SPDX-License-Identifier: Apache-2.0 */
/* What a client must know from its own files before it can say hello: its name and its cluster. Both
 * stand in the subject names of certificates whose form the cluster fixes (net/ca.h): "client:NAME" and
 * "ashlar CA UUID". This reads names, it verifies nothing: TLS does that. Blocking, any thread. */
#pragma once

#include "node/base/check.h"

/* The first string of the PEM file's first certificate that begins with prefix, whole, into
 * out[cap]. -ERR_NOT_FOUND, -ERR_INVALID, or an errno of reading the file. */
int pem_find_text(const char *path, const char *prefix, char *out, size_t cap) MUST_USE;
