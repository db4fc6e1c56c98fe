/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes from a peer: refused, or a message that can be encoded again and freed. */
#include "cluster/consensus_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct writer w = writer_init_heap();
	struct raft_message m;

	if (message_decode(data, size, 7, &m) < 0)
		return 0;
	CHECK(message_encode(&m, SIZE_MAX, &w) == 0);
	message_free(&m);
	writer_free(&w);
	return 0;
}
