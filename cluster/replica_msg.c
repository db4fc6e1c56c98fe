/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of replica_msg.h. Decoders trust nothing: lengths, counts and ranges are checked here, so
 * that the protocol code meets only messages that could have been sent. */
#include "cluster/replica_msg.h"

static void put_version(struct writer *w, struct version v)
{
	write_u32(w, v.tenure);
	write_u64(w, v.seq);
}

static struct version take_version(struct reader *r)
{
	struct version v;

	v.tenure = read_u32(r);
	v.seq = read_u64(r);
	return v;
}

static void put_key(struct writer *w, const struct msg_key *k)
{
	write_u64(w, k->object);
	write_u32(w, k->tenure);
	write_u32(w, k->join);
}

static void take_key(struct reader *r, struct msg_key *k)
{
	k->object = read_u64(r);
	k->tenure = read_u32(r);
	k->join = read_u32(r);
}

static int done(const struct reader *r, bool valid)
{
	return reader_done(r) && valid ? 0 : -ERR_PROTOCOL;
}

void msg_beacon_encode(uint64_t time_us, struct writer *w)
{
	write_u64(w, time_us);
}

int msg_beacon_decode(struct reader *r, uint64_t *time_us)
{
	*time_us = read_u64(r);
	return done(r, true);
}

void msg_fence_encode(const struct msg_fence *m, struct writer *w)
{
	write_u64(w, m->object);
	write_u32(w, m->seen);
}

int msg_fence_decode(struct reader *r, struct msg_fence *out)
{
	out->object = read_u64(r);
	out->seen = read_u32(r);
	return done(r, true);
}

void msg_join_encode(const struct msg_join *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u32(w, m->gen);
	write_u8(w, (uint8_t)(m->syncing | m->unsure << 1));
	write_u8(w, (uint8_t)m->epoch_count);
	write_u16(w, m->group);
	write_u32(w, m->group_incarnation);
	put_version(w, m->last);
	put_version(w, m->commit);
	for (unsigned i = 0; i < m->epoch_count; i++) {
		write_u32(w, m->epochs[i].tenure);
		write_u64(w, m->epochs[i].first_seq);
	}
}

int msg_join_decode(struct reader *r, struct msg_join *out)
{
	uint8_t flags;
	bool valid = true;

	memset(out, 0, sizeof(*out));
	take_key(r, &out->key);
	out->gen = read_u32(r);
	flags = read_u8(r);
	out->syncing = flags & 1;
	out->unsure = flags >> 1 & 1;
	out->epoch_count = read_u8(r);
	out->group = read_u16(r);
	out->group_incarnation = read_u32(r);
	out->last = take_version(r);
	out->commit = take_version(r);
	if (flags > 3 || !out->epoch_count || out->epoch_count > EPOCHS_MAX)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < out->epoch_count; i++) {
		out->epochs[i].tenure = read_u32(r);
		out->epochs[i].first_seq = read_u64(r);
		if (i && (out->epochs[i].tenure <= out->epochs[i - 1].tenure ||
			  out->epochs[i].first_seq <= out->epochs[i - 1].first_seq))
			valid = false;
	}
	if (out->epochs[out->epoch_count - 1].tenure != out->key.tenure ||
	    version_cmp(out->last, out->commit) < 0)
		valid = false;
	return done(r, valid);
}

void msg_joined_encode(const struct msg_joined *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u8(w, m->status);
	write_u8(w, m->reason);
	write_u16(w, (uint16_t)m->fold_count);
	put_version(w, m->last);
	put_version(w, m->commit);
	for (unsigned i = 0; i < m->fold_count; i++)
		write_u64(w, m->folds[i]);
}

int msg_joined_decode(struct reader *r, struct msg_joined *out)
{
	take_key(r, &out->key);
	out->status = read_u8(r);
	out->reason = read_u8(r);
	out->fold_count = read_u16(r);
	out->last = take_version(r);
	out->commit = take_version(r);
	if (out->status > 1 || out->fold_count > MSG_FOLDS_MAX)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < out->fold_count; i++)
		out->folds[i] = read_u64(r);
	return done(r, true);
}

