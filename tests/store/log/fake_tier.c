/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/log/fake_tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "node/base/err.h"
#include "tests/lib/test.h"

struct fpage {
	struct fpage *next;
	uint64_t object;
	uint32_t page;
	struct map_page map;
	uint8_t *data[PAGE_BLOCKS];
	struct version visible; /* in the shard's region table */
	bool in_region;
};

struct fobject {
	struct fobject *next;
	uint64_t id;
	uint32_t gen, volume;
	uint8_t *header;
	size_t len;
};

#define BUCKETS 4096
struct db {
	struct db *next;
	char dir[512];
	struct fpage *pages[BUCKETS];
	struct fobject *objects;
	uint64_t commit;
};

struct tier {
	struct db *db;
	struct loop *loops[SHARDS_MAX];
};

static struct db *dbs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool full, paused, broken;
static atomic_uint headers;
static _Atomic uint64_t commits;

void fake_tier_set_full(bool on)
{
	full = on;
}
void fake_tier_set_broken(bool on)
{
	broken = on;
}
void fake_tier_set_paused(bool on)
{
	paused = on;
}
unsigned fake_tier_headers(void)
{
	return headers;
}
bool fake_tier_is_fake(void)
{
	return true;
}
uint64_t fake_tier_commits(void)
{
	return commits;
}

static struct db *db_get(const char *dir)
{
	for (struct db *d = dbs; d; d = d->next)
		if (!strcmp(d->dir, dir))
			return d;
	struct db *d = xcalloc(1, sizeof(*d));

	snprintf(d->dir, sizeof(d->dir), "%s", dir);
	d->next = dbs;
	dbs = d;
	return d;
}

static void page_free(struct fpage *p)
{
	for (unsigned i = 0; i < PAGE_BLOCKS; i++)
		free(p->data[i]);
	free(p);
}

static void db_empty(struct db *d)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		while (d->pages[i]) {
			struct fpage *p = d->pages[i];

			d->pages[i] = p->next;
			page_free(p);
		}
	while (d->objects) {
		struct fobject *o = d->objects;

		d->objects = o->next;
		free(o->header);
		free(o);
	}
	d->commit = 0;
}

static struct fpage **slot(struct db *d, uint64_t object, uint32_t page)
{
	struct fpage **p = &d->pages[(object * 31 + page) % BUCKETS];

	while (*p && ((*p)->object != object || (*p)->page != page))
		p = &(*p)->next;
	return p;
}

static struct fobject *object_get(struct db *d, uint64_t id)
{
	for (struct fobject *o = d->objects; o; o = o->next)
		if (o->id == id)
			return o;
	return NULL;
}

static void object_put(struct db *d, uint64_t id, uint32_t gen, uint32_t volume, const void *h,
		       size_t len)
{
	struct fobject *o = object_get(d, id);

	if (!o) {
		o = xcalloc(1, sizeof(*o));
		o->next = d->objects;
		d->objects = o;
	}
	free(o->header);
	o->id = id;
	o->gen = gen;
	o->volume = volume;
	o->header = xmalloc(len + 1);
	memcpy(o->header, h, len);
	o->len = len;
}

void fake_tier_drop(const char *dir)
{
	pthread_mutex_lock(&lock);
	db_empty(db_get(dir));
	pthread_mutex_unlock(&lock);
}

void fake_tier_copy(const char *from, const char *to)
{
	struct db *a, *b;

	pthread_mutex_lock(&lock);
	a = db_get(from);
	b = db_get(to);
	db_empty(b);
	b->commit = a->commit;
	for (struct fobject *o = a->objects; o; o = o->next)
		object_put(b, o->id, o->gen, o->volume, o->header, o->len);
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct fpage *p = a->pages[i]; p; p = p->next) {
			struct fpage *q = xmalloc(sizeof(*q));

			*q = *p;
			for (unsigned k = 0; k < PAGE_BLOCKS; k++)
				if (p->data[k]) {
					q->data[k] = xmalloc(BLOCK_SIZE);
					memcpy(q->data[k], p->data[k], BLOCK_SIZE);
				}
			q->next = b->pages[i];
			b->pages[i] = q;
		}
	pthread_mutex_unlock(&lock);
}

/* ---- tier.h ---- */

