/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold at every moment, and of replicas when all is quiet. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/replica_impl.h"
#include "node/base/err.h"
#include "tests/replica/credits.h"
#include "tests/simhost/impl.h"
#include "tests/simulator/audit.h"
#include "tests/simulator/sim.h"

/* ---- Objects as nodes have them ---- */

static struct object *object_at(struct sim_node *s, uint64_t id)
{
	struct shard *sh;

	if (!sim_node_serves(s))
		return NULL;
	sh = &s->node->shards[object_shard(id, s->node->shard_count)];
	return sh->replicator ? object_find(sh->replicator, id) : NULL;
}

static bool is_leased(const struct object *o, uint64_t now)
{
	if (!o || !o->primary || o->primary->state != PRIMARY_SERVE)
		return false;
	for (unsigned k = 0; k < o->primary->member_count; k++) {
		const struct member *m = &o->primary->member[k];

		if (m->want && (m->state != MEMBER_JOINED || !session_lease_valid(m->session, now)))
			return false;
	}
	return true;
}

/* At no instant do two processes serve one object with leases from all of their want. */
static void check_primaries(uint64_t id)
{
	unsigned found = 0;

	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[i];
		struct object *o = object_at(s, id);

		if (!o || !is_leased(o, loop_boot_us(o->r->loop)))
			continue;
		if (found)
			sim_fail("object %llx has two leased primaries, nodes %u and %u",
				 (unsigned long long)id, found, i);
		found = i;
	}
}

/* What a primary calls committed is durable at every replica of its want that it believes joined,
 * as that replica itself has it on disk (W4). */
static void check_durable(uint64_t id)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct object *o = object_at(&sim.node[i], id);
		struct version commit;

		if (!o || !o->primary || o->primary->state != PRIMARY_SERVE || !o->store)
			continue;
		commit = store_commit_version(o->store);
		for (unsigned k = 0; k < o->primary->member_count; k++) {
			const struct member *m = &o->primary->member[k];
			struct object *at = object_at(&sim.node[m->node], id);
			struct version durable;

			if (!m->want || m->state != MEMBER_JOINED || !at || !at->store ||
			    at->in.tenure != o->primary->tenure || at->in.state != IN_JOINED)
				continue;
			durable = store_durable(at->store);
			if (version_cmp(durable, commit) < 0)
				sim_fail("object %llx: node %u committed %u/%llu, node %u has only "
					 "%u/%llu durable",
					 (unsigned long long)id, i, commit.tenure,
					 (unsigned long long)commit.seq, m->node, durable.tenure,
					 (unsigned long long)durable.seq);
		}
	}
}

/* ---- What the product itself would tell an operator ---- */

static bool bytes_are_hurt(void)
{
	return sim.plan.rot > 0 || sim.plan.eio > 0 || sim.plan.device > 0;
}

void __wrap_replica_event(struct replicator *r, uint8_t severity, const char *code, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/* A replica that lost what it acknowledged or what others call committed, or that cannot read its log: none
 * of it may be as long as disks keep what they took. */
void __wrap_replica_event(struct replicator *r, uint8_t severity, const char *code, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!bytes_are_hurt())
		sim_fail("node %u says %s: %s", r->node, code, text);
	if (r->hooks->event)
		r->hooks->event(r->ctx, severity, code, text);
}

static void check_damage(const struct sim_node *s)
{
	if (bytes_are_hurt() || !sim_node_serves(s))
		return;
	for (unsigned i = 0; i < s->node->shard_count; i++) {
		struct replicator_stats st;

		replicator_stats(s->node->shards[i].replicator, &st);
		if (st.repairs || st.damaged_blocks || st.repaired_blocks || st.diverged_pages)
			sim_fail("node %u: %llu blocks damaged, %llu repaired, and no disk was hurt",
				 s->number, (unsigned long long)st.damaged_blocks,
				 (unsigned long long)(st.repairs + st.repaired_blocks));
	}
}

/* ---- Work ---- */

/* Turns of one loop in SIMHOST_BUSY_US. The busiest of those with so much to do took 7,100 (plan full_log);
 * one that waited without waiting took 360,000. */
#define TURNS_MAX 30000u

static void check_busy(void)
{
	const struct simhost_busy *b = simhost_busiest();

	if (b->turns > TURNS_MAX)
		sim_fail("%s: its loop %s took %llu turns within %u ms, up to %.1f ms", b->host, b->loop,
			 (unsigned long long)b->turns, SIMHOST_BUSY_US / SIM_MS, (double)b->at_us / 1000);
}

