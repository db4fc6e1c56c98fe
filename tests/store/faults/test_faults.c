/* SPDX-License-Identifier: Apache-2.0 */
/* Fault loops: each operation of a store is run with one thing going wrong at its k-th I/O, k = 1,
 * 2, 3 … until nothing does; after each the store is opened again and everything the model knows is
 * looked at, recounted and inspected, and it goes on. Normally k is sampled; ASHLAR_TEST_LONG=1
 * takes them all. FAULT_OP=name FAULT_KIND=name [FAULT_EVER=1] [FAULT_K=n] [SEED=n] [SAMPLES=n]
 * runs a part of it. */
#include <signal.h>
#include <unistd.h>

#include "node/base/log.h"
#include "tests/store/faults/world.h"

enum stage { FORMATTING, OPENING, RUNNING, CLOSING };

struct operation {
	const char *name;
	enum stage stage;
	int (*prepare)(struct world *w); /* the store is open; it is closed, or cut off, after it */
	int (*run)(struct world *w);
	bool cut_off;
	unsigned shards; /* OPENING: as many */
	bool compression, dedup;
	uint64_t capacity, cache;
};

static struct world W, base;
static struct vimage *image;
static const struct operation *op_now;
static uint64_t seed_now, reopened;

/* ---- Operations
 * ---------------------------------------------------------------------------------- */

static int some_writes(struct world *w, unsigned object)
{
	int rc = 0;

	for (unsigned i = 0; i < 12 && !rc && w->models[object].is == OBJ_IS; i++)
		rc = w_random(w, object, i % 4 ? 8 : 100);
	return rc;
}

static int commit_all(struct world *w)
{
	for (unsigned i = 0; i < OBJECTS; i++)
		if (w->models[i].is == OBJ_IS)
			w_commit(w, i);
	return 0;
}

static int prepare(struct world *w)
{
	int rc = 0;

	for (unsigned i = 0; i < 3 && !rc; i++)
		rc = w_create(w, i);
	if (!rc)
		rc = w_parallel(w, some_writes);
	commit_all(w);
	if (!rc)
		rc = w_flush(w);
	if (!rc)
		rc = w_parallel(w, some_writes); /* in the log only; ends uncommitted */
	return rc;
}

static int run_append(struct world *w)
{
	return w_parallel(w, some_writes);
}

static int run_flush(struct world *w)
{
	commit_all(w);
	return w_flush(w);
}

static int big_writes(struct world *w, unsigned object)
{
	int rc = 0;

	for (unsigned i = 0; i < 9 && !rc && w->models[object].is == OBJ_IS; i++) {
		rc = w_append(w, object, RECORD_WRITE, (uint32_t)rng_below(&w->rng, BLOCKS - 128),
			      128, rng_next(&w->rng) | 3);
		w_commit(w, object);
	}
	return rc;
}

/* Much is under way when it ends: the destager, releases, reads of the map. */
static int run_busy(struct world *w)
{
	int rc = w_parallel(w, big_writes);

	commit_all(w);
	return rc;
}

static int one_block(struct world *w, unsigned object)
{
	int rc = 0;

	for (unsigned i = 0; i < 6 && !rc && w->models[object].is == OBJ_IS; i++) {
		rc = w_append(w, object, RECORD_WRITE, i * 60 + object, 1, rng_next(&w->rng));
		w_commit(w, object);
	}
	return rc;
}

static int run_overwrite(struct world *w)
{
	int rc = 0;

	for (unsigned i = 0; i < 3 && !rc; i++) {
		rc = w_parallel(w, one_block);
		if (!rc)
			rc = w_flush(w);
	}
	return rc;
}

static int trims(struct world *w, unsigned object)
{
	int rc = 0;

	for (unsigned i = 0; i < 5 && !rc && w->models[object].is == OBJ_IS; i++) {
		rc = w_append(w, object, i % 2 ? RECORD_ZEROES : RECORD_TRIM, i * 61, 100, 0);
		w_commit(w, object);
	}
	return rc;
}

static int run_trim(struct world *w)
{
	int rc = w_parallel(w, trims);

	return rc ? rc : w_flush(w);
}

static int run_delete(struct world *w)
{
	int rc = run_flush(w);

	if (!rc)
		rc = w_delete(w, 1);
	if (!rc)
		rc = w_flush(w);
	if (!rc)
		rc = w_create(w, 1); /* another generation, while the old one goes */
	if (!rc)
		rc = some_writes(w, 1);
	return rc;
}

