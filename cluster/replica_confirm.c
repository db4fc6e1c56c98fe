/* SPDX-License-Identifier: Apache-2.0 */
/* Reads on a node whose clock may stop while the world goes on (N6, `confirm_reads`). There a lease proves
 * nothing: it ends by that clock. What proves something is a grant that was asked for after the read had
 * come.
 *
 * A beacon is named by its time, which no two beacons of a replicator share and which grows, so "asked
 * for after" is a comparison: a read notes the newest name given out when it is admitted, and every member
 * of want must have granted a newer one by the time it is answered.
 *
 * Why that is enough. A grant says of its grantor, at a moment after the read came: for each object that
 * the asker joined here, either `seen` is still that tenure, or the asker has said FENCED and thus ended it
 * (N5); on a session without such a join, the JOIN that is still to be answered on it says the same, later.
 * Who has begun a later tenure, or joined one, has raised `seen` first. The first node that acts in a later
 * tenure is one of I when it takes over, and I can gain nobody whom this primary did not propose: so it is
 * in this want (C1), and had not begun when it granted. Nobody else can have been promoted, or have served,
 * before it did. So when the read came nothing had been done that this primary does not know; what came
 * after may come after in the order, too. No clock is in this, and where the read's data is looked up
 * meanwhile makes no difference.
 *
 * Why all of want, not any one. A member may leave I without this primary: it resigns, its group is made
 * anew, the leader takes it away. Whoever takes over then does not ask it, and it would confirm for ever.
 *
 * Why none, when want is the primary alone. Then I is, too, and takeover is only for one of I: this node
 * itself, whose newer process ends this one (N1). What goes past that is an operator's word that the node
 * will never come back (force, removal with accepted loss), and no message can defend a read against it.
 *
 * Writes and what is done by writes (merges, mends, copies) need none of this: they are acknowledged by
 * want. */
#include "cluster/replica_impl.h"

#define ASK_AGAIN_US 20000u /* a beacon that came while a fence was owed is not answered later */

/* Has every member of want granted something that was asked for after `asked`? Whom that is not on its way
 * from is asked, once, at the end of this turn. */
bool primary_confirmed(struct primary *p, uint64_t asked, const char **waits_for)
{
	uint64_t now = now_us(p->r);
	bool ok = true;

	if (!rule(RULE_CONFIRM))
		return true;
	for (unsigned i = 0; i < p->member_count; i++) {
		const struct member *m = &p->member[i];
		struct session *s = m->session;

		if (!m->want)
			continue;
		if (s && s->confirmed > asked) {
			if (!rule(RULE_CONFIRM_ALL))
				return true;
			continue;
		}
		*waits_for = "a member to confirm that it follows no other primary";
		ok = false;
		if (s && (s->asked <= asked || now - s->beacon_us >= ASK_AGAIN_US))
			s->ask = p->r->asking = true;
	}
	return ok;
}

/* One beacon per session and turn, however many reads there are. */
void sessions_ask(struct replicator *r)
{
	struct session *s;

	if (!r->asking)
		return;
	r->asking = false;
	list_for_each(s, &r->sessions, link)
	{
		if (!s->ask)
			continue;
		s->ask = false;
		r->stats.confirms++;
		session_beacon(s, now_us(r));
	}
}