int tier_open(const struct tier_config *cfg, struct tier **out)
{
	struct tier *t = xcalloc(1, sizeof(*t));

	pthread_mutex_lock(&lock);
	t->db = db_get(cfg->metadata_dir);
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct fpage *p = t->db->pages[i]; p; p = p->next) {
			p->visible = p->map.version;
			p->in_region = true;
		}
	pthread_mutex_unlock(&lock);
	if (t->db->commit < cfg->log_kv_commit) {
		free(t);
		return -ERR_MAP_LOST;
	}
	*out = t;
	return 0;
}

int tier_start(struct tier *t, struct loop *const *loops, unsigned shards)
{
	memcpy(t->loops, loops, shards * sizeof(*loops));
	return 0;
}

void tier_stop(struct tier *t)
{
}
void tier_close(struct tier *t)
{
	free(t);
}

int tier_format(const struct tier_config *cfg)
{
	fake_tier_drop(cfg->metadata_dir);
	return 0;
}

uint64_t tier_kv_commit(const struct tier *t)
{
	return __atomic_load_n(&t->db->commit, __ATOMIC_RELAXED);
}

void tier_objects(struct tier *t, void (*fn)(void *arg, const struct tier_object *o), void *arg)
{
	for (struct fobject *o = t->db->objects; o; o = o->next) {
		struct tier_object to = {.id = o->id,
					 .gen = o->gen,
					 .volume = o->volume,
					 .header = o->header,
					 .header_len = o->len};

		fn(arg, &to);
	}
}

struct later {
	struct post post;
	struct loop *loop;
	unsigned turns;
	struct tier *tier;
	struct tier_page *get;
	struct destage_batch *batch;
	struct wait *wait;
	int rc;
};

static void later_run(struct post *p);

static void later(struct tier *t, struct loop *l, struct later *v)
{
	struct later *n = xmalloc(sizeof(*n));

	*n = *v;
	n->tier = t;
	n->loop = l;
	n->turns = (unsigned)rng_below(loop_rng(l), 4);
	n->post.fn = later_run;
	loop_post(l, &n->post);
}

static void get_now(struct tier *t, struct tier_page *op)
{
	struct fpage *p;

	pthread_mutex_lock(&lock);
	p = *slot(t->db, op->object, op->page);
	if (p)
		op->out = p->map;
	else
		memset(&op->out, 0, sizeof(op->out));
	pthread_mutex_unlock(&lock);
}

/* Runs of blocks of a page come in one read. */
static const uint8_t *read_block(const struct destage_block *b, const struct destage_block *end)
{
	static uint8_t *window;
	static const struct device *device;
	static uint64_t off, len;
	unsigned n = 1;

	if (!b) { /* a new page: segments may have been written again since */
		len = 0;
		return NULL;
	}
	if (device == b->log_device && b->log_off > off && b->log_off < off + len)
		return window + (b->log_off - off);
	if (!window)
		window = xalloc_aligned(BLOCK_SIZE, PAGE_BLOCKS * BLOCK_SIZE);
	while (n < PAGE_BLOCKS && b + n < end && b[n].kind == MAP_RAW &&
	       b[n].log_device == b->log_device &&
	       b[n].log_off == b->log_off + (uint64_t)n * BLOCK_SIZE)
		n++;
	len = 0;
	if (device_pread(b->log_device, window, (size_t)n * BLOCK_SIZE, b->log_off))
		return NULL;
	device = b->log_device;
	off = b->log_off;
	len = (uint64_t)n * BLOCK_SIZE;
	return window;
}

static void put_block(struct fpage *p, const struct destage_block *b,
		      const struct destage_block *end, uint64_t *damaged)
{
	const uint8_t *from;
	uint64_t bit = 1ull << b->index;
	struct map_entry *e = &p->map.entry[b->index];

	free(p->data[b->index]);
	p->data[b->index] = NULL;
	p->map.mask |= bit;
	*e = (struct map_entry){.word = b->kind};
	if (b->kind == MAP_HOLE)
		p->map.mask &= ~bit;
	if (b->kind != MAP_RAW)
		return;
	p->data[b->index] = xmalloc(BLOCK_SIZE);
	from = read_block(b, end);
	if (from)
		memcpy(p->data[b->index], from, BLOCK_SIZE);
	if (!from || hash_block(from).lo != b->fp64) {
		e->word = MAP_DAMAGED;
		++*damaged;
		return;
	}
	e->fp64 = b->fp64;
}

