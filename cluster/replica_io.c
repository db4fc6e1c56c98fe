/* SPDX-License-Identifier: Apache-2.0 */
/* Client operations at the primary: admission (W1), the range queue (Q1), reads under leases (Q2),
 * late duplicates (A1), fencing of clients (A2). One operation is one struct io_op, and op_run reads
 * downwards; `waits_for` says what a stage waits for. Repair (Q3) is in replica_repair.c. */
#include <stdlib.h>

#include "cluster/replica_impl.h"

#define LEASE_WAIT_US  500000u
#define ARRIVE_WAIT_US 200000u /* for this replica to become what the client took it for */

void op_ready(struct io_op *op, int rc)
{
	op->rc = rc;
	list_del(&op->ready);
	list_push_back(&op->r->ready, &op->ready);
	replica_arm(op->r);
}

static void op_resume(struct wait *w, int rc)
{
	struct io_op *op = container_of(w, struct io_op, wait);

	op->in_flight = false;
	op_ready(op, rc);
}

static void op_granted(struct range_entry *e)
{
	op_ready(container_of(e, struct io_op, range), 0);
}

/* Waits for something that many wait for: leases, credits, log space, memory. Tried again when any
 * of it changed, and at each tick. */
int op_park(struct io_op *op, const char *what)
{
	op->waits_for = what;
	if (!op->gate_us)
		op->gate_us = loop_mono_us(op->r->loop);
	list_del(&op->ready);
	list_push_back(&op->r->gated, &op->ready);
	object_busy(op->object);
	return PENDING;
}

/* ---- The end ------------------------------------------------------------------------------------
 */

static void op_answer(struct io_op *op)
{
	struct io_reply *a = op->io->reply;

	op->answered = true;
	a->status = op->status;
	a->epoch = op->object ? op->object->config.epoch : 0;
	if (op->status != IO_OK)
		a->fp_count = a->extent_count = 0;
	if (op->status == IO_RETRY)
		op->r->stats.retries++;
	wait_resume(op->owner, 0);
}

static void next_waiting(struct replicator *r);

static void op_free(struct io_op *op)
{
	struct replicator *r = op->r;
	struct primary *p = op->primary;

	CHECK(!op->in_flight);
	slice_unref(&op->data);
	slice_unref(&op->out.payload);
	if (op->fp_buf)
		buf_unref(op->fp_buf);
	list_del(&op->ready);
	list_del(&op->link);
	list_del(&op->out.link);
	if (p) {
		p->op_count--;
		if (op->in_range && p->state != PRIMARY_ENDED)
			range_leave(&p->range, &op->range);
		primary_put(p);
	}
	if (op->object)
		object_release(op->object);
	pool_put(&r->ops, op);
	next_waiting(r);
}

int op_answer_with(struct io_op *op, uint8_t status)
{
	op->status = status;
	op->stage = OP_REPLY;
	return 0;
}

/* The tenure's end: everybody is told RETRY. What the store still works on is freed at its resume.
 */
void ops_end(struct primary *p)
{
	struct io_op *op, *tmp;

	list_for_each(op, &p->ops, link)
	{
		list_del(&op->out.link);
		op->out.op = NULL;
	}
	list_for_each_safe(op, tmp, &p->ops, link)
	{
		list_del(&op->ready);
		list_del(&op->link);
		op->in_range = false;
		op->status = IO_RETRY;
		if (!op->answered)
			op_answer(op);
		if (!op->in_flight)
			op_free(op);
	}
}

/* ---- Admission ----------------------------------------------------------------------------------
 */

/* A2: by the map as applied here. Only what changes data is fenced; reads need no attachment, but
 * one that names an attachment unknown here yet waits: what its holder saw may be newer than this
 * map. */
static uint8_t attachment_status(struct io_op *op)
{
	const struct io_request *q = op->io->request;
	const struct map_attachment *a = map_attachment(op->r->map, q->attachment);

	if (op->mend)
		return IO_OK;
	if (q->attachment >= op->r->map->next_attachment)
		return IO_RETRY; /* this map is older than the request */
	if (op->kind == IO_READ || op->kind == IO_STATUS)
		return IO_OK;
	if (!a)
		return IO_FENCED;
	if (a->volume != object_volume(q->object) || a->epoch != q->attach_epoch)
		return IO_FENCED;
	return a->revoked && rule(RULE_REVOKED) ? IO_FENCED : IO_OK;
}

