/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of the committed view: the log's entries over the map's page, page by page.
 *
 *   LOOK  copy the log's entries for the page and hold their segments
 *   MAP   the map's page, unless the log has all blocks asked for
 *   LOG   blocks from the log, from batches in RAM or in parallel reads; verified against their entries
 *   TIER  runs of blocks from the map, verified by the tier
 *
 * The log is looked up before the map is asked, so what is destaged in between is seen in one of them. No
 * block leaves without its fingerprint having been checked (I1). */
#include <stdlib.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "store/store_impl.h"

#define READ_IOS 16u

enum read_stage { READ_LOOK, READ_MAP, READ_LOG, READ_TIER };

struct read_op {
	struct wait wait;
	struct shard *shard;
	struct store_object *object;
	struct store_read *op;
	enum read_stage stage;
	uint32_t at, end; /* blocks of the object; at: first of this page */
	uint32_t page;
	unsigned first, count; /* in the page */
	unsigned log_next, tier_next;
	bool unchecked, have_map, held, heap, must_exist;
	struct page_view view;
	struct tier_page map;
	struct tier_read tier;
	struct device *log_device;
	uint64_t log_us;
	struct join join;
	unsigned ios;
	struct io io[READ_IOS];
};

static void read_resume(struct wait *w, int rc);

static void set_bit(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= 1ull << i % 64;
}

/* Index in the request of block b of the page. */
static uint32_t slot(const struct read_op *r, unsigned b)
{
	return r->at - r->op->block + b - r->first;
}

static void hold(struct read_op *r, int by)
{
	struct store *s = r->shard->store;

	if (!r->op->dest)
		return;
	r->held = by > 0;
	for (unsigned b = r->first; b < r->first + r->count; b++)
		if (r->view.kind[b] == MAP_RAW)
			r->shard->segs[pos_seg(s, r->view.pos[b])].readers += (uint32_t)by;
}

static int look(struct read_op *r)
{
	struct shard *sh = r->shard;
	struct page_node *p;
	bool all = true;

	r->page = r->at / PAGE_BLOCKS;
	r->first = r->at % PAGE_BLOCKS;
	r->count = MIN(PAGE_BLOCKS - r->first, r->end - r->at);
	p = page_find(sh, r->object, r->page);
	page_view(p, &r->view);
	r->unchecked = p && p->unchecked;
	for (unsigned b = r->first; b < r->first + r->count && all; b++)
		all = r->view.kind[b] != VIEW_NONE;
	hold(r, 1);
	r->have_map = !all || r->unchecked;
	if (!r->have_map)
		return 0;
	r->must_exist = tier_region_mask(sh->store->tier, sh->index, r->object->id,
					 r->page / REGION_PAGES) >>
				r->page % REGION_PAGES &
			1;
	r->map.fresh = false;
	r->map.object = r->object->id;
	r->map.page = r->page;
	return tier_page_get(sh->store->tier, sh->index, &r->map, &r->wait);
}

static void zero_blocks(struct read_op *r, unsigned b, unsigned n)
{
	if (!r->op->dest)
		return;
	memset(r->op->dest + (size_t)slot(r, b) * BLOCK_SIZE, 0, (size_t)n * BLOCK_SIZE);
	for (unsigned i = 0; i < n; i++)
		r->op->fps[slot(r, b + i)] = hash_zero_block();
}

static unsigned map_kind_of(const struct read_op *r, unsigned b)
{
	if (r->have_map && r->must_exist && !r->map.out.version.seq)
		return MAP_DAMAGED; /* I11: a row that is gone is corruption, never zeros */
	if (!r->have_map || !(r->map.out.mask >> b & 1))
		return MAP_HOLE;
	return r->map.out.entry[b].word & 7;
}

/* The map is here: what is neither data nor damaged is answered. */
static void classify(struct read_op *r)
{
	struct page_node *p;

	if (r->unchecked) {
		/* From recovery: entries that the map has already are void. The holds stay until the end. */
		hold(r, -1);
		page_view_prune(r->object, &r->view, &r->map.out,
				tier_damage(r->shard->store->tier, &r->map.out) != 0);
		hold(r, 1);
		p = page_find(r->shard, r->object, r->page);
		if (p && !p->checking)
			page_check(r->shard, p, &r->map.out);
	}
	for (unsigned b = r->first; b < r->first + r->count; b++) {
		unsigned kind = r->view.kind[b];

		if (kind == VIEW_NONE)
			kind = map_kind_of(r, b);
		if (kind == MAP_HOLE)
			set_bit(r->op->hole, slot(r, b));
		else if (kind == MAP_ZERO)
			set_bit(r->op->zero, slot(r, b));
		else if (kind == MAP_DAMAGED)
			set_bit(r->op->bad, slot(r, b));
		if (kind == MAP_HOLE || kind == MAP_ZERO || kind == MAP_DAMAGED)
			zero_blocks(r, b, 1);
	}
	r->log_next = r->tier_next = r->first;
}