/* ---- Maps and Raft ---- */

#define TERMS_MAX 4096u
static uint16_t leader_of[TERMS_MAX];

static void check_control(void)
{
	uint64_t applied[SIM_NODES_MAX + 1] = {0}, digest[SIM_NODES_MAX + 1];

	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[i];
		const struct map *m = sim_node_map(s);
		struct consensus_status st;

		if (!m)
			continue;
		if (m->version < s->map_version)
			sim_fail("node %u: its map went back from version %llu to %llu", i,
				 (unsigned long long)s->map_version,
				 (unsigned long long)m->version);
		s->map_version = m->version;
		/* N1: its shards never see a map from before its registration. */
		if (sim_node_serves(s) && map_node(m, (uint16_t)i) &&
		    map_node(m, (uint16_t)i)->incarnation < s->node->identity.incarnation)
			sim_fail("node %u serves by a map that is older than its process", i);
		control_status(s->node->control, &st);
		if (st.role == CONSENSUS_LEADER && st.term < TERMS_MAX) {
			if (leader_of[st.term] && leader_of[st.term] != i)
				sim_fail("term %llu has two leaders, %u and %u",
					 (unsigned long long)st.term, leader_of[st.term], i);
			leader_of[st.term] = (uint16_t)i;
		}
		if (vproc_in_midst(s->proc)) /* it may have applied what it has not counted yet */
			continue;
		applied[i] = st.applied;
		digest[i] = state_digest(control_state(s->node->control));
		for (unsigned k = 1; k < i; k++)
			if (applied[k] && applied[k] == applied[i] && digest[k] != digest[i])
				sim_fail("nodes %u and %u have applied the same %llu entries and "
					 "differ",
					 k, i, (unsigned long long)applied[i]);
	}
}

void sim_check_now(void)
{
	static uint64_t count;

	check_busy();
	if (!sim.volume)
		return;
	for (uint32_t i = 0; i < sim.plan.objects; i++) {
		check_primaries(object_id(sim.volume, i));
		if (count % 4 == 0)
			check_durable(object_id(sim.volume, i));
	}
	if (++count % 256 == 0) {
		check_control();
		for (unsigned i = 1; i <= SIM_NODES_MAX; i++)
			check_damage(&sim.node[i]);
	}
}

void sim_check_begin(void)
{
	memset(leader_of, 0, sizeof(leader_of));
}

/* ---- Quiet ---- */

static bool info_at(struct sim_node *s, uint64_t id, struct replica_info *out)
{
	return sim_node_serves(s) &&
	       replicator_info(s->node->shards[object_shard(id, s->node->shard_count)].replicator,
			       id, out);
}

static unsigned members_expected(const struct map *m, const struct map_object *o)
{
	unsigned n = 0;

	for (unsigned k = 0; k < o->member_count; k++) {
		const struct map_group *g = map_group(m, o->member[k].group);

		n += g && !sim.node[g->node].broken;
	}
	return n;
}

/* Every replica whose node is not gone for good is in, joined, and has nothing under way. */
static bool object_quiet(const struct map *m, const struct map_object *o)
{
	unsigned expected = members_expected(m, o), serving = 0;
	struct version commit = {0};

	if (map_in_count(o) != expected)
		return false;
	for (unsigned k = 0; k < o->member_count; k++) {
		const struct map_group *g = map_group(m, o->member[k].group);
		struct replica_info f;

		if (!g || sim.node[g->node].broken)
			continue;
		if (!info_at(&sim.node[g->node], o->id, &f) || f.epoch != o->epoch ||
		    !version_eq(f.last, f.commit))
			return false;
		if (commit.seq && !version_eq(commit, f.commit))
			return false;
		commit = f.commit;
		/* Both ends know of the join: the primary by its count, the member by its state. */
		if (f.role != REPLICA_PRIMARY && strcmp(f.state, "joined"))
			return false;
		serving += f.role == REPLICA_PRIMARY && !strcmp(f.state, "serving") &&
			   f.members_joined + 1 == expected && f.want == expected;
	}
	return serving == 1;
}

bool sim_all_quiet(void)
{
	const struct map *m = sim_newest_map();

	for (uint32_t i = 0; m && i < sim.plan.objects; i++) {
		const struct map_object *o = map_object(m, object_id(sim.volume, i));

		if (!o || !object_quiet(m, o))
			return false;
	}
	return m != NULL;
}

/* ---- Replicas compared, page by page and block by block ---- */