static bool too_few_in_sync(const struct io_op *op)
{
	const struct map_volume *v = map_volume(op->r->map, object_volume(op->object->id));

	return v && map_in_count(&op->object->config) < v->min_in_sync;
}

static bool payload_fits(const struct io_op *op)
{
	const struct io_request *q = op->io->request;

	return q->kind != IO_WRITE || op->mend ||
	       (op->io->payload.len == q->length &&
		io_payload_check(op->io->payload.data, q->offset, q->length, q->fps));
}

static uint8_t admission_status(struct io_op *op)
{
	const struct io_request *q = op->io->request;
	struct object *o = op->object;
	struct primary *p = o ? o->primary : NULL;
	uint8_t status;

	if (!o || !o->listed)
		return IO_NOT_PRIMARY;
	if (q->length > IO_MAX_BYTES || !q->length ||
	    (uint64_t)q->offset + q->length > (uint64_t)object_blocks(o) * BLOCK_SIZE)
		return IO_INVALID;
	if (q->kind < IO_READ || q->kind > IO_STATUS || op->blocks > RECORD_BLOCKS_MAX)
		return IO_INVALID;
	if (q->replica_gen && q->replica_gen != o->gen)
		return IO_NOT_PRIMARY;
	if (!p)
		return object_is_primary(o) ? IO_RETRY : IO_NOT_PRIMARY;
	if (p->state != PRIMARY_SERVE || p->moving)
		return IO_RETRY;
	/* A late copy: A1 knows it, too, but not past a force, which loses numbers with the writes. */
	if (q->epoch < p->tenure && rule(RULE_REQUEST_TENURE))
		return IO_STALE_EPOCH;
	if (too_few_in_sync(op))
		return IO_RETRY;
	status = attachment_status(op);
	/* Last, as it costs the most: who is too early is asked all the rest again and again. */
	return status == IO_OK && !payload_fits(op) ? IO_INVALID : status;
}

/* Blocks and kind that the request means. A trim is rounded inwards; zeroes that do not fill their
 * blocks become a write of zeroes. */
static void op_shape(struct io_op *op)
{
	const struct io_request *q = op->io->request;
	uint64_t end = (uint64_t)q->offset + q->length;

	op->kind = q->kind;
	op->offset = q->offset;
	op->length = q->length;
	op->block = q->offset >> BLOCK_SHIFT;
	op->blocks = (uint32_t)((end + BLOCK_SIZE - 1) >> BLOCK_SHIFT) - op->block;
	op->whole = q->offset % BLOCK_SIZE == 0 && q->length % BLOCK_SIZE == 0;
	if (q->kind == IO_TRIM && !op->whole) {
		op->block = (uint32_t)(((uint64_t)q->offset + BLOCK_SIZE - 1) >> BLOCK_SHIFT);
		op->blocks = end >> BLOCK_SHIFT > op->block
				     ? (uint32_t)(end >> BLOCK_SHIFT) - op->block
				     : 0;
		op->whole = true;
	}
	op->merge = op->mend || (!op->whole && (q->kind == IO_WRITE || q->kind == IO_ZEROES));
}

/* The client is right to come here, but a moment early: it knows a newer map than this node does, or
 * the takeover is not through yet. Waiting here costs it less than coming again. */
static const char *too_early(const struct io_op *op)
{
	const struct object *o = op->object;

	if (!o || !o->listed || o->me < 0 || op->mend ||
	    (op->status != IO_RETRY && op->status != IO_NOT_PRIMARY) ||
	    (op->gate_us && loop_mono_us(op->r->loop) - op->gate_us >= ARRIVE_WAIT_US))
		return NULL;
	if (o->primary)
		return o->primary->state != PRIMARY_SERVE ? "this replica to take over" : NULL;
	if (op->io->request->epoch > o->config.epoch && op->io->request->epoch != UINT32_MAX)
		return "a newer map";
	return object_is_primary(o) ? "this replica to take over" : NULL;
}

