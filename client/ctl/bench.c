/* SPDX-License-Identifier: Apache-2.0 */
/* bench: the five HCIBench profiles and queue-depth-1 latencies against a volume, by fio over NBD.
 * What it prints includes the whole host's CPU time from /proc/stat per I/O: client, network,
 * kernel and, in a lab, every node. It writes to the volume: its data is lost. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

struct profile {
	const char *name, *rw, *bs, *depth, *extra;
};

static const struct profile hcibench[] = {
	{"4k-rand-read", "randread", "4k", "64", NULL},
	{"4k-rand-write", "randwrite", "4k", "64", NULL},
	{"8k-70/30", "randrw", "8k", "64", "--rwmixread=70"},
	{"32k-seq-read", "read", "32k", "32", NULL},
	{"32k-seq-write", "write", "32k", "32", NULL},
	{"4k-read-qd1", "randread", "4k", "1", NULL},
	{"4k-write-qd1", "randwrite", "4k", "1", NULL},
};

struct result {
	double iops, mib_s, mean_us, p99_us, cpu_us_per_io, cpu_cores;
	int64_t errors;
};

/* Busy time of all cores since boot, in microseconds. */
static uint64_t busy_us(void)
{
	unsigned long long v[10] = {0};
	uint64_t busy = 0;
	FILE *f = fopen("/proc/stat", "re");
	int n;

	if (!f)
		return 0;
	n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2],
		   &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9]);
	fclose(f);
	for (int i = 0; i < MIN(n, 8); i++) /* guest time is part of user time */
		if (i != 3 && i != 4)
			busy += v[i];
	return busy * 1000000u / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* Runs argv, gathers its standard output. < 0: errno; else its exit status. */
