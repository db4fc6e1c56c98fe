/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/faults/world.h"

#include <pthread.h>

#include "store/tier_internal.h"

void content(uint8_t out[BLOCK_SIZE], uint64_t seed, uint32_t block)
{
	uint64_t v = seed * 0x9e3779b97f4a7c15ull + block;

	switch (seed % 4) {
	case 0:
		memset(out, 0, BLOCK_SIZE);
		return;
	case 1: /* half of it compresses to nothing */
		memset(out, (int)(v >> 32), BLOCK_SIZE);
		block_fill(out, v, block);
		memset(out + BLOCK_SIZE / 4, (int)(v >> 24), BLOCK_SIZE / 2);
		return;
	case 2:
		block_fill(out, seed / 4 % 8, block % 16);
		return;
	default:
		block_fill(out, v, block);
	}
}

/* ---- Faults ---- */

bool fault_fits(enum vfault f, enum vio_kind kind)
{
	switch (f) {
	case VFAULT_LOST:
		return kind == VIO_WRITE || kind == VIO_FLUSH || kind == VIO_DB_COMMIT;
	case VFAULT_MISDIRECTED:
	case VFAULT_FLIP:
		return kind == VIO_WRITE || kind == VIO_READ;
	case VFAULT_ENOSPC:
		return kind == VIO_DB_COMMIT;
	default:
		return true;
	}
}

static enum vfault on_io(void *arg, const struct vio *io)
{
	struct world *w = arg;
	struct plan *p = &w->plan;

	if (!p->armed)
		return VFAULT_NONE;
	if (p->hit)
		return p->for_ever && !strcmp(io->path, p->path) ? p->fault : VFAULT_NONE;
	if (!fault_fits(p->fault, io->kind) || (p->writes && io->kind != VIO_WRITE) || ++p->seen != p->k)
		return VFAULT_NONE;
	p->hit = true;
	p->what = *io;
	snprintf(p->path, sizeof(p->path), "%s", io->path);
	p->what.path = p->path;
	for (unsigned i = 0; i < OBJECTS; i++) {
		const struct model *m = &w->models[i];

		p->acked[i] = m->now.acked;
		p->then[i] = m->cutting ? m->before : m->now;
	}
	return p->fault;
}

void world_fault(struct world *w)
{
	vhost_set_fault(w->host, on_io, w);
}

void world_arm(struct world *w)
{
	w->plan.armed = true;
}

void world_disarm(struct world *w)
{
	w->plan.armed = false;
}

/* ---- The host ---- */

void world_begin(struct world *w, uint64_t seed, uint64_t capacity, uint64_t cache)
{
	struct rig *r = &w->rig;

	memset(w, 0, sizeof(*w));
	simhost_begin(seed);
	w->host = vhost_create("host");
	rng_seed(&w->rng, seed);
	w->shards = 2;
	*r = (struct rig){.count = cache ? 2 : 1, .cache = cache != 0, .index_bytes = 64u << 20};
	for (unsigned i = 0; i < r->count; i++) {
		snprintf(r->paths[i], sizeof(r->paths[i]), VPATH "%s", i ? "cache" : "capacity");
		r->names[i] = r->paths[i];
		vfile_create(w->host, r->paths[i], i ? cache : capacity);
	}
	snprintf(r->meta, sizeof(r->meta), VPATH "meta");
	vfile_mkdir(w->host, r->meta);
	memset(r->cluster.b, 1, sizeof(r->cluster.b));
	memset(r->node.b, 2, sizeof(r->node.b));
	memset(r->group.b, 3, sizeof(r->group.b));
	for (unsigned i = 0; i < OBJECTS; i++)
		w->models[i] = (struct model){.id = 10 + i, .gen = 1, .volume = 1 + i / 2};
}

/* How many devices say that they are of the group for good. */
static unsigned finals(struct world *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->rig.count; i++) {
		struct store_probe p;

		n += !store_probe(w->rig.names[i], &p) && uuid_equal(&p.group, &w->rig.group) &&
		     !p.pending;
	}
	return n;
}

