/* SPDX-License-Identifier: Apache-2.0 */
/* A report of health: its rules (node/health_*.c, one function each, over a context that knows which
 * nodes and groups can be reached), causes before consequences, then what they found in the order to
 * read it. A consequence names its root, so that the operator starts where it began. Must never guess:
 * a rule whose facts are unknown stays silent. */
#include "node/health_impl.h"

const char *health_severity_name(enum health_severity s)
{
	static const char *const names[] = {"ok", "info", "warning", "error"};

	return names[s];
}

struct health_item *add_item(struct ctx *c, const char *code, enum health_severity severity)
{
	struct health_item *i = &c->out->item[c->out->count];

	CHECK(c->out->count < HEALTH_ITEMS_MAX);
	c->out->count++;
	memset(i, 0, sizeof(*i));
	snprintf(i->code, sizeof(i->code), "%s", code);
	i->severity = severity;
	return i;
}

/* The item at the root of i: i itself, or what caused it. */
static const char *root_code(const struct health_item *i)
{
	return i->caused_by[0] ? i->caused_by : i->code;
}

/* A root counts as much as the worst of its consequences. */
static enum health_severity group_severity(const struct health_report *r,
					   const struct health_item *i)
{
	enum health_severity worst = i->severity;

	for (unsigned k = 0; k < r->count; k++)
		if (!strcmp(root_code(&r->item[k]), root_code(i)))
			worst = MAX(worst, r->item[k].severity);
	return worst;
}

/* The worst root first, each followed by its consequences, worst first. */
static bool comes_before(const struct health_report *r, const struct health_item *a,
			 const struct health_item *b)
{
	enum health_severity ga = group_severity(r, a), gb = group_severity(r, b);
	int by_root = strcmp(root_code(a), root_code(b));

	if (ga != gb)
		return ga > gb;
	if (by_root)
		return by_root < 0;
	if (!a->caused_by[0] != !b->caused_by[0])
		return !a->caused_by[0];
	return a->severity > b->severity;
}

static void sort_items(struct health_report *r)
{
	struct health_item sorted[HEALTH_ITEMS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < r->count; i++) {
		unsigned k = n++;

		for (; k > 0 && comes_before(r, &r->item[i], &sorted[k - 1]); k--)
			sorted[k] = sorted[k - 1];
		sorted[k] = r->item[i];
	}
	memcpy(r->item, sorted, n * sizeof(sorted[0]));
}

void health_evaluate(const struct health_input *in, struct health_report *out)
{
	struct ctx c = {.in = in, .out = out};

	out->overall = HEALTH_OK;
	out->count = 0;
	out->objects = out->full = out->degraded = out->single = out->unavailable = 0;
	out->unrepaired = out->undecided = 0;
	health_count_voters(&c);
	health_check_nodes(&c);
	health_check_raft(&c);
	health_check_disks(&c);
	health_check_space(&c);
	health_check_data(&c);
	health_check_attachments(&c);
	sort_items(out);
	for (unsigned i = 0; i < out->count; i++)
		out->overall = MAX(out->overall, out->item[i].severity);
}

/* Less is how a clock is kept right. */
#define CLOCK_SET_MS 2000

/* How far the wall clock was set since the last report. */
static int64_t clock_set_ms(const struct health_memory *m, uint64_t now_ms, uint64_t mono_ms)
{
	int64_t by = (int64_t)(now_ms - m->now_ms) - (int64_t)(mono_ms - m->mono_ms);

	return by > CLOCK_SET_MS || by < -CLOCK_SET_MS ? by : 0;
}

void health_remember(struct health_memory *m, struct health_report *r, uint64_t now_ms, uint64_t mono_ms)
{
	struct health_memory next = {.count = r->count, .now_ms = now_ms, .mono_ms = mono_ms};
	int64_t set_ms = clock_set_ms(m, now_ms, mono_ms);

	for (unsigned i = 0; i < r->count; i++) {
		struct health_item *it = &r->item[i];

		it->since_ms = now_ms;
		for (unsigned k = 0; k < m->count; k++)
			if (!strcmp(m->seen[k].code, it->code))
				it->since_ms = m->seen[k].since_ms + (uint64_t)set_ms;
		snprintf(next.seen[i].code, sizeof(next.seen[i].code), "%s", it->code);
		next.seen[i].since_ms = it->since_ms;
	}
	*m = next;
}

/* A step is 5 %. It moves when it is off by more than one, so that it does not flutter; full is
 * told at once, since then nothing more may be placed there. */
uint8_t health_free_steps(uint64_t used_bytes, uint64_t free_bytes, uint8_t now)
{
	double exact = used_bytes + free_bytes
			       ? 20.0 * (double)free_bytes / (double)(used_bytes + free_bytes)
			       : 0;
	uint8_t steps = (uint8_t)exact;

	return !steps == !now && exact < now + 1.5 && exact > now - 0.5 ? now : steps;
}