static int run_program(char *const *argv, char **out)
{
	int fd[2], status;
	size_t len = 0, cap = 1 << 16;
	ssize_t n;
	pid_t pid;

	*out = NULL;
	if (pipe(fd) < 0)
		return -errno;
	pid = fork();
	if (pid < 0) {
		close(fd[0]);
		close(fd[1]);
		return -errno;
	}
	if (pid == 0) {
		dup2(fd[1], STDOUT_FILENO);
		close(fd[0]);
		close(fd[1]);
		execvp(argv[0], argv);
		_exit(127);
	}
	close(fd[1]);
	*out = xmalloc(cap);
	while ((n = read(fd[0], *out + len, cap - len - 1)) > 0 || (n < 0 && errno == EINTR)) {
		len += n > 0 ? (size_t)n : 0;
		if (cap - len < 4096)
			*out = xrealloc(*out, cap *= 2);
	}
	(*out)[len] = '\0';
	close(fd[0]);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

struct bench {
	const char *uri, *size, *seconds;
};

static int run_fio(const struct bench *b, const struct profile *p, bool timed, char **out)
{
	CLEANUP(free_ptr) char *uri = xasprintf("--uri=%s", b->uri);
	CLEANUP(free_ptr) char *rw = xasprintf("--rw=%s", p->rw);
	CLEANUP(free_ptr) char *bs = xasprintf("--bs=%s", p->bs);
	CLEANUP(free_ptr) char *depth = xasprintf("--iodepth=%s", p->depth);
	CLEANUP(free_ptr) char *size = xasprintf("--size=%s", b->size);
	CLEANUP(free_ptr) char *runtime = xasprintf("--runtime=%s", b->seconds);
	char *argv[20] = {"fio",
			  "--name=bench",
			  "--ioengine=nbd",
			  uri,
			  rw,
			  bs,
			  depth,
			  size,
			  "--output-format=json",
			  "--norandommap",
			  "--randrepeat=0",
			  "--refill_buffers"};
	unsigned n = 12;

	if (p->extra)
		argv[n++] = (char *)p->extra;
	if (timed) {
		argv[n++] = "--time_based";
		argv[n++] = runtime;
	}
	argv[n] = NULL;
	return run_program(argv, out);
}

static void take_side(const struct json *job, const char *side, struct result *r)
{
	const struct json *s = json_get(job, side);
	double iops = json_get_real(s, "iops", 0);

	r->iops += iops;
	r->mib_s += json_get_real(s, "bw", 0) / 1024;
	if (iops <= 0 || r->mean_us > 0) /* of a mix, the reads' latency */
		return;
	r->mean_us = json_get_real(json_get(s, "lat_ns"), "mean", 0) / 1000;
	r->p99_us = json_get_real(json_get(json_get(s, "clat_ns"), "percentile"), "99.000000", 0) /
		    1000;
}

static int take_result(struct ctl *c, const char *text, uint64_t cpu_us, double seconds,
		       struct result *r)
{
	const char *start = strchr(text, '{');
	char err[128] = "no output";
	struct json *j = start ? json_parse(start, strlen(start), err, sizeof(err)) : NULL;
	const struct json *job = json_at(json_get(j, "jobs"), 0);
	double ios;

	if (!job) {
		json_free(j);
		return ctl_error(c, CTL_REFUSED, "PROTOCOL",
				 "fio's output is not what was expected: %s", err);
	}
	memset(r, 0, sizeof(*r));
	take_side(job, "read", r);
	take_side(job, "write", r);
	r->errors = (int64_t)json_u64(job, "error", 0);
	ios = (double)(json_u64(json_get(job, "read"), "total_ios", 0) +
		       json_u64(json_get(job, "write"), "total_ios", 0));
	r->cpu_us_per_io = ios > 0 ? (double)cpu_us / ios : 0;
	r->cpu_cores = seconds > 0 ? (double)cpu_us / 1e6 / seconds : 0;
	json_free(j);
	return CTL_OK;
}

static int run_profile(struct ctl *c, const struct bench *b, const struct profile *p,
		       struct result *r)
{
	CLEANUP(free_ptr) char *out = NULL;
	struct timespec t0, t1;
	uint64_t cpu = busy_us();
	int rc;

	clock_gettime(CLOCK_MONOTONIC, &t0);
	rc = run_fio(b, p, true, &out);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	if (rc == 127)
		return ctl_error(c, CTL_REFUSED, "NOT_FOUND",
				 "fio is not installed: apt-get install fio");
	if (rc != 0)
		return ctl_error(c, CTL_REFUSED, "EIO",
				 "%s: fio ended with %d; does fio have its nbd engine, and is the "
				 "volume free?",
				 p->name, rc);
	return take_result(
		c, out, busy_us() - cpu,
		(double)(t1.tv_sec - t0.tv_sec) + (double)(t1.tv_nsec - t0.tv_nsec) / 1e9, r);
}

static void report(const struct ctl *c, struct json *list, struct table *t, const char *name,
		   const struct result *r)
{
	struct json *j;

	table_add(t, "%s", name);
	table_add(t, "%.0f", r->iops);
	table_add(t, "%.1f", r->mib_s);
	table_add(t, "%.1f", r->mean_us);
	table_add(t, "%.1f", r->p99_us);
	table_add(t, "%.1f", r->cpu_us_per_io);
	table_add(t, "%.2f", r->cpu_cores);
	table_add(t, "%" PRId64, r->errors);
	j = json_object_new();
	json_put_str(j, "profile", name);
	json_put_real(j, "iops", r->iops);
	json_put_real(j, "mib_per_s", r->mib_s);
	json_put_real(j, "latency_mean_us", r->mean_us);
	json_put_real(j, "latency_p99_us", r->p99_us);
	json_put_real(j, "cpu_us_per_io", r->cpu_us_per_io);
	json_put_real(j, "cpu_cores", r->cpu_cores);
	json_put_i64(j, "error", r->errors);
	json_add(list, j);
}

static int run_all(struct ctl *c, const struct bench *b, const char *only)
{
	static const char *const head[] = {"PROFILE", "IOPS",      "MiB/s", "MEAN us",
					   "P99 us",  "CPU us/IO", "CORES", "ERROR"};
	struct json *j = json_object_new(), *list = json_array_new();
	struct table t;
	unsigned done = 0;
	int rc = CTL_OK;

	table_init(&t, ARRAY_LEN(head), 0xfe, head);
	for (size_t i = 0; rc == CTL_OK && i < ARRAY_LEN(hcibench); i++) {
		struct result r = {0};

		if (only && strcmp(only, hcibench[i].name))
			continue;
		fprintf(stderr, "%s, %s s …\n", hcibench[i].name, b->seconds);
		rc = run_profile(c, b, &hcibench[i], &r);
		if (rc == CTL_OK)
			report(c, list, &t, hcibench[i].name, &r);
		done++;
	}
	json_put_u64(j, "schema", 1);
	json_put(j, "profiles", list);
	if (!done)
		rc = ctl_usage("bench: no profile is named \"%s\"", only);
	if (rc == CTL_OK && c->json)
		print_json(j);
	else if (rc == CTL_OK)
		table_print(&t);
	json_free(j);
	return rc;
}

/* The NBD socket stands beside the admin socket. */
static char *beside_admin(const struct ctl *c)
{
	const char *path = strncmp(c->admin, "unix:", 5) ? NULL : c->admin + 5;
	const char *slash = path ? strrchr(path, '/') : NULL;

	return slash ? xasprintf("%.*s/nbd.sock", (int)(slash - path), path)
		     : xstrdup("/run/ashlar/nbd.sock");
}

/* The volume must exist and not be attached: writing over somebody's data is not a benchmark. */
static int check_volume(struct ctl *c, const char *volume)
{
	CLEANUP(free_ptr) char *segment = ctl_escape(volume);
	CLEANUP(free_ptr) char *path = xasprintf("/v1/volumes/%s", segment);
	const struct json *a;
	struct json *j;
	int rc = ctl_call(c, "GET", path, NULL, &j);

	if (rc != CTL_OK)
		return rc;
	a = json_get(j, "attachments");
	if (json_len(a))
		rc = ctl_error(c, CTL_REFUSED, "HELD", "volume %s is attached by %s", volume,
			       str_or(json_at(a, 0), "holder", "?"));
	json_free(j);
	return rc;
}

static int bench_run(struct ctl *c, int argc, char **argv)
{
	const char *profile = "hcibench", *volume = NULL, *seconds = "5", *size = "1g",
		   *only = NULL;
	const char *socket = NULL, *uri = NULL;
	bool fill = false, yes = false;
	const struct option_spec o[] = {{"--profile", &profile, NULL}, {"--volume", &volume, NULL},
					{"--seconds", &seconds, NULL}, {"--size", &size, NULL},
					{"--only", &only, NULL},       {"--socket", &socket, NULL},
					{"--uri", &uri, NULL},         {"--fill", NULL, &fill},
					{"--yes", NULL, &yes}};
	CLEANUP(free_ptr) char *made = NULL;
	CLEANUP(free_ptr) char *beside = beside_admin(c);
	CLEANUP(free_ptr) char *out = NULL;
	struct bench b;
	uint64_t v;
	int rc;

	rc = ctl_args(&bench_verbs[0], argc, argv, o, ARRAY_LEN(o), NULL, 0, 0);
	if (rc != CTL_OK)
		return rc;
	if (strcmp(profile, "hcibench"))
		return ctl_usage("bench: the only profile set is hcibench");
	if (!volume && !uri)
		return ctl_usage("bench: --volume NAME is needed (its data will be overwritten)");
	if (!ctl_number(seconds, 86400, &v) || v < 1)
		return ctl_usage("bench: --seconds takes a number from 1");
	if (!yes)
		return ctl_usage("bench: it overwrites the volume; confirm with --yes");
	if (volume && !uri) {
		rc = check_volume(c, volume);
		if (rc != CTL_OK)
			return rc;
		made = xasprintf("nbd+unix:///%s?socket=%s", volume, socket ? socket : beside);
	}
	b = (struct bench){.uri = uri ? uri : made, .size = size, .seconds = seconds};
	if (fill) {
		static const struct profile whole = {"fill", "write", "1m", "8", NULL};

		fprintf(stderr, "filling %s …\n", size);
		if (run_fio(&b, &whole, false, &out) != 0)
			return ctl_error(c, CTL_REFUSED, "EIO",
					 "filling failed; is fio installed, with its nbd engine?");
	}
	return run_all(c, &b, only);
}

const struct verb bench_verbs[] = {
	{"bench", NULL,
	 "--volume NAME --yes [--profile hcibench] [--only PROFILE] [--seconds S] [--size SIZE] "
	 "[--fill] "
	 "[--socket PATH | --uri NBD-URI]",
	 "Runs the HCIBench profiles against a volume, with fio over NBD. The volume's data is "
	 "overwritten.\n\n"
	 "Prints IOPS, throughput, mean and 99th percentile latency, and the whole host's CPU time "
	 "per I/O.\n"
	 "--fill writes the area once before, so that reads meet data.\n\n"
	 "Example: ashlar bench --volume scratch --fill --yes",
	 bench_run},
	{NULL},
};
