/* SPDX-License-Identifier: Apache-2.0 */
/* A capacity device that fails while the tier runs, is missing at open, comes back, or is replaced.
 * What was on
 * it reads as bad, never as anything else; what was not goes on; nothing of the old device is taken
 * for the new one's. */
#include "tests/store/tier/harness.h"

#include <fcntl.h>
#include <unistd.h>

static int random_batch(struct harness *h, struct model *m, unsigned pages, unsigned blocks)
{
	struct h_batch *b = h_batch_new(h, m, 0);
	static bool used[H_OBJECTS][H_PAGES];

	memset(used, 0, sizeof(used));
	while (b->b.page_count < pages) {
		unsigned o = (unsigned)rng_below(&h->rng, H_OBJECTS);
		unsigned p = (unsigned)rng_below(&h->rng, 24);

		if (used[o][p])
			continue;
		used[o][p] = true;
		h_batch_page(b, o, p, 1 + (unsigned)rng_below(&h->rng, blocks), true);
	}
	return h_batch_run(b);
}

/* Until the walk has told. The notices are posted before it is known, and calls come behind them.
 */
static void wait_known(struct harness *h)
{
	EXPECT_SOON(tier_loss_known(h->tier));
}

static void lost_objects(struct h_call *c)
{
	int n = 0;

	for (unsigned o = 0; o < H_OBJECTS; o++)
		if (tier_object_lost(c->h->tier, 0, h_object_id(o)))
			n++;
	h_done(c, n);
}

static int lost_count(struct harness *h)
{
	struct h_call c = {0};

	h_run(h, 0, &c, lost_objects);
	return c.rc;
}

/* What reads as bad must be damaged or lost by the map; a few that are may still be in the block
 * cache. */
static void expect_damage_is_what_reads_bad(struct harness *h, struct model *m)
{
	uint8_t *dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	uint64_t seen = 0;

	for (unsigned o = 0; o < H_OBJECTS; o++)
		for (uint32_t p = 0; p < H_PAGES; p++) {
			struct map_page map;
			uint64_t bad;

			if (!m->page[o][p].version.seq)
				continue;
			EXPECT_OK(h_page_get(h, o, p, &map));
			EXPECT_OK(h_read(h, o, p, &map, 0, PAGE_BLOCKS, dest, NULL, &bad));
			EXPECT(!(bad & ~tier_damage(h->tier, &map)));
			seen |= bad;
		}
	EXPECT(seen);
	free(dest);
}

static void fill(struct harness *h, struct model *m, const char *name, bool dedup)
{
	h_init(h, name, 2, 64, 1);
	h->dedup = dedup;
	h->pool = dedup ? 2500 : 0;
	EXPECT_OK(h_open(h));
	h_objects_put(h, m);
	for (unsigned i = 0; i < 6; i++)
		EXPECT_OK(random_batch(h, m, 16, 40));
	h_compare(h, m, false);
}

static void loses_at_run_time(const char *name, bool dedup)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats st;
	uint64_t damaged, limit;
	char path[64];
	int keep, ro;

	fill(&h, m, name, dedup);
	limit = tier_free_bytes(h.tier);
	/* The same file, but it can only be read from now on. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", h.cap[0].fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	keep = dup(h.cap[0].fd);
	EXPECT(ro >= 0 && keep >= 0 && dup2(ro, h.cap[0].fd) >= 0);
	for (unsigned i = 0; i < 40 && !h.cap[0].failed; i++) /* no batch sees it */
		EXPECT_OK(random_batch(&h, m, 8, 40));
	EXPECT(h.cap[0].failed);
	wait_known(&h);
	EXPECT(lost_count(&h) > 0);
	EXPECT(tier_free_bytes(h.tier) < limit);
	damaged = h_compare(&h, m, true);
	EXPECT(damaged > 0);
	expect_damage_is_what_reads_bad(&h, m);
	h_verify(&h, false);
	tier_stats(h.tier, &st);
	EXPECT(st.lost_live_bytes > 0);
	/* It goes on, GC too, and never takes the lost device for room. */
	for (unsigned i = 0; i < 30; i++)
		EXPECT_OK(random_batch(&h, m, 4, 30));
	EXPECT(h_compare(&h, m, true) < damaged);
	h_verify(&h, false);
	h_close(&h);
	/* Opened without it: the same. */
	EXPECT_OK(h_open(&h));
	wait_known(&h);
	h_compare(&h, m, true);
	EXPECT_OK(random_batch(&h, m, 8, 40));
	h_verify(&h, false);
	h_close(&h);
	/* It comes back: all that it had is there. */
	EXPECT(dup2(keep, h.cap[0].fd) >= 0);
	h.cap[0].failed = 0;
	EXPECT_OK(h_open(&h));
	h_compare(&h, m, false);
	h_verify(&h, true);
	EXPECT_EQ(lost_count(&h), 0);
	h_close(&h);
	close(ro);
	close(keep);
	h_fini(&h);
	free(m);
}

TEST(loss, a_device_that_fails_costs_its_blocks_only)
{
	loses_at_run_time("fail", false);
}

TEST(loss, a_device_that_fails_costs_its_shared_blocks_too)
{
	loses_at_run_time("faildedup", true);
}

static int published(void *arg)
{
	++*(unsigned *)arg;
	return 0;
}

static void replaces(const char *name, bool dedup, uint64_t size)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct device fresh;
	uint64_t damaged, free_before;
	unsigned calls = 0;
	char path[700];
	int fd;

	fill(&h, m, name, dedup);
	device_fail(&h.cap[0], -EIO, "test", 0);
	tier_device_failed(h.tier);
	wait_known(&h);
	damaged = h_compare(&h, m, true);
	EXPECT(damaged > 0);
	free_before = tier_free_bytes(h.tier);
	snprintf(path, sizeof(path), "%s/fresh", h.dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	EXPECT(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	close(fd);
	EXPECT_OK(device_open(&fresh, path, false, false));
	fresh.sb = h.cap[0].sb;
	fresh.sb.size = fresh.size;
	fresh.sb.data_len = round_down(fresh.size - 16384, fresh.sb.segment_size);
	EXPECT_OK(tier_replace(h.tier, h.cap[0].sb.index, &fresh, published, &calls));
	EXPECT_EQ(calls, 1);
	EXPECT(!h.cap[0].failed && fresh.failed);
	wait_known(&h);
	EXPECT(tier_free_bytes(h.tier) > free_before);
	EXPECT(h_compare(&h, m, true) >= damaged); /* the cache had some of them */
	h_verify(&h, true);
	for (unsigned i = 0; i < 40; i++)
		EXPECT_OK(random_batch(&h, m, 6, 40));
	EXPECT(h_compare(&h, m, true) < damaged);
	h_verify(&h, true);
	h_close(&h);
	EXPECT_OK(h_open(&h));
	h_compare(&h, m, true);
	h_verify(&h, true);
	EXPECT_EQ(lost_count(&h), 0);
	EXPECT_RC(tier_replace(h.tier, h.cap[0].sb.index, &fresh, published, &calls), -ERR_BUSY);
	h_close(&h);
	device_close(&fresh);
	h_fini(&h);
	free(m);
}

TEST(loss, another_device_takes_the_place)
{
	replaces("replace", false, (64u << 20) + 16384);
}

TEST(loss, a_smaller_device_takes_the_place_and_shares_go)
{
	replaces("replacesmall", true, (12u << 20) + 16384);
}

TEST(loss, a_larger_device_takes_the_place)
{
	replaces("replacelarge", false, (90u << 20) + 16384);
}