/* As the node does it: what is half done is gone on with. */
int w_format(struct world *w)
{
	struct rig *r = &w->rig;
	struct store_format f = {.cluster = r->cluster,
				 .node = r->node,
				 .group = r->group,
				 .group_incarnation = 1,
				 .capacity = r->names,
				 .capacity_count = 1,
				 .cache = r->cache ? r->names[1] : NULL,
				 .metadata_dir = r->meta};
	int rc = finals(w) ? 0 : store_format(&f);

	/* A superblock was torn while it was written: nobody can know whose it is. The person is
	 * asked. */
	if (rc == -ERR_EXISTS && w->plan.hit) {
		f.wipe = true;
		rc = store_format(&f);
	}
	return rc ? rc : store_finalize(r->names, r->count, &r->group, 7);
}

int w_open(struct world *w, unsigned shards)
{
	w->shards = shards;
	return rig_open(&w->rig, shards);
}

void w_close(struct world *w)
{
	rig_close(&w->rig);
}

/* ---- One call ---- */

struct args {
	struct world *w;
	struct model *m;
	struct store_object *o;
	struct record rec;
	struct store_create create;
	struct store_append append;
	struct store_read read;
	struct list link;
	struct object_header h;
	enum record_kind kind;
	struct version cut;
	struct writer retry;
	struct post scratch;
	uint64_t seed;
	uint8_t *dest;
	int rc;
	bool compression, dedup;
};

static int call(struct args *a, int (*fn)(void *arg, struct wait *w))
{
	return rig_call(&a->w->rig, (unsigned)(a->m->id % a->w->shards), fn, a);
}

static struct store_object *object_of(const struct args *a)
{
	return store_object_find(a->w->rig.store, (unsigned)(a->m->id % a->w->shards), a->m->id,
				 a->m->gen);
}

static int do_create(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_object_create(a->w->rig.store, (unsigned)(a->m->id % a->w->shards), &a->create,
				   a->m->id, a->m->gen, a->m->volume, w);
}

static void history_init(struct history *h)
{
	h->last = h->acked = 0;
	h->h = (struct object_header){.seen = 1, .epoch_count = 1, .epochs = {{1, 1}}};
}

int w_create(struct world *w, unsigned object)
{
	struct args a = {.w = w, .m = &w->models[object]};
	struct model *m = a.m;
	int rc;

	EXPECT_EQ(m->is, OBJ_NOT);
	m->is = OBJ_BORN_MAYBE;
	m->committed = 0;
	m->cutting = m->filling = false;
	history_init(&m->now);
	rc = call(&a, do_create);
	if (rc)
		return rc;
	m->is = OBJ_IS;
	w_policy(w, object, w->compression, w->dedup);
	/* Its first tenure. */
	a.kind = RECORD_EPOCH;
	a.h = m->now.h;
	return w_epoch(w, object);
}

static int do_delete(void *arg, struct wait *w)
{
	return store_object_delete(object_of(arg), w);
}

int w_delete(struct world *w, unsigned object)
{
	struct args a = {.w = w, .m = &w->models[object]};
	int rc;

	EXPECT_EQ(a.m->is, OBJ_IS);
	a.m->is = OBJ_GONE_MAYBE;
	rc = call(&a, do_delete);
	if (!rc) {
		a.m->is = OBJ_NOT;
		a.m->gen++;
	}
	return rc;
}

static int do_space(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_wait_space(a->w->rig.store, (unsigned)(a->m->id % a->w->shards), &a->link, w);
}

static int do_append(void *arg, struct wait *w)
{
	struct args *a = arg;
	unsigned n = log_record_payload(&a->rec);
	uint8_t *payload = xmalloc((size_t)(n + 1) * BLOCK_SIZE);
	struct fp128 fps[RECORD_BLOCKS_MAX];
	int rc;

	for (unsigned i = 0; i < n; i++) {
		if (a->dest)
			memcpy(payload + (size_t)i * BLOCK_SIZE, a->dest + (size_t)i * BLOCK_SIZE,
			       BLOCK_SIZE);
		else
			content(payload + (size_t)i * BLOCK_SIZE, a->seed, a->rec.block + i);
		fps[i] = hash_block(payload + (size_t)i * BLOCK_SIZE);
	}
	rc = store_append(object_of(a), &a->append, &a->rec, payload, fps, w);
	free(payload);
	return rc;
}

