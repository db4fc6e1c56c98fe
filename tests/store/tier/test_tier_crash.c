/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 under load: whatever was reported durable is there, each page is exactly as of one batch,
 * and the recount agrees. Overwrites on a small device keep GC busy while it happens. */
#include "tests/store/tier/harness.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
	_Atomic unsigned batches;
	_Atomic uint64_t gc_blocks, matched;
	uint64_t pool;
	struct model acked;
	/* What the batch under way would make of the pages it changes. */
	_Atomic bool flying;
	unsigned count;
	struct {
		unsigned object, page;
		struct model_page after;
	} pending[16];
};

static void child(struct shared *s, const char *dir, uint64_t seed)
{
	struct harness h;

	h_attach(&h, dir, 1, 48, 1);
	rng_seed(&h.rng, seed);
	h.compression = seed % 2;
	h.mixed = s->pool != 0;
	h.pool = s->pool;
	EXPECT_OK(h_open(&h));
	for (unsigned o = 0; o < H_OBJECTS; o++)
		for (unsigned p = 0; p < H_PAGES; p++)
			h.seq = MAX(h.seq, s->acked.page[o][p].version.seq);
	h.seq += 100;
	for (unsigned turn = 0;; turn++) {
		struct h_batch *b = h_batch_new(&h, &s->acked, 0);

		for (unsigned k = 0; k < 6; k++) {
			unsigned o = (unsigned)rng_below(&h.rng, H_OBJECTS);

			/* Few pages, so that the device is full of dead blocks, not of live ones.
			 */
			h_batch_page(b, o, k * 3 + (unsigned)rng_below(&h.rng, 3), 25, false);
		}
		s->count = b->b.page_count;
		for (unsigned i = 0; i < s->count; i++) {
			s->pending[i].object = b->objects[i];
			s->pending[i].page = b->pages[i].page;
			s->pending[i].after = b->after[i];
		}
		atomic_store(&s->flying, true);
		EXPECT_OK(h_batch_run(b));
		atomic_store(&s->flying, false);
		if (turn % 8 == 0) {
			struct store_stats st = {0};

			tier_stats(h.tier, &st);
			atomic_store(&s->gc_blocks, MAX(atomic_load(&s->gc_blocks), st.gc_blocks));
			atomic_store(&s->matched,
				     MAX(atomic_load(&s->matched), st.dedup_matched_blocks));
		}
		atomic_fetch_add(&s->batches, 1);
	}
}

/* Pages of the batch that was under way are either all as before or all as after: one commit. */
static void settle(struct harness *h, struct shared *s)
{
	unsigned taken = 0;

	if (!atomic_load(&s->flying))
		return;
	for (unsigned i = 0; i < s->count; i++) {
		struct model_page *old = &s->acked.page[s->pending[i].object][s->pending[i].page];
		struct map_page p;

		EXPECT_OK(h_page_get(h, s->pending[i].object, s->pending[i].page, &p));
		if (version_eq(p.version, s->pending[i].after.version)) {
			*old = s->pending[i].after;
			taken++;
		}
	}
	EXPECT(taken == 0 || taken == s->count);
	atomic_store(&s->flying, false);
}

static void killed_under_load(const char *name, uint64_t pool)
{
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char dir[512];
	struct rng r;

	CHECK(s != MAP_FAILED);
	s->pool = pool;
	rng_seed(&r, 99);
	snprintf(dir, sizeof(dir), "%s/%s", test_dir(), name);
	for (unsigned round = 0; round < 8; round++) {
		struct harness h;
		int status;
		pid_t pid;

		if (round ==
		    0) { /* in a child of its own: threads of this process must not be forked */
			pid = fork();
			if (!pid) {
				h_init(&h, name, 1, 48, 1);
				EXPECT_OK(h_open(&h));
				for (unsigned o = 0; o < H_OBJECTS; o++) {
					s->acked.live[o] = true;
					s->acked.gen[o] = 1;
					EXPECT_OK(h_object_put(&h, o, 1));
				}
				h_close(&h);
				_exit(0);
			}
			EXPECT_EQ(waitpid(pid, &status, 0), pid);
			EXPECT_EQ(status, 0);
		}
		unsigned start = atomic_load(&s->batches),
			 want = start + (unsigned)rng_below(&r, 40) + 12;

		pid = fork();
		if (!pid)
			child(s, dir, 1000 + round);
		while (atomic_load(&s->batches) < want && waitpid(pid, &status, WNOHANG) == 0)
			usleep(100); /* the child needs the processor */
		for (uint64_t spin = rng_below(&r, 3000000); spin; spin--)
			__asm__ volatile("");
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		EXPECT(atomic_load(&s->batches) >= want);
		/* Looked at from a child, for the same reason. */
		pid = fork();
		if (!pid) {
			h_attach(&h, dir, 1, 48, 1);
			EXPECT_OK(h_open(&h));
			settle(&h, s);
			h_verify(&h, true);
			h_compare(&h, &s->acked, false);
			h_close(&h);
			h_fini(&h);
			_exit(0);
		}
		EXPECT_EQ(waitpid(pid, &status, 0), pid);
		EXPECT_EQ(status, 0);
	}
	printf("  batches=%u moved_blocks=%llu shared_blocks=%llu\n", atomic_load(&s->batches),
	       (unsigned long long)atomic_load(&s->gc_blocks),
	       (unsigned long long)atomic_load(&s->matched));
	EXPECT(atomic_load(&s->gc_blocks) > 0);
	EXPECT(!pool || atomic_load(&s->matched) > 100);
	munmap(s, sizeof(*s));
}

TEST(crash, killed_under_load_loses_nothing)
{
	killed_under_load("crash", 0);
}

/* Blocks from a pool larger than what is live: shares come and go, unshared blocks become shared.
 */
TEST(crash, killed_under_load_with_shared_blocks_and_mixed_policies)
{
	killed_under_load("crash-dedup", 2000);
}
