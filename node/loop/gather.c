/* SPDX-License-Identifier: Apache-2.0 */
/* Reads side by side through a ring of the calling thread's own. A read that the ring gives back
 * short or interrupted is finished by pread: that is rare, and there one rule is enough. */
#include "node/loop/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "node/base/check.h"
#include "node/loop/loop_impl.h"

struct gather {
	struct io_uring ring;
	bool has_ring;
	unsigned depth;
};

struct gather *gather_create(unsigned depth)
{
	struct gather *g = xcalloc(1, sizeof(*g));

	CHECK(depth);
	g->depth = depth;
	g->has_ring = io_uring_queue_init(depth, &g->ring, IORING_SETUP_CLAMP) == 0;
	return g;
}

void gather_destroy(struct gather *g)
{
	if (!g)
		return;
	if (g->has_ring)
		io_uring_queue_exit(&g->ring);
	free(g);
}

static void read_rest(struct gather_read *r, size_t done)
{
	r->rc = 0;
	while (done < r->len) {
		ssize_t n = pread(r->fd, (uint8_t *)r->data + done, r->len - done,
				  (off_t)(r->off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			r->rc = n ? -errno : -ENODATA;
			return;
		}
		done += (size_t)n;
	}
}

static void take(struct gather_read *r, int res)
{
	if (res == -EINTR || res == -EAGAIN)
		res = 0;
	if (res < 0)
		r->rc = res;
	else
		read_rest(r, (size_t)res);
}

/* Hands over what is queued and takes what is done, waiting for one if it can; how many. */
static unsigned turn(struct gather *g)
{
	int rc = io_uring_submit_and_wait(&g->ring, 1);
	struct io_uring_cqe *cqe;
	unsigned n = 0;

	/* Short of memory, or the kernel wants its answers taken first: the next turn. */
	CHECK(rc >= 0 || rc == -EBUSY || rc == -EAGAIN || rc == -EINTR);
	while (io_uring_peek_cqe(&g->ring, &cqe) == 0) {
		take(io_uring_cqe_get_data(cqe), cqe->res);
		io_uring_cqe_seen(&g->ring, cqe);
		n++;
	}
	return n;
}

void gather_run(struct gather *g, struct gather_read *reads, unsigned n)
{
	unsigned busy = 0;

	for (unsigned i = 0; i < n; i++) {
		struct gather_read *r = &reads[i];
		struct io_uring_sqe *sqe;

		/* Nothing is won by a ring where a read is a copy. */
		if (n == 1 || !g->has_ring || io_in_memory(r->fd)) {
			read_rest(r, 0);
			continue;
		}
		while (busy >= g->depth || !(sqe = io_uring_get_sqe(&g->ring)))
			busy -= turn(g);
		io_uring_prep_read(sqe, r->fd, r->data, (unsigned)r->len, r->off);
		io_uring_sqe_set_data(sqe, r);
		busy++;
	}
	while (busy)
		busy -= turn(g);
}