static int append(struct args *a)
{
	int rc;

	for (;;) {
		rc = call(a, do_append);
		if (rc != -ERR_LIMIT)
			return rc;
		rc = call(a, do_space);
		if (rc)
			return rc;
	}
}

int w_append(struct world *w, unsigned object, uint8_t kind, uint32_t block, uint32_t blocks,
	     uint64_t seed)
{
	struct args a = {.w = w, .m = &w->models[object], .seed = seed};
	struct history *h = &a.m->now;
	int rc;

	CHECK(h->last < HISTORY && block + blocks <= BLOCKS);
	a.rec = (struct record){.kind = kind,
				.version = {h->h.seen, h->last + 1},
				.block = block,
				.blocks = blocks,
				.attachment = 1,
				.attach_epoch = 1,
				.request = ++a.m->requests};
	if (a.m->committed)
		a.rec.commit = h->event[a.m->committed - 1].version;
	h->event[h->last++] = (struct event){a.rec.version, kind, block, blocks, seed};
	rc = append(&a);
	if (!rc)
		h->acked = h->last;
	return rc;
}

static int do_commit(void *arg, struct wait *w)
{
	struct args *a = arg;

	store_commit(object_of(a), a->cut);
	return 0;
}

static void commit_to(struct world *w, unsigned object, uint64_t seq)
{
	struct args a = {.w = w, .m = &w->models[object]};

	if (seq <= a.m->committed)
		return;
	a.m->committed = seq;
	a.cut = a.m->now.event[seq - 1].version;
	call(&a, do_commit);
}

void w_commit(struct world *w, unsigned object)
{
	commit_to(w, object, w->models[object].now.acked);
}

static int do_header(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_put_header(object_of(a), &a->append, a->kind, &a->h, a->cut, a->retry.data,
				a->retry.len, w);
}

/* Records up to `to` stay. */
static int next_tenure(struct world *w, unsigned object, enum record_kind kind, uint64_t to)
{
	struct args a = {.w = w, .m = &w->models[object], .kind = kind};
	struct model *m = a.m;
	struct object_header *h = &m->now.h;
	int rc;

	m->before = m->now;
	m->cutting = true;
	if (h->epoch_count == EPOCHS_MAX) {
		h->epoch_count = 8;
		memmove(h->epochs, h->epochs + 8, 8 * sizeof(h->epochs[0]));
	}
	if (m->now.last || h->seen > 1)
		h->epochs[h->epoch_count++] = (struct epoch_entry){++h->seen, to + 1};
	for (unsigned i = 0; i + 1 < h->epoch_count; i++)
		h->epochs[i].first_seq = MIN(h->epochs[i].first_seq, to + 1);
	m->now.last = to;
	m->now.acked = MIN(m->now.acked, to);
	if (to)
		a.cut = m->now.event[to - 1].version;
	a.h = *h;
	rc = call(&a, do_header);
	if (!rc)
		m->cutting = false;
	return rc;
}

int w_epoch(struct world *w, unsigned object)
{
	return next_tenure(w, object, RECORD_EPOCH, w->models[object].now.last);
}

int w_cut(struct world *w, unsigned object)
{
	return next_tenure(w, object, RECORD_CUT, w->models[object].committed);
}

static int do_flush(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_flush(a->w->rig.store, 0, &a->scratch, w);
}

int w_flush(struct world *w)
{
	struct args a = {.w = w};

	return rig_call(&w->rig, 0, do_flush, &a);
}

static int do_policy(void *arg, struct wait *w)
{
	struct args *a = arg;

	store_object_set_policy(object_of(a), a->compression, a->dedup);
	return 0;
}

void w_policy(struct world *w, unsigned object, bool compression, bool dedup)
{
	struct args a = {
		.w = w, .m = &w->models[object], .compression = compression, .dedup = dedup};

	call(&a, do_policy);
}