static void destage_now(struct tier *t, struct destage_batch *b)
{
	struct db *d = t->db;

	b->damaged = 0;
	b->rc = full && b->page_count ? -ERR_FULL : 0;
	for (unsigned i = 0; i < b->page_count && !b->rc; i++) {
		struct destage_page *dp = &b->pages[i];
		struct fpage **at = slot(d, dp->object, dp->page), *p = *at;
		struct fobject *o = object_get(d, dp->object);

		dp->skipped = !o || o->gen != dp->gen;
		if (dp->skipped)
			continue;
		if (!p) {
			p = *at = xcalloc(1, sizeof(*p));
			p->object = dp->object;
			p->page = dp->page;
		}
		if (version_cmp(dp->version, p->map.version) < 0)
			test_failed(__FILE__, __LINE__, "page %u would go back from %llu to %llu",
				    dp->page, (unsigned long long)p->map.version.seq,
				    (unsigned long long)dp->version.seq);
		p->map.version = dp->version;
		read_block(NULL, NULL);
		for (unsigned k = 0; k < dp->count; k++)
			put_block(p, &b->blocks[dp->first + k], &b->blocks[dp->first + dp->count],
				  &b->damaged);
		dp->result = p->map;
	}
	for (unsigned i = 0; i < b->header_count && !b->rc; i++) {
		struct destage_header *h = &b->headers[i];
		struct fobject *o = object_get(d, h->object);

		if (o && o->gen == h->gen)
			object_put(d, h->object, h->gen, h->volume, h->header, h->len);
		headers++;
	}
	if (!b->rc)
		__atomic_store_n(&d->commit, d->commit + 1, __ATOMIC_RELAXED);
	b->kv_commit = d->commit;
	commits++;
}

static void later_run(struct post *p)
{
	struct later *l = container_of(p, struct later, post);

	if (l->turns || (l->batch && paused)) {
		l->turns -= l->turns > 0;
		loop_post(l->loop, &l->post);
		return;
	}
	if (l->get) {
		/* Half of them were read when asked: older than what a destage since has brought. */
		if (rng_chance(loop_rng(l->loop), 0.5))
			get_now(l->tier, l->get);
		wait_resume(l->wait, 0);
	} else if (l->batch) {
		pthread_mutex_lock(&lock);
		destage_now(l->tier, l->batch);
		pthread_mutex_unlock(&lock);
		loop_post(l->loop, &l->batch->done);
	} else {
		wait_resume(l->wait, l->rc);
	}
	free(l);
}

int tier_page_get(struct tier *t, unsigned shard, struct tier_page *op, struct wait *w)
{
	get_now(t, op);
	if (rng_chance(loop_rng(t->loops[shard]), 0.5))
		return 0;
	later(t, t->loops[shard], &(struct later){.get = op, .wait = w});
	return PENDING;
}

uint64_t tier_region_mask(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	uint64_t mask = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < REGION_PAGES; i++) {
		struct fpage *p = *slot(t->db, object, region * REGION_PAGES + i);

		if (p && p->in_region)
			mask |= 1ull << i;
	}
	pthread_mutex_unlock(&lock);
	return mask;
}

uint64_t tier_region_fold(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	uint64_t fold = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < REGION_PAGES; i++) {
		struct fpage *p = *slot(t->db, object, region * REGION_PAGES + i);

		if (p && p->in_region)
			fold ^= store_fold_term(p->page, p->visible);
	}
	pthread_mutex_unlock(&lock);
	return fold;
}

int tier_read(struct tier *t, unsigned shard, struct tier_read *op, struct wait *w)
{
	struct fpage *p;

	op->bad = 0;
	pthread_mutex_lock(&lock);
	p = *slot(t->db, op->object, op->page);
	for (unsigned i = 0; i < op->count; i++) {
		unsigned b = op->first + i;
		const uint8_t *from = p ? p->data[b] : NULL;
		uint8_t *to = op->dest + (size_t)i * BLOCK_SIZE;

		memset(to, 0, BLOCK_SIZE);
		if (p && (p->map.entry[b].word & 7) == MAP_DAMAGED)
			op->bad |= 1ull << b;
		else if (from)
			memcpy(to, from, BLOCK_SIZE);
		op->fps[i] = hash_block(to);
	}
	pthread_mutex_unlock(&lock);
	if (rng_chance(loop_rng(t->loops[shard]), 0.5))
		return 0;
	later(t, t->loops[shard], &(struct later){.wait = w});
	return PENDING;
}