#define REGIONS     3u
#define LOOK_BLOCKS 14u
#define FAILURES_MAX 16u /* of groups, met by the look at the end */
static const uint32_t look_at[LOOK_BLOCKS] = {0,  1,  2,    3,    62,   63,    64,
					      65, 70, 4096, 4097, 9000, 12032, 12160};

/* The simulator's; asked for on the shard's loop. */
struct look {
	struct sim_node *node;
	uint64_t object;
	bool ended;
	int rc;
	struct version version[REGIONS][REGION_PAGES];
	struct fp128 fp[LOOK_BLOCKS];
	bool bad[LOOK_BLOCKS];
};
struct look_run {
	struct post post;
	struct look *out;
	struct wait wait;
	struct store_object *o;
	unsigned step;
	struct store_versions versions;
	struct store_read read;
	uint8_t *block;
};

static void look_step(struct look_run *r, int rc);

static void look_resume(struct wait *w, int rc)
{
	look_step(container_of(w, struct look_run, wait), rc);
}

static void look_take(struct look_run *r, int rc)
{
	struct look *l = r->out;

	if (r->step <= REGIONS) {
		memcpy(l->version[r->step - 1], r->versions.versions, sizeof(l->version[0]));
	} else {
		unsigned i = r->step - REGIONS - 1;

		l->bad[i] = r->read.bad[0] & 1;
		l->fp[i] = hash_fp128(r->block, BLOCK_SIZE);
		if (rc == -ERR_DAMAGED)
			rc = 0;
	}
	l->rc = l->rc ? l->rc : rc;
}

static void look_step(struct look_run *r, int rc)
{
	for (;;) {
		if (r->step)
			look_take(r, rc);
		if (r->step == REGIONS + LOOK_BLOCKS) {
			r->out->ended = true;
			free(r->block);
			free(r);
			return;
		}
		if (r->step < REGIONS) {
			r->versions.region = r->step++;
			r->versions.uncommitted = false;
			rc = store_page_versions(r->o, &r->versions, &r->wait);
		} else {
			r->read.block = look_at[r->step++ - REGIONS];
			r->read.blocks = 1;
			r->read.dest = r->block;
			memset(r->read.bad, 0, sizeof(r->read.bad));
			rc = store_read(r->o, &r->read, &r->wait);
		}
		if (rc == PENDING)
			return;
	}
}

static void look_begin(struct post *p)
{
	struct look_run *r = container_of(p, struct look_run, post);
	struct object *o = object_at(r->out->node, r->out->object);

	if (!o || !o->store) {
		r->out->rc = -ERR_NOT_FOUND;
		r->out->ended = true;
		free(r);
		return;
	}
	r->o = o->store;
	r->wait.resume = look_resume;
	r->block = xalloc_aligned(BLOCK_SIZE, BLOCK_SIZE);
	look_step(r, 0);
}

static void look_start(struct look *l)
{
	struct look_run *r = xcalloc(1, sizeof(*r));
	struct node *n = l->node->node;

	r->post.fn = look_begin;
	r->out = l;
	loop_post(n->shards[object_shard(l->object, n->shard_count)].loop, &r->post);
}

static struct look looks[MEMBERS_MAX];
static unsigned look_count;

static bool looked(void *arg)
{
	for (unsigned i = 0; i < look_count; i++)
		if (!looks[i].ended && sim_node_serves(looks[i].node))
			return false;
	return true;
}

static struct group *first_group(const struct sim_node *s)
{
	if (list_empty(&s->node->shards[0].replicator->groups))
		return NULL;
	return list_first(&s->node->shards[0].replicator->groups, struct group, link);
}

static void compare(const struct look *a, const struct look *b, uint32_t object)
{
	for (unsigned g = 0; g < REGIONS; g++)
		for (unsigned p = 0; p < REGION_PAGES; p++)
			if (!version_eq(a->version[g][p], b->version[g][p]))
				sim_fail("object %u, page %u: node %u has version %u/%llu, node %u "
					 "%u/%llu",
					 object, g * REGION_PAGES + p, a->node->number,
					 a->version[g][p].tenure,
					 (unsigned long long)a->version[g][p].seq, b->node->number,
					 b->version[g][p].tenure,
					 (unsigned long long)b->version[g][p].seq);
	for (unsigned i = 0; i < LOOK_BLOCKS; i++)
		if (!a->bad[i] && !b->bad[i] && !fp128_equal(a->fp[i], b->fp[i]))
			sim_fail("object %u, block %u: nodes %u and %u have the same page version "
				 "and not the "
				 "same bytes",
				 object, look_at[i], a->node->number, b->node->number);
}

