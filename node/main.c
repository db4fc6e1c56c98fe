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
#include "node/run.h"
#include "node/standalone.h"
#include "store/store.h"

static const char usage_text[] =
	"usage: ashlard run [--config FILE]        serve; default " CONFIG_DEFAULT_PATH "\n"
	"       ashlard run --standalone DIR [--size 4G] [--cache 1G]\n"
	"                                           a one-node cluster on plain files in DIR\n"
	"       ashlard check-config FILE           say whether a configuration is right\n"
	"       ashlard inspect [--verbose] PATH    decode a device, file or metadata directory, read-only\n"
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

static int inspect_command(int argc, char **argv)
{
	bool verbose = argc == 3 && (!strcmp(argv[1], "--verbose") || !strcmp(argv[1], "-v"));
	int rc;

	if (argc != (verbose ? 3 : 2))
		return usage("inspect takes one path");
	rc = store_inspect(argv[argc - 1], verbose);
	if (rc < 0)
		fprintf(stderr, "ashlard: %s: %s\n", argv[argc - 1], err_text(rc));
	return rc < 0 ? 3 : rc;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };

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
	return usage("unknown command");
}
