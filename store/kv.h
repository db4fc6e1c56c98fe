/* SPDX-License-Identifier: Apache-2.0 */
/* RocksDB's door: the map database of one group. Ordered rows in column families, atomic synced
 * commits, and the map merge (map_format.h) on KV_MAP. Every call blocks: only the destager thread,
 * the blocking pool and set-up threads make them. Gets and iterators may run on any of these at
 * once; batches and commits belong to one thread. The simulator puts an ordered map behind this
 * header. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "node/base/check.h"

enum kv_cf { KV_MAP, KV_REGION, KV_OBJ, KV_SHARE, KV_SLOC, KV_SEG, KV_META, KV_CFS };
extern const char *const kv_cf_names[KV_CFS];

struct kv;
struct kv_batch;
struct kv_iter;

/* Removes a database in dir, if any, and makes an empty one. */
int kv_format(const char *dir) MUST_USE;
/* -ERR_MAP_LOST: none there, or its bytes are damaged. -ERR_DEVICE, -ENOSPC, -ERR_BUSY: it cannot be
 * opened now, which says nothing of what it holds; callers begin anew only after MAP_LOST. The log says
 * why. */
int kv_open(const char *dir, bool read_only, struct kv **out) MUST_USE;
/* For writing, and never compacted: a damaged table stays where it is, and what else there is can be read. */
int kv_open_as_is(const char *dir, struct kv **out) MUST_USE;
/* Reads all of a database that nobody has open, since opening one reads little of it: a table may be damaged
 * where only a compaction comes by. 0, or as kv_open: -ERR_MAP_LOST only for damage that was met twice. */
int kv_check(const char *dir) MUST_USE;
void kv_close(struct kv *kv);

/* -ERR_NOT_FOUND; -ERR_CORRUPT; -ERR_DEVICE. A value longer than cap: -ERR_LIMIT, *len says it. */
int kv_get(struct kv *kv, enum kv_cf cf, const void *key, size_t key_len, void *out, size_t cap,
	   size_t *len) MUST_USE;

#define KV_MULTI_MAX 256u
/* Keys ascending and distinct, n ≤ KV_MULTI_MAX. fn once per key: rc as of kv_get; the value is
 * valid inside fn only. Returns the highest number of merge operands any of them had. */
unsigned kv_multi_get(struct kv *kv, enum kv_cf cf, const void *const *keys, const size_t *key_lens,
		      unsigned n,
		      void (*fn)(void *arg, unsigned i, int rc, const void *value, size_t len),
		      void *arg);

/* Rows from `start` on (NULL: the first) and below `end` (NULL: all), ascending. Say the end: the
 * database walks over what was deleted up to the next row that lives, or up to there. */
#define KV_END_MAX 32u
struct kv_iter *kv_iter_range(struct kv *kv, enum kv_cf cf, const void *start, size_t start_len,
			      const void *end, size_t end_len);
/* false at the end or on an error; the memory is valid until the next call. */
bool kv_iter_next(struct kv_iter *it, const void **key, size_t *key_len, const void **value,
		  size_t *value_len);
int kv_iter_close(struct kv_iter *it) MUST_USE; /* the error that ended it, or 0 */

struct kv_batch *kv_batch_create(void);
void kv_batch_destroy(struct kv_batch *b);
void kv_batch_clear(struct kv_batch *b);
void kv_batch_put(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key, size_t key_len,
		  const void *value, size_t len);
void kv_batch_merge(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		    size_t key_len, const void *value, size_t len);
void kv_batch_delete(struct kv *kv, struct kv_batch *b, enum kv_cf cf, const void *key,
		     size_t key_len);
/* All or nothing. sync: durable at return. After an error nobody knows: the group has failed. */
int kv_commit(struct kv *kv, struct kv_batch *b, bool sync) MUST_USE;

uint64_t kv_used_bytes(struct kv *kv); /* estimate: tables and memtables */
/* What is in memtables goes to tables, so that kv_used_bytes is what there is. Takes its time. */
int kv_settle(struct kv *kv) MUST_USE;
/* What callers spent in gets and commits, keys they asked for, blocks that were read from tables for
 * these; any thread. */
struct kv_counts {
	uint64_t cpu_us, gets, table_reads;
};
void kv_counts(const struct kv *kv, struct kv_counts *out);
bool kv_is_failing(struct kv *kv);     /* background errors or stopped writes */
