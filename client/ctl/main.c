/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the noun and verb, takes the options that all commands share, and runs. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

#define DEFAULT_ADMIN "unix:/run/ashlar/admin.sock"

const struct verb *const all_verbs[] = {cluster_verbs, node_verbs,   diskgroup_verbs,
					volume_verbs,  force_verbs,  job_verbs,    scrub_verbs,
					status_verbs,  safety_verbs, cert_verbs, bench_verbs,
					completion_verbs, NULL};

static void print_overview(FILE *f)
{
	fputs("usage: ashlar [-o json|table] [--admin ADDRESS] [--timeout S] COMMAND …\n\n", f);
	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++) {
			const char *end = strchr(v->help, '\n');
			char name[64];

			snprintf(name, sizeof(name), "%s%s%s", v->noun, v->verb ? " " : "",
				 v->verb ? v->verb : "");
			fprintf(f, "  %-18s %.*s\n", name,
				(int)(end ? end - v->help : (long)strlen(v->help)), v->help);
		}
	fputs("\nashlar COMMAND --help explains one, with examples.\n"
	      "ADDRESS (or ASHLAR_ADMIN) is unix:PATH or https://HOST:PORT; default " DEFAULT_ADMIN
	      ".\n"
	      "https needs ASHLAR_CA, ASHLAR_CERT and ASHLAR_KEY (made by `ashlar cert issue "
	      "operator NAME`).\n"
	      "Exit codes: 0 done, 1 refused, 2 usage, 3 not found, 4 exists already, 5 would lose "
	      "redundancy or data,\n"
	      "6 no quorum or unreachable, 7 no space, 8 timed out.\n",
	      f);
}

static void print_help(const struct verb *v)
{
	printf("usage: ashlar %s%s%s %s\n\n%s\n", v->noun, v->verb ? " " : "",
	       v->verb ? v->verb : "", v->usage, v->help);
}

static bool noun_exists(const char *noun)
{
	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++)
			if (!strcmp(v->noun, noun))
				return true;
	return false;
}

static const struct verb *find_verb(const char *noun, const char *verb, bool *used_verb)
{
	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++) {
			if (strcmp(v->noun, noun))
				continue;
			*used_verb = v->verb != NULL;
			if (!v->verb || (verb && !strcmp(v->verb, verb)))
				return v;
		}
	return NULL;
}

static void print_noun(FILE *f, const char *noun)
{
	for (size_t i = 0; all_verbs[i]; i++)
		for (const struct verb *v = all_verbs[i]; v->noun; v++)
			if (!strcmp(v->noun, noun))
				fprintf(f, "  ashlar %s %s%s%s\n", v->noun, v->verb,
					*v->usage ? " " : "", v->usage);
}

static int unknown(const char *noun, const char *verb, bool help)
{
	if (!noun_exists(noun))
		return ctl_usage("no command \"%s\"; `ashlar --help` lists all", noun);
	if (help && !verb) {
		print_noun(stdout, noun);
		return CTL_OK;
	}
	if (verb)
		ctl_usage("%s has no \"%s\"; it has:", noun, verb);
	else
		ctl_usage("%s needs a word more; it has:", noun);
	print_noun(stderr, noun);
	return CTL_USAGE;
}

/* Takes the shared options out of argv, wherever they stand. */
static int take_shared(struct ctl *c, int *argc, char **argv, bool *help, bool *version)
{
	int n = 0;

	for (int i = 0; i < *argc; i++) {
		const char *value = i + 1 < *argc ? argv[i + 1] : NULL;
		uint64_t seconds;

		if (!strcmp(argv[i], "--")) {
			while (i < *argc)
				argv[n++] = argv[i++];
			break;
		}
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			*help = true;
		} else if (!strcmp(argv[i], "--version")) {
			*version = true;
		} else if (!strcmp(argv[i], "-o") || !strcmp(argv[i], "--output")) {
			if (!value || (strcmp(value, "json") && strcmp(value, "table")))
				return ctl_usage("-o takes json or table");
			c->json = !strcmp(value, "json");
			i++;
		} else if (!strcmp(argv[i], "--admin")) {
			if (!value)
				return ctl_usage("--admin needs an address");
			c->admin = value;
			i++;
		} else if (!strcmp(argv[i], "--timeout")) {
			if (!value || !ctl_duration_s(value, &seconds) || seconds < 1 ||
			    seconds > 86400)
				return ctl_usage("--timeout takes a time, e.g. 30s or 5m");
			c->timeout_s = (unsigned)seconds;
			i++;
		} else {
			argv[n++] = argv[i];
		}
	}
	*argc = n;
	return CTL_OK;
}

static int run(int argc, char **argv)
{
	struct ctl c = {.admin = getenv("ASHLAR_ADMIN"), .timeout_s = 60};
	bool help = false, version = false, used_verb = false;
	const struct verb *v;
	int rc;

	if (!c.admin || !*c.admin)
		c.admin = DEFAULT_ADMIN;
	c.color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	argc--;
	argv++;
	rc = take_shared(&c, &argc, argv, &help, &version);
	if (rc != CTL_OK)
		return rc;
	if (version) {
		puts("ashlar " ASHLAR_VERSION);
		return CTL_OK;
	}
	if (argc == 0) {
		print_overview(help ? stdout : stderr);
		return help ? CTL_OK : CTL_USAGE;
	}
	v = find_verb(argv[0], argc > 1 ? argv[1] : NULL, &used_verb);
	if (!v)
		return unknown(argv[0], argc > 1 ? argv[1] : NULL, help);
	if (help) {
		print_help(v);
		return CTL_OK;
	}
	return v->run(&c, argc - 1 - used_verb, argv + 1 + used_verb);
}

/* What was not written was not said: a full disk behind the pipe is a failure. */
int main(int argc, char **argv)
{
	int rc = run(argc, argv);

	if (fflush(stdout) != 0 || ferror(stdout)) {
		fputs("ashlar: the output could not be written\n", stderr);
		return rc ? rc : CTL_REFUSED;
	}
	return rc;
}
