/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: long work of the cluster. It goes on without this command; waiting is only looking. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

static const struct verb *verb(const char *name)
{
	for (const struct verb *v = job_verbs; v->noun; v++)
		if (!strcmp(v->verb, name))
			return v;
	return NULL;
}

static const char *target_text(const struct json *j, char out[96])
{
	const char *node = json_str(j, "node");

	if (json_has(j, "group"))
		snprintf(out, 96, "group %" PRIu64 "%s%.60s", json_u64(j, "group", 0),
			 node ? " on " : "", node ? node : "");
	else
		snprintf(out, 96, "%.90s", node ? node : "cluster");
	return out;
}

static const char *left_text(const struct json *j, char out[24])
{
	if (!json_has(j, "seconds_left_estimate"))
		return "-";
	return age_text(json_u64(j, "seconds_left_estimate", 0), out);
}

static const char *rate_text(const struct json *j, char out[32])
{
	char bytes[24];

	if (!json_has(j, "bytes_per_s"))
		return "-";
	snprintf(out, 32, "%s/s", bytes_text(json_u64(j, "bytes_per_s", 0), bytes));
	return out;
}

/* Who was told that a target is empty might wipe it. */
static void print_quarantined(const struct json *job)
{
	uint64_t n = json_u64(job, "quarantined_replicas", 0);

	if (n)
		printf("NOT EMPTY: the target of job %" PRIu64 " has %" PRIu64 " replica%s in quarantine, "
		       "which no job moves: ashlar quarantine list\n",
		       json_u64(job, "id", 0), n, n == 1 ? "" : "s");
}

static int job_list(struct ctl *c, int argc, char **argv)
{
	static const char *const head[] = {"#",    "KIND", "TARGET",  "STATE",  "DONE",
					   "LEFT", "RATE", "ENDS IN", "STARTED"};
	const struct json *list;
	bool all = false, waiting = false, holding = false;
	const struct option_spec o[] = {{"--all", NULL, &all}};
	struct json *j;
	struct table t;
	int rc;

	rc = ctl_args(verb("list"), argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc == CTL_OK)
		rc = ctl_call(c, "GET", "/v1/jobs", NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json) {
		print_json(j);
		json_free(j);
		return CTL_OK;
	}
	table_init(&t, ARRAY_LEN(head), 1u << 0 | 1u << 4 | 1u << 5 | 1u << 6, head);
	list = json_get(j, "jobs");
	for (size_t i = 0; i < json_len(list); i++) {
		const struct json *x = json_at(list, i);
		char target[96], left[24], rate[32], age[24], ends[24];
		const char *state = str_or(x, "state", "?");
		bool holds = json_bool(x, "holds_empty", false);

		holding |= holds;
		if (!all && !holds && strcmp(state, "running") && strcmp(state, "paused"))
			continue;
		waiting |= json_str(x, "waits_for") != NULL;
		table_add(&t, "%" PRIu64, json_u64(x, "id", 0));
		table_add(&t, "%s", str_or(x, "kind", "?"));
		table_add(&t, "%s", target_text(x, target));
		table_add(&t, "%s", json_str(x, "waits_for") ? "waiting" : holds ? "done, holds" : state);
		if (json_has(x, "percent"))
			table_add(&t, "%" PRIu64 " %%", json_u64(x, "percent", 0));
		else
			table_add(&t, "-");
		table_add(&t, "%s", bytes_text(json_u64(x, "bytes_left_estimate", 0), left));
		table_add(&t, "%s", rate_text(x, rate));
		table_add(&t, "%s", left_text(x, ends));
		table_add(&t, "%s ago", age_text(json_u64(x, "age_s", 0), age));
	}
	table_print(&t);
	for (size_t i = 0; i < json_len(list); i++)
		if (json_str(json_at(list, i), "danger"))
			printf("DANGER: job %" PRIu64 ": %s\n", json_u64(json_at(list, i), "id", 0),
			       json_str(json_at(list, i), "danger"));
	if (waiting)
		puts("what a job waits for: ashlar job show ID");
	if (holding)
		puts("an evacuation that is done keeps its target empty: ashlar job cancel ID lets replicas "
		     "come there again");
	for (size_t i = 0; i < json_len(list); i++)
		print_quarantined(json_at(list, i));
	print_source(j);
	json_free(j);
	return CTL_OK;
}

static void print_progress(const struct json *j)
{
	char a[24], b[24], rate[32];

	printf("  progress  %" PRIu64 " %%: %" PRIu64 " of %" PRIu64 " replicas done, %" PRIu64
	       " being copied\n",
	       json_u64(j, "percent", 0), json_u64(j, "replicas_done", 0),
	       json_u64(j, "replicas_total", 0), json_u64(j, "replicas_filling", 0));
	printf("  bytes     about %s of %s left, %s\n",
	       bytes_text(json_u64(j, "bytes_left_estimate", 0), a),
	       bytes_text(json_u64(j, "bytes_total_estimate", 0), b), rate_text(j, rate));
}