void msg_stale_encode(const struct msg_stale *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u32(w, m->seen);
}

int msg_stale_decode(struct reader *r, struct msg_stale *out)
{
	take_key(r, &out->key);
	out->seen = read_u32(r);
	return done(r, true);
}

void msg_replicate_encode(const struct msg_replicate *m, const struct fp128 *fps, struct writer *w)
{
	const struct record *c = &m->record;

	put_key(w, &m->key);
	write_u8(w, c->kind);
	write_u8(w, c->skip_mask);
	write_u16(w, (uint16_t)m->fp_count);
	put_version(w, c->commit);
	put_version(w, c->version);
	write_u32(w, c->block);
	write_u32(w, c->blocks);
	write_u32(w, c->attachment);
	write_u32(w, c->attach_epoch);
	write_u64(w, c->request);
	write_u64(w, c->low_water);
	if (c->kind == RECORD_COPY) {
		write_u64(w, c->copy_data);
		write_u64(w, c->copy_zero);
		write_u64(w, c->copy_hole);
		write_u64(w, c->copy_damaged);
	}
	for (unsigned i = 0; i < m->fp_count; i++) {
		write_u64(w, fps[i].lo);
		write_u64(w, fps[i].hi);
	}
	if (c->kind == RECORD_COMPLETE) {
		write_u32(w, m->retry_len);
		write_bytes(w, m->retry, m->retry_len);
	}
}

unsigned record_pages(const struct record *r)
{
	return ((r->block + r->blocks - 1) >> PAGE_SHIFT) - (r->block >> PAGE_SHIFT) + 1;
}

uint32_t record_payload_blocks(const struct record *r)
{
	uint32_t first = r->block >> PAGE_SHIFT, count = 0;

	if (r->kind == RECORD_COPY)
		return (uint32_t)__builtin_popcountll(r->copy_data);
	if (r->kind != RECORD_WRITE)
		return 0;
	if (!r->skip_mask)
		return r->blocks;
	for (uint32_t b = r->block; b < r->block + r->blocks; b++)
		count += !(r->skip_mask >> ((b >> PAGE_SHIFT) - first) & 1);
	return count;
}

/* A record is one that a primary could have sent. */
static bool record_valid(const struct record *c)
{
	uint64_t d = c->copy_data, z = c->copy_zero, h = c->copy_hole, x = c->copy_damaged;

	switch (c->kind) {
	case RECORD_WRITE:
	case RECORD_TRIM:
	case RECORD_ZEROES:
		return c->blocks >= 1 && c->blocks <= RECORD_BLOCKS_MAX &&
		       c->block < OBJECT_BLOCKS_MAX && c->blocks <= OBJECT_BLOCKS_MAX - c->block &&
		       c->version.seq && !(c->skip_mask >> record_pages(c));
	case RECORD_COPY:
		return c->blocks == PAGE_BLOCKS && c->block % PAGE_BLOCKS == 0 && !c->skip_mask &&
		       c->block < OBJECT_BLOCKS_MAX &&
		       !((d & z) | (d & h) | (d & x) | (z & h) | (z & x) | (h & x));
	case 0:
	case RECORD_COMPLETE:
		return !c->blocks && !c->block && !c->skip_mask;
	default:
		return false;
	}
}

