/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/tier/dedup_kit.h"

void d_start(struct harness *h, struct model *m, const char *name, unsigned size_mib)
{
	memset(m, 0, sizeof(*m));
	h_init(h, name, 1, size_mib, 1);
	h->dedup = true;
	EXPECT_OK(h_open(h));
	h_objects_put(h, m);
}

void d_end(struct harness *h, struct model *m)
{
	h_verify(h, true);
	h_compare(h, m, false);
	h_close(h);
	EXPECT_OK(h_open(h));
	h_verify(h, true);
	h_compare(h, m, false);
	h_end(h, m);
}

void d_wait_hints(struct harness *h)
{
	EXPECT_SOON(atomic_load(&h->tier->dedup.rebuilt));
}

/* One page with these seeds from block 0 on. */
void d_write_page(struct harness *h, struct model *m, unsigned object, uint32_t page,
		       const uint64_t *seeds, unsigned n)
{
	struct h_batch *b = h_batch_new(h, m, 0);

	h_batch_open_page(b, object, page);
	for (unsigned i = 0; i < n; i++)
		h_batch_block(b, i, seeds[i]);
	EXPECT_OK(h_batch_run(b));
}

void d_write_one(struct harness *h, struct model *m, unsigned object, uint32_t page,
		      uint64_t seed)
{
	d_write_page(h, m, object, page, &seed, 1);
}

unsigned d_kind_at(struct harness *h, unsigned object, uint32_t page, unsigned block,
			uint64_t *word)
{
	struct map_page p;

	EXPECT_OK(h_page_get(h, object, page, &p));
	*word = p.entry[block].word;
	return p.mask >> block & 1 ? map_entry_kind(p.entry[block].word) : MAP_HOLE;
}

bool d_row_get(struct harness *h, uint64_t id, struct share_row *row)
{
	uint8_t key[8], value[SHARE_VALUE_SIZE];
	size_t len;

	put_be64(key, id);
	return !kv_get(h->tier->kv, KV_SHARE, key, 8, value, sizeof(value), &len) &&
	       !share_decode(value, len, row);
}

unsigned d_rows_in(struct harness *h, enum kv_cf cf)
{
	struct kv_iter *it = kv_iter_range(h->tier->kv, cf, NULL, 0, NULL, 0);
	const void *key, *value;
	size_t key_len, len;
	unsigned n = 0;

	while (kv_iter_next(it, &key, &key_len, &value, &len))
		n++;
	EXPECT_OK(kv_iter_close(it));
	return n;
}
