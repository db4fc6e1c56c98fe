/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulator/batch.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double sim_wall_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

#define WORKERS_MAX     16u
#define HISTORY_LIMIT_S 60 /* of CPU time: a history takes a fraction of a second */
#define SHIFT		100u /* histories of one worker: their memory goes with its process */
struct worker {
	pid_t pid;
	int fd;
	uint64_t next; /* what it is at, of the batch's histories */
};

static struct sim_counts totals;
static uint64_t histories, failures;

static void totals_add(const struct sim_counts *c)
{
	const uint64_t *from = (const uint64_t *)c;
	uint64_t *to = (uint64_t *)&totals;

	for (size_t i = 0; i < sizeof(*c) / sizeof(uint64_t); i++)
		to[i] += from[i];
}

bool sim_known_read(const char *path, struct batch *b)
{
	FILE *f = fopen(path, "re");
	char line[256];

	if (!f) {
		fprintf(stderr, "%s: %m\n", path);
		return false;
	}
	while (fgets(line, sizeof(line), f)) {
		char *end;
		uint64_t seed = strtoull(line, &end, 10);

		if (*line == '#' || *line == '\n')
			continue;
		if (end == line || (*end != '\n' && *end != ' ') || b->known_count == KNOWN_MAX) {
			fprintf(stderr, "%s: not a seed, or more than %u: %s", path, KNOWN_MAX, line);
			fclose(f);
			return false;
		}
		b->known[b->known_count++] = seed;
	}
	fclose(f);
	return true;
}

static uint64_t seed_at(const struct batch *b, uint64_t i)
{
	return i < b->known_count ? b->known[i] : b->from + (i - b->known_count);
}

/* Takes histories from the `from`th on in steps, and writes a report of each. */
static _Noreturn void work(int fd, uint64_t from, uint64_t end, uint64_t step, double until_s,
			   const struct batch *b)
{
	const struct itimerval limit = {.it_value.tv_sec = HISTORY_LIMIT_S};

	for (uint64_t i = from; i < end && (!until_s || sim_wall_s() < until_s); i += step) {
		struct report r = {.seed = seed_at(b, i)};
		struct sim_plan p;

		b->plan(&p, r.seed);
		setitimer(ITIMER_PROF, &limit, NULL);
		r.failed = !sim_run(&p);
		r.counts = sim.counts;
		snprintf(r.text, sizeof(r.text), "%.*s", (int)sizeof(r.text) - 1, sim.failure);
		if (write(fd, &r, sizeof(r)) != sizeof(r))
			_exit(2);
	}
	_exit(0);
}

static void worker_start(struct worker *w, uint64_t from, uint64_t end, uint64_t step,
			 double until_s, const struct batch *b)
{
	int fds[2];

	CHECK(pipe(fds) == 0);
	fflush(stdout);
	w->next = from;
	w->pid = fork();
	CHECK(w->pid >= 0);
	if (!w->pid) {
		close(fds[0]);
		work(fds[1], from, end, step, until_s, b);
	}
	close(fds[1]);
	w->fd = fds[0];
}

static void shift_start(struct worker *w, uint64_t from, uint64_t end, uint64_t step, double until_s,
			const struct batch *b)
{
	worker_start(w, from, MIN(end, from + SHIFT * step), step, until_s, b);
}

static void tell(uint64_t seed, const char *text)
{
	failures++;
	printf("seed %llu: %s\n", (unsigned long long)seed, text);
	fflush(stdout);
}

