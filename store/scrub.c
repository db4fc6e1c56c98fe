/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub (scrub.h): where it is, kept in a row of the database; when a pass begins, how fast it goes, and
 * what it does next. What a step looks at, and marks, is in scrub_check.c. */
#include <stdlib.h>

#include "store/scrub_check.h"

#define PASS_STEPS   64u     /* a pass has at least so many steps in its time */
#define BUSY_US      100000u /* until it looks again whether the log is still filling */
#define SAVE_PAGES   4096u   /* map pages between two savings of the position */
#define TELL_PAGE_US 200u    /* pace of the walk that only tells */
#define RETRY_US     10000000u

enum scrub_want { WANT_START = 1, WANT_STOP = 2 };
enum scrub_flags { FLAG_STOPPED = 1, FLAG_SUSPECT_ALL = 2, FLAG_ASKED = 4 };

uint64_t scrub_wall_s(struct tier *t)
{
	return (uint64_t)((int64_t)(tier_mono_us(t) / 1000000) + atomic_load(&t->scrub.wall_offset_s));
}

/* ---- The row -----------------------------------------------------------------------------------
 */

size_t scrub_row_encode(uint8_t out[SCRUB_ROW_MAX], const struct scrub_row *r)
{
	size_t n = 80;

	memset(out, 0, n);
	put_le32(out, 1);
	put_le32(out + 4, r->phase);
	put_le32(out + 8, r->segment);
	put_le32(out + 12, r->page);
	put_le64(out + 16, r->object);
	put_le32(out + 24, (r->stopped ? FLAG_STOPPED : 0) |
				   (r->suspect_all ? FLAG_SUSPECT_ALL : 0) |
				   (r->asked ? FLAG_ASKED : 0));
	put_le32(out + 28, r->suspect_count);
	put_le64(out + 32, r->started_s);
	put_le64(out + 40, r->finished_s);
	put_le64(out + 48, r->passes);
	put_le64(out + 56, r->found);
	put_le64(out + 64, r->checked);
	n = 72;
	for (uint32_t i = 0; i < r->suspect_count; i++, n += 4)
		put_le32(out + n, r->suspects[i]);
	put_le64(out + n, hash_xxh3(out, n, 0));
	return n + 8;
}

int scrub_row_decode(const void *data, size_t len, struct scrub_row *out)
{
	const uint8_t *d = data;
	uint32_t flags, n;

	if (len < 80 || get_le32(d) != 1)
		return -ERR_CORRUPT;
	flags = get_le32(d + 24);
	n = get_le32(d + 28);
	if (n > SCRUB_SUSPECTS_MAX || len != 80 + 4 * n || get_le32(d + 4) > SCRUB_MOVE ||
	    get_le64(d + len - 8) != hash_xxh3(d, len - 8, 0))
		return -ERR_CORRUPT;
	*out = (struct scrub_row){.phase = (enum store_scrub_phase)get_le32(d + 4),
				  .segment = get_le32(d + 8),
				  .page = get_le32(d + 12),
				  .object = get_le64(d + 16),
				  .stopped = flags & FLAG_STOPPED,
				  .suspect_all = flags & FLAG_SUSPECT_ALL,
				  .asked = flags & FLAG_ASKED,
				  .suspect_count = n,
				  .started_s = get_le64(d + 32),
				  .finished_s = get_le64(d + 40),
				  .passes = get_le64(d + 48),
				  .found = get_le64(d + 56),
				  .checked = get_le64(d + 64)};
	for (uint32_t i = 0; i < n; i++)
		out->suspects[i] = get_le32(d + 72 + 4 * i);
	return 0;
}

static void publish(struct tier *t)
{
	struct scrub *s = &t->scrub;

	atomic_store(&s->phase, s->row.phase);
	atomic_store(&s->stopped, s->row.stopped);
	atomic_store(&s->asked, s->row.asked);
	atomic_store(&s->started_s, s->row.started_s);
	atomic_store(&s->finished_s, s->row.finished_s);
	atomic_store(&s->passes, s->row.passes);
	atomic_store(&s->found, s->row.found);
	atomic_store(&s->checked, s->row.checked);
	atomic_store(&s->total, t->seg.space.segments * t->seg.segment_size - t->seg.space.tail +
					atomic_load(&t->kv_bytes));
}

void scrub_save(struct tier *t)
{
	struct kv_batch *b = kv_batch_create();
	uint8_t row[SCRUB_ROW_MAX];
	size_t n = scrub_row_encode(row, &t->scrub.row);

	kv_batch_put(t->kv, b, KV_META, SCRUB_KEY, strlen(SCRUB_KEY), row, n);
	if (kv_commit(t->kv, b, false))
		log_warn("scrub", "the position was not saved", "%s", "");
	kv_batch_destroy(b);
	publish(t);
}

