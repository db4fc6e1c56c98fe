/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery: torn tails, damage, sealed lanes, other shard counts, lost logs. */
#include "tests/store/log/fake_tier.h"
#include "tests/store/log/rig.h"

#define MIB (1ull << 20)

/* Where the batch with this seq of lane `lane` begins on device 0 of a closed single-tier rig. */
static uint64_t find_batch(struct rig *r, unsigned lane, uint64_t seq, struct log_batch_header *out)
{
	CLEANUP(free_ptr) uint8_t *seg = NULL;
	struct device d;
	uint64_t found = 0;

	EXPECT_OK(device_open(&d, r->paths[0], true, true));
	EXPECT_OK(device_read_superblock(&d));
	seg = xmalloc(d.sb.log_segment_size);
	for (uint64_t off = 0; off < d.sb.log_len && !found; off += d.sb.log_segment_size) {
		struct log_segment_header h;

		rig_peek(r, 0, d.sb.log_start + off, seg, d.sb.log_segment_size);
		if (log_segment_decode(seg, &h) || h.lane != lane)
			continue;
		for (uint64_t b = BLOCK_SIZE; b < d.sb.log_segment_size && !found;) {
			if (log_batch_peek(seg + b, out) || out->generation != h.generation)
				break;
			if (out->seq == seq)
				found = d.sb.log_start + off + b;
			b += (uint64_t)(out->header_blocks + out->payload_blocks) * BLOCK_SIZE;
		}
	}
	device_close(&d);
	EXPECT(found);
	return found;
}

/* Ten appends, one batch each: batches 1–10 of the lane; the last names at least 8 as durable. */
static void ten_writes(struct rig *r, const char *name)
{
	rig_begin(r, name);
	EXPECT_OK(rig_create(r, 4, 1));
	for (uint64_t s = 1; s <= 10; s++) {
		struct record rec = rec_write(1, s, (uint32_t)s, 1);

		EXPECT_OK(rig_append(r, 2, &rec, s));
	}
	rig_close(r);
}

/* Of a batch nothing arrived, or no more is left: its header reads as zeroes. */
static void lose_batch(struct rig *r, uint64_t seq)
{
	struct log_batch_header h;
	uint8_t zero[BLOCK_SIZE] = {0};

	rig_poke(r, 0, find_batch(r, 0, seq, &h), zero, sizeof(zero));
}

static void expect_prefix(struct rig *r, uint64_t last)
{
	EXPECT_EQ(rig_last(r, 2).seq, last);
	rig_commit(r, 2, 1, last);
	for (uint64_t s = 1; s <= 10; s++)
		expect_block(r, 2, (uint32_t)s, s <= last ? s : 0);
}

TEST(recovery, torn_payload_is_cut)
{
	struct rig r;
	struct log_batch_header h;
	uint64_t at;
	uint8_t byte = 0x5a;

	ten_writes(&r, "torn1");
	at = find_batch(&r, 0, 10, &h);
	rig_poke(&r, 0, at + BLOCK_SIZE + 1000, &byte, 1);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT(!store_is_damaged(rig_object(&r, 2, 1)));
	expect_prefix(&r, 9);
	rig_close(&r);
	/* And ends there for good, although the bytes come back. */
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 9);
	rig_close(&r);
}

TEST(recovery, torn_header_is_cut)
{
	struct rig r;

	ten_writes(&r, "torn2");
	lose_batch(&r, 10);
	EXPECT_OK(rig_open(&r, 1));
	expect_prefix(&r, 9);
	rig_close(&r);
}

