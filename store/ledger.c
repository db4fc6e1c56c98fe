/* SPDX-License-Identifier: Apache-2.0 */
/* Cells of the ledger, and the door to them. A reader must never see numbers of two commits mixed.
 */
#include "store/ledger.h"

#include "store/store_impl.h"

void ledger_cell_write(struct ledger_cell *c, const struct store_ledger *l)
{
	uint64_t turn = atomic_load_explicit(&c->turn, memory_order_relaxed) + 1,
		 words[LEDGER_WORDS];

	memcpy(words, l, sizeof(words));
	for (unsigned i = 0; i < LEDGER_WORDS; i++)
		atomic_store_explicit(&c->half[turn & 1][i], words[i], memory_order_relaxed);
	atomic_store_explicit(&c->turn, turn, memory_order_release);
	/* The next write to the half that readers of `turn − 1` are in comes after this is seen. */
	atomic_thread_fence(memory_order_seq_cst);
}

void ledger_cell_read(const struct ledger_cell *c, struct store_ledger *out)
{
	uint64_t turn, words[LEDGER_WORDS];

	do {
		turn = atomic_load_explicit(&c->turn, memory_order_acquire);
		for (unsigned i = 0; i < LEDGER_WORDS; i++)
			words[i] =
				atomic_load_explicit(&c->half[turn & 1][i], memory_order_relaxed);
		atomic_thread_fence(memory_order_acquire);
		/* Again only when a whole commit went by meanwhile. */
	} while (atomic_load_explicit(&c->turn, memory_order_relaxed) != turn);
	memcpy(out, words, sizeof(words));
}

void store_ledger(struct store *s, struct store_ledger *out)
{
	tier_ledger(s->tier, out);
}

bool store_volume_ledger(struct store *s, uint32_t volume, struct store_ledger *out)
{
	return tier_volume_ledger(s->tier, volume, out);
}

void store_volume_ledgers(struct store *s, store_ledger_fn *fn, void *arg)
{
	tier_volume_ledgers(s->tier, fn, arg);
}
