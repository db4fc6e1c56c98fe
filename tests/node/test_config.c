/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "cluster/map.h"
#include "node/base/log.h"
#include "node/config.h"
#include "tests/lib/test.h"

static char err[512];

static int parse(const char *text, struct config *c)
{
	return config_parse("n.yaml", text, strlen(text), c, err);
}

static void refused(const char *text, const char *line, const char *word)
{
	struct config c;
	char place[64];

	EXPECT(parse(text, &c) < 0);
	snprintf(place, sizeof(place), "n.yaml:%s", line);
	if (!strstr(err, place) || !strstr(err, word))
		test_failed(__FILE__, __LINE__, "\"%s\" names neither %s nor \"%s\"", err, place,
			    word);
	EXPECT(!c.state_dir); /* nothing is left to be freed or used */
}

/* An empty file is a node with all defaults. */
TEST(config, defaults_fill_every_field)
{
	struct config c;

	config_defaults(&c);
	EXPECT_STR(c.state_dir, "/var/lib/ashlar");
	EXPECT_STR(c.admin_socket, "/run/ashlar/admin.sock");
	EXPECT_STR(c.nbd_unix, "/run/ashlar/nbd.sock");
	EXPECT(!c.admin_listen && !c.nbd_tcp && !c.admin_advertise);
	EXPECT(is_pow2(c.shards) && c.shards <= 4);
	EXPECT(strncmp(c.advertise, "0.0.0.0", 7) != 0);
	EXPECT_STR(c.fault_set, c.name);
	EXPECT_EQ(c.roles, ROLE_STORAGE | ROLE_VOTER | ROLE_GATEWAY);
	EXPECT_EQ(c.data_security, SECURITY_TLS);
	EXPECT(!c.confirm_reads);
	config_free(&c);
}

TEST(config, every_key_is_taken)
{
	struct config c;

	EXPECT_OK(parse(
		"state_dir: /a\nrun_dir: /b\nlisten: 10.0.0.1:7400\nadvertise: 10.0.0.2:7400\n"
		"admin_socket: /b/x.sock\nadmin_listen: 0.0.0.0:7401\nnbd_unix: /b/n.sock\n"
		"nbd_tcp: \"[::1]:10809\"\nnbd_allow_open: true\nshards: 8\nname: n1\nfault_set: "
		"r1\n"
		"data_security: authenticated\nlog_level: warn\nio: buffered\n"
		"confirm_reads: yes\nroles: [voter, "
		"gateway]\n"
		"memory:\n  page_cache: 1G\n  block_cache: 32MiB\n  dedup_hints: 2G\n  "
		"log_index: 16777216\n  "
		"buffers: 64m\n",
		&c));
	EXPECT_STR(c.state_dir, "/a");
	EXPECT_STR(c.advertise, "10.0.0.2:7400");
	EXPECT_STR(c.admin_socket, "/b/x.sock");
	EXPECT_STR(c.admin_advertise, "10.0.0.2:7401"); /* a wildcard takes the advertised host */
	EXPECT_STR(c.nbd_tcp, "[::1]:10809");
	EXPECT(c.nbd_allow_open);
	EXPECT_EQ(c.shards, 8);
	EXPECT_STR(c.fault_set, "r1");
	EXPECT_EQ(c.data_security, SECURITY_AUTHENTICATED);
	EXPECT_EQ(c.log_level, LOG_WARN);
	EXPECT_EQ(c.io, CONFIG_IO_BUFFERED);
	EXPECT(c.confirm_reads);
	EXPECT_EQ(c.roles, ROLE_VOTER | ROLE_GATEWAY);
	EXPECT_EQ(c.page_cache_bytes, 1ull << 30);
	EXPECT_EQ(c.block_cache_bytes, 32ull << 20);
	EXPECT_EQ(c.dedup_hint_bytes, 2ull << 30);
	EXPECT_EQ(c.log_index_bytes, 16ull << 20);
	EXPECT_EQ(c.buffers_bytes, 64ull << 20);
	config_free(&c);
}

