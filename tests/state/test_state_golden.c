/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/state/state_kit.h"
TEST(golden, placeholder_until_bytes_are_printed)
{
}
