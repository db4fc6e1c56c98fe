/* SPDX-License-Identifier: Apache-2.0 */
/* `struct raft_io`: what libraft asks of the world. Writes form one ordered queue whose callbacks
 * fire strictly first in, first out; set_term and set_vote are durable before they return; a
 * message is sent (or refused) at once and its callback fires in the next turn. Nothing here calls
 * back from inside a call, and send never returns an error: libraft would free its request twice.
 */
#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_impl.h"
#include "cluster/consensus_message.h"
#include "node/base/err.h"
#include "node/base/log.h"
#include "node/loop/failpoint.h"

/* libraft compares times of 0 with now: start well above. */
#define CLOCK_BASE_MS 3600000u

void consensus_enter(struct consensus *c)
{
	CHECK(!c->inside);
	c->inside = true;
}

void consensus_leave(struct consensus *c)
{
	CHECK(c->inside);
	c->inside = false;
}

void consensus_turn(struct consensus *c)
{
	if (c->turn_due || c->dead)
		return;
	c->turn_due = true;
	c->env->ops->turn(c->env);
}

void consensus_fatal(struct consensus *c, const char *why)
{
	if (c->dead)
		return;
	c->dead = true;
	c->env->ops->fatal(c->env, why);
}

uint64_t consensus_now_ms(struct consensus *c)
{
	return CLOCK_BASE_MS + c->env->ops->now_us(c->env) / 1000 + c->jump_ms;
}

static struct consensus *of(struct raft_io *io)
{
	return io->impl;
}

/* ---- Start ---- */

static int io_init(struct raft_io *io, raft_id id, const char *address)
{
	return 0;
}

static int io_start(struct raft_io *io, unsigned msecs, raft_io_tick_cb tick, raft_io_recv_cb recv)
{
	of(io)->tick = tick;
	of(io)->recv = recv;
	return 0;
}

/* libraft frees what load gives with raft_free, which is free: raft_heap_set is never called. */
static int load_snapshot(struct consensus *c, struct raft_disk_image *image,
			 struct raft_snapshot **out)
{
	const struct raft_disk_snapshot *from = &image->snapshot;
	struct raft_snapshot *s = xcalloc(1, sizeof(*s));
	struct raft_configuration copy;
	int rc = configuration_decode(from->conf, from->conf_len, &s->configuration);

	if (rc < 0) {
		free(s);
		return rc;
	}
	CHECK(configuration_copy(&s->configuration, &copy) == 0);
	view_set_snapshot(&c->view, from->index, from->term, &copy);
	s->index = from->index;
	s->term = from->term;
	s->configuration_index = from->conf_index;
	s->bufs = xmalloc(sizeof(*s->bufs));
	s->n_bufs = 1;
	s->bufs[0].len = from->len;
	s->bufs[0].base = memcpy(xmalloc(from->len ? from->len : 1), from->data, from->len);
	c->snapshot = *from; /* kept for snapshot_get */
	memset(&image->snapshot, 0, sizeof(image->snapshot));
	*out = s;
	return 0;
}

static void load_entries(struct raft_disk_image *image, struct raft_entry **out)
{
	struct raft_entry *e = xcalloc(image->count, sizeof(*e));
	uint8_t *batch = NULL;
	size_t bytes = 1;

	/* X9: entries of one batch are freed once per request that refers to them. Each gets its
	 * own memory. (The other branch is for the test of this guard.) */
	for (size_t i = 0; i < image->count; i++)
		bytes += image->entry[i].len;
	if (!guard_on(GUARD_X9))
		batch = xmalloc(bytes);
	for (size_t i = 0; i < image->count; i++) {
		struct raft_disk_entry *from = &image->entry[i];

		e[i] = (struct raft_entry){.term = from->term,
					   .type = from->type,
					   .buf = {.base = from->data, .len = from->len}};
		if (batch) {
			e[i].buf.base = memcpy(batch, from->data, from->len);
			e[i].batch = e[0].buf.base;
			batch += from->len;
			free(from->data);
		}
		from->data = NULL;
	}
	*out = e;
}

static int io_load(struct raft_io *io, raft_term *term, raft_id *voted_for,
		   struct raft_snapshot **snapshot, raft_index *start_index,
		   struct raft_entry *entries[], size_t *n_entries)
{
	struct consensus *c = of(io);
	struct raft_disk_image image;
	int rc = c->disk->ops->load(c->disk, &image);

