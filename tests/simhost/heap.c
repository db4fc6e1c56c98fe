/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of virtual processes: what product code allocates is noted under its process, so that a
 * killed process gives everything back and a clean one can be asked what it forgot. */
#include <stdlib.h>
#include <string.h>

#include "node/base/hmap.h"
#include "tests/simhost/impl.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
char *__wrap_strdup(const char *s);
void __wrap_free(void *p);

/* Open addressing, linear probing, deletion by shifting back. */
struct slot {
	void *p;
	struct vproc *proc;
};
static struct slot *slots;
static size_t slot_mask, slot_used;
static unsigned keep;

static size_t home_of(const void *p)
{
	return hash_u64((uintptr_t)p) & slot_mask;
}

static void slot_put(void *p, struct vproc *proc)
{
	size_t i;

	/* Found already: a library outside has freed it, and it comes anew. */
	for (i = home_of(p); slots[i].p && slots[i].p != p; i = (i + 1) & slot_mask)
		;
	slot_used += !slots[i].p;
	slots[i] = (struct slot){p, proc};
}

static void grow(void)
{
	struct slot *old = slots;
	size_t n = old ? slot_mask + 1 : 0;

	slot_mask = n ? n * 2 - 1 : 4095;
	slots = __real_calloc(slot_mask + 1, sizeof(*slots));
	CHECK(slots);
	slot_used = 0;
	for (size_t i = 0; i < n; i++)
		if (old[i].p)
			slot_put(old[i].p, old[i].proc);
	__real_free(old);
}

static void *note(void *p)
{
	struct vproc *proc = keep ? NULL : vproc_current();

	if (!p || !proc)
		return p;
	if (!slots || slot_used * 2 > slot_mask)
		grow();
	slot_put(p, proc);
	return p;
}

static void slot_clear(size_t i)
{
	for (size_t j = (i + 1) & slot_mask; slots[j].p; j = (j + 1) & slot_mask) {
		size_t home = home_of(slots[j].p);

		/* j may fill the gap if its home is not within (i, j]. */
		if (i <= j ? (home <= i || home > j) : (home <= i && home > j)) {
			slots[i] = slots[j];
			i = j;
		}
	}
	slots[i].p = NULL;
	slot_used--;
}

static struct vproc *forget(void *p)
{
	struct vproc *proc;
	size_t i;

	if (!slots || !p)
		return NULL;
	for (i = home_of(p); slots[i].p != p; i = (i + 1) & slot_mask)
		if (!slots[i].p)
			return NULL;
	proc = slots[i].proc;
	slot_clear(i);
	return proc;
}

void *__wrap_malloc(size_t n)
{
	return note(__real_malloc(n));
}

void *__wrap_calloc(size_t count, size_t size)
{
	return note(__real_calloc(count, size));
}

void *__wrap_realloc(void *p, size_t n)
{
	struct vproc *proc = forget(p);
	void *q = __real_realloc(p, n);

	if (q && p && proc)
		slot_put(q, proc);
	else if (q && !p)
		note(q);
	return q;
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
	int rc = __real_posix_memalign(out, align, n);

	if (!rc)
		note(*out);
	return rc;
}

char *__wrap_strdup(const char *s)
{
	return note(__real_strdup(s));
}

void __wrap_free(void *p)
{
	forget(p);
	__real_free(p);
}

void simhost_keep_begin(void)
{
	keep++;
}

void simhost_keep_end(void)
{
	CHECK(keep);
	keep--;
}

void *keep_alloc(size_t n)
{
	void *p = __real_calloc(1, n ? n : 1);

	CHECK(p);
	return p;
}

void *keep_dup(const void *p, size_t n)
{
	void *q = __real_malloc(n ? n : 1);

	CHECK(q);
	if (n)
		memcpy(q, p, n);
	return q;
}

char *keep_str(const char *s)
{
	return keep_dup(s, strlen(s) + 1);
}

void keep_free(void *p)
{
	__real_free(p);
}

size_t heap_count(const struct vproc *p)
{
	size_t n = 0;

	for (size_t i = 0; slots && i <= slot_mask; i++)
		n += slots[i].p && slots[i].proc == p;
	return n;
}

void heap_drop(struct vproc *p)
{
	for (size_t i = 0; slots && i <= slot_mask;) {
		if (slots[i].p && slots[i].proc == p) {
			__real_free(slots[i].p);
			slot_clear(i); /* another may have come here */
		} else {
			i++;
		}
	}
}
