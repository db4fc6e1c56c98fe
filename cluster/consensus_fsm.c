/* SPDX-License-Identifier: Apache-2.0 */
/* `struct raft_fsm`: what libraft asks of the state machine. The owner's hooks apply, save and restore; here
 * is when that may be, and what becomes of a state that does not fit or cannot be read. */
#include <string.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"

/* libraft does not say which index it applies; last_applied follows each entry. */
static int fsm_apply(struct raft_fsm *fsm, const struct raft_buffer *buf, void **result)
{
	struct consensus *c = fsm->data;
	uint64_t index = c->raft.last_applied + 1;

	memset(&c->result, 0, sizeof(c->result));
	c->cfg.hooks->apply(c->cfg.ctx, index, buf->base, buf->len, &c->result);
	c->result.index = index;
	*result = &c->result;
	return 0;
}

static int fsm_snapshot(struct raft_fsm *fsm, struct raft_buffer *bufs[], unsigned *n_bufs)
{
	struct consensus *c = fsm->data;
	struct writer w = writer_init_heap();

	if (guard_x7_snapshot_busy(c) || c->raft.last_applied < c->snapshot_not_before)
		return RAFT_BUSY;
	c->cfg.hooks->snapshot(c->cfg.ctx, &w);
	if (w.bad || !guard_r12_snapshot_fits(c, w.len)) {
		c->snapshot_not_before = c->raft.last_applied + c->raft.snapshot.threshold;
		log_error("raft",
			  "the cluster's state is too large for a snapshot; the log grows until it "
			  "shrinks",
			  "node=%u bytes=%zu limit=%u", c->cfg.id, w.len,
			  MESSAGE_SNAPSHOT_BYTES_MAX);
		writer_free(&w);
		return RAFT_BUSY;
	}
	*bufs = raft_malloc(sizeof(**bufs));
	CHECK(*bufs);
	*n_bufs = 1;
	(*bufs)[0].len = w.len;
	/* libraft frees it with raft_free, which is free. */
	(*bufs)[0].base = w.data ? w.data : xmalloc(1);
	return 0;
}

static int fsm_restore(struct raft_fsm *fsm, struct raft_buffer *buf)
{
	struct consensus *c = fsm->data;
	int rc = c->cfg.hooks->restore(c->cfg.ctx, buf->base, buf->len, c->view.snapshot_index);

	if (rc < 0) {
		log_error("raft", "a snapshot cannot be restored", "node=%u index=%llu error=%s",
			  c->cfg.id, (unsigned long long)c->view.snapshot_index, err_name(rc));
		c->failed = "a snapshot cannot be restored";
		return RAFT_MALFORMED;
	}
	raft_free(buf->base); /* ours now */
	return 0;
}

void consensus_fsm_init(struct consensus *c)
{
	c->fsm = (struct raft_fsm){.version = 1,
				   .data = c,
				   .apply = fsm_apply,
				   .snapshot = fsm_snapshot,
				   .restore = fsm_restore};
}