int scrub_load(struct tier *t)
{
	uint8_t row[SCRUB_ROW_MAX];
	struct scrub *s = &t->scrub;
	size_t len = 0;
	int rc = kv_get(t->kv, KV_META, SCRUB_KEY, strlen(SCRUB_KEY), row, sizeof(row), &len);

	if (!rc)
		rc = scrub_row_decode(row, len, &s->row);
	if (rc && rc != -ERR_NOT_FOUND) /* it only says where to go on */
		log_warn("scrub", "the saved position is bad; the next pass begins at the start",
			 "%s", "");
	/* The shards know nothing yet of what an earlier life has marked. */
	s->telling = t->totals.damaged || t->shares.sums.damaged;
	publish(t);
	return 0;
}

void scrub_memory(struct scrub *s)
{
	if (s->window)
		return;
	s->window = xalloc_aligned(BLOCK_SIZE, UNIT_MAX);
	s->work = xmalloc(UNIT_ENTRIES_MAX * sizeof(*s->work));
	s->pages = xmalloc(UNIT_ENTRIES_MAX * sizeof(*s->pages));
}

void scrub_free(struct tier *t)
{
	free(t->scrub.window);
	free(t->scrub.work);
	free(t->scrub.pages);
	t->scrub.window = NULL;
	t->scrub.work = NULL;
	t->scrub.pages = NULL;
}

/* ---- A pass ------------------------------------------------------------------------------------
 */

static void pass_begin(struct tier *t, bool asked)
{
	struct scrub *s = &t->scrub;

	s->row.phase = SCRUB_SEGMENTS;
	s->row.asked = asked;
	s->row.segment = s->row.page = s->row.suspect_count = 0;
	s->row.object = s->row.found = s->row.checked = 0;
	s->row.suspect_all = false;
	s->row.started_s = scrub_wall_s(t);
	s->in_segment = false;
	scrub_save(t);
	log_info("scrub", "a pass begins", "asked=%d", asked);
}

static void pass_end(struct tier *t)
{
	struct scrub *s = &t->scrub;

	s->row.phase = SCRUB_IDLE;
	s->row.asked = false;
	/* After a restart the pass may end before the date is known here. */
	s->row.finished_s = MAX(scrub_wall_s(t), s->row.started_s);
	s->row.passes++;
	scrub_save(t);
	scrub_free(t);
	log_info("scrub", "a pass has ended", "bytes=%llu found=%llu",
		 (unsigned long long)s->row.checked, (unsigned long long)s->row.found);
}

static uint64_t rate_now(struct tier *t)
{
	struct scrub *s = &t->scrub;
	uint64_t max = atomic_load(&s->max_bytes_per_s), pass = atomic_load(&s->pass_s), rate, left;
	uint64_t total = atomic_load(&s->total), end_s = s->row.started_s + pass, now = scrub_wall_s(t);

	max = max ? max : UINT64_MAX;
	if (s->row.asked || !pass)
		return max;
	left = end_s > now ? end_s - now : 0;
	rate = (total > s->row.checked ? total - s->row.checked : 0) / MAX(left, pass / 20 + 1);
	return MAX(MIN(rate, max), 1);
}

static void take_wishes(struct tier *t)
{
	struct scrub *s = &t->scrub;
	uint32_t want = atomic_exchange(&s->want, 0);

	if (want & WANT_STOP) {
		s->row.stopped = true;
		scrub_save(t);
	}
	if (want & WANT_START) {
		s->row.stopped = false;
		if (s->row.phase == SCRUB_IDLE)
			pass_begin(t, true);
		s->row.asked = true;
		s->due_us = 0;
		scrub_save(t);
	}
}

uint64_t scrub_wait_us(struct tier *t)
{
	struct scrub *s = &t->scrub;
	uint64_t pass = atomic_load(&s->pass_s), now;

	if (atomic_load(&t->failed))
		return UINT64_MAX;
	if (atomic_load(&s->want))
		return 0;
	now = tier_mono_us(t);
	if (s->telling || (s->row.phase != SCRUB_IDLE && !s->row.stopped))
		return s->due_us > now ? s->due_us - now : 0;
	if (s->row.stopped || !pass || !atomic_load(&s->wall_known))
		return UINT64_MAX;
	if (scrub_wall_s(t) >= s->row.started_s + pass)
		return 0;
	return MIN((s->row.started_s + pass - scrub_wall_s(t)) * 1000000, 3600000000ull);
}

