/* SPDX-License-Identifier: Apache-2.0 */
#include "node/base/hmap.h"

#include <stdlib.h>

void hmap_init(struct hmap *m)
{
	*m = (struct hmap){0};
}

void hmap_fini(struct hmap *m)
{
	free(m->slots);
	*m = (struct hmap){0};
}

static void hmap_resize(struct hmap *m, size_t size)
{
	struct hnode **slots = xcalloc(size, sizeof(*slots));

	for (size_t i = 0; i < m->size; i++) {
		struct hnode *n = m->slots[i];

		while (n) {
			struct hnode *next = n->next, **slot = &slots[n->hash & (size - 1)];

			n->next = *slot;
			*slot = n;
			n = next;
		}
	}
	free(m->slots);
	m->slots = slots;
	m->size = size;
	m->low = 0;
}

void hmap_reserve(struct hmap *m, size_t n)
{
	size_t size = m->size ? m->size : 16;

	while (size < n)
		size *= 2;
	if (size != m->size)
		hmap_resize(m, size);
}

void hmap_insert(struct hmap *m, struct hnode *n, uint64_t hash)
{
	struct hnode **slot;

	if (m->count >= m->size)
		hmap_reserve(m, m->count + 1);
	slot = &m->slots[hash & (m->size - 1)];
	if ((size_t)(slot - m->slots) < m->low)
		m->low = (size_t)(slot - m->slots);
	n->hash = hash;
	n->next = *slot;
	*slot = n;
	m->count++;
}

void hmap_remove(struct hmap *m, struct hnode *n)
{
	struct hnode **p = &m->slots[n->hash & (m->size - 1)];

	while (*p != n) {
		CHECK(*p);
		p = &(*p)->next;
	}
	*p = n->next;
	n->next = NULL;
	m->count--;
}

static struct hnode *hnode_match(struct hnode *n, uint64_t hash)
{
	while (n && n->hash != hash)
		n = n->next;
	return n;
}

struct hnode *hmap_first(const struct hmap *m, uint64_t hash)
{
	return m->size ? hnode_match(m->slots[hash & (m->size - 1)], hash) : NULL;
}

struct hnode *hmap_next(const struct hnode *n)
{
	return hnode_match(n->next, n->hash);
}

struct hnode *hmap_walk(const struct hmap *m, const struct hnode *after)
{
	size_t i = 0;

	if (after) {
		if (after->next)
			return after->next;
		i = (after->hash & (m->size - 1)) + 1;
	}
	for (; i < m->size; i++)
		if (m->slots[i])
			return m->slots[i];
	return NULL;
}

struct hnode *hmap_take(struct hmap *m)
{
	struct hnode *n;

	if (!m->count)
		return NULL;
	while (!m->slots[m->low])
		m->low++;
	n = m->slots[m->low];
	m->slots[m->low] = n->next;
	n->next = NULL;
	m->count--;
	return n;
}
