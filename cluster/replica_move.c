/* SPDX-License-Identifier: Apache-2.0 */
/* Planned moves of primaries (T3): a primary that stops admitting, lets what it admitted finish,
 * and proposes the takeover of another member, keeping its own place in I. The successor asks for
 * FENCED as after any takeover (T2) and gets it at once, so it waits for no grant to run out.
 * Nothing rests on a move's going well: one that is late is given up, the primary admits again, and
 * if its takeover is applied after all it is a takeover like any other.
 *
 * Who moves: all primaries of a node that stops or is in maintenance, at once; and, calmly, those
 * that are not at home. Home is the first in-sync member in the map's order, which placement spread
 * evenly, or the node where the volume is attached exclusively. */
#include "cluster/replica_impl.h"

#include <stdlib.h>

#define MOVES_MAX    128u      /* at the same time, per shard: a node has 5 s to move thousands */
#define DRAIN_US     100000u   /* what was admitted must be done by then */
#define APPLY_US     200000u   /* from the proposal on */
#define ANSWER_US    300000u   /* a member that owes an answer for so long is no successor */
#define AGAIN_US     500000u   /* after one that was given up */
#define LOOK_US      500000u   /* how often primaries look whether they are at home */
#define CALM_US      10000000u /* neither the tenure nor the member's join is younger */
#define YIELD_US     10000000u /* an operator's command is on its way */
#define HOMEWARD_MAX 8u        /* moves home begun at one look */

/* ---- Where to -----------------------------------------------------------------------------------
 */

static bool in_maintenance(struct replicator *r, uint16_t node)
{
	const struct replicator_hooks *h = r->hooks;

	return map_node_in_maintenance(r->map, node, h->wall_ms ? h->wall_ms(r->ctx) : 0);
}

static bool leader_known(struct replicator *r)
{
	return !r->hooks->leader_known || r->hooks->leader_known(r->ctx);
}

/* It could serve within moments: counted, joined, reachable, and not about to go itself. */
static bool can_succeed(struct member *m, uint64_t now)
{
	struct replicator *r = m->primary->r;
	const struct map_node *n = map_node(r->map, m->node);

	return m->in && m->want && m->state == MEMBER_JOINED && n && n->state == NODE_ACTIVE &&
	       n->incarnation == m->session->incarnation &&
	       (!m->session->unanswered_us || now - m->session->unanswered_us < ANSWER_US) &&
	       !in_maintenance(r, m->node);
}

static struct member *member_of(struct primary *p, const struct map_member *mb)
{
	for (unsigned i = 0; i < p->member_count; i++) {
		struct member *m = &p->member[i];

		if (m->id.group == mb->group && m->id.group_incarnation == mb->group_incarnation &&
		    m->id.gen == mb->gen)
			return m;
	}
	return NULL;
}

/* Who takes over from p: `prefer` if it can, else the first that can. */
static struct member *successor(struct primary *p, uint16_t prefer, uint64_t now)
{
	struct member *first = NULL;

	for (unsigned i = 0; i < p->object->config.member_count; i++) {
		struct member *m = member_of(p, &p->object->config.member[i]);

		if (!m || !can_succeed(m, now))
			continue;
		if (m->node == prefer)
			return m;
		first = first ? first : m;
	}
	return first;
}

/* ---- One move -----------------------------------------------------------------------------------
 */

static void move_begin(struct primary *p, struct member *to, uint64_t now)
{
	p->moving = to->node;
	p->move_group = to->id.group;
	p->move_us = now;
	p->move_proposed_us = 0;
	list_push_back(&p->r->moves, &p->move_link);
	p->r->move_count++;
	object_busy(p->object);
	replica_arm(p->r);
}

void move_end(struct primary *p)
{
	if (!p->moving)
		return;
	p->moving = 0;
	list_del(&p->move_link);
	p->r->move_count--;
	p->r->gate_open = true;
	replica_arm(p->r);
}

static void move_propose(struct primary *p, uint64_t now)
{
	struct object *o = p->object;
	const struct map_node *n = map_node(p->r->map, p->moving);
	struct object_change c = {.op = OBJ_TAKEOVER,
				  .keep = rule(RULE_KEEP),
				  .object = o->id,
				  .epoch = o->config.epoch,
				  .replica.group = p->move_group,
				  .node = p->moving,
				  .incarnation = n ? n->incarnation : 0,
				  .proposer = o->r->node};

	p->move_proposed_us = now;
	replica_propose(p->r, &c);
}