static int op_admit(struct io_op *op)
{
	struct primary *p;
	const char *wait;

	op_shape(op);
	op->status = admission_status(op);
	wait = too_early(op);
	if (wait)
		return op_park(op, wait);
	if (op->status != IO_OK)
		return op_answer_with(op, op->status);
	op->gate_us = 0;
	if (!op->blocks)
		return op_answer_with(op, IO_OK);
	p = op->object->primary;
	op->primary = p;
	p->refs++;
	p->op_count++;
	list_push_back(&p->ops, &op->link);
	object_busy(op->object);
	op->stage = OP_RANGE;
	op->waits_for = "operations ahead of it in its range";
	op->range = (struct range_entry){.block = op->block,
					 .blocks = op->blocks,
					 .kind = op->merge ? RANGE_MERGE
						 : op->kind == IO_READ || op->kind == IO_STATUS
							 ? RANGE_READ
							 : RANGE_WRITE,
					 .granted = op_granted};
	op->in_range = true;
	if (p->r->confirm_reads && op->range.kind == RANGE_READ) {
		op->asked = p->r->asked;
		primary_confirmed(p, op->asked, &wait); /* asks, while the data is looked up */
	}
	return range_enter(&p->range, &op->range) ? 0 : PENDING;
}

/* ---- Lookup, merge --------------------------------------------------------------------------------
 */

static int op_lookup(struct io_op *op)
{
	struct buf *b = NULL;
	int rc;

	if (op->kind != IO_STATUS && !op->data.buf) {
		b = buf_get(op->r->pool, op->blocks * BLOCK_SIZE);
		if (!b)
			return op_park(op, "memory");
		op->data =
			(struct slice){.buf = b, .data = b->data, .len = op->blocks * BLOCK_SIZE};
	}
	op->stage = OP_REPAIR;
	op->waits_for = "the store";
	memset(op->read.bad, 0, sizeof(op->read.bad));
	op->read.block = op->block;
	op->read.blocks = op->blocks;
	op->read.dest = op->data.data;
	op->in_flight = true;
	rc = store_read(op->object->store, &op->read, &op->wait);
	if (rc != PENDING)
		op->in_flight = false;
	return rc;
}

/* A sub-block write: the old blocks are in op->data, the new bytes go over them. */
static int op_merge(struct io_op *op)
{
	uint32_t at = op->offset - op->block * BLOCK_SIZE;
	struct fp128 *fps;

	if (op->mend)
		return mend_merge(op);
	if (!op->fp_buf)
		op->fp_buf = buf_get(op->r->pool, op->blocks * sizeof(struct fp128));
	if (!op->fp_buf)
		return op_park(op, "memory");
	if (op->kind == IO_WRITE)
		memcpy(op->data.data + at, op->io->payload.data, op->length);
	else
		memset(op->data.data + at, 0, op->length);
	fps = (struct fp128 *)op->fp_buf->data;
	for (uint32_t i = 0; i < op->blocks; i++)
		fps[i] = rule(RULE_MERGED_FP) ? hash_block(op->data.data + i * BLOCK_SIZE) : op->read.fps[i];
	op->out.payload = slice_ref(op->data);
	op->out.fps = fps;
	/* It stays alone in its range until it has its version: what is behind it may not come
	 * before it, or its old bytes would go over them. */
	op->stage = OP_GATE;
	return 0;
}

/* ---- The gate: everything that must hold before a write is logged (W1)
 * --------------------------- */

static bool send_bound(struct primary *p)
{
	for (unsigned i = 0; i < p->member_count; i++) {
		const struct member *m = &p->member[i];

		if (m->want && m->session &&
		    (m->session->unacked_bytes > SESSION_BYTES_MAX || conn_full(m->session->conn)))
			return true;
	}
	return false;
}

/* L4: the fuller the fullest log among the in-sync replicas, the later the next write; at half of
 * the way from LOG_PACED to LOG_FULL admission meets the rate at which that log is destaged. */
static bool paced(struct io_op *op)
{
	struct replicator *r = op->r;
	struct primary *p = op->primary;
	uint64_t now = loop_mono_us(r->loop), fill = op->object->group->fill, rate, x;

	rate = op->object->group->destage_rate;
	for (unsigned i = 0; i < p->member_count; i++) {
		const struct member *m = &p->member[i];

		if (m->want && m->session && m->session->fill > fill) {
			fill = m->session->fill;
			rate = m->session->destage_rate;
		}
	}
	if (fill < LOG_PACED)
		return false;
	if (now < r->pace_us) {
		if (!r->pace.armed)
			timer_set(&r->pace, r->pace_us - now);
		return true;
	}
	x = MIN(fill, LOG_FULL - 100) - LOG_PACED;
	x = op->blocks * 1000000ull * x / (LOG_FULL - LOG_PACED - x) / MAX(rate, 5000u);
	r->pace_us = now + MIN(x, 200000u);
	return false;
}

