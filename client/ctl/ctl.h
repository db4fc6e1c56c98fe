/* SPDX-License-Identifier: Apache-2.0 */
/* The `ashlar` command: a thin client of the admin interface. It knows words and tables; what is true
 * and what is allowed the daemon says. One process, one thread, blocking calls. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "node/base/check.h"
#include "node/base/json.h"
#include "node/base/text.h"

/* Exit codes: part of the interface, scripts and playbooks depend on them. */
enum ctl_exit {
	CTL_OK = 0,
	CTL_REFUSED = 1,	/* refused or failed */
	CTL_USAGE = 2,
	CTL_NOT_FOUND = 3,
	CTL_EXISTS = 4,
	CTL_REDUNDANCY = 5,	/* would lose redundancy or data */
	CTL_UNREACHABLE = 6,	/* no quorum, or no daemon */
	CTL_NO_SPACE = 7,
	CTL_TIMEOUT = 8,	/* it may still happen */
};

struct ctl {
	const char *admin;	/* unix:PATH or https://HOST:PORT */
	bool json;		/* -o json */
	bool color;		/* on a terminal, without NO_COLOR */
	unsigned timeout_s;
};

struct verb {
	const char *noun, *verb; /* verb NULL: the noun is the command */
	const char *usage;	 /* arguments and options */
	const char *help;	 /* what it does, then examples */
	int (*run)(struct ctl *c, int argc, char **argv); /* without noun and verb */
};
extern const struct verb cluster_verbs[], node_verbs[], diskgroup_verbs[], volume_verbs[], status_verbs[],
	force_verbs[], job_verbs[], safety_verbs[], cert_verbs[], scrub_verbs[], bench_verbs[],
	completion_verbs[]; /* each ends with a noun of NULL */
extern const struct verb *const all_verbs[]; /* ends with NULL */

/* ---- Arguments (args.c) ---- */
struct option_spec {
	const char *name;   /* "--size" */
	const char **value; /* takes a value, or: */
	bool *flag;
};
/* Options anywhere; min to max other words into `words`. CTL_USAGE when
 * it does not fit, with a line that says what. */
int ctl_args(const struct verb *v, int argc, char **argv, const struct option_spec *o, size_t n,
	     const char **words, unsigned min, unsigned max) MUST_USE;
int ctl_usage(const char *fmt, ...) PRINTF_LIKE(1, 2); /* prints, returns CTL_USAGE */
/* "4096", "10G", "1.5T", "64MiB": powers of 1024. false: not a size. */
bool ctl_size(const char *text, uint64_t *out);
bool ctl_number(const char *text, uint64_t max, uint64_t *out);
bool ctl_duration_s(const char *text, uint64_t *out); /* "30", "30s", "10m", "2h" */
uint64_t ctl_now_s(void); /* of a clock that nobody sets */

/* ---- Calls (call.c, libcurl's door) ---- */
/* Body is taken over (NULL: none). CTL_OK with *out set (out may be NULL), or an exit code after the
 * error was printed. */
int ctl_call(struct ctl *c, const char *method, const char *path, struct json *body,
	     struct json **out) MUST_USE;
/* The same to another admin address over TLS, verified by this CA file alone, without a certificate. */
int ctl_call_joining(struct ctl *c, const char *address, const char *ca_file, const char *method,
		     const char *path, struct json *body, struct json **out) MUST_USE;
/* Unverified: only for the CA certificate itself, whose hash is then compared. malloc'ed text. */
int ctl_fetch_ca(struct ctl *c, const char *address, char **pem) MUST_USE;
int ctl_exit_of(const char *error_name, long http_status);
int ctl_error(struct ctl *c, int exit_code, const char *error_name, const char *fmt, ...) PRINTF_LIKE(4, 5);
char *ctl_escape(const char *name); /* for a path segment; malloc'ed */

/* ---- Jobs (job.c) ---- */
/* Body is taken over. Prints the job's number, or waits for its end. */
int ctl_start_job(struct ctl *c, struct json *body, bool wait);
int ctl_job(struct ctl *c, const char *path, struct json *body, bool wait); /* posted there */

/* ---- Output (out.c) ---- */
struct table {
	unsigned columns, cells, cap;
	char **cell;
	uint32_t right; /* bit per column: align right */
};
void table_init(struct table *t, unsigned columns, uint32_t right, const char *const *head);
void table_add(struct table *t, const char *fmt, ...) PRINTF_LIKE(2, 3); /* next cell */
void table_print(struct table *t); /* and frees it */
/* A column of a table of JSON rows: the member `key` as it is (text, number, on or off), or `cell`. */
struct column {
	const char *head, *key;
	bool right;
	void (*cell)(struct table *t, const struct json *row); /* adds one cell */
};
void print_rows(const struct json *list, const struct column *columns, unsigned n, bool backwards);
/* GET, then the answer's list under `key` as a table and who said it; or all of it as JSON. */
struct list_view {
	const char *path, *key;
	const struct column *columns;
	unsigned n;
	bool backwards;
};
int ctl_list(struct ctl *c, const struct list_view *v) MUST_USE;
/* GET, then the answer by `print`, or as JSON. */
int ctl_show(struct ctl *c, const char *path, void (*print)(const struct json *j)) MUST_USE;
void add_bytes(struct table *t, int64_t bytes); /* one cell */
void print_json(const struct json *j);
const char *age_text(uint64_t seconds, char out[24]);	/* "3 m", "2 d" */
const char *str_or(const struct json *j, const char *key, const char *otherwise);
void print_source(const struct json *answer); /* "from n2, map 12, 0.1 s old" */
const char *severity_color(const struct ctl *c, const char *severity); /* "" when colours are off */
const char *color_off(const struct ctl *c);

/* ---- The capacity ledger (space.c) ---- */
/* A line below counts of objects, if there is something to say: a replica in-sync by them may lack blocks. */
void print_unrepaired(const struct json *counts);
/* A line behind sums over disk groups, if some of these are not known now. */
void print_groups_known(const struct json *k, const char *before);
/* Two lines each: logical to stored, and stored to raw; both add up. */
void print_reduction(const struct json *k, uint64_t stored);
void print_raw(const struct json *k);
/* Cells of a ledger row. */
void logical_cell(struct table *t, const struct json *row);
void zero_cell(struct table *t, const struct json *row);
void dedup_cell(struct table *t, const struct json *row);
void compression_cell(struct table *t, const struct json *row);
void row_stored_cell(struct table *t, const struct json *row);
void frees_cell(struct table *t, const struct json *row);
