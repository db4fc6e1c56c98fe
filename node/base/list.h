/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly-linked list. A node that is in no list points to itself. Single thread. */
#pragma once

#include "node/base/check.h"

struct list {
	struct list *prev, *next;
};

#define LIST_INIT(l) ((struct list){ &(l), &(l) })

static inline void list_init(struct list *l)
{
	l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_insert_between(struct list *n, struct list *prev, struct list *next)
{
	n->prev = prev;
	n->next = next;
	prev->next = n;
	next->prev = n;
}

static inline void list_push_back(struct list *l, struct list *n)
{
	list_insert_between(n, l->prev, l);
}

static inline void list_push_front(struct list *l, struct list *n)
{
	list_insert_between(n, l, l->next);
}

static inline void list_del(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}

static inline struct list *list_pop_front(struct list *l)
{
	struct list *n = l->next;

	if (n == l)
		return NULL;
	list_del(n);
	return n;
}

/* Moves all of `from` to the end of `to`. */
static inline void list_splice_back(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

#define list_entry(ptr, type, member) container_of(ptr, type, member)
#define list_first(l, type, member) container_of((l)->next, type, member)
#define list_last(l, type, member) container_of((l)->prev, type, member)

#define list_for_each(it, l, member)                                                               \
	for ((it) = container_of((l)->next, __typeof__(*(it)), member); &(it)->member != (l);      \
	     (it) = container_of((it)->member.next, __typeof__(*(it)), member))

/* `it` may be deleted in the body. */
#define list_for_each_safe(it, tmp, l, member)                                                     \
	for ((it) = container_of((l)->next, __typeof__(*(it)), member),                            \
	    (tmp) = container_of((it)->member.next, __typeof__(*(it)), member);                    \
	     &(it)->member != (l);                                                                 \
	     (it) = (tmp), (tmp) = container_of((tmp)->member.next, __typeof__(*(tmp)), member))
