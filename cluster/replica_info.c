/* SPDX-License-Identifier: Apache-2.0 */
/* What a replicator tells people: the state of one object here in words, and counters. Changes nothing. */
#include "cluster/replica_impl.h"

static const char *broken(const struct object *o)
{
	return o->creating			? NULL
	       : !o->store || !o->group		? "it is not there"
	       : o->group->failed		? "its disk group failed"
	       : o->diverged			? "its data diverged"
	       : o->behind			? "it lacks writes that were acknowledged"
	       : store_is_damaged(o->store)	? "its log is damaged: acknowledged writes may be missing"
						: NULL;
}

static void info(struct object *o, struct replica_info *out)
{
	struct primary *p = o->primary;

	*out = (struct replica_info){.object = o->id, .epoch = o->config.epoch, .seen = o->seen};
	out->broken = p ? primary_conflict(p) : o->me < 0 ? NULL : broken(o);
	out->serving = p && p->state == PRIMARY_SERVE;
	out->present = o->store && o->group && !o->group->failed && !o->creating;
	if (o->store) {
		out->last = store_last(o->store);
		out->commit = store_commit_version(o->store);
	}
	if (p) {
		out->role = REPLICA_PRIMARY;
		out->state = primary_state_text(p);
		for (unsigned i = 0; i < p->member_count; i++) {
			out->want += p->member[i].want;
			out->members_joined += p->member[i].state == MEMBER_JOINED;
			if (p->member[i].fill)
				out->pages_to_copy += fill_left(p->member[i].fill);
		}
		out->want++;
		return;
	}
	out->state = !o->listed                     ? "not in the map"
		     : o->me >= 0 && o->config.member[o->me].kept ? "in quarantine: an operator must decide"
		     : map_object_awaits(o->r->map, &o->config)
			     ? "recovered: waits for a node to come back, or to be removed"
		     : o->creating                  ? "being created"
		     : out->broken		    ? out->broken
		     : o->no_space                  ? "its disk group is full: it waits for space"
		     : o->in.state == IN_JOINED     ? "joined"
		     : o->in.state != IN_NONE       ? "joining"
						    : "waits for its primary";
	if (o->me < 0)
		return;
	out->role = o->config.member[o->me].in ? REPLICA_SECONDARY
		    : o->in.state != IN_NONE   ? REPLICA_SYNCING
					       : REPLICA_OUT;
}

bool replicator_info(struct replicator *r, uint64_t object, struct replica_info *out)
{
	struct object *o = object_find(r, object);

	if (o)
		info(o, out);
	return o != NULL;
}

/* The last one of I, and nothing that comes back by itself makes it serve. */
static bool is_undecided(const struct object *o)
{
	if (o->primary)
		return primary_conflict(o->primary) != NULL;
	if (!object_is_primary(o))
		return false;
	return o->config.undecided ||
	       (map_in_count(&o->config) == 1 && o->store && o->group && !o->group->failed &&
		(o->diverged || o->behind || store_is_damaged(o->store)));
}

void replicator_stats(struct replicator *r, struct replicator_stats *out)
{
	struct object *o;

	*out = r->stats;
	out->primaries = out->serving = out->undecided = 0;
	out->copy_rate = r->governor.copied_rate;
	out->copy_allowed = r->governor.rate;
	out->copy_cost_permille = list_empty(&r->fills) ? 0 : r->governor.cost_permille;
	list_for_each(o, &r->objects, link)
	{
		out->primaries += o->primary != NULL;
		out->serving += o->primary && o->primary->state == PRIMARY_SERVE;
		out->undecided += is_undecided(o);
		for (unsigned i = 0; o->primary && i < o->primary->member_count; i++)
			if (o->primary->member[i].fill)
				out->copy_left_bytes += (uint64_t)fill_left(o->primary->member[i].fill) *
							PAGE_BLOCKS * BLOCK_SIZE;
	}
}