/* Starts reads of runs that are contiguous in the log, up to READ_IOS of them. */
static int read_log(struct read_op *r)
{
	struct shard *sh = r->shard;
	struct store *s = sh->store;
	unsigned b = r->log_next, stop = r->first + r->count;
	struct device *d;
	int rc;

	r->log_device = NULL;
	r->log_us = loop_mono_us(sh->loop);
	join_init(&r->join, &r->wait);
	for (r->ios = 0; b < stop && r->ios < READ_IOS;) {
		unsigned n = 1;
		uint8_t *to = r->op->dest + (size_t)slot(r, b) * BLOCK_SIZE;
		const uint8_t *ram;

		if (r->view.kind[b] != MAP_RAW) {
			b++;
			continue;
		}
		ram = lane_ram(&sh->lane, r->view.pos[b]);
		if (ram) {
			memcpy(to, ram, BLOCK_SIZE);
			b++;
			continue;
		}
		while (b + n < stop && r->view.kind[b + n] == MAP_RAW &&
		       r->view.pos[b + n] == r->view.pos[b] + n &&
		       !lane_ram(&sh->lane, r->view.pos[b + n]))
			n++;
		counter_add(&sh->device_read, (uint64_t)n * BLOCK_SIZE);
		d = pos_device(s, r->view.pos[b]);
		rc = device_fault(d, DEVICE_READ);
		join_settle(&r->join,
			    rc ? (join_arm(&r->join), rc)
			       : io_read(sh->loop, &r->io[r->ios++], d->fd, to,
					 (size_t)n * BLOCK_SIZE, pos_off(s, r->view.pos[b]),
					 join_arm(&r->join)));
		r->log_device = d;
		b += n;
	}
	r->log_next = b;
	return join_done(&r->join);
}

static void verify_log(struct read_op *r, int io_rc)
{
	for (unsigned b = r->first; b < r->first + r->count; b++) {
		struct fp128 *fp = &r->op->fps[slot(r, b)];

		if (r->view.kind[b] != MAP_RAW)
			continue;
		*fp = hash_block(r->op->dest + (size_t)slot(r, b) * BLOCK_SIZE);
		if (fp->lo == r->view.fp[b])
			continue;
		set_bit(r->op->bad, slot(r, b));
		counter_add(&r->shard->corrupt, 1);
		log_warn("store", "a block of the log is corrupt",
			 "object=%llx block=%u device=%s offset=%llu io=%s",
			 (unsigned long long)r->object->id, r->page * PAGE_BLOCKS + b,
			 pos_device(r->shard->store, r->view.pos[b])->path,
			 (unsigned long long)pos_off(r->shard->store, r->view.pos[b]),
			 err_name(io_rc));
	}
}

static bool from_tier(const struct read_op *r, unsigned b)
{
	unsigned kind = map_kind_of(r, b);

	return r->view.kind[b] == VIEW_NONE && kind != MAP_HOLE && kind != MAP_ZERO &&
	       kind != MAP_DAMAGED;
}

/* The next run of blocks that the tier must bring; false: none is left. */
static bool next_tier_run(struct read_op *r)
{
	unsigned b = r->tier_next, stop = r->first + r->count, n = 0;

	while (b < stop && !from_tier(r, b))
		b++;
	while (b + n < stop && from_tier(r, b + n))
		n++;
	r->tier_next = b + n;
	r->tier = (struct tier_read){.object = r->object->id,
				     .page = r->page,
				     .first = b,
				     .count = n,
				     .map = &r->map.out};
	if (!n)
		return false;
	r->tier.dest = r->op->dest + (size_t)slot(r, b) * BLOCK_SIZE;
	r->tier.fps = &r->op->fps[slot(r, b)];
	return true;
}

static void tier_bad(struct read_op *r)
{
	for (uint64_t m = r->tier.bad; m; m &= m - 1)
		set_bit(r->op->bad, slot(r, (unsigned)__builtin_ctzll(m)));
}