TEST(config, empty_values_mean_defaults)
{
	struct config c;

	EXPECT_OK(parse("admin_listen:\nshards: 0\nname: ~\n", &c));
	EXPECT(!c.admin_listen);
	EXPECT(c.shards > 0);
	EXPECT(c.name[0] != '~');
	config_free(&c);
}

/* A misspelt key must not silently mean the default. */
TEST(config, unknown_keys_are_refused_with_their_line)
{
	refused("state_dir: /a\nsharts: 4\n", "2", "sharts");
	refused("memory:\n  page_cash: 1G\n", "2", "page_cash");
	refused("shards: 2\nshards: 4\n", "1", "twice");
}

TEST(config, bad_values_are_refused_with_line_key_and_remedy)
{
	refused("\nshards: 3\n", "2", "power of two");
	refused("shards: -1\n", "1", "shards");
	refused("shards: 128\n", "1", "shards");
	refused("listen: localhost:7400\n", "1", "numeric");
	refused("listen: 10.0.0.1\n", "1", "HOST:PORT");
	refused("listen: 10.0.0.1:99999\n", "1", "HOST:PORT");
	refused("listen: \"::1:80\"\n", "1", "HOST:PORT");
	refused("advertise: 0.0.0.0:7400\n", "1", "wildcard");
	refused("state_dir: relative\n", "1", "absolute");
	refused("nbd_allow_open: perhaps\n", "1", "true nor false");
	refused("confirm_reads: sometimes\n", "1", "true nor false");
	refused("data_security: none\n", "1", "tls, authenticated");
	refused("io: fast\n", "1", "buffered");
	refused("log_level: loud\n", "1", "debug");
	refused("roles: [storage, king]\n", "1", "king");
	refused("roles: []\n", "1", "leave it out");
	refused("name: \"a b\"\n", "1", "letters");
	refused("memory:\n  buffers: 1K\n", "2", "at least");
	refused("memory:\n  page_cache: lots\n", "2", "not a size");
	refused("memory:\n  page_cache: 99999999999999999999G\n", "2", "not a size");
	refused("memory:\n  page_cache: 18446744073709551615\n", "2", "memory");
}

TEST(config, malformed_yaml_is_refused)
{
	struct config c;

	EXPECT(parse("state_dir: [\n", &c) < 0);
	EXPECT(parse("- a\n- b\n", &c) < 0);
	EXPECT(parse("memory: 5\n", &c) < 0);
	EXPECT(parse("a: &x 1\nb: *x\n", &c) < 0);
	EXPECT(err[0]);
}

TEST(config, a_missing_file_names_the_path)
{
	struct config c;

	EXPECT_RC(config_load("/nonexistent/x.yaml", &c, err), -ENOENT);
	EXPECT(strstr(err, "/nonexistent/x.yaml"));
}

/* The example is the documentation of every key: it must load as it stands, and mean the defaults.
 */
TEST(config, the_example_loads_and_means_the_defaults)
{
	const char *source = getenv("ASHLAR_SOURCE_DIR");
	CLEANUP(free_ptr)
	char *path = xasprintf("%s/node/ashlard.yaml.example", source ? source : ".");
	struct config c, d;

	if (access(path, R_OK) != 0) {
		printf("no example at %s\n", path);
		exit(77);
	}
	if (config_load(path, &c, err) < 0)
		test_failed(__FILE__, __LINE__, "%s", err);
	config_defaults(&d);
	EXPECT_STR(c.state_dir, d.state_dir);
	EXPECT_STR(c.listen, d.listen);
	EXPECT_STR(c.admin_socket, d.admin_socket);
	EXPECT_EQ(c.shards, d.shards);
	EXPECT_EQ(c.roles, d.roles);
	EXPECT_EQ(c.page_cache_bytes, d.page_cache_bytes);
	EXPECT_EQ(c.block_cache_bytes, d.block_cache_bytes);
	EXPECT_EQ(c.log_index_bytes, d.log_index_bytes);
	EXPECT_EQ(c.buffers_bytes, d.buffers_bytes);
	config_free(&c);
	config_free(&d);
}
