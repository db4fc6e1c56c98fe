/* SPDX-License-Identifier: Apache-2.0 */
/* What a read costs in device reads, and what a scan does to the cache. */
#include "tests/store/tier/harness.h"

static uint8_t buf[PAGE_BLOCKS * BLOCK_SIZE] __attribute__((aligned(4096)));

/* All pages of the objects written, with blocks that do not compress, and the tier opened anew. */
static void make(struct harness *h, struct model *m, const char *name, bool compression)
{
	memset(m, 0, sizeof(*m));
	h_init(h, name, 1, 160, 1);
	EXPECT_OK(h_open(h));
	h->compression = compression;
	for (unsigned o = 0; o < 2; o++) {
		m->live[o] = true;
		m->gen[o] = 1;
		EXPECT_OK(h_object_put(h, o, 1));
		for (uint32_t p = 0; p < H_PAGES; p += 40) {
			struct h_batch *b = h_batch_new(h, m, 0);

			for (uint32_t k = p; k < p + 40; k++) {
				h_batch_open_page(b, o, k);
				for (unsigned i = 0; i < PAGE_BLOCKS; i += 4)
					h_batch_block(b, i,
						      (2 + k * PAGE_BLOCKS + i) * 2 + !compression);
			}
			EXPECT_OK(h_batch_run(b));
		}
	}
	h_close(h);
	EXPECT_OK(h_open(h));
}

static void end(struct harness *h, struct model *m)
{
	h_close(h);
	h_fini(h);
	free(m);
}

static void read_blocks(struct harness *h, unsigned object, uint32_t page, unsigned first,
			unsigned count)
{
	struct map_page map;
	uint64_t bad;

	EXPECT_OK(h_page_get(h, object, page, &map));
	EXPECT_OK(h_read(h, object, page, &map, first, count, buf, NULL, &bad));
	EXPECT_EQ(bad, 0);
}

static struct store_stats stats(struct harness *h)
{
	struct store_stats s = {0};

	tier_stats(h->tier, &s);
	return s;
}

static void cold_reads(const char *name, bool compression, uint64_t bytes_max)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));

	make(&h, m, name, compression);
	for (unsigned n = 0; n < 2 * H_PAGES; n++) {
		struct store_stats a = stats(&h), b;

		/* Far apart in the map and on the device, each page once. */
		read_blocks(&h, n / H_PAGES, n * 37 % H_PAGES, n % 16 * 4, 1);
		b = stats(&h);
		EXPECT_EQ(b.map_gets - a.map_gets, 1);
		EXPECT(b.map_table_reads - a.map_table_reads <= 1);
		EXPECT_EQ(b.data_reads - a.data_reads, 1);
		EXPECT(b.device_read_bytes - a.device_read_bytes <= bytes_max);
	}
	/* The tables were read at all: the rows are not all in memory. */
	EXPECT(stats(&h).map_table_reads > 10);
	end(&h, m);
}

TEST(read, a_cold_block_is_one_read_of_the_map_and_one_of_data)
{
	cold_reads("cold", false, BLOCK_SIZE);
	cold_reads("coldlz4", true, 2 * BLOCK_SIZE);
}

/* Block i of the hot ones: they lie in pages of their own. */
static void read_hot(struct harness *h, unsigned i)
{
	read_blocks(h, 0, i / 16, i % 16 * 4, 1);
}

TEST(read, a_scan_leaves_the_hot_blocks_in_the_cache)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));
	struct store_stats a;
	const unsigned hot = 100; /* of about 240 that the cache holds */

	make(&h, m, "scan", false);
	for (unsigned i = 0; i < 2 * hot; i++)
		read_hot(&h, i % hot);
	/* One by one, ten times what fits; and as streams, which pass it by. */
	for (uint32_t p = 10; p < H_PAGES; p++)
		for (unsigned i = 0; i < PAGE_BLOCKS; i += 4)
			for (unsigned o = 0; o < 2; o++)
				read_blocks(&h, o, p, i, 1);
	for (uint32_t p = 10; p < H_PAGES; p++)
		read_blocks(&h, 1, p, 0, PAGE_BLOCKS);
	a = stats(&h);
	for (unsigned i = 0; i < hot; i++)
		read_hot(&h, i);
	EXPECT_EQ(stats(&h).data_reads, a.data_reads);
	end(&h, m);
}