int w_random(struct world *w, unsigned object, uint32_t blocks_max)
{
	static const uint8_t kinds[] = {RECORD_WRITE, RECORD_WRITE, RECORD_WRITE,  RECORD_WRITE,
					RECORD_WRITE, RECORD_TRIM,  RECORD_ZEROES, RECORD_WRITE};
	uint32_t n = 1 + (uint32_t)rng_below(&w->rng, blocks_max);

	if (!rng_chance(&w->rng, 0.3))
		w_commit(w, object);
	return w_append(w, object, kinds[rng_below(&w->rng, ARRAY_LEN(kinds))],
			(uint32_t)rng_below(&w->rng, BLOCKS - n + 1), n, rng_next(&w->rng));
}

/* ---- Filling a replica ---- */

static int do_read(void *arg, struct wait *w)
{
	struct args *a = arg;

	return store_read(object_of(a), &a->read, w);
}

static const struct event *covering(const struct history *h, uint64_t upto, uint32_t block)
{
	for (uint64_t s = upto; s > 0; s--) {
		const struct event *e = &h->event[s - 1];

		if (block >= e->block && block < e->block + e->blocks)
			return e;
	}
	return NULL;
}

static struct version page_version_at(const struct history *h, uint64_t upto, uint32_t page)
{
	for (uint64_t s = upto; s > 0; s--) {
		const struct event *e = &h->event[s - 1];

		if (e->block / PAGE_BLOCKS <= page &&
		    (e->block + e->blocks - 1) / PAGE_BLOCKS >= page)
			return e->version;
	}
	return (struct version){0};
}

static int copy_page(struct world *w, unsigned to, uint32_t page)
{
	struct args a = {.w = w, .m = &w->models[to]};
	struct history *h = &a.m->filled;
	uint8_t *bytes = xmalloc(PAGE_BLOCKS * BLOCK_SIZE);
	unsigned n = 0;
	int rc;

	a.rec = (struct record){.kind = RECORD_COPY,
				.version = page_version_at(h, h->last, page),
				.block = page * PAGE_BLOCKS,
				.blocks = PAGE_BLOCKS};
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		const struct event *e = covering(h, h->last, a.rec.block + i);

		if (!e || e->kind == RECORD_TRIM) {
			a.rec.copy_hole |= 1ull << i;
		} else if (e->kind == RECORD_ZEROES) {
			a.rec.copy_zero |= 1ull << i;
		} else {
			a.rec.copy_data |= 1ull << i;
			content(bytes + (size_t)n++ * BLOCK_SIZE, e->seed, a.rec.block + i);
		}
	}
	a.dest = bytes;
	rc = a.rec.version.seq ? append(&a) : 0;
	free(bytes);
	return rc;
}

static int do_retry_encode(void *arg, struct wait *w)
{
	struct args *a = arg;

	a->retry = writer_init_heap();
	store_retry_encode(object_of(a), &a->retry);
	return 0;
}

static int fill_on(struct world *w, unsigned to)
{
	struct args a = {.w = w, .m = &w->models[to], .kind = RECORD_COMPLETE};
	struct model *m = a.m;
	int rc = 0;

	for (uint32_t p = 0; p < PAGES && !rc; p++)
		rc = copy_page(w, to, p);
	if (rc)
		return rc;
	a.h = m->filled.h;
	a.cut = m->filled.event[m->filled.last - 1].version;
	a.h.commit = a.cut;
	call(&a, do_retry_encode); /* its own: it has none */
	rc = call(&a, do_header);
	writer_free(&a.retry);
	if (!rc) {
		m->filling = false;
		m->now = m->filled;
		m->committed = m->now.acked = m->now.last;
	}
	return rc;
}

int w_fill(struct world *w, unsigned from, unsigned to)
{
	struct model *m = &w->models[to], *source = &w->models[from];
	int rc = w_create(w, to);

	if (rc)
		return rc;
	w_commit(w, from);
	m->filled = source->now;
	m->filled.last = m->filled.acked;
	m->filling = true;
	return fill_on(w, to);
}

/* ---- Threads ---- */

struct client {
	struct world *w;
	unsigned object;
	int (*fn)(struct world *w, unsigned object);
	pthread_t thread;
	int rc;
};

static void *client_main(void *arg)
{
	struct client *c = arg;

	c->rc = c->fn(c->w, c->object);
	return NULL;
}

