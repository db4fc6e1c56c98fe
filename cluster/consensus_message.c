/* SPDX-License-Identifier: Apache-2.0 */
/* libraft's messages as bytes. libraft trusts what it is given: a term of 0, a CHANGE entry that
 * does not decode or an index that wraps would be undefined behaviour there, so they end here. */
#include "cluster/consensus_message.h"

#include <stdbool.h>
#include <string.h>

#include "cluster/consensus_guards.h"
#include "node/base/err.h"

#define ENTRY_HEADER_BYTES 13u

const char *message_name(unsigned type)
{
	static const char *const name[] = {"?",           "append",   "append-result", "vote",
					   "vote-result", "snapshot", "timeout-now"};

	return name[type < ARRAY_LEN(name) ? type : 0];
}

/* ---- Configurations ---- */

/* The padding goes to disk and to peers: not with bytes of our heap. */
void configuration_zero_padding(void *data, size_t len)
{
	struct reader r = reader_init(data, len);
	uint64_t n;

	(void)read_u8(&r);
	n = read_u64(&r);
	for (uint64_t i = 0; i < n && !r.bad; i++) {
		const uint8_t *nul;

		(void)read_u64(&r);
		nul = reader_left(&r) ? memchr(r.p, 0, reader_left(&r)) : NULL;
		(void)read_bytes(&r, nul ? (size_t)(nul - r.p) + 2 : SIZE_MAX);
	}
	if (!r.bad)
		memset((uint8_t *)data + len - reader_left(&r), 0, reader_left(&r));
}

int configuration_encode(const struct raft_configuration *c, struct raft_buffer *out)
{
	if (raft_configuration_encode(c, out) != 0)
		return -ENOMEM;
	configuration_zero_padding(out->base, out->len);
	return 0;
}

int configuration_decode(const void *data, size_t len, struct raft_configuration *out)
{
	struct reader r = reader_init(data, len);
	uint8_t version = read_u8(&r);
	uint64_t n = read_u64(&r);

	raft_configuration_init(out);
	if (r.bad || version != 1 || n == 0 || n > MESSAGE_MEMBERS_MAX)
		return -ERR_CORRUPT;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t id = read_u64(&r);
		const char *address = (const char *)r.p;
		const void *nul = reader_left(&r) ? memchr(r.p, 0, reader_left(&r)) : NULL;
		uint8_t role;

		if (r.bad || !nul || id == 0)
			goto bad;
		(void)read_bytes(&r, (size_t)((const char *)nul - address) + 1);
		role = read_u8(&r);
		if (r.bad || role > RAFT_SPARE ||
		    raft_configuration_add(out, id, address, role) != 0)
			goto bad;
	}
	if (reader_left(&r) < 8) /* padding */
		return 0;
bad:
	raft_configuration_close(out);
	raft_configuration_init(out);
	return -ERR_CORRUPT;
}

int configuration_copy(const struct raft_configuration *from, struct raft_configuration *to)
{
	raft_configuration_init(to);
	for (unsigned i = 0; i < from->n; i++) {
		const struct raft_server *s = &from->servers[i];

		if (raft_configuration_add(to, s->id, s->address, s->role) != 0)
			return -ENOMEM;
	}
	return 0;
}

bool configuration_equal(const struct raft_configuration *a, const struct raft_configuration *b)
{
	if (a->n != b->n)
		return false;
	for (unsigned i = 0; i < a->n; i++) {
		const struct raft_server *x = &a->servers[i], *y = &b->servers[i];

		if (x->id != y->id || x->role != y->role || strcmp(x->address, y->address))
			return false;
	}
	return true;
}

const struct raft_server *configuration_get(const struct raft_configuration *c, uint64_t id)
{
	for (unsigned i = 0; i < c->n; i++)
		if (c->servers[i].id == id)
			return &c->servers[i];
	return NULL;
}

unsigned configuration_voters(const struct raft_configuration *c)
{
	unsigned n = 0;

	for (unsigned i = 0; i < c->n; i++)
		n += c->servers[i].role == RAFT_VOTER;
	return n;
}

/* ---- Encoding ---- */

