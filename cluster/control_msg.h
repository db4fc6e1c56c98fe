/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of the control connections' frames, little-endian; str = u16 length and bytes. Frozen by
 * tests/state. The frame's id is echoed by the answer.
 *
 *  OP_RAFT       one message of cluster/consensus; nodes only; never answered
 *  OP_PROPOSE    one command (command.h). From a node: to the leader it knows; id 0 asks for no answer.
 *                A volume create or resize without placement is a wish: the leader places it first.
 *                From a client: attach, renew or detach, under a holder that begins with its own identity;
 *                the node that is asked carries it to the leader.
 *  OP_PROPOSED   its command_result. Codes that no application gives: -ERR_NOT_LEADER, -ERR_NO_LEADER,
 *                -ERR_BUSY: nothing was done; -ERR_RETRY (to a client: -ETIMEDOUT): the outcome is
 *                unknown; -ERR_REFUSED: a client may not propose this.
 *  OP_MAP_WATCH  u64 version known (0: none). Answered by OP_MAP_DELTA frames from then on.
 *  OP_MAP_DELTA  one delta (map.h), id 0
 *  OP_CALL       u32 timeout ms, str method, str path, u32 length, JSON; nodes only
 *  OP_NODES      u64 version of the sender's map, u16 count × (u16 number, uuid, str address), ascending;
 *                nodes only, when the connection comes up and when a node changes; never answered
 *  OP_RESULT     i32 status (HTTP-like, or a negative code), u32 length, JSON
 *
 * Inline, so that clients need no part of the cluster library for them. */
#pragma once

#include "node/base/bytes.h"
#include "node/base/err.h"
#include "node/base/uuid.h"

#define CONTROL_JSON_MAX ((4u << 20) - 4096u)

#define CONTROL_NODES_MAX 64u /* NODES_MAX */

struct control_nodes {
	uint64_t version;
	unsigned count;
	struct control_node {
		uint16_t number;
		struct uuid uuid;
		char address[64]; /* of its peer port */
	} node[CONTROL_NODES_MAX];
};

struct control_call_msg {
	uint32_t timeout_ms, json_len;
	char method[16], path[512];
	const char *json; /* not terminated; in the frame */
};

static inline void control_watch_encode(uint64_t from, struct writer *w)
{
	write_u64(w, from);
}

static inline int control_watch_decode(struct reader *r, uint64_t *from)
{
	*from = read_u64(r);
	return reader_done(r) ? 0 : -ERR_PROTOCOL;
}

static inline void control_nodes_encode(const struct control_nodes *l, struct writer *w)
{
	write_u64(w, l->version);
	write_u16(w, (uint16_t)l->count);
	for (unsigned i = 0; i < l->count; i++) {
		write_u16(w, l->node[i].number);
		write_bytes(w, l->node[i].uuid.b, sizeof(l->node[i].uuid.b));
		write_str(w, l->node[i].address);
	}
}

static inline int control_nodes_decode(struct reader *r, struct control_nodes *out)
{
	uint16_t last = 0;

	out->version = read_u64(r);
	out->count = read_u16(r);
	if (out->count > CONTROL_NODES_MAX)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < out->count; i++) {
		struct control_node *n = &out->node[i];

		n->number = read_u16(r);
		read_copy(r, n->uuid.b, sizeof(n->uuid.b));
		read_str(r, n->address, sizeof(n->address));
		if (n->number <= last)
			return -ERR_PROTOCOL;
		last = n->number;
	}
	return reader_done(r) ? 0 : -ERR_PROTOCOL;
}

static inline void control_call_encode(uint32_t timeout_ms, const char *method, const char *path,
				       const char *json, struct writer *w)
{
	size_t len = strlen(json);

	write_u32(w, timeout_ms);
	write_str(w, method);
	write_str(w, path);
	write_u32(w, (uint32_t)len);
	write_bytes(w, json, len);
}

static inline int control_call_decode(struct reader *r, struct control_call_msg *out)
{
	out->timeout_ms = read_u32(r);
	read_str(r, out->method, sizeof(out->method));
	read_str(r, out->path, sizeof(out->path));
	out->json_len = read_u32(r);
	out->json = read_bytes(r, out->json_len);
	return reader_done(r) && out->json ? 0 : -ERR_PROTOCOL;
}

static inline void control_result_encode(int status, const char *json, struct writer *w)
{
	size_t len = strlen(json);

	write_u32(w, (uint32_t)status);
	write_u32(w, (uint32_t)len);
	write_bytes(w, json, len);
}

static inline int control_result_decode(struct reader *r, int *status, const char **json, uint32_t *len)
{
	*status = (int)read_u32(r);
	*len = read_u32(r);
	*json = read_bytes(r, *len);
	return reader_done(r) && *json ? 0 : -ERR_PROTOCOL;
}
