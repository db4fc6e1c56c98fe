/* SPDX-License-Identifier: Apache-2.0 */
/* Lease, takeover, drop, promotion, return and planned move of one object with three replicas
 * (cluster/README.md: N2-N5, C1, C2, W1, W4, Q2, T1-T3, Y1, Y6), for spin.
 *
 * One process whose every step is one event at one node, so the state space is all interleavings.
 * What is abstracted:
 *   - the content is the log itself: record s of a replica is the tenure that wrote it, and a read
 *     returns the primary's commit; so "no acknowledged write is lost" and "no read goes back" are one
 *     comparison with `known`, the newest history that any client was told of;
 *   - Raft is the list of configurations, which nodes apply in order and late (`applied`);
 *   - time is order only: a grantor's count runs out after the lease it gave (lease < grace), and a
 *     node is "up" for the grace time once all leases that its predecessor gave have run out;
 *   - a message that is lost or late is an event that does not happen yet. Where early is worse than late
 *     it comes at once: an ACK with the append, a lease with the GRANT, the end of the grantor's count
 *     with the end of the lease;
 *   - catch-up is one step (its own rules are tested by the replica simulator).
 *
 * Each -DNO_… leaves one rule out; the model must then fail (tests/model/run). */

#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef WRITES
#define WRITES 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#define N 3

#define AT(a, b) ((a) * N + (b))
#define LOG(n, s) log[(n) * (WRITES + 1) + (s)]
#define IN(e, n) ((c_in[e] >> (n)) & 1)
#define NOBODY 7

byte c_primary[EPOCHS + 1], c_tenure[EPOCHS + 1], c_incarnation[EPOCHS + 1], c_in[EPOCHS + 1];
byte epoch = 1; /* the newest configuration committed by Raft */

/* Durable at each replica. */
byte seen[N], last[N], commit[N], log[N * (WRITES + 1)];

/* The process. */
bool alive[N], up[N];
byte incarnation[N], applied[N], crashes;

/* A tenure at its primary. */
bool acting[N], serving[N], draining[N];
byte tenure[N], want[N], stopped[N];
bool joined[N * N];	 /* [primary, member], as the primary believes, on this session */
byte acked[N * N];	 /* [primary, member] */
byte session[N * N];	 /* [node, peer]: incarnation of the peer that it speaks with */
byte promoting[N], promoted_on[N]; /* member whose promotion is proposed, and the epoch named */

/* A member's memory of who joined it, and leases. */
byte hold[N * N];     /* [member, primary]: tenure, 0: none */
byte hold_inc[N * N]; /* incarnation of that primary */
bool owed[N * N];     /* FENCE is owed, nothing is granted */
bool lease[N * N];    /* [primary, grantor]; the grantor counts at least as long */
bool filled[N];	      /* an `out` replica that has caught up in this join */

/* What clients know. */
byte known, known_log[WRITES + 1];

byte a, b, s, x; /* scratch, zeroed after use so that they make no states */

inline end_tenure(n)
{
	if
	:: acting[n] -> stopped[n] = tenure[n]
	:: else
	fi;
	acting[n] = false; serving[n] = false; draining[n] = false;
	tenure[n] = 0; want[n] = 0; promoting[n] = NOBODY; promoted_on[n] = 0;
	for (s : 0 .. N - 1) { joined[AT(n, s)] = false; acked[AT(n, s)] = 0 }
	s = 0
}

/* N5: whoever joined this node in a lower tenure is owed a fence. */
inline raise_seen(n, t)
{
	seen[n] = t;
	for (s : 0 .. N - 1) {
		if
		:: hold[AT(n, s)] && hold[AT(n, s)] < t ->
#ifndef NO_FENCE
			owed[AT(n, s)] = true
#else
			skip
#endif
		:: else
		fi
	}
	s = 0
}