static void encode_append(const struct raft_append_entries *a, size_t append_max, struct writer *w)
{
	unsigned n = 0;
	uint64_t commit = a->leader_commit;

	for (size_t bytes = 0; n < a->n_entries && n < MESSAGE_ENTRIES_MAX; n++) {
		bytes += ENTRY_HEADER_BYTES + a->entries[n].buf.len;
		if (bytes > append_max && n > 0)
			break;
	}
	/* A receiver commits up to min(leader commit, its last stored): beyond what this message
	 * vouches for, its own entries may be others. */
	if (n < a->n_entries && commit > a->prev_log_index + n && guard_on(GUARD_CUT))
		commit = a->prev_log_index + n;
	write_u64(w, a->term);
	write_u64(w, a->prev_log_index);
	write_u64(w, a->prev_log_term);
	write_u64(w, commit);
	write_u32(w, n);
	for (unsigned i = 0; i < n; i++) {
		const struct raft_entry *e = &a->entries[i];

		write_u64(w, e->term);
		write_u8(w, (uint8_t)e->type);
		write_u32(w, (uint32_t)e->buf.len);
		write_bytes(w, e->buf.base, e->buf.len);
	}
}

static int encode_snapshot(const struct raft_install_snapshot *s, struct writer *w)
{
	struct raft_buffer conf;

	if (s->data.len > MESSAGE_SNAPSHOT_BYTES_MAX)
		return -ERR_LIMIT;
	if (configuration_encode(&s->conf, &conf) < 0)
		return -ENOMEM;
	write_u64(w, s->term);
	write_u64(w, s->last_index);
	write_u64(w, s->last_term);
	write_u64(w, s->conf_index);
	write_u32(w, (uint32_t)conf.len);
	write_bytes(w, conf.base, conf.len);
	write_u32(w, (uint32_t)s->data.len);
	write_bytes(w, s->data.base, s->data.len);
	raft_free(conf.base);
	return 0;
}

int message_encode(const struct raft_message *m, size_t append_max, struct writer *w)
{
	write_u16(w, MESSAGE_VERSION);
	write_u16(w, m->type);
	switch (m->type) {
	case RAFT_IO_APPEND_ENTRIES:
		encode_append(&m->append_entries, append_max, w);
		break;
	case RAFT_IO_APPEND_ENTRIES_RESULT:
		write_u64(w, m->append_entries_result.term);
		write_u64(w, m->append_entries_result.rejected);
		write_u64(w, m->append_entries_result.last_log_index);
		break;
	case RAFT_IO_REQUEST_VOTE:
		write_u64(w, m->request_vote.term);
		write_u64(w, m->request_vote.candidate_id);
		write_u64(w, m->request_vote.last_log_index);
		write_u64(w, m->request_vote.last_log_term);
		write_u8(w, m->request_vote.disrupt_leader);
		write_u8(w, m->request_vote.pre_vote);
		break;
	case RAFT_IO_REQUEST_VOTE_RESULT:
		write_u64(w, m->request_vote_result.term);
		write_u8(w, m->request_vote_result.vote_granted);
		write_u8(w, (uint8_t)m->request_vote_result.pre_vote);
		break;
	case RAFT_IO_INSTALL_SNAPSHOT:
		return encode_snapshot(&m->install_snapshot, w);
	case RAFT_IO_TIMEOUT_NOW:
		write_u64(w, m->timeout_now.term);
		write_u64(w, m->timeout_now.last_log_index);
		write_u64(w, m->timeout_now.last_log_term);
		break;
	default:
		return -ERR_PROTOCOL;
	}
	return w->bad ? -ENOMEM : 0;
}

/* ---- Decoding ---- */

/* The entries once through: their count is right and they make sense. Gives the payload's size. */
static bool entries_valid(struct reader r, uint32_t n, const struct raft_append_entries *a,
			  size_t *payload)
{
	uint64_t term = a->prev_log_term;

	*payload = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t t = read_u64(&r);
		uint8_t type = read_u8(&r);
		uint32_t len = read_u32(&r);
		const void *data = read_bytes(&r, len);

		/* Terms never fall along a log, and none is above its leader's. */
		if (r.bad || t == 0 || t < term || t > a->term || type < RAFT_COMMAND ||
		    type > RAFT_CHANGE)
			return false;
		if (type == RAFT_CHANGE) {
			struct raft_configuration conf;

			if (configuration_decode(data, len, &conf) < 0)
				return false;
			raft_configuration_close(&conf);
		}
		term = t;
		*payload += len;
	}
	return reader_done(&r);
}

static int decode_append(struct reader *r, struct raft_append_entries *a)
{
	uint32_t n;
	size_t payload;
	uint8_t *batch;

	a->term = read_u64(r);
	a->prev_log_index = read_u64(r);
	a->prev_log_term = read_u64(r);
	a->leader_commit = read_u64(r);
	n = read_u32(r);
	if (r->bad || a->term == 0 || n > MESSAGE_ENTRIES_MAX ||
	    a->prev_log_index > UINT64_MAX / 2 ||
	    (a->prev_log_index == 0) != (a->prev_log_term == 0) || a->prev_log_term > a->term ||
	    !entries_valid(*r, n, a, &payload))
		return -ERR_PROTOCOL;
	a->n_entries = n;
	a->entries = NULL;
	if (n == 0)
		return 0;
	a->entries = raft_malloc(n * sizeof(*a->entries));
	batch = raft_malloc(payload ? payload : 1);
	CHECK(a->entries && batch);
	for (uint32_t i = 0; i < n; i++) {
		struct raft_entry *e = &a->entries[i];

		e->term = read_u64(r);
		e->type = read_u8(r);
		e->buf.len = read_u32(r);
		e->buf.base = batch;
		e->batch = a->entries[0].buf.base;
		read_copy(r, batch, e->buf.len);
		batch += e->buf.len;
	}
	return 0;
}