int w_parallel(struct world *w, int (*fn)(struct world *w, unsigned object))
{
	struct client c[OBJECTS];
	int rc = 0;

	for (unsigned i = 0; i < OBJECTS; i++) {
		c[i] = (struct client){.w = w, .object = i, .fn = fn};
		EXPECT_EQ(pthread_create(&c[i].thread, NULL, client_main, &c[i]), 0);
	}
	for (unsigned i = 0; i < OBJECTS; i++) {
		EXPECT_EQ(pthread_join(c[i].thread, NULL), 0);
		if (!rc)
			rc = c[i].rc;
	}
	return rc;
}

/* ---- Checks ---- */

struct look {
	struct args a;
	struct store_versions versions;
	struct store_folds folds;
	uint64_t fold;
	struct version last, commit;
	struct object_header h;
	bool damaged;
};

static int look_state(void *arg, struct wait *w)
{
	struct look *l = container_of((struct args *)arg, struct look, a);
	struct store_object *o = object_of(&l->a);

	l->a.o = o;
	if (!o)
		return 0;
	l->last = store_last(o);
	l->commit = store_commit_version(o);
	l->h = *store_header(o);
	l->damaged = store_is_damaged(o);
	return store_page_versions(o, &l->versions, w);
}

static int look_folds(void *arg, struct wait *w)
{
	struct look *l = container_of((struct args *)arg, struct look, a);

	l->folds = (struct store_folds){.folds = &l->fold, .regions = 1};
	return store_folds(object_of(&l->a), &l->folds, w);
}

static bool in_history(const struct history *h, struct version v)
{
	return !v.seq || (v.seq <= h->last && version_eq(h->event[v.seq - 1].version, v));
}

/* A page as of seq `upto`: each block is that, or known to be bad where that can be. */
static void check_page(struct world *w, struct model *m, const struct history *h, uint64_t upto,
		       uint32_t page)
{
	struct args a = {.w = w, .m = m};
	uint8_t want[BLOCK_SIZE];
	int rc;

	a.dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	memset(a.dest, 0xee, PAGE_BLOCKS * BLOCK_SIZE);
	a.read = (struct store_read){
		.block = page * PAGE_BLOCKS, .blocks = PAGE_BLOCKS, .dest = a.dest};
	rc = call(&a, do_read);
	if (rc != -ERR_DAMAGED || !w->lied_to)
		EXPECT_OK(rc);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		const struct event *e = covering(h, upto, a.read.block + i);
		uint8_t *got = a.dest + (size_t)i * BLOCK_SIZE;

		if (a.read.bad[0] >> i & 1) {
			EXPECT(w->lied_to);
			w->bad++;
			continue;
		}
		memset(want, 0, BLOCK_SIZE);
		if (e && e->kind == RECORD_WRITE)
			content(want, e->seed, a.read.block + i);
		if (memcmp(want, got, BLOCK_SIZE)) {
			uint64_t s = upto;
			uint8_t other[BLOCK_SIZE] = {0};

			for (; s > 0; s--) {
				const struct event *x = &h->event[s - 1];

				if (a.read.block + i < x->block ||
				    a.read.block + i >= x->block + x->blocks)
					continue;
				memset(other, 0, BLOCK_SIZE);
				if (x->kind == RECORD_WRITE)
					content(other, x->seed, a.read.block + i);
				if (!memcmp(other, got, BLOCK_SIZE))
					break;
			}
			test_failed(__FILE__, __LINE__,
				    "object %llu block %u: not what seq %llu left (up to %llu), "
				    "but of seq %llu",
				    (unsigned long long)m->id, a.read.block + i,
				    (unsigned long long)(e ? e->version.seq : 0),
				    (unsigned long long)upto, (unsigned long long)s);
		}
		EXPECT(fp128_equal(a.read.fps[i], hash_block(want)));
		EXPECT_EQ(a.read.hole[0] >> i & 1, !e || e->kind == RECORD_TRIM);
		if (e && e->kind == RECORD_WRITE) /* written zeros may be found to be zeros */
			EXPECT(!(a.read.zero[0] >> i & 1) || e->seed % 4 == 0);
		else
			EXPECT_EQ(a.read.zero[0] >> i & 1, e && e->kind == RECORD_ZEROES);
	}
	free(a.dest);
}

