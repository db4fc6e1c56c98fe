/* SPDX-License-Identifier: Apache-2.0 */
/* ashlard: the node service. `run` serves, `inspect` decodes a device or metadata directory offline. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "node/base/err.h"
#include "node/base/log.h"
#include "node/diskgroup.h"
#include "node/loop/failpoint.h"
#include "node/recover.h"
#include "node/run.h"
#include "node/standalone.h"
#include "store/space.h"

static const char usage_text[] =
	"usage: ashlard run [--config FILE]        serve; default " CONFIG_DEFAULT_PATH "\n"
	"       ashlard run --standalone DIR [--size 4G] [--cache 1G]\n"
	"                                           a one-node cluster on plain files in DIR\n"
	"       ashlard check-config FILE           say whether a configuration is right\n"
	"       ashlard inspect [--verbose] PATH    decode a device, file or metadata directory, read-only\n"
	"       ashlard inspect --verify [--data] [--config FILE] [GROUP]\n"
	"                                           recount the groups of this node, which must not run;\n"
	"                                           --data reads every stored block too\n"
	"       ashlard recover [--config FILE] [--accept-loss CLUSTER | --follow TOKEN]\n"
	"                                           when a majority of the voters is gone for good; ashlard\n"
	"                                           must not run. Else: shows what this node knows\n"
	"       ashlard --version\n";

static int usage(const char *why)
{
	if (why)
		fprintf(stderr, "ashlard: %s\n", why);
	fputs(usage_text, stderr);
	return 2;
}

static int parse_size(const char *text, uint64_t *out)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 10);
	static const char units[] = "KMGT";
	const char *u;

	if (end == text || v == 0)
		return -EINVAL;
	if (*end) {
		u = strchr(units, *end);
		if (!u || end[1])
			return -EINVAL;
		v <<= 10 * (u - units + 1);
	}
	*out = v;
	return 0;
}

static int run_command(int argc, char **argv)
{
	static const struct option options[] = { { "config", required_argument, NULL, 'c' },
						 { "standalone", required_argument, NULL, 's' },
						 { "size", required_argument, NULL, 'z' },
						 { "cache", required_argument, NULL, 'a' },
						 { NULL, 0, NULL, 0 } };
	const char *config_path = CONFIG_DEFAULT_PATH;
	struct standalone alone = { .size_bytes = 4ull << 30, .cache_bytes = 1ull << 30 };
	struct config config;
	char err[512];
	int o, rc;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'c':
			config_path = optarg;
			break;
		case 's':
			alone.dir = optarg;
			break;
		case 'z':
		case 'a':
			if (parse_size(optarg, o == 'z' ? &alone.size_bytes : &alone.cache_bytes) < 0)
				return usage("a size is a number with K, M, G or T, such as 4G");
			break;
		default:
			return usage(NULL);
		}
	}
	if (optind != argc)
		return usage("unexpected argument");
	rc = alone.dir ? standalone_config(&alone, &config, err) : config_load(config_path, &config, err);
	if (rc < 0) {
		fprintf(stderr, "ashlard: %s\n", err);
		return 2;
	}
	log_set_level((enum log_level)config.log_level);
	return node_run(&config, alone.dir ? &alone : NULL);
}

static int check_config(const char *path)
{
	struct config config;
	char err[512];

	if (config_load(path, &config, err) < 0) {
		fprintf(stderr, "ashlard: %s\n", err);
		return 2;
	}
	config_free(&config);
	printf("%s: ok\n", path);
	return 0;
}

static int verify_set(const struct config *c, const struct diskgroup_set *set, bool data)
{
	struct store_config cfg = {.devices = (const char *const *)set->devices,
				   .device_count = set->device_count,
				   .metadata_dir = set->metadata_dir,
				   .buffered = c->io == CONFIG_IO_BUFFERED};
	struct store_verify v;
	int rc;

	if (set->lost) {
		fprintf(stderr, "ashlard: group %u: %s: %s\n", set->number, set->lost, set->why_lost);
		return 3;
	}
	rc = store_verify_offline(&cfg, data, &v);
	if (rc < 0 && rc != -ERR_CORRUPT) {
		fprintf(stderr, "ashlard: group %u: %s\n", set->number,
			rc == -ERR_BUSY ? "in use: stop ashlard, or use `ashlar diskgroup verify`"
					: err_text(rc));
		return 3;
	}
	printf("group=%u commit=%llu objects=%llu pages=%llu blocks=%llu shares=%llu bad_blocks=%llu "
	       "differences=%llu\n",
	       set->number, (unsigned long long)v.commit, (unsigned long long)v.objects,
	       (unsigned long long)v.pages, (unsigned long long)v.blocks, (unsigned long long)v.shares,
	       (unsigned long long)v.bad_blocks, (unsigned long long)v.differences);
	return v.differences || v.bad_blocks ? 1 : 0;
}

/* 0 right, 1 something differs or is damaged, 3 a group could not be read. */
static int verify_groups(const struct config *c, uint64_t number, bool data)
{
	struct diskgroup_found *found = xcalloc(1, sizeof(*found));
	struct identity id = {0};
	unsigned seen = 0;
	int worst = 0, rc = identity_load(c->state_dir, &id);

	if (!rc)
		rc = diskgroup_find(c->state_dir, &id, found);
	if (rc < 0)
		fprintf(stderr, "ashlard: %s: %s\n", c->state_dir, err_text(rc));
	for (unsigned i = 0; !rc && i < found->count; i++) {
		if (number && found->set[i].number != number)
			continue;
		seen++;
		worst = MAX(worst, verify_set(c, &found->set[i], data));
	}
	if (!rc && !seen)
		fprintf(stderr, "ashlard: no such disk group on this node\n");
	diskgroup_found_free(found);
	free(found);
	return rc < 0 || !seen ? 3 : worst;
}