static int decode_snapshot(struct reader *r, struct raft_install_snapshot *s)
{
	const void *conf, *data;
	uint32_t conf_len, len;

	s->term = read_u64(r);
	s->last_index = read_u64(r);
	s->last_term = read_u64(r);
	s->conf_index = read_u64(r);
	conf_len = read_u32(r);
	conf = read_bytes(r, conf_len);
	len = read_u32(r);
	data = read_bytes(r, len);
	if (!reader_done(r) || s->term == 0 || s->last_term == 0 || s->last_term > s->term ||
	    s->last_index == 0 || s->last_index > UINT64_MAX / 2 || s->conf_index > s->last_index ||
	    len > MESSAGE_SNAPSHOT_BYTES_MAX || configuration_decode(conf, conf_len, &s->conf) < 0)
		return -ERR_PROTOCOL;
	s->data.base = raft_malloc(len ? len : 1);
	CHECK(s->data.base);
	s->data.len = len;
	if (len)
		memcpy(s->data.base, data, len);
	return 0;
}

static int decode_body(struct reader *r, uint16_t from, struct raft_message *out)
{
	uint8_t a = 0, b = 0;
	uint64_t term;

	switch (out->type) {
	case RAFT_IO_APPEND_ENTRIES:
		return decode_append(r, &out->append_entries);
	case RAFT_IO_INSTALL_SNAPSHOT:
		return decode_snapshot(r, &out->install_snapshot);
	case RAFT_IO_APPEND_ENTRIES_RESULT:
		out->append_entries_result.term = term = read_u64(r);
		out->append_entries_result.rejected = read_u64(r);
		out->append_entries_result.last_log_index = read_u64(r);
		break;
	case RAFT_IO_REQUEST_VOTE:
		out->request_vote.term = term = read_u64(r);
		out->request_vote.candidate_id = read_u64(r);
		out->request_vote.last_log_index = read_u64(r);
		out->request_vote.last_log_term = read_u64(r);
		out->request_vote.disrupt_leader = (a = read_u8(r)) != 0;
		out->request_vote.pre_vote = (b = read_u8(r)) != 0;
		if (out->request_vote.candidate_id != from || a > 1 || b > 1)
			return -ERR_PROTOCOL;
		break;
	case RAFT_IO_REQUEST_VOTE_RESULT:
		out->request_vote_result.term = term = read_u64(r);
		out->request_vote_result.vote_granted = (a = read_u8(r)) != 0;
		out->request_vote_result.pre_vote = (raft_tribool)(b = read_u8(r));
		if (a > 1 || b > raft_tribool_false)
			return -ERR_PROTOCOL;
		break;
	case RAFT_IO_TIMEOUT_NOW:
		out->timeout_now.term = term = read_u64(r);
		out->timeout_now.last_log_index = read_u64(r);
		out->timeout_now.last_log_term = read_u64(r);
		break;
	default:
		return -ERR_PROTOCOL;
	}
	/* A vote's result may be of term 0: a newcomer that has seen no term yet. */
	return reader_done(r) && term <= UINT64_MAX / 2 ? 0 : -ERR_PROTOCOL;
}

int message_decode(const void *data, size_t len, uint16_t from, struct raft_message *out)
{
	struct reader r = reader_init(data, len);
	uint16_t version = read_u16(&r);

	memset(out, 0, sizeof(*out));
	out->type = read_u16(&r);
	if (r.bad)
		return -ERR_PROTOCOL;
	if (version != MESSAGE_VERSION)
		return -ERR_VERSION;
	return decode_body(&r, from, out);
}

void message_free(struct raft_message *m)
{
	if (m->type == RAFT_IO_APPEND_ENTRIES && m->append_entries.entries) {
		raft_free(m->append_entries.entries[0].batch);
		raft_free(m->append_entries.entries);
		m->append_entries.entries = NULL;
	} else if (m->type == RAFT_IO_INSTALL_SNAPSHOT) {
		raft_configuration_close(&m->install_snapshot.conf);
		raft_free(m->install_snapshot.data.base);
	}
	m->type = 0;
}