/* A batch behind a torn one, and behind the seal that replaces it, never comes back. */
TEST(recovery, nothing_behind_a_tear_returns)
{
	struct rig r;
	struct log_batch_header h;
	uint8_t keep[2 * BLOCK_SIZE];
	uint64_t ten;

	ten_writes(&r, "tear");
	ten = find_batch(&r, 0, 10, &h);
	/* Batches 9 and 10 in flight together: 10 must not name 9 as durable. */
	rig_peek(&r, 0, ten, keep, sizeof(keep));
	EXPECT_OK(log_batch_peek(keep, &h));
	EXPECT_EQ(h.durable, 9);
	h.durable = 8;
	struct device d;

	EXPECT_OK(device_open(&d, r.paths[0], true, true));
	EXPECT_OK(device_read_superblock(&d));
	memset(keep + 48, 0, 8);
	log_batch_seal(&h, keep, log_seed(&d.sb.log, d.sb.log_incarnation));
	device_close(&d);
	rig_poke(&r, 0, ten, keep, sizeof(keep));
	lose_batch(&r, 9);
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_OK(rig_open(&r, 1));
		EXPECT(!store_is_damaged(rig_object(&r, 2, 1)));
		EXPECT_EQ(rig_last(&r, 2).seq, 8);
		rig_close(&r);
	}
	EXPECT_OK(rig_open(&r, 1));
	expect_prefix(&r, 8);
	rig_close(&r);
}

TEST(recovery, damage_below_durable_is_told)
{
	struct rig r;

	ten_writes(&r, "damage");
	lose_batch(&r, 5);
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_OK(rig_open(&r, 1));
		EXPECT(store_is_damaged(rig_object(&r, 2, 1)));
		EXPECT(store_is_damaged(rig_object(&r, 4, 1)));
		EXPECT_EQ(rig_last(&r, 2).seq, 4);
		if (!i)
			rig_close(&r);
	}
	/* Filled again, the replica is whole, and stays so. */
	EXPECT_OK(rig_header(&r, 2, RECORD_COMPLETE,
			     &(struct object_header){.seen = 1, .commit = {1, 10}},
			     (struct version){1, 10}));
	EXPECT(!store_is_damaged(rig_object(&r, 2, 1)));
	EXPECT_OK(rig_reopen(&r, 1));
	EXPECT(!store_is_damaged(rig_object(&r, 2, 1)));
	EXPECT(store_is_damaged(rig_object(&r, 4, 1)));
	EXPECT_EQ(rig_last(&r, 2).seq, 10);
	rig_close(&r);
}

/* What recovery once believed is sealed: its decay later is damage, not a tear. */
TEST(recovery, decay_of_what_was_believed_is_damage)
{
	struct rig r;

	ten_writes(&r, "decay");
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 10);
	rig_close(&r);
	lose_batch(&r, 10);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT(store_is_damaged(rig_object(&r, 2, 1)));
	rig_close(&r);
}

/* A payload that decays below the durable mark is found by the read, never served. */
TEST(recovery, decayed_payload_is_not_served)
{
	struct rig r;
	struct log_batch_header h;
	struct store_read op;
	CLEANUP(free_ptr) uint8_t *got = xalloc_aligned(BLOCK_SIZE, 3 * BLOCK_SIZE);
	uint8_t byte = 0x77;

	ten_writes(&r, "payload");
	rig_poke(&r, 0, find_batch(&r, 0, 5, &h) + BLOCK_SIZE + 17, &byte, 1);
	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(rig_last(&r, 2).seq, 10);
	rig_commit(&r, 2, 1, 10);
	for (unsigned destaged = 0; destaged < 2; destaged++) {
		EXPECT_RC(rig_read(&r, 2, 4, 3, got, &op), -ERR_DAMAGED);
		EXPECT_EQ(op.bad[0], 2);
		expect_block(&r, 2, 4, 4);
		expect_block(&r, 2, 6, 6);
		EXPECT_OK(rig_flush(&r));
	}
	rig_close(&r);
}

