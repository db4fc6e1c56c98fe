/* SPDX-License-Identifier: Apache-2.0 */
/* A whole group without one of its devices: what it still answers, how a lost page is filled again, and
 * another
 * device in the place of each kind. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/store/log/rig.h"

#define MIB   (1ull << 20)
#define PAGES 40u

static uint64_t seed_of(uint32_t block)
{
	return 1000 + block;
}

static void make(const char *path, uint64_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	EXPECT(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	close(fd);
}

struct ask {
	struct rig *r;
	struct store_folds folds;
	struct store_versions versions;
	uint64_t fold, lost, refilled;
	bool known;
};

static struct store_object *object(struct ask *a)
{
	return store_object_find(a->r->store, 0, 2, 1);
}

static int do_lost(void *arg, struct wait *w)
{
	struct ask *a = arg;

	a->known = store_loss_known(a->r->store);
	if (a->refilled)
		store_refilled(object(a), a->refilled);
	a->lost = store_lost(object(a));
	return 0;
}

static int do_folds(void *arg, struct wait *w)
{
	struct ask *a = arg;

	a->folds = (struct store_folds){.folds = &a->fold, .regions = 1};
	return store_folds(object(a), &a->folds, w);
}

static int do_versions(void *arg, struct wait *w)
{
	struct ask *a = arg;

	a->versions = (struct store_versions){.region = 0};
	return store_page_versions(object(a), &a->versions, w);
}

static bool loss_known(struct ask *a)
{
	EXPECT_OK(rig_call(a->r, 0, do_lost, a));
	return a->known;
}

/* Until the walk has ended, and what it found here has been told. */
static uint64_t wait_lost(struct rig *r)
{
	struct ask a = {.r = r};

	EXPECT_SOON(loss_known(&a));
	EXPECT_OK(rig_call(r, 0, do_lost, &a));
	return a.lost;
}

/* Every block is right, or says that it is not there. Bit per page that has a bad one. */
static uint64_t read_all(struct rig *r)
{
	CLEANUP(free_ptr) uint8_t *got = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	uint64_t pages = 0;

	for (uint32_t p = 0; p < PAGES; p++) {
		struct store_read op;
		int rc = rig_read(r, 2, p * PAGE_BLOCKS, PAGE_BLOCKS, got, &op);

		EXPECT(rc == 0 || rc == -ERR_DAMAGED);
		for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
			uint8_t want[BLOCK_SIZE];

			if (op.bad[0] >> i & 1) {
				pages |= 1ull << p;
				continue;
			}
			block_fill(want, seed_of(p), i);
			EXPECT_MEM(got + (size_t)i * BLOCK_SIZE, want, BLOCK_SIZE);
		}
	}
	return pages;
}

/* An object with one write per page, destaged in several rounds, so that both devices have some. */
static void fill(struct rig *r, const char *name, unsigned capacity, bool cache)
{
	struct object_header h = {.seen = 1, .epoch_count = 1, .epochs = {{1, 1}}};

	rig_make(r, name, capacity, cache, 192 * MIB);
	EXPECT_OK(rig_open(r, 1));
	EXPECT_OK(rig_create(r, 2, 1));
	EXPECT_OK(rig_header(r, 2, RECORD_EPOCH, &h, (struct version){0}));
	for (uint32_t p = 0; p < PAGES; p++) {
		struct record rec = rec_write(1, p + 1, p * PAGE_BLOCKS, PAGE_BLOCKS);

		EXPECT_OK(rig_append(r, 2, &rec, seed_of(p)));
		rig_commit(r, 2, 1, p + 1);
		if (p % 8 == 7)
			EXPECT_OK(rig_flush(r));
	}
	EXPECT_OK(rig_flush(r));
	EXPECT_EQ(read_all(r), 0);
}

static struct uuid uuid_of(const char *path)
{
	struct store_probe p;

	EXPECT_OK(store_probe(path, &p));
	return p.device;
}