static int run_header(struct world *w)
{
	int rc = w_epoch(w, 0);

	if (!rc)
		rc = w_random(w, 0, 4);
	if (!rc)
		rc = w_cut(w, 0);
	if (!rc)
		rc = w_random(w, 0, 4);
	if (!rc)
		rc = w_cut(w, 1);
	if (!rc)
		rc = w_epoch(w, 1);
	return rc;
}

static int run_fill(struct world *w)
{
	int rc = w_fill(w, 0, 3);

	if (!rc)
		rc = w_flush(w);
	return rc;
}

static int run_policy(struct world *w)
{
	int rc = 0;

	for (unsigned round = 0; round < 4 && !rc; round++) {
		for (unsigned i = 0; i < 3; i++)
			w_policy(w, i, round & 1, round & 2);
		for (unsigned i = 0; i < 3 && !rc; i++) {
			/* The same few blocks again and again, in all objects. */
			rc = w_append(w, i, RECORD_WRITE, 32 * round + i, 40,
				      4 * (uint64_t)(round + 1) + 2);
			if (!rc)
				rc = w_append(w, i, RECORD_WRITE, 200 + 41 * i, 20,
					      4 * (uint64_t)i + 1);
			w_commit(w, i);
		}
		if (!rc)
			rc = w_flush(w);
	}
	return rc;
}

/* Overwrites until blocks have been moved. */
static int run_gc(struct world *w)
{
	struct store_stats s = {0};
	int rc = 0;

	for (unsigned i = 0; i < 12 && !rc && !s.gc_blocks; i++) {
		rc = w_parallel(w, big_writes);
		if (!rc)
			rc = w_flush(w);
		store_stats(w->rig.store, &s);
	}
	EXPECT(rc || s.gc_blocks);
	return rc;
}

static int prepare_gc(struct world *w)
{
	int rc = prepare(w);

	for (unsigned i = 0; i < 4 && !rc; i++) {
		rc = w_parallel(w, big_writes);
		if (!rc)
			rc = w_flush(w);
	}
	return rc;
}

static const struct operation operations[] = {
	{.name = "format", .stage = FORMATTING},
	{.name = "append", .stage = RUNNING, .prepare = prepare, .run = run_append},
	{.name = "flush", .stage = RUNNING, .prepare = prepare, .run = run_flush},
	{.name = "overwrite", .stage = RUNNING, .prepare = prepare, .run = run_overwrite},
	{.name = "trim", .stage = RUNNING, .prepare = prepare, .run = run_trim},
	{.name = "delete", .stage = RUNNING, .prepare = prepare, .run = run_delete},
	{.name = "header", .stage = RUNNING, .prepare = prepare, .run = run_header},
	{.name = "fill", .stage = RUNNING, .prepare = prepare, .run = run_fill},
	{.name = "policy", .stage = RUNNING, .prepare = prepare, .run = run_policy, .dedup = true},
	{.name = "gc", .stage = RUNNING, .prepare = prepare_gc, .run = run_gc, .compression = true},
	{.name = "close", .stage = CLOSING, .prepare = prepare, .run = run_busy},
	{.name = "open", .stage = OPENING, .prepare = prepare, .cut_off = true, .shards = 2},
	{.name = "open-clean", .stage = OPENING, .prepare = prepare, .shards = 2},
	{.name = "reshard", .stage = OPENING, .prepare = prepare, .cut_off = true, .shards = 4},
	{.name = "single-tier",
	 .stage = RUNNING,
	 .prepare = prepare,
	 .run = run_overwrite,
	 .capacity = 80 * MIB,
	 .cache = 1},
};

/* ---- One run
 * ------------------------------------------------------------------------------------- */

static void on_abort(int sig)
{
	const struct plan *p = &W.plan;

	dprintf(2, "\nFAULT_OP=%s FAULT_KIND=%s%s FAULT_K=%llu SEED=%llu: ", op_now->name,
		vfault_names[p->fault], p->for_ever ? " FAULT_EVER=1" : "",
		(unsigned long long)p->k, (unsigned long long)seed_now);
	if (p->hit)
		dprintf(2, "%s %s %llu+%llu (I/O %llu)\n", vio_names[p->what.kind], p->path,
			(unsigned long long)p->what.off, (unsigned long long)p->what.len,
			(unsigned long long)p->what.number);
	else
		dprintf(2, "nothing was hit\n");
	signal(sig, SIG_DFL);
}

static void base_main(void *arg)
{
	struct world *w = arg;

	EXPECT_OK(w_format(w));
	EXPECT_OK(w_open(w, 2));
	EXPECT_OK(op_now->prepare(w));
	if (op_now->cut_off)
		vhost_power_cut(w->host);
	w_close(w);
}

