/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/rules.h"

enum rule rule_left_out; /* of the objects built with ASHLAR_RULES */