/* What fails a group may have come a moment ago, or be met here first, as a damaged table of its map: it
 * opens again as at any other time. And a node may hear only now that it was removed. */
static bool fell_out(const struct look *l)
{
	if (!sim_node_serves(l->node))
		return true;
	return l->rc == -ERR_DEVICE && sim.counts.failures_met++ < FAILURES_MAX;
}

/* False: not to be told now. */
static bool compare_object(uint32_t index)
{
	const struct map *m = sim_newest_map();
	const struct map_object *o = map_object(m, object_id(sim.volume, index));

	look_count = 0;
	for (unsigned k = 0; k < o->member_count; k++) {
		const struct map_group *g = map_group(m, o->member[k].group);

		if (!o->member[k].in || !g || !sim_node_serves(&sim.node[g->node]))
			continue;
		memset(&looks[look_count], 0, sizeof(looks[0]));
		looks[look_count].node = &sim.node[g->node];
		looks[look_count].object = o->id;
		look_start(&looks[look_count++]);
	}
	if (!simhost_run(looked, NULL, simhost_now_us() + 10 * SIM_S))
		sim_fail("object %u: its replicas could not be looked at", index);
	for (unsigned i = 0; i < look_count && !sim.failure[0]; i++) {
		if (fell_out(&looks[i]))
			return false;
		if (looks[i].rc)
			sim_fail("object %u at node %u: %s", index, looks[i].node->number,
				 err_name(looks[i].rc));
		if (i)
			compare(&looks[0], &looks[i], index);
	}
	return true;
}

/* ---- Maps, references and counters recounted (I8, I9) ---- */

static struct {
	struct sim_audit is;
	struct post begin;
	struct sim_node *node;
	uint16_t group;
	bool ended;
} audit;

static void audit_done(struct post *p)
{
	node_group_used(audit.node->node, audit.group, -1);
	audit.ended = true;
}

/* As an operator's verifier: a group that fails meanwhile is not closed under it. */
static void audit_begin(struct post *p)
{
	struct node *n = audit.node->node;

	audit.is = (struct sim_audit){.store = node_group_store(n, audit.group),
				      .loop = n->loop,
				      .done.fn = audit_done};
	if (!audit.is.store) {
		audit.ended = true;
		return;
	}
	node_group_used(n, audit.group, 1);
	sim_audit_start(audit.node->proc, &audit.is);
}

static bool audited(void *arg)
{
	return audit.ended || !sim_node_serves(audit.node);
}

static void audit_node(struct sim_node *s)
{
	struct group *g = sim_node_serves(s) ? first_group(s) : NULL;

	if (!g || g->failed)
		return;
	memset(&audit, 0, sizeof(audit));
	audit.begin.fn = audit_begin;
	audit.node = s;
	audit.group = g->id;
	loop_post(s->node->loop, &audit.begin);
	if (!simhost_run(audited, NULL, simhost_now_us() + 20 * SIM_S))
		sim_fail("node %u: the recount does not end", s->number);
	else if (audit.is.differences || (audit.is.bad_blocks && !bytes_are_hurt()))
		sim_fail("node %u: a recount of its map differs in %llu places, %llu bad blocks",
			 s->number, (unsigned long long)audit.is.differences,
			 (unsigned long long)audit.is.bad_blocks);
}

static void compare_credits(struct sim_node *a, struct sim_node *b)
{
	if (a == b || !sim_node_serves(a) || !sim_node_serves(b))
		return;
	for (unsigned i = 0; i < a->node->shard_count; i++)
		for (unsigned k = 0; k < b->node->shard_count; k++) {
			const char *bad = credits_differ(
				a->node->shards[i].replicator, (uint16_t)a->number,
				b->node->shards[k].replicator, (uint16_t)b->number);

			if (bad)
				sim_fail("%s", bad);
		}
}

void sim_check_credits(void)
{
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++)
		for (unsigned k = 1; k <= SIM_NODES_MAX; k++)
			compare_credits(&sim.node[i], &sim.node[k]);
}

bool sim_check_replicas(void)
{
	check_control();
	for (uint32_t i = 0; i < sim.plan.objects && !sim.failure[0]; i++)
		if (!compare_object(i))
			return false;
	for (unsigned i = 1; i <= SIM_NODES_MAX && !sim.failure[0]; i++)
		audit_node(&sim.node[i]);
	return true;
}

/* ---- For people ---- */