static void print_job(const struct json *j)
{
	char target[96], a[24];
	uint64_t stranded = json_u64(j, "replicas_without_source", 0);

	printf("job %" PRIu64 ": %s of %s, %s\n", json_u64(j, "id", 0), str_or(j, "kind", "?"),
	       target_text(j, target), str_or(j, "state", "?"));
	if (*str_or(j, "note", ""))
		printf("  note      %s\n", str_or(j, "note", ""));
	if (json_has(j, "percent"))
		print_progress(j);
	if (json_u64(j, "client_cost_permille", 0))
		printf("  clients   operations take %.1f %% longer beside it\n",
		       (double)json_u64(j, "client_cost_permille", 0) / 10);
	if (json_has(j, "seconds_left_estimate"))
		printf("  ends in   about %s\n", left_text(j, a));
	if (json_str(j, "waits_for"))
		printf("  waits for %s\n", json_str(j, "waits_for"));
	if (json_str(j, "danger"))
		printf("  DANGER    %s\n", json_str(j, "danger"));
	if (stranded)
		printf("  %" PRIu64 " replicas have no in-sync copy in reach to be made from\n",
		       stranded);
	if (json_bool(j, "holds_empty", false))
		printf("  holds its target empty until that is removed; so that replicas come there again: "
		       "ashlar job cancel %" PRIu64 "\n",
		       json_u64(j, "id", 0));
	print_quarantined(j);
	if (json_u64(j, "stuck_s", 0))
		printf("  has not moved for %s\n", age_text(json_u64(j, "stuck_s", 0), a));
	printf("  started   %s ago by %s\n", age_text(json_u64(j, "age_s", 0), a),
	       str_or(j, "actor", "?"));
}

static int job_path(const char *word, const char *step, char out[64])
{
	uint64_t id;

	if (!ctl_number(word, UINT32_MAX, &id))
		return ctl_usage("\"%s\" is not the number of a job; `ashlar job list` shows them",
				 word);
	snprintf(out, 64, "/v1/jobs/%" PRIu64 "%s", id, step);
	return CTL_OK;
}

static int job_show(struct ctl *c, int argc, char **argv)
{
	const char *word;
	char path[64];
	int rc;

	rc = ctl_args(verb("show"), argc, argv, NULL, 0, &word, 1, 1);
	if (rc == CTL_OK)
		rc = job_path(word, "", path);
	return rc == CTL_OK ? ctl_show(c, path, print_job) : rc;
}

static int step(struct ctl *c, const char *name, const char *path_end, int argc, char **argv)
{
	const char *word;
	struct json *j;
	char path[64];
	int rc;

	rc = ctl_args(verb(name), argc, argv, NULL, 0, &word, 1, 1);
	if (rc == CTL_OK)
		rc = job_path(word, path_end, path);
	if (rc == CTL_OK)
		rc = ctl_call(c, "POST", path, NULL, &j);
	if (rc != CTL_OK)
		return rc;
	if (c->json)
		print_json(j);
	json_free(j);
	return CTL_OK;
}

static int job_pause(struct ctl *c, int argc, char **argv)
{
	return step(c, "pause", "/pause", argc, argv);
}

static int job_resume(struct ctl *c, int argc, char **argv)
{
	return step(c, "resume", "/resume", argc, argv);
}

static int job_cancel(struct ctl *c, int argc, char **argv)
{
	return step(c, "cancel", "/cancel", argc, argv);
}

/* ---- Waiting ---- */

/* Prints when something worth saying has changed, on a terminal only. */
static void say_progress(const struct ctl *c, const struct json *j, uint64_t *percent)
{
	char left[24], rate[32];

	if (c->json || !isatty(STDERR_FILENO) || json_u64(j, "percent", 0) == *percent)
		return;
	*percent = json_u64(j, "percent", 0);
	fprintf(stderr, "%" PRIu64 " %%, %s, ends in %s\n", *percent, rate_text(j, rate),
		left_text(j, left));
}

static int wait_end(struct ctl *c, const struct json *j, uint64_t id)
{
	const char *state = str_or(j, "state", "?");

	if (c->json)
		print_json(j);
	else
		print_job(j);
	if (!strcmp(state, "done"))
		return CTL_OK;
	return ctl_error(c, CTL_REFUSED, "REFUSED", "job %" PRIu64 " is %s", id, state);
}

#define NEWS_S 10

/* seconds 0: for ever. A daemon that restarts meanwhile is waited for, as long as it was there
 * once. started: the job was made by this command, and the node asked may not have heard of it yet. */
