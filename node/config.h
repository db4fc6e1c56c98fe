/* SPDX-License-Identifier: Apache-2.0 */
/* libcyaml's door: the one YAML file of a node. Everything that is not about this host lives in the
 * cluster. Unknown keys and bad values are refused, naming file, line, key and remedy. Read once, at
 * start, by a set-up thread; read-only afterwards, so any thread may look at it. */
#pragma once

#include "node/base/check.h"

enum config_security { SECURITY_TLS, SECURITY_AUTHENTICATED };
enum config_io { CONFIG_IO_AUTO, CONFIG_IO_DIRECT, CONFIG_IO_BUFFERED };

struct config {
	char *state_dir;     /* identity, certificates, Raft log, metadata directories */
	char *run_dir;	     /* sockets */
	char *listen;	     /* "host:port" of the peer port, numeric */
	char *advertise;     /* what others dial; default: listen, which then may not be a wildcard */
	char *admin_socket;  /* path; default run_dir/admin.sock */
	char *admin_listen;  /* "host:port" of admin over TLS; NULL: none */
	char *admin_advertise; /* default: admin_listen, or advertise's host and admin_listen's port */
	char *nbd_unix;	     /* path; default run_dir/nbd.sock */
	char *nbd_tcp;	     /* NULL: none */
	bool nbd_allow_open; /* NBD without TLS off loopback */
	unsigned shards;     /* power of two; never 0 after load */
	char *name;	     /* default: the host name */
	char *fault_set;     /* default: the name */
	enum config_security data_security;
	int log_level; /* enum log_level */
	uint64_t page_cache_bytes, block_cache_bytes, dedup_hint_bytes, log_index_bytes, buffers_bytes;
	enum config_io io;
	uint8_t roles; /* enum node_role bits */
	bool confirm_reads; /* this host's clock may stop while the world goes on (N6) */
};

#define CONFIG_DEFAULT_PATH "/etc/ashlar/ashlard.yaml"

void config_defaults(struct config *c); /* every default of this host filled in */
/* 0, or < 0 with "path:line: key: what is wrong; remedy" in err. Starts from the defaults. */
int config_load(const char *path, struct config *out, char err[512]) MUST_USE;
int config_parse(const char *name, const void *text, size_t len, struct config *out,
		 char err[512]) MUST_USE;
void config_free(struct config *c);