	if (rc < 0)
		return RAFT_CORRUPT;
	*term = image.term;
	*voted_for = image.vote;
	*snapshot = NULL;
	*entries = NULL;
	*n_entries = image.count;
	*start_index = image.first;
	view_init(&c->view, image.first);
	for (size_t i = 0; i < image.count && rc == 0; i++) {
		struct raft_entry e = {.term = image.entry[i].term,
				       .type = image.entry[i].type,
				       .buf = {image.entry[i].data, image.entry[i].len}};

		rc = view_append(&c->view, &e);
	}
	if (rc == 0 && image.has_snapshot)
		rc = load_snapshot(c, &image, snapshot);
	if (rc == 0 && image.count && !image.has_snapshot && image.entry[0].type != RAFT_CHANGE)
		rc = -ERR_CORRUPT;
	if (rc < 0) {
		log_error("raft", "the Raft log is damaged: a configuration in it cannot be read",
			  "node=%u", c->cfg.id);
		raft_disk_image_free(&image);
		return RAFT_CORRUPT;
	}
	c->view.durable = view_last(&c->view);
	if (image.count)
		load_entries(&image, entries);
	raft_disk_image_free(&image);
	return 0;
}

static int io_bootstrap(struct raft_io *io, const struct raft_configuration *conf)
{
	struct consensus *c = of(io);
	struct raft_buffer buf;
	struct raft_disk_entry e;
	int rc;

	if (configuration_encode(conf, &buf) < 0)
		return RAFT_NOMEM;
	e = (struct raft_disk_entry){
		.term = 1, .type = RAFT_CHANGE, .data = buf.base, .len = buf.len};
	rc = c->disk->ops->bootstrap(c->disk, &e);
	raft_free(buf.base);
	return rc < 0 ? RAFT_IOERR : 0;
}

static int io_recover(struct raft_io *io, const struct raft_configuration *conf)
{
	return RAFT_INVALID;
}

/* ---- Term and vote ---- */

static int io_set_term(struct raft_io *io, raft_term term)
{
	struct consensus *c = of(io);

	if (c->disk->ops->set_term(c->disk, term) < 0) {
		c->failed = "the term cannot be written";
		return RAFT_IOERR;
	}
	return 0;
}

static int io_set_vote(struct raft_io *io, raft_id id)
{
	struct consensus *c = of(io);

	if (c->disk->ops->set_vote(c->disk, id) < 0) {
		c->failed = "the vote cannot be written";
		return RAFT_IOERR;
	}
	return 0;
}

/* ---- Messages ---- */

static void sent_push(struct consensus *c, struct raft_io_send *req, raft_io_send_cb cb, int status)
{
	struct send_job *j = xcalloc(1, sizeof(*j));

	j->req = req;
	j->cb = cb;
	j->status = status;
	list_push_back(&c->sent, &j->link);
	consensus_turn(c);
}

static int transmit(struct consensus *c, const struct raft_message *m)
{
	int rc;

	if (m->server_id == 0 || m->server_id > UINT16_MAX)
		return RAFT_NOCONNECTION; /* read from the wrong member of a union: no such node */
	if (consensus_resigning(c) &&
	    (m->type == RAFT_IO_APPEND_ENTRIES || m->type == RAFT_IO_INSTALL_SNAPSHOT))
		return RAFT_NOCONNECTION;
	c->scratch.len = 0;
	rc = message_encode(m, c->append_max, &c->scratch);
	if (rc < 0) {
		log_error("raft", "a message cannot be sent", "to=%llu type=%s error=%s",
			  m->server_id, message_name(m->type), err_name(rc));
		return RAFT_TOOBIG;
	}
	return c->cfg.hooks->send(c->cfg.ctx, (uint16_t)m->server_id, c->scratch.data,
				  c->scratch.len)
		       ? 0
		       : RAFT_NOCONNECTION;
}