static void tell_step(struct tier *t)
{
	uint64_t bytes = 0;
	int rc = 0;

	if (!scrub_walk_step(t, &t->scrub.tell, &bytes, &rc) || rc) {
		t->scrub.telling = false;
		t->scrub.tell = (struct scrub_walk){0};
		if (t->scrub.row.phase == SCRUB_IDLE)
			scrub_free(t);
	}
	t->scrub.due_us = tier_mono_us(t) + bytes / PAGE_COST * TELL_PAGE_US;
}

void scrub_step(struct tier *t)
{
	struct scrub *s = &t->scrub;
	uint64_t bytes = 0, rate, us;
	int rc = 0;

	take_wishes(t);
	if (pace_fill(t) >= FILL_FULL) {
		s->due_us = tier_mono_us(t) + BUSY_US;
		return;
	}
	scrub_memory(s);
	if (s->telling) {
		tell_step(t);
		return;
	}
	if (s->row.stopped)
		return;
	switch (s->row.phase) {
	case SCRUB_IDLE:
		pass_begin(t, false);
		break;
	case SCRUB_SEGMENTS:
		if (!scrub_segment_step(t, &bytes, &rc)) {
			s->row.phase = SCRUB_MAP;
			s->row.object = s->row.page = 0;
			scrub_save(t);
		}
		break;
	case SCRUB_MAP: {
		struct scrub_walk w = {s->row.object, s->row.page};

		if (!scrub_walk_step(t, &w, &bytes, &rc) && !rc) {
			s->row.phase = SCRUB_MOVE;
			s->in_segment = false;
		}
		s->row.object = w.object;
		s->row.page = w.page;
		if (s->row.phase == SCRUB_MOVE || w.page % SAVE_PAGES < WALK_PAGES)
			scrub_save(t);
		break;
	}
	case SCRUB_MOVE:
		if (!scrub_move_step(t, &bytes))
			pass_end(t);
		break;
	}
	s->row.checked += bytes;
	rate = rate_now(t);
	us = rate == UINT64_MAX ? 0 : bytes * 1000000 / rate;
	if (atomic_load(&s->pass_s))
		us = MIN(us, atomic_load(&s->pass_s) * 1000000ull / PASS_STEPS);
	if (rc) {
		log_warn("scrub", "a step failed; it is tried again", "rc=%s", err_name(rc));
		us = RETRY_US;
	}
	atomic_store(&s->rate_bytes_per_s, (uint32_t)MIN(rate, UINT32_MAX));
	s->due_us = tier_mono_us(t) + us;
	publish(t);
}

/* ---- Any thread --------------------------------------------------------------------------------
 */

void tier_scrub_pace(struct tier *t, uint32_t pass_s, uint64_t max_bytes_per_s, uint64_t now_s)
{
	struct scrub *s = &t->scrub;
	bool first = !atomic_load(&s->wall_known) || atomic_load(&s->pass_s) != pass_s ||
		     atomic_load(&s->max_bytes_per_s) != max_bytes_per_s;

	if (!t->started)
		return;
	atomic_store(&s->wall_offset_s, (int64_t)now_s - (int64_t)(tier_mono_us(t) / 1000000));
	atomic_store(&s->pass_s, pass_s);
	atomic_store(&s->max_bytes_per_s, max_bytes_per_s);
	atomic_store(&s->wall_known, true);
	if (first)
		sem_post(&t->more_work);
}

static void want(struct tier *t, enum scrub_want what)
{
	atomic_fetch_or(&t->scrub.want, what);
	sem_post(&t->more_work);
}

void tier_scrub_start(struct tier *t)
{
	want(t, WANT_START);
}

void tier_scrub_stop(struct tier *t)
{
	want(t, WANT_STOP);
}

void tier_scrub_status(struct tier *t, struct store_scrub *out)
{
	struct scrub *s = &t->scrub;

	*out = (struct store_scrub){.phase = (enum store_scrub_phase)atomic_load(&s->phase),
				    .stopped = atomic_load(&s->stopped),
				    .asked = atomic_load(&s->asked),
				    .started_s = atomic_load(&s->started_s),
				    .finished_s = atomic_load(&s->finished_s),
				    .passes = atomic_load(&s->passes),
				    .found = atomic_load(&s->found),
				    .found_ever = atomic_load(&s->found_ever),
				    .found_last_s = atomic_load(&s->found_last_s),
				    .checked_bytes = atomic_load(&s->checked),
				    .total_bytes = atomic_load(&s->total),
				    .rate_bytes_per_s = atomic_load(&s->rate_bytes_per_s)};
	for (unsigned i = 0; i < GROUP_DEVICES_MAX; i++)
		out->device_bad[i] = atomic_load(&s->device_bad[i]);
	/* Asked for, and not begun yet. */
	if (atomic_load(&s->want) & WANT_START && out->phase == SCRUB_IDLE)
		out->phase = SCRUB_SEGMENTS;
}