int msg_replicate_decode(struct reader *r, uint32_t payload_len, struct msg_replicate *out)
{
	struct record *c = &out->record;

	memset(out, 0, sizeof(*out));
	take_key(r, &out->key);
	c->kind = read_u8(r);
	c->skip_mask = read_u8(r);
	out->fp_count = read_u16(r);
	c->commit = take_version(r);
	c->version = take_version(r);
	c->block = read_u32(r);
	c->blocks = read_u32(r);
	c->attachment = read_u32(r);
	c->attach_epoch = read_u32(r);
	c->request = read_u64(r);
	c->low_water = read_u64(r);
	if (c->kind == RECORD_COPY) {
		c->copy_data = read_u64(r);
		c->copy_zero = read_u64(r);
		c->copy_hole = read_u64(r);
		c->copy_damaged = read_u64(r);
	}
	if (r->bad || !record_valid(c) || out->fp_count != record_payload_blocks(c) ||
	    payload_len != out->fp_count * BLOCK_SIZE)
		return -ERR_PROTOCOL;
	out->fps = read_bytes(r, out->fp_count * 16u);
	if (c->kind == RECORD_COMPLETE) {
		out->retry_len = read_u32(r);
		if (out->retry_len > MSG_RETRY_MAX)
			return -ERR_PROTOCOL;
		out->retry = read_bytes(r, out->retry_len);
	}
	return done(r, true);
}

void msg_fps(const struct msg_replicate *m, struct fp128 *out)
{
	for (unsigned i = 0; i < m->fp_count; i++) {
		out[i].lo = get_le64(m->fps + 16 * i);
		out[i].hi = get_le64(m->fps + 16 * i + 8);
	}
}

void msg_ack_encode(const struct msg_ack *m, struct writer *w)
{
	write_u16(w, m->fill);
	write_u16(w, (uint16_t)m->credit_count);
	write_u16(w, (uint16_t)m->entry_count);
	write_u16(w, 0);
	write_u32(w, m->destage_rate);
	for (unsigned i = 0; i < m->credit_count; i++) {
		write_u16(w, m->credits[i].group);
		write_u8(w, m->credits[i].full);
		write_u8(w, 0);
		write_u64(w, m->credits[i].granted);
	}
	for (unsigned i = 0; i < m->entry_count; i++) {
		put_key(w, &m->entries[i].key);
		put_version(w, m->entries[i].durable);
		write_u32(w, m->entries[i].copies);
		write_u64(w, m->entries[i].bytes);
	}
}

int msg_ack_decode(struct reader *r, struct msg_ack *out)
{
	out->fill = read_u16(r);
	out->credit_count = read_u16(r);
	out->entry_count = read_u16(r);
	(void)read_u16(r);
	out->destage_rate = read_u32(r);
	if (r->bad || out->fill > 10000 || out->credit_count > MSG_ACK_CREDITS_MAX ||
	    out->entry_count > MSG_ACK_ENTRIES_MAX)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < out->credit_count; i++) {
		out->credits[i].group = read_u16(r);
		out->credits[i].full = read_u8(r) != 0;
		(void)read_u8(r);
		out->credits[i].granted = read_u64(r);
	}
	for (unsigned i = 0; i < out->entry_count; i++) {
		take_key(r, &out->entries[i].key);
		out->entries[i].durable = take_version(r);
		out->entries[i].copies = read_u32(r);
		out->entries[i].bytes = read_u64(r);
	}
	return done(r, true);
}

void msg_versions_encode(const struct msg_versions *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u32(w, m->region);
	write_u8(w, m->answer);
	if (!m->answer)
		return;
	write_u64(w, m->damaged);
	for (unsigned i = 0; i < REGION_PAGES; i++)
		put_version(w, m->versions[i]);
}

int msg_versions_decode(struct reader *r, struct msg_versions *out)
{
	uint8_t answer;

	memset(out, 0, sizeof(*out));
	take_key(r, &out->key);
	out->region = read_u32(r);
	answer = read_u8(r);
	out->answer = answer;
	if (answer > 1 || out->region >= MSG_FOLDS_MAX)
		return -ERR_PROTOCOL;
	if (answer) {
		out->damaged = read_u64(r);
		for (unsigned i = 0; i < REGION_PAGES; i++)
			out->versions[i] = take_version(r);
	}
	return done(r, true);
}

