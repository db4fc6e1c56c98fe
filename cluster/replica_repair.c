/* SPDX-License-Identifier: Apache-2.0 */
/* Repair at the primary (Q3): what this replica cannot produce is read from a member of want, goes
 * to the reader, and is rewritten here as a write to all replicas. It must never take bytes that do
 * not match the fingerprint they came with, nor ask a member that may lack a committed write. */
#include <stdlib.h>

#include "cluster/replica_impl.h"

#define REPAIR_WAIT_US 2000000u

/* ---- Asking another replica
 * ----------------------------------------------------------------------
 */

/* The next run of blocks that this replica cannot produce; 0: none. */
static uint32_t next_bad(struct io_op *op, uint32_t *first)
{
	uint32_t n = 0, i = 0;

	while (i < op->blocks && !(op->read.bad[i / 64] >> (i % 64) & 1))
		i++;
	*first = i;
	while (i + n < op->blocks && n < (op->repair_single ? 1 : MSG_REPAIR_BLOCKS_MAX) &&
	       op->read.bad[(i + n) / 64] >> ((i + n) % 64) & 1)
		n++;
	return n;
}

/* Q3: asks a member of want for the bad blocks; one that has not joined may yet have them. */
static int repair_ask(struct io_op *op, uint32_t first, uint32_t n)
{
	struct primary *p = op->primary;
	uint8_t body[64];
	struct writer w = writer_init(body, sizeof(body));
	bool absent = false;

	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];
		struct msg_repair_read q = {.key = {op->object->id, p->tenure, m->join},
					    .ticket = op->r->tickets + 1,
					    .block = op->block + first,
					    .blocks = n,
					    .commit = p->commit};

		/* One that is being filled may have it, and is asked once it is in; until then it is
		 * not lost. */
		if (!m->want && m->fill)
			absent = true;
		if ((!m->want && rule(RULE_REPAIR)) || op->repair_refused >> (m->node % 64) & 1)
			continue;
		if (m->state != MEMBER_JOINED) {
			absent = true;
			continue;
		}
		op->ticket = ++op->r->tickets;
		op->repair_node = m->node;
		op->repair_block = first;
		op->repair_blocks = n;
		op->repair_us = loop_mono_us(op->r->loop);
		msg_repair_read_encode(&q, &w);
		session_send(m->session, OP_REPAIR_READ, &w, NULL);
		/* parked, so that the tick notices an answer that never comes */
		return op_park(op, "the block from another replica");
	}
	if (absent) /* it joins, or is dropped (S1), or is promoted */
		return op_park(op, "another replica to join, for a repair");
	return -ERR_DAMAGED;
}

int op_repair(struct io_op *op, int rc)
{
	uint32_t first, n;

	if (op->kind == IO_STATUS) {
		op->stage = OP_LEASE;
		return rc == -ERR_DAMAGED || rc == -ERR_CORRUPT ? 0 : rc;
	}
	if (rc && rc != -ERR_DAMAGED && rc != -ERR_CORRUPT)
		return rc;
	n = next_bad(op, &first);
	if (!n && rc)
		return -ERR_DAMAGED;
	if (!n) {
		op->stage = op->merge ? OP_MERGE : OP_LEASE;
		return 0;
	}
	if (rc)
		op->r->stats.corrupt++;
	if (op->gate_us && loop_mono_us(op->r->loop) - op->gate_us > REPAIR_WAIT_US)
		return op_answer_with(op, IO_RETRY);
	rc = repair_ask(op, first, n);
	if (rc != -ERR_DAMAGED || n == 1)
		return rc;
	op->repair_single = true; /* each may lack another one of them */
	op->repair_refused = 0;
	return repair_ask(op, first, 1);
}

static void repair_refused(struct io_op *op)
{
	op->repair_refused |= 1ull << (op->repair_node % 64);
	op_ready(op, 0);
}

void op_repair_data(struct session *s, const struct msg_repair_data *m, struct slice payload)
{
	struct object *o = object_find(s->r, m->key.object);
	struct io_op *op;

	if (!o || !o->primary || o->primary->tenure != m->key.tenure)
		return;
	list_for_each(op, &o->primary->ops, link)
	{
		if (op->stage != OP_REPAIR || op->ticket != m->ticket || !op->ticket ||
		    op->in_flight)
			continue;
		op->ticket = 0;
		if (!m->found || m->fp_count != op->repair_blocks) {
			repair_refused(op);
			return;
		}
		for (uint32_t i = 0; i < m->fp_count; i++) {
			uint32_t b = op->repair_block + i;

			if (!fp128_equal(hash_block(payload.data + i * BLOCK_SIZE), m->fps[i])) {
				session_fail(s, -ERR_CORRUPT);
				repair_refused(op);
				return;
			}
			memcpy(op->data.data + b * BLOCK_SIZE, payload.data + i * BLOCK_SIZE,
			       BLOCK_SIZE);
			op->read.fps[b] = m->fps[i];
			op->read.bad[b / 64] &= ~(1ull << (b % 64));
		}
		op->repaired = true;
		op->repair_refused = 0; /* of the next run it may have what it lacked of this */
		op->gate_us = 0;
		s->r->stats.repairs++;
		op_ready(op, 0);
		return;
	}
}

