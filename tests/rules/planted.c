/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that a program of another folder notices: each row runs one of its tests twice, with nothing left
 * out, when it must pass, and without the rule, when it must not. What the simulators notice is in
 * tests/simulator/planted.c and tests/replica.
 *
 *   rules_planted [RULE]     all rows, or those of one rule by its number */
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node/base/check.h"
#include "node/base/rules.h"

#define LIMIT_S 60

static const struct row {
	enum rule rule;
	const char *name, *program, *test;
} rows[] = {
#define P(name, program, test) {RULE_##name, #name, program, test}
	P(EPOCH, "rules_state", "object.a_stale_epoch_is_a_conflict"),
	P(CURRENT, "rules_state", "object.a_dead_nodes_incarnation_is_banned"),
	P(JUMP, "rules_failover", "failover.told_that_the_leader_is_gone"),
	P(REPLAY, "rules_tier", "tier.replayed_and_foreign_records_change_nothing"),
	P(SKIPPED, "rules_log", "store.skip_and_copy"),
	P(EPOCHS_HOLD, "rules_log", "recovery.history_given_up_whose_cut_is_gone"),
	P(NAMED, "rules_release", "release.is_durable_before_a_segment_is_written_over"),
	P(LANES_EMPTY, "rules_release", "release.of_this_session_comes_after_those_before"),
	P(LOG_READERS, "rules_release", "release.waits_for_the_reads_begun_before"),
	P(GENERATION, "rules_log", "store.deleted_objects_stay_away"),
	P(READERS, "rules_tier", "races.a_freed_segment_waits_for_its_readers"),
	P(REGION, "rules_tier", "tier.a_lost_page_row_is_damage_not_zeros"),
	P(REGION, "rules_tier", "scrub.a_lost_map_row_is_damage_and_counted_anew"),
	P(BAD_STAYS, "rules_tier", "tier.damaged_log_payload_is_damaged_not_stored"),
	P(DESTAGE_CHECK, "rules_tier", "tier.damaged_log_payload_is_damaged_not_stored"),
	P(MOVE_CHECK, "rules_tier", "scrub.a_flipped_block_is_marked_when_its_segment_is_collected"),
	P(KV_COMMIT, "rules_tier", "tier.a_lost_or_older_database_is_said_to_be_lost"),
	P(FOLD, "rules_tier", "tier.keeps_what_was_destaged_with_mixed_policies"),
#undef P
};

static void run_child(const struct row *r, bool left_out, int fd)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", left_out ? (int)r->rule : 0);
	setenv("ASHLAR_RULE_LEFT_OUT", number, 1);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
	alarm(LIMIT_S); /* what never ends was noticed, too */
	execl(r->program, r->program, r->test, (char *)NULL);
	_exit(127);
}

/* The last line that is not of the log, of which there may be much. */
static void last_line(int fd, char *last, size_t size)
{
	FILE *f = fdopen(fd, "r");
	char line[512];

	*last = 0;
	while (fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		if (*line && !strstr(line, " level=") && strncmp(line, "files kept", 10))
			snprintf(last, size, "%.*s", (int)size - 1, line);
	}
	fclose(f);
}

/* Whether it failed; what it said last. */
static bool fails(const struct row *r, bool left_out, char *last, size_t size)
{
	int fds[2], status;
	pid_t pid;

	CHECK(pipe(fds) == 0);
	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(fds[0]);
		run_child(r, left_out, fds[1]);
	}
	close(fds[1]);
	last_line(fds[0], last, size);
	CHECK(waitpid(pid, &status, 0) == pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
		printf("%s cannot be run\n", r->program);
		exit(2);
	}
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		snprintf(last, size, "not done after %d s", LIMIT_S);
	return !WIFEXITED(status) || WEXITSTATUS(status);
}

static bool noticed(const struct row *r)
{
	char last[512];

	if (fails(r, false, last, sizeof(last))) {
		printf("FAILS with nothing left out: %s %s: %.150s\n", r->program, r->test, last);
		return false;
	}
	if (!fails(r, true, last, sizeof(last))) {
		printf("MISSED: %s (%d): %s %s\n", r->name, (int)r->rule, r->program, r->test);
		return false;
	}
	printf("found: %s (%d): %s %s: %.150s\n", r->name, (int)r->rule, r->program, r->test, last);
	return true;
}

int main(int argc, char **argv)
{
	unsigned only = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0, run = 0, missed = 0;

	if (chdir(dirname(argv[0]))) {
		perror(argv[0]);
		return 2;
	}
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (only && rows[i].rule != only)
			continue;
		run++;
		missed += !noticed(&rows[i]);
	}
	printf("%u of %u planted faults were noticed\n", run - missed, run);
	return missed || !run;
}