static void check_pages(struct world *w, struct model *m, const struct history *h,
			const struct look *l)
{
	for (uint32_t p = 0; p < PAGES; p++) {
		struct version v = l->versions.versions[p];

		if (!in_history(h, v))
			test_failed(__FILE__, __LINE__,
				    "object %llu page %u: version %u.%llu never was",
				    (unsigned long long)m->id, p, v.tenure,
				    (unsigned long long)v.seq);
		check_page(w, m, h, v.seq, p);
	}
}

static void expect_versions(struct world *w, struct model *m, const struct look *l, uint64_t upto)
{
	for (uint32_t p = 0; p < PAGES; p++) {
		struct version want = page_version_at(&m->now, upto, p),
			       is = l->versions.versions[p];

		/* A page may be ahead of the commit that is known again: it was destaged after a
		 * commit that no record carried. */
		if (!version_eq(want, is) && (is.seq <= upto || is.seq > m->committed))
			test_failed(
				__FILE__, __LINE__,
				"object %llu page %u: version %u.%llu, expected %u.%llu of %llu",
				(unsigned long long)m->id, p, is.tenure, (unsigned long long)is.seq,
				want.tenure, (unsigned long long)want.seq,
				(unsigned long long)upto);
	}
	EXPECT(w->lied_to || !l->versions.damaged);
}

static void look(struct look *l)
{
	EXPECT_OK(call(&l->a, look_state));
}

/* What the model must be, given that it is there. False: nothing more to compare. */
static bool settle(struct world *w, unsigned object, const struct look *l)
{
	struct model *m = &w->models[object];
	uint64_t floor = m->now.acked;

	if (m->is == OBJ_NOT) {
		EXPECT(!l->a.o);
		return false;
	}
	if (!l->a.o) {
		if (m->is == OBJ_IS)
			test_failed(__FILE__, __LINE__, "object %llu is lost",
				    (unsigned long long)m->id);
		if (m->is == OBJ_GONE_MAYBE)
			m->gen++;
		m->is = OBJ_NOT;
		return false;
	}
	m->is = OBJ_IS;
	if (m->cutting && l->h.seen != m->now.h.seen) { /* it was not to be */
		m->now = m->before;
		floor = m->now.acked;
	}
	m->cutting = false;
	if (m->filling && l->last.seq) {
		EXPECT_EQ(l->last.seq, m->filled.last);
		m->now = m->filled;
		m->committed = floor = m->now.last;
		m->filling = false;
	}
	if (m->filling)
		return true;
	if (l->damaged) { /* it says that it lacks something: then it may */
		EXPECT(w->lied_to);
		w->damaged++;
		return true;
	}
	/* A device that loses a write nobody has followed up on cannot be found out, nor one that loses the
	 * header of a lane's last segment: cuts in it are gone, too. */
	if (w->lied_to && w->plan.hit) {
		if (!in_history(&m->now, l->last))
			m->now = w->plan.then[object];
		floor = MIN(floor, w->plan.acked[object]);
	}
	if (l->last.seq < floor)
		test_failed(__FILE__, __LINE__, "object %llu ends at %llu, acknowledged are %llu",
			    (unsigned long long)m->id, (unsigned long long)l->last.seq,
			    (unsigned long long)floor);
	if (!in_history(&m->now, l->last))
		test_failed(__FILE__, __LINE__,
			    "object %llu ends at %u.%llu, which never was (%llu)",
			    (unsigned long long)m->id, l->last.tenure,
			    (unsigned long long)l->last.seq, (unsigned long long)m->now.last);
	EXPECT(l->commit.seq <= m->committed);
	EXPECT(in_history(&m->now, l->commit));
	return true;
}

