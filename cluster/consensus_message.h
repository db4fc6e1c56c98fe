/* SPDX-License-Identifier: Apache-2.0 */
/* libraft's messages and configurations as bytes. Pure; any thread.
 *
 * Message, little-endian: u16 version (1), u16 type (libraft's RAFT_IO_…), then per type
 *   AppendEntries        u64 term, prev index, prev term, leader commit; u32 n;
 *                        n × { u64 term, u8 type, u32 length, bytes }
 *   AppendEntriesResult  u64 term, rejected, last index
 *   RequestVote          u64 term, candidate, last index, last term; u8 disrupt, u8 pre-vote
 *   RequestVoteResult    u64 term; u8 granted; u8 pre-vote (0 unknown, 1 true, 2 false)
 *   InstallSnapshot      u64 term, last index, last term, conf index; u32 length and bytes of the
 *                        configuration; u32 length and bytes of the data
 *   TimeoutNow           u64 term, last index, last term
 * Frozen by tests/consensus. Everything from a peer is bounds-checked and checked for sense:
 * libraft itself checks nothing. */
#pragma once

#include <raft.h>
#include <stddef.h>
#include <stdint.h>

#include "node/base/bytes.h"

#define MESSAGE_VERSION     1
#define MESSAGE_ENTRIES_MAX 65536u
#define MESSAGE_MEMBERS_MAX 256u
/* One AppendEntries carries entries up to this; what does not fit is cut off (never split), and the
 * leader commit is lowered to what was sent. */
#define MESSAGE_APPEND_BYTES_MAX (1u << 20)
/* The largest command: one entry always goes, whatever the cut. */
#define MESSAGE_ENTRY_BYTES_MAX (3u << 20)
/* A snapshot travels in one message, which has to fit in a frame (net/wire.h, 4 MiB). */
#define MESSAGE_SNAPSHOT_BYTES_MAX ((4u << 20) - (64u << 10))

/* -ERR_LIMIT when a snapshot is too large. append_max: MESSAGE_APPEND_BYTES_MAX, or less in tests.
 */
int message_encode(const struct raft_message *m, size_t append_max, struct writer *w)
	__attribute__((warn_unused_result));
/* What libraft will own (entries, batch, configuration, data) is raft_malloc'ed. server_id is left
 * 0: the sender is whom the connection says, and a RequestVote must name it. -ERR_PROTOCOL,
 * -ERR_VERSION. */
int message_decode(const void *data, size_t len, uint16_t from, struct raft_message *out)
	__attribute__((warn_unused_result));
void message_free(struct raft_message *m);
const char *message_name(unsigned type);

/* As raft_configuration_encode, which leaves the padding uninitialized. 0 or -ENOMEM. */
int configuration_encode(const struct raft_configuration *c, struct raft_buffer *out)
	__attribute__((warn_unused_result));
void configuration_zero_padding(void *data, size_t len);
/* u8 1, u64 n, n × { u64 id, C string, u8 role }, padded to 8. -ERR_CORRUPT. */
int configuration_decode(const void *data, size_t len, struct raft_configuration *out)
	__attribute__((warn_unused_result));
int configuration_copy(const struct raft_configuration *from, struct raft_configuration *to);
bool configuration_equal(const struct raft_configuration *a, const struct raft_configuration *b);
const struct raft_server *configuration_get(const struct raft_configuration *c, uint64_t id);
unsigned configuration_voters(const struct raft_configuration *c);
