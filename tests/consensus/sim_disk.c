/* SPDX-License-Identifier: Apache-2.0 */
/* A disk in memory. A write that holds an append or a snapshot is durable when it ends; a
 * truncation alone is not, until something later is synced. */
#include "tests/consensus/sim.h"

#include <stdlib.h>
#include <string.h>

static struct sim_disk *of(struct raft_disk *d)
{
	return container_of(d, struct sim_disk, disk);
}

static void *copy(const void *p, size_t n)
{
	return memcpy(xmalloc(n ? n : 1), n ? p : "", n);
}

static uint64_t last(const struct raft_disk_image *i)
{
	return i->first + i->count - 1;
}

static void cut(struct sim_disk *d, uint64_t first, uint64_t to)
{
	struct raft_disk_image *i = &d->image;

	if (to < first || i->count == 0)
		return;
	if (first <= i->first) { /* the front, or all */
		while (i->count && i->first <= to) {
			free(i->entry[0].data);
			i->count--;
			i->first++;
			memmove(i->entry, i->entry + 1, i->count * sizeof(*i->entry));
		}
		return;
	}
	while (i->count && last(i) >= first)
		free(i->entry[--i->count].data);
}

static void apply(struct sim_disk *d, const struct raft_write *w)
{
	struct raft_disk_image *i = &d->image;

	switch (w->kind) {
	case RAFT_WRITE_TRUNCATE:
		cut(d, w->first, w->last);
		break;
	case RAFT_WRITE_APPEND:
		if (i->count == 0)
			i->first = w->first;
		CHECK(w->first <= last(i) + 1); /* no holes */
		cut(d, w->first, UINT64_MAX);
		for (uint64_t k = w->first; k <= w->last; k++) {
			const struct raft_disk_entry *e = &w->entry[k - w->first];

			if (i->count == d->cap) {
				d->cap = d->cap ? 2 * d->cap : 64;
				i->entry = xrealloc(i->entry, d->cap * sizeof(*i->entry));
			}
			i->entry[i->count] = *e;
			i->entry[i->count++].data = copy(e->data, e->len);
		}
		break;
	case RAFT_WRITE_SNAPSHOT:
		free(i->snapshot.conf);
		free(i->snapshot.data);
		i->has_snapshot = true;
		i->snapshot = w->snapshot;
		i->snapshot.conf = copy(w->snapshot.conf, w->snapshot.conf_len);
		i->snapshot.data = copy(w->snapshot.data, w->snapshot.len);
		cut(d, w->first, w->last);
		if (i->count == 0)
			i->first = w->snapshot.index + 1;
		break;
	}
}

static void lazy_flush(struct sim_disk *d)
{
	for (unsigned i = 0; i < d->lazy_count; i++)
		apply(d, &d->lazy[i]);
	d->lazy_count = 0;
}

static int disk_load(struct raft_disk *disk, struct raft_disk_image *out)
{
	struct sim_disk *d = of(disk);

	lazy_flush(d);
	*out = d->image;
	out->entry = xcalloc(d->image.count + 1, sizeof(*out->entry));
	for (size_t i = 0; i < d->image.count; i++) {
		out->entry[i] = d->image.entry[i];
		out->entry[i].data = copy(out->entry[i].data, out->entry[i].len);
	}
	if (out->has_snapshot) {
		out->snapshot.conf = copy(out->snapshot.conf, out->snapshot.conf_len);
		out->snapshot.data = copy(out->snapshot.data, out->snapshot.len);
	}
	return 0;
}

static int disk_set_term(struct raft_disk *disk, uint64_t term)
{
	lazy_flush(of(disk));
	of(disk)->image.term = term;
	of(disk)->image.vote = 0;
	return 0;
}

static int disk_set_vote(struct raft_disk *disk, uint64_t vote)
{
	lazy_flush(of(disk));
	of(disk)->image.vote = vote;
	return 0;
}

static int disk_bootstrap(struct raft_disk *disk, const struct raft_disk_entry *e)
{
	struct raft_write w = {.kind = RAFT_WRITE_APPEND, .first = 1, .last = 1, .entry = e};

	of(disk)->image.term = 1;
	apply(of(disk), &w);
	return 0;
}

static int disk_write(struct raft_disk *disk, const struct raft_write *w, unsigned n)
{
	struct sim_disk *d = of(disk);
	bool synced = false;

	for (unsigned i = 0; i < n; i++)
		synced |= w[i].kind != RAFT_WRITE_TRUNCATE;
	if (!synced && d->lazy_count + n <= ARRAY_LEN(d->lazy)) {
		memcpy(d->lazy + d->lazy_count, w, n * sizeof(*w));
		d->lazy_count += n;
		return 0;
	}
	lazy_flush(d);
	for (unsigned i = 0; i < n; i++)
		apply(d, &w[i]);
	return 0;
}

static void disk_close(struct raft_disk *disk)
{
}

static const struct raft_disk_ops ops = {
	.load = disk_load,
	.set_term = disk_set_term,
	.set_vote = disk_set_vote,
	.bootstrap = disk_bootstrap,
	.write = disk_write,
	.close = disk_close,
};

void sim_disk_init(struct sim_disk *d)
{
	memset(d, 0, sizeof(*d));
	d->disk.ops = &ops;
	d->image.first = 1;
}

void sim_disk_fini(struct sim_disk *d)
{
	raft_disk_image_free(&d->image);
}

void sim_disk_crash(struct sim_disk *d, struct rng *r)
{
	unsigned keep = (unsigned)rng_below(r, d->lazy_count + 1);

	for (unsigned i = 0; i < keep; i++)
		apply(d, &d->lazy[i]);
	d->lazy_count = 0;
}
