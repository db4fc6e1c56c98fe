/* SPDX-License-Identifier: Apache-2.0 */
/* Offline recovery. One survivor's Raft state goes on alone: the one that knows most, which is
 * found by comparing what each prints. The others then follow it, with their disk groups and an
 * empty Raft store; one that knows more than what it is to follow is refused, as its disks may have
 * acted on that.
 *
 * identity.json says that a recovery is under way before the Raft store is touched: whatever stops
 * it half-way, the same command finishes it, and a start in between is refused. */
#include "node/recover.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cluster/consensus_recover.h"
#include "cluster/map_codec.h"
#include "cluster/state.h"
#include "node/base/err.h"
#include "node/birth.h"
#include "node/loop/failpoint.h"

#define EXIT_REFUSED 1
#define EXIT_LOSS    5
#define EVENTS_SHOWN 5u
/* Indices that the lost time may have used; clients' maps are of these versions. */
#define UNKNOWN_INDICES (1u << 20)

struct recovery {
	const struct config *config;
	struct identity id;
	struct birth_paths paths;
	struct state *state;
	struct consensus_offline *raft; /* NULL: none was found */
	bool gone; /* there was one */
	struct consensus_survivor survivor;
};

static uint64_t wall_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* ---- Reading ------------------------------------------------------------------------------------
 */

static void take_command(void *ctx, uint64_t index, const void *cmd, size_t len,
			 struct command_result *out)
{
	struct recovery *r = ctx;

	state_apply(r->state, index, cmd, len, out, NULL, NULL);
}

static int take_snapshot(void *ctx, const void *data, size_t len, uint64_t index)
{
	struct recovery *r = ctx;

	return state_restore(r->state, data, len);
}

static const struct consensus_hooks hooks = {.apply = take_command, .restore = take_snapshot};

static int refused(const char *what, int rc)
{
	fprintf(stderr, "ashlard recover: %s: %s\n", what,
		rc == -ERR_BUSY ? "it is in use: stop ashlard first" : err_text(rc));
	return EXIT_REFUSED;
}

/* 0, or the exit code: said. *found: false: there is no Raft store, or an empty one. */
static int recovery_open(struct recovery *r, const struct config *c, bool *found)
{
	int rc;

	*r = (struct recovery){.config = c};
	rc = identity_load(c->state_dir, &r->id);
	if (rc < 0)
		return refused(c->state_dir, rc);
	if (r->id.removed) {
		fprintf(stderr,
			"ashlard recover: this node was removed from cluster %s: it has no part in "
			"it\n",
			r->id.cluster_name);
		return EXIT_REFUSED;
	}
	birth_paths(c->state_dir, &r->paths);
	r->state = state_create();
	/* Opening would make an empty one, and the node would take that for its own. */
	r->gone = birth_raft_there(c->state_dir, &r->id) < 0;
	rc = r->gone ? -ERR_NOT_FOUND
		     : consensus_offline_open(r->paths.raft, r->id.number, &hooks, r, &r->raft, &r->survivor);
	*found = rc == 0;
	return rc == 0 || rc == -ERR_NOT_FOUND ? 0 : refused(r->paths.raft, rc);
}

static void recovery_close(struct recovery *r)
{
	if (r->raft)
		consensus_offline_close(r->raft);
	if (r->state)
		state_destroy(r->state);
}

/* ---- Saying -------------------------------------------------------------------------------------
 */