TEST(loss, a_missing_device_costs_its_blocks_and_may_come_back)
{
	struct rig r, without;
	struct ask a = {0};
	uint64_t bad, whole, lost;
	struct store_stats st;

	fill(&r, "missing", 2, true);
	a.r = &r;
	EXPECT_OK(rig_call(&r, 0, do_folds, &a));
	whole = a.fold;
	rig_close(&r);
	without = r;
	without.names[0] = r.names[1];
	without.names[1] = r.names[2];
	without.count = 2;
	EXPECT_OK(rig_open(&without, 1));
	lost = wait_lost(&without);
	EXPECT(lost);
	bad = read_all(&without);
	EXPECT(bad && bad != (1ull << PAGES) - 1);
	store_stats(without.store, &st);
	EXPECT(st.lost_live_bytes > 0 && st.failed == 0);
	/* What it answers to its primary: the pages it must copy, though their versions are equal. */
	a.r = &without;
	EXPECT_OK(rig_call(&without, 0, do_folds, &a));
	EXPECT(a.fold != whole);
	EXPECT_OK(rig_call(&without, 0, do_versions, &a));
	EXPECT_EQ(a.versions.damaged, bad);
	EXPECT_EQ(a.versions.versions[PAGES - 1].seq, PAGES);
	/* They are copied, at the version that they have. */
	for (uint32_t p = 0; p < PAGES; p++) {
		struct record rec = {.kind = RECORD_COPY,
				     .version = {1, p + 1},
				     .block = p * PAGE_BLOCKS,
				     .blocks = PAGE_BLOCKS,
				     .copy_data = ~0ull};

		if (bad >> p & 1)
			EXPECT_OK(rig_append(&without, 2, &rec, seed_of(p)));
	}
	EXPECT_EQ(read_all(&without), 0);
	/* Filled again: a number of an older loss does not say so, this one's does. */
	a.refilled = lost + 1;
	EXPECT_OK(rig_call(&without, 0, do_lost, &a));
	EXPECT_EQ(a.lost, lost);
	a.refilled = lost;
	EXPECT_OK(rig_call(&without, 0, do_lost, &a));
	EXPECT_EQ(a.lost, 0);
	rig_close(&without); /* replayed, if they are not in the map yet, they repair too */
	EXPECT_OK(rig_open(&without, 1));
	wait_lost(&without);
	EXPECT_EQ(read_all(&without), 0);
	EXPECT_OK(rig_flush(&without));
	EXPECT_EQ(read_all(&without), 0);
	EXPECT_OK(rig_call(&without, 0, do_versions, &a));
	EXPECT_EQ(a.versions.damaged, 0);
	rig_close(&without);
	EXPECT_OK(rig_open(&without, 1));
	EXPECT_EQ(wait_lost(&without), 0);
	EXPECT_OK(rig_call(&without, 0, do_folds, &a));
	EXPECT_EQ(a.fold, whole);
	rig_close(&without);
	/* The device comes back with what it had; of that nothing is needed any more, and nothing is
	 * wrong. */
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(wait_lost(&r), 0);
	EXPECT_EQ(read_all(&r), 0);
	rig_close(&r);
}

TEST(loss, a_replaced_device_is_never_taken_back)
{
	struct rig r, now;
	struct store_device d[GROUP_DEVICES_MAX];
	struct uuid old;
	char path[700];
	uint64_t bad;

	fill(&r, "replaced", 2, true);
	old = uuid_of(r.names[0]);
	snprintf(path, sizeof(path), "%s/fresh", test_dir());
	make(path, 8 * MIB);
	EXPECT_RC(store_replace(r.store, &old, path, false), -EINVAL);
	make(path, 100 * MIB);
	EXPECT_RC(store_replace(r.store, &old, r.names[1], false), -ERR_BUSY);
	EXPECT_OK(store_replace(r.store, &old, path, false));
	EXPECT_RC(store_replace(r.store, &old, path, false), -ERR_NOT_FOUND);
	EXPECT_EQ(store_devices(r.store, d), 3);
	EXPECT(!d[0].failed && !strcmp(d[0].path, path) && d[0].size_bytes == 100 * MIB);
	bad = read_all(&r);
	EXPECT(bad);
	EXPECT(wait_lost(&r));
	rig_close(&r);
	now = r;
	now.names[0] = path;
	EXPECT_OK(rig_open(&now, 1));
	EXPECT_EQ(read_all(&now), bad);
	rig_close(&now);
	/* With the old one beside it, or in its place, the group knows who belongs to it. */
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(store_devices(r.store, d), 3);
	EXPECT_EQ(d[0].failed, -ERR_NOT_FOUND);
	EXPECT(read_all(&r) & bad);
	rig_close(&r);
}