static size_t describe_object(const struct map *m, uint32_t index, char *text, size_t size)
{
	const struct map_object *o = m ? map_object(m, object_id(sim.volume, index)) : NULL;
	size_t at = 0;

	if (!o)
		return 0;
	at += (size_t)snprintf(
		text, size,
		"\n object %u: epoch %u tenure %u primary group %u of incarnation %u, in:", index,
		o->epoch, o->tenure, o->member[o->primary].group, o->primary_incarnation);
	for (unsigned k = 0; k < o->member_count && at < size; k++)
		at += (size_t)snprintf(text + at, size - at, " %u%s", o->member[k].group,
				       o->member[k].in ? "" : "(out)");
	for (unsigned i = 1; i <= SIM_NODES_MAX && at < size; i++) {
		struct replica_info f;

		if (info_at(&sim.node[i], o->id, &f))
			at += (size_t)snprintf(text + at, size - at,
					       "\n   n%u: epoch %u seen %u role %d \"%s\" last "
					       "%u/%llu commit %u/%llu "
					       "joined %u want %u pages %u",
					       i, f.epoch, f.seen, f.role, f.state, f.last.tenure,
					       (unsigned long long)f.last.seq, f.commit.tenure,
					       (unsigned long long)f.commit.seq, f.members_joined,
					       f.want, f.pages_to_copy);
	}
	return MIN(at, size - 1);
}

struct told {
	char *text;
	size_t size, at;
	unsigned node;
};

static void tell_op(void *arg, const struct replica_op_info *i)
{
	struct told *t = arg;

	if (t->at + 200 < t->size)
		t->at += (size_t)snprintf(
			t->text + t->at, t->size - t->at,
			"\n   n%u op: object %llx %s offset %u: %s, waits for %s, %.1f ms", t->node,
			(unsigned long long)i->object, i->kind, i->offset, i->stage, i->waits_for,
			(double)i->age_us / 1000);
}

/* Space of its disk group, in KiB. */
static size_t describe_space(const struct sim_node *s, char *text, size_t size)
{
	struct store_stats st;
	struct group *g;

	if (!sim_node_serves(s) || list_empty(&s->node->shards[0].replicator->groups))
		return 0;
	g = list_first(&s->node->shards[0].replicator->groups, struct group, link);
	if (g->failed)
		return 0;
	store_stats(g->store, &st);
	return (size_t)snprintf(text, size,
				"; space %llu, granted %llu, in the log %llu, used %llu, dead %llu",
				(unsigned long long)st.data_free_bytes >> 10,
				(unsigned long long)st.granted_bytes >> 10,
				(unsigned long long)st.log_unreduced_bytes >> 10,
				(unsigned long long)st.data_used_bytes >> 10,
				(unsigned long long)st.dead_bytes >> 10);
}

void sim_describe(char *text, size_t size)
{
	const struct map *m = sim_newest_map();
	struct told t = {text, size, 0, 0};

	text[0] = 0;
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++) {
		struct sim_node *s = &sim.node[i];
		struct consensus_status st = {0};

		if (!s->host || t.at + 200 > size)
			continue;
		if (sim_node_map(s))
			control_status(s->node->control, &st);
		t.at += (size_t)snprintf(
			text + t.at, size - t.at,
			"\n n%u: %s%s, incarnation %u, role %d leader %u term %llu applied %llu", i,
			s->broken ? "broken, " : "",
			sim_node_serves(s) ? "serves"
			: s->proc          ? "starts"
					   : "down",
			s->incarnation, st.role, st.leader, (unsigned long long)st.term,
			(unsigned long long)st.applied);
		t.at += (size_t)snprintf(text + t.at, size - t.at, " last %llu, voters",
					 (unsigned long long)st.last);
		for (unsigned k = 0; k < st.voters; k++)
			t.at += (size_t)snprintf(text + t.at, size - t.at, " %u", st.voter[k]);
		t.at += describe_space(s, text + t.at, size - t.at);
	}
	for (uint32_t i = 0; i < sim.plan.objects && t.at + 300 < size; i++)
		t.at += describe_object(m, i, text + t.at, size - t.at);
	for (unsigned i = 1; i <= SIM_NODES_MAX; i++)
		for (unsigned k = 0;
		     sim_node_serves(&sim.node[i]) && k < sim.node[i].node->shard_count; k++) {
			t.node = i;
			replicator_ops(sim.node[i].node->shards[k].replicator, tell_op, &t);
		}
	sim_clients_describe(text + t.at, size - t.at);
}