/* A repair that is not answered: the session is gone, or soon will be; look again. */
bool repair_stalled(struct io_op *op)
{
	if (op->stage != OP_REPAIR || !op->ticket)
		return false;
	if (loop_mono_us(op->r->loop) - op->repair_us > ms(op->r->times->ack_ms)) {
		op->ticket = 0;
		op_ready(op, 0);
	}
	return true;
}

/* ---- Mending ------------------------------------------------------------------------------------
 */

/* What a replica had to take from another one is rewritten here: a merge of nothing over the same
 * blocks, which reads them (again), repairs them (again), and logs them as a write of ours to all
 * replicas. A write gives the blocks a new version, so no copy with the old one can come back over
 * them. Holes stay holes: a run of them is trimmed, and the rest comes with the next operation. */
struct mend {
	struct replicator *r;
	struct io_exec exec;
	struct io_reply reply;
	struct wait wait;
	struct io_request request;
	bool always;
	uint32_t block, left, now; /* now: what this operation does of it */
	void (*done)(void *arg, uint8_t status);
	void *arg;
};

static bool mend_start(struct mend *m)
{
	struct replicator *r = m->r;

	if (r->stopping || r->ops.used >= r->ops.capacity || !list_empty(&r->op_waiting))
		return false;
	m->now = 0;
	m->request.offset = m->block * BLOCK_SIZE;
	m->request.length = m->left * BLOCK_SIZE;
	op_start(r, &m->exec, true);
	return true;
}

static void mend_done(struct wait *w, int rc)
{
	struct mend *m = container_of(w, struct mend, wait);
	uint8_t status = m->reply.status;

	slice_unref(&m->exec.data);
	if (status == IO_OK && m->now && m->now < m->left) {
		m->block += m->now;
		m->left -= m->now;
		if (mend_start(m))
			return;
		status = IO_RETRY;
	}
	m->r->stats.mending--;
	if (m->done)
		m->done(m->arg, status);
	free(m); /* a failure is met again by the next read */
}

bool mend_begin(struct replicator *r, uint64_t object, uint32_t block, uint32_t blocks, bool always,
		void (*done)(void *arg, uint8_t status), void *arg)
{
	struct mend *m = xcalloc(1, sizeof(*m));

	*m = (struct mend){.r = r,
			   .always = always,
			   .block = block,
			   .left = blocks,
			   .done = done,
			   .arg = arg,
			   .wait.resume = mend_done};
	m->request.kind = IO_WRITE;
	m->request.epoch = UINT32_MAX;
	m->request.object = object;
	m->exec = (struct io_exec){.wait = &m->wait, .request = &m->request, .reply = &m->reply};
	if (!mend_start(m)) {
		free(m);
		return false;
	}
	r->stats.mending++;
	return true;
}

void mend_after_read(struct io_op *op)
{
	(void)mend_begin(op->r, op->object->id, op->block, op->blocks, false, NULL, NULL);
}

static bool is_hole(const struct io_op *op, uint32_t i)
{
	return op->read.hole[i / 64] >> (i % 64) & 1;
}

int mend_merge(struct io_op *op)
{
	struct mend *m = container_of(op->io, struct mend, exec);
	struct fp128 *fps;
	uint32_t n = 1;

	if (!m->always && !op->repaired)
		return op_answer_with(op, IO_OK); /* somebody was faster */
	if (!op->fp_buf)
		op->fp_buf = buf_get(op->r->pool, op->blocks * sizeof(struct fp128));
	if (!op->fp_buf)
		return op_park(op, "memory");
	while (n < op->blocks && is_hole(op, n) == is_hole(op, 0))
		n++;
	op->trim = is_hole(op, 0);
	op->blocks = m->now = n;
	fps = (struct fp128 *)op->fp_buf->data;
	/* What was read was verified, here or at the member it came from, and again on arrival. */
	memcpy(fps, op->read.fps, n * sizeof(*fps));
	if (!op->trim) {
		op->out.payload = slice_ref(op->data);
		op->out.payload.len = n * BLOCK_SIZE;
		op->out.fps = fps;
	}
	op->stage = OP_GATE;
	return 0;
}