static void life_main(void *arg)
{
	struct world *w = arg;
	unsigned shards = op_now->shards ? op_now->shards : 2;

	if (op_now->stage == FORMATTING) {
		world_arm(w);
		w->op_rc = w_format(w);
		world_disarm(w);
		return;
	}
	if (op_now->stage == OPENING)
		world_arm(w);
	w->open_rc = w_open(w, shards);
	if (w->open_rc) {
		EXPECT(w->plan.hit);
		return;
	}
	if (op_now->stage == RUNNING)
		world_arm(w);
	if (op_now->run)
		w->op_rc = op_now->run(w);
	if (op_now->stage == CLOSING)
		world_arm(w);
	else
		world_disarm(w);
	EXPECT(w->plan.hit || !w->op_rc);
	if (w->plan.hit)
		w_check_reads(w);
	w_close(w);
	world_disarm(w);
}

static void reset(struct world *w, bool keep_map)
{
	struct rig *r = &w->rig;
	struct store_config cfg = {.devices = r->names,
				   .device_count = r->count,
				   .metadata_dir = r->meta,
				   .cluster = r->cluster,
				   .node = r->node,
				   .shards = 2,
				   .page_cache_bytes = 1 << 20,
				   .block_cache_bytes = 1 << 20,
				   .log_index_bytes = 64u << 20};

	EXPECT_OK(store_reset(&cfg, 2, keep_map));
}

static void inspect(struct world *w, bool undamaged)
{
	FILE *out = stdout, *memory;
	char *text;
	size_t len;

	memory = open_memstream(&text, &len);
	EXPECT(memory);
	stdout = memory;
	for (unsigned i = 0; i <= w->rig.count; i++) {
		int rc = store_inspect(i < w->rig.count ? w->rig.names[i] : w->rig.meta, false);

		fflush(memory);
		if (rc && undamaged)
			test_failed(__FILE__, __LINE__, "inspect says %d of %s:\n%s", rc,
				    i < w->rig.count ? w->rig.names[i] : w->rig.meta, text);
	}
	stdout = out;
	fclose(memory);
	free(text);
}

static void check_main(void *arg)
{
	struct world *w = arg;
	int rc;

	if (op_now->stage == FORMATTING) {
		EXPECT_OK(w_format(w)); /* again, to the end */
		EXPECT_OK(w_open(w, 2));
		EXPECT_OK(prepare(w));
		w_check(w);
		w_close(w);
		return;
	}
	rc = w_open(w, 2);
	if (rc && w->lied_to) {
		EXPECT(rc == -ERR_LOG_LOST || rc == -ERR_MAP_LOST);
		reset(w, rc == -ERR_LOG_LOST);
		w->check_ended = true;
		return;
	}
	EXPECT_OK(rc);
	w_check(w);
	w_close(w);
	if (++reopened % 4 == 0)
		inspect(w, !w->lied_to);
}

/* Every thread of it waits for ever, or it ended otherwise than it should. */
static void run_process(struct world *w, const char *name, void (*fn)(void *arg), bool may_die)
{
	struct vproc *p = vproc_spawn(w->host, name, fn, w);

	simhost_run(NULL, NULL, UINT64_MAX);
	if (vproc_alive(p)) {
		simhost_dump();
		test_failed(__FILE__, __LINE__, "%s does not end", name);
	}
	EXPECT(may_die || vproc_ended(p));
	if (vproc_ended(p) && !w->plan.hit)
		EXPECT_EQ(vproc_leaked(p), 0);
}

static void load_base(struct world *w, uint64_t seed)
{
	*w = base;
	simhost_begin(seed);
	w->host = vhost_create("host");
	vhost_load(w->host, image);
	for (unsigned i = 0; i < w->rig.count; i++)
		w->rig.names[i] = w->rig.paths[i];
	rng_seed(&w->rng, seed_now);
	seed_now = seed;
}

static void make_base(const struct operation *op, uint64_t seed)
{
	op_now = op;
	seed_now = seed;
	world_begin(&W, seed, op->capacity ? op->capacity : 44 * MIB,
		    op->cache == 1 ? 0 : 36 * MIB);
	W.compression = op->compression;
	W.dedup = op->dedup;
	if (op->prepare)
		run_process(&W, "prepare", base_main, op->cut_off);
	image = vhost_save(W.host);
	simhost_end();
	base = W;
}

