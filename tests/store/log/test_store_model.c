/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/log/rig.h"
TEST(model, placeholder) {}