static int op_append(struct io_op *op)
{
	const struct io_request *q = op->io->request;
	struct primary *p = op->primary;
	struct group *g = op->object->group;
	struct record *rec = &op->out.record;
	uint64_t need;
	int rc;

	*rec = (struct record){
		.kind = op->trim                            ? RECORD_TRIM
			: op->merge || op->kind == IO_WRITE ? RECORD_WRITE
			: op->kind == IO_TRIM             ? RECORD_TRIM
							  : RECORD_ZEROES,
		.version = {p->tenure, p->last.seq + (rule(RULE_NO_GAP) ? 1 : 2)},
		.commit = p->commit,
		.block = op->block,
		.blocks = op->blocks,
		.attachment = q->attachment,
		.attach_epoch = q->attach_epoch,
		.request = q->request,
		.low_water = q->low_water,
	};
	need = rec->kind == RECORD_WRITE ? (uint64_t)op->blocks * STORE_BYTES_PER_BLOCK : 0;
	if (need) {
		rc = op_take_credit(op, need);
		if (rc == PENDING || op->stage == OP_REPLY)
			return rc;
	}
	if (rec->kind == RECORD_WRITE && !op->merge && !op->out.payload.buf) {
		op->out.payload = slice_ref(op->io->payload);
		op->out.fps = q->fps;
	}
	op->in_flight = true;
	rc = store_append(op->object->store, &op->append, rec, op->out.payload.data, op->out.fps,
			  &op->wait);
	if (rc != PENDING)
		op->in_flight = false;
	if (rc == -ERR_LIMIT) {
		group_wait_space(g);
		return op_park(op, "room in the write log");
	}
	if (rc < 0)
		return rc;
	g->window -= need;
	if (need)
		store_grant_spend(g->store, need);
	op->out.op = op;
	op->out.appended_us = now_us(op->r);
	op->wanted = rec->version;
	op->stage = OP_COMMIT;
	op->waits_for = "all in-sync replicas to have it durably";
	list_init(&op->out.link);
	if (op->range.kind == RANGE_MERGE)
		range_turn_write(&p->range, &op->range);
	primary_append(p, &op->out);
	if (rc == 0)
		primary_advance(p);
	return PENDING; /* op_committed makes it ready, whatever comes first */
}

static int op_gate(struct io_op *op)
{
	const struct io_request *q = op->io->request;
	struct primary *p = op->primary;
	struct version v;
	uint8_t status = attachment_status(op);
	const char *what = NULL;

	if (status != IO_OK)
		return op_answer_with(op, status);
	/* Also what was admitted before: a member may have been dropped while it waited. */
	if (p->state != PRIMARY_SERVE || (too_few_in_sync(op) && rule(RULE_MIN_IN_SYNC)))
		return op_answer_with(op, IO_RETRY);
	switch (rule(RULE_RETRY) && !op->mend ? store_retry_lookup(op->object->store, q->attachment,
						      q->attach_epoch, q->request, &v)
				 : RETRY_NEW) {
	case RETRY_BELOW:
		if (!rule(RULE_LOW_WATER))
			break;
		return op_answer_with(op, IO_DUPLICATE);
	case RETRY_KNOWN: /* it is that write; only the answer is missing */
		op->wanted = v;
		op->stage = OP_COMMIT;
		return v.seq <= p->commit.seq ? 0 : op_park(op, "the commit of its first copy");
	case RETRY_NEW:
		break;
	}
	if (!primary_leased(p, &what) && rule(RULE_WRITE_LEASE)) {
		if (op->gate_us && loop_mono_us(op->r->loop) - op->gate_us > LEASE_WAIT_US)
			return op_answer_with(op, IO_RETRY);
		return op_park(op, what);
	}
	if (send_bound(p))
		return op_park(op, "a member to acknowledge");
	if ((op->kind == IO_WRITE || op->merge) && paced(op))
		return op_park(op, "the write log to be emptied");
	return op_append(op);
}

/* From primary_advance: everything up to this record is committed. */
void op_committed(struct io_op *op)
{
	op->out.op = NULL;
	if (op->in_flight)
		op->rc = 0; /* durable here, but its own resume has not come yet */
	else
		op_ready(op, 0);
}

/* ---- Replies ------------------------------------------------------------------------------------
 */

/* Q2: with the data in hand, still the same tenure and a lease from all of want; and where that proves
 * nothing, their word (N6). */