/* T3: drained is proposed; a move that takes too long is given up, and tried again later. */
static void move_step(struct primary *p, uint64_t now)
{
	bool drained = !p->op_count && list_empty(&p->outgoing);

	if (p->move_proposed_us ? now - p->move_proposed_us >= APPLY_US
				: !drained && now - p->move_us >= DRAIN_US) {
		log_info("replica", "a planned move was given up", "object=%llx node=%u why=\"%s\"",
			 (unsigned long long)p->object->id, p->moving,
			 p->move_proposed_us ? "its takeover was not applied in time"
					     : "what was admitted did not finish in time");
		p->move_again_us = now + AGAIN_US;
		move_end(p);
		return;
	}
	if (p->move_proposed_us || !drained || !replica_may_propose(p->r))
		return;
	/* The members' known commit becomes this one: the successor finds no tail to prepare again.
	 */
	primary_announce(p);
	move_propose(p, now);
}

void moves_run(struct replicator *r)
{
	uint64_t now = now_us(r);
	struct list *n, *next;

	for (n = r->moves.next; n != &r->moves; n = next) {
		next = n->next;
		move_step(list_entry(n, struct primary, move_link), now);
	}
}

/* Could it go now? */
static bool movable(struct primary *p, uint64_t now)
{
	return p->state == PRIMARY_SERVE && !p->moving && now >= p->move_again_us;
}

int replicator_move(struct replicator *r, uint64_t object, uint16_t node)
{
	struct object *o = object_find(r, object);
	struct primary *p = o ? o->primary : NULL;
	uint64_t now = now_us(r);
	struct member *to;

	if (!p)
		return -ERR_NOT_FOUND;
	if (!movable(p, now) || r->move_count >= MOVES_MAX || !leader_known(r))
		return -ERR_BUSY;
	to = successor(p, node, now);
	if (!to || (node && to->node != node))
		return -ERR_REFUSED;
	move_begin(p, to, now);
	return 0;
}

/* ---- Home ---------------------------------------------------------------------------------------
 */

struct attached {
	uint32_t volume;
	uint16_t node;
};

/* Volumes attached exclusively by a node of the cluster (HCI): their I/O is cheapest there. */
static unsigned attached_nodes(struct replicator *r, struct attached *out)
{
	unsigned n = 0;

	for (struct hnode *h = hmap_walk(&r->map->attachments, NULL); h;
	     h = hmap_walk(&r->map->attachments, h)) {
		const struct map_attachment *a = container_of(h, struct map_attachment, by_id);
		const struct map_node *node = map_holder_node(r->map, a->holder);

		if (a->mode == ATTACH_EXCLUSIVE && !a->revoked && node && n < ATTACHMENTS_MAX)
			out[n++] = (struct attached){a->volume, node->id};
	}
	return n;
}

static uint16_t attached_at(const struct attached *a, unsigned count, uint32_t volume)
{
	for (unsigned i = 0; i < count; i++)
		if (a[i].volume == volume)
			return a[i].node;
	return 0;
}

/* All copies are there, and have been for a while: a move would end a catch-up under way. */
static bool calm(struct primary *p, uint64_t now)
{
	if (now - p->start_us < CALM_US)
		return false;
	for (unsigned i = 0; i < p->member_count; i++) {
		const struct member *m = &p->member[i];

		if (!m->in || m->state != MEMBER_JOINED || now - m->since_us < CALM_US)
			return false;
	}
	return true;
}

/* The member at which the object is at home; NULL: here, or at one that is not ready. *away: it is not at
 * home, whether it can move now or not, or may not be once a maintenance runs out, which changes no map. */
static struct member *home(struct primary *p, uint16_t attached, uint64_t now, bool *away)
{
	struct object *o = p->object;
	const struct map_member *at = NULL;
	bool elsewhere, waits = false;
	struct member *m;

	for (unsigned i = 0; i < o->config.member_count; i++) {
		const struct map_member *mb = &o->config.member[i];
		const struct map_node *n = map_member_node(p->r->map, mb);

		if (!n || mb->kept)
			continue;
		if (in_maintenance(p->r, n->id)) {
			waits = true;
			continue;
		}
		if (n->id == attached && mb->in) {
			at = mb;
			break;
		}
		if (!at)
			at = mb; /* it may be on its way back: then wait for it */
	}
	elsewhere = at && at != &o->config.member[o->me];
	*away = elsewhere || waits;
	m = elsewhere ? member_of(p, at) : NULL;
	return m && can_succeed(m, now) ? m : NULL;
}

static void homeward(struct replicator *r, uint64_t now)
{
	struct attached *attached = xcalloc(ATTACHMENTS_MAX, sizeof(*attached));
	unsigned count = attached_nodes(r, attached), begun = 0;
	uint32_t volume = 0;
	uint16_t node = 0;
	struct object *o;

	r->homes_look = false;
	list_for_each(o, &r->objects, link)
	{
		struct primary *p = o->primary;
		struct member *to;
		bool away;

		if (!p || o->me < 0)
			continue;
		if (object_volume(o->id) != volume) {
			volume = object_volume(o->id);
			node = attached_at(attached, count, volume);
		}
		to = home(p, node, now, &away);
		if (!away)
			continue;
		r->homes_look = true; /* look again, until all are at home */
		if (!to || !movable(p, now) || !calm(p, now) || begun >= HOMEWARD_MAX ||
		    r->move_count >= MOVES_MAX)
			continue;
		begun++;
		move_begin(p, to, now);
	}
	free(attached);
}