/* What an applied configuration makes of node n. */
inline act_on(n)
{
	x = applied[n];
	if
	:: acting[n] && (c_primary[x] != n || c_tenure[x] != tenure[n]) -> end_tenure(n)
	:: else
	fi;
	if
	:: acting[n] -> /* C1: want changes only here and at a proposal */
		for (s : 0 .. N - 1) {
			if
			:: s != n && IN(x, s) ->
				want[n] = want[n] | (1 << s);
				if
				:: promoting[n] == s -> promoting[n] = NOBODY; promoted_on[n] = 0
				:: else
				fi
			:: s != n && !IN(x, s) && promoting[n] == s && x > promoted_on[n] ->
				promoting[n] = NOBODY; promoted_on[n] = 0;
				want[n] = want[n] & (7 - (1 << s)); joined[AT(n, s)] = false
			:: s != n && !IN(x, s) && promoting[n] != s && ((want[n] >> s) & 1) ->
				want[n] = want[n] & (7 - (1 << s)); joined[AT(n, s)] = false
			:: else
			fi
		}
		s = 0
	:: !acting[n] && c_primary[x] == n && c_incarnation[x] == incarnation[n] && c_tenure[x] > seen[n] &&
	   c_tenure[x] > stopped[n] -> /* T1 */
		acting[n] = true; tenure[n] = c_tenure[x];
		want[n] = c_in[x] & (7 - (1 << n));
		raise_seen(n, c_tenure[x])
	:: else
	fi;
	x = 0
}

/* A client hears of the history of p up to its commit: it agrees with all that was known before. */
inline tell(p)
{
	for (s : 1 .. WRITES) {
		if
		:: s <= commit[p] && s <= known -> assert(LOG(p, s) == known_log[s])
		:: s <= commit[p] && s > known -> known_log[s] = LOG(p, s)
		:: else
		fi
	}
	s = 0;
	known = (commit[p] > known -> commit[p] : known)
}

/* A read must also be as new as anything that was known when it was answered. The reply to a write may
 * come late: that write is in the history, however long the history has become. */
inline read(p)
{
	assert(commit[p] >= known);
	tell(p)
}

#define WANTS(p, m) ((want[p] >> (m)) & 1)
#define COVERED(p, m) (!WANTS(p, m) || (joined[AT(p, m)] && lease[AT(p, m)]))
#ifdef NO_READS /* writes alone: leases make no states */
#define LEASED(p) true
#else
#define LEASED(p) (COVERED(p, 0) && COVERED(p, 1) && COVERED(p, 2))
#endif
#ifdef NO_ACK_ALL
#define HAS(p, m, q) (!WANTS(p, m) || serving[p] || (joined[AT(p, m)] && acked[AT(p, m)] >= (q)))
#else
#define HAS(p, m, q) (!WANTS(p, m) || (joined[AT(p, m)] && acked[AT(p, m)] >= (q)))
#endif
#define SETTLED(p, q) (HAS(p, 0, q) && HAS(p, 1, q) && HAS(p, 2, q))
/* T2 b, seen from n about q: it cannot believe in an earlier tenure any more. */
#ifdef NO_GRACE
#define CLEAR(n, q) true
#else
#define CLEAR(n, q) ((n) == (q) || hold[AT(n, q)] == 0 || hold[AT(n, q)] >= tenure[n] || !lease[AT(q, n)] || \
		     session[AT(n, q)] > hold_inc[AT(n, q)])
#endif
#ifdef NO_UPTIME
#define UP(n) true
#else
#define UP(n) up[n]
#endif
#ifdef NO_READ_LEASE
#define READABLE(n) true
#else
#define READABLE(n) LEASED(n)
#endif
#ifdef NO_COMPLETE
#define COMPLETE(p, m) true
#else
#define COMPLETE(p, m) (filled[m] && acked[AT(p, m)] >= commit[p])
#endif
#define SAME_SESSION(n, m) (alive[n] && alive[m] && session[AT(n, m)] == incarnation[m] && \
			    session[AT(m, n)] == incarnation[n])

inline new_epoch(p, t, i, members)
{
	epoch = epoch + 1;
	c_primary[epoch] = p; c_tenure[epoch] = t; c_incarnation[epoch] = i; c_in[epoch] = members
}

