/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the simulator's store: answered later, seen at some moment in between. */
#include "tests/replica/sim_store_impl.h"

#include <stdlib.h>

void job_free(struct job *j)
{
	list_del(&j->link);
	free(j);
}

static void job_sample(struct job *j)
{
	if (!j->sampled)
		j->fn(j);
	j->sampled = true;
}

static void job_done(void *arg)
{
	struct job *j = arg;
	struct wait *w = j->wait;
	int rc;

	if (j->ended) {
		job_free(j);
		return;
	}
	if (!j->s->failed)
		job_sample(j);
	rc = j->s->failed ? j->s->failed : j->rc;
	job_free(j);
	wait_resume(w, rc);
}

static void job_drop(void *arg)
{
	job_free(arg);
}

static void sample_folds(struct job *j);
static void sample_versions(struct job *j);

int job_start(struct store_object *o, void *op, void (*fn)(struct job *), struct wait *w)
{
	struct store *s = o->s;
	struct job *j;
	uint64_t delay;

	if (refusal(s))
		return refusal(s);
	j = xcalloc(1, sizeof(*j));
	j->s = s;
	j->o = o;
	j->op = op;
	j->fn = fn;
	j->wait = w;
	list_push_back(&s->jobs, &j->link);
	if (sim_chance(0.5))
		job_sample(j);
	delay = sim_rand(10, 400) + (sim_chance(0.02) ? sim_rand(1000, 30000) : 0);
	if ((fn == sample_folds || fn == sample_versions) && sim_chance(0.3))
		delay += sim_rand(1000, 30000); /* walks are long */
	sim_at(delay, s->p, job_done, job_drop, j);
	return PENDING;
}

/* A fault that leaves no good copy is not in the plan: damage counts only while all members are in.
 */
static bool unreadable(const struct store_object *o, const struct sblock *x)
{
	const struct map_object *c = map_object(state_map(sim.state), o->id);

	return x->unreadable && !sim.faults_over &&
	       (sim.damage_counts || map_in_count(c) == c->member_count);
}

static void sample_read(struct job *j)
{
	struct store_read *op = j->op;

	memset(op->hole, 0, sizeof(op->hole));
	memset(op->zero, 0, sizeof(op->zero));
	memset(op->bad, 0, sizeof(op->bad));
	for (uint32_t i = 0; i < op->blocks; i++) {
		uint32_t b = op->block + i;
		const struct page *pg = j->o->page[b >> PAGE_SHIFT];
		const struct sblock *x = pg ? &pg->view.b[b % PAGE_BLOCKS] : NULL;
		uint64_t bit = 1ull << (i % 64);

		if (op->dest)
			memset(op->dest + i * BLOCK_SIZE, 0, BLOCK_SIZE);
		op->fps[i] = hash_zero_block();
		if (!x || x->state == BLOCK_HOLE)
			op->hole[i / 64] |= bit;
		else if (x->state == BLOCK_ZERO)
			op->zero[i / 64] |= bit;
		else if (x->state == BLOCK_BAD || unreadable(j->o, x)) {
			op->bad[i / 64] |= bit;
			j->rc = -ERR_DAMAGED;
		} else {
			for (unsigned k = 0; op->dest && k < SIM_SECTORS_PER_BLOCK; k++)
				put_le64(op->dest + i * BLOCK_SIZE + k * SIM_SECTOR, x->word[k]);
			op->fps[i] = x->fp;
		}
	}
}

int store_read(struct store_object *o, struct store_read *op, struct wait *w)
{
	return job_start(o, op, sample_read, w);
}

static struct version page_version(struct store_object *o, uint32_t page, bool uncommitted)
{
	struct version v = o->page[page] ? o->page[page]->view.v : (struct version){0};
	struct entry *e = NULL;

	while (uncommitted && (e = lane_next(o->s, e, o, true))) {
		uint32_t first = e->r.block >> PAGE_SHIFT;

		if (!e->applied && page >= first && page < first + record_pages(&e->r) &&
		    !(e->r.skip_mask >> (page - first) & 1))
			v = version_max(v, e->r.version);
	}
	return v;
}

