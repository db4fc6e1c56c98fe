/* SPDX-License-Identifier: Apache-2.0 */
/* A look into the client, in a file of its own: client/ and simhost have different things called a
 * vio. */
#pragma once

#include <stdint.h>

struct volume;

uint32_t sim_peek_attachment(const struct volume *v); /* 0: it has none that it believes in */