init
{
	atomic {
		c_primary[1] = 0; c_tenure[1] = 1; c_incarnation[1] = 1; c_in[1] = 7;
		for (a : 0 .. N - 1) {
			alive[a] = true; up[a] = true; incarnation[a] = 1; promoting[a] = NOBODY;
			for (b : 0 .. N - 1) { session[AT(a, b)] = 1 }
		}
		a = 0; b = 0
	}
end:
	do
	:: atomic { /* an event at node a, about node b */
		select (a : 0 .. N - 1);
		select (b : 0 .. N - 1);
		if
		/* ---- Raft: applied in order, late */
		:: a == b && alive[a] && applied[a] < epoch -> applied[a] = applied[a] + 1; act_on(a)
		/* takeover, by a member of I, whenever it likes: suspicion is no part of safety */
		:: a == b && alive[a] && applied[a] == epoch && epoch < EPOCHS && IN(epoch, a) && !acting[a] &&
		   (c_primary[epoch] != a || c_incarnation[epoch] != incarnation[a] || stopped[a] >= c_tenure[epoch]) ->
			x = (c_primary[epoch] == a -> c_in[epoch] : c_in[epoch] & (7 - (1 << c_primary[epoch])));
			new_epoch(a, epoch + 1, incarnation[a], x); x = 0
		/* drop of b, by the primary a */
		:: a != b && acting[a] && applied[a] == epoch && epoch < EPOCHS && IN(epoch, b) ->
			new_epoch(a, tenure[a], c_incarnation[epoch], c_in[epoch] & (7 - (1 << b)))
#ifdef NO_DROP_APPLIED
		/* planted: a member that is to be dropped is not counted any more */
		:: a != b && acting[a] && WANTS(a, b) -> want[a] = want[a] & (7 - (1 << b))
#endif
		/* promotion of b: counted from the proposal on (C1), committed later or never */
		:: a != b && acting[a] && serving[a] && promoting[a] == NOBODY && applied[a] < EPOCHS && !IN(applied[a], b) &&
		   joined[AT(a, b)] && COMPLETE(a, b) && SAME_SESSION(a, b) ->
			promoting[a] = b; promoted_on[a] = applied[a];
#ifndef NO_WANT
			want[a] = want[a] | (1 << b)
#endif
		:: a != b && promoting[a] == b && promoted_on[a] == epoch && epoch < EPOCHS ->
			new_epoch(c_primary[epoch], c_tenure[epoch], c_incarnation[epoch], c_in[epoch] | (1 << b))
		/* T3, planned move from a to b: drained first */
		:: a != b && acting[a] && serving[a] && applied[a] == epoch && epoch < EPOCHS && IN(epoch, b) && !draining[a] ->
			draining[a] = true
		:: a != b && acting[a] && draining[a] && commit[a] == last[a] && applied[a] == epoch && epoch < EPOCHS && IN(epoch, b) ->
			new_epoch(b, epoch + 1, incarnation[b], c_in[epoch])

		/* ---- T1: b joins the tenure of a */
		:: a != b && acting[a] && SAME_SESSION(a, b) && !joined[AT(a, b)] && seen[b] <= tenure[a] &&
		   !(acting[b] && tenure[b] >= tenure[a]) ->
			end_tenure(b);
			/* the known commit of a member is in every later history */
			assert(commit[b] <= last[a] && (commit[b] == 0 || LOG(b, commit[b]) == LOG(a, commit[b])));
			x = commit[b];
			if
			:: WANTS(a, b) ->
				do
				:: x < last[a] && x < last[b] && LOG(b, x + 1) == LOG(a, x + 1) -> x++
				:: else -> break
				od
			:: else
			fi;
#ifdef NO_CUT
			x = last[b];
#endif
			for (s : 1 .. WRITES) {
				if
				:: s > x -> LOG(b, s) = 0
				:: else
				fi
			}
			s = 0; last[b] = x; x = 0;
			raise_seen(b, tenure[a]);
			hold[AT(b, a)] = tenure[a]; hold_inc[AT(b, a)] = incarnation[a]; owed[AT(b, a)] = false;
			filled[b] = false;
			if
			:: joined[AT(a, b)] = true; acked[AT(a, b)] = (WANTS(a, b) -> last[b] : 0)
			:: skip /* the answer is lost with the session; joined again later */
			fi
		/* the stream, in order, while b has joined this tenure and nothing later */
		:: a != b && acting[a] && joined[AT(a, b)] && SAME_SESSION(a, b) && seen[b] == tenure[a] && hold[AT(b, a)] == tenure[a] &&
		   last[b] < last[a] && (WANTS(a, b) || filled[b]) ->
			last[b] = last[b] + 1; LOG(b, last[b]) = LOG(a, last[b]); acked[AT(a, b)] = last[b]
		/* Y: catch-up of a member that is not counted, to the end of the primary's log */
		:: a != b && acting[a] && serving[a] && joined[AT(a, b)] && SAME_SESSION(a, b) && seen[b] == tenure[a] &&
		   hold[AT(b, a)] == tenure[a] && !WANTS(a, b) && !filled[b] ->
			for (s : 1 .. WRITES) { LOG(b, s) = LOG(a, s) }
			s = 0; last[b] = last[a]; acked[AT(a, b)] = last[b]; filled[b] = true
		/* commit rides on messages */
		:: a != b && acting[a] && joined[AT(a, b)] && SAME_SESSION(a, b) && seen[b] == tenure[a] && hold[AT(b, a)] == tenure[a] &&
		   (WANTS(a, b) || filled[b]) && commit[b] < commit[a] && last[b] > commit[b] ->
			commit[b] = (last[b] < commit[a] -> last[b] : commit[a])

		/* ---- the primary */
		:: a == b && acting[a] && !serving[a] && SETTLED(a, last[a]) && CLEAR(a, 0) && CLEAR(a, 1) && CLEAR(a, 2) && UP(a) -> /* T2 */
			commit[a] = last[a]; serving[a] = true
		/* W1 */
		:: a == b && acting[a] && serving[a] && !draining[a] && last[a] < WRITES && LEASED(a) ->
			last[a] = last[a] + 1; LOG(a, last[a]) = tenure[a]
		/* W4, and the reply */
		:: a == b && acting[a] && serving[a] && commit[a] < last[a] && SETTLED(a, commit[a] + 1) ->
			commit[a] = commit[a] + 1; tell(a)
#ifndef NO_READS
		/* Q2 */
		:: a == b && acting[a] && serving[a] && READABLE(a) && (commit[a] != known || (known != 0 && LOG(a, known) != known_log[known])) -> read(a)

		/* ---- leases */
		:: a != b && SAME_SESSION(a, b) && !owed[AT(a, b)] && !lease[AT(b, a)] -> lease[AT(b, a)] = true
		:: a != b && lease[AT(a, b)] -> lease[AT(a, b)] = false
#endif
		/* FENCE and FENCED */
		:: a != b && owed[AT(a, b)] && SAME_SESSION(a, b) ->
			if
			:: acting[b] && tenure[b] < seen[a] -> end_tenure(b)
			:: else
			fi;
			if
			:: stopped[b] < seen[a] - 1 -> stopped[b] = seen[a] - 1
			:: else
			fi;
			owed[AT(a, b)] = false; hold[AT(a, b)] = 0; hold_inc[AT(a, b)] = 0

		/* ---- crash, restart, and who notices */
		:: a == b && alive[a] && crashes < CRASHES ->
			crashes++;
			end_tenure(a);
			alive[a] = false; up[a] = false; stopped[a] = 0; incarnation[a] = incarnation[a] + 1; filled[a] = false;
			for (x : 0 .. N - 1) {
				hold[AT(a, x)] = 0; hold_inc[AT(a, x)] = 0; owed[AT(a, x)] = false;
				lease[AT(a, x)] = false; session[AT(a, x)] = 0
			}
			x = 0
		:: a == b && !alive[a] -> alive[a] = true
		/* N2: a new session voids the joins and the leases of the old one */
		:: a != b && alive[a] && alive[b] && session[AT(a, b)] != incarnation[b] ->
			session[AT(a, b)] = incarnation[b]; joined[AT(a, b)] = false; lease[AT(a, b)] = false;
			owed[AT(a, b)] = false; hold[AT(a, b)] = 0; hold_inc[AT(a, b)] = 0
		:: a == b && alive[a] && !up[a] && !lease[AT(0, a)] && !lease[AT(1, a)] && !lease[AT(2, a)] ->
			up[a] = true
		:: else
		fi;
		a = 0; b = 0
	}
	od
}
