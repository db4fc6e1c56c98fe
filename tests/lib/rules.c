/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/rules.h"

#include <stdlib.h>

enum rule rule_left_out; /* of the objects built with ASHLAR_RULES */

/* For programs that know nothing of rules (tests/rules). */
__attribute__((constructor)) static void from_environment(void)
{
	const char *s = getenv("ASHLAR_RULE_LEFT_OUT");

	if (s)
		rule_left_out = (enum rule)strtoul(s, NULL, 10);
}