static int verify_command(int argc, char **argv)
{
	static const struct option options[] = {{"verify", no_argument, NULL, 'v'},
						{"data", no_argument, NULL, 'd'},
						{"config", required_argument, NULL, 'c'},
						{NULL, 0, NULL, 0}};
	const char *config_path = CONFIG_DEFAULT_PATH;
	struct config config;
	bool data = false;
	uint64_t number = 0;
	char err[512];
	int o, rc;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == '?')
			return usage(NULL);
		if (o == 'd')
			data = true;
		if (o == 'c')
			config_path = optarg;
	}
	if (argc - optind > 1 || (optind < argc && parse_size(argv[optind], &number) < 0))
		return usage("inspect --verify takes at most the number of one group");
	if (config_load(config_path, &config, err) < 0) {
		fprintf(stderr, "ashlard: %s\n", err);
		return 2;
	}
	rc = verify_groups(&config, number, data);
	config_free(&config);
	return rc;
}

static int inspect_command(int argc, char **argv)
{
	bool verbose = argc == 3 && (!strcmp(argv[1], "--verbose") || !strcmp(argv[1], "-v"));
	int rc;

	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--verify"))
			return verify_command(argc, argv);
	if (argc != (verbose ? 3 : 2))
		return usage("inspect takes one path");
	rc = store_inspect(argv[argc - 1], verbose);
	if (rc < 0)
		fprintf(stderr, "ashlard: %s: %s\n", argv[argc - 1], err_text(rc));
	return rc < 0 ? 3 : rc;
}

static int recover_command(int argc, char **argv)
{
	static const struct option options[] = {{"config", required_argument, NULL, 'c'},
						{"accept-loss", required_argument, NULL, 'a'},
						{"follow", required_argument, NULL, 'f'},
						{NULL, 0, NULL, 0}};
	const char *config_path = CONFIG_DEFAULT_PATH, *argument = NULL;
	enum recover_what what = RECOVER_LOOK;
	struct config config;
	char err[512];
	int o, rc;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == '?')
			return usage(NULL);
		if (o == 'c') {
			config_path = optarg;
			continue;
		}
		if (argument)
			return usage("recover takes --accept-loss or --follow, not both");
		what = o == 'a' ? RECOVER_ALONE : RECOVER_FOLLOW;
		argument = optarg;
	}
	if (optind != argc)
		return usage("unexpected argument");
	if (config_load(config_path, &config, err) < 0) {
		fprintf(stderr, "ashlard: %s\n", err);
		return 2;
	}
	rc = recover_run(&config, what, argument);
	config_free(&config);
	return rc;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };
	char why[1024];

	if (failpoints_parse(getenv("ASHLAR_FAILPOINT"), why, sizeof(why)) < 0) {
		fprintf(stderr, "ashlard: %s\n", why);
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	setrlimit(RLIMIT_NOFILE, &files); /* best effort: an unprivileged process keeps what it has */
	if (argc < 2)
		return usage(NULL);
	if (!strcmp(argv[1], "--version")) {
		printf("ashlard %s\n", ASHLAR_VERSION);
		return 0;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) {
		fputs(usage_text, stdout);
		return 0;
	}
	if (!strcmp(argv[1], "run"))
		return run_command(argc - 1, argv + 1);
	if (!strcmp(argv[1], "check-config") && argc == 3)
		return check_config(argv[2]);
	if (!strcmp(argv[1], "inspect"))
		return inspect_command(argc - 1, argv + 1);
	if (!strcmp(argv[1], "recover"))
		return recover_command(argc - 1, argv + 1);
	return usage("unknown command");
}