/* ---- Leaving ------------------------------------------------------------------------------------
 */

/* Whether the object still needs this replica of a node that stops, which is no primary (any more):
 * it is counted, and can resign, or soon will: the primary is another process in reach, or this map
 * does not say yet who ended the tenure here. Without a primary in reach the object may need this
 * replica again, so it stays counted. */
static bool should_resign(const struct object *o)
{
	const struct map_object *c = &o->config;
	const struct map_node *n = map_primary_node(o->r->map, c);

	if (!o->listed || o->me < 0 || o->primary || !c->member[o->me].in || map_in_count(c) < 2)
		return false;
	if (c->primary == o->me)
		return c->primary_incarnation == o->r->incarnation && o->stopped >= c->tenure;
	return n && session_for(o->r, o, n->id);
}

/* All primaries go to whoever can take them; of a node that stops, replicas then resign. How many are to go;
 * *stay: others have nobody to go to now. */
static unsigned leave(struct replicator *r, uint64_t now, bool *stay)
{
	struct object *o;
	unsigned left = 0;

	*stay = false;
	list_for_each(o, &r->objects, link)
	{
		struct primary *p = o->primary;
		struct member *to = NULL;

		if (p && p->moving) {
			left++;
			continue;
		}
		if (p && !(r->draining && o->moved) && !primary_conflict(p)) /* else it never serves here */
			to = successor(p, 0, now);
		*stay |= p && !to;
		if (to) {
			left++;
			if (movable(p, now) && r->move_count < MOVES_MAX && leader_known(r))
				move_begin(p, to, now);
		} else if (r->draining && should_resign(o)) {
			left++;
			o->resigning |=
				o->in.state == IN_JOINED && o->in.tenure == o->config.tenure;
			object_busy(o);
		}
	}
	return left;
}

void replicator_drain(struct replicator *r)
{
	bool stay;

	r->draining = true;
	r->draining_left = leave(r, now_us(r), &stay);
}

unsigned replicator_drain_left(struct replicator *r)
{
	return r->draining_left;
}

void moves_tick(struct replicator *r, uint64_t now)
{
	bool stay;

	moves_run(r);
	if (r->draining) {
		r->draining_left = leave(r, now, &stay);
		return;
	}
	if (!r->homes_look || now < r->look_us || !leader_known(r))
		return;
	if (in_maintenance(r, r->node)) { /* somebody waits for it: with every tick */
		r->homes_look = leave(r, now, &stay) > 0;
		if (!r->homes_look) /* a successor that comes back need not change the map */
			r->look_us = now + LOOK_US;
		r->homes_look |= stay;
		return;
	}
	r->look_us = now + LOOK_US;
	homeward(r, now);
}

/* ---- Handing over -------------------------------------------------------------------------------
 */

/* An operator forces the object elsewhere while it is served here: first nobody serves it. The tenure that
 * ended here never serves again (C2), so the force may name it as ended; without one, this replica takes over
 * from itself a while later. */
int replicator_yield(struct replicator *r, uint64_t object, uint32_t tenure)
{
	struct object *o = object_find(r, object);

	if (!o || o->config.tenure != tenure || !object_is_primary(o))
		return -ERR_NOT_FOUND;
	primary_end(o, "an operator forces the object to another replica");
	o->stopped = MAX(o->stopped, tenure);
	o->yield_us = now_us(r) + YIELD_US;
	return 0;
}

/* W5: this replica cannot do its part. As the primary it names its successor in the same command.
 */
void propose_resign(struct object *o)
{
	struct object_change c = {.op = OBJ_DROP,
				  .object = o->id,
				  .epoch = o->config.epoch,
				  .replica = o->config.member[o->me],
				  .node = o->r->node,
				  .incarnation = o->r->incarnation,
				  .proposer = o->r->node};

	for (unsigned i = 0; i < o->config.member_count && o->config.primary == o->me; i++) {
		const struct map_member *mb = &o->config.member[i];
		const struct map_node *n = map_member_node(o->r->map, mb);

		if ((int)i == o->me || !mb->in || !n || n->id == o->r->node ||
		    !session_for(o->r, o, n->id))
			continue;
		c.op = OBJ_TAKEOVER;
		c.replica = (struct map_member){.group = mb->group};
		c.node = n->id;
		c.incarnation = n->incarnation;
		break;
	}
	o->r->stats.drops++;
	replica_propose(o->r, &c);
}