void msg_manifest_encode(const struct msg_manifest *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u32(w, m->page);
	write_u8(w, m->answer);
	if (!m->answer)
		return;
	put_version(w, m->version);
	write_u64(w, m->data);
	write_u64(w, m->zero);
	write_u64(w, m->hole);
	write_u64(w, m->damaged);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		if (m->data >> i & 1)
			write_u64(w, m->fp64[i]);
}

int msg_manifest_decode(struct reader *r, struct msg_manifest *out)
{
	uint8_t answer;
	bool valid = true;

	memset(out, 0, sizeof(*out));
	take_key(r, &out->key);
	out->page = read_u32(r);
	answer = read_u8(r);
	out->answer = answer;
	if (answer > 1 || out->page >= OBJECT_BLOCKS_MAX / PAGE_BLOCKS)
		return -ERR_PROTOCOL;
	if (answer) {
		out->version = take_version(r);
		out->data = read_u64(r);
		out->zero = read_u64(r);
		out->hole = read_u64(r);
		out->damaged = read_u64(r);
		valid = (out->data ^ out->zero ^ out->hole ^ out->damaged) == UINT64_MAX &&
			(out->data | out->zero | out->hole | out->damaged) == UINT64_MAX &&
			!(out->data & (out->zero | out->hole | out->damaged)) &&
			!(out->zero & (out->hole | out->damaged)) && !(out->hole & out->damaged);
		for (unsigned i = 0; i < PAGE_BLOCKS; i++)
			if (out->data >> i & 1)
				out->fp64[i] = read_u64(r);
	}
	return done(r, valid);
}

void msg_repair_read_encode(const struct msg_repair_read *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u64(w, m->ticket);
	write_u32(w, m->block);
	write_u32(w, m->blocks);
	put_version(w, m->commit);
}

int msg_repair_read_decode(struct reader *r, struct msg_repair_read *out)
{
	take_key(r, &out->key);
	out->ticket = read_u64(r);
	out->block = read_u32(r);
	out->blocks = read_u32(r);
	out->commit = take_version(r);
	return done(r, out->blocks >= 1 && out->blocks <= MSG_REPAIR_BLOCKS_MAX &&
			       out->block < OBJECT_BLOCKS_MAX &&
			       out->blocks <= OBJECT_BLOCKS_MAX - out->block);
}

void msg_repair_data_encode(const struct msg_repair_data *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u64(w, m->ticket);
	write_u8(w, m->found);
	write_u8(w, 0);
	write_u16(w, (uint16_t)m->fp_count);
	for (unsigned i = 0; i < m->fp_count; i++) {
		write_u64(w, m->fps[i].lo);
		write_u64(w, m->fps[i].hi);
	}
}

int msg_repair_data_decode(struct reader *r, uint32_t payload_len, struct msg_repair_data *out)
{
	uint8_t found;

	take_key(r, &out->key);
	out->ticket = read_u64(r);
	found = read_u8(r);
	out->found = found;
	(void)read_u8(r);
	out->fp_count = read_u16(r);
	if (found > 1 || out->fp_count > MSG_REPAIR_BLOCKS_MAX || (found && !out->fp_count) ||
	    (!found && out->fp_count) || payload_len != out->fp_count * BLOCK_SIZE)
		return -ERR_PROTOCOL;
	for (unsigned i = 0; i < out->fp_count; i++) {
		out->fps[i].lo = read_u64(r);
		out->fps[i].hi = read_u64(r);
	}
	return done(r, true);
}

void msg_damaged_encode(const struct msg_damaged *m, struct writer *w)
{
	put_key(w, &m->key);
	write_u32(w, m->page);
	write_u64(w, m->blocks);
}

int msg_damaged_decode(struct reader *r, struct msg_damaged *out)
{
	take_key(r, &out->key);
	out->page = read_u32(r);
	out->blocks = read_u64(r);
	return done(r, out->page < OBJECT_BLOCKS_MAX / PAGE_BLOCKS && out->blocks);
}