TEST(loss, a_device_that_failed_stays_given_up)
{
	struct rig r;
	struct store_device d[GROUP_DEVICES_MAX];
	struct record rec = rec_write(1, PAGES + 1, 0, PAGE_BLOCKS);

	fill(&r, "failed", 2, true);
	device_fail(&r.store->devices[0], -EIO, "test", 0);
	EXPECT(wait_lost(&r));
	EXPECT(read_all(&r));
	EXPECT_OK(rig_append(&r, 2, &rec, seed_of(0)));
	rig_commit(&r, 2, 1, PAGES + 1);
	EXPECT_OK(rig_flush(&r)); /* and the group goes on */
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT_EQ(store_devices(r.store, d), 3);
	EXPECT_EQ(d[0].failed, -EIO);
	EXPECT(wait_lost(&r));
	rig_close(&r);
}

/* Where device_fault looks; what: "" for nothing. */
static void fault(const char *device, const char *what)
{
	char path[1400];
	FILE *f;

	snprintf(path, sizeof(path), "%s/", getenv("ASHLAR_TEST_DEVICE_FAULTS"));
	for (size_t n = strlen(path); *device && n + 1 < sizeof(path); device++, n++) {
		path[n] = *device == '/' ? '%' : *device;
		path[n + 1] = 0;
	}
	f = fopen(path, "w");
	EXPECT(f && fputs(what, f) >= 0);
	fclose(f);
}

/* A moment's write error, at work or as it opens: the group fails, and is whole when the device is. */
TEST(loss, the_last_capacity_device_is_not_given_up)
{
	struct rig r;
	struct store_device d[GROUP_DEVICES_MAX];
	struct store_stats st;
	struct record rec = rec_write(1, PAGES + 1, 0, PAGE_BLOCKS);

	setenv("ASHLAR_TEST_DEVICE_FAULTS", test_dir(), 1);
	fill(&r, "last", 1, true);
	fault(r.names[0], "write flush");
	EXPECT_OK(rig_append(&r, 2, &rec, seed_of(0))); /* the log takes it, the destager cannot */
	rig_commit(&r, 2, 1, PAGES + 1);
	(void)rig_flush(&r);
	EXPECT_SOON((store_stats(r.store, &st), st.failed));
	EXPECT_EQ(st.failed, -ERR_DEVICE);
	rig_close(&r);
	EXPECT(rig_open(&r, 1) < 0);
	fault(r.names[0], "");
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(store_devices(r.store, d), 2);
	EXPECT_EQ(d[0].failed, 0);
	EXPECT_EQ(rig_last(&r, 2).seq, PAGES + 1);
	EXPECT_EQ(read_all(&r), 0);
	EXPECT_OK(rig_flush(&r));
	EXPECT_EQ(read_all(&r), 0);
	rig_close(&r);
	unsetenv("ASHLAR_TEST_DEVICE_FAULTS");
}

struct late {
	struct wait wait;
	struct store_read op;
	uint8_t *dest;
	int rc;
};
struct lates {
	struct rig *r;
	struct late page[PAGES];
	unsigned ended;
	sem_t done;
};
static struct lates lates;

static void late_resume(struct wait *w, int rc)
{
	struct late *l = container_of(w, struct late, wait);

	l->rc = rc;
	if (++lates.ended == PAGES)
		sem_post(&lates.done);
}

/* The device fails when all reads have begun, and none goes on before the group has failed over it. */
static int do_late(void *arg, struct wait *w)
{
	struct store *s = lates.r->store;

	for (unsigned i = 0; i < PAGES; i++) {
		struct late *l = &lates.page[i];

		l->wait.resume = late_resume;
		l->op = (struct store_read){.block = i * PAGE_BLOCKS, .blocks = PAGE_BLOCKS, .dest = l->dest};
		EXPECT_RC(store_read(store_object_find(s, 0, 2, 1), &l->op, &l->wait), PENDING);
	}
	device_fail(&s->devices[0], -EIO, "test", 0);
	EXPECT_SOON(store_failed(s));
	return 0;
}

