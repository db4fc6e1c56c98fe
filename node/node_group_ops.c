/* SPDX-License-Identifier: Apache-2.0 */
/* What people have a disk group do: destage everything, reduce it too, or verify its map. A flush belongs
 * to a shard's loop and comes back from there; a verification runs on a worker. Reducing has no end while
 * clients write faster, and who asked for it may be gone: it is waited for some seconds, then asked for
 * again. */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/node.h"

#define SETTLE_US 10000000u

struct group_flush {
	struct post there, back, scratch;
	struct wait flushed, *owner;
	struct node *node;
	struct store *store;
	bool reduce; /* when it is destaged */
	int rc;
};

static void flush_back(struct post *p)
{
	struct group_flush *f = container_of(p, struct group_flush, back);
	struct wait *owner = f->owner;
	int rc = f->rc;

	free(f);
	wait_resume(owner, rc);
}

static void on_flushed(struct wait *w, int rc)
{
	struct group_flush *f = container_of(w, struct group_flush, flushed);

	if (!rc && f->reduce) {
		f->reduce = false;
		rc = store_settle(f->store, 0, SETTLE_US, &f->flushed);
		if (rc == PENDING)
			return;
	}
	f->rc = rc;
	loop_post(f->node->loop, &f->back);
}

static void flush_there(struct post *p)
{
	struct group_flush *f = container_of(p, struct group_flush, there);
	int rc = store_flush(f->store, 0, &f->scratch, &f->flushed);

	if (rc != PENDING)
		on_flushed(&f->flushed, rc);
}

int node_group_flush(void *node, uint16_t group, bool reduce, struct wait *w)
{
	struct node *n = node;
	struct store *s = node_group_store(n, group);
	struct group_flush *f;

	if (!s)
		return -ERR_UNAVAILABLE;
	f = xcalloc(1, sizeof(*f));
	*f = (struct group_flush){.there.fn = flush_there,
				  .back.fn = flush_back,
				  .flushed.resume = on_flushed,
				  .owner = w,
				  .node = n,
				  .store = s,
				  .reduce = reduce};
	loop_post(n->shards[0].loop, &f->there);
	return PENDING;
}

struct group_verify {
	struct work work;
	struct wait done, *owner;
	struct node *node;
	uint16_t group;
	struct store *store;
	struct store_verify *out;
};

static int verify_blocking(struct work *w)
{
	struct group_verify *v = container_of(w, struct group_verify, work);

	return store_verify(v->store, v->out);
}

static void on_verified(struct wait *w, int rc)
{
	struct group_verify *v = container_of(w, struct group_verify, done);
	struct wait *owner = v->owner;

	node_group_used(v->node, v->group, -1);
	free(v);
	wait_resume(owner, rc);
}

int node_group_verify(void *node, uint16_t group, struct store_verify *out, struct wait *w)
{
	struct node *n = node;
	struct store *s = node_group_store(n, group);
	struct group_verify *v;

	if (!s)
		return -ERR_UNAVAILABLE;
	v = xcalloc(1, sizeof(*v));
	*v = (struct group_verify){.work.run = verify_blocking,
				   .done.resume = on_verified,
				   .owner = w,
				   .node = n,
				   .group = group,
				   .store = s,
				   .out = out};
	node_group_used(n, group, 1);
	return worker_submit(n->workers, n->loop, &v->work, &v->done);
}