/* Other shard counts: objects move to other lanes, the old ones empty first. */
TEST(recovery, other_shard_counts)
{
	static const unsigned counts[] = {2, 4, 1, 2, 1, 4};
	struct rig r;
	uint64_t seq = 0;

	rig_make(&r, "shards", 1, false, 256 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	for (uint64_t id = 0; id < 8; id++)
		EXPECT_OK(rig_create(&r, id, 1));
	for (unsigned i = 0; i < ARRAY_LEN(counts); i++) {
		for (unsigned k = 0; k < 12; k++) {
			seq++;
			for (uint64_t id = 0; id < 8; id++) {
				struct record rec = rec_write(1, seq, (uint32_t)(seq % 24), 1);

				EXPECT_OK(rig_append(&r, id, &rec, seq * 10 + id));
				if (id % 2) /* the others stay uncommitted across the change */
					rig_commit(&r, id, 1, seq);
			}
		}
		if (i == 3)
			EXPECT_OK(rig_flush(&r));
		EXPECT_OK(rig_reopen(&r, counts[i]));
		for (uint64_t id = 0; id < 8; id++)
			EXPECT_EQ(rig_last(&r, id).seq, seq);
	}
	for (uint64_t id = 0; id < 8; id++) {
		rig_commit(&r, id, 1, seq);
		for (uint64_t k = 0; k < 24; k++)
			expect_block(&r, id, (uint32_t)((seq - k) % 24), (seq - k) * 10 + id);
	}
	EXPECT_OK(rig_flush(&r));
	for (uint64_t id = 0; id < 8; id++)
		expect_block(&r, id, (uint32_t)(seq % 24), seq * 10 + id);
	rig_close(&r);
}

TEST(recovery, too_many_shards_are_refused)
{
	struct rig r;

	rig_make(&r, "many", 1, false, 192 * MIB);
	EXPECT_RC(rig_open(&r, 8), -ERR_LIMIT);
	EXPECT_RC(rig_open(&r, 3), -EINVAL);
	EXPECT_OK(rig_open(&r, 4));
	rig_close(&r);
}

/* A map that is older than what the log knows of was lost. */
TEST(recovery, lost_map_is_told)
{
	struct rig r;
	struct record rec = rec_write(1, 1, 0, 1);

	rig_begin(&r, "lostmap");
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 1, 1);
	EXPECT_OK(rig_flush(&r));
	rec = rec_write(1, 2, 0, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	rig_close(&r);
	fake_tier_drop(r.meta);
	EXPECT_RC(rig_open(&r, 1), -ERR_MAP_LOST);
}

/* Segments that a session released itself stay so when a later one has released its last: what said so was a
 * batch in there, and its space may be somebody else's. */
TEST(recovery, released_segments_stay_released)
{
	struct rig r, c, d;
	struct record rec = rec_write(1, 1, 0, 1);
	uint64_t seq = 0, earlier;

	rig_make(&r, "stale", 1, false, 192 * MIB);
	EXPECT_OK(rig_open(&r, 2));
	EXPECT_OK(rig_create(&r, 2, 1));
	EXPECT_OK(rig_create(&r, 3, 1));
	EXPECT_OK(rig_append(&r, 3, &rec, 1)); /* the other lane has the oldest segment, for long */
	while (atomic_load(&r.store->generation) < r.store->session + 5) {
		seq++;
		rec = rec_write(1, seq, (uint32_t)(seq % 2) * 256, 256);
		rec.commit = (struct version){1, seq - 1};
		EXPECT_OK(rig_append(&r, 2, &rec, seq));
	}
	rig_commit(&r, 2, 1, seq);
	EXPECT_OK(rig_flush(&r));
	rec = rec_write(1, ++seq, 0, 1); /* its batch names what was released */
	EXPECT_OK(rig_append(&r, 2, &rec, seq));
	rig_crash_copy(&r, &c, "stale1", NULL, NULL);
	rig_close(&r);

	EXPECT_OK(rig_open(&c, 2));
	earlier = seq;
	while (atomic_load(&c.store->generation) < c.store->session + 2) { /* over the first two of them */
		rec = rec_write(1, ++seq, 0, 256);
		EXPECT_OK(rig_append(&c, 2, &rec, seq));
	}
	rig_commit(&c, 2, 1, earlier); /* no more: this session has nothing to release, and names nothing */
	rig_commit(&c, 3, 1, 1);
	while (atomic_load(&c.store->legacy_left))
		EXPECT_OK(rig_flush(&c));
	rig_crash_copy(&c, &d, "stale2", NULL, NULL);
	rig_close(&c);

	EXPECT_OK(rig_open(&d, 2));
	EXPECT(!store_is_damaged(rig_object(&d, 2, 1)));
	EXPECT_EQ(rig_last(&d, 2).seq, seq);
	rig_close(&d);
}

/* Where the lane's first segment begins, and its header, to put back: that it is released may not have come
 * so far when the power went, though that of a later one has. */
struct first_segment {
	uint64_t off;
	uint8_t header[BLOCK_SIZE];
};

static void first_segment_take(struct rig *r, struct first_segment *f)
{
	struct log_batch_header b;

	f->off = find_batch(r, 0, 1, &b) - BLOCK_SIZE;
	rig_peek(r, 0, f->off, f->header, sizeof(f->header));
}

/* It has of objects 2 and 3 a record each that nobody committed. */
static void earlier_session(struct rig *r, const char *name, struct first_segment *f)
{
	struct record rec = rec_write(1, 1, 3, 1);

	rig_begin(r, name);
	EXPECT_OK(rig_create(r, 3, 1));
	for (uint64_t id = 2; id <= 3; id++)
		EXPECT_OK(rig_append(r, id, &rec, 1));
	rig_close(r);
	first_segment_take(r, f);
}

/* The power goes, and the mark of the first segment's release was not durable; `after` is open. */
static void power_goes(struct rig *r, struct rig *after, const char *name, const struct first_segment *f)
{
	rig_crash_copy(r, after, name, NULL, NULL);
	rig_close(r);
	rig_poke(after, 0, f->off, f->header, sizeof(f->header));
	EXPECT_OK(rig_open(after, 1));
}

static bool earlier_segments_left(struct rig *r)
{
	struct store *s = r->store;
	bool left = atomic_load(&s->legacy_left);

	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < s->seg_count; i++)
		left |= s->segs[i].state == SEG_RELEASING;
	pthread_mutex_unlock(&s->lock);
	return left;
}

