/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold, whatever happens: at most one leader per term; what is committed at an index is
 * committed there for ever, on every node, and is in the log of every later leader; logs that agree
 * at an index agree before it; equal index, equal state; what was acknowledged is committed, what
 * was refused is not; and when everything is healed the group works again. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/consensus_message.h"
#include "node/base/hash.h"
#include "tests/consensus/sim.h"

void sim_fail(struct sim *s, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	if (s->failure[0])
		return;
	va_start(ap, fmt);
	vsnprintf(s->failure, sizeof(s->failure), fmt, ap);
	va_end(ap);
	n = strlen(s->failure);
	snprintf(s->failure + n, sizeof(s->failure) - n, " (at %llu ms)",
		 (unsigned long long)s->now_us / 1000);
}

void check_init(struct sim *s)
{
	s->committed = xcalloc(SIM_INDEX_MAX, sizeof(*s->committed));
	s->refused = xcalloc(SIM_INDEX_MAX * 4, 1);
}

void check_fini(struct sim *s)
{
	free(s->committed);
	free(s->refused);
}

/* libraft's in-memory log; NULL: not there. */
static const struct raft_entry *entry_of(const struct raft *r, uint64_t index)
{
	const struct raft_log *l = &r->log;
	size_t n = l->front <= l->back ? l->back - l->front : l->size - l->front + l->back;

	if (index <= l->offset || index > l->offset + n)
		return NULL;
	return &l->entries[(l->front + (index - 1 - l->offset)) % l->size];
}

static uint64_t entry_hash(const struct raft_entry *e)
{
	return hash_xxh3(e->buf.base, e->buf.len, e->term * 4 + e->type) | 1;
}

static void check_commit(struct sim *s, struct sim_node *n, uint64_t index)
{
	const struct raft_entry *e = entry_of(&n->c->raft, index);
	struct sim_committed *k = &s->committed[index];

	if (!e)
		return; /* came with a snapshot: its state is compared */
	if (index > s->committed_max)
		s->committed_max = index;
	if (!k->hash) {
		k->hash = entry_hash(e);
		k->term = e->term;
		k->type = (uint8_t)e->type;
		k->leader_term = n->c->raft.current_term;
		k->command = e->type == RAFT_COMMAND ? sim_command_of(e->buf.base, e->buf.len) : 0;
		s->stats.commits++;
		if (k->command && s->refused[k->command])
			sim_fail(s, "command %llu was refused, but is committed at %llu",
				 (unsigned long long)k->command, (unsigned long long)index);
	} else if (k->hash != entry_hash(e)) {
		sim_fail(s, "node %u commits another entry at %llu: term %llu, was %llu", n->id,
			 (unsigned long long)index, (unsigned long long)e->term,
			 (unsigned long long)k->term);
	}
}

/* A new leader has everything that was committed in earlier terms. */
static void check_leader(struct sim *s, struct sim_node *n)
{
	const struct raft *r = &n->c->raft;
	uint64_t term = r->current_term;

	s->stats.elections++;
	if (term >= ARRAY_LEN(s->leader_of))
		return;
	if (s->leader_of[term] && s->leader_of[term] != n->id)
		sim_fail(s, "two leaders in term %llu: %u and %u", (unsigned long long)term,
			 s->leader_of[term], n->id);
	s->leader_of[term] = n->id;
	for (uint64_t i = n->c->view.snapshot_index + 1; i <= s->committed_max; i++) {
		const struct sim_committed *k = &s->committed[i];
		const struct raft_entry *e = entry_of(r, i);

		if (k->hash && k->leader_term < term && (!e || entry_hash(e) != k->hash))
			sim_fail(s,
				 "leader %u of term %llu lacks the committed entry %llu of term "
				 "%llu",
				 n->id, (unsigned long long)term, (unsigned long long)i,
				 (unsigned long long)k->term);
	}
}

void check_node(struct sim *s, struct sim_node *n)
{
	const struct raft *r = &n->c->raft;
	bool leader = r->state == RAFT_LEADER;

	if (r->commit_index >= SIM_INDEX_MAX) {
		sim_fail(s, "commit index out of bounds");
		return;
	}
	if (r->commit_index < n->seen_commit)
		sim_fail(s, "the commit index of node %u falls", n->id);
	if (r->current_term < n->seen_term)
		sim_fail(s, "the term of node %u falls", n->id);
	for (uint64_t i = n->seen_commit + 1; i <= r->commit_index; i++)
		check_commit(s, n, i);
	if (leader && (!n->seen_leader || n->seen_term != r->current_term))
		check_leader(s, n);
	n->seen_commit = r->commit_index;
	n->seen_term = r->current_term;
	n->seen_leader = leader;
}

void check_applied(struct sim *s, struct sim_node *n, uint64_t index)
{
	struct sim_committed *k = &s->committed[index];

	if (index >= SIM_INDEX_MAX)
		return;
	if (!k->state)
		k->state = n->fsm_hash;
	else if (k->state != n->fsm_hash)
		sim_fail(s, "node %u has another state at %llu", n->id, (unsigned long long)index);
}

void check_acked(struct sim *s, uint64_t index, uint64_t command)
{
	const struct sim_committed *k = &s->committed[index];

	s->stats.acks++;
	/* Committed when applied; an entry is seen as committed at the end of its event. */
	if (k->hash && k->command != command)
		sim_fail(s, "acknowledged command %llu is not what is committed at %llu",
			 (unsigned long long)command, (unsigned long long)index);
}

static void check_pair(struct sim *s, const struct sim_node *a, const struct sim_node *b)
{
	uint64_t i = MIN(view_last(&a->c->view), view_last(&b->c->view));
	bool agree = false;

	for (; i > 0; i--) {
		const struct raft_entry *x = entry_of(&a->c->raft, i),
					*y = entry_of(&b->c->raft, i);

		if (!x || !y)
			return;
		if (x->term != y->term) {
			if (agree)
				sim_fail(s, "logs of %u and %u agree after %llu, but not there",
					 a->id, b->id, (unsigned long long)i);
			continue;
		}
		if (entry_hash(x) != entry_hash(y)) {
			sim_fail(s, "nodes %u and %u have two entries %llu of term %llu", a->id,
				 b->id, (unsigned long long)i, (unsigned long long)x->term);
			return;
		}
		agree = true;
	}
}

void check_logs(struct sim *s)
{
	for (unsigned i = 0; i < s->count; i++)
		for (unsigned j = i + 1; j < s->count; j++)
			if (s->node[i].up && s->node[j].up &&
			    s->node[i].c->wipes + s->node[j].c->wipes == 0)
				check_pair(s, &s->node[i], &s->node[j]);
}

void check_end(struct sim *s)
{
	struct sim_node *l = sim_leader(s);
	const struct raft_configuration *conf;

	check_logs(s);
	if (!l) {
		sim_fail(s, "no leader after everything was healed");
		return;
	}
	conf = &l->c->raft.configuration;
	for (unsigned i = 0; i < s->count; i++) {
		struct sim_node *n = &s->node[i];
		const struct raft_server *m = configuration_get(conf, n->id);

		if (!m || m->role == RAFT_SPARE)
			continue;
		if (n->c->raft.last_applied < s->committed_max)
			sim_fail(s, "node %u stays behind: applied %llu of %llu", n->id,
				 (unsigned long long)n->c->raft.last_applied,
				 (unsigned long long)s->committed_max);
		if (n->fsm_hash != l->fsm_hash && n->fsm_applied == l->fsm_applied)
			sim_fail(s, "node %u has another state at the end", n->id);
	}
}