uint64_t store_fold_term(uint32_t page, struct version v)
{
	uint8_t b[16];

	put_le32(b, page);
	put_le32(b + 4, v.tenure);
	put_le64(b + 8, v.seq);
	return hash_xxh3(b, sizeof(b), 0);
}

static void sample_folds(struct job *j)
{
	struct store_folds *op = j->op;

	for (uint32_t i = 0; i < op->regions; i++) {
		op->folds[i] = 0;
		for (uint32_t k = 0; k < REGION_PAGES; k++) {
			uint32_t page = (op->first_region + i) * REGION_PAGES + k;
			struct version v = page < j->o->pages
						   ? page_version(j->o, page, op->uncommitted)
						   : (struct version){0};

			if (v.seq)
				op->folds[i] ^= store_fold_term(page, v);
		}
	}
}

int store_folds(struct store_object *o, struct store_folds *op, struct wait *w)
{
	return job_start(o, op, sample_folds, w);
}

static void sample_versions(struct job *j)
{
	struct store_versions *op = j->op;

	op->damaged = 0;
	for (uint32_t k = 0; k < REGION_PAGES; k++) {
		uint32_t page = op->region * REGION_PAGES + k;

		op->versions[k] = page < j->o->pages ? page_version(j->o, page, op->uncommitted)
						     : (struct version){0};
		if (page < j->o->pages && j->o->page[page] && page_damaged(&j->o->page[page]->view))
			op->damaged |= 1ull << k;
	}
}

int store_page_versions(struct store_object *o, struct store_versions *op, struct wait *w)
{
	return job_start(o, op, sample_versions, w);
}

static void sample_manifest(struct job *j)
{
	struct store_manifest *op = j->op;
	const struct page *pg = j->o->page[op->page];

	op->data = op->hole = op->zero = op->damaged = 0;
	op->version = page_version(j->o, op->page, false);
	for (unsigned i = 0; i < PAGE_BLOCKS; i++) {
		const struct sblock *x = pg ? &pg->view.b[i] : NULL;
		uint64_t bit = 1ull << i;

		if (!x || x->state == BLOCK_HOLE)
			op->hole |= bit;
		else if (x->state == BLOCK_ZERO)
			op->zero |= bit;
		else if (x->state == BLOCK_BAD || (x->told && unreadable(j->o, x)))
			op->damaged |= bit;
		else
			op->data |= bit;
		op->fp64[i] = x && x->state == BLOCK_DATA ? x->fp.lo : 0;
	}
}

int store_manifest(struct store_object *o, struct store_manifest *op, struct wait *w)
{
	return job_start(o, op, sample_manifest, w);
}

void sample_nothing(struct job *j)
{
}

int store_tail_next(struct store_object *o, struct store_tail *op, struct version after,
		    struct buf_pool *pool, struct wait *w)
{
	struct entry *e = NULL;
	uint32_t n;

	op->payload = (struct slice){0};
	if (version_cmp(after, o->h.commit) < 0)
		return -ERR_STALE;
	while ((e = lane_next(o->s, e, o, true)))
		if (version_cmp(e->r.version, after) > 0)
			break;
	if (!e)
		return -ENODATA;
	op->record = e->r;
	n = record_payload_blocks(&e->r);
	if (n) {
		struct buf *b = buf_get(pool, n * BLOCK_SIZE);

		if (!b)
			return -ENOMEM;
		memset(b->data, 0, n * BLOCK_SIZE);
		for (uint32_t i = 0; i < n; i++) {
			for (unsigned k = 0; k < SIM_SECTORS_PER_BLOCK; k++)
				put_le64(b->data + i * BLOCK_SIZE + k * SIM_SECTOR,
					 e->blocks[i].word[k]);
			op->fps[i] = e->blocks[i].fp;
		}
		op->payload = (struct slice){.buf = b, .data = b->data, .len = n * BLOCK_SIZE};
	}
	return sim_chance(0.5) ? 0 : job_start(o, op, sample_nothing, w);
}
