/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulator/peek.h"

#include "client/client_impl.h"

uint32_t sim_peek_attachment(const struct volume *v)
{
	return v->attach_state == ATTACH_OK ? v->attachment : 0;
}