static int op_lease(struct io_op *op)
{
	struct primary *p = op->primary;
	const char *what = NULL;

	if ((rule(RULE_READ_LEASE) && !primary_leased(p, &what)) ||
	    (p->r->confirm_reads && !primary_confirmed(p, op->asked, &what))) {
		if (op->gate_us && loop_mono_us(op->r->loop) - op->gate_us > LEASE_WAIT_US)
			return op_answer_with(op, IO_RETRY);
		return op_park(op, what);
	}
	return op_answer_with(op, IO_OK);
}

static void fill_read_reply(struct io_op *op)
{
	struct io_reply *a = op->io->reply;
	struct slice d = slice_ref(op->data);

	d.data += op->offset - op->block * BLOCK_SIZE;
	d.len = op->length;
	op->io->data = d;
	a->fp_count = io_fp_count(op->offset, op->length);
	if (op->whole)
		memcpy(a->fps, op->read.fps, a->fp_count * sizeof(a->fps[0]));
	else
		io_payload_fps(d.data, op->offset, op->length, a->fps);
}

static void fill_status_reply(struct io_op *op)
{
	struct io_reply *a = op->io->reply;
	uint32_t at = op->offset, end = op->offset + op->length;

	a->extent_count = 0;
	for (uint32_t i = 0; i < op->blocks; i++) {
		uint32_t next = MIN((op->block + i + 1) * BLOCK_SIZE, end), flags = 0;
		struct io_extent *x = a->extent_count ? &a->extents[a->extent_count - 1] : NULL;

		if (op->read.hole[i / 64] >> (i % 64) & 1)
			flags = IO_EXTENT_HOLE | IO_EXTENT_ZERO;
		else if (op->read.zero[i / 64] >> (i % 64) & 1)
			flags = IO_EXTENT_ZERO;
		if (x && x->flags == flags)
			x->length += next - at;
		else
			a->extents[a->extent_count++] = (struct io_extent){next - at, flags};
		at = next;
	}
}

static void op_reply(struct io_op *op)
{
	struct replicator_stats *st = &op->r->stats;

	if (op->status == IO_OK && !op->mend)
		governor_note(&op->r->governor, loop_turn_us(op->r->loop) - op->start_us);
	if (op->status == IO_OK && op->blocks) {
		if (op->kind == IO_READ) {
			fill_read_reply(op);
			st->reads++;
			st->read_bytes += op->length;
		} else if (op->kind == IO_STATUS) {
			fill_status_reply(op);
		} else if (op->mend) {
			log_info("replica", "repaired blocks were rewritten",
				 "object=%llx block=%u blocks=%u", (unsigned long long)op->object->id,
				 op->block, op->blocks);
		} else if (op->kind == IO_WRITE) {
			st->writes++;
			st->write_bytes += op->length;
		} else {
			st->trims++;
		}
	}
	if (op->repaired && op->kind == IO_READ)
		mend_after_read(op);
	op_answer(op);
	op_free(op);
}

/* ---- The machine --------------------------------------------------------------------------------
 */

static int op_error(struct io_op *op, int rc)
{
	if (rc == -ERR_DAMAGED || rc == -ERR_CORRUPT)
		return op_answer_with(op, IO_MEDIUM_ERROR);
	/* W5: what was logged, or may have been, is never answered with an error. */
	if (!rule(RULE_LOGGED))
		return op_answer_with(op, IO_MEDIUM_ERROR);
	object_fail(op->object, rc);
	return PENDING; /* the tenure has ended, and with it this operation */
}

static void op_run(struct io_op *op, int rc)
{
	while (rc != PENDING) {
		if (op->answered) { /* the tenure ended while the store had it */
			op_free(op);
			return;
		}
		if (rc < 0 && op->stage != OP_REPAIR) {
			rc = op_error(op, rc);
			continue;
		}
		switch (op->stage) {
		case OP_ADMIT:
			rc = op_admit(op);
			break;
		case OP_RANGE: /* granted */
			op->stage = op->range.kind == RANGE_WRITE ? OP_GATE : OP_LOOKUP;
			rc = 0;
			break;
		case OP_LOOKUP:
			rc = op_lookup(op);
			break;
		case OP_REPAIR:
			rc = op_repair(op, rc);
			if (rc < 0)
				rc = op_error(op, rc);
			break;
		case OP_MERGE:
			rc = op_merge(op);
			break;
		case OP_GATE: /* attachment, duplicate, leases, credits, then the log and the
				 members */
			rc = op_gate(op);
			break;
		case OP_COMMIT:
			if (op->wanted.seq <= op->primary->commit.seq) {
				rc = op_answer_with(op, IO_OK);
			} else if (list_empty(&op->out.link)) { /* a duplicate waits for its first
								   copy */
				rc = op_park(op, "the commit of its first copy");
			} else { /* durable here */
				rc = PENDING;
				primary_advance(op->primary);
			}
			break;
		case OP_LEASE:
			rc = op_lease(op);
			break;
		case OP_REPLY:
			op_reply(op);
			return;
		}
	}
}