/* True: there was a k-th I/O. */
static bool run_one(enum vfault fault, bool for_ever, uint64_t k, uint64_t seed)
{
	load_base(&W, seed);
	W.plan = (struct plan){.fault = fault, .for_ever = for_ever, .k = k};
	world_fault(&W);
	run_process(&W, "life", life_main, k != 0);
	W.plan.armed = false;
	W.lied_to = W.plan.hit &&
		    (fault == VFAULT_LOST || fault == VFAULT_MISDIRECTED || fault == VFAULT_FLIP);
	for (unsigned i = 0; i < 2; i++) {
		run_process(&W, "check", check_main, false);
		EXPECT(W.check_ended || op_now->stage == FORMATTING);
		if (op_now->stage == FORMATTING || W.lied_to || k % 4)
			break;
	}
	simhost_end();
	return W.plan.hit;
}

/* ---- Loops
 * --------------------------------------------------------------------------------------- */

static const struct {
	enum vfault fault;
	bool for_ever;
	unsigned share; /* of the samples */
} faults[] = {
	{VFAULT_CUT_BEFORE, false, 2},  {VFAULT_CUT_DURING, false, 3}, {VFAULT_CUT_AFTER, false, 3},
	{VFAULT_KILL_BEFORE, false, 1}, {VFAULT_KILL_AFTER, false, 2}, {VFAULT_EIO, false, 2},
	{VFAULT_EIO, true, 1},          {VFAULT_ENOSPC, false, 1},     {VFAULT_LOST, false, 2},
	{VFAULT_MISDIRECTED, false, 2}, {VFAULT_FLIP, false, 2},
};

static uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *s = getenv(name);

	return s ? strtoull(s, NULL, 10) : otherwise;
}

static bool asked_for(const char *env, const char *name)
{
	const char *s = getenv(env);

	return !s || !strcmp(s, name);
}

static unsigned loop(enum vfault fault, bool for_ever, uint64_t seed, unsigned samples)
{
	uint64_t k = env_number("FAULT_K", 0), total;
	struct rng rng;
	unsigned runs = 0;

	if (k) {
		run_one(fault, for_ever, k, seed);
		return 1;
	}
	run_one(fault, for_ever, 0, seed);
	total = W.plan.seen;
	rng_seed(&rng, seed * 31 + fault);
	if (!samples || samples >= total) {
		for (k = 1; run_one(fault, for_ever, k, seed); k++)
			runs++;
		return runs;
	}
	for (runs = 0; runs < samples; runs++)
		run_one(fault, for_ever, 1 + rng_below(&rng, total), seed);
	return runs;
}

TEST(faults, each_operation_survives_each_fault_at_each_io)
{
	bool all = env_number("ASHLAR_TEST_LONG", 0);
	uint64_t seed = env_number("SEED", 1), samples = env_number("SAMPLES", 1);

	signal(SIGABRT, on_abort);
	if (!getenv("VERBOSE"))
		log_set_level(LOG_ERROR + 1);
	for (unsigned o = 0; o < ARRAY_LEN(operations); o++) {
		unsigned runs = 0;

		if (!asked_for("FAULT_OP", operations[o].name))
			continue;
		make_base(&operations[o], seed);
		for (unsigned f = 0; f < ARRAY_LEN(faults); f++) {
			if (!asked_for("FAULT_KIND", vfault_names[faults[f].fault]) ||
			    (getenv("FAULT_EVER") && !faults[f].for_ever))
				continue;
			runs += loop(faults[f].fault, faults[f].for_ever, seed,
				     all ? 0 : (unsigned)samples * faults[f].share);
		}
		vimage_free(image);
		printf("  %-12s %u runs\n", operations[o].name, runs);
		fflush(stdout);
	}
}

/* The second copy of a superblock is torn; then the next opening must not begin with the first. */
TEST(faults, two_power_cuts_in_a_row_while_opening)
{
	static const struct operation open = {
		.name = "open", .stage = OPENING, .prepare = prepare, .cut_off = true, .shards = 2};

	signal(SIGABRT, on_abort);
	if (!getenv("VERBOSE"))
		log_set_level(LOG_ERROR + 1);
	make_base(&open, env_number("SEED", 1));
	for (uint64_t i = 0; i < 4 * 4 * 30; i++) {
		load_base(&W, i + 1);
		for (unsigned cut = 0; cut < 2; cut++) {
			W.plan = (struct plan){.fault = VFAULT_CUT_DURING,
					       .k = 1 + (cut ? i % 4 : i / 4 % 4),
					       .writes = true};
			world_fault(&W);
			run_process(&W, "life", life_main, true);
		}
		W.plan.armed = false;
		run_process(&W, "check", check_main, false);
		EXPECT(W.check_ended);
		simhost_end();
	}
	vimage_free(image);
}
