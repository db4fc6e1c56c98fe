/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a configuration file: refused with a sentence, or a complete configuration. */
#include <stddef.h>
#include <stdint.h>

#include "node/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct config c;
	char err[512];
	int rc = config_parse("fuzz", data, size, &c, err);

	CHECK(rc < 0 ? err[0] != '\0' : c.state_dir && c.advertise && is_pow2(c.shards) && c.roles);
	config_free(&c);
	return 0;
}