/* Else a guest would be told of a medium error, or a copy carry one on, and nothing is lost. */
TEST(loss, a_group_that_fails_is_not_taken_for_damaged)
{
	struct rig r;
	unsigned failed = 0;

	fill(&r, "late", 1, true);
	EXPECT_OK(rig_reopen(&r, 1)); /* nothing is cached */
	lates = (struct lates){.r = &r};
	sem_init(&lates.done, 0, 0);
	for (unsigned i = 0; i < PAGES; i++)
		lates.page[i].dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	EXPECT_OK(rig_call(&r, 0, do_late, NULL));
	while (sem_wait(&lates.done))
		;
	for (unsigned i = 0; i < PAGES; i++) {
		EXPECT(!lates.page[i].rc || lates.page[i].rc == -ERR_DEVICE);
		failed += lates.page[i].rc != 0;
		free(lates.page[i].dest);
	}
	EXPECT(failed);
	rig_close(&r);
	sem_destroy(&lates.done);
}

TEST(loss, a_new_cache_device_keeps_the_pages)
{
	struct rig r, now;
	struct store_identity id;
	struct store_config cfg;
	struct ask a = {0};
	struct record rec = rec_write(1, PAGES + 1, 0, PAGE_BLOCKS);
	char path[700];

	fill(&r, "cache", 2, true);
	EXPECT_OK(rig_append(&r, 2, &rec, seed_of(0) + 500)); /* in the log only */
	rig_commit(&r, 2, 1, PAGES + 1);
	rig_close(&r);
	now = r;
	now.count = 2;
	EXPECT_RC(rig_open(&now, 1), -ERR_LOG_LOST);
	cfg = (struct store_config){.devices = now.names,
				    .device_count = 2,
				    .metadata_dir = r.meta,
				    .cluster = r.cluster,
				    .node = r.node,
				    .shards = 1};
	EXPECT_RC(store_reset(&cfg, 2, true), -ERR_LOG_LOST); /* where would the log be? */
	snprintf(path, sizeof(path), "%s/newcache", test_dir());
	make(path, 64 * MIB);
	EXPECT_RC(store_replace_log(&cfg, 2, r.names[1], true), -ERR_BUSY);
	EXPECT_OK(store_replace_log(&cfg, 2, path, false));
	now.count = 3;
	now.names[2] = path;
	EXPECT_OK(rig_open(&now, 1));
	store_identity(now.store, &id);
	EXPECT_EQ(id.group_incarnation, 2);
	EXPECT_EQ(read_all(&now), 0); /* as destaged: the last write is gone with the log */
	a.r = &now;
	EXPECT_OK(rig_call(&now, 0, do_versions, &a));
	EXPECT_EQ(a.versions.versions[0].seq, 1);
	EXPECT_EQ(a.versions.damaged, 0);
	rig_close(&now);
	/* The old one is no part of it any more. */
	EXPECT_RC(rig_open(&r, 1), -ERR_LOG_LOST);
}

TEST(loss, single_tier_a_lost_device_is_a_lost_part_of_the_log)
{
	struct rig r, without;
	struct store_config cfg;
	uint64_t bad;

	fill(&r, "single", 3, false);
	rig_close(&r);
	without = r;
	without.names[0] = r.names[1];
	without.names[1] = r.names[2];
	without.count = 2;
	EXPECT_RC(rig_open(&without, 1), -ERR_LOG_LOST);
	cfg = (struct store_config){.devices = without.names,
				    .device_count = 2,
				    .metadata_dir = r.meta,
				    .cluster = r.cluster,
				    .node = r.node,
				    .shards = 1};
	EXPECT_OK(store_reset(&cfg, 2, true));
	EXPECT_OK(rig_open(&without, 1));
	EXPECT(wait_lost(&without));
	bad = read_all(&without);
	EXPECT(bad && bad != (1ull << PAGES) - 1);
	rig_close(&without);
	/* It is given up: the group began anew without it. */
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(read_all(&r), bad);
	rig_close(&r);
}