static int wait_for(struct ctl *c, uint64_t id, uint64_t seconds, bool started)
{
	uint64_t start = ctl_now_s(), percent = UINT64_MAX;
	bool seen = started;
	char path[64];

	snprintf(path, sizeof(path), "/v1/jobs/%" PRIu64, id);
	for (;; sleep(1)) {
		struct json *j = NULL;
		const char *state;
		int rc = ctl_call(c, "GET", path, NULL, &j);

		if (rc == CTL_NOT_FOUND && started && ctl_now_s() - start < NEWS_S)
			continue;
		if (rc != CTL_OK && (!seen || rc == CTL_NOT_FOUND || rc == CTL_USAGE))
			return rc;
		if (rc == CTL_OK) {
			seen = true;
			started = false;
			state = str_or(j, "state", "?");
			say_progress(c, j, &percent);
			if (strcmp(state, "running") && strcmp(state, "paused")) {
				rc = wait_end(c, j, id);
				json_free(j);
				return rc;
			}
			json_free(j);
		}
		if (seconds && ctl_now_s() - start >= seconds)
			return ctl_error(c, CTL_TIMEOUT, "ETIMEDOUT",
					 "job %" PRIu64 " still goes on after %" PRIu64
					 " s: ashlar job show %" PRIu64,
					 id, seconds, id);
	}
}

static int job_wait(struct ctl *c, int argc, char **argv)
{
	const char *word, *limit = NULL;
	const struct option_spec o[] = {{"--for", &limit, NULL}};
	uint64_t id, seconds = 0;
	int rc;

	rc = ctl_args(verb("wait"), argc, argv, o, ARRAY_LEN(o), &word, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (!ctl_number(word, UINT32_MAX, &id))
		return ctl_usage("\"%s\" is not the number of a job; `ashlar job list` shows them",
				 word);
	if (limit && (!ctl_duration_s(limit, &seconds) || !seconds))
		return ctl_usage("--for takes a time, e.g. 30m or 2h");
	return wait_for(c, id, seconds, false);
}

/* ---- Starting ---- */

int ctl_start_job(struct ctl *c, struct json *body, bool wait)
{
	return ctl_job(c, "/v1/jobs", body, wait);
}

int ctl_job(struct ctl *c, const char *path, struct json *body, bool wait)
{
	struct json *j;
	uint64_t id;
	int rc = ctl_call(c, "POST", path, body, &j);

	if (rc != CTL_OK)
		return rc;
	id = json_u64(j, "id", 0);
	if (wait) {
		json_free(j);
		return wait_for(c, id, 0, true);
	}
	if (c->json)
		print_json(j);
	else
		printf("job %" PRIu64 "; it goes on by itself: ashlar job wait %" PRIu64 "\n", id,
		       id);
	json_free(j);
	return CTL_OK;
}

static int job_start(struct ctl *c, int argc, char **argv)
{
	const char *kind;
	bool wait = false;
	const struct option_spec o[] = {{"--wait", NULL, &wait}};
	struct json *body;
	int rc;

	rc = ctl_args(verb("start"), argc, argv, o, ARRAY_LEN(o), &kind, 1, 1);
	if (rc != CTL_OK)
		return rc;
	if (strcmp(kind, "rebalance"))
		return ctl_usage(
			"job start: only rebalance is started here; others: ashlar node evacuate, "
			"ashlar diskgroup evacuate; a rebuild starts by itself");
	body = json_object_new();
	json_put_str(body, "kind", kind);
	return ctl_start_job(c, body, wait);
}

const struct verb job_verbs[] = {
	{"job", "list", "[--all]",
	 "Lists long work of the cluster: rebuilds, evacuations, rebalances.\n\n"
	 "One that is done and keeps its target empty is listed too (\"done, holds\").\n"
	 "--all: those that are over too.\n\nExample: ashlar job list",
	 job_list},
	{"job", "show", "ID",
	 "Shows one job: how far, how fast, until when, what it waits for.\n\n"
	 "Bytes and times are estimates: what is left times what a replica holds on average.\n\n"
	 "Example: ashlar job show 3",
	 job_show},
	{"job", "wait", "ID [--for TIME]",
	 "Waits until a job is over. Exit code 0: done, 1: cancelled, 8: not over after TIME; it "
	 "goes on.\n\n"
	 "Example: ashlar job wait 3 --for 2h",
	 job_wait},
	{"job", "start", "rebalance [--wait]",
	 "Moves replicas until all disk groups are filled evenly, after some were added.\n\n"
	 "Example: ashlar job start rebalance",
	 job_start},
	{"job", "pause", "ID",
	 "Starts nothing more of a job until it is resumed; copies under way are finished.\n\n"
	 "Example: ashlar job pause 3",
	 job_pause},
	{"job", "resume", "ID", "Goes on with a paused job.\n\nExample: ashlar job resume 3",
	 job_resume},
	{"job", "cancel", "ID",
	 "Ends a job; what it has moved stays there.\n\n"
	 "Unfinished copies of an evacuation or rebalance go. The target of an evacuation takes\n"
	 "replicas again, also when it was done; so does a node that was to be removed. A cancelled\n"
	 "rebuild starts again at the node's next absence.\n\n"
	 "Example: ashlar job cancel 3",
	 job_cancel},
	{NULL},
};
