/* SPDX-License-Identifier: Apache-2.0 */
/* Cost per 4 KiB block: destage of random and of sequential blocks, and reads back. CPU is this
 * process's own, all threads. */
#include "tests/store/tier/harness.h"

#include <sys/resource.h>
#include <time.h>

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static double cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void resident(const char *when)
{
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "VmRSS", 5))
			printf("resident %s: %s", when, line + 6);
	if (f)
		fclose(f);
}

static void bench(struct harness *h, struct model *m, const char *name, unsigned per_page,
		  unsigned batches)
{
	double wall = 0, cpu = 0;
	uint64_t blocks = 0;

	for (unsigned i = 0; i < batches; i++) {
		struct h_batch *b = h_batch_new(h, m, 0);

		for (unsigned k = 0; k < 60; k++) {
			h_batch_open_page(b, k % H_OBJECTS, (i * 10 + k / H_OBJECTS) % H_PAGES);
			for (unsigned x = 0; x < per_page; x++)
				h_batch_block(b, (i * 7 + x) % PAGE_BLOCKS,
					      3 + 2 * (rng_next(&h->rng) >> 2));
		}
		blocks += b->b.block_count;
		double w = now_us(), c = cpu_us();

		EXPECT_OK(h_batch_run(b));
		wall += now_us() - w;
		cpu += cpu_us() - c;
	}
	printf("%-32s %8.2f us wall  %8.2f us CPU per block (%u blocks)\n", name,
	       wall / (double)blocks, cpu / (double)blocks, (unsigned)blocks);
}

TEST(bench, destage)
{
	struct harness h;
	struct model *m = xcalloc(1, sizeof(*m));

	h_init(&h, "bench", 1, 512, 1);
	h.cfg.page_cache_bytes = 64u << 20;
	resident("before open");
	EXPECT_OK(h_open(&h));
	resident("idle, open and started");
	h_objects_put(&h, m);
	bench(&h, m, "whole pages, 3840 per commit", 64, 16);
	bench(&h, m, "16 per page, 960 per commit", 16, 60);
	bench(&h, m, "1 per page, 60 per commit", 1, 200);
	resident("after these");
	h.compression = true;
	bench(&h, m, "whole pages, LZ4 tried in vain", 64, 16);
	h_close(&h);
	h_fini(&h);
	free(m);
}