static int io_send(struct raft_io *io, struct raft_io_send *req, const struct raft_message *message,
		   raft_io_send_cb cb)
{
	struct consensus *c = of(io);
	struct raft_message m = *message;

	if (c->closing) {
		sent_push(c, req, cb, RAFT_CANCELED);
		return 0;
	}
	if (m.type == RAFT_IO_APPEND_ENTRIES_RESULT) {
		guard_x1_clamp_echo(c, &m.append_entries_result);
		if (guard_x2_result_is_late(c, &m.append_entries_result)) {
			sent_push(c, req, cb, 0);
			return 0;
		}
	} else if (m.type == RAFT_IO_APPEND_ENTRIES) {
		guard_x12_hold_back(c, m.server_id, &m.append_entries);
	} else if (m.type == RAFT_IO_REQUEST_VOTE_RESULT) {
		guard_x10_tell_term(c, &m.request_vote_result);
	} else if (m.type == RAFT_IO_REQUEST_VOTE && guard_r5_vote_waits(c)) {
		struct send_job *j = xcalloc(1, sizeof(*j));

		j->req = req;
		j->cb = cb;
		j->message = m;
		list_push_back(&c->votes, &j->link);
		return 0;
	}
	sent_push(c, req, cb, transmit(c, &m));
	return 0;
}

void consensus_votes_release(struct consensus *c)
{
	struct list *l;

	while (!guard_r5_vote_waits(c) && (l = list_pop_front(&c->votes))) {
		struct send_job *j = list_entry(l, struct send_job, link);
		bool stale = guard_r5_vote_is_stale(c, &j->message.request_vote);

		sent_push(c, j->req, j->cb, stale ? 0 : transmit(c, &j->message));
		free(j);
	}
}

static void fire_gets(struct consensus *c, int status)
{
	struct list *l;

	while ((l = list_pop_front(&c->gets))) {
		struct get_job *j = list_entry(l, struct get_job, link);

		consensus_enter(c);
		j->cb(j->req, status == 0 ? j->snapshot : NULL, status);
		consensus_leave(c);
		if (status != 0 && j->snapshot) {
			raft_configuration_close(&j->snapshot->configuration);
			raft_free(j->snapshot->bufs[0].base);
			raft_free(j->snapshot->bufs);
			raft_free(j->snapshot);
		}
		free(j);
		if (!c->closing)
			consensus_after_call(c);
	}
}

/* Only what was there at the start: a callback may send again. */
void consensus_fire_sent(struct consensus *c)
{
	struct list now, *l;

	list_init(&now);
	list_splice_back(&now, &c->sent);
	while (!c->dead && (l = list_pop_front(&now))) {
		struct send_job *j = list_entry(l, struct send_job, link);

		consensus_enter(c);
		if (j->cb)
			j->cb(j->req, j->status);
		consensus_leave(c);
		free(j);
		consensus_after_call(c);
	}
	list_splice_back(&now, &c->sent);
	list_splice_back(&c->sent, &now);
	if (!c->dead)
		fire_gets(c, 0);
}

/* ---- The log ---- */

static struct disk_job *job_push(struct consensus *c, enum raft_write_kind kind)
{
	struct disk_job *j = xcalloc(1, sizeof(*j));

	j->w.kind = kind;
	j->term = c->raft.current_term;
	raft_configuration_init(&j->conf);
	list_push_back(&c->jobs, &j->link);
	c->writes++;
	return j;
}

static int io_append(struct raft_io *io, struct raft_io_append *req,
		     const struct raft_entry entries[], unsigned n, raft_io_append_cb cb)
{
	struct consensus *c = of(io);
	struct disk_job *j = job_push(c, RAFT_WRITE_APPEND);

	j->append = req;
	j->append_cb = cb;
	j->w.first = view_last(&c->view) + 1;
	j->w.last = j->w.first + n - 1;
	j->entry = xcalloc(n, sizeof(*j->entry));
	j->w.entry = j->entry;
	for (unsigned i = 0; i < n; i++) {
		if (entries[i].type == RAFT_CHANGE)
			configuration_zero_padding(entries[i].buf.base, entries[i].buf.len);
		j->entry[i] = (struct raft_disk_entry){.term = entries[i].term,
						       .type = (uint8_t)entries[i].type,
						       .data = entries[i].buf.base,
						       .len = entries[i].buf.len};
		/* Peers' configurations were checked when they came, ours are libraft's own. */
		CHECK(view_append(&c->view, &entries[i]) == 0);
	}
	return 0;
}

