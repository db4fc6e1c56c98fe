/* SPDX-License-Identifier: Apache-2.0 */
/* The range queue against its rule, scripted and against a naive model with random entries. */
#include "cluster/range_queue.h"
#include "node/base/rng.h"
#include "tests/lib/test.h"

static void nothing(struct range_entry *e)
{
}

static struct range_entry entry(uint32_t block, uint32_t blocks, enum range_kind kind)
{
	return (struct range_entry){
		.block = block, .blocks = blocks, .kind = kind, .granted = nothing};
}

TEST(range_queue, writes_pipeline_and_a_read_waits_for_them)
{
	struct range_queue q;
	struct range_entry w1 = entry(0, 4, RANGE_WRITE), w2 = entry(2, 4, RANGE_WRITE),
			   rd = entry(3, 1, RANGE_READ), w3 = entry(3, 2, RANGE_WRITE);

	range_queue_init(&q);
	EXPECT(range_enter(&q, &w1));
	EXPECT(range_enter(&q, &w2));
	EXPECT(!range_enter(&q, &rd));
	EXPECT(!range_enter(&q, &w3)); /* behind the read, which waits */
	range_leave(&q, &w2);
	EXPECT(!range_granted(&rd));
	range_leave(&q, &w1);
	EXPECT(range_granted(&rd));
	EXPECT(!range_granted(&w3));
	range_leave(&q, &rd);
	EXPECT(range_granted(&w3));
	range_leave(&q, &w3);
	EXPECT_EQ(q.count, 0);
}

TEST(range_queue, a_merge_is_alone_until_it_turns_into_a_write)
{
	struct range_queue q;
	struct range_entry rd = entry(7, 1, RANGE_READ), mg = entry(7, 2, RANGE_MERGE),
			   w = entry(8, 1, RANGE_WRITE), rd2 = entry(7, 1, RANGE_READ),
			   far = entry(9, 1, RANGE_READ);

	range_queue_init(&q);
	EXPECT(range_enter(&q, &rd));
	EXPECT(!range_enter(&q, &mg));
	EXPECT(!range_enter(&q, &w));
	EXPECT(!range_enter(&q, &rd2));
	EXPECT(range_enter(&q, &far));
	range_leave(&q, &rd);
	EXPECT(range_granted(&mg));
	range_turn_write(&q, &mg);
	EXPECT(range_granted(&w));
	EXPECT(!range_granted(&rd2));
	range_leave(&q, &mg);
	EXPECT(range_granted(&rd2));
}

TEST(range_queue, one_that_gives_up_frees_those_behind_it)
{
	struct range_queue q;
	struct range_entry w = entry(0, 1, RANGE_WRITE), rd = entry(0, 1, RANGE_READ),
			   w2 = entry(0, 1, RANGE_WRITE);

	range_queue_init(&q);
	EXPECT(range_enter(&q, &w));
	EXPECT(!range_enter(&q, &rd));
	EXPECT(!range_enter(&q, &w2));
	range_leave(&q, &rd); /* never granted */
	EXPECT(range_granted(&w2));
}

static bool clash(const struct range_entry *a, const struct range_entry *b)
{
	return a->block < b->block + b->blocks && b->block < a->block + a->blocks &&
	       !(a->kind == b->kind && a->kind != RANGE_MERGE);
}

/* At each moment an entry is granted exactly when nothing ahead of it conflicts. */
static void check_all(struct range_queue *q)
{
	struct range_entry *a, *b;

	list_for_each(a, &q->entries, link)
	{
		bool free = true;

		list_for_each(b, &q->entries, link)
		{
			if (a == b)
				break;
			free &= !clash(a, b);
		}
		EXPECT_EQ(range_granted(a), free);
	}
}

TEST(range_queue, agrees_with_the_definition_on_random_histories)
{
	struct range_queue q;
	static struct range_entry e[40];
	bool in[40] = {0};
	struct rng rng;

	rng_seed(&rng, 7);
	range_queue_init(&q);
	for (unsigned i = 0; i < 20000; i++) {
		unsigned k = (unsigned)rng_below(&rng, ARRAY_LEN(e));

		if (!in[k]) {
			e[k] = entry((uint32_t)rng_below(&rng, 16),
				     1 + (uint32_t)rng_below(&rng, 6),
				     (enum range_kind)rng_below(&rng, 3));
			range_enter(&q, &e[k]);
			in[k] = true;
		} else if (e[k].kind == RANGE_MERGE && range_granted(&e[k]) &&
			   rng_chance(&rng, 0.5)) {
			range_turn_write(&q, &e[k]);
		} else {
			range_leave(&q, &e[k]);
			in[k] = false;
		}
		check_all(&q);
	}
}