static void time_text(uint64_t ms, char out[32])
{
	time_t t = (time_t)(ms / 1000);
	struct tm tm;

	gmtime_r(&t, &tm);
	strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static void print_follow(const struct identity *id)
{
	printf("ashlard recover --follow %u-%08x-%" PRIu64 "-%" PRIu64 "\n", id->recovery,
	       id->recovery_id, id->recovery_term, id->recovery_index);
}

static void print_voters(const struct recovery *r)
{
	printf("voters      ");
	for (unsigned i = 0; i < MIN(r->survivor.voters, (unsigned)ARRAY_LEN(r->survivor.voter));
	     i++) {
		const struct map_node *n = map_node(state_map(r->state), r->survivor.voter[i]);

		printf("%s%s (%u)", i ? ", " : "", n ? n->name : "?", r->survivor.voter[i]);
	}
	printf("\n");
}

static void print_objects(const struct recovery *r)
{
	const struct map *m = state_map(r->state);
	uint64_t all = 0, here = 0, only = 0;

	for (struct hnode *h = hmap_walk(&m->volumes, NULL); h; h = hmap_walk(&m->volumes, h)) {
		const struct map_volume *v = container_of(h, struct map_volume, by_id);

		for (uint32_t i = 0; i < v->objects; i++) {
			const struct map_object *o = &v->object[i];
			bool in = false;

			for (unsigned k = 0; k < o->member_count; k++) {
				const struct map_node *n = map_member_node(m, &o->member[k]);

				in |= o->member[k].in && n && n->id == r->id.number;
			}
			all++;
			here += in;
			only += in && map_in_count(o) == 1;
		}
	}
	printf("state       %zu volumes, %" PRIu64
	       " objects; an in-sync replica on this node of %" PRIu64 ", the only one of %" PRIu64
	       "\n",
	       (size_t)m->volumes.count, all, here, only);
}

static void print_events(const struct recovery *r)
{
	struct state_event e[EVENTS_SHOWN];
	unsigned n = state_events(r->state, e, ARRAY_LEN(e));

	printf("newest events that it knows of:\n");
	for (unsigned i = 0; i < n; i++) {
		char when[32];

		time_text(e[i].time_ms, when);
		printf("  %s  %-18s %s\n", when, e[i].code, e[i].text);
	}
}

static void print_state(const struct recovery *r)
{
	const struct consensus_survivor *s = &r->survivor;

	printf("cluster     %s, recovered %u times so far\n", r->id.cluster_name, r->id.recovery);
	printf("node        %s (%u)\n", r->id.name, r->id.number);
	if (r->id.recovery_term) {
		printf("followed by ");
		print_follow(&r->id);
	}
	printf("raft        the log ends at term %" PRIu64 ", index %" PRIu64 "\n", s->last_term,
	       s->last_index);
	print_voters(r);
	print_objects(r);
	print_events(r);
}

static int look(struct recovery *r)
{
	print_state(r);
	printf("\nNothing was changed. Run this on every surviving node, with ashlard stopped "
	       "there,\n"
	       "and compare: the one whose log ends at the greatest term, and among these at the\n"
	       "greatest index, knows most. On that one, and no other:\n"
	       "    ashlard recover --accept-loss %s\n"
	       "Only when a majority of the voters is gone for good. If they can come back, start\n"
	       "them instead: nothing is lost then.\n",
	       r->id.cluster_name);
	return 0;
}

/* ---- Going on alone -----------------------------------------------------------------------------
 */

static void print_done(const struct recovery *r)
{
	printf("\nCluster %s goes on with this node's state, as recovery %u. This may be lost:\n"
	       "  - changes of the cluster that only the lost nodes knew: volumes, settings,\n"
	       "    attachments; one that was taken away after the newest event above is back\n"
	       "  - writes that only replicas on lost nodes had, as the others had been dropped\n"
	       "What survives is found: no object is served before every node that may have more\n"
	       "of it is back, or was removed.\n\n"
	       "Now, in this order:\n"
	       "  1. here: start ashlard\n"
	       "  2. on every other surviving node, with ashlard stopped:\n"
	       "         ",
	       r->id.cluster_name, r->id.recovery);
	print_follow(&r->id);
	printf("     then start ashlard there; it keeps its disk groups\n"
	       "  3. for each node that is gone for good:\n"
	       "         ashlar node remove NODE --dead --accept-loss\n"
	       "  4. ashlar health; ashlar volume list; for what is still unavailable:\n"
	       "         ashlar volume force VOLUME\n"
	       "A lost node that turns up after all is told so and stays out.\n");
}

/* Before the Raft store is touched, and after. */
static int note(struct recovery *r, bool recovering)
{
	int rc;

	if (!recovering)
		(void)FAILPOINT(recover_written);
	r->id.recovering = recovering;
	r->id.bootstrap = false;
	r->id.behind = 0;
	rc = identity_save(r->config->state_dir, &r->id);
	if (recovering)
		(void)FAILPOINT(recover_noted);
	return rc < 0 ? refused(r->config->state_dir, rc) : 0;
}

static bool went_on(const struct recovery *r)
{
	return r->id.recovering && state_recoveries(r->state) == r->id.recovery;
}

static int go_on(struct recovery *r)
{
	uint64_t index = r->survivor.last_index + UNKNOWN_INDICES;
	struct writer w = writer_init_heap();
	struct uuid random;
	int rc = state_recover(r->state, index, wall_ms(), r->id.number, "root, offline");

	if (rc < 0)
		return refused("the state", rc);
	uuid_make(&random);
	memcpy(&r->id.recovery_id, random.b + 12, sizeof(r->id.recovery_id));
	r->id.recovery = (uint16_t)state_recoveries(r->state);
	r->id.recovery_term = r->survivor.last_term;
	r->id.recovery_index = r->survivor.last_index;
	rc = note(r, true);
	if (rc)
		return rc;
	state_snapshot(r->state, &w);
	rc = consensus_offline_go_on(r->raft, index, w.data, w.len);
	writer_free(&w);
	return rc < 0 ? refused(r->paths.raft, rc) : 0;
}

static int alone(struct recovery *r, const char *name)
{
	int rc;

	if (strcmp(name, r->id.cluster_name)) {
		fprintf(stderr,
			"ashlard recover: this node's cluster is named %s: give that name to "
			"confirm\n",
			r->id.cluster_name);
		return EXIT_REFUSED;
	}
	if (uuid_is_nil(&state_map(r->state)->cluster)) {
		fprintf(stderr, "ashlard recover: this node never knew the cluster's state\n");
		return EXIT_REFUSED;
	}
	if (r->survivor.voters == 1 && r->survivor.voter[0] == r->id.number && !r->id.recovering) {
		fprintf(stderr, "ashlard recover: this node is the only voter: start it, nothing "
				"is lost\n");
		return EXIT_REFUSED;
	}
	print_state(r);
	rc = went_on(r) ? 0 : go_on(r);
	rc = rc ? rc : note(r, false);
	if (!rc)
		print_done(r);
	return rc;
}

/* ---- Following ----------------------------------------------------------------------------------
 */

struct token {
	unsigned recovery, id;
	uint64_t term, index;
};

static bool token_parse(const char *text, struct token *t)
{
	int end = 0;

	if (sscanf(text, "%u-%x-%" SCNu64 "-%" SCNu64 "%n", &t->recovery, &t->id, &t->term,
		   &t->index, &end) != 4)
		return false;
	return !text[end] && t->recovery && t->recovery <= UINT16_MAX && t->term && t->index;
}

/* The old store is kept beside, for whoever wants to look. */
static int raft_aside(struct recovery *r, unsigned recovery)
{
	CLEANUP(free_ptr) char *aside = xasprintf("%s.before-recovery-%u", r->paths.raft, recovery);

	if (r->raft)
		consensus_offline_close(r->raft);
	r->raft = NULL;
	if (rename(r->paths.raft, aside) == 0)
		return 0;
	fprintf(stderr, "ashlard recover: %s cannot be renamed to %s: %s\n", r->paths.raft, aside,
		strerror(errno));
	return EXIT_REFUSED;
}

static int follow(struct recovery *r, const char *text, bool found)
{
	const struct consensus_survivor *s = &r->survivor;
	struct token t;
	int rc;

	if (!token_parse(text, &t)) {
		fprintf(stderr,
			"ashlard recover: \"%s\" is no token of a recovery, such as "
			"1-9f3a2b1c-57-1234\n",
			text);
		return 2;
	}
	if (t.recovery == r->id.recovery && t.id == r->id.recovery_id && !r->id.recovering) {
		printf("node %s follows this recovery of cluster %s already\n", r->id.name,
		       r->id.cluster_name);
		return 0;
	}
	if (found && state_recoveries(r->state) >= t.recovery) {
		fprintf(stderr,
			"ashlard recover: this node is of another recovery of cluster %s, its "
			"disks too: "
			"it can\nonly join anew, empty\n",
			r->id.cluster_name);
		return EXIT_LOSS;
	}
	if (found &&
	    (s->last_term > t.term || (s->last_term == t.term && s->last_index > t.index))) {
		fprintf(stderr,
			"ashlard recover: this node knows more (its log ends at term %" PRIu64
			", index %" PRIu64
			")\nthan the recovered cluster: the recovery should have "
			"been made here. Give up what is on\nthis node, and let it join anew; or "
			"stop "
			"the recovered nodes for good, and make it here,\nwith --accept-loss %s\n",
			s->last_term, s->last_index, r->id.cluster_name);
		return EXIT_LOSS;
	}
	r->id.recovery = (uint16_t)t.recovery;
	r->id.recovery_id = t.id;
	r->id.recovery_term = t.term;
	r->id.recovery_index = t.index;
	r->id.raft_begun = false; /* it gets the log of the recovered cluster */
	rc = note(r, true);
	if (!rc && (found || (r->gone && access(r->paths.raft, F_OK) == 0)))
		rc = raft_aside(r, t.recovery);
	rc = rc ? rc : note(r, false);
	if (rc)
		return rc;
	printf("node %s will follow recovery %u of cluster %s, with its disk groups: start "
	       "ashlard\n",
	       r->id.name, t.recovery, r->id.cluster_name);
	return 0;
}

int recover_run(const struct config *c, enum recover_what what, const char *argument)
{
	struct recovery r;
	bool found = false;
	int rc = recovery_open(&r, c, &found);

	if (!rc && !found && what != RECOVER_FOLLOW) {
		fprintf(stderr, "ashlard recover: %s: %s\n", r.paths.raft,
			r.gone ? "the Raft log of this node is gone; nothing was changed"
			       : "this node never knew the cluster's state");
		rc = EXIT_REFUSED;
	}
	if (!rc)
		rc = what == RECOVER_LOOK    ? look(&r)
		     : what == RECOVER_ALONE ? alone(&r, argument)
					     : follow(&r, argument, found);
	recovery_close(&r);
	return rc;
}