static int io_truncate(struct raft_io *io, raft_index index)
{
	struct consensus *c = of(io);
	struct disk_job *j = job_push(c, RAFT_WRITE_TRUNCATE);

	j->w.first = index;
	j->w.last = view_last(&c->view);
	view_truncate(&c->view, index);
	return 0;
}

static int io_snapshot_put(struct raft_io *io, unsigned trailing, struct raft_io_snapshot_put *req,
			   const struct raft_snapshot *s, raft_io_snapshot_put_cb cb)
{
	struct consensus *c = of(io);
	struct disk_job *j = job_push(c, RAFT_WRITE_SNAPSHOT);
	struct raft_buffer conf;

	j->put = req;
	j->put_cb = cb;
	j->trailing = trailing;
	j->wipe = trailing == 0;
	CHECK(configuration_encode(&s->configuration, &conf) == 0);
	CHECK(configuration_copy(&s->configuration, &j->conf) == 0);
	/* A copy of its own: it stays as the newest snapshot after libraft has freed its data. */
	j->w.snapshot = (struct raft_disk_snapshot){
		.index = s->index,
		.term = s->term,
		.conf_index = s->configuration_index,
		.conf = conf.base,
		.conf_len = conf.len,
		.len = s->bufs[0].len,
		.data = memcpy(xmalloc(s->bufs[0].len ? s->bufs[0].len : 1), s->bufs[0].base,
			       s->bufs[0].len),
	};
	j->w.first = c->view.first;
	if (j->wipe) {
		j->w.last = view_last(&c->view);
		c->wipes++;
		view_wipe(&c->view, s->index);
		view_set_snapshot(&c->view, s->index, s->term, &j->conf);
	} else {
		j->w.last = s->index > trailing ? s->index - trailing : 0;
	}
	return 0;
}

/* libraft has noted the index of its newest snapshot and waits for exactly that one. */
static int io_snapshot_get(struct raft_io *io, struct raft_io_snapshot_get *req,
			   raft_io_snapshot_get_cb cb)
{
	struct consensus *c = of(io);
	const struct raft_disk_snapshot *from = &c->snapshot;
	struct get_job *j = xcalloc(1, sizeof(*j));
	struct raft_snapshot *s = raft_calloc(1, sizeof(*s));

	CHECK(s && from->index);
	s->index = from->index;
	s->term = from->term;
	s->configuration_index = from->conf_index;
	CHECK(configuration_decode(from->conf, from->conf_len, &s->configuration) == 0);
	s->n_bufs = 1;
	s->bufs = raft_malloc(sizeof(*s->bufs));
	CHECK(s->bufs);
	s->bufs[0].len = from->len;
	s->bufs[0].base = raft_malloc(from->len ? from->len : 1);
	CHECK(s->bufs[0].base);
	memcpy(s->bufs[0].base, from->data, from->len);
	j->req = req;
	j->cb = cb;
	j->snapshot = s;
	list_push_back(&c->gets, &j->link);
	consensus_turn(c);
	return 0;
}

/* Everything queued becomes one write: group commit. */
void consensus_disk_kick(struct consensus *c)
{
	struct disk_job *j;
	unsigned n = 0;

	if (c->dead || list_empty(&c->jobs) || !list_empty(&c->flight))
		return;
	list_splice_back(&c->flight, &c->jobs);
	list_for_each(j, &c->flight, link)
	{
		if (n == c->batch_cap) {
			c->batch_cap = c->batch_cap ? 2 * c->batch_cap : 16;
			c->batch = xrealloc(c->batch, c->batch_cap * sizeof(*c->batch));
		}
		c->batch[n++] = j->w;
	}
	c->env->ops->write(c->env, c->batch, n);
}

static void job_free(struct disk_job *j)
{
	free(j->entry);
	raft_configuration_close(&j->conf);
	free(j->w.snapshot.conf);
	free(j->w.snapshot.data);
	free(j);
}