void ops_run(struct replicator *r)
{
	struct list gated = LIST_INIT(gated), *n;
	struct io_op *op;

	if (r->gate_open) {
		r->gate_open = false;
		list_splice_back(&gated, &r->gated);
		while ((n = list_pop_front(&gated))) {
			op = list_entry(n, struct io_op, ready);
			if (op->stage == OP_REPAIR && op->ticket) {
				list_push_back(&r->gated, &op->ready);
				repair_stalled(op);
				continue;
			}
			op->rc = 0;
			list_push_back(&r->ready, &op->ready);
		}
	}
	while ((n = list_pop_front(&r->ready))) {
		op = list_entry(n, struct io_op, ready);
		op_run(op, op->rc);
	}
}

/* ---- Entry --------------------------------------------------------------------------------------
 */

void op_start(struct replicator *r, struct io_exec *io, bool mend)
{
	struct io_op *op = pool_get(&r->ops);

	memset(op, 0, offsetof(struct io_op, append));
	op->r = r;
	op->mend = mend;
	op->io = io;
	op->owner = io->wait;
	op->wait.resume = op_resume;
	op->start_us = loop_turn_us(r->loop);
	list_init(&op->link);
	list_init(&op->ready);
	list_init(&op->out.link);
	op->object = object_find(r, io->request->object);
	if (op->object)
		object_hold(op->object);
	op_ready(op, 0);
}

static void next_waiting(struct replicator *r)
{
	if (!list_empty(&r->op_waiting) && r->ops.used < r->ops.capacity)
		op_start(r, list_entry(list_pop_front(&r->op_waiting), struct io_exec, link), false);
}

int replicator_submit(struct replicator *r, struct io_exec *io, struct wait *w)
{
	io->wait = w;
	io->data = (struct slice){0};
	if (r->ops.used < r->ops.capacity && list_empty(&r->op_waiting))
		op_start(r, io, false);
	else
		list_push_back(&r->op_waiting, &io->link);
	return PENDING;
}

/* The end of everything: who has not entered a tenure yet is told RETRY. All tenures have ended. */
void ops_destroy(struct replicator *r)
{
	struct list *n;

	list_splice_back(&r->ready, &r->gated);

	while ((n = list_pop_front(&r->op_waiting))) {
		struct io_exec *io = list_entry(n, struct io_exec, link);

		*io->reply = (struct io_reply){.status = IO_RETRY};
		wait_resume(io->wait, 0);
	}
	while ((n = list_pop_front(&r->ready))) {
		struct io_op *op = list_entry(n, struct io_op, ready);

		op->status = IO_RETRY;
		if (!op->answered)
			op_answer(op);
		op_free(op);
	}
}

const char *op_stage_name(enum op_stage s)
{
	static const char *const names[] = {"admit", "range",  "lookup", "repair", "merge",
					    "gate",  "commit", "lease",  "reply"};

	return names[s];
}

void replicator_ops(struct replicator *r, void (*fn)(void *arg, const struct replica_op_info *i),
		    void *arg)
{
	static const char *const kinds[] = {"?", "read", "write", "trim", "zeroes", "status"};
	struct object *o;
	struct io_op *op;

	list_for_each(o, &r->objects, link)
	{
		if (!o->primary)
			continue;
		list_for_each(op, &o->primary->ops, link)
		{
			struct replica_op_info i = {.object = o->id,
						    .age_us = loop_mono_us(r->loop) - op->start_us,
						    .kind = kinds[op->kind],
						    .stage = op_stage_name(
							    op->stage == OP_REPAIR && op->in_flight
								    ? OP_LOOKUP
								    : op->stage),
						    .waits_for = op->waits_for ? op->waits_for : "",
						    .offset = op->offset,
						    .length = op->length};

			fn(arg, &i);
		}
	}
}