static bool any_bad(const struct store_read *op)
{
	for (unsigned i = 0; i < ARRAY_LEN(op->bad); i++)
		if (op->bad[i])
			return true;
	return false;
}

static int read_finish(struct read_op *r, int rc)
{
	struct shard *sh = r->shard;

	if (r->held)
		hold(r, -1);
	/* A group that ends is not damaged: its blocks are whole when its devices are. Damage would be an
	 * error to the guest where no other replica is in, and a copy would carry it on. */
	if (!rc && any_bad(r->op))
		rc = group_failing(sh->store);
	if (!rc && any_bad(r->op))
		rc = -ERR_DAMAGED;
	object_put_ref(r->object);
	sh->ops--;
	r->op->impl = NULL;
	if (r->heap)
		free(r);
	else
		pool_put(&sh->reads, r);
	return rc;
}

/* A failed read of a log block is not the end: its fingerprint will not hold and the block is bad. */
static int read_run(struct read_op *r, int rc)
{
	while (rc != PENDING) {
		switch (r->stage) {
		case READ_LOOK:
			if (rc < 0 || r->at == r->end)
				return read_finish(r, rc);
			r->stage = READ_MAP;
			rc = look(r);
			break;
		case READ_MAP:
			if (rc == -ERR_CORRUPT) { /* the page is lost; what the log has is not */
				memset(&r->map.out, 0, sizeof(r->map.out));
				r->must_exist = true;
				r->unchecked = false;
				rc = 0;
			}
			if (rc < 0)
				return read_finish(r, rc);
			classify(r);
			r->stage = r->op->dest ? READ_LOG : READ_LOOK;
			if (!r->op->dest)
				r->at += r->count;
			break;
		case READ_LOG:
			/* The reads of one round are one operation of the device. */
			if (r->log_device)
				device_done(r->log_device, DEVICE_READ,
					    loop_mono_us(r->shard->loop) - r->log_us, rc);
			r->log_device = NULL;
			if (r->log_next < r->first + r->count) {
				rc = read_log(r);
				break;
			}
			verify_log(r, rc);
			hold(r, -1);
			r->held = false;
			r->stage = READ_TIER;
			r->tier.bad = 0;
			rc = 0;
			break;
		case READ_TIER:
			tier_bad(r);
			if (rc < 0 && rc != -ERR_DAMAGED && rc != -ERR_CORRUPT)
				return read_finish(r, rc);
			rc = 0;
			if (next_tier_run(r)) {
				rc = tier_read(r->shard->store->tier, r->shard->index, &r->tier,
					       &r->wait);
				break;
			}
			r->at += r->count;
			r->stage = READ_LOOK;
			break;
		}
	}
	return PENDING;
}

static void read_resume(struct wait *w, int rc)
{
	struct read_op *r = container_of(w, struct read_op, wait);
	struct store_read *op = r->op;
	struct shard *sh = r->shard;

	rc = read_run(r, rc);
	if (rc == PENDING)
		return;
	wait_resume(op->wait, rc);
	shard_quiesce(sh);
}

int store_read(struct store_object *o, struct store_read *op, struct wait *w)
{
	struct shard *sh = o->shard;
	struct read_op *r;
	bool heap;

	op->wait = w;
	memset(op->hole, 0, sizeof(op->hole));
	memset(op->zero, 0, sizeof(op->zero));
	memset(op->bad, 0, sizeof(op->bad));
	if (store_failed(sh->store))
		return store_failed(sh->store);
	if (sh->stopping)
		return -ERR_CLOSED;
	if (!op->blocks || op->blocks > RECORD_BLOCKS_MAX || op->block >= OBJECT_BLOCKS_MAX ||
	    op->blocks > OBJECT_BLOCKS_MAX - op->block)
		return -ERR_INVALID;
	object_settle(o);
	r = pool_get(&sh->reads);
	heap = !r;
	if (heap)
		r = xmalloc(sizeof(*r)); /* beyond what the layers above admit */
	r->heap = heap;
	r->wait.resume = read_resume;
	r->shard = sh;
	r->object = o;
	r->op = op;
	r->stage = READ_LOOK;
	r->at = op->block;
	r->end = op->block + op->blocks;
	r->held = false;
	r->log_device = NULL;
	op->impl = r;
	o->refs++;
	sh->ops++;
	return read_run(r, 0);
}

size_t store_read_op_size(void)
{
	return sizeof(struct read_op);
}