/* Our own view follows before libraft hears of it. */
static void job_note(struct consensus *c, struct disk_job *j, int status)
{
	switch (j->w.kind) {
	case RAFT_WRITE_APPEND:
		if (status == 0)
			c->view.durable = MIN(MAX(c->view.durable, j->w.last), view_last(&c->view));
		else
			view_truncate(&c->view, j->w.first);
		break;
	case RAFT_WRITE_SNAPSHOT:
		if (j->wipe) {
			c->wipes--;
		} else if (status == 0) {
			view_compact(&c->view, j->w.snapshot.index, j->trailing);
			view_set_snapshot(&c->view, j->w.snapshot.index, j->w.snapshot.term,
					  &j->conf);
		}
		if (status == 0) {
			free(c->snapshot.conf);
			free(c->snapshot.data);
			c->snapshot = j->w.snapshot;
			memset(&j->w.snapshot, 0, sizeof(j->w.snapshot));
			j->w.snapshot.index = c->snapshot.index;
		}
		break;
	case RAFT_WRITE_TRUNCATE:
		break;
	}
}

static void job_finish(struct consensus *c, struct disk_job *j, int status)
{
	c->writes--;
	job_note(c, j, status);
	c->late.on = true;
	c->late.term = j->term;
	c->late.last = j->w.kind == RAFT_WRITE_APPEND ? j->w.last : j->w.snapshot.index;
	consensus_enter(c);
	if (j->append_cb)
		j->append_cb(j->append, status);
	if (j->put_cb)
		j->put_cb(j->put, status);
	consensus_leave(c);
	c->late.on = false;
	job_free(j);
}

void consensus_on_written(struct consensus *c, int rc)
{
	(void)FAILPOINT(raft_durable);
	struct list done, *l;

	if (c->dead)
		return;
	/* R3, R4: libraft's handling of a failed write loses or forks entries. It never hears of
	 * one: after a restart the disk tells what it has. */
	if (rc < 0 && guard_on(GUARD_R3)) {
		consensus_fatal(c, "the Raft log cannot be written");
		return;
	}
	CHECK(!c->settling);
	c->settling = true;
	list_init(&done);
	list_splice_back(&done, &c->flight);
	while (!c->dead && (l = list_pop_front(&done))) {
		job_finish(c, list_entry(l, struct disk_job, link), rc < 0 ? RAFT_IOERR : 0);
		consensus_after_call(c);
	}
	list_splice_back(&c->flight, &done);
	c->settling = false;
	consensus_settle(c);
}

/* ---- Close ---- */

static void io_close(struct raft_io *io, raft_io_close_cb cb)
{
	of(io)->closed = cb;
}

/* Rule: every callback first, appends with 0 (libraft loses count when several are cancelled), then
 * the close callback. */
void consensus_finish_close(struct consensus *c)
{
	int status = guard_on(GUARD_CLOSE) ? 0 : RAFT_CANCELED;
	struct list *l;

	list_splice_back(&c->flight, &c->jobs);
	while ((l = list_pop_front(&c->flight)))
		job_finish(c, list_entry(l, struct disk_job, link), status);
	list_splice_back(&c->sent, &c->votes);
	while ((l = list_pop_front(&c->sent))) {
		struct send_job *j = list_entry(l, struct send_job, link);

		if (j->cb)
			j->cb(j->req, RAFT_CANCELED);
		free(j);
	}
	fire_gets(c, RAFT_CANCELED);
	c->closed(&c->io);
}

static raft_time io_time(struct raft_io *io)
{
	return consensus_now_ms(of(io));
}

static int io_random(struct raft_io *io, int min, int max)
{
	struct consensus *c = of(io);

	return (int)c->env->ops->random(c->env, (uint64_t)min, (uint64_t)max);
}

void consensus_io_init(struct consensus *c)
{
	list_init(&c->jobs);
	list_init(&c->flight);
	list_init(&c->inbox);
	list_init(&c->results);
	list_init(&c->votes);
	list_init(&c->sent);
	list_init(&c->gets);
	c->scratch = writer_init_heap();
	c->io = (struct raft_io){
		.version = 2,
		.impl = c,
		.init = io_init,
		.close = io_close,
		.load = io_load,
		.start = io_start,
		.bootstrap = io_bootstrap,
		.recover = io_recover,
		.set_term = io_set_term,
		.set_vote = io_set_vote,
		.send = io_send,
		.append = io_append,
		.truncate = io_truncate,
		.snapshot_put = io_snapshot_put,
		.snapshot_get = io_snapshot_get,
		.time = io_time,
		.random = io_random,
	};
}