void tier_destage(struct tier *t, struct destage_batch *b)
{
	later(t, b->loop, &(struct later){.batch = b});
}

bool tier_pace(struct tier *t, unsigned shard, uint32_t fill_permyriad, bool writing, bool hurry)
{
	return false;
}

void tier_destaged(struct tier *t, struct destage_batch *b)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < b->page_count; i++) {
		struct fpage *p = *slot(t->db, b->pages[i].object, b->pages[i].page);

		if (p && !b->pages[i].skipped) {
			p->visible = b->pages[i].result.version;
			p->in_region = true;
		}
	}
	pthread_mutex_unlock(&lock);
}

int tier_object_put(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t volume,
		    const void *header, size_t len, struct work *scratch, struct wait *w)
{
	pthread_mutex_lock(&lock);
	object_put(t->db, object, gen, volume, header, len);
	pthread_mutex_unlock(&lock);
	later(t, t->loops[shard], &(struct later){.wait = w});
	return PENDING;
}

void tier_object_reduce(struct tier *t, unsigned shard, uint64_t object, uint32_t gen, uint32_t number,
			bool compression, bool dedup)
{
}

int tier_object_delete(struct tier *t, unsigned shard, uint64_t object, uint32_t gen,
		       struct work *scratch, struct wait *w)
{
	struct fobject **o;

	if (broken)
		return -EIO;
	pthread_mutex_lock(&lock);
	for (o = &t->db->objects; *o && (*o)->id != object; o = &(*o)->next)
		;
	if (*o && (*o)->gen == gen) {
		struct fobject *gone = *o;

		*o = gone->next;
		free(gone->header);
		free(gone);
	}
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct fpage **p = &t->db->pages[i]; *p;) {
			struct fpage *gone = *p;

			if (gone->object != object) {
				p = &gone->next;
				continue;
			}
			*p = gone->next;
			page_free(gone);
		}
	pthread_mutex_unlock(&lock);
	later(t, t->loops[shard], &(struct later){.wait = w});
	return PENDING;
}

uint64_t tier_free_bytes(const struct tier *t)
{
	return 1ull << 30;
}
bool tier_reclaims(const struct tier *t)
{
	return false;
}

void tier_stats(const struct tier *t, struct store_stats *out)
{
}
int tier_settle(struct tier *t, unsigned shard, uint64_t limit_us, struct wait *w)
{
	return 0; /* nothing is reduced here */
}

void tier_scrub_pace(struct tier *t, uint32_t pass_s, uint64_t max_bytes_per_s, uint64_t now_s)
{
}
void tier_scrub_start(struct tier *t)
{
}
void tier_scrub_stop(struct tier *t)
{
}
void tier_scrub_status(struct tier *t, struct store_scrub *out)
{
	*out = (struct store_scrub){0};
}
int tier_inspect_metadata(const char *dir, bool verbose)
{
	return 0;
}
int tier_inspect_segments(struct device *d, bool verbose)
{
	return 0;
}

/* No capacity devices: nothing of them is ever lost. */
uint64_t tier_damage(const struct tier *t, const struct map_page *p)
{
	uint64_t d = 0;

	for (uint64_t m = p->mask; m; m &= m - 1)
		if ((p->entry[__builtin_ctzll(m)].word & 7) == MAP_DAMAGED)
			d |= m & -m;
	return d;
}
void tier_device_failed(struct tier *t)
{
}
void tier_check(struct tier *t)
{
}
bool tier_loss_known(const struct tier *t)
{
	return true;
}
uint64_t tier_losses(const struct tier *t)
{
	return 0;
}
uint64_t tier_object_lost(struct tier *t, unsigned shard, uint64_t object)
{
	return 0;
}
void tier_object_refilled(struct tier *t, unsigned shard, uint64_t object, uint64_t lost)
{
}
bool tier_region_lost(struct tier *t, unsigned shard, uint64_t object, uint32_t region)
{
	return false;
}
int tier_replace(struct tier *t, unsigned index, struct device *device, int (*publish)(void *arg),
		 void *arg)
{
	return publish(arg);
}

/* What is stored is not counted here, and there is no map to verify. */
void tier_ledger(struct tier *t, struct store_ledger *out)
{
	*out = (struct store_ledger){0};
}
int tier_verify_all(struct tier *t, bool data, struct store_verify *out)
{
	return 0;
}