static int saves_headers(void *arg, struct wait *w)
{
	struct rig *r = arg;

	return r->store->shards[0].headers.busy ? 0 : -ERR_NOT_FOUND;
}

/* What an object has not committed holds the segments of earlier sessions, until it is cut. The tier is
 * paused: the headers that are saved then are of objects whose pages are in the log yet. */
static void let_go(struct rig *r, uint64_t id, const struct object_header *h)
{
	EXPECT(earlier_segments_left(r));
	EXPECT_OK(rig_header(r, id, RECORD_CUT, h, (struct version){0}));
	EXPECT_SOON(!rig_call(r, 0, saves_headers, r));
	fake_tier_set_paused(false);
	EXPECT_SOON(!earlier_segments_left(r));
}

/* A record that a cut took back stays so, though the map's header knows by now of a commit beyond it: what
 * was copied after the cut says what the page has only together with what was left. */
TEST(recovery, cut_below_the_commit_of_the_map)
{
	struct rig r, c;
	struct first_segment first;
	struct record rec;
	struct object_header h = {.seen = 2, .epochs = {{1, 1}, {2, 2}}, .epoch_count = 2};

	earlier_session(&r, "cut-map", &first);

	EXPECT_OK(rig_open(&r, 1));
	fake_tier_set_paused(true);
	EXPECT_OK(rig_header(&r, 2, RECORD_CUT, &h, (struct version){0}));
	rec = rec_copy(2, 2, 0);
	EXPECT_OK(rig_append(&r, 2, &rec, 2)); /* block 3 is a hole on both sides */
	EXPECT_OK(rig_header(&r, 2, RECORD_COMPLETE, &h, (struct version){2, 2}));
	rig_commit(&r, 2, 2, 2);
	let_go(&r, 3, &h);
	expect_block(&r, 2, 3, 0);
	power_goes(&r, &c, "cut-map2", &first);

	EXPECT_EQ(rig_last(&c, 2).seq, 2);
	expect_block(&c, 2, 3, 0);
	rig_close(&c);
}

/* A record of a history that was given up is told by the epoch table (I4) when the segment with its cut is
 * gone, and with it the record that has its number now. */