/* One report, or its end. False: it is over and done. */
static bool worker_hear(struct worker *w, uint64_t end, uint64_t step, double until_s,
			const struct batch *b)
{
	struct report r;
	char text[80];
	int status;

	if (read(w->fd, &r, sizeof(r)) == sizeof(r)) {
		histories++;
		totals_add(&r.counts);
		w->next += step;
		if (r.failed)
			tell(r.seed, r.text);
		return true;
	}
	close(w->fd);
	waitpid(w->pid, &status, 0);
	if (WIFEXITED(status) && !WEXITSTATUS(status)) {
		if (w->next >= end || (until_s && sim_wall_s() >= until_s))
			return false;
		shift_start(w, w->next, end, step, until_s, b);
		return true;
	}
	snprintf(text, sizeof(text), "the simulator died of signal %d",
		 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	histories++;
	tell(seed_at(b, w->next), text);
	shift_start(w, w->next + step, end, step, until_s, b);
	return true;
}

int sim_batch(const struct batch *b)
{
	double start = sim_wall_s(), until = b->seconds > 0 ? start + b->seconds : 0;
	struct worker w[WORKERS_MAX];
	struct pollfd fds[WORKERS_MAX];
	unsigned jobs = MIN(b->jobs, WORKERS_MAX), alive = jobs;
	uint64_t end = b->known_count + b->count;

	for (unsigned i = 0; i < jobs; i++) {
		shift_start(&w[i], i, end, jobs, until, b);
		fds[i] = (struct pollfd){w[i].fd, POLLIN, 0};
	}
	while (alive) {
		CHECK(poll(fds, jobs, -1) > 0);
		for (unsigned i = 0; i < jobs; i++) {
			if (!fds[i].revents)
				continue;
			if (worker_hear(&w[i], end, jobs, until, b)) {
				fds[i].fd = w[i].fd;
			} else {
				fds[i].fd = -1;
				alive--;
			}
		}
	}
	printf("%llu histories from seed %llu on, %llu failures, %.1f s: %llu operations (%llu "
	       "reads), %llu kills, "
	       "%llu power cuts, %llu pauses, %llu silences, %llu resets, %llu late requests, %llu "
	       "rotten bits, "
	       "%llu I/O errors, %llu failed writes of one of two devices, %llu maps lost, "
	       "%llu maps damaged, %llu groups that were to fail, "
	       "%llu fences, %llu joins, %llu jobs, "
	       "%llu replicas moved, %llu nodes removed, %llu without them, "
	       "%llu resizes, %llu refusals for lack of space, %llu events\n",
	       (unsigned long long)histories, (unsigned long long)b->from,
	       (unsigned long long)failures, sim_wall_s() - start, (unsigned long long)totals.ops,
	       (unsigned long long)totals.reads, (unsigned long long)totals.kills,
	       (unsigned long long)totals.cuts, (unsigned long long)totals.pauses,
	       (unsigned long long)totals.blocks, (unsigned long long)totals.resets,
	       (unsigned long long)totals.duplicates, (unsigned long long)totals.rot,
	       (unsigned long long)totals.eio, (unsigned long long)totals.device_fails,
	       (unsigned long long)totals.reformats,
	       (unsigned long long)totals.map_damages, (unsigned long long)totals.group_fails,
	       (unsigned long long)totals.fences, (unsigned long long)totals.joins,
	       (unsigned long long)totals.jobs,
	       (unsigned long long)totals.moved, (unsigned long long)totals.removals,
	       (unsigned long long)totals.dead_removals,
	       (unsigned long long)totals.resizes, (unsigned long long)totals.full,
	       (unsigned long long)totals.events);
	return failures != 0;
}

bool sim_find(const struct batch *b, enum rule left_out, struct report *out)
{
	struct worker w;
	int status;

	rule_left_out = left_out;
	worker_start(&w, 0, b->known_count + b->count, 1, 0, b);
	rule_left_out = RULE_NONE;
	*out = (struct report){0};
	while (!out->failed && read(w.fd, out, sizeof(*out)) == sizeof(*out))
		w.next++;
	close(w.fd);
	if (out->failed)
		kill(w.pid, SIGKILL);
	waitpid(w.pid, &status, 0);
	if (out->failed)
		return true;
	*out = (struct report){.seed = seed_at(b, w.next),
			       .failed = !WIFEXITED(status) || WEXITSTATUS(status)};
	snprintf(out->text, sizeof(out->text), "the simulator died of signal %d",
		 WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	return out->failed;
}