static void check_object(struct world *w, unsigned object)
{
	struct model *m = &w->models[object];
	struct look l = {.a = {.w = w, .m = m}};

	look(&l);
	if (!settle(w, object, &l))
		return;
	if (m->filling) { /* as catch-up does: again, to the end */
		check_pages(w, m, &m->filled, &l);
		EXPECT_OK(fill_on(w, object));
		look(&l);
	}
	if (l.damaged) {
		check_pages(w, m, &m->now, &l);
		return;
	}
	if (!w->lied_to)
		expect_versions(w, m, &l, l.commit.seq);
	check_pages(w, m, &m->now, &l);
	if (w->lied_to) /* pages may be ahead of a log that was lost: that is for the peers to see
			 */
		return;
	m->now.last = m->now.acked = l.last.seq;
	m->committed = l.commit.seq;
	commit_to(w, object, l.last.seq);
	look(&l);
	expect_versions(w, m, &l, l.last.seq);
	check_pages(w, m, &m->now, &l);
}

void w_check_reads(struct world *w)
{
	for (unsigned i = 0; i < OBJECTS; i++) {
		struct model *m = &w->models[i];
		struct args a = {.w = w, .m = m};
		uint8_t want[BLOCK_SIZE];

		if (m->is != OBJ_IS || m->filling || m->cutting)
			continue;
		a.dest = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
		for (uint32_t p = 0; p < PAGES; p++) {
			int rc;

			a.read = (struct store_read){
				.block = p * PAGE_BLOCKS, .blocks = PAGE_BLOCKS, .dest = a.dest};
			rc = call(&a, do_read);
			if (rc && rc != -ERR_DAMAGED)
				continue;
			for (unsigned k = 0; k < PAGE_BLOCKS; k++) {
				const struct event *e =
					covering(&m->now, m->committed, a.read.block + k);

				if (a.read.bad[0] >> k & 1)
					continue;
				memset(want, 0, BLOCK_SIZE);
				if (e && e->kind == RECORD_WRITE)
					content(want, e->seed, a.read.block + k);
				EXPECT_MEM(a.dest + (size_t)k * BLOCK_SIZE, want, BLOCK_SIZE);
			}
		}
		free(a.dest);
	}
}

/* Once all is destaged it must be exact. */
static void check_fold(struct world *w, unsigned object)
{
	struct model *m = &w->models[object];
	struct look l = {.a = {.w = w, .m = m}};
	uint64_t fold = 0;

	EXPECT_OK(call(&l.a, look_folds));
	for (uint32_t p = 0; p < PAGES; p++) {
		struct version v = page_version_at(&m->now, m->now.last, p);

		if (v.seq)
			fold ^= store_fold_term(p, v);
	}
	EXPECT(l.fold == fold);
}

/* Raw and logical sides of the ledger. */
static void check_ledger(struct world *w)
{
	struct store_stats s;
	struct store_ledger l;

	store_stats(w->rig.store, &s);
	EXPECT_EQ(s.raw_bytes, s.data_used_bytes + s.padding_bytes + s.summary_bytes +
				       s.dead_bytes + s.free_bytes + s.reserve_bytes + s.log_bytes +
				       s.layout_bytes);
	store_ledger(w->rig.store, &l);
	EXPECT_EQ(l.logical_bytes, l.zero_bytes + l.dedup_saved_bytes + l.compression_saved_bytes +
					   l.stored_bytes + l.damaged_bytes);
	EXPECT_EQ(l.stored_bytes, s.data_used_bytes);
}

void w_check(struct world *w)
{
	struct tier_verify v;
	int rc;

	for (unsigned i = 0; i < OBJECTS; i++)
		check_object(w, i);
	rc = w_flush(w);
	if (!w->lied_to)
		EXPECT_OK(rc);
	EXPECT_OK(tier_verify(w->rig.store->tier, true, &v));
	EXPECT(w->lied_to || !v.bad_blocks);
	check_ledger(w);
	for (unsigned i = 0; i < OBJECTS && !w->lied_to; i++)
		if (w->models[i].is == OBJ_IS)
			check_fold(w, i);
	for (unsigned i = 0; i < OBJECTS && !w->lied_to; i++)
		if (w->models[i].is == OBJ_IS)
			for (unsigned k = 0; k < 3; k++) {
				EXPECT_OK(w_random(w, i, 20));
				w_commit(w, i);
			}
	w->check_ended = true;
}