TEST(recovery, history_given_up_whose_cut_is_gone)
{
	struct rig r, c;
	struct first_segment first;
	struct record rec;
	struct object_header h = {.seen = 2, .epochs = {{2, 1}}, .epoch_count = 1};

	earlier_session(&r, "given-up", &first);

	EXPECT_OK(rig_open(&r, 1));
	EXPECT_OK(rig_header(&r, 2, RECORD_CUT, &h, (struct version){0}));
	rec = rec_write(2, 1, PAGE_BLOCKS, 1);
	EXPECT_OK(rig_append(&r, 2, &rec, 1));
	rig_commit(&r, 2, 2, 1);
	EXPECT_OK(rig_flush(&r));
	rig_close(&r);

	EXPECT_OK(rig_open(&r, 1));
	fake_tier_set_paused(true);
	rec = rec_write(2, 2, 2 * PAGE_BLOCKS, 1);
	rec.commit = rec.version;
	EXPECT_OK(rig_append(&r, 2, &rec, 2));
	let_go(&r, 3, &h);
	power_goes(&r, &c, "given-up2", &first);

	EXPECT_EQ(rig_last(&c, 2).seq, 2);
	expect_block(&c, 2, 3, 0);
	expect_block(&c, 2, PAGE_BLOCKS, 1);
	expect_block(&c, 2, 2 * PAGE_BLOCKS, 2);
	rig_close(&c);
}

/* A page of a history that was given up comes back from a first segment that lost the mark of its release,
 * and the copy that took its place is in the map only: the map's counts, though its number is lower. */
TEST(recovery, history_given_up_whose_copy_is_in_the_map)
{
	struct rig r, c;
	struct first_segment first;
	struct record rec = rec_copy(1, 9, 3);
	struct record held = rec_write(1, 1, 0, 1);
	struct object_header h = {.seen = 2, .epochs = {{1, 1}, {2, 2}}, .epoch_count = 2};
	uint64_t seq = 0;

	rig_make(&r, "outlived", 1, false, 192 * MIB);
	EXPECT_OK(rig_open(&r, 1));
	for (uint64_t id = 2; id <= 4; id++)
		EXPECT_OK(rig_create(&r, id, 1));
	EXPECT_OK(rig_append(&r, 4, &held, 1)); /* as long as it is not committed, nothing is released */
	EXPECT_OK(rig_append(&r, 2, &rec, 9));
	while (atomic_load(&r.store->generation) < r.store->session + 2) { /* the second segment */
		rec = rec_write(1, ++seq, 0, 256);
		rec.commit = (struct version){1, seq - 1};
		EXPECT_OK(rig_append(&r, 3, &rec, seq));
	}
	rig_commit(&r, 3, 1, seq);
	EXPECT_OK(rig_header(&r, 2, RECORD_EPOCH, &h, (struct version){0}));
	rec = rec_copy(2, 4, 1);
	rec.copy_hole = 2;
	EXPECT_OK(rig_append(&r, 2, &rec, 4));
	rig_close(&r);
	first_segment_take(&r, &first);

	EXPECT_OK(rig_open(&r, 1));
	EXPECT_EQ(atomic_load(&r.store->legacy_left), 2);
	rig_commit(&r, 3, 1, seq);
	rig_commit(&r, 4, 1, 1);
	while (earlier_segments_left(&r))
		EXPECT_OK(rig_flush(&r));
	power_goes(&r, &c, "outlived2", &first);

	expect_block(&c, 2, 0, 4);
	expect_block(&c, 2, 1, 0);
	rig_close(&c);
}

/* Killed with batches in flight at many moments: all that was answered is there. */
TEST(recovery, crash_copies)
{
	struct rig r, c;
	uint64_t seq = 0;

	rig_begin(&r, "crash");
	for (unsigned i = 0; i < 6; i++) {
		for (unsigned k = 0; k < 20; k++) {
			struct record rec;

			seq++;
			rec = rec_write(1, seq, (uint32_t)(seq % 40), 1);
			rec.commit = (struct version){1, seq - 1};
			EXPECT_OK(rig_append(&r, 2, &rec, seq));
		}
		if (i % 2)
			EXPECT_OK(rig_flush(&r));
		rig_crash_copy(&r, &c, "crashed", NULL, NULL);
		EXPECT_OK(rig_open(&c, 1));
		EXPECT_EQ(rig_last(&c, 2).seq, seq);
		rig_commit(&c, 2, 1, seq);
		for (uint64_t s = seq > 40 ? seq - 39 : 1; s <= seq; s++)
			expect_block(&c, 2, (uint32_t)(s % 40), s);
		rig_close(&c);
	}
	rig_close(&r);
}
